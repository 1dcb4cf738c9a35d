//! The files whose locks stand for the locks of programs: `locks/NODE` in the database, NODE in
//! hexadecimal.
//!
//! Who has locks on a node has its file open, once for each owner, and holds it by a shared lock on
//! one byte far behind all others, which also tells its process. Who finds nobody else holding the
//! file removes it.
//!
//! ```text
//!   bytes of the file       identities, one byte for each process
//!  0 ───────────────── 2⁶² ── + pid: byte locks ── + 2³² + pid: flock ── …
//! ```

use super::ranges::Range;
use larder::directory::{Access, DatabaseDir};
use larder_fuse_protocol::{Errno, NodeNumber};
use rustix::fs::{FlockOperation, flock, fstat};
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

/// Where identities begin; programs may lock the bytes before.
pub(crate) const BYTES_END: u64 = 1 << 62;
const IDENTITY_COUNT: u64 = 1 << 32;
/// How long somebody may take to remove the file that is to be held.
const REMOVAL_MAX: Duration = Duration::from_secs(1);

/// What kind of locks an owner has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Class {
    /// fcntl(2): on bytes.
    Bytes,
    /// flock(2): on the whole file, apart from the others.
    Whole,
}

impl Class {
    fn identities(self) -> u64 {
        match self {
            Class::Bytes => BYTES_END,
            Class::Whole => BYTES_END + IDENTITY_COUNT,
        }
    }
}

/// What a lock is set to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    None,
    Read,
    Write,
}

/// The directory of the files.
pub(crate) struct LockFiles {
    directory: DatabaseDir,
}

/// A file, held for one owner.
#[derive(Debug)]
pub(crate) struct LockFile(OwnedFd);

impl LockFiles {
    /// The files in `database`; removes those that nobody holds, which a killed mount leaves.
    pub(crate) fn open(database: &DatabaseDir) -> io::Result<LockFiles> {
        let directory = database.make_dir("locks")?;
        for name in directory.names()? {
            let Some(name) = name.to_str().filter(|name| is_name(name)) else {
                continue; // Not ours.
            };
            match directory.open_file(name, Access::ReadWrite) {
                Ok(file) => remove_if_alone(&directory, name, &file.into())?,
                // Somebody else has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                Err(error) => {
                    let why = format!("{}: {error}", directory.join(name).display());
                    return Err(io::Error::new(error.kind(), why));
                }
            }
        }
        Ok(LockFiles { directory })
    }

    /// The file of `node`, held for an owner in process `pid` (`LOCK-2`).
    pub(crate) fn hold(&self, node: NodeNumber, class: Class, pid: u32) -> Result<LockFile, Errno> {
        let name = name_of(node);
        let identity = class.identities() + u64::from(pid);
        let deadline = Instant::now() + REMOVAL_MAX;
        while Instant::now() < deadline {
            let file = OwnedFd::from(self.directory.open_file(&name, Access::Make)?);
            match set_range(&file, identity, identity, Kind::Read) {
                // It was not removed before it was held, and nobody removes it from here on.
                Ok(()) if fstat(&file)?.st_nlink > 0 => return Ok(LockFile(file)),
                Ok(()) => {}
                Err(Errno::EAGAIN) => std::thread::sleep(Duration::from_micros(50)),
                Err(error) => return Err(error),
            }
        }
        Err(Errno::ENOLCK)
    }

    /// The owner holds the file no longer; removes it if nobody else does.
    pub(crate) fn give_up(&self, node: NodeNumber, file: &LockFile) -> io::Result<()> {
        file.unlock();
        remove_if_alone(&self.directory, &name_of(node), &file.0)
    }

    /// A lock on bytes that `range` conflicts with and that is not `own`, and a process that may
    /// hold it: 0 if none is found. `locals` are processes that do not.
    pub(crate) fn foreign_lock(
        &self,
        node: NodeNumber,
        own: Option<&LockFile>,
        range: &Range,
        locals: &[u32],
    ) -> Result<Option<(Range, u32)>, Errno> {
        let opened;
        let file = match own {
            Some(own) => &own.0,
            None => match self.directory.open_file(name_of(node), Access::ReadWrite) {
                Ok(file) => {
                    opened = OwnedFd::from(file);
                    &opened
                }
                Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
                Err(error) => return Err(error.into()),
            },
        };
        let Some(found) = find_range(file, range)? else {
            return Ok(None);
        };
        let mut identities = Range {
            start: Class::Bytes.identities(),
            last: Class::Bytes.identities() + IDENTITY_COUNT - 1,
            is_write: true,
        };
        while let Some(identity) = find_range(file, &identities)? {
            let pid = (identity.start - Class::Bytes.identities()) as u32;
            if !locals.contains(&pid) {
                return Ok(Some((found, pid)));
            }
            identities.start = identity.last + 1;
        }
        Ok(Some((found, 0)))
    }
}

impl LockFile {
    /// Sets a lock; `EAGAIN` when another owner's is in the way. The bytes end before
    /// [`BYTES_END`].
    pub(crate) fn set(&self, class: Class, start: u64, last: u64, kind: Kind) -> Result<(), Errno> {
        match class {
            Class::Bytes => set_range(&self.0, start, last, kind),
            Class::Whole => flock(
                &self.0,
                match kind {
                    Kind::None => FlockOperation::Unlock,
                    Kind::Read => FlockOperation::NonBlockingLockShared,
                    Kind::Write => FlockOperation::NonBlockingLockExclusive,
                },
            )
            .map_err(Errno::from),
        }
    }
}

impl LockFile {
    /// Drops all locks. Explicitly, since a process that is just being started may have the
    /// descriptor too.
    pub(crate) fn unlock(&self) {
        let unlocked = flock(&self.0, FlockOperation::Unlock)
            .map_err(Errno::from)
            .and(set_range(&self.0, 0, BYTES_END - 1, Kind::None));
        debug_assert!(unlocked.is_ok(), "{unlocked:?}");
    }
}

fn name_of(node: NodeNumber) -> String {
    format!("{:x}", node.0)
}

fn is_name(name: &str) -> bool {
    u64::from_str_radix(name, 16).is_ok_and(|node| format!("{node:x}") == name)
}

/// Removes the file unless others hold it (`LOCK-2`).
fn remove_if_alone(directory: &DatabaseDir, name: &str, file: &OwnedFd) -> io::Result<()> {
    let last = BYTES_END + 2 * IDENTITY_COUNT - 1;
    match set_range(file, BYTES_END, last, Kind::Write) {
        Ok(()) => {}
        Err(Errno::EAGAIN) => {
            // Others hold it; they are told of this owner no longer.
            return set_range(file, BYTES_END, last, Kind::None).map_err(io::Error::from);
        }
        Err(error) => return Err(error.into()),
    }
    if fstat(file)?.st_nlink > 0 {
        directory.remove_file(name)?;
    }
    set_range(file, BYTES_END, last, Kind::None)?;
    Ok(())
}

/// A lock of the open file description (`F_OFD_SETLK`): other descriptions of this process conflict
/// too.
fn set_range(file: &OwnedFd, start: u64, last: u64, kind: Kind) -> Result<(), Errno> {
    let kind = match kind {
        Kind::None => libc::F_UNLCK,
        Kind::Read => libc::F_RDLCK,
        Kind::Write => libc::F_WRLCK,
    };
    let mut lock = description(start, last, kind);
    control(file, libc::F_OFD_SETLK, &mut lock)
}

/// The first lock of another open file description that `range` conflicts with.
fn find_range(file: &OwnedFd, range: &Range) -> Result<Option<Range>, Errno> {
    let kind = match range.is_write {
        true => libc::F_WRLCK,
        false => libc::F_RDLCK,
    };
    let mut lock = description(range.start, range.last, kind);
    control(file, libc::F_OFD_GETLK, &mut lock)?;
    let start = lock.l_start as u64;
    Ok((i32::from(lock.l_type) != libc::F_UNLCK).then(|| Range {
        start,
        last: match lock.l_len {
            0 => i64::MAX as u64,
            len => start + len as u64 - 1,
        },
        is_write: i32::from(lock.l_type) == libc::F_WRLCK,
    }))
}

fn description(start: u64, last: u64, kind: i32) -> libc::flock {
    libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: start as i64,
        l_len: (last - start + 1) as i64,
        l_pid: 0, // These locks have no process, and the kernel insists.
    }
}

fn control(file: &OwnedFd, command: i32, lock: &mut libc::flock) -> Result<(), Errno> {
    // SAFETY: the descriptor is open as long as `file` is borrowed; the two commands read and write
    // one `struct flock`, which `lock` borrows exclusively.
    match unsafe { libc::fcntl(file.as_raw_fd(), command, std::ptr::from_mut(lock)) } {
        0 => Ok(()),
        _ => match Errno::from(io::Error::last_os_error()) {
            Errno::EACCES => Err(Errno::EAGAIN),
            error => Err(error),
        },
    }
}
