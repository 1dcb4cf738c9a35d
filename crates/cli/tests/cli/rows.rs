//! The real `larder` on real databases: SQL, stores, reports and damage.

use crate::support::Place;
use serde_json::json;
use std::os::unix::fs::FileExt;

fn with_files() -> Place {
    let place = Place::with_database();
    place.write("one", 10);
    place.write("two", 50_000);
    place.ok(&["cp", "one", "two", "a.larder:/"]);
    place
}

#[test]
fn files_are_rows() {
    let place = with_files();
    let query =
        "SELECT path, size FROM main_path JOIN main USING (ino) WHERE kind = 'file' ORDER BY path";
    assert_eq!(
        place.ok(&["sql", "a.larder", query]),
        "path   size\n----  -----\n/one     10\n/two  50000\n"
    );
    assert_eq!(
        place.ok(&["sql", "a.larder", query, "--csv"]),
        "path,size\r\n/one,10\r\n/two,50000\r\n"
    );
    let rows = place.json(&["sql", "a.larder", query]);
    assert_eq!(
        rows,
        json!([{ "path": "/one", "size": 10 }, { "path": "/two", "size": 50000 }])
    );
    assert_eq!(
        place.json(&["sql", "a.larder", "SELECT 1 WHERE 0"]),
        json!([])
    );

    let change = "ALTER TABLE main ADD COLUMN title TEXT; \
                  UPDATE main SET title = 'first', mode = 384 WHERE ino = (SELECT ino FROM \
                  main_path WHERE path = '/one')";
    assert_eq!(place.ok(&["sql", "a.larder", change]), "");
    let stat = place.json(&["stat", "a.larder:/one"]);
    assert_eq!(stat[0]["mode"], "0600", "an UPDATE of mode is a chmod");
    assert_eq!(
        stat[0]["xattrs"],
        json!([{ "name": "user.column.title", "value": "first", "value_hex": "6669727374" }])
    );
    place.assert_clean("a.larder");
}

#[test]
fn wrong_sql_is_explained() {
    let place = with_files();
    place.fails(
        1,
        &["sql", "a.larder", "SELECT 1;\nSELECT nothing FROM main"],
        "nothing",
    );
    place.fails(1, &["sql", "a.larder", "SELECT 1\nFORM main"], "line 2");
    let done = place.run(&["sql", "a.larder", "SELECT 1;\nSELECT nowhere FROM main"]);
    assert_eq!(
        done.stderr,
        "larder: line 2 column 8: no such column: nowhere; correct the statement\n    SELECT \
         nowhere FROM main\n           ^\n",
        "CLI-1"
    );
    let done = place.run_with(&["sql", "a.larder"], b"SELECT 1;\n\n SELECT oops;\n");
    assert!(
        done.stderr
            .starts_with("larder: statement at line 3 of the input: line 1 column 9: ")
            && done
                .stderr
                .ends_with("\n     SELECT oops;\n            ^\n"),
        "CLI-1: {}",
        done.stderr
    );
    place.fails(
        1,
        &["sql", "a.larder", "UPDATE main SET size = 3"],
        "kept by the engine",
    );
    place.fails(
        1,
        &["sql", "a.larder", "DELETE FROM main"],
        "delete it through the mount or the larder command",
    );
    place.fails(
        1,
        &["sql", "a.larder", "DELETE FROM larder_extent"],
        "kept by the engine",
    );
    place.fails(
        1,
        &["sql", "a.larder", "--read-only", "UPDATE main SET mode = 1"],
        "--read-only",
    );
    assert_eq!(
        place.ok(&["sql", "a.larder", "--read-only", "SELECT 1 AS one"]),
        "one\n---\n  1\n"
    );
    place.fails(
        2,
        &["sql", "a.larder", "SELECT 1", "--csv", "--json"],
        "--json",
    );
    place.assert_clean("a.larder");
}

#[test]
fn statements_come_from_stdin() {
    let place = with_files();
    let script = b"CREATE TABLE note (\n  id INTEGER,\n  text);\n\nINSERT INTO note VALUES (1, \
        'a;b');\nSELECT * FROM note;\nSELECT 2 AS id, 'c' AS text";
    let done = place.run_with(&["sql", "a.larder", "--json"], script);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let rows: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(
        rows,
        json!([{ "id": 1, "text": "a;b" }, { "id": 2, "text": "c" }]),
        "one document"
    );
    let done = place.run_with(
        &["sql", "a.larder"],
        b"\nSELECT 1;\n\nSELECT wrong;\nDROP TABLE note;\n",
    );
    done.assert_failed(1, "statement at line 4", "the script stops");
    assert_eq!(
        place.json(&["sql", "a.larder", "SELECT count(*) AS n FROM note"]),
        json!([{ "n": 1 }])
    );
}

#[test]
fn stores_come_and_go() {
    let place = with_files();
    assert_eq!(
        place.ok(&["store", "create", "a.larder", "raw"]),
        "created store raw at /raw\n"
    );
    place.ok(&["put", "two", "a.larder:/raw/"]);
    place.ok(&[
        "store",
        "create",
        "a.larder",
        "view",
        "--provider",
        "readonly",
        "--shows",
        "raw",
    ]);
    assert_eq!(
        place.run(&["cat", "a.larder:/view/two"]).stdout.len(),
        50_000
    );
    place.fails(1, &["put", "one", "a.larder:/view/"], "read-only");
    let list = place.json(&["store", "list", "a.larder"]);
    assert_eq!(
        list,
        json!([
            { "id": 0, "name": "main", "provider": "files", "mount": "/", "table": "main",
              "save_keeps": "columns" },
            { "id": 1, "name": "raw", "provider": "files", "mount": "/raw", "table": "raw",
              "save_keeps": "columns" },
            { "id": 2, "name": "view", "provider": "readonly", "mount": "/view", "table": "raw",
              "save_keeps": "columns" },
        ])
    );
    assert!(
        place
            .ok(&["store", "list", "a.larder"])
            .starts_with("STORE  PROVIDER  MOUNT")
    );
    assert_eq!(
        place.json(&[
            "sql",
            "a.larder",
            "SELECT size FROM raw WHERE kind = 'file'"
        ]),
        json!([{ "size": 50000 }])
    );

    place.ok(&["store", "set", "a.larder", "raw", "--mount", "/attic"]);
    assert_eq!(place.ok(&["ls", "a.larder:/attic"]), "two\n");
    place.ok(&["store", "set", "a.larder", "raw", "--provider", "readonly"]);
    place.fails(1, &["rm", "a.larder:/attic/two"], "read-only");
    place.ok(&["store", "set", "a.larder", "raw", "--provider", "files"]);

    place.fails(1, &["store", "create", "a.larder", "raw"], "raw");
    place.fails(1, &["store", "create", "a.larder", "main"], "main");
    place.fails(1, &["store", "create", "a.larder", "b; DROP"], "b; DROP");
    place.fails(
        1,
        &["store", "create", "a.larder", "x", "--provider", "magic"],
        "there is no provider 'magic'",
    );
    place.fails(
        1,
        &["store", "create", "a.larder", "x", "--mount", "/one"],
        "'/one' exists",
    );
    place.fails(
        1,
        &["store", "create", "a.larder", "x", "--shows", "none"],
        "there is no store 'none'",
    );
    place.fails(
        1,
        &["store", "set", "a.larder", "none", "--mount", "/n"],
        "there is no store 'none'",
    );
    place.fails(
        1,
        &["store", "destroy", "a.larder", "none"],
        "there is no store 'none'",
    );
    place.fails(1, &["store", "destroy", "a.larder", "main"], "main");
    place.fails(1, &["rm", "-r", "a.larder:/attic"], "larder store destroy");

    place.ok(&["store", "destroy", "a.larder", "view"]);
    let dry = place.ok(&["store", "destroy", "a.larder", "raw", "--dry-run"]);
    assert_eq!(
        dry,
        "would destroy store raw at /attic, which holds files\n"
    );
    assert_eq!(place.ok(&["ls", "a.larder:/attic"]), "two\n");
    place.ok(&["store", "destroy", "a.larder", "raw"]);
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "one\ntwo\n");
    place.fails(1, &["ls", "a.larder:/attic"], "attic");
    place.assert_clean("a.larder");
}

#[test]
fn reports_add_up() {
    let place = with_files();
    let space = place.json(&["df", "a.larder"]);
    let of = |key: &str| {
        space[key]
            .as_u64()
            .unwrap_or_else(|| panic!("{key}: {space}"))
    };
    assert_eq!(of("capacity_bytes"), 64 << 20);
    assert_eq!(of("live_bytes"), 13 * 4096, "the tiny file is inline");
    assert_eq!(
        of("capacity_bytes"),
        of("live_bytes") + of("retired_bytes") + of("free_bytes")
    );
    assert_eq!(of("inode_count"), 3);
    let frag = place.json(&["frag", "a.larder"]);
    assert_eq!(
        (
            &frag["fragments_per_object_mean"],
            &frag["fragments_per_object_max"]
        ),
        (&json!(1.0), &json!(1))
    );
    assert_eq!(
        (&frag["fragments_per_object_p99"], &frag["storage_age"]),
        (&json!(1), &json!(0.0))
    );
    for _ in 0..3 {
        place.ok(&["put", "two", "a.larder:/two"]);
    }
    let age = place.json(&["frag", "a.larder"])["storage_age"]
        .as_f64()
        .unwrap();
    assert!(
        (2.9..=3.1).contains(&age),
        "three of four versions are gone: {age}"
    );
    assert!(place.ok(&["df", "a.larder"]).contains("capacity"));
    assert!(place.ok(&["frag", "a.larder"]).contains("storage age"));
    let check = place.json(&["check", "a.larder", "--read"]);
    assert_eq!(
        (&check["clean"], &check["findings"]),
        (&json!(true), &json!([]))
    );
    assert!(place.ok(&["check", "a.larder"]).starts_with("clean: "));
}

#[test]
fn a_flipped_bit_is_found_and_named() {
    let place = with_files();
    let content = std::fs::read(place.path("two")).unwrap();
    let segments: Vec<_> = std::fs::read_dir(place.path("a.larder/segments"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .collect();
    assert_eq!(segments.len(), 1);
    let bytes = std::fs::read(&segments[0]).unwrap();
    let at = bytes
        .windows(1000)
        .position(|window| window == &content[..1000])
        .unwrap()
        + 5000;
    let file = std::fs::File::options()
        .write(true)
        .open(&segments[0])
        .unwrap();
    file.write_all_at(&[bytes[at] ^ 1], at as u64).unwrap();

    let done = place.run(&["check", "a.larder", "--read"]);
    let findings = String::from_utf8(done.stdout).unwrap();
    assert_eq!(
        (done.code, done.stderr.as_str(), findings.lines().count()),
        (Some(1), "", 1),
        "{findings}"
    );
    assert!(findings.contains("block"), "{findings}");
    let done = place.run(&["check", "a.larder", "--read", "--json"]);
    let report: serde_json::Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((done.code, &report["clean"]), (Some(1), &json!(false)));
    place.fails(1, &["cat", "a.larder:/two"], "segment");
    place.fails(1, &["get", "a.larder:/two", "back"], "block");
    assert!(!place.path("back").exists(), "CLI-10: whole or gone");
    assert_eq!(
        place.ok(&["cat", "a.larder:/one"]).len(),
        10,
        "others are unharmed"
    );
}

#[test]
fn a_newer_format_is_refused() {
    let place = with_files();
    place.ok(&["sql", "a.larder", "PRAGMA user_version = 99"]);
    place.fails(1, &["ls", "a.larder:/"], "newer");
    place.fails(1, &["check", "a.larder"], "newer");
}
