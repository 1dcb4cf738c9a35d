//! What SQLite reports, sorted by what to do about it.

pub(crate) mod refused;

use crate::error::refused::{take_in_vain, take_too_long};
pub(crate) use larder_catalog_types::error::{CatalogError, Result};
use rusqlite::ErrorCode;
use std::time::Duration;

/// How long our connections wait for a lock that another one holds.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// Tells at which table or step an SQLite error happened, and sorts it by what to do about it.
pub(crate) trait At<T> {
    /// `context` is a table's name, or a step.
    fn at(self, context: &str) -> Result<T>;
}

impl<T> At<T> for rusqlite::Result<T> {
    fn at(self, context: &str) -> Result<T> {
        self.map_err(|source| sort(context, source))
    }
}

/// What SQLite's own function returned that sets something on a connection.
pub(crate) fn require_ok(code: std::ffi::c_int) -> Result<()> {
    match code {
        rusqlite::ffi::SQLITE_OK => Ok(()),
        code => {
            let failed = rusqlite::Error::SqliteFailure(rusqlite::ffi::Error::new(code), None);
            Err(failed).at("the limits")
        }
    }
}

/// The catalog error that `source` amounts to.
pub(crate) fn sort(context: &str, source: rusqlite::Error) -> CatalogError {
    use rusqlite::Error as E;
    // Whatever became of it: it is of no later error.
    let is_too_long = take_too_long();
    match &source {
        E::FromSqlConversionFailure(..)
        | E::IntegralValueOutOfRange(..)
        | E::InvalidColumnType(..)
        | E::Utf8Error(..)
        | E::QueryReturnedNoRows => CatalogError::corrupt(format!("{context}: {source}")),
        _ => match source.sqlite_error_code() {
            // The last one: all locks for readers were taken, whenever it tried.
            Some(
                ErrorCode::DatabaseBusy
                | ErrorCode::DatabaseLocked
                | ErrorCode::FileLockingProtocolFailed,
            ) => {
                let (waited, why) = take_in_vain().unwrap_or_default();
                CatalogError::Busy { waited, why }
            }
            Some(ErrorCode::ReadOnly) => CatalogError::ReadOnly {
                what: context.into(),
            },
            // The file of SQLite's shared memory cannot grow: it writes a byte to each new page.
            Some(ErrorCode::SystemIoFailure)
                if source.sqlite_error().map(|error| error.extended_code)
                    == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) =>
            {
                CatalogError::NoSpace
            }
            Some(ErrorCode::SystemIoFailure)
                if source.sqlite_error().map(|error| error.extended_code)
                    == Some(rusqlite::ffi::SQLITE_IOERR_DATA) =>
            {
                match crate::error::refused::take_refused() {
                    Some(what) => CatalogError::LogDamaged { what },
                    None => failed(context.into(), source),
                }
            }
            Some(ErrorCode::DiskFull) => CatalogError::NoSpace,
            // The bound of `memory` on the length of a row comes back as this, and that of
            // `confine` on the length of a program.
            Some(ErrorCode::OutOfMemory) if is_too_long => CatalogError::Damaged {
                what: format!("{context}: a row that it reads is too long"),
            },
            Some(ErrorCode::OutOfMemory) => failed(
                format!(
                    "{context}: memory has run out, or the schema makes a statement too long; \
                     look at generated columns that are made of each other, or free memory"
                ),
                source,
            ),
            Some(ErrorCode::ConstraintViolation) => constraint(context, &source),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => CatalogError::Damaged {
                what: format!("{context}: {source}"),
            },
            _ => failed(context.into(), source),
        },
    }
}

/// An error that nothing can be done about here.
fn failed(context: String, source: rusqlite::Error) -> CatalogError {
    let is_of_a_rule = matches!(
        source.sqlite_error_code(),
        // A trigger names what is not there any more, or calls what only other programs have.
        Some(
            ErrorCode::Unknown
                | ErrorCode::AuthorizationForStatementDenied
                | ErrorCode::TypeMismatch
                | ErrorCode::TooBig
                | ErrorCode::ParameterOutOfRange
                | ErrorCode::SchemaChanged
                | ErrorCode::OperationInterrupted
        )
    );
    CatalogError::Storage {
        context,
        is_of_a_rule,
        source: Box::new(source),
    }
}

/// `UNIQUE constraint failed: TABLE.COLUMN, …` names the table itself; the others leave it to the
/// step that failed.
fn constraint(context: &str, source: &rusqlite::Error) -> CatalogError {
    let message = match source {
        rusqlite::Error::SqliteFailure(_, Some(message)) => message.clone(),
        other => other.to_string(),
    };
    let named = message.split_once("failed: ").map_or("", |(_, rest)| rest);
    let table = match named.split_once('.') {
        Some((table, _)) if !table.contains(' ') => table,
        _ => context,
    };
    CatalogError::Constraint {
        table: table.into(),
        constraint: message,
    }
}

/// A row of a change was written: a trigger of the user's can leave it out without an error.
pub(crate) fn require_row(changed: usize, table: &str) -> Result<()> {
    match changed {
        1 => Ok(()),
        _ => Err(ignored(table)),
    }
}

/// A trigger of the user's has left a row of a change out.
pub(crate) fn ignored(table: &str) -> CatalogError {
    CatalogError::Constraint {
        table: table.into(),
        constraint:
            "a trigger ignores a row of a change (RAISE(IGNORE)), which cannot do without; \
                     DROP it, or let it RAISE(ABORT)"
                .into(),
    }
}

/// What a database without history says of the past.
pub(crate) fn no_history() -> CatalogError {
    CatalogError::invalid(
        "the database keeps no history (its retention is 0); only the present can be read",
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusqlite::ffi;

    fn failure(code: i32, message: &str) -> rusqlite::Error {
        rusqlite::Error::SqliteFailure(ffi::Error::new(code), Some(message.into()))
    }

    #[test]
    fn codes_are_sorted_by_remedy() {
        let sorted = |code| sort("step", failure(code, "m"));
        for full in [ffi::SQLITE_FULL, ffi::SQLITE_IOERR_SHMSIZE] {
            assert!(matches!(sorted(full), CatalogError::NoSpace));
        }
        assert!(matches!(
            sorted(ffi::SQLITE_BUSY),
            CatalogError::Busy { .. }
        ));
        assert!(matches!(
            sorted(ffi::SQLITE_READONLY_DIRECTORY),
            CatalogError::ReadOnly { .. }
        ));
        assert!(matches!(
            sorted(ffi::SQLITE_CORRUPT_VTAB),
            CatalogError::Damaged { .. }
        ));
        assert!(matches!(
            sorted(ffi::SQLITE_IOERR_WRITE),
            CatalogError::Storage { .. }
        ));
    }

    #[test]
    fn a_constraint_names_its_table() {
        let line = |message: &str| {
            sort("main_map", failure(ffi::SQLITE_CONSTRAINT_CHECK, message)).to_string()
        };
        assert_eq!(
            line("UNIQUE constraint failed: photos.title"),
            "photos: UNIQUE constraint failed: photos.title"
        );
        assert_eq!(
            line("CHECK constraint failed: page >= 0"),
            "main_map: CHECK constraint failed: page >= 0"
        );
    }
}
