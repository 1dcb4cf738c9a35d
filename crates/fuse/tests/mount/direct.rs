//! Asynchronous `O_DIRECT` writes, by the kernel's own interface, beside readers of the page cache
//! (`FUSE-8`).
#![allow(clippy::unwrap_used)]

use crate::common::Elsewhere;
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

const PAGE_BYTES: usize = 4096;
const PAGE_COUNT: usize = 64;
const BATCH: usize = 8;
const ROUNDS: u64 = 500;

/// `struct iocb` of `linux/aio_abi.h`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Iocb {
    data: u64,
    key: u32,
    rw_flags: u32,
    opcode: u16,
    priority: i16,
    fd: u32,
    buffer: u64,
    len_bytes: u64,
    offset: i64,
    reserved: u64,
    flags: u32,
    event_fd: u32,
}

/// `struct io_event`.
#[repr(C)]
#[derive(Default, Clone, Copy)]
struct Event {
    data: u64,
    iocb: u64,
    result: i64,
    result2: i64,
}

const PWRITE: u16 = 1;

#[repr(C, align(4096))]
struct Aligned([u64; BATCH * PAGE_BYTES / 8]);

/// A queue of the kernel's, until it is dropped.
struct Queue(libc::c_ulong);

impl Queue {
    fn new() -> Queue {
        let mut context: libc::c_ulong = 0;
        // SAFETY: the kernel writes the number of the new queue.
        let done = unsafe { libc::syscall(libc::SYS_io_setup, BATCH, &raw mut context) };
        assert_eq!(done, 0);
        Queue(context)
    }

    /// Writes one page after the other, all at once, from page `first` on; tells `finished` of each
    /// as it ends.
    fn write(&self, file: &File, first: usize, data: &Aligned, finished: impl Fn(usize)) {
        let write = |index: usize| Iocb {
            data: index as u64,
            opcode: PWRITE,
            fd: file.as_raw_fd() as u32,
            buffer: (&raw const data.0) as u64 + (index * PAGE_BYTES) as u64,
            len_bytes: PAGE_BYTES as u64,
            offset: ((first + index) * PAGE_BYTES) as i64,
            ..Iocb::default()
        };
        let mut writes: [Iocb; BATCH] = std::array::from_fn(write);
        let mut pointers = writes.each_mut().map(std::ptr::from_mut);
        // SAFETY: writes and data outlive the calls below, which wait for all of them.
        let begun =
            unsafe { libc::syscall(libc::SYS_io_submit, self.0, BATCH, pointers.as_mut_ptr()) };
        assert_eq!(begun, BATCH as i64);
        let mut left = BATCH;
        while left > 0 {
            let mut events = [Event::default(); BATCH];
            let (at, none) = (events.as_mut_ptr(), std::ptr::null::<libc::timespec>());
            // SAFETY: there is room for so many events.
            let done = unsafe { libc::syscall(libc::SYS_io_getevents, self.0, 1, left, at, none) };
            let done = usize::try_from(done).unwrap();
            for event in &events[..done] {
                assert_eq!(event.result, PAGE_BYTES as i64);
                finished(event.data as usize);
            }
            left -= done;
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: nothing of it is under way.
        unsafe { libc::syscall(libc::SYS_io_destroy, self.0) };
    }
}

/// Readers of the page cache that were opened before and after the writer.
fn no_read_is_stale(access: &mut OpenOptions) {
    let mount = Elsewhere::new(0);
    std::fs::write(mount.path("f"), [0; PAGE_COUNT * PAGE_BYTES]).unwrap();
    let reader = || File::open(mount.path("f")).unwrap();
    let earlier = reader();
    let file = (access.custom_flags(libc::O_DIRECT).open(mount.path("f"))).unwrap();
    let finished: [AtomicU64; PAGE_COUNT] = std::array::from_fn(|_| AtomicU64::new(0));
    let is_over = AtomicBool::new(false);
    let (read_count, stale_count) = (AtomicU64::new(0), AtomicU64::new(0));
    std::thread::scope(|scope| {
        let (finished, is_over) = (&finished, &is_over);
        let (read_count, stale_count) = (&read_count, &stale_count);
        for reader in [earlier, reader()] {
            scope.spawn(move || {
                let mut word = [0; 8];
                while !is_over.load(Ordering::SeqCst) {
                    for (page, finished) in finished.iter().enumerate() {
                        let least = finished.load(Ordering::SeqCst);
                        (reader.read_exact_at(&mut word, (page * PAGE_BYTES) as u64)).unwrap();
                        let is_stale = u64::from_ne_bytes(word) < least;
                        stale_count.fetch_add(u64::from(is_stale), Ordering::SeqCst);
                        read_count.fetch_add(1, Ordering::SeqCst);
                    }
                }
            });
        }
        let queue = Queue::new();
        for round in 1..=ROUNDS {
            let data = Aligned([round; BATCH * PAGE_BYTES / 8]);
            for first in (0..PAGE_COUNT).step_by(BATCH) {
                queue.write(&file, first, &data, |index| {
                    finished[first + index].store(round, Ordering::SeqCst);
                });
            }
        }
        is_over.store(true, Ordering::SeqCst);
    });
    let stale_count = stale_count.into_inner();
    assert_eq!(stale_count, 0, "FUSE-8: of {}", read_count.into_inner());
}

#[test]
fn asynchronous_writes_past_the_page_cache_are_seen_by_buffered_readers() {
    no_read_is_stale(OpenOptions::new().read(true).write(true));
}

#[test]
fn so_are_those_of_a_writer_that_does_not_read() {
    no_read_is_stale(OpenOptions::new().write(true));
}
