//! A set of blocks, kept as maximal runs: by address, and by length for best fit.
//!
//! A run never crosses an AG (`SPACE-3`); two runs of one AG never touch. Every operation is
//! O(log runs).

use std::collections::{BTreeMap, BTreeSet};

use larder_format::{Extent, SegmentIndex};

/// The place of a block in a database, in the order of segments and blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Address {
    pub segment: SegmentIndex,
    pub block: u64,
}

impl Address {
    const MIN: Address = Address {
        segment: SegmentIndex(0),
        block: 0,
    };

    /// Where the extent begins.
    pub fn start_of(extent: &Extent) -> Address {
        Address {
            segment: extent.segment,
            block: extent.start_block,
        }
    }

    /// The address after its last block.
    pub fn end_of(extent: &Extent) -> Address {
        Address {
            segment: extent.segment,
            block: extent.end_block(),
        }
    }
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct Runs {
    ag_blocks: u64,
    by_start: BTreeMap<Address, u64>,
    by_length: BTreeSet<(u64, Address)>,
    blocks: u64,
}

impl Runs {
    /// An empty set; runs are cut at multiples of `ag_blocks`.
    pub fn new(ag_blocks: u64) -> Runs {
        Runs {
            ag_blocks,
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
            blocks: 0,
        }
    }

    /// Blocks in all runs together.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// All runs by address.
    pub fn iter(&self) -> impl Iterator<Item = Extent> + '_ {
        self.by_start.iter().map(|(&start, &len)| run(start, len))
    }

    /// The smallest run of at least `blocks`, of equal ones that of the lowest address (`SPACE-8`).
    pub fn find_best_fit(&self, blocks: u64) -> Option<Extent> {
        self.by_length
            .range((blocks, Address::MIN)..)
            .next()
            .map(|&(len, start)| run(start, len))
    }

    /// As [`Runs::find_best_fit`], but of runs of which at least `blocks` lie below `limit`; the part
    /// below it. `None` for a limit means none. O(different lengths of runs · log runs).
    pub fn find_best_fit_below(&self, blocks: u64, limit: Option<Address>) -> Option<Extent> {
        let Some(limit) = limit else {
            return self.find_best_fit(blocks);
        };
        let mut wanted = blocks;
        // The run across the limit counts as long as its part below.
        let cut = Address {
            segment: limit.segment,
            block: limit.block.checked_sub(1)?,
        };
        let cut = self
            .find_at(cut)
            .map(|run| run.slice(0, limit.block - run.start_block));
        let cut = cut.filter(|part| part.block_count >= blocks);
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

    /// Takes out the part of every run that lies in `range`, an extent of whole or parts of AGs, and
    /// returns these parts by address.
    pub fn remove_range(&mut self, range: Extent) -> Vec<Extent> {
        let mut parts = Vec::new();
        let mut at = Address::start_of(&range);
        while at.block < range.end_block() {
            let next = || {
                let (&start, &len) = self.by_start.range(at..Address::end_of(&range)).next()?;
                Some(run(start, len))
            };
            let Some(found) = self.find_at(at).or_else(next) else {
                break;
            };
            let start = found.start_block.max(at.block);
            let end = found.end_block().min(range.end_block());
            let part = Extent::new(range.segment, start, end - start);
            self.remove(part);
            parts.push(part);
            at.block = end;
        }
        parts
    }

    /// The largest run, of equal ones that of the lowest address.
    pub fn find_largest(&self) -> Option<Extent> {
        self.by_length
            .last()
            .and_then(|&(len, _)| self.find_best_fit(len))
    }

    /// The run that holds the block at `address`.
    pub fn find_at(&self, address: Address) -> Option<Extent> {
        self.find_last_from(address)
            .filter(|run| address.block < run.end_block())
    }

    /// The run whose last block is right before `address`.
    pub fn find_ending_at(&self, address: Address) -> Option<Extent> {
        let (&start, &len) = self.by_start.range(..address).next_back()?;
        Some(run(start, len)).filter(|run| Address::end_of(run) == address)
    }

    /// The run that begins at `address`.
    pub fn find_starting_at(&self, address: Address) -> Option<Extent> {
        self.by_start.get(&address).map(|&len| run(address, len))
    }

    /// Whether any block of `extent` is in the set.
    pub fn overlaps(&self, extent: &Extent) -> bool {
        let end = Address {
            segment: extent.segment,
            block: extent.end_block() - 1,
        };
        self.find_last_from(end)
            .is_some_and(|run| run.overlaps(extent))
    }

    /// Adds blocks that are not in the set, and joins them with the runs they touch.
    pub fn insert(&mut self, extent: Extent) {
        assert!(
            !self.overlaps(&extent),
            "SPACE-2: {extent} is in the set already"
        );
        let mut merged = extent;
        if !extent.start_block.is_multiple_of(self.ag_blocks)
            && let Some(left) = self.find_ending_at(Address::start_of(&extent))
        {
            self.unlink(left);
            merged = Extent::new(
                left.segment,
                left.start_block,
                left.block_count + merged.block_count,
            );
        }
        if !extent.end_block().is_multiple_of(self.ag_blocks)
            && let Some(right) = self.find_starting_at(Address::end_of(&extent))
        {
            self.unlink(right);
            merged.block_count += right.block_count;
        }
        self.link(merged);
    }

    /// Takes blocks out that are all in the set.
    pub fn remove(&mut self, extent: Extent) {
        let run = self.find_at(Address::start_of(&extent));
        let Some(run) = run.filter(|run| extent.end_block() <= run.end_block()) else {
            panic!("SPACE-2: {extent} is not in the set");
        };
        self.unlink(run);
        if run.start_block < extent.start_block {
            self.link(Extent::new(
                run.segment,
                run.start_block,
                extent.start_block - run.start_block,
            ));
        }
        if extent.end_block() < run.end_block() {
            self.link(Extent::new(
                run.segment,
                extent.end_block(),
                run.end_block() - extent.end_block(),
            ));
        }
    }

    /// Takes out every run of an AG, given as the extent of all its blocks, and returns how many
    /// blocks they were. O(runs in the AG).
    pub fn remove_ag(&mut self, ag: Extent) -> u64 {
        let range = Address::start_of(&ag)..Address::end_of(&ag);
        let runs: Vec<Extent> = self
            .by_start
            .range(range)
            .map(|(&start, &len)| run(start, len))
            .collect();
        for run in &runs {
            self.unlink(*run);
        }
        runs.iter().map(|run| run.block_count).sum()
    }

    /// Panics unless the two trees agree and the runs are maximal. O(runs).
    pub fn assert_valid(&self) {
        let by_length: BTreeSet<_> = self
            .by_start
            .iter()
            .map(|(&start, &len)| (len, start))
            .collect();
        assert_eq!(by_length, self.by_length, "the two trees differ");
        assert_eq!(self.blocks, self.by_start.values().sum::<u64>());
        let ag_of = |block| block / self.ag_blocks;
        let mut last: Option<Extent> = None;
        for run in self.iter() {
            assert_eq!(
                ag_of(run.start_block),
                ag_of(run.end_block() - 1),
                "SPACE-3: {run}"
            );
            if let Some(last) = last.filter(|last| last.segment == run.segment) {
                assert!(
                    last.end_block() <= run.start_block,
                    "SPACE-2: {last}, {run}"
                );
                let is_maximal = last.end_block() < run.start_block
                    || ag_of(last.start_block) != ag_of(run.start_block);
                assert!(is_maximal, "{last} and {run} touch");
            }
            last = Some(run);
        }
    }

    fn find_last_from(&self, address: Address) -> Option<Extent> {
        let (&start, &len) = self.by_start.range(..=address).next_back()?;
        (start.segment == address.segment).then(|| run(start, len))
    }

    fn link(&mut self, run: Extent) {
        let start = Address::start_of(&run);
        self.by_start.insert(start, run.block_count);
        self.by_length.insert((run.block_count, start));
        self.blocks += run.block_count;
    }

    fn unlink(&mut self, run: Extent) {
        let start = Address::start_of(&run);
        let was_there = self.by_start.remove(&start).is_some()
            && self.by_length.remove(&(run.block_count, start));
        assert!(was_there, "{run} is not a run");
        self.blocks -= run.block_count;
    }
}

fn run(start: Address, block_count: u64) -> Extent {
    Extent::new(start.segment, start.block, block_count)
}
