//! Rows that come back, and rows that must not be touched: keys given anew, names of others, other
//! collations.

use crate::common::temporal::{as_of, client, create, moment, present, query, restore_rows};
use crate::common::{assert_clean, folder, kind, name, open, put};
use larder::{Database, ErrorKind, Moment, NodeId, RenameMode, RestoreOptions};
use larder::{RestoreReport, RestoreRows, SqlValue};
use larder_testkit::Rng;

const R: NodeId = NodeId::ROOT;

fn row(values: &[&str]) -> Vec<SqlValue> {
    let value = |text: &&str| match (*text, text.parse()) {
        ("NULL", _) => SqlValue::Null,
        (_, Ok(number)) => SqlValue::Integer(number),
        _ => SqlValue::Text((*text).into()),
    };
    values.iter().map(value).collect()
}

#[test]
fn a_row_that_took_the_place_of_another_stays() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run("CREATE TABLE album (path TEXT PRIMARY KEY, title TEXT)");
    db.sql().track_table("album").unwrap();
    other.run("INSERT INTO album VALUES ('/2026/a.jpg', 'The sea'), (NULL, 'nowhere')");
    let then = moment(&db, 1);
    let was = present(&db, "album");
    // Somebody else's row gets the rowid.
    other.run(
        "DELETE FROM album WHERE path LIKE '/2026/%' OR path IS NULL;
         INSERT INTO album VALUES ('/2027/z.jpg', 'Later'), (NULL, 'elsewhere')",
    );
    moment(&db, 2);
    assert_eq!(as_of(&db, &then, "album"), was, "TEMPORAL-1");
    let filter = Some("path LIKE '/2026/%'");
    assert_eq!(
        restore_rows(&db, &then, "album", filter, false).unwrap(),
        (1, 0, 0)
    );
    let expected = [
        row(&["NULL", "elsewhere"]),
        row(&["/2026/a.jpg", "The sea"]),
        row(&["/2027/z.jpg", "Later"]),
    ];
    assert_eq!(present(&db, "album"), expected, "TEMPORAL-3");
    assert_eq!(
        restore_rows(&db, &then, "album", filter, false).unwrap(),
        (0, 0, 0)
    );
    // A row without a key comes back beside the one that has its place, once.
    for count in [1, 0] {
        assert_eq!(
            restore_rows(&db, &then, "album", None, false).unwrap(),
            (count, 0, 0)
        );
    }
    assert_eq!(present(&db, "album").len(), 4, "TEMPORAL-3");
    // By hand again: it is that row, whatever its rowid.
    other
        .run("DELETE FROM album; INSERT INTO album VALUES ('/x', 'x'), ('/2026/a.jpg', 'By hand')");
    moment(&db, 3);
    assert_eq!(
        restore_rows(&db, &then, "album", filter, false).unwrap(),
        (0, 1, 0)
    );
    assert_eq!(
        present(&db, "album"),
        [row(&["/2026/a.jpg", "The sea"]), row(&["/x", "x"])]
    );
    restore_rows(&db, &then, "album", None, true).unwrap();
    assert_eq!(present(&db, "album"), was);
    assert_clean(&db);
}

#[test]
fn a_row_that_took_a_place_within_the_millisecond_is_another() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run(
        "CREATE TABLE album (path TEXT PRIMARY KEY, title TEXT);
         CREATE TABLE swap (title TEXT);
         CREATE TRIGGER swaps AFTER INSERT ON swap BEGIN
             DELETE FROM album WHERE path IS NULL;
             INSERT INTO album VALUES (NULL, NEW.title);
         END;",
    );
    db.sql().track_table("album").unwrap();
    other.run("INSERT INTO album VALUES (NULL, 'nowhere')");
    let then = moment(&db, 1);
    // SQLite's clock stands while a statement runs.
    other.run("INSERT INTO swap VALUES ('elsewhere')");
    moment(&db, 2);
    for count in [1, 0] {
        assert_eq!(
            restore_rows(&db, &then, "album", None, false).unwrap(),
            (count, 0, 0)
        );
    }
    let expected = [row(&["NULL", "elsewhere"]), row(&["NULL", "nowhere"])];
    assert_eq!(present(&db, "album"), expected, "TEMPORAL-3");
    assert_clean(&db);
}

#[test]
fn a_number_that_was_given_anew_is_a_conflict() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run("CREATE TABLE note (id INTEGER PRIMARY KEY, text)");
    db.sql().track_table("note").unwrap();
    other.run("INSERT INTO note (text) VALUES ('first'), ('second')");
    let then = moment(&db, 1);
    let was = present(&db, "note");
    // In one moment.
    other.run("DELETE FROM note WHERE id = 2; INSERT INTO note (text) VALUES ('another')");
    moment(&db, 2);
    let now = present(&db, "note");
    assert_eq!(now, [row(&["1", "first"]), row(&["2", "another"])]);
    let restore = |filter, is_exact| restore_rows(&db, &then, "note", filter, is_exact);
    let refused = restore(None, false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert!(refused.to_string().contains("(2 in 'note')"), "{refused}");
    assert_eq!(restore(Some("id = 1"), false).unwrap(), (0, 0, 0));
    // It is not among those that may go.
    let refused = restore(Some("text = 'second'"), true).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(present(&db, "note"), now, "TEMPORAL-3");
    assert_eq!(restore(None, true).unwrap(), (0, 1, 0));
    assert_eq!(present(&db, "note"), was);
    // What a restore gave back, and what REPLACE replaced, is the row that it was.
    other.run("DELETE FROM note WHERE id = 2");
    moment(&db, 3);
    assert_eq!(restore(None, false).unwrap(), (1, 0, 0));
    for (salt, sql) in [
        "UPDATE note SET text = 'edited'; REPLACE INTO note VALUES (1, 'replaced')",
        // In one millisecond.
        "BEGIN; UPDATE note SET text = 'edited'; REPLACE INTO note VALUES (1, 'replaced'); COMMIT",
    ]
    .into_iter()
    .enumerate()
    {
        other.run(sql);
        moment(&db, 4 + salt as u64);
        assert_eq!(restore(None, false).unwrap(), (0, 2, 0), "{sql}");
        assert_eq!(present(&db, "note"), was);
    }
    assert_clean(&db);
}

#[test]
fn a_restore_touches_no_other_rows() {
    // Where rows have no key, one that came back beside another is not known again when it is
    // changed.
    let tables = [
        (
            "k",
            "CREATE TABLE k (uid TEXT PRIMARY KEY, n INTEGER)",
            "'u' ||",
        ),
        (
            "i",
            "CREATE TABLE i (id INTEGER PRIMARY KEY, uid TEXT, n INTEGER)",
            "NULL, 'u' ||",
        ),
        ("b", "CREATE TABLE b (uid TEXT, n INTEGER)", "'u' ||"),
    ];
    let mut counts = (0, 0);
    for seed in 1..=3 {
        for (table, sql, values) in tables {
            let dir = tempfile::tempdir().unwrap();
            let db = create(dir.path());
            let other = client(dir.path());
            other.run(sql);
            db.sql().track_table(table).unwrap();
            let mut rng = Rng::new(seed);
            let mut seen: Vec<(Moment, Vec<Vec<SqlValue>>)> = Vec::new();
            for step in 0..50_u64 {
                let (n, about) = (rng.below(1000), rng.below(1000));
                let sql = match rng.below(5) {
                    0 | 1 => format!("INSERT INTO {table} VALUES ({values} {step}, {n})"),
                    2 => format!("UPDATE {table} SET n = {n} WHERE n < {about}"),
                    3 => format!("DELETE FROM {table} WHERE n < {about}"),
                    _ => format!(
                        "DELETE FROM {table} WHERE n > {about}; INSERT INTO {table} VALUES \
                         ({values} {step}, {n})"
                    ),
                };
                match rng.below(2) {
                    0 => drop(query(&db, &sql)),
                    _ => other.run(&sql),
                }
                if rng.chance(50) {
                    let moment = moment(&db, step);
                    seen.push((moment, present(&db, table)));
                }
                if rng.chance(15) && !seen.is_empty() {
                    let (moment, rows) = rng.pick(&seen).clone();
                    check_restore(&db, &moment, rows, table, &mut counts, seed);
                }
            }
            for (moment, rows) in &seen {
                assert_eq!(&as_of(&db, moment, table), rows, "TEMPORAL-1: {seed}");
            }
            assert_clean(&db);
        }
    }
    assert!(counts.0 > 15 && counts.1 > 2, "{counts:?}");
}

/// Restores the rows with a small `n`: they are there, and all others stay, or nothing is done.
fn check_restore(
    db: &Database,
    moment: &Moment,
    rows: Vec<Vec<SqlValue>>,
    table: &str,
    counts: &mut (u32, u32),
    seed: u64,
) {
    let number = |row: &Vec<SqlValue>| match row.last() {
        Some(SqlValue::Integer(n)) => *n,
        other => panic!("{other:?}"),
    };
    let uid = |row: &Vec<SqlValue>| row[row.len() - 2].clone();
    let was: Vec<_> = rows.into_iter().filter(|row| number(row) < 500).collect();
    let before = present(db, table);
    let done = restore_rows(db, moment, table, Some("n < 500"), false);
    let after = present(db, table);
    match done {
        Err(error) => {
            assert_eq!((error.kind(), table), (ErrorKind::Conflict, "i"), "{error}");
            assert_eq!(after, before, "seed {seed}");
            counts.1 += 1;
        }
        Ok(_) => {
            let others = before
                .iter()
                .filter(|row| !was.iter().any(|was| uid(was) == uid(row)));
            let others: Vec<_> = others.collect();
            for row in was.iter().chain(others.iter().copied()) {
                assert!(
                    after.contains(row),
                    "TEMPORAL-3: seed {seed}, {table}: {row:?}"
                );
            }
            if table != "b" {
                assert_eq!(
                    after.len(),
                    was.len() + others.len(),
                    "seed {seed}, {table}"
                );
            }
            counts.0 += 1;
        }
    }
}

#[test]
fn what_an_older_version_kept_is_not_mistaken() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run("CREATE TABLE t (word TEXT PRIMARY KEY, n)");
    db.sql().track_table("t").unwrap();
    let early = moment(&db, 1);
    // It went by the rowid.
    let triggers = query(
        &db,
        "SELECT name, sql FROM sqlite_schema WHERE type = 'trigger' AND tbl_name = 't'",
    );
    assert_eq!(triggers.len(), 5);
    // The older version ran alone: this one makes triggers anew as soon as it sees others.
    db.close().unwrap();
    for trigger in &triggers {
        let [SqlValue::Text(name), SqlValue::Text(sql)] = &trigger[..] else {
            panic!("{trigger:?}")
        };
        let mut sql = sql.clone();
        for row in ["NEW", "OLD", "larder_row"] {
            let key = format!(
                "CASE WHEN {row}.\"word\" IS NULL THEN CAST('rowid ' || {row}.rowid AS BLOB) ELSE \
                 {row}.\"word\" END"
            );
            sql = sql.replace(&key, &format!("+{row}.rowid"));
        }
        assert!(!sql.contains("CAST('rowid"), "{sql}");
        other.run(&format!("DROP TRIGGER {name}; {sql};"));
    }
    other.run("INSERT INTO t VALUES ('a', 1), ('b', 2)");
    other.run("UPDATE t SET n = 3");
    let db = open(dir.path());
    let then = moment(&db, 2);
    let was = present(&db, "t");
    other.run("UPDATE t SET n = 4; DELETE FROM t WHERE word = 'a'");
    let later = moment(&db, 3);
    let past = db.as_of(&early).unwrap();
    let refused = db.sql().rows_as_of(&past, "t", None).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert!(
        refused.to_string().contains("is tracked since"),
        "{refused}"
    );
    drop(past);
    assert_eq!(as_of(&db, &then, "t"), was, "TEMPORAL-1");
    assert_eq!(as_of(&db, &later, "t"), present(&db, "t"));
    restore_rows(&db, &then, "t", None, true).unwrap();
    assert_eq!(present(&db, "t"), was);
    let names: Vec<_> = db.sql().tracked_tables().unwrap();
    assert_eq!(names.len(), 1);
    assert_clean(&db);
}

#[test]
fn a_temporary_table_ends_no_tracking() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run(
        "CREATE TABLE album (path TEXT PRIMARY KEY, title); INSERT INTO album VALUES ('/a', 'A')",
    );
    db.sql().track_table("album").unwrap();
    let first = moment(&db, 1);
    let mut session = db.sql().open(false).unwrap();
    let mut run = |sql: &str| session.execute(sql, &mut |_| Ok(())).unwrap();
    run("CREATE TEMP TABLE album AS SELECT * FROM album");
    run("BEGIN; UPDATE main.album SET title = 'B'; COMMIT");
    let second = moment(&db, 2);
    run("ALTER TABLE main.album ADD COLUMN year");
    run("BEGIN; UPDATE main.album SET year = 2026; COMMIT");
    let third = moment(&db, 3);
    run("UPDATE main.album SET title = 'C', year = 2027");
    drop(session);
    let tables = db.sql().tracked_tables().unwrap();
    assert_eq!(tables.len(), 1, "TEMPORAL-1");
    other.run("DELETE FROM album");
    moment(&db, 4);
    assert_eq!(as_of(&db, &first, "album"), [row(&["/a", "A", "NULL"])]);
    assert_eq!(as_of(&db, &second, "album"), [row(&["/a", "B", "NULL"])]);
    assert_eq!(as_of(&db, &third, "album"), [row(&["/a", "B", "2026"])]);
    assert_clean(&db);
}

#[test]
fn replace_is_seen_through_every_unique_index() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run(
        "CREATE TABLE t (id INTEGER PRIMARY KEY, name TEXT, cover, album);
         CREATE UNIQUE INDEX t_name ON t (name COLLATE NOCASE);
         CREATE UNIQUE INDEX t_cover ON t (album) WHERE cover /* where */ AND album <> ' where ';
         CREATE TABLE e (n); CREATE UNIQUE INDEX e_n ON e (lower(n))",
    );
    db.sql().track_table("t").unwrap();
    let mut seen = Vec::new();
    for (salt, step) in [
        "INSERT INTO t VALUES (1, 'a', 1, 'x'), (2, 'b', 0, 'x'), (3, 'c', 0, 'x'), (4, 'd', 1, \
         'y')",
        "INSERT OR REPLACE INTO t VALUES (5, 'A', 0, 'x')",
        "INSERT OR REPLACE INTO t VALUES (6, 'f', 1, 'y')",
        "UPDATE OR REPLACE t SET name = 'F' WHERE id = 2",
        "UPDATE OR REPLACE t SET cover = 1 WHERE album = 'x'",
        "DELETE FROM t",
    ]
    .iter()
    .enumerate()
    {
        other.run(step);
        seen.push((moment(&db, salt as u64), present(&db, "t"), step));
    }
    for (moment, rows, step) in &seen {
        assert_eq!(&as_of(&db, moment, "t"), rows, "TEMPORAL-1: after {step}");
    }
    // What the partial index does not have stays, and has no record.
    other.run("INSERT INTO t VALUES (1, 'a', 0, 'x'), (2, 'b', 0, 'x')");
    let count = "SELECT count(*) FROM larder_history WHERE what = 'row'";
    let before = query(&db, count);
    other.run("INSERT INTO t VALUES (3, 'c', 1, 'x')");
    let SqlValue::Integer(before) = before[0][0] else {
        panic!("{before:?}")
    };
    assert_eq!(query(&db, count), [[SqlValue::Integer(before + 1)]]);
    let refused = db.sql().track_table("e").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{refused}");
    assert!(refused.to_string().contains("'e_n'"), "{refused}");
    assert_clean(&db);
}

#[test]
fn keys_are_told_apart_byte_by_byte() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run(
        "CREATE TABLE k (word TEXT COLLATE NOCASE PRIMARY KEY, n COLLATE NOCASE) WITHOUT ROWID;
         CREATE TABLE r (word TEXT COLLATE NOCASE PRIMARY KEY, n COLLATE NOCASE);
         CREATE TABLE w (a TEXT COLLATE NOCASE, n COLLATE NOCASE, PRIMARY KEY (a, n)) WITHOUT \
         ROWID",
    );
    for table in ["k", "r", "w"] {
        db.sql().track_table(table).unwrap();
        other.run(&format!(
            "INSERT INTO {table} VALUES ('a', 'x'), ('b', 'y')"
        ));
        let first = (moment(&db, 1), present(&db, table));
        let column = if table == "w" { "a" } else { "word" };
        other.run(&format!(
            "UPDATE {table} SET {column} = 'A' WHERE {column} = 'a'"
        ));
        let second = (moment(&db, 2), present(&db, table));
        other.run(&format!("UPDATE {table} SET n = 'Y' WHERE n = 'y'"));
        let third = (moment(&db, 3), present(&db, table));
        assert_eq!(second.1[0][0], SqlValue::Text("A".into()));
        for (moment, rows) in [&first, &second, &third] {
            assert_eq!(&as_of(&db, moment, table), rows, "TEMPORAL-3: {table}");
        }
        for (is_exact, (moment, rows)) in [(false, &first), (true, &third), (true, &first)] {
            restore_rows(&db, moment, table, None, is_exact).unwrap();
            assert_eq!(&present(&db, table), rows, "TEMPORAL-3: {table}");
        }
    }
    assert_clean(&db);
}

fn with_rows(
    db: &Database,
    moment: &Moment,
    path: &str,
    tables: &[&str],
) -> Result<RestoreReport, larder::Error> {
    let rows = tables.iter().map(|table| RestoreRows {
        table: (*table).into(),
        filter: None,
    });
    let mut options = RestoreOptions {
        rows: rows.collect(),
        is_dry: true,
        ..RestoreOptions::default()
    };
    let past = db.as_of(moment)?;
    let planned = db
        .history()
        .restore(&past, Some(path.as_bytes()), &options)?;
    options.is_dry = false;
    let done = db
        .history()
        .restore(&past, Some(path.as_bytes()), &options)?;
    assert_eq!(planned, done.planned(), "a dry run tells what is done");
    Ok(done)
}

#[test]
fn rows_follow_a_file_that_another_took_the_place_of() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path());
    let other = client(dir.path());
    other.run(
        "CREATE TABLE note (id INTEGER PRIMARY KEY, ino REFERENCES main (ino) ON DELETE CASCADE, \
         text);
         CREATE TABLE stars (ino INTEGER PRIMARY KEY REFERENCES main (ino) ON DELETE CASCADE, n);
         CREATE TABLE tag (ino REFERENCES main (ino) ON DELETE CASCADE, word, PRIMARY KEY (ino, \
         word)) WITHOUT ROWID",
    );
    let tables = ["note", "stars", "tag"];
    for table in tables {
        db.sql().track_table(table).unwrap();
    }
    let folder = folder(&db, R, "d");
    let file = put(&db, folder, "a", b"content");
    db.sync().unwrap();
    let insert = |ino| {
        query(
            &db,
            &format!(
                "INSERT INTO note VALUES (1, {ino}, 'of a'); INSERT INTO stars VALUES ({ino}, 5); \
                 INSERT INTO tag VALUES ({ino}, 'sea')"
            ),
        );
    };
    insert(file.ino);
    let then = moment(&db, 1);
    let joined = || {
        query(
            &db,
            "SELECT path, text, n, word FROM main_path JOIN note USING (ino) JOIN stars USING \
             (ino) JOIN tag USING (ino)",
        )
    };
    let expected = [row(&["/d/a", "of a", "5", "sea"])];
    assert_eq!(joined(), expected);
    // As editors write, where saves keep nothing: the inode goes, and its rows by the foreign keys.
    db.stores().set_save_keeps("main", false).unwrap();
    put(&db, folder, "new", b"edited");
    db.nodes()
        .rename(
            folder,
            &name("new"),
            folder,
            &name("a"),
            RenameMode::Replace,
        )
        .unwrap();
    db.sync().unwrap();
    assert_eq!(joined().len(), 0);
    let report = with_rows(&db, &then, "/d/a", &tables).unwrap();
    let inserted: Vec<u64> = report.rows.iter().map(|rows| rows.inserted_count).collect();
    assert_eq!(inserted, [1, 1, 1]);
    assert_eq!(db.files().read(b"/d/a").unwrap(), b"content");
    assert_eq!(joined(), expected, "CONTENT-12");
    // Again, and when all is gone: the inode of then is not mistaken for that of now.
    let nothing = |report: RestoreReport| {
        assert_eq!(report.steps, []);
        for rows in report.rows {
            let counts = (rows.inserted_count, rows.updated_count, rows.deleted_count);
            assert_eq!(counts, (0, 0, 0), "{}", rows.table);
        }
    };
    nothing(with_rows(&db, &then, "/d/a", &tables).unwrap());
    db.nodes().unlink(folder, &name("a")).unwrap();
    db.nodes().remove_dir(R, &name("d")).unwrap();
    db.sync().unwrap();
    assert_eq!(joined().len(), 0);
    with_rows(&db, &then, "/d", &tables).unwrap();
    assert_eq!(joined(), expected, "CONTENT-12");
    nothing(with_rows(&db, &then, "/d", &tables).unwrap());
    assert_eq!(joined(), expected);
    assert_eq!(kind(db.nodes().metadata(file)), ErrorKind::NotFound);
    assert_clean(&db);
}
