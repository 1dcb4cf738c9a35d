//! What a strict reader found wrong with the past; each test failed before its mend.
use crate::common;

use crate::common::moments::{Clock, HOUR, SECOND};
use crate::common::{OWNER, content, kind, make, name, pattern, put};
use larder::{
    CreateOptions, Database, DatabaseOptions, DefragOptions, ErrorKind, FileHandle, Moment, NodeId,
};
use larder_object::format::SegmentIndex;
use larder_object::{Device, EngineOptions, Storage};
use larder_testkit::SimStorage;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const R: NodeId = NodeId::ROOT;
const BLOCK: u64 = 4096;
const MIB: usize = 1 << 20;

/// A database whose clock goes when it is told, and that does nothing by itself.
struct Place {
    dir: tempfile::TempDir,
    clock: Clock,
    options: EngineOptions,
}

impl Place {
    fn new(capacity_bytes: Option<u64>, retention_ns: i64) -> Place {
        Place::with(capacity_bytes, retention_ns, |_| {})
    }

    fn with(
        capacity_bytes: Option<u64>,
        retention_ns: i64,
        change: impl FnOnce(&mut EngineOptions),
    ) -> Place {
        let dir = tempfile::tempdir().unwrap();
        let clock = Clock::new();
        let mut options = clock.engine();
        let init = CreateOptions {
            capacity_bytes,
            retention_ns: Some(retention_ns),
            ..CreateOptions::default()
        };
        change(&mut options);
        Database::create_with(&dir.path().join("t.larder"), &init, &options).unwrap();
        Place {
            dir,
            clock,
            options,
        }
    }

    fn open(&self) -> Database {
        let options = DatabaseOptions {
            engine: self.options.clone(),
            ..DatabaseOptions::default()
        };
        Database::open(&self.dir.path().join("t.larder"), options).unwrap()
    }

    fn now(&self) -> i64 {
        self.clock.now()
    }

    fn pass(&self, ns: i64) {
        self.clock.pass(ns);
    }

    /// Makes durable what there is; the moment is this one alone.
    fn moment(&self, db: &Database) -> Moment {
        self.pass(SECOND);
        db.sync().unwrap();
        let moment = Moment::At(self.now());
        self.pass(SECOND);
        moment
    }
}

/// Writes in place the redo rows that nobody holds back.
fn apply(db: &Database) {
    db.maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
}

fn sql(db: &Database, text: &str) -> Vec<Vec<larder::SqlValue>> {
    let mut rows = Vec::new();
    db.sql()
        .open(false)
        .unwrap()
        .execute(text, &mut |row| {
            rows.push(row.values);
            Ok(())
        })
        .unwrap();
    rows
}

fn number(db: &Database, text: &str) -> i64 {
    match &sql(db, text)[0][..] {
        [larder::SqlValue::Integer(value)] => *value,
        other => panic!("{other:?}"),
    }
}

fn overwrite(file: &dyn FileHandle, model: &mut [u8], block: u64, bytes: &[u8]) {
    file.write_at(block * BLOCK, bytes).unwrap();
    let at = (block * BLOCK) as usize;
    model[at..at + bytes.len()].copy_from_slice(bytes);
}

fn assert_clean(db: &Database) {
    common::assert_clean(db);
}

#[test]
fn a_redo_row_that_was_ended_before_its_rows_went_stays_ended() {
    let place = Place::new(None, HOUR);
    let db = place.open();
    let mut model = pattern(MIB, 1);
    let node = put(&db, R, "f", &model);
    let other = put(&db, R, "other", &pattern(MIB, 2));
    db.sync().unwrap();
    let file = db.nodes().open(node, true).unwrap();
    overwrite(&*file, &mut model, 5, &pattern(4096, 3));
    db.sync().unwrap();
    // Who reads an older moment holds back what came after it.
    let reader = db.transactions().begin().unwrap();
    reader.nodes().metadata(R).unwrap();
    overwrite(&*file, &mut model, 0, &pattern(MIB / 2, 4)); // It ends the redo row.
    let ended = place.moment(&db);
    apply(&db); // The redo row goes, what ended it stays.
    drop(reader);
    let beside = db.nodes().open(other, true).unwrap();
    beside.write_at(0, &pattern(4096, 5)).unwrap();
    place.moment(&db);
    apply(&db); // Now what ended it goes.
    place.moment(&db);
    let past = db.as_of(&ended).unwrap();
    assert!(content(&past, node) == model, "HISTORY-1");
    drop(past);
    assert_clean(&db);
}

#[test]
fn a_redo_row_that_restores_what_was_there_hides_the_one_before() {
    let place = Place::new(None, HOUR);
    let db = place.open();
    let first = pattern(MIB, 1);
    let mut model = first.clone();
    let node = put(&db, R, "f", &model);
    db.sync().unwrap();
    let file = db.nodes().open(node, true).unwrap();
    overwrite(&*file, &mut model, 5, &pattern(4096, 3));
    overwrite(&*file, &mut model, 9, &pattern(4096, 4));
    db.sync().unwrap();
    let reader = db.transactions().begin().unwrap();
    reader.nodes().metadata(R).unwrap();
    overwrite(&*file, &mut model, 5, &first[5 * 4096..6 * 4096]);
    let restored = place.moment(&db);
    apply(&db);
    drop(reader);
    apply(&db);
    place.moment(&db);
    let past = db.as_of(&restored).unwrap();
    assert!(content(&past, node) == model, "HISTORY-1");
    drop(past);
    assert_clean(&db);
}

#[test]
fn an_apply_that_finds_no_space_takes_none() {
    let place = Place::new(Some(64 << 20), HOUR);
    let db = place.open();
    let mut model = pattern(8 * MIB, 1);
    let node = put(&db, R, "f", &model);
    let mut count = 0;
    for size in [MIB, 64 << 10] {
        loop {
            let path = format!("/fill{count}");
            match db.files().write(path.as_bytes(), pattern(size, count)) {
                Ok(_) => db.sync().unwrap(),
                Err(error) => {
                    assert_eq!(error.kind(), ErrorKind::NoSpace);
                    break;
                }
            }
            count += 1;
        }
    }
    // A little room, and history that nobody may give up.
    db.nodes()
        .unlink(R, &name(&format!("fill{}", count - 1)))
        .unwrap();
    db.sync().unwrap();
    place.pass(2 * HOUR);
    for at in 0..2 {
        make(&db, R, &format!("empty{at}"));
        db.sync().unwrap();
    }
    let before = db.snapshots().create("kept").unwrap();
    let file = db.nodes().open(node, true).unwrap();
    // More than there is room for.
    let pre_images = db.maintenance().space().unwrap().available_bytes / BLOCK + 20;
    for at in 0..pre_images {
        overwrite(&*file, &mut model, at * 3, &pattern(4096, 100 + at));
        db.sync().unwrap();
    }
    let retired = db.maintenance().space().unwrap().retired_bytes;
    for _ in 0..4 {
        place.pass(10 * SECOND);
        // Only the redo rows: nothing else is moved.
        let outcome = db
            .maintenance()
            .defrag(&[node], &DefragOptions::default(), &mut |_| {});
        assert!(outcome.is_ok() || kind(outcome.map(drop)) == ErrorKind::NoSpace);
        db.sync().unwrap();
    }
    assert_eq!(
        db.maintenance().space().unwrap().retired_bytes,
        retired,
        "PREIMAGE-2"
    );
    db.files().write(b"/small", pattern(32 << 10, 9)).unwrap();
    db.sync().unwrap();
    assert!(content(&db, node) == model);
    // With room it goes on, and the snapshot is as it was.
    let past = db.as_of(&Moment::Seq(before.seq.0)).unwrap();
    assert!(content(&past, node) == pattern(8 * MIB, 1));
    drop(past);
    db.snapshots().destroy("kept").unwrap();
    db.nodes().unlink(R, &name("fill0")).unwrap();
    db.sync().unwrap();
    place.pass(2 * HOUR);
    for at in 2..4 {
        make(&db, R, &format!("empty{at}"));
        db.sync().unwrap();
    }
    apply(&db);
    assert_eq!(db.maintenance().space().unwrap().redo_bytes, 0);
    assert!(content(&db, node) == model);
    assert_clean(&db);
}

#[test]
fn attributes_that_sql_has_changed_are_in_the_next_snapshot() {
    let place = Place::new(None, HOUR);
    let db = place.open();
    let node = put(&db, R, "f", b"x");
    place.moment(&db);
    // As an sqlite3 shell does: a transaction that no commit of ours is in.
    let change = |mode: u32| {
        let outcome = std::process::Command::new("sqlite3")
            .arg("-cmd")
            .arg(".timeout 5000")
            .arg(place.dir.path().join("t.larder/catalog.db"))
            .arg(format!(
                "UPDATE main SET mode = {mode} WHERE ino = {}",
                node.ino.0
            ))
            .output()
            .unwrap();
        assert!(outcome.status.success(), "{outcome:?}");
    };
    change(0o600);
    place.pass(SECOND);
    db.snapshots().create("private").unwrap();
    let snapshot = db.as_of(&Moment::Snapshot("private".into())).unwrap();
    assert_eq!(snapshot.nodes().metadata(node).unwrap().mode, 0o600);
    place.pass(SECOND);
    change(0o640);
    place.pass(SECOND);
    // Whoever only asks which commit a time means is told the same one (`times.rs` of the mount,
    // seed 1).
    let (seq, _) = db.history().resolve(&Moment::At(place.now())).unwrap();
    let at = db.as_of(&Moment::At(place.now())).unwrap();
    assert_eq!(at.nodes().metadata(node).unwrap().mode, 0o640, "CONTENT-9");
    assert_eq!(
        at.history().shown().map(|(shown, _)| shown),
        Some(seq),
        "HISTORY-6"
    );
    assert_eq!(snapshot.nodes().metadata(node).unwrap().mode, 0o600);
    drop((snapshot, at));
    // By the session of this process.
    place.pass(SECOND);
    sql(
        &db,
        &format!("UPDATE main SET mode = 420 WHERE ino = {}", node.ino.0),
    );
    db.snapshots().create("open").unwrap();
    let open = db.as_of(&Moment::Snapshot("open".into())).unwrap();
    assert_eq!(open.nodes().metadata(node).unwrap().mode, 0o644);
    drop(open);
    // What follows knows of the commits that this made.
    db.files().write(b"/more", pattern(MIB, 1)).unwrap();
    db.sync().unwrap();
    assert_clean(&db);
}

#[test]
fn a_clock_that_was_ahead_does_not_stop_time() {
    let place = Place::new(None, 100 * SECOND);
    let db = place.open();
    db.files().write(b"/f", b"early").unwrap();
    place.moment(&db);
    let right = place.now();
    place.pass(365 * 24 * HOUR);
    db.files().write(b"/f", b"ahead").unwrap();
    place.moment(&db);
    place.clock.set(right);
    place.pass(SECOND);
    db.files().write(b"/f", b"late").unwrap();
    let late = place.moment(&db);
    db.files().write(b"/f", b"later").unwrap();
    place.moment(&db);
    assert_eq!(
        db.as_of(&late).unwrap().files().read(b"/f").unwrap(),
        b"late"
    );
    let begins = number(
        &db,
        "SELECT value FROM larder_meta WHERE key = 'history_begins_ns'",
    );
    assert!(begins <= place.now(), "{begins}");
    for at in 0..8_u64 {
        place.pass(90 * SECOND);
        db.files().write(b"/f", pattern(100, at)).unwrap();
        place.moment(&db);
    }
    assert_eq!(
        kind(db.as_of(&late).map(drop)),
        ErrorKind::InvalidInput,
        "it expires"
    );
    let rows = number(&db, "SELECT count(*) FROM larder_history");
    assert!(rows < 30, "{rows}");
    assert_clean(&db);
}

#[test]
fn a_clock_that_was_reset_ends_no_history() {
    let place = Place::new(None, 100 * SECOND);
    let db = place.open();
    db.files().write(b"/f", b"early").unwrap();
    let early = place.moment(&db);
    db.files().write(b"/f", b"next").unwrap();
    place.moment(&db);
    let right = place.now();
    // As a host without a battery starts: before the database was made.
    place.clock.set(7 * SECOND);
    db.files().write(b"/f", b"reset").unwrap();
    db.sync().unwrap();
    place.clock.set(right);
    place.pass(SECOND);
    db.files().write(b"/f", b"late").unwrap();
    place.moment(&db);
    assert_eq!(
        db.as_of(&early).unwrap().files().read(b"/f").unwrap(),
        b"early"
    );
    assert_clean(&db);
}

/// Segments that count what they are asked to flush, and fail when so much was written.
struct Counting {
    segments: SimStorage,
    counts: Counts,
}

#[derive(Clone)]
struct Counts {
    flushes: Arc<AtomicU64>,
    writes_left: Arc<AtomicI64>,
}

impl Counts {
    fn new() -> Counts {
        Counts {
            flushes: Arc::default(),
            writes_left: Arc::new(AtomicI64::new(i64::MAX)),
        }
    }

    fn storage(&self) -> Arc<dyn Storage> {
        Arc::new(Counting {
            segments: SimStorage::new(),
            counts: self.clone(),
        })
    }
}

struct CountingDevice {
    device: Arc<dyn Device>,
    counts: Counts,
}

impl Counting {
    fn count(&self, device: Arc<dyn Device>) -> Arc<dyn Device> {
        Arc::new(CountingDevice {
            device,
            counts: self.counts.clone(),
        })
    }
}

impl Storage for Counting {
    fn open_segment(&self, segment: SegmentIndex) -> std::io::Result<Arc<dyn Device>> {
        Ok(self.count(self.segments.open_segment(segment)?))
    }
    fn create_segment(&self, segment: SegmentIndex) -> std::io::Result<Arc<dyn Device>> {
        Ok(self.count(self.segments.create_segment(segment)?))
    }
    fn segments(&self) -> std::io::Result<Vec<SegmentIndex>> {
        self.segments.segments()
    }
    fn available_bytes(&self) -> std::io::Result<u64> {
        self.segments.available_bytes()
    }
}

impl Device for CountingDevice {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.device.read_at(offset_bytes, buf)
    }
    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> std::io::Result<()> {
        match self.counts.writes_left.fetch_sub(1, Ordering::SeqCst) > 0 {
            true => self.device.write_at(offset_bytes, bytes),
            false => Err(std::io::Error::other("injected")),
        }
    }
    fn flush(&self) -> std::io::Result<()> {
        self.counts.flushes.fetch_add(1, Ordering::SeqCst);
        self.device.flush()
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        self.device.len_bytes()
    }
    fn truncate(&self, len_bytes: u64) -> std::io::Result<()> {
        self.device.truncate(len_bytes)
    }
}

#[test]
fn pre_images_are_saved_with_one_flush() {
    let counts = Counts::new();
    let place = Place::with(None, HOUR, |options| {
        options.storage = Some(counts.storage());
    });
    let db = place.open();
    let first = pattern(8 * MIB, 1);
    let mut model = first.clone();
    let node = put(&db, R, "f", &model);
    let before = place.moment(&db);
    let file = db.nodes().open(node, true).unwrap();
    for at in 0..300 {
        overwrite(&*file, &mut model, at * 5, &pattern(4096, 10 + at));
    }
    let after = place.moment(&db);
    let counted = counts.flushes.load(Ordering::SeqCst);
    apply(&db);
    let count = counts.flushes.load(Ordering::SeqCst) - counted;
    assert!(count < 20, "{count} flushes");
    assert_eq!(db.maintenance().space().unwrap().redo_bytes, 0);
    let pre_images = number(&db, "SELECT sum(block_count) FROM larder_pre_image");
    assert_eq!(pre_images, 300);
    place.moment(&db);
    for (moment, model) in [(before, &first), (after, &model)] {
        let past = db.as_of(&moment).unwrap();
        assert!(content(&past, node) == *model, "PREIMAGE-1, HISTORY-4");
    }
    assert_clean(&db);
}

#[test]
fn an_apply_that_was_interrupted_saves_no_pre_image_again() {
    let counts = Counts::new();
    let place = Place::with(None, HOUR, |options| {
        options.storage = Some(counts.storage());
    });
    let db = place.open();
    let first = pattern(8 * MIB, 1);
    let mut model = first.clone();
    let node = put(&db, R, "f", &model);
    let before = place.moment(&db);
    let file = db.nodes().open(node, true).unwrap();
    for at in 0..300 {
        overwrite(&*file, &mut model, at * 5, &pattern(4096, 10 + at));
    }
    let after = place.moment(&db);
    // All copies, and some pre-images.
    counts.writes_left.store(350, Ordering::SeqCst);
    let failed = db
        .maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {});
    assert!(failed.is_err());
    drop((file, db));
    counts.writes_left.store(i64::MAX, Ordering::SeqCst);
    let db = place.open();
    let pre_images = "SELECT sum(block_count) FROM larder_pre_image";
    assert_eq!(
        number(&db, pre_images),
        300,
        "the test has failed at a wrong place"
    );
    apply(&db);
    assert_eq!(db.maintenance().space().unwrap().redo_bytes, 0);
    assert_eq!(number(&db, pre_images), 300, "PREIMAGE-2");
    for (moment, model) in [(before, &first), (after, &model)] {
        let past = db.as_of(&moment).unwrap();
        assert!(content(&past, node) == *model, "PREIMAGE-1, HISTORY-4");
    }
    assert!(content(&db, node) == model);
    assert_clean(&db);
}

#[test]
fn the_past_ends_with_its_present_and_says_so() {
    let place = Place::new(None, 10 * SECOND);
    let db = place.open();
    let old = pattern(3 * MIB, 1);
    let node = put(&db, R, "f", &old);
    let then = place.moment(&db);
    let past = db.as_of(&then).unwrap();
    let file = past.nodes().open(node, false).unwrap();
    let mut head = [0; 16];
    file.read_at(0, &mut head).unwrap();
    db.clone().close().unwrap();
    // Somebody else, who knows nothing of it, lets history go and takes its space.
    let other = place.open();
    other.nodes().unlink(R, &name("f")).unwrap();
    for at in 0..6 {
        place.pass(100 * SECOND);
        put(&other, R, &format!("new{at}"), &pattern(3 * MIB, 10 + at));
        other.sync().unwrap();
    }
    assert_eq!(number(&other, "SELECT count(*) FROM larder_as_of"), 0);
    assert_eq!(kind(past.nodes().resolve(b"/f", true)), ErrorKind::Stopped);
    assert_eq!(kind(past.files().read(b"/f").map(drop)), ErrorKind::Stopped);
    let mut bytes = vec![0; 3 * MIB];
    match file.read_at(0, &mut bytes) {
        Ok(_) => assert!(bytes == old, "what it has in memory is right"),
        Err(error) => assert_eq!(error.kind(), ErrorKind::Stopped),
    }
    drop((file, past, db));
    assert_eq!(number(&other, "SELECT count(*) FROM larder_as_of"), 0);
    assert_clean(&other);
}

#[test]
fn a_write_that_history_refuses_is_refused_at_once() {
    let place = Place::new(Some(64 << 20), HOUR);
    let db = place.open();
    db.files().write(b"/file", pattern(20 * MIB, 1)).unwrap();
    db.sync().unwrap();
    db.snapshots().create("kept").unwrap();
    db.files().write(b"/file", pattern(20 * MIB, 2)).unwrap();
    db.sync().unwrap();
    // It is no pin that the room waits for. The fastest of some, beside other work on the machine.
    let begun = Instant::now();
    let mut fastest = Duration::MAX;
    while fastest >= Duration::from_millis(400) && begun.elapsed() < Duration::from_secs(20) {
        let begun = Instant::now();
        let refused = db.files().write(b"/more", pattern(30 * MIB, 0)).map(drop);
        assert_eq!(kind(refused), ErrorKind::NoSpace);
        fastest = fastest.min(begun.elapsed());
    }
    assert!(fastest < Duration::from_millis(400), "{fastest:?}");
    assert_clean(&db);
}

#[test]
fn shrinking_beside_a_snapshot_is_refused_before_anything_is_given_up() {
    let place = Place::new(Some(256 << 20), HOUR);
    let db = place.open();
    db.files().write(b"/old", pattern(MIB, 1)).unwrap();
    let early = place.moment(&db);
    db.files().write(b"/old", pattern(MIB, 2)).unwrap();
    for at in 0..40 {
        put(&db, R, &format!("f{at}"), &pattern(MIB, 10 + at));
    }
    place.moment(&db);
    db.snapshots().create("kept").unwrap();
    for at in 0..40 {
        db.nodes().unlink(R, &name(&format!("f{at}"))).unwrap();
    }
    place.moment(&db);
    let begun = Instant::now();
    let refused = db
        .maintenance()
        .shrink(Some(24 << 20), false, &mut |_, _| {})
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy, "{refused}");
    assert!(refused.to_string().contains("snapshot 'kept'"), "{refused}");
    assert!(begun.elapsed() < Duration::from_secs(1));
    let past = db.as_of(&early).unwrap();
    assert!(past.files().read(b"/old").unwrap() == pattern(MIB, 1));
    drop(past);
    db.snapshots().destroy("kept").unwrap();
    let report = db
        .maintenance()
        .shrink(Some(24 << 20), false, &mut |_, _| {})
        .unwrap();
    assert!(report.segment_bytes_after <= 24 << 20, "{report:?}");
    assert_clean(&db);
}

#[test]
fn a_snapshot_after_the_end_of_a_store_holds_nothing_of_it() {
    let place = Place::new(None, 10 * SECOND);
    let db = place.open();
    db.stores().create("other", "files", None, None).unwrap();
    let root = db.nodes().resolve(b"/other", true).unwrap().node;
    put(&db, root, "f", &pattern(4 * MIB, 1));
    place.moment(&db);
    db.stores().destroy("other").unwrap();
    place.pass(SECOND);
    db.snapshots().create("after").unwrap();
    for at in 0..3 {
        place.pass(100 * SECOND);
        make(&db, R, &format!("empty{at}"));
        db.sync().unwrap();
    }
    assert_eq!(
        db.maintenance().space().unwrap().retired_bytes,
        0,
        "HISTORY-3"
    );
    assert_clean(&db);
}

#[test]
fn a_long_look_at_the_past_finds_copies_where_segments_have_grown() {
    look_long(64 << 20, "copy_segment > 0");
    look_long(4 << 40, "copy_block >= 16384");
}

fn look_long(segment_bytes_max: u64, elsewhere: &str) {
    let place = Place::with(Some(512 << 20), HOUR, |options| {
        options.segment_bytes_max = segment_bytes_max;
    });
    let db = place.open();
    let first = pattern(8 * MIB, 1);
    let mut model = first.clone();
    let node = put(&db, R, "f", &model);
    let then = place.moment(&db);
    let past = db.as_of(&then).unwrap();
    // Until no hole is as long as what is overwritten.
    for at in 0..1200 {
        put(&db, R, &format!("fill{at}"), &pattern(64 << 10, 10 + at));
        if at % 100 == 99 {
            db.sync().unwrap();
        }
    }
    let file = db.nodes().open(node, true).unwrap();
    for at in 0..100 {
        overwrite(&*file, &mut model, at * 20, &pattern(64 << 10, 50 + at));
    }
    db.sync().unwrap();
    apply(&db);
    let sql = format!("SELECT count(*) FROM larder_pre_image WHERE {elsewhere}");
    assert!(number(&db, &sql) > 0, "there was room where there must not");
    assert!(content(&past, node) == first, "HISTORY-4");
    assert!(content(&db, node) == model);
    drop(past);
    assert_clean(&db);
}

#[test]
fn who_is_refused_the_past_leaves_no_pin() {
    let place = Place::new(None, HOUR);
    let db = place.open();
    let node = make(&db, R, "f");
    let then = place.moment(&db);
    db.clone().close().unwrap();
    assert_eq!(kind(db.as_of(&then).map(drop)), ErrorKind::Stopped);
    let other = place.open();
    assert_eq!(number(&other, "SELECT count(*) FROM larder_as_of"), 0);
    assert_eq!(other.nodes().metadata(node).unwrap().uid, OWNER.uid);
}
