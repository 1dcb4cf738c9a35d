//! What has lost its name and is held still, without a handle of the server's: it lives until the
//! kernel forgets it (`FUSE-19`).
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::alike::Pair;
use crate::common::{Elsewhere, TestMount, database_path};
use larder::{Database, DatabaseOptions, Name, NodeId};
use rustix::fd::{AsFd, OwnedFd};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

/// A directory, a pipe and a device, a file by `O_PATH`, a symbolic link, and a file that was open.
struct Held {
    directory: OwnedFd,
    pipe: OwnedFd,
    device: OwnedFd,
    file: OwnedFd,
    link: OwnedFd,
    closed: OwnedFd,
}

const NAMES: [&str; 5] = ["pipe", "device", "file", "link", "closed"];

fn open(path: &Path, flags: OFlags) -> OwnedFd {
    rustix::fs::open(path, flags, Mode::empty()).unwrap()
}

impl Held {
    fn make(at: &Path) -> Held {
        fs::create_dir(at.join("directory")).unwrap();
        let node = |name: &str, kind: FileType| {
            let (mode, device) = (Mode::from_raw_mode(0o640), rustix::fs::makedev(1, 3));
            rustix::fs::mknodat(CWD, at.join(name), kind, mode, device).unwrap();
        };
        node("pipe", FileType::Fifo);
        node("device", FileType::CharacterDevice);
        fs::write(at.join("file"), "content").unwrap();
        std::os::unix::fs::symlink("somewhere", at.join("link")).unwrap();
        fs::write(at.join("closed"), "closed").unwrap();
        Held {
            directory: open(&at.join("directory"), OFlags::DIRECTORY),
            pipe: open(&at.join("pipe"), OFlags::RDWR),
            device: open(&at.join("device"), OFlags::PATH),
            file: open(&at.join("file"), OFlags::PATH),
            link: open(&at.join("link"), OFlags::PATH | OFlags::NOFOLLOW),
            closed: open(&at.join("closed"), OFlags::PATH),
        }
    }

    fn remove(at: &Path) {
        fs::remove_dir(at.join("directory")).unwrap();
        for name in NAMES {
            fs::remove_file(at.join(name)).unwrap();
        }
    }

    /// What can be seen and done by what is held, again and again.
    fn use_all(&self, mode: u32) -> Vec<String> {
        let all = [
            &self.directory,
            &self.pipe,
            &self.device,
            &self.file,
            &self.link,
            &self.closed,
        ];
        let stat = |one: &OwnedFd| {
            let stat = rustix::fs::statat(one, "", AtFlags::EMPTY_PATH);
            format!(
                "{:?}",
                stat.map(|stat| (stat.st_mode, stat.st_nlink, stat.st_size))
            )
        };
        let mut seen: Vec<String> = Vec::new();
        // Not the directory's size, which each filesystem counts its own way.
        let directory = rustix::fs::fstat(&self.directory);
        seen.push(format!(
            "{:?}",
            directory.map(|stat| (stat.st_mode, stat.st_nlink))
        ));
        seen.extend(all[1..].iter().map(|one| stat(one)));
        let mode = Mode::from_raw_mode(mode);
        seen.push(format!("{:?}", rustix::fs::fchmod(&self.directory, mode)));
        seen.push(format!("{:?}", rustix::fs::fchmod(&self.pipe, mode)));
        let through = |one: &OwnedFd| {
            use std::os::fd::AsRawFd;
            format!("/proc/self/fd/{}", one.as_raw_fd())
        };
        seen.push(format!("{:?}", fs::read(through(&self.file)).ok()));
        seen.push(format!(
            "{:?}",
            rustix::fs::readlinkat(&self.link, "", Vec::new())
        ));
        let beside = rustix::fs::openat(&self.directory, ".", OFlags::DIRECTORY, Mode::empty());
        seen.push(format!("{:?}", beside.map(drop)));
        seen
    }

    /// What a listing of the directory gives.
    fn list(&self) -> rustix::io::Result<usize> {
        let entries = Dir::read_from(self.directory.as_fd())?;
        let names: rustix::io::Result<Vec<_>> = entries.collect();
        names.map(|names| {
            names
                .iter()
                .filter(|one| !one.file_name().to_bytes().starts_with(b"."))
                .count()
        })
    }
}

#[test]
fn what_lost_its_name_and_is_held_is_used_alike() {
    let pair = Pair::new();
    pair.same("held", |at| {
        let held = Held::make(at);
        let mut open = File::open(at.join("closed")).unwrap();
        let named = held.use_all(0o700);
        Held::remove(at);
        let mut seen = vec![named, held.use_all(0o750)];
        let mut content = String::new();
        open.read_to_string(&mut content).unwrap();
        assert_eq!(content, "closed");
        drop(open);
        seen.push(held.use_all(0o751));
        // After the commit.
        File::open(at).unwrap().sync_all().unwrap();
        std::thread::sleep(Duration::from_millis(200));
        seen.push(held.use_all(0o752));
        (seen, format!("{:?}", held.list()))
    });
}

fn when(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(10), "{what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn inode_count(database: &Path) -> u64 {
    let database = Database::open(database, DatabaseOptions::default()).unwrap();
    let count = database.maintenance().space().unwrap().inode_count;
    database.close().unwrap();
    count
}

#[test]
fn what_nobody_holds_any_more_goes() {
    let mut mount = TestMount::new();
    let database = database_path(mount.directory());
    let before = inode_count(&database);
    let held = Held::make(&mount.root());
    Held::remove(&mount.root());
    File::open(mount.root()).unwrap().sync_all().unwrap();
    assert!(inode_count(&database) > before, "FUSE-19: it is held");
    drop(held);
    when("FUSE-19: all are let go", || {
        inode_count(&database) == before
    });
    // The end of the mount lets go of all the rest, also of what is held by a mount that was
    // detached.
    let held = Held::make(&mount.root());
    Held::remove(&mount.root());
    mount.mounted().unmounter().detach().unwrap();
    held.use_all(0o700);
    drop(held);
    mount.wait();
    assert_eq!(inode_count(&database), before);
    let opened = Database::open(&database, DatabaseOptions::default()).unwrap();
    let report = opened.maintenance().check(false, &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn what_another_session_removed_is_held_too() {
    let mount = TestMount::new();
    let before = inode_count(&database_path(mount.directory()));
    let other = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let held = Held::make(&mount.root());
    let named = held.use_all(0o700);
    File::open(mount.root()).unwrap().sync_all().unwrap();
    let name = |name: &str| Name::new(name.as_bytes()).unwrap();
    when("the other session sees it", || {
        other.nodes().lookup(NodeId::ROOT, &name("closed")).is_ok()
    });
    other
        .nodes()
        .remove_dir(NodeId::ROOT, &name("directory"))
        .unwrap();
    for one in NAMES {
        other.nodes().unlink(NodeId::ROOT, &name(one)).unwrap();
    }
    other.sync().unwrap();
    when("the mount sees it", || !mount.path("closed").exists());
    when("the kernel is told of all", || {
        let stats = [
            &held.directory,
            &held.pipe,
            &held.device,
            &held.file,
            &held.link,
        ];
        (stats.iter()).all(|one| {
            rustix::fs::statat(one, "", AtFlags::EMPTY_PATH).is_ok_and(|stat| stat.st_nlink == 0)
        })
    });
    let unnamed = held.use_all(0o700);
    let nlink_apart = |seen: &[String]| seen[6..].to_vec();
    assert_eq!(nlink_apart(&named), nlink_apart(&unnamed), "FUSE-19");
    assert!(
        unnamed.iter().all(|one| !one.contains("Err")),
        "FUSE-19: {unnamed:?}"
    );
    assert_eq!(held.list(), Ok(0), "FUSE-19");
    // Nor does it go when the other session looks for what may be reclaimed.
    other.sync().unwrap();
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(held.use_all(0o700), unnamed, "FUSE-19");
    other.close().unwrap();
    drop(held);
    let database = database_path(mount.directory());
    when("FUSE-19: all are let go", || {
        inode_count(&database) == before
    });
}

#[test]
fn what_a_killed_mount_held_goes() {
    let mut mount = Elsewhere::new(0);
    let before = inode_count(&database_path(mount.directory()));
    let held = Held::make(mount.root().as_path());
    Held::remove(mount.root().as_path());
    File::open(mount.root()).unwrap().sync_all().unwrap();
    held.use_all(0o700);
    mount.kill();
    drop(held);
    let next = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let inode_count = || next.maintenance().space().unwrap().inode_count;
    when("FUSE-19: the next session removes all", || {
        inode_count() == before
    });
}
