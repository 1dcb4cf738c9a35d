//! `DB@MOMENT:/path` and `larder snapshot`.

use crate::support::Place;

fn with_history() -> Place {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--capacity", "64M", "--retention", "1h"]);
    place
}

#[test]
fn the_past_is_read_like_the_present() {
    let place = with_history();
    place.write("old", 70_000);
    place.write("new", 50_000);
    place.ok(&["mkdir", "a.larder:/d"]);
    place.ok(&["put", "old", "a.larder:/d/f"]);
    let told = place.ok(&["snapshot", "create", "a.larder", "before"]);
    assert!(told.contains("snapshot before is of commit"), "{told}");
    place.ok(&["put", "new", "a.larder:/d/f"]);
    place.ok(&["rm", "-r", "a.larder:/d"]);
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "");
    assert_eq!(place.ok(&["ls", "a.larder@before:/d"]), "f\n");
    let size = place.json(&["stat", "a.larder@before:/d/f"])["size_bytes"].clone();
    assert_eq!(size, 70_000);
    let found = place.ok(&["find", "a.larder@before:/", "--name", "f"]);
    assert!(found.contains("/d/f"), "{found}");
    // It comes back with a copy, beside which the present is written.
    place.ok(&["cp", "-a", "a.larder@before:/d", "a.larder:/d"]);
    place.ok(&["get", "a.larder:/d/f", "back"]);
    let bytes = |name: &str| std::fs::read(place.path(name)).unwrap();
    assert_eq!(bytes("back"), bytes("old"));
    let seq = place.json(&["snapshot", "list", "a.larder"])[0]["seq"].clone();
    let by_number = format!("a.larder@seq:{seq}:/d/f");
    place.ok(&["get", &by_number, "again"]);
    assert_eq!(bytes("again"), bytes("old"), "CLI-30");
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn mistakes_about_moments_are_told() {
    let place = with_history();
    place.write("f", 10);
    place.ok(&["put", "f", "a.larder:/f"]);
    place.ok(&["snapshot", "create", "a.larder", "s"]);
    place.fails(1, &["rm", "a.larder@s:/f"], "the past cannot be changed");
    place.fails(
        1,
        &["put", "f", "a.larder@s:/g"],
        "the past cannot be changed",
    );
    place.fails(1, &["cat", "a.larder@-1y:/f"], "before the history begins");
    place.fails(1, &["cat", "a.larder@2200-01-01:/f"], "in the future");
    place.fails(1, &["cat", "a.larder@seq:99999:/f"], "in the future");
    place.fails(1, &["cat", "a.larder@none:/f"], "snapshot 'none'");
    place.fails(1, &["cat", "a.larder@10:00:/f"], "is no moment");
    place.fails(1, &["snapshot", "create", "a.larder", "s"], "exists");
    place.fails(
        1,
        &["snapshot", "create", "a.larder", "1h"],
        "cannot be a name",
    );
    place.ok(&["snapshot", "hold", "a.larder", "s", "audit"]);
    place.fails(
        1,
        &["snapshot", "destroy", "a.larder", "s"],
        "is held by audit",
    );
    place.ok(&["snapshot", "release", "a.larder", "s", "audit"]);
    let dry = place.ok(&["snapshot", "destroy", "a.larder", "s", "--dry-run"]);
    assert!(dry.contains("would be destroyed"), "{dry}");
    place.ok(&["snapshot", "destroy", "a.larder", "s"]);
    place.fails(1, &["snapshot", "destroy", "a.larder", "s"], "snapshot 's'");
    let other = Place::with_database();
    other.fails(1, &["ls", "a.larder@-1h:/"], "keeps no history");
    other.fails(
        1,
        &["snapshot", "create", "a.larder", "s"],
        "keeps no history",
    );
}
