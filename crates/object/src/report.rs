//! What the verbs of upkeep answer.

use larder_space::format::StoreId;

/// How full a database is. All sizes in bytes; `capacity = live + retired + free`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct SpaceReport {
    /// What content may take at most: the `--capacity`, or what the filesystem has.
    pub capacity_bytes: u64,
    /// Preallocated in segments so far.
    pub segment_bytes: u64,
    /// Held by content that can be reached.
    pub live_bytes: u64,
    /// Held by content that was replaced or deleted and is not reclaimed yet.
    pub retired_bytes: u64,
    /// Neither; includes what is held back.
    pub free_bytes: u64,
    /// Of the free bytes, what ordinary writes may take.
    pub available_bytes: u64,
    /// Small overwrites in the catalog that wait for being written in place.
    pub patch_bytes: u64,
    /// The catalog's files.
    pub catalog_bytes: u64,
    /// Number of inodes, all stores.
    pub inode_count: u64,
}

/// How fragmented a database is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FragReport {
    /// Objects that hold extents.
    pub object_count: u64,
    /// Their fragments: physically contiguous pieces in logical order.
    pub fragment_count: u64,
    /// Mean over the objects; 0 when there are none.
    pub fragments_per_object_mean: f64,
    /// 99th percentile.
    pub fragments_per_object_p99: u64,
    /// The worst object.
    pub fragments_per_object_max: u64,
    /// Which one that is.
    pub worst: Option<(StoreId, String)>,
    /// Bytes of content that once existed and are gone ÷ bytes live now ([BLOB]).
    pub storage_age: f64,
    /// Holes in the free space.
    pub hole_count: u64,
    /// The largest, bytes.
    pub largest_hole_bytes: u64,
    /// Holes by size: `(lower bound in bytes, count)` for each non-empty power of two.
    pub hole_histogram: Vec<(u64, u64)>,
}

/// What `check` found.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CheckReport {
    /// One line per finding: what is wrong, where. Empty: the database is whole.
    pub findings: Vec<String>,
    /// Inodes looked at.
    pub inode_count: u64,
    /// Extents looked at.
    pub extent_count: u64,
    /// Bytes read and verified.
    pub verified_bytes: u64,
}
