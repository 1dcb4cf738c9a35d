//! `larder log`, `diff` and `restore` on real databases.

use crate::support::{Place, describe};
use crate::time::{now, put, with_history};
use std::fs;

/// A command with an exit code; its stdout.
fn exits(place: &Place, code: i32, arguments: &[&str]) -> String {
    let done = place.run(arguments);
    assert_eq!(
        (done.code, done.stderr.as_str()),
        (Some(code), ""),
        "{arguments:?}"
    );
    String::from_utf8(done.stdout).unwrap()
}

/// The lines of a log that are changes.
fn changes(log: &str) -> Vec<&str> {
    let lines = log.lines().filter(|line| line.starts_with("  "));
    lines.map(str::trim).collect()
}

#[test]
fn log_tells_what_happened_to_a_path() {
    let place = with_history();
    place.ok(&["mkdir", "a.larder:/d"]);
    put(&place, "/d/f", "one");
    put(&place, "/d/f", "two");
    place.ok(&["mv", "a.larder:/d/f", "a.larder:/g"]);
    put(&place, "/other", "x");
    // A slow machine may commit in the middle of a command: then content has a commit of its own.
    let log = place.ok(&["log", "a.larder:/g"]);
    assert!(log.starts_with("commit "), "{log}");
    assert!(log.contains("Z  by larder mv (process "), "{log}");
    let told = changes(&log);
    assert_eq!(told[0], "renamed     /d/f -> /g", "{log}");
    assert_eq!(told[1], "content     /d/f", "{log}");
    assert_eq!(told.last(), Some(&"created     /d/f"), "{log}");
    assert_eq!(place.ok(&["log", "a.larder:/d/f"]), log, "by its last path");
    let newest = place.ok(&["log", "a.larder", "--limit", "1"]);
    assert_eq!(newest.lines().count(), 2, "{newest}");
    assert!(newest.ends_with("     /other\n"), "{newest}");
    let all = place.json(&["log", "a.larder"]);
    let all = all.as_array().unwrap();
    let renamed = all
        .iter()
        .position(|commit| commit["changes"][0]["event"] == "renamed")
        .unwrap();
    assert_eq!(all[0]["changes"][0]["path"], "/other");
    assert_eq!(all[0]["author"]["label"], "larder put");
    assert_eq!(all[renamed]["changes"][0]["from"], "/d/f");
    assert!(all[0]["seq"].as_u64() > all[renamed]["seq"].as_u64());
    let below = place.ok(&["log", "a.larder:/d"]);
    assert_eq!(changes(&below)[0], "renamed     /d/f -> /g");
    assert_eq!(changes(&below).last(), Some(&"created     /d"));
    place.fails(1, &["log", "a.larder:/nobody"], "'/nobody' is not there");
    place.fails(2, &["log", &now(&place)], "without '@'");
    place.fails(2, &["log", "a.larder", "--limit", "0"], "0");
    place.fails(1, &["log", "none.larder"], "none.larder");
    place.ok(&["init", "b.larder", "--capacity", "64M", "--retention", "0"]);
    place.fails(1, &["log", "b.larder"], "keeps no history");
    place.assert_closed("a.larder");
}

#[test]
fn diff_says_what_differs_and_by_its_exit_code() {
    let place = with_history();
    place.ok(&["mkdir", "a.larder:/d"]);
    put(&place, "/d/same", "same");
    put(&place, "/d/edited", "one");
    put(&place, "/d/gone", "gone");
    put(&place, "/d/moved", "moved");
    let then = now(&place);
    put(&place, "/d/edited", "three");
    place.ok(&["rm", "a.larder:/d/gone"]);
    place.ok(&["mv", "a.larder:/d/moved", "a.larder:/d/new name"]);
    put(&place, "/d/added", "added");
    let at = |path: &str| format!("{then}:{path}");

    let told = exits(&place, 1, &["diff", &at("/d"), "a.larder:/d"]);
    assert_eq!(
        told,
        "added    /d/added\n\
         changed  /d/edited  (content, 3 -> 5 bytes)\n\
         removed  /d/gone\n\
         renamed  /d/moved -> /d/new name\n",
        "CLI-31"
    );
    assert_eq!(
        exits(&place, 0, &["diff", &at("/"), &at("/")]),
        "",
        "CLI-31"
    );
    let same = ["diff", &at("/d/same"), "a.larder:/d/same", "--cost"];
    assert_eq!(
        exits(&place, 0, &same),
        "content: 0 B read, 4 B known to be the same\n"
    );
    let done = place.run(&["diff", &at("/d"), "a.larder:/d", "--json"]);
    assert_eq!(done.code, Some(1), "CLI-31");
    let document: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(document["changes"][1]["differs"][0], "content");
    assert_eq!(document["changes"][1]["before"]["size_bytes"], 3);
    assert_eq!(document["changes"][3]["from"], "/d/moved");
    for arguments in [
        ["diff", "a.larder:/d", "a.larder:/nobody"],
        ["diff", "a.larder@1999-01-01:/", "a.larder:/"],
        ["diff", "a.larder:/d", "none.larder:/"],
        ["diff", "a.larder:/d", "local"],
    ] {
        place.fails(2, &arguments, "");
    }
    place.assert_closed("a.larder");
}

#[test]
fn restore_brings_a_deleted_tree_back_with_one_command() {
    let place = with_history();
    fs::create_dir_all(place.path("tree/deep")).unwrap();
    for index in 0..300 {
        fs::write(
            place.path(&format!("tree/deep/{index}")),
            [index as u8; 3000],
        )
        .unwrap();
    }
    fs::hard_link(place.path("tree/deep/1"), place.path("tree/link")).unwrap();
    std::os::unix::fs::symlink("deep/2", place.path("tree/symlink")).unwrap();
    place.ok(&["cp", "-a", "tree", "a.larder:/"]);
    let then = now(&place);
    place.ok(&["rm", "-r", "a.larder:/tree"]);

    let address = format!("{then}:/tree");
    let dry = place.ok(&["restore", &address, "--dry-run"]);
    assert!(dry.contains("would create      /tree/deep/299\n"), "{dry}");
    assert!(dry.contains("would link        /tree/deep/1\n"), "{dry}");
    assert!(dry.contains("would restore /tree as of commit "), "{dry}");
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "", "nothing was done");
    let told = place.ok(&["restore", &address]);
    assert!(
        told.starts_with("restored /tree as of commit ")
            && told.contains(": 303 created, 1 linked; "),
        "{told}"
    );
    place.ok(&["cp", "-a", "a.larder:/tree", "back"]);
    assert_eq!(
        describe(&place.path("back")),
        describe(&place.path("tree")),
        "CONTENT-12"
    );
    exits(&place, 0, &["diff", &address, "a.larder:/tree"]);
    let told = place.ok(&["restore", &address]);
    assert!(told.contains("nothing to do"), "{told}");

    // One file, and other places.
    put(&place, "/tree/deep/7", "edited");
    let one = place.json(&["restore", &format!("{then}:/tree/deep/7")]);
    assert_eq!(one["steps"][0]["action"], "written");
    assert_eq!(one["steps"].as_array().unwrap().len(), 1);
    place.ok(&["restore", &format!("{then}:/tree/deep"), "/copy"]);
    place.ok(&["restore", &address, "a.larder:/other copy"]);
    exits(&place, 0, &["diff", &address, "a.larder:/other copy"]);
    put(&place, "/tree/later", "x");
    place.ok(&["restore", &address]);
    assert_eq!(place.ok(&["cat", "a.larder:/tree/later"]), "x");
    place.ok(&["restore", &address, "--exact"]);
    place.fails(1, &["ls", "a.larder:/tree/later"], "later");

    place.fails(2, &["restore", "a.larder:/tree"], "names no moment");
    place.fails(
        2,
        &["restore", &address, "relative"],
        "no path in the database",
    );
    place.fails(2, &["restore", &address, "b.larder:/x"], "another database");
    place.fails(1, &["restore", &format!("{then}:/nobody")], "nobody");
    place.fails(1, &["restore", "a.larder@-1y:/tree"], "history begins");
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn a_directory_and_its_rows_are_restored_with_one_command() {
    let place = with_history();
    place.ok(&["mkdir", "a.larder:/2026"]);
    put(&place, "/2026/a", "content of a");
    place.ok(&[
        "sql",
        "a.larder",
        "CREATE TABLE album (path TEXT PRIMARY KEY, title TEXT)",
    ]);
    place.ok(&["track", "a.larder", "album"]);
    place.ok(&[
        "sql",
        "a.larder",
        "INSERT INTO album VALUES ('/2026/a', 'The sea'), ('/2027/b', 'Not yet')",
    ]);
    assert!(
        place
            .ok(&["track", "a.larder"])
            .starts_with("album  since commit ")
    );
    let tables = place.json(&["track", "a.larder"]);
    assert_eq!(tables[0]["table"], "album");
    put(&place, "/other", "x");
    let then = now(&place);
    place.ok(&["rm", "-r", "a.larder:/2026"]);
    place.ok(&[
        "sql",
        "a.larder",
        "DELETE FROM album; ALTER TABLE album ADD COLUMN rating",
    ]);

    // Both as they were.
    assert_eq!(
        place.ok(&["cat", &format!("{then}:/2026/a")]),
        "content of a"
    );
    let filter = "path LIKE '/2026/%'";
    let rows = place.json(&["rows", &then, "album", "--where", filter]);
    assert_eq!(
        rows,
        serde_json::json!([{ "path": "/2026/a", "title": "The sea", "rating": null }])
    );
    assert_eq!(
        place.ok(&["rows", &then, "album", "--csv"]).lines().count(),
        3
    );
    // And back with one command.
    let restore = [
        "restore",
        &format!("{then}:/2026"),
        "--table",
        "album",
        "--where",
        filter,
    ];
    let dry = place.ok(&[&restore[..], &["--dry-run"]].concat());
    assert!(
        dry.contains("would restore table album as of commit "),
        "{dry}"
    );
    assert!(dry.ends_with(": 1 inserted\n"), "{dry}");
    let told = place.ok(&restore);
    assert!(told.contains("restored /2026 as of commit "), "{told}");
    assert!(told.ends_with(": 1 inserted\n"), "{told}");
    assert_eq!(place.ok(&["cat", "a.larder:/2026/a"]), "content of a");
    let rows = place.json(&["sql", "a.larder", "SELECT path FROM album"]);
    assert_eq!(rows, serde_json::json!([{ "path": "/2026/a" }]));
    let all = place.json(&["restore", &then, "--table", "album"]);
    assert_eq!(all["rows"][0]["inserted"], 1);
    place.ok(&["untrack", "a.larder", "album"]);
    place.fails(1, &["rows", &then, "album"], "has no past");

    place.fails(1, &["track", "a.larder", "main_map"], "table of larder");
    place.fails(1, &["track", "a.larder", "nobody"], "table 'nobody'");
    place.fails(1, &["untrack", "a.larder", "album"], "album");
    place.fails(2, &["rows", "a.larder", "album"], "names no moment");
    place.fails(2, &["restore", &then], "names no path");
    place.fails(2, &["restore", &then, "--where", "1"], "--table");
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn columns_of_a_store_come_back_with_its_files() {
    let place = with_history();
    let sql = |text: &str| place.json(&["sql", "a.larder", text]);
    sql("ALTER TABLE main ADD COLUMN rating");
    place.ok(&["track", "a.larder", "main"]);
    place.ok(&["mkdir", "a.larder:/2026"]);
    put(&place, "/2026/a", "content of a");
    put(&place, "/2026/b", "content of b");
    sql(
        "UPDATE main SET rating = 5 WHERE ino = (SELECT ino FROM main_path WHERE path = '/2026/a')",
    );
    put(&place, "/other", "x");
    let then = now(&place);
    sql(
        "UPDATE main SET rating = 4 WHERE ino = (SELECT ino FROM main_path WHERE path = '/2026/b')",
    );
    let moment = then.split_once('@').unwrap().1;
    let as_of = |text: &str| {
        let argument = format!("--as-of={moment}");
        place.json(&["sql", &argument, "a.larder", text])
    };
    let ratings = "SELECT path, rating FROM main JOIN main_path USING (ino) WHERE rating NOT NULL";
    let expected = serde_json::json!([{ "path": "/2026/a", "rating": 5 }]);
    assert_eq!(as_of(ratings), expected);
    let rows = place.json(&["rows", &then, "main", "--where", "rating = 5"]);
    assert_eq!(rows[0]["rating"], 5);
    let difference = exits(&place, 1, &["diff", &format!("{then}:/"), "a.larder:/"]);
    assert_eq!(difference, "changed  /2026/b  (your columns)\n");
    // What plain SQL did counts to a commit of its own, when the next one comes.
    put(&place, "/other", "y");
    let log = place.ok(&["log", "a.larder:/2026/b"]);
    assert_eq!(changes(&log)[0], "columns     /2026/b", "{log}");

    place.ok(&["rm", "-r", "a.larder:/2026"]);
    let told = place.ok(&["restore", &format!("{then}:/2026")]);
    assert!(told.contains("restored /2026 as of commit "), "{told}");
    assert!(told.contains("restored table main as of commit "), "{told}");
    assert!(told.ends_with(": 1 updated\n"), "{told}");
    assert_eq!(sql(ratings), expected);
    sql("UPDATE main SET rating = 1");
    let keep = ["restore", &format!("{then}:/2026"), "--keep-columns"];
    assert!(!place.ok(&keep).contains("table main"));
    place.ok(&["rollback", "a.larder", moment]);
    assert_eq!(sql(ratings), expected);
    place.ok(&["untrack", "a.larder", "main"]);
    place.fails(1, &["rows", &then, "main"], "has no past");
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn undo_takes_one_commit_back() {
    let place = with_history();
    put(&place, "/f", "one");
    place.ok(&["mv", "a.larder:/f", "a.larder:/moved"]);
    let newest = place.json(&["log", "a.larder", "--limit", "1"]);
    let seq = newest[0]["seq"].to_string();
    put(&place, "/g", "later");
    let dry = place.ok(&["undo", "a.larder", &seq, "--dry-run"]);
    assert!(
        dry.starts_with(&format!("would take back commit {seq}, ")),
        "{dry}"
    );
    assert_eq!(changes(&dry), ["renamed     /f -> /moved"]);
    assert_eq!(place.ok(&["cat", "a.larder:/moved"]), "one");
    let told = place.json(&["undo", "a.larder", &seq]);
    assert_eq!(told["changes"][0]["from"], "/f");
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "f\ng\n");
    place.fails(
        1,
        &["undo", "a.larder", &seq],
        "later ones changed '/moved'",
    );
    place.fails(1, &["undo", "a.larder", "0"], "history begins");
    place.fails(
        1,
        &["undo", "a.larder", "99999"],
        "there is no commit 99999",
    );
    place.fails(2, &["undo", "a.larder", "x"], "'x'");
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn rollback_goes_back_and_back_again() {
    let place = with_history();
    let sql = |text: &str| place.ok(&["sql", "a.larder", text]);
    put(&place, "/kept", "one");
    put(&place, "/gone", "gone");
    sql("CREATE TABLE album (path TEXT PRIMARY KEY, title TEXT); CREATE TABLE notes (text)");
    place.ok(&["track", "a.larder", "album"]);
    sql("INSERT INTO album VALUES ('/gone', 'The sea')");
    put(&place, "/other", "x");
    let then = now(&place);
    let then = then.split_once('@').unwrap().1;
    put(&place, "/kept", "three");
    place.ok(&["rm", "a.larder:/gone"]);
    put(&place, "/added", "added");
    sql("DELETE FROM album; INSERT INTO notes VALUES ('stays')");

    let dry = place.ok(&["rollback", "a.larder", then, "--dry-run"]);
    for line in [
        "removed  /added\n",
        "added    /gone\n",
        "changed  /kept  (content, 5 -> 3 bytes)\n",
        "table album: would be 1 inserted\n",
        "not rolled back: table 'notes' is not tracked ('larder track'): its rows stay\n",
    ] {
        assert!(dry.contains(line), "{line}: {dry}");
    }
    assert!(dry.contains("would roll a.larder back to commit "), "{dry}");
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "added\nkept\nother\n");
    let told = place.ok(&["rollback", "a.larder", then]);
    assert!(told.contains(" brought back, "), "{told}");
    assert!(told.contains("table album: 1 inserted\n"), "{told}");
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "gone\nkept\nother\n");
    assert_eq!(place.ok(&["cat", "a.larder:/kept"]), "one");
    let album = place.json(&["sql", "a.larder", "SELECT title FROM album"]);
    assert_eq!(album, serde_json::json!([{ "title": "The sea" }]));
    let last = told.lines().last().unwrap();
    assert!(last.ends_with(" takes this back"), "{told}");
    let before = last.split('\'').nth(1).unwrap();
    let words: Vec<&str> = before.split(' ').collect();
    let again = place.json(&words[1..]);
    assert_eq!(again["rows"][0]["deleted"], 1);
    assert_eq!(place.ok(&["cat", "a.larder:/kept"]), "three");
    let main = place.ok(&["rollback", "a.larder:/", then]);
    assert!(main.contains("the rollback is of one store"), "{main}");
    assert_eq!(place.ok(&["cat", "a.larder:/gone"]), "gone");

    let fails = |arguments: &[&str], why: &str| {
        place.fails(1, &[&["rollback"][..], arguments].concat(), why);
    };
    fails(&["a.larder", "2999-01-01"], "in the future");
    fails(&["a.larder", "-1y"], "history begins");
    fails(&["a.larder", "nobody"], "snapshot 'nobody'");
    fails(&["a.larder:/kept", then], "larder restore --exact");
    fails(&["a.larder", "yesterday?"], "snapshot 'yesterday?'");
    place.fails(
        2,
        &["rollback", &format!("a.larder@{then}"), then],
        "DB MOMENT",
    );
    let begun = place.json(&["txn", "begin", "a.larder"]);
    let id = begun["transaction"].to_string();
    fails(&["a.larder", then], "larder txn list");
    place.ok(&["txn", "abort", "a.larder", &id]);
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}

#[test]
fn promote_exchanges_two_places() {
    let place = with_history();
    place.ok(&["mkdir", "a.larder:/a", "a.larder:/b"]);
    put(&place, "/a/f", "of a");
    let told = place.ok(&["promote", "a.larder:/a", "a.larder:/b"]);
    assert_eq!(told, "exchanged a.larder:/a and a.larder:/b\n");
    assert_eq!(place.ok(&["cat", "a.larder:/b/f"]), "of a");
    for store in ["one", "two"] {
        place.ok(&["store", "create", "a.larder", store]);
        put(&place, &format!("/{store}/f"), store);
    }
    place.ok(&["promote", "a.larder:/one", "a.larder:/two"]);
    assert_eq!(place.ok(&["cat", "a.larder:/one/f"]), "two");
    place.fails(
        1,
        &["promote", "a.larder:/a", "a.larder:/one"],
        "two of a kind",
    );
    place.fails(
        1,
        &["promote", "a.larder:/b/f", "a.larder:/a"],
        "not a directory",
    );
    place.ok(&["init", "b.larder", "--capacity", "64M"]);
    place.fails(
        2,
        &["promote", "a.larder:/a", "b.larder:/"],
        "two databases",
    );
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");
}
