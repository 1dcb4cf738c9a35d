//! Replaying crashes: the states that a crash may leave are opened and looked at.
//!
//! `LARDER_CRASH_SEED` and `LARDER_CRASH_POINTS` choose another run.

use larder::{Database, DatabaseOptions};
use larder_object::EngineOptions;
use larder_testkit::{CrashState, Recording, SimStorage};
use std::panic::{AssertUnwindSafe, catch_unwind, set_hook, take_hook};
use std::sync::Arc;

/// States that a negative control looks at.
const CONTROLS: usize = 1000;

/// Says what is wrong with a state, if anything is.
pub type FindFault = fn(&CrashState) -> Option<String>;

pub fn seed() -> u64 {
    setting("LARDER_CRASH_SEED", 1)
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| value.parse().unwrap())
}

/// What is wrong with a state, if anything is: why `look` panics at the database in it. `look`
/// hears of the last number that was acked, 0 if none was.
pub fn find_fault(state: &CrashState, look: impl FnOnce(&Database, u64)) -> Option<String> {
    let directory = super::scratch();
    state.disk.write_catalog(directory.path()).unwrap();
    let options = DatabaseOptions {
        engine: EngineOptions {
            storage: Some(Arc::new(SimStorage::load(&state.disk, None))),
            has_background: false,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let looked = catch_unwind(AssertUnwindSafe(|| {
        let db = Database::open(directory.path(), options).unwrap();
        look(&db, state.acked.unwrap_or(0));
        db.close().unwrap();
    }));
    looked.err().map(|why| match why.downcast_ref::<String>() {
        Some(text) => text.clone(),
        None => "it panics".into(),
    })
}

/// Nothing is wrong with any of the states from event `from` on: with so many of them, unless the
/// environment says how many.
pub fn require_sound(recording: &Recording, from: usize, points: u64, find_fault: FindFault) {
    let points = setting("LARDER_CRASH_POINTS", points) as usize;
    let seed = seed();
    let mut count = 0;
    for state in recording.states(from, seed, points) {
        count += 1;
        if let Some(fault) = find_fault(&state) {
            panic!("seed {seed}: {state}: {fault}");
        }
    }
    assert_eq!(count, points, "the log has too few states");
}

/// The negative control: whether a fault is found that has these words in it.
pub fn has_fault(recording: &Recording, from: usize, words: &str, find_fault: FindFault) -> bool {
    quietly(|| {
        let states = recording.states(from, seed(), CONTROLS);
        let mut faults = states.filter_map(|state| find_fault(&state));
        faults.any(|fault| fault.contains(words))
    })
}

/// Without a word about panics, which are meant.
pub fn quietly<T>(run: impl FnOnce() -> T) -> T {
    let hook = take_hook();
    set_hook(Box::new(|_| {}));
    let found = run();
    set_hook(hook);
    found
}
