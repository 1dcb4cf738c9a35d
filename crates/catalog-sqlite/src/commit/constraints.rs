//! The user's constraints: what may refuse a row, and finding out before it is too late.
//!
//! The engine acknowledges a change before its group is committed, so what a foreign key or a
//! trigger of the user's would refuse must be found at the operation. For stores that have such
//! things (few do, and most only seldom change) the engine tries the row change first.

use crate::commit::refusals::{has_deferred_violations, ino_of, name_keys};
use crate::commit::saves;
use crate::commit::transaction::{Stage, as_step, as_trial};
use crate::commit::unique_order::is_of_unique_index;
use crate::commit::{apply_inodes, apply_sides};
use crate::error::{At, CatalogError, Result};
use crate::history::Keeper;
use crate::schema::statements::Stores;
use crate::schema::{STORE, store_objects};
use crate::temporal::user_columns::user_columns;
use crate::types::changes::{ChangeSet, InodeChange};
use crate::types::codec::{rows, signed};
use crate::types::names::{StoreName, TABLE_SUFFIXES};
use crate::types::sql_text::{Token, tokens};
use crate::{CatalogRules, Writer};
use larder_format::{Ino, StoreId};
use rusqlite::{Connection, OptionalExtension, Transaction, TransactionBehavior};
use std::collections::{HashMap, HashSet};

impl CatalogRules<'_> {
    /// The stores of whose tables something of the user's may refuse a row: a trigger on one, a
    /// foreign key that points to one or out of it, a UNIQUE index but of `file_id` (`SAVE-1`), a
    /// CHECK, or a generated column that is NOT NULL. Cost ≈ 0.1 ms, and 50 µs for each store.
    pub fn constrained_stores(&self) -> Result<HashSet<StoreId>> {
        self.catalog.read(|reader| {
            let stores = read_tables(reader)?;
            // Table → the stores that it, or a side table of it, may stop, by its name.
            let mut owner_of: HashMap<String, StoreId> = HashMap::new();
            for (store, table) in stores.iter().filter_map(|row| Some((row.id, row.table()?))) {
                let table = table.to_ascii_lowercase();
                for suffix in TABLE_SUFFIXES {
                    owner_of.insert(format!("{table}{suffix}"), store);
                }
            }
            let mut found: HashSet<StoreId> = HashSet::new();
            // All that may refuse a row of several stores is looked for once.
            for sql in [
                "SELECT tbl_name FROM sqlite_schema WHERE type = 'trigger' \
                 AND name NOT LIKE 'larder\\_%' ESCAPE '\\'",
                "SELECT keys.\"table\" FROM sqlite_schema AS t, \
                 pragma_foreign_key_list(t.name) AS keys \
                 WHERE t.type = 'table' AND instr(lower(t.sql), 'references') > 0",
            ] {
                let tables =
                    rows(reader, sql, [], |row| row.get::<_, String>(0)).at("the schema")?;
                let tables = tables.iter().map(|table| table.to_ascii_lowercase());
                found.extend(tables.filter_map(|table| owner_of.get(&table)));
            }
            for row in &stores {
                if let Some(table) = row.table()
                    && !found.contains(&row.id)
                    && has_constraints(reader, table)?
                {
                    found.insert(row.id);
                }
            }
            let shown = stores.iter().filter(|row| found.contains(&row.owner));
            Ok(shown.map(|row| row.id).collect())
        })
    }

    /// Whether anything in the schema is the user's: a table, a view, a trigger, an index, or a
    /// column of a store's table. Where that is, rules may come. Cost ≈ 0.1 ms, and 20 µs for each
    /// store.
    pub fn has_users_schema(&self) -> Result<bool> {
        self.catalog.read(|reader| {
            let stores = read_tables(reader)?;
            let tables: Vec<&str> = stores.iter().filter_map(StoreTable::table).collect();
            let own: HashSet<String> = (tables.iter())
                .flat_map(|table| store_objects(&table.to_ascii_lowercase()))
                .collect();
            let others = rows(
                reader,
                "SELECT type = 'trigger', name FROM sqlite_schema \
                 WHERE name NOT LIKE 'larder\\_%' ESCAPE '\\' \
                 AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\'",
                [],
                |row| Ok((row.get::<_, bool>(0)?, row.get::<_, String>(1)?)),
            )
            .at("the schema")?;
            let is_own = |name: &str| own.contains(&name.to_ascii_lowercase());
            if (others.iter()).any(|(is_trigger, name)| *is_trigger || !is_own(name)) {
                return Ok(true);
            }
            for table in tables {
                if !user_columns(reader, table)?.is_empty() {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// [`CatalogRules::try_rows`] of one inode, behind nothing.
    pub fn try_inode(&self, store: StoreId, change: &InodeChange) -> Result<()> {
        let changes = ChangeSet {
            inodes: vec![(store, change.clone())],
            ..ChangeSet::default()
        };
        self.try_rows(&ChangeSet::default(), &ChangeSet::default(), &changes)
    }

    /// Writes the inodes, names and extended attributes of `pending` and then those of `changes`,
    /// with its saves, and takes all of it back: [`CatalogError::Constraint`] when the user's rules
    /// refuse `changes`; what they refuse of `pending` is passed over. What both have is written as
    /// `changes` has it; `before` has it as it was pending before, and inodes are written so first.
    /// An [`InodeChange::Update`] of an inode that is not there is a new one, and a removal of one
    /// is nothing. In a transaction of its owner deferred foreign keys are not looked at: SQL may
    /// still put them right. Takes the write lock for a moment; no sync.
    pub fn try_rows(
        &self,
        pending: &ChangeSet,
        before: &ChangeSet,
        changes: &ChangeSet,
    ) -> Result<()> {
        let mut stores = self.catalog.stores_of(changes)?;
        stores.extend(self.catalog.stores_of(pending)?);
        let mut writer = crate::lock(&self.catalog.writer);
        let Writer {
            connection,
            guards,
            stage,
            ..
        } = &mut *writer;
        let is_own = *stage == Stage::Idle;
        let mut tried = |step: &Connection| {
            guards.open(step)?;
            let trial = Trial {
                step,
                stores: &stores,
                is_own,
            };
            trial.run(pending, before, changes)
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
                let table = &stores[store].table; // Asked for above.
                if let Some(named) = name_keys(connection, table, *ino)? {
                    return Err(named);
                }
            }
        }
        Err(error)
    }
}

/// A store, and whose tables it shows.
struct StoreTable {
    id: StoreId,
    owner: StoreId,
    name: String,
}

impl StoreTable {
    /// The name of its table, if it has one of its own.
    fn table(&self) -> Option<&str> {
        (self.owner == self.id).then_some(self.name.as_str())
    }
}

fn read_tables(connection: &Connection) -> Result<Vec<StoreTable>> {
    let sql = "SELECT id, table_store, name FROM larder_store";
    rows(connection, sql, [], |row| {
        Ok(StoreTable {
            id: StoreId(row.get(0)?),
            owner: StoreId(row.get(1)?),
            name: row.get::<_, StoreName>(2)?.into(),
        })
    })
    .at("larder_store")
}

/// What the tables of one store say of that themselves.
fn has_constraints(connection: &Connection, table: &str) -> Result<bool> {
    let has = |sql: &str, table: &str| {
        let mut ask = connection.prepare_cached(sql)?;
        ask.query_row([table], |row| row.get::<_, bool>(0))
    };
    let indexes = "SELECT EXISTS (SELECT 1 FROM pragma_index_list(?1) AS l \
        WHERE l.\"unique\" AND l.origin <> 'pk' \
          AND (SELECT group_concat(coalesce(name, '?')) FROM pragma_index_info(l.name)) \
            IS NOT 'file_id')";
    for suffix in TABLE_SUFFIXES {
        if has(indexes, &format!("{table}{suffix}")).at(table)? {
            return Ok(true);
        }
    }
    let generated = "SELECT EXISTS (SELECT 1 FROM pragma_table_xinfo(?1) \
        WHERE hidden > 1 AND \"notnull\" AND name IS NOT 'file_id')";
    let keys = "SELECT EXISTS (SELECT 1 FROM pragma_foreign_key_list(?1))";
    if has(generated, table).at(table)? || has(keys, table).at(table)? {
        return Ok(true);
    }
    let text: Option<String> = connection
        .prepare_cached(
            "SELECT sql FROM sqlite_schema WHERE type = 'table' AND name = ?1 COLLATE NOCASE",
        )
        .and_then(|mut find| find.query_row([table], |row| row.get(0)).optional())
        .map(Option::flatten)
        .at(table)?;
    Ok(has_check(&text.unwrap_or_default()))
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

/// Rows that are written to be taken back.
struct Trial<'t> {
    step: &'t Connection,
    stores: &'t Stores,
    /// The transaction is the catalog's own, and would end with these rows.
    is_own: bool,
}

impl Trial<'_> {
    fn run(&self, pending: &ChangeSet, before: &ChangeSet, changes: &ChangeSet) -> Result<()> {
        let others = || {
            let inodes_before = ChangeSet {
                inodes: before.inodes.clone(),
                ..ChangeSet::default()
            };
            joined(beside(pending, changes), &inodes_before)
        };
        let refused = match as_step(self.step, |_| self.write(others())) {
            Ok(()) => return self.write_last(changes.clone()),
            Err(error) if !error.is_of_a_rule() => return Err(error),
            Err(_) if self.step.is_autocommit() => return Ok(()), // It rolled all of it back.
            Err(error) => error,
        };
        // What refuses the others may be a value that only the changes take away.
        let beside_them = |changed: &ChangeSet| joined(beside(pending, changes), changed);
        let is_blamed = is_of_unique_index(&refused)
            && match as_step(self.step, |_| self.write_last(beside_them(changes))) {
                Ok(()) => return Ok(()),
                Err(error) if !error.is_of_a_rule() || self.step.is_autocommit() => {
                    return Err(error);
                }
                Err(error) => {
                    is_of_unique_index(&error) && self.is_accepted(beside_them(before))?
                }
            };
        for one in singly(&others()) {
            match as_step(self.step, |_| self.write(one)) {
                Err(error) if !error.is_of_a_rule() => return Err(error),
                _ if self.step.is_autocommit() => return Ok(()),
                _ => {}
            }
        }
        self.write_last(changes.clone())?;
        match is_blamed {
            true => Err(refused), // By what the changes leave.
            false => Ok(()),
        }
    }

    /// Whether the rules accept these rows; they are taken back.
    fn is_accepted(&self, rows: ChangeSet) -> Result<bool> {
        match as_trial(self.step, |_| self.write(rows)) {
            Ok(()) => Ok(true),
            Err(error) if error.is_of_a_rule() => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Writes what is asked about.
    fn write_last(&self, changes: ChangeSet) -> Result<()> {
        let was_violated = has_deferred_violations(self.step)?;
        self.write(changes)?;
        match self.is_own && !was_violated && has_deferred_violations(self.step)? {
            true => Err(CatalogError::Constraint {
                table: "the commit".into(),
                constraint: "FOREIGN KEY constraint failed".into(),
            }),
            false => Ok(()),
        }
    }

    fn write(&self, mut changes: ChangeSet) -> Result<()> {
        let rows = (changes.inodes.iter()).map(|row| as_there(self.step, self.stores, row));
        let rows = rows.collect::<Result<Vec<_>>>()?;
        changes.inodes = rows.into_iter().flatten().collect();
        let is_new = |(_, change): &_| matches!(change, InodeChange::Insert(_));
        changes.has_revived = changes.inodes.iter().any(is_new);
        let trial = saves::Purpose::Trial;
        apply_inodes(self.step, self.stores, &changes, &Keeper::off(), trial)?;
        apply_sides(self.step, self.stores, &changes, &Keeper::off())
    }
}

/// What is pending of rows that `changes` does not write.
fn beside(pending: &ChangeSet, changes: &ChangeSet) -> ChangeSet {
    fn id_of((store, change): &(StoreId, InodeChange)) -> (StoreId, Ino) {
        (*store, ino_of(change))
    }
    let inodes: HashSet<_> = changes.inodes.iter().map(id_of).collect();
    let names: HashSet<_> = (changes.dirents.iter())
        .map(|(store, dir, name, _)| (*store, *dir, name))
        .collect();
    let xattrs: HashSet<_> = (changes.xattrs.iter())
        .map(|(store, ino, name, _)| (*store, *ino, name))
        .collect();
    let gone: HashSet<_> = (changes.inodes.iter())
        .filter(|(_, change)| matches!(change, InodeChange::Delete(_)))
        .map(id_of)
        .collect();
    let inodes = pending
        .inodes
        .iter()
        .filter(|row| !inodes.contains(&id_of(row)));
    let dirents = (pending.dirents.iter())
        .filter(|(store, dir, name, _)| !names.contains(&(*store, *dir, name)));
    let xattrs = pending.xattrs.iter().filter(|(store, ino, name, _)| {
        !gone.contains(&(*store, *ino)) && !xattrs.contains(&(*store, *ino, name))
    });
    ChangeSet {
        inodes: inodes.cloned().collect(),
        dirents: dirents.cloned().collect(),
        xattrs: xattrs.cloned().collect(),
        ..ChangeSet::default()
    }
}

/// The rows of both, in the order of a commit.
fn joined(mut others: ChangeSet, changes: &ChangeSet) -> ChangeSet {
    others.inodes.extend_from_slice(&changes.inodes);
    (others.inodes).sort_by_key(|(_, change)| matches!(change, InodeChange::Delete(_)));
    others.dirents.extend_from_slice(&changes.dirents);
    (others.dirents).sort_by_key(|(store, _, _, target)| (*store, target.is_some()));
    others.xattrs.extend_from_slice(&changes.xattrs);
    others.saves.clone_from(&changes.saves);
    others
}

/// Each of these rows by itself.
fn singly(changes: &ChangeSet) -> impl Iterator<Item = ChangeSet> {
    let inodes = changes.inodes.iter().map(|row| ChangeSet {
        inodes: vec![row.clone()],
        ..ChangeSet::default()
    });
    let names = changes.dirents.iter().map(|entry| ChangeSet {
        dirents: vec![entry.clone()],
        ..ChangeSet::default()
    });
    let xattrs = changes.xattrs.iter().map(|xattr| ChangeSet {
        xattrs: vec![xattr.clone()],
        ..ChangeSet::default()
    });
    inodes.chain(names).chain(xattrs)
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
