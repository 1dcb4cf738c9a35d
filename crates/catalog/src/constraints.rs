//! The user's constraints: what may refuse a row, and finding out before it is too late.
//!
//! The engine acknowledges a change before its group is committed, so what a foreign key or a
//! trigger of the user's would refuse must be found at the operation. For stores that have such
//! things (few do, and most only seldom change) the engine tries the row change first.

use crate::changes::{ChangeSet, InodeChange};
use crate::codec::signed;
use crate::columns::user_columns;
use crate::commit::{apply_inodes, apply_sides};
use crate::error::{At, CatalogError, Result};
use crate::history::Keeper;
use crate::refusals::{has_deferred_violations, ino_of, is_of_a_rule, name_keys};
use crate::saves;
use crate::schema::STORE;
use crate::sql_text::{Token, tokens};
use crate::statements::Stores;
use crate::store_retention::owners;
use crate::transaction::{Stage, as_step, as_trial};
use crate::{Catalog, Writer};
use larder_format::StoreId;
use rusqlite::{Connection, Transaction, TransactionBehavior};

impl Catalog {
    /// Whether something of the user's may refuse a row of a store's tables: a trigger on one, a
    /// foreign key that points to one or out of it, a UNIQUE index but of `file_id` (`SAVE-1`), a
    /// CHECK, or a generated column that is NOT NULL. Cost ≈ 0.1 ms.
    pub fn has_constraints(&self, store: StoreId) -> Result<bool> {
        let sql = self.store_sql(store)?;
        let ask = format!(
            "WITH own (name) AS (VALUES ('{0}'), ('{0}_dirent'), ('{0}_content'), ('{0}_map'), \
             ('{0}_xattr')) \
             SELECT EXISTS (SELECT 1 FROM sqlite_schema AS object JOIN own \
               ON tbl_name = own.name COLLATE NOCASE WHERE type = 'trigger' \
               AND object.name NOT LIKE 'larder\\_%' ESCAPE '\\') \
             OR EXISTS (SELECT 1 FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS f \
               WHERE t.type = 'table' AND (f.\"table\" COLLATE NOCASE IN (SELECT name FROM own) \
                 OR t.name = '{0}' COLLATE NOCASE)) \
             OR EXISTS (SELECT 1 FROM own, pragma_index_list(own.name) AS l \
               WHERE l.\"unique\" AND l.origin <> 'pk' \
                 AND (SELECT group_concat(coalesce(name, '?')) FROM pragma_index_info(l.name)) \
                   IS NOT 'file_id') \
             OR EXISTS (SELECT 1 FROM pragma_table_xinfo('{0}') \
               WHERE hidden > 1 AND \"notnull\" AND name IS NOT 'file_id'), \
             (SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = '{0}' COLLATE NOCASE)",
            sql.table
        );
        self.read(|reader| {
            reader
                .prepare_cached(&ask)
                .and_then(|mut ask| {
                    ask.query_row([], |row| {
                        let text: Option<String> = row.get(1)?;
                        Ok(row.get(0)? || has_check(&text.unwrap_or_default()))
                    })
                })
                .at(&sql.table)
        })
    }

    /// Whether anything in the schema is the user's: a table, a view, a trigger, an index, or a
    /// column of a store's table. Where that is, rules may come. Cost ≈ 0.1 ms.
    pub fn has_users_schema(&self) -> Result<bool> {
        self.read(|reader| {
            let is_any: bool = reader
                .prepare_cached(
                    "WITH own (name) AS (SELECT store.name || suffix.column1 \
                       FROM larder_store AS store, (VALUES (''), ('_dirent'), ('_content'), \
                       ('_map'), ('_xattr'), ('_path'), ('_dirent_ino')) AS suffix) \
                     SELECT EXISTS (SELECT 1 FROM sqlite_schema AS object \
                       WHERE name NOT LIKE 'larder\\_%' ESCAPE '\\' \
                       AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' \
                       AND NOT EXISTS (SELECT 1 FROM own WHERE own.name = object.name \
                         COLLATE NOCASE AND object.type <> 'trigger'))",
                )
                .and_then(|mut ask| ask.query_row([], |row| row.get(0)))
                .at("the schema")?;
            if is_any {
                return Ok(true);
            }
            for store in owners(reader)? {
                let table = &self.store_sql(store)?.table;
                if !user_columns(reader, table)?.is_empty() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// [`Catalog::try_rows`] of one inode, behind nothing.
    pub fn try_inode(&self, store: StoreId, change: &InodeChange) -> Result<()> {
        let changes = ChangeSet {
            inodes: vec![(store, change.clone())],
            ..ChangeSet::default()
        };
        self.try_rows(&ChangeSet::default(), &changes)
    }

    /// Writes the inodes and names of `pending` and then those of `changes`, with its saves and
    /// extended attributes, and takes all of it back: [`CatalogError::Constraint`] when the user's
    /// rules refuse `changes`; what they refuse of `pending` is passed over. An
    /// [`InodeChange::Update`] of an inode that is not there is a new one, and a removal of one is
    /// nothing. In a transaction of its owner deferred foreign keys are not looked at: SQL may
    /// still put them right. Takes the write lock for a moment; no sync.
    pub fn try_rows(&self, pending: &ChangeSet, changes: &ChangeSet) -> Result<()> {
        let mut stores = self.stores_of(changes)?;
        stores.extend(self.stores_of(pending)?);
        let mut writer = crate::lock(&self.writer);
        let Writer {
            connection,
            guards,
            stage,
            ..
        } = &mut *writer;
        let is_own = *stage == Stage::Idle;
        let mut tried = |step: &Connection| {
            guards.open(step)?;
            let inodes = pending.inodes.iter().map(|row| {
                Ok(as_there(step, &stores, row)?.map(|row| ChangeSet {
                    inodes: vec![row],
                    ..ChangeSet::default()
                }))
            });
            let names = pending.dirents.iter().map(|entry| {
                Ok(Some(ChangeSet {
                    dirents: vec![entry.clone()],
                    ..ChangeSet::default()
                }))
            });
            for one in inodes.chain(names) {
                let Some(one) = one? else { continue };
                match as_step(step, |step| try_one(step, &stores, &one)) {
                    Err(error) if !is_of_a_rule(&error) => return Err(error),
                    _ if step.is_autocommit() => return Ok(()), // Its rule rolled all of it back.
                    _ => {}
                }
            }
            let was_violated = has_deferred_violations(step)?;
            let rows = (changes.inodes.iter()).map(|row| as_there(step, &stores, row));
            let inodes: Vec<_> = rows
                .collect::<Result<Vec<_>>>()?
                .into_iter()
                .flatten()
                .collect();
            let is_new = |(_, change): &_| matches!(change, InodeChange::Insert(_));
            let present = ChangeSet {
                has_revived: inodes.iter().any(is_new),
                inodes,
                saves: changes.saves.clone(),
                dirents: changes.dirents.clone(),
                xattrs: changes.xattrs.clone(),
                ..ChangeSet::default()
            };
            try_one(step, &stores, &present)?;
            match is_own && !was_violated && has_deferred_violations(step)? {
                true => Err(CatalogError::Constraint {
                    table: "the commit".into(),
                    constraint: "FOREIGN KEY constraint failed".into(),
                }),
                false => Ok(()),
            }
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
            // No savepoint can be set under a client's statement; the change itself fails in a
            // moment.
            Stage::Client => return Ok(()),
        };
        let error = match outcome.map_err(|error| guards.explain(error)) {
            Err(error @ CatalogError::Constraint { .. }) => error,
            outcome => return outcome,
        };
        for (store, change) in &changes.inodes {
            if let InodeChange::Delete(ino) = change {
                let table = &self.store_sql(*store)?.table;
                if let Some(named) = name_keys(connection, table, *ino)? {
                    return Err(named);
                }
            }
        }
        Err(error)
    }
}

/// Whether the text of a store's table has a CHECK that is not ours: on a column of the user's, of
/// whichever column.
fn has_check(text: &str) -> bool {
    let count = |text: &str| {
        let is_check = |token: &Token| *token == Token::Word("check".into());
        tokens(text).filter(is_check).count()
    };
    count(text) > count(own_table())
}

/// The statement that makes the table of a store: the first one of the template, behind comments.
fn own_table() -> &'static str {
    let made = STORE.find("CREATE TABLE").map_or(STORE, |at| &STORE[at..]);
    made.split_once(';').map_or(made, |(table, _)| table)
}

fn try_one(step: &Connection, stores: &Stores, changes: &ChangeSet) -> Result<()> {
    let trial = saves::Purpose::Trial;
    apply_inodes(step, stores, changes, &Keeper::off(), trial)?;
    apply_sides(step, stores, changes, &Keeper::off())
}

/// A change of an inode as one that fits what is there; `None`: there is nothing to remove.
fn as_there(
    step: &Connection,
    stores: &Stores,
    (store, change): &(StoreId, InodeChange),
) -> Result<Option<(StoreId, InodeChange)>> {
    let table = &stores[store].table;
    let is_there = step
        .prepare_cached(&format!("SELECT 1 FROM main.\"{table}\" WHERE ino = ?1"))
        .and_then(|mut find| find.exists([signed(ino_of(change).0)]))
        .at(table)?;
    Ok(match change {
        InodeChange::Update(row, _) if !is_there => {
            Some((*store, InodeChange::Insert(row.clone())))
        }
        InodeChange::Delete(_) if !is_there => None,
        other => Some((*store, other.clone())),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_check_of_the_users_is_told_from_ours() {
        let own = own_table().replace("{name}", "main");
        assert!(own.contains("CHECK"));
        assert!(!has_check(&own));
        let with = |column: &str| format!("{}, {column})", own.trim_end().trim_end_matches(')'));
        assert!(!has_check(&with("note TEXT DEFAULT 'CHECK' /* CHECK */")));
        assert!(has_check(&with("c INT check(size < 1000)")));
    }
}
