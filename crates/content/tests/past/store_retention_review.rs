//! What a strict reader found in retentions per store: content that an older version shared, stores
//! that were made later, guarantees beside prunes that wait, and stores that keep nothing.

use crate::common::moments::{Clock, HOUR, MINUTE, SECOND, as_of, keep, two_stores};
use crate::common::{assert_clean, kind, pattern};
use larder::{Database, ErrorKind, Moment, NodeId, PruneCut};
use std::path::Path;
use std::process::Command;

const MIB: usize = 1 << 20;

fn names_in_root(database: &Database) -> Vec<String> {
    let listed = database
        .nodes()
        .read_dir_plus(NodeId::ROOT, None, 100)
        .unwrap();
    let name = |name: &[u8]| String::from_utf8_lossy(name).into_owned();
    listed
        .iter()
        .map(|(entry, _)| name(entry.name.as_bytes()))
        .collect()
}

/// Takes away what says which stores have shared content: an older version does not write it.
fn forget_sharers(dir: &Path) {
    let text = "UPDATE larder_guard_switch SET open = 1; DELETE FROM larder_meta WHERE key LIKE \
    'shares%'; \
                UPDATE larder_guard_switch SET open = 0";
    let done = Command::new("sqlite3")
        .arg(dir.join("t.larder").join("catalog.db"))
        .arg(text)
        .output()
        .expect("the sqlite3 shell is needed; install it");
    let told = String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{told}");
}

/// A prune of one store is the first that lets stores go apart.
#[test]
fn a_prune_of_one_store_leaves_what_an_older_version_shared() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = two_stores(&clock, dir.path(), 256);
    let bytes = pattern(MIB, 7);
    clock.put(&database, b"/a/file", &bytes);
    database
        .files()
        .clone_path(None, b"/a/file", b"/b/file")
        .unwrap();
    database.sync().unwrap();
    let then = clock.now();
    clock.pass(SECOND);
    for path in [b"/a/file", b"/b/file"] {
        clock.put(&database, path, b"new"); // The second owns it then, and retires it.
    }
    database.close().unwrap();
    forget_sharers(dir.path());
    let database = clock.open(dir.path());
    let told = database
        .history()
        .prune_store("b", PruneCut::All, true)
        .unwrap();
    let done = database
        .history()
        .prune_store("b", PruneCut::All, false)
        .unwrap();
    assert_eq!(told.freed, done.freed);
    clock.put(&database, b"/filler", &pattern(8 * MIB, 9));
    let past = as_of(&database, then).unwrap();
    assert!(past.files().read(b"/a/file").unwrap() == bytes, "HISTORY-8");
    assert!(past.files().read(b"/b/file").is_err());
    drop(past);
    assert_clean(&database);
    // When both have let it go it is free.
    clock.pass(2 * HOUR);
    for _ in 0..3 {
        clock.put(&database, b"/tiny", b"y");
    }
    assert_eq!(database.maintenance().space().unwrap().retired_bytes, 0);
    assert_clean(&database);
}

/// A store that was made after a moment was not there, wherever its own history begins.
#[test]
fn a_store_that_was_made_later_was_not_there() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = two_stores(&clock, dir.path(), 256);
    clock.put(&database, b"/a/file", b"first");
    let before = clock.put(&database, b"/a/file", b"second");
    let seq = database.history().resolve(&Moment::At(before)).unwrap().0;
    clock.pass(SECOND);
    database
        .stores()
        .create("late", "files", None, None)
        .unwrap();
    database
        .history()
        .set_store_retention("late", Some(keep(MINUTE)))
        .unwrap();
    clock.pass(SECOND);
    let there = clock.put(&database, b"/late/file", b"old");
    clock.put(&database, b"/late/file", b"new");
    clock.pass(5 * MINUTE);
    for _ in 0..3 {
        clock.put(&database, b"/tiny", b"x");
    }
    let past = as_of(&database, there).unwrap();
    assert_eq!(names_in_root(&past), ["a", "b", "late"], "HISTORY-7");
    assert_eq!(
        kind(past.files().read(b"/late/file")),
        ErrorKind::InvalidInput
    );
    drop(past);
    let past = as_of(&database, before).unwrap();
    assert_eq!(names_in_root(&past), ["a", "b"]);
    assert_eq!(
        kind(past.nodes().resolve(b"/late", true)),
        ErrorKind::NotFound
    );
    drop(past);
    let undone = database.history().undo(seq, true).unwrap();
    assert_eq!(undone.changes.len(), 1, "{undone:?}");
    let back = database
        .history()
        .rollback(&Moment::At(before), None, false)
        .unwrap();
    let left: Vec<&String> = (back.left.iter())
        .filter(|one| one.contains("store 'late' was made later"))
        .collect();
    assert_eq!(left.len(), 1, "{back:?}");
    assert!(database.files().read(b"/late/file").unwrap() == b"new");
    assert!(database.files().read(b"/tiny").is_err());
    let refused = database.history().rollback(&Moment::At(there), None, true);
    assert_eq!(kind(refused.map(drop)), ErrorKind::InvalidInput);
    assert_clean(&database);
}

/// What a store that keeps nothing lets go is some seconds old: other sessions have looked at it by
/// then.
#[test]
fn a_store_that_keeps_nothing_lets_go_after_some_seconds() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = two_stores(&clock, dir.path(), 256);
    database
        .history()
        .set_store_retention("b", Some(keep(0)))
        .unwrap();
    clock.put(&database, b"/b/file", b"first");
    let then = clock.put(&database, b"/b/file", b"second");
    clock.put(&database, b"/b/file", b"third");
    for _ in 0..2 {
        clock.put(&database, b"/tiny", b"x");
    }
    let past = as_of(&database, then).unwrap();
    assert!(
        past.files().read(b"/b/file").unwrap() == b"second",
        "FOREIGN-1"
    );
    drop(past);
    for _ in 0..8 {
        clock.put(&database, b"/tiny", b"y");
    }
    let past = as_of(&database, then).unwrap();
    assert_eq!(kind(past.files().read(b"/b/file")), ErrorKind::InvalidInput);
    drop(past);
    assert_clean(&database);
}
