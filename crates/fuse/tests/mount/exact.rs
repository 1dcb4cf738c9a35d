//! What the kernel has cached after others have changed something: nothing that is stale, and all
//! the rest.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::{TestMount, database_path, noise};
use larder::{
    Caller, Database, DatabaseOptions, FileKind, Moment, Name, NewNode, NodeId, RenameMode,
    SetAttr, XattrMode,
};
use larder_testkit::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::fd::AsRawFd;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// All that is compared of a path; `None`: there is no such file.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Seen {
    kind: FileKind,
    mode: u32,
    uid: u32,
    nlink: u32,
    size: u64,
    mtime_ns: i64,
    content: Vec<u8>,
}

type Tree = BTreeMap<String, Option<Seen>>;

const NAMES: [&str; 5] = ["a", "b", "c", "d", "e"];

fn caller() -> Caller {
    Caller {
        uid: 0,
        gid: 0,
        umask: 0,
    }
}

/// By the library.
fn expect(db: &Database, directory: NodeId, path: &str, tree: &mut Tree) {
    let mut absent: BTreeSet<&str> = NAMES.into();
    for entry in db.nodes().read_dir(directory, None, 1000).unwrap() {
        let attr = db.nodes().metadata(entry.node).unwrap();
        let path = format!("{path}/{}", entry.name);
        absent.remove(entry.name.to_string().as_str());
        let content = match attr.kind {
            FileKind::File => db.files().read(path.as_bytes()).unwrap(),
            FileKind::Symlink => db.nodes().read_link(entry.node).unwrap(),
            _ => Vec::new(),
        };
        if attr.kind == FileKind::Directory {
            expect(db, entry.node, &path, tree);
        }
        let seen = Seen {
            kind: attr.kind,
            mode: attr.mode,
            uid: attr.uid,
            nlink: attr.nlink,
            size: attr.size_bytes,
            mtime_ns: attr.mtime_ns,
            content,
        };
        tree.insert(path, Some(seen));
    }
    for name in absent {
        tree.insert(format!("{path}/{name}"), None);
    }
}

/// Through the mount, by every way there is.
fn see(root: &Path, path: &str, tree: &mut Tree) {
    let at = |path: &str| root.join(path.trim_start_matches('/'));
    let Ok(listing) = fs::read_dir(at(path)) else {
        return;
    };
    let mut names: BTreeSet<String> = NAMES.map(str::to_owned).into();
    names.extend(
        listing
            .filter_map(|entry| entry.ok()?.file_name().into_string().ok())
            .filter(|name| name != ".larder"),
    );
    for name in names {
        let path = format!("{path}/{name}");
        let file = at(&path);
        let Ok(attr) = fs::symlink_metadata(&file) else {
            tree.insert(path, None);
            continue;
        };
        let (kind, content) = if attr.is_dir() {
            see(root, &path, tree);
            (FileKind::Directory, Vec::new())
        } else if attr.is_symlink() {
            let target = fs::read_link(&file).map(|target| target.into_os_string().into_string());
            (
                FileKind::Symlink,
                target.map_or(Vec::new(), |target| target.unwrap().into()),
            )
        } else {
            (FileKind::File, fs::read(&file).unwrap_or_default())
        };
        let seen = Seen {
            kind,
            mode: attr.mode() & 0o7777,
            uid: attr.uid(),
            nlink: attr.nlink() as u32,
            size: attr.size(),
            mtime_ns: attr.mtime() * 1_000_000_000 + attr.mtime_nsec(),
            content,
        };
        tree.insert(path, Some(seen));
    }
}

fn plain(mount: &TestMount, sql: &str) {
    let status = Command::new("sqlite3")
        .args(["-cmd", ".timeout 20000"])
        .arg(database_path(mount.directory()).join("catalog.db"))
        .arg(sql)
        .status()
        .expect("these tests need sqlite3");
    assert!(status.success(), "{sql}");
}

fn any_path(rng: &mut Rng) -> String {
    let depth = 1 + rng.below(2);
    (0..depth).fold(String::new(), |path, _| {
        format!("{path}/{}", rng.pick(&NAMES))
    })
}

/// One change; many of them cannot be made as things are.
fn change(db: &Database, rng: &mut Rng) -> larder::Result<String> {
    let (path, other) = (any_path(rng), any_path(rng));
    let (kind, salt) = (rng.below(14), rng.bits());
    let node = |path: &str| {
        db.nodes()
            .resolve(path.as_bytes(), false)
            .map(|attr| attr.node)
    };
    match kind {
        0..=3 => {
            db.files()
                .write(path.as_bytes(), noise(salt as usize % 50_000, salt))?;
        }
        4 => db
            .nodes()
            .open(node(&path)?, true)?
            .write_at(0, &noise(9000, salt))?,
        5 | 6 => {
            let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
            db.nodes()
                .create_node(parent, &name, NewNode::Directory, 0o755, caller())?;
        }
        7 => {
            let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
            db.nodes().unlink(parent, &name)?;
        }
        8 => {
            let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
            db.nodes().remove_dir(parent, &name)?;
        }
        9 | 10 => {
            let mode = match kind {
                9 => RenameMode::Exchange,
                _ => RenameMode::Replace,
            };
            let (parent, name) = db.nodes().resolve_parent(path.as_bytes())?;
            let (new_parent, new_name) = db.nodes().resolve_parent(other.as_bytes())?;
            db.nodes()
                .rename(parent, &name, new_parent, &new_name, mode)?;
        }
        11 => {
            let (parent, name) = db.nodes().resolve_parent(other.as_bytes())?;
            db.nodes().link(node(&path)?, parent, &name)?;
        }
        12 => {
            let mode = Some(0o600 + (salt % 64) as u32);
            let change = SetAttr {
                mode,
                ..SetAttr::default()
            };
            db.nodes().set_attr(node(&path)?, &change)?;
        }
        _ => db
            .attributes()
            .set(node(&path)?, b"user.a", b"b", XattrMode::Set)?,
    }
    Ok(format!("{kind} {path} {other}"))
}

#[test]
fn the_kernel_has_nothing_that_is_stale() {
    let mount = TestMount::new();
    let path = database_path(mount.directory());
    let library = Database::open(&path, DatabaseOptions::default()).unwrap();
    let mut rng = Rng::new(7);
    for index in 0..150 {
        let what = match index % 4 {
            3 => {
                let (ino, mode) = (2 + rng.below(20), 0o400 + rng.below(0o400));
                let set =
                    format!("mode = {mode}, mtime_ns = {mode} WHERE ino IN ({ino}, {ino} + 1)");
                plain(&mount, &format!("UPDATE main SET {set}"));
                set
            }
            2 => {
                let txn = library.transactions().begin().unwrap();
                let done: Vec<_> = (0..3).map(|_| change(&txn, &mut rng)).collect();
                txn.commit().unwrap();
                format!("{done:?}")
            }
            _ => {
                let done = change(&library, &mut rng);
                library.sync().unwrap();
                format!("{done:?}")
            }
        };
        let began = Instant::now();
        // By names alone: a listing would mend what is known not to be there.
        loop {
            let mut expected = Tree::new();
            expect(&library, NodeId::ROOT, "", &mut expected);
            let is_stale = |(path, one): &(&String, &Option<Seen>)| {
                let found = fs::symlink_metadata(mount.root().join(path.trim_start_matches('/')));
                found.ok().map(|attr| attr.size()) != one.as_ref().map(|one| one.size)
            };
            let stale = expected.iter().find(|one| is_stale(one));
            let Some((path, _)) = stale else { break };
            let late = began.elapsed() > Duration::from_secs(5);
            assert!(!late, "FUSE-1: step {index}, {what}: the name {path}");
            std::thread::sleep(Duration::from_millis(3));
        }
        loop {
            let (mut expected, mut seen) = (Tree::new(), Tree::new());
            // A transaction or plain SQL is noticed by the library itself a moment later.
            expect(&library, NodeId::ROOT, "", &mut expected);
            see(&mount.root(), "", &mut seen);
            if seen == expected {
                break;
            }
            let late = began.elapsed() > Duration::from_secs(5);
            let differing = || {
                let paths = expected.keys().chain(seen.keys());
                let found = paths.filter(|path| expected.get(*path) != seen.get(*path));
                found.cloned().collect::<BTreeSet<String>>()
            };
            assert!(!late, "FUSE-1: step {index}, {what}: {:?}", differing());
            std::thread::sleep(Duration::from_millis(3));
        }
    }
}

/// What others did is seen.
fn until(what: &str, is_so: &dyn Fn() -> bool) {
    let began = Instant::now();
    while !is_so() {
        assert!(began.elapsed() < Duration::from_secs(30), "FUSE-1: {what}");
        std::thread::sleep(Duration::from_millis(3));
    }
}

/// Who is in a directory that is removed asks for names there; then the directory comes back, under
/// its number, and no row of the history names it.
#[test]
fn what_was_absent_in_a_directory_that_comes_back_is_there_again() {
    let mount = TestMount::new();
    fs::create_dir(mount.path("d")).unwrap();
    fs::write(mount.path("d/x"), b"x").unwrap();
    let held = fs::File::open(mount.path("d")).unwrap();
    held.sync_all().unwrap();
    let below = |name: &str| {
        Path::new("/proc/self/fd")
            .join(held.as_raw_fd().to_string())
            .join(name)
    };
    let library = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    for round in 0..3 {
        let now = Moment::At(library.now_ns());
        let then = Moment::Seq(library.history().resolve(&now).unwrap().0);
        let directory = library.nodes().resolve(b"/d", false).unwrap().node;
        library
            .nodes()
            .unlink(directory, &Name::new(b"x").unwrap())
            .unwrap();
        library
            .nodes()
            .remove_dir(NodeId::ROOT, &Name::new(b"d").unwrap())
            .unwrap();
        library.sync().unwrap();
        until("the directory is gone", &|| !mount.path("d").exists());
        until("so is what was in it", &|| !below("x").exists());
        assert!(!below("x").exists() && !below("y").exists());
        library.history().rollback(&then, None, false).unwrap();
        until(&format!("{round}: by the directory"), &|| {
            below("x").exists()
        });
        until(&format!("{round}: by its path"), &|| {
            mount.path("d/x").exists()
        });
    }
}

#[test]
fn stores_that_others_make_move_and_destroy_are_noticed() {
    let mount = TestMount::new();
    let library = Database::open(
        &database_path(mount.directory()),
        DatabaseOptions::default(),
    )
    .unwrap();
    for round in 0..3 {
        // Asked for before, so that the kernel knows that it is not there.
        assert!(!mount.path("one").exists() && !mount.path("two").exists());
        let store = "apart";
        (library.stores().create(store, "files", Some("/one"), None)).unwrap();
        library.files().write(b"/one/f", b"in a store").unwrap();
        library.sync().unwrap();
        let read = |path: &str| fs::read(mount.path(path)).unwrap_or_default();
        until(&format!("{round}: made"), &|| {
            read("one/f") == b"in a store"
        });
        fs::write(mount.path("one/by mount"), b"too").unwrap();
        let listed = |name: &str| {
            let entries = fs::read_dir(mount.root()).unwrap();
            entries.flatten().any(|entry| entry.file_name() == name)
        };
        assert!(listed("one"));
        library.stores().set(store, None, Some("/two")).unwrap();
        until(&format!("{round}: moved"), &|| {
            read("two/f") == b"in a store"
        });
        until(&format!("{round}: gone"), &|| !mount.path("one").exists());
        assert!(listed("two") && !listed("one"));
        library.stores().destroy(store).unwrap();
        until(&format!("{round}: destroyed"), &|| {
            !mount.path("two").exists()
        });
    }
}

#[test]
fn what_nobody_has_changed_stays_in_the_kernel() {
    let mut mount = TestMount::new();
    mount.end();
    mount.mount(|options| options.has_metrics = true);
    fs::create_dir(mount.path("mine")).unwrap();
    fs::create_dir(mount.path("theirs")).unwrap();
    let file = |index: usize| mount.path(&format!("mine/f{index}"));
    for index in 0..50 {
        fs::write(file(index), noise(9000, index as u64)).unwrap();
    }
    fs::File::open(mount.root()).unwrap().sync_all().unwrap();
    let path = database_path(mount.directory());
    // As a command: beside who announces that it writes the kernel asks each time.
    let mut options = DatabaseOptions::default();
    options.engine.is_command = true;
    let library = Database::open(&path, options).unwrap();
    let put = |index: usize| {
        library
            .files()
            .write(format!("/theirs/{index}").as_bytes(), b"new")
            .unwrap();
        library.sync().unwrap();
        let began = Instant::now();
        // Seen, so all was told before.
        while fs::read(mount.path(&format!("theirs/{index}"))).unwrap_or_default() != b"new" {
            assert!(began.elapsed() < Duration::from_secs(30), "FUSE-1: {index}");
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let read_mine = || {
        for index in 0..50 {
            assert_eq!(fs::symlink_metadata(file(index)).unwrap().size(), 9000);
            assert!(!mount.path(&format!("mine/none{index}")).exists());
        }
    };
    let asked = || -> u64 {
        let metrics = mount.mounted().monitor().metrics().unwrap();
        metrics.operations.iter().map(|one| one.count).sum()
    };
    // The first change that is noticed tells of everything, and replies of the last seconds may be
    // told again.
    put(0);
    std::thread::sleep(Duration::from_millis(1500));
    read_mine();
    let mine = || {
        let before = asked();
        read_mine();
        asked() - before
    };
    // What was told of late may be told of again at any time.
    let few = |what: &str, work: &dyn Fn(usize)| {
        let counts: Vec<u64> = (0..5)
            .map(|index| {
                work(index);
                mine()
            })
            .collect();
        println!("{what}: {counts:?}");
        assert!(counts.iter().any(|count| *count <= 4), "{what}: {counts:?}");
    };
    few("without a change", &|_| ());
    few("FUSE-1: after one", &|index| put(1 + index));
    few("FUSE-1: after some", &|index| {
        (0..5).for_each(|other| put(10 + 5 * index + other));
    });
}
