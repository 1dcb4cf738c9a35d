//! stress-ng: every stressor of its classes for files and I/O, verifying, on the mount and on ext4.

use std::process::Command;
use std::time::Duration;

use super::judge::{Verdict, Verdicts, judge};
use super::run;
use super::site::Site;
use xtask::Tally;
use xtask::process;

const PATIENCE: Duration = Duration::from_secs(90);

/// stress-ng's own word for what cannot run here, by exit code: no resource, not implemented.
const NOT_RUN: [i32; 2] = [3, 4];

/// Runs them one by one.
pub fn run(site: &Site) -> Result<Tally, String> {
    let stressors = stressors()?;
    let mount = site.mount()?;
    let ours = verdicts(site, &stressors, &site.mountpoint());
    let ext4 = site.ext4()?;
    let theirs = verdicts(site, &stressors, ext4.path());
    let mut tally = judge(&ours, &theirs);
    site.finish(mount)?;
    tally.passed += 1;
    Ok(tally)
}

/// Reads the block device below a filesystem, and a mount has none.
const NO_FILES: &str = "rawdev";

/// Their names.
fn stressors() -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for class in ["filesystem?", "io?"] {
        let text = process::output("stress-ng", &["--class", class])?;
        let list = text
            .split_once("stressors: ")
            .ok_or_else(|| format!("stress-ng lists nothing for '{class}': {text}"))?;
        names.extend(list.1.split_whitespace().map(str::to_owned));
    }
    names.sort();
    names.dedup();
    names.retain(|name| name != NO_FILES);
    Ok(names)
}

fn verdicts(site: &Site, stressors: &[String], directory: &std::path::Path) -> Verdicts {
    let seconds = site.length.choose("1", "2");
    let verdict = |name: &String| {
        let mut command = Command::new("stress-ng");
        command
            .args([&format!("--{name}"), "2", "--timeout", seconds, "--verify"])
            .arg("--temp-path")
            .arg(directory);
        match run::finish(&mut command, PATIENCE) {
            Err(line) => Verdict::Failed(line),
            Ok(finished) => match finished.status.code() {
                Some(0) => Verdict::Passed,
                Some(code) if NOT_RUN.contains(&code) => Verdict::Skipped,
                _ => Verdict::Failed(format!("{}:\n{}", finished.status, finished.tail(12))),
            },
        }
    };
    stressors
        .iter()
        .map(|name| (name.clone(), verdict(name)))
        .collect()
}
