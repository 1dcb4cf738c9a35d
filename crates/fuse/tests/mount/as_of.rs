//! History on mounts: moments below `.larder`, and mounts of one moment, against a model and with
//! programs.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::{self, TestMount, database_path, end, mount_at, noise, shell};
use larder::{Database, DatabaseOptions, ErrorKind};
use larder_fuse::{HistoryAccess, HistoryListing, MountOptions, Mounted};
use larder_testkit::{HostTree, Mix, Rng, Script, digest, explain_difference};
use rustix::fs::{AtFlags, CWD, FlockOperation, Mode, OFlags, RenameFlags, XattrFlags};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::{Duration, Instant};

/// When the tests begin, nanoseconds since 1970: 2027-01-15T08:00:00Z.
const BEGIN_NS: i64 = 1_800_000_000_000_000_000;
const MILLISECOND: i64 = 1_000_000;
pub const MINUTE: i64 = 60_000 * MILLISECOND;
pub const HOUR: i64 = 60 * MINUTE;

/// A clock that goes when it is told.
#[derive(Clone)]
pub struct Clock(Arc<AtomicI64>);

impl Clock {
    pub fn new() -> Clock {
        Clock(Arc::new(AtomicI64::new(BEGIN_NS)))
    }

    pub fn now(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    pub fn pass(&self, ns: i64) {
        self.0.fetch_add(ns, Ordering::SeqCst);
    }

    pub fn open(&self) -> DatabaseOptions {
        let clock = self.clone();
        let mut options = DatabaseOptions::default();
        options.engine.clock = Some(Arc::new(move || clock.now()));
        options
    }

    pub fn mount(&self, retention_ns: i64) -> TestMount {
        TestMount::with(256 << 20, Some(retention_ns), self.open())
    }
}

/// The text of a moment within the first minute.
fn text_of(at_ns: i64) -> String {
    let since = at_ns - BEGIN_NS;
    assert!((0..MINUTE).contains(&since));
    let (seconds, rest) = (since / 1_000_000_000, since % 1_000_000_000);
    format!("2027-01-15T08:00:{seconds:02}.{rest:09}Z")
}

pub fn sync(mount: &TestMount) {
    File::open(mount.root()).unwrap().sync_all().unwrap();
}

fn code(error: io::Error) -> i32 {
    error.raw_os_error().unwrap()
}

/// Mounts a moment of the database of `mount` beside it.
fn mount_moment(mount: &TestMount, clock: &Clock, moment: &str) -> (Mounted, PathBuf) {
    common::mount_moment(mount, clock.open(), moment, HistoryAccess::default())
}

const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 300_000,
    write_bytes_max: 60_000,
    sync_percent: 4,
    overwrite_percent: 20,
    fragment_percent: 0,
};

/// The tree at `place` is as `made` operations of the script left it.
fn assert_was(place: &Path, script: &Script, made: usize, when: &str) {
    let found = HostTree::new(place).walk();
    let found = found.unwrap_or_else(|error| {
        let (seed, place) = (script.seed, place.display());
        panic!("seed {seed}, {when}, after {made} operations, {place}: {error}")
    });
    assert!(
        script.find_prefix(&found, made, made).is_some(),
        "seed {}, {when}, after {made} operations, {}: {}",
        script.seed,
        place.display(),
        explain_difference(&script.tree(made), &found)
    );
}

#[test]
fn every_moment_on_the_mount_reads_as_the_model_says() {
    for seed in 1..=2 {
        let clock = Clock::new();
        let mut mount = clock.mount(HOUR);
        // The model knows what was.
        let as_then = |options: &mut MountOptions| options.history_access = HistoryAccess::Then;
        mount.end();
        mount.mount(as_then);
        fs::create_dir(mount.path("w")).unwrap();
        let script = Script::generate(seed, 400, MIX);
        let host = HostTree::new(mount.path("w"));
        let mut rng = Rng::new(seed ^ 0x7157);
        let mut moments: Vec<(String, usize)> = Vec::new();
        let at = |mount: &TestMount, moment: &str| mount.path(&format!(".larder/at/{moment}/w"));
        for (index, op) in script.ops.iter().enumerate() {
            host.apply(op)
                .unwrap_or_else(|error| panic!("seed {seed}, operation {index} {op:?}: {error}"));
            if rng.chance(40) {
                sync(&mount);
                moments.push((text_of(clock.now()), index + 1));
                clock.pass(MILLISECOND);
            }
            if rng.chance(5) && !moments.is_empty() {
                let (moment, made) = rng.pick(&moments).clone();
                assert_was(&at(&mount, &moment), &script, made, "on the way");
            }
            if rng.chance(1) {
                mount.end();
                mount.mount(as_then);
            }
        }
        for _ in 0..100 {
            let (moment, made) = rng.pick(&moments).clone();
            assert_was(&at(&mount, &moment), &script, made, "at the end");
        }
        mount.end();
        mount.mount(as_then);
        for _ in 0..20 {
            let (moment, made) = rng.pick(&moments).clone();
            assert_was(&at(&mount, &moment), &script, made, "reopened");
        }
        for _ in 0..5 {
            let (moment, made) = rng.pick(&moments).clone();
            let (mounted, place) =
                common::mount_moment(&mount, clock.open(), &moment, HistoryAccess::Then);
            assert_was(&place.join("w"), &script, made, "mounted");
            end(mounted);
        }
        assert_was(&mount.path("w"), &script, script.ops.len(), "the present");
        mount.end();
        let database = Database::open(&database_path(mount.directory()), clock.open()).unwrap();
        let report = database.maintenance().check(true, &mut |_, _| {}).unwrap();
        assert_eq!(report.findings, Vec::<String>::new(), "seed {seed}");
    }
}

#[test]
fn a_moment_is_mounted_and_stays_readable() {
    let clock = Clock::new();
    let mut mount = clock.mount(MINUTE);
    let old = noise(3 << 20, 1);
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/f"), &old).unwrap();
    std::os::unix::fs::symlink("d/f", mount.path("link")).unwrap();
    sync(&mount);
    let moment = text_of(clock.now());
    let (mounted, then) = mount_moment(&mount, &clock, &moment);
    let info = larder_fuse::find_mount(&then).unwrap().unwrap();
    let database = database_path(mount.directory()).canonicalize().unwrap();
    assert_eq!(
        (&info.source, info.moment.as_deref()),
        (&database, Some(&*moment))
    );
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let name = format!("{}@{moment}", database.display());
    assert!(table.contains(&name), "{table}");
    let present = larder_fuse::find_mounts_of(&database).unwrap();
    assert_eq!(present, [mount.root().canonicalize().unwrap()]);
    assert_eq!(mounted.shows().unwrap().1, clock.now());
    // It does not change, however much time passes and is written.
    for round in 0..8 {
        clock.pass(MINUTE);
        fs::write(mount.path("d/f"), noise(3 << 20, 10 + round)).unwrap();
        fs::write(mount.path(&format!("new-{round}")), "x").unwrap();
        sync(&mount);
    }
    assert!(fs::read(then.join("d/f")).unwrap() == old, "FUSE-10");
    assert_eq!(fs::read_dir(&then).unwrap().count(), 2);
    assert_eq!(fs::read_link(then.join("link")).unwrap(), Path::new("d/f"));
    let refused = [
        fs::write(then.join("d/f"), "x").unwrap_err(),
        fs::write(then.join("new"), "x").unwrap_err(),
        fs::remove_file(then.join("d/f")).unwrap_err(),
        fs::rename(then.join("link"), then.join("moved")).unwrap_err(),
        fs::create_dir(then.join("e")).unwrap_err(),
        fs::set_permissions(then.join("d"), fs::Permissions::from_mode(0o700)).unwrap_err(),
    ];
    for error in refused {
        assert_eq!(code(error), libc::EROFS, "FUSE-11");
    }
    let flags = rustix::fs::statvfs(&then).unwrap();
    assert!(flags.f_blocks > 0 && flags.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    assert!(!then.join(".larder").exists(), "a moment has no others");
    // Locks there are nobody's in the present.
    let (one, other) = (
        File::open(then.join("d/f")).unwrap(),
        File::open(mount.path("d/f")).unwrap(),
    );
    rustix::fs::flock(&one, FlockOperation::NonBlockingLockExclusive).unwrap();
    rustix::fs::flock(&other, FlockOperation::NonBlockingLockExclusive).unwrap();
    drop((one, other));
    end(mounted);
    // Now it goes.
    for _ in 0..3 {
        clock.pass(MINUTE);
        fs::write(mount.path("later"), noise(5000, 1)).unwrap();
        sync(&mount);
    }
    mount.end();
    let database = Database::open(&database_path(mount.directory()), clock.open()).unwrap();
    let place = mount.directory().join("then");
    let gone = mount_at(database, &place, |options| options.as_of = Some(moment)).unwrap_err();
    assert_eq!(gone.kind(), ErrorKind::InvalidInput);
    assert!(gone.to_string().contains("history begins"), "{gone}");
}

/// A mount with two snapshots: `d/f` was one, then another; and `late` came behind.
fn with_snapshots(clock: &Clock) -> TestMount {
    let mut mount = clock.mount(HOUR);
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/f"), "one").unwrap();
    fs::hard_link(mount.path("d/f"), mount.path("d/g")).unwrap();
    std::os::unix::fs::symlink("f", mount.path("d/link")).unwrap();
    rustix::fs::setxattr(mount.path("d/f"), "user.a", b"1", XattrFlags::empty()).unwrap();
    clock.pass(MILLISECOND);
    snapshot(&mut mount, clock, "first");
    fs::write(mount.path("d/f"), "another").unwrap();
    clock.pass(MILLISECOND);
    snapshot(&mut mount, clock, "second");
    fs::write(mount.path("late"), "x").unwrap();
    sync(&mount);
    clock.pass(MILLISECOND);
    mount
}

pub fn snapshot(mount: &mut TestMount, clock: &Clock, name: &str) {
    sync(mount);
    let database = Database::open(&database_path(mount.directory()), clock.open()).unwrap();
    database.snapshots().create(name).unwrap();
    database.close().unwrap();
}

pub fn names(place: PathBuf) -> Vec<String> {
    let entries = fs::read_dir(place).unwrap();
    let mut names: Vec<String> = entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    names
}

#[test]
fn snapshots_are_listed_and_read() {
    let clock = Clock::new();
    let mut mount = with_snapshots(&clock);
    assert_eq!(names(mount.root()), ["d", "late"], "it is not listed");
    assert_eq!(names(mount.path(".larder")), ["at", "snapshots"]);
    assert_eq!(names(mount.path(".larder/snapshots")), ["first", "second"]);
    assert_eq!(names(mount.path(".larder/at")), [""; 0]);
    let read = |path: &str| fs::read_to_string(mount.path(path)).unwrap();
    assert_eq!(read(".larder/snapshots/first/d/f"), "one");
    assert_eq!(read(".larder/snapshots/first/d/link"), "one");
    assert_eq!(read(".larder/snapshots/second/d/g"), "another");
    assert_eq!(read(".larder/at/first/d/f"), "one");
    assert_eq!(names(mount.path(".larder/snapshots/second")), ["d"]);
    let mut value = [0; 9];
    let length = rustix::fs::getxattr(
        mount.path(".larder/snapshots/first/d/f"),
        "user.a",
        &mut value,
    );
    assert_eq!((length, value[0]), (Ok(1), b'1'));
    // The parents of what is in there.
    let parent = fs::metadata(mount.path(".larder/snapshots/first/..")).unwrap();
    let snapshots = fs::metadata(mount.path(".larder/snapshots")).unwrap();
    assert_eq!(parent.ino(), snapshots.ino());
    // What is not there.
    for missing in [
        "snapshots/third",
        "at/third",
        "at/-1y",
        "at/2999-01-01",
        "at/-1x",
        "x",
        "at/seq:0x",
    ] {
        let error = fs::metadata(mount.path(&format!(".larder/{missing}"))).unwrap_err();
        assert_eq!(code(error), libc::ENOENT, "{missing}");
    }
    // A snapshot that is made is there, one that is destroyed is not.
    snapshot(&mut mount, &clock, "third");
    assert!(mount.path(".larder/snapshots/third/late").exists());
    let database = Database::open(&database_path(mount.directory()), clock.open()).unwrap();
    database.snapshots().destroy("third").unwrap();
    // The kernel is told of it, as of any foreign change.
    let began = Instant::now();
    while mount.path(".larder/snapshots/third").exists() {
        assert!(began.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    assert_eq!(names(mount.path(".larder/snapshots")), ["first", "second"]);
    database.close().unwrap();
}

#[test]
fn nothing_in_the_past_can_be_changed() {
    let clock = Clock::new();
    let mount = with_snapshots(&clock);
    let past = |path: &str| mount.path(&format!(".larder/snapshots/first/{path}"));
    let time = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    let mut truncate = File::options();
    truncate.write(true).truncate(true);
    let refused = [
        (
            "open",
            File::options().write(true).open(past("d/f")).map(drop),
        ),
        ("truncate", truncate.open(past("d/f")).map(drop)),
        ("create", File::create(past("d/new")).map(drop)),
        ("unlink", fs::remove_file(past("d/f"))),
        ("rmdir", fs::remove_dir(past("d"))),
        ("mkdir", fs::create_dir(past("e"))),
        ("mkdir in at", fs::create_dir(mount.path(".larder/at/e"))),
        (
            "mkdir in snapshots",
            fs::create_dir(mount.path(".larder/snapshots/e")),
        ),
        (
            "create in it",
            File::create(mount.path(".larder/e")).map(drop),
        ),
        ("rmdir of it", fs::remove_dir(mount.path(".larder"))),
        ("rmdir of a snapshot", fs::remove_dir(past(""))),
        ("rename", fs::rename(past("d/f"), past("d/h"))),
        (
            "rename of it",
            fs::rename(mount.path(".larder"), mount.path("l")),
        ),
        ("link", fs::hard_link(past("d/f"), past("d/h"))),
        ("symlink", std::os::unix::fs::symlink("x", past("d/h"))),
        (
            "chmod",
            fs::set_permissions(past("d/f"), fs::Permissions::from_mode(0o600)),
        ),
        (
            "utimes",
            File::open(past("d/f")).and_then(|file| file.set_times(time)),
        ),
        (
            "setxattr",
            rustix::fs::setxattr(past("d/f"), "user.b", b"1", XattrFlags::empty())
                .map_err(Into::into),
        ),
        (
            "tmpfile",
            rustix::fs::open(past("d"), OFlags::TMPFILE | OFlags::WRONLY, Mode::RUSR)
                .map(drop)
                .map_err(Into::into),
        ),
    ];
    for (what, outcome) in refused {
        let code = code(outcome.expect_err(what));
        assert_eq!(code, libc::EROFS, "FUSE-11: {what}");
    }
    let across = [
        ("out", fs::rename(past("d/f"), mount.path("f"))),
        ("in", fs::rename(mount.path("late"), past("d/late"))),
        ("link out", fs::hard_link(past("d/f"), mount.path("f"))),
        ("link in", fs::hard_link(mount.path("late"), past("d/late"))),
        (
            "between moments",
            fs::rename(past("d/f"), mount.path(".larder/snapshots/second/d/h")),
        ),
        (
            "exchange",
            rustix::fs::renameat_with(
                CWD,
                past("d/f"),
                CWD,
                mount.path("late"),
                RenameFlags::EXCHANGE,
            )
            .map_err(Into::into),
        ),
    ];
    for (what, outcome) in across {
        let code = code(outcome.expect_err(what));
        assert_eq!(code, libc::EXDEV, "FUSE-11: {what}");
    }
    // A copy inside of the server, of the same inode.
    let (from, to) = (
        File::open(past("d/f")).unwrap(),
        File::options().write(true).open(mount.path("d/f")).unwrap(),
    );
    let copied = rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 100).unwrap();
    assert_eq!(copied, 3);
    drop((from, to));
    assert_eq!(fs::read_to_string(mount.path("d/f")).unwrap(), "onether");
    assert_eq!(fs::read_to_string(past("d/f")).unwrap(), "one");
    // A sync of what is read is no error.
    File::open(past("d/f")).unwrap().sync_all().unwrap();
    File::open(past("d")).unwrap().sync_all().unwrap();
}

#[test]
fn no_two_moments_share_a_number() {
    let clock = Clock::new();
    let mount = with_snapshots(&clock);
    let stat = |path: &str| fs::metadata(mount.path(path)).unwrap();
    let mut numbers: Vec<u64> = [
        "d/f",
        ".larder/snapshots/first/d/f",
        ".larder/snapshots/second/d/f",
        ".larder/at/first/d/f",
        ".larder/at/2027-01-15T08:00:00.002Z/d/..",
        "d",
        ".larder/snapshots/first/d",
        ".larder",
        ".larder/at",
        ".larder/snapshots",
        ".larder/snapshots/first",
        "",
    ]
    .iter()
    .map(|path| {
        assert_eq!(stat(path).dev(), stat("").dev());
        stat(path).ino()
    })
    .collect();
    let count = numbers.len();
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), count, "FUSE-9");
    let (one, other) = (
        stat(".larder/snapshots/first/d/f"),
        stat(".larder/snapshots/first/d/g"),
    );
    assert_eq!(
        (one.ino(), one.nlink()),
        (other.ino(), 2),
        "one file with two names"
    );
    // The same directory by two names, at the same time.
    std::thread::scope(|scope| {
        for name in ["snapshots/first", "at/first", "at/FIRST", "snapshots/First"] {
            let place = mount.path(&format!(".larder/{name}/d/f"));
            scope.spawn(move || {
                for _ in 0..200 {
                    assert_eq!(fs::read_to_string(&place).unwrap(), "one");
                }
            });
        }
    });
}

#[test]
fn history_is_listed_if_asked_and_hidden_by_a_file_of_that_name() {
    let clock = Clock::new();
    let mut mount = with_snapshots(&clock);
    mount.end();
    mount.mount(|options| options.history = HistoryListing::Shown);
    assert_eq!(names(mount.root()), [".larder", "d", "late"]);
    let listed = shell(
        "find \"$1\" -name f | wc -l; ls -a \"$1\"; ls -l \"$1/.larder/snapshots\"",
        &[&mount.root()],
    );
    assert!(
        listed.starts_with("3\n") && listed.contains("second"),
        "{listed}"
    );
    // So many names that listings have several pages, and the last one is full.
    for count in [600, 1024 - 3, 1024 - 2, 1024 - 1] {
        for index in 0..count {
            let path = mount.path(&format!("n{index}"));
            if !path.exists() {
                File::create(path).unwrap();
            }
        }
        let found = names(mount.root());
        assert_eq!(found.len(), count + 3, "{count}");
        assert_eq!(found.iter().filter(|name| *name == ".larder").count(), 1);
    }
    mount.end();
    let without = clock.mount(0);
    assert!(!without.path(".larder").exists(), "without a retention");
    mount.mount(|options| options.history = HistoryListing::Off);
    assert!(!mount.path(".larder").exists());
    fs::write(mount.path(".larder"), "mine").unwrap();
    mount.end();
    for listing in [HistoryListing::Hidden, HistoryListing::Shown] {
        mount.mount(|options| options.history = listing);
        assert_eq!(fs::read_to_string(mount.path(".larder")).unwrap(), "mine");
        assert_eq!(
            names(mount.root())
                .iter()
                .filter(|name| *name == ".larder")
                .count(),
            1
        );
        fs::write(mount.path("next"), "mine too").unwrap();
        fs::rename(mount.path("next"), mount.path(".larder")).unwrap();
        fs::write(mount.path(".larder"), "mine").unwrap();
        mount.end();
    }
    mount.mount(|_| {});
    fs::rename(mount.path(".larder"), mount.path("mine")).unwrap();
    assert!(mount.path(".larder/snapshots/first").is_dir());
    let taken = fs::rename(mount.path("mine"), mount.path(".larder")).unwrap_err();
    assert!([libc::EISDIR, libc::EROFS].contains(&code(taken)));
}

#[test]
fn a_mistake_is_mended_with_cp() {
    let clock = Clock::new();
    let mount = clock.mount(HOUR);
    let root = mount.root();
    shell(
        "cd \"$1\"; mkdir -p dir/sub; seq 10000 > dir/numbers; ln dir/numbers dir/sub/again; ln \
         -s ../numbers dir/sub/l; \
         chmod 640 dir/numbers; touch -d 2001-02-03 dir/sub; setfattr -n user.x -v y dir/numbers \
         2>/dev/null || true",
        &[&root],
    );
    sync(&mount);
    let before = HostTree::new(root.join("dir")).walk().unwrap();
    clock.pass(2 * MINUTE);
    shell("rm -rf \"$1/dir\"", &[&root]);
    sync(&mount);
    assert!(!root.join("dir").exists());
    shell("cd \"$1\"; cp -a .larder/at/-1m/dir .", &[&root]);
    let after = HostTree::new(root.join("dir")).walk().unwrap();
    let difference = explain_difference(&before, &after);
    assert!(digest(&before) == digest(&after), "{difference}");
    let seconds = fs::metadata(root.join("dir/sub")).unwrap().mtime();
    assert_eq!(
        seconds,
        fs::metadata(root.join(".larder/at/-1m/dir/sub"))
            .unwrap()
            .mtime()
    );
    // Programs tell what is from what was.
    fs::write(root.join("dir/numbers"), "1\n").unwrap();
    let differs = shell(
        "cd \"$1\"; diff -r .larder/at/-1m/dir dir > /dev/null || echo differs; \
         find . -xdev | grep -c larder || true; du -s . | wc -l",
        &[&root],
    );
    assert_eq!(differs, "differs\n0\n1\n");
    let rsync = "command -v rsync >/dev/null || exit 0; cd \"$1\"; rsync -aH --delete \
        .larder/at/-1m/dir/ dir/; \
                 diff -r .larder/at/-1m/dir dir";
    shell(rsync, &[&root]);
}

#[test]
fn permissions_hold_in_the_past() {
    if !rustix::process::geteuid().is_root() {
        return;
    }
    let clock = Clock::new();
    let mut mount = clock.mount(HOUR);
    fs::write(mount.path("secret"), "x").unwrap();
    fs::set_permissions(mount.path("secret"), fs::Permissions::from_mode(0o600)).unwrap();
    fs::write(mount.path("public"), "y").unwrap();
    fs::set_permissions(mount.path("public"), fs::Permissions::from_mode(0o644)).unwrap();
    snapshot(&mut mount, &clock, "s");
    fs::set_permissions(mount.path("secret"), fs::Permissions::from_mode(0o644)).unwrap();
    sync(&mount);
    let script = "cd \"$1\"; as() { setpriv --reuid 12345 --clear-groups --regid 12345 \"$@\"; }; \
                  as cat secret .larder/snapshots/s/public; \
                  as cat .larder/snapshots/s/secret 2>/dev/null || echo refused";
    assert_eq!(shell(script, &[&mount.root()]), "xyrefused\n");
}

#[test]
fn what_is_open_stays_readable_and_the_rest_is_closed() {
    let clock = Clock::new();
    let mut mount = clock.mount(10 * MINUTE);
    let old = noise(2 << 20, 7);
    fs::write(mount.path("f"), &old).unwrap();
    fs::create_dir(mount.path("d")).unwrap();
    snapshot(&mut mount, &clock, "s");
    sync(&mount);
    let moment = text_of(clock.now());
    let file = File::open(mount.path(&format!(".larder/at/{moment}/f"))).unwrap();
    let directory = File::open(mount.path(&format!(".larder/at/{moment}/d"))).unwrap();
    // More moments than are kept open, and more time than is kept.
    let database = Database::open(&database_path(mount.directory()), clock.open()).unwrap();
    database.snapshots().destroy("s").unwrap();
    database.close().unwrap();
    for round in 0..12 {
        clock.pass(MINUTE);
        fs::write(mount.path("f"), noise(2 << 20, 100 + round)).unwrap();
        sync(&mount);
        let now = format!(".larder/at/-{}s/f", round * 7);
        fs::metadata(mount.path(&now)).unwrap();
    }
    for _ in 0..3 {
        clock.pass(30 * MINUTE);
        fs::write(mount.path("other"), noise(5000, 3)).unwrap();
        sync(&mount);
    }
    let mut bytes = vec![0; old.len()];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == old, "FUSE-10");
    let listed = rustix::fs::openat(&directory, ".", OFlags::DIRECTORY, Mode::empty());
    listed.unwrap();
    let lost = rustix::fs::accessat(
        &directory,
        "nothing",
        rustix::fs::Access::EXISTS,
        AtFlags::empty(),
    );
    assert_eq!(lost, Err(Errno::NOENT));
    drop((file, directory));
    mount.end();
}

#[test]
fn threads_read_many_moments_at_once() {
    let clock = Clock::new();
    let mount = clock.mount(HOUR);
    let content = |round: u64| noise(100_000 + round as usize, round);
    let moments: Vec<String> = (0..24)
        .map(|round| {
            fs::write(mount.path("f"), content(round)).unwrap();
            sync(&mount);
            let moment = text_of(clock.now());
            clock.pass(MILLISECOND);
            moment
        })
        .collect();
    std::thread::scope(|scope| {
        for thread in 0..6 {
            let (mount, moments) = (&mount, &moments);
            scope.spawn(move || {
                let mut rng = Rng::new(thread);
                for _ in 0..60 {
                    let round = rng.below(moments.len() as u64);
                    let path = format!(".larder/at/{}/f", moments[round as usize]);
                    let bytes = fs::read(mount.path(&path)).unwrap();
                    assert!(bytes == content(round), "thread {thread}, moment {round}");
                }
            });
        }
        // And somebody writes meanwhile.
        scope.spawn(|| {
            for round in 0..100 {
                fs::write(mount.path("f"), noise(50_000, 1000 + round)).unwrap();
                if round % 10 == 0 {
                    sync(&mount);
                }
            }
        });
    });
}

#[test]
fn stores_that_came_later_are_not_in_the_past() {
    let clock = Clock::new();
    let mut mount = with_snapshots(&clock);
    mount.end();
    let database = Database::open(&database_path(mount.directory()), clock.open()).unwrap();
    database
        .stores()
        .create("raw", "files", None, None)
        .unwrap();
    database.files().write(b"/raw/r", b"in a store").unwrap();
    clock.pass(MILLISECOND);
    database.snapshots().create("third").unwrap();
    database.files().write(b"/raw/r", b"changed").unwrap();
    database.close().unwrap();
    mount.mount(|_| {});
    assert_eq!(names(mount.path(".larder/snapshots/second")), ["d"]);
    assert_eq!(
        names(mount.path(".larder/snapshots/third")),
        ["d", "late", "raw"]
    );
    let then = mount.path(".larder/snapshots/third/raw/r");
    assert_eq!(fs::read_to_string(&then).unwrap(), "in a store");
    assert_eq!(fs::read_to_string(mount.path("raw/r")).unwrap(), "changed");
    let above = then.parent().unwrap().join("..");
    let root = mount.path(".larder/snapshots/third");
    let [above, root] = [above, root].map(|path| fs::metadata(path).unwrap().ino());
    assert_eq!(above, root);
}
