//! The reference-model test of `crates/fuse/tests/mount/model.rs`, longer and for several seeds.

use std::process::Command;
use std::time::Duration;

use super::judge::Cases;
use super::run;
use super::site::Site;
use xtask::Tally;

const PATIENCE: Duration = Duration::from_secs(3600);

/// Each seed is a case.
pub fn run(site: &Site) -> Result<Tally, String> {
    let (seeds, rounds) = site.length.choose((1, 12), (6, 60));
    let mut cases = Cases::default();
    for seed in 1..=seeds {
        cases.run(&format!("seed {seed}, {rounds} rounds"), || {
            let mut command = Command::new("cargo");
            command
                .args([
                    "test",
                    "--quiet",
                    "--package",
                    "larder-fuse",
                    "--test",
                    "mount",
                ])
                .args([
                    "--",
                    "--exact",
                    "--nocapture",
                    "model::threads_agree_with_the_model",
                ])
                .env("LARDER_MODEL_SEED", seed.to_string())
                .env("LARDER_MODEL_ROUNDS", rounds.to_string());
            let text = run::succeed(&mut command, PATIENCE)?;
            match text.contains("1 passed") {
                true => Ok(()),
                false => Err(format!("the test did not run:\n{text}")),
            }
        });
    }
    Ok(cases.tally())
}
