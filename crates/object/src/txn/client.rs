//! An engine that reads and writes in the transactions of another program's SQLite connection, the
//! *client* (`larder_catalog`, module `client`).
//!
//! It is a private engine (`short`) whose transactions somebody else begins and ends. It keeps no
//! change in memory: each *change for the client* is committed to the client's transaction before
//! the call returns, and everything is read anew afterwards, since the client may go back to a
//! savepoint without a word.
//!
//! ```text
//!  idle ──pin──▶ may read ──lock_writer──▶ may change ──end──▶ idle
//! ```
//!
//! # Invariants
//! * `CLIENT-3` The client's transaction takes SQLite's write lock with the writer lock in hand, or
//!   content cannot be changed in it but by luck: who has the lock never waits for the writer lock,
//!   since who has the writer lock waits for the lock to commit.
//! * `CLIENT-4` What the client's snapshot can reach is pinned before it is taken, until its
//!   transaction ends (`SESSION-2`).
//! * `CLIENT-7` Who writes in a client's transaction can expire no history when it finds no room:
//!   so that is done before, with the writer lock in hand, while the transaction has read nothing:
//!   it would make its own snapshot old.

use crate::engine::{Engine, EngineClient, lock};
use crate::history::retention::horizon::{EXPIRY_DIVISOR, GROWN_BLOCKS_MIN};
use crate::session::writer_lock::WriterLock;
use crate::txn::short::assemble_private;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{CatalogOptions, ChangeSet, CheckpointKind, ClientHandle, ClientLocks};
use larder_space::format::CommitSeq;
use larder_space::format::limits::{BLOCK_BYTES, HELD_BACK_DIVISOR};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::ThreadId;
use std::time::Duration;

/// A statement waits for the writer lock as long as its connection waits for locks, but not less
/// than so: who has no busy timeout meets commits of other sessions all the same.
const WRITER_LOCK_WAIT_MIN: Duration = Duration::from_secs(5);

/// The clients of this process that have the writer lock of a database, each with the thread that
/// took it: that one does not give it back by waiting. A client is its engine's address.
static HOLDERS: Mutex<Vec<(PathBuf, ThreadId, usize)>> = Mutex::new(Vec::new());

/// [`ErrorKind::Busy`] if this thread has the writer lock by a client.
pub fn require_other_thread(database: &Path) -> Result<()> {
    let here = std::thread::current().id();
    let is_here = |(of, thread, _): &(PathBuf, ThreadId, usize)| of == database && *thread == here;
    match lock(&HOLDERS).iter().any(is_here) {
        false => Ok(()),
        true => Err(Error::new(
            ErrorKind::Busy,
            "another connection of this thread has the writer lock; COMMIT or ROLLBACK there",
        )),
    }
}

/// A client's transaction first reclaims, when one part in this of the segments waits for it.
const SHORT_DIVISOR: u64 = 8;
/// History keeps out of one part in this of a database with a capacity, where clients write; but of
/// half of what does not live where that is less.
const CLIENT_POOL_DIVISOR: u64 = 4;

/// Blocks, as one who writes in a client's transaction finds them.
struct ClientSpace {
    capacity: Option<u64>,
    /// In segments.
    total: u64,
    /// Live and retired.
    used: u64,
    retired: u64,
}

impl ClientSpace {
    /// Retired blocks that have to go before `wanted` are written, when so many were refused
    /// before.
    fn missing(&self, wanted: u64, refused: u64) -> u64 {
        let live = self.used.saturating_sub(self.retired);
        let missing = match self.capacity {
            Some(max) => {
                let pool = (max / CLIENT_POOL_DIVISOR).min(max.saturating_sub(live) / 2);
                pool.max(wanted + max / HELD_BACK_DIVISOR)
                    .saturating_sub(max.saturating_sub(self.used))
            }
            None => self.retired.saturating_sub(live + GROWN_BLOCKS_MIN), // TIME-7
        };
        missing.max(refused).min(self.retired)
    }
}

/// An engine on the connection of a client, beside `host`, which is the session of this
/// process.
pub fn open_client(host: &Arc<Engine>, client: ClientHandle) -> Result<Arc<Engine>> {
    host.check_running()?;
    let options = CatalogOptions {
        is_extension: true,
        ..CatalogOptions::default()
    };
    let catalog = larder_catalog::open_client(&host.session.directory, &options, client)?.into();
    let writer_lock = WriterLock::open_in(&host.session.directory)?;
    Ok(assemble_private(host, catalog, writer_lock))
}

impl EngineClient<'_> {
    /// Pins what the client can reach from here on (`CLIENT-4`).
    pub fn pin(&self) -> Result<()> {
        let private = self.short_transaction().private()?;
        let mut state = lock(&private.state);
        let host = &private.host;
        state
            .pin
            .get_or_insert_with(|| host.session.readers.take(&host.known_seq));
        Ok(())
    }

    /// Pins nothing any more: the client has read nothing yet.
    pub fn unpin(&self) {
        if let Some(private) = &self.private
            && let Some(pin) = lock(&private.state).pin.take()
        {
            private.host.session.readers.give_back(pin);
        }
    }

    /// Runs `work`, which reads. All of it sees one moment, that of the client's transaction if
    /// there is one. `is_new`: a statement has begun since the last time. Cost: a few µs, 50 µs in
    /// a new moment.
    pub fn in_moment<T>(&self, is_new: bool, work: impl FnOnce() -> Result<T>) -> Result<T> {
        self.pin()?;
        self.catalog.client()?.in_one_moment(|| {
            self.learn_moment(is_new)?;
            work()
        })?
    }

    fn learn_moment(&self, is_new: bool) -> Result<()> {
        let private = self.short_transaction().private()?;
        self.check_running()?;
        private.host.check_running()?;
        let is_other = self.catalog.foreign()?.foreign_change()?;
        let mut state = lock(&private.state);
        if state.is_known && !is_new && !is_other {
            return Ok(());
        }
        state.is_known = false;
        self.short_transaction().learn_present()?;
        if self.known_seq().0 < private.host.session.liveness.row_pin.load(Ordering::SeqCst) {
            // CLIENT-4
            let why = "the transaction began too long ago for the extension to know what it \
                reads; end it and begin another one";
            return Err(Error::new(ErrorKind::Conflict, why));
        }
        state.is_known = true;
        Ok(())
    }

    /// Takes the writer lock for the client's transaction, which has these `locks`; `false` when
    /// somebody else has it and it must not wait: who has SQLite's write lock does not
    /// (`CLIENT-3`).
    pub fn lock_writer(&self, locks: ClientLocks) -> Result<bool> {
        self.check_running()?;
        self.short_transaction().private()?.host.check_running()?;
        if self.writer_lock.is_held() {
            return Ok(true);
        }
        let is_taken = match locks != ClientLocks::Write {
            true => {
                require_other_thread(&self.session.path)?;
                let wait_max = self
                    .catalog
                    .client()?
                    .client_busy_timeout()?
                    .max(WRITER_LOCK_WAIT_MIN);
                self.writer_lock
                    .begin_within(wait_max, || Ok(()))
                    .map(|()| true)?
            }
            false => self.writer_lock.try_begin(|| Ok(()))?,
        };
        if is_taken {
            self.writer_lock.end();
            let thread = std::thread::current().id();
            lock(&HOLDERS).push((self.session.path.clone(), thread, self.address()));
        }
        if is_taken
            && locks == ClientLocks::None // CLIENT-7
            && let host = &self.short_transaction().private()?.host
            && let Err(error) = host.client().reserve(0)
        {
            tracing::warn!("space is not given back: {error}");
        }
        Ok(is_taken)
    }

    /// Before the client's transaction takes its first lock, with the writer lock in hand: makes
    /// the room for a file of so many bytes where history is in its way. 10 µs when it is not.
    pub fn prepare_write(&self, len_bytes: u64) {
        let made = self.short_transaction().private().and_then(|private| {
            private
                .host
                .client()
                .reserve(len_bytes.div_ceil(BLOCK_BYTES))
        });
        if let Err(error) = made {
            tracing::warn!("space is not given back: {error}");
        }
    }

    /// Takes the write lock in the client's transaction, and part in its end. Without one, this is
    /// one, with its commit. [`ErrorKind::Conflict`] when what it has read is not the present.
    pub fn enlist(&self) -> Result<()> {
        match self.catalog.client()?.enlist()? {
            true => Ok(()),
            false => {
                let why = "others have changed the database since this transaction began to read; \
                    ROLLBACK, and begin with BEGIN IMMEDIATE";
                Err(Error::new(ErrorKind::Conflict, why))
            }
        }
    }

    /// Runs `work`, which changes files, as part of the client's transaction. An error may leave
    /// part of it there: the caller refuses the commit.
    pub fn change(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let private = self.short_transaction().private()?;
        self.check_running()?;
        if !self.writer_lock.is_held() {
            // CLIENT-3
            return Err(Error::new(
                ErrorKind::Busy,
                "the writer lock was lost; ROLLBACK, and try again",
            ));
        }
        private.begin_to_change();
        let outcome = self.change_and_commit(work);
        self.short_transaction().forget_memory();
        private.forget_known();
        outcome
    }

    fn change_and_commit(&self, work: impl FnOnce() -> Result<()>) -> Result<()> {
        lock(&self.group).has_others = true;
        self.short_transaction().learn_present()?;
        self.space().sync_space()?;
        work()?;
        self.delayed_allocation().place_delayed()?;
        self.commits().commit_now()?;
        self.short_transaction().flush_written()
    }

    fn address(&self) -> usize {
        std::ptr::from_ref(self.engine).addr()
    }

    /// Gives the writer lock back that was taken for nothing, in a transaction that goes on.
    pub fn unlock_writer(&self) {
        self.commits().unlock_writer();
        if !self.writer_lock.is_held() {
            lock(&HOLDERS).retain(|(.., client)| *client != self.address());
        }
    }

    /// Before the commit of the client's transaction: all that it has changed is of one moment.
    pub fn note_moment(&self) -> Result<()> {
        Ok(self.catalog.client()?.note_client_moment()?)
    }

    /// The client's transaction has ended, if it had one. `is_reading`: another statement of it
    /// still reads.
    pub fn end(&self, is_reading: bool) {
        if let Some(private) = &self.private {
            self.catalog.forget_client_moment();
            self.unlock_writer();
            private.end_change(!is_reading);
        }
    }

    // ---- space that only clients use -----------------------------------------------------------

    /// Of the session beside clients: reclaims what waits for it, unless somebody else has the
    /// writer lock or SQLite's lock, who then may do it. One commit, if there is anything.
    pub(crate) fn reclaim_left(&self) -> Result<()> {
        let is_any = self
            .catalog
            .space()
            .has_retired(CommitSeq(i64::MAX as u64))?;
        if !is_any || self.session.workspace.is_some() || !self.writer_lock.try_begin(|| Ok(()))? {
            return Ok(());
        }
        let done = self.reclaim_locked();
        self.writer_lock.end();
        self.writer_lock.release(|| true);
        done
    }

    /// The same with the writer lock in a client's hand, whose transaction has no lock yet: it is
    /// going to want so many blocks. History that is in their way is given up (`CLIENT-7`), and
    /// what waits is reclaimed when it is much.
    fn reserve(&self, wanted_blocks: u64) -> Result<()> {
        if self.session.workspace.is_some() {
            return Ok(());
        }
        let ags = self.catalog.space().ags_changed_since(CommitSeq(0))?;
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        let space = ClientSpace {
            capacity: self.segments().capacity_blocks(),
            total: segments.iter().map(|segment| segment.block_count()).sum(),
            used: ags.iter().map(|row| row.used_blocks).sum(),
            retired: ags.iter().map(|row| row.retired_blocks).sum(),
        };
        drop(segments);
        let missing = space.missing(wanted_blocks, self.expiry().take_missed());
        if missing > 0 {
            self.expiry()
                .expire_history(missing.max(space.total / EXPIRY_DIVISOR))?;
        }
        match missing > 0 || space.retired * SHORT_DIVISOR > space.total {
            true => self.reclaim_locked(),
            false => Ok(()),
        }
    }

    /// Nothing of it is in memory here: whoever allocates reads the free set anew.
    fn reclaim_locked(&self) -> Result<()> {
        self.sessions().notice_foreign()?;
        // SESSION-4: others may have been born before this hold of the writer lock.
        lock(&self.group).has_others = true;
        let horizon = self.expiry().horizon()?;
        let is_worth_it = self.catalog.retention()?.has_retired_by(&horizon.kept)?
            || (self.expiry().is_prune_due()?
                && self.catalog.retention()?.has_past_by(&horizon.kept)?);
        let mut kept = horizon.kept.clone();
        if is_worth_it {
            let set = ChangeSet {
                reclaim_horizon: Some(horizon.kept.clone()),
                now_ns: self.now_ns(),
                ..ChangeSet::default()
            };
            let _one_at_a_time = self.commit_lock.lock();
            loop {
                let Some(outcome) = self.catalog.client()?.commit_if_free(&set)? else {
                    return Ok(());
                };
                kept = outcome.reclaim_horizon.unwrap_or(kept);
                // The next tick goes on, where others wait.
                if !outcome.has_more || self.writer_lock.is_wanted() {
                    break;
                }
                self.catalog.log()?.checkpoint(CheckpointKind::Passive)?; // TIME-9
            }
            if horizon.kept.passes(&kept) {
                self.expiry().look_anew(); // Or the next one would wish for the same.
            }
            // It is taken in like one of another session.
            self.has_foreign_change.store(true, Ordering::SeqCst);
        }
        self.expiry().note_pruned(&kept);
        self.sessions().notice_foreign()
    }

    /// Whether the client's transaction has the writer lock.
    pub fn has_writer_lock(&self) -> bool {
        self.writer_lock.is_held()
    }

    /// Before the client's connection closes.
    pub fn forget_compiled(&self) {
        self.catalog.forget_compiled();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// CLIENT-7: what a client needs goes, and no more of history.
    #[test]
    fn history_makes_way_for_clients() {
        let missing = |capacity, (total, live, retired), wanted, refused| {
            let space = ClientSpace {
                capacity,
                total,
                used: live + retired,
                retired,
            };
            space.missing(wanted, refused)
        };
        let capacity = Some(16_384);
        // Little lives: a quarter stays free.
        assert_eq!(missing(capacity, (16_384, 2_000, 10_000), 0, 0), 0);
        assert_eq!(missing(capacity, (16_384, 2_000, 12_000), 0, 0), 1_712);
        // Much lives: half of what is left, though little is retired.
        assert_eq!(missing(capacity, (16_384, 14_400, 1_984), 0, 0), 992);
        assert_eq!(missing(capacity, (16_384, 14_400, 900), 0, 0), 0);
        // What is going to be written, beside what is held back.
        assert_eq!(missing(capacity, (16_384, 2_000, 9_000), 8_000, 0), 3_128);
        assert_eq!(missing(capacity, (16_384, 2_000, 9_000), 15_000, 0), 9_000);
        // Who was refused is believed.
        assert_eq!(missing(capacity, (16_384, 2_000, 9_000), 0, 5_000), 5_000);
        // TIME-7
        let grown = GROWN_BLOCKS_MIN;
        assert_eq!(missing(None, (9, 100, grown + 100), 10_000, 0), 0);
        assert_eq!(missing(None, (9, 100, grown + 130), 0, 0), 30);
        assert_eq!(missing(None, (9, 100, 50), 0, 70), 50);
    }
}
