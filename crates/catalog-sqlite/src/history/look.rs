//! What a catalog tells of its history.

use super::{SupersededMap, TABLE, find_moment, held, history_begins};
use crate::CatalogHistory;
use crate::error::{At, Result};
use crate::space::map_pages;
use crate::types::codec::unsigned;
use larder_format::{CommitSeq, Ino, StoreId};
use rusqlite::params;

impl CatalogHistory<'_> {
    /// The newest whole commit at or before a time, of those whose state can be read; `None` if
    /// even the oldest of them is newer. O(log commits).
    pub fn find_moment(&self, at_ns: i64) -> Result<Option<(CommitSeq, i64)>> {
        self.catalog.read(|reader| find_moment(reader, at_ns))
    }

    /// The oldest commit that a snapshot or a reader of the past needs. 3 µs.
    pub fn oldest_held(&self) -> Result<Option<CommitSeq>> {
        self.catalog.read(held)
    }

    /// At most `limit` superseded pages of extent maps behind the row `after` (0: from the start),
    /// with the number of their row, for `check`.
    pub fn superseded_maps(&self, after: i64, limit: usize) -> Result<Vec<SupersededMap>> {
        self.catalog.read(|reader| {
            let row = |row: &rusqlite::Row<'_>| {
                Ok(SupersededMap {
                    row: row.get(0)?,
                    store: StoreId(row.get(1)?),
                    ino: Ino(unsigned(row, 2)?),
                    page: unsigned(row, 3)?,
                    runs: row.get(4)?,
                    until: CommitSeq(unsigned(row, 5)?),
                })
            };
            reader
                .prepare_cached(&format!(
                    "SELECT id, store, ino, key, {}, until_seq FROM larder_history \
                         WHERE what = 'map' AND id > ?1 ORDER BY id LIMIT ?2",
                    map_pages::resolved("main", "value")
                ))
                .and_then(|mut list| list.query_map(params![after, limit as i64], row)?.collect())
                .at(TABLE)
        })
    }

    /// The oldest commit whose state can be read, and its time.
    pub fn history_begins(&self) -> Result<(CommitSeq, i64)> {
        self.catalog.read(history_begins)
    }
}
