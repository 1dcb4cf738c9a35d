//! What is read: inodes, entries and extent maps in memory, in front of the catalog, and the road of a read.
//!
//! # Words
//! A *node* is an inode in memory. What others commit *invalidates* what is remembered. An *as-of view* shows a
//! moment of the past.
//!
//! # Invariants
//! `NODE-n` in `node`, `CACHE-n` in `cache`, `MAP-4` in `extent_map`, `PIECE-n` in `pieces`, `FOREIGN-3` and `FOREIGN-4` in
//! `invalidation`, `PAST-n` in `as_of`.

pub(crate) mod as_of;
pub(crate) mod cache;
pub(crate) mod entries;
pub(crate) mod extent_map;
pub(crate) mod invalidation;
pub(crate) mod listing;
pub(crate) mod node;
pub(crate) mod pieced;
pub(crate) mod pieces;
pub(crate) mod read;
