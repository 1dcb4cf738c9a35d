//! Making a catalog of format 1 one of format 2, in a copy that nobody has open.
//!
//! System tables are made anew and filled; the user's tables, and the tables of stores with the
//! columns, indexes and triggers that users gave them, stay where they are. Guards are made anew,
//! and so is what names a table by its old name, or is on the view of a store, which goes with it:
//! what tells the feed and the history of plain SQL, and triggers and views of the user's.

use crate::conn::meta::set_guard_switch;
use crate::error::{At, CatalogError, Result};
use crate::feed;
use crate::schema::expected::Expected;
use crate::schema::{self, ONE, TWO};
use crate::temporal;
use crate::types::codec::rows;
use crate::types::names::{execute_one, quoted};
use larder_format::StoreId;
use larder_format::checksum::crc32c_of;
use larder_format_one::{REDO_GONE, REDO_ROW, RENAMED};
use rusqlite::config::DbConfig;
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, Transaction, TransactionBehavior};
use std::collections::{BTreeMap, HashSet};

/// What the tables of format 1 are called while those of format 2 are filled.
const OLD: &str = "larder_format_one_";
/// The checksum of two blobs, either of which may be NULL.
const CHECKSUM: &str = "larder_checksum";

/// Converts a catalog of any version of format 1.
pub(crate) fn convert(copy: &Connection) -> Result<()> {
    copy.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER, false)
        .at("the copy")?;
    for (pragma, on) in [("foreign_keys", false), ("legacy_alter_table", true)] {
        copy.pragma_update(None, pragma, on).at("the copy")?;
    }
    register_checksum(copy)?;
    schema::upgrade(copy, &ONE, |_| Ok(()))?;
    let txn = Transaction::new_unchecked(copy, TransactionBehavior::Immediate).at("the copy")?;
    let stores = schema::stores_with_tables(&txn)?;
    let names: Vec<(StoreId, String)> = (stores.into_iter())
        .map(|(id, name)| (id, name.into()))
        .collect();
    let before = user_code(&txn, &names)?;
    let anew = drop_code(&txn, &names, &before)?;
    let tables = set_aside(&txn)?;
    schema::apply(&txn, &TWO, 0)?;
    set_guard_switch(&txn, true)?;
    for table in &tables {
        fill(&txn, table)?;
    }
    for table in &tables {
        execute_one(&txn, &format!("DROP TABLE {OLD}{table}")).at(table)?;
    }
    for (id, name) in &names {
        add_checksums(&txn, name)?;
        schema::add_store_code(&txn, *id, name)?;
    }
    for (_, sql) in &anew {
        execute_one(&txn, sql).at("the triggers")?;
    }
    if user_code(&txn, &names)?.keys().ne(before.keys()) {
        return Err(CatalogError::corrupt(
            "a trigger or a view was not converted (UPGRADE-3)",
        ));
    }
    feed::watch_stores_anew(&txn)?;
    temporal::refresh(&txn)?;
    set_guard_switch(&txn, false)?;
    require_sound(&txn)?;
    txn.commit().at("the copy")
}

fn register_checksum(copy: &Connection) -> Result<()> {
    copy.create_scalar_function(
        CHECKSUM,
        2,
        FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DETERMINISTIC,
        |context| {
            let part = |index| match context.get_raw(index) {
                rusqlite::types::ValueRef::Null => Ok(&[][..]),
                value => value.as_bytes(),
            };
            Ok(i64::from(crc32c_of(&[part(0)?, part(1)?])))
        },
    )
    .at("the copy")
}

/// Triggers and views that format 1 does not make for every database: kind and name, the table
/// that each is on, its text. What the feed and tracked tables have added is among them.
type Code = BTreeMap<(String, String), (String, String)>;

fn user_code(txn: &Connection, stores: &[(StoreId, String)]) -> Result<Code> {
    let list = "SELECT type, name, tbl_name, sql FROM main.sqlite_schema \
                WHERE type IN ('trigger', 'view')";
    let all: Vec<[String; 4]> = rows(txn, list, [], |row| {
        Ok([row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?])
    })
    .at("sqlite_schema")?;
    let mut own = HashSet::new();
    for format in [&ONE, &TWO] {
        let expected = Expected::of(format.newest())?;
        let of_stores = (stores.iter()).flat_map(|(id, name)| expected.store(*id, name));
        let made = expected.system.values().cloned().chain(of_stores);
        own.extend(made.map(|object| object.name.to_ascii_lowercase()));
    }
    let users = all
        .into_iter()
        .filter(|[_, name, ..]| !own.contains(&name.to_ascii_lowercase()));
    Ok(users
        .map(|[kind, name, table, sql]| ((kind, name), (table, sql)))
        .collect())
}

/// Drops the triggers and views of format 1, and the user's that name a table by its old name or go
/// with a view; returns what is to be made anew, views first.
fn drop_code(
    txn: &Connection,
    stores: &[(StoreId, String)],
    users: &Code,
) -> Result<Vec<(String, String)>> {
    let mut anew = Vec::new();
    for ((kind, name), (table, sql)) in users {
        let new = in_new_words(sql);
        let goes_with =
            |(_, store): &(StoreId, String)| table.eq_ignore_ascii_case(&format!("{store}_path"));
        let is_on_dropped = stores.iter().any(goes_with)
            || users
                .get(&("view".into(), table.clone()))
                .is_some_and(|(_, sql)| in_new_words(sql) != *sql);
        if new != *sql || (kind == "trigger" && is_on_dropped) {
            anew.push((kind.clone(), new));
            drop_object(txn, kind, name)?;
        }
    }
    anew.sort_by_key(|(kind, _)| kind != "view");
    let expected = Expected::of(ONE.newest())?;
    let of_stores = (stores.iter()).flat_map(|(id, name)| expected.store(*id, name));
    let all = expected.system.values().cloned().chain(of_stores);
    for object in all.filter(|object| object.kind == "trigger" || object.kind == "view") {
        drop_object(txn, &object.kind, &object.name)?;
    }
    Ok(anew)
}

/// A text with the names of format 2 in the place of those of format 1, where they are whole words.
/// What reads the history may ask for redo rows by their old word.
fn in_new_words(sql: &str) -> String {
    let is_part = |byte: Option<&u8>| {
        byte.is_some_and(|byte| byte.is_ascii_alphanumeric() || *byte == b'_' || *byte >= 0x80)
    };
    let mut words: Vec<(String, String)> = (RENAMED.iter())
        .map(|(old, new)| ((*old).into(), (*new).into()))
        .collect();
    words.push((REDO_GONE.0.into(), REDO_GONE.1.into()));
    if sql.contains("larder_history") {
        let quoted = |word: &str| format!("'{word}'");
        words.push((quoted(REDO_ROW.0), quoted(REDO_ROW.1)));
    }
    words.iter().fold(sql.to_owned(), |sql, (old, new)| {
        let mut made = String::with_capacity(sql.len());
        let (mut rest, bytes) = (0, sql.as_bytes());
        let lower = sql.to_ascii_lowercase();
        for (at, _) in lower.match_indices(old.as_str()) {
            let (before, behind) = (at.checked_sub(1), at + old.len());
            if is_part(before.and_then(|at| bytes.get(at))) || is_part(bytes.get(behind)) {
                continue;
            }
            made.push_str(&sql[rest..at]);
            made.push_str(new);
            rest = behind;
        }
        made.push_str(&sql[rest..]);
        made
    })
}

fn drop_object(txn: &Connection, kind: &str, name: &str) -> Result<()> {
    let sql = format!(
        "DROP {} IF EXISTS {}",
        kind.to_ascii_uppercase(),
        quoted(name)
    );
    execute_one(txn, &sql).at(name)
}

/// Gives the system tables other names, and drops their indexes; returns what they were called.
fn set_aside(txn: &Connection) -> Result<Vec<String>> {
    let expected = Expected::of(ONE.newest())?;
    let of_kind = |kind: &'static str| {
        let mut names: Vec<String> = (expected.system.values())
            .filter(|object| object.kind == kind && object.sql.is_some())
            .map(|object| object.name.to_string())
            .collect();
        names.sort();
        names
    };
    for index in of_kind("index") {
        drop_object(txn, "index", &index)?;
    }
    let tables = of_kind("table");
    for table in &tables {
        execute_one(txn, &format!("ALTER TABLE {table} RENAME TO {OLD}{table}")).at(table)?;
    }
    Ok(tables)
}

/// Fills the table of format 2 that is `table` in format 1, and compares them (`UPGRADE-3`).
fn fill(txn: &Connection, table: &str) -> Result<()> {
    let renamed = RENAMED.iter().find(|(old, _)| *old == table);
    let new = renamed.map_or(table, |(_, new)| *new);
    if new == "larder_guard_switch" {
        return Ok(()); // It has its row.
    }
    let from = format!("{OLD}{table}");
    let columns: Vec<String> = rows(
        txn,
        "SELECT name FROM pragma_table_info(?1, 'main') ORDER BY cid",
        [&from],
        |row| row.get(0),
    )
    .at(table)?;
    let mut pairs: Vec<(&str, String)> = (columns.iter())
        .map(|column| (column.as_str(), converted(table, column)))
        .collect();
    let checksum = match table {
        "larder_patch" => Some(format!("{CHECKSUM}(blocks, bytes)")),
        "larder_history" => Some(format!(
            "CASE what WHEN 'content' THEN {CHECKSUM}(value, NULL) WHEN '{}' THEN \
             {CHECKSUM}(extra, value) END",
            REDO_ROW.0
        )),
        _ => None,
    };
    pairs.extend(checksum.map(|value| ("checksum", value)));
    let names: Vec<&str> = pairs.iter().map(|(name, _)| *name).collect();
    let values: Vec<&str> = pairs.iter().map(|(_, value)| value.as_str()).collect();
    let (names, values) = (names.join(", "), values.join(", "));
    let insert = format!("INSERT INTO {new} ({names}) SELECT {values} FROM {from}");
    execute_one(txn, &insert).at(table)?;
    let keys: Vec<(String, i64)> = rows(
        txn,
        "SELECT name, pk FROM pragma_table_info(?1, 'main') WHERE pk > 0 ORDER BY pk",
        [&from],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
    .at(table)?;
    let order = |value: &dyn Fn(&str) -> String| {
        let keys: Vec<String> = keys.iter().map(|(key, _)| value(key)).collect();
        keys.join(", ")
    };
    let old_order = order(&|key| converted(table, key));
    let new_order = order(&|key| key.to_owned());
    let sides = [
        format!("SELECT {values} FROM {from} ORDER BY {old_order}"),
        format!("SELECT {names} FROM {new} ORDER BY {new_order}"),
    ];
    match is_same(txn, &sides).at(table)? {
        true => Ok(()),
        false => Err(CatalogError::corrupt(format!(
            "{table}: not every row was converted (UPGRADE-3)"
        ))),
    }
}

/// Whether two queries answer the same rows in the same order.
fn is_same(txn: &Connection, sides: &[String; 2]) -> rusqlite::Result<bool> {
    let (mut one, mut other) = (txn.prepare(&sides[0])?, txn.prepare(&sides[1])?);
    let count = one.column_count();
    let (mut one, mut other) = (one.query([])?, other.query([])?);
    loop {
        match (one.next()?, other.next()?) {
            (None, None) => return Ok(true),
            (Some(one), Some(other)) => {
                for index in 0..count {
                    if one.get_ref(index)? != other.get_ref(index)? {
                        return Ok(false);
                    }
                }
            }
            _ => return Ok(false),
        }
    }
}

/// The value of a column in format 2.
fn converted(table: &str, column: &str) -> String {
    let in_words = |(old, new): (&str, &str)| format!("iif({column} = '{old}', '{new}', {column})");
    match (table, column) {
        ("larder_meta", "key") => in_words(REDO_GONE),
        ("larder_history", "what") => in_words(REDO_ROW),
        _ => column.to_owned(),
    }
}

/// Inline content and targets of symbolic links get checksums.
fn add_checksums(txn: &Connection, store: &str) -> Result<()> {
    let table = quoted(&format!("{store}_content"));
    let add = format!("ALTER TABLE {table} ADD COLUMN checksum INTEGER");
    let set = format!("UPDATE {table} SET checksum = {CHECKSUM}(inline, target)");
    [add, set]
        .iter()
        .try_for_each(|sql| execute_one(txn, sql).at(store))
}

/// SQLite finds the new tables, and the user's beside them, whole.
fn require_sound(txn: &Connection) -> Result<()> {
    let found: String = txn
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .at("the new catalog")?;
    match found.as_str() {
        "ok" => Ok(()),
        damage => Err(CatalogError::corrupt(format!("the new catalog: {damage}"))),
    }
}
