//! What is chosen for a database: stored, bounded, and obeyed by whoever opens it.

use crate::common::*;
use larder::limits::{GATHER_BYTES_MIN, INLINE_BYTES_MAX};
use larder::{Database, DatabaseOptions, ErrorKind, NodeId, Tuning, gather_bytes_default};
use larder_object::EngineOptions;

const SMALL: Tuning = Tuning {
    inline_bytes_max: Some(100),
    gather_bytes_max: Some(2 << 20),
};

/// Writes objects by both roads and says how much space each takes.
fn allocated(db: &Database, len: usize) -> [u64; 2] {
    let bytes = pattern(len, len as u64);
    let whole = db
        .files()
        .write(format!("/p{len}").as_bytes(), &bytes)
        .unwrap()
        .node;
    let written = match db.nodes().lookup(NodeId::ROOT, &name(&format!("w{len}"))) {
        Ok(attr) => {
            let handle = db.nodes().open(attr.node, true).unwrap();
            handle.write_at(0, &bytes).unwrap();
            attr.node
        }
        Err(_) => put(db, NodeId::ROOT, &format!("w{len}"), &bytes),
    };
    db.sync().unwrap();
    [whole, written].map(|node| {
        assert_eq!(content(db, node), bytes);
        db.nodes().metadata(node).unwrap().allocated_bytes
    })
}

#[test]
fn a_database_without_a_choice_is_as_ever() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    // No rows: so are databases of versions that knew nothing of it.
    assert_eq!(db.maintenance().tuning().unwrap(), Tuning::default());
    assert_eq!(
        db.maintenance().gauges().unwrap().dirty_bytes_max,
        gather_bytes_default()
    );
    assert_eq!(allocated(&db, INLINE_BYTES_MAX as usize), [0, 0]);
    assert_eq!(allocated(&db, INLINE_BYTES_MAX as usize + 1), [4096, 4096]);
    assert_clean(&db);
}

#[test]
fn the_engine_obeys_from_the_next_opening_on() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    db.maintenance().set_tuning(&SMALL).unwrap();
    // This session stays as it is.
    assert_eq!(allocated(&db, 1000), [0, 0]);
    db.close().unwrap();

    let db = open(dir.path());
    assert_eq!(db.maintenance().tuning().unwrap(), SMALL);
    assert_eq!(db.maintenance().gauges().unwrap().dirty_bytes_max, 2 << 20);
    assert_eq!(allocated(&db, 100), [0, 0]);
    assert_eq!(allocated(&db, 101), [4096, 4096]);
    // What was inline is read as before, and leaves its row when it is written again.
    assert_eq!(db.files().read(b"/p1000").unwrap(), pattern(1000, 1000));
    assert_eq!(allocated(&db, 1000), [4096, 4096]);
    assert_clean(&db);
    db.close().unwrap();

    // A session that was told something of its own keeps to that.
    let options = DatabaseOptions {
        engine: EngineOptions {
            dirty_bytes_max: 3 << 20,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let db = Database::open(&dir.path().join("t.larder"), options).unwrap();
    assert_eq!(db.maintenance().gauges().unwrap().dirty_bytes_max, 3 << 20);
    // Nothing inline but what is empty; and back.
    db.maintenance()
        .set_tuning(&Tuning {
            inline_bytes_max: Some(0),
            ..Tuning::default()
        })
        .unwrap();
    db.close().unwrap();
    let db = open(dir.path());
    assert_eq!(
        db.maintenance().gauges().unwrap().dirty_bytes_max,
        gather_bytes_default()
    );
    assert_eq!(allocated(&db, 0), [0, 0]);
    assert_eq!(allocated(&db, 1), [4096, 4096]);
    db.maintenance().set_tuning(&Tuning::default()).unwrap();
    db.close().unwrap();
    let db = open(dir.path());
    assert_eq!(allocated(&db, 1500), [0, 0]);
    // What left its row for an extent stays there.
    assert_eq!(db.files().read(b"/w1").unwrap(), pattern(1, 1));
    assert_clean(&db);
}

#[test]
fn what_is_out_of_bounds_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    for wrong in [
        Tuning {
            inline_bytes_max: Some(INLINE_BYTES_MAX + 1),
            ..SMALL
        },
        Tuning {
            gather_bytes_max: Some(GATHER_BYTES_MIN - 1),
            ..SMALL
        },
        Tuning {
            gather_bytes_max: Some(u64::MAX),
            ..SMALL
        },
    ] {
        assert_eq!(
            kind(db.maintenance().set_tuning(&wrong)),
            ErrorKind::InvalidInput
        );
    }
    assert_eq!(db.maintenance().tuning().unwrap(), Tuning::default());
}
