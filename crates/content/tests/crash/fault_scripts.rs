//! Failing devices under a mixed load: what an error means to the caller, and what is left after
//! it.
//!
//! A script runs until an injected fault reaches it. What was promised before must last, the tree
//! must be a prefix of the operations, and `check` must be clean, also if the power fails then.

use std::path::PathBuf;
use std::sync::Arc;

use crate::support::{ContentTree, find_fault, open, scratch};
use larder::{CreateOptions, Database, ErrorKind};
use larder_object::EngineOptions;
use larder_testkit::{Faults, Mix, Op, Recorder, RecordingVfs, Rng, Script, SimStorage, digest};

const OPS: usize = 300;
const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 120_000,
    write_bytes_max: 40_000,
    sync_percent: 12,
    overwrite_percent: 3,
    fragment_percent: 0,
};

/// An empty database on a simulated device.
struct Site {
    recorder: Recorder,
    storage: SimStorage,
    engine: EngineOptions,
    path: PathBuf,
    _directory: tempfile::TempDir,
}

impl Site {
    fn new(capacity_bytes: u64) -> Site {
        let directory = scratch();
        let path = directory.path().join("db");
        let recorder = Recorder::new();
        let storage = SimStorage::recording(&recorder);
        let engine = EngineOptions {
            storage: Some(Arc::new(storage.clone())),
            catalog_vfs: Some(RecordingVfs::register(&recorder).name().to_owned()),
            has_background: false,
            ..EngineOptions::default()
        };
        let create = CreateOptions {
            capacity_bytes: Some(capacity_bytes),
            retention_ns: Some(0), // All that is retired is soon used again.
            ..CreateOptions::default()
        };
        Database::create_with(&path, &create, &engine).unwrap();
        recorder.sync_names();
        Site {
            recorder,
            storage,
            engine,
            path,
            _directory: directory,
        }
    }

    fn open(&self) -> ContentTree {
        open(&self.path, self.engine.clone()).unwrap()
    }
}

/// Runs a script, arms a fault on the way, and tells how many operations must last when it struck.
/// `None`: nothing failed before the script ended.
fn run_into(script: &Script, site: &Site, arm_at: usize, arm: &dyn Fn(&Faults)) -> Option<usize> {
    let mut tree = site.open();
    let mut promised = 0;
    for (index, op) in script.ops.iter().enumerate() {
        if index == arm_at {
            arm(site.storage.faults());
        }
        if let Err(error) = tree.apply(op) {
            assert!(
                matches!(error.kind(), ErrorKind::Io | ErrorKind::Stopped),
                "{op:?}: {error}"
            );
            match tree.apply(&Op::SyncAll) {
                // The fault was not in the way of a commit.
                Ok(()) => promised = index,
                // COMMIT-4
                Err(_) => {
                    let create = Op::Create {
                        path: "/one-more".to_owned(),
                        mode: 0o644,
                    };
                    let again = tree
                        .apply(&create)
                        .expect_err("a session that stopped takes nothing more");
                    assert_eq!(again.kind(), ErrorKind::Stopped, "{again}");
                }
            }
            // A session that stopped cannot close well; what counts is what the next one finds.
            let _ = tree.close();
            return Some(promised);
        }
        promised = promised.max(script.promise(index));
    }
    match tree.close() {
        Ok(()) => None,
        // It waited for what was logged to be written in place.
        Err(error) => {
            assert!(
                matches!(error.kind(), ErrorKind::Io | ErrorKind::Stopped),
                "closing: {error}"
            );
            Some(promised)
        }
    }
}

/// The fault at many moments: nothing promised is lost.
fn assert_survives(what: &str, arm: &dyn Fn(&Faults, u64)) {
    let mut struck = 0;
    for seed in 0..25 {
        let (script, mut rng) = (Script::generate(seed, OPS, MIX), Rng::new(seed));
        let site = Site::new(32 << 20);
        let (arm_at, nth) = (rng.below(OPS as u64 / 2) as usize, 1 + rng.below(4));
        let Some(promised) = run_into(&script, &site, arm_at, &|faults| arm(faults, nth)) else {
            continue;
        };
        struck += 1;
        site.recorder.ack(promised as u64);
        let recording = site.recorder.finish();
        let directory = scratch();
        for state in recording.states(recording.events.len(), seed, 12) {
            let fault = find_fault(&script, &state.disk, promised, directory.path())
                .unwrap_or_else(|error| Some(error.to_string()));
            assert_eq!(
                fault, None,
                "{what} {nth} after operation {arm_at}, seed {seed}, {state}"
            );
        }
    }
    assert!(struck >= 15, "only {struck} of 25 faults struck");
}

#[test]
fn a_failed_write_loses_nothing_that_was_reserved() {
    assert_survives("failing write", &Faults::fail_write);
}

#[test]
fn a_failed_flush_loses_nothing_that_was_reserved() {
    assert_survives("failing flush", &Faults::fail_flush);
}

/// The host fills up below the database: the writer is told, nothing else is touched, and the rest
/// of the script runs once there is room again (`EDIT-1`).
#[test]
fn a_full_host_refuses_the_write_and_nothing_else() {
    let mix = Mix {
        entries_max: 60,
        file_bytes_max: 8_000_000,
        write_bytes_max: 3_000_000,
        sync_percent: 4,
        overwrite_percent: 3,
        fragment_percent: 0,
    };
    let mut refused = 0;
    for seed in 0..6 {
        let script = Script::generate(seed, OPS, mix);
        let site = Site::new(1 << 30);
        let mut tree = site.open();
        site.storage.faults().limit_host(80 << 20);
        for (index, op) in script.ops.iter().enumerate() {
            let Err(error) = tree.apply(op) else { continue };
            assert_eq!(
                error.kind(),
                ErrorKind::NoSpace,
                "seed {seed}, {op:?}: {error}"
            );
            assert!(
                matches!(op, Op::Write { .. } | Op::Append { .. }),
                "{op:?} is refused too late: {error}"
            );
            refused += 1;
            tree.apply(&Op::SyncAll).unwrap();
            assert_eq!(tree.findings().unwrap(), Vec::<String>::new());
            let walked = tree.walk().unwrap();
            assert_eq!(
                script.find_prefix(&walked, index, index),
                Some(index),
                "seed {seed}, {op:?}"
            );
            site.storage.faults().limit_host(1 << 40);
            tree.apply(op).unwrap();
        }
        assert_eq!(digest(&tree.walk().unwrap()), digest(&script.tree(OPS)));
        tree.close().unwrap();
    }
    assert!(refused >= 3, "only {refused} of 6 runs met the full host");
}
