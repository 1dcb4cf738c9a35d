//! Telling the kernel what has changed behind its back, from a thread of its own (`FUSE-2`).
//!
//! The notifications are encoded here and not by fuser, because entries must only *expire*: a plain
//! invalidation unhashes the entry, and a process whose working directory it is loses its path,
//! and what is mounted on it is detached. An expired entry is looked up again when it is next
//! used. Kernels before 6.2 ignore the flag and invalidate.
//!
//! ```text
//! offset  size  field (native byte order, include/uapi/linux/fuse.h)
//!      0     4  length of all, bytes
//!      4     4  code: 2 inode, 3 entry
//!      8     8  zero: not a reply
//!     16        inode: node number u64 · offset i64 = 0 · length i64 = 0 (attributes and all pages)
//!               entry: parent u64 · name length u32 · flags u32 = 1 (expire only) · name · NUL
//! ```

use crate::known::{Known, Snapshot};
use fuser::INodeNo;
use larder::Name;
use std::fs::File;
use std::io::{self, Write};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

const INVAL_INODE: u32 = 2;
const INVAL_ENTRY: u32 = 3;
const EXPIRE_ONLY: u32 = 1;

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
    nodes: Vec<INodeNo>,
    is_over: bool,
}

impl Changes {
    /// Anything may have changed.
    pub(crate) fn everything(&self) {
        self.lock().everything = true;
        self.woken.notify_one();
    }

    /// One node has changed.
    pub(crate) fn node(&self, node: INodeNo) {
        self.lock().nodes.push(node);
        self.woken.notify_one();
    }

    /// The mount is gone: [`Changes::serve`] returns.
    pub(crate) fn stop(&self) {
        self.lock().is_over = true;
        self.woken.notify_one();
    }

    /// Sends notifications to `device` as changes come, until [`Changes::stop`]. Changes that come
    /// while it is busy are told together. Cost: about 2 µs per known node and entry.
    pub(crate) fn serve(&self, known: &Known, mut device: &File) {
        while let Some(pending) = self.next() {
            let told = if pending.everything {
                // No lock is held from here on (`FUSE-2`).
                let Snapshot { nodes, entries } = known.advance();
                tracing::debug!(
                    "foreign change: {} nodes, {} entries",
                    nodes.len(),
                    entries.len()
                );
                (nodes.iter().map(|&node| encode_node(node)))
                    .chain(entries.iter().map(|entry| encode_entry(entry.0, &entry.1)))
                    .try_for_each(|notification| send(&mut device, &notification))
            } else {
                (pending.nodes.iter().map(|&node| encode_node(node)))
                    .try_for_each(|notification| send(&mut device, &notification))
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
            if pending.everything || !pending.nodes.is_empty() {
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

/// One notification is one write. What the kernel does not hold, it need not drop.
fn send(device: &mut &File, notification: &[u8]) -> io::Result<()> {
    debug_assert_eq!(std::thread::current().name(), Some(NOTIFY_THREAD), "FUSE-2");
    match device.write(notification) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        other => other.map(|_| ()),
    }
}

fn encode_node(node: INodeNo) -> Vec<u8> {
    let mut body = Vec::with_capacity(24);
    body.extend(node.0.to_ne_bytes());
    body.extend([0; 16]);
    encode(INVAL_INODE, &body)
}

fn encode_entry(parent: INodeNo, name: &Name) -> Vec<u8> {
    let name = name.as_bytes();
    let mut body = Vec::with_capacity(16 + name.len() + 1);
    body.extend(parent.0.to_ne_bytes());
    body.extend((name.len() as u32).to_ne_bytes());
    body.extend(EXPIRE_ONLY.to_ne_bytes());
    body.extend(name);
    body.push(0);
    encode(INVAL_ENTRY, &body)
}

fn encode(code: u32, body: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(16 + body.len());
    out.extend((16 + body.len() as u32).to_ne_bytes());
    out.extend(code.to_ne_bytes());
    out.extend([0; 8]);
    out.extend(body);
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn notifications_have_the_layout_of_the_kernel() {
        let node = encode_node(INodeNo(0x1_0000_0007));
        assert_eq!((node.len(), word(&node, 0), word(&node, 4)), (40, 40, 2));
        assert_eq!(node[8..16], [0; 8]);
        assert_eq!(node[16..24], 0x1_0000_0007u64.to_ne_bytes());
        assert_eq!(node[24..], [0; 16]);
        let entry = encode_entry(INodeNo::ROOT, &Name::new(b"abc").unwrap());
        assert_eq!((entry.len(), word(&entry, 0), word(&entry, 4)), (36, 36, 3));
        assert_eq!(entry[16..24], 1u64.to_ne_bytes());
        assert_eq!((word(&entry, 24), word(&entry, 28)), (3, 1));
        assert_eq!(&entry[32..], b"abc\0");
    }

    #[test]
    fn a_foreign_change_reaches_every_known_node_and_entry() {
        let known = Known::default();
        known.add(INodeNo::ROOT, &Name::new(b"a").unwrap(), INodeNo(7));
        let mut told = tempfile::tempfile().unwrap();
        let device = told.try_clone().unwrap();
        let changes = Changes::default();
        std::thread::scope(|scope| {
            let server = std::thread::Builder::new()
                .name(NOTIFY_THREAD.into())
                .spawn_scoped(scope, || changes.serve(&known, &device))
                .unwrap();
            changes.everything();
            let expected = 2 * 40 + 34;
            while device.metadata().unwrap().len() < expected && !server.is_finished() {
                std::thread::yield_now();
            }
            changes.stop();
        });
        let mut bytes = Vec::new();
        std::io::Seek::rewind(&mut told).unwrap();
        told.read_to_end(&mut bytes).unwrap();
        let entry = encode_entry(INodeNo::ROOT, &Name::new(b"a").unwrap());
        let expected = [encode_node(INodeNo::ROOT), encode_node(INodeNo(7)), entry].concat();
        assert_eq!(bytes, expected, "FUSE-1");
    }
}
