//! Closing the end of a segment, so that it can be emptied and cut off (`SPACE-9`).

use larder_format::{Extent, SegmentIndex};

use super::Space;
use crate::error::SpaceError;
use crate::reservation::Purpose;

impl Space {
    /// Closes a segment from `block` to its end, which replaces an earlier closing of it: nothing
    /// is allocated there any more, and what is or becomes free there is set aside. Refused, with
    /// nothing changed but soft regions there opened, when that would touch reservations or the
    /// held back blocks, and [`SpaceError::NotLoaded`] when `block` is inside of an AG that is not
    /// loaded. Panics when there is no such segment. O(holes there).
    pub fn close_from(&mut self, segment: SegmentIndex, block: u64) -> Result<(), SpaceError> {
        let end = self.free.block_count(segment);
        if block < end {
            self.free.check_loaded(segment, block)?;
            self.free
                .steal_regions(&Extent::new(segment, block, end - block));
        }
        let spare_blocks = self.available_blocks(Purpose::Ordinary);
        let free_blocks = self.free.ags.open_blocks_from(segment, block);
        if free_blocks > spare_blocks {
            return Err(SpaceError::CannotClose {
                segment,
                block,
                free_blocks,
                spare_blocks,
            });
        }
        self.free.ags.set_closed_from(segment, block);
        Ok(())
    }

    /// Opens a segment that was closed; what was set aside is free again. O(holes set aside).
    /// Panics when there is no such segment.
    pub fn reopen(&mut self, segment: SegmentIndex) {
        if self.closed_from(segment) != u64::MAX {
            self.free.ags.set_closed_from(segment, u64::MAX);
        }
    }

    /// Forgets the blocks of a segment from `block_count` on, all of which must be set aside; a
    /// segment without blocks is forgotten as a whole. What is left stays closed as it is. Refused,
    /// with nothing changed, when a block there is in use or not closed, and with
    /// [`SpaceError::NotLoaded`] when the end would be inside of an AG that is not loaded. Panics
    /// when there is no such segment. O(AGs cut off).
    pub fn shrink_segment(
        &mut self,
        segment: SegmentIndex,
        block_count: u64,
    ) -> Result<(), SpaceError> {
        if block_count >= self.free.block_count(segment) {
            return Ok(());
        }
        self.free.check_loaded(segment, block_count)?;
        let used_blocks = self.free.ags.needed_blocks_from(segment, block_count);
        if used_blocks > 0 {
            return Err(SpaceError::CannotShrink {
                segment,
                block_count,
                used_blocks,
            });
        }
        self.free.ags.truncate(segment, block_count);
        Ok(())
    }

    /// The block from which on a segment is closed; `u64::MAX` when it is not.
    pub fn closed_from(&self, segment: SegmentIndex) -> u64 {
        self.free.ags.closed_from(segment)
    }

    /// Free blocks that are set aside: neither available nor reserved (`SPACE-9`).
    pub fn aside_blocks(&self) -> u64 {
        self.free.ags.accounts().aside_blocks()
    }
}
