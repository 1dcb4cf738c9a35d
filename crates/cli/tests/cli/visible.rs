//! Read your writes: what was done is seen by whoever looks next, on the mount, by commands, by
//! plain SQL.

use crate::mount::{Foreground, serve};
use crate::support::{Done, Place};
use rustix::process::Signal;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// Much longer than the two seconds that a command waits for a mount.
const BOUND: Duration = Duration::from_secs(12);

/// One value by the plain shell, which is no session.
fn plain_sql(place: &Place, statement: &str) -> String {
    let done = Command::new("sqlite3")
        .args(["-cmd", ".timeout 30000"])
        .arg(place.path("a.larder/catalog.db"))
        .arg(statement)
        .output()
        .unwrap();
    assert!(done.status.success(), "{done:?}");
    String::from_utf8(done.stdout).unwrap().trim().to_owned()
}

fn size_of(place: &Place, path: &str) -> String {
    plain_sql(
        place,
        &format!("SELECT size FROM main JOIN main_path USING (ino) WHERE path = '{path}'"),
    )
}

fn sync(path: &Path) {
    fs::File::open(path).unwrap().sync_all().unwrap();
}

/// `COMMIT-5`
#[test]
fn rows_of_an_idle_mount_are_there_at_once() {
    let place = Place::new();
    let mount = serve(&place, &[]);
    let mut waited: Vec<Duration> = (0..9)
        .map(|round| {
            let name = format!("file{round}");
            fs::write(place.path("mnt").join(&name), "content").unwrap();
            let written = Instant::now();
            while size_of(&place, &format!("/{name}")) != "7" {
                assert!(written.elapsed() < BOUND);
            }
            std::thread::sleep(Duration::from_millis(50));
            written.elapsed() - Duration::from_millis(50)
        })
        .collect();
    waited.sort_unstable();
    println!("rows after {waited:?}");
    // Never before a commit interval, 100 ms, if nobody looked whether the mount is idle. The
    // machine may be busy.
    assert!(
        waited[2] < Duration::from_millis(80),
        "COMMIT-5: {waited:?}"
    );
    drop(mount);
}

/// `COMMIT-5`: a stream of changes is committed by its interval.
#[test]
fn a_stream_of_changes_costs_no_more_commits() {
    let place = Place::new();
    let mount = serve(&place, &[]);
    sync(&place.path("mnt"));
    let count = || {
        plain_sql(
            &place,
            "SELECT value FROM larder_meta WHERE key = 'commit_seq'",
        )
        .parse::<u64>()
        .unwrap()
    };
    let before = count();
    let began = Instant::now();
    let (mut last, mut gaps) = (began, 0);
    for number in 0.. {
        if began.elapsed() > Duration::from_secs(2) {
            break;
        }
        fs::write(place.path("mnt").join(format!("f{number}")), "x").unwrap();
        std::thread::sleep(Duration::from_millis(2));
        // What this machine does to us.
        gaps += u64::from(last.elapsed() > Duration::from_millis(9));
        last = Instant::now();
    }
    let commits = count() - before;
    println!("{commits} commits in 2 s, {gaps} gaps");
    assert!(
        commits <= 22 + gaps,
        "COMMIT-5: {commits} commits, {gaps} gaps"
    );
    drop(mount);
}

#[test]
fn a_sync_of_any_file_or_directory_makes_rows_visible() {
    let place = Place::new();
    let mount = serve(&place, &[]);
    for round in 0..10 {
        let directory = place.path(&format!("mnt/dir{round}"));
        fs::create_dir(&directory).unwrap();
        for file in ["a", "b", "c"] {
            fs::write(directory.join(file), vec![1; 5000]).unwrap();
        }
        // As sync(1) does with a file: without having written by this descriptor.
        sync(&directory.join("c"));
        assert_eq!(size_of(&place, &format!("/dir{round}/c")), "5000");
        fs::rename(directory.join("c"), directory.join("d")).unwrap();
        sync(&directory.join("d"));
        assert_eq!(size_of(&place, &format!("/dir{round}/d")), "5000");
        fs::write(directory.join("a"), vec![1; 6000]).unwrap();
        fs::remove_file(directory.join("b")).unwrap();
        sync(&directory);
        assert_eq!(size_of(&place, &format!("/dir{round}/a")), "6000");
        assert_eq!(size_of(&place, &format!("/dir{round}/b")), "");
        // Of a directory that nobody has changed: all the same.
        fs::write(directory.join("e"), vec![1; 70_000]).unwrap();
        sync(&place.path("mnt"));
        assert_eq!(size_of(&place, &format!("/dir{round}/e")), "70000");
    }
    drop(mount);
}

/// `CLI-32`: commands that read see what was done before, however busy the mount is.
#[test]
fn commands_see_what_was_just_written() {
    let place = Place::new();
    let mount = serve(&place, &[]);
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let busy = scope.spawn(|| {
            let mut number = 0;
            while !over.load(std::sync::atomic::Ordering::SeqCst) {
                fs::write(
                    place.path("mnt").join(format!("busy{}", number % 50)),
                    [7; 3000],
                )
                .unwrap();
                number += 1;
            }
        });
        for round in 0..4 {
            let name = format!("new{round}");
            fs::write(place.path("mnt").join(&name), vec![2; 4000]).unwrap();
            let statement =
                format!("SELECT size FROM main_path JOIN main USING (ino) WHERE path = '/{name}'");
            let rows = place.json(&["sql", "a.larder", &statement]);
            assert_eq!(rows[0]["size"], 4000, "CLI-32");
            let address = format!("a.larder:/{name}");
            assert_eq!(place.run(&["cat", &address]).stdout.len(), 4000, "CLI-32");
        }
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        busy.join().unwrap();
    });
    drop(mount);
}

/// `CLI-31`, `FUSE-18`: what a command did is seen by the mounts when it has ended.
#[test]
fn what_a_command_did_is_seen_by_every_mount() {
    let place = Place::new();
    let mount = serve(&place, &[]);
    fs::create_dir(place.path("second")).unwrap();
    let second = serve_at(&place, "second");
    let both = [place.path("mnt"), place.path("second")];
    let read = |name: &str| -> Vec<Option<Vec<u8>>> {
        both.iter().map(|at| fs::read(at.join(name)).ok()).collect()
    };
    let is = |content: &str| vec![Some(content.as_bytes().to_vec()); 2];
    place.ok(&[
        "sql",
        "a.larder",
        "ALTER TABLE main ADD COLUMN rating INTEGER",
    ]);
    fs::write(place.path("local"), "local").unwrap();
    for round in 0..5 {
        let name = |what: &str| format!("{what}{round}");
        let at = |what: &str| format!("a.larder:/{what}{round}");
        // That it is not there is remembered by the kernel.
        assert_eq!(read(&name("put")), [None, None]);
        place.ok(&["put", "local", &at("put")]);
        assert_eq!(
            read(&name("put")),
            is("local"),
            "CLI-31, FUSE-18: put, {round}"
        );
        assert_eq!(read(&name("copy")), [None, None]);
        place.ok(&["cp", &at("put"), &at("copy")]);
        assert_eq!(read(&name("copy")), is("local"), "CLI-31: cp, {round}");
        assert_eq!(read(&name("moved")), [None, None]);
        place.ok(&["mv", &at("copy"), &at("moved")]);
        assert_eq!(read(&name("copy")), [None, None], "CLI-31: mv, {round}");
        assert_eq!(read(&name("moved")), is("local"), "CLI-31: mv, {round}");
        place.ok(&["rm", &at("moved")]);
        assert_eq!(read(&name("moved")), [None, None], "CLI-31: rm, {round}");
        let commit = place.json(&["log", "a.larder"]);
        let seq = commit[0]["seq"]
            .as_u64()
            .unwrap_or_else(|| panic!("{commit}"));
        place.ok(&["undo", "a.larder", &seq.to_string()]);
        assert_eq!(read(&name("moved")), is("local"), "CLI-31: undo, {round}");
        place.ok(&["rm", &at("moved")]);
        assert_eq!(read(&name("moved")), [None, None]);
        let past = format!("a.larder@seq:{}:/moved{round}", seq - 1);
        place.ok(&["restore", &past]);
        assert_eq!(
            read(&name("moved")),
            is("local"),
            "CLI-31: restore, {round}"
        );
        let write = format!("SELECT write_content('/put{round}', 'by sql')");
        place.ok(&["sql", "a.larder", &write]);
        assert_eq!(read(&name("put")), is("by sql"), "CLI-31: sql, {round}");
        let update = format!("UPDATE main SET rating = {round}");
        place.ok(&["sql", "a.larder", &update]);
        let rating = |at: &Path| {
            let mut value = [0; 64];
            let path = at.join(name("put"));
            let length = rustix::fs::getxattr(&path, "user.column.rating", &mut value[..]).unwrap();
            String::from_utf8_lossy(&value[..length]).into_owned()
        };
        for at in &both {
            assert_eq!(rating(at), round.to_string(), "CLI-31: rows, {round}");
        }
    }
    drop(second);
    drop(mount);
}

fn serve_at(place: &Place, mountpoint: &str) -> Foreground {
    Foreground::start(place, &["mount", "a.larder", mountpoint], mountpoint)
}

/// A mount that does not answer is named; nobody waits for it for long.
#[test]
fn a_stopped_mount_is_named_and_not_waited_for() {
    let place = Place::new();
    let mount = serve(&place, &[]);
    fs::write(place.path("mnt/file"), "content").unwrap();
    sync(&place.path("mnt"));
    // It has the writer lock no more.
    std::thread::sleep(Duration::from_millis(300));
    mount.signal(Signal::STOP);
    let began = Instant::now();
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "file\n");
    let done = place.run(&["sql", "a.larder", "UPDATE main SET mode = mode"]);
    assert_named(&done, &place.path("mnt"), "CLI-31");
    fs::write(place.path("local"), "local").unwrap();
    assert_named(
        &place.run(&["put", "local", "a.larder:/new"]),
        &place.path("mnt"),
        "CLI-31",
    );
    assert!(began.elapsed() < BOUND, "{:?}", began.elapsed());
    mount.signal(Signal::CONT);
    let patience = Instant::now();
    while fs::read(place.path("mnt/new")).is_err() {
        assert!(patience.elapsed() < BOUND);
        std::thread::sleep(Duration::from_millis(5));
    }
    place.ok(&["put", "local", "a.larder:/newer"]);
    assert_eq!(fs::read(place.path("mnt/newer")).unwrap(), b"local");
    drop(mount);
}

fn assert_named(done: &Done, mountpoint: &Path, what: &str) {
    assert_eq!(done.code, Some(0), "{what}: {done:?}");
    assert_eq!(done.stderr.lines().count(), 1, "{what}: {done:?}");
    let name = mountpoint.display().to_string();
    assert!(done.stderr.contains(&name), "{what}: {done:?}");
}

/// `CLI-32`, `SESSION-8`: one that was stopped with uncommitted changes.
#[test]
fn who_reads_goes_on_with_what_is_committed() {
    let place = Place::new();
    let mount = serve(&place, &[]);
    fs::write(place.path("mnt/first"), "committed").unwrap();
    sync(&place.path("mnt"));
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for number in 0_u64.. {
                if over.load(std::sync::atomic::Ordering::SeqCst) {
                    break;
                }
                // Fails when the mount is gone.
                if fs::write(place.path("mnt").join(format!("w{}", number % 9)), "x").is_err() {
                    break;
                }
            }
        });
        std::thread::sleep(Duration::from_millis(200));
        mount.signal(Signal::STOP);
        let began = Instant::now();
        let read = place.run(&["cat", "a.larder:/first"]);
        let rows = place.run(&[
            "sql",
            "a.larder",
            "SELECT count(*) FROM main_path WHERE path = '/first'",
        ]);
        let waited = began.elapsed();
        mount.signal(Signal::CONT);
        over.store(true, std::sync::atomic::Ordering::SeqCst);
        writer.join().unwrap();
        assert_eq!(read.stdout, b"committed", "CLI-32, SESSION-8: {read:?}");
        assert!(
            rows.stdout.ends_with(b"1\n") && rows.code == Some(0),
            "CLI-32: {rows:?}"
        );
        for done in [&read, &rows] {
            assert!(done.stderr.lines().count() <= 1, "CLI-32: {done:?}");
        }
        assert!(waited < BOUND, "CLI-32: {waited:?}");
    });
    drop(mount);
    place.assert_clean("a.larder");
}

/// `CLI-32`, `READONLY-4`: a process that has the catalog's write lock and does not give it back,
/// as one that was stopped in the middle of a commit.
#[test]
fn who_reads_needs_no_lock_that_another_process_has() {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--capacity", "64M", "--retention", "1h"]);
    place.write("f", 300_000);
    place.ok(&["cp", "f", "a.larder:/f"]);
    place.ok(&["snapshot", "create", "a.larder", "s"]);
    place.ok(&["mkdir", "a.larder:/d"]);
    let select = "SELECT path, size FROM main_path JOIN main USING (ino) ORDER BY path";
    let verbs: [&[&str]; 12] = [
        &["ls", "a.larder:/"],
        &["ls", "a.larder@s:/"],
        &["cat", "a.larder:/f"],
        &["find", "a.larder:/"],
        &["get", "a.larder:/f", "got"],
        &["du", "a.larder:/"],
        &["df", "a.larder"],
        &["log", "a.larder:/f"],
        &["diff", "a.larder@s:/", "a.larder:/"],
        &["sql", "--read-only", "a.larder", select],
        &["sql", "a.larder", select],
        &["stat", "a.larder:/f"],
    ];
    let free = verbs.map(|verb| place.run(verb));
    fs::remove_file(place.path("got")).unwrap();

    let catalog = rusqlite::Connection::open(place.path("a.larder/catalog.db")).unwrap();
    catalog.execute_batch("BEGIN IMMEDIATE").unwrap();
    let began = Instant::now();
    let done: Vec<Done> = std::thread::scope(|scope| {
        let run = |verb| {
            let place = &place;
            scope.spawn(move || place.run(verb))
        };
        let started: Vec<_> = verbs.iter().map(|verb| run(*verb)).collect();
        started.into_iter().map(|one| one.join().unwrap()).collect()
    });
    let waited = began.elapsed();
    let held_by = format!("it is held by process {} ('", std::process::id());
    for ((verb, free), locked) in verbs.iter().zip(&free).zip(&done) {
        let (wanted, found) = (&free.stdout, &locked.stdout);
        assert_eq!(
            (locked.code, found),
            (free.code, wanted),
            "CLI-32: {verb:?} {locked:?}"
        );
        let lines: Vec<&str> = locked.stderr.lines().collect();
        assert_eq!(lines.len(), 1, "CLI-32: {verb:?} {locked:?}");
        // Of those that come at once, one waits for the lock, and others for that one.
        let is_told = lines[0].ends_with("; going on with what is committed");
        assert!(is_told, "CLI-32: {verb:?} {locked:?}");
    }
    assert!(
        done.iter().any(|one| one.stderr.contains(&held_by)),
        "CLI-32: {done:?}"
    );
    assert_eq!(
        fs::read(place.path("got")).unwrap(),
        fs::read(place.path("f")).unwrap()
    );
    let refused: [&[&str]; 3] = [
        &["ls", "a.larder:/", "--timeout", "5"],
        &["log", "a.larder:/f", "--timeout", "5"],
        &["mkdir", "a.larder:/e", "--timeout", "5"],
    ];
    for verb in refused {
        let late = place.run(verb);
        let is_told = late.stderr.contains(&held_by);
        assert!(
            late.code == Some(124) && is_told,
            "CLI-32: {verb:?} {late:?}"
        );
    }
    let write = &["sql", "a.larder", "CREATE TABLE mine (a)"];
    let refused = place.run(write);
    let is_told = refused.stderr.contains("the session is read-only");
    assert!(refused.code == Some(1) && is_told, "CLI-32: {refused:?}");
    // Each of them waited for a minute, and failed.
    assert!(waited < Duration::from_secs(30), "CLI-32: {waited:?}");
    catalog.execute_batch("ROLLBACK").unwrap();
    drop(catalog);
    place.ok(&["ls", "a.larder:/"]);
    place.assert_closed("a.larder");
}

/// `CLI-32`: locks that are needed before a session can be born at all: the catalog itself, and
/// the door to the sessions.
#[test]
fn who_reads_needs_no_catalog_that_another_process_has_alone() {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--capacity", "64M"]);
    place.write("f", 300_000);
    place.ok(&["cp", "f", "a.larder:/f"]);
    let held_by = format!("it is held by process {} ('", std::process::id());
    let assert_goes_on = || {
        for verb in [&["ls", "a.larder:/"], &["cat", "a.larder:/f"]] {
            let began = Instant::now();
            let done = place.run(verb);
            assert!(began.elapsed() < BOUND, "CLI-32: {verb:?}");
            assert_eq!(done.code, Some(0), "CLI-32: {verb:?} {done:?}");
            let lines: Vec<&str> = done.stderr.lines().collect();
            assert_eq!(lines.len(), 1, "CLI-32: {verb:?} {done:?}");
            let is_told = lines[0].contains(&held_by)
                && lines[0].ends_with("; going on with what is committed");
            assert!(is_told, "CLI-32: {verb:?} {done:?}");
        }
        let late = place.run(&["ls", "a.larder:/", "--timeout", "3"]);
        let is_told = late.code == Some(124) && late.stderr.contains(&held_by);
        assert!(is_told, "CLI-32: {late:?}");
    };
    let alone = rusqlite::Connection::open(place.path("a.larder/catalog.db")).unwrap();
    (alone.pragma_update(None, "locking_mode", "EXCLUSIVE")).unwrap();
    alone.execute_batch("BEGIN IMMEDIATE").unwrap();
    assert_goes_on();
    alone.execute_batch("ROLLBACK").unwrap();
    drop(alone);
    let door = fs::File::open(place.path("a.larder/sessions.lock")).unwrap();
    door.lock().unwrap();
    assert_goes_on();
    drop(door);
    place.ok(&["ls", "a.larder:/"]);
    place.assert_closed("a.larder");
}
