//! Which open files pass the page cache by, and how both kinds live together (`FUSE-8`).
//!
//! # Words
//! An open file is *direct* when it was opened for writing only and nobody then had the file open but other
//! direct ones; any other is *cached*. It stays what it is: the kernel asks at OPEN only. A *page read* fills
//! the kernel's page cache; only cached files ask for one, be it for read(2) or for a mapping. A page is
//! *stale* when it holds what a finished write has replaced.
//!
//! # Why no page is ever stale
//! Before a direct write the kernel drops the pages of its range. A page read that is served between that
//! and the write would bring old bytes back, and a store into such a page by a mapping would later write
//! them back. So a direct write is *applied* only at a moment when the page cache has nothing of its range:
//!
//! * Without a page read since the first direct file was opened, or since all pages were dropped, there is
//!   nothing: before the first, no cached file was open.
//! * Else the range is dropped again, which also writes back what was stored into it, and then the write
//!   is applied if no page read was served meanwhile; else it begins anew. Page reads and the applying
//!   exclude each other, so that one that comes meanwhile is served the new bytes.
//!
//! Only a cached file that was opened beside direct ones has to take part: while any other is open, no
//! direct one can be opened.
//!
//! # Waiting
//! Dropping pages waits for page reads and writebacks under way, which need workers. So only
//! a quarter of the workers that there can be may wait at once; one more is interrupted (`EINTR`).
//!
//! # Where nothing is direct
//! The kernel must drop pages before direct writes (Linux 6.6, which offers `DIRECT_IO_ALLOW_MMAP` with it)
//! and say which writes take set-id bits (`HANDLE_KILLPRIV_V2`). And files with such bits are cached: the
//! kernel takes the bits before a write by way of the page cache.

use larder_fuse_protocol::{Errno, FopenFlags, NodeNumber, Notifier, OpenFlags};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// The open files of one mount, by node.
pub(crate) struct Streams {
    nodes: Mutex<HashMap<NodeNumber, Open>>,
    drops: AtomicUsize,
    /// Direct writes that may wait for the kernel to drop pages at once.
    drops_max: usize,
}

/// Who has a node open.
struct Open {
    cached_count: u64,
    direct_count: u64,
    meeting: Arc<Meeting>,
}

/// Where direct writes and page reads of one node meet.
#[derive(Debug, Default)]
struct Meeting {
    /// Held by page reads together, by an applying alone.
    gate: RwLock<()>,
    /// Page reads served, or being served.
    page_reads: AtomicU64,
    /// So many there were when all pages were dropped.
    dropped_reads: AtomicU64,
}

/// How one open file goes.
#[derive(Debug)]
pub(crate) struct Way {
    node: NodeNumber,
    is_direct: bool,
    /// For direct files, and for those opened beside direct ones.
    meeting: Option<Arc<Meeting>>,
}

impl Way {
    /// What is open.
    pub(crate) fn node(&self) -> NodeNumber {
        self.node
    }

    /// What the kernel is told at OPEN.
    pub(crate) fn flags(&self) -> FopenFlags {
        match self.is_direct {
            true => FopenFlags::DIRECT_IO,
            false => FopenFlags::NONE,
        }
    }

    /// Serves a page read.
    pub(crate) fn page_read<T>(&self, serve: impl FnOnce() -> T) -> T {
        let Some(meeting) = &self.meeting else {
            return serve();
        };
        let _gate = meeting.gate.read().unwrap_or_else(PoisonError::into_inner);
        meeting.page_reads.fetch_add(1, Ordering::SeqCst);
        serve()
    }
}

impl Streams {
    /// For a mount with so many workers at most.
    pub(crate) fn new(workers_max: usize) -> Streams {
        Streams {
            nodes: Mutex::default(),
            drops: AtomicUsize::new(0),
            drops_max: workers_max / 4,
        }
    }

    /// A file is opened; only if it `may_be_direct` it is. Every way is given back by [`Streams::close`].
    pub(crate) fn open(&self, node: NodeNumber, flags: OpenFlags, may_be_direct: bool) -> Way {
        let is_write_only = may_be_direct && flags.flags & libc::O_ACCMODE == libc::O_WRONLY;
        let mut nodes = self.lock();
        let open = nodes.entry(node).or_insert_with(|| Open {
            cached_count: 0,
            direct_count: 0,
            meeting: Arc::default(),
        });
        let is_direct = is_write_only && open.cached_count == 0;
        let meets = is_direct || open.direct_count > 0;
        match is_direct {
            true => open.direct_count += 1,
            false => open.cached_count += 1,
        }
        Way {
            node,
            is_direct,
            meeting: meets.then(|| open.meeting.clone()),
        }
    }

    /// The kernel has closed the file: nothing comes from it any more.
    pub(crate) fn close(&self, way: &Way) {
        let mut nodes = self.lock();
        let Entry::Occupied(mut open) = nodes.entry(way.node) else {
            return;
        };
        match way.is_direct {
            true => open.get_mut().direct_count -= 1,
            false => open.get_mut().cached_count -= 1,
        }
        if open.get().cached_count + open.get().direct_count == 0 {
            open.remove();
        }
    }

    /// Applies a write that the kernel has passed by the page cache, of `len_bytes` at `offset`.
    pub(crate) fn direct_write<T>(
        &self,
        way: &Way,
        (offset, len_bytes): (u64, usize),
        notifier: &Notifier,
        apply: impl FnOnce() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let Some(meeting) = way.meeting.as_ref().filter(|_| way.is_direct) else {
            return apply();
        };
        let mut dropped_reads = meeting.dropped_reads.load(Ordering::SeqCst);
        loop {
            let gate = meeting.gate.write().unwrap_or_else(PoisonError::into_inner);
            let page_reads = meeting.page_reads.load(Ordering::SeqCst);
            if page_reads == dropped_reads {
                return apply(); // FUSE-8
            }
            drop(gate);
            dropped_reads = page_reads;
            if self.has_cached(way.node) {
                self.drop_pages(way.node, (offset as i64, len_bytes as i64), notifier)?;
            } else {
                // Those who read have gone: the next writes need not drop anything.
                self.drop_pages(way.node, (0, 0), notifier)?;
                (meeting.dropped_reads).fetch_max(page_reads, Ordering::SeqCst);
            }
        }
    }

    fn has_cached(&self, node: NodeNumber) -> bool {
        let nodes = self.lock();
        nodes.get(&node).is_some_and(|open| open.cached_count > 0)
    }

    /// Not by the thread of the other notifications (`FUSE-2`): the caller waits, and the kernel holds
    /// nothing for this write that dropping pages takes.
    fn drop_pages(
        &self,
        node: NodeNumber,
        (offset, len_bytes): (i64, i64),
        notifier: &Notifier,
    ) -> Result<(), Errno> {
        let is_free = self.drops.fetch_add(1, Ordering::SeqCst) < self.drops_max;
        let dropped = match is_free {
            true => notifier.inval_inode(node, offset, len_bytes),
            false => Err(Errno::EINTR),
        };
        self.drops.fetch_sub(1, Ordering::SeqCst);
        dropped
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeNumber, Open>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_fuse_protocol::Device;

    const NODE: NodeNumber = NodeNumber(7);

    fn flags(flags: i32) -> OpenFlags {
        OpenFlags {
            flags,
            kill_suid_sgid: false,
        }
    }

    fn notifier() -> (std::fs::File, Notifier) {
        let told = tempfile::tempfile().unwrap();
        let device = Device::from(std::os::fd::OwnedFd::from(told.try_clone().unwrap()));
        (told, Notifier::new(&device))
    }

    #[test]
    fn a_file_is_direct_while_nobody_reads_it() {
        let streams = Streams::new(128);
        let write = streams.open(NODE, flags(libc::O_WRONLY | libc::O_APPEND), true);
        let other = streams.open(NODE, flags(libc::O_WRONLY), true);
        assert!(write.is_direct && other.is_direct);
        let read = streams.open(NODE, flags(libc::O_RDONLY), true);
        let late = streams.open(NODE, flags(libc::O_WRONLY), true);
        assert!(!read.is_direct && read.meeting.is_some(), "FUSE-8");
        assert!(
            !late.is_direct,
            "FUSE-8: beside a cached one there is no new direct one"
        );
        for way in [&write, &other, &read] {
            streams.close(way);
        }
        assert!(!streams.open(NODE, flags(libc::O_WRONLY), true).is_direct);
        let alone = streams.open(NodeNumber(8), flags(libc::O_RDWR), true);
        assert!(!alone.is_direct && alone.meeting.is_none());
        streams.close(&late);
    }

    #[test]
    fn pages_are_dropped_again_after_a_page_read_and_before_the_write() {
        let streams = Streams::new(128);
        let (told, notifier) = notifier();
        let write = streams.open(NODE, flags(libc::O_WRONLY), true);
        let told_bytes = || told.metadata().unwrap().len();
        let go = || streams.direct_write(&write, (0, 9), &notifier, || Ok(told_bytes()));
        assert_eq!(go(), Ok(0), "nobody reads");
        let read = streams.open(NODE, flags(libc::O_RDONLY), true);
        assert_eq!(go(), Ok(0), "nobody has read yet");
        read.page_read(|| ());
        assert_eq!(go(), Ok(40), "FUSE-8: told before it was applied");
        read.page_read(|| ());
        assert_eq!(go(), Ok(80), "FUSE-8");
        streams.close(&read);
        assert_eq!(go(), Ok(120), "the page of the last read");
        assert_eq!(go(), Ok(120), "all pages were dropped");
        let read = streams.open(NODE, flags(libc::O_RDONLY), true);
        read.page_read(|| ());
        let busy = streams.drops.swap(streams.drops_max, Ordering::SeqCst);
        assert_eq!(go(), Err(Errno::EINTR));
        streams.drops.store(busy, Ordering::SeqCst);
    }

    #[test]
    fn page_reads_and_applying_exclude_each_other() {
        let streams = Streams::new(128);
        let (_told, notifier) = notifier();
        let write = streams.open(NODE, flags(libc::O_WRONLY), true);
        let read = streams.open(NODE, flags(libc::O_RDONLY), true);
        let inside = AtomicU64::new(0);
        let alone = || {
            assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "FUSE-8");
            std::thread::yield_now();
            inside.fetch_sub(1, Ordering::SeqCst);
        };
        std::thread::scope(|scope| {
            scope.spawn(|| (0..300).for_each(|_| read.page_read(alone)));
            for _ in 0..300 {
                let written = streams.direct_write(&write, (0, 1), &notifier, || {
                    alone();
                    Ok(())
                });
                written.unwrap();
            }
        });
    }
}
