//! The guard switch, and the counters and facts of `larder_meta`.

use crate::error::{At, CatalogError, Result};
use crate::types::codec::{signed, unsigned};
use larder_format::{CommitSeq, StoreId};
use rusqlite::{Connection, OptionalExtension, params};

/// What a store has that keeps nothing goes when it is so old, nanoseconds: the beginning of its
/// history does not overtake the looks of other sessions (`FOREIGN-1`), which else would forget all
/// they remember.
pub(crate) const KEPT_NS_MIN: i64 = 5_000_000_000;

/// Opens or closes the guard switch. Every transaction that opens it must close it (`CATALOG-3`).
pub(crate) fn set_guard_switch(connection: &Connection, is_open: bool) -> Result<()> {
    let changed = connection
        .prepare_cached("UPDATE larder_guard_switch SET open = ?1")
        .and_then(|mut set| set.execute([is_open]))
        .at("larder_guard_switch")?;
    if changed != 1 {
        return Err(CatalogError::corrupt(format!(
            "larder_guard_switch: expected 1 row, found {changed}"
        )));
    }
    Ok(())
}

/// Whether history is kept whatever it takes.
pub(crate) fn is_guaranteed(connection: &Connection) -> Result<bool> {
    connection
        .prepare_cached("SELECT value FROM larder_meta WHERE key = 'retention_guarantee'")
        .and_then(|mut find| find.query_row([], |row| row.get::<_, i64>(0)).optional())
        .at("larder_meta")
        .map(|found| found.is_some_and(|value| value != 0))
}

/// Takes the next commit number; the transaction is that commit from here on.
pub(crate) fn next_commit_seq(connection: &Connection) -> Result<CommitSeq> {
    add_meta(connection, "commit_seq", 1).map(CommitSeq)
}

/// Adds to a counter of `larder_meta` and returns the sum. In a transaction that writes. (RETURNING
/// would make a table for one row each time.)
pub(crate) fn add_meta(connection: &Connection, key: &str, count: u64) -> Result<u64> {
    let sum: u64 = connection
        .prepare_cached("SELECT value + ?2 FROM larder_meta WHERE key = ?1")
        .and_then(|mut find| find.query_row(params![key, signed(count)], |row| unsigned(row, 0)))
        .at("larder_meta")?;
    connection
        .prepare_cached("UPDATE larder_meta SET value = ?2 WHERE key = ?1")
        .and_then(|mut set| set.execute(params![key, signed(sum)]))
        .at("larder_meta")?;
    Ok(sum)
}

/// A number of `larder_meta`.
pub(crate) fn find_meta(connection: &Connection, key: &str) -> Result<i64> {
    connection
        .prepare_cached("SELECT value FROM larder_meta WHERE key = ?1")
        .and_then(|mut find| find.query_row([key], |row| row.get(0)))
        .at("larder_meta")
}

/// The key of what `key` says of one store; `None`: of what destroyed stores have left.
pub(crate) fn of_store(key: &str, store: Option<StoreId>) -> String {
    match store {
        Some(store) => format!("{key}:{store}"),
        None => format!("{key}:gone"),
    }
}

/// What `key` says of single stores.
pub(crate) fn of_stores(connection: &Connection, key: &str) -> Result<Vec<(Option<StoreId>, i64)>> {
    let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, String>(0)?, row.get(1)?));
    let found: Vec<(String, i64)> = connection
        .prepare_cached("SELECT key, value FROM larder_meta WHERE key > ?1 AND key < ?2")
        .and_then(|mut list| {
            let range = [format!("{key}:"), format!("{key};")];
            list.query_map(range, row)?.collect()
        })
        .at("larder_meta")?;
    let mut stores = Vec::with_capacity(found.len());
    for (full, value) in found {
        let name = &full[key.len() + 1..];
        match (name, name.parse()) {
            ("gone", _) => stores.push((None, value)),
            (_, Ok(number)) => stores.push((Some(StoreId(number)), value)),
            (_, Err(_)) => {
                return Err(CatalogError::corrupt(format!(
                    "larder_meta: '{full}' names no store"
                )));
            }
        }
    }
    Ok(stores)
}

/// Whether there are `count` stores or more.
pub(crate) fn has_stores(connection: &Connection, count: usize) -> Result<bool> {
    connection
        .prepare("SELECT count(*) >= ?1 FROM (SELECT 1 FROM main.larder_store LIMIT ?1)")
        .and_then(|mut ask| ask.query_row([count as i64], |row| row.get(0)))
        .at("larder_store")
}

/// Changes with each commit of another connection.
pub(crate) fn data_version(connection: &Connection) -> Result<i64> {
    connection
        .prepare_cached("PRAGMA data_version")
        .and_then(|mut ask| ask.query_row([], |row| row.get(0)))
        .at("data_version")
}
