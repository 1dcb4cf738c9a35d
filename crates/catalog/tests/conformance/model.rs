//! Random change sets against plain maps: after every commit, and after reopening, each catalog
//! says what the maps say. A failure prints the seed.

use crate::common;
use crate::common::{KINDS, Kind, MAIN, Place, inode};
use larder_catalog::format::limits::AG_BLOCKS;
use larder_catalog::format::{CommitSeq, Extent, FileKind, Ino, Name, SegmentIndex};
use larder_catalog::{
    AttrMask, Catalog, CatalogError, ChangeSet, CommitOutcome, ContentRow, InodeChange, InodeRow,
    RetentionHorizons, dirent_order,
};
use proptest::prelude::*;
use proptest::test_runner::{RngAlgorithm, TestRng};
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet};

/// The blocks that the model uses: around a group boundary.
const FIRST_BLOCK: u64 = AG_BLOCKS - 60;
const BLOCKS: u64 = 120;
/// How long a catalog that keeps history keeps it.
const HISTORY_NS: i64 = 3_600_000_000_000;

#[derive(Clone, Default, PartialEq, Debug)]
struct Model {
    seq: u64,
    inodes: BTreeMap<u64, InodeRow>,
    dirents: BTreeMap<(u64, Name), u64>,
    contents: BTreeMap<u64, ContentRow>,
    map_pages: BTreeMap<(u64, u64), Vec<u8>>,
    xattrs: BTreeMap<(u64, Vec<u8>), Vec<u8>>,
    /// Holder, and since when the block is retired, of every allocated block.
    blocks: BTreeMap<(u32, u64), (u64, Option<u64>)>,
    next_ino: u64,
    /// What the catalog's counter was when last compared.
    seen_next_ino: Cell<u64>,
}

struct Dice(TestRng);

impl Dice {
    fn below(&mut self, end: u64) -> u64 {
        self.0.next_u64() % end
    }
    fn one_in(&mut self, count: u64) -> bool {
        self.below(count) == 0
    }
    fn pick<T: Clone>(&mut self, from: &[T]) -> Option<T> {
        (!from.is_empty()).then(|| from[self.below(from.len() as u64) as usize].clone())
    }
    fn name(&mut self) -> Name {
        let alphabet: [&[u8]; 6] = [b"a", b"b", b"\xff", "\u{e9}".as_bytes(), b"\xc3", b"~"];
        let count = 1 + self.below(3);
        let bytes: Vec<u8> = (0..count)
            .flat_map(|_| alphabet[self.below(6) as usize].to_vec())
            .collect();
        common::name(bytes)
    }
}

/// Makes a change set that fits `model`, and applies it there.
fn step(model: &mut Model, dice: &mut Dice) -> (ChangeSet, CommitOutcome) {
    let mut changes = ChangeSet::default();
    model.seq += 1;
    let mut touched = BTreeSet::new();
    for _ in 0..dice.below(6) {
        let live: Vec<u64> = model
            .inodes
            .keys()
            .copied()
            .filter(|ino| !touched.contains(ino))
            .collect();
        match (dice.below(4), dice.pick(&live)) {
            (0, Some(ino)) => {
                touched.insert(ino);
                model.inodes.remove(&ino);
                model.contents.remove(&ino);
                model.map_pages.retain(|key, _| key.0 != ino);
                model.xattrs.retain(|key, _| key.0 != ino);
                changes.inodes.push((MAIN, InodeChange::Delete(Ino(ino))));
            }
            (1, Some(ino)) => {
                touched.insert(ino);
                let mut flag = || dice.one_in(2);
                let mask = AttrMask {
                    mode: flag(),
                    owner: flag(),
                    nlink: flag(),
                    size: flag(),
                    atime: flag(),
                    mtime: flag(),
                    ctime: flag(),
                    flags: flag(),
                };
                let n = dice.below(4000);
                let new = InodeRow {
                    mode: n as u32,
                    uid: 1,
                    gid: n as u32,
                    nlink: 3,
                    size_bytes: n,
                    block_count: n / 2,
                    atime_ns: -1,
                    mtime_ns: n as i64,
                    ctime_ns: i64::MAX,
                    ..inode(ino, FileKind::File)
                };
                let row = model.inodes.get_mut(&ino).unwrap();
                if mask.mode {
                    row.mode = new.mode
                }
                if mask.owner {
                    (row.uid, row.gid) = (new.uid, new.gid)
                }
                if mask.nlink {
                    row.nlink = new.nlink
                }
                if mask.size {
                    (row.size_bytes, row.block_count) = (new.size_bytes, new.block_count)
                }
                if mask.atime {
                    row.atime_ns = new.atime_ns
                }
                if mask.mtime {
                    row.mtime_ns = new.mtime_ns
                }
                if mask.ctime {
                    row.ctime_ns = new.ctime_ns
                }
                changes.inodes.push((MAIN, InodeChange::Update(new, mask)));
            }
            _ => {
                let ino = model.next_ino + dice.below(2);
                model.next_ino = ino + 1;
                let row = inode(ino, FileKind::ALL[dice.below(7) as usize]);
                model.inodes.insert(ino, row.clone());
                changes.inodes.push((MAIN, InodeChange::Insert(row)));
            }
        }
    }
    let live: Vec<u64> = model.inodes.keys().copied().collect();
    let mut named = BTreeSet::new();
    for _ in 0..dice.below(6) {
        let key = (1 + dice.below(2), dice.name());
        if !named.insert(key.clone()) {
            continue;
        }
        let ino = dice.pick(&live).filter(|_| !dice.one_in(3));
        match ino {
            Some(ino) => model.dirents.insert(key.clone(), ino),
            None => model.dirents.remove(&key),
        };
        changes
            .dirents
            .push((MAIN, Ino(key.0), key.1, ino.map(Ino)));
    }
    // The model keeps no entry of a deleted inode: reads report that as damage.
    for ((parent, name), _) in model.dirents.extract_if(.., |_, ino| !live.contains(ino)) {
        if named.insert((parent, name.clone())) {
            changes.dirents.push((MAIN, Ino(parent), name, None));
        } else {
            panic!("a live inode was picked");
        }
    }
    if let Some(ino) = dice.pick(&live) {
        let content = match dice.below(3) {
            0 => None,
            1 => Some(ContentRow::Inline(vec![
                ino as u8;
                dice.below(2049) as usize
            ])),
            _ => Some(ContentRow::Target(vec![
                0xff;
                1 + dice.below(4095) as usize
            ])),
        };
        match &content {
            Some(content) => model.contents.insert(ino, content.clone()),
            None => model.contents.remove(&ino),
        };
        changes.contents.push((MAIN, Ino(ino), content));
        if dice.one_in(2) {
            let cut = dice.below(5);
            model.map_pages.retain(|key, _| key.0 != ino || key.1 < cut);
            changes.map_cuts.push((MAIN, Ino(ino), cut));
        }
        for page in 0..dice.below(5) {
            let runs = (!dice.one_in(3)).then(|| vec![page as u8; 1 + dice.below(5000) as usize]);
            match &runs {
                Some(runs) => model.map_pages.insert((ino, page), runs.clone()),
                None => model.map_pages.remove(&(ino, page)),
            };
            changes.map_pages.push((MAIN, Ino(ino), page, runs));
        }
        let name = dice.name().as_bytes().to_vec();
        let value = (!dice.one_in(3)).then(|| vec![7; dice.below(20) as usize]);
        match &value {
            Some(value) => model.xattrs.insert((ino, name.clone()), value.clone()),
            None => model.xattrs.remove(&(ino, name.clone())),
        };
        changes.xattrs.push((MAIN, Ino(ino), name, value));
    }
    let reclaimed = space(model, dice, &mut changes);
    let outcome = CommitOutcome {
        seq: CommitSeq(model.seq),
        retired: Vec::new(),
        revived: Vec::new(),
        reclaimed,
        reclaim_horizon: changes.reclaim_horizon.clone(),
        has_more: false,
        redo_blocks_change: 0,
    };
    (changes, outcome)
}

/// Allocates free blocks, retires live ones (whole extents and parts), reclaims retired ones.
fn space(model: &mut Model, dice: &mut Dice, changes: &mut ChangeSet) -> Vec<Extent> {
    for _ in 0..dice.below(5) {
        let segment = dice.below(2) as u32;
        let start = FIRST_BLOCK + dice.below(BLOCKS);
        let group_end = (start / AG_BLOCKS + 1) * AG_BLOCKS;
        let end = (start + 1 + dice.below(12))
            .min(FIRST_BLOCK + BLOCKS)
            .min(group_end);
        let count = (start..end)
            .take_while(|&block| !model.blocks.contains_key(&(segment, block)))
            .count() as u64;
        if count > 0 {
            let ino = 2 + dice.below(3);
            changes.allocated.push((
                Extent::new(SegmentIndex(segment), start, count),
                MAIN,
                Ino(ino),
            ));
            model
                .blocks
                .extend((start..start + count).map(|block| ((segment, block), (ino, None))));
        }
    }
    for _ in 0..dice.below(4) {
        let segment = dice.below(2) as u32;
        let start = FIRST_BLOCK + dice.below(BLOCKS);
        // Of one holder: who lets go must be who holds (SHARE-1).
        let holder = |block: u64| match model.blocks.get(&(segment, block)) {
            Some((ino, None)) => Some(*ino),
            _ => None,
        };
        let Some(ino) = holder(start) else { continue };
        let count = (start..start + 1 + dice.below(20))
            .take_while(|&block| holder(block) == Some(ino))
            .count() as u64;
        let extent = Extent::new(SegmentIndex(segment), start, count);
        changes.retired.push((extent, MAIN, Ino(ino)));
        for block in start..start + count {
            model.blocks.get_mut(&(segment, block)).unwrap().1 = Some(model.seq);
        }
    }
    let mut freed = BTreeSet::new();
    if dice.one_in(3) {
        let horizon = dice.below(model.seq + 1);
        changes.reclaim_horizon = Some(RetentionHorizons::even(CommitSeq(horizon)));
        model.blocks.retain(|&place, held| {
            let is_kept = held.1.is_none_or(|seq| seq > horizon);
            if !is_kept {
                freed.insert(place);
            }
            is_kept
        });
    }
    // One extent per block; the test compares block by block.
    freed
        .into_iter()
        .map(|(segment, block)| Extent::new(SegmentIndex(segment), block, 1))
        .collect()
}

fn blocks_of(extents: &[Extent]) -> Vec<Extent> {
    extents
        .iter()
        .flat_map(|extent| (0..extent.block_count).map(|at| extent.slice(at, 1)))
        .collect()
}

/// Reads everything back through the interface, in small pages.
fn compare(catalog: &Catalog, model: &Model) -> Result<(), TestCaseError> {
    prop_assert_eq!(catalog.tables().commit_seq().unwrap(), CommitSeq(model.seq));
    // Raised in strides, in the commit that needs it.
    let next_ino = catalog.stores().next_ino(MAIN).unwrap().0;
    prop_assert!(
        (model.next_ino..model.next_ino + 64).contains(&next_ino),
        "CATALOG-4"
    );
    let seen = model.seen_next_ino.replace(next_ino);
    prop_assert!(next_ino >= seen, "CATALOG-4: {next_ino} after {seen}");
    for ino in 2..model.next_ino {
        let id = Ino(ino);
        prop_assert_eq!(
            catalog.tables().inode(MAIN, id).unwrap(),
            model.inodes.get(&ino).cloned()
        );
        prop_assert_eq!(
            catalog.tables().content(MAIN, id).unwrap(),
            model.contents.get(&ino).cloned()
        );
        let pages = catalog.tables().map_pages(MAIN, id, 0, 100).unwrap();
        let expected: Vec<_> = model
            .map_pages
            .range((ino, 0)..(ino + 1, 0))
            .map(|(key, runs)| (key.1, runs.clone()))
            .collect();
        prop_assert_eq!(pages, expected);
        let xattrs: BTreeMap<_, _> = catalog
            .tables()
            .xattrs(MAIN, id)
            .unwrap()
            .into_iter()
            .collect();
        let expected: BTreeMap<_, _> = model
            .xattrs
            .iter()
            .filter(|(key, _)| key.0 == ino)
            .map(|(key, value)| (key.1.clone(), value.clone()))
            .collect();
        prop_assert_eq!(xattrs, expected);
        let parents: BTreeSet<_> = catalog
            .tables()
            .parents(MAIN, id)
            .unwrap()
            .into_iter()
            .collect();
        let expected: BTreeSet<_> = model
            .dirents
            .iter()
            .filter(|(_, named)| **named == ino)
            .map(|(key, _)| (Ino(key.0), key.1.clone()))
            .collect();
        prop_assert_eq!(parents, expected);
    }
    for parent in [1, 2] {
        let mut expected: Vec<(Name, u64)> = model
            .dirents
            .iter()
            .filter(|(key, _)| key.0 == parent)
            .map(|(key, ino)| (key.1.clone(), *ino))
            .collect();
        expected.sort_by(|a, b| dirent_order(&a.0, &b.0));
        let mut found: Vec<(Name, u64)> = Vec::new();
        loop {
            let page = catalog
                .tables()
                .dirents(MAIN, Ino(parent), found.last().map(|last| &last.0), 3)
                .unwrap();
            if page.is_empty() {
                break;
            }
            found.extend(page.into_iter().map(|row| (row.name, row.ino.0)));
        }
        prop_assert_eq!(found, expected, "CATALOG-6");
    }
    let mut blocks = BTreeMap::new();
    let mut after = None;
    loop {
        let page = catalog.space().extents(after, 7).unwrap();
        let Some(last) = page.last() else { break };
        after = Some((last.extent.segment, last.extent.start_block));
        for row in page {
            for block in row.extent.start_block..row.extent.end_block() {
                let held = (row.ino.0, row.retired_seq.map(|seq| seq.0));
                prop_assert_eq!(
                    blocks.insert((row.extent.segment.0, block), held),
                    None,
                    "CATALOG-1"
                );
            }
        }
    }
    prop_assert_eq!(&blocks, &model.blocks, "CATALOG-1");
    let retired = model
        .blocks
        .values()
        .filter(|held| held.1.is_some())
        .count() as u64;
    let ever = CommitSeq(u64::MAX >> 1);
    prop_assert_eq!(catalog.space().retired_blocks(ever).unwrap(), retired);
    let mut counts = BTreeMap::new();
    for ((segment, block), (_, retired_seq)) in &model.blocks {
        let (used, retired) = counts
            .entry((*segment, block / AG_BLOCKS))
            .or_insert((0, 0));
        *used += 1;
        *retired += u64::from(retired_seq.is_some());
    }
    let summaries = catalog
        .space()
        .ags_changed_since(CommitSeq(0))
        .unwrap()
        .into_iter();
    let summaries: BTreeMap<_, _> = summaries
        .filter(|row| row.used_blocks > 0)
        .map(|row| {
            (
                (row.segment.0, row.ag_index),
                (row.used_blocks, row.retired_blocks),
            )
        })
        .collect();
    prop_assert_eq!(summaries, counts, "CATALOG-8");
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig {
        cases: 24,
        max_shrink_iters: 0,
        ..ProptestConfig::default()
    })]

    #[test]
    fn every_catalog_behaves_like_maps(seed: [u8; 32]) {
        for kind in KINDS {
            behaves_like_maps(kind, &seed)?;
        }
    }
}

fn behaves_like_maps(kind: Kind, seed: &[u8]) -> Result<(), TestCaseError> {
    let (place, mut catalog) = Place::create(kind, HISTORY_NS);
    let mut dice = Dice(TestRng::from_seed(RngAlgorithm::ChaCha, seed));
    let mut model = Model {
        next_ino: 2,
        ..Model::default()
    };
    for _ in 0..25 {
        let (changes, expected) = step(&mut model, &mut dice);
        if dice.one_in(4) {
            // The same set, spoilt at its end, must change nothing (CATALOG-2).
            let mut spoilt = changes.clone();
            let nowhere = Extent::new(SegmentIndex(9), 0, 1);
            spoilt.retired.push((nowhere, MAIN, Ino(2)));
            let refused = catalog.commit(&spoilt);
            prop_assert!(
                matches!(refused, Err(CatalogError::Corrupt { .. })),
                "CATALOG-2: {:?}",
                refused
            );
        }
        let outcome = catalog.commit(&changes).unwrap();
        prop_assert_eq!(outcome.seq, expected.seq);
        prop_assert_eq!(blocks_of(&outcome.reclaimed), expected.reclaimed);
        if dice.one_in(8) {
            compare(&catalog, &model)?;
            catalog = place.reopen(catalog);
        }
    }
    compare(&catalog, &model)
}
