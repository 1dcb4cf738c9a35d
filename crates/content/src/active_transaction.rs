//! Every call of a transaction goes through the active transaction: one at a time, none after the
//! end. And the engines that serve transactions.
//!
//! `CONTENT-6` and `CONTENT-7` stand in `transaction`.

use crate::provider::FileHandle;
use larder_object::format::CommitSeq;
use larder_object::{Engine, Error, ErrorKind, Result, open_private};
use std::any::Any;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// Engines for transactions that are kept for later ones.
const ENGINES_MAX: usize = 16;
/// How often to look whether somebody wants the writer lock of one that has passed its bound.
const LOOK: Duration = Duration::from_millis(20);
/// How long to sleep when nothing is to be watched.
const FOREVER: Duration = Duration::from_secs(3600);

/// An open handle of a transaction; empty after its end.
pub(crate) type HandleSlot = Arc<OpenHandle>;
type OpenHandle = Mutex<Option<Box<dyn FileHandle>>>;

/// The handles that a transaction has to close.
#[derive(Default)]
pub(crate) struct Handles {
    open: Vec<Weak<OpenHandle>>,
    /// Those that are gone are forgotten when there are so many.
    sweep_at: usize,
}

/// What every call of a transaction goes through.
pub(crate) struct ActiveTransaction {
    engine: Arc<Engine>,
    pool: Arc<Pool>,
    /// Keeps the database open.
    _host: Arc<dyn Any + Send + Sync>,
    writer_lock_max: Duration,
    state: Mutex<ActiveState>,
}

#[derive(Default)]
struct ActiveState {
    handles: Handles,
    /// Why nothing more is possible, once that is so.
    ended: Option<(ErrorKind, String)>,
    /// Stores were created or changed.
    has_new_stores: bool,
    is_watched: bool,
}

/// Engines for transactions, kept between them.
#[derive(Default)]
pub(crate) struct Pool {
    /// Its engines serve an SQL session, whose user may change their connections.
    is_shell: bool,
    /// Their SQL sees the tables of stores as they were after this commit.
    shows: Option<(CommitSeq, i64)>,
    idle: Mutex<Vec<Arc<Engine>>>,
    watch: Watch,
}

pub(crate) fn lock<T: ?Sized>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Pool {
    /// A pool of one SQL session: the same engine serves all of its statements, so that what they
    /// change in their connection lasts.
    pub(crate) fn of_session(shows: Option<(CommitSeq, i64)>) -> Pool {
        Pool {
            is_shell: true,
            shows,
            ..Pool::default()
        }
    }

    /// An engine beside `host`, until [`Pool::put`]: the one that was given back last.
    pub(crate) fn take(&self, host: &Arc<Engine>) -> Result<Arc<Engine>> {
        if let Some(engine) = lock(&self.idle).pop() {
            return Ok(engine);
        }
        let engine = open_private(host, self.is_shell)?;
        if let Some((seq, at_ns)) = self.shows {
            // Every engine of the pool, or a session would fall into the present.
            engine.sql().show_past(seq, at_ns)?;
        }
        Ok(engine)
    }

    /// Gives an engine back.
    pub(crate) fn put(&self, engine: Arc<Engine>) {
        let mut idle = lock(&self.idle);
        if engine.is_running() && idle.len() < ENGINES_MAX {
            idle.push(engine);
        }
    }

    /// Closes what is kept.
    pub(crate) fn clear(&self) {
        lock(&self.idle).clear();
    }
}

impl Handles {
    /// Takes a handle in.
    pub(crate) fn add(&mut self, handle: Box<dyn FileHandle>) -> HandleSlot {
        if self.open.len() >= self.sweep_at {
            self.open.retain(|slot| slot.strong_count() > 0);
            self.sweep_at = 2 * self.open.len() + 16;
        }
        let slot = Arc::new(Mutex::new(Some(handle)));
        self.open.push(Arc::downgrade(&slot));
        slot
    }

    fn close_all(&mut self) {
        for slot in self.open.drain(..).filter_map(|slot| slot.upgrade()) {
            drop(lock(&slot).take());
        }
    }
}

impl ActiveState {
    fn require_open(&self) -> Result<()> {
        match &self.ended {
            None => Ok(()),
            Some((kind, why)) => Err(Error::new(*kind, why.clone())),
        }
    }
}

impl ActiveTransaction {
    /// The active transaction that `engine` serves.
    pub(crate) fn new(
        engine: Arc<Engine>,
        pool: Arc<Pool>,
        host: Arc<dyn Any + Send + Sync>,
        writer_lock_max: Duration,
    ) -> ActiveTransaction {
        ActiveTransaction {
            engine,
            pool,
            _host: host,
            writer_lock_max,
            state: Mutex::default(),
        }
    }

    /// The engine that serves the transaction.
    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    /// Runs one operation.
    pub(crate) fn enter<T>(
        self: &Arc<ActiveTransaction>,
        work: impl FnOnce() -> Result<T>,
    ) -> Result<T> {
        self.enter_with(|_| work())
    }

    /// The same for one that opens a handle.
    pub(crate) fn enter_with<T>(
        self: &Arc<ActiveTransaction>,
        work: impl FnOnce(&mut Handles) -> Result<T>,
    ) -> Result<T> {
        let mut state = lock(&self.state);
        state.require_open()?;
        if self.engine.short_transaction().writer_lock_held_for() > Some(self.writer_lock_max) {
            self.expire(&mut state);
            state.require_open()?;
        }
        let outcome = self
            .engine
            .short_transaction()
            .snapshot()
            .and_then(|()| work(&mut state.handles));
        if let Err(error) = &outcome
            && (error.kind() == ErrorKind::Conflict || self.engine.short_transaction().is_lost())
        {
            let kind = match error.kind() {
                ErrorKind::Conflict => ErrorKind::Conflict,
                _ => ErrorKind::InvalidInput,
            };
            let why = format!("the transaction was rolled back ({error}); begin another one");
            self.end(&mut state, kind, why);
        } else if !state.is_watched && self.engine.short_transaction().is_writing() {
            self.watch(&mut state);
        }
        outcome
    }

    /// Runs what is no operation of the transaction, between two of them.
    pub(crate) fn between<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<T> {
        let state = lock(&self.state);
        state.require_open()?;
        work()
    }

    /// Takes the writer lock now.
    pub(crate) fn lock_writer(self: &Arc<ActiveTransaction>) -> Result<()> {
        let mut state = lock(&self.state);
        self.engine.short_transaction().lock_writer()?;
        self.watch(&mut state);
        Ok(())
    }

    /// Has the transaction watched. What the caller did has happened, and is no failure because of
    /// this.
    fn watch(self: &Arc<ActiveTransaction>, state: &mut ActiveState) {
        match self.pool.watch.begin(self) {
            Ok(()) => state.is_watched = true,
            Err(error) => tracing::warn!(
                "cannot start the thread that ends transactions that keep others waiting \
                 ({error}); the next operation tries again"
            ),
        }
    }

    /// Whether nothing more is possible.
    pub(crate) fn is_over(&self) -> bool {
        lock(&self.state).ended.is_some()
    }

    /// How long the transaction may keep the writer lock.
    pub(crate) fn writer_lock_max(&self) -> Duration {
        self.writer_lock_max
    }

    /// Rolls back because of the time, unless an operation is under way: then that, or the next
    /// one, ends.
    pub(crate) fn expire_if_idle(&self) {
        let Ok(mut state) = self.state.try_lock() else {
            return;
        };
        // It may have ended in between, and its engine serve another one.
        if state.ended.is_none() {
            self.expire(&mut state);
        }
    }

    fn expire(&self, state: &mut ActiveState) {
        let why = format!(
            "the transaction kept the writer lock for more than {} s and was rolled back; make it \
             shorter, or use a long transaction, which keeps nobody waiting",
            self.writer_lock_max.as_secs_f32()
        );
        self.end(state, ErrorKind::Busy, why);
    }

    /// Rolls back (`CONTENT-7`).
    fn end(&self, state: &mut ActiveState, kind: ErrorKind, why: String) {
        if state.ended.is_some() {
            return;
        }
        state.ended = Some((kind, why));
        let ended = self.engine.short_transaction().roll_back();
        state.handles.close_all();
        self.pool.put(Arc::clone(&self.engine));
        drop(ended);
    }

    /// The error of a call after the end.
    pub(crate) fn ended(&self) -> Error {
        Error::new(
            ErrorKind::InvalidInput,
            "the transaction of this handle has ended; open the file again",
        )
    }

    /// Closes a handle that its owner dropped.
    pub(crate) fn close_handle(&self, slot: &HandleSlot) {
        // After the end it is closed already.
        let _one_at_a_time = lock(&self.state);
        drop(lock(slot).take());
    }

    /// Commits; says whether stores were created or changed.
    pub(crate) fn commit(&self) -> Result<bool> {
        let mut state = lock(&self.state);
        state.require_open()?;
        // Part of the transaction: what has no name any more goes with its last handle.
        state.handles.close_all();
        let (outcome, ended) = self.engine.short_transaction().commit();
        self.pool.put(Arc::clone(&self.engine));
        let outcome = outcome.and(ended.finish());
        state.ended = Some(match &outcome {
            Ok(()) => (
                ErrorKind::InvalidInput,
                "the transaction was committed; begin another one".into(),
            ),
            Err(error) => (
                ErrorKind::InvalidInput,
                format!("the commit of the transaction failed ({error}); begin another one"),
            ),
        });
        outcome.map(|()| state.has_new_stores)
    }

    /// Takes everything back, unless it has ended.
    pub(crate) fn abort(&self) {
        let why = "the transaction was aborted; begin another one";
        self.end(&mut lock(&self.state), ErrorKind::InvalidInput, why.into());
    }

    /// Stores were created or changed: the database learns of them after the commit.
    pub(crate) fn note_stores(&self) {
        lock(&self.state).has_new_stores = true;
    }
}

/// Ends transactions of one database that keep others waiting for longer than they may. One of
/// which nobody calls anything cannot look at the clock itself, so a thread sleeps until the bound
/// of the one that has the writer lock; when that has passed and somebody wants the writer lock,
/// the transaction is rolled back.
#[derive(Default)]
pub(crate) struct Watch {
    shared: Arc<Watched>,
    #[cfg(test)]
    cannot_start: std::sync::atomic::AtomicBool,
}

#[derive(Default)]
struct Watched {
    state: Mutex<WatchState>,
    changed: Condvar,
}

#[derive(Default)]
struct WatchState {
    has_thread: bool,
    is_over: bool,
    /// The transaction that has the writer lock, or had it last.
    active: Weak<ActiveTransaction>,
    /// When the thread looks again.
    wakes_at: Option<Instant>,
}

impl Watch {
    /// Watches this transaction from now on: it has just got the writer lock.
    /// An error: there is no thread that could; a later call tries to start one again.
    pub(crate) fn begin(&self, active: &Arc<ActiveTransaction>) -> std::io::Result<()> {
        let mut state = lock(&self.shared.state);
        state.active = Arc::downgrade(active);
        let due = Instant::now() + active.writer_lock_max();
        if state.wakes_at.is_some_and(|at| at > due) {
            self.shared.changed.notify_one();
        }
        if !state.has_thread {
            self.start()?;
            state.has_thread = true;
        }
        Ok(())
    }

    fn start(&self) -> std::io::Result<()> {
        #[cfg(test)]
        if self.cannot_start.load(std::sync::atomic::Ordering::Relaxed) {
            return Err(std::io::ErrorKind::WouldBlock.into());
        }
        let shared = Arc::clone(&self.shared);
        std::thread::Builder::new()
            .name("larder-watch".into())
            .spawn(move || shared.run(pause_after))
            .map(drop)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        lock(&self.shared.state).is_over = true;
        self.shared.changed.notify_one();
    }
}

impl Watched {
    /// `look` ends the transaction if it is time, and says how long to sleep.
    fn run(&self, look: impl Fn(Option<Arc<ActiveTransaction>>) -> Duration) {
        let mut state = lock(&self.state);
        while !state.is_over {
            let seen = state.active.clone();
            drop(state);
            // Dropping the last reference may close the database: without a lock.
            let pause = look(seen.upgrade());
            state = lock(&self.state);
            if state.is_over {
                return;
            }
            if !seen.ptr_eq(&state.active) {
                continue; // It got the writer lock meanwhile, and found nobody asleep to wake.
            }
            let wakes_at = Instant::now() + pause;
            state.wakes_at = Some(wakes_at);
            state = self
                .changed
                .wait_timeout(state, pause)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
            state.wakes_at = None;
        }
    }
}

fn pause_after(active: Option<Arc<ActiveTransaction>>) -> Duration {
    active.map_or(FOREVER, |active| pause_for(&active))
}

/// Ends the transaction if it is time; says when to look again.
fn pause_for(active: &Arc<ActiveTransaction>) -> Duration {
    let Some(held) = active.engine().short_transaction().writer_lock_held_for() else {
        return FOREVER;
    };
    let left = active.writer_lock_max().saturating_sub(held);
    if !left.is_zero() {
        return left;
    }
    if active.engine().short_transaction().is_writer_lock_wanted() {
        active.expire_if_idle();
    }
    LOOK
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{CreateOptions, Database, DatabaseOptions};
    use std::sync::atomic::{AtomicU32, Ordering};
    use std::sync::mpsc::channel;

    fn create() -> (tempfile::TempDir, Database) {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        Database::create(&path, &CreateOptions::default()).unwrap();
        let db = Database::open(&path, DatabaseOptions::default()).unwrap();
        (dir, db)
    }

    /// A transaction that gets the writer lock while the thread looks at another one is watched at
    /// once.
    #[test]
    fn no_transaction_is_forgotten_while_another_is_looked_at() {
        let (_dir, db) = create();
        let (first, second) = (
            db.transactions().begin().unwrap(),
            db.transactions().begin().unwrap(),
        );
        let watch = Watch::default();
        lock(&watch.shared.state).has_thread = true; // This test is the thread.
        watch.begin(first.parts().1).unwrap();
        let (tell, told) = channel();
        let looks = AtomicU32::new(0);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                watch.shared.run(|active| {
                    match looks.fetch_add(1, Ordering::SeqCst) {
                        0 => watch.begin(second.parts().1).unwrap(),
                        _ => {
                            let is_second =
                                active.is_some_and(|one| Arc::ptr_eq(&one, second.parts().1));
                            lock(&watch.shared.state).is_over = true;
                            tell.send(is_second).unwrap();
                        }
                    }
                    FOREVER
                });
            });
            let is_second = told.recv_timeout(Duration::from_secs(10));
            lock(&watch.shared.state).is_over = true;
            watch.shared.changed.notify_one();
            assert_eq!(is_second, Ok(true));
        });
    }

    /// What has happened is not told as a failure because nobody can watch the transaction.
    #[test]
    fn without_a_thread_operations_succeed_and_the_next_one_tries_again() {
        let (_dir, db) = create();
        let cannot_start = &db.shared.pool.watch.cannot_start;
        cannot_start.store(true, Ordering::Relaxed);
        let txn = db.transactions().begin().unwrap();
        txn.files().write(b"/a", b"x").unwrap();
        let is_watched = || lock(&txn.parts().1.state).is_watched;
        assert!(!is_watched());
        cannot_start.store(false, Ordering::Relaxed);
        assert_eq!(txn.files().read(b"/a").unwrap(), b"x");
        assert!(is_watched());
        txn.commit().unwrap();
        assert_eq!(db.files().read(b"/a").unwrap(), b"x");
    }
}
