//! A mount whose server is stopped, as by a debugger, while others go on. Needs root.

use crate::mount::{Foreground, serve};
use crate::support::{Killed, Place};
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, Signal, kill_process};
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

fn signal(mount: &Foreground, signal: Signal) {
    kill_process(Pid::from_child(&mount.child), signal).unwrap();
}

/// A program that has changed a file on a mount and locked it, does what it is told, and says so.
fn holder(place: &Place) -> Killed {
    let script = "exec 9>>mnt/locked; flock 9; echo; read _; echo more >&9; sync mnt/locked; echo";
    Killed::spawn(
        Command::new("sh")
            .args(["-euc", script])
            .current_dir(place.path(""))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped()),
    )
}

/// A stopped server keeps the writer lock and its programs' locks, and all that it has answered,
/// for as long as it is stopped.
fn stop_for(time: Duration) {
    let place = Place::new();
    let mut first = serve(&place, &[]);
    fs::create_dir(place.path("second")).unwrap();
    let mut second = Foreground::start(&place, &["mount", "a.larder", "second"], "second");
    fs::write(place.path("mnt/locked"), "").unwrap();
    fs::write(place.path("mnt/kept"), "kept").unwrap();
    File::open(place.path("mnt/kept"))
        .unwrap()
        .sync_all()
        .unwrap();
    let mut holder = holder(&place);
    let mut answers = BufReader::new(holder.stdout.take().unwrap()).lines();
    answers.next().unwrap().unwrap();
    let other = File::options()
        .append(true)
        .open(place.path("second/locked"));
    let other = other.unwrap();
    let is_locked = || flock(&other, FlockOperation::NonBlockingLockExclusive).is_err();
    assert!(is_locked());
    // It has the writer lock from a change to its commit: it is stopped at such a moment.
    place.write("local", 3);
    let put = |timeout: &str| {
        let words = ["put", "local", "a.larder:/put", "--timeout", timeout];
        place.run(&words)
    };
    let mut made = 0;
    loop {
        assert!(made < 200, "never a moment with the writer lock");
        fs::write(place.path(&format!("mnt/f{made}")), format!("{made}")).unwrap();
        made += 1;
        signal(&first, Signal::STOP);
        if put("1").code == Some(124) {
            break;
        }
        signal(&first, Signal::CONT);
    }
    let began = Instant::now();
    while began.elapsed() < time {
        let done = put("2");
        assert_eq!(done.code, Some(124), "SESSION-6: {done:?}");
        let named = format!("process {} ('", first.child.id());
        assert!(done.stderr.contains(&named), "SESSION-6: {done:?}");
        assert!(is_locked(), "another mount got a lock that was not dropped");
        let kept = fs::read(place.path("second/kept")).unwrap();
        assert_eq!(kept, b"kept");
    }
    signal(&first, Signal::CONT);
    // What it was asked for and what it has answered: all of it is there, on both mounts.
    writeln!(holder.stdin.as_mut().unwrap()).unwrap();
    answers.next().unwrap().unwrap();
    let done = put("60");
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    drop(holder);
    assert!(!is_locked(), "who had it has ended");
    drop(other);
    File::open(place.path("mnt")).unwrap().sync_all().unwrap();
    for root in ["mnt", "second"] {
        let file = |name: &str| fs::read_to_string(place.path(root).join(name)).unwrap();
        for index in 0..made {
            assert_eq!(file(&format!("f{index}")), index.to_string(), "{root}");
        }
        assert_eq!(file("locked"), "more\n", "{root}");
        assert_eq!(file("put"), "\0\u{1}\u{2}", "{root}");
    }
    for (root, mount) in [("mnt", &mut first), ("second", &mut second)] {
        place.ok(&["umount", root]);
        assert_eq!(mount.end(), (Some(0), String::new()), "{root}");
    }
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn a_mount_that_was_stopped_for_half_a_minute_loses_nothing_and_is_not_robbed() {
    stop_for(Duration::from_secs(30));
}

#[test]
#[ignore = "five minutes: cargo xtask soak"]
fn a_mount_that_was_stopped_for_minutes_loses_nothing_and_is_not_robbed() {
    stop_for(Duration::from_secs(300));
}
