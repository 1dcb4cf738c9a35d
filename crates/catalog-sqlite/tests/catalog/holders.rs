//! Who holds which blocks, against a map of single blocks: `SHARE-1`, `SHARE-2`, `SHARE-3`,
//! `SHARE-9`, `CATALOG-1`, `CATALOG-8`.

use crate::common::{MAIN, Rng, create};
use larder_catalog_sqlite::format::limits::AG_BLOCKS;
use larder_catalog_sqlite::format::{CommitSeq, Extent, Ino, SegmentIndex};
use larder_catalog_sqlite::{ChangeSet, RetentionHorizons, SharedRow, Sharing, SqliteCatalog};
use std::collections::{BTreeMap, BTreeSet};

/// The blocks of the model lie on both sides of the border of a group.
const FIRST: u64 = AG_BLOCKS - 30;
const BLOCKS: u64 = 60;

fn extent(start: u64, count: u64) -> Extent {
    Extent::new(SegmentIndex(0), start, count)
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Block {
    Held(BTreeSet<u64>),
    Retired(u64),
}

#[derive(Default, Clone)]
struct Model {
    blocks: BTreeMap<u64, Block>,
}

impl Model {
    fn is_live(&self, at: u64) -> bool {
        matches!(self.blocks.get(&at), Some(Block::Held(_)))
    }

    fn is_held(&self, at: u64, ino: u64) -> bool {
        matches!(self.blocks.get(&at), Some(Block::Held(by)) if by.contains(&ino))
    }

    /// The longest run from a random block on, of at most `max`, of which `is_right` says yes.
    fn run(&self, rng: &mut Rng, max: u64, is_right: impl Fn(u64) -> bool) -> Option<Extent> {
        let start = FIRST + rng.below(BLOCKS);
        let end = (start + 1 + rng.below(max)).min(FIRST + BLOCKS);
        let count = (start..end).take_while(|&at| is_right(at)).count() as u64;
        (count > 0).then(|| extent(start, count))
    }
}

fn sharing(place: Extent, ino: u64, retired_before: usize, as_of: Option<u64>) -> Sharing {
    Sharing {
        held: (place, MAIN, Ino(ino)),
        retired_before,
        as_of: as_of.map(CommitSeq),
    }
}

fn blocks(place: Extent) -> std::ops::Range<u64> {
    place.start_block..place.end_block()
}

/// What the catalog says, block by block; rows in one group, and with sharers that exist.
fn read(catalog: &SqliteCatalog) -> BTreeMap<u64, Block> {
    let (mut found, mut after) = (BTreeMap::new(), None);
    let mut sharers: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
    let mut last: Option<SharedRow> = None;
    loop {
        let rows = catalog.space().sharers(last, 2).unwrap();
        let Some(row) = rows.last() else { break };
        last = Some(*row);
        for row in rows {
            sharers.entry(row.start_block).or_default().push(row.ino.0);
        }
    }
    assert_eq!(catalog.space().has_shared().unwrap(), !sharers.is_empty());
    loop {
        let rows = catalog.space().extents(after, 3).unwrap();
        let Some(last) = rows.last() else { break };
        after = Some((last.extent.segment, last.extent.start_block));
        for row in rows {
            let others = sharers.remove(&row.extent.start_block).unwrap_or_default();
            assert_eq!(others.len() as u64, row.shared_count, "SHARE-1");
            let mut by: BTreeSet<u64> = others.into_iter().collect();
            assert!(by.insert(row.ino.0), "SHARE-1: the owner shares");
            let block = match row.retired_seq {
                Some(seq) => Block::Retired(seq.0),
                None => Block::Held(by),
            };
            for at in blocks(row.extent) {
                assert_eq!(found.insert(at, block.clone()), None, "CATALOG-1");
            }
        }
    }
    assert!(sharers.is_empty(), "SHARE-3: {sharers:?}");
    found
}

fn run(seed: u64) {
    let mut rng = Rng(seed);
    let (_dir, catalog) = create();
    catalog
        .commit(&ChangeSet {
            segments: vec![(SegmentIndex(0), 2 * AG_BLOCKS)],
            ..ChangeSet::default()
        })
        .unwrap();
    let mut model = Model::default();
    let mut counts = [0; 5];
    for round in 0..240 {
        let mut set = ChangeSet::default();
        let seq = catalog.tables().commit_seq().unwrap().0 + 1;
        let before = model.clone();
        for _ in 0..1 + rng.below(3) {
            let place = model.run(&mut rng, 14, |at| {
                !model.blocks.contains_key(&at) && !before.blocks.contains_key(&at)
            });
            let group_end = |at: u64| (at / AG_BLOCKS + 1) * AG_BLOCKS;
            if let Some(place) = place {
                let end = place.end_block().min(group_end(place.start_block));
                let place = extent(place.start_block, end - place.start_block);
                let ino = 2 + rng.below(3);
                set.allocated.push((place, MAIN, Ino(ino)));
                for at in blocks(place) {
                    model.blocks.insert(at, Block::Held([ino].into()));
                }
                counts[0] += 1;
            }
        }
        for _ in 0..rng.below(8) {
            let ino = 2 + rng.below(5);
            if rng.below(2) == 0 {
                // Of the present, or of a state of the past: what was retired since then lives
                // again.
                let as_of = (rng.below(2) == 0).then(|| rng.below(seq).min(rng.below(seq)));
                let can = |at| match model.blocks.get(&at) {
                    Some(Block::Held(by)) => !by.contains(&ino),
                    Some(Block::Retired(when)) => as_of.is_some_and(|as_of| as_of < *when),
                    None => false,
                };
                let Some(place) = model.run(&mut rng, 20, can) else {
                    continue;
                };
                set.shared
                    .push(sharing(place, ino, set.retired.len(), as_of));
                for at in blocks(place) {
                    match model.blocks.get_mut(&at) {
                        Some(Block::Held(by)) => drop(by.insert(ino)),
                        _ => {
                            model.blocks.insert(at, Block::Held([ino].into()));
                            counts[4] += 1;
                        }
                    }
                }
                counts[1] += 1;
            } else {
                let Some(place) = model.run(&mut rng, 20, |at| model.is_held(at, ino)) else {
                    continue;
                };
                set.retired.push((place, MAIN, Ino(ino)));
                for at in blocks(place) {
                    if let Some(Block::Held(by)) = model.blocks.get_mut(&at) {
                        by.remove(&ino);
                        if by.is_empty() {
                            model.blocks.insert(at, Block::Retired(seq));
                        }
                    }
                }
                counts[2] += 1;
            }
        }
        if rng.below(4) == 0 {
            // Low ones: what is reclaimed does not come back.
            let horizon = rng.below(seq).min(rng.below(seq));
            set.reclaim_horizon = Some(RetentionHorizons::even(CommitSeq(horizon)));
            model
                .blocks
                .retain(|_, block| !matches!(block, Block::Retired(at) if *at <= horizon));
        }
        let outcome = catalog.commit(&set).unwrap();
        let what = format!("seed {seed}, round {round}");
        // In the order in which it happened each block is what it was not before.
        let mut is_live: BTreeMap<u64, bool> = (before.blocks.keys())
            .map(|&at| (at, before.is_live(at)))
            .collect();
        let mut writer_lock = |places: &[Extent], to: bool| {
            for at in places.iter().copied().flat_map(blocks) {
                let was = is_live.insert(at, to);
                assert_eq!(
                    was.unwrap_or(true),
                    !to,
                    "{what}: block {at}: SHARE-2, SHARE-9"
                );
            }
        };
        let mut done = 0;
        for (place, before) in &outcome.revived {
            writer_lock(&outcome.retired[done..*before], false);
            writer_lock(&[*place], true);
            done = *before;
        }
        writer_lock(&outcome.retired[done..], false);
        for (at, is_live) in is_live {
            let is_there = model.blocks.contains_key(&at);
            assert!(!is_there || is_live == model.is_live(at), "{what}: SHARE-9");
        }
        assert_eq!(read(&catalog), model.blocks, "{what}: SHARE-1");
        let saved: usize = (model.blocks.values())
            .map(|block| match block {
                Block::Held(by) => by.len() - 1,
                Block::Retired(_) => 0,
            })
            .sum();
        assert_eq!(
            catalog.space().shared_blocks().unwrap(),
            saved as u64,
            "{what}"
        );
        for at in FIRST..FIRST + BLOCKS {
            let is_shared = matches!(model.blocks.get(&at), Some(Block::Held(by)) if by.len() > 1);
            assert_eq!(
                catalog.space().is_shared(&extent(at, 1)).unwrap(),
                is_shared,
                "{what}"
            );
        }
        let findings = catalog.survey().check().unwrap();
        let findings: Vec<_> = findings
            .iter()
            .filter(|finding| finding.contains("larder_ag") || finding.contains("SHARE"))
            .collect();
        assert!(findings.is_empty(), "{what}: {findings:?}");
        counts[3] += u64::from(catalog.space().has_shared().unwrap());
    }
    assert!(counts.iter().all(|&count| count > 15), "{counts:?}");
}

#[test]
fn holders_come_and_go() {
    for seed in 1..=6 {
        run(seed);
    }
}

#[test]
fn what_cannot_be_is_refused() {
    let (_dir, catalog) = create();
    let allocate = ChangeSet {
        segments: vec![(SegmentIndex(0), AG_BLOCKS)],
        allocated: vec![(extent(0, 8), MAIN, Ino(2)), (extent(8, 8), MAIN, Ino(3))],
        ..ChangeSet::default()
    };
    catalog.commit(&allocate).unwrap();
    let share = |start, count, ino| ChangeSet {
        shared: vec![sharing(extent(start, count), ino, 0, None)],
        ..ChangeSet::default()
    };
    let retire = |start, count, ino| ChangeSet {
        retired: vec![(extent(start, count), MAIN, Ino(ino))],
        ..ChangeSet::default()
    };
    catalog.commit(&share(2, 10, 4)).unwrap();
    for wrong in [
        share(0, 2, 2),   // Its owner.
        share(3, 1, 4),   // A sharer.
        share(12, 8, 5),  // Not all of it is allocated.
        retire(2, 2, 5),  // No holder.
        retire(0, 17, 2), // Not all of it is allocated.
    ] {
        let before = read(&catalog);
        let refused = catalog.commit(&wrong).unwrap_err();
        assert!(
            refused.to_string().contains("SHARE-1") || refused.to_string().contains("CATALOG-1"),
            "{refused}"
        );
        assert_eq!(read(&catalog), before);
    }
    let retired_seq = catalog.commit(&retire(0, 2, 2)).unwrap().seq.0;
    // Without a state that had it, or with one that did not.
    for as_of in [None, Some(retired_seq), Some(retired_seq + 1)] {
        let wrong = ChangeSet {
            shared: vec![sharing(extent(0, 2), 5, 0, as_of)],
            ..ChangeSet::default()
        };
        let refused = catalog.commit(&wrong).unwrap_err();
        assert!(refused.to_string().contains("SHARE-9"), "{refused}");
    }
    let again = ChangeSet {
        shared: vec![sharing(extent(1, 1), 5, 0, Some(retired_seq - 1))],
        ..ChangeSet::default()
    };
    let outcome = catalog.commit(&again).unwrap();
    assert_eq!(outcome.revived, [(extent(1, 1), 0)]);
    let found = read(&catalog);
    assert_eq!(found[&0], Block::Retired(retired_seq));
    assert_eq!(found[&1], Block::Held([5].into()));
    // A store that goes takes only what nobody else holds: here all is of one store.
    assert!(catalog.space().has_shared().unwrap());
}

#[test]
fn a_letting_go_that_is_told_twice_is_refused() {
    let (_dir, catalog) = create();
    let held = |ino| (extent(0, 8), MAIN, Ino(ino));
    let shared = ChangeSet {
        segments: vec![(SegmentIndex(0), AG_BLOCKS)],
        allocated: vec![held(2)],
        shared: vec![sharing(extent(0, 8), 3, 0, None)],
        ..ChangeSet::default()
    };
    catalog.commit(&shared).unwrap();
    let let_go = |retired| ChangeSet {
        retired,
        ..ChangeSet::default()
    };
    let refused = |retired| {
        let before = read(&catalog);
        let error = catalog.commit(&let_go(retired)).unwrap_err().to_string();
        assert!(error.contains("SHARE-1"), "{error}");
        assert_eq!(read(&catalog), before);
    };
    refused(vec![held(2), held(2)]);
    // Since then it is the sharer's alone: the whole row, and a part of it.
    catalog.commit(&let_go(vec![held(2)])).unwrap();
    refused(vec![held(2)]);
    refused(vec![(extent(2, 3), MAIN, Ino(2))]);
    catalog.commit(&let_go(vec![held(3)])).unwrap();
}
