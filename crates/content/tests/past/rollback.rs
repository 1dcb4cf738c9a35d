//! Going back: a rollback makes stores and rows what they were, to the last attribute, and can be
//! taken back; and two places exchanged.
use crate::common;
use crate::support;

use crate::common::moments::{Clock, HOUR, MILLISECOND, create, newest, now, open};
use crate::common::sql::{integer, run, text};
use crate::common::{OWNER, assert_clean, content, crash, folder, kind, name, pattern, put};
use crate::support::ContentTree;
use larder::{
    Database, ErrorKind, FileKind, Moment, NewNode, NodeId, RenameMode, SetAttr, SetTime, SqlValue,
    XattrMode,
};
use larder_object::EngineOptions;
use larder_testkit::{Mix, Rng, Script};
use std::collections::BTreeMap;

const R: NodeId = NodeId::ROOT;

/// Everything that people can see of a file but where its content lies; the content itself too.
fn describe(db: &Database, node: NodeId) -> String {
    let attr = db.nodes().metadata(node).unwrap();
    let mut xattrs: Vec<(Vec<u8>, Vec<u8>)> = Vec::new();
    for name in db.attributes().list(node).unwrap() {
        if !name.starts_with(b"user.column.") {
            let value = db.attributes().get(node, &name).unwrap();
            xattrs.push((name, value));
        }
    }
    xattrs.sort();
    let held = match attr.kind {
        FileKind::File => content(db, node),
        FileKind::Symlink => db.nodes().read_link(node).unwrap(),
        _ => Vec::new(),
    };
    let hash = larder_testkit::Tree::hash_content(&held);
    let attr = larder::Metadata {
        allocated_bytes: 0,
        ..attr
    };
    format!("{attr:?} {xattrs:?} {hash:?}")
}

/// All names with what they name, of all stores.
fn state(db: &Database) -> BTreeMap<String, String> {
    let mut found = BTreeMap::from([("/".to_owned(), describe(db, R))]);
    let mut waiting = vec![(String::new(), R)];
    while let Some((path, directory)) = waiting.pop() {
        for entry in db.nodes().read_dir(directory, None, 10_000).unwrap() {
            let path = format!("{path}/{}", entry.name);
            found.insert(path.clone(), describe(db, entry.node));
            if entry.kind == FileKind::Directory {
                waiting.push((path, entry.node));
            }
        }
    }
    found
}

fn assert_same(is: &BTreeMap<String, String>, was: &BTreeMap<String, String>, when: &str) {
    let mut lines = Vec::new();
    for path in was.keys().chain(is.keys()) {
        if was.get(path) != is.get(path) {
            lines.push(format!(
                "{path}\n  was {:?}\n  is  {:?}",
                was.get(path),
                is.get(path)
            ));
        }
    }
    lines.dedup();
    assert!(
        lines.is_empty(),
        "ROLLBACK-2: {when}:\n{}",
        lines.join("\n")
    );
}

fn mode(bits: u32) -> SetAttr {
    SetAttr {
        mode: Some(bits),
        ..SetAttr::default()
    }
}

#[test]
fn a_rollback_makes_everything_what_it_was_and_can_be_taken_back() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    db.stores().create("side", "files", None, None).unwrap();
    let side = db.nodes().resolve(b"/side", true).unwrap().node;
    let d = folder(&db, R, "d");
    let deep = folder(&db, d, "deep");
    let edited = put(&db, d, "edited", &pattern(300_000, 1));
    let gone = put(&db, deep, "gone", &pattern(90_000, 2));
    db.nodes().link(gone, d, &name("second")).unwrap();
    let small = put(&db, R, "small", b"small");
    let one = put(&db, R, "one", b"1");
    let two = put(&db, R, "two", b"2");
    let target = NewNode::Symlink(b"nowhere");
    db.nodes()
        .create_node(d, &name("link"), target, 0o777, OWNER)
        .unwrap();
    let device = NewNode::CharDevice(0x0103);
    db.nodes()
        .create_node(d, &name("null"), device, 0o600, OWNER)
        .unwrap();
    db.attributes()
        .set(gone, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    db.attributes()
        .set(d, b"user.d", b"2", XattrMode::Set)
        .unwrap();
    let old = SetAttr {
        atime: Some(SetTime::At(7)),
        mtime: Some(SetTime::At(-8)),
        uid: Some(1000),
        ..SetAttr::default()
    };
    db.nodes().set_attr(gone, &old).unwrap();
    db.nodes().set_attr(d, &old).unwrap();
    let in_side = put(&db, side, "file", &pattern(5000, 3));
    let mut session = db.sql().open(false).unwrap();
    run(
        &mut session,
        "CREATE TABLE album (id INTEGER PRIMARY KEY, ino INTEGER REFERENCES main(ino), title TEXT)",
    )
    .unwrap();
    db.sql().track_table("album").unwrap();
    let insert = format!(
        "INSERT INTO album VALUES (1, {}, 'gone'), (2, {}, 'small'), (3, NULL, 'none')",
        gone.ino.0, small.ino.0
    );
    run(&mut session, &insert).unwrap();
    let then = newest(&db);
    let was = state(&db);

    // The wrong things.
    run(&mut session, "DELETE FROM album WHERE id = 1").unwrap();
    run(
        &mut session,
        "UPDATE album SET title = 'SMALL' WHERE id = 2",
    )
    .unwrap();
    db.nodes().unlink(deep, &name("gone")).unwrap();
    db.nodes().unlink(d, &name("second")).unwrap();
    db.nodes().unlink(d, &name("link")).unwrap();
    db.nodes().unlink(d, &name("null")).unwrap();
    db.nodes().remove_dir(d, &name("deep")).unwrap();
    db.nodes()
        .rename(R, &name("one"), R, &name("two"), RenameMode::Exchange)
        .unwrap();
    db.nodes()
        .rename(
            R,
            &name("small"),
            side_free(&db),
            &name("moved"),
            RenameMode::Replace,
        )
        .unwrap();
    let file = db.nodes().open(edited, true).unwrap();
    file.write_at(100_000, b"overwritten").unwrap();
    drop(file);
    db.nodes().set_attr(edited, &mode(0o600)).unwrap();
    db.attributes().remove(d, b"user.d").unwrap();
    let new = folder(&db, R, "new");
    let later = put(&db, new, "later", &pattern(70_000, 4));
    db.sync().unwrap();
    run(
        &mut session,
        &format!("INSERT INTO album VALUES (4, {}, 'later')", later.ino.0),
    )
    .unwrap();
    db.nodes().unlink(side, &name("file")).unwrap();
    put(&db, side, "file", b"another");
    drop(session);
    let wrong = newest(&db);
    let before = state(&db);
    let kept_open = db.nodes().open(later, false).unwrap();

    let dry = db.history().rollback(&then, None, true).unwrap();
    assert!(dry.changes.len() > 8, "{:?}", dry.changes);
    assert_eq!(dry.rows[0].inserted_count, 1);
    assert_same(&state(&db), &before, "after a dry run");

    let report = db.history().rollback(&then, None, false).unwrap();
    assert_same(&state(&db), &was, "back");
    assert_eq!(report.revived_count, 5, "{report:?}");
    assert_eq!(report.removed_count, 3, "{report:?}");
    assert_eq!(report.left, Vec::<String>::new());
    assert!(
        report.content_bytes < 200_000,
        "only what differs: {report:?}"
    );
    assert_eq!(
        (one.ino, two.ino),
        (
            db.nodes().resolve(b"/one", false).unwrap().node.ino,
            db.nodes().resolve(b"/two", false).unwrap().node.ino
        )
    );
    assert_eq!(db.nodes().metadata(in_side).unwrap().nlink, 1, "ROLLBACK-1");
    let mut session = db.sql().open(false).unwrap();
    let rows = run(&mut session, "SELECT id, ino, title FROM album ORDER BY id").unwrap();
    let row = |id: i64, ino: SqlValue, title: &str| vec![integer(id), ino, text(title)];
    let expected = [
        row(1, integer(gone.ino.0 as i64), "gone"),
        row(2, integer(small.ino.0 as i64), "small"),
        row(3, SqlValue::Null, "none"),
    ];
    assert_eq!(rows, expected.concat());
    drop(session);
    // What is open stays readable (CONTENT-4).
    let mut bytes = vec![0; 70_000];
    assert_eq!(kept_open.read_at(0, &mut bytes).unwrap(), bytes.len());
    assert_eq!(bytes, pattern(70_000, 4));
    drop(kept_open);
    assert_clean(&db);

    // A second time there is nothing to do, and no commit.
    let last = now(&db);
    let again = db.history().rollback(&then, None, false).unwrap();
    assert_eq!(
        (
            again.revived_count,
            again.removed_count,
            again.changed_count
        ),
        (0, 0, 0),
        "{again:?}"
    );
    assert_eq!(now(&db), last);

    // The rollback is history, and taken back by another one.
    let past = db.as_of(&wrong).unwrap();
    assert_same(&state(&past), &before, "the past of before");
    drop(past);
    assert!(matches!(wrong, Moment::Seq(seq) if report.before_seq >= seq));
    db.history()
        .rollback(&Moment::Seq(report.before_seq), None, false)
        .unwrap();
    assert_same(&state(&db), &before, "taken back");
    assert_clean(&db);
    db.close().unwrap();
    let db = open(dir.path());
    assert_same(&state(&db), &before, "reopened");
    db.history().rollback(&then, None, false).unwrap();
    assert_same(&state(&db), &was, "back again");
    assert_clean(&db);
}

/// Another directory of main, to move something to.
fn side_free(db: &Database) -> NodeId {
    db.nodes().resolve(b"/d", true).unwrap().node
}

const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 300 << 10,
    write_bytes_max: 60 << 10,
    sync_percent: 5,
    overwrite_percent: 20,
    fragment_percent: 10,
};

/// Runs a script; goes back to random moments, compares all, and goes on from there.
fn run_rollbacks(seed: u64, op_count: usize, rollback_count: usize) {
    let dir = support::scratch();
    let clock = Clock::new();
    let engine = EngineOptions {
        redo_bytes_max: 256 << 10,
        ..clock.engine()
    };
    drop(clock.create(dir.path(), 256, HOUR));
    let path = dir.path().join("t.larder");
    let mut tree = support::open(&path, engine.clone()).unwrap();
    let script = Script::generate(seed, op_count, MIX);
    let mut rng = Rng::new(seed ^ 0x0b4c);
    let mut moments: Vec<(i64, usize, BTreeMap<String, String>)> = Vec::new();
    let (mut index, mut rollbacks) = (0, 0);
    while index < script.ops.len() {
        let op = &script.ops[index];
        index += 1;
        tree.apply(op)
            .unwrap_or_else(|error| panic!("seed {seed}, operation {index} {op:?}: {error}"));
        clock.pass(1000);
        if rng.chance(10) {
            tree.database().sync().unwrap();
            moments.push((clock.now(), index, state(tree.database())));
            clock.pass(MILLISECOND);
        }
        if rng.chance(3) {
            tree.database()
                .maintenance()
                .defrag(&[], &larder::DefragOptions::default(), &mut |_| {})
                .unwrap();
        }
        if rng.chance(2) {
            tree.close().unwrap();
            tree = support::open(&path, engine.clone()).unwrap();
        }
        if rollbacks < rollback_count && rng.chance(4) && !moments.is_empty() {
            rollbacks += 1;
            let (at_ns, made, was) = rng.pick(&moments).clone();
            let when = format!("seed {seed}, rollback {rollbacks} to {made} operations");
            let report = tree
                .database()
                .history()
                .rollback(&Moment::At(at_ns), None, false);
            report.unwrap_or_else(|error| panic!("{when}: {error}"));
            assert_same(&state(tree.database()), &was, &when);
            tree.database().sync().unwrap();
            clock.pass(MILLISECOND);
            moments.push((clock.now(), made, was));
            clock.pass(MILLISECOND);
            index = made;
        }
    }
    tree.database().sync().unwrap();
    for (at_ns, made, was) in &moments {
        let past = tree.database().as_of(&Moment::At(*at_ns)).unwrap();
        assert_same(
            &state(&past),
            was,
            &format!("seed {seed}, as of {made} operations"),
        );
    }
    assert_eq!(
        tree.findings().unwrap(),
        Vec::<String>::new(),
        "seed {seed}"
    );
    assert_eq!(rollbacks, rollback_count, "seed {seed}");
}

#[test]
fn rollbacks_to_random_moments_and_on_from_there() {
    for seed in 1..=3 {
        run_rollbacks(seed, 200, 3); // ROLLBACK-1, ROLLBACK-2
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn rollbacks_to_random_moments_for_many_seeds() {
    for seed in 100..140 {
        run_rollbacks(seed, 500, 8);
    }
}

#[test]
fn a_store_goes_back_alone() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    db.stores().create("side", "files", None, None).unwrap();
    let side = db.nodes().resolve(b"/side", true).unwrap().node;
    put(&db, side, "a", b"one");
    put(&db, R, "b", b"one");
    let then = newest(&db);
    db.files().write(b"/side/a", b"two").unwrap();
    db.files().write(b"/b", b"two").unwrap();
    db.sync().unwrap(); // A store is there since the newest commit.
    db.stores().create("late", "files", None, None).unwrap();
    db.files().write(b"/late/c", b"two").unwrap();
    let report = db.history().rollback(&then, Some(b"/side"), false).unwrap();
    assert_eq!(report.stores, ["side"]);
    assert_eq!(report.left, Vec::<String>::new());
    assert_eq!(db.files().read(b"/side/a").unwrap(), b"one");
    assert_eq!(db.files().read(b"/b").unwrap(), b"two");
    assert_eq!(db.files().read(b"/late/c").unwrap(), b"two");
    let main = db.history().rollback(&then, Some(b"/"), false).unwrap();
    assert_eq!(main.stores, ["main"]);
    assert_eq!(db.files().read(b"/b").unwrap(), b"one");
    let refused = db
        .history()
        .rollback(&then, Some(b"/late"), false)
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput);
    let refused = db
        .history()
        .rollback(&then, Some(b"/b"), false)
        .unwrap_err();
    assert!(refused.to_string().contains("restore --exact"), "{refused}");
    assert_clean(&db);
}

#[test]
fn what_has_no_past_stays_and_is_named() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    db.stores().create("doomed", "files", None, None).unwrap();
    db.files().write(b"/doomed/f", pattern(100_000, 1)).unwrap();
    let node = put(&db, R, "f", b"f");
    db.sync().unwrap();
    let mut session = db.sql().open(false).unwrap();
    run(&mut session, "ALTER TABLE main ADD COLUMN rating INTEGER").unwrap();
    run(&mut session, "UPDATE main SET rating = 5 WHERE size = 1").unwrap();
    run(
        &mut session,
        "CREATE TABLE plain (a); CREATE TABLE late (a INTEGER PRIMARY KEY)",
    )
    .unwrap();
    drop(session);
    let then = newest(&db);
    db.files().write(b"/g", b"g").unwrap();
    db.sync().unwrap(); // Stores are there, and tables are tracked, since the newest commit.
    db.sql().track_table("late").unwrap();
    db.stores().create("new", "files", None, None).unwrap();
    db.stores().destroy("doomed").unwrap();
    db.files().write(b"/f", b"g").unwrap();
    let report = db.history().rollback(&then, None, false).unwrap();
    let named = [
        ("store 'new'", true),
        ("columns of your own of 'main' (rating)", true),
        ("table 'plain' is not tracked", true),
        ("table 'late' is tracked since commit", true),
        ("store 'doomed' was destroyed since", true),
        ("table 'main", false),
        ("larder_", false),
    ];
    for (what, is_named) in named {
        let found = report.left.iter().any(|left| left.contains(what));
        assert_eq!(found, is_named, "{what}: {:?}", report.left);
    }
    assert_eq!(db.files().read(b"/f").unwrap(), b"f");
    assert_eq!(
        db.attributes().get(node, b"user.column.rating").unwrap(),
        b"5"
    );
    assert_clean(&db);
}

/// However little is left of them.
#[test]
fn destroyed_stores_are_named() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    for store in ["cloned", "empty"] {
        db.stores().create(store, "files", None, None).unwrap();
    }
    db.files().write(b"/cloned/f", pattern(100_000, 1)).unwrap();
    db.sync().unwrap();
    let then = newest(&db);
    db.files().clone_path(None, b"/cloned/f", b"/f").unwrap();
    db.stores().create("later", "files", None, None).unwrap();
    db.files().write(b"/later/f", pattern(100_000, 2)).unwrap();
    db.sync().unwrap();
    for store in ["cloned", "empty", "later"] {
        db.stores().destroy(store).unwrap();
    }
    db.files().write(b"/g", b"g").unwrap();
    let destroyed = |left: &[String]| -> Vec<String> {
        let which = left
            .iter()
            .filter(|left| left.contains("was destroyed since"));
        which.cloned().collect()
    };
    for is_dry in [true, false] {
        let report = db.history().rollback(&then, None, is_dry).unwrap();
        let named = ["cloned", "empty"]
            .map(|store| format!("store '{store}' was destroyed since: it does not come back"));
        assert_eq!(destroyed(&report.left), named);
    }
    // To a moment at which they were gone.
    let after = newest(&db);
    db.files().write(b"/h", b"h").unwrap();
    let report = db.history().rollback(&after, None, false).unwrap();
    assert_eq!(destroyed(&report.left), Vec::<String>::new());
    assert_clean(&db);
}

#[test]
fn what_cannot_be_is_refused_and_changes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path(), 64));
    // With a background: a long transaction wants the writer lock from it.
    let db = common::open(dir.path());
    db.files().write(b"/f", pattern(20 << 20, 1)).unwrap();
    let then = newest(&db);
    // What was removed would come back without space (`SHARE-9`); what was changed is written.
    let node = db.nodes().resolve(b"/f", false).unwrap().node;
    let file = db.nodes().open(node, true).unwrap();
    file.write_at(0, &pattern(20 << 20, 3)).unwrap();
    drop(file);
    db.sync().unwrap();
    let ask = |moment: Moment| db.history().rollback(&moment, None, false).unwrap_err();
    assert!(ask(Moment::Seq(1 << 40)).to_string().contains("future"));
    assert!(ask(Moment::At(5)).to_string().contains("history begins"));
    assert_eq!(
        ask(Moment::Snapshot("nobody".into())).kind(),
        ErrorKind::NotFound
    );
    // Not while a long transaction is open.
    let long = db.transactions().begin_long("test").unwrap();
    let refused = ask(then.clone());
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(refused.to_string().contains("larder txn list"), "{refused}");
    long.abort().unwrap();
    // Nothing is half done where there is no room.
    db.files().write(b"/g", pattern(12 << 20, 2)).unwrap();
    db.snapshots().create("kept").unwrap();
    let before = state(&db);
    let full = ask(then.clone());
    assert_eq!(full.kind(), ErrorKind::NoSpace, "{full}");
    assert_same(&state(&db), &before, "refused");
    assert_clean(&db);
    db.snapshots().destroy("kept").unwrap();
    let none = create_without(dir.path());
    assert!(
        none.history()
            .rollback(&then, None, false)
            .unwrap_err()
            .to_string()
            .contains("keeps no history")
    );
}

fn create_without(dir: &std::path::Path) -> Database {
    let other = dir.join("other");
    std::fs::create_dir(&other).unwrap();
    common::create_without_history(&other, Some(64 << 20))
}

fn wait_until(what: &str, mut is_true: impl FnMut() -> bool) {
    let begun = std::time::Instant::now();
    while !is_true() {
        assert!(begun.elapsed().as_secs() < 30, "{what}");
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
}

#[test]
fn what_is_open_in_another_session_follows() {
    let dir = tempfile::tempdir().unwrap();
    drop(create(dir.path(), 64));
    let (db, other) = (common::open(dir.path()), common::open(dir.path()));
    let file = put(&db, R, "f", &pattern(50_000, 1));
    let then = newest(&db);
    // Open in both, and removed: an orphan that comes back.
    let here = db.nodes().open(file, true).unwrap();
    let there = other.nodes().open(file, false).unwrap();
    here.write_at(0, b"changed").unwrap();
    db.nodes().unlink(R, &name("f")).unwrap();
    put(&db, R, "new", b"new");
    db.sync().unwrap();
    let before = newest(&db);
    other.history().rollback(&then, None, false).unwrap();
    assert_eq!(other.files().read(b"/f").unwrap(), pattern(50_000, 1));
    // Who only looks, learns of it within an instant.
    wait_until("the other session sees it", || {
        db.files()
            .read(b"/f")
            .is_ok_and(|found| found == pattern(50_000, 1))
    });
    let mut bytes = vec![0; 50_000];
    for handle in [&here, &there] {
        assert_eq!(handle.read_at(0, &mut bytes).unwrap(), bytes.len());
        assert_eq!(bytes, pattern(50_000, 1));
    }
    here.write_at(10, b"again").unwrap();
    drop((here, there));
    db.sync().unwrap();
    wait_until("the other session reads what was written", || {
        other
            .files()
            .read(b"/f")
            .is_ok_and(|found| &found[10..15] == b"again")
    });
    assert_eq!(
        kind(db.nodes().resolve(b"/new", false)),
        ErrorKind::NotFound
    );
    db.history().rollback(&before, None, false).unwrap();
    wait_until("the other session sees that too", || {
        other
            .files()
            .read(b"/new")
            .is_ok_and(|found| found == b"new")
    });
    wait_until("and that the other file is gone again", || {
        let found = other.nodes().resolve(b"/f", false);
        found.is_err_and(|error| error.kind() == ErrorKind::NotFound)
    });
    other.close().unwrap();
    assert_clean(&db);
}

#[test]
fn a_tree_is_brought_back_whole_with_its_holes() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 256);
    let file = db
        .nodes()
        .create_node(R, &name("sparse"), NewNode::File, 0o644, OWNER)
        .unwrap()
        .node;
    let handle = db.nodes().open(file, true).unwrap();
    handle.write_at(0, &pattern(10_000, 1)).unwrap();
    handle.write_at(40 << 20, &pattern(10_000, 2)).unwrap();
    drop(handle);
    let then = newest(&db);
    let was = state(&db);
    let used = db.nodes().metadata(file).unwrap().allocated_bytes;
    let handle = db.nodes().open(file, true).unwrap();
    handle.write_at(1 << 20, &pattern(8 << 20, 3)).unwrap();
    handle.set_len(45 << 20).unwrap();
    drop(handle);
    let report = db.history().rollback(&then, None, false).unwrap();
    assert_same(&state(&db), &was, "back");
    assert_eq!(
        db.nodes().metadata(file).unwrap().allocated_bytes,
        used,
        "{report:?}"
    );
    assert_clean(&db);
}

#[test]
fn a_rollback_is_one_commit_that_a_crash_has_or_has_not() {
    let dir = support::scratch();
    let db = create(dir.path(), 64);
    for index in 0..50 {
        put(&db, R, &format!("f{index}"), &pattern(20_000, index));
    }
    let then = newest(&db);
    let was = state(&db);
    for index in 0..50 {
        db.nodes().unlink(R, &name(&format!("f{index}"))).unwrap();
    }
    let Moment::Seq(wrong) = newest(&db) else {
        panic!()
    };
    let before = state(&db);
    db.history().rollback(&then, None, false).unwrap();
    let mut commits = 0;
    db.history()
        .log(None, None, &mut |commit| {
            commits += u32::from(commit.seq > wrong);
            std::ops::ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(commits, 1, "ROLLBACK-2");
    // What a kill leaves just behind it.
    let left = support::scratch();
    crash(dir.path(), left.path());
    let found = open(left.path());
    assert_same(&state(&found), &was, "after a crash");
    assert_clean(&found);
    let tree = ContentTree::new(found);
    let past = tree.database().as_of(&Moment::Seq(wrong)).unwrap();
    assert_same(&state(&past), &before, "the past after a crash");
}
