//! Every verb of `larder --help`, as it is run on a hostile database; a verb that is missing here
//! fails a test.

use crate::support::Place;
use std::collections::BTreeSet;

/// How a verb is run, and ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// It ends by itself.
    Ends,
    /// It waits for something, and is interrupted.
    Lasts,
    /// A mount: its tree is walked, read and changed, then it is unmounted.
    Mounts,
    /// A mount whose tree is walked while the verb looks on, until it is interrupted.
    BesideMount,
    /// As `Ends`, when the transaction that the database has was aborted.
    AfterAbort,
    /// As `Ends`, in the transaction that the database has.
    InTransaction,
}

/// A verb with its arguments: `x.larder` is the database, `ID` its transaction.
#[derive(Debug, Clone, Copy)]
pub struct Verb {
    pub words: &'static [&'static str],
    pub how: How,
    /// The exit code on a sound database.
    pub code: i32,
}

const fn ends(words: &'static [&'static str]) -> Verb {
    Verb {
        words,
        how: How::Ends,
        code: 0,
    }
}

const fn of(how: How, words: &'static [&'static str]) -> Verb {
    Verb {
        words,
        how,
        code: 0,
    }
}

const fn fails(words: &'static [&'static str]) -> Verb {
    Verb {
        words,
        how: How::Ends,
        code: 1,
    }
}

/// What a transaction's program does.
const PROGRAM: &str = "ls -lR . > /dev/null; cp a new; rm -r dir; exit 0";

pub const VERBS: [Verb; 99] = [
    ends(&["check", "x.larder", "--read"]),
    ends(&["status", "x.larder"]),
    ends(&["check", "x.larder", "--untrusted"]),
    ends(&["check", "x.larder", "--fix-modes"]),
    of(How::Mounts, &["mount", "x.larder", "mnt"]),
    of(How::Mounts, &["mount", "x.larder", "mnt", "--read-only"]),
    of(How::Mounts, &["mount", "x.larder@first", "mnt"]),
    of(
        How::Mounts,
        &["mount", "x.larder", "mnt", "-o", "history=show"],
    ),
    of(How::BesideMount, &["trace", "x.larder"]),
    of(How::BesideMount, &["trace", "x.larder", "--summary"]),
    of(How::BesideMount, &["watch", "x.larder", "--enable"]),
    of(How::BesideMount, &["put", "a", "x.larder:/beside"]),
    of(How::BesideMount, &["umount", "x.larder"]),
    of(How::Lasts, &["trace", "x.larder"]),
    fails(&["umount", "x.larder"]),
    fails(&["umount", "mnt"]),
    fails(&["init", "x.larder"]),
    ends(&["txn", "run", "x.larder", "--", "sh", "-c", PROGRAM]),
    ends(&["txn", "run", "x.larder", "--mount", "mnt", "--", "true"]),
    ends(&["txn", "begin", "x.larder"]),
    ends(&["txn", "status", "x.larder", "ID"]),
    ends(&["txn", "commit", "x.larder", "ID"]),
    ends(&["txn", "abort", "x.larder", "ID"]),
    ends(&["txn", "list", "x.larder"]),
    of(How::InTransaction, &["ls", "-lR", "x.larder:/"]),
    of(How::InTransaction, &["put", "a", "x.larder:/inside"]),
    of(How::InTransaction, &["rm", "-r", "x.larder:/dir"]),
    of(
        How::InTransaction,
        &["sql", "x.larder", "UPDATE main SET rating = 2"],
    ),
    of(How::InTransaction, &["get", "x.larder:/big", "out"]),
    ends(&["ls", "-lR", "x.larder:/"]),
    ends(&["cat", "x.larder:/a"]),
    ends(&["cat", "x.larder:/big"]),
    ends(&["stat", "x.larder:/a"]),
    ends(&["find", "x.larder:/"]),
    ends(&["du", "x.larder:/"]),
    ends(&["get", "x.larder:/big", "out"]),
    ends(&["cp", "-a", "x.larder:/", "tree"]),
    ends(&["cp", "-r", "x.larder:/dir", "x.larder:/copy"]),
    ends(&["df", "x.larder"]),
    ends(&["frag", "x.larder"]),
    ends(&["stats", "x.larder", "--count", "1", "--interval", "100ms"]),
    ends(&["sql", "x.larder", "SELECT count(*) FROM main"]),
    ends(&[
        "sql",
        "x.larder",
        "--read-only",
        "SELECT count(*) FROM files('/**')",
    ]),
    ends(&[
        "sql",
        "x.larder",
        "--as-of",
        "first",
        "SELECT count(*) FROM main",
    ]),
    ends(&["sql", "x.larder", "UPDATE main SET rating = 1"]),
    ends(&["sql", "x.larder", "CREATE TABLE mine (x)"]),
    ends(&["store", "list", "x.larder"]),
    ends(&["store", "create", "x.larder", "more"]),
    ends(&["store", "set", "x.larder", "side", "--mount", "/elsewhere"]),
    ends(&["store", "destroy", "x.larder", "side"]),
    ends(&["snapshot", "list", "x.larder"]),
    ends(&["snapshot", "create", "x.larder", "later"]),
    ends(&["snapshot", "hold", "x.larder", "first", "tag"]),
    ends(&["snapshot", "release", "x.larder", "sealed", "kept"]),
    ends(&["snapshot", "seal", "x.larder", "first"]),
    ends(&["snapshot", "verify", "x.larder", "sealed"]),
    ends(&["snapshot", "destroy", "x.larder", "first"]),
    ends(&["log", "x.larder"]),
    ends(&["log", "x.larder:/a"]),
    fails(&["diff", "x.larder@first:/", "x.larder:/"]),
    ends(&["ls", "-lR", "x.larder@first:/"]),
    ends(&["get", "x.larder@first:/big", "out"]),
    ends(&["rows", "x.larder@first", "album"]),
    ends(&["retention", "x.larder"]),
    ends(&["retention", "x.larder", "2h"]),
    ends(&["retention", "x.larder", "1s"]),
    ends(&["watch", "x.larder", "--enable", "--once"]),
    ends(&["put", "a", "x.larder:/new"]),
    ends(&["put", "a", "x.larder:/a"]),
    ends(&["cp", "-a", "dir", "x.larder:/in"]),
    ends(&["mkdir", "x.larder:/dir/new"]),
    ends(&["ln", "x.larder:/a", "x.larder:/hard"]),
    ends(&["ln", "-s", "a", "x.larder:/soft"]),
    ends(&["mv", "x.larder:/a", "x.larder:/b"]),
    ends(&["mv", "x.larder:/dir", "out"]),
    ends(&["rm", "-r", "x.larder:/dir"]),
    ends(&["rm", "-r", "x.larder:/dir", "--dry-run"]),
    ends(&["clone", "x.larder:/big", "x.larder:/twin"]),
    ends(&["clone", "x.larder@first:/dir", "x.larder:/dirs"]),
    ends(&["restore", "x.larder@first:/a"]),
    ends(&["restore", "x.larder@first:/dir", "--exact"]),
    ends(&["undo", "x.larder", "LAST"]),
    of(How::AfterAbort, &["rollback", "x.larder", "first"]),
    ends(&["promote", "x.larder:/dir", "x.larder:/other"]),
    ends(&["promote", "x.larder:/third", "x.larder:/side"]),
    ends(&["track", "x.larder", "main"]),
    ends(&["track", "x.larder"]),
    ends(&["untrack", "x.larder", "album"]),
    ends(&["refused", "list", "x.larder"]),
    ends(&["refused", "get", "x.larder", "1", "out"]),
    ends(&["refused", "drop", "x.larder", "1"]),
    ends(&["prune", "x.larder", "--keep-last", "1"]),
    ends(&["prune", "x.larder", "--older-than", "seq:3"]),
    ends(&["defrag", "x.larder"]),
    of(How::AfterAbort, &["shrink", "x.larder"]),
    ends(&[
        "splice",
        "x.larder:/a",
        "1",
        "--delete",
        "1",
        "--insert",
        "a",
    ]),
    fails(&["upgrade", "x.larder", "new.larder"]),
    ends(&["extension", "x.larder"]),
    ends(&[
        "sql",
        "x.larder",
        "SELECT count(*) FROM main; SELECT * FROM album; DELETE FROM album",
    ]),
];

/// Verbs that open no database that they are given.
const OPENS_NOTHING: [&str; 7] = [
    "completions",
    "doctor",
    "snapshot keygen",
    // The laboratory opens databases that it has made itself, and measures for minutes.
    "lab run",
    "lab list",
    "lab report",
    "lab compare",
];
/// It measures the disk below a place, which may be a database, and does not open it.
const MEASURES: &str = "lab advise";

/// The commands that a help text lists.
fn listed(place: &Place, of: &[&str]) -> Vec<String> {
    let help = place.ok(&[of, &["--help"]].concat());
    let commands = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    commands
        .take_while(|line| !line.is_empty())
        .filter(|line| line.starts_with("  ") && !line.starts_with("   "))
        .filter_map(|line| line.split_whitespace().next())
        .map(str::to_owned)
        .collect()
}

#[test]
fn the_table_has_every_verb() {
    let place = Place::new();
    let mut all = BTreeSet::new();
    for verb in listed(&place, &[]) {
        let below = listed(&place, &[verb.as_str()]);
        match below.is_empty() {
            true => drop(all.insert(verb)),
            false => all.extend(below.iter().map(|name| format!("{verb} {name}"))),
        }
    }
    assert!(all.len() > 50, "{all:?}");
    let has = |name: &&String| {
        let words: Vec<&str> = name.split(' ').collect();
        VERBS.iter().any(|verb| verb.words.starts_with(&words))
            || OPENS_NOTHING.contains(&name.as_str())
            || name.as_str() == MEASURES
    };
    let missing: Vec<&String> = all.iter().filter(|name| !has(name)).collect();
    assert!(missing.is_empty(), "not in the table: {missing:?}");
}
