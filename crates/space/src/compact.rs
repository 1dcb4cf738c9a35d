//! Planning of compaction: which live extents to move so that small holes become large ones.
//!
//! Pure: from the holes of all segments, and the movable extents of some allocation groups, to a
//! bounded list of moves. The caller copies, commits, and later finds the space of the moved
//! extents free (it is not a target of the same plan).
//!
//! # Words
//! *Score*: the sum of the squared lengths of all holes, blocks². Joining two holes raises it;
//! cutting one lowers it. *Gain*: what a plan adds to the score. *Window*: neighbouring holes and
//! movable extents of one AG.
//!
//! # Invariants
//! * `COMPACT-1` The places that a plan moves to are free before it, overlap neither each other nor
//!   what is moved, and lie each in one AG.
//! * `COMPACT-2` A plan that is not empty raises the score; so planning ends when nothing else
//!   happens.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet};

use larder_format::limits::AG_BLOCKS;
use larder_format::{Extent, SegmentIndex};

/// Windows that [`plan_hole`] tries, cheapest first.
const WINDOWS_MAX: usize = 16;

/// One extent on its way to another place of the same length.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Move {
    /// Where the blocks lie.
    pub from: Extent,
    /// Where they go.
    pub to: Extent,
}

/// Moves that belong together, and what they gain.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CompactPlan {
    /// In no particular order; each may also be made alone.
    pub moves: Vec<Move>,
    /// What they add to the score, blocks².
    pub gain: u128,
}

impl CompactPlan {
    /// Blocks that must be copied.
    pub fn blocks(&self) -> u64 {
        self.moves.iter().map(|one| one.from.block_count).sum()
    }
}

/// The score of a set of holes: the sum of their squared lengths, blocks².
pub fn hole_score(holes: impl IntoIterator<Item = Extent>) -> u128 {
    holes.into_iter().map(|hole| square(hole.block_count)).sum()
}

/// Plans a hole of at least `wanted_blocks` in the AGs of `live` (movable extents, in any order),
/// for at most `budget_blocks` of copying: the cheapest window whose extents all find a place
/// elsewhere. `holes` are all holes; `None` when there is no such window. O((holes + live) · log
/// holes).
pub fn plan_hole(
    holes: impl IntoIterator<Item = Extent>,
    live: &[Extent],
    wanted_blocks: u64,
    budget_blocks: u64,
) -> Option<CompactPlan> {
    let holes = Holes::new(AG_BLOCKS, holes);
    holes.plan_hole(live, wanted_blocks, budget_blocks)
}

/// Plans moves that join holes, the best gain per block first: at most `moves_max`, and
/// `budget_blocks` of copying. A move must gain at least the square of what it moves, so a lone
/// block is moved from between two holes, and a long extent only for the sake of long holes. Empty
/// when nothing gains. O((holes + live) · log (holes + live)).
pub fn plan_joins(
    holes: impl IntoIterator<Item = Extent>,
    live: &[Extent],
    moves_max: usize,
    budget_blocks: u64,
) -> CompactPlan {
    Holes::new(AG_BLOCKS, holes).plan_joins(live, moves_max, budget_blocks)
}

fn square(blocks: u64) -> u128 {
    u128::from(blocks) * u128::from(blocks)
}

type Key = (SegmentIndex, u64);

/// Maximal holes by address and by length, with their score. Kept apart from the books of
/// [`crate::Space`]: a plan plays on a copy.
#[derive(Debug, Clone)]
struct Holes {
    ag_blocks: u64,
    by_start: BTreeMap<Key, u64>,
    by_length: BTreeSet<(u64, Key)>,
    score: u128,
}

impl Holes {
    fn new(ag_blocks: u64, holes: impl IntoIterator<Item = Extent>) -> Holes {
        let mut all = Holes {
            ag_blocks,
            by_start: BTreeMap::new(),
            by_length: BTreeSet::new(),
            score: 0,
        };
        holes.into_iter().for_each(|hole| all.insert(hole));
        all
    }

    fn plan_hole(
        &self,
        live: &[Extent],
        wanted_blocks: u64,
        budget_blocks: u64,
    ) -> Option<CompactPlan> {
        let windows = self.cheap_windows(live, wanted_blocks, budget_blocks);
        windows
            .into_iter()
            .find_map(|window| self.empty_window(&window))
    }

    /// The cheapest windows of at least `wanted_blocks`, as the movable extents in them.
    fn cheap_windows(&self, live: &[Extent], wanted_blocks: u64, budget: u64) -> Vec<Vec<Extent>> {
        let ags: BTreeSet<Key> = live
            .iter()
            .map(|extent| (extent.segment, extent.start_block / self.ag_blocks))
            .collect();
        let mut items: Vec<(Extent, bool)> = live.iter().map(|&extent| (extent, true)).collect();
        for (segment, ag) in ags {
            let range = (segment, ag * self.ag_blocks)..(segment, (ag + 1) * self.ag_blocks);
            let holes = self.by_start.range(range);
            items.extend(holes.map(|(&key, &len)| (hole(key, len), false)));
        }
        items.sort_unstable();
        let cost = |item: &(Extent, bool)| if item.1 { item.0.block_count } else { 0 };
        let mut found: BTreeSet<(u64, usize, usize)> = BTreeSet::new();
        let (mut first, mut blocks, mut to_move) = (0, 0, 0);
        for (at, item) in items.iter().enumerate() {
            let is_next = at > first
                && items[at - 1].0.is_followed_by(&item.0)
                && !item.0.start_block.is_multiple_of(self.ag_blocks);
            if !is_next {
                (first, blocks, to_move) = (at, 0, 0);
            }
            blocks += item.0.block_count;
            to_move += cost(item);
            while blocks - items[first].0.block_count >= wanted_blocks {
                blocks -= items[first].0.block_count;
                to_move -= cost(&items[first]);
                first += 1;
            }
            if blocks >= wanted_blocks && (1..=budget).contains(&to_move) {
                found.insert((to_move, first, at));
                if found.len() > WINDOWS_MAX {
                    found.pop_last();
                }
            }
        }
        let movable = |&(_, first, last): &(u64, usize, usize)| {
            let inside = items[first..=last].iter();
            inside.filter(|item| item.1).map(|item| item.0).collect()
        };
        found.iter().map(movable).collect()
    }

    /// Places for all extents of a window outside of it; the window's holes lie between them and at
    /// both ends.
    fn empty_window(&self, window: &[Extent]) -> Option<CompactPlan> {
        let mut future = self.clone();
        window.iter().for_each(|&extent| future.insert(extent));
        // What is one hole now is the window; its parts are not to be cut again.
        let cleared = future.at(window.first()?)?;
        let mut targets = self.clone();
        let inside: Vec<Extent> = targets.inside(&cleared);
        inside.into_iter().for_each(|hole| targets.remove(hole));
        let mut by_length = window.to_vec();
        by_length.sort_unstable_by_key(|extent| Reverse(extent.block_count));
        let mut plan = CompactPlan::default();
        for from in by_length {
            let to = targets
                .find_best_fit(from.block_count)?
                .slice(0, from.block_count);
            targets.remove(to);
            future.remove(to);
            plan.moves.push(Move { from, to });
        }
        plan.gain = future.score.checked_sub(self.score)?;
        (plan.gain > 0).then_some(plan) // COMPACT-2
    }

    fn plan_joins(mut self, live: &[Extent], moves_max: usize, budget: u64) -> CompactPlan {
        // `self`: the holes as they will be. `targets`: what may be written to now.
        let mut targets = self.clone();
        let mut candidates: Vec<(u128, Extent)> = Vec::new();
        for &from in live {
            if let Some((_, gain)) = self.best_target(&targets, from) {
                candidates.push((gain / u128::from(from.block_count), from));
            }
        }
        candidates.sort_unstable_by_key(|&(per_block, from)| (Reverse(per_block), from));
        let (mut plan, mut left) = (CompactPlan::default(), budget);
        for (_, from) in candidates {
            if plan.moves.len() >= moves_max {
                break;
            }
            // Earlier moves have changed the holes.
            let best = self.best_target(&targets, from);
            if let Some((to, gain)) = best.filter(|_| from.block_count <= left) {
                targets.remove(to);
                self.remove(to);
                self.insert(from);
                left -= from.block_count;
                plan.gain += gain;
                plan.moves.push(Move { from, to });
            }
        }
        plan
    }

    /// Where `from` would best go, and the gain, if that is worth the copying: the hole that fits
    /// it best, or the far end of a hole beside it.
    fn best_target(&mut self, targets: &Holes, from: Extent) -> Option<(Extent, u128)> {
        let len = from.block_count;
        let fits = |hole: &Extent| hole.block_count >= len;
        let left = targets.ending_at(&from).filter(fits);
        let right = targets.starting_at(&from).filter(fits);
        let options = [
            targets.find_best_fit(len).map(|hole| hole.slice(0, len)),
            left.map(|hole| hole.slice(0, len)),
            right.map(|hole| hole.slice(hole.block_count - len, len)),
        ];
        options
            .into_iter()
            .flatten()
            .filter_map(|to| Some((to, self.gain(from, to)?)))
            .filter(|&(_, gain)| gain >= square(len))
            .max_by_key(|&(to, gain)| (gain, Reverse(to)))
    }

    /// What one move adds to the score; `None` if it lowers it.
    fn gain(&mut self, from: Extent, to: Extent) -> Option<u128> {
        let before = self.score;
        self.remove(to);
        self.insert(from);
        let after = self.score;
        self.remove(from);
        self.insert(to);
        after.checked_sub(before)
    }

    fn find_best_fit(&self, blocks: u64) -> Option<Extent> {
        let from = (blocks, (SegmentIndex(0), 0));
        let &(len, key) = self.by_length.range(from..).next()?;
        Some(hole(key, len))
    }

    /// The hole that holds the first block of `extent`.
    fn at(&self, extent: &Extent) -> Option<Extent> {
        let key = (extent.segment, extent.start_block);
        let (&key, &len) = self.by_start.range(..=key).next_back()?;
        Some(hole(key, len)).filter(|hole| hole.overlaps(extent))
    }

    fn inside(&self, range: &Extent) -> Vec<Extent> {
        let (start, end) = (range.start_block, range.end_block());
        self.by_start
            .range((range.segment, start)..(range.segment, end))
            .map(|(&key, &len)| hole(key, len))
            .collect()
    }

    /// The hole of the same AG whose last block is right before `extent`.
    fn ending_at(&self, extent: &Extent) -> Option<Extent> {
        if extent.start_block.is_multiple_of(self.ag_blocks) {
            return None;
        }
        let key = (extent.segment, extent.start_block);
        let (&key, &len) = self.by_start.range(..key).next_back()?;
        Some(hole(key, len)).filter(|hole| hole.is_followed_by(extent))
    }

    /// The hole of the same AG that begins right after `extent`.
    fn starting_at(&self, extent: &Extent) -> Option<Extent> {
        if extent.end_block().is_multiple_of(self.ag_blocks) {
            return None;
        }
        let key = (extent.segment, extent.end_block());
        self.by_start.get(&key).map(|&len| hole(key, len))
    }

    fn insert(&mut self, extent: Extent) {
        let (left, right) = (self.ending_at(&extent), self.starting_at(&extent));
        let mut merged = extent;
        for neighbour in left.into_iter().chain(right) {
            self.unlink(neighbour);
            merged.start_block = merged.start_block.min(neighbour.start_block);
            merged.block_count += neighbour.block_count;
        }
        self.link(merged);
    }

    fn remove(&mut self, extent: Extent) {
        let hole = self.at(&extent);
        let Some(hole) = hole.filter(|hole| extent.end_block() <= hole.end_block()) else {
            panic!("COMPACT-1: {extent} is not free");
        };
        self.unlink(hole);
        let (skip, end) = (
            extent.start_block - hole.start_block,
            extent.end_block() - hole.start_block,
        );
        if skip > 0 {
            self.link(hole.slice(0, skip));
        }
        if end < hole.block_count {
            self.link(hole.slice(end, hole.block_count - end));
        }
    }

    fn link(&mut self, hole: Extent) {
        let key = (hole.segment, hole.start_block);
        self.by_start.insert(key, hole.block_count);
        self.by_length.insert((hole.block_count, key));
        self.score += square(hole.block_count);
    }

    fn unlink(&mut self, hole: Extent) {
        let key = (hole.segment, hole.start_block);
        let was_there =
            self.by_start.remove(&key).is_some() && self.by_length.remove(&(hole.block_count, key));
        assert!(was_there, "{hole} is not a hole");
        self.score -= square(hole.block_count);
    }
}

fn hole((segment, start): Key, len: u64) -> Extent {
    Extent::new(segment, start, len)
}

#[cfg(test)]
mod tests;
