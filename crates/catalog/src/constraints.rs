//! The user's constraints: what may refuse a row, and finding out before it is too late.
//!
//! The engine acknowledges a change before its group is committed, so what a foreign key or a
//! trigger of the user's would refuse must be found at the operation. For stores that have such
//! things (few do, and most only seldom change) the engine tries the row change first.

use crate::changes::{ChangeSet, InodeChange};
use crate::commit::apply_inodes;
use crate::error::{At, Result};
use crate::transaction::{Stage, as_trial};
use crate::{Catalog, Writer};
use larder_format::StoreId;
use rusqlite::{Transaction, TransactionBehavior, params};

impl Catalog {
    /// Whether something of the user's may refuse a row of a store table: a trigger on it, a foreign
    /// key that points to it or out of it, or a UNIQUE index. (A CHECK on a column of the user's must
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
                     OR EXISTS (SELECT 1 FROM pragma_index_list(?1) WHERE \"unique\")",
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
            ..ChangeSet::default()
        };
        let stores = self.stores_of(&changes)?;
        let mut writer = crate::lock(&self.writer);
        let Writer {
            connection,
            guards,
            stage,
            ..
        } = &mut *writer;
        if *stage != Stage::Idle {
            return as_trial(connection, |step| {
                guards.open(step)?;
                apply_inodes(step, &stores, &changes)
            });
        }
        let txn = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
            .at("the start of a trial")?;
        guards.open(&txn)?;
        apply_inodes(&txn, &stores, &changes)?;
        txn.rollback().at("the end of a trial")
    }
}
