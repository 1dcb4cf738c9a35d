//! Tables of users whose rows have a past: as of every moment as a model says, through every kind
//! of change.
use crate::common;

use crate::common::temporal::{
    as_of, client, create, moment, present, query, restore_rows, wait_ms,
};
use crate::common::{assert_clean, folder, kind, name, open, put};
use larder::{ErrorKind, Moment, NodeId, RestoreOptions, RestoreRows, SqlValue};
use larder_testkit::Rng;

const R: NodeId = NodeId::ROOT;

#[test]
fn values_of_every_kind_have_a_past() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, \"a \"\"b\"\" 'c'\", key, value);
             INSERT INTO t VALUES (1, 'text', NULL, -9223372036854775808), (2, x'00ff', 1e300, 0.1),
               (3, '', x'', '[\"x\",\"00\"]'), (4, 'it''s', 9e999, 3.0), (5, 1, 2, '{}');",
    );
    db.sql().track_table("T").unwrap();
    let before = present(&db, "t");
    let then = moment(&db, 1);
    assert_eq!(as_of(&db, &then, "t"), before);
    other.run("UPDATE t SET value = 'other', key = 7; DELETE FROM t WHERE id = 3;");
    let later = moment(&db, 2);
    let between = present(&db, "t");
    other.run("DELETE FROM t; INSERT INTO t (id, key) VALUES (2, 'again')");
    moment(&db, 3);
    assert_eq!(as_of(&db, &then, "t"), before, "TEMPORAL-1");
    assert_eq!(as_of(&db, &later, "t"), between, "TEMPORAL-1");
    // The number of row 2 was given anew: it may go only in an exact restore.
    assert_eq!(
        restore_rows(&db, &then, "t", None, true).unwrap(),
        (4, 1, 0)
    );
    assert_eq!(present(&db, "t"), before, "TEMPORAL-1");
    assert_eq!(as_of(&db, &later, "t"), between, "a restore has a past too");
    assert_clean(&db);
}

#[test]
fn replace_upsert_and_keys_that_move_are_seen() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run(
        "CREATE TABLE u (id INTEGER PRIMARY KEY, name TEXT UNIQUE, n);
             CREATE TABLE w (a TEXT, b INTEGER, n, PRIMARY KEY (a, b)) WITHOUT ROWID;
             CREATE TABLE k (word TEXT PRIMARY KEY, n) WITHOUT ROWID;
             CREATE TABLE bare (n);",
    );
    let tables = ["u", "w", "k", "bare"];
    for table in tables {
        db.sql().track_table(table).unwrap();
    }
    let mut moments = Vec::new();
    let steps = [
        "INSERT INTO u VALUES (1, 'one', 1), (2, 'two', 2), (3, 'three', 3)",
        "INSERT OR REPLACE INTO u VALUES (1, 'two', 12)",
        "UPDATE OR REPLACE u SET name = 'three' WHERE id = 1",
        "INSERT INTO u VALUES (7, 'three', 9) ON CONFLICT (name) DO UPDATE SET n = 77",
        "INSERT OR IGNORE INTO u VALUES (8, 'three', 0)",
        "UPDATE u SET id = id + 100",
        "INSERT INTO w VALUES ('a', 1, 1), ('a', 2, 2), ('b', 1, 3)",
        "REPLACE INTO w VALUES ('a', 1, 'new')",
        "UPDATE w SET b = b + 10 WHERE a = 'a'",
        "UPDATE OR REPLACE w SET a = 'b', b = 1 WHERE b = 11",
        "INSERT INTO k VALUES ('12', 1), ('x', 2)",
        "UPDATE k SET word = 'y' WHERE word = '12'",
        "INSERT INTO bare VALUES (1), (1), (NULL)",
        "DELETE FROM bare WHERE n = 1",
        "INSERT INTO bare VALUES (5); DELETE FROM bare WHERE n = 5",
        "DELETE FROM u; DELETE FROM w; DELETE FROM k; DELETE FROM bare",
    ];
    for (salt, step) in steps.iter().enumerate() {
        other.run(step);
        let moment = moment(&db, salt as u64);
        let all: Vec<_> = tables.iter().map(|table| present(&db, table)).collect();
        moments.push((moment, all, step));
    }
    for (moment, all, step) in &moments {
        for (table, rows) in tables.iter().zip(all) {
            assert_eq!(
                &as_of(&db, moment, table),
                rows,
                "TEMPORAL-1: {table} after {step}"
            );
        }
    }
    for (moment, all, step) in moments.iter().rev() {
        for (table, rows) in tables.iter().zip(all) {
            restore_rows(&db, moment, table, None, true).unwrap();
            assert_eq!(&present(&db, table), rows, "{table} after {step}");
        }
    }
    // What fails leaves no record, and what is rolled back none either.
    other.run("INSERT INTO u VALUES (11, 'x', 1)");
    let count = "SELECT count(*) FROM larder_history WHERE what = 'row'";
    let before = query(&db, count);
    other
        .try_run("INSERT INTO u VALUES (11, 'y', 1)")
        .unwrap_err();
    other.run("BEGIN; DELETE FROM u; DELETE FROM w; ROLLBACK");
    assert_eq!(query(&db, count), before);
    assert_clean(&db);
}

#[test]
fn alter_table_goes_on_working() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other
        .run("CREATE TABLE t (id INTEGER PRIMARY KEY, a, b); INSERT INTO t VALUES (1, 'a1', 'b1')");
    db.sql().track_table("t").unwrap();
    let first = moment(&db, 1);
    let row = |values: &[&str]| {
        let text = values.iter().map(|text| match *text {
            "NULL" => SqlValue::Null,
            text => SqlValue::Text(text.into()),
        });
        vec![
            std::iter::once(SqlValue::Integer(1))
                .chain(text)
                .collect::<Vec<_>>(),
        ]
    };
    other.run("ALTER TABLE t ADD COLUMN c");
    moment(&db, 2); // The engine writes: the triggers know of it.
    other.run("UPDATE t SET c = 'c1'");
    let second = moment(&db, 3);
    other.run("UPDATE t SET a = 'a2', c = 'c2'");
    moment(&db, 4);
    assert_eq!(as_of(&db, &first, "t"), row(&["a1", "b1", "NULL"]));
    assert_eq!(
        as_of(&db, &second, "t"),
        row(&["a1", "b1", "c1"]),
        "TEMPORAL-2"
    );
    // Gone, and changed at once, by a client that knows nothing of us.
    other.run("ALTER TABLE t DROP COLUMN b; UPDATE t SET a = 'a3'");
    let third = moment(&db, 5);
    assert_eq!(as_of(&db, &second, "t"), row(&["a1", "c1"]), "TEMPORAL-2");
    other.run("ALTER TABLE t RENAME COLUMN a TO z");
    moment(&db, 6);
    other.run("UPDATE t SET z = 'z4'");
    let fourth = moment(&db, 7);
    other.run("UPDATE t SET z = 'z5'");
    moment(&db, 8);
    assert_eq!(as_of(&db, &fourth, "t"), row(&["z4", "c2"]), "TEMPORAL-2");
    // What was kept under the old name is not that of the new one.
    assert_eq!(as_of(&db, &third, "t").len(), 1);
    other.run("ALTER TABLE t RENAME TO s");
    other.run("UPDATE s SET z = 'z6'");
    moment(&db, 9);
    assert_eq!(as_of(&db, &fourth, "s"), row(&["z4", "c2"]), "TEMPORAL-2");
    let names: Vec<String> = db
        .sql()
        .tracked_tables()
        .unwrap()
        .into_iter()
        .map(|table| table.name)
        .collect();
    assert_eq!(names, ["s"]);
    other.run("DROP TABLE s");
    moment(&db, 10);
    assert_eq!(db.sql().tracked_tables().unwrap(), []);
    assert_clean(&db);
}

#[test]
fn plain_sql_has_moments_by_its_times() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run("CREATE TABLE t (id INTEGER PRIMARY KEY, n)");
    db.sql().track_table("t").unwrap();
    moment(&db, 1);
    // No commit of the engine in between.
    let mut seen = Vec::new();
    for n in 0..5 {
        other.run(&format!(
            "INSERT INTO t VALUES ({}, 0) ON CONFLICT DO UPDATE SET n = n + 1",
            n % 2
        ));
        wait_ms(3);
        let at_ns = db.now_ns();
        wait_ms(3);
        seen.push((at_ns, present(&db, "t")));
    }
    let check = |when: &str| {
        for (at_ns, rows) in &seen {
            assert_eq!(
                &as_of(&db, &Moment::At(*at_ns), "t"),
                rows,
                "TEMPORAL-1: {when}"
            );
        }
    };
    check("before any commit");
    moment(&db, 2);
    check("settled");
    other.run("DELETE FROM t");
    check("deleted");
    moment(&db, 3);
    check("later");
    // A transaction of ours is as of its end, all at once.
    let before = db.now_ns();
    db.transactions()
        .run(|txn| {
            txn.sql("INSERT INTO t VALUES (10, 1)", &[])?;
            wait_ms(3);
            txn.files().write(b"/with", b"it")?;
            txn.sql("INSERT INTO t VALUES (11, 1)", &[])?;
            Ok(())
        })
        .unwrap();
    let after = db.now_ns();
    assert_eq!(as_of(&db, &Moment::At(before), "t").len(), 0);
    for step_ns in (before..after).step_by(500_000) {
        let past = db.as_of(&Moment::At(step_ns)).unwrap();
        let has_file = past.nodes().resolve(b"/with", false).is_ok();
        let rows = db.sql().rows_as_of(&past, "t", None).unwrap().rows.len();
        assert_eq!(rows, if has_file { 2 } else { 0 }, "CONTENT-9");
    }
    // SQL alone is a commit too.
    db.transactions()
        .run(|txn| txn.sql("DELETE FROM t", &[]).map(drop))
        .unwrap();
    assert_eq!(as_of(&db, &Moment::At(after), "t").len(), 2);
    assert_eq!(as_of(&db, &Moment::At(db.now_ns()), "t").len(), 0);
    check("at the end");
    assert_clean(&db);
}

#[test]
fn random_changes_read_as_the_model_says() {
    for seed in 1..=4 {
        let dir = tempfile::tempdir().unwrap();
        let mut db = create(dir.path());
        let other = client(dir.path());
        other.run("CREATE TABLE t (id INTEGER PRIMARY KEY, u INTEGER UNIQUE, n TEXT)");
        db.sql().track_table("t").unwrap();
        let mut rng = Rng::new(seed);
        let mut seen: Vec<(Moment, Vec<Vec<SqlValue>>)> = Vec::new();
        for step in 0..120 {
            let (id, u, n) = (rng.below(12), rng.below(12), rng.below(1000));
            let sql = match rng.below(7) {
                0 => format!("INSERT OR REPLACE INTO t VALUES ({id}, {u}, '{n}')"),
                1 => format!("INSERT OR IGNORE INTO t VALUES ({id}, {u}, '{n}')"),
                2 => format!("UPDATE OR REPLACE t SET u = {u} WHERE id = {id}"),
                3 => format!("UPDATE OR IGNORE t SET id = {u}, n = '{n}' WHERE id = {id}"),
                4 => format!("DELETE FROM t WHERE id = {id}"),
                5 => format!("UPDATE t SET n = '{n}' WHERE u < {u}"),
                _ => format!("DELETE FROM t WHERE u = {u}"),
            };
            match rng.below(3) {
                0 => drop(db.transactions().run(|txn| txn.sql(&sql, &[]).map(drop))),
                1 => drop(query(&db, &sql)),
                _ => drop(other.try_run(&sql)),
            }
            if rng.chance(40) {
                let moment = moment(&db, step);
                seen.push((moment, present(&db, "t")));
            }
            if rng.chance(4) {
                db.close().unwrap();
                db = open(dir.path());
            }
            if rng.chance(6) && !seen.is_empty() {
                let (moment, rows) = rng.pick(&seen).clone();
                let before = present(&db, "t");
                let expected = match restore_rows(&db, &moment, "t", None, true) {
                    Ok(_) => rows,
                    // Two rows have exchanged a unique value: the constraint is the user's.
                    Err(error) => {
                        assert_eq!(error.kind(), ErrorKind::Sql, "{error}");
                        before
                    }
                };
                assert_eq!(present(&db, "t"), expected, "seed {seed}, step {step}");
            }
        }
        for (at, (moment, rows)) in seen.iter().enumerate() {
            assert_eq!(
                &as_of(&db, moment, "t"),
                rows,
                "TEMPORAL-1: seed {seed}, moment {at}"
            );
        }
        assert_clean(&db);
    }
}

#[test]
fn a_directory_and_its_rows_come_back_at_once() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run(
        "PRAGMA foreign_keys = ON;
             CREATE TABLE note (id INTEGER PRIMARY KEY, ino REFERENCES main (ino) ON DELETE \
             CASCADE, text);
             CREATE TABLE tag (word TEXT PRIMARY KEY, dir TEXT)",
    );
    db.sql().track_table("note").unwrap();
    db.sql().track_table("tag").unwrap();
    let folder = folder(&db, R, "d");
    let file = put(&db, folder, "a", b"content");
    let stays = put(&db, R, "stays", b"x");
    db.sync().unwrap();
    let sql = format!(
        "INSERT INTO note VALUES (1, {}, 'of a'), (2, {}, 'of stays'), (3, {}, 'of d')",
        file.ino, stays.ino, folder.ino
    );
    db.transactions()
        .run(|txn| {
            txn.sql(&sql, &[])?;
            txn.sql("INSERT INTO tag VALUES ('x', '/d'), ('y', '/e')", &[])
                .map(drop)
        })
        .unwrap();
    let then = Moment::At(db.now_ns());
    wait_ms(3);
    db.nodes().unlink(folder, &name("a")).unwrap();
    db.nodes().remove_dir(R, &name("d")).unwrap();
    db.sync().unwrap();
    other.run("DELETE FROM tag; UPDATE note SET text = 'changed'");
    assert_eq!(
        query(&db, "SELECT id FROM note").len(),
        1,
        "by the foreign key"
    );

    let past = db.as_of(&then).unwrap();
    assert_eq!(past.files().read(b"/d/a").unwrap(), b"content");
    assert_eq!(
        db.sql().rows_as_of(&past, "note", None).unwrap().rows.len(),
        3
    );
    let rows = |table: &str, filter: Option<&str>| RestoreRows {
        table: table.into(),
        filter: filter.map(str::to_owned),
    };
    let mut options = RestoreOptions {
        rows: vec![
            rows("note", Some("id <> 2")),
            rows("tag", Some("dir = '/d'")),
        ],
        ..RestoreOptions::default()
    };
    let report = db.history().restore(&past, Some(b"/d"), &options).unwrap();
    assert_eq!(report.steps.len(), 2);
    assert_eq!(
        (report.rows[0].inserted_count, report.rows[1].inserted_count),
        (2, 1)
    );
    let joined = query(
        &db,
        "SELECT note.text, main_path.path FROM note JOIN main_path USING (ino) ORDER BY id",
    );
    let line =
        |text: &str, path: &str| vec![SqlValue::Text(text.into()), SqlValue::Text(path.into())];
    assert_eq!(
        joined,
        [
            line("of a", "/d/a"),
            line("changed", "/stays"),
            line("of d", "/d")
        ],
        "rows refer to the files that came back"
    );
    assert_eq!(query(&db, "SELECT * FROM tag").len(), 1);
    // All or nothing: a filter that is wrong takes the files back too.
    db.nodes()
        .unlink(db.nodes().resolve(b"/d", false).unwrap().node, &name("a"))
        .unwrap();
    db.sync().unwrap();
    options.rows = vec![rows("tag", Some("nonsense ="))];
    let refused = db.history().restore(&past, Some(b"/d"), &options);
    assert_eq!(kind(refused), ErrorKind::Sql);
    assert_eq!(
        kind(db.nodes().resolve(b"/d/a", false)),
        ErrorKind::NotFound,
        "CONTENT-12"
    );
    options.rows = vec![rows("main", None)];
    assert_eq!(
        kind(db.history().restore(&past, None, &options)),
        ErrorKind::InvalidInput
    );
    assert_clean(&db);
}

#[test]
fn a_long_transaction_leaves_a_past() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    query(
        &db,
        "CREATE TABLE t (word TEXT PRIMARY KEY NOT NULL, n); INSERT INTO t VALUES ('a', 1), ('b', \
         2), ('c', 3)",
    );
    db.sql().track_table("t").unwrap();
    let then = moment(&db, 1);
    let before = present(&db, "t");
    let long = db.transactions().begin_long("test").unwrap();
    query(
        long.database().unwrap(),
        "UPDATE t SET n = 22 WHERE word = 'b'; DELETE FROM t WHERE word = 'c'; INSERT INTO t \
         VALUES ('d', 4)",
    );
    long.commit().unwrap();
    let after = present(&db, "t");
    let later = moment(&db, 2);
    assert_eq!(after.len(), 3);
    assert_eq!(as_of(&db, &then, "t"), before, "TEMPORAL-1");
    assert_eq!(as_of(&db, &later, "t"), after, "TEMPORAL-1");
    restore_rows(&db, &then, "t", None, true).unwrap();
    assert_eq!(present(&db, "t"), before);
    assert_clean(&db);
}

#[test]
fn what_has_no_past_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    query(&db, "CREATE TABLE t (n); CREATE VIEW v AS SELECT 1");
    let columns: Vec<String> = (0..64).map(|at| format!("c{at}")).collect();
    query(&db, &format!("CREATE TABLE wide ({})", columns.join(", ")));
    for (table, expected) in [
        ("main_dirent", ErrorKind::InvalidInput),
        ("main_dirent", ErrorKind::InvalidInput),
        ("larder_meta", ErrorKind::InvalidInput),
        ("v", ErrorKind::InvalidInput),
        ("wide", ErrorKind::InvalidInput),
        ("nobody", ErrorKind::NotFound),
    ] {
        assert_eq!(kind(db.sql().track_table(table)), expected, "{table}");
    }
    let early = moment(&db, 1);
    moment(&db, 2);
    db.sql().track_table("t").unwrap();
    db.sql().track_table("t").unwrap();
    let past = db.as_of(&early).unwrap();
    assert_eq!(
        kind(db.sql().rows_as_of(&past, "t", None)),
        ErrorKind::InvalidInput
    );
    db.sql().untrack_table("t").unwrap();
    assert_eq!(kind(db.sql().untrack_table("t")), ErrorKind::NotFound);
    query(&db, "INSERT INTO t VALUES (1)");
    assert_eq!(
        query(
            &db,
            "SELECT count(*) FROM larder_history WHERE what = 'row'"
        ),
        [[SqlValue::Integer(0)]]
    );
    // Plain SQL cannot forge what the triggers write.
    let forged = "INSERT INTO larder_history (id, until_seq, what, ino, key, since_seq) \
                  SELECT -5, 1 + value, 'row', 1, 1, 0 FROM larder_meta WHERE key = 'commit_seq'";
    let mut session = db.sql().open(false).unwrap();
    assert!(
        session.execute(forged, &mut |_| Ok(())).is_err(),
        "HISTORY-2"
    );
    drop(session);
    assert_clean(&db);
    let dir = tempfile::tempdir().unwrap();
    let db = common::create_without_history(dir.path(), None);
    query(&db, "CREATE TABLE t (n)");
    assert_eq!(kind(db.sql().track_table("t")), ErrorKind::InvalidInput);
}
