//! Space against a naive model, and an aging simulation.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const AG: u64 = 128;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    Free,
    Allocated,
    Quarantined,
}

/// One state per block; every question is answered by looking at all of them.
struct Model {
    segments: Vec<Vec<State>>,
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

    /// What `SPACE-7` and `SPACE-8` ask of an allocation of known size.
    fn allocate_known(&mut self, blocks: u64, regions: &mut Vec<Extent>) -> Vec<Extent> {
        let mut pieces = Vec::new();
        let mut left = blocks;
        while left > 0 {
            let smallest_fit = |holes: Vec<Extent>| {
                holes
                    .into_iter()
                    .filter(|hole| hole.block_count >= left)
                    .min_by_key(|hole| (hole.block_count, *hole))
            };
            let largest = || {
                self.holes(&[])
                    .into_iter()
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
    fn new() -> Pair {
        let mut space = Space::with_ag_blocks(AG);
        let sizes = [300, 200];
        for (segment, &size) in sizes.iter().enumerate() {
            space.grow_segment(SegmentIndex(segment as u32), size);
        }
        let segments = sizes
            .iter()
            .map(|&size| vec![State::Free; size as usize])
            .collect();
        Pair {
            space,
            model: Model {
                segments,
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
                assert_eq!(self.space.streams.find_region(stream), None);
            }
            11..=13 if !self.live.is_empty() => self.quarantine(a, b),
            14..=16 if !self.quarantined.is_empty() => {
                let extent = self
                    .quarantined
                    .swap_remove(a as usize % self.quarantined.len());
                self.space.release(extent);
                self.model.set(&extent, State::Quarantined, State::Free);
            }
            17 if a.is_multiple_of(2) => self.grow(a, b),
            18 => self.reload(a, b),
            _ => {}
        }
        self.compare();
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
        let reservation = &mut self.reservations[at];
        let blocks = 1 + b % reservation.blocks();
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
        self.space.streams.regions().collect()
    }

    fn allocate(&mut self, a: u64, b: u64) {
        let mut regions = self.regions();
        let pieces = self.draw(a, b, Placement::Known);
        let blocks = pieces.iter().map(|piece| piece.block_count).sum();
        assert_eq!(
            self.model.allocate_known(blocks, &mut regions),
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
        let own = self.space.streams.find_region(stream);
        let tail = self
            .tails
            .get(&stream)
            .copied()
            .filter(|_| !b.is_multiple_of(5));
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

        let pieces = self.draw(
            a,
            b,
            Placement::Stream {
                stream,
                after: tail,
                expected_blocks: (b % 3 == 0).then_some(b / 3 % 200),
            },
        );
        let blocks: u64 = pieces.iter().map(|piece| piece.block_count).sum();
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
        if let Some(region) = self.space.streams.find_region(stream) {
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

    fn grow(&mut self, a: u64, b: u64) {
        let at = b as usize % self.model.segments.len();
        let blocks = &mut self.model.segments[at];
        blocks.resize((blocks.len() + (a % 40) as usize).min(450), State::Free);
        self.space
            .grow_segment(SegmentIndex(at as u32), blocks.len() as u64);
    }

    /// Another session left an AG in a random state, the blocks of `seed` say which.
    fn reload(&mut self, a: u64, seed: u64) {
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
        listed.reverse();
        let blocks = &mut self.model.segments[at];
        blocks[start as usize..end as usize].fill(State::Free);
        for extent in &listed {
            self.model.set(extent, State::Free, State::Allocated);
        }
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
        assert_eq!(
            self.space.reload_ag(segment, ag_index, &listed),
            expected,
            "SPACE-6"
        );
        assert!(self.regions().iter().all(|region| !region.overlaps(&ag)));
        while self.space.overcommitted_blocks() > 0 {
            let reservation = self.reservations.pop().expect("a promise that was broken");
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
        let holes = model.holes(&[]);
        assert_eq!(space.holes().collect::<Vec<_>>(), holes);
        assert_eq!(
            space.hole_histogram().iter().sum::<u64>(),
            holes.len() as u64
        );
        let largest = holes.iter().map(|hole| hole.block_count).max().unwrap_or(0);
        assert_eq!(space.largest_hole_blocks(), largest);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn space_behaves_like_an_array_of_blocks(
        steps in prop::collection::vec((0..19u8, any::<u64>(), any::<u64>()), 1..150)
    ) {
        let mut pair = Pair::new();
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
struct Random(u64);

impl Random {
    fn below(&mut self, bound: u64) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) % bound
    }
}

/// [CIDR07]'s workload: uniform sizes, safe-write replacement of random objects, 90 % full.
#[test]
fn objects_stay_in_one_piece_to_storage_age_4() {
    let mut random = Random(0x5eed_1a2d_e200_0001);
    let mut space = Space::new();
    let capacity = 5 * AG_BLOCKS;
    space.grow_segment(SegmentIndex(0), capacity);
    let mut size = || 1280 + random.below(2561); // 5–15 MB
    let mut place = |space: &mut Space| {
        let blocks = size();
        let mut reservation = space
            .reserve(blocks, Purpose::Ordinary)
            .expect("10 % are free");
        space.allocate(&mut reservation, blocks, Placement::Known)
    };
    let mut objects: Vec<Vec<Extent>> = Vec::new();
    while space.allocated_blocks() < capacity / 10 * 9 {
        objects.push(place(&mut space));
    }
    let mut random = Random(0x5eed_1a2d_e200_0002);
    let mut in_quarantine: Vec<Extent> = Vec::new();
    for _ in 0..4 * objects.len() {
        let at = random.below(objects.len() as u64) as usize;
        let old = std::mem::replace(&mut objects[at], place(&mut space));
        for extent in in_quarantine.drain(..) {
            space.release(extent); // The commit before this one is durable.
        }
        for &extent in &old {
            space.quarantine(extent);
        }
        in_quarantine = old;
    }
    space.assert_valid();
    let fragments = objects.iter().map(Vec::len).sum::<usize>() as f64 / objects.len() as f64;
    println!(
        "{} objects, {fragments:.4} fragments per object",
        objects.len()
    );
    assert!(
        fragments <= 1.05,
        "{fragments} fragments per object at storage age 4"
    );
}
