//! The extension in clients as people have them: the `sqlite3` shell and Python's `sqlite3`.
//!
//! `LARDER` names the `larder` command, and `LARDER_EXTENSION` the built library:
//! `cargo xtask test` sets both.

mod common;

use common::{Place, told, variable, write};
use std::io::{BufRead, BufReader, Write};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn the_shell_reads_files_joined_with_rows() {
    let place = Place::new("reads");
    write(&place.0.join("a.txt"), b"sun and beach");
    write(&place.0.join("b.txt"), b"rain");
    place.larder(&["cp", "a.txt", "t.larder:/a.txt"]);
    place.larder(&["cp", "b.txt", "t.larder:/b.txt"]);
    let said = place.shell(
        "CREATE TABLE rated(ino INTEGER, stars INTEGER); \
         INSERT INTO rated SELECT ino, length(content(ino)) FROM files('/*.txt'); \
         SELECT path(ino), stars FROM rated WHERE CAST(content(ino) AS TEXT) LIKE '%beach%'; \
         SELECT CAST(content('/b.txt', 1, 2) AS TEXT), content('/none') IS NULL, ino('/a.txt') > \
         1, \
         larder_time() > 1700000000000000000; SELECT count(*) FROM files('/**')",
    );
    assert_eq!(said, "/a.txt|13\nai|1|1|1\n2\n");
    place.check();
}

#[test]
fn the_shell_writes_files_in_its_own_transactions() {
    let place = Place::new("writes");
    let said = place.shell(
        "SELECT write_content('/alone', 'one'); CREATE TABLE n(p, b); \
         BEGIN; INSERT INTO n VALUES ('/a', write_content('/a', 'AAA')); \
         SELECT CAST(content('/a') AS TEXT); \
         SAVEPOINT s; SELECT write_content('/b', 'BBB'); SELECT CAST(content('/b') AS TEXT); \
         ROLLBACK TO s; SELECT content('/b') IS NULL; \
         SELECT write_content('/c', zeroblob(500000)); COMMIT; \
         BEGIN; SELECT write_content('/d', 'D'); SELECT write_content('/a', 'other'); ROLLBACK; \
         INSERT INTO n SELECT '/x' || value, write_content('/x' || value, 'v') FROM \
         json_each('[1,2]'); \
         BEGIN; SELECT write_content('/a', 'AA'), CAST(content('/a') AS TEXT); COMMIT; \
         SELECT path, size FROM files('/*'); SELECT p, b FROM n",
    );
    assert_eq!(
        said,
        "3\nAAA\n3\nBBB\n1\n500000\n1\n5\n2|AAA\n/a|2\n/alone|3\n/c|500000\n/x1|1\n/x2|1\n\
         /a|3\n/x1|1\n/x2|1\n",
        "CLIENT-1, CLIENT-6"
    );
    assert_eq!(place.larder(&["cat", "t.larder:/a"]), "AA");
    assert_eq!(place.larder(&["cat", "t.larder:/alone"]), "one");
    place.check();
}

#[test]
fn a_killed_client_leaves_nothing_of_its_transaction() {
    let place = Place::new("killed");
    place.shell("SELECT write_content('/kept', 'kept')");
    let mut child = place
        .python(
            "db.execute('BEGIN IMMEDIATE')\n\
             db.execute(\"SELECT write_content('/lost', zeroblob(3000000))\").fetchall()\n\
             db.execute(\"SELECT write_content('/kept', 'lost')\").fetchall()\n\
             db.execute('SELECT 1').fetchall()\n\
             print('ready', flush=True)\ntime.sleep(60)\n",
        )
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut byte = [0];
    let out = child.stdout.as_mut().unwrap();
    std::io::Read::read_exact(out, &mut byte).unwrap();
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(place.larder(&["cat", "t.larder:/kept"]), "kept");
    assert_eq!(place.shell("SELECT path FROM files('/*')"), "/kept\n");
    place.check();
}

#[test]
fn a_transaction_reads_its_moment_whatever_others_do() {
    let place = Place::new("moment");
    write(&place.0.join("old"), &[1; 3_000_000]);
    write(&place.0.join("new"), &[2; 3_000_000]);
    place.larder(&["cp", "old", "t.larder:/f"]);
    let mut child = place
        .python(
            "db.execute('BEGIN')\n\
             old = b'\\x01' * 3000000\n\
             assert db.execute(\"SELECT content('/f')\").fetchone()[0] == old\n\
             print('read', flush=True)\nsys.stdin.readline()\n\
             assert db.execute(\"SELECT content('/f')\").fetchone()[0] == old, 'CLIENT-4'\n\
             db.execute('COMMIT')\n\
             assert db.execute(\"SELECT content('/f')\").fetchone()[0] is None\n\
             print('done')\n",
        )
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut out = BufReader::new(child.stdout.take().unwrap());
    let mut line = String::new();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "read\n");
    // Its place would be given to these, if it were free.
    for number in 0..4 {
        place.larder(&["cp", "new", "t.larder:/f"]);
        place.larder(&["cp", "new", &format!("t.larder:/other{number}")]);
    }
    place.larder(&["rm", "t.larder:/f"]);
    place.larder(&["cp", "new", "t.larder:/other4"]);
    child.stdin.take().unwrap().write_all(b"\n").unwrap();
    line.clear();
    out.read_line(&mut line).unwrap();
    assert_eq!(line, "done\n", "CLIENT-4");
    assert!(child.wait().unwrap().success());
    place.check();
}

#[test]
fn what_does_not_fit_is_not_committed() {
    let place = Place::new("full");
    place.larder(&["init", "small.larder", "--capacity", "64M"]);
    let output = place.run(
        "sqlite3",
        &[
            "small.larder/catalog.db",
            ".load ./larder",
            "CREATE TABLE n(x); BEGIN; INSERT INTO n VALUES (1); \
             SELECT write_content('/big', randomblob(200000000)); COMMIT",
        ],
    );
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        !output.status.success()
            && said.contains("the database is full")
            && said.contains("ROLLBACK"),
        "CLIENT-5: {output:?}"
    );
    let left = "SELECT count(*), content('/big') IS NULL FROM n";
    let left = ["small.larder/catalog.db", ".load ./larder", left];
    assert_eq!(told(place.run("sqlite3", &left)), "0|1\n", "CLIENT-5");
    let check = place.larder(&["check", "small.larder", "--read"]);
    assert!(check.starts_with("clean"), "{check}");
}

#[test]
fn mistakes_are_told_in_one_line() {
    let place = Place::new("mistakes");
    place.shell("SELECT write_content('/a', 'A')");
    for (sql, part) in [
        (
            "SELECT write_content('/no/such', 'x')",
            "'no' does not exist",
        ),
        ("SELECT write_content('/a', NULL)", "is NULL"),
        ("SELECT write_content('/a', 5)", "CAST it"),
        ("SELECT content(1.5)", "number of an inode, or a path"),
        ("SELECT content('/')", "only regular files"),
        ("SELECT content('/a', -1, 2)", "from 0 on"),
        (
            "SELECT write_content('/y' || ino, 'y') FROM main",
            "BEGIN IMMEDIATE",
        ),
        ("SELECT * FROM larder_client", "not for reading"),
    ] {
        let said = place.refused(sql);
        assert!(said.contains(part), "{sql}: {said}");
        assert_eq!(said.trim_end().lines().count(), 1, "{said}");
    }
    let alone = |file: &str| {
        let output = place.run("sqlite3", &["-bail", file, ".load ./larder", "SELECT 1"]);
        assert!(!output.status.success(), "{output:?}");
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    assert!(alone(":memory:").contains("no database file open"));
    told(place.run("sqlite3", &["other.db", "CREATE TABLE t(x)"]));
    assert!(alone("other.db").contains("of another program"));
    told(place.run("cp", &["-r", "t.larder", "new.larder"]));
    told(place.run(
        "sqlite3",
        &["new.larder/catalog.db", "PRAGMA user_version = 99"],
    ));
    assert!(alone("new.larder/catalog.db").contains("newer larder"));
    told(place.run(
        "sqlite3",
        &["new.larder/catalog.db", "PRAGMA user_version = 1"],
    ));
    assert!(alone("new.larder/catalog.db").contains("older larder"));
    place.check();
}

#[test]
fn clients_and_sessions_write_side_by_side_and_none_fails() {
    let place = Place::new("crowd");
    place.shell("CREATE TABLE plain(x); CREATE TABLE log(path, bytes)");
    let mountpoint = place.0.join("mnt");
    std::fs::create_dir(&mountpoint).unwrap();
    let mut mount = Command::new(variable("LARDER"))
        .args(["mount", "t.larder", "mnt"])
        .current_dir(&place.0)
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    let is_mounted = || {
        let mounts = std::fs::read_to_string("/proc/mounts").unwrap();
        mounts.contains(&*mountpoint.to_string_lossy())
    };
    let begun = Instant::now();
    while !is_mounted() {
        assert!(begun.elapsed() < Duration::from_secs(30), "no mount");
        std::thread::sleep(Duration::from_millis(20));
    }
    let end = Instant::now() + Duration::from_secs(8);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut number = 0;
            while Instant::now() < end {
                let path = mountpoint.join(format!("m{number}"));
                write(&path, &[3; 10_000]);
                assert_eq!(std::fs::read(&path).unwrap(), [3; 10_000]);
                number += 1;
                std::thread::sleep(Duration::from_millis(5));
            }
        });
        scope.spawn(|| {
            let mut python = place.python(
                "end = time.time() + 8\nn = 0\n\
                 while time.time() < end:\n\
                 \x20   db.execute('BEGIN IMMEDIATE')\n\
                 \x20   db.execute(\"INSERT INTO log VALUES (?1, write_content(?1, ?2))\", \
                 ('/py%d' % n, b'x' * 9000))\n\
                 \x20   db.execute('COMMIT')\n    n += 1\n\
                 print(n)\n",
            );
            let count: u32 = told(python.output().unwrap()).trim().parse().unwrap();
            assert!(count > 3, "{count}");
        });
        scope.spawn(|| {
            while Instant::now() < end {
                let plain = [
                    "-bail",
                    "t.larder/catalog.db",
                    ".timeout 30000",
                    "INSERT INTO plain VALUES (1)",
                ];
                told(place.run("sqlite3", &plain)); // CLIENT-3
            }
        });
        scope.spawn(|| {
            let mut number = 0;
            write(&place.0.join("src"), &[7; 20_000]);
            while Instant::now() < end {
                place.larder(&["cp", "src", &format!("t.larder:/cli{number}")]);
                number += 1;
            }
        });
        scope.spawn(|| {
            let mut number = 0;
            while Instant::now() < end {
                place.shell(&format!(
                    "SELECT write_content('/sh{number}', zeroblob(5000))"
                ));
                number += 1;
            }
        });
    });
    let said = place.shell(
        "SELECT count(*) FROM log WHERE bytes <> 9000 OR content(path) IS NULL OR \
         length(content(path)) <> 9000; \
         SELECT (SELECT count(*) FROM files('/py*')) = (SELECT count(*) FROM log)",
    );
    assert_eq!(said, "0\n1\n", "CLIENT-3");
    // The mount shows what the client wrote.
    assert_eq!(std::fs::read(mountpoint.join("py0")).unwrap(), [b'x'; 9000]);
    place.larder(&["umount", "mnt"]);
    mount.wait().unwrap();
    place.check();
}

#[test]
fn the_command_says_where_it_lies_and_how_it_is_loaded() {
    let place = Place::new("says it's");
    write(&place.0.join("a.txt"), b"sun");
    place.larder(&["cp", "a.txt", "t.larder:/a.txt"]);
    let said = place.larder(&["extension", "t.larder"]);
    let lines: Vec<&str> = said.lines().collect();
    let [path, shell, python] = lines[..] else {
        panic!("{said}")
    };
    let built = std::path::PathBuf::from(variable("LARDER_EXTENSION"));
    assert_eq!(std::path::Path::new(path), built.canonicalize().unwrap());
    let ask = "SELECT CAST(content('/a.txt') AS TEXT)";
    let line = format!("{shell} \"{ask}\"");
    assert_eq!(told(place.run("sh", &["-c", &line])), "sun\n");
    let line = format!("{python}; print(db.execute(\"{ask}\").fetchone()[0])");
    let printed = place.run("/usr/bin/python3", &["-c", &line]);
    assert_eq!(told(printed), "sun\n");
    place.check();
}
