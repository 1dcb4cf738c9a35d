//! A great deal of history goes in steps (`TIME-9`).

use crate::common::moments::{Clock, HOUR, SECOND};
use larder::{Database, PruneCut};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const FILES: usize = 4200;
/// Rows that one commit lets go.
const STEP_ROWS: u64 = 8192;

fn rows(db: &Database) -> u64 {
    let report = db.history().report().unwrap();
    report.stores.iter().map(|store| store.row_count).sum()
}

fn remove(db: &Database, path: String) {
    let (parent, name) = db.nodes().resolve_parent(path.as_bytes()).unwrap();
    db.nodes().unlink(parent, &name).unwrap();
}

/// Three rows for each file that was: deleted by commits of up to `group` of them.
fn fill(clock: &Clock, db: &Database, group: usize) {
    for index in 0..FILES {
        db.files()
            .write(format!("/f{index}").as_bytes(), b"content")
            .unwrap();
    }
    db.sync().unwrap();
    clock.pass(SECOND);
    for index in 0..FILES {
        remove(db, format!("/f{index}"));
        if index % group == group - 1 {
            db.sync().unwrap();
            clock.pass(SECOND);
        }
    }
    db.sync().unwrap();
    let found = rows(db);
    assert!(found > 3 * FILES as u64, "{found}");
}

/// What is left after a call that may commit; no commit takes more than it may.
fn commit_some(db: &Database, round: usize) -> u64 {
    let (before, seq) = (rows(db), db.maintenance().stats().unwrap().commit_seq);
    match round % 2 {
        0 => drop(db.files().write(b"/tick", b"tick").unwrap()),
        _ => db.sync().unwrap(),
    }
    let (after, commits) = (rows(db), db.maintenance().stats().unwrap().commit_seq - seq);
    assert!(
        before.saturating_sub(after) <= commits * STEP_ROWS,
        "TIME-9: {before} rows, then {after}, by {commits} commits"
    );
    after
}

/// Commits until all of it is gone.
fn commit_away(db: &Database) {
    let mut left = u64::MAX;
    for round in 0..40 {
        left = commit_some(db, round);
        if left < 100 {
            return;
        }
    }
    panic!("TIME-9: {left} rows are left");
}

fn assert_clean(db: &Database) {
    let report = db.maintenance().check(true, &mut |_, _| {}).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

/// What a crash leaves of a database between two commits.
fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        match entry.file_type().unwrap().is_dir() {
            true => copy(&entry.path(), &target),
            false if entry.file_name() == "catalog.db-shm" => {}
            false => drop(std::fs::copy(entry.path(), target).unwrap()),
        }
    }
}

/// Whoever let so much wait: each later commit takes a step, and so do those of other sessions
/// after a crash.
#[test]
fn what_the_retention_lets_go_goes_in_steps() {
    for group in [500, FILES] {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::new();
        let db = clock.create(dir.path(), 64, HOUR);
        fill(&clock, &db, group);
        clock.pass(2 * HOUR);
        let (mut left, mut round) = (rows(&db), 0);
        assert!(left > STEP_ROWS, "{left}");
        while left > STEP_ROWS {
            left = commit_some(&db, round);
            round += 1;
        }
        assert!(left > 1000, "TIME-9: {left}");
        let crashed = tempfile::tempdir().unwrap();
        copy(
            &dir.path().join("t.larder"),
            &crashed.path().join("t.larder"),
        );
        clock.pass(2 * SECOND);
        commit_away(&db);
        assert_clean(&db);
        db.close().unwrap();
        let db = clock.open(crashed.path());
        assert!(rows(&db) > 1000, "TIME-9");
        assert_clean(&db);
        commit_away(&db);
        assert_clean(&db);
        assert_eq!(db.files().read(b"/tick").unwrap(), b"tick");
        db.close().unwrap();
    }
}

/// A prune takes all steps, each its own commit, and the log stays as short as one of them.
#[test]
fn a_prune_is_as_many_commits_as_it_has_steps() {
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let db = clock.create(dir.path(), 64, HOUR);
    for _ in 0..2 {
        fill(&clock, &db, 700);
    }
    let (before, found) = (db.maintenance().stats().unwrap(), rows(&db));
    let report = db
        .history()
        .prune(PruneCut::All, None, false)
        .unwrap()
        .report;
    let freed: u64 = report.freed.iter().map(|store| store.row_count).sum();
    assert_eq!((freed, report.is_waiting), (found, false));
    assert!(rows(&db) < 100);
    let commits = db.maintenance().stats().unwrap().commit_seq - before.commit_seq;
    let least = found / STEP_ROWS;
    assert!(
        commits >= least && commits < 2 * least + 6,
        "TIME-9: {commits} for {found} rows"
    );
    assert_clean(&db);
    db.close().unwrap();
}

/// A close beside so much takes a few steps and no more; who opens the database next goes on by
/// himself.
#[test]
fn a_close_takes_some_steps_and_the_next_session_the_others() {
    /// Those of a close, and what it commits besides.
    const COMMITS_MAX: u64 = 4 + 3;
    let dir = tempfile::tempdir().unwrap();
    let clock = Clock::new();
    let db = clock.create(dir.path(), 64, HOUR);
    for _ in 0..5 {
        fill(&clock, &db, FILES);
    }
    clock.pass(2 * HOUR);
    let (found, before) = (rows(&db), db.maintenance().stats().unwrap().commit_seq);
    assert!(found > (COMMITS_MAX - 1) * STEP_ROWS, "{found}");
    db.files().write(b"/tick", b"tick").unwrap();
    db.close().unwrap();
    let catalog = dir.path().join("t.larder/catalog.db");
    let count = |sql: &str| -> u64 {
        let done = Command::new("sqlite3")
            .arg(&catalog)
            .arg(sql)
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let text = String::from_utf8(done.stdout).unwrap();
        text.trim().parse().unwrap()
    };
    let commits = count("SELECT value FROM larder_meta WHERE key = 'commit_seq'") - before;
    let left = count("SELECT count(*) FROM larder_history");
    assert!(
        left > STEP_ROWS && commits <= COMMITS_MAX,
        "TIME-9: {left} of {found} rows are left, by {commits} commits"
    );
    let db = clock.open_with(dir.path(), true);
    db.sync().unwrap(); // Asks what can be reclaimed, and has no writer lock for that.
    let began = Instant::now();
    while rows(&db) > 100 {
        assert!(began.elapsed() < Duration::from_secs(120), "TIME-9");
        std::thread::sleep(Duration::from_millis(20));
    }
    assert_clean(&db);
    db.close().unwrap();
}
