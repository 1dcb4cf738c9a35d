//! Others who commit beside the sessions of a test, and when these have looked.

use larder::Database;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

/// By a connection that knows nothing of Larder.
pub fn plain(dir: &Path, sql: &str) {
    let output = Command::new("sqlite3")
        .args(["-cmd", ".timeout 20000"])
        .arg(dir.join("t.larder/catalog.db"))
        .arg(sql)
        .output()
        .expect("the sqlite3 shell is needed; install it");
    assert!(output.status.success(), "{sql}: {output:?}");
}

fn looks(db: &Database) -> u64 {
    let gauges = db.maintenance().gauges().unwrap();
    gauges.foreign_exact_count + gauges.foreign_whole_count
}

/// Returns when all have looked at what was committed before. A look that was counted after the
/// first commit here may have begun before it; the one after that has not.
pub fn settle(dir: &Path, all: &[Database]) {
    for _ in 0..2 {
        let before: Vec<u64> = all.iter().map(looks).collect();
        plain(dir, "INSERT INTO idle VALUES (1); DELETE FROM idle");
        for (db, before) in all.iter().zip(before) {
            let began = Instant::now();
            while looks(db) == before {
                let is_late = began.elapsed() > Duration::from_secs(30);
                assert!(
                    !is_late,
                    "nobody looks; {:?}",
                    db.files().write(b"/why", b"").err()
                );
                std::thread::sleep(Duration::from_millis(2));
            }
        }
    }
}
