//! A database in a temporary directory, and short ways to use it.

#![allow(clippy::unwrap_used, dead_code, missing_docs)] // Each test file uses some of it.

pub mod columns;
pub mod moments;
pub mod others;
pub mod replay;
pub mod sql;
pub mod temporal;
pub mod workspace;

use larder::{
    Caller, CreateOptions, Database, DatabaseOptions, Error, ErrorKind, Name, NewNode, NodeId,
};
use std::path::Path;

pub const OWNER: Caller = Caller {
    uid: 1,
    gid: 2,
    umask: 0,
};

pub fn create(dir: &Path, capacity_bytes: Option<u64>) -> Database {
    create_with(dir, capacity_bytes, None)
}

/// One that forgets at once what is replaced and deleted.
pub fn create_without_history(dir: &Path, capacity_bytes: Option<u64>) -> Database {
    create_with(dir, capacity_bytes, Some(0))
}

fn create_with(dir: &Path, capacity_bytes: Option<u64>, retention_ns: Option<i64>) -> Database {
    let path = dir.join("t.larder");
    Database::create(
        &path,
        &CreateOptions {
            capacity_bytes,
            retention_ns,
            ..CreateOptions::default()
        },
    )
    .unwrap();
    open(dir)
}

pub fn open(dir: &Path) -> Database {
    Database::open(
        &dir.join("t.larder"),
        DatabaseOptions {
            label: "test".into(),
            ..DatabaseOptions::default()
        },
    )
    .unwrap()
}

/// What a kill at this moment leaves: the files as they are, without their session.
pub fn crash(from: &Path, to: &Path) {
    let (from, to) = (from.join("t.larder"), to.join("t.larder"));
    std::fs::create_dir_all(to.join("segments")).unwrap();
    for file in ["catalog.db", "catalog.db-wal"] {
        if from.join(file).exists() {
            std::fs::copy(from.join(file), to.join(file)).unwrap();
        }
    }
    for entry in std::fs::read_dir(from.join("segments")).unwrap() {
        let entry = entry.unwrap();
        std::fs::copy(entry.path(), to.join("segments").join(entry.file_name())).unwrap();
    }
}

/// A directory in memory, if there can be one.
pub fn scratch() -> tempfile::TempDir {
    match Path::new("/dev/shm").is_dir() {
        true => tempfile::tempdir_in("/dev/shm"),
        false => tempfile::tempdir(),
    }
    .unwrap()
}

pub fn name(text: &str) -> Name {
    Name::new(text.as_bytes()).unwrap()
}

pub fn make(db: &Database, parent: NodeId, text: &str) -> NodeId {
    db.nodes()
        .create_node(parent, &name(text), NewNode::File, 0o644, OWNER)
        .unwrap()
        .node
}

pub fn folder(db: &Database, parent: NodeId, text: &str) -> NodeId {
    db.nodes()
        .create_node(parent, &name(text), NewNode::Directory, 0o755, OWNER)
        .unwrap()
        .node
}

pub fn put(db: &Database, parent: NodeId, text: &str, bytes: &[u8]) -> NodeId {
    let node = make(db, parent, text);
    db.nodes()
        .open(node, true)
        .unwrap()
        .write_at(0, bytes)
        .unwrap();
    node
}

pub fn content(db: &Database, node: NodeId) -> Vec<u8> {
    let handle = db.nodes().open(node, false).unwrap();
    let mut bytes = vec![0; handle.metadata().unwrap().size_bytes as usize];
    let read = handle.read_at(0, &mut bytes).unwrap();
    assert_eq!(read, bytes.len());
    bytes
}

pub fn pattern(len: usize, salt: u64) -> Vec<u8> {
    let mut state = salt | 1;
    (0..len)
        .map(|_| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1_442_695_040_888_963_407);
            (state >> 56) as u8
        })
        .collect()
}

pub fn assert_clean(db: &Database) {
    let report = db.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
}

pub fn kind<T: std::fmt::Debug>(outcome: Result<T, Error>) -> ErrorKind {
    outcome.unwrap_err().kind()
}
