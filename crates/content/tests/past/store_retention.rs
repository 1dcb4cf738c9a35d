//! Stores that keep their past for different times: what goes and stays, who is refused, what they
//! share, pressure, guarantees, sessions, snapshots and seals.

use crate::common::moments::{Clock, HOUR, MINUTE, SECOND, as_of, keep, two_stores};
use crate::common::{assert_clean, kind, name, pattern};
use larder::{CreateOptions, Database, ErrorKind, Moment, NodeId, Retention};
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;

fn commit_thrice(clock: &Clock, database: &Database, bytes: &[u8]) {
    for _ in 0..3 {
        clock.put(database, b"/tiny", bytes);
    }
}

#[test]
fn a_store_with_a_short_past_frees_its_space_and_nobody_elses() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = two_stores(&clock, dir.path(), 256);
    database
        .history()
        .set_store_retention("b", Some(keep(MINUTE)))
        .unwrap();
    let first = clock.put(&database, b"/a/file", &pattern(MIB, 1));
    let then = clock.put(&database, b"/b/file", &pattern(MIB, 2));
    clock.put(&database, b"/a/file", &pattern(MIB, 3));
    clock.put(&database, b"/b/file", &pattern(MIB, 4));
    clock.pass(2 * MINUTE);
    for _ in 0..3 {
        clock.put(&database, b"/tiny", b"x");
    }
    let space = database.maintenance().space().unwrap();
    assert_eq!(space.retired_bytes, MIB as u64, "TIME-8: {space:?}");
    let past = as_of(&database, then).unwrap();
    assert!(past.files().read(b"/a/file").unwrap() == pattern(MIB, 1));
    let gone = past.files().read(b"/b/file").unwrap_err();
    assert!(
        gone.to_string()
            .contains("history of store 'b' begins at 2027-01-15T"),
        "HISTORY-7: {gone}"
    );
    // It is listed beside the others; who looks into it is refused.
    let listed = past.nodes().read_dir_plus(NodeId::ROOT, None, 100).unwrap();
    let names: Vec<String> = (listed.iter())
        .map(|(entry, _)| String::from_utf8_lossy(entry.name.as_bytes()).into_owned())
        .collect();
    assert_eq!(names, ["a", "b"]);
    assert_eq!(
        kind(past.nodes().resolve(b"/b/file", true)),
        ErrorKind::InvalidInput
    );
    let b = past.nodes().lookup(NodeId::ROOT, &name("b"));
    assert!(b.is_err(), "{b:?}");
    // SQL of the past, verbs that go back, and a store that shows a moment.
    let seq = past.history().shown().unwrap().0;
    drop(past);
    let refused = database
        .history()
        .rollback(&Moment::At(first), None, false)
        .unwrap_err();
    assert!(
        refused.to_string().contains("store 'b' begins"),
        "{refused}"
    );
    let shown = database
        .stores()
        .create("old", "asof=seq:2", None, Some("b"));
    let shown = shown.unwrap_err().to_string();
    assert!(shown.contains("history of store 'b' begins"), "{shown}");
    let undone = database.history().undo(seq, true).unwrap_err();
    assert!(undone.to_string().contains("store 'b'"), "{undone}");
    // Below main it is mounted, and not meant.
    let dry = database
        .history()
        .rollback(&Moment::At(first), Some(b"/"), true);
    let paths: Vec<Vec<u8>> = (dry.unwrap().changes.into_iter())
        .map(|change| change.path)
        .collect();
    assert_eq!(paths, [b"/tiny"]);
    let back = database
        .history()
        .rollback(&Moment::At(first), Some(b"/a"), false);
    back.map(drop).unwrap();
    assert!(database.files().read(b"/a/file").unwrap() == pattern(MIB, 1));
    assert!(database.files().read(b"/b/file").unwrap() == pattern(MIB, 4));
    // A longer retention brings nothing back; from here on it is kept.
    database.history().set_store_retention("b", None).unwrap();
    assert!(
        as_of(&database, then)
            .unwrap()
            .files()
            .read(b"/b/file")
            .is_err()
    );
    let kept = clock.put(&database, b"/b/file", &pattern(MIB, 5));
    clock.put(&database, b"/b/file", &pattern(MIB, 6));
    clock.pass(10 * MINUTE);
    clock.put(&database, b"/tiny", b"y");
    let past = as_of(&database, kept).unwrap();
    assert!(past.files().read(b"/b/file").unwrap() == pattern(MIB, 5));
    drop(past);
    assert_clean(&database);
    database.close().unwrap();
    let database = clock.open(dir.path());
    assert!(
        as_of(&database, then)
            .unwrap()
            .files()
            .read(b"/b/file")
            .is_err()
    );
    assert_clean(&database);
}

/// What two stores have shared goes when both have let it go, in whichever order they do
/// (`HISTORY-8`).
#[test]
fn content_that_stores_have_shared_stays_as_long_as_one_of_them_needs_it() {
    for (long, short) in [("a", "b"), ("b", "a")] {
        for long_first in [true, false] {
            let dir = tempfile::tempdir().unwrap();
            let clock = Clock::new();
            let database = two_stores(&clock, dir.path(), 256);
            database
                .history()
                .set_store_retention(short, Some(keep(MINUTE)))
                .unwrap();
            let bytes = pattern(MIB, 7);
            clock.put(&database, b"/a/file", &bytes);
            database
                .files()
                .clone_path(None, b"/a/file", b"/b/file")
                .unwrap();
            database.sync().unwrap();
            let then = clock.now();
            clock.pass(SECOND);
            let order = match long_first {
                true => [long, short],
                false => [short, long],
            };
            for store in order {
                clock.put(&database, format!("/{store}/file").as_bytes(), b"new");
            }
            clock.pass(5 * MINUTE);
            for _ in 0..3 {
                clock.put(&database, b"/tiny", b"x");
            }
            clock.put(&database, b"/filler", &pattern(8 * MIB, 9));
            let past = as_of(&database, then).unwrap();
            let path = format!("/{long}/file");
            assert!(
                past.files().read(path.as_bytes()).unwrap() == bytes,
                "HISTORY-8"
            );
            let path = format!("/{short}/file");
            assert!(past.files().read(path.as_bytes()).is_err());
            drop(past);
            assert_clean(&database);
            clock.pass(2 * HOUR);
            for _ in 0..3 {
                clock.put(&database, b"/tiny", b"y");
            }
            assert_eq!(database.maintenance().space().unwrap().retired_bytes, 0);
            assert_clean(&database);
        }
    }
}

/// Early expiry gives up the oldest of all stores, never what one has guaranteed.
#[test]
fn a_full_database_expires_early_in_all_stores_but_those_that_are_guaranteed() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = two_stores(&clock, dir.path(), 64);
    let guarantee = Retention {
        retention_ns: HOUR,
        is_guaranteed: true,
    };
    database
        .history()
        .set_store_retention("a", Some(guarantee))
        .unwrap();
    let mut moments = Vec::new();
    for round in 0..6 {
        moments.push(clock.put(&database, b"/a/file", &pattern(MIB, round)));
    }
    let mut others = Vec::new();
    for round in 0..60 {
        others.push(clock.put(&database, b"/b/file", &pattern(3 * MIB, 100 + round)));
    }
    for (round, at_ns) in moments.iter().enumerate() {
        let past = as_of(&database, *at_ns).unwrap();
        let found = past.files().read(b"/a/file").unwrap();
        assert!(found == pattern(MIB, round as u64), "TIME-8: round {round}");
    }
    let past = as_of(&database, others[5]).unwrap();
    assert!(
        past.files().read(b"/b/file").is_err(),
        "it has expired early"
    );
    drop(past);
    let past = as_of(&database, others[58]).unwrap();
    assert!(past.files().read(b"/b/file").unwrap() == pattern(3 * MIB, 158));
    drop(past);
    assert_clean(&database);
    // Nothing but the guarantee is in the way at last; it says so.
    let full = (0..40).find_map(|round| {
        let put = database
            .files()
            .write(b"/a/file", pattern(4 * MIB, 300 + round));
        let done = put.and_then(|_| database.sync());
        clock.pass(SECOND);
        done.err()
    });
    let full = full.unwrap();
    assert_eq!(full.kind(), ErrorKind::NoSpace, "TIME-8: {full}");
    assert!(
        full.to_string().contains("of store 'a' is guaranteed"),
        "{full}"
    );
    assert!(
        full.to_string().contains("larder retention DB:/a"),
        "{full}"
    );
    let shrunk = database
        .maintenance()
        .shrink(None, false, &mut |_, _| {})
        .unwrap_err();
    assert!(shrunk.to_string().contains("guaranteed"), "{shrunk}");
    // A store follows the database again: its history may go.
    database.history().set_store_retention("a", None).unwrap();
    for round in 0..10 {
        clock.put(&database, b"/a/file", &pattern(4 * MIB, 400 + round));
    }
    assert_clean(&database);
}

/// A guarantee is in nobody's way that keeps nothing.
#[test]
fn a_guarantee_that_keeps_nothing_is_not_blamed() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = two_stores(&clock, dir.path(), 64);
    let guarantee = Retention {
        retention_ns: HOUR,
        is_guaranteed: true,
    };
    database
        .history()
        .set_store_retention("a", Some(guarantee))
        .unwrap();
    clock.put(&database, b"/a/file", &pattern(MIB, 1));
    clock.put(&database, b"/b/file", &pattern(8 * MIB, 2));
    clock.put(&database, b"/b/file", &pattern(MIB, 3));
    // The history of the other store goes for it.
    let shrunk = database
        .maintenance()
        .shrink(None, false, &mut |_, _| {})
        .unwrap();
    assert!(shrunk.segment_bytes_after < shrunk.segment_bytes_before);
    clock.put(&database, b"/b/file", &pattern(8 * MIB, 4));
    database.snapshots().create("kept").unwrap();
    clock.put(&database, b"/b/file", &pattern(MIB, 5));
    let fill = || {
        (0..40).find_map(|round| {
            let path = format!("/more{round}");
            let put = database
                .files()
                .write(path.as_bytes(), pattern(4 * MIB, round));
            put.and_then(|_| database.sync()).err()
        })
    };
    let full = fill().unwrap();
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert!(full.to_string().contains("snapshots"), "{full}");
    assert!(!full.to_string().contains("guaranteed"), "{full}");
    // From here on it keeps some.
    database.snapshots().destroy("kept").unwrap();
    for file in ["more0", "more1", "more2", "more3"] {
        database.nodes().unlink(NodeId::ROOT, &name(file)).unwrap();
    }
    clock.put(&database, b"/a/file", &pattern(MIB, 6));
    let shrunk = database
        .maintenance()
        .shrink(None, false, &mut |_, _| {})
        .unwrap_err();
    assert!(shrunk.to_string().contains("guaranteed"), "{shrunk}");
    assert_clean(&database);
}

/// Set in one session, it holds in the other at once (`TIME-3`); and it ends with the store.
#[test]
fn every_session_follows_the_retention_of_a_store() {
    let until = |what: &str, is_so: &mut dyn FnMut() -> bool| {
        let began = Instant::now();
        while !is_so() {
            assert!(began.elapsed() < Duration::from_secs(30), "{what}");
            std::thread::sleep(Duration::from_millis(10));
        }
    };
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    two_stores(&clock, dir.path(), 256).close().unwrap();
    let one = clock.open_with(dir.path(), true);
    let two = clock.open_with(dir.path(), true);
    let first = clock.put(&two, b"/b/file", &pattern(MIB, 1));
    clock.put(&two, b"/b/file", &pattern(MIB, 2));
    one.history()
        .set_store_retention("b", Some(keep(MINUTE)))
        .unwrap();
    clock.pass(2 * MINUTE);
    // What another session may still read goes when its pin has moved on.
    let is_gone =
        |db: &Database, at, path: &[u8]| as_of(db, at).unwrap().files().read(path).is_err();
    until("TIME-3", &mut || {
        clock.put(&two, b"/tiny", b"x");
        is_gone(&two, first, b"/b/file") && is_gone(&one, first, b"/b/file")
    });
    // The database itself keeps nothing: a store does.
    two.history()
        .set_store_retention("b", Some(keep(HOUR)))
        .unwrap();
    one.history().set_retention(keep(0)).unwrap();
    let kept = clock.put(&two, b"/b/file", &pattern(MIB, 3));
    clock.put(&two, b"/a/file", &pattern(MIB, 4));
    clock.put(&one, b"/b/file", &pattern(MIB, 5));
    clock.put(&one, b"/a/file", &pattern(MIB, 6));
    until("TIME-8", &mut || {
        clock.pass(2 * SECOND);
        clock.put(&one, b"/tiny", b"y");
        is_gone(&two, kept, b"/a/file")
    });
    let past = as_of(&two, kept).unwrap();
    assert!(past.files().read(b"/b/file").unwrap() == pattern(MIB, 3));
    drop(past);
    let refused = kind(one.history().set_store_retention("none", None));
    assert_eq!(refused, ErrorKind::NotFound);
    one.snapshots().create("kept").unwrap();
    let needed = two.history().set_store_retention("b", None).unwrap_err();
    assert!(needed.to_string().contains("'kept'"), "{needed}");
    one.snapshots().destroy("kept").unwrap();
    two.close().unwrap();
    one.stores().destroy("b").unwrap();
    assert!(!one.history().is_kept(), "nothing else kept history");
    assert!(as_of(&one, kept).is_err());
    clock.put(&one, b"/a/file", &pattern(MIB, 7));
    assert_clean(&one);
    one.history().set_retention(keep(HOUR)).unwrap();
    let again = clock.put(&one, b"/a/file", &pattern(MIB, 8));
    clock.put(&one, b"/a/file", b"x");
    let past = as_of(&one, again).unwrap();
    assert!(past.files().read(b"/a/file").unwrap() == pattern(MIB, 8));
    drop(past);
    assert_clean(&one);
}

/// A hold keeps what it shows, of the stores that it shows, and nothing of the others.
#[test]
fn what_a_snapshot_does_not_show_it_does_not_keep() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let path = dir.path().join("t.larder");
    let options = CreateOptions {
        retention_ns: Some(HOUR),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &options, &clock.engine()).unwrap();
    let database = clock.open(dir.path());
    database.stores().create("b", "files", None, None).unwrap();
    database
        .history()
        .set_store_retention("b", Some(keep(MINUTE)))
        .unwrap();
    let old = clock.put(&database, b"/a", &pattern(MIB, 1));
    clock.put(&database, b"/b/file", &pattern(MIB, 2));
    clock.put(&database, b"/b/file", &pattern(MIB, 3));
    clock.pass(2 * MINUTE);
    commit_thrice(&clock, &database, b"x");
    // A reader of what only the database still has.
    let reader = as_of(&database, old).unwrap();
    assert!(reader.files().read(b"/b/file").is_err());
    database.snapshots().create("now").unwrap();
    let now = clock.now();
    clock.pass(SECOND);
    clock.put(&database, b"/b/file", &pattern(MIB, 4));
    clock.pass(2 * MINUTE);
    commit_thrice(&clock, &database, b"y");
    let shown = database.as_of(&Moment::Snapshot("now".into())).unwrap();
    assert!(shown.files().read(b"/b/file").unwrap() == pattern(MIB, 3));
    drop(shown);
    assert_eq!(
        database.maintenance().space().unwrap().retired_bytes,
        MIB as u64
    );
    database.snapshots().destroy("now").unwrap();
    clock.pass(2 * SECOND);
    commit_thrice(&clock, &database, b"z");
    assert_eq!(
        database.maintenance().space().unwrap().retired_bytes,
        0,
        "HISTORY-7"
    );
    assert!(
        reader.files().read(b"/a").unwrap() == pattern(MIB, 1),
        "PAST-2"
    );
    drop(reader);
    let past = as_of(&database, now).unwrap();
    assert!(past.files().read(b"/b/file").is_err());
    drop(past);
    assert_clean(&database);
}

#[test]
fn seals_of_stores_that_were_pruned_apart_verify() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = two_stores(&clock, dir.path(), 256);
    database
        .history()
        .set_store_retention("b", Some(keep(MINUTE)))
        .unwrap();
    let seal = |name: &str| {
        for round in 0..5 {
            clock.put(&database, b"/a/file", &pattern(50_000, round));
            clock.put(&database, b"/b/file", &pattern(60_000, round));
        }
        database.snapshots().create(name).unwrap();
        database.snapshots().seal(name, None).map(drop).unwrap();
    };
    let verify = || {
        let report = database
            .snapshots()
            .verify(&larder::VerifyOptions::default());
        let report = report.unwrap();
        assert!(report.is_clean(), "SEAL-3: {report:?}");
        report
    };
    seal("first");
    verify();
    clock.pass(5 * MINUTE);
    commit_thrice(&clock, &database, b"x");
    let report = verify();
    assert!(report.seals[0].pruned.is_some(), "{report:?}");
    seal("second");
    verify();
    clock.pass(5 * MINUTE);
    commit_thrice(&clock, &database, b"y");
    verify();
    assert_clean(&database);
}

/// A snapshot of a moment that the history of some store does not reach is sealed without that
/// store, which is named.
#[test]
fn a_seal_says_what_its_snapshot_does_not_show() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let database = two_stores(&clock, dir.path(), 64);
    database
        .history()
        .set_store_retention("b", Some(keep(MINUTE)))
        .unwrap();
    clock.put(&database, b"/b/file", b"one");
    let then = clock.put(&database, b"/a/file", b"one");
    clock.put(&database, b"/b/file", b"two");
    clock.pass(2 * MINUTE);
    commit_thrice(&clock, &database, b"x");
    let seq = database.history().resolve(&Moment::At(then)).unwrap().0;
    // That holds the moment, as a snapshot.
    let provider = format!("asof=seq:{seq}");
    let made = database.stores().create("old", &provider, None, Some("a"));
    made.map(drop).unwrap();
    let snapshots = database.snapshots().list().unwrap();
    let [snapshot] = &snapshots[..] else {
        panic!("{snapshots:?}");
    };
    let sealed = database.snapshots().seal(&snapshot.name, None).unwrap();
    assert_eq!((sealed.left_out, sealed.file_count), (vec!["b".into()], 1));
    clock.put(&database, b"/b/file", b"three");
    clock.put(&database, b"/a/file", b"two");
    clock.pass(2 * MINUTE);
    commit_thrice(&clock, &database, b"y");
    let report = database
        .snapshots()
        .verify(&larder::VerifyOptions::default())
        .unwrap();
    assert!(report.is_clean(), "SEAL-3: {report:?}");
    assert_eq!(report.seals[0].left_out, ["b"]);
    assert_clean(&database);
}
