//! `cargo xtask bench`: files of four sizes written and read through the API, through the mount, and
//! on the plain filesystem of the same disk, in one run.
//!
//! The three sides take turns, in another order each round, so that what the machine does meanwhile
//! meets all of them. A write phase ends when everything is durable, on every side. Reads are cold
//! where this process may drop caches (root). Medians over the rounds.

mod sides;
mod table;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use larder_testkit::fill;

use crate::Outcome;
use crate::mounts::{Larder, Profile};
use crate::process;
use crate::workspace::Workspace;
use sides::{Api, Host, Mounted, Side};
use table::{Cell, Row};

const ROUNDS: usize = 5;

/// What is written and read in one phase: so many files of one size.
#[derive(Debug, Clone, Copy)]
struct Load {
    name: &'static str,
    file_bytes: usize,
    file_count: usize,
}

const LOADS: [Load; 4] = [
    Load {
        name: "10 KB",
        file_bytes: 10_000,
        file_count: 2000,
    },
    Load {
        name: "100 KB",
        file_bytes: 100_000,
        file_count: 500,
    },
    Load {
        name: "1 MB",
        file_bytes: 1_000_000,
        file_count: 100,
    },
    Load {
        name: "100 MB",
        file_bytes: 100_000_000,
        file_count: 2,
    },
];

/// The place of the table in a document.
const MARKERS: (&str, &str) = ("<!-- bench:begin -->", "<!-- bench:end -->");

/// Measures, prints the table, and writes it into `document` (between its markers) if there is one.
pub fn run(document: Option<&str>) -> Outcome {
    if cfg!(debug_assertions) {
        println!(
            "bench: the API side is measured in this process; building that with optimisation"
        );
        let forward = [
            "run",
            "--quiet",
            "--release",
            "--package",
            "xtask",
            "--",
            "bench",
        ];
        let write: Vec<&str> = document.map_or(Vec::new(), |path| vec!["--write", path]);
        return process::run("cargo", &[&forward[..], &write].concat());
    }
    let larder = Larder::build(Profile::Release)?;
    let place = Workspace::load()?.target.join("bench");
    fs::create_dir_all(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    // Not the system's temporary directory: that may be in memory.
    let scratch =
        tempfile::tempdir_in(&place).map_err(|error| format!("{}: {error}", place.display()))?;
    let drops_caches = drop_caches()?;
    let rows = measure(&larder, scratch.path(), drops_caches)?;
    let text = table::render(&rows, &description(scratch.path(), drops_caches)?);
    println!("{text}");
    match document {
        Some(path) => write_between_markers(path, &text),
        None => Ok(()),
    }
}

fn measure(larder: &Larder, scratch: &Path, drops_caches: bool) -> Result<Vec<Row>, String> {
    let mut sides: [Box<dyn Side>; 3] = [
        Box::new(Api::create(&scratch.join("api.larder"))?),
        Box::new(Mounted::create(
            larder,
            &scratch.join("mount.larder"),
            &scratch.join("mount"),
        )?),
        Box::new(Host::create(&scratch.join("plain"))?),
    ];
    let mut rows = Vec::new();
    for load in LOADS {
        let mut times: [Vec<(Duration, Duration)>; 3] = Default::default();
        let mut content = fill(1, load.file_bytes as u64);
        for round in 0..ROUNDS {
            for turn in 0..sides.len() {
                let index = (round + turn) % sides.len();
                let side = &mut sides[index];
                let directory = format!("{}-{round}", load.file_bytes);
                let write = timed(|| side.write(&directory, load.file_count, &mut content))?;
                side.forget()?;
                if drops_caches {
                    drop_caches()?;
                }
                let read = timed(|| side.read(&directory, load.file_count, &content))?;
                side.remove(&directory)?;
                times[index].push((write, read));
            }
            eprintln!("bench: {}, round {} of {ROUNDS}", load.name, round + 1);
        }
        let bytes = (load.file_bytes * load.file_count) as u64;
        let cells = |pick: fn(&(Duration, Duration)) -> Duration| {
            times.each_ref().map(|times| Cell {
                duration: median(times.iter().map(pick).collect()),
                files: load.file_count,
                bytes,
            })
        };
        rows.push(Row {
            what: format!("write {}", load.name),
            cells: cells(|times| times.0),
        });
        rows.push(Row {
            what: format!("read {}", load.name),
            cells: cells(|times| times.1),
        });
    }
    for side in sides {
        side.close()?;
    }
    Ok(rows)
}

fn timed(run: impl FnOnce() -> Outcome) -> Result<Duration, String> {
    let started = Instant::now();
    run()?;
    Ok(started.elapsed())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
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

fn description(scratch: &Path, drops_caches: bool) -> Result<String, String> {
    let filesystem = process::output(
        "findmnt",
        &["-n", "-o", "FSTYPE", "-T", &scratch.to_string_lossy()],
    )?;
    let kernel = process::output("uname", &["-sr"])?;
    let cores = std::thread::available_parallelism().map_or(1, |cores| cores.get());
    let reads = if drops_caches {
        "cold (caches dropped)"
    } else {
        "warm (dropping caches needs root)"
    };
    let (filesystem, kernel) = (filesystem.trim(), kernel.trim());
    Ok(format!(
        "{kernel}, {cores} cores; plain filesystem: {filesystem}; medians of {ROUNDS} interleaved rounds; \
         writes end durable; reads {reads}; one thread."
    ))
}

fn write_between_markers(path: &str, text: &str) -> Outcome {
    let document = fs::read_to_string(path).map_err(|error| format!("{path}: {error}"))?;
    let parts = document
        .split_once(MARKERS.0)
        .and_then(|(head, rest)| Some((head, rest.split_once(MARKERS.1)?.1)));
    let Some((head, tail)) = parts else {
        return Err(format!("{path} has no '{}' … '{}'", MARKERS.0, MARKERS.1));
    };
    let document = format!("{head}{}\n{text}\n{}{tail}", MARKERS.0, MARKERS.1);
    fs::write(path, document).map_err(|error| format!("{path}: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_text_between_the_markers_changes() {
        let file = tempfile::NamedTempFile::new().unwrap();
        let path = file.path().to_str().unwrap();
        fs::write(path, format!("a\n{}old{}\nb\n", MARKERS.0, MARKERS.1)).unwrap();
        write_between_markers(path, "new").unwrap();
        assert_eq!(
            fs::read_to_string(path).unwrap(),
            format!("a\n{}\nnew\n{}\nb\n", MARKERS.0, MARKERS.1)
        );
        fs::write(path, "no markers").unwrap();
        assert!(write_between_markers(path, "new").is_err());
    }
}
