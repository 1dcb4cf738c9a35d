//! When reading changes a time of access: beside ext4, and what nobody else sees of it. As root.

#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::{Ext4, TestMount, database_path, shell};
use larder::{Database, DatabaseOptions};
use larder_fuse::AccessTimes;
use std::fs::{self, File, FileTimes, OpenOptions as Open};
use std::io::{Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant, SystemTime};

/// Longer than ext4's clock takes for a step.
const STEP: Duration = Duration::from_millis(12);

fn atime(path: &Path) -> (i64, i64) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.atime(), metadata.atime_nsec())
}

fn append(path: &Path) {
    let mut file = Open::new().append(true).open(path).unwrap();
    file.write_all(b"more").unwrap();
}

/// By way of the kernel's pages.
fn overwrite(path: &Path) {
    let mut file = Open::new().read(true).write(true).open(path).unwrap();
    file.write_all(b"over").unwrap();
}

fn read_with(path: &Path, flags: i32) {
    let mut file = Open::new()
        .read(true)
        .custom_flags(flags)
        .open(path)
        .unwrap();
    let mut read = Vec::new();
    file.read_to_end(&mut read).unwrap();
}

fn set_atime(path: &Path, at: SystemTime) {
    let times = FileTimes::new().set_accessed(at);
    File::open(path).unwrap().set_times(times).unwrap();
}

fn set_both(path: &Path, accessed: SystemTime, modified: SystemTime) {
    let times = FileTimes::new()
        .set_accessed(accessed)
        .set_modified(modified);
    File::open(path).unwrap().set_times(times).unwrap();
}

/// What is done to a file `f` beside a link `l` and a directory `d`, of which the time is looked at
/// before and after; `what` is the last step's.
type Row = (&'static str, &'static str, fn(&Path));

const HOUR: Duration = Duration::from_secs(3600);

/// In this order, each from what the one before it has left.
const TABLE: [Row; 27] = [
    // Before any page of them is in memory.
    ("cp of a file that was not read yet", "copied", |dir| {
        fs::copy(dir.join("copied"), dir.join("copy of it")).unwrap();
    }),
    ("the second cp", "copied", |dir| {
        fs::copy(dir.join("copied"), dir.join("copy of it")).unwrap();
    }),
    ("the first reading of nothing", "empty", |dir| {
        read_with(&dir.join("empty"), 0)
    }),
    ("the first reading", "f", |dir| read_with(&dir.join("f"), 0)),
    ("the second", "f", |dir| read_with(&dir.join("f"), 0)),
    ("a write alone", "f", |dir| append(&dir.join("f"))),
    ("a reading after a write, of pages in memory", "f", |dir| {
        read_with(&dir.join("f"), 0)
    }),
    ("a write of pages in memory", "f", |dir| {
        overwrite(&dir.join("f"))
    }),
    ("a reading after it", "f", |dir| {
        read_with(&dir.join("f"), 0)
    }),
    ("a chmod alone", "f", |dir| {
        fs::set_permissions(dir.join("f"), fs::Permissions::from_mode(0o640)).unwrap();
    }),
    ("O_NOATIME", "f", |dir| {
        read_with(&dir.join("f"), libc::O_NOATIME)
    }),
    ("a reading after a chmod", "f", |dir| {
        read_with(&dir.join("f"), 0)
    }),
    ("O_DIRECT after a write", "f", |dir| {
        append(&dir.join("f"));
        shell(
            "dd if=\"$1/f\" of=/dev/null iflag=direct bs=4096 status=none",
            &[dir],
        );
    }),
    ("stat", "f", |dir| {
        append(&dir.join("f"));
        fs::metadata(dir.join("f")).unwrap();
    }),
    ("O_PATH", "f", |dir| {
        let open = Open::new().read(true).custom_flags(libc::O_PATH).clone();
        drop(open.open(dir.join("f")).unwrap());
    }),
    ("cp", "f", |dir| {
        fs::copy(dir.join("f"), dir.join("copy")).unwrap();
    }),
    ("a time set to the future, then a reading", "f", |dir| {
        set_atime(&dir.join("f"), SystemTime::now() + HOUR);
        let set = atime(&dir.join("f"));
        read_with(&dir.join("f"), 0);
        assert_eq!(atime(&dir.join("f")), set, "it is younger than the change");
    }),
    ("a time set to two days ago, then a reading", "f", |dir| {
        let now = SystemTime::now();
        set_both(&dir.join("f"), now - 48 * HOUR, now - 72 * HOUR);
        let set = atime(&dir.join("f"));
        read_with(&dir.join("f"), 0);
        assert_ne!(atime(&dir.join("f")), set, "a day is over");
    }),
    ("the first reading of a link", "l", |dir| {
        fs::read_link(dir.join("l")).unwrap();
    }),
    ("the second of a link", "l", |dir| {
        fs::read_link(dir.join("l")).unwrap();
    }),
    ("following a link", "f", |dir| read_with(&dir.join("l"), 0)),
    ("the first listing", "d", |dir| {
        fs::read_dir(dir.join("d")).unwrap().for_each(drop);
    }),
    ("the second listing", "d", |dir| {
        fs::read_dir(dir.join("d")).unwrap().for_each(drop);
    }),
    ("a name made and looked up", "d", |dir| {
        File::create(dir.join("d/1")).unwrap();
        fs::metadata(dir.join("d/1")).unwrap();
    }),
    ("a listing after that", "d", |dir| {
        fs::read_dir(dir.join("d")).unwrap().for_each(drop);
    }),
    ("a truncating open", "f", |dir| {
        drop(File::create(dir.join("f")).unwrap());
    }),
    ("a write by O_RDWR | O_TRUNC", "f", |dir| {
        let open = Open::new().read(true).write(true).truncate(true).clone();
        let mut file = open.open(dir.join("f")).unwrap();
        file.write_all(b"new").unwrap();
    }),
];

fn go_through(dir: &Path) -> Vec<(&'static str, bool)> {
    for (name, content) in [("f", "some bytes"), ("copied", "some bytes"), ("empty", "")] {
        fs::write(dir.join(name), content).unwrap();
    }
    symlink("f", dir.join("l")).unwrap();
    fs::create_dir(dir.join("d")).unwrap();
    let step = |(what, name, act): &Row| {
        sleep(STEP);
        let before = atime(&dir.join(name));
        act(dir);
        (*what, atime(&dir.join(name)) != before)
    };
    TABLE.iter().map(step).collect()
}

#[test]
fn reading_changes_times_of_access_as_on_ext4() {
    let (mount, ext4) = (TestMount::new(), Ext4::new());
    assert_eq!(go_through(&mount.root()), go_through(&ext4.root()));
    for (root, is_read) in [(mount.root(), true), (ext4.root(), false)] {
        let file = root.join("opened");
        let is_changed_by_opening = || {
            let before = atime(&file);
            sleep(STEP);
            drop(File::open(&file).unwrap());
            atime(&file) != before
        };
        fs::write(&file, "x").unwrap();
        assert!(!is_changed_by_opening(), "no page of it is in memory");
        // What the kernel does not tell: whether somebody reads pages that it has.
        overwrite(&file);
        assert_eq!(is_changed_by_opening(), is_read, "FUSE-20");
        // And whether somebody who may write reads pages that the kernel has.
        read_with(&file, 0);
        fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        let before = atime(&file);
        sleep(STEP);
        let mut both = Open::new().read(true).write(true).open(&file).unwrap();
        assert_eq!(both.read(&mut [0; 1]).unwrap(), 1);
        assert_eq!(atime(&file) != before, !is_read, "FUSE-20");
    }
}

/// LOOKUP, OPEN, READ and RELEASE: nothing is told that has it ask again.
#[test]
fn the_first_reading_of_a_file_asks_for_no_attributes() {
    const GETATTR: u32 = 3;
    const READ: u32 = 15;
    const STATX: u32 = 52;
    let mut mount = TestMount::new();
    for index in 0..20 {
        fs::write(mount.path(&format!("f{index}")), "some bytes").unwrap();
    }
    mount.end();
    mount.mount(|options| options.has_metrics = true);
    for index in 0..20 {
        let mut file = File::open(mount.path(&format!("f{index}"))).unwrap();
        // Past the end, so that the kernel looks at the length: `fs::read` asks for it anyway.
        assert_eq!(file.read(&mut [0; 64]).unwrap(), 10);
    }
    // By the numbers of the protocol.
    let count = |operation: u32| {
        let metrics = mount.mounted().monitor().metrics().unwrap();
        let mut operations = metrics.operations.iter();
        let found = operations.find(|one| one.operation == operation);
        found.map_or(0, |one| one.count)
    };
    // Each is counted when it was answered, the last one perhaps later than it was seen here.
    let began = Instant::now();
    while count(READ) < 20 {
        assert!(began.elapsed() < Duration::from_secs(30), "{}", count(READ));
        sleep(Duration::from_millis(1));
    }
    assert_eq!(count(READ), 20);
    let asked = count(GETATTR) + count(STATX);
    // That of the root, and what others on the machine look at.
    assert!(asked < 5, "{asked} times");
}

#[test]
fn the_options_of_the_mount_count() {
    let mut mount = TestMount::new();
    let look = |mount: &TestMount| {
        let (file, dir) = (mount.path("f"), mount.path("d"));
        let mut seen = Vec::new();
        for _ in 0..2 {
            sleep(STEP);
            let before = (atime(&file), atime(&dir));
            read_with(&file, 0);
            fs::read_dir(&dir).unwrap().for_each(drop);
            seen.push((atime(&file) != before.0, atime(&dir) != before.1));
        }
        seen
    };
    fs::create_dir(mount.path("d")).unwrap();
    for (times, has_directory_times, read_only, expected) in [
        (AccessTimes::Never, true, false, [(false, false); 2]),
        (AccessTimes::Strict, true, true, [(false, false); 2]),
        (
            AccessTimes::Relative,
            true,
            false,
            [(true, true), (false, false)],
        ),
        (AccessTimes::Strict, false, false, [(true, false); 2]),
    ] {
        fs::write(mount.path("f"), "x").unwrap();
        fs::write(mount.path("d/x"), "x").unwrap();
        mount.end();
        mount.mount(|options| {
            options.access_times = times;
            options.has_directory_times = has_directory_times;
            options.read_only = read_only;
        });
        // A listing that the kernel has kept does not come here.
        assert_eq!(look(&mount), expected, "{times:?}");
        mount.end();
        mount.mount(|_| {});
    }
    // The kernel's own flags, changed while it is mounted.
    fs::write(mount.path("f"), "x").unwrap();
    let flagged = mount.root();
    shell("mount -i -o remount,bind,noatime \"$1\"", &[&flagged]);
    sleep(Duration::from_millis(1500));
    assert!(!look(&mount)[0].0, "it is noatime by now");
}

#[test]
fn nobody_else_sees_a_change() {
    let mut mount = TestMount::new();
    fs::write(mount.path("f"), "x").unwrap();
    fs::create_dir(mount.path("d")).unwrap();
    mount.end();
    let database = database_path(mount.directory());
    let catalog = database.join("catalog.db");
    let count = |sql: &str| -> i64 {
        let said = shell(&format!("sqlite3 \"$1\" \"{sql}\""), &[&catalog]);
        said.trim().parse().unwrap()
    };
    let numbers = || {
        [
            count("SELECT value FROM larder_meta WHERE key = 'commit_seq'"),
            count("SELECT count(*) FROM larder_history"),
            count("SELECT ctime_ns FROM main WHERE ino = 2"),
        ]
    };
    // A rule of the user's that would refuse any change.
    shell(
        "sqlite3 \"$1\" \"CREATE TRIGGER mine BEFORE UPDATE ON main \
         BEGIN SELECT RAISE(ABORT, 'no'); END\"",
        &[&catalog],
    );
    let before = numbers();
    mount.mount(|_| {});
    sleep(STEP);
    read_with(&mount.path("f"), 0);
    let read_ns = {
        let (seconds, ns) = atime(&mount.path("f"));
        seconds * 1_000_000_000 + ns
    };
    assert!(fs::metadata(mount.path("f")).unwrap().mtime_nsec() != read_ns % 1_000_000_000);
    mount.end();
    assert_eq!(
        count("SELECT atime_ns FROM main WHERE ino = 2"),
        read_ns,
        "ATIME-3"
    );
    assert_eq!(numbers(), before, "ATIME-1");
}

#[test]
fn another_mount_keeps_what_it_has() {
    let mut mount = TestMount::new();
    fs::write(mount.path("f"), "x").unwrap();
    fs::write(mount.path("g"), "x").unwrap();
    let other = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let changed = std::sync::Arc::new(std::sync::Mutex::new(Vec::new()));
    let told = changed.clone();
    other.sessions().on_foreign_changes(Box::new(move |change| {
        told.lock().unwrap().push(format!("{change:?}"));
    }));
    // Everything so far is known.
    sleep(Duration::from_millis(300));
    changed.lock().unwrap().clear();
    sleep(STEP);
    read_with(&mount.path("f"), 0);
    let noted = atime(&mount.path("f"));
    let file = other.nodes().resolve(b"/f", true).unwrap().node;
    let mode = larder::SetAttr {
        mode: Some(0o600),
        ..larder::SetAttr::default()
    };
    other.nodes().set_attr(file, &mode).unwrap();
    other.sync().unwrap();
    assert_eq!(atime(&mount.path("f")), noted, "ATIME-2");
    mount.end();
    sleep(Duration::from_millis(300));
    let seen = changed.lock().unwrap().clone();
    assert!(
        seen.iter().all(|one| one == "Inodes([])"),
        "ATIME-1: {seen:?}"
    );
    // Who has it in memory is not told: who comes later finds it.
    other.close().unwrap();
    let other = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    let attr = other.nodes().resolve(b"/f", true).unwrap();
    assert!(attr.atime_ns >= attr.mtime_ns);
    other.close().unwrap();
}
