//! Looking at names and attributes, in memory in front of the catalog.

use crate::view::ViewLookup;
use crate::view::node::require_directory;
use crate::view::node::{Node, NodeState};
use crate::{Error, ErrorKind, Result};
use larder_catalog::{ContentRow, InodeRow};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{FileKind, Ino, Name, StoreId};
use std::sync::Arc;

impl ViewLookup<'_> {
    pub(crate) fn node(&self, store: StoreId, ino: Ino) -> Result<Arc<Node>> {
        if let Some(node) = self.cache.find(store, ino) {
            return Ok(node);
        }
        let epoch = self.foreign.epoch();
        let row = self.catalog.tables().inode(store, ino)?.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("inode {ino} of store {store} does not exist"),
            )
        })?;
        // Another reader may have been faster; its node is the one that counts.
        Ok(self
            .foreign()
            .remember(Arc::new(Node::new(store, row, false)), epoch))
    }

    /// The caller holds the namespace lock (`CACHE-1`).
    pub(crate) fn find_entry(&self, dir: &Node, name: &Name) -> Result<Option<Ino>> {
        if let Some(known) = self.cache.find_name(dir, name.as_bytes()) {
            if known.is_none() && self.read_set().is_some() {
                // PRIVATE-5: names are compared one by one, also those that a directory made here
                // has not.
                self.cache.set_name(dir, name, None);
            }
            return Ok(known);
        }
        {
            let state = self.lock_node(dir)?;
            require_directory(&state)?;
            if let Some(delta) = state.entries.get(name) {
                return Ok(delta.target.map(|(ino, _)| ino));
            }
            if state.is_fresh {
                return Ok(None);
            }
        }
        let ino = self.catalog.tables().dirent(dir.store, dir.ino, name)?;
        self.cache.set_name(dir, name, ino);
        Ok(ino)
    }

    pub(crate) fn target(&self, node: &Node) -> Result<Vec<u8>> {
        let mut state = self.lock_node(node)?;
        if state.row.kind != FileKind::Symlink {
            return Err(Error::new(ErrorKind::InvalidInput, "not a symbolic link"));
        }
        if state.target.is_none() {
            state.target = match self.catalog.tables().content(node.store, node.ino)? {
                Some(ContentRow::Target(target)) => Some(target),
                Some(ContentRow::Inline(_)) | None => {
                    return Err(Error::new(
                        ErrorKind::Corrupt,
                        format!(
                            "symbolic link {} of store {} has no target; run 'larder check'",
                            node.ino, node.store
                        ),
                    ));
                }
            };
        }
        Ok(state.target.clone().unwrap_or_default())
    }

    pub(crate) fn load_xattrs(&self, node: &Node, state: &mut NodeState) -> Result<()> {
        if state.xattrs.is_none() {
            state.xattrs = Some(
                self.catalog
                    .tables()
                    .xattrs(node.store, node.ino)?
                    .into_iter()
                    .collect(),
            );
        }
        Ok(())
    }

    /// The attributes as they are now; `block_count` counts dirty blocks too.
    pub fn row(&self, node: &Node) -> Result<InodeRow> {
        let state = self.lock_node(node)?;
        let mut row = state.row.clone();
        let frozen = state
            .content
            .frozen
            .as_ref()
            .map_or(0, |frozen| frozen.block_count());
        let dirty = state.content.gather.block_count() + frozen;
        if dirty > 0 {
            row.block_count = (row.block_count + dirty)
                .min(row.size_bytes.div_ceil(BLOCK_BYTES))
                .max(row.block_count);
        }
        Ok(row)
    }

    /// The parent of a directory.
    pub(crate) fn parent_of(&self, dir: &Node) -> Result<Ino> {
        if dir.ino == Ino::ROOT {
            return Ok(Ino::ROOT);
        }
        if let Some(parent) = self.lock_node(dir)?.parent {
            return Ok(parent);
        }
        let parents = self.catalog.tables().parents(dir.store, dir.ino)?;
        parents.first().map(|(parent, _)| *parent).ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("directory {} of store {} was removed", dir.ino, dir.store),
            )
        })
    }
}
