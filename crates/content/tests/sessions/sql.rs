//! SQL over content: the functions about files, in transactions and in sessions.

use crate::common::sql::*;
use crate::common::*;
use larder::{Caller, ErrorKind, Name, NewNode, NodeId, SqlSession, SqlValue};

const R: NodeId = NodeId::ROOT;

#[test]
fn functions_tell_of_files() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let big = pattern(300_000, 7);
    let photos = directory(&db, R, "photos");
    let ino = db.files().write(b"/photos/a.jpg", &big).unwrap().node.ino.0;
    db.files().write(b"/note.txt", b"hello").unwrap();
    db.nodes()
        .create_node(
            R,
            &Name::new(b"link").unwrap(),
            NewNode::Symlink(b"/note.txt"),
            0o777,
            Caller::current(),
        )
        .unwrap();
    let mut sql = db.sql().open(true).unwrap();
    // By inode and by path, whole and in part, of every length.
    assert_eq!(one(&mut sql, &format!("SELECT content({ino})")), blob(&big));
    assert_eq!(
        one(&mut sql, "SELECT content('/photos/a.jpg', 299990, 100)"),
        blob(&big[299_990..])
    );
    assert_eq!(
        one(&mut sql, "SELECT CAST(content('/link', 1, 3) AS TEXT)"),
        text("ell")
    );
    assert_eq!(
        one(&mut sql, "SELECT content('/note.txt', 99, 3)"),
        blob(b"")
    );
    // Absent is NULL, and so is what NULL names.
    for absent in [
        "content('/none')",
        "content('/note.txt/x')",
        "content(99999)",
        "content(-1)",
        "content(NULL)",
        "content('/note.txt', NULL, 1)",
        "ino('/none')",
        "path(99999)",
        "path(NULL)",
        "path(1, NULL)",
    ] {
        assert_eq!(
            one(&mut sql, &format!("SELECT {absent}")),
            SqlValue::Null,
            "{absent}"
        );
    }
    assert_eq!(
        run(
            &mut sql,
            &format!("SELECT path({ino}), ino('/photos/a.jpg'), path(1), ino('/')")
        )
        .unwrap(),
        [
            text("/photos/a.jpg"),
            integer(ino as i64),
            text("/"),
            integer(1)
        ]
    );
    let joined = "SELECT path(ino) FROM main WHERE kind = 'file' AND length(content(ino)) < 10";
    assert_eq!(one(&mut sql, joined), text("/note.txt"));
    let before = db.nodes().metadata(photos).unwrap().ctime_ns;
    match one(&mut sql, "SELECT larder_time()") {
        SqlValue::Integer(now) => assert!(now >= before && now - before < 60_000_000_000),
        other => panic!("{other:?}"),
    }
}

#[test]
fn files_are_listed_by_patterns() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let a = directory(&db, R, "a");
    let x = directory(&db, a, "x");
    directory(&db, x, "x");
    db.stores().create("music", "files", None, None).unwrap();
    for path in [
        "/a/1.txt",
        "/a/2.jpg",
        "/a/x/3.txt",
        "/a/x/x/4.txt",
        "/5.txt",
        "/music/6.txt",
    ] {
        db.files().write(path.as_bytes(), path.as_bytes()).unwrap();
    }
    let mut sql = db.sql().open(true).unwrap();
    let mut list = |pattern: &str| {
        let query = format!("SELECT path FROM files('{pattern}') ORDER BY path");
        let found = run(&mut sql, &query).unwrap();
        let paths = found.into_iter().map(|value| match value {
            SqlValue::Text(path) => path,
            other => panic!("{other:?}"),
        });
        paths.collect::<Vec<_>>().join(" ")
    };
    for (pattern, paths) in [
        ("/", "/"),
        ("/*", "/5.txt /a /music"),
        ("/a/*.txt", "/a/1.txt"),
        ("/a/[12].*", "/a/1.txt /a/2.jpg"),
        ("/a/x", "/a/x"),
        ("/*/*.txt", "/a/1.txt /music/6.txt"),
        (
            "/**/*.txt",
            "/5.txt /a/1.txt /a/x/3.txt /a/x/x/4.txt /music/6.txt",
        ),
        (
            "/a/**",
            "/a/1.txt /a/2.jpg /a/x /a/x/3.txt /a/x/x /a/x/x/4.txt",
        ),
        ("/**/x/**/4.txt", "/a/x/x/4.txt"),
        ("/**/x/**/x", "/a/x/x"),
        ("/none/*", ""),
        ("/5.txt/*", ""),
    ] {
        assert_eq!(list(pattern), paths, "{pattern}");
    }
    let row = run(
        &mut sql,
        "SELECT f.store, f.kind, f.size, m.size, f.mtime_ns = m.mtime_ns, content(f.path) FROM \
         files('/a/1*') f JOIN main m USING (ino)",
    );
    let expected = [
        text("main"),
        text("file"),
        integer(8),
        integer(8),
        integer(1),
        blob(b"/a/1.txt"),
    ];
    assert_eq!(row.unwrap(), expected);
    let music = "SELECT path(ino, store) FROM files('/music/*')";
    assert_eq!(one(&mut sql, music), text("/music/6.txt"));
    // A pattern of each row of another table.
    let joined =
        "WITH p(pattern) AS (VALUES ('/a/1*'), ('/5*')) SELECT count(*) FROM p, files(p.pattern)";
    assert_eq!(one(&mut sql, joined), integer(2));
    assert_eq!(
        one(&mut sql, "SELECT count(*) FROM files(NULL)"),
        integer(0)
    );
    assert!(told(&mut sql, "SELECT * FROM files").contains("give it a pattern"));
    assert!(told(&mut sql, "SELECT * FROM files('a*')").contains("not absolute"));
    assert!(told(&mut sql, "SELECT * FROM files(1.5)").contains("the pattern is text, not 1.5"));
}

#[test]
fn a_pattern_with_a_fixed_beginning_reads_no_other_directory() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let wide = directory(&db, R, "wide");
    directory(&db, R, "narrow");
    for number in 0..3000 {
        let name = Name::new(format!("{number}").as_bytes()).unwrap();
        db.nodes()
            .create_node(wide, &name, NewNode::File, 0o644, Caller::current())
            .unwrap();
    }
    db.files().write(b"/narrow/1", b"1").unwrap();
    let mut sql = db.sql().open(true).unwrap();
    let mut time = |pattern: &str, count: i64| {
        let begun = std::time::Instant::now();
        for _ in 0..20 {
            let query = format!("SELECT count(*) FROM files('{pattern}')");
            assert_eq!(one(&mut sql, &query), integer(count));
        }
        begun.elapsed()
    };
    let all = time("/**/[0-9]*", 3001);
    let few = time("/narrow/*", 1);
    assert!(few * 5 < all, "{few:?} against {all:?}");
}

#[test]
fn a_statement_in_a_transaction_sees_what_the_transaction_did() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.files().write(b"/a", b"old").unwrap();
    let other = open(dir.path());
    let txn = db.transactions().begin().unwrap();
    let node = txn.files().write(b"/a", b"new").unwrap().node;
    let created = txn.files().write(b"/b", pattern(20_000, 3)).unwrap().node;
    assert_eq!(ask(&txn, "SELECT content('/a')"), blob(b"new"));
    assert_eq!(
        ask(&txn, &format!("SELECT path({})", created.ino.0)),
        text("/b")
    );
    assert_eq!(
        ask(&txn, "SELECT content(ino) FROM main WHERE size = 20000"),
        blob(&pattern(20_000, 3))
    );
    assert_eq!(ask(&txn, "SELECT count(*) FROM files('/*')"), integer(2));
    txn.sql(
        "CREATE TABLE seen AS SELECT path, content(path) AS bytes FROM files('/*')",
        &[],
    )
    .unwrap();
    assert_eq!(
        ask(&txn, "SELECT bytes FROM seen WHERE path = '/a'"),
        blob(b"new")
    );
    // Others see the moment before.
    assert_eq!(
        one(&mut other.sql().open(true).unwrap(), "SELECT content('/a')"),
        blob(b"old")
    );
    assert_eq!(
        one(&mut other.sql().open(true).unwrap(), "SELECT content('/b')"),
        SqlValue::Null
    );
    txn.commit().unwrap();
    assert_eq!(
        one(
            &mut db.sql().open(true).unwrap(),
            &format!("SELECT content({})", node.ino.0)
        ),
        blob(b"new")
    );
}

#[test]
fn write_content_happens_with_its_statement_or_not_at_all() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.files().write(b"/a", b"a").unwrap();
    db.files().write(b"/b", b"b").unwrap();
    let node = db.nodes().resolve(b"/b", false).unwrap().node;
    let mut sql = db.sql().open(false).unwrap();
    // A statement does not see what it writes itself: it would never end.
    let copied = "SELECT write_content(path || '.copy', content(path) || x'21') FROM files('/*')";
    assert_eq!(run(&mut sql, copied).unwrap(), [integer(2), integer(2)]);
    assert_eq!(db.files().read(b"/a.copy").unwrap(), b"a!");
    assert_eq!(
        one(&mut sql, "SELECT count(*) FROM files('/*')"),
        integer(4)
    );
    // Replacing keeps the inode; the row of the same statement is there with it.
    run(
        &mut sql,
        "CREATE TABLE log (bytes INTEGER CHECK (bytes < 10))",
    )
    .unwrap();
    run(
        &mut sql,
        "INSERT INTO log VALUES (write_content('/b', 'long'))",
    )
    .unwrap();
    assert_eq!(db.nodes().metadata(node).unwrap().size_bytes, 4);
    assert_eq!(one(&mut sql, "SELECT bytes FROM log"), integer(4));
    // The row is refused: no file. The file is refused: no row.
    let refused = "INSERT INTO log VALUES (write_content('/c', 'short')), (write_content('/d', \
        'much too long'))";
    assert!(told(&mut sql, refused).contains("CHECK"));
    assert_eq!(
        kind(db.nodes().resolve(b"/c", false)),
        ErrorKind::NotFound,
        "CONTENT-8"
    );
    db.stores()
        .create("frozen", "readonly", None, Some("main"))
        .unwrap();
    let count = |sql: &mut SqlSession| one(sql, "SELECT count(*) FROM log");
    assert_eq!(count(&mut sql), integer(1));
    for path in ["/frozen/a", "/none/f", "/", "/frozen", "e"] {
        let refused = format!(
            "INSERT INTO log SELECT write_content(v.p, 'x') FROM (SELECT '/e' AS p UNION ALL \
             SELECT '{path}') AS v"
        );
        assert!(run(&mut sql, &refused).is_err(), "{path}");
        assert_eq!(count(&mut sql), integer(1), "CONTENT-8: {path}");
        assert_eq!(
            kind(db.nodes().resolve(b"/e", false)),
            ErrorKind::NotFound,
            "CONTENT-8: {path}"
        );
    }
    let refused = run(&mut sql, "SELECT write_content('/frozen/a', 'x')").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::ReadOnly);
    assert_eq!(db.files().read(b"/a").unwrap(), b"a");
    assert_clean(&db);
}

#[test]
fn files_and_rows_change_together_between_begin_and_commit() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let other = open(dir.path());
    let mut sql = db.sql().open(false).unwrap();
    let script = "CREATE TABLE doc (path TEXT, size INTEGER);
        BEGIN;
        INSERT INTO doc VALUES ('/a', write_content('/a', 'first'));
        SELECT CAST(content('/a') AS TEXT);
        SAVEPOINT before;
        SELECT write_content('/a', 'second'), write_content('/b', x'00ff');
        UPDATE doc SET size = 0;
        ROLLBACK TO before;
        SELECT CAST(content('/a') AS TEXT), content('/b'), size FROM doc";
    let values = run(&mut sql, script).unwrap();
    let expected = [
        text("first"),
        integer(6),
        integer(2),
        text("first"),
        SqlValue::Null,
        integer(5),
    ];
    assert_eq!(values, expected);
    assert!(sql.is_in_transaction());
    assert_eq!(
        kind(other.nodes().resolve(b"/a", false)),
        ErrorKind::NotFound
    );
    assert_eq!(
        one(
            &mut other.sql().open(true).unwrap(),
            "SELECT count(*) FROM doc"
        ),
        integer(0)
    );
    run(&mut sql, "RELEASE before; COMMIT").unwrap();
    assert!(!sql.is_in_transaction());
    assert_eq!(db.files().read(b"/a").unwrap(), b"first");
    assert_eq!(one(&mut sql, "SELECT size FROM doc"), integer(5));
    // ROLLBACK, and a session that goes.
    run(
        &mut sql,
        "BEGIN IMMEDIATE; SELECT write_content('/a', 'gone'); DELETE FROM doc; ROLLBACK",
    )
    .unwrap();
    assert_eq!(one(&mut sql, "SELECT count(*) FROM doc"), integer(1));
    let mut dropped = db.sql().open(false).unwrap();
    run(
        &mut dropped,
        "BEGIN; DELETE FROM doc; SELECT write_content('/a', 'gone')",
    )
    .unwrap();
    drop(dropped);
    assert_eq!(db.files().read(b"/a").unwrap(), b"first");
    assert_eq!(one(&mut sql, "SELECT count(*) FROM doc"), integer(1));
    // A savepoint alone is a transaction too.
    run(
        &mut sql,
        "SAVEPOINT s; SELECT write_content('/c', 'c'); SAVEPOINT t; RELEASE s",
    )
    .unwrap();
    assert_eq!(db.files().read(b"/c").unwrap(), b"c");
    assert!(!sql.is_in_transaction());
    for (wrong, why) in [
        ("COMMIT", "no transaction is active"),
        ("ROLLBACK", "no transaction is active"),
        ("RELEASE s", "no such savepoint"),
        ("BEGIN; BEGIN", "open already"),
        ("RELEASE s", "no savepoint 's'"),
    ] {
        let line = told(&mut sql, wrong);
        assert!(line.contains(why), "{wrong}: {line}");
    }
    run(&mut sql, "END").unwrap();
    // What lasts in an `sqlite3` shell lasts here: in a transaction and outside.
    let lasts =
        "CREATE TEMP TABLE kept AS SELECT 1 AS x; BEGIN; INSERT INTO kept VALUES (2); COMMIT;
        SELECT sum(x), length(content('/c')) FROM kept";
    assert_eq!(run(&mut sql, lasts).unwrap(), [integer(3), integer(1)]);
    assert_clean(&db);
}

#[test]
fn two_sessions_that_conflict_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let other = open(dir.path());
    db.files().write(b"/a", b"1").unwrap();
    db.sync().unwrap();
    let mut sql = db.sql().open(false).unwrap();
    run(&mut sql, "BEGIN; SELECT content('/a')").unwrap();
    run(
        &mut other.sql().open(false).unwrap(),
        "SELECT write_content('/a', '2')",
    )
    .unwrap();
    let refused = run(&mut sql, "SELECT write_content('/a', content('/a') || 'x')").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "CONTENT-6");
    assert!(!sql.is_in_transaction(), "it was rolled back");
    run(&mut sql, "SELECT write_content('/a', content('/a') || '3')").unwrap();
    assert_eq!(other.files().read(b"/a").unwrap(), b"23");
}

#[test]
fn mistakes_are_told() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let sub = directory(&db, R, "d");
    db.files().write(b"/a", b"a").unwrap();
    let mut sql = db.sql().open(false).unwrap();
    for (wrong, why) in [
        (
            "SELECT content('/d')",
            "content('/d'): it is a dir, and only regular files have content",
        ),
        ("SELECT content(1)", "content(1): it is a dir"),
        (
            "SELECT content('a')",
            "'a' is not absolute; begin it with '/'",
        ),
        (
            "SELECT content(1.5)",
            "content: the file is the number of an inode, or a path, not 1.5",
        ),
        (
            "SELECT content('/a', -1, 2)",
            "content: the offset is a whole number from 0 on, not -1",
        ),
        (
            "SELECT content('/a', 0, 'x')",
            "content: the length is a whole number from 0 on, not 'x'",
        ),
        (
            "SELECT content()",
            "wrong number of arguments to function content()",
        ),
        (
            "SELECT path('/a')",
            "path: the argument is the number of an inode, not '/a'",
        ),
        ("SELECT path(1, 'none')", "there is no store 'none'"),
        ("SELECT ino(1)", "ino: the argument is a path, not 1"),
        (
            "SELECT write_content('/b', NULL)",
            "the content for '/b' is NULL",
        ),
        (
            "SELECT write_content('/b', 1)",
            "content is text or a blob (CAST it), not 1",
        ),
        (
            "SELECT write_content(1, 'x')",
            "write_content: the file is a path, not 1",
        ),
        (
            "SELECT write_content('/d', 'x')",
            "write_content('/d'): it is a dir",
        ),
        (
            "SELECT 1; SELECT\n content(nowhere)",
            "line 2 column 10: no such column: nowhere",
        ),
        (
            "BEGIN; SELECT 1;\nSELEC 2",
            "line 2 column 1: near \"SELEC\": syntax error",
        ),
    ] {
        let line = told(&mut sql, &wrong.replace("\\n", "\n"));
        assert!(line.contains(why), "{wrong}: {line}");
    }
    run(&mut sql, "ROLLBACK").unwrap();
    let found = run(&mut sql, "SELECT 1;\n  SELECT nowhere FROM main").unwrap_err();
    assert_eq!(found.position(), Some((2, 10)));
    assert_eq!(found.kind(), ErrorKind::Sql);
    // Triggers, views and constraints cannot use what other SQLites do not have.
    run(&mut sql, "CREATE VIEW v AS SELECT content('/a')").unwrap();
    let line = told(&mut sql, "SELECT * FROM v");
    assert!(line.contains("unsafe use of content()"), "{line}");
    // Nothing of this is too long for one value; more would be.
    let handle = db
        .nodes()
        .create_file(sub, &name("huge"), 0o644, OWNER, true)
        .unwrap()
        .1;
    handle.set_len(1_000_000_001).unwrap();
    drop(handle);
    let line = told(&mut sql, "SELECT content('/d/huge')");
    assert!(
        line.contains("read parts: content(file, offset, length)"),
        "{line}"
    );
    assert_eq!(
        one(&mut sql, "SELECT content('/d/huge', 1000000000, 5)"),
        blob(&[0])
    );
    let transaction = db.transactions().begin().unwrap();
    let refused = transaction.sql("SELECT content('/d')", &[]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::IsADirectory);
    assert_eq!(
        ask(&transaction, "SELECT content('/a')"),
        blob(b"a"),
        "it goes on"
    );
}

#[test]
fn a_statement_alone_sees_what_was_done_before_in_this_process() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let mut sql = db.sql().open(true).unwrap();
    let names = "SELECT count(*) FROM main_dirent";
    for count in 1..=5 {
        db.files().write(format!("/{count}"), b"new").unwrap();
        assert_eq!(one(&mut sql, names), SqlValue::Integer(count));
    }
    db.files().remove_file("/1").unwrap();
    assert_eq!(one(&mut sql, names), SqlValue::Integer(4));
}

/// Who has a transaction open, in which it has written, asks beside it: of the transaction it sees
/// nothing, of what was answered before all, and nobody waits for himself.
#[test]
fn a_statement_alone_waits_for_no_transaction_of_its_thread() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let mut sql = db.sql().open(true).unwrap();
    let mut writing = db.sql().open(false).unwrap();
    let names = "SELECT count(*) FROM main_dirent";
    db.files().write("/before", "before").unwrap();
    run(&mut writing, "BEGIN; SELECT write_content('/in', 'in')").unwrap();
    assert_eq!(one(&mut sql, names), SqlValue::Integer(1));
    let transaction = db.transactions().begin();
    assert_eq!(one(&mut sql, names), SqlValue::Integer(1));
    drop(transaction);
    run(&mut writing, "COMMIT").unwrap();
    assert_eq!(one(&mut sql, names), SqlValue::Integer(2));
    let transaction = db.transactions().begin().unwrap();
    transaction.files().write("/api", "api").unwrap();
    assert_eq!(one(&mut sql, names), SqlValue::Integer(2));
    transaction.commit().unwrap();
    assert_eq!(one(&mut sql, names), SqlValue::Integer(3));
    drop((sql, writing));
    db.close().unwrap();
}

#[test]
fn a_read_only_session_writes_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.files().write(b"/a", b"a").unwrap();
    let mut sql = db.sql().open(true).unwrap();
    for wrong in [
        "SELECT write_content('/a', 'b')",
        "UPDATE main SET mode = 0",
        "PRAGMA query_only = 0; CREATE TABLE t(x)",
        "BEGIN IMMEDIATE",
        "BEGIN; UPDATE main SET mode = 0",
        "SELECT write_content('/a', 'b')",
        "CREATE TABLE t AS SELECT content('/a')",
        "PRAGMA user_version = 99",
    ] {
        let refused = run(&mut sql, wrong).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::ReadOnly, "{wrong}");
    }
    assert!(sql.is_in_transaction());
    assert_eq!(
        run(&mut sql, "SELECT content('/a'); COMMIT").unwrap(),
        [blob(b"a")]
    );
    assert_eq!(db.files().read(b"/a").unwrap(), b"a");
}
