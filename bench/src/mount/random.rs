//! Small writes at random places of one file, each made durable: what `fio` reaches.

use super::bench::{Bench, figures};
use crate::figures::Turn;
use crate::fio;
use crate::places::{PLAIN, close};
use crate::report::{Goal, Report};
use xtask::Outcome;

const FILE_BYTES: u64 = 256 << 20;

/// Measures.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    fio::check_installed()?;
    let at = bench.setting.directory()?;
    let mut places = bench.places(at.path(), bench.grown_bytes())?;
    let seconds = bench.options().choose(1, 3, 4);
    report.note(&format!(
        "**4 KiB random writes with fsync**: `fio`, psync, one job, one file of {} MiB that was \
         written before, {seconds} s \
         per turn.",
        FILE_BYTES >> 20
    ));
    for place in &places {
        fio::write_file(&place.path("random"), FILE_BYTES)?;
        place.settle()?;
    }
    let mut figures = figures("writes/s", &places);
    let line = figures.line(
        "write 4 KiB at random, fsync",
        &[(PLAIN, Goal::AtLeast(0.7))],
    );
    bench.alternate(&mut places, |index, place, round| {
        let mut rate = 0.0;
        let turn = place.measure(|| {
            rate = fio::random_synced_writes(&place.path("random"), FILE_BYTES, seconds, round)?;
            Ok((rate * f64::from(seconds)) as u64)
        })?;
        // Not the time that fio takes to start.
        figures.add(line, index, Turn { rate, ..turn });
        Ok(())
    })?;
    figures.print(report);
    close(places)
}
