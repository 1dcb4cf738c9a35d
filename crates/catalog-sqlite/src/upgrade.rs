//! Converting a catalog of format 1: the old one stays as it is, the new one appears whole.
//!
//! # Words
//! The *old* catalog is of any version of format 1 (crate `larder-format-one`). The *copy* lies
//! beside where the new catalog will be, under a name that nobody opens.
//!
//! ```text
//!  begin            copy              (the caller copies content)       finish
//!  old: locked ──▶ copy: format 1 ──▶ steps to version 12 ──▶ format 2 ──▶ catalog.db
//!                        a crash leaves the copy, which the next attempt makes anew
//! ```
//!
//! # Invariants
//! * `UPGRADE-1` The old catalog is not changed: what is committed in its log stays in the log.
//!   (SQLite's shared memory and an empty `sessions.lock` may appear beside it.) *Guard*: nothing
//!   is written through its connections, and their end copies no log.
//! * `UPGRADE-2` From [`Upgrade::begin`] to its end nobody changes the old database: no session
//!   lives and no long transaction is open, none begins, and plain SQL waits. *Guard*: the door to
//!   the sessions (`exclusive`), and the catalog's write lock.
//! * `UPGRADE-3` Every row that the old catalog has, the new one has, in the same order of keys,
//!   and nothing else. *Guard*: both are compared before the old rows go (`convert`). What is the
//!   user's is not touched, but for words: triggers and views that name tables by their old names
//!   name them by the new ones.
//! * `UPGRADE-4` A new catalog that has its name is whole and durable. *Guard*: it gets it last.

pub(crate) mod convert;
pub(crate) mod exclusive;

use crate::conn::confine::{Use, confine};
use crate::conn::connect::{connect, connect_with, use_wal};
use crate::conn::log_scan::require_sound_log;
use crate::conn::place::{CATALOG_FILE, CatalogOptions, Place};
use crate::conn::trust::Code;
use crate::error::{At, CatalogError, Result};
use crate::guards::audit;
use crate::open::{application_id, identify_version, keep_log};
use crate::schema::{self, ONE, SCHEMA_VERSION, TWO};
use crate::types::codec::{rows, unsigned};
use crate::types::names::execute_one;
use larder_directory::{Access, DatabaseDir};
use larder_format::SegmentIndex;
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, OpenFlags};
use std::fs::File;
use std::io;

/// The copy, until it is whole.
const COPY: &str = "catalog.new";

/// An old database that is being converted; nobody changes it as long as this lives.
pub struct Upgrade {
    old: DatabaseDir,
    options: CatalogOptions,
    /// Reads the moment that is converted.
    reader: Connection,
    /// Has the write lock (`UPGRADE-2`).
    _writer: Connection,
    _door: File,
    database_id: [u8; 16],
    segments: Vec<SegmentIndex>,
}

impl Upgrade {
    /// Begins to convert the database in `old`. Refuses what is no catalog of format 1
    /// ([`CatalogError::Invalid`] when it is of this format already), what others have open
    /// ([`CatalogError::InUse`]), and what [`crate::SqliteCatalog::open`] refuses of strangers.
    pub fn begin(old: &DatabaseDir, options: &CatalogOptions) -> Result<Upgrade> {
        let place = Place::of(old);
        let path = place.path();
        if !place.exists() {
            return Err(CatalogError::not_found(format!(
                "database {}",
                path.display()
            )));
        }
        require_sound_log(old, CATALOG_FILE, old)?;
        let door = exclusive::close_door(old, options.wait_max())?;
        let writer = open_old(&place, options)?;
        let code = options.trust.judge(place.owner(), &path)?;
        let found = identify_version(application_id(&writer), &writer, &path)?;
        if found == SCHEMA_VERSION {
            return Err(CatalogError::invalid(format!(
                "{} is of this format already; use it as it is",
                path.display()
            )));
        }
        if found > SCHEMA_VERSION {
            schema::require_format(found, &TWO)?;
        }
        schema::require_format(found, &ONE)?;
        execute_one(&writer, "BEGIN IMMEDIATE").at("the write lock of the old catalog")?;
        audit::require(&writer, found, code)?;
        if code != Code::Trusted {
            audit::require_to_prove(&writer, code)?; // The new one is proven sound.
        }
        exclusive::require_nobody(&writer, found, old)?;
        let reader = open_old(&place, options)?;
        reader
            .pragma_update(None, "query_only", true)
            .at("the old catalog")?;
        let id = "SELECT value FROM larder_meta WHERE key = 'database_id'";
        let database_id = reader
            .query_row(id, [], |row| row.get(0))
            .at("larder_meta")?;
        let list = "SELECT segment FROM larder_segment ORDER BY segment";
        let segments = rows(&reader, list, [], |row| {
            Ok(SegmentIndex(unsigned(row, 0)? as u32))
        })
        .at("larder_segment")?;
        Ok(Upgrade {
            old: old.clone(),
            options: options.clone(),
            reader,
            _writer: writer,
            _door: door,
            database_id,
            segments,
        })
    }

    /// The identity of the database, which stays.
    pub fn database_id(&self) -> [u8; 16] {
        self.database_id
    }

    /// Its segments.
    pub fn segments(&self) -> &[SegmentIndex] {
        &self.segments
    }

    /// Makes the copy in `new`, and converts it. Cost: the pages of the catalog are read once and
    /// written three times; pages of tables that were made anew stay free in it, for rows to come.
    pub fn copy(&self, new: &DatabaseDir) -> Result<()> {
        for suffix in ["", "-wal", "-shm", "-journal"] {
            match new.remove_file(format!("{COPY}{suffix}")) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    return Err(unwritable(new, &error));
                }
                _ => {}
            }
        }
        let options = CatalogOptions {
            wait_max: self.options.wait_max,
            ..CatalogOptions::default()
        };
        let place = Place::named(new, COPY);
        let mut copy = connect(&place, &options, OpenFlags::SQLITE_OPEN_CREATE, Use::Engine)?;
        // Durable at once, at the end.
        copy.pragma_update(None, "synchronous", "OFF")
            .at("the copy")?;
        {
            let backup = Backup::new(&self.reader, &mut copy).at("the copy")?;
            match backup.step(-1).at("the copy")? {
                StepResult::Done => {}
                _ => {
                    return Err(CatalogError::Busy {
                        waited: self.options.wait_max(),
                        why: None,
                    });
                }
            }
        }
        // On disk, not in memory: what is converted at once is as large as the catalog.
        copy.pragma_update_and_check(None, "journal_mode", "DELETE", |_| Ok(()))
            .at("the copy")?;
        convert::convert(&copy)?;
        let code = self
            .options
            .trust
            .judge(Place::of(&self.old).owner(), &place.path())?;
        audit::require(&copy, TWO.newest(), code)?;
        use_wal(&copy)?;
        copy.close().map_err(|(_, error)| error).at("the copy")
    }

    /// Gives the copy in `new` its name (`UPGRADE-4`).
    pub fn finish(self, new: &DatabaseDir) -> Result<()> {
        if Place::of(new).exists() {
            return Err(CatalogError::Exists {
                what: Place::of(new).path().display().to_string(),
            });
        }
        let named = || -> io::Result<()> {
            new.open_file(COPY, Access::Read)?.sync_all()?;
            new.rename(COPY, CATALOG_FILE)?;
            new.sync()
        };
        named().map_err(|error| unwritable(new, &error))
    }
}

/// A connection to the old catalog, whose end leaves the log as it is (`UPGRADE-1`).
fn open_old(place: &Place, options: &CatalogOptions) -> Result<Connection> {
    let access = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let (connection, _) = connect_with(place, options, access, false)?;
    confine(&connection, Use::Engine)?;
    keep_log(&connection, true)?;
    connection
        .pragma_update_and_check(None, "wal_autocheckpoint", 0, |_| Ok(()))
        .at("the old catalog")?;
    Ok(connection)
}

fn unwritable(new: &DatabaseDir, error: &io::Error) -> CatalogError {
    match error.kind() {
        io::ErrorKind::StorageFull => CatalogError::NoSpace,
        _ => CatalogError::invalid(format!(
            "the new database in {} cannot be written ({error}); choose another place",
            new.path().display()
        )),
    }
}

#[cfg(test)]
mod tests;
