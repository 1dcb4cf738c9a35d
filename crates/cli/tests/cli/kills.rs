//! Servers that are killed or stopped while others wait, and unmounting what others hold. Needs
//! root.

use crate::mount::{PATIENCE, serve};
use crate::support::{Killed, Place};
use rustix::process::{Pid, Signal, kill_process};
use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// What is promised to be usable again after a kill.
const USABLE: Duration = Duration::from_secs(10);

fn wait_until(what: &str, is_so: impl Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < PATIENCE, "never: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The state letter of the thread of that name.
fn thread_state(pid: u32, name: &str) -> Option<char> {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).ok()?;
    let mut stats = threads
        .flatten()
        .filter_map(|thread| fs::read_to_string(thread.path().join("stat")).ok());
    let stat = stats.find(|stat| stat.contains(&format!("({name})")))?;
    stat.rsplit(')').next()?.trim_start().chars().next()
}

/// A program that removes a name.
fn unlink(directory: &Path, name: &str) -> Killed {
    Killed::spawn(
        Command::new("unlink")
            .arg(name)
            .current_dir(directory)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null()),
    )
}

/// A process that has the writer lock, as a session does.
fn take_writer_lock(place: &Place) -> Killed {
    use std::io::Read;
    let mut holder = Killed::spawn(
        Command::new("flock")
            .args(["a.larder/turn.lock", "sh", "-c", "echo; read _"])
            .current_dir(place.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    let mut line = [0];
    holder
        .stdout
        .as_mut()
        .unwrap()
        .read_exact(&mut line)
        .unwrap();
    holder
}

#[test]
fn a_killed_server_lets_go_of_its_locks_and_of_who_waits_for_it() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    let pid = mount.child.id();
    let inside = place.path("mnt/d");
    fs::create_dir(&inside).unwrap();
    for name in ["a", "b", "f"] {
        fs::write(inside.join(name), "x").unwrap();
    }
    fs::File::open(&inside).unwrap().sync_all().unwrap();

    // One program has the directory's lock in the kernel, while its request waits for the writer
    // lock; one waits for the directory, and so does, behind it, the thread that tells the kernel
    // of what the SQL client changed.
    let mut holder = take_writer_lock(&place);
    let (mut first, mut second) = (unlink(&inside, "a"), unlink(&inside, "b"));
    wait_until("both wait", || {
        let waits = |child: u32| thread_state(child, "unlink") == Some('D');
        [first.id(), second.id()].into_iter().any(waits)
    });
    let altered = Command::new("sqlite3")
        .args(["-cmd", ".timeout 5000"])
        .arg(place.path("a.larder/catalog.db"))
        .arg("ALTER TABLE main ADD COLUMN note")
        .status();
    assert!(altered.unwrap().success());
    wait_until("the notification waits", || {
        thread_state(pid, "larder-notify") == Some('D')
    });

    let killed = Instant::now();
    mount.child.kill().unwrap();
    // Nobody has looked yet: this is the kernel's doing alone.
    let lock = fs::read_dir(place.path("a.larder/sessions"))
        .unwrap()
        .next();
    let lock = fs::File::open(lock.unwrap().unwrap().path()).unwrap();
    wait_until("FUSE-12: the session's lock", || lock.try_lock().is_ok());
    lock.unlock().unwrap();
    assert_eq!(
        thread_state(pid, "larder-notify"),
        Some('D'),
        "it waits still"
    );
    holder.kill().unwrap();
    holder.wait().unwrap();

    let listed = place.run(&["ls", "a.larder:/d"]);
    assert_eq!(
        (listed.code, listed.stdout.as_slice()),
        (Some(0), &b"a\nb\nf\n"[..])
    );
    let told = format!("(process {pid}) was killed, but could not end");
    assert!(listed.stderr.contains(&told), "{}", listed.stderr);
    for waits in [&mut first, &mut second] {
        assert!(!waits.wait().unwrap().success(), "it gets an error");
    }
    assert_eq!(mount.end().0, None, "killed");
    assert!(killed.elapsed() < USABLE, "{:?}", killed.elapsed());
    place.ok(&["umount", "mnt"]);
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn a_stopped_mount_is_named_and_never_robbed() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    let pid = mount.child.id();
    let signal = |signal| kill_process(Pid::from_child(&mount.child), signal).unwrap();
    // It has the writer lock from a change to its commit: it is stopped at such a moment.
    let mut refused = None;
    for round in 0..100 {
        fs::write(place.path(&format!("mnt/f{round}")), "x").unwrap();
        signal(Signal::STOP);
        let done = place.run(&["ls", "a.larder:/", "--timeout", "3"]);
        if done.code != Some(0) {
            refused = Some(done);
            break;
        }
        signal(Signal::CONT);
    }
    let refused = refused.expect("a moment with the writer lock");
    assert_eq!(refused.code, Some(124), "CLI-1: {}", refused.stderr);
    let mountpoint = place.path("mnt").canonicalize().unwrap();
    let named = format!("process {pid} ('");
    let session = format!("'mount {}' since 20", mountpoint.display());
    let lines: Vec<&str> = refused.stderr.lines().collect();
    assert_eq!(lines.len(), 2, "{}", refused.stderr);
    for (line, about) in lines.iter().zip(["waiting for 2 s", "waited for 3 s"]) {
        let words = [about, &named, "larder mount", &session, "which is stopped"];
        let is_said = |word: &&str| line.contains(*word);
        assert!(words.iter().all(is_said), "SESSION-6: {line}");
    }
    let umount = place.run(&["umount", "mnt", "--timeout", "1"]);
    assert_eq!(umount.code, Some(124), "{}", umount.stderr);
    assert!(umount.stderr.contains(&named), "{}", umount.stderr);
    signal(Signal::CONT);
    wait_until("it goes on", || {
        place.run(&["ls", "a.larder:/"]).code == Some(0)
    });
    // The first one may still be under way.
    place.run(&["umount", "mnt"]);
    assert_eq!(mount.end(), (Some(0), String::new()));
    place.assert_clean("a.larder");
}

#[test]
fn an_unmount_says_what_keeps_the_filesystem() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    fs::create_dir(place.path("bound")).unwrap();
    let bind = |script: &str| {
        let done = Command::new("sh")
            .args(["-ec", script])
            .current_dir(place.path(""))
            .status();
        assert!(done.unwrap().success(), "{script}");
    };
    bind("mount --bind mnt bound");
    fs::write(place.path("mnt/f"), "kept").unwrap();
    let began = Instant::now();
    let done = place.run(&["umount", "mnt"]);
    assert_eq!(done.code, Some(0), "CLI-35: {}", done.stderr);
    let bound = place.path("bound").canonicalize().unwrap();
    let told = format!("its filesystem is mounted at '{}' too", bound.display());
    assert!(done.stderr.contains(&told), "CLI-35: {}", done.stderr);
    assert!(began.elapsed() < USABLE, "CLI-35: {:?}", began.elapsed());
    assert_eq!(fs::read(place.path("bound/f")).unwrap(), b"kept");
    assert!(mount.child.try_wait().unwrap().is_none(), "it is served on");
    place.run(&["umount", "bound"]);
    assert_eq!(mount.end(), (Some(0), String::new()));

    let mut mount = serve(&place, &[]);
    let script = "echo; read _";
    let mut copy = Killed::spawn(
        Command::new("unshare")
            .args(["--mount", "--propagation", "private", "sh", "-c", script])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    );
    std::io::Read::read_exact(copy.stdout.as_mut().unwrap(), &mut [0]).unwrap();
    let done = place.run(&["umount", "mnt"]);
    assert_eq!(done.code, Some(0), "CLI-35: {}", done.stderr);
    let told = format!("in the mount namespace of sh ({})", copy.id());
    assert!(done.stderr.contains(&told), "CLI-35: {}", done.stderr);
    drop(copy.stdin.take());
    copy.wait().unwrap();
    assert_eq!(mount.end(), (Some(0), String::new()));
    place.assert_clean("a.larder");
}

#[test]
fn a_database_is_unmounted_as_a_directory_is() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    fs::create_dir(place.path("second")).unwrap();
    place.ok(&["mount", "--daemon", "a.larder", "second"]);
    let held = fs::File::create(place.path("second/open")).unwrap();
    place.fails(1, &["umount", "a.larder"], "in use by");
    assert_eq!(
        mount.end(),
        (Some(0), String::new()),
        "the other one has ended"
    );
    drop(held);
    let ended = place.json(&["umount", "a.larder"]);
    let mountpoint = place.path("second").canonicalize().unwrap();
    assert_eq!(ended.as_array().unwrap().len(), 1);
    assert_eq!(ended[0]["mountpoint"], mountpoint.to_str().unwrap());
    place.fails(1, &["umount", "a.larder"], "nothing is mounted");
    place.assert_closed("a.larder");
}

#[test]
fn a_stopped_mount_delays_a_new_one_for_two_seconds() {
    let place = Place::new();
    let mut mount = serve(&place, &[]);
    let signal = |signal| kill_process(Pid::from_child(&mount.child), signal).unwrap();
    fs::write(place.path("mnt/f"), "old").unwrap();
    fs::File::open(place.path("mnt/f"))
        .unwrap()
        .sync_all()
        .unwrap();
    // It has given the writer lock back by then.
    std::thread::sleep(Duration::from_secs(1));
    signal(Signal::STOP);
    fs::create_dir(place.path("second")).unwrap();
    let began = Instant::now();
    let done = place.run(&["mount", "--daemon", "a.larder", "second"]);
    let took = began.elapsed();
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(took > Duration::from_millis(1900), "COMPANY-4: {took:?}");
    assert!(took < Duration::from_secs(8), "COMPANY-4: {took:?}");
    let log = fs::read_to_string(place.path("a.larder/mount.log")).unwrap();
    let named = format!("(process {}) has not answered for 2 s", mount.child.id());
    assert!(log.contains(&named), "COMPANY-4: {log}");
    fs::write(place.path("next"), "new").unwrap();
    let done = place.run(&["cp", "next", "a.larder:/f"]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    signal(Signal::CONT);
    // What reaches its server is answered as of now.
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(place.path("mnt/f"))
        .unwrap();
    std::io::Write::write_all(&mut file, b"mine").unwrap();
    file.sync_all().unwrap();
    drop(file);
    assert_eq!(
        fs::read_to_string(place.path("second/f")).unwrap(),
        "newmine",
        "COMPANY-5"
    );
    for name in ["second", "mnt"] {
        wait_until("unmounted", || place.run(&["umount", name]).code == Some(0));
    }
    assert_eq!(mount.end().0, Some(0));
    place.assert_clean("a.larder");
}
