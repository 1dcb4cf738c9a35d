//! Crash replay of the whole engine: what a power failure may leave opens, is clean, and is a
//! prefix of the operations that holds everything that was promised (`CONTENT-3`, `CONTENT-5`,
//! `COMMIT-1`); with a flush left out it is not, and the replay says so (`COMMIT-2`).
//!
//! A script runs on simulated devices and a recording SQLite VFS; the states of the recording are
//! opened one by one. `LARDER_CRASH_SEED` and `LARDER_CRASH_POINTS` choose another run
//! (`cargo xtask crash SEED`). A failure prints its seed, and leaves the state in a directory.

use std::collections::BTreeSet;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::support::{find_fault, open, scratch};
use larder::format::superblock;
use larder::{CreateOptions, Database};
use larder_object::EngineOptions;
use larder_testkit::{
    CrashState, Event, Mix, Model, Op, Payload, Recorder, Recording, RecordingVfs, SEGMENTS,
    Script, SimStorage, States,
};

const POINTS: usize = 400;
const OPS: usize = 400;
const MIX: Mix = Mix {
    entries_max: 40,
    file_bytes_max: 120_000,
    write_bytes_max: 40_000,
    sync_percent: 8,
    overwrite_percent: 6,
    fragment_percent: 0,
};

/// Files that are too large to be rewritten, so that they get pieces.
const FRAGMENTS: Mix = Mix {
    entries_max: 6,
    file_bytes_max: 700_000,
    write_bytes_max: 90_000,
    sync_percent: 8,
    overwrite_percent: 6,
    fragment_percent: 45,
};

/// When commits happen, beside those of syncs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Commits {
    /// When so much is dirty that writers wait: the run repeats exactly.
    WhenFull,
    /// Also a few milliseconds after a change, in the background.
    Background,
    /// As `WhenFull`; and every few operations everything is moved so that it lies in one piece, or
    /// so that the segment can be shorter.
    Moving,
    /// The same, and history is kept.
    MovingWithPast,
}

impl Commits {
    fn moves(self) -> bool {
        matches!(self, Commits::Moving | Commits::MovingWithPast)
    }
}

/// A script that ran, and what it did to the medium.
struct Run {
    script: Script,
    recording: Recording,
    /// Length of the log when the empty database had been created.
    created: usize,
    /// Where in the log redo rows were applied.
    applies: Vec<Range<usize>>,
}

/// Runs the script of `seed`: half of it, then a clean close, and the rest after another open.
fn record(seed: u64, commits: Commits, mix: Mix) -> Run {
    let script = Script::generate(seed, OPS, mix);
    let directory = scratch();
    let path = directory.path().join("db");
    let recorder = Recorder::new();
    let vfs = RecordingVfs::register(&recorder);
    let engine = EngineOptions {
        storage: Some(Arc::new(SimStorage::recording(&recorder))),
        catalog_vfs: Some(vfs.name().to_owned()),
        commit_interval: Duration::from_millis(4),
        dirty_bytes_max: 300_000,
        redo_bytes_max: 80_000,
        has_background: commits == Commits::Background,
        ..EngineOptions::default()
    };
    let create = CreateOptions {
        capacity_bytes: Some(32 << 20),
        // Without history all that is retired is soon used again.
        retention_ns: Some(match commits {
            Commits::MovingWithPast => 3_600_000_000_000,
            _ => 0,
        }),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &create, &engine).unwrap();
    // `create` syncs the directory that it made; nothing records that.
    recorder.sync_names();
    recorder.ack(0);
    let created = recorder.position();
    let mut moved_bytes = 0;
    let (mut redo_count, mut logged_count, mut applies) = (0, 0, Vec::new());
    for (start, end) in [(0, OPS / 2), (OPS / 2, OPS)] {
        let mut tree = open(&path, engine.clone()).unwrap();
        for index in start..end {
            let op = &script.ops[index];
            let (from, waiting) = (recorder.position(), tree.redo_bytes().unwrap());
            let mapped = tree.used_bytes().unwrap();
            tree.apply(op)
                .unwrap_or_else(|error| panic!("seed {seed}, {index}: {op:?}: {error}"));
            if script.promise(index) > 0 {
                recorder.ack(script.promise(index) as u64);
            }
            if commits.moves() && index % 4 == 3 {
                moved_bytes += tree.move_content(index % 20 == 19).unwrap();
            }
            let now_waiting = tree.redo_bytes().unwrap();
            redo_count += usize::from(now_waiting > waiting);
            let has_more = tree.used_bytes().unwrap() > mapped;
            logged_count += usize::from(now_waiting > waiting && has_more);
            if now_waiting == 0 && waiting > 0 && script.promise(index) > 0 {
                applies.push(from..recorder.position());
            }
            if commits == Commits::Background {
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        tree.close().unwrap();
        recorder.ack(end as u64);
    }
    assert!(
        moved_bytes > 1 << 20 || !commits.moves(),
        "only {moved_bytes} bytes moved: moving is not tested"
    );
    let recording = recorder.finish();
    let reused = reused_write_count(&recording);
    assert!(
        reused > 20,
        "only {reused} writes went where others had been: reuse is not tested"
    );
    // Of other seeds some have fewer.
    if commits == Commits::WhenFull && seed == 1 {
        assert!(
            redo_count > 5 && logged_count > 5 && applies.len() > 1,
            "{redo_count} commits with redo_rows, {logged_count} of new content, {} applies: not \
             tested",
            applies.len()
        );
    }
    Run {
        script,
        recording,
        created,
        applies,
    }
}

/// Writes of content to places that had content before: what `COMMIT-3` is about.
fn reused_write_count(recording: &Recording) -> usize {
    let mut written: BTreeSet<u64> = BTreeSet::new();
    let mut is_reuse = |event: &&Event| {
        let Event::Write {
            file,
            offset_bytes,
            bytes: Payload::Bytes(bytes),
        } = event
        else {
            return false;
        };
        let end = offset_bytes + bytes.len() as u64;
        let blocks = (*offset_bytes..end).step_by(4096);
        // Superblocks are written in place, at the start of the file.
        file.starts_with(SEGMENTS)
            && *offset_bytes >= superblock::DATA_OFFSET_BYTES
            && blocks.filter(|block| !written.insert(*block)).count() > 0
    };
    recording
        .events
        .iter()
        .filter(|event| is_reuse(event))
        .count()
}

/// Opens all `states` on all cores, and returns what is wrong, and how many there were. A state
/// before any ack must hold the first `promised` operations.
fn replay(
    script: &Script,
    states: States<'_>,
    promised: usize,
) -> (Vec<(CrashState, String)>, usize) {
    let states = Mutex::new(states);
    let (faults, count) = (Mutex::new(Vec::new()), AtomicUsize::new(0));
    let work = || {
        let directory = scratch();
        loop {
            let state = states.lock().unwrap().next();
            let Some(state) = state else { return };
            count.fetch_add(1, Ordering::Relaxed);
            let promised = state.acked.map_or(promised, |acked| acked as usize);
            let fault = find_fault(script, &state.disk, promised, directory.path())
                .unwrap_or_else(|error| Some(format!("it does not open or read: {error}")));
            if let Some(fault) = fault {
                faults.lock().unwrap().push((state, fault));
            }
        }
    };
    std::thread::scope(|scope| {
        let cores = std::thread::available_parallelism().map_or(2, |cores| cores.get());
        for _ in 0..setting("LARDER_CRASH_THREADS", cores as u64) {
            scope.spawn(work);
        }
    });
    (faults.into_inner().unwrap(), count.into_inner())
}

fn setting(name: &str, default: u64) -> u64 {
    std::env::var(name).map_or(default, |value| {
        value
            .parse()
            .unwrap_or_else(|_| panic!("{name} is no number"))
    })
}

fn seed() -> u64 {
    setting("LARDER_CRASH_SEED", 1)
}

/// Replays the run of the seed; every state must be whole.
fn assert_whole(commits: Commits, mix: Mix) {
    let points = setting("LARDER_CRASH_POINTS", POINTS as u64) as usize;
    let run = record(seed(), commits, mix);
    let (faults, count) = replay(
        &run.script,
        run.recording.states(run.created, seed(), points),
        0,
    );
    println!(
        "seed {}, {commits:?}: {count} crash points in a log of {} events",
        seed(),
        run.recording.events.len()
    );
    assert_eq!(count, points, "the log has too few states");
    assert_none(&faults, count);
}

fn assert_none(faults: &[(CrashState, String)], count: usize) {
    if let Some((state, fault)) = faults.first() {
        let kept = keep(state);
        panic!(
            "seed {}: {} of {count} states are wrong; one is left in {}; {state}: {fault}",
            seed(),
            faults.len(),
            kept.display()
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
    assert_whole(Commits::WhenFull, MIX);
}

#[test]
fn every_crash_leaves_a_clean_prefix_with_commits_in_the_background() {
    assert_whole(Commits::Background, MIX);
}

/// Lists of pieces are of the same moment as what they refer to (`PIECE-1` to `PIECE-5`).
#[test]
fn every_crash_leaves_a_clean_prefix_of_fragment_operations() {
    let script = Script::generate(seed(), OPS, FRAGMENTS);
    let mut model = Model::new();
    let mut large_count = 0;
    for op in &script.ops {
        if let Op::Replace { path, .. } | Op::Move { path, .. } = op {
            let mut files = model.paths();
            let is_large = files.any(|(file, _, len)| file == path && len > Some(256 << 10));
            large_count += usize::from(is_large);
        }
        model.apply(op);
    }
    assert!(
        large_count > 20,
        "{large_count} operations on files that are not rewritten"
    );
    assert_whole(Commits::WhenFull, FRAGMENTS);
}

/// Moves are part of their group, and a segment is never shorter than somebody needs (`COMPACT-3`,
/// `SEGMENT-7`).
#[test]
fn every_crash_leaves_a_clean_prefix_while_content_is_moved() {
    assert_whole(Commits::Moving, MIX);
}

/// Where content was is used again while older versions name it, and no crash parts them from where
/// it is now (`HISTORY-5`).
#[test]
fn every_crash_leaves_the_past_of_what_was_moved() {
    assert_whole(Commits::MovingWithPast, MIX);
}

/// Recovery itself may be cut off, and the next one must do as well.
#[test]
fn a_crash_during_recovery_loses_nothing_more() {
    let run = record(seed(), Commits::WhenFull, MIX);
    let crashes = run.recording.states(run.created, seed(), 400).step_by(50);
    let mut count_all = 0;
    for crash in crashes {
        let promised = crash.acked.unwrap_or(0) as usize;
        let directory = scratch();
        crash.disk.write_catalog(directory.path()).unwrap();
        let recorder = Recorder::new();
        let engine = EngineOptions {
            storage: Some(Arc::new(SimStorage::load(&crash.disk, Some(&recorder)))),
            catalog_vfs: Some(RecordingVfs::register(&recorder).name().to_owned()),
            has_background: false,
            ..EngineOptions::default()
        };
        open(directory.path(), engine).unwrap().close().unwrap();
        let recovery = recorder.finish();
        let (faults, count) = replay(
            &run.script,
            recovery.states_on(&crash.disk, 0, seed(), 40),
            promised,
        );
        assert_none(&faults, count);
        count_all += count;
    }
    assert!(
        count_all > 100,
        "recovery writes too little to be cut off: {count_all} states"
    );
}

/// The negative control: a medium that ignores one kind of flush must be found out.
#[test]
fn a_dropped_flush_is_found() {
    assert_found(&record(seed(), Commits::WhenFull, MIX));
}

#[test]
fn a_dropped_flush_is_found_while_content_is_moved() {
    assert_found(&record(seed(), Commits::Moving, MIX));
}

fn assert_found(run: &Run) {
    let control = |what: &str, ignored: &dyn Fn(&str) -> bool| {
        let recording = run.recording.without_flushes(ignored);
        let (faults, count) = replay(&run.script, recording.states(run.created, seed(), 150), 0);
        assert!(
            !faults.is_empty(),
            "{count} states, and nobody misses the flushes of {what}"
        );
    };
    control("segments", &|file| file.starts_with(SEGMENTS));
    control("the write-ahead log", &|file| file.ends_with("-wal"));
}

/// The same for the one flush that stands between writing redo rows in place and forgetting them
/// (`REDO-4`).
#[test]
fn a_dropped_flush_of_an_apply_is_found() {
    let run = record(seed(), Commits::WhenFull, MIX);
    let mut recording = run.recording.clone();
    let is_flush =
        |event: &Event| matches!(event, Event::Flush { file, .. } if file.starts_with(SEGMENTS));
    for apply in run.applies {
        let last = recording.events[apply.clone()].iter().rposition(is_flush);
        let at = apply.start + last.expect("an apply flushes");
        if let Event::Flush { covers, .. } = &mut recording.events[at] {
            *covers = 0;
        }
    }
    let (faults, count) = replay(&run.script, recording.states(run.created, seed(), 1000), 0);
    assert!(
        !faults.is_empty(),
        "{count} states, and nobody misses the flushes of applies"
    );
}
