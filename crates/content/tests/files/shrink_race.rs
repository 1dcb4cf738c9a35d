//! A commit of the background beside the last step of shrinking.

use crate::common::*;
use larder::{Database, DatabaseOptions, NodeId};
use larder_object::format::SegmentIndex;
use larder_object::{Device, EngineOptions, Storage};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Segment files; once a segment is cut, that and the writes after it take their time.
struct Slow {
    directory: PathBuf,
    is_armed: Arc<AtomicBool>,
    is_cutting: Arc<AtomicBool>,
}

struct SlowFile {
    file: File,
    is_armed: Arc<AtomicBool>,
    is_cutting: Arc<AtomicBool>,
}

impl Slow {
    fn open(&self, segment: SegmentIndex, is_new: bool) -> io::Result<Arc<dyn Device>> {
        let path = self.directory.join(format!("{:05}.seg", segment.0));
        let file = File::options()
            .read(true)
            .write(true)
            .create_new(is_new)
            .open(path)?;
        let (is_armed, is_cutting) = (self.is_armed.clone(), self.is_cutting.clone());
        Ok(Arc::new(SlowFile {
            file,
            is_armed,
            is_cutting,
        }))
    }
}

impl Storage for Slow {
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

impl Device for SlowFile {
    fn read_at(&self, offset_bytes: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset_bytes)
    }
    fn write_at(&self, offset_bytes: u64, bytes: &[u8]) -> io::Result<()> {
        if self.is_cutting.load(Ordering::SeqCst) && offset_bytes >= 8192 {
            std::thread::sleep(Duration::from_millis(100));
        }
        self.file.write_all_at(bytes, offset_bytes)
    }
    fn flush(&self) -> io::Result<()> {
        if self.is_cutting.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(900));
        }
        self.file.sync_data()
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }
    fn truncate(&self, len_bytes: u64) -> io::Result<()> {
        if self.is_armed.load(Ordering::SeqCst) {
            self.is_cutting.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(400));
        }
        self.file.set_len(len_bytes)
    }
}

#[test]
fn a_commit_beside_the_cut_keeps_its_places() {
    let dir = tempfile::tempdir().unwrap();
    create(dir.path(), None).close().unwrap();
    let (is_armed, is_cutting) = (
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let storage = Slow {
        directory: dir.path().join("t.larder/segments"),
        is_armed: is_armed.clone(),
        is_cutting: is_cutting.clone(),
    };
    let engine = EngineOptions {
        storage: Some(Arc::new(storage)),
        ..EngineOptions::default()
    };
    let options = DatabaseOptions {
        engine,
        ..DatabaseOptions::default()
    };
    let db = Database::open(&dir.path().join("t.larder"), options).unwrap();
    let filler: Vec<_> = (0..8)
        .map(|at| put(&db, NodeId::ROOT, &format!("f{at}"), &pattern(1 << 20, at)))
        .collect();
    let bytes = pattern(1 << 20, 77);
    let node = make(&db, NodeId::ROOT, "half");
    let handle = db.nodes().open(node, true).unwrap();
    for (at, piece) in bytes.chunks(1 << 18).enumerate() {
        handle.write_at((at << 18) as u64, piece).unwrap();
        db.sync().unwrap(); // It is placed before its time.
    }
    is_armed.store(true, Ordering::SeqCst);
    std::thread::scope(|scope| {
        let cut = scope.spawn(|| {
            db.maintenance()
                .shrink(Some(16 << 20), false, &mut |_, _| {})
        });
        while !is_cutting.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(handle); // The background places it whole.
        cut.join().unwrap().unwrap();
    });
    is_armed.store(false, Ordering::SeqCst);
    is_cutting.store(false, Ordering::SeqCst);
    db.sync().unwrap();
    let more: Vec<_> = (0..8)
        .map(|at| {
            let node = put(
                &db,
                NodeId::ROOT,
                &format!("m{at}"),
                &pattern(200_000, 100 + at),
            );
            db.sync().unwrap();
            node
        })
        .collect();
    assert!(content(&db, node) == bytes);
    for (at, node) in filler.into_iter().enumerate() {
        assert!(content(&db, node) == pattern(1 << 20, at as u64));
    }
    for (at, node) in more.into_iter().enumerate() {
        assert!(content(&db, node) == pattern(200_000, 100 + at as u64));
    }
    assert_clean(&db);
}
