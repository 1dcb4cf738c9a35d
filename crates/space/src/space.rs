//! The books of space: what is reserved, taken, and given back. Invariants: see the crate's header.

use larder_format::limits::{AG_BLOCKS, HELD_BACK_DIVISOR};
use larder_format::{Extent, SegmentIndex};

use crate::address::Address;
use crate::error::NoSpace;
use crate::free_blocks::FreeBlocks;
use crate::reservation::{Purpose, Reservation};
use crate::streams::StreamId;

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
    /// Free blocks, and the counts of all others.
    free: FreeBlocks,
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
            free: FreeBlocks::new(ag_blocks),
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
        if self.free.ags.find_block_count(segment).is_some() {
            self.reopen(segment);
        }
        self.free.ags.grow(segment, new_block_count); // SPACE-3
        self.free.evict();
    }

    /// Blocks of all segments.
    pub fn capacity_blocks(&self) -> u64 {
        self.free.ags.accounts().capacity_blocks()
    }

    /// Blocks that are neither allocated nor quarantined nor set aside, the reserved ones included.
    pub fn free_blocks(&self) -> u64 {
        self.free.ags.accounts().free_blocks()
    }

    /// Free blocks that are reserved.
    pub fn reserved_blocks(&self) -> u64 {
        self.reserved_blocks
    }

    /// Blocks in use.
    pub fn allocated_blocks(&self) -> u64 {
        self.free.ags.accounts().allocated_blocks()
    }

    /// Blocks that wait for their release.
    pub fn quarantined_blocks(&self) -> u64 {
        self.free.ags.accounts().quarantined_blocks()
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
        self.free.ags.tick();
        reservation.take(blocks);
        self.reserved_blocks -= blocks;
        let pieces = match placement {
            _ if blocks == 0 => Vec::new(),
            Placement::Known => self.free.allocate_known(blocks),
            Placement::Stream {
                stream,
                after,
                expected_blocks,
            } => self
                .free
                .allocate_stream(stream, blocks, after, expected_blocks),
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
        self.free.ags.tick();
        // Open holes first, cut as `target` asks.
        let place = match target {
            Target::At(segment, block) => self
                .free
                .find_part_from(Address { segment, block })
                .filter(|part| part.block_count >= blocks),
            Target::Anywhere => self.free.find_below(blocks, None),
            Target::Below(segment, block) => {
                (self.free).find_below(blocks, Some(Address { segment, block }))
            }
        };
        let place = place?.slice(0, blocks);
        reservation.take(blocks);
        self.reserved_blocks -= blocks;
        self.free.steal_regions(&place);
        self.free.ags.take(place);
        Some(place)
    }

    /// Ends a stream: what was held for it is open to all again.
    pub fn end_stream(&mut self, stream: StreamId) {
        self.free.reopen_region(stream);
        self.free.streams.forget(stream);
    }

    /// Retires allocated blocks: they are out of use, but not free before [`Space::release`].
    /// Panics when they are known to be free, or more than the AG has allocated (`SPACE-2`).
    pub fn quarantine(&mut self, extent: Extent) {
        assert_eq!(self.free.check_place(&extent), Ok(()), "SPACE-3");
        assert!(
            !self.free.is_free(&extent),
            "SPACE-2: {extent} is quarantined, but free"
        );
        self.free.ags.quarantine(&extent);
    }

    /// Quarantined blocks are in use again. Panics when they are known to be free, or more than the
    /// AG has in quarantine (`SPACE-2`).
    pub fn revive(&mut self, extent: Extent) {
        assert_eq!(self.free.check_place(&extent), Ok(()), "SPACE-3");
        assert!(
            !self.free.is_free(&extent),
            "SPACE-2: {extent} is revived, but free"
        );
        self.free.ags.revive(&extent);
    }

    /// Frees quarantined blocks; those of a closed part are set aside (`SPACE-9`). Panics when they
    /// are known to be free, or more than the AG has in quarantine (`SPACE-2`).
    pub fn release(&mut self, extent: Extent) {
        assert!(
            self.free.streams.find_overlapping(&extent).is_empty(),
            "SPACE-2: {extent} is released, but free"
        );
        self.free.ags.release(&extent);
    }

    /// Length of the largest hole of the loaded AGs, blocks. O(streams · log holes).
    pub fn largest_hole_blocks(&self) -> u64 {
        let open = self.free.ags.find_largest();
        self.free
            .held_holes()
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
        for ag in self.free.ags.iter() {
            for (sum, count) in sum.iter_mut().zip(ag.histogram()) {
                *sum += u64::from(count);
            }
        }
        sum
    }

    /// All holes of the loaded AGs by address, soft regions counted as free. O(holes), time and
    /// memory.
    pub fn holes(&self) -> impl Iterator<Item = Extent> + use<> {
        let mut parts: Vec<Extent> = self
            .free
            .ags
            .holes()
            .chain(self.free.streams.regions())
            .collect();
        parts.sort_unstable();
        let mut holes: Vec<Extent> = Vec::with_capacity(parts.len());
        for part in parts {
            match holes.last_mut() {
                Some(last)
                    if last.is_followed_by(&part)
                        && !part.start_block.is_multiple_of(self.free.ag_blocks) =>
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
            let regions = self.free.streams.find_overlapping(&range).into_iter();
            regions.inspect(|region| {
                assert!(
                    !self.free.ags.overlaps(region),
                    "SPACE-2: {region} is held and open"
                );
                assert_eq!(self.free.check_place(region), Ok(()), "SPACE-3");
                assert!(
                    region.end_block() <= self.closed_from(region.segment),
                    "SPACE-9"
                );
            })
        };
        self.free.ags.assert_valid(|ag| {
            let held: u64 = held_in(self.free.ags.range_of(ag))
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
