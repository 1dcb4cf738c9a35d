//! What is changed, before it is committed: names and attributes, content in memory, and whole
//! objects at once.
//!
//! # Words
//! Dirty blocks are *gathered*. Their memory comes from *buffers*, after a *claim*. An object whose
//! size may still grow has its allocation *delayed*.
//!
//! # Invariants
//! `EDIT-n` in `edit`, `GATHER-n` in `gather`, `POOL-n` in `buffers`, `CLAIM-n` in `claims`,
//! `WHOLE-n` in `delayed_allocation`, `SAVE-4` in `saves`, `GUARD-n` in `guard` and `change`,
//! `CONSTRAINT-5` in `rules`, `NAMELESS-n` in `nameless`, `ATIME-n` in `access_times`.

pub(crate) mod access_times;
pub(crate) mod buffers;
pub(crate) mod change;
pub(crate) mod claims;
pub(crate) mod delayed_allocation;
pub(crate) mod edit;
pub(crate) mod gather;
pub(crate) mod guard;
pub(crate) mod nameless;
pub(crate) mod namespace;
pub(crate) mod put;
pub(crate) mod rules;
pub(crate) mod saves;
pub(crate) mod splice;
