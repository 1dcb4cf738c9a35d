//! Inode flags beside ext4, and for whoever does not come by the mount. As root.

#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::{Ext4, TestMount, database_path, shell};
use larder::{Database, DatabaseOptions, ErrorKind, InodeFlags, Name, NodeId, SetAttr};
use std::fs;
use std::path::Path;

/// Each line is done below `$1`, and its exit code and what is there afterwards are told.
const SCRIPT: &str = r#"
set +e; cd "$1"; mkdir d e; echo some > f; echo some > g; echo some > d/inside; ln -s f link
try() { "$@" >/dev/null 2>&1; echo "$? $*"; }
show() { lsattr -d "$1" | cut -c1-19 | tr -d e-; cat "$1" 2>/dev/null; }
write() ( echo more > "$1" )
append() ( echo more >> "$1" )
both() ( exec 3<>"$1" && echo x >&3 )
all() {
  for what in append write both "truncate -s 1" "chmod 600" "chown 1:1" "touch" \
    "touch -d 2020-01-01" "setfattr -n user.a -v b" "fallocate -o 0 -l 8192" \
    "fallocate -n -o 8192 -l 8192" "fallocate -p -o 0 -l 4096" "cat" "rm"; do
    try $what "$1"
  done
  try ln "$1" another; rm -f another
  try mv "$1" renamed
  try mv -T g "$1"; test -e g || echo some > g
}
try chattr +i f; show f; all f; show f
try chattr -i f; try chattr +a f; show f; all f; show f
try chattr -a f
try chattr +i d; show d
for what in "touch d/new" "mkdir d/new" "ln f d/new" "mv f d/new" "rm d/inside" "mv d/inside e" \
  "cat d/inside" "append d/inside" "rmdir d" "mv d other" "chmod 700 d" "ls d"; do try $what; done
try chattr -i d; try chattr +a d; show d
for what in "touch d/new" "mkdir d/newdir" "mv e/none d" "rm d/inside" "mv d/inside e" \
  "mv f d/moved" "mv d/new d/other" "rmdir d/newdir" "rmdir d" "mv d other"; do try $what; done
try chattr -a d
try chattr +dA d; show d; touch d/heir; mkdir d/heirs; show d/heir; show d/heirs
try chattr =ia d/heir; show d/heir; try rm d/heir; try chattr = d/heir; show d/heir
try chattr +i link
try sh -c 'exec 4>>g; chattr +i g; echo more >&4'; try chattr -i g
try sh -c 'exec 4>>g; chattr +a g; echo more >&4'; try chattr -a g; show g
chmod 777 . d; mv d/moved f; chown 1 f
try setpriv --reuid 1 --clear-groups chattr +i f
try setpriv --reuid 1 --clear-groups chattr +d f; show f
try setpriv --reuid 2 --clear-groups chattr -d f; show f; true
"#;

#[test]
fn flags_forbid_what_they_forbid_on_ext4() {
    let (mount, ext4) = (TestMount::new(), Ext4::new());
    let (ours, theirs) = (
        shell(SCRIPT, &[&mount.root()]),
        shell(SCRIPT, &[&ext4.root()]),
    );
    assert!(theirs.lines().count() > 80, "{theirs}");
    let differing: Vec<_> = (ours.lines().zip(theirs.lines()))
        .filter(|(ours, theirs)| ours != theirs)
        .collect();
    assert!(
        differing.is_empty() && ours == theirs,
        "{differing:?}\n{ours}"
    );
}

#[test]
fn flags_hold_for_all_and_stay() {
    let mut mount = TestMount::new();
    fs::write(mount.path("f"), "some").unwrap();
    fs::write(mount.path("log"), "some").unwrap();
    shell("chattr +i \"$1/f\"; chattr +a \"$1/log\"", &[&mount.root()]);
    mount.end();
    let path = database_path(mount.directory());
    let database = Database::open(&path, DatabaseOptions::default()).unwrap();
    let refused = |result: Result<(), larder::Error>| {
        assert_eq!(
            result.unwrap_err().kind(),
            ErrorKind::NotPermitted,
            "FLAGS-1"
        );
    };
    let node = |name: &[u8]| database.nodes().resolve(name, true).unwrap().node;
    let (file, log) = (node(b"/f"), node(b"/log"));
    assert_eq!(
        database.nodes().metadata(file).unwrap().flags,
        InodeFlags::IMMUTABLE
    );
    let mode = SetAttr {
        mode: Some(0o600),
        ..SetAttr::default()
    };
    refused(database.files().write(b"/f", b"new").map(drop));
    refused(database.nodes().set_attr(file, &mode).map(drop));
    refused(database.nodes().open(file, true).map(drop));
    for name in ["f", "log"] {
        refused(
            database
                .nodes()
                .unlink(NodeId::ROOT, &Name::new(name.as_bytes()).unwrap()),
        );
    }
    let handle = database.nodes().open(log, true).unwrap();
    refused(handle.write_at(0, b"x"));
    refused(handle.set_len(0));
    handle.append(b" more").unwrap();
    drop(handle);
    refused(
        (database
            .transactions()
            .run(|txn| txn.sql("SELECT write_content('/f', 'new')", &[]).map(drop)))
        .map(drop),
    );
    assert_eq!(database.files().read(b"/f").unwrap(), b"some");
    assert_eq!(database.files().read(b"/log").unwrap(), b"some more");
    database
        .attributes()
        .set_flags(file, InodeFlags::default())
        .unwrap();
    database.files().write(b"/f", b"new").unwrap();
    database.close().unwrap();
}

#[test]
fn the_past_shows_the_flags_of_then_and_refuses_new_ones() {
    let mount = TestMount::new();
    fs::write(mount.path("f"), "some").unwrap();
    shell("chattr +d \"$1/f\"; sync \"$1/f\"", &[&mount.root()]);
    std::thread::sleep(std::time::Duration::from_millis(1200));
    shell("chattr -d \"$1/f\"; sync \"$1/f\"", &[&mount.root()]);
    let flags = |path: &Path| {
        let said = shell("lsattr \"$1\"", &[path]);
        said.split(' ').next().unwrap().replace('-', "")
    };
    let then = mount.path(".larder/at/-1s/f");
    assert_eq!(flags(&mount.path("f")), "");
    assert_eq!(flags(&then), "d");
    let said = shell("chattr +i \"$1\" 2>&1 || true", &[&then]);
    assert!(said.contains("Read-only"), "{said}");
}
