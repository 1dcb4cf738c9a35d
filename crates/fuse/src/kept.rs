//! Nodes without a name that the kernel knows still: by an open directory, an `O_PATH` descriptor,
//! a pipe that is open. They live until it forgets them (`FUSE-19`).

use crate::convert::node_number;
use crate::known::Known;
use crate::notify::Changes;
use larder::{Ino, Keeper, NodeId, StoreId};
use larder_fuse_protocol::NodeNumber;
use std::collections::HashSet;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The nodes of one mount that are kept for the kernel.
pub(crate) struct Kept {
    known: Arc<Known>,
    changes: Arc<Changes>,
    /// `None` when the mount is over: nobody is kept any more.
    nodes: Mutex<Option<HashSet<NodeNumber>>>,
}

impl Kept {
    pub(crate) fn new(known: Arc<Known>, changes: Arc<Changes>) -> Kept {
        Kept {
            known,
            changes,
            nodes: Mutex::new(Some(HashSet::new())),
        }
    }

    /// The kernel has given up lookups of `node`, and [`Known`] was told: whether it is to be let
    /// go. A node is kept under the lock only while it is known, so either this finds it, or it
    /// never is.
    pub(crate) fn forget(&self, node: NodeNumber) -> bool {
        let mut nodes = self.lock();
        let is_kept = nodes.as_ref().is_some_and(|nodes| nodes.contains(&node));
        is_kept
            && !self.known.knows(node)
            && nodes.as_mut().is_some_and(|nodes| nodes.remove(&node))
    }

    /// The mount is over; returns what is to be let go.
    pub(crate) fn end(&self) -> HashSet<NodeNumber> {
        self.lock().take().unwrap_or_default()
    }

    fn lock(&self) -> MutexGuard<'_, Option<HashSet<NodeNumber>>> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Keeper for Kept {
    fn knows(&self, store: StoreId, ino: Ino) -> bool {
        node_number(NodeId { store, ino }).is_ok_and(|node| self.known.knows(node))
    }

    fn keep(&self, store: StoreId, ino: Ino, by_others: bool) -> bool {
        let Ok(node) = node_number(NodeId { store, ino }) else {
            return false;
        };
        let mut nodes = self.lock();
        match nodes.as_mut() {
            Some(nodes) if self.known.knows(node) => {
                nodes.insert(node);
                if by_others {
                    // Names only expire: without this the kernel would know the node until it looks
                    // them up.
                    self.changes.removed(node);
                }
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_is_kept_until_it_is_forgotten_or_the_mount_is_over() {
        let known = Arc::new(Known::default());
        let kept = Kept::new(known.clone(), Arc::default());
        let (store, ino, node) = (StoreId(0), Ino(7), NodeNumber(7));
        assert!(!kept.keep(store, ino, false), "FUSE-19: nobody knows it");
        known.add_nameless(node);
        known.add_nameless(node);
        assert!(
            kept.knows(store, ino) && kept.keep(store, ino, false),
            "FUSE-19"
        );
        known.forget(node, 1);
        assert!(!kept.forget(node), "FUSE-19: it is known still");
        known.forget(node, 1);
        assert!(kept.forget(node) && !kept.forget(node), "FUSE-19");
        known.add_nameless(node);
        assert!(kept.keep(store, ino, false));
        assert_eq!(kept.end(), HashSet::from([node]));
        assert!(!kept.keep(store, ino, false), "FUSE-19: the mount is over");
    }
}
