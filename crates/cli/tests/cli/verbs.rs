//! Every verb on every state of a database: it does its work, or says in one line why not, and
//! leaves the database whole.

use crate::kills::is_for_everybody;
use crate::support::{Done, Place};
use std::collections::BTreeMap;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum State {
    /// No file is in it.
    Empty,
    /// It keeps no history.
    NoHistory,
    /// A read-only medium.
    ReadOnly,
    /// Beside a mount of it.
    Mounted,
    /// Nobody else has it open.
    Unmounted,
    /// What is named lies in its second store.
    SecondStore,
    /// A page of the catalog is damaged.
    Damaged,
    /// It is somebody else's, who lets others read.
    Strangers,
}

/// What a verb needs, beside a sound catalog.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Needs {
    Nothing,
    /// The file `f`.
    File,
    /// A past, and the file.
    Past,
    /// To write.
    Writing,
    /// To write, and the file.
    WritingFile,
    /// To write, and a past with the file.
    WritingPast,
    /// A mount to look at.
    Mount,
}
use Needs::{File, Mount, Nothing, Past, Writing, WritingFile, WritingPast};

/// `D` stands for the database, `P` for the directory in it that the verb works in, `SEQ` for its
/// last commit and `TXN` for its open transaction.
const VERBS: &[(Needs, &[&str])] = &[
    (Nothing, &["ls", "D:P/"]),
    (File, &["cat", "D:P/f"]),
    (File, &["get", "D:P/f", "-"]),
    (File, &["stat", "D:P/f"]),
    (Nothing, &["find", "D:P/"]),
    (Nothing, &["du", "D:P/"]),
    (Nothing, &["df", "D"]),
    (Nothing, &["frag", "D"]),
    (Nothing, &["status", "D"]),
    (Nothing, &["stats", "D", "--count", "1"]),
    (
        Nothing,
        &["sql", "D", "--read-only", "SELECT * FROM main_path"],
    ),
    (Nothing, &["check", "D"]),
    (Nothing, &["check", "D", "--read"]),
    (Past, &["log", "D"]),
    (Past, &["log", "D:P/f"]),
    (Past, &["diff", "D@s:P/", "D:P/"]),
    (Past, &["cat", "D@s:P/f"]),
    (Nothing, &["snapshot", "list", "D"]),
    (Nothing, &["retention", "D"]),
    (Nothing, &["store", "list", "D"]),
    (Nothing, &["txn", "list", "D"]),
    (Writing, &["put", "local", "D:P/new"]),
    (Writing, &["cp", "local", "D:P/copied"]),
    (WritingFile, &["cp", "D:P/f", "D:P/f2"]),
    (WritingFile, &["mv", "D:P/f2", "D:P/f3"]),
    (WritingFile, &["rm", "D:P/f3"]),
    (Writing, &["mkdir", "D:P/d"]),
    (WritingFile, &["ln", "-s", "f", "D:P/link"]),
    (WritingFile, &["clone", "D:P/f", "D:P/f4"]),
    (Writing, &["mkdir", "D:P/d2"]),
    (Writing, &["promote", "D:P/d", "D:P/d2"]),
    (Writing, &["sql", "D", "UPDATE main SET mode = mode"]),
    (
        Writing,
        &["store", "create", "D", "third", "--mount", "/third"],
    ),
    (Writing, &["store", "destroy", "D", "third"]),
    (
        Writing,
        &["store", "set", "D", "second", "--save-keeps", "none"],
    ),
    (WritingPast, &["restore", "D@s:P/f"]),
    (Writing, &["mkdir", "D:P/undone"]),
    (Past, &["undo", "D", "SEQ", "--dry-run"]),
    (WritingPast, &["undo", "D", "SEQ"]),
    (Writing, &["txn", "run", "D", "--", "true"]),
    (Writing, &["txn", "begin", "D"]),
    (Writing, &["txn", "status", "D", "TXN"]),
    (Writing, &["txn", "commit", "D", "TXN"]),
    (Writing, &["txn", "begin", "D"]),
    (Writing, &["txn", "abort", "D", "TXN"]),
    (Writing, &["sql", "D", "CREATE TABLE album (title TEXT)"]),
    (WritingPast, &["track", "D", "album"]),
    (Nothing, &["track", "D"]),
    (Writing, &["sql", "D", "INSERT INTO album VALUES ('sea')"]),
    (WritingPast, &["rows", "D@-0s", "album"]),
    (WritingPast, &["untrack", "D", "album"]),
    (Writing, &["watch", "D", "--enable", "--once"]),
    (Writing, &["watch", "D", "--once"]),
    (Writing, &["watch", "D", "--disable"]),
    (Mount, &["trace", "D", "--count", "1"]),
    (Nothing, &["refused", "list", "D"]),
    (Nothing, &["mount", "--daemon", "-o", "ro", "D", "ro"]),
    (Nothing, &["umount", "ro"]),
    (Writing, &["mount", "--daemon", "D", "rw"]),
    (Writing, &["umount", "rw"]),
    (Past, &["rollback", "D", "s", "--dry-run"]),
    (Writing, &["snapshot", "create", "D", "more"]),
    (Writing, &["snapshot", "hold", "D", "more", "why"]),
    (Writing, &["snapshot", "release", "D", "more", "why"]),
    (Writing, &["snapshot", "seal", "D", "more"]),
    (Writing, &["snapshot", "verify", "D", "more"]),
    (Writing, &["snapshot", "destroy", "D", "more"]),
    (WritingPast, &["rollback", "D", "s"]),
    (WritingPast, &["snapshot", "destroy", "D", "s"]),
    (WritingPast, &["prune", "D"]),
    (Writing, &["defrag", "D"]),
    (Writing, &["shrink", "D", "--dry-run"]),
    (Writing, &["shrink", "D"]),
    (WritingPast, &["retention", "D", "2h"]),
];

/// A database in a state, and what ends it.
struct Case {
    place: Place,
    /// In which directory of the database.
    directory: &'static str,
    mount: Option<Child>,
    bound: Option<PathBuf>,
    /// Verbs are run as one who may only read.
    is_stranger: bool,
}

impl Case {
    fn new(state: State) -> Case {
        let place = Place::new();
        let retention = if state == State::NoHistory { "0" } else { "1h" };
        let init = ["init", "D", "--capacity", "64M", "--retention", retention];
        place.ok(&init);
        place.write("local", 20_000);
        place.ok(&["store", "create", "D", "second", "--mount", "/second"]);
        let directory = match state {
            State::SecondStore => "/second",
            _ => "",
        };
        if state != State::Empty {
            place.ok(&["put", "local", &format!("D:{directory}/f")]);
        }
        if state != State::NoHistory {
            place.ok(&["snapshot", "create", "D", "s"]);
        }
        let mut case = Case {
            place,
            directory,
            mount: None,
            bound: None,
            is_stranger: state == State::Strangers,
        };
        for place in ["ro", "rw"] {
            std::fs::create_dir(case.place.path(place)).unwrap();
        }
        match state {
            State::Mounted => case.mount(),
            State::ReadOnly => case.make_readonly(),
            State::Damaged => case.damage(),
            State::Strangers => case.make_strangers(),
            State::Empty | State::NoHistory | State::Unmounted | State::SecondStore => {}
        }
        case
    }

    fn mount(&mut self) {
        std::fs::create_dir(self.place.path("m")).unwrap();
        let mut server = self.place.command(&["mount", "D", "m"]);
        self.mount = Some(server.stdout(Stdio::null()).spawn().unwrap());
        let deadline = Instant::now() + Duration::from_secs(30);
        while !self.place.path("m/f").exists() {
            assert!(Instant::now() < deadline, "it is not mounted");
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    fn make_readonly(&mut self) {
        let path = self.place.path("D");
        run(
            "mount",
            &["--bind", path.to_str().unwrap(), path.to_str().unwrap()],
        );
        self.bound = Some(path.clone());
        run("mount", &["-o", "remount,bind,ro", path.to_str().unwrap()]);
    }

    fn make_strangers(&self) {
        let all = [("a+rX,a-w", "D"), ("a+rx", "."), ("a+rX", "local")];
        for (mode, path) in all {
            let path = self.place.path(path);
            run("chmod", &["-R", mode, path.to_str().unwrap()]);
        }
        for path in ["ro", "rw"] {
            run(
                "chown",
                &["nobody", self.place.path(path).to_str().unwrap()],
            );
        }
    }

    /// The table of counters is needed by everything.
    fn damage(&self) {
        let catalog = self.place.path("D/catalog.db");
        let root = "SELECT rootpage FROM sqlite_schema WHERE name = 'larder_meta'";
        let found = Command::new("sqlite3").arg(&catalog).arg(root).output();
        let page = String::from_utf8(found.unwrap().stdout).unwrap();
        let page: u64 = page.trim().parse().unwrap();
        let file = std::fs::File::options().write(true).open(&catalog).unwrap();
        file.write_all_at(&[0xff; 100], (page - 1) * 4096).unwrap();
    }

    fn run(&self, verb: &[&str]) -> Done {
        let word = |word: &&str| match (*word, word.strip_prefix('D')) {
            (_, Some(rest)) => format!("D{}", rest.replace(":P", &format!(":{}", self.directory))),
            ("SEQ", _) => self.newest(&["log", "D"], "seq"),
            ("TXN", _) => self.newest(&["txn", "list", "D"], "transaction"),
            _ => (*word).to_owned(),
        };
        let words: Vec<String> = verb.iter().map(word).collect();
        let mut command = self.place.command(&words);
        if self.is_stranger {
            command = as_nobody(&command);
        }
        if verb[0] != "trace" || self.mount.is_none() {
            return Done::from(command.output().unwrap());
        }
        // It looks on until something happens.
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        for round in 0.. {
            if child.try_wait().unwrap().is_some() {
                break;
            }
            assert!(round < 6000, "it hears nothing");
            // A name that the kernel has not asked for.
            std::fs::metadata(self.place.path(&format!("m/none{round}"))).unwrap_err();
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut done = Done::from(child.wait_with_output().unwrap());
        assert!(done.stderr.starts_with("larder: tracing "), "{done:?}");
        done.stderr.clear();
        done
    }

    /// A number of the first in a list; 1: there is none.
    fn newest(&self, verb: &[&str], field: &str) -> String {
        let done = self.run(&[verb, &["--json"]].concat());
        let list: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap_or_default();
        match &list[0][field] {
            serde_json::Value::Null => "1".to_owned(),
            number => number.to_string(),
        }
    }
}

impl Drop for Case {
    fn drop(&mut self) {
        if let Some(server) = &mut self.mount {
            self.place.run(&["umount", "m"]);
            server.wait().unwrap();
        }
        if let Some(bound) = &self.bound {
            let path = bound.to_str().unwrap();
            run("umount", &[path]);
        }
    }
}

/// The command as an ordinary user's.
fn as_nobody(command: &Command) -> Command {
    let mut theirs = Command::new("setpriv");
    theirs
        .args(["--reuid=nobody", "--regid=nogroup", "--clear-groups"])
        .arg(command.get_program())
        .args(command.get_args())
        .current_dir(command.get_current_dir().unwrap())
        .stdin(Stdio::null());
    theirs
}

fn run(program: &str, arguments: &[&str]) {
    let done = Command::new(program).args(arguments).output().unwrap();
    assert!(done.status.success(), "{program} {arguments:?}: {done:?}");
}

/// Every file below a directory, with its size, times and content.
fn fingerprint(directory: &Path) -> BTreeMap<PathBuf, (u64, i64, i64, Vec<u8>)> {
    let mut found = BTreeMap::new();
    for entry in std::fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        let meta = path.metadata().unwrap();
        let content = match meta.is_dir() {
            true => {
                found.extend(fingerprint(&path));
                Vec::new()
            }
            false => std::fs::read(&path).unwrap(),
        };
        found.insert(path, (meta.len(), meta.mtime(), meta.mtime_nsec(), content));
    }
    found
}

/// Why a verb fails in a state; `None`: it does not.
fn why_not(state: State, needs: Needs, verb: &[&str]) -> Option<&'static str> {
    let writes = matches!(needs, Writing | WritingFile | WritingPast);
    let needs_past = matches!(needs, Past | WritingPast);
    let needs_file = matches!(needs, File | Past | WritingFile | WritingPast);
    match state {
        _ if needs == Mount && state == State::Mounted => None,
        // It meets its mounts at a pipe that it makes.
        State::ReadOnly if needs == Mount => Some("Read-only file system"),
        State::Strangers if needs == Mount => Some("Permission denied"),
        _ if needs == Mount => Some("no mount of"),
        State::Damaged if verb[0] == "check" => Some(""),
        // It reads a directory of its own.
        State::Damaged if verb[0] == "refused" => None,
        State::Damaged if verb[0] == "umount" => Some("nothing is mounted"),
        State::Damaged => Some("the catalog is damaged"),
        State::ReadOnly | State::Strangers if writes => Some("read-only"),
        State::NoHistory if verb == ["retention", "D", "2h"] => None,
        State::NoHistory if verb == ["snapshot", "destroy", "D", "s"] => Some("does not exist"),
        State::NoHistory if needs_past => Some("history"),
        State::Empty if needs_file && verb.iter().any(|word| word.contains("P/f")) => Some("f"),
        _ => None,
    }
}

fn every_verb_on(state: State) {
    let case = Case::new(state);
    let is_readonly = matches!(state, State::ReadOnly | State::Strangers);
    let before = is_readonly.then(|| fingerprint(&case.place.path("D")));
    for (needs, verb) in VERBS {
        let began = Instant::now();
        let mut done = case.run(verb);
        let warning = match (state, verb[0]) {
            (State::Strangers, "check") => Some("warning: other users may read"),
            (State::Strangers | State::ReadOnly, "mount") if *needs == Nothing => {
                Some("warning: no log of this mount is kept")
            }
            _ => None,
        };
        if let Some(warning) = warning {
            let is_warned = |line: &str| line.contains(warning);
            assert!(done.stderr.lines().all(is_warned), "{done:?}");
            assert_eq!(done.stderr.lines().count(), 1, "{done:?}");
            done.stderr.clear();
        }
        let what = format!("{state:?}: {verb:?}");
        assert!(began.elapsed() < Duration::from_secs(60), "{what}");
        match why_not(state, *needs, verb) {
            // What another verb would have made is not there.
            Some("read-only") if !done.stderr.contains("read-only") => {
                let told = [
                    "does not exist",
                    "there is no",
                    "is not tracked",
                    "is off",
                    "snapshot 'more'",
                    "no such table",
                    "the schema belongs to user",
                    "nothing is mounted",
                ];
                let told = told.iter().find(|told| done.stderr.contains(**told));
                done.assert_failed(1, told.unwrap_or(&"read-only"), &what);
            }
            None => assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""), "{what}"),
            Some("") => assert_eq!(done.code, Some(1), "{what}: {}", done.stderr),
            // As diff(1): 1 says that there are differences.
            Some(cause) if verb[0] == "diff" => done.assert_failed(2, cause, &what),
            Some(cause) => done.assert_failed(1, cause, &what),
        }
    }
    match state {
        State::Damaged => {}
        State::ReadOnly | State::Strangers => {
            let after = fingerprint(&case.place.path("D"));
            assert!(before == Some(after), "READONLY-1");
        }
        _ => case.place.assert_clean("D"),
    }
}

#[test]
fn every_verb_works_on_an_empty_database() {
    every_verb_on(State::Empty);
}

#[test]
fn every_verb_works_without_history() {
    every_verb_on(State::NoHistory);
}

#[test]
fn every_verb_reads_a_read_only_medium_and_writes_nothing() {
    every_verb_on(State::ReadOnly);
}

#[test]
fn every_verb_reads_somebody_elses_database_and_writes_nothing() {
    let name = "verbs::every_verb_reads_somebody_elses_database_and_writes_nothing";
    if is_for_everybody(name) {
        every_verb_on(State::Strangers);
    }
}

#[test]
fn every_verb_works_beside_a_mount() {
    every_verb_on(State::Mounted);
}

#[test]
fn every_verb_works_alone() {
    every_verb_on(State::Unmounted);
}

#[test]
fn every_verb_works_in_a_second_store() {
    every_verb_on(State::SecondStore);
}

#[test]
fn every_verb_tells_of_a_damaged_catalog() {
    every_verb_on(State::Damaged);
}

/// As its owner left it in a crash, a log that nobody has copied counts; a mount shows it; another
/// writer is noticed.
#[test]
fn a_read_only_medium_with_a_log_is_read_and_mounted() {
    let mut case = Case::new(State::Unmounted);
    // A reader keeps the log from being copied.
    let mut shell = Command::new("sqlite3")
        .arg(case.place.path("D/catalog.db"))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    {
        use std::io::{BufRead, BufReader, Write};
        let input = shell.stdin.as_mut().unwrap();
        writeln!(input, "BEGIN; SELECT count(*) FROM larder_guard_switch;").unwrap();
        let mut line = String::new();
        let output = shell.stdout.as_mut().unwrap();
        BufReader::new(output).read_line(&mut line).unwrap();
    }
    let content = case.place.write("local", 300_000);
    case.place.ok(&["put", "local", "D:/late"]);
    run(
        "cp",
        &[
            "-a",
            case.place.path("D").to_str().unwrap(),
            case.place.path("E").to_str().unwrap(),
        ],
    );
    drop(shell.stdin.take());
    shell.wait().unwrap();
    std::fs::remove_dir_all(case.place.path("D")).unwrap();
    std::fs::rename(case.place.path("E"), case.place.path("D")).unwrap();
    std::fs::remove_file(case.place.path("D/catalog.db-shm")).unwrap();
    assert!(
        std::fs::metadata(case.place.path("D/catalog.db-wal"))
            .unwrap()
            .len()
            > 0
    );
    let before = fingerprint(&case.place.path("D"));
    case.make_readonly();
    assert_eq!(case.run(&["cat", "D:/late"]).stdout, content);
    std::fs::create_dir(case.place.path("m")).unwrap();
    case.run(&["mount", "D", "m"])
        .assert_failed(1, "read-only", "a mount for writing");
    let mut server = case.place.command(&["mount", "-o", "ro", "D", "m"]);
    case.mount = Some(server.stdout(Stdio::null()).spawn().unwrap());
    let deadline = Instant::now() + Duration::from_secs(30);
    while !case.place.path("m/late").exists() {
        assert!(Instant::now() < deadline, "it is not mounted");
        std::thread::sleep(Duration::from_millis(10));
    }
    assert!(std::fs::read(case.place.path("m/late")).unwrap() == content);
    let refused = std::fs::write(case.place.path("m/new"), "x").unwrap_err();
    assert_eq!(refused.raw_os_error(), Some(30), "EROFS");
    assert!(fingerprint(&case.place.path("D")) == before, "READONLY-1");
    // READONLY-2: its owner, who reaches it by another way, writes.
    let path = case.place.path("D");
    run("mount", &["-o", "remount,bind,rw", path.to_str().unwrap()]);
    case.place.ok(&["rm", "D:/late"]);
    case.place.ok(&["prune", "D"]);
    let file = std::fs::File::open(case.place.path("m/f")).unwrap();
    // What the kernel has cached may be shown; what must be read is an error.
    let failed = file.read_at(&mut [0; 100], 0).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(5), "READONLY-2");
    drop(file);
    // It is the mount of the database, not of the copy, which is gone.
    let ended = case.place.run(&["umount", "m"]);
    assert_eq!(
        (ended.code, ended.stderr.as_str()),
        (Some(0), ""),
        "{ended:?}"
    );
}
