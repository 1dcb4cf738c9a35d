//! Both ends of a tracer's pipe.
//!
//! The name of a pipe, `trace/PID.SERIAL.SLOWER_NS.OPERATIONS`, says which events its tracer wants,
//! so that the others do not crowd it. It appears under that name when it has a reader, never
//! before: a pipe without one is left over.

use crate::trace::event::{MESSAGE_BYTES_MAX, Malformed, TraceEvent, TraceMessage};
use larder::directory::DatabaseDir;
use larder::{Error, ErrorKind};
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

const DIRECTORY: &str = "trace";
/// What the pipe holds, if the system lets this user have so much; else its default of 64 KiB.
const PIPE_BYTES: usize = 1 << 20;
/// How long a tracer sleeps while its pipe is empty; the pipe holds more than comes in that time.
const PAUSE: Duration = Duration::from_millis(10);

/// Which events a tracer wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TraceFilter {
    /// Those that took at least so long, nanoseconds.
    pub slower_than_ns: u64,
    /// Those whose operation's number is a bit of this.
    pub operations: u64,
}

impl Default for TraceFilter {
    /// All.
    fn default() -> TraceFilter {
        TraceFilter {
            slower_than_ns: 0,
            operations: u64::MAX,
        }
    }
}

impl TraceFilter {
    fn takes(&self, operation: u32, duration_ns: u64) -> bool {
        duration_ns >= self.slower_than_ns && self.operations >> (operation % 64) & 1 == 1
    }

    fn name(&self, serial: u32) -> String {
        let (pid, slower, operations) = (std::process::id(), self.slower_than_ns, self.operations);
        format!("{pid}.{serial}.{slower}.{operations:x}")
    }

    fn from_name(name: &str) -> Option<TraceFilter> {
        let mut parts = name.split('.');
        let (_pid, _serial) = (parts.next()?.parse::<u32>().ok()?, parts.next()?);
        let filter = TraceFilter {
            slower_than_ns: parts.next()?.parse().ok()?,
            operations: u64::from_str_radix(parts.next()?, 16).ok()?,
        };
        parts.next().is_none().then_some(filter)
    }
}

/// For `cargo xtask fuzz`.
#[cfg(fuzzing)]
pub(crate) fn read_name(name: &str) {
    if let Some(filter) = TraceFilter::from_name(name) {
        assert_eq!(TraceFilter::from_name(&filter.name(1)), Some(filter));
    }
}

// ---- the mount's end ---------------------------------------------------------------------------

/// The tracers of one mount.
pub(crate) struct Tracers {
    /// Until the end of the mount (`FUSE-7`).
    database: Mutex<Option<DatabaseDir>>,
    greeting: TraceMessage,
    server_pid: u32,
    /// Operations that any of them wants, as bits (`TRACE-4`).
    wanted: AtomicU64,
    tracers: RwLock<Vec<Arc<Tracer>>>,
}

struct Tracer {
    name: String,
    pipe: File,
    filter: TraceFilter,
    lost: AtomicU64,
    is_gone: AtomicBool,
}

impl Tracers {
    /// Of the mount of `database` at `mountpoint`, served by this process.
    pub(crate) fn new(database: &DatabaseDir, mountpoint: &Path) -> Tracers {
        use std::os::unix::ffi::OsStrExt;
        let server_pid = std::process::id();
        Tracers {
            database: Mutex::new(Some(database.clone())),
            greeting: TraceMessage::Greeting {
                server_pid,
                mountpoint: mountpoint.as_os_str().as_bytes().to_vec(),
            },
            server_pid,
            wanted: AtomicU64::new(0),
            tracers: RwLock::default(),
        }
    }

    /// Whether anybody may want to hear of an operation.
    pub(crate) fn wants(&self, operation: u32) -> bool {
        self.wanted.load(Ordering::Relaxed) >> (operation % 64) & 1 == 1
    }

    /// Tells an operation to those who want it. Never waits (`TRACE-1`).
    pub(crate) fn tell(&self, event: TraceEvent) {
        let tracers = self.tracers.read().unwrap_or_else(PoisonError::into_inner);
        let (operation, duration_ns) = (event.operation, event.duration_ns);
        let mut wanting = tracers
            .iter()
            .filter(|tracer| tracer.filter.takes(operation, duration_ns))
            .peekable();
        if wanting.peek().is_none() {
            return;
        }
        let bytes = TraceMessage::Event(event).encode(self.server_pid);
        for tracer in wanting {
            tracer.tell_lost(self.server_pid);
            if !tracer.write(&bytes) {
                tracer.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// The mount has ended: nothing of the database stays open.
    pub(crate) fn leave(&self) {
        *self.database.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }

    /// Looks who has come and who has gone; called again and again by one thread.
    pub(crate) fn look(&self) {
        let database = (self.database.lock().unwrap_or_else(PoisonError::into_inner)).clone();
        let Some(database) = database else { return };
        let found = match database.open_dir(DIRECTORY) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            opened => opened.and_then(|directory| Ok(Some((names_in(&directory)?, directory)))),
        };
        let (names, directory) = match found {
            Ok(found) => found.unzip(),
            Err(error) => {
                tracing::debug!("{}: {error}", database.join(DIRECTORY).display());
                return;
            }
        };
        let names = names.unwrap_or_default();
        let old = self
            .tracers
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let mut now: Vec<Arc<Tracer>> = (old.iter())
            .filter(|tracer| {
                names.contains(&tracer.name) && !tracer.is_gone.load(Ordering::Relaxed)
            })
            .cloned()
            .collect();
        for name in names {
            if let Some(filter) = TraceFilter::from_name(&name)
                && !old.iter().any(|tracer| tracer.name == name)
                && let Some(directory) = &directory
                && let Some(pipe) = open_pipe(directory, &name)
            {
                let tracer = Tracer {
                    name,
                    pipe,
                    filter,
                    lost: AtomicU64::new(0),
                    is_gone: AtomicBool::new(false),
                };
                tracer.write(&self.greeting.encode(self.server_pid));
                now.push(Arc::new(tracer));
            }
        }
        now.iter()
            .for_each(|tracer| tracer.tell_lost(self.server_pid));
        let all = |wanted: u64, tracer: &Arc<Tracer>| wanted | tracer.filter.operations;
        let wanted = now.iter().fold(0, all);
        *self.tracers.write().unwrap_or_else(PoisonError::into_inner) = now;
        self.wanted.store(wanted, Ordering::Relaxed);
    }
}

impl Tracer {
    /// Says how many were lost, if any were and there is room again.
    fn tell_lost(&self, server_pid: u32) {
        if self.lost.load(Ordering::Relaxed) == 0 {
            return;
        }
        let count = self.lost.swap(0, Ordering::Relaxed);
        if count > 0 && !self.write(&TraceMessage::Lost { server_pid, count }.encode(server_pid)) {
            self.lost.fetch_add(count, Ordering::Relaxed);
        }
    }

    /// `false`: there is no room. The pipe does not block, and takes all of it or nothing
    /// (`TRACE-2`).
    fn write(&self, bytes: &[u8]) -> bool {
        loop {
            match rustix::io::write(&self.pipe, bytes) {
                Ok(_) => return true,
                Err(Errno::INTR) => {}
                Err(Errno::AGAIN) => return false,
                // Its reader is gone; what it did not read nobody misses.
                Err(_) => {
                    self.is_gone.store(true, Ordering::Relaxed);
                    return true;
                }
            }
        }
    }
}

/// Opens a tracer's pipe for writing; `None`: it is no pipe, or may not be written, or its tracer
/// is dead: then it is removed.
fn open_pipe(directory: &DatabaseDir, name: &str) -> Option<File> {
    match directory.open_fifo(name, OFlags::WRONLY) {
        Ok(pipe) => Some(pipe),
        Err(Errno::NXIO) => {
            if let Err(error) = directory.remove_file(name) {
                tracing::debug!("{}: {error}", directory.join(name).display());
            }
            None
        }
        Err(error) => {
            tracing::debug!("{}: {error}", directory.join(name).display());
            None
        }
    }
}

fn names_in(directory: &DatabaseDir) -> io::Result<Vec<String>> {
    let names = directory.names()?.into_iter();
    Ok(names.filter_map(|name| name.into_string().ok()).collect())
}

// ---- the tracer's end --------------------------------------------------------------------------

/// A tracer: hears all mounts of a database on this machine. Dropping it removes its pipe.
#[derive(Debug)]
pub struct TraceListener {
    directory: DatabaseDir,
    name: String,
    pipe: File,
    bytes: Vec<u8>,
    /// What of them is read already.
    done: usize,
}

impl TraceListener {
    /// Begins to listen; mounts notice it within a quarter of a second and greet. Errors:
    /// [`ErrorKind::NotADatabase`], [`ErrorKind::NotPermitted`] where the user may not write to the
    /// database's directory, [`ErrorKind::Io`].
    pub fn open(database: &Path, filter: TraceFilter) -> Result<TraceListener, Error> {
        let opened = DatabaseDir::open(database);
        let is_database =
            |directory: &DatabaseDir| directory.check_file("catalog.db").is_ok_and(|is| is);
        let Some(directory) = opened.ok().filter(is_database) else {
            return Err(Error::new(
                ErrorKind::NotADatabase,
                format!(
                    "'{}' is no database; name its directory",
                    database.display()
                ),
            ));
        };
        let fail = |error: io::Error| {
            let kind = match error.kind() {
                io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
                _ => ErrorKind::Io,
            };
            let context = format!(
                "cannot make a pipe in '{}'; run as the owner of the database or as root",
                database.join(DIRECTORY).display()
            );
            Error::with_source(kind, context, error)
        };
        TraceListener::listen(&directory, filter).map_err(fail)
    }

    fn listen(database: &DatabaseDir, filter: TraceFilter) -> io::Result<TraceListener> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        // The server may be another user than root, who traces: what is made is the owner's
        // (DIRECTORY-4).
        let directory = database.make_dir(DIRECTORY)?;
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed) as u32;
        let new = format!("{}.{serial}.new", std::process::id());
        directory.remove_file(&new)?;
        directory.make_fifo(&new)?;
        let ready = TraceListener::make_ready(&directory, &new, filter.name(serial));
        if ready.is_err() {
            // The error that is on its way says more.
            drop(directory.remove_file(&new));
        }
        ready
    }

    fn make_ready(directory: &DatabaseDir, new: &str, name: String) -> io::Result<TraceListener> {
        // For writing, too: then the pipe does not end when a mount does.
        let pipe = directory.open_fifo(new, OFlags::RDWR)?;
        directory.give_fifo(&pipe, new)?;
        if let Err(error) = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES) {
            tracing::debug!("the pipe stays small: {error}");
        }
        directory.rename(new, &name)?;
        Ok(TraceListener {
            directory: directory.clone(),
            name,
            pipe,
            bytes: Vec::new(),
            done: 0,
        })
    }

    /// The next message; `None` when none comes within `patience`.
    /// [`ErrorKind::Corrupt`] when something else than a mount writes into the pipe.
    pub fn next(&mut self, patience: Duration) -> Result<Option<TraceMessage>, Error> {
        let fail = |error: io::Error| {
            Error::with_source(ErrorKind::Io, "cannot read the pipe".to_owned(), error)
        };
        let deadline = Instant::now() + patience;
        loop {
            let decoded = TraceMessage::decode(&self.bytes[self.done..]);
            match decoded {
                Ok(Some((message, length))) => {
                    self.done += length;
                    return Ok(Some(message));
                }
                Ok(None) => {}
                Err(Malformed) => {
                    return Err(Error::new(
                        ErrorKind::Corrupt,
                        format!(
                            "'{}' has bytes that no mount wrote; end other writers and trace again",
                            self.directory.join(&self.name).display()
                        ),
                    ));
                }
            }
            self.bytes.drain(..self.done);
            self.done = 0;
            let mut more = [0; 16 * MESSAGE_BYTES_MAX];
            match self.pipe.read(&mut more) {
                Ok(count) => self.bytes.extend(&more[..count]),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                    let left = deadline.saturating_duration_since(Instant::now());
                    if left.is_zero() {
                        return Ok(None);
                    }
                    // Asleep and not waiting for the pipe: else every event would have to wake us.
                    std::thread::sleep(left.min(PAUSE));
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
                Err(error) => return Err(fail(error)),
            }
        }
    }
}

impl Drop for TraceListener {
    fn drop(&mut self) {
        // A mount may have removed it already.
        if let Err(error) = self.directory.remove_file(&self.name) {
            let path = self.directory.join(&self.name);
            tracing::warn!("'{}' stays: {error}", path.display());
        }
    }
}

#[cfg(test)]
#[path = "pipe_tests.rs"]
mod tests;
