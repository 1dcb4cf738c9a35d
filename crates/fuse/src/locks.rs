//! Locks of programs (fcntl, open file description locks, flock) that hold across all mounts of a
//! database.
//!
//! The kernel asks the server for each lock, and the server sets the same lock on a file in the
//! database, whose locks the host's kernel keeps apart: between owners of this mount, and of all
//! others. What dies with a process is let go by that kernel.
//!
//! # Words
//! An *owner* is who has locks: a process (fcntl), or an open file (open file description locks,
//! flock). The kernel names it by a number. A *holder* is an owner that has, or had, locks on one
//! node: its file is open. A *wait* is a blocked request.
//!
//! # Invariants
//! * `LOCK-1` Two owners never have locks that conflict, whatever mounts they use: each has its own
//!   open file description of the node's file.
//! * `LOCK-2` A node has at most one file with locks in it: it is removed only by who holds it
//!   alone, and nobody holds one that is removed.
//! * `LOCK-3` What is noted of a holder's ranges is what the host's kernel has of them.
//! * `LOCK-4` A holder ends with what it came by: a process when it closes any descriptor of the
//!   file (FLUSH), an open file when it is closed (RELEASE).
//! * `LOCK-5` A wait ends when the lock is free, when its caller is interrupted, or when it would
//!   wait for itself by way of other waits on this mount.
//!
//! # Closing
//! The kernel tells each close of files that are open for reading and writing. For others it would
//! cost every reader and writer of a file a round trip; they are told of the last close of the open
//! file only. So a process that has locked a file through such a descriptor keeps its locks while a
//! child still has the descriptor open, and closing such a descriptor beside the one with the locks
//! does not drop them.
//!
//! # Waiting
//! A wait asks again when an owner on this mount lets go, and now and then for the others: there is
//! no queue, and across mounts it may be late by [`PAUSE_MAX`].

mod files;
mod ranges;

use files::{BYTES_END, Class, Kind, LockFile, LockFiles};
use larder::directory::DatabaseDir;
use larder::{Error, ErrorKind};
use larder_fuse_protocol::{Errno, HandleNumber, Lock, LockOwner, LockRequest, NodeNumber};
use ranges::{Range, Ranges};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// How long a wait sleeps before it asks again, first and at most.
const PAUSE_MIN: Duration = Duration::from_micros(200);
const PAUSE_MAX: Duration = Duration::from_millis(5);
/// The kernel tells the last close of a file after close(2) has returned: who finds a lock that
/// ends so is given this time before it is refused; and this when it is known that a descriptor was
/// closed just now.
const CLOSE_MAX: Duration = Duration::from_millis(20);
const CLOSE_TOLD_MAX: Duration = Duration::from_millis(200);

/// Who has locks, and of what kind.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Owner {
    number: LockOwner,
    class: Class,
}

/// An owner on one node.
#[derive(Debug)]
struct Holder {
    file: Arc<LockFile>,
    pid: u32,
    /// The open files by which it has set locks, and that no RELEASE was told of.
    handles: Vec<HandleNumber>,
    /// Of class [`Class::Bytes`] only.
    ranges: Ranges,
    /// It has, or had, a lock for writing.
    has_written: bool,
    /// No FLUSH tells that it may end.
    ends_unannounced: bool,
    /// When a descriptor was closed of an open file by which it has locks.
    closed: Option<Instant>,
}

/// A request that waits.
#[derive(Debug)]
struct Wait {
    owner: Owner,
    node: NodeNumber,
    range: Range,
    thread: Thread,
}

#[derive(Debug, Default)]
struct State {
    nodes: HashMap<NodeNumber, HashMap<Owner, Holder>>,
    waits: Vec<Wait>,
}

/// The locks of one mount.
pub(crate) struct Locks {
    files: LockFiles,
    state: Mutex<State>,
    /// Holders: while there are none, closing costs nothing.
    holder_count: AtomicUsize,
}

/// What is asked for, in the words of this module.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    node: NodeNumber,
    owner: Owner,
    handle: HandleNumber,
    pid: u32,
    range: Range,
    kind: Kind,
    /// The kernel tells each close of this handle.
    is_flushed: bool,
}

impl Wanted {
    /// `EOVERFLOW` for bytes from 2⁶² on; a lock to the end of the file ends there.
    fn new(node: NodeNumber, request: &LockRequest, is_flushed: bool) -> Result<Wanted, Errno> {
        let Lock {
            start,
            end,
            kind,
            pid,
        } = request.lock;
        let kind = match kind {
            libc::F_UNLCK => Kind::None,
            libc::F_RDLCK => Kind::Read,
            libc::F_WRLCK => Kind::Write,
            _ => return Err(Errno::EINVAL),
        };
        let class = match request.is_flock {
            true => Class::Whole,
            false => Class::Bytes,
        };
        let is_open_ended = end >= i64::MAX as u64 || kind == Kind::None;
        if start > end || start >= BYTES_END || (end >= BYTES_END && !is_open_ended) {
            return Err(Errno::EOVERFLOW);
        }
        Ok(Wanted {
            node,
            owner: Owner {
                number: request.owner,
                class,
            },
            handle: request.handle,
            pid,
            range: Range {
                start,
                last: end.min(BYTES_END - 1),
                is_write: kind == Kind::Write,
            },
            kind,
            is_flushed,
        })
    }
}

impl Locks {
    /// The locks of a mount of `database`.
    pub(crate) fn open(database: &DatabaseDir) -> Result<Locks, Error> {
        let files = LockFiles::open(database).map_err(|error| {
            let place = database.join("locks");
            let what = format!(
                "cannot use {}; make it writable, or mount with '-o locks=local'",
                place.display()
            );
            Error::with_source(ErrorKind::Io, what, error)
        })?;
        Ok(Locks {
            files,
            state: Mutex::default(),
            holder_count: AtomicUsize::new(0),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// GETLK: a lock that is in the way, or one of kind `F_UNLCK`.
    pub(crate) fn find(&self, node: NodeNumber, request: &LockRequest) -> Result<Lock, Errno> {
        let wanted = Wanted::new(node, request, true)?;
        let mut locals = Vec::new();
        let mut own = None;
        for (owner, holder) in self.state().nodes.get(&node).into_iter().flatten() {
            if *owner == wanted.owner {
                own = Some(holder.file.clone());
            } else if let Some(range) = holder.ranges.conflict(&wanted.range) {
                return Ok(shown(&range, holder.pid));
            }
            locals.push(holder.pid);
        }
        let foreign = (self.files).foreign_lock(node, own.as_deref(), &wanted.range, &locals)?;
        Ok(match foreign {
            Some((range, pid)) => shown(&range, pid),
            None => Lock {
                kind: libc::F_UNLCK,
                ..request.lock
            },
        })
    }

    /// SETLK: sets or drops a lock; `EAGAIN` when another is in the way. `is_flushed`: see the
    /// module.
    pub(crate) fn set(
        &self,
        node: NodeNumber,
        request: &LockRequest,
        is_flushed: bool,
    ) -> Result<(), Errno> {
        let Some(wanted) = self.wanted(node, request, is_flushed)? else {
            return Ok(());
        };
        let began = Instant::now();
        loop {
            match self.try_set(&wanted, None) {
                Err(Errno::EAGAIN) if Instant::now() < self.end_of_patience(&wanted, began) => {
                    std::thread::sleep(PAUSE_MIN);
                }
                other => return other,
            }
        }
    }

    /// SETLKW: the same, but waits. `pause` sleeps until the thread is unparked or the given
    /// moment, and fails when the caller was interrupted. `EDEADLK`: see `LOCK-5`.
    pub(crate) fn set_waiting(
        &self,
        node: NodeNumber,
        request: &LockRequest,
        is_flushed: bool,
        mut pause: impl FnMut(Instant) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let Some(wanted) = self.wanted(node, request, is_flushed)? else {
            return Ok(());
        };
        let waiter = std::thread::current();
        let mut nap = PAUSE_MIN;
        loop {
            match self.try_set(&wanted, Some(&waiter)) {
                Err(Errno::EAGAIN) => {}
                other => return other,
            }
            let paused = pause(Instant::now() + nap);
            let mut state = self.state();
            let is_mine =
                |wait: &Wait| wait.owner == wanted.owner && wait.thread.id() == waiter.id();
            state.waits.retain(|wait| !is_mine(wait));
            drop(state);
            paused?;
            nap = (nap * 2).min(PAUSE_MAX);
        }
    }

    /// What is to be done; nothing when what nobody holds is unlocked.
    fn wanted(
        &self,
        node: NodeNumber,
        request: &LockRequest,
        is_flushed: bool,
    ) -> Result<Option<Wanted>, Errno> {
        let wanted = match Wanted::new(node, request, is_flushed) {
            // Nothing can be locked there.
            Err(Errno::EOVERFLOW) if request.lock.kind == libc::F_UNLCK => return Ok(None),
            other => other?,
        };
        let is_held = |state: &State| {
            let holders = state.nodes.get(&node);
            holders.is_some_and(|holders| holders.contains_key(&wanted.owner))
        };
        if is_held(&self.state()) {
            return Ok(Some(wanted));
        }
        if wanted.kind == Kind::None {
            return Ok(None);
        }
        // Outside the lock: the host may take its time. Of two threads of one owner one file
        // counts.
        let file = self.files.hold(node, wanted.owner.class, wanted.pid)?;
        let mut state = self.state();
        let holders = state.nodes.entry(node).or_default();
        holders.entry(wanted.owner).or_insert_with(|| {
            self.holder_count.fetch_add(1, Ordering::SeqCst);
            Holder {
                file: Arc::new(file),
                pid: wanted.pid,
                handles: Vec::new(),
                ranges: Ranges::default(),
                has_written: false,
                ends_unannounced: false,
                closed: None,
            }
        });
        Ok(Some(wanted))
    }

    /// Sets the lock, or notes that `waiter` waits for it.
    fn try_set(&self, wanted: &Wanted, waiter: Option<&Thread>) -> Result<(), Errno> {
        let Wanted {
            node, owner, range, ..
        } = *wanted;
        let mut state = self.state();
        let state = &mut *state;
        // It may have ended meanwhile, by a close in another thread.
        let holder = (state.nodes.get_mut(&node))
            .and_then(|holders| holders.get_mut(&owner))
            .ok_or(Errno::EBADF)?;
        if !holder.handles.contains(&wanted.handle) {
            holder.handles.push(wanted.handle);
        }
        let set = (holder.file).set(owner.class, range.start, range.last, wanted.kind);
        match set {
            Ok(()) => {
                match wanted.kind {
                    Kind::None => holder.ranges.clear(range.start, range.last),
                    _ if owner.class == Class::Bytes => holder.ranges.set(range),
                    _ => {}
                }
                holder.ends_unannounced |= !wanted.is_flushed;
                holder.has_written |= wanted.kind == Kind::Write;
            }
            Err(Errno::EAGAIN) => {
                if let Some(waiter) = waiter {
                    if state.would_wait_for_itself(owner, node, &range) {
                        return Err(Errno::EDEADLK);
                    }
                    state.waits.push(Wait {
                        owner,
                        node,
                        range,
                        thread: waiter.clone(),
                    });
                }
            }
            Err(_) => {}
        }
        if set.is_ok() && wanted.kind != Kind::Write {
            state.wake(node, Some(owner));
        }
        set
    }

    /// Until when a lock that is in the way may be one whose end is on its way here, of a request
    /// that `began` then.
    fn end_of_patience(&self, wanted: &Wanted, began: Instant) -> Instant {
        let mut end = match wanted.owner.class {
            // That of another mount may be such a one, too.
            Class::Whole => began + CLOSE_MAX,
            Class::Bytes => began,
        };
        let state = self.state();
        for (owner, holder) in state.nodes.get(&wanted.node).into_iter().flatten() {
            let is_in_the_way = *owner != wanted.owner
                && owner.class == wanted.owner.class
                && (owner.class == Class::Whole || holder.ranges.conflict(&wanted.range).is_some());
            if is_in_the_way && holder.ends_unannounced {
                end = end.max(began + CLOSE_MAX);
            }
            if let Some(closed) = holder.closed.filter(|_| is_in_the_way) {
                end = end.max(closed + CLOSE_TOLD_MAX);
            }
        }
        end
    }

    /// Whether anybody on this mount may have changed the file under a lock that he still has.
    pub(crate) fn has_writer(&self, node: NodeNumber) -> bool {
        if self.holder_count.load(Ordering::SeqCst) == 0 {
            return false;
        }
        let state = self.state();
        let holders = state.nodes.get(&node).into_iter().flatten();
        holders.into_iter().any(|(_, holder)| holder.has_written)
    }

    /// FLUSH: the process has closed a descriptor of the open file `handle`; its byte locks on the
    /// node go (`LOCK-4`).
    pub(crate) fn flush(&self, node: NodeNumber, handle: HandleNumber, owner: LockOwner) {
        if self.holder_count.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.end_holders(node, |other, holder| {
            // If it was the last descriptor, a RELEASE follows, which ends the locks of the open
            // file.
            if holder.handles.contains(&handle) {
                holder.closed = Some(Instant::now());
            }
            other.class == Class::Bytes && other.number == owner
        });
    }

    /// RELEASE: an open file is closed for good; its locks go (`LOCK-4`).
    pub(crate) fn release(
        &self,
        node: NodeNumber,
        handle: HandleNumber,
        flock_owner: Option<LockOwner>,
    ) {
        if self.holder_count.load(Ordering::SeqCst) == 0 {
            return;
        }
        self.end_holders(node, |owner, holder| match owner.class {
            Class::Whole => Some(owner.number) == flock_owner,
            Class::Bytes => {
                let had = holder.handles.len();
                holder.handles.retain(|other| *other != handle);
                holder.handles.is_empty() && had > 0
            }
        });
    }

    fn end_holders(&self, node: NodeNumber, mut is_over: impl FnMut(&Owner, &mut Holder) -> bool) {
        let mut gone = Vec::new();
        {
            let mut state = self.state();
            let Some(holders) = state.nodes.get_mut(&node) else {
                return;
            };
            holders.retain(|owner, holder| {
                let ends = is_over(owner, holder);
                if ends {
                    holder.file.unlock(); // LOCK-3
                    gone.push(holder.file.clone());
                }
                !ends
            });
            if holders.is_empty() {
                state.nodes.remove(&node);
            }
            self.holder_count.fetch_sub(gone.len(), Ordering::SeqCst);
        }
        if gone.is_empty() {
            return;
        }
        self.give_up(node, &gone);
        self.state().wake(node, None);
    }

    fn give_up(&self, node: NodeNumber, files: &[Arc<LockFile>]) {
        for file in files {
            // The locks end when the last one who uses the file drops it, whatever fails here.
            if let Err(error) = self.files.give_up(node, file) {
                tracing::warn!("the file of the locks of {node} stays: {error}");
            }
        }
    }
}

impl Drop for Locks {
    fn drop(&mut self) {
        let nodes = std::mem::take(&mut self.state().nodes);
        for (node, holders) in nodes {
            let files: Vec<_> = holders.into_values().map(|holder| holder.file).collect();
            self.give_up(node, &files);
        }
    }
}

impl State {
    /// Those who wait for the node ask again; not `but`, who changed something itself.
    fn wake(&self, node: NodeNumber, but: Option<Owner>) {
        for wait in &self.waits {
            if wait.node == node && Some(wait.owner) != but {
                wait.thread.unpark();
            }
        }
    }

    /// Whether `owner`, once it waits for `range`, waits for somebody who waits for it (`LOCK-5`).
    fn would_wait_for_itself(&self, owner: Owner, node: NodeNumber, range: &Range) -> bool {
        if owner.class != Class::Bytes {
            return false;
        }
        let mut seen: HashSet<Owner> = HashSet::new();
        let mut ahead = vec![(owner, node, *range)];
        while let Some((waiting, node, range)) = ahead.pop() {
            for (blocker, holder) in self.nodes.get(&node).into_iter().flatten() {
                let is_in_the_way = *blocker != waiting
                    && blocker.class == Class::Bytes
                    && holder.ranges.conflict(&range).is_some();
                if !is_in_the_way {
                    continue;
                }
                if *blocker == owner {
                    return true;
                }
                if seen.insert(*blocker) {
                    let waits = self.waits.iter().filter(|wait| wait.owner == *blocker);
                    ahead.extend(waits.map(|wait| (wait.owner, wait.node, wait.range)));
                }
            }
        }
        false
    }
}

/// A lock as the kernel is told of it.
fn shown(range: &Range, pid: u32) -> Lock {
    Lock {
        start: range.start,
        end: match range.last {
            last if last >= BYTES_END - 1 => i64::MAX as u64,
            last => last,
        },
        kind: match range.is_write {
            true => libc::F_WRLCK,
            false => libc::F_RDLCK,
        },
        pid,
    }
}

#[cfg(test)]
mod tests;
