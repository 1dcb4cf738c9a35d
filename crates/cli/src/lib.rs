//! The `larder` command: verbs for people and scripts, on top of the Content API.
//!
//! # Words
//! A *verb* is what a command does (`init`, `cp`). An *address* names a file in a database
//! (`DB:/path`). A *failure* ends a command with one line and an exit code.
//!
//! # Invariants
//! error.rs, units.rs, address.rs, output.rs, copy.rs, rows.rs, log.rs, settings.rs, ending.rs,
//! extension.rs, helper.rs and attendant.rs state their own. Those of all verbs:
//!
//! * `CLI-7` Every database that a verb opens is closed before the command ends, and what closing
//!   says decides about success (databases.rs).
//! * `CLI-8` What was copied into a database is durable before success is told; what was moved is
//!   durable before the original is removed (copy.rs, transfer.rs).
//! * `CLI-9` The server of a mount holds its lock from before it is ready until its process ends;
//!   `umount` waits for it (serving_lock.rs).
//!
//! Each command is a session of its own in the database, beside mounts and other commands.
//!
//! There are two programs: `larder`, and `larder-lab`, which `larder lab` goes on as. The
//! laboratory needs what no other verb does (clients of servers, fonts, drawing).

mod address;
mod args;
mod attendant;
mod background;
mod change;
mod changelog;
mod clone;
mod copy;
mod cover;
mod databases;
mod diff;
mod doctor;
mod ending;
mod error;
mod exposition;
mod extension;
mod helper;
mod inside;
mod lab;
mod list;
mod local;
mod log;
mod map;
mod metrics;
mod mount;
mod mount_log;
mod output;
mod privileges;
mod progress;
mod promote;
mod prune;
mod quantiles;
mod refused;
mod remount;
mod report;
mod restore;
mod retention;
mod rollback;
mod rows;
mod seal;
mod serve;
mod service;
mod serving_lock;
mod settings;
mod side;
mod snapshot;
mod splice;
mod sql;
mod stat;
mod stats;
mod status;
mod store;
mod trace;
mod track;
mod transfer;
mod txn;
mod txn_args;
mod txn_run;
mod umount;
mod undo;
mod units;
mod upgrade;
mod upkeep;
mod visible;
mod walk;
mod watch;

use args::{Cli, CompletionsArgs, Verb};
use clap::{CommandFactory, Parser};
use error::{Failure, Result};
use helper::Helper;
use output::Output;
use std::process::ExitCode;
use std::time::Duration;
use txn_args::TxnVerb;

/// The program `larder`.
pub fn larder() -> ExitCode {
    let mut arguments = std::env::args_os();
    let program = arguments.next().unwrap_or_default();
    if let Some(helper) = Helper::named(&program) {
        return helper.run(arguments.collect());
    }
    if attendant::is_named(&program) {
        return attendant::run(arguments.collect());
    }
    command(run)
}

/// The program `larder-lab`, which takes the command line of `larder lab` as it is.
pub fn larder_lab() -> ExitCode {
    command(|verb, _, out| match verb {
        Verb::Lab(verb) => lab::lab(&verb, out),
        _ => Err(Failure::Usage(
            "this program is for 'larder lab'; start 'larder' for all else".into(),
        )),
    })
}

/// Runs a command to its end.
fn command(run: fn(Verb, Option<Duration>, &mut Output) -> Result<()>) -> ExitCode {
    // No database is open yet.
    let is_bounded = larder::bound_requests();
    assert!(is_bounded, "SAFE-10");
    let Cli {
        json,
        timeout,
        verb,
    } = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => return refuse(&error),
    };
    let timeout = timeout.map(|ns| Duration::from_nanos(ns.unsigned_abs()));
    if let Some(timeout) = timeout {
        databases::wait_at_most(timeout);
    }
    let mut out = Output::new(json);
    let result = larder::Trust::read_environment()
        .map_err(Failure::Other)
        .and_then(|_| start_log(&verb))
        .and_then(|()| run(verb, timeout, &mut out));
    // What came before a failure is still printed.
    let flushed = out.flush();
    log::finish();
    match result.and(flushed) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => {
            failure.tell();
            ExitCode::from(failure.exit_code())
        }
    }
}

fn run(verb: Verb, timeout: Option<Duration>, out: &mut Output) -> Result<()> {
    match verb {
        Verb::Init(args) => store::init(&args, out),
        Verb::Mount(args) => mount::mount(&args, out),
        Verb::Umount(args) => umount::umount(&args, timeout, out),
        Verb::Store(verb) => store::store(&verb, out),
        Verb::Ls(args) => list::ls(&args, out),
        Verb::Cat(args) => transfer::cat(&args, out),
        Verb::Cp(args) => transfer::cp(&args, out),
        Verb::Mv(args) => transfer::mv(&args, out),
        Verb::Rm(args) => change::rm(&args, out),
        Verb::Mkdir(args) => change::mkdir(&args, out),
        Verb::Ln(args) => change::ln(&args, out),
        Verb::Stat(args) => stat::stat(&args, out),
        Verb::Find(args) => walk::find(&args, out),
        Verb::Du(args) => walk::du(&args, out),
        Verb::Put(args) => transfer::put(&args, out),
        Verb::Get(args) => transfer::get(&args, out),
        Verb::Sql(args) => sql::sql(&args, out),
        Verb::Df(args) => report::df(&args, out),
        Verb::Frag(args) => report::frag(&args, out),
        Verb::Defrag(args) => upkeep::defrag(&args, out),
        Verb::Splice(args) => splice::splice(&args, out),
        Verb::Shrink(args) => upkeep::shrink(&args, out),
        Verb::Upgrade(args) => upgrade::upgrade(&args, out),
        Verb::Stats(args) => stats::stats(&args, out),
        Verb::Status(args) => status::status(&args, out),
        Verb::Doctor(_) => doctor::doctor(out),
        Verb::Trace(args) => trace::trace(&args, out),
        Verb::Watch(args) => watch::watch(&args, out),
        Verb::Check(args) => report::check(&args, out),
        Verb::Lab(_) => lab::go_on(),
        Verb::Txn(TxnVerb::Run(args)) => txn_run::run(&args, out),
        Verb::Txn(TxnVerb::Begin(args)) => txn::begin(&args, out),
        Verb::Txn(TxnVerb::Status(args)) => txn::status(&args, out),
        Verb::Txn(TxnVerb::Commit(args)) => txn::commit(&args, out),
        Verb::Txn(TxnVerb::Abort(args)) => txn::abort(&args),
        Verb::Txn(TxnVerb::List(args)) => txn::list(&args, out),
        Verb::Snapshot(verb) => snapshot::snapshot(&verb, out),
        Verb::Log(args) => changelog::log(&args, out),
        Verb::Diff(args) => diff::diff(&args, out),
        Verb::Clone(args) => clone::clone(&args, out),
        Verb::Restore(args) => restore::restore(&args, out),
        Verb::Undo(args) => undo::undo(&args, out),
        Verb::Rollback(args) => rollback::rollback(&args, out),
        Verb::Promote(args) => promote::promote(&args, out),
        Verb::Track(args) => track::track(&args, out),
        Verb::Untrack(args) => track::untrack(&args),
        Verb::Rows(args) => track::rows(&args, out),
        Verb::Retention(args) => retention::retention(&args, out),
        Verb::Prune(args) => prune::prune(&args, out),
        Verb::Refused(verb) => refused::refused(&verb, out),
        Verb::Extension(args) => extension::extension(&args, out),
        Verb::Completions(args) => completions(&args, out),
    }
}

fn completions(args: &CompletionsArgs, out: &mut Output) -> Result<()> {
    // By way of memory: the generator panics when its writer fails.
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "larder", &mut script);
    out.raw(&script)
}

/// Warnings and errors of the layers below, for people; of a mount more, if asked for.
fn start_log(verb: &Verb) -> Result<()> {
    log::start(match verb {
        Verb::Mount(args) => mount::log_level(args)?,
        _ => tracing::Level::WARN,
    })
}

/// Help goes out as it is; a mistake becomes one line (`CLI-1`).
fn refuse(error: &clap::Error) -> ExitCode {
    use clap::error::ErrorKind;
    match error.kind() {
        ErrorKind::DisplayHelp
        | ErrorKind::DisplayVersion
        | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand => {
            if let Err(source) = error.print()
                && source.kind() != std::io::ErrorKind::BrokenPipe
            {
                let failure = Failure::Io {
                    what: "cannot print help".into(),
                    source,
                };
                failure.tell();
                return ExitCode::from(failure.exit_code());
            }
            ExitCode::from(if error.use_stderr() { 2 } else { 0 })
        }
        _ => {
            let failure = Failure::Usage(usage_line(&error.to_string()));
            failure.tell();
            ExitCode::from(failure.exit_code())
        }
    }
}

/// The first paragraph of a message of several lines, and where to read on.
fn usage_line(message: &str) -> String {
    let message = message.strip_prefix("error: ").unwrap_or(message);
    let paragraph = message.split("\n\n").next().unwrap_or(message);
    let line = paragraph.split_whitespace().collect::<Vec<_>>().join(" ");
    if line.contains(';') {
        line
    } else {
        format!("{line}; see --help")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mistakes_of_usage_are_one_line() {
        let error = Cli::try_parse_from(["larder", "mv"]).unwrap_err();
        let line = usage_line(&error.to_string());
        assert!(
            !line.contains('\n') && line.contains("FROM") && line.ends_with("; see --help"),
            "CLI-1: {line}"
        );
        let error = Cli::try_parse_from(["larder", "init", "a", "--capacity", "big"]).unwrap_err();
        let line = usage_line(&error.to_string());
        assert!(
            line.contains("'big' is no size; write it like"),
            "CLI-1: {line}"
        );
    }

    #[test]
    fn completions_know_every_verb() {
        for shell in [
            clap_complete::Shell::Bash,
            clap_complete::Shell::Zsh,
            clap_complete::Shell::Fish,
        ] {
            let mut script = Vec::new();
            clap_complete::generate(shell, &mut Cli::command(), "larder", &mut script);
            let script = String::from_utf8(script).unwrap();
            for verb in Cli::command().get_subcommands() {
                assert!(
                    script.contains(verb.get_name()),
                    "{shell}: {}",
                    verb.get_name()
                );
            }
        }
    }
}
