//! Reading names, attributes and content. Each call is one statement, so it sees one committed
//! moment; 2–4 µs plus the rows.

use crate::conn::meta::{find_meta, is_guaranteed};
use crate::error::{At, CatalogError, Result};
use crate::schema::statements::StoreSql;
use crate::types::codec::{
    self, TextOrBlob, bound, require_checksum, row_limit, rows, signed, unsigned,
};
use crate::types::names::dirent_order;
use crate::types::rows::{ContentRow, DatabaseInfo, DirentRow, InodeRow};
use crate::types::tuning;
use crate::{CatalogTables, schema};
use larder_format::{CommitSeq, Ino, Name, StoreId};
use rusqlite::{OptionalExtension, Row, params};

impl CatalogTables<'_> {
    /// Facts of the whole database.
    pub fn info(&self) -> Result<DatabaseInfo> {
        self.catalog.read(|reader| {
            let database_id = reader
                .prepare_cached("SELECT value FROM larder_meta WHERE key = 'database_id'")
                .and_then(|mut find| find.query_row([], |row| row.get(0)))
                .at("larder_meta")?;
            Ok(DatabaseInfo {
                database_id,
                format_version: schema::SCHEMA_VERSION,
                capacity_bytes: find_meta(reader, "capacity_bytes")? as u64,
                retention_ns: find_meta(reader, "retention_ns")?,
                is_guaranteed: is_guaranteed(reader)?,
                created_ns: find_meta(reader, "created_ns")?,
                commit_seq: CommitSeq(find_meta(reader, "commit_seq")? as u64),
                retired_bytes_total: find_meta(reader, "retired_bytes_total")? as u64,
                tuning: tuning::read(reader)?,
            })
        })
    }

    /// The newest committed group; in a catalog of the past: the one that it shows.
    pub fn commit_seq(&self) -> Result<CommitSeq> {
        if let Some(seq) = self.catalog.as_of {
            return Ok(seq);
        }
        self.catalog
            .read(|reader| Ok(CommitSeq(find_meta(reader, "commit_seq")? as u64)))
    }

    /// Changes whenever a table, column, index or trigger does. 2 µs.
    pub fn schema_version(&self) -> Result<i64> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached("PRAGMA schema_version")
                .and_then(|mut ask| ask.query_row([], |row| row.get(0)))
                .at("the schema version")
        })
    }

    /// The attributes of an inode.
    pub fn inode(&self, store: StoreId, ino: Ino) -> Result<Option<InodeRow>> {
        let sql = self.catalog.store_sql(store)?;
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&sql.inode)
                .and_then(|mut find| find.query_row([signed(ino.0)], inode_row).optional())
                .at(&sql.table)
        })
    }

    /// The commit that wrote the inode's row, content and extended attributes included: each change
    /// of them writes it. `None` when there is no such inode.
    pub fn inode_since(&self, store: StoreId, ino: Ino) -> Result<Option<CommitSeq>> {
        let sql = self.catalog.store_sql(store)?;
        let ask = format!("SELECT since_seq FROM \"{}\" WHERE ino = ?1", sql.table);
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&ask)
                .and_then(|mut find| {
                    find.query_row([signed(ino.0)], |row| unsigned(row, 0))
                        .optional()
                })
                .map(|found| found.map(CommitSeq))
                .at(&sql.table)
        })
    }

    /// What `name` names in directory `parent`.
    pub fn dirent(&self, store: StoreId, parent: Ino, name: &Name) -> Result<Option<Ino>> {
        let sql = self.catalog.store_sql(store)?;
        let key = params![signed(parent.0), TextOrBlob(name.as_bytes())];
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&sql.dirent)
                .and_then(|mut find| find.query_row(key, |row| unsigned(row, 0)).optional())
                .map(|found| found.map(Ino))
                .at(&sql.table_dirent)
        })
    }

    /// At most `limit` entries of `parent` after the name `after`, in the order of
    /// [`crate::dirent_order`]. Paging by the last name is complete and consistent:
    /// an entry that is there all the time is seen exactly once, whatever else changes.
    pub fn dirents(
        &self,
        store: StoreId,
        parent: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<DirentRow>> {
        let sql = self.catalog.store_sql(store)?;
        let mut page = self.dirent_page(&sql, &sql.dirents, (parent, after, limit), |row| {
            Ok(DirentRow {
                name: codec::name(row, 0)?,
                ino: Ino(unsigned(row, 1)?),
                kind: codec::kind(row, 2)?,
            })
        })?;
        if self.catalog.as_of.is_some() {
            page.sort_by(|a, b| dirent_order(&a.name, &b.name));
        }
        Ok(page)
    }

    /// The same with the attributes of what the entries name.
    pub fn dirents_with_rows(
        &self,
        store: StoreId,
        parent: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, InodeRow)>> {
        let sql = self.catalog.store_sql(store)?;
        let mut page = self.dirent_page(
            &sql,
            &sql.dirents_with_rows,
            (parent, after, limit),
            |row| Ok((codec::name(row, 0)?, inode_row_at(row, 1)?)),
        )?;
        if self.catalog.as_of.is_some() {
            page.sort_by(|a, b| dirent_order(&a.0, &b.0));
        }
        Ok(page)
    }

    /// Rows of entries: name, number and kind in the first three columns.
    fn dirent_page<T>(
        &self,
        sql: &StoreSql,
        text: &str,
        (parent, after, limit): (Ino, Option<&Name>, usize),
        decode: impl Fn(&Row<'_>) -> rusqlite::Result<T>,
    ) -> Result<Vec<T>> {
        // No name is empty, and the empty text sorts before every name.
        let after = TextOrBlob(after.map_or(&[], Name::as_bytes));
        self.catalog.read(|reader| {
            let mut page = reader.prepare_cached(text).at(&sql.table_dirent)?;
            let mut rows = page
                .query(params![signed(parent.0), after, row_limit(limit)])
                .at(&sql.table_dirent)?;
            let mut found = Vec::new();
            while let Some(row) = rows.next().at(&sql.table_dirent)? {
                if row.get_ref(2).at(&sql.table)? == rusqlite::types::ValueRef::Null {
                    let name = codec::name(row, 0).at(&sql.table_dirent)?;
                    let ino = unsigned(row, 1).at(&sql.table_dirent)?;
                    return Err(CatalogError::corrupt(format!(
                        "{}: '{name}' in directory {parent} names inode {ino}, which does not \
                         exist",
                        sql.table_dirent
                    )));
                }
                found.push(decode(row).at(&sql.table)?);
            }
            Ok(found)
        })
    }

    /// Refuses a directory with two names, and a root with one (`SAFE-8`): it may lie in itself,
    /// and who walks down would never end. 3 µs.
    pub fn require_one_name(&self, store: StoreId, directory: Ino) -> Result<()> {
        let sql = self.catalog.store_sql(store)?;
        let names_max = usize::from(directory != Ino::ROOT);
        self.catalog.read(|reader| {
            let mut list = reader.prepare_cached(&sql.parents).at(&sql.table_dirent)?;
            let mut rows = list.query([signed(directory.0)]).at(&sql.table_dirent)?;
            for _ in 0..=names_max {
                if rows.next().at(&sql.table_dirent)?.is_none() {
                    return Ok(());
                }
            }
            Err(CatalogError::corrupt(format!(
                "{}: directory {directory} has more names than {names_max}, and may lie in itself \
                 (SAFE-8)",
                sql.table_dirent
            )))
        })
    }

    /// All names of an inode, with their directories.
    pub fn parents(&self, store: StoreId, ino: Ino) -> Result<Vec<(Ino, Name)>> {
        let sql = self.catalog.store_sql(store)?;
        self.catalog.read(|reader| {
            rows(reader, &sql.parents, [signed(ino.0)], |row| {
                Ok((Ino(unsigned(row, 0)?), codec::name(row, 1)?))
            })
            .at(&sql.table_dirent)
        })
    }

    /// Inline content or link target of an inode; damage is [`CatalogError::Corrupt`].
    pub fn content(&self, store: StoreId, ino: Ino) -> Result<Option<ContentRow>> {
        let sql = self.catalog.store_sql(store)?;
        let found = self.catalog.read(|reader| {
            reader
                .prepare_cached(&sql.content)
                .and_then(|mut find| find.query_row([signed(ino.0)], content_row).optional())
                .at(&sql.table_content)
        })?;
        let Some((content, checksum)) = found else {
            return Ok(None);
        };
        let (ContentRow::Inline(bytes) | ContentRow::Target(bytes)) = &content;
        require_checksum(
            || format!("{}: that of inode {ino}", sql.table_content),
            checksum,
            &[bytes],
        )?;
        Ok(Some(content))
    }

    /// The encoded map page `page` of an inode; `None` when nothing in it is mapped.
    pub fn map_page(&self, store: StoreId, ino: Ino, page: u64) -> Result<Option<Vec<u8>>> {
        let sql = self.catalog.store_sql(store)?;
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&sql.map_page)
                .and_then(|mut find| {
                    find.query_row([signed(ino.0), signed(page)], |row| row.get(0))
                        .optional()
                })
                .at(&sql.table_map)
        })
    }

    /// At most `limit` encoded map pages of an inode with index ≥ `from_page`, in order.
    pub fn map_pages(
        &self,
        store: StoreId,
        ino: Ino,
        from_page: u64,
        limit: usize,
    ) -> Result<Vec<(u64, Vec<u8>)>> {
        let sql = self.catalog.store_sql(store)?;
        let key = [signed(ino.0), bound(from_page), row_limit(limit)];
        self.catalog.read(|reader| {
            rows(reader, &sql.map_pages, key, |row| {
                Ok((unsigned(row, 0)?, row.get(1)?))
            })
            .at(&sql.table_map)
        })
    }

    /// The extended attributes of an inode, `(name, value)`, UTF-8 names first, by bytes.
    pub fn xattrs(&self, store: StoreId, ino: Ino) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        let sql = self.catalog.store_sql(store)?;
        self.catalog.read(|reader| {
            rows(reader, &sql.xattrs, [signed(ino.0)], |row| {
                Ok((codec::bytes(row, 0)?.to_vec(), row.get(1)?))
            })
            .at(&sql.table_xattr)
        })
    }
}

pub(crate) fn inode_row(row: &Row<'_>) -> rusqlite::Result<InodeRow> {
    inode_row_at(row, 0)
}

/// The same from column `at` on.
fn inode_row_at(row: &Row<'_>, at: usize) -> rusqlite::Result<InodeRow> {
    Ok(InodeRow {
        ino: Ino(unsigned(row, at)?),
        kind: codec::kind(row, at + 1)?,
        mode: row.get(at + 2)?,
        uid: row.get(at + 3)?,
        gid: row.get(at + 4)?,
        nlink: row.get(at + 5)?,
        size_bytes: unsigned(row, at + 6)?,
        block_count: unsigned(row, at + 7)?,
        atime_ns: row.get(at + 8)?,
        mtime_ns: row.get(at + 9)?,
        ctime_ns: row.get(at + 10)?,
        btime_ns: row.get(at + 11)?,
        rdev: unsigned(row, at + 12)?,
    })
}

fn content_row(row: &Row<'_>) -> rusqlite::Result<(ContentRow, Option<i64>)> {
    let content = match row.get::<_, Option<Vec<u8>>>(0)? {
        Some(inline) => ContentRow::Inline(inline),
        None => ContentRow::Target(row.get(1)?),
    };
    Ok((content, row.get(2)?))
}
