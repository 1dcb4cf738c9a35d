//! Short ways to use a database and a long transaction on it.

use super::OWNER;
use larder::{
    CreateOptions, Database, DatabaseOptions, LongTransaction, NewNode, RenameMode, SetAttr,
    SqlRow, SqlValue, TransactionOutcome, XattrMode,
};
use std::path::Path;

pub fn create(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("a.larder");
    Database::create(&path, &CreateOptions::default()).unwrap();
    path
}

pub fn open(path: &Path) -> Database {
    Database::open(path, DatabaseOptions::default()).unwrap()
}

pub fn begin(path: &Path) -> LongTransaction {
    LongTransaction::begin(path, DatabaseOptions::default()).unwrap()
}

pub fn sql(database: &Database, text: &str) -> Vec<Vec<SqlValue>> {
    let mut rows = Vec::new();
    database
        .sql()
        .open(false)
        .unwrap()
        .execute(text, &mut |row: SqlRow| {
            rows.push(row.values);
            Ok(())
        })
        .unwrap();
    rows
}

pub fn assert_sound(database: &Database) {
    database.sync().unwrap();
    let report = database.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
}

pub fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 7) as u8 ^ seed).collect()
}

pub fn remove(database: &Database, path: &[u8]) {
    let (parent, name) = database.nodes().resolve_parent(path).unwrap();
    database.nodes().unlink(parent, &name).unwrap();
}

pub fn conflicts(outcome: TransactionOutcome) -> Vec<String> {
    match outcome {
        TransactionOutcome::Committed => Vec::new(),
        TransactionOutcome::Conflicts(list) => list.iter().map(ToString::to_string).collect(),
    }
}

pub fn mkdir(database: &Database, path: &str) {
    let (parent, name) = database.nodes().resolve_parent(path.as_bytes()).unwrap();
    database
        .nodes()
        .create_node(parent, &name, NewNode::Directory, 0o755, OWNER)
        .unwrap();
}

pub fn rmdir(database: &Database, path: &str) {
    let (parent, name) = database.nodes().resolve_parent(path.as_bytes()).unwrap();
    database.nodes().remove_dir(parent, &name).unwrap();
}

pub fn rename(database: &Database, from: &str, to: &str) {
    let (parent, name) = database.nodes().resolve_parent(from.as_bytes()).unwrap();
    let (new_parent, new_name) = database.nodes().resolve_parent(to.as_bytes()).unwrap();
    database
        .nodes()
        .rename(parent, &name, new_parent, &new_name, RenameMode::Replace)
        .unwrap();
}

pub fn link(database: &Database, from: &str, to: &str) {
    let node = database
        .nodes()
        .resolve(from.as_bytes(), false)
        .unwrap()
        .node;
    let (parent, name) = database.nodes().resolve_parent(to.as_bytes()).unwrap();
    database.nodes().link(node, parent, &name).unwrap();
}

pub fn chmod(database: &Database, path: &str, mode: u32) {
    let node = database
        .nodes()
        .resolve(path.as_bytes(), false)
        .unwrap()
        .node;
    let change = SetAttr {
        mode: Some(mode),
        ..SetAttr::default()
    };
    database.nodes().set_attr(node, &change).unwrap();
}

pub fn mode(database: &Database, path: &str) -> u32 {
    database
        .nodes()
        .resolve(path.as_bytes(), false)
        .unwrap()
        .mode
        & 0o7777
}

pub fn set_xattr(database: &Database, path: &str, name: &str, value: &str) {
    let node = database
        .nodes()
        .resolve(path.as_bytes(), false)
        .unwrap()
        .node;
    let mode = XattrMode::Set;
    database
        .attributes()
        .set(node, name.as_bytes(), value.as_bytes(), mode)
        .unwrap();
}
