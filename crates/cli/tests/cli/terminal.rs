//! What goes to a terminal (`CLI-41`): `script` gives the commands one.

use crate::support::Place;
use std::process::Command;

/// A name that clears the screen, sets a colour by a C1 control, and turns the order of what
/// follows.
const NAME: &str = "a\x1b[2J\u{9b}31m\u{202e}txt.exe\nlarder: forged";
const VISIBLE: &str = "a\\x1b[2J\\u{9b}31m\\u{202e}txt.exe\\nlarder: forged";

/// What a shell command prints to a terminal, its stderr too.
fn on_terminal(place: &Place, command: &str) -> String {
    let line = command.replacen("larder", env!("CARGO_BIN_EXE_larder"), 1);
    let done = Command::new("script")
        .args(["-qefc", &line, "/dev/null"])
        .current_dir(place.path("."))
        .env("NAME", NAME)
        .output()
        .unwrap();
    // A line of progress is taken away so.
    let said = String::from_utf8(done.stdout).unwrap();
    said.replace("\x1b[2K", "").replace("\x1b[1A", "")
}

#[test]
fn names_do_not_drive_terminals() {
    let place = Place::with_database();
    place.ok(&["retention", "a.larder", "1h"]);
    std::fs::write(place.path(NAME), "x").unwrap();
    place.ok(&["cp", NAME, "a.larder:/"]);
    let there = format!("a.larder:/{NAME}");
    place.ok(&["mv", &there, "a.larder:/b"]);
    place.ok(&["mv", "a.larder:/b", &there]);
    for command in [
        "larder ls a.larder:/",
        "larder ls -l a.larder:/",
        "larder ls -R a.larder:/",
        "larder find a.larder:/",
        "larder du \"a.larder:/$NAME\"",
        "larder stat \"a.larder:/$NAME\"",
        "larder log a.larder",
        "larder log \"a.larder:/$NAME\"",
        "larder diff a.larder@-1h:/ a.larder:/",
        "larder frag a.larder",
        "larder sql a.larder 'SELECT path FROM main_path WHERE ino > 1'",
        "larder cat \"a.larder:/none$NAME\"",
        "larder get \"a.larder:/$NAME\" \"none/$NAME\"",
        "larder cp -r \"none$NAME\" a.larder:/",
        "larder rm --dry-run \"a.larder:/$NAME\"",
        "larder rm \"a.larder:/none$NAME\"",
        "larder umount \"$NAME\"",
        "larder check \"$NAME\"",
        "larder \"$NAME\"",
    ] {
        let said = on_terminal(&place, command);
        assert!(!said.is_empty(), "{command}");
        let acts = |one: char| {
            one.is_control() && !matches!(one, '\r' | '\n')
                || ('\u{202a}'..='\u{202e}').contains(&one)
        };
        assert!(!said.contains(acts), "CLI-41: {command}: {said:?}");
        let is_forged = said.lines().any(|line| line.starts_with("larder: forged"));
        assert!(!is_forged, "CLI-41: {command}: {said:?}");
        let shows_name = !["larder frag", "larder diff", "larder \"$NAME"]
            .iter()
            .any(|other| command.starts_with(other));
        // A failure joins the lines of a name by a space.
        let joined = VISIBLE.replace("\\n", " ");
        assert!(
            !shows_name || said.contains(VISIBLE) || said.contains(&joined),
            "CLI-41: {command}: {said:?}"
        );
    }
}

#[test]
fn programs_read_names_exactly() {
    let place = Place::with_database();
    std::fs::write(place.path(NAME), "x").unwrap();
    place.ok(&["cp", NAME, "a.larder:/"]);
    let exact = |arguments: &[&str], expected: &str| {
        assert_eq!(place.ok(arguments), expected, "CLI-41: {arguments:?}");
    };
    exact(&["ls", "a.larder:/"], &format!("{NAME}\n"));
    exact(
        &["find", "a.larder:/", "--name", "a*", "-0"],
        &format!("a.larder:/{NAME}\0"),
    );
    let query = "SELECT path FROM main_path WHERE ino > 1";
    exact(
        &["sql", "a.larder", query, "--csv"],
        &format!("path\r\n\"/{NAME}\"\r\n"),
    );
    let listed = place.json(&["ls", "a.larder:/"]);
    assert_eq!(listed[0]["name"], NAME, "CLI-41");
    // But stderr is for people, wherever it goes.
    let none = format!("a.larder:/none{NAME}");
    let said = place.run(&["cat", &none]).stderr;
    assert!(
        !said.contains('\x1b') && said.contains("\\x1b[2J"),
        "{said}"
    );
}
