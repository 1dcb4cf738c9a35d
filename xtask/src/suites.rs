//! `cargo xtask test`: installs what is needed, runs every suite, and adds up what they say.
//!
//! A suite that fails does not stop the others. The last line is the sum of all of them.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::sync::{Mutex, PoisonError};
use std::time::Instant;

use crate::{extension, programs, tidy};
use xtask::process;
use xtask::workspace::{EXTENSION, Workspace};
use xtask::{Outcome, Tally, install};

/// Set when this program runs in a mount namespace of its own.
const NAMESPACE: &str = "LARDER_XTASK_NAMESPACE";
/// Kills of one of two mounts in the test run; `cargo xtask kills` does more.
const KILLS_OF_TWO: &str = "6";
/// Kills in the test run; `cargo xtask kill9` does more.
const KILLS: &str = "6";

/// Seconds of the bank in the test run; `cargo xtask bank` does more.
const BANK_SECONDS: &str = "12";

/// Suites of `cargo xtask posix` that take part, quickly.
const POSIX_SUITES: [&str; 3] = [PJDFSTEST, "fsx", "durability"];

/// The one that only root can run: it acts as several users.
const PJDFSTEST: &str = "pjdfstest";

/// What the reason of an ignored test says that takes minutes.
const LONG_COMMAND: &str = "cargo xtask soak";

/// A test target with long tests.
#[derive(Debug, PartialEq, Eq)]
struct LongTarget {
    package: String,
    /// The name of the target.
    name: String,
    /// The functions that take long.
    tests: Vec<String>,
}

/// Runs the tests that are ignored with [`LONG_COMMAND`] as the reason; an error if anything
/// failed.
pub fn run_long() -> Outcome {
    let mut sum = Tally::default();
    for target in find_long_targets(&Workspace::load()?)? {
        sum.add(suite(&target.name, || run_long_target(&target)));
    }
    sum.end()
}

fn run_long_target(target: &LongTarget) -> Tally {
    let (package, name) = (target.package.as_str(), target.name.as_str());
    let mut command = vec!["test", "--release", "--package", package, "--test", name];
    // By name, since other ignored tests are measurements, or parts of tests.
    command.extend(["--", "--ignored"]);
    command.extend(target.tests.iter().map(String::as_str));
    let mut tally = cargo_test(&command);
    // A filter that meets nothing passes.
    if tally.failed == 0 && (tally.passed as usize) < target.tests.len() {
        let (passed, expected) = (tally.passed, target.tests.len());
        println!("failed: only {passed} of {expected} long tests of {name} were run");
        tally.failed += 1;
    }
    tally
}

/// All targets with long tests, by package and name.
fn find_long_targets(workspace: &Workspace) -> Result<Vec<LongTarget>, String> {
    let mut targets: Vec<LongTarget> = Vec::new();
    for package in &workspace.packages {
        let tests = format!("{}/tests/", workspace.relative(&package.directory));
        for source in workspace.sources(package)? {
            let Some(path) = source.path.strip_prefix(&tests) else {
                continue;
            };
            let long = find_long_tests(&source.text);
            if long.is_empty() {
                continue;
            }
            // `time.rs`, `time/world.rs` and `mount/main.rs` alike.
            let name = path.split('/').next().unwrap_or(path);
            let name = name.strip_suffix(".rs").unwrap_or(name);
            let is_same = |target: &&mut LongTarget| {
                (target.package.as_str(), target.name.as_str()) == (package.name.as_str(), name)
            };
            match targets.iter_mut().find(is_same) {
                Some(target) => target.tests.extend(long),
                None => targets.push(LongTarget {
                    package: package.name.clone(),
                    name: name.to_owned(),
                    tests: long,
                }),
            }
        }
    }
    Ok(targets)
}

/// The functions in `text` that are ignored with [`LONG_COMMAND`] as the reason.
fn find_long_tests(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut is_long = false;
    for line in text.lines().map(str::trim) {
        if line.starts_with("#[ignore") {
            is_long = line.contains(LONG_COMMAND);
        }
        if let Some(rest) = line.strip_prefix("fn ").filter(|_| is_long) {
            let name = rest.split(['(', '<']).next().unwrap_or(rest);
            found.push(name.to_owned());
            is_long = false;
        }
    }
    found
}

/// Runs all suites; an error if anything failed.
pub fn run() -> Outcome {
    let started = Instant::now();
    enter_namespace();
    install::components()?;
    let mut sum = Tally::default();
    // Packages are waited for, and nothing compiles with them.
    std::thread::scope(|scope| {
        let installed = scope.spawn(install::run);
        sum.add(suite("tidy", || Tally::of(1, tidy::run())));
        sum.add(suite("format", || Tally::of(1, format())));
        sum.add(suite("lints", || Tally::of(1, lint())));
        installed
            .join()
            .unwrap_or_else(|_| Err("the installation panicked".into()))
    })?;
    sum.add(suite("tests", test_programs));
    let is_root = rustix::process::geteuid().is_root();
    let is_run = |name: &str| name != PJDFSTEST || is_root;
    std::thread::scope(|scope| {
        // What judges the mount is compiled beside suites that wait for it most of the time. One
        // that is not installed fails its suite, which tries again.
        scope.spawn(|| {
            let programs = [install::PJDFSTEST, install::FSX];
            for program in programs.into_iter().filter(|program| is_run(program.name)) {
                if let Err(line) = install::crate_program(program) {
                    println!("{}: {line}", program.name);
                }
            }
        });
        sum.add(suite("extension", || match extension::prepare_test() {
            Ok(command) => {
                let arguments: Vec<&str> = command.iter().map(String::as_str).collect();
                count_tests("env", &arguments)
            }
            Err(line) => Tally::of(1, Err(line)),
        }));
        sum.add(suite("kill -9", || drive(&["kill9", "--rounds", KILLS])));
        sum.add(suite("kill -9 of two mounts", || {
            drive(&["kills", "--rounds", KILLS_OF_TWO])
        }));
        sum.add(suite("bank", || {
            drive(&["bank", "--seconds", BANK_SECONDS])
        }));
    });
    for name in POSIX_SUITES {
        if !is_run(name) {
            println!("\n== {name}: not run, because it needs root");
            continue;
        }
        sum.add(suite(name, || drive(&["posix", name, "--quick"])));
    }
    println!("\nall suites, {:.0} s:", started.elapsed().as_secs_f64());
    sum.end()
}

/// Goes on in a mount namespace in which what is unmounted goes from those below it too, where root
/// may have one: a test that has a namespace of its own, as `larder txn run` does, would keep the
/// mounts of the others alive.
fn enter_namespace() {
    if std::env::var_os(NAMESPACE).is_some() || !rustix::process::geteuid().is_root() {
        return;
    }
    let Ok(program) = std::env::current_exe() else {
        return;
    };
    let error = Command::new("unshare")
        .args(["--mount", "--propagation", "shared", "--"])
        .arg(program)
        .args(std::env::args_os().skip(1))
        .env(NAMESPACE, "1")
        .exec();
    println!("no mount namespace of its own ({error}); tests that unmount may disturb each other");
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

/// Clippy over the workspace, and over the extension; and whether all that the documentation refers
/// to is there.
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
    clippy(&["--manifest-path", &manifest, "--target-dir", &target])?;
    let strict = "build.rustdocflags=['-D', 'warnings']";
    let doc = ["doc", "--quiet", "--workspace", "--no-deps"];
    process::run("cargo", &[&doc[..], &["--config", strict]].concat())
}

/// Runs a suite of `larder-suites`, which closes with what it counted.
fn drive(arguments: &[&str]) -> Tally {
    let program = Workspace::load().and_then(|workspace| workspace.build_program("larder-suites"));
    match program {
        Ok(program) => count_tests(&program, arguments),
        Err(line) => Tally::of(1, Err(line)),
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

/// Runs the tests of the workspace, shows what they print, and adds up their results.
fn test_programs() -> Tally {
    let tally = Mutex::new(Tally::default());
    let success = programs::run(&|line| count_line(&tally, line));
    end_count(tally, success)
}

/// Runs `cargo test`, shows its output as it comes, and adds up its results.
fn cargo_test(arguments: &[&str]) -> Tally {
    count_tests("cargo", arguments)
}

/// The same by any program that runs it.
fn count_tests(program: &str, arguments: &[&str]) -> Tally {
    let tally = Mutex::new(Tally::default());
    let success = process::run_streaming(program, arguments, &mut |line| count_line(&tally, line));
    end_count(tally, success)
}

fn count_line(tally: &Mutex<Tally>, line: &str) {
    println!("{line}");
    let mut tally = tally.lock().unwrap_or_else(PoisonError::into_inner);
    tally.add(find_result(line).unwrap_or_default());
}

/// What does not compile, or does not run, prints no result, and must not pass for that.
fn end_count(tally: Mutex<Tally>, success: Result<bool, String>) -> Tally {
    let mut tally = tally.into_inner().unwrap_or_else(PoisonError::into_inner);
    let why = match success {
        // Some tests may have run, and failed, before others did not compile.
        Err(why) => why,
        Ok(false) if tally.failed == 0 => "a program of tests did not end well".to_owned(),
        Ok(_) => return tally,
    };
    println!("failed: {why}");
    tally.failed += 1;
    tally
}

/// What a line like `test result: ok. 14 passed; 0 failed; …` counts, or `14 passed, 0 failed`.
fn find_result(line: &str) -> Option<Tally> {
    let counts = match line.strip_prefix("test result: ") {
        Some(result) => result.split_once(". ")?.1,
        None => line,
    };
    let count = |what: &str| {
        counts
            .split([';', ','])
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
        let line = "test result: FAILED. 14 passed; 2 failed; 0 ignored; 0 measured; 0 filtered \
            out; finished in 0.60s";
        assert_eq!(
            find_result(line),
            Some(Tally {
                passed: 14,
                failed: 2
            })
        );
        let plain = Tally {
            passed: 12,
            failed: 0,
        };
        assert_eq!(find_result("12 passed, 0 failed"), Some(plain));
        assert_eq!(find_result("== fsx 12 passed, 0 failed, 3.0 s"), None);
        assert_eq!(find_result("test result_is_ok ... ok"), None);
        assert_eq!(find_result("running 2 tests"), None);
    }

    #[test]
    fn long_tests_are_those_that_say_so() {
        let text = [
            "#[test]\n#[ignore = \"takes minutes: ",
            LONG_COMMAND,
            "\"]\nfn long() {}\n#[test]\n#[ignore = \"a measurement\"]\nfn cost() {}\n#[test]\nfn \
             short() {}\n",
        ];
        assert_eq!(find_long_tests(&text.concat()), ["long"]);
    }

    #[test]
    fn every_test_that_names_the_long_run_is_in_it() {
        let targets = find_long_targets(&Workspace::load().unwrap()).unwrap();
        let names: Vec<&str> = targets.iter().map(|target| target.name.as_str()).collect();
        for name in ["past", "sessions"] {
            assert!(names.contains(&name), "{name}: {names:?}");
        }
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
