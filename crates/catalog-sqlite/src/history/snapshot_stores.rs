//! Stores that show a snapshot (provider `asof=SNAPSHOT`): they hold it from their beginning to
//! their end.

use crate::error::{At, CatalogError, Result};
use crate::history::require_reach;
use crate::history::seals;
use crate::types::names::StoreName;
use larder_format::{CommitSeq, StoreId};
use rusqlite::{Connection, OptionalExtension};

/// What the provider of a store begins with that shows a snapshot; its name follows.
const AS_OF: &str = "asof=";

/// The hold of a store that shows a snapshot, and the name of the snapshot that was made for it
/// alone.
pub fn own_snapshot(store: &str) -> String {
    format!("store-{store}")
}

/// A store that shows the snapshot.
pub(crate) fn shown_by(txn: &Connection, snapshot: &str) -> Result<Option<String>> {
    txn.query_row(
        "SELECT name FROM larder_store WHERE provider = ?1 COLLATE NOCASE ORDER BY id LIMIT 1",
        [format!("{AS_OF}{snapshot}")],
        |row| row.get(0),
    )
    .optional()
    .at("larder_store")
}

/// A store is created: where it shows a snapshot, it holds it.
pub(crate) fn begin(txn: &Connection, store: &str, provider: &str) -> Result<()> {
    let Some(snapshot) = provider.strip_prefix(AS_OF) else {
        return Ok(());
    };
    let seq: Option<i64> = txn
        .query_row(
            "SELECT seq FROM larder_snapshot WHERE name = ?1",
            [snapshot],
            |row| row.get(0),
        )
        .optional()
        .at("larder_snapshot")?;
    let Some(seq) = seq else {
        return Err(CatalogError::not_found(format!("snapshot '{snapshot}'")));
    };
    let shown: (u32, StoreName) = txn
        .query_row(
            "SELECT owner.id, owner.name FROM larder_store AS store \
             JOIN larder_store AS owner ON owner.id = store.table_store WHERE store.name = ?1",
            [store],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at("larder_store")?;
    require_reach(txn, StoreId(shown.0), &shown.1, CommitSeq(seq as u64))?;
    txn.execute(
        "INSERT INTO larder_hold (snapshot, tag) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
        [snapshot, &own_snapshot(store)],
    )
    .at("larder_hold")
    .map(drop)
}

/// It is destroyed: its hold ends, and the snapshot that was made for it, if nobody else holds
/// that.
pub(crate) fn end(txn: &Connection, store: &str, provider: &str) -> Result<()> {
    let Some(snapshot) = provider.strip_prefix(AS_OF) else {
        return Ok(());
    };
    let own = own_snapshot(store);
    txn.execute(
        "DELETE FROM larder_hold WHERE snapshot = ?1 AND tag = ?2",
        [snapshot, &own],
    )
    .at("larder_hold")?;
    if !own.eq_ignore_ascii_case(snapshot) {
        return Ok(());
    }
    let gone = txn
        .execute(
            "DELETE FROM larder_snapshot WHERE name = ?1 \
             AND NOT EXISTS (SELECT 1 FROM larder_hold WHERE snapshot = ?1)",
            [snapshot],
        )
        .at("larder_snapshot")?;
    match gone {
        0 => Ok(()),
        _ => seals::note_destroyed(txn, snapshot),
    }
}
