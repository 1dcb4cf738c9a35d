//! Long transactions: isolated, then one commit or a list of conflicts, and never a trace.

mod common;

use larder::{
    CreateOptions, Database, LongTransaction, OpenOptions, SqlRow, SqlValue, TransactionOutcome,
};
use std::path::Path;

fn create(dir: &Path) -> std::path::PathBuf {
    let path = dir.join("a.larder");
    Database::create(&path, &CreateOptions::default()).unwrap();
    path
}

fn open(path: &Path) -> Database {
    Database::open(path, OpenOptions::default()).unwrap()
}

fn begin(path: &Path) -> LongTransaction {
    LongTransaction::begin(path, OpenOptions::default()).unwrap()
}

fn sql(database: &Database, text: &str) -> Vec<Vec<SqlValue>> {
    let mut rows = Vec::new();
    database
        .sql(false)
        .unwrap()
        .execute(text, &mut |row: SqlRow| {
            rows.push(row.values);
            Ok(())
        })
        .unwrap();
    rows
}

fn assert_sound(database: &Database) {
    database.sync().unwrap();
    let report = database.check(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
}

fn content(length: usize, seed: u8) -> Vec<u8> {
    (0..length).map(|at| (at / 7) as u8 ^ seed).collect()
}

fn remove(database: &Database, path: &[u8]) {
    let (parent, name) = database.resolve_parent(path).unwrap();
    database.unlink(parent, &name).unwrap();
}

fn conflicts(outcome: TransactionOutcome) -> Vec<String> {
    match outcome {
        TransactionOutcome::Committed => Vec::new(),
        TransactionOutcome::Conflicts(list) => list.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn what_is_committed_is_one_commit_and_what_is_not_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path());
    let parent = open(&path);
    parent.put(b"/kept", &content(300_000, 1)).unwrap();
    parent.put(b"/gone", &content(300_000, 2)).unwrap();
    sql(
        &parent,
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)",
    );
    sql(&parent, "INSERT INTO notes VALUES (1, 'one'), (2, 'two')");
    parent.sync().unwrap();

    let txn = begin(&path);
    let view = txn.database().unwrap();
    assert_eq!(view.get(b"/kept").unwrap(), content(300_000, 1));
    view.put(b"/kept", &content(500_000, 3)).unwrap();
    view.put(b"/new", &content(5_000_000, 4)).unwrap();
    view.put(b"/small", b"tiny").unwrap();
    remove(view, b"/gone");
    view.sync().unwrap();
    sql(
        view,
        "UPDATE notes SET text = 'uno' WHERE id = 1; DELETE FROM notes WHERE id = 2; INSERT INTO notes VALUES (3, 'tres')",
    );
    assert_sound(view);
    assert_eq!(parent.get(b"/kept").unwrap(), content(300_000, 1));
    assert!(parent.get(b"/new").is_err());
    assert_eq!(
        sql(&parent, "SELECT count(*) FROM notes"),
        [[SqlValue::Integer(2)]]
    );
    parent.put(b"/other", &content(100_000, 5)).unwrap();
    assert_sound(&parent);

    assert_eq!(conflicts(txn.commit().unwrap()), Vec::<String>::new());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(parent.get(b"/kept").unwrap(), content(500_000, 3));
    assert_eq!(parent.get(b"/new").unwrap(), content(5_000_000, 4));
    assert_eq!(parent.get(b"/small").unwrap(), b"tiny");
    assert_eq!(parent.get(b"/other").unwrap(), content(100_000, 5));
    assert!(parent.get(b"/gone").is_err());
    assert_eq!(
        sql(&parent, "SELECT text FROM notes ORDER BY id"),
        [
            [SqlValue::Text("uno".into())],
            [SqlValue::Text("tres".into())]
        ]
    );
    assert_sound(&parent);

    let before = parent.space().unwrap();
    let txn = begin(&path);
    txn.database()
        .unwrap()
        .put(b"/junk", &content(90 << 20, 6))
        .unwrap();
    txn.database().unwrap().sync().unwrap();
    txn.abort().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_sound(&parent);
    assert_eq!(parent.space().unwrap().live_bytes, before.live_bytes);
    assert!(
        std::fs::read_dir(path.join("transactions"))
            .unwrap()
            .next()
            .is_none()
    );
}
