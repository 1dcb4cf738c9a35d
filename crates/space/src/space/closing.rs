//! Closing the end of a segment, so that it can be emptied and cut off (`SPACE-9`).

use larder_format::{Extent, SegmentIndex};

use super::Space;
use crate::error::SpaceError;
use crate::reservation::Purpose;

impl Space {
    /// Closes a segment from `block` to its end, which replaces an earlier closing of it: nothing is
    /// allocated there any more, and what is or becomes free there is set aside. Refused, with
    /// nothing changed but soft regions there opened, when that would touch promises or the held back
    /// blocks. Panics when there is no such segment. O(holes there).
    pub fn close_from(&mut self, segment: SegmentIndex, block: u64) -> Result<(), SpaceError> {
        let end = self.block_count(segment).min(self.closed_from(segment));
        if block >= end {
            self.reopen_until(segment, block);
            return Ok(());
        }
        let spare_blocks = self.available_blocks(Purpose::Ordinary);
        let part = Extent::new(segment, block, end - block);
        self.steal_regions(&part);
        let free = self.open.remove_range(part);
        let free_blocks = free.iter().map(|run| run.block_count).sum();
        let may_close = free_blocks <= spare_blocks;
        let kept = if may_close {
            &mut self.aside
        } else {
            &mut self.open
        };
        free.into_iter().for_each(|run| kept.insert(run));
        if !may_close {
            return Err(SpaceError::CannotClose {
                segment,
                block,
                free_blocks,
                spare_blocks,
            });
        }
        self.closed.insert(segment, block);
        Ok(())
    }

    /// Opens a segment that was closed; what was set aside is free again. O(holes set aside).
    pub fn reopen(&mut self, segment: SegmentIndex) {
        self.reopen_until(segment, u64::MAX);
        self.closed.remove(&segment);
    }

    fn reopen_until(&mut self, segment: SegmentIndex, block: u64) {
        let end = self.block_count(segment).min(block);
        if let Some(from) = self
            .closed
            .insert(segment, block)
            .filter(|&from| from < end)
        {
            for run in self
                .aside
                .remove_range(Extent::new(segment, from, end - from))
            {
                self.open.insert(run);
            }
        }
    }

    /// Forgets the blocks of a segment from `block_count` on, all of which must be set aside; a segment
    /// without blocks is forgotten as a whole. What is left stays closed as it is. Refused, with
    /// nothing changed, when a block there is in use or not closed. Panics when there is no such
    /// segment. O(AGs cut off).
    pub fn shrink_segment(
        &mut self,
        segment: SegmentIndex,
        block_count: u64,
    ) -> Result<(), SpaceError> {
        let old_block_count = self.block_count(segment);
        if block_count >= old_block_count {
            return Ok(());
        }
        let part = Extent::new(segment, block_count, old_block_count - block_count);
        let set_aside = self.aside.remove_range(part);
        let aside_blocks: u64 = set_aside.iter().map(|run| run.block_count).sum();
        if aside_blocks < part.block_count {
            for run in set_aside {
                self.aside.insert(run);
            }
            return Err(SpaceError::CannotShrink {
                segment,
                block_count,
                used_blocks: part.block_count - aside_blocks,
            });
        }
        self.segments.insert(segment, block_count);
        if block_count == 0 {
            self.segments.remove(&segment);
            self.closed.remove(&segment);
        }
        Ok(())
    }

    /// The block from which on a segment is closed; `u64::MAX` when it is not.
    pub fn closed_from(&self, segment: SegmentIndex) -> u64 {
        self.closed.get(&segment).copied().unwrap_or(u64::MAX)
    }

    /// Free blocks that are set aside: neither available nor promised (`SPACE-9`).
    pub fn aside_blocks(&self) -> u64 {
        self.aside.blocks()
    }
}
