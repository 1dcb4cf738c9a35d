//! Compaction: fragmented objects become whole, no byte changes, within the credit, and it ends.

use crate::common::*;
use larder::{Database, DatabaseOptions, DefragOptions, DefragReport, NodeId, copy_range};
use larder_object::EngineOptions;
use larder_testkit::Rng;
use std::collections::BTreeMap;
use std::path::Path;

const R: NodeId = NodeId::ROOT;

/// Without a background: what happens repeats exactly.
fn open_quiet(dir: &Path) -> Database {
    let engine = EngineOptions {
        has_background: false,
        ..EngineOptions::default()
    };
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

fn defrag(db: &Database, is_dry: bool) -> (DefragReport, Vec<String>) {
    let mut paths = Vec::new();
    let report = db
        .maintenance()
        .defrag(&[], &DefragOptions { is_dry }, &mut |object| {
            assert!(object.fragments_after <= object.fragments_before);
            paths.push(object.path.clone());
        })
        .unwrap();
    (report, paths)
}

/// Length of the files that are spread: more than what is held back in one piece.
const BIG: usize = 3 << 20;

/// A database of 64 MiB whose free space was combed, with `count` (≤ 7) large files spread over the
/// gaps, and room again.
fn fragmented(db: &Database, count: u64) -> Vec<(NodeId, Vec<u8>)> {
    let teeth = 96 * (count + 1);
    for tooth in 0..teeth {
        put(db, R, &format!("t{tooth}"), &pattern(64 << 10, tooth));
    }
    db.sync().unwrap();
    // All that is left, so that nothing but the gaps is free.
    let fill = db.maintenance().space().unwrap().available_bytes as usize - (64 << 10);
    put(db, R, "fill", &pattern(fill, 99));
    db.sync().unwrap();
    for tooth in (0..teeth).step_by(2) {
        db.nodes().unlink(R, &name(&format!("t{tooth}"))).unwrap();
    }
    db.sync().unwrap();
    let mut files = Vec::new();
    for file in 0..count {
        let bytes = pattern(BIG, 1000 + file);
        files.push((put(db, R, &format!("big{file}"), &bytes), bytes));
        db.sync().unwrap();
    }
    db.nodes().unlink(R, &name("fill")).unwrap();
    db.sync().unwrap();
    files
}

fn times(db: &Database, node: NodeId) -> (i64, i64, i64, u64) {
    let attr = db.nodes().metadata(node).unwrap();
    (attr.mtime_ns, attr.ctime_ns, attr.atime_ns, attr.size_bytes)
}

#[test]
fn defrag_makes_every_object_whole() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(64 << 20)).close().unwrap();
    let db = open_quiet(dir.path());
    let files = fragmented(&db, 6);
    let before = db.maintenance().frag().unwrap();
    assert!(
        before.fragments_per_object_max >= 4,
        "nothing is fragmented: {before:?}"
    );
    let seen: Vec<_> = files.iter().map(|(node, _)| times(&db, *node)).collect();
    let (dry, _) = defrag(&db, true);
    assert_eq!(
        db.maintenance().frag().unwrap(),
        before,
        "a dry run moves nothing"
    );
    assert!(dry.is_dry && dry.fragmented_count > 0, "{dry:?}");
    let (report, paths) = defrag(&db, false);
    println!("{report:?}");
    assert!(
        paths.iter().any(|path| path.starts_with("/big")),
        "{paths:?}"
    );
    assert_eq!(
        report.fragments_after, report.fragmented_count,
        "{report:?}"
    );
    let after = db.maintenance().frag().unwrap();
    assert_eq!(after.fragments_per_object_max, 1, "{report:?}");
    assert_eq!(
        after.storage_age, before.storage_age,
        "a move is no rewrite"
    );
    for ((node, bytes), seen) in files.iter().zip(seen) {
        assert!(content(&db, *node) == *bytes, "COMPACT-3");
        assert_eq!(times(&db, *node), seen, "a move changes no attribute");
    }
    assert_clean(&db);
    // Nothing is left to gain.
    let ends = (0..10).any(|_| {
        let (again, _) = defrag(&db, false);
        assert_eq!(again.fragmented_count, 0);
        again.moved_bytes == 0
    });
    assert!(ends, "COMPACT-6");
    db.close().unwrap();
    let db = open_quiet(dir.path());
    assert_eq!(db.maintenance().frag().unwrap().fragments_per_object_max, 1);
    assert_clean(&db);
}

#[test]
fn only_what_is_named_is_moved() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(64 << 20)).close().unwrap();
    let db = open_quiet(dir.path());
    let files = fragmented(&db, 4);
    let mut seen = 0;
    let report = db
        .maintenance()
        .defrag(&[files[0].0], &DefragOptions::default(), &mut |object| {
            assert_eq!(object.path, "/big0");
            seen += 1;
        })
        .unwrap();
    assert_eq!((seen, report.object_count, report.healed_count), (1, 1, 1));
    assert_eq!(report.moved_bytes, BIG as u64);
    assert!(db.maintenance().frag().unwrap().fragments_per_object_max > 1);
}

#[test]
fn the_background_keeps_to_its_credit_and_ends() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(64 << 20)).close().unwrap();
    let db = open_quiet(dir.path());
    fragmented(&db, 6);
    let before = db.maintenance().frag().unwrap().fragment_count;
    let credit = db.maintenance().compact_credit_bytes();
    assert!(credit > 0);
    println!("credit {credit}, fragments {before}");
    let mut moved = 0;
    for _ in 0..400 {
        let left = db.maintenance().compact_credit_bytes();
        let step = db.maintenance().compact_step().unwrap();
        assert!(step.moved_bytes <= left, "COMPACT-5");
        assert_eq!(
            db.maintenance().compact_credit_bytes(),
            left - step.moved_bytes
        );
        moved += step.moved_bytes;
        db.sync().unwrap();
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert!(
        moved > 0 && moved <= credit,
        "COMPACT-5: {moved} of {credit}"
    );
    assert!(db.maintenance().frag().unwrap().fragment_count < before);
    assert_eq!(
        db.maintenance().compact_step().unwrap().moved_bytes,
        0,
        "COMPACT-6"
    );
    assert_clean(&db);
}

/// `SHARE-1`. The catalog does not know yet that the first one holds the place it was moved to.
#[test]
fn what_was_moved_and_shared_is_not_shared_back_in_the_same_group() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(64 << 20)).close().unwrap();
    let db = open_quiet(dir.path());
    let files = fragmented(&db, 4);
    let open = |node| db.nodes().open(node, true).unwrap();
    let copy = |from, to| copy_range((&*open(from), 0), (&*open(to), 0), BIG as u64).unwrap();
    let other = put(&db, R, "other", b"");
    // From here on something may be shared.
    assert_eq!(copy(files[0].0, other), BIG as u64);
    db.sync().unwrap();
    let is_healed = (0..400).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(5));
        db.maintenance().compact_step().unwrap().moved_bytes >= BIG as u64
    });
    assert!(is_healed);
    for (node, _) in &files[1..] {
        assert_eq!(copy(*node, other), BIG as u64);
        assert_eq!(copy(other, *node), BIG as u64);
    }
    db.sync().unwrap();
    for (node, bytes) in &files {
        assert!(content(&db, *node) == *bytes);
    }
    assert!(content(&db, other) == files[3].1);
    assert_clean(&db);
}

/// Content against a model while it is rewritten, moved, and reopened.
#[test]
fn no_byte_changes_under_moves() {
    for seed in 0..4 {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), Some(16 << 20)).close().unwrap();
        let mut db = open_quiet(dir.path());
        let mut rng = Rng::new(seed);
        let mut model: BTreeMap<u64, (NodeId, Vec<u8>)> = BTreeMap::new();
        for round in 0..400_u64 {
            let key = rng.below(40);
            match rng.below(10) {
                0..4 => {
                    if model.remove(&key).is_some() {
                        db.nodes().unlink(R, &name(&format!("f{key}"))).unwrap();
                    }
                    let bytes = pattern(rng.below(500_000) as usize, round);
                    match put_or_full(&db, &format!("f{key}"), &bytes) {
                        Some(node) => drop(model.insert(key, (node, bytes))),
                        None => db.sync().unwrap(),
                    }
                }
                4..6 => {
                    if let Some((node, bytes)) = model.get_mut(&key).filter(|(_, b)| !b.is_empty())
                    {
                        let at = rng.below(bytes.len() as u64) as usize;
                        let piece = pattern((bytes.len() - at).min(30_000), round);
                        if db
                            .nodes()
                            .open(*node, true)
                            .unwrap()
                            .write_at(at as u64, &piece)
                            .is_ok()
                        {
                            bytes[at..at + piece.len()].copy_from_slice(&piece);
                        }
                    }
                }
                6 => {
                    if let Some((node, bytes)) = model.get_mut(&key) {
                        let len = rng.below(bytes.len() as u64 + 1);
                        db.nodes().open(*node, true).unwrap().set_len(len).unwrap();
                        bytes.truncate(len as usize);
                    }
                }
                7 => drop(db.maintenance().compact_step().unwrap()),
                8 if rng.chance(30) => drop(defrag(&db, rng.chance(20))),
                8 => db.sync().unwrap(),
                _ => {
                    if let Some((node, bytes)) = model.get(&key) {
                        assert!(content(&db, *node) == *bytes, "seed {seed}, round {round}");
                    }
                }
            }
            if round % 150 == 149 {
                db.close().unwrap();
                db = open_quiet(dir.path());
            }
        }
        for (node, bytes) in model.values() {
            assert!(content(&db, *node) == *bytes, "COMPACT-3: seed {seed}");
        }
        assert_clean(&db);
    }
}

fn put_or_full(db: &Database, text: &str, bytes: &[u8]) -> Option<NodeId> {
    let node = make(db, R, text);
    match db.nodes().open(node, true).unwrap().write_at(0, bytes) {
        Ok(()) => Some(node),
        Err(error) => {
            assert_eq!(error.kind(), larder::ErrorKind::NoSpace, "{error}");
            db.nodes().unlink(R, &name(text)).unwrap();
            None
        }
    }
}

/// A writer and a reader go on while everything is moved, in another session too.
#[test]
fn readers_and_writers_go_on_beside_a_defrag() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(64 << 20));
    let files = fragmented(&db, 6);
    let other = open(dir.path());
    std::thread::scope(|scope| {
        let defragging = scope.spawn(|| defrag(&other, false).0);
        let mut writes = 0;
        while !defragging.is_finished() || writes < 20 {
            let (node, bytes) = &files[1 + writes % 5];
            assert!(content(&db, *node) == *bytes, "round {writes}");
            let round = pattern(100_000, writes as u64);
            db.nodes()
                .open(files[0].0, true)
                .unwrap()
                .write_at(4096 * (writes as u64 % 100), &round)
                .unwrap();
            writes += 1;
            let back = db.nodes().open(files[0].0, false).unwrap();
            let mut bytes = vec![0; round.len()];
            back.read_at(4096 * ((writes - 1) as u64 % 100), &mut bytes)
                .unwrap();
            assert!(bytes == round, "COMPACT-4");
        }
        let report = defragging.join().unwrap();
        assert!(report.healed_count >= 1, "{report:?}");
    });
    for (node, bytes) in &files[1..] {
        assert!(content(&db, *node) == *bytes);
        assert!(content(&other, *node) == *bytes);
    }
    assert_clean(&db);
}
