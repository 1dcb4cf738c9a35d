//! `larder-suites VERB`: suites that drive the built `larder` command and its mounts, for
//! `cargo xtask`.
//!
//! Each verb prints what it does, and ends with exit code 0 only when all went well.

mod bank;
mod compare;
mod demo_import;
mod kill9;
mod kills;
mod lab_docs;
mod posix;
mod sqlite_kills;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let outcome = match arguments.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["kill9", ref rest @ ..] => kill9::parse_and_run(rest),
        ["kills", ref rest @ ..] => kills::parse_and_run(rest),
        [kills::LOAD, directory, seed] => kills::load(directory, seed),
        ["sqlite-kills", ref rest @ ..] => sqlite_kills::parse_and_run(rest),
        [sqlite_kills::WRITER, database, mode, seed] => sqlite_kills::write(database, mode, seed),
        ["bank", ref rest @ ..] => bank::parse_and_run(rest),
        [bank::WORKER, ref rest @ ..] => bank::work(rest),
        ["posix", ref rest @ ..] => posix::parse_and_run(rest),
        ["demo-import", directory] => demo_import::run(directory),
        ["lab-docs", ref rest @ ..] => lab_docs::parse_and_run(rest),
        _ => Err(format!(
            "'{}' is not understood; `cargo xtask` lists the verbs",
            arguments.join(" ")
        )),
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(line) => {
            eprintln!("larder-suites: {line}");
            ExitCode::FAILURE
        }
    }
}
