//! Comparing the schema of a catalog with what this version makes, before anything else is read or written.
//!
//! A catalog is a program: a trigger on a table of ours runs in our transactions, a view in the place of one answers our
//! questions. What the user may add are columns, indexes and triggers of the tables of stores, and whatever he likes of
//! his own.
//!
//! # Invariants
//! * `SAFE-3` A system table, a side table of a store, their indexes and guards are as this version makes them in the
//!   catalog's format, and nothing of the user's is on a system table; the engine's columns of a store's table are plain
//!   columns. *Guard*: [`require`] at every open, and when the schema has changed before a commit that runs triggers. What is
//!   missing is told by `check`.
//! * `SAFE-4` Where the owner is not the caller, no code of the owner's is on a table that the engine's statements name.
//!   *Guard*: the same, by [`Code`].
//!
//! SQLite believes the texts in `sqlite_schema`, not the columns beside them: each text has to say what its row says.
//!
//! # Cost
//! What this version makes is found out once for each process and format, in memory, about 1 ms; then one pass over the schema,
//! about 5 µs for each of its objects.

use crate::error::{At, CatalogError, Result};
use crate::names::{StoreName, shown};
use crate::read::rows;
use crate::schema::{self, ENGINE_COLUMNS};
use crate::sql_text::{Token, called, made, tokens};
use crate::tracking::is_tracking;
use crate::trust::Code;
use crate::{feed, temporal};
use larder_format::StoreId;
use rusqlite::types::ValueRef;
use rusqlite::{Connection, Row};
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

/// Stands for the name of a store in what this version makes.
const NAME: &str = "larderstorename";
/// Stands for its number.
const ID: u32 = 4_294_967_291;
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

/// An object of the schema.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Object {
    kind: String,
    name: String,
    table: String,
    sql: Option<String>,
}

/// What this version makes in a catalog of one format. Names are in lower case.
struct Template {
    system: HashMap<String, Object>,
    /// Of a store that is called [`NAME`].
    store: Vec<Object>,
    /// The engine's columns of its table: name, type, place in the key, whether they are generated.
    columns: Vec<(String, String, i64, i64)>,
    /// How those that are generated are declared.
    generated: Vec<Vec<Token>>,
}

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
    let template = template(version)?;
    let objects = read_objects(connection)?;
    let mut findings = Findings::default();
    findings.tables.extend(template.system.keys().cloned());
    let is_honest = |object: &Object| {
        let lower = object.name.to_ascii_lowercase();
        template
            .system
            .get(&lower)
            .is_none_or(|own| is_as_made(object, own))
    };
    // Before any of them is read.
    if let Some(object) = objects.iter().find(|object| !is_honest(object)) {
        return Err(not_ours(object));
    }
    let stores = match version {
        0 => Vec::new(),
        _ => read_stores(connection)?,
    };
    let mut own: HashMap<String, Object> = HashMap::new();
    for (id, name) in &stores {
        findings.stores.insert(name.to_ascii_lowercase());
        for object in &template.store {
            let object = object.of(*id, name);
            let lower = object.name.to_ascii_lowercase();
            if object.kind == "table" && !lower.eq_ignore_ascii_case(name) {
                findings.tables.insert(lower.clone());
            }
            own.insert(lower, object);
        }
    }
    let mut strangers = Vec::new();
    let mut seen = HashSet::new();
    for object in &objects {
        let lower = object.name.to_ascii_lowercase();
        let table = object.table.to_ascii_lowercase();
        if let Some(expected) = own.get(&lower).or_else(|| template.system.get(&lower)) {
            if !seen.insert(lower.clone()) {
                return Err(refused(format!("'{}' is there twice", shown(&object.name))));
            }
            match findings.stores.contains(&lower) {
                true if object.kind == "table" => {}
                true => return Err(not_ours(object)),
                false if !is_as_made(object, expected) => return Err(not_ours(object)),
                false => {}
            }
            if object.kind == "trigger" {
                findings.guards.insert(lower);
            }
            continue;
        }
        let is_on_system = object.kind != "table" && template.system.contains_key(&table);
        if is_on_system && !is_tracking(connection, &object.name, &table, object.sql.as_deref())? {
            return Err(refused(format!(
                "{} {} on {table} is none of larder's; remove it with \
                 'sqlite3 catalog.db' and DROP {} {}",
                object.kind,
                shown(&object.name),
                object.kind.to_ascii_uppercase(),
                crate::names::quoted(&object.name).escape_debug()
            )));
        }
        let is_on_ours = findings.stores.contains(&table) || findings.tables.contains(&table);
        match &*object.kind {
            "trigger" | "view" if !is_ours_by_name(&lower) => {
                let (kind, name) = (object.kind.clone(), object.name.clone());
                findings.users.push((kind, name, object.table.clone()));
            }
            _ => {}
        }
        if is_on_ours && object.kind != "table" {
            strangers.push(object);
        }
    }
    for (_, name) in &stores {
        let table = objects
            .iter()
            .find(|object| object.name.eq_ignore_ascii_case(name));
        let sql = table.and_then(|object| object.sql.as_deref());
        require_columns(connection, &template, name, sql)?;
    }
    if code != Code::Trusted {
        for object in strangers {
            if !is_larders(connection, &objects, object)? {
                refuse_code(connection, object, code)?;
            }
        }
        for name in &findings.stores {
            let table = objects
                .iter()
                .find(|object| object.name.eq_ignore_ascii_case(name));
            if let Some(table) = table {
                refuse_code_of_table(connection, &template, table, code)?;
            }
        }
    }
    Ok(findings)
}

fn refused(what: String) -> CatalogError {
    CatalogError::Refused { what }
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

fn is_as_made(found: &Object, own: &Object) -> bool {
    found.kind == own.kind && found.table.eq_ignore_ascii_case(&own.table) && found.sql == own.sql
}

impl Object {
    /// The object of the store with this number and name.
    fn of(&self, id: StoreId, name: &str) -> Object {
        let named = |text: &str| text.replace(NAME, name);
        Object {
            kind: self.kind.clone(),
            name: named(&self.name),
            table: named(&self.table),
            sql: (self.sql.as_ref())
                .map(|sql| named(sql).replace(&ID.to_string(), &id.to_string())),
        }
    }
}

fn template(version: u32) -> Result<Arc<Template>> {
    static MADE: Mutex<Vec<(u32, Arc<Template>)>> = Mutex::new(Vec::new());
    let mut made = crate::lock(&MADE);
    if let Some((_, template)) = made.iter().find(|(of, _)| *of == version) {
        return Ok(Arc::clone(template));
    }
    let template = Arc::new(make_template(version)?);
    made.push((version, Arc::clone(&template)));
    Ok(template)
}

fn make_template(version: u32) -> Result<Template> {
    let scratch = Connection::open_in_memory().at("a scratch database")?;
    schema::apply(&scratch, &schema::STEPS[..version as usize], 0)?;
    let system: HashMap<String, Object> = read_objects(&scratch)?
        .into_iter()
        .map(|object| (object.name.to_ascii_lowercase(), object))
        .collect();
    if version == 0 {
        return Ok(Template {
            system,
            store: Vec::new(),
            columns: Vec::new(),
            generated: Vec::new(),
        });
    }
    schema::create_store_tables_of(&scratch, version, StoreId(ID), NAME)?;
    let mut store = read_objects(&scratch)?;
    store.retain(|object| !system.contains_key(&object.name.to_ascii_lowercase()));
    let columns = rows(&scratch, XINFO, [NAME], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })
    .at("a scratch database")?;
    let generated = generated_of(&store, &columns);
    Ok(Template {
        system,
        store,
        columns,
        generated,
    })
}

/// The columns of a table: name, type, place in the key, and whether they are generated.
const XINFO: &str =
    "SELECT lower(name), upper(type), pk, hidden FROM pragma_table_xinfo(?1, 'main')";

/// The schema, each row of which says what its text says.
fn read_objects(connection: &Connection) -> Result<Vec<Object>> {
    let mut list = connection
        .prepare("SELECT type, name, tbl_name, sql FROM main.sqlite_schema")
        .at("sqlite_schema")?;
    let mut rows = list.query([]).at("sqlite_schema")?;
    let mut objects = Vec::new();
    while let Some(row) = rows.next().at("sqlite_schema")? {
        let object = Object {
            kind: text(row, 0)?.unwrap_or_default(),
            name: text(row, 1)?.unwrap_or_default(),
            table: text(row, 2)?.unwrap_or_default(),
            sql: text(row, 3)?,
        };
        let is_honest = match &object.sql {
            // An index that a constraint makes.
            None => object.kind == "index",
            Some(sql) => made(sql).is_some_and(|made| {
                made.kind == object.kind
                    && made.name.eq_ignore_ascii_case(&object.name)
                    && made
                        .table
                        .is_none_or(|table| table.eq_ignore_ascii_case(&object.table))
            }),
        };
        if !is_honest {
            return Err(refused(format!(
                "the schema's row of {} has the text of something else; restore the database from a copy",
                shown(&object.name)
            )));
        }
        objects.push(object);
    }
    Ok(objects)
}

fn text(row: &Row<'_>, index: usize) -> Result<Option<String>> {
    let unreadable =
        || refused("the schema has a row that is no text; restore the database from a copy".into());
    match row.get_ref(index).at("sqlite_schema")? {
        ValueRef::Null => Ok(None),
        ValueRef::Text(bytes) if !bytes.contains(&0) => String::from_utf8(bytes.into())
            .map(Some)
            .map_err(|_| unreadable()),
        _ => Err(unreadable()),
    }
}

fn read_stores(connection: &Connection) -> Result<Vec<(StoreId, String)>> {
    let read = |row: &Row<'_>| -> rusqlite::Result<(StoreId, String)> {
        Ok((StoreId(row.get(0)?), row.get::<_, StoreName>(1)?.into()))
    };
    let all: Vec<(StoreId, String)> = rows(
        connection,
        "SELECT id, name FROM main.larder_store",
        [],
        read,
    )
    .map_err(|error| match &error {
        rusqlite::Error::FromSqlConversionFailure(.., why) => refused(format!(
            "larder_store: {why}; restore the database from a copy"
        )),
        _ => crate::error::sort("larder_store", error),
    })?;
    let owners = "SELECT id FROM main.larder_store WHERE table_store = id";
    let owners: HashSet<u32> = rows(connection, owners, [], |row| row.get(0))
        .at("larder_store")?
        .into_iter()
        .collect();
    Ok((all.into_iter().filter(|(id, _)| owners.contains(&id.0))).collect())
}

/// The engine's columns of a store's table are there as they should be, or are missing, which `check` tells.
fn require_columns(
    connection: &Connection,
    template: &Template,
    store: &str,
    sql: Option<&str>,
) -> Result<()> {
    let found: Vec<(String, String, i64, i64)> = rows(connection, XINFO, [store], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?))
    })
    .at(store)?;
    for (name, kind, key, hidden) in &found {
        let own = template.columns.iter().find(|(own, ..)| own == name);
        let Some((_, own_kind, own_key, own_hidden)) = own else {
            continue;
        };
        if own_kind != kind || own_key != key || own_hidden != hidden {
            return Err(refused(format!(
                "column {name} of {store} is not as larder makes it; restore the database from a copy"
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
        *hidden != 0 && template.columns.iter().any(|(own, ..)| own == name)
    });
    if template.generated.iter().filter(is_declared).count() < generated.count() {
        return Err(refused(format!(
            "a generated column of {store} is not as larder makes it; restore the database from a copy"
        )));
    }
    Ok(())
}

/// How the generated columns of a store's table are declared, from the name to the end of the expression.
fn generated_of(store: &[Object], columns: &[(String, String, i64, i64)]) -> Vec<Vec<Token>> {
    let table = store.iter().find(|object| object.name == NAME);
    let sql = table
        .and_then(|object| object.sql.as_deref())
        .unwrap_or_default();
    let declared: Vec<Token> = tokens(sql).collect();
    let generated = columns.iter().filter(|(.., hidden)| *hidden != 0);
    let declaration = |(name, ..): &(String, String, i64, i64)| {
        let start = declared
            .iter()
            .position(|token| *token == Token::Word(name.clone()))?;
        let rest = &declared[start..];
        let mut depth = 0;
        let end = rest.iter().position(|token| {
            depth +=
                i32::from(*token == Token::Mark(b'(')) - i32::from(*token == Token::Mark(b')'));
            depth == 0 && *token == Token::Mark(b')')
        })?;
        Some(rest[..=end].to_vec())
    };
    generated.filter_map(declaration).collect()
}

/// Whether a trigger on a table of ours is the feed's, that of `larder track`, or a workspace's, as this version makes it.
fn is_larders(connection: &Connection, all: &[Object], object: &Object) -> Result<bool> {
    let Some(sql) = object.sql.as_deref().filter(|_| object.kind == "trigger") else {
        return Ok(false);
    };
    if is_tracking(connection, &object.name, &object.table, Some(sql))? {
        return Ok(true);
    }
    if let Some(store) = object.name.strip_prefix("larder_feed_") {
        return Ok(sql == feed::store_trigger(store));
    }
    let number = (object.name.strip_prefix("larder_temporal_"))
        .and_then(|rest| rest.split('_').next())
        .and_then(|number| number.parse().ok());
    let Some(number) = number else {
        return Ok(false);
    };
    // Its view too, which the trigger reads.
    let texts = temporal::column_texts(connection, number, &object.table)?;
    let is_there = |(name, sql): &(String, String)| {
        let found = all
            .iter()
            .find(|object| object.name.eq_ignore_ascii_case(name));
        found.and_then(|object| object.sql.as_ref()) == Some(sql)
    };
    Ok(texts.iter().all(is_there) && texts.iter().any(|(name, _)| *name == object.name))
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
            object.table
        )
    };
    match code.refusal(&what()).filter(|_| is_code) {
        Some(why) => Err(refused(why)),
        None => Ok(()),
    }
}

/// Refuses columns that are generated, and calls of functions in constraints and defaults.
fn refuse_code_of_table(
    connection: &Connection,
    template: &Template,
    table: &Object,
    code: Code,
) -> Result<()> {
    let generated: Vec<String> = rows(
        connection,
        "SELECT name FROM pragma_table_xinfo(?1, 'main') WHERE hidden > 1",
        [&table.name],
        |row| row.get(0),
    )
    .at(&table.name)?;
    let refuse = |what: String| match code.refusal(&what) {
        Some(why) => Err(refused(why)),
        None => Ok(()),
    };
    let is_users = |column: &&String| {
        let is = |own: &str| own.eq_ignore_ascii_case(column);
        !template.columns.iter().any(|(own, ..)| is(own))
    };
    if let Some(column) = generated.iter().find(is_users) {
        refuse(format!(
            "the generated column {} of {}",
            shown(column),
            table.name
        ))?;
    }
    let calls = called(table.sql.as_deref().unwrap_or_default());
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
        Some(name) => refuse(format!("the call of {name}() in table {}", table.name)),
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
