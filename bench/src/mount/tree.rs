//! A directory of many small files: looked at, listed, searched, removed.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};
use std::thread;

use super::bench::{Bench, figures};
use crate::places::{PLAIN, Place, close};
use crate::report::{Goal, Report};
use xtask::Outcome;

const FILE_BYTES: usize = 1000;
const WRITERS: usize = 4;
/// Names that are looked at again and again.
const STAT_NAMES: usize = 10_000;
const STAT_PASSES: usize = 5;

/// Measures.
pub fn run(bench: &Bench, report: &mut Report) -> Outcome {
    let at = bench.setting.directory()?;
    let mut places = bench.places(at.path(), bench.grown_bytes())?;
    let files = bench.options().choose(20_000, 50_000, 100_000);
    report.note(&format!(
        "**A directory of {files} files** of 1 KB: `ls -l` and `find -type f` first with Larder \
         mounted anew and all caches \
         dropped, then again; `lstat` of {STAT_NAMES} names that were looked at just before; `rm \
         -rf`.",
    ));
    let mut figures = figures("files/s", &places);
    let mut line = |what: &str, target| figures.line(what, &[(PLAIN, Goal::AtLeast(target))]);
    let stat = line("stat of cached names", 0.9);
    let first_list = line("`ls -l`, cold", 0.3);
    let list = line("`ls -l`, again", 0.3);
    let first_find = line("`find`, cold", 0.5);
    let find = line("`find`, again", 0.5);
    let remove = line("`rm -rf`", 0.5);
    bench.alternate(&mut places, |index, place, round| {
        let root = place.path(&format!("tree-{round}"));
        populate(&root, files)?;
        place.settle()?;
        let directory = root.to_string_lossy().into_owned();
        let mut timed = |line: usize, place: &Place, program: &str, arguments: &[&str]| {
            let turn = place.measure(|| {
                run_silently(program, arguments)?;
                Ok(files as u64)
            })?;
            figures.add(line, index, turn);
            Ok::<(), String>(())
        };
        let ls = ["-l", &directory];
        let find_files = [&directory, "-type", "f"];
        place.mount_anew()?;
        bench.setting.cool()?;
        timed(first_find, place, "find", &find_files)?;
        timed(find, place, "find", &find_files)?;
        place.mount_anew()?;
        bench.setting.cool()?;
        timed(first_list, place, "ls", &ls)?;
        timed(list, place, "ls", &ls)?;
        stat_all(&root)?;
        let turn = place.measure(|| {
            for _ in 0..STAT_PASSES {
                stat_all(&root)?;
            }
            Ok((STAT_NAMES * STAT_PASSES) as u64)
        })?;
        figures.add(stat, index, turn);
        let turn = place.measure(|| {
            run_silently("rm", &["-rf", &directory])?;
            Ok(files as u64)
        })?;
        figures.add(remove, index, turn);
        Ok(())
    })?;
    figures.print(report);
    close(places)
}

/// Writes the files, by several threads.
fn populate(root: &Path, files: usize) -> Outcome {
    fs::create_dir(root).map_err(|error| format!("{}: {error}", root.display()))?;
    let content = [7; FILE_BYTES];
    let some = |writer: usize| {
        (writer..files).step_by(WRITERS).try_for_each(|index| {
            let path = root.join(format!("file-{index:06}"));
            fs::write(&path, content).map_err(|error| format!("{}: {error}", path.display()))
        })
    };
    let some = &some;
    thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| scope.spawn(move || some(writer)))
            .collect();
        writers.into_iter().try_for_each(|writer| {
            writer
                .join()
                .unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        })
    })
}

fn stat_all(root: &Path) -> Outcome {
    for index in 0..STAT_NAMES {
        let path = root.join(format!("file-{index:06}"));
        fs::symlink_metadata(&path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(())
}

/// Its output goes nowhere, in plain byte order.
fn run_silently(program: &str, arguments: &[&str]) -> Outcome {
    let status = Command::new(program)
        .args(arguments)
        .env("LC_ALL", "C")
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .status()
        .map_err(|error| format!("'{program}' does not run: {error}"))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("'{program} {}' failed", arguments.join(" "))),
    }
}
