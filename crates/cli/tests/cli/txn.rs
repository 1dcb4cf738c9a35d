//! `larder txn`: programs in long transactions, killed at any moment.

use super::support::{Killed, Place};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const MAKEFILE: &str = "\
install:
\tmkdir -p $(DESTDIR)/bin $(DESTDIR)/share/doc
\tfor i in `seq 1 200`; do cp tool $(DESTDIR)/bin/tool$$i; ln -s tool$$i $(DESTDIR)/bin/alias$$i; \
done
\tcp Makefile $(DESTDIR)/share/doc/
\tchmod 700 $(DESTDIR)/bin/tool1
";

/// The paths of everything but the root.
fn names(place: &Place) -> Vec<String> {
    let found = place.ok(&["find", "a.larder:/"]);
    let paths = (found.lines()).map(|line| line.strip_prefix("a.larder:").unwrap().to_owned());
    paths.filter(|path| path != "/").collect()
}

fn spawn(place: &Place, arguments: &[&str]) -> Killed {
    let mut command = place.command(arguments);
    command.stdout(Stdio::null()).stderr(Stdio::null());
    Killed::spawn(&mut command)
}

/// Waits until the transactions of killed processes are gone; nothing of them is left.
fn assert_no_trace(place: &Place) {
    let patience = Instant::now();
    while !place.ok(&["txn", "list", "a.larder"]).is_empty() {
        assert!(patience.elapsed() < Duration::from_secs(20), "WORKSPACE-7");
        std::thread::sleep(Duration::from_millis(50));
    }
    let granted = place.json(&[
        "sql",
        "a.larder",
        "SELECT count(*) AS n FROM larder_extent WHERE store = 4294967295",
    ]);
    assert_eq!(granted[0]["n"], 0, "WORKSPACE-1");
    // The list is for reading, and removes nothing: that statement could have changed something.
    let left = std::fs::read_dir(place.path("a.larder/transactions")).map_or(0, Iterator::count);
    assert_eq!(left, 0, "WORKSPACE-7");
    place.assert_clean("a.larder");
}

#[test]
fn an_install_is_one_commit_and_killed_in_the_middle_leaves_no_trace() {
    let place = Place::with_database();
    place.write("tool", 20_000);
    std::fs::write(place.path("Makefile"), MAKEFILE).unwrap();
    std::fs::create_dir(place.path("opt")).unwrap();
    let destination = format!("DESTDIR={}", place.path("opt").display());
    let install = [
        "txn",
        "run",
        "a.larder",
        "--mount",
        "opt",
        "--",
        "make",
        "-s",
        "install",
        &destination,
    ];
    for delay in [150, 300, 500] {
        let mut runner = spawn(&place, &install);
        std::thread::sleep(Duration::from_millis(delay));
        runner.kill().unwrap();
        runner.wait().unwrap();
        assert_no_trace(&place);
        assert_eq!(names(&place), Vec::<String>::new());
    }
    place.ok(&install);
    let installed = names(&place);
    assert_eq!(
        installed
            .iter()
            .filter(|name| name.contains("tool"))
            .count(),
        200
    );
    assert_eq!(
        place.run(&["cat", "a.larder:/bin/tool77"]).stdout.len(),
        20_000
    );
    assert!(
        std::fs::read_dir(place.path("opt"))
            .unwrap()
            .next()
            .is_none()
    );
    assert_no_trace(&place);
}

#[test]
fn of_two_conflicting_runs_exactly_one_commits() {
    let place = Place::with_database();
    place.ok(&[
        "sql",
        "a.larder",
        "CREATE TABLE runs (id INTEGER PRIMARY KEY, by TEXT)",
    ]);
    let larder = env!("CARGO_BIN_EXE_larder");
    let database = place.path("a.larder").display().to_string();
    let script = |name: &str| {
        format!(
            "echo {name} > result && {larder} sql {database} \"INSERT INTO runs VALUES (1, \
             '{name}')\" && \
             touch '{database}/../{name}' && while [ ! -e '{database}/../go' ]; do sleep 0.05; done"
        )
    };
    let start = |name: &str| {
        let script = script(name);
        let mut command = place.command(&["txn", "run", "a.larder", "--", "sh", "-c", &script]);
        Killed::spawn(command.stdout(Stdio::piped()).stderr(Stdio::piped()))
    };
    let runs = [start("one"), start("two")];
    let patience = Instant::now();
    while !(place.path("one").exists() && place.path("two").exists()) {
        assert!(patience.elapsed() < Duration::from_secs(30));
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_eq!(names(&place), Vec::<String>::new(), "isolated");
    std::fs::write(place.path("go"), "").unwrap();
    let done: Vec<_> = runs.map(Killed::wait_with_output).into();
    let mut codes: Vec<_> = done
        .iter()
        .map(|done| done.status.code().unwrap())
        .collect();
    codes.sort_unstable();
    assert_eq!(codes, [0, 1], "{done:?}");
    let loser = done
        .iter()
        .find(|done| done.status.code() == Some(1))
        .unwrap();
    let told = String::from_utf8_lossy(&loser.stderr).into_owned();
    assert_eq!(
        told.lines().collect::<Vec<_>>(),
        [
            "larder: conflict: /result: this name was given on both sides",
            "larder: conflict: runs, id 1: a row of this key was added on both sides"
        ]
    );
    let winner = place.json(&["sql", "a.larder", "SELECT by FROM runs"])[0]["by"].clone();
    let content = place.run(&["cat", "a.larder:/result"]).stdout;
    assert_eq!(
        String::from_utf8_lossy(&content).trim(),
        winner.as_str().unwrap()
    );
    assert_no_trace(&place);
}

#[test]
fn exit_codes_and_signals_end_a_run() {
    let place = Place::with_database();
    let run = |script: &str| {
        place
            .run(&["txn", "run", "a.larder", "--", "sh", "-c", script])
            .code
    };
    assert_eq!(run("echo x > x; exit 7"), Some(7));
    assert_eq!(run("echo x > x; kill -9 $$"), Some(137));
    assert_eq!(
        place
            .run(&["txn", "run", "a.larder", "--", "no-such-program"])
            .code,
        Some(127)
    );
    assert_eq!(names(&place), Vec::<String>::new());
    // CLI-25: what is left running is ended, and the rest counts.
    assert_eq!(
        run("(sleep 60; echo late > late) & echo kept > kept"),
        Some(0)
    );
    assert_eq!(names(&place), ["/kept"]);
    // SIGTERM to the runner, whatever the program makes of it.
    let mut runner = spawn(
        &place,
        &[
            "txn",
            "run",
            "a.larder",
            "--",
            "sh",
            "-c",
            "echo x > x; trap 'exit 0' TERM; sleep 60 & wait",
        ],
    );
    std::thread::sleep(Duration::from_millis(600));
    let sent = Command::new("kill")
        .arg(runner.id().to_string())
        .status()
        .unwrap();
    assert!(sent.success());
    assert_eq!(runner.wait().unwrap().code(), Some(128 + 15), "CLI-25");
    assert_eq!(names(&place), ["/kept"]);
    // The same when the program has ended well, and what it has left running takes its time to end.
    let lingering =
        "echo x > x; (trap '' TERM; touch ../over; sleep 60) & while [ ! -e ../over ]; do :; done";
    let lingering = lingering.replace("../over", place.path("over").to_str().unwrap());
    let run = ["txn", "run", "a.larder", "--", "sh", "-c", &lingering];
    let mut runner = spawn(&place, &run);
    let patience = Instant::now();
    while !place.path("over").exists() {
        assert!(patience.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(10));
    }
    std::thread::sleep(Duration::from_millis(300));
    let sent = Command::new("kill")
        .arg(runner.id().to_string())
        .status()
        .unwrap();
    assert!(sent.success());
    assert_eq!(runner.wait().unwrap().code(), Some(128 + 15), "CLI-25");
    assert_eq!(names(&place), ["/kept"]);
    assert_no_trace(&place);
}

#[test]
fn transactions_by_hand_survive_a_kill_of_their_mount() {
    let place = Place::with_database();
    std::fs::create_dir(place.path("m")).unwrap();
    let begun = place.json(&["txn", "begin", "a.larder", "--label", "by hand"]);
    let id = begun["transaction"].to_string();
    let workspace = begun["workspace"].as_str().unwrap().to_owned();
    let inside = |arguments: &[&str]| {
        let mut command = place.command(arguments);
        command.env("LARDER_TXN", &workspace);
        command
    };
    let mut server = Killed::spawn(inside(&["mount", "a.larder", "m"]).stdout(Stdio::null()));
    let patience = Instant::now();
    while std::fs::write(place.path("m/file"), "by hand").is_err()
        || !std::fs::read_to_string("/proc/self/mountinfo")
            .unwrap()
            .contains(&workspace)
    {
        assert!(patience.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(20));
    }
    std::fs::write(place.path("m/file"), "by hand").unwrap();
    std::fs::File::open(place.path("m/file"))
        .unwrap()
        .sync_all()
        .unwrap();
    let busy = place.run(&["txn", "commit", "a.larder", &id]);
    assert_eq!(busy.code, Some(1));
    assert!(busy.stderr.contains("in use"), "{}", busy.stderr);
    server.kill().unwrap();
    server.wait().unwrap();
    let _dead = Command::new("fusermount3")
        .args(["-u", "-z"])
        .arg(place.path("m"))
        .status();
    assert_eq!(names(&place), Vec::<String>::new());
    let listed = place.json(&["txn", "list", "a.larder"]);
    assert_eq!(listed[0]["label"], "by hand");
    let done = inside(&["txn", "commit", "a.larder"]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
    assert_eq!(names(&place), ["/file"]);
    assert_eq!(place.ok(&["cat", "a.larder:/file"]), "by hand");
    assert_no_trace(&place);
}

/// kill -9 of a run and of all it has started, at any moment, beside somebody who writes.
#[test]
fn runs_are_killed_at_any_moment() {
    let place = Place::with_database();
    place.write("data", 3 << 20);
    let script = "i=0; while [ $i -lt 200 ]; do cp ../data f$i 2>/dev/null || cp \"$DATA\" f$((i \
        % 5)); rm -f f$((i-3)); i=$((i+1)); done";
    for round in 0..8_u64 {
        let mut command = place.command(&["txn", "run", "a.larder", "--", "sh", "-c", script]);
        command.env("DATA", place.path("data"));
        let mut runner = Killed::spawn(command.stdout(Stdio::null()).stderr(Stdio::null()));
        std::thread::sleep(Duration::from_millis(20 + round * 67));
        place.ok(&[
            "put",
            place.path("data").to_str().unwrap(),
            &format!("a.larder:/beside{}", round % 2),
        ]);
        runner.kill().unwrap();
        runner.wait().unwrap();
        assert_no_trace(&place);
    }
    assert_eq!(names(&place), ["/beside0", "/beside1"]);
}

/// Runs a shell script in a transaction; returns what it printed.
fn run_script(place: &Place, script: &str) -> String {
    let database = place.path("a.larder").display().to_string();
    let script = format!(
        "set -e; larder={}; db='{database}'\n{script}",
        env!("CARGO_BIN_EXE_larder")
    );
    place.ok(&["txn", "run", "a.larder", "--", "sh", "-c", &script])
}

#[test]
fn sql_inside_joins_the_transaction() {
    let place = Place::with_database();
    place.ok(&["sql", "a.larder", "CREATE TABLE note (text TEXT)"]);
    let told = run_script(
        &place,
        "echo inside > file
         $larder sql \"$db\" \"SELECT 'sees ' || size FROM files('/file')\" --csv
         $larder sql \"$db\" \"INSERT INTO note VALUES ('joined')\"
         cd \"$db/..\"
         $larder sql a.larder \"SELECT text FROM note\" --csv
         $larder put a.larder/.transaction/sessions.lock a.larder:/put
         $larder ls a.larder:/
         $larder sql a.larder \"SELECT write_content('/written', 'by sql')\" > /dev/null
         $larder txn list a.larder | wc -l",
    );
    for word in ["sees 7", "joined", "file\nput\n", "1\n"] {
        assert!(told.contains(word), "{word}: {told}");
    }
    assert_eq!(names(&place), ["/file", "/put", "/written"]);
    assert_eq!(place.ok(&["cat", "a.larder:/written"]), "by sql");
    let notes = place.json(&["sql", "a.larder", "SELECT text FROM note"]);
    assert_eq!(notes[0]["text"], "joined");
    assert_no_trace(&place);
}

/// What is done inside is seen by the view at once.
#[test]
fn commands_inside_are_seen_by_the_view() {
    let place = Place::with_database();
    place.write("local", 3000);
    let local = place.path("local").display().to_string();
    run_script(
        &place,
        &format!(
            "for i in 1 2 3 4 5; do
               [ ! -e new$i ]
               $larder put '{local}' \"$db:/new$i\"
               cmp new$i '{local}'
             done"
        ),
    );
    assert_eq!(names(&place).len(), 5);
    assert_no_trace(&place);
}

#[test]
fn the_database_is_covered_inside() {
    let place = Place::with_database();
    place.ok(&["sql", "a.larder", "CREATE TABLE note (text TEXT)"]);
    let told = run_script(
        &place,
        "ls \"$db\"
         cat \"$db\"/inside*
         sqlite3 \"$db/catalog.db\" \"INSERT INTO note VALUES ('outside')\" 2> /dev/null && exit 3
         touch \"$db/new\" 2> /dev/null && exit 4
         env -u LARDER_TXN $larder sql \"$db\" \"INSERT INTO note VALUES ('outside')\" 2>&1 && \
         exit 5
         env -u LARDER_TXN $larder put /dev/null \"$db:/outside\" 2> /dev/null && exit 6
         $larder mount \"$db\" . 2>&1 && exit 7
         echo kept > kept",
    );
    assert!(
        told.starts_with("inside 'larder txn run' use 'larder sql'"),
        "{told}"
    );
    assert!(told.contains("keep LARDER_TXN"), "{told}");
    assert_eq!(names(&place), ["/kept"]);
    let notes = place.json(&["sql", "a.larder", "SELECT count(*) AS n FROM note"]);
    assert_eq!(notes[0]["n"], 0);
    // Nobody else sees the cover, and a mount at a place of its own shows the view.
    assert!(place.path("a.larder/catalog.db").exists());
    std::fs::create_dir(place.path("m")).unwrap();
    let script = format!(
        "cat '{}/kept' && echo 2 > '{0}/kept'",
        place.path("m").display()
    );
    let shown = place.ok(&[
        "txn", "run", "a.larder", "--mount", "m", "--", "sh", "-c", &script,
    ]);
    assert_eq!(shown, "kept\n");
    assert_eq!(place.ok(&["cat", "a.larder:/kept"]), "2\n");
    assert_no_trace(&place);
}

/// The server of a `txn run` of root's keeps what it needs; the program has what root has.
#[test]
fn a_program_keeps_the_privileges_that_its_server_gives_up() {
    if !rustix::process::geteuid().is_root() {
        return eprintln!("not tested: only root has privileges to give up");
    }
    let place = Place::with_database();
    let fields = |text: &str, name: &str| -> Vec<u64> {
        let found = text.lines().filter_map(|line| line.strip_prefix(name));
        found
            .map(|held| u64::from_str_radix(held.trim(), 16).unwrap())
            .collect()
    };
    let own = std::fs::read_to_string("/proc/self/status").unwrap();
    // The thread that has started it ends beside it.
    let script = "cat /proc/self/status > own; \
                  for look in $(seq 100); do cat /proc/$PPID/task/*/status > server; \
                  grep -qxF \"$(grep ^CapPrm own)\" server || break; sleep 0.1; done; \
                  setpriv --reuid 4711 --clear-groups sleep 60 & sleep 0.3";
    let began = Instant::now();
    place.ok(&["txn", "run", "a.larder", "--", "sh", "-c", script]);
    assert!(
        began.elapsed() < Duration::from_secs(40),
        "CLI-42: it ends programs of others"
    );
    let read = |name: &str| place.ok(&["cat", &format!("a.larder:/{name}")]);
    let (program, server) = (read("own"), read("server"));
    for set in ["CapPrm:", "CapEff:", "CapBnd:", "NoNewPrivs:"] {
        assert_eq!(fields(&program, set), fields(&own, set), "CLI-42: {set}");
    }
    // chown, dac_override, dac_read_search, fowner, fsetid, kill, sys_ptrace, sys_admin
    for set in ["CapPrm:", "CapEff:", "CapBnd:"] {
        let held = fields(&server, set);
        assert!(held.len() > 3, "{server}");
        assert!(
            held.iter().all(|held| held & !0x28_003f == 0),
            "CLI-42: {set} {held:x?}"
        );
    }
    assert!(
        fields(&server, "NoNewPrivs:")
            .iter()
            .all(|is_set| *is_set == 1),
        "CLI-42"
    );
    place.assert_clean("a.larder");
}
