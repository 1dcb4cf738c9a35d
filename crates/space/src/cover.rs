//! Sets of blocks, to ask what lies in them and what is left without them.

use larder_format::{Extent, SegmentIndex};
use std::collections::BTreeMap;

/// The blocks of extents, which may overlap.
#[derive(Debug, Default)]
pub struct Cover {
    /// By segment and first block: the block behind the last.
    runs: BTreeMap<(SegmentIndex, u64), u64>,
}

impl Cover {
    /// O(n log n).
    pub fn new(extents: impl IntoIterator<Item = Extent>) -> Cover {
        let mut sorted: Vec<Extent> = extents.into_iter().collect();
        sorted.sort_unstable_by_key(|extent| (extent.segment, extent.start_block));
        let mut runs: BTreeMap<(SegmentIndex, u64), u64> = BTreeMap::new();
        for extent in sorted {
            match runs.last_entry() {
                Some(mut last)
                    if last.key().0 == extent.segment && *last.get() >= extent.start_block =>
                {
                    let end = (*last.get()).max(extent.end_block());
                    last.insert(end);
                }
                _ => drop(runs.insert((extent.segment, extent.start_block), extent.end_block())),
            }
        }
        Cover { runs }
    }

    /// Whether a block of `extent` is among them. O(log n).
    pub fn overlaps(&self, extent: &Extent) -> bool {
        let end = (extent.segment, extent.end_block());
        let last = self.runs.range((extent.segment, 0)..end).next_back();
        last.is_some_and(|(_, &end)| end > extent.start_block)
    }

    /// The blocks that are not in `minus`. O(n log n).
    pub fn without(&self, minus: &Cover) -> Vec<Extent> {
        let mut left = Vec::new();
        for (&(segment, start), &end) in &self.runs {
            let first = minus
                .runs
                .range((segment, 0)..=(segment, start))
                .next_back();
            let first = first.map_or(start, |(&(_, first), _)| first);
            let mut at = start;
            for (&(_, from), &to) in minus.runs.range((segment, first)..(segment, end)) {
                if from > at {
                    left.push(Extent::new(segment, at, from - at));
                }
                at = at.max(to);
            }
            if at < end {
                left.push(Extent::new(segment, at, end - at));
            }
        }
        left
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    fn extents() -> impl Strategy<Value = Vec<Extent>> {
        let extent = (0..2_u32, 0..40_u64, 1..7_u64);
        let extent = extent
            .prop_map(|(segment, start, count)| Extent::new(SegmentIndex(segment), start, count));
        proptest::collection::vec(extent, 0..7)
    }

    fn blocks(extents: &[Extent]) -> BTreeSet<(u32, u64)> {
        let blocks = |one: &Extent| {
            let segment = one.segment.0;
            (one.start_block..one.end_block()).map(move |block| (segment, block))
        };
        extents.iter().flat_map(blocks).collect()
    }

    proptest! {
        /// Against a set of blocks.
        #[test]
        fn a_cover_is_the_set_of_its_blocks(one in extents(), other in extents()) {
            let (cover, minus) = (Cover::new(one.clone()), Cover::new(other.clone()));
            let left = cover.without(&minus);
            prop_assert_eq!(blocks(&left), &blocks(&one) - &blocks(&other));
            let count: u64 = left.iter().map(|extent| extent.block_count).sum();
            prop_assert_eq!(count as usize, blocks(&left).len());
            for extent in &one {
                let is_there = !blocks(&[*extent]).is_disjoint(&blocks(&other));
                prop_assert_eq!(minus.overlaps(extent), is_there);
            }
        }
    }
}
