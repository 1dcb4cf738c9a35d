//! Between our types and SQLite's values.

use crate::error::{CatalogError, Result};
use larder_format::checksum::crc32c_of;
use larder_format::{Extent, FileKind, Name, SegmentIndex};
use rusqlite::types::{FromSqlError, ToSql, ToSqlOutput, Type, ValueRef};
use rusqlite::{Connection, Row};

/// An unsigned number as SQLite stores it. What exceeds 2⁶³−1 turns negative: no row has such a
/// key, and every column's CHECK refuses it.
pub(crate) fn signed(value: u64) -> i64 {
    value as i64
}

/// A bound of a range of numbers, of which no row has one above 2⁶³−1. (Up to where rows are
/// deleted is [`signed`]: a number that is none takes nothing.)
pub(crate) fn bound(value: u64) -> i64 {
    i64::try_from(value).unwrap_or(i64::MAX)
}

/// The unsigned number in a column; a negative one is damage.
pub(crate) fn unsigned(row: &Row<'_>, index: usize) -> rusqlite::Result<u64> {
    let value: i64 = row.get(index)?;
    u64::try_from(value).map_err(|_| rusqlite::Error::IntegralValueOutOfRange(index, value))
}

/// Refuses the row `what` when its parts, one behind the other, are not those that its checksum, in
/// a column, is of.
pub(crate) fn require_checksum(
    what: impl FnOnce() -> String,
    found: Option<i64>,
    parts: &[&[u8]],
) -> Result<()> {
    let expected = i64::from(crc32c_of(parts));
    if found == Some(expected) {
        return Ok(());
    }
    let found = found.map_or("none".into(), |found| format!("{found:08x}"));
    Err(CatalogError::corrupt(format!(
        "{} has the checksum {found}, expected {expected:08x}",
        what()
    )))
}

/// Bytes bound as TEXT when they are UTF-8, else as BLOB (`CATALOG-6`).
pub(crate) struct TextOrBlob<'a>(pub(crate) &'a [u8]);

impl ToSql for TextOrBlob<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        let value = match std::str::from_utf8(self.0) {
            Ok(_) => ValueRef::Text(self.0),
            Err(_) => ValueRef::Blob(self.0),
        };
        Ok(ToSqlOutput::Borrowed(value))
    }
}

/// The bytes of a TEXT or BLOB column.
pub(crate) fn bytes<'r>(row: &'r Row<'_>, index: usize) -> rusqlite::Result<&'r [u8]> {
    match row.get_ref(index)? {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Ok(bytes),
        other => Err(rusqlite::Error::InvalidColumnType(
            index,
            "bytes".into(),
            other.data_type(),
        )),
    }
}

/// The name in a column.
pub(crate) fn name(row: &Row<'_>, index: usize) -> rusqlite::Result<Name> {
    Name::new(bytes(row, index)?)
        .map_err(|why| rusqlite::Error::FromSqlConversionFailure(index, Type::Text, Box::new(why)))
}

/// The kind in a column.
pub(crate) fn kind(row: &Row<'_>, index: usize) -> rusqlite::Result<FileKind> {
    let word = std::str::from_utf8(bytes(row, index)?).unwrap_or_default();
    FileKind::find_by_str(word).ok_or_else(|| {
        rusqlite::Error::FromSqlConversionFailure(
            index,
            Type::Text,
            Box::new(FromSqlError::InvalidType),
        )
    })
}

/// All rows of a cached statement.
pub(crate) fn rows<T>(
    connection: &Connection,
    sql: &str,
    parameters: impl rusqlite::Params,
    decode: impl FnMut(&Row<'_>) -> rusqlite::Result<T>,
) -> rusqlite::Result<Vec<T>> {
    connection
        .prepare_cached(sql)?
        .query_map(parameters, decode)?
        .collect()
}

/// A limit as SQLite takes it; more rows than that do not exist.
pub(crate) fn row_limit(limit: usize) -> i64 {
    i64::try_from(limit).unwrap_or(i64::MAX)
}

/// Columns 0–2 as an extent; damage must not reach the constructor's assertion.
pub(crate) fn extent(row: &Row<'_>) -> rusqlite::Result<Extent> {
    let (start_block, block_count) = (unsigned(row, 1)?, unsigned(row, 2)?);
    if block_count == 0 || start_block.checked_add(block_count).is_none() {
        return Err(rusqlite::Error::IntegralValueOutOfRange(
            2,
            signed(block_count),
        ));
    }
    Ok(Extent::new(
        SegmentIndex(row.get(0)?),
        start_block,
        block_count,
    ))
}
