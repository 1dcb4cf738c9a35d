//! Long transactions: isolated, then one commit or a list of conflicts, and never a trace.

use crate::common::workspace::*;
use larder::{Database, DefragOptions, ErrorKind, LongTransaction, SqlValue, TransactionOutcome};
use std::time::Duration;

#[test]
fn what_is_committed_is_one_commit_and_what_is_not_leaves_no_trace() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path());
    let parent = open(&path);
    parent.files().write(b"/kept", content(300_000, 1)).unwrap();
    parent.files().write(b"/gone", content(300_000, 2)).unwrap();
    sql(
        &parent,
        "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT)",
    );
    sql(&parent, "INSERT INTO notes VALUES (1, 'one'), (2, 'two')");
    parent.sync().unwrap();

    let txn = begin(&path);
    let view = txn.database().unwrap();
    assert_eq!(view.files().read(b"/kept").unwrap(), content(300_000, 1));
    view.files().write(b"/kept", content(500_000, 3)).unwrap();
    view.files().write(b"/new", content(5_000_000, 4)).unwrap();
    view.files().write(b"/small", b"tiny").unwrap();
    remove(view, b"/gone");
    view.sync().unwrap();
    sql(
        view,
        "UPDATE notes SET text = 'uno' WHERE id = 1; DELETE FROM notes WHERE id = 2; INSERT INTO \
         notes VALUES (3, 'tres')",
    );
    assert_sound(view);
    assert_eq!(parent.files().read(b"/kept").unwrap(), content(300_000, 1));
    assert!(parent.files().read(b"/new").is_err());
    assert_eq!(
        sql(&parent, "SELECT count(*) FROM notes"),
        [[SqlValue::Integer(2)]]
    );
    parent
        .files()
        .write(b"/other", content(100_000, 5))
        .unwrap();
    assert_sound(&parent);

    assert_eq!(conflicts(txn.commit().unwrap()), Vec::<String>::new());
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_eq!(parent.files().read(b"/kept").unwrap(), content(500_000, 3));
    assert_eq!(parent.files().read(b"/new").unwrap(), content(5_000_000, 4));
    assert_eq!(parent.files().read(b"/small").unwrap(), b"tiny");
    assert_eq!(parent.files().read(b"/other").unwrap(), content(100_000, 5));
    assert!(parent.files().read(b"/gone").is_err());
    assert_eq!(
        sql(&parent, "SELECT text FROM notes ORDER BY id"),
        [
            [SqlValue::Text("uno".into())],
            [SqlValue::Text("tres".into())]
        ]
    );
    assert_sound(&parent);

    let before = parent.maintenance().space().unwrap();
    let txn = begin(&path);
    txn.database()
        .unwrap()
        .files()
        .write(b"/junk", content(90 << 20, 6))
        .unwrap();
    txn.database().unwrap().sync().unwrap();
    txn.abort().unwrap();
    std::thread::sleep(std::time::Duration::from_millis(200));
    assert_sound(&parent);
    assert_eq!(
        parent.maintenance().space().unwrap().live_bytes,
        before.live_bytes
    );
    assert!(
        std::fs::read_dir(path.join("transactions"))
            .unwrap()
            .next()
            .is_none()
    );
}

/// A database with a few files and rows, and what both sides do to it.
struct Sides {
    _dir: tempfile::TempDir,
    parent: Database,
    txn: LongTransaction,
}

const NOTES: &str = "CREATE TABLE notes (id INTEGER PRIMARY KEY, text TEXT UNIQUE);
    INSERT INTO notes VALUES (1, 'one'), (2, 'two'), (3, 'three');
    CREATE TABLE tags (id INTEGER PRIMARY KEY, note INTEGER REFERENCES notes (id),
      file INTEGER REFERENCES main (ino));
    INSERT INTO tags VALUES (1, 1, NULL);
    CREATE TABLE words (word TEXT NOT NULL PRIMARY KEY, count INTEGER) WITHOUT ROWID;
    INSERT INTO words VALUES ('a', 1), ('b', 2);
    ALTER TABLE main ADD COLUMN title TEXT;";

fn sides(dirs: &[&str], files: &[&str]) -> Sides {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path());
    let parent = open(&path);
    sql(&parent, NOTES);
    for dir in dirs {
        mkdir(&parent, dir);
    }
    for file in files {
        parent
            .files()
            .write(file.as_bytes(), content(20_000, 1))
            .unwrap();
    }
    parent.sync().unwrap();
    let txn = begin(&path);
    Sides {
        _dir: dir,
        parent,
        txn,
    }
}

type Act = fn(&Database);

/// Does `here` in the transaction, `there` outside, commits, and returns the conflicts; after them
/// nothing is changed outside, whatever comes of it everything is sound.
fn run(dirs: &[&str], files: &[&str], here: Act, there: Act) -> (Sides2, Vec<String>) {
    let Sides { _dir, parent, txn } = sides(dirs, files);
    here(txn.database().unwrap());
    there(&parent);
    parent.sync().unwrap();
    let before = sql(
        &parent,
        "SELECT ino, mode, size, mtime_ns FROM main WHERE nlink > 0 ORDER BY ino",
    );
    let names = sql(&parent, "SELECT path FROM main_path ORDER BY path");
    let found = conflicts(txn.commit().unwrap());
    std::thread::sleep(Duration::from_millis(100));
    assert_sound(&parent);
    if !found.is_empty() {
        let after = sql(
            &parent,
            "SELECT ino, mode, size, mtime_ns FROM main WHERE nlink > 0 ORDER BY ino",
        );
        assert_eq!(before, after, "WORKSPACE-4");
        assert_eq!(
            names,
            sql(&parent, "SELECT path FROM main_path ORDER BY path")
        );
    }
    assert_eq!(
        sql(&parent, "SELECT count(*) FROM larder_transaction"),
        [[SqlValue::Integer(0)]]
    );
    let sides = Sides2 { _dir, parent };
    (sides, found)
}

struct Sides2 {
    _dir: tempfile::TempDir,
    parent: Database,
}

impl Sides2 {
    fn names(&self) -> Vec<String> {
        let rows = sql(
            &self.parent,
            "SELECT path FROM main_path WHERE path <> '/' ORDER BY path",
        );
        rows.into_iter()
            .map(|row| match &row[0] {
                SqlValue::Text(path) => path.clone(),
                other => format!("{other:?}"),
            })
            .collect()
    }
}

fn clean(dirs: &[&str], files: &[&str], here: Act, there: Act) -> Sides2 {
    let (sides, found) = run(dirs, files, here, there);
    assert_eq!(found, Vec::<String>::new());
    sides
}

fn refused(dirs: &[&str], files: &[&str], here: Act, there: Act) -> Vec<String> {
    let (_sides, found) = run(dirs, files, here, there);
    assert!(!found.is_empty());
    found
}

#[test]
fn directories_merge() {
    let merged = clean(
        &["/d"],
        &["/d/a", "/d/b"],
        |view| {
            view.files().write(b"/d/here", b"h").unwrap();
            mkdir(view, "/d/sub");
            view.files().write(b"/d/sub/x", content(9000, 7)).unwrap();
            rename(view, "/d/a", "/a2");
        },
        |parent| {
            parent.files().write(b"/d/there", b"t").unwrap();
            mkdir(parent, "/d/sub2");
            remove(parent, b"/d/b");
            rename(parent, "/d", "/e");
        },
    );
    assert_eq!(
        merged.names(),
        [
            "/a2", "/e", "/e/here", "/e/sub", "/e/sub/x", "/e/sub2", "/e/there"
        ]
    );
    assert_eq!(
        merged.parent.files().read(b"/e/sub/x").unwrap(),
        content(9000, 7)
    );
}

#[test]
fn attributes_and_columns_merge_one_by_one() {
    let merged = clean(
        &[],
        &["/f", "/g"],
        |view| {
            view.files().write(b"/f", content(70_000, 9)).unwrap();
            set_xattr(view, "/g", "user.here", "1");
            view.sync().unwrap();
            sql(
                view,
                "UPDATE main SET title = 'g' WHERE ino = (SELECT ino FROM main_path WHERE path = \
                 '/g')",
            );
        },
        |parent| {
            chmod(parent, "/f", 0o600);
            set_xattr(parent, "/g", "user.there", "2");
            parent.files().write(b"/g", content(40_000, 8)).unwrap();
        },
    );
    let parent = &merged.parent;
    assert_eq!(parent.files().read(b"/f").unwrap(), content(70_000, 9));
    assert_eq!(mode(parent, "/f"), 0o600);
    assert_eq!(parent.files().read(b"/g").unwrap(), content(40_000, 8));
    let node = parent.nodes().resolve(b"/g", false).unwrap().node;
    assert_eq!(parent.attributes().get(node, b"user.here").unwrap(), b"1");
    assert_eq!(parent.attributes().get(node, b"user.there").unwrap(), b"2");
    assert_eq!(
        sql(parent, "SELECT count(*) FROM main WHERE title = 'g'"),
        [[SqlValue::Integer(1)]]
    );
}

#[test]
fn the_same_on_both_sides_is_no_conflict() {
    fn change(side: &Database, new_link: &str) {
        remove(side, b"/f");
        rmdir(side, "/old");
        chmod(side, "/g", 0o640);
        link(side, "/g", new_link);
        sql(
            side,
            "DELETE FROM notes WHERE id = 3; UPDATE words SET count = 9 WHERE word = 'a'",
        );
    }
    let merged = clean(
        &["/d", "/old"],
        &["/f", "/g"],
        |view| change(view, "/d/g2"),
        |parent| change(parent, "/d/g3"),
    );
    assert_eq!(merged.names(), ["/d", "/d/g2", "/d/g3", "/g"]);
    let attr = merged.parent.nodes().resolve(b"/g", false).unwrap();
    assert_eq!((attr.nlink, attr.mode & 0o7777), (3, 0o640));
}

#[test]
fn every_conflict_of_files_is_listed_with_its_path() {
    let found = refused(
        &["/d", "/e", "/both"],
        &[
            "/content",
            "/mode",
            "/gone-there",
            "/gone-here",
            "/moved",
            "/attr",
            "/title",
            "/d/x",
        ],
        |view| {
            view.files().write(b"/content", content(30_000, 2)).unwrap();
            chmod(view, "/mode", 0o600);
            view.files()
                .write(b"/gone-there", content(30_000, 3))
                .unwrap();
            remove(view, b"/gone-here");
            rename(view, "/moved", "/moved-here");
            set_xattr(view, "/attr", "user.a", "1");
            view.files().write(b"/new", b"1").unwrap();
            remove(view, b"/d/x");
            rmdir(view, "/d");
            view.files().write(b"/e/child", b"1").unwrap();
            view.sync().unwrap();
            sql(
                view,
                "UPDATE main SET title = 'h' WHERE ino = (SELECT ino FROM main_path WHERE path = \
                 '/title')",
            );
        },
        |parent| {
            parent
                .files()
                .write(b"/content", content(30_000, 4))
                .unwrap();
            chmod(parent, "/mode", 0o604);
            remove(parent, b"/gone-there");
            parent
                .files()
                .write(b"/gone-here", content(30_000, 5))
                .unwrap();
            rename(parent, "/moved", "/moved-there");
            set_xattr(parent, "/attr", "user.a", "2");
            parent.files().write(b"/new", b"2").unwrap();
            parent.files().write(b"/d/late", b"1").unwrap();
            rmdir(parent, "/e");
            parent.sync().unwrap();
            sql(
                parent,
                "UPDATE main SET title = 't' WHERE ino = (SELECT ino FROM main_path WHERE path = \
                 '/title')",
            );
        },
    );
    assert_eq!(
        found,
        [
            "/attr: its attribute user.a was changed on both sides",
            "/content: its content was changed on both sides",
            "/d/late: in a directory that was removed here",
            "/e/child: its directory was removed there",
            "/gone-here: changed there and removed here",
            "/gone-there: removed there and changed here",
            "/mode: its mode was changed on both sides",
            "/moved: renamed on both sides",
            "/new: this name was given on both sides",
            "/title: its title was changed on both sides",
        ]
    );
}

#[test]
fn renames_against_removals_and_rings_are_conflicts() {
    let found = refused(
        &["/a", "/b", "/c"],
        &["/f", "/g"],
        |view| {
            rename(view, "/f", "/f2");
            remove(view, b"/g");
            rename(view, "/a", "/b/a");
            rename(view, "/c", "/c1");
        },
        |parent| {
            remove(parent, b"/f");
            rename(parent, "/g", "/g2");
            rename(parent, "/b", "/a/b");
            rename(parent, "/c", "/c2");
        },
    );
    for what in [
        "/f: removed there and renamed here",
        "/g: renamed there and removed here",
        "/c: renamed on both sides",
    ] {
        assert!(found.iter().any(|line| line == what), "{what}: {found:?}");
    }
    assert!(
        found.iter().any(|line| line.contains("contain itself")),
        "{found:?}"
    );
}

#[test]
fn every_conflict_of_rows_is_listed_with_its_key() {
    let found = refused(
        &[],
        &["/f"],
        |view| {
            sql(
                view,
                "UPDATE notes SET text = 'uno' WHERE id = 1; DELETE FROM notes WHERE id = 2;
                 INSERT INTO notes VALUES (7, 'seven'); INSERT INTO notes VALUES (8, 'unique');
                 INSERT OR REPLACE INTO words VALUES ('a', 5); INSERT INTO tags VALUES (5, 3, \
                 NULL);",
            );
            remove(view, b"/f");
        },
        |parent| {
            sql(
                parent,
                "UPDATE notes SET text = 'eins' WHERE id = 1; UPDATE notes SET text = 'zwei' \
                 WHERE id = 2;
                 INSERT INTO notes VALUES (7, 'sieben'); INSERT INTO notes VALUES (9, 'unique');
                 UPDATE words SET count = 6 WHERE word = 'a'; DELETE FROM notes WHERE id = 3;
                 INSERT INTO tags SELECT 6, NULL, ino FROM main_path WHERE path = '/f';",
            );
        },
    );
    let ino = found
        .iter()
        .find(|line| line.starts_with("tags, \"file\""))
        .cloned();
    assert!(
        ino.is_some_and(|line| line.contains("removed here")),
        "{found:?}"
    );
    for what in [
        "notes, id 1: changed on both sides",
        "notes, id 2: changed there and deleted here",
        "notes, id 7: a row of this key was added on both sides",
        "notes, id 8: UNIQUE constraint failed: notes.text (notes)",
        "tags, row 5: refers to a row of notes that the other side removed",
        "words, word a: changed on both sides",
    ] {
        assert!(found.iter().any(|line| line == what), "{what}: {found:?}");
    }
    assert_eq!(found.len(), 7, "{found:?}");
}

#[test]
fn a_changed_schema_is_refused_clearly() {
    let found = refused(
        &[],
        &[],
        |view| {
            drop(sql(
                view,
                "CREATE TABLE more (x); ALTER TABLE notes ADD COLUMN y; DROP TABLE words",
            ))
        },
        |_| {},
    );
    assert_eq!(found.len(), 3, "{found:?}");
    assert!(
        found
            .iter()
            .all(|line| line.contains("outside of a long transaction")),
        "{found:?}"
    );
    let found = refused(
        &[],
        &[],
        |view| drop(sql(view, "UPDATE notes SET text = 'x' WHERE id = 1")),
        |parent| drop(sql(parent, "ALTER TABLE notes ADD COLUMN y")),
    );
    assert_eq!(
        found,
        ["table notes: altered there, and rows of it were changed here"]
    );
}

#[test]
fn what_the_parent_moves_and_overwrites_is_still_the_base() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path());
    let parent = open(&path);
    for at in 0..20 {
        let file = format!("/f{at}");
        parent
            .files()
            .write(file.as_bytes(), content(3 << 20, at))
            .unwrap();
    }
    parent.sync().unwrap();
    for at in (0..20).step_by(2) {
        remove(&parent, format!("/f{at}").as_bytes());
    }
    let write = |database: &Database, path: &str, offset: u64, byte: u8| {
        let node = database
            .nodes()
            .resolve(path.as_bytes(), false)
            .unwrap()
            .node;
        let file = database.nodes().open(node, true).unwrap();
        file.write_at(offset, &[byte; 100]).unwrap();
        file.sync().unwrap();
    };
    // A redo row before the transaction begins, written in place while it runs.
    write(&parent, "/f1", 500_000, 77);
    parent.sync().unwrap();
    let txn = begin(&path);
    let view = txn.database().unwrap();
    write(view, "/f1", 1_000_000, 88);
    write(view, "/f3", 1_000_000, 88);
    write(&parent, "/f5", 1_000_000, 99);
    parent
        .maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
    let mut expected = content(3 << 20, 1);
    expected[500_000..500_100].fill(77);
    expected[1_000_000..1_000_100].fill(88);
    assert_eq!(view.files().read(b"/f1").unwrap(), expected);
    assert_sound(view);
    assert_sound(&parent);
    assert_eq!(conflicts(txn.commit().unwrap()), Vec::<String>::new());
    std::thread::sleep(Duration::from_millis(100));
    assert_eq!(parent.files().read(b"/f1").unwrap(), expected);
    let mut expected = content(3 << 20, 3);
    expected[1_000_000..1_000_100].fill(88);
    assert_eq!(parent.files().read(b"/f3").unwrap(), expected);
    let mut expected = content(3 << 20, 5);
    expected[1_000_000..1_000_100].fill(99);
    assert_eq!(parent.files().read(b"/f5").unwrap(), expected);
    assert_sound(&parent);
}

#[test]
fn a_workspace_in_use_does_not_end() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path());
    let (id, workspace) = larder::begin_detached(&path, "by hand").unwrap();
    let view = open(&workspace);
    view.files().write(b"/f", content(1 << 20, 3)).unwrap();
    for outcome in [
        larder::abort_long(&path, id),
        larder::commit_long(&path, id).map(drop),
    ] {
        assert_eq!(outcome.unwrap_err().kind(), ErrorKind::Busy, "WORKSPACE-6");
    }
    let refused = view
        .maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {});
    assert_eq!(
        refused.unwrap_err().kind(),
        ErrorKind::InvalidInput,
        "WORKSPACE-8"
    );
    let refused = view.maintenance().shrink(None, false, &mut |_, _| {});
    assert_eq!(
        refused.unwrap_err().kind(),
        ErrorKind::InvalidInput,
        "WORKSPACE-8"
    );
    let refused = view.stores().create("more", "files", None, None);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    assert!(view.transactions().begin_long("inside").is_err());
    let parent = open(&path);
    let refused = parent.maintenance().shrink(None, false, &mut |_, _| {});
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::Busy);
    view.close().unwrap();
    let listed = larder::list_long(&path).unwrap();
    assert_eq!(listed.len(), 1);
    assert!(!listed[0].is_open && !listed[0].is_bound && listed[0].granted_bytes > 0);
    assert_eq!(
        larder::commit_long(&path, id).unwrap(),
        TransactionOutcome::Committed
    );
    let gone = larder::commit_long(&path, id).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::NotFound);
    assert!(open(&path).files().read(b"/f").unwrap() == content(1 << 20, 3));
    assert_sound(&parent);
}

#[test]
fn a_transaction_without_its_owner_is_swept_and_one_by_hand_is_not() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path());
    open(&path).files().write(b"/f", b"base").unwrap();
    let (by_hand, workspace) = larder::begin_detached(&path, "by hand").unwrap();
    let view = open(&workspace);
    view.files().write(b"/f", content(1 << 20, 3)).unwrap();
    view.close().unwrap();
    // A killed owner leaves rows, grants, a directory, and no lock.
    let bound = begin(&path);
    bound
        .database()
        .unwrap()
        .files()
        .write(b"/g", content(5 << 20, 4))
        .unwrap();
    bound.database().unwrap().sync().unwrap();
    let killed = bound.directory();
    std::fs::remove_file(killed.join("owner.lock")).unwrap(); // Nobody finds its lock any more.
    let parent = open(&path);
    assert!(killed.exists(), "WORKSPACE-6: it is in use");
    // Nor that of its session: what is left is what a kill leaves.
    std::fs::remove_file(killed.join("seal.lock")).unwrap();
    let other = open(&path);
    assert!(!killed.exists(), "WORKSPACE-7");
    drop(bound);
    let listed: Vec<u64> = larder::list_long(&path)
        .unwrap()
        .iter()
        .map(|info| info.id)
        .collect();
    assert_eq!(listed, [by_hand], "WORKSPACE-7");
    assert_sound(&other);
    // A directory that nobody knows is swept too.
    std::fs::create_dir(path.join("transactions/999")).unwrap();
    drop(open(&path));
    assert!(!path.join("transactions/999").exists());
    assert_eq!(
        larder::commit_long(&path, by_hand).unwrap(),
        TransactionOutcome::Committed
    );
    assert_eq!(
        parent.nodes().resolve(b"/f", true).unwrap().size_bytes,
        1 << 20
    );
    assert_sound(&parent);
}

#[test]
fn numbers_of_inodes_never_meet() {
    let dir = tempfile::tempdir().unwrap();
    let path = create(dir.path());
    let parent = open(&path);
    let (one, two) = (begin(&path), begin(&path));
    for at in 0..50 {
        for (side, database) in [
            ("p", &parent),
            ("1", one.database().unwrap()),
            ("2", two.database().unwrap()),
        ] {
            database
                .files()
                .write(format!("/{side}{at}").as_bytes(), content(5000, at))
                .unwrap();
        }
    }
    parent.sync().unwrap();
    assert_eq!(conflicts(two.commit().unwrap()), Vec::<String>::new());
    assert_eq!(conflicts(one.commit().unwrap()), Vec::<String>::new());
    std::thread::sleep(Duration::from_millis(100));
    let count = sql(
        &parent,
        "SELECT count(DISTINCT ino), count(*) FROM main_dirent",
    );
    assert_eq!(
        count,
        [[SqlValue::Integer(150), SqlValue::Integer(150)]],
        "WORKSPACE-5"
    );
    assert_sound(&parent);
}
