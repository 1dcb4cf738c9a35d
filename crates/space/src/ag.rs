//! One allocation group: how much of it is free, and, while it is loaded, where.
//!
//! ```text
//!            load: the extents in use            allocate: dirty
//!   known ─────────────────────────────▶ loaded ──────────────────▶ loaded, dirty
//!     ▲  ◀── unload: over the budget       ▲  ◀── settle: committed ──────┘
//!     └───── summarize: another session committed
//! ```
//! A *known* AG has counts, and what is remembered of its holes. A *loaded* one has two trees of
//! its holes, by start and by length. Blocks are counted from the start of the AG, so that a hole
//! takes 8 bytes in each.

use std::collections::{BTreeMap, BTreeSet};

use crate::address::AgKey;

/// Classes of hole lengths that an AG can have: class `i` is `2^i ..= 2^(i+1) − 1` blocks.
pub(crate) const CLASSES: usize = 19;
/// Bytes that a loaded AG takes beside its holes, and for each hole: three trees of at least half
/// full nodes, with what the heap adds. Measured by `examples/scale.rs`.
const LOADED_BYTES: u64 = 512;
const HOLE_BYTES: u64 = 64;
/// How many holes an AG is taken to have that was never loaded, at most.
const HOLES_GUESS: u32 = 1024;
/// Not closed.
pub(crate) const OPEN: u32 = u32::MAX;

/// For each length of open holes, the loaded AGs that have one: the first finds the best fit.
pub(crate) type Lengths = BTreeSet<(u32, AgKey)>;

/// A hole: first block and length.
pub(crate) type Hole = (u32, u32);

/// See the module.
#[derive(Debug)]
pub(crate) struct Ag {
    /// Which one it is.
    pub key: AgKey,
    /// Blocks of it that there are; only the last AG of a segment may have fewer than others.
    pub block_count: u32,
    /// Allocated and quarantined blocks.
    pub used_blocks: u32,
    /// Those of them that are quarantined.
    pub quarantined_blocks: u32,
    /// Free blocks from `closed_at` on.
    pub aside_blocks: u32,
    /// Closed from this block on; 0 is all of it, [`OPEN`] is nothing.
    closed_at: u32,
    contents: Contents,
}

#[derive(Debug)]
enum Contents {
    Known {
        /// No hole is longer.
        longest_max: u32,
        /// Holes of each class when it was last loaded, and released since; all 0 if it never was.
        histogram: [u16; CLASSES],
    },
    Loaded(Box<Loaded>),
}

#[derive(Debug)]
struct Loaded {
    by_start: BTreeMap<u32, u32>,
    by_length: BTreeSet<(u32, u32)>,
    /// It has allocations that are not committed, so the catalog cannot give it back.
    is_dirty: bool,
    /// When it was loaded, in allocations.
    tick: u64,
}

impl Ag {
    /// An AG without blocks.
    pub fn empty(key: AgKey) -> Ag {
        Ag {
            key,
            block_count: 0,
            used_blocks: 0,
            quarantined_blocks: 0,
            aside_blocks: 0,
            closed_at: OPEN,
            contents: Contents::Loaded(Box::new(Loaded {
                by_start: BTreeMap::new(),
                by_length: BTreeSet::new(),
                is_dirty: false,
                tick: 0,
            })),
        }
    }

    /// Blocks that are not in use, set aside or not.
    pub fn free_blocks(&self) -> u32 {
        self.block_count - self.used_blocks
    }

    /// Blocks that are not in use and not set aside.
    pub fn open_blocks(&self) -> u32 {
        self.free_blocks() - self.aside_blocks
    }

    /// Whether it is known where its holes are.
    pub fn is_loaded(&self) -> bool {
        matches!(self.contents, Contents::Loaded(_))
    }

    /// No open hole is longer than this, blocks. Exact while it is loaded and nothing is set aside.
    pub fn longest_max(&self) -> u32 {
        self.any_longest_max().min(self.open_blocks())
    }

    fn any_longest_max(&self) -> u32 {
        match &self.contents {
            Contents::Known { longest_max, .. } => *longest_max,
            Contents::Loaded(loaded) => loaded.by_length.last().map_or(0, |&(len, _)| len),
        }
    }

    /// Bytes it takes, or would take if it were loaded.
    pub fn loaded_bytes(&self) -> u64 {
        let holes = match &self.contents {
            Contents::Loaded(loaded) => loaded.by_start.len() as u64,
            Contents::Known { histogram, .. } => {
                match histogram.iter().copied().map(u64::from).sum() {
                    0 => self
                        .free_blocks()
                        .min(self.used_blocks + 1)
                        .min(HOLES_GUESS)
                        .into(),
                    remembered => remembered,
                }
            }
        };
        LOADED_BYTES + holes * HOLE_BYTES
    }

    /// Open holes per class; of a known AG what is remembered.
    pub fn histogram(&self) -> [u16; CLASSES] {
        match &self.contents {
            _ if self.open_blocks() == 0 => [0; CLASSES],
            Contents::Known { histogram, .. } => *histogram,
            Contents::Loaded(_) => {
                let mut histogram = [0; CLASSES];
                self.holes().for_each(|(_, len)| count(&mut histogram, len));
                histogram
            }
        }
    }

    /// Whether it may be forgotten where its holes are: the catalog knows them, and nothing but
    /// counts depends on them.
    pub fn may_unload(&self, before_tick: u64) -> bool {
        let is_cut = self.closed_at > 0 && self.closed_at < self.block_count;
        matches!(&self.contents, Contents::Loaded(loaded)
            if !loaded.is_dirty && loaded.tick < before_tick && !is_cut)
    }

    /// Its open holes by address; none of a known one.
    pub fn holes(&self) -> impl Iterator<Item = Hole> + '_ {
        let closed_at = self.closed_at;
        let holes = self
            .loaded()
            .map(|loaded| loaded.by_start.range(..closed_at));
        holes
            .into_iter()
            .flatten()
            .map(|(&start, &len)| (start, len))
    }

    /// The open hole that holds `block`.
    pub fn find_at(&self, block: u32) -> Option<Hole> {
        self.find_any_at(block).filter(|_| block < self.closed_at)
    }

    /// The open hole that begins at `block`.
    pub fn find_starting_at(&self, block: u32) -> Option<Hole> {
        self.find_at(block).filter(|&(start, _)| start == block)
    }

    /// The open hole whose last block is right before `block`.
    pub fn find_ending_at(&self, block: u32) -> Option<Hole> {
        let hole = self.find_at(block.checked_sub(1)?)?;
        Some(hole).filter(|&(start, len)| start + len == block)
    }

    /// The open hole of exactly this length that has the lowest address.
    pub fn find_of_length(&self, len: u32) -> Option<Hole> {
        let found = self
            .loaded()?
            .by_length
            .range((len, 0)..=(len, u32::MAX))
            .next();
        found
            .map(|&(len, start)| (start, len))
            .filter(|&(start, _)| start < self.closed_at)
    }

    /// Whether a block of these is in a hole, open or set aside.
    pub fn overlaps(&self, start: u32, len: u32) -> bool {
        let last = self
            .loaded()
            .and_then(|loaded| loaded.by_start.range(..start + len).next_back());
        last.is_some_and(|(&hole, &hole_len)| hole + hole_len > start)
    }

    /// Makes blocks a part of the holes, if it is loaded, joined with the holes that they touch and
    /// cut where the AG is closed. What is free is not counted here.
    pub fn insert(&mut self, lengths: &mut Lengths, start: u32, len: u32) {
        let cut = self.closed_at.clamp(start, start + len) - start;
        if cut > 0 && cut < len {
            self.insert(lengths, start, cut);
            return self.insert(lengths, start + cut, len - cut);
        }
        if !self.is_loaded() {
            self.remember(len);
            return;
        }
        assert!(
            !self.overlaps(start, len),
            "SPACE-2: {:?} {start}+{len} is free already",
            self.key
        );
        let mut merged = (start, len);
        if start > 0
            && start != self.closed_at
            && let Some((left, left_len)) = self.find_any_at(start - 1)
        {
            self.unlink(lengths, left, left_len);
            merged = (left, left_len + merged.1);
        }
        if start + len != self.closed_at
            && let Some((right, right_len)) = self.find_any_at(start + len)
        {
            self.unlink(lengths, right, right_len);
            merged.1 += right_len;
        }
        self.link(lengths, merged.0, merged.1);
    }

    /// Takes blocks out of one open hole. Panics when they are not all in it.
    pub fn remove(&mut self, lengths: &mut Lengths, start: u32, len: u32) {
        let hole = self
            .find_at(start)
            .filter(|hole| start + len <= hole.0 + hole.1);
        let Some((hole, hole_len)) = hole else {
            panic!("SPACE-2, SPACE-9: {:?} {start}+{len} is not open", self.key);
        };
        self.unlink(lengths, hole, hole_len);
        if hole < start {
            self.link(lengths, hole, start - hole);
        }
        if start + len < hole + hole_len {
            self.link(lengths, start + len, hole + hole_len - (start + len));
        }
    }

    /// Free blocks from `block` on that are not set aside yet; it is loaded, or `block` is no block
    /// in its middle.
    pub fn open_blocks_from(&self, block: u32) -> u32 {
        if block == 0 {
            return self.open_blocks();
        }
        if block >= self.block_count.min(self.closed_at) {
            return 0;
        }
        let parts = self.holes().filter(|&(start, len)| start + len > block);
        parts
            .map(|(start, len)| start + len - start.max(block))
            .sum()
    }

    /// Blocks from `block` on that are set aside; 0 where only the holes can tell and it is not
    /// loaded.
    pub fn aside_blocks_from(&self, block: u32) -> u32 {
        if block <= self.closed_at {
            return self.aside_blocks;
        }
        let aside = self
            .loaded()
            .map(|loaded| loaded.by_start.range(self.closed_at..));
        let parts = aside.into_iter().flatten();
        parts
            .map(|(&start, &len)| (start + len).saturating_sub(start.max(block)))
            .sum()
    }

    /// Counts what becomes free and is set aside at once.
    pub fn add_aside(&mut self, start: u32, len: u32) {
        self.aside_blocks += (start + len)
            .saturating_sub(self.closed_at.max(start))
            .min(len);
    }

    /// Closes it from `block` on, instead of where it was closed before.
    pub fn set_closed_at(&mut self, lengths: &mut Lengths, block: u32) {
        let holes: Vec<Hole> = self.loaded().map_or_else(Vec::new, |loaded| {
            loaded
                .by_start
                .iter()
                .map(|(&start, &len)| (start, len))
                .collect()
        });
        for &(start, len) in &holes {
            self.unlink(lengths, start, len);
        }
        let is_cut = block > 0 && block < self.block_count;
        assert!(
            self.is_loaded() || !is_cut,
            "load an AG before a part of it is closed"
        );
        self.closed_at = block;
        for (start, len) in holes {
            self.insert(lengths, start, len);
        }
        self.aside_blocks = match block {
            0 => self.free_blocks(),
            _ => self.loaded().map_or(0, |loaded| {
                loaded.by_start.range(block..).map(|(_, len)| len).sum()
            }),
        };
    }

    /// Cuts blocks off at the end, all of them set aside.
    pub fn truncate(&mut self, lengths: &mut Lengths, block_count: u32) {
        let cut = self.block_count - block_count;
        if let Some((hole, hole_len)) = self.find_any_at(block_count) {
            self.unlink(lengths, hole, hole_len);
            if hole < block_count {
                self.link(lengths, hole, block_count - hole);
            }
        }
        self.block_count = block_count;
        self.aside_blocks -= cut;
    }

    /// Forgets where its holes are, and remembers their lengths.
    pub fn unload(&mut self, lengths: &mut Lengths) {
        let (longest_max, histogram) = (self.any_longest_max(), self.histogram());
        let holes: Vec<Hole> = self.holes().collect();
        for (_, len) in holes {
            lengths.remove(&(len, self.key));
        }
        self.contents = Contents::Known {
            longest_max,
            histogram,
        };
    }

    /// Forgets everything but its length; other counts are given. It must not be closed.
    pub fn summarize(&mut self, lengths: &mut Lengths, used_blocks: u32, quarantined_blocks: u32) {
        assert_eq!(
            self.closed_at, OPEN,
            "SPACE-9: reopen a segment before an AG of it is summarized"
        );
        self.unload(lengths);
        self.used_blocks = used_blocks;
        self.quarantined_blocks = quarantined_blocks;
        self.aside_blocks = 0;
        self.contents = Contents::Known {
            longest_max: self.block_count,
            histogram: [0; CLASSES],
        };
    }

    /// Enters the holes of a known AG, by address; they hold all its free blocks.
    pub fn load(&mut self, lengths: &mut Lengths, holes: &[Hole], tick: u64) {
        let loaded = Loaded {
            by_start: holes.iter().copied().collect(),
            by_length: holes.iter().map(|&(start, len)| (len, start)).collect(),
            is_dirty: false,
            tick,
        };
        let open = loaded.by_start.range(..self.closed_at);
        lengths.extend(open.map(|(_, &len)| (len, self.key)));
        self.contents = Contents::Loaded(Box::new(loaded));
    }

    /// Notes whether it has uncommitted allocations.
    pub fn set_dirty(&mut self, is_dirty: bool) {
        if let Contents::Loaded(loaded) = &mut self.contents {
            loaded.is_dirty = is_dirty;
        }
    }

    /// Panics unless its trees agree, its holes are maximal and hold all free blocks but
    /// `held_blocks`. Returns the lengths of its open holes.
    pub fn assert_valid(&self, held_blocks: u32) -> BTreeSet<u32> {
        assert!(
            self.quarantined_blocks <= self.used_blocks && self.used_blocks <= self.block_count
        );
        let Some(loaded) = self.loaded() else {
            let is_cut = self.closed_at > 0 && self.closed_at < self.block_count;
            assert!(
                held_blocks == 0 && !is_cut,
                "SPACE-10: {:?} must stay loaded",
                self.key
            );
            return BTreeSet::new();
        };
        let by_length: BTreeSet<_> = loaded
            .by_start
            .iter()
            .map(|(&start, &len)| (len, start))
            .collect();
        assert_eq!(by_length, loaded.by_length, "the two trees differ");
        let mut end = None;
        for (&start, &len) in &loaded.by_start {
            let is_maximal =
                end.is_none_or(|end| end < start || (end == start && start == self.closed_at));
            assert!(
                is_maximal && len > 0,
                "{:?}: holes touch at {start}",
                self.key
            );
            assert!(
                start >= self.closed_at || start + len <= self.closed_at,
                "SPACE-9"
            );
            end = Some(start + len);
        }
        assert!(
            end.is_none_or(|end| end <= self.block_count),
            "SPACE-3: {:?}",
            self.key
        );
        let aside: u32 = loaded
            .by_start
            .range(self.closed_at..)
            .map(|(_, len)| len)
            .sum();
        assert_eq!(aside, self.aside_blocks, "SPACE-9");
        let holes: u32 = loaded.by_start.values().sum();
        assert_eq!(
            holes + held_blocks,
            self.free_blocks(),
            "SPACE-1: {:?}",
            self.key
        );
        self.holes().map(|(_, len)| len).collect()
    }

    fn loaded(&self) -> Option<&Loaded> {
        match &self.contents {
            Contents::Known { .. } => None,
            Contents::Loaded(loaded) => Some(loaded),
        }
    }

    fn find_any_at(&self, block: u32) -> Option<Hole> {
        let (&start, &len) = self.loaded()?.by_start.range(..=block).next_back()?;
        Some((start, len)).filter(|_| block < start + len)
    }

    /// Something of `len` blocks became free: it may have joined a hole on each side.
    fn remember(&mut self, len: u32) {
        if let Contents::Known {
            longest_max,
            histogram,
        } = &mut self.contents
        {
            *longest_max = longest_max.saturating_mul(2).saturating_add(len);
            count(histogram, len);
        }
    }

    fn link(&mut self, lengths: &mut Lengths, start: u32, len: u32) {
        if let Contents::Loaded(loaded) = &mut self.contents {
            loaded.by_start.insert(start, len);
            loaded.by_length.insert((len, start));
            if start < self.closed_at {
                lengths.insert((len, self.key));
            }
        }
    }

    fn unlink(&mut self, lengths: &mut Lengths, start: u32, len: u32) {
        if let Contents::Loaded(loaded) = &mut self.contents {
            let was_there =
                loaded.by_start.remove(&start).is_some() && loaded.by_length.remove(&(len, start));
            assert!(was_there, "{:?} {start}+{len} is not a hole", self.key);
            if self.find_of_length(len).is_none() {
                lengths.remove(&(len, self.key));
            }
        }
    }
}

fn count(histogram: &mut [u16; CLASSES], len: u32) {
    let class = &mut histogram[len.ilog2() as usize];
    *class = class.saturating_add(1);
}
