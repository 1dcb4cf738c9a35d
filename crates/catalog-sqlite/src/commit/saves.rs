//! Saving a file: what users attached to it goes over from the inode that a rename replaces to the
//! new one.
//!
//! # Words
//! A *save* makes inode `to` the file that inode `from` was: programs write a new file and rename
//! it over the old one. A *file* is known by its number, `file_id`: that of the inode that it had
//! first (`first_ino`; NULL: its own). What is *attached* to an inode are the user's columns of its
//! row, its file's number, and the rows that refer to it by a foreign key to `ino`; rows that refer
//! to `file_id` follow by themselves.
//!
//! # Invariants
//! * `SAVE-1` No two inodes of a store have the same `file_id`, and none has one that another file
//!   had. *Guard*: inode numbers are given out once (`CATALOG-4`), and numbers of files are these;
//!   one goes over in a single step, in which the inode that loses it gets its own, or if that was
//!   it, the negative of it, which nothing else can have. `check` compares.
//! * `SAVE-2` All that is attached goes over, or nothing: nothing where the store's `save_keeps`
//!   says so, and where something is attached to the new inode already. *Guard*: [`apply`] is part
//!   of the commit that has the rename, after the new inode is there and before the old one goes,
//!   so no foreign key of the user's acts on that.
//! * `SAVE-3` What goes over has its past: as of the commit before, all is attached to the old
//!   inode. *Guard*: the rows of both are kept before (`HISTORY-1`, `TEMPORAL-4`); rows of other
//!   tables change with their triggers on (`TEMPORAL-1`).
//!
//! # Cost
//! Of a commit without saves nothing. Of a save in a store without columns of the user's, and that
//! nothing refers to: one UPDATE by rowid, about 3 µs; what the schema says of the store is
//! remembered until it changes.

use crate::CatalogStores;
use crate::commit::side_rows::require_no_row;
use crate::conn::meta::set_guard_switch;
use crate::error::{At, CatalogError, Result, ignored, require_row};
use crate::history::Keeper;
use crate::schema::attachments::{Attachments, Key};
use crate::schema::statements::{StoreSql, Stores, insert_inode};
use crate::temporal;
use crate::temporal::user_columns;
use crate::types::changes::{ChangeSet, InodeChange, Save};
use crate::types::codec::{rows, signed, unsigned};
use crate::types::rows::InodeRow;
use larder_format::{CommitSeq, Ino, StoreId};
use rusqlite::config::DbConfig;
use rusqlite::types::Value;
use rusqlite::{Connection, OptionalExtension, params, params_from_iter};
use std::collections::HashSet;
use std::sync::Arc;

/// What the schema says of a store's table.
pub(crate) fn read_attached(txn: &Connection, table: &str) -> Result<Attachments> {
    let users = user_columns::user_columns(txn, table)?;
    let stored: Vec<(String, Option<String>)> = rows(
        txn,
        "SELECT name, dflt_value FROM pragma_table_xinfo(?1) WHERE hidden = 0",
        [table],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
    .at(table)?;
    let stored = stored.into_iter().filter(|(name, _)| users.contains(name));
    let keys: Vec<(String, String, Option<String>)> = rows(
        txn,
        "SELECT t.name, f.\"from\", f.\"to\" FROM main.sqlite_schema AS t, \
           pragma_foreign_key_list(t.name, 'main') AS f \
         WHERE t.type = 'table' AND f.\"table\" = ?1 COLLATE NOCASE",
        [table],
        |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
    )
    .at(table)?;
    let is =
        |to: &Option<String>, name: &str| to.as_deref().unwrap_or("ino").eq_ignore_ascii_case(name);
    let has_unique = txn
        .prepare_cached("SELECT 1 FROM pragma_index_list(?1) WHERE \"unique\"")
        .and_then(|mut find| find.exists([table]))
        .at(table)?;
    Ok(Attachments {
        columns: stored
            .map(|(name, default)| (quoted(&name), default_text(default)))
            .collect(),
        is_parent: !keys.is_empty(),
        keys: (keys.iter())
            .filter(|(.., to)| is(to, "ino") || is(to, "file_id"))
            .map(|(child, from, to)| Key {
                table: format!("main.{}", quoted(child)),
                column: quoted(from),
                is_ino: is(to, "ino"),
            })
            .collect(),
        has_unique,
    })
}

/// The text of a default, as part of an expression: SQLite takes a bare word for text.
fn default_text(default: Option<String>) -> String {
    const VALUES: [&str; 6] = [
        "NULL",
        "TRUE",
        "FALSE",
        "CURRENT_TIME",
        "CURRENT_DATE",
        "CURRENT_TIMESTAMP",
    ];
    let Some(text) = default else {
        return "NULL".into();
    };
    let is_word = text.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_')
        && text.bytes().all(|c| c.is_ascii_alphanumeric() || c == b'_');
    match is_word && !VALUES.iter().any(|value| value.eq_ignore_ascii_case(&text)) {
        true => format!("'{text}'"),
        false => format!("({text})"),
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl CatalogStores<'_> {
    /// Whether saves keep what users attached to the files of a store.
    pub fn save_keeps(&self, store: StoreId) -> Result<bool> {
        let owner = self.catalog.store_sql(store)?.table_store;
        self.catalog.read(|reader| save_keeps(reader, owner))
    }

    /// The inode that is now the file that inode `ino` was after commit `seq`, and is no more: it
    /// was saved since. 10 µs.
    pub fn saved_as(&self, store: StoreId, ino: Ino, seq: CommitSeq) -> Result<Option<Ino>> {
        let sql = self.catalog.store_sql(store)?;
        let text = format!(
            "SELECT ino FROM main.\"{}\" WHERE first_ino = coalesce((SELECT value FROM \
             larder_history WHERE store = ?1 AND what = 'inode' AND ino = ?2 AND key = 0 AND \
             until_seq > ?3 ORDER BY until_seq LIMIT 1), ?2)",
            sql.table
        );
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&text)
                .and_then(|mut find| {
                    let keys = params![sql.table_store.0, signed(ino.0), signed(seq.0)];
                    find.query_row(keys, |row| Ok(Ino(unsigned(row, 0)?)))
                        .optional()
                })
                .at(&sql.table)
        })
    }

    /// Changes that.
    pub fn set_save_keeps(&self, store: StoreId, keeps: bool) -> Result<()> {
        let owner = self.catalog.store_sql(store)?.table_store;
        let value = if keeps { "columns" } else { "none" };
        self.catalog.write(|txn| {
            txn.execute(
                "UPDATE larder_store SET save_keeps = ?2 WHERE id = ?1",
                params![owner.0, value],
            )
            .at("larder_store")
            .map(drop)
        })
    }
}

fn save_keeps(connection: &Connection, owner: StoreId) -> Result<bool> {
    connection
        .prepare_cached("SELECT save_keeps = 'columns' FROM larder_store WHERE id = ?1")
        .and_then(|mut ask| ask.query_row([owner.0], |row| row.get(0)))
        .at("larder_store")
}

/// Whose commit it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// A commit of the engine's own: the schema is one that is committed.
    Commit,
    /// A step of a transaction, whose schema may never be.
    Step,
    /// It is only tried.
    Trial,
}

/// Lets the saves of a commit take effect, in their order. What it says of inodes that go comes
/// after (`SAVE-2`).
pub(crate) fn apply(
    txn: &Connection,
    stores: &Stores,
    changes: &ChangeSet,
    keeper: &Keeper,
    purpose: Purpose,
) -> Result<()> {
    if changes.saves.is_empty() && changes.file_ids.is_empty() {
        return Ok(());
    }
    let (mut going, mut new) = (HashSet::new(), HashSet::new());
    for (store, change) in &changes.inodes {
        match change {
            InodeChange::Delete(ino) => drop(going.insert((*store, *ino))),
            InodeChange::Insert(row) => drop(new.insert((*store, row.ino))),
            InodeChange::Update(..) => {}
        }
    }
    for group in changes.saves.chunk_by(|a, b| a.store == b.store) {
        let saver = Saver::new(txn, &stores[&group[0].store], keeper, purpose)?;
        for save in group {
            let stays = !going.contains(&(save.store, save.from));
            let is_new = new.contains(&(save.store, save.to));
            saver.save(save, stays, is_new)?;
        }
    }
    for (store, ino, file_id) in &changes.file_ids {
        identify(txn, &stores[store], keeper, (signed(ino.0), *file_id))?;
    }
    Ok(())
}

fn attached(txn: &Connection, sql: &StoreSql, purpose: Purpose) -> Result<Arc<Attachments>> {
    if purpose != Purpose::Commit {
        return read_attached(txn, &sql.table).map(Arc::new);
    }
    let version: i64 = txn
        .prepare_cached("PRAGMA schema_version")
        .and_then(|mut ask| ask.query_row([], |row| row.get(0)))
        .at("the schema version")?;
    let mut known = crate::lock(&sql.attached);
    if let Some((seen, found)) = known.as_ref()
        && *seen == version
    {
        return Ok(Arc::clone(found));
    }
    let found = Arc::new(read_attached(txn, &sql.table)?);
    *known = Some((version, Arc::clone(&found)));
    Ok(found)
}

/// Gives an inode the number of a file that no other one has; else nothing.
fn identify(
    txn: &Connection,
    sql: &StoreSql,
    keeper: &Keeper,
    (ino, file_id): (i64, i64),
) -> Result<()> {
    let table = &sql.table;
    let is_free: bool = txn
        .prepare_cached(&format!(
            "SELECT NOT EXISTS (SELECT 1 FROM main.\"{table}\" WHERE ino = ?1 AND first_ino IS \
             NULL) \
             AND NOT EXISTS (SELECT 1 FROM main.\"{table}\" WHERE first_ino = ?1)"
        ))
        .and_then(|mut ask| ask.query_row([file_id], |row| row.get(0)))
        .at(table)?;
    if !is_free {
        return Ok(());
    }
    let first = (file_id != ino).then_some(file_id);
    set_first(txn, sql, keeper, (ino, first))
}

/// Whether the file that an inode was first is another inode now.
pub(crate) fn is_given(txn: &Connection, sql: &StoreSql, ino: Ino) -> Result<bool> {
    let table = &sql.table;
    txn.prepare_cached(&format!(
        "SELECT 1 FROM main.\"{table}\" WHERE first_ino = ?1"
    ))
    .and_then(|mut find| find.exists([signed(ino.0)]))
    .at(table)
}

/// Inserts the row of an inode that comes back, whose file another one is still (`SAVE-1`).
pub(crate) fn insert_given(
    txn: &Connection,
    sql: &StoreSql,
    row: &InodeRow,
    since: CommitSeq,
) -> Result<usize> {
    let text = (sql.inode_insert)
        .replace("since_seq)", "since_seq, first_ino)")
        .replace("?14)", "?14, -?1)");
    txn.prepare(&text)
        .and_then(|mut insert| insert_inode(&mut insert, row, since))
        .at(&sql.table)
}

fn set_first(
    txn: &Connection,
    sql: &StoreSql,
    keeper: &Keeper,
    (ino, first): (i64, Option<i64>),
) -> Result<()> {
    keeper.keep(txn, &sql.keep.inode, params![ino])?; // SAVE-3
    txn.prepare_cached(&format!(
        "UPDATE main.\"{}\" SET first_ino = ?2, since_seq = ?3 WHERE ino = ?1",
        sql.table
    ))
    .and_then(|mut set| set.execute(params![ino, first, signed(keeper.seq.0)]))
    .at(&sql.table)
    .and_then(|changed| match changed {
        1 => Ok(()),
        _ => {
            require_no_row(txn, (&sql.table, &sql.inode), params![ino])?;
            Err(CatalogError::corrupt(format!(
                "{}: inode {ino} is to be another file and does not exist",
                sql.table
            )))
        }
    })
}

/// The saves of a commit in one store.
struct Saver<'s> {
    txn: &'s Connection,
    sql: &'s StoreSql,
    attached: Arc<Attachments>,
    /// The number of the table, if the user's columns are kept.
    kept: Option<i64>,
    keeper: &'s Keeper,
    /// What the store's `save_keeps` says.
    keeps: bool,
}

impl<'s> Saver<'s> {
    fn new(
        txn: &'s Connection,
        sql: &'s StoreSql,
        keeper: &'s Keeper,
        purpose: Purpose,
    ) -> Result<Saver<'s>> {
        Ok(Saver {
            txn,
            sql,
            attached: attached(txn, sql, purpose)?,
            kept: match keeper.keeps() {
                true => temporal::find_kept(txn, &sql.table)?,
                false => None,
            },
            keeper,
            keeps: save_keeps(txn, sql.table_store)?,
        })
    }

    /// `stays`: the inode that is replaced keeps its row, since somebody has it open, or it lives
    /// on.
    fn save(&self, save: &Save, stays: bool, is_new: bool) -> Result<()> {
        if !self.keeps && !save.is_forced {
            return Ok(());
        }
        let (txn, attached, table) = (self.txn, &*self.attached, &self.sql.table);
        let (from, to) = (signed(save.from.0), signed(save.to.0));
        let (Some(from_id), Some(to_id)) = (self.file_id(from)?, self.file_id(to)?) else {
            return Ok(());
        };
        if attached.has_values(txn, table, (to, Some(from)))?
            || attached.is_referred_to(txn, (to, to_id))?
        {
            return Ok(()); // SAVE-2: it is a file of its own.
        }
        let is_child = attached.is_parent && self.is_referred_to_by_ino(from)?;
        let settings = Settings::change(txn, attached.is_parent, is_child)?;
        let done = self.carry((from, from_id), (to, to_id), stays, is_new);
        settings.restore(txn)?;
        done
    }

    fn carry(
        &self,
        (from, from_id): (i64, i64),
        (to, _): (i64, i64),
        stays: bool,
        is_new: bool,
    ) -> Result<()> {
        let (txn, attached) = (self.txn, &*self.attached);
        for key in attached.keys.iter().filter(|key| key.is_ino) {
            let Key { table, column, .. } = key;
            txn.prepare_cached(&format!(
                "UPDATE {table} SET {column} = ?2 WHERE {column} = ?1"
            ))
            .and_then(|mut follow| follow.execute([from, to]))
            .at(table)?;
            if self.refers(key, from)? {
                return Err(ignored(table));
            }
        }
        self.carry_columns(from, to, stays, is_new)?;
        if from_id < 0 {
            return Ok(()); // It gave its file away before.
        }
        if stays || attached.has_unique {
            // The number of its own, unless that is another inode's, or goes over.
            let is_given = from_id == from || is_given(txn, self.sql, Ino(from as u64))?;
            let first = is_given.then_some(-from);
            set_first(txn, self.sql, self.keeper, (from, first))?;
        }
        let first = (from_id != to).then_some(from_id);
        set_first(txn, self.sql, self.keeper, (to, first))
    }

    fn carry_columns(&self, from: i64, to: i64, stays: bool, is_new: bool) -> Result<()> {
        let (txn, attached, table) = (self.txn, &*self.attached, &self.sql.table);
        if !attached.has_values(txn, table, (from, None))? {
            return Ok(());
        }
        if let Some(id) = self.kept {
            temporal::keep_changed(txn, self.keeper, id, from)?; // TEMPORAL-4
            if !is_new {
                temporal::keep_changed(txn, self.keeper, id, to)?;
            }
        }
        let names = attached.columns.iter().map(|(column, _)| column.as_str());
        let names: Vec<&str> = names.collect();
        let list = names.join(", ");
        let values: Vec<Value> = txn
            .prepare_cached(&format!(
                "SELECT {list} FROM main.\"{table}\" WHERE ino = ?1"
            ))
            .and_then(|mut find| {
                find.query_row([from], |row| {
                    (0..names.len()).map(|at| row.get(at)).collect()
                })
            })
            .at(table)?;
        if stays || attached.has_unique {
            self.set_columns(&attached.defaults(), from, Vec::new())?;
        }
        let set = (names.iter().enumerate()).map(|(at, name)| format!("{name} = ?{}", at + 2));
        let set: Vec<String> = set.collect();
        self.set_columns(&set.join(", "), to, values)
    }

    fn set_columns(&self, set: &str, ino: i64, values: Vec<Value>) -> Result<()> {
        let table = &self.sql.table;
        let values = std::iter::once(Value::Integer(ino)).chain(values);
        self.txn
            .prepare_cached(&format!("UPDATE main.\"{table}\" SET {set} WHERE ino = ?1"))
            .and_then(|mut update| update.execute(params_from_iter(values)))
            .at(table)
            .and_then(|changed| require_row(changed, table))
    }

    fn file_id(&self, ino: i64) -> Result<Option<i64>> {
        let table = &self.sql.table;
        self.txn
            .prepare_cached(&format!(
                "SELECT file_id FROM main.\"{table}\" WHERE ino = ?1"
            ))
            .and_then(|mut find| find.query_row([ino], |row| row.get(0)).optional())
            .at(table)
    }

    fn is_referred_to_by_ino(&self, ino: i64) -> Result<bool> {
        let keys = self.attached.keys.iter().filter(|key| key.is_ino);
        for key in keys {
            if self.refers(key, ino)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn refers(&self, Key { table, column, .. }: &Key, ino: i64) -> Result<bool> {
        self.txn
            .prepare_cached(&format!("SELECT 1 FROM {table} WHERE {column} = ?1"))
            .and_then(|mut find| find.exists([ino]))
            .at(table)
    }
}

/// What the connection does by itself: foreign keys do not act on what moves from row to row, since
/// at the end all of them lead to a row again; where rows of other tables follow, their triggers
/// run, with the guard switch open.
struct Settings {
    keys: Option<bool>,
    triggers: Option<bool>,
}

impl Settings {
    fn change(txn: &Connection, is_parent: bool, is_child: bool) -> Result<Settings> {
        let mut was = Settings {
            keys: None,
            triggers: None,
        };
        let of = |config| txn.db_config(config).at("a save");
        if is_parent && of(DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY)? {
            set(txn, DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, false)?;
            was.keys = Some(true);
        }
        if is_child && !of(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER)? {
            set_guard_switch(txn, true)?;
            set(txn, DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, true)?;
            was.triggers = Some(false);
        }
        Ok(was)
    }

    fn restore(self, txn: &Connection) -> Result<()> {
        if let Some(on) = self.triggers {
            set(txn, DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, on)?;
            set_guard_switch(txn, false)?;
        }
        match self.keys {
            Some(on) => set(txn, DbConfig::SQLITE_DBCONFIG_ENABLE_FKEY, on),
            None => Ok(()),
        }
    }
}

fn set(txn: &Connection, config: DbConfig, on: bool) -> Result<()> {
    txn.set_db_config(config, on).at("a save").map(drop)
}
