//! The books of free space, and the choice of a place. Invariants: see the crate's header.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use larder_format::limits::{AG_BLOCKS, HELD_BACK_DIVISOR};
use larder_format::{Extent, SegmentIndex};

use crate::address::{Address, AgKey};
use crate::ags::Ags;
use crate::error::{NoSpace, SpaceError};
use crate::reservation::{Purpose, Reservation};
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
        /// The whole length that was announced for the stream, from its first allocation on: what
        /// is still to come decides the hole and the size of the soft region. `None`: not known.
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

/// Free, reserved, allocated and quarantined space of all segments of a database.
#[derive(Debug)]
pub struct Space {
    ag_blocks: u64,
    /// Holes that no stream holds, and all counts.
    ags: Ags,
    /// Free blocks that streams hold.
    streams: Streams,
    reserved_blocks: u64,
    /// Of the allocated ones.
    granted_blocks: u64,
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
            ags: Ags::new(ag_blocks),
            streams: Streams::new(ag_blocks),
            reserved_blocks: 0,
            granted_blocks: 0,
        }
    }

    /// Learns how many blocks long transactions have been granted: of them nothing is held back
    /// here.
    pub fn set_granted(&mut self, blocks: u64) {
        self.granted_blocks = blocks;
    }

    /// Adds free blocks at the end of a segment, up to `new_block_count`; a segment that is not
    /// known yet begins with none, and one that is closed is opened. Panics when the segment would
    /// shrink. O(new AGs).
    pub fn grow_segment(&mut self, segment: SegmentIndex, new_block_count: u64) {
        if self.ags.find_block_count(segment).is_some() {
            self.reopen(segment);
        }
        self.ags.grow(segment, new_block_count); // SPACE-3
        self.evict();
    }

    /// Blocks of all segments.
    pub fn capacity_blocks(&self) -> u64 {
        self.ags.capacity_blocks()
    }

    /// Blocks that are neither allocated nor quarantined nor set aside, the reserved ones included.
    pub fn free_blocks(&self) -> u64 {
        self.ags.free_blocks()
    }

    /// Free blocks that are reserved.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved_blocks
    }

    /// Blocks in use.
    pub fn allocated_blocks(&self) -> u64 {
        self.ags.allocated_blocks()
    }

    /// Blocks that wait for their release.
    pub fn quarantined_blocks(&self) -> u64 {
        self.ags.quarantined_blocks()
    }

    /// Blocks that long transactions have been granted, as far as was learned.
    pub fn granted_blocks(&self) -> u64 {
        self.granted_blocks
    }

    /// Blocks of all segments but for those that long transactions have been granted: what one
    /// writes, and may take back, says nothing about how much others will write.
    pub fn own_blocks(&self) -> u64 {
        self.capacity_blocks().saturating_sub(self.granted_blocks)
    }

    /// Blocks that ordinary reservations leave alone (`SPACE-4`).
    pub fn held_back_blocks(&self) -> u64 {
        self.own_blocks() / HELD_BACK_DIVISOR
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

    /// Reserved blocks that other sessions took; 0 but after an error of [`Space::summarize_ag`].
    pub fn overcommitted_blocks(&self) -> u64 {
        self.reserved_blocks.saturating_sub(self.free_blocks())
    }

    /// Reserves `blocks`, of all AGs, loaded or not. O(1).
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

    /// Gives back what is left of a reservation.
    pub fn forfeit(&mut self, mut reservation: Reservation) {
        self.reserved_blocks -= reservation.take_all();
    }

    /// Turns `blocks` of a reservation into extents, in the order in which the content should fill
    /// them: one wherever a hole fits, else few. Panics when the reservation is shorter, is broken
    /// ([`Space::overcommitted_blocks`]), or needs an AG that is not loaded: ask
    /// [`Space::find_wanted_ag`] before.
    pub fn allocate(
        &mut self,
        reservation: &mut Reservation,
        blocks: u64,
        placement: Placement,
    ) -> Vec<Extent> {
        assert_eq!(self.overcommitted_blocks(), 0, "SPACE-6");
        self.ags.tick();
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

    /// Turns `blocks` (≥ 1) of a reservation into one extent, for content that is moved. `None`,
    /// with the reservation untouched, when no loaded AG has such a hole: it never splits
    /// ([`Space::find_wanted_ag_for`]). Panics as [`Space::allocate`] does. O(log holes), for
    /// [`Target::Below`] times the number of different lengths of the holes that fit.
    pub fn allocate_whole(
        &mut self,
        reservation: &mut Reservation,
        blocks: u64,
        target: Target,
    ) -> Option<Extent> {
        assert_eq!(self.overcommitted_blocks(), 0, "SPACE-6");
        self.ags.tick();
        let place = self.find_whole(blocks, target)?.slice(0, blocks);
        reservation.take(blocks);
        self.reserved_blocks -= blocks;
        self.steal_regions(&place);
        self.ags.take(place);
        Some(place)
    }

    /// Ends a stream: what was held for it is open to all again.
    pub fn end_stream(&mut self, stream: StreamId) {
        self.reopen_region(stream);
        self.streams.forget(stream);
    }

    /// Retires allocated blocks: they are out of use, but not free before [`Space::release`].
    /// Panics when they are known to be free, or more than the AG has allocated (`SPACE-2`).
    pub fn quarantine(&mut self, extent: Extent) {
        assert_eq!(self.check_place(&extent), Ok(()), "SPACE-3");
        assert!(
            !self.is_free(&extent),
            "SPACE-2: {extent} is quarantined, but free"
        );
        self.ags.quarantine(&extent);
    }

    /// Quarantined blocks are in use again. Panics when they are known to be free, or more than the
    /// AG has in quarantine (`SPACE-2`).
    pub fn revive(&mut self, extent: Extent) {
        assert_eq!(self.check_place(&extent), Ok(()), "SPACE-3");
        assert!(
            !self.is_free(&extent),
            "SPACE-2: {extent} is revived, but free"
        );
        self.ags.revive(&extent);
    }

    /// Whether a block of `extent` is known to be free.
    fn is_free(&self, extent: &Extent) -> bool {
        self.ags.overlaps(extent) || !self.streams.find_overlapping(extent).is_empty()
    }

    /// Frees quarantined blocks; those of a closed part are set aside (`SPACE-9`). Panics when they
    /// are known to be free, or more than the AG has in quarantine (`SPACE-2`).
    pub fn release(&mut self, extent: Extent) {
        assert!(
            self.streams.find_overlapping(&extent).is_empty(),
            "SPACE-2: {extent} is released, but free"
        );
        self.ags.release(&extent);
    }

    /// Length of the largest hole of the loaded AGs, blocks. O(streams · log holes).
    pub fn largest_hole_blocks(&self) -> u64 {
        let open = self.ags.find_largest();
        self.held_holes()
            .iter()
            .chain(&open)
            .map(|hole| hole.block_count)
            .max()
            .unwrap_or(0)
    }

    /// How many holes have `2^i ..= 2^(i+1) − 1` blocks, for each class `i`; of AGs that are not
    /// loaded, what is remembered. Soft regions are not counted in. O(AGs + holes).
    pub fn hole_histogram(&self) -> [u64; 64] {
        let mut sum = [0; 64];
        for ag in self.ags.iter() {
            for (sum, count) in sum.iter_mut().zip(ag.histogram()) {
                *sum += u64::from(count);
            }
        }
        sum
    }

    /// All holes of the loaded AGs by address, soft regions counted as free. O(holes), time and
    /// memory.
    pub fn holes(&self) -> impl Iterator<Item = Extent> + use<> {
        let mut parts: Vec<Extent> = self.ags.holes().chain(self.streams.regions()).collect();
        parts.sort_unstable();
        let mut holes: Vec<Extent> = Vec::with_capacity(parts.len());
        for part in parts {
            match holes.last_mut() {
                Some(last)
                    if last.is_followed_by(&part)
                        && !part.start_block.is_multiple_of(self.ag_blocks) =>
                {
                    last.block_count += part.block_count;
                }
                _ => holes.push(part),
            }
        }
        holes.into_iter()
    }

    /// Panics unless the invariants hold. O(AGs + holes).
    pub fn assert_valid(&self) {
        let held_in = |range: Extent| {
            let regions = self.streams.find_overlapping(&range).into_iter();
            regions.inspect(|region| {
                assert!(
                    !self.ags.overlaps(region),
                    "SPACE-2: {region} is held and open"
                );
                assert_eq!(self.check_place(region), Ok(()), "SPACE-3");
                assert!(
                    region.end_block() <= self.closed_from(region.segment),
                    "SPACE-9"
                );
            })
        };
        self.ags.assert_valid(|ag| {
            let held: u64 = held_in(self.ags.range_of(ag))
                .map(|region| region.block_count)
                .sum();
            held as u32 // ≤ the AG
        });
        assert_eq!(
            self.allocated_blocks()
                + self.quarantined_blocks()
                + self.free_blocks()
                + self.aside_blocks(),
            self.capacity_blocks(),
            "SPACE-1"
        );
        assert_eq!(self.overcommitted_blocks(), 0, "SPACE-6");
    }

    fn allocate_known(&mut self, blocks: u64) -> Vec<Extent> {
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

    /// The hole, cut as `target` asks, that takes a moved extent of `blocks`: open ones first.
    fn find_whole(&self, blocks: u64, target: Target) -> Option<Extent> {
        match target {
            Target::At(segment, block) => self
                .find_part_from(Address { segment, block })
                .filter(|part| part.block_count >= blocks),
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
    fn find_part_from(&self, next: Address) -> Option<Extent> {
        let hole = self.true_hole_at(next)?;
        let skip = next.block - hole.start_block;
        Some(hole.slice(skip, hole.block_count - skip))
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
    fn steal_regions(&mut self, extent: &Extent) {
        for region in self.streams.find_overlapping(extent) {
            self.streams.release(region);
            self.ags.open(region);
        }
    }

    fn reopen_region(&mut self, stream: StreamId) -> Option<Extent> {
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

    fn check_place(&self, extent: &Extent) -> Result<(), SpaceError> {
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
    fn evict(&mut self) {
        if self.ags.is_over_budget() {
            let (ags, streams) = (&mut self.ags, &self.streams);
            let regions: BTreeSet<AgKey> = streams
                .regions()
                .map(|region| ags.key_of(region.segment, region.start_block))
                .collect();
            ags.evict(|ag| regions.contains(&ag.key));
        }
    }
}

mod closing;
mod loading;

pub use loading::AgSummary;
#[cfg(test)]
mod aging_tests;
#[cfg(test)]
mod model_tests;
#[cfg(test)]
mod tests;
