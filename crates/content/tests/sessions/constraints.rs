//! What users' rules refuse, before and after it was answered, and what is left of an operation
//! that failed.

use super::content_faults::{Kinds, fail_at};
use crate::common::others::plain;
use crate::common::{OWNER, content, create, folder, make, name, put, scratch};
use larder::{
    Database, DatabaseOptions, EngineOptions, ErrorKind, NodeId, RenameMode, SetAttr, XattrMode,
    list_refused, open_refused,
};
use std::collections::BTreeMap;
use std::io::Read;
use std::path::Path;

/// Commits only when it is told to.
pub fn open_quiet(dir: &Path) -> Database {
    let options = DatabaseOptions {
        label: "test".into(),
        engine: EngineOptions {
            has_background: false,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    Database::open(&dir.join("t.larder"), options).unwrap()
}

/// Rows of these inodes cannot be written.
pub const FROZEN: &str = "CREATE TABLE frozen (ino INTEGER PRIMARY KEY); \
    CREATE TRIGGER f1 BEFORE INSERT ON main WHEN new.ino IN (SELECT ino FROM frozen) \
      BEGIN SELECT RAISE(ABORT, 'it is frozen'); END; \
    CREATE TRIGGER f2 BEFORE UPDATE ON main WHEN old.ino IN (SELECT ino FROM frozen) \
      BEGIN SELECT RAISE(ABORT, 'it is frozen'); END; \
    CREATE TRIGGER f3 BEFORE DELETE ON main WHEN old.ino IN (SELECT ino FROM frozen) \
      BEGIN SELECT RAISE(ABORT, 'it is frozen'); END;";

/// All that is below a directory: path, attributes, extended attributes, content.
fn tree(db: &Database, top: NodeId) -> BTreeMap<String, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![(String::new(), top)];
    while let Some((path, node)) = left.pop() {
        let attr = db.nodes().metadata(node).unwrap();
        let mut all = format!("{attr:?}");
        for name in db.attributes().list(node).unwrap() {
            let value = db.attributes().get(node, &name).unwrap();
            all.push_str(&format!(" {}={value:?}", String::from_utf8_lossy(&name)));
        }
        match attr.kind {
            larder::format::FileKind::File => {
                let bytes = content(db, node);
                let sum: u64 = bytes.iter().map(|&byte| u64::from(byte)).sum();
                all.push_str(&format!(" {:?} {sum}", &bytes[..bytes.len().min(16)]));
            }
            larder::format::FileKind::Directory => {
                for entry in db.nodes().read_dir(node, None, 1000).unwrap() {
                    left.push((format!("{path}/{}", entry.name), entry.node));
                }
            }
            _ => {}
        }
        found.insert(path, all);
    }
    found
}

/// What an operation works on.
struct Place {
    top: NodeId,
    file: NodeId,
    full: NodeId,
}

fn prepare(db: &Database, text: &str) -> Place {
    let top = folder(db, NodeId::ROOT, text);
    let file = put(db, top, "file", b"some content");
    db.attributes()
        .set(file, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    put(db, top, "other", &[7; 9000]);
    folder(db, top, "empty");
    let full = folder(db, top, "full");
    put(db, full, "inner", b"inner");
    let node = make(db, top, "linked");
    db.nodes().link(node, full, &name("link")).unwrap();
    Place { top, file, full }
}

type Operation = (&'static str, fn(&Database, &Place) -> larder::Result<()>);

const OPERATIONS: &[Operation] = &[
    ("create", |db, at| {
        db.nodes()
            .create_node(at.top, &name("new"), larder::NewNode::File, 0o600, OWNER)
            .map(drop)
    }),
    ("create open", |db, at| {
        db.nodes()
            .create_file(at.top, &name("new"), 0o600, OWNER, true)
            .map(drop)
    }),
    ("make a directory", |db, at| {
        db.nodes()
            .create_node(
                at.top,
                &name("new"),
                larder::NewNode::Directory,
                0o700,
                OWNER,
            )
            .map(drop)
    }),
    ("symlink", |db, at| {
        let target = larder::NewNode::Symlink(b"file");
        db.nodes()
            .create_node(at.top, &name("new"), target, 0, OWNER)
            .map(drop)
    }),
    ("unlink", |db, at| db.nodes().unlink(at.top, &name("file"))),
    ("unlink one of two", |db, at| {
        db.nodes().unlink(at.top, &name("linked"))
    }),
    ("unlink an open file", |db, at| {
        let _open = db.nodes().open(at.file, false)?;
        db.nodes().unlink(at.top, &name("file"))
    }),
    ("remove a directory", |db, at| {
        db.nodes().remove_dir(at.top, &name("empty"))
    }),
    ("link", |db, at| {
        db.nodes().link(at.file, at.full, &name("second")).map(drop)
    }),
    ("rename", |db, at| {
        db.nodes().rename(
            at.top,
            &name("file"),
            at.full,
            &name("moved"),
            RenameMode::Replace,
        )
    }),
    ("rename a directory", |db, at| {
        db.nodes().rename(
            at.top,
            &name("empty"),
            at.full,
            &name("moved"),
            RenameMode::Replace,
        )
    }),
    ("save", |db, at| {
        db.nodes().rename(
            at.top,
            &name("other"),
            at.top,
            &name("file"),
            RenameMode::Replace,
        )
    }),
    ("set aside", |db, at| {
        db.nodes().rename(
            at.top,
            &name("file"),
            at.top,
            &name("file~"),
            RenameMode::Replace,
        )
    }),
    ("rename over a directory", |db, at| {
        db.nodes().rename(
            at.top,
            &name("full"),
            at.top,
            &name("empty"),
            RenameMode::Replace,
        )
    }),
    ("exchange", |db, at| {
        db.nodes().rename(
            at.top,
            &name("file"),
            at.full,
            &name("inner"),
            RenameMode::Exchange,
        )
    }),
    ("chmod", |db, at| {
        let mode = SetAttr {
            mode: Some(0o640),
            ..SetAttr::default()
        };
        db.nodes().set_attr(at.file, &mode).map(drop)
    }),
    ("set an attribute", |db, at| {
        db.attributes()
            .set(at.file, b"user.a", b"2", XattrMode::Set)
    }),
    ("remove an attribute", |db, at| {
        db.attributes().remove(at.file, b"user.a")
    }),
    ("put", |db, at| {
        db.files()
            .write([&top_path(db, at)[..], b"/file"].concat(), [3; 20_000])
            .map(drop)
    }),
    ("put anew", |db, at| {
        db.files()
            .write([&top_path(db, at)[..], b"/new"].concat(), b"new")
            .map(drop)
    }),
    ("write", |db, at| {
        db.nodes().open(at.file, true)?.write_at(5, &[1; 5000])
    }),
    ("truncate", |db, at| {
        db.nodes().open(at.file, true)?.set_len(3)
    }),
    ("truncate by name", |db, at| {
        let change = SetAttr {
            size_bytes: Some(3),
            mode: Some(0o600),
            drop_set_id: true,
            ..SetAttr::default()
        };
        db.nodes().set_attr(at.file, &change).map(drop)
    }),
    ("truncate and change", |db, at| {
        let change = SetAttr {
            uid: Some(7),
            ..SetAttr::default()
        };
        let open = db.nodes().open(at.file, true)?;
        open.truncate(30_000, &change).map(drop)
    }),
];

fn top_path(db: &Database, at: &Place) -> Vec<u8> {
    let entries = db.nodes().read_dir(NodeId::ROOT, None, 10_000).unwrap();
    let entry = entries.iter().find(|entry| entry.node == at.top).unwrap();
    [b"/", entry.name.as_bytes()].concat()
}

/// What must be as it was: the tree, what is reserved of space, and what a commit would write.
fn state(db: &Database, at: &Place) -> (BTreeMap<String, String>, u64, u64) {
    let gauges = db.maintenance().gauges().unwrap();
    (tree(db, at.top), gauges.reserved_bytes, gauges.dirty_bytes)
}

fn fail_at_any_step(kinds: Kinds) {
    let dir = scratch();
    drop(create(dir.path(), None));
    let db = open_quiet(dir.path());
    let mut failures = 0;
    for (what, operation) in OPERATIONS {
        for is_committed in [true, false] {
            'steps: for step in 0.. {
                for &kind in kinds.after(failures) {
                    let about = format!("{what} {is_committed} {step} {kind:?}");
                    let at = prepare(&db, &about);
                    if is_committed {
                        db.sync().unwrap();
                    }
                    let before = state(&db, &at);
                    let failed = fail_at(step, kind, &about, || operation(&db, &at));
                    let Some(error) = failed else {
                        assert!(state(&db, &at) != before, "{what}");
                        break 'steps;
                    };
                    assert!(state(&db, &at) == before, "GUARD-2: {about}: {error}");
                    failures += 1;
                    if is_committed {
                        let seq = db.maintenance().stats().unwrap().commit_seq;
                        db.sync().unwrap();
                        let now = db.maintenance().stats().unwrap().commit_seq;
                        assert_eq!(now, seq, "GUARD-2: {about}: the group is not empty");
                    }
                }
            }
        }
    }
    assert!(failures > 100, "{failures}");
    db.sync().unwrap();
    let before = tree(&db, NodeId::ROOT);
    db.close().unwrap();
    let db = open_quiet(dir.path());
    assert!(tree(&db, NodeId::ROOT) == before, "GUARD-2: reopened");
    let report = db.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn an_operation_that_fails_at_any_step_leaves_nothing() {
    fail_at_any_step(Kinds::Sample);
}

#[test]
#[ignore = "a minute: cargo xtask soak"]
fn an_operation_that_fails_at_any_step_in_any_way_leaves_nothing() {
    fail_at_any_step(Kinds::Every);
}

#[test]
fn a_rule_refuses_the_operation_and_nothing_else() {
    let dir = scratch();
    let db = create(dir.path(), None);
    db.close().unwrap();
    plain(dir.path(), FROZEN);
    let db = open_quiet(dir.path());
    for (what, operation) in OPERATIONS {
        let at = prepare(&db, &format!("refused {what}"));
        db.sync().unwrap();
        // Whatever the operation touches, but nothing beside its place.
        plain(
            dir.path(),
            "INSERT INTO frozen SELECT ino FROM main WHERE ino > 1 \
               UNION SELECT value FROM (SELECT max(ino) + 1 AS value FROM main \
               UNION SELECT max(ino) + 2 FROM main UNION SELECT max(ino) + 3 FROM main)",
        );
        let before = state(&db, &at);
        let error = operation(&db, &at).expect_err(what);
        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{what}: {error}");
        assert!(
            error.to_string().contains("it is frozen"),
            "{what}: {error}"
        );
        assert!(state(&db, &at) == before, "CONSTRAINT-5, GUARD-3: {what}");
        plain(dir.path(), "DELETE FROM frozen");
        operation(&db, &at).expect(what);
        db.sync().unwrap();
    }
    assert!(
        list_refused(&dir.path().join("t.larder"))
            .unwrap()
            .is_empty()
    );
    db.close().unwrap();
}

#[test]
fn what_is_refused_after_its_answer_goes_alone_and_is_kept() {
    let dir = scratch();
    let db = create(dir.path(), None);
    db.close().unwrap();
    let db = open_quiet(dir.path());
    let kept = put(&db, NodeId::ROOT, "kept", b"kept");
    db.sync().unwrap();
    // Answered, and only then the rule comes.
    let refused = make(&db, NodeId::ROOT, "refused");
    let handle = db.nodes().open(refused, true).unwrap();
    handle.write_at(0, &[9; 100_000]).unwrap();
    db.nodes()
        .open(kept, true)
        .unwrap()
        .write_at(0, b"KEPT")
        .unwrap();
    put(&db, NodeId::ROOT, "new", b"new");
    let lost = folder(&db, NodeId::ROOT, "lost");
    put(&db, lost, "below", b"below");
    db.nodes()
        .rename(
            NodeId::ROOT,
            &name("kept"),
            NodeId::ROOT,
            &name("renamed"),
            RenameMode::Replace,
        )
        .unwrap();
    plain(dir.path(), FROZEN);
    plain(
        dir.path(),
        &format!(
            "INSERT INTO frozen VALUES ({}), ({})",
            refused.ino.0, lost.ino.0
        ),
    );
    let error = handle.sync().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Io);
    assert!(error.to_string().contains("it is frozen"), "{error}");
    assert_eq!(handle.check_refused().unwrap_err().kind(), ErrorKind::Io);
    handle.sync().unwrap();
    let names = || -> Vec<String> {
        let entries = db.nodes().read_dir(NodeId::ROOT, None, 100).unwrap();
        entries.iter().map(|entry| entry.name.to_string()).collect()
    };
    assert_eq!(names(), ["new", "renamed"], "CONSTRAINT-2");
    assert_eq!(content(&db, kept), b"KEPT");
    assert_eq!(db.maintenance().gauges().unwrap().refused_count, 3);
    assert_eq!(db.maintenance().stats().unwrap().refused_count, 3);
    drop(handle);
    // Nobody had the other two open: the end of the session says it.
    put(&db, NodeId::ROOT, "later", b"later");
    assert_eq!(db.close().unwrap_err().kind(), ErrorKind::NotPermitted);
    let path = dir.path().join("t.larder");
    let all = list_refused(&path).unwrap();
    let paths: Vec<&[u8]> = all.iter().map(|one| &one.path[..]).collect();
    assert_eq!(all.len(), 3, "{all:?}");
    for wanted in [&b"/refused"[..], b"/lost", b"/lost/below"] {
        assert!(paths.contains(&wanted), "CONSTRAINT-4: {all:?}");
    }
    let one = all.iter().find(|one| one.path == b"/refused").unwrap();
    let mut bytes = Vec::new();
    open_refused(&path, one.id)
        .unwrap()
        .read_to_end(&mut bytes)
        .unwrap();
    assert_eq!(bytes, [9; 100_000], "CONSTRAINT-4");
    larder::drop_refused(&path, one.id).unwrap();
    assert_eq!(list_refused(&path).unwrap().len(), 2);
    let db = open_quiet(dir.path());
    let report = db.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
    assert_eq!(content(&db, kept), b"KEPT");
}

/// What later operations did to what is refused goes with it, also those of the group that is open
/// meanwhile.
#[test]
fn deferred_keys_and_checks_are_rules() {
    let dir = scratch();
    let db = create(dir.path(), None);
    let file = put(&db, NodeId::ROOT, "file", b"1");
    db.close().unwrap();
    plain(
        dir.path(),
        &format!(
            "CREATE TABLE refers (ino INTEGER REFERENCES main (ino) DEFERRABLE INITIALLY \
             DEFERRED); \
             INSERT INTO refers VALUES ({}); ALTER TABLE main ADD COLUMN c CHECK (size < 1000)",
            file.ino.0
        ),
    );
    let db = open_quiet(dir.path());
    let error = db.nodes().unlink(NodeId::ROOT, &name("file")).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::NotPermitted);
    assert!(error.to_string().contains("refers"), "{error}");
    let handle = db.nodes().open(file, true).unwrap();
    let error = handle.write_at(10, &[1; 1000]).unwrap_err();
    assert!(error.to_string().contains("size < 1000"), "{error}");
    assert_eq!(
        handle.set_len(5000).unwrap_err().kind(),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        db.files().write(b"/file", [1; 1000]).unwrap_err().kind(),
        ErrorKind::NotPermitted
    );
    assert_eq!(
        db.files().write(b"/new", [1; 1000]).unwrap_err().kind(),
        ErrorKind::NotPermitted
    );
    handle.write_at(0, &[1; 999]).unwrap();
    drop(handle);
    db.sync().unwrap();
    assert_eq!(
        db.nodes().read_dir(NodeId::ROOT, None, 10).unwrap().len(),
        1
    );
    // A key that only the commit meets.
    put(&db, NodeId::ROOT, "free", b"free");
    db.sync().unwrap();
    let free = db.nodes().resolve(b"/free", false).unwrap().node;
    db.nodes().unlink(NodeId::ROOT, &name("free")).unwrap();
    put(&db, NodeId::ROOT, "beside", b"beside");
    plain(
        dir.path(),
        &format!("INSERT INTO refers VALUES ({})", free.ino.0),
    );
    db.sync().unwrap();
    assert_eq!(content(&db, free), b"free", "CONSTRAINT-2");
    assert_eq!(db.files().read(b"/beside").unwrap(), b"beside");
    db.close().unwrap_err();
}
