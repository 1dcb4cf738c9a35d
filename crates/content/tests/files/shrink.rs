//! Segments grow, are added and shrink while sessions go on (`SHRINK-1`, `RESERVE-1`).

use crate::common::*;
use larder::{Database, DatabaseOptions, ErrorKind, NodeId};
use larder_object::EngineOptions;
use std::path::Path;

const R: NodeId = NodeId::ROOT;
const MIB: u64 = 1 << 20;

fn open_with(dir: &Path, segment_bytes_max: u64) -> Database {
    let engine = EngineOptions {
        segment_bytes_max,
        ..EngineOptions::default()
    };
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

fn file_bytes(dir: &Path, segment: u32) -> u64 {
    let path = dir.join(format!("t.larder/segments/{segment:05}.seg"));
    path.metadata().unwrap().len()
}

fn shrink(db: &Database, to_bytes: Option<u64>) -> larder::Result<larder::ShrinkReport> {
    db.maintenance().shrink(to_bytes, false, &mut |_, _| {})
}

#[test]
fn content_moves_forward_and_the_host_gets_the_rest() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(512 * MIB));
    let files: Vec<_> = (0..60_u64)
        .map(|at| {
            let bytes = pattern(MIB as usize, at);
            (put(&db, R, &format!("f{at}"), &bytes), bytes)
        })
        .collect();
    db.sync().unwrap();
    for at in (0..60).filter(|at| at % 4 != 0) {
        db.nodes().unlink(R, &name(&format!("f{at}"))).unwrap();
    }
    db.sync().unwrap();
    let long = file_bytes(dir.path(), 0);
    let dry = db.maintenance().shrink(None, true, &mut |_, _| {}).unwrap();
    assert_eq!(file_bytes(dir.path(), 0), long, "a dry run cuts nothing");
    assert!(dry.moved_bytes > 0);
    let handle = db.nodes().open(files[56].0, false).unwrap();
    let report = shrink(&db, None).unwrap();
    assert!(
        report.segment_bytes_after <= 17 * MIB && report.moved_bytes >= dry.moved_bytes,
        "{report:?}, {dry:?}"
    );
    let short = file_bytes(dir.path(), 0);
    assert_eq!(
        short,
        report.segment_bytes_after + MIB,
        "and the superblock"
    );
    for (node, bytes) in files.iter().step_by(4) {
        assert!(content(&db, *node) == *bytes, "COMPACT-3");
    }
    let mut bytes = vec![0; MIB as usize];
    handle.read_at(0, &mut bytes).unwrap();
    assert!(bytes == files[56].1, "an open handle follows");
    assert_clean(&db);
    drop(handle);
    // It grows again when it must.
    put(&db, R, "more", &pattern(40 << 20, 5));
    db.sync().unwrap();
    assert!(file_bytes(dir.path(), 0) > short);
    assert_clean(&db);
    db.close().unwrap();
    assert_clean(&open(dir.path()));
}

#[test]
fn sizes_that_do_not_do_are_refused() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(64 * MIB));
    let bytes = pattern(10 << 20, 1);
    let node = put(&db, R, "f", &bytes);
    db.sync().unwrap();
    let before = file_bytes(dir.path(), 0);
    assert_eq!(kind(shrink(&db, Some(5 * MIB))), ErrorKind::InvalidInput);
    assert_eq!(kind(shrink(&db, Some(0))), ErrorKind::InvalidInput);
    let nothing = shrink(&db, Some(1 << 40)).unwrap();
    assert_eq!(nothing.segment_bytes_after, nothing.segment_bytes_before);
    assert_eq!(file_bytes(dir.path(), 0), before);
    shrink(&db, Some(20 * MIB)).unwrap();
    assert_eq!(file_bytes(dir.path(), 0), 21 * MIB);
    assert!(content(&db, node) == bytes);
    assert_clean(&db);
}

/// A session that had the longer segment in its free set must not write behind the new end.
#[test]
fn another_session_writes_only_where_the_segment_still_is() {
    let dir = tempfile::tempdir().unwrap();
    let one = create(dir.path(), Some(256 * MIB));
    let two = open(dir.path());
    for round in 0..6_u64 {
        let mine = pattern(30 << 20, round);
        let node = put(&two, R, &format!("two{round}"), &mine);
        two.sync().unwrap();
        let gone = put(&one, R, "gone", &pattern(20 << 20, 100 + round));
        one.sync().unwrap();
        assert_eq!(content(&two, gone).len(), 20 << 20);
        one.nodes().unlink(R, &name("gone")).unwrap();
        one.sync().unwrap();
        if round > 1 {
            two.nodes()
                .unlink(R, &name(&format!("two{}", round - 1)))
                .unwrap();
            two.sync().unwrap();
        }
        let (by, other) = if round % 2 == 0 {
            (&one, &two)
        } else {
            (&two, &one)
        };
        let report = shrink(by, None).unwrap();
        assert!(
            report.segment_bytes_after < report.segment_bytes_before,
            "{report:?}"
        );
        let after = pattern(5 << 20, 200 + round);
        let late = put(other, R, &format!("late{round}"), &after);
        other.sync().unwrap();
        assert!(content(by, late) == after, "round {round}");
        assert!(content(by, node) == mine, "round {round}");
        assert_clean(other);
    }
    one.close().unwrap();
    assert_clean(&two);
}

#[test]
fn segments_are_added_while_files_are_written_and_go_again() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), Some(512 * MIB)).close().unwrap();
    let (db, other) = (
        open_with(dir.path(), 64 * MIB),
        open_with(dir.path(), 64 * MIB),
    );
    let files: Vec<_> = (0..50_u64)
        .map(|at| {
            let bytes = pattern(3 << 20, at);
            let by = if at % 10 < 7 { &db } else { &other };
            (put(by, R, &format!("f{at}"), &bytes), bytes)
        })
        .collect();
    db.sync().unwrap();
    other.sync().unwrap();
    assert!(file_bytes(dir.path(), 2) > MIB, "there is a third segment");
    for (node, bytes) in &files {
        assert!(content(&other, *node) == *bytes);
    }
    assert_clean(&db);
    for at in 0..40 {
        db.nodes().unlink(R, &name(&format!("f{at}"))).unwrap();
    }
    db.sync().unwrap();
    shrink(&db, None).unwrap();
    assert_eq!(
        file_bytes(dir.path(), 2),
        MIB,
        "only its superblock is left"
    );
    for (node, bytes) in &files[40..] {
        assert!(content(&other, *node) == *bytes);
    }
    // The last segment takes what comes next.
    let bytes = pattern(60 << 20, 77);
    let node = put(&other, R, "next", &bytes);
    other.sync().unwrap();
    assert!(content(&db, node) == bytes);
    assert_clean(&db);
    db.close().unwrap();
    other.close().unwrap();
    assert_clean(&open(dir.path()));
}
