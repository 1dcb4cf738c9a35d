//! Who may use the past that `larder mount` shows, by its options, as an ordinary user sees it.

use crate::mount::Foreground;
use crate::support::Place;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

/// What an ordinary user reads, or `-`.
fn as_user(words: &[&str], path: &Path) -> String {
    let mut command = Command::new("setpriv");
    command
        .args(["--reuid", "65534", "--regid", "65534", "--clear-groups"])
        .args(words)
        .arg(path);
    let done = command.current_dir("/").output().unwrap();
    match done.status.success() {
        true => String::from_utf8(done.stdout)
            .unwrap()
            .trim_end()
            .to_owned(),
        false => "-".into(),
    }
}

fn chmod(path: &Path, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

#[test]
fn the_options_of_a_mount_say_who_reads_what_was_open_once() {
    if !rustix::process::geteuid().is_root() {
        return; // Only root acts for others.
    }
    let place = Place::new();
    chmod(&place.path("."), 0o755);
    place.ok(&["init", "a.larder", "--capacity", "64M", "--retention", "1h"]);
    for name in ["was", "is"] {
        fs::write(place.path(name), name).unwrap();
        chmod(&place.path(name), 0o644);
    }
    place.ok(&["cp", "-a", "was", "is", "a.larder:/"]);
    place.ok(&["snapshot", "create", "a.larder", "first"]);
    let seq = place.json(&["log", "a.larder"])[0]["seq"].to_string();
    {
        let mut mount = mounted(&place, &[]);
        chmod(&place.path("mnt/was"), 0o600);
        place.ok(&["umount", "mnt"]);
        mount.end();
    }
    // Of what was 0644 and is 0600 now, of what has stayed 0644, and the names of snapshots.
    for (option, expected) in [
        (None, ["-", "is", "first"]),
        (Some("history=both"), ["-", "is", "first"]),
        (Some("history=then"), ["was", "is", "first"]),
        (Some("history=root"), ["-", "-", "-"]),
        (Some("history=none"), ["-", "-", "-"]),
    ] {
        let options = option.map(|option| ["-o", option]);
        let mut mount = mounted(&place, options.as_ref().map_or(&[], |all| &all[..]));
        let root = place.path("mnt");
        for moment in [
            "at/first".into(),
            format!("at/seq:{seq}"),
            "snapshots/first".into(),
        ] {
            let then = root.join(format!(".larder/{moment}"));
            let seen = [
                as_user(&["cat"], &then.join("was")),
                as_user(&["cat"], &then.join("is")),
                as_user(&["ls"], &root.join(".larder/snapshots")),
            ];
            assert_eq!(seen, expected, "FUSE-13: {option:?}: {moment}");
            // Root reads all of it, where there is anything.
            let by_root = fs::read(then.join("was"));
            let is_there = option != Some("history=none");
            assert_eq!(
                by_root.is_ok_and(|text| text == b"was"),
                is_there,
                "{option:?}: {moment}"
            );
        }
        // Who may not read the root of the store does not list its snapshots.
        chmod(&root, 0o711);
        let listed = as_user(&["ls"], &root.join(".larder/snapshots"));
        assert_eq!(listed, "-", "FUSE-13: {option:?}");
        chmod(&root, 0o755);
        place.ok(&["umount", "mnt"]);
        let (code, said) = mount.end();
        assert_eq!(code, Some(0), "{said}");
    }
}

fn mounted(place: &Place, more: &[&str]) -> Foreground {
    let arguments = [&["mount", "--create", "a.larder", "mnt"], more].concat();
    Foreground::start(place, &arguments, "mnt")
}
