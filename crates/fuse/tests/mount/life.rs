//! The life of a mount: beginning, being seen, ending, being killed.

use crate::common::{
    SERVED_DIRECTORY, SERVED_LAZILY, SERVED_THREADS, TestMount, database_path, mount_in,
    mount_opened, mountpoint, new_directory, shell, when_free,
};
use larder::{CreateOptions, Database, DatabaseOptions, ErrorKind};
use std::fs;
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn a_mount_is_seen_by_everybody() {
    let mount = TestMount::new();
    let info = larder_fuse::find_mount(&mount.root())
        .unwrap()
        .expect("it is mounted");
    assert_eq!(
        info.source,
        database_path(mount.directory()).canonicalize().unwrap()
    );
    assert_eq!(info.mountpoint, mount.root().canonicalize().unwrap());
    assert!(!larder_fuse::is_mounted(mount.directory()).unwrap());
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let line = table
        .lines()
        .find(|line| line.contains(mount.root().to_str().unwrap()))
        .unwrap();
    assert!(
        line.contains(" fuse.larder ") && line.contains("default_permissions"),
        "{line}"
    );
    assert_eq!(fs::metadata(mount.root()).unwrap().ino(), 1);
}

#[test]
fn what_was_written_is_there_after_a_remount() {
    let mut mount = TestMount::new();
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/f"), "kept").unwrap();
    mount.end();
    assert!(!larder_fuse::is_mounted(&mount.root()).unwrap());
    assert_eq!(fs::read_dir(mount.root()).unwrap().count(), 0);
    mount.mount(|_| {});
    assert_eq!(fs::read_to_string(mount.path("d/f")).unwrap(), "kept");
    mount.end();
}

#[test]
fn unmounting_by_another_waits_for_the_server() {
    let mut mount = TestMount::new();
    fs::write(mount.path("f"), "durable").unwrap();
    when_free(|| larder_fuse::unmount(&mount.root())).unwrap();
    let database = database_path(mount.directory()).canonicalize().unwrap();
    let open: Vec<PathBuf> = (fs::read_dir("/proc/self/fd").unwrap())
        .filter_map(|entry| fs::read_link(entry.unwrap().path()).ok())
        .filter(|target| target.starts_with(&database))
        .collect();
    assert!(
        open.is_empty(),
        "FUSE-7: {open:?} are open after the unmount"
    );
    mount.wait();
    let nothing = larder_fuse::unmount(&mount.root()).unwrap_err();
    assert_eq!(nothing.kind(), ErrorKind::NotFound);
}

#[test]
fn unmounting_by_the_system_ends_the_server() {
    let mut mount = TestMount::new();
    shell(
        "until umount \"$1\" 2>/dev/null || fusermount3 -u \"$1\"; do sleep 0.01; done",
        &[&mount.root()],
    );
    mount.wait();
}

#[test]
fn a_mount_in_use_stays() {
    let mut mount = TestMount::new();
    let mut file = fs::File::create(mount.path("f")).unwrap();
    assert_eq!(
        mount.mounted().unmount().unwrap_err().kind(),
        ErrorKind::Busy
    );
    let error = larder_fuse::unmount(&mount.root()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("in use"), "{error}");
    file.write_all(b"still served").unwrap();
    drop(file);
    mount.end();
}

#[test]
fn a_detached_mount_ends_with_its_last_user() {
    let mut mount = TestMount::new();
    let mut file = fs::File::options()
        .create(true)
        .truncate(true)
        .read(true)
        .write(true)
        .open(mount.path("f"))
        .unwrap();
    mount.mounted().unmounter().detach().unwrap();
    assert!(!larder_fuse::is_mounted(&mount.root()).unwrap());
    file.write_all(b"late").unwrap();
    file.sync_all().unwrap();
    drop(file);
    mount.wait();
    mount.mount(|_| {});
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"late");
    mount.end();
}

#[test]
fn an_unmounter_never_ends_the_next_mount() {
    let mut mount = TestMount::new();
    let unmounter = mount.mounted().unmounter();
    mount.end();
    mount.mount(|_| {});
    unmounter.unmount().unwrap();
    unmounter.detach().unwrap();
    assert!(larder_fuse::is_mounted(&mount.root()).unwrap(), "FUSE-6");
    mount.end();
}

#[test]
fn a_place_is_mounted_once() {
    let mount = TestMount::new();
    let error = mount_in(mount.directory(), |_| {}).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Busy);
    assert!(error.to_string().contains("larder umount"), "{error}");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let mut mount = TestMount::new();
    fs::write(mount.path("f"), "x").unwrap();
    mount.end();
    mount.mount(|options| options.read_only = true);
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"x");
    for error in [
        fs::write(mount.path("f"), "y").unwrap_err(),
        fs::remove_file(mount.path("f")).unwrap_err(),
    ] {
        assert_eq!(error.raw_os_error(), Some(libc::EROFS));
    }
    mount.end();
}

#[test]
fn a_change_by_sql_is_seen_though_everything_is_cached() {
    let mount = TestMount::new();
    fs::write(mount.path("f"), "x").unwrap();
    fs::set_permissions(mount.path("f"), PermissionsExt::from_mode(0o640)).unwrap();
    let mode = || fs::metadata(mount.path("f")).unwrap().mode() & 0o7777;
    fs::File::open(mount.path("f")).unwrap().sync_all().unwrap();
    assert_eq!(mode(), 0o640);

    let other = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let mut sql = other.sql().open(false).unwrap();
    sql.execute("UPDATE main SET mode = 384 WHERE mode = 416", &mut |_| {
        Ok(())
    })
    .unwrap();
    let began = Instant::now();
    while mode() != 0o600 {
        assert!(
            began.elapsed() < Duration::from_secs(5),
            "FUSE-1: the kernel still has mode {:o}",
            mode()
        );
        std::thread::sleep(Duration::from_millis(5));
    }
}

#[test]
fn names_of_others_are_seen_though_listing_and_absence_are_cached() {
    let mount = TestMount::new();
    fs::create_dir(mount.path("d")).unwrap();
    fs::File::open(mount.root()).unwrap().sync_all().unwrap();
    let is_listed = || fs::read_dir(mount.path("d")).unwrap().count() == 1;
    for _ in 0..2 {
        assert!(!is_listed() && !mount.path("d/new").exists());
    }
    let other = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    other.files().write(b"/d/new", b"by another").unwrap();
    other.sync().unwrap();
    let began = Instant::now();
    while !(is_listed() && mount.path("d/new").exists()) {
        assert!(began.elapsed() < Duration::from_secs(30), "FUSE-1");
        std::thread::sleep(Duration::from_millis(5));
    }
    // What is made and removed here is seen at once.
    fs::remove_file(mount.path("d/new")).unwrap();
    assert!(!is_listed() && !mount.path("d/new").exists());
    fs::write(mount.path("d/new"), "").unwrap();
    assert!(is_listed() && mount.path("d/new").exists());
    fs::rename(mount.path("d/new"), mount.path("d/newer")).unwrap();
    assert!(!mount.path("d/new").exists() && mount.path("d/newer").exists());
}

#[test]
fn a_working_directory_survives_foreign_changes() {
    let mount = TestMount::new();
    fs::create_dir(mount.path("d")).unwrap();
    let file = fs::File::create(mount.path("d/f")).unwrap();
    fs::File::open(mount.root()).unwrap().sync_all().unwrap();
    let inside = Command::new("sleep")
        .arg("60")
        .current_dir(mount.path("d"))
        .spawn()
        .unwrap();
    let inside = KilledOnDrop(inside);
    let other = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let mut sql = other.sql().open(false).unwrap();
    // When the second change is seen, all was told about the first.
    for mode in [0o600, 0o640] {
        assert_ne!(file.metadata().unwrap().mode() & 0o7777, mode);
        sql.execute(
            &format!("UPDATE main SET mode = {mode} WHERE kind = 'file'"),
            &mut |_| Ok(()),
        )
        .unwrap();
        let began = Instant::now();
        while file.metadata().unwrap().mode() & 0o7777 != mode {
            assert!(began.elapsed() < Duration::from_secs(30), "FUSE-1");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
    let seen = fs::read_link(format!("/proc/{}/cwd", inside.0.id())).unwrap();
    assert_eq!(seen, mount.path("d").canonicalize().unwrap());
}

#[test]
fn a_killed_server_is_cleaned_up_by_the_next_mount() {
    let directory = new_directory();
    let directory = directory.path();
    Database::create(&database_path(directory), &CreateOptions::default()).unwrap();
    let server = Command::new(std::env::current_exe().unwrap())
        .args([
            "--exact",
            "life::serve_until_killed",
            "--ignored",
            "--nocapture",
        ])
        .env(SERVED_DIRECTORY, directory)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let mut server = KilledOnDrop(server);
    let began = Instant::now();
    while !larder_fuse::is_mounted(&mountpoint(directory)).unwrap() {
        assert!(
            server.0.try_wait().unwrap().is_none() && began.elapsed() < Duration::from_secs(20)
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    let mut file = fs::File::create(mountpoint(directory).join("f")).unwrap();
    file.write_all(b"synced").unwrap();
    file.sync_all().unwrap(); // FUSE-3
    drop(server);
    drop(file);
    // A name that nobody has asked for: what the kernel knows, it says without the server.
    let ask = || fs::metadata(mountpoint(directory).join("unknown")).unwrap_err();
    let began = Instant::now();
    let mut dead = ask();
    // Whoever asks while the connection ends is told of that; with rings it ends behind the death.
    while dead.raw_os_error() == Some(libc::ECONNABORTED) {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
        dead = ask();
    }
    assert_eq!(dead.raw_os_error(), Some(libc::ENOTCONN));

    let mounted = mount_in(directory, |_| {}).unwrap();
    assert_eq!(
        fs::read(mountpoint(directory).join("f")).unwrap(),
        b"synced",
        "FUSE-3"
    );
    when_free(|| mounted.unmount()).unwrap();
    mounted.wait().unwrap();
}

/// Killed with SIGKILL, also when the test fails before it wants that.
struct KilledOnDrop(Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.0.kill().expect("it is a child of ours");
        self.0.wait().expect("it is a child of ours");
    }
}

#[test]
#[ignore = "it is the server of a_killed_server_is_cleaned_up_by_the_next_mount"]
fn serve_until_killed() {
    let directory =
        PathBuf::from(std::env::var_os(SERVED_DIRECTORY).expect("started by another test"));
    let threads = std::env::var(SERVED_THREADS).map_or(0, |threads| threads.parse().unwrap());
    let mut open = DatabaseOptions::default();
    if std::env::var_os(SERVED_LAZILY).is_some() {
        open.engine.commit_interval = Duration::from_secs(3600);
    }
    let mounted = mount_opened(&directory, open, |options| {
        options.threads = threads;
        // Models of the past know what modes were, not what they became.
        options.history_access = larder_fuse::HistoryAccess::Then;
    });
    mounted.unwrap().wait().unwrap();
}

// The moment between the reply to a LOOKUP and its use is short: many look, while another session
// changes.
#[test]
fn names_and_modes_of_others_are_seen_though_they_change_while_they_are_looked_up() {
    let mount = TestMount::new();
    let other = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let root = larder::NodeId::ROOT;
    let name = |text: &str| larder::Name::new(text.as_bytes()).unwrap();
    fs::write(mount.path("a"), "").unwrap();
    fs::File::open(mount.root()).unwrap().sync_all().unwrap();
    let until = |what: &str, is_seen: &dyn Fn() -> bool| {
        let began = Instant::now();
        while !is_seen() {
            assert!(began.elapsed() < Duration::from_secs(30), "FUSE-1: {what}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let is_over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (mount, is_over) = (&mount, &is_over);
        for looked_up in ["a", "b", "c", "a", "b", "c"] {
            scope.spawn(move || {
                while !is_over.load(std::sync::atomic::Ordering::SeqCst) {
                    let _seen = fs::metadata(mount.path(looked_up));
                }
            });
        }
        // Whatever panics, the others end.
        struct End<'e>(&'e std::sync::atomic::AtomicBool);
        impl Drop for End<'_> {
            fn drop(&mut self) {
                self.0.store(true, std::sync::atomic::Ordering::SeqCst);
            }
        }
        let _end = End(is_over);
        for round in 0..60 {
            let (from, to) = if round % 2 == 0 {
                ("a", "b")
            } else {
                ("b", "a")
            };
            let mode = larder::RenameMode::NoReplace;
            (other
                .nodes()
                .rename(root, &name(from), root, &name(to), mode))
            .unwrap();
            other.sync().unwrap();
            until("a name that went", &|| {
                fs::metadata(mount.path(from)).is_err()
            });
            until("a name that came", &|| fs::metadata(mount.path(to)).is_ok());
            let owner = larder::Caller::current();
            let new = larder::NewNode::File;
            let made = (other
                .nodes()
                .create_node(root, &name("c"), new, 0o600, owner))
            .unwrap();
            other.sync().unwrap();
            let change = larder::SetAttr {
                mode: Some(0o640),
                ..larder::SetAttr::default()
            };
            other.nodes().set_attr(made.node, &change).unwrap();
            other.sync().unwrap();
            until("a mode", &|| {
                fs::metadata(mount.path("c")).is_ok_and(|seen| seen.mode() & 0o777 == 0o640)
            });
            other.nodes().unlink(root, &name("c")).unwrap();
            other.sync().unwrap();
        }
    });
}
