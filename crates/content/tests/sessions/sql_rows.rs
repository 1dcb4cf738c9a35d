//! SQL over content: keys between files and rows, user columns, full-text search, long
//! transactions.

use crate::common::sql::*;
use crate::common::*;
use larder::{ErrorKind, NodeId};

const R: NodeId = NodeId::ROOT;

#[test]
fn rows_go_with_their_file_or_keep_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.files().write(b"/kept", b"1").unwrap();
    db.files().write(b"/free", b"2").unwrap();
    db.sync().unwrap();
    let mut sql = db.sql().open(false).unwrap();
    let schema = "CREATE TABLE album_photo (photo INTEGER REFERENCES main(ino) ON DELETE RESTRICT);
        CREATE TABLE note (file INTEGER REFERENCES main ON DELETE CASCADE, text);
        INSERT INTO album_photo SELECT ino('/kept');
        INSERT INTO note SELECT ino, path FROM files('/*')";
    run(&mut sql, schema).unwrap();
    let txn = db.transactions().begin().unwrap();
    let refused = txn.nodes().unlink(R, &name("kept")).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotPermitted);
    let line = refused.to_string();
    assert!(
        line.contains("album_photo: FOREIGN KEY constraint failed: inode")
            && line.contains("is referenced by photo of 1 rows"),
        "{line}"
    );
    txn.nodes().unlink(R, &name("free")).unwrap();
    txn.commit().unwrap();
    // The row goes with the inode, which goes when nobody can have it open any more.
    let begun = std::time::Instant::now();
    while one(&mut sql, "SELECT group_concat(text) FROM note") != text("/kept") {
        assert!(
            begun.elapsed() < std::time::Duration::from_secs(5),
            "the row goes with the file"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    assert_eq!(db.files().read(b"/kept").unwrap(), b"1");
    assert_clean(&db);
}

#[test]
fn files_go_with_the_row_that_they_depend_on() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let sub = directory(&db, R, "d");
    let data = pattern(100_000, 5);
    for path in ["/a", "/b", "/d/c", "/kept"] {
        db.files().write(path.as_bytes(), &data).unwrap();
    }
    let a = db.nodes().resolve(b"/a", false).unwrap().node;
    db.nodes().link(a, sub, &name("also-a")).unwrap();
    db.sync().unwrap();
    let mut sql = db.sql().open(false).unwrap();
    let schema = "CREATE TABLE album (id INTEGER PRIMARY KEY);
        ALTER TABLE main ADD COLUMN album INTEGER REFERENCES album(id) ON DELETE CASCADE;
        CREATE TABLE print (photo INTEGER REFERENCES main(ino) ON DELETE RESTRICT);
        CREATE TABLE note (photo INTEGER REFERENCES main(ino) ON DELETE CASCADE);
        INSERT INTO album VALUES (1), (2), (3);
        UPDATE main SET album = 1 WHERE ino IN (ino('/a'), ino('/d'), ino('/d/c'));
        UPDATE main SET album = 2 WHERE ino = ino('/b');
        INSERT INTO print SELECT ino('/b'); INSERT INTO note SELECT ino('/a')";
    run(&mut sql, schema).unwrap();
    let gone = |path: &str| match db.nodes().resolve(path.as_bytes(), false) {
        Ok(_) => false,
        Err(error) => error.kind() == ErrorKind::NotFound,
    };
    // What is restricted keeps all: file, row, and what the statement did besides.
    let refused = run(&mut sql, "DELETE FROM album").unwrap_err();
    assert!(refused.to_string().contains("FOREIGN KEY"), "{refused}");
    assert_eq!(one(&mut sql, "SELECT count(*) FROM album"), integer(3));
    assert_eq!(
        one(
            &mut sql,
            "SELECT count(*) FROM main WHERE album IS NOT NULL"
        ),
        integer(4)
    );
    for path in ["/a", "/b", "/d/c"] {
        assert_eq!(db.files().read(path.as_bytes()).unwrap(), data, "CONTENT-8");
    }
    // In a transaction, taken back.
    for _ in 0..2 {
        let txn = db.transactions().begin().unwrap();
        let delete = "DELETE FROM album WHERE id = ?1";
        let deleted = txn.sql(delete, &[integer(1)]).unwrap();
        assert_eq!(deleted.changed_count, 1);
        assert_eq!(kind(txn.nodes().resolve(b"/a", false)), ErrorKind::NotFound);
        assert_eq!(ask(&txn, "SELECT count(*) FROM files('/**')"), integer(2));
        txn.abort();
        assert_eq!(db.files().read(b"/d/also-a").unwrap(), data);
    }
    // Files in directories that go too, with all their names.
    let changed = sql
        .execute("DELETE FROM album WHERE id <> 2", &mut |_| Ok(()))
        .unwrap();
    assert_eq!(changed, 2);
    assert!(gone("/a") && gone("/d") && !gone("/b") && !gone("/kept"));
    assert_eq!(
        one(&mut sql, "SELECT group_concat(id) FROM album"),
        text("2")
    );
    let begun = std::time::Instant::now();
    let left = "SELECT (SELECT count(*) FROM note) + (SELECT count(*) FROM main WHERE nlink = 0)";
    while one(&mut sql, left) != integer(0) {
        assert!(
            begun.elapsed() < std::time::Duration::from_secs(5),
            "rows and space come back"
        );
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
    // A directory that is not empty stays, and so does the row.
    let other = directory(&db, R, "e");
    put(&db, other, "f", b"f");
    db.sync().unwrap();
    run(
        &mut sql,
        "INSERT INTO album VALUES (4); UPDATE main SET album = 4 WHERE ino = ino('/e')",
    )
    .unwrap();
    let refused = run(&mut sql, "DELETE FROM album WHERE id = 4").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::NotEmpty);
    assert_eq!(
        one(&mut sql, "SELECT count(*) FROM main WHERE album = 4"),
        integer(1),
        "CONTENT-8"
    );
    // Rows of files themselves are no rows to delete, nor is a whole table.
    for wrong in ["DELETE FROM main WHERE size = 100000", "DROP TABLE album"] {
        let refused = told(&mut sql, wrong);
        assert!(
            refused.contains("a row of main is a file; delete it"),
            "{refused}"
        );
    }
    assert_eq!(db.files().read(b"/b").unwrap(), data);
    assert_clean(&db);
}

#[test]
fn user_columns_are_typed_attributes() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let node = db.files().write(b"/a", b"a").unwrap().node;
    db.sync().unwrap();
    let mut sql = db.sql().open(false).unwrap();
    let schema = "ALTER TABLE main ADD COLUMN rating INTEGER CHECK (rating BETWEEN 1 AND 5);
        ALTER TABLE main ADD COLUMN weight REAL; ALTER TABLE main ADD COLUMN title TEXT";
    run(&mut sql, schema).unwrap();
    let set = |name: &str, value: &[u8]| {
        let name = format!("user.column.{name}");
        db.attributes()
            .set(node, name.as_bytes(), value, larder::XattrMode::Set)
    };
    set("rating", b"4").unwrap();
    set("weight", b"2").unwrap();
    set("title", b"4").unwrap();
    let types = "SELECT typeof(rating), typeof(weight), typeof(title) FROM main WHERE rating = 4";
    assert_eq!(
        run(&mut sql, types).unwrap(),
        [text("integer"), text("real"), text("text")]
    );
    let refused = set("rating", b"9").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Sql);
    assert!(
        refused.to_string().contains("rating BETWEEN 1 AND 5"),
        "{refused}"
    );
    assert_eq!(
        db.attributes().get(node, b"user.column.rating").unwrap(),
        b"4"
    );
    assert_eq!(db.attributes().list(node).unwrap().len(), 3);
    run(
        &mut sql,
        "UPDATE main SET rating = NULL, weight = 1.5 WHERE rating = 4",
    )
    .unwrap();
    assert_eq!(
        kind(db.attributes().get(node, b"user.column.rating")),
        ErrorKind::NoAttribute
    );
    assert_eq!(
        db.attributes().get(node, b"user.column.weight").unwrap(),
        b"1.5"
    );
    assert_eq!(db.attributes().list(node).unwrap().len(), 2);
    // The same in a transaction, taken back.
    let txn = db.transactions().begin().unwrap();
    txn.attributes()
        .set(
            node,
            b"user.column.title",
            b"new",
            larder::XattrMode::Replace,
        )
        .unwrap();
    assert_eq!(
        ask(&txn, "SELECT title FROM main WHERE weight = 1.5"),
        text("new")
    );
    txn.abort();
    assert_eq!(
        db.attributes().get(node, b"user.column.title").unwrap(),
        b"4"
    );
}

#[test]
fn the_example_of_full_text_search_works() {
    let example = include_str!("../../../../docs/examples/fulltext.sql");
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    directory(&db, R, "notes");
    let mut sql = db.sql().open(false).unwrap();
    let found = run(&mut sql, example).unwrap();
    let expected = [
        text("/notes/larder.txt"),
        text("a [cool] place for [food]."),
        text("/notes/sea.txt"),
        text("/notes/larder.txt"),
    ];
    assert_eq!(found, expected);
    // By the API: file and index in one commit, or neither.
    let find = "SELECT path(rowid) FROM note_text WHERE note_text MATCH 'storm'";
    let index = "INSERT INTO note_text (rowid, body) SELECT ino, CAST(content(ino) AS TEXT) FROM \
        files('/notes/storm.txt')";
    let txn = db.transactions().begin().unwrap();
    txn.files()
        .write(b"/notes/storm.txt", b"a storm at sea")
        .unwrap();
    txn.sql(index, &[]).unwrap();
    assert_eq!(ask(&txn, find), text("/notes/storm.txt"));
    assert_eq!(run(&mut sql, find).unwrap(), []);
    txn.abort();
    assert_eq!(run(&mut sql, find).unwrap(), []);
    db.transactions()
        .run(|txn| {
            txn.files().write(b"/notes/storm.txt", b"a storm at sea")?;
            txn.sql(index, &[]).map(drop)
        })
        .unwrap();
    assert_eq!(run(&mut sql, find).unwrap(), [text("/notes/storm.txt")]);
    assert_clean(&db);
}

#[test]
fn files_are_written_by_sql_in_a_long_transaction_too() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.files().write(b"/a", b"old").unwrap();
    run(
        &mut db.sql().open(false).unwrap(),
        "CREATE TABLE t (x INTEGER PRIMARY KEY)",
    )
    .unwrap();
    let long = db.transactions().begin_long("test").unwrap();
    let mut sql = long.database().unwrap().sql().open(false).unwrap();
    let script = "INSERT INTO t VALUES (write_content('/b', content('/a') || '!'));
        BEGIN; SELECT write_content('/a', 'new'); COMMIT; SELECT CAST(content('/b') AS TEXT)";
    assert_eq!(run(&mut sql, script).unwrap(), [integer(3), text("old!")]);
    drop(sql);
    assert_eq!(kind(db.nodes().resolve(b"/b", false)), ErrorKind::NotFound);
    assert_eq!(
        long.commit().unwrap(),
        larder::TransactionOutcome::Committed
    );
    // Another session's commit, seen within its look of 20 ms.
    let begun = std::time::Instant::now();
    while db.files().read(b"/b").ok().as_deref() != Some(b"old!") {
        assert!(begun.elapsed() < std::time::Duration::from_secs(30));
        std::thread::sleep(std::time::Duration::from_millis(5));
    }
    assert_eq!(db.files().read(b"/a").unwrap(), b"new");
    assert_clean(&db);
}
