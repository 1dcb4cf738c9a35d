//! Logs with damage of every kind, and what the scan says of them.

use super::*;
use rusqlite::{Connection, OpenFlags};
use std::os::unix::fs::FileExt;

const COMMITS: u64 = 12;

/// A log of [`COMMITS`] commits of a few frames each, in a directory without anybody who has it
/// open, and the number of the transaction of each frame.
struct Log {
    dir: tempfile::TempDir,
    bytes: Vec<u8>,
    transactions: Vec<u64>,
    frame_bytes: usize,
}

fn files(dir: &Path) -> (PathBuf, PathBuf) {
    (dir.join("t.db"), dir.join("t.db-wal"))
}

/// `prepare` runs before the commits.
fn make_log(prepare: impl FnOnce(&Connection)) -> Log {
    let (busy, dir) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let (path, log) = files(busy.path());
    let writer = Connection::open(&path).unwrap();
    writer
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;
                 CREATE TABLE t (id INTEGER PRIMARY KEY, bytes BLOB)",
        )
        .unwrap();
    prepare(&writer);
    let begins = frames_of(&std::fs::read(&log).unwrap()).1;
    for id in 0..COMMITS {
        let insert = "INSERT INTO t VALUES (?1, randomblob(?2))";
        writer
            .execute(insert, (id as i64 + 1000, 100 + (id as i64 % 4) * 5000))
            .unwrap();
    }
    let (ours, our_log) = files(dir.path());
    std::fs::copy(&path, ours).unwrap();
    let bytes = std::fs::read(&log).unwrap();
    std::fs::write(our_log, &bytes).unwrap();
    let (frame_bytes, transactions) = frames_of(&bytes);
    let transactions = match begins.len() < transactions.len() {
        true => transactions,
        false => transactions[..].to_vec(),
    };
    Log {
        dir,
        bytes,
        transactions,
        frame_bytes,
    }
}

/// Bytes of a frame, and the transaction of each that is in use.
fn frames_of(bytes: &[u8]) -> (usize, Vec<u64>) {
    if bytes.len() < HEAD_BYTES {
        return (0, Vec::new());
    }
    let mut raw = [0; HEAD_BYTES];
    raw.copy_from_slice(&bytes[..HEAD_BYTES]);
    let head = Head::decode(&raw).unwrap();
    let (mut transactions, mut number) = (Vec::new(), 1);
    for frame in bytes[HEAD_BYTES..].chunks_exact(head.frame_bytes()) {
        let frame = Frame { bytes: frame };
        if !frame.has_salts(&head) {
            break;
        }
        transactions.push(number);
        number += u64::from(frame.is_commit());
    }
    (head.frame_bytes(), transactions)
}

impl Log {
    fn scan(&self, bytes: &[u8]) -> Option<LogDamage> {
        let (_, log) = files(self.dir.path());
        std::fs::write(&log, bytes).unwrap();
        scan(&log).unwrap()
    }

    fn commits(&self) -> u64 {
        *self.transactions.last().unwrap()
    }
}

#[test]
fn a_sound_log_and_every_torn_end_are_no_findings() {
    let log = make_log(|_| {});
    assert_eq!(log.scan(&log.bytes), None);
    for len in (0..log.bytes.len()).rev().step_by(997) {
        assert_eq!(log.scan(&log.bytes[..len]), None, "SCAN-1: {len} bytes");
    }
    // Any sectors of the last transaction may be missing.
    let last = log
        .transactions
        .iter()
        .filter(|&&n| n == log.commits())
        .count();
    let from = log.bytes.len() - last * log.frame_bytes;
    for lost in 0..64_u32 {
        let mut torn = log.bytes.clone();
        for (index, sector) in torn[from..].chunks_mut(512).enumerate() {
            if lost >> (index % 6) & 1 == 1 {
                sector.fill(0);
            }
        }
        assert_eq!(log.scan(&torn), None, "SCAN-1: {lost:b}");
    }
}

#[test]
fn what_lies_behind_a_flipped_bit_is_counted() {
    let log = make_log(|_| {});
    for (index, &transaction) in log.transactions.iter().enumerate() {
        let start = HEAD_BYTES + index * log.frame_bytes;
        // Page number; salts; sums; the page.
        for at in [3, 9, 14, 17, 23, 24, 600, log.frame_bytes - 1] {
            let mut bytes = log.bytes.clone();
            bytes[start + at] ^= 4;
            let found = log.scan(&bytes);
            let behind = log.commits() - transaction;
            let what = format!("frame {} byte {at} of transaction {transaction}", index + 1);
            match found {
                None => assert_eq!(behind, 0, "{what}"),
                Some(damage) => {
                    assert_eq!(damage.commits, behind, "{what}: {damage:?}");
                    assert_eq!(damage.bad_frame, index as u64 + 1, "{what}");
                    assert_eq!(damage.offset, start as u64, "{what}");
                    // What is kept is whole, and ends before the bad frame.
                    let kept = &log.bytes[..damage.keep_bytes as usize];
                    assert!(damage.keep_bytes <= damage.offset, "{what}");
                    assert_eq!(log.scan(kept), None);
                    let told = damage.tell();
                    assert!(told.contains(&format!("at byte {start}")), "{told}");
                }
            }
        }
    }
}

#[test]
fn several_bad_frames_hide_only_what_they_are() {
    let log = make_log(|_| {});
    let lost = log.transactions.iter().position(|&n| n == 4).unwrap();
    let until = log.transactions.iter().position(|&n| n == 7).unwrap();
    let mut bytes = log.bytes.clone();
    bytes[HEAD_BYTES + lost * log.frame_bytes..HEAD_BYTES + until * log.frame_bytes].fill(0x55);
    let damage = log.scan(&bytes).unwrap();
    assert_eq!(damage.bad_frame, lost as u64 + 1);
    // The first of what is left may be the rest of one.
    assert_eq!(damage.commits, log.commits() - 7);
}

#[test]
fn a_damaged_header_loses_all() {
    let log = make_log(|_| {});
    for at in 0..HEAD_BYTES {
        let mut bytes = log.bytes.clone();
        bytes[at] ^= 0x40;
        let damage = log.scan(&bytes).unwrap_or_else(|| panic!("byte {at}"));
        assert_eq!(
            (damage.bad_frame, damage.commits),
            (0, log.commits()),
            "byte {at}"
        );
    }
}

#[test]
fn frames_of_an_older_log_are_no_findings() {
    let log = make_log(|writer| {
        for _ in 0..40 {
            writer
                .execute("INSERT INTO t VALUES (NULL, randomblob(9000))", [])
                .unwrap();
        }
        let copy = "PRAGMA wal_checkpoint(RESTART)";
        writer.query_row(copy, [], |_| Ok(())).unwrap();
    });
    assert!(log.bytes.len() > HEAD_BYTES + log.transactions.len() * log.frame_bytes);
    assert_eq!(log.scan(&log.bytes), None, "SCAN-1");
    let mut bytes = log.bytes.clone();
    bytes[HEAD_BYTES + 700] ^= 1;
    assert_eq!(log.scan(&bytes).unwrap().commits, log.commits() - 1);
}

#[test]
fn where_flushes_are_shared_few_commits_prove_nothing() {
    let log = make_log(|writer| {
        for _ in 0..UNFLUSHED_COMMITS_MAX {
            writer
                .execute("INSERT INTO t VALUES (NULL, randomblob(9))", [])
                .unwrap();
        }
    });
    let mark = mark_of(&files(log.dir.path()).1);
    let flipped = |transaction: u64| {
        let frame = log
            .transactions
            .iter()
            .position(|&n| n == transaction)
            .unwrap();
        let mut bytes = log.bytes.clone();
        bytes[HEAD_BYTES + frame * log.frame_bytes + 100] ^= 1;
        log.scan(&bytes).map(|damage| damage.commits)
    };
    let last = log.commits();
    assert_eq!(flipped(last - 5), Some(5));
    std::fs::write(&mark, &log.bytes[16..24]).unwrap();
    assert_eq!(flipped(last - 5), None, "SCAN-1");
    assert_eq!(flipped(last - UNFLUSHED_COMMITS_MAX), None, "SCAN-1");
    let more = UNFLUSHED_COMMITS_MAX + 1;
    assert_eq!(flipped(last - more), Some(more));
    // Of an older log.
    std::fs::write(&mark, [1; 8]).unwrap();
    assert_eq!(flipped(last - 5), Some(5));
}

#[test]
fn what_the_catalog_has_already_is_told() {
    let log = make_log(|_| {});
    let (path, _) = files(log.dir.path());
    let before = std::fs::read(&path).unwrap();
    let mut bytes = log.bytes.clone();
    bytes[HEAD_BYTES + 2 * log.frame_bytes + 99] ^= 1;
    assert_eq!(log.scan(&bytes).unwrap().copied, Copied::Nothing);
    // All of it is copied, then a part of that is as before.
    log.scan(&log.bytes);
    let copier = Connection::open(&path).unwrap();
    let copy = "PRAGMA wal_checkpoint(FULL)";
    copier.query_row(copy, [], |_| Ok(())).unwrap();
    let after = std::fs::read(&path).unwrap();
    drop(copier);
    let damage = log.scan(&bytes).unwrap();
    assert_eq!(damage.copied, Copied::All);
    assert!(
        damage.tell().contains("truncate -s 0 "),
        "{}",
        damage.tell()
    );
    let mut mixed = after.clone();
    mixed[..before.len().min(8192)].copy_from_slice(&before[..before.len().min(8192)]);
    std::fs::write(&path, mixed).unwrap();
    assert_eq!(log.scan(&bytes).unwrap().copied, Copied::Some);
}

/// LOG-6: whatever is opened, and however often; nothing is changed.
#[test]
fn no_connection_recovers_a_damaged_log() {
    let log = make_log(|_| {});
    let (path, our_log) = files(log.dir.path());
    let mut bytes = log.bytes.clone();
    bytes[HEAD_BYTES + log.frame_bytes + 99] ^= 1;
    std::fs::write(&our_log, &bytes).unwrap();
    let catalog = std::fs::read(&path).unwrap();
    let vfs = [
        crate::conn::log_vfs::register(None).unwrap(),
        crate::conn::log_vfs::register_through(None).unwrap(),
    ];
    for round in 0..4 {
        let opened =
            Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), &*vfs[round % 2])
                .unwrap();
        let failed = opened
            .query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
            .unwrap_err();
        let told = crate::error::sort("t", failed).to_string();
        assert!(told.contains("frame 2, at byte 4152, is damaged"), "{told}");
        drop(opened);
        assert!(std::fs::read(&path).unwrap() == catalog, "LOG-6");
        assert!(std::fs::read(&our_log).unwrap() == bytes, "SCAN-2");
    }
    // The remedy: what was before the bad frame.
    let damage = scan(&our_log).unwrap().unwrap();
    std::fs::write(&our_log, &bytes[..damage.keep_bytes as usize]).unwrap();
    let opened =
        Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), &*vfs[0]).unwrap();
    let found: String = opened
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(found, "ok");
}

#[test]
fn only_files_beside_the_log_are_read_and_it_ends() {
    let log = make_log(|_| ());
    let (catalog, path) = files(log.dir.path());
    let mut bytes = log.bytes.clone();
    bytes[HEAD_BYTES + log.frame_bytes + 100] ^= 1;
    let damage = log.scan(&bytes).unwrap();
    // A TiB of nothing behind it.
    let file = File::options().write(true).open(&path).unwrap();
    file.set_len(1 << 40).unwrap();
    assert_eq!(scan(&path).unwrap(), Some(damage), "SCAN-3");
    file.write_all_at(&bytes[HEAD_BYTES..], 1 << 39).unwrap();
    assert!(scan(&path).unwrap().is_some(), "SCAN-3");
    let made = |path: &Path| {
        let fifo = std::process::Command::new("mkfifo").arg(path).status();
        assert!(fifo.unwrap().success());
    };
    std::fs::write(&path, &bytes).unwrap();
    for name in [mark_of(&path), catalog, path.clone()] {
        let real = name.with_extension("real");
        std::fs::write(&name, b"x").unwrap();
        std::fs::rename(&name, &real).unwrap();
        made(&name);
        let refused = why_refused(&path).unwrap();
        assert!(refused.contains("a FIFO"), "SCAN-3: {refused}");
        std::fs::remove_file(&name).unwrap();
        std::os::unix::fs::symlink(&real, &name).unwrap();
        let refused = why_refused(&path).unwrap();
        assert!(refused.contains("a symbolic link"), "SCAN-3: {refused}");
        std::fs::remove_file(&name).unwrap();
    }
}

fn mark_of(log: &Path) -> PathBuf {
    let mut name = log.as_os_str().to_owned();
    name.push(SHARED_FLUSH_SUFFIX);
    name.into()
}

/// Its head tells nothing then: a reader's copy must notice all the same that the rest came.
#[test]
fn a_frame_that_was_half_there_ends_a_commit_when_its_page_comes() {
    let log = make_log(|_| ());
    let end = HEAD_BYTES + log.transactions.len() * log.frame_bytes;
    let page = end - log.frame_bytes + FRAME_HEAD_BYTES;
    let file = tempfile::tempfile().unwrap();
    file.write_all_at(&log.bytes[..page], 0).unwrap();
    file.set_len(end as u64).unwrap();
    let then = LogEnd::find(&file).unwrap().unwrap();
    assert!(then.offset() < end as u64);
    assert!(then.is_of(&file).unwrap(), "nothing has come");
    file.write_all_at(&log.bytes[page..end], page as u64)
        .unwrap();
    assert!(!then.is_of(&file).unwrap(), "READONLY-2");
    let now = LogEnd::find(&file).unwrap().unwrap();
    assert_eq!(
        (now.offset(), now.is_of(&file).unwrap()),
        (end as u64, true)
    );
}
