//! What programs may expect of a filesystem, asked of a real mount.

use crate::common::{TestMount, database_path, noise, shell};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, RenameFlags, SeekFrom, Timespec, Timestamps, XattrFlags,
};
use rustix::io::Errno;
use std::collections::BTreeSet;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

#[test]
fn a_copied_tree_is_equal_in_everything() {
    let mount = TestMount::new();
    let source = tempfile::tempdir().unwrap();
    let tree = source.path().join("tree");
    shell(
        r#"mkdir -p "$1/deep/er" && cd "$1"
        echo small > a; : > empty; head -c 300000 /dev/urandom > deep/large
        ln a hard; ln -s ../a deep/link; ln -s nowhere dangling; mkfifo pipe
        chmod 4751 a; chmod 2775 deep; chmod 1777 deep/er; chmod 400 empty
        touch -d '2001-02-03 04:05:06.789' deep/large; touch -h -d '1960-01-02 03:04:05.25' dangling
        touch -d '1999-12-31 23:59:59' deep"#,
        &[&tree],
    );
    let copy = mount.path("tree");
    shell(
        "cp -a \"$1\" \"$2\" && diff -r -x pipe --no-dereference \"$1\" \"$2\"",
        &[&tree, &copy],
    );
    let listing = |root: &Path| {
        let script = r#"cd "$1"; find . -type d -printf '%p %m %U %G %T@\n' | sort
            find . -printf '%p %y %m %U %G %T@ %l %n\n' | sort | grep -v ' d .* [0-9]*$'"#;
        shell(script, &[root])
    };
    assert_eq!(listing(&copy), listing(&tree));
    assert!(listing(&tree).contains("a f 4751"));
}

#[test]
fn renames_replace_refuse_or_exchange() {
    let mount = TestMount::new();
    let (a, b) = (mount.path("a"), mount.path("b"));
    fs::write(&a, "a").unwrap();
    fs::write(&b, "b").unwrap();
    let rename = |flags| rustix::fs::renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(rename(RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(&a).unwrap(), fs::read(&b).unwrap()),
        (b"b".to_vec(), b"a".to_vec())
    );
    let both = RenameFlags::WHITEOUT | RenameFlags::EXCHANGE;
    assert_eq!(rename(both), Err(Errno::INVAL));
    fs::rename(&a, &b).unwrap();
    assert!(!a.exists());
    assert_eq!(fs::read(&b).unwrap(), b"b");
    assert_eq!(rename(RenameFlags::EXCHANGE), Err(Errno::NOENT));

    fs::create_dir(mount.path("d")).unwrap();
    fs::create_dir(mount.path("full")).unwrap();
    fs::write(mount.path("full/f"), "").unwrap();
    let into_itself = fs::rename(mount.path("d"), mount.path("d/below")).unwrap_err();
    assert_eq!(into_itself.raw_os_error(), Some(libc::EINVAL));
    let onto_full = fs::rename(mount.path("d"), mount.path("full")).unwrap_err();
    assert_eq!(onto_full.raw_os_error(), Some(libc::ENOTEMPTY));
    assert_eq!(
        fs::remove_dir(mount.path("full"))
            .unwrap_err()
            .raw_os_error(),
        Some(libc::ENOTEMPTY)
    );
    fs::rename(mount.path("full"), mount.path("d")).unwrap();
    assert!(mount.path("d/f").exists());
}

#[test]
fn an_unlinked_file_lives_while_it_is_open() {
    let mount = TestMount::new();
    let mut file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.path("f"))
        .unwrap();
    file.write_all(b"before").unwrap();
    fs::remove_file(mount.path("f")).unwrap();
    assert_eq!(
        fs::metadata(mount.path("f")).unwrap_err().raw_os_error(),
        Some(libc::ENOENT)
    );
    file.write_all(b" after").unwrap();
    file.sync_all().unwrap();
    file.rewind().unwrap();
    let mut content = String::new();
    file.read_to_string(&mut content).unwrap();
    assert_eq!(content, "before after");
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.nlink(), metadata.len()), (0, 12));
    file.set_len(3).unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
    file.set_permissions(PermissionsExt::from_mode(0o600))
        .unwrap();
    fs::write(mount.path("f"), "another").unwrap();
    assert_eq!(file.metadata().unwrap().len(), 3);
}

#[test]
fn appends_from_two_descriptors_do_not_overwrite() {
    let mount = TestMount::new();
    let open = || {
        OpenOptions::new()
            .append(true)
            .create(true)
            .open(mount.path("log"))
            .unwrap()
    };
    let (mut one, mut other) = (open(), open());
    for round in 0..200 {
        one.write_all(format!("one {round}\n").as_bytes()).unwrap();
        other
            .write_all(format!("other {round}\n").as_bytes())
            .unwrap();
    }
    let content = fs::read_to_string(mount.path("log")).unwrap();
    let expected: String = (0..200)
        .map(|round| format!("one {round}\nother {round}\n"))
        .collect();
    assert_eq!(content, expected);

    let root = mount.root();
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let path = root.join("parallel");
            scope.spawn(move || {
                let mut log = OpenOptions::new()
                    .append(true)
                    .create(true)
                    .open(path)
                    .unwrap();
                for round in 0..100 {
                    log.write_all(format!("{writer} {round}\n").as_bytes())
                        .unwrap();
                }
            });
        }
    });
    let content = fs::read_to_string(mount.path("parallel")).unwrap();
    let lines: BTreeSet<String> = content.lines().map(str::to_owned).collect();
    let expected = (0..4)
        .flat_map(|writer| (0..100).map(move |round| format!("{writer} {round}")))
        .collect();
    assert_eq!(lines, expected);
}

#[test]
fn links_hard_and_symbolic() {
    let mount = TestMount::new();
    fs::write(mount.path("f"), "content").unwrap();
    fs::hard_link(mount.path("f"), mount.path("g")).unwrap();
    let (f, g) = (
        fs::metadata(mount.path("f")).unwrap(),
        fs::metadata(mount.path("g")).unwrap(),
    );
    assert_eq!((f.ino(), f.nlink()), (g.ino(), 2));
    fs::remove_file(mount.path("f")).unwrap();
    assert_eq!(fs::metadata(mount.path("g")).unwrap().nlink(), 1);
    assert_eq!(fs::read(mount.path("g")).unwrap(), b"content");

    let long = "x".repeat(4095);
    for (name, target) in [("relative", "g"), ("long", long.as_str())] {
        symlink(target, mount.path(name)).unwrap();
        assert_eq!(fs::read_link(mount.path(name)).unwrap(), Path::new(target));
        assert_eq!(
            fs::symlink_metadata(mount.path(name)).unwrap().len(),
            target.len() as u64
        );
    }
    assert_eq!(fs::read(mount.path("relative")).unwrap(), b"content");
    symlink("loop", mount.path("loop")).unwrap();
    assert_eq!(
        fs::metadata(mount.path("loop")).unwrap_err().raw_os_error(),
        Some(libc::ELOOP)
    );
}

#[test]
fn names_have_up_to_255_bytes_of_any_kind() {
    use std::os::unix::ffi::OsStrExt;
    let mount = TestMount::new();
    let longest = [0xffu8; 255];
    let path = mount.root().join(std::ffi::OsStr::from_bytes(&longest));
    fs::write(&path, "x").unwrap();
    let listed = fs::read_dir(mount.root())
        .unwrap()
        .next()
        .unwrap()
        .unwrap()
        .file_name();
    assert_eq!(listed.as_bytes(), longest);
    let error = fs::write(mount.path(&"x".repeat(256)), "x").unwrap_err();
    assert_eq!(error.raw_os_error(), Some(libc::ENAMETOOLONG));
}

#[test]
fn extended_attributes() {
    let mount = TestMount::new();
    let path = mount.path("f");
    fs::write(&path, "x").unwrap();
    let set = |value: &[u8], flags| rustix::fs::setxattr(&path, "user.note", value, flags);
    let get = |room: &mut [u8]| rustix::fs::getxattr(&path, "user.note", room);
    assert_eq!(get(&mut [0; 8]), Err(Errno::NODATA));
    assert_eq!(set(b"x", XattrFlags::REPLACE), Err(Errno::NODATA));
    set(b"hello", XattrFlags::CREATE).unwrap();
    assert_eq!(set(b"x", XattrFlags::CREATE), Err(Errno::EXIST));
    assert_eq!(rustix::fs::getxattr_query(&path, "user.note"), Ok(5));
    assert_eq!(get(&mut [0; 4]), Err(Errno::RANGE));
    let mut room = [0; 8];
    assert_eq!((get(&mut room), &room[..5]), (Ok(5), &b"hello"[..]));
    set(&noise(65536, 1), XattrFlags::REPLACE).unwrap();
    assert_eq!(rustix::fs::getxattr_query(&path, "user.note"), Ok(65536));
    set(b"", XattrFlags::empty()).unwrap();
    assert_eq!(get(&mut [0; 8]), Ok(0));

    let mut names = [0; 64];
    let len = rustix::fs::listxattr(&path, &mut names).unwrap();
    assert_eq!(&names[..len], b"user.note\0");
    rustix::fs::removexattr(&path, "user.note").unwrap();
    assert_eq!(
        rustix::fs::removexattr(&path, "user.note"),
        Err(Errno::NODATA)
    );

    // `ls -l` asks for it once only when it hears this.
    let label = "security.selinux";
    let get_label = || rustix::fs::getxattr_query(&path, label);
    assert_eq!(get_label(), Err(Errno::OPNOTSUPP));
    rustix::fs::setxattr(&path, label, b"x", XattrFlags::empty()).unwrap();
    assert_eq!(get_label(), Ok(1));
}

#[test]
fn a_sparse_file_of_20_gb_holds_only_what_was_written() {
    let mount = TestMount::new();
    let file = File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(mount.path("sparse"))
        .unwrap();
    let end = 20u64 << 30;
    file.write_all_at(&noise(4096, 7), end - 4096).unwrap();
    file.sync_all().unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!(metadata.len(), end);
    assert!(
        metadata.blocks() * 512 <= 64 << 10,
        "{} blocks",
        metadata.blocks()
    );
    let mut block = vec![1; 4096];
    file.read_exact_at(&mut block, end / 2).unwrap();
    assert!(block.iter().all(|&byte| byte == 0));
    file.read_exact_at(&mut block, end - 4096).unwrap();
    assert_eq!(block, noise(4096, 7));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Data(0)), Ok(end - 4096));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(0)), Ok(0));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Hole(end - 4096)), Ok(end));
    assert_eq!(
        rustix::fs::seek(&file, SeekFrom::Data(end)),
        Err(Errno::NXIO)
    );
}

#[test]
fn a_directory_can_be_emptied_while_it_is_read() {
    let mount = TestMount::new();
    let directory = mount.path("d");
    fs::create_dir(&directory).unwrap();
    let name = |number| format!("file-{number:05}");
    for number in 0..5000 {
        File::create(directory.join(name(number))).unwrap();
    }
    let mut seen = BTreeSet::new();
    for entry in fs::read_dir(&directory).unwrap() {
        let entry = entry.unwrap();
        assert!(entry.file_type().unwrap().is_file());
        fs::remove_file(entry.path()).unwrap();
        assert!(
            seen.insert(entry.file_name().into_string().unwrap()),
            "FUSE-4: {entry:?} came twice"
        );
    }
    assert_eq!(seen, (0..5000).map(name).collect(), "FUSE-4");
    fs::remove_dir(&directory).unwrap();
}

#[test]
fn dot_and_dot_dot_are_listed_and_a_directory_rewinds() {
    let mount = TestMount::new();
    fs::create_dir_all(mount.path("a/b")).unwrap();
    let descriptor = File::open(mount.path("a")).unwrap();
    let mut directory = rustix::fs::Dir::read_from(&descriptor).unwrap();
    let mut list = || {
        directory.rewind();
        let mut found: Vec<(String, u64)> = Vec::new();
        while let Some(entry) = directory.read() {
            let entry = entry.unwrap();
            found.push((
                entry.file_name().to_string_lossy().into_owned(),
                entry.ino(),
            ));
        }
        found.sort();
        found
    };
    let ino = |name| fs::metadata(mount.path(name)).unwrap().ino();
    let expected = [
        (".".to_owned(), ino("a")),
        ("..".to_owned(), ino("")),
        ("b".to_owned(), ino("a/b")),
    ];
    assert_eq!(list(), expected);
    fs::write(mount.path("a/c"), "").unwrap();
    let now = list();
    assert_eq!(now[..3], expected);
    assert_eq!(now[3], ("c".to_owned(), ino("a/c")));
}

#[test]
fn shared_memory_maps_read_and_write() {
    use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
    let mount = TestMount::new();
    let path = mount.path("mapped");
    let content = noise(3 * 4096, 3);
    fs::write(&path, &content).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    // SAFETY: the mapping is of a file that nobody truncates, is accessed within its 12288 bytes
    // only, and through one slice at a time.
    unsafe {
        let at = mmap(
            std::ptr::null_mut(),
            content.len(),
            ProtFlags::READ | ProtFlags::WRITE,
            MapFlags::SHARED,
            &file,
            0,
        )
        .unwrap();
        let bytes = std::slice::from_raw_parts_mut(at.cast::<u8>(), content.len());
        assert_eq!(bytes, content);
        bytes[4096..4101].copy_from_slice(b"hello");
        msync(at, content.len(), MsyncFlags::SYNC).unwrap();
        munmap(at, content.len()).unwrap();
    }
    let mut expected = content;
    expected[4096..4101].copy_from_slice(b"hello");
    assert_eq!(fs::read(&path).unwrap(), expected);
    let mut direct = vec![0; 5];
    File::open(&path)
        .unwrap()
        .read_exact_at(&mut direct, 4096)
        .unwrap();
    assert_eq!(direct, b"hello");
}

#[test]
fn large_files_come_back_as_written() {
    let mount = TestMount::new();
    let content = noise((9 << 20) + 4321, 11);
    let path = mount.path("large");
    fs::write(&path, &content).unwrap();
    File::open(&path).unwrap().sync_all().unwrap();
    // From the database, not from the page cache.
    rustix::fs::fadvise(
        File::open(&path).unwrap(),
        0,
        None,
        rustix::fs::Advice::DontNeed,
    )
    .unwrap();
    assert!(fs::read(&path).unwrap() == content);
    fs::copy(&path, mount.path("copy")).unwrap();
    let copied = fs::read(mount.path("copy")).unwrap();
    assert!(copied == content);
    let file = File::options()
        .write(true)
        .custom_flags(libc::O_DSYNC)
        .open(&path)
        .unwrap();
    file.write_all_at(b"patch", 1_000_003).unwrap();
    file.set_len(2_000_000).unwrap();
    let mut expected = content;
    expected[1_000_003..1_000_008].copy_from_slice(b"patch");
    assert!(fs::read(&path).unwrap() == expected[..2_000_000]);
    let truncated = File::options()
        .write(true)
        .truncate(true)
        .open(&path)
        .unwrap();
    assert_eq!(truncated.metadata().unwrap().len(), 0);
}

#[test]
fn ranges_are_copied_allocated_and_punched() {
    let mount = TestMount::new();
    let open = |name| {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(true)
            .open(mount.path(name))
            .unwrap()
    };
    let (from, to) = (open("from"), open("to"));
    let content = noise(3 << 20, 5);
    from.write_all_at(&content, 0).unwrap();
    let (mut from_at, mut to_at) = (1000, 77);
    let mut copied = 0;
    while copied < 2 << 20 {
        let step = rustix::fs::copy_file_range(
            &from,
            Some(&mut from_at),
            &to,
            Some(&mut to_at),
            (2 << 20) - copied,
        );
        copied += step.unwrap();
    }
    let mut found = vec![0; 2 << 20];
    to.read_exact_at(&mut found, 77).unwrap();
    assert!(found == content[1000..1000 + (2 << 20)]);
    assert_eq!(to.metadata().unwrap().len(), 77 + (2 << 20));

    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    rustix::fs::fallocate(&from, punch, 4096, 8192).unwrap();
    let mut found = vec![1; 3 << 20];
    from.read_exact_at(&mut found, 0).unwrap();
    assert!(found[4096..12288].iter().all(|&byte| byte == 0));
    assert!(found[..4096] == content[..4096] && found[12288..] == content[12288..]);
    rustix::fs::fallocate(&to, FallocateFlags::empty(), 0, 4 << 20).unwrap();
    assert_eq!(to.metadata().unwrap().len(), 4 << 20);
    rustix::fs::fallocate(&to, FallocateFlags::KEEP_SIZE, 0, 8 << 20).unwrap();
    assert_eq!(to.metadata().unwrap().len(), 4 << 20);
    let insert = rustix::fs::fallocate(&to, FallocateFlags::INSERT_RANGE, 0, 4096);
    assert_eq!(insert, Err(Errno::OPNOTSUPP));
}

/// The kernel hands `copy_file_range` to a filesystem of ours, and not `FICLONE`: cp(1) falls back
/// from that to this.
#[test]
fn copies_within_the_mount_share_their_blocks() {
    let mount = TestMount::new();
    let content = noise(4 << 20, 7);
    fs::write(mount.path("from"), &content).unwrap();
    let from = File::open(mount.path("from")).unwrap();
    from.sync_all().unwrap();
    let beside = larder::Database::open(&database_path(mount.directory()), Default::default());
    let beside = beside.unwrap();
    let live = || {
        shell("sync -f \"$1\"", &[&mount.root()]);
        beside.maintenance().space().unwrap().live_bytes
    };
    let before = live();
    let to = File::create_new(mount.path("to")).unwrap();
    assert_eq!(rustix::fs::ioctl_ficlone(&to, &from), Err(Errno::OPNOTSUPP));
    let copy = || rustix::fs::copy_file_range(&from, None, &to, None, 8 << 20).unwrap();
    assert_eq!(copy(), 4 << 20);
    shell(
        "cp --reflink=auto \"$1\" \"$2\"",
        &[&mount.path("from"), &mount.path("third")],
    );
    assert_eq!(live(), before, "SHARE-1");
    let file = OpenOptions::new()
        .write(true)
        .open(mount.path("from"))
        .unwrap();
    file.write_all_at(b"changed", 5000).unwrap();
    file.sync_all().unwrap();
    assert!(fs::read(mount.path("to")).unwrap() == content, "SHARE-4");
    assert!(fs::read(mount.path("third")).unwrap() == content, "SHARE-4");
    assert!(live() <= before + 8192);
    beside.close().unwrap();
}

#[test]
fn a_full_database_says_so_and_recovers() {
    let mount = TestMount::with_capacity(24 << 20);
    let content = noise(1 << 20, 9);
    let mut written = Vec::new();
    let refusal = loop {
        let path = mount.path(&format!("f{}", written.len()));
        let filled = File::create(&path).and_then(|mut file| {
            file.write_all(&content)?;
            file.sync_all()
        });
        match filled {
            Ok(()) => written.push(path),
            Err(error) => break error,
        }
        assert!(written.len() < 24, "24 MiB hold no 24 MiB of files");
    };
    assert_eq!(refusal.raw_os_error(), Some(libc::ENOSPC));
    assert!(written.len() >= 8, "only {} MiB fit into 24", written.len());
    for path in &written {
        assert!(fs::read(path).unwrap() == content, "{path:?}");
    }
    for entry in fs::read_dir(mount.root()).unwrap() {
        fs::remove_file(entry.unwrap().path()).unwrap();
    }
    File::open(mount.root()).unwrap().sync_all().unwrap();
    let mut file = File::create(mount.path("again")).unwrap();
    file.write_all(&content).unwrap();
    file.sync_all().unwrap();
}

#[test]
fn statfs_tells_the_space() {
    let mount = TestMount::with_capacity(64 << 20);
    let space = rustix::fs::statvfs(mount.root()).unwrap();
    assert_eq!(space.f_blocks * space.f_frsize, 64 << 20);
    assert!(space.f_bavail <= space.f_bfree && space.f_bfree <= space.f_blocks);
    assert!(space.f_bavail * space.f_frsize > 32 << 20);
    assert_eq!(space.f_namemax, 255);
    assert!(space.f_ffree > 1_000_000);
}

// What history would give up is not used, and not there twice.
#[test]
fn statfs_counts_history_that_gives_way_as_free() {
    let day_ns = 86_400 * 1_000_000_000;
    let mount = TestMount::with(64 << 20, Some(day_ns), larder::DatabaseOptions::default());
    for name in ["kept", "a", "b"] {
        fs::write(mount.path(name), noise(8 << 20, 1)).unwrap();
    }
    File::open(mount.root()).unwrap().sync_all().unwrap();
    for name in ["a", "b"] {
        fs::remove_file(mount.path(name)).unwrap();
    }
    File::open(mount.root()).unwrap().sync_all().unwrap();
    // An answer may be 1 s old.
    std::thread::sleep(std::time::Duration::from_millis(1200));
    let space = rustix::fs::statvfs(mount.root()).unwrap();
    let [size, free, available] =
        [space.f_blocks, space.f_bfree, space.f_bavail].map(|blocks| blocks * space.f_frsize);
    assert!(available <= free, "{available} of {free}");
    assert!(size - free + available <= size);
    let database = larder::Database::open(
        &database_path(mount.directory()),
        larder::DatabaseOptions::default(),
    );
    let report = database.unwrap().maintenance().space().unwrap();
    assert!(report.spare_bytes >= 16 << 20, "{report:?}");
    assert!(report.free_bytes + report.live_bytes + report.retired_bytes == size);
    let used = report.used_bytes();
    assert_eq!([used, report.available_bytes], [size - free, available]);
    assert!((8 << 20..10 << 20).contains(&used), "{report:?}");
}

#[test]
fn times_are_set_to_the_nanosecond() {
    let mount = TestMount::new();
    fs::write(mount.path("f"), "x").unwrap();
    for (tv_sec, tv_nsec) in [
        (981_173_106, 789_000_001),
        (0, 0),
        (-2, 800_000_000),
        (-1_000_000_000, 1),
    ] {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps {
            last_access: time,
            last_modification: time,
        };
        rustix::fs::utimensat(CWD, mount.path("f"), &times, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(mount.path("f")).unwrap();
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (tv_sec, tv_nsec));
    }
    let before = fs::metadata(mount.path("f")).unwrap();
    std::thread::sleep(std::time::Duration::from_millis(20));
    fs::write(mount.path("f"), "y").unwrap();
    let after = fs::metadata(mount.path("f")).unwrap();
    assert!(after.modified().unwrap() > before.modified().unwrap());
    assert!((after.ctime(), after.ctime_nsec()) > (before.ctime(), before.ctime_nsec()));
}

#[test]
fn the_kernel_checks_permissions_and_clears_set_id_bits() {
    if !rustix::process::geteuid().is_root() {
        eprintln!("only root can become another user: not tested");
        return;
    }
    let mount = TestMount::new();
    let path = mount.path("f");
    fs::write(&path, "x").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
    let as_nobody = |script: &str| {
        let mut command = Command::new("sh");
        command
            .args(["-c", script, "sh"])
            .arg(&path)
            .uid(65534)
            .gid(65534);
        command
            .stderr(std::process::Stdio::null())
            .status()
            .unwrap()
            .success()
    };
    assert!(!as_nobody("cat \"$1\""));
    assert!(!as_nobody("echo x > \"$1-new\""));
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6777)).unwrap();
    assert!(as_nobody("echo y >> \"$1\""));
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o777);
    assert_eq!(fs::read_to_string(&path).unwrap(), "xy\n");
    std::os::unix::fs::chown(&path, Some(65534), Some(65534)).unwrap();
    assert!(as_nobody("chmod 640 \"$1\" && rm -f \"$1-none\""));
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!(
        (metadata.uid(), metadata.gid(), metadata.mode() & 0o7777),
        (65534, 65534, 0o640)
    );
}

#[test]
fn special_files_keep_kind_and_number() {
    use rustix::fs::{FileType, Mode, makedev, mknodat};
    let mount = TestMount::new();
    mknodat(
        CWD,
        mount.path("fifo"),
        FileType::Fifo,
        Mode::from(0o644),
        0,
    )
    .unwrap();
    let fifo = fs::metadata(mount.path("fifo")).unwrap();
    assert_eq!(fifo.mode() & libc::S_IFMT, libc::S_IFIFO);
    let listener = std::os::unix::net::UnixListener::bind(mount.path("socket")).unwrap();
    std::os::unix::net::UnixStream::connect(mount.path("socket")).unwrap();
    drop(listener);
    if rustix::process::geteuid().is_root() {
        let number = makedev(259, 70_000);
        mknodat(
            CWD,
            mount.path("device"),
            FileType::BlockDevice,
            Mode::from(0o600),
            number,
        )
        .unwrap();
        let device = fs::metadata(mount.path("device")).unwrap();
        assert_eq!(
            (device.mode() & libc::S_IFMT, device.rdev()),
            (libc::S_IFBLK, number)
        );
    }
}

#[test]
fn locks_of_both_kinds_exclude() {
    let mount = TestMount::new();
    let open = || {
        File::options()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .open(mount.path("f"))
            .unwrap()
    };
    let (one, other) = (open(), open());
    one.lock().unwrap();
    assert!(matches!(
        other.try_lock(),
        Err(fs::TryLockError::WouldBlock)
    ));
    one.unlock().unwrap();
    other.try_lock().unwrap();
    // Record locks of one process never conflict; those of open file descriptions do.
    let lock_record = |file: &File| {
        // SAFETY: `flock` is plain data, for which zero is valid: the whole file, no process.
        let mut record: libc::flock = unsafe { std::mem::zeroed() };
        record.l_type = libc::F_WRLCK as _;
        // SAFETY: the descriptor is open, and the pointer is to a `flock` that outlives the call.
        unsafe { libc::fcntl(file.as_raw_fd(), libc::F_OFD_SETLK, &record) }
    };
    assert_eq!(lock_record(&one), 0);
    assert_eq!(lock_record(&other), -1);
    drop(one);
    assert_eq!(lock_record(&other), 0);
}
