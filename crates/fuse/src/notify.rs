//! Telling the kernel what has changed behind its back, from a thread of its own (`FUSE-2`).
//!
//! Entries only *expire*: a plain invalidation unhashes the entry, and a process whose working
//! directory it is loses its path, and what is mounted on it is detached. An expired entry is looked
//! up again when it is next used. Kernels before 6.2 ignore the flag and invalidate.

use crate::known::{Known, Snapshot};
use larder_fuse_protocol::{Errno, NodeNumber, Notifier};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The thread that writes notifications, and nothing else (`FUSE-2`).
pub(crate) const NOTIFY_THREAD: &str = "larder-notify";

/// What is to be told to the kernel. Filled from anywhere, emptied by [`Changes::serve`].
#[derive(Default)]
pub(crate) struct Changes {
    pending: Mutex<Pending>,
    woken: Condvar,
}

#[derive(Default)]
struct Pending {
    everything: bool,
    absent: bool,
    nodes: Vec<NodeNumber>,
    is_over: bool,
}

impl Changes {
    /// Anything may have changed.
    pub(crate) fn everything(&self) {
        self.lock().everything = true;
        self.woken.notify_one();
    }

    /// The absent names are to be forgotten.
    pub(crate) fn absent(&self) {
        self.lock().absent = true;
        self.woken.notify_one();
    }

    /// One node has changed.
    pub(crate) fn node(&self, node: NodeNumber) {
        self.lock().nodes.push(node);
        self.woken.notify_one();
    }

    /// The mount is gone: [`Changes::serve`] returns.
    pub(crate) fn stop(&self) {
        self.lock().is_over = true;
        self.woken.notify_one();
    }

    /// Sends notifications by `notifier` as changes come, until [`Changes::stop`]. Changes that come
    /// while it is busy are told together. Cost: about 2 µs per known node and entry.
    pub(crate) fn serve(&self, known: &Known, notifier: &Notifier) {
        while let Some(pending) = self.next() {
            let told = if pending.everything {
                // No lock is held from here on (`FUSE-2`).
                let all = known.advance();
                tracing::debug!(
                    "foreign change: {} nodes, {} entries",
                    all.nodes.len(),
                    all.entries.len()
                );
                tell(&all, notifier)
            } else {
                tell_nodes(&pending.nodes, notifier).and_then(|()| match pending.absent {
                    true => tell(&known.advance_absent(), notifier),
                    false => Ok(()),
                })
            };
            if let Err(error) = told {
                tracing::error!(
                    "the kernel refused a notification, its caches may be stale: {error}"
                );
            }
        }
    }

    fn next(&self) -> Option<Pending> {
        let mut pending = self.lock();
        loop {
            if pending.is_over {
                return None;
            }
            if pending.everything || pending.absent || !pending.nodes.is_empty() {
                return Some(std::mem::take(&mut pending));
            }
            pending = self
                .woken
                .wait(pending)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn lock(&self) -> MutexGuard<'_, Pending> {
        self.pending.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn tell(all: &Snapshot, notifier: &Notifier) -> Result<(), Errno> {
    let nodes = tell_nodes(&all.nodes, notifier);
    (all.entries.iter())
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
        known.add(NodeNumber::ROOT, &Name::new(b"a").unwrap(), NodeNumber(7));
        let mut told = tempfile::tempfile().unwrap();
        let notifier = Notifier::new(&Device::from(std::os::fd::OwnedFd::from(
            told.try_clone().unwrap(),
        )));
        let changes = Changes::default();
        let expected_bytes = 2 * 40 + 34;
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
        assert_eq!((number(16), number(56)), (1, 7), "FUSE-1: nodes");
        assert_eq!(
            (number(96), &bytes[112..]),
            (1, &b"a\0"[..]),
            "FUSE-1: entries"
        );
    }
}
