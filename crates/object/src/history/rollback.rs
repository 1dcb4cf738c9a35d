//! What going back to a state of the past needs of a change: inodes with the numbers and the
//! attributes that they had.
//!
//! # Invariants
//! * `ROLLBACK-1` An inode number comes back only to the inode that had it. *Guard*: numbers are
//!   given out once (`CATALOG-4`); who revives one read it in the history of the same store, and it
//!   is below the store's counter.

use crate::engine::{EngineHistory, lock};
use crate::view::node::Node;
use crate::write::Undo;
use crate::write::guard::WriteGuard;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{AttrMask, InodeRow};
use larder_space::format::{FileKind, StoreId};
use std::sync::Arc;

impl EngineHistory<'_> {
    /// [`ErrorKind::Busy`] while a long transaction is open: it would meet a past that it did not
    /// begin with. 3 µs.
    pub fn refuse_beside_long_transactions(&self) -> Result<()> {
        match self.catalog.workspace()?.oldest_transaction_pin()? {
            None => Ok(()),
            Some(_) => Err(Error::new(
                ErrorKind::Busy,
                "a long transaction is open; commit or abort it first ('larder txn list' shows it)",
            )),
        }
    }
}

impl WriteGuard<'_> {
    /// Makes an inode again that the store had, under its number (`ROLLBACK-1`), with the
    /// attributes of `row` and, a symbolic link, its target; it has no name yet
    /// ([`WriteGuard::set_entry`]) and a file no content, whatever `row` says. What has lost its
    /// last name and is still open somewhere is this inode itself, with the content that it has
    /// now.
    pub fn revive(
        &self,
        store: StoreId,
        row: &InodeRow,
        target: Option<&[u8]>,
    ) -> Result<Arc<Node>> {
        let engine = self.engine();
        if engine.catalog.tables().inode(store, row.ino)?.is_some() {
            return self.adopt(store, row);
        }
        if row.ino >= engine.catalog.stores().next_ino(store)? {
            return Err(Error::new(
                ErrorKind::Corrupt,
                format!(
                    "the history of store {store} has inode {}, which was never given out \
                     (ROLLBACK-1); run 'larder check'",
                    row.ino
                ),
            ));
        }
        let mut row = row.clone();
        row.block_count = 0;
        if row.kind == FileKind::File {
            row.size_bytes = 0;
        }
        self.step("revive")?;
        // What is left in memory of the one that was deleted.
        engine.cache.remove(store, row.ino);
        if !std::mem::replace(&mut lock(&engine.group).has_revived, true) {
            self.push_undo(Undo::Revived);
        }
        let node = Arc::new(Node::new(store, row, true));
        let mut state = node.lock();
        state.target = target.map(<[u8]>::to_vec);
        self.remember_new(&node, &state);
        self.mark_dirty(&node, &mut state);
        drop(state);
        Ok(engine.cache.insert(node))
    }

    /// Takes an inode without a name back among those that have one.
    fn adopt(&self, store: StoreId, row: &InodeRow) -> Result<Arc<Node>> {
        let node = self.node(store, row.ino)?;
        let mut state = self.engine().lock_node(&node)?;
        self.step("adopt")?;
        self.remember(&node, &state);
        (state.is_anonymous, state.is_linkable) = (false, false);
        state.row.nlink = row.nlink;
        state.mask.nlink = true;
        self.adopt_orphan((store, row.ino));
        self.mark_dirty(&node, &mut state);
        drop(state);
        Ok(node)
    }

    /// Makes the attributes of a node those of `row`, but length and blocks, which go with the
    /// content.
    pub fn set_row(&self, node: &Arc<Node>, row: &InodeRow) -> Result<()> {
        let mask = AttrMask {
            mode: true,
            owner: true,
            nlink: true,
            size: false,
            atime: true,
            mtime: true,
            ctime: true,
            flags: true,
        };
        self.update(node, mask, |is| {
            (is.mode, is.uid, is.gid, is.nlink) = (row.mode, row.uid, row.gid, row.nlink);
            is.rdev = row.rdev;
            (is.atime_ns, is.mtime_ns, is.ctime_ns) = (row.atime_ns, row.mtime_ns, row.ctime_ns);
        })
        .map(drop)
    }

    /// Lets an inode go, however many names it had, the entries of which are gone: at once, or when
    /// the last handle closes (`CONTENT-4`).
    pub fn let_go(&self, node: &Arc<Node>) -> Result<()> {
        {
            let mut state = self.engine().lock_node(node)?;
            self.remember(node, &state);
            if state.row.kind != FileKind::Directory {
                state.row.nlink = 1;
            }
        }
        self.drop_name(node)
    }
}
