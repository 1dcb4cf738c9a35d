//! `cargo xtask test`: installs what is needed, runs every suite, and adds up what they say.
//!
//! A suite that fails does not stop the others. The last line is the sum of all of them.

use std::time::Instant;

use crate::process;
use crate::workspace::{EXTENSION, Workspace};
use crate::{Outcome, Tally, bank, extension, install, kill9, posix, tidy};

/// Kills in the test run; `cargo xtask kill9` does more.
const KILLS: u64 = 12;

/// Suites of `cargo xtask posix` that take part, quickly.
const POSIX_SUITES: [&str; 3] = [PJDFSTEST, "fsx", "durability"];

/// The one that only root can run: it acts as several users.
const PJDFSTEST: &str = "pjdfstest";

/// Ignored in the test run, since they take minutes; `cargo xtask test --long` runs them. By package and test, and those of
/// its tests whose names begin so: others that are ignored are servers.
const LONG_TESTS: [(&str, &str, &str); 4] = [
    ("larder", "history", ""),
    ("larder", "stress", ""),
    ("larder", "time", ""),
    ("larder-fuse", "mount", "times::"),
];

/// Runs the long tests; an error if anything failed.
pub fn run_long() -> Outcome {
    let mut sum = Tally::default();
    for (package, name, of_it) in LONG_TESTS {
        let command = ["test", "--release", "--package", package, "--test", name];
        let ignored = ["--", of_it, "--ignored"];
        sum.add(suite(name, || {
            cargo_test(&[&command[..], &ignored].concat())
        }));
    }
    end(sum)
}

/// Runs all suites; an error if anything failed.
pub fn run() -> Outcome {
    let started = Instant::now();
    install::run()?;
    let mut sum = Tally::default();
    sum.add(suite("tidy", || Tally::of(1, tidy::run())));
    sum.add(suite("format", || Tally::of(1, format())));
    sum.add(suite("lints", || Tally::of(1, lint())));
    sum.add(suite("tests", || {
        cargo_test(&["test", "--workspace", "--no-fail-fast"])
    }));
    sum.add(suite("extension", || match extension::prepare_test() {
        Ok(command) => {
            let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
            count_tests("env", &arguments)
        }
        Err(line) => Tally::of(1, Err(line)),
    }));
    sum.add(suite("kill -9", || kill9::count(KILLS)));
    sum.add(suite("bank", bank::count));
    for name in POSIX_SUITES {
        if name == PJDFSTEST && !rustix::process::geteuid().is_root() {
            println!("\n== {name}: not run, because it needs root");
            continue;
        }
        sum.add(suite(name, || posix::count(name, posix::Length::Quick)));
    }
    println!("\nall suites, {:.0} s:", started.elapsed().as_secs_f64());
    end(sum)
}

/// The path of the extension's manifest, wherever the caller is.
fn extension_manifest(workspace: &Workspace) -> String {
    workspace.root.join(EXTENSION).display().to_string()
}

/// Whether all is formatted, the extension too, which is a workspace of its own.
fn format() -> Outcome {
    process::run("cargo", &["fmt", "--all", "--check"])?;
    let manifest = extension_manifest(&Workspace::load()?);
    process::run("cargo", &["fmt", "--check", "--manifest-path", &manifest])
}

/// Clippy over the workspace, and over the extension.
fn lint() -> Outcome {
    let clippy = |whose: &[&str]| {
        let strict = ["--all-targets", "--", "-D", "warnings"];
        process::run("cargo", &[&["clippy", "--quiet"], whose, &strict].concat())
    };
    clippy(&["--workspace"])?;
    // Beside the workspace's own: what is the same is checked once.
    let workspace = Workspace::load()?;
    let (manifest, target) = (
        extension_manifest(&workspace),
        workspace.target.display().to_string(),
    );
    clippy(&["--manifest-path", &manifest, "--target-dir", &target])
}

fn end(sum: Tally) -> Outcome {
    println!("{} passed, {} failed", sum.passed, sum.failed);
    match sum.failed {
        0 => Ok(()),
        failed => Err(format!("{failed} failed")),
    }
}

fn suite(name: &str, run: impl FnOnce() -> Tally) -> Tally {
    println!("\n== {name}");
    let started = Instant::now();
    let tally = run();
    println!(
        "== {name}: {} passed, {} failed, {:.1} s",
        tally.passed,
        tally.failed,
        started.elapsed().as_secs_f64()
    );
    tally
}

/// Runs `cargo test`, shows its output as it comes, and adds up its results.
fn cargo_test(arguments: &[&str]) -> Tally {
    count_tests("cargo", arguments)
}

/// The same by any program that runs it.
fn count_tests(program: &str, arguments: &[&str]) -> Tally {
    let mut tally = Tally::default();
    let mut on_line = |line: &str| {
        println!("{line}");
        tally.add(find_result(line).unwrap_or_default());
    };
    let success = process::run_streaming(program, arguments, &mut on_line);
    // What does not compile prints no result, and must not pass for that.
    if tally.failed == 0 && success != Ok(true) {
        println!(
            "failed: {}",
            success
                .err()
                .unwrap_or("cargo test did not end well".to_owned())
        );
        tally.failed += 1;
    }
    tally
}

/// What a line like `test result: ok. 14 passed; 0 failed; …` counts.
fn find_result(line: &str) -> Option<Tally> {
    let counts = line.strip_prefix("test result: ")?.split_once(". ")?.1;
    let count = |what: &str| {
        counts
            .split("; ")
            .find_map(|part| part.strip_suffix(what)?.trim().parse().ok())
    };
    Some(Tally {
        passed: count("passed")?,
        failed: count("failed")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn results_are_read_and_added() {
        let line = "test result: FAILED. 14 passed; 2 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.60s";
        assert_eq!(
            find_result(line),
            Some(Tally {
                passed: 14,
                failed: 2
            })
        );
        assert_eq!(find_result("test result_is_ok ... ok"), None);
        assert_eq!(find_result("running 2 tests"), None);
    }

    #[test]
    fn what_does_not_even_run_counts_as_a_failure() {
        assert_eq!(
            cargo_test(&["no-such-subcommand-of-cargo"]),
            Tally {
                passed: 0,
                failed: 1
            }
        );
        assert_eq!(
            Tally::of(1, Err("line".to_owned())),
            Tally {
                passed: 0,
                failed: 1
            }
        );
    }
}
