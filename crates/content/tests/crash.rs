//! Crash replay of the whole engine: what a power failure may leave opens, is clean, and is a prefix
//! of the operations that holds everything that was promised (`CONTENT-3`, `CONTENT-5`).
//!
//! A script runs on simulated devices and a recording SQLite VFS; the states of the recording are
//! opened one by one. `LARDER_CRASH_SEED` and `LARDER_CRASH_POINTS` choose another run
//! (`cargo xtask crash SEED`). A failure prints its seed, and leaves the state in a directory.
#![allow(clippy::unwrap_used)] // All of it is a test.

mod support;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use larder::{CreateOptions, Database, OpenOptions, Result};
use larder_object::EngineOptions;
use larder_testkit::{
    CrashState, Mix, Recorder, Recording, RecordingVfs, SEGMENTS, Script, SimStorage,
    explain_difference,
};
use support::ContentTree;

const POINTS: usize = 1500;
const OPS: usize = 260;
const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 120_000,
    write_bytes_max: 40_000,
    sync_percent: 8,
};

/// A script that ran, and what it did to the medium.
struct Run {
    script: Script,
    recording: Recording,
    /// Length of the log when the empty database had been created and opened.
    created: usize,
}

/// Runs the script of `seed`: half of it, then a clean close, and the rest after another open.
fn record(seed: u64, has_background: bool) -> Run {
    let script = Script::generate(seed, OPS, MIX);
    let directory = scratch();
    let path = directory.path().join("db");
    let recorder = Recorder::new();
    let vfs = RecordingVfs::register(&recorder);
    let storage = SimStorage::recording(&recorder);
    let engine = EngineOptions {
        storage: Some(Arc::new(storage)),
        catalog_vfs: Some(vfs.name().to_owned()),
        commit_interval: Duration::from_millis(10),
        has_background,
        ..EngineOptions::default()
    };
    let create = CreateOptions {
        capacity_bytes: Some(32 << 20),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &create, &engine).unwrap();
    // `create` syncs the directory that it made; nothing records that.
    recorder.sync_names();
    recorder.ack(0);
    let created = recorder.position();
    for (start, end) in [(0, OPS / 2), (OPS / 2, OPS)] {
        let options = OpenOptions {
            engine: engine.clone(),
            ..OpenOptions::default()
        };
        let mut tree = ContentTree::new(Database::open(&path, options).unwrap());
        for index in start..end {
            let op = &script.ops[index];
            tree.apply(op)
                .unwrap_or_else(|error| panic!("seed {seed}, {index}: {op:?}: {error}"));
            if script.promise(index) > 0 {
                recorder.ack(script.promise(index) as u64);
            }
        }
        tree.close().unwrap();
        recorder.ack(end as u64);
    }
    Run {
        script,
        recording: recorder.finish(),
        created,
    }
}

/// What is wrong with a state, if anything.
fn find_fault(script: &Script, state: &CrashState, directory: &Path) -> Result<Option<String>> {
    state.disk.write_catalog(directory).unwrap();
    let promised = state.acked.expect("points come after the first ack") as usize;
    let storage = Arc::new(SimStorage::load(&state.disk));
    let mut found = None;
    // Twice: what recovery leaves must be as good as what it found.
    for attempt in ["first", "second"] {
        let engine = EngineOptions {
            storage: Some(storage.clone()),
            has_background: false,
            ..EngineOptions::default()
        };
        let tree = ContentTree::new(Database::open(
            directory,
            OpenOptions {
                engine,
                ..OpenOptions::default()
            },
        )?);
        if let Some(finding) = tree.findings()?.first() {
            return Ok(Some(format!("{attempt} open: check finds: {finding}")));
        }
        let walked = tree.walk()?;
        tree.close()?;
        let least = found.unwrap_or(promised);
        found = script.find_prefix(&walked, least, found.unwrap_or(OPS));
        if found.is_none() {
            let older = script.find_prefix(&walked, 0, promised);
            let difference = explain_difference(&script.tree(least), &walked);
            return Ok(Some(format!(
                "{attempt} open: no prefix from {least} on (an older one: {older:?}); against {least}:\n{difference}"
            )));
        }
    }
    Ok(None)
}

/// Opens up to `budget` states on all cores, and returns what is wrong, the states beside it, and how
/// many there were.
fn replay(run: &Run, recording: &Recording, budget: usize) -> (Vec<(CrashState, String)>, usize) {
    let states = Mutex::new(recording.states(run.created, run.script.seed, budget));
    let (faults, count) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let work = || {
        let directory = scratch();
        loop {
            let state = states.lock().unwrap().next();
            let Some(state) = state else { return };
            count.fetch_add(1, Ordering::Relaxed);
            let fault = find_fault(&run.script, &state, directory.path())
                .unwrap_or_else(|error| Some(format!("it does not open or read: {error}")));
            if let Some(fault) = fault {
                faults.lock().unwrap().push((state, fault));
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 0..std::thread::available_parallelism().map_or(2, |cores| cores.get()) {
            scope.spawn(work);
        }
    });
    (faults.into_inner().unwrap(), count.into_inner())
}

/// A directory in memory where there is one: thousands of states are written to it.
fn scratch() -> tempfile::TempDir {
    let memory = Path::new("/dev/shm");
    if memory.is_dir() {
        tempfile::tempdir_in(memory)
    } else {
        tempfile::tempdir()
    }
    .unwrap()
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number"))
    })
}

fn assert_whole(has_background: bool) {
    let seed = setting("LARDER_CRASH_SEED", 1);
    let points = setting("LARDER_CRASH_POINTS", POINTS as u64) as usize;
    let run = record(seed, has_background);
    let (faults, count) = replay(&run, &run.recording, points);
    println!(
        "seed {seed}: {count} crash points in a log of {} events",
        run.recording.events.len()
    );
    assert_eq!(count, points, "the log has too few states");
    if let Some((state, fault)) = faults.first() {
        panic!(
            "seed {seed}: {} of {count} states are wrong; left in {}; {state}: {fault}",
            faults.len(),
            keep(state).display()
        );
    }
}

/// Puts a state where it can be looked at, as an ordinary database.
fn keep(state: &CrashState) -> PathBuf {
    let directory = tempfile::Builder::new()
        .prefix("larder-crash-")
        .tempdir()
        .unwrap()
        .keep();
    state.disk.write_catalog(&directory).unwrap();
    state.disk.write_segments(&directory).unwrap();
    directory
}

#[test]
fn every_crash_leaves_a_clean_prefix() {
    assert_whole(false);
}

#[test]
fn every_crash_leaves_a_clean_prefix_with_commits_in_the_background() {
    assert_whole(true);
}

/// The negative control: a medium that ignores one kind of flush must be found out.
#[test]
fn a_dropped_flush_is_found() {
    let run = record(setting("LARDER_CRASH_SEED", 1), false);
    let control = |what: &str, ignored: &dyn Fn(&str) -> bool| {
        let (faults, count) = replay(&run, &run.recording.without_flushes(ignored), 200);
        assert!(
            !faults.is_empty(),
            "{count} states and nobody misses the flushes of {what}"
        );
    };
    control("segments", &|file| file.starts_with(SEGMENTS));
    control("the write-ahead log", &|file| file.ends_with("-wal"));
}
