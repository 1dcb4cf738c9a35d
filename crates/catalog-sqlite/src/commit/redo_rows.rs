//! Redo rows: a redo log of small overwrites. The engine's `redo` module says what they mean.

use crate::CatalogMaps;
use crate::conn::meta::find_meta;
use crate::error::{At, CatalogError, Result};
use crate::history::{self, Keeper};
use crate::types::changes::{ChangeSet, InodeChange};
use crate::types::codec::{require_checksum, signed, unsigned};
use crate::types::rows::RedoRow;
use larder_format::checksum::crc32c_of;
use larder_format::limits::BLOCK_BYTES;
use larder_format::{CommitSeq, Ino, StoreId};
use rusqlite::{Connection, Params, params};

const TABLE: &str = "larder_redo_row";
/// The newest commit that deleted rows that the history does not have (`larder_meta`).
const GONE: &str = "redo_gone_seq";

impl CatalogMaps<'_> {
    /// The redo rows of an object, oldest first. 3 µs plus the rows.
    pub fn redo_rows(&self, store: StoreId, ino: Ino) -> Result<Vec<RedoRow>> {
        let sql = self.catalog.store_sql(store)?;
        let owner = sql.table_store;
        self.catalog.read(|reader| {
            let mut find = reader.prepare_cached(&sql.redo_rows).at(TABLE)?;
            let mut rows = find.query(params![owner.0, signed(ino.0)]).at(TABLE)?;
            let mut found = Vec::new();
            while let Some(row) = rows.next().at(TABLE)? {
                let raw: Vec<u8> = row.get(1).at(TABLE)?;
                let blocks: Vec<u64> = raw
                    .as_chunks::<8>()
                    .0
                    .iter()
                    .map(|block| u64::from_le_bytes(*block))
                    .collect();
                let bytes: Option<Vec<u8>> = row.get(2).at(TABLE)?;
                let parts = [raw.as_slice(), bytes.as_deref().unwrap_or_default()];
                let what = || format!("{TABLE}: a redo row of inode {ino} of store {owner}");
                require_checksum(what, row.get(3).at(TABLE)?, &parts)?;
                if bytes
                    .as_ref()
                    .is_some_and(|bytes| bytes.len() as u64 != blocks.len() as u64 * BLOCK_BYTES)
                {
                    return Err(CatalogError::corrupt(format!(
                        "{TABLE}: a redo row of inode {ino} of store {owner} has not the bytes of \
                         its blocks"
                    )));
                }
                found.push(RedoRow {
                    seq: CommitSeq(unsigned(row, 0).at(TABLE)?),
                    blocks,
                    bytes,
                });
            }
            Ok(found)
        })
    }

    /// The objects that have redo rows. O(redo rows), of a small index.
    pub fn objects_with_redo_rows(&self) -> Result<Vec<(StoreId, Ino)>> {
        self.catalog.read(|reader| {
            crate::types::codec::rows(
                reader,
                "SELECT DISTINCT store, ino FROM larder_redo_row ORDER BY store, ino",
                [],
                |row| Ok((StoreId(row.get(0)?), Ino(unsigned(row, 1)?))),
            )
            .at(TABLE)
        })
    }

    /// Blocks in all redo rows, those that newer rows replace included. O(redo rows), of a small
    /// index.
    pub fn redo_blocks(&self) -> Result<u64> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached("SELECT coalesce(sum(block_count), 0) FROM larder_redo_row")
                .and_then(|mut sum| sum.query_row([], |row| unsigned(row, 0)))
                .at(TABLE)
        })
    }
}

/// Deletes what was applied or lost its inode, adds what is new; returns by how much the blocks in
/// all rows changed.
pub(crate) fn apply(
    txn: &Connection,
    keeper: &Keeper,
    changes: &ChangeSet,
    owner: impl Fn(StoreId) -> StoreId,
) -> Result<i64> {
    let mut change = 0;
    for (store, ino, upto, settled) in &changes.redo_applied {
        let which = "WHERE store = ?1 AND ino = ?2 AND seq <= ?3";
        let key = params![owner(*store).0, signed(ino.0), signed(upto.0)];
        let blocks = count(txn, which, key)?;
        let is_kept = *settled != Some(blocks as u64) || hides_others(txn, key)?;
        if is_kept {
            keeper.keep(txn, history::KEEP_REDO_ROWS, key)?;
        }
        if delete(txn, which, key)? > 0 && !is_kept {
            note_gone(txn, keeper.seq)?;
        }
        change -= blocks;
    }
    let mut gone = changes
        .inodes
        .iter()
        .filter_map(|(store, change)| match change {
            InodeChange::Delete(ino) => Some((*store, *ino)),
            InodeChange::Insert(_) | InodeChange::Update(..) => None,
        })
        .peekable();
    if gone.peek().is_some() && has_any(txn)? {
        for (store, ino) in gone {
            let which = "WHERE store = ?1 AND ino = ?2";
            let key = [i64::from(owner(store).0), signed(ino.0)];
            change -= count(txn, which, key)?;
            keeper.keep(
                txn,
                history::KEEP_REDO_ROWS,
                params![key[0], key[1], i64::MAX],
            )?;
            delete(txn, which, key)?;
        }
    }
    for (store, ino, redo_row) in &changes.redo_rows {
        let blocks: Vec<u8> = redo_row
            .blocks
            .iter()
            .flat_map(|block| block.to_le_bytes())
            .collect();
        let parts = [
            blocks.as_slice(),
            redo_row.bytes.as_deref().unwrap_or_default(),
        ];
        let checksum = crc32c_of(&parts);
        let block_count = redo_row.bytes.as_ref().map_or(0, |_| redo_row.blocks.len()) as i64;
        txn.prepare_cached(
            "INSERT INTO larder_redo_row (seq, store, ino, block_count, blocks, bytes, checksum) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)",
        )
        .and_then(|mut insert| {
            insert.execute(params![
                signed(keeper.seq.0),
                owner(*store).0,
                signed(ino.0),
                block_count,
                blocks,
                redo_row.bytes,
                checksum
            ])
        })
        .at(TABLE)?;
        change += block_count;
    }
    Ok(change)
}

/// Forgets the redo rows of a store that goes.
pub(crate) fn delete_store(txn: &Connection, store: StoreId) -> Result<()> {
    delete(txn, "WHERE store = ?1", [store.0]).map(drop)
}

fn has_any(txn: &Connection) -> Result<bool> {
    txn.prepare_cached("SELECT 1 FROM larder_redo_row LIMIT 1")
        .and_then(|mut find| find.exists([]))
        .at(TABLE)
}

/// Whether a row among these, or the end that one says, hides a redo row that is in the history
/// already: some state has both. Then they must be kept, though their targets hold the same.
/// O(redo rows of the object in the history).
fn hides_others(txn: &Connection, parameters: impl Params) -> Result<bool> {
    txn.prepare_cached(
        "SELECT 1 FROM larder_history WHERE store = ?1 AND ino = ?2 AND what = 'redo' AND \
         until_seq > \
         (SELECT min(seq) FROM larder_redo_row WHERE store = ?1 AND ino = ?2 AND seq <= ?3) LIMIT \
         1",
    )
    .and_then(|mut find| find.exists(parameters))
    .at(TABLE)
}

/// How many blocks rows hold.
fn count(txn: &Connection, rows: &str, parameters: impl Params) -> Result<i64> {
    txn.prepare_cached(&format!(
        "SELECT coalesce(sum(block_count), 0) FROM larder_redo_row {rows}"
    ))
    .and_then(|mut sum| sum.query_row(parameters, |row| row.get(0)))
    .at(TABLE)
}

/// Deletes rows, and says how many. (RETURNING would read their content.)
fn delete(txn: &Connection, rows: &str, parameters: impl Params) -> Result<usize> {
    txn.prepare_cached(&format!("DELETE FROM larder_redo_row {rows}"))
        .and_then(|mut delete| delete.execute(parameters))
        .at(TABLE)
}

/// Commit `seq` deletes rows that are not kept.
fn note_gone(txn: &Connection, seq: CommitSeq) -> Result<()> {
    txn.prepare_cached("UPDATE larder_meta SET value = ?2 WHERE key = ?1")
        .and_then(|mut set| set.execute(params![GONE, signed(seq.0)]))
        .at("larder_meta")
        .map(drop)
}

/// The newest commit that deleted rows that were not kept: no history says of which objects. 2 µs.
pub(crate) fn gone_seq(connection: &Connection) -> Result<CommitSeq> {
    find_meta(connection, GONE).map(|seq| CommitSeq(seq as u64))
}
