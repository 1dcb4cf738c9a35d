//! Both ends of a tracer's pipe.
//!
//! The name of a pipe, `trace/PID.SERIAL.SLOWER_NS.OPERATIONS`, says which events its tracer wants, so that
//! the others do not crowd it. It appears under that name when it has a reader, never before: a pipe
//! without one is left over.

use crate::trace::event::{MESSAGE_BYTES_MAX, Malformed, TraceEvent, TraceMessage};
use larder::{Error, ErrorKind};
use rustix::fs::{FileType, Mode, OFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::unix::fs::{MetadataExt, chown};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;

const DIRECTORY: &str = "trace";
/// What the pipe holds, if the system lets this user have so much; else its default of 64 KiB.
const PIPE_BYTES: usize = 1 << 20;

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

// ---- the mount's end ---------------------------------------------------------------------------

/// The tracers of one mount.
pub(crate) struct Tracers {
    directory: PathBuf,
    greeting: TraceMessage,
    server_pid: u32,
    /// Whether there are any (`TRACE-4`).
    is_any: AtomicBool,
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
    pub(crate) fn new(database: &Path, mountpoint: &Path) -> Tracers {
        use std::os::unix::ffi::OsStrExt;
        let server_pid = std::process::id();
        Tracers {
            directory: database.join(DIRECTORY),
            greeting: TraceMessage::Greeting {
                server_pid,
                mountpoint: mountpoint.as_os_str().as_bytes().to_vec(),
            },
            server_pid,
            is_any: AtomicBool::new(false),
            tracers: RwLock::default(),
        }
    }

    /// Whether anybody traces.
    pub(crate) fn is_any(&self) -> bool {
        self.is_any.load(Ordering::Relaxed)
    }

    /// Tells an operation to those who want it; `event` makes it when the first one does. Never waits
    /// (`TRACE-1`).
    pub(crate) fn tell(
        &self,
        operation: u32,
        duration_ns: u64,
        event: impl FnOnce() -> TraceEvent,
    ) {
        let tracers = self.tracers.read().unwrap_or_else(PoisonError::into_inner);
        let mut wanting = tracers
            .iter()
            .filter(|tracer| tracer.filter.takes(operation, duration_ns))
            .peekable();
        if wanting.peek().is_none() {
            return;
        }
        let bytes = TraceMessage::Event(event()).encode(self.server_pid);
        for tracer in wanting {
            tracer.tell_lost(self.server_pid);
            if !tracer.write(&bytes) {
                tracer.lost.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Looks who has come and who has gone; called again and again by one thread.
    pub(crate) fn look(&self) {
        let names = match names_in(&self.directory) {
            Ok(names) => names,
            Err(error) if error.kind() == io::ErrorKind::NotFound => Vec::new(),
            Err(error) => {
                tracing::debug!("{}: {error}", self.directory.display());
                return;
            }
        };
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
                && let Some(pipe) = open_pipe(&self.directory.join(&name))
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
        let is_any = !now.is_empty();
        *self.tracers.write().unwrap_or_else(PoisonError::into_inner) = now;
        self.is_any.store(is_any, Ordering::Relaxed);
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

    /// `false`: there is no room. The pipe does not block, and takes all of it or nothing (`TRACE-2`).
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

/// Opens a tracer's pipe for writing; `None`: it is no pipe, or may not be written, or its tracer is
/// dead: then it is removed.
fn open_pipe(path: &Path) -> Option<File> {
    let flags = OFlags::WRONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::open(path, flags, Mode::empty()) {
        Ok(pipe) => {
            let pipe = File::from(pipe);
            let kind = rustix::fs::fstat(&pipe).map(|stat| FileType::from_raw_mode(stat.st_mode));
            (kind == Ok(FileType::Fifo)).then_some(pipe)
        }
        Err(Errno::NXIO) => {
            if let Err(error) = fs::remove_file(path) {
                tracing::debug!("{}: {error}", path.display());
            }
            None
        }
        Err(error) => {
            tracing::debug!("{}: {error}", path.display());
            None
        }
    }
}

fn names_in(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(directory)? {
        names.extend(entry?.file_name().into_string().ok());
    }
    Ok(names)
}

// ---- the tracer's end --------------------------------------------------------------------------

/// A tracer: hears all mounts of a database on this machine. Dropping it removes its pipe.
#[derive(Debug)]
pub struct TraceListener {
    path: PathBuf,
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
        if !database.join("catalog.db").is_file() {
            return Err(Error::new(
                ErrorKind::NotADatabase,
                format!(
                    "'{}' is no database; name its directory",
                    database.display()
                ),
            ));
        }
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
        TraceListener::listen(database, filter).map_err(fail)
    }

    fn listen(database: &Path, filter: TraceFilter) -> io::Result<TraceListener> {
        static SERIAL: AtomicU64 = AtomicU64::new(0);
        let directory = database.join(DIRECTORY);
        let owner = fs::metadata(database)?;
        match fs::create_dir(&directory) {
            // The server may be another user than root, who traces.
            Ok(()) => give_to(&directory, &owner)?,
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
            Err(error) => return Err(error),
        }
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed) as u32;
        let path = directory.join(filter.name(serial));
        let new = directory.join(format!("{}.{serial}.new", std::process::id()));
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        rustix::fs::mkfifoat(rustix::fs::CWD, &new, Mode::RUSR | Mode::WUSR)?;
        let ready = TraceListener::make_ready(&new, &path, &owner);
        if ready.is_err() {
            // The error that is on its way says more.
            drop(fs::remove_file(&new));
        }
        ready
    }

    fn make_ready(new: &Path, path: &Path, owner: &fs::Metadata) -> io::Result<TraceListener> {
        give_to(new, owner)?;
        // For writing, too: then the pipe does not end when a mount does.
        let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let pipe = File::from(rustix::fs::open(new, flags, Mode::empty())?);
        if let Err(error) = rustix::pipe::fcntl_setpipe_size(&pipe, PIPE_BYTES) {
            tracing::debug!("the pipe stays small: {error}");
        }
        fs::rename(new, path)?;
        Ok(TraceListener {
            path: path.to_owned(),
            pipe,
            bytes: Vec::new(),
            done: 0,
        })
    }

    /// The next message; `None` when none comes within `patience`, or a signal does.
    /// [`ErrorKind::Corrupt`] when something else than a mount writes into the pipe.
    pub fn next(&mut self, patience: Duration) -> Result<Option<TraceMessage>, Error> {
        let fail = |error: io::Error| {
            Error::with_source(ErrorKind::Io, "cannot read the pipe".to_owned(), error)
        };
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
                            self.path.display()
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
                    if !self.wait(patience).map_err(fail)? {
                        return Ok(None);
                    }
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => return Ok(None),
                Err(error) => return Err(fail(error)),
            }
        }
    }

    /// Whether something comes.
    fn wait(&self, patience: Duration) -> io::Result<bool> {
        use rustix::event::{PollFd, PollFlags, Timespec, poll};
        let timeout = Timespec::try_from(patience).map_err(io::Error::other)?;
        let mut pipe = [PollFd::new(&self.pipe, PollFlags::IN)];
        match poll(&mut pipe, Some(&timeout)) {
            Ok(count) => Ok(count > 0),
            Err(Errno::INTR) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for TraceListener {
    fn drop(&mut self) {
        // A mount may have removed it already.
        match fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("'{}' stays: {error}", self.path.display());
            }
            _ => {}
        }
    }
}

/// Root's files go to the owner of the database.
fn give_to(path: &Path, owner: &fs::Metadata) -> io::Result<()> {
    if rustix::process::geteuid().is_root() {
        chown(path, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(())
}

#[cfg(test)]
#[path = "pipe_tests.rs"]
mod tests;
