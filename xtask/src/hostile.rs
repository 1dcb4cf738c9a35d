//! `cargo xtask hostile`: hostile databases against every verb, as root and as an ordinary user.
//!
//! For as long as it is given, each damage meets verb after verb; with `--all` each damage is met
//! once by one verb of each kind, however long that takes, and with `--every-verb` by every verb as
//! every user, a part of them at a time. A file keeps what was done; a run goes on where it ends,
//! and shards beside each other make one run.
//!
//! The corpus itself is a test of the command (crates/cli/tests/cli/hostile.rs), of which the test
//! run has a sample. It runs a copy of the program, which nobody builds anew meanwhile.

use std::fs;
use std::process::Command;

use xtask::workspace::Workspace;
use xtask::{Outcome, process};

const USAGE: &str = "usage: cargo xtask hostile [--all [--every-verb] [--shard K/N] \
                     [--state FILE]] [--seed S] [--minutes M] [--only TEXT]";
/// The test that goes on as long as it is given, ...
const TEST: &str = "hostile::every_damage_meets_every_verb";
/// ... and the one that goes through all.
const TEST_ALL: &str = "hostile::all::every_damage_is_checked_read_changed_and_mounted";
/// Its settings, by their options; whether they are numbers.
const SETTINGS: [(&str, &str, bool); 5] = [
    ("--seed", "LARDER_HOSTILE_SEED", true),
    ("--minutes", "LARDER_HOSTILE_MINUTES", true),
    ("--only", "LARDER_HOSTILE_ONLY", false),
    ("--shard", "LARDER_HOSTILE_SHARD", false),
    ("--state", "LARDER_HOSTILE_STATE", false),
];
/// Without `--all` it ends.
const MINUTES: &str = "60";

/// Of another seed another order; with `--only` only damages whose names hold TEXT.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let (is_all, is_every_verb, rest) = match arguments {
        ["--all", "--every-verb", rest @ ..] => (true, true, rest),
        ["--all", rest @ ..] => (true, false, rest),
        rest => (false, false, rest),
    };
    let (pairs, []) = rest.as_chunks::<2>() else {
        return Err(USAGE.into());
    };
    let mut settings = Vec::new();
    for [option, value] in pairs {
        let known = SETTINGS.iter().find(|(name, ..)| name == option);
        let (_, variable, is_number) = known.ok_or(USAGE)?;
        if *is_number && value.parse::<u64>().is_err() {
            return Err(format!("'{value}' is no number; {USAGE}"));
        }
        if !is_all && matches!(*option, "--shard" | "--state") {
            return Err(USAGE.into());
        }
        settings.push((*variable, (*value).to_owned()));
    }
    let workspace = Workspace::load()?;
    let build = [
        "build",
        "--quiet",
        "--package",
        "larder-cli",
        "--bin",
        "larder",
    ];
    process::run("cargo", &build)?;
    let copy = workspace
        .target
        .join(format!("hostile-larder-{}", std::process::id()));
    let built = workspace.target.join("debug/larder");
    let copied = fs::copy(&built, &copy);
    copied.map_err(|error| format!("{}: {error}", built.display()))?;
    let mut command = Command::new("cargo");
    command
        .args([
            "test",
            "--quiet",
            "--package",
            "larder-cli",
            "--test",
            "cli",
        ])
        .args(["--", "--ignored", "--exact", "--nocapture"])
        .arg(if is_all { TEST_ALL } else { TEST })
        .env("LARDER_TEST_COMMAND", &copy);
    if !is_all {
        command.env("LARDER_HOSTILE_MINUTES", MINUTES);
    }
    if is_every_verb {
        command.env("LARDER_HOSTILE_EVERY_VERB", "1");
    }
    let status = command.envs(settings).status();
    let removed = fs::remove_file(&copy);
    removed.map_err(|error| format!("{}: {error}", copy.display()))?;
    match status.map_err(|error| format!("'cargo' does not run: {error}"))? {
        status if status.success() => Ok(()),
        _ => Err("something above is wrong with the corpus".into()),
    }
}
