//! Clones: what they have, what they cost, what is refused, and that neither side sees the other's
//! changes. `CLONE-1`, `SHARE-1` to `SHARE-6`.

use crate::common::workspace::{begin, mkdir, remove, sql};
use crate::common::{
    assert_clean, content, create, create_without_history, kind, make, name, open, pattern, put,
};
use larder::{
    AllocateMode, Caller, Database, DefragOptions, ErrorKind, Moment, NewNode, NodeId, SetAttr,
    SetTime, SqlValue, XattrMode, copy_range,
};
use std::time::Instant;

const R: NodeId = NodeId::ROOT;
const MIB: usize = 1 << 20;

pub fn clone(db: &Database, from: &str, to: &str) -> larder::Result<larder::CloneReport> {
    db.files().clone_path(None, from.as_bytes(), to.as_bytes())
}

pub fn count(db: &Database, text: &str) -> i64 {
    match sql(db, text)[0][0] {
        SqlValue::Integer(count) => count,
        ref other => panic!("{other:?}"),
    }
}

pub fn live(db: &Database) -> u64 {
    db.sync().unwrap();
    db.maintenance().space().unwrap().live_bytes
}

pub fn shared(db: &Database) -> u64 {
    db.maintenance().stats().unwrap().shared_bytes
}

pub fn write(db: &Database, path: &str, offset: u64, bytes: &[u8]) {
    let node = db.nodes().resolve(path.as_bytes(), false).unwrap().node;
    let file = db.nodes().open(node, true).unwrap();
    file.write_at(offset, bytes).unwrap();
}

#[test]
fn neither_side_sees_the_others_changes() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    let bytes = pattern(5 * MIB + 1234, 1);
    put(&db, R, "a", &bytes);
    let before = live(&db);
    let report = clone(&db, "/a", "/b").unwrap();
    assert_eq!(
        (report.file_count, report.content_bytes),
        (1, bytes.len() as u64)
    );
    assert_eq!(report.copied_bytes, 0, "the end of the file is shared too");
    assert_eq!(live(&db), before);
    assert_eq!(shared(&db), before);
    assert_eq!(db.files().read(b"/b").unwrap(), bytes);
    assert_clean(&db);

    let (mut a, mut b) = (bytes.clone(), bytes.clone());
    // Small, large, across a block, beyond the end.
    let edits = [
        (0, 1),
        (4096, 4096),
        (100_000, 30_000),
        (MIB, MIB),
        (bytes.len() - 10, 5000),
    ];
    for (round, (offset, len)) in edits.into_iter().enumerate() {
        for (side, (path, model)) in [("/a", &mut a), ("/b", &mut b)].into_iter().enumerate() {
            let new = pattern(len, (2 * round + side) as u64 + 7);
            write(&db, path, offset as u64 + 3 * side as u64, &new);
            let (from, to) = (offset + 3 * side, offset + 3 * side + len);
            model.resize(model.len().max(to), 0);
            model[from..to].copy_from_slice(&new);
        }
        for _ in 0..2 {
            assert!(db.files().read(b"/a").unwrap() == a, "round {round}");
            assert!(db.files().read(b"/b").unwrap() == b, "round {round}");
            db.sync().unwrap();
            assert_clean(&db);
        }
    }
    // The first two were small overwrites of blocks that both had: no redo row may be made of
    // those.
    drop(db);
    let db = open(dir.path());
    assert!(
        db.files().read(b"/a").unwrap() == a && db.files().read(b"/b").unwrap() == b,
        "SHARE-4"
    );
    assert!(shared(&db) > 2 * MIB as u64);
    remove(&db, b"/a");
    db.sync().unwrap();
    assert_eq!(shared(&db), 0, "SHARE-2");
    assert!(db.files().read(b"/b").unwrap() == b);
    assert_clean(&db);
    remove(&db, b"/b");
    assert_eq!(live(&db), 0);
    assert_clean(&db);
}

#[test]
fn what_one_side_let_go_can_be_overwritten_in_place_again() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    put(&db, R, "a", &pattern(4 * MIB, 1));
    clone(&db, "/a", "/b").unwrap();
    let node = db.nodes().resolve(b"/a", false).unwrap().node;
    // What is overwritten in place stays in one piece.
    let pieces = |db: &Database| {
        db.sync().unwrap();
        let mut count = 0;
        db.maintenance()
            .layouts(&mut |at, extents| count += usize::from(at == node) * extents.len())
            .unwrap();
        count
    };
    let before = pieces(&db);
    write(&db, "/a", 8192, &pattern(100, 2));
    assert_eq!(pieces(&db), before + 2, "SHARE-4");
    assert_eq!(shared(&db), 4 * MIB as u64 - 4096);
    remove(&db, b"/b");
    db.sync().unwrap();
    write(&db, "/a", 1 << 20, &pattern(100, 3));
    assert_eq!(pieces(&db), before + 2);
    let then = db.files().read(b"/a").unwrap();
    // What waits to be written in place is not shared where it is.
    let report = clone(&db, "/a", "/c").unwrap();
    assert!(report.copied_bytes <= 128 << 10, "{report:?}");
    write(&db, "/a", 1 << 20, &pattern(100, 4));
    db.sync().unwrap();
    assert!(db.files().read(b"/c").unwrap() == then);
    assert_clean(&db);
}

#[test]
fn a_tree_is_cloned_with_all_that_is_in_it() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    mkdir(&db, "/t");
    mkdir(&db, "/t/empty");
    mkdir(&db, "/t/sub");
    let sub = db.nodes().resolve(b"/t/sub", false).unwrap().node;
    let root = db.nodes().resolve(b"/t", false).unwrap().node;
    let big = put(&db, sub, "big", &pattern(3 * MIB, 1));
    put(&db, sub, "tiny", b"inline");
    put(&db, sub, "nothing", b"");
    db.nodes().link(big, root, &name("link")).unwrap();
    let owner = Caller {
        uid: 5,
        gid: 6,
        umask: 0,
    };
    db.nodes()
        .create_node(
            sub,
            &name("symlink"),
            NewNode::Symlink(b"big"),
            0o777,
            owner,
        )
        .unwrap();
    db.nodes()
        .create_node(sub, &name("fifo"), NewNode::Fifo, 0o600, owner)
        .unwrap();
    db.attributes()
        .set(big, b"user.colour", b"red", XattrMode::Set)
        .unwrap();
    let old = SetAttr {
        mode: Some(0o751),
        uid: Some(77),
        gid: Some(78),
        mtime: Some(SetTime::At(1_000)),
        atime: Some(SetTime::At(2_000)),
        ..SetAttr::default()
    };
    for path in [&b"/t/sub/big"[..], b"/t/sub", b"/t"] {
        db.nodes()
            .set_attr(db.nodes().resolve(path, false).unwrap().node, &old)
            .unwrap();
    }
    // A sparse one, and one with inserted ranges, which is copied.
    let sparse = make(&db, root, "sparse");
    let file = db.nodes().open(sparse, true).unwrap();
    file.write_at(100 << 20, b"end").unwrap();
    let odd = put(&db, root, "odd", &pattern(MIB, 5));
    db.nodes()
        .open(odd, true)
        .unwrap()
        .insert_range(1000, b"inserted")
        .unwrap();
    db.nodes().set_attr(root, &old).unwrap();
    let before = live(&db);

    let report = clone(&db, "/t", "/u").unwrap();
    assert_eq!(
        (
            report.directory_count,
            report.file_count,
            report.other_count
        ),
        (3, 5, 3)
    );
    assert!(live(&db) <= before + MIB as u64 + (256 << 10), "CLONE-1");
    let diff = larder::diff((&db, b"/t"), (&db, b"/u")).unwrap();
    assert_eq!(diff.changes, Vec::new(), "CLONE-1");
    for path in [
        "",
        "/sub",
        "/sub/big",
        "/sub/symlink",
        "/sub/fifo",
        "/link",
        "/empty",
    ] {
        let (a, b) = (format!("/t{path}"), format!("/u{path}"));
        let (a, b) = (
            db.nodes().resolve(a.as_bytes(), false).unwrap(),
            db.nodes().resolve(b.as_bytes(), false).unwrap(),
        );
        assert_ne!(a.node, b.node);
        assert_eq!(
            (
                a.kind,
                a.mode,
                a.uid,
                a.gid,
                a.nlink,
                a.size_bytes,
                a.mtime_ns,
                a.allocated_bytes
            ),
            (
                b.kind,
                b.mode,
                b.uid,
                b.gid,
                b.nlink,
                b.size_bytes,
                b.mtime_ns,
                b.allocated_bytes
            ),
            "{path}"
        );
    }
    for path in [
        "/sub/big",
        "/sub/tiny",
        "/sub/nothing",
        "/sparse",
        "/odd",
        "/link",
    ] {
        let (a, b) = (format!("/t{path}"), format!("/u{path}"));
        assert!(
            db.files().read(a.as_bytes()).unwrap() == db.files().read(b.as_bytes()).unwrap(),
            "{path}"
        );
    }
    let link = db.nodes().resolve(b"/u/link", false).unwrap();
    assert_eq!(
        link.node,
        db.nodes().resolve(b"/u/sub/big", false).unwrap().node
    );
    assert_eq!(
        db.attributes().get(link.node, b"user.colour").unwrap(),
        b"red"
    );
    assert_clean(&db);
}

#[test]
fn a_store_is_cloned_to_a_store() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    let store = db.stores().create("one", "files", None, None).unwrap();
    let root = NodeId {
        store: store.store,
        ..R
    };
    put(&db, root, "f", &pattern(MIB, 1));
    let before = live(&db);
    let report = clone(&db, "/one", "/two").unwrap();
    assert!(report.is_store);
    assert_eq!(live(&db), before);
    assert_eq!(db.stores().list().unwrap().len(), 3);
    assert_eq!(db.files().read(b"/two/f").unwrap(), pattern(MIB, 1));
    // A directory of one store becomes one of another.
    clone(&db, "/one/f", "/copy").unwrap();
    clone(&db, "/one", "/two/below").unwrap();
    assert_eq!(live(&db), before);
    assert_clean(&db);
    write(&db, "/two/f", 0, b"changed");
    db.sync().unwrap();
    // What only this store holds is retired with it; the rest is the others'.
    db.stores().destroy("one").unwrap();
    assert_clean(&db);
    assert_eq!(db.files().read(b"/copy").unwrap(), pattern(MIB, 1));
    db.stores().destroy("two").unwrap();
    assert_clean(&db);
    assert_eq!(db.files().read(b"/copy").unwrap(), pattern(MIB, 1));
    assert_eq!(shared(&db), 0);
    remove(&db, b"/copy");
    assert_eq!(live(&db), 0);
    assert_clean(&db);
}

#[test]
fn what_cannot_be_cloned_is_refused_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(64 << 20));
    mkdir(&db, "/d");
    put(&db, R, "f", &pattern(MIB, 1));
    db.sync().unwrap();
    let tree = || larder_tree(&db);
    let before = tree();
    for (from, to, expected) in [
        ("/f", "/d", ErrorKind::Exists),
        ("/f", "/f", ErrorKind::Exists),
        ("/f", "/", ErrorKind::Exists),
        ("/missing", "/g", ErrorKind::NotFound),
        ("/f", "/missing/g", ErrorKind::NotFound),
        ("/f", "/f/g", ErrorKind::NotADirectory),
        ("/d", "/d/e", ErrorKind::InvalidInput),
        ("/", "/d/e", ErrorKind::InvalidInput),
        ("/", "/e", ErrorKind::InvalidInput),
    ] {
        let refused = clone(&db, from, to).unwrap_err();
        assert_eq!(refused.kind(), expected, "{from} to {to}: {refused}");
        assert!(!refused.to_string().contains('\n'), "{refused}");
        assert_eq!(tree(), before, "{from} to {to}");
    }
    // Another database.
    let other_dir = tempfile::tempdir().unwrap();
    let other = create(other_dir.path(), None);
    let past = other.as_of(&Moment::Seq(0));
    if let Ok(past) = past {
        assert_eq!(
            kind(db.files().clone_path(Some(&past), b"/", b"/x")),
            ErrorKind::InvalidInput
        );
    }
    assert_eq!(
        kind(db.files().clone_path(Some(&other), b"/", b"/x")),
        ErrorKind::InvalidInput
    );
    // A store that may not be written, a long transaction.
    db.stores()
        .create("view", "readonly", None, Some("main"))
        .unwrap();
    assert_eq!(kind(clone(&db, "/f", "/view/g")), ErrorKind::ReadOnly);
    drop(db);
    let path = dir.path().join("t.larder");
    let long = begin(&path);
    let refused = clone(long.database().unwrap(), "/f", "/g").unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Unsupported, "{refused}");
}

/// Names and sizes.
fn larder_tree(db: &Database) -> Vec<(String, u64)> {
    let mut found = Vec::new();
    for (entry, attr) in db.nodes().read_dir_plus(R, None, 1000).unwrap() {
        found.push((entry.name.to_string(), attr.size_bytes));
    }
    found
}

#[test]
fn a_full_database_has_room_for_clones() {
    let dir = tempfile::tempdir().unwrap();
    let db = create_without_history(dir.path(), Some(32 << 20));
    put(&db, R, "a", &pattern(4 * MIB, 1));
    let mut at = 0;
    while let Ok(()) = fill_one(&db, at) {
        at += 1;
    }
    assert_eq!(kind(fill_one(&db, at)), ErrorKind::NoSpace);
    let before = live(&db);
    clone(&db, "/a", "/b").unwrap();
    assert_eq!(live(&db), before);
    // Writing to it takes space, and is refused before anything is changed.
    let node = db.nodes().resolve(b"/b", false).unwrap().node;
    let file = db.nodes().open(node, true).unwrap();
    assert_eq!(
        kind(file.write_at(0, &pattern(3 * MIB, 9))),
        ErrorKind::NoSpace
    );
    drop(file);
    assert_eq!(db.files().read(b"/b").unwrap(), pattern(4 * MIB, 1));
    assert_clean(&db);
}

fn fill_one(db: &Database, at: u64) -> larder::Result<()> {
    let path = format!("/fill{at}");
    let outcome = db
        .files()
        .write(path.as_bytes(), pattern(512 << 10, at))
        .and_then(|_| db.sync());
    if outcome.is_err() && db.nodes().resolve(path.as_bytes(), false).is_ok() {
        remove(db, path.as_bytes());
    }
    outcome
}

#[test]
fn ranges_are_shared_by_copies_within_the_server() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    let bytes = pattern(2 * MIB + 77, 1);
    let from = put(&db, R, "from", &bytes);
    let to = make(&db, R, "to");
    let before = live(&db);
    let (source, target) = (
        db.nodes().open(from, true).unwrap(),
        db.nodes().open(to, true).unwrap(),
    );
    let copied = copy_range((&*source, 0), (&*target, 0), u64::MAX).unwrap();
    assert_eq!(copied, bytes.len() as u64);
    assert_eq!(live(&db), before);
    assert!(content(&db, to) == bytes);
    // Again, over itself: what both have already is copied.
    copy_range((&*source, 0), (&*target, 0), 8192).unwrap();
    assert!(content(&db, to) == bytes);
    assert_clean(&db);
    // To another block; the end of the source inside of the target; offsets inside of blocks.
    let mut model = bytes.clone();
    for (from_offset, to_offset, len) in [
        (4096, MIB as u64, 40_960),
        (MIB as u64, 0, 100_000),
        (2 * MIB as u64, 4096, 77),
        (100, 8000, 9000),
        (0, 3 * MIB as u64, 4096 * 3 + 5),
    ] {
        let other = put(&db, R, &format!("o{from_offset}"), &bytes);
        let source = db.nodes().open(other, false).unwrap();
        let copied = copy_range((&*source, from_offset), (&*target, to_offset), len).unwrap();
        assert_eq!(copied, len);
        let (start, end) = (from_offset as usize, (from_offset + len) as usize);
        let stop = (to_offset + len) as usize;
        model.resize(model.len().max(stop), 0);
        model[to_offset as usize..stop].copy_from_slice(&bytes[start..end]);
        assert!(content(&db, to) == model, "{from_offset} to {to_offset}");
        db.sync().unwrap();
        assert!(content(&db, to) == model, "{from_offset} to {to_offset}");
        assert_clean(&db);
    }
    target
        .allocate(AllocateMode::PunchHole, 4096, 1 << 20)
        .unwrap();
    target.set_len(10_000).unwrap();
    drop((source, target));
    assert_clean(&db);
    remove(&db, b"/to");
    assert_clean(&db);
    assert!(content(&db, from) == bytes);
}

#[test]
fn the_past_of_both_sides_stays_readable() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(256 << 20));
    put(&db, R, "a", &pattern(MIB, 1));
    clone(&db, "/a", "/b").unwrap();
    db.snapshots().create("both").unwrap();
    write(&db, "/a", 0, &pattern(MIB, 2));
    write(&db, "/b", 4096, &pattern(5000, 3));
    db.sync().unwrap();
    db.snapshots().create("changed").unwrap();
    remove(&db, b"/b");
    db.sync().unwrap();
    clone(&db, "/a", "/c").unwrap();
    assert_clean(&db);
    let at = |moment: &str| db.as_of(&Moment::Snapshot(moment.into())).unwrap();
    let both = at("both");
    assert!(
        both.files().read(b"/a").unwrap() == pattern(MIB, 1),
        "SHARE-2"
    );
    assert!(
        both.files().read(b"/b").unwrap() == pattern(MIB, 1),
        "SHARE-2"
    );
    let changed = at("changed");
    let mut b = pattern(MIB, 1);
    b[4096..9096].copy_from_slice(&pattern(5000, 3));
    assert!(changed.files().read(b"/b").unwrap() == b);
    // A clone of what is gone: of the past, by copying.
    let report = db
        .files()
        .clone_path(Some(&changed), b"/b", b"/back")
        .unwrap();
    assert_eq!(report.content_bytes, MIB as u64);
    assert!(db.files().read(b"/back").unwrap() == b);
    assert_clean(&db);
}

#[test]
fn shared_content_stays_where_it_is() {
    let dir = tempfile::tempdir().unwrap();
    let db = create_without_history(dir.path(), Some(128 << 20));
    // Files in many pieces.
    let (a, b) = (make(&db, R, "a"), make(&db, R, "b"));
    for round in 0..40 {
        for (node, salt) in [(a, 0), (b, 1)] {
            let file = db.nodes().open(node, true).unwrap();
            file.write_at(round * 65536, &pattern(65536, round * 2 + salt))
                .unwrap();
            file.sync().unwrap();
        }
    }
    let bytes = db.files().read(b"/a").unwrap();
    clone(&db, "/a", "/c").unwrap();
    let before = live(&db);
    let defrag = || {
        db.maintenance()
            .defrag(&[], &DefragOptions::default(), &mut |_| {})
            .unwrap()
    };
    defrag();
    assert_eq!(live(&db), before, "SHARE-5");
    assert_eq!(shared(&db), bytes.len() as u64);
    assert_clean(&db);
    assert!(db.files().read(b"/c").unwrap() == bytes);
    // At the end of the segments it is in the way.
    remove(&db, b"/b");
    put(&db, R, "big", &pattern(60 * MIB, 3));
    db.sync().unwrap();
    let lasts: Vec<_> = (0..40)
        .map(|n| put(&db, R, &format!("last{n}"), &pattern(MIB, n)))
        .collect();
    db.sync().unwrap();
    let mut far = None;
    db.maintenance()
        .layouts(&mut |node, extents| {
            let is_far = extents.iter().all(|extent| extent.start_block > 6000);
            if let Some(index) = lasts.iter().position(|last| *last == node && is_far) {
                far = Some(index);
            }
        })
        .unwrap();
    let far = far.expect("100 MiB do not lie below 24");
    for other in (0..lasts.len()).filter(|other| *other != far) {
        remove(&db, format!("/last{other}").as_bytes());
    }
    clone(&db, &format!("/last{far}"), "/last2").unwrap();
    remove(&db, b"/big");
    db.sync().unwrap();
    let refused = db
        .maintenance()
        .shrink(Some(20 << 20), false, &mut |_, _| {})
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    assert!(refused.to_string().contains("clones share"), "{refused}");
    // Without a size it is cut behind it.
    let report = db
        .maintenance()
        .shrink(None, false, &mut |_, _| {})
        .unwrap();
    let (before, after) = (report.segment_bytes_before, report.segment_bytes_after);
    assert!((24 << 20..before).contains(&after), "{report:?}");
    assert_eq!(report.shared_bytes, MIB as u64, "{report:?}");
    assert!(db.files().read(b"/last2").unwrap() == pattern(MIB, far as u64));
    assert_clean(&db);
    remove(&db, b"/last2");
    db.sync().unwrap();
    remove(&db, b"/c");
    db.sync().unwrap();
    let report = db
        .maintenance()
        .shrink(Some(20 << 20), false, &mut |_, _| {})
        .unwrap();
    assert!(report.segment_bytes_after <= 21 << 20, "{report:?}");
    assert!(db.files().read(b"/a").unwrap() == bytes);
    assert_clean(&db);
}

/// Bytes and rows, not times: those depend on the machine.
#[test]
fn a_clone_costs_its_rows_and_nothing_else() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), Some(1 << 30));
    mkdir(&db, "/t");
    let root = db.nodes().resolve(b"/t", false).unwrap().node;
    for at in 0..20 {
        put(&db, root, &format!("f{at}"), &pattern(8 * MIB, at));
    }
    let before = live(&db);
    let catalog = |db: &Database| {
        let pages = count(db, "SELECT * FROM pragma_page_count");
        let free = count(db, "SELECT * FROM pragma_freelist_count");
        (pages - free) * count(db, "SELECT * FROM pragma_page_size")
    };
    // Redo rows go, so that they do not hide what the clone adds.
    clone(&db, "/t/f0", "/warm").unwrap();
    let catalog_before = catalog(&db);
    let began = Instant::now();
    let report = clone(&db, "/t", "/u").unwrap();
    let took = began.elapsed();
    let grown = catalog(&db) - catalog_before;
    println!("160 MiB in 20 files: {took:?}, the catalog grew by {grown} bytes");
    assert_eq!(report.copied_bytes, 0);
    assert_eq!(live(&db), before);
    assert_eq!(shared(&db), before + 8 * MIB as u64);
    // Some rows of a file: no checksums, which are 8 KiB of each (SHARE-7).
    assert!(grown <= 48 << 10, "{grown}");
    let rows = count(&db, "SELECT count(*) FROM larder_shared");
    assert!(rows <= 60, "{rows} rows for 21 files");
    assert_clean(&db);
}
