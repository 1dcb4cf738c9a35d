//! Rules of users on side tables, rules that leave rows out, and rules that come late: each refuses
//! one operation, and only that one.

use crate::common::others::plain;
use crate::common::{content, create, create_without_history, folder, make, name, put, scratch};
use crate::constraints::{FROZEN, open_quiet};
use larder::{
    Database, DefragOptions, ErrorKind, NodeId, RenameMode, SetAttr, XattrMode, copy_range,
    list_refused, open_refused,
};
use std::io::Read;
use std::path::Path;

const ROOT: NodeId = NodeId::ROOT;

fn names(db: &Database, dir: NodeId) -> Vec<String> {
    let entries = db.nodes().read_dir(dir, None, 1000).unwrap();
    entries.iter().map(|entry| entry.name.to_string()).collect()
}

fn assert_sound(db: &Database) {
    let report = db.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// A database with these statements run in it while it was closed.
fn with_rule(dir: &Path, sql: &str, prepare: impl FnOnce(&Database)) -> Database {
    let db = create(dir, None);
    prepare(&db);
    db.close().unwrap();
    plain(dir, sql);
    open_quiet(dir)
}

fn kept(dir: &Path, path: &[u8]) -> Vec<u8> {
    let database = dir.join("t.larder");
    let all = list_refused(&database).unwrap();
    let one = all.iter().find(|one| one.path == path);
    let one = one.unwrap_or_else(|| panic!("{all:?}"));
    let mut bytes = Vec::new();
    let mut file = open_refused(&database, one.id).unwrap();
    file.read_to_end(&mut bytes).unwrap();
    bytes
}

#[test]
fn a_rule_on_names_or_attributes_refuses_the_operation() {
    for (action, why) in [
        ("SELECT RAISE(ABORT, 'not here')", "not here"),
        ("SELECT RAISE(IGNORE)", "ignores a row"),
    ] {
        let dir = scratch();
        let rules = format!(
            "CREATE TRIGGER n1 BEFORE INSERT ON main_dirent WHEN new.name LIKE 'bad%' \
               BEGIN {action}; END; \
             CREATE TRIGGER n2 BEFORE UPDATE ON main_dirent WHEN old.name = 'fixed' \
               BEGIN {action}; END; \
             CREATE TRIGGER n3 BEFORE DELETE ON main_dirent WHEN old.name = 'fixed' \
               BEGIN {action}; END; \
             CREATE TRIGGER x1 BEFORE INSERT ON main_xattr WHEN new.name = 'user.bad' \
               BEGIN {action}; END; \
             CREATE TRIGGER x2 BEFORE DELETE ON main_xattr WHEN old.name = 'user.fixed' \
               BEGIN {action}; END;"
        );
        let db = with_rule(dir.path(), &rules, |db| {
            let fixed = put(db, ROOT, "fixed", b"fixed");
            db.attributes()
                .set(fixed, b"user.fixed", b"1", XattrMode::Set)
                .unwrap();
            put(db, ROOT, "free", b"free");
        });
        let fixed = db.nodes().resolve(b"/fixed", false).unwrap().node;
        let replace = RenameMode::Replace;
        let refused = [
            db.files().write(b"/bad", b"x").map(drop),
            db.nodes().link(fixed, ROOT, &name("bad link")).map(drop),
            db.nodes()
                .rename(ROOT, &name("free"), ROOT, &name("bad name"), replace),
            db.nodes()
                .rename(ROOT, &name("free"), ROOT, &name("fixed"), replace),
            db.nodes().unlink(ROOT, &name("fixed")),
            db.attributes()
                .set(fixed, b"user.bad", b"1", XattrMode::Set),
            db.attributes().remove(fixed, b"user.fixed"),
        ];
        for (at, refused) in refused.into_iter().enumerate() {
            let error = refused.expect_err(&format!("{at}, {why}"));
            assert_eq!(error.kind(), ErrorKind::NotPermitted, "{at}: {error}");
            assert!(error.to_string().contains(why), "{at}: {error}");
        }
        // What waits for its commit counts too.
        put(&db, ROOT, "good", b"good");
        db.nodes()
            .rename(ROOT, &name("good"), ROOT, &name("better"), replace)
            .unwrap();
        let error = db
            .nodes()
            .rename(ROOT, &name("better"), ROOT, &name("bad"), replace);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NotPermitted);
        db.sync().unwrap();
        assert_eq!(names(&db, ROOT), ["better", "fixed", "free"], "{why}");
        assert_eq!(
            db.attributes().list(fixed).unwrap(),
            [b"user.fixed".to_vec()]
        );
        assert_sound(&db);
        db.close().unwrap();
        assert!(
            list_refused(&dir.path().join("t.larder"))
                .unwrap()
                .is_empty()
        );
    }
}

/// Rows of content and maps are made in the commit, and a rule may have come after the answer.
#[test]
fn a_rule_that_only_the_commit_meets_takes_out_one_operation() {
    for table in [
        "main_content",
        "main_map",
        "main_xattr",
        "main_dirent",
        "main",
    ] {
        for action in [
            "RAISE(FAIL, 'no')",
            "RAISE(ROLLBACK, 'no')",
            "RAISE(IGNORE)",
        ] {
            let dir = scratch();
            drop(create(dir.path(), None));
            let db = open_quiet(dir.path());
            put(&db, ROOT, "before", b"before");
            db.sync().unwrap();
            put(&db, ROOT, "one", b"one");
            let bytes = match table {
                "main_content" => b"refused".to_vec(),
                _ => vec![7; 50_000],
            };
            let node = put(&db, ROOT, "refused", &bytes);
            db.attributes()
                .set(node, b"user.a", b"1", XattrMode::Set)
                .unwrap();
            put(&db, ROOT, "two", &[2; 50_000]);
            plain(
                dir.path(),
                &format!(
                    "CREATE TRIGGER late BEFORE INSERT ON {table} WHEN new.ino = {} \
                     BEGIN SELECT {action}; END",
                    node.ino.0
                ),
            );
            db.sync().unwrap();
            let what = format!("{table}, {action}");
            assert_eq!(names(&db, ROOT), ["before", "one", "two"], "{what}");
            assert_eq!(
                content(&db, db.nodes().resolve(b"/two", false).unwrap().node)[0],
                2
            );
            assert_eq!(
                db.maintenance().gauges().unwrap().refused_count,
                1,
                "{what}"
            );
            assert_sound(&db);
            // The session goes on.
            put(&db, ROOT, "three", b"three");
            assert_eq!(db.close().unwrap_err().kind(), ErrorKind::NotPermitted);
            assert_eq!(kept(dir.path(), b"/refused"), bytes, "CONSTRAINT-4: {what}");
        }
    }
}

/// The same of what goes and what changes.
#[test]
fn a_rule_that_only_the_commit_meets_keeps_what_was_to_go() {
    for (event, action) in [
        ("DELETE ON main", "RAISE(ABORT, 'no')"),
        ("DELETE ON main", "RAISE(IGNORE)"),
        ("DELETE ON main_dirent", "RAISE(ABORT, 'no')"),
        ("DELETE ON main_dirent", "RAISE(IGNORE)"),
        ("DELETE ON main_map", "RAISE(ABORT, 'no')"),
        ("DELETE ON main_map", "RAISE(IGNORE)"),
        ("DELETE ON main_xattr", "RAISE(IGNORE)"),
        ("UPDATE ON main", "RAISE(IGNORE)"),
    ] {
        let dir = scratch();
        drop(create(dir.path(), None));
        let db = open_quiet(dir.path());
        let old = put(&db, ROOT, "old", &[1; 50_000]);
        db.attributes()
            .set(old, b"user.a", b"1", XattrMode::Set)
            .unwrap();
        db.sync().unwrap();
        match event {
            "UPDATE ON main" => {
                let open = db.nodes().open(old, true).unwrap();
                open.write_at(0, &[9; 60_000]).unwrap();
            }
            _ => db.nodes().unlink(ROOT, &name("old")).unwrap(),
        }
        put(&db, ROOT, "new", b"new");
        plain(
            dir.path(),
            &format!(
                "CREATE TRIGGER late BEFORE {event} WHEN old.ino = {} BEGIN SELECT {action}; END",
                old.ino.0
            ),
        );
        db.sync().unwrap();
        let what = format!("{event}, {action}");
        assert_eq!(names(&db, ROOT), ["new", "old"], "{what}");
        assert_eq!(content(&db, old), [1; 50_000], "{what}");
        assert_eq!(
            db.maintenance().gauges().unwrap().refused_count,
            1,
            "{what}"
        );
        assert_sound(&db);
        assert_eq!(db.close().unwrap_err().kind(), ErrorKind::NotPermitted);
        plain(dir.path(), "DROP TRIGGER late");
        let db = open_quiet(dir.path());
        db.nodes().unlink(ROOT, &name("old")).unwrap();
        assert_sound(&db);
        db.close().unwrap();
    }
}

/// A save is one operation: where the columns cannot go over, the old file stays, with them.
#[test]
fn a_save_whose_columns_are_refused_in_the_commit_is_refused() {
    for action in ["RAISE(ABORT, 'no')", "RAISE(IGNORE)"] {
        for is_set_aside in [false, true] {
            let dir = scratch();
            let column = "ALTER TABLE main ADD COLUMN rating INTEGER; UPDATE main SET rating = 5";
            let db = with_rule(dir.path(), column, |db| {
                put(db, ROOT, "photo", b"old");
                put(db, ROOT, "other", b"other");
            });
            let photo = db.nodes().resolve(b"/photo", false).unwrap().node;
            let replace = RenameMode::Replace;
            put(&db, ROOT, "new", b"new content");
            if is_set_aside {
                db.nodes()
                    .rename(ROOT, &name("photo"), ROOT, &name("photo~"), replace)
                    .unwrap();
            }
            db.nodes()
                .rename(ROOT, &name("new"), ROOT, &name("photo"), replace)
                .unwrap();
            db.files().write(b"/other", b"more").unwrap();
            plain(
                dir.path(),
                &format!(
                    "CREATE TRIGGER late BEFORE UPDATE OF rating ON main BEGIN SELECT {action}; END"
                ),
            );
            db.sync().unwrap();
            assert_eq!(names(&db, ROOT), ["other", "photo"], "SAVE-2: {action}");
            assert_eq!(content(&db, photo), b"old", "SAVE-2: {action}");
            assert_eq!(db.files().read(b"/other").unwrap(), b"more", "CONSTRAINT-2");
            assert_eq!(db.nodes().resolve(b"/photo", false).unwrap().node, photo);
            let rating = db.attributes().get(photo, b"user.column.rating").unwrap();
            assert_eq!(rating, b"5", "SAVE-2");
            assert_sound(&db);
            assert_eq!(db.close().unwrap_err().kind(), ErrorKind::NotPermitted);
            let path = list_refused(&dir.path().join("t.larder")).unwrap();
            let path = path.iter().find(|one| one.size_bytes.is_some());
            let path = path.unwrap().path.clone();
            assert_eq!(kept(dir.path(), &path), b"new content", "CONSTRAINT-4");
        }
    }
}

#[test]
fn a_name_for_each_file_only_is_a_rule() {
    let dir = scratch();
    let rule = "CREATE UNIQUE INDEX one_name ON main_dirent (ino)";
    let db = with_rule(dir.path(), rule, |db| {
        put(db, ROOT, "file", b"1");
    });
    let file = db.nodes().resolve(b"/file", false).unwrap().node;
    let error = db.nodes().link(file, ROOT, &name("second")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    assert!(error.to_string().contains("main_dirent.ino"), "{error}");
    // One after the other is fine, also in one commit.
    db.nodes()
        .rename(
            ROOT,
            &name("file"),
            ROOT,
            &name("moved"),
            RenameMode::Replace,
        )
        .unwrap();
    db.sync().unwrap();
    assert_eq!(names(&db, ROOT), ["moved"]);
    // Whatever order the two names have.
    let replace = RenameMode::Replace;
    db.nodes()
        .rename(ROOT, &name("moved"), ROOT, &name("earlier"), replace)
        .unwrap();
    db.sync().unwrap();
    assert_eq!(names(&db, ROOT), ["earlier"]);
    assert_sound(&db);
    db.close().unwrap();
}

/// Length and attributes change together, or not at all.
#[test]
fn a_truncate_by_name_is_one_step() {
    let dir = scratch();
    let rule = "CREATE TRIGGER m BEFORE UPDATE OF mode ON main WHEN new.mode <> old.mode \
                BEGIN SELECT RAISE(ABORT, 'the mode stays'); END";
    let db = with_rule(dir.path(), rule, |db| {
        let file = make(db, ROOT, "file");
        let mode = SetAttr {
            mode: Some(0o4755),
            ..SetAttr::default()
        };
        db.nodes().set_attr(file, &mode).unwrap();
        db.files().write(b"/file", [1; 9000]).unwrap();
        db.nodes().set_attr(file, &mode).unwrap();
        folder(db, ROOT, "dir");
    });
    let file = db.nodes().resolve(b"/file", false).unwrap().node;
    let before = db.nodes().metadata(file).unwrap();
    for change in [
        SetAttr {
            size_bytes: Some(100),
            drop_set_id: true,
            ..SetAttr::default()
        },
        SetAttr {
            size_bytes: Some(20_000),
            mode: Some(0o600),
            ..SetAttr::default()
        },
    ] {
        let error = db.nodes().set_attr(file, &change).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
        let handle = db.nodes().open(file, true).unwrap();
        let error = handle.truncate(change.size_bytes.unwrap(), &change);
        assert_eq!(error.unwrap_err().kind(), ErrorKind::NotPermitted);
        assert_eq!(db.nodes().metadata(file).unwrap(), before, "GUARD-4");
        assert_eq!(content(&db, file), [1; 9000], "GUARD-4");
    }
    let change = SetAttr {
        size_bytes: Some(100),
        mtime: Some(larder::SetTime::At(7)),
        ..SetAttr::default()
    };
    let attr = db.nodes().set_attr(file, &change).unwrap();
    assert_eq!((attr.size_bytes, attr.mtime_ns), (100, 7));
    db.sync().unwrap();
    assert_eq!(content(&db, file), [1; 100]);
    assert_sound(&db);
    db.close().unwrap();
}

/// What comes while a long transaction is open, and would have refused it, is a conflict by name.
#[test]
fn a_rule_that_comes_during_a_transaction_is_a_conflict() {
    use crate::common::workspace;
    for (rule, expected) in [
        (
            "CREATE TRIGGER late BEFORE INSERT ON main_dirent BEGIN SELECT RAISE(ABORT, 'no'); END",
            "trigger late on main_dirent: made there, and rows of the table were changed here",
        ),
        (
            "CREATE TRIGGER late BEFORE UPDATE ON main BEGIN SELECT RAISE(IGNORE); END",
            "trigger late on main: made there, and rows of the table were changed here",
        ),
        (
            "CREATE TRIGGER late AFTER INSERT ON notes BEGIN SELECT RAISE(ABORT, 'no'); END",
            "trigger late on notes: made there, and rows of the table were changed here",
        ),
        (
            "CREATE UNIQUE INDEX late ON main_dirent (ino)",
            "UNIQUE constraint failed: main_dirent.ino",
        ),
        (
            "CREATE UNIQUE INDEX late ON main_xattr (name)",
            "UNIQUE constraint failed: main_xattr.name",
        ),
    ] {
        let dir = tempfile::tempdir().unwrap();
        let path = workspace::create(dir.path());
        let parent = workspace::open(&path);
        parent.files().write(b"/old", b"old").unwrap();
        workspace::sql(&parent, "CREATE TABLE notes (id INTEGER PRIMARY KEY)");
        parent.sync().unwrap();
        let txn = workspace::begin(&path);
        let view = txn.database().unwrap();
        view.files().write(b"/new", [7; 50_000]).unwrap();
        workspace::link(view, "/old", "/older");
        workspace::set_xattr(view, "/old", "user.a", "1");
        workspace::set_xattr(view, "/new", "user.a", "1");
        workspace::chmod(view, "/old", 0o600);
        workspace::sql(view, "INSERT INTO notes VALUES (1)");
        workspace::sql(&parent, rule);
        let found = workspace::conflicts(txn.commit().unwrap());
        let is_named = found.iter().any(|one| one.contains(expected));
        assert!(is_named, "{rule}: {found:?}");
        assert!(parent.files().read(b"/new").is_err(), "WORKSPACE-4");
        assert_eq!(parent.files().read(b"/old").unwrap(), b"old");
        workspace::assert_sound(&parent);
    }
}

/// A close is worth a request where a rule may come while the file is open.
#[test]
fn a_close_reports_a_rule_that_came_after_the_open() {
    let dir = scratch();
    drop(create(dir.path(), None));
    let db = open_quiet(dir.path());
    let plain_file = db
        .nodes()
        .open(put(&db, ROOT, "plain", b"1"), true)
        .unwrap();
    assert!(!plain_file.may_be_refused(), "nothing is the user's");
    drop(plain_file);
    db.close().unwrap();
    plain(dir.path(), "ALTER TABLE main ADD COLUMN rating");
    let db = open_quiet(dir.path());
    let node = make(&db, ROOT, "file");
    db.sync().unwrap();
    let file = db.nodes().open(node, true).unwrap();
    let other = db.nodes().open(node, false).unwrap();
    assert!(file.may_be_refused());
    file.write_at(0, &[1; 10_000]).unwrap();
    plain(
        dir.path(),
        "CREATE TRIGGER late BEFORE UPDATE ON main BEGIN SELECT RAISE(ABORT, 'too late'); END",
    );
    db.sync().unwrap();
    let told = file.check_refused().unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Io);
    assert!(told.to_string().contains("too late"), "{told}");
    // As errors of writing on Linux: to each handle, not to one that is opened later.
    let again = file.check_refused().unwrap_err();
    assert_eq!(again.to_string(), told.to_string());
    assert_eq!(other.sync().unwrap_err().kind(), ErrorKind::Io);
    other.sync().unwrap();
    let later = db.nodes().open(node, true).unwrap();
    later.sync().unwrap();
    later.check_refused().unwrap();
    file.sync().unwrap_err();
    assert_eq!(file.check_refused().unwrap_err().kind(), ErrorKind::Io);
    // What is synced after that is there, and a close has nothing to say.
    plain(dir.path(), "DROP TRIGGER late");
    file.write_at(0, b"again").unwrap();
    file.sync().unwrap();
    file.check_refused().unwrap();
    drop((file, other, later));
    db.close().unwrap();
}

/// Nobody knows who has looked at the answer to a close: the end of the session tells it, too.
#[test]
fn a_refusal_that_only_closes_have_told_is_told_at_the_end() {
    let dir = scratch();
    drop(create(dir.path(), None));
    let db = open_quiet(dir.path());
    let file = db.nodes().open(make(&db, ROOT, "file"), true).unwrap();
    db.sync().unwrap();
    for number in 1..=2 {
        file.write_at(0, &[number; 10_000]).unwrap();
        plain(
            dir.path(),
            "CREATE TRIGGER late BEFORE UPDATE ON main BEGIN SELECT RAISE(ABORT, 'too late'); END",
        );
        db.sync().unwrap();
        file.check_refused().unwrap_err();
        plain(dir.path(), "DROP TRIGGER late");
    }
    drop(file);
    let told = db.close().unwrap_err();
    assert!(told.to_string().contains("refused 2 of"), "{told}");
}

/// `CONSTRAINT-3`, `REDO-4`. What was written in place keeps its redo row where the commit that was
/// to tell of it is refused: else the map would name checksums of before.
#[test]
fn what_is_written_in_place_survives_the_refusal_of_its_commit() {
    let dir = scratch();
    // Without what makes commits of its own before: history, and a first clone.
    create_without_history(dir.path(), None).close().unwrap();
    plain(dir.path(), FROZEN);
    let db = open_quiet(dir.path());
    let mut expected = vec![1; 256 << 10];
    let node = put(&db, ROOT, "file", &expected);
    db.files().clone_path(None, b"/file", b"/clone").unwrap();
    db.nodes().unlink(ROOT, &name("clone")).unwrap();
    db.sync().unwrap();
    let file = db.nodes().open(node, true).unwrap();
    file.write_at(0, &[2; 4096]).unwrap();
    db.sync().unwrap();
    expected[..4096].fill(2);
    assert_eq!(db.maintenance().gauges().unwrap().redo_bytes, 4096);
    file.write_at(128 << 10, &[3; 4096]).unwrap();
    plain(
        dir.path(),
        &format!("INSERT INTO frozen VALUES ({})", node.ino.0),
    );
    // The copy needs the first blocks in place; the commit that tells of them has the others, too.
    let copy = make(&db, ROOT, "copy");
    let to = db.nodes().open(copy, true).unwrap();
    assert_eq!(
        copy_range((&*file, 0), (&*to, 0), 64 << 10).unwrap(),
        64 << 10
    );
    assert_eq!(db.maintenance().gauges().unwrap().refused_count, 1);
    plain(dir.path(), "DELETE FROM frozen");
    for round in 0..2 {
        assert!(content(&db, node) == expected, "{round}");
        assert!(content(&db, copy) == expected[..64 << 10], "{round}");
        assert_sound(&db);
        db.maintenance()
            .defrag(&[], &DefragOptions::default(), &mut |_| {})
            .unwrap();
    }
}
