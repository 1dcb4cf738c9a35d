//! What the past is good for: logs, differences and restores, against the model.
use crate::common;
use crate::support;

use crate::common::moments::{Clock, HOUR, create, now};
use crate::common::{assert_clean, content, folder, kind, make, name, pattern, put};
use crate::support::ContentTree;
use larder::{
    Caller, CreateOptions, Database, DefragOptions, DiffEvent, ErrorKind, FileKind, LogCommit,
    LogEvent, Moment, NewNode, NodeId, RenameMode, RestoreAction, RestoreOptions, RestoreReport,
    SetAttr, SetTime, XattrMode, diff,
};
use larder_object::EngineOptions;
use larder_testkit::{Mix, Rng, Script, Tree, explain_difference};
use std::ops::ControlFlow;

const R: NodeId = NodeId::ROOT;

fn log(db: &Database, path: Option<&str>) -> Vec<LogCommit> {
    let mut found = Vec::new();
    db.history()
        .log(path.map(str::as_bytes), None, &mut |commit| {
            found.push(commit);
            ControlFlow::Continue(())
        })
        .unwrap();
    found
}

/// What a log says, newest first: one line per change.
fn told(db: &Database, path: Option<&str>) -> Vec<String> {
    let line = |event: &LogEvent, path: &[u8]| {
        let path = String::from_utf8_lossy(path);
        match event {
            LogEvent::Created => format!("created {path}"),
            LogEvent::Removed => format!("removed {path}"),
            LogEvent::Renamed { from } => {
                format!("renamed {} {path}", String::from_utf8_lossy(from))
            }
            LogEvent::Linked => format!("linked {path}"),
            LogEvent::Unlinked => format!("unlinked {path}"),
            LogEvent::Content => format!("content {path}"),
            LogEvent::Attributes => format!("attributes {path}"),
            LogEvent::Columns => format!("columns {path}"),
        }
    };
    let commits = log(db, path);
    let changes = commits.iter().flat_map(|commit| &commit.changes);
    changes
        .map(|change| line(&change.event, &change.path))
        .collect()
}

#[test]
fn a_log_follows_a_file_through_its_renames() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 256);
    let dir_node = folder(&db, R, "d");
    db.sync().unwrap();
    let file = put(&db, R, "a", b"one");
    db.sync().unwrap();
    db.files().write(b"/a", b"two").unwrap();
    db.sync().unwrap();
    db.nodes()
        .rename(R, &name("a"), dir_node, &name("b"), RenameMode::Replace)
        .unwrap();
    db.sync().unwrap();
    let change = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    db.nodes().set_attr(file, &change).unwrap();
    db.sync().unwrap();
    db.nodes().link(file, R, &name("c")).unwrap();
    db.sync().unwrap();
    db.attributes()
        .set(file, b"user.x", b"1", XattrMode::Set)
        .unwrap();
    db.sync().unwrap();
    // Written and removed in one commit: only the end counts.
    db.files().write(b"/d/b", pattern(9000, 1)).unwrap();
    db.nodes().unlink(dir_node, &name("b")).unwrap();
    db.sync().unwrap();
    let expected = [
        "content /c",
        "unlinked /d/b",
        "attributes /c",
        "linked /c",
        "attributes /d/b",
        "renamed /a /d/b",
        "content /a",
        "created /a",
    ];
    assert_eq!(told(&db, Some("/c")), expected, "CONTENT-10");
    assert_eq!(told(&db, Some("/d/b")), expected, "by a name it had");
    // By way of /d: what happened in it.
    assert_eq!(
        told(&db, Some("/d")),
        [
            "unlinked /d/b",
            "attributes /d/b",
            "renamed /a /d/b",
            "created /d"
        ]
    );
    db.nodes().unlink(R, &name("c")).unwrap();
    db.nodes().remove_dir(R, &name("d")).unwrap();
    db.sync().unwrap();
    assert_eq!(told(&db, Some("/c"))[0], "removed /c");
    assert_eq!(told(&db, Some("/c"))[1..], expected);
    assert_eq!(told(&db, Some("/a")).len(), 9, "the name it had first");
    assert_eq!(told(&db, Some("/d"))[0], "removed /d");
    assert_eq!(told(&db, None)[..2], ["removed /c", "removed /d"]);
    assert_eq!(told(&db, None), told(&db, Some("/")));
    let mut none = db
        .history()
        .log(Some(b"/nobody"), None, &mut |_| ControlFlow::Continue(()));
    assert_eq!(kind(none), ErrorKind::NotFound);
    // Limits, and a reader who has enough.
    let mut seen = 0;
    none = db.history().log(None, Some(2), &mut |_| {
        seen += 1;
        ControlFlow::Continue(())
    });
    none.unwrap();
    assert_eq!(seen, 2);
    none = db.history().log(None, None, &mut |_| {
        seen += 1;
        ControlFlow::Break(())
    });
    none.unwrap();
    assert_eq!(seen, 3);
    // Content that only moves has not changed.
    let large = make(&db, R, "large");
    for at in (0..40).rev() {
        let file = db.nodes().open(large, true).unwrap();
        file.write_at(at * 100_000, &pattern(100_000, at)).unwrap();
        db.sync().unwrap();
    }
    let before = told(&db, None).len();
    db.maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
    db.sync().unwrap();
    assert_eq!(told(&db, None).len(), before, "CONTENT-10");
}

#[test]
fn a_log_waits_for_people_between_its_reads() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 64);
    let other = common::temporal::client(dir.path());
    for salt in 0..200 {
        db.files().write(b"/f", pattern(100, salt)).unwrap();
        db.sync().unwrap();
    }
    for path in [None, Some(&b"/f"[..])] {
        let mut seen = 0;
        db.history()
            .log(path, None, &mut |_| {
                // Nobody reads the log of the catalog, so that it can be emptied.
                if seen % 50 == 0 {
                    let busy = other.ask("PRAGMA wal_checkpoint(TRUNCATE)");
                    assert!(busy.starts_with("0|"), "CONTENT-10: {busy}");
                }
                seen += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, 200, "CONTENT-10");
        seen = 0;
        db.history()
            .log(path, Some(150), &mut |_| {
                seen += 1;
                ControlFlow::Continue(())
            })
            .unwrap();
        assert_eq!(seen, 150);
    }
}

#[test]
fn a_transaction_is_one_commit_in_the_log() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 256);
    put(&db, R, "f", b"1");
    db.sync().unwrap();
    db.transactions()
        .run(|txn| {
            txn.files().write(b"/f", b"22")?;
            txn.sql("SELECT count(*) FROM main", &[])?; // A step ends.
            txn.files().write(b"/g", b"3")?;
            txn.sql("SELECT count(*) FROM main", &[])?;
            txn.files().write(b"/f", b"333")?;
            Ok(())
        })
        .unwrap();
    let commits = log(&db, None);
    assert_eq!(commits[0].changes.len(), 2, "{commits:?}");
    assert_eq!(
        told(&db, None),
        ["content /f", "created /g", "created /f"],
        "CONTENT-10"
    );
    assert_eq!(told(&db, Some("/f")), ["content /f", "created /f"]);
}

#[test]
fn differences_are_told_by_kind() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 256);
    let (one, two) = (folder(&db, R, "one"), folder(&db, R, "two"));
    let same = put(&db, one, "same", &pattern(300_000, 1));
    let changed = put(&db, one, "changed", &pattern(300_000, 2));
    put(&db, one, "gone", b"gone");
    let moved = put(&db, one, "moved", b"moved");
    put(&db, two, "in two", b"x");
    put(&db, R, "file", b"becomes a directory");
    let mode = put(&db, R, "mode", b"m");
    let attr = put(&db, R, "attr", b"a");
    let then = now(&db);

    let handle = db.nodes().open(changed, true).unwrap();
    handle.write_at(299_999, b"!").unwrap();
    drop(handle);
    db.nodes().unlink(one, &name("gone")).unwrap();
    db.nodes()
        .rename(one, &name("moved"), R, &name("moved"), RenameMode::Replace)
        .unwrap();
    db.files().write(b"/moved", b"moved on").unwrap();
    db.nodes()
        .rename(R, &name("two"), R, &name("zwei"), RenameMode::Replace)
        .unwrap();
    db.nodes().unlink(R, &name("file")).unwrap();
    let file = folder(&db, R, "file");
    put(&db, file, "inside", b"i");
    let change = SetAttr {
        mode: Some(0o4711),
        uid: Some(77),
        ..SetAttr::default()
    };
    db.nodes().set_attr(mode, &change).unwrap();
    db.attributes()
        .set(attr, b"user.k", b"v", XattrMode::Set)
        .unwrap();
    let change = SetAttr {
        mtime: Some(SetTime::At(1)),
        ..SetAttr::default()
    };
    db.nodes().set_attr(same, &change).unwrap();
    assert_eq!(content(&db, moved), b"moved on");

    let past = db.as_of(&then).unwrap();
    let report = diff((&past, b"/"), (&db, b"/")).unwrap();
    let lines: Vec<String> = report
        .changes
        .iter()
        .map(|change| {
            let event = match &change.event {
                DiffEvent::Renamed { from } => format!("from {}", String::from_utf8_lossy(from)),
                other => format!("{other:?}"),
            };
            let flags = [
                (change.has_other_kind(), "kind"),
                (change.mode, "mode"),
                (change.owner, "owner"),
                (change.xattrs, "xattrs"),
                (change.content, "content"),
            ];
            let flags = flags.iter().filter(|(has, _)| *has);
            let flags: Vec<&str> = flags.map(|(_, word)| *word).collect();
            let path = String::from_utf8_lossy(&change.path);
            format!("{path} {event} {}", flags.join(","))
        })
        .collect();
    assert_eq!(
        lines,
        [
            "/attr Changed xattrs",
            "/file Changed kind",
            "/file/inside Added ",
            "/mode Changed mode,owner",
            "/moved from /one/moved content",
            "/one/changed Changed content",
            "/one/gone Removed ",
            "/zwei from /two "
        ]
    );
    // The file of which nothing was written was not read; the other was, of both moments.
    assert_eq!(report.read_bytes, 600_000, "CONTENT-11");
    assert!(report.unread_bytes >= 300_000, "CONTENT-11");
    let empty = |a: (&Database, &[u8]), b: (&Database, &[u8])| {
        assert_eq!(diff(a, b).unwrap().changes, []);
    };
    empty((&past, b"/"), (&past, b"/"));
    empty((&db, b"/"), (&db, b"/"));
    empty((&past, b"/two"), (&db, b"/zwei"));
    let back = diff((&db, b"/one"), (&past, b"/one")).unwrap();
    let paths: Vec<&[u8]> = back.changes.iter().map(|change| &change.path[..]).collect();
    assert_eq!(paths, [&b"/one/changed"[..], b"/one/gone", b"/one/moved"]);
    assert_eq!(
        kind(diff((&past, b"/zwei"), (&db, b"/zwei"))),
        ErrorKind::NotFound
    );
    // Another database: all content is read, and nothing is renamed.
    let other_dir = tempfile::tempdir().unwrap();
    let other = create(other_dir.path(), 256);
    let two = folder(&other, R, "zwei");
    put(&other, two, "in two", b"x");
    empty((&past, b"/two"), (&other, b"/zwei"));
    let report = diff((&db, b"/zwei"), (&other, b"/zwei")).unwrap();
    assert_eq!((report.changes.len(), report.read_bytes), (0, 2));
}

const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 200 << 10,
    write_bytes_max: 60 << 10,
    sync_percent: 10,
    overwrite_percent: 20,
    fragment_percent: 10,
};

/// Restores everything to moments of a script, now and then, and goes on with it at the newest.
fn run_restores(seed: u64, op_count: usize) -> usize {
    let dir = support::scratch();
    let clock = Clock::new();
    let engine = EngineOptions {
        redo_bytes_max: 256 << 10,
        ..clock.engine()
    };
    let path = dir.path().join("t.larder");
    let options = CreateOptions {
        capacity_bytes: Some(256 << 20),
        retention_ns: Some(HOUR),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &options, &engine).unwrap();
    let script = Script::generate(seed, op_count, MIX);
    let mut tree = support::open(&path, engine.clone()).unwrap();
    let mut rng = Rng::new(seed ^ 0x0e57);
    let mut moments: Vec<(i64, usize)> = Vec::new();
    let mut restores = 0;
    for (index, op) in script.ops.iter().enumerate() {
        tree.apply(op)
            .unwrap_or_else(|error| panic!("seed {seed}, operation {index} {op:?}: {error}"));
        if rng.chance(20) {
            tree.database().sync().unwrap();
            moments.push((clock.now(), index + 1));
            clock.pass(1_000_000);
        }
        if rng.chance(3) && moments.len() > 1 {
            // Handles that are open would see other content: all begin anew.
            tree.close().unwrap();
            tree = support::open(&path, engine.clone()).unwrap();
            tree.database().sync().unwrap();
            let before = (clock.now(), index + 1);
            clock.pass(1_000_000);
            let then = *rng.pick(&moments);
            for (at_ns, made) in [then, before] {
                let was = script.tree(made);
                restore_all(
                    tree.database(),
                    at_ns,
                    &was,
                    &format!("seed {seed}, to {made}"),
                );
                clock.pass(1_000_000);
                restores += 1;
            }
            assert_eq!(tree.findings().unwrap(), Vec::<String>::new(), "{seed}");
        }
    }
    restores
}

fn restore_all(database: &Database, at_ns: i64, was: &Tree, what: &str) {
    let past = database.as_of(&Moment::At(at_ns)).unwrap();
    let mut options = RestoreOptions {
        is_exact: true,
        is_dry: true,
        ..RestoreOptions::default()
    };
    let planned = database
        .history()
        .restore(&past, Some(b"/"), &options)
        .unwrap();
    options.is_dry = false;
    let done = database
        .history()
        .restore(&past, Some(b"/"), &options)
        .unwrap();
    assert_eq!(
        planned,
        done.planned(),
        "{what}: a dry run tells what is done"
    );
    let walked = ContentTree::new(database.clone()).walk().unwrap();
    let difference = explain_difference(was, &walked);
    assert_eq!(difference, "", "CONTENT-12: {what}");
    let left = diff((&past, b"/"), (database, b"/")).unwrap();
    assert_eq!(left.changes, [], "CONTENT-11: {what}");
    let again = database
        .history()
        .restore(&past, Some(b"/"), &options)
        .unwrap();
    assert_eq!(
        again,
        RestoreReport::default(),
        "{what}: nothing is left to do"
    );
}

#[test]
fn restores_bring_back_every_moment_of_the_model() {
    let restores: usize = (1..=6).map(|seed| run_restores(seed, 300)).sum();
    assert!(restores > 40, "{restores}");
}

#[test]
#[ignore = "long: more seeds; cargo xtask soak"]
fn restores_bring_back_every_moment_for_many_seeds() {
    for seed in 100..160 {
        run_restores(seed, 600);
    }
}

fn restore(
    db: &Database,
    moment: &Moment,
    path: &str,
    options: RestoreOptions,
) -> Result<Vec<(String, RestoreAction)>, larder::Error> {
    let past = db.as_of(moment)?;
    let report = db
        .history()
        .restore(&past, Some(path.as_bytes()), &options)?;
    let step = |step: &larder::RestoreStep| {
        let path = String::from_utf8_lossy(&step.path).into_owned();
        (path, step.action)
    };
    Ok(report.steps.iter().map(step).collect())
}

#[test]
fn a_deleted_tree_comes_back_whole() {
    use RestoreAction::{Create, Link};
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 256);
    let owner = Caller {
        uid: 11,
        gid: 22,
        umask: 0,
    };
    let folder_of = |parent: NodeId, text: &str, mode: u32| {
        db.nodes()
            .create_node(parent, &name(text), NewNode::Directory, mode, owner)
            .unwrap()
            .node
    };
    let a = folder_of(R, "a", 0o2755);
    let b = folder_of(a, "b", 0o700);
    let file = put(&db, b, "file", &pattern(3_000_000, 5));
    db.nodes().link(file, b, &name("link")).unwrap();
    db.attributes()
        .set(file, b"user.x", b"y", XattrMode::Set)
        .unwrap();
    let symlink = NewNode::Symlink(b"file");
    let node = db
        .nodes()
        .create_node(b, &name("symlink"), symlink, 0o777, owner);
    let symlink = node.unwrap().node;
    db.nodes()
        .create_node(b, &name("pipe"), NewNode::Fifo, 0o640, owner)
        .unwrap();
    let sparse = make(&db, b, "sparse");
    let handle = db.nodes().open(sparse, true).unwrap();
    handle.set_len(1 << 30).unwrap();
    handle.write_at(1 << 29, b"island").unwrap();
    drop(handle);
    for (index, node) in [a, b, file, symlink, sparse].into_iter().enumerate() {
        let time = SetTime::At(1_000_000_000_000_000_000 + index as i64);
        let change = SetAttr {
            atime: Some(time),
            mtime: Some(time),
            ..SetAttr::default()
        };
        db.nodes().set_attr(node, &change).unwrap();
    }
    let then = now(&db);
    for text in ["file", "link", "symlink", "pipe", "sparse"] {
        db.nodes().unlink(b, &name(text)).unwrap();
    }
    db.nodes().remove_dir(a, &name("b")).unwrap();
    db.nodes().remove_dir(R, &name("a")).unwrap();
    db.sync().unwrap();

    let past = db.as_of(&then).unwrap();
    let steps = restore(&db, &then, "/a/b", RestoreOptions::default()).unwrap();
    let expected = [
        ("/a", Create),
        ("/a/b", Create),
        ("/a/b/file", Create),
        ("/a/b/link", Link),
        ("/a/b/pipe", Create),
        ("/a/b/sparse", Create),
        ("/a/b/symlink", Create),
    ];
    assert_eq!(
        steps,
        expected.map(|(path, action)| (path.to_owned(), action))
    );
    assert_eq!(diff((&past, b"/"), (&db, b"/")).unwrap().changes, []);
    for path in ["/a", "/a/b", "/a/b/file", "/a/b/symlink", "/a/b/sparse"] {
        let [was, is] = [&past, &db].map(|db| db.nodes().resolve(path.as_bytes(), false).unwrap());
        assert_eq!(
            (is.atime_ns, is.mtime_ns),
            (was.atime_ns, was.mtime_ns),
            "{path}"
        );
        assert_eq!(
            (is.nlink, is.allocated_bytes),
            (was.nlink, was.allocated_bytes)
        );
        assert_ne!(is.node, was.node, "CATALOG-4: an inode never comes back");
    }
    assert_clean(&db);
}

#[test]
fn a_restore_leaves_what_it_was_not_asked_for() {
    use RestoreAction::{Content, Create, Remove, Replace};
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), 256);
    let d = folder(&db, R, "d");
    let edited = put(&db, d, "edited", b"first");
    put(&db, d, "replaced", b"first");
    put(&db, d, "shape", b"a file then");
    let then = now(&db);
    db.files().write(b"/d/edited", b"second").unwrap();
    // Another file has the name now, and a name outside besides.
    let other = put(&db, R, "other", b"keep me");
    db.nodes().unlink(d, &name("replaced")).unwrap();
    db.nodes().link(other, d, &name("replaced")).unwrap();
    put(&db, d, "new", b"later");
    db.nodes().unlink(d, &name("shape")).unwrap();
    let shape = folder(&db, d, "shape");
    put(&db, shape, "inside", b"later");
    db.sync().unwrap();
    let before = now(&db);

    // A directory stands in the way of a file: nothing is done at all.
    let refused = restore(&db, &then, "/d", RestoreOptions::default());
    assert_eq!(kind(refused), ErrorKind::Exists);
    let past = db.as_of(&before).unwrap();
    assert_eq!(diff((&past, b"/"), (&db, b"/")).unwrap().changes, []);
    let one = restore(&db, &then, "/d/edited", RestoreOptions::default()).unwrap();
    assert_eq!(one, [("/d/edited".to_owned(), Content)]);
    assert_eq!(content(&db, edited), b"first");
    assert_eq!(content(&db, other), b"keep me");
    let exact = RestoreOptions {
        is_exact: true,
        ..RestoreOptions::default()
    };
    let steps = restore(&db, &then, "/d", exact).unwrap();
    for expected in [
        ("/d/new", Remove),
        ("/d/replaced", Replace),
        ("/d/shape", Remove),
        ("/d/shape/inside", Remove),
        ("/d/shape", Replace),
    ] {
        assert!(
            steps.contains(&(expected.0.to_owned(), expected.1)),
            "{expected:?}: {steps:?}"
        );
    }
    assert_eq!(db.files().read(b"/d/replaced").unwrap(), b"first");
    assert_eq!(content(&db, other), b"keep me", "CONTENT-12");
    assert_eq!(db.nodes().metadata(other).unwrap().nlink, 1);
    let past = db.as_of(&then).unwrap();
    assert_eq!(diff((&past, b"/d"), (&db, b"/d")).unwrap().changes, []);

    // To another place.
    let to = RestoreOptions {
        to: Some(b"/copy".to_vec()),
        ..RestoreOptions::default()
    };
    let past = db.as_of(&before).unwrap();
    let steps = restore(&db, &before, "/d", to).unwrap();
    assert_eq!(steps[0], ("/copy".to_owned(), Create));
    assert_eq!(diff((&past, b"/d"), (&db, b"/copy")).unwrap().changes, []);
    // The two names of `other` became one file here, and none of those outside.
    assert_eq!(
        db.nodes().resolve(b"/copy/replaced", true).unwrap().nlink,
        1
    );
    assert_clean(&db);

    let nothing = restore(&db, &then, "/nobody", RestoreOptions::default());
    assert_eq!(kind(nothing), ErrorKind::NotFound);
    let nowhere = RestoreOptions {
        to: Some(b"/no/such".to_vec()),
        ..RestoreOptions::default()
    };
    assert_eq!(
        kind(restore(&db, &then, "/d", nowhere)),
        ErrorKind::NotFound
    );
    let present = db
        .history()
        .restore(&db.clone(), Some(b"/d"), &RestoreOptions::default());
    assert_eq!(kind(present), ErrorKind::InvalidInput);
    let attr = db.nodes().resolve(b"/d", false).unwrap();
    assert_eq!(attr.kind, FileKind::Directory);
}
