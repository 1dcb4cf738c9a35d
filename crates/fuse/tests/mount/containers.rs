//! What container engines and file servers ask of the filesystem below them. Needs root.
#![allow(clippy::unwrap_used)]

use crate::common::{
    SERVED_LAZILY, TestMount, database_path, mount_in, mountpoint, new_directory, serve_with,
    shell, when_free,
};
use larder::{CreateOptions, Database};
use rustix::fs::{CWD, RenameFlags, renameat_with};
use std::ffi::CString;
use std::fs::{self, File};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::Path;
use std::time::{Duration, Instant};

#[test]
fn a_rename_can_leave_a_whiteout() {
    let mount = TestMount::new();
    let whiteout = |from: &str, to: &str| {
        let (from, to) = (mount.path(from), mount.path(to));
        renameat_with(CWD, &from, CWD, &to, RenameFlags::WHITEOUT).unwrap();
        let left = fs::symlink_metadata(&from).unwrap();
        assert!(left.file_type().is_char_device() && left.rdev() == 0);
        assert_eq!(left.mode() & 0o7777, 0);
    };
    fs::write(mount.path("a"), "a").unwrap();
    fs::write(mount.path("old"), "old").unwrap();
    fs::create_dir(mount.path("dir")).unwrap();
    whiteout("a", "b");
    whiteout("b", "old");
    whiteout("dir", "moved");
    assert_eq!(fs::read_to_string(mount.path("old")).unwrap(), "a");
    assert!(mount.path("moved").is_dir());
    assert_eq!(fs::metadata(mount.root()).unwrap().nlink(), 3);
    File::open(mount.root()).unwrap().sync_all().unwrap();
}

#[test]
fn an_overlay_can_have_its_upper_directory_here() {
    let mount = TestMount::new();
    let out = shell(
        r#"cd "$1" && mkdir lower merged mnt/upper mnt/work
        mkdir lower/dir lower/gone lower/renamed
        for name in a b dir/c gone/d renamed/e; do echo $name > lower/$name; done
        unshare -m sh -ec '
          mount -t overlay overlay -o lowerdir=lower,upperdir=mnt/upper,workdir=mnt/work merged
          cd merged
          rm a; mv b b2; rm -r gone; mkdir gone; echo new > gone/new
          echo more >> dir/c; ln dir/c dir/hard; mv dir/c dir/c2
          mkdir -m 700 fresh; mv renamed fresh/ || cp -a renamed fresh/
          find . -mindepth 1 | LC_ALL=C sort; cat b2 dir/c2 dir/hard gone/new fresh/renamed/e
        '
        stat -c '%n %F %t:%T' mnt/upper/a mnt/upper/b
        umount merged 2> /dev/null || true"#,
        &[mount.directory()],
    );
    let expected = [
        "./b2",
        "./dir",
        "./dir/c2",
        "./dir/hard",
        "./fresh",
        "./fresh/renamed",
        "./fresh/renamed/e",
        "./gone",
        "./gone/new",
    ];
    let lines: Vec<&str> = out.lines().filter(|line| *line != "./renamed/e").collect();
    let found: Vec<&str> = (lines.iter().copied())
        .filter(|line| line.starts_with("./") && !line.starts_with("./renamed"))
        .collect();
    assert_eq!(found, expected, "{out}");
    assert!(
        out.contains("b\ndir/c\nmore\ndir/c\nmore\nnew\nrenamed/e\n"),
        "{out}"
    );
    for name in ["a", "b"] {
        let whiteout = format!("mnt/upper/{name} character special file 0:0");
        assert!(out.contains(&whiteout), "{out}");
    }
}

/// What name_to_handle_at(2) gives: `struct file_handle`.
#[repr(C)]
struct Handle {
    len_bytes: u32,
    kind: i32,
    bytes: [u8; 128],
}

fn handle_of(path: &Path) -> Handle {
    let path = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut handle = Handle {
        len_bytes: 128,
        kind: 0,
        bytes: [0; 128],
    };
    let mut mount_id = 0;
    let at = (&raw mut handle).cast();
    // SAFETY: the handle has room for as many bytes as it says.
    let done =
        unsafe { libc::name_to_handle_at(libc::AT_FDCWD, path.as_ptr(), at, &raw mut mount_id, 0) };
    assert_eq!(done, 0, "{}", io::Error::last_os_error());
    handle
}

fn open_by(handle: &mut Handle, root: &File, flags: i32) -> io::Result<File> {
    // SAFETY: the kernel only reads the handle; what it returns is a new descriptor.
    let fd = unsafe { libc::open_by_handle_at(root.as_raw_fd(), (&raw mut *handle).cast(), flags) };
    match fd {
        -1 => Err(io::Error::last_os_error()),
        // SAFETY: the same.
        fd => Ok(unsafe { File::from_raw_fd(fd) }),
    }
}

// After a mount anew the kernel knows nothing: it asks by number.
#[test]
fn file_handles_last_across_mounts() {
    let mut mount = TestMount::new();
    fs::create_dir_all(mount.path("deep/er")).unwrap();
    fs::write(mount.path("deep/er/f"), "content").unwrap();
    fs::write(mount.path("gone"), "gone").unwrap();
    let [mut file, mut directory, mut gone] =
        ["deep/er/f", "deep/er", "gone"].map(|name| handle_of(&mount.path(name)));
    mount.end();
    mount.mount(|_| {});
    let root = File::open(mount.root()).unwrap();
    let mut content = String::new();
    let mut opened = open_by(&mut file, &root, libc::O_RDONLY).unwrap();
    opened.read_to_string(&mut content).unwrap();
    assert_eq!(content, "content");
    let opened = open_by(&mut directory, &root, libc::O_RDONLY | libc::O_DIRECTORY).unwrap();
    let path = fs::read_link(format!("/proc/self/fd/{}", opened.as_raw_fd())).unwrap();
    assert_eq!(path, mount.path("deep/er"), "it is connected to the root");
    assert!(open_by(&mut gone, &root, libc::O_RDONLY).is_ok());
    fs::remove_file(mount.path("gone")).unwrap();
    // Nobody waits for the RELEASE of what was just closed, and until it is served the kernel has
    // the file open.
    let began = Instant::now();
    let refused = loop {
        match open_by(&mut gone, &root, libc::O_RDONLY) {
            Ok(_) if began.elapsed() < Duration::from_secs(10) => {
                std::thread::sleep(Duration::from_millis(5));
            }
            opened => break opened.unwrap_err(),
        }
    };
    assert_eq!(refused.raw_os_error(), Some(libc::ESTALE));
    drop(opened);
}

/// What a killed server made and had not committed is not there again, but its numbers are, for
/// others.
#[test]
fn a_handle_of_what_a_killed_server_made_opens_nothing_else() {
    let directory = new_directory();
    let directory = directory.path();
    let options = CreateOptions {
        capacity_bytes: Some(256 << 20),
        ..CreateOptions::default()
    };
    Database::create(&database_path(directory), &options).unwrap();
    let place = mountpoint(directory);
    let mut server = serve_with(directory, &[(SERVED_LAZILY, "1")]);
    fs::write(place.join("lost"), "lost").unwrap();
    fs::create_dir(place.join("lost too")).unwrap();
    let lost = ["lost", "lost too"].map(|name| {
        let path = place.join(name);
        (handle_of(&path), fs::metadata(&path).unwrap().ino())
    });
    server.kill().unwrap();
    server.wait().unwrap();
    let mounted = mount_in(directory, |_| {}).unwrap();
    for ((mut handle, ino), name) in lost.into_iter().zip(["other", "another"]) {
        fs::write(place.join(name), name).unwrap();
        let same = fs::metadata(place.join(name)).unwrap().ino();
        assert_eq!(same, ino, "else there is nothing to see here");
        let root = File::open(&place).unwrap();
        let refused = open_by(&mut handle, &root, libc::O_RDONLY).map(drop);
        let code = refused.map_err(|error| error.raw_os_error());
        assert_eq!(code, Err(Some(libc::ESTALE)), "FUSE-21");
        let mut opened = open_by(&mut handle_of(&place.join(name)), &root, libc::O_RDONLY).unwrap();
        let mut content = String::new();
        opened.read_to_string(&mut content).unwrap();
        assert_eq!(content, name);
    }
    when_free(|| mounted.unmount()).unwrap();
    mounted.wait().unwrap();
}
