//! The past of a database that a mount, the API and SQL change by turns, against one model, by all
//! ways to look at it: the API, SQL, `.larder` on the mount of the present, and mounts of a moment.
//! The server of the mount is a process of its own, which is killed now and then; in between there
//! are clones, restores, rollbacks, defrag and prunes (`content/tests/world`).
//!
//! `LARDER_SEED` makes another run.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

use crate::common::{database_path, mount_at, mountpoint, new_directory, serve, when_free};
use crate::world::coverage::{
    BY_API, BY_MOUNTS, BY_SQL, COMPACTION, CRASH, Coverage, ON_THE_MOUNT, PRUNE, ROLLBACK,
    STORE_PRUNE, STORE_RETENTION,
};
use crate::world::{
    ON_A_MOUNT, Options, Sight, Was, World, as_shown, by_way_of_main, find_difference, see_mount,
};
use larder::{Database, DatabaseOptions, EngineOptions, Moment, SetAttr, StoreId};
use larder_fuse::HistoryAccess;
use larder_testkit::{HostTree, Op, Rng, digest};
use std::collections::BTreeMap;
use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Operations at most in a round, before others have theirs.
const STEPS_PER_ROUND: u64 = 12;
/// How long time passes, at least and at most: what a test can wait for.
const PASS_MIN: Duration = Duration::from_millis(2);
const PASS_MAX: Duration = Duration::from_millis(1500);

/// The ways in which each world is looked at.
const WAYS: [&str; 3] = [BY_API, BY_SQL, ON_THE_MOUNT];

/// A world with a mount.
struct Mounted {
    world: World,
    rng: Rng,
    server: Option<Child>,
    /// Times that the marker was changed.
    mark: u32,
    /// The state of all branches after each operation on the mount since all of them were durable.
    trail: Vec<Vec<u64>>,
    directory: TempDir,
}

/// Somebody who reads the past on the mount, over and over, until this goes.
struct Reader {
    is_over: Arc<AtomicBool>,
    thread: Option<JoinHandle<u32>>,
    /// What keeps what it reads.
    _pins: Vec<Database>,
}

impl Reader {
    fn start(wanted: Vec<(PathBuf, Sight)>, pins: Vec<Database>) -> Reader {
        let is_over = Arc::new(AtomicBool::new(false));
        let over = Arc::clone(&is_over);
        let read = move || {
            let mut count = 0;
            while !over.load(Ordering::SeqCst) || count == 0 {
                for (place, expected) in &wanted {
                    require(place, expected);
                }
                count += 1;
            }
            count
        };
        Reader {
            is_over,
            thread: Some(std::thread::spawn(read)),
            _pins: pins,
        }
    }

    fn end(mut self) {
        self.is_over.store(true, Ordering::SeqCst);
        let thread = self.thread.take().unwrap();
        assert!(
            thread
                .join()
                .expect("FUSE-10: the past while others commit")
                > 0
        );
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::SeqCst);
    }
}

/// What is at a place of a mount is what a branch was.
fn require(place: &Path, expected: &Sight) {
    let found = see_mount(place).unwrap_or_else(|error| panic!("{}: {error}", place.display()));
    if let Some(difference) = find_difference(expected, &as_shown(&found, ON_A_MOUNT)) {
        panic!("{}:\n{difference}", place.display());
    }
}

impl Mounted {
    fn create(seed: u64) -> Mounted {
        let directory = new_directory();
        let options = Options {
            engine: EngineOptions::default(),
            // Rows have times to the millisecond.
            pass: Box::new(|ns| {
                let ns = u64::try_from(ns).unwrap();
                std::thread::sleep(Duration::from_nanos(ns).clamp(PASS_MIN, PASS_MAX));
            }),
            has_plain_sql: true,
            has_store_retentions: true,
            is_alone: false,
        };
        let world = World::create(seed, &database_path(directory.path()), options);
        let server = Some(serve(directory.path(), 0));
        let mut mounted = Mounted {
            world,
            rng: Rng::new(seed ^ 0x6d6f_756e),
            server,
            mark: 0,
            trail: Vec::new(),
            directory,
        };
        mounted.begin_trail();
        mounted
    }

    fn root(&self) -> PathBuf {
        mountpoint(self.directory.path())
    }

    /// A place of the database on the mount, below another one in it.
    fn place(&self, below: &str, root: &str) -> PathBuf {
        self.root().join(below).join(root.trim_start_matches('/'))
    }

    fn sync(&self) {
        fs::File::open(self.root()).unwrap().sync_all().unwrap();
    }

    fn states(&self) -> Vec<u64> {
        let branches = self.world.branches.iter();
        branches
            .map(|branch| digest(&branch.generator.model().tree()))
            .collect()
    }

    /// All of it is durable now.
    fn begin_trail(&mut self) {
        self.trail = vec![self.states()];
    }

    /// The present, through the mount; and moments of it.
    fn round_of_the_mount(&mut self) {
        for _ in 0..1 + self.rng.below(STEPS_PER_ROUND) {
            let nth = self.rng.below(self.world.branches.len() as u64) as usize;
            let branch = &mut self.world.branches[nth];
            branch.generator.set_fragment_percent(0);
            let op = branch.generator.next_op();
            // Only the API can.
            if !matches!(
                op,
                Op::Replace { .. } | Op::Move { .. } | Op::Anonymous { .. }
            ) {
                let root = branch.root.clone();
                let root = self.place("", &root);
                let done = HostTree::new(root).apply(&op);
                done.unwrap_or_else(|error| panic!("seed {}, {op:?}: {error}", self.world.seed));
                self.world.branches[nth].generator.note_made(&op);
                self.trail.push(self.states());
            }
            if self.rng.chance(25) {
                self.sync();
                self.world.note_moment();
                self.begin_trail();
            }
        }
        if self.rng.chance(30) {
            return self.kill();
        }
        self.sync();
        self.world.note_moment();
        self.begin_trail();
    }

    /// Other sessions change what the mount shows, while somebody reads the past on it.
    fn round_of_others(&mut self) {
        let reader = self.rng.chance(50).then(|| self.start_reader());
        for _ in 0..1 + self.rng.below(STEPS_PER_ROUND) {
            self.world.step();
            match self.rng.below(100) {
                0..25 => self.world.note_moment(),
                25..40 => self.world.large_operation(),
                _ => {}
            }
        }
        self.world.note_moment();
        if let Some(reader) = reader {
            reader.end();
            self.world.count("reads beside commits");
        }
        self.wait_until_told();
        self.begin_trail();
    }

    /// Reads three moments, whatever goes meanwhile.
    fn start_reader(&mut self) -> Reader {
        let (mut wanted, mut pins) = (Vec::new(), Vec::new());
        for _ in 0..3 {
            let was = self.world.pick();
            let pin = self.world.database.as_of(&Moment::Seq(was.seq)).unwrap();
            let reached = self.world.reached(&self.world.database.clone(), &was);
            pins.push(pin);
            if !reached.contains(&StoreId::MAIN) {
                continue; // No way leads there.
            }
            // Snapshots may be destroyed.
            let below = format!(".larder/at/seq:{}", was.seq);
            for branch in &self.world.branches {
                if let Some(sight) = was.sight(branch)
                    && reached.contains(&branch.store)
                {
                    let expected = as_shown(sight, ON_A_MOUNT);
                    wanted.push((self.place(&below, &branch.root), expected));
                }
            }
        }
        Reader::start(wanted, pins)
    }

    /// What is there after a kill is what some operation had left, no older than what was durable.
    fn kill(&mut self) {
        let mut server = self.server.take().unwrap();
        server.kill().unwrap();
        server.wait().unwrap();
        let models: Vec<u64> = self.states();
        self.world.learn();
        for nth in 0..self.world.branches.len() {
            self.world.adopt(nth);
        }
        let found = self.states();
        assert!(
            self.trail.contains(&found),
            "seed {}: after a kill the present is none of the {} states since the last sync: \
             {found:?}, {:?}; {models:?}",
            self.world.seed,
            self.trail.len(),
            self.trail
        );
        self.world.count(match found == models {
            true => "kill",
            false => "kill with losses",
        });
        self.world.happened(CRASH);
        self.server = Some(serve(self.directory.path(), 0));
        self.world.note_moment();
        self.begin_trail();
    }

    fn end(&mut self) {
        let mut server = self.server.take().unwrap();
        when_free(|| larder_fuse::unmount(&self.root())).unwrap();
        assert!(server.wait().unwrap().success());
    }

    /// Between the rounds: all is durable.
    fn upkeep(&mut self) {
        match self.rng.below(100) {
            0..10 => self.world.defrag(),
            10..20 => {
                self.end();
                // A mount shows the stores that there were when it was made, where they were then.
                if self.rng.chance(50) {
                    self.world.promote_stores();
                    self.world.note_moment();
                }
                if self.rng.chance(50) {
                    self.world.clone_store();
                }
                if self.rng.chance(50) {
                    self.world.apply_pressure();
                    self.world.note_moment();
                }
                self.begin_trail();
                if self.rng.chance(30) {
                    self.world.check(&self.world.database);
                }
                self.server = Some(serve(self.directory.path(), 0));
                self.world.count("remount");
            }
            20..30 => self.world.reopen(),
            30..36 if self.world.moments.len() > 20 => self.world.prune(true),
            _ => {}
        }
    }

    /// The kernel knows of every commit up to now. The second change after what is to be known may
    /// be told with it; when a third one is seen, the thread that tells has ended with that.
    fn wait_until_told(&mut self) {
        let marker = self.root().join("marker");
        let node = self
            .world
            .database
            .nodes()
            .resolve(b"/marker", false)
            .unwrap()
            .node;
        for _ in 0..3 {
            self.mark += 1;
            let mode = 0o400 | self.mark & 0o377;
            let change = SetAttr {
                mode: Some(mode),
                ..SetAttr::default()
            };
            self.world.database.nodes().set_attr(node, &change).unwrap();
            self.world.database.sync().unwrap();
            let begun = Instant::now();
            while fs::metadata(&marker).unwrap().mode() & 0o777 != mode {
                assert!(begun.elapsed() < Duration::from_secs(20), "FUSE-1");
                std::thread::yield_now();
            }
        }
    }

    /// Where the mount of the present shows a moment.
    fn name(&mut self, was: &Was) -> String {
        match &was.snapshot {
            Some(name) if self.rng.chance(70) => format!(".larder/snapshots/{name}"),
            _ => format!(".larder/at/{}", self.world.text(was)),
        }
    }

    fn look_on_the_mount(&mut self, was: &Was) {
        let below = self.name(was);
        self.look_at(was, &below, ON_THE_MOUNT);
    }

    fn look_at(&mut self, was: &Was, below: &str, way: &'static str) {
        // What it shows stays as it is.
        let pin = self.world.database.as_of(&Moment::Seq(was.seq)).unwrap();
        let shown = by_way_of_main(self.world.reached(&self.world.database.clone(), was));
        for nth in 0..self.world.branches.len() {
            let branch = &self.world.branches[nth];
            let place = self.place(below, &branch.root);
            let how = format!("at {}", place.display());
            let Some(sight) = was.sight(branch) else {
                assert!(!place.exists(), "seed {}, {how}", self.world.seed);
                continue;
            };
            match (see_mount(&place), shown.contains(&branch.store)) {
                (Ok(found), true) => {
                    let (expected, found) =
                        (as_shown(sight, ON_A_MOUNT), as_shown(&found, ON_A_MOUNT));
                    if let Some(difference) = find_difference(&expected, &found) {
                        self.world.panic(was, &how, branch, &difference);
                    }
                }
                (Err(error), true) => self.world.panic(was, &how, branch, &error.to_string()),
                // HISTORY-7
                (Ok(_), false) => self
                    .world
                    .panic(was, &how, branch, "its history begins later"),
                (Err(error), false) => {
                    let expected = match shown.is_empty() {
                        true => ErrorKind::NotFound,
                        false => ErrorKind::InvalidInput,
                    };
                    assert_eq!(error.kind(), expected, "seed {}, {how}", self.world.seed);
                    self.world.count("refused by the mount");
                }
            }
        }
        drop(pin);
        self.world.saw_some(way, was, &shown);
    }

    /// A mount of nothing but that moment.
    fn look_at_a_mount_of_it(&mut self, was: &Was) {
        let place = self.directory.path().join("then");
        if !place.exists() {
            fs::create_dir(&place).unwrap();
        }
        let options = DatabaseOptions::default();
        let database = Database::open(&database_path(self.directory.path()), options).unwrap();
        let as_of = Some(self.world.text(was));
        let pin = self.world.database.as_of(&Moment::Seq(was.seq)).unwrap();
        let reached = self.world.reached(&self.world.database.clone(), was);
        let mounted = mount_at(database, &place, |options| {
            options.as_of = as_of;
            options.history_access = HistoryAccess::Then; // The model knows what was.
        });
        drop(pin);
        if !reached.contains(&StoreId::MAIN) {
            let names = ["main"];
            let (error, how) = (mounted.err().unwrap(), "a mount");
            return self.world.require_refused(&error, was, how, &names);
        }
        let mounted = mounted.unwrap();
        // Beside the mount of the present.
        self.look_at(was, "../then", BY_MOUNTS);
        when_free(|| mounted.unmount()).unwrap();
        mounted.wait().unwrap();
    }

    fn look(&mut self) {
        let was = self.world.pick();
        self.world.look(&was);
        self.look_on_the_mount(&was);
        if self.rng.chance(5) {
            self.look_at_a_mount_of_it(&was);
        }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let Some(mut server) = self.server.take() else {
            return;
        };
        let detached = larder_fuse::detach(&self.root());
        // It may have ended by itself.
        let _killed = server.kill();
        let ended = server.wait();
        if !std::thread::panicking() {
            detached.unwrap();
            ended.unwrap();
        }
    }
}

fn run(seed: u64, rounds: u32, looks: u32) -> (BTreeMap<&'static str, u32>, Coverage) {
    let mut mounted = Mounted::create(seed);
    for _ in 0..rounds {
        match mounted.rng.chance(50) {
            true => mounted.round_of_the_mount(),
            false => mounted.round_of_others(),
        }
        mounted.upkeep();
        if mounted.rng.chance(40) {
            mounted.look();
        }
    }
    // Some moments cannot be seen any more.
    let wanted = mounted.world.coverage.least(&WAYS) + looks;
    while mounted.world.coverage.least(&WAYS) < wanted {
        mounted.look();
    }
    mounted.end();
    let world = &mounted.world;
    world.check(&world.database);
    println!(
        "seed {seed}: {} moments, {:?}\n{}",
        world.moments.len(),
        world.counts,
        world.coverage
    );
    (world.counts.clone(), world.coverage.clone())
}

/// `LARDER_SEED` runs that one.
fn seeds(all: std::ops::Range<u64>) -> Vec<u64> {
    match std::env::var("LARDER_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => all.collect(),
    }
}

#[test]
fn moments_of_a_mount_and_others_read_as_the_model_says_by_every_way() {
    for seed in seeds(1..3) {
        run(seed, 14, 24); // CONTENT-9, CONTENT-12, ROLLBACK-2, HISTORY-7, FUSE-1, FUSE-3, FUSE-10
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn a_thousand_moments_of_a_mount_and_others_read_as_the_model_says_by_every_way() {
    let seeds = seeds(100..103);
    let (mut sum, mut coverage): (BTreeMap<&str, u32>, Coverage) = Default::default();
    for seed in &seeds {
        let (counts, covered) = run(*seed, 150, 1000);
        for (what, count) in counts {
            *sum.entry(what).or_default() += count;
        }
        coverage.add(&covered);
    }
    println!("{} seeds:\n{coverage}", seeds.len());
    if seeds.len() == 1 {
        return;
    }
    let events = [
        CRASH,
        COMPACTION,
        PRUNE,
        ROLLBACK,
        STORE_PRUNE,
        STORE_RETENTION,
    ];
    coverage.require(&WAYS, 3000, (&events, 300));
    coverage.require(&[BY_MOUNTS], 50, (&events, 5));
    for what in [
        "clone",
        "exact restore",
        "undo",
        "promote",
        "rollback",
        "rollback of a store",
        "prune",
        "defrag",
        "kill",
        "remount",
        "reopen",
        "snapshot",
        "rows by plain SQL",
        "content by SQL",
        "reads beside commits",
        "retention of a store",
        "retention of a store: the default again",
        "guarantee of a store",
        "prune of a store",
        "hold",
        "reads of a held past",
        "refused by the mount",
        "refused before a store's history",
    ] {
        let is_done = sum.get(what).is_some_and(|&count| count > 0);
        assert!(is_done, "{what}: {sum:?}");
    }
}
