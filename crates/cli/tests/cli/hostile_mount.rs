//! What a catalog may bring along, met by programs on a mount, which have no deadline of their own.

use crate::hostile::damage::{ENDLESS, full};
use crate::hostile_catalog::{behind_the_guards, hostile};
use crate::mount::{Foreground, serve};
use crate::support::{Killed, Place};
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// The deadline of a trigger is 5 s (`SAFE-7`); the rest is for slow machines.
const TIME_MAX: Duration = Duration::from_secs(30);

/// A shell on the mount.
fn shell(place: &Place, script: &str) -> Killed {
    let mut command = Command::new("sh");
    command
        .args(["-c", script])
        .current_dir(place.path("."))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped());
    Killed::spawn(&mut command)
}

/// Waits for the end of what may wait for a mount; its code, and what it said.
fn end(mut child: Killed, what: &str) -> (Option<i32>, String) {
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < TIME_MAX, "SAFE-7: {what} does not end");
        std::thread::sleep(Duration::from_millis(10));
    }
    let output = child.wait_with_output();
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    (output.status.code(), said)
}

/// Threads of a process that wait for what nothing can interrupt, in all of several looks.
fn stuck_threads(pid: u32) -> usize {
    let waits = |id: &std::ffi::OsStr| {
        let path = format!("/proc/{pid}/task/{}/stat", id.display());
        let text = fs::read_to_string(path).unwrap_or_default();
        let state = text
            .rsplit(") ")
            .next()
            .and_then(|rest| rest.chars().next());
        state == Some('D')
    };
    let threads = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
    threads
        .filter(|thread| {
            let id = thread.as_ref().unwrap().file_name();
            let mut looks = (0..50).map(|_| {
                std::thread::sleep(Duration::from_millis(2));
                waits(&id)
            });
            looks.all(|is_waiting| is_waiting)
        })
        .count()
}

/// The caller's own triggers run for him, for as long as a statement may; on a mount the write gets
/// an error, and neither it nor anybody else waits for ever.
fn assert_a_trigger_hangs_nobody(event: &str, write: &str, is_killed: bool) {
    let place = Place::with_database();
    place.write("old", 5000);
    place.ok(&["put", "old", "a.larder:/old"]);
    place.ok(&["put", "old", "a.larder:/other"]);
    let trigger = format!("CREATE TRIGGER slow AFTER {event} ON main BEGIN {ENDLESS}; END");
    place.ok(&["sql", "a.larder", &trigger]);
    let mut mount = serve(&place, &[]);
    let mut writer = shell(&place, write);
    std::thread::sleep(Duration::from_millis(300));
    assert!(
        writer.try_wait().unwrap().is_none(),
        "{event}: the trigger runs"
    );
    if is_killed {
        writer.kill().unwrap();
    }
    let (code, said) = end(shell(&place, "cat mnt/other"), "who reads beside it");
    assert_eq!(
        (code, said.as_str()),
        (Some(0), ""),
        "{event}: who reads beside it"
    );
    let (code, said) = end(writer, write);
    match is_killed {
        true => assert_eq!(code, None, "{event}: {said}"),
        false => {
            assert!(
                code.is_some_and(|code| code != 0),
                "{event}: {code:?} {said}"
            );
            assert!(said.to_lowercase().contains("error"), "{event}: {said}");
        }
    }
    assert_eq!(stuck_threads(mount.child.id()), 0, "SAFE-7: {event}");
    // Everything works as before, once the trigger is gone.
    place.ok(&["sql", "a.larder", "DROP TRIGGER slow"]);
    let later = "printf later >> mnt/old && printf new > mnt/later && sync -f mnt/later";
    let (code, said) = end(shell(&place, later), later);
    assert_eq!((code, said.as_str()), (Some(0), ""), "{event}");
    assert_eq!(
        fs::read(place.path("mnt/later")).unwrap(),
        b"new",
        "{event}"
    );
    assert_eq!(
        fs::metadata(place.path("mnt/old")).unwrap().len(),
        5005,
        "{event}"
    );
    place.ok(&["umount", "mnt"]);
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{event}: {said}");
    assert!(said.contains("trigger 'slow'"), "SAFE-7: {event}: {said}");
    place.assert_clean("a.larder");
}

#[test]
fn an_endless_trigger_fails_a_new_file_on_a_mount_and_hangs_nobody() {
    assert_a_trigger_hangs_nobody("INSERT", "echo x > mnt/new", false);
}

#[test]
fn an_endless_trigger_lets_go_of_a_writer_on_a_mount_that_is_killed() {
    assert_a_trigger_hangs_nobody("UPDATE", "chmod 600 mnt/old", true);
}

/// A walk of a mount goes by names, and a directory that lies in itself has paths without end.
#[test]
fn walks_of_directories_in_themselves_end_on_a_mount() {
    let place = full();
    for ring in [
        "SELECT ino, 'ring', ino FROM main WHERE kind = 'dir' AND ino > 1",
        "SELECT ino, 'ring', 1 FROM main WHERE kind = 'dir' AND ino > 1",
        // Two that lie in each other.
        "SELECT a.ino, 'ring', b.ino FROM main AS a JOIN main AS b ON a.kind = 'dir' AND b.kind = \
         'dir' AND a.ino > 1 AND b.ino > 1 AND a.ino <> b.ino",
    ] {
        hostile(&place, |owner| {
            let insert = format!("INSERT INTO main_dirent (parent, name, ino) {ring}");
            behind_the_guards(owner, &insert);
        });
        let arguments = ["mount", "--create", "x.larder", "mnt"];
        let mut mount = Foreground::start(&place, &arguments, "mnt");
        for walk in ["ls -R mnt", "find mnt", "du -a mnt", "cp -a mnt tree"] {
            let (code, said) = end(shell(&place, walk), walk);
            assert!(code.is_some_and(|code| code != 0), "SAFE-8: {walk}: {ring}");
            assert!(!said.is_empty(), "SAFE-8: {walk}: {ring}");
            // What is not in a ring is there.
            assert_eq!(fs::read(place.path("mnt/a")).unwrap().len(), 100, "{walk}");
        }
        fs::remove_dir_all(place.path("tree")).unwrap();
        place.ok(&["umount", "mnt"]);
        let (code, said) = mount.end();
        assert_eq!(code, Some(0), "{said}");
        assert!(said.contains("SAFE-8"), "{said}");
    }
}
