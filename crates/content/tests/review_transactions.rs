//! What a review found in transactions, short and long.

#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

mod common;

use common::*;
use larder::{Database, ErrorKind, FeedEvent, NodeId, OpenOptions, TransactionOutcome};
use larder_object::EngineOptions;
use std::path::Path;

/// Segments as short as they can be, so that a second one comes soon.
fn open_short(dir: &Path) -> Database {
    let engine = EngineOptions {
        segment_bytes_max: 64 << 20,
        has_background: false,
        ..EngineOptions::default()
    };
    let options = OpenOptions {
        engine,
        ..OpenOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

/// By a connection that knows nothing of Larder.
fn plain(database: &Path, sql: &str) -> String {
    let output = std::process::Command::new("sqlite3")
        .args(["-cmd", ".timeout 5000"])
        .arg(database.join("catalog.db"))
        .arg(sql)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// PRIVATE-5: an operation that fails for another reason than a conflict, after the snapshot was given up, must
/// not let the next one go on with a newer snapshot: what was read may have changed.
#[test]
fn a_transaction_that_has_lost_its_snapshot_is_over() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let db = open_short(dir.path());
    db.put(b"/balance", b"10").unwrap();
    db.sync().unwrap();
    let txn = db.begin().unwrap();
    assert_eq!(txn.get(b"/balance").unwrap(), b"10");
    // Somebody makes the snapshot old, and a segment that cannot be opened when the transaction looks.
    for part in 0..5 {
        let path = format!("/large{part}");
        db.put(path.as_bytes(), &pattern(16 << 20, part)).unwrap();
        db.sync().unwrap();
    }
    let segments = dir.path().join("t.larder/segments");
    let second = segments.join("00001.seg");
    std::fs::rename(&second, segments.join("away")).unwrap();
    let failed = txn.put(b"/balance", b"11").unwrap_err();
    assert_ne!(failed.kind(), ErrorKind::Conflict, "{failed}");
    std::fs::rename(segments.join("away"), &second).unwrap();
    db.put(b"/balance", b"20").unwrap();
    db.sync().unwrap();
    let over = txn.put(b"/balance", b"11").unwrap_err();
    assert_eq!(over.kind(), ErrorKind::InvalidInput, "PRIVATE-5: {over}");
    assert!(txn.commit().is_err(), "PRIVATE-5");
    assert_eq!(db.get(b"/balance").unwrap(), b"20", "CONTENT-6");
    // The engine that served it serves others.
    let next = db.begin().unwrap();
    assert_eq!(next.get(b"/balance").unwrap(), b"20");
    next.put(b"/balance", b"21").unwrap();
    next.commit().unwrap();
    assert_eq!(db.get(b"/balance").unwrap(), b"21");
}

/// PRIVATE-3: the number of a store that was taken back goes to another store.
#[test]
fn a_store_that_was_taken_back_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let txn = db.begin().unwrap();
    txn.create_store("one", "files", None, None).unwrap();
    txn.put(b"/one/a", b"never").unwrap();
    txn.abort();
    let two = db.create_store("two", "files", None, None).unwrap();
    let one = db.create_store("one", "files", None, None).unwrap();
    assert_ne!(one.store, two.store);
    let txn = db.begin().unwrap();
    txn.put(b"/two/b", b"of two").unwrap();
    txn.commit().unwrap();
    assert_eq!(db.get(b"/two/b").unwrap(), b"of two", "PRIVATE-3");
    let gone = db.get(b"/one/b").unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "PRIVATE-3");
    assert_clean(&db);
}

/// WORKSPACE-5: inode numbers that a short transaction got from the parent and did not keep are nobody's.
#[test]
fn inode_numbers_that_were_taken_back_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let long = db.begin_long("numbers").unwrap();
    // The next inode is the last one of the range.
    let end: u64 = plain(
        &long.directory(),
        "UPDATE larder_gate SET open = 1;
         UPDATE larder_meta SET value = (SELECT next_ino + 1 FROM larder_store WHERE id = 0)
           WHERE key = 'ino_end_0';
         UPDATE larder_gate SET open = 0;
         SELECT value FROM larder_meta WHERE key = 'ino_end_0'",
    )
    .parse()
    .unwrap();
    let view = long.database().unwrap();
    let txn = view.begin().unwrap();
    for number in 0..3 {
        make(&txn, NodeId::ROOT, &format!("never{number}"));
    }
    txn.abort();
    drop(txn);
    let numbers = (0..3).map(|number| make(view, NodeId::ROOT, &format!("kept{number}")).ino.0);
    let numbers: Vec<u64> = numbers.collect();
    assert!(
        numbers.iter().all(|ino| *ino < end || *ino >= end + 1000),
        "WORKSPACE-5: {numbers:?}, the range ends before {end}"
    );
    long.commit().unwrap();
    assert_clean(&db);
}

/// FEED-1: what a long transaction brings is not told one by one; that it came is.
#[test]
fn followers_learn_of_a_long_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let since = db.set_feed(true).unwrap();
    let long = db.begin_long("told").unwrap();
    long.database().unwrap().put(b"/inside", b"x").unwrap();
    db.put(b"/beside", b"y").unwrap();
    db.sync().unwrap();
    assert_eq!(long.commit().unwrap(), TransactionOutcome::Committed);
    db.put(b"/behind", b"z").unwrap();
    db.sync().unwrap();
    let is_gap = |event: &FeedEvent| *event == FeedEvent::Begin;
    let events = db.changes(since).map(|change| change.unwrap().event);
    let gaps: Vec<bool> = events.map(|event| is_gap(&event)).collect();
    assert_eq!(gaps, [false, true, false], "FEED-1");
    assert_eq!(db.get(b"/inside").unwrap(), b"x");
    // Nothing is written while the feed is off.
    db.set_feed(false).unwrap();
    let newest = db.feed_bounds().unwrap().newest;
    let long = db.begin_long("untold").unwrap();
    long.database().unwrap().put(b"/later", b"x").unwrap();
    assert_eq!(long.commit().unwrap(), TransactionOutcome::Committed);
    assert_eq!(db.feed_bounds().unwrap().newest, newest, "FEED-3");
}
