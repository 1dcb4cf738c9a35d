//! What two strict readers found wrong with the engine of time; each test failed before its mend.

use crate::common::{assert_clean, make, name, open, pattern, put};
use larder::{
    CreateOptions, Database, DatabaseOptions, Moment, NodeId, PruneCut, SqlValue,
    TransactionOptions, begin_detached, commit_long,
};
use larder_object::EngineOptions;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

const R: NodeId = NodeId::ROOT;
const HOUR_NS: i64 = 3_600_000_000_000;

fn create(dir: &Path) -> Database {
    let options = CreateOptions {
        retention_ns: Some(HOUR_NS),
        capacity_bytes: Some(64 << 20),
        ..CreateOptions::default()
    };
    Database::create(&dir.join("t.larder"), &options).unwrap();
    open(dir)
}

/// As another program does, which knows nothing of us.
fn plain_sql(dir: &Path, sql: &str) {
    let output = Command::new("sqlite3")
        .args(["-bail", "-cmd", ".timeout 30000"])
        .arg(dir.join("t.larder/catalog.db"))
        .arg(sql)
        .output()
        .expect("the sqlite3 shell is needed; install it");
    assert!(output.status.success(), "{sql}: {output:?}");
}

fn rows_of(db: &Database, moment: &Moment) -> Vec<Vec<SqlValue>> {
    let past = db.as_of(moment).unwrap();
    let found = db.sql().rows_as_of(&past, "t", None).unwrap();
    found.rows.into_iter().map(|row| row.values).collect()
}

/// Time that passes, for what has times to the millisecond.
fn wait_ms(ms: u64) {
    let until = std::time::Instant::now() + std::time::Duration::from_millis(ms);
    while std::time::Instant::now() < until {
        std::thread::yield_now();
    }
}

#[test]
fn commits_that_are_no_groups_swallow_no_plain_sql() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("t.larder");
    let db = create(dir.path());
    let node = make(&db, R, "f");
    plain_sql(dir.path(), "CREATE TABLE t (n)");
    plain_sql(dir.path(), "INSERT INTO t VALUES (0)");
    db.sql().track_table("t").unwrap();
    db.sync().unwrap();
    db.stores().create("other", "files", None, None).unwrap();
    let early = db.now_ns();
    db.files().write(b"/g", b"1").unwrap();
    db.sync().unwrap();
    let mut ids = Vec::new();
    type Make<'m> = &'m mut dyn FnMut(&mut Vec<u64>);
    let makers: [(&str, Make<'_>); 5] = [
        ("the begin of a long transaction", &mut |ids| {
            ids.push(begin_detached(&path, "one").unwrap().0);
        }),
        ("a merge", &mut |ids| {
            commit_long(&path, ids.pop().unwrap()).map(drop).unwrap();
        }),
        ("the end of a long transaction", &mut |_| {
            db.transactions()
                .begin_long("two")
                .unwrap()
                .abort()
                .unwrap();
        }),
        ("the end of a store", &mut |_| {
            db.stores().destroy("other").unwrap();
        }),
        ("a prune", &mut |_| {
            let cut = PruneCut::OlderThan(Moment::At(early));
            db.history().prune(cut, None, false).unwrap();
        }),
    ];
    for (n, (what, make)) in (1..).zip(makers) {
        let mode = 0o600 + n as u32;
        wait_ms(3);
        let before_ns = db.now_ns();
        wait_ms(3);
        plain_sql(
            dir.path(),
            &format!(
                "UPDATE t SET n = {n}; UPDATE main SET mode = {mode} WHERE ino = {}",
                node.ino.0
            ),
        );
        wait_ms(3);
        let at_ns = db.now_ns();
        wait_ms(3);
        make(&mut ids);
        wait_ms(3);
        let rows = |n: i64| vec![vec![SqlValue::Integer(n)]];
        assert_eq!(
            rows_of(&db, &Moment::At(before_ns)),
            rows(n - 1),
            "HISTORY-6: {what}"
        );
        assert_eq!(
            rows_of(&db, &Moment::At(at_ns)),
            rows(n),
            "TEMPORAL-1: {what}"
        );
        let now = db.as_of(&Moment::At(db.now_ns())).unwrap();
        assert_eq!(
            now.nodes().metadata(node).unwrap().mode,
            mode,
            "HISTORY-6: {what}"
        );
        db.snapshots().create("now").unwrap();
        let snapshot = Moment::Snapshot("now".into());
        assert_eq!(rows_of(&db, &snapshot), rows(n), "HISTORY-6: {what}");
        let shown = db.as_of(&snapshot).unwrap();
        assert_eq!(
            shown.nodes().metadata(node).unwrap().mode,
            mode,
            "HISTORY-6: {what}"
        );
        drop((now, shown));
        db.snapshots().destroy("now").unwrap();
    }
    assert_clean(&db);
}

/// A database of 64 MiB that history has filled.
fn full_of_history(dir: &Path) -> Database {
    let db = create(dir);
    for round in 0..40 {
        db.files().write(b"/file", pattern(4 << 20, round)).unwrap();
        db.sync().unwrap();
    }
    db
}

#[test]
fn room_that_another_one_made_is_tried() {
    let dir = tempfile::tempdir().unwrap();
    let db = full_of_history(dir.path());
    let bytes = pattern(50 << 20, 99);
    let mut runs = 0;
    db.transactions()
        .run(|txn| {
            runs += 1;
            let done = txn.files().write(b"/large", &bytes);
            if done.is_err() {
                // Somebody else comes first, and makes all the room there is.
                txn.abort();
                db.transactions()
                    .begin_with(&TransactionOptions {
                        is_immediate: true,
                        ..TransactionOptions::default()
                    })?
                    .abort();
            }
            done.map(drop)
        })
        .unwrap();
    assert_eq!(runs, 2, "TIME-5");
    assert!(db.files().read(b"/large").unwrap() == bytes);
    assert_clean(&db);
}

#[test]
fn who_leaves_the_pool_short_fills_it() {
    let dir = tempfile::tempdir().unwrap();
    full_of_history(dir.path()).close().unwrap();
    // Without a background: nobody else does.
    let engine = EngineOptions {
        has_background: false,
        ..EngineOptions::default()
    };
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    let db = Database::open(&dir.path().join("t.larder"), options).unwrap();
    for round in 0..20 {
        let txn = db.transactions().begin().unwrap();
        txn.files()
            .write(b"/file", pattern(1 << 20, 100 + round))
            .unwrap();
        txn.commit().unwrap();
        let space = db.maintenance().space().unwrap();
        assert!(space.free_bytes >= (64 << 20) / 16, "TIME-5: {space:?}");
    }
    assert_clean(&db);
}

/// A database whose clock goes when it is told.
struct Place {
    dir: tempfile::TempDir,
    now_ns: Arc<AtomicI64>,
}

impl Place {
    fn new(capacity_bytes: Option<u64>) -> Place {
        let place = Place {
            dir: tempfile::tempdir().unwrap(),
            now_ns: Arc::new(AtomicI64::new(1_800_000_000_000_000_000)),
        };
        let init = CreateOptions {
            capacity_bytes,
            retention_ns: Some(HOUR_NS),
            ..CreateOptions::default()
        };
        Database::create_with(&place.path(), &init, &place.engine(false)).unwrap();
        place
    }

    fn path(&self) -> PathBuf {
        self.dir.path().join("t.larder")
    }

    fn engine(&self, has_background: bool) -> EngineOptions {
        let clock = Arc::clone(&self.now_ns);
        EngineOptions {
            has_background,
            clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
            ..EngineOptions::default()
        }
    }

    /// Beside others a session needs a background, to give the writer lock on.
    fn open(&self, has_background: bool) -> Database {
        let options = DatabaseOptions {
            engine: self.engine(has_background),
            ..DatabaseOptions::default()
        };
        Database::open(&self.path(), options).unwrap()
    }

    fn pass(&self, ns: i64) {
        self.now_ns.fetch_add(ns, Ordering::SeqCst);
    }

    /// Writes and commits, and gives the writer lock back.
    fn put(&self, db: &Database, path: &[u8], bytes: &[u8]) {
        db.files().write(path, bytes).unwrap();
        db.sync().unwrap();
        self.pass(1_000_000_000);
    }
}

#[test]
fn a_snapshot_that_another_session_destroys_holds_nothing_any_more() {
    let place = Place::new(Some(64 << 20));
    let db = place.open(true);
    place.put(&db, b"/f", &pattern(1 << 20, 1));
    db.snapshots().create("kept").unwrap();
    place.put(&db, b"/f", &pattern(1 << 20, 2));
    place.pass(2 * HOUR_NS);
    place.put(&db, b"/g", b"a look at what is held");
    assert!(db.maintenance().space().unwrap().retired_bytes >= 1 << 20);
    let other = place.open(true);
    other.snapshots().destroy("kept").unwrap();
    other.close().unwrap();
    place.put(&db, b"/g", b"once");
    place.put(&db, b"/g", b"and again");
    let space = db.maintenance().space().unwrap();
    assert!(space.retired_bytes < 1 << 20, "{space:?}");
    assert_clean(&db);
}

#[test]
fn a_prune_that_has_to_wait_is_made_by_whoever_commits_then() {
    let place = Place::new(Some(64 << 20));
    let reader = place.open(false); // Its pin stays where it is.
    let db = place.open(true);
    for salt in 0..4 {
        place.put(&db, b"/f", &pattern(1 << 20, salt));
    }
    let pruned = db
        .history()
        .prune(PruneCut::All, None, false)
        .unwrap()
        .report;
    assert!(pruned.is_waiting, "nothing waits: nothing is tested");
    db.close().unwrap();
    reader.close().unwrap();
    let db = place.open(true);
    place.put(&db, b"/g", b"once");
    place.put(&db, b"/g", b"and again");
    let space = db.maintenance().space().unwrap();
    assert_eq!(space.retired_bytes, 0, "TIME-6: {space:?}");
    let (begins, _) = db
        .history()
        .report()
        .map(|of| (of.begins_seq, of.begins_ns))
        .unwrap();
    assert!(begins >= pruned.begins_seq, "TIME-6");
    // What is superseded later is kept as ever, and a guarantee ends the wish.
    place.put(&db, b"/f", &pattern(1 << 20, 9));
    place.put(&db, b"/g", b"later");
    assert!(db.maintenance().space().unwrap().retired_bytes >= 1 << 20);
    assert_clean(&db);
}

#[test]
fn shrinking_looks_at_what_applying_copies() {
    let place = Place::new(Some(256 << 20));
    let db = place.open(false);
    for at in 0..40 {
        put(&db, R, &format!("f{at}"), &pattern(1 << 20, 10 + at));
    }
    let file = put(&db, R, "file", &pattern(1 << 20, 5));
    db.sync().unwrap();
    for at in 0..20 {
        db.nodes().unlink(R, &name(&format!("f{at}"))).unwrap();
    }
    db.sync().unwrap();
    place.pass(1_000_000_000);
    db.snapshots().create("kept").unwrap();
    place.pass(1_000_000_000);
    let handle = db.nodes().open(file, true).unwrap();
    for block in (0..256).step_by(4) {
        handle
            .write_at(block * 4096, &pattern(4096, block))
            .unwrap();
    }
    handle.sync().unwrap();
    drop(handle);
    let begun = std::time::Instant::now();
    let refused = db
        .maintenance()
        .shrink(Some(26 << 20), false, &mut |_, _| {});
    let told = refused.unwrap_err().to_string();
    assert!(told.contains("snapshot 'kept'"), "{told}");
    assert!(begun.elapsed() < std::time::Duration::from_millis(1500));
    db.snapshots().destroy("kept").unwrap();
    db.maintenance()
        .shrink(Some(26 << 20), false, &mut |_, _| {})
        .unwrap();
    assert_clean(&db);
}
