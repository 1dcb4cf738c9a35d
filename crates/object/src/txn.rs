//! Transactions over files and rows: short ones, which are one SQLite transaction, and long ones,
//! which work on a copy of the catalog.
//!
//! # Words
//! A short transaction has the writer lock from its first change on. A long one has a *workspace*,
//! a directory of its own, until it is merged.
//!
//! # Invariants
//! `PRIVATE-n` in `short`, `WORKSPACE-6` to `WORKSPACE-8` in `session::workspace`, `CLIENT-3` to
//! `CLIENT-7` in `client`.

pub(crate) mod client;
pub(crate) mod long;
pub(crate) mod short;
pub(crate) mod sql;

use crate::session::pins::Place;
use crate::view::node::Node;
use larder_catalog::{InodeRow, StoreRow};
use larder_space::format::{CommitSeq, Ino, StoreId};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Instant;

/// How far a transaction is.
#[derive(Default)]
pub(crate) struct State {
    stage: Stage,
    /// In the host's pins.
    pub(crate) pin: Option<Place>,
    /// In the queue of the host's writers, or at its head.
    is_writer: bool,
    held_since: Option<Instant>,
    /// Directories whose attributes or entries were read, and not only names in them.
    told: HashSet<(StoreId, Ino)>,
    /// Those that are set, oldest first.
    savepoints: Vec<Savepoint>,
    /// Files that the session writes beside this transaction for it.
    staging_count: Arc<AtomicU32>,
    /// While it waits for others: what it has read.
    left: Option<Left>,
    /// What is in memory is of the last snapshot.
    pub(crate) is_known: bool,
    /// What the transaction has read is of no snapshot any more: nothing but its end is left.
    is_lost: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
enum Stage {
    #[default]
    Idle,
    Reading,
    Writing,
}

/// A moment in a transaction to go back to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Savepoint(u64);

/// What a transaction has read in a snapshot that it has left.
pub(super) struct Left {
    seq: CommitSeq,
    /// Every path was resolved with these.
    stores: Vec<StoreRow>,
    nodes: Vec<ReadNode>,
    savepoints: Vec<Savepoint>,
}

/// An inode as a transaction has read it.
struct ReadNode {
    node: Arc<Node>,
    row: InodeRow,
    /// The commit that had written the row; `None`: there was none.
    since: Option<CommitSeq>,
}
