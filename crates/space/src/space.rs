//! The books of free space, and the choice of a place. Invariants: see the crate's header.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use larder_format::limits::{AG_BLOCKS, HELD_BACK_DIVISOR};
use larder_format::{Extent, SegmentIndex};

use crate::error::{NoSpace, SpaceError};
use crate::reservation::{Purpose, Reservation};
use crate::runs::{Address, Runs};
use crate::streams::{StreamId, Streams};

/// What is known about the length of the content to place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// It is as long as the allocation: one global best fit (`SPACE-8`).
    Known,
    /// It belongs to a stream that may go on. It starts right at `after` when that is free, else at
    /// the stream's soft region, else in a hole with room to go on.
    Stream {
        /// The stream.
        stream: StreamId,
        /// The block after the stream's last one.
        after: Option<(SegmentIndex, u64)>,
        /// The whole length that was announced for the stream, from its first allocation on: what is
        /// still to come decides the hole and the size of the soft region. `None`: not known.
        expected_blocks: Option<u64>,
    },
}

/// Where an extent that is moved may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Target {
    /// Into the best fit (`SPACE-8`).
    Anywhere,
    /// Into the best fit among the parts of holes that lie wholly below this block.
    Below(SegmentIndex, u64),
    /// Right at this block.
    At(SegmentIndex, u64),
}

/// Free, promised, allocated and quarantined space of all segments of a database.
#[derive(Debug)]
pub struct Space {
    ag_blocks: u64,
    /// Block count of each segment.
    segments: BTreeMap<SegmentIndex, u64>,
    /// Free blocks that no stream holds.
    open: Runs,
    /// Free blocks that streams hold.
    streams: Streams,
    quarantined: Runs,
    /// The block from which on a segment is closed.
    closed: BTreeMap<SegmentIndex, u64>,
    /// Free blocks of closed parts (`SPACE-9`).
    aside: Runs,
    allocated_blocks: u64,
    reserved_blocks: u64,
}

impl Default for Space {
    fn default() -> Space {
        Space::new()
    }
}

impl Space {
    /// Space without segments.
    pub fn new() -> Space {
        Space::with_ag_blocks(AG_BLOCKS)
    }

    /// Space with AGs of another size, for tests that must see many of them.
    pub(crate) fn with_ag_blocks(ag_blocks: u64) -> Space {
        Space {
            ag_blocks,
            segments: BTreeMap::new(),
            open: Runs::new(ag_blocks),
            streams: Streams::new(ag_blocks),
            quarantined: Runs::new(ag_blocks),
            closed: BTreeMap::new(),
            aside: Runs::new(ag_blocks),
            allocated_blocks: 0,
            reserved_blocks: 0,
        }
    }

    /// Adds free blocks at the end of a segment, up to `new_block_count`; a segment that is not
    /// known yet begins with none. Panics when the segment would shrink.
    pub fn grow_segment(&mut self, segment: SegmentIndex, new_block_count: u64) {
        let old_block_count = self.segments.get(&segment).copied().unwrap_or(0);
        assert!(
            new_block_count >= old_block_count,
            "segment {segment} would shrink"
        );
        self.segments.insert(segment, new_block_count);
        let mut at = old_block_count;
        while at < new_block_count {
            let end = ((at / self.ag_blocks + 1) * self.ag_blocks).min(new_block_count);
            self.give(Extent::new(segment, at, end - at)); // SPACE-3
            at = end;
        }
    }

    /// Enters a committed extent while the database is opened. Nothing changes on an error.
    pub fn mark_allocated(&mut self, extent: Extent) -> Result<(), SpaceError> {
        self.check_place(&extent)?;
        let hole = self.true_hole_at(&extent);
        if hole.is_none_or(|hole| extent.end_block() > hole.end_block()) {
            return Err(SpaceError::InUse(extent));
        }
        let unpromised = self.free_blocks().saturating_sub(self.reserved_blocks);
        if extent.block_count > unpromised {
            return Err(SpaceError::Overcommitted {
                segment: extent.segment,
                ag_index: extent.start_block / self.ag_blocks,
                missing_blocks: extent.block_count - unpromised,
            });
        }
        self.steal_regions(&extent);
        self.take(extent);
        Ok(())
    }

    /// Takes over what another session committed: the allocated extents of AG `ag_index` are now
    /// exactly `allocated`, in any order. Its quarantine and its soft regions are dropped: what waits
    /// to be reclaimed must be in the list, and so must what this session has allocated but not
    /// committed yet. An error in the list changes nothing; [`SpaceError::Overcommitted`] comes
    /// after the change, and means that reservations must be forfeited, until
    /// [`Space::overcommitted_blocks`] is 0, before the next allocation. O(extents and holes in the
    /// AG).
    pub fn reload_ag(
        &mut self,
        segment: SegmentIndex,
        ag_index: u64,
        allocated: &[Extent],
    ) -> Result<(), SpaceError> {
        let ag = self.ag(segment, ag_index);
        let mut sorted = allocated.to_vec();
        sorted.sort_unstable();
        for extent in &sorted {
            self.check_place(extent)?;
            if !extent.overlaps(&ag) {
                return Err(SpaceError::OutOfRange(*extent));
            }
        }
        if let Some(pair) = sorted.windows(2).find(|pair| pair[0].overlaps(&pair[1])) {
            return Err(SpaceError::InUse(pair[1]));
        }
        self.steal_regions(&ag);
        let unallocated =
            self.open.remove_ag(ag) + self.quarantined.remove_ag(ag) + self.aside.remove_ag(ag);
        self.allocated_blocks -= ag.block_count - unallocated;
        let mut free_from = ag.start_block;
        for extent in sorted {
            self.give_between(segment, free_from, extent.start_block);
            self.allocated_blocks += extent.block_count;
            free_from = extent.end_block();
        }
        self.give_between(segment, free_from, ag.end_block());
        match self.overcommitted_blocks() {
            0 => Ok(()),
            missing_blocks => Err(SpaceError::Overcommitted {
                segment,
                ag_index,
                missing_blocks,
            }),
        }
    }

    /// Blocks of all segments.
    pub fn capacity_blocks(&self) -> u64 {
        self.segments.values().sum()
    }

    /// Blocks that are neither allocated nor quarantined nor set aside, the promised ones included.
    pub fn free_blocks(&self) -> u64 {
        self.open.blocks() + self.streams.held_blocks()
    }

    /// Free blocks that are promised.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved_blocks
    }

    /// Blocks in use.
    pub fn allocated_blocks(&self) -> u64 {
        self.allocated_blocks
    }

    /// Blocks that wait for their release.
    pub fn quarantined_blocks(&self) -> u64 {
        self.quarantined.blocks()
    }

    /// Blocks that ordinary reservations leave alone (`SPACE-4`).
    pub fn held_back_blocks(&self) -> u64 {
        self.capacity_blocks() / HELD_BACK_DIVISOR
    }

    /// Blocks that a reservation of this purpose could get now.
    pub fn available_blocks(&self, purpose: Purpose) -> u64 {
        let held_back = match purpose {
            Purpose::Ordinary => self.held_back_blocks(),
            Purpose::Privileged => 0,
        };
        self.free_blocks()
            .saturating_sub(self.reserved_blocks)
            .saturating_sub(held_back)
    }

    /// Promised blocks that other sessions took; 0 but after an error of [`Space::reload_ag`].
    pub fn overcommitted_blocks(&self) -> u64 {
        self.reserved_blocks.saturating_sub(self.free_blocks())
    }

    /// Promises `blocks`. O(segments).
    pub fn reserve(&mut self, blocks: u64, purpose: Purpose) -> Result<Reservation, NoSpace> {
        let available_blocks = self.available_blocks(purpose);
        if blocks > available_blocks {
            return Err(NoSpace {
                wanted_blocks: blocks,
                available_blocks,
            });
        }
        self.reserved_blocks += blocks;
        Ok(Reservation::new(blocks))
    }

    /// Gives back what is left of a promise.
    pub fn forfeit(&mut self, mut reservation: Reservation) {
        self.reserved_blocks -= reservation.take_all();
    }

    /// Turns `blocks` of a promise into extents, in the order in which the content should fill
    /// them: one wherever a hole fits, else few. Panics when the promise is shorter, or is broken
    /// ([`Space::overcommitted_blocks`]).
    pub fn allocate(
        &mut self,
        reservation: &mut Reservation,
        blocks: u64,
        placement: Placement,
    ) -> Vec<Extent> {
        assert_eq!(self.overcommitted_blocks(), 0, "SPACE-6");
        reservation.take(blocks);
        self.reserved_blocks -= blocks;
        let pieces = match placement {
            _ if blocks == 0 => Vec::new(),
            Placement::Known => self.allocate_known(blocks),
            Placement::Stream {
                stream,
                after,
                expected_blocks,
            } => self.allocate_stream(stream, blocks, after, expected_blocks),
        };
        debug_assert_eq!(
            pieces.iter().map(|piece| piece.block_count).sum::<u64>(),
            blocks
        );
        pieces
    }

    /// Turns `blocks` (≥ 1) of a promise into one extent, for content that is moved. `None`, with the
    /// promise untouched, when there is no such hole: it never splits. Panics as
    /// [`Space::allocate`] does. O(log holes), for [`Target::Below`] times the number of different
    /// lengths of the holes that fit.
    pub fn allocate_whole(
        &mut self,
        reservation: &mut Reservation,
        blocks: u64,
        target: Target,
    ) -> Option<Extent> {
        assert_eq!(self.overcommitted_blocks(), 0, "SPACE-6");
        let place = self.find_whole(blocks, target)?.slice(0, blocks);
        reservation.take(blocks);
        self.reserved_blocks -= blocks;
        self.steal_regions(&place);
        self.take(place);
        Some(place)
    }

    /// Ends a stream: what was held for it is open to all again.
    pub fn end_stream(&mut self, stream: StreamId) {
        self.reopen_region(stream);
        self.streams.forget(stream);
    }

    /// Retires allocated blocks: they are out of use, but not free before [`Space::release`]. Panics
    /// when a block is not allocated (`SPACE-2`).
    pub fn quarantine(&mut self, extent: Extent) {
        assert_eq!(self.check_place(&extent), Ok(()), "SPACE-3");
        let is_free = self.open.overlaps(&extent)
            || self.aside.overlaps(&extent)
            || !self.streams.find_overlapping(&extent).is_empty();
        assert!(!is_free, "SPACE-2: {extent} is quarantined, but free");
        self.quarantined.insert(extent);
        self.allocated_blocks -= extent.block_count;
    }

    /// Frees quarantined blocks; those of a closed part are set aside (`SPACE-9`). Panics when a block
    /// is not in quarantine (`SPACE-2`).
    pub fn release(&mut self, extent: Extent) {
        self.quarantined.remove(extent);
        self.give(extent);
    }

    /// Length of the largest hole, blocks. O(streams · log holes).
    pub fn largest_hole_blocks(&self) -> u64 {
        let open = self.open.find_largest();
        self.held_holes()
            .iter()
            .chain(&open)
            .map(|hole| hole.block_count)
            .max()
            .unwrap_or(0)
    }

    /// How many holes have `2^i ..= 2^(i+1) − 1` blocks, for each class `i`. O(holes).
    pub fn hole_histogram(&self) -> [u64; 64] {
        let mut histogram = [0; 64];
        for hole in self.holes() {
            histogram[hole.block_count.ilog2() as usize] += 1;
        }
        histogram
    }

    /// All holes by address, soft regions counted as free. O(holes), time and memory.
    pub fn holes(&self) -> impl Iterator<Item = Extent> + use<> {
        let mut all = self.open.clone();
        for region in self.streams.regions() {
            all.insert(region);
        }
        all.iter().collect::<Vec<_>>().into_iter()
    }

    /// Panics unless the invariants hold. O(holes).
    pub fn assert_valid(&self) {
        self.open.assert_valid();
        self.quarantined.assert_valid();
        assert_eq!(
            self.allocated_blocks
                + self.quarantined_blocks()
                + self.free_blocks()
                + self.aside_blocks(),
            self.capacity_blocks(),
            "SPACE-1"
        );
        let mut unallocated = self.open.clone();
        // Inserting panics on an overlap: SPACE-2.
        self.streams
            .regions()
            .chain(self.quarantined.iter())
            .chain(self.aside.iter())
            .for_each(|run| unallocated.insert(run));
        unallocated.assert_valid();
        for run in unallocated.iter() {
            assert_eq!(self.check_place(&run), Ok(()), "SPACE-3");
        }
        for run in self.open.iter().chain(self.streams.regions()) {
            assert!(
                run.end_block() <= self.closed_from(run.segment),
                "SPACE-9: {run}"
            );
        }
        for run in self.aside.iter() {
            assert!(
                run.start_block >= self.closed_from(run.segment),
                "SPACE-9: {run}"
            );
        }
        assert_eq!(self.overcommitted_blocks(), 0, "SPACE-6");
    }

    fn allocate_known(&mut self, blocks: u64) -> Vec<Extent> {
        let mut pieces = Vec::with_capacity(1);
        let mut left = blocks;
        while left > 0 {
            let hole = self.choose_hole(left);
            let piece = hole.slice(0, left.min(hole.block_count));
            self.steal_regions(&piece);
            self.take(piece);
            left -= piece.block_count;
            pieces.push(piece);
        }
        pieces
    }

    fn allocate_stream(
        &mut self,
        stream: StreamId,
        blocks: u64,
        after: Option<(SegmentIndex, u64)>,
        expected_blocks: Option<u64>,
    ) -> Vec<Extent> {
        let region = self.reopen_region(stream);
        let after = after.map(|(segment, block)| Address { segment, block });
        let mut next = after
            .filter(|&after| self.open.find_at(after).is_some())
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
            self.take(piece);
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
        if let Some(hole) = self.open.find_best_fit(blocks) {
            return hole;
        }
        let held = self.held_holes();
        let fitting = held.iter().filter(|hole| hole.block_count >= blocks);
        let best = fitting
            .min_by_key(|hole| (hole.block_count, **hole))
            .copied();
        let largest = || {
            let open = self.open.find_largest();
            held.iter()
                .chain(&open)
                .max_by_key(|hole| (hole.block_count, Reverse(**hole)))
                .copied()
        };
        match best.or_else(largest) {
            Some(hole) => hole,
            None => panic!("SPACE-6: {blocks} promised blocks, but no hole"),
        }
    }

    /// The hole, cut as `target` asks, that takes a moved extent of `blocks`: open ones first.
    fn find_whole(&self, blocks: u64, target: Target) -> Option<Extent> {
        let fits = |hole: &Extent| hole.block_count >= blocks;
        match target {
            Target::At(segment, block) => {
                let hole = self.true_hole_at(&Extent::new(segment, block, 1))?;
                let skip = block - hole.start_block;
                Some(hole.slice(skip, hole.block_count - skip)).filter(fits)
            }
            Target::Anywhere => self.find_below(blocks, None),
            Target::Below(segment, block) => {
                self.find_below(blocks, Some(Address { segment, block }))
            }
        }
    }

    fn find_below(&self, blocks: u64, limit: Option<Address>) -> Option<Extent> {
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
        self.open.find_best_fit_below(blocks, limit).or_else(held)
    }

    /// Where a stream starts a new fragment with `blocks`: the best fit for them and for what is to
    /// come, else the largest open hole if the blocks fit there, else as if they were all of it.
    fn choose_stream_hole(&self, blocks: u64, to_come: u64) -> Extent {
        self.open
            .find_best_fit((blocks + to_come).min(self.ag_blocks))
            .or_else(|| {
                self.open
                    .find_largest()
                    .filter(|hole| hole.block_count >= blocks)
            })
            .unwrap_or_else(|| self.choose_hole(blocks))
    }

    /// The rest of the open hole from `next` on, or, if that is too short for `blocks` and stealing
    /// makes it long enough, of the true hole (`SPACE-7`).
    fn find_hole_from(&self, next: Address, blocks: u64) -> Option<Extent> {
        let open = self.open.find_at(next)?;
        let rest_of = |hole: Extent| {
            let skip = next.block - hole.start_block;
            hole.slice(skip, hole.block_count - skip)
        };
        let rest = rest_of(open);
        if rest.block_count >= blocks {
            return Some(rest);
        }
        Some(rest_of(self.true_hole(open)))
            .filter(|stolen| stolen.block_count >= blocks)
            .or(Some(rest))
    }

    /// The holes with soft regions in them, as if there were none, by address.
    fn held_holes(&self) -> Vec<Extent> {
        let mut holes: Vec<Extent> = Vec::new();
        for region in self.streams.regions() {
            if !holes.last().is_some_and(|hole| hole.overlaps(&region)) {
                holes.push(self.true_hole(region));
            }
        }
        holes
    }

    /// The hole around a maximal open hole or around the first region in it, regions counted as free.
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

    /// The hole that holds the first block of `extent`, regions counted as free.
    fn true_hole_at(&self, extent: &Extent) -> Option<Extent> {
        let first = extent.slice(0, 1);
        let region = || self.streams.find_overlapping(&first).first().copied();
        self.open
            .find_at(Address::start_of(extent))
            .or_else(region)
            .map(|part| self.true_hole(part))
    }

    fn find_free_starting_at(&self, address: Address) -> Option<Extent> {
        self.open
            .find_starting_at(address)
            .or_else(|| self.streams.find_starting_at(address))
    }

    fn find_free_ending_at(&self, address: Address) -> Option<Extent> {
        let region = || {
            let last = Extent::new(address.segment, address.block - 1, 1);
            self.streams.find_overlapping(&last).first().copied()
        };
        self.open.find_ending_at(address).or_else(region)
    }

    /// Opens every soft region that `extent` touches.
    fn steal_regions(&mut self, extent: &Extent) {
        for region in self.streams.find_overlapping(extent) {
            self.streams.release(region);
            self.open.insert(region);
        }
    }

    fn reopen_region(&mut self, stream: StreamId) -> Option<Extent> {
        let region = self.streams.find_region(stream)?;
        self.streams.release(region);
        self.open.insert(region);
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
            && let Some(hole) = next.and_then(|next| self.open.find_starting_at(next))
        {
            let region = hole.slice(0, wanted.min(hole.block_count));
            self.open.remove(region);
            self.streams.hold(stream, region);
        }
    }

    /// Free → open, or set aside where the segment is closed (`SPACE-9`).
    fn give(&mut self, extent: Extent) {
        let boundary = self
            .closed_from(extent.segment)
            .clamp(extent.start_block, extent.end_block());
        let open_blocks = boundary - extent.start_block;
        if open_blocks > 0 {
            self.open.insert(extent.slice(0, open_blocks));
        }
        if open_blocks < extent.block_count {
            self.aside
                .insert(extent.slice(open_blocks, extent.block_count - open_blocks));
        }
    }

    fn give_between(&mut self, segment: SegmentIndex, start: u64, end: u64) {
        if start < end {
            self.give(Extent::new(segment, start, end - start));
        }
    }

    /// Open → allocated. Panics on any other block (`SPACE-5`).
    fn take(&mut self, extent: Extent) {
        self.open.remove(extent);
        self.allocated_blocks += extent.block_count;
    }

    fn check_place(&self, extent: &Extent) -> Result<(), SpaceError> {
        let segment_blocks = self.segments.get(&extent.segment).copied().unwrap_or(0);
        let end = extent.start_block.checked_add(extent.block_count);
        let Some(end) = end.filter(|&end| end <= segment_blocks) else {
            return Err(SpaceError::OutOfRange(*extent));
        };
        if extent.start_block / self.ag_blocks != (end - 1) / self.ag_blocks {
            return Err(SpaceError::CrossesAg(*extent));
        }
        Ok(())
    }

    /// All blocks of an AG; panics when there is no such AG.
    fn ag(&self, segment: SegmentIndex, ag_index: u64) -> Extent {
        let start = ag_index * self.ag_blocks;
        let end = (start + self.ag_blocks).min(self.block_count(segment));
        assert!(
            start < end,
            "segment {segment} has no allocation group {ag_index}"
        );
        Extent::new(segment, start, end - start)
    }

    fn block_count(&self, segment: SegmentIndex) -> u64 {
        match self.segments.get(&segment) {
            Some(&block_count) => block_count,
            None => panic!("segment {segment} was not added"),
        }
    }
}

mod closing;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
