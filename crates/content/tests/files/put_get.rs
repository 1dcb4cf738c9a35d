//! Whole objects: put and got in one call, and names that are remembered.

use crate::common::*;
use larder::{AlignedBuf, Caller, Database, ErrorKind, NewNode, NodeId, XattrMode};
use std::time::{Duration, Instant};

const R: NodeId = NodeId::ROOT;
/// Inline, one block, ragged, whole blocks, long enough for parallel requests, two map pages.
const SIZES: [usize; 8] = [0, 1, 2048, 2049, 10_000, 65_536, 1_000_000, 9_000_001];

#[test]
fn what_is_put_is_got_whatever_was_there_before() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let mut buffer = AlignedBuf::default();
    for (i, before) in SIZES.into_iter().enumerate() {
        for (j, size) in SIZES.into_iter().enumerate() {
            let path = format!("/{i}-{j}");
            let old = pattern(before, 1);
            let new = pattern(size, 2);
            let inode = db.files().write(path.as_bytes(), &old).unwrap().node;
            assert_eq!(db.files().read(path.as_bytes()).unwrap(), old, "{path}");
            // Dirty, being committed, committed: all three are replaced.
            if j % 3 > 0 {
                db.sync().unwrap();
            }
            let attr = db.files().write(path.as_bytes(), &new).unwrap();
            assert_eq!((attr.node, attr.size_bytes), (inode, size as u64), "{path}");
            assert!(db.files().read(path.as_bytes()).unwrap() == new, "{path}");
            db.sync().unwrap();
            db.files().read_into(path.as_bytes(), &mut buffer).unwrap();
            assert!(buffer[..] == new[..], "{path}");
            if (i + j) % 2 == 0 {
                db.nodes().unlink(R, &name(&path[1..])).unwrap();
            }
        }
    }
    assert_clean(&db);
    db.close().unwrap();
    let db = open(dir.path());
    for (i, _) in SIZES.iter().enumerate() {
        for (j, &size) in SIZES.iter().enumerate() {
            let found = db.files().read(format!("/{i}-{j}").as_bytes());
            match (i + j) % 2 {
                0 => assert_eq!(found.unwrap_err().kind(), ErrorKind::NotFound),
                _ => assert!(found.unwrap() == pattern(size, 2), "{i}-{j}"),
            }
        }
    }
}

#[test]
fn put_keeps_what_is_not_content() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let node = db.files().write(b"/f", pattern(50_000, 1)).unwrap().node;
    db.attributes()
        .set(node, b"user.a", b"1", XattrMode::Set)
        .unwrap();
    db.nodes().link(node, R, &name("g")).unwrap();
    let reader = db.nodes().open(node, false).unwrap();
    db.files().write(b"/g", pattern(3000, 2)).unwrap();
    assert!(db.files().read(b"/f").unwrap() == pattern(3000, 2));
    assert_eq!(db.attributes().get(node, b"user.a").unwrap(), b"1");
    assert_eq!(reader.metadata().unwrap().size_bytes, 3000);
    assert_eq!(reader.metadata().unwrap().nlink, 2);
    assert_clean(&db);
}

#[test]
fn put_and_get_refuse_what_is_no_file() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let caller = Caller::current();
    let sub = db
        .nodes()
        .create_node(R, &name("d"), NewNode::Directory, 0o755, caller)
        .unwrap()
        .node;
    db.nodes()
        .create_node(R, &name("l"), NewNode::Symlink(b"d/f"), 0o777, caller)
        .unwrap();
    db.nodes()
        .create_node(sub, &name("up"), NewNode::Symlink(b"../d/f"), 0o777, caller)
        .unwrap();
    assert_eq!(kind(db.files().write(b"/d", b"x")), ErrorKind::IsADirectory);
    assert_eq!(kind(db.files().write(b"/l", b"x")), ErrorKind::InvalidInput);
    assert_eq!(kind(db.files().write(b"/no/f", b"x")), ErrorKind::NotFound);
    assert_eq!(kind(db.files().read(b"/d")), ErrorKind::IsADirectory);
    assert_eq!(kind(db.files().read(b"/l")), ErrorKind::NotFound);
    db.files().write(b"/d/f", b"deep").unwrap();
    for path in [&b"/l"[..], b"/d/f", b"/d/../d/./f", b"/d/up", b"//d//f"] {
        assert_eq!(db.files().read(path).unwrap(), b"deep");
    }
    assert_eq!(kind(db.files().read(b"/d/f/g")), ErrorKind::NotADirectory);
}

#[test]
fn names_are_forgotten_when_they_change_here() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let is_there = |path: &str| match db.files().read(path.as_bytes()) {
        Ok(_) => true,
        Err(error) => {
            assert_eq!(error.kind(), ErrorKind::NotFound);
            false
        }
    };
    assert!(!is_there("/a"), "CACHE-1: absent is remembered");
    db.files().write(b"/a", b"1").unwrap();
    for round in 0..3 {
        assert!(is_there("/a") && !is_there("/b"), "CACHE-1");
        db.nodes()
            .rename(R, &name("a"), R, &name("b"), larder::RenameMode::Replace)
            .unwrap();
        if round == 1 {
            db.sync().unwrap();
        }
        assert!(!is_there("/a") && is_there("/b"), "CACHE-1");
        db.nodes()
            .rename(R, &name("b"), R, &name("a"), larder::RenameMode::Replace)
            .unwrap();
        db.sync().unwrap();
    }
    db.nodes().unlink(R, &name("a")).unwrap();
    assert!(!is_there("/a"), "CACHE-1");
}

#[test]
fn names_are_forgotten_when_another_session_changes_them() {
    let dir = tempfile::tempdir().unwrap();
    let one = create(dir.path(), None);
    let two = open(dir.path());
    let wait = |db: &Database, path: &str, expected: Option<&[u8]>| {
        let patience = Instant::now();
        while db.files().read(path.as_bytes()).ok().as_deref() != expected {
            assert!(
                patience.elapsed() < Duration::from_secs(5),
                "CACHE-1: {path}"
            );
            std::thread::sleep(Duration::from_millis(5));
        }
    };
    wait(&two, "/f", None);
    one.files().write(b"/f", pattern(20_000, 1)).unwrap();
    one.sync().unwrap();
    wait(&two, "/f", Some(&pattern(20_000, 1)));
    one.files().write(b"/new", pattern(30_000, 2)).unwrap();
    one.nodes()
        .rename(R, &name("new"), R, &name("f"), larder::RenameMode::Replace)
        .unwrap();
    one.sync().unwrap();
    wait(&two, "/f", Some(&pattern(30_000, 2)));
    one.nodes().unlink(R, &name("f")).unwrap();
    one.sync().unwrap();
    wait(&two, "/f", None);
    assert_clean(&two);
}

/// Who looks something up does not wait for somebody's large object.
#[test]
fn lookups_go_on_beside_a_large_put() {
    let dir = tempfile::tempdir().unwrap();
    let db = create_without_history(dir.path(), Some(2 << 30));
    let file = make(&db, R, "file");
    db.sync().unwrap();
    let bytes = pattern(400 << 20, 3);
    let mut times = Vec::new();
    std::thread::scope(|scope| {
        let put = scope.spawn(|| db.files().write(b"/large", &bytes).and_then(|_| db.sync()));
        while !put.is_finished() {
            let began = Instant::now();
            assert_eq!(db.nodes().lookup(R, &name("file")).unwrap().node, file);
            db.nodes().metadata(file).unwrap();
            times.push(began.elapsed());
        }
        put.join().unwrap().unwrap();
    });
    times.sort_unstable();
    let (count, longest) = (times.len(), times[times.len() - 1]);
    println!("{count} lookups, the longest {longest:?}");
    // The machine may stop for a while, a few times.
    let late = times
        .iter()
        .filter(|time| **time > Duration::from_millis(50));
    assert!(
        count > 1000 && late.count() <= count / 1000,
        "{count}, {longest:?}"
    );
}
