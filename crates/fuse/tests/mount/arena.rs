//! The directories that all threads of the model test use, and what must hold there.
//!
//! Two kinds of truth can be checked without knowing the order in which the threads came:
//!
//! * A name that only one thread changes is always as that thread left it, whatever others do
//!   beside it.
//! * Of operations that exclude each other exactly one succeeds, and those that add up, add up.
#![allow(clippy::unwrap_used)]

use larder_testkit::{Rng, fill};
use rustix::fs::{AtFlags, CWD, FileType, FlockOperation, Mode, RenameFlags, flock};
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, MetadataExt, symlink};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};

/// Names that all threads try to make, and as many that all try to remove, per round.
const PRIZES: usize = 12;
/// Bytes of a record in the log that all append to.
const RECORD: usize = 200;
/// Regions of the file that all overwrite, and bytes of each.
const REGIONS: u64 = 4;
const REGION: usize = 20_000;
/// The two directories between which names move.
const SIDES: [&str; 2] = ["left", "right"];

/// What a round leaves in the shared directories, counted by those who did it.
pub struct Arena {
    root: PathBuf,
    thread_count: usize,
    /// Of each prize: how often it was made, or removed.
    made: Vec<AtomicU64>,
    removed: Vec<AtomicU64>,
    /// Moves of the token to the right, less those to the left.
    token: AtomicI64,
    exchanges: AtomicU64,
    links: AtomicI64,
    appended: Vec<AtomicU64>,
    counted: AtomicU64,
}

impl Arena {
    /// New directories below `root`, which is not there.
    pub fn new(root: &Path, thread_count: usize) -> Arena {
        let directories = ["made", "doomed", "links", "left", "right"];
        fs::create_dir(root).unwrap();
        for directory in directories {
            fs::create_dir(root.join(directory)).unwrap();
        }
        for prize in 0..PRIZES {
            fs::write(root.join(format!("doomed/{prize}")), "x").unwrap();
        }
        for (file, content) in [
            ("hub", ""),
            ("log", ""),
            ("heads", "heads"),
            ("tails", "tails"),
            ("count", "0"),
        ] {
            fs::write(root.join(file), content).unwrap();
        }
        fs::write(root.join("left/token"), "token").unwrap();
        fs::write(root.join("regions"), vec![0; REGION * REGIONS as usize]).unwrap();
        let zeros = |count: usize| (0..count).map(|_| AtomicU64::new(0)).collect();
        Arena {
            root: root.to_owned(),
            thread_count,
            made: zeros(PRIZES),
            removed: zeros(PRIZES),
            token: AtomicI64::new(0),
            exchanges: AtomicU64::new(0),
            links: AtomicI64::new(0),
            appended: zeros(thread_count),
            counted: AtomicU64::new(0),
        }
    }

    /// A thread comes in.
    pub fn enter(&self, index: usize, seed: u64) -> Visitor<'_> {
        Visitor {
            arena: self,
            index,
            rng: Rng::new(seed),
            names: BTreeMap::new(),
            links: BTreeSet::new(),
            next: 0,
        }
    }

    /// All threads are out: everything adds up.
    pub fn check(&self) {
        let load = |counts: &[AtomicU64]| -> Vec<u64> {
            counts
                .iter()
                .map(|count| count.load(Ordering::SeqCst))
                .collect()
        };
        for (prize, made) in load(&self.made).into_iter().enumerate() {
            assert!(made <= 1, "{made} threads made {prize}");
            assert_eq!(exists(&self.path(&format!("made/{prize}"))), made == 1);
        }
        for (prize, removed) in load(&self.removed).into_iter().enumerate() {
            assert!(removed <= 1, "{removed} threads removed {prize}");
            assert_eq!(exists(&self.path(&format!("doomed/{prize}"))), removed == 0);
        }
        let token = self.token.load(Ordering::SeqCst);
        let is_at = |side: &str| exists(&self.path(&format!("{side}/token")));
        assert_eq!((is_at("left"), is_at("right")), (token == 0, token == 1));
        let swapped = self.exchanges.load(Ordering::SeqCst) % 2 == 1;
        let expected = if swapped { "tails" } else { "heads" };
        assert_eq!(fs::read_to_string(self.path("heads")).unwrap(), expected);
        let hub = fs::metadata(self.path("hub")).unwrap();
        assert_eq!(hub.nlink() as i64, 1 + self.links.load(Ordering::SeqCst));
        let listed = fs::read_dir(self.path("links")).unwrap().count() as i64;
        assert_eq!(listed, self.links.load(Ordering::SeqCst));
        let counted: u64 = fs::read_to_string(self.path("count"))
            .unwrap()
            .parse()
            .unwrap();
        assert_eq!(counted, self.counted.load(Ordering::SeqCst));
        self.check_log(&load(&self.appended));
        let regions = fs::read(self.path("regions")).unwrap();
        for region in regions.chunks(REGION) {
            assert!(
                region.iter().all(|byte| *byte == region[0]),
                "two writes of one region are mixed"
            );
        }
    }

    /// Each thread's records are there, whole, in its order.
    fn check_log(&self, appended: &[u64]) {
        let log = fs::read(self.path("log")).unwrap();
        let mut seen = vec![0; self.thread_count];
        for record in log.chunks(RECORD) {
            let index = record[0] as usize;
            assert_eq!(
                record,
                record_of(index, seen[index]),
                "record of thread {index}"
            );
            seen[index] += 1;
        }
        assert_eq!(seen, appended);
    }

    /// Empties the arena again.
    pub fn remove(self) {
        fs::remove_dir_all(&self.root).unwrap();
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }
}

fn exists(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok()
}

fn record_of(index: usize, number: u64) -> Vec<u8> {
    let mut record = fill(number, RECORD as u64);
    record[0] = index as u8;
    record
}

/// A thread in the arena.
pub struct Visitor<'a> {
    arena: &'a Arena,
    index: usize,
    rng: Rng,
    /// Its own names in the two sides: `(side, name)`, with their content.
    names: BTreeMap<(usize, String), Vec<u8>>,
    links: BTreeSet<PathBuf>,
    next: u64,
}

impl Visitor<'_> {
    /// One operation.
    pub fn step(&mut self) {
        match self.rng.below(9) {
            0 => self.make(),
            1 => self.remove(),
            2 => self.move_token(),
            3 => self.exchange(),
            4 => self.link(),
            5 => self.append(),
            6 => self.count(),
            7 => self.overwrite(),
            _ => self.change_own_names(),
        }
    }

    /// However it is made, a name is made once.
    fn make(&mut self) {
        let prize = self.rng.below(PRIZES as u64) as usize;
        let path = self.arena.path(&format!("made/{prize}"));
        let own = self.arena.path(&format!("own-{}", self.index));
        let prepare = || fs::write(&own, "x");
        let result = match self.rng.below(6) {
            0 => OpenOptions::new()
                .write(true)
                .create_new(true)
                .open(&path)
                .map(drop),
            1 => fs::create_dir(&path),
            2 => symlink("target", &path),
            3 => rustix::fs::mknodat(
                CWD,
                &path,
                FileType::RegularFile,
                Mode::from_raw_mode(0o600),
                0,
            )
            .map_err(io::Error::from),
            4 => prepare().and_then(|()| fs::hard_link(&own, &path)),
            _ => prepare().and_then(|()| {
                Ok(rustix::fs::renameat_with(
                    CWD,
                    &own,
                    CWD,
                    &path,
                    RenameFlags::NOREPLACE,
                )?)
            }),
        };
        self.score(result, &self.arena.made[prize], &[Errno::EXIST]);
        if exists(&own) {
            fs::remove_file(&own).unwrap();
        }
    }

    fn remove(&mut self) {
        let prize = self.rng.below(PRIZES as u64) as usize;
        let path = self.arena.path(&format!("doomed/{prize}"));
        let loot = self.arena.path(&format!("loot-{}-{prize}", self.index));
        let result = match self.rng.below(2) {
            0 => fs::remove_file(&path),
            _ => fs::rename(&path, &loot),
        };
        self.score(result, &self.arena.removed[prize], &[Errno::NOENT]);
    }

    fn move_token(&mut self) {
        let (left, right) = (
            self.arena.path("left/token"),
            self.arena.path("right/token"),
        );
        let to_right = self.rng.chance(50);
        let (from, to, change) = if to_right {
            (left, right, 1)
        } else {
            (right, left, -1)
        };
        match fs::rename(from, to) {
            Ok(()) => drop(self.arena.token.fetch_add(change, Ordering::SeqCst)),
            Err(error) => assert_eq!(Errno::from_io_error(&error), Some(Errno::NOENT)),
        }
    }

    fn exchange(&mut self) {
        let (heads, tails) = (self.arena.path("heads"), self.arena.path("tails"));
        rustix::fs::renameat_with(CWD, heads, CWD, tails, RenameFlags::EXCHANGE).unwrap();
        self.arena.exchanges.fetch_add(1, Ordering::SeqCst);
    }

    fn link(&mut self) {
        if let Some(path) = self.links.pop_first().filter(|_| self.rng.chance(50)) {
            fs::remove_file(path).unwrap();
            self.arena.links.fetch_sub(1, Ordering::SeqCst);
        }
        let path = self
            .arena
            .path(&format!("links/{}-{}", self.index, self.next));
        self.next += 1;
        rustix::fs::linkat(CWD, self.arena.path("hub"), CWD, &path, AtFlags::empty()).unwrap();
        self.arena.links.fetch_add(1, Ordering::SeqCst);
        self.links.insert(path);
    }

    fn append(&mut self) {
        let number = self.arena.appended[self.index].fetch_add(1, Ordering::SeqCst);
        let mut log = OpenOptions::new()
            .append(true)
            .open(self.arena.path("log"))
            .unwrap();
        log.write_all(&record_of(self.index, number)).unwrap();
    }

    /// Reads, adds one, writes, under a lock.
    fn count(&mut self) {
        let path = self.arena.path("count");
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(&path)
            .unwrap();
        flock(&file, FlockOperation::LockExclusive).unwrap();
        let count: u64 = fs::read_to_string(&path).unwrap().parse().unwrap();
        file.write_all_at((count + 1).to_string().as_bytes(), 0)
            .unwrap();
        self.arena.counted.fetch_add(1, Ordering::SeqCst);
        flock(&file, FlockOperation::Unlock).unwrap();
    }

    fn overwrite(&mut self) {
        let file = OpenOptions::new()
            .write(true)
            .open(self.arena.path("regions"))
            .unwrap();
        let region = self.rng.below(REGIONS);
        let bytes = vec![self.rng.bits() as u8; REGION];
        file.write_all_at(&bytes, region * REGION as u64).unwrap();
        if self.rng.chance(10) {
            file.sync_data().unwrap();
        }
    }

    /// Names among those of others: after each change, both directories show exactly this thread's.
    fn change_own_names(&mut self) {
        let own: Vec<(usize, String)> = self.names.keys().cloned().collect();
        let new = (
            self.rng.below(2) as usize,
            format!("{}-{}", self.index, self.next),
        );
        self.next += 1;
        match self.rng.below(4) {
            0 | 1 if own.len() < 30 || own.is_empty() => {
                let content = fill(self.rng.bits(), 1 + self.next % 5000);
                fs::write(self.at(&new), &content).unwrap();
                self.names.insert(new, content);
            }
            2 if !own.is_empty() => {
                let name = self.rng.pick(&own);
                fs::remove_file(self.at(name)).unwrap();
                self.names.remove(name);
            }
            _ if !own.is_empty() => {
                let from = self.rng.pick(&own).clone();
                // Sometimes over another one.
                let to = if self.rng.chance(40) {
                    self.rng.pick(&own).clone()
                } else {
                    new
                };
                fs::rename(self.at(&from), self.at(&to)).unwrap();
                let content = self.names.remove(&from).expect("it is one of ours");
                self.names.insert(to, content);
            }
            _ => {}
        }
        let prefix = format!("{}-", self.index);
        for (side, directory) in SIDES.iter().enumerate() {
            let entries = fs::read_dir(self.arena.path(directory)).unwrap();
            let mut listed: Vec<String> = entries
                .map(|entry| entry.unwrap().file_name().into_string().unwrap())
                .filter(|name| name.starts_with(&prefix))
                .collect();
            listed.sort();
            let expected: Vec<String> = self
                .names
                .keys()
                .filter(|(at, _)| *at == side)
                .map(|(_, name)| name.clone())
                .collect();
            assert_eq!(listed, expected, "own names in {directory}");
        }
        for (name, content) in &self.names {
            assert!(
                fs::read(self.at(name)).unwrap() == *content,
                "{name:?} has changed"
            );
        }
    }

    fn at(&self, (side, name): &(usize, String)) -> PathBuf {
        self.arena.path(SIDES[*side]).join(name)
    }

    /// Counts a success; a failure must be one of `expected`.
    fn score(&self, result: io::Result<()>, count: &AtomicU64, expected: &[Errno]) {
        match result {
            Ok(()) => drop(count.fetch_add(1, Ordering::SeqCst)),
            Err(error) => {
                let errno = Errno::from_io_error(&error).expect("a system call failed");
                assert!(expected.contains(&errno), "{error}");
            }
        }
    }
}
