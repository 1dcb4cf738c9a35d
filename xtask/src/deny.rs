//! `cargo xtask deny`: the crates that we stand on have known sources, licenses that go together
//! with ours, and no advisory against them, by `cargo deny` and deny.toml.
//!
//! Licenses, bans and sources are checked everywhere. Advisories are a database on GitHub: where
//! that cannot be reached the verb says so and fails, unless `--offline` has asked for the rest
//! only.

use std::process::{Command, Stdio};

use xtask::{Outcome, process};

/// Installed where it is missing.
const VERSION: &str = "0.20.2";
/// The workspaces: each has a lock of its own.
const MANIFESTS: [&str; 3] = ["Cargo.toml", "crates/sql/Cargo.toml", "fuzz/Cargo.toml"];

/// `[--offline]`.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let is_offline = match arguments {
        [] => false,
        ["--offline"] => true,
        _ => return Err("usage: cargo xtask deny [--offline]".into()),
    };
    if !process::is_installed("cargo-deny") {
        let version = format!("cargo-deny@{VERSION}");
        process::run("cargo", &["install", "--locked", "--quiet", &version])?;
    }
    for manifest in MANIFESTS {
        println!("{manifest}: licenses, bans, sources");
        if !check(manifest, &["bans", "licenses", "sources"])?.0 {
            return Err(format!("{manifest}: something above is not allowed"));
        }
    }
    if is_offline {
        println!("advisories: NOT CHECKED, as --offline has asked");
        return Ok(());
    }
    for manifest in MANIFESTS {
        println!("{manifest}: advisories");
        let (is_clean, said) = check(manifest, &["advisories"])?;
        if !is_clean && said.contains("failed to fetch advisory database") {
            return Err(
                "licenses, bans and sources are clean; advisories were NOT CHECKED, because their \
                 database could not be fetched; run this where github.com can be reached, or with \
                 --offline"
                    .into(),
            );
        }
        if !is_clean {
            return Err(format!("{manifest}: there are advisories, see above"));
        }
    }
    Ok(())
}

/// Whether a workspace passes, and what was said, which is printed too.
fn check(manifest: &str, checks: &[&str]) -> Result<(bool, String), String> {
    let output = Command::new("cargo")
        .args(["deny", "--manifest-path", manifest, "--config", "deny.toml"])
        .args(["--color", "never", "check", "--hide-inclusion-graph"])
        .args(checks)
        .stdin(Stdio::null())
        .stdout(Stdio::inherit())
        .output()
        .map_err(|error| format!("'cargo deny' does not run: {error}"))?;
    let said = String::from_utf8_lossy(&output.stderr).into_owned();
    eprint!("{said}");
    Ok((output.status.success(), said))
}
