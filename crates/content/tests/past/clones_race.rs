//! Clones beside writers: several threads write, copy ranges, clone and remove files of their own,
//! while the background commits and writes redo rows in place. Each thread knows what its files
//! hold. `SHARE-4`, `SHARE-6`, `CLONE-1`.

use crate::common::{assert_clean, make, moments, pattern, put, temporal};
use larder::{CreateOptions, Database, DatabaseOptions, ErrorKind, copy_range};
use larder_object::EngineOptions;
use larder_testkit::Rng;
use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

const THREADS: u64 = 4;
const STEPS: u32 = 150;
const FILES: u64 = 5;

fn open(path: &Path) -> Database {
    let options = DatabaseOptions {
        engine: EngineOptions {
            commit_interval: Duration::from_millis(5),
            redo_bytes_max: 512 << 10, // So that redo rows are applied all the time.
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    Database::open(path, options).unwrap()
}

/// One thread's files, and what they hold.
fn work(database: &Database, thread: u64, seed: u64) -> BTreeMap<String, Vec<u8>> {
    let mut rng = Rng::new(seed * 100 + thread);
    let mut files: BTreeMap<String, Vec<u8>> = BTreeMap::new();
    for step in 0..STEPS {
        let path = format!("/{thread}-{}", rng.below(FILES));
        let other = format!("/{thread}-{}", rng.below(FILES));
        let file = |path: &str| {
            let node = database
                .nodes()
                .resolve(path.as_bytes(), false)
                .unwrap()
                .node;
            database.nodes().open(node, true).unwrap()
        };
        match (
            rng.below(10),
            files.contains_key(&path),
            files.contains_key(&other),
        ) {
            (_, false, _) => {
                let bytes = pattern(1 + rng.below(300 << 10) as usize, rng.below(1 << 40));
                database.files().write(path.as_bytes(), &bytes).unwrap();
                files.insert(path, bytes);
            }
            (0..5, ..) => {
                let bytes = pattern(1 + rng.below(9000) as usize, rng.below(1 << 40));
                let model = files.get_mut(&path).unwrap();
                let offset = rng.below(model.len() as u64) as usize;
                let handle = file(&path);
                handle.write_at(offset as u64, &bytes).unwrap();
                if rng.below(3) == 0 {
                    handle.sync().unwrap();
                }
                let end = offset + bytes.len();
                model.resize(model.len().max(end), 0);
                model[offset..end].copy_from_slice(&bytes);
            }
            (5..7, true, false) => {
                let cloned = database
                    .files()
                    .clone_path(None, path.as_bytes(), other.as_bytes());
                cloned.unwrap();
                files.insert(other, files[&path].clone());
            }
            (5..8, true, true) if path != other => {
                let (from, to) = (file(&path), file(&other));
                let at = 4096 * rng.below(20);
                let copied =
                    copy_range((&*from, at), (&*to, at), 4096 * (1 + rng.below(40))).unwrap();
                let (start, end) = (at as usize, (at + copied) as usize);
                if copied > 0 {
                    let part = files[&path][start..end].to_vec();
                    let model = files.get_mut(&other).unwrap();
                    model.resize(model.len().max(end), 0);
                    model[start..end].copy_from_slice(&part);
                }
            }
            (8, ..) => {
                let (parent, name) = database.nodes().resolve_parent(path.as_bytes()).unwrap();
                database.nodes().unlink(parent, &name).unwrap();
                files.remove(&path);
            }
            _ => {
                let found = database.files().read(path.as_bytes()).unwrap();
                let differs = found.iter().zip(&files[&path]).position(|(a, b)| a != b);
                assert!(
                    found == files[&path],
                    "seed {seed}, thread {thread}, step {step}: {path} differs at {differs:?}"
                );
            }
        }
    }
    files
}

fn compare(database: &Database, files: &BTreeMap<String, Vec<u8>>, seed: u64) {
    for (path, bytes) in files {
        let found = database.files().read(path.as_bytes());
        assert!(found.unwrap() == *bytes, "seed {seed}: {path}");
    }
    let count = database
        .nodes()
        .read_dir(larder::NodeId::ROOT, None, 1000)
        .unwrap()
        .len();
    assert_eq!(count, files.len(), "seed {seed}");
}

#[test]
fn clones_beside_writers() {
    for seed in 1..=4 {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("t.larder");
        let options = CreateOptions {
            capacity_bytes: Some(128 << 20),
            ..CreateOptions::default()
        };
        Database::create(&path, &options).unwrap();
        let database = open(&path);
        let files: BTreeMap<String, Vec<u8>> = std::thread::scope(|scope| {
            let database = &database;
            let threads: Vec<_> = (0..THREADS)
                .map(|thread| scope.spawn(move || work(database, thread, seed)))
                .collect();
            threads
                .into_iter()
                .flat_map(|thread| thread.join().unwrap())
                .collect()
        });
        compare(&database, &files, seed);
        assert_clean(&database);
        database.close().unwrap();
        let database = open(&path);
        compare(&database, &files, seed);
        assert_clean(&database);
        let missing = database
            .files()
            .clone_path(None, b"/none", b"/other")
            .unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
    }
}

/// `SHARE-1`. Nothing but what is known of the target can tell the two threads apart.
#[test]
fn two_threads_do_not_share_one_block_twice_with_one_file() {
    const LEN: u64 = 64 << 10;
    let directory = tempfile::tempdir().unwrap();
    let database = moments::create(directory.path(), 64);
    let root = larder::NodeId::ROOT;
    let open = |node| database.nodes().open(node, true).unwrap();
    let bytes = pattern(LEN as usize, 3);
    let first = put(&database, root, "first", &bytes);
    database.sync().unwrap();
    let second = make(&database, root, "second");
    copy_range((&*open(first), 0), (&*open(second), 0), LEN).unwrap();
    database.sync().unwrap();
    for round in 0..300 {
        let target = make(&database, root, &format!("target{round}"));
        let start = std::sync::Barrier::new(2);
        std::thread::scope(|scope| {
            for (from, at) in [(first, 0), (second, LEN)] {
                let (open, start) = (&open, &start);
                scope.spawn(move || {
                    let (from, to) = (open(from), open(target));
                    start.wait();
                    assert_eq!(copy_range((&*from, 0), (&*to, at), LEN).unwrap(), LEN);
                });
            }
        });
        if round % 20 == 0 {
            database.sync().unwrap();
        }
        let found = database
            .files()
            .read(format!("/target{round}").as_bytes())
            .unwrap();
        assert!(found == [&bytes[..], &bytes[..]].concat(), "{round}");
    }
    assert_clean(&database);
}

#[test]
fn what_is_written_elsewhere_in_the_source_is_not_committed_for_a_copy() {
    const MIB: u64 = 1 << 20;
    let directory = tempfile::tempdir().unwrap();
    let database = moments::create(directory.path(), 64);
    let root = larder::NodeId::ROOT;
    let bytes = pattern(4 * MIB as usize, 7);
    let node = put(&database, root, "from", &bytes);
    let from = database.nodes().open(node, true).unwrap();
    let copy = |name: &str| {
        let node = make(&database, root, name);
        let to = database.nodes().open(node, true).unwrap();
        assert_eq!(copy_range((&*from, 0), (&*to, 0), MIB).unwrap(), MIB);
    };
    copy("first");
    database.sync().unwrap();
    let last = "SELECT value FROM larder_meta WHERE key = 'commit_seq'";
    let last = || temporal::client(directory.path()).ask(last);
    let before = last();
    for round in 0..4 {
        from.write_at(3 * MIB + round * 4096, &[1; 4096]).unwrap();
        copy(&format!("copy{round}"));
    }
    assert_eq!(last(), before);
    database.sync().unwrap();
    assert_eq!(
        database.maintenance().stats().unwrap().shared_bytes,
        5 * MIB
    );
    for round in 0..4 {
        let found = database.files().read(format!("/copy{round}").as_bytes());
        assert!(found.unwrap() == bytes[..MIB as usize]);
    }
    assert_clean(&database);
}
