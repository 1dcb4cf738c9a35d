//! Inodes, names, content and maps of a catalog in memory.

use super::state::{page_of, pages_from, rank, redo_block_count};
use super::{MemoryMaps, MemoryTables};
use crate::{
    CatalogError, ContentRow, DatabaseInfo, DirentRow, FileContent, InodeRow, RedoRow, Result,
};
use larder_format::{CommitSeq, Ino, Name, StoreId};

impl MemoryTables<'_> {
    /// Facts of the whole database.
    pub fn info(&self) -> Result<DatabaseInfo> {
        self.0.read(|state| Ok(state.info.clone()))
    }

    /// The newest committed group.
    pub fn commit_seq(&self) -> Result<CommitSeq> {
        self.0.read(|state| Ok(state.info.commit_seq))
    }

    /// Changes whenever a store with tables of its own comes or goes.
    pub fn schema_version(&self) -> Result<i64> {
        self.0.read(|state| Ok(state.schema_version))
    }

    /// The attributes of an inode.
    pub fn inode(&self, store: StoreId, ino: Ino) -> Result<Option<InodeRow>> {
        self.0.read_tables(store, |tables| {
            tables.inodes.get(&ino).map(|inode| inode.row.clone())
        })
    }

    /// The commit that wrote the inode's row. `None` when there is no such inode.
    pub fn inode_since(&self, store: StoreId, ino: Ino) -> Result<Option<CommitSeq>> {
        self.0.read_tables(store, |tables| {
            tables.inodes.get(&ino).map(|inode| inode.since)
        })
    }

    /// What `name` names in directory `parent`.
    pub fn dirent(&self, store: StoreId, parent: Ino, name: &Name) -> Result<Option<Ino>> {
        self.0.read_tables(store, |tables| {
            let names = tables.dirents.get(&parent)?;
            names.get(&(rank(name.as_bytes()), name.clone())).copied()
        })
    }

    /// At most `limit` entries of `parent` after the name `after`, in the order of
    /// [`crate::dirent_order`]. One that names no inode is [`CatalogError::Corrupt`].
    pub fn dirents(
        &self,
        store: StoreId,
        parent: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<DirentRow>> {
        let rows = self.dirents_with_rows(store, parent, after, limit)?;
        let dirent = |(name, row): (Name, InodeRow)| DirentRow {
            name,
            ino: row.ino,
            kind: row.kind,
        };
        Ok(rows.into_iter().map(dirent).collect())
    }

    /// The same with the attributes of what the entries name.
    pub fn dirents_with_rows(
        &self,
        store: StoreId,
        parent: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, InodeRow)>> {
        self.0.read(|state| {
            let tables = state.tables_of(store)?;
            let page = tables.dirents_after(parent, after).take(limit);
            page.map(|(name, ino)| match tables.inodes.get(&ino) {
                Some(inode) => Ok((name.clone(), inode.row.clone())),
                None => Err(CatalogError::corrupt(format!(
                    "store {store}: '{name}' in directory {parent} names inode {ino}, which does \
                     not exist"
                ))),
            })
            .collect()
        })
    }

    /// Refuses a directory with two names, and a root with one (`SAFE-8`).
    pub fn require_one_name(&self, store: StoreId, directory: Ino) -> Result<()> {
        let names_max = usize::from(directory != Ino::ROOT);
        match self.parents(store, directory)?.len() > names_max {
            false => Ok(()),
            true => Err(CatalogError::corrupt(format!(
                "store {store}: directory {directory} has more names than {names_max}, and may \
                 lie in itself (SAFE-8)"
            ))),
        }
    }

    /// All names of an inode, with their directories.
    pub fn parents(&self, store: StoreId, ino: Ino) -> Result<Vec<(Ino, Name)>> {
        self.0.read_tables(store, |tables| {
            let names = tables.names_of(ino);
            names.map(|(parent, name)| (parent, name.clone())).collect()
        })
    }

    /// Inline content or link target of an inode.
    pub fn content(&self, store: StoreId, ino: Ino) -> Result<Option<ContentRow>> {
        self.0
            .read_tables(store, |tables| tables.contents.get(&ino).cloned())
    }

    /// The encoded map page `page` of an inode; `None` when nothing in it is mapped.
    pub fn map_page(&self, store: StoreId, ino: Ino, page: u64) -> Result<Option<Vec<u8>>> {
        self.0
            .read_tables(store, |tables| page_of(&tables.maps, ino, page))
    }

    /// At most `limit` encoded map pages of an inode with index ≥ `from_page`, in order.
    pub fn map_pages(
        &self,
        store: StoreId,
        ino: Ino,
        from_page: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        self.0.read_tables(store, |tables| {
            pages_from(&tables.maps, ino, from_page, limit)
        })
    }

    /// The extended attributes of an inode, `(name, value)`, UTF-8 names first, by bytes.
    pub fn xattrs(&self, store: StoreId, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.0.read_tables(store, |tables| {
            let xattrs = tables.xattrs.get(&ino).into_iter().flatten();
            xattrs
                .map(|((_, name), value)| (name.clone(), value.clone()))
                .collect()
        })
    }
}

impl MemoryMaps<'_> {
    /// The redo rows of an object, oldest first.
    pub fn redo_rows(&self, store: StoreId, ino: Ino) -> Result<Vec<RedoRow>> {
        self.0.read_tables(store, |tables| {
            tables.redo_rows.get(&ino).cloned().unwrap_or_default()
        })
    }

    /// The objects that have redo rows.
    pub fn objects_with_redo_rows(&self) -> Result<Vec<(StoreId, Ino)>> {
        self.0.read(|state| {
            let all = state.tables.iter().flat_map(|(owner, tables)| {
                let objects = tables.redo_rows.iter().filter(|(_, rows)| !rows.is_empty());
                objects.map(|(ino, _)| (*owner, *ino))
            });
            Ok(all.collect())
        })
    }

    /// Blocks in all redo rows, those that newer rows replace included.
    pub fn redo_blocks(&self) -> Result<u64> {
        self.0.read(|state| {
            let tables = state.tables.values();
            let rows = tables.flat_map(|tables| tables.redo_rows.values().flatten());
            Ok(rows.map(redo_block_count).sum())
        })
    }

    /// What stands beside the extent map of a regular file.
    pub fn file_content(&self, store: StoreId, ino: Ino) -> Result<FileContent> {
        self.0.read_tables(store, |tables| FileContent {
            inline: match tables.contents.get(&ino) {
                Some(ContentRow::Inline(bytes)) => Some(bytes.clone()),
                Some(ContentRow::Target(_)) | None => None,
            },
            piece_root: page_of(&tables.pieces, ino, 0),
        })
    }

    /// Whether any inode has a list of pieces.
    pub fn has_pieces(&self) -> Result<bool> {
        self.0.read(|state| {
            let mut lists = state.tables.values().flat_map(|tables| &tables.pieces);
            Ok(lists.any(|(_, pages)| !pages.is_empty()))
        })
    }

    /// One encoded page of the list of pieces of an inode; page 0 is the root.
    pub fn piece_page(&self, store: StoreId, ino: Ino, page: u64) -> Result<Option<Vec<u8>>> {
        self.0
            .read_tables(store, |tables| page_of(&tables.pieces, ino, page))
    }

    /// At most `limit` encoded pages of the list of an inode with number ≥ `from_page`, in order.
    pub fn piece_pages(
        &self,
        store: StoreId,
        ino: Ino,
        from_page: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        self.0.read_tables(store, |tables| {
            pages_from(&tables.pieces, ino, from_page, limit)
        })
    }
}
