//! Clones and restores of the past take over what the history keeps, and copy nothing: what that
//! costs, that every past stays what it was, and that nobody gives such blocks out. `SHARE-9`,
//! `SHARE-10`, `SHARE-4`, `HISTORY-3`, `HISTORY-8`.
//!
//! `LARDER_CRASH_SEED` and `LARDER_CRASH_POINTS` choose another run.

use crate::common::moments::{Clock, HOUR};
use crate::common::workspace::{mkdir, remove, rmdir};
use crate::common::{assert_clean, kind, pattern, put};
use larder::{
    CreateOptions, Database, DatabaseOptions, DefragOptions, ErrorKind, Moment, NodeId, PruneCut,
    RestoreOptions, RestoreReport, copy_range,
};
use larder_object::EngineOptions;
use larder_testkit::{CrashState, Event, Recorder, Recording, RecordingVfs, SEGMENTS, SimStorage};
use std::sync::Arc;

const R: NodeId = NodeId::ROOT;
const MIB: usize = 1 << 20;
const KIB: usize = 1 << 10;

fn at(db: &Database, name: &str) -> Database {
    db.as_of(&Moment::Snapshot(name.into())).unwrap()
}

fn snapshot(db: &Database, name: &str) {
    db.sync().unwrap();
    db.snapshots().create(name).unwrap();
}

fn write(db: &Database, path: &str, offset: usize, bytes: &[u8]) {
    let node = db.nodes().resolve(path.as_bytes(), false).unwrap().node;
    let file = db.nodes().open(node, true).unwrap();
    file.write_at(offset as u64, bytes).unwrap();
}

/// The same, to what it should hold too.
fn write_both(db: &Database, path: &str, model: &mut Vec<u8>, offset: usize, bytes: &[u8]) {
    write(db, path, offset, bytes);
    model.resize(model.len().max(offset + bytes.len()), 0);
    model[offset..offset + bytes.len()].copy_from_slice(bytes);
}

fn restore(db: &Database, name: &str, path: &str) -> RestoreReport {
    let past = at(db, name);
    let report = db
        .history()
        .restore(&past, Some(path.as_bytes()), &RestoreOptions::default());
    past.close().unwrap();
    report.unwrap()
}

/// Bytes that are not free.
fn used(db: &Database) -> u64 {
    db.sync().unwrap();
    let space = db.maintenance().space().unwrap();
    space.live_bytes + space.retired_bytes
}

fn live(db: &Database) -> u64 {
    db.sync().unwrap();
    db.maintenance().space().unwrap().live_bytes
}

/// All history goes that no snapshot keeps.
fn prune(db: &Database) {
    db.sync().unwrap();
    db.history().prune(PruneCut::All, None, false).unwrap();
    assert_clean(db);
}

/// Redo rows are written in place.
fn apply(db: &Database) {
    db.maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
}

fn options(engine: EngineOptions) -> DatabaseOptions {
    DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    }
}

#[test]
fn a_deleted_tree_comes_back_without_its_bytes() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let recorder = Recorder::new();
    let vfs = RecordingVfs::register(&recorder);
    let engine = EngineOptions {
        storage: Some(Arc::new(SimStorage::recording(&recorder))),
        catalog_vfs: Some(vfs.name().to_owned()),
        has_background: false,
        ..EngineOptions::default()
    };
    let create = CreateOptions {
        capacity_bytes: Some(160 << 20),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &create, &engine).unwrap();
    let db = Database::open(&path, options(engine)).unwrap();
    mkdir(&db, "/t");
    mkdir(&db, "/t/u");
    let file = |number: u64| pattern(MIB + 100 * number as usize, number);
    let name = |number: u64| match number % 2 {
        0 => format!("/t/{number}"),
        _ => format!("/t/u/{number}"),
    };
    for number in 0..64 {
        db.files()
            .write(name(number).as_bytes(), file(number))
            .unwrap();
    }
    snapshot(&db, "s");
    for number in 0..64 {
        remove(&db, name(number).as_bytes());
    }
    rmdir(&db, "/t/u");
    rmdir(&db, "/t");
    let before = used(&db);
    assert_eq!(live(&db), 0);
    let began = recorder.position();
    let report = restore(&db, "s", "/t");
    let ended = recorder.position();
    let total: u64 = (0..64).map(|number| file(number).len() as u64).sum();
    assert_eq!((report.content_bytes, report.copied_bytes), (total, 0));
    assert_eq!(used(&db), before, "it takes no space");
    assert_eq!(live(&db), before);
    for number in 0..64 {
        assert!(db.files().read(name(number).as_bytes()).unwrap() == file(number));
    }
    assert_clean(&db);
    // The history goes, the files stay; what a prune frees is what it says.
    db.snapshots().destroy("s").unwrap();
    prune(&db);
    assert_eq!(used(&db), before);
    remove(&db, name(0).as_bytes());
    db.sync().unwrap();
    let freed = db.history().prune(PruneCut::All, None, true).unwrap();
    let freed = freed.report.freed;
    let bytes: u64 = freed.iter().map(|store| store.bytes).sum();
    assert_eq!(bytes, MIB as u64);
    prune(&db);
    assert_eq!(used(&db), before - bytes);
    for number in 1..64 {
        assert!(db.files().read(name(number).as_bytes()).unwrap() == file(number));
    }
    db.close().unwrap();
    let recording = recorder.finish();
    let written = |is_meant: &dyn Fn(&str) -> bool| -> u64 {
        let events = recording.events[began..ended].iter();
        let bytes = events.map(|event| match event {
            Event::Write { file, bytes, .. } if is_meant(file) => bytes.len_bytes(),
            _ => 0,
        });
        bytes.sum()
    };
    let segments = written(&|file| file.starts_with(SEGMENTS));
    let all = written(&|_| true);
    println!("a restore of {total} bytes writes {all}");
    assert_eq!(segments, 0, "no content is written");
    assert!(all < total / 100, "{all} of {total}");
}

#[test]
fn a_clone_of_a_snapshot_shares_what_lives_and_what_is_gone() {
    let dir = tempfile::tempdir().unwrap();
    // So that small overwrites are applied when enough wait.
    let clock = Clock::applying_redo_at(64 << 10);
    let db = clock.create(dir.path(), 128, HOUR);
    let then = pattern(4 * MIB + 777, 1);
    put(&db, R, "a", &then);
    snapshot(&db, "s");
    let mut now = then.clone();
    // Written elsewhere; in place, so that the block that was there is copied before; waiting; and
    // moved.
    write_both(&db, "/a", &mut now, MIB, &pattern(MIB, 2));
    db.sync().unwrap();
    for at in 0..5 {
        write_both(&db, "/a", &mut now, 3 * MIB + at * 9000, &pattern(100, 3));
        db.sync().unwrap();
    }
    apply(&db);
    write_both(&db, "/a", &mut now, 100, &pattern(10, 4));
    db.sync().unwrap();
    assert_clean(&db);
    let before = used(&db);
    let past = at(&db, "s");
    let report = db.files().clone_path(Some(&past), b"/a", b"/b").unwrap();
    assert_eq!(report.content_bytes, then.len() as u64);
    assert_eq!(
        report.copied_bytes, 0,
        "pre-images and relocations are shared too"
    );
    // What waited was written in place before, behind a copy.
    assert!(used(&db) - before <= 4096, "{}", used(&db) - before);
    assert!(db.files().read(b"/b").unwrap() == then);
    assert_clean(&db);
    // Neither side sees the other, nor does the past.
    let mut b = then.clone();
    let edits = [(0, 10), (100, 5000), (MIB + 5, 100), (3 * MIB, 60_000)];
    for (round, (offset, len)) in edits.into_iter().enumerate() {
        write_both(
            &db,
            "/a",
            &mut now,
            offset,
            &pattern(len, 10 + round as u64),
        );
        write_both(
            &db,
            "/b",
            &mut b,
            offset + 1,
            &pattern(len, 20 + round as u64),
        );
        db.sync().unwrap();
        apply(&db);
        assert!(db.files().read(b"/a").unwrap() == now && db.files().read(b"/b").unwrap() == b);
        assert!(past.files().read(b"/a").unwrap() == then, "HISTORY-3");
        assert_clean(&db);
    }
    past.close().unwrap();
    db.snapshots().destroy("s").unwrap();
    prune(&db);
    assert!(db.files().read(b"/a").unwrap() == now && db.files().read(b"/b").unwrap() == b);
}

#[test]
fn what_lay_in_redo_rows_is_copied() {
    let dir = tempfile::tempdir().unwrap();
    let db = Clock::new().create(dir.path(), 128, HOUR);
    let mut then = pattern(2 * MIB, 1);
    put(&db, R, "a", &then);
    db.sync().unwrap();
    // It waits at the snapshot, and when it is cloned it was in place and is written over.
    write_both(&db, "/a", &mut then, MIB + 1, &pattern(100, 2));
    snapshot(&db, "s");
    apply(&db);
    write(&db, "/a", MIB + 1, &pattern(50, 3));
    db.sync().unwrap();
    apply(&db);
    remove(&db, b"/a");
    db.sync().unwrap();
    let report = restore(&db, "s", "/a");
    assert!(report.copied_bytes > 0 && report.copied_bytes <= 16 << 10);
    assert!(db.files().read(b"/a").unwrap() == then);
    assert_clean(&db);
}

#[test]
fn every_past_stays_what_it_was() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::applying_redo_at(16 << 10);
    let db = clock.create(dir.path(), 128, HOUR);
    let mut model = pattern(2 * MIB, 1);
    put(&db, R, "a", &model);
    let mut states: Vec<(String, Option<Vec<u8>>)> = Vec::new();
    let mut note = |db: &Database, model: Option<&Vec<u8>>| {
        let name = format!("s{}", states.len());
        snapshot(db, &name);
        states.push((name, model.cloned()));
        for (name, model) in &states {
            let past = at(db, name);
            assert!(past.files().read(b"/a").ok() == *model, "{name}: HISTORY-3");
            past.close().unwrap();
        }
        assert_clean(db);
    };
    note(&db, Some(&model));
    for round in 0..4 {
        remove(&db, b"/a");
        note(&db, None);
        // Alternating: the whole of it, or what it has become in the round before.
        let from = if round % 2 == 0 { "s0" } else { "s2" };
        let report = restore(&db, from, "/a");
        assert_eq!(report.copied_bytes, 0);
        model = pattern(2 * MIB, 1);
        if from == "s2" {
            let past = at(&db, "s2");
            model = past.files().read(b"/a").unwrap();
            past.close().unwrap();
        }
        assert!(db.files().read(b"/a").unwrap() == model);
        // In place, and moved.
        for at in 0..6 {
            let bytes = pattern(200, 10 * round + at);
            write_both(&db, "/a", &mut model, at as usize * 90_001, &bytes);
            db.sync().unwrap();
        }
        apply(&db);
        note(&db, Some(&model));
        write_both(&db, "/a", &mut model, 700_000, &pattern(300_000, round));
        for _ in 0..3 {
            db.maintenance().compact_step().unwrap();
        }
        note(&db, Some(&model));
    }
    // The oldest go first: of what is left nothing is lost.
    let names: Vec<String> = states.iter().map(|(name, _)| name.clone()).collect();
    for (gone, name) in names.iter().enumerate() {
        db.snapshots().destroy(name).unwrap();
        prune(&db);
        for (name, model) in &states[gone + 1..] {
            let past = at(&db, name);
            assert!(past.files().read(b"/a").ok() == *model, "{name}: HISTORY-3");
            past.close().unwrap();
        }
    }
    assert!(db.files().read(b"/a").unwrap() == model);
    remove(&db, b"/a");
    db.sync().unwrap();
    prune(&db);
    assert_eq!(used(&db), 0);
}

#[test]
fn a_changed_file_gets_its_blocks_back() {
    let dir = tempfile::tempdir().unwrap();
    let db = Clock::new().create(dir.path(), 128, HOUR);
    let then = pattern(6 * MIB + 10, 1);
    let node = put(&db, R, "a", &then);
    snapshot(&db, "s");
    write(&db, "/a", MIB, &pattern(3 * MIB, 2));
    write(&db, "/a", 100, &pattern(10, 2)); // It waits.
    let before = used(&db);
    let report = restore(&db, "s", "/a");
    assert_eq!(report.content_bytes, then.len() as u64);
    assert_eq!(report.copied_bytes, 0);
    assert_eq!(used(&db), before);
    assert_eq!(db.nodes().resolve(b"/a", false).unwrap().node, node);
    assert!(db.files().read(b"/a").unwrap() == then);
    assert_clean(&db);
    // What was undone is history.
    write(&db, "/a", 100, &pattern(10, 3));
    db.sync().unwrap();
    apply(&db);
    assert_clean(&db);
    let past = at(&db, "s");
    assert!(past.files().read(b"/a").unwrap() == then);
    // Ranges of it, in a session and in a transaction that is given up.
    let from = past.nodes().resolve(b"/a", false).unwrap().node;
    let from = past.nodes().open(from, false).unwrap();
    let to = put(&db, R, "part", b"");
    db.sync().unwrap();
    let before = used(&db);
    let to = db.nodes().open(to, true).unwrap();
    let len = copy_range((&*from, 4096), (&*to, 0), 2 * MIB as u64).unwrap();
    assert_eq!(len, 2 * MIB as u64);
    assert_eq!(used(&db), before);
    assert!(db.files().read(b"/part").unwrap() == then[4096..4096 + 2 * MIB]);
    let transaction = db.transactions().begin().unwrap();
    let made = put(&transaction, R, "none", b"");
    let to = transaction.nodes().open(made, true).unwrap();
    let len = copy_range((&*from, 0), (&*to, 0), 1 << 30).unwrap();
    assert_eq!(len, then.len() as u64);
    assert!(transaction.files().read(b"/none").unwrap() == then);
    drop(to);
    transaction.abort();
    assert_eq!(used(&db), before);
    assert_clean(&db);
}

#[test]
fn stores_keep_what_others_took_back() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let db = clock.create(dir.path(), 128, HOUR);
    for store in ["one", "two"] {
        db.stores().create(store, "files", None, None).unwrap();
    }
    let bytes = pattern(MIB, 1);
    db.files().write(b"/one/a", &bytes).unwrap();
    db.files().write(b"/one/b", pattern(MIB, 2)).unwrap();
    snapshot(&db, "s");
    remove(&db, b"/one/a");
    remove(&db, b"/one/b");
    db.sync().unwrap();
    let past = at(&db, "s");
    let report = db
        .files()
        .clone_path(Some(&past), b"/one/a", b"/two/a")
        .unwrap();
    assert_eq!(report.copied_bytes, 0);
    let report = db
        .files()
        .clone_path(Some(&past), b"/one", b"/three")
        .unwrap();
    assert!(report.is_store && report.copied_bytes == 0, "{report:?}");
    assert_clean(&db);
    past.close().unwrap();
    // The one that has it now forgets at once, the one that had it does not (`HISTORY-8`).
    remove(&db, b"/two/a");
    db.stores().destroy("three").unwrap();
    db.sync().unwrap();
    clock.pass(HOUR / 60);
    db.history()
        .prune_store("two", PruneCut::All, false)
        .unwrap();
    db.files().write(b"/two/new", pattern(30 * MIB, 3)).unwrap();
    db.sync().unwrap();
    assert_clean(&db);
    let past = at(&db, "s");
    assert!(past.files().read(b"/one/a").unwrap() == bytes, "HISTORY-8");
    let report = db
        .files()
        .clone_path(Some(&past), b"/one/b", b"/two/b")
        .unwrap();
    assert_eq!(report.copied_bytes, 0);
    past.close().unwrap();
    db.snapshots().destroy("s").unwrap();
    db.stores().destroy("one").unwrap();
    prune(&db);
    assert!(db.files().read(b"/two/b").unwrap() == pattern(MIB, 2));
}

#[test]
fn no_session_gives_out_what_came_back() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    drop(clock.create(dir.path(), 64, HOUR));
    let (one, two) = (
        clock.open_with(dir.path(), true),
        clock.open_with(dir.path(), true),
    );
    let bytes = pattern(8 * MIB, 1);
    put(&one, R, "a", &bytes);
    snapshot(&one, "s");
    remove(&one, b"/a");
    one.sync().unwrap();
    // Both know the free set with that in quarantine.
    put(&two, R, "two", &pattern(MIB, 2));
    two.sync().unwrap();
    let report = restore(&one, "s", "/a");
    assert_eq!(report.copied_bytes, 0);
    one.snapshots().destroy("s").unwrap();
    // The past goes, and all that is free is written.
    clock.pass(2 * HOUR);
    let mut count = 0;
    let full = loop {
        let session = if count % 2 == 0 { &two } else { &one };
        let put = session
            .files()
            .write(format!("/f{count}").as_bytes(), pattern(MIB, count));
        match put.and_then(|_| session.sync()) {
            Ok(()) => count += 1,
            Err(error) => break error,
        }
    };
    assert_eq!(full.kind(), ErrorKind::NoSpace);
    assert!(count > 40, "{count}");
    for session in [&one, &two] {
        assert!(session.files().read(b"/a").unwrap() == bytes, "SHARE-9");
        for file in 0..count {
            let found = session
                .files()
                .read(format!("/f{file}").as_bytes())
                .unwrap();
            assert!(found == pattern(MIB, file));
        }
        assert_clean(session);
    }
    assert_eq!(
        kind(one.as_of(&Moment::Snapshot("s".into())).map(drop)),
        ErrorKind::NotFound
    );
}

// ---- crashes
// -------------------------------------------------------------------------------------------------

const ROUNDS: u64 = 30;
const FILE: usize = 60 * KIB;

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// What round `number` leaves: `/a`, and what it was in the round before, with some bytes of its
/// own.
fn expected(number: u64) -> [Vec<u8>; 2] {
    let mut b = pattern(FILE, 2 * (number - 1));
    b[5000..5100].copy_from_slice(&pattern(100, 1001 + 2 * number));
    [pattern(FILE, 2 * number), b]
}

/// The origin is written anew, what it was is taken back out of the history, some bytes of that
/// change, and the round before the last two is forgotten.
fn step(db: &Database, number: u64) -> larder::Result<()> {
    db.transactions().run(|txn| {
        txn.files().write(b"/a", &expected(number)[0])?;
        txn.files()
            .write(b"/number", number.to_string().as_bytes())
            .map(drop)
    })?;
    let past = db.as_of(&Moment::Snapshot(format!("s{}", number - 1)))?;
    let report = match number % 2 {
        0 => {
            db.files()
                .clone_path(Some(&past), b"/a", b"/c")?
                .copied_bytes
        }
        _ => {
            let to = RestoreOptions {
                to: Some(b"/c".to_vec()),
                ..RestoreOptions::default()
            };
            db.history().restore(&past, Some(b"/a"), &to)?.copied_bytes
        }
    };
    assert_eq!(report, 0, "round {number}");
    past.close()?;
    db.transactions().run(|txn| {
        let from = txn.nodes().resolve_parent(b"/c")?;
        let to = txn.nodes().resolve_parent(b"/b")?;
        txn.nodes()
            .rename(from.0, &from.1, to.0, &to.1, larder::RenameMode::Replace)?;
        let node = txn.nodes().resolve(b"/b", false)?.node;
        let bytes = &expected(number)[1][5000..5100];
        txn.nodes().open(node, true)?.write_at(5000, bytes)
    })?;
    db.snapshots().create(&format!("s{number}"))?;
    if number > 2 {
        db.snapshots().destroy(&format!("s{}", number - 3))?;
        db.history().prune(PruneCut::All, None, false)?;
    }
    Ok(())
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
        redo_bytes_max: 100_000,
        ..EngineOptions::default()
    };
    let create = CreateOptions {
        capacity_bytes: Some(32 << 20),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &create, &engine).unwrap();
    let db = Database::open(&path, options(engine)).unwrap();
    db.files().write(b"/a", pattern(FILE, 0)).unwrap();
    apply(&db);
    snapshot(&db, "s0");
    recorder.sync_names();
    recorder.ack(0);
    let created = recorder.position();
    for number in 1..=ROUNDS {
        step(&db, number).unwrap();
        recorder.ack(number);
    }
    db.close().unwrap();
    (recorder.finish(), created)
}

/// What is wrong with a state, if anything is.
fn find_fault(state: &CrashState) -> Option<String> {
    let directory = tempfile::tempdir().unwrap();
    state.disk.write_catalog(directory.path()).unwrap();
    let engine = EngineOptions {
        storage: Some(Arc::new(SimStorage::load(&state.disk, None))),
        has_background: false,
        ..EngineOptions::default()
    };
    let acked = state.acked.unwrap_or(0);
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let db = Database::open(directory.path(), options(engine)).unwrap();
        assert_clean(&db);
        let get = |db: &Database, path: &str| db.files().read(path.as_bytes()).ok();
        let number = get(&db, "/number").map_or(0, |text| {
            String::from_utf8(text).unwrap().parse::<u64>().unwrap()
        });
        assert!(number >= acked, "{number} is there, {acked} was committed");
        if number > 0 {
            let [a, b] = expected(number);
            assert!(get(&db, "/a") == Some(a), "{number}");
            let taken = get(&db, "/c");
            let was = pattern(FILE, 2 * (number - 1));
            assert!(taken.is_none_or(|taken| taken == was), "{number}: SHARE-9");
            let is_now = get(&db, "/b").is_some_and(|found| found == b);
            let is_before = number < 2 && get(&db, "/b").is_none()
                || number > 1 && get(&db, "/b") == Some(expected(number - 1)[1].clone());
            assert!(is_now || number > acked && is_before, "{number}");
        }
        for row in db.snapshots().list().unwrap() {
            let then: u64 = row.name[1..].parse().unwrap();
            let past = at(&db, &row.name);
            assert!(get(&past, "/a") == Some(pattern(FILE, 2 * then)), "s{then}");
            if then > 0 {
                let [_, b] = expected(then);
                assert!(get(&past, "/b") == Some(b), "s{then}: HISTORY-3");
            }
            past.close().unwrap();
        }
        db.close().unwrap();
    }));
    looked.err().map(|why| match why.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => "it panics".into(),
    })
}

#[test]
fn every_crash_leaves_one_holder_or_the_history() {
    let points = setting("LARDER_CRASH_POINTS", 300) as usize;
    let seed = setting("LARDER_CRASH_SEED", 1);
    let (recording, created) = record();
    let mut count = 0;
    for state in recording.states(created, seed, points) {
        count += 1;
        if let Some(fault) = find_fault(&state) {
            panic!("seed {seed}: {state}: {fault}");
        }
    }
    assert_eq!(count, points, "the log has too few states");
    // The negative control: the flush of segments before COMMIT.
    let without = recording.without_flushes(|file| file.starts_with(SEGMENTS));
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let is_found = without
        .states(created, seed, 150)
        .any(|state| find_fault(&state).is_some());
    std::panic::set_hook(hook);
    assert!(is_found, "nobody misses the flushes of segments");
}
