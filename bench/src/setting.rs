//! Where and how long is measured: options, scratch directory, caches, the order of turns.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use larder_testkit::Rng;
use tempfile::TempDir;

use super::meters::{self, MemoryMeter};
use super::report::{Goal, Report, Samples};
use xtask::Outcome;
use xtask::process;

/// What the command line asks for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Options {
    /// At most a minute.
    pub is_quick: bool,
    /// Between quick and full: one verb among several.
    pub is_moderate: bool,
    /// Capacity of an aged database, bytes.
    pub volume_bytes: Option<u64>,
    /// How full it is, percent.
    pub full_percent: Option<u64>,
    /// How often each side has its turn.
    pub rounds: Option<usize>,
    /// Only the size distributions whose name contains this.
    pub sizes: Option<String>,
    /// Only this side ages: `api` or `mount`.
    pub side: Option<String>,
    /// Only the parts of `mount` whose name contains this.
    pub part: Option<String>,
    /// A built `juicefs` command.
    pub juicefs: Option<String>,
    /// So many processes that make small transactions, and nothing else of `txn`.
    pub processes: Option<u64>,
    /// Only the transaction of `txn` that writes much and fails.
    pub is_abort: bool,
    /// Every part of `mount` also on a filesystem that answers from memory.
    pub is_stub: bool,
    /// Parts of `mount` also with requests by io_uring.
    pub has_rings: bool,
}

impl Options {
    /// The one that fits how long the run may take.
    pub fn choose<T>(&self, quick: T, moderate: T, full: T) -> T {
        match (self.is_quick, self.is_moderate) {
            (true, _) => quick,
            (_, true) => moderate,
            _ => full,
        }
    }
}

/// Where is measured.
pub struct Setting {
    /// What was asked for.
    pub options: Options,
    scratch: TempDir,
    /// Whether reads can be made cold.
    pub drops_caches: bool,
    memory: MemoryMeter,
}

impl Setting {
    /// A scratch directory below `place`, which is removed in the end.
    pub fn new(place: &Path, options: Options) -> Result<Setting, String> {
        fs::create_dir_all(place).map_err(|error| format!("{}: {error}", place.display()))?;
        // Not the system's temporary directory: that may be in memory.
        let scratch = directory_in(place)?;
        Ok(Setting {
            options,
            scratch,
            drops_caches: drop_caches()?,
            memory: MemoryMeter::start_here(0)?,
        })
    }

    /// The scratch directory.
    pub fn scratch(&self) -> &Path {
        self.scratch.path()
    }

    /// A directory of its own below it, removed when it is dropped.
    pub fn directory(&self) -> Result<TempDir, String> {
        directory_in(self.scratch())
    }

    /// Makes the next reads cold.
    pub fn cool(&self) -> Outcome {
        drop_caches().map(drop)
    }

    /// Begins to watch this process's memory, but for the buffers of the measurement.
    pub fn watch_memory(&mut self, buffer_bytes: usize) -> Outcome {
        self.memory = MemoryMeter::start_here(buffer_bytes)?;
        Ok(())
    }

    /// Says what this process, with the API in it, held at its peak.
    pub fn report_memory(&mut self, report: &mut Report) -> Outcome {
        self.memory.note()?;
        report_memory(report, "API process", &self.memory)
    }

    /// The machine and the place, in one line.
    pub fn machine(&self) -> Result<String, String> {
        let scratch = self.scratch().to_string_lossy();
        let columns = ["-n", "-o", "FSTYPE,OPTIONS", "-T", &scratch];
        let filesystem = process::output("findmnt", &columns)?;
        let kernel = process::output("uname", &["-sr"])?;
        let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
        let memory = fs::read_to_string("/proc/meminfo").unwrap_or_default();
        let memory = memory
            .lines()
            .next()
            .and_then(|line| line.split_whitespace().nth(1));
        let memory_gb = memory
            .and_then(|kib| kib.parse::<f64>().ok())
            .unwrap_or(0.0)
            / 1e6;
        let load = fs::read_to_string("/proc/loadavg").unwrap_or_default();
        let load = load.split(' ').next().unwrap_or("?");
        let cold = if self.drops_caches {
            "cold = caches dropped"
        } else {
            "nothing is cold: dropping caches needs root"
        };
        let (filesystem, options) = filesystem.trim().split_once(' ').unwrap_or_default();
        let (options, kernel) = (options.trim(), kernel.trim());
        let journal = match has_journal(self.scratch()) {
            Some(false) => " without a journal",
            _ => "",
        };
        Ok(format!(
            "{kernel}, {cores} cores, {memory_gb:.0} GB, load {load} at the start; disk with \
             {filesystem}{journal} ({options}); {cold}."
        ))
    }
}

/// Whether the ext4 below has a journal; without one its fsync writes less. `None` for other
/// filesystems.
fn has_journal(path: &Path) -> Option<bool> {
    let path = path.to_string_lossy();
    let source = process::output("findmnt", &["-n", "-o", "SOURCE", "-T", &path]).ok()?;
    let name = source.trim().strip_prefix("/dev/")?;
    let task = fs::read_to_string(format!("/sys/fs/ext4/{name}/journal_task")).ok()?;
    Some(task.trim() != "<none>")
}

/// Others may enter it: a PostgreSQL server runs as a user of its own.
fn directory_in(place: &Path) -> Result<TempDir, String> {
    tempfile::Builder::new()
        .permissions(fs::Permissions::from_mode(0o755))
        .tempdir_in(place)
        .map_err(|error| format!("{}: {error}", place.display()))
}

/// Says what a process held at its noted peak, and what it may hold.
pub fn report_memory(report: &mut Report, process: &str, meter: &MemoryMeter) -> Outcome {
    let (added, peak) = meter.peak();
    let bound = meters::memory_bound_bytes()?;
    report.note(&format!(
        "Memory of the {process}: peak RSS {} MB, {} MB without the buffers of the measurement; \
         configured bound (dirty \
         content and caches) {} MB.",
        peak >> 20,
        added >> 20,
        bound >> 20
    ));
    report.verdict(
        &format!("memory, {process}: peak ÷ bound"),
        Samples(vec![added as f64 / bound as f64]),
        Goal::AtMost(1.0),
    );
    Ok(())
}

/// Every side has its turn `rounds` times, in another order each round: `turn(round, side)`.
pub fn alternate(
    rounds: usize,
    sides: usize,
    mut turn: impl FnMut(usize, usize) -> Outcome,
) -> Outcome {
    for round in 0..rounds {
        for step in 0..sides {
            turn(round, (round + step) % sides)?;
        }
    }
    Ok(())
}

/// Puts `items` into random order.
pub fn shuffle<T>(items: &mut [T], rng: &mut Rng) {
    for last in (1..items.len()).rev() {
        items.swap(last, rng.below(last as u64 + 1) as usize);
    }
}

/// How long `run` takes.
pub fn timed(run: impl FnOnce() -> Outcome) -> Result<Duration, String> {
    let started = Instant::now();
    run()?;
    Ok(started.elapsed())
}

/// `bytes` in `duration`, MB/s (10⁶).
pub fn mb_per_s(bytes: u64, duration: Duration) -> f64 {
    bytes as f64 / 1e6 / duration.as_secs_f64()
}

/// Makes the next reads cold; `false` when this process has no right to.
fn drop_caches() -> Result<bool, String> {
    if !rustix::process::geteuid().is_root() {
        return Ok(false);
    }
    rustix::fs::sync();
    let file = "/proc/sys/vm/drop_caches";
    fs::write(file, "3").map_err(|error| format!("{file}: {error}"))?;
    Ok(true)
}
