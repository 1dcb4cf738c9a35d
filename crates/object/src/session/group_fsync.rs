//! One flush of the catalog's log for several transactions of this process.
//!
//! While transactions of this process queue for the writer lock, the one that has it makes its
//! COMMIT without the flush, gives the writer lock on, and then waits for a flush that began after
//! its COMMIT. The first who waits flushes for all who have come that far; meanwhile others change
//! and commit. Nobody's `commit` returns before.
//!
//! # Words
//! A commit *owes* a flush from before it begins, since others see it before it returns, until one
//! that began after it has ended. It is *under way* until it returns.
//!
//! # Invariants
//! * `FLUSH-1` A transaction's commit returns after a flush of the log that began when its COMMIT
//!   had ended; the commit of one that has only read, or has taken the writer lock and written
//!   nothing, after that of all that it may have seen.
//! * `FLUSH-2` A flush is left out only with the writer lock in hand and while nobody outside of
//!   this process looks: no other session lives (`SESSION-4`: none is born either) and no long
//!   transaction, no other process has the catalog open (`other_processes`), and the change feed is
//!   off. Who comes later as a session is born by a commit with its flush, which is also that of
//!   everything before it in the log.
//! * `FLUSH-3` What this process makes durable elsewhere because of a commit that owes its flush
//!   waits for it: targets of redo rows (`REDO-3`), and what `sync` promises of files. (Reclaim and
//!   checkpoints come after a flush by themselves: a group commit flushes the log, and SQLite does
//!   before it copies it.)
//! * `FLUSH-5` A flush covers no commit that is under way when it begins, and who waits for one
//!   waits until it has returned.
//! * `FLUSH-4` When a flush has failed nobody knows what is durable: the session stops, and with it
//!   all of its transactions. The log has been read by others, and Linux takes pages that could not
//!   be written for clean, so that a later flush succeeds without them: the next session begins
//!   with a copy of all of the log into the catalog's file.
//! * `FLUSH-6` At most [`UNFLUSHED_COMMITS_MAX`] commits owe a flush at a time: so many may be torn
//!   by a crash (`SCAN-1`).
//!
//! # Who may see what a power cut takes away
//! This process, as it may see any change of a file before its sync; and a program that opens the
//! catalog, knows nothing of us, and reads, all while a flush is under way. See
//! docs/decisions/0023-transactions.md.

use crate::host::lock;
use crate::session::other_processes::Attachments;
use crate::{Error, ErrorKind, Result};
use larder_catalog::UNFLUSHED_COMMITS_MAX;
use std::sync::{Condvar, Mutex, OnceLock, PoisonError};

/// What transactions of one session owe.
#[derive(Default)]
pub(crate) struct SharedFlush {
    state: Mutex<State>,
    ended: Condvar,
    /// `None`: it cannot be asked who else is there.
    pub(crate) attachments: OnceLock<Option<Attachments>>,
}

#[derive(Default)]
struct State {
    /// Commits that left out their flush.
    owed_count: u64,
    /// The last of them is under way: who makes it has the writer lock (`PRIVATE-1`).
    is_under_way: bool,
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

/// A commit that is under way.
pub(crate) struct Owing<'f> {
    flush: &'f SharedFlush,
    number: u64,
}

impl Owing<'_> {
    /// It has returned, and `is_owed`: has left out its flush. Which of those that owe it is;
    /// `None`: it has written nothing, and what it may have seen is durable.
    pub fn end(self, is_owed: bool) -> Option<u64> {
        let mut state = lock(&self.flush.state);
        if !is_owed && state.durable_count + 1 == self.number {
            state.durable_count = self.number;
        }
        (state.durable_count < self.number).then_some(self.number)
    }
}

impl Drop for Owing<'_> {
    /// One that has failed owes nothing, but somebody may wait for it already.
    fn drop(&mut self) {
        lock(&self.flush.state).is_under_way = false;
        self.flush.ended.notify_all();
    }
}

impl SharedFlush {
    /// One more commit, which begins now, is going to owe its flush. The caller has the writer
    /// lock.
    pub fn begin(&self) -> Owing<'_> {
        let mut state = lock(&self.state);
        debug_assert!(!state.is_under_way, "FLUSH-5");
        let owed_now = state.owed_count - state.durable_count;
        debug_assert!(owed_now < UNFLUSHED_COMMITS_MAX, "FLUSH-6");
        state.owed_count += 1;
        state.is_under_way = true;
        Owing {
            flush: self,
            number: state.owed_count,
        }
    }

    /// The last commit that owes one now; `None`: none does.
    pub fn newest_owed(&self) -> Option<u64> {
        let state = lock(&self.state);
        (state.owed_count > state.durable_count).then_some(state.owed_count)
    }

    /// How many owe one now.
    pub(crate) fn owed_now(&self) -> u64 {
        let state = lock(&self.state);
        state.owed_count - state.durable_count
    }

    /// Waits until commit `number` is durable; runs `flush` for all that have come so far unless
    /// somebody else does.
    pub fn settle(&self, number: u64, flush: impl FnOnce() -> Result<()>) -> Result<()> {
        let mut state = lock(&self.state);
        loop {
            if let Some(why) = &state.failed {
                return Err(Error::new(ErrorKind::Stopped, why.clone()));
            }
            if state.durable_count >= number {
                return Ok(());
            }
            let is_under_way = state.is_under_way && state.owed_count == number; // FLUSH-5
            if !state.is_flushing && !is_under_way {
                break;
            }
            state = self
                .ended
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
        state.is_flushing = true;
        // FLUSH-1: these have ended.
        let covered = state.owed_count - u64::from(state.is_under_way);
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
                    "the flush of transactions failed and their outcome is unknown ({error}); \
                     close and reopen the database"
                );
                state.failed = Some(why.clone());
                Err(Error::with_source(ErrorKind::Stopped, why, error))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
    use std::sync::mpsc::channel;

    /// FLUSH-1: whoever comes while a flush is under way waits for the next one, which is one for
    /// all of them.
    #[test]
    fn a_flush_is_for_those_who_came_before_it_began() {
        let flush = SharedFlush::default();
        let count = AtomicU64::new(0);
        let once = || {
            count.fetch_add(1, Ordering::SeqCst);
            Ok(())
        };
        assert_eq!(flush.newest_owed(), None);
        let first = flush.begin().end(true).unwrap();
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
            let late: Vec<u64> = (0..3).map(|_| flush.begin().end(true).unwrap()).collect();
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
        let host = open(dir.path());
        host.session.flushes.begin().end(true);
        host.commits().sync().unwrap();
        assert_eq!(host.session.flushes.newest_owed(), None, "FLUSH-3");
        let root = host
            .lookup()
            .node(
                larder_space::format::StoreId::MAIN,
                larder_space::format::Ino::ROOT,
            )
            .unwrap();
        host.session.flushes.begin().end(true);
        host.commits()
            .sync_node(&root, &host.refusals().told_at_open(&root))
            .unwrap();
        assert_eq!(host.session.flushes.newest_owed(), None, "FLUSH-3");
        let private = crate::open_private(&host, false).unwrap();
        let commit = || {
            let (outcome, ended) = private.short_transaction().commit();
            outcome.unwrap();
            ended.finish().unwrap();
        };
        private.short_transaction().snapshot().unwrap();
        host.session.flushes.begin().end(true);
        commit();
        assert_eq!(host.session.flushes.newest_owed(), None, "FLUSH-1");
        // With the writer lock, and nothing written.
        private.short_transaction().lock_writer().unwrap();
        host.session.flushes.begin().end(true);
        commit();
        assert_eq!(host.session.flushes.newest_owed(), None, "FLUSH-1");
        // Its own flush, which it makes in any case, is that of all before it.
        private.short_transaction().lock_writer().unwrap();
        drop(insert(&private));
        host.session.flushes.begin().end(true);
        commit();
        assert!(
            host.session.flushes.newest_owed().is_some(),
            "one flush, not two"
        );
        drop((root, private));
        host.close().unwrap();
    }

    /// What lies in place is written over only when the commits that say so are durable.
    #[test]
    fn targets_wait_for_what_is_owed() {
        let dir = tempfile::tempdir().unwrap();
        let host = open(dir.path());
        let node = insert(&host);
        host.content().write(&node, 0, &[1; 200_000]).unwrap();
        host.commits().sync().unwrap();
        host.content().write(&node, 8192, &[2; 4096]).unwrap();
        host.commits().sync().unwrap();
        let count = || host.redo_rows.blocks.load(Ordering::SeqCst);
        assert_eq!(count(), 1, "it is no redo row: nothing is tested");
        host.session.flushes.begin().end(true);
        host.redo().apply_now().unwrap();
        assert_eq!(count(), 0);
        assert_eq!(host.session.flushes.newest_owed(), None, "FLUSH-3");
        drop(node);
        host.close().unwrap();
    }

    fn open(dir: &std::path::Path) -> std::sync::Arc<Engine> {
        open_by(dir, None)
    }

    fn open_by(dir: &std::path::Path, catalog_vfs: Option<&str>) -> std::sync::Arc<Engine> {
        let options = crate::EngineOptions {
            has_background: false,
            catalog_vfs: catalog_vfs.map(str::to_owned),
            ..crate::EngineOptions::default()
        };
        open_with(dir, options)
    }

    fn open_with(dir: &std::path::Path, options: crate::EngineOptions) -> std::sync::Arc<Engine> {
        let path = dir.join("db");
        let init = crate::InitOptions {
            capacity_bytes: None,
            retention_ns: 0,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            group: None,
        };
        Engine::create(&path, &init, &options).unwrap();
        Engine::open(&path, "host", &options).unwrap()
    }

    /// A new file, which nobody has named.
    fn insert(engine: &Engine) -> std::sync::Arc<crate::view::node::Node> {
        let main = larder_space::format::StoreId::MAIN;
        let root = engine
            .lookup()
            .node(main, larder_space::format::Ino::ROOT)
            .unwrap();
        let row = larder_catalog::InodeRow {
            kind: larder_space::format::FileKind::File,
            nlink: 1,
            ..engine.lookup().row(&root).unwrap()
        };
        let guard = engine.namespace().write_guard().unwrap();
        let node = guard.insert(main, row, None).unwrap();
        guard.commit().unwrap();
        node
    }

    /// A transaction commits while another one waits for the writer lock, after `prepare`.
    fn commit_before_another(
        host: &std::sync::Arc<Engine>,
        prepare: impl FnOnce(),
    ) -> crate::Result<()> {
        let private = crate::open_private(host, false).unwrap();
        private
            .short_transaction()
            .use_ticket(crate::enter_writers(host))
            .unwrap();
        private.short_transaction().lock_writer().unwrap();
        drop(insert(&private));
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| drop(crate::enter_writers(host)));
            while !host.session.writers.has_waiters() {
                std::thread::yield_now();
            }
            prepare();
            let (outcome, ended) = private.short_transaction().commit();
            let finished = outcome.and(ended.finish());
            waiting.join().unwrap();
            finished
        })
    }

    fn owed_count(host: &Engine) -> u64 {
        lock(&host.session.flushes.state).owed_count
    }

    #[test]
    fn what_cannot_be_flushed_is_not_left_to_be() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = larder_testkit::Recorder::new();
        let vfs = larder_testkit::RecordingVfs::register(&recorder);
        let host = open_by(dir.path(), Some(vfs.name()));
        let refuses = &vfs.faults().refuses_open;
        commit_before_another(&host, || refuses.store(true, Ordering::SeqCst)).unwrap();
        refuses.store(false, Ordering::SeqCst);
        assert_eq!(owed_count(&host), 0);
        assert!(host.is_running(), "FLUSH-4: only a flush that fails stops");
        commit_before_another(&host, || {}).unwrap();
        host.close().unwrap();
    }

    #[test]
    fn a_long_transaction_keeps_flushes_from_being_shared() {
        let dir = tempfile::tempdir().unwrap();
        let host = open(dir.path());
        commit_before_another(&host, || {}).unwrap();
        assert_eq!(owed_count(&host), 1, "nobody shares: nothing is tested");
        let owner = crate::begin_transaction(&dir.path().join("db"), "long", false).unwrap();
        commit_before_another(&host, || {}).unwrap();
        assert_eq!(owed_count(&host), 1, "FLUSH-2");
        crate::abort_transaction(&dir.path().join("db"), owner.id()).unwrap();
        commit_before_another(&host, || {}).unwrap();
        assert_eq!(owed_count(&host), 2);
        host.close().unwrap();
    }

    #[test]
    fn a_flush_that_fails_stops_the_session() {
        let dir = tempfile::tempdir().unwrap();
        let recorder = larder_testkit::Recorder::new();
        let vfs = larder_testkit::RecordingVfs::register(&recorder);
        let host = open_by(dir.path(), Some(vfs.name()));
        commit_before_another(&host, || {}).unwrap();
        let beside = crate::open_private(&host, false).unwrap();
        beside.short_transaction().snapshot().unwrap();
        let fails = &vfs.faults().fails_log_sync;
        let told = commit_before_another(&host, || fails.store(true, Ordering::SeqCst));
        fails.store(false, Ordering::SeqCst);
        assert_eq!(told.unwrap_err().kind(), ErrorKind::Stopped, "FLUSH-4");
        assert_eq!(owed_count(&host), 2);
        assert_eq!(
            host.commits().sync().unwrap_err().kind(),
            ErrorKind::Stopped
        );
        let (outcome, ended) = beside.short_transaction().commit();
        let told = outcome.and(ended.finish()).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Stopped, "FLUSH-4");
        // The next session appends to the log when it was copied, and the copy flushed.
        drop(beside);
        let from = recorder.position();
        let next = Engine::open(&dir.path().join("db"), "next", &host.session.options).unwrap();
        next.close().unwrap();
        let recording = recorder.finish();
        let events = recording.events[from..].iter();
        let mut has_copied = false;
        let first = events.filter_map(|event| match event {
            larder_testkit::Event::Flush { file, .. } if &**file == "catalog.db" => {
                has_copied = true;
                None
            }
            larder_testkit::Event::Write { file, .. } if file.ends_with("-wal") => Some(has_copied),
            _ => None,
        });
        assert_eq!(first.take(1).collect::<Vec<_>>(), [true], "FLUSH-4");
        let next = Engine::open(&dir.path().join("db"), "next", &host.session.options).unwrap();
        assert!(!dir.path().join("db/log.unsound").exists());
        next.close().unwrap();
    }

    /// A transaction commits without its flush, which is held up. The next one takes the writer
    /// lock, sees it and has nothing to write; when it has returned it says what it has seen. With
    /// `waits` as it is; without, as one that does not care.
    fn record_one_that_looks(waits: bool) -> larder_testkit::Recording {
        let dir = tempfile::tempdir().unwrap();
        let recorder = larder_testkit::Recorder::new();
        let vfs = larder_testkit::RecordingVfs::register(&recorder);
        let options = crate::EngineOptions {
            has_background: false,
            storage: Some(Arc::new(larder_testkit::SimStorage::recording(&recorder))),
            catalog_vfs: Some(vfs.name().to_owned()),
            ..crate::EngineOptions::default()
        };
        let host = open_with(dir.path(), options);
        host.commits().sync().unwrap();
        host.commits().unlock_writer();
        recorder.sync_names();
        let [first, second] = [(); 2].map(|()| crate::open_private(&host, false).unwrap());
        let [has_committed, has_told] = [(); 2].map(|()| AtomicBool::new(false));
        first
            .short_transaction()
            .use_ticket(crate::enter_writers(&host))
            .unwrap();
        first.short_transaction().lock_writer().unwrap();
        let ino = insert(&first).ino;
        std::thread::scope(|scope| {
            let looking = scope.spawn(|| {
                second
                    .short_transaction()
                    .use_ticket(crate::enter_writers(&host))
                    .unwrap();
                second.short_transaction().lock_writer().unwrap();
                let main = larder_space::format::StoreId::MAIN;
                assert!(second.catalog.tables().inode(main, ino).unwrap().is_some());
                let (outcome, ended) = second.short_transaction().commit();
                outcome.unwrap();
                has_committed.store(true, Ordering::SeqCst);
                match waits {
                    true => ended.finish().unwrap(),
                    false => drop(ended),
                }
                recorder.ack(ino.0);
                has_told.store(true, Ordering::SeqCst);
            });
            while !host.session.writers.has_waiters() {
                std::thread::yield_now();
            }
            vfs.faults().holds_log_sync.store(true, Ordering::SeqCst);
            let (outcome, ended) = first.short_transaction().commit();
            outcome.unwrap();
            let owed = host.session.flushes.newest_owed();
            assert!(owed.is_some(), "it shares nothing: nothing is tested");
            let paying = scope.spawn(|| ended.finish().unwrap());
            while !has_committed.load(Ordering::SeqCst) {
                std::thread::yield_now();
            }
            // Who does not wait has time enough to say so.
            let mut left = 2000;
            while !has_told.load(Ordering::SeqCst) && (left > 0 || !waits) {
                std::thread::yield_now();
                left -= 1;
            }
            vfs.faults().holds_log_sync.store(false, Ordering::SeqCst);
            paying.join().unwrap();
            looking.join().unwrap();
        });
        let recording = recorder.finish();
        drop((first, second));
        host.close().unwrap();
        recording
    }

    /// Whether a power cut, when that was said, takes away what was seen.
    fn is_seen_and_lost(recording: &larder_testkit::Recording) -> bool {
        let is_ack = |event: &larder_testkit::Event| matches!(event, larder_testkit::Event::Ack(_));
        let said = recording.events.iter().rposition(is_ack).unwrap();
        let until_then = larder_testkit::Recording {
            events: recording.events[..=said].to_vec(),
        };
        let states: Vec<_> = until_then.states(said + 1, 1, 20).collect();
        assert!(!states.is_empty());
        states.iter().any(|state| {
            let dir = tempfile::tempdir().unwrap();
            state.disk.write_catalog(dir.path()).unwrap();
            let options = crate::EngineOptions {
                has_background: false,
                storage: Some(Arc::new(larder_testkit::SimStorage::load(
                    &state.disk,
                    None,
                ))),
                ..crate::EngineOptions::default()
            };
            let engine = Engine::open(dir.path(), "after", &options).unwrap();
            let seen = larder_space::format::Ino(state.acked.unwrap());
            let main = larder_space::format::StoreId::MAIN;
            let is_lost = engine.catalog.tables().inode(main, seen).unwrap().is_none();
            engine.close().unwrap();
            is_lost
        })
    }

    #[test]
    fn a_power_cut_takes_nothing_away_that_one_without_changes_has_seen() {
        assert!(!is_seen_and_lost(&record_one_that_looks(true)), "FLUSH-1");
        // The negative control.
        assert!(is_seen_and_lost(&record_one_that_looks(false)), "FLUSH-1");
    }

    /// FLUSH-4
    #[test]
    fn after_a_failure_nobody_is_told_that_anything_is_durable() {
        let flush = SharedFlush::default();
        let number = flush.begin().end(true).unwrap();
        let failing = || Err(Error::new(ErrorKind::Io, "no"));
        let told = flush.settle(number, failing).unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Stopped);
        let later = flush.begin().end(true).unwrap();
        for number in [number, later] {
            let told = flush.settle(number, || Ok(())).unwrap_err();
            assert_eq!(told.kind(), ErrorKind::Stopped, "FLUSH-4");
        }
    }

    /// Others see a commit before it returns: they wait for it, and no flush that begins before is
    /// its.
    #[test]
    fn a_commit_that_is_under_way_is_waited_for() {
        let flush = SharedFlush::default();
        let first = flush.begin().end(true).unwrap();
        let second = flush.begin();
        flush.settle(first, || Ok(())).unwrap();
        let number = flush.newest_owed().expect("FLUSH-5: it may be seen");
        let has_returned = std::sync::atomic::AtomicBool::new(false);
        std::thread::scope(|scope| {
            let (flush, has_returned) = (&flush, &has_returned);
            let waiting = scope.spawn(move || {
                flush.settle(number, || {
                    assert!(has_returned.load(Ordering::SeqCst), "FLUSH-5");
                    Ok(())
                })
            });
            has_returned.store(true, Ordering::SeqCst);
            assert_eq!(second.end(true), Some(number));
            waiting.join().unwrap().unwrap();
        });
        assert_eq!(flush.newest_owed(), None);
        // One that fails is waited for by nobody, and one that has written nothing owes nothing.
        drop(flush.begin());
        let failed = flush.newest_owed().unwrap();
        flush.settle(failed, || Ok(())).unwrap();
        assert_eq!(flush.begin().end(false), None);
        assert_eq!(flush.newest_owed(), None);
        // But it may have seen what is owed.
        let third = flush.begin().end(true).unwrap();
        assert_eq!(flush.begin().end(false), Some(third + 1), "FLUSH-1");
    }
}
