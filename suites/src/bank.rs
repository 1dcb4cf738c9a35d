//! `cargo xtask bank`: many processes move documents between folders and update their rows in
//! transactions, while processes are killed at random.
//!
//! # Words
//! A *document* is a file in one of the folders and a row that says which, and how often it was
//! moved; the file says that too. A *list* holds an entry for each time that a document came into
//! or left a folder, for the checker of histories. A *worker* is a process that is killed at any
//! moment; what it wants to do and what it was told are in its *diary*, a line each.
//!
//! At every moment, for every reader: each document is in the folder that its row names and nowhere
//! else, and says how often it was moved; there are as many as ever; the entries are twice the
//! moves. In the end: `check` is clean, the history is one of snapshot isolation, and nothing that
//! was told committed is missing.

use std::fs::{self, File};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use larder_testkit::{Rng, Transaction, check_history};

use xtask::Tally;
use xtask::mounts::{Larder, Profile};

mod diary;
mod worker;

use worker::{DOCUMENTS, FOLDERS};
pub use worker::{WORKER, work};

/// Of workers of each kind.
const WORKERS: [(&str, usize); 3] = [("api", 3), ("sql", 2), ("reader", 1)];
/// Between two kills, milliseconds.
const CALM_MS: (u64, u64) = (100, 700);
/// Takes `[--seconds N] [--seed S]`.
pub fn parse_and_run(arguments: &[&str]) -> Result<(), String> {
    let (mut seconds, mut seed) = (60, 1);
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next().and_then(|value| value.parse().ok());
        match (*flag, value) {
            ("--seconds", Some(value)) => seconds = value,
            ("--seed", Some(value)) => seed = value,
            _ => {
                return Err(format!(
                    "bank does not understand '{flag}' here; usage: bank [--seconds N] [--seed S]"
                ));
            }
        }
    }
    Tally::of(1, run(seconds, seed)).end()
}

/// Runs for so many seconds; an error names the seed.
fn run(seconds: u64, seed: u64) -> Result<(), String> {
    let larder = Larder::build(Profile::Debug)?;
    let scratch =
        tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let bank = Bank {
        larder,
        database: scratch.path().join("bank.larder"),
        mountpoint: scratch.path().join("mount"),
        diaries: scratch.path().join("diaries"),
        next_session: AtomicU64::new(1),
        is_over: AtomicBool::new(false),
    };
    let outcome = bank.open().and_then(|()| bank.business(seconds, seed));
    outcome.and_then(|kills| bank.audit(kills)).map_err(|line| {
        let kept = scratch.keep();
        format!(
            "seed {seed}: {line}\n(everything is left in {})",
            kept.display()
        )
    })
}

struct Bank {
    larder: Larder,
    database: PathBuf,
    mountpoint: PathBuf,
    diaries: PathBuf,
    next_session: AtomicU64,
    is_over: AtomicBool,
}

/// A worker; killed when dropped.
struct Worker {
    kind: &'static str,
    process: Child,
}

impl Worker {
    fn kill(mut self) -> Result<(), String> {
        let ended = self.process.try_wait().map_err(|error| error.to_string())?;
        if let Some(status) = ended {
            return Err(format!(
                "a worker of kind {} has ended: {status}",
                self.kind
            ));
        }
        Ok(())
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

impl Bank {
    fn open(&self) -> Result<(), String> {
        for directory in [&self.mountpoint, &self.diaries] {
            fs::create_dir(directory)
                .map_err(|error| format!("{}: {error}", directory.display()))?;
        }
        let path = self.database.to_string_lossy();
        self.larder.run(&["init", &path, "--capacity", "512M"])?;
        worker::found(&self.database)
    }

    fn hire(&self, kind: &'static str) -> Result<Worker, String> {
        let session = self.next_session.fetch_add(1, Ordering::SeqCst);
        let program = std::env::current_exe().map_err(|error| format!("who am I: {error}"))?;
        let process = Command::new(program)
            .args([WORKER, kind, &session.to_string()])
            .args([
                &self.database,
                &self.diaries.join(format!("{session}-{kind}")),
            ])
            .stdin(Stdio::null())
            .spawn()
            .map_err(|error| format!("a worker: {error}"))?;
        Ok(Worker { kind, process })
    }

    /// Returns the number of kills.
    fn business(&self, seconds: u64, seed: u64) -> Result<u64, String> {
        let mut rng = Rng::new(seed);
        let end = Instant::now() + Duration::from_secs(seconds);
        thread::scope(|scope| {
            let mount = scope.spawn(|| self.serve_and_kill(seed));
            let outcome = self.kill_and_hire(end, &mut rng);
            self.is_over.store(true, Ordering::SeqCst);
            let mounts = mount
                .join()
                .map_err(|_| "the mount's thread panicked".to_owned())?;
            Ok(outcome? + mounts?)
        })
    }

    fn kill_and_hire(&self, end: Instant, rng: &mut Rng) -> Result<u64, String> {
        let mut workers: Vec<Worker> = Vec::new();
        for (kind, count) in WORKERS {
            for _ in 0..count {
                workers.push(self.hire(kind)?);
            }
        }
        let mut kills = 0;
        while Instant::now() < end {
            let calm = CALM_MS.0 + rng.below(CALM_MS.1 - CALM_MS.0);
            thread::sleep(Duration::from_millis(calm));
            let killed = workers.swap_remove(rng.below(workers.len() as u64) as usize);
            let kind = killed.kind;
            killed.kill()?;
            kills += 1;
            workers.push(self.hire(kind)?);
        }
        workers.into_iter().try_for_each(Worker::kill)?;
        Ok(kills)
    }

    /// A mount beside it all, whose user makes, renames and removes files of his own, and which is
    /// killed.
    fn serve_and_kill(&self, seed: u64) -> Result<u64, String> {
        let mut rng = Rng::new(seed ^ 0xbabe);
        let mut kills = 0;
        while !self.is_over.load(Ordering::SeqCst) {
            let mount = self.larder.mount(&self.database, &self.mountpoint)?;
            let life = Duration::from_millis(500 + rng.below(2500));
            let began = Instant::now();
            while began.elapsed() < life && !self.is_over.load(Ordering::SeqCst) {
                self.use_mount(&mut rng)
                    .map_err(|line| format!("on the mount: {line}"))?;
            }
            match self.is_over.load(Ordering::SeqCst) {
                true => mount.unmount()?,
                false => {
                    mount.kill()?;
                    kills += 1;
                }
            }
        }
        Ok(kills)
    }

    fn use_mount(&self, rng: &mut Rng) -> Result<(), String> {
        let explain = |error: std::io::Error| error.to_string();
        let folder = |number: u64| self.mountpoint.join(format!("f{number}"));
        let (from, to) = (rng.below(FOLDERS), rng.below(FOLDERS));
        let name = format!("note-{}", rng.below(1000));
        let (old, new) = (folder(from).join(&name), folder(to).join(&name));
        let text = rng.bits().to_string();
        fs::write(&old, &text).map_err(explain)?;
        fs::rename(&old, &new).map_err(explain)?;
        if fs::read_to_string(&new).map_err(explain)? != text {
            return Err(format!("{} is not what was written", new.display()));
        }
        if from != to && old.exists() {
            return Err(format!("{} is there in spite of its rename", old.display()));
        }
        if rng.chance(50) {
            let file = File::options().append(true).open(&new).map_err(explain)?;
            file.sync_all().map_err(explain)?;
        }
        fs::remove_file(&new).map_err(explain)?;
        // A document is found where it was seen a moment ago, or has moved.
        let listed = fs::read_dir(folder(from)).map_err(explain)?;
        let count = listed.filter(|entry| {
            let name = entry.as_ref().map(|entry| entry.file_name());
            name.is_ok_and(|name| name.to_string_lossy().starts_with("doc"))
        });
        match count.count() as u64 {
            0..=DOCUMENTS => Ok(()),
            more => Err(format!("{more} documents in one folder")),
        }
    }

    fn audit(&self, kills: u64) -> Result<(), String> {
        worker::final_read(&self.database, &self.diaries.join("0-final"))?;
        let path = self.database.to_string_lossy();
        self.larder.run(&["check", "--read", &path])?;
        let mut history: Vec<Transaction> = Vec::new();
        let mut reads = 0;
        for entry in fs::read_dir(&self.diaries).map_err(|error| format!("diaries: {error}"))? {
            let path = entry.map_err(|error| format!("diaries: {error}"))?.path();
            let text = fs::read_to_string(&path).map_err(|error| format!("a diary: {error}"))?;
            let diary = diary::read(&text).map_err(|line| format!("{}: {line}", path.display()))?;
            reads += diary.reads;
            history.extend(diary.transactions);
        }
        let count = |end| {
            history
                .iter()
                .filter(|transaction| transaction.end == end)
                .count()
        };
        use larder_testkit::{End, Level};
        let counts = (
            count(End::Committed),
            count(End::Aborted),
            count(End::Unknown),
        );
        let findings = check_history(&history, Level::SnapshotIsolation);
        if let Some(finding) = findings.first() {
            return Err(format!(
                "{} findings, the first: {finding:?}",
                findings.len()
            ));
        }
        let is_serial = check_history(&history, Level::Serializable).is_empty();
        println!(
            "bank: {} transactions committed, {} aborted, {} of unknown end, {reads} whole looks, \
             {kills} kills: \
             rows and files agree, snapshot isolation holds{}, check is clean",
            counts.0,
            counts.1,
            counts.2,
            if is_serial { ", serializable" } else { "" }
        );
        match counts.0 {
            0..=20 => Err("hardly anything happened".into()),
            _ => Ok(()),
        }
    }
}
