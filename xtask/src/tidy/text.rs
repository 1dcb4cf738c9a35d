//! Rules about single lines: their length and that of files, work not done, `unwrap`, docstrings.

use xtask::workspace::{Line, Source};

const LINES_MAX: usize = 700;
const COLUMNS_MAX: usize = 100;

/// Words that stand for work not done. Taken apart, so that this file passes its own check.
const UNDONE: [&str; 5] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
];

const ITEMS: [&str; 9] = [
    "fn", "struct", "enum", "union", "trait", "type", "const", "static", "mod",
];

/// All rules about the lines of one file.
pub fn check_source(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut at =
        |number: usize, what: String| found.push(format!("{}:{number}: {what}", source.path));
    let lines: Vec<Line<'_>> = source.lines().collect();
    if lines.len() > LINES_MAX {
        at(
            lines.len(),
            format!(
                "{} lines, at most {LINES_MAX}: probably two files",
                lines.len()
            ),
        );
    }
    if !source.text.starts_with("//!") {
        at(
            1,
            "no `//!` header that says what the file is for".to_owned(),
        );
    }
    for (index, line) in lines.iter().enumerate() {
        if let Some(word) = UNDONE.iter().find(|word| has_word(line.text, word)) {
            at(
                line.number,
                format!("'{word}': do it, or leave the word out"),
            );
        }
        if line.text.chars().count() > COLUMNS_MAX {
            at(
                line.number,
                format!("more than {COLUMNS_MAX} columns; break the line"),
            );
        }
        if line.is_test || line.is_comment() {
            continue;
        }
        if line.text.contains(concat!(".unwrap", "()")) {
            at(
                line.number,
                "unwrap outside tests; handle it, or say with expect why it cannot fail".to_owned(),
            );
        }
        if line.text.contains(concat!("#![allow(", "missing_docs")) {
            at(line.number, "docstrings are not optional".to_owned());
        }
        let is_documented =
            || has_docstring(&lines[..index]) || is_of_private_type(&lines[..=index]);
        if let Some(item) = public_item(line.text).filter(|_| !is_documented()) {
            at(line.number, format!("public `{item}` without a docstring"));
        }
    }
    found
}

/// Every package takes the lints of the workspace, which ask for docstrings on every reachable
/// item.
pub fn check_lints(path: &str, manifest: &str) -> Option<String> {
    let has_lints = manifest.contains("[lints]\nworkspace = true");
    (!has_lints).then(|| format!("{path}: add `[lints] workspace = true`"))
}

fn has_word(text: &str, word: &str) -> bool {
    let is_inside = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    text.match_indices(word).any(|(at, _)| {
        let after = text[at + word.len()..].chars().next();
        !is_inside(text[..at].chars().next_back()) && (word.ends_with('(') || !is_inside(after))
    })
}

/// The item that a line declares public, e.g. `fn open`.
fn public_item(text: &str) -> Option<String> {
    let mut words = text.trim_start().strip_prefix("pub ")?.split_whitespace();
    let mut word = words.next()?;
    // `const` may begin a function.
    while matches!(word, "async" | "unsafe" | "extern" | "\"C\"")
        || (word == "const" && text.contains(" fn "))
    {
        word = words.next()?;
    }
    // A module declared without a body has its docstring, `//!`, in its own file.
    if !ITEMS.contains(&word) || (word == "mod" && text.trim_end().ends_with(';')) {
        return None;
    }
    let name = identifier(words.next()?)?;
    // In a macro (`$name`) the docstring is an argument.
    (!name.is_empty()).then(|| format!("{word} {name}"))
}

/// Whether the last line stands in the `impl` of a type that the file declares without `pub`: such
/// a method is not public, whatever it says.
fn is_of_private_type(lines: &[Line<'_>]) -> bool {
    let is_inside = lines.last().is_some_and(|line| line.text.starts_with(' '));
    let implemented = lines
        .iter()
        .rev()
        .find_map(|line| implemented_type(line.text));
    is_inside
        && lines
            .iter()
            .any(|line| implemented.is_some() && private_type(line.text) == implemented)
}

/// `Foo` in `impl<T> Foo<T> {` and in `impl Bar for Foo {`.
fn implemented_type(text: &str) -> Option<&str> {
    let rest = text.strip_prefix("impl")?;
    let rest = if rest.starts_with('<') {
        rest.split_once("> ")?.1
    } else {
        rest
    };
    identifier(rest.split_once(" for ").map_or(rest, |(_, name)| name))
}

/// `Foo` in `struct Foo`, unless it is public.
fn private_type(text: &str) -> Option<&str> {
    let text = text
        .trim_start_matches("pub(crate) ")
        .trim_start_matches("pub(super) ");
    identifier(
        text.strip_prefix("struct ")
            .or_else(|| text.strip_prefix("enum "))?,
    )
}

fn identifier(text: &str) -> Option<&str> {
    text.trim_start()
        .split(|c: char| !(c.is_alphanumeric() || c == '_'))
        .next()
}

fn has_docstring(before: &[Line<'_>]) -> bool {
    let mut above = before.iter().rev().map(|line| line.text.trim());
    // Attributes and plain comments stand between the docstring and its item.
    while let Some(text) = above.next() {
        let is_comment = text.starts_with("//") && !text.starts_with("///");
        if text.ends_with(']') && !text.starts_with("#[") {
            above.find(|text| text.starts_with("#["));
        } else if !text.starts_with("#[") && !is_comment {
            return text.starts_with("///");
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    fn findings(text: &str) -> Vec<String> {
        let source = Source {
            path: "a.rs".to_owned(),
            text: format!("//! Header.\n{text}"),
        };
        check_source(&source)
    }

    #[test]
    fn each_rule_finds_its_breach() {
        let finds = |text: &str, what: &str| {
            let found = findings(text);
            assert!(
                found.len() == 1 && found[0].contains(what),
                "{text}: {found:?}"
            );
        };
        finds("let a = b.unwrap();", "a.rs:2: unwrap");
        finds(&format!("// {} later", UNDONE[0]), UNDONE[0]);
        finds(&format!("fn f() {{ {}) }}", UNDONE[4]), "unimplemented");
        finds("pub fn f() {}", "public `fn f`");
        finds("/// Doc.\nstruct A;\npub struct B;", "public `struct B`");
        finds("    pub const fn f() {}", "`fn f`");
        finds(
            "/// Doc.\npub struct A;\nimpl A {\n    pub fn f() {}\n}",
            "`fn f`",
        );
        finds("pub const A: u8 = 1;", "`const A`");
        finds("#![allow(missing_docs)]", "not optional");
        finds(&"\n".repeat(LINES_MAX), "701 lines");
        let long = "─".repeat(COLUMNS_MAX - 2);
        finds(&format!("// {long}"), "columns");
        finds(&format!("#[cfg(test)]\nmod a {{}}\n// {long}"), "columns");
        assert_eq!(
            check_source(&Source {
                path: "a.rs".to_owned(),
                text: String::new()
            })
            .len(),
            1
        );
    }

    #[test]
    fn what_is_right_passes() {
        let right = "/// Doc.\n#[derive(Debug)]\n#[error(\n    \"x\"\n)]\npub struct A;\n/// \
            Doc.\npub fn f<T>() {}\npub(crate) fn g() {}\n\
            // x.unwrap() in words\npub mod a;\npub use b::C;\n\
            pub(crate) struct P<T>;\nimpl<T> P<T> {\n    pub fn f() {}\n}\n#[cfg(test)]\nmod \
            tests {\n x.unwrap();\n pub fn h() {}\n}";
        assert_eq!(findings(right), Vec::<String>::new());
        assert_eq!(
            check_lints("Cargo.toml", "[lints]\nworkspace = true\n"),
            None
        );
        assert!(check_lints("Cargo.toml", "[package]").is_some());
    }
}
