//! Nobody else has a database open that is converted: a session would go on writing what the new
//! one does not get, and a long transaction could not be merged any more.
//!
//! # Invariants
//! * `CATALOG-11` A database is converted only while no session lives and no long transaction is
//!   open, and none begins meanwhile. *Guard*: the door to the sessions is held, and both are
//!   looked for behind it; a session is born only on the schema that it knows.
//!
//! Who lives is told by locks of files, as for `SESSION-1` and `WORKSPACE-7` (crate
//! `larder-object`).

use crate::conn::place::CATALOG_FILE;
use crate::conn::waiting::{Patience, describe_holder};
use crate::error::{At, CatalogError, Result};
use crate::types::codec::rows;
use larder_directory::{Access, DatabaseDir};
use rusqlite::Connection;
use std::fs::{File, TryLockError};
use std::io;
use std::path::Path;
use std::time::Duration;

/// The door to the sessions.
const DOOR: &str = "sessions.lock";
const DOOR_PAUSE: Duration = Duration::from_millis(2);

/// Keeps sessions from being born, or else they look dead for a moment.
pub(crate) fn close_door(database: &DatabaseDir, wait_max: Duration) -> Result<File> {
    let path = database.join(DOOR);
    let mut patience = Patience::new(wait_max);
    let door = database.open_file(DOOR, Access::Make);
    let door = door.map_err(|error| match error.kind() {
        io::ErrorKind::ReadOnlyFilesystem => CatalogError::ReadOnly {
            what: format!(
                "{} (copy it to a place that is not)",
                database.path().display()
            ),
        },
        _ => cannot_look(&path, &error),
    })?;
    loop {
        match door.try_lock() {
            Ok(()) => return Ok(door),
            Err(TryLockError::WouldBlock) => {
                let who = || describe_holder(database, DOOR);
                if let Some(why) = patience.look("the door to the sessions", database, who) {
                    return Err(CatalogError::Busy {
                        waited: patience.waited(),
                        why: Some(why),
                    });
                }
                std::thread::sleep(DOOR_PAUSE);
            }
            Err(TryLockError::Error(error)) => return Err(cannot_look(&path, &error)),
        }
    }
}

/// Refuses a catalog of that version which a session or a long transaction has open.
pub(crate) fn require_nobody(txn: &Connection, version: u32, database: &DatabaseDir) -> Result<()> {
    let in_use = |who: String| Err(CatalogError::InUse { who });
    let list = |sql: &str| -> rusqlite::Result<Vec<(i64, u32, String, bool)>> {
        rows(txn, sql, [], |row| {
            Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
        })
    };
    let sessions = list("SELECT id, pid, label, 1 FROM larder_session ORDER BY id");
    for (id, pid, label, _) in sessions.at("larder_session")? {
        if is_locked(database, &format!("sessions/{id}.lock"))? {
            return in_use(format!("session {id} ('{label}', process {pid})"));
        }
    }
    if version < larder_format_one::HAS_TRANSACTIONS {
        return Ok(());
    }
    if let (Some(id), _) = crate::space::grants::identify(txn)? {
        return in_use(format!("the long transaction {id}, whose workspace it is,"));
    }
    let transactions = list("SELECT id, pid, label, bound FROM larder_transaction ORDER BY id");
    for (id, pid, label, is_bound) in transactions.at("larder_transaction")? {
        let catalog = format!("transactions/{id}/{CATALOG_FILE}");
        let found = database.kind(&catalog);
        let found = found.map_err(|error| cannot_look(&database.join(&catalog), &error))?;
        let is_left = !is_bound && found.is_some();
        if is_left || is_locked(database, &format!("transactions/{id}/owner.lock"))? {
            let remedy = match is_left {
                true => {
                    format!(", which waits for 'larder txn commit' or 'larder txn abort' of {id},")
                }
                false => String::new(),
            };
            return in_use(format!(
                "the long transaction {id} ('{label}', begun by process {pid}){remedy}"
            ));
        }
    }
    Ok(())
}

/// Whether another descriptor has locked a file.
fn is_locked(database: &DatabaseDir, name: &str) -> Result<bool> {
    let path = &database.join(name);
    let file = match database.open_file(name, Access::Read) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
        opened => opened.map_err(|error| cannot_look(path, &error))?,
    };
    match file.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(cannot_look(path, &error)),
    }
}

fn cannot_look(path: &Path, error: &io::Error) -> CatalogError {
    CatalogError::invalid(format!(
        "whether others use the database cannot be found out: {} cannot be locked ({error}); \
         check its permissions",
        path.display()
    ))
}
