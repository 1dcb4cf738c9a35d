//! Invariants: declared once in a module header, cited by an assert, a check or a test.

use std::collections::BTreeMap;

use xtask::workspace::{Line, Source};

/// How many lines an assert may be away from the id that it is about.
const NEARBY_LINES: usize = 3;

/// Every declared invariant is cited, and declared once.
pub fn check_invariants(sources: &[Source]) -> Vec<String> {
    let mut found = Vec::new();
    let mut declared: BTreeMap<String, String> = BTreeMap::new();
    for source in sources {
        for line in source.lines() {
            let Some(id) = declared_id(line.text) else {
                continue;
            };
            let place = format!("{}:{}", source.path, line.number);
            if let Some(first) = declared.insert(id.to_owned(), place.clone()) {
                found.push(format!("{place}: `{id}` is declared at {first} already"));
            }
        }
    }
    for (id, place) in &declared {
        if !sources.iter().any(|source| cites(source, id)) {
            found.push(format!("{place}: no assert, check or test cites `{id}`"));
        }
    }
    found
}

/// The id in ``//! * `SPACE-3` …``.
fn declared_id(text: &str) -> Option<&str> {
    let id = text.strip_prefix("//! * `")?.split_once('`')?.0;
    let (word, number) = id.split_once('-')?;
    let is_id = word.len() >= 2
        && word.bytes().all(|byte| byte.is_ascii_uppercase())
        && !number.is_empty()
        && number.bytes().all(|byte| byte.is_ascii_digit());
    is_id.then_some(id)
}

fn cites(source: &Source, id: &str) -> bool {
    let lines: Vec<Line<'_>> = source.lines().collect();
    (0..lines.len()).any(|at| {
        let text = lines[at].text;
        if !names(text, id) || (text.starts_with("//!") && !lines[at].is_test) {
            return false;
        }
        let nearby =
            &lines[at.saturating_sub(NEARBY_LINES)..lines.len().min(at + NEARBY_LINES + 1)];
        // In a message, e.g. of `check`, the id stands inside a string.
        let is_message = !lines[at].is_comment() && text.contains('"');
        lines[at].is_test || is_message || nearby.iter().any(|line| line.text.contains("assert"))
    })
}

/// Whether the id stands there, and not as the beginning of a longer number.
fn names(text: &str, id: &str) -> bool {
    text.match_indices(id)
        .any(|(at, _)| !text[at + id.len()..].starts_with(|c: char| c.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(body: &str) -> usize {
        let header = "//! * `DEMO-1` Something holds.\n//! See `DEMO-1`.\n".to_owned();
        check_invariants(&[Source {
            path: "a.rs".to_owned(),
            text: header + body,
        }])
        .len()
    }

    #[test]
    fn an_uncited_invariant_is_found() {
        assert_eq!(check(""), 1);
        assert_eq!(check("// Because of DEMO-1.\nfn f() {}"), 1);
        assert_eq!(check("#[cfg(test)]\n// DEMO-12"), 1);
        assert_eq!(check("//! * `DEMO-2` Another.\n#[cfg(test)]\n// DEMO-1"), 1);
    }

    #[test]
    fn asserts_messages_and_tests_cite() {
        assert_eq!(check("// DEMO-1\nassert!(true);"), 0);
        assert_eq!(check("let finding = format!(\"DEMO-1: block {}\", 1);"), 0);
        assert_eq!(check("#[cfg(test)]\n/// `DEMO-1`"), 0);
    }

    #[test]
    fn a_second_declaration_is_found() {
        assert_eq!(check("//! * `DEMO-1` Again.\n#[cfg(test)]\n// DEMO-1"), 1);
    }
}
