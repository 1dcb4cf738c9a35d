//! `defrag`, `shrink`, `frag` and `stats`.

use crate::support::Place;
use std::fs;

/// A database in which a file lies in several pieces, and others.
fn fragmented() -> Place {
    let place = Place::with_database();
    fs::create_dir(place.path("teeth")).unwrap();
    for tooth in 0..300 {
        place.write(&format!("teeth/t{tooth}"), 65_536);
    }
    place.write("big", 3 << 20);
    place.ok(&["cp", "-r", "teeth", "a.larder:/"]);
    // What is left besides the gaps is taken, and given back at the end.
    let free = place.json(&["df", "a.larder"])["available_bytes"]
        .as_u64()
        .unwrap();
    place.write("fill", free as usize - 65_536);
    place.ok(&["put", "fill", "a.larder:/fill"]);
    let gaps: Vec<String> = (0..300)
        .step_by(2)
        .map(|tooth| format!("a.larder:/teeth/t{tooth}"))
        .collect();
    let mut rm = vec!["rm".to_owned()];
    rm.extend(gaps);
    place.ok(&rm);
    place.ok(&["put", "big", "a.larder:/big"]);
    place.ok(&["put", "big", "a.larder:/big2"]);
    place.ok(&["rm", "a.larder:/fill"]);
    place
}

#[test]
fn defrag_joins_extents_and_shrink_returns_space() {
    let place = fragmented();
    let before = place.json(&["frag", "a.larder"]);
    assert!(
        before["fragments_per_object_max"].as_u64() > Some(3),
        "{before}"
    );
    let dry = place.json(&["defrag", "a.larder", "--dry-run"]);
    assert_eq!(dry["dry_run"], true);
    let still = place.json(&["frag", "a.larder"]);
    assert_eq!(still["fragment_count"], before["fragment_count"]);
    assert!(dry["fragmented_count"].as_u64() > Some(0), "{dry}");
    let one = place.ok(&["defrag", "a.larder", "/teeth"]);
    assert!(one.contains("objects"), "{one}");
    let told = place.ok(&["defrag", "a.larder"]);
    assert!(told.contains("-> 1 fragments"), "{told}");
    let after = place.json(&["frag", "a.larder"]);
    assert_eq!(after["fragments_per_object_max"], 1, "{after}");
    assert!(after["free_pool_objects"].as_f64() > Some(0.0));
    assert!(!after["size_classes"].as_array().unwrap().is_empty());
    let length = |place: &Place| {
        let path = place.path("a.larder/segments/00000.seg");
        path.metadata().unwrap().len()
    };
    let long = length(&place);
    place.ok(&["shrink", "a.larder", "--dry-run"]);
    assert_eq!(length(&place), long);
    let shrunk = place.json(&["shrink", "a.larder"]);
    assert_eq!(
        shrunk["segment_bytes_after"].as_u64().unwrap() + (1 << 20),
        length(&place)
    );
    assert!(length(&place) < long, "{shrunk}");
    assert_eq!(
        place.run(&["cat", "a.larder:/big"]).stdout,
        fs::read(place.path("big")).unwrap()
    );
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn bad_input_is_refused_with_a_line() {
    let place = Place::with_database();
    place.write("file", 5 << 20);
    place.ok(&["put", "file", "a.larder:/file"]);
    fs::create_dir(place.path("plain")).unwrap();
    for verb in ["defrag", "shrink", "stats", "frag"] {
        place.fails(1, &[verb, "plain"], "plain");
        place.fails(1, &[verb, "none"], "none");
    }
    place.fails(1, &["frag", "plain", "--map"], "plain");
    place.fails(1, &["shrink", "a.larder", "--to", "1M"], "give at least");
    place.fails(2, &["shrink", "a.larder", "--to", "little"], "little");
    place.fails(1, &["defrag", "a.larder", "/absent"], "absent");
    place.fails(2, &["stats", "a.larder", "--count", "0"], "0");
    place.fails(2, &["stats", "a.larder", "--interval", "soon"], "soon");
    place.assert_clean("a.larder");
}

#[test]
fn a_picture_is_drawn() {
    let place = fragmented();
    let picture = place.ok(&["frag", "a.larder", "--map"]);
    assert!(picture.is_ascii(), "stdout is no terminal: {picture}");
    assert!(
        picture.contains("one character:") && picture.contains('#'),
        "{picture}"
    );
    let maps = place.json(&["frag", "a.larder", "--map"]);
    assert_eq!(maps[0]["segment"], 0);
    let cells = maps[0]["cells_total_live_retired_blocks"]
        .as_array()
        .unwrap();
    let live: u64 = cells.iter().map(|cell| cell[1].as_u64().unwrap()).sum();
    let space = place.json(&["df", "a.larder"]);
    assert_eq!(live * 4096, space["live_bytes"].as_u64().unwrap());
}

#[test]
fn stats_tell_what_happens() {
    let place = Place::with_database();
    place.write("file", 1 << 20);
    let lines = place.json(&["stats", "a.larder", "--interval", "20ms", "--count", "3"]);
    assert_eq!(lines.as_array().unwrap().len(), 3, "CLI-5");
    let watching = place
        .command(&[
            "stats",
            "a.larder",
            "--interval",
            "30ms",
            "--count",
            "100",
            "--json",
        ])
        .stdout(std::process::Stdio::piped())
        .spawn()
        .unwrap();
    // Another session, long enough to be seen.
    place.json(&["stats", "a.larder", "--interval", "150ms", "--count", "3"]);
    for round in 0..6 {
        place.ok(&["put", "file", &format!("a.larder:/f{}", round % 2)]);
    }
    let output = watching.wait_with_output().unwrap();
    assert!(output.status.success());
    let seen: serde_json::Value = serde_json::from_slice(&output.stdout).unwrap();
    let seen = seen.as_array().unwrap();
    assert!(
        seen.iter()
            .any(|line| line["written_bytes_per_s"].as_f64() > Some(0.0))
    );
    assert!(
        seen.iter()
            .any(|line| line["session_count"].as_u64() > Some(1))
    );
    let memory = |line: &serde_json::Value| line["resident_bytes"].as_u64();
    assert!(seen.iter().any(|line| memory(line) > Some(0)));
    assert!(seen[0]["gather_bytes_max"].as_u64() > Some(1 << 20));
    assert!(
        seen.windows(2)
            .all(|pair| { pair[0]["commit_seq"].as_u64() <= pair[1]["commit_seq"].as_u64() })
    );
    let text = place.ok(&["stats", "a.larder", "--interval", "10ms", "--count", "2"]);
    assert_eq!(text.lines().count(), 3);
    place.assert_closed("a.larder");
}

#[test]
fn a_dry_run_destroys_no_snapshot() {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--retention", "1h"]);
    place.ok(&["snapshot", "create", "a.larder", "one"]);
    let destroy = |name: &str, is_dry: bool| {
        let verb = ["snapshot", "destroy", "a.larder", name, "--dry-run"];
        verb[..4 + usize::from(is_dry)]
            .iter()
            .map(ToString::to_string)
            .collect::<Vec<_>>()
    };
    place.ok(&["snapshot", "hold", "a.larder", "one", "audit"]);
    place.fails(1, &destroy("one", true), "is held by audit");
    place.fails(1, &destroy("other", true), "there is no such snapshot");
    place.ok(&["snapshot", "release", "a.larder", "one", "audit"]);
    let told = place.ok(&destroy("ONE", true));
    assert!(told.contains("would be destroyed"), "{told}");
    let left = place.json(&["snapshot", "list", "a.larder"]);
    assert_eq!(left.as_array().unwrap().len(), 1);
    place.ok(&destroy("one", false));
    let left = place.json(&["snapshot", "list", "a.larder"]);
    assert_eq!(left.as_array().unwrap().len(), 0);
}
