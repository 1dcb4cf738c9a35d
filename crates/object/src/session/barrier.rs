//! The visibility barrier: a command that has ended is seen by every mount.
//!
//! A mount learns of the commits of others when it looks, a few milliseconds later. A command that
//! ends asks each mount to look now, and waits for the answers.
//!
//! # Words
//! A *follower* is a session that caches hang on outside of it: a mount, with its kernel. A
//! *request* asks it to take in all that is committed.
//!
//! ```text
//!  command:   commit, close ──▶ append a byte ──▶ wait until answered ≥ length ──▶ end
//!                                    │ (event)            ▲
//!  follower:  wait ──────────────────▶ length, catch up ──┘ write answered = length
//! ```
//!
//! # Invariants
//! * `BARRIER-1` A follower answers a length only when it has taken in, and told its caches, what
//!   was committed before the file had it.
//! * `BARRIER-2` Who waits holds no lock that others wait for, waits for no longer than it was told
//!   to, and not for the dead.
//!
//! # The file
//! `sessions/ID.barrier` lives as long as its follower: u64 `answered`, little-endian; the
//! follower's name for people, zeros up to [`HEADER_BYTES`]; one byte for each request. It is never
//! shortened.

use crate::Result;
use crate::error::io_error;
use crate::session::liveness::{barrier_file, is_dead};
use crate::session::peers::SESSIONS;
use larder_segment::directory::{Access, DatabaseDir};
use larder_space::format::SessionId;
use rustix::fd::OwnedFd;
use rustix::fs::OFlags;
use rustix::fs::inotify::{self, CreateFlags, WatchFlags};
use std::ffi::OsStr;
use std::fs::File;
use std::io::{self, ErrorKind, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Where requests begin.
const HEADER_BYTES: u64 = 4096;
/// Where the name begins.
const NAME_OFFSET: u64 = 8;
/// How often who waits looks.
const LOOK: Duration = Duration::from_micros(200);
/// How often a follower looks that the system tells of no events.
const LOOK_WITHOUT_EVENTS: Duration = Duration::from_millis(5);

/// The follower's side.
pub struct Follower {
    database: DatabaseDir,
    session: SessionId,
    file: File,
    /// Tells of requests; none: the system has no more of them.
    events: Option<OwnedFd>,
    seen: AtomicU64,
    is_over: AtomicBool,
}

impl Follower {
    pub(crate) fn new(
        database: &DatabaseDir,
        session: SessionId,
        name: &str,
    ) -> io::Result<Follower> {
        let file = database.open_file(barrier_file(session), Access::Make)?;
        file.set_len(0)?;
        let name_bytes_max = (HEADER_BYTES - NAME_OFFSET) as usize;
        let name = &name.as_bytes()[..name.len().min(name_bytes_max)];
        file.write_all_at(&HEADER_BYTES.to_le_bytes(), 0)?;
        file.write_all_at(name, NAME_OFFSET)?;
        file.set_len(HEADER_BYTES)?;
        let events = watch(&file)
            .inspect_err(|error| tracing::debug!("session {session}: {error}; polled"))
            .ok();
        Ok(Follower {
            database: database.clone(),
            session,
            file,
            events,
            seen: AtomicU64::new(HEADER_BYTES),
            is_over: AtomicBool::new(false),
        })
    }

    /// Waits for requests; returns the length to answer. `None` after [`Follower::stop`], and when
    /// the file fails. Called by one thread.
    pub fn next(&self) -> Option<u64> {
        loop {
            if self.is_over.load(Ordering::SeqCst) {
                return None;
            }
            match self.file.metadata() {
                Ok(found) if found.len() > self.seen.load(Ordering::Relaxed) => {
                    self.seen.store(found.len(), Ordering::Relaxed);
                    return Some(found.len());
                }
                Ok(_) => {}
                Err(error) => {
                    tracing::warn!("session {}: {error}; nobody waits for it", self.session);
                    return None;
                }
            }
            self.wait_for_event();
        }
    }

    fn wait_for_event(&self) {
        let Some(events) = &self.events else {
            return std::thread::sleep(LOOK_WITHOUT_EVENTS);
        };
        // What the events say does not matter: the file is looked at.
        let mut ignored = [0_u8; 1024];
        if let Err(error) = rustix::io::read(events, &mut ignored)
            && error != rustix::io::Errno::INTR
        {
            tracing::debug!("session {}: {error}", self.session);
            std::thread::sleep(LOOK_WITHOUT_EVENTS);
        }
    }

    /// All that was committed before the file had this length is known (`BARRIER-1`).
    pub fn answer(&self, length: u64) {
        if let Err(error) = self.file.write_all_at(&length.to_le_bytes(), 0) {
            tracing::warn!("session {}: {error}; commands wait", self.session);
        }
    }

    /// Has [`Follower::next`] return `None`, and nobody ask any more.
    pub fn stop(&self) {
        self.is_over.store(true, Ordering::SeqCst);
        // This is the event too.
        let ended = ask(&self.database, self.session)
            .and_then(|_| self.database.remove_file(barrier_file(self.session)));
        if let Err(error) = ended {
            tracing::debug!("session {}: {error}", self.session);
        }
        // Who has asked already is not kept waiting.
        self.answer(u64::MAX);
    }
}

fn watch(file: &File) -> io::Result<OwnedFd> {
    let events = inotify::init(CreateFlags::CLOEXEC)?;
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    inotify::add_watch(&events, path, WatchFlags::MODIFY)?;
    Ok(events)
}

/// Appends a request; returns the file and the length that answers it.
fn ask(database: &DatabaseDir, session: SessionId) -> io::Result<(File, u64)> {
    let mut file = database.open_file(barrier_file(session), Access::ReadWrite)?;
    rustix::fs::fcntl_setfl(&file, OFlags::APPEND)?;
    file.write_all(b".")?;
    // Others may have asked meanwhile: their answer comes later than ours could.
    let length = file.metadata()?.len();
    Ok((file, length))
}

/// A request that waits.
struct Request {
    session: SessionId,
    file: File,
    length: u64,
}

impl Request {
    fn is_answered(&self) -> io::Result<bool> {
        let mut answered = [0; 8];
        self.file.read_exact_at(&mut answered, 0)?;
        Ok(u64::from_le_bytes(answered) >= self.length)
    }

    fn name(&self) -> String {
        let mut name = vec![0; (HEADER_BYTES - NAME_OFFSET) as usize];
        let read = self.file.read_exact_at(&mut name, NAME_OFFSET);
        let end = name
            .iter()
            .position(|&byte| byte == 0)
            .filter(|_| read.is_ok());
        match end {
            Some(end) if end > 0 => String::from_utf8_lossy(&name[..end]).into_owned(),
            _ => format!("session {}", self.session),
        }
    }
}

/// Waits until all followers of the database in directory `path` have taken in what was committed
/// before; returns the names of those that did not within `wait_max` (`BARRIER-2`). The caller has
/// nothing of the database open that others may wait for. Cost: without followers, one listing;
/// else about a millisecond.
pub fn await_followers(path: &Path, wait_max: Duration) -> Result<Vec<String>> {
    let failed = |error| {
        io_error(
            format!("cannot ask the mounts of {}", path.display()),
            error,
        )
    };
    let deadline = Instant::now() + wait_max;
    let database = DatabaseDir::open(path).map_err(failed)?;
    await_all(&database, None, deadline).map_err(failed)
}

/// The same for a session that may be a follower itself, until `deadline`.
pub(crate) fn await_all(
    database: &DatabaseDir,
    but: Option<SessionId>,
    deadline: Instant,
) -> io::Result<Vec<String>> {
    let mut requests = ask_all(database, but)?;
    loop {
        let mut waiting = Vec::new();
        for request in requests {
            if !request.is_answered()? {
                waiting.push(request);
            }
        }
        if waiting.is_empty() || Instant::now() >= deadline {
            waiting.retain(|request| !is_dead(database, request.session));
            return Ok(waiting.iter().map(Request::name).collect());
        }
        requests = waiting;
        std::thread::sleep(LOOK);
    }
}

/// Whose file of requests has this name; `None`: it is no such file.
pub(crate) fn session_of(name: &OsStr) -> Option<SessionId> {
    let number = name.to_str()?.strip_suffix(".barrier")?;
    number.parse().ok().map(SessionId)
}

fn ask_all(database: &DatabaseDir, but: Option<SessionId>) -> io::Result<Vec<Request>> {
    let mut requests = Vec::new();
    for name in database.open_dir(SESSIONS)?.names()? {
        let Some(session) = session_of(&name) else {
            continue;
        };
        if Some(session) == but || is_dead(database, session) {
            continue;
        }
        match ask(database, session) {
            Ok((file, length)) => requests.push(Request {
                session,
                file,
                length,
            }),
            Err(error) if error.kind() == ErrorKind::NotFound => {} // It has ended.
            Err(error) => return Err(error),
        }
    }
    Ok(requests)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::session::liveness::lock_file;

    const WAIT: Duration = Duration::from_secs(20);

    const ID: SessionId = SessionId(7);

    fn place() -> (tempfile::TempDir, DatabaseDir) {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        database.make_dir(SESSIONS).unwrap();
        (dir, database)
    }

    /// As a session does.
    fn live(database: &DatabaseDir) -> File {
        let lock = database.open_file(lock_file(ID), Access::Make).unwrap();
        lock.lock().unwrap();
        lock
    }

    #[test]
    fn every_request_is_answered_by_work_that_began_after_it() {
        let (dir, database) = place();
        let _lock = live(&database);
        let follower = Follower::new(&database, ID, "mount at /m").unwrap();
        let (committed, told) = (AtomicU64::new(0), AtomicU64::new(0));
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Some(length) = follower.next() {
                    let seen = committed.load(Ordering::SeqCst);
                    std::thread::sleep(Duration::from_micros(300));
                    told.fetch_max(seen, Ordering::SeqCst);
                    follower.answer(length);
                }
            });
            let askers: Vec<_> = (0..4)
                .map(|_| {
                    scope.spawn(|| {
                        for _ in 0..50 {
                            let mine = committed.fetch_add(1, Ordering::SeqCst) + 1;
                            let late = await_followers(dir.path(), WAIT).unwrap();
                            assert_eq!(late, Vec::<String>::new());
                            assert!(told.load(Ordering::SeqCst) >= mine, "BARRIER-1");
                        }
                    })
                })
                .collect();
            askers.into_iter().for_each(|asker| asker.join().unwrap());
            follower.stop();
        });
        assert_eq!(database.kind(barrier_file(ID)).unwrap(), None);
        assert_eq!(
            await_followers(dir.path(), WAIT).unwrap(),
            Vec::<String>::new()
        );
    }

    #[test]
    fn who_does_not_answer_is_named_and_the_dead_are_not_waited_for() {
        let (dir, database) = place();
        let lock = live(&database);
        let follower = Follower::new(&database, ID, "mount at /m, process 1").unwrap();
        let late = await_followers(dir.path(), Duration::from_millis(50)).unwrap();
        assert_eq!(late, ["mount at /m, process 1"], "BARRIER-2");
        drop(lock);
        let began = Instant::now();
        assert_eq!(
            await_followers(dir.path(), WAIT).unwrap(),
            Vec::<String>::new()
        );
        assert!(began.elapsed() < WAIT / 2, "BARRIER-2");
        drop(follower);
    }

    #[test]
    fn without_events_a_follower_polls() {
        let (dir, database) = place();
        let _lock = live(&database);
        let follower = Follower {
            events: None,
            ..Follower::new(&database, ID, "polls").unwrap()
        };
        std::thread::scope(|scope| {
            scope.spawn(|| {
                while let Some(length) = follower.next() {
                    follower.answer(length);
                }
            });
            assert_eq!(
                await_followers(dir.path(), WAIT).unwrap(),
                Vec::<String>::new()
            );
            follower.stop();
        });
    }
}
