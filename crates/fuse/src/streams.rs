//! Which open files pass the page cache by, and how both kinds live together (`FUSE-8`).
//!
//! # Words
//! An open file is *direct* when it was opened for writing only and nobody then had the file open
//! but other direct ones; any other is *cached*. It stays what it is: the kernel asks at OPEN only.
//! A *direct write* is one of a direct file, or of a cached one that has `O_DIRECT`. A *fill*
//! brings pages into the kernel's page cache: a page read, for read(2) or a mapping, or a write by
//! way of the page cache. A *writeback* brings what was stored by mappings, in whole pages. A page
//! is *stale* when it holds what a finished write has replaced.
//!
//! # Why no page is stale and nothing is lost
//! The kernel drops the pages of a direct write's range before it sends the write, but fills may
//! come behind that. So a direct write is *applied* while no fill or writeback is served (the
//! lock of the windows), and then the kernel drops the pages of the range once more, before the
//! reply. (With `O_DIRECT` it does that by itself, but not when the write was asked for
//! asynchronously.) From the applying until they are dropped, the range is a *window*, with two
//! kinds of pages:
//!
//! * *Old* ones were filled before the applying. A writeback of one is left out where it meets the
//!   window: what it has there was stored, if at all, before the write was finished, and the write
//!   may follow it.
//! * *New* ones were filled after it. They hold the write, and what was stored there since follows
//!   it, so that a writeback is taken whole. The kernel fills a page again only when it has written
//!   back and given up the one that it had: once new, a page stays new.
//!
//! Nothing has to be dropped, and there is no window, while there is no old page: without a fill
//! since the file was opened first (its pages of before were dropped for the write), or since all
//! pages were dropped. But an append that goes where the kernel did not expect it always has one:
//! the kernel has dropped another range.
//!
//! # Waiting
//! Dropping pages waits for fills and writebacks under way. The lock is free then, and the worker
//! that waits takes no slot ([`larder_fuse_protocol::Call::away`]), so that they are served,
//! however many wait.
//!
//! # Where nothing is direct
//! The kernel must drop pages before direct writes (Linux 6.6, which offers `DIRECT_IO_ALLOW_MMAP`
//! with it) and say which writes take set-id bits (`HANDLE_KILLPRIV_V2`). And files with such bits
//! are cached: the kernel takes the bits before a write by way of the page cache.

use larder_fuse_protocol::{Errno, FopenFlags, NodeNumber, OpenFlags};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// Bytes of a page, or of a part of one where pages are larger.
const PAGE_BYTES: u64 = 4096;

/// The open files of one mount, by node.
#[derive(Default)]
pub(crate) struct Streams {
    nodes: Mutex<HashMap<NodeNumber, Open>>,
}

/// Who has a node open.
#[derive(Default)]
struct Open {
    cached_count: u64,
    /// Those of them that were opened with `O_DIRECT`, and so hardly fill anything.
    passing_count: u64,
    direct_count: u64,
    coherence: Arc<PageCoherence>,
}

/// Where direct writes, fills and writebacks of one node meet.
#[derive(Debug, Default)]
struct PageCoherence {
    /// The windows. Shared by fills and writebacks, exclusive to an applying.
    windows: RwLock<Vec<Arc<Window>>>,
    /// Fills served, or being served.
    fills: AtomicU64,
    /// So many there were when all pages were dropped.
    dropped_fills: AtomicU64,
}

/// The range of a direct write that is applied and not finished.
#[derive(Debug)]
struct Window {
    range: Range<u64>,
    /// By page from the one on in which the range begins: whether it is new.
    is_new: Mutex<Vec<bool>>,
}

/// How one open file goes.
#[derive(Debug)]
pub(crate) struct Way {
    node: NodeNumber,
    is_direct: bool,
    /// It was opened with `O_DIRECT`.
    is_passing: bool,
    coherence: Arc<PageCoherence>,
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

    /// Serves a page read of `range`.
    pub(crate) fn page_read<T>(&self, range: Range<u64>, serve: impl FnOnce() -> T) -> T {
        self.coherence.fill(range, serve)
    }

    /// Serves a writeback of `range` by calling `write` with what is to be written of it.
    pub(crate) fn write_back(
        &self,
        range: Range<u64>,
        mut write: impl FnMut(Range<u64>) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let windows = self.coherence.read();
        let mut parts = vec![range];
        for window in windows.iter() {
            for old in window.old_parts() {
                parts = parts.iter().flat_map(|part| without(part, &old)).collect(); // FUSE-8
            }
        }
        parts.into_iter().try_for_each(&mut write)
    }
}

impl Streams {
    /// A file is opened; only if it `may_be_direct` it is. Every way is given back by
    /// [`Streams::close`].
    pub(crate) fn open(&self, node: NodeNumber, flags: OpenFlags, may_be_direct: bool) -> Way {
        let is_write_only = may_be_direct && flags.flags & libc::O_ACCMODE == libc::O_WRONLY;
        let mut nodes = self.lock();
        let open = nodes.entry(node).or_default();
        let is_direct = is_write_only && open.cached_count == 0;
        let is_passing = !is_direct && flags.has(libc::O_DIRECT);
        match is_direct {
            true => open.direct_count += 1,
            false => open.cached_count += 1,
        }
        open.passing_count += u64::from(is_passing);
        Way {
            node,
            is_direct,
            is_passing,
            coherence: open.coherence.clone(),
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
        open.get_mut().passing_count -= u64::from(way.is_passing);
        if open.get().cached_count + open.get().direct_count == 0 {
            open.remove();
        }
    }

    /// Serves a write of `range`, as the kernel has it, that is no writeback: `apply` does it and
    /// returns the offset where it went, which is another one if it `appends`. `prepare_drop` is
    /// called before that if pages may have to be dropped, and returns what makes the kernel drop
    /// them from an offset on, so many bytes or with 0 all. `passes_by`: the kernel has not put it
    /// into the page cache. One that it has may hold pages until the reply, so none are dropped for
    /// it. Returns the offset.
    pub(crate) fn write<D: FnOnce(u64, u64) -> Result<(), Errno>>(
        &self,
        (way, passes_by, appends): (&Way, bool, bool),
        range: Range<u64>,
        apply: impl FnOnce() -> Result<u64, Errno>,
        prepare_drop: impl FnOnce() -> Result<D, Errno>,
    ) -> Result<u64, Errno> {
        let coherence = &way.coherence;
        if !way.is_direct && !passes_by {
            // What is left of its first and last page is filled by page reads, if at all.
            return coherence.fill(whole_pages(&range), apply);
        }
        let (at, fills, window, drop_pages) = {
            // Nobody fills pages meanwhile.
            let mut windows = coherence.write();
            let fills = coherence.fills.load(Ordering::SeqCst);
            let has_pages = fills != coherence.dropped_fills.load(Ordering::SeqCst);
            let prepared = match has_pages || appends {
                true => Some(prepare_drop()?),
                false => None,
            };
            let at = apply()?;
            let goes_elsewhere = at != range.start;
            let Some(drop_pages) = prepared.filter(|_| has_pages || goes_elsewhere) else {
                return Ok(at); // FUSE-8: there is no old page
            };
            let window = Arc::new(Window::new(at..at + (range.end - range.start)));
            windows.push(window.clone());
            (at, fills, window, drop_pages)
        };
        // When those who read have gone, all are dropped: the next writes need not drop anything.
        let drops_all = !self.has_fillers(way.node);
        let dropped = match drops_all {
            true => drop_pages(0, 0),
            false => drop_pages(at, range.end - range.start),
        };
        coherence
            .write()
            .retain(|other| !Arc::ptr_eq(other, &window));
        dropped?;
        if drops_all {
            (coherence.dropped_fills).fetch_max(fills, Ordering::SeqCst);
        }
        Ok(at)
    }

    fn has_fillers(&self, node: NodeNumber) -> bool {
        let nodes = self.lock();
        let has_any = |open: &Open| open.cached_count > open.passing_count;
        nodes.get(&node).is_some_and(has_any)
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeNumber, Open>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PageCoherence {
    fn fill<T>(&self, range: Range<u64>, serve: impl FnOnce() -> T) -> T {
        let windows = self.read();
        self.fills.fetch_add(1, Ordering::SeqCst);
        let served = serve();
        windows.iter().for_each(|window| window.fill(&range));
        served
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Window>>> {
        self.windows.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Vec<Arc<Window>>> {
        self.windows.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Window {
    fn new(range: Range<u64>) -> Window {
        let page_count = range.end.div_ceil(PAGE_BYTES) - range.start / PAGE_BYTES;
        Window {
            range,
            is_new: Mutex::new(vec![false; page_count as usize]),
        }
    }

    /// The pages of `range` are new from now on.
    fn fill(&self, range: &Range<u64>) {
        let first = self.range.start / PAGE_BYTES;
        let mut is_new = self.is_new.lock().unwrap_or_else(PoisonError::into_inner);
        for (page, is_new) in (first..).zip(is_new.iter_mut()) {
            *is_new |= page * PAGE_BYTES < range.end && range.start < (page + 1) * PAGE_BYTES;
        }
    }

    /// What of the range is in old pages.
    fn old_parts(&self) -> Vec<Range<u64>> {
        let first = self.range.start / PAGE_BYTES;
        let is_new = self.is_new.lock().unwrap_or_else(PoisonError::into_inner);
        let mut parts: Vec<Range<u64>> = Vec::new();
        for (page, _) in (first..).zip(is_new.iter()).filter(|(_, is_new)| !**is_new) {
            let start = self.range.start.max(page * PAGE_BYTES);
            let end = self.range.end.min((page + 1) * PAGE_BYTES);
            match parts.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => parts.push(start..end),
            }
        }
        parts
    }
}

/// What is left of `part` on both sides of `hole`.
fn without(part: &Range<u64>, hole: &Range<u64>) -> impl Iterator<Item = Range<u64>> {
    let below = part.start..part.end.min(hole.start);
    let above = part.start.max(hole.end)..part.end;
    [below, above]
        .into_iter()
        .filter(|rest| rest.start < rest.end)
}

/// The pages that lie in `range` as a whole.
fn whole_pages(range: &Range<u64>) -> Range<u64> {
    let start = range.start.next_multiple_of(PAGE_BYTES);
    start..(range.end / PAGE_BYTES * PAGE_BYTES).max(start)
}

#[cfg(test)]
mod tests;
