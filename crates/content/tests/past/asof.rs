//! The provider `asof`: a store that is another one at a moment.
use crate::common;

use crate::common::{OWNER, content, kind, name, pattern, scratch};
use larder::{
    CreateOptions, Database, DatabaseOptions, ErrorKind, KeepPolicy, Moment, NewNode, NodeId,
    PruneCut, SetAttr, TransactionOptions, XattrMode,
};
use larder_object::EngineOptions;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const R: NodeId = NodeId::ROOT;
const BEGIN_NS: i64 = 1_800_000_000_000_000_000;
const SECOND: i64 = 1_000_000_000;

fn open(dir: &Path, clock: &Arc<AtomicI64>) -> Database {
    let clock = Arc::clone(clock);
    let engine = EngineOptions {
        has_background: false,
        clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
        ..EngineOptions::default()
    };
    let path = dir.join("t.larder");
    if !path.exists() {
        let options = CreateOptions {
            capacity_bytes: Some(256 << 20),
            retention_ns: Some(3600 * SECOND),
            ..CreateOptions::default()
        };
        Database::create_with(&path, &options, &engine).unwrap();
    }
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    Database::open(&path, options).unwrap()
}

fn read(db: &Database, path: &str) -> Vec<u8> {
    content(db, db.nodes().resolve(path.as_bytes(), true).unwrap().node)
}

fn refused<T>(outcome: larder::Result<T>) -> String {
    match outcome {
        Ok(_) => panic!("it was not refused"),
        Err(error) => error.to_string(),
    }
}

#[test]
fn a_store_shows_another_one_at_a_moment() {
    let dir = scratch();
    let clock = Arc::new(AtomicI64::new(BEGIN_NS));
    let mut db = open(dir.path(), &clock);
    let pass = |count: i64| {
        clock.fetch_add(count * SECOND, Ordering::SeqCst);
    };
    db.nodes()
        .create_node(R, &name("d"), NewNode::Directory, 0o755, OWNER)
        .unwrap();
    let old = pattern(300_000, 1);
    db.files().write(b"/d/f", &old).unwrap();
    db.snapshots().create("monday").unwrap();
    pass(10);
    let new = pattern(200_000, 2);
    db.files().write(b"/d/f", &new).unwrap();
    db.files().write(b"/later", b"later").unwrap();
    db.sync().unwrap();
    pass(10);

    let audit = db
        .stores()
        .create("audit", "asof=monday", None, None)
        .unwrap();
    assert_eq!(
        (audit.provider.as_str(), audit.table.as_str()),
        ("asof=monday", "main")
    );
    // Of a moment without a name a snapshot is made.
    let early = db
        .stores()
        .create("early", "asof=-5s", Some("/early"), Some("main"))
        .unwrap();
    assert_eq!(early.provider, "asof=store-early");
    let check = |db: &Database, when: &str| {
        assert_eq!(read(db, "/audit/d/f"), old, "{when}");
        assert_eq!(read(db, "/early/d/f"), new, "{when}");
        let gone = db.nodes().resolve(b"/audit/later", true);
        assert_eq!(kind(gone), ErrorKind::NotFound, "{when}");
        assert_eq!(read(db, "/early/later"), b"later", "{when}");
    };
    check(&db, "at once");
    db.files().write(b"/d/f", b"newest").unwrap();
    db.sync().unwrap();
    check(&db, "written");
    assert_eq!(read(&db, "/d/f"), b"newest");

    // Nor is it gone back there: that would be done to the store that it shows.
    for is_dry in [true, false] {
        let refused =
            db.history()
                .rollback(&Moment::Snapshot("monday".into()), Some(b"/audit"), is_dry);
        assert_eq!(kind(refused), ErrorKind::InvalidInput);
    }
    check(&db, "after a refused rollback");

    // Nothing can be changed there.
    let shown = db.nodes().resolve(b"/audit/d/f", true).unwrap();
    let parent = db.nodes().resolve(b"/audit/d", true).unwrap().node;
    assert_eq!(shown.node.store, audit.store);
    let read_only = |found: ErrorKind| assert_eq!(found, ErrorKind::ReadOnly);
    read_only(kind(db.nodes().open(shown.node, true).map(drop)));
    read_only(kind(db.files().write(b"/audit/d/f", b"x")));
    read_only(kind(db.files().write(b"/audit/new", b"x")));
    read_only(kind(db.nodes().unlink(parent, &name("f"))));
    read_only(kind(db.nodes().set_attr(shown.node, &SetAttr::default())));
    read_only(kind(db.attributes().set(
        shown.node,
        b"user.x",
        b"",
        XattrMode::Set,
    )));
    let node = db
        .nodes()
        .create_node(parent, &name("x"), NewNode::Directory, 0o755, OWNER);
    read_only(kind(node));

    // A transaction sees it too, and cannot make one.
    let txn = db
        .transactions()
        .begin_with(&TransactionOptions::default())
        .unwrap();
    let within = txn.nodes().resolve(b"/audit/d/f", true).unwrap();
    assert_eq!(content(&txn, within.node), old);
    assert_eq!(
        kind(txn.stores().create("no", "asof=monday", None, None)),
        ErrorKind::Unsupported
    );
    drop(txn);
    // So does the past of the database.
    let past = db.as_of(&Moment::Snapshot("monday".into())).unwrap();
    assert_eq!(read(&past, "/early/later"), b"later");
    drop(past);

    // What it shows stays, whatever is let go.
    let told = refused(db.snapshots().destroy("monday"));
    assert!(
        told.contains("store 'audit' shows; destroy that store first"),
        "{told}"
    );
    let told = refused(db.snapshots().release("monday", "store-audit"));
    assert!(told.contains("ends with the store"), "{told}");
    let none = KeepPolicy::default();
    let pruned = db
        .history()
        .prune(PruneCut::All, Some(&none), false)
        .unwrap();
    assert_eq!(pruned.held.len(), 2);
    pass(7200);
    db.files().write(b"/more", pattern(100_000, 3)).unwrap();
    db.sync().unwrap();
    check(&db, "pruned");
    db.close().unwrap();
    db = open(dir.path(), &clock);
    check(&db, "reopened");
    common::assert_clean(&db);

    // Only as it was made; and then it goes with what was made for it.
    let told = refused(db.stores().set("audit", Some("files"), None));
    assert!(told.contains("from its beginning to its end"), "{told}");
    let told = refused(db.stores().set("main", Some("asof=monday"), None));
    assert!(told.contains("from its beginning to its end"), "{told}");
    db.stores().set("audit", None, Some("/elsewhere")).unwrap();
    assert_eq!(read(&db, "/elsewhere/d/f"), old);
    db.stores().destroy("early").unwrap();
    let names = || {
        let rows = db.snapshots().list().unwrap().into_iter();
        rows.map(|row| row.name).collect::<Vec<_>>()
    };
    assert_eq!(names(), ["monday"]);
    db.stores().destroy("audit").unwrap();
    db.snapshots().destroy("monday").unwrap();
    common::assert_clean(&db);
}

#[test]
fn what_cannot_be_shown_is_refused() {
    let dir = scratch();
    let clock = Arc::new(AtomicI64::new(BEGIN_NS));
    let db = open(dir.path(), &clock);
    db.files().write(b"/f", b"bytes").unwrap();
    db.files().write(b"/taken", b"bytes").unwrap();
    db.sync().unwrap();
    let told = refused(db.stores().create("a", "asof=nobody", None, None));
    assert!(told.contains("snapshot 'nobody'"), "{told}");
    let told = refused(db.stores().create("a", "asof=-1y", None, None));
    assert!(told.contains("before the history begins"), "{told}");
    let told = refused(db.stores().create("a", "asof=", None, None));
    assert!(told.contains("is no moment"), "{told}");
    // What was made for it goes again.
    let told = refused(db.stores().create("a", "asof=seq:1", Some("/taken"), None));
    assert!(told.contains("exists in the tree"), "{told}");
    assert_eq!(db.snapshots().list().unwrap(), Vec::new());
    assert_eq!(db.stores().list().unwrap().len(), 1);
}

/// Who opens it first pins its moment by a commit, which cannot wait for a transaction that waits
/// for it.
#[test]
fn a_transaction_that_writes_can_be_the_first_to_look_into_it() {
    let dir = scratch();
    let clock = Arc::new(AtomicI64::new(BEGIN_NS));
    let db = open(dir.path(), &clock);
    db.files().write(b"/f", b"old").unwrap();
    db.snapshots().create("monday").unwrap();
    clock.fetch_add(SECOND, Ordering::SeqCst);
    db.files().write(b"/f", b"new").unwrap();
    db.stores()
        .create("audit", "asof=monday", None, None)
        .unwrap();
    let txn = db.transactions().begin().unwrap();
    txn.files().write(b"/g", b"mine").unwrap();
    assert_eq!(txn.files().read(b"/audit/f").unwrap(), b"old");
    txn.commit().unwrap();
    // So does a clone out of it.
    db.close().unwrap();
    let db = open(dir.path(), &clock);
    db.files().clone_path(None, b"/audit/f", b"/back").unwrap();
    assert_eq!(read(&db, "/back"), b"old");
    db.close().unwrap();
}
