//! Space against a naive model.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::error::SpaceError;

const AG: u64 = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    /// Free, in a closed part.
    Aside,
    Allocated,
    Quarantined,
}

/// One state per block; every question is answered by looking at all of them.
struct Model {
    segments: Vec<Vec<State>>,
    /// What the catalog knows: as `segments` at the last commit.
    committed: Vec<Vec<State>>,
    closed: Vec<usize>,
    reserved: u64,
}

impl Model {
    fn count(&self, state: State) -> u64 {
        self.segments
            .iter()
            .flatten()
            .filter(|&&other| other == state)
            .count() as u64
    }

    fn capacity(&self) -> u64 {
        self.segments.iter().map(|blocks| blocks.len() as u64).sum()
    }

    fn all(&self, extent: &Extent, state: State) -> bool {
        self.slice(extent).iter().all(|&other| other == state)
    }

    fn slice(&self, extent: &Extent) -> &[State] {
        &self.segments[extent.segment.0 as usize]
            [extent.start_block as usize..extent.end_block() as usize]
    }

    fn set(&mut self, extent: &Extent, from: State, to: State) {
        assert!(
            self.all(extent, from),
            "SPACE-2, SPACE-5: {extent} is not {from:?}"
        );
        let blocks = &mut self.segments[extent.segment.0 as usize];
        blocks[extent.start_block as usize..extent.end_block() as usize].fill(to);
    }

    /// Maximal runs of free blocks outside `regions`, cut at AG boundaries, by address.
    fn holes(&self, regions: &[Extent]) -> Vec<Extent> {
        let mut holes: Vec<Extent> = Vec::new();
        for (segment, blocks) in self.segments.iter().enumerate() {
            let segment = SegmentIndex(segment as u32);
            for (block, &state) in blocks.iter().enumerate() {
                let this = Extent::new(segment, block as u64, 1);
                if state != State::Free || regions.iter().any(|region| region.overlaps(&this)) {
                    continue;
                }
                match holes.last_mut() {
                    Some(last)
                        if last.is_followed_by(&this) && !this.start_block.is_multiple_of(AG) =>
                    {
                        last.block_count += 1;
                    }
                    _ => holes.push(this),
                }
            }
        }
        holes
    }

    /// Free → allocated, for good or back: what is free in a closed part is set aside.
    fn give(&mut self, extent: &Extent, from: State) {
        self.set(extent, from, State::Free);
        self.set_aside(extent.segment.0 as usize);
    }

    fn set_aside(&mut self, segment: usize) {
        let closed = self.closed[segment];
        for (block, state) in self.segments[segment].iter_mut().enumerate() {
            *state = match *state {
                State::Free | State::Aside if block >= closed => State::Aside,
                State::Aside => State::Free,
                other => other,
            };
        }
    }

    /// The extents of an AG in the catalog, one per block.
    fn extents_in_ag(&self, segment: SegmentIndex, ag_index: u64) -> Vec<Extent> {
        let blocks = self.committed[segment.0 as usize].iter().zip(0..);
        blocks
            .filter(|&(state, block)| {
                block / AG == ag_index && !matches!(state, State::Free | State::Aside)
            })
            .map(|(_, block)| Extent::new(segment, block, 1))
            .collect()
    }

    /// What `SPACE-7` and `SPACE-8` ask of an allocation of known size, from the AGs in `loaded`.
    fn allocate_known(
        &mut self,
        blocks: u64,
        regions: &mut Vec<Extent>,
        is_loaded: impl Fn(&Extent) -> bool,
    ) -> Vec<Extent> {
        let mut pieces = Vec::new();
        let mut left = blocks;
        while left > 0 {
            let smallest_fit = |holes: Vec<Extent>| {
                holes
                    .into_iter()
                    .filter(|hole| hole.block_count >= left && is_loaded(hole))
                    .min_by_key(|hole| (hole.block_count, *hole))
            };
            let largest = || {
                self.holes(&[])
                    .into_iter()
                    .filter(&is_loaded)
                    .max_by_key(|hole| (hole.block_count, Reverse(*hole)))
            };
            let hole = smallest_fit(self.holes(regions))
                .or_else(|| smallest_fit(self.holes(&[])))
                .or_else(largest)
                .expect("SPACE-6");
            let piece = hole.slice(0, left.min(hole.block_count));
            regions.retain(|region| !region.overlaps(&piece));
            self.set(&piece, State::Free, State::Allocated);
            left -= piece.block_count;
            pieces.push(piece);
        }
        pieces
    }
}

/// Space and its model, driven together.
struct Pair {
    space: Space,
    model: Model,
    reservations: Vec<Reservation>,
    live: Vec<Extent>,
    quarantined: Vec<Extent>,
    tails: BTreeMap<StreamId, (SegmentIndex, u64)>,
}

impl Pair {
    fn new(memory_bytes_max: u64) -> Pair {
        let mut space = Space::with_ag_blocks(AG);
        space.free.ags.window_ags = 1;
        space.set_memory_bytes_max(memory_bytes_max);
        let sizes = [300, 200];
        for (segment, &size) in sizes.iter().enumerate() {
            space.grow_segment(SegmentIndex(segment as u32), size);
        }
        let segments: Vec<Vec<State>> = sizes
            .iter()
            .map(|&size| vec![State::Free; size as usize])
            .collect();
        Pair {
            space,
            model: Model {
                committed: segments.clone(),
                segments,
                closed: vec![usize::MAX; 2],
                reserved: 0,
            },
            reservations: Vec::new(),
            live: Vec::new(),
            quarantined: Vec::new(),
            tails: BTreeMap::new(),
        }
    }

    fn step(&mut self, kind: u8, a: u64, b: u64) {
        match kind {
            0..=2 => self.reserve(1 + a % 90, b.is_multiple_of(4)),
            3 if !self.reservations.is_empty() => {
                let reservation = self
                    .reservations
                    .swap_remove(a as usize % self.reservations.len());
                self.model.reserved -= reservation.blocks();
                self.space.forfeit(reservation);
            }
            4..=7 if !self.reservations.is_empty() => self.allocate(a, b),
            8..=9 if !self.reservations.is_empty() => self.allocate_stream(a, b),
            10 => {
                let stream = StreamId(a % 3);
                self.space.end_stream(stream);
                self.tails.remove(&stream);
                assert_eq!(self.space.free.streams.find_region(stream), None);
            }
            11..=13 if !self.live.is_empty() => self.quarantine(a, b),
            14..=16 if !self.quarantined.is_empty() => {
                let extent = self
                    .quarantined
                    .swap_remove(a as usize % self.quarantined.len());
                // Only a commit reclaims, and what it allocated is committed with it.
                self.space.release(extent);
                self.model.give(&extent, State::Quarantined);
                self.commit();
            }
            17 if a.is_multiple_of(2) => self.grow(a, b),
            18 => self.reload(a, b),
            19 => self.commit(),
            20 => self.close(a, b),
            21 => self.shrink(a, b),
            22 | 23 => self.load(a),
            24 if !self.reservations.is_empty() => self.move_there(a, b),
            25 if !self.quarantined.is_empty() => self.revive(a, b),
            _ => {}
        }
        self.compare();
    }

    fn commit(&mut self) {
        self.model.committed.clone_from(&self.model.segments);
        self.space.settle();
    }

    /// Loads an AG that nobody asked for.
    fn load(&mut self, a: u64) {
        let segment = SegmentIndex((a % 2) as u32);
        let extents = self.model.extents_in_ag(segment, a / 2 % 3);
        match self.space.load_ag(segment, a / 2 % 3, &extents) {
            Ok(()) | Err(SpaceError::NoAg { .. }) => {}
            Err(error) => panic!("SPACE-10: {error}"),
        }
    }

    /// Loads what is wanted, which must end.
    fn load_wanted(&mut self, wanted: impl Fn(&Space) -> Option<(SegmentIndex, u64)>) {
        for _ in 0..10 {
            let Some((segment, ag_index)) = wanted(&self.space) else {
                return;
            };
            assert!(!self.space.is_loaded(segment, ag_index));
            let extents = self.model.extents_in_ag(segment, ag_index);
            let loaded = self.space.load_ag(segment, ag_index, &extents);
            assert_eq!(loaded, Ok(()), "SPACE-10");
        }
        panic!("AGs are wanted for ever");
    }

    fn loaded(&self) -> impl Fn(&Extent) -> bool + use<> {
        let ags: Vec<_> = (0..2)
            .map(SegmentIndex)
            .flat_map(|segment| (0..5).map(move |ag_index| (segment, ag_index)))
            .filter(|&(segment, ag_index)| self.space.is_loaded(segment, ag_index))
            .collect();
        move |extent| ags.contains(&(extent.segment, extent.start_block / AG))
    }

    fn close(&mut self, a: u64, b: u64) {
        let at = a as usize % 2;
        let segment = SegmentIndex(at as u32);
        let len = self.model.segments[at].len();
        let block = match b % 4 {
            0 => u64::MAX,
            1 => (b / 4 % 5) * AG,
            _ => b / 4 % (len as u64 + 20),
        };
        if block == u64::MAX {
            self.space.reopen(segment);
        } else {
            let ag_index = block / AG;
            let part = |state: State| {
                let blocks = self.model.segments[at].iter().skip(block as usize);
                blocks.filter(|&&other| other == state).count() as u64
            };
            let (free_blocks, held_back) = (part(State::Free), self.model.capacity() / 32);
            let free = self.model.count(State::Free);
            let spare_blocks = free
                .saturating_sub(self.model.reserved)
                .saturating_sub(held_back);
            let is_cut = !block.is_multiple_of(AG) && block < len as u64;
            let expected = if is_cut && !self.space.is_loaded(segment, ag_index) {
                Err(SpaceError::NotLoaded { segment, ag_index })
            } else if free_blocks > spare_blocks {
                Err(SpaceError::CannotClose {
                    segment,
                    block,
                    free_blocks,
                    spare_blocks,
                })
            } else {
                Ok(())
            };
            let closed = self.space.close_from(segment, block);
            assert_eq!(closed, expected, "SPACE-4, SPACE-6, SPACE-9");
            if closed.is_err() {
                return;
            }
        }
        self.model.closed[at] = usize::try_from(block).unwrap_or(usize::MAX);
        self.model.set_aside(at);
    }

    fn shrink(&mut self, a: u64, b: u64) {
        let at = a as usize % 2;
        let segment = SegmentIndex(at as u32);
        let len = self.model.segments[at].len();
        let end = (1 + b % 300).min(len as u64) as usize;
        let needed = |state: &&State| **state != State::Aside;
        let used_blocks = self.model.segments[at][end..].iter().filter(needed).count();
        match self.space.shrink_segment(segment, end as u64) {
            Ok(()) => {
                assert_eq!(used_blocks, 0, "SPACE-9");
                self.model.segments[at].truncate(end);
                self.model.committed[at].truncate(end);
            }
            Err(SpaceError::CannotShrink {
                used_blocks: said, ..
            }) => {
                assert_eq!(said, used_blocks as u64, "SPACE-9");
            }
            Err(SpaceError::NotLoaded { ag_index, .. }) => {
                assert!(end < len && !end.is_multiple_of(AG as usize));
                assert!(!self.space.is_loaded(segment, ag_index));
            }
            Err(error) => panic!("{error}"),
        }
    }

    fn move_there(&mut self, a: u64, b: u64) {
        let segment = SegmentIndex((a % 2) as u32);
        let block = b % (self.model.segments[a as usize % 2].len() as u64 + 10);
        let target = match a / 2 % 3 {
            0 => Target::Anywhere,
            1 => Target::Below(segment, block),
            _ => Target::At(segment, block),
        };
        let at = a as usize % self.reservations.len();
        let blocks = 1 + b / 7 % self.reservations[at].blocks();
        self.load_wanted(|space| space.find_wanted_ag_for(blocks, target));
        let is_loaded = self.loaded();
        let cut = |hole: Extent| {
            let end = hole.end_block();
            let (from, to) = match target {
                Target::Anywhere => (hole.start_block, end),
                Target::Below(limit, _) if limit < hole.segment => return None,
                Target::Below(limit, _) if limit > hole.segment => (hole.start_block, end),
                Target::Below(_, block) => (hole.start_block, end.min(block)),
                Target::At(segment, block) => {
                    let at = Extent::new(segment, block, 1);
                    (if hole.overlaps(&at) { block } else { end }, end)
                }
            };
            let part = (from < to).then(|| Extent::new(hole.segment, from, to - from));
            part.filter(|part| part.block_count >= blocks && is_loaded(part))
        };
        let find = |regions: &[Extent]| {
            let parts = self.model.holes(regions).into_iter().filter_map(cut);
            parts.min_by_key(|part| (part.block_count, *part))
        };
        let expected = match target {
            Target::At(..) => find(&[]),
            _ => find(&self.regions()).or_else(|| find(&[])),
        };
        let expected = expected.map(|hole| hole.slice(0, blocks));
        let reservation = &mut self.reservations[at];
        let moved = self.space.allocate_whole(reservation, blocks, target);
        assert_eq!(moved, expected, "{target:?}");
        let Some(extent) = moved else { return };
        self.model.reserved -= blocks;
        if reservation.blocks() == 0 {
            drop(self.reservations.swap_remove(at));
        }
        self.model.set(&extent, State::Free, State::Allocated);
        self.live.push(extent);
    }

    fn reserve(&mut self, blocks: u64, is_privileged: bool) {
        let purpose = if is_privileged {
            Purpose::Privileged
        } else {
            Purpose::Ordinary
        };
        let held_back = if is_privileged {
            0
        } else {
            self.model.capacity() / 32
        };
        let free = self.model.count(State::Free);
        let available = free
            .saturating_sub(self.model.reserved)
            .saturating_sub(held_back);
        match self.space.reserve(blocks, purpose) {
            Ok(reservation) => {
                assert!(blocks <= available, "SPACE-4");
                self.model.reserved += blocks;
                self.reservations.push(reservation);
            }
            Err(refused) => {
                assert!(blocks > available, "SPACE-7: spurious no space");
                assert_eq!(
                    refused,
                    NoSpace {
                        wanted_blocks: blocks,
                        available_blocks: available
                    }
                );
            }
        }
    }

    /// Calls `allocate` with a part of one reservation.
    fn draw(&mut self, a: u64, b: u64, placement: Placement) -> Vec<Extent> {
        let at = a as usize % self.reservations.len();
        let blocks = 1 + b % self.reservations[at].blocks();
        let reservation = &mut self.reservations[at];
        let pieces = self.space.allocate(reservation, blocks, placement);
        assert_eq!(
            pieces.iter().map(|piece| piece.block_count).sum::<u64>(),
            blocks
        );
        self.model.reserved -= blocks;
        if reservation.blocks() == 0 {
            drop(self.reservations.swap_remove(at));
        }
        self.live.extend(&pieces);
        pieces
    }

    fn regions(&self) -> Vec<Extent> {
        self.space.free.streams.regions().collect()
    }

    fn allocate(&mut self, a: u64, b: u64) {
        let blocks = 1 + b % self.reservations[a as usize % self.reservations.len()].blocks();
        self.load_wanted(|space| space.find_wanted_ag(blocks, Placement::Known));
        let (mut regions, is_loaded) = (self.regions(), self.loaded());
        let pieces = self.draw(a, b, Placement::Known);
        assert_eq!(
            self.model.allocate_known(blocks, &mut regions, is_loaded),
            pieces,
            "SPACE-7, SPACE-8"
        );
        assert_eq!(
            self.regions(),
            regions,
            "only the regions in the way are stolen"
        );
    }

    fn allocate_stream(&mut self, a: u64, b: u64) {
        let stream = StreamId(a / 7 % 3);
        let own = self.space.free.streams.find_region(stream);
        let tail = self
            .tails
            .get(&stream)
            .copied()
            .filter(|_| !b.is_multiple_of(5));
        let placement = Placement::Stream {
            stream,
            after: tail,
            expected_blocks: b.is_multiple_of(3).then_some(b / 3 % 200),
        };
        let blocks = 1 + b % self.reservations[a as usize % self.reservations.len()].blocks();
        self.load_wanted(|space| space.find_wanted_ag(blocks, placement));
        let is_loaded = self.loaded();
        let others: Vec<Extent> = self
            .regions()
            .into_iter()
            .filter(|region| Some(*region) != own)
            .collect();
        let open = self.model.holes(&others);
        let largest = self
            .model
            .holes(&[])
            .iter()
            .filter(|hole| is_loaded(hole))
            .map(|hole| hole.block_count)
            .max()
            .unwrap_or(0);
        let is_open = |&(segment, block): &(SegmentIndex, u64)| {
            open.iter().any(|hole| {
                hole.overlaps(&Extent {
                    segment,
                    start_block: block,
                    block_count: 1,
                })
            })
        };
        let expected_start = tail
            .filter(is_open)
            .or(own.map(|region| (region.segment, region.start_block)));

        let pieces = self.draw(a, b, placement);
        for piece in &pieces {
            assert!(
                piece.start_block / AG == (piece.end_block() - 1) / AG,
                "SPACE-3"
            );
            self.model.set(piece, State::Free, State::Allocated);
        }
        let start = (pieces[0].segment, pieces[0].start_block);
        if let Some(expected) = expected_start {
            assert_eq!(start, expected, "a stream goes on where it ended");
        }
        if largest >= blocks {
            // An AG boundary cuts an extent, but not a fragment.
            let splits = pieces
                .windows(2)
                .filter(|pair| !pair[0].is_followed_by(&pair[1]))
                .count();
            let continued = usize::from(expected_start.is_some());
            assert!(
                splits <= continued,
                "SPACE-7: {blocks} blocks in {pieces:?}"
            );
        }
        let last = pieces[pieces.len() - 1];
        self.tails.insert(stream, (last.segment, last.end_block()));
        if let Some(region) = self.space.free.streams.find_region(stream) {
            assert!(last.is_followed_by(&region));
            assert!(region.block_count <= AG);
        }
    }

    fn quarantine(&mut self, a: u64, b: u64) {
        let whole = self.live.swap_remove(a as usize % self.live.len());
        // Sometimes only a part: an overwrite or a truncation.
        let skip = if b.is_multiple_of(3) {
            b / 3 % whole.block_count
        } else {
            0
        };
        if skip > 0 {
            self.live.push(whole.slice(0, skip));
        }
        let retired = whole.slice(skip, whole.block_count - skip);
        self.space.quarantine(retired);
        self.model
            .set(&retired, State::Allocated, State::Quarantined);
        self.quarantined.push(retired);
    }

    /// A part of what is in quarantine is in use again.
    fn revive(&mut self, a: u64, b: u64) {
        let at = a as usize % self.quarantined.len();
        let whole = self.quarantined.swap_remove(at);
        let skip = b % whole.block_count;
        if skip > 0 {
            self.quarantined.push(whole.slice(0, skip));
        }
        let revived = whole.slice(skip, whole.block_count - skip);
        self.space.revive(revived);
        self.model
            .set(&revived, State::Quarantined, State::Allocated);
        self.live.push(revived);
    }

    fn grow(&mut self, a: u64, b: u64) {
        let at = b as usize % self.model.segments.len();
        let blocks = &mut self.model.segments[at];
        let len = blocks
            .len()
            .max((blocks.len() + (a % 40) as usize).min(450));
        blocks.resize(len, State::Free);
        self.model.committed[at].resize(len, State::Free);
        self.model.closed[at] = usize::MAX;
        self.model.set_aside(at);
        self.space.grow_segment(SegmentIndex(at as u32), len as u64);
    }

    /// Another session left an AG in a random state, `seed` says which.
    fn reload(&mut self, a: u64, seed: u64) {
        self.commit();
        let at = a as usize % self.model.segments.len();
        let segment = SegmentIndex(at as u32);
        let len = self.model.segments[at].len() as u64;
        let ag_index = a / 2 % len.div_ceil(AG);
        let (start, end) = (ag_index * AG, ((ag_index + 1) * AG).min(len));
        let ag = Extent::new(segment, start, end - start);
        let mut random = Random(seed | 1);
        let mut listed = Vec::new();
        let mut block = start;
        while block < end {
            let count = (1 + random.below(25)).min(end - block);
            if random.below(3) > 0 {
                listed.push(Extent::new(segment, block, count));
            }
            block += count;
        }
        self.model.closed[at] = usize::MAX;
        self.model.set_aside(at);
        let blocks = &mut self.model.segments[at];
        blocks[start as usize..end as usize].fill(State::Free);
        for extent in &listed {
            self.model.set(extent, State::Free, State::Allocated);
        }
        self.model.committed.clone_from(&self.model.segments);
        self.live.retain(|extent| !extent.overlaps(&ag));
        self.live.extend(&listed);
        self.quarantined.retain(|extent| !extent.overlaps(&ag));

        let missing_blocks = self
            .model
            .reserved
            .saturating_sub(self.model.count(State::Free));
        let expected = match missing_blocks {
            0 => Ok(()),
            _ => Err(SpaceError::Overcommitted {
                segment,
                ag_index,
                missing_blocks,
            }),
        };
        let summary = AgSummary {
            used_blocks: listed.iter().map(|extent| extent.block_count).sum(),
            quarantined_blocks: 0,
        };
        let summarized = self.space.summarize_ag(segment, ag_index, summary);
        assert_eq!(summarized, expected, "SPACE-6");
        assert!(self.regions().iter().all(|region| !region.overlaps(&ag)));
        while self.space.overcommitted_blocks() > 0 {
            let reservation = self
                .reservations
                .pop()
                .expect("a reservation that was broken");
            self.model.reserved -= reservation.blocks();
            self.space.forfeit(reservation);
        }
    }

    fn compare(&self) {
        let (space, model) = (&self.space, &self.model);
        space.assert_valid();
        assert_eq!(space.capacity_blocks(), model.capacity());
        assert_eq!(space.free_blocks(), model.count(State::Free));
        assert_eq!(space.allocated_blocks(), model.count(State::Allocated));
        assert_eq!(space.quarantined_blocks(), model.count(State::Quarantined));
        assert_eq!(space.reserved_blocks(), model.reserved);
        assert_eq!(space.aside_blocks(), model.count(State::Aside));
        let is_loaded = self.loaded();
        let mut holes = model.holes(&[]);
        let all_loaded = holes.iter().all(&is_loaded);
        holes.retain(is_loaded);
        assert_eq!(space.holes().collect::<Vec<_>>(), holes);
        if all_loaded && self.regions().is_empty() {
            let mut histogram = [0; 64];
            for hole in &holes {
                histogram[hole.block_count.ilog2() as usize] += 1;
            }
            assert_eq!(space.hole_histogram(), histogram);
        }
        let largest = holes.iter().map(|hole| hole.block_count).max().unwrap_or(0);
        assert_eq!(space.largest_hole_blocks(), largest);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn space_behaves_like_an_array_of_blocks(
        memory_bytes_max in prop::sample::select(&[0, 1500, u64::MAX][..]),
        steps in prop::collection::vec((0..26u8, any::<u64>(), any::<u64>()), 1..150),
    ) {
        let mut pair = Pair::new(memory_bytes_max);
        for (kind, a, b) in steps {
            pair.step(kind, a, b);
        }
        for reservation in pair.reservations {
            pair.space.forfeit(reservation);
        }
        assert_eq!(pair.space.reserved_blocks(), 0);
    }
}

/// A small generator, so that a run depends on its seed alone (xorshift64*).
pub(super) struct Random(pub u64);

impl Random {
    /// A number below `bound`.
    pub fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}
