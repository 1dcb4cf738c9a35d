//! Crash replay and kill -9 of transactions: every state holds a transaction wholly or not at all,
//! and those whose commit returned (`CONTENT-6`, `PRIVATE-2`). And processes that count together.
//!
//! `LARDER_CRASH_SEED` and `LARDER_CRASH_POINTS` choose another run.
use crate::common;

use crate::common::{assert_clean, open, pattern, replay};
use larder::{CreateOptions, Database, DatabaseOptions, ErrorKind, SqlValue, Transaction};
use larder_object::EngineOptions;
use larder_testkit::{CrashState, Recorder, Recording, RecordingVfs, SEGMENTS, SimStorage};
use std::io::{BufRead, BufReader};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

const ROUNDS: u64 = 60;

/// What transaction `number` makes of the database: three files, one of them over the last one's,
/// and a row. How many steps logged new content (`LOGGED-1`): outside of savepoints, and in one
/// that stays.
fn step(txn: &Transaction, number: u64) -> larder::Result<[bool; 2]> {
    let redo_blocks = |txn: &Transaction| -> larder::Result<SqlValue> {
        let sum = "SELECT coalesce(sum(block_count), 0) FROM larder_redo_row";
        Ok(txn.sql(sum, &[])?.rows.remove(0).values.remove(0))
    };
    let before = redo_blocks(txn)?;
    // Nothing is in a segment yet that would have to be flushed.
    txn.files()
        .write(format!("/second-{number}").as_bytes(), content(number, 1))?;
    txn.sql(
        "UPDATE state SET n = ?1",
        &[SqlValue::Integer(number as i64)],
    )?;
    let after_second = redo_blocks(txn)?;
    let savepoint = txn.savepoint()?;
    txn.files().write(b"/gone", pattern(9000, number))?;
    txn.roll_back_to(savepoint)?;
    txn.files()
        .write(format!("/third-{number}").as_bytes(), content(number, 2))?;
    txn.release(savepoint)?;
    let after_third = redo_blocks(txn)?;
    txn.files().write(b"/first", content(number, 0))?;
    if number > 1 {
        for which in ["second", "third"] {
            let path = format!("/{which}-{}", number - 1);
            let (parent, name) = txn.nodes().resolve_parent(path.as_bytes())?;
            txn.nodes().unlink(parent, &name)?;
        }
    }
    Ok([before != after_second, after_second != after_third])
}

fn content(number: u64, which: u64) -> Vec<u8> {
    let mut bytes = number.to_le_bytes().to_vec();
    bytes.extend(pattern(
        (number as usize * 977 + which as usize * 5000) % 30_000,
        number,
    ));
    bytes
}

/// The number of the transaction that made what is there; panics unless all of it is of that one.
fn number_of(db: &Database) -> u64 {
    let txn = db.transactions().begin().unwrap();
    let row = txn.sql("SELECT n FROM state", &[]).unwrap().rows.remove(0);
    let SqlValue::Integer(number) = row.values[0] else {
        panic!("{row:?}");
    };
    let number = number as u64;
    let kind = |path: &str| {
        txn.files()
            .read(path.as_bytes())
            .map_err(|error| error.kind())
    };
    assert_eq!(
        kind("/gone"),
        Err(ErrorKind::NotFound),
        "CONTENT-6: {number}"
    );
    if number == 0 {
        assert_eq!(kind("/first"), Err(ErrorKind::NotFound), "CONTENT-6");
        return 0;
    }
    assert_eq!(
        kind("/first"),
        Ok(content(number, 0)),
        "CONTENT-6: {number}"
    );
    for (other, is_there) in [(number - 1, false), (number, true), (number + 1, false)] {
        for (name, which) in [("second", 1), ("third", 2)] {
            let found = kind(&format!("/{name}-{other}"));
            let wanted = is_there
                .then(|| content(number, which))
                .ok_or(ErrorKind::NotFound);
            assert_eq!(found, wanted, "CONTENT-6: {number}");
        }
    }
    number
}

fn options(engine: EngineOptions) -> DatabaseOptions {
    DatabaseOptions {
        label: "test".into(),
        engine,
        ..DatabaseOptions::default()
    }
}

fn make_table(db: &Database) {
    let sql = "CREATE TABLE state (n INTEGER); INSERT INTO state VALUES (0)";
    db.sql()
        .open(false)
        .unwrap()
        .execute(sql, &mut |_| Ok(()))
        .unwrap();
}

/// The recording, and where the empty table was there.
fn record() -> (Recording, usize) {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("db");
    let recorder = Recorder::new();
    let vfs = RecordingVfs::register(&recorder);
    let engine = EngineOptions {
        storage: Some(Arc::new(SimStorage::recording(&recorder))),
        catalog_vfs: Some(vfs.name().to_owned()),
        has_background: false,
        // Small enough to be written in place now and then.
        redo_bytes_max: 2_000_000,
        ..EngineOptions::default()
    };
    let create = CreateOptions {
        capacity_bytes: Some(32 << 20),
        retention_ns: Some(0), // All that is retired is soon used again.
        ..CreateOptions::default()
    };
    Database::create_with(&path, &create, &engine).unwrap();
    let db = Database::open(&path, options(engine.clone())).unwrap();
    make_table(&db);
    recorder.sync_names();
    recorder.ack(0);
    let created = recorder.position();
    let mut logged = [0, 0];
    let (mut waiting, mut apply_count) = (0, 0);
    let mut other = None;
    for number in 1..=ROUNDS {
        // Another session lives for a third of the rounds, reads, and has transactions of its own.
        match number {
            20 => other = Some(Database::open(&path, options(engine.clone())).unwrap()),
            40 => other
                .take()
                .map_or((), |other: Database| other.close().unwrap()),
            _ => {}
        }
        if number % 7 == 0 {
            let txn = db.transactions().begin().unwrap();
            step(&txn, number).unwrap();
            txn.abort();
        }
        if number % 5 == 0 {
            db.files()
                .write(b"/beside", pattern(20_000, number))
                .unwrap();
        }
        if number % 3 == 0 {
            db.sync().unwrap();
            let left = db.maintenance().space().unwrap().redo_bytes;
            apply_count += u32::from(left < waiting);
            waiting = left;
        }
        // Without a background only its own transactions have a session give the writer lock back.
        let is_free = [3, 5, 7].iter().all(|divisor| number % divisor != 0);
        let by = other.as_ref().filter(|_| is_free).unwrap_or(&db);
        let steps = by.transactions().run(|txn| step(txn, number)).unwrap();
        recorder.ack(number);
        (0..2).for_each(|which| logged[which] += u32::from(steps[which]));
        if let Some(other) = &other {
            assert_eq!(number_of(other), number);
        }
    }
    db.close().unwrap();
    assert!(
        logged[0] > 30 && logged[1] > 10 && apply_count > 1,
        "{logged:?} steps logged content, {apply_count} applies: not tested"
    );
    (recorder.finish(), created)
}

/// What is wrong with a state, if anything is.
fn find_fault(state: &CrashState) -> Option<String> {
    replay::find_fault(state, |db, acked| {
        let number = number_of(db);
        assert!(number >= acked, "{number} is there, {acked} was committed");
        assert_clean(db);
        // And it goes on.
        db.transactions()
            .run(|txn| step(txn, number + 1).map(drop))
            .unwrap();
        assert_eq!(number_of(db), number + 1);
    })
}

#[test]
fn every_crash_leaves_transactions_whole_or_not_at_all() {
    let (recording, created) = record();
    replay::require_sound(&recording, created, 400, find_fault);
    // The negative control: the flush of segments before COMMIT (PRIVATE-2).
    let without = recording.without_flushes(|file| file.starts_with(SEGMENTS));
    let is_found = replay::has_fault(&without, created, "", find_fault);
    assert!(is_found, "PRIVATE-2: nobody misses the flushes of segments");
}

/// Starts this program again as a process that runs `role` on the database in `dir`.
fn spawn(role: &str, dir: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args([
            "transaction_crash::a_process_of_its_own",
            "--exact",
            "--nocapture",
            "--ignored",
        ])
        .env("LARDER_TXN_ROLE", role)
        .env("LARDER_TXN_DIR", dir)
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

/// Not a test: what `spawn` starts.
#[test]
#[ignore = "the other tests of this file start it as a process of its own"]
fn a_process_of_its_own() {
    let (Ok(role), Ok(dir)) = (
        std::env::var("LARDER_TXN_ROLE"),
        std::env::var("LARDER_TXN_DIR"),
    ) else {
        return;
    };
    let db = open(Path::new(&dir));
    if role == "step" {
        for number in number_of(&db) + 1.. {
            db.transactions()
                .run(|txn| step(txn, number).map(drop))
                .unwrap();
            println!("done {number}");
        }
    }
    for _ in 0..role.parse::<u64>().unwrap() {
        db.transactions()
            .run(|txn| {
                let text = String::from_utf8(txn.files().read(b"/n")?).unwrap();
                let next = text.parse::<u64>().unwrap() + 1;
                txn.files().write(b"/n", next.to_string().as_bytes())?;
                txn.sql("UPDATE state SET n = n + 1", &[]).map(drop)
            })
            .unwrap();
    }
    db.close().unwrap();
}

#[test]
fn a_kill_leaves_transactions_whole_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    make_table(&common::create(dir.path(), None));
    let mut before = 0;
    for round in 0..6 {
        let mut child = spawn("step", dir.path());
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let mut told = before;
        let until = Instant::now() + Duration::from_millis(20 + 37 * round);
        let mut has_begun = false;
        for line in lines.by_ref() {
            if let Some(number) = line.unwrap().strip_prefix("done ") {
                told = number.parse().unwrap();
                has_begun = true;
            }
            if has_begun && Instant::now() > until {
                break;
            }
        }
        child.kill().unwrap();
        child.wait().unwrap();
        for line in lines {
            if let Some(number) = line.unwrap().strip_prefix("done ") {
                told = number.parse().unwrap_or(told);
            }
        }
        let db = open(dir.path());
        let found = number_of(&db);
        assert!(found >= told && told > before, "{before}, {told}, {found}");
        assert_clean(&db);
        before = found;
    }
}

#[test]
fn processes_lose_no_update() {
    const PROCESSES: u64 = 4;
    const EACH: u64 = 40;
    let dir = tempfile::tempdir().unwrap();
    let db = common::create(dir.path(), None);
    make_table(&db);
    db.files().write(b"/n", b"0").unwrap();
    db.sync().unwrap();
    let children: Vec<Child> = (0..PROCESSES)
        .map(|_| spawn(&EACH.to_string(), dir.path()))
        .collect();
    for mut child in children {
        assert!(child.wait().unwrap().success());
    }
    let total = PROCESSES * EACH;
    let txn = db.transactions().begin().unwrap();
    assert_eq!(
        txn.files().read(b"/n").unwrap(),
        total.to_string().as_bytes()
    );
    let row = txn.sql("SELECT n FROM state", &[]).unwrap().rows.remove(0);
    assert_eq!(row.values, [SqlValue::Integer(total as i64)]);
    drop(txn);
    assert_clean(&db);
}
