//! What is free, and the choice of a place: open holes, and soft regions of streams.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use larder_format::{Extent, SegmentIndex};

use crate::address::{Address, AgKey};
use crate::ags::Ags;
use crate::error::SpaceError;
use crate::streams::{StreamId, Streams};

/// See the module.
#[derive(Debug)]
pub(crate) struct FreeBlocks {
    pub ag_blocks: u64,
    /// Holes that no stream holds, and all counts.
    pub ags: Ags,
    /// Free blocks that streams hold.
    pub streams: Streams,
}

impl FreeBlocks {
    /// No segments yet.
    pub fn new(ag_blocks: u64) -> FreeBlocks {
        FreeBlocks {
            ag_blocks,
            ags: Ags::new(ag_blocks),
            streams: Streams::new(ag_blocks),
        }
    }

    /// Whether a block of `extent` is known to be free.
    pub fn is_free(&self, extent: &Extent) -> bool {
        self.ags.overlaps(extent) || !self.streams.find_overlapping(extent).is_empty()
    }

    /// Takes `blocks` for content of known length.
    pub fn allocate_known(&mut self, blocks: u64) -> Vec<Extent> {
        let mut pieces = Vec::with_capacity(1);
        let mut left = blocks;
        while left > 0 {
            let hole = self.choose_hole(left);
            let piece = hole.slice(0, left.min(hole.block_count));
            self.steal_regions(&piece);
            self.ags.take(piece);
            left -= piece.block_count;
            pieces.push(piece);
        }
        pieces
    }

    /// Takes `blocks` for a stream, and holds a region for what is to come.
    pub fn allocate_stream(
        &mut self,
        stream: StreamId,
        blocks: u64,
        after: Option<(SegmentIndex, u64)>,
        expected_blocks: Option<u64>,
    ) -> Vec<Extent> {
        let region = self.reopen_region(stream);
        let after = after.map(|(segment, block)| Address { segment, block });
        let mut next = after
            .filter(|&after| self.ags.find_at(after).is_some())
            .or_else(|| region.as_ref().map(Address::start_of));
        let mut pieces: Vec<Extent> = Vec::with_capacity(1);
        let mut left = blocks;
        while left > 0 {
            let hole = next
                .and_then(|next| self.find_hole_from(next, left))
                .unwrap_or_else(|| {
                    let to_come = self.streams.blocks_to_come(stream, blocks, expected_blocks);
                    self.choose_stream_hole(left, to_come)
                });
            let piece = hole.slice(0, left.min(hole.block_count));
            self.steal_regions(&piece);
            self.ags.take(piece);
            left -= piece.block_count;
            next = Some(Address::end_of(&piece));
            pieces.push(piece);
        }
        self.hold_region(stream, blocks, expected_blocks, next);
        pieces
    }

    /// Where `blocks` of known size go (`SPACE-8`): the best fit among open holes; else, soft
    /// regions not respected, the best fit; else the largest hole.
    fn choose_hole(&self, blocks: u64) -> Extent {
        if let Some(hole) = self.ags.find_best_fit(blocks) {
            return hole;
        }
        let held = self.held_holes();
        let fitting = held.iter().filter(|hole| hole.block_count >= blocks);
        let best = fitting
            .min_by_key(|hole| (hole.block_count, **hole))
            .copied();
        let largest = || {
            let open = self.ags.find_largest();
            held.iter()
                .chain(&open)
                .max_by_key(|hole| (hole.block_count, Reverse(**hole)))
                .copied()
        };
        match best.or_else(largest) {
            Some(hole) => hole,
            None => panic!("SPACE-6: {blocks} reserved blocks, but no hole"),
        }
    }

    /// The best fit among the parts of holes below `limit`, open ones first; `None` for a limit
    /// means none.
    pub fn find_below(&self, blocks: u64, limit: Option<Address>) -> Option<Extent> {
        let cut = |hole: Extent| match limit {
            Some(limit) if Address::start_of(&hole) >= limit => None,
            Some(limit) if hole.segment == limit.segment && hole.end_block() > limit.block => {
                Some(hole.slice(0, limit.block - hole.start_block))
            }
            _ => Some(hole),
        };
        let held = || {
            let held = self.held_holes().into_iter().filter_map(cut);
            held.filter(|hole| hole.block_count >= blocks)
                .min_by_key(|hole| (hole.block_count, *hole))
        };
        self.ags.find_best_fit_below(blocks, limit).or_else(held)
    }

    /// Where a stream starts a new fragment with `blocks`: the best fit for them and for what is to
    /// come, else the largest open hole if the blocks fit there, else as if they were all of it.
    fn choose_stream_hole(&self, blocks: u64, to_come: u64) -> Extent {
        self.ags
            .find_best_fit((blocks + to_come).min(self.ag_blocks))
            .or_else(|| {
                self.ags
                    .find_largest()
                    .filter(|hole| hole.block_count >= blocks)
            })
            .unwrap_or_else(|| self.choose_hole(blocks))
    }

    /// The rest of the open hole from `next` on, or, if that is too short for `blocks` and stealing
    /// makes it long enough, of the true hole (`SPACE-7`).
    fn find_hole_from(&self, next: Address, blocks: u64) -> Option<Extent> {
        let open = self.ags.find_at(next)?;
        let skip = next.block - open.start_block;
        let rest = open.slice(skip, open.block_count - skip);
        let stolen = || self.find_part_from(next);
        Some(rest)
            .filter(|rest| rest.block_count >= blocks)
            .or_else(|| stolen().filter(|stolen| stolen.block_count >= blocks))
            .or(Some(rest))
    }

    /// The rest of the true hole from `next` on, soft regions counted as free.
    pub fn find_part_from(&self, next: Address) -> Option<Extent> {
        let hole = self.true_hole_at(next)?;
        let skip = next.block - hole.start_block;
        Some(hole.slice(skip, hole.block_count - skip))
    }

    /// The holes with soft regions in them, as if there were none, by address.
    pub fn held_holes(&self) -> Vec<Extent> {
        let mut holes: Vec<Extent> = Vec::new();
        for region in self.streams.regions() {
            if !holes.last().is_some_and(|hole| hole.overlaps(&region)) {
                holes.push(self.true_hole(region));
            }
        }
        holes
    }

    /// The hole around a maximal open hole or around the first region in it, regions counted as
    /// free.
    fn true_hole(&self, part: Extent) -> Extent {
        let mut hole = part;
        while !hole.start_block.is_multiple_of(self.ag_blocks)
            && let Some(left) = self.find_free_ending_at(Address::start_of(&hole))
        {
            hole = Extent::new(
                hole.segment,
                left.start_block,
                left.block_count + hole.block_count,
            );
        }
        while !hole.end_block().is_multiple_of(self.ag_blocks)
            && let Some(right) = self.find_free_starting_at(Address::end_of(&hole))
        {
            hole.block_count += right.block_count;
        }
        hole
    }

    /// The hole that holds the block at `address`, regions counted as free.
    fn true_hole_at(&self, address: Address) -> Option<Extent> {
        let block = Extent::new(address.segment, address.block, 1);
        let region = || self.streams.find_overlapping(&block).first().copied();
        self.ags
            .find_at(address)
            .or_else(region)
            .map(|part| self.true_hole(part))
    }

    fn find_free_starting_at(&self, address: Address) -> Option<Extent> {
        self.ags
            .find_starting_at(address)
            .or_else(|| self.streams.find_starting_at(address))
    }

    fn find_free_ending_at(&self, address: Address) -> Option<Extent> {
        let region = || {
            let last = Extent::new(address.segment, address.block - 1, 1);
            self.streams.find_overlapping(&last).first().copied()
        };
        self.ags.find_ending_at(address).or_else(region)
    }

    /// Opens every soft region that `extent` touches.
    pub fn steal_regions(&mut self, extent: &Extent) {
        for region in self.streams.find_overlapping(extent) {
            self.streams.release(region);
            self.ags.open(region);
        }
    }

    /// Opens the soft region of a stream.
    pub fn reopen_region(&mut self, stream: StreamId) -> Option<Extent> {
        let region = self.streams.find_region(stream)?;
        self.streams.release(region);
        self.ags.open(region);
        Some(region)
    }

    /// Holds a region for a stream that was just given `blocks`, right where it ended.
    fn hold_region(
        &mut self,
        stream: StreamId,
        blocks: u64,
        expected_blocks: Option<u64>,
        next: Option<Address>,
    ) {
        let wanted = self.streams.record(stream, blocks, expected_blocks);
        if wanted > 0
            && let Some(hole) = next.and_then(|next| self.ags.find_starting_at(next))
        {
            let region = hole.slice(0, wanted.min(hole.block_count));
            self.ags.hold(region);
            self.streams.hold(stream, region);
        }
    }

    /// Whether an extent lies in one AG of a segment (`SPACE-3`).
    pub fn check_place(&self, extent: &Extent) -> Result<(), SpaceError> {
        let segment_blocks = self.ags.find_block_count(extent.segment).unwrap_or(0);
        let end = extent.start_block.checked_add(extent.block_count);
        let Some(end) = end.filter(|&end| end <= segment_blocks) else {
            return Err(SpaceError::OutOfRange(*extent));
        };
        if extent.start_block / self.ag_blocks != (end - 1) / self.ag_blocks {
            return Err(SpaceError::CrossesAg(*extent));
        }
        Ok(())
    }

    /// Unloads AGs when they take too much memory (`SPACE-10`).
    pub fn evict(&mut self) {
        if self.ags.is_over_budget() {
            let (ags, streams) = (&mut self.ags, &self.streams);
            let regions: BTreeSet<AgKey> = streams
                .regions()
                .map(|region| ags.grid.key_of(region.segment, region.start_block))
                .collect();
            ags.evict(|ag| regions.contains(&ag.key));
        }
    }

    /// Whether it is known where the holes of an AG are.
    pub fn is_loaded(&self, segment: SegmentIndex, ag_index: u64) -> bool {
        self.find_ag(segment, ag_index)
            .is_ok_and(|(key, _)| self.ags.find(key).is_some_and(|ag| ag.is_loaded()))
    }

    /// The AG of a block, if it has open blocks and is not loaded.
    pub fn find_wanted_at(&self, address: Address) -> Option<(SegmentIndex, u64)> {
        let key = self.ags.find_key(address)?;
        let ag = self.ags.find(key)?;
        let is_wanted = !ag.is_loaded() && ag.open_blocks() > 0;
        is_wanted.then_some((key.segment, key.ag_index.into()))
    }

    /// An AG and all its blocks.
    pub fn find_ag(
        &self,
        segment: SegmentIndex,
        ag_index: u64,
    ) -> Result<(AgKey, Extent), SpaceError> {
        let ag = u32::try_from(ag_index)
            .ok()
            .and_then(|ag_index| self.ags.find(AgKey { segment, ag_index }));
        match ag {
            Some(ag) => Ok((ag.key, self.ags.range_of(ag))),
            None => Err(SpaceError::NoAg { segment, ag_index }),
        }
    }

    /// Whether a cut at `block` goes through no AG, or through one that is loaded.
    pub fn check_loaded(&self, segment: SegmentIndex, block: u64) -> Result<(), SpaceError> {
        let ag_index = block / self.ag_blocks;
        if block.is_multiple_of(self.ag_blocks) || self.is_loaded(segment, ag_index) {
            return Ok(());
        }
        Err(SpaceError::NotLoaded { segment, ag_index })
    }

    /// Blocks of a segment. Panics when there is no such segment.
    pub fn block_count(&self, segment: SegmentIndex) -> u64 {
        match self.ags.find_block_count(segment) {
            Some(block_count) => block_count,
            None => panic!("segment {segment} was not added"),
        }
    }
}
