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

/// Nothing in what was printed acts on the terminal, and nothing in it is a line of ours.
fn assert_harmless(what: &str, said: &str) {
    let acts = |one: char| {
        one.is_control() && !matches!(one, '\r' | '\n') || ('\u{202a}'..='\u{202e}').contains(&one)
    };
    assert!(!said.contains(acts), "CLI-41: {what}: {said:?}");
    let is_forged = said.lines().any(|line| line.starts_with("larder: forged"));
    assert!(!is_forged, "CLI-41: {what}: {said:?}");
}

/// Whether the name can be read in what was printed.
fn is_shown(said: &str) -> bool {
    // A failure joins the lines of a name by a space.
    said.contains(VISIBLE) || said.contains(&VISIBLE.replace("\\n", " "))
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
        assert_harmless(command, &said);
        let shows_name = !["larder frag", "larder diff", "larder \"$NAME"]
            .iter()
            .any(|other| command.starts_with(other));
        assert!(
            !shows_name || is_shown(&said),
            "CLI-41: {command}: {said:?}"
        );
    }
}

/// What is told of a database, its sessions and its mounts.
#[test]
fn what_is_told_of_a_database_does_not_drive_terminals() {
    let place = Place::with_database();
    place.ok(&["retention", "a.larder", "1h"]);
    std::fs::write(place.path(NAME), "x").unwrap();
    std::fs::create_dir(place.path(&format!("d{NAME}"))).unwrap();
    place.ok(&["snapshot", "create", "a.larder", "first"]);
    place.ok(&["snapshot", "hold", "a.larder", "first", "kept"]);
    // As a stranger writes it.
    let about = format!("at_ns 1\nstore 1\nino 7\nsize -\nwhy it\x1b[2J\npath /dir/{NAME}");
    std::fs::create_dir(place.path("a.larder/refused")).unwrap();
    std::fs::write(place.path("a.larder/refused/1"), about).unwrap();
    let store = format!("/m{NAME}");
    place.ok(&["store", "create", "a.larder", "side", "--mount", &store]);
    let at = format!("d{NAME}");
    place.ok(&["mount", "--daemon", "a.larder", &at]);
    std::fs::write(place.path(&at).join(NAME), "y").unwrap();
    for (command, shows_name) in [
        ("larder status a.larder", true),
        ("larder refused list a.larder", true),
        ("larder store list a.larder", true),
        ("larder snapshot list a.larder", false),
        ("larder txn list a.larder", false),
        ("larder check a.larder", false),
        ("larder stats a.larder --count 1 --interval 10ms", false),
        ("larder df a.larder", false),
        ("larder retention a.larder", false),
        ("larder track a.larder", false),
        ("larder cp \"$NAME\" a.larder:/copy", false),
        ("larder put \"$NAME\" \"a.larder:/none/$NAME\"", false),
        ("larder snapshot create a.larder \"$NAME\"", false),
        ("larder snapshot destroy a.larder \"$NAME\"", false),
        ("larder snapshot hold a.larder first \"$NAME\"", false),
        ("larder snapshot list a.larder", false),
        ("larder store create a.larder \"$NAME\"", false),
        ("larder store destroy a.larder \"$NAME\"", false),
        ("larder txn commit a.larder \"$NAME\"", false),
        ("larder rows a.larder \"$NAME\"", false),
        ("larder mount a.larder \"none$NAME\"", false),
        ("larder umount \"d$NAME\"", false),
        ("larder umount \"d$NAME\"", false),
    ] {
        let said = on_terminal(&place, command);
        assert_harmless(command, &said);
        assert!(
            !shows_name || is_shown(&said),
            "CLI-41: {command}: {said:?}"
        );
    }
    let log = std::fs::read_to_string(place.path("a.larder/mount.log")).unwrap();
    assert_harmless("mount.log", &log);
}

/// Verbs that walk and tell of what they meet, beside the line that shows how far they are.
#[test]
fn what_long_verbs_meet_does_not_drive_terminals() {
    let place = Place::with_database();
    place.ok(&["retention", "a.larder", "1h"]);
    let tree = place.path("tree");
    let below = tree.join(format!("d{NAME}"));
    std::fs::create_dir_all(&below).unwrap();
    std::fs::write(below.join(NAME), "x").unwrap();
    std::os::unix::fs::symlink(NAME, below.join(format!("l{NAME}"))).unwrap();
    // It is told of, and left out.
    let socket = below.join(format!("s{NAME}"));
    drop(std::os::unix::net::UnixListener::bind(socket).unwrap());
    let open = format!("o{NAME}");
    place.ok(&["init", &open]);
    let permissions = std::os::unix::fs::PermissionsExt::from_mode(0o755);
    std::fs::set_permissions(place.path(&open), permissions).unwrap();
    for (command, shows_name) in [
        ("larder cp -r tree a.larder:/", false),
        ("larder cp -r tree \"a.larder:/c$NAME\"", false),
        ("larder cp -a \"a.larder:/c$NAME\" \"got$NAME\"", false),
        ("larder cp -r \"a.larder:/c$NAME\" \"none/$NAME\"", true),
        ("larder cp \"a.larder:/c$NAME\" tree", true),
        (
            "larder clone \"a.larder:/c$NAME\" \"a.larder:/k$NAME\"",
            true,
        ),
        ("larder mv \"a.larder:/k$NAME\" a.larder:/none/k", false),
        ("larder rm \"a.larder:/c$NAME\"", true),
        ("larder rm -r \"a.larder:/c$NAME\"", false),
        ("larder restore \"a.larder@seq:4:/c$NAME\" --dry-run", true),
        ("larder undo a.larder 2", true),
        ("larder rollback a.larder seq:1 --dry-run", false),
        ("larder find a.larder:/ --name '*forged'", true),
        ("larder du a.larder:/", true),
        ("larder check --read a.larder", false),
        ("larder check \"o$NAME\"", true),
        ("larder defrag \"$NAME\"", true),
        ("larder completions \"$NAME\"", false),
        (
            "larder sql a.larder \"SELECT '$NAME' AS \\\"$NAME\\\"\"",
            true,
        ),
        ("larder sql a.larder \"SELEC '$NAME'\"", false),
        ("larder txn run a.larder -- \"none$NAME\"", true),
    ] {
        let said = on_terminal(&place, command);
        assert_harmless(command, &said);
        assert!(
            !shows_name || is_shown(&said),
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
