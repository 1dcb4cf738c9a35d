//! SQL for people: values, rows, and what is wrong where.

use crate::error::{CatalogError, sort};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Statement, ToSql};
use std::ffi::CString;
use std::ops::ControlFlow;
use std::sync::Arc;

/// One value of a result.
#[derive(Debug, Clone, PartialEq)]
pub enum SqlValue {
    /// NULL.
    Null,
    /// A whole number.
    Integer(i64),
    /// A floating-point number.
    Real(f64),
    /// Text; bytes that are not UTF-8 (names may have them) show as U+FFFD.
    Text(String),
    /// Bytes.
    Blob(Vec<u8>),
}

/// One row of a result.
#[derive(Debug, Clone, PartialEq)]
pub struct SqlRow {
    /// The names of the columns; the same allocation for all rows of one statement.
    pub columns: Arc<[String]>,
    /// Their values, as many.
    pub values: Vec<SqlValue>,
}

/// Whether `sql` ends with a complete statement (else a shell asks for another line).
pub fn is_complete(sql: &str) -> bool {
    let Ok(text) = CString::new(sql) else {
        return true;
    };
    // SAFETY: `text` is NUL-terminated and outlives the call, which only reads it.
    unsafe { rusqlite::ffi::sqlite3_complete(text.as_ptr()) != 0 }
}

pub(crate) fn run(
    statement: &mut Statement<'_>,
    on_row: &mut dyn FnMut(SqlRow) -> ControlFlow<()>,
) -> rusqlite::Result<ControlFlow<()>> {
    let columns: Arc<[String]> = statement.column_names().map(String::from).collect();
    let mut rows = statement.raw_query();
    while let Some(row) = rows.next()? {
        let values = (0..columns.len())
            .map(|index| Ok(value(row.get_ref(index)?)))
            .collect::<rusqlite::Result<_>>()?;
        if on_row(SqlRow {
            columns: Arc::clone(&columns),
            values,
        })
        .is_break()
        {
            return Ok(ControlFlow::Break(()));
        }
    }
    Ok(ControlFlow::Continue(()))
}

/// A value of SQLite's.
pub(crate) fn value(value: ValueRef<'_>) -> SqlValue {
    match value {
        ValueRef::Null => SqlValue::Null,
        ValueRef::Integer(number) => SqlValue::Integer(number),
        ValueRef::Real(number) => SqlValue::Real(number),
        ValueRef::Text(bytes) => SqlValue::Text(String::from_utf8_lossy(bytes).into_owned()),
        ValueRef::Blob(bytes) => SqlValue::Blob(bytes.to_vec()),
    }
}

/// The user's mistakes, in SQLite's words and with their place; the rest as everywhere. The
/// statement begins at byte `start` of `sql`.
pub(crate) fn explain(sql: &str, start: usize, error: rusqlite::Error) -> CatalogError {
    match error {
        rusqlite::Error::SqlInputError { msg, offset, .. } => CatalogError::Sql {
            message: msg,
            // SQLite counts from the statement that it was given.
            position: Some(line_column(sql, start + offset.max(0) as usize)),
        },
        rusqlite::Error::SqliteFailure(code, Some(message))
            if code.extended_code == rusqlite::ffi::SQLITE_ERROR
                || code.extended_code == rusqlite::ffi::SQLITE_CONSTRAINT_TRIGGER =>
        {
            CatalogError::Sql {
                message,
                position: None,
            }
        }
        other => sort("the SQL session", other),
    }
}

/// Line and column, from 1, of the byte at `at`; columns count characters.
pub(crate) fn line_column(sql: &str, at: usize) -> (usize, usize) {
    let before = &sql.as_bytes()[..at.min(sql.len())];
    let line_start = before
        .iter()
        .rposition(|&byte| byte == b'\n')
        .map_or(0, |newline| newline + 1);
    let line = before.iter().filter(|&&byte| byte == b'\n').count() + 1;
    (
        line,
        String::from_utf8_lossy(&before[line_start..])
            .chars()
            .count()
            + 1,
    )
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            SqlValue::Null => ValueRef::Null,
            SqlValue::Integer(number) => ValueRef::Integer(*number),
            SqlValue::Real(number) => ValueRef::Real(*number),
            SqlValue::Text(text) => ValueRef::Text(text.as_bytes()),
            SqlValue::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_count_lines_and_characters() {
        assert_eq!(line_column("select 1", 7), (1, 8));
        assert_eq!(line_column("é;\nsélect", 8), (2, 4));
        assert_eq!(line_column("a", 99), (1, 2));
    }

    #[test]
    fn completeness_is_that_of_sqlite() {
        assert!(is_complete("select 1;"));
        assert!(!is_complete("select 1"));
        assert!(!is_complete("select ';"));
    }
}
