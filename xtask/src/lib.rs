//! What the developers' programs share: the workspace, the programs that it needs, and mounts of
//! the built `larder` command.
//!
//! `cargo xtask` itself is built without Larder, so that it starts at once. What drives Larder are
//! the packages `larder-suites` and `larder-bench`.

pub mod install;
pub mod mounts;
pub mod process;
pub mod workspace;

/// What a verb answers: `Err` holds one line for people.
pub type Outcome = Result<(), String>;

/// What suites count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Tests that passed.
    pub passed: u64,
    /// Tests that failed.
    pub failed: u64,
}

impl Tally {
    /// What `outcome` says of `count` tests that stand or fall together; the error is printed.
    pub fn of(count: u64, outcome: Outcome) -> Tally {
        match outcome {
            Ok(()) => Tally {
                passed: count,
                failed: 0,
            },
            Err(line) => {
                println!("failed: {line}");
                Tally {
                    passed: 0,
                    failed: 1,
                }
            }
        }
    }

    /// Adds what another suite counted.
    pub fn add(&mut self, other: Tally) {
        self.passed += other.passed;
        self.failed += other.failed;
    }

    /// Prints the counts as the closing line; an error if anything failed.
    pub fn end(self) -> Outcome {
        println!("{} passed, {} failed", self.passed, self.failed);
        match self.failed {
            0 => Ok(()),
            failed => Err(format!("{failed} failed")),
        }
    }
}

/// An error in its own words.
pub fn explain(error: impl std::fmt::Display) -> String {
    error.to_string()
}
