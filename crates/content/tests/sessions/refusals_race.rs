//! What rules refuse in a commit, beside threads that write, share, move and remove the same files
//! (`CONSTRAINT-1`, `SHARE-1`, `SHARE-6`). No outcome of a refusal is foreseen here: what is asked
//! is that the engine goes on, that `check` finds nothing, and that no file ever shows a byte that
//! was not written there, or copied there from a file of its family.

use super::constraints::FROZEN;
use crate::common::others::plain;
use crate::common::{OWNER, assert_clean, content, name, scratch};
use larder::*;
use larder_testkit::Rng;
use std::collections::BTreeMap;
use std::io::Write;
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
        let is_uniform = found.chunks(8).all(|word| word == &found[..8]);
        let is_own = stamp >> 56 == family + 1
            && stamp & 0xffff == unit as u64
            && stamp >> 16 & 0xff_ffff_ffff < issued;
        assert!(
            is_uniform && (stamp == 0 || is_own),
            "{context}: unit {unit}: {stamp:#x}"
        );
    }
}

fn open(dir: &Path) -> Database {
    let options = OpenOptions {
        engine: EngineOptions {
            commit_interval: Duration::from_millis(5),
            redo_bytes_max: 512 << 10,
            ..EngineOptions::default()
        },
        ..OpenOptions::default()
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
                ErrorKind::NotFound | ErrorKind::Exists | ErrorKind::NotEmpty
            );
            let text = error.to_string();
            assert_ne!(error.kind(), ErrorKind::Stopped, "{context}: {error}");
            // Between the two looks for them another thread gave both paths to one file.
            let is_one = text.contains("the ranges overlap");
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
        let place = |path: &str| expected(db.resolve_parent(path.as_bytes()), &context);
        let file = |path: &str| {
            let found = expected(db.resolve(path.as_bytes(), false), &context)?;
            expected(db.open_file(found.node, true), &context)
        };
        let number = numbers.fetch_add(1, Ordering::SeqCst);
        match rng.below(23) {
            0..3 => {
                let bytes = stamps(family, number, 0, 1 + rng.below(FILE_UNITS));
                expect(db.put(path.as_bytes(), &bytes).map(drop));
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
                    db.clone_path(None, path.as_bytes(), other.as_bytes())
                        .map(drop),
                );
            }
            14 => {
                let Some((parent, last)) = place(&path) else {
                    continue;
                };
                expect(db.unlink(parent, &last));
            }
            15 if path != other => {
                let (Some(from), Some(to)) = (place(&path), place(&other)) else {
                    continue;
                };
                let mode = match rng.below(4) {
                    0 => RenameMode::Exchange,
                    _ => RenameMode::Replace,
                };
                expect(db.rename(from.0, &from.1, to.0, &to.1, mode));
            }
            16 => {
                expect(db.sync());
            }
            17 => {
                expect(db.compact_step().map(drop));
            }
            18 => {
                let Some(handle) = file(&path) else { continue };
                let size = UNIT as u64 * rng.below(FILE_UNITS);
                expect(
                    db.set_attr(
                        handle.attr().unwrap().node,
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
                let found = expected(db.resolve(path.as_bytes(), false), &context);
                found.map(|found| expect(db.link(found.node, parent, &last).map(drop)));
            }
            20 => {
                let (root, dir) = (NodeId::ROOT, name(&format!("d{}", rng.below(2))));
                match rng.below(3) {
                    0 => drop(expect(db.remove_dir(root, &dir))),
                    1 => {
                        let (other, mode) = (name("d0"), RenameMode::Replace);
                        expect(db.rename(root, &dir, root, &other, mode));
                    }
                    _ => {
                        let made = db.create_node(root, &dir, NewNode::Directory, 0o755, OWNER);
                        expect(made.map(drop));
                    }
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
    expected(db.get(path.as_bytes()), context)
}

/// All files, as they are now.
fn assert_all(db: &Database, numbers: &AtomicU64, context: &str) -> BTreeMap<String, Vec<u8>> {
    let mut files = BTreeMap::new();
    let mut left = vec![(String::new(), NodeId::ROOT)];
    while let Some((dir, node)) = left.pop() {
        for entry in db.read_dir(node, None, 1000).unwrap() {
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

#[test]
fn what_is_refused_beside_sharers_and_moves_leaves_a_clean_database() {
    let mut refused = 0;
    for seed in 1..=4 {
        let context = format!("seed {seed}");
        let dir = scratch();
        let path = dir.path().join("t.larder");
        let options = CreateOptions {
            capacity_bytes: Some(128 << 20),
            ..CreateOptions::default()
        };
        Database::create(&path, &options).unwrap();
        plain(dir.path(), FROZEN);
        let db = open(dir.path());
        let (numbers, is_over) = (AtomicU64::new(1), AtomicBool::new(false));
        std::thread::scope(|scope| {
            let freezer = scope.spawn(|| {
                // Of four inodes one is frozen, and a moment later another one.
                let mut shell = Command::new("sqlite3")
                    .args(["-bail", "-cmd", ".timeout 30000"])
                    .arg(path.join("catalog.db"))
                    .stdin(Stdio::piped())
                    .spawn()
                    .expect("the sqlite3 shell is needed; install it");
                let mut input = shell.stdin.take().unwrap();
                let mut rng = Rng::new(seed);
                while !is_over.load(Ordering::SeqCst) {
                    let salt = rng.below(4);
                    writeln!(
                        input,
                        "BEGIN IMMEDIATE; DELETE FROM frozen; INSERT INTO frozen SELECT ino \
                         FROM main WHERE ino > 1 AND ino % 4 = {salt}; COMMIT;"
                    )
                    .unwrap();
                    std::thread::sleep(Duration::from_millis(1 + rng.below(8)));
                }
                writeln!(input, "DELETE FROM frozen;").unwrap();
                drop(input);
                assert!(shell.wait().unwrap().success());
            });
            let (db, numbers) = (&db, &numbers);
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| scope.spawn(move || work(db, thread, seed, numbers)))
                .collect();
            let outcomes: Vec<_> = threads.into_iter().map(|thread| thread.join()).collect();
            is_over.store(true, Ordering::SeqCst);
            freezer.join().unwrap();
            assert!(outcomes.iter().all(|outcome| outcome.is_ok()), "{context}");
        });
        while expected(db.sync(), &context).is_none() {}
        let before = assert_all(&db, &numbers, &context);
        refused += db.gauges().unwrap().refused_count;
        drop(db.close()); // It says again what was refused.
        let db = open(dir.path());
        assert!(assert_all(&db, &numbers, &context) == before, "{context}");
        db.close().unwrap();
        for kept in list_refused(&path).unwrap() {
            let Some(_) = kept.size_bytes else { continue };
            let mut bytes = Vec::new();
            std::io::Read::read_to_end(&mut open_refused(&path, kept.id).unwrap(), &mut bytes)
                .unwrap();
            // One that had lost its name before has none in its path.
            let Some(family) = bytes.chunks(8).find_map(|word| match word[7] {
                0 => None,
                family => Some(u64::from(family) - 1),
            }) else {
                continue;
            };
            let issued = numbers.load(Ordering::SeqCst);
            assert_own(
                &bytes,
                family,
                issued,
                &format!("{context}: refused: {kept:?}"),
            );
        }
    }
    assert!(refused > 20, "{refused}");
}
