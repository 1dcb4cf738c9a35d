//! `larder splice`, and what `larder sql` does in the middle of files.

use crate::support::Place;
use serde_json::json;

#[test]
fn bytes_go_into_the_middle_of_a_file_and_out_of_it() {
    let place = Place::with_database();
    let mut expected = place.write("big", 3 << 20);
    let middle = place.write("middle", 5000);
    place.ok(&["put", "big", "a.larder:/big"]);
    place.ok(&["splice", "a.larder:/big", "1000001", "--insert", "middle"]);
    expected.splice(1_000_001..1_000_001, middle.iter().copied());
    place.ok(&["splice", "a.larder:/big", "2M", "--delete", "100K"]);
    expected.drain(2 << 20..(2 << 20) + (100 << 10));
    let size = place.json(&[
        "splice",
        "a.larder:/big",
        "0",
        "--delete",
        "3",
        "--insert",
        "middle",
    ]);
    expected.splice(0..3, middle.iter().copied());
    assert_eq!(size, json!({ "size_bytes": expected.len() }));
    let done = place.run_with(&["splice", "a.larder:/big", "7", "--insert", "-"], b"stdin");
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    expected.splice(7..7, *b"stdin");
    let end = expected.len().to_string();
    let append = ["splice", "a.larder:/big", &end, "--insert", "middle"];
    place.ok(&append);
    expected.extend(&middle);
    assert!(place.run(&["cat", "a.larder:/big"]).stdout == expected);
    for (arguments, cause) in [
        (
            &["splice", "a.larder:/big", "1"][..],
            "nothing is to be done",
        ),
        (
            &["splice", "a.larder:/none", "0", "--delete", "1"],
            "does not exist",
        ),
        (&["splice", "a.larder:/", "0", "--delete", "1"], "directory"),
        (
            &["splice", "a.larder:/big", "1", "--insert", "none"],
            "cannot read 'none'",
        ),
        (
            &["splice", "a.larder:/big", "9G", "--insert", "middle"],
            "bytes",
        ),
        (&["splice", "a.larder:/big", "0", "--delete", "9G"], "bytes"),
    ] {
        place.fails(1, arguments, cause);
    }
    place.fails(2, &["splice", "big", "0", "--delete", "1"], "DB:/path");
    assert!(place.run(&["cat", "a.larder:/big"]).stdout == expected);
    place.assert_clean("a.larder");
}

#[test]
fn a_statement_replaces_a_part_of_a_file_with_its_rows_or_not_at_all() {
    let place = Place::with_database();
    let mut expected = place.write("big", 1 << 20);
    place.ok(&["put", "big", "a.larder:/big"]);
    let sql = |text: &str| place.json(&["sql", "a.larder", text]);
    let insert = "SELECT write_content('/big', 500001, 0, 'in the middle') AS n";
    assert_eq!(sql(insert), json!([{ "n": 13 }]));
    expected.splice(500_001..500_001, *b"in the middle");
    // In order, each on what the one before has left; and with the rows of its statement.
    place.ok(&[
        "sql",
        "a.larder",
        "CREATE TABLE done (bytes INTEGER CHECK (bytes < 5))",
    ]);
    let both = "INSERT INTO done VALUES (write_content('/big', 0, 10, x'')), \
                (write_content('/big', 0, 0, 'ab'))";
    place.ok(&["sql", "a.larder", both]);
    expected.splice(0..10, *b"ab");
    let refused = "INSERT INTO done VALUES (write_content('/big', 0, 1, x'')), \
                   (write_content('/big', 0, 0, 'abcdef'))";
    place.fails(1, &["sql", "a.larder", refused], "CHECK");
    for (text, cause) in [
        (
            "SELECT write_content('/none', 0, 0, 'x')",
            "there is no such file",
        ),
        ("SELECT write_content('/big', -1, 0, 'x')", "the offset"),
        ("SELECT write_content('/big', 0, 'a', 'x')", "the length"),
        ("SELECT write_content('/big', 0, 0, NULL)", "is NULL"),
        (
            "SELECT write_content('/big', 99999999, 0, 'x')",
            "write_content('/big')",
        ),
        ("SELECT write_content('/', 0, 0, 'x')", "write_content"),
    ] {
        place.fails(1, &["sql", "a.larder", text], cause);
    }
    assert!(place.run(&["cat", "a.larder:/big"]).stdout == expected);
    place.assert_clean("a.larder");
}
