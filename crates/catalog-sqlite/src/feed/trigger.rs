//! The triggers that tell the feed of plain SQL: on the table of a store, and on watched tables of
//! the user's.

use crate::error::{At, CatalogError, Result};
use crate::types::names::quoted;
use rusqlite::{Connection, OptionalExtension};

/// The present in SQL, as triggers know it: whole milliseconds.
pub(super) const NOW: &str =
    "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000";

/// What tells of plain SQL on the table of a store, as the schema has it.
pub(crate) fn store_trigger(name: &str) -> String {
    // The touch trigger sets ctime, and nothing else, after each change of an attribute.
    let attributes = ["mode", "uid", "gid", "atime_ns", "mtime_ns"]
        .map(|column| format!("NEW.{column} IS OLD.{column}"))
        .join(" AND ");
    format!(
        "CREATE TRIGGER \"larder_feed_{name}\" AFTER UPDATE ON \"{name}\" \
         WHEN (SELECT open FROM larder_guard_switch) IS NOT 1 \
           AND NOT (NEW.ctime_ns IS NOT OLD.ctime_ns AND {attributes}) \
           AND NEW.since_seq IS OLD.since_seq \
         BEGIN \
           INSERT INTO larder_change (at_ns, op, tbl, row_key) \
           VALUES ({NOW}, iif({attributes}, 'columns', 'attributes'), '{name}', NEW.ino); \
         END"
    )
}

/// A table that can be watched.
pub(super) struct WatchedTable {
    pub(super) name: String,
    /// What names a row, with `ROW` for `NEW` or `OLD`.
    key: String,
}

pub(super) fn watch_name(table: &str, operation: &str) -> String {
    format!("larder_watch_{table}_{operation}")
}

impl WatchedTable {
    pub(super) fn triggers(&self) -> [String; 3] {
        let operations = [("insert", "NEW"), ("update", "NEW"), ("delete", "OLD")];
        operations.map(|(operation, row)| {
            let insert = |operation: &str, row: &str, condition: &str| {
                format!(
                    "INSERT INTO larder_change (at_ns, op, tbl, row_key) \
                     SELECT {NOW}, '{operation}', '{}', {} {condition};",
                    self.name.replace('\'', "''"),
                    self.key.replace("ROW", row),
                )
            };
            let changed = format!(
                "WHERE {} IS NOT {}",
                self.key.replace("ROW", "OLD"),
                self.key.replace("ROW", "NEW")
            );
            // A row that gets another key: the old one is gone.
            let first = match operation {
                "update" => insert("delete", "OLD", &changed),
                _ => String::new(),
            };
            format!(
                "CREATE TRIGGER {} AFTER {operation} ON {} BEGIN {first} {} END",
                quoted(&watch_name(&self.name, operation)),
                quoted(&self.name),
                insert(operation, row, ""),
            )
        })
    }
}

/// Whether it is the text of a trigger that tells of a table of the user's, as this version makes
/// it.
pub(crate) fn is_watch(connection: &Connection, table: &str, sql: &str) -> Result<bool> {
    match find_table(connection, table) {
        Ok(found) => Ok(found.triggers().iter().any(|made| made == sql)),
        // It cannot be watched.
        Err(CatalogError::Invalid { .. } | CatalogError::NotFound { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

pub(super) fn find_table(txn: &Connection, table: &str) -> Result<WatchedTable> {
    let found: Option<(String, String, bool)> = txn
        .query_row(
            "SELECT name, type, wr FROM pragma_table_list \
             WHERE schema = 'main' AND name = ?1 COLLATE NOCASE",
            [table],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .optional()
        .at("the tables")?;
    let (name, kind, is_without_rowid) =
        found.ok_or_else(|| CatalogError::not_found(format!("table '{table}'")))?;
    let is_ours = name.starts_with("larder_") || name.starts_with("sqlite_") || {
        let mut stores = txn
            .prepare(
                "SELECT 1 FROM larder_store WHERE ?1 IN (name, name || '_dirent', name || \
                '_content', name || '_map', name || '_xattr')",
            )
            .at("larder_store")?;
        stores.exists([&name]).at("larder_store")?
    };
    if is_ours {
        return Err(CatalogError::invalid(format!(
            "'{name}' is a table of larder, whose changes the feed has anyway; give a table of \
             your own"
        )));
    }
    if kind != "table" {
        return Err(CatalogError::invalid(format!(
            "'{name}' is a {kind}; only tables can be watched"
        )));
    }
    let columns = |sql: &str| -> Result<Vec<String>> {
        txn.prepare(sql)
            .and_then(|mut select| {
                select
                    .query_map([&name], |row| row.get(0))
                    .and_then(Iterator::collect)
            })
            .at(table)
    };
    let key = if is_without_rowid {
        let keys = columns("SELECT name FROM pragma_table_info(?1) WHERE pk > 0 ORDER BY pk")?;
        match &keys[..] {
            [one] => format!("ROW.{}", quoted(one)),
            several => {
                let parts = several
                    .iter()
                    .map(|column| format!("quote(ROW.{})", quoted(column)));
                format!("({})", parts.collect::<Vec<_>>().join(" || ', ' || "))
            }
        }
    } else {
        let all = columns("SELECT lower(name) FROM pragma_table_info(?1)")?;
        let alias = ["rowid", "_rowid_", "oid"]
            .into_iter()
            .find(|alias| !all.iter().any(|column| column == alias));
        let alias = alias.ok_or_else(|| {
            CatalogError::invalid(format!(
                "the columns of '{name}' hide its rowid; rename one"
            ))
        })?;
        format!("ROW.{alias}")
    };
    Ok(WatchedTable { name, key })
}
