//! `cargo xtask crash SEED`: replays crashes of recorded runs, as many as wanted.
//!
//! Each seed is a run of its own, recorded and replayed by the test `crash` of the crate `larder`
//! in release mode, with and without commits in the background. Several seeds run side by side, one
//! process per core.

use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Instant;

use xtask::Outcome;
use xtask::process;

/// Crash points per seed and mode, unless `--points` says another number.
const POINTS: u64 = 2000;

/// Reads `SEED [--points N] [--total T]` and runs.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let number = |value: &str| {
        value
            .parse::<u64>()
            .map_err(|_| format!("'{value}' is no number"))
    };
    match arguments {
        [seed] => replay(number(seed)?, POINTS, 2 * POINTS),
        [seed, "--points", points] => replay(number(seed)?, number(points)?, 0),
        [seed, "--total", total] => replay(number(seed)?, POINTS, number(total)?),
        [seed, "--points", points, "--total", total] => {
            replay(number(seed)?, number(points)?, number(total)?)
        }
        _ => Err("usage: cargo xtask crash SEED [--points N] [--total T]".into()),
    }
}

/// Replays `2 * points` crashes of the run of `first`, and of the seeds after it until there are
/// `total` in all.
fn replay(first: u64, points: u64, total: u64) -> Outcome {
    let binary = build()?;
    let per_seed = 2 * points;
    let end = first + total.div_ceil(per_seed).max(1);
    let (next, done) = (AtomicU64::new(first), AtomicU64::new(0));
    let (has_failed, print) = (AtomicBool::new(false), Mutex::new(()));
    let started = Instant::now();
    let work = || {
        loop {
            let seed = next.fetch_add(1, Ordering::Relaxed);
            if seed >= end || has_failed.load(Ordering::Relaxed) {
                return;
            }
            let settings = [
                format!("LARDER_CRASH_SEED={seed}"),
                format!("LARDER_CRASH_POINTS={points}"),
                "LARDER_CRASH_THREADS=1".to_owned(),
            ];
            let settings = settings.each_ref().map(String::as_str);
            let test = [
                &binary,
                "replay::every_crash",
                "--test-threads=1",
                "--nocapture",
            ];
            let outcome = process::output("env", &[&settings[..], &test].concat());
            let _one_at_a_time = print.lock();
            match outcome {
                Ok(_) => {
                    let done = done.fetch_add(per_seed, Ordering::Relaxed) + per_seed;
                    let seconds = started.elapsed().as_secs();
                    println!("seed {seed}: nothing found; {done} crash points in {seconds} s");
                }
                Err(report) => {
                    println!("seed {seed}: {report}");
                    has_failed.store(true, Ordering::Relaxed);
                }
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(1, |cores| cores.get()) {
            scope.spawn(work);
        }
    });
    match has_failed.into_inner() {
        true => Err("a crash leaves something wrong; see above".into()),
        false => Ok(()),
    }
}

/// Builds the test and says where it is.
fn build() -> Result<String, String> {
    println!("crash: building the test with optimisation");
    let messages = process::output(
        "cargo",
        &[
            "test",
            "--quiet",
            "--release",
            "--no-run",
            "--package",
            "larder",
            "--test",
            "crash",
            "--message-format=json",
        ],
    )?;
    let find = |line: &str| {
        let message: serde_json::Value = serde_json::from_str(line).ok()?;
        let is_test = message["target"]["name"] == "crash";
        message["executable"]
            .as_str()
            .filter(|_| is_test)
            .map(str::to_owned)
    };
    messages
        .lines()
        .find_map(find)
        .ok_or_else(|| "cargo does not say where it put the test".into())
}
