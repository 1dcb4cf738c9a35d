//! `cargo xtask sqlite-kills`: SQLite on a mount whose server is killed, beside SQLite on an ext4
//! that is shut down, on one schedule.
//!
//! A writer commits transaction after transaction with `synchronous=FULL`, and says each number
//! once SQLite has answered. Then the filesystem is cut: the server gets SIGKILL, the ext4 (in a
//! file, by a loop device) gets `FS_IOC_SHUTDOWN` without a flush of its journal, which is what a
//! power cut leaves. Both are mounted again, and SQLite recovers. It has to be whole, with each
//! transaction or without it. *Lost* is what was answered and is not there.
//!
//! With `journal_mode=DELETE` a commit is the removal of the journal, and SQLite does not sync the
//! directory behind it: a cut may bring the journal back, which undoes the last transaction. So
//! there one may be lost in a cut, on any filesystem; in the other modes none. What ext4 loses is
//! counted, not judged: an `fsync` that is under way when it is shut down may still be answered.

use std::fs::{self, File};
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread;
use std::time::Duration;

use larder_testkit::Rng;
use rusqlite::{Connection, params};

use xtask::mounts::{Larder, Mount, Profile};
use xtask::{Outcome, Tally, process};

/// The verb of the writer: `DATABASE MODE SEED`.
pub const WRITER: &str = "sqlite-writer";

/// The journals, and how many transactions a cut may lose in each.
const MODES: [(&str, u64); 4] = [("DELETE", 1), ("TRUNCATE", 0), ("PERSIST", 0), ("WAL", 0)];
/// How long a writer writes before the cut, milliseconds.
const CALM_MS: (u64, u64) = (100, 600);
const CONTENT_BYTES_MAX: u64 = 6000;
const EXT4_BYTES: u64 = 256 << 20;
const SEED: u64 = 1;
const ROUNDS: u64 = 25;
/// `_IOR('X', 125, __u32)`.
const FS_IOC_SHUTDOWN: rustix::ioctl::Opcode = 0x8004_587d;
/// Nothing that is in memory reaches the disk.
const GOING_FLAGS_NOLOGFLUSH: u32 = 2;

/// Takes `[--rounds N] [--seed S] [--mode MODE]`.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let (mut rounds, mut seed, mut only) = (ROUNDS, SEED, None);
    let mut rest = arguments.iter();
    while let Some(flag) = rest.next() {
        let value = rest.next().copied().unwrap_or_default();
        let number = value.parse();
        match (*flag, number) {
            ("--rounds", Ok(number)) => rounds = number,
            ("--seed", Ok(number)) => seed = number,
            ("--mode", _) if MODES.iter().any(|(mode, _)| *mode == value) => only = Some(value),
            _ => {
                return Err(format!(
                    "sqlite-kills does not understand '{flag} {value}' here; \
                     usage: sqlite-kills [--rounds N] [--seed S] [--mode DELETE]"
                ));
            }
        }
    }
    if !rustix::process::geteuid().is_root() {
        return Err("sqlite-kills mounts an ext4, which only root may; run it as root".into());
    }
    Tally::of(rounds, run(rounds, seed, only)).end()
}

fn run(rounds: u64, seed: u64, only: Option<&str>) -> Outcome {
    let scratch =
        tempfile::tempdir().map_err(|error| format!("no temporary directory: {error}"))?;
    let mut sides = [Side::larder(scratch.path())?, Side::ext4(scratch.path())?];
    let mut rng = Rng::new(seed);
    let modes = (MODES.into_iter()).filter(|(mode, _)| only.is_none_or(|only| only == *mode));
    for round in 0..rounds {
        for (mode, bearable) in modes.clone() {
            let calm = Duration::from_millis(CALM_MS.0 + rng.below(CALM_MS.1 - CALM_MS.0));
            let number = rng.bits();
            for side in &mut sides {
                let lost = side.cut(mode, number, calm).map_err(|line| {
                    format!(
                        "seed {seed}, round {round}, {mode} on {}: {line}",
                        side.name
                    )
                })?;
                let is_ours = matches!(side.filesystem, Filesystem::Larder { .. });
                if is_ours && lost > bearable {
                    return Err(format!(
                        "seed {seed}, round {round}: {mode} on {} lost {lost} transactions that \
                         were answered",
                        side.name
                    ));
                }
            }
        }
        println!("sqlite-kills: round {round} done");
    }
    for (index, (mode, _)) in MODES.into_iter().enumerate() {
        for side in &sides {
            let Counts { answered, lost } = side.counts[index];
            println!(
                "sqlite-kills: {mode} on {}: {rounds} cuts, {answered} answered, {lost} lost",
                side.name
            );
        }
    }
    sides.into_iter().try_for_each(Side::end)
}

/// What came of the transactions of one journal mode.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    answered: u64,
    lost: u64,
}

/// A filesystem that can be cut.
struct Side {
    name: &'static str,
    mountpoint: PathBuf,
    counts: [Counts; MODES.len()],
    filesystem: Filesystem,
}

enum Filesystem {
    Larder {
        larder: Larder,
        database: PathBuf,
        /// `None` after a cut.
        mount: Option<Mount>,
    },
    Ext4 {
        image: PathBuf,
        is_mounted: bool,
    },
}

impl Side {
    fn larder(scratch: &Path) -> Result<Side, String> {
        let larder = Larder::build(Profile::Release)?;
        let database = scratch.join("sqlite.larder");
        larder.run(&["init", &database.to_string_lossy(), "--capacity", "512M"])?;
        let filesystem = Filesystem::Larder {
            larder,
            database,
            mount: None,
        };
        Side::mounted(scratch, "the mount", filesystem)
    }

    fn ext4(scratch: &Path) -> Result<Side, String> {
        let image = scratch.join("ext4.image");
        File::create(&image)
            .and_then(|file| file.set_len(EXT4_BYTES))
            .map_err(|error| format!("{}: {error}", image.display()))?;
        process::output("mkfs.ext4", &["-q", &image.to_string_lossy()])?;
        let filesystem = Filesystem::Ext4 {
            image,
            is_mounted: false,
        };
        Side::mounted(scratch, "ext4", filesystem)
    }

    fn mounted(scratch: &Path, name: &'static str, on: Filesystem) -> Result<Side, String> {
        let mountpoint = scratch.join(name.rsplit(' ').next().unwrap_or(name));
        fs::create_dir(&mountpoint).map_err(|error| format!("the mountpoint: {error}"))?;
        let mut side = Side {
            name,
            mountpoint,
            counts: Default::default(),
            filesystem: on,
        };
        side.mount()?;
        Ok(side)
    }

    fn mount(&mut self) -> Outcome {
        match &mut self.filesystem {
            Filesystem::Larder {
                larder,
                database,
                mount,
            } => *mount = Some(larder.mount(database, &self.mountpoint)?),
            Filesystem::Ext4 { image, is_mounted } => {
                let (image, at) = (image.to_string_lossy(), self.mountpoint.to_string_lossy());
                process::output("mount", &["-o", "loop", &image, &at])?;
                *is_mounted = true;
            }
        }
        Ok(())
    }

    /// Writes for so long, cuts, recovers; returns how many answered transactions are lost.
    fn cut(&mut self, mode: &str, seed: u64, calm: Duration) -> Result<u64, String> {
        let database = self.mountpoint.join(format!("{mode}-{seed:016x}.db"));
        let program = std::env::current_exe().map_err(|error| format!("who am I: {error}"))?;
        let mut writer = Command::new(program)
            .args([WRITER, &database.to_string_lossy(), mode, &seed.to_string()])
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("the writer does not start: {error}"))?;
        let stdout = writer.stdout.take().ok_or("the writer has no pipe")?;
        let reader = thread::spawn(move || {
            let lines = BufReader::new(stdout).lines().map_while(Result::ok);
            lines.filter_map(|line| line.parse::<u64>().ok()).last()
        });
        thread::sleep(calm);
        self.cut_off()?;
        writer
            .wait()
            .map_err(|error| format!("waiting for the writer: {error}"))?;
        let answered = reader
            .join()
            .map_err(|_| "the reader of the writer panicked")?
            .unwrap_or(0);
        self.mount()?;
        let found = recover(&database, seed)?;
        if found > answered + 1 {
            return Err(format!(
                "{found} transactions, of which {answered} were answered"
            ));
        }
        let lost = answered.saturating_sub(found);
        let index = MODES.iter().position(|(name, _)| *name == mode);
        let counts = &mut self.counts[index.ok_or("an unknown journal mode")?];
        counts.answered += answered;
        counts.lost += lost;
        fs::remove_file(&database).map_err(|error| format!("removing it: {error}"))?;
        Ok(lost)
    }

    /// Nothing that is only in memory is there afterwards. The filesystem is not mounted then.
    fn cut_off(&mut self) -> Outcome {
        match &mut self.filesystem {
            Filesystem::Larder { mount, .. } => match mount.take() {
                Some(mount) => mount.kill(),
                None => Err("nothing is mounted".into()),
            },
            Filesystem::Ext4 { is_mounted, .. } => {
                let explain = |error| format!("shutting ext4 down: {error}");
                let root =
                    File::open(&self.mountpoint).map_err(|error| format!("open: {error}"))?;
                // SAFETY: the kernel reads a `u32`, which the setter points at.
                unsafe {
                    let order =
                        rustix::ioctl::Setter::<FS_IOC_SHUTDOWN, u32>::new(GOING_FLAGS_NOLOGFLUSH);
                    rustix::ioctl::ioctl(&root, order).map_err(explain)?;
                }
                drop(root);
                // The writer may still hold its files.
                process::output("umount", &["-l", &self.mountpoint.to_string_lossy()])?;
                *is_mounted = false;
                Ok(())
            }
        }
    }

    fn end(mut self) -> Outcome {
        match &mut self.filesystem {
            Filesystem::Larder {
                larder,
                database,
                mount,
            } => {
                mount.take().map_or(Ok(()), Mount::unmount)?;
                larder.run(&["check", "--read", &database.to_string_lossy()])?;
            }
            Filesystem::Ext4 { is_mounted, .. } => {
                process::output("umount", &[&self.mountpoint.to_string_lossy()])?;
                *is_mounted = false;
            }
        }
        Ok(())
    }
}

impl Drop for Side {
    fn drop(&mut self) {
        if let Filesystem::Ext4 {
            is_mounted: true, ..
        } = self.filesystem
            && let Err(line) =
                process::output("umount", &["-l", &self.mountpoint.to_string_lossy()])
        {
            eprintln!("larder-suites: {line}");
        }
    }
}

/// What transaction `number` writes.
fn content(seed: u64, number: u64) -> Vec<u8> {
    let mut rng = Rng::new(seed ^ number.rotate_left(32));
    let length = rng.below(CONTENT_BYTES_MAX);
    (0..length).map(|_| rng.bits() as u8).collect()
}

/// How many transactions the database has, after SQLite's recovery; it is whole.
fn recover(database: &Path, seed: u64) -> Result<u64, String> {
    let explain = |error| format!("SQLite: {error}");
    if !fs::exists(database).map_err(|error| format!("looking for it: {error}"))? {
        return Ok(0);
    }
    let connection = Connection::open(database).map_err(explain)?;
    let verdict: String = connection
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .map_err(explain)?;
    if verdict != "ok" {
        return Err(format!("not whole: {verdict}"));
    }
    let tables: i64 = connection
        .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
        .map_err(explain)?;
    if tables == 0 {
        return Ok(0);
    }
    let count: i64 = connection
        .query_row("SELECT n FROM counter", [], |row| row.get(0))
        .map_err(explain)?;
    let mut statement = connection
        .prepare("SELECT n, content FROM entry ORDER BY n")
        .map_err(explain)?;
    let rows = statement
        .query_map([], |row| {
            Ok((row.get::<_, i64>(0)?, row.get::<_, Vec<u8>>(1)?))
        })
        .map_err(explain)?;
    let mut last = 0;
    for row in rows {
        let (number, found) = row.map_err(explain)?;
        let number = number as u64;
        if number != last + 1 || found != content(seed, number) {
            return Err(format!("the entry after {last} is not what was written"));
        }
        last = number;
    }
    match last as i64 == count {
        true => Ok(last),
        false => Err(format!("{last} entries beside a counter of {count}")),
    }
}

/// Commits until the filesystem is cut; says each number once it is answered.
pub fn write(database: &str, mode: &str, seed: &str) -> Outcome {
    let seed = seed.parse().map_err(|_| format!("'{seed}' is no seed"))?;
    let explain = |error| format!("SQLite: {error}");
    let mut connection = Connection::open(database).map_err(explain)?;
    connection
        .pragma_update(None, "journal_mode", mode)
        .and_then(|()| connection.pragma_update(None, "synchronous", "FULL"))
        .and_then(|()| {
            connection.execute_batch(
                "BEGIN; CREATE TABLE entry (n INTEGER PRIMARY KEY, content BLOB); \
                 CREATE TABLE counter (n INTEGER); INSERT INTO counter VALUES (0); COMMIT",
            )
        })
        .map_err(explain)?;
    let mut stdout = std::io::stdout().lock();
    for number in 1u64.. {
        let transaction = connection.transaction().map_err(explain)?;
        let written = params![number as i64, content(seed, number)];
        transaction
            .execute("INSERT INTO entry VALUES (?1, ?2)", written)
            .and_then(|_| transaction.execute("UPDATE counter SET n = ?1", [number as i64]))
            .map_err(explain)?;
        transaction.commit().map_err(explain)?;
        writeln!(stdout, "{number}")
            .and_then(|()| stdout.flush())
            .map_err(|error| format!("nobody listens: {error}"))?;
    }
    Ok(())
}
