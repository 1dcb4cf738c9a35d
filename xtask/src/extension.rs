//! `cargo xtask extension`: builds the SQLite extension, which is a workspace of its own, and says
//! where it lies.

use std::path::PathBuf;

use xtask::mounts::{Larder, Profile};
use xtask::workspace::{EXTENSION, Workspace};
use xtask::{Outcome, process};

/// Builds it as users run it.
pub fn run() -> Outcome {
    let path = build(Profile::Release)?;
    println!("{}", path.display());
    let name = path.with_extension("");
    println!(
        "in sqlite3, on DATABASE/catalog.db:  .load {}",
        name.display()
    );
    Ok(())
}

/// Builds it; where it is.
fn build(profile: Profile) -> Result<PathBuf, String> {
    let workspace = Workspace::load()?;
    let manifest = workspace.root.join(EXTENSION).display().to_string();
    // Beside the workspace's own: what is the same is built once.
    let target = workspace.target.display().to_string();
    let mut arguments = vec!["build", "--locked", "--quiet", "--manifest-path", &manifest];
    arguments.extend(["--target-dir", &target]);
    let directory = match profile {
        Profile::Debug => "debug",
        Profile::Release => {
            arguments.push("--release");
            "release"
        }
    };
    process::run("cargo", &arguments)?;
    let built = workspace.target.join(directory);
    let path = built.join("larder.so");
    // SQLite finds its entry by the name of the file. Renamed into place: programs that have the
    // old one mapped keep it, and would crash if it were written over.
    let made = built.join(format!("larder.so.{}", std::process::id()));
    std::fs::copy(built.join("liblarder_extension.so"), &made)
        .and_then(|_| std::fs::rename(&made, &path))
        .map_err(|error| format!("cannot copy to {}: {error}", path.display()))?;
    Ok(path)
}

/// The command that tests it, after `env`.
pub fn prepare_test() -> Result<Vec<String>, String> {
    let extension = build(Profile::Debug)?;
    let larder = Larder::build(Profile::Debug)?;
    let workspace = Workspace::load()?;
    let manifest = workspace.root.join(EXTENSION);
    Ok(vec![
        format!("LARDER={}", larder.path().display()),
        format!("LARDER_EXTENSION={}", extension.display()),
        "cargo".into(),
        "test".into(),
        "--locked".into(),
        "--manifest-path".into(),
        manifest.display().to_string(),
        "--target-dir".into(),
        workspace.target.display().to_string(),
    ])
}
