//! Crash replay of transactions that share the fsync of their commits: each is there wholly or not
//! at all, and those whose commit returned are (`CONTENT-6`, `FLUSH-1`), while the session syncs
//! and applies redo rows beside. The same of two sessions on one database, one of which comes and
//! goes: what it was told, and what it has seen when a sync of its own returned, is there
//! (`FLUSH-2`). And who sees what, while nobody may see what is not durable.
//!
//! `LARDER_CRASH_SEED` and `LARDER_CRASH_POINTS` choose another run.
use crate::common;

use crate::common::{assert_clean, make, pattern, replay, sql};
use larder::{
    CreateOptions, Database, DatabaseOptions, ErrorKind, NodeId, SqlValue, Transaction,
    TransactionOptions,
};
use larder_object::EngineOptions;
use larder_testkit::{CrashState, Event, Payload, Recorder, Recording, RecordingVfs, SimStorage};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

const THREADS: u64 = 4;
const EACH: u64 = 25;
/// The same where another session comes and goes.
const EACH_BESIDE: u64 = 50;
/// Runs of the negative control, at most.
const RUNS_MAX: u32 = 20;
/// How long a flush is held there, so that others share it.
const HELD: Duration = Duration::from_millis(3);
/// Blocks of a file that lies where it lay.
const OLD_BLOCKS: u64 = 4;
const LOG: &str = "catalog.db-wal";

fn options(engine: EngineOptions) -> DatabaseOptions {
    DatabaseOptions {
        label: "test".into(),
        engine,
        ..DatabaseOptions::default()
    }
}

fn content(thread: u64, number: u64) -> Vec<u8> {
    pattern((number as usize * 977) % 12_000, 1 + thread * 1000 + number)
}

/// What block `number % OLD_BLOCKS` of a thread's old file holds after transaction `number`.
fn block(thread: u64, number: u64) -> Vec<u8> {
    pattern(4096, 7 + thread * 1000 + number)
}

/// Transaction `number` of a thread: a file that is new, in place of its last one; an overwrite in
/// an old one, which becomes a redo row; and a row.
fn step(txn: &Transaction, thread: u64, number: u64) -> larder::Result<()> {
    let path = |number: u64| format!("/t{thread}/new-{number}");
    txn.files()
        .write(path(number).as_bytes(), content(thread, number))?;
    if number > 1 {
        let (parent, name) = txn.nodes().resolve_parent(path(number - 1).as_bytes())?;
        txn.nodes().unlink(parent, &name)?;
    }
    let old = txn
        .nodes()
        .resolve(format!("/t{thread}/old").as_bytes(), true)?
        .node;
    let handle = txn.nodes().open(old, true)?;
    handle.write_at(number % OLD_BLOCKS * 4096, &block(thread, number))?;
    drop(handle);
    let values = [number, thread].map(|value| SqlValue::Integer(value as i64));
    txn.sql("UPDATE state SET n = ?1 WHERE thread = ?2", &values)
        .map(drop)
}

/// How far each thread has come; panics unless everything is of that.
fn numbers_of(db: &Database) -> Vec<u64> {
    let txn = db.transactions().begin().unwrap();
    let numbers = numbers_in(&txn, "state");
    for (thread, &number) in (0..).zip(&numbers) {
        for other in number.saturating_sub(1).max(1)..=number + 1 {
            let found = txn
                .files()
                .read(format!("/t{thread}/new-{other}").as_bytes());
            let wanted = match other == number {
                true => Ok(content(thread, number)),
                false => Err(ErrorKind::NotFound),
            };
            assert_eq!(found.map_err(|error| error.kind()), wanted, "CONTENT-6");
        }
        let old = txn
            .files()
            .read(format!("/t{thread}/old").as_bytes())
            .unwrap();
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
        is_immediate: true,
        ..TransactionOptions::default()
    };
    let txn = db.transactions().begin_with(&options).unwrap();
    step(&txn, thread, number).unwrap();
    txn.commit().unwrap();
}

fn pack(acked: &[u64]) -> u64 {
    acked.iter().rev().fold(0, |all, one| all << 16 | one)
}

/// A new database whose files are recorded, and how to open it.
struct Recorded {
    directory: tempfile::TempDir,
    recorder: Recorder,
    vfs: RecordingVfs,
    engine: EngineOptions,
}

impl Recorded {
    fn create() -> Recorded {
        let directory = tempfile::tempdir().unwrap();
        let recorder = Recorder::new();
        let vfs = RecordingVfs::register(&recorder);
        let engine = EngineOptions {
            storage: Some(Arc::new(SimStorage::recording(&recorder))),
            catalog_vfs: Some(vfs.name().to_owned()),
            // Small enough to be written in place now and then. With a background: only that gives
            // the writer lock back when a transaction waits for it behind others.
            redo_bytes_max: 1_000_000,
            ..EngineOptions::default()
        };
        let create = CreateOptions {
            capacity_bytes: Some(32 << 20),
            ..CreateOptions::default()
        };
        Database::create_with(&directory.path().join("db"), &create, &engine).unwrap();
        Recorded {
            directory,
            recorder,
            vfs,
            engine,
        }
    }

    fn open(&self, label: &str, has_background: bool) -> Database {
        let mut engine = EngineOptions {
            has_background,
            ..self.engine.clone()
        };
        if !has_background {
            // It applies none: then it would have the writer lock, and nobody would give it back.
            engine.redo_bytes_max = 1 << 40;
        }
        let options = DatabaseOptions {
            label: label.into(),
            ..options(engine)
        };
        Database::open(&self.directory.path().join("db"), options).unwrap()
    }

    /// Makes what the threads change; where the log is then.
    fn furnish(&self, db: &Database) -> usize {
        let mut session = db.sql().open(false).unwrap();
        let tables = "CREATE TABLE state (thread INTEGER PRIMARY KEY, n INTEGER); \
                      CREATE TABLE seen (thread INTEGER PRIMARY KEY, n INTEGER)";
        sql::run(&mut session, tables).unwrap();
        for thread in 0..THREADS {
            let directory = sql::directory(db, NodeId::ROOT, &format!("t{thread}"));
            let old = make(db, directory, "old");
            let bytes: Vec<u8> = (0..OLD_BLOCKS).flat_map(|one| block(thread, one)).collect();
            db.nodes()
                .open(old, true)
                .unwrap()
                .write_at(0, &bytes)
                .unwrap();
            let insert = format!(
                "INSERT INTO state VALUES ({thread}, 0); INSERT INTO seen VALUES ({thread}, 0)"
            );
            sql::run(&mut session, &insert).unwrap();
        }
        drop(session);
        db.files()
            .write(SEEN, seen_text(&[0; THREADS as usize]).as_bytes())
            .unwrap();
        db.sync().unwrap();
        self.recorder.sync_names();
        self.recorder.ack(0);
        self.recorder.position()
    }
}

/// What threads do at once, with an ack after each commit, and where it began.
fn record() -> (Recording, usize) {
    let recorded = Recorded::create();
    let db = recorded.open("test", true);
    let created = recorded.furnish(&db);
    let recorder = &recorded.recorder;
    let acked = (Mutex::new(vec![0; THREADS as usize]), Condvar::new());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let (db, (acked, has_acked)) = (&db, &acked);
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
        for count in (5..THREADS * EACH).step_by(5) {
            wait_for(&acked, count);
            db.files()
                .write(b"/beside", pattern(20_000, count))
                .unwrap();
            db.sync().unwrap();
        }
    });
    assert_eq!(numbers_of(&db), vec![EACH; THREADS as usize]);
    db.close().unwrap();
    (recorder.finish(), created)
}

/// Returns once so many transactions are acked in all.
fn wait_for((acked, has_acked): &(Mutex<Vec<u64>>, Condvar), count: u64) {
    let all = acked.lock().unwrap();
    let is_early = |all: &mut Vec<u64>| all.iter().sum::<u64>() < count;
    let patience = Duration::from_secs(120);
    drop(
        has_acked
            .wait_timeout_while(all, patience, is_early)
            .unwrap(),
    );
}

/// What one run of two sessions was.
struct Two {
    recording: Recording,
    created: usize,
    /// Where in the log the second session was open, from its birth to before its end.
    visits: Vec<std::ops::Range<usize>>,
}

/// Two sessions on the same files. The first one's threads share flushes; the second one comes,
/// looks, syncs, acks what it has seen, commits what it has seen, and goes, again and again. With
/// `is_blind` the first one does not see that it lives: an engine without that part of `FLUSH-2`.
fn record_two(is_blind: bool) -> Two {
    let recorded = Recorded::create();
    let db = recorded.open("first", true);
    let created = recorded.furnish(&db);
    let recorder = &recorded.recorder;
    let second = THREADS - 1;
    let acked = (Mutex::new(vec![0; THREADS as usize]), Condvar::new());
    let mut visits = Vec::new();
    std::thread::scope(|scope| {
        for thread in 0..second {
            let (db, (acked, has_acked)) = (&db, &acked);
            scope.spawn(move || {
                for number in 1..=EACH_BESIDE {
                    commit_one(db, thread, number);
                    let mut acked = acked.lock().unwrap();
                    acked[thread as usize] = acked[thread as usize].max(number);
                    recorder.ack(pack(&acked));
                    has_acked.notify_one();
                }
            });
        }
        for (number, count) in (1..).zip((20..second * EACH_BESIDE - 6).step_by(30)) {
            wait_for(&acked, count);
            // One whose row is away cannot commit, neither by itself.
            let beside = recorded.open("second", !is_blind);
            let from = recorder.position();
            if is_blind {
                hide(&beside);
            }
            // It looks while the others commit, and is told that what it sees is durable.
            while acked.0.lock().unwrap().iter().sum::<u64>() < count + 6 {
                // Else it depends on the disk whether it ever sees what is not durable.
                recorded
                    .vfs
                    .faults()
                    .holds_log_sync
                    .store(is_blind, Ordering::SeqCst);
                if is_blind {
                    std::thread::sleep(HELD);
                }
                let seen = look(&beside);
                beside.sync().unwrap();
                let mut acked = acked.0.lock().unwrap();
                let newer = acked
                    .iter()
                    .zip(&seen)
                    .map(|(acked, seen)| *acked.max(seen));
                *acked = newer.collect();
                recorder.ack(pack(&acked));
                (recorded.vfs.faults().holds_log_sync).store(false, Ordering::SeqCst);
            }
            if !is_blind {
                commit_seen(&beside, second, number);
                let mut acked = acked.0.lock().unwrap();
                acked[second as usize] = number;
                recorder.ack(pack(&acked));
            }
            visits.push(from..recorder.position());
            let closed = beside.close(); // It ends a row that may not be there.
            assert!(is_blind || closed.is_ok(), "{closed:?}");
        }
    });
    let recording = recorder.finish();
    db.close().unwrap();
    Two {
        recording,
        created,
        visits,
    }
}

/// Takes the row of the second session away, as nobody but a test does.
fn hide(beside: &Database) {
    let mut session = beside.sql().open(false).unwrap();
    let hide = "BEGIN IMMEDIATE; UPDATE larder_guard_switch SET open = 1; \
                DELETE FROM larder_session WHERE label = 'second'; UPDATE larder_guard_switch SET \
                open = \
                0; COMMIT";
    sql::run(&mut session, hide).unwrap();
}

/// How far each thread has come, by its row.
fn look(db: &Database) -> Vec<u64> {
    let txn = db.transactions().begin().unwrap();
    numbers_in(&txn, "state")
}

fn numbers_in(txn: &Transaction, table: &str) -> Vec<u64> {
    let ask = format!("SELECT n FROM {table} ORDER BY thread");
    let number = |value: &SqlValue| match value {
        SqlValue::Integer(number) => *number as u64,
        other => panic!("{other:?}"),
    };
    let rows = txn.sql(&ask, &[]).unwrap().rows;
    rows.iter().map(|row| number(&row.values[0])).collect()
}

/// The file that says what the second session had seen at its last commit; its rows say it too.
const SEEN: &[u8] = b"/seen";

fn seen_text(seen: &[u64]) -> String {
    format!("{seen:?}")
}

/// The same as [`commit_one`], and what the transaction sees of the others in a file and in rows.
fn commit_seen(db: &Database, thread: u64, number: u64) {
    let options = TransactionOptions {
        is_immediate: true,
        ..TransactionOptions::default()
    };
    let txn = db.transactions().begin_with(&options).unwrap();
    step(&txn, thread, number).unwrap();
    let seen = numbers_in(&txn, "state");
    txn.files()
        .write(SEEN, seen_text(&seen).as_bytes())
        .unwrap();
    let copy = "UPDATE seen SET n = (SELECT n FROM state WHERE state.thread = seen.thread)";
    txn.sql(copy, &[]).unwrap();
    txn.commit().unwrap();
}

/// What the second session says that it has seen is there, and its file and its rows agree.
fn check_seen(db: &Database, numbers: &[u64]) {
    let txn = db.transactions().begin().unwrap();
    let seen = numbers_in(&txn, "seen");
    let text = txn.files().read(SEEN).unwrap();
    assert_eq!(text, seen_text(&seen).as_bytes(), "CONTENT-6");
    for (thread, (seen, number)) in seen.iter().zip(numbers).enumerate() {
        assert!(
            seen <= number,
            "{number} of thread {thread} is there, {seen} was seen and then committed"
        );
    }
}

/// What is wrong with a state, if anything is.
fn find_fault(state: &CrashState) -> Option<String> {
    replay::find_fault(state, |db, acked| {
        let numbers = numbers_of(db);
        for (thread, &number) in numbers.iter().enumerate() {
            let acked = acked >> (16 * thread) & 0xffff;
            assert!(number >= acked, "{number} is there, {acked} was committed");
        }
        check_seen(db, &numbers);
        assert_clean(db);
        // And it goes on.
        commit_one(db, 0, numbers[0] + 1);
        assert_eq!(numbers_of(db)[0], numbers[0] + 1);
    })
}

/// Whether what was written to the log ends a commit: the header of the last frame says how long
/// the catalog is then. (A transaction that reads what it has written writes more than once.)
fn ends_commit(offset_bytes: u64, bytes: &Payload) -> bool {
    const FRAME_BYTES: usize = 24 + 4096;
    let Payload::Bytes(bytes) = bytes else {
        return false;
    };
    let is_frame = offset_bytes >= 32 && (offset_bytes - 32).is_multiple_of(FRAME_BYTES as u64);
    let last = bytes.len().checked_sub(1).map(|end| end / FRAME_BYTES);
    let header = last.and_then(|last| bytes.get(last * FRAME_BYTES..)?.get(4..8));
    is_frame && header.is_some_and(|length| length != [0; 4])
}

/// Events of the log, writes within a commit left out: whether a flush, and whether it, or the
/// write before it, is of its head.
fn log_events(recording: &Recording) -> Vec<(usize, bool, bool)> {
    let mut is_head = false;
    let mut found = Vec::new();
    for (index, event) in recording.events.iter().enumerate() {
        match event {
            Event::Write {
                file,
                offset_bytes,
                bytes,
            } if &**file == LOG => {
                is_head = *offset_bytes < 32;
                if is_head || ends_commit(*offset_bytes, bytes) {
                    found.push((index, false, is_head));
                }
            }
            Event::Flush { file, .. } if &**file == LOG => found.push((index, true, is_head)),
            _ => {}
        }
    }
    found
}

#[test]
fn every_crash_leaves_those_who_share_a_flush_whole_or_not_at_all() {
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
    replay::require_sound(&recording, created, 300, find_fault);
    // The negative control: no flush of the log but that of its head.
    let mut without = recording.clone();
    for (index, is_flush, is_head) in log {
        if let (true, false, Event::Flush { covers, .. }) =
            (is_flush, is_head, &mut without.events[index])
        {
            *covers = 0;
        }
    }
    let is_found = replay::has_fault(&without, created, "was committed", find_fault);
    assert!(is_found, "FLUSH-1: nobody misses the flushes of the log");
}

/// How many commits in this part of the log have left out their flush.
fn count_unflushed(recording: &Recording, part: std::ops::Range<usize>) -> usize {
    let log = log_events(recording);
    let kinds: Vec<bool> = (log.iter().filter(|(index, ..)| part.contains(index)))
        .map(|(_, is_flush, _)| *is_flush)
        .collect();
    kinds
        .windows(2)
        .filter(|pair| pair == &[false, false])
        .count()
}

/// Whether a commit is in the log that no flush covers.
fn has_pending_sync(events: &[Event]) -> bool {
    let flushed = events.iter().filter_map(|event| match event {
        Event::Flush { file, covers } if &**file == LOG => Some(*covers),
        _ => None,
    });
    let flushed = flushed.max().unwrap_or(0);
    events[flushed..].iter().any(|event| match event {
        Event::Write {
            file,
            offset_bytes,
            bytes,
        } => &**file == LOG && ends_commit(*offset_bytes, bytes),
        _ => false,
    })
}

#[test]
fn every_crash_leaves_what_two_sessions_were_told_and_have_seen() {
    let two = record_two(false);
    let end = two.recording.events.len();
    let all = count_unflushed(&two.recording, two.created..end);
    assert!(
        all > 5,
        "only {all} commits left out their flush: not tested"
    );
    for visit in &two.visits {
        let beside = count_unflushed(&two.recording, visit.clone());
        assert_eq!(beside, 0, "FLUSH-2: {visit:?}");
    }
    replay::require_sound(&two.recording, two.created, 300, find_fault);
}

/// The negative control: an engine that does not see the other session leaves out flushes beside
/// it, and what that one has seen and synced is lost. In which run it looks at the wrong moment the
/// machine decides; it has some.
#[test]
fn a_session_that_is_not_seen_loses_what_it_has_synced() {
    let is_found = replay::quietly(|| (0..RUNS_MAX).any(|_| loses_what_was_synced()));
    assert!(
        is_found,
        "FLUSH-2: nobody misses the flushes beside a session, in {RUNS_MAX} runs"
    );
}

fn loses_what_was_synced() -> bool {
    let two = record_two(true);
    // Where something was told while a commit owed its flush.
    let events = &two.recording.events;
    let acks = two.visits.iter().cloned().flatten();
    let mut owing = acks
        .filter(|&ack| matches!(events[ack], Event::Ack(_)) && has_pending_sync(&events[..ack]));
    owing.any(|ack| {
        let cut = Recording {
            events: events[..=ack].to_vec(),
        };
        let mut found = cut
            .states(ack + 1, replay::seed(), 4)
            .filter_map(|state| find_fault(&state));
        found.any(|fault| fault.contains("was committed"))
    })
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
                    db.transactions()
                        .run(|txn| {
                            let path = format!("/{thread}-{number}");
                            txn.files().write(path.as_bytes(), b"x").map(drop)
                        })
                        .unwrap();
                }
            });
        }
    });
    let recording = recorder.finish();
    db.close().unwrap();
    count_unflushed(&recording, from..recording.events.len())
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
            db.feed().set(true).unwrap();
        }),
        0,
        "FLUSH-2"
    );
    let others = Mutex::new(Vec::new());
    let open_beside = |_: &Database, path: &Path| {
        let beside = Database::open(path, DatabaseOptions::default()).unwrap();
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
