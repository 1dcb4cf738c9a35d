//! Transactions over files and rows: a second engine in the same process, whose commits are steps
//! of one SQLite transaction.
//!
//! # Words
//! A *private* engine stands beside the engine of the session, its *host*, and serves one
//! transaction after the other. It has a catalog of its own (`larder_catalog`, module
//! `transaction`), memory of its own and its own place in the queue for the writer lock, but no
//! background and no session: what it reads is pinned in the host's. All rules about files are
//! those of any engine; only here a group commit is a *step*.
//!
//! ```text
//!         first operation          first change: the writer lock, SQLite's write lock
//!  idle ──────────────────▶ reading ─────────────────────────▶ writing ──commit──▶ idle
//!                             │ the snapshot is old, and what         │
//!                             │ was read has changed: conflict        └─roll_back─▶ idle
//!                             └────────────────────────────▶ idle
//! ```
//!
//! # Invariants
//! * `PRIVATE-1` Between its first change and its end a transaction has the writer lock and the
//!   catalog's write lock: nobody else commits, so what it saw is the present when it commits.
//! * `PRIVATE-2` What a transaction wrote to segments is flushed before its COMMIT (`COMMIT-2`).
//! * `PRIVATE-3` Nothing that a transaction rolled back is left in memory: nodes, names, stores,
//!   reservations, the free set and inode numbers are read anew.
//! * `PRIVATE-4` A private engine reclaims nothing and applies no redo row: what it sees is not
//!   committed.
//! * `PRIVATE-5` A transaction that continues on a newer snapshot than it began with has read
//!   nothing that differs in it.
//!
//! # Concurrency
//! One operation at a time: the caller sees to that. Lock order: `Writers`, then the writer lock;
//! `state` before everything of the host. Who begins with the writer lock waits in `Writers` before
//! it chooses its engine, and the engine is given back before the next one is called: so that one
//! gets the engine that knows the present already.
//!
//! # Recovery
//! SQLite's: a transaction that was not committed is not there. Blocks that it wrote are named by
//! no row.

mod conflicts;
mod ending;

use ending::refuse_while_staging;
pub use ending::{Ended, Staging, WriterTicket, enter_writers};

use crate::commit::Group;
use crate::engine::{Engine, EngineShortTransaction, NO_SCHEMA, Private, lock};
use crate::session::writer_lock::WriterLock;
use crate::space::FreeSpace;
use crate::txn::{Savepoint, Stage, State};
use crate::view::node::Content;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{Catalog, LogFlush};
use larder_space::format::{Ino, SegmentIndex, StoreId};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

impl Private {
    /// How much more of `blocks_max` the transaction may log: nothing when it has to flush a
    /// segment anyway.
    pub(crate) fn blocks_to_log(&self, blocks_max: u64) -> u64 {
        match lock(&self.written).is_empty() {
            true => blocks_max.saturating_sub(self.logged_blocks.load(Ordering::Relaxed)),
            false => 0,
        }
    }

    /// It has logged so many more.
    pub(crate) fn note_logged(&self, blocks: u64) {
        self.logged_blocks.fetch_add(blocks, Ordering::Relaxed);
    }
}

impl Private {
    /// A client's transaction is going to be changed: what was read before counts no more.
    pub(crate) fn begin_to_change(&self) {
        let mut state = lock(&self.state);
        state.stage = Stage::Writing;
        state.is_known = false;
    }

    /// Nothing is known of the client's moment.
    pub(crate) fn forget_known(&self) {
        lock(&self.state).is_known = false;
        lock(&self.written).clear();
    }

    /// A client's transaction has ended; with it what it pinned, if it `unpins`.
    pub(crate) fn end_change(&self, unpins: bool) {
        let mut state = lock(&self.state);
        state.stage = Stage::Idle;
        state.is_known = false;
        self.logged_blocks.store(0, Ordering::Relaxed);
        if std::mem::take(&mut state.is_writer) {
            self.host.session.writers.leave();
        }
        if let Some(pin) = state.pin.take_if(|_| unpins) {
            self.host.session.readers.give_back(pin);
        }
    }
}

/// An engine for transactions beside `host`. Cost: opens the catalog and the segments, about 2
/// ms; it serves any number of transactions. In an SQL session (`is_shell`) the user may change
/// the connection.
pub fn open_private(host: &Arc<Engine>, is_shell: bool) -> Result<Arc<Engine>> {
    host.check_running()?;
    let catalog_options = host.session.options.for_catalog();
    let catalog = Catalog::open_private_in(&host.session.directory, &catalog_options, is_shell)?;
    catalog.foreign()?.announce_changes(); // FOREIGN-2
    let nudged = Arc::clone(host);
    let nudge = Box::new(move || match nudged.writer_lock.is_held() {
        true => nudged.commits().hand_over(),
        false => Ok(()),
    });
    let writer_lock = host
        .writer_lock
        .open_beside(&host.session.directory, nudge)?;
    Ok(assemble_private(host, catalog, writer_lock))
}

/// An engine of these parts beside `host`.
pub(crate) fn assemble_private(
    host: &Arc<Engine>,
    catalog: Catalog,
    writer_lock: WriterLock,
) -> Arc<Engine> {
    let private = Private {
        host: Arc::clone(host),
        state: Mutex::default(),
        written: Mutex::default(),
        logged_blocks: AtomicU64::new(0),
    };
    let session = Arc::clone(&host.session);
    let of = (writer_lock, host.known_seq());
    Arc::new(Engine::assemble(session, catalog, of, Some(private)))
}

impl<'e> EngineShortTransaction<'e> {
    pub(crate) fn private(&self) -> Result<&'e Private> {
        self.engine.private.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "this engine serves no transactions",
            )
        })
    }

    // ---- begin ------------------------------------------------------------------------------

    /// Takes the snapshot of the transaction, unless it has one: all that ended before in this
    /// process is in it. 5 µs when nobody has committed since this engine's last transaction.
    pub fn snapshot(&self) -> Result<()> {
        let private = self.private()?;
        let mut state = lock(&private.state);
        if state.stage != Stage::Idle {
            return Ok(());
        }
        require_snapshot(&state)?;
        self.check_running()?;
        private.host.check_running()?;
        private.host.commits().sync_own()?;
        self.begin_at_present(private, &mut state, Stage::Reading)
            .inspect_err(|_| self.forget_stage(private, &mut state))
    }

    /// Takes the writer lock and the write lock now, so that no conflict can follow.
    pub fn lock_writer(&self) -> Result<()> {
        self.edit().map(drop)
    }

    fn begin_at_present(&self, private: &Private, state: &mut State, stage: Stage) -> Result<()> {
        // The snapshot is at least as new, and all of it is known below.
        let generation = self.catalog.foreign()?.generation();
        let is_new = self.open_at_present(private, state, stage)?;
        self.cache.begin_time();
        if is_new || !state.is_known {
            state.is_known = false;
            self.learn_present()?;
            state.is_known = true;
        }
        self.foreign.note_generation(generation);
        Ok(())
    }

    /// Says whether anybody has committed since the last time.
    fn open_at_present(&self, private: &Private, state: &mut State, stage: Stage) -> Result<bool> {
        let host = &private.host;
        // Before the snapshot: what it can reach is pinned from here on (SESSION-2).
        let pin = host.session.readers.take(&host.known_seq);
        if let Some(old) = state.pin.replace(pin) {
            host.session.readers.give_back(old);
        }
        let is_new = match stage {
            Stage::Writing => self.catalog.transaction()?.begin_immediate()?,
            Stage::Reading | Stage::Idle => self.catalog.transaction()?.begin_snapshot()?,
        };
        state.stage = stage;
        Ok(is_new)
    }

    /// What is in memory is of another moment: learns what the catalog says now.
    pub(crate) fn learn_present(&self) -> Result<()> {
        self.rules().find_constraints()?;
        let seq = self.catalog.tables().commit_seq()?;
        self.segments().open_segments()?;
        self.redo().refresh_redo(seq)?;
        self.maps().find_pieces()?;
        let _barrier = self.close_barrier();
        let _names = self.write_names();
        lock(&self.next_inos).clear();
        self.sessions().invalidate(true);
        self.known_seq.store(seq.0, Ordering::SeqCst);
        Ok(())
    }

    /// Takes a place in the queue of those who change something, the first time.
    /// [`ErrorKind::Busy`] while content is written beside the transaction.
    pub(crate) fn queue_as_writer(&self) -> Result<()> {
        let Some(private) = &self.private else {
            return Ok(());
        };
        let mut state = lock(&private.state);
        refuse_while_staging(&state)?;
        if state.is_writer {
            return Ok(());
        }
        if !private.host.session.writers.try_enter() {
            self.leave_snapshot(&mut state)?;
            drop(state);
            private.host.session.writers.enter();
            state = lock(&private.state);
        }
        state.is_writer = true;
        Ok(())
    }

    /// Begins to use the writer lock, and waits for other sessions without the snapshot.
    pub(crate) fn begin_writing(&self) -> Result<()> {
        if let Some(private) = &self.private {
            if self
                .writer_lock
                .try_begin(|| self.sessions().refresh_locked())?
            {
                return Ok(());
            }
            self.leave_snapshot(&mut lock(&private.state))?;
        }
        self.writer_lock.begin(|| self.sessions().refresh_locked())
    }

    /// Gives the place back, unless the transaction has changed something.
    pub(crate) fn leave_writers(&self) {
        let Some(private) = &self.private else { return };
        let mut state = lock(&private.state);
        if state.stage != Stage::Writing && std::mem::take(&mut state.is_writer) {
            private.host.session.writers.leave();
        }
        // The writer lock was not to be had: it goes on reading, if nothing differs.
        if state.left.is_some()
            && let Err(error) = self.renew(private, &mut state, Stage::Reading)
        {
            tracing::debug!("a transaction that waited in vain: {error}");
            state.is_lost = true;
            self.forget_stage(private, &mut state);
        }
    }

    /// Runs when a transaction has just got the writer lock: its snapshot must be the present
    /// (`PRIVATE-1`).
    pub(crate) fn begin_to_write(&self, private: &Private) -> Result<()> {
        let mut state = lock(&private.state);
        require_snapshot(&state)?;
        let has_read = state.stage == Stage::Reading || state.left.is_some();
        let begun = match state.stage {
            Stage::Idle if state.left.is_some() => self.renew(private, &mut state, Stage::Writing),
            Stage::Idle => self.begin_at_present(private, &mut state, Stage::Writing),
            Stage::Reading => match self.catalog.transaction()?.take_write_lock() {
                Ok(true) => Ok(()),
                Ok(false) => self.renew(private, &mut state, Stage::Writing),
                // It can go on reading.
                Err(error) => return Err(error.into()),
            },
            Stage::Writing => Ok(()),
        };
        let ready = begun.and_then(|()| {
            state.stage = Stage::Writing;
            state.held_since = Some(Instant::now());
            lock(&self.group).has_others = true;
            self.history().settle_rows();
            self.space().sync_space()
        });
        ready.inspect_err(|_| {
            // PRIVATE-5: a later operation must not go on with another snapshot.
            state.is_lost = has_read;
            self.forget_stage(private, &mut state);
        })
    }

    fn forget_stage(&self, private: &Private, state: &mut State) {
        if let Err(error) = self.catalog.roll_back() {
            tracing::warn!("the end of a transaction: {error}");
        }
        state.stage = Stage::Idle;
        state.held_since = None;
        state.is_known = false;
        if let Some(pin) = state.pin.take() {
            private.host.session.readers.give_back(pin);
        }
    }

    // ---- in a transaction -------------------------------------------------------------------

    /// Hands what is in memory to the transaction of the catalog, so that SQL sees it. No sync.
    pub(crate) fn flush_to_catalog(&self) -> Result<()> {
        match lock(&self.private()?.state).stage {
            Stage::Writing => {}
            _ => return Ok(()),
        }
        self.commits().commit_now()
    }

    /// Rows were changed beside the transactions, on the connection of this engine, which the
    /// catalog does not tell it of.
    pub(crate) fn note_changed_beside(&self) -> Result<()> {
        let mut state = lock(&self.private()?.state);
        debug_assert_eq!(state.stage, Stage::Idle, "CATALOG-9");
        state.is_known = false;
        Ok(())
    }

    /// Sets a savepoint.
    pub fn set_savepoint(&self) -> Result<Savepoint> {
        let private = self.private()?;
        self.snapshot()?;
        self.flush_to_catalog()?;
        let mut state = lock(&private.state);
        self.catalog
            .transaction()?
            .set_savepoint(state.savepoints.len())?;
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let savepoint = Savepoint(COUNT.fetch_add(1, Ordering::Relaxed));
        state.savepoints.push(savepoint);
        Ok(savepoint)
    }

    /// Takes back everything since the savepoint, which stays; later ones go.
    pub fn roll_back_to(&self, savepoint: Savepoint) -> Result<()> {
        let private = self.private()?;
        let is_writing = {
            let mut state = lock(&private.state);
            let at = find_savepoint(&state, savepoint)?;
            self.catalog.transaction()?.roll_back_to(at)?;
            state.savepoints.truncate(at + 1);
            state.stage == Stage::Writing
        };
        if !is_writing {
            return Ok(()); // Nothing was changed.
        }
        self.forget_memory();
        self.learn_present()?;
        self.space().sync_space()
    }

    /// Forgets the savepoint and later ones; what was done since stays.
    pub fn release_savepoint(&self, savepoint: Savepoint) -> Result<()> {
        let private = self.private()?;
        self.flush_to_catalog()?;
        let mut state = lock(&private.state);
        let at = find_savepoint(&state, savepoint)?;
        self.catalog.transaction()?.release_savepoint(at)?;
        state.savepoints.truncate(at);
        Ok(())
    }

    /// Takes the writer lock; then a file without a name that the session made, and has open, may
    /// get its first one in the transaction. [`ErrorKind::NotFound`] when it is no such file.
    pub fn expect_name(&self, store: StoreId, ino: Ino) -> Result<()> {
        let _edit = self.edit()?;
        let held = self.catalog.sessions().holders()?;
        let node = self.lookup().node(store, ino)?;
        let mut state = self.lock_node(&node)?;
        if state.row.nlink > 0 || !held.contains(&(store, ino, self.session.liveness.id)) {
            return Err(Error::new(
                ErrorKind::NotFound,
                "the file is none that waits for a name",
            ));
        }
        (state.is_anonymous, state.is_linkable) = (true, true);
        Ok(())
    }

    /// How long the transaction has had the writer lock; `None` without it.
    pub fn writer_lock_held_for(&self) -> Option<Duration> {
        let private = self.private.as_ref()?;
        let since = lock(&private.state).held_since;
        since.map(|since| since.elapsed())
    }

    /// Whether somebody else waits for the writer lock that the transaction has. A few µs.
    pub fn is_writer_lock_wanted(&self) -> bool {
        let private = self.private.as_ref();
        private.is_some_and(|private| private.host.session.writers.has_waiters())
            || self.writer_lock.is_wanted()
    }

    /// Whether the transaction has changed something, or has the writer lock in order to.
    pub fn is_writing(&self) -> bool {
        let private = self.private.as_ref();
        private.is_some_and(|private| lock(&private.state).stage == Stage::Writing)
    }

    /// Whether the transaction is not what its caller believes: SQLite has rolled it back, a step
    /// failed, or it has lost its snapshot.
    pub fn is_lost(&self) -> bool {
        let Some(private) = &self.private else {
            return false;
        };
        let (stage, is_lost) = {
            let state = lock(&private.state);
            (state.stage, state.is_lost)
        };
        is_lost
            || self.check_running().is_err()
            || (stage != Stage::Idle && !self.catalog.is_in_transaction())
    }

    /// A flush of segments that can wait until the transaction's commit (`PRIVATE-2`).
    pub(crate) fn flushes_later(&self, touched: &BTreeSet<SegmentIndex>) -> bool {
        match &self.private {
            None => false,
            Some(private) => {
                lock(&private.written).extend(touched);
                true
            }
        }
    }

    // ---- the end ----------------------------------------------------------------------------

    /// Commits; with [`Ended::finish`], durably, and then the host's memory is of this moment too.
    /// Any error leaves nothing of the transaction, but for [`ErrorKind::Stopped`], after which
    /// only reopening tells. The handles of the transaction are closed before. Cost: one flush of
    /// each segment that was written, one of the log, which several transactions may share.
    pub fn commit(&self) -> (Result<()>, Ended) {
        let private = match self.private() {
            Ok(private) => private,
            Err(error) => return (Err(error), Ended::new(None)),
        };
        let outcome = match self.is_writing() {
            true => self.commit_changes(private),
            false => Ok(private.host.session.flushes.newest_owed()),
        };
        let owed = match outcome {
            Ok(owed) => owed.map(|number| (Arc::clone(&private.host), number)),
            Err(error) => return (Err(error), self.end(private, true)),
        };
        if !self.is_writing() {
            let mut ended = self.end(private, true);
            ended.set_pending_flush(owed);
            return (Ok(()), ended);
        }
        private
            .host
            .has_foreign_change
            .store(true, Ordering::SeqCst);
        // What was retired waits for somebody who reclaims it.
        private.host.may_have_orphans.store(true, Ordering::SeqCst);
        let blocks = self.redo_rows.blocks.load(Ordering::SeqCst);
        private.host.redo().note_redo_at(self.known_seq(), blocks);
        let mut ended = self.end(private, false);
        ended.has_changed(&private.host);
        ended.set_pending_flush(owed);
        (Ok(()), ended)
    }

    /// The commit that is still owed its flush, if there is one.
    fn commit_changes(&self, private: &Private) -> Result<Option<u64>> {
        self.check_running()?;
        private.host.check_running()?;
        debug_assert!(self.writer_lock.is_held(), "PRIVATE-1");
        self.delayed_allocation().place_delayed()?;
        self.commits().commit_now()?;
        debug_assert!(lock(&self.group).is_empty(), "COMMIT-1");
        self.expiry().note_short_pool(); // TIME-5
        self.flush_written()?;
        let may_share = self.commits().may_share_flush(private)?;
        let owing = may_share.then(|| private.host.session.flushes.begin()); // FLUSH-5
        let flush = self.history().commit_sql(may_share)?;
        Ok(match owing {
            Some(owing) => owing.end(flush == LogFlush::Owed),
            // Nothing of its own; and what it may have seen is not durable because of it
            // (`FLUSH-1`).
            None if flush == LogFlush::None => private.host.session.flushes.newest_owed(),
            None => None,
        })
    }

    pub(crate) fn flush_written(&self) -> Result<()> {
        let written = std::mem::take(&mut *lock(&self.private()?.written));
        for segment in written {
            self.segment(segment)?.flush()?; // PRIVATE-2
        }
        Ok(())
    }

    /// Ends the transaction; nothing of it stays. Idempotent.
    pub fn roll_back(&self) -> Ended {
        match &self.private {
            Some(private) => self.end(private, true),
            None => Ended::new(None),
        }
    }

    fn end(&self, private: &Private, is_undone: bool) -> Ended {
        let mut state = lock(&private.state);
        let was_writing = state.stage == Stage::Writing;
        if let Err(error) = self.catalog.roll_back() {
            tracing::warn!("the end of a transaction: {error}");
        }
        state.stage = Stage::Idle;
        state.held_since = None;
        state.is_lost = false;
        state.told.clear();
        if let Some(read) = self.read_set() {
            read.clear();
        }
        state.savepoints.clear();
        state.staging_count = Arc::default();
        if is_undone && was_writing {
            self.forget_memory();
            state.is_known = false;
        }
        lock(&private.written).clear();
        private.logged_blocks.store(0, Ordering::Relaxed);
        self.commits().unlock_writer();
        if self.writer_lock.is_held() {
            // Nothing would give it back: an idle engine would keep everybody waiting.
            self.stop(
                "a transaction has ended with something of it in memory, which is a defect".into(),
            );
            debug_assert!(false, "WRITER-1");
        }
        if let Some(pin) = state.pin.take() {
            private.host.session.readers.give_back(pin);
        }
        self.sessions().shrink_cache(); // CACHE-2: there is no background.
        Ended::new(std::mem::take(&mut state.is_writer).then_some(&private.host))
    }

    /// Drops everything that is not committed, and what was read beside it (`PRIVATE-3`).
    pub(crate) fn forget_memory(&self) {
        let _barrier = self.close_barrier();
        let _names = self.write_names();
        *lock(&self.group) = Group {
            has_others: true,
            ..Group::default()
        };
        self.cache.retain(|node| {
            self.cache.forget_names(node);
            let is_used = Arc::strong_count(node) > 1;
            // Its number may be given out again, to another node.
            let is_there = is_used
                && matches!(
                    self.catalog.tables().inode(node.store, node.ino),
                    Ok(Some(_))
                );
            if is_used {
                // A handle has it: it becomes what the catalog says.
                let mut state = node.lock();
                state.content = Content::default();
                state.mask = larder_catalog::AttrMask::default();
                state.entries.clear();
                state.xattrs_dirty.clear();
                (state.parent, state.target, state.xattrs) = (None, None, None);
                (state.is_fresh, state.is_deleted) = (false, !is_there);
                (state.in_group, state.is_committing) = (false, false);
                state.is_stale = true;
                self.cache.count_map(node, &state);
            }
            is_there
        });
        self.dirty_bytes.store(0, Ordering::SeqCst);
        self.kept_bytes.store(0, Ordering::SeqCst);
        lock(&self.delayed).clear();
        lock(&self.next_inos).clear();
        *self.free_space() = FreeSpace::default();
        self.sharing().forget_shares();
        self.schema_version.store(NO_SCHEMA, Ordering::SeqCst);
        self.catalog.stores().forget();
        self.workspace().forget_ino_ends();
    }
}

fn require_snapshot(state: &State) -> Result<()> {
    match state.is_lost {
        false => Ok(()),
        true => Err(Error::new(
            ErrorKind::InvalidInput,
            "the transaction has lost its snapshot; begin another one",
        )),
    }
}

fn find_savepoint(state: &State, savepoint: Savepoint) -> Result<usize> {
    let at = state.savepoints.iter().position(|&one| one == savepoint);
    at.ok_or_else(|| {
        Error::new(
            ErrorKind::InvalidInput,
            "the savepoint is gone: it was released, or an earlier one was gone back to",
        )
    })
}
