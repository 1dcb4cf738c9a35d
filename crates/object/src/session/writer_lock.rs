//! The writer lock: which session may have uncommitted changes.
//!
//! A session takes the writer lock before its first change and gives it back when everything is
//! committed. So changes can wait in memory (and be grouped, and coalesced) without a conflict ever
//! being possible, and the SQLite write lock is held only for the moment of the commit, which is
//! what lets a plain `sqlite3`, which does not wait for locks, work beside a busy mount
//! (docs/decisions/0002-turn.md).
//!
//! # Invariants
//! * `WRITER-1` A session without the writer lock has no uncommitted state and no reservation.
//! * `WRITER-2` At most one live session has the writer lock: it is an exclusive `flock` on
//!   `turn.lock`, which the kernel releases when a process dies.
//! * `WRITER-3` Nobody starves: who wants the writer lock queues on `turn.queue`. That is a lock
//!   that each one who waits tries to get, as often as everybody else however long it has waited;
//!   and a process that gives the writer lock to one who waits leaves the next ones the time to try
//!   before it does.
//!
//! * `WRITER-4` Who has closed it has no users beside: nobody joins them before it is open again,
//!   not even who is just acquiring. And who waits to close it waits at a place of its own: whoever
//!   is let in at the entrance may have to wait for that one, who is at the head of the queue.
//!
//! ```text
//!  without ──begin──▶ acquiring ──flock──▶ held ──(committed, no users)──▶ without
//!                                           │ ▲
//!             exclusive, or others wait ▼ │  begin() waits meanwhile
//!                                         closed      any state ──abandon──▶ abandoned (for good)
//! ```

use crate::session::options::WAIT_MAX;
use crate::session::peers::{describe_holder, free_killed_in};
use crate::{Error, ErrorKind, Result};
use larder_catalog::waiting::Patience;
use larder_segment::directory::Access;
use larder_segment::directory::DatabaseDir;
use rustix::fd::OwnedFd;
use rustix::fs::FlockOperation;
use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long who waits in the queue sleeps between two looks: always the same (`WRITER-3`).
const QUEUE_PAUSE: Duration = Duration::from_micros(200);
/// How long who gave the writer lock away leaves the queue to others.
const GIVES_WAY: Duration = Duration::from_micros(400);
/// At the head of the queue pauses grow up to this while the writer lock is short: every sleep
/// beyond its end is lost to all, ...
const HEAD_PAUSE_MIN: Duration = Duration::from_micros(100);
const HEAD_PAUSE_MAX: Duration = Duration::from_micros(200);
/// ... and to this when it is not.
const SHORT_HOLD: Duration = Duration::from_millis(50);
const LONG_PAUSE_MAX: Duration = Duration::from_millis(2);
/// How often the one at the head has another engine of this process hand over.
const NUDGE_REST: Duration = Duration::from_millis(5);

/// Who waits looks first after so long whether the one who is waited for was killed, and then so
/// often.
const LOOK_AFTER: Duration = Duration::from_millis(200);
const LOOK_REST: Duration = Duration::from_millis(500);

/// The files, in the directory of a database.
const LOCK: &str = "turn.lock";
const QUEUE: &str = "turn.queue";

/// This process's side of the writer lock.
pub(crate) struct WriterLock {
    database: DatabaseDir,
    lock: OwnedFd,
    queue: OwnedFd,
    state: Mutex<State>,
    /// Who wants to begin.
    entrance: Condvar,
    /// Who wants it open again: to close it, or to join the users of what it has taken
    /// (`WRITER-4`).
    reopened: Condvar,
    /// Who has closed it, and waits for users to leave.
    exit: Condvar,
    /// How often somebody who waited was woken.
    #[cfg(test)]
    wakes: std::sync::atomic::AtomicU64,
    /// Has another engine of this process give the writer lock back at once.
    nudge: Option<Nudge>,
    /// When an engine of this process gave the writer lock to others who waited.
    gave_way: GaveWay,
    /// How long it waits for other sessions.
    wait_max: Duration,
}

/// Shared by the engines of one process.
pub(crate) type GaveWay = Arc<Mutex<Option<Instant>>>;

/// See [`WriterLock::open_beside`].
pub(crate) type Nudge = Box<dyn Fn() -> Result<()> + Send + Sync>;

#[derive(Default)]
struct State {
    is_held: bool,
    is_acquiring: bool,
    /// New users wait: somebody wants the writer lock alone, or to give it back.
    is_closed: bool,
    /// The session has stopped; nobody begins anything any more.
    is_abandoned: bool,
    users: u32,
    /// When the last user left.
    used_at: Option<Instant>,
}

impl WriterLock {
    /// The same, by the path of the directory.
    #[cfg(test)]
    pub fn open(database: &std::path::Path) -> Result<WriterLock> {
        let opened = DatabaseDir::open(database);
        WriterLock::open_in(
            &opened.map_err(|error| crate::error::io_error("no directory".into(), error))?,
        )
    }

    /// Opens the lock files in the database directory.
    pub fn open_in(database: &DatabaseDir) -> Result<WriterLock> {
        let open = |name: &str| open_lock(database, name);
        Ok(WriterLock {
            database: database.clone(),
            lock: open(LOCK)?,
            queue: open(QUEUE)?,
            state: Mutex::default(),
            entrance: Condvar::new(),
            reopened: Condvar::new(),
            exit: Condvar::new(),
            #[cfg(test)]
            wakes: Default::default(),
            nudge: None,
            gave_way: GaveWay::default(),
            wait_max: WAIT_MAX,
        })
    }

    /// The same, waiting for other sessions no longer than so.
    pub fn waiting(self, wait_max: Duration) -> WriterLock {
        WriterLock { wait_max, ..self }
    }

    /// How long it waits for other sessions.
    pub fn wait_max(&self) -> Duration {
        self.wait_max
    }

    /// The same beside an engine of this process that may have the writer lock: `nudge` has that
    /// one commit and give it back, and is called before waiting and when nobody else is before us.
    pub fn open_beside(&self, database: &DatabaseDir, nudge: Nudge) -> Result<WriterLock> {
        let writer_lock = WriterLock::open_in(database)?;
        Ok(WriterLock {
            nudge: Some(nudge),
            gave_way: Arc::clone(&self.gave_way),
            ..writer_lock
        })
    }

    fn nudge(&self) -> Result<()> {
        self.nudge.as_ref().map_or(Ok(()), |nudge| nudge())
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'s>(&self, place: &Condvar, state: MutexGuard<'s, State>) -> MutexGuard<'s, State> {
        let state = place.wait(state).unwrap_or_else(PoisonError::into_inner);
        #[cfg(test)]
        (self.wakes).fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        state
    }

    /// Wakes those at the entrance who can go on: all where the writer lock is held, since they
    /// share it; else one, who takes it and lets the others in.
    fn let_in(&self, state: &State) {
        if state.is_abandoned || (state.is_held && !state.is_closed) {
            self.entrance.notify_all();
        } else if !state.is_closed && !state.is_acquiring {
            self.entrance.notify_one();
        }
    }

    /// A user left: wakes who has closed the writer lock, when that may be what it waits for.
    fn let_out(&self, state: &State) {
        if state.is_closed && state.users <= 1 {
            self.exit.notify_all();
        }
    }

    /// Joins the users of the writer lock, taking it first if need be. `refresh` runs each time the
    /// writer lock has just been taken, before anybody uses it: another session may have committed
    /// meanwhile.
    pub fn begin(&self, refresh: impl FnOnce() -> Result<()>) -> Result<()> {
        self.begin_by(None, self.wait_max, refresh)
    }

    /// The same, waiting no longer than so for others in this process, and then for other sessions.
    pub fn begin_within(
        &self,
        wait_max: Duration,
        refresh: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        self.begin_by(Some(Instant::now() + wait_max), wait_max, refresh)
    }

    fn begin_by(
        &self,
        deadline: Option<Instant>,
        wait_max: Duration,
        refresh: impl FnOnce() -> Result<()>,
    ) -> Result<()> {
        let mut state = self.state();
        loop {
            if state.is_abandoned {
                return Err(abandoned());
            }
            if state.is_held && !state.is_closed {
                state.users += 1;
                return Ok(());
            }
            if !state.is_held && !state.is_acquiring && !state.is_closed {
                break;
            }
            state = match deadline {
                None => self.wait(&self.entrance, state),
                Some(deadline) => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        let why =
                            "this process waits for the writer lock, or is busy with it; try again";
                        return Err(Error::new(ErrorKind::Busy, why));
                    }
                    let waited = self.entrance.wait_timeout(state, left);
                    waited.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        state.is_acquiring = true;
        drop(state);
        let acquiring = Acquiring { writer_lock: self };
        match deadline {
            None => self.acquire(wait_max, ErrorKind::TimedOut)?,
            Some(at) => self.acquire(
                at.saturating_duration_since(Instant::now()),
                ErrorKind::Busy,
            )?,
        }
        acquiring.finish(refresh)
    }

    /// The same without waiting for another session: `false` when that one has the writer lock, or
    /// may be about to take it (`WRITER-3`).
    pub fn try_begin(&self, refresh: impl FnOnce() -> Result<()>) -> Result<bool> {
        let mut state = self.state();
        if state.is_abandoned {
            return Err(abandoned());
        }
        if state.is_held && !state.is_closed {
            state.users += 1;
            return Ok(true);
        }
        let gives_way = (*self.gave_way()).is_some_and(|at| at.elapsed() < GIVES_WAY);
        if state.is_held || state.is_acquiring || state.is_closed || gives_way {
            return Ok(false);
        }
        state.is_acquiring = true;
        drop(state);
        let acquiring = Acquiring { writer_lock: self };
        if self.is_wanted() || flock_now(&self.lock).is_err() {
            return Ok(false);
        }
        acquiring.finish(refresh).map(|()| true)
    }

    /// The same, but alone: waits until the other users have left, and keeps new ones out until
    /// [`WriterLock::end_exclusive`].
    pub fn begin_exclusive(&self, refresh: impl Fn() -> Result<()>) -> Result<()> {
        loop {
            self.begin(&refresh)?;
            let mut state = self.state();
            if !state.is_closed {
                state.is_closed = true;
                // Being a user meanwhile keeps the writer lock from being given back.
                while state.users > 1 {
                    state = self.wait(&self.exit, state);
                }
                return Ok(());
            }
            // Somebody else was faster, and waits for this user to leave.
            state.users -= 1;
            self.let_out(&state);
            while state.is_closed {
                state = self.wait(&self.reopened, state);
            }
        }
    }

    /// Lets others in again.
    pub fn end_exclusive(&self) {
        let mut state = self.state();
        state.users = 0;
        state.used_at = Some(Instant::now());
        self.reopen(state);
    }

    /// Leaves the users of the writer lock.
    pub fn end(&self) {
        let mut state = self.state();
        state.users -= 1;
        state.used_at = Some(Instant::now());
        self.let_out(&state);
    }

    /// When the last change ended; `None` while there is a user.
    pub fn idle_since(&self) -> Option<Instant> {
        let state = self.state();
        state.used_at.filter(|_| state.users == 0)
    }

    /// Whether this session has the writer lock.
    pub fn is_held(&self) -> bool {
        self.state().is_held
    }

    /// Whether another session queues for the writer lock.
    pub fn is_wanted(&self) -> bool {
        match rustix::fs::flock(&self.queue, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => {
                // Held for an instant only; a failure to unlock would show as starvation of others.
                let unlocked = rustix::fs::flock(&self.queue, FlockOperation::Unlock);
                debug_assert!(unlocked.is_ok());
                false
            }
            Err(_) => true,
        }
    }

    /// Keeps new users out and waits until the present ones have left; [`WriterLock::open_again`]
    /// must follow.
    pub fn close(&self) {
        let mut state = self.state();
        while state.is_closed {
            state = self.wait(&self.reopened, state);
        }
        state.is_closed = true;
        while state.users > 0 {
            state = self.wait(&self.exit, state);
        }
    }

    /// Lets users in again.
    pub fn open_again(&self) {
        self.reopen(self.state());
    }

    fn reopen(&self, mut state: MutexGuard<'_, State>) {
        state.is_closed = false;
        self.reopened.notify_all();
        self.let_in(&state);
    }

    /// Gives the writer lock back if nobody uses it and `is_clean` holds (`WRITER-1`); says
    /// whether.
    pub fn release(&self, is_clean: impl FnOnce() -> bool) -> bool {
        let mut state = self.state();
        let released = state.is_held && state.users == 0 && is_clean();
        if released {
            if self.is_wanted() {
                *self.gave_way() = Some(Instant::now());
            }
            self.unlock();
            state.is_held = false;
            self.let_in(&state);
        }
        released
    }

    /// Lets other sessions have the writer lock when this one has stopped for good: it will never
    /// commit what it has in memory.
    pub fn abandon(&self) {
        let mut state = self.state();
        state.is_abandoned = true;
        if state.is_held {
            self.unlock();
            state.is_held = false;
        }
        self.let_in(&state);
        self.exit.notify_all();
    }

    /// Ends the session's part in the writer lock if it has none now; `false` when it has.
    pub fn abandon_if_unheld(&self) -> bool {
        let mut state = self.state();
        let is_unheld = !state.is_held && !state.is_acquiring;
        state.is_abandoned |= is_unheld;
        self.let_in(&state);
        is_unheld
    }

    /// Fails with `late` when it is not free for so long.
    fn acquire(&self, wait_max: Duration, late: ErrorKind) -> Result<()> {
        let mut wait = Wait::new(wait_max, late);
        self.nudge()?;
        let gave_way = self.gave_way().take();
        if let Some(left) = gave_way.and_then(|at| GIVES_WAY.checked_sub(at.elapsed())) {
            std::thread::sleep(left); // WRITER-3
        }
        // Who is first in the queue waits for the lock. A stranger who holds the queue does not.
        let queued = (&self.queue, &[LOCK, QUEUE][..]);
        self.lock_until(queued, &mut wait, |_| Ok(QUEUE_PAUSE))?;
        let nudged = Cell::new(Instant::now());
        let at_head = |waited: Duration| {
            // Who was nudged may have been just about to take it.
            if nudged.get().elapsed() >= NUDGE_REST {
                self.nudge()?;
                nudged.set(Instant::now());
            }
            Ok(match waited < SHORT_HOLD {
                true => (waited / 2).clamp(HEAD_PAUSE_MIN, HEAD_PAUSE_MAX),
                false => (waited / 50).min(LONG_PAUSE_MAX),
            })
        };
        let outcome = self
            .nudge()
            .and_then(|()| self.lock_until((&self.lock, &[LOCK][..]), &mut wait, at_head));
        // Another engine of this process may have given way to this one.
        self.gave_way().take();
        // Closing the process would release it too; an error here cannot happen on a valid fd.
        let unlocked = rustix::fs::flock(&self.queue, FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok());
        outcome
    }

    fn unlock(&self) {
        let unlocked = rustix::fs::flock(&self.lock, FlockOperation::Unlock);
        debug_assert!(unlocked.is_ok());
    }

    fn gave_way(&self) -> MutexGuard<'_, Option<Instant>> {
        self.gave_way.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn lock_until(
        &self,
        (file, names): (&OwnedFd, &[&str]),
        wait: &mut Wait,
        pause_after: impl Fn(Duration) -> Result<Duration>,
    ) -> Result<()> {
        let started = Instant::now();
        loop {
            if self.state().is_abandoned {
                return Err(abandoned());
            }
            match flock_now(file) {
                Ok(()) => return Ok(()),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => {}
                Err(error) => {
                    return Err(crate::error::io_error(
                        "cannot take the writer lock".into(),
                        error.into(),
                    ));
                }
            }
            wait.wait(&self.database, names)?;
            std::thread::sleep(pause_after(started.elapsed())?);
        }
    }
}

/// How long somebody waits for the writer lock, and what was done about it.
struct Wait {
    patience: Patience,
    /// What it fails with when it is over.
    late: ErrorKind,
    /// When it is looked whether somebody was killed who holds it.
    look: Instant,
}

impl Wait {
    fn new(wait_max: Duration, late: ErrorKind) -> Wait {
        Wait {
            patience: Patience::new(wait_max),
            late,
            look: Instant::now() + LOOK_AFTER,
        }
    }

    /// It is not free yet: `names`, the files of which one is locked, who holds it first.
    fn wait(&mut self, database: &DatabaseDir, names: &[&str]) -> Result<()> {
        let who = || describe_holder(database, names); // SESSION-6
        if let Some(why) = self.patience.look("the writer lock", database, who) {
            return Err(Error::new(self.late, why));
        }
        let now = Instant::now();
        if now >= self.look {
            self.look = now + LOOK_REST;
            free_killed_in(database);
        }
        Ok(())
    }
}

/// The writer lock is being taken. Unless it is finished, however that comes about, others may try
/// again.
struct Acquiring<'t> {
    writer_lock: &'t WriterLock,
}

impl Acquiring<'_> {
    /// The lock is held: brings the session up to date and makes it a user.
    fn finish(self, refresh: impl FnOnce() -> Result<()>) -> Result<()> {
        let locked = Locked {
            writer_lock: self.writer_lock,
        };
        if self.writer_lock.state().is_abandoned {
            return Err(abandoned());
        }
        refresh()?;
        let mut state = self.writer_lock.state();
        // WRITER-4
        while state.is_closed {
            state = self.writer_lock.wait(&self.writer_lock.reopened, state);
        }
        if state.is_abandoned {
            drop(state);
            return Err(abandoned());
        }
        state.is_held = true;
        state.users += 1;
        std::mem::forget(locked);
        Ok(())
    }
}

impl Drop for Acquiring<'_> {
    fn drop(&mut self) {
        let mut state = self.writer_lock.state();
        state.is_acquiring = false;
        self.writer_lock.let_in(&state);
    }
}

/// The lock is held, and given back unless the writer lock is taken.
struct Locked<'t> {
    writer_lock: &'t WriterLock,
}

impl Drop for Locked<'_> {
    fn drop(&mut self) {
        self.writer_lock.unlock();
    }
}

fn flock_now(file: &OwnedFd) -> rustix::io::Result<()> {
    rustix::fs::flock(file, FlockOperation::NonBlockingLockExclusive)
}

fn abandoned() -> Error {
    Error::new(
        ErrorKind::Stopped,
        "the session has stopped; close and reopen the database",
    )
}

/// Opens a file of locks.
pub(super) fn open_lock(database: &DatabaseDir, name: &str) -> Result<OwnedFd> {
    (database.open_file(name, Access::Make))
        .map(OwnedFd::from)
        .map_err(|error| {
            crate::error::io_error(
                format!("cannot open {}", database.join(name).display()),
                error,
            )
        })
}

#[cfg(test)]
mod tests;
