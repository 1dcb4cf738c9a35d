//! `larder retention` and `larder prune`.

use crate::support::Place;

/// A database with a file that was replaced `count` times, and a snapshot after each.
fn replaced(count: usize) -> Place {
    let place = Place::with_database();
    for round in 0..count {
        place.write("file", 100_000 + round);
        place.ok(&["put", "file", "a.larder:/file"]);
        place.ok(&["snapshot", "create", "a.larder", &format!("s{round}")]);
    }
    place
}

#[test]
fn a_retention_is_shown_and_set() {
    let place = Place::with_database();
    let shown = place.ok(&["retention", "a.larder"]);
    assert!(
        shown.starts_with("history is kept for 1h, while there is space; it begins 20"),
        "{shown}"
    );
    let set = place.json(&["retention", "a.larder", "30d", "--guarantee"]);
    assert_eq!(set["retention_ns"], 30 * 86_400 * 1_000_000_000_i64);
    assert_eq!(set["is_guaranteed"], true);
    let shown = place.ok(&["retention", "a.larder", "2w"]);
    assert!(
        shown.starts_with("history is kept for 2w, guaranteed;"),
        "{shown}"
    );
    let shown = place.ok(&["retention", "a.larder", "--best-effort"]);
    assert!(
        shown.starts_with("history is kept for 2w, while there is space;"),
        "{shown}"
    );
    place.write("file", 50_000);
    place.ok(&["put", "file", "a.larder:/file"]);
    place.ok(&["rm", "a.larder:/file"]);
    place.ok(&["snapshot", "create", "a.larder", "kept"]);
    place.fails(1, &["retention", "a.larder", "0"], "'kept'");
    place.ok(&["snapshot", "destroy", "a.larder", "kept"]);
    let off = place.ok(&["retention", "a.larder", "0"]);
    assert!(off.starts_with("no history is kept"), "{off}");
    assert_eq!(place.json(&["df", "a.larder"])["retired_bytes"], 0);
    place.fails(1, &["prune", "a.larder"], "keeps no history");
    place.fails(2, &["retention", "a.larder", "soon"], "soon");
    place.fails(
        1,
        &["retention", "a.larder:/raw", "1h"],
        "'raw' does not exist",
    );
    place.fails(1, &["retention", "none.larder"], "none.larder");
    place.fails(
        2,
        &["retention", "a.larder", "--guarantee", "--best-effort"],
        "--best-effort",
    );
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn a_store_keeps_its_past_for_a_time_of_its_own() {
    let place = Place::with_database();
    place.ok(&["store", "create", "a.larder", "raw"]);
    let set = place.ok(&["retention", "a.larder:/raw", "7d"]);
    assert!(
        set.starts_with("store raw keeps history for 1w, while there is space; it begins 20"),
        "{set}"
    );
    let shown = place.ok(&["retention", "a.larder"]);
    assert!(shown.starts_with("history is kept for 1h,"), "{shown}");
    assert!(
        shown.contains("\nstore raw keeps history for 1w,"),
        "{shown}"
    );
    let set = place.json(&[
        "retention",
        "a.larder",
        "--store",
        "raw",
        "1us",
        "--guarantee",
    ]);
    assert_eq!(set["retention_ns"], 3_600_000_000_000_i64);
    assert_eq!(set["retentions"][0]["name"], "raw");
    assert_eq!(set["retentions"][0]["retention_ns"], 1000);
    assert_eq!(set["retentions"][0]["is_guaranteed"], true);
    for size in [100_000, 200_000, 300_000] {
        place.write("file", size);
        place.ok(&["put", "file", "a.larder:/kept"]);
        place.ok(&["put", "file", "a.larder:/raw/gone"]);
    }
    place.ok(&["retention", "a.larder:/raw", "0", "--best-effort"]);
    let dry = place.json(&["prune", "a.larder", "--store", "raw", "--dry-run"]);
    let wet = place.json(&["prune", "a.larder:/raw"]);
    assert_eq!(dry["stores"], wet["stores"]);
    let history = place.json(&["retention", "a.larder"]);
    let begins = &history["retentions"][0]["begins_seq"];
    assert!(
        begins.as_i64() > history["begins_seq"].as_i64(),
        "{history}"
    );
    let names = history["stores"].as_array().unwrap().iter();
    let names: Vec<&str> = names.map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["main"]);
    // The store was there by then, and its history begins later.
    let past = format!("a.larder@seq:{}", begins.as_i64().unwrap() - 1);
    let listed = place.ok(&["ls", &format!("{past}:/")]);
    assert!(listed.contains("raw"), "{listed}");
    place.fails(
        1,
        &["ls", &format!("{past}:/raw")],
        "history of store 'raw' begins at 20",
    );
    let back = place.ok(&["retention", "a.larder:/raw", "default"]);
    assert!(
        back.starts_with("store raw follows the database; it begins"),
        "{back}"
    );
    place.fails(
        1,
        &["retention", "a.larder", "default"],
        "'default' is for a store",
    );
    place.fails(
        1,
        &["retention", "a.larder", "--store", "none", "1h"],
        "no store 'none'",
    );
    place.fails(
        2,
        &["retention", "a.larder:/raw", "--store", "raw"],
        "give one of them",
    );
    place.fails(
        1,
        &["retention", "a.larder:/kept", "1h"],
        "not where a store is mounted",
    );
    place.fails(
        2,
        &["prune", "a.larder:/raw", "--keep-last", "1"],
        "name no store",
    );
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn a_prune_tells_exactly_what_goes() {
    let place = replaced(4);
    let stats = place.json(&["stats", "a.larder", "--interval", "10ms", "--count", "1"]);
    assert_eq!(stats[0]["history_bytes"], 0, "a snapshot holds all of it");
    let told = place.ok(&["prune", "a.larder"]);
    assert!(told.contains("more would go, but snapshot 's0'"), "{told}");
    place.fails(1, &["prune", "a.larder"], "'s0'");
    place.ok(&["snapshot", "hold", "a.larder", "s1", "audit"]);
    // What the retention keeps stays whatever the policy; so it keeps next to nothing.
    let arguments = ["prune", "a.larder", "--keep-last", "1"];
    let kept = place.json(&[&arguments[..], &["--dry-run"]].concat());
    assert_eq!(kept["freed_bytes"], 0, "{kept}");
    place.ok(&["retention", "a.larder", "1us"]);
    let dry = place.json(&[&arguments[..], &["--dry-run"]].concat());
    let before = place.json(&["df", "a.larder"]);
    assert_eq!(dry["destroyed"], serde_json::json!(["s0", "s2"]));
    assert_eq!(dry["held"], serde_json::json!(["s1"]));
    assert!(
        dry["blocked_by"].as_str().unwrap().contains("audit"),
        "{dry}"
    );
    let told = place.ok(&[&arguments[..], &["--dry-run"]].concat());
    assert!(
        told.contains("would be destroyed") && told.contains("is held by audit"),
        "{told}"
    );
    let wet = place.json(&arguments);
    assert_eq!(dry["stores"], wet["stores"]);
    assert_eq!(dry["freed_bytes"], wet["freed_bytes"]);
    let after = place.json(&["df", "a.larder"]);
    let freed = |key: &str| before[key].as_i64().unwrap() - after[key].as_i64().unwrap();
    assert_eq!(Some(freed("retired_bytes")), wet["freed_bytes"].as_i64());
    assert!(wet["freed_bytes"].as_u64() > Some(0), "{wet}");
    // The rest.
    place.ok(&["retention", "a.larder", "1h"]);
    place.ok(&["snapshot", "release", "a.larder", "s1", "audit"]);
    place.ok(&["snapshot", "destroy", "a.larder", "s1"]);
    place.ok(&["snapshot", "destroy", "a.larder", "s3"]);
    let would = place.json(&["df", "a.larder"])["history"]["history_bytes"].clone();
    assert!(would.as_u64() > Some(0));
    let all = place.json(&["prune", "a.larder"]);
    assert_eq!(all["freed_bytes"], would);
    assert_eq!(all["stores"][0]["name"], "main");
    assert_eq!(place.json(&["df", "a.larder"])["retired_bytes"], 0);
    let old = place.ok(&["prune", "a.larder", "--older-than", "-30d"]);
    assert!(old.starts_with("0 B of content and 0 rows freed;"), "{old}");
    place.fails(
        1,
        &["prune", "a.larder", "--older-than", "2999-01-01"],
        "future",
    );
    place.fails(
        1,
        &["prune", "a.larder", "--older-than", "nobody"],
        "nobody",
    );
    place.fails(
        2,
        &["prune", "a.larder", "--keep-last", "0"],
        "keep nothing",
    );
    place.fails(2, &["prune", "a.larder", "--keep-last", "few"], "few");
    place.fails(1, &["prune", "a.larder:/raw"], "'raw' does not exist");
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn a_database_without_history_has_snapshots_all_the_same() {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--capacity", "64M", "--retention", "0"]);
    let first = place.write("local", 30_000);
    place.ok(&["put", "local", "a.larder:/file"]);
    place.ok(&["snapshot", "create", "a.larder", "one"]);
    std::fs::write(place.path("local"), "another").unwrap();
    place.ok(&["put", "local", "a.larder:/file"]);
    place.ok(&["put", "local", "a.larder:/new"]);
    assert_eq!(place.run(&["cat", "a.larder@one:/file"]).stdout, first);
    assert_eq!(place.ok(&["ls", "a.larder@one:/"]).trim(), "file");
    assert_eq!(place.ok(&["cat", "a.larder:/file"]), "another");
    let told = place.ok(&["retention", "a.larder"]);
    assert!(told.contains("for snapshots alone"), "{told}");
    // Another setting of the same is none, and no other is in its way.
    place.ok(&["retention", "a.larder", "0"]);
    place.ok(&["snapshot", "create", "a.larder", "two"]);
    place.ok(&["snapshot", "destroy", "a.larder", "one"]);
    assert_eq!(place.ok(&["cat", "a.larder@two:/new"]), "another");
    place.assert_clean("a.larder");
    // The last one takes the history with it.
    place.ok(&["snapshot", "destroy", "a.larder", "two"]);
    let told = place.ok(&["retention", "a.larder"]);
    assert!(told.starts_with("no history is kept"), "{told}");
    let rows = place.json(&[
        "sql",
        "a.larder",
        "SELECT count(*) AS n FROM larder_history",
    ]);
    assert_eq!(rows[0]["n"], 0);
    place.ok(&["snapshot", "create", "a.larder", "three"]);
    place.ok(&["snapshot", "destroy", "a.larder", "three"]);
    // A longer retention stays when the snapshots have gone.
    place.ok(&["snapshot", "create", "a.larder", "four"]);
    place.ok(&["retention", "a.larder", "1h"]);
    place.ok(&["snapshot", "destroy", "a.larder", "four"]);
    let told = place.ok(&["retention", "a.larder"]);
    assert!(told.starts_with("history is kept for 1h"), "{told}");
    place.assert_clean("a.larder");
}
