//! The real `larder mount` and `larder umount`. Needs `/dev/fuse`, and root or `fusermount3`.

use crate::support::{Place, describe};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

pub const PATIENCE: Duration = Duration::from_secs(20);

/// A mount in the foreground, unmounted at the latest when the test ends.
pub struct Foreground {
    pub child: Child,
    mountpoint: PathBuf,
    status_line: String,
}

pub fn serve(place: &Place, more: &[&str]) -> Foreground {
    let arguments = [&["mount", "--create", "a.larder", "mnt"], more].concat();
    Foreground::start(place, &arguments, "mnt")
}

impl Foreground {
    /// Runs a command that mounts at `mountpoint`, until it serves.
    pub fn start(place: &Place, arguments: &[&str], mountpoint: &str) -> Foreground {
        Foreground::run(&mut place.command(arguments), &place.path(mountpoint))
    }

    /// The same of a command of any user.
    pub fn run(command: &mut Command, mountpoint: &Path) -> Foreground {
        let mut child = command
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut status_line = String::new();
        BufReader::new(child.stdout.take().unwrap())
            .read_line(&mut status_line)
            .unwrap();
        let mut mount = Foreground {
            child,
            mountpoint: mountpoint.to_owned(),
            status_line,
        };
        if mount.status_line.is_empty() {
            panic!("it does not serve: {:?}", mount.end());
        }
        mount
    }

    /// What it said when it was ready.
    pub fn status_line(&self) -> &str {
        &self.status_line
    }

    pub fn signal(&self, signal: Signal) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
    }

    /// The exit code, once it has ended, and what it said.
    pub fn end(&mut self) -> (Option<i32>, String) {
        let began = Instant::now();
        let status = loop {
            match self.child.try_wait().unwrap() {
                Some(status) => break status,
                None if began.elapsed() > PATIENCE => panic!("it does not end"),
                None => std::thread::sleep(Duration::from_millis(5)),
            }
        };
        let said = std::io::read_to_string(self.child.stderr.take().unwrap()).unwrap();
        (status.code(), said)
    }
}

impl Drop for Foreground {
    /// Leaves nothing behind when an assertion failed.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.child.kill().unwrap();
            self.child.wait().unwrap();
        }
        if is_mounted(&self.mountpoint) {
            let flags = rustix::mount::UnmountFlags::DETACH;
            rustix::mount::unmount(&self.mountpoint, flags).unwrap();
        }
    }
}

fn is_mounted(path: &Path) -> bool {
    larder_fuse::find_mount(path).unwrap().is_some()
}

#[test]
fn a_mount_serves_until_ctrl_c() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    assert_eq!(
        mount.status_line,
        "serving a.larder at mnt (Ctrl-C or 'larder umount mnt' ends it)\n"
    );
    fs::write(place.path("mnt/file"), vec![5; 300_000]).unwrap();
    fs::File::open(place.path("mnt/file"))
        .unwrap()
        .sync_all()
        .unwrap();
    place.ok(&[
        "sql",
        "a.larder",
        "ALTER TABLE main ADD COLUMN title; UPDATE main SET title = 'beside' WHERE ino > 1",
    ]);
    place.ok(&["cp", "a.larder:/file", "a.larder:/copy"]);
    assert_eq!(
        fs::read(place.path("mnt/copy")).unwrap(),
        vec![5; 300_000],
        "a command beside the mount"
    );
    fs::write(place.path("mnt/last"), "just before").unwrap();
    mount.signal(Signal::INT);
    assert_eq!(mount.end(), (Some(0), String::new()));
    assert!(!is_mounted(&place.path("mnt")));
    assert_eq!(place.ok(&["cat", "a.larder:/last"]), "just before");
    assert!(
        place
            .ok(&["sql", "a.larder", "SELECT title FROM main"])
            .contains("beside")
    );
    place.assert_clean("a.larder");
}

#[test]
fn a_mount_in_use_survives_the_first_signal() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    let file = fs::File::create(place.path("mnt/open")).unwrap();
    mount.signal(Signal::TERM);
    std::thread::sleep(Duration::from_millis(300));
    fs::write(place.path("mnt/more"), "still served").unwrap();
    place.fails(1, &["umount", "mnt"], "in use");
    mount.signal(Signal::TERM);
    let second = std::time::Instant::now();
    while is_mounted(&place.path("mnt")) {
        // Well before it would detach by itself.
        assert!(second.elapsed().as_secs() < 7, "the second signal detaches");
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(file);
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("still serving"), "{said}");
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "more\nopen\n");
    place.assert_clean("a.larder");
}

#[test]
fn a_daemon_serves_and_umount_waits_for_it() {
    let place = Place::new();
    let mount = place.json(&["mount", "--create", "--daemon", "a.larder", "mnt"]);
    assert!(
        is_mounted(&place.path("mnt")),
        "it serves when the command returns"
    );
    let pid = mount["pid"].as_u64().unwrap();
    assert_eq!(
        mount["mountpoint"].as_str(),
        place.path("mnt").canonicalize().unwrap().to_str()
    );
    place.fails(1, &["mount", "a.larder", "mnt"], "is mounted at");
    place.fails(
        1,
        &["mount", "--daemon", "a.larder", "mnt"],
        "is mounted at",
    );

    fs::create_dir(place.path("mnt/dir")).unwrap();
    fs::write(place.path("mnt/dir/file"), vec![1; 3_000_000]).unwrap();
    place.ok(&["umount", "mnt"]);
    assert!(!is_mounted(&place.path("mnt")));
    assert!(has_ended(pid), "CLI-9");
    assert!(
        fs::read_dir(place.path("a.larder/mounts"))
            .unwrap()
            .next()
            .is_none(),
        "CLI-9"
    );
    assert_eq!(
        place.json(&["stat", "a.larder:/dir/file"])[0]["size_bytes"],
        3_000_000
    );
    place.assert_clean("a.larder");
    place.fails(1, &["umount", "mnt"], "nothing is mounted");
    place.fails(1, &["umount", "none"], "none");
    place.fails(1, &["umount", "/"], "not of larder");
}

/// Whether a process is gone; one that nobody has waited for yet is.
fn has_ended(pid: u64) -> bool {
    match fs::read_to_string(format!("/proc/{pid}/stat")) {
        Ok(stat) => stat
            .rsplit(") ")
            .next()
            .is_some_and(|rest| rest.starts_with(['Z', 'X'])),
        Err(_) => true,
    }
}

#[test]
fn mounts_that_cannot_be_are_refused() {
    let place = Place::with_database();
    fs::create_dir(place.path("mnt")).unwrap();
    place.write("file", 1);
    for daemon in [&[][..], &["--daemon"]] {
        let fails = |db: &str, dir: &str, cause: &str| {
            place.fails(1, &[&["mount"], daemon, &[db, dir]].concat(), cause);
        };
        fails("none.larder", "mnt", "none.larder");
        fails("mnt", "mnt", "mnt");
        fails("a.larder", "none", "there is no directory");
        fails("a.larder", "file", "is not a directory");
        fails("a.larder", "a.larder", "would hide the database");
    }
    assert!(
        fs::read_dir(place.path("mnt")).unwrap().next().is_none(),
        "no log in what is no database"
    );
    place.assert_clean("a.larder");
}

#[test]
fn a_read_only_mount_refuses_changes() {
    let place = Place::with_database();
    place.write("file", 10);
    place.ok(&["put", "file", "a.larder:/"]);
    place.ok(&[
        "mount",
        "--create",
        "--daemon",
        "--read-only",
        "a.larder",
        "mnt",
    ]);
    assert_eq!(fs::read(place.path("mnt/file")).unwrap().len(), 10);
    let refused = fs::write(place.path("mnt/new"), "x").unwrap_err();
    assert_eq!(refused.kind(), std::io::ErrorKind::ReadOnlyFilesystem);
    place.ok(&["umount", "mnt"]);
}

#[test]
fn the_log_says_for_whom_a_mount_works() {
    use std::os::unix::fs::PermissionsExt;
    use std::os::unix::process::CommandExt;
    let place = Place::with_database();
    place.ok(&["mount", "--create", "--daemon", "a.larder", "mnt"]);
    fs::set_permissions(place.path("."), fs::Permissions::from_mode(0o755)).unwrap();
    let sync = |path: &str| {
        fs::File::open(place.path(path))
            .unwrap()
            .sync_all()
            .unwrap()
    };
    fs::write(place.path("mnt/own"), "x").unwrap();
    fs::set_permissions(place.path("mnt"), fs::Permissions::from_mode(0o777)).unwrap();
    sync("mnt");
    let own = rustix::process::geteuid().as_raw();
    let is_root = own == 0;
    if is_root {
        // Whoever runs a program on the mount is told, not who mounted it.
        let done = std::process::Command::new("touch")
            .arg("other")
            .current_dir(place.path("mnt"))
            .uid(4321)
            .status();
        assert!(done.unwrap().success());
        sync("mnt");
    }
    place.ok(&["umount", "mnt"]);
    let author = |path: &str| {
        let log = place.json(&["log", &format!("a.larder:{path}")]);
        log[0]["author"].clone()
    };
    let first = author("/own");
    let label = first["label"].as_str().unwrap();
    assert!(label.starts_with("mount /"), "{label}");
    assert_eq!((&first["user"], &first["uid"]), (&own.into(), &own.into()));
    if is_root {
        let other = author("/other");
        assert_eq!((&other["user"], &other["uid"]), (&4321.into(), &own.into()));
        let told = place.ok(&["log", "a.larder:/other"]);
        assert!(told.contains("for user 4321 (process "), "{told}");
    }
}

#[test]
fn a_killed_mount_is_mounted_again() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    fs::write(place.path("mnt/synced"), vec![9; 200_000]).unwrap();
    fs::File::open(place.path("mnt/synced"))
        .unwrap()
        .sync_all()
        .unwrap();
    mount.signal(Signal::KILL);
    assert_eq!(mount.end().0, None, "killed");
    place.assert_clean("a.larder");

    let mut mount = serve(&place, &["--threads", "2"]);
    assert!(
        mount.status_line.starts_with("serving"),
        "the dead mount is detached"
    );
    assert_eq!(
        fs::read(place.path("mnt/synced")).unwrap(),
        vec![9; 200_000]
    );
    place.ok(&["umount", "mnt"]);
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{said}");
}

#[test]
fn archives_through_the_mount_and_beside_it_are_equal() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    fs::create_dir_all(place.path("tree/sub")).unwrap();
    fs::write(place.path("tree/sub/a"), "a").unwrap();
    fs::hard_link(place.path("tree/sub/a"), place.path("tree/b")).unwrap();
    std::os::unix::fs::symlink("b", place.path("tree/l")).unwrap();
    place.ok(&["cp", "-a", "tree", "a.larder:/"]);
    assert_eq!(
        describe(&place.path("tree")),
        describe(&place.path("mnt/tree"))
    );
    mount.signal(Signal::TERM);
    assert_eq!(mount.end(), (Some(0), String::new()));
}

#[test]
fn a_moment_is_mounted_by_its_name() {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--retention", "1h"]);
    place.write("f", 10);
    place.ok(&["cp", "f", "a.larder:/"]);
    place.ok(&["snapshot", "create", "a.larder", "before"]);
    place.ok(&["rm", "a.larder:/f"]);
    fs::create_dir(place.path("mnt")).unwrap();
    let said = place.ok(&["mount", "--daemon", "a.larder@before", "mnt"]);
    assert!(said.contains("serving a.larder@before at mnt"), "{said}");
    assert_eq!(fs::read(place.path("mnt/f")).unwrap().len(), 10);
    let refused = fs::write(place.path("mnt/f"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
    let ended = place.json(&["umount", "mnt"]);
    assert_eq!(ended["moment"], "before");
    // The server has ended, and the database is released.
    place.assert_closed("a.larder");
    let log = || fs::read_to_string(place.path("a.larder/mount.log")).unwrap();
    assert!(log().contains("@before' as of commit "), "{}", log());
    // The same by an option; and what cannot be.
    place.ok(&[
        "mount",
        "--daemon",
        "-o",
        "rw,asof=before",
        "a.larder",
        "mnt",
    ]);
    assert!(place.path("mnt/f").exists());
    place.ok(&["umount", "mnt"]);
    for (arguments, code, why) in [
        (&["a.larder@nobody", "mnt"][..], 1, "snapshot 'nobody'"),
        (&["a.larder@-1y", "mnt"], 1, "history begins"),
        (
            &["-o", "asof=-1h", "a.larder@before", "mnt"],
            2,
            "two moments",
        ),
        (
            &["-o", "history=show", "a.larder@before", "mnt"],
            1,
            "leave 'history=show' out",
        ),
        (&["-o", "history=1", "a.larder", "mnt"], 2, "history=hide"),
    ] {
        place.fails(code, &[&["mount", "--daemon"], arguments].concat(), why);
    }
    // Why a name below '.larder' is not there, the log says.
    place.ok(&["mount", "--daemon", "a.larder", "mnt"]);
    assert_eq!(
        fs::read(place.path("mnt/.larder/snapshots/before/f"))
            .unwrap()
            .len(),
        10
    );
    for name in ["at/-1y", "at/yesterday", "snapshots/after", "at/2999-01-01"] {
        assert!(!place.path("mnt/.larder").join(name).exists());
    }
    place.ok(&["umount", "mnt"]);
    for line in [
        "there is no '.larder/at/-1y': ",
        "before the history begins",
        "there is no '.larder/at/yesterday': ",
        "there is no '.larder/snapshots/after': snapshot 'after' ",
        "there is no '.larder/at/2999-01-01': ",
    ] {
        assert!(log().contains(line), "{line}: {}", log());
    }
    place.ok(&["mount", "--daemon", "-o", "history=off", "a.larder", "mnt"]);
    assert!(!place.path("mnt/.larder").exists());
    place.ok(&["umount", "mnt"]);
    place.assert_clean("a.larder");
}

#[test]
fn a_moment_that_the_root_does_not_reach_any_more_is_not_mounted() {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--retention", "1h"]);
    place.ok(&["store", "create", "a.larder", "raw"]);
    place.write("f", 10);
    place.ok(&["cp", "f", "a.larder:/raw/"]);
    place.ok(&["cp", "f", "a.larder:/"]);
    place.ok(&["prune", "a.larder:/"]);
    fs::create_dir(place.path("mnt")).unwrap();
    // The other store has kept its past.
    assert_eq!(place.ok(&["ls", "a.larder@seq:2:/raw"]), "f\n");
    let why = "history of store 'main' begins at ";
    place.fails(1, &["mount", "--daemon", "a.larder@seq:2", "mnt"], why);
    assert!(!place.path("mnt/raw").exists());
    place.ok(&["mount", "--daemon", "a.larder", "mnt"]);
    assert!(!place.path("mnt/.larder/at/seq:2").exists());
    place.ok(&["umount", "mnt"]);
    let log = fs::read_to_string(place.path("a.larder/mount.log")).unwrap();
    let told = format!("there is no '.larder/at/seq:2': {why}");
    assert!(log.contains(&told), "{log}");
    place.assert_clean("a.larder");
}

#[test]
fn roots_server_keeps_few_capabilities() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let place = Place::new();
    let mut mount = serve(&place, &["--metrics", "127.0.0.1:0"]);
    // More threads than it began with.
    fs::write(place.path("mnt/a"), "content").unwrap();
    let tasks = format!("/proc/{}/task", mount.child.id());
    let mut count = 0;
    for task in fs::read_dir(tasks).unwrap() {
        // Threads come and go.
        let Ok(status) = fs::read_to_string(task.unwrap().path().join("status")) else {
            continue;
        };
        let field = |name: &str| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        // chown, dac_override, dac_read_search, fowner, fsetid, sys_ptrace, sys_admin
        for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
            let held = u64::from_str_radix(&field(set), 16).unwrap();
            assert_eq!(held & !0x28_001f, 0, "CLI-42: {set} {held:x}");
        }
        assert_eq!(field("NoNewPrivs:"), "1", "CLI-42");
        count += 1;
    }
    assert!(count > 8, "{count} threads");
    place.ok(&["umount", "mnt"]);
    assert_eq!(mount.end(), (Some(0), String::new()));
    place.assert_clean("a.larder");
}

#[test]
fn a_shared_memory_that_another_mount_has_is_refused_and_the_log_says_why() {
    let place = Place::new();
    for name in ["one", "other"] {
        place.ok(&["mount", "--create", "--daemon", "a.larder", name]);
    }
    let open = |mount: &str| {
        let mut options = fs::File::options();
        options.read(true).write(true).create(true).truncate(false);
        options.open(place.path(mount).join("x.db-shm"))
    };
    let log = || fs::read_to_string(place.path("a.larder/mount.log")).unwrap();
    let held = open("one").unwrap();
    held.sync_all().unwrap();
    assert!(!log().contains("WARN"), "{}", log());
    let refused = open("other").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(libc::EBUSY), "SHM-1");
    let log = log();
    let told = log.lines().find(|line| line.contains("WARN"));
    let told = told.unwrap_or_else(|| panic!("SHM-1: {log}"));
    for words in [
        "the shared memory of a SQLite database",
        "is open on another mount, and not shared between mounts",
        "use that mount, or 'PRAGMA journal_mode = DELETE'",
    ] {
        assert!(told.contains(words), "SHM-1: {told}");
    }
    drop(held);
    drop(open("other").expect("SHM-3"));
    for name in ["one", "other"] {
        place.ok(&["umount", name]);
    }
    place.assert_clean("a.larder");
}
