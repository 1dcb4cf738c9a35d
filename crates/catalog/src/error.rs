//! What can go wrong with the catalog; each message is one line, cause and remedy.

pub(crate) mod refused;

use crate::error::refused::{take_in_vain, take_too_long};
use rusqlite::ErrorCode;
use std::path::PathBuf;
use std::time::Duration;

/// `Result` with [`CatalogError`].
pub type Result<T> = std::result::Result<T, CatalogError>;

/// How long our connections wait for a lock that another one holds.
pub const BUSY_TIMEOUT: Duration = Duration::from_secs(30);

/// A failure of the catalog. Unless it is [`CatalogError::CommitUnknown`], nothing was changed.
#[derive(Debug, thiserror::Error)]
pub enum CatalogError {
    /// There is no such database, store, inode, column or session.
    #[error("{what} does not exist; check the name")]
    NotFound {
        /// What was looked for.
        what: String,
    },
    /// It exists already.
    #[error("{what} exists already; choose another name, or remove it first")]
    Exists {
        /// What is in the way.
        what: String,
    },
    /// The file is not a Larder catalog.
    #[error("{} is not a larder catalog: {why}", path.display())]
    NotADatabase {
        /// The file.
        path: PathBuf,
        /// What is wrong with it, and what to do.
        why: String,
    },
    /// Its schema has what larder does not make, and would run it (`SAFE-3`, `SAFE-4`).
    #[error("the database is refused: {what}")]
    Refused {
        /// What it is, and what to do.
        what: String,
    },
    /// A newer Larder wrote it.
    #[error(
        "written by a newer larder (format {found}, this one knows \u{2264} {known}); upgrade \
         larder"
    )]
    NewerFormat {
        /// The version in the catalog.
        found: u32,
        /// The newest version this build knows.
        known: u32,
    },
    /// An older Larder wrote it, in another format.
    #[error(
        "written by an older larder (schema {found}, this one reads {known}); 'larder upgrade OLD \
         NEW' converts it"
    )]
    OlderFormat {
        /// The version in the catalog.
        found: u32,
        /// The version this build reads.
        known: u32,
    },
    /// The catalog, or the place where it lies, cannot be written.
    #[error("{what} is read-only; make the database directory and its files writable")]
    ReadOnly {
        /// What cannot be written.
        what: String,
    },
    /// Another connection held the lock all the time.
    #[error("{}", why.as_deref().unwrap_or("another program holds the catalog's lock"))]
    Busy {
        /// How long was waited.
        waited: Duration,
        /// Who holds it, and how long it was waited for, if it was.
        why: Option<String>,
    },
    /// It is to be converted to another format, and others are not done with it.
    #[error(
        "the database cannot be converted while {who} has it open; end that with the older larder, \
         and try again"
    )]
    InUse {
        /// Who has it open.
        who: String,
    },
    /// A constraint, ours or the user's, refused a row.
    #[error("{table}: {constraint}")]
    Constraint {
        /// The table.
        table: String,
        /// The constraint, in SQLite's words.
        constraint: String,
    },
    /// The catalog contradicts itself or the change set.
    #[error("the catalog is damaged or a change does not fit it: {what}; run `larder check`")]
    Corrupt {
        /// What was expected, what was found.
        what: String,
    },
    /// Pages of the catalog are damaged: SQLite cannot read them.
    #[error(
        "the catalog is damaged at {what}; 'larder check' names the tables, and what still reads; \
         restore the database from \
         a copy"
    )]
    Damaged {
        /// Where, and what SQLite said.
        what: String,
    },
    /// Recovering the log would lose acknowledged commits (`LOG-6`). Nothing was changed.
    #[error("{what}")]
    LogDamaged {
        /// What is damaged, what would be lost, and what to do.
        what: String,
    },
    /// The filesystem that holds the catalog is full.
    #[error("the filesystem that holds the catalog is full; free some space there")]
    NoSpace,
    /// An argument breaks a rule.
    #[error("{what}")]
    Invalid {
        /// Which rule, and how to keep it.
        what: String,
    },
    /// COMMIT itself failed: the change may or may not be durable. Stop and reopen (`CATALOG-5`).
    #[error("the outcome of a commit is unknown ({cause}); close the database and open it again")]
    CommitUnknown {
        /// What SQLite said.
        cause: String,
    },
    /// The session that read the past has ended, and with it what kept that past.
    #[error("the view of the past has ended with the session that opened it; open it again")]
    PastEnded,
    /// The user's SQL is wrong.
    #[error("{}{message}", position.map(|at| format!("line {} column {}: \
        ", at.0, at.1)).unwrap_or_default())]
    Sql {
        /// What SQLite said.
        message: String,
        /// Line and column, from 1, when SQLite knows.
        position: Option<(usize, usize)>,
    },
    /// Anything else that SQLite reports, I/O errors among it.
    #[error("the catalog failed at {context}: {source}")]
    Sqlite {
        /// The table or step.
        context: String,
        /// What SQLite said.
        source: rusqlite::Error,
    },
}

impl CatalogError {
    pub(crate) fn corrupt(what: impl Into<String>) -> CatalogError {
        CatalogError::Corrupt { what: what.into() }
    }

    pub(crate) fn invalid(what: impl Into<String>) -> CatalogError {
        CatalogError::Invalid { what: what.into() }
    }

    pub(crate) fn not_found(what: impl Into<String>) -> CatalogError {
        CatalogError::NotFound { what: what.into() }
    }
}

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
                    None => CatalogError::Sqlite {
                        context: context.into(),
                        source,
                    },
                }
            }
            Some(ErrorCode::DiskFull) => CatalogError::NoSpace,
            // The bound of `memory` on the length of a row comes back as this, and that of
            // `confine` on the length of a program.
            Some(ErrorCode::OutOfMemory) if is_too_long => CatalogError::Damaged {
                what: format!("{context}: a row that it reads is too long"),
            },
            Some(ErrorCode::OutOfMemory) => CatalogError::Sqlite {
                context: format!(
                    "{context}: memory has run out, or the schema makes a statement too long; \
                     look at generated columns that are made of each other, or free memory"
                ),
                source,
            },
            Some(ErrorCode::ConstraintViolation) => constraint(context, &source),
            Some(ErrorCode::DatabaseCorrupt | ErrorCode::NotADatabase) => CatalogError::Damaged {
                what: format!("{context}: {source}"),
            },
            _ => CatalogError::Sqlite {
                context: context.into(),
                source,
            },
        },
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
            CatalogError::Sqlite { .. }
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
