//! Reading the files of one store, of the present or the past.

use crate::files::require::{absent, require_file, require_kind};
use crate::handle::PastHandle;
use crate::provider::{FileHandle, StoreProvider};
use crate::types::{DirEntry, Metadata, NodeId};
use crate::xattr::XattrReader;
use larder_object::format::{FileKind, Ino, Name, StoreId};
use larder_object::{AlignedBuf, AsOf, InodeRow, Result, View};
use std::ops::Deref;
use std::sync::Arc;

/// Reads one store's table.
pub(crate) struct FilesReader<V> {
    pub(crate) view: Arc<V>,
    pub(crate) store: StoreId,
    pub(crate) table: StoreId,
    xattrs: XattrReader<V>,
}

impl<V: Deref<Target = View>> FilesReader<V> {
    pub(crate) fn new(view: Arc<V>, store: StoreId, table: StoreId) -> FilesReader<V> {
        FilesReader {
            xattrs: XattrReader::new(Arc::clone(&view), table),
            view,
            store,
            table,
        }
    }

    pub(crate) fn attr_of(&self, row: InodeRow) -> Metadata {
        Metadata::of(self.store, row)
    }

    pub(crate) fn lookup(&self, parent: Ino, name: &Name) -> Result<Metadata> {
        let look = self.view.lookup().begin();
        let dir = look.node(self.table, parent)?;
        let ino = look.find_entry(&dir, name)?.ok_or_else(|| absent(name))?;
        Ok(self.attr_of(look.row(&*look.node(self.table, ino)?)?))
    }

    pub(crate) fn descend(&self, from: Ino, names: &[Name]) -> Result<(Metadata, usize)> {
        let look = self.view.lookup().begin();
        let mut node = look.node(self.table, from)?;
        for (index, name) in names.iter().enumerate() {
            let ino = look.find_entry(&node, name)?.ok_or_else(|| absent(name))?;
            node = look.node(self.table, ino)?;
            if index + 1 == names.len() || node.kind() != FileKind::Directory {
                return Ok((self.attr_of(look.row(&node)?), index + 1));
            }
        }
        Ok((self.attr_of(look.row(&node)?), names.len()))
    }

    pub(crate) fn metadata(&self, ino: Ino) -> Result<Metadata> {
        let look = self.view.lookup().begin();
        Ok(self.attr_of(look.row(&*look.node(self.table, ino)?)?))
    }

    pub(crate) fn read_dir(
        &self,
        ino: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        let look = self.view.lookup().begin();
        let dir = look.node(self.table, ino)?;
        let rows = look.list(&dir, after, limit)?;
        let entry = |row: larder_object::DirentRow| DirEntry {
            name: row.name,
            node: NodeId {
                store: self.store,
                ino: row.ino,
            },
            kind: row.kind,
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    pub(crate) fn read_dir_plus(
        &self,
        ino: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Metadata)>> {
        let look = self.view.lookup().begin();
        let dir = look.node(self.table, ino)?;
        let rows = look.list_with_rows(&dir, after, limit)?;
        let entry = |(name, row): (Name, InodeRow)| {
            let attr = self.attr_of(row);
            let entry = DirEntry {
                name,
                node: attr.node,
                kind: attr.kind,
            };
            (entry, attr)
        };
        Ok(rows.into_iter().map(entry).collect())
    }

    pub(crate) fn parent(&self, ino: Ino) -> Result<Ino> {
        let look = self.view.lookup().begin();
        look.parent(&*look.node(self.table, ino)?)
    }

    pub(crate) fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        let look = self.view.lookup().begin();
        look.target(&*look.node(self.table, ino)?)
    }

    pub(crate) fn read_whole(&self, ino: Ino, buffer: &mut AlignedBuf) -> Result<()> {
        let node = self.view.lookup().begin().node(self.table, ino)?;
        require_kind(node.kind())?;
        self.view.read_whole(&node, buffer)
    }

    pub(crate) fn read_named(
        &self,
        from: Ino,
        names: &[&[u8]],
        buffer: &mut AlignedBuf,
    ) -> Result<bool> {
        let node = {
            let look = self.view.lookup().begin();
            let mut node = look.node(self.table, from)?;
            for name in names {
                // Only what is in memory: the other way can do all the rest.
                let Some(Some(ino)) = look.known_entry(&node, name) else {
                    return Ok(false);
                };
                node = look.node(self.table, ino)?;
            }
            node
        };
        if node.kind() != FileKind::File {
            return Ok(false);
        }
        self.view.read_whole(&node, buffer)?;
        Ok(true)
    }

    pub(crate) fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.xattrs.names(ino)
    }

    pub(crate) fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.xattrs.value(ino, name)
    }
}

/// The past can only be read.
impl StoreProvider for FilesReader<AsOf> {
    fn lookup(&self, parent: Ino, name: &Name) -> Result<Metadata> {
        FilesReader::lookup(self, parent, name)
    }

    fn descend(&self, from: Ino, names: &[Name]) -> Result<(Metadata, usize)> {
        FilesReader::descend(self, from, names)
    }

    fn metadata(&self, ino: Ino) -> Result<Metadata> {
        FilesReader::metadata(self, ino)
    }

    fn read_dir(&self, ino: Ino, after: Option<&Name>, limit: usize) -> Result<Vec<DirEntry>> {
        FilesReader::read_dir(self, ino, after, limit)
    }

    fn read_dir_plus(
        &self,
        ino: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Metadata)>> {
        FilesReader::read_dir_plus(self, ino, after, limit)
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        FilesReader::parent(self, ino)
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        FilesReader::read_link(self, ino)
    }

    fn read_whole(&self, ino: Ino, buffer: &mut AlignedBuf) -> Result<()> {
        FilesReader::read_whole(self, ino, buffer)
    }

    fn read_named(&self, from: Ino, names: &[&[u8]], buffer: &mut AlignedBuf) -> Result<bool> {
        FilesReader::read_named(self, from, names, buffer)
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        FilesReader::xattrs(self, ino)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        FilesReader::xattr(self, ino, name)
    }

    fn open(&self, ino: Ino, write: bool) -> Result<Box<dyn FileHandle>> {
        if write {
            return crate::provider::refuse();
        }
        let look = self.view.lookup().begin();
        let node = look.node(self.table, ino)?;
        require_file(&look.row(&node)?)?;
        drop(look);
        let past = Arc::clone(&self.view);
        Ok(Box::new(PastHandle::new(past, self.store, node)))
    }
}
