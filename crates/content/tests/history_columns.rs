//! The user's columns of files have a past where the store's table is tracked: read as a model says, brought back with their
//! files, and costing nothing where they are not changed (`TEMPORAL-4`, `TEMPORAL-5`).
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

mod common;

use common::temporal::{Client, client, create, moment, query, wait_ms};
use common::{assert_clean, folder, kind, name, open, pattern, put};
use larder::{
    Database, DiffEvent, ErrorKind, LogEvent, Moment, NodeId, RenameMode, RestoreOptions,
    RestoreRows, SetAttr, SqlSession, SqlValue, VerifyOptions, XattrMode, diff,
};
use larder_testkit::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

const R: NodeId = NodeId::ROOT;
const RATING: &[u8] = b"user.column.rating";

/// A database whose store `main` has the columns `rating` and `tag`, and is tracked.
fn rated(dir: &std::path::Path) -> (Database, Client) {
    let db = create(dir);
    let other = client(dir);
    other.run("ALTER TABLE main ADD COLUMN rating; ALTER TABLE main ADD COLUMN tag TEXT;");
    db.track_table("MAIN").unwrap();
    (db, other)
}

fn integer(value: i64) -> SqlValue {
    SqlValue::Integer(value)
}

fn text(value: &str) -> SqlValue {
    SqlValue::Text(value.into())
}

fn session_rows(session: &mut SqlSession, sql: &str) -> Vec<Vec<SqlValue>> {
    let mut found = Vec::new();
    session
        .execute(sql, &mut |row| {
            found.push(row.values);
            Ok(())
        })
        .unwrap();
    found
}

/// The rows of a query as of a moment.
fn asked(db: &Database, moment: &Moment, sql: &str) -> Vec<Vec<SqlValue>> {
    session_rows(&mut db.sql_as_of(moment).unwrap(), sql)
}

fn records(db: &Database) -> i64 {
    let rows = query(db, "SELECT count(*) FROM larder_history WHERE what = 'row'");
    match rows[0][0] {
        SqlValue::Integer(count) => count,
        ref other => panic!("{other:?}"),
    }
}

fn set(db: &Database, sql: &str) {
    query(db, sql);
}

fn restore(db: &Database, moment: &Moment, path: &str, options: RestoreOptions) -> u64 {
    let past = db.as_of(moment).unwrap();
    let dry = RestoreOptions {
        is_dry: true,
        ..options.clone()
    };
    let planned = db.restore(&past, Some(path.as_bytes()), &dry).unwrap();
    let done = db.restore(&past, Some(path.as_bytes()), &options).unwrap();
    assert_eq!(planned, done, "a dry run tells what is done");
    done.rows.iter().map(|rows| rows.updated_count).sum()
}

fn rating(db: &Database, path: &str) -> Option<Vec<u8>> {
    let node = db.resolve(path.as_bytes(), false).unwrap().node;
    match db.xattr(node, RATING) {
        Ok(value) => Some(value),
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NoAttribute, "{error}");
            None
        }
    }
}

#[test]
fn a_directory_that_was_deleted_comes_back_with_its_ratings() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let d = folder(&db, R, "d");
    let sub = folder(&db, d, "sub");
    let a = put(&db, d, "a", b"a");
    put(&db, sub, "b", &pattern(30_000, 1));
    put(&db, d, "plain", b"none");
    let stays = put(&db, R, "stays", b"stays");
    db.link(a, sub, &name("linked")).unwrap();
    db.sync().unwrap();
    other.run(
        "UPDATE main SET rating = 5, tag = 'sea' WHERE ino = (SELECT ino FROM main_path WHERE path = '/d/a'); \
         UPDATE main SET rating = 2.5 WHERE ino = (SELECT ino FROM main_path WHERE path = '/d/sub/b'); \
         UPDATE main SET tag = 'all' WHERE ino = (SELECT ino FROM main_path WHERE path = '/d'); \
         UPDATE main SET rating = x'00ff' WHERE ino = (SELECT ino FROM main_path WHERE path = '/stays');",
    );
    let then = moment(&db, 1);
    let sql = "SELECT path, rating, tag FROM main JOIN main_path USING (ino) WHERE path > '/' ORDER BY path";
    let before = query(&db, sql);
    assert_eq!(asked(&db, &then, sql), before, "TEMPORAL-4");
    for (parent, file) in [(sub, "b"), (sub, "linked"), (d, "a"), (d, "plain")] {
        db.unlink(parent, &name(file)).unwrap();
    }
    db.remove_dir(d, &name("sub")).unwrap();
    db.remove_dir(R, &name("d")).unwrap();
    db.set_xattr(stays, RATING, b"1", XattrMode::Set).unwrap();
    db.sync().unwrap();
    assert_eq!(asked(&db, &then, sql), before, "TEMPORAL-4");
    // On the API.
    let past = db.as_of(&then).unwrap();
    assert_eq!(rating(&past, "/d/a").unwrap(), b"5");
    assert_eq!(rating(&past, "/d/sub/b").unwrap(), b"2.5");
    assert_eq!(rating(&past, "/stays").unwrap(), [0, 255]);
    assert_eq!(rating(&past, "/d/plain"), None);
    let node = past.resolve(b"/d/a", false).unwrap().node;
    let names: BTreeSet<Vec<u8>> = past.xattrs(node).unwrap().into_iter().collect();
    let expected = [&b"user.column.rating"[..], b"user.column.tag"];
    assert_eq!(names, expected.map(<[u8]>::to_vec).into());
    let missing = past.xattr(node, b"user.column.other");
    assert_eq!(kind(missing), ErrorKind::NoAttribute);
    // And as rows.
    let found = db.rows_as_of(&past, "main", Some("tag = 'sea'")).unwrap();
    assert_eq!(found.rows[0].columns[..], ["ino", "rating", "tag"]);
    assert_eq!(found.rows[0].values[1..], [integer(5), text("sea")]);
    // All of it back, in one commit.
    assert_eq!(restore(&db, &then, "/d", RestoreOptions::default()), 3);
    let here = query(&db, sql);
    let of_d = |rows: &[Vec<SqlValue>]| -> Vec<Vec<SqlValue>> {
        let is_in = |row: &&Vec<SqlValue>| !matches!(&row[0], SqlValue::Text(path) if path == "/stays" || path == "/moment");
        rows.iter().filter(is_in).cloned().collect()
    };
    assert_eq!(of_d(&here), of_d(&before));
    assert_eq!(rating(&db, "/stays").unwrap(), b"1", "it was not asked for");
    let node = db.resolve(b"/d/a", false).unwrap().node;
    assert_eq!(db.resolve(b"/d/sub/linked", false).unwrap().node, node);
    // What is there gets its values back as well, or keeps them.
    set(&db, "UPDATE main SET rating = 9 WHERE rating IS NOT NULL");
    let keeps = RestoreOptions {
        keeps_columns: true,
        ..RestoreOptions::default()
    };
    assert_eq!(restore(&db, &then, "/d", keeps), 0);
    assert_eq!(rating(&db, "/d/a").unwrap(), b"9");
    assert_eq!(restore(&db, &then, "/", RestoreOptions::default()), 3);
    assert_eq!(query(&db, sql), before);
    assert_eq!(asked(&db, &then, sql), before, "a restore has a past too");
    assert_clean(&db);
}

#[test]
fn what_changes_no_column_writes_no_record() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let a = put(&db, R, "a", b"a");
    let d = folder(&db, R, "d");
    db.sync().unwrap();
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    db.set_attr(a, &mode).unwrap();
    db.put(b"/a", &pattern(20_000, 1)).unwrap();
    db.rename(R, &name("a"), d, &name("a"), RenameMode::Replace)
        .unwrap();
    db.set_xattr(a, b"user.k", b"v", XattrMode::Set).unwrap();
    put(&db, d, "gone", b"x");
    db.unlink(d, &name("gone")).unwrap();
    db.sync().unwrap();
    other.run("UPDATE main SET mode = 420, mtime_ns = 5 WHERE kind = 'file'");
    db.transaction(|txn| {
        txn.put(b"/in", b"it")?;
        txn.sql("UPDATE main SET mode = 384 WHERE kind = 'file'", &[])
            .map(drop)
    })
    .unwrap();
    db.unlink(R, &name("in")).unwrap();
    db.sync().unwrap();
    assert_eq!(records(&db), 0, "TEMPORAL-5");
    // By both ways at once it is one, and the attribute has its own.
    other.run(&format!(
        "UPDATE main SET rating = 1, mode = 438 WHERE ino = {}",
        a.ino
    ));
    assert_eq!(records(&db), 1, "TEMPORAL-4");
    db.sync().unwrap();
    moment(&db, 1);
    set(&db, "UPDATE main SET rating = 2 WHERE rating = 1");
    assert_eq!(records(&db), 2);
    moment(&db, 2);
    db.unlink(d, &name("a")).unwrap();
    db.sync().unwrap();
    assert_eq!(records(&db), 3, "TEMPORAL-4");
    assert_clean(&db);
}

#[test]
fn a_store_that_is_tracked_is_invalidated_exactly() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    other.run("CREATE TABLE idle (n)");
    let reader = open(dir.path());
    put(&db, R, "a", b"a");
    db.sync().unwrap();
    let mut exact = 0;
    for step in 0..60 {
        db.put(b"/a", &[step]).unwrap();
        set(
            &db,
            &format!("UPDATE main SET rating = {step} WHERE kind = 'file'"),
        );
        db.sync().unwrap();
        let mut waited = 0;
        while reader.get(b"/a").unwrap() != [step] {
            assert!(waited < 10_000, "a foreign commit is seen");
            waited += 1;
            wait_ms(1);
        }
        let gauges = reader.gauges().unwrap();
        if step == 30 {
            exact = gauges.foreign_exact_count;
        }
    }
    wait_ms(50);
    let after = reader.gauges().unwrap().foreign_exact_count;
    assert!(after > exact, "FOREIGN-1: {exact}, {after}");
}

#[test]
fn alter_table_goes_on_working() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    put(&db, R, "a", b"a");
    db.sync().unwrap();
    let file = "WHERE ino = (SELECT ino FROM main_path WHERE path = '/a')";
    other.run(&format!("UPDATE main SET rating = 1, tag = 't1' {file}"));
    let first = moment(&db, 1);
    let of = |moment: &Moment, column: &str| {
        let sql = format!("SELECT {column} FROM main {file}");
        asked(&db, moment, &sql)[0][0].clone()
    };
    // A column that a client makes and fills at once.
    other.run(&format!(
        "ALTER TABLE main ADD COLUMN later; UPDATE main SET later = 1 {file}"
    ));
    assert_eq!(of(&first, "later"), SqlValue::Null, "TEMPORAL-2");
    let second = moment(&db, 2);
    other.run(&format!("UPDATE main SET later = 2, mode = 384 {file}"));
    moment(&db, 3);
    assert_eq!(of(&first, "later"), SqlValue::Null);
    assert_eq!(of(&second, "later"), integer(1), "TEMPORAL-2");
    assert_eq!(of(&second, "rating"), integer(1));
    // Gone, and changed at once, by a client that knows nothing of us.
    other.run(&format!(
        "ALTER TABLE main DROP COLUMN tag; UPDATE main SET rating = 2 {file}"
    ));
    let third = moment(&db, 4);
    assert_eq!(of(&first, "rating"), integer(1), "TEMPORAL-2");
    let mut session = db.sql_as_of(&first).unwrap();
    let gone = session.execute("SELECT tag FROM main", &mut |_| Ok(()));
    assert_eq!(kind(gone), ErrorKind::Sql);
    drop(session);
    other.run(&format!(
        "ALTER TABLE main RENAME COLUMN rating TO stars; UPDATE main SET stars = 3 {file}"
    ));
    let fourth = moment(&db, 5);
    other.run(&format!("UPDATE main SET stars = 4 {file}"));
    moment(&db, 6);
    assert_eq!(of(&fourth, "stars"), integer(3), "TEMPORAL-2");
    // What was kept under the old name is not that of the new one.
    assert_eq!(of(&third, "stars"), SqlValue::Null);
    // In a transaction of ours as well.
    db.transaction(|txn| {
        txn.sql("ALTER TABLE main ADD COLUMN mine DEFAULT 7", &[])?;
        txn.sql(&format!("UPDATE main SET mine = 8 {file}"), &[])
            .map(drop)
    })
    .unwrap();
    assert_eq!(of(&fourth, "stars"), integer(3));
    assert_eq!(
        query(&db, &format!("SELECT mine FROM main {file}"))[0][0],
        integer(8)
    );
    // One that is computed has no past.
    other.run("ALTER TABLE main ADD COLUMN twice AS (stars * 2)");
    let fifth = moment(&db, 7);
    let past = db.as_of(&fifth).unwrap();
    let node = past.resolve(b"/a", false).unwrap().node;
    assert_eq!(past.xattr(node, b"user.column.stars").unwrap(), b"4");
    let computed = past.xattr(node, b"user.column.twice");
    assert_eq!(kind(computed), ErrorKind::NoAttribute);
    assert_clean(&db);
}

#[test]
fn many_columns_have_a_past() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    let a = put(&db, R, "a", b"a");
    db.sync().unwrap();
    let add: Vec<String> = (0..150)
        .map(|at| format!("ALTER TABLE main ADD COLUMN c{at};"))
        .collect();
    other.run(&add.concat());
    moment(&db, 1);
    let all: Vec<String> = (0..150).map(|at| format!("c{at} = {at}")).collect();
    let update = format!("UPDATE main SET {} WHERE ino = {}", all.join(", "), a.ino);
    other.run(&update);
    let then = moment(&db, 2);
    db.unlink(R, &name("a")).unwrap();
    db.sync().unwrap();
    restore(&db, &then, "/a", RestoreOptions::default());
    let sql =
        "SELECT c0, c59, c60, c149, rating FROM main JOIN main_path USING (ino) WHERE path = '/a'";
    let expected = [
        integer(0),
        integer(59),
        integer(60),
        integer(149),
        SqlValue::Null,
    ];
    assert_eq!(query(&db, sql)[0], expected, "TEMPORAL-4");
    assert_eq!(asked(&db, &then, sql)[0], expected, "TEMPORAL-4");
    assert_clean(&db);
}

#[test]
fn what_foreign_keys_do_to_columns_is_seen() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    set(
        &db,
        "CREATE TABLE album (id INTEGER PRIMARY KEY, title);
         INSERT INTO album VALUES (1, 'sea'), (2, 'hills');
         ALTER TABLE main ADD COLUMN album REFERENCES album (id) ON DELETE SET NULL;
         ALTER TABLE main ADD COLUMN cover REFERENCES main (ino) ON DELETE SET NULL;",
    );
    db.track_table("album").unwrap();
    let cover = put(&db, R, "cover", b"c");
    let a = put(&db, R, "a", b"a");
    db.sync().unwrap();
    other.run(&format!(
        "UPDATE main SET album = 1, cover = {} WHERE ino = {}",
        cover.ino, a.ino
    ));
    let then = moment(&db, 1);
    let sql = format!("SELECT album, cover FROM main WHERE ino = {}", a.ino);
    let expected = [integer(1), integer(cover.ino.0 as i64)];
    // By the engine, and by SQL.
    db.unlink(R, &name("cover")).unwrap();
    db.sync().unwrap();
    assert_eq!(query(&db, &sql)[0][1], SqlValue::Null);
    assert_eq!(asked(&db, &then, &sql)[0], expected, "TEMPORAL-4");
    other.run("PRAGMA foreign_keys = ON; DELETE FROM album WHERE id = 1");
    moment(&db, 2);
    assert_eq!(query(&db, &sql)[0][0], SqlValue::Null);
    assert_eq!(asked(&db, &then, &sql)[0], expected, "TEMPORAL-4");
    // Without the row nothing can refer to it: all of it is refused, or comes with it.
    let past = db.as_of(&then).unwrap();
    let error = db
        .restore(&past, Some(b"/a"), &RestoreOptions::default())
        .unwrap_err();
    assert!(error.to_string().contains("--keep-columns"), "{error}");
    let with_rows = RestoreOptions {
        rows: vec![RestoreRows {
            table: "album".into(),
            filter: None,
        }],
        ..RestoreOptions::default()
    };
    // The cover is gone still.
    let refused = db.restore(&past, Some(b"/a"), &with_rows).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Sql, "{refused}");
    assert!(db.resolve(b"/cover", false).is_err());
    assert_eq!(query(&db, "SELECT count(*) FROM album")[0][0], integer(1));
    // With it, the column follows to its new number.
    db.unlink(R, &name("a")).unwrap();
    db.sync().unwrap();
    db.restore(&past, Some(b"/"), &with_rows).unwrap();
    let node = |path: &[u8]| integer(db.resolve(path, false).unwrap().node.ino.0 as i64);
    assert_ne!(node(b"/cover"), integer(cover.ino.0 as i64));
    let SqlValue::Integer(ino) = node(b"/a") else {
        panic!("a number")
    };
    let now = query(
        &db,
        &format!("SELECT album, cover FROM main WHERE ino = {ino}"),
    );
    assert_eq!(now[0], [integer(1), node(b"/cover")]);
    drop(past);
    assert_clean(&db);
}

#[test]
fn the_merge_of_a_long_transaction_keeps_columns() {
    let dir = tempfile::tempdir().unwrap();
    let (db, _) = rated(dir.path());
    put(&db, R, "a", b"a");
    put(&db, R, "b", b"b");
    put(&db, R, "gone", b"g");
    db.sync().unwrap();
    set(&db, "UPDATE main SET rating = 1 WHERE kind = 'file'");
    let then = moment(&db, 1);
    let sql = "SELECT path, rating FROM main JOIN main_path USING (ino) WHERE kind = 'file' ORDER BY path";
    let before = query(&db, sql);
    let path = dir.path().join("t.larder");
    let txn = common::workspace::begin(&path);
    let view = txn.database().unwrap();
    common::workspace::sql(
        view,
        "UPDATE main SET rating = 2 WHERE ino = (SELECT ino FROM main_path WHERE path = '/a')",
    );
    common::workspace::remove(view, b"/gone");
    view.put(b"/b", b"other content").unwrap();
    view.put(b"/new", b"n").unwrap();
    view.sync().unwrap();
    common::workspace::sql(
        view,
        "UPDATE main SET rating = 3 WHERE ino = (SELECT ino FROM main_path WHERE path = '/new')",
    );
    let count = records(&db);
    let outcome = txn.commit().unwrap();
    assert_eq!(common::workspace::conflicts(outcome), Vec::<String>::new());
    let merged = query(&db, sql);
    assert_eq!(merged.len(), 4);
    let after = moment(&db, 2);
    assert_eq!(asked(&db, &then, sql), before, "TEMPORAL-4");
    set(&db, "UPDATE main SET rating = 7");
    moment(&db, 3);
    assert_eq!(asked(&db, &then, sql), before, "TEMPORAL-4");
    assert_eq!(
        asked(
            &db,
            &after,
            "SELECT rating FROM main JOIN main_path USING (ino) WHERE path = '/new'"
        ),
        [[integer(3)]]
    );
    // Of /a by the merge, of /gone when the last who had it open let it go.
    let of_merge = query(
        &db,
        "SELECT count(*) FROM larder_history WHERE what = 'row' AND value LIKE '{\"rating\":1,%'",
    );
    assert!(of_merge[0][0] != integer(0) && count > 0, "{of_merge:?}");
    assert_clean(&db);
}

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
    let sql = "SELECT path, rating, tag FROM main JOIN main_path USING (ino) WHERE path LIKE '/d/%' ORDER BY path";
    let before = query(&db, sql);
    // A removal.
    db.unlink(d, &name("a")).unwrap();
    db.sync().unwrap();
    let removal = newest();
    moment(&db, 2);
    db.undo(removal, false).unwrap();
    assert_eq!(query(&db, sql), before, "CONTENT-12");
    assert_ne!(db.resolve(b"/d/a", false).unwrap().node, a);
    // A transaction of files and columns.
    db.transaction(|txn| {
        txn.sql("UPDATE main SET rating = 1 WHERE rating = 5", &[])?;
        txn.put(b"/d/a", b"changed")?;
        txn.unlink(d, &name("b"))?;
        txn.put(b"/d/new", b"n").map(drop)
    })
    .unwrap();
    let both = newest();
    moment(&db, 3);
    let told = db.undo(both, true).unwrap();
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
    db.undo(both, false).unwrap();
    assert_eq!(query(&db, sql), before, "CONTENT-12");
    assert_eq!(db.get(b"/d/a").unwrap(), b"a");
    // Plain SQL alone, and what came later.
    other.run(
        "UPDATE main SET tag = 'new' WHERE ino = (SELECT ino FROM main_path WHERE path = '/d/b')",
    );
    let plain = number(moment(&db, 4)) - 1;
    set(&db, "UPDATE main SET rating = 6 WHERE rating = 5");
    let error = db.undo(plain, false).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Conflict, "{error}");
    assert!(error.to_string().contains("/d/b"), "{error}");
    set(&db, "UPDATE main SET rating = 5 WHERE rating = 6");
    db.undo(plain, false).unwrap();
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
        db.log(path, None, &mut |commit| {
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
    db.unlink(R, &name("a")).unwrap();
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
    db.create_store("photos", "files", None, None).unwrap();
    other.run("ALTER TABLE photos ADD COLUMN place");
    db.track_table("photos").unwrap();
    put(&db, R, "a", b"a");
    put(&db, R, "none", b"b");
    db.put(b"/photos/p", b"p").unwrap();
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
    db.unlink(R, &name("a")).unwrap();
    db.unlink(R, &name("none")).unwrap();
    put(&db, R, "new", b"n");
    set(
        &db,
        "UPDATE main SET rating = 1; UPDATE photos SET place = 'Zadar'",
    );
    let between = moment(&db, 2);
    let seen = query(&db, main);
    let dry = db.rollback(&then, Some(b"/photos"), true).unwrap();
    let report = db.rollback(&then, Some(b"/photos"), false).unwrap();
    assert_eq!(dry.rows, report.rows);
    assert_eq!(report.left, [] as [String; 0]);
    assert_eq!(
        (query(&db, main), query(&db, photos)),
        (seen.clone(), before.1.clone())
    );
    let dry = db.rollback(&then, None, true).unwrap();
    let report = db.rollback(&then, None, false).unwrap();
    assert_eq!(dry.rows, report.rows);
    assert_eq!((query(&db, main), query(&db, photos)), before, "ROLLBACK-2");
    // What had nothing in it left no record when it went, and came back with a default.
    assert_eq!(asked(&db, &then, main), before.0, "TEMPORAL-5");
    assert_eq!(asked(&db, &between, main), seen, "TEMPORAL-4");
    db.rollback(&between, None, false).unwrap();
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
    db.create_snapshot("s").unwrap();
    db.seal_snapshot("s", None).unwrap();
    let findings = || {
        let report = db.verify_seals(&VerifyOptions::default()).unwrap();
        let found = report.seals.into_iter().flat_map(|seal| seal.findings);
        found.map(|finding| finding.what).collect::<Vec<String>>()
    };
    set(&db, "UPDATE main SET rating = 1");
    db.unlink(R, &name("b")).unwrap();
    db.sync().unwrap();
    assert_eq!(findings(), [] as [String; 0]);
    other.run(&format!(
        "UPDATE larder_gate SET open = 1; \
         UPDATE larder_history SET value = replace(value, '5', '4') WHERE what = 'row' AND key = {}; \
         UPDATE larder_gate SET open = 0",
        a.ino
    ));
    let found = findings();
    assert!(
        found.iter().any(|what| what.contains("main")),
        "SEAL-2: {found:?}"
    );
}

#[test]
fn what_is_not_tracked_is_refused_or_absent() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run("ALTER TABLE main ADD COLUMN rating");
    put(&db, R, "a", b"a");
    db.sync().unwrap();
    set(&db, "UPDATE main SET rating = 5");
    let early = moment(&db, 1);
    let past = db.as_of(&early).unwrap();
    let refused = |what: &str| {
        let error = db.rows_as_of(&past, "main", None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(rating(&past, "/a"), None);
        let mut session = db.sql_as_of(&early).unwrap();
        let missing = session
            .execute("SELECT rating FROM main", &mut |_| Ok(()))
            .unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Sql);
        assert!(missing.to_string().contains("larder track"), "{missing}");
    };
    refused("has no past");
    moment(&db, 2);
    db.track_table("main").unwrap();
    db.track_table("main").unwrap();
    refused("tracked since");
    let then = moment(&db, 3);
    let known = db.as_of(&then).unwrap();
    assert_eq!(rating(&known, "/a").unwrap(), b"5");
    let tables = db.temporal_tables().unwrap();
    assert_eq!(tables.len(), 1);
    assert_eq!(tables[0].name, "main");
    assert!(tables[0].store.is_some());
    db.untrack_table("main").unwrap();
    assert_eq!(kind(db.untrack_table("main")), ErrorKind::NotFound);
    assert_eq!(rating(&known, "/a"), None);
    let count = records(&db);
    set(&db, "UPDATE main SET rating = 6");
    db.unlink(R, &name("a")).unwrap();
    db.sync().unwrap();
    assert_eq!(records(&db), count);
    for table in ["main_dirent", "larder_meta"] {
        assert_eq!(kind(db.track_table(table)), ErrorKind::InvalidInput);
    }
    let objects =
        "SELECT name FROM sqlite_schema WHERE name LIKE 'larder\\_temporal\\__%' ESCAPE '\\'";
    assert_eq!(query(&db, objects), Vec::<Vec<SqlValue>>::new());
    drop((past, known));
    assert_clean(&db);
}

#[test]
fn a_store_that_is_destroyed_takes_its_tracking_along() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    for round in 0..2 {
        db.create_store("photos", "files", None, None).unwrap();
        other.run("ALTER TABLE photos ADD COLUMN place");
        assert_eq!(db.temporal_tables().unwrap().len(), 1);
        db.track_table("photos").unwrap();
        db.put(b"/photos/p", b"p").unwrap();
        db.sync().unwrap();
        set(&db, &format!("UPDATE photos SET place = 'p{round}'"));
        let then = moment(&db, round);
        db.unlink(db.resolve(b"/photos", true).unwrap().node, &name("p"))
            .unwrap();
        db.sync().unwrap();
        let sql = "SELECT place FROM photos WHERE kind = 'file'";
        assert_eq!(asked(&db, &then, sql), [[text(&format!("p{round}"))]]);
        db.destroy_store("photos").unwrap();
        other.run(&format!(
            "CREATE TABLE t{round} (a); ALTER TABLE t{round} RENAME TO u{round}"
        ));
        put(&db, R, &format!("f{round}"), b"x");
        db.sync().unwrap();
    }
    // A table of the user's with the name of a store that comes later.
    other.run("CREATE TABLE later (a)");
    db.track_table("later").unwrap();
    other.run("DROP TABLE later");
    db.create_store("later", "files", None, None).unwrap();
    db.put(b"/later/f", b"x").unwrap();
    db.sync().unwrap();
    db.unlink(db.resolve(b"/later", true).unwrap().node, &name("f"))
        .unwrap();
    db.sync().unwrap();
    assert_clean(&db);
}

#[test]
fn a_copy_beside_the_original_leaves_unique_values_there() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    other.run("CREATE UNIQUE INDEX one_tag ON main (tag)");
    put(&db, R, "a", b"a");
    db.sync().unwrap();
    set(
        &db,
        "UPDATE main SET rating = 5, tag = 'only' WHERE ino = (SELECT ino FROM main_path WHERE path = '/a')",
    );
    let then = moment(&db, 1);
    let to = |path: &str| RestoreOptions {
        to: Some(path.as_bytes().to_vec()),
        ..RestoreOptions::default()
    };
    assert_eq!(restore(&db, &then, "/a", to("/copy")), 1);
    let sql = "SELECT path, rating, tag FROM main JOIN main_path USING (ino) WHERE rating = 5 ORDER BY path";
    assert_eq!(
        query(&db, sql),
        [
            [text("/a"), integer(5), text("only")],
            [text("/copy"), integer(5), SqlValue::Null]
        ]
    );
    db.unlink(R, &name("a")).unwrap();
    db.sync().unwrap();
    assert_eq!(restore(&db, &then, "/a", to("/again")), 1);
    assert_eq!(
        query(&db, sql)[0],
        [text("/again"), integer(5), text("only")]
    );
    assert_clean(&db);
}

/// Plain SQL between commits has its times to the millisecond.
#[test]
fn plain_sql_has_moments_by_its_times() {
    let dir = tempfile::tempdir().unwrap();
    let (db, other) = rated(dir.path());
    put(&db, R, "a", b"a");
    db.sync().unwrap();
    moment(&db, 1);
    let mut seen = Vec::new();
    for n in 0..4 {
        other.run(&format!("UPDATE main SET rating = {n} WHERE kind = 'file'"));
        wait_ms(3);
        seen.push((db.now_ns(), n.to_string().into_bytes()));
        wait_ms(3);
    }
    let check = |when: &str| {
        for (at_ns, expected) in &seen {
            let then = Moment::At(*at_ns);
            let past = db.as_of(&then).unwrap();
            assert_eq!(
                rating(&past, "/a").as_ref(),
                Some(expected),
                "TEMPORAL-4: {when}"
            );
            let sql = "SELECT CAST(rating AS BLOB) FROM main JOIN main_path USING (ino) WHERE path = '/a'";
            assert_eq!(asked(&db, &then, sql), [[SqlValue::Blob(expected.clone())]]);
        }
    };
    check("before any commit");
    moment(&db, 2);
    check("settled");
    db.unlink(R, &name("a")).unwrap();
    moment(&db, 3);
    check("gone");
    assert_clean(&db);
}

// ---- the model ------------------------------------------------------------------------------

/// Of each path the inode, and what the columns have.
type Seen = BTreeMap<String, (SqlValue, BTreeMap<String, SqlValue>)>;

fn columns_of(db: &Database) -> Vec<String> {
    let sql = "SELECT name FROM pragma_table_info('main') WHERE name GLOB 'c[0-9]*' ORDER BY name";
    let names = query(db, sql).into_iter().map(|row| match &row[0] {
        SqlValue::Text(name) => name.clone(),
        other => panic!("{other:?}"),
    });
    names.collect()
}

fn seen(session: &mut SqlSession, columns: &[String]) -> Seen {
    let listed: String = columns.iter().map(|name| format!(", {name}")).collect();
    let sql = format!("SELECT path, ino{listed} FROM main JOIN main_path USING (ino)");
    let rows = session_rows(session, &sql).into_iter();
    rows.filter_map(|row| {
        let SqlValue::Text(path) = &row[0] else {
            panic!("{row:?}")
        };
        let values = columns.iter().cloned().zip(row[2..].iter().cloned());
        (path != "/moment").then(|| (path.clone(), (row[1].clone(), values.collect())))
    })
    .collect()
}

/// What was seen, by the columns that there are: those that came later were NULL.
fn by_columns(seen: &Seen, columns: &[String]) -> Seen {
    let mut seen = seen.clone();
    for (_, values) in seen.values_mut() {
        let mut all = BTreeMap::new();
        for name in columns {
            let value = values.get(name).cloned().unwrap_or(SqlValue::Null);
            all.insert(name.clone(), value);
        }
        *values = all;
    }
    seen
}

fn bytes(value: &SqlValue) -> Option<Vec<u8>> {
    match value {
        SqlValue::Null => None,
        SqlValue::Integer(number) => Some(number.to_string().into_bytes()),
        SqlValue::Text(text) => Some(text.clone().into_bytes()),
        SqlValue::Blob(bytes) => Some(bytes.clone()),
        other => panic!("{other:?}"),
    }
}

/// What a moment shows in all ways is what was seen then.
fn assert_shows(db: &Database, moment: &Moment, then: &Seen, what: &str) {
    let columns = columns_of(db);
    let then = by_columns(then, &columns);
    let mut session = db.sql_as_of(moment).unwrap();
    assert_eq!(seen(&mut session, &columns), then, "TEMPORAL-4: {what}");
    drop(session);
    let past = db.as_of(moment).unwrap();
    for (path, (_, values)) in &then {
        let node = past.resolve(path.as_bytes(), false).unwrap().node;
        for (name, value) in values {
            let found = past.xattr(node, format!("user.column.{name}").as_bytes());
            match bytes(value) {
                Some(value) => assert_eq!(found.unwrap(), value, "{what}: {path} {name}"),
                None => assert_eq!(kind(found), ErrorKind::NoAttribute, "{what}: {path} {name}"),
            }
        }
    }
    let rows = db.rows_as_of(&past, "main", None).unwrap();
    let named = rows.rows[0].columns[1..].to_vec();
    let mut by_inode: BTreeMap<String, Vec<SqlValue>> = BTreeMap::new();
    for row in rows.rows {
        by_inode.insert(format!("{:?}", row.values[0]), row.values[1..].to_vec());
    }
    for (path, (ino, values)) in &then {
        let named = (named.iter().cloned()).zip(by_inode[&format!("{ino:?}")].clone());
        let found: BTreeMap<String, SqlValue> = named
            .filter(|(name, _)| values.contains_key(name))
            .collect();
        assert_eq!(&found, values, "{what}: rows of {path}");
    }
}

fn all_paths(db: &Database) -> Vec<String> {
    let rows = query(
        db,
        "SELECT path FROM main_path WHERE path LIKE '/d%' ORDER BY path",
    );
    let paths = rows.into_iter().map(|row| match &row[0] {
        SqlValue::Text(path) => path.clone(),
        other => panic!("{other:?}"),
    });
    paths.collect()
}

fn some_path(rng: &mut Rng) -> String {
    let (directory, file) = (rng.below(3), rng.below(4));
    match rng.below(6) {
        0 => format!("/d{directory}"),
        1 => format!("/d{directory}/e"),
        2 => format!("/d{directory}/e/f{file}"),
        _ => format!("/d{directory}/f{file}"),
    }
}

/// One change of files, which may be refused.
fn change_files(db: &Database, rng: &mut Rng) -> Result<(), larder::Error> {
    let path = some_path(rng);
    let (parent, last) = db.resolve_parent(path.as_bytes())?;
    match rng.below(6) {
        0 | 1 => {
            if path.ends_with('e') || path.len() == 3 {
                let kind = larder::NewNode::Directory;
                db.create_node(parent, &last, kind, 0o755, common::OWNER)?;
            } else {
                db.put(path.as_bytes(), &pattern(rng.below(9000) as usize, 1))?;
            }
        }
        2 => db.unlink(parent, &last)?,
        3 => db.remove_dir(parent, &last)?,
        4 => {
            let (to, other) = db.resolve_parent(some_path(rng).as_bytes())?;
            db.rename(parent, &last, to, &other, RenameMode::Replace)?;
        }
        _ => {
            let node = db.resolve(path.as_bytes(), false)?.node;
            let (to, other) = db.resolve_parent(some_path(rng).as_bytes())?;
            db.link(node, to, &other)?;
        }
    }
    Ok(())
}

fn change_columns(db: &Database, other: &Client, rng: &mut Rng) {
    db.sync().unwrap();
    let (columns, paths) = (columns_of(db), all_paths(db));
    if columns.is_empty() || paths.is_empty() {
        return;
    }
    let (column, path) = (rng.pick(&columns).clone(), rng.pick(&paths).clone());
    let value = rng.below(5);
    let which = match rng.below(3) {
        0 => format!("{column} IS {value}"),
        _ => format!("ino IN (SELECT ino FROM main_path WHERE path = '{path}')"),
    };
    let sql = match rng.below(4) {
        0 => format!("UPDATE main SET {column} = NULL WHERE {which}"),
        1 => format!("UPDATE main SET {column} = 'x{value}', mode = mode WHERE {which}"),
        _ => format!("UPDATE main SET {column} = {value} WHERE {which}"),
    };
    match rng.below(5) {
        0 => other.run(&sql),
        1 => drop(db.transaction(|txn| {
            txn.sql(&sql, &[])?;
            let moved = path.replace("/f", "/g");
            let _may_fail = txn.put(moved.as_bytes(), b"in a transaction");
            Ok(())
        })),
        2 => {
            let node = db.resolve(path.as_bytes(), false).unwrap().node;
            let name = format!("user.column.{column}");
            let value = value.to_string();
            match rng.below(3) {
                0 => drop(db.remove_xattr(node, name.as_bytes())),
                _ => db
                    .set_xattr(node, name.as_bytes(), value.as_bytes(), XattrMode::Set)
                    .unwrap(),
            }
        }
        _ => set(db, &sql),
    }
}

#[test]
fn random_changes_read_as_the_model_says() {
    for seed in 1..=6 {
        let dir = tempfile::tempdir().unwrap();
        let mut db = create(dir.path());
        let other = client(dir.path());
        let mut rng = Rng::new(seed);
        other.run("ALTER TABLE main ADD COLUMN c0; ALTER TABLE main ADD COLUMN c1;");
        db.track_table("main").unwrap();
        let mut columns_made = 2;
        let mut known: Vec<(Moment, Seen)> = Vec::new();
        for step in 0..150 {
            let what = format!("seed {seed}, step {step}");
            match rng.below(20) {
                0..=8 => drop(change_files(&db, &mut rng)),
                9..=15 => change_columns(&db, &other, &mut rng),
                16 => {
                    let add = format!("ALTER TABLE main ADD COLUMN c{columns_made}");
                    columns_made += 1;
                    match rng.below(2) {
                        0 => other.run(&add),
                        _ => set(&db, &add),
                    }
                }
                17 if rng.chance(40) => {
                    let columns = columns_of(&db);
                    if columns.len() > 1 {
                        let drop = format!("ALTER TABLE main DROP COLUMN {}", rng.pick(&columns));
                        set(&db, &drop);
                    }
                }
                18 if rng.chance(20) => {
                    db.close().unwrap();
                    db = open(dir.path());
                }
                _ if !known.is_empty() => {
                    let (moment, then) = rng.pick(&known).clone();
                    let columns = columns_of(&db);
                    let then = by_columns(&then, &columns);
                    let mut now = db.sql(true).unwrap();
                    let present = seen(&mut now, &columns);
                    drop(now);
                    if rng.chance(30) {
                        db.rollback(&moment, None, false).unwrap();
                        let is = seen(&mut db.sql(true).unwrap(), &columns);
                        assert_eq!(is, then, "ROLLBACK-2: {what}");
                        continue;
                    }
                    let roots: Vec<&String> = then.keys().filter(|path| path.len() == 3).collect();
                    let Some(root) = roots
                        .get(rng.below(3) as usize)
                        .map(|root| root.to_string())
                    else {
                        continue;
                    };
                    let past = db.as_of(&moment).unwrap();
                    let options = RestoreOptions {
                        is_exact: true,
                        ..RestoreOptions::default()
                    };
                    let done = db.restore(&past, Some(root.as_bytes()), &options);
                    drop(past);
                    done.unwrap_or_else(|error| panic!("{what}: {error}"));
                    let is = seen(&mut db.sql(true).unwrap(), &columns);
                    let values = |seen: &Seen| -> BTreeMap<String, BTreeMap<String, SqlValue>> {
                        let below = seen.iter().filter(|(path, _)| path.starts_with(&root));
                        below
                            .map(|(path, (_, values))| (path.clone(), values.clone()))
                            .collect()
                    };
                    assert_eq!(
                        values(&is),
                        values(&then),
                        "CONTENT-12: {what}: {root}, before {present:?}"
                    );
                }
                _ => {}
            }
            if rng.chance(40) {
                let at = moment(&db, step);
                let columns = columns_of(&db);
                let now = seen(&mut db.sql(true).unwrap(), &columns);
                known.push((at, now));
            }
            if rng.chance(10) && !known.is_empty() {
                let (moment, then) = rng.pick(&known);
                assert_shows(&db, moment, then, &what);
            }
        }
        for (at, (moment, then)) in known.iter().enumerate() {
            assert_shows(&db, moment, then, &format!("seed {seed}, moment {at}"));
        }
        assert_clean(&db);
    }
}
