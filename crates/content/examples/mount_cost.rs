//! What the calls of a mount cost below the protocol:
//! `cargo run --release -p larder --example mount_cost [--dir DIR] [--files COUNT] [--plain]
//! [WORKLOAD]…`.
//!
//! Each workload makes the calls that the kernel's requests lead to: `create1`, `create4`,
//! `create32` (by that many threads: look up a name that is absent, create, open, write 10 KB,
//! close), `fsync1`, `fsync32` (the same with 1 KB and fsync), `over` and `append` (4 KiB and
//! fsync), `list` (entries with attributes, after opening anew), `find` (entries), `remove` (look
//! up, unlink), `stream` (1 MiB writes to files of 64 MiB). `--plain` does the same to plain files
//! in the same directory. Printed: wall µs per operation; CPU µs per operation of the whole
//! process, and of them those of the calling threads.

use larder::{Caller, CreateOptions, Database, DatabaseOptions, Name, NewNode, NodeId};
use std::error::Error;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Instant;

type Outcome<T = ()> = Result<T, Box<dyn Error + Send + Sync>>;

const OWNER: Caller = Caller {
    uid: 0,
    gid: 0,
    umask: 0,
};
/// Entries that one request for a listing brings.
const LISTING: usize = 1000;
const LARGE_BYTES: u64 = 256 << 20;

const WORKLOADS: [&str; 11] = [
    "create1", "create4", "create32", "fsync1", "fsync32", "over", "append", "list", "find",
    "remove", "stream",
];

fn main() -> Outcome {
    let mut place = std::env::temp_dir();
    let (mut files, mut wanted) = (20_000, Vec::new());
    let mut has_plain = false;
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--dir" => place = arguments.next().ok_or("--dir needs a directory")?.into(),
            "--files" => files = arguments.next().ok_or("--files needs a number")?.parse()?,
            "--plain" => has_plain = true,
            other if WORKLOADS.contains(&other) => wanted.push(argument),
            other => return Err(format!("unknown workload {other}; one of {WORKLOADS:?}").into()),
        }
    }
    let dir = place.join(format!("larder-mount-cost-{}", std::process::id()));
    std::fs::create_dir_all(&dir)?;
    let is_wanted = |name: &str| wanted.is_empty() || wanted.iter().any(|one| one == name);
    let measured = measure(&dir, files, has_plain, &is_wanted);
    std::fs::remove_dir_all(&dir)?;
    measured
}

fn measure(dir: &Path, files: usize, has_plain: bool, is_wanted: &dyn Fn(&str) -> bool) -> Outcome {
    let plain = dir.join("plain");
    std::fs::create_dir(&plain)?;
    let mut sides = Sides {
        path: dir.join("database"),
        database: None,
        plain,
        has_plain,
    };
    Database::create(&sides.path, &CreateOptions::default())?;
    sides.open()?;
    sides.grow()?;
    for threads in [1, 4, 32] {
        let name = format!("create{threads}");
        if is_wanted(&name) {
            sides.make_files(&name, threads, files, &[7; 10_240], false)?;
        }
    }
    for (threads, files) in [(1, files / 10), (32, files / 2)] {
        let name = format!("fsync{threads}");
        if is_wanted(&name) {
            sides.make_files(&name, threads, files, &[7; 1000], true)?;
        }
    }
    if is_wanted("over") || is_wanted("append") {
        sides.make_large()?;
    }
    if is_wanted("over") {
        sides.overwrite("over", files / 10, &mut |index| {
            (index * 2_654_435_761) % (LARGE_BYTES / 4096) * 4096
        })?;
    }
    if is_wanted("append") {
        sides.overwrite("append", files / 10, &mut |index| {
            LARGE_BYTES + index * 4096
        })?;
    }
    if is_wanted("stream") {
        sides.stream("stream")?;
    }
    if is_wanted("list") || is_wanted("find") || is_wanted("remove") {
        sides.make_files("many", 1, files, &[7; 1000], false)?;
        sides.open()?;
        if is_wanted("list") {
            sides.list("list", true, files)?;
            sides.list("list", true, files)?;
        }
        if is_wanted("find") {
            sides.list("find", false, files)?;
        }
        if is_wanted("remove") {
            sides.remove(files)?;
        }
    }
    if let Some(database) = sides.database.take() {
        database.close()?;
    }
    Ok(())
}

/// A database and a directory of plain files.
struct Sides {
    path: PathBuf,
    database: Option<Database>,
    plain: PathBuf,
    has_plain: bool,
}

impl Sides {
    /// Opens the database (anew).
    fn open(&mut self) -> Outcome {
        if let Some(database) = self.database.take() {
            database.close()?;
        }
        self.database = Some(Database::open(&self.path, DatabaseOptions::default())?);
        Ok(())
    }

    fn database(&self) -> Outcome<&Database> {
        self.database
            .as_ref()
            .ok_or_else(|| "the database is closed".into())
    }

    fn make_directory(&self, name: &str) -> Outcome<NodeId> {
        std::fs::create_dir(self.plain.join(name))?;
        let (database, entry) = (self.database()?, Name::new(name.as_bytes())?);
        let made =
            database
                .nodes()
                .create_node(NodeId::ROOT, &entry, NewNode::Directory, 0o755, OWNER)?;
        Ok(made.node)
    }

    /// Segments grow before anything is measured.
    fn grow(&self) -> Outcome {
        let database = self.database()?;
        database
            .files()
            .write(b"/grown", vec![1; LARGE_BYTES as usize])?;
        database.sync()?;
        database
            .nodes()
            .unlink(NodeId::ROOT, &Name::new(b"grown")?)?;
        Ok(database.sync()?)
    }

    fn make_large(&self) -> Outcome {
        self.make_directory("large")?;
        let database = self.database()?;
        let part = vec![1; 1 << 20];
        let plain = File::create(self.plain.join("large/f"))?;
        let node = database
            .nodes()
            .create_node(NodeId::ROOT, &Name::new(b"f")?, NewNode::File, 0o644, OWNER)?
            .node;
        let handle = database.nodes().open(node, true)?;
        for at in (0..LARGE_BYTES).step_by(part.len()) {
            plain.write_all_at(&part, at)?;
            handle.write_at(at, &part)?;
        }
        plain.sync_all()?;
        Ok(handle.sync()?)
    }

    fn make_files(
        &self,
        name: &str,
        threads: usize,
        files: usize,
        content: &[u8],
        syncs: bool,
    ) -> Outcome {
        let directory = self.make_directory(name)?;
        let database = self.database()?;
        let plain = self.plain.join(name);
        let mut meter = Meter::start()?;
        meter.threads(threads, files, |index| {
            let name = Name::new(format!("file-{index:08}").as_bytes())?;
            if database.nodes().lookup(directory, &name).is_ok() {
                return Err("it is there already".into());
            }
            let (_, handle) = database
                .nodes()
                .create_file(directory, &name, 0o644, OWNER, true)?;
            handle.write_at(0, content)?;
            if syncs {
                handle.sync()?;
            }
            Ok(())
        })?;
        meter.stop(name, "larder", files)?;
        database.sync()?;
        meter.stop(name, "  … durable", files)?;
        if !self.has_plain {
            return Ok(());
        }
        let mut meter = Meter::start()?;
        meter.threads(threads, files, |index| {
            let mut file = File::create_new(plain.join(format!("file-{index:08}")))?;
            file.write_all(content)?;
            if syncs {
                file.sync_all()?;
            }
            Ok(())
        })?;
        meter.stop(name, "plain", files)?;
        File::open(&plain)?.sync_all()?;
        Ok(())
    }

    /// An operation is a write of 1 MiB.
    fn stream(&self, name: &str) -> Outcome {
        let directory = self.make_directory(name)?;
        let database = self.database()?;
        let part = vec![3; 1 << 20];
        let (files, parts) = (8, 64);
        let mut meter = Meter::start()?;
        for file in 0..files {
            let name = Name::new(format!("file-{}", file % 2).as_bytes())?;
            if database.nodes().lookup(directory, &name).is_ok() {
                database.nodes().unlink(directory, &name)?;
            }
            let (_, handle) = database
                .nodes()
                .create_file(directory, &name, 0o644, OWNER, true)?;
            // By another thread each, as a mount's workers do.
            for first in 0..2 {
                let write = || {
                    (first * parts / 2..(first + 1) * parts / 2)
                        .try_for_each(|at| handle.write_at(at << 20, &part))
                };
                std::thread::scope(|scope| scope.spawn(write).join())
                    .map_err(|_| "a thread panicked")??;
            }
        }
        meter.stop(name, "larder", files * parts as usize)?;
        database.sync()?;
        meter.stop(name, "  … durable", files * parts as usize)
    }

    fn overwrite(&self, name: &str, count: usize, at: &mut dyn FnMut(u64) -> u64) -> Outcome {
        let database = self.database()?;
        let node = database
            .nodes()
            .lookup(NodeId::ROOT, &Name::new(b"f")?)?
            .node;
        let handle = database.nodes().open(node, true)?;
        let mut meter = Meter::start()?;
        for index in 0..count as u64 {
            handle.write_at(at(index), &[index as u8; 4096])?;
            handle.sync()?;
        }
        meter.stop(name, "larder", count)?;
        if !self.has_plain {
            return Ok(());
        }
        let plain = File::options()
            .write(true)
            .open(self.plain.join("large/f"))?;
        let mut meter = Meter::start()?;
        for index in 0..count as u64 {
            plain.write_all_at(&[index as u8; 4096], at(index))?;
            plain.sync_data()?;
        }
        meter.stop(name, "plain", count)
    }

    fn list(&self, name: &str, with_attributes: bool, files: usize) -> Outcome {
        let database = self.database()?;
        let directory = database
            .nodes()
            .lookup(NodeId::ROOT, &Name::new(b"many")?)?
            .node;
        let mut meter = Meter::start()?;
        let (mut after, mut count) = (None, 0);
        loop {
            let (length, last) = if with_attributes {
                let mut page =
                    database
                        .nodes()
                        .read_dir_plus(directory, after.as_ref(), LISTING)?;
                (page.len(), page.pop().map(|(entry, _)| entry.name))
            } else {
                let mut page = database
                    .nodes()
                    .read_dir(directory, after.as_ref(), LISTING)?;
                (page.len(), page.pop().map(|entry| entry.name))
            };
            count += length;
            after = last;
            if length < LISTING {
                break;
            }
        }
        assert_eq!(count, files, "entries");
        meter.stop(name, "larder", files)?;
        if !self.has_plain {
            return Ok(());
        }
        let mut meter = Meter::start()?;
        for entry in std::fs::read_dir(self.plain.join("many"))? {
            let entry = entry?;
            if with_attributes {
                entry.metadata()?;
            }
        }
        meter.stop(name, "plain", files)
    }

    fn remove(&self, files: usize) -> Outcome {
        let database = self.database()?;
        let directory = database
            .nodes()
            .lookup(NodeId::ROOT, &Name::new(b"many")?)?
            .node;
        let mut meter = Meter::start()?;
        for index in 0..files {
            let name = Name::new(format!("file-{index:08}").as_bytes())?;
            database.nodes().lookup(directory, &name)?;
            database.nodes().unlink(directory, &name)?;
        }
        meter.stop("remove", "larder", files)?;
        database.sync()?;
        meter.stop("remove", "  … durable", files)?;
        if !self.has_plain {
            return Ok(());
        }
        let plain = self.plain.join("many");
        let mut meter = Meter::start()?;
        for index in 0..files {
            std::fs::remove_file(plain.join(format!("file-{index:08}")))?;
        }
        meter.stop("remove", "plain", files)
    }
}

/// Measures one side of one workload.
struct Meter {
    began: Instant,
    process_us: f64,
    caller_us: f64,
    /// Of threads that have ended.
    threads_us: f64,
}

impl Meter {
    fn start() -> Outcome<Meter> {
        Ok(Meter {
            process_us: process_us()?,
            caller_us: caller_us()?,
            threads_us: 0.0,
            began: Instant::now(),
        })
    }

    /// Runs `work` for `0..count`, divided among threads; one thread is this one.
    fn threads(
        &mut self,
        threads: usize,
        count: usize,
        work: impl Fn(usize) -> Outcome + Sync,
    ) -> Outcome {
        if threads == 1 {
            return (0..count).try_for_each(work);
        }
        let used = Mutex::new(0.0);
        std::thread::scope(|scope| {
            let spawned: Vec<_> = (0..threads)
                .map(|thread| {
                    let (work, used) = (&work, &used);
                    scope.spawn(move || -> Outcome {
                        (thread..count).step_by(threads).try_for_each(work)?;
                        *used.lock().map_err(|_| "a thread panicked")? += caller_us()?;
                        Ok(())
                    })
                })
                .collect();
            let joined = |thread: std::thread::ScopedJoinHandle<'_, Outcome>| {
                thread
                    .join()
                    .unwrap_or_else(|_| Err("a thread panicked".into()))
            };
            spawned.into_iter().try_for_each(joined)
        })?;
        self.threads_us += *used.lock().map_err(|_| "a thread panicked")?;
        Ok(())
    }

    fn stop(&mut self, name: &str, side: &str, count: usize) -> Outcome {
        let wall_us = self.began.elapsed().as_secs_f64() * 1e6;
        let callers_us = caller_us()? - self.caller_us + self.threads_us;
        let cpu_us = process_us()? - self.process_us;
        let count = count as f64;
        println!(
            "{name:9} {side:12} {:8.1} µs, {:8.1} µs CPU ({:8.1} callers)",
            wall_us / count,
            cpu_us / count,
            callers_us / count
        );
        Ok(())
    }
}

/// CPU time of this process, µs, in steps of 10 ms.
fn process_us() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/self/stat")?;
    let fields = text
        .rsplit(')')
        .next()
        .unwrap_or_default()
        .split_whitespace();
    let ticks: f64 = fields
        .skip(11)
        .take(2)
        .map(str::parse::<f64>)
        .sum::<Result<f64, _>>()?;
    Ok(ticks * 10_000.0)
}

/// CPU time of this thread, µs.
fn caller_us() -> Outcome<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let nanoseconds = text.split_whitespace().next().unwrap_or_default();
    Ok(nanoseconds.parse::<f64>()? / 1000.0)
}
