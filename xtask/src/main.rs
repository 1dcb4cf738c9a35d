//! `cargo xtask VERB`: everything a developer runs that is not plain cargo.
//!
//! Each verb prints what it does and ends with exit code 0 only when all went well.

mod crash;
mod deny;
mod extension;
mod fuzz;
mod hostile;
mod mutants;
mod programs;
mod suites;
mod tidy;

use std::process::ExitCode;

use xtask::Outcome;
use xtask::workspace::Workspace;

const USAGE: &str = "\
usage: cargo xtask VERB

  tidy       check the house rules: edges, circles of imports, large types, dead files, docstrings,
             documents; `--interface`: write the listing of the public interface
  test       install what the tests need, and run all of them (the README's test command)
  soak       run the tests that take minutes, which `test` leaves out
  mutants [PACKAGE…] [--shard K/N]   change the code step by step: which step does no test notice
  crash SEED [--points N] [--total T] replay crashes of other recorded runs, N per run and mode
  kill9 [--rounds N] [--seed S]      kill -9 a mount at random moments (100 rounds)
  fuzz TARGET|all [--seconds N]      give a decoder what libFuzzer makes up (60 s)
  hostile [--minutes M] [--seed S] [--only TEXT]
                                     hostile databases against every verb, as root and as users \
                                     (60 minutes)
  hostile --all [--every-verb] [--shard K/N] [--state FILE]
                                     each of them once, checked, read, changed and mounted, or by \
                                     every verb as every user
  deny [--offline | --db DIR]        licenses, sources and advisories of what we depend on; DIR is
                                     a clone of github.com/RustSec/advisory-db
  kills [--rounds N] [--seed S]      two busy mounts of one database, one is killed (100 rounds)
  sqlite-kills [--rounds N] [--seed S]
                                     SQLite on a mount that is killed, beside an ext4 that loses \
                                     power (25 rounds)
  bank [--seconds N] [--seed S]      processes move documents and rows in transactions and are \
  killed
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
        ["tidy", "--interface"] => tidy::write_interface(),
        ["test"] => suites::run(),
        ["soak"] => suites::run_long(),
        ["mutants", ref rest @ ..] => mutants::parse_and_run(rest),
        ["crash", ref rest @ ..] => crash::parse_and_run(rest),
        ["fuzz", ref rest @ ..] => fuzz::parse_and_run(rest),
        ["hostile", ref rest @ ..] => hostile::parse_and_run(rest),
        ["deny", ref rest @ ..] => deny::parse_and_run(rest),
        ["extension"] => extension::run(),
        ref all @ [
            "kill9" | "kills" | "sqlite-kills" | "bank" | "posix" | "demo-import" | "lab-docs",
            ..,
        ] => drive(all),
        ["bench", ref rest @ ..] => bench(rest),
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

/// Has `larder-suites` do what the arguments say.
fn drive(arguments: &[&str]) -> Outcome {
    let program = Workspace::load()?.build_program("larder-suites")?;
    xtask::process::run(&program, arguments)
}

/// Has `larder-bench`, built with optimisation, do what the arguments say.
fn bench(arguments: &[&str]) -> Outcome {
    let run = [
        "run",
        "--quiet",
        "--release",
        "--package",
        "larder-bench",
        "--",
    ];
    xtask::process::run("cargo", &[&run, arguments].concat())
}
