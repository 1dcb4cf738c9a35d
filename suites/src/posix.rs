//! `cargo xtask posix [SUITE…] [--quick]`: programs that know nothing of Larder judge the mount.
//!
//! # Words
//! *Suite*: one program, or one family of them, with what it must show. *Site*: what a suite works
//! in: a scratch directory with a database, its mountpoint, and an ext4 filesystem of its own
//! beside it. *Case*: what a suite counts as one test. *Side*: where the same cases run, the mount
//! or ext4.
//!
//! # How cases are counted
//! A suite says how many cases passed and failed. Where it runs on both sides, ext4 is the judge: a
//! failure that ext4 shows too is not ours, and what is skipped on both is not counted; but what
//! ext4 runs and the mount skips has failed (decision 0020).
//!
//! # Tidiness
//! Each suite has a site of its own, which takes everything with it when it is dropped: the server
//! is killed, both filesystems are unmounted, the directory is removed.

mod build;
mod cpython;
mod durability;
mod fio;
mod fsx;
mod git;
mod judge;
mod model;
mod pjdfstest;
mod postgres;
mod rsync;
mod run;
mod site;
mod sqlite;
mod stress;

use std::time::Instant;

use site::{Length, Site};
use xtask::install::{self, Tool};
use xtask::mounts::{Larder, Profile};
use xtask::{Outcome, Tally};

/// A program, and what it must show.
struct Suite {
    name: &'static str,
    about: &'static str,
    /// Packages that it needs.
    tools: &'static [Tool],
    /// `Err` when it cannot go on; counts as a failure.
    run: fn(&Site) -> Result<Tally, String>,
}

const SUITES: [Suite; 12] = [
    Suite {
        name: "pjdfstest",
        about: "POSIX, call by call; every feature of Linux; compared with ext4",
        tools: &[EXT4],
        run: pjdfstest::run,
    },
    Suite {
        name: "fsx",
        about: "random operations on one file, mmap and copy_file_range among them; 3 seeds",
        tools: &[],
        run: fsx::run,
    },
    Suite {
        name: "model",
        about: "random operations from several threads against a model in memory",
        tools: &[],
        run: model::run,
    },
    Suite {
        name: "durability",
        about: "what was synced survives kill -9; a rename never leaves an empty file",
        tools: &[],
        run: durability::run,
    },
    Suite {
        name: "fio",
        about: "verified writes: unaligned, mmap, direct, queued, several jobs",
        tools: &[Tool {
            program: "fio",
            package: "fio",
            why: "writes and verifies",
        }],
        run: fio::run,
    },
    Suite {
        name: "stress-ng",
        about: "every filesystem stressor, beside ext4",
        tools: &[
            EXT4,
            Tool {
                program: "stress-ng",
                package: "stress-ng",
                why: "stresses filesystems",
            },
        ],
        run: stress::run,
    },
    Suite {
        name: "cpython",
        about: "CPython's own tests of files, with their temporary directory here and on ext4",
        tools: &[EXT4],
        run: cpython::run,
    },
    Suite {
        name: "git",
        about: "clone, gc and fsck of a large repository",
        tools: &[],
        run: git::run,
    },
    Suite {
        name: "build",
        about: "a release build of Larder, with its output and its sources on the mount",
        tools: &[],
        run: build::run,
    },
    Suite {
        name: "postgres",
        about: "initdb, pgbench, kill -9 of the mount, recovery, amcheck",
        tools: &[],
        run: postgres::run,
    },
    Suite {
        name: "sqlite",
        about: "writers in several processes, kill -9, integrity_check; WAL and rollback modes",
        tools: &[],
        run: sqlite::run,
    },
    Suite {
        name: "rsync",
        about: "rsync -aHAX --checksum both ways: links, ACLs, attributes, devices, holes, times",
        tools: &[
            EXT4,
            Tool {
                program: "setfacl",
                package: "acl",
                why: "sets ACLs",
            },
        ],
        run: rsync::run,
    },
];

const EXT4: Tool = Tool {
    program: "/usr/sbin/mkfs.ext4",
    package: "e2fsprogs",
    why: "makes the filesystem to compare with",
};

/// Takes `[SUITE…] [--quick]`; without names, runs all suites.
pub fn parse_and_run(arguments: &[&str]) -> Outcome {
    let names: Vec<&str> = arguments
        .iter()
        .copied()
        .filter(|name| *name != "--quick")
        .collect();
    let length = match names.len() == arguments.len() {
        true => Length::Full,
        false => Length::Quick,
    };
    if let Some(unknown) = names.iter().find(|name| find_suite(name).is_none()) {
        let list: Vec<String> = SUITES
            .iter()
            .map(|suite| format!("  {:11}{}", suite.name, suite.about))
            .collect();
        return Err(format!(
            "posix has no suite '{unknown}'\nusage: posix [SUITE…] [--quick]\n\n{}",
            list.join("\n")
        ));
    }
    let chosen = SUITES
        .iter()
        .filter(|suite| names.is_empty() || names.contains(&suite.name));
    let mut sum = Tally::default();
    let mut lines = Vec::new();
    for suite in chosen {
        println!("\n== {}: {}", suite.name, suite.about);
        let started = Instant::now();
        let tally = count(suite.name, length);
        let line = format!(
            "{:11}{:5} passed, {:3} failed, {:7.1} s",
            suite.name,
            tally.passed,
            tally.failed,
            started.elapsed().as_secs_f64()
        );
        println!("== {line}");
        lines.push(line);
        sum.add(tally);
    }
    println!("\n{}", lines.join("\n"));
    sum.end()
}

/// Runs one suite; what keeps it from going on is printed and counts as a failure.
fn count(name: &str, length: Length) -> Tally {
    let suite = find_suite(name).expect("callers name suites that exist");
    // Assertions watch the quick runs.
    let profile = length.choose(Profile::Debug, Profile::Release);
    let outcome = install::packages(suite.tools)
        .and_then(|()| Larder::build(profile))
        .and_then(|larder| Site::new(larder, length))
        .and_then(|site| (suite.run)(&site));
    outcome.unwrap_or_else(|line| {
        println!("failed: {name}: {line}");
        Tally {
            passed: 0,
            failed: 1,
        }
    })
}

fn find_suite(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}
