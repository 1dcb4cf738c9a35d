//! Who made a commit, as the log tells.
use crate::common;

use crate::common::sql::run;
use larder::{
    CommitAuthor, CreateOptions, Database, DatabaseOptions, LogCommit, Moment, PruneCut, SetAttr,
    SqlValue, act_for,
};
use larder_object::EngineOptions;
use std::ops::ControlFlow;
use std::path::Path;

fn open(dir: &Path, label: &str) -> Database {
    let options = DatabaseOptions {
        label: label.into(),
        engine: EngineOptions {
            has_background: false,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

/// The commits that changed a path, newest first.
fn log(db: &Database, path: &[u8]) -> Vec<LogCommit> {
    let mut found = Vec::new();
    db.history()
        .log(Some(path), None, &mut |commit| {
            found.push(commit);
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

fn authors(db: &Database, path: &[u8]) -> Vec<Option<CommitAuthor>> {
    let commits = log(db, path).into_iter();
    commits.map(|commit| commit.author).collect()
}

fn labels(db: &Database, path: &[u8]) -> Vec<String> {
    let authors = authors(db, path).into_iter();
    authors
        .map(|author| author.map_or_else(|| "nobody".to_owned(), |author| author.label))
        .collect()
}

#[test]
fn the_log_says_who_made_a_commit() {
    let dir = tempfile::tempdir().unwrap();
    Database::create(&dir.path().join("t.larder"), &CreateOptions::default()).unwrap();
    let first = open(dir.path(), "first");
    first.files().write(b"/f", b"one").unwrap();
    first.sync().unwrap();
    // One user, then two, then nobody in particular.
    let of = |user: Option<u32>, path: &[u8]| {
        act_for(user);
        first.files().write(path, b"bytes").unwrap();
    };
    of(Some(1000), b"/a");
    of(Some(1000), b"/a");
    first.sync().unwrap();
    of(Some(1000), b"/b");
    of(Some(1001), b"/c");
    first.sync().unwrap();
    act_for(None);
    let author = authors(&first, b"/a").remove(0).unwrap();
    assert_eq!(author.pid, std::process::id());
    assert_eq!(author.uid, larder_object::process_owner().0);
    assert_eq!((author.label.as_str(), author.user), ("first", Some(1000)));
    let several = authors(&first, b"/b").remove(0).unwrap();
    assert_eq!(several.user, None, "it is of two");
    assert_eq!(authors(&first, b"/f").remove(0).unwrap().user, None);

    // A transaction, and plain SQL, which leaves no name.
    first
        .transactions()
        .run(|txn| {
            txn.files().write(b"/f", b"two")?;
            txn.files().write(b"/g", b"two")
        })
        .unwrap();
    let mut session = first.sql().open(false).unwrap();
    run(
        &mut session,
        "UPDATE main SET mode = 256 WHERE ino = (SELECT ino FROM main_path WHERE path = '/g')",
    )
    .unwrap();
    drop(session);
    first.snapshots().create("s").unwrap();
    assert_eq!(labels(&first, b"/f"), ["first", "first"]);
    first.close().unwrap();

    // What is over has a name as long as the history knows of it.
    let second = open(dir.path(), "second");
    let attr = second.nodes().resolve(b"/f", false).unwrap();
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    second.nodes().set_attr(attr.node, &mode).unwrap();
    second.sync().unwrap();
    assert_eq!(labels(&second, b"/f"), ["second", "first", "first"]);
    let known = authors(&second, b"/f");
    assert_ne!(
        known[0].as_ref().unwrap().session,
        known[1].as_ref().unwrap().session
    );
    common::assert_clean(&second);
    let count = |db: &Database| {
        let mut session = db.sql().open(false).unwrap();
        let rows = run(
            &mut session,
            "SELECT label FROM larder_author ORDER BY session",
        )
        .unwrap();
        let label = |value| match value {
            SqlValue::Text(label) => label,
            other => panic!("{other:?}"),
        };
        rows.into_iter().map(label).collect::<Vec<String>>()
    };
    assert!(count(&second).contains(&"first".to_owned()));
    second.snapshots().destroy("s").unwrap();
    second
        .history()
        .prune(
            PruneCut::OlderThan(Moment::At(second.now_ns())),
            None,
            false,
        )
        .unwrap();
    second.close().unwrap();
    // One that changes nothing leaves nothing.
    open(dir.path(), "reader").close().unwrap();
    let third = open(dir.path(), "third");
    assert_eq!(count(&third), ["second", "third"], "AUTHOR-1");
    assert!(labels(&third, b"/g").is_empty());
    third.files().write(b"/f", b"three").unwrap();
    third.sync().unwrap();
    assert_eq!(labels(&third, b"/f"), ["third"]);
}
