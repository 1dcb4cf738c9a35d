//! Segments grow while others go on (`RESERVE-3`), and a long transaction that is aborted, or
//! killed, gives back what it has made them grow.
//!
//! A lock on the file of a segment, which is what a growth holds, makes every other growth wait as
//! long as a test likes.

use crate::common::moments::newest;
use crate::common::workspace::{assert_sound, begin, content, sql};
use crate::common::{create, open, pattern};
use larder::{Database, SqlValue};
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

const MIB: usize = 1 << 20;
const PATIENCE: Duration = Duration::from_secs(60);

fn segment(dir: &Path) -> std::path::PathBuf {
    dir.join("t.larder/segments/00000.seg")
}

fn length(dir: &Path) -> u64 {
    segment(dir).metadata().unwrap().len()
}

/// A growth that does not come to its end until this is dropped.
struct Growing {
    file: File,
}

impl Growing {
    fn begin(dir: &Path) -> Growing {
        let file = File::open(segment(dir)).unwrap();
        file.lock().unwrap();
        Growing { file }
    }

    /// Returns once another growth waits.
    fn expect_another(&self) {
        let inode = format!(":{} ", self.file.metadata().unwrap().ino());
        let since = Instant::now();
        loop {
            let locks = std::fs::read_to_string("/proc/locks").unwrap();
            let is_waiting =
                |line: &str| line.contains("-> FLOCK") && line.contains(inode.as_str());
            if locks.lines().any(is_waiting) {
                return;
            }
            assert!(since.elapsed() < PATIENCE, "nobody grows: {locks}");
            std::thread::yield_now();
        }
    }
}

/// Runs `work`, which must not wait for anything that lasts.
fn promptly(what: &str, work: impl FnOnce() + Send) {
    let (ended, has_ended) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            work();
            ended.send(()).unwrap();
        });
        if has_ended.recv_timeout(PATIENCE).is_err() {
            // The thread may wait for good: the scope would too.
            eprintln!("{what} waits for a growth");
            std::process::exit(101);
        }
    });
}

fn put_some(db: &Database, name: &str) {
    for at in 0..5 {
        db.files()
            .write(format!("/{name}{at}").as_bytes(), pattern(10_000, at))
            .unwrap();
        db.sync().unwrap();
    }
}

#[test]
fn growth_ahead_keeps_no_other_session_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    put_some(&db, "first");
    let before = length(dir.path());
    let growing = Growing::begin(dir.path());
    // While it is not committed, the session has the writer lock.
    db.files().write(b"/much", pattern(50 * MIB, 7)).unwrap();
    growing.expect_another();
    promptly("another session", || {
        let other = open(dir.path());
        put_some(&other, "other");
        other.close().unwrap();
    });
    promptly("the session that grows", || put_some(&db, "own"));
    drop(growing);
    // What was grown is used: more than there was.
    db.files().write(b"/more", pattern(40 * MIB, 8)).unwrap();
    db.sync().unwrap();
    assert!(length(dir.path()) > before, "RESERVE-3");
    assert!(db.files().read(b"/more").unwrap() == pattern(40 * MIB, 8));
    assert_sound(&db);
}

#[test]
fn a_long_transaction_that_needs_room_keeps_nobody_waiting() {
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    put_some(&db, "first");
    let txn = begin(&dir.path().join("t.larder"));
    let growing = Growing::begin(dir.path());
    let view = txn.database().unwrap();
    std::thread::scope(|scope| {
        let writing = scope.spawn(|| {
            view.files()
                .write(b"/large", content(90 * MIB, 3))
                .map(drop)
        });
        growing.expect_another();
        promptly("the database", || put_some(&db, "own"));
        promptly("another session", || {
            let other = open(dir.path());
            put_some(&other, "other");
            other.close().unwrap();
        });
        assert!(!writing.is_finished());
        drop(growing);
        writing.join().unwrap().unwrap();
    });
    assert_sound(view);
    txn.commit().unwrap();
    assert!(db.files().read(b"/large").unwrap() == content(90 * MIB, 3));
    assert_sound(&db);
}

#[test]
fn what_an_aborted_transaction_has_grown_goes_back_to_the_host() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.larder");
    let db = create(dir.path(), None);
    put_some(&db, "first");
    db.files().write(b"/kept", b"before").unwrap();
    let then = newest(&db);
    db.files().write(b"/kept", b"after").unwrap();
    db.sync().unwrap();
    let before = (length(dir.path()), db.maintenance().space().unwrap());
    // The second transaction is so large that others, who are few, would grow the segments behind
    // it if they took it for theirs.
    let blocks = "SELECT block_count FROM larder_segment";
    let SqlValue::Integer(blocks_before) = sql(&db, blocks)[0][0] else {
        panic!("no segment");
    };
    for (round, parts) in [4, 20].into_iter().enumerate() {
        let txn = begin(&path);
        let view = txn.database().unwrap();
        for part in 0..parts {
            let bytes = content(70 * MIB, part);
            view.files()
                .write(format!("/part{part}").as_bytes(), &bytes)
                .unwrap();
            put_some(&db, &format!("beside{round}-{part}-"));
        }
        view.sync().unwrap();
        let grown = length(dir.path()) - before.0;
        assert!(grown > parts as u64 * 70 * MIB as u64);
        // All of it is the transaction's: a hole would be the smallest that fits what others write.
        let held = format!(
            "SELECT sum(start_block + block_count - max(start_block, {0})) FROM larder_extent \
             WHERE start_block + block_count > {0}",
            blocks_before
        );
        let held = sql(&db, &held).remove(0).remove(0);
        assert_eq!(held, SqlValue::Integer(grown as i64 / 4096));
        txn.abort().unwrap();
        assert_eq!(length(dir.path()), before.0, "round {round}");
        // Others go on, with the shorter segment.
        put_some(&db, "first");
        assert_sound(&db);
        assert!(
            path.join("transactions")
                .read_dir()
                .unwrap()
                .next()
                .is_none()
        );
    }
    // Unlike a shrink it gives up no history.
    let past = db.as_of(&then).unwrap();
    assert_eq!(past.files().read(b"/kept").unwrap(), b"before", "TIME-6");
    drop(past);
    let after = db.maintenance().space().unwrap();
    assert_eq!(after.segment_bytes, before.1.segment_bytes);
    assert!(after.live_bytes < before.1.live_bytes + 2 * MIB as u64);
}

#[test]
fn what_a_killed_transaction_has_grown_goes_back_when_it_is_swept() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.larder");
    let db = create(dir.path(), None);
    put_some(&db, "first");
    db.close().unwrap();
    let before = length(dir.path());
    let txn = begin(&path);
    let view = txn.database().unwrap();
    view.files().write(b"/part", content(150 * MIB, 1)).unwrap();
    view.sync().unwrap();
    assert!(length(dir.path()) > before + 50 * MIB as u64);
    // What a kill leaves: nobody finds its locks any more.
    let killed = txn.directory();
    for lock in ["owner.lock", "seal.lock"] {
        std::fs::remove_file(killed.join(lock)).unwrap();
    }
    let db = open(dir.path());
    assert!(!killed.exists(), "WORKSPACE-7");
    assert_eq!(length(dir.path()), before, "WORKSPACE-7");
    drop(txn);
    put_some(&db, "second");
    assert_sound(&db);
}

/// What others have written at the end stays, and so does what was free before.
#[test]
fn what_others_use_is_not_given_back() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.larder");
    let db = create(dir.path(), None);
    put_some(&db, "first");
    db.files().write(b"/gone", pattern(60 * MIB, 1)).unwrap();
    db.sync().unwrap();
    let before = length(dir.path());
    let txn = begin(&path);
    let view = txn.database().unwrap();
    view.files().write(b"/part", content(100 * MIB, 1)).unwrap();
    view.sync().unwrap();
    let grown = length(dir.path());
    assert!(grown > before);
    // More than there is room for without another growth, behind the transaction's blocks.
    let large = pattern(200 * MIB, 2);
    db.files().write(b"/large", &large).unwrap();
    db.sync().unwrap();
    let longer = length(dir.path());
    assert!(longer > grown);
    txn.abort().unwrap();
    assert!(length(dir.path()) > grown);
    assert!(db.files().read(b"/large").unwrap() == large);
    assert!(db.files().read(b"/gone").unwrap() == pattern(60 * MIB, 1));
    assert_sound(&db);
}
