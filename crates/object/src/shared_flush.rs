//! One flush of the catalog's log for several transactions of this process.
//!
//! While transactions of this process queue for the turn, the one that has it makes its COMMIT without the flush,
//! gives the turn on, and then waits for a flush that began after its COMMIT. The first who waits flushes for all
//! who have come that far; meanwhile others change and commit. Nobody's `commit` returns before.
//!
//! # Words
//! A commit *owes* a flush until one that began after it has ended.
//!
//! # Invariants
//! * `FLUSH-1` A transaction's commit returns after a flush of the log that began when its COMMIT had ended; the
//!   commit of one that has only read, after that of all that it may have seen.
//! * `FLUSH-2` A flush is left out only with the turn in hand and while nobody outside of this process looks: no
//!   other session lives (`SESSION-4`: none is born either) and no long transaction, no other process has the
//!   catalog open (`attached`), and the change feed is off. Who comes later as a session is born by a commit with
//!   its flush, which is also that of everything before it in the log.
//! * `FLUSH-3` What this process makes durable elsewhere because of a commit that owes its flush waits for it:
//!   homes of patches (`PATCH-3`), and what `sync` promises of files. (Reclaim and checkpoints come after a flush
//!   by themselves: a group commit flushes the log, and SQLite does before it copies it.)
//! * `FLUSH-4` When a flush has failed nobody knows what is durable: the session stops, and with it all of its
//!   transactions.
//!
//! # Who may see what a power cut takes away
//! This process, as it may see any change of a file before its sync; and a program that opens the catalog, knows
//! nothing of us, and reads, all while a flush is under way. See docs/decisions/0023-transactions.md.

use crate::attached::Attachments;
use crate::engine::{Engine, lock};
use crate::transaction::Private;
use crate::{Error, ErrorKind, Result};
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

/// What transactions of one session owe.
#[derive(Default)]
pub(crate) struct SharedFlush {
    state: Mutex<State>,
    ended: Condvar,
    /// `None`: it cannot be asked who else is there.
    attachments: OnceLock<Option<Attachments>>,
}

#[derive(Default)]
struct State {
    /// Commits that left out their flush.
    owed_count: u64,
    /// So many of them, the first ones, are durable.
    durable_count: u64,
    is_flushing: bool,
    failed: Option<String>,
}

/// A flush is under way, until this is dropped: then others may try, whatever happened.
struct Leading<'f> {
    flush: &'f SharedFlush,
}

impl Drop for Leading<'_> {
    fn drop(&mut self) {
        lock(&self.flush.state).is_flushing = false;
        self.flush.ended.notify_all();
    }
}

impl SharedFlush {
    /// One more commit owes its flush; which.
    pub fn owe(&self) -> u64 {
        let mut state = lock(&self.state);
        state.owed_count += 1;
        state.owed_count
    }

    /// The last commit that owes one now; `None`: none does.
    pub fn newest_owed(&self) -> Option<u64> {
        let state = lock(&self.state);
        (state.owed_count > state.durable_count).then_some(state.owed_count)
    }

    /// Waits until commit `number` is durable; runs `flush` for all that have come so far unless somebody else
    /// does.
    pub fn settle(&self, number: u64, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            if let Some(why) = &state.failed {
                return Err(Error::new(ErrorKind::Stopped, why.clone()));
            }
            if state.durable_count >= number {
                return Ok(());
            }
            if !state.is_flushing {
                break;
            }
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.is_flushing = true;
        let covered = state.owed_count; // FLUSH-1: these have ended.
        drop(state);
        let _leading = Leading { flush: self };
        let outcome = flush();
        let mut state = lock(&self.state);
        match outcome {
            Ok(()) => {
                state.durable_count = state.durable_count.max(covered);
                Ok(())
            }
            Err(error) => {
                let why = format!(
                    "the flush of transactions failed and their outcome is unknown ({error}); close and reopen the database"
                );
                state.failed = Some(why.clone());
                Err(Error::with_source(ErrorKind::Stopped, why, error))
            }
        }
    }
}

impl Engine {
    /// Whether the transaction's COMMIT, which comes next, may leave out its flush, and somebody has something
    /// of that (`FLUSH-2`).
    pub(crate) fn may_share_flush(&self, private: &Private) -> Result<bool> {
        let host = &private.host;
        debug_assert!(self.turn.is_held(), "FLUSH-2");
        if !host.writers.has_waiters() || host.workspace.is_some() || host.options.is_extension {
            return Ok(false);
        }
        // Nobody is left with a debt that cannot be paid for want of a file.
        let open = || {
            let ready = host.catalog.open_flusher();
            if let Err(error) = &ready {
                tracing::warn!("transactions do not share their flushes: {error}");
            }
            ready.ok()?;
            Attachments::open(&host.path.join(larder_catalog::CATALOG_FILE)).ok()
        };
        let attachments = host.flushes.attachments.get_or_init(open);
        if attachments.as_ref().is_none_or(Attachments::has_others) {
            return Ok(false);
        }
        Ok(self.catalog.sessions()?.len() == 1
            && self.catalog.oldest_transaction_pin()?.is_none()
            && !self.catalog.is_feed_on()?)
    }

    /// Waits until everything is durable that transactions of this process have committed (`FLUSH-3`). Nothing
    /// when nothing is owed.
    pub fn settle_flushes(&self) -> Result<()> {
        match self.flushes.newest_owed() {
            None => Ok(()),
            Some(number) => self.settle_flush(number),
        }
    }

    /// The same up to one commit.
    pub(crate) fn settle_flush(&self, number: u64) -> Result<()> {
        let flush = || self.catalog.flush_log().map_err(Error::from);
        self.flushes.settle(number, flush).inspect_err(|error| {
            // Another thread's commit must end before the turn is abandoned.
            let _no_commit = self.commit_lock.lock();
            self.stop(error.to_string()); // FLUSH-4
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::mpsc::channel;

    /// FLUSH-1: whoever comes while a flush is under way waits for the next one, which is one for all of them.
    #[test]
    fn a_flush_is_for_those_who_came_before_it_began() {
        let flush = SharedFlush::default();
        let count = AtomicU64::new(0);
        let once = || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        assert_eq!(flush.newest_owed(), None);
        let first = flush.owe();
        let (began, has_begun) = channel();
        let (go_on, may_go_on) = channel::<()>();
        std::thread::scope(|scope| {
            let (shared, once) = (&flush, &once);
            scope.spawn(move || {
                let wait = || {
                    began.send(()).unwrap();
                    may_go_on.recv().unwrap();
                    once()
                };
                shared.settle(first, wait).unwrap();
            });
            has_begun.recv().unwrap();
            let late: Vec<u64> = (0..3).map(|_| flush.owe()).collect();
            assert_eq!(flush.newest_owed(), late.last().copied());
            let waiting: Vec<_> = late
                .into_iter()
                .map(|number| scope.spawn(move || shared.settle(number, once)))
                .collect();
            go_on.send(()).unwrap();
            waiting
                .into_iter()
                .for_each(|one| one.join().unwrap().unwrap());
        });
        assert_eq!(count.load(Ordering::SeqCst), 2, "FLUSH-1");
        assert_eq!(flush.newest_owed(), None);
        flush.settle(1, || panic!("it is durable")).unwrap();
    }

    /// What is promised elsewhere waits for what is owed.
    #[test]
    fn syncs_and_the_end_of_reading_settle_what_is_owed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let options = crate::EngineOptions {
            has_background: false,
            ..crate::EngineOptions::default()
        };
        let init = crate::InitOptions {
            capacity_bytes: None,
            retention_ns: 0,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
        };
        Engine::create(&path, &init, &options).unwrap();
        let host = Engine::open(&path, "host", &options).unwrap();
        host.flushes.owe();
        host.sync().unwrap();
        assert_eq!(host.flushes.newest_owed(), None, "FLUSH-3");
        let root = host
            .node(
                larder_space::format::StoreId::MAIN,
                larder_space::format::Ino::ROOT,
            )
            .unwrap();
        host.flushes.owe();
        host.sync_node(&root).unwrap();
        assert_eq!(host.flushes.newest_owed(), None, "FLUSH-3");
        let private = Engine::open_private(&host, false).unwrap();
        private.snapshot().unwrap();
        host.flushes.owe();
        let (outcome, ended) = private.commit_transaction();
        outcome.unwrap();
        ended.finish().unwrap();
        assert_eq!(host.flushes.newest_owed(), None, "FLUSH-1");
        drop((root, private));
        host.close().unwrap();
    }

    /// FLUSH-4
    #[test]
    fn after_a_failure_nobody_is_told_that_anything_is_durable() {
        let flush = SharedFlush::default();
        let number = flush.owe();
        let failing = || Err(Error::new(ErrorKind::Io, "no"));
        let told = flush.settle(number, failing).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Stopped);
        let later = flush.owe();
        for number in [number, later] {
            let told = flush.settle(number, || Ok(())).unwrap_err();
            assert_eq!(told.kind(), ErrorKind::Stopped, "FLUSH-4");
        }
    }
}
