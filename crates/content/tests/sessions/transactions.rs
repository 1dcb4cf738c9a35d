//! Transactions over files and rows: all or nothing, of one moment, and one after the other.

use crate::common::*;
use larder::{Database, ErrorKind, NodeId, SqlValue, Transaction, TransactionOptions};
use std::path::Path;
use std::time::{Duration, Instant};

const R: NodeId = NodeId::ROOT;

fn integer(value: i64) -> SqlValue {
    SqlValue::Integer(value)
}

/// The first value of the first row.
fn ask(db: &Database, sql: &str) -> Option<SqlValue> {
    let mut found = None;
    let mut session = db.sql().open(true).unwrap();
    session
        .execute(sql, &mut |row| {
            found = found.take().or(row.values.into_iter().next());
            Ok(())
        })
        .unwrap();
    found
}

fn ask_in(txn: &Transaction, sql: &str) -> Option<SqlValue> {
    let result = txn.sql(sql, &[]).unwrap();
    result.rows.into_iter().next()?.values.into_iter().next()
}

fn run(db: &Database, sql: &str) {
    db.sql()
        .open(false)
        .unwrap()
        .execute(sql, &mut |_| Ok(()))
        .unwrap();
}

/// The same by a connection that knows nothing of Larder.
fn plain(dir: &Path, sql: &str) -> String {
    let output = std::process::Command::new("sqlite3")
        .args(["-cmd", ".timeout 5000"])
        .arg(dir.join("t.larder/catalog.db"))
        .arg(sql)
        .output()
        .unwrap();
    assert!(output.status.success(), "{output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn exists(db: &Database, path: &str) -> bool {
    match db.nodes().resolve(path.as_bytes(), false) {
        Ok(_) => true,
        Err(error) if error.kind() == ErrorKind::NotFound => false,
        Err(error) => panic!("{error}"),
    }
}

fn live_bytes(db: &Database) -> u64 {
    db.maintenance().space().unwrap().live_bytes
}

#[test]
fn files_and_rows_are_committed_together_and_seen_by_nobody_before() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    run(
        &db,
        "CREATE TABLE note (path TEXT, size INTEGER); ALTER TABLE main ADD COLUMN title TEXT",
    );
    let other = open(dir.path());
    let txn = db.transactions().begin().unwrap();
    let data = pattern(50_000, 1);
    let node = txn.files().write(b"/a.jpg", &data).unwrap().node;
    let ino = integer(node.ino.0 as i64);
    let changed = txn
        .sql("UPDATE main SET title = 'one' WHERE ino = ?", &[ino])
        .unwrap()
        .changed_count;
    assert_eq!(changed, 1, "SQL sees the file");
    txn.sql(
        "INSERT INTO note SELECT 'a.jpg', size FROM main WHERE title = 'one'",
        &[],
    )
    .unwrap();
    assert_eq!(txn.files().read(b"/a.jpg").unwrap(), data);
    assert_eq!(
        txn.attributes().get(node, b"user.column.title").unwrap(),
        b"one"
    );
    assert_eq!(ask_in(&txn, "SELECT size FROM note"), Some(integer(50_000)));
    for reader in [&db, &other] {
        assert!(!exists(reader, "/a.jpg"), "CONTENT-6");
        assert_eq!(ask(reader, "SELECT count(*) FROM note"), Some(integer(0)));
    }
    assert_eq!(plain(dir.path(), "SELECT count(*) FROM note"), "0");
    txn.commit().unwrap();
    assert_eq!(db.files().read(b"/a.jpg").unwrap(), data, "CONTENT-6");
    assert_eq!(ask(&db, "SELECT size FROM note"), Some(integer(50_000)));
    assert_eq!(
        plain(dir.path(), "SELECT title FROM main WHERE title IS NOT NULL"),
        "one"
    );
    let patience = Instant::now();
    while !exists(&other, "/a.jpg") {
        assert!(patience.elapsed() < Duration::from_secs(30), "CONTENT-6");
        std::thread::sleep(Duration::from_millis(5));
    }
    assert_eq!(other.files().read(b"/a.jpg").unwrap(), data);
    assert_clean(&db);
}

#[test]
fn an_aborted_transaction_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    run(&db, "CREATE TABLE note (path TEXT)");
    db.files().write(b"/kept", pattern(100_000, 1)).unwrap();
    db.sync().unwrap();
    let before = live_bytes(&db);
    for round in 0..3 {
        let txn = db.transactions().begin().unwrap();
        let big = pattern(5 << 20, round);
        txn.files().write(b"/big", &big).unwrap();
        txn.files().write(b"/kept", pattern(9000, round)).unwrap();
        txn.sql("INSERT INTO note VALUES ('x')", &[]).unwrap();
        txn.nodes().unlink(R, &name("kept")).unwrap();
        match round {
            0 => txn.abort(),
            1 => drop(txn),
            _ => {
                // A later change after the rows were handed to the catalog.
                txn.files().write(b"/again", pattern(3000, 1)).unwrap();
                txn.abort();
                let refused = txn.files().write(b"/late", b"x").unwrap_err();
                assert_eq!(refused.kind(), ErrorKind::InvalidInput, "CONTENT-7");
                assert!(refused.to_string().contains("aborted"), "{refused}");
                let refused = txn.commit().unwrap_err();
                assert!(refused.to_string().contains("aborted"), "{refused}");
            }
        }
        assert_eq!(live_bytes(&db), before, "PRIVATE-3");
        assert!(!exists(&db, "/big") && !exists(&db, "/again"));
        assert_eq!(db.files().read(b"/kept").unwrap(), pattern(100_000, 1));
        assert_eq!(ask(&db, "SELECT count(*) FROM note"), Some(integer(0)));
        assert_clean(&db);
    }
    // Space and numbers are used again by others and by later transactions.
    db.files().write(b"/after", pattern(100_000, 5)).unwrap();
    let txn = db.transactions().begin().unwrap();
    txn.files().write(b"/after2", pattern(100_000, 6)).unwrap();
    txn.commit().unwrap();
    assert_eq!(db.files().read(b"/after").unwrap(), pattern(100_000, 5));
    assert_eq!(db.files().read(b"/after2").unwrap(), pattern(100_000, 6));
    assert_clean(&db);
}

#[test]
fn a_transaction_reads_one_moment_and_what_was_done_before_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.files().write(b"/f", b"old").unwrap();
    let txn = db.transactions().begin().unwrap();
    assert_eq!(
        txn.files().read(b"/f").unwrap(),
        b"old",
        "what was not committed yet"
    );
    let data = pattern(300_000, 2);
    db.files().write(b"/f", &data).unwrap();
    db.files().write(b"/new", &data).unwrap();
    db.sync().unwrap();
    assert_eq!(txn.files().read(b"/f").unwrap(), b"old", "CONTENT-6");
    assert!(!exists(&txn, "/new"), "CONTENT-6");
    assert_eq!(
        ask_in(&txn, "SELECT count(*) FROM main_dirent"),
        Some(integer(1))
    );
    txn.commit().unwrap();
    let txn = db.transactions().begin().unwrap();
    assert_eq!(txn.files().read(b"/f").unwrap(), data);
    // What it reads is not reused while others replace it again and again.
    for round in 0..20 {
        db.files()
            .write(b"/f", pattern(300_000, 100 + round))
            .unwrap();
        db.sync().unwrap();
    }
    assert_eq!(txn.files().read(b"/f").unwrap(), data, "SESSION-2");
    drop(txn);
    assert_clean(&db);
}

#[test]
fn of_two_that_conflict_one_commits() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let other = open(dir.path());
    make_dir(&db, "d");
    db.files().write(b"/d/n", b"1").unwrap();
    db.sync().unwrap();
    for rival in [&db, &other] {
        wait_until(|| rival.files().read(b"/d/n").is_ok());
        let (first, second) = (
            db.transactions().begin().unwrap(),
            rival.transactions().begin().unwrap(),
        );
        let seen: Vec<u8> = first.files().read(b"/d/n").unwrap();
        assert_eq!(second.files().read(b"/d/n").unwrap(), seen);
        second.files().write(b"/d/n", b"second").unwrap();
        second.commit().unwrap();
        let refused = first.files().write(b"/d/n", b"first").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert!(refused.to_string().contains("'/d/n'"), "{refused}");
        assert_eq!(kind(first.commit()), ErrorKind::Conflict, "CONTENT-7");
        wait_until(|| db.files().read(b"/d/n").unwrap() == b"second");
        db.files().write(b"/d/n", b"1").unwrap();
        db.sync().unwrap();
        wait_until(|| other.files().read(b"/d/n").unwrap() == b"1");
    }
    // Rows that were read by SQL.
    run(&db, "CREATE TABLE n (v INTEGER); INSERT INTO n VALUES (1)");
    let txn = db.transactions().begin().unwrap();
    assert_eq!(ask_in(&txn, "SELECT v FROM n"), Some(integer(1)));
    plain(dir.path(), "UPDATE n SET v = 2");
    let refused = txn.sql("UPDATE n SET v = 10", &[]).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    // Changes elsewhere are no conflict.
    let txn = db.transactions().begin().unwrap();
    assert_eq!(txn.files().read(b"/d/n").unwrap(), b"1");
    other.files().write(b"/elsewhere", b"x").unwrap();
    other.sync().unwrap();
    txn.files().write(b"/d/n", b"2").unwrap();
    txn.commit().unwrap();
    assert_eq!(db.files().read(b"/d/n").unwrap(), b"2");
    assert!(exists(&db, "/elsewhere"), "PRIVATE-5");
    // But a listing was of all names; and a name that was not there.
    for look in [list_root as fn(&Database), look_for_it] {
        let txn = db.transactions().begin().unwrap();
        look(&txn);
        other.files().write(b"/it", b"x").unwrap();
        other.sync().unwrap();
        assert_eq!(
            kind(txn.files().write(b"/d/n", b"3")),
            ErrorKind::Conflict,
            "PRIVATE-5"
        );
        other.nodes().unlink(R, &name("it")).unwrap();
        other.sync().unwrap();
        wait_until(|| !exists(&db, "/it"));
    }
    assert_clean(&db);
}

fn list_root(db: &Database) {
    assert!(!db.nodes().read_dir(R, None, 10).unwrap().is_empty());
}

fn look_for_it(db: &Database) {
    assert!(!exists(db, "/it"));
}

fn make_dir(db: &Database, text: &str) {
    db.nodes()
        .create_node(R, &name(text), larder::NewNode::Directory, 0o755, OWNER)
        .unwrap();
}

fn wait_until(mut is_true: impl FnMut() -> bool) {
    let patience = Instant::now();
    while !is_true() {
        assert!(patience.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Adds one to a number in a file and one in a row.
fn count_up(txn: &Transaction, path: &[u8]) -> larder::Result<()> {
    let text = String::from_utf8(txn.files().read(path)?).unwrap();
    let value: u64 = text.parse().unwrap();
    txn.files()
        .write(path, (value + 1).to_string().as_bytes())?;
    txn.sql("UPDATE counter SET v = v + 1", &[])?;
    Ok(())
}

#[test]
fn no_update_is_lost() {
    const THREADS: u64 = 4;
    const ROUNDS: u64 = 50;
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    run(
        &db,
        "CREATE TABLE counter (v INTEGER); INSERT INTO counter VALUES (0)",
    );
    db.files().write(b"/n", b"0").unwrap();
    let other = open(dir.path());
    std::thread::scope(|scope| {
        for thread in 0..THREADS {
            let db = if thread % 2 == 0 { &db } else { &other };
            scope.spawn(move || {
                for _ in 0..ROUNDS {
                    db.transactions().run(|txn| count_up(txn, b"/n")).unwrap();
                }
            });
        }
        // A reader meanwhile: both numbers are of one moment.
        let db = &db;
        scope.spawn(move || {
            for _ in 0..200 {
                let txn = db.transactions().begin().unwrap();
                let text = String::from_utf8(txn.files().read(b"/n").unwrap()).unwrap();
                let Some(SqlValue::Integer(row)) = ask_in(&txn, "SELECT v FROM counter") else {
                    panic!("no row");
                };
                assert_eq!(text, row.to_string(), "CONTENT-6");
            }
        });
    });
    let total = (THREADS * ROUNDS).to_string();
    let read = db.transactions().begin().unwrap();
    assert_eq!(
        String::from_utf8(read.files().read(b"/n").unwrap()).unwrap(),
        total
    );
    drop(read);
    assert_eq!(
        ask(&db, "SELECT v FROM counter"),
        Some(integer((THREADS * ROUNDS) as i64))
    );
    assert_clean(&db);
}

/// What was taken back, and what came before and after it.
#[test]
fn savepoints_take_back_files_and_rows() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    run(&db, "CREATE TABLE note (v INTEGER)");
    let txn = db.transactions().begin().unwrap();
    let empty = txn.savepoint().unwrap();
    txn.files().write(b"/a", pattern(20_000, 1)).unwrap();
    txn.sql("INSERT INTO note VALUES (1)", &[]).unwrap();
    let handle = txn
        .nodes()
        .open(txn.nodes().resolve(b"/a", true).unwrap().node, true)
        .unwrap();
    let middle = txn.savepoint().unwrap();
    handle.write_at(5000, &pattern(20_000, 2)).unwrap();
    txn.files().write(b"/b", pattern(70_000, 3)).unwrap();
    txn.sql(
        "INSERT INTO note VALUES (2); ALTER TABLE main ADD COLUMN gone TEXT",
        &[],
    )
    .unwrap();
    let late = txn.savepoint().unwrap();
    txn.nodes().unlink(R, &name("a")).unwrap();
    txn.roll_back_to(middle).unwrap();
    assert_eq!(kind(txn.roll_back_to(late)), ErrorKind::InvalidInput);
    assert_eq!(txn.files().read(b"/a").unwrap(), pattern(20_000, 1));
    assert!(!exists(&txn, "/b"));
    assert_eq!(
        ask_in(&txn, "SELECT group_concat(v) FROM note"),
        Some(SqlValue::Text("1".into()))
    );
    assert_eq!(kind(txn.sql("SELECT gone FROM main", &[])), ErrorKind::Sql);
    // A handle from before goes on; the number of /b is given out again.
    handle.write_at(20_000, b"more").unwrap();
    let c = txn.files().write(b"/c", pattern(9000, 4)).unwrap().node;
    let inner = txn.savepoint().unwrap();
    txn.files().write(b"/d", b"d").unwrap();
    txn.release(inner).unwrap();
    assert_eq!(kind(txn.roll_back_to(inner)), ErrorKind::InvalidInput);
    txn.commit().unwrap();
    assert_eq!(
        kind(handle.write_at(0, b"x")),
        ErrorKind::InvalidInput,
        "CONTENT-7"
    );
    assert_eq!(db.files().read(b"/a").unwrap().len(), 20_004);
    assert_eq!(content(&db, c), pattern(9000, 4));
    assert_eq!(db.files().read(b"/d").unwrap(), b"d");
    assert!(!exists(&db, "/b"));
    // All of it, back to where nothing was changed.
    let txn = db.transactions().begin().unwrap();
    let start = txn.savepoint().unwrap();
    txn.nodes().unlink(R, &name("c")).unwrap();
    txn.roll_back_to(start).unwrap();
    txn.commit().unwrap();
    assert_eq!(content(&db, c), pattern(9000, 4));
    assert_ne!(empty, start);
    assert_clean(&db);
}

#[test]
fn mistakes_are_told_and_the_transaction_goes_on() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.stores()
        .create("view", "readonly", None, Some("main"))
        .unwrap();
    run(
        &db,
        "ALTER TABLE main ADD COLUMN title TEXT CHECK (title <> 'bad')",
    );
    let txn = db.transactions().begin().unwrap();
    let node = txn.files().write(b"/f", b"x").unwrap().node;
    let wrong = txn
        .sql("SELECT 1;\nSELECT absent FROM main", &[])
        .unwrap_err();
    assert_eq!(wrong.kind(), ErrorKind::Sql);
    assert!(wrong.to_string().contains("line 2 column 8"), "{wrong}");
    let wrong = txn.sql("SELECT absent FROM main;", &[]).unwrap_err();
    assert!(wrong.to_string().contains("line 1 column 8"), "{wrong}");
    assert_eq!(
        kind(txn.files().write(b"/view/f", b"x")),
        ErrorKind::ReadOnly
    );
    for refused in [
        "COMMIT",
        "ROLLBACK",
        "BEGIN",
        "SAVEPOINT x",
        "SELECT 1; COMMIT",
        "ATTACH ':memory:' AS m",
        "PRAGMA synchronous = OFF",
        "CREATE TEMP TABLE t (x)",
        "UPDATE main SET size = 0",
        "DELETE FROM main_dirent",
        "UPDATE main SET title = 'bad'",
        "SELECT ?1",
    ] {
        let error = txn.sql(refused, &[]).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Sql, "{refused}: {error}");
    }
    assert_eq!(
        kind(txn.transactions().begin().map(drop)),
        ErrorKind::Unsupported
    );
    assert_eq!(
        kind(txn.maintenance().check(false, &mut |_, _| {})),
        ErrorKind::Unsupported
    );
    let rows = txn
        .sql(
            "SELECT ?1 + ?2, typeof(?3)",
            &[integer(1), integer(2), SqlValue::Null],
        )
        .unwrap()
        .rows;
    assert_eq!(rows[0].values, [integer(3), SqlValue::Text("null".into())]);
    txn.commit().unwrap();
    assert_eq!(kind(txn.commit()), ErrorKind::InvalidInput);
    assert_eq!(content(&db, node), b"x");
    assert_clean(&db);
}

/// What the guards refuse is refused though the engine's own steps run without them; and so is what
/// comes to a guarded table by a foreign key.
#[test]
fn the_guards_stand_between_steps() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    run(
        &db,
        "CREATE TABLE owner (id INTEGER PRIMARY KEY, n INTEGER); INSERT INTO owner VALUES (1, 0); \
         ALTER TABLE main ADD COLUMN owner INTEGER REFERENCES owner (id) ON DELETE CASCADE",
    );
    let node = put(&db, R, "f", &pattern(9000, 1));
    db.sync().unwrap();
    run(&db, "UPDATE main SET owner = 1 WHERE ino > 1");
    for round in 0..3 {
        let txn = db.transactions().begin().unwrap();
        txn.files()
            .write(format!("/{round}").as_bytes(), b"x")
            .unwrap();
        for free in [
            "UPDATE owner SET n = n + 1",
            "UPDATE main SET owner = owner",
        ] {
            txn.sql(free, &[]).unwrap();
        }
        for guarded in [
            "UPDATE main SET owner = 1, size = 7",
            "INSERT INTO main_dirent VALUES (1, 'x', 2)",
            "DELETE FROM larder_extent",
        ] {
            let refused = txn.sql(guarded, &[]).unwrap_err();
            assert_eq!(
                refused.kind(),
                ErrorKind::Sql,
                "CATALOG-3: {guarded}: {refused}"
            );
        }
        // A chmod by SQL is one.
        txn.sql("UPDATE main SET mode = 448 WHERE ino > 1", &[])
            .unwrap();
        assert_eq!(txn.nodes().metadata(node).unwrap().mode, 0o700);
        txn.commit().unwrap();
        assert_eq!(db.nodes().metadata(node).unwrap().mode, 0o700);
    }
    // A trigger that the transaction makes itself takes part from then on.
    let txn = db.transactions().begin().unwrap();
    txn.files().write(b"/before", b"x").unwrap();
    txn.sql("CREATE TABLE seen (ino INTEGER)", &[]).unwrap();
    txn.sql(
        "CREATE TRIGGER see AFTER INSERT ON main BEGIN INSERT INTO seen VALUES (NEW.ino); END",
        &[],
    )
    .unwrap();
    txn.files().write(b"/after", b"x").unwrap();
    assert_eq!(ask_in(&txn, "SELECT count(*) FROM seen"), Some(integer(1)));
    txn.abort();
    assert_clean(&db);
}

/// A user's constraints: refused where SQL users expect it, and no engine stops.
#[test]
fn constraints_refuse_an_operation_or_the_commit() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    run(
        &db,
        "CREATE TABLE album (id INTEGER PRIMARY KEY, cover INTEGER REFERENCES main (ino) \
           DEFERRABLE INITIALLY DEFERRED); \
         CREATE TABLE pin (ino INTEGER REFERENCES main (ino))",
    );
    db.files().write(b"/kept", b"x").unwrap();
    db.sync().unwrap();
    run(
        &db,
        "INSERT INTO pin SELECT ino FROM main_dirent WHERE name = 'kept'",
    );
    wait_until(|| kind(db.nodes().unlink(R, &name("kept"))) == ErrorKind::NotPermitted);
    let txn = db.transactions().begin().unwrap();
    txn.files().write(b"/a", b"x").unwrap();
    assert_eq!(
        kind(txn.nodes().unlink(R, &name("kept"))),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        kind(txn.sql("INSERT INTO pin VALUES (999)", &[])),
        ErrorKind::Sql
    );
    txn.commit().unwrap();
    assert!(exists(&db, "/a") && exists(&db, "/kept"));
    // Rows of one transaction: the file may come after the row that refers to it, but must come.
    for comes in [false, true] {
        let txn = db.transactions().begin().unwrap();
        let probe = txn.files().write(b"/probe", b"x").unwrap().node.ino;
        let next = integer(probe.0 as i64 + 1);
        txn.sql("INSERT INTO album VALUES (1, ?)", &[next]).unwrap();
        if comes {
            assert_eq!(
                txn.files().write(b"/cover", b"x").unwrap().node.ino.0,
                probe.0 + 1
            );
            txn.commit().unwrap();
        } else {
            assert_eq!(kind(txn.commit()), ErrorKind::Sql);
            assert!(!exists(&db, "/probe"));
        }
    }
    // What a rule refuses of a write is refused, and the transaction goes on.
    run(
        &db,
        "CREATE TRIGGER small BEFORE UPDATE OF size ON main WHEN NEW.size > 100 \
        BEGIN SELECT RAISE(ABORT, 'too long'); END",
    );
    let txn = db.transactions().begin().unwrap();
    let node = txn.nodes().resolve(b"/a", true).unwrap().node;
    let handle = txn.nodes().open(node, true).unwrap();
    let refused = handle.write_at(0, &pattern(5000, 1)).unwrap_err();
    assert!(refused.to_string().contains("too long"), "{refused}");
    assert_eq!(txn.files().read(b"/a").unwrap(), b"x");
    drop(handle);
    txn.files().write(b"/beside", b"y").unwrap();
    txn.commit().unwrap();
    assert!(exists(&db, "/beside"));
    for _ in 0..3 {
        let txn = db.transactions().begin().unwrap();
        txn.files().write(b"/small", b"y").unwrap();
        txn.commit().unwrap();
        db.files().write(b"/small", b"z").unwrap();
    }
    db.sync().unwrap();
    assert_clean(&db);
}

/// Who keeps the writer lock keeps others waiting: not for ever.
#[test]
fn a_transaction_that_keeps_the_writer_lock_is_rolled_back() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let other = open(dir.path());
    let options = TransactionOptions {
        writer_lock_max: Duration::from_millis(200),
        ..TransactionOptions::default()
    };
    let quick = TransactionOptions {
        is_immediate: true,
        ..TransactionOptions::default()
    };
    for waiting in [&db, &other] {
        // Idle, and somebody waits: an ordinary change, or another transaction.
        let txn = db.transactions().begin_with(&options).unwrap();
        txn.files().write(b"/idle", pattern(50_000, 1)).unwrap();
        let began = Instant::now();
        waiting.files().write(b"/others", b"x").unwrap();
        assert!(
            began.elapsed() < Duration::from_secs(2),
            "{:?}",
            began.elapsed()
        );
        let refused = txn.files().read(b"/idle").unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Busy);
        assert!(
            refused.to_string().contains("long transaction"),
            "{refused}"
        );
        assert_eq!(kind(txn.commit()), ErrorKind::Busy, "CONTENT-7");
        let txn = db.transactions().begin_with(&options).unwrap();
        txn.files().write(b"/idle", b"x").unwrap();
        drop(waiting.transactions().begin_with(&quick).unwrap());
        assert_eq!(kind(txn.commit()), ErrorKind::Busy, "CONTENT-7");
    }
    // Nobody waits: it goes on until its next operation, and may still commit.
    let txn = db.transactions().begin_with(&options).unwrap();
    txn.files().write(b"/slow", b"x").unwrap();
    std::thread::sleep(Duration::from_millis(400));
    txn.commit().unwrap();
    let txn = db.transactions().begin_with(&options).unwrap();
    txn.files().write(b"/slower", b"x").unwrap();
    std::thread::sleep(Duration::from_millis(400));
    assert_eq!(kind(txn.files().read(b"/slower")), ErrorKind::Busy);
    drop(txn);
    assert!(exists(&db, "/slow") && !exists(&db, "/slower") && !exists(&db, "/idle"));
    assert_clean(&db);
}
