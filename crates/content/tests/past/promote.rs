//! Two directories, or two stores, exchange their places.

use crate::common::moments::{Clock, HOUR, create, newest, open};
use crate::common::{assert_clean, folder, put};
use larder::{ErrorKind, Moment, NodeId};

const R: NodeId = NodeId::ROOT;

#[test]
fn directories_and_stores_exchange_their_places() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    let (a, b) = (folder(&db, R, "a"), folder(&db, R, "b"));
    let inside = folder(&db, a, "inside");
    put(&db, a, "f", b"of a");
    put(&db, b, "f", b"of b");
    for store in ["one", "two"] {
        db.stores().create(store, "files", None, None).unwrap();
        db.files()
            .write(format!("/{store}/f").as_bytes(), store.as_bytes())
            .unwrap();
    }
    let Moment::Seq(before) = newest(&db) else {
        panic!()
    };
    db.history().promote(b"/a", b"/b").unwrap();
    assert_eq!(db.files().read(b"/a/f").unwrap(), b"of b");
    assert_eq!(db.files().read(b"/b/f").unwrap(), b"of a");
    assert_eq!(db.nodes().resolve(b"/b", false).unwrap().node, a);
    assert_eq!(newest(&db), Moment::Seq(before + 1), "one commit");
    db.history().promote(b"/one", b"/two").unwrap();
    assert_eq!(db.files().read(b"/one/f").unwrap(), b"two");
    assert_eq!(db.files().read(b"/two/f").unwrap(), b"one");
    let refuse = |one: &[u8], other: &[u8]| db.history().promote(one, other).unwrap_err().kind();
    assert_eq!(refuse(b"/a", b"/one"), ErrorKind::InvalidInput);
    assert_eq!(refuse(b"/", b"/one"), ErrorKind::InvalidInput);
    assert_eq!(refuse(b"/a", b"/a"), ErrorKind::InvalidInput);
    assert_eq!(refuse(b"/a", b"/a/f"), ErrorKind::NotADirectory);
    assert_eq!(refuse(b"/a", b"/nobody"), ErrorKind::NotFound);
    assert_eq!(refuse(b"/b", b"/b/inside"), ErrorKind::InvalidInput);
    let in_one = db.nodes().resolve(b"/one", true).unwrap().node;
    folder(&db, in_one, "d");
    assert_eq!(refuse(b"/b/inside", b"/one/d"), ErrorKind::CrossStore);
    db.stores()
        .create("deep", "files", Some("/one/deep"), None)
        .unwrap();
    assert_eq!(refuse(b"/one", b"/two"), ErrorKind::Busy);
    assert_eq!(
        db.nodes().resolve(b"/b/inside", false).unwrap().node,
        inside
    );
    db.close().unwrap();
    let db = open(dir.path());
    assert_eq!(db.files().read(b"/one/f").unwrap(), b"two");
    assert_clean(&db);
}

#[test]
fn places_are_exchanged_as_they_are_once_it_has_the_writer_lock() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let db = clock.create(dir.path(), 64, HOUR);
    for store in ["one", "two"] {
        db.stores().create(store, "files", None, None).unwrap();
    }
    db.close().unwrap();
    let [db, other] = [(); 2].map(|()| clock.open_with(dir.path(), true));
    // The one session has not looked since.
    other
        .stores()
        .create("deep", "files", Some("/one/deep"), None)
        .unwrap();
    let refused = db.history().promote(b"/one", b"/two").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    other.files().write(b"/one/deep/f", b"deep").unwrap();
    other.sync().unwrap();
    db.stores().list().unwrap();
    assert_eq!(db.files().read(b"/one/deep/f").unwrap(), b"deep");
}
