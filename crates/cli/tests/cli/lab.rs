//! `lab`: the laboratory from the outside, on runs of a second.
//!
//! Volumes need root and loop devices; where there are none, a test of them says so on stderr and
//! tests nothing.

use crate::support::{Done, Place};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

/// A run in this directory: SQLite and files, two sizes, two rounds.
const TINY: [&str; 15] = [
    "lab",
    "run",
    "break-even",
    "--backends",
    "sqlite:.,dir:.",
    "--objects",
    "4K,64K",
    "--volume",
    "16M",
    "--occupancy",
    "5",
    "--reads",
    "20",
    "--rounds",
    "2",
];

fn tiny(out: &str) -> Vec<String> {
    let more = ["--out", out];
    let given = TINY.iter().chain(&more);
    given.map(ToString::to_string).collect()
}

fn has_volumes(place: &Place) -> bool {
    let ext4 = state_of(place, "ext4");
    let works = ext4["works"] == true;
    if !works {
        let may_mount =
            rustix::process::geteuid().is_root() && Path::new("/dev/loop-control").exists();
        assert!(!may_mount, "{}", ext4["reason"]);
        eprintln!("not tested: volumes: {}", ext4["reason"]);
    }
    works
}

/// What `lab list` says of a backend.
fn state_of(place: &Place, backend: &str) -> Value {
    let list = place.json(&["lab", "list"]);
    let found = list["backends"].as_array().unwrap();
    let state = found.iter().find(|one| one["backend"] == backend);
    state.unwrap().clone()
}

/// Failed, and the last of its lines names the cause and a remedy.
fn assert_told(done: &Done, cause: &str) {
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(done.stderr.contains(cause), "{}", done.stderr);
    assert!(done.stderr.contains("; "), "{}", done.stderr);
}

#[test]
fn bad_input_is_told_with_its_remedy() {
    let place = Place::new();
    let run = |more: &[&str]| {
        let all = [&["lab", "run", "age", "--out", "r"], more].concat();
        place.run(&all)
    };
    place.fails(
        1,
        &["lab", "run", "age", "--backends", "zfs"],
        "'zfs' is no backend; there are ext2",
    );
    let unknown = place.run(&["lab", "run", "nonsense"]);
    assert_eq!(unknown.code, Some(2));
    assert!(unknown.stderr.contains("break-even"), "{}", unknown.stderr);
    place.fails(
        1,
        &[
            "lab",
            "run",
            "age",
            "--backends",
            "dir:.",
            "--objects",
            "10M",
            "--volume",
            "100M",
        ],
        "a run means nothing; take a larger --volume",
    );
    place.fails(
        1,
        &["lab", "run", "age", "--backends", "larder+inline=9k"],
        "is no option of this backend; files have",
    );
    assert_told(
        &run(&["--backends", "dir:nowhere"]),
        "'nowhere' is no directory; make it first",
    );
    assert_told(
        &run(&[
            "--backends",
            "larder:.",
            "--volume",
            "8M",
            "--objects",
            "4K",
        ]),
        "cannot work on a capacity of 8 MiB; take --volume 16M or larger",
    );
    // Nothing was measured, so nothing stands in the way of a right command.
    assert!(!place.path("r/run.json").exists());
    let absent = "postgres:host=/nonexistent user=nobody";
    assert_told(
        &run(&["--backends", absent, "--volume", "64M", "--objects", "4K"]),
        "no PostgreSQL answers",
    );
    let offered = run(&["--backends", absent, "--volume", "64M", "--objects", "4K"]).stderr;
    assert!(
        offered.contains("'postgres', which runs a private server")
            && offered.contains("'postgres:DIR'"),
        "{offered}"
    );
    for (arguments, cause) in [
        (vec!["lab", "report", "nowhere"], "nowhere"),
        (vec!["lab", "compare", "nowhere", "nowhere"], "nowhere"),
        (vec!["lab", "advise", "--from", "nowhere"], "nowhere"),
        (vec!["lab", "advise", ".", "--apply"], "'.' is no database"),
        (vec!["lab", "advise", ".", "--reset"], "'.' is no database"),
    ] {
        let done = place.run(&arguments);
        assert_eq!(done.code, Some(1), "{arguments:?}: {}", done.stderr);
        assert!(done.stderr.contains(cause), "{}", done.stderr);
    }
}

#[test]
fn who_may_not_mount_is_told() {
    let place = Place::new();
    let open = fs::Permissions::from_mode(0o777);
    fs::set_permissions(place.path("."), open).unwrap();
    let arguments = [
        "lab",
        "run",
        "age",
        "--backends",
        "ext4",
        "--objects",
        "4K",
        "--volume",
        "64M",
    ];
    let mut command = place.command(&arguments);
    if rustix::process::geteuid().is_root() {
        // Nobody.
        command.uid(65_534).gid(65_534);
    }
    let done = Done::from(command.output().unwrap());
    assert_told(&done, "volumes need the right to mount");
    assert!(done.stderr.contains("run as root"), "{}", done.stderr);
    assert!(!place.path("lab-age/run.json").exists());
}

#[test]
fn volumes_that_cannot_be_are_told() {
    let place = Place::new();
    if !has_volumes(&place) {
        return;
    }
    let run = |backend: &str, volume: &str| {
        place.run(&[
            "lab",
            "run",
            "age",
            "--backends",
            backend,
            "--volume",
            volume,
            "--objects",
            "4K",
            "--out",
            "r",
        ])
    };
    // No space.
    assert_told(&run("ext4", "90000G"), "does not fit in");
    for (backend, cause) in [
        (
            "xfs",
            "xfs cannot be made on a volume of 30 MiB; take --volume 300M or larger",
        ),
        (
            "fat32",
            "fat32 cannot be made on a volume of 30 MiB; take --volume 33M or larger",
        ),
        (
            "larder",
            "cannot work on a volume of 30 MiB; take --volume 32M or larger",
        ),
    ] {
        let state = state_of(&place, backend);
        if state["works"] != true {
            // Then that is what is said.
            let reason = state["reason"].as_str().unwrap();
            assert!(!reason.is_empty());
            assert_told(&run(backend, "30M"), reason);
            continue;
        }
        assert_told(&run(backend, "30M"), cause);
    }
}

#[test]
fn a_mount_can_take_what_its_database_can() {
    let place = Place::new();
    if !has_volumes(&place) {
        return;
    }
    place.ok(&[
        "lab",
        "run",
        "age",
        "--backends",
        "larder,larder-mount",
        "--volume",
        "160M",
        "--objects",
        "64K",
        "--occupancy",
        "5",
        "--ages",
        "0",
        "--reads",
        "5",
        "--out",
        "r",
    ]);
    let text = fs::read_to_string(place.path("r/records.jsonl")).unwrap();
    let usable: Vec<f64> = text
        .lines()
        .map(|line| serde_json::from_str::<Value>(line).unwrap())
        .filter(|record| record["measure"] == "usable_bytes")
        .map(|record| record["value"].as_f64().unwrap())
        .collect();
    // Not what is left on the volume below, of which segments were taken already.
    assert_eq!(usable.len(), 2);
    assert!((usable[0] / usable[1] - 1.0).abs() < 0.02, "{usable:?}");
}

#[test]
fn a_run_is_reported_compared_and_advised_from() {
    let place = Place::new();
    let told = place.ok(&tiny("one"));
    assert!(
        told.contains("8 cases measured, 0 before; results in one"),
        "{told}"
    );
    place.ok(&tiny("two"));
    let list = place.ok(&["lab", "list"]);
    for line in ["break-even", "larder", "fat32"] {
        assert!(list.contains(line), "{list}");
    }
    let report = place.json(&["lab", "report", "one", "--to", "report"]);
    let figures = report["figures"].as_array().unwrap();
    assert!(figures.contains(&json!("read-after-load")), "{report}");
    let page = fs::read_to_string(place.path("report/report.html")).unwrap();
    assert!(page.contains("<svg") && !page.contains("<script"));
    let comparison = place.json(&["lab", "compare", "one", "two"]);
    assert!(
        comparison["figures"].as_array().unwrap().len() > 4,
        "{comparison}"
    );
    let advice = place.json(&["lab", "advise", "--from", "one"]);
    let questions = advice["answers"].as_array().unwrap();
    assert!(
        questions
            .iter()
            .any(|one| one["question"] == "writing: SQLite or files?"),
        "{advice}"
    );
    assert_eq!(advice["applied"], Value::Null);
    // Nothing of what was measured lies about.
    let left: Vec<_> = fs::read_dir(place.path("."))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.starts_with("larder-lab-"))
        .collect();
    assert_eq!(left, Vec::<String>::new());
}

#[test]
fn a_run_goes_on_after_a_kill() {
    let place = Place::new();
    let mut child = place
        .command(&tiny("r"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let records = place.path("r/records.jsonl");
    let ends = || {
        let text = fs::read_to_string(&records).unwrap_or_default();
        let is_end = |line: &&str| line.contains("\"case_seconds\"") && line.ends_with('}');
        text.lines().filter(is_end).count()
    };
    let started = Instant::now();
    while ends() == 0 {
        assert!(started.elapsed() < Duration::from_secs(20));
        std::thread::sleep(Duration::from_millis(1));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let before = ends();
    assert!((1..8).contains(&before), "{before}");
    let done = place.run(&tiny("r"));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert!(
        done.stderr
            .contains(&format!("{before} cases were measured before; going on")),
        "{}",
        done.stderr
    );
    // RUN-1: every case once.
    assert_eq!(ends(), 8);
    // The same directory with another question is refused.
    let mut other = tiny("r");
    other.extend(["--seed".to_owned(), "7".to_owned()]);
    place.fails(1, &other, "holds a run with other parameters");
}

/// A run in which rows of Larder are better below 1 KiB, without noise to speak of.
fn planted(place: &Place, name: &str) {
    let arguments = [
        "lab",
        "run",
        "break-even",
        "--backends",
        "larder:.+inline=2048,larder:.+inline=0",
        "--objects",
        "2K",
        "--volume",
        "16M",
        "--occupancy",
        "1",
        "--reads",
        "3",
        "--ages",
        "0",
        "--out",
        name,
    ];
    place.ok(&arguments);
    let mut lines = String::new();
    for round in 0..3 {
        for bytes in [256, 512, 1024, 2048] {
            for measure in ["read_mb_s", "write_mb_s"] {
                for (backend, value) in [
                    ("larder:.+inline=2048", 10_240.0 / f64::from(bytes)),
                    ("larder:.+inline=0", 10.0),
                ] {
                    let record = json!({
                        "experiment": "break-even",
                        "backend": backend,
                        "case": {"object_bytes": bytes.to_string()},
                        "round": round,
                        "age": 0.0,
                        "measure": measure,
                        "value": value * (1.0 + 0.01 * f64::from(round)),
                        "load": 0.1,
                    });
                    lines += &format!("{record}\n");
                }
            }
        }
    }
    fs::write(place.path(name).join("records.jsonl"), lines).unwrap();
}

#[test]
fn advice_is_applied_shown_and_taken_back() {
    let place = Place::with_database();
    planted(&place, "trial");
    place.write("small", 1500);
    let asked = |database: &str| {
        let df = place.json(&["df", database]);
        df["inline_bytes_max"].as_u64().unwrap()
    };
    let advice = place.json(&["lab", "advise", "a.larder", "--from", "trial"]);
    let inline = advice["settings"]["inline_bytes_max"].as_u64().unwrap();
    assert!((1000..1050).contains(&inline), "{advice}");
    // CLI-27: without --apply nothing changes.
    assert_eq!(asked("a.larder"), 2048);
    // Nor does it by times under load.
    let records = place.path("trial/records.jsonl");
    let quiet = fs::read_to_string(&records).unwrap();
    let busy = quiet.replacen(r#""load":0.1"#, r#""load":1e3"#, 1);
    fs::write(&records, busy).unwrap();
    let apply = ["lab", "advise", "a.larder", "--from", "trial", "--apply"];
    place.fails(1, &apply, "under load; measure again on a quiet machine");
    assert_eq!(asked("a.larder"), 2048);
    fs::write(&records, quiet).unwrap();
    let told = place.ok(&apply);
    assert!(
        told.contains("the database now has: inline up to"),
        "{told}"
    );
    assert_eq!(asked("a.larder"), inline);
    assert!(
        place
            .ok(&["df", "a.larder"])
            .contains("(set for this database)")
    );
    // The engine obeys: 1500 bytes are in a row no more.
    let blocks = |name: &str| {
        place.ok(&["put", "small", &format!("a.larder:/{name}")]);
        let sql = "SELECT max(blocks) AS blocks FROM main";
        place.json(&["sql", "a.larder", sql])[0]["blocks"].clone()
    };
    assert_eq!(blocks("s1"), 1);
    place.ok(&["lab", "advise", "a.larder", "--reset"]);
    assert_eq!(asked("a.larder"), 2048);
    place.ok(&["rm", "a.larder:/s1"]);
    assert_eq!(blocks("s2"), 0);
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn advice_for_a_place_ends_in_its_time() {
    let place = Place::with_database();
    let started = Instant::now();
    let done = place.run(&[
        "lab", "advise", "a.larder", "--time", "1s", "--out", "advice",
    ]);
    // All of the plan takes minutes; what is begun is given up at the end of its time.
    assert!(started.elapsed() < Duration::from_secs(45));
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    // What there was no time for is said.
    assert!(
        done.stderr.contains("were left out for lack of time"),
        "{}",
        done.stderr
    );
    let told = String::from_utf8(done.stdout).unwrap();
    for line in [
        "QUESTION",
        "Larder: up to which size in the row?",
        "Larder: how much should it gather?",
    ] {
        assert!(told.contains(line), "{told}");
    }
    assert_eq!(place.json(&["df", "a.larder"])["inline_bytes_max"], 2048);
}
