//! SQL for people: a session on the catalog beside the engine.

use crate::error::{BUSY_TIMEOUT, CatalogError, Result, sort};
use crate::{Catalog, open};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::types::ValueRef;
use rusqlite::{Batch, Connection, OpenFlags, Statement};
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

/// A connection of its own, with the rights of an `sqlite3` shell (`CATALOG-3`): it sees what is
/// committed, and waits for locks. A transaction that it opens stays open between calls and is
/// rolled back when it is dropped.
pub struct SqlSession {
    connection: Connection,
}

impl Catalog {
    /// Opens an SQL session; a `read_only` one can change nothing.
    pub fn sql_session(&self, read_only: bool) -> Result<SqlSession> {
        let access = match read_only {
            true => OpenFlags::SQLITE_OPEN_READ_ONLY,
            false => OpenFlags::SQLITE_OPEN_READ_WRITE,
        };
        let flags = access | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = open::connect_with(&self.path, &self.options, flags, BUSY_TIMEOUT)?;
        open::configure(&connection)?;
        Ok(SqlSession { connection })
    }
}

impl SqlSession {
    /// Runs one or several statements in order, and calls `on_row` for each row of each result until
    /// it breaks, which also skips the statements that follow. Returns the number of rows that
    /// INSERT, UPDATE and DELETE changed (triggers and cascades not counted). An error ends it: what
    /// the statements before changed stays, unless they opened a transaction.
    pub fn execute(
        &mut self,
        sql: &str,
        on_row: &mut dyn FnMut(SqlRow) -> ControlFlow<()>,
    ) -> Result<u64> {
        let mut changed_count = 0;
        let mut batch = Batch::new(&self.connection, sql);
        while let Some(mut statement) = batch.next().map_err(|error| explain(sql, error))? {
            let total_before = self.connection.total_changes();
            let flow = run(&mut statement, on_row).map_err(|error| explain(sql, error))?;
            drop(statement);
            // `changes` keeps the count of the last INSERT, UPDATE or DELETE; was this one?
            if self.connection.total_changes() != total_before {
                changed_count += self.connection.changes();
            }
            if flow.is_break() {
                break;
            }
        }
        Ok(changed_count)
    }

    /// Whether `sql` ends with a complete statement (else a shell asks for another line).
    pub fn is_complete(sql: &str) -> bool {
        let Ok(text) = CString::new(sql) else {
            return true;
        };
        // SAFETY: `text` is NUL-terminated and outlives the call, which only reads it.
        unsafe { rusqlite::ffi::sqlite3_complete(text.as_ptr()) != 0 }
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        !self.connection.is_autocommit()
    }
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

/// The user's mistakes, in SQLite's words and with their place; the rest as everywhere.
pub(crate) fn explain(sql: &str, error: rusqlite::Error) -> CatalogError {
    match error {
        rusqlite::Error::SqlInputError {
            msg,
            sql: rest,
            offset,
            ..
        } => {
            // SQLite counts from the statement that it was given: the rest of the text.
            let at = sql.len() - rest.len() + offset.max(0) as usize;
            CatalogError::Sql {
                message: msg,
                position: Some(line_column(sql, at)),
            }
        }
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

impl std::fmt::Debug for SqlSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlSession").finish_non_exhaustive()
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
        assert!(SqlSession::is_complete("select 1;"));
        assert!(!SqlSession::is_complete("select 1"));
        assert!(!SqlSession::is_complete("select ';"));
    }
}
