//! Going back beside a mount: it is a commit of another session, and the kernel is told.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::{TestMount, database_path, noise};
use larder::{Database, DatabaseOptions, Moment};
use std::fs::{self, File};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

/// The kernel is told after the commit, by a thread of its own.
fn soon<T: PartialEq + std::fmt::Debug>(expected: T, look: impl Fn() -> T) {
    let begun = Instant::now();
    loop {
        let found = look();
        if found == expected {
            return;
        }
        let is_late = begun.elapsed() > Duration::from_secs(30);
        assert!(!is_late, "{found:?} is not {expected:?}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn names(mount: &TestMount) -> Vec<String> {
    let entries = fs::read_dir(mount.root()).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn a_mount_follows_a_rollback_of_another_session() {
    let mut mount = TestMount::new();
    let old = noise(100_000, 1);
    fs::write(mount.path("edited"), &old).unwrap();
    fs::write(mount.path("removed"), &old).unwrap();
    fs::write(mount.path("open"), b"open").unwrap();
    let was = fs::metadata(mount.path("removed")).unwrap();
    File::open(mount.root()).unwrap().sync_all().unwrap();
    let other = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let snapshot = other.snapshots().create("then").unwrap();
    // What the kernel has in its caches is of after.
    let mut open = File::options()
        .read(true)
        .write(true)
        .open(mount.path("open"))
        .unwrap();
    fs::remove_file(mount.path("open")).unwrap();
    fs::remove_file(mount.path("removed")).unwrap();
    fs::write(mount.path("edited"), noise(70_000, 2)).unwrap();
    fs::write(mount.path("added"), b"added").unwrap();
    let mut added = File::open(mount.path("added")).unwrap();
    assert_eq!(names(&mount), ["added", "edited"]);
    assert_eq!(fs::read(mount.path("edited")).unwrap().len(), 70_000);
    File::open(mount.root()).unwrap().sync_all().unwrap();

    let moment = Moment::Snapshot(snapshot.name);
    let report = other.history().rollback(&moment, None, false).unwrap();
    assert_eq!(
        (report.revived_count, report.removed_count),
        (2, 1),
        "{report:?}"
    );
    soon(
        vec!["edited".into(), "open".into(), "removed".into()],
        || names(&mount),
    );
    soon(true, || fs::read(mount.path("edited")).unwrap() == old);
    soon(true, || fs::read(mount.path("removed")).unwrap() == old);
    let is = fs::metadata(mount.path("removed")).unwrap();
    assert_eq!(
        (is.ino(), is.mtime_nsec(), is.ctime_nsec(), is.nlink()),
        (was.ino(), was.mtime_nsec(), was.ctime_nsec(), 1),
        "ROLLBACK-1"
    );
    soon(false, || mount.path("added").exists());
    // What is open stays: the one without a name, and the other, which has its name again.
    let mut text = String::new();
    added.read_to_string(&mut text).unwrap();
    assert_eq!(text, "added");
    open.write_all(b"OPEN!").unwrap();
    open.sync_all().unwrap();
    soon(b"OPEN!".to_vec(), || other.files().read(b"/open").unwrap());
    open.rewind().unwrap();
    drop((open, added));
    soon(b"OPEN!".to_vec(), || fs::read(mount.path("open")).unwrap());
    fs::write(mount.path("new"), b"new").unwrap();
    assert_ne!(fs::metadata(mount.path("new")).unwrap().ino(), was.ino());
    other.close().unwrap();
    mount.end();
    let database = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let report = database.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
}
