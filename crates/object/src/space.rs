//! Where content lies: reservations, segments that grow and shrink, moves that join
//! holes, blocks of several objects.
//!
//! # Words
//! A *reservation* sets blocks aside; *compaction* moves content to join holes,
//! *defragmentation* to join an object; a *relocation* is what the history is told of a move.
//!
//! # Invariants
//! `RESERVE-n` in `reservation`, `COMPACT-n` in `compact`, `defrag` and `object_defrag`, `SHRINK-n`
//! in `shrink`, `SHARE-n` in `sharing`, `HOST-n` in `host_reserve`.

pub(crate) mod compact;
pub(crate) mod defrag;
pub(crate) mod grow;
pub(crate) mod host_reserve;
pub(crate) mod object_defrag;
mod relocations;
pub(crate) mod reservation;
pub(crate) mod sharing;
pub(crate) mod shrink;

use larder_space::Space;
use larder_space::format::{CommitSeq, Extent, Ino, SegmentIndex, StoreId};
use std::collections::{BTreeMap, HashMap};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU32};
use std::time::Instant;

/// The free set.
#[derive(Default)]
pub(crate) struct FreeSpace {
    pub space: Space,
    /// Places taken for moves that no group has yet: their AGs must stay loaded (`RESERVE-1`).
    pub taken_count: u32,
    /// The commit up to which the free set is known; `None` before the first load.
    synced: Option<CommitSeq>,
    /// A commit whose retired rows wait for their reclaim, the oldest that is remembered; `None`:
    /// only the catalog knows. Forgotten with the writer lock: others may reclaim then.
    pub oldest_retired: Option<CommitSeq>,
    /// Places that content was moved away from while history is kept, and by which commit, oldest
    /// first (`HISTORY-5`). Forgotten with the process: then they go with the retention.
    pub moved_away: Vec<(Extent, CommitSeq)>,
}

/// The moves of a group, by the present place: that and the committed one, of the same length.
#[derive(Debug, Default)]
pub(crate) struct Moves {
    by_place: BTreeMap<(SegmentIndex, u64), (Extent, Extent)>,
}

/// Growth of a segment.
#[derive(Default)]
pub(crate) struct Growth {
    one_at_a_time: Mutex<()>,
    /// What the host had and the segments were, bytes, before the growth that is under way.
    pub begun_at: Mutex<Option<(u64, u64)>>,
    /// How long a segment has become without the writer lock; not in the free set yet, unless the
    /// writer lock was away meanwhile.
    ahead: Mutex<Option<(SegmentIndex, u64)>>,
}

/// What was found at the last look.
#[derive(Default)]
pub(crate) struct HostSpace {
    /// Operations since.
    operations: AtomicU32,
    /// So many may go by until the next.
    operations_max: AtomicU32,
    looked: Mutex<Option<Instant>>,
    is_short: AtomicBool,
    has_little: AtomicBool,
}

/// What the background knows.
#[derive(Default)]
pub(crate) struct Compactor {
    credit_bytes: u64,
    candidates: BTreeMap<(StoreId, Ino), Candidate>,
    last_write: Option<Instant>,
    is_running: bool,
    /// Where the search for a hole goes on: the n-th AG.
    ag_cursor: usize,
}

#[derive(Debug, Clone, Copy)]
struct Candidate {
    blocks: u64,
    was_split: bool,
    attempts: u32,
    not_before: Instant,
}

/// What the engine knows of extents with several holders.
#[derive(Default)]
pub(crate) struct Shares {
    /// There may be some.
    may_be: AtomicBool,
    young: Mutex<Young>,
}

/// What is young. A clone of a tree makes as many as it has files, so nothing here looks at all of
/// them.
#[derive(Default)]
struct Young {
    by_holder: HashMap<(StoreId, Ino), Places>,
    /// All of these places that are shared, and some that were: by start, where they end. None
    /// touch.
    covered: BTreeMap<(SegmentIndex, u64), u64>,
}

/// What one holder has come to hold: by start, where it ends, and in which group. None overlap,
/// since a file may have very many, each of which is looked for.
type Places = BTreeMap<(SegmentIndex, u64), (u64, u64)>;

/// How `defrag` works.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct DefragOptions {
    /// Only find out what could be done, object by object.
    pub is_dry: bool,
}

/// One object that was not in one piece.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DefragObject {
    /// Its store.
    pub store: StoreId,
    /// Its path in the store.
    pub path: String,
    /// Its fragments before.
    pub fragments_before: u64,
    /// Its fragments now, or what they would be.
    pub fragments_after: u64,
    /// Bytes copied for it, or that would be.
    pub moved_bytes: u64,
}

/// What a run of `defrag` did, or would do.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct DefragReport {
    /// Nothing was moved.
    pub is_dry: bool,
    /// Objects looked at.
    pub object_count: u64,
    /// Of these, in more than one fragment.
    pub fragmented_count: u64,
    /// Of these, in one fragment now.
    pub healed_count: u64,
    /// Fragments of the fragmented objects, before.
    pub fragments_before: u64,
    /// And after.
    pub fragments_after: u64,
    /// Bytes copied in all, or that would be.
    pub moved_bytes: u64,
    /// Of these, to join holes.
    pub join_bytes: u64,
    /// The score of the holes before: the sum of their squared lengths, blocks².
    pub hole_score_before: f64,
    /// And after.
    pub hole_score_after: f64,
    /// The largest hole before, bytes.
    pub largest_hole_bytes_before: u64,
    /// And after.
    pub largest_hole_bytes_after: u64,
}

/// What `shrink` did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ShrinkReport {
    /// Nothing was changed.
    pub is_dry: bool,
    /// Preallocated in segments before, bytes.
    pub segment_bytes_before: u64,
    /// And after.
    pub segment_bytes_after: u64,
    /// Bytes of content that lay behind the new end and were moved.
    pub moved_bytes: u64,
    /// Bytes that clones share and that are not moved: the segments could be shorter without them.
    pub shared_bytes: u64,
}
