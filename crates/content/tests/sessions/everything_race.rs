//! Threads that write, share, splice, move, remove and rename the same files, take snapshots, run
//! transactions and compact: alone, beside rules that refuse some of it in the commit
//! (`CONSTRAINT-1`), beside another process (`SHARE-1`, `SHARE-6`). No outcome is foreseen here:
//! what is asked is that the engine goes on, that `check` finds nothing, and that no file ever
//! shows a byte that was not written there, or copied there from a file of its family.

use super::constraints::FROZEN;
use crate::common::others::plain;
use crate::common::{OWNER, assert_clean, content, name, scratch};
use larder::*;
use larder_testkit::Rng;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

const THREADS: u64 = 4;
const FAMILIES: u64 = 2;
const FILES: u64 = 4;
/// Content is in units of so many bytes, each of one stamp.
const UNIT: usize = 512;
const FILE_UNITS: u64 = 512;
/// From here on numbers are another process's.
const OTHERS: u64 = 1 << 20;

/// Says where a unit was written: family, a number that was given once, place in the file.
fn stamps(family: u64, number: u64, first: u64, count: u64) -> Vec<u8> {
    let stamp = |unit: u64| (family + 1) << 56 | number << 16 | unit;
    let units = (first..first + count).map(|unit| stamp(unit).to_le_bytes().repeat(UNIT / 8));
    units.collect::<Vec<_>>().concat()
}

/// Panics if a file of a family holds what was never written there.
fn assert_own(bytes: &[u8], family: u64, issued: u64, context: &str) {
    for (unit, found) in bytes.chunks(UNIT).enumerate() {
        let stamp = u64::from_le_bytes(found[..8].try_into().unwrap());
        let number = stamp >> 16 & 0xff_ffff_ffff;
        let is_uniform = found.chunks(8).all(|word| word == &found[..8]);
        let is_own = stamp >> 56 == family + 1
            && stamp & 0xffff == unit as u64
            && (number < issued || number >= OTHERS);
        assert!(
            is_uniform && (stamp == 0 || is_own),
            "{context}: unit {unit}: {stamp:#x}"
        );
    }
}

fn open(dir: &Path) -> Database {
    let options = DatabaseOptions {
        engine: EngineOptions {
            commit_interval: Duration::from_millis(5),
            redo_bytes_max: 512 << 10,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

/// What a rule may refuse, or another thread has removed.
fn expected<T>(outcome: Result<T>, context: &str) -> Option<T> {
    match outcome {
        Ok(value) => Some(value),
        Err(error) => {
            let is_gone = matches!(
                error.kind(),
                ErrorKind::NotFound
                    | ErrorKind::Exists
                    | ErrorKind::NotEmpty
                    | ErrorKind::Conflict
                    | ErrorKind::NoSpace
            );
            let text = error.to_string();
            assert_ne!(error.kind(), ErrorKind::Stopped, "{context}: {error}");
            // Between two looks another thread gave both paths to one file, or cut it.
            let is_one = ["the ranges overlap", "the range is not inside"]
                .iter()
                .any(|why| text.contains(why));
            let is_refused = ["is frozen", "was refused"]
                .iter()
                .any(|why| text.contains(why));
            assert!(is_gone || is_one || is_refused, "{context}: {error}");
            None
        }
    }
}

fn work(db: &Database, thread: u64, seed: u64, numbers: &AtomicU64) {
    let mut rng = Rng::new(seed * 100 + thread);
    let family = thread % FAMILIES;
    for step in 0..400 {
        let context = format!("seed {seed}, thread {thread}, step {step}");
        let expect = |outcome| expected(outcome, &context);
        let mut path = || {
            let dir = ["", "/d0", "/d1"][rng.below(3) as usize];
            format!("{dir}/{family}-{}", rng.below(FILES))
        };
        let (path, other) = (path(), path());
        let place = |path: &str| expected(db.nodes().resolve_parent(path.as_bytes()), &context);
        let file = |path: &str| {
            let found = expected(db.nodes().resolve(path.as_bytes(), false), &context)?;
            expected(db.nodes().open(found.node, true), &context)
        };
        let number = numbers.fetch_add(1, Ordering::SeqCst);
        match rng.below(28) {
            0..3 => {
                let bytes = stamps(family, number, 0, 1 + rng.below(FILE_UNITS));
                expect(db.files().write(path.as_bytes(), &bytes).map(drop));
            }
            3..8 => {
                let first = rng.below(FILE_UNITS);
                let bytes = stamps(
                    family,
                    number,
                    first,
                    1 + rng.below(FILE_UNITS - first).min(40),
                );
                let Some(handle) = file(&path) else { continue };
                expect(handle.write_at(first * UNIT as u64, &bytes).map(drop));
                if rng.below(3) == 0 {
                    expect(handle.sync());
                }
            }
            8..13 if path != other => {
                let (Some(from), Some(to)) = (file(&path), file(&other)) else {
                    continue;
                };
                let at = 4096 * rng.below(20);
                let copied = copy_range((&*from, at), (&*to, at), 4096 * (1 + rng.below(40)));
                expect(copied.map(drop));
            }
            13 if path != other => {
                expect(
                    db.files()
                        .clone_path(None, path.as_bytes(), other.as_bytes())
                        .map(drop),
                );
            }
            14 => {
                let Some((parent, last)) = place(&path) else {
                    continue;
                };
                expect(db.nodes().unlink(parent, &last));
            }
            15 if path != other => {
                let (Some(from), Some(to)) = (place(&path), place(&other)) else {
                    continue;
                };
                let mode = match rng.below(4) {
                    0 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                expect(db.nodes().rename(from.0, &from.1, to.0, &to.1, mode));
            }
            16 => {
                expect(db.sync());
            }
            17 => {
                expect(db.maintenance().compact_step().map(drop));
            }
            18 => {
                let Some(handle) = file(&path) else { continue };
                let size = UNIT as u64 * rng.below(FILE_UNITS);
                expect(
                    db.nodes()
                        .set_attr(
                            handle.metadata().unwrap().node,
                            &SetAttr {
                                size_bytes: Some(size),
                                ..SetAttr::default()
                            },
                        )
                        .map(drop),
                );
            }
            19 => {
                let Some((parent, last)) = place(&other) else {
                    continue;
                };
                let found = expected(db.nodes().resolve(path.as_bytes(), false), &context);
                found.map(|found| expect(db.nodes().link(found.node, parent, &last).map(drop)));
            }
            20 => {
                let (root, dir) = (NodeId::ROOT, name(&format!("d{}", rng.below(2))));
                match rng.below(3) {
                    0 => drop(expect(db.nodes().remove_dir(root, &dir))),
                    1 => {
                        let (other, mode) = (name("d0"), RenameMode::Replace);
                        expect(db.nodes().rename(root, &dir, root, &other, mode));
                    }
                    _ => {
                        let made =
                            db.nodes()
                                .create_node(root, &dir, NewNode::Directory, 0o755, OWNER);
                        expect(made.map(drop));
                    }
                }
            }
            21..23 => {
                let bytes = stamps(family, number, 0, 1 + rng.below(FILE_UNITS));
                let is_kept = rng.below(3) > 0;
                let outcome = db.transactions().run(|transaction| {
                    transaction.files().write(path.as_bytes(), &bytes)?;
                    let (parent, last) = transaction.nodes().resolve_parent(other.as_bytes())?;
                    if path != other {
                        transaction.nodes().unlink(parent, &last)?;
                    }
                    match is_kept {
                        true => Ok(()),
                        false => Err(Error::new(ErrorKind::Exists, "not kept")),
                    }
                });
                expect(outcome);
            }
            23 => {
                let Some(handle) = file(&path) else { continue };
                let offset = 4096 * rng.below(30);
                let bytes = stamps(family, number, offset / UNIT as u64, 8);
                // What follows stays where it was.
                expect(handle.replace_range(offset, 4096, &bytes));
            }
            24 => {
                let name = format!("s{}", rng.below(2));
                expect(db.snapshots().destroy(&name));
                if expect(db.snapshots().create(&name).map(drop)).is_none() {
                    continue;
                }
                let moment = Moment::Snapshot(name);
                let Some(past) = expected(db.as_of(&moment), &context) else {
                    continue;
                };
                if let Some(bytes) = expect_bytes(&past, &path, &context) {
                    let issued = numbers.load(Ordering::SeqCst);
                    assert_own(&bytes, family, issued, &format!("{context}: {path}"));
                }
            }
            _ => {
                if let Some(bytes) = expect_bytes(db, &path, &context) {
                    let issued = numbers.load(Ordering::SeqCst);
                    assert_own(&bytes, family, issued, &format!("{context}: {path}"));
                }
            }
        }
    }
}

fn expect_bytes(db: &Database, path: &str, context: &str) -> Option<Vec<u8>> {
    expected(db.files().read(path.as_bytes()), context)
}

/// All files, as they are now.
fn assert_all(db: &Database, numbers: &AtomicU64, context: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut left = vec![(String::new(), NodeId::ROOT)];
    while let Some((dir, node)) = left.pop() {
        for entry in db.nodes().read_dir(node, None, 1000).unwrap() {
            let (name, path) = (entry.name.to_string(), format!("{dir}/{}", entry.name));
            if entry.kind == FileKind::Directory {
                left.push((path, entry.node));
                continue;
            }
            let family = u64::from(name.as_bytes()[0] - b'0');
            let (bytes, issued) = (content(db, entry.node), numbers.load(Ordering::SeqCst));
            assert_own(&bytes, family, issued, &format!("{context}: {path}"));
            files.insert(path, bytes);
        }
    }
    assert_clean(db);
    files
}

/// Who is beside the threads of a test.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Beside {
    Nobody,
    /// SQL that makes a rule refuse some files, and a moment later others.
    Rules,
    /// Another process, whose threads do the same to the same files.
    AnotherProcess,
}

/// Of four inodes one is frozen, and a moment later another one.
fn freeze(database: &Path, seed: u64, is_over: &AtomicBool) {
    let mut shell = Command::new("sqlite3")
        .args(["-bail", "-cmd", ".timeout 30000"])
        .arg(database.join("catalog.db"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("the sqlite3 shell is needed; install it");
    let mut input = shell.stdin.take().unwrap();
    let mut rng = Rng::new(seed);
    while !is_over.load(Ordering::SeqCst) {
        let salt = rng.below(4);
        writeln!(
            input,
            "BEGIN IMMEDIATE; DELETE FROM frozen; INSERT INTO frozen SELECT ino FROM main \
             WHERE ino > 1 AND ino % 4 = {salt}; COMMIT;"
        )
        .unwrap();
        std::thread::sleep(Duration::from_millis(1 + rng.below(8)));
    }
    writeln!(input, "DELETE FROM frozen;").unwrap();
    drop(input);
    assert!(shell.wait().unwrap().success());
}

/// All threads, to their end.
fn work_all(db: &Database, seed: u64, numbers: &AtomicU64) {
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            scope.spawn(move || work(db, thread, seed, numbers));
        }
    });
}

/// What was refused, too, was written there.
fn assert_kept(database: &Path, numbers: &AtomicU64, context: &str) {
    for kept in list_refused(database).unwrap() {
        let Some(_) = kept.size_bytes else { continue };
        let mut bytes = Vec::new();
        let mut file = open_refused(database, kept.id).unwrap();
        file.read_to_end(&mut bytes).unwrap();
        // One that had lost its name before has none in its path.
        let mut stamps = bytes.chunks(8).map(|word| u64::from(word[7]));
        let Some(family) = stamps.find(|family| *family > 0) else {
            continue;
        };
        let issued = numbers.load(Ordering::SeqCst);
        assert_own(&bytes, family - 1, issued, &format!("{context}: {kept:?}"));
    }
}

/// Returns how much was refused.
fn run(seed: u64, beside: Beside) -> u64 {
    let context = format!("seed {seed}");
    let dir = scratch();
    let path = dir.path().join("t.larder");
    let options = CreateOptions {
        capacity_bytes: Some(128 << 20),
        ..CreateOptions::default()
    };
    Database::create(&path, &options).unwrap();
    if beside == Beside::Rules {
        plain(dir.path(), FROZEN);
    }
    let db = open(dir.path());
    let (numbers, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
    let other = (beside == Beside::AnotherProcess).then(|| {
        Command::new(std::env::current_exe().unwrap())
            .args([
                "everything_race::another_process",
                "--exact",
                "--ignored",
                "--nocapture",
            ])
            .env("LARDER_TEST_DATABASE", dir.path())
            .env("LARDER_TEST_SEED", seed.to_string())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap()
    });
    std::thread::scope(|scope| {
        let freezer =
            (beside == Beside::Rules).then(|| scope.spawn(|| freeze(&path, seed, &is_over)));
        let all = scope.spawn(|| work_all(&db, seed, &numbers));
        let outcome = all.join();
        is_over.store(true, Ordering::SeqCst);
        if let Some(freezer) = freezer {
            freezer.join().unwrap();
        }
        assert!(outcome.is_ok(), "{context}");
    });
    if let Some(other) = other {
        let output = other.wait_with_output().unwrap();
        assert!(
            output.status.success(),
            "{context}: {}",
            String::from_utf8_lossy(&output.stdout)
        );
    }
    while expected(db.sync(), &context).is_none() {}
    let before = assert_all(&db, &numbers, &context);
    let refused = db.maintenance().gauges().unwrap().refused_count;
    drop(db.close()); // It says again what was refused.
    let db = open(dir.path());
    assert!(assert_all(&db, &numbers, &context) == before, "{context}");
    db.close().unwrap();
    assert_kept(&path, &numbers, &context);
    refused
}

#[test]
fn what_is_refused_beside_everything_leaves_a_clean_database() {
    let refused: u64 = (1..=4).map(|seed| run(seed, Beside::Rules)).sum();
    assert!(refused > 20, "{refused}");
}

#[test]
fn everything_beside_everything_leaves_a_clean_database() {
    for seed in 1..=3 {
        run(seed, Beside::Nobody);
    }
}

#[test]
fn everything_in_two_processes_leaves_a_clean_database() {
    for seed in 1..=2 {
        run(seed, Beside::AnotherProcess);
    }
}

#[test]
#[ignore = "a process of everything_in_two_processes_leaves_a_clean_database"]
fn another_process() {
    let dir = std::env::var("LARDER_TEST_DATABASE").unwrap();
    let seed: u64 = std::env::var("LARDER_TEST_SEED").unwrap().parse().unwrap();
    let db = open(Path::new(&dir));
    let numbers = AtomicU64::new(OTHERS);
    work_all(&db, seed + 1000, &numbers);
    db.close().unwrap();
}
