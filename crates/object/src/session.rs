//! One process that has the database open: being alive, the writer lock between processes, what it pins for its readers, the
//! other processes, and how a database is opened.
//!
//! # Words
//! A *session* is one process with one database. The *writer lock* says which session may have changes that are not
//! committed; a *pin* says which commit its readers may still reach.
//!
//! # Invariants
//! `SESSION-n` in `liveness` and `peers`, `TURN-n` in `writer_lock`, `BARRIER-n` in `barrier`, `READONLY-n` in `readonly`.

pub(crate) mod barrier;
pub(crate) mod liveness;
pub(crate) mod options;
pub(crate) mod other_processes;
pub(crate) mod peers;
pub(crate) mod pins;
pub(crate) mod readonly;
pub(crate) mod stores;
pub(crate) mod tuning;
pub(crate) mod writer_lock;
