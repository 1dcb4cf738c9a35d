//! Damaged catalogs and logs: every verb says what is damaged and what to do, and makes nothing
//! worse.

use crate::support::{Done, Place};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};

/// An `sqlite3` that reads, so that the log is neither copied nor emptied.
struct Reader {
    shell: Child,
}

impl Reader {
    fn of(place: &Place, database: &str) -> Reader {
        let mut shell = Command::new("sqlite3")
            .arg(place.path(database).join("catalog.db"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .unwrap();
        let input = shell.stdin.as_mut().unwrap();
        writeln!(input, "BEGIN; SELECT count(*) FROM larder_store;").unwrap();
        let mut line = String::new();
        BufReader::new(shell.stdout.as_mut().unwrap())
            .read_line(&mut line)
            .unwrap();
        assert_eq!(line.trim(), "1");
        Reader { shell }
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        drop(self.shell.stdin.take());
        self.shell.wait().unwrap();
    }
}

fn copy_dir(from: &Path, to: &Path) {
    let copied = Command::new("cp").arg("-a").arg(from).arg(to).status();
    assert!(copied.unwrap().success());
}

fn flip(file: &Path, offset: u64) {
    let file = std::fs::File::options()
        .read(true)
        .write(true)
        .open(file)
        .unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, offset).unwrap();
    file.write_all_at(&[byte[0] ^ 1], offset).unwrap();
}

/// `b.larder`, whose log has the puts of `/f0` to `/f5`, as after a crash.
fn crashed() -> Place {
    let place = Place::with_database();
    place.write("local", 3000);
    place.ok(&["put", "local", "a.larder:/before"]);
    let reader = Reader::of(&place, "a.larder");
    for index in 0..6 {
        place.ok(&["put", "local", &format!("a.larder:/f{index}")]);
    }
    copy_dir(&place.path("a.larder"), &place.path("b.larder"));
    drop(reader);
    place
}

#[test]
fn a_log_that_has_lost_commits_is_recovered_by_no_verb() {
    let place = crashed();
    let (catalog, log) = (
        place.path("b.larder/catalog.db"),
        place.path("b.larder/catalog.db-wal"),
    );
    flip(&log, 32 + 4120 + 500);
    let before = (
        std::fs::read(&catalog).unwrap(),
        std::fs::read(&log).unwrap(),
    );
    std::fs::create_dir(place.path("m")).unwrap();
    let verbs: &[&[&str]] = &[
        &["check", "b.larder"],
        &["check", "b.larder", "--read"],
        &["ls", "b.larder:/"],
        &["cat", "b.larder:/f0"],
        &["put", "local", "b.larder:/new"],
        &["rm", "b.larder:/f0"],
        &["find", "b.larder:/"],
        &["du", "b.larder:/"],
        &["df", "b.larder"],
        &["stats", "b.larder"],
        &["sql", "b.larder", "SELECT 1"],
        &["log", "b.larder"],
        &["snapshot", "create", "b.larder", "s"],
        &["txn", "begin", "b.larder"],
        &["defrag", "b.larder"],
        &["prune", "b.larder"],
        &["mount", "b.larder", "m"],
    ];
    for verb in verbs {
        place.fails(1, verb, "frame 2, at byte 4152, is damaged");
        let after = (
            std::fs::read(&catalog).unwrap(),
            std::fs::read(&log).unwrap(),
        );
        assert!(after == before, "LOG-6: {verb:?}");
    }
    // The advice works, on a copy: what was before.
    let told = place.run(&["check", "b.larder"]).stderr;
    let (_, advice) = told.split_once("directory: cp -a ").unwrap();
    let program = Path::new(env!("CARGO_BIN_EXE_larder")).parent().unwrap();
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap());
    let ran = Command::new("sh")
        .args(["-c", &format!("cp -a {advice}")])
        .current_dir(place.path(""))
        .env("PATH", path)
        .output()
        .unwrap();
    assert!(ran.status.success(), "{ran:?}");
    let left = place.ok(&["ls", "b.larder.copy:/"]);
    assert_eq!(left.trim(), "before");
}

#[test]
fn the_last_commit_alone_and_a_sound_log_are_recovered() {
    let place = crashed();
    let log = place.path("b.larder/catalog.db-wal");
    // The end of a session is a commit of its own, and the last one.
    let len = std::fs::metadata(&log).unwrap().len();
    flip(&log, len - 100);
    let listed = place.ok(&["ls", "b.larder:/"]);
    assert_eq!(listed.lines().count(), 7, "{listed}");
    place.assert_clean("b.larder");
}

/// Writes over the first bytes of the root page of a table.
fn damage(place: &Place, table: &str) {
    copy_dir(&place.path("a.larder"), &place.path("b.larder"));
    let root = format!("SELECT rootpage FROM sqlite_schema WHERE name = '{table}'");
    let catalog = place.path("b.larder/catalog.db");
    let found = Command::new("sqlite3").arg(&catalog).arg(root).output();
    let page: u64 = String::from_utf8(found.unwrap().stdout)
        .unwrap()
        .trim()
        .parse()
        .unwrap();
    let file = std::fs::File::options().write(true).open(&catalog).unwrap();
    file.write_all_at(&[0xff; 100], (page - 1) * 4096).unwrap();
}

#[test]
fn check_names_the_damaged_table_and_what_still_reads() {
    let place = Place::with_database();
    let content = place.write("local", 3000);
    place.ok(&["put", "local", "a.larder:/file"]);
    for (table, opens) in [
        ("larder_history", true),
        ("larder_extent", true),
        ("main_xattr", true),
        ("larder_meta", false),
        ("larder_orphan", false),
    ] {
        damage(&place, table);
        let done = place.run(&["check", "b.larder"]);
        let out = String::from_utf8(done.stdout).unwrap();
        assert_eq!(done.code, Some(1), "{table}: {out}{}", done.stderr);
        let lines: Vec<&str> = out.lines().collect();
        let headline = format!("catalog.db: table {table} is damaged: ");
        assert!(lines[0].starts_with(&headline), "{out}");
        assert_eq!(lines.len(), 2, "{out}");
        assert!(lines[1].contains("the other tables read (main, "), "{out}");
        assert!(
            lines[1].contains("restore the database from a copy"),
            "{out}"
        );
        assert!(!out.contains("larder check"), "{table}: {out}");
        let Done { code, stdout, .. } = place.run(&["cat", "b.larder:/file"]);
        assert_eq!(code == Some(0) && stdout == content, opens, "{table}");
        assert_eq!(lines[1].contains("larder needs"), !opens, "{out}");
        std::fs::remove_dir_all(place.path("b.larder")).unwrap();
    }
}

#[test]
fn a_damaged_schema_is_told_once() {
    let place = Place::with_database();
    copy_dir(&place.path("a.larder"), &place.path("b.larder"));
    let file = std::fs::File::options()
        .write(true)
        .open(place.path("b.larder/catalog.db"))
        .unwrap();
    file.write_all_at(&[0xff; 3000], 110).unwrap();
    let done = place.run(&["check", "b.larder"]);
    let out = String::from_utf8(done.stdout).unwrap();
    assert_eq!((done.code, done.stderr.as_str()), (Some(1), ""), "{out}");
    assert!(out.contains("the list of its tables is damaged"), "{out}");
    assert!(!out.contains("larder check"), "{out}");
}
