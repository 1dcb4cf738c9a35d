//! What serves requests, whichever transport they come by.
//!
//! A transport takes a request, calls [`Service::work`], sends the answer, and calls
//! [`Service::finish`]:
//!
//! ```text
//!   work:   decode ── begin ── handler ── encode ──→ Work { answer }
//!   (transport) the answer is written
//!   finish: end
//! ```

use crate::call::{Call, Outcome};
use crate::dispatch::dispatch;
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::in_flight::{InFlight, RequestSlot};
use crate::opcode::Opcode;
use crate::relief::Relief;
use crate::reply::ReplyBuffer;
use crate::request::{Dialect, Incoming, Malformed, Operation, decode};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

/// The filesystem, and what all workers share.
pub(crate) struct Service<F> {
    pub(crate) filesystem: F,
    pub(crate) dialect: Dialect,
    pub(crate) in_flight: InFlight,
    /// How many requests may wait for locks at once; the other slots serve those who hold them.
    pub(crate) lock_wait_max: usize,
    lock_waits: AtomicUsize,
    /// A handler has panicked: nothing is true any more (`PROTOCOL-5`).
    is_broken: AtomicBool,
}

/// What is to be written for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Answer {
    /// Nothing.
    Silent,
    Error(Errno),
    /// So many bytes of the memory for replies.
    Data(usize),
}

/// A request between its handler and its reply.
pub(crate) struct Work<'c, S> {
    pub(crate) answer: Answer,
    /// `None`: it never reached the filesystem.
    call: Option<Call<'c, S>>,
    slot: &'c RequestSlot,
    written_bytes: usize,
}

impl<F: Filesystem> Service<F> {
    pub(crate) fn new(
        filesystem: F,
        dialect: Dialect,
        in_flight: InFlight,
        lock_wait_max: usize,
    ) -> Self {
        Service {
            filesystem,
            dialect,
            in_flight,
            lock_wait_max,
            lock_waits: AtomicUsize::new(0),
            is_broken: AtomicBool::new(false),
        }
    }

    /// Whether a handler has panicked.
    pub(crate) fn is_broken(&self) -> bool {
        self.is_broken.load(Ordering::SeqCst)
    }

    /// Serves a request; what it replies is in `memory`.
    pub(crate) fn work<'c>(
        &'c self,
        slot: &'c RequestSlot,
        relief: &'c dyn Relief,
        incoming: &Incoming<'_>,
        memory: &mut [u8],
    ) -> Work<'c, F::Span> {
        let refused = |answer| Work {
            answer,
            call: None,
            slot,
            written_bytes: 0,
        };
        let Some(opcode) = Opcode::from_number(incoming.header.opcode) else {
            return refused(Answer::Error(Errno::ENOSYS));
        };
        if self.is_broken() {
            return refused(error_answer(opcode, Errno::EIO));
        }
        let decoded = incoming.request(opcode).and_then(|(request, body)| {
            let operation = decode(&request, body, self.dialect)?;
            Ok((request, operation))
        });
        let (request, operation) = match decoded {
            Ok(decoded) => decoded,
            Err(Malformed) => {
                tracing::error!("a malformed request: {:?}", incoming.header);
                return refused(error_answer(opcode, Errno::EIO));
            }
        };

        self.in_flight.begin(slot, request.unique);
        let Some(mut span) = beside(opcode, "begin", || self.filesystem.begin(&request)) else {
            slot.end();
            return refused(error_answer(opcode, Errno::EIO)); // PROTOCOL-5
        };
        let described = beside(opcode, "describe", || {
            let detail = operation.detail();
            self.filesystem.describe(&mut span, &request, &detail);
        });
        let mut call = Call::new(request, span, slot, &self.in_flight, relief);
        let written_bytes = match &operation {
            Operation::Write(write) => write.data.len(),
            _ => 0,
        };
        let mut reply = ReplyBuffer::new(memory);
        let served = match described {
            Some(()) => self.serve(&mut call, operation, &mut reply),
            None => Err(Errno::EIO), // PROTOCOL-5
        };
        let answer = match served {
            _ if opcode.is_silent() => Answer::Silent,
            Ok(()) => Answer::Data(reply.len_bytes()),
            Err(error) => Answer::Error(error),
        };
        Work {
            answer,
            call: Some(call),
            slot,
            written_bytes,
        }
    }

    fn serve(
        &self,
        call: &mut Call<'_, F::Span>,
        operation: Operation<'_>,
        reply: &mut ReplyBuffer<'_>,
    ) -> Result<(), Errno> {
        let waits = matches!(operation, Operation::Setlkw(_));
        if waits && self.lock_waits.fetch_add(1, Ordering::SeqCst) >= self.lock_wait_max {
            self.lock_waits.fetch_sub(1, Ordering::SeqCst);
            return Err(Errno::ENOLCK);
        }
        if waits && !call.begin_lock_wait() {
            self.lock_waits.fetch_sub(1, Ordering::SeqCst);
            return Err(Errno::ENOLCK);
        }
        // What a panic leaves half done is not looked at again: everything is refused from then on.
        let served = catch_unwind(AssertUnwindSafe(|| {
            dispatch(&self.filesystem, call, operation, reply)
        }));
        call.end_lock_wait();
        if waits {
            self.lock_waits.fetch_sub(1, Ordering::SeqCst);
        }
        served.unwrap_or_else(|_| {
            self.is_broken.store(true, Ordering::SeqCst);
            tracing::error!(
                "the handler of {} has panicked; every request fails from now on",
                call.request.opcode.name()
            );
            Err(Errno::EIO)
        })
    }

    /// The answer is written, or could not be.
    pub(crate) fn finish(&self, work: Work<'_, F::Span>, is_delivered: bool) {
        let Some(call) = work.call else {
            return;
        };
        // Nobody waits any longer that could be interrupted.
        work.slot.end();
        let (error, reply_bytes) = match work.answer {
            Answer::Silent => (None, 0),
            Answer::Error(error) => (Some(error), 0),
            Answer::Data(len_bytes) => (None, len_bytes),
        };
        let outcome = Outcome {
            error,
            written_bytes: work.written_bytes,
            reply_bytes,
            is_delivered,
        };
        let opcode = call.request.opcode;
        beside(opcode, "end", || self.filesystem.end(call, &outcome));
    }
}

/// Runs a step beside the handler; `None`: it has panicked, which concerns this request alone.
fn beside<T>(opcode: Opcode, step: &str, run: impl FnOnce() -> T) -> Option<T> {
    let done = catch_unwind(AssertUnwindSafe(run));
    done.inspect_err(|_| tracing::error!("'{step}' of {} has panicked", opcode.name()))
        .ok()
}

fn error_answer(opcode: Opcode, error: Errno) -> Answer {
    if opcode.is_silent() {
        Answer::Silent
    } else {
        Answer::Error(error)
    }
}

#[cfg(test)]
mod tests;
