//! What a review found.

#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

mod common;

use common::*;
use larder::{Database, NodeId, OpenOptions};
use larder_object::EngineOptions;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn open_small(dir: &std::path::Path) -> Database {
    let engine = EngineOptions {
        dirty_bytes_max: 2 << 20,
        ..EngineOptions::default()
    };
    let options = OpenOptions {
        engine,
        ..OpenOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

/// WHOLE-2: what was kept of a store that is gone must not count for ever.
#[test]
fn a_destroyed_store_keeps_no_memory() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(128 << 20)).close().unwrap();
    let db = open_small(dir.path());
    for round in 0..4 {
        let info = db
            .create_store(&format!("s{round}"), "files", None, None)
            .unwrap();
        let root = db.resolve(info.mount.as_bytes(), true).unwrap().node;
        let handle = db.open_file(make(&db, root, "half"), true).unwrap();
        handle.write_at(0, &pattern(400_000, round)).unwrap();
        db.sync().unwrap();
        db.destroy_store(&info.name).unwrap();
        drop(handle);
    }
    let handles: Vec<_> = (0..3)
        .map(|at| {
            let node = make(&db, NodeId::ROOT, &format!("f{at}"));
            db.open_file(node, true).unwrap()
        })
        .collect();
    for piece in 0..4 {
        for handle in &handles {
            handle.write_at(piece * 50_000, &pattern(50_000, piece)).unwrap();
        }
        db.sync().unwrap();
    }
    // Unequal lengths: soft regions alone do not make them whole.
    drop(handles);
    let stream_fragments = db.frag().unwrap().fragments_per_object_max;
    let deadline = Instant::now() + Duration::from_secs(3);
    while db.frag().unwrap().fragments_per_object_max > 1 {
        assert!(Instant::now() < deadline, "{stream_fragments} {:?}", db.frag());
        std::thread::sleep(Duration::from_millis(20));
    }
}

/// PIECE-3: a replacement beside fragment operations, while commits write the file.
#[test]
fn a_replacement_beside_insertions_leaves_one_of_them() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(256 << 20)).close().unwrap();
    let db = open_small(dir.path());
    let node = put(&db, NodeId::ROOT, "f", &vec![1; 700_000]);
    let done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (db, done) = (&db, &done);
        scope.spawn(move || {
            let mut round = 0u8;
            while !done.load(Ordering::Relaxed) {
                round = round.wrapping_add(1);
                db.put(b"/f", &vec![round; 300_000 + usize::from(round) * 4096]).unwrap();
            }
        });
        scope.spawn(move || {
            let handle = db.open_file(node, true).unwrap();
            while !done.load(Ordering::Relaxed) {
                handle.insert_range(4096, &[7; 4096]).unwrap();
            }
        });
        scope.spawn(move || {
            while !done.load(Ordering::Relaxed) {
                db.sync().unwrap();
            }
        });
        let until = Instant::now() + Duration::from_secs(20);
        while Instant::now() < until {
            let bytes = db.get(b"/f").unwrap();
            assert!(bytes.chunks(4096).all(|block| block.iter().all(|&byte| byte == block[0])));
            std::thread::sleep(Duration::from_millis(1));
        }
        done.store(true, Ordering::Relaxed);
    });
    assert_clean(&db);
}
