//! `cargo xtask kill9`: kill -9 of a mount at random moments during a mixed load.
//!
//! After each kill: the database mounts again, `check` is clean, everything that was synced is
//! there and whole, and the tree is a prefix of the operations. One thread does the operations, so
//! their order is known; it notes how many it started and what its syncs promised. The database
//! goes through all rounds; each works in a directory of its own, and must find that of the round
//! before as it was left.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use larder_testkit::{HostTree, Mix, Rng, Script, Tree, digest, explain_difference};

use xtask::Tally;
use xtask::mounts::{Larder, Mount, Profile};

const OPS: usize = 8000;
const MIX: Mix = Mix {
    entries_max: 120,
    file_bytes_max: 400_000,
    write_bytes_max: 60_000,
    sync_percent: 4,
    overwrite_percent: 2,
    fragment_percent: 0,
};
const SEED: u64 = 1;
/// How long after a chosen operation began the kill comes, at most.
const DELAY_US_MAX: u64 = 3000;

/// What happened until the kill. Shared between the load and the killer.
#[derive(Default)]
struct Progress {
    /// Operations that were begun: the last one may or may not have taken effect.
    started: AtomicUsize,
    /// Operations that must last.
    promised: AtomicUsize,
    is_killed: AtomicBool,
}

/// Runs `rounds` kills; an error names the seed and the round.
fn run(rounds: u64, seed: u64) -> Result<(), String> {
    rustix::process::umask(rustix::fs::Mode::from_raw_mode(0o022));
    let larder = Larder::build(Profile::Debug)?;
    let scratch =
        tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let site = Site {
        larder,
        database: scratch.path().join("kill9.larder"),
        mountpoint: scratch.path().join("mount"),
    };
    fs::create_dir(&site.mountpoint).map_err(|error| format!("the mountpoint: {error}"))?;
    site.larder.run(&[
        "init",
        &site.database.to_string_lossy(),
        "--capacity",
        "512M",
    ])?;
    let mut rng = Rng::new(seed);
    let mut before: Option<(PathBuf, Tree)> = None;
    for round in 0..rounds {
        let explain = |line| format!("seed {seed}, round {round}: {line}");
        match site.round(round, &mut rng, before.take()) {
            Ok(left) => before = Some(left),
            Err(line) => {
                // Left for a look.
                let kept = scratch.keep();
                return Err(explain(format!(
                    "{line}\n(the database is left in {})",
                    kept.display()
                )));
            }
        }
    }
    println!("kill9: {rounds} kills, seed {seed}, every state clean and a prefix");
    Ok(())
}

/// When to kill: so long after so many operations were begun.
#[derive(Debug, Clone, Copy)]
struct Moment {
    ops: usize,
    delay: Duration,
}

struct Site {
    larder: Larder,
    database: PathBuf,
    mountpoint: PathBuf,
}

impl Site {
    /// One kill. Takes and returns the directory that a round left, below the mount, and its tree.
    fn round(
        &self,
        round: u64,
        rng: &mut Rng,
        before: Option<(PathBuf, Tree)>,
    ) -> Result<(PathBuf, Tree), String> {
        let began = Instant::now();
        let script = Script::generate(rng.bits(), OPS, MIX);
        let directory = self.mountpoint.join(format!("round-{round}"));
        let mount = self.larder.mount(&self.database, &self.mountpoint)?;
        fs::create_dir(&directory).map_err(|error| format!("mkdir: {error}"))?;
        sync_all(&self.mountpoint)?;
        let mut progress = Progress::default();
        let moment = Moment {
            ops: 1 + rng.below(OPS as u64) as usize,
            delay: Duration::from_micros(rng.below(DELAY_US_MAX)),
        };
        self.load_and_kill(mount, &script, &directory, moment, &progress)?;

        let (started, promised) = (*progress.started.get_mut(), *progress.promised.get_mut());
        self.check()?;
        let mount = self.larder.mount(&self.database, &self.mountpoint)?;
        let found = HostTree::new(&directory)
            .walk()
            .map_err(|error| format!("walk: {error}"))?;
        let Some(prefix) = script.find_prefix(&found, promised, started) else {
            let older = script.find_prefix(&found, 0, promised);
            return Err(format!(
                "no prefix of {promised}..={started} operations (an older one: {older:?}); \
                 against {promised}:\n{}",
                explain_difference(&script.tree(promised), &found)
            ));
        };
        if let Some((path, tree)) = before {
            let now = HostTree::new(&path)
                .walk()
                .map_err(|error| format!("walk: {error}"))?;
            if digest(&now) != digest(&tree) {
                return Err(format!(
                    "what the round before left has changed:\n{}",
                    explain_difference(&tree, &now)
                ));
            }
            // Every other tree goes, so that space is reclaimed and used again.
            if round % 2 == 1 {
                fs::remove_dir_all(&path).map_err(|error| format!("rm -r: {error}"))?;
            }
        }
        mount.unmount()?;
        self.check()?;
        println!(
            "kill9: round {round}: killed with {started} operations begun, {promised} promised, \
             {prefix} found; {:.1} s",
            began.elapsed().as_secs_f64()
        );
        Ok((directory, found))
    }

    fn load_and_kill(
        &self,
        mount: Mount,
        script: &Script,
        directory: &Path,
        moment: Moment,
        progress: &Progress,
    ) -> Result<(), String> {
        thread::scope(|scope| {
            let load = scope.spawn(|| load(script, &HostTree::new(directory), progress));
            let is_due = || progress.started.load(Ordering::SeqCst) >= moment.ops;
            while !is_due() && !load.is_finished() {
                thread::sleep(Duration::from_micros(200));
            }
            thread::sleep(moment.delay);
            progress.is_killed.store(true, Ordering::SeqCst);
            mount.kill()?;
            load.join().map_err(|_| "the load panicked".to_owned())?
        })
    }

    fn check(&self) -> Result<(), String> {
        self.larder
            .run(&["check", "--read", &self.database.to_string_lossy()])
            .map(drop)
    }
}

/// Does operations until the mount is gone.
fn load(script: &Script, host: &HostTree, progress: &Progress) -> Result<(), String> {
    for (index, op) in script.ops.iter().enumerate() {
        progress.started.store(index + 1, Ordering::SeqCst);
        match host.apply(op) {
            Ok(()) => {
                progress
                    .promised
                    .fetch_max(script.promise(index), Ordering::SeqCst);
            }
            Err(_) if progress.is_killed.load(Ordering::SeqCst) => return Ok(()),
            Err(error) => return Err(format!("operation {index}, {op:?}: {error}")),
        }
    }
    Ok(())
}

fn sync_all(directory: &Path) -> Result<(), String> {
    // On a mount, the kernel keeps syncfs to itself; the fsync of a directory commits everything.
    File::open(directory)
        .and_then(|directory| directory.sync_all())
        .map_err(|error| format!("sync: {error}"))
}

/// Takes `[--rounds N] [--seed S]`; each kill counts as a test.
pub fn parse_and_run(arguments: &[&str]) -> Result<(), String> {
    let (mut rounds, mut seed) = (100, SEED);
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next().and_then(|value| value.parse().ok());
        match (*flag, value) {
            ("--rounds", Some(value)) => rounds = value,
            ("--seed", Some(value)) => seed = value,
            _ => {
                return Err(format!(
                    "kill9 does not understand '{flag}' here; usage: kill9 [--rounds N] [--seed S]"
                ));
            }
        }
    }
    Tally::of(rounds, run(rounds, seed)).end()
}
