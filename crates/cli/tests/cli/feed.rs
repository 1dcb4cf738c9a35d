//! `larder watch`, and locks as an option of the mount.

use crate::support::{Killed, Place};
use serde_json::Value;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

fn lines(text: &str) -> Vec<Value> {
    (text.lines().map(|line| serde_json::from_str(line).unwrap())).collect()
}

#[test]
fn changes_are_told_in_order_and_resumed() {
    let place = Place::with_database();
    place.fails(
        1,
        &["watch", "a.larder"],
        "the change feed of 'a.larder' is off",
    );
    place.ok(&["watch", "a.larder", "--enable", "--once"]);
    place.ok(&["mkdir", "a.larder:/f"]);
    place.ok(&["mv", "a.larder:/f", "a.larder:/g"]);
    place.ok(&["sql", "a.larder", "CREATE TABLE t(a)"]);
    place.ok(&["watch", "a.larder", "--table", "t", "--once"]);
    place.ok(&["sql", "a.larder", "INSERT INTO t VALUES (7)"]);
    let all = lines(&place.ok(&["watch", "a.larder", "--once", "--json"]));
    let ops: Vec<&str> = all
        .iter()
        .map(|line| line["op"].as_str().unwrap())
        .collect();
    assert_eq!(
        ops,
        ["begin", "create", "rename", "insert"],
        "CLI-26: {all:?}"
    );
    assert_eq!(all[2]["from_path"], "/f");
    assert_eq!(
        (&all[2]["path"], &all[2]["store"]),
        (&"/g".into(), &"main".into())
    );
    assert_eq!((&all[3]["table"], &all[3]["key"]), (&"t".into(), &1.into()));
    for (index, line) in all.iter().enumerate() {
        assert_eq!(line["seq"], index as u64 + 1, "CLI-26");
        let since = (index + 1).to_string();
        let rest = place.ok(&["watch", "a.larder", "--once", "--json", "--since", &since]);
        assert_eq!(lines(&rest), all[index + 1..], "CLI-26");
    }
    place.fails(
        1,
        &["watch", "a.larder", "--once", "--since", "99"],
        "not reached yet",
    );
    // One that follows hears of what comes.
    let mut follow = place.command(&["watch", "a.larder", "--since", "4"]);
    let mut follower = Killed::spawn(follow.stdout(Stdio::piped()));
    place.ok(&["mkdir", "a.larder:/d"]);
    let mut line = String::new();
    let mut told = BufReader::new(follower.stdout.take().unwrap());
    told.read_line(&mut line).unwrap();
    assert!(
        line.starts_with("5  ") && line.contains("  create  main ") && line.ends_with("  /d\n"),
        "{line}"
    );
    follower.kill().unwrap();
    follower.wait().unwrap();
    place.ok(&["watch", "a.larder", "--disable"]);
    place.assert_clean("a.larder");
}

#[test]
fn locks_are_an_option_of_the_mount() {
    let place = Place::with_database();
    place.fails(
        2,
        &["mount", "a.larder", "mnt", "-o", "locks=none"],
        "locks=none",
    );
}
