//! What Larder's bytes mean: ids, units, limits, and the codecs between types and bytes.
//!
//! # Words
//! *Block*: 4 KiB, the unit of allocation and of checksums. *Extent*: contiguous blocks on one
//! segment. *Extent map*: where an object's blocks lie, with one checksum per block, cut into
//! *map pages* of [`limits::MAP_PAGE_BLOCKS`] logical blocks. *Superblock*: the root record of a
//! segment.
//!
//! # Invariants
//! * `FORMAT-1` Every integer on disk is little-endian and has a fixed width; no `usize`.
//! * `FORMAT-2` Decoders distrust their input: they verify, and only then compute. No input panics.
//! * `FORMAT-3` `decode(encode(x)) == x` for every value that the constructors accept.
//! * `FORMAT-4` Checksums are CRC-32C (Castagnoli) over the whole 4 KiB block, zero padding
//!   included.
//!
//! No I/O, no clock, no locks.

pub mod change_record;
pub mod checksum;
pub mod extent;
pub mod extent_map;
pub mod limits;
pub mod piece_page;
pub mod superblock;
pub mod units;

pub use change_record::{ChangeRecord, Entry, Operation};
pub use checksum::{Checksum, block_checksum};
pub use extent::Extent;
pub use extent_map::{MapPage, MapReference, MapRun};
pub use piece_page::{PieceEntry, PiecePage};
pub use superblock::{Member, Superblock, SuperblockError};
pub use units::{CommitSeq, FileKind, Ino, Name, NameError, SegmentIndex, SessionId, StoreId};

/// A damaged or foreign encoding, found while decoding: what was being decoded, and why it is
/// refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{what}: {why}")]
pub struct DecodeError {
    /// The structure that was being decoded, e.g. `"map page"`.
    pub what: &'static str,
    /// What was expected and what was found.
    pub why: String,
}
