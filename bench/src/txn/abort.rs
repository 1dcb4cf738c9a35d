//! `bench txn --abort`: what a long transaction that writes gigabytes and fails leaves, and what
//! others feel meanwhile.
//!
//! A mount does small operations, one after the other with a pause between: a file of 10 KB is
//! created, written and closed, another one's attributes are asked for, another one is read, the
//! new one is renamed, and one more is written and made durable. Meanwhile `larder txn run` has a
//! program write into another view of the database; the same program writes as much into a plain
//! directory of the same disk. So there are four *states*: nothing beside, the plain writer beside,
//! the transaction beside, both beside. What the transaction adds to either is Larder's part; what
//! the plain writer adds is that of the disk and the processors.

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use larder::{Database, DatabaseOptions, RETENTION_NS_DEFAULT, Retention, SpaceReport};

use super::super::content;
use super::super::report::{Goal, Report, Samples};
use super::super::setting::{Setting, alternate};
use super::super::sides::{Api, Side, grow};
use xtask::mounts::{Larder, Profile};
use xtask::{Outcome, explain};

/// The verb of `xtask` that is the program which writes.
pub const WRITE: &str = "bench-write";

/// How that program ends in a transaction: with this, nothing is committed.
const FAILS_WITH: i32 = 77;
/// What a transaction writes. With less the first operations beside it take as long as all of it,
/// and a median of them says nothing: half a gigabyte left time for five.
const QUICK_BYTES: u64 = 2_000_000_000;
const FULL_BYTES: u64 = 5_000_000_000;
const FILE_BYTES: usize = 10_000;
/// Files that are only looked at and read.
const OLD_COUNT: usize = 500;
const PAUSE: Duration = Duration::from_millis(5);
/// What the segments have before: so that the small operations need no growth.
const GROWN_BYTES: u64 = 512 << 20;
/// One file of the writer, and one call.
const PART_BYTES: u64 = 128 << 20;
const CALL_BYTES: usize = 1 << 20;

const OPERATIONS: [&str; 5] = [
    "create, write 10 KB, close",
    "stat",
    "open, read 10 KB, close",
    "rename",
    "create, write 10 KB, fsync",
];

/// What goes on beside the small operations.
#[derive(Debug, Clone, Copy)]
struct State {
    has_run: bool,
    has_plain: bool,
}

/// In this order: a ratio is of one to the one before.
const STATES: [State; 4] = [
    State {
        has_run: false,
        has_plain: false,
    },
    State {
        has_run: true,
        has_plain: false,
    },
    State {
        has_run: false,
        has_plain: true,
    },
    State {
        has_run: true,
        has_plain: true,
    },
];

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let rounds = setting.options.rounds.unwrap_or(3);
    let bytes = setting.options.choose(QUICK_BYTES, QUICK_BYTES, FULL_BYTES);
    let mut report = Report::new(
        "txn",
        &format!(
            "{} {rounds} rounds, states in turns. `larder txn run` writes {} MB and fails; a \
             mount of the same database does \
             small operations, with pauses of {} ms; medians of their latency, µs. Plain: the \
             same program writes as much \
             into a directory of the disk. Figures of the states with neither are of as long a \
             time.",
            setting.machine()?,
            bytes / 1_000_000,
            PAUSE.as_millis()
        ),
    );
    let place = setting.directory()?;
    let site = Site::create(place.path(), bytes)?;
    let before = site.space()?;
    let mount = site.larder.mount(&site.database, &site.root)?;
    site.make_old()?;
    let mut latencies: Vec<Vec<Samples>> =
        vec![vec![Samples::default(); STATES.len()]; OPERATIONS.len()];
    let mut worst = [0_f64; STATES.len()];
    let mut directory = 0;
    alternate(rounds, STATES.len(), |_, index| {
        directory += 1;
        let found = site.observe(STATES[index], directory)?;
        for (operation, of) in latencies.iter_mut().zip(found) {
            worst[index] = worst[index].max(of.max());
            operation[index].0.push(of.median());
        }
        if STATES[index].has_run {
            site.expect_no_trace()?;
        }
        Ok(())
    })?;
    mount.unmount()?;
    let after = site.space()?;
    print(&mut report, &latencies, worst);
    judge_space(&mut report, &before, &after, directory);
    let database = site.database.to_string_lossy();
    site.larder.run(&["check", "--read", &database])?;
    report.note(
        "`larder check --read` finds nothing, and no name of the transaction is in the tree.",
    );
    Ok(report)
}

fn print(report: &mut Report, latencies: &[Vec<Samples>], worst: [f64; STATES.len()]) {
    let header = [
        "µs",
        "nothing beside",
        "transaction",
        "ratio",
        "target",
        "plain writer",
        "both",
        "ratio",
        "target",
    ]
    .map(str::to_owned);
    let mut rows = Vec::new();
    for (what, of) in OPERATIONS.iter().zip(latencies) {
        let mut row = vec![(*what).to_owned()];
        for (pair, beside) in of.chunks(2).zip(["", ", a plain writer beside both"]) {
            let ratio = pair[1].over(&pair[0]);
            row.extend(pair.iter().map(|samples| samples.text(0)));
            row.push(ratio.text(2));
            let what = format!("{what}: latency beside the transaction ÷ without{beside}");
            row.push(report.judge(&what, ratio, Goal::AtMost(1.2)));
        }
        rows.push(row);
    }
    report.table(&header, &rows);
    let [nothing, run, plain, both] = worst.map(|us| format!("{:.0}", us / 1000.0));
    report.note(&format!(
        "The longest single operation, ms: nothing beside {nothing}, transaction {run}, plain \
         writer {plain}, both {both}."
    ));
}

/// The small files that the mount made are there; nothing else may be.
fn judge_space(report: &mut Report, before: &SpaceReport, after: &SpaceReport, turns: usize) {
    let mb = |bytes: u64| bytes as f64 / 1e6;
    let grown = mb(after.segment_bytes) - mb(before.segment_bytes);
    report.note(&format!(
        "Segments: {:.0} MB before, {:.0} MB after {turns} turns. Live content {:.1} MB, and \
         {:.1} MB retired.",
        mb(before.segment_bytes),
        mb(after.segment_bytes),
        mb(after.live_bytes),
        mb(after.retired_bytes)
    ));
    report.verdict(
        "MB that segments are longer after the aborted transactions",
        Samples(vec![grown]),
        Goal::AtMost(64.0 * 1.048_576),
    );
}

struct Site {
    larder: Larder,
    database: PathBuf,
    root: PathBuf,
    plain: PathBuf,
    bytes: u64,
}

impl Site {
    fn create(at: &Path, bytes: u64) -> Result<Site, String> {
        let site = Site {
            larder: Larder::build(Profile::Release)?,
            database: at.join("abort.larder"),
            root: at.join("mount"),
            plain: at.join("plain"),
            bytes,
        };
        for directory in [&site.root, &site.plain] {
            fs::create_dir(directory).map_err(explain)?;
        }
        let api: Box<dyn Side> = Box::new(Api::create(&site.database, None)?);
        grow(&*api, GROWN_BYTES)?;
        api.close()?;
        // From here on as users get it: with a history, by which others know what the transaction
        // has changed.
        let database =
            Database::open(&site.database, DatabaseOptions::default()).map_err(explain)?;
        let retention = Retention {
            retention_ns: RETENTION_NS_DEFAULT,
            is_guaranteed: false,
        };
        database
            .history()
            .set_retention(retention)
            .map_err(explain)?;
        database.close().map_err(explain)?;
        Ok(site)
    }

    fn space(&self) -> Result<SpaceReport, String> {
        let database =
            Database::open(&self.database, DatabaseOptions::default()).map_err(explain)?;
        let space = database.maintenance().space().map_err(explain)?;
        database.close().map_err(explain)?;
        Ok(space)
    }

    fn old(&self, number: usize) -> PathBuf {
        self.root.join("old").join(number.to_string())
    }

    fn make_old(&self) -> Outcome {
        let make = || {
            fs::create_dir(self.root.join("old"))?;
            for number in 0..OLD_COUNT {
                fs::write(self.old(number), content::noise(number as u64, FILE_BYTES))?;
            }
            File::open(&self.root)?.sync_all()
        };
        make().map_err(explain)
    }

    /// Latencies of each operation, µs, while this goes on; in a directory of its own.
    fn observe(&self, state: State, number: usize) -> Result<Vec<Samples>, String> {
        let directory = self.root.join(format!("turn-{number}"));
        fs::create_dir(&directory).map_err(explain)?;
        let mut writers = Vec::new();
        if state.has_plain {
            writers.push(self.start_plain(number)?);
        }
        if state.has_run {
            writers.push(self.start_run(number)?);
        }
        for writer in &mut writers {
            writer.expect_begun()?;
        }
        // Without anybody beside: about as many operations as beside.
        let ends = Instant::now() + Duration::from_secs((self.bytes / 500_000_000).max(3));
        let mut found = vec![Samples::default(); OPERATIONS.len()];
        let mut count = 0;
        loop {
            let is_over = match writers.is_empty() {
                true => Instant::now() >= ends,
                false => {
                    let mut ended = writers.iter_mut().map(Writer::has_ended);
                    ended.try_fold(false, |any, one| one.map(|one| any || one))?
                }
            };
            if is_over {
                break;
            }
            let cycle = self.cycle(&directory, count).map_err(explain)?;
            for (of, latency) in found.iter_mut().zip(cycle) {
                of.0.push(latency.as_secs_f64() * 1e6);
            }
            count += 1;
            std::thread::sleep(PAUSE);
        }
        for writer in writers {
            writer.finish()?;
        }
        fs::remove_dir_all(&directory).map_err(explain)?;
        // What it leaves to the disk is not the next turn's.
        rustix::fs::sync();
        match count < 10 {
            true => Err(format!("only {count} operations: more bytes are needed")),
            false => Ok(found),
        }
    }

    fn cycle(
        &self,
        directory: &Path,
        count: usize,
    ) -> std::io::Result<[Duration; OPERATIONS.len()]> {
        let bytes = content::noise(count as u64, FILE_BYTES);
        let path = |name: &str| directory.join(format!("{name}{count}"));
        let old = |number: usize| self.old(number * 7919 % OLD_COUNT);
        Ok([
            timed(|| fs::write(path("new"), &bytes))?,
            timed(|| fs::metadata(old(count)).map(drop))?,
            timed(|| fs::read(old(count + OLD_COUNT / 2)).map(drop))?,
            timed(|| fs::rename(path("new"), path("named")))?,
            timed(|| {
                let mut file = File::create(path("synced"))?;
                file.write_all(&bytes)?;
                file.sync_all()
            })?,
        ])
    }

    fn start_plain(&self, number: usize) -> Result<Writer, String> {
        let directory = self.plain.join(format!("plain-{number}"));
        let program = std::env::current_exe().map_err(explain)?;
        let mut command = Command::new(program);
        command.args([WRITE.as_ref(), directory.as_os_str()]);
        command.arg(self.bytes.to_string()).arg("0");
        Writer::start(command, directory.join(BEGUN), 0, Some(directory))
    }

    fn start_run(&self, number: usize) -> Result<Writer, String> {
        // The path is that of the mount, where the program sees the view.
        let directory = self.root.join(format!("run-{number}"));
        let begun = self.plain.join(format!("run-{number}"));
        let program = std::env::current_exe().map_err(explain)?;
        let mut command = Command::new(self.larder.path());
        command.args(["txn", "run"]).arg(&self.database);
        command.arg("--mount").arg(&self.root).arg("--");
        // The mark that it has begun is outside of the view.
        command.args([program.as_os_str(), WRITE.as_ref(), directory.as_os_str()]);
        command
            .arg(self.bytes.to_string())
            .arg(FAILS_WITH.to_string());
        command.arg(&begun);
        Writer::start(command, begun, FAILS_WITH, None)
    }

    /// Nothing of the transactions is left.
    fn expect_no_trace(&self) -> Outcome {
        for entry in fs::read_dir(&self.root).map_err(explain)? {
            let name = entry.map_err(explain)?.file_name();
            if name.to_string_lossy().starts_with("run-") {
                return Err(format!("{} is there after the abort", name.display()));
            }
        }
        let workspaces = fs::read_dir(self.database.join("transactions")).map_err(explain)?;
        match workspaces.count() {
            0 => Ok(()),
            count => Err(format!("{count} workspaces are left after the abort")),
        }
    }
}

/// The file in the directory of a writer that says that it has begun.
const BEGUN: &str = "begun";

/// A process that writes; killed when dropped.
struct Writer {
    process: Child,
    begun: PathBuf,
    ends_with: i32,
    /// To be removed behind it.
    leaves: Option<PathBuf>,
}

impl Writer {
    fn start(
        mut command: Command,
        begun: PathBuf,
        ends_with: i32,
        leaves: Option<PathBuf>,
    ) -> Result<Writer, String> {
        let process = command.stdin(Stdio::null()).stdout(Stdio::null()).spawn();
        Ok(Writer {
            process: process.map_err(explain)?,
            begun,
            ends_with,
            leaves,
        })
    }

    fn expect_begun(&mut self) -> Outcome {
        while !self.begun.exists() {
            if self.has_ended()? {
                return Err("a writer ended before it began".into());
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    fn has_ended(&mut self) -> Result<bool, String> {
        self.process
            .try_wait()
            .map(|status| status.is_some())
            .map_err(explain)
    }

    fn finish(mut self) -> Outcome {
        let status = self.process.wait().map_err(explain)?;
        if let Some(directory) = &self.leaves {
            fs::remove_dir_all(directory).map_err(explain)?;
        }
        match status.code() == Some(self.ends_with) {
            true => Ok(()),
            false => Err(format!("a writer ended with {status}")),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        // It may have ended by itself.
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// The program that writes: `DIRECTORY BYTES CODE [BEGUN]`. Makes the directory and files in it,
/// each made durable, and ends with CODE.
pub fn write(directory: &str, bytes: &str, code: &str, begun: Option<&str>) -> Outcome {
    let directory = Path::new(directory);
    let wrong = |text: &str| format!("'{text}' is not a number");
    let bytes: u64 = bytes.parse().map_err(|_| wrong(bytes))?;
    let code: i32 = code.parse().map_err(|_| wrong(code))?;
    let write = || {
        fs::create_dir(directory)?;
        File::create(begun.map_or_else(|| directory.join(BEGUN), PathBuf::from))?;
        let mut call = content::noise(1, CALL_BYTES);
        let mut left = bytes;
        for part in 0.. {
            if left == 0 {
                break;
            }
            let mut file = File::create(directory.join(part.to_string()))?;
            let mut of_part = left.min(PART_BYTES);
            left -= of_part;
            while of_part > 0 {
                let len = of_part.min(CALL_BYTES as u64) as usize;
                content::stamp(&mut call, part, (of_part >> 20) as u32);
                file.write_all(&call[..len])?;
                of_part -= len as u64;
            }
            file.sync_all()?;
        }
        Ok(())
    };
    write().map_err(|error: std::io::Error| explain(error))?;
    std::process::exit(code)
}

fn timed(run: impl FnOnce() -> std::io::Result<()>) -> std::io::Result<Duration> {
    let started = Instant::now();
    run()?;
    Ok(started.elapsed())
}
