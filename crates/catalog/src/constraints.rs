//! The user's constraints: what may refuse a row, and finding out before it is too late.
//!
//! The engine acknowledges a change before its group is committed, so what a foreign key or a
//! trigger of the user's would refuse must be found at the operation. For stores that have such
//! things (few do, and most only seldom change) the engine tries the row change first.

use crate::changes::{ChangeSet, InodeChange};
use crate::codec::signed;
use crate::commit::apply_inodes;
use crate::error::{At, CatalogError, Result};
use crate::history::Keeper;
use crate::names::quoted;
use crate::read::rows;
use crate::saves;
use crate::transaction::{Stage, as_trial};
use crate::{Catalog, Writer};
use larder_format::{Ino, StoreId};
use rusqlite::{Connection, Transaction, TransactionBehavior, params};

impl Catalog {
    /// Whether something of the user's may refuse a row of a store table: a trigger on it, a foreign
    /// key that points to it or out of it, or a UNIQUE index but of `file_id` (`SAVE-1`). (A CHECK on a column of the user's must
    /// accept the column's default anyway, or `ALTER TABLE` refuses it.) Cost ≈ 0.1 ms.
    pub fn has_constraints(&self, store: StoreId) -> Result<bool> {
        let sql = self.store_sql(store)?;
        self.read(|reader| {
            reader
                .prepare_cached(
                    "SELECT EXISTS (SELECT 1 FROM sqlite_schema WHERE type = 'trigger' \
                       AND tbl_name = ?1 COLLATE NOCASE AND name NOT LIKE 'larder\\_%' ESCAPE '\\') \
                     OR EXISTS (SELECT 1 FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS f \
                       WHERE t.type = 'table' AND (f.\"table\" = ?1 COLLATE NOCASE \
                         OR t.name = ?1 COLLATE NOCASE)) \
                     OR EXISTS (SELECT 1 FROM pragma_index_list(?1) AS l WHERE l.\"unique\" \
                       AND (SELECT group_concat(coalesce(name, '?')) FROM pragma_index_info(l.name)) \
                         IS NOT 'file_id')",
                )
                .and_then(|mut ask| ask.query_row(params![sql.table], |row| row.get(0)))
                .at(&sql.table)
        })
    }

    /// Applies one row change and takes it back: [`crate::CatalogError::Constraint`] when the user's
    /// constraints refuse it. Deferred foreign keys are not looked at. Takes the write lock for a
    /// moment; no sync.
    pub fn try_inode(&self, store: StoreId, change: &InodeChange) -> Result<()> {
        let changes = ChangeSet {
            inodes: vec![(store, change.clone())],
            has_revived: matches!(change, InodeChange::Insert(_)),
            ..ChangeSet::default()
        };
        self.try_changes(&changes)
    }

    /// The same of a save that removes the inode which it replaces (`SAVE-2`).
    pub fn try_save(&self, store: StoreId, from: Ino, to: Ino) -> Result<()> {
        self.try_changes(&saves::trial(store, from, to))
    }

    fn try_changes(&self, changes: &ChangeSet) -> Result<()> {
        let stores = self.stores_of(changes)?;
        let mut writer = crate::lock(&self.writer);
        let Writer {
            connection,
            guards,
            stage,
            ..
        } = &mut *writer;
        let mut tried = |step: &Connection| {
            guards.open(step)?;
            let trial = saves::Purpose::Trial;
            apply_inodes(step, &stores, changes, &Keeper::off(), trial)
        };
        let outcome = match *stage {
            Stage::Idle => {
                let txn = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
                    .at("the start of a trial")?;
                let outcome = tried(&txn);
                // A statement that is ended takes its transaction with it.
                if !txn.is_autocommit() {
                    txn.rollback().at("the end of a trial")?;
                }
                outcome
            }
            Stage::Reading | Stage::Writing => as_trial(connection, tried),
            // No savepoint can be set under a client's statement; the change itself fails in a moment.
            Stage::Client => return Ok(()),
        };
        let outcome = outcome.map_err(|error| guards.explain(error));
        match (outcome, &changes.inodes[..]) {
            (Err(error @ CatalogError::Constraint { .. }), [(store, InodeChange::Delete(ino))]) => {
                let table = &self.store_sql(*store)?.table;
                Err(name_keys(connection, table, *ino)?.unwrap_or(error))
            }
            (outcome, _) => outcome,
        }
    }
}

/// SQLite does not say which foreign key failed: looks for those that keep an inode.
fn name_keys(connection: &Connection, table: &str, ino: Ino) -> Result<Option<CatalogError>> {
    type Key = (String, i64, String, Option<String>);
    let keys: Vec<Key> = rows(
        connection,
        "SELECT t.name, f.id, f.\"from\", f.\"to\" \
         FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS f \
         WHERE t.type = 'table' AND f.\"table\" = ?1 COLLATE NOCASE \
           AND f.on_delete IN ('RESTRICT', 'NO ACTION') ORDER BY t.name, f.id, f.seq",
        [table],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)),
    )
    .at(table)?;
    for columns in keys.chunk_by(|one, other| (&one.0, one.1) == (&other.0, other.1)) {
        let child = &columns[0].0;
        let pairs: Vec<String> = (columns.iter())
            .map(|(_, _, from, to)| {
                let to = to.as_deref().unwrap_or("ino");
                format!("child.{} = parent.{}", quoted(from), quoted(to))
            })
            .collect();
        let count = format!(
            "SELECT count(*) FROM {} AS child JOIN {} AS parent ON {} WHERE parent.ino = ?1",
            quoted(child),
            quoted(table),
            pairs.join(" AND ")
        );
        let count: i64 = connection
            .query_row(&count, [signed(ino.0)], |row| row.get(0))
            .at(child)?;
        if count > 0 {
            let names: Vec<&str> = columns.iter().map(|column| column.2.as_str()).collect();
            return Ok(Some(CatalogError::Constraint {
                table: child.clone(),
                constraint: format!(
                    "FOREIGN KEY constraint failed: inode {ino} of {table} is referenced by {} of {count} rows",
                    names.join(", ")
                ),
            }));
        }
    }
    Ok(None)
}
