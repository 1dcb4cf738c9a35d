//! Objects are gathered whole: what writers do to each other must not show in the layout.

use crate::common::*;
use larder::{Database, DatabaseOptions, FileHandle, NodeId, RenameMode};
use larder_object::EngineOptions;
use std::sync::atomic::{AtomicU64, Ordering};

const PIECE: usize = 64 << 10;

/// A length around 256 KiB, and then one draw more from the same seed.
fn draw(state: &mut u64) -> usize {
    *state = state
        .wrapping_mul(6_364_136_223_846_793_005)
        .wrapping_add(1);
    (128 << 10) + ((*state >> 33) as usize % (256 << 10))
}

fn write_pieces(handle: &dyn FileHandle, bytes: &[u8], pause: impl Fn()) {
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        handle.write_at((index * PIECE) as u64, piece).unwrap();
        pause();
    }
}

/// Replaces `/name` by a safe write.
fn replace(db: &Database, writer: usize, text: &str, bytes: &[u8]) {
    let temporary = format!("tmp{writer}");
    let node = make(db, NodeId::ROOT, &temporary);
    let handle = db.nodes().open(node, true).unwrap();
    write_pieces(&*handle, bytes, std::thread::yield_now);
    handle.sync().unwrap();
    drop(handle);
    db.nodes()
        .rename(
            NodeId::ROOT,
            &name(&temporary),
            NodeId::ROOT,
            &name(text),
            RenameMode::Replace,
        )
        .unwrap();
}

#[test]
fn four_writers_leave_objects_in_one_piece() {
    const CAPACITY: u64 = 160 << 20;
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(CAPACITY));
    let mut seed = 20_261_121;
    let mut sizes = Vec::new();
    while sizes.iter().sum::<usize>() < CAPACITY as usize / 100 * 85 {
        sizes.push(draw(&mut seed));
    }
    for (index, &size) in sizes.iter().enumerate() {
        replace(&db, 0, &format!("o{index}"), &pattern(size, index as u64));
    }
    let young = db.maintenance().frag().unwrap();
    let round = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (db, sizes, round) = (&db, &sizes, &round);
            scope.spawn(move || {
                let mut seed = writer as u64 + 77;
                while round.fetch_add(1, Ordering::Relaxed) < 2 * sizes.len() as u64 {
                    // Each writer replaces its own quarter by new lengths of the same sum.
                    let mine = sizes.len() / 4;
                    let index = writer * mine + draw(&mut seed) % mine;
                    let size = draw(&mut seed).min(sizes[index]);
                    replace(db, writer, &format!("o{index}"), &pattern(size, seed));
                }
            });
        }
    });
    db.sync().unwrap();
    let aged = db.maintenance().frag().unwrap();
    println!("{young:?}\n{aged:?}");
    assert!(aged.storage_age > 1.0, "{aged:?}");
    assert!(aged.fragments_per_object_mean <= 1.02, "{aged:?}");
    assert_clean(&db);
}

#[test]
fn what_a_commit_met_half_written_is_placed_whole_at_the_end() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(64 << 20));
    let bytes = pattern(1_000_000, 3);
    let handles: Vec<_> = (0..4)
        .map(|index| {
            let node = make(&db, NodeId::ROOT, &format!("f{index}"));
            db.nodes().open(node, true).unwrap()
        })
        .collect();
    for (index, piece) in bytes.chunks(PIECE).enumerate() {
        for handle in &handles {
            handle.write_at((index * PIECE) as u64, piece).unwrap();
        }
        // A commit in the middle of everything.
        db.sync().unwrap();
    }
    assert!(db.maintenance().frag().unwrap().fragments_per_object_max > 1);
    for handle in &handles {
        let mut found = vec![0; bytes.len()];
        assert_eq!(handle.read_at(0, &mut found).unwrap(), bytes.len());
        assert!(found == bytes);
    }
    drop(handles);
    db.sync().unwrap();
    // WHOLE-3: nothing dirty was left, and yet each is placed once more, by the background.
    let deadline = std::time::Instant::now() + std::time::Duration::from_secs(10);
    while db.maintenance().frag().unwrap().fragments_per_object_max > 1 {
        assert!(
            std::time::Instant::now() < deadline,
            "{:?}",
            db.maintenance().frag()
        );
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    let frag = db.maintenance().frag().unwrap();
    assert_eq!(frag.storage_age, 0.0, "moving is not ageing");
    assert_clean(&db);
    db.close().unwrap();
    let db = open(dir.path());
    for index in 0..4 {
        let node = db
            .nodes()
            .resolve(format!("/f{index}").as_bytes(), true)
            .unwrap();
        assert!(content(&db, node.node) == bytes);
    }
}

#[test]
fn a_log_that_is_synced_again_and_again_ends_in_one_piece() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(64 << 20));
    let node = make(&db, NodeId::ROOT, "log");
    let other = make(&db, NodeId::ROOT, "other");
    let handle = db.nodes().open(node, true).unwrap();
    let rival = db.nodes().open(other, true).unwrap();
    for round in 0..40 {
        handle.append(&pattern(10_000, round)).unwrap();
        handle.sync().unwrap();
        rival.append(&pattern(7_000, round)).unwrap();
        rival.sync().unwrap();
    }
    drop((handle, rival));
    db.close().unwrap();
    let db = open(dir.path());
    assert_eq!(db.maintenance().frag().unwrap().fragments_per_object_max, 1);
    let expected: Vec<u8> = (0..40).flat_map(|round| pattern(10_000, round)).collect();
    assert!(content(&db, node) == expected);
    assert_clean(&db);
}

#[test]
fn more_half_written_objects_than_memory_may_hold_are_whole_too() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(64 << 20)).close().unwrap();
    // WHOLE-2: half of it may be kept, and an object has to have less than a quarter of it.
    let options = DatabaseOptions {
        engine: EngineOptions {
            dirty_bytes_max: 2 << 20,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let db = Database::open(&dir.path().join("t.larder"), options).unwrap();
    let nodes: Vec<NodeId> = (0..24)
        .map(|index| make(&db, NodeId::ROOT, &format!("f{index}")))
        .collect();
    let handles: Vec<_> = nodes
        .iter()
        .map(|&node| db.nodes().open(node, true).unwrap())
        .collect();
    let bytes = pattern(200_000, 9);
    for (index, piece) in bytes.chunks(20_000).enumerate() {
        for handle in &handles {
            handle.write_at((index * 20_000) as u64, piece).unwrap();
        }
        db.sync().unwrap();
    }
    drop(handles);
    db.sync().unwrap();
    for node in nodes {
        assert!(content(&db, node) == bytes);
    }
    assert_clean(&db);
}

#[test]
fn much_that_is_complete_is_committed_before_its_time() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path(), None));
    let engine = EngineOptions {
        commit_interval: std::time::Duration::from_secs(3600),
        ..EngineOptions::default()
    };
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    let db = Database::open(&dir.path().join("t.larder"), options).unwrap();
    let other = Database::open(&dir.path().join("t.larder"), DatabaseOptions::default()).unwrap();
    // One more than what begins a commit, in files that are closed.
    for index in 0..33 {
        let bytes = pattern(1 << 20, index);
        db.files()
            .write(format!("/o{index}").as_bytes(), &bytes)
            .unwrap();
    }
    let began = std::time::Instant::now();
    while other.nodes().resolve(b"/o0", false).is_err() {
        assert!(began.elapsed().as_secs() < 20, "nothing was committed");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}
