//! What a catalog does with temporal tables.

use super::active::{TABLE, active, end};
use super::columns::StoreColumns;
use super::row_states::PastRows;
use super::{Kept, TemporalTable, begin, find_table, past_rows};
use crate::CatalogTemporal;
use crate::conn::meta::find_meta;
use crate::error::{At, CatalogError, Result, no_history};
use crate::types::codec::signed;
use larder_format::{CommitSeq, StoreId};

impl CatalogTemporal<'_> {
    /// Makes a table of the user's temporal, or the user's columns of a store's table, or lets it
    /// go: what is kept of it then stays until the horizon passes. Twice is no error.
    /// [`CatalogError::Invalid`] for another table of ours, a view, one with a unique index over
    /// expressions, and where there is no history.
    pub fn track_table(&self, table: &str, is_tracked: bool) -> Result<()> {
        self.catalog.write(|txn| {
            if find_meta(txn, "retention_ns")? <= 0 {
                return Err(no_history());
            }
            let (name, store) = find_table(txn, table)?;
            let known = active(txn)?.into_iter().find(|one| one.name == name);
            let seq = find_meta(txn, "commit_seq")?;
            match (known, is_tracked) {
                (Some(_), true) => return Ok(()),
                (None, true) => {}
                (Some(one), false) => {
                    match one.kept(txn)? {
                        Kept::Rows(shape) => shape.drop_triggers(txn)?,
                        Kept::Columns(columns) => columns.drop(txn)?,
                    }
                    return end(txn, one.id, seq);
                }
                (None, false) => {
                    return Err(CatalogError::not_found(format!("tracked table '{table}'")));
                }
            }
            match begin(txn, &name, store, seq)?.kept(txn)? {
                Kept::Rows(shape) => {
                    shape.require_seen()?;
                    shape.make_triggers(txn)
                }
                Kept::Columns(columns) => columns.make(txn),
            }
        })
    }

    /// The temporal tables, by name.
    pub fn temporal_tables(&self) -> Result<Vec<TemporalTable>> {
        self.catalog.read(|reader| {
            let mut found: Vec<TemporalTable> = active(reader)?
                .into_iter()
                .map(|one| TemporalTable {
                    id: one.id,
                    name: one.name,
                    since: one.since,
                    store: one.store,
                })
                .collect();
            found.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(found)
        })
    }

    /// How to read the user's columns of a store's files as of commit `seq`, or of what plain SQL
    /// did after it up to the time `at_ns`, and to bring them back; the caller makes sure that the
    /// state is kept. `None`: they are not kept since then, or there are none. 1 µs where nothing
    /// is tracked, else about 100 µs.
    pub fn past_columns(
        &self,
        store: StoreId,
        seq: CommitSeq,
        at_ns: i64,
    ) -> Result<Option<StoreColumns>> {
        let owner = self.catalog.store_sql(store)?.table_store;
        self.catalog
            .read(|reader| StoreColumns::find(reader, owner, (seq, at_ns)))
    }

    /// The same of the user's columns as they are now; `None`: there are none. About 50 µs.
    pub fn present_columns(&self, store: StoreId) -> Result<Option<StoreColumns>> {
        let sql = self.catalog.store_sql(store)?;
        self.catalog
            .read(|reader| StoreColumns::of_present(reader, &sql.table, sql.table_store))
    }

    /// How to read a temporal table as of commit `seq`, or of what plain SQL did after it up to the
    /// time `at_ns`; the caller makes sure that the state is kept. [`CatalogError::NotFound`]: no
    /// such table; [`CatalogError::Invalid`] when it was not tracked then.
    pub fn past_rows(&self, table: &str, seq: CommitSeq, at_ns: i64) -> Result<PastRows> {
        self.catalog
            .read(|reader| past_rows(reader, table, seq, at_ns))
    }

    /// The newest row of the history, for [`CatalogTemporal::mark_restored`].
    pub fn newest_record(&self) -> Result<i64> {
        self.catalog.read(|reader| {
            reader
                .query_row(
                    "SELECT coalesce(max(id), 0) FROM larder_history",
                    [],
                    |row| row.get(0),
                )
                .at(TABLE)
        })
    }

    /// Notes that a restore made the records of a table that are newer than `after`: what has these
    /// numbers now is what had them (`TEMPORAL-3`). In the transaction that restores.
    pub fn mark_restored(&self, rows: &PastRows, after: i64) -> Result<()> {
        self.catalog.write(|txn| {
            txn.execute(
                "UPDATE larder_history SET kind = 'restored', since_seq = ?3 \
                 WHERE id > ?1 AND what = 'row' AND ino = ?2",
                [after, rows.id, signed(rows.seq.0)],
            )
            .at(TABLE)
            .map(drop)
        })
    }
}
