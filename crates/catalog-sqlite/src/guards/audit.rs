//! Comparing the schema of a catalog with what this version makes, before anything else is read or
//! written.
//!
//! A catalog is a program: a trigger on a table of ours runs in our transactions, a view in the
//! place of one answers our questions. What the user may add are columns, indexes and triggers of
//! the tables of stores, and whatever he likes of his own.
//!
//! # Invariants
//! * `SAFE-3` A system table, a side table of a store, their indexes and guards are as this version
//!   makes them in the catalog's format, and nothing of the user's is on a system table; the
//!   engine's columns of a store's table are plain columns. *Guard*: [`require`] at every open, and
//!   when the schema has changed before a commit that runs triggers. What is missing is told by
//!   `check`.
//! * `SAFE-4` Where the owner is not the caller, no code of the owner's is on a table that the
//!   engine's statements name, or that foreign keys lead to from there; nor on any table where the
//!   structure is proven, which runs it.
//!   *Guard*: the same, by [`Code`]; [`require_to_prove`].
//!
//! SQLite believes the texts in `sqlite_schema`, not the columns beside them: each text has to say
//! what its row says.
//!
//! # Cost
//! 0.6 ms for a small database: a quarter to read the file of what this version makes, once for
//! each process, then one pass over the schema, about 3 µs for each of its objects.

use crate::conn::meta::has_stores;
use crate::conn::trust::Code;
use crate::error::{At, CatalogError, Result};
use crate::schema::ENGINE_COLUMNS;
use crate::schema::expected::{Column, Expected, Object, read_columns, read_objects, refused};
use crate::temporal::tracking::is_tracking;
use crate::types::codec::rows;
use crate::types::names::{StoreName, shown};
use crate::types::sql_text::{Token, called, tokens};
use crate::{feed, schema, temporal};
use larder_format::StoreId;
use larder_format::limits::STORES_OPEN_MAX;
use rusqlite::{Connection, Row};
use std::collections::{HashMap, HashSet};

/// Functions that code of strangers may call: they take time and memory like their arguments.
const HARMLESS: [&str; 22] = [
    "abs",
    "check",
    "coalesce",
    "date",
    "datetime",
    "decimal",
    "ifnull",
    "iif",
    "in",
    "julianday",
    "key",
    "length",
    "lower",
    "max",
    "min",
    "nullif",
    "round",
    "strftime",
    "time",
    "typeof",
    "unique",
    "upper",
];
/// The column of an index that is an expression.
const EXPRESSION: i64 = -2;

/// What an audit has found: names in lower case.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    /// Tables that only the engine changes: system tables and side tables.
    pub(crate) tables: HashSet<String>,
    /// The tables of stores.
    pub(crate) stores: HashSet<String>,
    /// Triggers of ours, whose text is that of this version.
    pub(crate) guards: HashSet<String>,
    /// Triggers and views of the user's, for people: what it is, its name, its table.
    pub(crate) users: Vec<(String, String, String)>,
}

/// Compares the schema of format `version` with what this build makes (`SAFE-3`, `SAFE-4`).
pub(crate) fn require(connection: &Connection, version: u32, code: Code) -> Result<Findings> {
    audit(connection, version, code, Tables::Ours)
}

/// The same, and refuses code on the user's own tables too: proving that the catalog's structure is
/// sound runs that.
pub(crate) fn require_to_prove(connection: &Connection, code: Code) -> Result<()> {
    audit(connection, schema::version(connection)?, code, Tables::All).map(|_| ())
}

/// Which tables' code an audit refuses, where it does.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tables {
    Ours,
    All,
}

fn audit(connection: &Connection, version: u32, code: Code, tables: Tables) -> Result<Findings> {
    let expected = Expected::of(version)?;
    let objects = read_objects(connection, &expected.system)?;
    let mut findings = Findings::default();
    findings.tables.extend(expected.system.keys().cloned());
    let is_honest = |object: &Object| {
        let lower = object.name.to_ascii_lowercase();
        expected
            .system
            .get(&lower)
            .is_none_or(|own| !own.shares_names_with(object) || object.is_same(own))
    };
    // Before any of them is read.
    if let Some(object) = objects.iter().find(|object| !is_honest(object)) {
        return Err(not_ours(object));
    }
    let stores = match version {
        0 => Vec::new(),
        _ => read_stores(connection)?,
    };
    let mut own: HashMap<(String, bool), Object> = HashMap::new();
    for (id, name) in &stores {
        findings.stores.insert(name.to_ascii_lowercase());
        for object in expected.store(*id, name) {
            let lower = object.name.to_ascii_lowercase();
            if object.kind == "table" && !lower.eq_ignore_ascii_case(name) {
                findings.tables.insert(lower);
            }
            own.insert(object.key(), object);
        }
    }
    let (mut strangers, mut others) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    for object in &objects {
        let lower = object.name.to_ascii_lowercase();
        let table = object.table.to_ascii_lowercase();
        let system = (expected.system.get(&lower)).filter(|own| own.shares_names_with(object));
        if let Some(own) = own.get(&object.key()).or(system) {
            if !seen.insert(object.key()) {
                return Err(refused(format!("'{}' is there twice", shown(&object.name))));
            }
            match own.kind == "table" && findings.stores.contains(&lower) {
                true if object.kind == "table" => {}
                true => return Err(not_ours(object)),
                false if !object.is_same(own) => return Err(not_ours(object)),
                false => {}
            }
            if object.kind == "trigger" {
                findings.guards.insert(lower);
            }
            continue;
        }
        let is_on_system = object.kind != "table" && expected.system.contains_key(&table);
        if is_on_system && !is_tracking(connection, &object.name, &table, object.sql.as_deref())? {
            return Err(refused(format!(
                "{} {} on {table} is none of larder's; remove it with \
                 'sqlite3 catalog.db' and DROP {} {}",
                object.kind,
                shown(&object.name),
                object.kind.to_ascii_uppercase(),
                crate::types::names::quoted(&object.name).escape_debug()
            )));
        }
        let is_on_ours = findings.stores.contains(&table) || findings.tables.contains(&table);
        match &*object.kind {
            "trigger" | "view" if !is_ours_by_name(&lower) => {
                let parts = (&object.kind, &object.name, &object.table);
                let (kind, name, table) = parts;
                findings
                    .users
                    .push((kind.to_string(), name.to_string(), table.to_string()));
            }
            _ => {}
        }
        match is_on_ours {
            true if object.kind != "table" => strangers.push(object),
            _ => others.push(object),
        }
    }
    let by_name: HashMap<(String, bool), &Object> = (objects.iter())
        .map(|object| (object.key(), object))
        .collect();
    let table_of = |name: &str| by_name.get(&(name.to_ascii_lowercase(), false));
    for (_, name) in &stores {
        let sql = table_of(name).and_then(|object| object.sql.as_deref());
        require_columns(connection, &expected, name, sql)?;
    }
    if code != Code::Trusted {
        let reached = find_referring(connection, &findings)?;
        let is_reached = |object: &&&Object| reached.contains(&object.table.to_ascii_lowercase());
        for object in others.iter().filter(is_reached) {
            match &*object.kind {
                "table" => refuse_code_of_table(connection, &[], object, code)?,
                _ => strangers.push(object),
            }
        }
        for object in strangers {
            let is_stores = findings.stores.contains(&object.table.to_ascii_lowercase());
            if !is_larders(connection, &by_name, object, is_stores)? {
                refuse_code(connection, object, code)?;
            }
        }
        for name in &findings.stores {
            if let Some(table) = table_of(name) {
                refuse_code_of_table(connection, &expected.columns, table, code)?;
            }
        }
        for object in others.into_iter().filter(|_| tables == Tables::All) {
            match &*object.kind {
                "table" => refuse_code_of_table(connection, &[], object, code)?,
                "index" => refuse_code(connection, object, code)?,
                _ => {}
            }
        }
    }
    Ok(findings)
}

/// The user's tables that foreign keys lead to from the engine's: rows in them are looked for, and
/// may change or go, when the engine's rows do. Names in lower case.
fn find_referring(connection: &Connection, engines: &Findings) -> Result<HashSet<String>> {
    let mut referring: HashMap<String, Vec<String>> = HashMap::new();
    let sql = "SELECT lower(keys.\"table\"), lower(t.name) FROM main.sqlite_schema AS t, \
               pragma_foreign_key_list(t.name, 'main') AS keys \
               WHERE t.type = 'table' AND instr(lower(t.sql), 'references') > 0";
    let keys = rows(connection, sql, [], |row| Ok((row.get(0)?, row.get(1)?)));
    for (parent, table) in keys.at("the foreign keys")? {
        referring.entry(parent).or_default().push(table);
    }
    let mut reached = HashSet::new();
    let mut parents: Vec<&String> = engines.stores.iter().chain(&engines.tables).collect();
    while let Some(parent) = parents.pop() {
        for table in referring.get(parent).into_iter().flatten() {
            if reached.insert(table.clone()) {
                parents.push(table);
            }
        }
    }
    Ok(reached)
}

fn not_ours(object: &Object) -> CatalogError {
    refused(format!(
        "{} {} is not as larder makes it; restore the database from a copy",
        object.kind,
        shown(&object.name)
    ))
}

/// Made by the feed or by `larder track`, if nobody has made it look so.
fn is_ours_by_name(name: &str) -> bool {
    [
        "larder_feed_",
        "larder_watch_",
        "larder_temporal_",
        "larder_track_",
    ]
    .iter()
    .any(|prefix| name.starts_with(prefix))
}

/// The stores that have tables of their own. The name of every store is looked at, if they are no
/// more than [`STORES_OPEN_MAX`].
fn read_stores(connection: &Connection) -> Result<Vec<(StoreId, String)>> {
    if has_stores(connection, STORES_OPEN_MAX + 1)? {
        return Err(refused(format!(
            "larder_store has more than {STORES_OPEN_MAX} rows, and a database opens with at most \
             {STORES_OPEN_MAX} stores; restore the database from a copy"
        )));
    }
    let read = |row: &Row<'_>| -> rusqlite::Result<(StoreId, String, bool)> {
        let name = row.get::<_, StoreName>(1)?;
        Ok((StoreId(row.get(0)?), name.into(), row.get(2)?))
    };
    let sql = "SELECT id, name, table_store IS id FROM main.larder_store";
    let all = rows(connection, sql, [], read).map_err(|error| match &error {
        rusqlite::Error::FromSqlConversionFailure(.., why) => refused(format!(
            "larder_store: {why}; restore the database from a copy"
        )),
        _ => crate::error::sort("larder_store", error),
    })?;
    let own = all.into_iter().filter(|(.., has_tables)| *has_tables);
    Ok(own.map(|(id, name, _)| (id, name)).collect())
}

/// The engine's columns of a store's table are there as they should be, or are missing, which
/// `check` tells.
fn require_columns(
    connection: &Connection,
    expected: &Expected,
    store: &str,
    sql: Option<&str>,
) -> Result<()> {
    let found = read_columns(connection, store)?;
    for (name, kind, key, hidden) in &found {
        let own = expected.columns.iter().find(|(own, ..)| own == name);
        let Some((_, own_kind, own_key, own_hidden)) = own else {
            continue;
        };
        if own_kind != kind || own_key != key || own_hidden != hidden {
            return Err(refused(format!(
                "column {name} of {store} is not as larder makes it; restore the database from a \
                 copy"
            )));
        }
    }
    let sql = sql.unwrap_or_default();
    let declared: Vec<Token> = tokens(sql).collect();
    let is_declared = |own: &&Vec<Token>| {
        declared
            .windows(own.len())
            .any(|part| part == own.as_slice())
    };
    let generated = found.iter().filter(|(name, _, _, hidden)| {
        *hidden != 0 && expected.columns.iter().any(|(own, ..)| own == name)
    });
    if expected.generated.iter().filter(is_declared).count() < generated.count() {
        return Err(refused(format!(
            "a generated column of {store} is not as larder makes it; restore the database from a \
             copy"
        )));
    }
    Ok(())
}

/// Whether a trigger is the feed's, that of `larder track`, or a workspace's, as this version makes
/// it. `is_stores`: it is on the table of a store.
fn is_larders(
    connection: &Connection,
    all: &HashMap<(String, bool), &Object>,
    object: &Object,
    is_stores: bool,
) -> Result<bool> {
    let Some(sql) = object.sql.as_deref().filter(|_| object.kind == "trigger") else {
        return Ok(false);
    };
    if is_tracking(connection, &object.name, &object.table, Some(sql))? {
        return Ok(true);
    }
    if let Some(store) = object.name.strip_prefix("larder_feed_") {
        return Ok(sql == feed::store_trigger(store));
    }
    if object.name.starts_with("larder_watch_") {
        return feed::is_watch(connection, &object.table, sql);
    }
    let number = (object.name.strip_prefix("larder_temporal_"))
        .and_then(|rest| rest.split('_').next())
        .and_then(|number| number.parse().ok());
    let Some(number) = number else {
        return Ok(false);
    };
    let texts = temporal::texts(connection, number, &object.table, is_stores)?;
    let is_there = |(name, sql): &(String, String)| {
        let lower = name.to_ascii_lowercase();
        [false, true].into_iter().any(|is_trigger| {
            let found = all.get(&(lower.clone(), is_trigger));
            found.and_then(|object| object.sql.as_deref()) == Some(sql.as_str())
        })
    };
    let is_made = (texts.iter()).any(|(name, made)| *name == object.name && made == sql);
    // What keeps columns reads a view, which is among the texts.
    Ok(is_made && (!is_stores || texts.iter().all(is_there)))
}

/// Refuses a trigger or an index of strangers on a table of ours (`SAFE-4`).
fn refuse_code(connection: &Connection, object: &Object, code: Code) -> Result<()> {
    let is_code = match &*object.kind {
        "index" => {
            let parts: Vec<i64> = rows(
                connection,
                "SELECT cid FROM pragma_index_xinfo(?1, 'main')",
                [&object.name],
                |row| row.get(0),
            )
            .at(&object.name)?;
            let is_partial = (object.sql.as_deref().into_iter())
                .flat_map(tokens)
                .any(|token| token == Token::Word("where".into()));
            is_partial || parts.contains(&EXPRESSION)
        }
        _ => true,
    };
    let what = || {
        format!(
            "{} {} on {}",
            object.kind,
            shown(&object.name),
            shown(&object.table)
        )
    };
    match code.refusal(&what()).filter(|_| is_code) {
        Some(why) => Err(refused(why)),
        None => Ok(()),
    }
}

/// Refuses columns that are generated, but for our `own`, calls of functions in constraints and
/// defaults, and virtual tables.
fn refuse_code_of_table(
    connection: &Connection,
    own: &[Column],
    table: &Object,
    code: Code,
) -> Result<()> {
    let refuse = |what: String| match code.refusal(&what) {
        Some(why) => Err(refused(why)),
        None => Ok(()),
    };
    let sql = table.sql.as_deref().unwrap_or_default();
    // Before its columns are asked for, which its module tells.
    if tokens(sql).nth(1) == Some(Token::Word("virtual".into())) {
        refuse(format!("the virtual table {}", shown(&table.name)))?;
    }
    let generated: Vec<String> = rows(
        connection,
        "SELECT name FROM pragma_table_xinfo(?1, 'main') WHERE hidden > 1",
        [&table.name],
        |row| row.get(0),
    )
    .at(&table.name)?;
    let is_users = |column: &&String| {
        let is = |own: &str| own.eq_ignore_ascii_case(column);
        !own.iter().any(|(own, ..)| is(own))
    };
    if let Some(column) = generated.iter().find(is_users) {
        refuse(format!(
            "the generated column {} of {}",
            shown(column),
            shown(&table.name)
        ))?;
    }
    let calls = called(sql);
    let functions: HashSet<String> = rows(
        connection,
        "SELECT DISTINCT lower(name) FROM pragma_function_list",
        [],
        |row| row.get(0),
    )
    .at("the functions")?
    .into_iter()
    .collect();
    let harmful = calls
        .iter()
        .find(|name| functions.contains(*name) && !HARMLESS.contains(&name.as_str()));
    match harmful {
        Some(name) => refuse(format!(
            "the call of {name}() in table {}",
            shown(&table.name)
        )),
        None => Ok(()),
    }
}

/// Whether a column of a store's table is the user's.
pub(crate) fn is_users_column(column: &str) -> bool {
    !ENGINE_COLUMNS
        .iter()
        .any(|own| own.eq_ignore_ascii_case(column))
        && !["rowid", "oid", "_rowid_"]
            .iter()
            .any(|own| own.eq_ignore_ascii_case(column))
}
