//! What a refusal in the commit brings back, and what must not be lost with it: trees, content of
//! the past, content that came later. Found by reading; each case step by step.

use crate::common::others::plain;
use crate::common::{
    assert_clean, content, create, create_without_history, folder, make, name, put, scratch,
};
use crate::constraints::{FROZEN, open_quiet};
use larder::{
    Database, ErrorKind, Moment, NodeId, RenameMode, SetAttr, XattrMode, copy_range, list_refused,
    open_refused,
};
use std::io::{Read, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;

const ROOT: NodeId = NodeId::ROOT;

/// A database in which rows of inodes can be frozen.
fn frozen(dir: &Path) -> Database {
    create(dir, None).close().unwrap();
    plain(dir, FROZEN);
    open_quiet(dir)
}

fn freeze(dir: &Path, nodes: &[NodeId]) {
    for node in nodes {
        plain(dir, &format!("INSERT INTO frozen VALUES ({})", node.ino.0));
    }
}

/// Commits while an SQL client makes the rule and freezes `node`. The commit waits for its lock,
/// and meanwhile, before anybody knows of the rule, the open group gets `operation`.
fn refuse_while(dir: &Path, db: &Database, node: NodeId, operation: impl FnOnce()) {
    let mut client = Command::new("sqlite3")
        .arg(dir.join("t.larder/catalog.db"))
        .stdin(Stdio::piped())
        .spawn()
        .expect("the sqlite3 shell is needed; install it");
    let mut input = client.stdin.take().unwrap();
    let freeze = format!("INSERT INTO frozen VALUES ({})", node.ino.0);
    writeln!(input, "BEGIN IMMEDIATE; {FROZEN} {freeze};").unwrap();
    let has_lock = dir.join("has-lock");
    writeln!(input, ".shell touch '{}'", has_lock.display()).unwrap();
    while !has_lock.exists() {
        assert!(client.try_wait().unwrap().is_none(), "the shell begins");
        std::thread::sleep(Duration::from_millis(5));
    }
    std::fs::remove_file(has_lock).unwrap();
    std::thread::scope(|scope| {
        let commit = scope.spawn(|| db.sync());
        std::thread::sleep(Duration::from_millis(500));
        operation();
        writeln!(input, "COMMIT;").unwrap();
        drop(input);
        assert!(client.wait().unwrap().success());
        accept_refusal(commit.join().unwrap());
    });
    assert!(db.maintenance().gauges().unwrap().refused_count > 0);
}

fn accept_refusal(outcome: larder::Result<()>) {
    if let Err(error) = outcome {
        assert_eq!(error.kind(), ErrorKind::NotPermitted, "{error}");
    }
}

/// Commits, whatever is refused; then nothing is frozen any more.
fn commit(dir: &Path, db: &Database) {
    accept_refusal(db.sync());
    plain(dir, "DELETE FROM frozen");
    db.sync().unwrap();
    assert_clean(db);
}

fn attr_of(db: &Database, path: &str) -> NodeId {
    db.nodes().resolve(path.as_bytes(), false).expect(path).node
}

#[test]
fn a_directory_stays_where_a_name_comes_back_into_it() {
    let dir = scratch();
    let db = frozen(dir.path());
    let above = folder(&db, ROOT, "above");
    let below = folder(&db, above, "below");
    let file = put(&db, below, "file", b"bytes");
    db.sync().unwrap();
    db.nodes().unlink(below, &name("file")).unwrap();
    db.nodes().remove_dir(above, &name("below")).unwrap();
    db.nodes().remove_dir(ROOT, &name("above")).unwrap();
    freeze(dir.path(), &[file]);
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/above/below/file"), file, "CONSTRAINT-2");
    assert_eq!(content(&db, file), b"bytes");
    accept_refusal(db.close());
    let db = open_quiet(dir.path());
    assert_eq!(attr_of(&db, "/above/below/file"), file);
    assert_clean(&db);
}

/// Of a tree that is removed, one file is refused: its directories stay, and nothing else does.
#[test]
fn what_else_was_removed_with_a_tree_is_removed() {
    let dir = scratch();
    let db = frozen(dir.path());
    let above = folder(&db, ROOT, "above");
    let below = folder(&db, above, "below");
    let beside = folder(&db, above, "beside");
    let file = put(&db, below, "file", b"bytes");
    for parent in [above, below, beside] {
        for other in ["a", "b", "c"] {
            put(&db, parent, other, b"other");
        }
    }
    db.sync().unwrap();
    db.nodes().unlink(below, &name("file")).unwrap();
    for parent in [below, beside, above] {
        for other in ["a", "b", "c"] {
            db.nodes().unlink(parent, &name(other)).unwrap();
        }
    }
    db.nodes().remove_dir(above, &name("below")).unwrap();
    db.nodes().remove_dir(above, &name("beside")).unwrap();
    db.nodes().remove_dir(ROOT, &name("above")).unwrap();
    freeze(dir.path(), &[file]);
    commit(dir.path(), &db);
    let names = |node| -> Vec<String> {
        let entries = db.nodes().read_dir(node, None, 10).unwrap();
        entries.iter().map(|entry| entry.name.to_string()).collect()
    };
    assert_eq!(names(above), ["below"], "CONSTRAINT-2");
    assert_eq!(names(below), ["file"]);
    assert_eq!(db.nodes().metadata(above).unwrap().nlink, 3);
    assert_eq!(db.maintenance().gauges().unwrap().refused_count, 1);
    // It is a directory like any other.
    put(&db, below, "new", b"new");
    db.nodes().unlink(below, &name("file")).unwrap();
    db.sync().unwrap();
    assert_clean(&db);
    db.nodes().unlink(below, &name("new")).unwrap();
    db.nodes().remove_dir(above, &name("below")).unwrap();
    db.nodes().remove_dir(ROOT, &name("above")).unwrap();
    db.sync().unwrap();
    assert_clean(&db);
    assert!(db.nodes().read_dir(ROOT, None, 10).unwrap().is_empty());
}

/// The directory is removed in the group that is open while the commit is refused.
#[test]
fn a_directory_that_the_open_group_removes_stays_too() {
    let dir = scratch();
    let db = create(dir.path(), None);
    let above = folder(&db, ROOT, "above");
    let file = put(&db, above, "file", b"bytes");
    db.sync().unwrap();
    db.nodes().unlink(above, &name("file")).unwrap();
    refuse_while(dir.path(), &db, file, || {
        db.nodes().remove_dir(ROOT, &name("above")).unwrap();
    });
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/above/file"), file, "CONSTRAINT-2");
}

#[test]
fn directories_never_end_up_inside_of_themselves() {
    let dir = scratch();
    let db = frozen(dir.path());
    let a = folder(&db, ROOT, "a");
    let c = folder(&db, a, "c");
    let sub = folder(&db, c, "sub");
    put(&db, sub, "file", b"bytes");
    db.sync().unwrap();
    rename(&db, (a, "c"), (ROOT, "c"));
    rename(&db, (ROOT, "a"), (sub, "a"));
    freeze(dir.path(), &[c]);
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/a/c/sub"), sub, "CONSTRAINT-2");
    assert_eq!(db.files().read(b"/a/c/sub/file").unwrap(), b"bytes");
    let names = db.nodes().read_dir(ROOT, None, 10).unwrap();
    assert_eq!(names.len(), 1, "{names:?}");
}

#[test]
fn a_moved_directory_is_not_left_below_one_that_goes() {
    let dir = scratch();
    let db = frozen(dir.path());
    let old = folder(&db, ROOT, "old");
    let moved = folder(&db, old, "moved");
    let file = put(&db, moved, "file", b"bytes");
    db.sync().unwrap();
    // Out of the one that goes, and its file with it.
    rename(&db, (old, "moved"), (ROOT, "moved"));
    db.nodes().remove_dir(ROOT, &name("old")).unwrap();
    freeze(dir.path(), &[moved]);
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/old/moved/file"), file, "CONSTRAINT-2");
    let old = db.nodes().metadata(old).unwrap();
    assert_eq!(old.nlink, 3);
}

/// What stays in the commit keeps its name from the open group.
#[test]
fn nothing_takes_the_name_of_a_directory_that_stays() {
    let dir = scratch();
    let db = create(dir.path(), None);
    let above = folder(&db, ROOT, "above");
    let file = put(&db, above, "file", b"bytes");
    db.attributes()
        .set(above, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    db.sync().unwrap();
    db.attributes()
        .set(above, b"user.a", b"2", XattrMode::Set)
        .unwrap();
    db.nodes().unlink(above, &name("file")).unwrap();
    db.nodes().remove_dir(ROOT, &name("above")).unwrap();
    refuse_while(dir.path(), &db, file, || {
        let new = folder(&db, ROOT, "above");
        put(&db, new, "other", b"other");
    });
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/above/file"), file, "CONSTRAINT-2");
    assert_eq!(db.nodes().read_dir(above, None, 10).unwrap().len(), 1);
    put(&db, above, "later", b"later");
    db.sync().unwrap();
    assert_eq!(db.attributes().get(above, b"user.a").unwrap(), b"2");
    drop(db.close());
    let db = open_quiet(dir.path());
    assert_eq!(db.attributes().get(above, b"user.a").unwrap(), b"2");
    assert_clean(&db);
}

/// The same of one that another directory was to replace, which is refused.
#[test]
fn a_directory_that_was_to_be_replaced_keeps_its_name() {
    let dir = scratch();
    let db = create(dir.path(), None);
    let old = folder(&db, ROOT, "old");
    let new = folder(&db, ROOT, "new");
    db.sync().unwrap();
    rename(&db, (ROOT, "new"), (ROOT, "old"));
    refuse_while(dir.path(), &db, new, || {
        rename(&db, (ROOT, "old"), (ROOT, "third"));
    });
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/old"), old, "CONSTRAINT-2");
    assert_eq!(attr_of(&db, "/new"), new);
    assert_eq!(db.nodes().read_dir(ROOT, None, 10).unwrap().len(), 2);
}

/// `CONSTRAINT-4`: what was written while only attributes were being committed.
#[test]
fn content_of_the_open_group_is_kept_with_what_was_refused() {
    let dir = scratch();
    let db = create(dir.path(), None);
    let node = put(&db, ROOT, "file", b"old");
    db.sync().unwrap();
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    db.nodes().set_attr(node, &mode).unwrap();
    refuse_while(dir.path(), &db, node, || {
        let file = db.nodes().open(node, true).unwrap();
        file.write_at(0, b"new").unwrap();
    });
    commit(dir.path(), &db);
    assert_eq!(content(&db, node), b"old");
    let database = dir.path().join("t.larder");
    let kept: Vec<Vec<u8>> = (list_refused(&database).unwrap().iter())
        .filter(|one| one.size_bytes.is_some())
        .map(|one| {
            let mut bytes = Vec::new();
            let mut file = open_refused(&database, one.id).unwrap();
            file.read_to_end(&mut bytes).unwrap();
            bytes
        })
        .collect();
    assert_eq!(kept, [b"new"], "CONSTRAINT-4");
}

/// `SHARE-4`: a file that was to go had small overwrites on what a copy of its past holds now.
#[test]
fn a_copy_of_the_past_is_not_written_over_by_what_comes_back() {
    let dir = scratch();
    let db = frozen(dir.path());
    // The first share of a database commits by itself.
    put(&db, ROOT, "shared", &[9; 64 << 10]);
    db.files().clone_path(None, b"/shared", b"/clone").unwrap();
    let old = vec![1; 256 << 10];
    let node = put(&db, ROOT, "file", &old);
    db.sync().unwrap();
    db.snapshots().create("before").unwrap();
    db.nodes()
        .open(node, true)
        .unwrap()
        .write_at(0, &[2; 4096])
        .unwrap();
    db.sync().unwrap();
    let mut new = old.clone();
    new[..4096].fill(2);
    let past = db.as_of(&Moment::Snapshot("before".into())).unwrap();
    db.nodes().unlink(ROOT, &name("file")).unwrap();
    let copy = make(&db, ROOT, "copy");
    let from = past.nodes().open(node, false).unwrap();
    let to = db.nodes().open(copy, true).unwrap();
    copy_range((&*from, 0), (&*to, 0), 256 << 10).unwrap();
    freeze(dir.path(), &[node]);
    commit(dir.path(), &db);
    assert!(content(&db, node) == new);
    db.maintenance()
        .defrag(&[], &larder::DefragOptions::default(), &mut |_| {})
        .unwrap();
    assert_clean(&db);
    assert!(content(&db, node) == new);
    match db.nodes().resolve(b"/copy", false) {
        Ok(found) => assert!(content(&db, found.node) == old, "SHARE-4"),
        Err(_) => assert!(
            !list_refused(&dir.path().join("t.larder"))
                .unwrap()
                .is_empty()
        ),
    }
}

/// `SHARE-9`: the copy of a copy of the past, of which the first is refused.
#[test]
fn a_copy_of_what_was_brought_back_goes_with_it() {
    let dir = scratch();
    let db = frozen(dir.path());
    // The first share of a database commits by itself.
    put(&db, ROOT, "shared", &[9; 64 << 10]);
    db.files().clone_path(None, b"/shared", b"/clone").unwrap();
    let old: Vec<u8> = crate::common::pattern(256 << 10, 5);
    put(&db, ROOT, "file", &old);
    db.sync().unwrap();
    db.snapshots().create("before").unwrap();
    db.nodes().unlink(ROOT, &name("file")).unwrap();
    db.sync().unwrap();
    let past = db.as_of(&Moment::Snapshot("before".into())).unwrap();
    let from = past.nodes().resolve(b"/file", false).unwrap().node;
    let from = past.nodes().open(from, false).unwrap();
    let (first, second) = (make(&db, ROOT, "first"), make(&db, ROOT, "second"));
    db.sync().unwrap();
    let open = |node| db.nodes().open(node, true).unwrap();
    copy_range((&*from, 0), (&*open(first), 0), 256 << 10).unwrap();
    copy_range((&*open(first), 0), (&*open(second), 12 << 10), 256 << 10).unwrap();
    freeze(dir.path(), &[first]);
    commit(dir.path(), &db);
    assert_eq!(content(&db, first), b"");
    let second = content(&db, second);
    assert!(second.is_empty() || second[12 << 10..] == old);
}

/// The books of free space, where nothing was ever shared: a file that fills most of a group of
/// blocks, written in the commit and cut in the open group.
#[test]
fn what_was_written_in_vain_is_counted_once() {
    let dir = scratch();
    create_without_history(dir.path(), Some(64 << 20))
        .close()
        .unwrap();
    let db = open_quiet(dir.path());
    let large = make(&db, ROOT, "large");
    db.sync().unwrap();
    let file = db.nodes().open(large, true).unwrap();
    file.write_at(0, &vec![7; 24 << 20]).unwrap();
    refuse_while(dir.path(), &db, large, || file.set_len(0).unwrap());
    commit(dir.path(), &db);
    assert_eq!(content(&db, large), b"");
    db.files().write(b"/next", vec![8; 24 << 20]).unwrap();
    db.sync().unwrap();
    assert_clean(&db);
}

/// `NAMELESS-1`: a directory that the open group removes keeps no links of names that were refused.
#[test]
fn a_removed_directory_gets_no_links_back() {
    let dir = scratch();
    let db = frozen(dir.path());
    let above = folder(&db, ROOT, "above");
    db.sync().unwrap();
    let made = folder(&db, above, "new");
    db.nodes().remove_dir(above, &name("new")).unwrap();
    db.nodes().remove_dir(ROOT, &name("above")).unwrap();
    freeze(dir.path(), &[made, above]);
    commit(dir.path(), &db);
    assert_eq!(db.nodes().metadata(above).unwrap().nlink, 2);
}

/// `SAVE-2`: a program sets a file aside, writes a new one with its name, and removes the old one.
#[test]
fn a_file_stays_whose_successor_is_refused() {
    let dir = scratch();
    create(dir.path(), None).close().unwrap();
    plain(
        dir.path(),
        &format!("{FROZEN} ALTER TABLE main ADD COLUMN rating INTEGER"),
    );
    let db = open_quiet(dir.path());
    let old = put(&db, ROOT, "file", b"old");
    db.sync().unwrap();
    plain(dir.path(), "UPDATE main SET rating = 5 WHERE ino > 1");
    db.nodes()
        .rename(
            ROOT,
            &name("file"),
            ROOT,
            &name("aside"),
            RenameMode::Replace,
        )
        .unwrap();
    let new = put(&db, ROOT, "file", b"new");
    db.sync().unwrap();
    db.nodes().unlink(ROOT, &name("aside")).unwrap();
    freeze(dir.path(), &[new]);
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/aside"), old, "CONSTRAINT-2");
    let client = crate::common::temporal::client(dir.path());
    let ask = |node: NodeId| {
        client.ask(&format!(
            "SELECT rating FROM main WHERE ino = {}",
            node.ino.0
        ))
    };
    assert_eq!(ask(old).trim(), "5");
    assert_eq!(content(&db, new), b"new");
    db.nodes().unlink(ROOT, &name("aside")).unwrap();
    db.sync().unwrap();
    assert_clean(&db);
}

/// A rule that lets an inode be removed, and not be updated.
fn keep_as_is(dir: &Path, node: NodeId) {
    let rule = format!(
        "CREATE TRIGGER as_is BEFORE UPDATE ON main WHEN old.ino = {} \
         BEGIN SELECT RAISE(ABORT, 'it stays as it is'); END",
        node.ino.0
    );
    plain(dir, &rule);
}

fn rename(db: &Database, from: (NodeId, &str), to: (NodeId, &str)) {
    let (from, to) = ((from.0, name(from.1)), (to.0, name(to.1)));
    db.nodes()
        .rename(from.0, &from.1, to.0, &to.1, RenameMode::Replace)
        .unwrap();
}

/// The directory stays at a name that the first look at the set had let go, and that a second one
/// needs (`NAMES-2`).
#[test]
fn what_stays_at_a_name_that_was_let_go_has_that_name() {
    let dir = scratch();
    let db = frozen(dir.path());
    let (from, below) = (folder(&db, ROOT, "s"), folder(&db, ROOT, "n"));
    let x = put(&db, from, "x", b"x");
    let file = put(&db, below, "f", b"bytes");
    db.sync().unwrap();
    db.nodes().unlink(from, &name("x")).unwrap();
    rename(&db, (ROOT, "n"), (ROOT, "m"));
    rename(&db, (below, "f"), (from, "f"));
    rename(&db, (from, "f"), (ROOT, "g"));
    db.nodes().remove_dir(ROOT, &name("s")).unwrap();
    db.nodes().remove_dir(ROOT, &name("m")).unwrap();
    freeze(dir.path(), &[x]);
    keep_as_is(dir.path(), from);
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/s/x"), x, "CONSTRAINT-2");
    assert_eq!(attr_of(&db, "/m/f"), file, "NAMES-2");
    accept_refusal(db.close());
    let db = open_quiet(dir.path());
    assert_eq!(attr_of(&db, "/m/f"), file, "NAMES-2");
    assert_eq!(db.nodes().read_dir(ROOT, None, 9).unwrap().len(), 2);
    assert_clean(&db);
}

/// The same where the name was let go by an earlier commit.
#[test]
fn a_name_that_a_refused_file_had_is_kept_by_what_has_it_next() {
    let dir = scratch();
    create(dir.path(), None).close().unwrap();
    let db = open_quiet(dir.path());
    let below = folder(&db, ROOT, "n");
    let file = put(&db, below, "f", b"bytes");
    db.sync().unwrap();
    let new = put(&db, ROOT, "m", b"new");
    refuse_while(dir.path(), &db, new, || {
        rename(&db, (ROOT, "m"), (ROOT, "t"));
        rename(&db, (ROOT, "n"), (ROOT, "m"));
        rename(&db, (below, "f"), (ROOT, "g"));
        db.nodes().remove_dir(ROOT, &name("m")).unwrap();
    });
    freeze(dir.path(), &[file]);
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/m/f"), file, "NAMES-2");
    accept_refusal(db.close());
    let db = open_quiet(dir.path());
    assert_eq!(attr_of(&db, "/m/f"), file, "NAMES-2");
    assert_eq!(db.nodes().read_dir(ROOT, None, 9).unwrap().len(), 1);
    assert_clean(&db);
}

/// Links are those of what is left, whatever an earlier look at the set has left.
#[test]
fn a_directory_counts_no_link_of_one_that_came_and_was_refused() {
    let dir = scratch();
    let db = frozen(dir.path());
    let (below, above) = (folder(&db, ROOT, "n"), folder(&db, ROOT, "q"));
    let file = put(&db, below, "f", b"bytes");
    db.sync().unwrap();
    rename(&db, (ROOT, "n"), (above, "m"));
    rename(&db, (below, "f"), (ROOT, "g"));
    db.nodes().remove_dir(above, &name("m")).unwrap();
    freeze(dir.path(), &[file]);
    keep_as_is(dir.path(), below);
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/n/f"), file, "CONSTRAINT-2");
    accept_refusal(db.close());
    let db = open_quiet(dir.path());
    assert_eq!(db.nodes().metadata(above).unwrap().nlink, 2, "CONSTRAINT-3");
    assert_clean(&db);
}

/// A directory that stays where the open group has put it is there for whoever asks from below.
#[test]
fn a_directory_that_stays_at_a_new_place_knows_its_parent() {
    let dir = scratch();
    let db = create(dir.path(), None);
    let (old, above) = (folder(&db, ROOT, "p"), folder(&db, ROOT, "q"));
    let below = folder(&db, old, "n");
    let file = put(&db, below, "f", b"bytes");
    db.sync().unwrap();
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    db.nodes().set_attr(file, &mode).unwrap();
    refuse_while(dir.path(), &db, file, || {
        rename(&db, (old, "n"), (above, "m"));
        rename(&db, (below, "f"), (ROOT, "g"));
        db.nodes().remove_dir(above, &name("m")).unwrap();
    });
    assert_eq!(db.nodes().parent(below).unwrap(), above, "NAMES-2");
    let into_itself = db
        .nodes()
        .rename(ROOT, &name("q"), below, &name("q"), RenameMode::Replace);
    assert_eq!(into_itself.unwrap_err().kind(), ErrorKind::InvalidInput);
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/q/m/f"), file, "NAMES-2");
    assert_eq!(db.nodes().metadata(above).unwrap().nlink, 3);
}

/// What came back into it in one look at the operations is gone in the next.
#[test]
fn a_directory_is_removed_if_nothing_came_back_in_the_end() {
    let dir = scratch();
    let db = frozen(dir.path());
    let below = folder(&db, ROOT, "d");
    let (a, x) = (put(&db, ROOT, "a", b"a"), put(&db, ROOT, "x", b"x"));
    db.sync().unwrap();
    rename(&db, (ROOT, "a"), (below, "g"));
    rename(&db, (below, "g"), (ROOT, "x"));
    db.nodes().remove_dir(ROOT, &name("d")).unwrap();
    freeze(dir.path(), &[x]);
    commit(dir.path(), &db);
    assert_eq!((attr_of(&db, "/a"), attr_of(&db, "/x")), (a, x));
    assert!(db.nodes().resolve(b"/d", false).is_err(), "CONSTRAINT-2");
}

/// A long chain of saves of which the last is refused: all of it goes, at once; what came and went
/// is reported by nobody.
#[test]
fn a_chain_of_saves_goes_as_one() {
    let dir = scratch();
    let db = create(dir.path(), None);
    let old = put(&db, ROOT, "f", b"old");
    db.sync().unwrap();
    db.attributes()
        .set(old, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    let before = db.maintenance().gauges().unwrap().refused_count;
    refuse_while(dir.path(), &db, old, || {
        for _ in 0..5000 {
            make(&db, ROOT, "tmp");
            rename(&db, (ROOT, "tmp"), (ROOT, "f"));
        }
    });
    commit(dir.path(), &db);
    assert_eq!(attr_of(&db, "/f"), old, "CONSTRAINT-2");
    let refused = db.maintenance().gauges().unwrap().refused_count - before;
    assert!(refused <= 3, "{refused} are reported");
}

/// Each operation is judged when all before it are: what is refused later may be what stood in its
/// way.
#[test]
fn what_stands_in_the_way_of_nothing_is_done() {
    let dir = scratch();
    let db = frozen(dir.path());
    let (d, n) = (folder(&db, ROOT, "d"), folder(&db, ROOT, "n"));
    let a = put(&db, ROOT, "a", b"a");
    let f = put(&db, n, "f", b"f");
    db.sync().unwrap();
    rename(&db, (ROOT, "a"), (d, "g"));
    db.nodes().unlink(n, &name("f")).unwrap();
    db.nodes().remove_dir(ROOT, &name("n")).unwrap();
    rename(&db, (d, "g"), (ROOT, "n"));
    db.nodes().remove_dir(ROOT, &name("d")).unwrap();
    freeze(dir.path(), &[f]);
    commit(dir.path(), &db);
    assert_eq!((attr_of(&db, "/a"), attr_of(&db, "/n/f")), (a, f));
    assert!(db.nodes().resolve(b"/d", false).is_err(), "NAMES-2");

    let (a, t) = (folder(&db, ROOT, "b1"), folder(&db, ROOT, "t"));
    let f = put(&db, t, "f", b"f");
    db.sync().unwrap();
    rename(&db, (ROOT, "b1"), (ROOT, "b2"));
    db.nodes().unlink(t, &name("f")).unwrap();
    rename(&db, (ROOT, "b2"), (ROOT, "t"));
    let new = put(&db, ROOT, "b2", b"new");
    freeze(dir.path(), &[f]);
    commit(dir.path(), &db);
    assert_eq!((attr_of(&db, "/b1"), attr_of(&db, "/t/f")), (a, f));
    assert_eq!(attr_of(&db, "/b2"), new, "NAMES-2");
}

/// Also what was judged before that came out.
#[test]
fn what_stood_in_the_way_for_a_moment_refuses_nothing() {
    for target in ["d", "n"] {
        let dir = scratch();
        let db = frozen(dir.path());
        let (p, d) = (folder(&db, ROOT, "p"), folder(&db, ROOT, "d"));
        let g = folder(&db, p, "g");
        let f = put(&db, g, "f", b"f");
        let q = folder(&db, ROOT, "q");
        let x = put(&db, q, "x", b"x");
        db.sync().unwrap();
        let to = if target == "d" { (d, "g") } else { (ROOT, "n") };
        rename(&db, (p, "g"), to);
        db.nodes().unlink(g, &name("f")).unwrap();
        db.nodes().remove_dir(to.0, &name(to.1)).unwrap();
        let new = match target {
            "d" => {
                db.nodes().remove_dir(ROOT, &name("d")).unwrap();
                None
            }
            _ => Some(put(&db, ROOT, "n", b"new")),
        };
        db.nodes().unlink(q, &name("x")).unwrap();
        rename(&db, (ROOT, "p"), (ROOT, "q"));
        freeze(dir.path(), &[f, x]);
        commit(dir.path(), &db);
        assert_eq!(attr_of(&db, "/p/g/f"), f, "CONSTRAINT-2");
        assert_eq!(attr_of(&db, "/q/x"), x, "CONSTRAINT-2");
        match new {
            Some(new) => assert_eq!(attr_of(&db, "/n"), new, "NAMES-2"),
            None => assert!(db.nodes().resolve(b"/d", false).is_err(), "NAMES-2"),
        }
    }
}

/// The books of free space, where a second look at the set finds more (`SPACE-2`).
#[test]
fn what_two_looks_take_out_is_counted_once() {
    let dir = scratch();
    create_without_history(dir.path(), Some(64 << 20))
        .close()
        .unwrap();
    plain(dir.path(), FROZEN);
    let db = open_quiet(dir.path());
    let below = folder(&db, ROOT, "d");
    let f = put(&db, below, "f", &[1; 100_000]);
    db.sync().unwrap();
    let x = put(&db, ROOT, "x", &[2; 100_000]);
    db.nodes().unlink(below, &name("f")).unwrap();
    db.nodes().remove_dir(ROOT, &name("d")).unwrap();
    freeze(dir.path(), &[f, x]);
    keep_as_is(dir.path(), below);
    commit(dir.path(), &db);
    assert_eq!(content(&db, f), [1; 100_000]);
    assert!(db.nodes().resolve(b"/x", false).is_err());
    plain(dir.path(), "DROP TRIGGER as_is");
    for round in 0..4 {
        put(&db, ROOT, "next", &vec![3; 8 << 20]);
        db.sync().unwrap();
        db.nodes().unlink(ROOT, &name("next")).unwrap();
        db.sync().unwrap();
        assert_clean(&db);
        assert_eq!(
            db.maintenance().gauges().unwrap().reserved_bytes,
            0,
            "round {round}"
        );
    }
    assert_eq!(content(&db, f), [1; 100_000]);
}
