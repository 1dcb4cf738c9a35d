//! Threads against the running commit, and operations that need the database for themselves.

use crate::common::*;
use larder::{AllocateMode, ErrorKind, NewNode, NodeId, SeekTarget};
use std::sync::Barrier;
use std::sync::atomic::{AtomicBool, Ordering};

const R: NodeId = NodeId::ROOT;

#[test]
fn reading_a_large_map_beside_commits_never_shows_old_content() {
    // More map pages than are kept in memory, one block in each.
    const PAGES: u64 = 1100;
    const STEP: u64 = 8 << 20;
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let handle = db.nodes().open(make(&db, R, "f"), true).unwrap();
    let write_all = |byte: u8| {
        for page in 0..PAGES {
            handle.write_at(page * STEP, &[byte; 4096]).unwrap();
        }
    };
    write_all(1);
    db.sync().unwrap();
    for round in 2..5u8 {
        write_all(round);
        let is_done = AtomicBool::new(false);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let mut page = 0;
                while !is_done.load(Ordering::SeqCst) {
                    let mut bytes = [0; 4096];
                    handle.read_at(page % PAGES * STEP, &mut bytes).unwrap();
                    assert!(bytes == [round; 4096], "MAP-4: page {}", page % PAGES);
                    page += 7;
                }
            });
            db.sync().unwrap();
            is_done.store(true, Ordering::SeqCst);
        });
    }
    drop(handle);
    assert_clean(&db);
}

#[test]
fn a_store_is_destroyed_beside_writers_and_under_open_handles() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let is_done = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (db, is_done) = (&db, &is_done);
            scope.spawn(move || {
                let handle = db
                    .nodes()
                    .open(make(db, R, &format!("w{thread}")), true)
                    .unwrap();
                let mut at = 0;
                while !is_done.load(Ordering::SeqCst) {
                    handle.write_at(at % (4 << 20), &[7; 100_000]).unwrap();
                    at += 100_000;
                }
            });
        }
        for round in 0..8 {
            let info = db
                .stores()
                .create(&format!("s{round}"), "files", None, None)
                .unwrap();
            let root = db
                .nodes()
                .resolve(info.mount.as_bytes(), true)
                .unwrap()
                .node;
            let kept = db
                .nodes()
                .open(put(&db, root, "kept", &pattern(50_000, 1)), true)
                .unwrap();
            let unlinked = db
                .nodes()
                .open(put(&db, root, "gone", &pattern(50_000, 2)), true)
                .unwrap();
            db.nodes().unlink(root, &name("gone")).unwrap();
            if round % 2 == 0 {
                db.sync().unwrap();
            }
            db.stores().destroy(&info.name).unwrap();
            for handle in [kept, unlinked] {
                assert_eq!(kind(handle.write_at(0, b"x")), ErrorKind::NotFound);
                assert_eq!(kind(handle.read_at(0, &mut [0; 10])), ErrorKind::NotFound);
            }
        }
        is_done.store(true, Ordering::SeqCst);
    });
    assert_clean(&db);
}

#[test]
fn check_and_punching_threads_do_not_disturb_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let node = put(&db, R, "f", &pattern(8 << 20, 4));
    db.sync().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let handle = db.nodes().open(node, true).unwrap();
            for block in 0..1000 {
                handle
                    .allocate(AllocateMode::PunchHole, block * 8192, 4096)
                    .unwrap();
            }
        });
        for _ in 0..10 {
            assert_clean(&db);
        }
    });
}

#[test]
fn constraints_hold_between_threads() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let mut sql = db.sql().open(false).unwrap();
    sql.execute(
        "CREATE UNIQUE INDEX one_device ON main (rdev) WHERE rdev > 0; \
         CREATE TABLE tag (ino INTEGER NOT NULL REFERENCES main (ino)); \
         CREATE TRIGGER no_root BEFORE UPDATE OF uid ON main WHEN NEW.uid = 0 \
         BEGIN SELECT RAISE(ABORT, 'not to root'); END",
        &mut |_| Ok(()),
    )
    .unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    for round in 1..15 {
        let barrier = Barrier::new(2);
        let made: usize = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..2)
                .map(|thread| {
                    let (db, barrier) = (&db, &barrier);
                    scope.spawn(move || {
                        barrier.wait();
                        let made = name(&format!("d{round}-{thread}"));
                        db.nodes()
                            .create_node(R, &made, NewNode::CharDevice(round), 0o600, OWNER)
                            .is_ok()
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| usize::from(thread.join().unwrap()))
                .sum()
        });
        assert_eq!(made, 1, "one of two gets the number");
    }
    let node = put(&db, R, "f", b"content");
    let to_root = larder::SetAttr {
        uid: Some(0),
        ..larder::SetAttr::default()
    };
    assert_eq!(
        kind(db.nodes().set_attr(node, &to_root)),
        ErrorKind::NotPermitted
    );
    // An orphan that a row still refers to stays until the row goes.
    let handle = db.nodes().open(node, true).unwrap();
    db.nodes().unlink(R, &name("f")).unwrap();
    db.sync().unwrap();
    sql.execute(
        &format!("INSERT INTO tag VALUES ({})", node.ino),
        &mut |_| Ok(()),
    )
    .unwrap();
    drop(handle);
    put(&db, R, "after", b"x");
    db.sync().unwrap();
    db.close().unwrap();
    let db = open(dir.path());
    put(&db, R, "later", b"x");
    db.sync().unwrap();
    assert_clean(&db);
}

#[test]
fn huge_offsets_and_hopeless_wishes_cost_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(512 << 20));
    let handle = db.nodes().open(make(&db, R, "f"), true).unwrap();
    handle.write_at(1 << 60, b"x").unwrap();
    assert_eq!(handle.seek(SeekTarget::Data, 4096).unwrap(), Some(1 << 60));
    assert_eq!(handle.read_at(u64::MAX, &mut [0; 10]).unwrap(), 0);
    handle.sync().unwrap();
    assert_eq!(handle.seek(SeekTarget::Data, 4096).unwrap(), Some(1 << 60));
    let before = db.maintenance().space().unwrap().segment_bytes;
    let wish = AllocateMode::Allocate { keep_size: true };
    assert_eq!(kind(handle.allocate(wish, 0, 1 << 50)), ErrorKind::NoSpace);
    assert!(
        db.maintenance().space().unwrap().segment_bytes <= before.max(128 << 20),
        "nothing grew for it"
    );
}

#[test]
fn stores_that_cannot_be_served_or_placed_are_refused_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.stores().create("s", "files", None, None).unwrap();
    assert_eq!(
        kind(db.stores().set("main", None, Some("/elsewhere"))),
        ErrorKind::InvalidInput
    );
    assert_eq!(
        kind(db.stores().set("s", None, Some("/s/s"))),
        ErrorKind::InvalidInput
    );
    db.stores().set("s", None, Some("/t")).unwrap();
    assert!(db.nodes().resolve(b"/t", true).is_ok());
    db.sql()
        .open(false)
        .unwrap()
        .execute(
            "UPDATE larder_guard_switch SET open = 1; UPDATE larder_store SET provider = 'mine' \
            WHERE \
             name = 's'; \
             UPDATE larder_guard_switch SET open = 0",
            &mut |_| Ok(()),
        )
        .unwrap();
    db.close().unwrap();
    let db = open(dir.path());
    assert_eq!(
        kind(db.nodes().resolve(b"/t", true)),
        ErrorKind::Unsupported
    );
    put(&db, R, "f", b"main works");
    assert_clean(&db);
}
