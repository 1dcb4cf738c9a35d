//! Sealed snapshots of random trees: they verify through everything that the engine does.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

mod support;

use larder::{CreateOptions, Database, DefragOptions, OpenOptions, PruneCut, VerifyOptions};
use larder_object::EngineOptions;
use larder_testkit::{Mix, Rng, Script};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use support::ContentTree;

const BEGIN_NS: i64 = 1_800_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;

/// A clock that goes when it is told.
#[derive(Clone)]
struct Clock(Arc<AtomicI64>);

impl Clock {
    fn new() -> Clock {
        Clock(Arc::new(AtomicI64::new(BEGIN_NS)))
    }

    fn pass(&self, ns: i64) {
        self.0.fetch_add(ns, Ordering::SeqCst);
    }

    fn engine(&self) -> EngineOptions {
        let clock = self.clone();
        EngineOptions {
            has_background: false,
            patch_bytes_max: 256 << 10, // So that patches are applied now and then.
            clock: Some(Arc::new(move || clock.0.load(Ordering::SeqCst))),
            ..EngineOptions::default()
        }
    }

    fn create(&self, dir: &Path) -> Database {
        let options = CreateOptions {
            capacity_bytes: Some(256 << 20),
            retention_ns: Some(3600 * SECOND),
            ..CreateOptions::default()
        };
        let path = dir.join("t.larder");
        Database::create_with(&path, &options, &self.engine()).unwrap();
        self.open(dir)
    }

    fn open(&self, dir: &Path) -> Database {
        let options = OpenOptions {
            engine: self.engine(),
            ..OpenOptions::default()
        };
        Database::open(&dir.join("t.larder"), options).unwrap()
    }
}

/// What is on disk now, as a kill would leave it, without its session.
fn copy(from: &Path, to: &Path) {
    let (from, to) = (from.join("t.larder"), to.join("t.larder"));
    std::fs::create_dir_all(to.join("segments")).unwrap();
    for file in ["catalog.db", "catalog.db-wal"] {
        if from.join(file).exists() {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
    }
    for entry in std::fs::read_dir(from.join("segments")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join("segments").join(entry.file_name())).unwrap();
    }
}

fn assert_sealed(db: &Database, when: &str) {
    let report = db.verify_seals(&VerifyOptions::default()).unwrap();
    assert!(report.is_clean(), "SEAL-3, {when}: {report:#?}");
}

const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 300 << 10,
    write_bytes_max: 60 << 10,
    sync_percent: 10,
    overwrite_percent: 20,
    fragment_percent: 10,
};

#[test]
fn seals_of_random_trees_verify_after_random_operations() {
    for seed in 301..=303 {
        let dir = support::scratch();
        let clock = Clock::new();
        let script = Script::generate(seed, 300, MIX);
        clock.create(dir.path()).close().unwrap();
        let open = || support::open(&dir.path().join("t.larder"), clock.engine()).unwrap();
        let mut tree: ContentTree = open();
        let mut rng = Rng::new(seed ^ 0x5ea1);
        let mut sealed = 0;
        for (index, op) in script.ops.iter().enumerate() {
            tree.apply(op)
                .unwrap_or_else(|error| panic!("seed {seed}, operation {index} {op:?}: {error}"));
            if rng.chance(20) {
                tree.database().sync().unwrap();
                clock.pass(SECOND);
            }
            if rng.chance(3) {
                let name = format!("s{index}");
                tree.database().create_snapshot(&name).unwrap();
                // Some much later than they were made.
                let late = format!("s{}", index / 2);
                for name in [name, late] {
                    sealed += usize::from(tree.database().seal_snapshot(&name, None).is_ok());
                }
            }
            if rng.chance(2) {
                let options = DefragOptions::default();
                tree.database().defrag(&[], &options, &mut |_| {}).unwrap();
            }
            if rng.chance(2) {
                tree.close().unwrap();
                tree = open();
            }
            if rng.chance(1) && sealed > 0 {
                let left = support::scratch();
                copy(dir.path(), left.path());
                let found = clock.open(left.path());
                assert_sealed(&found, &format!("seed {seed}, a crash after {index}"));
            }
        }
        assert!(sealed > 2, "seed {seed}");
        assert_sealed(tree.database(), &format!("seed {seed}, at the end"));
        clock.pass(7200 * SECOND);
        tree.database()
            .prune(PruneCut::Retention, None, false)
            .unwrap();
        assert_sealed(tree.database(), &format!("seed {seed}, pruned"));
        assert_eq!(
            tree.findings().unwrap(),
            Vec::<String>::new(),
            "seed {seed}"
        );
    }
}

/// What the rows of commits cost to be hashed: most of sealing a small tree with much history.
#[test]
#[ignore = "a measurement; run it alone, with --nocapture"]
fn what_a_row_of_the_history_costs() {
    let dir = support::scratch();
    let clock = Clock::new();
    let db = clock.create(dir.path());
    let nodes: Vec<larder::NodeId> = (0..20)
        .map(|index| {
            let path = format!("/f{index}");
            db.put(path.as_bytes(), b"bytes").unwrap();
            db.resolve(path.as_bytes(), false).unwrap().node
        })
        .collect();
    db.create_snapshot("a").unwrap();
    db.seal_snapshot("a", None).unwrap();
    for round in 0..2000u32 {
        for node in &nodes {
            let change = larder::SetAttr {
                mode: Some(round & 0o777),
                ..larder::SetAttr::default()
            };
            db.set_attr(*node, &change).unwrap();
        }
        db.sync().unwrap();
    }
    db.create_snapshot("b").unwrap();
    let began = std::time::Instant::now();
    db.seal_snapshot("b", None).unwrap();
    let rows = 2000 * (nodes.len() + 1);
    let each_ns = began.elapsed().as_nanos() / rows as u128;
    println!("{rows} rows: {each_ns} ns each");
    assert!(each_ns > 0);
}
