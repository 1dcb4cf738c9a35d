//! Places of blocks and of allocation groups in a database.

use larder_format::{Extent, SegmentIndex};

/// The place of a block in a database, in the order of segments and blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub segment: SegmentIndex,
    pub block: u64,
}

impl Address {
    /// Where the extent begins.
    pub fn start_of(extent: &Extent) -> Address {
        Address {
            segment: extent.segment,
            block: extent.start_block,
        }
    }

    /// The address after its last block.
    pub fn end_of(extent: &Extent) -> Address {
        Address {
            segment: extent.segment,
            block: extent.end_block(),
        }
    }
}

/// An AG of a database, in the order of addresses.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct AgKey {
    pub segment: SegmentIndex,
    /// Counted in its segment.
    pub ag_index: u32,
}
