//! What a transaction has read that is in no inode's row (`PRIVATE-5`).

use crate::Result;
use crate::engine::lock;
use crate::view::{ReadSet, Shown, View};
use larder_space::format::{Ino, StoreId};
use std::collections::HashMap;
use std::sync::atomic::Ordering;

impl ReadSet {
    /// Whether rows were read by SQL.
    pub fn has_rows(&self) -> bool {
        self.has_rows.load(Ordering::SeqCst)
    }

    /// The columns of stores, as they were read.
    pub fn columns(&self) -> HashMap<StoreId, Vec<String>> {
        lock(&self.columns).clone()
    }

    /// Another transaction begins.
    pub fn clear(&self) {
        self.has_rows.store(false, Ordering::SeqCst);
        lock(&self.columns).clear();
    }
}

impl View {
    /// What the transaction has read whose snapshot this shows.
    pub(crate) fn read_set(&self) -> Option<&ReadSet> {
        match &self.moment {
            Shown::Snapshot(read) => Some(read),
            Shown::Present | Shown::Past(_) => None,
        }
    }

    /// A row was read that no inode's time of change tells of.
    pub(crate) fn note_rows_read(&self) {
        if let Some(read) = self.read_set() {
            read.has_rows.store(true, Ordering::SeqCst);
        }
    }

    /// The user columns of a store.
    pub fn user_columns(&self, store: StoreId) -> Result<Vec<String>> {
        let columns = self.catalog.temporal()?.user_columns(store)?;
        if let Some(read) = self.read_set() {
            let mut known = lock(&read.columns);
            known.entry(store).or_insert_with(|| columns.clone());
        }
        Ok(columns)
    }

    /// The value of a user column, as text or bytes; `None` for NULL.
    pub fn user_column(&self, store: StoreId, ino: Ino, column: &str) -> Result<Option<Vec<u8>>> {
        self.note_rows_read();
        Ok(self.catalog.temporal()?.user_column(store, ino, column)?)
    }
}
