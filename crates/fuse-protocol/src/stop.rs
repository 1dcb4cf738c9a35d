//! Telling all threads of a session that it is over.

use crate::errno::Errno;
use rustix::event::{EventfdFlags, PollFd, PollFlags, eventfd, poll};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Mutex, PoisonError};

/// A descriptor that becomes readable, for ever, and why.
#[derive(Debug)]
pub(crate) struct Stop {
    event: OwnedFd,
    error: Mutex<Option<Errno>>,
}

impl Stop {
    pub(crate) fn new() -> Result<Stop, Errno> {
        let flags = EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK;
        Ok(Stop {
            event: eventfd(0, flags)?,
            error: Mutex::new(None),
        })
    }

    /// It is over.
    pub(crate) fn set(&self) {
        // The only error is that it was set 2^64 times.
        let _ = rustix::io::write(&self.event, &1_u64.to_ne_bytes());
    }

    /// It is over because of `error`; the first one counts.
    pub(crate) fn fail(&self, error: Errno) {
        let mut first = self.error.lock().unwrap_or_else(PoisonError::into_inner);
        first.get_or_insert(error);
        drop(first);
        self.set();
    }

    /// It is over when the calling thread panics while it has this.
    pub(crate) fn guard(&self) -> StopGuard<'_> {
        StopGuard(self)
    }

    /// Why it is over, if something has failed.
    pub(crate) fn error(&self) -> Option<Errno> {
        *self.error.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `other` can be read, or has ended; `false`: it is over.
    pub(crate) fn wait_for(&self, other: BorrowedFd<'_>) -> Result<bool, Errno> {
        let mut both = [
            PollFd::from_borrowed_fd(other, PollFlags::IN),
            PollFd::new(&self.event, PollFlags::IN),
        ];
        match poll(&mut both, None) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(both[1].revents().is_empty()),
            Err(error) => Err(error.into()),
        }
    }
}

/// See [`Stop::guard`].
pub(crate) struct StopGuard<'s>(&'s Stop);

impl Drop for StopGuard<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.fail(Errno::EIO);
        }
    }
}

impl AsFd for Stop {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.event.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_waits_is_told_and_the_first_error_is_kept() {
        let stop = Stop::new().unwrap();
        let (reader, writer) = std::io::pipe().unwrap();
        rustix::io::write(&writer, b"x").unwrap();
        assert_eq!(stop.wait_for(reader.as_fd()), Ok(true));
        assert_eq!(stop.error(), None);
        stop.fail(Errno::EIO);
        stop.fail(Errno::EINVAL);
        stop.set();
        for _ in 0..2 {
            assert_eq!(stop.wait_for(reader.as_fd()), Ok(false));
        }
        assert_eq!(stop.error(), Some(Errno::EIO));
    }

    #[test]
    fn a_thread_that_panics_ends_all() {
        let stop = Stop::new().unwrap();
        drop(stop.guard());
        assert_eq!(stop.error(), None);
        let panics = || {
            let _guard = stop.guard();
            panic!("of a test");
        };
        std::thread::scope(|scope| scope.spawn(panics).join().unwrap_err());
        let (reader, _writer) = std::io::pipe().unwrap();
        assert_eq!(stop.wait_for(reader.as_fd()), Ok(false), "RING-4");
        assert_eq!(stop.error(), Some(Errno::EIO), "RING-4");
    }
}
