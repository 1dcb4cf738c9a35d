//! What is committed together, and what the user's rules refuse in it.
//!
//! # Words
//! A *group* is what one commit of the catalog holds: the *open* one takes changes. Who commits it
//! for all who wait is its *leader*.
//!
//! Group has more than 20 fields: it collects every kind of change for one commit.
//!
//! # Invariants
//! `COMMIT-n` in `group_commit`, `LEADER-n` in `leader`, `CHECKPOINT-n` in `checkpoint`, `REDO-n`
//! in `redo`, `LOGGED-n` in `log_inlined`, `PREIMAGE-n` in `pre_images`, `CONSTRAINT-2` to `-4`
//! in `refused`, `CONSTRAINT-6` in `refused_held`, `NAMES-n` in `names`.

pub(crate) mod checkpoint;
mod dependents;
mod forget;
mod group;
pub(crate) mod group_commit;
mod leader;
pub(crate) mod log_inlined;
mod lost_orphans;
mod names;
mod pending_sync;
pub(crate) mod place;
pub(crate) mod pre_images;
pub(crate) mod redo;
pub(crate) mod refused;
pub(crate) mod refused_content;
pub(crate) mod refused_held;
mod taken_out;

use crate::space::Moves;
use crate::view::node::Node;
use larder_catalog::{Held, MapShare, Save, Sharing};
use larder_space::format::{Extent, Ino, Name, SegmentIndex, SessionId, StoreId};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

/// The open group: what is not in a node.
#[derive(Default)]
pub(crate) struct Group {
    pub dirty: Vec<Arc<Node>>,
    /// What operations did to names (`NAMES-1`).
    pub names: Vec<NameChange>,
    /// When the first change came.
    pub started: Option<Instant>,
    /// Inodes that have lost their last name and may be known still (`NAMELESS-2`).
    pub parting: Vec<Arc<Node>>,
    pub retired: Vec<Held>,
    /// Blocks that an object shares.
    pub shared: Vec<Sharing>,
    /// Pages of maps that were made of others.
    pub map_shares: Vec<MapShare>,
    /// Written already, to be flushed: what moved in this group.
    pub allocated: Vec<Held>,
    pub retired_bytes: u64,
    /// Targets of redo rows that will be written over, and where their content is kept
    /// (`pre_images`).
    pub pre_images: Vec<(Extent, Extent)>,
    /// What was moved: where from, for the history.
    pub moves: Moves,
    /// Places that content was moved away from; they are retired as well.
    pub moved_away: Vec<Extent>,
    pub segments: Vec<(SegmentIndex, u64)>,
    /// An inode number came back (`ROLLBACK-1`).
    pub has_revived: bool,
    /// Files that become other inodes (`SAVE-2`).
    pub saves: Vec<Save>,
    /// Inodes that are files again which have none.
    pub file_ids: Vec<(StoreId, Ino, i64)>,
    pub orphans_added: Vec<(StoreId, Ino)>,
    pub orphans_removed: Vec<(StoreId, Ino)>,
    pub holders_added: Vec<(StoreId, Ino, SessionId)>,
    pub holders_removed: Vec<(StoreId, Ino, SessionId)>,
    /// The user for whom all of it was done; known when it is closed.
    pub user: Option<u32>,
    /// Other sessions live (`SESSION-4`). Kept from group to group.
    pub has_others: bool,
    /// Reclaim found everything pinned: not before this moment again.
    pub reclaim_after: Option<Instant>,
}

/// A name that an operation made, changed or removed.
pub(crate) struct NameChange {
    pub dir: (StoreId, Ino),
    pub name: Name,
    pub target: Option<Ino>,
    /// The operation changed no name after it.
    pub is_last: bool,
}

/// Held while a group is committed, or while nobody shall commit.
#[derive(Default)]
pub(crate) struct CommitLock {
    state: Mutex<LockState>,
    /// For those who want the lock whatever is committed.
    free: Condvar,
    /// For those who wait for a group. Two groups can be waited for at a time, the one that is
    /// being committed and the open one: by the parity of their generation.
    ended: [Condvar; 2],
    /// The newest group that is durable.
    committed: AtomicU64,
}

#[derive(Default)]
struct LockState {
    is_held: bool,
    /// The newest group whose waiters were woken.
    told: u64,
    /// Waiters on `free`.
    lockers: u32,
    /// Waiters on `ended`.
    syncs: [u32; 2],
}

/// Orphans that rules of the user's keep.
#[derive(Debug, Default)]
pub(crate) struct KeptOrphans {
    /// Until when each is not asked about, and how long that was.
    by: HashMap<(StoreId, Ino), (Instant, Duration)>,
    /// How often a rule was asked.
    tried: u64,
}

/// What a handle has told of refusals of its file, which are counted from 1. As with errors of
/// writing on Linux, who opens a file after somebody was told is not told.
#[derive(Debug)]
pub struct Told {
    /// Those up to this one are over: a sync of others told them before it was opened, or its own
    /// did, and its next one succeeded.
    over: AtomicU64,
    by_sync: AtomicU64,
}

/// What an engine knows of refusals.
#[derive(Default)]
pub(crate) struct Refusals {
    /// Operations that were taken out.
    pub count: AtomicU64,
    /// Of those, what neither a sync nor a close has reported.
    pub unreported: AtomicU64,
    /// What the host has no room for.
    pub held: AllHeld,
    /// The number to keep the next one by, if nobody else has it; 0: not known yet.
    pub next_id: AtomicU64,
}

/// What is held. A leaf lock.
#[derive(Default)]
pub(crate) struct AllHeld {
    /// There is something: a look costs nothing.
    is_some: AtomicBool,
    all: Mutex<Vec<HeldRefusal>>,
}

/// Something that was refused, with its content.
struct HeldRefusal {
    why: String,
    new: NewRefused<'static>,
    content: Vec<u8>,
}

/// What is to be kept.
#[derive(Clone)]
pub(crate) struct NewRefused<'r> {
    pub at_ns: i64,
    pub store: StoreId,
    pub ino: Ino,
    pub why: &'r str,
    pub path: Vec<u8>,
    pub size_bytes: Option<u64>,
}
