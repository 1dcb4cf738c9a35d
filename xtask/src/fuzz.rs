//! `cargo xtask fuzz TARGET`: a decoder is given what libFuzzer makes up, with the compiler that
//! builds everything else: libFuzzer's instruments are passes of LLVM, and need no nightly.

use std::path::Path;
use std::process::Command;

use xtask::workspace::Workspace;
use xtask::{Outcome, process};

/// The manifest of the targets, from the root.
const MANIFEST: &str = "fuzz/Cargo.toml";
/// Inputs to begin with, a directory for each target that has some.
const SEEDS: &str = "fuzz/seeds";
/// What `cargo fuzz` gives the compiler, without a sanitizer: a panic is what is looked for.
const FLAGS: [&str; 7] = [
    "--cfg=fuzzing",
    "-Cpasses=sancov-module",
    "-Cllvm-args=-sanitizer-coverage-level=4",
    "-Cllvm-args=-sanitizer-coverage-inline-8bit-counters",
    "-Cllvm-args=-sanitizer-coverage-pc-table",
    "-Cllvm-args=-sanitizer-coverage-trace-compares",
    "-Ccodegen-units=1",
];
/// How long a target is run when nothing else is asked for.
const SECONDS: &str = "60";
/// Most memory of a run, MiB, and longest time for one input, seconds: a decoder that takes more is
/// a find.
const LIMITS: [&str; 2] = ["-rss_limit_mb=512", "-timeout=10"];

/// `TARGET [--seconds N]`; `all` runs one target after another.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let (target, seconds) = match arguments {
        [target] => (*target, SECONDS),
        [target, "--seconds", seconds] => (*target, *seconds),
        _ => return Err("usage: cargo xtask fuzz TARGET|all [--seconds N]".into()),
    };
    if seconds.parse::<u64>().is_err() {
        return Err(format!("'{seconds}' is no number of seconds"));
    }
    let workspace = Workspace::load()?;
    let targets = targets(&workspace.root)?;
    let chosen: Vec<&String> = match target {
        "all" => targets.iter().collect(),
        one => targets.iter().filter(|target| *target == one).collect(),
    };
    if chosen.is_empty() {
        return Err(format!(
            "there is no target '{target}'; there are {}, and all",
            targets.join(", ")
        ));
    }
    let directory = workspace.target.join("fuzz");
    let built = build(&workspace.root, &directory)?;
    for target in chosen {
        println!("{target}: {seconds} s");
        let seeds = workspace.root.join(SEEDS).join(target);
        let corpus = directory.join("corpus").join(target);
        run(&built.join(target), &corpus, &seeds, seconds)
            .map_err(|error| format!("{target}: {error}"))?;
    }
    Ok(())
}

/// The names of the targets, sorted.
fn targets(root: &Path) -> Result<Vec<String>, String> {
    let directory = root.join("fuzz/targets");
    let explain = |error| format!("{}: {error}", directory.display());
    let mut names = Vec::new();
    for entry in std::fs::read_dir(&directory).map_err(explain)? {
        let name = entry.map_err(explain)?.file_name();
        let name = name.to_string_lossy();
        names.extend(name.strip_suffix(".rs").map(str::to_owned));
    }
    names.sort();
    Ok(names)
}

/// Builds all targets; where they are.
fn build(root: &Path, directory: &Path) -> Result<std::path::PathBuf, String> {
    let version = process::output("rustc", &["-vV"])?;
    let host = version.lines().find_map(|line| line.strip_prefix("host: "));
    let host = host.ok_or("rustc -vV names no host")?;
    // With a target, programs of the build itself get no instruments.
    let status = Command::new("cargo")
        .args(["build", "--locked", "--release", "--bins", "--target", host])
        .arg("--manifest-path")
        .arg(root.join(MANIFEST))
        .arg("--target-dir")
        .arg(directory)
        .env("CARGO_ENCODED_RUSTFLAGS", FLAGS.join("\u{1f}"))
        .status()
        .map_err(|error| format!("'cargo' does not run: {error}"))?;
    match status.success() {
        true => Ok(directory.join(host).join("release")),
        false => Err("the targets cannot be built".into()),
    }
}

/// Runs a target; what it has found interesting is kept, and tried first the next time.
fn run(program: &Path, corpus: &Path, seeds: &Path, seconds: &str) -> Outcome {
    let made = std::fs::create_dir_all(corpus);
    made.map_err(|error| format!("{}: {error}", corpus.display()))?;
    let status = Command::new(program)
        .arg(corpus)
        .args(seeds.is_dir().then_some(seeds))
        .args(LIMITS)
        .args(["-print_final_stats=1", "-verbosity=0"])
        .arg(format!("-max_total_time={seconds}"))
        .arg(format!("-artifact_prefix={}.", corpus.display()))
        .status()
        .map_err(|error| format!("{}: {error}", program.display()))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!(
            "found an input that fails, beside {}; run the target with it as argument",
            corpus.display()
        )),
    }
}
