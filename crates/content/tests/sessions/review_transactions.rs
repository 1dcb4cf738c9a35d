//! What a review found in transactions, short and long.

use crate::common::*;
use larder::{
    Database, DatabaseOptions, ErrorKind, FeedEvent, NodeId, Transaction, TransactionOutcome,
    XattrMode,
};
use larder_object::EngineOptions;
use std::path::Path;

/// Segments as short as they can be, so that a second one comes soon.
fn open_short(dir: &Path) -> Database {
    let engine = EngineOptions {
        segment_bytes_max: 64 << 20,
        has_background: false,
        ..EngineOptions::default()
    };
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

/// By a connection that knows nothing of Larder.
fn plain(database: &Path, sql: &str) -> String {
    let output = std::process::Command::new("sqlite3")
        .args(["-cmd", ".timeout 5000"])
        .arg(database.join("catalog.db"))
        .arg(sql)
        .output()
        .unwrap();
    assert!(
        output.status.success() && output.stderr.is_empty(),
        "{output:?}"
    );
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// PRIVATE-5: an operation that fails for another reason than a conflict, after the snapshot was
/// given up, must not let the next one go on with a newer snapshot: what was read may have changed.
#[test]
fn a_transaction_that_has_lost_its_snapshot_is_over() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let db = open_short(dir.path());
    db.files().write(b"/balance", b"10").unwrap();
    db.sync().unwrap();
    let txn = db.transactions().begin().unwrap();
    assert_eq!(txn.files().read(b"/balance").unwrap(), b"10");
    // Somebody makes the snapshot old, and a segment that cannot be opened when the transaction
    // looks.
    for part in 0..5 {
        let path = format!("/large{part}");
        db.files()
            .write(path.as_bytes(), pattern(16 << 20, part))
            .unwrap();
        db.sync().unwrap();
    }
    let segments = dir.path().join("t.larder/segments");
    let second = segments.join("00001.seg");
    std::fs::rename(&second, segments.join("away")).unwrap();
    let failed = txn.files().write(b"/balance", b"11").unwrap_err();
    assert_ne!(failed.kind(), ErrorKind::Conflict, "{failed}");
    std::fs::rename(segments.join("away"), &second).unwrap();
    db.files().write(b"/balance", b"20").unwrap();
    db.sync().unwrap();
    let over = txn.files().write(b"/balance", b"11").unwrap_err();
    assert_eq!(over.kind(), ErrorKind::InvalidInput, "PRIVATE-5: {over}");
    assert!(txn.commit().is_err(), "PRIVATE-5");
    assert_eq!(db.files().read(b"/balance").unwrap(), b"20", "CONTENT-6");
    // The engine that served it serves others.
    let next = db.transactions().begin().unwrap();
    assert_eq!(next.files().read(b"/balance").unwrap(), b"20");
    next.files().write(b"/balance", b"21").unwrap();
    next.commit().unwrap();
    assert_eq!(db.files().read(b"/balance").unwrap(), b"21");
}

/// PRIVATE-3: the number of a store that was taken back goes to another store.
#[test]
fn a_store_that_was_taken_back_is_forgotten() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let txn = db.transactions().begin().unwrap();
    txn.stores().create("one", "files", None, None).unwrap();
    txn.files().write(b"/one/a", b"never").unwrap();
    txn.abort();
    let two = db.stores().create("two", "files", None, None).unwrap();
    let one = db.stores().create("one", "files", None, None).unwrap();
    assert_ne!(one.store, two.store);
    let txn = db.transactions().begin().unwrap();
    txn.files().write(b"/two/b", b"of two").unwrap();
    txn.commit().unwrap();
    assert_eq!(db.files().read(b"/two/b").unwrap(), b"of two", "PRIVATE-3");
    let gone = db.files().read(b"/one/b").unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound, "PRIVATE-3");
    assert_clean(&db);
}

/// WORKSPACE-5: inode numbers that a short transaction got from the parent and did not keep are
/// nobody's.
#[test]
fn inode_numbers_that_were_taken_back_are_not_used() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let long = db.transactions().begin_long("numbers").unwrap();
    // The next inode is the last one of the range.
    let end: u64 = plain(
        &long.directory(),
        "UPDATE larder_guard_switch SET open = 1;
         UPDATE larder_meta SET value = (SELECT next_ino + 1 FROM larder_store WHERE id = 0)
           WHERE key = 'ino_end_0';
         UPDATE larder_guard_switch SET open = 0;
         SELECT value FROM larder_meta WHERE key = 'ino_end_0'",
    )
    .parse()
    .unwrap();
    let view = long.database().unwrap();
    let txn = view.transactions().begin().unwrap();
    for number in 0..3 {
        make(&txn, NodeId::ROOT, &format!("never{number}"));
    }
    txn.abort();
    drop(txn);
    let numbers = (0..3).map(|number| make(view, NodeId::ROOT, &format!("kept{number}")).ino.0);
    let numbers: Vec<u64> = numbers.collect();
    assert!(
        numbers.iter().all(|ino| *ino < end || *ino >= end + 1000),
        "WORKSPACE-5: {numbers:?}, the range ends before {end}"
    );
    long.commit().unwrap();
    assert_clean(&db);
}

/// FEED-1: what a long transaction brings is not told one by one; that it came is.
#[test]
fn followers_learn_of_a_long_transaction() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let since = db.feed().set(true).unwrap();
    let long = db.transactions().begin_long("told").unwrap();
    long.database()
        .unwrap()
        .files()
        .write(b"/inside", b"x")
        .unwrap();
    db.files().write(b"/beside", b"y").unwrap();
    db.sync().unwrap();
    assert_eq!(long.commit().unwrap(), TransactionOutcome::Committed);
    db.files().write(b"/behind", b"z").unwrap();
    db.sync().unwrap();
    let is_gap = |event: &FeedEvent| *event == FeedEvent::Begin;
    let events = db.feed().changes(since).map(|change| change.unwrap().event);
    let gaps: Vec<bool> = events.map(|event| is_gap(&event)).collect();
    assert_eq!(gaps, [false, true, false], "FEED-1");
    assert_eq!(db.files().read(b"/inside").unwrap(), b"x");
    // Nothing is written while the feed is off.
    db.feed().set(false).unwrap();
    let newest = db.feed().bounds().unwrap().newest;
    let long = db.transactions().begin_long("untold").unwrap();
    long.database()
        .unwrap()
        .files()
        .write(b"/later", b"x")
        .unwrap();
    assert_eq!(long.commit().unwrap(), TransactionOutcome::Committed);
    assert_eq!(db.feed().bounds().unwrap().newest, newest, "FEED-3");
}

/// CATALOG-3: REPLACE deletes the rows that are in its way, and a row of a store is a file.
#[test]
fn no_statement_replaces_the_row_of_a_file() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let [a, b] = ["a", "b"].map(|text| put(&db, NodeId::ROOT, text, &pattern(9000, 1)).ino);
    db.sync().unwrap();
    let mut session = db.sql().open(false).unwrap();
    let set_up = format!(
        "ALTER TABLE main ADD COLUMN tag; CREATE UNIQUE INDEX by_tag ON main (tag);
         UPDATE main SET tag = 'a' WHERE ino = {a}; CREATE TABLE note (n INTEGER PRIMARY KEY)"
    );
    sql::run(&mut session, &set_up).unwrap();
    let replace = format!("UPDATE OR REPLACE main SET tag = 'a' WHERE ino = {b}");
    let is_refused = |outcome: Result<(), larder::Error>| {
        let told = outcome.unwrap_err().to_string();
        assert!(told.contains("through the mount"), "CATALOG-3: {told}");
    };
    let in_transaction = |statement: &str| {
        let txn = db.transactions().begin().unwrap();
        // A step, after which the triggers are off.
        put(&txn, NodeId::ROOT, "never", b"x");
        txn.sql("SELECT count(*) FROM note", &[]).unwrap();
        txn.sql(statement, &[]).map(drop)
    };
    is_refused(in_transaction(&replace));
    is_refused(in_transaction(&replace.to_lowercase()));
    is_refused(sql::run(&mut session, &replace).map(drop));
    // By a trigger.
    let trigger = format!("TRIGGER mine AFTER INSERT ON note BEGIN {replace}; END");
    for kind in ["", "TEMP"] {
        sql::run(&mut session, &format!("CREATE {kind} {trigger}")).unwrap();
        let insert = "INSERT INTO note VALUES (1)";
        if kind.is_empty() {
            is_refused(in_transaction(insert));
        }
        is_refused(sql::run(&mut session, insert).map(drop));
        sql::run(&mut session, "DROP TRIGGER mine").unwrap();
    }
    // Other statements run as ever: a trigger that changes its own table runs once.
    let upper = "CREATE TRIGGER upper AFTER UPDATE OF tag ON main
                 BEGIN UPDATE main SET tag = NEW.tag || '!' WHERE ino = NEW.ino; END";
    sql::run(&mut session, upper).unwrap();
    let set = format!("UPDATE main SET tag = 'b' WHERE ino = {b}");
    sql::run(&mut session, &set).unwrap();
    in_transaction(&set).unwrap();
    let tags = sql::run(
        &mut session,
        "SELECT tag FROM main WHERE ino > 1 ORDER BY ino",
    )
    .unwrap();
    assert_eq!(tags, [sql::text("a"), sql::text("b!")]);
    // Nor does what the engine does after a REPLACE run it again and again.
    let any = "CREATE TRIGGER any_change AFTER UPDATE ON main
               BEGIN UPDATE main SET tag = NEW.ino WHERE ino = NEW.ino; END; DROP TRIGGER upper";
    sql::run(&mut session, any).unwrap();
    let txn = db.transactions().begin().unwrap();
    txn.sql("REPLACE INTO note VALUES (5)", &[]).unwrap();
    txn.files().write(b"/a", b"changed").unwrap();
    txn.commit().unwrap();
    assert_eq!(db.files().read(b"/a").unwrap(), b"changed");
    assert_clean(&db);
}

/// Runs `read` in a transaction that begins before `change` and writes afterwards; how that went.
fn write_after<T>(
    db: &Database,
    read: impl FnOnce(&Transaction) -> larder::Result<T>,
    change: impl FnOnce(),
) -> Result<(), ErrorKind> {
    let txn = db.transactions().begin().unwrap();
    let _ = read(&txn);
    change();
    let outcome = txn
        .files()
        .write(b"/written", b"x")
        .and_then(|_| txn.commit());
    outcome.map_err(|error| error.kind())
}

/// CONTENT-6: extended attributes of a directory, and where it is, are read like everything else,
/// and so is that an attribute is not there.
#[test]
fn what_was_read_of_a_directory_is_not_lost() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let d = sql::directory(&db, NodeId::ROOT, "d");
    let e = sql::directory(&db, d, "e");
    db.attributes()
        .set(NodeId::ROOT, b"user.n", b"1", XattrMode::Set)
        .unwrap();
    db.sync().unwrap();
    let count = |n: &[u8]| {
        db.attributes()
            .set(NodeId::ROOT, b"user.n", n, XattrMode::Set)
            .unwrap();
        db.sync().unwrap();
    };
    let conflict = Err(ErrorKind::Conflict);
    let lost = write_after(
        &db,
        |txn| txn.attributes().get(NodeId::ROOT, b"user.n"),
        || count(b"2"),
    );
    assert_eq!(lost, conflict, "CONTENT-6: a value");
    let lost = write_after(
        &db,
        |txn| txn.attributes().list(NodeId::ROOT),
        || count(b"3"),
    );
    assert_eq!(lost, conflict, "CONTENT-6: a list");
    let lost = write_after(
        &db,
        |txn| txn.attributes().get(d, b"user.lock"),
        || {
            db.attributes()
                .set(d, b"user.lock", b"1", XattrMode::Set)
                .unwrap();
            db.sync().unwrap();
        },
    );
    assert_eq!(lost, conflict, "CONTENT-6: an absence");
    let lost = write_after(
        &db,
        |txn| txn.nodes().parent(e),
        || {
            let away = name("away");
            db.nodes()
                .rename(
                    d,
                    &name("e"),
                    NodeId::ROOT,
                    &away,
                    larder::RenameMode::Replace,
                )
                .unwrap();
            db.sync().unwrap();
        },
    );
    assert_eq!(lost, conflict, "CONTENT-6: a place");
    // Names on the way are compared as names.
    let kept = write_after(&db, |txn| txn.nodes().resolve(b"/d", true), || count(b"4"));
    assert_eq!(kept, Ok(()), "PRIVATE-5");
}

/// PRIVATE-5: that a name is absent is read, also where the engine of transactions knows all names
/// itself.
#[test]
fn an_absent_name_in_a_directory_of_its_own_is_read() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let d = db
        .transactions()
        .run(|txn| Ok(sql::directory(txn, NodeId::ROOT, "d")))
        .unwrap();
    let make_there = |text: &str| {
        make(&db, d, text);
        db.sync().unwrap();
    };
    let look = |txn: &Transaction| {
        let missing = txn.nodes().resolve(b"/d/lock", true).unwrap_err();
        assert_eq!(missing.kind(), ErrorKind::NotFound);
        Ok(())
    };
    let lost = write_after(&db, look, || make_there("lock"));
    assert_eq!(lost, Err(ErrorKind::Conflict), "PRIVATE-5");
    let d = db
        .transactions()
        .run(|txn| Ok(sql::directory(txn, NodeId::ROOT, "other")))
        .unwrap();
    // Another name is another matter.
    let look = |txn: &Transaction| txn.nodes().resolve(b"/other/lock", true);
    let kept = write_after(&db, look, || {
        make(&db, d, "elsewhere");
        db.sync().unwrap();
    });
    assert_eq!(kept, Ok(()), "PRIVATE-5");
}
