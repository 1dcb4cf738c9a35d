//! The shared memory of SQLite's write-ahead logs (`NAME-shm`), which two mounts cannot share.
//!
//! Programs map such a file and speak to each other by its pages. Each mount has pages of its own,
//! so programs on two mounts would not hear each other, and corrupt the database. Who opens one for
//! writing therefore has it for his mount, and on others it cannot be opened until all have closed
//! it: SQLite fails there ("unable to open database file") rather than corrupt.
//!
//! # Invariants
//! * `SHM-1` While a file of that name is open for writing on one mount of a database, it is opened
//!   on no other: the mount holds the `flock` on `locks/shm-NODE` in the database, NODE in
//!   hexadecimal.
//! * `SHM-2` A lock of a file without a name counts for nothing: it is removed by who holds its
//!   lock, and who gets one looks whether it still has its name.
//! * `SHM-3` Who opens it after the last close on the other mount has returned gets it. The kernel
//!   tells that mount of the close afterwards, so an open waits for that, at most [`GRACE`].

use larder::directory::{Access, DatabaseDir};
use larder_fuse_protocol::{Errno, NodeNumber};
use rustix::fs::{FlockOperation, flock, fstat};
use std::collections::HashMap;
use std::io;
use std::os::fd::OwnedFd;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How the names of such files end.
pub(crate) const SUFFIX: &[u8] = b"-shm";

/// How long an open waits for a close that another mount has not heard of.
const GRACE: Duration = Duration::from_millis(500);
/// How often it looks.
const TICK: Duration = Duration::from_millis(2);

/// Those that programs on one mount have open.
pub(crate) struct SharedMemory {
    directory: DatabaseDir,
    held: Mutex<HashMap<NodeNumber, Held>>,
}

struct Held {
    count: u64,
    _lock: OwnedFd,
}

/// An open file that is given back to [`SharedMemory::close`].
#[derive(Debug)]
pub(crate) struct Share(NodeNumber);

impl SharedMemory {
    /// For a mount of `database`.
    pub(crate) fn open(database: &DatabaseDir) -> io::Result<SharedMemory> {
        Ok(SharedMemory {
            directory: database.make_dir("locks")?,
            held: Mutex::default(),
        })
    }

    /// A program opens such a file, for writing or not; `EBUSY`: another mount has it (`SHM-1`),
    /// and keeps it for [`GRACE`].
    pub(crate) fn enter(&self, node: NodeNumber, write: bool) -> Result<Option<Share>, Errno> {
        let since = Instant::now();
        loop {
            match self.try_enter(node, write) {
                Err(Errno::EBUSY) if since.elapsed() < GRACE => std::thread::sleep(TICK), // SHM-3
                Err(Errno::EBUSY) => {
                    tracing::warn!(
                        "the shared memory of a SQLite database (node {node}, '…-shm') is open on \
                         another mount, and not shared between mounts: opening it is refused; use \
                         that mount, or 'PRAGMA journal_mode = DELETE'"
                    );
                    return Err(Errno::EBUSY);
                }
                entered => return entered,
            }
        }
    }

    fn try_enter(&self, node: NodeNumber, write: bool) -> Result<Option<Share>, Errno> {
        let mut held = self.held();
        if let Some(held) = held.get_mut(&node) {
            held.count += u64::from(write);
            return Ok(write.then_some(Share(node)));
        }
        let name = file_name(node);
        if !write && matches!(self.directory.kind(&name), Ok(None)) {
            return Ok(None);
        }
        let taken = self.take(&name).map_err(|error| {
            tracing::error!("{}: {error}", self.directory.join(&name).display());
            Errno::EIO
        })?;
        let lock = taken.ok_or(Errno::EBUSY)?;
        if !write {
            self.remove(&name);
            return Ok(None);
        }
        held.insert(
            node,
            Held {
                count: 1,
                _lock: lock,
            },
        );
        Ok(Some(Share(node)))
    }

    /// It is closed.
    pub(crate) fn close(&self, share: Share) {
        let mut held = self.held();
        let Some(found) = held.get_mut(&share.0) else {
            return;
        };
        found.count -= 1;
        if found.count == 0 {
            self.remove(&file_name(share.0)); // SHM-2: before the lock goes
            held.remove(&share.0);
        }
    }

    /// `None`: somebody else has it.
    fn take(&self, name: &str) -> io::Result<Option<OwnedFd>> {
        loop {
            let file = OwnedFd::from(self.directory.open_file(name, Access::Make)?);
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) if fstat(&file)?.st_nlink > 0 => return Ok(Some(file)),
                Ok(()) => {} // SHM-2
                Err(rustix::io::Errno::WOULDBLOCK) => return Ok(None),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// With its lock in hand. One that stays is nobody's.
    fn remove(&self, name: &str) {
        if let Err(error) = self.directory.remove_file(name) {
            tracing::debug!("{}: {error}", self.directory.join(name).display());
        }
    }

    fn held(&self) -> MutexGuard<'_, HashMap<NodeNumber, Held>> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn file_name(node: NodeNumber) -> String {
    format!("shm-{:x}", node.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_mount_has_it_until_all_there_have_closed_it() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let [one, other] = [(); 2].map(|()| SharedMemory::open(&database).unwrap());
        let node = NodeNumber(77);
        assert!(one.enter(node, false).unwrap().is_none());
        let first = one.enter(node, true).unwrap().unwrap();
        let second = one.enter(node, true).unwrap().unwrap();
        for write in [true, false] {
            assert_eq!(other.enter(node, write).unwrap_err(), Errno::EBUSY, "SHM-1");
        }
        one.close(first);
        assert_eq!(other.enter(node, true).unwrap_err(), Errno::EBUSY, "SHM-1");
        one.close(second);
        let third = other.enter(node, true).unwrap().unwrap();
        assert_eq!(one.enter(node, true).unwrap_err(), Errno::EBUSY, "SHM-1");
        other.close(third);
        assert_eq!(
            std::fs::read_dir(dir.path().join("locks")).unwrap().count(),
            0,
            "SHM-2"
        );
    }
    #[test]
    fn a_close_that_the_other_mount_has_not_heard_of_is_waited_for() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let [one, other] = [(); 2].map(|()| SharedMemory::open(&database).unwrap());
        let node = NodeNumber(77);
        let closing = one.enter(node, true).unwrap().unwrap();
        std::thread::scope(|scope| {
            scope.spawn(|| {
                std::thread::sleep(GRACE / 10);
                one.close(closing);
            });
            other.enter(node, true).expect("SHM-3");
        });
    }
}
