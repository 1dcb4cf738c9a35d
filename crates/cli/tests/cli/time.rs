//! The verbs of time: reading other moments, snapshots, and what people get wrong about both.

use crate::support::Place;
use serde_json::json;
use std::fs;

/// A database that keeps what is superseded.
pub fn with_history() -> Place {
    let place = Place::new();
    let made = place.ok(&["init", "a.larder", "--capacity", "64M", "--retention", "1h"]);
    assert_eq!(made, "created a.larder (capacity: 64.0 MiB)\n");
    place
}

/// Writes a small file of the database.
pub fn put(place: &Place, path: &str, content: &str) {
    let done = place.run_with(
        &["put", "-", &format!("a.larder:{path}")],
        content.as_bytes(),
    );
    assert_eq!(done.code, Some(0), "{}", done.stderr);
}

/// The number of the newest commit, as `@seq:N`.
pub fn now(place: &Place) -> String {
    let sql = "SELECT value FROM larder_meta WHERE key = 'commit_seq'";
    let rows = place.json(&["sql", "a.larder", sql]);
    format!("a.larder@seq:{}", rows[0]["value"])
}

#[test]
fn every_reading_verb_takes_a_moment() {
    let place = with_history();
    place.ok(&["mkdir", "a.larder:/dir"]);
    put(&place, "/dir/f", "old");
    place.ok(&["ln", "-s", "f", "a.larder:/dir/link"]);
    let then = now(&place);
    put(&place, "/dir/f", "new and longer");
    put(&place, "/dir/g", "later");
    place.ok(&["rm", "a.larder:/dir/link"]);
    let later = now(&place);
    place.ok(&["rm", "-r", "a.larder:/dir"]);
    place.fails(1, &["ls", "a.larder:/dir"], "dir");

    let at = |moment: &str, path: &str| format!("{moment}:{path}");
    assert_eq!(place.ok(&["ls", &at(&then, "/dir")]), "f\nlink\n");
    assert_eq!(place.ok(&["ls", &at(&later, "/dir")]), "f\ng\n");
    assert_eq!(place.ok(&["cat", &at(&then, "/dir/f")]), "old");
    assert_eq!(place.ok(&["cat", &at(&then, "/dir/link")]), "old");
    assert_eq!(place.ok(&["cat", &at(&later, "/dir/f")]), "new and longer");
    assert_eq!(
        place.ok(&["cat", &at(&then, "/dir/f"), &at(&later, "/dir/f")]),
        "oldnew and longer",
        "two moments in one command"
    );
    let stat = place.json(&["stat", &at(&then, "/dir/f"), &at(&later, "/dir/f")]);
    assert_eq!(stat[0]["size_bytes"], 3);
    assert_eq!(stat[1]["size_bytes"], 14);
    assert_eq!(stat[0]["ino"], stat[1]["ino"]);
    let found = place.json(&["find", &at(&then, "/"), "--type", "f"]);
    assert_eq!(found.as_array().unwrap().len(), 1);
    assert_eq!(found[0]["path"], "/dir/f");
    place.ok(&["cp", "-r", &at(&then, "/dir"), "out"]);
    assert_eq!(fs::read(place.path("out/f")).unwrap(), b"old");
    assert_eq!(
        place.path("out/link").read_link().unwrap().to_str(),
        Some("f")
    );
    place.ok(&["get", &at(&later, "/dir/g"), "g"]);
    assert_eq!(fs::read(place.path("g")).unwrap(), b"later");
    // From the past into the present of the same database.
    place.ok(&["cp", "-a", &at(&then, "/dir"), "a.larder:/back"]);
    assert_eq!(place.ok(&["cat", "a.larder:/back/link"]), "old");
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn the_past_cannot_be_changed() {
    let place = with_history();
    put(&place, "/f", "x");
    let then = now(&place);
    put(&place, "/f", "y");
    place.write("file", 10);
    let at = |path: &str| format!("{then}:{path}");
    let refused = "the past cannot be changed";
    place.fails(1, &["put", "file", &at("/new")], refused);
    place.fails(1, &["put", "file", &at("/f")], refused);
    place.fails(1, &["rm", &at("/f")], refused);
    place.fails(1, &["mkdir", &at("/d")], refused);
    place.fails(1, &["mv", &at("/f"), &at("/g")], refused);
    place.fails(1, &["ln", "-s", "f", &at("/link")], refused);
    place.fails(1, &["cp", "file", &at("/copy")], refused);
    assert_eq!(place.ok(&["cat", &at("/f")]), "x", "PAST-1");
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "f\n");
    place.assert_closed("a.larder");
}

#[test]
fn moments_that_there_are_not_are_told() {
    let place = with_history();
    put(&place, "/f", "x");
    let fails = |moment: &str, cause: &str| {
        place.fails(1, &["ls", &format!("a.larder@{moment}:/")], cause);
    };
    fails("-1y", "before the history begins, at ");
    fails("1999-12-31", "before the history begins, at ");
    fails("2999-01-01", "is in the future");
    fails("seq:999999", "is in the future");
    fails("seq:x", "is no moment");
    fails("-1x", "is no moment");
    fails("2026-13-01", "is no moment");
    fails("nobody", "snapshot 'nobody'");
    place.fails(1, &["ls", "none.larder@-1h:/"], "none.larder");
    // A database that keeps no history.
    place.ok(&["init", "b.larder", "--capacity", "64M", "--retention", "0"]);
    place.fails(1, &["ls", "b.larder@-1s:/"], "keeps no history");
    place.ok(&["snapshot", "create", "b.larder", "s"]);
    place.ok(&["ls", "b.larder@s:/"]);
    place.assert_closed("a.larder");
}

#[test]
fn init_takes_a_retention() {
    let place = Place::new();
    let init = |name: &str, retention: &str| {
        place.json(&["init", name, "--capacity", "64M", "--retention", retention])["retention_ns"]
            .clone()
    };
    assert_eq!(init("a.larder", "1h"), 3_600_000_000_000_i64);
    assert_eq!(init("b.larder", "2y"), 63_072_000_000_000_000_i64);
    let kept = place.json(&[
        "sql",
        "a.larder",
        "SELECT value FROM larder_meta WHERE key = 'retention_ns'",
    ]);
    assert_eq!(kept[0]["value"], 3_600_000_000_000_i64);
    place.fails(
        2,
        &["init", "c.larder", "--retention", "soon"],
        "'soon' is no",
    );
    assert!(!place.path("c.larder").exists());
}

#[test]
fn snapshots_name_moments_and_holds_keep_them() {
    let place = with_history();
    put(&place, "/f", "one");
    let told = place.ok(&["snapshot", "create", "a.larder", "first"]);
    assert!(told.starts_with("snapshot first is of commit "), "{told}");
    put(&place, "/f", "two");
    let made = place.json(&["snapshot", "create", "a.larder", "second"]);
    assert_eq!(made["name"], "second");
    assert_eq!(made["holds"], json!([]));
    put(&place, "/f", "three");
    assert_eq!(place.ok(&["cat", "a.larder@first:/f"]), "one");
    assert_eq!(place.ok(&["cat", "a.larder@SECOND:/f"]), "two");
    let listed = place.ok(&["snapshot", "list", "a.larder"]);
    let names: Vec<&str> = listed
        .lines()
        .filter_map(|line| line.split_whitespace().next())
        .collect();
    assert_eq!(names, ["first", "second"]);

    place.ok(&["snapshot", "hold", "a.larder", "first", "audit"]);
    place.ok(&["snapshot", "hold", "a.larder", "first", "audit"]);
    let listed = place.json(&["snapshot", "list", "a.larder"]);
    assert_eq!(listed[0]["holds"], json!(["audit"]));
    let destroy = ["snapshot", "destroy", "a.larder", "first"];
    place.fails(1, &destroy, "is held by audit");
    place.fails(1, &[&destroy[..], &["--dry-run"]].concat(), "is held");
    place.ok(&["snapshot", "release", "a.larder", "first", "audit"]);
    let told = place.ok(&[&destroy[..], &["--dry-run"]].concat());
    assert!(told.contains("would be destroyed"), "{told}");
    assert_eq!(place.ok(&["cat", "a.larder@first:/f"]), "one");
    place.ok(&destroy);
    place.fails(1, &["ls", "a.larder@first:/"], "snapshot 'first'");

    place.fails(1, &destroy, "snapshot 'first'");
    let create = |name: &str, cause: &str| {
        place.fails(1, &["snapshot", "create", "a.larder", name], cause);
    };
    create("second", "exists already");
    create("Second", "exists already");
    create("2nd", "cannot be a name");
    create("a:b", "cannot be a name");
    create("", "cannot be a name");
    let release = ["snapshot", "release", "a.larder", "second", "audit"];
    place.fails(1, &release, "hold 'audit'");
    place.fails(
        1,
        &["snapshot", "hold", "a.larder", "nobody", "audit"],
        "snapshot 'nobody'",
    );
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}
