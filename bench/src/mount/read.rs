//! Files of 10 KB opened, read and closed: by a mount that has not seen them, again, and from the
//! device.

use std::path::Path;

use super::bench::{Bench, figures};
use crate::load::{Ending, Load};
use crate::places::{FLOOR, PLAIN, close};
use crate::report::{Goal, Report};
use xtask::Outcome;

const FILE_BYTES: usize = 10_000;
/// How often the files are read again.
const PASSES: u64 = 3;

/// Measures.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let at = bench.setting.directory()?;
    let mut places = bench.places_and_floor(at.path(), bench.grown_bytes())?;
    let files = bench.options().choose(2000, 3000, 4000);
    report.note(&format!(
        "**Open, read 10 KB, close**: {files} files in the order in which they were written. \
         First read: Larder was \
         unmounted and mounted, the host's caches are as they were; the floor has its kernel's \
         caches dropped. Again: \
         {PASSES} times more. Cold: all caches dropped besides.",
    ));
    let mut figures = figures("files/s", &places);
    for threads in [1, 4] {
        let many = match threads {
            1 => "1 thread".to_owned(),
            _ => format!("{threads} threads"),
        };
        let first = figures.line(
            &format!("first read after mounting, {many}"),
            &[(FLOOR, Goal::AtLeast(0.7))],
        );
        let again = figures.line(
            &format!("read again, {many}"),
            &[(FLOOR, Goal::AtLeast(0.95))],
        );
        let cold = figures.line(&format!("cold, {many}"), &[]);
        bench.alternate(&mut places, |index, place, round| {
            let root = place.path(&format!("{threads}-{round}"));
            let mut load = Load::new(FILE_BYTES, files, threads);
            load.make_directories(&root)?;
            load.write(&root, Ending::Close)?;
            place.settle()?;
            if place.name != PLAIN {
                match place.is_larder() {
                    true => place.mount_anew()?,
                    false => bench.setting.cool()?,
                }
                let turn = place.measure(|| read(&mut load, &root, 1))?;
                figures.add(first, index, turn);
            }
            let turn = place.measure(|| read(&mut load, &root, PASSES))?;
            figures.add(again, index, turn);
            if !place.is_floor() {
                place.mount_anew()?;
                bench.setting.cool()?;
                let turn = place.measure(|| read(&mut load, &root, 1))?;
                figures.add(cold, index, turn);
            }
            place.remove(&root)
        })?;
    }
    figures.print(report);
    close(places)
}

fn read(load: &mut Load, root: &Path, passes: u64) -> Result<u64, String> {
    for _ in 0..passes {
        load.read(root)?;
    }
    Ok(passes * load.files())
}
