//! Clones share the pages of extent maps: what that costs, and that each side, each moment, each
//! crash sees its own. `SHARE-7`, `SHARE-8`, `CLONE-1`.
//!
//! `LARDER_CRASH_SEED` and `LARDER_CRASH_POINTS` choose another run.

use crate::common::replay;
use crate::common::workspace::{begin, conflicts, mkdir, remove, sql};
use crate::common::{assert_clean, create, create_without_history, open, pattern, put};
use larder::{
    CreateOptions, Database, DatabaseOptions, DefragOptions, Moment, NodeId, PruneCut, SharedPages,
    SqlValue, VerifyOptions, copy_range,
};
use larder_object::EngineOptions;
use larder_testkit::{CrashState, Recorder, Recording, RecordingVfs, SEGMENTS, SimStorage};
use std::sync::Arc;

const R: NodeId = NodeId::ROOT;
const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

fn clone(db: &Database, from: &str, to: &str) {
    let report = db.files().clone_path(None, from.as_bytes(), to.as_bytes());
    assert_eq!(report.unwrap().copied_bytes, 0);
}

fn number(db: &Database, text: &str) -> i64 {
    match sql(db, text)[0][0] {
        SqlValue::Integer(number) => number,
        ref other => panic!("{other:?}"),
    }
}

/// Shared pages, and rows of the present in which they stand.
fn pages(db: &Database) -> (i64, i64) {
    db.sync().unwrap();
    let rows = "SELECT coalesce(sum(row_count), 0) FROM larder_map_page_use";
    (
        number(db, "SELECT count(*) FROM larder_map_page"),
        number(db, rows),
    )
}

fn write(db: &Database, path: &str, offset: usize, bytes: &[u8]) {
    let node = db.nodes().resolve(path.as_bytes(), false).unwrap().node;
    let file = db.nodes().open(node, true).unwrap();
    file.write_at(offset as u64, bytes).unwrap();
}

/// Writes to a file, and to what it should hold.
fn write_both(db: &Database, path: &str, model: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    write(db, path, offset, bytes);
    model.resize(model.len().max(offset + bytes.len()), 0);
    model[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn catalog_bytes(db: &Database) -> i64 {
    number(
        db,
        "SELECT (page_count - freelist_count) * page_size FROM pragma_page_count, \
         pragma_freelist_count, \
         pragma_page_size",
    )
}

/// The retention horizon passes all that has happened.
fn forget(db: &Database) {
    db.sync().unwrap();
    db.history().prune(PruneCut::All, None, false).unwrap();
    put(db, R, "passes", b"x");
    db.sync().unwrap();
    remove(db, b"/passes");
    db.sync().unwrap();
    db.history().prune(PruneCut::All, None, false).unwrap();
    db.sync().unwrap();
}

#[test]
fn a_page_of_a_clone_is_a_reference_until_it_is_changed() {
    let dir = tempfile::tempdir().unwrap();
    let db = create_without_history(dir.path(), Some(256 << 20));
    let bytes = pattern(20 * MIB + 5, 1);
    put(&db, R, "a", &bytes);
    clone(&db, "/a", "/warm");
    remove(&db, b"/warm");
    assert_eq!(pages(&db), (3, 3), "they stay until somebody changes them");
    let before = catalog_bytes(&db);
    clone(&db, "/a", "/b");
    clone(&db, "/b", "/c");
    assert_eq!(pages(&db), (3, 9), "SHARE-7");
    let grown = catalog_bytes(&db) - before;
    println!("two clones of 20 MiB: {grown} bytes of the catalog");
    assert!(grown <= 16 << 10, "{grown}");
    assert_clean(&db);
    // The page in the middle.
    let (mut a, mut b) = (bytes.clone(), bytes.clone());
    write_both(&db, "/b", &mut b, 9 * MIB + 1, &pattern(5000, 2));
    assert_eq!(pages(&db), (3, 8));
    write_both(&db, "/a", &mut a, 9 * MIB + 1, &pattern(5000, 3));
    assert_eq!(pages(&db), (3, 7));
    for (path, model) in [("/a", &a), ("/b", &b), ("/c", &bytes)] {
        assert!(
            db.files().read(path.as_bytes()).unwrap() == *model,
            "{path}"
        );
    }
    assert_clean(&db);
    // The end is cut off; then all of it goes.
    let node = db.nodes().resolve(b"/c", false).unwrap().node;
    db.nodes()
        .open(node, true)
        .unwrap()
        .set_len(9 * MIB as u64)
        .unwrap();
    assert_eq!(pages(&db).1, 5);
    assert_clean(&db);
    drop(db);
    let db = open(dir.path());
    for (path, model) in [("/a", &a[..]), ("/b", &b), ("/c", &bytes[..9 * MIB])] {
        assert!(
            db.files().read(path.as_bytes()).unwrap() == *model,
            "{path}"
        );
        remove(&db, path.as_bytes());
        db.sync().unwrap();
        assert_clean(&db);
    }
    assert_eq!(pages(&db).1, 0);
    put(&db, R, "d", &pattern(9000, 1));
    db.sync().unwrap();
    remove(&db, b"/d");
    db.sync().unwrap();
    put(&db, R, "d", &pattern(9000, 1));
    assert_eq!(pages(&db), (0, 0), "SHARE-7: what nobody names goes");
    assert_clean(&db);
}

#[test]
fn the_past_of_shared_pages_is_kept_as_long_as_it_can_be_read() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(512 << 20));
    let mut model = pattern(9 * MIB, 1);
    put(&db, R, "a", &model);
    db.sync().unwrap();
    db.snapshots().create("s0").unwrap();
    clone(&db, "/a", "/b");
    db.sync().unwrap();
    let mut states = vec![("s0", model.clone())];
    for (round, name) in ["s1", "s2", "s3"].into_iter().enumerate() {
        db.snapshots().create(name).unwrap();
        states.push((name, model.clone()));
        // Whole pages, so that the past is in the history; blocks are overwritten, moved, written
        // elsewhere.
        let bytes = pattern([200, 3 * MIB, 300 * KIB][round], 10 + round as u64);
        write_both(&db, "/a", &mut model, (2 * round + 1) * MIB, &bytes);
        db.sync().unwrap();
        db.maintenance()
            .defrag(&[], &DefragOptions::default(), &mut |_| {})
            .unwrap();
        if round == 0 {
            db.snapshots().seal("s1", None).unwrap();
        }
        assert_clean(&db);
    }
    remove(&db, b"/b");
    db.sync().unwrap();
    assert_eq!(
        pages(&db).1,
        1,
        "the second page of the first file is as it was"
    );
    db.snapshots().seal("s3", None).unwrap();
    for (name, then) in &states {
        let past = db.as_of(&Moment::Snapshot((*name).into())).unwrap();
        assert!(
            past.files().read(b"/a").unwrap() == *then,
            "{name}: HISTORY-3"
        );
        if *name != "s0" {
            assert!(
                past.files().read(b"/b").unwrap() == states[0].1,
                "{name}: HISTORY-3"
            );
        }
        past.close().unwrap();
    }
    // The rows of the history are sealed by the pages that they stand for (SEAL-2).
    let is_sealed = |db: &Database| {
        db.snapshots()
            .verify(&VerifyOptions::default())
            .unwrap()
            .is_clean()
    };
    assert!(is_sealed(&db));
    let held = pages(&db).0;
    for (name, _) in &states {
        assert_eq!(pages(&db).0, held, "{name} holds them");
        db.snapshots().destroy(name).unwrap();
        assert_clean(&db);
    }
    forget(&db);
    assert_eq!(
        pages(&db),
        (1, 1),
        "SHARE-7: the other page went with the history"
    );
    assert!(db.files().read(b"/a").unwrap() == model);
    assert_clean(&db);
}

/// They belong to no store, and are counted all the same.
#[test]
fn what_shared_pages_take_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    assert_eq!(db.maintenance().stats().unwrap().map_page_bytes, 0);
    put(&db, R, "a", &pattern(20 * MIB, 1));
    db.sync().unwrap();
    clone(&db, "/a", "/b");
    assert_eq!(pages(&db), (3, 6));
    let bytes = number(&db, "SELECT sum(length(bytes)) FROM larder_map_page") as u64;
    assert_eq!(db.maintenance().stats().unwrap().map_page_bytes, bytes);
    assert_eq!(db.history().report().unwrap().pages, SharedPages::default());
    for path in ["/a", "/b"] {
        remove(&db, path.as_bytes());
    }
    db.sync().unwrap();
    let all = SharedPages {
        page_count: 3,
        bytes,
    };
    assert_eq!(db.history().report().unwrap().pages, all, "SHARE-7");
    for is_dry in [true, false] {
        let pruned = db.history().prune(PruneCut::All, None, is_dry).unwrap();
        assert_eq!(pruned.report.freed_pages, all, "SHARE-7");
    }
    assert_eq!(pages(&db), (0, 0), "SHARE-7");
    assert_eq!(db.maintenance().stats().unwrap().map_page_bytes, 0);
    assert_clean(&db);
}

#[test]
fn stores_share_pages_and_go_one_by_one() {
    let dir = tempfile::tempdir().unwrap();
    let db = create_without_history(dir.path(), Some(256 << 20));
    db.stores().create("one", "files", None, None).unwrap();
    let bytes = pattern(9 * MIB, 1);
    let root = db.nodes().resolve(b"/one", false).unwrap().node;
    put(&db, root, "a", &bytes);
    clone(&db, "/one", "/two");
    clone(&db, "/two", "/three");
    assert_eq!(pages(&db), (2, 6));
    assert_clean(&db);
    db.stores().destroy("one").unwrap();
    assert_eq!(pages(&db), (2, 4), "SHARE-7");
    assert_clean(&db);
    assert!(db.files().read(b"/two/a").unwrap() == bytes);
    db.stores().destroy("three").unwrap();
    assert_eq!(pages(&db).1, 2);
    assert!(db.files().read(b"/two/a").unwrap() == bytes);
    db.stores().destroy("two").unwrap();
    assert_eq!(pages(&db).1, 0);
    assert_clean(&db);
}

#[test]
fn copies_of_ranges_share_pages_that_are_the_same() {
    let dir = tempfile::tempdir().unwrap();
    let db = create_without_history(dir.path(), Some(256 << 20));
    let (a, mut b) = (pattern(17 * MIB, 1), pattern(17 * MIB, 2));
    put(&db, R, "a", &a);
    put(&db, R, "b", &b);
    db.sync().unwrap();
    let (from, to) = (
        db.nodes().resolve(b"/a", false).unwrap().node,
        db.nodes().resolve(b"/b", false).unwrap().node,
    );
    let (from, to) = (
        db.nodes().open(from, false).unwrap(),
        db.nodes().open(to, true).unwrap(),
    );
    let mut copy = |from_mib: usize, to_mib: usize, mib: usize| {
        let (start, end) = ((from_mib * MIB) as u64, (to_mib * MIB) as u64);
        let mut done = 0;
        while done < (mib * MIB) as u64 {
            let left = (mib * MIB) as u64 - done;
            done += copy_range((&*from, start + done), (&*to, end + done), left).unwrap();
        }
        let part = a[from_mib * MIB..(from_mib + mib) * MIB].to_vec();
        b[to_mib * MIB..(to_mib + mib) * MIB].copy_from_slice(&part);
        assert!(db.files().read(b"/b").unwrap() == b);
        pages(&db)
    };
    assert_eq!(copy(0, 8, 8), (1, 2), "another page of the file");
    assert_eq!(copy(8, 8, 4), (1, 1), "half of it is another one by now");
    assert_eq!(copy(12, 12, 4), (2, 3), "and now the other half");
    assert_eq!(copy(16, 1, 1), (2, 3), "not the same blocks of a page");
    assert_clean(&db);
}

#[test]
fn long_transactions_see_and_merge_pages() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(512 << 20));
    let bytes = pattern(17 * MIB, 1);
    for path in ["before", "x"] {
        put(&db, R, path, &bytes);
    }
    clone(&db, "/before", "/shared");
    clone(&db, "/before", "/gone");
    db.sync().unwrap();
    drop(db);
    let path = dir.path().join("t.larder");
    let long = begin(&path);
    let inside = long.database().unwrap();
    let (mut before, mut shared, mut x) = (bytes.clone(), bytes.clone(), bytes.clone());
    write_both(inside, "/before", &mut before, 9 * MIB, &pattern(9000, 2));
    write_both(inside, "/shared", &mut shared, MIB, &pattern(9000, 3));
    write_both(inside, "/x", &mut x, MIB, &pattern(9000, 4));
    put(inside, R, "new", &pattern(3 * MIB, 5));
    remove(inside, b"/gone");
    inside.sync().unwrap();
    assert!(inside.files().read(b"/before").unwrap() == before);
    assert!(inside.files().read(b"/shared").unwrap() == shared);
    // Meanwhile the parent makes references of pages, and lets the pages go that the workspace
    // began with.
    let db = open(dir.path());
    clone(&db, "/x", "/y");
    clone(&db, "/shared", "/again");
    db.sync().unwrap();
    remove(&db, b"/again");
    forget(&db);
    assert_clean(&db);
    assert!(inside.files().read(b"/before").unwrap() == before);
    let outcome = long.commit().unwrap();
    assert_eq!(conflicts(outcome), Vec::<String>::new());
    for (path, model) in [
        ("/before", &before),
        ("/shared", &shared),
        ("/x", &x),
        ("/y", &bytes),
        ("/new", &pattern(3 * MIB, 5)),
    ] {
        assert!(
            db.files().read(path.as_bytes()).unwrap() == *model,
            "{path}"
        );
    }
    assert!(db.nodes().resolve(b"/gone", false).is_err());
    assert_clean(&db);
    for path in [&b"/before"[..], b"/shared", b"/x", b"/y", b"/new"] {
        remove(&db, path);
        db.sync().unwrap();
        assert_clean(&db);
    }
    assert_eq!(pages(&db).1, 0);
    forget(&db);
    assert_eq!(pages(&db), (0, 0), "SHARE-7");
}

#[test]
fn a_conflict_leaves_the_counts_as_they_were() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    let bytes = pattern(9 * MIB, 1);
    put(&db, R, "a", &bytes);
    clone(&db, "/a", "/b");
    db.sync().unwrap();
    drop(db);
    let long = begin(&dir.path().join("t.larder"));
    write(long.database().unwrap(), "/a", 0, &pattern(9000, 2));
    long.database().unwrap().sync().unwrap();
    let db = open(dir.path());
    write(&db, "/a", 4096, &pattern(9000, 3));
    let before = pages(&db);
    assert_eq!(before, (2, 3));
    let outcome = long.commit().unwrap();
    assert_eq!(conflicts(outcome).len(), 1);
    assert_eq!(pages(&db), before);
    assert!(db.files().read(b"/b").unwrap() == bytes);
    assert_clean(&db);
}

#[test]
fn an_aborted_transaction_shares_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    mkdir(&db, "/t");
    let root = db.nodes().resolve(b"/t", false).unwrap().node;
    put(&db, root, "a", &pattern(9 * MIB, 1));
    db.sync().unwrap();
    for commits in [false, true] {
        let transaction = db.transactions().begin().unwrap();
        let from = transaction.nodes().resolve(b"/t/a", false).unwrap().node;
        let copy = |name: &str| {
            let to = put(&transaction, R, name, b"");
            let (source, target) = (
                transaction.nodes().open(from, false).unwrap(),
                transaction.nodes().open(to, true).unwrap(),
            );
            copy_range((&*source, 0), (&*target, 0), u64::MAX).unwrap();
        };
        copy("b");
        let savepoint = transaction.savepoint().unwrap();
        copy("c");
        transaction.roll_back_to(savepoint).unwrap();
        copy("d");
        match commits {
            true => transaction.commit().unwrap(),
            false => transaction.abort(),
        }
        assert_eq!(pages(&db).1, if commits { 6 } else { 0 }, "SHARE-7");
        assert_clean(&db);
    }
    assert!(db.files().read(b"/b").unwrap() == db.files().read(b"/d").unwrap());
}

// ---- crashes
// -------------------------------------------------------------------------------------------------

const ROUNDS: u64 = 40;
/// Blocks of a file: its page is long enough to be shared.
const FILE: usize = 60 * KIB;

/// What round `number` leaves: `/a`, and its clone of the last round with some bytes of its own.
fn expected(number: u64) -> [Vec<u8>; 2] {
    let origin = pattern(FILE, 2 * (number / 4));
    let mut clone = origin.clone();
    clone[5000..5100].copy_from_slice(&mark(number));
    [origin, clone]
}

fn mark(number: u64) -> Vec<u8> {
    pattern(100, 1000 + 2 * number)
}

/// Each a transaction: the clone goes, the origin is written anew now and then, a new clone, some
/// bytes in it.
fn step(db: &Database, number: u64) -> larder::Result<()> {
    db.transactions().run(|txn| {
        if number > 1 {
            let (parent, name) = txn.nodes().resolve_parent(b"/b")?;
            txn.nodes().unlink(parent, &name)?;
        }
        if number == 1 || number.is_multiple_of(4) {
            txn.files().write(b"/a", &expected(number)[0])?;
        }
        txn.files()
            .write(b"/number", number.to_string().as_bytes())
            .map(drop)
    })?;
    // Not in the transaction, which makes redo rows of what it has put.
    db.files().clone_path(None, b"/a", b"/c")?;
    db.transactions().run(|txn| {
        let from = txn.nodes().resolve_parent(b"/c")?;
        let to = txn.nodes().resolve_parent(b"/b")?;
        txn.nodes()
            .rename(from.0, &from.1, to.0, &to.1, larder::RenameMode::Replace)?;
        let node = txn.nodes().resolve(b"/b", false)?.node;
        txn.nodes()
            .open(node, true)?
            .write_at(5000, &mark(number))
            .map(drop)
    })
}

fn options(engine: EngineOptions) -> DatabaseOptions {
    DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    }
}

fn record() -> (Recording, usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let recorder = Recorder::new();
    let vfs = RecordingVfs::register(&recorder);
    let engine = EngineOptions {
        storage: Some(Arc::new(SimStorage::recording(&recorder))),
        catalog_vfs: Some(vfs.name().to_owned()),
        has_background: false,
        redo_bytes_max: 500_000,
        ..EngineOptions::default()
    };
    let create = CreateOptions {
        capacity_bytes: Some(32 << 20),
        retention_ns: Some(0),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &create, &engine).unwrap();
    let db = Database::open(&path, options(engine)).unwrap();
    recorder.sync_names();
    recorder.ack(0);
    let created = recorder.position();
    let mut most = 0;
    for number in 1..=ROUNDS {
        step(&db, number).unwrap();
        recorder.ack(number);
        most = most.max(pages(&db).0);
    }
    db.close().unwrap();
    assert!(most > 0, "no page is shared: not tested");
    (recorder.finish(), created)
}

/// What is wrong with a state, if anything is.
fn find_fault(state: &CrashState) -> Option<String> {
    replay::find_fault(state, |db, acked| {
        assert_clean(db);
        let get = |path: &str| db.files().read(path.as_bytes()).ok();
        let number = get("/number").map_or(0, |text| {
            String::from_utf8(text).unwrap().parse::<u64>().unwrap()
        });
        assert!(number >= acked, "{number} is there, {acked} was committed");
        if number > 0 {
            let [a, b] = expected(number);
            assert!(get("/a") == Some(a.clone()), "the origin of {number}");
            let clone = get("/c");
            assert!(clone.is_none_or(|clone| clone == a), "CLONE-1");
            let changed = get("/b");
            assert!(
                changed.is_some() || number > acked,
                "{number} was committed"
            );
            assert!(changed.is_none_or(|changed| changed == b), "CLONE-1");
        }
    })
}

#[test]
fn every_crash_leaves_counts_that_are_right() {
    let (recording, created) = record();
    replay::require_sound(&recording, created, 300, find_fault);
    // The negative control: the flush of segments before COMMIT.
    let without = recording.without_flushes(|file| file.starts_with(SEGMENTS));
    let is_found = replay::has_fault(&without, created, "", find_fault);
    assert!(is_found, "nobody misses the flushes of segments");
}
