//! Transactions over files and rows: short ones, which are one SQLite transaction, and long ones,
//! which work on a copy of the catalog.
//!
//! # Words
//! A short transaction has the writer lock from its first change on. A long one has a *workspace*,
//! a directory of its own, until it is merged.
//!
//! # Invariants
//! `PRIVATE-n` in `short`, `WORKSPACE-6` to `WORKSPACE-8` in `workspace`, `CLIENT-3` to `CLIENT-7`
//! in `client`.

pub(crate) mod client;
pub(crate) mod long;
pub(crate) mod short;
pub(crate) mod sql;
pub(crate) mod workspace;
pub(crate) mod writers;
