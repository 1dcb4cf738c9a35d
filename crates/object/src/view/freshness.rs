//! Inodes in memory are as the catalog says now, and what a read may touch is not reclaimed under
//! it.

use crate::Result;
use crate::session::pins::Pin;
use crate::view::node::{Node, NodeState};
use crate::view::{Shown, View};
use larder_catalog::{AttrMask, InodeRow};
use std::sync::MutexGuard;

impl View {
    /// The state with the row as it is now: merged from the catalog when that may have changed.
    pub(crate) fn lock_node<'n>(&self, node: &'n Node) -> Result<MutexGuard<'n, NodeState>> {
        let mut state = node.lock();
        self.freshen(node, &mut state)?;
        Ok(state)
    }

    /// The same, once no commit is writing the node's blocks: for structural edits (`NODE-2`).
    pub(crate) fn lock_thawed<'n>(&self, node: &'n Node) -> Result<MutexGuard<'n, NodeState>> {
        let mut state = node.lock_thawed();
        // A commit that failed thaws too.
        self.check_running()?;
        self.freshen(node, &mut state)?;
        Ok(state)
    }

    pub(crate) fn freshen(&self, node: &Node, state: &mut NodeState) -> Result<()> {
        // While a commit runs, memory is ahead of the catalog.
        if !state.is_stale || state.is_committing {
            return Ok(());
        }
        match self.catalog.tables().inode(node.store, node.ino)? {
            Some(row) => {
                // A rollback gives numbers back to those that had them.
                state.is_deleted &= state.in_group || row.nlink == 0;
                merge(state, row);
            }
            None if state.is_fresh => {}
            None => state.is_deleted = true,
        }
        state.is_stale = false;
        Ok(())
    }

    /// Announces a read, until the pin is dropped. What the past reads is pinned in the catalog
    /// (`PAST-2`).
    pub(crate) fn begin_read(&self) -> Option<Pin<'_>> {
        match self.moment {
            Shown::Present | Shown::Snapshot(_) => Some(self.session.readers.pin(&self.known_seq)),
            Shown::Past(_) => None,
        }
    }
}

/// Takes over what the catalog says of attributes that this process has not changed itself.
fn merge(state: &mut NodeState, row: InodeRow) {
    let AttrMask {
        mode,
        owner,
        nlink,
        size,
        atime,
        mtime,
        ctime,
        flags,
    } = state.mask;
    let ours = std::mem::replace(&mut state.row, row);
    let row = &mut state.row;
    if mode {
        row.mode = ours.mode;
    }
    if owner {
        (row.uid, row.gid) = (ours.uid, ours.gid);
    }
    if nlink {
        row.nlink = ours.nlink;
    }
    if size {
        (row.size_bytes, row.block_count) = (ours.size_bytes, ours.block_count);
    }
    if atime || state.accessed_ns.is_some() {
        row.atime_ns = ours.atime_ns;
    }
    if mtime {
        row.mtime_ns = ours.mtime_ns;
    }
    if ctime {
        row.ctime_ns = ours.ctime_ns;
    }
    if flags {
        row.rdev = ours.rdev;
    }
}
