//! Names that a catalog holds and that become parts of SQL: validated where they are read, quoted
//! where they are used.
//!
//! # Invariants
//! * `SAFE-1` The name of a store becomes a part of SQL only as a [`StoreName`], which follows the
//!   rule for names whoever wrote the catalog. *Guard*: nothing else reads it; `check` and every
//!   open refuse another one. Every other name is quoted by [`quoted`].
//! * `SAFE-2` Text that holds names or conditions of a catalog is run as one statement: what stands
//!   behind it is refused. *Guard*: [`execute_one`]; `cargo xtask tidy` asks for it in the place of
//!   SQLite's batches.

use crate::error::{At, CatalogError, Result};
use crate::types::sql::is_complete;
pub(crate) use larder_catalog_types::names::{SUFFIXES, check_store_name, dirent_order};
use rusqlite::Connection;
use rusqlite::types::{FromSql, FromSqlError, FromSqlResult, ValueRef};
use std::fmt;
use std::ops::Deref;

/// What the names of a store's tables add to the store's name.
pub(crate) const TABLE_SUFFIXES: [&str; 5] = ["", "_dirent", "_content", "_map", "_xattr"];
/// The name of a store, which follows [`check_store_name`].
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct StoreName(String);

/// Why the name of a store in a catalog is none.
#[derive(Debug)]
struct Unsafe(String);

impl fmt::Display for Unsafe {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

impl std::error::Error for Unsafe {}

impl Deref for StoreName {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

impl fmt::Display for StoreName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl From<StoreName> for String {
    fn from(name: StoreName) -> String {
        name.0
    }
}

impl FromSql for StoreName {
    fn column_result(value: ValueRef<'_>) -> FromSqlResult<StoreName> {
        let unsafe_name = |why: String| FromSqlError::Other(Box::new(Unsafe(why)));
        let ValueRef::Text(bytes) = value else {
            return Err(unsafe_name("the name of a store is no text".into()));
        };
        let shown = || shown(&String::from_utf8_lossy(bytes));
        match std::str::from_utf8(bytes) {
            Ok(name) if check_store_name(name).is_ok() => Ok(StoreName(name.into())),
            _ => Err(unsafe_name(format!(
                "the name of a store is {}, which no larder gives",
                shown()
            ))),
        }
    }
}

/// Text of a catalog for a message: short, in quotation marks, control characters escaped.
pub(crate) fn shown(text: &str) -> String {
    const CHARS_MAX: usize = 60;
    let mut out = String::from("'");
    out.extend(text.chars().take(CHARS_MAX).flat_map(char::escape_debug));
    if text.chars().nth(CHARS_MAX).is_some() {
        out.push('…');
    }
    out.push('\'');
    out
}

/// Runs one statement whose text is made of names; what stands behind it is refused, not run
/// (`SAFE-2`).
pub(crate) fn execute_one(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.execute(sql, []).map(drop)
}

/// Runs statements of ours that hold no names, one by one.
pub(crate) fn execute_all(connection: &Connection, sql: &'static str) -> rusqlite::Result<()> {
    statements(sql).try_for_each(|statement| execute_one(connection, statement))
}

/// Runs statements of ours in which names stand in the place of `{…}`, one by one, as they are told
/// apart before the names come in. Each name is of ASCII letters, digits and `_`, which end nothing
/// wherever they stand in a text; else nothing is run (`SAFE-2`).
pub(crate) fn execute_template(
    connection: &Connection,
    template: &'static str,
    names: &[(&str, &str)],
) -> Result<()> {
    for (_, name) in names {
        let is_plain = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'_';
        if name.is_empty() || !name.bytes().all(is_plain) {
            let name = shown(name);
            return Err(CatalogError::invalid(format!(
                "{name} is no name of a table of ours"
            )));
        }
    }
    let of = names.first().map_or("the schema", |(_, name)| name);
    for statement in statements(template) {
        let filled = (names.iter()).fold(statement.to_owned(), |sql, (place, name)| {
            sql.replace(place, name)
        });
        execute_one(connection, &filled).at(of)?;
    }
    Ok(())
}

/// The statements of a text of ours; behind the last one there may be blanks only.
fn statements(text: &'static str) -> impl Iterator<Item = &'static str> {
    let mut rest = text;
    std::iter::from_fn(move || {
        let (sql, after) = (rest.match_indices(';'))
            .map(|(at, _)| rest.split_at(at + 1))
            .find(|(sql, _)| is_complete(sql))
            .unwrap_or((rest, ""));
        rest = after;
        (!sql.trim().is_empty()).then_some(sql)
    })
}

/// An identifier as SQL writes it.
pub(crate) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_from_a_catalog_follows_the_rule() {
        let read = |value| StoreName::column_result(value);
        assert_eq!(&*read(ValueRef::Text(b"photos")).unwrap(), "photos");
        for bad in [
            &b"x\n;ATTACH 'e' AS e;--"[..],
            b"a\"b",
            b"",
            b"larder_meta",
            b"a\xff",
        ] {
            let told = read(ValueRef::Text(bad)).unwrap_err().to_string();
            assert!(!told.contains('\n'), "SAFE-1: {told}");
        }
        for bad in [ValueRef::Null, ValueRef::Integer(1), ValueRef::Blob(b"a")] {
            read(bad).unwrap_err();
        }
    }

    #[test]
    fn what_stands_behind_a_statement_is_refused() {
        let connection = Connection::open_in_memory().unwrap();
        let two = "CREATE TABLE t (x); CREATE TABLE u (x)";
        assert!(execute_one(&connection, two).is_err(), "SAFE-2");
        let made = "SELECT count(*) FROM sqlite_schema WHERE name = 'u'";
        let count: i64 = connection.query_row(made, [], |row| row.get(0)).unwrap();
        assert_eq!(count, 0, "SAFE-2");
    }

    #[test]
    fn texts_of_ours_run_statement_by_statement() {
        let text = "CREATE TABLE t (x); -- a ; b\nCREATE TRIGGER g AFTER INSERT ON t BEGIN \
                    DELETE FROM t WHERE x = ';'; SELECT 1; END;\n INSERT INTO t VALUES (1) ";
        assert_eq!(statements(text).count(), 3);
        let connection = Connection::open_in_memory().unwrap();
        execute_all(&connection, text).unwrap();
        let told = execute_all(&connection, "INSERT INTO t VALUES (2); nonsense");
        assert!(told.is_err());
        // What a place holds that would end a statement never gets that far.
        let template = "INSERT INTO t VALUES ('{name}'); DELETE FROM t WHERE x = '{name}'";
        execute_template(&connection, template, &[("{name}", "a")]).unwrap();
        let count = "SELECT group_concat(x) FROM t";
        let left: String = connection.query_row(count, [], |row| row.get(0)).unwrap();
        assert_eq!(left, "1,2", "SAFE-2");
    }

    #[test]
    fn a_template_takes_plain_names_only() {
        let connection = Connection::open_in_memory().unwrap();
        let template = "CREATE TABLE \"{name}\" (x); INSERT INTO \"{name}\" VALUES ('{name}');";
        execute_template(&connection, template, &[("{name}", "plain_1")]).unwrap();
        for name in [
            "",
            "a\" (x); DROP TABLE plain_1; --",
            "a'b",
            "a b",
            "é",
            "a\0",
        ] {
            let names = [("{name}", name)];
            assert!(
                execute_template(&connection, template, &names).is_err(),
                "SAFE-2: {name}"
            );
        }
        let count = "SELECT count(*) FROM sqlite_schema";
        let count: i64 = connection.query_row(count, [], |row| row.get(0)).unwrap();
        assert_eq!(count, 1, "SAFE-2");
    }

    #[test]
    fn what_is_shown_is_one_short_line() {
        assert_eq!(shown("a\n\u{1b}[2J"), "'a\\n\\u{1b}[2J'");
        assert!(shown(&"x".repeat(1000)).chars().count() < 70);
        assert_eq!(quoted("a\"b"), "\"a\"\"b\"");
    }
}
