//! What is known exactly of the commits of others, and what is not.

use crate::common;
use crate::common::others::{plain, settle};
use crate::common::{create, open, put};
use larder::{NodeId, PruneCut, Retention, SetAttr, XattrMode};

const R: NodeId = NodeId::ROOT;

const HOUR_NS: i64 = 3_600_000_000_000;

#[test]
fn what_does_not_keep_history_is_not_exact() {
    let dir = tempfile::tempdir().unwrap();
    let writer = common::create_without_history(dir.path(), None);
    plain(dir.path(), "CREATE TABLE idle (x)");
    put(&writer, R, "f", b"one");
    writer.sync().unwrap();
    let reader = open(dir.path());
    let all = [reader.clone()];
    assert_eq!(reader.files().read(b"/f").unwrap(), b"one");
    writer.files().write(b"/f", b"two").unwrap();
    writer.sync().unwrap();
    settle(dir.path(), &all);
    assert_eq!(reader.files().read(b"/f").unwrap(), b"two", "FOREIGN-4");
    assert_eq!(
        reader.maintenance().gauges().unwrap().foreign_exact_count,
        0,
        "FOREIGN-4"
    );
    // From here on there is one. What was changed without it, and when it began, is not known.
    let retention_ns = HOUR_NS;
    let retention = Retention {
        retention_ns,
        is_guaranteed: false,
    };
    writer.history().set_retention(retention).unwrap();
    settle(dir.path(), &all);
    assert!(reader.maintenance().gauges().unwrap().foreign_exact_count > 0);
    assert_eq!(reader.files().read(b"/f").unwrap(), b"two");
    writer.files().write(b"/f", b"three").unwrap();
    writer.sync().unwrap();
    settle(dir.path(), &all);
    assert_eq!(reader.files().read(b"/f").unwrap(), b"three", "FOREIGN-3");
    // History that is given up may lack what was changed.
    writer.files().write(b"/f", b"four").unwrap();
    writer.history().prune(PruneCut::All, None, false).unwrap();
    settle(dir.path(), &all);
    assert_eq!(reader.files().read(b"/f").unwrap(), b"four", "FOREIGN-4");
}

#[test]
fn what_a_trigger_changes_in_a_commit_of_the_engine_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let writer = create(dir.path(), None);
    plain(dir.path(), "CREATE TABLE idle (x)");
    let (one, other) = (put(&writer, R, "n1", b"1"), put(&writer, R, "n2", b"2"));
    writer.sync().unwrap();
    let reader = open(dir.path());
    let all = [reader.clone()];
    plain(
        dir.path(),
        &format!(
            "CREATE TRIGGER other AFTER UPDATE ON main WHEN NEW.ino = {one} BEGIN \
             UPDATE main SET mode = mode + 1 WHERE ino = {other}; END",
            one = one.ino,
            other = other.ino
        ),
    );
    settle(dir.path(), &all);
    for round in 0..3 {
        let before = reader.nodes().metadata(other).unwrap().mode;
        writer
            .attributes()
            .set(one, b"user.a", &[round], XattrMode::Set)
            .unwrap();
        writer.sync().unwrap();
        settle(dir.path(), &all);
        assert!(
            reader.nodes().metadata(other).unwrap().mode > before,
            "FOREIGN-4"
        );
    }
}

/// A commit of a session's own may supersede more than any look reads of the history.
#[test]
fn a_large_commit_of_its_own_makes_nobody_forget() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    plain(dir.path(), "CREATE TABLE idle (x)");
    let files: Vec<NodeId> = (0..3000)
        .map(|file| put(&db, R, &format!("f{file}"), b"x"))
        .collect();
    db.sync().unwrap();
    let all = [db.clone()];
    settle(dir.path(), &all);
    let before = db.maintenance().gauges().unwrap();
    for mode in [0o600, 0o640] {
        for file in &files {
            let mode = Some(mode);
            let change = SetAttr {
                mode,
                ..SetAttr::default()
            };
            db.nodes().set_attr(*file, &change).unwrap();
        }
        db.sync().unwrap();
    }
    let changed = files[7];
    plain(
        dir.path(),
        &format!("UPDATE main SET mode = 256 WHERE ino = {}", changed.ino),
    );
    settle(dir.path(), &all);
    assert_eq!(
        db.nodes().metadata(changed).unwrap().mode,
        0o400,
        "FOREIGN-1"
    );
    let after = db.maintenance().gauges().unwrap();
    assert_eq!(
        after.foreign_whole_count, before.foreign_whole_count,
        "FOREIGN-4"
    );
    let dropped = after.foreign_dropped_count - before.foreign_dropped_count;
    assert!(dropped <= 2, "FOREIGN-3: {dropped}");
}
