//! What the local filesystem answers as a side of a copy.

use super::*;

/// A scratch directory, and it as a folder.
fn scratch() -> (tempfile::TempDir, Rc<dyn Folder>) {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().as_os_str().to_owned().into_vec();
    let folder = Local.folder(&path).unwrap().unwrap();
    (dir, folder)
}

fn find(folder: &dyn Folder, name: &str) -> Found {
    folder.find(name.as_bytes()).unwrap().unwrap()
}

#[test]
fn files_links_and_holes_are_seen_as_they_are() {
    let (dir, folder) = scratch();
    let file = folder.create_file(b"a", 0o640).unwrap();
    file.write_at(1 << 20, b"end").unwrap();
    let link = folder
        .create_node(b"l", NewNode::Symlink(b"a"), 0o777)
        .unwrap();
    let a = find(&*folder, "a");
    folder.link(b"b", &*folder, b"a", &a).unwrap();
    file.set_xattr(b"user.note", b"noted").unwrap();
    let noted = [(b"user.note".to_vec(), b"noted".to_vec())];
    assert_eq!(folder.hold(b"b", &a).unwrap().xattrs().unwrap(), noted);
    let b = folder.open(b"b", &a).unwrap();
    assert_eq!(b.xattrs().unwrap(), noted);

    let carry = Carry {
        mode: Some(0o4711),
        owner: None,
        times_ns: Some((-5, 1_000_000_007)),
    };
    // By a descriptor that is open, and by one that only names.
    file.set_attr(&carry).unwrap();
    let node = folder.create_node(b"pipe", NewNode::Fifo, 0o600).unwrap();
    node.set_attr(&carry).unwrap();
    link.set_attr(&carry).unwrap();
    for name in ["a", "pipe", "l"] {
        let found = find(&*folder, name);
        assert_eq!(
            (found.atime_ns, found.mtime_ns),
            (-5, 1_000_000_007),
            "{name}"
        );
        let mode = if name == "l" { 0o777 } else { 0o4711 };
        assert_eq!(found.mode, mode, "{name}");
    }
    let a = find(&*folder, "a");
    assert_eq!(
        (a.kind, a.nlink, a.size_bytes),
        (FileKind::File, 2, (1 << 20) + 3)
    );
    let path = |name: &str| dir.path().join(name).into_os_string().into_vec();
    assert_eq!(find(&*folder, "b").identity, a.identity);
    let followed = Local.find(&path("l"), true).unwrap().unwrap();
    assert_eq!(followed.identity, a.identity);
    assert_eq!(folder.read_link(b"l").unwrap(), b"a");
    assert_eq!(folder.find(b"none").unwrap(), None);

    let file = folder.open(b"a", &a).unwrap();
    let (begin, end) = file.next_data(0).unwrap().unwrap();
    assert!(begin <= 1 << 20 && end == (1 << 20) + 3);
    assert_eq!(file.next_data(end).unwrap(), None);
    let mut buffer = [1; 8];
    assert_eq!(file.read_at((1 << 20) - 1, &mut buffer).unwrap(), 4);
    assert_eq!(&buffer[..4], b"\0end");
}

#[test]
fn what_was_found_is_what_is_opened() {
    let (dir, folder) = scratch();
    let path = |name: &str| dir.path().join(name);
    std::fs::write(path("a"), "a").unwrap();
    std::fs::create_dir(path("d")).unwrap();
    let (a, d) = (find(&*folder, "a"), find(&*folder, "d"));
    std::fs::write(path("other"), "other").unwrap();
    std::fs::create_dir(path("other.d")).unwrap();
    let refused = |what: &str| {
        assert!(folder.open(b"a", &a).is_err(), "CLI-40: {what}");
        assert!(folder.overwrite(b"a", &a).is_err(), "CLI-40: {what}");
        assert!(folder.hold(b"a", &a).is_err(), "CLI-40: {what}");
        assert!(folder.enter(b"d", &d).is_err(), "CLI-40: {what}");
    };
    let put = |name: &str, make: &dyn Fn()| {
        std::fs::rename(path(name), path("away")).unwrap();
        make();
        std::fs::rename(path("away"), path(&format!("kept.{name}"))).unwrap();
    };
    put("a", &|| {
        std::os::unix::fs::symlink("other", path("a")).unwrap();
    });
    put("d", &|| {
        std::os::unix::fs::symlink("other.d", path("d")).unwrap();
    });
    refused("a link");
    std::fs::rename(path("other"), path("a")).unwrap();
    std::fs::remove_file(path("d")).unwrap();
    std::fs::rename(path("other.d"), path("d")).unwrap();
    refused("another of its kind");
    std::fs::remove_file(path("a")).unwrap();
    std::fs::remove_dir(path("d")).unwrap();
    let fifo = folder.create_node(b"a", NewNode::Fifo, 0o600).unwrap();
    std::fs::write(path("d"), "").unwrap();
    refused("another kind");
    drop(fifo);
    assert_eq!(std::fs::read(path("kept.a")).unwrap(), b"a");
}

#[test]
fn a_path_starts_where_it_leads() {
    let (dir, folder) = scratch();
    let path = |name: &str| dir.path().join(name).into_os_string().into_vec();
    std::fs::create_dir(dir.path().join("d")).unwrap();
    std::fs::write(dir.path().join("d/f"), "").unwrap();
    for (target, name) in [("d", "to_d"), ("d/f", "to_f"), ("none", "to_none")] {
        let link = NewNode::Symlink(target.as_bytes());
        drop(folder.create_node(name.as_bytes(), link, 0o777).unwrap());
    }
    let found = |name: &str, follow: bool| {
        let spot = Local.start(&path(name), follow).unwrap();
        spot.find().unwrap().map(|found| found.kind)
    };
    assert_eq!(found("to_d/f", false), Some(FileKind::File));
    assert_eq!(found("to_d", false), Some(FileKind::Symlink));
    assert_eq!(found("to_d", true), Some(FileKind::Directory));
    assert_eq!(found("to_d/", false), Some(FileKind::Directory));
    assert_eq!(found("to_f", true), Some(FileKind::File));
    assert_eq!(found("d/..", false), Some(FileKind::Directory));
    assert_eq!(found("d/none", true), None);
    assert_eq!(found("none/", true), None);
    assert!(Local.start(&path("to_none"), true).is_err());
    assert!(Local.start(&path("none/f"), true).is_err());
    assert_eq!(Local.start(b"/", false).unwrap().name, SELF);
    assert!(Local.folder(&path("d/f")).unwrap().is_none());
}
