//! Crash replay of transactions that share the flush of their commits: each is there wholly or not at all, and
//! those whose commit returned are (`CONTENT-6`, `FLUSH-1`), while the session syncs and applies patches beside.
//! And who sees what, while nobody may see what is not durable.
//!
//! `LARDER_CRASH_SEED` and `LARDER_CRASH_POINTS` choose another run.
#![allow(clippy::unwrap_used)] // All of it is a test.

mod common;

use common::{assert_clean, make, pattern, sql};
use larder::{
    CreateOptions, Database, ErrorKind, NodeId, OpenOptions, SqlValue, Transaction,
    TransactionOptions,
};
use larder_object::EngineOptions;
use larder_testkit::{CrashState, Event, Recorder, Recording, RecordingVfs, SimStorage};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const THREADS: u64 = 4;
const EACH: u64 = 25;
/// Blocks of a file that lies where it lay.
const OLD_BLOCKS: u64 = 4;
const LOG: &str = "catalog.db-wal";

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// In memory, if there is such a place.
fn scratch() -> tempfile::TempDir {
    let memory = tempfile::tempdir_in("/dev/shm");
    memory.unwrap_or_else(|_| tempfile::tempdir().unwrap())
}

fn options(engine: EngineOptions) -> OpenOptions {
    OpenOptions {
        label: "test".into(),
        engine,
        ..OpenOptions::default()
    }
}

fn content(thread: u64, number: u64) -> Vec<u8> {
    pattern((number as usize * 977) % 12_000, 1 + thread * 1000 + number)
}

/// What block `number % OLD_BLOCKS` of a thread's old file holds after transaction `number`.
fn block(thread: u64, number: u64) -> Vec<u8> {
    pattern(4096, 7 + thread * 1000 + number)
}

/// Transaction `number` of a thread: a file that is new, in place of its last one; an overwrite in an old one, which
/// becomes a patch; and a row.
fn step(txn: &Transaction, thread: u64, number: u64) -> larder::Result<()> {
    let path = |number: u64| format!("/t{thread}/new-{number}");
    txn.put(path(number).as_bytes(), &content(thread, number))?;
    if number > 1 {
        let (parent, name) = txn.resolve_parent(path(number - 1).as_bytes())?;
        txn.unlink(parent, &name)?;
    }
    let old = txn
        .resolve(format!("/t{thread}/old").as_bytes(), true)?
        .node;
    let handle = txn.open_file(old, true)?;
    handle.write_at(number % OLD_BLOCKS * 4096, &block(thread, number))?;
    drop(handle);
    let values = [number, thread].map(|value| SqlValue::Integer(value as i64));
    txn.sql("UPDATE state SET n = ?1 WHERE thread = ?2", &values)
        .map(drop)
}

/// How far each thread has come; panics unless everything is of that.
fn numbers_of(db: &Database) -> Vec<u64> {
    let txn = db.begin().unwrap();
    let rows = txn.sql("SELECT n FROM state ORDER BY thread", &[]).unwrap();
    let number = |value: &SqlValue| match value {
        SqlValue::Integer(number) => *number as u64,
        other => panic!("{other:?}"),
    };
    let numbers: Vec<u64> = rows.rows.iter().map(|row| number(&row.values[0])).collect();
    for (thread, &number) in (0..).zip(&numbers) {
        for other in number.saturating_sub(1).max(1)..=number + 1 {
            let found = txn.get(format!("/t{thread}/new-{other}").as_bytes());
            let wanted = match other == number {
                true => Ok(content(thread, number)),
                false => Err(ErrorKind::NotFound),
            };
            assert_eq!(found.map_err(|error| error.kind()), wanted, "CONTENT-6");
        }
        let old = txn.get(format!("/t{thread}/old").as_bytes()).unwrap();
        for index in 0..OLD_BLOCKS {
            let newest = (0..=number).rev().find(|one| one % OLD_BLOCKS == index);
            let wanted = block(thread, newest.unwrap_or(index));
            let at = index as usize * 4096;
            assert!(old[at..at + 4096] == wanted, "CONTENT-6: {thread}, {index}");
        }
    }
    numbers
}

fn commit_one(db: &Database, thread: u64, number: u64) {
    let options = TransactionOptions {
        takes_turn: true,
        ..TransactionOptions::default()
    };
    let txn = db.begin_with(&options).unwrap();
    step(&txn, thread, number).unwrap();
    txn.commit().unwrap();
}

fn pack(acked: &[u64]) -> u64 {
    acked.iter().rev().fold(0, |all, one| all << 16 | one)
}

/// What threads do at once, with an ack after each commit, and where it began.
fn record() -> (Recording, usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let recorder = Recorder::new();
    let vfs = RecordingVfs::register(&recorder);
    let engine = EngineOptions {
        storage: Some(Arc::new(SimStorage::recording(&recorder))),
        catalog_vfs: Some(vfs.name().to_owned()),
        // Small enough to be written in place now and then. With a background: only that gives the turn back when
        // a transaction waits for it behind others.
        patch_bytes_max: 1_000_000,
        ..EngineOptions::default()
    };
    let create = CreateOptions {
        capacity_bytes: Some(32 << 20),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &create, &engine).unwrap();
    let db = Database::open(&path, options(engine)).unwrap();
    sql::run(
        &mut db.sql(false).unwrap(),
        "CREATE TABLE state (thread INTEGER PRIMARY KEY, n INTEGER)",
    )
    .unwrap();
    for thread in 0..THREADS {
        let directory = sql::directory(&db, NodeId::ROOT, &format!("t{thread}"));
        let old = make(&db, directory, "old");
        let bytes: Vec<u8> = (0..OLD_BLOCKS).flat_map(|one| block(thread, one)).collect();
        db.open_file(old, true)
            .unwrap()
            .write_at(0, &bytes)
            .unwrap();
        let insert = format!("INSERT INTO state VALUES ({thread}, 0)");
        sql::run(&mut db.sql(false).unwrap(), &insert).unwrap();
    }
    db.sync().unwrap();
    recorder.sync_names();
    recorder.ack(0);
    let created = recorder.position();
    let acked = (Mutex::new(vec![0; THREADS as usize]), Condvar::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, recorder, (acked, has_acked)) = (&db, &recorder, &acked);
            scope.spawn(move || {
                for number in 1..=EACH {
                    commit_one(db, thread, number);
                    let mut acked = acked.lock().unwrap();
                    acked[thread as usize] = number;
                    recorder.ack(pack(&acked));
                    has_acked.notify_one();
                }
            });
        }
        // The session changes, syncs and applies beside them, now and then.
        let (acked, has_acked) = &acked;
        for count in (5..THREADS * EACH).step_by(5) {
            let all = acked.lock().unwrap();
            let is_early = |all: &mut Vec<u64>| all.iter().sum::<u64>() < count;
            let patience = Duration::from_secs(120);
            drop(
                has_acked
                    .wait_timeout_while(all, patience, is_early)
                    .unwrap(),
            );
            db.put(b"/beside", &pattern(20_000, count)).unwrap();
            db.sync().unwrap();
        }
    });
    assert_eq!(numbers_of(&db), vec![EACH; THREADS as usize]);
    db.close().unwrap();
    (recorder.finish(), created)
}

/// What is wrong with a state, if anything is.
fn find_fault(state: &CrashState) -> Option<String> {
    let directory = scratch();
    state.disk.write_catalog(directory.path()).unwrap();
    let engine = EngineOptions {
        storage: Some(Arc::new(SimStorage::load(&state.disk, None))),
        has_background: false,
        ..EngineOptions::default()
    };
    let acked = state.acked.unwrap_or(0);
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        let db = Database::open(directory.path(), options(engine)).unwrap();
        let numbers = numbers_of(&db);
        for (thread, &number) in numbers.iter().enumerate() {
            let acked = acked >> (16 * thread) & 0xffff;
            assert!(number >= acked, "{number} is there, {acked} was committed");
        }
        assert_clean(&db);
        // And it goes on.
        commit_one(&db, 0, numbers[0] + 1);
        assert_eq!(numbers_of(&db)[0], numbers[0] + 1);
        db.close().unwrap();
    }));
    looked.err().map(|why| match why.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => "it panics".into(),
    })
}

/// Events of the log: whether a flush, and whether it, or the write before it, is of its head.
fn log_events(recording: &Recording) -> Vec<(usize, bool, bool)> {
    let mut is_head = false;
    let mut found = Vec::new();
    for (index, event) in recording.events.iter().enumerate() {
        match event {
            Event::Write {
                file, offset_bytes, ..
            } if &**file == LOG => {
                is_head = *offset_bytes < 32;
                found.push((index, false, is_head));
            }
            Event::Flush { file, .. } if &**file == LOG => found.push((index, true, is_head)),
            _ => {}
        }
    }
    found
}

#[test]
fn every_crash_leaves_those_who_share_a_flush_whole_or_not_at_all() {
    let points = setting("LARDER_CRASH_POINTS", 300) as usize;
    let seed = setting("LARDER_CRASH_SEED", 1);
    let (recording, created) = record();
    let log = log_events(&recording);
    for pair in log.windows(2) {
        let ((_, is_flush, is_head), (next, is_flushed, _)) = (pair[0], pair[1]);
        assert!(is_flush || !is_head || is_flushed, "LOG-4: event {next}");
    }
    let behind = log.iter().filter(|(index, ..)| *index >= created);
    let kinds: Vec<bool> = behind.map(|(_, is_flush, _)| *is_flush).collect();
    let shared = kinds
        .windows(2)
        .filter(|pair| pair == &[false, false])
        .count();
    assert!(
        shared > 10,
        "only {shared} commits left out their flush: not tested"
    );
    let mut count = 0;
    for state in recording.states(created, seed, points) {
        count += 1;
        if let Some(fault) = find_fault(&state) {
            panic!("seed {seed}: {state}: {fault}");
        }
    }
    assert_eq!(count, points, "the log has too few states");
    // The negative control: no flush of the log but that of its head.
    let mut without = recording.clone();
    for (index, is_flush, is_head) in log {
        if let (true, false, Event::Flush { covers, .. }) =
            (is_flush, is_head, &mut without.events[index])
        {
            *covers = 0;
        }
    }
    let hook = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    let mut faults = without
        .states(created, seed, 150)
        .filter_map(|state| find_fault(&state));
    let is_found = faults.any(|fault| fault.contains("was committed"));
    std::panic::set_hook(hook);
    assert!(is_found, "FLUSH-1: nobody misses the flushes of the log");
}

/// How many of `EACH` × `THREADS` commits have left out their flush.
fn count_shared(
    path: &Path,
    recorder: &Recorder,
    vfs: &RecordingVfs,
    while_open: impl FnOnce(&Database),
) -> usize {
    let engine = EngineOptions {
        catalog_vfs: Some(vfs.name().to_owned()),
        has_background: false,
        ..EngineOptions::default()
    };
    let db = Database::open(path, options(engine)).unwrap();
    while_open(&db);
    let from = recorder.position();
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = &db;
            scope.spawn(move || {
                for number in 0..EACH {
                    db.transaction(|txn| {
                        let path = format!("/{thread}-{number}");
                        txn.put(path.as_bytes(), b"x").map(drop)
                    })
                    .unwrap();
                }
            });
        }
    });
    let recording = recorder.finish();
    db.close().unwrap();
    let log = log_events(&recording);
    let kinds: Vec<bool> = (log.iter().filter(|(index, ..)| *index >= from))
        .map(|(_, is_flush, _)| *is_flush)
        .collect();
    kinds
        .windows(2)
        .filter(|pair| pair == &[false, false])
        .count()
}

/// FLUSH-2
#[test]
fn no_flush_is_left_out_while_others_may_look() {
    let count = |while_open: &dyn Fn(&Database, &Path)| {
        let dir = tempfile::tempdir().unwrap();
        common::create(dir.path(), None).close().unwrap();
        let path = dir.path().join("t.larder");
        let recorder = Recorder::new();
        let vfs = RecordingVfs::register(&recorder);
        count_shared(&path, &recorder, &vfs, |db| while_open(db, &path))
    };
    assert!(count(&|_, _| {}) > 0, "nobody shares a flush: not tested");
    assert_eq!(
        count(&|db, _| {
            db.set_feed(true).unwrap();
        }),
        0,
        "FLUSH-2"
    );
    let others = Mutex::new(Vec::new());
    let open_beside = |_: &Database, path: &Path| {
        let beside = Database::open(path, OpenOptions::default()).unwrap();
        others.lock().unwrap().push(beside);
    };
    assert_eq!(count(&open_beside), 0, "FLUSH-2: a session");
    let shells = Mutex::new(Vec::new());
    let shell_beside = |_: &Database, path: &Path| {
        let mut shell = Command::new("sqlite3")
            .arg(path.join("catalog.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let mut input = shell.stdin.take().unwrap();
        std::io::Write::write_all(&mut input, b"SELECT 1 FROM larder_store;\n").unwrap();
        let mut byte = [0];
        let output = shell.stdout.as_mut().unwrap();
        std::io::Read::read_exact(output, &mut byte).unwrap();
        shells.lock().unwrap().push((shell, input));
    };
    assert_eq!(count(&shell_beside), 0, "FLUSH-2: a shell");
    for (mut shell, input) in shells.into_inner().unwrap() {
        drop(input);
        shell.wait().unwrap();
    }
}
