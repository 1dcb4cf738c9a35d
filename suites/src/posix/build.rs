//! A release build of Larder itself: with its output on the mount, and with its sources there too.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use super::judge::Cases;
use super::run;
use super::site::Site;
use xtask::Tally;
use xtask::workspace::Workspace;

const PATIENCE: Duration = Duration::from_secs(2400);

/// Builds, and uses what was built.
pub fn run(site: &Site) -> Result<Tally, String> {
    let root = Workspace::load()?.root;
    let mount = site.mount()?;
    let output = site.mountpoint().join("output");
    let sources = site.mountpoint().join("sources");
    let mut cases = Cases::default();
    cases.run("its output on the mount", || build(site, &root, &output));
    cases.run("its sources and its output on the mount", || {
        let script = "rsync -a --exclude=/target --exclude=.git \"$1/\" \"$2/\"";
        run::shell(script, &[&root, &sources], PATIENCE)?;
        build(site, &sources, &sources.join("target"))
    });
    cases.run("nothing to do when built again", || {
        let again = cargo(site, &sources, &sources.join("target"))?;
        match again.contains("Compiling") {
            true => Err(format!(
                "cargo believes that something has changed:\n{again}"
            )),
            false => Ok(()),
        }
    });
    cases.run("clean afterwards", || site.finish(mount));
    Ok(cases.tally())
}

/// Builds, and runs the command where it is the whole of Larder.
fn build(site: &Site, sources: &Path, output: &Path) -> Result<(), String> {
    cargo(site, sources, output)?;
    let larder = output.join("release/larder");
    site.length.choose(Ok(()), Err(())).or_else(|()| {
        let database = site.scratch().join("built.larder");
        let script = "\"$1\" init \"$2\" && \"$1\" check \"$2\" && rm -r \"$2\"";
        run::shell(script, &[&larder, &database], PATIENCE).map(drop)
    })
}

fn cargo(site: &Site, sources: &Path, output: &Path) -> Result<String, String> {
    // A quick build knows no foreign crates but those of the format.
    let package = site.length.choose("larder-format", "larder-cli");
    let mut command = Command::new("cargo");
    command
        .current_dir(sources)
        .env("CARGO_TARGET_DIR", output)
        .args(["build", "--release", "--locked", "--package", package]);
    run::succeed(&mut command, PATIENCE)
}
