//! Several sessions on one database: what one unlinks or fills, and the other has open.

use crate::common::*;
use larder::{Database, ErrorKind, NodeId};
use std::time::{Duration, Instant};

const R: NodeId = NodeId::ROOT;

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let patience = Instant::now();
    while !is_true() {
        assert!(patience.elapsed() < Duration::from_secs(30), "{what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn count(db: &Database, sql: &str) -> usize {
    let mut rows = 0;
    db.sql()
        .open(true)
        .unwrap()
        .execute(sql, &mut |_| {
            rows += 1;
            Ok(())
        })
        .unwrap();
    rows
}

#[test]
fn what_a_young_session_has_open_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    let one = create(dir.path(), None);
    let data = pattern(50_000, 3);
    let node = put(&one, R, "f", &data);
    one.sync().unwrap();
    let two = open(dir.path());
    let handle = two.nodes().open(node, false).unwrap();
    one.nodes().unlink(R, &name("f")).unwrap();
    one.sync().unwrap();
    for round in 0..6 {
        put(&one, R, &format!("x{round}"), &pattern(50_000, round));
        one.sync().unwrap();
        std::thread::sleep(Duration::from_millis(50));
        let mut bytes = vec![0; data.len()];
        assert_eq!(handle.read_at(0, &mut bytes).unwrap(), data.len());
        assert!(bytes == data, "CONTENT-4, SESSION-4: round {round}");
    }
    drop(handle);
    wait_until("the orphan goes when its holder has let go", || {
        count(&two, "SELECT 1 FROM larder_orphan") == 0
    });
    assert_clean(&one);
}

/// What another one commits makes a session forget the content that it has read of a file that is
/// open; a change of attributes after that drops no row of the catalog.
#[test]
fn tiny_content_survives_a_foreign_commit_and_a_change_of_attributes() {
    let dir = tempfile::tempdir().unwrap();
    // Without history everything is forgotten, with it what was changed.
    for (round, has_history) in [true, false].into_iter().enumerate() {
        let place = dir.path().join(round.to_string());
        std::fs::create_dir(&place).unwrap();
        let one = create(&place, None);
        if !has_history {
            let none = larder::Retention {
                retention_ns: 0,
                is_guaranteed: false,
            };
            one.history().set_retention(none).unwrap();
        }
        let node = put(&one, R, "tiny", b"tiny content");
        one.sync().unwrap();
        let two = open(&place);
        let handle = one.nodes().open(node, false).unwrap();
        let mut bytes = [0; 12];
        assert_eq!(handle.read_at(0, &mut bytes).unwrap(), 12);
        // The other one changes the inode too: its extended attributes.
        two.attributes()
            .set(node, b"user.a", b"b", larder::XattrMode::Set)
            .unwrap();
        two.sync().unwrap();
        let change = larder::SetAttr {
            mode: Some(0o600),
            ..larder::SetAttr::default()
        };
        one.nodes().set_attr(node, &change).unwrap();
        one.sync().unwrap();
        assert_eq!(content(&two, node), b"tiny content", "NODE-1");
        assert_eq!(content(&one, node), b"tiny content", "NODE-1");
        drop(handle);
        assert_clean(&one);
    }
}

#[test]
fn a_removed_file_is_not_opened_again() {
    let dir = tempfile::tempdir().unwrap();
    let one = create(dir.path(), None);
    let _two = open(dir.path());
    let node = put(&one, R, "f", &pattern(50_000, 3));
    one.sync().unwrap();
    one.nodes().unlink(R, &name("f")).unwrap();
    assert_eq!(
        kind(one.nodes().open(node, true).map(drop)),
        ErrorKind::NotFound
    );
}

#[test]
fn a_holder_that_leaves_frees_the_space_without_being_asked() {
    let dir = tempfile::tempdir().unwrap();
    let one = create(dir.path(), None);
    let _two = open(dir.path());
    let node = put(&one, R, "f", &pattern(500_000, 3));
    one.sync().unwrap();
    let handle = one.nodes().open(node, false).unwrap();
    one.nodes().unlink(R, &name("f")).unwrap();
    one.sync().unwrap();
    drop(handle);
    wait_until("the background commits and purges", || {
        one.maintenance().space().unwrap().live_bytes == 0
    });
    assert_clean(&one);
}

#[test]
fn a_full_database_waits_for_the_pin_of_an_idle_session() {
    let dir = tempfile::tempdir().unwrap();
    let one = create(dir.path(), Some(64 << 20));
    let _idle = open(dir.path());
    for index in 0..5 {
        put(&one, R, &format!("f{index}"), &pattern(10 << 20, index));
    }
    one.sync().unwrap();
    for index in 0..3 {
        one.nodes().unlink(R, &name(&format!("f{index}"))).unwrap();
        one.sync().unwrap();
        put(&one, R, &format!("again{index}"), &pattern(11 << 20, index));
    }
    assert_clean(&one);
}

#[test]
fn a_closed_or_dropped_database_is_committed() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    for round in 0..20 {
        let node = put(&db, R, &format!("f{round}"), &pattern(30_000, round));
        let other = db.clone();
        if round == 19 {
            drop(other);
            drop(db);
            let db = open(dir.path());
            assert!(content(&db, node) == pattern(30_000, round));
            assert_eq!(count(&db, "SELECT 1 FROM larder_session"), 1);
            return;
        }
    }
}

/// `LOGGED-2`, `PIECE-5`. What another session has made since this one last looked is read as it
/// is: its content may be redo rows alone, or a list of pieces, of which this one knows none yet.
#[test]
fn a_file_that_another_session_has_just_made_is_read_whole() {
    let dir = tempfile::tempdir().unwrap();
    let one = create(dir.path(), None);
    put(&one, R, "first", &pattern(200_000, 1)); // Too much to be logged.
    one.sync().unwrap();
    let two = crate::constraints::open_quiet(dir.path());
    let small = pattern(9_000, 2);
    let node = put(&one, R, "small", &small);
    one.nodes().open(node, true).unwrap().sync().unwrap();
    assert!(
        one.maintenance().gauges().unwrap().redo_bytes > 0,
        "nothing was logged"
    );
    assert_eq!(
        two.maintenance().gauges().unwrap().redo_bytes,
        0,
        "it has looked"
    );
    assert!(two.files().read(b"/small").unwrap() == small);
    let mut spliced = pattern(200_000, 3);
    let node = put(&one, R, "spliced", &spliced);
    let handle = one.nodes().open(node, true).unwrap();
    handle.insert_range(70_000, b"inserted").unwrap();
    spliced.splice(70_000..70_000, *b"inserted");
    handle.sync().unwrap();
    assert!(two.files().read(b"/spliced").unwrap() == spliced);
}
