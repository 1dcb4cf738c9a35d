//! What was looked at, by which way, and what had happened to it since. A look at a moment that
//! nothing has happened to proves little, and a test that never looked proves nothing: so it is
//! counted, and the tests require the counts.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

/// The ways to look at a moment. Each compares all branches, with all that it shows.
pub const BY_API: &str = "looks by the API";
pub const BY_SQL: &str = "looks by SQL";
pub const BY_SESSIONS: &str = "looks by sessions of the past";
pub const ON_THE_MOUNT: &str = "looks on the mount";
pub const BY_MOUNTS: &str = "looks at mounts of a moment";

/// What may harm the past of what was there before.
pub const CRASH: &str = "a crash";
pub const COMPACTION: &str = "compaction";
pub const PRUNE: &str = "a prune";
pub const ROLLBACK: &str = "a rollback";
pub const STORE_PRUNE: &str = "a prune of a store";
pub const STORE_RETENTION: &str = "another retention of a store";
pub const PRESSURE: &str = "pressure";

/// Of one way.
#[derive(Debug, Clone, Default)]
struct Way {
    looks: u32,
    /// By seed and number.
    moments: BTreeSet<(u64, u64)>,
    /// Looks at what was there before this happened.
    after: BTreeMap<&'static str, u32>,
}

/// What was looked at.
#[derive(Debug, Clone, Default)]
pub struct Coverage {
    ways: BTreeMap<&'static str, Way>,
    /// How many moments there had been when this happened last.
    happened: BTreeMap<&'static str, u64>,
}

impl Coverage {
    /// It has happened to the first `count` moments.
    pub fn happened(&mut self, what: &'static str, count: u64) {
        self.happened.insert(what, count);
    }

    /// The moment with number `nth` was looked at.
    pub fn saw(&mut self, way: &'static str, seed: u64, nth: u64) {
        let way = self.ways.entry(way).or_default();
        way.looks += 1;
        way.moments.insert((seed, nth));
        for (what, _) in self.happened.iter().filter(|(_, count)| nth < **count) {
            *way.after.entry(*what).or_default() += 1;
        }
    }

    /// How often the ways have looked, the least of them.
    pub fn least(&self, ways: &[&'static str]) -> u32 {
        let looks = ways
            .iter()
            .map(|way| self.ways.get(way).map_or(0, |way| way.looks));
        looks.min().unwrap_or_default()
    }

    /// What has happened so far; what happens to a copy did not happen to this.
    pub fn mark(&self) -> BTreeMap<&'static str, u64> {
        self.happened.clone()
    }

    /// Back to the mark.
    pub fn go_back(&mut self, mark: BTreeMap<&'static str, u64>) {
        self.happened = mark;
    }

    /// What another world has covered too.
    pub fn add(&mut self, other: &Coverage) {
        for (name, other) in &other.ways {
            let way = self.ways.entry(*name).or_default();
            way.looks += other.looks;
            way.moments.extend(&other.moments);
            for (what, count) in &other.after {
                *way.after.entry(*what).or_default() += count;
            }
        }
    }

    /// Each of these ways has looked so often, and so often at what was there before each of
    /// `events`.
    pub fn require(
        &self,
        ways: &[&'static str],
        looks_min: u32,
        (events, after_min): (&[&'static str], u32),
    ) {
        for way in ways {
            let found = self.ways.get(way).cloned().unwrap_or_default();
            assert!(
                found.looks >= looks_min,
                "{way}, {looks_min} at least:\n{self}"
            );
            for event in events {
                let after = found.after.get(event).copied().unwrap_or_default();
                assert!(
                    after >= after_min,
                    "{way} after {event}, {after_min} at least:\n{self}"
                );
            }
        }
    }
}

impl fmt::Display for Coverage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (name, way) in &self.ways {
            let after: Vec<String> = (way.after.iter())
                .map(|(what, count)| format!("{count} after {what}"))
                .collect();
            writeln!(
                f,
                "{} {name}, at {} moments: {}",
                way.looks,
                way.moments.len(),
                after.join(", ")
            )?;
        }
        Ok(())
    }
}
