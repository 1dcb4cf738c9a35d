//! The VFS under a log that is sound, damaged, or shared.

use super::*;
use rusqlite::{OpenFlags, params};
use std::path::Path;

fn rows(connection: &Connection) -> Vec<(i64, Vec<u8>)> {
    connection
        .prepare("SELECT id, bytes FROM t ORDER BY id")
        .unwrap()
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .unwrap()
        .collect::<rusqlite::Result<_>>()
        .unwrap()
}

/// What a process that is killed now leaves.
fn survivors(from: &Path, to: &Path) -> Vec<(i64, Vec<u8>)> {
    for suffix in ["", "-wal"] {
        let name = format!("t.db{suffix}");
        std::fs::copy(from.join(&name), to.join(&name)).unwrap();
    }
    let copy = Connection::open(to.join("t.db")).unwrap();
    let found: String = copy
        .query_row("PRAGMA integrity_check", [], |row| row.get(0))
        .unwrap();
    assert_eq!(found, "ok");
    let found = rows(&copy);
    drop(copy);
    for entry in std::fs::read_dir(to).unwrap() {
        std::fs::remove_file(entry.unwrap().path()).unwrap();
    }
    found
}

#[test]
fn every_commit_is_in_the_files_and_seen_by_others() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("t.db");
    let vfs = register(None).unwrap();
    assert_eq!(register(None).unwrap(), vfs);
    let writer =
        Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), vfs.as_str()).unwrap();
    writer
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
                 CREATE TABLE t (id INTEGER PRIMARY KEY, bytes BLOB)",
        )
        .unwrap();
    let reader = Connection::open(&path).unwrap();
    let mut model = std::collections::BTreeMap::new();
    let mut state = 7u64;
    let mut dice = |below: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for step in 0..300 {
        let before = model.clone();
        // Now and then more than the cache holds, so that pages go to the log and come back.
        let cache = ["PRAGMA cache_size = 4", "PRAGMA cache_size = 1000"][dice(2) as usize];
        writer.execute_batch(cache).unwrap();
        writer.execute_batch("BEGIN IMMEDIATE").unwrap();
        for _ in 0..1 + dice(if step % 10 == 0 { 60 } else { 4 }) {
            let (id, len) = (dice(40) as i64, dice(9000) as usize);
            let bytes = vec![step as u8; len];
            writer
                .execute(
                    "INSERT OR REPLACE INTO t VALUES (?1, ?2)",
                    params![id, bytes],
                )
                .unwrap();
            model.insert(id, bytes);
        }
        if dice(8) == 0 {
            writer.execute_batch("ROLLBACK").unwrap();
            model = before;
        } else {
            writer.execute_batch("COMMIT").unwrap();
        }
        if dice(20) == 0 {
            let connection = if dice(2) == 0 { &writer } else { &reader };
            let mode = ["PASSIVE", "TRUNCATE"][dice(2) as usize];
            let checkpoint = format!("PRAGMA wal_checkpoint({mode})");
            connection.query_row(&checkpoint, [], |_| Ok(())).unwrap();
        }
        let expected: Vec<(i64, Vec<u8>)> = model.clone().into_iter().collect();
        assert!(rows(&reader) == expected, "LOG-1, step {step}");
        assert!(
            survivors(dir.path(), other.path()) == expected,
            "LOG-2, step {step}"
        );
    }
}

#[test]
fn a_commit_without_its_flush_is_in_the_files_and_seen_by_others() {
    let (dir, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("t.db");
    let vfs = register(None).unwrap();
    let writer =
        Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), vfs.as_str()).unwrap();
    writer
        .execute_batch(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
                 CREATE TABLE t (id INTEGER PRIMARY KEY, bytes BLOB)",
        )
        .unwrap();
    let reader = Connection::open(&path).unwrap();
    assert!(!defer_flush(&reader), "LOG-4: it is no log of this VFS");
    for id in 0..20 {
        let insert = "INSERT INTO t VALUES (?1, zeroblob(?2))";
        let defers = id % 3 > 0;
        assert!(!defers || defer_flush(&writer));
        writer.execute(insert, params![id, id * 700]).unwrap();
        assert_eq!(end_deferring(&writer), defers, "LOG-4");
        // SAFETY: the writer's log is one of this VFS, and nobody uses it now.
        let has_new_head = unsafe { kept(find_log(&writer).unwrap()).has_new_head };
        assert!(
            !has_new_head,
            "LOG-4: after a checkpoint the log has another head"
        );
        assert_eq!(rows(&reader).len() as i64, id + 1, "LOG-1");
        assert_eq!(
            survivors(dir.path(), other.path()).len() as i64,
            id + 1,
            "LOG-4"
        );
        if id % 2 == 0 {
            let empty = "PRAGMA wal_checkpoint(TRUNCATE)";
            reader.query_row(empty, [], |_| Ok(())).unwrap();
        }
    }
    // Reading leaves nothing out, and flushes nothing.
    take_flushed(&writer);
    assert!(defer_flush(&writer));
    assert_eq!(rows(&writer).len(), 20);
    assert!(!end_deferring(&writer), "LOG-4");
    writer.execute_batch("BEGIN IMMEDIATE; COMMIT").unwrap();
    assert!(!take_flushed(&writer));
    writer.execute("DELETE FROM t WHERE id = 1", []).unwrap();
    assert!(take_flushed(&writer) && !take_flushed(&writer));
}

/// Rolls back a transaction that is larger than the writer's cache, lets another connection commit,
/// and lets the writer read. Whether what the other has committed is in the files then.
fn others_survive_a_rollback(spill: &str) -> bool {
    let (dir, copy) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let path = dir.path().join("t.db");
    let vfs = register(None).unwrap();
    let writer =
        Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), vfs.as_str()).unwrap();
    let fill = format!(
        "PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0;
             PRAGMA cache_size = 4; PRAGMA cache_spill = {spill};
             CREATE TABLE t (id INTEGER PRIMARY KEY, bytes BLOB);
             WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 60)
             INSERT INTO t SELECT i, zeroblob(2000) FROM n;
             PRAGMA wal_checkpoint(TRUNCATE)"
    );
    writer.execute_batch(&fill).unwrap();
    let other = Connection::open(&path).unwrap();
    other
        .execute_batch("PRAGMA synchronous = FULL; PRAGMA wal_autocheckpoint = 0")
        .unwrap();
    let rolled_back = "BEGIN IMMEDIATE; UPDATE t SET bytes = randomblob(2000); ROLLBACK";
    writer.execute_batch(rolled_back).unwrap();
    for id in 1..=12 {
        other
            .execute("UPDATE t SET bytes = randomblob(1999) WHERE id = ?1", [id])
            .unwrap();
    }
    let expected = rows(&other);
    rows(&writer);
    for suffix in ["", "-wal"] {
        let name = format!("t.db{suffix}");
        std::fs::copy(dir.path().join(&name), copy.path().join(&name)).unwrap();
    }
    rows(&Connection::open(copy.path().join("t.db")).unwrap()) == expected
}

#[test]
fn what_was_rolled_back_never_covers_what_others_have_committed() {
    assert!(others_survive_a_rollback("OFF"), "LOG-3");
    // The setting is what does it: with it on, this test sees the harm.
    assert!(!others_survive_a_rollback("ON"), "LOG-3");
}

#[test]
fn a_write_that_fails_is_told_and_not_kept() {
    // A limit on the size of files makes the kernel refuse; in a process of its own, which is this
    // test run again.
    const CHILD: &str = "LARDER_LOG_VFS_CHILD";
    if let Some(dir) = std::env::var_os(CHILD) {
        let path = Path::new(&dir).join("t.db");
        let vfs = register(None).unwrap();
        let writer =
            Connection::open_with_flags_and_vfs(&path, OpenFlags::default(), vfs.as_str()).unwrap();
        writer
            .execute_batch(
                "PRAGMA journal_mode = WAL; PRAGMA wal_autocheckpoint = 0;
                     CREATE TABLE t (id INTEGER PRIMARY KEY, bytes BLOB)",
            )
            .unwrap();
        let mut refused = 0;
        for id in 0..200 {
            let bytes = vec![1u8; 5000];
            let insert = writer.execute("INSERT INTO t VALUES (?1, ?2)", params![id, bytes]);
            refused += i64::from(insert.is_err());
            let reader = Connection::open(&path).unwrap();
            assert_eq!(rows(&reader).len() as i64, id + 1 - refused, "LOG-3");
        }
        assert!(refused > 0, "LOG-3");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // ulimit counts KiB in sh; SIGXFSZ would kill instead of refusing.
    let program = std::env::current_exe().unwrap();
    let (_, module) = module_path!().split_once("::").unwrap();
    let child = std::process::Command::new("sh")
        .arg("-c")
        .arg("trap '' XFSZ; ulimit -f 400; exec \"$0\" \"$@\"")
        .arg(program)
        .arg("--exact")
        .arg(format!("{module}::a_write_that_fails_is_told_and_not_kept"))
        .env(CHILD, dir.path())
        .output()
        .unwrap();
    let said = String::from_utf8_lossy(&child.stdout);
    assert!(child.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}
