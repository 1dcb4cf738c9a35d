//! Large files written and read whole, beside what `fio` gets from the device through a FUSE
//! filesystem that does nothing but pass on.

use super::bench::{Bench, figures};
use crate::figures::Turn;
use crate::fio::{self, Fio};
use crate::load::{Ending, Load};
use crate::places::{Place, close};
use crate::report::{Goal, Report};
use crate::setting::alternate;
use xtask::Outcome;

/// Length of a file, by how many threads at once, what the ratio should be.
const SIZES: [(&str, usize, &[usize], f64); 4] = [
    ("1 MB", 1_000_000, &[1, 4, 32], 0.92),
    ("10 MB", 10_000_000, &[1, 4, 32], 0.97),
    ("100 MB", 100_000_000, &[1, 4, 32], 0.97),
    ("1 GB", 1_000_000_000, &[1, 4], 0.97),
];
const LIMIT: &str = "limit";
const FIO_BYTES: u64 = 512 << 20;

/// Measures.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let at = bench.setting.directory()?;
    let total = bench
        .options()
        .choose(100_000_000, 500_000_000, 1_000_000_000);
    let total_max = bench
        .options()
        .choose(400_000_000, 1_000_000_000, 4_000_000_000);
    let grown_bytes = 2 * total_max as u64;
    let mut places = vec![Place::larder(&bench.larder, at.path(), grown_bytes)?];
    if bench.options().is_stub {
        places.push(Place::floor(at.path())?);
    }
    bench.add_rings(&mut places, at.path(), grown_bytes)?;
    let limit = Place::passthrough(at.path())?;
    let passes_on = limit.passes_on()?;
    let fio_bytes = FIO_BYTES.min(total as u64);
    let fio = Fio::create(&limit.root, fio_bytes, &fio::FUSE_WAYS)?;
    let mut table = figures("MB/s", &places);
    table.beside(LIMIT);
    let mut ways = Vec::new();
    for (name, bytes, threads, target) in SIZES {
        let threads = threads
            .iter()
            .filter(|threads| **threads * bytes <= total_max);
        let mut lines = Vec::new();
        for &threads in threads {
            let mut line = |what| {
                let what = format!("{what} {name} ×{threads}");
                table.line(&what, &[(LIMIT, Goal::AtLeast(target))])
            };
            lines.push((threads, line("write"), line("read")));
        }
        if lines.is_empty() {
            continue;
        }
        let mut limits = fio.no_rates();
        let turns = lines.len() * places.len();
        alternate(bench.rounds, turns + 1, |round, turn| {
            if turn == turns {
                fio.measure(true, &mut limits[0])?;
                return fio.measure(false, &mut limits[1]);
            }
            let (threads, write, read) = lines[turn % lines.len()];
            let index = turn / lines.len();
            let place = &mut places[index];
            let root = place.path(&format!("{bytes}-{threads}-{round}"));
            let mut load = Load::new(bytes, (total / bytes).max(threads), threads);
            load.make_directories(&root)?;
            place.settle()?;
            let turn = place.measure(|| {
                load.write(&root, Ending::Close)?;
                place.settle()?;
                Ok(load.bytes() / 1_000_000)
            })?;
            table.add(write, index, turn);
            place.mount_anew()?;
            bench.setting.cool()?;
            let turn = place.measure(|| {
                load.read(&root)?;
                Ok(load.bytes() / 1_000_000)
            })?;
            table.add(read, index, turn);
            place.remove(&root)
        })?;
        let best = limits.map(|rates| fio::best(&rates));
        for (_, write, read) in lines {
            for (line, (_, samples)) in [write, read].into_iter().zip(&best) {
                for rate in &samples.0 {
                    table.add(line, places.len(), Turn::of_rate(*rate));
                }
            }
        }
        ways.push(format!("{name}: {} and {}", best[0].0, best[1].0));
        eprintln!("bench mount: {name} done");
    }
    report.note(&format!(
        "**Large files**, created, written in calls of 1 MiB, closed, and all made durable; then \
         read in calls of 1 MiB with \
         Larder mounted anew and all caches dropped. About {} MB per turn, or one file per \
         thread; each thread has a \
         directory of its own; ×N: N threads. An operation is a megabyte. {LIMIT}: `fio` on a \
         FUSE filesystem that only passes on: {passes_on}; direct, sequential, libaio, \
         {} MB, bs=1M, iodepth 1 and 4, in turns with the others; the best over all rounds, for \
         writing and for \
         reading, was {}.",
        total / 1_000_000,
        fio_bytes / 1_000_000,
        ways.join("; "),
    ));
    table.print(report);
    close(places)?;
    limit.close()
}
