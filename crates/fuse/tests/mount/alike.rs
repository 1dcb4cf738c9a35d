//! The same operations on a mount and on the filesystem that holds the test's own directory (ext4,
//! say): the same results. What differs on purpose is tested elsewhere. Needs root, and the
//! packages `acl` and `attr`.

#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::{TestMount, shell};
use rustix::fs::{AtFlags, CWD, FallocateFlags, Mode, OFlags, XattrFlags};
use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

/// A mount, and a directory of the host to compare it with. Both can be entered by everybody.
pub(crate) struct Pair {
    mount: TestMount,
    host: tempfile::TempDir,
}

impl Pair {
    pub(crate) fn new() -> Pair {
        assert!(
            rustix::process::geteuid().is_root(),
            "these tests become other users"
        );
        shell(
            "setfacl --version; getfattr --version; setpriv --version",
            &[],
        );
        let mount = TestMount::new();
        let host = tempfile::tempdir().unwrap();
        fs::set_permissions(host.path(), PermissionsExt::from_mode(0o755)).unwrap();
        Pair { mount, host }
    }

    /// Does the same in both, each in a directory of its own, and compares the outcomes.
    pub(crate) fn same<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        operate: impl Fn(&Path) -> T,
    ) -> T {
        let [mount, host] = [self.mount.path(what), self.host.path().join(what)];
        let outcome = [&mount, &host].map(|directory| {
            fs::create_dir(directory).unwrap();
            fs::set_permissions(directory, PermissionsExt::from_mode(0o777)).unwrap();
            operate(directory)
        });
        let [mount, host] = outcome;
        assert_eq!(mount, host, "{what}: the mount, and the host");
        mount
    }

    /// The same with a script: `$0` is run in the directory; its output and status are compared.
    fn script(&self, what: &str, script: &str) -> String {
        self.same(what, |directory| {
            let output = Command::new("bash")
                .current_dir(directory)
                .args(["-c", &format!("{HELPERS}{script}"), "bash"])
                .output()
                .expect("a shell");
            let (out, error) = (output.stdout, output.stderr);
            format!(
                "{}{}{:?}",
                String::from_utf8_lossy(&out),
                String::from_utf8_lossy(&error),
                output.status.code()
            )
        })
    }
}

/// `as UID GID[,GID…] COMMAND` runs as somebody without privileges.
const HELPERS: &str = r#"
as() { local uid=$1 gid=${2%%,*} groups=$2; shift 2
  setpriv --reuid="$uid" --regid="$gid" --groups="$groups" -- "$@" 2>&1; echo "= $?"; }
mode() { stat -c '%n %F %04a %u %g %h' "$@" 2>&1; }
list() { getfacl -n -p -E "$@" 2>&1; }
names() { getfattr -m - "$@" 2>&1 | sort; }
umask 022
"#;

fn errno<T>(outcome: io::Result<T>) -> Option<i32> {
    outcome
        .err()
        .map(|error| error.raw_os_error().unwrap_or(-1))
}

#[test]
fn access_lists_are_kept_changed_and_enforced_alike() {
    let pair = Pair::new();
    let out = pair.script(
        "lists",
        r#"
        echo secret > f; chown 10:20 f; chmod 640 f
        as 30 30 cat f
        setfacl -m u:30:r f; mode f; list f; as 30 30 cat f; as 31 30 cat f; as 31 30,20 cat f
        chmod 600 f; mode f; list f; as 30 30 cat f; as 31 30,20 cat f
        chmod 664 f; list f; as 30 30 cat f; as 30 30 sh -c 'echo x > f'
        setfacl -m m::rw,g:40:rw f; list f; as 50 40 sh -c 'echo y > f'; cat f
        setfacl -x u:30 f; list f; as 30 30 cat f
        setfacl -b f; mode f; list f; names f
        setfacl -m u::rw,g::-,o::- f; mode f; names f
        names -d -e hex f
        setfacl -m u:30:r f; names -d -e hex f; setfattr -x system.posix_acl_access f; mode f
        setfattr -n system.posix_acl_access -v 0x0100000001000700 f
        setfattr -n system.posix_acl_access -v 0x02000000ff000700ffffffff f
        acl=0x0200000001000700ffffffff04000500ffffffff20000500ffffffff
        setfattr -n system.posix_acl_default -v $acl f
        ln -s f l; setfattr -h -n system.posix_acl_access -v $acl l
        as 30 30 setfacl -m u:30:rw f
        "#,
    );
    assert!(
        out.contains("secret") && out.contains("user:30:r--"),
        "{out}"
    );
    pair.script(
        "inheritance",
        r#"
        mkdir d; chown 10:20 d; setfacl -d -m u:30:rwx,g::rx,o::- d; mode d; list d
        umask 077
        echo > d/f; mkdir d/e; mkfifo d/p; ln -s x d/l; mode d/*; list d/f d/e d/p
        mkdir d/e/g; list d/e/g; install -m 751 /bin/true d/i; mode d/i; list d/i
        python3 -c 'import os; os.close(os.open("d/n", os.O_CREAT, 0o4770))' 2>/dev/null ||
            touch d/n
        mv d/f moved; list moved; cp d/e -r copied; list copied; cp -a d/e archived; list archived
        ln d/i linked; list linked
        setfacl -k d; list d; echo > d/h; mkdir d/j; mode d/h d/j
        umask 000; echo > d/k; mkdir -m 1777 d/m; mode d/k d/m
        setfacl -d -m u::rw,g::r,o::r d; umask 077; echo > d/q; mode d/q; list d/q; names d/q
        "#,
    );
    pair.script(
        "setgid",
        r#"
        touch f; chown 10:20 f; chmod 2770 f; as 10 99 setfacl -m u:30:r f; mode f
        chmod 2770 f; as 10 20 setfacl -m u:31:r f; mode f
        chmod 2770 f; as 10 99 chmod 2771 f; mode f; as 10 20 chmod 2771 f; mode f
        mkdir d; chown 10:20 d; chmod 2777 d
        as 30 30 sh -c 'echo > d/a; mkdir d/b; mkfifo d/c; umask 0; touch d/e'; mode d/*
        as 30 30,20 mkdir d/f; mode d/f; as 30 30 chmod 2775 d/a; mode d/a
        as 30 30,20 sh -c 'chmod 2775 d/a'; mode d/a
        as 30 30 chgrp 31 d/a; as 30 30,31 chgrp 31 d/a; mode d/a
        as 30 30 chown 31 d/a; as 31 31 chmod 777 d/a
        "#,
    );
}

#[test]
fn set_id_bits_and_capabilities_go_alike() {
    let pair = Pair::new();
    // Setgid without the group's right to execute is not among them: a change by somebody outside
    // the group takes it on the host, but the kernel does not tell a FUSE filesystem who is
    // outside.
    let modes = "for mode in 6777 4777 2777 1777; do chmod $mode f; ";
    for (what, command) in [
        (
            "write",
            "echo x > f; mode f; chmod $mode f; as 30 30 sh -c 'echo x >> f'; mode f",
        ),
        ("overwrite", "as 30 30 sh -c 'echo y 1<> f'; mode f"),
        (
            "empty",
            "as 30 30 dd if=/dev/null of=f conv=notrunc status=none; mode f",
        ),
        (
            "open",
            "as 30 30 sh -c ': > f'; mode f; chmod $mode f; : > f; mode f",
        ),
        (
            "truncate",
            "as 30 30 truncate -s 3 f; mode f; chmod $mode f; truncate -s 4 f; mode f",
        ),
        (
            "allocate",
            "as 30 30 fallocate -l 99 f; mode f; chmod $mode f; fallocate -l 999 f; mode f",
        ),
        (
            "punch",
            "echo 12345 > f; chmod $mode f; as 30 30 fallocate -p -l 3 f; mode f",
        ),
        (
            "copy",
            "head -c 9999 /dev/zero > s; as 30 30 cp --no-preserve=all s f; mode f",
        ),
        (
            "direct",
            "as 30 30 dd if=/dev/zero of=f bs=4096 count=1 oflag=direct conv=notrunc status=none; \
             mode f",
        ),
        ("touch", "as 30 30 touch f; mode f; touch f; mode f"),
        (
            "chown",
            "chown 40 f; mode f; chmod $mode f; chown :41 f; mode f; chmod $mode f; chown 40:41 \
             f; mode f",
        ),
        (
            "group",
            "chown 30:20 f; chmod $mode f; as 30 30,31 chgrp 31 f; mode f",
        ),
        ("links", "ln -f f g; mv g h; mode f"),
        ("attribute", "as 30 30 setfattr -n user.a -v b f; mode f"),
    ] {
        pair.script(what, &format!("touch f; {modes} {command}; done"));
    }
    pair.same("chown of nobody to nobody", |directory| {
        let file = directory.join("f");
        File::create(&file).unwrap();
        [0o6777, 0o6767, 0o755].map(|mode| {
            fs::set_permissions(&file, PermissionsExt::from_mode(mode)).unwrap();
            std::os::unix::fs::chown(&file, None, None).unwrap();
            fs::metadata(&file).unwrap().mode()
        })
    });
    pair.same("a write through a map", |directory| {
        let path = directory.join("f");
        fs::write(&path, [1; 5000]).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
        file.write_all_at(b"as root", 0).unwrap();
        fs::metadata(&path).unwrap().mode()
    });
    // setcap: a capability of version 2, cap_net_raw.
    let capability = {
        let words: [u32; 5] = [0x0200_0001, 1 << 13, 0, 0, 0];
        words.map(u32::to_le_bytes).concat()
    };
    for (what, change) in [
        (
            "capability write",
            (|path| {
                fs::OpenOptions::new()
                    .append(true)
                    .open(path)?
                    .write_at(b"x", 0)
                    .map(drop)
            }) as fn(&Path) -> io::Result<()>,
        ),
        ("capability truncate", |path| {
            OpenOptions::new().write(true).open(path)?.set_len(1)
        }),
        ("capability chown", |path| {
            std::os::unix::fs::chown(path, Some(0), None)
        }),
        ("capability chmod", |path| {
            fs::set_permissions(path, PermissionsExt::from_mode(0o700))
        }),
        ("capability allocate", |path| {
            let file = OpenOptions::new().write(true).open(path)?;
            Ok(rustix::fs::fallocate(
                file,
                FallocateFlags::KEEP_SIZE,
                0,
                10,
            )?)
        }),
        ("capability rename", |path| {
            fs::rename(path, path.with_extension("x"))
        }),
    ] {
        let _ = pair.same(what, |directory| {
            let path = directory.join("f");
            fs::write(&path, "content").unwrap();
            let name = "security.capability";
            rustix::fs::setxattr(&path, name, &capability, XattrFlags::empty()).unwrap();
            change(&path).unwrap();
            let path = [path.clone(), path.with_extension("x")]
                .into_iter()
                .find(|path| path.exists())
                .unwrap();
            rustix::fs::getxattr(&path, name, &mut [0u8; 64][..])
                .map_err(|errno| errno.raw_os_error())
        });
    }
}

fn anonymous(directory: &Path, flags: OFlags, mode: u32) -> rustix::io::Result<File> {
    let flags = OFlags::TMPFILE | flags | OFlags::CLOEXEC;
    rustix::fs::open(directory, flags, Mode::from_raw_mode(mode)).map(File::from)
}

fn name_it(file: &File, path: &Path) -> Option<i32> {
    let unnamed = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let linked = rustix::fs::linkat(CWD, unnamed, CWD, path, AtFlags::SYMLINK_FOLLOW);
    linked.err().map(|errno| errno.raw_os_error())
}

#[test]
fn files_without_a_name_live_and_get_one_alike() {
    let pair = Pair::new();
    pair.same("anonymous", |directory| {
        let mut seen = Vec::new();
        let file = anonymous(directory, OFlags::RDWR, 0o4640).unwrap();
        let mut note = |what: &str, file: &File, error: Option<i32>| {
            let attr = file.metadata().unwrap();
            let names = fs::read_dir(directory).unwrap().count();
            seen.push((
                what.to_owned(),
                attr.nlink(),
                attr.len(),
                attr.mode(),
                names,
                error,
            ));
        };
        note("new", &file, None);
        file.write_all_at(&[7; 10_000], 0).unwrap();
        fs::set_permissions(
            format!("/proc/self/fd/{}", file.as_raw_fd()),
            PermissionsExt::from_mode(0o600),
        )
        .unwrap();
        note("written", &file, None);
        let (one, two) = (directory.join("one"), directory.join("two"));
        note("named", &file, name_it(&file, &one));
        assert!(fs::read(&one).unwrap() == [7; 10_000]);
        note("named twice", &file, name_it(&file, &two));
        note("named again", &file, name_it(&file, &two));
        fs::remove_file(&one).unwrap();
        note("unnamed", &file, None);
        fs::remove_file(&two).unwrap();
        note("unnamed twice", &file, None);
        note("too late", &file, name_it(&file, &one));
        let mut bytes = [0; 10_001];
        assert_eq!(file.read_at(&mut bytes, 0).unwrap(), 10_000);
        let exclusive = anonymous(directory, OFlags::WRONLY | OFlags::EXCL, 0o600).unwrap();
        exclusive.write_all_at(b"x", 0).unwrap();
        note("exclusive", &exclusive, name_it(&exclusive, &one));
        let read_only = anonymous(directory, OFlags::RDONLY, 0o600).err();
        note(
            "read-only",
            &exclusive,
            read_only.map(|errno| errno.raw_os_error()),
        );
        fs::write(&one, "x").unwrap();
        let in_a_file = anonymous(&one, OFlags::RDWR, 0o600).err();
        note(
            "in a file",
            &exclusive,
            in_a_file.map(|errno| errno.raw_os_error()),
        );
        seen
    });
    pair.script(
        "owners",
        r#"
        mkdir d; chown 10:20 d; chmod 2777 d; setfacl -d -m u:30:rw d
        cat > t.py <<'P'
import os
fd = os.open("d", os.O_TMPFILE | os.O_WRONLY, 0o666)
os.link(f"/proc/self/fd/{fd}", "d/f", follow_symlinks=True)
P
        command -v python3 > /dev/null && as 40 40 python3 t.py && mode d/f && list d/f
        "#,
    );
}

#[test]
fn errors_and_times_are_alike() {
    let pair = Pair::new();
    pair.same("attributes", |directory| {
        let file = directory.join("f");
        fs::write(&file, "x").unwrap();
        std::os::unix::fs::symlink("f", directory.join("l")).unwrap();
        let set = |path: &str, name: &str, value: &[u8], flags| {
            rustix::fs::lsetxattr(directory.join(path), name, value, flags)
                .err()
                .map(|errno| errno.raw_os_error())
        };
        let none = XattrFlags::empty();
        [
            set("f", "user.a", b"1", none),
            set("f", "user.a", b"1", XattrFlags::CREATE),
            set("f", "user.b", b"1", XattrFlags::REPLACE),
            set("f", "user.a", b"", XattrFlags::REPLACE),
            set("f", "user.", b"1", none),
            set("f", "", b"1", none),
            set("f", "other.a", b"1", none),
            set("f", "nothing", b"1", none),
            set("f", "trusted.a", b"1", none),
            set("f", "security.a", b"1", none),
            set("f", &format!("user.{}", "x".repeat(250)), b"1", none),
            set("f", &format!("user.{}", "x".repeat(251)), b"1", none),
            set("f", "user.large", &[0; 65_537], none),
            set("l", "user.a", b"1", none),
            set("l", "trusted.a", b"1", none),
            set(".", "user.a", b"1", none),
        ]
    });
    pair.script(
        "shown",
        "touch f; setfattr -n trusted.a -v 1 f; setfattr -n user.a -v 1 f; chmod 666 f
         names f; as 30 30 names f; as 30 30 setfattr -n trusted.b -v 1 f; as 30 30 getfattr -n \
         trusted.a f",
    );
    pair.same("ranges", |directory| {
        let path = directory.join("f");
        fs::write(&path, [1; 100_000]).unwrap();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let keep = FallocateFlags::KEEP_SIZE;
        let (punch, zero) = (FallocateFlags::PUNCH_HOLE, FallocateFlags::ZERO_RANGE);
        [
            (FallocateFlags::empty(), 0, 0),
            (FallocateFlags::empty(), 90_000, 20_000),
            (keep, 200_000, 1000),
            (punch, 0, 4096),
            (punch | keep, 5000, 10_000),
            (punch | keep, 300_000, 10_000),
            (zero, 100_000, 50_000),
            (zero | keep, 140_000, 50_000),
            (zero | punch | keep, 0, 100),
            (FallocateFlags::empty(), i64::MAX as u64, 1),
            (FallocateFlags::empty(), u64::MAX, 1),
        ]
        .map(|(flags, offset, len)| {
            let outcome = rustix::fs::fallocate(&file, flags, offset, len);
            let sum: u64 = fs::read(&path)
                .unwrap()
                .iter()
                .map(|&byte| u64::from(byte))
                .sum();
            (
                outcome.err().map(|errno| errno.raw_os_error()),
                file.metadata().unwrap().len(),
                sum,
            )
        })
    });
    let _ = pair.same("copies", |directory| {
        let path = directory.join("f");
        fs::write(&path, [1; 100_000]).unwrap();
        let both = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        let reader = File::open(&path).unwrap();
        let appender = OpenOptions::new().append(true).open(&path).unwrap();
        let copy = |from: &File, mut from_at: u64, to: &File, mut to_at: u64, len| {
            rustix::fs::copy_file_range(from, Some(&mut from_at), to, Some(&mut to_at), len)
                .map_err(|errno| errno.raw_os_error())
        };
        [
            copy(&both, 0, &both, 10, 20),
            copy(&both, 0, &both, 10, 10),
            copy(&both, 99_990, &both, 0, 100),
            copy(&both, 100_000, &both, 0, 100),
            copy(&both, 200_000, &both, 0, 100),
            copy(&reader, 0, &both, 300_000, 100),
            copy(&both, 0, &reader, 300_000, 100),
            copy(&reader, 0, &appender, 300_000, 100),
            copy(&both, 0, &both, 0, 0),
        ]
    });
    pair.same("change times", |directory| {
        let at = |name: &str| directory.join(name);
        let times = |name: &str| {
            let attr = fs::symlink_metadata(at(name)).unwrap();
            (
                (attr.mtime(), attr.mtime_nsec()),
                (attr.ctime(), attr.ctime_nsec()),
            )
        };
        let mut moved = Vec::new();
        let mut watch = |names: &[&str], operate: &dyn Fn()| {
            let before: Vec<_> = names.iter().map(|name| times(name)).collect();
            std::thread::sleep(std::time::Duration::from_millis(12));
            operate();
            let after = names.iter().zip(before).map(|(name, (mtime, ctime))| {
                let (new_mtime, new_ctime) = times(name);
                (new_mtime != mtime, new_ctime != ctime)
            });
            moved.push(after.collect::<Vec<_>>());
        };
        fs::create_dir(at("d")).unwrap();
        fs::create_dir(at("e")).unwrap();
        fs::write(at("f"), "f").unwrap();
        fs::write(at("g"), "g").unwrap();
        fs::write(at("d/inner"), "h").unwrap();
        watch(&[".", "f", "d"], &|| {
            fs::hard_link(at("f"), at("d/link")).unwrap()
        });
        watch(&["d", "f"], &|| fs::remove_file(at("d/link")).unwrap());
        watch(&[".", "d", "e"], &|| {
            fs::rename(at("d/inner"), at("e/inner")).unwrap()
        });
        watch(&["f"], &|| {
            fs::set_permissions(at("f"), PermissionsExt::from_mode(0o600)).unwrap()
        });
        watch(&["f"], &|| {
            std::os::unix::fs::chown(at("f"), None, None).unwrap()
        });
        watch(&["f"], &|| File::create(at("f")).map(drop).unwrap());
        watch(&["g"], &|| {
            OpenOptions::new()
                .write(true)
                .open(at("g"))
                .unwrap()
                .set_len(1)
                .unwrap()
        });
        watch(&["g"], &|| {
            let value = b"1";
            rustix::fs::setxattr(at("g"), "user.a", value, XattrFlags::empty()).unwrap();
        });
        watch(&["g"], &|| drop(fs::read(at("g")).unwrap()));
        watch(&["g"], &|| {
            drop(
                OpenOptions::new()
                    .mode(0o600)
                    .append(true)
                    .open(at("g"))
                    .unwrap(),
            )
        });
        watch(&["g"], &|| {
            let file = OpenOptions::new().append(true).open(at("g")).unwrap();
            assert_eq!(file.write_at(b"", 0).unwrap(), 0);
        });
        moved
    });
    pair.same("too large", |directory| {
        let file = File::create(directory.join("f")).unwrap();
        [
            errno(file.set_len(i64::MAX as u64 + 1)),
            errno(file.write_at(b"x", i64::MAX as u64)),
            errno(file.read_at(&mut [0; 8], i64::MAX as u64)),
        ]
    });
}

/// ext4 cannot do this; the mount goes as far as the kernel.
#[test]
fn files_go_as_far_as_offsets_do() {
    let mount = TestMount::new();
    let path = mount.path("f");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    // The kernel's own limit for any filesystem, MAX_LFS_FILESIZE.
    let last = i64::MAX as u64 - 1;
    file.write_all_at(b"e", last).unwrap();
    assert_eq!(file.metadata().unwrap().len(), i64::MAX as u64);
    // No offset says where that would end.
    assert_eq!(errno(file.write_at(b"x", last + 1)), Some(libc::EINVAL));
    let mut byte = [0];
    file.read_exact_at(&mut byte, last).unwrap();
    assert_eq!(&byte, b"e");
    let data = rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(1)).unwrap();
    assert_eq!(data, last / 4096 * 4096);
    file.set_len(0).unwrap();
    file.set_len(i64::MAX as u64).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
}

#[test]
fn the_time_of_birth_is_told_and_stays() {
    use rustix::fs::{StatxFlags, statx};
    let mount = TestMount::new();
    let path = mount.path("f");
    let began = std::time::SystemTime::now();
    fs::write(&path, "x").unwrap();
    let birth = || {
        let found = statx(CWD, &path, AtFlags::empty(), StatxFlags::ALL).unwrap();
        assert!(
            found.stx_mask & StatxFlags::BTIME.bits() != 0,
            "there is no time of birth"
        );
        (found.stx_btime.tv_sec, found.stx_btime.tv_nsec)
    };
    let first = birth();
    let seconds = began
        .duration_since(std::time::UNIX_EPOCH)
        .unwrap()
        .as_secs() as i64;
    assert!((seconds - 1..=seconds + 5).contains(&first.0));
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(&path, "y").unwrap();
    let renamed = mount.path("g");
    fs::rename(&path, &renamed).unwrap();
    fs::rename(&renamed, &path).unwrap();
    assert_eq!(birth(), first);
    assert!(fs::metadata(&path).unwrap().created().is_ok());
}

#[test]
fn places_in_a_directory_can_be_found_again() {
    let pair = Pair::new();
    pair.same("places", |directory| {
        const COUNT: usize = 3000;
        let name = |index: usize| format!("{index:04}");
        for index in 0..COUNT {
            File::create(directory.join(name(index))).unwrap();
        }
        let mut listing = rustix::fs::Dir::new(File::open(directory).unwrap()).unwrap();
        let mut order = Vec::new();
        let read = |listing: &mut rustix::fs::Dir| {
            let entry = listing.read()?.unwrap();
            let bytes = entry.file_name().to_bytes();
            Some((String::from_utf8_lossy(bytes).into_owned(), entry.offset()))
        };
        while let Some(line) = read(&mut listing) {
            order.push(line);
        }
        assert_eq!(order.len(), COUNT + 2);
        // Behind each of some entries, when some others went: what follows there, without these.
        let is_gone = |name: &str| name.ends_with('7') || name.starts_with("00");
        for (name, _) in order.iter().filter(|(name, _)| is_gone(name)) {
            fs::remove_file(directory.join(name)).unwrap();
        }
        for at in (0..order.len()).step_by(97) {
            listing.seek(order[at].1).unwrap();
            let expected = order[at + 1..].iter().map(|(name, _)| name);
            for name in expected.filter(|name| !is_gone(name)).take(40) {
                // What went may be told or not.
                let mut found = read(&mut listing).expect("FUSE-4");
                while is_gone(&found.0) {
                    found = read(&mut listing).expect("FUSE-4");
                }
                assert_eq!(&found.0, name, "FUSE-4: behind {}", order[at].0);
            }
        }
        listing.rewind();
        let mut left = 0;
        while read(&mut listing).is_some() {
            left += 1;
        }
        left
    });
}
