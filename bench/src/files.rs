//! `bench` without a verb: files of four sizes written and read through the API, through the mount,
//! and on the plain filesystem of the same disk.
//!
//! The three sides take turns, in another order each round, so that what the machine does meanwhile
//! meets all of them. A write phase ends when everything is durable, on every side. Reads are cold
//! where this process may drop caches (root). Medians over the rounds.

use larder::AlignedBuf;
use std::time::Duration;

use super::content;
use super::files_table::{self, Cell, Row};
use super::report::Report;
use super::setting::{Setting, alternate, timed};
use super::sides::{Api, Host, Mounted, Side};
use xtask::Outcome;
use xtask::mounts::{Larder, Profile};

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

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let larder = Larder::build(Profile::Release)?;
    let place = setting.directory()?;
    let at = |name: &str| place.path().join(name);
    // Buffers of the largest files, there and back.
    setting.watch_memory(200_000_000)?;
    let mut sides: [Box<dyn Side>; 3] = [
        Box::new(Api::create(&at("api.larder"), None)?),
        Box::new(Mounted::create(
            &larder,
            &at("mount.larder"),
            &at("mount"),
            None,
        )?),
        Box::new(Host::create(&at("plain"))?),
    ];
    let rounds = setting.options.rounds.unwrap_or(ROUNDS);
    let mut rows = Vec::new();
    for load in LOADS {
        let count = load.file_count / if setting.options.is_quick { 2 } else { 1 };
        let mut times: [Vec<(Duration, Duration)>; 3] = Default::default();
        let mut buffer = content::noise(1, load.file_bytes);
        let mut back = AlignedBuf::zeroed(load.file_bytes + 1);
        alternate(rounds, sides.len(), |round, index| {
            let side = &mut sides[index];
            let directory = format!("/{}-{round}", load.file_bytes);
            side.make_directory(&directory)?;
            let write = timed(|| write(&**side, &directory, count, &mut buffer))?;
            side.forget()?;
            setting.cool()?;
            let read = timed(|| read(&**side, &directory, count, load.file_bytes, &mut back))?;
            side.remove_directory(&directory)?;
            times[index].push((write, read));
            Ok(())
        })?;
        eprintln!("bench: {} done", load.name);
        let cells = |pick: fn(&(Duration, Duration)) -> Duration| {
            times.each_ref().map(|times| Cell {
                duration: median(times.iter().map(pick).collect()),
                files: count,
                bytes: (load.file_bytes * count) as u64,
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
    let description = format!(
        "{} Medians of {rounds} interleaved rounds; writes end durable; one thread.",
        setting.machine()?
    );
    let mut report = Report::new("files", &files_table::render(&rows, &description));
    setting.report_memory(&mut report)?;
    Ok(report)
}

fn write(side: &dyn Side, directory: &str, count: usize, buffer: &mut [u8]) -> Outcome {
    for index in 0..count {
        content::stamp(buffer, index as u64, 0);
        side.put(&format!("{directory}/{index}"), buffer)?;
    }
    side.sync()
}

fn read(
    side: &dyn Side,
    directory: &str,
    count: usize,
    file_bytes: usize,
    back: &mut AlignedBuf,
) -> Outcome {
    for index in 0..count {
        let len = side.get(&format!("{directory}/{index}"), back)?;
        content::verify(&back[..len], index as u64, 0, file_bytes)?;
    }
    Ok(())
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}
