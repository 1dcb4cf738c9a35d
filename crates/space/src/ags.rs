//! All allocation groups: counts of everything, one index over the holes of the loaded ones, and
//! which of them to load and to unload.
//!
//! The index holds each length that an AG has open holes of, with the AG: the best fit is its first
//! entry that is long enough, and then the first hole of that length in the AG. So it is as large
//! as the set of large holes, but has at most 63 entries per AG for holes below 64 blocks (256
//! KiB).

use std::collections::{BTreeMap, BTreeSet};

use larder_format::{Extent, SegmentIndex};

use crate::address::{Address, AgKey};
use crate::ag::{Ag, CLASSES, Hole, Lengths, OPEN};

/// Bytes that loaded AGs may take (`SPACE-10`).
const MEMORY_BYTES_MAX: u64 = 192 << 20;
/// Loaded AGs with free blocks that a choice is made from at least, where there are so many.
const WINDOW_AGS: usize = 64;
/// AGs loaded for one allocation at most, in the hope of a hole that fits.
const HOPEFUL_LOADS_MAX: u32 = 16;

/// See the module.
#[derive(Debug)]
pub(crate) struct Ags {
    pub grid: Grid,
    /// What loaded AGs may take, by estimate (`SPACE-10`).
    pub memory_bytes_max: u64,
    /// See [`WINDOW_AGS`].
    pub window_ags: usize,
    segments: BTreeMap<SegmentIndex, Segment>,
    lengths: Lengths,
    accounts: Accounts,
    /// Allocations so far.
    tick: u64,
    /// AGs loaded since the last of them.
    loads: u32,
    dirty: BTreeSet<AgKey>,
}

#[derive(Debug)]
struct Segment {
    block_count: u64,
    /// `u64::MAX`: not closed.
    closed_from: u64,
    ags: Vec<Ag>,
}

/// Sums over all AGs, and the known ones by reservation.
#[derive(Debug, Default)]
pub(crate) struct Accounts {
    capacity_blocks: u64,
    used_blocks: u64,
    quarantined_blocks: u64,
    aside_blocks: u64,
    /// Open blocks of known AGs.
    known_blocks: u64,
    loaded_bytes: u64,
    /// What the known AGs with open blocks would take.
    known_bytes: u64,
    /// Loaded AGs with open blocks.
    window_ags: usize,
    /// Known AGs with open blocks, by the longest hole that they may have.
    known: BTreeSet<(u32, AgKey)>,
}

impl Accounts {
    /// Blocks of all AGs.
    pub fn capacity_blocks(&self) -> u64 {
        self.capacity_blocks
    }

    /// Blocks that are neither in use nor set aside, soft regions included.
    pub fn free_blocks(&self) -> u64 {
        self.capacity_blocks - self.used_blocks - self.aside_blocks
    }

    /// Blocks in use that are not in quarantine.
    pub fn allocated_blocks(&self) -> u64 {
        self.used_blocks - self.quarantined_blocks
    }

    /// Blocks in quarantine.
    pub fn quarantined_blocks(&self) -> u64 {
        self.quarantined_blocks
    }

    /// Free blocks that are set aside.
    pub fn aside_blocks(&self) -> u64 {
        self.aside_blocks
    }

    /// What loaded AGs take, by estimate.
    pub fn loaded_bytes(&self) -> u64 {
        self.loaded_bytes
    }

    fn add(&mut self, ag: &Ag) {
        self.capacity_blocks += u64::from(ag.block_count);
        self.used_blocks += u64::from(ag.used_blocks);
        self.quarantined_blocks += u64::from(ag.quarantined_blocks);
        self.aside_blocks += u64::from(ag.aside_blocks);
        match (ag.is_loaded(), ag.open_blocks()) {
            (true, open) => {
                self.loaded_bytes += ag.loaded_bytes();
                self.window_ags += usize::from(open > 0);
            }
            (false, 0) => {}
            (false, open) => {
                self.known_blocks += u64::from(open);
                self.known_bytes += ag.loaded_bytes();
                self.known.insert((ag.longest_max(), ag.key));
            }
        }
    }

    fn subtract(&mut self, ag: &Ag) {
        self.capacity_blocks -= u64::from(ag.block_count);
        self.used_blocks -= u64::from(ag.used_blocks);
        self.quarantined_blocks -= u64::from(ag.quarantined_blocks);
        self.aside_blocks -= u64::from(ag.aside_blocks);
        match (ag.is_loaded(), ag.open_blocks()) {
            (true, open) => {
                self.loaded_bytes -= ag.loaded_bytes();
                self.window_ags -= usize::from(open > 0);
            }
            (false, 0) => {}
            (false, open) => {
                self.known_blocks -= u64::from(open);
                self.known_bytes -= ag.loaded_bytes();
                self.known.remove(&(ag.longest_max(), ag.key));
            }
        }
    }
}

impl Ags {
    /// No AGs yet.
    pub fn new(ag_blocks: u64) -> Ags {
        assert!(
            ag_blocks < 1 << CLASSES,
            "an AG has {CLASSES} classes of holes"
        );
        Ags {
            grid: Grid { ag_blocks },
            memory_bytes_max: MEMORY_BYTES_MAX,
            window_ags: WINDOW_AGS,
            segments: BTreeMap::new(),
            lengths: Lengths::new(),
            accounts: Accounts::default(),
            tick: 1,
            loads: 0,
            dirty: BTreeSet::new(),
        }
    }

    /// What is counted.
    pub fn accounts(&self) -> &Accounts {
        &self.accounts
    }

    /// Blocks of a segment.
    pub fn find_block_count(&self, segment: SegmentIndex) -> Option<u64> {
        self.segments
            .get(&segment)
            .map(|segment| segment.block_count)
    }

    /// The block from which on a segment is closed; `u64::MAX` when it is not.
    pub fn closed_from(&self, segment: SegmentIndex) -> u64 {
        self.segments
            .get(&segment)
            .map_or(u64::MAX, |segment| segment.closed_from)
    }

    /// Adds free blocks at the end of an open segment, a new one included.
    pub fn grow(&mut self, segment: SegmentIndex, block_count: u64) {
        let entry = self.segments.entry(segment).or_insert(Segment {
            block_count: 0,
            closed_from: u64::MAX,
            ags: Vec::new(),
        });
        assert!(
            block_count >= entry.block_count,
            "segment {segment} would shrink"
        );
        let mut at = std::mem::replace(&mut entry.block_count, block_count);
        while at < block_count {
            let key = self.grid.key_of(segment, at);
            let ag_start = u64::from(key.ag_index) * self.grid.ag_blocks;
            let new_len = (block_count - ag_start).min(self.grid.ag_blocks) as u32; // ≤ ag_blocks
            let start = (at - ag_start) as u32;
            if start == 0 {
                let ag = Ag::empty(key);
                self.accounts.add(&ag);
                self.segment_mut(segment).ags.push(ag);
            }
            self.change(key, |ag, lengths| {
                ag.block_count = new_len;
                ag.insert(lengths, start, new_len - start);
            });
            at = ag_start + u64::from(new_len);
        }
    }

    /// All AGs by address.
    pub fn iter(&self) -> impl Iterator<Item = &Ag> {
        self.segments.values().flat_map(|segment| &segment.ags)
    }

    /// All open holes of loaded AGs, by address.
    pub fn holes(&self) -> impl Iterator<Item = Extent> + '_ {
        self.iter()
            .flat_map(|ag| ag.holes().map(|hole| self.grid.extent(ag.key, hole)))
    }

    /// An AG, if there is one.
    pub fn find(&self, key: AgKey) -> Option<&Ag> {
        let segment = self.segments.get(&key.segment)?;
        segment.ags.get(key.ag_index as usize)
    }

    /// The AG of an address, if there is one.
    pub fn find_key(&self, address: Address) -> Option<AgKey> {
        let key = AgKey {
            segment: address.segment,
            ag_index: u32::try_from(address.block / self.grid.ag_blocks).ok()?,
        };
        self.find(key).map(|ag| ag.key)
    }

    /// All blocks of an AG.
    pub fn range_of(&self, ag: &Ag) -> Extent {
        self.grid.extent(ag.key, (0, ag.block_count))
    }

    /// The smallest open hole of at least `blocks` in a loaded AG, of equal ones that of the lowest
    /// address (`SPACE-8`).
    pub fn find_best_fit(&self, blocks: u64) -> Option<Extent> {
        let lowest = AgKey {
            segment: SegmentIndex(0),
            ag_index: 0,
        };
        let blocks = u32::try_from(blocks).ok()?;
        let &(len, key) = self.lengths.range((blocks, lowest)..).next()?;
        let hole = self.find(key)?.find_of_length(len)?;
        Some(self.grid.extent(key, hole))
    }

    /// The largest open hole in a loaded AG, of equal ones that of the lowest address.
    pub fn find_largest(&self) -> Option<Extent> {
        let &(len, _) = self.lengths.last()?;
        self.find_best_fit(len.into())
    }

    /// As [`Ags::find_best_fit`], but of holes of which at least `blocks` lie below `limit`; the
    /// part below it. `None` for a limit means none. O(different lengths of holes · log holes).
    pub fn find_best_fit_below(&self, blocks: u64, limit: Option<Address>) -> Option<Extent> {
        let Some(limit) = limit else {
            return self.find_best_fit(blocks);
        };
        // The hole across the limit counts as long as its part below.
        let cut = self.find_at(Address {
            block: limit.block.checked_sub(1).unwrap_or(u64::MAX),
            ..limit
        });
        let cut = cut
            .map(|hole| hole.slice(0, limit.block - hole.start_block))
            .filter(|part| part.block_count >= blocks);
        let mut wanted = blocks;
        while let Some(found) = self.find_best_fit(wanted) {
            if cut.is_some_and(|cut| cut.block_count < found.block_count) {
                break;
            }
            let is_below = found.segment < limit.segment
                || (found.segment == limit.segment && found.end_block() <= limit.block);
            if is_below {
                return Some(found);
            }
            wanted = found.block_count + 1;
        }
        cut
    }

    /// The open hole that holds the block at `address`.
    pub fn find_at(&self, address: Address) -> Option<Extent> {
        self.find_hole(address, Ag::find_at)
    }

    /// The open hole that begins at `address`.
    pub fn find_starting_at(&self, address: Address) -> Option<Extent> {
        self.find_hole(address, Ag::find_starting_at)
    }

    /// The open hole whose last block is right before `address`, in the AG of `address`.
    pub fn find_ending_at(&self, address: Address) -> Option<Extent> {
        self.find_hole(address, Ag::find_ending_at)
    }

    /// Whether a block of `extent`, in one AG, is known to be in a hole.
    pub fn overlaps(&self, extent: &Extent) -> bool {
        let (key, (start, len)) = self.grid.split(extent);
        self.find(key).is_some_and(|ag| ag.overlaps(start, len))
    }

    /// Enters a free extent as a hole; only soft regions are free and no holes.
    pub fn open(&mut self, extent: Extent) {
        let (key, (start, len)) = self.grid.split(&extent);
        self.change(key, |ag, lengths| ag.insert(lengths, start, len));
    }

    /// Takes a free extent out of the holes, for a soft region.
    pub fn hold(&mut self, extent: Extent) {
        let (key, (start, len)) = self.grid.split(&extent);
        self.change(key, |ag, lengths| ag.remove(lengths, start, len));
    }

    /// Open → allocated. Panics on any other block (`SPACE-2`, `SPACE-5`).
    pub fn take(&mut self, extent: Extent) {
        let (key, (start, len)) = self.grid.split(&extent);
        self.change(key, |ag, lengths| {
            ag.remove(lengths, start, len);
            ag.used_blocks += len;
            ag.set_dirty(true);
        });
        self.dirty.insert(key);
    }

    /// Allocated → quarantined.
    pub fn quarantine(&mut self, extent: &Extent) {
        let (key, (_, len)) = self.grid.split(extent);
        self.change(key, |ag, _| {
            assert!(
                ag.used_blocks - ag.quarantined_blocks >= len,
                "SPACE-2: {extent} is quarantined, but not allocated"
            );
            ag.quarantined_blocks += len;
        });
    }

    /// Quarantined → allocated.
    pub fn revive(&mut self, extent: &Extent) {
        let (key, (_, len)) = self.grid.split(extent);
        self.change(key, |ag, _| {
            assert!(
                ag.quarantined_blocks >= len,
                "SPACE-2: {extent} is revived, but not in quarantine"
            );
            ag.quarantined_blocks -= len;
        });
    }

    /// Quarantined → free, or set aside.
    pub fn release(&mut self, extent: &Extent) {
        let (key, (start, len)) = self.grid.split(extent);
        self.change(key, |ag, lengths| {
            assert!(
                ag.quarantined_blocks >= len,
                "SPACE-2: {extent} is released, but not in quarantine"
            );
            ag.quarantined_blocks -= len;
            ag.used_blocks -= len;
            ag.add_aside(start, len);
            ag.insert(lengths, start, len);
        });
    }

    /// Free blocks of a segment from `block` on that are not set aside. Panics when a part of an AG
    /// that is not loaded is concerned.
    pub fn open_blocks_from(&self, segment: SegmentIndex, block: u64) -> u64 {
        let ags = self
            .segments
            .get(&segment)
            .map_or(&[][..], |segment| &segment.ags);
        let start_in = |ag: &Ag| self.grid.cut_in(ag.key, block);
        let open = ags.iter().map(|ag| ag.open_blocks_from(start_in(ag)));
        open.map(u64::from).sum()
    }

    /// Closes a segment from `block` on, instead of where it was; `u64::MAX` opens it.
    pub fn set_closed_from(&mut self, segment: SegmentIndex, block: u64) {
        let old = std::mem::replace(&mut self.segment_mut(segment).closed_from, block);
        let count = self.segment_mut(segment).ags.len() as u64;
        let first = (block.min(old) / self.grid.ag_blocks).min(count);
        for ag_index in first as u32..count as u32 {
            let key = AgKey { segment, ag_index };
            let cut = self.grid.cut_in(key, block);
            self.change(key, |ag, lengths| ag.set_closed_at(lengths, cut));
        }
    }

    /// Blocks from `block_count` on that are in use or not closed.
    pub fn needed_blocks_from(&self, segment: SegmentIndex, block_count: u64) -> u64 {
        let entry = &self.segments[&segment];
        let cut_blocks = entry.block_count - block_count;
        let ags = entry
            .ags
            .iter()
            .filter(|ag| self.grid.cut_in(ag.key, block_count) < ag.block_count);
        let aside = ags.map(|ag| {
            let cut = self.grid.cut_in(ag.key, block_count);
            u64::from(ag.aside_blocks_from(cut))
        });
        cut_blocks - aside.sum::<u64>()
    }

    /// Cuts off blocks that are all set aside.
    pub fn truncate(&mut self, segment: SegmentIndex, block_count: u64) {
        let count = self.segments[&segment].ags.len() as u32;
        for ag_index in (0..count).rev() {
            let key = AgKey { segment, ag_index };
            let cut = self.grid.cut_in(key, block_count);
            if cut < self.segment_mut(segment).ags[ag_index as usize].block_count {
                self.change(key, |ag, lengths| ag.truncate(lengths, cut));
            }
            if cut == 0 {
                let ag = self.segment_mut(segment).ags.pop();
                ag.iter().for_each(|ag| self.accounts.subtract(ag));
            }
        }
        self.segment_mut(segment).block_count = block_count;
        if block_count == 0 {
            self.segments.remove(&segment);
        }
    }

    /// What an AG has in use, from its summary; where its holes are is forgotten.
    pub fn summarize(&mut self, key: AgKey, used_blocks: u32, quarantined_blocks: u32) {
        self.change(key, |ag, lengths| {
            ag.summarize(lengths, used_blocks, quarantined_blocks);
        });
        self.dirty.remove(&key);
    }

    /// Enters the holes of a known AG.
    pub fn load(&mut self, key: AgKey, holes: &[Hole]) {
        let tick = self.tick;
        self.change(key, |ag, lengths| ag.load(lengths, holes, tick));
        self.loads += 1;
    }

    /// An allocation begins: AGs loaded from now on are loaded for the next one.
    pub fn tick(&mut self) {
        self.tick += 1;
        self.loads = 0;
    }

    /// What was allocated is committed.
    pub fn settle(&mut self) {
        for key in std::mem::take(&mut self.dirty) {
            self.change(key, |ag, _| ag.set_dirty(false));
        }
    }

    /// Whether loaded AGs take more than they may.
    pub fn is_over_budget(&self) -> bool {
        self.accounts.loaded_bytes > self.memory_bytes_max
    }

    /// Unloads AGs until an eighth of the budget is unused: those with the shortest holes first,
    /// none that is dirty, `is_held`, or was loaded for the allocation to come. O(AGs), about once
    /// per that eighth.
    pub fn evict(&mut self, is_held: impl Fn(&Ag) -> bool) {
        let mut candidates: Vec<(u32, AgKey)> = self
            .iter()
            .filter(|ag| ag.may_unload(self.tick) && !is_held(ag))
            .map(|ag| (ag.longest_max(), ag.key))
            .collect();
        candidates.sort_unstable();
        for (_, key) in candidates {
            if self.accounts.loaded_bytes <= self.memory_bytes_max / 8 * 7 {
                break;
            }
            self.change(key, |ag, lengths| ag.unload(lengths));
        }
    }

    /// The known AG to load before `blocks` are allocated from loaded ones, if any: all, where they
    /// fit into memory; enough to choose from; one with a hole that may fit `whole_blocks`, unless
    /// `has_fit`; and always enough free blocks.
    pub fn find_wanted(
        &self,
        whole_blocks: u64,
        blocks: u64,
        has_fit: impl FnOnce() -> bool,
    ) -> Option<AgKey> {
        let accounts = &self.accounts;
        let &(longest_max, key) = accounts.known.last()?;
        let all_fit = accounts.loaded_bytes + accounts.known_bytes <= self.memory_bytes_max;
        let is_short = accounts.free_blocks() - accounts.known_blocks < blocks;
        let may_fit = u64::from(longest_max) >= whole_blocks.min(self.grid.ag_blocks);
        let is_wanted = all_fit
            || is_short
            || accounts.window_ags < self.window_ags
            || (may_fit && self.loads < HOPEFUL_LOADS_MAX && !has_fit());
        is_wanted.then_some(key)
    }

    /// A known AG below `limit` that may have a hole of `blocks`. O(known AGs that may).
    pub fn find_wanted_below(&self, blocks: u64, limit: Address) -> Option<AgKey> {
        let may_fit = self.accounts.known.iter().rev();
        let mut may_fit = may_fit.take_while(|&&(longest_max, _)| u64::from(longest_max) >= blocks);
        let found = may_fit.find(|(_, key)| {
            key.segment < limit.segment
                || (key.segment == limit.segment
                    && u64::from(key.ag_index) * self.grid.ag_blocks < limit.block)
        });
        found
            .map(|&(_, key)| key)
            .filter(|_| self.loads < HOPEFUL_LOADS_MAX)
    }

    /// Panics unless all books agree; `held_blocks` are those of soft regions in an AG.
    pub fn assert_valid(&self, held_blocks: impl Fn(&Ag) -> u32) {
        let mut lengths = Lengths::new();
        let mut accounts = Accounts::default();
        for segment in self.segments.values() {
            let blocks: u64 = segment.ags.iter().map(|ag| u64::from(ag.block_count)).sum();
            assert_eq!(blocks, segment.block_count, "SPACE-1");
            for ag in &segment.ags {
                let of_ag = ag.assert_valid(held_blocks(ag));
                lengths.extend(of_ag.into_iter().map(|len| (len, ag.key)));
                accounts.add(ag);
            }
        }
        assert_eq!(lengths, self.lengths, "the index of lengths");
        assert_eq!(
            format!("{accounts:?}"),
            format!("{:?}", self.accounts),
            "SPACE-1"
        );
    }

    fn find_hole(
        &self,
        address: Address,
        find: impl Fn(&Ag, u32) -> Option<Hole>,
    ) -> Option<Extent> {
        let key = self.find_key(address)?;
        let block = (address.block % self.grid.ag_blocks) as u32; // < 2^CLASSES
        find(self.find(key)?, block).map(|hole| self.grid.extent(key, hole))
    }

    /// Changes an AG and what is counted of it.
    fn change<R>(&mut self, key: AgKey, change: impl FnOnce(&mut Ag, &mut Lengths) -> R) -> R {
        let segment = self.segments.get_mut(&key.segment);
        let Some(ag) = segment.and_then(|segment| segment.ags.get_mut(key.ag_index as usize))
        else {
            panic!(
                "segment {} has no allocation group {}",
                key.segment, key.ag_index
            );
        };
        self.accounts.subtract(ag);
        let result = change(ag, &mut self.lengths);
        self.accounts.add(ag);
        result
    }

    fn segment_mut(&mut self, segment: SegmentIndex) -> &mut Segment {
        match self.segments.get_mut(&segment) {
            Some(entry) => entry,
            None => panic!("segment {segment} was not added"),
        }
    }
}

/// Where AGs begin: all have the same number of blocks, but the last one of a segment, which may
/// have fewer.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Grid {
    pub ag_blocks: u64,
}

impl Grid {
    /// The AG of a block.
    pub fn key_of(&self, segment: SegmentIndex, block: u64) -> AgKey {
        let Ok(ag_index) = u32::try_from(block / self.ag_blocks) else {
            panic!("segment {segment} is too long");
        };
        AgKey { segment, ag_index }
    }

    /// Where a cut of the segment at `block` cuts an AG: 0 before it, [`OPEN`] behind it.
    pub fn cut_in(&self, key: AgKey, block: u64) -> u32 {
        let start = u64::from(key.ag_index) * self.ag_blocks;
        match block.saturating_sub(start) {
            inside if inside < self.ag_blocks => inside as u32,
            _ => OPEN,
        }
    }

    /// Blocks of an AG as an extent.
    pub fn extent(&self, key: AgKey, (start, len): Hole) -> Extent {
        let ag_start = u64::from(key.ag_index) * self.ag_blocks;
        Extent::new(key.segment, ag_start + u64::from(start), len.into())
    }

    /// An extent as its AG and the blocks in it; it lies in one AG (`SPACE-3`).
    pub fn split(&self, extent: &Extent) -> (AgKey, Hole) {
        let key = self.key_of(extent.segment, extent.start_block);
        let start = extent.start_block % self.ag_blocks;
        assert!(
            start + extent.block_count <= self.ag_blocks,
            "SPACE-3: {extent}"
        );
        (key, (start as u32, extent.block_count as u32)) // < 2^CLASSES
    }
}
