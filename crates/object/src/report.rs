//! What the verbs of upkeep answer.

pub(crate) mod check_holders;
pub(crate) mod check_pieces;
pub(crate) mod stats;
pub(crate) mod survey;

use larder_space::format::StoreId;

/// How full a database is. All sizes in bytes; `capacity = live + retired + free`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpaceReport {
    /// What content may take at most: the `--capacity`, or what the filesystem has.
    pub capacity_bytes: u64,
    /// Preallocated in segments so far.
    pub segment_bytes: u64,
    /// Held by content that can be reached.
    pub live_bytes: u64,
    /// Held by content that was replaced or deleted and is not reclaimed yet.
    pub retired_bytes: u64,
    /// Of the retired ones, those that history gives up when somebody needs them. They count as
    /// free to whoever asks how full the database is: see [`SpaceReport::used_bytes`].
    pub spare_bytes: u64,
    /// Neither live nor retired; includes what is held back.
    pub free_bytes: u64,
    /// What ordinary writes may take: of the free and the spare bytes, less what is held back and
    /// reserved.
    pub available_bytes: u64,
    /// Small overwrites in the catalog that wait for being written in place.
    pub redo_bytes: u64,
    /// The catalog's files.
    pub catalog_bytes: u64,
    /// Number of inodes, all stores.
    pub inode_count: u64,
}

impl SpaceReport {
    /// What is taken, and stays so: with what is available no more than the capacity.
    pub fn used_bytes(&self) -> u64 {
        let spare = self.free_bytes.saturating_add(self.spare_bytes);
        self.capacity_bytes.saturating_sub(spare)
    }
}

/// How fragmented a database is.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct FragReport {
    /// Objects that hold extents.
    pub object_count: u64,
    /// Their fragments: physically contiguous pieces in logical order.
    pub fragment_count: u64,
    /// Mean over the objects; 0 when there are none.
    pub fragments_per_object_mean: f64,
    /// Median.
    pub fragments_per_object_p50: u64,
    /// 99th percentile.
    pub fragments_per_object_p99: u64,
    /// The worst object.
    pub fragments_per_object_max: u64,
    /// Which one that is.
    pub worst: Option<(StoreId, String)>,
    /// The objects by the space they take, smallest class first.
    pub size_classes: Vec<SizeClass>,
    /// Bytes of content that once existed and are gone ÷ bytes live now (\[BLOB\]).
    pub storage_age: f64,
    /// Holes in the free space.
    pub hole_count: u64,
    /// The largest, bytes.
    pub largest_hole_bytes: u64,
    /// All of them, bytes: free in the segments as they are.
    pub hole_bytes: u64,
    /// The same in objects of mean size; 0 when there are none. The smaller this pool, the sooner
    /// content fragments.
    pub free_pool_objects: f64,
    /// The sum of the squared lengths of the holes, blocks²: what compaction makes larger.
    pub hole_score: f64,
    /// Holes by size: `(lower bound in bytes, count)` for each non-empty power of two.
    pub hole_histogram: Vec<(u64, u64)>,
}

/// Objects of similar size.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SizeClass {
    /// They take at least so many bytes, a power of two, and less than twice that.
    pub lower_bytes: u64,
    /// How many there are.
    pub object_count: u64,
    /// Their fragments.
    pub fragment_count: u64,
    /// Those of the worst one.
    pub fragments_max: u64,
}

/// Counters of one moment. Two of them tell rates: what was written is what `live_bytes` and
/// `retired_bytes_total` together have risen by.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct StatsReport {
    /// The moment, nanoseconds since 1970.
    pub at_ns: i64,
    /// The number of the newest commit.
    pub commit_seq: u64,
    /// Sessions, the one that asks among them.
    pub session_count: u64,
    /// What constraints of the user's refused after it was answered, and nobody has decided about.
    pub refused_count: u64,
    /// Inodes, all stores.
    pub inode_count: u64,
    /// Held by content that can be reached.
    pub live_bytes: u64,
    /// Replaced or deleted, and not reclaimed yet.
    pub retired_bytes: u64,
    /// Of these, what a prune of all history would free now: the rest is held by snapshots and
    /// readers of the past.
    pub history_bytes: u64,
    /// What clones would take more if they shared nothing.
    pub shared_bytes: u64,
    /// Pages of maps that clones share, or did and history may need, in the catalog.
    pub map_page_bytes: u64,
    /// Neither live nor retired, of the capacity.
    pub free_bytes: u64,
    /// Preallocated in segments.
    pub segment_bytes: u64,
    /// Content ever replaced or deleted.
    pub retired_bytes_total: u64,
    /// That per byte that lives now.
    pub storage_age: f64,
    /// The catalog's write-ahead log.
    pub wal_bytes: u64,
}

/// What one session has in memory, and what it knows of the database without asking the catalog.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Gauges {
    /// The newest commit that this session has seen.
    pub commit_seq: u64,
    /// Groups that this session has committed.
    pub group_count: u64,
    /// Operations that constraints of the user's refused after they were answered.
    pub refused_count: u64,
    /// Of those, whose content is in memory: the host has no room to keep it.
    pub refused_held_count: u64,
    /// Memory of the whole process, bytes; 0 where the system does not say.
    pub resident_bytes: u64,
    /// Memory of content that waits to be written, bytes.
    pub dirty_bytes: u64,
    /// Beyond that, of dirty and kept content together, writers wait.
    pub dirty_bytes_max: u64,
    /// Memory of clean content that is kept, bytes.
    pub kept_bytes: u64,
    /// Inodes with changes that wait for a commit; those of a commit under way are not among them.
    pub dirty_inode_count: u64,
    /// Inodes in memory.
    pub cached_inode_count: u64,
    /// What they keep of the catalog, bytes.
    pub cached_inode_bytes: u64,
    /// Changes by others of which was known what they were.
    pub foreign_exact_count: u64,
    /// Those of which it was not, so that all in memory was dropped.
    pub foreign_whole_count: u64,
    /// Inodes in memory that were dropped because of both.
    pub foreign_dropped_count: u64,
    /// Small overwrites in the catalog that wait for being written in place, bytes.
    pub redo_bytes: u64,
    /// Reserved for writes, bytes.
    pub reserved_bytes: u64,
    /// Objects that wait to be gathered into one piece.
    pub candidate_count: u64,
    /// Bytes that the background may move.
    pub compact_credit_bytes: u64,
    /// The catalog's write-ahead log, bytes.
    pub wal_bytes: u64,
}

/// One segment, cut into cells.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SegmentMap {
    /// Its index.
    pub segment: u32,
    /// Bytes in a cell; the last one may have less.
    pub cell_bytes: u64,
    /// All cells, from block 0 on.
    pub cells: Vec<MapCell>,
}

/// What is in use of a piece of a segment, blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct MapCell {
    /// All blocks.
    pub block_count: u64,
    /// Those that live content holds.
    pub live_blocks: u64,
    /// Those that wait for reclaim.
    pub retired_blocks: u64,
}

/// What `check` found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CheckReport {
    /// One line per finding: what is wrong, where. Empty: the database is whole.
    pub findings: Vec<String>,
    /// Triggers and views of the user's: code that runs when the database is used.
    pub notes: Vec<String>,
    /// Inodes looked at.
    pub inode_count: u64,
    /// Extents looked at.
    pub extent_count: u64,
    /// Bytes read and verified.
    pub verified_bytes: u64,
}
