//! Telling the kernel what has changed behind its back, from a thread of its own (`FUSE-2`).
//!
//! Entries only *expire*: a plain invalidation unhashes the entry, and a process whose working
//! directory it is loses its path, and what is mounted on it is detached. An expired entry is
//! looked up again when it is next used. Kernels before 6.2 ignore the flag and invalidate.
//!
//! The order counts, and some are told again: see `known.rs`, *Between a reply and its use*.

use crate::convert::node_number;
use crate::known::{Known, LATE_AGE_MAX, Late, Snapshot};
use larder::{ForeignChange, NodeId};
use larder_fuse_protocol::{Errno, NodeNumber, Notifier};
use std::collections::HashSet;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The thread that writes notifications, and nothing else (`FUSE-2`).
pub(crate) const NOTIFY_THREAD: &str = "larder-notify";

/// When what late replies are about is told again, after the change.
const AGAIN: [Duration; 4] = [
    Duration::from_millis(10),
    Duration::from_millis(100),
    Duration::from_secs(1),
    LATE_AGE_MAX,
];

/// Nodes that are told of one by one, at most; of more, everything is. And changes whose late
/// replies are told of again.
const SOME_MAX: usize = 1 << 15;
const AGAIN_COUNT_MAX: usize = 1 << 10;

/// A name that no entry has: a notification of it waits for the directory's lock, and does nothing.
const NOBODY: &[u8] = b".";

/// What is to be told to the kernel. Filled from anywhere, emptied by [`Changes::serve`].
#[derive(Default)]
pub(crate) struct Changes {
    pending: Mutex<Pending>,
    woken: Condvar,
    /// Something was told.
    settled: Condvar,
}

#[derive(Default)]
struct Pending {
    everything: bool,
    /// Names and attributes, of everything: the kernel is to ask again.
    names: bool,
    /// Nobody knows what, but no more than these nodes.
    some: Option<HashSet<NodeNumber>>,
    absent: bool,
    nodes: Vec<NodeNumber>,
    /// Nodes that have no name any more: what the kernel knows them by goes.
    removed: Vec<NodeNumber>,
    /// Changes that have come, and how many of them the kernel was told of.
    count: u64,
    told_count: u64,
    /// What `count` was after the newest change of something that the kernel may know.
    stale_count: u64,
    is_over: bool,
}

impl Pending {
    /// All that has come; what comes is counted on.
    fn take(&mut self) -> Pending {
        let next = Pending {
            count: self.count,
            told_count: self.told_count,
            stale_count: self.stale_count,
            ..Pending::default()
        };
        std::mem::replace(self, next)
    }
}

impl Changes {
    /// Anything may have changed.
    pub(crate) fn everything(&self) {
        let mut pending = self.add();
        pending.everything = true;
        pending.stale_count = pending.count;
        self.woken.notify_one();
    }

    /// Nothing has changed, but from now on it may at any time: what the kernel was told before is
    /// to end.
    pub(crate) fn names(&self) {
        self.add().names = true;
        self.woken.notify_one();
    }

    /// Whether others have changed something that the kernel was not told of yet. Where it has
    /// heard so once, its pages and attributes are as of then.
    pub(crate) fn is_stale(&self) -> bool {
        let pending = self.lock();
        pending.told_count < pending.stale_count
    }

    /// Waits until that is not so. The caller holds nothing that the kernel needs to take it in
    /// (`FUSE-2`).
    pub(crate) fn settle_stale(&self) {
        let mut pending = self.lock();
        let count = pending.stale_count;
        while pending.told_count < count && !pending.is_over {
            pending = (self.settled.wait(pending)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Others have changed something.
    pub(crate) fn foreign(&self, change: &ForeignChange) {
        match change {
            ForeignChange::Everything => self.everything(),
            ForeignChange::Inodes(inodes) => {
                let mut pending = self.add();
                if !inodes.is_empty() {
                    pending.stale_count = pending.count;
                }
                let some = pending.some.get_or_insert_default();
                // What has no number the kernel cannot know.
                some.extend(
                    inodes
                        .iter()
                        .filter_map(|&(store, ino)| node_number(NodeId { store, ino }).ok()),
                );
                pending.everything |= some.len() > SOME_MAX;
                self.woken.notify_one();
            }
        }
    }

    /// The absent names are to be forgotten.
    pub(crate) fn absent(&self) {
        self.add().absent = true;
        self.woken.notify_one();
    }

    /// One node has changed.
    pub(crate) fn node(&self, node: NodeNumber) {
        self.add().nodes.push(node);
        self.woken.notify_one();
    }

    /// Others have taken the last name of a node.
    pub(crate) fn removed(&self, node: NodeNumber) {
        self.add().removed.push(node);
        self.woken.notify_one();
    }

    /// The mount is gone: [`Changes::serve`] returns.
    pub(crate) fn stop(&self) {
        self.lock().is_over = true;
        self.woken.notify_one();
        self.settled.notify_all();
    }

    /// Waits until the kernel was told of all that has come so far, or the mount is gone. The
    /// caller holds no lock that a handler takes (`FUSE-2`).
    pub(crate) fn settle(&self) {
        let mut pending = self.lock();
        let count = pending.count;
        while pending.told_count < count && !pending.is_over {
            pending = (self.settled.wait(pending)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Sends notifications by `notifier` as changes come, until [`Changes::stop`]. Changes that
    /// come while it is busy are told together. Cost: about 2 µs per known node and entry.
    pub(crate) fn serve(&self, known: &Known, notifier: &Notifier) {
        let mut agains: Vec<Again> = Vec::new();
        while let Some(pending) = self.next(agains.iter().filter_map(Again::due).min()) {
            let told = if pending.everything {
                // No lock is held from here on (`FUSE-2`).
                let all = known.advance();
                tracing::debug!(
                    "foreign change: {} nodes, {} entries",
                    all.nodes.len(),
                    all.entries.len()
                );
                let told = tell(&all, notifier);
                agains = vec![Again::new(all.late, Instant::now())];
                told
            } else {
                let names = match pending.names {
                    true => tell_names(known.advance(), notifier, &mut agains),
                    false => Ok(()),
                };
                let nodes = tell_nodes(&pending.nodes, notifier);
                let absent = match pending.absent {
                    true => tell(&known.advance_absent(), notifier),
                    false => Ok(()),
                };
                let some = match &pending.some {
                    Some(changed) if !changed.is_empty() || known.leads_to_past() => {
                        let some = known.advance_some(changed);
                        let told = tell(&some, notifier);
                        agains.push(Again::new(some.late, Instant::now()));
                        told
                    }
                    _ => Ok(()),
                };
                names.and(nodes).and(absent).and(some)
            };
            let gone = pending.removed.iter().flat_map(|&node| known.names(node));
            let told = gone
                .map(|entry| notifier.inval_entry(entry.0, entry.1.as_bytes(), false))
                .fold(told, Result::and);
            let now = Instant::now();
            let due = agains.iter_mut().filter(|again| again.is_due(now));
            let again = due.map(|again| {
                again.done_count += 1;
                tell_again(&again.late, notifier)
            });
            let told = again.fold(told, Result::and);
            agains.retain(|again| again.due().is_some());
            if agains.len() > AGAIN_COUNT_MAX {
                self.everything();
            }
            if let Err(error) = told {
                tracing::error!(
                    "the kernel refused a notification, its caches may be stale: {error}"
                );
            }
            self.lock().told_count = pending.count;
            self.settled.notify_all();
        }
    }

    /// What has come; or nothing, when that is `due`; `None`: all is over.
    fn next(&self, due: Option<Instant>) -> Option<Pending> {
        let mut pending = self.lock();
        loop {
            if pending.is_over {
                return None;
            }
            let is_any = pending.everything || pending.names || pending.absent;
            let is_any = is_any || pending.some.is_some();
            if is_any || !pending.nodes.is_empty() || !pending.removed.is_empty() {
                return Some(pending.take());
            }
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            if left == Some(Duration::ZERO) {
                // Nothing has come.
                return Some(pending.take());
            }
            // Without anything due it may as well wake once an hour.
            let left = left.unwrap_or(Duration::from_secs(3600));
            pending = (self.woken.wait_timeout(pending, left))
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }

    fn add(&self) -> MutexGuard<'_, Pending> {
        let mut pending = self.lock();
        pending.count += 1;
        pending
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What is to be told again after a change. Where everything is told, its late replies are those of
/// all changes before that may not be in use yet: it replaces theirs.
#[derive(Default)]
struct Again {
    late: Late,
    dues: Vec<Instant>,
    done_count: usize,
}

impl Again {
    fn new(late: Late, changed: Instant) -> Again {
        let is_needed = late != Late::default();
        let dues = AGAIN
            .iter()
            .filter(|_| is_needed)
            .map(|&after| changed + after);
        Again {
            dues: dues.collect(),
            late,
            done_count: 0,
        }
    }

    fn due(&self) -> Option<Instant> {
        self.dues.get(self.done_count).copied()
    }

    fn is_due(&self, now: Instant) -> bool {
        self.due().is_some_and(|due| due <= now)
    }
}

fn tell(all: &Snapshot, notifier: &Notifier) -> Result<(), Errno> {
    // Behind each of these the kernel has made use of all older replies about the directory
    // (`FUSE-1`).
    let entries = (all.entries.iter())
        .map(|entry| notifier.inval_entry(entry.0, entry.1.as_bytes(), true))
        .fold(Ok(()), Result::and);
    let listings = (all.listed.iter())
        .map(|&directory| notifier.inval_entry(directory, NOBODY, true))
        .fold(entries, Result::and);
    listings.and(tell_nodes(&all.nodes, notifier))
}

/// Ends the time for which names and attributes were given; pages stay.
fn tell_names(all: Snapshot, notifier: &Notifier, agains: &mut Vec<Again>) -> Result<(), Errno> {
    let names = Snapshot {
        nodes: Vec::new(),
        late: Late::default(),
        ..all
    };
    let told = (all.nodes.iter())
        .map(|&node| notifier.inval_inode(node, -1, 0))
        .fold(tell(&names, notifier), Result::and);
    agains.push(Again::new(all.late, Instant::now()));
    told
}

fn tell_again(late: &Late, notifier: &Notifier) -> Result<(), Errno> {
    // Pages are locked from their request to their use: once was enough for them.
    let nodes = (late.nodes.iter())
        .map(|&node| notifier.inval_inode(node, -1, 0))
        .fold(Ok(()), Result::and);
    (late.entries.iter())
        .map(|entry| notifier.inval_entry(entry.0, entry.1.as_bytes(), true))
        .fold(nodes, Result::and)
}

fn tell_nodes(nodes: &[NodeNumber], notifier: &Notifier) -> Result<(), Errno> {
    debug_assert_eq!(std::thread::current().name(), Some(NOTIFY_THREAD), "FUSE-2");
    // One that is refused does not keep the others from being told.
    (nodes.iter())
        .map(|&node| notifier.inval_inode(node, 0, 0))
        .fold(Ok(()), Result::and)
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder::Name;
    use larder_fuse_protocol::Device;
    use std::io::{Read, Seek};

    #[test]
    fn a_foreign_change_reaches_every_known_node_and_entry() {
        let known = Known::default();
        let name = Name::new(b"a").unwrap();
        known.add(NodeNumber::ROOT, &name, NodeNumber(7));
        let mut told = tempfile::tempfile().unwrap();
        let notifier = Notifier::new(&Device::from(std::os::fd::OwnedFd::from(
            told.try_clone().unwrap(),
        )));
        let changes = Changes::default();
        known.add_looked_up(NodeNumber::ROOT, &name, NodeNumber(7));
        known.note_set(NodeNumber(8));
        known.note_listed(NodeNumber(7));
        let (node, entry) = (40, 34);
        let expected_bytes = 2 * entry + 2 * node + 2 * (node + entry);
        std::thread::scope(|scope| {
            let server = std::thread::Builder::new()
                .name(NOTIFY_THREAD.into())
                .spawn_scoped(scope, || changes.serve(&known, &notifier))
                .unwrap();
            changes.everything();
            while told.metadata().unwrap().len() < expected_bytes && !server.is_finished() {
                std::thread::yield_now();
            }
            changes.stop();
        });
        let mut bytes = Vec::new();
        told.rewind().unwrap();
        told.read_to_end(&mut bytes).unwrap();
        assert_eq!(bytes.len() as u64, expected_bytes, "FUSE-1");
        let number = |at: usize| u64::from_ne_bytes(bytes[at..at + 8].try_into().unwrap());
        let entries = (number(16), &bytes[32..34], number(50), &bytes[66..68]);
        assert_eq!(
            entries,
            (1, &b"a\0"[..], 7, &b".\0"[..]),
            "FUSE-1: first entries, then a barrier in what was listed"
        );
        assert_eq!((number(84), number(124)), (1, 7), "FUSE-1: then nodes");
        for again in [148, 148 + 74] {
            let node = (number(again + 16), number(again + 24) as i64);
            assert_eq!(node, (8, -1), "FUSE-1: its attributes, again");
            assert_eq!(number(again + 40 + 16), 1, "FUSE-1: the entry, again");
        }
    }
}
