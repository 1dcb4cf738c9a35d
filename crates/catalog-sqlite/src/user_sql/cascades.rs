//! Deleting a row that files refer to ON DELETE CASCADE.
//!
//! SQL alone must not delete a row of a store table (`CATALOG-3`): names and content would stay
//! behind. The owner of a transaction finds out which files a statement would take, detaches their
//! rows from what they refer to, runs the statement, and removes the files as files are removed.

use crate::commit::transaction::{Stage, require_open};
use crate::conn::functions::SqlFiles;
use crate::conn::meta::set_guard_switch;
use crate::error::{At, CatalogError, Result};
use crate::schema::statements::StoreSql;
use crate::types::codec::{rows, signed};
use crate::types::names::execute_all;
use crate::types::sql::SqlValue;
use crate::user_sql::SqlStatement;
use crate::{CatalogSql, lock};
use larder_format::{Ino, StoreId};
use rusqlite::hooks::Action;
use std::ops::ControlFlow;
use std::sync::{Arc, Mutex};

/// What the guard of a store table says.
const GUARDED: &str = "is a file; delete it through the mount or the larder command";

impl CatalogSql<'_> {
    /// Whether `error` says that `statement`, which changes a table of the user's, would delete
    /// rows of files by foreign keys.
    pub fn is_cascade(
        &self,
        sql: &str,
        statement: &SqlStatement,
        error: &CatalogError,
    ) -> Result<bool> {
        let is_guarded =
            matches!(error, CatalogError::Sql { message, .. } if message.ends_with(GUARDED));
        if !is_guarded {
            return Ok(false);
        }
        // DROP TABLE changes a table of SQLite's.
        let changed = self.find_changed(sql, statement)?;
        let Some(changed) = changed.filter(|table| !table.starts_with("sqlite_")) else {
            return Ok(false);
        };
        let is_store = |name: &str| name.eq_ignore_ascii_case(&changed);
        Ok(!self
            .catalog
            .stores()
            .rows()?
            .iter()
            .any(|row| is_store(&row.name)))
    }

    /// The inodes whose rows a statement would delete: runs it in the owner's transaction, which
    /// has the write lock, and takes it back.
    pub fn find_cascades(
        &self,
        sql: &str,
        statement: &SqlStatement,
        parameters: &[SqlValue],
        files: Option<Arc<dyn SqlFiles>>,
    ) -> Result<Vec<(StoreId, Ino)>> {
        let stores = self.catalog.stores().rows()?;
        let deleted: Arc<Mutex<Vec<(String, i64)>>> = Arc::default();
        {
            let mut writer = lock(&self.catalog.writer);
            require_open(&writer.connection)?;
            if writer.stage != Stage::Writing {
                return Err(CatalogError::invalid("the transaction may not write yet"));
            }
            execute_all(&writer.connection, "SAVEPOINT larder_trial").at("a trial")?;
            set_guard_switch(&writer.connection, true)?;
            let seen = Arc::clone(&deleted);
            let note = move |action: Action, _database: &str, table: &str, row: i64| {
                if action == Action::SQLITE_DELETE {
                    lock(&seen).push((table.to_owned(), row));
                }
            };
            writer.connection.update_hook(Some(note)).at("a trial")?;
        }
        let tried = self
            .catalog
            .sql()
            .run(sql, statement, parameters, files, &mut |_| {
                ControlFlow::Continue(())
            });
        {
            let mut writer = lock(&self.catalog.writer);
            let nobody = None::<fn(Action, &str, &str, i64)>;
            writer.connection.update_hook(nobody).at("a trial")?;
            if !writer.connection.is_autocommit() {
                let end = "ROLLBACK TO larder_trial; RELEASE larder_trial";
                execute_all(&writer.connection, end).at("a trial")?;
            }
        }
        let (_, _) = tried?;
        let deleted = std::mem::take(&mut *lock(&deleted));
        let of_store = |(table, row): (String, i64)| {
            let store = stores.iter().find(|store| {
                store.store == store.table_store && store.name.eq_ignore_ascii_case(&table)
            })?;
            Some((store.store, Ino(row as u64)))
        };
        Ok(deleted.into_iter().filter_map(of_store).collect())
    }

    /// Sets the user columns of these inodes that refer to other rows ON DELETE CASCADE to NULL.
    pub fn detach(&self, inodes: &[(StoreId, Ino)]) -> Result<()> {
        // Before: a store that is not known yet is asked for on this connection.
        let inodes: Vec<(Arc<StoreSql>, Ino)> = (inodes.iter())
            .map(|(store, ino)| Ok((self.catalog.store_sql(*store)?, *ino)))
            .collect::<Result<_>>()?;
        self.catalog.write_as_user(|txn| {
            for (sql, ino) in &inodes {
                let table = &sql.table;
                let columns: Vec<String> = rows(
                    txn,
                    "SELECT \"from\" FROM pragma_foreign_key_list(?1) WHERE on_delete = 'CASCADE'",
                    [table],
                    |row| row.get(0),
                )
                .at(table)?;
                for column in columns {
                    let column = column.replace('"', "\"\"");
                    let set = format!("UPDATE \"{table}\" SET \"{column}\" = NULL WHERE ino = ?1");
                    txn.prepare_cached(&set)
                        .and_then(|mut set| set.execute([signed(ino.0)]))
                        .at(table)?;
                }
            }
            Ok(())
        })
    }
}
