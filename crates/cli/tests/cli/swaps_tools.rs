//! Programs of the system on a mount, and `larder` beside them, while somebody else on the mount
//! swaps directories for links: nothing behind the links changes, and all of them end.

use crate::mount::serve;
use crate::support::{Killed, Place, describe};
use crate::swaps::{Swapper, TIME_MAX, count_of, fill, kept};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// A tool has to end; on a mount of a busy machine that takes some time.
const TOOL_TIME_MAX: Duration = Duration::from_secs(60);
const FILES: usize = 100;
const PAUSE: Duration = Duration::from_micros(200);

/// Runs a tool until it ends; what it says of names that have changed is its own.
fn run_tool(place: &Place, words: &[&str]) {
    let mut command = Command::new(words[0]);
    command
        .args(&words[1..])
        .current_dir(place.path("."))
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    let mut child = Killed::spawn(&mut command);
    let began = Instant::now();
    while child.try_wait().unwrap().is_none() {
        assert!(began.elapsed() < TOOL_TIME_MAX, "{words:?} does not end");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// A tree `t` with a directory and a link, whichever of both stands where.
fn make(tree: &Path, target: &Path) {
    fill(&tree.join("d"), FILES, "content");
    symlink(target, tree.join("link")).unwrap();
}

#[test]
fn tools_on_a_mount_end_and_change_nothing_behind_links_that_are_swapped_in() {
    let place = Place::with_database();
    let elsewhere = place.path("elsewhere");
    fill(&elsewhere, FILES, "of root");
    let before = kept(&elsewhere);
    let mut mount = serve(&place, &[]);
    let mut number = 0;
    for (tool, is_removing) in [
        (&["find", "mnt", "-size", "+1M"][..], false),
        (&["du", "-a", "mnt"], false),
        (&["ls", "-lR", "mnt"], false),
        (&["rm", "-r"], true),
    ] {
        let (began, mut swaps) = (Instant::now(), 0);
        for round in 0.. {
            number += 1;
            let name = format!("mnt/t{number}");
            let tree = place.path(&name);
            make(&tree, &elsewhere);
            let swapper = Swapper::start(tree.join("d"), tree.join("link"), PAUSE);
            // It swaps before the tool has got there.
            while swapper.swaps() == 0 {
                assert!(
                    began.elapsed() < TOOL_TIME_MAX,
                    "{tool:?}: nothing is swapped"
                );
                std::thread::sleep(PAUSE);
            }
            let words = match is_removing {
                true => [tool, &[&name]].concat(),
                false => tool.to_vec(),
            };
            run_tool(&place, &words);
            swaps += swapper.swaps();
            drop(swapper);
            assert_eq!(kept(&elsewhere), before, "{tool:?}");
            let _ = fs::remove_dir_all(&tree); // It may be gone.
            if round >= 2 && swaps >= 50 || began.elapsed() > TIME_MAX {
                break;
            }
        }
        assert!(swaps >= 3, "{tool:?}: {swaps} swaps");
    }
    place.ok(&["umount", "mnt"]);
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{said}");
    place.assert_clean("a.larder");
}

/// `larder rm -r` walks a database in which a mount swaps.
#[test]
fn what_is_removed_in_a_database_is_what_was_named() {
    let place = Place::with_database();
    fill(&place.path("secret"), FILES, "secret");
    place.ok(&["cp", "-r", "secret", "a.larder:/secret"]);
    let mut mount = serve(&place, &[]);
    let (began, mut swaps) = (Instant::now(), 0);
    for round in 0.. {
        let name = format!("t{round}");
        let tree = place.path(&format!("mnt/{name}"));
        make(&tree, Path::new("/secret"));
        let swapper = Swapper::start(tree.join("d"), tree.join("link"), PAUSE);
        // Of a link, the link goes.
        let done = place.run(&["rm", "-r", &format!("a.larder:/{name}/d")]);
        assert!(matches!(done.code, Some(0 | 1)), "{}", done.stderr);
        let done = place.run(&["rm", "-r", &format!("a.larder:/{name}")]);
        assert!(matches!(done.code, Some(0 | 1)), "{}", done.stderr);
        swaps += swapper.swaps();
        drop(swapper);
        let left = count_of(&place.path("mnt/secret"), "secret");
        assert_eq!(left, FILES, "CLI-40: removed elsewhere");
        if round >= 3 && swaps >= 50 || began.elapsed() > TIME_MAX {
            break;
        }
    }
    assert!(swaps >= 3, "{swaps} swaps");
    place.ok(&["umount", "mnt"]);
    let (code, said) = mount.end();
    assert_eq!(code, Some(0), "{said}");
    place.assert_clean("a.larder");
}

/// A move out of a database makes files in directories of others, and removes what it has moved.
#[test]
fn files_that_are_moved_out_land_where_they_were_sent() {
    let place = Place::with_database();
    fill(&place.path("t/d"), 10 * FILES, "content");
    fill(&place.path("elsewhere"), 1, "of root");
    let before = describe(&place.path("elsewhere"));
    let (began, mut swaps) = (Instant::now(), 0);
    for round in 0.. {
        let out = place.path(&format!("out{round}"));
        fs::create_dir_all(out.join("t/d")).unwrap();
        symlink(place.path("elsewhere"), out.join("t/link")).unwrap();
        place.run(&["rm", "-rf", "a.larder:/t"]);
        place.ok(&["cp", "-r", "t", "a.larder:/t"]);
        let pause = Duration::from_micros(50);
        let swapper = Swapper::start(out.join("t/d"), out.join("t/link"), pause);
        let done = place.run(&["mv", "a.larder:/t", &format!("out{round}")]);
        assert!(matches!(done.code, Some(0 | 1)), "{}", done.stderr);
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        swaps += swapper.swaps();
        drop(swapper);
        assert_eq!(
            describe(&place.path("elsewhere")),
            before,
            "CLI-40: elsewhere"
        );
        // What is in neither place is lost.
        let moved = count_of(&out, "content");
        let left = place.run(&["find", "a.larder:/t", "--type", "f"]);
        let left = left.stdout.iter().filter(|byte| **byte == b'\n').count();
        assert!(moved + left >= 10 * FILES, "CLI-40: {moved} and {left}");
        if round >= 2 && swaps >= 100 || began.elapsed() > TIME_MAX {
            break;
        }
    }
    assert!(swaps >= 10, "{swaps} swaps");
    place.assert_clean("a.larder");
}
