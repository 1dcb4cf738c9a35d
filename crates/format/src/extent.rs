//! An extent: contiguous blocks on one segment.

use crate::limits::{AG_BLOCKS, BLOCK_BYTES};
use crate::units::SegmentIndex;

/// `block_count` contiguous blocks of segment `segment`, starting at `start_block` (counted from
/// the segment's first data block). Never empty, never across an allocation group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extent {
    /// The segment that holds the blocks.
    pub segment: SegmentIndex,
    /// First block, counted from the segment's first data block.
    pub start_block: u64,
    /// Number of blocks, ≥ 1.
    pub block_count: u64,
}

impl Extent {
    /// An extent; panics on an empty one.
    pub fn new(segment: SegmentIndex, start_block: u64, block_count: u64) -> Extent {
        assert!(block_count > 0, "an extent has at least one block");
        Extent {
            segment,
            start_block,
            block_count,
        }
    }

    /// The block after the last one.
    pub fn end_block(&self) -> u64 {
        self.start_block + self.block_count
    }

    /// Length in bytes.
    pub fn len_bytes(&self) -> u64 {
        self.block_count * BLOCK_BYTES
    }

    /// The allocation group (by index in its segment) that holds the extent.
    pub fn ag_index(&self) -> u64 {
        self.start_block / AG_BLOCKS
    }

    /// Whether the two share a block.
    pub fn overlaps(&self, other: &Extent) -> bool {
        self.segment == other.segment
            && self.start_block < other.end_block()
            && other.start_block < self.end_block()
    }

    /// Whether `next` begins exactly where this extent ends.
    pub fn is_followed_by(&self, next: &Extent) -> bool {
        self.segment == next.segment && self.end_block() == next.start_block
    }

    /// `count` blocks of this extent from its `skip`-th on; panics when that leaves the extent.
    pub fn slice(&self, skip: u64, count: u64) -> Extent {
        assert!(
            skip + count <= self.block_count,
            "slice {skip}+{count} of {self}"
        );
        Extent::new(self.segment, self.start_block + skip, count)
    }
}

impl std::fmt::Display for Extent {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "segment {} blocks {}..{}",
            self.segment.0,
            self.start_block,
            self.end_block()
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn extent(segment: u32, start_block: u64, block_count: u64) -> Extent {
        Extent::new(SegmentIndex(segment), start_block, block_count)
    }

    #[test]
    fn an_extent_has_the_bytes_of_its_blocks() {
        assert_eq!(extent(0, 5, 3).len_bytes(), 12_288);
    }

    #[test]
    fn extents_overlap_where_they_share_a_block() {
        let middle = extent(1, 10, 4);
        for (start, count, is_shared) in [
            (6, 4, false),
            (6, 5, true),
            (9, 6, true),
            (10, 4, true),
            (11, 2, true),
            (13, 1, true),
            (14, 4, false),
        ] {
            let other = extent(1, start, count);
            assert_eq!(middle.overlaps(&other), is_shared, "{other}");
            assert_eq!(other.overlaps(&middle), is_shared, "{other}");
        }
        assert!(!middle.overlaps(&extent(2, 10, 4)), "of another segment");
    }

    #[test]
    fn an_extent_shows_its_segment_and_its_blocks() {
        assert_eq!(extent(3, 10, 4).to_string(), "segment 3 blocks 10..14");
    }
}
