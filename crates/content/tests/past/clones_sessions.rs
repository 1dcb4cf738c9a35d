//! Clones in transactions, and what other sessions see of them.

use crate::clones::{clone, live, shared, write};
use crate::common::workspace::{begin, remove};
use crate::common::{OWNER, assert_clean, create, name, open, pattern, put};
use larder::{NodeId, copy_range};

const R: NodeId = NodeId::ROOT;

const MIB: usize = 1 << 20;

#[test]
fn transactions_share_and_take_back() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    let bytes = pattern(MIB, 1);
    put(&db, R, "a", &bytes);
    db.sync().unwrap();
    clone(&db, "/a", "/warm").unwrap();
    remove(&db, b"/warm");
    let before = live(&db);
    for commits in [false, true] {
        let transaction = db.transactions().begin().unwrap();
        let from = transaction.nodes().resolve(b"/a", false).unwrap().node;
        let (attr, file) = transaction
            .nodes()
            .create_file(R, &name("b"), 0o644, OWNER, true)
            .unwrap();
        let source = transaction.nodes().open(from, false).unwrap();
        let copied = copy_range((&*source, 0), (&*file, 0), u64::MAX).unwrap();
        assert_eq!(copied, MIB as u64);
        let mut found = vec![0; MIB];
        file.read_at(0, &mut found).unwrap();
        assert!(found == bytes);
        let savepoint = transaction.savepoint().unwrap();
        file.set_len(0).unwrap();
        transaction.roll_back_to(savepoint).unwrap();
        drop((source, file, attr));
        match commits {
            true => transaction.commit().unwrap(),
            false => transaction.abort(),
        }
        assert_eq!(live(&db), before);
        assert_eq!(
            shared(&db),
            u64::from(commits) * before,
            "commits: {commits}"
        );
        assert_clean(&db);
    }
    assert!(db.files().read(b"/b").unwrap() == bytes);
    write(&db, "/b", 0, b"x");
    db.sync().unwrap();
    assert!(db.files().read(b"/a").unwrap() == bytes);
    assert_clean(&db);
}

#[test]
fn long_transactions_meet_what_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    let bytes = pattern(MIB, 1);
    for to in ["b", "c", "d"] {
        if to == "b" {
            put(&db, R, "a", &bytes);
            db.sync().unwrap();
        }
        clone(&db, "/a", &format!("/{to}")).unwrap();
    }
    drop(db);
    let path = dir.path().join("t.larder");
    let long = begin(&path);
    // The owner and a sharer: changed, removed; and one that the parent removes meanwhile.
    write(long.database().unwrap(), "/a", 4096, &pattern(9000, 2));
    write(long.database().unwrap(), "/b", 0, &pattern(300_000, 3));
    remove(long.database().unwrap(), b"/c");
    long.database().unwrap().sync().unwrap();
    assert!(long.database().unwrap().files().read(b"/d").unwrap() == bytes);
    let db = open(dir.path());
    remove(&db, b"/d");
    db.sync().unwrap();
    clone(&db, "/a", "/e").unwrap();
    let outcome = long.commit().unwrap();
    assert_eq!(outcome, larder::TransactionOutcome::Committed);
    assert_clean(&db);
    let (mut a, mut b) = (bytes.clone(), bytes.clone());
    a[4096..4096 + 9000].copy_from_slice(&pattern(9000, 2));
    b[..300_000].copy_from_slice(&pattern(300_000, 3));
    assert!(db.files().read(b"/a").unwrap() == a && db.files().read(b"/b").unwrap() == b);
    assert!(db.files().read(b"/e").unwrap() == bytes);
    for path in [&b"/a"[..], b"/b", b"/e"] {
        remove(&db, path);
        db.sync().unwrap();
        assert_clean(&db);
    }
    assert_eq!(live(&db), 0);
}

#[test]
fn another_session_learns_of_what_is_shared() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    put(&db, R, "a", &pattern(MIB, 1));
    db.sync().unwrap();
    let other = open(dir.path());
    // It has had the writer lock, and knows the free set, before anything is shared.
    write(&other, "/a", 0, b"y");
    other.sync().unwrap();
    let bytes = other.files().read(b"/a").unwrap();
    clone(&db, "/a", "/b").unwrap();
    write(&other, "/a", 8192, b"z");
    other.sync().unwrap();
    assert!(db.files().read(b"/b").unwrap() == bytes, "SHARE-4");
    assert_clean(&other);
    remove(&other, b"/a");
    other.sync().unwrap();
    assert!(db.files().read(b"/b").unwrap() == bytes, "SHARE-6");
    assert_clean(&db);
    assert_clean(&other);
}
