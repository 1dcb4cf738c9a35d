//! Which AGs are in memory (`SPACE-10`). The owner reads; this says what.

use larder_format::{Extent, SegmentIndex};

use super::{Placement, Space, Target};
use crate::address::Address;
use crate::error::SpaceError;

/// What the catalog keeps of an AG beside its extents.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct AgSummary {
    /// Blocks of all its extents, those in quarantine included.
    pub used_blocks: u64,
    /// Blocks of its extents in quarantine.
    pub quarantined_blocks: u64,
}

impl Space {
    /// Takes over what is committed of an AG, while opening and after a commit of another session;
    /// its holes and soft regions are forgotten, and a closed segment is opened. This session has
    /// nothing uncommitted in the AG. An empty AG need not exist: it was cut off. An error in the
    /// summary changes nothing; [`SpaceError::Overcommitted`] comes after the change, and means
    /// that reservations must be forfeited, until [`Space::overcommitted_blocks`] is 0, before the
    /// next allocation. O(holes in the AG).
    pub fn summarize_ag(
        &mut self,
        segment: SegmentIndex,
        ag_index: u64,
        summary: AgSummary,
    ) -> Result<(), SpaceError> {
        let (key, range) = match self.free.find_ag(segment, ag_index) {
            Err(SpaceError::NoAg { .. }) if summary == AgSummary::default() => return Ok(()),
            found => found?,
        };
        let used = u32::try_from(summary.used_blocks);
        let quarantined = u32::try_from(summary.quarantined_blocks);
        let (Ok(used), Ok(quarantined)) = (used, quarantined) else {
            return Err(differs(
                segment,
                ag_index,
                range.block_count,
                summary.used_blocks,
            ));
        };
        if quarantined > used || summary.used_blocks > range.block_count {
            return Err(differs(
                segment,
                ag_index,
                range.block_count,
                summary.used_blocks,
            ));
        }
        self.reopen(segment);
        self.free.steal_regions(&range);
        self.free.ags.summarize(key, used, quarantined);
        match self.overcommitted_blocks() {
            0 => Ok(()),
            missing_blocks => Err(SpaceError::Overcommitted {
                segment,
                ag_index,
                missing_blocks,
            }),
        }
    }

    /// Enters the extents of an AG, live and in quarantine, in any order; one that is loaded is
    /// left as it is. May unload others. Nothing changes on an error. O(extents).
    pub fn load_ag(
        &mut self,
        segment: SegmentIndex,
        ag_index: u64,
        extents: &[Extent],
    ) -> Result<(), SpaceError> {
        let (key, range) = self.free.find_ag(segment, ag_index)?;
        let mut sorted = extents.to_vec();
        sorted.sort_unstable();
        for extent in &sorted {
            self.free.check_place(extent)?;
            if !extent.overlaps(&range) {
                return Err(SpaceError::OutOfRange(*extent));
            }
        }
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].overlaps(&pair[1])) {
            return Err(SpaceError::InUse(pair[1]));
        }
        let Some(ag) = self.free.ags.find(key).filter(|ag| !ag.is_loaded()) else {
            return Ok(());
        };
        let used: u64 = sorted.iter().map(|extent| extent.block_count).sum();
        if used != u64::from(ag.used_blocks) {
            return Err(differs(segment, ag_index, used, ag.used_blocks.into()));
        }
        let ends = sorted.iter().map(Extent::end_block);
        let starts = sorted.iter().map(|extent| extent.start_block);
        let holes: Vec<(u32, u32)> = std::iter::once(range.start_block)
            .chain(ends)
            .zip(starts.chain([range.end_block()]))
            .filter(|(end, start)| end < start)
            // In an allocation group.
            .map(|(end, start)| ((end - range.start_block) as u32, (start - end) as u32))
            .collect();
        self.free.ags.load(key, &holes);
        self.free.evict();
        Ok(())
    }

    /// Whether it is known where the holes of an AG are.
    pub fn is_loaded(&self, segment: SegmentIndex, ag_index: u64) -> bool {
        self.free.is_loaded(segment, ag_index)
    }

    /// The AG (segment, index) to load before `blocks` are allocated at `placement`; load it and
    /// ask again, until it is `None`. Where all AGs with free blocks fit into memory, it is all of
    /// them, so that the best fit is global (`SPACE-8`). O(log AGs), and what the search for a hole
    /// costs.
    pub fn find_wanted_ag(&self, blocks: u64, placement: Placement) -> Option<(SegmentIndex, u64)> {
        let (after, region, to_come) = match placement {
            _ if blocks == 0 => return None,
            Placement::Known => (None, None, 0),
            Placement::Stream {
                stream,
                after,
                expected_blocks,
            } => {
                let to_come = expected_blocks.map(|_| {
                    self.free
                        .streams
                        .blocks_to_come(stream, blocks, expected_blocks)
                });
                let region = self.free.streams.find_region(stream);
                (after, region, to_come.unwrap_or(0))
            }
        };
        let after = after.map(|(segment, block)| Address { segment, block });
        if let Some(after) = after.and_then(|after| self.free.find_wanted_at(after)) {
            return Some(after);
        }
        let goes_on = || {
            let next = after.or_else(|| region.as_ref().map(Address::start_of))?;
            self.free.find_part_from(next)
        };
        let has_fit = || {
            goes_on().is_some_and(|part| part.block_count >= blocks)
                || self
                    .free
                    .find_below((blocks + to_come).min(self.free.ag_blocks), None)
                    .is_some()
        };
        let wanted = self.free.ags.find_wanted(blocks + to_come, blocks, has_fit);
        wanted.map(|key| (key.segment, key.ag_index.into()))
    }

    /// The AG to load before [`Space::allocate_whole`]; load it and ask again, until it is `None`.
    pub fn find_wanted_ag_for(&self, blocks: u64, target: Target) -> Option<(SegmentIndex, u64)> {
        match target {
            Target::At(segment, block) => self.free.find_wanted_at(Address { segment, block }),
            Target::Anywhere => self.find_wanted_ag(blocks, Placement::Known),
            Target::Below(segment, block) => {
                let limit = Address { segment, block };
                let wanted = self.free.ags.find_wanted_below(blocks, limit)?;
                let has_fit = self.free.find_below(blocks, Some(limit)).is_some();
                (!has_fit).then_some((wanted.segment, wanted.ag_index.into()))
            }
        }
    }

    /// What was allocated until now is committed: the AGs can be loaded again, so those that take
    /// too much memory are unloaded.
    pub fn settle(&mut self) {
        self.free.ags.settle();
        self.free.evict();
    }

    /// Sets how much memory loaded AGs take, at most and about; 192 MiB at first.
    pub fn set_memory_bytes_max(&mut self, bytes: u64) {
        self.free.ags.memory_bytes_max = bytes;
        self.free.evict();
    }

    /// How much memory loaded AGs take, about, bytes.
    pub fn loaded_bytes(&self) -> u64 {
        self.free.ags.accounts().loaded_bytes()
    }
}

fn differs(segment: SegmentIndex, ag_index: u64, found: u64, expected: u64) -> SpaceError {
    SpaceError::SummaryDiffers {
        segment,
        ag_index,
        extent_blocks: found,
        summary_blocks: expected,
    }
}
