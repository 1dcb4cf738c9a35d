//! What a merge supersedes (`HISTORY-1`): the rows of all keys that the workspace touched, before
//! anything is applied. That may be more than the merge changes; all of them count as written by
//! its commit.

use crate::error::{At, Result};
use crate::history::{KEEP_REDO_ROWS, KeepSql, Keeper};
use crate::temporal::tracking::Tracked;
use crate::types::codec::{rows, signed};
use larder_format::{CommitSeq, StoreId};
use rusqlite::{Connection, params};
use std::collections::HashMap;

/// The tables of a store, with what identifies a row.
const TABLES: [(&str, &str); 4] = [
    ("", "ino"),
    ("_dirent", "parent, name"),
    ("_map", "ino, page"),
    ("_xattr", "ino, name"),
];

/// Which rows of a table were touched: a condition.
fn touched(tables: &HashMap<&str, &Tracked>, table: &str, keys: &str) -> Option<String> {
    let old = &tables.get(table)?.old_table;
    let count = keys.split(", ").count();
    let columns: Vec<String> = (0..count).map(|at| format!("k{at}")).collect();
    Some(format!(
        "({keys}) IN (SELECT {} FROM ws.{old})",
        columns.join(", ")
    ))
}

/// Keeps what may be superseded in store `name`.
pub(super) fn keep(
    txn: &Connection,
    keeper: &Keeper,
    store: StoreId,
    name: &str,
    tables: &HashMap<&str, &Tracked>,
) -> Result<()> {
    let sql = KeepSql::new(store, name);
    for (suffix, keys) in TABLES {
        let condition = touched(tables, &format!("{name}{suffix}"), keys);
        if let Some(text) = condition.and_then(|condition| sql.where_(suffix, &condition)) {
            keeper.keep(txn, &text, &[])?;
        }
    }
    // A change of content touches the inode, and takes inline content, pieces and redo rows from
    // the workspace.
    let Some(condition) = touched(tables, name, "ino") else {
        return Ok(());
    };
    if let Some(text) = sql.where_("_content", &condition) {
        keeper.keep(txn, &text, &[])?;
    }
    let text = format!(
        "INSERT INTO larder_history (until_seq, what, store, ino, key, since_seq, value) \
         SELECT ?1, 'piece', store, ino, page, since_seq, entries FROM main.larder_piece \
         WHERE since_seq < ?1 AND store = {store} AND {condition}"
    );
    keeper.keep(txn, &text, &[])?;
    // Redo rows that stay are there twice, with the same bytes.
    let with_redo_rows = format!(
        "SELECT DISTINCT ino FROM main.larder_redo_row WHERE store = {store} AND {condition}"
    );
    let with_redo_rows: Vec<i64> =
        rows(txn, &with_redo_rows, [], |row| row.get(0)).at("larder_redo_row")?;
    for ino in with_redo_rows {
        keeper.keep(txn, KEEP_REDO_ROWS, params![store.0, ino, i64::MAX])?;
    }
    Ok(())
}

/// What was touched is as commit `seq` left it.
pub(super) fn mark(
    txn: &Connection,
    seq: CommitSeq,
    store: StoreId,
    name: &str,
    tables: &HashMap<&str, &Tracked>,
) -> Result<()> {
    let mut changes: Vec<(String, String)> = Vec::new();
    for (suffix, keys) in TABLES {
        let table = format!("{name}{suffix}");
        if let Some(condition) = touched(tables, &table, keys) {
            changes.push((table, condition));
        }
    }
    if let Some(condition) = touched(tables, name, "ino") {
        changes.push((format!("{name}_content"), condition.clone()));
        changes.push((
            "larder_piece".into(),
            format!("store = {store} AND {condition}"),
        ));
    }
    for (table, condition) in changes {
        txn.execute(
            &format!("UPDATE main.\"{table}\" SET since_seq = ?1 WHERE {condition}"),
            [signed(seq.0)],
        )
        .at(&table)?;
    }
    Ok(())
}
