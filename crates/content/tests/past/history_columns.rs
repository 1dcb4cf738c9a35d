//! The user's columns of files have a past where the store's table is tracked: read as a model
//! says, brought back with their files, and costing nothing where they are not changed
//! (`TEMPORAL-4`, `TEMPORAL-5`).
use crate::common;

use crate::common::columns::*;
use crate::common::temporal::{client, create, moment, query, wait_ms};
use crate::common::{assert_clean, folder, kind, name, open, pattern, put};
use larder::{
    ErrorKind, Moment, RenameMode, RestoreOptions, RestoreRows, SetAttr, SqlValue, XattrMode,
};
use std::collections::BTreeSet;

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
    db.nodes().link(a, sub, &name("linked")).unwrap();
    db.sync().unwrap();
    other.run(
        "UPDATE main SET rating = 5, tag = 'sea' WHERE ino = (SELECT ino FROM main_path WHERE \
         path = '/d/a'); \
         UPDATE main SET rating = 2.5 WHERE ino = (SELECT ino FROM main_path WHERE path = \
         '/d/sub/b'); \
         UPDATE main SET tag = 'all' WHERE ino = (SELECT ino FROM main_path WHERE path = '/d'); \
         UPDATE main SET rating = x'00ff' WHERE ino = (SELECT ino FROM main_path WHERE path = \
         '/stays');",
    );
    let then = moment(&db, 1);
    let sql = "SELECT path, rating, tag FROM main JOIN main_path USING (ino) WHERE path > '/' \
        ORDER BY path";
    let before = query(&db, sql);
    assert_eq!(asked(&db, &then, sql), before, "TEMPORAL-4");
    for (parent, file) in [(sub, "b"), (sub, "linked"), (d, "a"), (d, "plain")] {
        db.nodes().unlink(parent, &name(file)).unwrap();
    }
    db.nodes().remove_dir(d, &name("sub")).unwrap();
    db.nodes().remove_dir(R, &name("d")).unwrap();
    db.attributes()
        .set(stays, RATING, b"1", XattrMode::Set)
        .unwrap();
    db.sync().unwrap();
    assert_eq!(asked(&db, &then, sql), before, "TEMPORAL-4");
    // On the API.
    let past = db.as_of(&then).unwrap();
    assert_eq!(rating(&past, "/d/a").unwrap(), b"5");
    assert_eq!(rating(&past, "/d/sub/b").unwrap(), b"2.5");
    assert_eq!(rating(&past, "/stays").unwrap(), [0, 255]);
    assert_eq!(rating(&past, "/d/plain"), None);
    let node = past.nodes().resolve(b"/d/a", false).unwrap().node;
    let names: BTreeSet<Vec<u8>> = past.attributes().list(node).unwrap().into_iter().collect();
    let expected = [&b"user.column.rating"[..], b"user.column.tag"];
    assert_eq!(names, expected.map(<[u8]>::to_vec).into());
    let missing = past.attributes().get(node, b"user.column.other");
    assert_eq!(kind(missing), ErrorKind::NoAttribute);
    // And as rows.
    let found = db
        .sql()
        .rows_as_of(&past, "main", Some("tag = 'sea'"))
        .unwrap();
    assert_eq!(found.rows[0].columns[..], ["ino", "rating", "tag"]);
    assert_eq!(found.rows[0].values[1..], [integer(5), text("sea")]);
    // All of it back, in one commit.
    assert_eq!(restore(&db, &then, "/d", RestoreOptions::default()), 3);
    let here = query(&db, sql);
    let of_d = |rows: &[Vec<SqlValue>]| -> Vec<Vec<SqlValue>> {
        let is_in = |row: &&Vec<SqlValue>| {
            let others = ["/stays", "/moment"];
            !matches!(&row[0], SqlValue::Text(path) if others.contains(&path.as_str()))
        };
        rows.iter().filter(is_in).cloned().collect()
    };
    assert_eq!(of_d(&here), of_d(&before));
    assert_eq!(rating(&db, "/stays").unwrap(), b"1", "it was not asked for");
    let node = db.nodes().resolve(b"/d/a", false).unwrap().node;
    assert_eq!(
        db.nodes().resolve(b"/d/sub/linked", false).unwrap().node,
        node
    );
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
    db.nodes().set_attr(a, &mode).unwrap();
    db.files().write(b"/a", pattern(20_000, 1)).unwrap();
    db.nodes()
        .rename(R, &name("a"), d, &name("a"), RenameMode::Replace)
        .unwrap();
    db.attributes()
        .set(a, b"user.k", b"v", XattrMode::Set)
        .unwrap();
    put(&db, d, "gone", b"x");
    db.nodes().unlink(d, &name("gone")).unwrap();
    db.sync().unwrap();
    other.run("UPDATE main SET mode = 420, mtime_ns = 5 WHERE kind = 'file'");
    db.transactions()
        .run(|txn| {
            txn.files().write(b"/in", b"it")?;
            txn.sql("UPDATE main SET mode = 384 WHERE kind = 'file'", &[])
                .map(drop)
        })
        .unwrap();
    db.nodes().unlink(R, &name("in")).unwrap();
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
    db.nodes().unlink(d, &name("a")).unwrap();
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
        db.files().write(b"/a", [step]).unwrap();
        set(
            &db,
            &format!("UPDATE main SET rating = {step} WHERE kind = 'file'"),
        );
        db.sync().unwrap();
        let mut waited = 0;
        while reader.files().read(b"/a").unwrap() != [step] {
            assert!(waited < 10_000, "a foreign commit is seen");
            waited += 1;
            wait_ms(1);
        }
        let gauges = reader.maintenance().gauges().unwrap();
        if step == 30 {
            exact = gauges.foreign_exact_count;
        }
    }
    wait_ms(50);
    let after = reader.maintenance().gauges().unwrap().foreign_exact_count;
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
    let mut session = db.sql().open_as_of(&first).unwrap();
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
    db.transactions()
        .run(|txn| {
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
    let node = past.nodes().resolve(b"/a", false).unwrap().node;
    assert_eq!(
        past.attributes().get(node, b"user.column.stars").unwrap(),
        b"4"
    );
    let computed = past.attributes().get(node, b"user.column.twice");
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
    db.nodes().unlink(R, &name("a")).unwrap();
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
    db.sql().track_table("album").unwrap();
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
    db.nodes().unlink(R, &name("cover")).unwrap();
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
        .history()
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
    let refused = db
        .history()
        .restore(&past, Some(b"/a"), &with_rows)
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Sql, "{refused}");
    assert!(db.nodes().resolve(b"/cover", false).is_err());
    assert_eq!(query(&db, "SELECT count(*) FROM album")[0][0], integer(1));
    // With it, the column follows to its new number.
    db.nodes().unlink(R, &name("a")).unwrap();
    db.sync().unwrap();
    db.history().restore(&past, Some(b"/"), &with_rows).unwrap();
    let node = |path: &[u8]| integer(db.nodes().resolve(path, false).unwrap().node.ino.0 as i64);
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
    let sql = "SELECT path, rating FROM main JOIN main_path USING (ino) WHERE kind = 'file' ORDER \
        BY path";
    let before = query(&db, sql);
    let path = dir.path().join("t.larder");
    let txn = common::workspace::begin(&path);
    let view = txn.database().unwrap();
    common::workspace::sql(
        view,
        "UPDATE main SET rating = 2 WHERE ino = (SELECT ino FROM main_path WHERE path = '/a')",
    );
    common::workspace::remove(view, b"/gone");
    view.files().write(b"/b", b"other content").unwrap();
    view.files().write(b"/new", b"n").unwrap();
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
        let error = db.sql().rows_as_of(&past, "main", None).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::InvalidInput);
        assert!(error.to_string().contains(what), "{error}");
        assert_eq!(rating(&past, "/a"), None);
        let mut session = db.sql().open_as_of(&early).unwrap();
        let missing = session
            .execute("SELECT rating FROM main", &mut |_| Ok(()))
            .unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::Sql);
        assert!(missing.to_string().contains("larder track"), "{missing}");
    };
    refused("has no past");
    moment(&db, 2);
    db.sql().track_table("main").unwrap();
    db.sql().track_table("main").unwrap();
    refused("tracked since");
    let then = moment(&db, 3);
    let known = db.as_of(&then).unwrap();
    assert_eq!(rating(&known, "/a").unwrap(), b"5");
    let tables = db.sql().tracked_tables().unwrap();
    assert_eq!(tables.len(), 1);
    assert_eq!(tables[0].name, "main");
    assert!(tables[0].store.is_some());
    db.sql().untrack_table("main").unwrap();
    assert_eq!(kind(db.sql().untrack_table("main")), ErrorKind::NotFound);
    assert_eq!(rating(&known, "/a"), None);
    let count = records(&db);
    set(&db, "UPDATE main SET rating = 6");
    db.nodes().unlink(R, &name("a")).unwrap();
    db.sync().unwrap();
    assert_eq!(records(&db), count);
    for table in ["main_dirent", "larder_meta"] {
        assert_eq!(kind(db.sql().track_table(table)), ErrorKind::InvalidInput);
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
        db.stores().create("photos", "files", None, None).unwrap();
        other.run("ALTER TABLE photos ADD COLUMN place");
        assert_eq!(db.sql().tracked_tables().unwrap().len(), 1);
        db.sql().track_table("photos").unwrap();
        db.files().write(b"/photos/p", b"p").unwrap();
        db.sync().unwrap();
        set(&db, &format!("UPDATE photos SET place = 'p{round}'"));
        let then = moment(&db, round);
        db.nodes()
            .unlink(
                db.nodes().resolve(b"/photos", true).unwrap().node,
                &name("p"),
            )
            .unwrap();
        db.sync().unwrap();
        let sql = "SELECT place FROM photos WHERE kind = 'file'";
        assert_eq!(asked(&db, &then, sql), [[text(&format!("p{round}"))]]);
        db.stores().destroy("photos").unwrap();
        other.run(&format!(
            "CREATE TABLE t{round} (a); ALTER TABLE t{round} RENAME TO u{round}"
        ));
        put(&db, R, &format!("f{round}"), b"x");
        db.sync().unwrap();
    }
    // A table of the user's with the name of a store that comes later.
    other.run("CREATE TABLE later (a)");
    db.sql().track_table("later").unwrap();
    other.run("DROP TABLE later");
    db.stores().create("later", "files", None, None).unwrap();
    db.files().write(b"/later/f", b"x").unwrap();
    db.sync().unwrap();
    db.nodes()
        .unlink(
            db.nodes().resolve(b"/later", true).unwrap().node,
            &name("f"),
        )
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
        "UPDATE main SET rating = 5, tag = 'only' WHERE ino = (SELECT ino FROM main_path WHERE \
         path = '/a')",
    );
    let then = moment(&db, 1);
    let to = |path: &str| RestoreOptions {
        to: Some(path.as_bytes().to_vec()),
        ..RestoreOptions::default()
    };
    assert_eq!(restore(&db, &then, "/a", to("/copy")), 1);
    let sql = "SELECT path, rating, tag FROM main JOIN main_path USING (ino) WHERE rating = 5 \
        ORDER BY path";
    assert_eq!(
        query(&db, sql),
        [
            [text("/a"), integer(5), text("only")],
            [text("/copy"), integer(5), SqlValue::Null]
        ]
    );
    db.nodes().unlink(R, &name("a")).unwrap();
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
            let sql = "SELECT CAST(rating AS BLOB) FROM main JOIN main_path USING (ino) WHERE \
                path = '/a'";
            assert_eq!(asked(&db, &then, sql), [[SqlValue::Blob(expected.clone())]]);
        }
    };
    check("before any commit");
    moment(&db, 2);
    check("settled");
    db.nodes().unlink(R, &name("a")).unwrap();
    moment(&db, 3);
    check("gone");
    assert_clean(&db);
}
