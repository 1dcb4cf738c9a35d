//! Which tables are tracked.

use crate::error::{At, Result};
use crate::history::search_moments;
use crate::types::codec::{rows, signed};
use crate::types::names::StoreName;
use larder_format::{CommitSeq, StoreId};
use rusqlite::Connection;

pub(super) const TABLE: &str = "larder_temporal";

/// One that is tracked.
pub(super) struct Active {
    pub(super) id: i64,
    /// Its name now.
    pub(super) name: String,
    pub(super) since: CommitSeq,
    /// The store whose table it is.
    pub(super) store: Option<StoreId>,
}

/// Those that are tracked. Where the triggers are, the table is.
pub(super) fn active(connection: &Connection) -> Result<Vec<Active>> {
    rows(
        connection,
        "SELECT t.id, s.tbl_name, t.since_seq, o.id FROM larder_temporal AS t JOIN \
         main.sqlite_schema AS s \
         ON s.type = 'trigger' AND s.name IN ('larder_temporal_' || t.id || '_bd', \
         'larder_temporal_' || t.id || '_columns') \
         LEFT JOIN larder_store AS o ON o.table_store = o.id AND o.name = s.tbl_name COLLATE \
         NOCASE \
         WHERE t.until_seq IS NULL ORDER BY t.id",
        [],
        |row| {
            Ok(Active {
                id: row.get(0)?,
                name: row.get(1)?,
                since: CommitSeq(row.get::<_, i64>(2)? as u64),
                store: row.get::<_, Option<u32>>(3)?.map(StoreId),
            })
        },
    )
    .at(TABLE)
}

pub(super) fn end(txn: &Connection, id: i64, seq: i64) -> Result<()> {
    txn.execute(
        "UPDATE larder_temporal SET until_seq = ?2 WHERE id = ?1",
        [id, seq],
    )
    .at(TABLE)
    .map(drop)
}

/// Whether plain SQL made the commit after `seq`, or what is going to be it.
pub(super) fn is_plain_next(connection: &Connection, seq: CommitSeq) -> Result<bool> {
    let (_, next) = search_moments(connection, |found, _| found <= seq)?;
    let Some((next, _)) = next else {
        return Ok(true);
    };
    connection
        .query_row(
            "SELECT EXISTS (SELECT 1 FROM larder_history WHERE what = 'commit' AND until_seq = ?1 \
             AND kind = 'sql')",
            [signed(next.0)],
            |row| row.get(0),
        )
        .at("larder_history")
}

/// The records after commit `seq`, or of what plain SQL did after it up to `at_ns`: a condition, in
/// which they are called `h`.
pub(super) fn records_after(
    connection: &Connection,
    id: i64,
    seq: CommitSeq,
    at_ns: i64,
) -> Result<String> {
    let later = match is_plain_next(connection, seq)? {
        true => format!("AND (h.until_seq > {} OR h.mtime_ns > {at_ns})", seq.0 + 1),
        false => String::new(),
    };
    Ok(format!(
        "h.what = 'row' AND h.ino = {id} AND h.until_seq > {seq} {later}"
    ))
}

/// Columns of a table that refer to the inode of a store: the column, the store's table.
pub(super) fn references(connection: &Connection, table: &str) -> Result<Vec<(String, String)>> {
    rows(
        connection,
        "SELECT f.\"from\", s.name FROM pragma_foreign_key_list(?1, 'main') AS f JOIN \
         larder_store AS s \
         ON s.table_store = s.id AND s.name = f.\"table\" COLLATE NOCASE \
         WHERE coalesce(f.\"to\", 'ino') = 'ino' COLLATE NOCASE",
        [table],
        |row| Ok((row.get(0)?, row.get::<_, StoreName>(1)?.into())),
    )
    .at(table)
}
