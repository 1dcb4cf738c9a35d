//! Sessions: being alive, and what must not be reclaimed yet.
//!
//! # Invariants
//! * `SESSION-1` A session lives as long as its process holds the `flock` on `sessions/ID.lock`;
//!   nothing else (no clock, no heartbeat) decides that.
//! * `SESSION-2` Extents that a commit S retired are reclaimed only when every live session's pin
//!   is ≥ S and no read in this process began before S.
//! * `SESSION-4` A session is born only while nobody has the turn: who has it knows whether others
//!   live.
//! * `SESSION-8` But one that only reads may be born beside a turn whose holder does not go on (it
//!   was stopped): it reads what is committed. When the holder goes on, it may reclaim what this
//!   session reads: then checksums refuse the read. Nobody reads foreign bytes.
//! * `SESSION-3` A session advances its pin past S only after it has dropped every cached map
//!   that is older than S, and has registered as holder of the orphans it has open.

use crate::engine::{Engine, lock};
use crate::session::options::Birth;
use crate::session::peers::{Record, SESSIONS, free_if_killed, free_killed_in};
use crate::session::writer_lock::Turn;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{Catalog, CheckpointKind, InodeChange};
use larder_segment::directory::{Access, DatabaseDir};
use larder_space::format::{CommitSeq, Ino, SessionId, StoreId};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use std::collections::HashSet;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, Weak};
use std::time::{Duration, Instant};

/// A group that nobody adds to for this part of the commit interval is committed (`COMMIT-5`): 14
/// ms, so that the commit too has ended 20 ms after the last change.
const IDLE_DIVISOR: u32 = 7;
/// How often the background looks for foreign commits and due groups: often enough for `COMMIT-5`.
const TICK: Duration = Duration::from_millis(15);
/// No sooner than so.
const TICK_MIN: Duration = Duration::from_millis(1);
/// The same in the process of a program that has loaded the extension: it only moves its pin and
/// reclaims, by commits.
const TICK_OF_EXTENSION: Duration = Duration::from_secs(1);
/// What others retire waits so much longer for this session before it is reclaimed.
const PIN_REST: Duration = Duration::from_millis(100);

/// How often the other sessions are looked at, whether they were killed and cannot end.
const LOOK_REST: Duration = Duration::from_secs(1);

/// In the directory of a database: a flush of the log has failed. What the system has kept of the
/// log in memory may be on no medium then, and what is appended to it would be lost with it
/// (`FLUSH-4`).
const UNSOUND_LOG: &str = "log.unsound";

/// How long who found the door to the sessions closed waits.
const DOOR_PAUSE: Duration = Duration::from_millis(2);

/// That this process's session lives.
pub(crate) struct Liveness {
    pub id: SessionId,
    database: DatabaseDir,
    lock: OwnedFd,
    record: Record,
    /// The pin as the catalog has it.
    pub(crate) row_pin: AtomicU64,
    /// When it was written last.
    pinned_at: Mutex<Option<Instant>>,
    /// When the other sessions were looked at last, whether they were killed.
    looked_at: Mutex<Instant>,
}

/// The door to them.
const DOOR: &str = "sessions.lock";

pub(crate) fn open_lock(database: &DatabaseDir, name: &str) -> Result<OwnedFd> {
    (database.open_file(name, Access::Make))
        .map(OwnedFd::from)
        .map_err(|error| {
            crate::error::io_error(
                format!("cannot open {}", database.join(name).display()),
                error,
            )
        })
}

pub(crate) fn lock_file(session: SessionId) -> String {
    format!("{SESSIONS}/{session}.lock")
}

/// See `barrier`.
pub(crate) fn barrier_file(session: SessionId) -> String {
    format!("{SESSIONS}/{session}.barrier")
}

/// See `company`.
pub(crate) fn writer_file(session: SessionId) -> String {
    format!("{SESSIONS}/{session}.writes")
}

/// Whether nobody has the lock of a session (`SESSION-1`). For those who only want to know: it
/// buries nobody.
pub(crate) fn is_dead(database: &DatabaseDir, session: SessionId) -> bool {
    match database.open_file(lock_file(session), Access::Read) {
        Ok(file) => flock(&file, FlockOperation::NonBlockingLockShared).is_ok(),
        Err(error) => error.kind() == std::io::ErrorKind::NotFound,
    }
}

impl Liveness {
    /// Buries dead sessions and begins a new one, pinned at the newest commit.
    pub fn begin(
        database: &DatabaseDir,
        (turn, birth): (&Turn, Birth),
        catalog: &Catalog,
        label: &str,
        now_ns: i64,
    ) -> Result<(Liveness, CommitSeq)> {
        // A copy of a database may lack it: it is empty while nobody has the database open.
        database.make_dir(SESSIONS).map_err(|error| {
            let path = database.join(SESSIONS);
            crate::error::io_error(format!("cannot create {}", path.display()), error)
        })?;
        let door = open_lock(database, DOOR)?;
        loop {
            // First: who waits for it keeps nobody else from being born.
            match birth {
                Birth::InTurn => turn.begin(|| Ok(()))?, // SESSION-4
                Birth::Within(wait_max) => turn.begin_within(wait_max, || Ok(()))?,
                Birth::Beside => {} // SESSION-8
            }
            // Between the row and its lock file a session looks dead: nobody may look then. An
            // older larder waits for the turn with the door in hand.
            let born = match flock(&door, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Some(Liveness::be_born(database, catalog, label, now_ns)),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => None,
                Err(error) => Some(Err(crate::error::io_error(
                    "cannot lock sessions.lock".into(),
                    error.into(),
                ))),
            };
            if birth != Birth::Beside {
                turn.end();
                turn.release(|| true);
            }
            match born {
                Some(born) => return born,
                None => std::thread::sleep(DOOR_PAUSE),
            }
        }
    }

    /// With the door and the turn in hand.
    fn be_born(
        database: &DatabaseDir,
        catalog: &Catalog,
        label: &str,
        now_ns: i64,
    ) -> Result<(Liveness, CommitSeq)> {
        match Liveness::try_be_born(database, catalog, label, now_ns) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                // HOST-1: what of the log can be copied without more space makes room.
                catalog.checkpoint(CheckpointKind::Truncate)?;
                Liveness::try_be_born(database, catalog, label, now_ns)
            }
            born => born,
        }
    }

    fn try_be_born(
        database: &DatabaseDir,
        catalog: &Catalog,
        label: &str,
        now_ns: i64,
    ) -> Result<(Liveness, CommitSeq)> {
        copy_unsound_log(database, catalog)?;
        for row in catalog.sessions()? {
            bury_if_dead(database, catalog, row.session)?;
        }
        let (id, pin) = {
            let owner = (std::process::id(), crate::host::process_owner().0);
            catalog.begin_session(owner, label, now_ns)?
        };
        let file = open_lock(database, &lock_file(id))?;
        flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(|error| {
            crate::error::io_error(
                format!("session {id} cannot lock its own file"),
                error.into(),
            )
        })?;
        let record = Record::own(label, now_ns);
        note(&record, &file);
        let session = Liveness {
            id,
            database: database.clone(),
            lock: file,
            record,
            row_pin: AtomicU64::new(pin.0),
            pinned_at: Mutex::default(),
            looked_at: Mutex::new(Instant::now()),
        };
        Ok((session, pin))
    }

    /// A flush of the log has failed: nothing is appended to it before all of it was copied.
    pub fn mark_log_unsound(&self) {
        // It need not outlive a power failure: neither does what was not flushed.
        if let Err(error) = self.database.open_file(UNSOUND_LOG, Access::Make) {
            tracing::error!(
                "the flush of the log failed, and {UNSOUND_LOG} cannot be created ({error}); \
                 before anything else is \
                 written, copy the log by 'sqlite3 catalog.db \"PRAGMA wal_checkpoint(TRUNCATE)\"'"
            );
        }
    }

    /// It serves this connection of the kernel from now on.
    pub fn serves(&self, connection: u32) {
        note(&self.record.clone().serving(connection), &self.lock);
    }

    /// Its engine has stopped.
    pub fn stops(&self, why: &str) {
        // What it serves stands in the file.
        if let Some(record) = Record::read(&self.database, lock_file(self.id)) {
            note(&record.stopped(why), &self.lock);
        }
    }

    /// Ends the session.
    pub fn end(&self, catalog: &Catalog) -> Result<()> {
        catalog.end_session(self.id)?;
        remove_files(&self.database, self.id)
    }
}

/// Copies the log, as the system shows it, into the catalog's file, which is flushed, where a flush
/// of the log has failed: before the commit that a session is born by.
fn copy_unsound_log(database: &DatabaseDir, catalog: &Catalog) -> Result<()> {
    let failed = |what: &str, error| {
        let mark = database.join(UNSOUND_LOG);
        crate::error::io_error(format!("cannot {what} {}", mark.display()), error)
    };
    let mark = (database.kind(UNSOUND_LOG)).map_err(|error| failed("examine", error))?;
    if mark.is_none() {
        return Ok(());
    }
    if !catalog.checkpoint(CheckpointKind::Truncate)?.is_complete {
        return Err(Error::new(
            ErrorKind::Busy,
            "a flush of the catalog's log has failed, and somebody reads it, so that it cannot be \
             copied; end who has the \
             database open, and try again",
        ));
    }
    tracing::warn!("a flush of the catalog's log had failed; all of it was copied");
    (database.remove_file(UNSOUND_LOG)).map_err(|error| failed("remove", error))
}

/// Others name a session by its record, and free what waits for it when it is killed; nothing else
/// depends on it.
fn note(record: &Record, lock: &OwnedFd) {
    if let Err(error) = record.write(lock) {
        tracing::debug!("the session cannot be described: {error}");
    }
}

fn remove_files(database: &DatabaseDir, session: SessionId) -> Result<()> {
    for name in [
        barrier_file(session),
        writer_file(session),
        lock_file(session),
    ] {
        database.remove_file(&name).map_err(|error| {
            let path = database.join(&name);
            crate::error::io_error(format!("cannot remove {}", path.display()), error)
        })?;
    }
    Ok(())
}

/// Ends the session if its process is gone (`SESSION-1`); says whether it lives.
fn bury_if_dead(database: &DatabaseDir, catalog: &Catalog, session: SessionId) -> Result<bool> {
    let name = lock_file(session);
    match database.open_file(&name, Access::ReadWrite) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {}
        Err(error) => {
            let path = database.join(&name);
            return Err(crate::error::io_error(
                format!("cannot open {}", path.display()),
                error,
            ));
        }
        Ok(file) => {
            if flock(&file, FlockOperation::NonBlockingLockExclusive).is_err() {
                return Ok(true);
            }
            free_if_killed(database, &name);
        }
    }
    catalog.end_session(session)?;
    remove_files(database, session)?;
    Ok(false)
}

impl Engine {
    /// The session serves this connection of the kernel.
    pub fn serves(&self, connection: u32) {
        self.session.liveness.serves(connection);
    }

    // ---- the background ---------------------------------------------------------------------

    pub(crate) fn start_background(self: &Arc<Engine>) -> Result<()> {
        let weak = Arc::downgrade(self);
        let thread = std::thread::Builder::new()
            .name("larder-commit".into())
            .spawn(move || background(&weak))
            .map_err(|error| crate::error::io_error("cannot start a thread".into(), error))?;
        *lock(&self.background) = Some(thread);
        Ok(())
    }

    pub(crate) fn stop_background(&self) {
        *lock(&self.stop_signal.0) = true;
        self.stop_signal.1.notify_all();
        let thread = lock(&self.background).take();
        if let Some(thread) =
            thread.filter(|thread| thread.thread().id() != std::thread::current().id())
            && thread.join().is_err()
        {
            tracing::error!("the background thread panicked");
        }
    }

    /// Sleeps until the next tick; `false` when the engine closes.
    fn wait_for_tick(&self) -> bool {
        let stopping = lock(&self.stop_signal.0);
        let (stopping, _) = self
            .stop_signal
            .1
            .wait_timeout(stopping, self.pause())
            .unwrap_or_else(PoisonError::into_inner);
        !*stopping
    }

    fn pause(&self) -> Duration {
        match self.session.options.is_extension {
            true => TICK_OF_EXTENSION,
            false => (self.idle_left()).map_or(TICK, |left| left.clamp(TICK_MIN, TICK)),
        }
    }

    /// How long until the open group has been idle for long enough to be committed (`COMMIT-5`);
    /// `None` while something is being changed, or there is no group.
    pub(crate) fn idle_left(&self) -> Option<Duration> {
        let since = self.turn.idle_since()?;
        let is_any = self.is_running() && !lock(&self.group).is_empty();
        let idle = self.session.options.commit_interval / IDLE_DIVISOR;
        is_any.then(|| idle.saturating_sub(since.elapsed()))
    }

    fn tick(self: &Arc<Engine>) -> Result<()> {
        if self.check_running().is_err() {
            return Ok(());
        }
        self.notice_foreign()?;
        self.advance_pin()?;
        self.free_killed_if_due();
        if self.session.options.is_extension {
            if let Err(error) = self.reclaim_left() {
                tracing::warn!("space is not given back: {error}");
            }
            return Ok(()); // The rest is for those whose process it is.
        }
        self.commit_if_due()?;
        self.write_access_times_if_due();
        if let Err(error) = self.keep_held(false) {
            tracing::debug!("what was refused stays in memory: {error}");
        }
        if let Err(error) = self.checkpoint_if_wanted() {
            // Nothing is lost: the log is only longer than it should be.
            tracing::warn!("a checkpoint failed: {error}");
        }
        self.grow_ahead();
        if self.session.workspace.is_none() {
            self.compact_if_due(); // WORKSPACE-8
        }
        self.shrink_cache();
        crate::write::buffers::rest();
        Ok(())
    }

    /// Programs on another mount wait until somebody finds that its server was killed.
    fn free_killed_if_due(&self) {
        let mut looked_at = lock(&self.session.liveness.looked_at);
        if looked_at.elapsed() >= LOOK_REST {
            *looked_at = Instant::now();
            free_killed_in(&self.session.directory);
            self.find_solitude();
        }
    }

    // ---- what the catalog says now ----------------------------------------------------------

    /// Runs when the turn was just taken: caches and free space must know what others committed.
    pub(crate) fn refresh_with_turn(&self) -> Result<()> {
        if let Some(private) = &self.private {
            return self.begin_to_write(private);
        }
        self.notice_foreign()?;
        lock(&self.group).has_others =
            self.catalog.sessions()?.len() > 1 || self.catalog.oldest_transaction_pin()?.is_some();
        let mut room = self.lock_room();
        room.oldest_retired = None;
        if !room.is_loaded() {
            // Who only reads does not look.
            self.may_have_orphans.store(true, Ordering::SeqCst);
        }
        drop(room);
        self.sync_space()
    }

    /// Learns which stores have constraints of the user's.
    pub(crate) fn find_constraints(&self) -> Result<()> {
        let version = self.catalog.schema_version()?;
        if self.schema_version.load(Ordering::SeqCst) == version {
            return Ok(());
        }
        let mut found = HashSet::new();
        for row in self.catalog.stores()? {
            if self.catalog.has_constraints(row.store)? {
                found.insert(row.store);
            }
        }
        *self
            .constrained
            .write()
            .unwrap_or_else(PoisonError::into_inner) = found;
        // A change in between is found by the next look.
        self.schema_version.store(version, Ordering::SeqCst);
        Ok(())
    }

    // ---- pins and orphans -------------------------------------------------------------------

    /// What this process can still reach.
    fn own_pin(&self) -> CommitSeq {
        self.session.readers.oldest(&self.known_seq)
    }

    /// Other sessions that live; the dead are buried on the way.
    pub(crate) fn other_pins(&self) -> Result<Vec<(SessionId, CommitSeq)>> {
        let mut pins = Vec::new();
        for row in self.catalog.sessions()? {
            if row.session == self.session.liveness.id {
                continue;
            }
            let door = open_lock(&self.session.directory, DOOR)?;
            // A session is being born or buried: take it as alive.
            let is_alive = flock(&door, FlockOperation::NonBlockingLockExclusive).is_err()
                || bury_if_dead(&self.session.directory, &self.catalog, row.session)?;
            if is_alive {
                pins.push((row.session, row.pin_seq));
            }
        }
        Ok(pins)
    }

    /// The newest commit whose retired extents nobody can reach any more (`SESSION-2`).
    pub(crate) fn reclaim_horizon(&self) -> Result<CommitSeq> {
        if self.turn.is_held() && !lock(&self.group).has_others {
            return Ok(self.own_pin()); // SESSION-4
        }
        // The sessions are read after our own newest commit: a session born later pins at least it.
        let others = self.other_pins()?;
        let kept = self.catalog.oldest_transaction_pin()?; // WORKSPACE-2
        let oldest = others.into_iter().map(|(_, pin)| pin).chain(kept).min();
        Ok(oldest.map_or_else(|| self.own_pin(), |pin| pin.min(self.own_pin())))
    }

    /// Lets other sessions reclaim what this one has stopped using; not at each tick, since that is
    /// a commit, and has everybody look at the catalog anew.
    fn advance_pin(&self) -> Result<()> {
        let pin = self.own_pin();
        let is_due =
            lock(&self.session.liveness.pinned_at).is_none_or(|at| at.elapsed() >= PIN_REST);
        if is_due
            && pin.0 > self.session.liveness.row_pin.load(Ordering::SeqCst)
            && self.catalog.sessions()?.len() > 1
        {
            self.catalog.set_pin(self.session.liveness.id, pin)?;
            self.session.liveness.row_pin.store(pin.0, Ordering::SeqCst);
            *lock(&self.session.liveness.pinned_at) = Some(Instant::now());
        }
        Ok(())
    }

    /// Whether something of the user's refuses that this orphan goes; then it stays until that
    /// does.
    fn is_kept_by_constraint(&self, store: StoreId, ino: Ino) -> bool {
        self.is_constrained(store)
            && self
                .catalog
                .try_inode(store, &InodeChange::Delete(ino))
                .inspect_err(|refused| {
                    tracing::debug!("inode {ino} of store {store} stays: {refused}")
                })
                .is_err()
    }

    /// Orphans that nobody holds and that every session knows to be without a name.
    pub(crate) fn lost_orphans(&self, horizon: CommitSeq) -> Result<Vec<(StoreId, Ino)>> {
        let orphans = self.catalog.orphans()?;
        if orphans.is_empty() {
            return Ok(Vec::new());
        }
        let alive: HashSet<SessionId> = self.other_pins()?.into_iter().map(|(id, _)| id).collect();
        let holders = self.catalog.holders()?;
        Ok(orphans
            .into_iter()
            .filter(|&(store, ino, seq)| {
                let is_held = holders.iter().any(|&(s, i, holder)| {
                    (s, i) == (store, ino)
                        && (holder == self.session.liveness.id || alive.contains(&holder))
                });
                !is_held && seq <= horizon && !self.is_kept_by_constraint(store, ino)
            })
            .map(|(store, ino, _)| (store, ino))
            .collect())
    }
}

fn background(weak: &Weak<Engine>) {
    loop {
        let Some(engine) = weak.upgrade() else { return };
        if !engine.wait_for_tick() {
            return;
        }
        let tick = std::panic::AssertUnwindSafe(|| engine.tick());
        let why = match std::panic::catch_unwind(tick) {
            Ok(Ok(())) => continue,
            Ok(Err(error)) if matches!(error.kind(), ErrorKind::Busy | ErrorKind::TimedOut) => {
                tracing::warn!("background: {error}; trying again");
                continue;
            }
            Ok(Err(error)) => background_failure(&error),
            Err(_) => {
                "the background panicked, which is a defect; reopen the database, and report it"
                    .into()
            }
        };
        // Another thread's commit must end before the turn is abandoned.
        let _no_commit = engine.commit_lock.lock();
        engine.stop(why);
    }
}

fn background_failure(error: &Error) -> String {
    format!(
        "the background commit failed and the outcome is unknown ({error}); close and reopen the \
         database"
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_catalog::{CatalogOptions, DatabaseInit};

    fn create(dir: &DatabaseDir) -> Catalog {
        let init = DatabaseInit {
            database_id: [7; 16],
            capacity_bytes: 0,
            retention_ns: 0,
            now_ns: 1,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
        };
        Catalog::create_in(dir, &CatalogOptions::default(), &init).unwrap()
    }

    /// A session that waits for the turn keeps no other one from being born, or from looking who
    /// lives.
    #[test]
    fn who_waits_for_the_turn_keeps_the_door_open() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let catalog = create(&database);
        let (mine, others) = (
            Turn::open(dir.path()).unwrap(),
            Turn::open(dir.path()).unwrap(),
        );
        others.begin(|| Ok(())).unwrap();
        std::thread::scope(|scope| {
            let begun = scope.spawn(|| {
                Liveness::begin(&database, (&mine, Birth::InTurn), &catalog, "waiting", 1)
            });
            while !others.is_wanted() {
                assert!(!begun.is_finished(), "SESSION-4");
                std::thread::yield_now();
            }
            let door = open_lock(&database, DOOR).unwrap();
            let is_open = flock(&door, FlockOperation::NonBlockingLockExclusive).is_ok();
            drop(door);
            others.end();
            assert!(others.release(|| true));
            let (session, _) = begun.join().unwrap().unwrap();
            session.end(&catalog).unwrap();
            assert!(is_open);
        });
    }

    #[test]
    fn the_dead_are_buried_and_the_living_are_not() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let catalog = create(&database);
        let turn = Turn::open(dir.path()).unwrap();
        let begin = |label: &str, now_ns| {
            Liveness::begin(&database, (&turn, Birth::InTurn), &catalog, label, now_ns).unwrap()
        };
        let (living, _) = begin("living", 1);
        let (dead, _) = begin("dead", 2);
        let dead_id = dead.id;
        drop(dead); // As a kill does: the lock is gone, the row and the file are not.
        let (newborn, _) = begin("newborn", 3);
        let ids: Vec<SessionId> = catalog
            .sessions()
            .unwrap()
            .iter()
            .map(|row| row.session)
            .collect();
        assert_eq!(ids, [living.id, newborn.id], "SESSION-1");
        assert!(!dir.path().join(lock_file(dead_id)).exists());
        living.end(&catalog).unwrap();
        newborn.end(&catalog).unwrap();
        assert!(catalog.sessions().unwrap().is_empty());
    }
}
