//! Where older content is by now, through moves and overwrites in place, against blocks in memory
//! (`HISTORY-4`, `HISTORY-5`).
use crate::common;

use larder_catalog_sqlite::{ChangeSet, RetentionHorizons};
use larder_format::{CommitSeq, Extent, Ino, SegmentIndex, StoreId};
use std::collections::BTreeMap;

const BLOCKS: u64 = 400;
const INO: Ino = Ino(7);

/// xorshift64: the same run every time.
struct Rng(u64);

impl Rng {
    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// A content has a number. Where each is, and what holds each block.
#[derive(Default)]
struct Model {
    place_of: BTreeMap<u64, u64>,
    /// What an object names, by block.
    live: BTreeMap<u64, u64>,
    /// What only older states have, by block.
    retired: BTreeMap<u64, u64>,
    /// Moved away from, and by which commit: not free yet.
    left: Vec<(Extent, CommitSeq)>,
    next: u64,
}

impl Model {
    fn is_free(&self, block: u64) -> bool {
        let is_left = self
            .left
            .iter()
            .any(|(place, _)| (place.start_block..place.end_block()).contains(&block));
        block < BLOCKS
            && !is_left
            && !self.live.contains_key(&block)
            && !self.retired.contains_key(&block)
    }

    fn find_free(&self, rng: &mut Rng, count: u64) -> Option<Extent> {
        let from = rng.below(BLOCKS);
        let starts = (from..BLOCKS).chain(0..from);
        let mut fits = starts.filter(|&start| (start..start + count).all(|at| self.is_free(at)));
        fits.next().map(|start| extent(start, count))
    }

    fn find_live(&self, rng: &mut Rng, count: u64) -> Option<Extent> {
        let from = rng.below(BLOCKS);
        let starts = (from..BLOCKS).chain(0..from);
        let is_live = |at: u64| self.live.contains_key(&at);
        let mut fits = starts.filter(|&start| (start..start + count).all(is_live));
        fits.next().map(|start| extent(start, count))
    }

    fn blocks(place: Extent) -> std::ops::Range<u64> {
        place.start_block..place.end_block()
    }
}

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(SegmentIndex(0), start, count)
}

fn run(seed: u64) {
    let (_dir, catalog) = common::create();
    let mut rng = Rng(seed * 0x9e37_79b9 + 1);
    let mut model = Model::default();
    let mut states: Vec<(CommitSeq, BTreeMap<u64, u64>)> = Vec::new();
    let mut counts = [0; 4];
    let segments = ChangeSet {
        segments: vec![(SegmentIndex(0), BLOCKS)],
        ..ChangeSet::default()
    };
    catalog.commit(&segments).unwrap();
    for round in 0..120 {
        let mut set = ChangeSet {
            // What was left before is free with this commit.
            moved_away: model.left.clone(),
            now_ns: round,
            ..ChangeSet::default()
        };
        let freed: u64 = set
            .moved_away
            .iter()
            .map(|(place, _)| place.block_count)
            .sum();
        let mut left = Vec::new();
        let count = 1 + rng.below(6);
        let what = rng.below(4) as usize;
        match what {
            0 => {
                if let Some(place) = model.find_free(&mut rng, count) {
                    for block in Model::blocks(place) {
                        model.place_of.insert(model.next, block);
                        model.live.insert(block, model.next);
                        model.next += 1;
                    }
                    set.allocated.push((place, StoreId::MAIN, INO));
                    counts[0] += 1;
                }
            }
            1 => {
                if let Some(place) = model.find_live(&mut rng, count.min(2)) {
                    for block in Model::blocks(place) {
                        let content = model.live.remove(&block).unwrap();
                        model.retired.insert(block, content);
                    }
                    set.retired.push((place, StoreId::MAIN, INO));
                    counts[1] += 1;
                }
            }
            2 => {
                let from = model.find_live(&mut rng, count);
                let to = model.find_free(&mut rng, count);
                if let (Some(from), Some(to)) = (from, to) {
                    for (old, new) in Model::blocks(from).zip(Model::blocks(to)) {
                        let content = model.live.remove(&old).unwrap();
                        model.live.insert(new, content);
                        model.place_of.insert(content, new);
                    }
                    set.allocated.push((to, StoreId::MAIN, INO));
                    set.retired.push((from, StoreId::MAIN, INO));
                    set.moves.push((from, to));
                    left.push(from);
                    counts[2] += 1;
                }
            }
            _ => {
                let target = model.find_live(&mut rng, count);
                let copy = model.find_free(&mut rng, count);
                if let (Some(target), Some(copy)) = (target, copy) {
                    for (old, new) in Model::blocks(target).zip(Model::blocks(copy)) {
                        let content = model.live.remove(&old).unwrap();
                        model.place_of.insert(content, new);
                        model.retired.insert(new, content);
                        model.place_of.insert(model.next, old);
                        model.live.insert(old, model.next);
                        model.next += 1;
                    }
                    set.allocated.push((copy, StoreId::MAIN, INO));
                    set.retired.push((copy, StoreId::MAIN, INO));
                    set.pre_images.push((target, copy));
                    counts[3] += 1;
                }
            }
        }
        let outcome = catalog.commit(&set).unwrap();
        let reclaimed: u64 = outcome
            .reclaimed
            .iter()
            .map(|place| place.block_count)
            .sum();
        assert_eq!(reclaimed, freed, "seed {seed}, round {round}: HISTORY-5");
        model.left = left.into_iter().map(|place| (place, outcome.seq)).collect();
        states.push((outcome.seq, model.live.clone()));
        for (seq, live) in &states {
            for length in [1, 3] {
                for &start in live.keys() {
                    let asked = extent(start, length);
                    let places = catalog.past().places_at(&asked, *seq).unwrap();
                    let mut now: BTreeMap<u64, u64> =
                        Model::blocks(asked).map(|at| (at, at)).collect();
                    for (part, place) in places {
                        now.extend(Model::blocks(part).zip(Model::blocks(place)));
                    }
                    for (at, place) in now {
                        if let Some(content) = live.get(&at) {
                            assert_eq!(
                                model.place_of[content], place,
                                "seed {seed}, round {round}: block {at} after commit {seq}"
                            );
                        }
                    }
                }
            }
            if round % 10 != 0 {
                break; // The oldest state at least; all of them now and then.
            }
        }
    }
    assert!(counts.iter().all(|&count| count > 5), "{counts:?}");
}

#[test]
fn older_content_is_found_where_it_is_now() {
    for seed in 1..=8 {
        run(seed);
    }
}

/// Who names a place that was reclaimed meanwhile, and is used again, takes nothing away.
#[test]
fn what_was_reclaimed_and_used_again_stays() {
    let (_dir, catalog) = common::create();
    let place = extent(0, 4);
    let held = |set: ChangeSet| catalog.commit(&set).unwrap();
    held(ChangeSet {
        segments: vec![(SegmentIndex(0), BLOCKS)],
        allocated: vec![(place, StoreId::MAIN, INO)],
        ..ChangeSet::default()
    });
    let retired = held(ChangeSet {
        retired: vec![(place, StoreId::MAIN, INO)],
        ..ChangeSet::default()
    });
    // Another session reclaims it, and its content is used and retired again.
    held(ChangeSet {
        reclaim_horizon: Some(RetentionHorizons::even(retired.seq)),
        ..ChangeSet::default()
    });
    held(ChangeSet {
        allocated: vec![(place, StoreId::MAIN, INO)],
        ..ChangeSet::default()
    });
    let late = ChangeSet {
        moved_away: vec![(place, retired.seq)],
        ..ChangeSet::default()
    };
    assert_eq!(held(late.clone()).reclaimed, []);
    held(ChangeSet {
        retired: vec![(place, StoreId::MAIN, INO)],
        ..ChangeSet::default()
    });
    assert_eq!(held(late).reclaimed, []);
    assert_eq!(common::retired_blocks(&catalog), 4, "HISTORY-5");
}
