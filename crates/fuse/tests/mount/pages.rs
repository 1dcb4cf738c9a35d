//! The page cache beside writes that pass it by (`FUSE-8`).
#![allow(clippy::unwrap_used)]

use crate::common::{Elsewhere, database_path};
use rustix::mm::{MapFlags, MsyncFlags, ProtFlags, mmap, msync, munmap};
use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

const PAGE_BYTES: usize = 4096;
const PAGE_COUNT: usize = 256;
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
fn writer(mount: &Elsewhere, name: &str) -> File {
    let mut writer = File::create(mount.path(name)).unwrap();
    writer.write_all(&[0; FILE_BYTES]).unwrap();
    writer
}

/// Calls `write` with 1, 2, … for a while; at the end, however it comes, `is_over` is set.
fn rounds(is_over: &AtomicBool, write: impl Fn(u64)) {
    struct End<'e>(&'e AtomicBool);
    impl Drop for End<'_> {
        fn drop(&mut self) {
            self.0.store(true, Ordering::SeqCst);
        }
    }
    let _end = End(is_over);
    let began = Instant::now();
    (1..)
        .take_while(|_| began.elapsed() < DURATION)
        .for_each(write);
}

fn words(word: u64, len_bytes: usize) -> Vec<u8> {
    word.to_ne_bytes().repeat(len_bytes / 8)
}

// A write of the whole file takes long, between the kernel's dropping of its pages and the end, so
// that page reads come in between.
#[test]
fn what_a_finished_write_has_replaced_is_never_seen_again() {
    let mount = Elsewhere::new(0);
    let writer = writer(&mount, "f");
    let finished = AtomicU64::new(0);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let (finished, is_over) = (&finished, &is_over);
        let file = File::open(mount.path("f")).unwrap();
        scope.spawn(move || {
            let mapping = Mapping::new(&file, ProtFlags::READ);
            while !is_over.load(Ordering::SeqCst) {
                for page in 0..PAGE_COUNT {
                    let least = finished.load(Ordering::SeqCst);
                    let seen = mapping.word(page * PAGE_BYTES + 64);
                    assert!(seen >= least, "FUSE-8: {page} mapped: {seen} after {least}");
                }
            }
        });
        let file = File::open(mount.path("f")).unwrap();
        scope.spawn(move || {
            let mut word = [0; 8];
            while !is_over.load(Ordering::SeqCst) {
                for page in 0..PAGE_COUNT {
                    let least = finished.load(Ordering::SeqCst);
                    let offset = page * PAGE_BYTES + 64;
                    file.read_exact_at(&mut word, offset as u64).unwrap();
                    let seen = u64::from_ne_bytes(word);
                    assert!(seen >= least, "FUSE-8: {page} read: {seen} after {least}");
                }
            }
        });
        rounds(is_over, |round| {
            writer.write_all_at(&words(round, FILE_BYTES), 0).unwrap();
            finished.store(round, Ordering::SeqCst);
        });
    });
    let last = finished.load(Ordering::SeqCst);
    assert!(
        fs::read(mount.path("f")).unwrap() == words(last, FILE_BYTES),
        "FUSE-8"
    );
}

// The first half of the first page and the second half of the last are stored by a mapping, all
// between is written.
#[test]
fn stores_by_a_mapping_and_writes_beside_them_both_last() {
    let mount = Elsewhere::new(0);
    let writer = writer(&mount, "f");
    let mut both = OpenOptions::new();
    let file = both.read(true).write(true).open(mount.path("f")).unwrap();
    let mapping = Mapping::new(&file, ProtFlags::READ | ProtFlags::WRITE);
    let (first, last) = (HALF, FILE_BYTES - HALF);
    let is_over = AtomicBool::new(false);
    let stored = AtomicU64::new(0);
    let written = AtomicU64::new(0);
    std::thread::scope(|scope| {
        let (is_over, mapping, stored) = (&is_over, &mapping, &stored);
        scope.spawn(move || {
            for word in 1.. {
                for place in [0, last] {
                    mapping.store(place, word);
                    assert_eq!(
                        mapping.word(place),
                        word,
                        "FUSE-8: nobody else stores there"
                    );
                }
                stored.store(word, Ordering::SeqCst);
                if is_over.load(Ordering::SeqCst) {
                    break;
                }
            }
        });
        rounds(is_over, |round| {
            let data = words(round, last - first);
            writer.write_all_at(&data, first as u64).unwrap();
            let seen = [first, last - 8].map(|place| mapping.word(place));
            assert_eq!(seen, [round; 2], "FUSE-8: nobody else writes there");
            written.store(round, Ordering::SeqCst);
        });
    });
    mapping.sync();
    drop(mapping);
    let seen = fs::read(mount.path("f")).unwrap();
    let word = |at: usize| u64::from_ne_bytes(seen[at..at + 8].try_into().unwrap());
    let (stored, written) = (stored.into_inner(), written.into_inner());
    assert_eq!([word(0), word(last)], [stored; 2], "FUSE-8");
    assert_eq!([word(first), word(last - 8)], [written; 2], "FUSE-8");
}

#[test]
fn a_file_written_past_the_page_cache_is_read_from_it() {
    let mount = Elsewhere::new(0);
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

/// A word of one thread alone, at which every other byte belongs to another: thread `of`, word
/// `at`.
const STRESS_BYTES: usize = 16 * PAGE_BYTES;
const STRESS_THREADS: usize = 4;

fn own_offsets(thread: usize) -> impl Iterator<Item = usize> {
    (thread..STRESS_BYTES).step_by(2 * STRESS_THREADS)
}

impl Mapping {
    fn byte(&self, offset: usize) -> u8 {
        assert!(offset < FILE_BYTES);
        // SAFETY: inside the mapping.
        unsafe { self.0.add(offset).read_volatile() }
    }

    fn store_byte(&self, offset: usize, byte: u8) {
        assert!(offset < FILE_BYTES);
        // SAFETY: inside the mapping, mapped for writing; the byte is stored by the caller only.
        unsafe { self.0.add(offset).write_volatile(byte) }
    }
}

// Half of the threads write single bytes and runs past the page cache, the others store single
// bytes of the same pages by mappings; every byte has one thread that writes it.
#[test]
fn bytes_of_shared_pages_keep_what_was_written_and_stored_last() {
    let mount = Elsewhere::new(0);
    drop(writer(&mount, "f"));
    let writers: Vec<File> = (0..STRESS_THREADS)
        .map(|_| {
            OpenOptions::new()
                .write(true)
                .open(mount.path("f"))
                .unwrap()
        })
        .collect();
    let mut both = OpenOptions::new();
    let file = both.read(true).write(true).open(mount.path("f")).unwrap();
    let stores = Mapping::new(&file, ProtFlags::READ | ProtFlags::WRITE);
    let reader = File::open(mount.path("f")).unwrap();
    let reads = Mapping::new(&reader, ProtFlags::READ);
    let is_over = AtomicBool::new(false);
    let seen_last: Vec<Vec<u8>> = std::thread::scope(|scope| {
        let (is_over, stores, reads) = (&is_over, &stores, &reads);
        let go = |thread: usize, write: Box<dyn Fn(usize, u8) + Send>| {
            scope.spawn(move || {
                let mut last = vec![0_u8; STRESS_BYTES];
                let mut random = thread as u64 + 1;
                while !is_over.load(Ordering::SeqCst) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let slots = STRESS_BYTES / (2 * STRESS_THREADS);
                    let at = thread + (random >> 33) as usize % slots * 2 * STRESS_THREADS;
                    let byte = last[at].wrapping_add(1);
                    write(at, byte);
                    last[at] = byte;
                    assert_eq!(reads.byte(at), byte, "FUSE-8: {thread} mapped at {at}");
                    assert_eq!(stores.byte(at), byte, "FUSE-8: {thread} stored at {at}");
                }
                last
            })
        };
        let mut threads = Vec::new();
        for (index, writer) in writers.into_iter().enumerate() {
            let write = move |at: usize, byte: u8| {
                writer.write_all_at(&[byte], at as u64).unwrap();
            };
            threads.push(go(index, Box::new(write)));
        }
        for index in 0..STRESS_THREADS {
            let store = move |at: usize, byte: u8| stores.store_byte(at, byte);
            threads.push(go(STRESS_THREADS + index, Box::new(store)));
        }
        rounds(is_over, |_| std::thread::sleep(Duration::from_millis(10)));
        threads.into_iter().map(|one| one.join().unwrap()).collect()
    });
    stores.sync();
    drop((stores, reads));
    let end = fs::read(mount.path("f")).unwrap();
    for (thread, last) in seen_last.iter().enumerate() {
        for at in own_offsets(thread) {
            assert_eq!(end[at], last[at], "FUSE-8: {thread} at {at}, at the end");
        }
    }
}

// More writers than a quarter of the workers wait for pages to be dropped, and the pages for page
// reads.
#[test]
fn many_writers_beside_readers_wait_for_each_other_and_are_not_interrupted() {
    const WRITERS: usize = 40;
    let mount = Elsewhere::new(1);
    let is_over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let is_over = &is_over;
        let writers: Vec<_> = (0..WRITERS)
            .map(|index| {
                let path = mount.path(&index.to_string());
                let writer = writer(&mount, &index.to_string());
                let file = File::open(path).unwrap();
                scope.spawn(move || {
                    let mapping = Mapping::new(&file, ProtFlags::READ);
                    while !is_over.load(Ordering::SeqCst) {
                        assert!((0..16).all(
                            |page| mapping.word(page * PAGE_BYTES) <= words(7, 8).len() as u64
                        ));
                    }
                });
                let data = words(7, 16 * PAGE_BYTES);
                scope.spawn(move || {
                    while !is_over.load(Ordering::SeqCst) {
                        // Not `write_all`, which begins anew when it was interrupted.
                        let written = writer.write_at(&data, 0);
                        assert_eq!(written.ok(), Some(data.len()), "FUSE-8: no signal came");
                    }
                })
            })
            .collect();
        rounds(is_over, |_| {
            assert!(writers.iter().all(|writer| !writer.is_finished()));
            std::thread::sleep(Duration::from_millis(10));
        });
    });
}

// Another session shortens the file, so that an append goes where the kernel does not expect it:
// into a page that is mapped.
#[test]
fn an_append_is_seen_where_it_went() {
    let mount = Elsewhere::new(0);
    let other = larder::Database::open(
        &database_path(mount.directory()),
        larder::DatabaseOptions::default(),
    )
    .unwrap();
    for round in 1..=60_u64 {
        drop(writer(&mount, "f"));
        let mut options = OpenOptions::new();
        let appender = options.append(true).open(mount.path("f")).unwrap();
        let file = File::open(mount.path("f")).unwrap();
        let mapping = Mapping::new(&file, ProtFlags::READ);
        assert_eq!(mapping.word(0), 0);
        File::open(mount.root()).unwrap().sync_all().unwrap();
        // The other session may know the file of the last round for a moment.
        let ino = larder::Ino(file.metadata().unwrap().ino());
        let found = || {
            other
                .nodes()
                .resolve(b"/f", true)
                .ok()
                .map(|attr| attr.node)
        };
        let began = Instant::now();
        let node = loop {
            match found().filter(|node| node.ino == ino) {
                Some(node) => break node,
                None => assert!(began.elapsed() < Duration::from_secs(30), "{round}"),
            }
            std::thread::sleep(Duration::from_millis(1));
        };
        let shared = other.nodes().open(node, true).unwrap();
        shared.set_len(8).unwrap();
        other.sync().unwrap();
        (&appender).write_all(&round.to_ne_bytes()).unwrap();
        assert_eq!(mapping.word(8), round, "FUSE-8: {round}");
        drop((shared, mapping, file, appender));
        fs::remove_file(mount.path("f")).unwrap();
    }
}
