//! Threads that own no descriptor of their process (`FUSE-12`).
//!
//! A thread that waits inside the kernel for an answer of its own process cannot end when that is
//! killed, and a process closes its descriptors only when the last thread that shares them has
//! ended: the locks of a killed server stay, and everybody waits for them. So a thread that may
//! wait like that leaves the table of descriptors first. What it leaves is closed, and unlocked,
//! when the other threads have ended: `flock` and open file description locks go with the last
//! descriptor, `fcntl` locks of SQLite with the table that they were taken in.

use rustix::thread::UnshareFlags;
use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

/// Below are stdin, stdout and stderr, which stay: the log is written there.
const FIRST: RawFd = 3;

/// Gives this thread a table of descriptors of its own, in which only `kept` is open. For a thread
/// that neither uses nor drops a descriptor of the others afterwards.
pub fn leave_descriptors(kept: Option<BorrowedFd<'_>>) -> io::Result<()> {
    let kept = kept.map(|kept| kept.as_raw_fd());
    // SAFETY: the caller promises that this thread uses no descriptor that is closed below. Those
    // of the other threads stay open in their table.
    unsafe { rustix::thread::unshare_unsafe(UnshareFlags::FILES)? };
    let listed = std::fs::read_dir("/proc/thread-self/fd")?
        .map(|entry| {
            Ok(entry?
                .file_name()
                .to_str()
                .and_then(|name| name.parse().ok()))
        })
        .collect::<io::Result<Vec<Option<RawFd>>>>()?;
    for number in listed.into_iter().flatten() {
        if number >= FIRST && Some(number) != kept {
            // SAFETY: the number is of this thread's own table. The list's own is closed already:
            // EBADF.
            unsafe { libc::close(number) };
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs::{File, TryLockError};
    use std::os::fd::AsFd;
    use std::sync::mpsc::channel;

    #[test]
    fn a_thread_with_descriptors_of_its_own_keeps_no_lock_alive() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("lock");
        let (lock, other) = (File::create(&path).unwrap(), File::open(&path).unwrap());
        let kept = tempfile::tempfile().unwrap();
        lock.lock().unwrap();
        let (ready, is_ready) = channel();
        let (go, may_go) = channel::<()>();
        let fd = lock.as_raw_fd();
        std::thread::scope(|scope| {
            let kept = &kept;
            let waiter = scope.spawn(move || {
                leave_descriptors(Some(kept.as_fd())).unwrap();
                ready.send(()).unwrap();
                may_go.recv().unwrap();
                // SAFETY: only asks whether the number is open in this thread's table.
                let is_open = |fd| unsafe { libc::fcntl(fd, libc::F_GETFD) } >= 0;
                (is_open(fd), is_open(kept.as_raw_fd()))
            });
            is_ready.recv().unwrap();
            let held = other.try_lock();
            assert!(matches!(held, Err(TryLockError::WouldBlock)), "still ours");
            drop(lock);
            // A program that another test starts may have it between fork and exec.
            while other.try_lock().is_err() {
                assert!(!waiter.is_finished());
                std::thread::yield_now();
            }
            go.send(()).unwrap();
            assert_eq!(waiter.join().unwrap(), (false, true), "FUSE-12");
        });
    }
}
