//! Why space is refused.

use larder_format::{Extent, SegmentIndex};

/// There is less space than was asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "no space: {wanted_blocks} blocks wanted, {available_blocks} available; delete something or \
     raise the capacity"
)]
pub struct NoSpace {
    /// Blocks asked for.
    pub wanted_blocks: u64,
    /// Blocks that could have been reserved for this purpose.
    pub available_blocks: u64,
}

/// Extents, read from the catalog, that contradict what is known about space.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum SpaceError {
    /// The extent lies outside its segment, or outside the AG it was listed for.
    #[error("{0} is out of range; run larder check")]
    OutOfRange(Extent),
    /// The extent crosses from one AG into the next (`SPACE-3`).
    #[error("{0} crosses an allocation group; run larder check")]
    CrossesAg(Extent),
    /// A block of the extent is allocated or quarantined already (`SPACE-2`).
    #[error("{0} overlaps an extent in use; run larder check")]
    InUse(Extent),
    /// Other sessions took blocks that are reserved here (`SPACE-6`).
    #[error(
        "allocation group {ag_index} of segment {segment}: another session took {missing_blocks} \
         blocks that are reserved here"
    )]
    Overcommitted {
        /// The segment of the AG.
        segment: SegmentIndex,
        /// The AG, counted in its segment.
        ag_index: u64,
        /// Reserved blocks that no longer exist.
        missing_blocks: u64,
    },
    /// A part of a segment cannot be closed: what is free there is needed (`SPACE-9`).
    #[error(
        "segment {segment} cannot be closed from block {block} on: {free_blocks} free blocks \
         would go, and {spare_blocks} can be spared; the rest is reserved or held back"
    )]
    CannotClose {
        /// The segment.
        segment: SegmentIndex,
        /// The first block to close.
        block: u64,
        /// Free blocks from there on.
        free_blocks: u64,
        /// Free blocks that are neither reserved nor held back.
        spare_blocks: u64,
    },
    /// A segment cannot end here: behind it are blocks that are not set aside (`SPACE-9`).
    #[error(
        "segment {segment} cannot shrink to {block_count} blocks: {used_blocks} blocks behind \
         that are in use or open"
    )]
    CannotShrink {
        /// The segment.
        segment: SegmentIndex,
        /// The length asked for, blocks.
        block_count: u64,
        /// Blocks behind it that are allocated, quarantined or not closed.
        used_blocks: u64,
    },
    /// There is no such AG.
    #[error("segment {segment} has no allocation group {ag_index}; run larder check")]
    NoAg {
        /// The segment.
        segment: SegmentIndex,
        /// The AG, counted in its segment.
        ag_index: u64,
    },
    /// The extents of an AG are not what its summary says, or the summary is impossible.
    #[error(
        "allocation group {ag_index} of segment {segment}: its summary says {summary_blocks} \
         blocks in use, and there are {extent_blocks}; run larder check"
    )]
    SummaryDiffers {
        /// The segment of the AG.
        segment: SegmentIndex,
        /// The AG, counted in its segment.
        ag_index: u64,
        /// Blocks of its extents; of the AG itself when the summary alone is impossible.
        extent_blocks: u64,
        /// Blocks in use by the summary.
        summary_blocks: u64,
    },
    /// A part of an AG is asked for whose holes are not known: [`crate::Space::load_ag`] first.
    #[error("allocation group {ag_index} of segment {segment} is not loaded")]
    NotLoaded {
        /// The segment of the AG.
        segment: SegmentIndex,
        /// The AG, counted in its segment.
        ag_index: u64,
    },
}
