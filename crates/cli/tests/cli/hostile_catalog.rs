//! Databases of strangers whose catalogs were made to harm: every verb ends in bounded time and
//! memory, says what is wrong in one line, and touches nothing outside (SAFE-1 to SAFE-8). The
//! corpus of all of it is [`crate::hostile`].

use crate::hostile::damage::{ENDLESS, full, owner};
use crate::hostile::sandbox::copy_tree;
use crate::support::{Done, Place, peak_memory};
use larder::format::limits::{STORES_MAX, STORES_OPEN_MAX};
use rusqlite::Connection;
use std::fs;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

/// How long a verb may compute. The clock on the wall would count what others do meanwhile.
const PROCESSOR_MAX: Duration = Duration::from_secs(10);
/// How long it may take, others and waiting included.
const TIME_MAX: Duration = Duration::from_secs(100);
/// How much memory, bytes.
const MEMORY_MAX: u64 = 512 << 20;
/// Verbs of each case in CI.
const FEW: [&[&str]; 3] = [
    &["check", "x.larder"],
    &["put", "a", "x.larder:/new"],
    &["ls", "-lR", "x.larder:/"],
];
/// What verbs took.
#[derive(Default)]
pub struct Figures {
    run_count: usize,
    slowest: (Duration, String),
    largest: (u64, String),
    failed: Vec<String>,
}

/// The database of `full`, copied to `x.larder` and changed by SQL as its owner may.
pub fn hostile(place: &Place, change: impl FnOnce(&Connection)) {
    let copied = place.path("x.larder");
    if copied.exists() {
        fs::remove_dir_all(&copied).unwrap();
    }
    copy_tree(&place.path("a.larder"), &copied);
    let owner = owner(&copied.join("catalog.db"));
    change(&owner);
}

/// Runs a verb within the bounds.
pub fn run(place: &Place, verb: &[&str], what: &str, figures: &mut Figures) -> Done {
    for left in ["out", "tree"] {
        let left = place.path(left);
        // It need not be there.
        let _ = fs::remove_dir_all(&left).or_else(|_| fs::remove_file(&left));
    }
    let (stdout, stderr) = (place.path("stdout"), place.path("stderr"));
    let mut command: Command = place.command(verb);
    command
        .stdout(Stdio::from(fs::File::create(&stdout).unwrap()))
        .stderr(Stdio::from(fs::File::create(&stderr).unwrap()));
    let began = Instant::now();
    let mut child = command.spawn().unwrap();
    let (mut memory, mut took) = (0, Duration::ZERO);
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break Some(status);
        }
        memory = memory.max(peak_memory(&child).unwrap_or(0));
        took = processor_time(child.id()).unwrap_or(took);
        if took > PROCESSOR_MAX || began.elapsed() > TIME_MAX {
            child.kill().unwrap();
            child.wait().unwrap();
            break None;
        }
        std::thread::sleep(Duration::from_millis(3));
    };
    let name = format!("{what}: larder {}", verb.join(" "));
    let done = Done {
        code: status.and_then(|status| status.code()),
        stdout: fs::read(stdout).unwrap(),
        stderr: String::from_utf8_lossy(&fs::read(stderr).unwrap()).into_owned(),
    };
    let said = done.stderr.as_str();
    let why = match done.code {
        None => Some("ended by a signal, or not at all"),
        Some(0..=3) if said.contains("panicked") => Some("panicked"),
        Some(0..=3) if memory > MEMORY_MAX => Some("took too much memory"),
        Some(1..=3) if said.is_empty() && done.stdout.is_empty() => Some("said nothing"),
        Some(0..=3) => None,
        Some(_) => Some("ended with another code"),
    };
    let outside = fs::read_dir(place.path("outside")).unwrap().count();
    if let Some(why) = why.or((outside != 1).then_some("touched what is outside")) {
        let said: String = said.chars().take(300).collect();
        figures
            .failed
            .push(format!("{name}: {why} ({:?}): {said}", done.code));
    }
    figures.run_count += 1;
    if took > figures.slowest.0 {
        figures.slowest = (took, name.clone());
    }
    if memory > figures.largest.0 {
        figures.largest = (memory, name);
    }
    done
}

/// What all threads of a process have computed, ± 10 ms; none when it has ended.
fn processor_time(pid: u32) -> Option<Duration> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // Behind the name, which may hold anything: the state is field 3, utime 14, stime 15.
    let (_, fields) = stat.rsplit_once(')')?;
    let ticks: u64 = fields
        .split_whitespace()
        .skip(11)
        .take(2)
        .map(|ticks| ticks.parse::<u64>().unwrap())
        .sum();
    // USER_HZ is 100 for every program.
    Some(Duration::from_millis(ticks * 10))
}

impl Figures {
    pub fn assert_bounded(&self) {
        println!(
            "{} runs; longest {:.2} s of a processor ({}); largest {} MiB ({})",
            self.run_count,
            self.slowest.0.as_secs_f64(),
            self.slowest.1,
            self.largest.0 >> 20,
            self.largest.1
        );
        assert!(
            self.failed.is_empty(),
            "{} runs:\n{}",
            self.failed.len(),
            self.failed.join("\n")
        );
    }
}

/// `sql` with the guard switch open.
pub fn behind_the_guards(owner: &Connection, sql: &str) {
    owner
        .execute_batch(&format!(
            "UPDATE larder_guard_switch SET open = 1; {sql}; UPDATE larder_guard_switch SET open \
            = 0"
        ))
        .unwrap();
}

#[test]
fn the_name_of_a_store_is_no_sql() {
    let place = full();
    let evil = place.path("outside/evil.db");
    for quote in ["", "\"", "'"] {
        let name = format!(
            "x{quote}\n;ATTACH '{}' AS e; CREATE TABLE e.t (x);--",
            evil.display()
        );
        hostile(&place, |owner| {
            behind_the_guards(owner, "SELECT 1");
            owner
                .execute_batch("UPDATE larder_guard_switch SET open = 1")
                .unwrap();
            owner
                .execute(
                    "INSERT INTO larder_store (id, name, provider, mount, table_store, next_ino) \
                     VALUES (7, ?1, 'files', '/x', 7, 2)",
                    [&name],
                )
                .unwrap();
            owner
                .execute_batch("UPDATE larder_guard_switch SET open = 0")
                .unwrap();
        });
        let mut figures = Figures::default();
        for verb in [
            &["check", "x.larder"][..],
            &["txn", "run", "x.larder", "--", "true"],
            &["clone", "x.larder:/a", "x.larder:/b"],
            &["sql", "x.larder", "SELECT 1"],
        ] {
            let done = run(&place, verb, &name, &mut figures);
            done.assert_failed(1, "the name of a store is", "SAFE-1");
        }
        figures.assert_bounded();
    }
}

#[test]
fn code_on_system_tables_is_refused_by_name() {
    let place = full();
    let mut figures = Figures::default();
    for (sql, named) in [
        (
            format!("CREATE TRIGGER evil AFTER INSERT ON larder_session BEGIN {ENDLESS}; END"),
            "'evil' on larder_session",
        ),
        (
            "CREATE INDEX evil ON larder_meta (length(hex(value)))".into(),
            "'evil' on larder_meta",
        ),
        (
            format!("DROP TABLE larder_hold; CREATE VIEW larder_hold AS {ENDLESS}"),
            "larder_hold",
        ),
        (
            "UPDATE sqlite_schema SET sql = replace(sql, 'seq INTEGER NOT NULL,', 'seq INTEGER \
             NOT NULL, \
             g INTEGER AS (length(hex(zeroblob(400000000)))),') WHERE name = 'larder_orphan'"
                .into(),
            "larder_orphan",
        ),
        (
            "DROP TRIGGER larder_main_guard; CREATE TRIGGER larder_main_guard AFTER UPDATE ON main \
             BEGIN UPDATE main_content SET inline = x'00'; END"
                .into(),
            "larder_main_guard",
        ),
        // The row says a harmless thing, and the text, which SQLite believes, another.
        (
            "INSERT INTO sqlite_schema VALUES ('view', 'harmless', 'harmless', 0, \
             'CREATE TRIGGER evil AFTER INSERT ON larder_session BEGIN SELECT 1; END')"
                .into(),
            "harmless",
        ),
        (
            "UPDATE sqlite_schema SET sql = CAST(x'435245415445205461626c6520ff' AS TEXT) WHERE \
             name = 'album'"
                .into(),
            "schema",
        ),
    ] {
        hostile(&place, |owner| owner.execute_batch(&sql).unwrap());
        for verb in FEW {
            let done = run(&place, verb, &sql, &mut figures);
            assert_eq!(done.code, Some(1), "SAFE-3: {sql}: {done:?}");
            // What is damage for SQLite itself, `check` lists.
            let told = format!("{}{}", done.stderr, String::from_utf8_lossy(&done.stdout));
            assert!(told.contains(named), "SAFE-3: {sql}: {told}");
        }
    }
    figures.assert_bounded();
}

/// A trigger of the user's on a file's row ran behind the open guard switch.
#[test]
fn a_trigger_changes_nothing_that_only_larder_may() {
    let place = full();
    let before = place.run(&["cat", "a.larder:/a"]).stdout;
    for change in [
        "UPDATE main_content SET inline = x'68'",
        "UPDATE main SET size = 1 WHERE ino <> NEW.ino",
        "DELETE FROM larder_extent",
        "REPLACE INTO larder_meta VALUES ('commit_seq', 1)",
        "UPDATE larder_guard_switch SET open = 1",
    ] {
        hostile(&place, |owner| {
            let trigger = format!("CREATE TRIGGER evil AFTER INSERT ON main BEGIN {change}; END");
            owner.execute_batch(&trigger).unwrap();
        });
        let mut figures = Figures::default();
        let done = run(&place, &["put", "a", "x.larder:/new"], change, &mut figures);
        assert_eq!(done.code, Some(1), "SAFE-6: {change}");
        assert!(done.stderr.contains("'evil'"), "SAFE-6: {}", done.stderr);
        assert_eq!(place.run(&["cat", "x.larder:/a"]).stdout, before, "SAFE-6");
        let told = place.ok(&["check", "x.larder", "--read"]);
        assert!(told.contains("trigger 'evil' on main"), "{told}");
        figures.assert_bounded();
    }
}

/// The owner is told what code his schema has: views run where somebody reads them, as triggers do
/// where somebody writes.
#[test]
fn a_check_names_the_triggers_and_views_of_users() {
    let place = full();
    hostile(&place, |owner| {
        let code = "CREATE VIEW best AS SELECT * FROM album;
            CREATE VIEW \"odd\u{202e}\nname\" AS SELECT 1;
            CREATE TRIGGER noted AFTER UPDATE ON album BEGIN SELECT 1; END;
            CREATE TRIGGER through INSTEAD OF INSERT ON best BEGIN SELECT 1; END";
        owner.execute_batch(code).unwrap();
    });
    let told = place.run(&["check", "x.larder"]);
    assert_eq!(told.code, Some(0), "{told:?}");
    let text = String::from_utf8(told.stdout).unwrap() + &told.stderr;
    for what in [
        "view 'best'",
        "trigger 'noted' on album",
        "trigger 'through' on best",
    ] {
        assert!(text.contains(what), "{what} is not in: {text}");
    }
    assert!(!text.contains("odd\u{202e}"), "CLI-41: {text}");
    assert_eq!(text.matches("view 'odd").count(), 1, "{text}");
}

#[test]
fn what_never_ends_is_ended_and_named() {
    let place = full();
    hostile(&place, |owner| {
        let trigger = format!("CREATE TRIGGER slow AFTER INSERT ON main BEGIN {ENDLESS}; END");
        owner.execute_batch(&trigger).unwrap();
    });
    let mut figures = Figures::default();
    let done = run(
        &place,
        &["put", "a", "x.larder:/new"],
        "SAFE-7",
        &mut figures,
    );
    assert_eq!(done.code, Some(1), "SAFE-7");
    assert!(
        done.stderr.contains("trigger 'slow'"),
        "SAFE-7: {}",
        done.stderr
    );
    let done = run(&place, &["rm", "x.larder:/a"], "SAFE-7", &mut figures);
    assert_eq!(done.code, Some(0), "SAFE-7: {}", done.stderr);
    hostile(&place, |owner| {
        let column =
            "ALTER TABLE main ADD COLUMN g AS (length(hex(zeroblob(400000000)))) CHECK (g > 0)";
        owner.execute_batch(column).unwrap();
    });
    for verb in FEW {
        run(&place, verb, "a generated column", &mut figures);
    }
    figures.assert_bounded();
}

#[test]
fn directories_in_themselves_are_told_not_walked() {
    let place = full();
    let mut figures = Figures::default();
    for ring in [
        "SELECT ino, 'ring', ino FROM main WHERE kind = 'dir' AND ino > 1",
        "SELECT ino, 'ring', 1 FROM main WHERE kind = 'dir' AND ino > 1",
    ] {
        hostile(&place, |owner| {
            behind_the_guards(
                owner,
                &format!("INSERT INTO main_dirent (parent, name, ino) {ring}"),
            );
        });
        for verb in [
            &["ls", "-R", "x.larder:/"][..],
            &["find", "x.larder:/"],
            &["du", "x.larder:/"],
            &["cp", "-r", "x.larder:/dir", "tree"],
            &["rm", "-r", "x.larder:/dir"],
            &["clone", "x.larder:/dir", "x.larder:/other"],
            &["check", "x.larder"],
            &["sql", "x.larder", "SELECT count(*) FROM files('/**')"],
        ] {
            let done = run(&place, verb, ring, &mut figures);
            assert_eq!(done.code, Some(1), "SAFE-8: {verb:?}: {done:?}");
        }
    }
    figures.assert_bounded();
}

#[test]
fn check_finds_names_that_nobody_writes() {
    let place = full();
    hostile(&place, |owner| {
        let names = "INSERT INTO main_dirent (parent, name, ino) \
                     SELECT 1, column1, 999 FROM (VALUES (x'61'), ('a/b'), ('..'), (CAST(x'ff' AS \
                     TEXT)))";
        behind_the_guards(owner, names);
    });
    let done = place.run(&["check", "x.larder"]);
    let told = String::from_utf8_lossy(&done.stdout);
    for why in ["is bytes and UTF-8", "'a/b'", "'..'", "no UTF-8"] {
        assert!(told.contains(why), "CATALOG-6: {why}: {told}");
    }
    assert_eq!(done.code, Some(1));
}

/// In the caller's own database: values that no row may have fail the change, and no read computes
/// them.
#[test]
fn huge_generated_columns_end_in_bounds() {
    let place = full();
    for column in [
        "zeroblob(1000000000)",
        "length(hex(zeroblob(400000000)))",
        "replace(hex(zeroblob(60000000)), '0', '00000')",
    ] {
        let sql = format!("ALTER TABLE main ADD COLUMN huge AS ({column})");
        hostile(&place, |owner| owner.execute_batch(&sql).unwrap());
        let mut figures = Figures::default();
        for verb in [
            &["ls", "-lR", "x.larder:/"][..],
            &["get", "x.larder:/a", "out"],
            &["check", "x.larder"],
            &["snapshot", "create", "x.larder", "later"],
            &["rows", "x.larder@first", "album"],
            &["txn", "begin", "x.larder"],
            &["put", "a", "x.larder:/new"],
            &["rm", "x.larder:/a"],
        ] {
            let done = run(&place, verb, column, &mut figures);
            if matches!(verb[0], "put" | "rm") {
                assert_eq!(done.code, Some(1), "{column}: {verb:?}: {}", done.stderr);
                assert!(done.stderr.contains("too big"), "{column}: {}", done.stderr);
            }
        }
        figures.assert_bounded();
        let refused = place.run(&["check", "x.larder", "--untrusted"]);
        assert!(
            refused
                .stderr
                .contains("the generated column 'huge' of 'main'"),
            "{refused:?}"
        );
    }
}

/// Each verb looks at every store, and has read the tables of all.
#[test]
fn stores_without_number_are_refused() {
    let place = full();
    let mut figures = Figures::default();
    let stores = |count: u32| {
        format!(
            "WITH RECURSIVE r (n) AS (SELECT 1000 UNION ALL SELECT n + 1 FROM r WHERE n < 999 + \
             {count}) INSERT INTO larder_store (id, name, provider, mount, table_store, next_ino) \
             SELECT n, 's' || n, 'files', '/s' || n, 0, 2 FROM r"
        )
    };
    hostile(&place, |owner| {
        let sql = "SELECT count(*) FROM larder_store";
        let there: u32 = owner.query_row(sql, [], |row| row.get(0)).unwrap();
        behind_the_guards(owner, &stores(STORES_MAX as u32 - there));
        let sql = "UPDATE larder_meta SET value = 5000 WHERE key = 'next_store'";
        behind_the_guards(owner, sql);
    });
    for verb in FEW {
        let done = run(&place, verb, "as many as can be", &mut figures);
        assert_eq!(done.code, Some(0), "{done:?}");
    }
    let create = ["store", "create", "x.larder", "another"];
    let done = run(&place, &create, "one more", &mut figures);
    done.assert_failed(1, &format!("has {STORES_MAX} stores"), "STORES_MAX");
    hostile(&place, |owner| behind_the_guards(owner, &stores(100_000)));
    for verb in FEW {
        let done = run(&place, verb, "100,000 stores", &mut figures);
        done.assert_failed(
            1,
            &format!("at most {STORES_OPEN_MAX} stores"),
            "STORES_OPEN_MAX",
        );
    }
    figures.assert_bounded();
}

/// A search comes by rows, and SQLite would take each into memory as a whole.
#[test]
fn rows_of_any_length_take_no_memory_and_are_named() {
    const LONG: &str = "zeroblob(300000000)";
    let place = full();
    let mut figures = Figures::default();
    hostile(&place, |owner| {
        let sql = format!(
            "INSERT INTO main_xattr (ino, name, value, since_seq) SELECT ino, 'user.a', {LONG}, 1 \
             FROM main_dirent WHERE parent = 1 AND name = 'a'"
        );
        behind_the_guards(owner, &sql);
    });
    for verb in [
        &["put", "a", "x.larder:/a"][..],
        &["log", "x.larder"],
        &["stat", "x.larder:/a"],
        &["ls", "-lR", "x.larder:/"],
    ] {
        run(&place, verb, "an attribute", &mut figures);
    }
    let done = run(&place, &["check", "x.larder"], "an attribute", &mut figures);
    let told = String::from_utf8_lossy(&done.stdout);
    assert!(
        told.contains("main_xattr: a row is too long") && told.contains("300000000 bytes"),
        "SAFE-10: {told}"
    );
    hostile(&place, |owner| {
        let sql = format!("UPDATE larder_meta SET value = {LONG} WHERE key = 'created_ns'");
        behind_the_guards(owner, &sql);
    });
    for verb in FEW {
        let done = run(&place, verb, "a fact of the database", &mut figures);
        assert_eq!(done.code, Some(1), "SAFE-10: {done:?}");
        if verb[0] == "check" {
            let told = String::from_utf8_lossy(&done.stdout);
            let named = "larder_meta: a row is too long to be read: key is 'created_ns', value";
            assert!(told.contains(named), "SAFE-10: {done:?}");
        }
    }
    figures.assert_bounded();
    assert!(
        figures.largest.0 < 128 << 20,
        "SAFE-10: {:?}",
        figures.largest
    );
}

#[test]
fn an_inode_of_a_great_many_names_is_told_in_time() {
    let place = full();
    let mut figures = Figures::default();
    hostile(&place, |owner| {
        let sql = "WITH RECURSIVE r (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM r WHERE n < \
                   80000) INSERT INTO main_dirent (parent, name, ino, since_seq) \
                   SELECT 1, 'n' || n, (SELECT ino FROM main_dirent WHERE parent = 1 AND name = \
                   'a'), 2 FROM r";
        behind_the_guards(owner, sql);
    });
    for verb in [
        &["log", "x.larder"][..],
        &["log", "x.larder:/a"],
        &["stat", "x.larder:/a"],
        &["find", "x.larder:/"],
        &["rm", "x.larder:/a"],
        &["check", "x.larder"],
    ] {
        run(&place, verb, "80,000 names", &mut figures);
    }
    figures.assert_bounded();
}
