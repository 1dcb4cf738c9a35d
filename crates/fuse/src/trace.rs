//! Telling another process what a mount does, as it happens.
//!
//! # Words
//! A *tracer* is a process that wants to know (`larder trace`); its *pipe* is a FIFO in the
//! database's directory `trace/`. An *event* is one operation that has ended. A *message* is what
//! goes through the pipe: a greeting, an event, or how many events were lost.
//!
//! # Invariants
//! * `TRACE-1` A tracer never makes an operation wait: an event that the pipe does not take at once
//!   is lost, and lost events are counted and told.
//! * `TRACE-2` Messages of several mounts in one pipe do not mix: each is one write of at most
//!   `PIPE_BUF` (4096) bytes, which pipe(7) promises to be atomic.
//! * `TRACE-3` No bytes from a pipe, however short or odd, make the decoder panic.
//! * `TRACE-4` While nobody traces, an operation costs one relaxed load more.
//!
//! # Recovery
//! The kernel knows whether a pipe has a reader: the pipe of a tracer that died is removed by the
//! next mount that looks, or the next tracer.

mod event;
mod pipe;

#[cfg(fuzzing)]
pub(crate) use event::read_message;
#[cfg(fuzzing)]
pub(crate) use pipe::read_name;

pub use event::{TraceEvent, TraceMessage};
pub(crate) use pipe::Tracers;
pub use pipe::{TraceFilter, TraceListener};
