//! The catalog's log begins anew, in place, while commits go on.
#![allow(clippy::unwrap_used)] // Helpers outside test functions are tests too.

mod common;

use common::*;
use larder::NodeId;
use std::time::{Duration, Instant};

/// More than three times what makes the background copy the log; without that its file has all of it.
#[test]
fn the_log_is_copied_beside_commits_and_begins_anew() {
    const WRITTEN: u64 = 110 << 20;
    let dir = tempfile::tempdir().unwrap();
    let db = create(dir.path(), None);
    let node = make(&db, NodeId::ROOT, "f");
    let handle = db.open_file(node, true).unwrap();
    let bytes = pattern(16 * 4096, 1);
    let began = Instant::now();
    // Logged: at least the content goes into the log.
    for index in 0..WRITTEN / bytes.len() as u64 {
        handle.write_at(index * bytes.len() as u64, &bytes).unwrap();
        handle.sync().unwrap();
        // No faster than a device: a background that has no processor in time is not what is tested.
        let due = Duration::from_millis(index);
        std::thread::sleep(due.saturating_sub(began.elapsed()));
    }
    let len_bytes = db.stats().unwrap().wal_bytes;
    assert!(
        len_bytes < WRITTEN * 3 / 4,
        "CHECKPOINT-1: {len_bytes} bytes"
    );
    assert_clean(&db);
    drop(handle);
    db.close().unwrap();
}
