//! What a text of the schema says that it makes: SQLite reads these texts, whatever the columns
//! beside them say.

/// A part of SQL: a word, in lower case and without quotation marks, or a single character.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Token {
    /// Written without quotation marks.
    Word(String),
    /// A name or a text in quotation marks.
    Quoted(String),
    Mark(u8),
}

/// What a text makes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Made {
    /// As in the column `type` of `sqlite_schema`.
    pub(crate) kind: &'static str,
    /// Its name, in lower case.
    pub(crate) name: String,
    /// The table that an index or a trigger is on, in lower case.
    pub(crate) table: Option<String>,
}

/// The parts of a text, without blanks and comments. O(n).
pub(crate) fn tokens(sql: &str) -> impl Iterator<Item = Token> + '_ {
    let mut rest = sql;
    std::iter::from_fn(move || {
        rest = after_blanks(rest);
        let first = *rest.as_bytes().first()?;
        let is_word = |c: char| c.is_alphanumeric() || c == '_' || c == '$' || !c.is_ascii();
        let (token, length) = match first {
            b'"' | b'\'' | b'`' => in_quotes(rest, first as char),
            b'[' => {
                let end = rest.find(']').unwrap_or(rest.len());
                let name = rest[1..end].to_ascii_lowercase();
                (Token::Quoted(name), (end + 1).min(rest.len()))
            }
            _ => match rest.find(|c| !is_word(c)).unwrap_or(rest.len()) {
                0 => (Token::Mark(first), 1),
                length => (Token::Word(rest[..length].to_ascii_lowercase()), length),
            },
        };
        rest = &rest[length..];
        Some(token)
    })
}

fn in_quotes(text: &str, mark: char) -> (Token, usize) {
    let mut name = String::new();
    let mut characters = text.char_indices().skip(1).peekable();
    while let Some((at, character)) = characters.next() {
        if character == mark {
            match characters.next_if(|(_, next)| *next == mark) {
                Some(_) => {}
                None => return (Token::Quoted(name), at + 1),
            }
        }
        name.push(character.to_ascii_lowercase());
    }
    (Token::Quoted(name), text.len())
}

fn after_blanks(mut text: &str) -> &str {
    loop {
        text = text.trim_start_matches([' ', '\t', '\n', '\r', '\u{c}']);
        let end = match text.as_bytes() {
            [b'-', b'-', ..] => text.find('\n'),
            [b'/', b'*', ..] => text[2..].find("*/").map(|at| at + 4),
            _ => return text,
        };
        text = &text[end.unwrap_or(text.len())..];
    }
}

/// What a text of the schema makes, as SQLite writes these texts; `None` for any other.
pub(crate) fn made(sql: &str) -> Option<Made> {
    let mut tokens = tokens(sql);
    let mut word = || match tokens.next()? {
        Token::Word(word) => Some(word),
        _ => None,
    };
    if word()? != "create" {
        return None;
    }
    let kind = match &*word()? {
        "table" => "table",
        "view" => "view",
        "trigger" => "trigger",
        "index" => "index",
        "virtual" if word()? == "table" => "table",
        "unique" if word()? == "index" => "index",
        _ => return None,
    };
    let mut name = || match tokens.next()? {
        Token::Word(name) | Token::Quoted(name) => Some(name),
        Token::Mark(_) => None,
    };
    let made = name()?;
    let table = match kind {
        "trigger" | "index" => {
            tokens.find(|token| *token == Token::Word("on".into()))?;
            let mut name = || match tokens.next()? {
                Token::Word(name) | Token::Quoted(name) => Some(name),
                Token::Mark(_) => None,
            };
            let first = name()?;
            match tokens.next() {
                Some(Token::Mark(b'.')) => match tokens.next()? {
                    Token::Word(name) | Token::Quoted(name) => Some(name),
                    Token::Mark(_) => return None,
                },
                _ => Some(first),
            }
        }
        _ => None,
    };
    Some(Made {
        kind,
        name: made,
        table,
    })
}

/// The operators that are calls of functions.
const CALLING: [&str; 4] = ["glob", "like", "match", "regexp"];

/// The functions that a text calls, or seems to, in lower case: words before a `(`, and operators
/// that call one, which have something before them.
pub(crate) fn called(sql: &str) -> Vec<String> {
    let mut before: [Option<Token>; 2] = [None, None];
    let mut found = Vec::new();
    for token in tokens(sql) {
        if token == Token::Mark(b'(')
            && let Some(Token::Word(name) | Token::Quoted(name)) = &before[1]
        {
            let refers = before[0] == Some(Token::Word("references".into()));
            if !refers {
                found.push(name.clone());
            }
        }
        if let Token::Word(word) = &token
            && CALLING.contains(&word.as_str())
            && !matches!(before[1], None | Some(Token::Mark(b'(' | b',')))
        {
            found.push(word.clone());
        }
        before = [before[1].take(), Some(token)];
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    fn kind_name_table(sql: &str) -> Option<(&'static str, String, Option<String>)> {
        made(sql).map(|made| (made.kind, made.name, made.table))
    }

    #[test]
    fn a_text_says_what_it_makes() {
        for (sql, kind, name, table) in [
            (
                "CREATE TABLE larder_meta (key)",
                "table",
                "larder_meta",
                None,
            ),
            ("CREATE TABLE \"Main\"(a)", "table", "main", None),
            ("CREATE TABLE 'words_data'(id)", "table", "words_data", None),
            (
                "CREATE /* x */ VIRTUAL TABLE [w o] USING fts5(a)",
                "table",
                "w o",
                None,
            ),
            ("create view -- on\n v AS SELECT 1", "view", "v", None),
            (
                "CREATE UNIQUE INDEX \"a\"\"b\" ON t (x)",
                "index",
                "a\"b",
                Some("t"),
            ),
            (
                "CREATE TRIGGER t AFTER UPDATE OF \"on\", b ON main.larder_x BEGIN SELECT 1; END",
                "trigger",
                "t",
                Some("larder_x"),
            ),
        ] {
            let wanted = (kind, name.to_owned(), table.map(str::to_owned));
            assert_eq!(kind_name_table(sql), Some(wanted), "{sql}");
        }
        for other in [
            "",
            "SELECT 1",
            "CREATE",
            "CREATE TRIGGER t",
            "CREATE TABLE (",
            "'",
            "/*",
        ] {
            assert_eq!(made(other), None, "{other}");
        }
    }

    #[test]
    fn calls_are_found() {
        let sql = "CREATE TABLE t (a VARCHAR(9) CHECK (length(a) > 1), b REFERENCES o (id), \
                   c DEFAULT (\"hex\"(1)), like, match, e CHECK (e NOT LIKE '%a'), \
                   f CHECK (match > 'glob'), d CHECK (d IN (1, 2)) -- zeroblob(9)\n)";
        assert_eq!(
            called(sql),
            [
                "t", "varchar", "check", "length", "default", "hex", "check", "like", "check",
                "check", "in"
            ]
        );
    }
}
