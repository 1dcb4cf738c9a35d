//! What a store's saved files keep: `larder store set --save-keeps`.

use crate::mount::serve;
use crate::support::Place;
use serde_json::{Value, json};
use std::path::Path;
use std::process::Command;

fn sql(place: &Place, text: &str) -> Value {
    place.json(&["sql", "a.larder", text])
}

/// The rating of a file, and what tells it from others.
fn about(place: &Place, path: &str) -> (Value, Value) {
    let rows = sql(
        place,
        &format!(
            "SELECT rating, file_id FROM main JOIN main_path USING (ino) WHERE path = '{path}'"
        ),
    );
    (rows[0]["rating"].clone(), rows[0]["file_id"].clone())
}

fn rate(place: &Place, path: &str) -> Value {
    sql(
        place,
        &format!(
            "UPDATE main SET rating = 5 WHERE ino = (SELECT ino FROM main_path WHERE path = \
             '{path}')"
        ),
    );
    about(place, path).1
}

fn mv(from: &Path, to: &Path) {
    let done = Command::new("mv").args([from, to]).output().unwrap();
    assert!(done.status.success(), "{done:?}");
}

#[test]
fn a_store_is_told_what_saved_files_keep() {
    let place = Place::with_database();
    place.ok(&["store", "create", "a.larder", "raw"]);
    sql(&place, "ALTER TABLE main ADD COLUMN rating INTEGER");
    place.write("local", 5000);
    place.ok(&["put", "local", "a.larder:/f"]);
    let mut file = rate(&place, "/f");
    let set = |store: &str, what: &str| {
        let words = ["store", "set", "a.larder", store, "--save-keeps", what];
        let shown = place.json(&words);
        assert_eq!(shown["save_keeps"], what, "{shown}");
        let line = format!("saved files keep {what}\n");
        let said = place.ok(&words);
        assert!(said.ends_with(&line), "{said}");
    };
    let assert_told = |of_main: &str, of_raw: &str| {
        let list = place.json(&["store", "list", "a.larder"]);
        let told = [&list[0]["save_keeps"], &list[1]["save_keeps"]];
        assert_eq!(told, [of_main, of_raw], "{list}");
        let text = place.ok(&["store", "list", "a.larder"]);
        let lines: Vec<&str> = text.lines().collect();
        assert!(lines[1].ends_with(of_main), "{text}");
        assert!(lines[2].ends_with(of_raw), "{text}");
    };
    let save = |name: &str| {
        place.ok(&["put", "local", &format!("a.larder:/{name}")]);
        place.ok(&["mv", &format!("a.larder:/{name}"), "a.larder:/f"]);
    };
    assert_told("columns", "columns");
    save("first");
    assert_eq!(about(&place, "/f"), (json!(5), file), "SAVE-1");
    // Of one store alone.
    set("raw", "none");
    assert_told("columns", "none");
    file = about(&place, "/f").1;
    save("second");
    assert_eq!(about(&place, "/f"), (json!(5), file.clone()));
    set("main", "none");
    assert_told("none", "none");
    save("third");
    let (rating, other) = about(&place, "/f");
    assert_eq!(rating, Value::Null);
    assert_ne!(other, file);
    // A mount that is there already does the same from then on.
    let mut mount = serve(&place, &[]);
    let dir = place.path("mnt");
    for (what, keeps) in [("columns", true), ("none", false), ("columns", true)] {
        set("main", what);
        let file = rate(&place, "/f");
        std::fs::write(dir.join("new"), what).unwrap();
        mv(&dir.join("new"), &dir.join("f"));
        let (rating, other) = about(&place, "/f");
        assert_eq!(
            (rating == json!(5), other == file),
            (keeps, keeps),
            "{what}"
        );
        assert_eq!(std::fs::read(dir.join("f")).unwrap(), what.as_bytes());
    }
    place.ok(&["umount", "mnt"]);
    assert_eq!(mount.end(), (Some(0), String::new()));
    let keeps = |store, what| ["store", "set", "a.larder", store, "--save-keeps", what];
    place.fails(2, &keeps("main", "some"), "some");
    place.fails(1, &keeps("absent", "none"), "there is no store 'absent'");
    place.assert_clean("a.larder");
}
