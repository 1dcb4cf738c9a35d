//! Temporal tables: tables of users whose rows have a past, as files have; and the user's columns
//! of the tables of stores (`columns`).
//!
//! # Words
//! An *image* is a row as JSON: an object of its columns; a blob is `["x", hex]`, a real number
//! `["r", text]`. A *record* is a row of `larder_history` with `what = 'row'`: the image that a
//! commit superseded, or NULL where there was no row.
//!
//! # Invariants
//! * `TEMPORAL-1` While the database keeps history, every change of a row leaves a record of what
//!   it was before. As of a moment a row is what its first record after that says, and without one
//!   what it is now. *Guard*: triggers of pure SQL, which run for every client; the merge of a
//!   workspace, which runs none, keeps what it touches.
//! * `TEMPORAL-2` Triggers name columns, and do not keep `ALTER TABLE` from anything: a column that
//!   is gone reads as NULL in them. They are made anew by the first write of a session that sees
//!   another schema. *Guard*: an image is taken in a query whose outer level has a NULL for every
//!   name.
//! * `TEMPORAL-3` A row is known by its primary key, byte by byte. A number that SQLite gives, a
//!   rowid, it may give anew to another row: no restore takes that one for the row that had it,
//!   unless it may go anyway. *Guard*: the record of an INSERT, unless it replaces the row of its
//!   number, or a restore does it (`kind`).
//!
//! What plain SQL changes counts to the next commit. Before the engine commits anything else, it
//! gives that a moment of its own, at the time of the last change (`unsequenced`); and who asks for
//! a time between two changes of plain SQL gets what was there then, by the times of the records,
//! to the millisecond. What the engine's transactions do is as of their end, all at once.
//!
//! REPLACE deletes rows without a DELETE trigger: what it will delete is looked for before.

mod active;
mod columns;
mod row_states;
mod shape;
mod tables;
pub(crate) mod tracking;
pub(crate) mod unsequenced;
pub(crate) mod user_columns;

use crate::conn::meta::find_meta;
use crate::error::{At, CatalogError, Result};
use crate::history::newest_until;
use crate::types::codec::signed;
use crate::types::names::{execute_one, quoted};
use active::{Active, TABLE, active, end, records_after, references};
use columns::Columns;
use larder_format::{CommitSeq, StoreId};
use rusqlite::{Connection, OptionalExtension, params};
use shape::{Shape, joined};

pub use columns::{ColumnsStep, StoreColumns};
pub(crate) use columns::{
    ColumnsText, find_kept, forget_table, keep_absent, keep_changed, keep_deleted,
};
pub use row_states::{ExactRows, PastRows, RowsChange, RowsStep};

/// A temporal table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemporalTable {
    /// Its number, which stays when it is renamed.
    pub id: i64,
    /// Its name now.
    pub name: String,
    /// The first commit as of which it can be read.
    pub since: CommitSeq,
    /// It is that of a store: the user's columns of its files.
    pub store: Option<StoreId>,
}

/// What is kept of one.
enum Kept {
    Rows(Shape),
    Columns(Columns),
}

/// The names and the texts of what keeps a table under this number, as this version makes it: the
/// columns of a store's, the rows of another.
pub(crate) fn texts(
    connection: &Connection,
    id: i64,
    table: &str,
    is_stores: bool,
) -> Result<Vec<(String, String)>> {
    Ok(match is_stores {
        true => Columns::read(connection, id, table)?.texts(),
        false => Shape::read(connection, id, table)?.triggers().into(),
    })
}

/// Begins to keep a table, which can be read as of `seq`; the triggers are still to be made.
fn begin(txn: &Connection, name: &str, store: Option<StoreId>, seq: i64) -> Result<Active> {
    // One of that name may have been dropped.
    txn.execute(
        "UPDATE larder_temporal SET until_seq = ?2 WHERE name = ?1 AND until_seq IS NULL AND NOT \
         EXISTS \
         (SELECT 1 FROM main.sqlite_schema AS s WHERE s.type = 'trigger' AND s.name IN \
         ('larder_temporal_' || larder_temporal.id || '_bd', 'larder_temporal_' || \
         larder_temporal.id || '_columns'))",
        params![name, seq],
    )
    .at(TABLE)?;
    let id: i64 = txn
        .query_row(
            "INSERT INTO larder_temporal (name, since_seq) VALUES (?1, ?2) RETURNING id",
            params![name, seq],
            |row| row.get(0),
        )
        .at(TABLE)?;
    Ok(Active {
        id,
        name: name.into(),
        since: CommitSeq(seq as u64),
        store,
    })
}

/// Makes triggers anew that are not what they should be (`TEMPORAL-2`).
pub(crate) fn refresh(txn: &Connection) -> Result<()> {
    let all = active(txn)?;
    columns::drop_left(txn, &all)?;
    for one in all {
        let shape = match one.kept(txn)? {
            Kept::Rows(shape) => shape,
            Kept::Columns(columns) => {
                if !columns.is_kept(txn)? {
                    columns.make(txn)?;
                }
                continue;
            }
        };
        let found = shape.found_triggers(txn)?;
        if found == shape.triggers().map(|(_, sql)| sql) {
            continue;
        }
        if shape.has_other_keys(&found) {
            // What an older version kept cannot be told of these keys: the past begins anew, with
            // what is here.
            let seq = signed(newest_until(txn)?.0).max(find_meta(txn, "commit_seq")?);
            shape.drop_triggers(txn)?;
            end(txn, one.id, seq)?;
            let anew = begin(txn, &one.name, None, seq)?;
            Shape::read(txn, anew.id, &anew.name)?.make_triggers(txn)?;
        } else {
            shape.make_triggers(txn)?;
        }
    }
    Ok(())
}

/// Keeps what the merge of a workspace will change in a table, `keys` of which are `k0`, … in
/// `ws.old_table`.
pub(crate) fn keep_merged(
    txn: &Connection,
    seq: CommitSeq,
    table: &str,
    (keys, old_table): (&[String], &str),
    is_done: bool,
) -> Result<()> {
    let Some(one) = active(txn)?.into_iter().find(|one| one.name == table) else {
        return Ok(());
    };
    let (id, name) = (one.id, one.name);
    let shape = Shape::read(txn, id, &name)?;
    let terms = keys
        .iter()
        .enumerate()
        .map(|(at, key)| format!("larder_row.{} = larder_old.k{at}", quoted(key)));
    let from = format!(
        "FROM main.{} AS larder_row JOIN ws.{} AS larder_old ON {} WHERE",
        quoted(&name),
        quoted(old_table),
        joined(terms, " AND ")
    );
    let record = shape.record_merged(&seq.to_string(), &from, is_done);
    execute_one(txn, &record).at(&name)
}

fn past_rows(connection: &Connection, table: &str, seq: CommitSeq, at_ns: i64) -> Result<PastRows> {
    let (name, _) = find_table(connection, table)?;
    let found = active(connection)?.into_iter().find(|one| one.name == name);
    let Some(one) = found else {
        return Err(CatalogError::invalid(format!(
            "table '{name}' has no past; 'larder track' keeps it from then on"
        )));
    };
    let (id, since) = (one.id, one.since);
    if seq < since {
        return Err(CatalogError::invalid(format!(
            "table '{name}' is tracked since commit {since}; ask for that or later"
        )));
    }
    if let Some(store) = one.store {
        let past = StoreColumns::read(connection, &one, store, (seq, at_ns))?;
        return Ok(PastRows::of_files(&past, (id, seq)));
    }
    let shape = Shape::read(connection, id, &name)?;
    if shape.has_other_keys(&shape.found_triggers(connection)?) {
        return Err(CatalogError::invalid(format!(
            "an older larder kept the past of table '{name}', by other keys; it begins anew with \
             the next commit"
        )));
    }
    let after = records_after(connection, id, seq, at_ns)?;
    let inodes = references(connection, &name)?;
    Ok(PastRows {
        inodes,
        ..PastRows::new(shape, name, (id, seq, after))
    })
}

/// The name of a table of the user's, as it is written there, or of a store's, and that store.
fn find_table(connection: &Connection, table: &str) -> Result<(String, Option<StoreId>)> {
    let found: Option<(String, String)> = connection
        .query_row(
            "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE \
             NOCASE",
            [table],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .at("the tables")?;
    let (name, kind) = found.ok_or_else(|| CatalogError::not_found(format!("table '{table}'")))?;
    if kind != "table" {
        return Err(CatalogError::invalid(format!(
            "'{name}' is a {kind}; only tables have a past"
        )));
    }
    let store: Option<u32> = connection
        .query_row(
            "SELECT id FROM larder_store WHERE table_store = id AND name = ?1",
            [&name],
            |row| row.get(0),
        )
        .optional()
        .at("larder_store")?;
    if store.is_some() {
        return Ok((name, store.map(StoreId)));
    }
    let is_of_store: bool = connection
        .query_row(
            "SELECT EXISTS (SELECT 1 FROM larder_store WHERE ?1 IN (name || '_dirent', name || \
             '_content', \
             name || '_map', name || '_xattr'))",
            [&name],
            |row| row.get(0),
        )
        .at("larder_store")?;
    let lower = name.to_ascii_lowercase();
    if is_of_store || lower.starts_with("larder_") || lower.starts_with("sqlite_") {
        return Err(CatalogError::invalid(format!(
            "'{name}' is a table of larder: files have a past anyway; give a table of your own, \
             or the name of a store for \
             the columns that you added to it"
        )));
    }
    Ok((name, None))
}

impl Active {
    fn kept(&self, connection: &Connection) -> Result<Kept> {
        Ok(match self.store {
            None => Kept::Rows(Shape::read(connection, self.id, &self.name)?),
            Some(_) => Kept::Columns(Columns::read(connection, self.id, &self.name)?),
        })
    }
}
