//! `bench dbfs`: the table of \[DBFS\]: files from 10 KB to 1 GB, written, read and removed by many
//! threads, on the mount, on the plain filesystem of the same disk, and beside what `fio` gets from
//! the device.
//!
//! The paper's servers had 8 cores, and 24–128 threads for files up to 1 MB, fewer for larger ones.
//! Here the threads are as many per core. Its steady state, write all, read all, remove all, again
//! for 12 hours, is the rounds here; how the last ones differ from the first ones is said beside.

use super::figures::{Figures, Turn};
use super::fio::{self, Fio};
use super::load::{Ending, Load};
use super::places::{Place, close};
use super::report::{Goal, Report, Samples};
use super::setting::{Setting, alternate};
use xtask::mounts::{Larder, Profile};

const ROUNDS: usize = 6;
const LIMIT: &str = "limit";
const PAPER_CORES: usize = 8;

/// A size of files, and the paper's fewest and most threads.
struct Size {
    name: &'static str,
    bytes: usize,
    threads: [usize; 2],
    /// What \[DBFS\] reached of its device's limit, writing and reading.
    paper: [f64; 2],
}

const SIZES: [Size; 6] = [
    size("10 KB", 10_000, [32, 128], [0.060, 0.096]),
    size("100 KB", 100_000, [32, 128], [0.346, 0.454]),
    size("1 MB", 1_000_000, [24, 96], [0.920, 0.932]),
    size("10 MB", 10_000_000, [12, 48], [0.97, 0.97]),
    size("100 MB", 100_000_000, [8, 32], [0.962, 0.962]),
    size("1 GB", 1_000_000_000, [4, 16], [0.97, 0.97]),
];

const fn size(name: &'static str, bytes: usize, threads: [usize; 2], paper: [f64; 2]) -> Size {
    Size {
        name,
        bytes,
        threads,
        paper,
    }
}

/// Measures.
pub fn run(setting: &mut Setting) -> Result<Report, String> {
    let options = setting.options.clone();
    let rounds = options.rounds.unwrap_or(options.choose(3, ROUNDS, ROUNDS));
    let total = options.choose(100_000_000, 250_000_000, 500_000_000);
    let files_max = options.choose(2000, 5000, 10_000);
    let total_max = options.choose(400_000_000, 1_000_000_000, 4_000_000_000);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    let larder = Larder::build(Profile::Release)?;
    let at = setting.directory()?;
    let grown_bytes = 2 * total_max as u64;
    let mut places = vec![
        Place::larder(&larder, at.path(), grown_bytes)?,
        Place::plain(at.path())?,
    ];
    let fio = Fio::create(at.path(), total as u64, &fio::FUSE_WAYS)?;
    let mut figures = Figures::new("MB/s", places.iter().map(|place| place.name).collect());
    figures.beside(LIMIT);
    let mut steady = Vec::new();
    for size in &SIZES {
        let scaled = size
            .threads
            .map(|threads| (threads * cores / PAPER_CORES).max(1));
        let mut lines: Vec<(usize, [usize; 3])> = Vec::new();
        for threads in scaled {
            if threads * size.bytes > total_max || lines.iter().any(|(other, ..)| *other == threads)
            {
                continue;
            }
            let mut line = |what: &str, goals: &[(&'static str, Goal)]| {
                figures.line(&format!("{what} {} ×{threads}", size.name), goals)
            };
            let write = line("write", &[(LIMIT, Goal::AtLeast(size.paper[0]))]);
            let read = line("read", &[(LIMIT, Goal::AtLeast(size.paper[1]))]);
            lines.push((threads, [write, read, line("remove", &[])]));
        }
        if lines.is_empty() {
            continue;
        }
        let mut limits = fio.no_rates();
        let turns = lines.len() * places.len();
        alternate(rounds, turns + 1, |round, turn| {
            if turn == turns {
                fio.measure(true, &mut limits[0])?;
                return fio.measure(false, &mut limits[1]);
            }
            let (threads, lines) = lines[turn % lines.len()];
            let index = turn / (turns / places.len());
            let files = (total / size.bytes).min(files_max).max(threads);
            let mut load = Load::new(size.bytes, files, threads);
            let root = format!("{}-{threads}-{round}", size.bytes);
            let turns = cycle(setting, &mut places[index], &root, &mut load)?;
            for (line, turn) in lines.into_iter().zip(turns) {
                figures.add(line, index, turn);
            }
            Ok(())
        })?;
        let best = limits.map(|rates| fio::best(&rates).1);
        for (_, [write, read, _]) in &lines {
            for (line, samples) in [write, read].into_iter().zip(&best) {
                for rate in &samples.0 {
                    figures.add(*line, places.len(), Turn::of_rate(*rate));
                }
            }
        }
        if let Some((threads, [write, read, remove])) = lines.last() {
            let mut row = vec![format!("{} ×{threads}", size.name)];
            for line in [write, read, remove] {
                for place in 0..places.len() {
                    row.push(format!(
                        "{:.2}",
                        last_over_first(&figures.rates(*line, place))
                    ));
                }
            }
            steady.push(row);
        }
        eprintln!("bench dbfs: {} done", size.name);
    }
    let mut report = Report::new(
        "dbfs",
        &format!(
            "{} {rounds} rounds, in turns: write all, read all, remove all; every phase ends \
             durable, reads are cold (Larder \
             mounted anew). About {} MB per turn, but at most {files_max} files and at least one \
             per thread. ×N: N threads, the \
             paper's fewest and most per core; each has a directory of its own. An operation is a \
             megabyte. {LIMIT}: `fio`, \
             direct, sequential, libaio, {} MB, bs=1M, iodepth 1 and 4, the best over all rounds \
             of a size. Targets: the \
             part of its device's 1 GB/s that the paper's server reached.",
            setting.machine()?,
            total / 1_000_000,
            total / 1_000_000,
        ),
    );
    figures.print(&mut report);
    report.note(
        "Steady state: the last third of the rounds ÷ the first third (the paper: \
        0.907–0.982 after 12 hours).",
    );
    let mut header = vec!["most threads".to_owned()];
    for what in ["write", "read", "remove"] {
        header.extend(places.iter().map(|place| format!("{what}, {}", place.name)));
    }
    report.table(&header, &steady);
    close(places)?;
    Ok(report)
}

/// Writes, reads and removes all files of a load.
fn cycle(
    setting: &Setting,
    place: &mut Place,
    root: &str,
    load: &mut Load,
) -> Result<[Turn; 3], String> {
    let root = place.path(root);
    let megabytes = load.bytes() / 1_000_000;
    load.make_directories(&root)?;
    place.settle()?;
    let write = place.measure(|| {
        load.write(&root, Ending::Close)?;
        place.settle()?;
        Ok(megabytes)
    })?;
    place.mount_anew()?;
    setting.cool()?;
    let read = place.measure(|| load.read(&root).map(|()| megabytes))?;
    let remove = place.measure(|| place.remove(&root).map(|()| megabytes))?;
    Ok([write, read, remove])
}

/// How the rates of the last third of the rounds stand to those of the first.
fn last_over_first(rates: &Samples) -> f64 {
    let third = rates.0.len().div_ceil(3);
    let part = |rates: &[f64]| Samples(rates.to_vec()).median();
    part(&rates.0[rates.0.len() - third..]) / part(&rates.0[..third])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn decay_is_seen_over_the_thirds() {
        let rates = Samples(vec![100.0, 100.0, 70.0, 1.0, 90.0, 90.0]);
        assert_eq!(last_over_first(&rates), 0.9);
        assert_eq!(last_over_first(&Samples(vec![5.0])), 1.0);
    }
}
