//! The past: as of any commit within the retention, everything reads as the model says it was then;
//! through applies of redo rows, moves, reclaim under pressure, and reopening.
use crate::common;
use crate::support;
mod worlds;

use crate::common::moments::{BEGIN_NS, Clock, HOUR, MILLISECOND};
use crate::common::{kind, make, name, open as open_plain, pattern, put};
use crate::support::ContentTree;
use larder::{
    CreateOptions, Database, DefragOptions, ErrorKind, Moment, NodeId, SetAttr, SqlValue,
    Transaction, XattrMode, parse_moment,
};
use larder_object::EngineOptions;
use larder_testkit::{Mix, Rng, Script, explain_difference};
use std::collections::BTreeMap;
use std::path::Path;

const R: NodeId = NodeId::ROOT;

/// By this clock, with redo rows that are applied now and then.
fn engine(clock: &Clock) -> EngineOptions {
    EngineOptions {
        redo_bytes_max: 256 << 10,
        ..clock.engine()
    }
}

fn create(clock: &Clock, dir: &Path, mib: u64, retention_ns: i64) -> ContentTree {
    drop(clock.create(dir, mib, retention_ns));
    open(clock, dir)
}

fn open(clock: &Clock, dir: &Path) -> ContentTree {
    support::open(&dir.join("t.larder"), engine(clock)).unwrap()
}

const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 300 << 10,
    write_bytes_max: 60 << 10,
    sync_percent: 10,
    overwrite_percent: 20,
    fragment_percent: 10,
};

/// As of `at_ns` the tree is as `made` operations left it.
fn assert_was(database: &Database, script: &Script, (at_ns, made): (i64, usize), when: &str) {
    let past = database.as_of(&Moment::At(at_ns)).unwrap();
    let walked = ContentTree::new(past).walk();
    let walked = walked.unwrap_or_else(|error| {
        panic!(
            "seed {}, {when}, after {made} operations: {error}",
            script.seed
        )
    });
    if script.find_prefix(&walked, made, made).is_none() {
        panic!(
            "seed {}, {when}, as of {made} operations:\n{}",
            script.seed,
            explain_difference(&script.tree(made), &walked)
        );
    }
}

/// How many rows there are of each kind of history, and of pre-images: what is not there is not
/// tested.
fn count_history(database: &Database, counts: &mut BTreeMap<String, i64>) {
    let mut session = database.sql().open(false).unwrap();
    let sql = "SELECT what, count(*) FROM larder_history GROUP BY what \
               UNION ALL SELECT 'pre-image', count(*) FROM larder_pre_image";
    let mut rows = Vec::new();
    session
        .execute(sql, &mut |row| {
            rows.push(row.values);
            Ok(())
        })
        .unwrap();
    for row in rows {
        let [SqlValue::Text(what), SqlValue::Integer(count)] = &row[..] else {
            panic!("{row:?}")
        };
        *counts.entry(what.clone()).or_default() += count;
    }
}

/// A transaction that has taken its moment and holds it.
fn begin_reading(database: &Database) -> Transaction {
    let reader = database.transactions().begin().unwrap();
    reader.nodes().metadata(R).unwrap();
    reader
}

/// Two sessions that take turns, each with its background, which applies redo rows whenever some
/// wait: everything may happen between any two steps of an apply.
fn run_beside_the_background(seed: u64, op_count: usize) -> BTreeMap<String, i64> {
    let dir = support::scratch();
    let clock = Clock::new();
    let mix = Mix {
        sync_percent: 20,
        overwrite_percent: 40,
        ..MIX
    };
    let script = Script::generate(seed, op_count, mix);
    create(&clock, dir.path(), 256, HOUR).close().unwrap();
    let session = || {
        let engine = EngineOptions {
            has_background: true,
            redo_bytes_max: 64 << 10,
            ..engine(&clock)
        };
        support::open(&dir.path().join("t.larder"), engine).unwrap()
    };
    let (mut tree, mut other) = (session(), session());
    let mut rng = Rng::new(seed ^ 0x7158);
    let mut moments: Vec<(i64, usize)> = Vec::new();
    for (index, op) in script.ops.iter().enumerate() {
        tree.apply(op)
            .unwrap_or_else(|error| panic!("seed {seed}, operation {index} {op:?}: {error}"));
        if rng.chance(30) {
            tree.database().sync().unwrap();
            moments.push((clock.now(), index + 1));
            clock.pass(MILLISECOND);
        }
        if rng.chance(5) {
            tree.database().sync().unwrap();
            std::mem::swap(&mut tree, &mut other);
            // Has the writer lock, and with it knows what the other did.
            let refused = tree.database().snapshots().destroy("nobody");
            assert_eq!(kind(refused), ErrorKind::NotFound);
        }
        if rng.chance(3) && !moments.is_empty() {
            let moment = *rng.pick(&moments);
            assert_was(tree.database(), &script, moment, "on the way");
        }
    }
    tree.database().sync().unwrap();
    for moment in &moments {
        assert_was(tree.database(), &script, *moment, "at the end");
    }
    other.close().unwrap();
    assert_eq!(
        tree.findings().unwrap(),
        Vec::<String>::new(),
        "seed {seed}"
    );
    let mut counts = BTreeMap::new();
    count_history(tree.database(), &mut counts);
    tree.close().unwrap();
    let tree = open(&clock, dir.path());
    for moment in moments.iter().step_by(3) {
        assert_was(tree.database(), &script, *moment, "reopened");
    }
    counts
}

fn run_model(seed: u64, op_count: usize) -> BTreeMap<String, i64> {
    let dir = support::scratch();
    let clock = Clock::new();
    let script = Script::generate(seed, op_count, MIX);
    let mut tree = create(&clock, dir.path(), 256, HOUR);
    let mut rng = Rng::new(seed ^ 0x7157);
    let mut moments: Vec<(i64, usize)> = Vec::new();
    let mut reader: Option<Transaction> = None;
    for (index, op) in script.ops.iter().enumerate() {
        tree.apply(op)
            .unwrap_or_else(|error| panic!("seed {seed}, operation {index} {op:?}: {error}"));
        if rng.chance(30) {
            tree.database().sync().unwrap();
            moments.push((clock.now(), index + 1));
            clock.pass(MILLISECOND);
        }
        if rng.chance(2) {
            let options = DefragOptions::default();
            tree.database()
                .maintenance()
                .defrag(&[], &options, &mut |_| {})
                .unwrap();
        }
        if rng.chance(8) {
            // A reader, or none any more: an apply leaves what came after its moment.
            reader = match reader {
                None => Some(begin_reading(tree.database())),
                Some(_) => None,
            };
        }
        if rng.chance(2) {
            reader = None;
            tree.close().unwrap(); // Applies redo rows.
            tree = open(&clock, dir.path());
        }
        if rng.chance(1) {
            let left = support::scratch();
            common::crash(dir.path(), left.path());
            let found = open(&clock, left.path());
            assert_eq!(
                found.findings().unwrap(),
                Vec::<String>::new(),
                "seed {seed}"
            );
            for moment in moments.iter().rev().step_by(5) {
                assert_was(found.database(), &script, *moment, "after a crash");
            }
        }
        if rng.chance(5) && !moments.is_empty() {
            let moment = *rng.pick(&moments);
            assert_was(tree.database(), &script, moment, "on the way");
        }
    }
    drop(reader);
    for moment in &moments {
        assert_was(tree.database(), &script, *moment, "at the end");
    }
    assert_eq!(
        tree.findings().unwrap(),
        Vec::<String>::new(),
        "seed {seed}"
    );
    let mut counts = BTreeMap::new();
    count_history(tree.database(), &mut counts);
    tree.close().unwrap();
    let tree = open(&clock, dir.path());
    for moment in moments.iter().step_by(3) {
        assert_was(tree.database(), &script, *moment, "reopened");
    }
    // The retention passes: the past goes, and with it the space.
    clock.pass(HOUR);
    make(tree.database(), R, "one commit");
    tree.database().sync().unwrap();
    make(tree.database(), R, "another");
    tree.database().sync().unwrap();
    assert_eq!(
        tree.database().maintenance().space().unwrap().retired_bytes,
        0,
        "seed {seed}"
    );
    let gone = tree
        .database()
        .as_of(&Moment::At(moments[0].0))
        .err()
        .unwrap();
    assert_eq!(gone.kind(), ErrorKind::InvalidInput);
    assert!(gone.to_string().contains("history begins"), "{gone}");
    assert_eq!(
        tree.findings().unwrap(),
        Vec::<String>::new(),
        "seed {seed}"
    );
    counts
}

#[test]
fn every_moment_reads_as_the_model_says() {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for seed in 1..=3 {
        // CONTENT-9, HISTORY-1, HISTORY-2, HISTORY-3, HISTORY-4, PREIMAGE-1
        for (what, count) in run_model(seed, 400) {
            *counts.entry(what).or_default() += count;
        }
    }
    for what in [
        "commit",
        "inode",
        "name",
        "content",
        "map",
        "piece",
        "xattr",
        "redo",
        "pre-image",
    ] {
        assert!(
            counts.get(what).is_some_and(|&count| count > 0),
            "{what}: {counts:?}"
        );
    }
}

#[test]
fn every_moment_reads_as_the_model_says_beside_two_backgrounds() {
    let mut counts: BTreeMap<String, i64> = BTreeMap::new();
    for seed in 201..=203 {
        // CONTENT-9, HISTORY-1, PREIMAGE-1
        for (what, count) in run_beside_the_background(seed, 400) {
            *counts.entry(what).or_default() += count;
        }
    }
    for what in ["redo", "pre-image"] {
        assert!(
            counts.get(what).is_some_and(|&count| count > 0),
            "{what}: {counts:?}"
        );
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn every_moment_reads_as_the_model_says_for_many_seeds() {
    for seed in 100..160 {
        run_model(seed, 800);
        run_beside_the_background(seed, 800);
    }
}

#[test]
fn a_full_database_gives_up_the_oldest_history_first() {
    let dir = support::scratch();
    let clock = Clock::new();
    let tree = create(&clock, dir.path(), 64, HOUR);
    let database = tree.database();
    let mut moments = Vec::new();
    // Four times what it holds, in a file that is replaced.
    for round in 0..64 {
        database
            .files()
            .write(b"/file", pattern(4 << 20, round))
            .unwrap();
        database.sync().unwrap();
        moments.push((clock.now(), round));
        clock.pass(MILLISECOND);
    }
    let mut first_kept = None;
    for (at_ns, round) in moments {
        match database.as_of(&Moment::At(at_ns)) {
            Ok(past) => {
                assert_eq!(
                    past.files().read(b"/file").unwrap(),
                    pattern(4 << 20, round)
                );
                first_kept.get_or_insert(round);
            }
            Err(error) => {
                assert_eq!(first_kept, None, "TIME-2: the oldest first: {error}");
                assert!(error.to_string().contains("history begins"), "{error}");
            }
        }
    }
    let first_kept = first_kept.unwrap();
    assert!((45..62).contains(&first_kept), "{first_kept}");
    // What is held is not given up: then the database is full.
    database.snapshots().create("kept").unwrap();
    let full = (0..64)
        .find_map(|round| {
            let put = database
                .files()
                .write(b"/file", pattern(4 << 20, 100 + round));
            put.and_then(|_| database.sync()).err()
        })
        .unwrap();
    assert_eq!(full.kind(), ErrorKind::NoSpace, "TIME-1: {full}");
    let kept = database.as_of(&Moment::Snapshot("kept".into())).unwrap();
    assert_eq!(kept.files().read(b"/file").unwrap(), pattern(4 << 20, 63));
    drop(kept);
    database.snapshots().destroy("kept").unwrap();
    database
        .files()
        .write(b"/file", pattern(4 << 20, 200))
        .unwrap();
    database.sync().unwrap();
    assert_eq!(tree.findings().unwrap(), Vec::<String>::new());
}

#[test]
fn a_reader_of_the_past_keeps_what_it_reads() {
    let dir = support::scratch();
    let clock = Clock::new();
    let tree = create(&clock, dir.path(), 64, 1000 * MILLISECOND);
    let database = tree.database();
    let old = pattern(3 << 20, 1);
    database.files().write(b"/file", &old).unwrap();
    database.sync().unwrap();
    let past = database.as_of(&Moment::At(clock.now())).unwrap();
    for round in 0..8 {
        clock.pass(1000 * MILLISECOND);
        database
            .files()
            .write(b"/file", pattern(3 << 20, 10 + round))
            .unwrap();
        database.sync().unwrap();
    }
    assert_eq!(past.files().read(b"/file").unwrap(), old, "PAST-2");
    drop(past);
    for round in 0..3 {
        clock.pass(10_000 * MILLISECOND);
        database
            .files()
            .write(b"/other", pattern(5000, round))
            .unwrap();
        database.sync().unwrap();
    }
    let gone = database.as_of(&Moment::At(BEGIN_NS));
    assert_eq!(kind(gone.map(drop)), ErrorKind::InvalidInput);
    assert_eq!(tree.findings().unwrap(), Vec::<String>::new());
}

#[test]
fn names_attributes_and_small_things_have_a_past() {
    let dir = tempfile::tempdir().unwrap();
    let options = CreateOptions {
        retention_ns: Some(HOUR),
        ..CreateOptions::default()
    };
    Database::create(&dir.path().join("t.larder"), &options).unwrap();
    let db = open_plain(dir.path());
    let file = put(&db, R, "small", b"tiny");
    db.attributes()
        .set(file, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    db.snapshots().create("first").unwrap();
    db.files().write(b"/small", b"TINY").unwrap();
    db.attributes()
        .set(file, b"user.a", b"2", XattrMode::Set)
        .unwrap();
    db.attributes()
        .set(file, b"user.b", b"3", XattrMode::Set)
        .unwrap();
    let change = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    db.nodes().set_attr(file, &change).unwrap();
    db.nodes()
        .rename(
            R,
            &name("small"),
            R,
            &name("moved"),
            larder::RenameMode::Replace,
        )
        .unwrap();
    db.snapshots().create("second").unwrap();
    db.nodes().unlink(R, &name("moved")).unwrap();
    db.sync().unwrap();
    let first = db
        .as_of(&parse_moment("first", db.now_ns()).unwrap())
        .unwrap();
    assert_eq!(first.files().read(b"/small").unwrap(), b"tiny");
    assert_eq!(first.attributes().get(file, b"user.a").unwrap(), b"1");
    assert_eq!(
        kind(first.attributes().get(file, b"user.b")),
        ErrorKind::NoAttribute
    );
    assert_eq!(first.nodes().metadata(file).unwrap().mode, 0o644);
    assert_eq!(
        kind(first.nodes().resolve(b"/moved", true)),
        ErrorKind::NotFound
    );
    let second = db.as_of(&Moment::Snapshot("SECOND".into())).unwrap();
    assert_eq!(second.files().read(b"/moved").unwrap(), b"TINY");
    assert_eq!(second.attributes().list(file).unwrap().len(), 2);
    assert_eq!(second.nodes().metadata(file).unwrap().mode, 0o600);
    assert_eq!(
        kind(second.nodes().resolve(b"/small", true)),
        ErrorKind::NotFound
    );
    assert_eq!(
        kind(db.nodes().resolve(b"/moved", true)),
        ErrorKind::NotFound
    );
    // Writing there.
    assert_eq!(
        kind(second.files().write(b"/moved", b"x")),
        ErrorKind::ReadOnly,
        "PAST-1"
    );
    assert_eq!(
        kind(second.nodes().unlink(R, &name("moved"))),
        ErrorKind::ReadOnly
    );
    assert_eq!(
        kind(second.nodes().set_attr(file, &change)),
        ErrorKind::ReadOnly
    );
    assert_eq!(
        kind(second.nodes().open(file, true).map(drop)),
        ErrorKind::ReadOnly
    );
    assert_eq!(kind(second.snapshots().create("x")), ErrorKind::ReadOnly);
    // Moments that there are not.
    let ask = |text: &str| {
        db.as_of(&parse_moment(text, db.now_ns()).unwrap())
            .map(drop)
    };
    assert_eq!(kind(ask("seq:99999")), ErrorKind::InvalidInput);
    assert_eq!(kind(ask("2999-01-01")), ErrorKind::InvalidInput);
    assert_eq!(kind(ask("-1y")), ErrorKind::InvalidInput);
    assert_eq!(kind(ask("nobody")), ErrorKind::NotFound);
    // Holds.
    db.snapshots().hold("first", "audit").unwrap();
    assert_eq!(db.snapshots().list().unwrap()[0].holds, ["audit"]);
    assert_eq!(
        kind(db.snapshots().destroy("first")),
        ErrorKind::InvalidInput
    );
    db.snapshots().release("first", "audit").unwrap();
    db.snapshots().destroy("first").unwrap();
    assert_eq!(
        kind(db.snapshots().create("second").map(drop)),
        ErrorKind::Exists
    );
    drop((first, second));
    db.close().unwrap();
    let db = open_plain(dir.path());
    assert_eq!(db.snapshots().list().unwrap().len(), 1);
    common::assert_clean(&db);
}

#[test]
fn without_retention_there_is_only_the_present() {
    let dir = support::scratch();
    let clock = Clock::new();
    let tree = create(&clock, dir.path(), 64, 0);
    put(tree.database(), R, "f", b"x");
    tree.database().sync().unwrap();
    let refused = tree
        .database()
        .as_of(&Moment::At(clock.now()))
        .err()
        .unwrap();
    assert!(
        refused.to_string().contains("keeps no history"),
        "{refused}"
    );
    let snapshot = tree.database().snapshots().create("s").unwrap();
    let then = tree.database().as_of(&Moment::Snapshot("s".into()));
    assert_eq!(
        then.unwrap().files().read(b"/f").unwrap(),
        b"x",
        "{snapshot:?}"
    );
}
