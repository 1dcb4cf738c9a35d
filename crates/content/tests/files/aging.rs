//! Compaction under rewriting: what it moves, and what that does to fragments. Seeded.
//!
//! `cargo test --release -p larder --test files aging -- --nocapture` prints the figures of
//! docs/decisions/0010-compaction.md; `LARDER_AGING_MIB`, `LARDER_AGING_AGE` make the run larger.

use crate::common::*;
use larder::{CreateOptions, Database, DatabaseOptions, DefragOptions, NodeId};
use larder_object::EngineOptions;
use larder_testkit::{Rng, SimStorage};
use std::sync::Arc;

const R: NodeId = NodeId::ROOT;

struct Outcome {
    mean_before: f64,
    mean: f64,
    p99: u64,
    written_bytes: u64,
    moved_bytes: u64,
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// Fills a database to `percent`, replaces objects of 128 KiB to 384 KiB at random until as much
/// has been replaced `age` times as lives, with or without steps of compaction, each after a
/// commit.
fn rewrite(percent: u64, age: u64, compacts: bool) -> Outcome {
    let dir = tempfile::tempdir().unwrap();
    let capacity_bytes = setting("LARDER_AGING_MIB", 64) << 20;
    let engine = EngineOptions {
        storage: Some(Arc::new(SimStorage::new())),
        has_background: false,
        ..EngineOptions::default()
    };
    let path = dir.path().join("t.larder");
    let create = CreateOptions {
        capacity_bytes: Some(capacity_bytes),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &create, &engine).unwrap();
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    let db = Database::open(&path, options).unwrap();
    let mut rng = Rng::new(7);
    let len_of = |rng: &mut Rng| ((128 << 10) + rng.below(256 << 10)) as usize;
    let (mut names, mut live, mut written_bytes, mut moved_bytes) = (0, 0, 0, 0);
    let sentinel = put(&db, R, "sentinel", &[1; 4096]);
    while live < capacity_bytes / 100 * percent {
        let len = len_of(&mut rng);
        put(&db, R, &format!("f{names}"), &pattern(len, names));
        (names, live) = (names + 1, live + len as u64);
    }
    db.sync().unwrap();
    let mean_before = db.maintenance().frag().unwrap().fragments_per_object_mean;
    while written_bytes < live * age {
        let victim = format!("f{}", rng.below(names));
        let old = db.nodes().lookup(R, &name(&victim)).unwrap();
        // A safe replacement of the same length give or take; the pool stays as full as it is.
        let len = len_of(&mut rng) as u64;
        let available_bytes = db.maintenance().space().unwrap().available_bytes + old.size_bytes;
        let len = len.min(available_bytes.saturating_sub(1 << 20)).max(4096);
        db.nodes().unlink(R, &name(&victim)).unwrap();
        let node = make(&db, R, &victim);
        let handle = db.nodes().open(node, true).unwrap();
        handle
            .write_at(0, &pattern(len as usize, written_bytes))
            .unwrap();
        handle.sync().unwrap();
        written_bytes += len;
        if compacts {
            moved_bytes += db.maintenance().compact_step().unwrap().moved_bytes;
        }
        // Commits and reclaims, as a background would; there is nothing to move.
        db.maintenance()
            .defrag(&[sentinel], &DefragOptions::default(), &mut |_| {})
            .unwrap();
    }
    db.sync().unwrap();
    let frag = db.maintenance().frag().unwrap();
    assert_clean(&db);
    Outcome {
        mean_before,
        mean: frag.fragments_per_object_mean,
        p99: frag.fragments_per_object_p99,
        written_bytes,
        moved_bytes,
    }
}

#[test]
fn compaction_within_its_credit_keeps_objects_whole() {
    let age = setting("LARDER_AGING_AGE", 2);
    for percent in [90, 94] {
        let without = rewrite(percent, age, false);
        let with = rewrite(percent, age, true);
        let per_byte = with.moved_bytes as f64 / with.written_bytes as f64;
        println!(
            "{percent} % full, age {age}: young {:.3}, without {:.3} (p99 {}), with {:.3} (p99 \
             {}), {per_byte:.3} bytes moved per byte written",
            without.mean_before, without.mean, without.p99, with.mean, with.p99
        );
        assert!(per_byte <= 0.5, "COMPACT-5");
        assert!(with.mean <= without.mean, "compaction makes it worse");
    }
}
