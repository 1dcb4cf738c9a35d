//! `larder snapshot seal`, `verify` and `keygen` on real databases.

use crate::support::Place;
use crate::time::{put, with_history};
use std::fs;
use std::os::unix::fs::PermissionsExt;

/// The link in the last line.
fn link(told: &str) -> String {
    let last = told.lines().last().unwrap();
    let (head, link) = last.rsplit_once(' ').unwrap();
    assert!(head.starts_with("link "), "{told}");
    assert_eq!(link.len(), 64, "{told}");
    link.to_owned()
}

/// A command that ends with code 1 after it told something; its stdout.
fn finds(place: &Place, arguments: &[&str]) -> String {
    let done = place.run(arguments);
    assert_eq!(
        (done.code, done.stderr.as_str()),
        (Some(1), ""),
        "{arguments:?}"
    );
    String::from_utf8(done.stdout).unwrap()
}

#[test]
fn snapshots_are_sealed_and_verified() {
    let place = with_history();
    put(&place, "/f", "one");
    put(&place, "/g", "two");
    let made = place.ok(&["snapshot", "keygen", "auditor.key"]);
    assert!(made.starts_with("made auditor.key, "), "{made}");
    let mode = fs::metadata(place.path("auditor.key")).unwrap();
    assert_eq!(mode.permissions().mode() & 0o777, 0o600);
    place.fails(1, &["snapshot", "keygen", "auditor.key"], "auditor.key");

    place.fails(
        1,
        &["snapshot", "verify", "a.larder", "--all"],
        "no snapshot is sealed",
    );
    place.fails(1, &["snapshot", "seal", "a.larder", "s"], "snapshot 's'");
    let told = place.ok(&["snapshot", "create", "a.larder", "s", "--seal"]);
    assert!(told.contains("sealed snapshot s, commit "), "{told}");
    assert!(told.contains(": 2 files, 6 B of content\n"), "{told}");
    let first = link(&told);
    put(&place, "/f", "three");
    place.ok(&["snapshot", "create", "a.larder", "t"]);
    let key = ["--sign", "auditor.key"];
    let told = place.ok(&[&["snapshot", "seal", "a.larder", "t"], &key[..]].concat());
    assert!(told.contains(", signed\n"), "{told}");
    let second = link(&told);

    let all = ["snapshot", "verify", "a.larder", "--all"];
    let told = place.ok(&all);
    assert!(told.contains("seal 1 of snapshot s, commit "), "{told}");
    assert!(
        told.contains(": as it was sealed: 2 files, 6 B of content\n"),
        "{told}"
    );
    assert_eq!(link(&told), second);
    place.ok(&["snapshot", "verify", "a.larder", "s", "--expect", &second]);
    let public = ["--public-key", "auditor.key.pub"];
    place.ok(&[&["snapshot", "verify", "a.larder", "t"], &public[..]].concat());
    let told = finds(&place, &[&all[..], &public].concat());
    assert!(told.contains("seal 1 (s): it is not signed\n"), "{told}");
    let other = "0".repeat(64);
    let told = finds(&place, &[&all[..], &["--expect", &other]].concat());
    assert!(
        told.starts_with("the chain does not have the link"),
        "{told}"
    );

    // Somebody changes what was, by SQL that opens the guard switch, and knows the format.
    let checksum = larder::format::checksum::crc32c(b"own");
    let tamper = format!(
        "UPDATE larder_guard_switch SET open = 1; \
         UPDATE larder_history SET value = CAST('own' AS BLOB), checksum = {checksum} \
         WHERE what = 'content'; \
         UPDATE larder_guard_switch SET open = 0"
    );
    let done = std::process::Command::new("sqlite3")
        .arg(place.path("a.larder/catalog.db"))
        .arg(tamper)
        .status();
    assert!(done.unwrap().success());
    let told = finds(&place, &["snapshot", "verify", "a.larder", "s"]);
    assert!(
        told.starts_with("seal 1 (s): /f: its content differs\n"),
        "{told}"
    );
    assert!(told.contains(": 1 finding\n"), "{told}");
    let told = finds(&place, &[&all[..], &["--json"]].concat());
    let told: serde_json::Value = serde_json::from_str(&told).unwrap();
    assert_eq!(told["is_clean"], false);
    assert_eq!(told["seals"][0]["link"], first);
    assert_eq!(told["seals"][0]["findings"][0]["path"], "/f");

    place.ok(&["snapshot", "destroy", "a.larder", "s"]);
    let told = place.run(&all);
    let told = String::from_utf8(told.stdout).unwrap();
    assert!(
        told.contains("its snapshot was destroyed, the link is in its place"),
        "{told}"
    );

    for (arguments, why) in [
        (&["snapshot", "verify", "a.larder"][..], "<NAME>"),
        (
            &["snapshot", "verify", "a.larder", "t", "--expect", "12"],
            "64 hexadecimal digits",
        ),
        (
            &[
                "snapshot",
                "create",
                "a.larder",
                "u",
                "--sign",
                "auditor.key",
            ],
            "--seal",
        ),
    ] {
        place.fails(2, arguments, why);
    }
    let wrong = [
        "snapshot",
        "seal",
        "a.larder",
        "t",
        "--sign",
        "auditor.key.pub",
    ];
    place.fails(1, &wrong, "no Ed25519 private key");
    let missing = [
        "snapshot",
        "verify",
        "a.larder",
        "t",
        "--public-key",
        "none",
    ];
    place.fails(1, &missing, "cannot read the key none");
    place.assert_closed("a.larder");
}

#[test]
fn a_store_shows_the_past() {
    let place = with_history();
    put(&place, "/f", "one");
    place.ok(&["snapshot", "create", "a.larder", "s"]);
    put(&place, "/f", "two");
    place.ok(&[
        "store",
        "create",
        "a.larder",
        "then",
        "--provider",
        "asof=s",
    ]);
    assert_eq!(place.ok(&["cat", "a.larder:/then/f"]), "one");
    let told = place.ok(&["store", "list", "a.larder"]);
    assert!(told.contains("asof=s"), "{told}");
    place.fails(1, &["rm", "a.larder:/then/f"], "cannot be changed");
    place.fails(
        1,
        &["snapshot", "destroy", "a.larder", "s"],
        "store 'then' shows",
    );
    place.ok(&["store", "destroy", "a.larder", "then"]);
    place.ok(&["snapshot", "destroy", "a.larder", "s"]);
    place.assert_clean("a.larder");
}
