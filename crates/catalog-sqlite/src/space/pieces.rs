//! The pages of lists of pieces: global rows by store, inode and page.

use crate::CatalogMaps;
use crate::error::{At, Result};
use crate::types::codec::{bound, require_checksum, row_limit, rows, signed, unsigned};
use crate::types::rows::FileContent;
use larder_format::{Ino, StoreId};
use rusqlite::{Connection, OptionalExtension, params};

const TABLE: &str = "larder_piece";

impl CatalogMaps<'_> {
    /// What stands beside the extent map of a regular file, at one moment; damage is
    /// [`CatalogError::Corrupt`](crate::CatalogError::Corrupt). One statement, so that opening a
    /// file costs no second one.
    pub fn file_content(&self, store: StoreId, ino: Ino) -> Result<FileContent> {
        let sql = self.catalog.store_sql(store)?;
        let read = |reader: &Connection| -> rusqlite::Result<(FileContent, Option<i64>)> {
            let mut find = reader.prepare_cached(&sql.file_content)?;
            let mut rows = find.query(params![signed(ino.0), sql.table_store.0])?;
            let (mut content, mut checksum) = (FileContent::default(), None);
            // One that has inline content, one that is the root of a list; none: it has neither.
            while let Some(row) = rows.next()? {
                if let Some(inline) = row.get(0)? {
                    content.inline = Some(inline);
                    checksum = row.get(2)?;
                }
                content.piece_root = row.get::<_, Option<_>>(1)?.or(content.piece_root);
            }
            Ok((content, checksum))
        };
        let found = (self.catalog).read(|reader| read(reader).at(&sql.table_content));
        let (content, checksum) = found?;
        if let Some(inline) = &content.inline {
            let what = || format!("{}: that of inode {ino}", sql.table_content);
            require_checksum(what, checksum, &[inline])?;
        }
        Ok(content)
    }

    /// Whether any inode has a list of pieces.
    pub fn has_pieces(&self) -> Result<bool> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached("SELECT 1 FROM larder_piece")
                .and_then(|mut find| find.exists([]))
                .at(TABLE)
        })
    }

    /// One encoded page of the list of pieces of an inode; page 0 is the root.
    pub fn piece_page(&self, store: StoreId, ino: Ino, page: u64) -> Result<Option<Vec<u8>>> {
        let sql = self.catalog.store_sql(store)?;
        let owner = sql.table_store;
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&sql.piece_page)
                .and_then(|mut find| {
                    find.query_row(params![owner.0, signed(ino.0), signed(page)], |row| {
                        row.get(0)
                    })
                    .optional()
                })
                .at(TABLE)
        })
    }

    /// At most `limit` encoded pages of the list of an inode with number ≥ `from_page`, in order.
    pub fn piece_pages(
        &self,
        store: StoreId,
        ino: Ino,
        from_page: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let sql = self.catalog.store_sql(store)?;
        let owner = sql.table_store;
        let key = params![owner.0, signed(ino.0), bound(from_page), row_limit(limit)];
        self.catalog.read(|reader| {
            rows(reader, &sql.piece_pages, key, |row| {
                Ok((unsigned(row, 0)?, row.get(1)?))
            })
            .at(TABLE)
        })
    }
}
