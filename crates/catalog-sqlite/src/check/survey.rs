//! Reading everything: for `check`, `frag` and `df`.

use crate::CatalogSurvey;
use crate::error::{At, Result};
use crate::schema::read::inode_row;
use crate::space::map_pages::TABLE;
use crate::types::codec::{signed, unsigned};
use crate::types::names::shown;
use crate::types::rows::{InodeRow, SharedPages};
use larder_format::{CommitSeq, Ino, StoreId};
use rusqlite::{Params, params};

impl CatalogSurvey<'_> {
    /// At most `limit` inodes after `after`, in order. Cost ≈ 1 µs each.
    pub fn inodes(
        &self,
        store: StoreId,
        after: Option<Ino>,
        limit: usize,
    ) -> Result<Vec<InodeRow>> {
        let sql = self.catalog.store_sql(store)?;
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&sql.inodes)
                .and_then(|mut find| {
                    let after = after.map_or(i64::MIN, |ino| signed(ino.0));
                    let rows = find.query_map(params![after, limit as i64], inode_row)?;
                    rows.collect()
                })
                .at(&sql.table)
        })
    }

    /// Number of inodes of a store. Cost: a scan of the smallest index.
    pub fn inode_count(&self, store: StoreId) -> Result<u64> {
        let sql = self.catalog.store_sql(store)?;
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&sql.inode_count)
                .and_then(|mut count| count.query_row([], |row| unsigned(row, 0)))
                .at(&sql.table)
        })
    }

    /// Blocks in live extents, and in retired ones. Cost: a scan of the extent rows.
    pub fn extent_totals(&self) -> Result<(u64, u64)> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached(
                    "SELECT coalesce(sum(block_count) FILTER (WHERE retired_seq IS NULL), 0), \
                     coalesce(sum(block_count) FILTER (WHERE retired_seq IS NOT NULL), 0) FROM \
                     larder_extent",
                )
                .and_then(|mut sum| {
                    sum.query_row([], |row| Ok((unsigned(row, 0)?, unsigned(row, 1)?)))
                })
                .at("larder_extent")
        })
    }
}

impl CatalogSurvey<'_> {
    /// The user's triggers and views, for people: what each is, and its table.
    pub fn users_code(&self) -> Result<Vec<String>> {
        self.catalog.read(|reader| {
            let version = crate::schema::version(reader)?;
            let found =
                crate::guards::audit::require(reader, version, crate::conn::trust::Code::Trusted)?;
            let told = found.users.iter().map(|(kind, name, table)| match &**kind {
                "trigger" => format!("trigger {} on {table}", shown(name)),
                _ => format!("{kind} {}", shown(name)),
            });
            Ok(told.collect())
        })
    }
}

impl CatalogSurvey<'_> {
    /// All shared pages. Reads the lengths of all of them.
    pub fn shared_pages(&self) -> Result<SharedPages> {
        self.count_pages("", [])
    }

    /// Those that go when the history of all stores goes up to `base`: they belong to none. O(pages
    /// that go).
    pub fn retired_pages(&self, base: CommitSeq) -> Result<SharedPages> {
        let retired = "WHERE number IN (SELECT number FROM larder_map_page_use \
                       WHERE retired_seq IS NOT NULL AND retired_seq <= ?1)";
        self.count_pages(retired, [signed(base.0)])
    }

    fn count_pages(&self, which: &str, parameters: impl Params) -> Result<SharedPages> {
        let count =
            format!("SELECT count(*), coalesce(sum(length(bytes)), 0) FROM {TABLE} {which}");
        self.catalog.read(|reader| {
            reader
                .query_row(&count, parameters, |row| {
                    Ok(SharedPages {
                        page_count: unsigned(row, 0)?,
                        bytes: unsigned(row, 1)?,
                    })
                })
                .at(TABLE)
        })
    }
}
