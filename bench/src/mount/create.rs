//! New files of 10 KB: written and closed, and written, made durable and closed.

use super::bench::{Bench, figures};
use crate::load::{Ending, Load};
use crate::places::{FLOOR, JUICEFS, PLAIN, Place, close};
use crate::report::{Goal, Report};
use xtask::Outcome;

const FILE_BYTES: usize = 10_000;
/// How many times fewer files JuiceFS gets: it would take most of the time.
const JUICEFS_SHARE: usize = 10;

/// Create, write, close.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let at = bench.setting.directory()?;
    let mut places = bench.places_and_floor(at.path(), bench.grown_bytes())?;
    if let Some(program) = bench.juicefs() {
        places.push(Place::juicefs(&program, at.path())?);
    }
    if bench.juicefs().is_none() {
        report.note(
            "JuiceFS was not measured: `--juicefs PATH` names its command, and \
             docs/performance.md says how it is built.",
        );
    }
    let files = bench.options().choose(3000, 6000, 10_000);
    report.note(&format!(
        "**Create, write 10 KB, close**: about {files} files per turn, one {JUICEFS_SHARE}th of \
         them on {JUICEFS}; each \
         thread has a directory of its own.",
    ));
    let mut figures = figures("files/s", &places);
    for (threads, target) in [(1, 0.4), (4, 0.6), (32, 0.6)] {
        let goals = [
            (PLAIN, Goal::AtLeast(target)),
            (FLOOR, Goal::AtLeast(0.6)),
            (JUICEFS, Goal::AtLeast(10.0)),
        ];
        let line = figures.line(&format!("create 10 KB, {}", many(threads)), &goals);
        bench.alternate(&mut places, |index, place, round| {
            let files = match place.name {
                JUICEFS => files / JUICEFS_SHARE,
                _ => files,
            };
            let root = place.path(&format!("{threads}-{round}"));
            let mut load = Load::new(FILE_BYTES, files, threads);
            load.make_directories(&root)?;
            place.settle()?;
            let turn = place.measure(|| {
                load.write(&root, Ending::Close)?;
                Ok(load.files())
            })?;
            figures.add(line, index, turn);
            place.remove(&root)
        })?;
    }
    figures.print(report);
    close(places)
}

/// Create, write, fsync, close.
pub fn run_synced(bench: &Bench, report: &mut Report) -> Outcome {
    let at = bench.setting.directory()?;
    let mut places = bench.places(at.path(), bench.grown_bytes())?;
    let files = bench.options().choose(200, 400, 500);
    report.note(&format!(
        "**Create, write 10 KB, fsync, close**: about {files} files per turn, four times as many \
         with 32 threads; each \
         thread has a directory of its own.",
    ));
    let mut figures = figures("files/s", &places);
    for (threads, files, target) in [(1, files, 0.8), (32, 4 * files, 2.0)] {
        let what = format!("create and fsync 10 KB, {}", many(threads));
        let line = figures.line(&what, &[(PLAIN, Goal::AtLeast(target))]);
        bench.alternate(&mut places, |index, place, round| {
            let root = place.path(&format!("{threads}-{round}"));
            let mut load = Load::new(FILE_BYTES, files, threads);
            load.make_directories(&root)?;
            place.settle()?;
            let turn = place.measure(|| {
                load.write(&root, Ending::Sync)?;
                Ok(load.files())
            })?;
            figures.add(line, index, turn);
            place.remove(&root)
        })?;
    }
    figures.print(report);
    close(places)
}

fn many(threads: usize) -> String {
    match threads {
        1 => "1 thread".to_owned(),
        _ => format!("{threads} threads"),
    }
}
