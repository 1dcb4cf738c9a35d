//! The pages of lists of pieces: global rows by store, inode and page.

use crate::Catalog;
use crate::changes::ChangeSet;
use crate::codec::{signed, unsigned};
use crate::commit::Stores;
use crate::error::{At, Result};
use crate::read::{row_limit, rows};
use crate::rows::FileContent;
use larder_format::{Ino, StoreId};
use rusqlite::{Connection, OptionalExtension, params};

const TABLE: &str = "larder_piece";
const REMOVE_ALL: &str = "DELETE FROM larder_piece WHERE store = ?1 AND ino = ?2";

impl Catalog {
    /// What stands beside the extent map of a regular file, at one moment. One statement, so that
    /// opening a file costs no second one.
    pub fn file_content(&self, store: StoreId, ino: Ino) -> Result<FileContent> {
        let sql = self.store_sql(store)?;
        self.read(|reader| {
            reader
                .prepare_cached(&sql.file_content)
                .and_then(|mut find| {
                    find.query_row(params![signed(ino.0), sql.table_store.0], |row| {
                        Ok(FileContent {
                            inline: row.get(0)?,
                            piece_root: row.get(1)?,
                        })
                    })
                })
                .at(&sql.table_content)
        })
    }

    /// One encoded page of the list of pieces of an inode; page 0 is the root.
    pub fn piece_page(&self, store: StoreId, ino: Ino, page: u64) -> Result<Option<Vec<u8>>> {
        let owner = self.store_sql(store)?.table_store;
        self.read(|reader| {
            let sql =
                "SELECT entries FROM larder_piece WHERE store = ?1 AND ino = ?2 AND page = ?3";
            reader
                .prepare_cached(sql)
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
        let owner = self.store_sql(store)?.table_store;
        let key = params![owner.0, signed(ino.0), signed(from_page), row_limit(limit)];
        self.read(|reader| {
            let sql = "SELECT page, entries FROM larder_piece \
                       WHERE store = ?1 AND ino = ?2 AND page >= ?3 ORDER BY page LIMIT ?4";
            rows(reader, sql, key, |row| Ok((unsigned(row, 0)?, row.get(1)?))).at(TABLE)
        })
    }
}

/// Applies the changes of lists: whole lists that go, then pages.
pub(crate) fn apply(txn: &Connection, stores: &Stores, changes: &ChangeSet) -> Result<()> {
    for (store, ino) in &changes.piece_drops {
        remove_all(txn, stores[store].table_store, *ino)?;
    }
    if changes.piece_pages.is_empty() {
        return Ok(());
    }
    let mut set = txn
        .prepare_cached(
            "INSERT INTO larder_piece (store, ino, page, entries) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (store, ino, page) DO UPDATE SET entries = excluded.entries",
        )
        .at(TABLE)?;
    let mut remove = txn
        .prepare_cached("DELETE FROM larder_piece WHERE store = ?1 AND ino = ?2 AND page = ?3")
        .at(TABLE)?;
    for (store, ino, page, entries) in &changes.piece_pages {
        let (store, ino, page) = (stores[store].table_store.0, signed(ino.0), signed(*page));
        match entries {
            Some(entries) => set.execute(params![store, ino, page, entries]),
            None => remove.execute(params![store, ino, page]),
        }
        .at(TABLE)?;
    }
    Ok(())
}

/// Removes the list of one inode.
pub(crate) fn remove_all(txn: &Connection, owner: StoreId, ino: Ino) -> Result<()> {
    txn.prepare_cached(REMOVE_ALL)
        .and_then(|mut remove| remove.execute(params![owner.0, signed(ino.0)]))
        .at(TABLE)
        .map(drop)
}
