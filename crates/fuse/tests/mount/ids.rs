//! Whose files a mount shows: squashed, mapped, and by an idmapped mount of the kernel on top. As
//! root.

#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::{TestMount, shell};
use larder_fuse::{IdMap, IdRange, Ids};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::Path;
use std::time::{Duration, Instant};

fn owner(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).expect("it can be examined");
    (metadata.uid(), metadata.gid())
}

fn errno_of(result: std::io::Result<()>) -> Option<i32> {
    result.expect_err("it is refused").raw_os_error()
}

fn ranges(list: &[(u32, u32, u32)]) -> Ids {
    let range = |&(host, database, count): &(u32, u32, u32)| IdRange {
        host,
        database,
        count,
    };
    Ids::ranges(list.iter().map(range).collect()).expect("they do not overlap")
}

/// A mount of a database in which `theirs/f` belongs to 501:20, and everybody may write everywhere.
fn foreign_files() -> TestMount {
    let mut mount = TestMount::new();
    fs::create_dir(mount.path("theirs")).expect("root may");
    fs::write(mount.path("theirs/f"), "x").expect("root may");
    for name in ["theirs", "theirs/f"] {
        chown(mount.path(name), Some(501), Some(20)).expect("root may");
    }
    fs::set_permissions(mount.path("theirs/f"), PermissionsExt::from_mode(0o600))
        .expect("root may");
    for name in ["theirs", ""] {
        fs::set_permissions(mount.path(name), PermissionsExt::from_mode(0o777)).expect("root may");
    }
    mount.end();
    mount
}

#[test]
fn squashed_files_belong_to_one_and_stay_whose_they_were() {
    let mut mount = foreign_files();
    mount.mount(|options| {
        options.id_map = IdMap {
            users: Ids::Squash(1000),
            groups: Ids::Squash(1001),
            file_mask: Some(0o137),
            directory_mask: Some(0o027),
        };
    });
    let file = mount.path("theirs/f");
    assert_eq!(owner(&file), (1000, 1001));
    assert_eq!(owner(&mount.root()), (1000, 1001));
    let mode = |path: &Path| fs::metadata(path).unwrap().mode() & 0o7777;
    assert_eq!((mode(&file), mode(&mount.path("theirs"))), (0o640, 0o750));
    // The kernel checks by what is shown: the user that is shown may, others may not.
    let as_user = |uid: &str, script: &str| {
        shell(
            &format!(
                "setpriv --reuid={uid} --regid={uid} --clear-groups sh -euc '{script}' sh \"$1\""
            ),
            &[&mount.root()],
        )
    };
    as_user(
        "1000",
        "cat \"$1/theirs/f\"; echo new > \"$1/theirs/new\"; mkdir \"$1/theirs/d\"",
    );
    as_user("1002", "! cat \"$1/theirs/f\" 2>/dev/null");
    assert_eq!(owner(&mount.path("theirs/new")), (1000, 1001));
    assert_eq!(errno_of(chown(&file, Some(0), None)), Some(libc::EPERM));
    chown(&file, Some(1000), Some(1001)).unwrap();
    mount.end();

    mount.mount(|_| {});
    for name in ["theirs/f", "theirs/new", "theirs/d"] {
        assert_eq!(owner(&mount.path(name)), (501, 20), "IDMAP-3: {name}");
    }
    assert_eq!(
        fs::metadata(mount.path("theirs/f")).unwrap().mode() & 0o777,
        0o600
    );
    mount.end();
}

#[test]
fn mapped_ids_are_translated_both_ways() {
    let mut mount = foreign_files();
    mount.mount(|options| {
        options.id_map = IdMap {
            users: ranges(&[(1000, 501, 1), (0, 0, 1)]),
            groups: ranges(&[(1001, 20, 2), (0, 0, 1)]),
            ..IdMap::default()
        };
    });
    let file = mount.path("theirs/f");
    assert_eq!(owner(&file), (1000, 1001), "IDMAP-1");
    shell(
        "setpriv --reuid=1000 --regid=1002 --clear-groups \
         sh -euc 'cat \"$1/theirs/f\"; echo x > \"$1/new\"' sh \"$1\"",
        &[&mount.root()],
    );
    assert_eq!(owner(&mount.path("new")), (1000, 1002), "IDMAP-1");
    // Someone of this machine who has no place in the database.
    let refused = shell(
        "setpriv --reuid=7 --regid=7 --clear-groups sh -c 'echo x > \"$1/no\"' sh \"$1\" 2>&1 || \
         true",
        &[&mount.root()],
    );
    assert!(refused.contains("too large"), "IDMAP-2: {refused}");
    assert_eq!(
        errno_of(chown(&file, Some(7), None)),
        Some(libc::EOVERFLOW),
        "IDMAP-2"
    );
    chown(&file, Some(0), Some(1002)).unwrap();
    mount.end();

    mount.mount(|_| {});
    assert_eq!(owner(&mount.path("theirs/f")), (0, 21), "IDMAP-1");
    assert_eq!(owner(&mount.path("new")), (501, 21), "IDMAP-1");
    mount.end();
}

#[test]
fn unmapped_ids_belong_to_nobody() {
    let mut mount = foreign_files();
    mount.mount(|options| {
        options.id_map = IdMap {
            users: ranges(&[(0, 0, 1)]),
            groups: ranges(&[(0, 0, 1)]),
            ..IdMap::default()
        };
    });
    let file = mount.path("theirs/f");
    assert_eq!(owner(&file), (65534, 65534), "IDMAP-2");
    shell(
        "setpriv --reuid=65534 --regid=65534 --clear-groups \
         sh -c '! cat \"$1\" 2>/dev/null' sh \"$1\"",
        &[&file],
    );
    let chmod = fs::set_permissions(&file, PermissionsExt::from_mode(0o666));
    assert!(
        matches!(errno_of(chmod), Some(libc::EPERM | libc::EOVERFLOW)),
        "IDMAP-2: root cannot change it either"
    );
    mount.end();
}

/// mount_setattr(2) with `MOUNT_ATTR_IDMAP` of linux/mount.h; no crate here has it.
fn set_idmap(tree: &impl AsRawFd, user_namespace: &impl AsRawFd) -> std::io::Result<()> {
    #[repr(C)]
    struct MountAttr {
        attr_set: u64,
        attr_clr: u64,
        propagation: u64,
        userns_fd: u64,
    }
    let attr = MountAttr {
        attr_set: 0x0010_0000,
        attr_clr: 0,
        propagation: 0,
        userns_fd: user_namespace.as_raw_fd() as u64,
    };
    // SAFETY: the kernel reads an empty string and a structure of the length that is given, both
    // alive.
    let done = unsafe {
        libc::syscall(
            libc::SYS_mount_setattr,
            tree.as_raw_fd(),
            c"".as_ptr(),
            libc::AT_EMPTY_PATH,
            &raw const attr,
            size_of::<MountAttr>(),
        )
    };
    match done {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

#[test]
fn the_kernel_may_map_ids_on_top() {
    use rustix::mount::{OpenTreeFlags, open_tree};
    let mut mount = foreign_files();
    mount.mount(|options| options.allows_idmap = true);
    // A user namespace in which 501 is the outside's 1000.
    let holder = std::process::Command::new("unshare")
        .args(["--user", "sleep", "600"])
        .spawn()
        .unwrap();
    let holder = KilledOnDrop(holder);
    let place = format!("/proc/{}", holder.0.id());
    let own = fs::read_link("/proc/self/ns/user").unwrap();
    let began = Instant::now();
    while fs::read_link(format!("{place}/ns/user")).is_ok_and(|other| other == own) {
        assert!(began.elapsed() < Duration::from_secs(10));
        std::thread::sleep(Duration::from_millis(5));
    }
    for (file, map) in [("uid_map", "501 1000 1"), ("gid_map", "20 1001 1")] {
        fs::write(format!("{place}/{file}"), map).unwrap();
    }
    let user_namespace = fs::File::open(format!("{place}/ns/user")).unwrap();
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let tree = open_tree(rustix::fs::CWD, mount.root(), flags).unwrap();
    set_idmap(&tree, &user_namespace).expect("the kernel is 6.12 or newer");
    let below = std::path::PathBuf::from(format!("/proc/self/fd/{}", tree.as_raw_fd()));
    assert_eq!(owner(&below.join("theirs/f")), (1000, 1001));
    assert_eq!(
        owner(&mount.path("theirs/f")),
        (501, 20),
        "the mount itself is as before"
    );
    // Nobody but us may follow our descriptors, so it begins in there.
    let done = std::process::Command::new("setpriv")
        .args([
            "--reuid=1000",
            "--regid=1001",
            "--clear-groups",
            "sh",
            "-euc",
        ])
        .arg("cat theirs/f; echo x > theirs/made")
        .current_dir(&below)
        .status()
        .unwrap();
    assert!(done.success());
    assert_eq!(owner(&mount.path("theirs/made")), (501, 20));
    drop(tree);
    mount.end();
}

struct KilledOnDrop(std::process::Child);

impl Drop for KilledOnDrop {
    fn drop(&mut self) {
        self.0.kill().expect("it is a child of ours");
        self.0.wait().expect("it is a child of ours");
    }
}

#[test]
fn acls_are_mapped_and_not_squashed() {
    let mut mount = foreign_files();
    mount.mount(|options| {
        options.id_map = IdMap {
            users: ranges(&[(0, 0, 1), (1000, 501, 2)]),
            ..IdMap::default()
        };
    });
    let acl = |path: &Path| shell("getfacl -cnp \"$1\"", &[path]);
    shell("setfacl -m u:1001:r \"$1\"", &[&mount.path("theirs/f")]);
    assert!(acl(&mount.path("theirs/f")).contains("user:1001:r--"));
    shell(
        "setpriv --reuid=1001 --regid=7 --clear-groups cat \"$1\" > /dev/null",
        &[&mount.path("theirs/f")],
    );
    mount.end();
    mount.mount(|_| {});
    let stored = acl(&mount.path("theirs/f"));
    assert!(stored.contains("user:502:r--"), "IDMAP-1: {stored}");
    mount.end();
    mount.mount(|options| options.id_map.users = Ids::Squash(0));
    let refused = shell(
        "setfacl -m u:5:r \"$1\" 2>&1 || true",
        &[&mount.path("theirs/f")],
    );
    assert!(refused.contains("not supported"), "{refused}");
    mount.end();
}

#[test]
fn entries_of_unmapped_ids_are_kept_and_do_not_make_a_file_unusable() {
    let mut mount = foreign_files();
    let file = mount.path("theirs/f");
    let acl = |path: &Path| shell("getfacl -cnp \"$1\"", &[path]);
    mount.mount(|_| {});
    shell("setfacl -m u:9999:r,u:502:r,g:9999:r \"$1\"", &[&file]);
    mount.end();
    mount.mount(|options| {
        options.id_map = IdMap {
            users: ranges(&[(0, 0, 1), (1000, 501, 2)]),
            groups: ranges(&[(0, 0, 1), (20, 20, 1)]),
            ..IdMap::default()
        };
    });
    let read = "setpriv --reuid=1001 --regid=0 --clear-groups cat \"$1\" > /dev/null";
    shell(read, &[&file]);
    let shown = acl(&file);
    assert!(shown.contains("user:1001:r--"), "{shown}");
    let shown_count = shown.lines().filter(|line| line.contains(':')).count();
    assert_eq!(shown_count, 5, "IDMAP-4: {shown}");
    fs::set_permissions(&file, PermissionsExt::from_mode(0o660)).unwrap();
    shell("setfacl -m u:1000:rw \"$1\"", &[&file]);
    shell(read, &[&file]);
    mount.end();
    mount.mount(|_| {});
    let stored = acl(&file);
    for entry in [
        "user:9999:r--",
        "user:502:r--",
        "user:501:rw-",
        "group:9999:r--",
    ] {
        assert!(stored.contains(entry), "IDMAP-4: {entry} in {stored}");
    }
    mount.end();
}
