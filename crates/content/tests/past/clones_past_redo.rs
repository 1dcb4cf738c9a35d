//! What comes out of the past beside redo rows that wait, or are being written in place (`SHARE-4`,
//! `SHARE-10`).

use crate::common::moments::{Clock, HOUR};
use crate::common::workspace::{mkdir, remove};
use crate::common::{assert_clean, create, pattern, put};
use larder::{
    Database, DatabaseOptions, DefragOptions, Moment, NodeId, RestoreOptions, copy_range,
};
use larder_object::format::SegmentIndex;
use larder_object::{Device, EngineOptions, Storage};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

const R: NodeId = NodeId::ROOT;
const MIB: usize = 1 << 20;

fn at(db: &Database, name: &str) -> Database {
    db.as_of(&Moment::Snapshot(name.into())).unwrap()
}

fn apply(db: &Database) {
    db.maintenance()
        .defrag(&[], &DefragOptions::default(), &mut |_| {})
        .unwrap();
}

#[test]
fn two_copies_of_the_past_in_one_group_beside_a_redo_row() {
    let dir = tempfile::tempdir().unwrap();
    let db = Clock::new().create(dir.path(), 128, HOUR);
    let then = pattern(2 * MIB, 1);
    let a = put(&db, R, "a", &then);
    db.sync().unwrap();
    db.snapshots().create("s").unwrap();
    let b = put(&db, R, "b", b"");
    let c = put(&db, R, "c", b"");
    db.sync().unwrap();
    let file = db.nodes().open(a, true).unwrap();
    file.write_at((MIB + 1) as u64, &pattern(100, 2)).unwrap();
    drop(file);
    db.sync().unwrap(); // A redo row that waits.
    let past = at(&db, "s");
    let source = past
        .nodes()
        .open(past.nodes().resolve(b"/a", false).unwrap().node, false)
        .unwrap();
    for to in [b, c] {
        let target = db.nodes().open(to, true).unwrap();
        let mut done = 0;
        while done < then.len() as u64 {
            let n = copy_range(
                (source.as_ref(), done),
                (target.as_ref(), done),
                then.len() as u64 - done,
            )
            .unwrap();
            assert!(n > 0);
            done += n;
        }
    }
    db.sync().unwrap();
    assert!(db.files().read(b"/b").unwrap() == then);
    assert!(db.files().read(b"/c").unwrap() == then);
    assert_clean(&db);
    apply(&db);
    assert!(db.files().read(b"/b").unwrap() == then);
    assert!(db.files().read(b"/c").unwrap() == then, "c");
    assert_clean(&db);
}

#[test]
fn a_restore_of_two_clones_beside_an_origin_with_redo_rows() {
    let dir = tempfile::tempdir().unwrap();
    let db = Clock::new().create(dir.path(), 128, HOUR);
    let then = pattern(2 * MIB, 1);
    let a = put(&db, R, "a", &then);
    mkdir(&db, "/t");
    db.sync().unwrap();
    db.files().clone_path(None, b"/a", b"/t/b").unwrap();
    db.files().clone_path(None, b"/a", b"/t/c").unwrap();
    db.snapshots().create("s").unwrap();
    remove(&db, b"/t/b");
    remove(&db, b"/t/c");
    db.sync().unwrap();
    let file = db.nodes().open(a, true).unwrap();
    file.write_at((MIB + 1) as u64, &pattern(100, 2)).unwrap();
    drop(file);
    db.sync().unwrap(); // A redo row that waits.
    let past = at(&db, "s");
    db.history()
        .restore(&past, Some(b"/t"), &RestoreOptions::default())
        .unwrap();
    db.sync().unwrap();
    apply(&db);
    let b = db.files().read(b"/t/b").map(|found| found == then);
    let c = db.files().read(b"/t/c").map(|found| found == then);
    assert_clean(&db);
    assert!(b.unwrap() && c.unwrap());
}

/// 0: nothing; 1: the next write of content waits; 2: it waits; 3: it may go on.
struct Held {
    directory: PathBuf,
    state: Arc<AtomicU32>,
}
struct HeldFile {
    file: File,
    state: Arc<AtomicU32>,
}
impl Held {
    fn open(&self, segment: SegmentIndex, is_new: bool) -> io::Result<Arc<dyn Device>> {
        let path = self.directory.join(format!("{:05}.seg", segment.0));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(is_new)
            .open(path)?;
        Ok(Arc::new(HeldFile {
            file,
            state: self.state.clone(),
        }))
    }
}
impl Storage for Held {
    fn open_segment(&self, segment: SegmentIndex) -> io::Result<Arc<dyn Device>> {
        self.open(segment, false)
    }
    fn create_segment(&self, segment: SegmentIndex) -> io::Result<Arc<dyn Device>> {
        self.open(segment, true)
    }
    fn segments(&self) -> io::Result<Vec<SegmentIndex>> {
        Ok(vec![SegmentIndex(0)])
    }
    fn available_bytes(&self) -> io::Result<u64> {
        Ok(1 << 40)
    }
}
impl Device for HeldFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset_bytes)
    }
    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        let is_mine = self
            .state
            .compare_exchange(1, 2, Ordering::SeqCst, Ordering::SeqCst)
            .is_ok();
        if is_mine {
            for _ in 0..2_000 {
                if self.state.load(Ordering::SeqCst) == 3 {
                    break;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
        }
        self.file.write_all_at(bytes, offset_bytes)
    }
    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
    fn truncate(&self, len_bytes: u64) -> io::Result<()> {
        self.file.set_len(len_bytes)
    }
}

#[test]
fn what_an_apply_is_about_to_write_over_is_taken_out_of_the_past() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let state = Arc::new(AtomicU32::new(0));
    let storage = Held {
        directory: dir.path().join("t.larder/segments"),
        state: state.clone(),
    };
    let engine = EngineOptions {
        storage: Some(Arc::new(storage)),
        has_background: false,
        ..EngineOptions::default()
    };
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    let db = Database::open(&dir.path().join("t.larder"), options).unwrap();
    let then = pattern(2 * MIB, 1);
    put(&db, R, "d", &pattern(MIB, 9));
    let a = put(&db, R, "a", &then);
    let c = put(&db, R, "c", b"");
    db.sync().unwrap();
    db.files().clone_path(None, b"/d", b"/e").unwrap(); // Something is shared.
    db.snapshots().create("s").unwrap();
    let file = db.nodes().open(a, true).unwrap();
    file.write_at((MIB + 1) as u64, &pattern(100, 2)).unwrap();
    db.sync().unwrap(); // A redo row that waits.
    let past = db.as_of(&Moment::Snapshot("s".into())).unwrap();
    let source = past
        .nodes()
        .open(past.nodes().resolve(b"/a", false).unwrap().node, false)
        .unwrap();
    let target = db.nodes().open(c, true).unwrap();
    std::thread::scope(|scope| {
        state.store(1, Ordering::SeqCst);
        let apply = scope.spawn(|| {
            db.maintenance()
                .defrag(&[], &DefragOptions::default(), &mut |_| {})
                .map(drop)
        });
        let mut tries = 0;
        while state.load(Ordering::SeqCst) != 2 {
            std::thread::sleep(Duration::from_millis(1));
            tries += 1;
            assert!(tries < 10_000);
        }
        file.set_len(0).unwrap();
        copy_range(
            (source.as_ref(), 0),
            (target.as_ref(), 0),
            then.len() as u64,
        )
        .unwrap();
        state.store(3, Ordering::SeqCst);
        apply.join().unwrap().unwrap();
    });
    db.sync().unwrap();
    let found = db.files().read(b"/c");
    assert!(found.is_ok(), "{:?}", found.err());
    assert!(found.unwrap() == then);
    assert_clean(&db);
}
