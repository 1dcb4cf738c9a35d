//! `cargo xtask mutants [PACKAGE…] [--shard K/N]`: do the tests bite?
//!
//! cargo-mutants changes a package by one small step at a time and runs its tests. A step that no
//! test notices asks for a test, for less code, or for a line that says why neither.

use xtask::install::{CrateProgram, crate_program};
use xtask::workspace::Workspace;
use xtask::{Outcome, process};

const CARGO_MUTANTS: CrateProgram = CrateProgram {
    name: "cargo-mutants",
    version: "27.1.0",
    why: "it changes the code under the tests",
};
/// Packages without I/O: all of their steps take minutes.
const PACKAGES: [&str; 2] = ["larder-format", "larder-space"];

/// Takes the packages, those without I/O if there are none, and which part of the steps.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let (packages, shard) = parse(arguments)?;
    let workspace = Workspace::load()?;
    if let Some(unknown) = packages.iter().find(|name| {
        workspace
            .packages
            .iter()
            .all(|package| package.name != **name)
    }) {
        return Err(format!("there is no package '{unknown}'"));
    }
    let program = crate_program(CARGO_MUTANTS)?;
    let output = workspace.target.display().to_string();
    let mut options = vec![
        "mutants",
        "--no-shuffle",
        "--colors",
        "never",
        "--output",
        &output,
    ];
    for package in &packages {
        options.extend(["--package", package]);
    }
    options.extend(shard.iter().flat_map(|shard| ["--shard", shard]));
    process::run(&program.to_string_lossy(), &options)
}

type Asked<'a> = (Vec<&'a str>, Option<&'a str>);

fn parse<'a>(arguments: &[&'a str]) -> Result<Asked<'a>, String> {
    let usage = || "usage: cargo xtask mutants [PACKAGE…] [--shard K/N]".to_owned();
    let (mut packages, mut shard) = (Vec::new(), None);
    let mut rest = arguments.iter();
    while let Some(&argument) = rest.next() {
        match argument {
            "--shard" => shard = Some(*rest.next().ok_or_else(usage)?),
            option if option.starts_with('-') => return Err(usage()),
            package => packages.push(package),
        }
    }
    if packages.is_empty() {
        packages.extend(PACKAGES);
    }
    Ok((packages, shard))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_and_a_shard_may_be_named() {
        assert_eq!(parse(&[]), Ok((PACKAGES.to_vec(), None)));
        let asked = parse(&["larder", "--shard", "1/4"]);
        assert_eq!(asked, Ok((vec!["larder"], Some("1/4"))));
        for wrong in [&["--shard"][..], &["--quick"]] {
            assert!(parse(wrong).is_err());
        }
    }
}
