//! Directories with what no database has, and whose files are.
use super::*;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::sync::atomic::{AtomicBool, Ordering};

fn database() -> (tempfile::TempDir, DatabaseDir) {
    let dir = tempfile::tempdir().unwrap();
    let database = DatabaseDir::create(&dir.path().join("db"), None).unwrap();
    (dir, database)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

#[test]
fn names_go_down_and_links_are_not_followed() {
    let (dir, database) = database();
    fs::create_dir(dir.path().join("else")).unwrap();
    fs::write(dir.path().join("else/f"), "x").unwrap();
    symlink("../else", database.join("sub")).unwrap();
    symlink("../else/new", database.join("lock")).unwrap();
    let absolute = dir.path().join("else/f");
    for name in [
        Path::new("../else/f"),
        Path::new("sub/f"),
        Path::new(""),
        &absolute,
    ] {
        assert!(
            database.open_file(name, Access::Read).is_err(),
            "DIRECTORY-1: {name:?}"
        );
        assert!(
            database.open_file(name, Access::Make).is_err(),
            "DIRECTORY-1: {name:?}"
        );
    }
    assert!(database.open_file("lock", Access::Make).is_err());
    assert!(database.open_file("lock", Access::MakeNew).is_err());
    assert!(database.open_dir("sub").is_err() && database.make_dir("sub/deeper").is_err());
    assert!(database.remove_file("sub/f").is_err() && database.remove_tree("sub/f").is_err());
    assert_eq!(fs::read_dir(dir.path().join("else")).unwrap().count(), 1);
    assert!(absolute.exists());
}

#[test]
fn only_a_regular_file_with_one_name_is_opened_and_at_once() {
    let (_dir, database) = database();
    database.make_fifo("fifo").unwrap();
    database.make_dir("directory").unwrap();
    fs::write(database.join("one"), "x").unwrap();
    fs::hard_link(database.join("one"), database.join("two")).unwrap();
    symlink("/dev/null", database.join("device")).unwrap();
    for name in ["fifo", "directory", "one", "two", "device"] {
        for access in [
            Access::Read,
            Access::ReadWrite,
            Access::Make,
            Access::Append,
        ] {
            let refused = database.open_file(name, access).unwrap_err();
            assert_eq!(
                refused.kind(),
                io::ErrorKind::InvalidInput,
                "DIRECTORY-2: {name}"
            );
        }
        assert!(database.check_file(name).is_err(), "DIRECTORY-2: {name}");
    }
    let missing = database.open_file("three", Access::ReadWrite).unwrap_err();
    assert_eq!(missing.kind(), io::ErrorKind::NotFound);
}

#[test]
fn a_tree_is_removed_and_what_its_links_name_stays() {
    let (dir, database) = database();
    fs::create_dir_all(dir.path().join("else/deep")).unwrap();
    fs::create_dir_all(database.join("transactions/5/sessions")).unwrap();
    fs::write(database.join("transactions/5/sessions/1.lock"), "").unwrap();
    symlink(
        dir.path().join("else"),
        database.join("transactions/5/link"),
    )
    .unwrap();
    database.remove_tree("transactions/5").unwrap();
    database.remove_tree("transactions/5").unwrap();
    symlink(dir.path().join("else"), database.join("transactions/6")).unwrap();
    database.remove_tree("transactions/6").unwrap();
    assert!(
        database
            .open_dir("transactions")
            .unwrap()
            .names()
            .unwrap()
            .is_empty()
    );
    fs::create_dir_all(database.join("transactions/7/1/2/3/4/5")).unwrap();
    assert!(
        database.remove_tree("transactions/7").is_err(),
        "DIRECTORY-3: too deep"
    );
    assert!(dir.path().join("else/deep").exists(), "DIRECTORY-3");
}

#[test]
fn what_is_made_is_the_owners_alone_or_whom_the_directory_lets_in() {
    let (dir, database) = database();
    assert_eq!(mode(database.path()), 0o700);
    database.open_file("f", Access::Make).unwrap();
    database.make_dir("d").unwrap();
    assert_eq!(
        (mode(&database.join("f")), mode(&database.join("d"))),
        (0o600, 0o700)
    );
    let shared = DatabaseDir::create(&dir.path().join("shared"), Some(database.owner().1)).unwrap();
    shared.open_file("f", Access::Make).unwrap();
    shared
        .make_dir("d")
        .unwrap()
        .open_file("g", Access::MakeNew)
        .unwrap();
    assert_eq!(mode(shared.path()), 0o2700, "DIRECTORY-5: not complete");
    shared.let_group_in().unwrap();
    let modes = ["", "f", "d", "d/g"].map(|name| mode(&shared.join(name)));
    assert_eq!(modes, [0o2770, 0o660, 0o2770, 0o660], "DIRECTORY-4");
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(dir.path().join("db"), Some(12345), Some(12346)).unwrap();
        let users = DatabaseDir::open(&dir.path().join("db")).unwrap();
        users.open_file("lock", Access::Make).unwrap();
        users
            .make_dir("sessions")
            .unwrap()
            .open_file("1", Access::Make)
            .unwrap();
        for name in ["lock", "sessions", "sessions/1"] {
            let found = users.join(name).metadata().unwrap();
            assert_eq!(
                (found.uid(), found.gid()),
                (12345, 12346),
                "DIRECTORY-4: {name}"
            );
        }
    }
}

#[test]
fn what_an_older_version_left_open_is_found_and_mended() {
    let (_dir, database) = database();
    fs::create_dir(database.join("segments")).unwrap();
    fs::write(database.join("segments/0"), "").unwrap();
    let chmod = |name: &str, mode: u32| {
        fs::set_permissions(database.join(name), PermissionsExt::from_mode(mode)).unwrap();
    };
    let all = [("", 0o755), ("segments", 0o755), ("segments/0", 0o644)];
    all.iter().for_each(|(name, mode)| chmod(name, *mode));
    assert_eq!(database.open_to_others().unwrap().len(), 3);
    assert_eq!(database.mend_modes().unwrap().len(), 3);
    assert!(database.open_to_others().unwrap().is_empty());
    assert_eq!(mode(&database.join("segments/0")), 0o600);
    chmod("", 0o2770);
    chmod("segments/0", 0o664);
    assert_eq!(
        database.mend_modes().unwrap(),
        [database.join("segments/0")]
    );
    assert_eq!(mode(&database.join("segments/0")), 0o660);
}

/// A file that has a second name in the database keeps its mode: it is somebody else's.
#[test]
fn modes_of_a_file_with_further_names_stay() {
    let (dir, database) = database();
    let theirs = dir.path().join("theirs");
    fs::write(&theirs, "x").unwrap();
    fs::set_permissions(&theirs, PermissionsExt::from_mode(0o644)).unwrap();
    fs::hard_link(&theirs, database.join("turn.lock")).unwrap();
    assert!(database.mend_modes().unwrap().is_empty(), "DIRECTORY-2");
    assert_eq!(mode(&theirs), 0o644, "DIRECTORY-2");
}

/// A FIFO that has a second name is somebody else's: it is not opened, so nobody is given it.
#[test]
fn a_fifo_with_further_names_is_not_opened() {
    let (dir, database) = database();
    let theirs = dir.path().join("theirs");
    let mode = rustix::fs::Mode::from_raw_mode(0o600);
    rustix::fs::mkfifoat(rustix::fs::CWD, &theirs, mode).unwrap();
    fs::hard_link(&theirs, database.join("pipe")).unwrap();
    let opened = database.open_fifo("pipe", OFlags::RDWR);
    assert_eq!(opened.unwrap_err(), Errno::INVAL, "DIRECTORY-2");
    fs::remove_file(&theirs).unwrap();
    database.open_fifo("pipe", OFlags::RDWR).unwrap();
}

#[test]
fn the_path_of_the_descriptor_stays_when_the_name_is_another_directory() {
    let (dir, database) = database();
    fs::write(database.join("f"), "mine").unwrap();
    fs::rename(dir.path().join("db"), dir.path().join("was")).unwrap();
    fs::create_dir(dir.path().join("db")).unwrap();
    fs::write(dir.path().join("db/f"), "another").unwrap();
    let read = fs::read(database.path_of_descriptor().join("f")).unwrap();
    assert_eq!(read, b"mine");
}

#[test]
fn a_new_directory_is_private_at_every_moment_whatever_the_umask() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("new");
    let before = rustix::process::umask(rustix::fs::Mode::empty());
    let is_over = AtomicBool::new(false);
    let seen = std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut seen = 0;
            while !is_over.load(Ordering::SeqCst) {
                seen |= path.metadata().map_or(0, |found| found.mode() & 0o7777);
            }
            seen
        });
        for _ in 0..3000 {
            DatabaseDir::create(&path, None).unwrap();
            fs::remove_dir(&path).unwrap();
        }
        is_over.store(true, Ordering::SeqCst);
        looks.join().unwrap()
    });
    rustix::process::umask(before);
    assert_eq!(seen, 0o700, "DIRECTORY-5");
    fs::create_dir(&path).unwrap();
    fs::write(path.join("planted"), "").unwrap();
    let planted = DatabaseDir::create(&path, None).unwrap_err();
    assert!(planted.to_string().contains("'planted'"), "{planted}");
}
