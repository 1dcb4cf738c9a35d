//! What the schema says of what users attach to the files of a store (`saves`), remembered with the
//! store's statements.

use crate::error::{At, Result};
use rusqlite::{Connection, params};
use std::sync::Arc;

/// What the schema says of a store's table.
#[derive(Debug)]
pub(crate) struct Attachments {
    /// The user's columns that are stored, quoted, and the text of their defaults.
    pub(crate) columns: Vec<(String, String)>,
    /// Foreign keys to the inode or to the number of the file.
    pub(crate) keys: Vec<Key>,
    /// Any foreign key refers to the table.
    pub(crate) is_parent: bool,
    /// Some columns, or the number of the file, must be unique.
    pub(crate) has_unique: bool,
}

/// A column of a foreign key, quoted.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) table: String,
    pub(crate) column: String,
    pub(crate) is_ino: bool,
}

/// What is known of the schema, and as of which version of it.
pub(crate) type Known = Option<(i64, Arc<Attachments>)>;

impl Attachments {
    /// What sets all columns of the user's to their defaults: nothing, if there are none.
    pub(crate) fn defaults(&self) -> String {
        let set = self.columns.iter();
        let set: Vec<String> = set
            .map(|(column, default)| format!("{column} = {default}"))
            .collect();
        set.join(", ")
    }

    /// Whether a row has a value in a column of the user's that is neither NULL nor the default,
    /// nor what the column of another row has: programs copy extended attributes.
    pub(crate) fn has_values(
        &self,
        txn: &Connection,
        table: &str,
        (ino, other): (i64, Option<i64>),
    ) -> Result<bool> {
        if self.columns.is_empty() {
            return Ok(false);
        }
        let terms: Vec<String> = (self.columns.iter())
            .map(|(column, default)| {
                format!(
                    "NOT (one.{column} IS NULL OR one.{column} IS {default} \
                     OR other.ino IS NOT NULL AND one.{column} IS other.{column})"
                )
            })
            .collect();
        let sql = format!(
            "SELECT 1 FROM main.\"{table}\" AS one LEFT JOIN main.\"{table}\" AS other ON \
             other.ino = ?2 \
             WHERE one.ino = ?1 AND ({})",
            terms.join(" OR ")
        );
        txn.prepare_cached(&sql)
            .and_then(|mut find| find.exists(params![ino, other]))
            .at(table)
    }

    /// Whether a row of another table refers to an inode, or to its file.
    pub(crate) fn is_referred_to(
        &self,
        txn: &Connection,
        (ino, file_id): (i64, i64),
    ) -> Result<bool> {
        for key in &self.keys {
            let sql = format!("SELECT 1 FROM {} WHERE {} = ?1", key.table, key.column);
            let number = if key.is_ino { ino } else { file_id };
            let found = txn
                .prepare_cached(&sql)
                .and_then(|mut find| find.exists([number]))
                .at(&key.table)?;
            if found {
                return Ok(true);
            }
        }
        Ok(false)
    }
}
