//! Upgrading the schema, which only happens when nobody else has the database open: a session of an
//! older larder would go on writing what the new schema does not allow, and so would the merge of a
//! workspace that is older.
//!
//! # Invariants
//! * `CATALOG-11` The schema changes only while no other session lives and no long transaction is
//!   open, and none begins meanwhile. *Guard*: the door to the sessions is held; both are looked
//!   for in the transaction of the upgrade; a session is born only on the schema that it knows.
//!
//! Who lives is told by locks of files, as for `SESSION-1` and `WORKSPACE-7` (crate
//! `larder-object`).

use crate::conn::place::{CATALOG_FILE, Place};
use crate::conn::waiting::{Patience, describe_holder};
use crate::error::{At, CatalogError, Result};
use crate::feed;
use crate::schema::{self, SCHEMA_VERSION, STEPS};
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
/// From this format on the tables are there that say who has the database open.
const COUNTS_ALL: u32 = 5;

/// Upgrades the schema of the catalog at `place` if it is older than this build's.
/// [`CatalogError::InUse`] names who has the database open.
pub(crate) fn upgrade(connection: &Connection, place: &Place, wait_max: Duration) -> Result<()> {
    if schema::version(connection)? == SCHEMA_VERSION {
        return Ok(());
    }
    let _door = close_door(place.directory(), wait_max)?;
    // The steps may copy much: who is there is asked before them too, where it can be.
    if (COUNTS_ALL..SCHEMA_VERSION).contains(&schema::version(connection)?) {
        require_nobody(connection, place.directory())?;
    }
    schema::upgrade(connection, STEPS, |txn| {
        require_nobody(txn, place.directory())?;
        feed::watch_stores_anew(txn)
    })
}

/// Keeps sessions from being born, or else they look dead for a moment.
fn close_door(database: &DatabaseDir, wait_max: Duration) -> Result<File> {
    let path = database.join(DOOR);
    let mut patience = Patience::new(wait_max);
    let door = database.open_file(DOOR, Access::Make);
    let door = door.map_err(|error| cannot_look(&path, &error))?;
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

fn require_nobody(txn: &Connection, database: &DatabaseDir) -> Result<()> {
    let in_use = |who: String| Err(CatalogError::InUse { who });
    if let (Some(id), _) = crate::space::grants::identify(txn)? {
        return in_use(format!("the long transaction {id}, whose workspace it is,"));
    }
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::schema::APPLICATION_ID;
    use crate::{Catalog, CatalogOptions};

    /// A catalog of an older format.
    fn make_older(directory: &Path, sql: &str) {
        let older = Connection::open(directory.join(CATALOG_FILE)).unwrap();
        let wal = |_: &rusqlite::Row<'_>| Ok(());
        older
            .query_row("PRAGMA journal_mode = WAL", [], wal)
            .unwrap();
        older
            .pragma_update(None, "application_id", APPLICATION_ID)
            .unwrap();
        schema::apply(&older, &STEPS[..6], 0).unwrap();
        older
            .execute_batch(&format!(
                "UPDATE larder_gate SET open = 1; {sql}; UPDATE larder_gate SET open = 0"
            ))
            .unwrap();
    }

    fn lock(path: &Path) -> File {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        let file = File::create(path).unwrap();
        file.lock().unwrap();
        file
    }

    fn open(directory: &Path) -> Result<Catalog> {
        Catalog::open(directory, &CatalogOptions::default())
    }

    /// CATALOG-11
    #[test]
    fn nothing_is_upgraded_beneath_a_session_that_lives() {
        let dir = tempfile::tempdir().unwrap();
        let session = "INSERT INTO larder_session VALUES (7, 4711, 'mount /p', 1, 0)";
        make_older(dir.path(), session);
        let living = lock(&dir.path().join("sessions/7.lock"));
        for _ in 0..2 {
            let told = open(dir.path()).err().unwrap();
            assert!(matches!(told, CatalogError::InUse { .. }), "{told}");
            let line = told.to_string();
            assert!(
                line.contains("session 7 ('mount /p', process 4711)"),
                "{line}"
            );
        }
        drop(living); // As when its process has died.
        open(dir.path()).unwrap();
        let _living = lock(&dir.path().join("sessions/7.lock"));
        open(dir.path()).unwrap();
    }

    /// CATALOG-11: the steps, which may take long, are not begun in vain.
    #[test]
    fn who_is_there_is_asked_before_the_steps() {
        let dir = tempfile::tempdir().unwrap();
        // The first step would fail.
        let session = "INSERT INTO larder_session VALUES (7, 4711, 'mount /p', 1, 0); CREATE \
            TABLE larder_history (x)";
        make_older(dir.path(), session);
        let _living = lock(&dir.path().join("sessions/7.lock"));
        let told = open(dir.path()).err().unwrap();
        assert!(matches!(told, CatalogError::InUse { .. }), "{told}");
    }

    /// CATALOG-11
    #[test]
    fn nothing_is_upgraded_beneath_a_long_transaction() {
        for (is_bound, is_refused) in [(0, true), (1, false)] {
            let dir = tempfile::tempdir().unwrap();
            let row = format!(
                "INSERT INTO larder_transaction (id, pid, label, begun_ns, pin_seq, bound) VALUES \
                 (3, 9, 'txn', 1, 0, {is_bound})"
            );
            make_older(dir.path(), &row);
            let workspace = dir.path().join("transactions/3");
            let owner = lock(&workspace.join("owner.lock"));
            std::fs::write(workspace.join(CATALOG_FILE), b"x").unwrap();
            let told = open(dir.path()).err().unwrap().to_string();
            assert!(told.contains("long transaction 3"), "{told}");
            drop(owner);
            let told = open(dir.path()).err().map(|error| error.to_string());
            assert_eq!(told.is_some(), is_refused);
            assert!(told.is_none_or(|told| told.contains("txn abort")));
        }
    }

    #[test]
    fn no_session_is_born_on_another_schema() {
        let dir = tempfile::tempdir().unwrap();
        let init = crate::open::tests::INIT;
        let catalog = Catalog::create(dir.path(), &CatalogOptions::default(), &init).unwrap();
        let newer = Connection::open(dir.path().join(CATALOG_FILE)).unwrap();
        newer
            .pragma_update(None, "user_version", SCHEMA_VERSION + 1)
            .unwrap();
        let told = catalog.sessions().begin((1, 0), "late", 1).err().unwrap();
        assert!(
            matches!(told, CatalogError::NewerFormat { .. }),
            "CATALOG-11: {told}"
        );
        assert!(catalog.sessions().rows().unwrap().is_empty());
    }
}
