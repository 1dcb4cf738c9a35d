//! `cargo xtask hostile`: hostile databases against every verb, as root and as an ordinary user,
//! for as long as it is given.
//!
//! The corpus itself is a test of the command (crates/cli/tests/cli/hostile.rs), of which the test
//! run has a sample.

use std::process::Command;

use xtask::Outcome;

const USAGE: &str = "usage: cargo xtask hostile [--seed S] [--minutes M] [--only TEXT]";
/// The test that goes through all of it.
const TEST: &str = "hostile::every_damage_meets_every_verb";
/// Its settings, by their options.
const SETTINGS: [(&str, &str, &str); 3] = [
    ("--seed", "LARDER_HOSTILE_SEED", "1"),
    ("--minutes", "LARDER_HOSTILE_MINUTES", "60"),
    ("--only", "LARDER_HOSTILE_ONLY", ""),
];

/// `[--seed S] [--minutes M] [--only TEXT]`: of another seed another order, and only damages whose
/// names hold TEXT.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let (pairs, []) = arguments.as_chunks::<2>() else {
        return Err(USAGE.into());
    };
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
        .args(["--", "--ignored", "--exact", "--nocapture", TEST]);
    for (_, variable, default) in SETTINGS {
        command.env(variable, default);
    }
    for [option, value] in pairs {
        let known = SETTINGS.iter().find(|(name, ..)| name == option);
        let (_, variable, _) = known.ok_or(USAGE)?;
        if *option != "--only" && value.parse::<u64>().is_err() {
            return Err(format!("'{value}' is no number; {USAGE}"));
        }
        command.env(variable, value);
    }
    let status = command.status();
    match status.map_err(|error| format!("'cargo' does not run: {error}"))? {
        status if status.success() => Ok(()),
        _ => Err("something above is wrong with the corpus".into()),
    }
}
