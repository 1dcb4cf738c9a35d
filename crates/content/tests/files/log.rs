//! The catalog's log begins anew, in place, while commits go on.

use crate::common::*;
use larder::{CreateOptions, Database, DatabaseOptions, ErrorKind, NodeId, TransactionOptions};
use larder_object::format::SegmentIndex;
use larder_object::{Device, EngineOptions, Storage};
use larder_testkit::SimStorage;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// More than three times what makes the background copy the log; without that its file has all of
/// it.
#[test]
fn the_log_is_copied_beside_commits_and_begins_anew() {
    const WRITTEN: u64 = 110 << 20;
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let node = make(&db, NodeId::ROOT, "f");
    let handle = db.nodes().open(node, true).unwrap();
    let bytes = pattern(16 * 4096, 1);
    let began = Instant::now();
    // Logged: at least the content goes into the log.
    for index in 0..WRITTEN / bytes.len() as u64 {
        handle.write_at(index * bytes.len() as u64, &bytes).unwrap();
        handle.sync().unwrap();
        // No faster than a device: a background that has no processor in time is not what is
        // tested.
        let due = Duration::from_millis(index);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    let len_bytes = db.maintenance().stats().unwrap().wal_bytes;
    assert!(
        len_bytes < WRITTEN * 3 / 4,
        "CHECKPOINT-1: {len_bytes} bytes"
    );
    assert_clean(&db);
    drop(handle);
    db.close().unwrap();
}

/// Transactions follow each other without a pause, so there is no moment in which all of the log is
/// copied by itself.
#[test]
fn the_log_begins_anew_beside_transactions() {
    // It is as long as what is committed until it is copied: longer beside a compiler.
    const COUNT: u64 = 4000;
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let bytes = pattern(16 * 4096, 1);
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (db, bytes) = (&db, &bytes);
            scope.spawn(move || {
                for index in 0..COUNT / 2 {
                    let transaction = db.transactions().begin().unwrap();
                    let path = format!("/{thread}-{}", index % 16);
                    transaction.files().write(path.as_bytes(), bytes).unwrap();
                    transaction.commit().unwrap();
                }
            });
        }
    });
    let len_bytes = db.maintenance().stats().unwrap().wal_bytes;
    // Without that: 47 KiB a transaction.
    let written = COUNT * (47 << 10);
    assert!(
        len_bytes < written / 2,
        "CHECKPOINT-1: {len_bytes} bytes of {written}"
    );

    assert_clean(&db);
    db.close().unwrap();
}

/// Sessions that leave each other no pause: somebody always wants the writer lock.
#[test]
fn the_log_begins_anew_beside_busy_sessions() {
    const SESSIONS: u64 = 4;
    const COUNT: u64 = 3000;
    let dir = tempfile::tempdir().unwrap();
    let first = create(dir.path(), None);
    let bytes = pattern(16 * 4096, 1);
    std::thread::scope(|scope| {
        for session in 0..SESSIONS {
            let (dir, bytes) = (&dir, &bytes);
            scope.spawn(move || {
                let db = open(dir.path());
                let options = TransactionOptions {
                    is_immediate: true,
                    ..TransactionOptions::default()
                };
                for index in 0..COUNT / SESSIONS {
                    let transaction = db.transactions().begin_with(&options).unwrap();
                    let path = format!("/{session}-{}", index % 16);
                    transaction.files().write(path.as_bytes(), bytes).unwrap();
                    transaction.commit().unwrap();
                }
                db.close().unwrap();
            });
        }
    });
    let len_bytes = first.maintenance().stats().unwrap().wal_bytes;
    // Without that: 47 KiB a transaction.
    let written = COUNT * (47 << 10);
    assert!(
        len_bytes < written * 7 / 8,
        "CHECKPOINT-2: {len_bytes} bytes of {written}"
    );
    assert_clean(&first);
    first.close().unwrap();
}

/// A host whose free space is taken by segments and by the catalog's log.
struct SmallHost {
    segments: SimStorage,
    log: PathBuf,
}

impl Storage for SmallHost {
    fn open_segment(&self, segment: SegmentIndex) -> std::io::Result<Arc<dyn Device>> {
        self.segments.open_segment(segment)
    }
    fn create_segment(&self, segment: SegmentIndex) -> std::io::Result<Arc<dyn Device>> {
        self.segments.create_segment(segment)
    }
    fn segments(&self) -> std::io::Result<Vec<SegmentIndex>> {
        self.segments.segments()
    }
    fn available_bytes(&self) -> std::io::Result<u64> {
        let log_bytes = std::fs::metadata(&self.log).map_or(0, |metadata| metadata.len());
        Ok(self.segments.available_bytes()?.saturating_sub(log_bytes))
    }
}

/// What growth leaves to the host is there for the log, which takes it while commits are many: it
/// takes nothing of what the database has said is available.
#[test]
fn a_long_log_takes_no_space_from_content() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.larder");
    let host = SmallHost {
        segments: SimStorage::new(),
        log: path.join("catalog.db-wal"),
    };
    host.segments.faults().limit_host(200 << 20);
    let engine = EngineOptions {
        storage: Some(Arc::new(host)),
        ..EngineOptions::default()
    };
    let init = CreateOptions {
        retention_ns: Some(0),
        ..CreateOptions::default()
    };
    Database::create_with(&path, &init, &engine).unwrap();
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    let db = Database::open(&path, options).unwrap();
    let available = db.maintenance().space().unwrap().available_bytes;
    let bytes = pattern(64 * 4096, 1);
    let mut written = 0;
    let mut log_bytes = 0;
    let refused = loop {
        let name = format!("/{written}");
        let done = db
            .files()
            .write(name.as_bytes(), &bytes)
            .and_then(|_| db.sync());
        log_bytes = log_bytes.max(db.maintenance().stats().unwrap().wal_bytes);
        match done {
            Ok(()) => written += bytes.len() as u64,
            Err(error) => break error,
        }
    };
    assert_eq!(refused.kind(), ErrorKind::NoSpace, "{refused}");
    assert!(
        log_bytes > 16 << 20,
        "a log of {log_bytes} bytes tests nothing"
    );
    assert!(
        written + (2 << 20) >= available,
        "{written} of {available} bytes, beside a log of {log_bytes}"
    );
    assert_clean(&db);
    db.close().unwrap();
}

/// `COMMIT-5`: SQLite commits by removing its journal, and syncs nothing behind that.
#[test]
fn the_removal_of_a_file_that_was_just_synced_is_committed_at_once() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let options = DatabaseOptions {
        engine: EngineOptions {
            commit_interval: Duration::from_secs(3600),
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let db = Database::open(&dir.path().join("t.larder"), options).unwrap();
    let commits = || db.maintenance().gauges().unwrap().commit_seq;
    for name in ["/written", "/journal"] {
        db.files().write(name.as_bytes(), b"content").unwrap();
    }
    db.sync().unwrap();
    let before = commits();
    // Of a file that no program synced nobody expects it.
    db.files().remove_file(b"/written").unwrap();
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(commits(), before);
    let journal = db.files().open(b"/journal").unwrap();
    journal.sync_all().unwrap();
    let before = commits();
    db.files().remove_file(b"/journal").unwrap();
    let removed = Instant::now();
    while commits() == before {
        assert!(removed.elapsed() < Duration::from_secs(20), "COMMIT-5");
        std::thread::sleep(Duration::from_millis(1));
    }
    drop(journal);
    db.close().unwrap();
}
