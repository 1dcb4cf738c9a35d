//! The real `larder` on real databases: every verb on files, and what people get wrong.

use crate::support::{Place, describe};
use serde_json::json;
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::process::Stdio;

// ---- init --------------------------------------------------------------------------------------

#[test]
fn init_makes_an_empty_database_once() {
    let place = Place::new();
    let made = place.ok(&[
        "init",
        "a.larder",
        "--capacity",
        "256M",
        "--retention",
        "30d",
    ]);
    assert_eq!(made, "created a.larder (capacity: 256 MiB)\n");
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "");
    assert_eq!(place.json(&["ls", "a.larder:/"]), json!([]));
    assert_eq!(place.json(&["df", "a.larder"])["capacity_bytes"], 256 << 20);
    place.assert_clean("a.larder");
    let made = place.json(&["init", "b.larder", "--retention", "90s"]);
    assert_eq!(made["retention_ns"], 90_000_000_000_i64);

    place.fails(1, &["init", "a.larder"], "exists");
    place.fails(1, &["init", "small.larder", "--capacity", "1M"], "16");
    assert!(
        !place.path("small.larder").exists(),
        "nothing is left of it"
    );
    place.write("file", 1);
    place.fails(1, &["init", "file/b.larder"], "file/b.larder");
    place.fails(
        2,
        &["init", "c.larder", "--capacity", "lots"],
        "'lots' is no size",
    );
    place.fails(2, &["init"], "<DB>");
    place.fails(2, &["frobnicate"], "frobnicate");
}

#[test]
fn what_is_no_database_is_refused() {
    let place = Place::with_database();
    fs::create_dir(place.path("plain")).unwrap();
    fs::create_dir(place.path("fake")).unwrap();
    fs::write(
        place.path("fake/catalog.db"),
        "this is no catalog, whatever its name says",
    )
    .unwrap();
    place.write("file", 10);
    for name in ["plain", "fake", "file", "none"] {
        for verb in ["df", "check", "frag", "sql"] {
            let done = place.run_with(&[verb, name], b"SELECT 1;");
            done.assert_failed(1, name, &format!("{verb} {name}"));
        }
        place.fails(1, &["ls", &format!("{name}:/")], name);
        assert!(
            !place.path(name).join("segments").exists(),
            "{name} is left alone"
        );
    }
    assert!(fs::read_dir(place.path("plain")).unwrap().next().is_none());
}

// ---- put, get, cat -----------------------------------------------------------------------------

#[test]
fn content_goes_in_and_comes_out() {
    let place = Place::with_database();
    // Empty, inline, one block and a bit, several requests.
    for (name, size_bytes) in [
        ("empty", 0),
        ("tiny", 100),
        ("small", 5000),
        ("large", 9_000_001),
    ] {
        let content = place.write(name, size_bytes);
        place.ok(&["put", name, "a.larder:/"]);
        place.ok(&["get", &format!("a.larder:/{name}"), "back"]);
        assert_eq!(fs::read(place.path("back")).unwrap(), content, "{name}");
        assert_eq!(
            place.run(&["cat", &format!("a.larder:/{name}")]).stdout,
            content,
            "{name}"
        );
    }
    let both = place
        .run(&["cat", "a.larder:/tiny", "a.larder:/small"])
        .stdout;
    assert_eq!(both.len(), 5100);
    assert_eq!(
        place.json(&["put", "large", "a.larder:/again"])["bytes"],
        9_000_001
    );

    let done = place.run_with(&["put", "-", "a.larder:/from stdin"], &[7; 5_000_000]);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(
        place.run(&["get", "a.larder:/from stdin", "-"]).stdout,
        vec![7; 5_000_000]
    );
    fs::create_dir(place.path("dir")).unwrap();
    place.ok(&["get", "a.larder:/tiny", "dir"]);
    assert!(place.path("dir/tiny").exists());
    place.assert_clean("a.larder");
    place.assert_closed("a.larder");

    place.fails(1, &["put", "dir", "a.larder:/x"], "is a directory");
    place.fails(1, &["put", "none", "a.larder:/x"], "there is no 'none'");
    place.fails(1, &["put", "tiny", "a.larder:/no/such"], "no");
    place.fails(
        1,
        &["put", "tiny", "a.larder:/no/"],
        "there is no directory",
    );
    place.fails(1, &["put", "tiny", "a.larder:/tiny/x"], "directory");
    place.fails(2, &["put", "tiny", "x"], "local path");
    place.fails(1, &["get", "a.larder:/none", "x"], "none");
    place.fails(1, &["get", "a.larder:/tiny", "no/such/dir"], "no/such/dir");
    place.fails(1, &["cat", "a.larder:/"], "is a directory");
    place.fails(1, &["cat", "a.larder:/none"], "none");
    place.assert_closed("a.larder");
}

#[test]
fn overwriting_keeps_the_row() {
    let place = Place::with_database();
    place.write("f", 4_000_000);
    place.ok(&["put", "f", "a.larder:/f"]);
    place.ok(&[
        "sql",
        "a.larder",
        "ALTER TABLE main ADD COLUMN title; UPDATE main SET title = 'kept' WHERE ino > 1",
    ]);
    let content = place.write("f", 3000);
    place.ok(&["put", "f", "a.larder:/f"]);
    assert_eq!(place.run(&["cat", "a.larder:/f"]).stdout, content);
    let rows = place.json(&[
        "sql",
        "a.larder",
        "SELECT title, size FROM main WHERE ino > 1",
    ]);
    assert_eq!(rows, json!([{ "title": "kept", "size": 3000 }]), "CLI-10");
    place.assert_clean("a.larder");
}

#[test]
fn a_full_database_refuses_and_keeps_what_it_has() {
    let place = Place::new();
    place.ok(&["init", "a.larder", "--capacity", "16M"]);
    let content = place.write("kept", 3_000_000);
    place.ok(&["put", "kept", "a.larder:/"]);
    place.write("big", 30_000_000);
    place.fails(1, &["put", "big", "a.larder:/"], "a.larder:/big");
    assert_eq!(
        place.ok(&["ls", "a.larder:/"]),
        "kept\n",
        "CLI-10: whole or gone"
    );
    assert_eq!(place.run(&["cat", "a.larder:/kept"]).stdout, content);
    place.assert_clean("a.larder");
    for _ in 0..4 {
        place.ok(&["rm", "a.larder:/kept"]);
        place.ok(&["put", "kept", "a.larder:/"]);
    }
    assert_eq!(
        place.run(&["cat", "a.larder:/kept"]).stdout,
        content,
        "deleting frees the space"
    );
}

// ---- cp, mv ------------------------------------------------------------------------------------

/// A tree with everything that an archive keeps.
fn make_tree(place: &Place) {
    let at = |name: &str| place.path("tree").join(name);
    fs::create_dir_all(at("sub/deep")).unwrap();
    fs::write(at("sub/a"), "a").unwrap();
    fs::hard_link(at("sub/a"), at("b")).unwrap();
    symlink("sub/a", at("link")).unwrap();
    symlink("/no/where", at("dangling")).unwrap();
    fs::write(at("sub/deep/big"), vec![3; 2_500_000]).unwrap();
    fs::write(at("weird \n name"), "weird").unwrap();
    let sparse = fs::File::create(at("sparse")).unwrap();
    sparse.set_len(6 << 20).unwrap();
    rustix::fs::setxattr(
        at("b"),
        "user.note",
        b"noted",
        rustix::fs::XattrFlags::empty(),
    )
    .unwrap();
    fs::set_permissions(at("b"), PermissionsExt::from_mode(0o4750)).unwrap();
    fs::set_permissions(at("sub/deep"), PermissionsExt::from_mode(0o555)).unwrap();
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(at("sub/a"), Some(1234), Some(4321)).unwrap();
        fs::set_permissions(at("b"), PermissionsExt::from_mode(0o4750)).unwrap();
    }
    let old =
        std::time::SystemTime::UNIX_EPOCH + std::time::Duration::new(1_000_000_000, 123_456_789);
    for name in ["b", "sub/deep", "sub"] {
        fs::File::open(at(name)).unwrap().set_modified(old).unwrap();
    }
}

#[test]
fn archives_are_equal_after_two_databases() {
    let place = Place::with_database();
    place.ok(&["init", "b.larder", "--capacity", "64M"]);
    make_tree(&place);
    let count = place.json(&["cp", "-a", "tree", "a.larder:/"]);
    assert_eq!(
        (&count["files"], &count["directories"], &count["others"]),
        (&json!(4), &json!(3), &json!(3))
    );
    place.ok(&["cp", "-a", "a.larder:/tree", "b.larder:/copy"]);
    place.ok(&["cp", "-a", "b.larder:/copy", "back"]);
    assert_eq!(describe(&place.path("tree")), describe(&place.path("back")));
    assert!(
        place.path("back/sparse").metadata().unwrap().blocks() < 1000,
        "a hole stays a hole"
    );

    place.ok(&["cp", "-a", "a.larder:/tree", "a.larder:/twice"]);
    place.ok(&["cp", "-a", "a.larder:/twice", "again"]);
    assert_eq!(
        describe(&place.path("tree")),
        describe(&place.path("again")),
        "within one database"
    );
    place.assert_clean("a.larder");
    place.assert_clean("b.larder");
}

#[test]
fn plain_copies_are_like_those_of_cp() {
    let place = Place::with_database();
    make_tree(&place);
    place.fails(1, &["cp", "tree", "a.larder:/"], "is a directory");
    place.ok(&["cp", "-r", "tree", "a.larder:/tree"]);
    let attrs = place.json(&[
        "stat",
        "a.larder:/tree/b",
        "a.larder:/tree/sub/a",
        "a.larder:/tree/link",
    ]);
    assert_ne!(attrs[0]["ino"], attrs[1]["ino"], "two names, two copies");
    assert_eq!(
        (&attrs[2]["kind"], &attrs[2]["target"]),
        (&json!("symlink"), &json!("sub/a"))
    );
    place.ok(&["cp", "a.larder:/tree/link", "followed"]);
    assert_eq!(
        fs::read(place.path("followed")).unwrap(),
        b"a",
        "a link that is named is followed"
    );

    place.ok(&["mkdir", "a.larder:/d"]);
    place.ok(&[
        "cp",
        "tree/b",
        "followed",
        "a.larder:/tree/sparse",
        "a.larder:/d",
    ]);
    assert_eq!(place.ok(&["ls", "a.larder:/d"]), "b\nfollowed\nsparse\n");
    place.fails(
        1,
        &["cp", "tree/b", "followed", "a.larder:/none"],
        "there is no directory",
    );
    place.fails(
        1,
        &["cp", "a.larder:/d/b", "a.larder:/d/b"],
        "are the same file",
    );
    place.fails(
        2,
        &["cp", "tree/b", "local"],
        "none of the paths is in a database",
    );
    let done = place.run(&["cp", "tree/b", "none", "followed", "a.larder:/d"]);
    done.assert_failed(1, "there is no 'none'", "the others are copied");
    place.assert_clean("a.larder");
}

#[test]
fn moves_lose_nothing() {
    let place = Place::with_database();
    make_tree(&place);
    let before = describe(&place.path("tree"));
    place.ok(&["mv", "tree", "a.larder:/in"]);
    assert!(
        !place.path("tree").exists(),
        "CLI-8: the original is removed"
    );
    let ino = place.json(&["stat", "a.larder:/in"])[0]["ino"].clone();
    place.ok(&["mkdir", "a.larder:/d"]);
    place.ok(&["mv", "a.larder:/in", "a.larder:/d"]);
    assert_eq!(
        place.json(&["stat", "a.larder:/d/in"])[0]["ino"],
        ino,
        "a rename, not a copy"
    );
    place.ok(&["store", "create", "a.larder", "raw"]);
    place.ok(&["mv", "a.larder:/d/in", "a.larder:/raw/moved"]);
    assert_eq!(place.ok(&["ls", "a.larder:/d"]), "", "across stores");
    place.ok(&["mv", "a.larder:/raw/moved", "back"]);
    assert_eq!(describe(&place.path("back")), before);
    assert_eq!(place.ok(&["ls", "a.larder:/raw"]), "");

    place.write("x", 10);
    place.ok(&["put", "x", "a.larder:/x"]);
    place.ok(&["put", "x", "a.larder:/y"]);
    place.fails(
        1,
        &["mv", "-n", "a.larder:/x", "a.larder:/y"],
        "a.larder:/y",
    );
    place.fails(1, &["mv", "-n", "x", "a.larder:/y"], "exists");
    assert!(place.path("x").exists());
    place.fails(
        1,
        &["mv", "a.larder:/d", "a.larder:/d/inside"],
        "a.larder:/d",
    );
    place.fails(1, &["mv", "a.larder:/none", "a.larder:/z"], "none");
    place.fails(1, &["mv", "a.larder:/raw", "a.larder:/d"], "raw");
    place.assert_clean("a.larder");
}

// ---- ls, find, du, stat, mkdir, ln, rm ---------------------------------------------------------

#[test]
fn directories_and_links_come_and_go() {
    let place = Place::with_database();
    place.ok(&["mkdir", "-p", "a.larder:/x/y/z", "a.larder:/x/y"]);
    place.ok(&["mkdir", "-m", "700", "a.larder:/private"]);
    assert_eq!(
        place.json(&["stat", "a.larder:/private"])[0]["mode"],
        "0700"
    );
    place.fails(1, &["mkdir", "a.larder:/x"], "x");
    place.fails(1, &["mkdir", "a.larder:/no/such"], "no");
    let long = format!("a.larder:/{}", "n".repeat(256));
    place.fails(1, &["mkdir", &long], "255");
    let deep = format!("a.larder:{}", "/d".repeat(2100));
    place.fails(1, &["mkdir", "-p", &deep], "4095");
    place.fails(1, &["mkdir", "a.larder:/"], "");

    place.write("f", 3);
    place.ok(&["put", "f", "a.larder:/x/f"]);
    place.ok(&["ln", "a.larder:/x/f", "a.larder:/hard"]);
    place.ok(&["ln", "-s", "x/f", "a.larder:/soft"]);
    place.ok(&["ln", "-s", "a.larder:/x/f", "a.larder:/x/y/"]);
    let attrs = place.json(&[
        "stat",
        "a.larder:/hard",
        "a.larder:/soft",
        "a.larder:/x/y/f",
    ]);
    assert_eq!(attrs[0]["nlink"], 2);
    assert_eq!(
        (&attrs[1]["target"], &attrs[2]["target"]),
        (&json!("x/f"), &json!("/x/f"))
    );
    assert_eq!(
        place.json(&["stat", "-L", "a.larder:/soft"])[0]["ino"],
        attrs[0]["ino"]
    );
    assert_eq!(place.ok(&["cat", "a.larder:/soft"]).len(), 3);
    place.fails(1, &["ln", "-s", "other", "a.larder:/soft"], "soft");
    place.ok(&["ln", "-sf", "other", "a.larder:/soft"]);
    place.fails(1, &["cat", "a.larder:/soft"], "a.larder:/soft");
    place.fails(1, &["ln", "a.larder:/x", "a.larder:/dir"], "a.larder:/dir");
    place.fails(2, &["ln", "f", "a.larder:/dir"], "is a local path");

    place.fails(1, &["rm", "a.larder:/x"], "is a directory");
    place.fails(1, &["rm", "a.larder:/none"], "none");
    place.ok(&["rm", "-f", "a.larder:/none"]);
    assert!(
        place
            .ok(&["rm", "-r", "--dry-run", "a.larder:/x"])
            .contains("would remove a.larder:/x/y/z\n")
    );
    assert_eq!(
        place.ok(&["find", "a.larder:/x"]).lines().count(),
        5,
        "a dry run removes nothing"
    );
    assert_eq!(
        place
            .json(&["rm", "-r", "a.larder:/x"])
            .as_array()
            .unwrap()
            .len(),
        5
    );
    place.fails(1, &["rm", "-r", "a.larder:/"], "root");
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "hard\nprivate\nsoft\n");
    assert_eq!(place.json(&["stat", "a.larder:/hard"])[0]["nlink"], 1);
    place.assert_clean("a.larder");
}

#[test]
fn listings_show_what_is_there() {
    let place = Place::with_database();
    place.ok(&["mkdir", "-p", "a.larder:/d/e"]);
    place.write("one.txt", 10_000);
    place.write("two.jpg", 20_000);
    place.ok(&["cp", "one.txt", "two.jpg", "a.larder:/d/e"]);
    place.ok(&["ln", "a.larder:/d/e/two.jpg", "a.larder:/d/same.jpg"]);
    place.ok(&["ln", "-s", "e", "a.larder:/d/l"]);

    assert_eq!(place.ok(&["ls", "a.larder:/d"]), "e\nl\nsame.jpg\n");
    assert_eq!(
        place.ok(&["ls", "a.larder:/d/l"]),
        "one.txt\ntwo.jpg\n",
        "a link that is named is followed"
    );
    assert_eq!(place.ok(&["ls", "-d", "a.larder:/d"]), "a.larder:/d\n");
    let long = place.ok(&["ls", "-l", "a.larder:/d"]);
    let lines: Vec<&str> = long.lines().collect();
    assert!(
        lines[0].starts_with("drwxr-xr-x") && lines[1].ends_with("  l -> e"),
        "{long}"
    );
    assert!(
        lines[2].contains(" 20000 ") && lines[2].ends_with("Z  same.jpg"),
        "{long}"
    );
    let all = place.ok(&["ls", "-R", "a.larder:/"]);
    assert_eq!(
        all,
        "a.larder:/:\nd\n\na.larder:/d:\ne\nl\nsame.jpg\n\na.larder:/d/e:\none.txt\ntwo.jpg\n"
    );
    let names: Vec<_> = place
        .json(&["ls", "-R", "a.larder:/"])
        .as_array()
        .unwrap()
        .clone();
    assert_eq!(names.len(), 6);
    assert_eq!(
        (&names[4]["path"], &names[4]["size_bytes"]),
        (&json!("/d/e/one.txt"), &json!(10_000))
    );
    place.fails(1, &["ls", "a.larder:/none"], "none");
    place.fails(2, &["ls", "a.larder"], "write it as DB:/path");

    assert_eq!(
        place.ok(&["find", "a.larder:/d", "--name", "*.[jp]*g"]),
        "a.larder:/d/same.jpg\na.larder:/d/e/two.jpg\n"
    );
    assert_eq!(
        place.ok(&["find", "a.larder:/", "--type", "l"]),
        "a.larder:/d/l\n"
    );
    assert_eq!(
        place.ok(&["find", "a.larder:/", "--type", "d", "-0"]),
        "a.larder:/\0a.larder:/d\0a.larder:/d/e\0"
    );
    assert_eq!(
        place.json(&["find", "a.larder:/", "--name", "nothing"]),
        json!([])
    );
    place.fails(
        2,
        &["find", "a.larder:/", "--type", "x"],
        "invalid value 'x'",
    );

    let sums = place.json(&["du", "a.larder:/"]);
    let paths: Vec<_> = sums
        .as_array()
        .unwrap()
        .iter()
        .map(|sum| sum["path"].as_str().unwrap())
        .collect();
    assert_eq!(paths, ["/d/e", "/d", "/"]);
    let total = place.json(&["du", "-s", "a.larder:/"]);
    assert_eq!(
        total[0]["allocated_bytes"],
        3 * 4096 + 5 * 4096,
        "an inode with two names counts once"
    );
    assert!(
        place
            .ok(&["du", "-s", "--apparent-size", "a.larder:/d"])
            .trim_start()
            .starts_with("29.2 KiB  a.larder:/d")
    );
    let stat = place.ok(&["stat", "a.larder:/d/e/two.jpg"]);
    assert!(
        stat.contains("20000 bytes") && stat.contains("2 names"),
        "{stat}"
    );
}

#[test]
fn names_of_any_bytes_survive() {
    use std::ffi::{OsStr, OsString};
    use std::os::unix::ffi::OsStrExt;
    let place = Place::with_database();
    place.write("f", 1);
    let address = OsStr::from_bytes(b"a.larder:/\xff\xfe");
    place.ok(&[OsStr::new("put"), OsStr::new("f"), address]);
    let listed = place.run(&["ls", "a.larder:/"]).stdout;
    assert_eq!(listed, b"\xff\xfe\n", "CLI-6");
    assert_eq!(
        place.json(&["ls", "a.larder:/"])[0]["name_hex"],
        "fffe",
        "CLI-6"
    );
    place.ok(&[OsString::from("rm"), address.to_owned()]);
    assert_eq!(place.ok(&["ls", "a.larder:/"]), "");
}

#[test]
fn a_reader_that_leaves_ends_the_command_silently() {
    let place = Place::with_database();
    place.write("big", 9_000_000);
    place.ok(&["put", "big", "a.larder:/"]);
    let mut child = place
        .command(&["cat", "a.larder:/big"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(
        (output.status.code(), output.stderr),
        (Some(141), Vec::new()),
        "CLI-1"
    );
}

#[test]
fn completions_and_help_are_printed() {
    let place = Place::new();
    for shell in ["bash", "zsh", "fish"] {
        assert!(
            place.ok(&["completions", shell]).contains("umount"),
            "{shell}"
        );
    }
    place.fails(2, &["completions", "tcsh"], "tcsh");
    assert!(
        place
            .ok(&["cp", "--help"])
            .contains("Example: larder cp -a")
    );
    assert!(place.ok(&["--version"]).starts_with("larder "));
}
