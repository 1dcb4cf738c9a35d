//! `bench snapshots`: what many snapshots of a store cost, and what it costs to look at one.
//!
//! Two databases get the same files and the same changes. In one a snapshot is made after each
//! change; the other has no snapshots and keeps no history. A listing of a snapshot is compared
//! with that of the present of the same mount. Cold: the kernel's caches are dropped, and each
//! round looks at another snapshot, which the mount opens first.

use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

use larder::{AlignedBuf, Caller, CreateOptions, Database, DatabaseOptions, NewNode};
use larder_testkit::Rng;

use super::content;
use super::report::{Goal, Report, Samples};
use super::setting::{Setting, alternate, shuffle, timed};
use xtask::Outcome;
use xtask::mounts::{Larder, Mount, Profile};

/// Bytes of a file: inline, so that names and attributes are what counts.
const FILE_BYTES: usize = 1000;
const PER_DIRECTORY: usize = 1000;
/// How long the database with snapshots keeps history by itself.
const HOUR_NS: i64 = 3_600_000_000_000;

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let larder = Larder::build(Profile::Release)?;
    let rounds = setting.options.rounds.unwrap_or(7);
    let file_count = setting.options.choose(4_000, 20_000, 100_000);
    let snapshot_count = setting.options.choose(400, 2_000, 10_000);
    let mut report = Report::new(
        "snapshots",
        &format!(
            "{} {rounds} rounds, sides in turns; {file_count} files of 1 KB in directories of \
             {PER_DIRECTORY}; {snapshot_count} \
             snapshots, before each of which a file is replaced, one is made and one removed.",
            setting.machine()?
        ),
    );
    let place = setting.directory()?;
    let at = |name: &str| place.path().join(name);
    let many = Store::create(&at("many.larder"), Some(HOUR_NS), file_count)?;
    let none = Store::create(&at("none.larder"), Some(0), file_count)?;
    let mut made_ms = Vec::with_capacity(snapshot_count);
    for index in 0..snapshot_count {
        none.change(index)?;
        many.change(index)?;
        let started = Instant::now();
        (many.database.snapshots().create(&name_of(index)))
            .map_err(|error| said("snapshot", &error))?;
        made_ms.push(started.elapsed().as_secs_f64() * 1e3);
    }
    eprintln!("bench snapshots: {snapshot_count} made");
    let parts = made_ms.chunks(snapshot_count.div_ceil(10));
    let medians = parts.map(|part| Samples(part.to_vec()).median());
    report.verdict(
        "create a snapshot, ms, medians of tenths",
        Samples(medians.collect()),
        Goal::AtMost(10.0),
    );
    made_ms.sort_by(f64::total_cmp);
    let high = made_ms[(made_ms.len() * 99 / 100).min(made_ms.len() - 1)];
    report.note(&format!("The 99th percentile of that: {high:.2} ms."));

    let stores = [&many, &none];
    for (what, is_listing) in [("get", false), ("list with attributes", true)] {
        let mut times: [Samples; 2] = Default::default();
        // The first round warms up.
        alternate(rounds + 1, 2, |round, index| {
            let store = stores[index];
            let duration = timed(|| match is_listing {
                true => store.list(),
                false => store.get_all(round as u64),
            })?;
            if round > 0 {
                times[index].0.push(duration.as_secs_f64());
            }
            Ok(())
        })?;
        report.verdict(
            &format!("{what}, API, present: time with snapshots ÷ without"),
            times[0].over(&times[1]),
            Goal::AtMost(1.05),
        );
    }
    many.close()?;
    none.close()?;
    on_mounts(
        setting,
        &larder,
        (&at("many.larder"), &at("none.larder")),
        rounds,
        snapshot_count,
        &mut report,
    )?;
    Ok(report)
}

fn on_mounts(
    setting: &Setting,
    larder: &Larder,
    (many, none): (&Path, &Path),
    rounds: usize,
    snapshot_count: usize,
    report: &mut Report,
) -> Outcome {
    let mounts = [mount(larder, many)?, mount(larder, none)?];
    let root = &mounts[0].1;
    let snapshot = |round: usize| {
        let index = round * (snapshot_count / (rounds + 1)).max(1) % snapshot_count;
        root.join(".larder/snapshots").join(name_of(index))
    };
    for is_cold in [false, true] {
        let warmth = if is_cold { "cold" } else { "warm" };
        if is_cold && !setting.drops_caches {
            continue;
        }
        let mut reads: [Samples; 2] = Default::default();
        alternate(rounds + 1, 2, |round, index| {
            if is_cold {
                setting.cool()?;
            }
            let duration =
                timed(|| program("grep", &["-rqF", "no file has this"], &mounts[index].1))?;
            if round > 0 {
                reads[index].0.push(duration.as_secs_f64());
            }
            Ok(())
        })?;
        report.verdict(
            &format!("grep -r, mount, present, {warmth}: time with snapshots ÷ without"),
            reads[0].over(&reads[1]),
            Goal::AtMost(1.05),
        );
        for (what, flags) in [("ls -R", "-R"), ("ls -lR", "-lR")] {
            let mut times: [Samples; 2] = Default::default();
            alternate(rounds + 1, 2, |round, index| {
                if is_cold {
                    setting.cool()?;
                }
                let directory = match index {
                    0 => snapshot(if is_cold { round } else { 0 }),
                    _ => root.clone(),
                };
                let duration = timed(|| program("ls", &[flags], &directory))?;
                if round > 0 {
                    times[index].0.push(duration.as_secs_f64());
                }
                Ok(())
            })?;
            report.verdict(
                &format!("{what}, mount, {warmth}: time in a snapshot ÷ in the present"),
                times[0].over(&times[1]),
                Goal::AtMost(2.0),
            );
        }
        eprintln!("bench snapshots: mounts, {warmth}, done");
    }
    mounts
        .into_iter()
        .try_for_each(|(mount, _)| mount.unmount())
}

fn mount(larder: &Larder, database: &Path) -> Result<(Mount, PathBuf), String> {
    let root = database.with_extension("mount");
    std::fs::create_dir(&root).map_err(|error| said("mount", &error))?;
    Ok((larder.mount(database, &root)?, root))
}

/// Runs a program on a directory; what it prints is dropped. That grep finds nothing is no failure.
fn program(name: &str, flags: &[&str], directory: &Path) -> Outcome {
    let status = Command::new(name)
        .args(flags)
        .arg(directory)
        .stdout(Stdio::null())
        .status()
        .map_err(|error| said(name, &error))?;
    match status.code() {
        Some(0) => Ok(()),
        Some(1) if name == "grep" => Ok(()),
        _ => Err(format!("{name} {}: {status}", directory.display())),
    }
}

fn name_of(index: usize) -> String {
    format!("s{index}")
}

/// A database with files.
struct Store {
    database: Database,
    file_count: usize,
}

impl Store {
    fn create(path: &Path, retention_ns: Option<i64>, file_count: usize) -> Result<Store, String> {
        let options = CreateOptions {
            retention_ns,
            ..CreateOptions::default()
        };
        Database::create(path, &options).map_err(|error| said("create", &error))?;
        let options = DatabaseOptions {
            label: "bench".to_owned(),
            ..DatabaseOptions::default()
        };
        let database = Database::open(path, options).map_err(|error| said("open", &error))?;
        let store = Store {
            database,
            file_count,
        };
        for index in 0..file_count {
            if index % PER_DIRECTORY == 0 {
                store.make_directory(&format!("/{}", index / PER_DIRECTORY))?;
            }
            store.put(&path_of(index), index, 0)?;
        }
        store.sync()?;
        Ok(store)
    }

    fn make_directory(&self, path: &str) -> Outcome {
        let make = || {
            let (parent, name) = self.database.nodes().resolve_parent(path.as_bytes())?;
            let owner = Caller::current();
            (self.database)
                .nodes()
                .create_node(parent, &name, NewNode::Directory, 0o755, owner)
        };
        make().map(drop).map_err(|error| said("directory", &error))
    }

    fn put(&self, path: &str, index: usize, version: u32) -> Outcome {
        let mut bytes = content::noise(1, FILE_BYTES);
        content::stamp(&mut bytes, index as u64, version);
        (self.database.files().write(path.as_bytes(), &bytes))
            .map(drop)
            .map_err(|error| said("put", &error))
    }

    fn sync(&self) -> Outcome {
        self.database.sync().map_err(|error| said("sync", &error))
    }

    /// What happens between two snapshots, durably: the names of directory after directory, and
    /// files all over.
    fn change(&self, index: usize) -> Outcome {
        let file = index * 7919 % self.file_count;
        self.put(&path_of(file), file, 1 + index as u32)?;
        let extra = |index: usize| {
            let directory = index * 7919 % self.file_count / PER_DIRECTORY;
            format!("/{directory}/extra{index}")
        };
        self.put(&extra(index), index, 0)?;
        if let Some(before) = index.checked_sub(1) {
            let remove = || {
                let (parent, name) = self
                    .database
                    .nodes()
                    .resolve_parent(extra(before).as_bytes())?;
                self.database.nodes().unlink(parent, &name)
            };
            remove().map_err(|error| said("remove", &error))?;
        }
        self.sync()
    }

    fn get_all(&self, seed: u64) -> Outcome {
        let mut order: Vec<usize> = (0..self.file_count).collect();
        shuffle(&mut order, &mut Rng::new(seed + 1));
        let mut buffer = AlignedBuf::zeroed(FILE_BYTES + 1);
        for index in order {
            (self
                .database
                .files()
                .read_into(path_of(index).as_bytes(), &mut buffer))
            .map_err(|error| said("get", &error))?;
        }
        Ok(())
    }

    fn list(&self) -> Outcome {
        let list = || {
            for directory in 0..self.file_count.div_ceil(PER_DIRECTORY) {
                let path = format!("/{directory}");
                let node = self.database.nodes().resolve(path.as_bytes(), true)?.node;
                let mut after = None;
                loop {
                    let page = self
                        .database
                        .nodes()
                        .read_dir_plus(node, after.as_ref(), 512)?;
                    after = page.last().map(|(entry, _)| entry.name.clone());
                    if page.len() < 512 {
                        break;
                    }
                }
            }
            Ok(())
        };
        list().map_err(|error: larder::Error| said("list", &error))
    }

    fn close(self) -> Outcome {
        self.database.close().map_err(|error| said("close", &error))
    }
}

fn path_of(index: usize) -> String {
    format!("/{}/{index}", index / PER_DIRECTORY)
}

fn said(what: &str, error: &dyn std::fmt::Display) -> String {
    format!("{what}: {error}")
}
