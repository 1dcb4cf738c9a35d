//! An open database: its parts, its locks, and how operations begin and end.

use crate::commit::group::Group;
use crate::commit::group_fsync::SharedFlush;
use crate::commit::leader::CommitLock;
use crate::commit::refused::Refusals;
use crate::history::History;
use crate::host::{random_id, system_clock};
use crate::session::Session;
use crate::session::company::Company;
use crate::session::liveness::Liveness;
use crate::session::options::{Birth, EngineOptions, InitOptions};
use crate::session::pins::Pins;
use crate::session::readonly::Readonly;
use crate::session::tuning;
use crate::session::writer_lock::Turn;
use crate::space::defrag::Compactor;
use crate::space::grow::Growth;
use crate::space::host_reserve::{HostRoom, UNMEASURED};
use crate::space::reservation::Room;
use crate::space::sharing::Shares;
use crate::txn::short::Private;
use crate::txn::workspace::Workspace;
use crate::txn::writers::Writers;
use crate::view::node::Node;
use crate::view::read_set::ReadSet;
use crate::view::{Shown, View};
use crate::write::access_times::AccessTimes;
use crate::write::claims::Claims;
use crate::write::nameless::Nameless;
use crate::write::rules::Rules;
use crate::write::saves::Asides;
use crate::{Error, ErrorKind, Result, error::io_error};
use larder_catalog::{Catalog, DatabaseInit};
use larder_segment::directory::DatabaseDir;
use larder_segment::{FileStorage, Segment, Storage};
use larder_space::format::limits::{BLOCK_BYTES, CAPACITY_BYTES_MIN};
use larder_space::format::{CommitSeq, SegmentIndex, StoreId};
use std::collections::{HashMap, HashSet};
use std::ops::Deref;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::thread::JoinHandle;

/// No schema has this version: SQLite counts from 0.
pub(crate) const NO_SCHEMA: i64 = i64::MIN;

/// A view of the present through which files are changed: of the session itself, or of a
/// transaction beside it. It can do all that a [`View`] can.
pub struct Engine {
    pub(crate) view: View,
    pub(crate) turn: Turn,
    /// What an engine has that serves transactions beside another one.
    pub(crate) private: Option<Private>,
    /// How much history may go.
    pub(crate) history: History,
    /// Changes against the freeze of a group: what is inside the gate is in one group.
    pub(crate) gate: RwLock<()>,
    pub(crate) group: Mutex<Group>,
    /// The group that takes changes now.
    pub(crate) open_generation: AtomicU64,
    /// Held while a group is committed, or a foreign commit is taken in.
    pub(crate) commit_lock: CommitLock,
    pub(crate) room: Mutex<Room>,
    pub(crate) shares: Shares,
    pub(crate) compactor: Mutex<Compactor>,
    pub(crate) growth: Growth,
    pub(crate) host_room: HostRoom,
    pub(crate) is_growing: AtomicBool,
    /// Segments are being shrunk: nothing is grown ahead.
    pub(crate) is_shrinking: AtomicBool,
    pub(crate) dirty_bytes: AtomicU64,
    /// Bytes of clean blocks that are kept in memory (`WHOLE-2`).
    pub(crate) kept_bytes: AtomicU64,
    pub(crate) claims: Claims,
    /// Provisional objects without a writer that are in no group (`WHOLE-3`).
    pub(crate) unsettled: Mutex<Vec<Arc<Node>>>,
    /// The schema of `constrained`.
    pub(crate) schema_version: AtomicI64,
    /// Stores where something of the user's may refuse a row.
    pub(crate) constrained: RwLock<HashSet<StoreId>>,
    /// Another connection has committed, and the caches do not know yet.
    pub(crate) has_foreign_change: AtomicBool,
    /// There may be orphans in the catalog.
    pub(crate) may_have_orphans: AtomicBool,
    /// Rows of changes since the length of the catalog's log was looked at.
    pub(crate) unlogged_rows: AtomicU64,
    /// The background shall copy the log.
    pub(crate) is_checkpoint_wanted: AtomicBool,
    /// How much of the log was in use when the background looked last, bytes.
    pub(crate) log_used: AtomicU64,
    pub(crate) next_inos: Mutex<HashMap<StoreId, u64>>,
    /// Who else knows inodes.
    pub(crate) nameless: Nameless,
    pub(crate) access_times: AccessTimes,
    /// A leaf lock.
    pub(crate) asides: Mutex<Asides>,
    /// What the user's rules are asked behind.
    pub(crate) rules: Rules,
    /// What the user's rules refused after it was answered.
    pub(crate) refusals: Refusals,
    pub(crate) is_closed: AtomicBool,
    pub(crate) background: Mutex<Option<JoinHandle<()>>>,
    pub(crate) stop_signal: (Mutex<bool>, Condvar),
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Engine {
    /// Creates directory `path` with an empty database in it.
    pub fn create(path: &Path, init: &InitOptions, options: &EngineOptions) -> Result<()> {
        if let Some(bytes) = init
            .capacity_bytes
            .filter(|&bytes| bytes < CAPACITY_BYTES_MIN)
        {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!("a capacity of {bytes} bytes is too small; give at least 16M"),
            ));
        }
        let is_empty_dir =
            std::fs::read_dir(path).is_ok_and(|mut entries| entries.next().is_none());
        if !is_empty_dir && path.symlink_metadata().is_ok() {
            return Err(Error::new(
                ErrorKind::Exists,
                format!(
                    "{} exists already; choose another name or remove it",
                    path.display()
                ),
            ));
        }
        let failed = |error| io_error(format!("cannot create {}", path.display()), error);
        let above = path.parent().filter(|above| !above.as_os_str().is_empty());
        let host = rustix::fs::statvfs(above.unwrap_or(Path::new(".")));
        // Elsewhere it says by itself why it cannot be made there.
        if options.storage.is_none() && host.is_ok_and(|host| host.f_blocks == 0) {
            return Err(Error::new(ErrorKind::NoSpace, UNMEASURED));
        }
        let directory = DatabaseDir::create(path, init.group).map_err(failed)?;
        for name in ["segments", "sessions"] {
            directory.make_dir(name).map_err(failed)?;
        }
        let now_ns = options
            .clock
            .as_ref()
            .map_or_else(system_clock, |clock| clock());
        let database_id = random_id().map_err(failed)?;
        let storage = storage_of(&directory, options);
        let device = storage.create_segment(SegmentIndex(0)).map_err(failed)?;
        Segment::create(device, database_id, SegmentIndex(0), now_ns)?;
        let catalog_options = options.for_catalog();
        let catalog_init = DatabaseInit {
            database_id,
            capacity_bytes: init.capacity_bytes.unwrap_or(0),
            retention_ns: init.retention_ns,
            now_ns,
            root_mode: init.root_mode,
            root_uid: init.root_uid,
            root_gid: init.root_gid,
        };
        Catalog::create_in(&directory, &catalog_options, &catalog_init)?;
        // The new names must survive a power cut too.
        directory.sync().map_err(failed)?;
        let above = DatabaseDir::open(path.parent().unwrap_or(path));
        above.and_then(|above| above.sync()).map_err(failed)
    }

    /// Opens the database in `path`. Recovery is what opening does: free space is computed from
    /// the committed extent rows, sessions that died are forgotten, what they held open is gone.
    ///
    /// A database that this process cannot write is shown as it is now ([`Engine::is_readonly`]).
    pub fn open(path: &Path, label: &str, options: &EngineOptions) -> Result<Arc<Engine>> {
        Engine::open_or_copy(&open_directory(path)?, label, options)
    }

    /// The same in a directory that is open.
    pub(crate) fn open_or_copy(
        directory: &DatabaseDir,
        label: &str,
        options: &EngineOptions,
    ) -> Result<Arc<Engine>> {
        let own_place = match options.storage.is_none() && !options.is_extension {
            true => Readonly::find(directory)?,
            false => None,
        };
        let Some(readonly) = own_place else {
            return Engine::open_in(directory, label, options);
        };
        let copy = readonly.directory().clone();
        let options = EngineOptions {
            storage: Some(Arc::new(FileStorage::read_only(directory.clone()))),
            has_background: false,
            trust: readonly.trust(options.trust),
            readonly: Some(Arc::new(readonly)),
            ..options.clone()
        };
        Engine::open_in(&copy, label, &options)
    }

    /// Opens a database that this process can write.
    pub(crate) fn open_in(
        directory: &DatabaseDir,
        label: &str,
        options: &EngineOptions,
    ) -> Result<Arc<Engine>> {
        let workspace = Workspace::find(directory)?;
        let catalog = Catalog::open_in(directory, &options.for_catalog())?;
        catalog.promise_to_tell(); // FOREIGN-2
        let info = catalog.info()?;
        let storage = storage_of(
            workspace.as_ref().map_or(directory, Workspace::parent),
            options,
        );
        let now_ns = options
            .clock
            .as_ref()
            .map_or_else(system_clock, |clock| clock());
        let turn = Turn::open_in(directory)?.waiting(options.turn_wait_max());
        let (liveness, pin) =
            Liveness::begin(directory, (&turn, options.birth), &catalog, label, now_ns)?;
        let session = Arc::new(Session {
            path: directory.path().to_owned(),
            directory: directory.clone(),
            workspace,
            storage,
            options: options.clone(),
            dirty_bytes_max: tuning::gather_bytes(options.dirty_bytes_max, &info.tuning),
            inline_bytes_max: tuning::inline_bytes_max(&info.tuning),
            info,
            liveness,
            company: Company::default(),
            readers: Pins::default(),
            writers: Writers::default(),
            flushes: SharedFlush::default(),
        });
        let engine = Arc::new(Engine::assemble(session, catalog, (turn, pin), None));
        engine.check_workspace()?;
        engine.open_segments()?;
        engine.find_constraints()?;
        engine.refresh_patches(pin)?;
        engine.find_pieces()?;
        let has_orphans = !engine.catalog.orphans()?.is_empty();
        engine.may_have_orphans.store(has_orphans, Ordering::SeqCst);
        let may_sweep = !options.is_extension
            && !options.is_reader
            && options.birth != Birth::Beside
            && !engine.is_readonly();
        if may_sweep {
            engine.sweep_transactions()?;
            crate::commit::refused_content::remove_leftovers(&engine.session.directory)?;
        }
        if options.has_background {
            engine.start_background()?;
        }
        Ok(engine)
    }

    /// An engine of these parts that knows nothing yet.
    pub(crate) fn assemble(
        session: Arc<Session>,
        catalog: Catalog,
        (turn, seq): (Turn, CommitSeq),
        private: Option<Private>,
    ) -> Engine {
        crate::write::buffers::allow(session.dirty_bytes_max);
        let moment = match private {
            None => Shown::Present,
            Some(_) => Shown::Snapshot(ReadSet::default()),
        };
        Engine {
            turn,
            history: History::new(&session.info),
            view: View::new(session, catalog, moment, seq),
            private,
            schema_version: AtomicI64::new(NO_SCHEMA),
            gate: RwLock::default(),
            group: Mutex::default(),
            open_generation: AtomicU64::new(1),
            commit_lock: CommitLock::default(),
            room: Mutex::default(),
            shares: Shares::default(),
            compactor: Mutex::default(),
            growth: Growth::default(),
            host_room: HostRoom::default(),
            is_growing: AtomicBool::new(false),
            is_shrinking: AtomicBool::new(false),
            dirty_bytes: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            claims: Claims::default(),
            unsettled: Mutex::default(),
            constrained: RwLock::default(),
            may_have_orphans: AtomicBool::new(false),
            has_foreign_change: AtomicBool::new(false),
            unlogged_rows: AtomicU64::new(0),
            is_checkpoint_wanted: AtomicBool::new(false),
            log_used: AtomicU64::new(0),
            next_inos: Mutex::default(),
            nameless: Nameless::default(),
            access_times: AccessTimes::default(),
            asides: Mutex::default(),
            rules: Rules::default(),
            refusals: Refusals::default(),
            is_closed: AtomicBool::new(false),
            background: Mutex::default(),
            stop_signal: (Mutex::new(false), Condvar::new()),
        }
    }

    /// Commits everything, reclaims what can be reclaimed, ends the session. Idempotent.
    pub fn close(&self) -> Result<()> {
        if self.is_closed.swap(true, Ordering::SeqCst) {
            return Ok(());
        }
        if self.private.is_some() {
            drop(self.roll_back());
            self.stop("the transactions of this engine have ended".into());
            return Ok(()); // The session is another engine's.
        }
        self.stop_background();
        let outcome = match self.session.options.is_extension {
            _ if self.is_readonly() => Ok(()), // READONLY-1
            true => self.reclaim_left(), // Nothing else is changed by it but through the client.
            false => {
                let closed = self.close_orderly();
                let held = self.end_held();
                closed.and(held).and_then(|()| self.report_unreported())
            }
        };
        {
            // Another thread's commit must end before the turn is abandoned.
            let _no_commit = self.commit_lock.lock();
            self.stop("the database was closed; open it again".into());
        }
        crate::write::buffers::drain();
        let ended = self.session.liveness.end(&self.catalog);
        outcome.and(ended)
    }

    fn close_orderly(&self) -> Result<()> {
        self.check_running()?;
        let wants_turn = self.patch_bytes() > 0
            || self.has_unsettled()
            || (self.lock_room().is_loaded() && self.wants_reclaim()?);
        if wants_turn && self.turn.try_begin(|| self.refresh_with_turn())? {
            self.turn.end();
        }
        if !self.turn.abandon_if_unheld() {
            // Alone: what others began is in the last commit, and nobody begins anything more.
            let alone = self.alone()?;
            self.place_unsettled()?;
            self.commit_now()?;
            self.apply_patches()?;
            self.reclaim_all()?;
            self.turn.abandon();
            drop(alone);
        }
        self.write_last_access_times();
        self.catalog
            .checkpoint(larder_catalog::CheckpointKind::Passive)?;
        Ok(())
    }

    /// Refuses changes of a database that cannot be written (`READONLY-1`).
    pub(crate) fn require_writable(&self) -> Result<()> {
        match &self.session.options.readonly {
            None => Ok(()),
            Some(readonly) => Err(Error::new(
                ErrorKind::ReadOnly,
                format!(
                    "{} is read-only for this process; make the directory and its files writable, \
                     or work on a copy",
                    readonly.database().path().display()
                ),
            )),
        }
    }

    /// Stops the engine for good: nothing more is changed or committed.
    pub(crate) fn stop(&self, why: String) {
        if self.stopped.set(why).is_ok() {
            if self.private.is_some() {
                // Others may have the turn next, and need the catalog's lock.
                if let Err(error) = self.catalog.roll_back() {
                    tracing::warn!("the end of a transaction: {error}");
                }
                self.forget_ino_ends();
            } else if !self.is_closed.load(Ordering::SeqCst) {
                let why = self.stopped.get().map_or("", String::as_str);
                self.session.liveness.stops(why);
                tracing::error!(
                    "the engine stopped: {}",
                    self.stopped.get().map_or("", String::as_str)
                );
            }
            self.turn.abandon();
        }
    }

    /// Whether [`Engine::close`] has begun.
    pub(crate) fn is_closing(&self) -> bool {
        self.is_closed.load(Ordering::SeqCst)
    }

    /// Joins the users of the turn; `self.turn.end()` must follow (or use [`Engine::edit`]).
    pub(crate) fn begin(&self) -> Result<()> {
        self.check_running()?;
        self.require_writable()?;
        self.announce_writer()?;
        self.queue_as_writer()?;
        self.begin_turn().inspect_err(|_| self.leave_writers())
    }

    /// Begins a change of content.
    pub(crate) fn edit(&self) -> Result<Edit<'_>> {
        self.begin()?;
        Ok(Edit { engine: self })
    }

    /// Begins something that must be alone: no change is under way, none begins, and no commit runs
    /// except the caller's.
    pub(crate) fn alone(&self) -> Result<Alone<'_>> {
        self.require_writable()?;
        self.announce_writer()?;
        self.alone_to_look()
    }

    /// The same for who changes nothing.
    pub(crate) fn alone_to_look(&self) -> Result<Alone<'_>> {
        self.check_running()?;
        self.queue_as_writer()?;
        self.turn
            .begin_exclusive(|| self.refresh_with_turn())
            .inspect_err(|_| self.leave_writers())?;
        Ok(Alone { engine: self })
    }

    pub(crate) fn enter_gate(&self) -> RwLockReadGuard<'_, ()> {
        self.gate.read().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn close_gate(&self) -> RwLockWriteGuard<'_, ()> {
        self.gate.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens the segments that the catalog names and that are not open yet; lets the others learn
    /// how long another session has made them. With the turn that is the truth.
    pub(crate) fn open_segments(&self) -> Result<()> {
        if self.look_at_segments()? {
            // Blocks are gone: the free set is read anew before it is used (ROOM-1).
            self.lock_room().forget();
        }
        Ok(())
    }

    /// Bytes that content may take at most.
    pub(crate) fn capacity_blocks(&self) -> Option<u64> {
        (self.session.info.capacity_bytes > 0)
            .then_some(self.session.info.capacity_bytes / BLOCK_BYTES)
    }
}

impl Deref for Engine {
    type Target = View;

    fn deref(&self) -> &View {
        &self.view
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        if let Err(error) = self.close() {
            tracing::error!("closing {}: {error}", self.session.path.display());
        }
    }
}

/// A change under way: a user of the turn.
pub(crate) struct Edit<'e> {
    pub engine: &'e Engine,
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        self.engine.turn.end();
    }
}

/// The turn, alone.
pub(crate) struct Alone<'e> {
    engine: &'e Engine,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.engine.turn.end_exclusive();
    }
}

pub(crate) fn open_directory(path: &Path) -> Result<DatabaseDir> {
    DatabaseDir::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Error::new(
            ErrorKind::NotFound,
            format!(
                "{} does not exist; check the path",
                path.join(larder_catalog::CATALOG_FILE).display()
            ),
        ),
        _ => io_error(format!("cannot open {}", path.display()), error),
    })
}

pub(crate) fn storage_of(directory: &DatabaseDir, options: &EngineOptions) -> Arc<dyn Storage> {
    options
        .storage
        .clone()
        .unwrap_or_else(|| Arc::new(FileStorage::new(directory.clone())))
}
