//! One request on its way through a handler.

use crate::errno::Errno;
use crate::in_flight::{InFlight, RequestSlot};
use crate::relief::{Relief, Wait, Waiting};
use crate::request::Request;
use std::fmt;
use std::time::{Duration, Instant};

/// A request while a handler works on it, with what [`crate::Filesystem::begin`] made for it.
pub struct Call<'c, S> {
    /// Who asks for what.
    pub request: Request,
    /// What the filesystem made for this request; it gets it back after the reply.
    pub span: S,
    slot: &'c RequestSlot,
    in_flight: &'c InFlight,
    relief: &'c dyn Relief,
    /// What a wait for a lock has reserved.
    lock_wait: Option<Waiting<'c>>,
}

impl<'c, S> Call<'c, S> {
    pub(crate) fn new(
        request: Request,
        span: S,
        slot: &'c RequestSlot,
        in_flight: &'c InFlight,
        relief: &'c dyn Relief,
    ) -> Call<'c, S> {
        Call {
            request,
            span,
            slot,
            in_flight,
            relief,
            lock_wait: None,
        }
    }

    /// Whether the caller was interrupted by a signal meanwhile. A handler that waits then answers
    /// `EINTR`; one that does not wait need not ask.
    pub fn is_interrupted(&self) -> bool {
        self.slot.is_interrupted(self.request.unique)
    }

    /// Before the handler changes what it would have to wait for the kernel for, see
    /// [`Reserved::wait`]. `EAGAIN`: so many wait that nobody would be left to serve the requests
    /// that the kernel may wait for; the handler must change nothing.
    pub fn reserve_wait(&self) -> Result<Reserved<'_>, Errno> {
        // What waits for a lock may wait for the kernel too: it keeps nobody else from it.
        let waiting = match self.lock_wait {
            Some(_) => None,
            None => Some(Waiting::reserve(self.relief, Wait::Kernel).ok_or(Errno::EAGAIN)?),
        };
        Ok(Reserved {
            in_flight: self.in_flight,
            relief: self.relief,
            _waiting: waiting,
        })
    }

    /// Before the handler waits for a lock; `false`: it must not.
    pub(crate) fn begin_lock_wait(&mut self) -> bool {
        self.lock_wait = Waiting::reserve(self.relief, Wait::Lock);
        self.lock_wait.is_some()
    }

    /// The handler has returned.
    pub(crate) fn end_lock_wait(&mut self) {
        self.lock_wait = None;
    }

    /// Waits until this thread is unparked, the caller is interrupted, or `deadline` has come; may
    /// return without a cause. Whoever ends the wait of a handler unparks the thread that the
    /// handler runs in ([`std::thread::current`]); the handler asks again for what it waits for,
    /// and [`Call::is_interrupted`], in a loop.
    pub fn park(&self, deadline: Option<Instant>) {
        if self.is_interrupted() {
            return;
        }
        match deadline {
            None => std::thread::park(),
            Some(deadline) => {
                let left = deadline.saturating_duration_since(Instant::now());
                if left > Duration::ZERO {
                    std::thread::park_timeout(left);
                }
            }
        }
    }
}

/// Leave to wait for the kernel, from [`Call::reserve_wait`].
pub struct Reserved<'c> {
    in_flight: &'c InFlight,
    relief: &'c dyn Relief,
    _waiting: Option<Waiting<'c>>,
}

impl Reserved<'_> {
    /// Runs `wait`, which waits for the kernel, which in turn may wait for other requests.
    /// Meanwhile this worker counts for nothing (`PROTOCOL-4`): they are served, however many wait
    /// so.
    pub fn wait<T>(self, wait: impl FnOnce() -> T) -> T {
        let _away = self.in_flight.away();
        self.relief.begin(Wait::Kernel);
        wait()
    }
}

impl fmt::Debug for Reserved<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Reserved").finish_non_exhaustive()
    }
}

impl<S: fmt::Debug> fmt::Debug for Call<'_, S> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        (out.debug_struct("Call").field("request", &self.request))
            .field("span", &self.span)
            .finish_non_exhaustive()
    }
}

/// How a request ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Outcome {
    /// The error that was answered, if it was one.
    pub error: Option<Errno>,
    /// Bytes of content in a WRITE.
    pub written_bytes: usize,
    /// Bytes of the reply, without its header: for a READ the content.
    pub reply_bytes: usize,
    /// Whether the kernel took the reply. It does not when the caller was killed meanwhile, or when
    /// the mount has ended. A request without reply counts as delivered.
    pub is_delivered: bool,
}
