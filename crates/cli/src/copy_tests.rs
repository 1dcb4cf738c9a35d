//! Copies from the local filesystem to itself: what `cp` does, without a database.

use super::*;
use crate::local::Local;
use crate::side::Side;
use std::fs;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;

const PLAIN: CopyMode = CopyMode {
    is_recursive: false,
    is_archive: false,
    is_strict: false,
    umask: 0o022,
    is_root: false,
};
const RECURSIVE: CopyMode = CopyMode {
    is_recursive: true,
    ..PLAIN
};
const ARCHIVE: CopyMode = CopyMode {
    is_recursive: true,
    is_archive: true,
    ..PLAIN
};

fn bytes(path: &Path) -> Vec<u8> {
    path.as_os_str().to_owned().into_vec()
}

fn copy(mode: CopyMode, source: &Path, target: &Path) -> (Result<()>, CopyCount) {
    let progress = Progress::new(None);
    let mut copy = Copy::new(true, mode, &progress);
    let start = |path: &Path| Local.start(&bytes(path), !mode.is_recursive);
    let result = start(source).and_then(|source| copy.run(&source, &start(target)?));
    (result, copy.count())
}

fn line(result: Result<()>) -> String {
    result.unwrap_err().line().unwrap_or_default()
}

#[test]
fn an_archive_carries_everything_over() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir_all(from.join("sub")).unwrap();
    fs::write(from.join("sub/a"), "content").unwrap();
    fs::hard_link(from.join("sub/a"), from.join("b")).unwrap();
    symlink("nowhere", from.join("link")).unwrap();
    fs::set_permissions(from.join("b"), PermissionsExt::from_mode(0o4701)).unwrap();
    fs::set_permissions(from.join("sub"), PermissionsExt::from_mode(0o500)).unwrap();
    let old = std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000, 7);
    fs::File::open(from.join("b"))
        .unwrap()
        .set_modified(old)
        .unwrap();
    fs::File::open(from.join("sub"))
        .unwrap()
        .set_modified(old)
        .unwrap();

    let (result, count) = copy(ARCHIVE, &from, &to);
    result.unwrap();
    assert_eq!(
        count,
        CopyCount {
            files: 1,
            directories: 2,
            others: 2,
            bytes: 7
        }
    );
    let copied = to.join("b").metadata().unwrap();
    assert_eq!(
        (
            copied.mode() & 0o7777,
            copied.modified().unwrap(),
            copied.nlink()
        ),
        (0o4701, old, 2)
    );
    assert_eq!(
        copied.ino(),
        to.join("sub/a").metadata().unwrap().ino(),
        "one inode, as before"
    );
    assert_eq!(to.join("sub").metadata().unwrap().mode() & 0o7777, 0o500);
    assert_eq!(
        to.join("sub").metadata().unwrap().modified().unwrap(),
        old,
        "its filling came first"
    );
    assert_eq!(
        fs::read_link(to.join("link")).unwrap(),
        Path::new("nowhere")
    );
    assert_eq!(fs::read(to.join("sub/a")).unwrap(), b"content");
}

#[test]
fn a_plain_copy_asks_for_permission() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    fs::create_dir(&from).unwrap();
    assert!(line(copy(PLAIN, &from, &to).0).contains("larder cp -r"));
    symlink("from", dir.path().join("link")).unwrap();
    assert!(
        line(copy(PLAIN, &dir.path().join("link"), &to).0).contains("larder cp -r"),
        "links are followed"
    );
    assert!(line(copy(PLAIN, &dir.path().join("none"), &to).0).contains("there is no"));
    assert!(!to.exists());
}

#[test]
fn what_exists_is_kept_or_replaced() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::write(path("a"), "new").unwrap();
    fs::write(path("b"), "older and longer").unwrap();
    fs::hard_link(path("b"), path("c")).unwrap();
    copy(PLAIN, &path("a"), &path("b")).0.unwrap();
    assert_eq!(
        fs::read(path("c")).unwrap(),
        b"new",
        "CLI-10: the inode stays"
    );
    assert!(line(copy(PLAIN, &path("b"), &path("c")).0).contains("are the same file"));
    assert_eq!(
        fs::read(path("c")).unwrap(),
        b"new",
        "the same file is not emptied"
    );

    fs::create_dir(path("d")).unwrap();
    assert!(line(copy(PLAIN, &path("a"), &path("d")).0).contains("is a directory"));
    assert!(line(copy(RECURSIVE, &path("d"), &path("a")).0).contains("is not a directory"));
    symlink("a", path("d/link")).unwrap();
    fs::create_dir(path("e")).unwrap();
    fs::write(path("e/link"), "in the way").unwrap();
    copy(RECURSIVE, &path("d"), &path("e")).0.unwrap();
    assert_eq!(
        fs::read_link(path("e/link")).unwrap(),
        Path::new("a"),
        "a link takes the place of a file"
    );
}

#[test]
fn holes_stay_holes() {
    let dir = tempfile::tempdir().unwrap();
    let (from, to) = (dir.path().join("from"), dir.path().join("to"));
    let file = fs::File::create(&from).unwrap();
    file.set_len(64 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 32 << 20).unwrap();
    let (result, count) = copy(PLAIN, &from, &to);
    result.unwrap();
    assert!(count.bytes < 1 << 20, "{count:?}");
    assert_eq!(fs::read(&from).unwrap(), fs::read(&to).unwrap());
    assert!(to.metadata().unwrap().blocks() < 4096);
}

#[test]
fn a_copy_does_not_feed_on_itself() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("a/sub")).unwrap();
    fs::write(path("a/f"), "x").unwrap();
    let (result, _) = copy(RECURSIVE, &path("a"), &path("a/sub/copy"));
    assert!(matches!(result, Err(Failure::Told(1))), "CLI-11");
    assert!(
        path("a/sub/copy/f").exists() && !path("a/sub/copy/sub/copy/sub").exists(),
        "CLI-11"
    );
}

#[test]
fn one_failure_leaves_the_others_copied() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name);
    fs::create_dir_all(path("from")).unwrap();
    fs::create_dir_all(path("to/b")).unwrap();
    for name in ["a", "b", "c"] {
        fs::write(path("from").join(name), name).unwrap();
    }
    let progress = Progress::new(None);
    let mut copy = Copy::new(true, RECURSIVE, &progress).recording();
    let start = |name: &str| Local.start(&bytes(&path(name)), false).unwrap();
    let result = copy.run(&start("from"), &start("to"));
    assert!(matches!(result, Err(Failure::Told(1))));
    assert!(path("to/a").exists() && path("to/c").exists());
    let copied = copy.copied().iter().map(|(names, _)| names.clone());
    let mut copied: Vec<Vec<Vec<u8>>> = copied.collect();
    assert_eq!(
        copied.pop(),
        Some(Vec::new()),
        "CLI-12: a directory after its contents"
    );
    copied.sort();
    assert_eq!(copied, [[b"a".to_vec()], [b"c".to_vec()]], "CLI-12");
}
