//! Trees whose owner swaps names while root copies: a directory and a symbolic link change places
//! in a loop, and nothing may land, be read, be changed or be removed behind the link (`CLI-40`).

use crate::mount::serve;
use crate::support::{Killed, Place, describe};
use crate::time::{now, with_history};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// Files of a tree: enough for many swaps while it is copied.
const FILES: usize = 3000;
/// However slow the machine is, a test ends.
pub const TIME_MAX: Duration = Duration::from_secs(5);

/// Exchanges two names, again and again, until it is dropped.
pub struct Swapper {
    stop: Arc<AtomicBool>,
    count: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Swapper {
    pub fn start(one: PathBuf, other: PathBuf, pause: Duration) -> Swapper {
        let stop = Arc::new(AtomicBool::new(false));
        let count = Arc::new(AtomicU64::new(0));
        let (asked, counted) = (stop.clone(), count.clone());
        let swap = move || {
            while !asked.load(Ordering::Relaxed) {
                // Refused while the other side makes or removes one of the two.
                if renameat_with(CWD, &one, CWD, &other, RenameFlags::EXCHANGE).is_ok() {
                    counted.fetch_add(1, Ordering::Relaxed);
                }
                std::thread::sleep(pause);
            }
        };
        Swapper {
            stop,
            count,
            thread: Some(std::thread::spawn(swap)),
        }
    }

    pub fn swaps(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl Drop for Swapper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            thread.join().unwrap();
        }
    }
}

/// `count` files of a few bytes.
pub fn fill(directory: &Path, count: usize, what: &str) {
    fs::create_dir_all(directory).unwrap();
    for number in 0..count {
        fs::write(directory.join(format!("f{number}")), what).unwrap();
    }
}

/// Runs a command again and again until enough swaps have come between; it may fail, but not panic.
fn run_during(place: &Place, swapper: &Swapper, mut prepare: impl FnMut(), arguments: &[&str]) {
    let began = Instant::now();
    for round in 0.. {
        prepare();
        let done = place.run(arguments);
        assert!(
            matches!(done.code, Some(0 | 1)),
            "{arguments:?}: {:?} {}",
            done.code,
            done.stderr
        );
        assert!(!done.stderr.contains("panicked"), "{}", done.stderr);
        let is_enough = round >= 2 && swapper.swaps() >= 100;
        if is_enough || began.elapsed() > TIME_MAX {
            break;
        }
    }
    assert!(swapper.swaps() > 10, "{} swaps", swapper.swaps());
}

/// A database with a tree of many small files at /t/d.
fn with_tree() -> Place {
    let place = Place::with_database();
    fill(&place.path("t/d"), FILES, "content");
    place.ok(&["cp", "-a", "t", "a.larder:/t"]);
    place
}

#[test]
fn files_that_are_copied_out_land_where_they_were_sent() {
    let place = with_tree();
    fill(&place.path("elsewhere"), 0, "");
    fs::create_dir_all(place.path("out/t/d")).unwrap();
    symlink(place.path("elsewhere"), place.path("out/t/link")).unwrap();
    let swapper = Swapper::start(
        place.path("out/t/d"),
        place.path("out/t/link"),
        Duration::from_micros(50),
    );
    run_during(&place, &swapper, || (), &["cp", "-a", "a.larder:/t", "out"]);
    drop(swapper);
    let strays = fs::read_dir(place.path("elsewhere")).unwrap().count();
    assert_eq!(strays, 0, "CLI-40: files elsewhere");
}

#[test]
fn a_link_in_a_directory_is_replaced_and_not_followed() {
    let place = Place::with_database();
    fill(&place.path("t"), 20, "content");
    place.ok(&["cp", "-a", "t", "a.larder:/t"]);
    fill(&place.path("elsewhere"), 1, "of root");
    let victim = place.path("elsewhere/f0");
    let before = describe(&place.path("elsewhere"));
    let out = place.path("out/t");
    fs::create_dir_all(&out).unwrap();
    let link = |name: &str| {
        // In one step: the other name changes places with it meanwhile.
        symlink(&victim, out.join("new")).unwrap();
        fs::rename(out.join("new"), out.join(name)).unwrap();
    };
    for arguments in [
        &["get", "a.larder:/t/f7", "out/t"][..],
        &["cp", "a.larder:/t/f7", "out/t"],
        &["cp", "-a", "a.larder:/t", "out"],
    ] {
        link("f7");
        place.ok(arguments);
        let kind = out.join("f7").symlink_metadata().unwrap().file_type();
        assert!(kind.is_file(), "CLI-40: {arguments:?}");
        assert_eq!(describe(&place.path("elsewhere")), before, "CLI-40");
    }
    // What users name themselves they may name by a link.
    symlink("out/t/f7", place.path("named")).unwrap();
    fs::write(out.join("f7"), "old").unwrap();
    place.ok(&["get", "a.larder:/t/f7", "named"]);
    assert_eq!(fs::read(out.join("f7")).unwrap(), b"content");

    // The name of a file that is there, or is being made, becomes a link to somebody else's.
    link("link");
    let swapper = Swapper::start(out.join("f7"), out.join("link"), Duration::from_micros(10));
    let repair = || {
        let is_link = |name: &str| out.join(name).is_symlink();
        if !is_link("f7") && !is_link("link") {
            link("link");
        }
    };
    for _ in 0..10 {
        run_during(
            &place,
            &swapper,
            repair,
            &["cp", "-a", "a.larder:/t", "out"],
        );
        run_during(
            &place,
            &swapper,
            repair,
            &["get", "a.larder:/t/f7", "out/t"],
        );
    }
    drop(swapper);
    assert_eq!(describe(&place.path("elsewhere")), before, "CLI-40");
}

#[test]
fn files_that_are_copied_in_are_those_that_were_named() {
    let place = Place::with_database();
    fill(&place.path("t/d"), FILES, "content");
    fill(&place.path("secret"), FILES, "secret");
    symlink(place.path("secret"), place.path("t/link")).unwrap();
    let swapper = Swapper::start(
        place.path("t/d"),
        place.path("t/link"),
        Duration::from_micros(50),
    );
    let clear = || {
        place.run(&["rm", "-rf", "a.larder:/t"]);
    };
    let copied_secrets = || {
        let back = place.path("back");
        if back.exists() {
            fs::remove_dir_all(&back).unwrap();
        }
        let _ = place.run(&["cp", "-r", "a.larder:/t", "back"]);
        count_of(&back, "secret")
    };
    let began = Instant::now();
    while swapper.swaps() < 200 && began.elapsed() < TIME_MAX {
        clear();
        let done = place.run(&["cp", "-r", "t", "a.larder:/t"]);
        assert!(matches!(done.code, Some(0 | 1)), "{}", done.stderr);
        assert_eq!(copied_secrets(), 0, "CLI-40: files from elsewhere");
    }
}

/// How many files below a directory hold this.
pub fn count_of(directory: &Path, what: &str) -> usize {
    let Ok(entries) = fs::read_dir(directory) else {
        return 0;
    };
    entries
        .map(|entry| entry.unwrap().path())
        .map(|path| match path.symlink_metadata().unwrap().is_dir() {
            true => count_of(&path, what),
            false => usize::from(fs::read(&path).is_ok_and(|text| text == what.as_bytes())),
        })
        .sum()
}

#[test]
fn a_move_removes_only_what_it_has_copied() {
    let place = Place::with_database();
    fill(&place.path("secret"), FILES, "secret");
    let began = Instant::now();
    let mut swaps = 0;
    for round in 0.. {
        let tree = format!("t{round}");
        fill(&place.path(&format!("{tree}/d")), FILES, "content");
        symlink(place.path("secret"), place.path(&format!("{tree}/link"))).unwrap();
        let swapper = Swapper::start(
            place.path(&format!("{tree}/d")),
            place.path(&format!("{tree}/link")),
            Duration::from_micros(50),
        );
        let done = place.run(&["mv", &tree, "a.larder:/"]);
        assert!(matches!(done.code, Some(0 | 1)), "{}", done.stderr);
        swaps += swapper.swaps();
        drop(swapper);
        assert_eq!(
            fs::read_dir(place.path("secret")).unwrap().count(),
            FILES,
            "CLI-40: removed elsewhere"
        );
        if round >= 2 && swaps > 200 || began.elapsed() > TIME_MAX {
            break;
        }
    }
}

/// The same in a database: whoever has a mount of it swaps there.
#[test]
fn files_in_a_database_land_where_they_were_sent() {
    let place = Place::with_database();
    fill(&place.path("t/d"), 300, "content");
    place.ok(&["mkdir", "-p", "a.larder:/to/t/d", "a.larder:/elsewhere"]);
    place.ok(&["ln", "-s", "/elsewhere", "a.larder:/to/t/link"]);
    let mut mount = serve(&place, &[]);
    let swapper = Swapper::start(
        place.path("mnt/to/t/d"),
        place.path("mnt/to/t/link"),
        Duration::from_micros(200),
    );
    run_during(&place, &swapper, || (), &["cp", "-a", "t", "a.larder:/to"]);
    drop(swapper);
    place.ok(&["umount", "mnt"]);
    mount.end();
    let listed = place.ok(&["ls", "a.larder:/elsewhere"]);
    assert_eq!(listed.lines().count(), 0, "CLI-40: files elsewhere");
    place.assert_clean("a.larder");
}

#[test]
fn files_of_a_database_are_those_that_were_named() {
    let place = with_history();
    fill(&place.path("t/d"), 300, "content");
    fill(&place.path("secret"), 300, "secret");
    place.ok(&["cp", "-r", "t", "secret", "a.larder:/"]);
    place.ok(&["ln", "-s", "/secret", "a.larder:/t/link"]);
    let then = now(&place);
    let mut mount = serve(&place, &[]);
    let swapper = Swapper::start(
        place.path("mnt/t/d"),
        place.path("mnt/t/link"),
        Duration::from_micros(200),
    );
    run_during(
        &place,
        &swapper,
        || {
            assert_eq!(count_of(&place.path("out"), "secret"), 0, "CLI-40");
            drop(fs::remove_dir_all(place.path("out")));
        },
        &["cp", "-r", "a.larder:/t", "out"],
    );
    // A tree that is removed, restored or cloned is the one that was named, too.
    run_during(
        &place,
        &swapper,
        || (),
        &["rm", "-r", "a.larder:/t/d", "--dry-run"],
    );
    let clear = || drop(place.run(&["rm", "-rf", "a.larder:/u"]));
    run_during(
        &place,
        &swapper,
        clear,
        &["clone", "a.larder:/t", "a.larder:/u"],
    );
    run_during(
        &place,
        &swapper,
        || (),
        &[
            "restore",
            &format!("{then}:/t"),
            "a.larder:/back",
            "--exact",
        ],
    );
    run_during(&place, &swapper, || (), &["restore", &format!("{then}:/t")]);
    drop(swapper);
    place.ok(&["umount", "mnt"]);
    mount.end();
    assert_eq!(count_of(&place.path("out"), "secret"), 0, "CLI-40");
    place.ok(&["cp", "-r", "a.larder:/back", "back"]);
    assert_eq!(count_of(&place.path("back"), "secret"), 0, "CLI-40");
    assert_eq!(count_of(&place.path("back"), "content"), 300, "CLI-40");
    place.ok(&["cp", "-r", "a.larder:/u", "u"]);
    assert_eq!(count_of(&place.path("u"), "secret"), 0, "CLI-40");
    let secrets = place.ok(&["find", "a.larder:/secret", "--type", "f"]);
    assert_eq!(secrets.lines().count(), 300, "CLI-40");
    place.assert_clean("a.larder");
}

/// What must stay as it is: content, modes, owners and names.
pub fn kept(of: &Path) -> Vec<String> {
    use std::os::unix::fs::MetadataExt;
    let entries = fs::read_dir(of).unwrap().map(|entry| entry.unwrap().path());
    let mut all: Vec<String> = entries
        .chain([of.to_owned()])
        .map(|path| {
            let found = path.symlink_metadata().unwrap();
            let text = match found.is_file() {
                true => fs::read_to_string(&path).unwrap(),
                false => String::new(),
            };
            format!(
                "{path:?} {:o} {} {} {text}",
                found.mode(),
                found.uid(),
                found.gid()
            )
        })
        .collect();
    all.sort();
    all
}

/// Verbs that open a database, mend its modes, mount it and make pipes in it, while its directories
/// become links, and its files links, further names of others' files, and pipes (`DIRECTORY-1` to
/// `DIRECTORY-4`).
#[test]
fn what_is_swapped_inside_of_a_database_leads_nowhere() {
    use std::os::unix::fs::PermissionsExt;
    let place = Place::with_database();
    place.write("a", 100);
    place.ok(&["put", "a", "a.larder:/a"]);
    let elsewhere = place.path("elsewhere");
    fill(&elsewhere, 3, "of root");
    fs::set_permissions(elsewhere.join("f0"), PermissionsExt::from_mode(0o644)).unwrap();
    for name in ["locks", "mounts", "trace"] {
        fs::create_dir_all(place.path("a.larder").join(name)).unwrap();
    }
    let inside = |name: &str| place.path("a.larder").join(name);
    let before = kept(&elsewhere);
    for (name, other) in [
        ("trace", "link"),
        ("mounts", "link"),
        ("locks", "link"),
        ("sessions", "link"),
        ("segments", "link"),
        ("turn.lock", "name"),
        ("sessions.lock", "name"),
        ("turn.queue", "fifo"),
        ("sessions.lock", "fifo"),
    ] {
        let other_path = inside("swapped");
        match other {
            "link" => symlink(&elsewhere, &other_path).unwrap(),
            "name" => fs::hard_link(elsewhere.join("f0"), &other_path).unwrap(),
            _ => {
                let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o600));
                rustix::fs::mknodat(CWD, &other_path, kind, mode, 0).unwrap();
            }
        }
        let swapper = Swapper::start(inside(name), other_path.clone(), Duration::from_micros(50));
        for arguments in [
            &["check", "a.larder", "--fix-modes"][..],
            &["put", "a", "a.larder:/b"],
            &["txn", "run", "a.larder", "--mount", "mnt", "--", "true"],
        ] {
            let began = Instant::now();
            for _ in 0..3 {
                let done = place.run(arguments);
                let stderr = &done.stderr;
                assert!(
                    !stderr.contains("panicked"),
                    "{name}: {arguments:?}: {stderr}"
                );
                let is_clear = done.code == Some(0) || stderr.contains("larder: ");
                let is_clear = is_clear || !done.stdout.is_empty();
                assert!(is_clear, "{name}: {arguments:?}: {:?} {stderr}", done.code);
            }
            assert!(began.elapsed() < 6 * TIME_MAX, "{name}: {arguments:?}");
        }
        if name == "trace" {
            for _ in 0..2 {
                place.run(&["trace", "a.larder", "--count", "1"]);
            }
        }
        assert!(swapper.swaps() > 10, "{name}: {} swaps", swapper.swaps());
        drop(swapper);
        // The database is as it was, whichever of the two stands there now.
        let is_swapped = match (other, inside(name).symlink_metadata()) {
            ("link", Ok(found)) => found.is_symlink(),
            ("name", Ok(found)) => std::os::unix::fs::MetadataExt::nlink(&found) > 1,
            (_, Ok(found)) => !found.is_file(),
            (_, Err(error)) => panic!("{name}: {error}"),
        };
        if is_swapped {
            renameat_with(CWD, inside(name), CWD, &other_path, RenameFlags::EXCHANGE).unwrap();
        }
        fs::remove_file(&other_path).unwrap();
        assert_eq!(kept(&elsewhere), before, "{name} and a {other}");
    }
    assert_eq!(place.ok(&["cat", "a.larder:/a"]).len(), 100);
}

/// What a database's owner puts in the place of the pipe of root's `larder trace`.
#[derive(Debug, Clone, Copy)]
enum Bait {
    Link,
    /// A further name of root's file, where the system lets users make one.
    File,
    /// The same of a FIFO.
    Fifo,
}

impl Bait {
    fn put(self, elsewhere: &Path, at: &Path) {
        match self {
            Bait::Link => symlink(elsewhere.join("f0"), at).unwrap(),
            Bait::File => fs::hard_link(elsewhere.join("f0"), at).unwrap(),
            Bait::Fifo => fs::hard_link(elsewhere.join("fifo"), at).unwrap(),
        }
    }
}

/// Root traces a database whose owner exchanges the pipe for something of root's as soon as it has
/// a name: nothing becomes the owner's, or gets another mode (`DIRECTORY-4`).
#[test]
fn a_trace_by_root_gives_nothing_away_to_who_swaps_its_pipe() {
    use std::os::unix::fs::chown;
    const OWNER: u32 = 4711;
    /// For each bait.
    const TIME: Duration = Duration::from_millis(1500);
    if !rustix::process::geteuid().is_root() {
        return; // Only root gives files away.
    }
    let place = Place::with_database();
    let elsewhere = place.path("elsewhere");
    fill(&elsewhere, 1, "of root");
    let (kind, mode) = (rustix::fs::FileType::Fifo, rustix::fs::Mode::from(0o644));
    rustix::fs::mknodat(CWD, elsewhere.join("fifo"), kind, mode, 0).unwrap();
    let before = kept(&elsewhere);
    chown(place.path("a.larder"), Some(OWNER), Some(OWNER)).unwrap();
    let (pipes, bait_path) = (place.path("a.larder/trace"), place.path("a.larder/bait"));
    for bait in [Bait::Link, Bait::File, Bait::Fifo] {
        let (stop, swaps) = (AtomicBool::new(false), AtomicU64::new(0));
        let swap = || {
            while !stop.load(Ordering::Relaxed) {
                // There is none before the first trace.
                for entry in fs::read_dir(&pipes).into_iter().flatten().flatten() {
                    let exchange = RenameFlags::EXCHANGE;
                    let pipe = entry.path();
                    if renameat_with(CWD, &bait_path, CWD, &pipe, exchange).is_ok() {
                        swaps.fetch_add(1, Ordering::Relaxed);
                    }
                }
            }
        };
        let trace = || {
            let began = Instant::now();
            while began.elapsed() < TIME {
                let left = fs::read_dir(&pipes).into_iter().flatten().flatten();
                left.for_each(|entry| drop(fs::remove_file(entry.path())));
                let _ = fs::remove_file(&bait_path); // It may have gone with the pipe.
                bait.put(&elsewhere, &bait_path);
                let swapped = swaps.load(Ordering::Relaxed);
                let mut command = place.command(&["trace", "a.larder"]);
                command.stderr(std::process::Stdio::piped());
                let mut child = Killed::spawn(&mut command);
                let started = Instant::now();
                while swaps.load(Ordering::Relaxed) < swapped + 20
                    && child.try_wait().unwrap().is_none()
                {
                    assert!(started.elapsed() < TIME_MAX, "{bait:?}: it is not swapped");
                    std::thread::sleep(Duration::from_millis(1));
                }
                if child.try_wait().unwrap().is_none() {
                    let pid = rustix::process::Pid::from_child(&child);
                    rustix::process::kill_process(pid, rustix::process::Signal::INT).unwrap();
                }
                let done = child.wait_with_output();
                let told = String::from_utf8_lossy(&done.stderr);
                assert!(!told.contains("panicked"), "{bait:?}: {told}");
                assert_eq!(kept(&elsewhere), before, "DIRECTORY-4: {bait:?}");
            }
        };
        std::thread::scope(|scope| {
            scope.spawn(swap);
            let traced = std::panic::catch_unwind(std::panic::AssertUnwindSafe(trace));
            stop.store(true, Ordering::Relaxed);
            traced.unwrap_or_else(|failed| std::panic::resume_unwind(failed));
        });
        println!("{bait:?}: {} swaps", swaps.load(Ordering::Relaxed));
        assert!(swaps.load(Ordering::Relaxed) >= 20, "{bait:?}");
    }
}
