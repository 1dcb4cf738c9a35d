//! Who may use what the mount shows of the past.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::as_of::{Clock, HOUR, names, snapshot, sync};
use crate::common::{TestMount, database_path, end, mount_moment, shell};
use larder::Database;
use larder_fuse::HistoryAccess;
use rustix::fs::{XattrFlags, removexattr, setxattr};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

const SOMEBODY: u32 = 65_534;
const LIST: &str = "system.posix_acl_access";

/// What a user of no rights reads below `root`, file by file.
fn seen_by_somebody(root: &Path, files: &[&str]) -> String {
    let script = "cd / && as() { setpriv --reuid 65534 --clear-groups --regid 65534 \"$@\"; }; \
                  root=$1; shift; for f in \"$@\"; do \
                  as cat \"$root/$f\" 2>/dev/null || printf -; done";
    let mut arguments = vec![root];
    arguments.extend(files.iter().map(Path::new));
    shell(script, &arguments)
}

fn chmod(path: impl AsRef<Path>, mode: u32) {
    fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
}

/// Writes a new file and renames it over the old one, with its mode.
fn save(path: &Path) {
    let new = path.with_extension("new");
    fs::write(&new, "saved").unwrap();
    fs::set_permissions(&new, fs::metadata(path).unwrap().permissions()).unwrap();
    fs::rename(new, path).unwrap();
}

/// A database with a snapshot `s` that is seen in every way there is: below `.larder`, as a store,
/// and both of these on the mount of the present and on that of a moment.
struct Views {
    mount: TestMount,
    moment: larder_fuse::Mounted,
    /// Where the snapshot is.
    roots: Vec<PathBuf>,
}

impl Views {
    fn new(fill: impl FnOnce(&Path), access: HistoryAccess) -> Views {
        let clock = Clock::new();
        let mut mount = clock.mount(HOUR);
        fill(&mount.root());
        snapshot(&mut mount, &clock, "s");
        let database = Database::open(&database_path(mount.directory()), clock.open()).unwrap();
        (database.stores().create("old", "asof=s", None, None)).unwrap();
        database.close().unwrap();
        mount.end();
        mount.mount(|options| options.history_access = access);
        let (moment, then) = mount_moment(&mount, clock.open(), "s", access);
        let roots = [
            mount.path(".larder/snapshots/s"),
            mount.path(".larder/snapshots/s/old"),
            mount.path(".larder/at/s"),
            mount.path("old"),
            then.join("old"),
            then,
        ];
        Views {
            mount,
            moment,
            roots: roots.into(),
        }
    }

    /// What somebody reads, of which all views must say the same.
    fn seen(&self, files: &[&str]) -> String {
        sync(&self.mount); // The mount of the moment is of another session.
        let seen: Vec<String> = (self.roots.iter())
            .map(|root| seen_by_somebody(root, files))
            .collect();
        for (root, one) in self.roots.iter().zip(&seen) {
            let (root, first) = (root.display(), self.roots[0].display());
            assert_eq!(*one, seen[0], "FUSE-13: {root} beside {first}");
        }
        seen[0].clone()
    }

    fn end(mut self) {
        end(self.moment);
        self.mount.end();
    }
}

/// Every view of the past: files, a directory and the root on the way to one, owners, access
/// control lists, the attributes of what is open.
#[test]
fn no_view_of_the_past_shows_what_the_present_closes() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let files = ["f", "g", "l", "d/in", "gone"];
    let fill = |root: &Path| {
        fs::create_dir(root.join("d")).unwrap();
        for (name, text) in files.iter().zip(["f", "g", "l", "i", "x"]) {
            fs::write(root.join(name), text).unwrap();
        }
        fs::write(root.join("closed"), "c").unwrap();
        chmod(root.join("closed"), 0o600);
    };
    let views = Views::new(fill, HistoryAccess::Both);
    let (mount, seen) = (&views.mount, || views.seen(&files));
    assert_eq!(seen(), "fglix");
    let open: Vec<File> = (views.roots.iter())
        .map(|root| File::open(root.join("f")).unwrap())
        .collect();

    chmod(mount.path("f"), 0o600);
    fs::remove_file(mount.path("gone")).unwrap();
    assert_eq!(seen(), "-glix", "FUSE-13: a file");
    for file in &open {
        assert_eq!(file.metadata().unwrap().mode() & 0o777, 0o600, "FUSE-13");
    }
    assert_eq!(
        seen(),
        "-glix",
        "FUSE-13: fstat tells the kernel no other mode"
    );
    drop(open);
    chown(mount.path("g"), Some(SOMEBODY), Some(SOMEBODY)).unwrap();
    chmod(mount.path("g"), 0o040);
    assert_eq!(seen(), "--lix", "FUSE-13: its owner");
    chmod(mount.path("g"), 0o400);
    assert_eq!(seen(), "-glix");
    // A list that keeps him out though the mode lets him in.
    let entries = [
        (1, 6, u32::MAX),
        (2, 0, SOMEBODY),
        (4, 4, u32::MAX),
        (16, 4, u32::MAX),
    ];
    let list = entries.iter().chain(&[(32, 4, u32::MAX)]);
    let list = list.flat_map(|&(tag, mode, id): &(u16, u16, u32)| {
        [
            &tag.to_le_bytes()[..],
            &mode.to_le_bytes(),
            &id.to_le_bytes(),
        ]
        .concat()
    });
    let list: Vec<u8> = 2u32.to_le_bytes().into_iter().chain(list).collect();
    setxattr(mount.path("l"), LIST, &list, XattrFlags::empty()).unwrap();
    assert_eq!(seen(), "-g-ix", "FUSE-13: a list of now");
    removexattr(mount.path("l"), LIST).unwrap();
    assert_eq!(seen(), "-glix");
    chmod(mount.path("d"), 0o700);
    assert_eq!(seen(), "-gl-x", "FUSE-13: a directory on the way");
    chmod(mount.path("d"), 0o711);
    assert_eq!(seen(), "-glix");
    // A file that is closed and then saved is the same file, whose inode is another one: at once,
    // and while somebody has the old one open.
    let held = File::open(mount.path("l")).unwrap();
    chmod(mount.path("l"), 0o600);
    save(&mount.path("l"));
    let here = &views.roots[..4];
    for root in here {
        assert_eq!(seen_by_somebody(root, &files), "-g-ix", "FUSE-13: a save");
    }
    assert_eq!(seen(), "-g-ix", "FUSE-13: a save");
    drop(held);
    save(&mount.path("l"));
    for root in here {
        assert_eq!(
            seen_by_somebody(root, &files),
            "-g-ix",
            "FUSE-13: two saves"
        );
    }
    assert_eq!(seen(), "-g-ix", "FUSE-13: two saves");
    chmod(mount.path("l"), 0o644);
    assert_eq!(seen(), "-glix");
    // What was closed then stays so.
    chmod(mount.path("closed"), 0o666);
    assert_eq!(views.seen(&["closed"]), "-");
    chmod(mount.root(), 0o700);
    for root in &views.roots {
        assert_eq!(seen_by_somebody(root, &files), "-----", "FUSE-13: the root");
        assert_eq!(fs::read(root.join("d/in")).unwrap(), b"i", "root enters");
    }
    chmod(mount.root(), 0o755);
    assert_eq!(seen(), "-glix");
    views.end();
}

/// What somebody asks for with `history=then` and `history=root`.
#[test]
fn every_view_of_the_past_obeys_the_option() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let fill = |root: &Path| {
        fs::write(root.join("f"), "f").unwrap();
    };
    for (access, wanted) in [(HistoryAccess::Then, "f"), (HistoryAccess::Root, "-")] {
        let views = Views::new(fill, access);
        chmod(views.mount.path("f"), 0o600);
        assert_eq!(views.seen(&["f"]), wanted, "{access:?}");
        for root in &views.roots {
            assert_eq!(fs::read(root.join("f")).unwrap(), b"f", "{access:?}");
        }
        views.end();
    }
}

/// What was 0644 and is 0600 now is closed then too, at once, and stays closed while somebody who
/// may has it open.
#[test]
fn what_was_readable_once_is_for_whom_it_is_now() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let clock = Clock::new();
    let mut mount = clock.mount(HOUR);
    let chmod = |mount: &TestMount, name: &str, mode: u32| {
        fs::set_permissions(mount.path(name), fs::Permissions::from_mode(mode)).unwrap();
    };
    for name in ["was", "gone", "given"] {
        fs::write(mount.path(name), name).unwrap();
        chmod(&mount, name, 0o644);
    }
    snapshot(&mut mount, &clock, "s");
    let script = "cd \"$1/.larder/snapshots/s\"; \
                  as() { setpriv --reuid 12345 --clear-groups --regid 12345 \"$@\"; }; \
                  for f in was gone given; do as cat $f 2>/dev/null || printf no; printf ' '; \
                  done; \
                  as ls .. 2>/dev/null || echo no";
    let seen = |mount: &TestMount| shell(script, &[&mount.root()]);
    assert_eq!(seen(&mount), "was gone given s\n");
    let open = File::open(mount.path(".larder/snapshots/s/was")).unwrap();
    chmod(&mount, "was", 0o600);
    fs::remove_file(mount.path("gone")).unwrap();
    std::os::unix::fs::chown(mount.path("given"), Some(12345), Some(12345)).unwrap();
    chmod(&mount, "given", 0o600);
    assert_eq!(seen(&mount), "no gone given s\n", "FUSE-13");
    chmod(&mount, "given", 0o200);
    assert_eq!(seen(&mount), "no gone no s\n", "FUSE-13");
    assert_eq!(open.metadata().unwrap().mode() & 0o777, 0o600, "FUSE-13");
    drop(open);
    chmod(&mount, "", 0o700);
    let outside = "setpriv --reuid 12345 --clear-groups --regid 12345 ls \"$1/.larder/snapshots\" \
        2>&1 || true";
    assert!(
        shell(outside, &[&mount.root()]).contains("Permission denied"),
        "FUSE-13"
    );
    chmod(&mount, "", 0o755);
    mount.end();
    mount.mount(|options| options.history_access = HistoryAccess::Then);
    assert_eq!(seen(&mount), "was gone given s\n");
    mount.end();
    mount.mount(|options| options.history_access = HistoryAccess::Root);
    assert!(shell(outside, &[&mount.root()]).contains("Permission denied"));
    assert_eq!(names(mount.path(".larder/snapshots")), ["s"]);
}
