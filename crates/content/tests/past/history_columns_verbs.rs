//! What `undo`, `rollback`, `log`, `diff` and seals make of user columns.

use crate::common::columns::*;
use crate::common::temporal::{moment, query};
use crate::common::{assert_clean, folder, kind, name, pattern, put};
use larder::{
    CloneOptions, Database, DiffEvent, ErrorKind, LogEvent, Moment, SqlValue, VerifyOptions, diff,
};
use std::ops::ControlFlow;

#[test]
fn an_undo_takes_columns_back() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let d = folder(&db, R, "d");
    let a = put(&db, d, "a", b"a");
    put(&db, d, "b", b"b");
    db.sync().unwrap();
    set(
        &db,
        "UPDATE main SET rating = 5, tag = 'old' WHERE kind = 'file'",
    );
    let number = |moment: Moment| match moment {
        Moment::Seq(seq) => seq,
        other => panic!("{other:?}"),
    };
    moment(&db, 1);
    let newest = || {
        let rows = query(
            &db,
            "SELECT value FROM larder_meta WHERE key = 'commit_seq'",
        );
        match rows[0][0] {
            SqlValue::Integer(seq) => seq as u64,
            ref other => panic!("{other:?}"),
        }
    };
    let sql = "SELECT path, rating, tag FROM main JOIN main_path USING (ino) WHERE path LIKE \
        '/d/%' ORDER BY path";
    let before = query(&db, sql);
    // A removal.
    db.nodes().unlink(d, &name("a")).unwrap();
    db.sync().unwrap();
    let removal = newest();
    moment(&db, 2);
    db.history().undo(removal, false).unwrap();
    assert_eq!(query(&db, sql), before, "CONTENT-12");
    assert_ne!(db.nodes().resolve(b"/d/a", false).unwrap().node, a);
    // A transaction of files and columns.
    db.transactions()
        .run(|txn| {
            txn.sql("UPDATE main SET rating = 1 WHERE rating = 5", &[])?;
            txn.files().write(b"/d/a", b"changed")?;
            txn.nodes().unlink(d, &name("b"))?;
            txn.files().write(b"/d/new", b"n").map(drop)
        })
        .unwrap();
    let both = newest();
    moment(&db, 3);
    let told = db.history().undo(both, true).unwrap();
    let events: Vec<(String, LogEvent)> = told
        .changes
        .iter()
        .map(|change| {
            let path = String::from_utf8_lossy(&change.path).into_owned();
            (path, change.event.clone())
        })
        .collect();
    let expected = [
        ("/d/a", LogEvent::Content),
        ("/d/a", LogEvent::Columns),
        ("/d/b", LogEvent::Removed),
        ("/d/new", LogEvent::Created),
    ];
    assert_eq!(
        events,
        expected.map(|(path, event)| (path.to_owned(), event))
    );
    db.history().undo(both, false).unwrap();
    assert_eq!(query(&db, sql), before, "CONTENT-12");
    assert_eq!(db.files().read(b"/d/a").unwrap(), b"a");
    // Plain SQL alone, and what came later.
    other.run(
        "UPDATE main SET tag = 'new' WHERE ino = (SELECT ino FROM main_path WHERE path = '/d/b')",
    );
    let plain = number(moment(&db, 4)) - 1;
    set(&db, "UPDATE main SET rating = 6 WHERE rating = 5");
    let error = db.history().undo(plain, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("/d/b"), "{error}");
    set(&db, "UPDATE main SET rating = 5 WHERE rating = 6");
    db.history().undo(plain, false).unwrap();
    assert_eq!(query(&db, sql), before);
    assert_clean(&db);
}

#[test]
fn a_log_and_a_diff_name_changed_columns() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let a = put(&db, R, "a", b"a");
    put(&db, R, "b", b"b");
    db.sync().unwrap();
    let then = moment(&db, 1);
    other.run(&format!("UPDATE main SET rating = 5 WHERE ino = {}", a.ino));
    other.run("UPDATE main SET tag = tag");
    db.sync().unwrap();
    moment(&db, 2);
    let mut told = Vec::new();
    for path in [None, Some(&b"/a"[..])] {
        db.history()
            .log(path, None, &mut |commit| {
                for change in commit.changes {
                    if change.event == LogEvent::Columns {
                        told.push(String::from_utf8_lossy(&change.path).into_owned());
                    }
                }
                ControlFlow::Continue(())
            })
            .unwrap();
    }
    assert_eq!(told, ["/a", "/a"], "CONTENT-10");
    let past = db.as_of(&then).unwrap();
    let changed = |from: &Database, to: &Database| -> Vec<(String, bool, bool)> {
        let report = diff((from, b"/"), (to, b"/")).unwrap();
        let changes = report.changes.into_iter();
        changes
            .map(|change| {
                assert_eq!(change.event, DiffEvent::Changed);
                let path = String::from_utf8_lossy(&change.path).into_owned();
                (path, change.columns, change.content)
            })
            .collect()
    };
    let expected = [("/a", true, false), ("/moment", false, true)]
        .map(|(path, columns, content)| (path.to_owned(), columns, content));
    assert_eq!(changed(&past, &db), expected, "CONTENT-11");
    assert_eq!(changed(&db, &past), expected);
    // Another inode in its place has the columns of then, or not.
    db.nodes().unlink(R, &name("a")).unwrap();
    put(&db, R, "a", b"a");
    db.sync().unwrap();
    assert!(!changed(&past, &db).contains(&expected[0]));
    drop(past);
    assert_clean(&db);
}

#[test]
fn a_rollback_brings_columns_back() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    other.run("ALTER TABLE main ADD COLUMN grade DEFAULT 3");
    db.stores().create("photos", "files", None, None).unwrap();
    other.run("ALTER TABLE photos ADD COLUMN place");
    db.sql().track_table("photos").unwrap();
    put(&db, R, "a", b"a");
    put(&db, R, "none", b"b");
    db.files().write(b"/photos/p", b"p").unwrap();
    db.sync().unwrap();
    set(
        &db,
        "UPDATE main SET rating = 5 WHERE ino = (SELECT ino FROM main_path WHERE path = '/a');
         UPDATE main SET grade = NULL WHERE ino = (SELECT ino FROM main_path WHERE path = '/none');
         UPDATE photos SET place = 'Split' WHERE kind = 'file'",
    );
    let then = moment(&db, 1);
    let main = "SELECT path, ino, rating, grade FROM main JOIN main_path USING (ino) ORDER BY path";
    let photos = "SELECT ino, place FROM photos ORDER BY ino";
    let before = (query(&db, main), query(&db, photos));
    db.nodes().unlink(R, &name("a")).unwrap();
    db.nodes().unlink(R, &name("none")).unwrap();
    put(&db, R, "new", b"n");
    set(
        &db,
        "UPDATE main SET rating = 1; UPDATE photos SET place = 'Zadar'",
    );
    let between = moment(&db, 2);
    let seen = query(&db, main);
    let dry = db
        .history()
        .rollback(&then, Some(b"/photos"), true)
        .unwrap();
    let report = db
        .history()
        .rollback(&then, Some(b"/photos"), false)
        .unwrap();
    assert_eq!(dry.rows, report.rows);
    assert_eq!(report.left, [] as [String; 0]);
    assert_eq!(
        (query(&db, main), query(&db, photos)),
        (seen.clone(), before.1.clone())
    );
    let dry = db.history().rollback(&then, None, true).unwrap();
    let report = db.history().rollback(&then, None, false).unwrap();
    assert_eq!(dry.rows, report.rows);
    assert_eq!((query(&db, main), query(&db, photos)), before, "ROLLBACK-2");
    // What had nothing in it left no record when it went, and came back with a default.
    assert_eq!(asked(&db, &then, main), before.0, "TEMPORAL-5");
    assert_eq!(asked(&db, &between, main), seen, "TEMPORAL-4");
    db.history().rollback(&between, None, false).unwrap();
    assert_eq!(query(&db, main), seen, "ROLLBACK-2");
    assert_eq!(asked(&db, &then, main), before.0, "TEMPORAL-5");
    assert_clean(&db);
}

#[test]
fn a_seal_covers_columns() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let a = put(&db, R, "a", b"a");
    put(&db, R, "b", b"b");
    db.sync().unwrap();
    set(&db, "UPDATE main SET rating = 5");
    db.sync().unwrap();
    db.snapshots().create("s").unwrap();
    db.snapshots().seal("s", None).unwrap();
    let findings = || {
        let report = db.snapshots().verify(&VerifyOptions::default()).unwrap();
        let found = report.seals.into_iter().flat_map(|seal| seal.findings);
        found.map(|finding| finding.what).collect::<Vec<String>>()
    };
    set(&db, "UPDATE main SET rating = 1");
    db.nodes().unlink(R, &name("b")).unwrap();
    db.sync().unwrap();
    assert_eq!(findings(), [] as [String; 0]);
    other.run(&format!(
        "UPDATE larder_guard_switch SET open = 1; \
         UPDATE larder_history SET value = replace(value, '5', '4') WHERE what = 'row' AND key = \
         {}; \
         UPDATE larder_guard_switch SET open = 0",
        a.ino
    ));
    let found = findings();
    assert!(
        found.iter().any(|what| what.contains("main")),
        "SEAL-2: {found:?}"
    );
}

#[test]
fn clones_have_the_columns_of_what_they_were_made_from() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let d = folder(&db, R, "d");
    let a = put(&db, d, "a", &pattern(30_000, 1));
    put(&db, d, "plain", b"none");
    db.nodes().link(a, d, &name("linked")).unwrap();
    let outside = put(&db, R, "outside", b"outside");
    db.sync().unwrap();
    let in_d = |file: &str| format!("(SELECT ino FROM main_path WHERE path = '/d/{file}')");
    other.run(&format!(
        "ALTER TABLE main ADD COLUMN serial; CREATE UNIQUE INDEX serial ON main (serial); \
         ALTER TABLE main ADD COLUMN cover INTEGER REFERENCES main (ino); \
         UPDATE main SET rating = 5, tag = x'00ff', serial = 7, cover = {} WHERE ino = {}; \
         UPDATE main SET cover = {} WHERE ino = {}; \
         UPDATE main SET tag = 'all' WHERE ino = (SELECT ino FROM main_path WHERE path = '/d');",
        in_d("plain"),
        in_d("a"),
        outside.ino,
        in_d("plain"),
    ));
    let then = moment(&db, 1);
    let of = |root: &str| {
        query(
            &db,
            &format!(
                "SELECT substr(p.path, {}), rating, tag, serial, c.path FROM main AS m JOIN \
                 main_path AS p USING (ino) \
                 LEFT JOIN main_path AS c ON c.ino = m.cover WHERE p.path = '{root}' OR p.path \
                 GLOB '{root}/*' \
                 ORDER BY p.path",
                root.len() + 1
            ),
        )
    };
    let expected = |root: &str, serial: SqlValue| {
        let null = SqlValue::Null;
        let inner = text(&format!("{root}/plain"));
        let bytes = SqlValue::Blob(vec![0, 255]);
        let a = [integer(5), bytes, serial, inner];
        let row = |path: &str, values: &[SqlValue]| [&[text(path)], values].concat();
        vec![
            row("", &[null.clone(), text("all"), null.clone(), null.clone()]),
            row("/a", &a),
            row("/linked", &a),
            row(
                "/plain",
                &[null.clone(), null.clone(), null, text("/outside")],
            ),
        ]
    };
    assert_eq!(of("/d"), expected("/d", integer(7)));
    db.files().clone_path(None, b"/d", b"/copy").unwrap();
    assert_eq!(of("/copy"), expected("/copy", SqlValue::Null));
    // Neither follows the other.
    set(
        &db,
        "UPDATE main SET rating = 1 WHERE rating = 5 AND serial = 7",
    );
    assert_eq!(of("/copy"), expected("/copy", SqlValue::Null));
    // Of the past, beside the original and without it, again and again.
    let past = db.as_of(&then).unwrap();
    db.files().clone_path(Some(&past), b"/d", b"/was").unwrap();
    assert_eq!(of("/was"), expected("/was", SqlValue::Null));
    for file in ["a", "linked", "plain"] {
        db.nodes().unlink(d, &name(file)).unwrap();
    }
    for path in ["/back", "/again"] {
        db.files()
            .clone_path(Some(&past), b"/d", path.as_bytes())
            .unwrap();
        assert_eq!(of(path), expected(path, SqlValue::Null));
    }
    // Another store has no such columns.
    let store = db.stores().create("two", "files", None, None).unwrap();
    db.files().clone_path(None, b"/copy", b"/two/copy").unwrap();
    let there = db.nodes().resolve(b"/two/copy/a", false).unwrap().node;
    assert_eq!(there.store, store.store);
    assert!(db.attributes().list(there).unwrap().is_empty());
    // Nor has one that shows another at another moment.
    let Moment::Seq(seq) = then else {
        panic!("{then:?}")
    };
    db.stores()
        .create("shown", &format!("asof=seq:{seq}"), None, None)
        .unwrap();
    db.files()
        .clone_path(None, b"/shown/d", b"/of-shown")
        .unwrap();
    let is_null = |row: &Vec<SqlValue>| row[1..].iter().all(|value| *value == SqlValue::Null);
    assert!(of("/of-shown").iter().all(is_null));
    // What a constraint refuses is refused as a whole, and can be left out.
    set(&db, "UPDATE main SET cover = NULL");
    db.nodes().unlink(R, &name("outside")).unwrap();
    db.sync().unwrap();
    let refused = db
        .files()
        .clone_path(Some(&past), b"/d", b"/none")
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Sql, "{refused}");
    assert!(refused.to_string().contains("--no-columns"), "{refused}");
    assert_eq!(
        kind(db.nodes().resolve(b"/none", false)),
        ErrorKind::NotFound
    );
    let without = CloneOptions {
        without_columns: true,
    };
    db.files()
        .clone_path_with(Some(&past), b"/d", b"/none", &without)
        .unwrap();
    assert!(of("/none").iter().all(is_null));
    assert_clean(&db);
}

#[test]
fn columns_in_conditions_and_expressions_of_unique_indexes_are_not_cloned() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    put(&db, R, "a", b"a");
    db.sync().unwrap();
    other.run(
        "ALTER TABLE main ADD COLUMN home; ALTER TABLE main ADD COLUMN title; ALTER TABLE main \
         ADD COLUMN ratings; \
         CREATE UNIQUE INDEX rating ON main (kind) WHERE home; CREATE UNIQUE INDEX tag ON main \
         (lower(\"Title\")); \
         UPDATE main SET home = 1, title = 'A', rating = 1, ratings = 2, tag = 3 WHERE kind = \
         'file';",
    );
    db.files().clone_path(None, b"/a", b"/b").unwrap();
    let found = query(
        &db,
        "SELECT home, title, rating, ratings, tag FROM main JOIN main_path USING (ino) WHERE path \
         = '/b'",
    );
    let null = SqlValue::Null;
    assert_eq!(
        found,
        [[null.clone(), null, integer(1), integer(2), text("3")]]
    );
    assert_clean(&db);
}
