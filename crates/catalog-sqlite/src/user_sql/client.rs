//! A connection of another program, which has loaded the extension: the catalog as that program's
//! SQLite has it open.
//!
//! # Words
//! The *client* is that connection. Its transactions begin and end when the program says so; here
//! one learns of it ([`ClientWatch`]), reads and writes in between, nested in the client's
//! statements, and decides nothing about its end but one thing: a commit can be refused. How one
//! learns of it:
//!
//! ```text
//!  a statement begins or ends
//!      sqlite3_trace_v2: before its first step, so before it takes SQLite's locks. The program may
//!      set a tracer of its own and take ours away; nothing but waiting depends on it.
//!  commit, rollback, savepoint
//!      methods of the virtual table `larder_client`, of which SQLite calls them once something was
//!      written to it in a transaction (`CatalogClient::enlist`). FTS5 does the same.
//! ```
//!
//! # Invariants
//! * `CLIENT-1` On the client's connection nothing of ours begins, commits or rolls back a
//!   transaction, sets a savepoint, or changes a setting.
//! * `CLIENT-2` What is compiled on it is forgotten before it closes: SQLite disconnects virtual
//!   tables first, and refuses to close while there are statements.
//!
//! # Concurrency
//! SQLite calls everything here on the thread that uses the client's connection, with its mutex
//! held.

mod handle;
mod watch;

use crate::authors::NOBODY;
use crate::commit::transaction::{Stage, note_moment};
use crate::conn::connect::{STATEMENTS_MAX, set_busy_timeout};
use crate::conn::functions::{self, FilesSlot, SqlFiles};
use crate::conn::place::{CATALOG_FILE, Place};
use crate::error::{At, BUSY_TIMEOUT, CatalogError, Result};
use crate::guards::Guards;
use crate::open::{application_id, identify_client};
use crate::user_sql::files_table;
use crate::{CatalogClient, CatalogOptions, ChangeSet, CommitOutcome, SqliteCatalog, Writer, lock};
pub(crate) use handle::ClientSide;
use handle::REGISTERED;
pub use handle::{ClientEnd, ClientHandle, ClientLocks, ClientStatement, ClientWatch};
use larder_directory::DatabaseDir;
use rusqlite::{Connection, ffi};
use std::ffi::{CStr, OsStr, c_int, c_void};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;
use watch::{MODULE, Watch, destroy_watch, trace};

/// What a client is told to do with [`CatalogClient::enlist`].
const ENLIST: &str = "INSERT INTO main.larder_client DEFAULT VALUES";
const TABLE: &CStr = c"larder_client";

impl ClientHandle {
    /// The connection behind `raw`.
    ///
    /// # Safety
    /// It is open, and stays so as long as this or what was made of it is used.
    pub unsafe fn new(raw: *mut ffi::sqlite3) -> ClientHandle {
        ClientHandle(raw)
    }

    /// The directory of the database whose catalog is the client's main database.
    pub fn find_directory(self) -> Result<PathBuf> {
        let open_it = |why: String| {
            CatalogError::invalid(format!(
                "{why}; open DATABASE/{CATALOG_FILE}, and load the extension then"
            ))
        };
        // SAFETY: an open connection; the answer is null or a C string that lives as long as it.
        let name = unsafe {
            let name = ffi::sqlite3_db_filename(self.0, c"main".as_ptr());
            (!name.is_null()).then(|| CStr::from_ptr(name))
        };
        let path = name.map(|name| Path::new(OsStr::from_bytes(name.to_bytes())));
        let Some(path) = path.filter(|path| !path.as_os_str().is_empty()) else {
            return Err(open_it("this connection has no database file open".into()));
        };
        let connection = self.wrap()?;
        let application = application_id(&connection);
        identify_client(application, &connection, path)?;
        let is_taken: bool = connection
            .query_row(
                "SELECT EXISTS (SELECT 1 FROM main.sqlite_schema WHERE lower(name) = \
                 'larder_client')",
                [],
                |row| row.get(0),
            )
            .at("sqlite_schema")?;
        if is_taken {
            return Err(CatalogError::invalid(
                "a table 'larder_client' stands in the way of the extension's; DROP TABLE \
                 larder_client",
            ));
        }
        if path.file_name() != Some(OsStr::new(CATALOG_FILE)) {
            return Err(open_it(format!(
                "{} is a copy of a catalog without its content",
                path.display()
            )));
        }
        Ok(path.parent().unwrap_or(Path::new("/")).to_owned())
    }

    /// Whether every statement is a transaction of its own.
    pub fn is_autocommit(self) -> bool {
        // SAFETY: an open connection.
        unsafe { ffi::sqlite3_get_autocommit(self.0) != 0 }
    }

    /// What its transaction has locked.
    pub fn locks(self) -> ClientLocks {
        // SAFETY: an open connection.
        match unsafe { ffi::sqlite3_txn_state(self.0, c"main".as_ptr()) } {
            ffi::SQLITE_TXN_WRITE => ClientLocks::Write,
            ffi::SQLITE_TXN_READ => ClientLocks::Snapshot,
            _ => ClientLocks::None,
        }
    }

    /// What its transaction has locked once `end` has ended: where every statement is a transaction
    /// of its own, and no other one reads, nothing but what is still to be committed. O(compiled
    /// statements).
    pub fn locks_after(self, end: ClientEnd) -> ClientLocks {
        let locks = self.locks();
        match locks == ClientLocks::Snapshot && self.is_autocommit() && !self.has_others(end) {
            true => ClientLocks::None,
            false => locks,
        }
    }

    /// Whether another statement than this one is running.
    fn has_others(self, end: ClientEnd) -> bool {
        // SAFETY: an open connection; the statements are those that it has, none of which is
        // finalized meanwhile.
        unsafe {
            let mut statement = ffi::sqlite3_next_stmt(self.0, std::ptr::null_mut());
            while !statement.is_null() {
                if statement != end.0 && ffi::sqlite3_stmt_busy(statement) != 0 {
                    return true;
                }
                statement = ffi::sqlite3_next_stmt(self.0, statement);
            }
        }
        false
    }

    /// Gives the connection the functions and the table `files`, which `files` answers, and has
    /// `watch` told of its statements and transactions.
    pub fn register(self, files: Arc<dyn SqlFiles>, watch: Arc<dyn ClientWatch>) -> Result<()> {
        let connection = self.wrap()?;
        let slot = FilesSlot::default();
        // Until the connection closes: then SQLite drops the functions.
        std::mem::forget(slot.lend(Some(files)));
        functions::register(&connection, &slot)
            .and_then(|()| files_table::register(&connection, &slot))
            .at("the functions about files")?;
        let watch = Arc::into_raw(Arc::new(Watch::new(watch, self)));
        let watch: *mut c_void = watch.cast_mut().cast();
        // SAFETY: `watch` is a `Watch` that `destroy_watch` alone gives back: when the connection
        // closes, after its last statement, or when registering fails, which SQLite calls it for
        // too.
        let code = unsafe {
            ffi::sqlite3_create_module_v2(
                self.0,
                TABLE.as_ptr(),
                &raw const MODULE,
                watch,
                Some(destroy_watch),
            )
        };
        require(code, "the table larder_client")?;
        // Connects it: it is told when the connection closes (CLIENT-2).
        connection
            .prepare(ENLIST)
            .map(drop)
            .at("the table larder_client")?;
        // SAFETY: as above; the tracer is called for statements only.
        let code = unsafe {
            let events = ffi::SQLITE_TRACE_STMT | ffi::SQLITE_TRACE_PROFILE;
            ffi::sqlite3_trace_v2(self.0, events, Some(trace), watch)
        };
        require(code, "the tracer")?;
        lock(&REGISTERED).push(self.0.addr());
        Ok(())
    }

    /// Whether [`ClientHandle::register`] has succeeded on this connection.
    pub fn is_registered(self) -> bool {
        lock(&REGISTERED).contains(&self.0.addr())
    }

    fn wrap(self) -> Result<Connection> {
        // SAFETY: an open connection, which the wrapper does not close.
        let connection = unsafe { Connection::from_handle(self.0) }.at("a client's connection")?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        Ok(connection)
    }

    /// Has the statement that begins fail, before it changes anything. One that only begins or ends
    /// a transaction or a savepoint goes on.
    pub fn interrupt(self) {
        // SAFETY: an open connection. SQLite forgets it when the last running statement has ended.
        unsafe { ffi::sqlite3_interrupt(self.0) }
    }

    /// What the last failure was, precisely: a client need not have asked for extended codes.
    fn failure_code(self) -> c_int {
        // SAFETY: an open connection.
        unsafe { ffi::sqlite3_extended_errcode(self.0) }
    }
}

fn require(code: c_int, what: &str) -> Result<()> {
    match code {
        ffi::SQLITE_OK => Ok(()),
        code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None)).at(what),
    }
}

/// The catalog in `directory` as the client has it open. All that is read and written passes
/// its connection, in whatever transaction that is.
pub fn open_client(
    directory: &DatabaseDir,
    options: &CatalogOptions,
    client: ClientHandle,
) -> Result<SqliteCatalog> {
    let connection = client.wrap()?;
    let page_bytes = connection
        .pragma_query_value(None, "page_size", |row| row.get(0))
        .at("page_size")?;
    let (workspace, grants) = crate::space::grants::identify(&connection)?;
    Ok(SqliteCatalog {
        user: None,
        client: Some(ClientSide {
            handle: client,
            beside: Mutex::new(client.wrap()?),
        }),
        place: Place::of(directory),
        options: options.clone(),
        page_bytes,
        writer: Mutex::new(Writer {
            waits: None,
            connection,
            stage: Stage::Client,
            data_version: 0,
            guards: Guards::for_client(),
        }),
        log_index: Default::default(),
        checkpointer: Mutex::new(client.wrap()?),
        flusher: Mutex::default(),
        readers: Mutex::default(),
        stores: RwLock::default(),
        is_stopped: AtomicBool::new(false),
        tells: AtomicBool::new(false),
        own_rows: Mutex::default(),
        workspace,
        grants: RwLock::new(Arc::new(grants)),
        as_of: None,
        past_pin: None,
        past_columns: Mutex::default(),
        moment_ns: Mutex::default(),
        session: AtomicU64::new(NOBODY),
    })
}

impl CatalogClient<'_> {
    /// Whether it is another program's connection.
    pub fn is_clients(&self) -> bool {
        self.catalog.client.is_some()
    }

    /// Runs `body`, which writes in the client's transaction: only there, since SQLite may have
    /// ended it by itself.
    pub(crate) fn transact_for_client<T>(&self, body: impl FnOnce() -> Result<T>) -> Result<T> {
        let handle = self.client_side()?.handle;
        // That it is open says nothing while it is committed.
        if handle.locks() != ClientLocks::Write {
            return Err(CatalogError::invalid(
                "SQLite rolled the transaction back; begin it again",
            ));
        }
        body().map_err(|error| match error {
            // It has the write lock, so what SQLite says is that something of its own is locked.
            CatalogError::Busy { .. } => CatalogError::invalid(
                "SQLite keeps virtual tables (full-text search) locked while it commits, and a \
                 trigger writes one; \
                 put BEGIN before write_content, and COMMIT behind it",
            ),
            error => error,
        })
    }

    fn client_side(&self) -> Result<&ClientSide> {
        let why = "this catalog is nobody else's connection";
        self.catalog
            .client
            .as_ref()
            .ok_or_else(|| CatalogError::invalid(why))
    }

    /// Runs `work`, all of whose reads see one moment: the client's transaction's, or else the
    /// present.
    pub fn in_one_moment<T>(&self, work: impl FnOnce() -> T) -> Result<T> {
        let side = self.client_side()?;
        let beside = lock(&side.beside);
        // A statement that has begun to read and not ended holds the snapshot.
        let mut hold = beside
            .prepare_cached("SELECT 1 FROM larder_guard_switch")
            .at("a snapshot")?;
        let mut rows = hold.raw_query();
        rows.next().at("a snapshot")?;
        Ok(work())
    }

    /// Takes part in the client's transaction, and takes its write lock: the watch is told of its
    /// end. With no transaction open this is one, commit included. `false`: its snapshot is not the
    /// present any more.
    pub fn enlist(&self) -> Result<bool> {
        let side = self.client_side()?;
        let beside = lock(&side.beside);
        self.catalog.require_unhidden(&beside)?;
        let done = beside
            // Not kept: a statement would keep the table connected (CLIENT-2).
            .prepare(ENLIST)
            .and_then(|mut insert| insert.execute([]).map(drop));
        if done.is_err() && side.handle.failure_code() == ffi::SQLITE_BUSY_SNAPSHOT {
            return Ok(false);
        }
        match done {
            Ok(()) => Ok(true),
            // What the watch said, or the user's constraints.
            Err(rusqlite::Error::SqliteFailure(code, Some(message)))
                if code.code != rusqlite::ErrorCode::DatabaseBusy =>
            {
                Err(CatalogError::invalid(message))
            }
            Err(error) => Err(error).at("the client's transaction"),
        }
    }

    /// How long the client's connection waits for locks; nothing where the program has a handler of
    /// its own.
    pub fn client_busy_timeout(&self) -> Result<Duration> {
        let side = self.client_side()?;
        let beside = lock(&side.beside);
        let timeout_ms: i64 = beside
            .prepare_cached("PRAGMA busy_timeout")
            .and_then(|mut ask| ask.query_row([], |row| row.get(0)))
            .at("the busy timeout")?;
        Ok(Duration::from_millis(
            u64::try_from(timeout_ms).unwrap_or(0),
        ))
    }

    /// Notes the moment of the client's transaction, if it has steps, before its commit
    /// (`larder_history`).
    pub fn note_client_moment(&self) -> Result<()> {
        let writer = lock(&self.catalog.writer);
        let moment_ns = lock(&self.catalog.moment_ns).take();
        match moment_ns {
            None => Ok(()),
            Some(now_ns) => {
                self.catalog.require_unhidden(&writer.connection)?;
                let author = self.catalog.sessions().author(None);
                self.transact_for_client(|| note_moment(&writer.connection, now_ns, author))
            }
        }
    }

    /// The client's transaction has ended.
    pub fn forget_client_moment(&self) {
        *lock(&self.catalog.moment_ns) = None;
    }

    /// [`SqliteCatalog::commit`] if nobody has the write lock now; else `None`, at once. What plain
    /// SQL did to rows before is of its own moment. For the session beside clients.
    pub fn commit_if_free(&self, changes: &ChangeSet) -> Result<Option<CommitOutcome>> {
        self.wait_for_locks(Some(Duration::ZERO))?;
        let settled = self.catalog.temporal().settle_rows(changes.now_ns);
        let outcome = settled.and_then(|_| self.catalog.commit(changes));
        self.wait_for_locks(None)?;
        match outcome {
            Err(CatalogError::Busy { .. }) => Ok(None),
            outcome => outcome.map(Some),
        }
    }

    /// [`SqliteCatalog::wait_at_most`], of the client's connection too.
    fn wait_for_locks(&self, wait_max: Option<Duration>) -> Result<()> {
        self.catalog.wait_at_most(wait_max);
        let writer = lock(&self.catalog.writer);
        match writer.waits {
            Some(_) => Ok(()),
            None => set_busy_timeout(&writer.connection, wait_max.unwrap_or(BUSY_TIMEOUT)),
        }
    }

    /// Forgets what is compiled on the client's connection (`CLIENT-2`).
    pub fn forget_compiled(&self) {
        if let Some(side) = &self.catalog.client {
            lock(&side.beside).flush_prepared_statement_cache();
            lock(&self.catalog.writer)
                .connection
                .flush_prepared_statement_cache();
        }
    }
}

// ---- what SQLite calls ----------------------------------------------------------------------
