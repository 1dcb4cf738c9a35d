//! Taking back one commit.
use crate::common;

use crate::common::moments::{Clock, HOUR, create, now, open};
use crate::common::{assert_clean, folder, kind, name, pattern, put};
use larder::{
    AllocateMode, Database, DefragOptions, ErrorKind, Moment, NewNode, NodeId, RenameMode, SetAttr,
    XattrMode, diff,
};

const R: NodeId = NodeId::ROOT;

#[test]
fn a_commit_is_taken_back_where_nothing_built_on_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    let d = folder(&db, R, "d");
    let kept = put(&db, d, "kept", b"kept");
    put(&db, d, "gone", &pattern(200_000, 3));
    let one = put(&db, R, "one", b"1");
    let two = put(&db, R, "two", b"2");
    let deep = folder(&db, d, "deep");
    put(&db, deep, "file", b"deep");
    let before = now(&db);
    // One commit with everything in it.
    db.transactions()
        .run(|txn| {
            txn.files().write(b"/d/kept", b"changed")?;
            let change = SetAttr {
                mode: Some(0o600),
                ..SetAttr::default()
            };
            txn.nodes().set_attr(kept, &change)?;
            txn.nodes().unlink(d, &name("gone"))?;
            txn.nodes().unlink(deep, &name("file"))?;
            txn.nodes().remove_dir(d, &name("deep"))?;
            txn.nodes()
                .rename(R, &name("one"), R, &name("two"), RenameMode::Exchange)?;
            let new = txn.nodes().create_node(
                R,
                &name("new"),
                NewNode::Directory,
                0o755,
                common::OWNER,
            )?;
            txn.files().write(b"/new/inside", b"x")?;
            txn.nodes().link(two, new.node, &name("another"))?;
            txn.attributes().set(one, b"user.k", b"v", XattrMode::Set)
        })
        .unwrap();
    let Moment::Seq(seq) = now(&db) else {
        panic!("a number")
    };
    // Something beside it, which stays.
    put(&db, R, "later", b"later");
    db.attributes()
        .set(two, b"user.other", b"w", XattrMode::Set)
        .unwrap();
    db.sync().unwrap();
    let dry = db.history().undo(seq, true).unwrap();
    assert_eq!(db.files().read(b"/d/kept").unwrap(), b"changed");
    let report = db.history().undo(seq, false).unwrap();
    assert_eq!(dry, report);
    assert_eq!(report.seq, seq);
    let past = db.as_of(&before).unwrap();
    let left = diff((&past, b"/"), (&db, b"/")).unwrap();
    let left: Vec<_> = left
        .changes
        .iter()
        .map(|change| {
            (
                String::from_utf8_lossy(&change.path).into_owned(),
                change.xattrs,
            )
        })
        .collect();
    assert_eq!(
        left,
        [("/later".to_owned(), false), ("/two".to_owned(), true)],
        "CONTENT-12"
    );
    assert_clean(&db);
    // An undo is a commit like others: it can be taken back too.
    let Moment::Seq(undone) = now(&db) else {
        panic!("a number")
    };
    db.history().undo(undone, false).unwrap();
    assert_eq!(db.files().read(b"/d/kept").unwrap(), b"changed");
    assert_eq!(db.files().read(b"/new/inside").unwrap(), b"x");
    assert_clean(&db);
}

#[test]
fn an_undo_that_conflicts_does_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    let file = put(&db, R, "file", b"first");
    let number = || match now(&db) {
        Moment::Seq(seq) => seq,
        other => panic!("{other:?}"),
    };
    number();
    db.files().write(b"/file", b"second").unwrap();
    let written = number();
    folder(&db, R, "d");
    let made = number();
    db.nodes().unlink(R, &name("file")).unwrap();
    let removed = number();
    put(&db, R, "file", b"another");
    let again = number();
    let d = db.nodes().resolve(b"/d", false).unwrap().node;
    put(&db, d, "inside", b"x");
    let inside = number();
    let before = now(&db);
    for (seq, path) in [(written, "/file"), (made, "d"), (removed, "file")] {
        let refused = db.history().undo(seq, false).unwrap_err();
        assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
        assert!(refused.to_string().contains(path), "{path}: {refused}");
    }
    let past = db.as_of(&before).unwrap();
    assert_eq!(diff((&past, b"/"), (&db, b"/")).unwrap().changes, []);
    // Newest first there is no conflict.
    for seq in [inside, again, removed, made] {
        db.history().undo(seq, false).unwrap();
    }
    assert_eq!(db.files().read(b"/file").unwrap(), b"second");
    // But the file that came back is another inode, which commits before its end know nothing of.
    let refused = db.history().undo(written, false).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Conflict, "{refused}");
    assert_eq!(db.files().read(b"/file").unwrap(), b"second");
    assert_eq!(
        kind(db.nodes().metadata(file)),
        ErrorKind::NotFound,
        "CATALOG-4"
    );
    assert_eq!(kind(db.history().undo(0, false)), ErrorKind::InvalidInput);
    assert_eq!(
        kind(db.history().undo(999_999, false)),
        ErrorKind::InvalidInput
    );
    assert_clean(&db);
}

#[test]
fn what_moved_into_a_new_directory_comes_out_of_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    let top = folder(&db, R, "top");
    let file = put(&db, top, "a", b"a");
    let p = folder(&db, top, "p");
    let q = folder(&db, p, "q");
    let before = now(&db);
    let past = db.as_of(&before).unwrap();
    let root = db.nodes().metadata(R).unwrap();
    let undone = |done: &dyn Fn()| {
        done();
        let Moment::Seq(seq) = now(&db) else {
            panic!("a number")
        };
        db.history().undo(seq, false).unwrap();
        assert_eq!(diff((&past, b"/"), (&db, b"/")).unwrap().changes, []);
        assert_eq!(db.nodes().resolve(b"/top/a", false).unwrap().node, file);
        assert_eq!(db.nodes().resolve(b"/top/p/q", false).unwrap().node, q);
        assert_eq!(db.nodes().metadata(R).unwrap().mtime_ns, root.mtime_ns);
        assert_clean(&db);
    };
    let rename = |from: (NodeId, &str), to: (NodeId, &str)| {
        let mode = RenameMode::NoReplace;
        db.nodes()
            .rename(from.0, &name(from.1), to.0, &name(to.1), mode)
            .unwrap();
    };
    undone(&|| {
        let new = folder(&db, top, "new");
        rename((top, "a"), (new, "a"));
    });
    undone(&|| {
        let new = folder(&db, top, "new");
        let inner = folder(&db, new, "inner");
        rename((top, "a"), (inner, "a"));
        rename((top, "p"), (inner, "p"));
    });
    // Parent and child exchanged.
    undone(&|| {
        rename((p, "q"), (top, "q"));
        rename((top, "p"), (q, "p"));
    });
}

#[test]
fn work_in_the_background_is_no_later_change() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    let file = put(&db, R, "file", &pattern(1 << 20, 1));
    now(&db);
    let handle = db.nodes().open(file, true).unwrap();
    handle.write_at(8192, &pattern(4096, 2)).unwrap();
    drop(handle);
    let Moment::Seq(seq) = now(&db) else {
        panic!("a number")
    };
    let redo_rows = || {
        let mut rows = Vec::new();
        let mut session = db.sql().open(true).unwrap();
        let mut keep = |row: larder::SqlRow| {
            rows.extend(row.values);
            Ok(())
        };
        session
            .execute("SELECT count(*) FROM larder_redo_row", &mut keep)
            .unwrap();
        rows
    };
    assert_ne!(redo_rows(), [larder::SqlValue::Integer(0)]);
    // Written in place, which changes the map.
    db.maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
    db.sync().unwrap();
    assert_eq!(redo_rows(), [larder::SqlValue::Integer(0)]);
    db.history().undo(seq, false).unwrap();
    assert_eq!(
        db.files().read(b"/file").unwrap(),
        pattern(1 << 20, 1),
        "CONTENT-10"
    );
    // But what somebody writes is one, of the same size too.
    db.files().write(b"/file", pattern(1 << 20, 3)).unwrap();
    let Moment::Seq(seq) = now(&db) else {
        panic!("a number")
    };
    let handle = db.nodes().open(file, true).unwrap();
    handle.write_at(0, b"later").unwrap();
    drop(handle);
    now(&db);
    assert_eq!(kind(db.history().undo(seq, false)), ErrorKind::Conflict);
    assert_clean(&db);
}

/// Files that grow beside each other lie in parts, and are placed whole when nobody writes to them
/// any more.
#[test]
fn what_is_placed_whole_later_is_no_later_change() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    let files = ["one", "two"].map(|name| put(&db, R, name, b""));
    let handles = files.map(|file| db.nodes().open(file, true).unwrap());
    for part in 0..4 {
        for handle in &handles {
            handle
                .write_at(part << 16, &pattern(1 << 16, part + 1))
                .unwrap();
        }
        now(&db);
    }
    drop(handles);
    let Moment::Seq(seq) = now(&db) else {
        panic!("a number")
    };
    db.close().unwrap();
    let db = open(dir.path());
    assert!(
        db.maintenance().stats().unwrap().commit_seq > seq,
        "they were placed"
    );
    db.history().undo(seq, true).unwrap();
}

/// Before, the times of a file told whether somebody had written it.
#[test]
fn what_is_written_while_the_clock_stands_still_is_taken_back() {
    type Write = fn(&Database, NodeId);
    let writes: [(&str, usize, Write); 6] = [
        ("a part", 1 << 20, |db, file| {
            let handle = db.nodes().open(file, true).unwrap();
            handle.write_at(8192, &pattern(4096, 2)).unwrap();
        }),
        ("all of it", 1 << 20, |db, _| {
            db.files().write(b"/file", pattern(1 << 20, 2)).unwrap();
        }),
        ("a tiny one", 100, |db, _| {
            db.files().write(b"/file", pattern(100, 2)).unwrap();
        }),
        ("a hole", 1 << 20, |db, file| {
            let handle = db.nodes().open(file, true).unwrap();
            handle
                .allocate(AllocateMode::PunchHole, 65536, 65536)
                .unwrap();
        }),
        ("shorter, and as long again", 1 << 20, |db, file| {
            let handle = db.nodes().open(file, true).unwrap();
            handle.set_len(1000).unwrap();
            handle.set_len(1 << 20).unwrap();
        }),
        ("moved in itself", 47544, |db, file| {
            let handle = db.nodes().open(file, true).unwrap();
            handle.move_range(8192, 15344, 4058).unwrap();
        }),
    ];
    for (what, len, write) in writes {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::new();
        let db = clock.create(dir.path(), 64, HOUR);
        let file = put(&db, R, "file", &pattern(len, 1));
        now(&db);
        write(&db, file);
        let written = db.files().read(b"/file").unwrap();
        assert_ne!(written, pattern(len, 1), "{what}");
        let Moment::Seq(seq) = now(&db) else {
            panic!("a number")
        };
        db.history()
            .undo(seq, false)
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        assert_eq!(
            db.files().read(b"/file").unwrap(),
            pattern(len, 1),
            "{what}"
        );
        // The undo was written at the same time as well; and so is what comes after it.
        let Moment::Seq(seq) = now(&db) else {
            panic!("a number")
        };
        write(&db, file);
        now(&db);
        assert_eq!(
            kind(db.history().undo(seq, false)),
            ErrorKind::Conflict,
            "{what}"
        );
        assert_eq!(db.files().read(b"/file").unwrap(), written, "{what}");
        assert_clean(&db);
    }
}
