//! The page cache beside writes that pass it by (`FUSE-8`).
#![allow(clippy::unwrap_used)]

use crate::common::TestMount;
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
const PAGE_COUNT: usize = 16;
const FILE_BYTES: usize = PAGE_BYTES * PAGE_COUNT;
const HALF: usize = PAGE_BYTES / 2;
const DURATION: Duration = Duration::from_millis(1500);

/// The whole file in memory, shared, until it is dropped.
struct Mapping(*mut u8);

// SAFETY: the memory is that of the file, and accessed by volatile operations only.
unsafe impl Sync for Mapping {}

impl Mapping {
    fn new(file: &File, protection: ProtFlags) -> Mapping {
        // SAFETY: a new mapping, nowhere else.
        let at = unsafe {
            mmap(
                std::ptr::null_mut(),
                FILE_BYTES,
                protection,
                MapFlags::SHARED,
                file,
                0,
            )
        };
        Mapping(at.unwrap().cast())
    }

    fn word(&self, offset: usize) -> u64 {
        assert!(offset < FILE_BYTES);
        // SAFETY: inside the mapping, and aligned.
        unsafe { self.0.add(offset).cast::<u64>().read_volatile() }
    }

    fn store(&self, offset: usize, word: u64) {
        assert!(offset < FILE_BYTES);
        // SAFETY: inside the mapping, aligned, and mapped for writing by the only caller.
        unsafe { self.0.add(offset).cast::<u64>().write_volatile(word) }
    }

    fn sync(&self) {
        // SAFETY: the whole mapping.
        unsafe { msync(self.0.cast(), FILE_BYTES, MsyncFlags::SYNC) }.unwrap();
    }
}

impl Drop for Mapping {
    fn drop(&mut self) {
        // SAFETY: nobody uses it any more.
        unsafe { munmap(self.0.cast(), FILE_BYTES) }.unwrap();
    }
}

/// A file of zeroes, and its only writer, which passes the page cache by.
fn writer(mount: &TestMount, name: &str) -> File {
    let mut writer = File::create(mount.path(name)).unwrap();
    writer.write_all(&[0; FILE_BYTES]).unwrap();
    writer
}

#[test]
fn what_a_finished_write_has_replaced_is_never_seen_again() {
    let mount = TestMount::new();
    let writer = writer(&mount, "f");
    let finished: Vec<AtomicU64> = (0..PAGE_COUNT).map(|_| AtomicU64::new(0)).collect();
    let is_over = AtomicBool::new(false);
    let check = |page: usize, least: u64, seen: u64, how: &str| {
        let word = format!("page {page} by {how}: {seen} after {least} was finished");
        assert!(seen >= least, "FUSE-8: {word}");
    };
    std::thread::scope(|scope| {
        let (finished, is_over, check) = (&finished, &is_over, &check);
        for _ in 0..2 {
            let file = File::open(mount.path("f")).unwrap();
            scope.spawn(move || {
                let mapping = Mapping::new(&file, ProtFlags::READ);
                while !is_over.load(Ordering::SeqCst) {
                    for (page, finished) in finished.iter().enumerate() {
                        let least = finished.load(Ordering::SeqCst);
                        check(page, least, mapping.word(page * PAGE_BYTES + 64), "mapping");
                    }
                }
            });
        }
        let file = File::open(mount.path("f")).unwrap();
        scope.spawn(move || {
            let mut word = [0; 8];
            while !is_over.load(Ordering::SeqCst) {
                for (page, finished) in finished.iter().enumerate() {
                    let least = finished.load(Ordering::SeqCst);
                    let offset = page * PAGE_BYTES + 64;
                    file.read_exact_at(&mut word, offset as u64).unwrap();
                    check(page, least, u64::from_ne_bytes(word), "read");
                }
            }
        });
        let began = Instant::now();
        for round in 1.. {
            let page = round as usize % PAGE_COUNT;
            let data: Vec<u8> = std::iter::repeat_n(u64::to_ne_bytes(round), PAGE_BYTES / 8)
                .flatten()
                .collect();
            let written = writer.write_all_at(&data, (page * PAGE_BYTES) as u64);
            if written.is_err() || began.elapsed() > DURATION {
                is_over.store(true, Ordering::SeqCst);
                written.unwrap();
                break;
            }
            finished[page].store(round, Ordering::SeqCst);
        }
    });
    let seen = fs::read(mount.path("f")).unwrap();
    for (page, finished) in finished.iter().enumerate() {
        let at = page * PAGE_BYTES + 64;
        let word = u64::from_ne_bytes(seen[at..at + 8].try_into().unwrap());
        check(
            page,
            finished.load(Ordering::SeqCst),
            word,
            "read at the end",
        );
    }
}

#[test]
fn stores_by_a_mapping_and_writes_beside_them_both_last() {
    let mount = TestMount::new();
    let writer = writer(&mount, "f");
    let mut both = OpenOptions::new();
    let file = both.read(true).write(true).open(mount.path("f")).unwrap();
    let mapping = Mapping::new(&file, ProtFlags::READ | ProtFlags::WRITE);
    let is_over = AtomicBool::new(false);
    let (mut written, mut stored) = ([0; PAGE_COUNT], [0; PAGE_COUNT]);
    std::thread::scope(|scope| {
        let (is_over, mapping) = (&is_over, &mapping);
        let stores = scope.spawn(|| {
            for round in 1.. {
                let page = round as usize % PAGE_COUNT;
                mapping.store(page * PAGE_BYTES + HALF, round);
                stored[page] = round;
                let other = mapping.word(page * PAGE_BYTES + HALF);
                assert_eq!(other, round, "FUSE-8: the only one who stores");
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        let began = Instant::now();
        for round in 1.. {
            let page = round as usize % PAGE_COUNT;
            let data: Vec<u8> = std::iter::repeat_n(u64::to_ne_bytes(round), HALF / 8)
                .flatten()
                .collect();
            let done = writer.write_all_at(&data, (page * PAGE_BYTES) as u64);
            if done.is_err() || stores.is_finished() || began.elapsed() > DURATION {
                is_over.store(true, Ordering::SeqCst);
                done.unwrap();
                written[page] = round;
                break;
            }
            written[page] = round;
        }
    });
    mapping.sync();
    drop(mapping);
    let seen = fs::read(mount.path("f")).unwrap();
    let word = |at: usize| u64::from_ne_bytes(seen[at..at + 8].try_into().unwrap());
    for page in 0..PAGE_COUNT {
        let at = page * PAGE_BYTES;
        let found = (word(at + HALF - 8), word(at + HALF));
        assert_eq!(found, (written[page], stored[page]), "FUSE-8: page {page}");
    }
}

#[test]
fn a_file_written_past_the_page_cache_is_read_from_it() {
    let mount = TestMount::new();
    let mut writer = File::create(mount.path("f")).unwrap();
    writer.write_all(b"one").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"one");
    let reader = File::open(mount.path("f")).unwrap();
    writer.write_all(b" two").unwrap();
    assert_eq!(fs::read(mount.path("f")).unwrap(), b"one two", "FUSE-8");
    drop(writer);
    // Beside a reader a new writer goes through the page cache.
    let mut options = OpenOptions::new();
    let mut writer = options.append(true).open(mount.path("f")).unwrap();
    writer.write_all(b" three").unwrap();
    let mut seen = [0; 13];
    reader.read_exact_at(&mut seen, 0).unwrap();
    assert_eq!(&seen, b"one two three", "FUSE-8");
}
