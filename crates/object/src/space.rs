//! Where content lies: promises of free blocks, segments that grow and shrink, moves that join
//! holes, blocks of several objects.
//!
//! # Words
//! A *reservation* is a promise of blocks; *compaction* moves content to join holes,
//! *defragmentation* to join an object; a *relocation* is what the history is told of a move.
//!
//! # Invariants
//! `ROOM-n` in `reservation`, `COMPACT-n` in `compact`, `defrag` and `object_defrag`, `SHRINK-n` in
//! `shrink`, `SHARE-n` in `sharing`, `HOST-n` in `host_reserve`.

pub(crate) mod compact;
pub(crate) mod defrag;
pub(crate) mod grow;
pub(crate) mod host_reserve;
pub(crate) mod object_defrag;
pub(crate) mod relocations;
pub(crate) mod reservation;
pub(crate) mod sharing;
pub(crate) mod shrink;
