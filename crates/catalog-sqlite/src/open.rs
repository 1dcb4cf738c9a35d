//! Creating and opening a catalog, and the settings of its connections.

use crate::authors::NOBODY;
use crate::conn::confine::{Use, confine};
use crate::conn::connect::{configure, connect, connect_with, sync_commits, use_wal};
use crate::conn::meta;
use crate::conn::place::{CATALOG_FILE, CatalogOptions, Place};
use crate::conn::trust::Code;
use crate::error::{At, CatalogError, Result};
use crate::guards::Guards;
use crate::guards::audit;
use crate::guards::trigger_watch::Watch;
use crate::schema::{self, APPLICATION_ID, TWO};
use crate::types::codec;
use crate::types::rows::DatabaseInit;
use crate::{SqliteCatalog, Writer, stores};
use larder_directory::DatabaseDir;
use larder_format::StoreId;
use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags, TransactionBehavior};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

/// Bytes of a page of a new catalog: a commit of one file writes a few whole pages, and group
/// commits fill theirs whatever the size (docs/decisions/0019-commit-speed.md).
const PAGE_BYTES: u32 = 4096;
/// The first SQLite without the WAL-reset corruption.
const SQLITE_VERSION_MIN: i32 = 3_051_003;
/// How long a checkpoint waits for readers: it must not keep the write lock meanwhile.
const CHECKPOINT_TIMEOUT: Duration = Duration::from_millis(100);

impl SqliteCatalog {
    /// Creates `dir/catalog.db` with an empty store `main` whose root directory is inode 1. The
    /// directory exists. One transaction: a crash leaves either the whole catalog or an empty file,
    /// which the next `create` completes; any other existing file is refused
    /// ([`CatalogError::Exists`]). A failure removes what was created.
    pub fn create(
        dir: &Path,
        options: &CatalogOptions,
        init: &DatabaseInit,
    ) -> Result<SqliteCatalog> {
        match DatabaseDir::open(dir) {
            Ok(directory) => SqliteCatalog::create_in(&directory, options, init),
            Err(_) => Err(CatalogError::not_found(format!(
                "directory {}",
                dir.display()
            ))),
        }
    }

    /// The same in a directory that is open.
    pub fn create_in(
        directory: &DatabaseDir,
        options: &CatalogOptions,
        init: &DatabaseInit,
    ) -> Result<SqliteCatalog> {
        let place = Place::of(directory);
        let existed = place.exists();
        let create = OpenFlags::SQLITE_OPEN_CREATE;
        let initialised = connect(&place, options, create, Use::Engine)
            .and_then(|connection| initialise(&connection, &place.path(), init));
        if let Err(error) = initialised {
            if !existed {
                for suffix in ["", "-wal", "-shm"] {
                    // What cannot be removed is empty, and the next create completes it.
                    let _ = directory.remove_file(format!("{CATALOG_FILE}{suffix}"));
                }
            }
            return Err(error);
        }
        SqliteCatalog::open_in(directory, options)
    }

    /// Opens `dir/catalog.db`. Errors tell apart: no such database ([`CatalogError::NotFound`]),
    /// not a database, a newer format, an older one ([`CatalogError::OlderFormat`]), read-only, and
    /// locked ([`CatalogError::Busy`], after as long as the options say).
    pub fn open(dir: &Path, options: &CatalogOptions) -> Result<SqliteCatalog> {
        open_within(&Place::find(dir)?, options, Purpose::Engine)
    }

    /// The same in a directory that is open.
    pub fn open_in(directory: &DatabaseDir, options: &CatalogOptions) -> Result<SqliteCatalog> {
        open_within(&Place::of(directory), options, Purpose::Engine)
    }

    /// The same, which waits for locks of others no longer than so until it is open.
    pub fn open_in_within(
        directory: &DatabaseDir,
        options: &CatalogOptions,
        wait_max: Duration,
    ) -> Result<SqliteCatalog> {
        let hasty = options.waiting(wait_max);
        let mut catalog = open_within(&Place::of(directory), &hasty, Purpose::Engine)?;
        catalog.options = options.clone();
        catalog.wait_at_most(None);
        Ok(catalog)
    }

    /// A connection for reading only; it can change nothing.
    pub(crate) fn connect_reader(&self) -> Result<Connection> {
        let none = OpenFlags::empty();
        let reader = connect(&self.place, &self.options, none, Use::Reader)?;
        configure(&reader)?;
        reader
            .pragma_update(None, "query_only", true)
            .at("a reader")?;
        Ok(reader)
    }
}

/// Whom a catalog is opened for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// The engine of a session.
    Engine,
    /// Transactions, whose SQL may not change settings.
    Transactions,
    /// The SQL session of a person, who may.
    Shell,
    /// Reading the past.
    Past,
}

impl From<Purpose> for Use {
    fn from(purpose: Purpose) -> Use {
        match purpose {
            Purpose::Engine | Purpose::Past => Use::Engine,
            Purpose::Transactions => Use::User,
            Purpose::Shell => Use::Shell,
        }
    }
}

pub(crate) fn open_within(
    place: &Place,
    options: &CatalogOptions,
    purpose: Purpose,
) -> Result<SqliteCatalog> {
    let sqlite = rusqlite::version_number();
    if sqlite < SQLITE_VERSION_MIN && !options.is_extension {
        return Err(CatalogError::invalid(format!(
            "SQLite {} may damage a database (fixed in 3.51.3); build larder with its bundled \
             SQLite",
            rusqlite::version()
        )));
    }
    let path = place.path();
    let access = OpenFlags::SQLITE_OPEN_READ_WRITE
        | match purpose {
            Purpose::Engine | Purpose::Past => OpenFlags::SQLITE_OPEN_NO_MUTEX,
            // Two wrappers share the connection (`user_sql`): SQLite itself keeps threads apart.
            Purpose::Transactions | Purpose::Shell => OpenFlags::SQLITE_OPEN_FULL_MUTEX,
        };
    // A shell's settings are the user's, so that LOG-1 and LOG-3 could not be kept. The others'
    // connection is ours alone, and `configure` has it sync every commit (LOG-1).
    let has_log = matches!(purpose, Purpose::Engine | Purpose::Transactions);
    let (connection, waits) = connect_with(place, options, access, has_log)?;
    let code = options.trust.judge(place.owner(), &path)?;
    keep_log(&connection, true)?;
    let found = identify(&connection, &path, code)?;
    keep_log(&connection, false)?;
    sync_commits(&connection)?;
    confine(&connection, purpose.into())?;
    let watch = Watch::begin(&connection)?;
    watch.learn(found);
    if purpose == Purpose::Engine {
        watch.authorize(&connection)?;
    }
    if has_log {
        // LOG-3: a transaction that is rolled back has written nothing to the log.
        connection
            .pragma_update(None, "cache_spill", false)
            .at("cache_spill")?;
        debug_assert_eq!(
            connection
                .pragma_query_value(None, "cache_spill", |row| row.get::<_, i64>(0))
                .ok(),
            Some(0),
            "LOG-3"
        );
    }
    configure(&connection)?;
    if purpose == Purpose::Past {
        connection
            .pragma_update(None, "query_only", true)
            .at("a reader")?;
    }
    let data_version = crate::data_version(&connection)?;
    let page_bytes = connection
        .pragma_query_value(None, "page_size", |row| row.get(0))
        .at("page_size")?;
    let (workspace, grants) = crate::space::grants::identify(&connection)?;
    let checkpointer = connect(
        place,
        &options.waiting(CHECKPOINT_TIMEOUT),
        OpenFlags::empty(),
        Use::Reader,
    )?;
    configure(&checkpointer)?;
    Ok(SqliteCatalog {
        user: None,
        client: None,
        place: place.clone(),
        options: options.clone(),
        page_bytes,
        writer: Mutex::new(Writer {
            connection,
            waits: Some(waits),
            stage: Default::default(),
            data_version,
            guards: Guards::watched(watch, code),
        }),
        log_index: Default::default(),
        checkpointer: Mutex::new(checkpointer),
        flusher: Mutex::default(),
        readers: Mutex::new(Vec::new()),
        stores: RwLock::default(),
        is_stopped: AtomicBool::new(false),
        tells: AtomicBool::new(false),
        own_rows: Mutex::default(),
        as_of: None,
        past_pin: None,
        past_columns: Mutex::default(),
        moment_ns: Mutex::default(),
        session: AtomicU64::new(NOBODY),
        workspace,
        grants: RwLock::new(Arc::new(grants)),
    })
}

/// Whether the end of a connection leaves the log as it is: what is refused is not written to.
pub(crate) fn keep_log(connection: &Connection, is_kept: bool) -> Result<()> {
    connection
        .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, is_kept)
        .at("the log")
        .map(drop)
}

/// Refuses what is not our catalog, or has code that it must not have, before anything is written
/// to it.
fn identify(connection: &Connection, path: &Path, code: Code) -> Result<audit::Findings> {
    identify_client(application_id(connection), connection, path)?;
    let found = audit::require(connection, schema::version(connection)?, code)?;
    if connection.is_readonly("main").at("the access mode")? {
        return Err(CatalogError::ReadOnly {
            what: path.display().to_string(),
        });
    }
    Ok(found)
}

/// The same for a connection that need not be able to write.
pub(crate) fn identify_client(
    application_id: rusqlite::Result<u32>,
    connection: &Connection,
    path: &Path,
) -> Result<()> {
    let found = identify_version(application_id, connection, path)?;
    schema::require_format(found, &TWO)
}

/// The version of the schema; refuses what is not our catalog.
pub(crate) fn identify_version(
    application_id: rusqlite::Result<u32>,
    connection: &Connection,
    path: &Path,
) -> Result<u32> {
    let not_ours = |why: &str| CatalogError::NotADatabase {
        path: path.into(),
        why: why.into(),
    };
    let application_id = match application_id {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::NotADatabase) => {
            return Err(not_ours(
                "it is not an SQLite file; check the path, or restore it from a copy",
            ));
        }
        // The file opened; what cannot be opened is its log or shared memory beside it.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen) => {
            return Err(CatalogError::ReadOnly {
                what: format!("the directory of {}", path.display()),
            });
        }
        other => other.at(&path.display().to_string())?,
    };
    if application_id != APPLICATION_ID {
        return Err(not_ours(if is_pristine(connection)? {
            "it is empty, an interrupted `larder init` left it; remove the directory and run \
             `larder init` again"
        } else {
            "it is the SQLite database of another program; check the path"
        }));
    }
    schema::version(connection)
}

pub(crate) fn application_id(connection: &Connection) -> rusqlite::Result<u32> {
    connection.pragma_query_value(None, "application_id", |row| row.get(0))
}

/// Whether the file holds nothing at all.
fn is_pristine(connection: &Connection) -> Result<bool> {
    let objects: u64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| {
            codec::unsigned(row, 0)
        })
        .at("sqlite_schema")?;
    Ok(objects == 0 && application_id(connection).at("application_id")? == 0)
}

fn initialise(connection: &Connection, path: &Path, init: &DatabaseInit) -> Result<()> {
    let exists = || CatalogError::Exists {
        what: path.display().to_string(),
    };
    match is_pristine(connection) {
        Ok(true) => {}
        Ok(false) | Err(CatalogError::Corrupt { .. } | CatalogError::Damaged { .. }) => {
            return Err(exists());
        }
        Err(error) => return Err(error),
    }
    connection
        .pragma_update(None, "page_size", PAGE_BYTES)
        .at("page_size")?;
    use_wal(connection)?;
    configure(connection)?;
    // WAL mode must be entered outside a transaction; everything else is one.
    let txn = rusqlite::Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
        .at("the start of the creation")?;
    if !is_pristine(&txn)? {
        return Err(exists()); // Another process was faster.
    }
    txn.pragma_update(None, "application_id", APPLICATION_ID)
        .at("application_id")?;
    schema::apply(&txn, &TWO, 0)?;
    meta::set_guard_switch(&txn, true)?;
    {
        let mut insert = txn
            .prepare("INSERT INTO larder_meta (key, value) VALUES (?1, ?2)")
            .at("larder_meta")?;
        insert
            .execute(rusqlite::params!["database_id", init.database_id])
            .at("larder_meta")?;
        for (key, value) in [
            ("capacity_bytes", codec::signed(init.capacity_bytes)),
            ("retention_ns", init.retention_ns),
            ("created_ns", init.now_ns),
            ("commit_seq", 0),
            ("history_begins_seq", 0),
            ("history_begins_ns", init.now_ns),
            ("retired_bytes_total", 0),
            ("next_map_page", 1),
            ("redo_gone_seq", 0),
            ("next_store", i64::from(StoreId::MAIN.0)),
            ("next_session", 1),
        ] {
            insert
                .execute(rusqlite::params![key, value])
                .at("larder_meta")?;
        }
    }
    let root = stores::root_inode(init.now_ns, init.root_mode, init.root_uid, init.root_gid);
    stores::insert_store(&txn, "main", "files", "/", None, &root)?;
    meta::set_guard_switch(&txn, false)?;
    txn.commit().at("the commit of the creation")
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    pub(crate) const INIT: DatabaseInit = DatabaseInit {
        database_id: [7; 16],
        capacity_bytes: 0,
        retention_ns: 0,
        now_ns: 1,
        root_mode: 0o755,
        root_uid: 0,
        root_gid: 0,
    };

    #[test]
    fn a_locked_catalog_is_busy() {
        let dir = tempfile::tempdir().unwrap();
        drop(SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &INIT).unwrap());
        let holder = Connection::open(dir.path().join(CATALOG_FILE)).unwrap();
        holder
            .pragma_update(None, "locking_mode", "EXCLUSIVE")
            .unwrap();
        holder.execute_batch("BEGIN IMMEDIATE").unwrap();
        let patience = CatalogOptions::default().waiting(Duration::from_millis(20));
        let refused = SqliteCatalog::open(dir.path(), &patience);
        assert!(matches!(refused.err(), Some(CatalogError::Busy { .. })));
        drop(holder);
        SqliteCatalog::open(dir.path(), &CatalogOptions::default()).unwrap();
    }

    /// Another program has the lock most of the time, and lets go of it again and again for a short
    /// while.
    #[test]
    fn the_write_lock_is_had_in_spite_of_who_takes_it_again_and_again() {
        use crate::conn::waiting::Waits;
        use std::sync::atomic::{AtomicBool, Ordering};
        let dir = tempfile::tempdir().unwrap();
        drop(SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &INIT).unwrap());
        let open = || Connection::open(dir.path().join(CATALOG_FILE)).unwrap();
        let (other, ours) = (open(), open());
        let place = Place::find(dir.path()).unwrap();
        let waits = Waits::begin(&ours, &place, Duration::from_secs(30)).unwrap();
        let is_over = AtomicBool::new(false);
        let since = std::time::Instant::now();
        std::thread::scope(|scope| {
            let is_over = &is_over;
            scope.spawn(move || {
                while !is_over.load(Ordering::SeqCst) {
                    if other.execute_batch("BEGIN IMMEDIATE").is_ok() {
                        std::thread::sleep(Duration::from_millis(20));
                        other.execute_batch("COMMIT").unwrap();
                    }
                    std::thread::sleep(Duration::from_millis(1));
                }
            });
            for _ in 0..20 {
                ours.execute_batch("BEGIN IMMEDIATE; COMMIT").unwrap();
                std::thread::sleep(Duration::from_millis(5));
            }
            is_over.store(true, Ordering::SeqCst);
        });
        // By SQLite's own way 12 to 24 s.
        let took = since.elapsed();
        assert!(took < Duration::from_secs(10), "{took:?}");
        drop((ours, waits));
    }

    #[test]
    fn an_interrupted_creation_is_told_and_completed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join(CATALOG_FILE), b"").unwrap();
        let told = SqliteCatalog::open(dir.path(), &CatalogOptions::default())
            .err()
            .unwrap();
        assert!(matches!(told, CatalogError::NotADatabase { .. }), "{told}");
        assert!(told.to_string().contains("run `larder init` again"));
        SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &INIT).unwrap();
        let again = SqliteCatalog::create(dir.path(), &CatalogOptions::default(), &INIT)
            .err()
            .unwrap();
        assert!(matches!(again, CatalogError::Exists { .. }), "{again}");
        SqliteCatalog::open(dir.path(), &CatalogOptions::default()).unwrap();
    }
}
