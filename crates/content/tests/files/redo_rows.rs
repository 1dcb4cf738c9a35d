//! Small overwrites: what is read, what `check` says, and what applying leaves, against a model;
//! and readers of two sessions beside them.

use crate::common::*;
use larder::{AllocateMode, Database, DatabaseOptions, NodeId};
use larder_object::EngineOptions;
use larder_testkit::Rng;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

const R: NodeId = NodeId::ROOT;
const BLOCK: u64 = 4096;

fn open_with(dir: &Path, redo_bytes_max: u64, has_background: bool) -> Database {
    let options = DatabaseOptions {
        engine: EngineOptions {
            redo_bytes_max,
            has_background,
            commit_interval: Duration::from_millis(5),
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

fn fragments(db: &Database) -> u64 {
    db.maintenance().frag().unwrap().fragments_per_object_max
}

/// Overwrites, copy-on-write, truncation, holes, applies, reopening: the content is always the
/// model's (`REDO-1`, `REDO-4`).
#[test]
fn overwritten_content_is_the_models() {
    for seed in 1..=6 {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), None).close().unwrap();
        let mut rng = Rng::new(seed);
        let mut db = open_with(dir.path(), 256 << 10, false);
        let mut model = pattern(700_000, seed);
        let node = put(&db, R, "f", &model);
        db.sync().unwrap();
        let (mut added, mut applied) = (0, 0);
        for step in 0..400 {
            let waiting = db.maintenance().space().unwrap().redo_bytes;
            let handle = db.nodes().open(node, true).unwrap();
            let at = rng.below(model.len() as u64 + 1);
            match rng.below(20) {
                0..12 => {
                    let aligned = if rng.chance(70) {
                        at & !(BLOCK - 1)
                    } else {
                        at
                    };
                    let bytes = pattern(1 + rng.below(3 * BLOCK) as usize, step);
                    handle.write_at(aligned, &bytes).unwrap();
                    let end = aligned as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[aligned as usize..end].copy_from_slice(&bytes);
                }
                12 => {
                    let bytes = pattern(100_000 + rng.below(100_000) as usize, step);
                    handle.write_at(at, &bytes).unwrap();
                    let end = at as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                13 => {
                    let len = at.max(200_000);
                    handle.set_len(len).unwrap();
                    model.resize(len as usize, 0);
                }
                14 if seed % 2 == 0 => {
                    // Pieces, and redo rows of base blocks.
                    let len = rng.below(20_000).min(model.len() as u64 - at);
                    let bytes = pattern(rng.below(20_000) as usize, step);
                    handle.replace_range(at, len, &bytes).unwrap();
                    model.splice(at as usize..(at + len) as usize, bytes);
                }
                14 => {
                    let len = 1 + rng.below(40_000);
                    handle.allocate(AllocateMode::PunchHole, at, len).unwrap();
                    let end = ((at + len) as usize).min(model.len());
                    model[at as usize..end].fill(0);
                }
                15 if rng.chance(20) => {
                    // All of it at once.
                    model = pattern(300_000 + rng.below(500_000) as usize, step);
                    db.files().write(b"/f", &model).unwrap();
                }
                15..19 => handle.sync().unwrap(),
                _ => {
                    drop(handle);
                    db.close().unwrap();
                    db = open_with(dir.path(), 256 << 10, false);
                }
            }
            let now = db.maintenance().space().unwrap().redo_bytes;
            added += u32::from(now > waiting);
            applied += u32::from(now < waiting);
            assert!(content(&db, node) == model, "seed {seed}, step {step}");
            if step % 20 == 0 {
                assert_clean(&db);
            }
        }
        assert!(
            added > 20 && applied > 4,
            "redo rows {added} times, {applied} applies: too few"
        );
        assert_clean(&db);
        db.close().unwrap();
        let db = open_with(dir.path(), 0, false);
        assert_eq!(
            db.maintenance().space().unwrap().redo_bytes,
            0,
            "closing applies"
        );
        assert!(content(&db, node) == model, "REDO-4: seed {seed}");
        assert_clean(&db);
    }
}

#[test]
fn small_overwrites_leave_one_fragment_and_large_ones_or_too_many_do_not() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let overwrite = |db: &Database, node, count: u64, blocks: u64| {
        let handle = db.nodes().open(node, true).unwrap();
        for index in 0..count {
            let bytes = pattern((blocks * BLOCK) as usize, index);
            handle.write_at(index * 64 * BLOCK, &bytes).unwrap();
        }
        handle.sync().unwrap();
    };
    let db = open_with(dir.path(), 64 << 20, false);
    let node = put(&db, R, "f", &pattern(32 << 20, 1));
    db.sync().unwrap();
    assert_eq!(fragments(&db), 1);
    overwrite(&db, node, 100, 2);
    assert_eq!(
        db.maintenance().space().unwrap().redo_bytes,
        100 * 2 * BLOCK
    );
    db.close().unwrap();
    let db = open_with(dir.path(), 64 << 20, false);
    assert_eq!(
        (fragments(&db), db.maintenance().space().unwrap().redo_bytes),
        (1, 0)
    );
    overwrite(&db, node, 3, 40); // Long runs.
    assert_eq!(
        (fragments(&db), db.maintenance().space().unwrap().redo_bytes),
        (6, 0)
    );
    db.close().unwrap();
    let db = open_with(dir.path(), 10 * BLOCK, false); // REDO-5
    overwrite(&db, node, 20, 1);
    assert_eq!(db.maintenance().space().unwrap().redo_bytes, 0);
    assert!(fragments(&db) > 20);
    assert_clean(&db);
}

/// A log that is opened, appended, synced and closed again and again stays in one place: its last
/// block gets redo rows, and what follows goes right behind it.
#[test]
fn a_log_of_open_append_close_stays_in_few_pieces() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let db = open_with(dir.path(), 64 << 20, false);
    let node = put(&db, R, "log", b"");
    let mut model = Vec::new();
    for index in 0..200 {
        let bytes = pattern(1000, index);
        let handle = db.nodes().open(node, true).unwrap();
        handle.append(&bytes).unwrap();
        handle.sync().unwrap();
        model.extend(bytes);
    }
    assert!(fragments(&db) <= 3, "{} fragments", fragments(&db));
    assert!(content(&db, node) == model);
    assert_clean(&db);
    db.close().unwrap();
    let db = open_with(dir.path(), 0, false);
    assert!(fragments(&db) <= 3 && content(&db, node) == model);
    assert_clean(&db);
}

#[test]
fn removing_a_file_or_store_removes_its_redo_rows() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let db = open_with(dir.path(), 64 << 20, false);
    db.stores().create("other", "files", None, None).unwrap();
    let root = db.nodes().resolve(b"/other", true).unwrap().node;
    for parent in [R, root] {
        let node = put(&db, parent, "f", &pattern(1 << 20, 1));
        db.sync().unwrap();
        let handle = db.nodes().open(node, true).unwrap();
        handle.write_at(BLOCK, &pattern(4096, 2)).unwrap();
        handle.sync().unwrap();
    }
    assert_eq!(db.maintenance().space().unwrap().redo_bytes, 2 * BLOCK);
    db.nodes().unlink(R, &name("f")).unwrap();
    db.sync().unwrap();
    assert_eq!(db.maintenance().space().unwrap().redo_bytes, BLOCK);
    db.stores().destroy("other").unwrap();
    assert_eq!(db.maintenance().space().unwrap().redo_bytes, 0);
    assert_clean(&db);
}

/// One session overwrites whole generations of blocks and applies all the time; readers of both
/// sessions, and their checks, never fail, and never see a block that is not of one generation, or
/// of an older one than they saw before (`REDO-2`, `REDO-3`).
#[test]
fn readers_of_two_sessions_never_meet_a_block_that_is_being_written_in_place() {
    const BLOCKS: u64 = 96;
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let one = open_with(dir.path(), 800 << 10, true);
    let two = open_with(dir.path(), 800 << 10, true);
    let node = put(&one, R, "f", &vec![0; (BLOCKS * BLOCK) as usize]);
    one.sync().unwrap();
    let (is_done, newest, applies) = (AtomicBool::new(false), AtomicU8::new(0), AtomicU8::new(0));
    std::thread::scope(|scope| {
        for (db, seed) in [(&one, 1), (&two, 2), (&two, 3)] {
            let (is_done, newest) = (&is_done, &newest);
            scope.spawn(move || {
                let handle = db.nodes().open(node, false).unwrap();
                let mut rng = Rng::new(seed);
                let mut seen = [0; BLOCKS as usize];
                while !is_done.load(Ordering::SeqCst) {
                    let (first, count) = (rng.below(BLOCKS - 8), 1 + rng.below(8));
                    let mut bytes = vec![0; (count * BLOCK) as usize];
                    handle.read_at(first * BLOCK, &mut bytes).unwrap();
                    let most = newest.load(Ordering::SeqCst);
                    for (index, block) in bytes.chunks_exact(BLOCK as usize).enumerate() {
                        let seen = &mut seen[first as usize + index];
                        assert!(block.iter().all(|&byte| byte == block[0]), "torn");
                        assert!(
                            (*seen..=most).contains(&block[0]),
                            "{seen} {} {most}",
                            block[0]
                        );
                        *seen = block[0];
                    }
                }
            });
        }
        scope.spawn(|| {
            while !is_done.load(Ordering::SeqCst) {
                assert_clean(&two);
                std::thread::sleep(Duration::from_millis(40));
            }
        });
        let handle = one.nodes().open(node, true).unwrap();
        let mut rng = Rng::new(9);
        for generation in 1..=250 {
            if generation > 60 && applies.load(Ordering::SeqCst) > 2 {
                break; // When applies happen is for clocks and readers to say.
            }
            newest.store(generation, Ordering::SeqCst);
            for _ in 0..20 {
                let block = rng.below(BLOCKS);
                handle
                    .write_at(block * BLOCK, &[generation; BLOCK as usize])
                    .unwrap();
            }
            let before = one.maintenance().space().unwrap().redo_bytes;
            handle.sync().unwrap();
            std::thread::sleep(Duration::from_millis(25));
            if one.maintenance().space().unwrap().redo_bytes < before {
                applies.fetch_add(1, Ordering::SeqCst);
            }
        }
        is_done.store(true, Ordering::SeqCst);
    });
    assert!(
        applies.load(Ordering::SeqCst) > 2,
        "nothing was applied: {applies:?}"
    );
    assert_clean(&one);
}

fn redo_blocks(db: &Database) -> u64 {
    db.maintenance().space().unwrap().redo_bytes / BLOCK
}

/// New content that a sync waits for goes into the log as long as all of it is small and nobody
/// else has the database open; it is there for those who open it later.
#[test]
fn small_synced_content_is_log_inlined_while_no_other_session_lives() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    // In the background the writer lock is given back, and nothing is applied before two idle
    // seconds.
    let one = open_with(dir.path(), 64 << 20, true);
    let synced = |db: &Database, text: &str, blocks: u64| {
        let bytes = pattern((blocks * BLOCK) as usize - 100, blocks);
        let node = make(db, R, text);
        let handle = db.nodes().open(node, true).unwrap();
        db.sync().unwrap();
        handle.write_at(0, &bytes).unwrap();
        let before = redo_blocks(db);
        handle.sync().unwrap();
        let logged = redo_blocks(db) - before;
        assert!(content(db, node) == bytes);
        (logged, node, bytes)
    };
    let (logged, first, bytes) = synced(&one, "logged", 3);
    assert_eq!(logged, 3, "LOGGED-1");
    assert_eq!(synced(&one, "at most", 16).0, 16, "LOGGED-1");
    assert_eq!(synced(&one, "too much", 17).0, 0, "LOGGED-1");
    assert_clean(&one);
    let two = open_with(dir.path(), 64 << 20, true);
    assert!(content(&two, first) == bytes);
    let (logged, node, bytes) = synced(&one, "not alone", 2);
    assert_eq!(logged, 0, "LOGGED-2");
    assert!(content(&two, node) == bytes);
    // Of what its commit makes nobody has read redo rows before; to a transaction its own session
    // is another one.
    let before = redo_blocks(&one);
    let (path, bytes) = (b"/made".as_slice(), pattern(3 * BLOCK as usize - 9, 7));
    let node = make(&one, R, "made too");
    let handle = one.nodes().open(node, true).unwrap();
    handle.write_at(0, &bytes).unwrap();
    handle.sync().unwrap();
    drop(handle);
    assert_eq!(redo_blocks(&one) - before, 3, "LOGGED-2");
    let txn = one.transactions().begin().unwrap();
    txn.files().write(path, &bytes).unwrap();
    txn.sql("SELECT 1", &[]).unwrap();
    txn.files()
        .write(b"/over", pattern(14 * BLOCK as usize, 8))
        .unwrap();
    txn.commit().unwrap();
    assert_eq!(redo_blocks(&one) - before, 6, "LOGGED-1: 17 blocks");
    let txn = one.transactions().begin().unwrap();
    txn.files().write(path, &bytes).unwrap();
    txn.commit().unwrap();
    let ended = redo_blocks(&one) - before;
    assert!(ended <= 6, "LOGGED-2: an old file: {ended}");
    for db in [&one, &two] {
        assert!(db.files().read(path).unwrap() == bytes && content(db, node) == bytes);
    }
    assert_clean(&two);
    two.close().unwrap();
    let (_, node, bytes) = synced(&one, "alone again", 2);
    one.close().unwrap();
    let one = open_with(dir.path(), 8 * BLOCK, false);
    assert_eq!(redo_blocks(&one), 0, "closing applies");
    assert!(content(&one, node) == bytes);
    assert_eq!(synced(&one, "too much again", 9).0, 0, "REDO-5");
    assert_clean(&one);
}

/// Small files that are written, synced, overwritten, truncated, punched, replaced and removed
/// while their content is log-inlined, delayed, placed early or applied: the content is always the
/// model's.
#[test]
fn log_inlined_content_is_the_models() {
    const FILES: u64 = 5;
    for seed in 1..=6 {
        let dir = tempfile::tempdir().unwrap();
        create(dir.path(), None).close().unwrap();
        let mut rng = Rng::new(seed);
        let mut db = open_with(dir.path(), 512 << 10, seed % 2 == 0);
        let mut models: Vec<Option<Vec<u8>>> = vec![None; FILES as usize];
        let mut handles = std::collections::BTreeMap::new();
        let mut logged = 0;
        for step in 0..700 {
            let index = rng.below(FILES) as usize;
            let file = format!("f{index}");
            let path = format!("/{file}").into_bytes();
            let Some(model) = models[index].as_mut() else {
                make(&db, R, &file);
                models[index] = Some(Vec::new());
                continue;
            };
            let node = db.nodes().resolve(&path, false).unwrap().node;
            let handle = handles
                .entry(index)
                .or_insert_with(|| db.nodes().open(node, true).unwrap());
            let at = rng.below(model.len() as u64 + 1);
            let aligned = at & !(BLOCK - 1);
            match rng.below(24) {
                0..9 => {
                    let at = if rng.chance(50) { aligned } else { at };
                    let bytes = pattern(1 + rng.below(3 * BLOCK) as usize, step);
                    handle.write_at(at, &bytes).unwrap();
                    let end = at as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
                9 => {
                    handle.set_len(at).unwrap();
                    model.truncate(at as usize);
                }
                10 => {
                    // A hole, and something in it again before the next commit.
                    let len = 1 + rng.below(3 * BLOCK);
                    let punch = AllocateMode::PunchHole;
                    handle.allocate(punch, aligned, len).unwrap();
                    let end = ((aligned + len) as usize).min(model.len());
                    model[aligned as usize..end].fill(0);
                    let bytes = pattern(100, step);
                    handle.write_at(aligned, &bytes).unwrap();
                    let end = aligned as usize + bytes.len();
                    model.resize(model.len().max(end), 0);
                    model[aligned as usize..end].copy_from_slice(&bytes);
                }
                11 => {
                    *model = pattern(rng.below(60_000) as usize, step);
                    db.files().write(&path, model).unwrap();
                }
                12 => {
                    handles.remove(&index);
                    db.nodes().unlink(R, &name(&file)).unwrap();
                    models[index] = None;
                    continue;
                }
                13 | 14 => {
                    handles.remove(&index);
                }
                15..23 => {
                    let before = db.maintenance().space().unwrap();
                    handle.sync().unwrap();
                    let after = db.maintenance().space().unwrap();
                    let has_more = after.live_bytes > before.live_bytes;
                    logged += u32::from(has_more && after.redo_bytes > before.redo_bytes);
                }
                _ => {
                    handles.clear();
                    db.close().unwrap();
                    db = open_with(dir.path(), 512 << 10, seed % 2 == 0);
                }
            }
            if let Some(model) = &models[index] {
                let node = db.nodes().resolve(&path, false).unwrap().node;
                assert!(content(&db, node) == *model, "seed {seed}, step {step}");
            }
            if step % 20 == 0 {
                assert_clean(&db);
            }
        }
        assert!(logged > 10, "seed {seed}: only {logged} syncs were logged");
        assert_clean(&db);
        handles.clear();
        db.close().unwrap();
        let db = open_with(dir.path(), 0, false);
        for (index, model) in models.iter().enumerate() {
            let found = db.nodes().resolve(format!("/f{index}").as_bytes(), false);
            assert_eq!(found.is_ok(), model.is_some());
            if let (Ok(attr), Some(model)) = (found, model) {
                assert!(content(&db, attr.node) == *model, "seed {seed}: {index}");
            }
        }
        assert_clean(&db);
    }
}
