//! Opening a connection, and the settings that every one of ours has.

use crate::conn::confine::{Use, confine};
use crate::conn::place::{CatalogOptions, Place};
use crate::conn::waiting::Waits;
use crate::error::{At, CatalogError, Result, sort};
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, ffi};
use std::ffi::c_int;
use std::sync::Arc;
use std::time::Duration;

/// Compiled statements that each connection keeps.
pub(crate) const STATEMENTS_MAX: usize = 256;

/// Opens a connection.
pub(crate) fn connect(
    place: &Place,
    options: &CatalogOptions,
    create: OpenFlags,
    purpose: Use,
) -> Result<Connection> {
    let access = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX | create;
    let (connection, _) = connect_with(place, options, access, false)?;
    confine(&connection, purpose)?;
    Ok(connection)
}

/// The same for any access flags; with `has_log` its log is ours.
pub(crate) fn connect_with(
    place: &Place,
    options: &CatalogOptions,
    flags: OpenFlags,
    has_log: bool,
) -> Result<(Connection, Arc<Waits>)> {
    let path = place.path();
    let opened = place.connect(options, flags, has_log)?;
    let connection = opened.map_err(|error| match error.sqlite_error_code() {
        Some(ErrorCode::CannotOpen) if flags.contains(OpenFlags::SQLITE_OPEN_CREATE) => {
            CatalogError::ReadOnly {
                what: path.display().to_string(),
            }
        }
        Some(ErrorCode::CannotOpen) if !place.exists() => {
            CatalogError::not_found(format!("database {}", path.display()))
        }
        Some(ErrorCode::CannotOpen) => CatalogError::NotADatabase {
            path: path.clone(),
            why: "it cannot be opened; check that it is a file and its permissions".into(),
        },
        _ => sort(&path.display().to_string(), error),
    })?;
    let waits = Waits::begin(&connection, place, options.wait_max())?;
    confine(&connection, Use::Engine)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
    Ok((connection, waits))
}

/// How long a connection of another program waits for locks. Not by `Connection::busy_timeout`,
/// which needs SQLite 3.44: an extension's may be older.
pub(crate) fn set_busy_timeout(connection: &Connection, timeout: Duration) -> Result<()> {
    let timeout_ms = c_int::try_from(timeout.as_millis()).unwrap_or(c_int::MAX);
    // SAFETY: an open connection.
    match unsafe { ffi::sqlite3_busy_timeout(connection.handle(), timeout_ms) } {
        ffi::SQLITE_OK => Ok(()),
        code => {
            let failed = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
            Err(failed).at("the busy timeout")
        }
    }
}

/// The settings that every connection needs (the file itself remembers only page size and WAL).
pub(crate) fn configure(connection: &Connection) -> Result<()> {
    let journal_mode: String = connection
        .pragma_query_value(None, "journal_mode", |row| row.get(0))
        .at("journal_mode")?;
    if journal_mode != "wal" {
        use_wal(connection)?; // Somebody's shell changed it.
    }
    sync_commits(connection)?;
    // Else a statement with a range over a parameter is compiled anew whenever the value changes.
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)
        .at("stable plans")?;
    connection
        .pragma_update(None, "foreign_keys", true)
        .at("foreign_keys")?;
    // Checkpoints are the caller's: inside a commit they would lengthen the write lock.
    connection
        .pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))
        .at("wal_autocheckpoint")
}

/// Every commit is durable when it returns (`CATALOG-7`).
pub(crate) fn sync_commits(connection: &Connection) -> Result<()> {
    connection
        .pragma_update(None, "synchronous", "FULL")
        .at("synchronous")
}

pub(crate) fn use_wal(connection: &Connection) -> Result<()> {
    let mode: String = connection
        .pragma_update_and_check(None, "journal_mode", "WAL", |row| row.get(0))
        .at("journal_mode")?;
    if mode != "wal" {
        return Err(CatalogError::invalid(format!(
            "the filesystem of the database cannot keep a write-ahead log (journal mode stays \
             '{mode}'); use a local filesystem with shared memory maps"
        )));
    }
    Ok(())
}
