//! Worlds of several stores and rows, against the model of `world`, through all that may happen to
//! the history.
//!
//! `LARDER_SEED` runs that one.

use super::{engine, open};
use crate::common;
use crate::common::moments::{Clock, MILLISECOND};
use crate::support::{self, ContentTree};
use crate::world::coverage::{
    BY_API, BY_SESSIONS, BY_SQL, COMPACTION, CRASH, Coverage, PRESSURE, PRUNE, ROLLBACK,
    STORE_PRUNE, STORE_RETENTION,
};
use crate::world::{Options, World};
use std::collections::BTreeMap;

/// The ways in which each world is looked at.
const WAYS: [&str; 2] = [BY_API, BY_SQL];

/// What worlds have done and looked at.
#[derive(Default)]
struct Done {
    counts: BTreeMap<&'static str, u32>,
    coverage: Coverage,
}

impl Done {
    fn add(&mut self, world: &World) {
        for (what, count) in &world.counts {
            *self.counts.entry(*what).or_default() += count;
        }
        self.coverage.add(&world.coverage);
    }

    /// All of this was done.
    fn require(&self, operations: &[&str]) {
        for what in operations {
            let is_done = self.counts.get(what).is_some_and(|&count| count > 0);
            assert!(is_done, "{what}: {:?}", self.counts);
        }
    }
}

/// Operations on files of several stores and on rows, with everything that may happen to the
/// history in between; `looks` times a random moment is compared with the model.
/// `has_store_retentions`: [`Options::has_store_retentions`].
fn run_world(seed: u64, step_count: usize, looks: u32, has_store_retentions: bool) -> World {
    let mut dir = support::scratch();
    let clock = Clock::new();
    let passes = clock.clone();
    let options = Options {
        engine: engine(&clock),
        pass: Box::new(move |ns| passes.pass(ns.max(MILLISECOND))),
        has_plain_sql: false,
        has_store_retentions,
        is_alone: true,
    };
    let mut world = World::create(seed, &dir.path().join("t.larder"), options);
    for _ in 0..step_count {
        world.step();
        match world.rng.below(1000) {
            0..200 => world.note_moment(),
            200..260 => world.large_operation(),
            260..265 => world.clone_store(),
            265..270 => world.promote_stores(),
            270..290 => world.defrag(),
            290..300 => world.reopen(),
            300..305 => world.prune(false),
            305..315 => {
                world.note_moment();
                let left = support::scratch();
                common::crash(dir.path(), left.path());
                if has_store_retentions && world.rng.chance(60) {
                    world.go_on_at(&left.path().join("t.larder"));
                    dir = left;
                    world.happened(CRASH);
                    world.check(&world.database);
                    world.note_moment();
                } else {
                    look_at_what_is_left(&mut world, &open(&clock, left.path()));
                }
                world.count("crash");
            }
            315..375 if has_store_retentions => {
                world.keep_otherwise();
                world.note_moment();
            }
            375..390 if has_store_retentions => world.prune(false),
            390..420 if has_store_retentions => world.large_operation(),
            _ => {}
        }
    }
    world.note_moment();
    world.look_at_readers();
    for looks in [looks, looks / 10] {
        // Some moments cannot be seen any more.
        let wanted = world.coverage.least(&WAYS) + looks;
        while world.coverage.least(&WAYS) < wanted {
            let was = world.pick();
            world.look(&was);
        }
        world.reopen();
    }
    world.check(&world.database);
    println!(
        "seed {seed}: {} moments, {:?}\n{}",
        world.moments.len(),
        world.counts,
        world.coverage
    );
    world
}

/// A crash leaves a copy of the world with the same past.
fn look_at_what_is_left(world: &mut World, found: &ContentTree) {
    world.check(found.database());
    let mark = world.coverage.mark();
    world.happened(CRASH);
    world.look_at_copy(|world| {
        for _ in 0..3 {
            let was = world.pick();
            world.look_by_api(found.database(), &was);
            world.look_by_sql(found.database(), &was);
        }
    });
    world.coverage.go_back(mark);
}

fn run_worlds(seeds: &[u64], step_count: usize, looks: u32, has_store_retentions: bool) -> Done {
    let mut done = Done::default();
    for seed in seeds {
        done.add(&run_world(*seed, step_count, looks, has_store_retentions));
    }
    println!("{} seeds:\n{}", seeds.len(), done.coverage);
    done
}

/// `LARDER_SEED` runs that one.
fn seeds(all: impl IntoIterator<Item = u64>) -> Vec<u64> {
    match std::env::var("LARDER_SEED") {
        Ok(seed) => vec![seed.parse().unwrap()],
        Err(_) => all.into_iter().collect(),
    }
}

/// What may happen to every world, and what else to those whose stores have retentions of their
/// own.
const EVENTS: [&str; 4] = [CRASH, COMPACTION, PRUNE, ROLLBACK];
const EVENTS_APART: [&str; 7] = [
    CRASH,
    COMPACTION,
    PRUNE,
    ROLLBACK,
    STORE_PRUNE,
    STORE_RETENTION,
    PRESSURE,
];

/// Operations that are done in every world.
const OPERATIONS: [&str; 19] = [
    "clone",
    "clone of the past",
    "clone of a store",
    "exact restore",
    "restore",
    "restore with rows",
    "undo",
    "undo of the newest",
    "promote",
    "promote of stores",
    "rollback",
    "rollback of a store",
    "prune",
    "crash",
    "reopen",
    "defrag",
    "snapshot",
    "content by SQL",
    "rows",
];

/// And those of worlds whose stores have retentions of their own.
const OPERATIONS_PER_STORE: [&str; 15] = [
    "retention of a store",
    "retention of a store: 0",
    "retention of a store: the default again",
    "guarantee of a store",
    "guarantee of a store ended",
    "guarantee",
    "guarantee ended",
    "prune of a store",
    "prune up to a snapshot",
    "pressure",
    "hold",
    "reader",
    "reads of a held past",
    "refused before a store's history",
    "rollback refused",
];

#[test]
fn stores_and_rows_read_as_the_model_says_through_rollbacks_crashes_and_prunes() {
    // All operations are in these. 16: tiny content, forgotten because of another one's commit, was
    // dropped with the next change of the inode (NODE-1).
    let seeds = seeds([1, 2, 3, 16]);
    // CONTENT-9, CONTENT-12, CLONE-1, ROLLBACK-2
    let done = run_worlds(&seeds, 250, 20, false);
    if seeds.len() > 1 {
        done.require(&OPERATIONS);
        (done.coverage).require(&[BY_API, BY_SQL, BY_SESSIONS], 20, (&EVENTS, 5));
    }
}

#[test]
fn stores_with_their_own_retention_read_as_the_model_says() {
    let seeds = seeds([21, 22, 23]);
    // HISTORY-7, TIME-2, TIME-4, TIME-6, TIME-8, PAST-2
    let done = run_worlds(&seeds, 250, 20, true);
    if seeds.len() > 1 {
        done.require(&OPERATIONS_PER_STORE);
        (done.coverage).require(&WAYS, 20, (&EVENTS_APART, 3));
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn stores_and_rows_read_as_the_model_says_at_a_thousand_moments() {
    let seeds = seeds(100..110);
    let done = run_worlds(&seeds, 1000, 1000, false);
    done.coverage.require(&WAYS, 1000, (&EVENTS, 10));
    if seeds.len() > 1 {
        done.require(&OPERATIONS);
        (done.coverage).require(&WAYS, 10_000, (&EVENTS, 100));
    }
}

#[test]
#[ignore = "takes minutes: cargo xtask soak"]
fn stores_with_their_own_retention_read_as_the_model_says_at_a_thousand_moments() {
    let seeds = seeds(300..310);
    let done = run_worlds(&seeds, 1000, 1000, true);
    done.coverage.require(&WAYS, 1000, (&[], 0));
    if seeds.len() > 1 {
        done.require(&OPERATIONS);
        done.require(&OPERATIONS_PER_STORE);
        done.require(&[
            "hold ended",
            "restore refused before a store's history",
            "pressure beside a guarantee",
        ]);
        (done.coverage).require(&WAYS, 10_000, (&EVENTS_APART, 1000));
    }
}
