//! Sessions: being alive, and what must not be reclaimed yet.
//!
//! # Invariants
//! * `SESSION-1` A session lives as long as its process holds the `flock` on `sessions/ID.lock`;
//!   nothing else (no clock, no heartbeat) decides that.
//! * `SESSION-2` Extents that a commit S retired are reclaimed only when every live session's pin
//!   is ≥ S and no read in this process began before S.
//! * `SESSION-4` A session is born only while nobody has the writer lock: who has it knows whether
//!   others live.
//! * `SESSION-8` But one that only reads may be born beside a writer lock whose holder does not go
//!   on (it was stopped): it reads what is committed. When the holder goes on, it may reclaim what
//!   this session reads: then checksums refuse the read. Nobody reads foreign bytes. Where the
//!   holder has the catalog's write lock too, so that nobody can be born, it reads a copy
//!   (`READONLY-4`).
//! * `SESSION-3` A session advances its pin past S only after it has dropped every cached map
//!   that is older than S, and has registered as holder of the orphans it has open.

use crate::host::lock;
use crate::session::options::{Birth, EngineOptions};
use crate::session::peers::{Record, SESSIONS, describe_holder, free_if_killed};
use crate::session::writer_lock::{WriterLock, open_lock};
use crate::{Error, ErrorKind, Result};
use larder_catalog::waiting::Patience;
use larder_catalog::{BUSY_TIMEOUT, Catalog, CheckpointKind};
use larder_segment::directory::{Access, DatabaseDir};
use larder_space::format::{CommitSeq, SessionId};
use rustix::fd::OwnedFd;
use rustix::fs::{FlockOperation, flock};
use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long who reads beside others waits for the catalog's write lock.
const BESIDE_WAIT: Duration = Duration::from_millis(200);
/// Who has waited for the writer lock all the time waits so long for the catalog's lock, too.
const LOCK_WAIT_MIN: Duration = Duration::from_millis(500);

/// In the directory of a database: a flush of the log has failed. What the system has kept of the
/// log in memory may be on no medium then, and what is appended to it would be lost with it
/// (`FLUSH-4`).
const UNSOUND_LOG: &str = "log.unsound";

/// How long who found the door to the sessions closed waits.
const DOOR_PAUSE: Duration = Duration::from_millis(2);
/// What others retire waits so much longer for this session before it is reclaimed.
const PIN_REST: Duration = Duration::from_millis(100);

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
    pub(super) looked_at: Mutex<Instant>,
}

/// The door to them.
pub(super) const DOOR: &str = "sessions.lock";

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
        (writer_lock, birth): (&WriterLock, Birth),
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
        let wait_max = match birth {
            Birth::WriterLocked | Birth::InCopy => writer_lock.wait_max(),
            Birth::Within(wait_max) => wait_max,
            Birth::Beside => BESIDE_WAIT,
        };
        let mut patience = Patience::new(wait_max);
        loop {
            // First: who waits for it keeps nobody else from being born.
            match birth {
                Birth::WriterLocked | Birth::InCopy => writer_lock.begin(|| Ok(()))?, // SESSION-4
                Birth::Within(_) => writer_lock.begin_within(wait_max, || Ok(()))?,
                Birth::Beside => {} // SESSION-8
            }
            let left = patience.left(wait_max).min(BUSY_TIMEOUT);
            let lock_wait = left.max(LOCK_WAIT_MIN.min(wait_max));
            // Between the row and its lock file a session looks dead: nobody may look then. An
            // older larder waits for the writer lock with the door in hand.
            let born = match flock(&door, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Some(
                    waiting(catalog, lock_wait, || {
                        Liveness::be_born(database, catalog, label, now_ns)
                    })
                    .map_err(|error| late(error, birth)),
                ),
                Err(rustix::io::Errno::WOULDBLOCK | rustix::io::Errno::INTR) => None,
                Err(error) => Some(Err(crate::error::io_error(
                    "cannot lock sessions.lock".into(),
                    error.into(),
                ))),
            };
            if birth != Birth::Beside {
                writer_lock.end();
                writer_lock.release(|| true);
            }
            match born {
                Some(born) => return born,
                None => {
                    let who = || describe_holder(database, &[DOOR]);
                    if let Some(why) = patience.look("the door to the sessions", database, who) {
                        return Err(late(Error::new(ErrorKind::TimedOut, why), birth));
                    }
                    std::thread::sleep(DOOR_PAUSE);
                }
            }
        }
    }

    /// With the door and the writer lock in hand.
    fn be_born(
        database: &DatabaseDir,
        catalog: &Catalog,
        label: &str,
        now_ns: i64,
    ) -> Result<(Liveness, CommitSeq)> {
        match Liveness::try_be_born(database, catalog, label, now_ns) {
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                // HOST-1: what of the log can be copied without more space makes room.
                catalog.log()?.checkpoint(CheckpointKind::Truncate)?;
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
        let mut dead = Vec::new();
        for row in catalog.sessions().rows()? {
            if is_over(database, row.session)? {
                dead.push(row.session);
            }
        }
        bury(database, catalog, &dead)?;
        let (id, pin) = {
            let owner = (std::process::id(), crate::host::process_owner().0);
            catalog.sessions().begin(owner, label, now_ns)?
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

    /// Whether others reclaim more once they know of this pin, and it was not written just now.
    pub fn is_pin_due(&self, pin: CommitSeq) -> bool {
        let is_rested = lock(&self.pinned_at).is_none_or(|at| at.elapsed() >= PIN_REST);
        is_rested && pin.0 > self.row_pin.load(Ordering::SeqCst)
    }

    /// The catalog has this pin.
    pub fn note_pin(&self, pin: CommitSeq) {
        self.row_pin.store(pin.0, Ordering::SeqCst);
        *lock(&self.pinned_at) = Some(Instant::now());
    }

    /// Ends the session. One that only reads waits for nobody: where the catalog cannot be written
    /// now, whoever comes next buries it.
    pub fn end(&self, catalog: &Catalog, birth: Birth) -> Result<()> {
        if birth == Birth::WriterLocked {
            catalog.sessions().end(self.id)?;
        } else {
            let ended = waiting(catalog, BESIDE_WAIT, || {
                Ok(catalog.sessions().end(self.id)?)
            });
            match ended {
                Err(error) if error.kind() == ErrorKind::Busy => {
                    tracing::debug!("{error}; the session is left to be buried");
                    return Ok(());
                }
                ended => ended?,
            }
        }
        remove_files(&self.database, self.id)
    }
}

/// Opens the catalog for a session that is to be born so: who reads waits for others as long as for
/// the writer lock.
pub(crate) fn open_catalog(directory: &DatabaseDir, options: &EngineOptions) -> Result<Catalog> {
    let wait_max = match options.birth {
        Birth::WriterLocked | Birth::InCopy => {
            return Ok(Catalog::open_in(directory, &options.for_catalog())?);
        }
        Birth::Within(wait_max) => wait_max,
        Birth::Beside => BESIDE_WAIT,
    };
    Catalog::open_in_within(directory, &options.for_catalog(), wait_max)
        .map_err(|error| late(error.into(), options.birth))
}

/// Does something that waits for the catalog's write lock no longer than so.
fn waiting<T>(
    catalog: &Catalog,
    wait_max: Duration,
    work: impl FnOnce() -> Result<T>,
) -> Result<T> {
    catalog.wait_at_most(Some(wait_max));
    let done = work();
    catalog.wait_at_most(None);
    done
}

/// A lock was not to be had: whether who asked goes on without it.
fn late(error: Error, birth: Birth) -> Error {
    match (error.kind(), birth) {
        (ErrorKind::TimedOut, Birth::Within(_) | Birth::Beside) => error.with_kind(ErrorKind::Busy),
        _ => error,
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
    if !catalog
        .log()?
        .checkpoint(CheckpointKind::Truncate)?
        .is_complete
    {
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
pub(super) fn bury_if_dead(
    database: &DatabaseDir,
    catalog: &Catalog,
    session: SessionId,
) -> Result<bool> {
    let is_over = is_over(database, session)?;
    if is_over {
        bury(database, catalog, &[session])?;
    }
    Ok(!is_over)
}

/// Ends sessions whose processes are gone, in one commit.
fn bury(database: &DatabaseDir, catalog: &Catalog, dead: &[SessionId]) -> Result<()> {
    if dead.is_empty() {
        return Ok(());
    }
    catalog.sessions().end_all(dead)?;
    dead.iter()
        .try_for_each(|session| remove_files(database, *session))
}

/// Whether the process of a session is gone; what waits for it is freed then. The caller has the
/// door, so that nobody is being born.
fn is_over(database: &DatabaseDir, session: SessionId) -> Result<bool> {
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
                return Ok(false);
            }
            free_if_killed(database, &name);
        }
    }
    Ok(true)
}

#[cfg(test)]
mod tests;
