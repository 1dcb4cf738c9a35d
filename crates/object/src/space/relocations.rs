//! The moves of one group: where content lies now that a commit has named elsewhere.
//!
//! Within one group content may move more than once; the places between were in no commit, and
//! history has nothing to say of them (`HISTORY-5`).

use crate::space::Moves;
use larder_space::Cover;
use larder_space::format::Extent;

impl Moves {
    /// The content of `from` lies at `to` now, as many blocks. O(log moves) for each part of
    /// another length.
    pub fn add(&mut self, from: Extent, to: Extent) {
        debug_assert_eq!(from.block_count, to.block_count);
        let before = self
            .by_place
            .range((from.segment, 0)..(from.segment, from.end_block()))
            .rev()
            .map(|(_, known)| *known)
            .take_while(|(place, _)| place.overlaps(&from));
        let mut before: Vec<(Extent, Extent)> = before.collect();
        before.reverse();
        let mut at = from.start_block;
        for (place, origin) in before {
            self.by_place.remove(&(place.segment, place.start_block));
            let start = place.start_block.max(from.start_block);
            let end = place.end_block().min(from.end_block());
            let part = |from: u64, to: u64| {
                let skip = from - place.start_block;
                (place.slice(skip, to - from), origin.slice(skip, to - from))
            };
            if place.start_block < start {
                self.put(part(place.start_block, start));
            }
            if at < start {
                let (skip, count) = (at - from.start_block, start - at);
                self.put((to.slice(skip, count), from.slice(skip, count)));
            }
            let moved = to.slice(start - from.start_block, end - start);
            self.put((moved, part(start, end).1));
            if end < place.end_block() {
                self.put(part(end, place.end_block()));
            }
            at = end;
        }
        if at < from.end_block() {
            let (skip, count) = (at - from.start_block, from.end_block() - at);
            self.put((to.slice(skip, count), from.slice(skip, count)));
        }
    }

    /// What was moved to these places lies where it was.
    pub fn forget(&mut self, places: &Cover) {
        (self.by_place).retain(|_, (at, _)| !places.overlaps(at));
    }

    /// All of them: (committed place, present place).
    pub fn into_pairs(self) -> Vec<(Extent, Extent)> {
        let moves = self.by_place.into_values();
        moves.map(|(place, origin)| (origin, place)).collect()
    }

    fn put(&mut self, (place, origin): (Extent, Extent)) {
        let key = (place.segment, place.start_block);
        self.by_place.insert(key, (place, origin));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_space::format::SegmentIndex;
    use std::collections::BTreeMap;

    /// Against a map of single blocks.
    #[test]
    fn what_moves_twice_comes_from_where_it_was_committed() {
        let extent = |start, count| Extent::new(SegmentIndex(0), start, count);
        let mut moves = Moves::default();
        let mut model: BTreeMap<u64, u64> = BTreeMap::new();
        let steps = [
            (extent(10, 8), extent(100, 8)),
            (extent(30, 4), extent(108, 4)),
            (extent(104, 6), extent(200, 6)),
            (extent(98, 4), extent(300, 4)),
            (extent(199, 3), extent(400, 3)),
            (extent(0, 2), extent(500, 2)),
        ];
        for (from, to) in steps {
            let origins: Vec<u64> = (from.start_block..from.end_block())
                .map(|at| model.remove(&at).unwrap_or(at))
                .collect();
            for (skip, origin) in (0..).zip(origins) {
                model.insert(to.start_block + skip, origin);
            }
            moves.add(from, to);
        }
        let mut blocks = BTreeMap::new();
        for (origin, place) in moves.into_pairs() {
            for skip in 0..place.block_count {
                let known = blocks.insert(place.start_block + skip, origin.start_block + skip);
                assert_eq!(known, None, "{place}");
            }
        }
        assert_eq!(blocks, model, "HISTORY-5");
    }
}
