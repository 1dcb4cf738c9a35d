//! `cargo xtask VERB`: everything a developer runs that is not plain cargo.
//!
//! Each verb prints what it does and ends with exit code 0 only when all went well.

mod bank;
mod bench;
mod compare;
mod crash;
mod demo_import;
mod extension;
mod install;
mod kill9;
mod lab_docs;
mod mounts;
mod posix;
mod process;
mod programs;
mod suites;
mod tidy;
mod workspace;

use std::process::ExitCode;

/// What a verb answers: `Err` holds one line for people.
type Outcome = Result<(), String>;

/// What suites count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
}

impl Tally {
    /// What `outcome` says of `count` tests that stand or fall together; the error is printed.
    pub fn of(count: u64, outcome: Outcome) -> Tally {
        match outcome {
            Ok(()) => Tally {
                passed: count,
                failed: 0,
            },
            Err(line) => {
                println!("failed: {line}");
                Tally {
                    passed: 0,
                    failed: 1,
                }
            }
        }
    }

    /// Adds what another suite counted.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

const USAGE: &str = "\
usage: cargo xtask VERB

  tidy       check the house rules: edges, cycles, dead files, docstrings, documents
  test       install what the tests need, and run all of them (the README's test command);
             `--long`: those that take minutes, which it leaves out
  crash SEED [--points N] [--total T] replay crashes of other recorded runs, N per run and mode
  kill9 [--rounds N] [--seed S]      kill -9 a mount at random moments (100 rounds)
  bank [--seconds N] [--seed S]      processes move documents and rows in transactions and are killed
  posix [SUITE…] [--quick]           programs that know nothing of Larder judge the mount
  extension  build the SQLite extension, and say where it lies
  demo-import DIR                    copy a tree in, compare, remount, compare, ask SQL
  lab-docs [--tiny] [--memory-only] [RUN…]
                                     redraw the papers' figures in docs/lab (40 minutes)
  bench [VERB] [--quick] [--write docs/performance.md]
                                     measure beside other systems (`bench help` lists the verbs)";

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["tidy"] => tidy::run(),
        ["test"] => suites::run(),
        ["test", "--long"] => suites::run_long(),
        ["crash", ref rest @ ..] => crash::parse_and_run(rest),
        ["kill9", ref rest @ ..] => kill9::parse_and_run(rest),
        ["bank", ref rest @ ..] => bank::parse_and_run(rest),
        [bank::WORKER, ref rest @ ..] => bank::work(rest),
        ["demo-import", directory] => demo_import::run(directory),
        ["extension"] => extension::run(),
        ["posix", ref rest @ ..] => posix::parse_and_run(rest),
        ["bench", ref rest @ ..] => bench::run(rest),
        [bench::COUNT, database, count] => bench::count(database, count),
        [bench::WRITE, directory, bytes, code] => bench::write(directory, bytes, code, None),
        [bench::WRITE, directory, bytes, code, begun] => {
            bench::write(directory, bytes, code, Some(begun))
        }
        [bench::SERVE_MEMORY, mountpoint] => bench::serve_memory(mountpoint),
        [bench::SERVE_PASSTHROUGH, directory, mountpoint] => {
            bench::serve_passthrough(directory, mountpoint)
        }
        ["lab-docs", ref rest @ ..] => lab_docs::parse_and_run(rest),
        ["help" | "--help" | "-h"] | [] => {
            println!("{USAGE}");
            return ExitCode::SUCCESS;
        }
        _ => Err(format!(
            "'{}' is not understood\n{USAGE}",
            arguments.join(" ")
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("xtask: {line}");
            ExitCode::FAILURE
        }
    }
}
