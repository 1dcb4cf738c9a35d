//! An open database: its state, its parts, its locks, and how operations begin and end.
//!
//! It has state of every room, as the room's own file says. What is done with that stands in the
//! files of the room, as methods of the engine's *parts*: references to it, one per role. Here is
//! only what has to do with all of them, in `engine/` opening, the background, and what others
//! commit.
//!
//! Engine has more than 20 fields: it owns the state of every room, and its parts borrow it.

mod background;
mod company;
mod invalidation;
pub(crate) mod open;
mod stores;
pub(crate) mod tuning;

use crate::commit::{CommitLock, Group, KeptOrphans, Refusals};
use crate::history::History;
pub(crate) use crate::host::lock;
use crate::parts::parts;
use crate::session::Session;
use crate::session::log_growth::LogGrowth;
use crate::session::writer_lock::WriterLock;
use crate::space::{Compactor, FreeSpace, Growth, HostSpace, Shares};
use crate::txn::State;
use crate::view::node::Node;
use crate::view::{ReadSet, Shown, View};
use crate::write::{AccessTimes, Asides, Claims, Nameless, Rules, UndoList};
use crate::{Error, ErrorKind, Result};
use larder_catalog::Catalog;
use larder_space::format::{CommitSeq, SegmentIndex, StoreId};
use std::collections::{BTreeSet, HashMap, HashSet};
use std::ops::Deref;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{
    Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
};
use std::thread::JoinHandle;

/// No schema has this version: SQLite counts from 0.
pub(crate) const NO_SCHEMA: i64 = i64::MIN;

/// A view of the present through which files are changed: of the session itself, or of a
/// transaction beside it. It can do all that a [`View`] can; what else it does is a method of one
/// of its parts, as `engine.content().write(…)`.
pub struct Engine {
    pub(crate) view: View,
    pub(crate) writer_lock: WriterLock,
    /// What an engine has that serves transactions beside another one.
    pub(crate) private: Option<Private>,
    /// How much history may go.
    pub(crate) history: History,
    /// Changes against the freeze of a group: what is inside the freeze barrier is in one group.
    pub(crate) freeze_barrier: RwLock<()>,
    /// The memory of the last operation's undo list, empty.
    pub(crate) undo_list: Mutex<UndoList>,
    pub(crate) group: Mutex<Group>,
    /// The group that takes changes now.
    pub(crate) open_generation: AtomicU64,
    /// Held while a group is committed, or a foreign commit is taken in.
    pub(crate) commit_lock: CommitLock,
    pub(crate) free_space: Mutex<FreeSpace>,
    pub(crate) shares: Shares,
    pub(crate) compactor: Mutex<Compactor>,
    pub(crate) growth: Growth,
    pub(crate) host_space: HostSpace,
    pub(crate) is_growing: AtomicBool,
    /// Segments are being shrunk: nothing is grown ahead.
    pub(crate) is_shrinking: AtomicBool,
    pub(crate) dirty_bytes: AtomicU64,
    /// Bytes of clean blocks that are kept in memory (`WHOLE-2`).
    pub(crate) kept_bytes: AtomicU64,
    pub(crate) claims: Claims,
    /// Delayed objects without a writer that are in no group (`WHOLE-3`).
    pub(crate) delayed: Mutex<Vec<Arc<Node>>>,
    /// The schema of `constrained`.
    pub(crate) schema_version: AtomicI64,
    /// Stores where something of the user's may refuse a row.
    pub(crate) constrained: RwLock<HashSet<StoreId>>,
    /// Something in the schema is the user's: rules may come.
    pub(crate) has_users_schema: AtomicBool,
    /// Another connection has committed, and the caches do not know yet.
    pub(crate) has_foreign_change: AtomicBool,
    /// There may be orphans in the catalog.
    pub(crate) may_have_orphans: AtomicBool,
    /// Rows of changes since the length of the catalog's log was looked at.
    pub(crate) unlogged_rows: AtomicU64,
    /// The background shall copy the log.
    pub(crate) is_checkpoint_wanted: AtomicBool,
    /// A leaf lock.
    pub(crate) log_growth: Mutex<LogGrowth>,
    pub(crate) next_inos: Mutex<HashMap<StoreId, u64>>,
    /// Who else knows inodes.
    pub(crate) nameless: Nameless,
    pub(crate) kept_orphans: Mutex<KeptOrphans>,
    pub(crate) access_times: AccessTimes,
    /// A leaf lock.
    pub(crate) asides: Mutex<Asides>,
    /// What the user's rules are asked behind.
    pub(crate) rules: Rules,
    /// What the user's rules refused after it was answered.
    pub(crate) refusals: Refusals,
    pub(crate) is_closed: AtomicBool,
    pub(crate) background: Mutex<Option<JoinHandle<()>>>,
    pub(crate) wishes: (Mutex<Wishes>, Condvar),
}

/// What the background does at once.
#[derive(Debug, Default)]
pub(crate) struct Wishes {
    pub stop: bool,
    pub commit: bool,
}

/// What a private engine has beside the parts of every engine.
pub(crate) struct Private {
    pub(crate) host: Arc<Engine>,
    pub(crate) state: Mutex<State>,
    /// Segments that were written to and not flushed (`PRIVATE-2`).
    pub(crate) written: Mutex<BTreeSet<SegmentIndex>>,
    /// Blocks that the transaction has logged (`log_inlined`).
    pub(crate) logged_blocks: AtomicU64,
}

impl Engine {
    /// An engine of these parts that knows nothing yet.
    pub(crate) fn assemble(
        session: Arc<Session>,
        catalog: Catalog,
        (writer_lock, seq): (WriterLock, CommitSeq),
        private: Option<Private>,
    ) -> Engine {
        crate::view::buffers::allow(session.dirty_bytes_max);
        let moment = match private {
            None => Shown::Present,
            Some(_) => Shown::Snapshot(ReadSet::default()),
        };
        Engine {
            writer_lock,
            history: History::new(&session.info),
            view: View::new(session, catalog, moment, seq),
            private,
            schema_version: AtomicI64::new(NO_SCHEMA),
            freeze_barrier: RwLock::default(),
            undo_list: Mutex::default(),
            group: Mutex::default(),
            open_generation: AtomicU64::new(1),
            commit_lock: CommitLock::default(),
            free_space: Mutex::default(),
            shares: Shares::default(),
            compactor: Mutex::default(),
            growth: Growth::default(),
            host_space: HostSpace::default(),
            is_growing: AtomicBool::new(false),
            is_shrinking: AtomicBool::new(false),
            dirty_bytes: AtomicU64::new(0),
            kept_bytes: AtomicU64::new(0),
            claims: Claims::default(),
            delayed: Mutex::default(),
            constrained: RwLock::default(),
            has_users_schema: AtomicBool::new(false),
            may_have_orphans: AtomicBool::new(false),
            has_foreign_change: AtomicBool::new(false),
            unlogged_rows: AtomicU64::new(0),
            is_checkpoint_wanted: AtomicBool::new(false),
            log_growth: Mutex::default(),
            next_inos: Mutex::default(),
            nameless: Nameless::default(),
            kept_orphans: Mutex::default(),
            access_times: AccessTimes::default(),
            asides: Mutex::default(),
            rules: Rules::default(),
            refusals: Refusals::default(),
            is_closed: AtomicBool::new(false),
            background: Mutex::default(),
            wishes: Default::default(),
        }
    }

    /// Refuses changes of a database that cannot be written (`READONLY-1`).
    pub(crate) fn require_writable(&self) -> Result<()> {
        match &self.session.options.readonly {
            None => Ok(()),
            Some(readonly) => Err(Error::new(
                ErrorKind::ReadOnly,
                readonly.why_nothing_is_changed(),
            )),
        }
    }

    /// Stops the engine for good: nothing more is changed or committed.
    pub(crate) fn stop(&self, why: String) {
        if self.stopped.set(why).is_ok() {
            if self.private.is_some() {
                // Others may have the writer lock next, and need the catalog's lock.
                if let Err(error) = self.catalog.roll_back() {
                    tracing::warn!("the end of a transaction: {error}");
                }
                self.workspace().forget_ino_ends();
            } else if !self.is_closed.load(Ordering::SeqCst) {
                let why = self.stopped.get().map_or("", String::as_str);
                self.session.liveness.stops(why);
                tracing::error!(
                    "the engine stopped: {}",
                    self.stopped.get().map_or("", String::as_str)
                );
            }
            self.writer_lock.abandon();
        }
    }

    /// Joins the users of the writer lock; `self.writer_lock.end()` must follow (or use
    /// [`Engine::edit`]).
    pub(crate) fn begin(&self) -> Result<()> {
        self.check_running()?;
        self.require_writable()?;
        self.session.announce_writer()?;
        self.short_transaction().queue_as_writer()?;
        self.short_transaction()
            .begin_writing()
            .inspect_err(|_| self.short_transaction().leave_writers())
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
        self.session.announce_writer()?;
        self.alone_to_look()
    }

    /// The same for who changes nothing.
    pub(crate) fn alone_to_look(&self) -> Result<Alone<'_>> {
        self.check_running()?;
        self.short_transaction().queue_as_writer()?;
        self.writer_lock
            .begin_exclusive(|| self.sessions().refresh_locked())
            .inspect_err(|_| self.short_transaction().leave_writers())?;
        Ok(Alone { engine: self })
    }

    pub(crate) fn enter_barrier(&self) -> RwLockReadGuard<'_, ()> {
        self.freeze_barrier
            .read()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn close_barrier(&self) -> RwLockWriteGuard<'_, ()> {
        self.freeze_barrier
            .write()
            .unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn free_space(&self) -> MutexGuard<'_, FreeSpace> {
        lock(&self.free_space)
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

parts! { Engine engine:
    /// Changes of content, as a whole or in blocks.
    pub content EngineContent
    /// Ranges of content that are inserted, deleted and moved; content that is a list of pieces.
    pub fragments EngineFragments
    /// Content in memory: who may take it, and when an object is complete enough to be placed.
    pub(crate) delayed_allocation EngineDelayedAllocation
    /// Changes of names and attributes, and of stores.
    pub namespace EngineNamespace
    /// Inodes without a name, until nobody has them open.
    pub orphans EngineOrphans
    /// When files were read.
    pub access_times EngineAccessTimes
    /// What the user's rules accept.
    pub(crate) rules EngineRules
    /// The group commit, and how long the catalog's log becomes by it.
    pub commits EngineCommits
    /// Where a commit places content, and writing it.
    pub(crate) placement EnginePlacement
    /// Small overwrites in place, and the pre-images that are kept of what they overwrite.
    pub(crate) redo EngineRedo
    /// What the user's rules refuse in a commit, and keeping it until somebody decides.
    pub refusals EngineRefusals
    /// Free space, reservations of it, and what the host has left.
    pub(crate) space EngineSpace
    /// Segments as they grow and shrink.
    pub segments EngineSegments
    /// Moves of content that join fragments and holes.
    pub compaction EngineCompaction
    /// Blocks of several objects.
    pub sharing EngineSharing
    /// What is kept of the past: of inodes, of tables, seals, and the feed of changes.
    pub history EngineHistory
    /// Moments of the past, and snapshots.
    pub past EnginePast
    /// How long history is kept, and giving it up on somebody's word.
    pub retention EngineRetention
    /// How much of the history may go, and what goes early when space is short.
    pub expiry EngineExpiry
    /// The short transaction that the engine serves.
    pub short_transaction EngineShortTransaction
    /// The workspace of a long transaction.
    pub(crate) workspace EngineWorkspace
    /// SQL of users, in a transaction and as of a moment.
    pub sql EngineSql
    /// The connection of another program.
    pub client EngineClient
    /// What a database takes, and whether it is sound: df, frag, stats, check.
    pub report EngineReport
    /// What runs beside the callers.
    pub(crate) background EngineBackground
    /// Other sessions: that they are there, what they pin, and what they commit.
    pub sessions EngineSessions
}

/// A change under way: a user of the writer lock.
pub(crate) struct Edit<'e> {
    pub engine: &'e Engine,
}

impl Drop for Edit<'_> {
    fn drop(&mut self) {
        self.engine.writer_lock.end();
    }
}

/// The writer lock, alone.
pub(crate) struct Alone<'e> {
    engine: &'e Engine,
}

impl Drop for Alone<'_> {
    fn drop(&mut self) {
        self.engine.writer_lock.end_exclusive();
    }
}
