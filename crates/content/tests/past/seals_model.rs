//! Sealed snapshots of random trees: they verify through everything that the engine does.
use crate::support;

use crate::common::crash;
use crate::common::moments::{Clock, HOUR, SECOND};
use crate::support::ContentTree;
use larder::{Database, DefragOptions, PruneCut, VerifyOptions};
use larder_testkit::{Mix, Rng, Script};

/// So that redo rows are applied now and then.
const REDO_BYTES_MAX: u64 = 256 << 10;

fn assert_sealed(db: &Database, when: &str) {
    let report = db.snapshots().verify(&VerifyOptions::default()).unwrap();
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
        let clock = Clock::applying_redo_at(REDO_BYTES_MAX);
        let script = Script::generate(seed, 300, MIX);
        clock.create(dir.path(), 256, HOUR).close().unwrap();
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
                tree.database().snapshots().create(&name).unwrap();
                // Some much later than they were made.
                let late = format!("s{}", index / 2);
                for name in [name, late] {
                    sealed += usize::from(tree.database().snapshots().seal(&name, None).is_ok());
                }
            }
            if rng.chance(2) {
                let options = DefragOptions::default();
                tree.database()
                    .maintenance()
                    .defrag(&[], &options, &mut |_| {})
                    .unwrap();
            }
            if rng.chance(2) {
                tree.close().unwrap();
                tree = open();
            }
            if rng.chance(1) && sealed > 0 {
                let left = support::scratch();
                crash(dir.path(), left.path());
                let found = clock.open(left.path());
                assert_sealed(&found, &format!("seed {seed}, a crash after {index}"));
            }
        }
        assert!(sealed > 2, "seed {seed}");
        assert_sealed(tree.database(), &format!("seed {seed}, at the end"));
        clock.pass(2 * HOUR);
        tree.database()
            .history()
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
#[ignore = "a measurement: cargo test --release -p larder --test past seals_model::costs -- \
    --ignored --nocapture"]
fn what_a_row_of_the_history_costs() {
    let dir = support::scratch();
    let clock = Clock::applying_redo_at(REDO_BYTES_MAX);
    let db = clock.create(dir.path(), 256, HOUR);
    let nodes: Vec<larder::NodeId> = (0..20)
        .map(|index| {
            let path = format!("/f{index}");
            db.files().write(path.as_bytes(), b"bytes").unwrap();
            db.nodes().resolve(path.as_bytes(), false).unwrap().node
        })
        .collect();
    db.snapshots().create("a").unwrap();
    db.snapshots().seal("a", None).unwrap();
    for round in 0..2000u32 {
        for node in &nodes {
            let change = larder::SetAttr {
                mode: Some(round & 0o777),
                ..larder::SetAttr::default()
            };
            db.nodes().set_attr(*node, &change).unwrap();
        }
        db.sync().unwrap();
    }
    db.snapshots().create("b").unwrap();
    let began = std::time::Instant::now();
    db.snapshots().seal("b", None).unwrap();
    let rows = 2000 * (nodes.len() + 1);
    let each_ns = began.elapsed().as_nanos() / rows as u128;
    println!("{rows} rows: {each_ns} ns each");
    assert!(each_ns > 0);
}
