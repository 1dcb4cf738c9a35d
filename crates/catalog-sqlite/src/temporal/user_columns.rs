//! The user's own columns of a store table.

use crate::error::{At, CatalogError, Result};
use crate::schema::ENGINE_COLUMNS;
use crate::temporal::StoreColumns;
use crate::types::codec::{TextOrBlob, rows, signed};
use crate::{CatalogTemporal, lock};
use larder_format::{Ino, StoreId};
use rusqlite::{Connection, OptionalExtension, params};
use std::sync::Arc;

impl CatalogTemporal<'_> {
    /// The user's columns of a store table, in order: all that are not ours, generated ones too; of
    /// the past those that have one (`TEMPORAL-4`).
    pub fn user_columns(&self, store: StoreId) -> Result<Vec<String>> {
        if self.catalog.as_of.is_some() {
            let past = self.shown_columns(store)?;
            return Ok(past.map_or_else(Vec::new, |past| past.columns.clone()));
        }
        let sql = self.catalog.store_sql(store)?;
        self.catalog.read(|reader| user_columns(reader, &sql.table))
    }

    /// The value of a user column: numbers as text, text and blobs as they are; `None` for NULL and
    /// for an inode without a committed row. [`CatalogError::NotFound`] when there is no such
    /// column.
    pub fn user_column(&self, store: StoreId, ino: Ino, column: &str) -> Result<Option<Vec<u8>>> {
        if self.catalog.as_of.is_some() {
            return self.shown_column(store, ino, column);
        }
        let sql = self.catalog.store_sql(store)?;
        self.catalog.read(|reader| {
            let column = find_column(reader, &sql.table, column)?;
            let select = format!(
                "SELECT CAST(t.{column} AS BLOB) FROM \"{}\" AS t WHERE ino = ?1",
                sql.table
            );
            reader
                .prepare_cached(&select)
                .and_then(|mut find| find.query_row([signed(ino.0)], |row| row.get(0)).optional())
                .map(Option::flatten)
                .at(&sql.table)
        })
    }

    /// How to read the columns of a store in this catalog of the past; `None`: they have none. 2 µs
    /// while the schema is the same.
    fn shown_columns(&self, store: StoreId) -> Result<Option<Arc<StoreColumns>>> {
        let Some(pin) = &self.catalog.past_pin else {
            return Ok(None);
        };
        let owner = self.catalog.store_sql(store)?.table_store;
        self.catalog.read(|reader| {
            let version: i64 = reader
                .prepare_cached("PRAGMA schema_version")
                .and_then(|mut ask| ask.query_row([], |row| row.get(0)))
                .at("the schema version")?;
            let known = lock(&self.catalog.past_columns).get(&owner).cloned();
            if let Some((of, past)) = known
                && of == version
            {
                return Ok(past);
            }
            let past = StoreColumns::find(reader, owner, (pin.seq, pin.asked_ns))?.map(Arc::new);
            lock(&self.catalog.past_columns).insert(owner, (version, past.clone()));
            Ok(past)
        })
    }

    fn shown_column(&self, store: StoreId, ino: Ino, column: &str) -> Result<Option<Vec<u8>>> {
        let absent = || CatalogError::not_found(format!("user column '{column}'"));
        let past = self.shown_columns(store)?.ok_or_else(absent)?;
        let is_it = |name: &&String| name.eq_ignore_ascii_case(column);
        let name = past.columns.iter().find(is_it).ok_or_else(absent)?;
        let select = format!(
            "SELECT CAST({} AS BLOB) FROM (SELECT ?1 AS ino) AS larder_of{}",
            past.value(name),
            past.joins("larder_of.ino")
        );
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&select)
                .and_then(|mut find| find.query_row([signed(ino.0)], |row| row.get(0)))
                .at(&past.table)
        })
    }

    /// Sets a user column, in a transaction of its own, as plain SQL would: the guard switch stays
    /// closed. Bytes are text when they are UTF-8, else a blob; the column's affinity makes numbers
    /// of numerals. `None` is NULL. The user's constraints may refuse it.
    pub fn set_user_column(
        &self,
        store: StoreId,
        ino: Ino,
        column: &str,
        value: Option<&[u8]>,
    ) -> Result<()> {
        let sql = self.catalog.store_sql(store)?;
        self.catalog.write_as_user(|txn| {
            let column = find_column(txn, &sql.table, column)?;
            let update = format!("UPDATE \"{}\" SET {column} = ?2 WHERE ino = ?1", sql.table);
            let changed = txn
                .prepare_cached(&update)
                .and_then(|mut set| set.execute(params![signed(ino.0), value.map(TextOrBlob)]))
                .at(&sql.table)?;
            match changed {
                0 => Err(CatalogError::not_found(format!(
                    "inode {ino} of {}",
                    sql.table
                ))),
                _ => Ok(()),
            }
        })
    }
}

pub(crate) fn user_columns(connection: &Connection, table: &str) -> Result<Vec<String>> {
    let mut columns: Vec<String> = rows(
        connection,
        "SELECT name FROM pragma_table_xinfo(?1)",
        [table],
        |row| row.get(0),
    )
    .at(table)?;
    columns.retain(|column| {
        !ENGINE_COLUMNS
            .iter()
            .any(|ours| ours.eq_ignore_ascii_case(column))
    });
    Ok(columns)
}

/// The quoted name of a user column; SQLite compares names without regard to ASCII case.
fn find_column(connection: &Connection, table: &str, column: &str) -> Result<String> {
    user_columns(connection, table)?
        .into_iter()
        .find(|name| name.eq_ignore_ascii_case(column))
        .map(|name| format!("\"{}\"", name.replace('"', "\"\"")))
        .ok_or_else(|| CatalogError::not_found(format!("user column '{column}' of {table}")))
}
