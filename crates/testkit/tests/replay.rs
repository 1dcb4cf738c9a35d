//! The crash replay on a store small enough to be seen through: blocks in a segment, rows in
//! SQLite.
//!
//! It also proves that the replay finds what it is for: each kind of missing flush turns it red.
#![allow(clippy::unwrap_used)] // All of it is a test.

use std::path::Path;

use larder_segment::Storage;
use larder_segment::format::SegmentIndex;
use larder_testkit::{
    CrashState, Recorder, Recording, RecordingVfs, Rng, SEGMENTS, SimStorage, fill,
};
use rusqlite::{Connection, OpenFlags};

const ROUNDS: u64 = 60;
const BLOCK_BYTES: u64 = 6000;

fn open(path: &Path, vfs: &str) -> rusqlite::Result<Connection> {
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_CREATE;
    let connection = Connection::open_with_flags_and_vfs(path.join("catalog.db"), flags, vfs)?;
    connection.execute_batch("PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL")?;
    Ok(connection)
}

/// Writes `ROUNDS` blocks, each before the row that names it, and acks each commit. Checkpoints now
/// and then, and once the log is opened anew.
fn record() -> Recording {
    let directory = tempfile::tempdir().unwrap();
    let recorder = Recorder::new();
    let vfs = RecordingVfs::register(&recorder);
    let storage = SimStorage::recording(&recorder);
    let mut rng = Rng::new(11);
    let mut connection = open(directory.path(), vfs.name()).unwrap();
    connection
        .execute_batch("CREATE TABLE block (id INTEGER PRIMARY KEY, seed INTEGER)")
        .unwrap();
    recorder.sync_names();
    let device = storage.create_segment(SegmentIndex(0)).unwrap();
    recorder.ack(0);
    for id in 0..ROUNDS {
        let seed = rng.below(1 << 40);
        device
            .write_at(id * BLOCK_BYTES, &fill(seed, BLOCK_BYTES))
            .unwrap();
        device.flush().unwrap();
        connection
            .execute(
                "INSERT INTO block VALUES (?1, ?2)",
                [id as i64, seed as i64],
            )
            .unwrap();
        recorder.ack(id + 1);
        if rng.chance(20) {
            connection
                .query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |_| Ok(()))
                .unwrap();
        }
        if id == ROUNDS / 2 {
            connection.close().unwrap();
            connection = open(directory.path(), vfs.name()).unwrap();
        }
    }
    let recording = recorder.finish();
    // TESTKIT-2
    let disk = recording.replay_all();
    for name in ["catalog.db", "catalog.db-wal"] {
        let found = std::fs::read(directory.path().join(name)).unwrap();
        assert!(
            disk.find(name).is_some_and(|image| image.to_vec() == found),
            "{name} differs from its recording"
        );
    }
    let found = storage
        .find_device(SegmentIndex(0))
        .unwrap()
        .image()
        .to_vec();
    assert_eq!(disk.find("segments/00000.seg").unwrap().to_vec(), found);
    recording
}

/// What is wrong with a state, if anything.
fn find_fault(state: &CrashState, directory: &Path) -> Option<String> {
    state.disk.write_catalog(directory).unwrap();
    let acked = state.acked?;
    let rows = || -> rusqlite::Result<Vec<(u64, u64)>> {
        let connection = open(directory, "unix")?;
        let mut statement = connection.prepare("SELECT id, seed FROM block ORDER BY id")?;
        let rows = statement.query_map([], |row| {
            Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64))
        })?;
        rows.collect()
    };
    let rows = match rows() {
        Ok(rows) => rows,
        Err(error) => return Some(format!("the catalog does not open: {error}")),
    };
    if (rows.len() as u64) < acked {
        return Some(format!("{} rows, {acked} were promised", rows.len()));
    }
    let device = SimStorage::load(&state.disk, None)
        .open_segment(SegmentIndex(0))
        .unwrap();
    let mut bytes = vec![0; BLOCK_BYTES as usize];
    rows.into_iter()
        .enumerate()
        .find_map(|(index, (id, seed))| {
            let is_there = device.read_at(id * BLOCK_BYTES, &mut bytes).is_ok();
            let is_whole = index as u64 == id && is_there && bytes == fill(seed, BLOCK_BYTES);
            (!is_whole).then(|| format!("block {id} is not whole"))
        })
}

fn faults(recording: &Recording, budget: usize) -> Vec<String> {
    let directory = tempfile::tempdir_in(if Path::new("/dev/shm").is_dir() {
        "/dev/shm"
    } else {
        "/tmp"
    })
    .unwrap();
    let states = recording.states(0, 42, budget);
    assert_eq!(states.remaining(), budget);
    states
        .filter_map(|state| {
            find_fault(&state, directory.path()).map(|fault| format!("{state}: {fault}"))
        })
        .collect()
}

#[test]
fn every_state_is_whole() {
    let found = faults(&record(), 1500);
    assert!(
        found.is_empty(),
        "{} faults, the first: {}",
        found.len(),
        found[0]
    );
}

#[test]
fn a_dropped_flush_is_found() {
    let recording = record();
    let without_data = recording.without_flushes(|file| file.starts_with(SEGMENTS));
    assert!(
        !faults(&without_data, 300).is_empty(),
        "data flushes are not missed"
    );
    let without_log = recording.without_flushes(|file| file.ends_with("-wal"));
    assert!(
        !faults(&without_log, 300).is_empty(),
        "flushes of the write-ahead log are not missed"
    );
    let without_pages = recording.without_flushes(|file| file == "catalog.db");
    assert!(
        !faults(&without_pages, 600).is_empty(),
        "flushes of the checkpoint are not missed"
    );
}
