//! Hostile directories: what was wrong once, of files of a database in whose place is something
//! else, of modes and owners, of databases that cannot be written. The corpus of all of it is
//! [`crate::hostile`].

use crate::hostile::damage::{Instead, replace};
use crate::hostile::sandbox::make_outside;
use crate::mount::serve;
use crate::support::{Place, peak_memory};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

/// How long a verb may take.
const TIME_MAX: Duration = Duration::from_secs(10);
/// How much memory it may use at most, KiB.
const MEMORY_KIB_MAX: u64 = 512 << 10;
/// A verb that waits for events is ended after this.
const PATIENCE: Duration = Duration::from_millis(400);

/// A database with a transaction that is left, and the transaction's number.
fn template(place: &Place) -> String {
    place.ok(&["init", "a.larder", "--capacity", "64M"]);
    fs::create_dir_all(place.path("src")).unwrap();
    fs::write(place.path("src/f"), vec![b'x'; 100_000]).unwrap();
    place.ok(&["mkdir", "a.larder:/d"]);
    place.ok(&["put", "src/f", "a.larder:/d/f"]);
    place.ok(&["txn", "begin", "a.larder"]);
    let names = fs::read_dir(place.path("a.larder/transactions")).unwrap();
    let id = names.last().unwrap().unwrap().file_name();
    for name in ["locks", "mounts", "trace"] {
        fs::create_dir(place.path("a.larder").join(name)).unwrap();
    }
    fs::create_dir(place.path("mnt")).unwrap();
    make_outside(&place.path("outside"));
    id.into_string().unwrap()
}

/// Everything there is below: modes, owners, times and content.
fn state(of: &Path) -> BTreeMap<PathBuf, String> {
    let mut found = BTreeMap::new();
    let mut left = vec![of.to_owned()];
    while let Some(path) = left.pop() {
        let meta = path.symlink_metadata().unwrap();
        let mut line = format!(
            "{:o} {} {}.{}",
            meta.mode(),
            meta.uid(),
            meta.mtime(),
            meta.mtime_nsec()
        );
        if meta.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        } else if meta.is_file() {
            line += &String::from_utf8_lossy(&fs::read(&path).unwrap());
        }
        found.insert(path, line);
    }
    found
}

/// The longest time and the most memory.
#[derive(Debug, Default)]
struct Figures {
    run_count: usize,
    failed_count: usize,
    slowest: Duration,
    slowest_verb: String,
    largest_kib: u64,
}

/// Runs one verb; what is wrong with it, if anything.
fn run(place: &Place, verb: &[&str], figures: &Mutex<Figures>) -> Vec<String> {
    let before = state(&place.path("outside"));
    let begun = Instant::now();
    let errors = fs::File::create(place.path("stderr")).unwrap();
    let mut child = place
        .command(verb)
        .stdout(Stdio::null())
        .stderr(errors)
        .spawn()
        .unwrap();
    let waits = ["mount", "trace"].contains(&verb[0]);
    let (mut largest, mut is_told) = (0, false);
    let status = loop {
        largest = largest.max(peak_memory(&child).unwrap_or(0) >> 10);
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        if waits && !is_told && begun.elapsed() > PATIENCE {
            let pid = child.id().to_string();
            assert!(
                Command::new("kill")
                    .args(["-INT", &pid])
                    .status()
                    .unwrap()
                    .success()
            );
            is_told = true;
        }
        if begun.elapsed() > TIME_MAX {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(5));
    };
    let elapsed = begun.elapsed();
    if status.is_none() && verb[0] == "mount" {
        let detached = Command::new("umount")
            .arg("-l")
            .arg(place.path("mnt"))
            .status();
        assert!(detached.is_ok());
    }
    let stderr = fs::read_to_string(place.path("stderr")).unwrap_or_default();
    let mut wrong = Vec::new();
    match status.map(|status| status.code()) {
        None => wrong.push(format!("it did not end in {TIME_MAX:?}")),
        Some(None) if is_told => {}
        Some(None) => wrong.push("it was killed by a signal".into()),
        Some(Some(0)) => {}
        Some(Some(code)) => {
            if code == 101 || stderr.contains("panicked") {
                wrong.push("it panicked".into());
            } else if !is_told && verb[0] != "diff" && stderr.trim().is_empty() {
                wrong.push(format!("it ended with {code} and said nothing"));
            }
        }
    }
    if largest > MEMORY_KIB_MAX {
        wrong.push(format!("it used {largest} KiB"));
    }
    for (path, line) in &before {
        let now = state(&place.path("outside"));
        if now.get(path) != Some(line) {
            wrong.push(format!(
                "{} changed: {line:?}, now {:?}",
                path.display(),
                now.get(path)
            ));
            break;
        }
        if let Some(new) = now.keys().find(|path| !before.contains_key(*path)) {
            wrong.push(format!("{} is new", new.display()));
            break;
        }
    }
    let mut figures = figures.lock().unwrap();
    figures.run_count += 1;
    figures.failed_count += usize::from(status.is_none_or(|status| !status.success()));
    figures.largest_kib = figures.largest_kib.max(largest);
    if elapsed > figures.slowest {
        figures.slowest = elapsed;
        figures.slowest_verb = verb.join(" ");
    }
    drop(figures);
    let told = |what| format!("{verb:?}: {what}\n    {}", stderr.trim());
    wrong.into_iter().map(told).collect()
}

/// A copy of the template, with something else in the place of a file.
fn case(from: &Place, name: &str, instead: Instead) -> Option<Place> {
    let place = Place::new();
    let copied = Command::new("cp")
        .args(["-a", "--sparse=always", "--reflink=auto"])
        .args(["a.larder", "src", "mnt"].map(|name| from.path(name)))
        .arg(place.path("."))
        .status();
    assert!(copied.unwrap().success());
    make_outside(&place.path("outside"));
    let path = place.path("a.larder").join(name);
    replace(&path, &place.path("outside"), instead).then_some(place)
}

/// The row of a dead transaction, and a link in the place of the directory of workspaces.
#[test]
fn a_verb_that_reads_removes_nothing_through_a_link() {
    for verb in [
        &["ls", "a.larder:/"][..],
        &["sql", "--read-only", "a.larder", "SELECT 1"],
        &["put", "src/f", "a.larder:/new"],
    ] {
        let place = Place::new();
        let id = template(&place);
        let outside = place.path("outside").join(&id);
        fs::create_dir_all(outside.join("below")).unwrap();
        fs::write(outside.join("below/precious"), "precious").unwrap();
        fs::remove_dir_all(place.path("a.larder/transactions")).unwrap();
        symlink(place.path("outside"), place.path("a.larder/transactions")).unwrap();
        let done = place.run(verb);
        assert!(
            outside.join("below/precious").exists(),
            "DIRECTORY-3: {verb:?} {done:?}"
        );
    }
}

/// What a dead transaction has left goes with the next verb that changes something, and with no
/// other.
#[test]
fn only_a_verb_that_changes_something_sweeps() {
    let place = Place::new();
    let id = template(&place);
    let workspace = place.path("a.larder/transactions").join(&id);
    // As after a kill in the middle of its beginning.
    fs::remove_file(workspace.join("catalog.db")).unwrap();
    place.ok(&["ls", "a.larder:/"]);
    place.ok(&["txn", "list", "a.larder"]);
    assert!(workspace.exists());
    place.ok(&["put", "src/f", "a.larder:/new"]);
    assert!(!workspace.exists());
    place.assert_clean("a.larder");
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().mode() & 0o7777
}

/// Whatever the umask is: the directory and all in it are the owner's alone, or the group's.
#[test]
fn others_cannot_read_a_new_database() {
    for (group, directory, file) in [(None, 0o700, 0o600), (Some("0"), 0o2770, 0o660)] {
        let place = Place::new();
        let mut init = vec!["init", "a.larder", "--capacity", "64M"];
        init.extend(group.iter().flat_map(|group| ["--group", group]));
        let umasked = Command::new("sh")
            .args([
                "-c",
                "umask 0; exec \"$@\"",
                "sh",
                env!("CARGO_BIN_EXE_larder"),
            ])
            .args(&init)
            .current_dir(place.path("."))
            .output()
            .unwrap();
        assert!(umasked.status.success(), "{umasked:?}");
        fs::write(place.path("f"), "secret").unwrap();
        place.ok(&["put", "f", "a.larder:/f"]);
        place.ok(&["txn", "begin", "a.larder"]);
        let mut left = vec![place.path("a.larder")];
        let mut count = 0;
        while let Some(path) = left.pop() {
            let wanted = match path.is_dir() {
                true => directory,
                false => file,
            };
            assert_eq!(mode(&path), wanted, "DIRECTORY-4: {}", path.display());
            if path.is_dir() {
                left.extend(
                    fs::read_dir(&path)
                        .unwrap()
                        .map(|entry| entry.unwrap().path()),
                );
            }
            count += 1;
        }
        assert!(count > 10, "{count}");
    }
}

/// Who may open a file may lock it, and hold up who needs that lock: on a mount that once took a
/// program 23 s.
#[test]
fn an_unprivileged_user_opens_and_locks_no_file_of_a_database() {
    let place = Place::with_database();
    if place.path(".").metadata().unwrap().uid() != 0 {
        return; // Only root acts for others.
    }
    // What is outside keeps nobody away.
    fs::set_permissions(place.path("."), PermissionsExt::from_mode(0o755)).unwrap();
    let mut mount = serve(&place, &[]);
    fs::write(place.path("mnt/f"), "x").unwrap();
    place.ok(&["txn", "begin", "a.larder"]);
    let mut left = vec![place.path("a.larder")];
    let mut count = 0;
    while let Some(path) = left.pop() {
        let lock = [
            "--reuid",
            "65534",
            "--regid",
            "65534",
            "--clear-groups",
            "flock",
            "-n",
        ];
        let done = Command::new("setpriv")
            .args(lock)
            .arg(&path)
            .arg("true")
            .current_dir("/")
            .output()
            .unwrap();
        let told = String::from_utf8_lossy(&done.stderr);
        let is_kept_out = told.contains("Permission denied");
        assert!(
            !done.status.success() && is_kept_out,
            "DIRECTORY-4: {}: {told}",
            path.display()
        );
        if path.is_dir() {
            let entries = fs::read_dir(&path).unwrap();
            left.extend(entries.map(|entry| entry.unwrap().path()));
        }
        count += 1;
    }
    for name in ["turn.lock", "turn.queue", "sessions.lock", "catalog.db-shm"] {
        assert!(place.path("a.larder").join(name).exists(), "{name}");
    }
    assert!(count > 15, "{count}");
    fs::File::open(place.path("mnt/f"))
        .unwrap()
        .sync_all()
        .unwrap();
    place.ok(&["umount", "mnt"]);
    assert_eq!(mount.end().0, Some(0));
}

#[test]
fn check_warns_of_what_others_may_read_and_mends_it() {
    let place = Place::with_database();
    fs::set_permissions(place.path("a.larder"), PermissionsExt::from_mode(0o755)).unwrap();
    fs::set_permissions(
        place.path("a.larder/catalog.db"),
        PermissionsExt::from_mode(0o644),
    )
    .unwrap();
    let warned = place.run(&["check", "a.larder"]);
    assert_eq!(warned.code, Some(0));
    assert!(
        warned.stderr.contains("other users may read"),
        "{}",
        warned.stderr
    );
    assert!(warned.stderr.contains("--fix-modes"), "{}", warned.stderr);
    let mended = place.ok(&["check", "a.larder", "--fix-modes"]);
    assert!(mended.starts_with("modes of "), "{mended}");
    assert_eq!(mode(&place.path("a.larder")), 0o700);
    assert_eq!(mode(&place.path("a.larder/catalog.db")), 0o600);
}

/// Root looks into a user's database first, and all files that come of it are the user's.
#[test]
fn what_root_leaves_in_a_users_database_is_the_users() {
    let place = Place::with_database();
    if place.path(".").metadata().unwrap().uid() != 0 {
        return; // Only root can give files away.
    }
    for name in ["sessions.lock", "turn.lock", "turn.queue", "sessions"] {
        let path = place.path("a.larder").join(name);
        match path.is_dir() {
            true => fs::remove_dir_all(path).unwrap(),
            false => fs::remove_file(path).unwrap_or_default(),
        }
    }
    let given = Command::new("chown")
        .args(["-R", "12345:12346", "a.larder"])
        .current_dir(place.path("."))
        .status();
    assert!(given.unwrap().success());
    place.ok(&["ls", "a.larder:/"]);
    fs::write(place.path("f"), "x").unwrap();
    place.ok(&["put", "f", "a.larder:/f"]);
    place.ok(&["txn", "begin", "a.larder"]);
    let mut left = vec![place.path("a.larder")];
    while let Some(path) = left.pop() {
        let found = path.metadata().unwrap();
        assert_eq!(
            (found.uid(), found.gid()),
            (12345, 12346),
            "DIRECTORY-4: {}",
            path.display()
        );
        if found.is_dir() {
            left.extend(
                fs::read_dir(&path)
                    .unwrap()
                    .map(|entry| entry.unwrap().path()),
            );
        }
    }
}

/// A database that cannot be written, as on a read-only medium.
struct ReadOnly(PathBuf);

impl ReadOnly {
    fn make(place: &Place) -> ReadOnly {
        let path = place.path("a.larder");
        mount(&["--bind".as_ref(), path.as_ref(), path.as_ref()]);
        let made = ReadOnly(path);
        mount(&["-o".as_ref(), "remount,bind,ro".as_ref(), made.0.as_ref()]);
        made
    }
}

impl Drop for ReadOnly {
    fn drop(&mut self) {
        let done = Command::new("umount").arg("-l").arg(&self.0).status();
        assert!(done.is_ok_and(|status| status.success()));
    }
}

fn mount(arguments: &[&std::ffi::OsStr]) {
    let done = Command::new("mount").args(arguments).status();
    assert!(done.unwrap().success());
}

/// What is copied for reading lies in the database, and is a file.
#[test]
fn a_read_only_database_is_read_from_its_own_files() {
    let from = Place::new();
    template(&from);
    let figures = Mutex::new(Figures::default());
    let mut wrong = Vec::new();
    for name in ["catalog.db", "catalog.db-wal", "catalog.db-wal-shared"] {
        for instead in [
            Instead::LinkToFile,
            Instead::DanglingLink,
            Instead::HardLink,
            Instead::Fifo,
            Instead::Device,
        ] {
            let Some(place) = case(&from, name, instead) else {
                continue;
            };
            let _bound = ReadOnly::make(&place);
            let found = run(&place, &["ls", "a.larder:/"], &figures);
            let stderr = fs::read_to_string(place.path("stderr")).unwrap();
            if !stderr.contains(name) {
                wrong.push(format!("{name} is {instead:?}: it said '{stderr}'"));
            }
            let told = |what| format!("{name} is {instead:?}: {what}");
            wrong.extend(found.into_iter().map(told));
        }
    }
    assert!(wrong.is_empty(), "READONLY-3:\n{}", wrong.join("\n"));
}

/// A file that says it has a TiB takes no time, and no room where it is copied to.
#[test]
fn a_read_only_database_with_holes_is_copied_in_time() {
    let from = Place::new();
    template(&from);
    for name in ["catalog.db", "catalog.db-wal"] {
        let place = Place::new();
        let copied = Command::new("cp")
            .args(["-a", "--sparse=always"])
            .args(["a.larder", "src", "mnt"].map(|name| from.path(name)))
            .arg(place.path("."))
            .status();
        assert!(copied.unwrap().success());
        make_outside(&place.path("outside"));
        let file = fs::File::options()
            .write(true)
            .create(true)
            .truncate(false)
            .open(place.path("a.larder").join(name));
        file.unwrap().set_len(1 << 40).unwrap();
        let _bound = ReadOnly::make(&place);
        let found = run(&place, &["ls", "a.larder:/"], &Mutex::default());
        assert!(found.is_empty(), "READONLY-3: {name}: {}", found.join("\n"));
    }
}

/// Reading a copy makes nobody the owner of the code in it.
#[test]
fn a_strangers_read_only_database_runs_no_code() {
    let place = Place::with_database();
    if place.path(".").metadata().unwrap().uid() != 0 {
        return; // Only root can give files away.
    }
    let trigger = "CREATE TRIGGER theirs AFTER UPDATE ON main BEGIN SELECT 1; END";
    place.ok(&["sql", "a.larder", trigger]);
    let given = Command::new("chown")
        .args(["-R", "12345:12346", "a.larder"])
        .current_dir(place.path("."))
        .status();
    assert!(given.unwrap().success());
    let said = || place.run(&["ls", "a.larder:/"]).stderr;
    let writable = said();
    assert!(writable.contains("user 12345"), "{writable}");
    let _bound = ReadOnly::make(&place);
    let readonly = said();
    assert!(readonly.contains("user 12345"), "READONLY-3: {readonly}");
}
