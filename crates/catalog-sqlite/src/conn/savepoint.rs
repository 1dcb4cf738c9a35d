//! Steps of a transaction that stays open: savepoints in it (`transaction`).

use crate::error::{At, CatalogError, Result};
use rusqlite::Connection;

/// Where the owner's transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    /// There is none.
    #[default]
    Idle,
    /// It has a snapshot.
    Reading,
    /// It has the write lock.
    Writing,
    /// It is another program's, which alone begins and ends it (`CLIENT-1`).
    Client,
}

/// Runs `body` as one step: as a whole or not at all.
pub(crate) fn as_step<T>(
    connection: &Connection,
    body: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    require_open(connection)?;
    execute(connection, "SAVEPOINT larder_step").at("a step")?;
    let outcome = body(connection);
    if outcome.is_err() && !connection.is_autocommit() {
        execute(connection, "ROLLBACK TO larder_step").at("a step")?;
    }
    if !connection.is_autocommit() {
        execute(connection, "RELEASE larder_step").at("a step")?;
    }
    outcome
}

/// Runs `body` and takes it back.
pub(crate) fn as_trial(
    connection: &Connection,
    body: impl FnOnce(&Connection) -> Result<()>,
) -> Result<()> {
    require_open(connection)?;
    execute(connection, "SAVEPOINT larder_trial").at("a trial")?;
    let outcome = body(connection);
    if !connection.is_autocommit() {
        execute(connection, "ROLLBACK TO larder_trial").at("a trial")?;
        execute(connection, "RELEASE larder_trial").at("a trial")?;
    }
    outcome
}

pub(crate) fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

/// SQLite ends a transaction by itself where a constraint says `ON CONFLICT ROLLBACK`, and when the
/// host is out of memory or space.
pub(crate) fn require_open(connection: &Connection) -> Result<()> {
    match connection.is_autocommit() {
        false => Ok(()),
        true => Err(CatalogError::invalid(
            "SQLite rolled the transaction back; begin it again",
        )),
    }
}
