//! Devices that fail: what was promised stays, what was not is refused, and reopening recovers.

use larder::{Caller, CreateOptions, Database, DatabaseOptions, ErrorKind, Name, NewNode, NodeId};
use larder_object::EngineOptions;
use larder_testkit::SimStorage;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const OWNER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};

/// Too much to be logged: a sync writes it to a segment.
const LARGE: usize = 100_000;

fn put(db: &Database, name: &str, len: usize) -> larder::Result<()> {
    let name = Name::new(name.as_bytes()).unwrap();
    let node = db
        .nodes()
        .create_node(NodeId::ROOT, &name, NewNode::File, 0o644, OWNER)?
        .node;
    db.nodes().open(node, true)?.write_at(0, &vec![7; len])
}

/// A new database in `dir` on simulated devices.
fn create(dir: &Path) -> (PathBuf, Arc<SimStorage>) {
    let path = dir.join("db");
    let storage = Arc::new(SimStorage::new());
    let engine = EngineOptions {
        storage: Some(storage.clone()),
        ..EngineOptions::default()
    };
    Database::create_with(&path, &CreateOptions::default(), &engine).unwrap();
    (path, storage)
}

fn open(path: &Path, storage: &Arc<SimStorage>) -> Database {
    let engine = EngineOptions {
        storage: Some(storage.clone()),
        has_background: false,
        ..EngineOptions::default()
    };
    Database::open(
        path,
        DatabaseOptions {
            engine,
            ..DatabaseOptions::default()
        },
    )
    .unwrap()
}

/// Runs `fail` on the devices between a promised and a refused write; returns the reopened
/// database.
fn fail_between(fail: impl Fn(&SimStorage)) {
    let dir = tempfile::tempdir().unwrap();
    let (path, storage) = create(dir.path());
    let db = open(&path, &storage);
    put(&db, "kept", LARGE).unwrap();
    db.sync().unwrap();
    put(&db, "lost", LARGE).unwrap();
    fail(&storage);
    let refused = db.sync().unwrap_err();
    assert!(
        matches!(refused.kind(), ErrorKind::Io | ErrorKind::Stopped),
        "{refused}"
    );
    for _ in 0..2 {
        let stopped = put(&db, "later", 10).unwrap_err();
        assert_eq!(stopped.kind(), ErrorKind::Stopped, "COMMIT-4: {stopped}");
        assert_eq!(
            db.sync().unwrap_err().kind(),
            ErrorKind::Stopped,
            "COMMIT-4"
        );
    }
    assert!(
        db.close().is_err(),
        "closing does not hide that something was lost"
    );
    let db = open(&path, &storage);
    assert!(
        db.maintenance()
            .check(true, &mut |_, _| {})
            .unwrap()
            .findings
            .is_empty()
    );
    let names: Vec<String> = db
        .nodes()
        .read_dir(NodeId::ROOT, None, 10)
        .unwrap()
        .into_iter()
        .map(|entry| entry.name.to_string())
        .collect();
    assert_eq!(names, ["kept"]);
    put(&db, "again", LARGE).unwrap();
    db.sync().unwrap();
}

#[test]
fn a_failed_flush_stops_the_engine_and_reopening_recovers() {
    fail_between(|storage| storage.faults().fail_flush(1));
}

#[test]
fn a_failed_write_stops_the_engine_and_reopening_recovers() {
    fail_between(|storage| storage.faults().fail_write(1));
}

/// What is logged needs no device until it is applied; then a failure stops the engine, and nothing
/// is lost.
#[test]
fn logged_content_survives_a_failed_apply() {
    let dir = tempfile::tempdir().unwrap();
    let (path, storage) = create(dir.path());
    let faults: [fn(&SimStorage); 2] = [
        |storage| storage.faults().fail_flush(1),
        |storage| storage.faults().fail_write(1),
    ];
    for fail in faults {
        let db = open(&path, &storage);
        put(&db, "kept", 10_000).unwrap();
        fail(&storage);
        db.sync().unwrap();
        assert!(db.close().is_err(), "closing applies");
        let db = open(&path, &storage);
        assert!(
            db.maintenance()
                .check(true, &mut |_, _| {})
                .unwrap()
                .findings
                .is_empty()
        );
        assert_eq!(db.files().read(b"/kept").unwrap()[..], [7; 10_000]);
        db.nodes()
            .unlink(NodeId::ROOT, &Name::new(b"kept").unwrap())
            .unwrap();
        db.close().unwrap();
    }
}

#[test]
fn a_full_host_is_no_space_at_the_write_and_nothing_else_breaks() {
    let dir = tempfile::tempdir().unwrap();
    let (path, storage) = create(dir.path());
    storage.faults().limit_host(100 << 20);
    let db = open(&path, &storage);
    let mut fitted = 0;
    let refused = loop {
        match put(&db, &format!("f{fitted}"), 1 << 20) {
            Ok(()) => fitted += 1,
            Err(error) => break error,
        }
        assert!(fitted < 200);
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    db.sync().unwrap();
    assert!(fitted > 20, "{fitted} MiB fitted");
    db.nodes()
        .unlink(NodeId::ROOT, &Name::new(b"f0").unwrap())
        .unwrap();
    put(&db, "again", 1 << 20).unwrap();
    assert!(
        db.maintenance()
            .check(true, &mut |_, _| {})
            .unwrap()
            .findings
            .is_empty()
    );
}
