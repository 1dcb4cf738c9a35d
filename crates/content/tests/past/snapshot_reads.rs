//! Whatever a transaction can read: if somebody changes it before the transaction's first change,
//! that is a conflict (`PRIVATE-5`, `CONTENT-6`); and what it has not read is not.

use crate::common::{OWNER, assert_clean, create, make, name, open, put, sql};
use larder::{
    Database, DatabaseOptions, ErrorKind, NewNode, NodeId, RenameMode, SetAttr, Transaction,
    XattrMode,
};
use larder_object::EngineOptions;
use std::path::Path;
use std::sync::Arc;

const R: NodeId = NodeId::ROOT;

fn node(db: &Database, path: &str) -> NodeId {
    db.nodes().resolve(path.as_bytes(), false).unwrap().node
}

fn run(db: &Database, text: &str) {
    sql::run(&mut db.sql().open(false).unwrap(), text).unwrap();
}

/// `/f`, `/l` to it, `/d` with `x` and `sub` in it, a store at `/s`; the user has added column
/// `stars`.
fn furnish(db: &Database) {
    put(db, R, "f", b"one");
    let d = sql::directory(db, R, "d");
    sql::directory(db, d, "sub");
    put(db, d, "x", b"another");
    let link = NewNode::Symlink(b"f");
    db.nodes()
        .create_node(R, &name("l"), link, 0o777, OWNER)
        .unwrap();
    db.stores().create("s", "files", None, None).unwrap();
    let inside = node(db, "/s");
    make(db, inside, "a");
    run(
        db,
        "ALTER TABLE main ADD COLUMN stars INTEGER; UPDATE main SET stars = 1",
    );
    db.attributes()
        .set(node(db, "/f"), b"user.n", b"1", XattrMode::Set)
        .unwrap();
    db.sync().unwrap();
}

fn missing<T>(outcome: larder::Result<T>) {
    assert!(outcome.is_err());
}

fn done<T>(outcome: larder::Result<T>) {
    outcome.map(|_| ()).unwrap();
}

fn chmod(db: &Database, path: &str) {
    let change = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    db.nodes().set_attr(node(db, path), &change).unwrap();
}

fn make_in(db: &Database, path: &str) {
    make(db, node(db, path), "made");
}

type Read = fn(&Transaction);
type Act = fn(&Database);

/// What is read, how, and what changes it.
const READS: &[(&str, Read, Act)] = &[
    (
        "content",
        |txn| assert_eq!(txn.files().read(b"/f").unwrap(), b"one"),
        |db| done(db.files().write(b"/f", b"two")),
    ),
    (
        "content by a handle",
        |txn| {
            let handle = txn.nodes().open(node(txn, "/f"), false).unwrap();
            assert_eq!(handle.read_at(0, &mut [0; 3]).unwrap(), 3);
        },
        |db| {
            let handle = db.nodes().open(node(db, "/f"), true).unwrap();
            handle.write_at(1, b"w").unwrap();
        },
    ),
    (
        "the length by a handle",
        |txn| {
            let handle = txn.nodes().open(node(txn, "/f"), false).unwrap();
            assert_eq!(handle.metadata().unwrap().size_bytes, 3);
        },
        |db| {
            let handle = db.nodes().open(node(db, "/f"), true).unwrap();
            handle.set_len(10).unwrap();
        },
    ),
    (
        "attributes of a file",
        |txn| done(txn.nodes().resolve(b"/f", true)),
        |db| chmod(db, "/f"),
    ),
    (
        "attributes of a directory",
        |txn| done(txn.nodes().resolve(b"/d", true)),
        |db| make_in(db, "/d"),
    ),
    (
        "that a name is absent",
        |txn| missing(txn.nodes().resolve(b"/none", true)),
        |db| done(db.files().write(b"/none", b"x")),
    ),
    (
        "that a name further down is absent",
        |txn| missing(txn.files().read(b"/d/sub/none")),
        |db| done(db.files().write(b"/d/sub/none", b"x")),
    ),
    (
        "that a name is there",
        |txn| done(txn.nodes().resolve(b"/d/x", true)),
        |db| db.nodes().unlink(node(db, "/d"), &name("x")).unwrap(),
    ),
    (
        "where a name leads",
        |txn| done(txn.files().read(b"/f")),
        |db| {
            let from = node(db, "/d");
            db.nodes()
                .rename(from, &name("x"), R, &name("f"), RenameMode::Replace)
                .unwrap();
        },
    ),
    (
        "where a path on the way leads",
        |txn| done(txn.files().read(b"/d/x")),
        |db| {
            db.nodes()
                .rename(R, &name("d"), R, &name("e"), RenameMode::Replace)
                .unwrap();
            sql::directory(db, R, "d");
        },
    ),
    (
        "where a link leads",
        |txn| done(txn.files().read(b"/l")),
        |db| {
            db.nodes().unlink(R, &name("l")).unwrap();
            let link = NewNode::Symlink(b"d/x");
            db.nodes()
                .create_node(R, &name("l"), link, 0o777, OWNER)
                .unwrap();
        },
    ),
    (
        "a listing",
        |txn| done(txn.nodes().read_dir(node(txn, "/d"), None, 10)),
        |db| make_in(db, "/d"),
    ),
    (
        "a listing with attributes, of a file",
        |txn| done(txn.nodes().read_dir_plus(R, None, 10)),
        |db| chmod(db, "/f"),
    ),
    (
        "a listing with attributes, of a directory",
        |txn| done(txn.nodes().read_dir_plus(R, None, 10)),
        |db| make_in(db, "/d"),
    ),
    (
        "the directory above",
        |txn| done(txn.nodes().parent(node(txn, "/d/sub"))),
        |db| {
            let from = node(db, "/d");
            db.nodes()
                .rename(from, &name("sub"), R, &name("sub"), RenameMode::Replace)
                .unwrap();
        },
    ),
    (
        "an extended attribute",
        |txn| done(txn.attributes().get(node(txn, "/f"), b"user.n")),
        |db| {
            db.attributes()
                .set(node(db, "/f"), b"user.n", b"2", XattrMode::Set)
                .unwrap();
        },
    ),
    (
        "that an extended attribute is absent",
        |txn| missing(txn.attributes().get(node(txn, "/d"), b"user.n")),
        |db| {
            db.attributes()
                .set(node(db, "/d"), b"user.n", b"2", XattrMode::Set)
                .unwrap();
        },
    ),
    (
        "a column of the user's",
        |txn| done(txn.attributes().get(R, b"user.column.stars")),
        |db| run(db, "UPDATE main SET stars = 2 WHERE ino = 1"),
    ),
    (
        "that there is no such column",
        |txn| missing(txn.attributes().get(node(txn, "/s"), b"user.column.later")),
        |db| {
            run(
                db,
                "ALTER TABLE s ADD COLUMN later INTEGER; UPDATE s SET later = 1",
            );
        },
    ),
    (
        "rows",
        |txn| done(txn.sql("SELECT max(stars) FROM main", &[])),
        |db| run(db, "UPDATE main SET stars = 2"),
    ),
    (
        "content by SQL",
        |txn| done(txn.sql("SELECT content('/f')", &[])),
        |db| done(db.files().write(b"/f", b"two")),
    ),
    (
        "that no store is mounted there",
        |txn| missing(txn.nodes().resolve(b"/raw/a", true)),
        |db| done(db.stores().create("raw", "files", None, None)),
    ),
    (
        "what is mounted there",
        |txn| done(txn.files().read(b"/s/a")),
        |db| db.stores().set("s", None, Some("/elsewhere")).unwrap(),
    ),
    (
        "what is in a store",
        |txn| done(txn.files().read(b"/s/a")),
        |db| db.stores().destroy("s").unwrap(),
    ),
];

/// Runs `read` in a transaction that begins before `change` and writes afterwards; how that went.
fn write_after(
    db: &Database,
    read: impl FnOnce(&Transaction),
    change: impl FnOnce(),
) -> Result<(), ErrorKind> {
    let txn = db.transactions().begin().unwrap();
    read(&txn);
    change();
    let outcome = txn
        .files()
        .write(b"/written", b"x")
        .and_then(|_| txn.commit());
    outcome.map_err(|error| error.kind())
}

fn check(what: &str, read: Read, change: Act, is_other: bool) {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    furnish(&db);
    let rival = match is_other {
        true => open(dir.path()),
        false => db.clone(),
    };
    // Both sessions know the same: nothing is foreign but what comes.
    rival.nodes().resolve(b"/d/x", true).unwrap();
    let found = write_after(&db, read, || {
        change(&rival);
        rival.sync().unwrap();
    });
    let who = if is_other { "another" } else { "the same" };
    assert_eq!(
        found,
        Err(ErrorKind::Conflict),
        "PRIVATE-5: {what}, changed by {who} session"
    );
    assert!(
        db.nodes().resolve(b"/written", true).is_err(),
        "CONTENT-7: {what}"
    );
}

#[test]
fn what_was_read_and_has_changed_is_a_conflict() {
    std::thread::scope(|scope| {
        for reads in READS.chunks(READS.len().div_ceil(6)) {
            scope.spawn(move || {
                for &(what, read, change) in reads {
                    check(what, read, change, false);
                    check(what, read, change, true);
                }
            });
        }
    });
}

/// A file that others change as they like, and tables of others, are nobody's business.
#[test]
fn what_was_not_read_is_no_conflict() {
    let elsewhere: [(&str, Act); 4] = [
        ("a file", |db| done(db.files().write(b"/d/sub/other", b"x"))),
        ("a table", |db| run(db, "CREATE TABLE other (n)")),
        ("a column", |db| {
            run(db, "ALTER TABLE s ADD COLUMN later INTEGER")
        }),
        ("a removal", |db| {
            db.nodes().unlink(node(db, "/d"), &name("x")).unwrap()
        }),
    ];
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    furnish(&db);
    for (what, change) in elsewhere {
        let read: Read = |txn| {
            assert_eq!(txn.files().read(b"/f").unwrap(), b"one");
            assert_eq!(
                txn.attributes().get(node(txn, "/f"), b"user.n").unwrap(),
                b"1"
            );
            missing(txn.attributes().get(node(txn, "/f"), b"user.none"));
            missing(txn.files().read(b"/d/none"));
        };
        let found = write_after(&db, read, || {
            change(&db);
            db.sync().unwrap();
        });
        assert_eq!(found, Ok(()), "PRIVATE-5: {what}");
    }
    assert_clean(&db);
}

fn open_with_clock(path: &Path, now_ns: i64) -> Database {
    let options = DatabaseOptions {
        engine: EngineOptions {
            clock: Some(Arc::new(move || now_ns)),
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    Database::open(path, options).unwrap()
}

/// Times tell of a change only if the clock goes on; which commit wrote a row tells always.
#[test]
fn a_change_is_noticed_though_the_clock_stands_still() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let db = open_with_clock(&dir.path().join("t.larder"), now.unwrap().as_nanos() as i64);
    db.files().write(b"/f", b"one").unwrap();
    db.sync().unwrap();
    let before = db.nodes().resolve(b"/f", true).unwrap();
    let found = write_after(
        &db,
        |txn| assert_eq!(txn.files().read(b"/f").unwrap(), b"one"),
        || {
            let handle = db.nodes().open(before.node, true).unwrap();
            handle.write_at(0, b"two").unwrap();
            drop(handle);
            db.sync().unwrap();
        },
    );
    let after = db.nodes().resolve(b"/f", true).unwrap();
    assert_eq!(before, after, "the clock does not stand still: not tested");
    assert_eq!(found, Err(ErrorKind::Conflict), "PRIVATE-5");
}
