//! Random operations from several threads on one mount, against models in memory.
//!
//! Each thread runs a generated script in a directory of its own and, in turn with it, operations
//! in directories that all of them use:
//!
//! * *own*: after each operation the file is read back by a way chosen at random; now and then the
//!   whole tree is compared with the model's; files that lose their last name are read through open
//!   handles.
//! * *shared* (`arena.rs`): names that one thread owns among those of others, and what only one
//!   thread can win, or that all of them must count to the same sum.
//!
//! After each round all threads wait and everything is compared. Between some rounds, and at the
//! end, the filesystem is unmounted, the database checked, mounted again, and compared again.
//!
//! `LARDER_MODEL_SEED` and `LARDER_MODEL_ROUNDS` make another run, or a longer one.
#![allow(clippy::unwrap_used)]

use crate::arena::Arena;
use crate::common::{TestMount, database_path};
use larder::{Database, DatabaseOptions};
use larder_testkit::{
    EntryKind, HostTree, Mix, Model, Op, Rng, Script, Tree, digest, explain_difference,
};
use std::fs::{self, File, OpenOptions as FileOptions};
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread;

const THREADS: usize = 4;
const SEED: u64 = 4;
const ROUNDS: usize = 12;
/// Operations of a thread in its own directory, per round.
const OWN_OPS: usize = 40;
/// Rounds between two remounts.
const REMOUNT_ROUNDS: usize = 4;

const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 600_000,
    write_bytes_max: 200_000,
    sync_percent: 4,
    overwrite_percent: 4,
    fragment_percent: 0,
};

#[test]
fn threads_agree_with_the_model() {
    let seed = number("LARDER_MODEL_SEED", SEED);
    let rounds = number("LARDER_MODEL_ROUNDS", ROUNDS as u64) as usize;
    println!("model: seed {seed}, {rounds} rounds, {THREADS} threads");
    let mut mount = TestMount::with_capacity(1 << 30);
    let mut rng = Rng::new(seed);
    let mut workers: Vec<Worker> = (0..THREADS)
        .map(|index| Worker::new(&mount, index, rounds, rng.bits()))
        .collect();
    for round in 0..rounds {
        let arena = Arena::new(&mount.path("shared"), THREADS);
        thread::scope(|scope| {
            for worker in &mut workers {
                scope.spawn(|| worker.run(round, &arena));
            }
        });
        arena.check();
        arena.remove();
        if (round + 1).is_multiple_of(REMOUNT_ROUNDS) || round + 1 == rounds {
            // Open files keep it from being unmounted.
            workers.iter_mut().for_each(|worker| worker.lost.clear());
            let before = HostTree::new(mount.root()).walk().unwrap();
            mount.end();
            check(mount.directory());
            mount.mount(|_| {});
            let after = HostTree::new(mount.root()).walk().unwrap();
            assert!(
                digest(&before) == digest(&after),
                "round {round}: after a remount: {}",
                explain_difference(&before, &after)
            );
            workers.iter().for_each(|worker| worker.compare(round));
        }
    }
    mount.end();
    check(mount.directory());
}

fn number(variable: &str, default: u64) -> u64 {
    match std::env::var(variable) {
        Ok(text) => text.parse().expect("a number"),
        Err(_) => default,
    }
}

fn check(directory: &Path) {
    let database = Database::open(&database_path(directory), DatabaseOptions::default()).unwrap();
    let report = database.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert_eq!(report.findings, Vec::<String>::new());
    database.close().unwrap();
}

/// A thread with its directory.
struct Worker {
    index: usize,
    root: PathBuf,
    host: HostTree,
    script: Script,
    /// How many operations of the script were made, and what they leave.
    made: usize,
    model: Model,
    rng: Rng,
    /// Files without a name that are open, and what they hold.
    lost: Vec<(File, u64)>,
}

impl Worker {
    fn new(mount: &TestMount, index: usize, rounds: usize, seed: u64) -> Worker {
        let root = mount.path(&format!("own-{index}"));
        fs::create_dir(&root).unwrap();
        Worker {
            index,
            host: HostTree::new(&root),
            root,
            script: Script::generate(seed, OWN_OPS * rounds, MIX),
            made: 0,
            model: Model::new(),
            rng: Rng::new(!seed),
            lost: Vec::new(),
        }
    }

    fn run(&mut self, round: usize, arena: &Arena) {
        let mut visitor = arena.enter(self.index, self.rng.bits());
        for _ in 0..OWN_OPS {
            self.step();
            visitor.step();
        }
        for (file, content) in self.lost.drain(..) {
            let bytes = read_whole(&file).unwrap();
            assert_eq!(Tree::hash_content(&bytes), content, "a file without a name");
        }
        self.compare(round);
    }

    /// The next operation of the script, and a look at what it did.
    fn step(&mut self) {
        let op = self.script.ops[self.made].clone();
        let says = |error: io::Error| format!("thread {}, {op:?}: {error}", self.index);
        let endangered = match &op {
            Op::Unlink { path } | Op::Rename { to: path, .. } => self.open_file(path),
            _ => None,
        };
        self.host
            .apply(&op)
            .map_err(says)
            .unwrap_or_else(|line| panic!("{line}"));
        self.made += 1;
        self.model.apply(&op);
        if let Some((file, content)) = endangered
            && file.metadata().unwrap().nlink() == 0
        {
            self.lost.push((file, content));
        }
        if let Some(path) = changed_file(&op)
            && self.rng.chance(50)
        {
            self.look_at(&self.model.tree(), path);
        }
        if self.rng.chance(4) {
            self.compare(usize::MAX);
        }
    }

    /// Opens what `path` names, if that is a file, with the hash of its content.
    fn open_file(&self, path: &str) -> Option<(File, u64)> {
        let at = self.at(path);
        if !fs::symlink_metadata(&at).is_ok_and(|metadata| metadata.is_file()) {
            return None;
        }
        let file = File::open(&at).unwrap();
        let bytes = read_whole(&file).unwrap();
        Some((file, Tree::hash_content(&bytes)))
    }

    /// One file, read by one of the ways there are.
    fn look_at(&mut self, tree: &Tree, path: &str) {
        let Some(entry) = tree.entries.iter().find(|entry| entry.path == path) else {
            return;
        };
        let EntryKind::File {
            len_bytes, content, ..
        } = entry.kind
        else {
            return;
        };
        let at = self.at(path);
        let (way, bytes) = match self.rng.below(4) {
            0 => ("read", fs::read(&at).unwrap()),
            1 => ("mmap", read_mapped(&File::open(&at).unwrap())),
            2 => ("O_DIRECT", read_direct(&at, len_bytes)),
            _ => {
                let file = File::open(&at).unwrap();
                ("backwards", read_backwards(&file, len_bytes, &mut self.rng))
            }
        };
        assert!(
            bytes.len() as u64 == len_bytes && Tree::hash_content(&bytes) == content,
            "thread {}, operation {}: {path} by {way}: {} bytes of {len_bytes}",
            self.index,
            self.made,
            bytes.len()
        );
    }

    /// The whole directory is as the model says.
    fn compare(&self, round: usize) {
        let found = self.host.walk().unwrap();
        assert!(
            self.script
                .find_prefix(&found, self.made, self.made)
                .is_some(),
            "round {round}, thread {}, operation {} ({:?}): {}",
            self.index,
            self.made,
            self.script.ops.get(self.made.wrapping_sub(1)),
            explain_difference(&self.model.tree(), &found)
        );
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }
}

/// The file whose content or name an operation changed.
fn changed_file(op: &Op) -> Option<&str> {
    match op {
        Op::Write { path, .. }
        | Op::Append { path, .. }
        | Op::Truncate { path, .. }
        | Op::Punch { path, .. }
        | Op::Rename { to: path, .. }
        | Op::Link { to: path, .. }
        | Op::Exchange { one: path, .. } => Some(path),
        _ => None,
    }
}

fn read_whole(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; file.metadata()?.len() as usize];
    file.read_exact_at(&mut bytes, 0)?;
    Ok(bytes)
}

fn read_mapped(file: &File) -> Vec<u8> {
    use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
    let length = file.metadata().unwrap().len() as usize;
    if length == 0 {
        return Vec::new();
    }
    // SAFETY: the file is this thread's own and keeps its length while it is mapped; it is read
    // only, through one slice, before the map goes.
    unsafe {
        let at = mmap(
            std::ptr::null_mut(),
            length,
            ProtFlags::READ,
            MapFlags::SHARED,
            file,
            0,
        )
        .unwrap();
        let bytes = std::slice::from_raw_parts(at.cast::<u8>(), length).to_vec();
        munmap(at, length).unwrap();
        bytes
    }
}

/// Past the page cache, in one request per 64 KiB.
fn read_direct(path: &Path, len_bytes: u64) -> Vec<u8> {
    const REQUEST: usize = 64 << 10;
    let file = FileOptions::new()
        .read(true)
        .custom_flags(libc::O_DIRECT)
        .open(path)
        .unwrap();
    let mut buffer = larder::AlignedBuf::zeroed(REQUEST);
    let mut bytes = Vec::new();
    while (bytes.len() as u64) < len_bytes {
        let read = file.read_at(&mut buffer[..], bytes.len() as u64).unwrap();
        assert!(read > 0, "{}: ends at {}", path.display(), bytes.len());
        bytes.extend_from_slice(&buffer[..read]);
    }
    bytes
}

/// In pieces of random length, the last one first.
fn read_backwards(file: &File, len_bytes: u64, rng: &mut Rng) -> Vec<u8> {
    let mut bytes = vec![0; len_bytes as usize];
    let mut end = bytes.len();
    while end > 0 {
        let begin = end - (1 + rng.below(150_000) as usize).min(end);
        file.read_exact_at(&mut bytes[begin..end], begin as u64)
            .unwrap();
        end = begin;
    }
    bytes
}
