//! Words that only we used for things that have a name in the field: no identifier and no file is
//! called so again.
//!
//! What is on disk keeps its name (`larder_pre_image`), so strings and comments are not looked at.

use std::path::Path;

use xtask::workspace::Source;

/// A part of identifiers, and what it has become.
pub type Retired<'a> = (&'a str, &'a str);

/// The words that go.
pub const RETIRED: [Retired<'_>; 20] = [
    ("acting", "commit attribution"),
    ("deed", "operation"),
    ("deeds", "operations"),
    ("gate", "freeze barrier; guard switch"),
    ("healing", "object defragmentation"),
    ("home", "pre-image"),
    ("homes", "pre-images"),
    ("loose", "unsequenced SQL changes"),
    ("moods", "the subject of the test"),
    ("owes", "pending sync"),
    ("patch", "redo row"),
    ("patched", "redo row"),
    ("patches", "redo rows"),
    ("pressing", "early expiry"),
    ("provisional", "delayed allocation"),
    ("seat", "in-flight request"),
    ("seats", "in-flight requests"),
    ("showing", "snapshot-backed store"),
    ("turnstile", "active transaction"),
    ("unsettled", "delayed allocation"),
];

/// Every identifier and file that has a retired word.
pub fn check_words(sources: &[Source], retired: &[Retired<'_>]) -> Vec<String> {
    let mut found = Vec::new();
    for source in sources {
        let stem = Path::new(&source.path).file_stem();
        let stem = stem.and_then(|stem| stem.to_str()).unwrap_or_default();
        let names = std::iter::once((0, stem)).chain(identifiers(&source.text));
        for (line, name) in names {
            let parts = parts(name);
            for (word, becomes) in retired {
                if parts.iter().any(|part| part == word) {
                    let path = &source.path;
                    found.push(format!(
                        "{path}:{line}: `{name}`: '{word}' is {becomes} now"
                    ));
                }
            }
        }
    }
    found
}

/// `["small", "home", "max"]` of `SMALL_HOME_MAX` and `SmallHomeMax`.
fn parts(name: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut is_after_lower = false;
    for c in name.chars() {
        if c == '_' || (c.is_uppercase() && is_after_lower) {
            parts.push(String::new());
        }
        if let Some(part) = parts.last_mut().filter(|_| c != '_') {
            part.extend(c.to_lowercase());
        }
        is_after_lower = c.is_lowercase();
    }
    parts
}

/// The identifiers of a source file and their lines, without strings and comments.
fn identifiers(text: &str) -> Vec<(usize, &str)> {
    let is_part = |c: char| c.is_alphanumeric() || c == '_';
    let mut found = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(c) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(length) = raw_string(rest) {
            length
        } else if c == '"' {
            closing(&rest[1..], '"') + 1
        } else if c == '\'' {
            character(rest)
        } else if is_part(c) {
            let length = rest.find(|c| !is_part(c)).unwrap_or(rest.len());
            found.push((line, &rest[..length]));
            length
        } else {
            c.len_utf8()
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// The length of a raw string that stands here.
fn raw_string(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("br").or_else(|| text.strip_prefix('r'))?;
    let hashes = rest.len() - rest.trim_start_matches('#').len();
    let content = rest[hashes..].strip_prefix('"')?;
    let end = format!("\"{}", "#".repeat(hashes));
    let before = text.len() - content.len();
    Some(
        content
            .find(&end)
            .map_or(text.len(), |at| before + at + end.len()),
    )
}

/// Where `text` goes on behind the first `mark` that is not escaped.
fn closing(text: &str, mark: char) -> usize {
    let mut is_escaped = false;
    for (at, c) in text.char_indices() {
        if c == mark && !is_escaped {
            return at + 1;
        }
        is_escaped = c == '\\' && !is_escaped;
    }
    text.len()
}

/// The length of a character that stands here, or of the mark of a lifetime.
fn character(text: &str) -> usize {
    let mut inside = text.chars().skip(1);
    match (inside.next(), inside.next()) {
        (Some('\\'), _) => closing(&text[1..], '\'') + 1,
        (Some(c), Some('\'')) => c.len_utf8() + 2,
        _ => 1,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(path: &str, text: &str) -> Vec<String> {
        let source = Source {
            path: path.to_owned(),
            text: text.to_owned(),
        };
        check_words(&[source], &[("home", "pre-image")])
    }

    #[test]
    fn names_with_a_retired_word_are_found() {
        for name in ["home", "copy_home", "HOME_MAX", "HomeCopy", "note_home"] {
            let found = check("a.rs", &format!("\nlet {name} = 1;"));
            assert_eq!(found.len(), 1, "{name}: {found:?}");
            assert!(found[0].contains(&format!("a.rs:2: `{name}`")), "{found:?}");
        }
        assert_eq!(check("src/home.rs", "").len(), 1, "a file");
        assert_eq!(check("a.rs", "let (a, home) = ('\"', '\\'');").len(), 1);
        assert_eq!(check("a.rs", "fn f<'a>(home: &'a str) {}").len(), 1);
    }

    #[test]
    fn other_words_strings_and_comments_are_not() {
        for text in [
            "let homely = chrome;",
            "// home\n/// home",
            "let a = \"home \\\" home\n home\";",
            "let a = r#\"home \" home\"#; let b = br\"home\\\"; let c = 'h';",
        ] {
            assert_eq!(check("a.rs", text), Vec::<String>::new(), "{text}");
        }
    }
}
