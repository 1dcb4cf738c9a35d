//! `cargo xtask deny`: the crates that we stand on have known sources, licenses that go together
//! with ours, and no advisory against them, by `cargo deny` and deny.toml.
//!
//! Licenses, bans and sources are checked everywhere. Advisories are a database on GitHub: where
//! that cannot be reached the verb says so and fails, unless `--offline` has asked for the rest
//! only, or `--db` names a clone of it that was brought along.

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use xtask::workspace::Workspace;
use xtask::{Outcome, process};

/// Installed where it is missing.
const VERSION: &str = "0.20.2";
/// The workspaces: each has a lock of its own.
const MANIFESTS: [&str; 3] = ["Cargo.toml", "crates/sql/Cargo.toml", "fuzz/Cargo.toml"];

const CONFIG: &str = "deny.toml";
/// What cargo-deny calls the database by default, and its section in [`CONFIG`].
const DATABASE: &str = "https://github.com/RustSec/advisory-db";
const SECTION: &str = "[advisories]\n";

/// `[--offline | --db DIR]`.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let (is_offline, clone) = match arguments {
        [] => (false, None),
        ["--offline"] => (true, None),
        ["--db", clone] => (false, Some(*clone)),
        _ => return Err("usage: cargo xtask deny [--offline | --db DIR]".into()),
    };
    if !process::is_installed("cargo-deny") {
        let version = format!("cargo-deny@{VERSION}");
        process::run("cargo", &["install", "--locked", "--quiet", &version])?;
    }
    for manifest in MANIFESTS {
        println!("{manifest}: licenses, bans, sources");
        if !check(deny(manifest, CONFIG), &["bans", "licenses", "sources"])?.0 {
            return Err(format!("{manifest}: something above is not allowed"));
        }
    }
    if is_offline {
        println!("advisories: NOT CHECKED, as --offline has asked");
        return Ok(());
    }
    let clone = clone.map(Clone::new).transpose()?;
    for manifest in MANIFESTS {
        println!("{manifest}: advisories");
        let command = match &clone {
            Some(clone) => clone.deny(manifest),
            None => deny(manifest, CONFIG),
        };
        let (is_clean, said) = check(command, &["advisories"])?;
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

/// `cargo deny` on a workspace, with a file of settings.
fn deny(manifest: &str, config: &str) -> Command {
    let mut command = Command::new("cargo");
    command.args(["deny", "--manifest-path", manifest, "--config", config]);
    command
}

/// A clone of the database of advisories, in the place of the one on GitHub.
struct Clone {
    config: String,
    /// What git takes for [`DATABASE`].
    key: String,
}

impl Clone {
    fn new(clone: &str) -> Result<Clone, String> {
        let explain = |what: &Path, error| format!("{}: {error}", what.display());
        let path = Path::new(clone).canonicalize();
        let path = path.map_err(|error| explain(Path::new(clone), error))?;
        let date = ["-C", clone, "log", "-1", "--format=%H of %cs"];
        println!("advisories: {}", process::output("git", &date)?.trim());
        let directory = Workspace::load()?.target.join("deny");
        // What another clone had left would be kept.
        match fs::remove_dir_all(&directory) {
            Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                return Err(explain(&directory, error));
            }
            _ => {}
        }
        fs::create_dir_all(&directory).map_err(|error| explain(&directory, error))?;
        let settings = format!(
            "{SECTION}db-path = {:?}\ndb-urls = [{DATABASE:?}]\ngit-fetch-with-cli = true\n",
            directory.join("db")
        );
        let text = fs::read_to_string(CONFIG).map_err(|error| explain(CONFIG.as_ref(), error))?;
        let config = directory.join(CONFIG);
        fs::write(&config, text.replacen(SECTION, &settings, 1))
            .map_err(|error| explain(&config, error))?;
        Ok(Clone {
            config: config.display().to_string(),
            key: format!("url.file://{}.insteadOf", path.display()),
        })
    }

    fn deny(&self, manifest: &str) -> Command {
        let mut command = deny(manifest, &self.config);
        command
            .env("GIT_CONFIG_COUNT", "1")
            .env("GIT_CONFIG_KEY_0", &self.key)
            .env("GIT_CONFIG_VALUE_0", DATABASE);
        command
    }
}

/// Whether a workspace passes, and what was said, which is printed too.
fn check(mut command: Command, checks: &[&str]) -> Result<(bool, String), String> {
    let output = command
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
