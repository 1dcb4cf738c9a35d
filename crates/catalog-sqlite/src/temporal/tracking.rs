//! Remembering the first image of every row that is changed in a workspace (`WORKSPACE-3`):
//! triggers in pure SQL, so that it holds for every client.
//!
//! For table number N there is `larder_old_N`, with the key of each row that was touched, whether
//! the row existed, and its columns. Nothing in a trigger resolves a conflict, because the
//! statement that fires it may do so in its own way (`INSERT OR REPLACE`): what is known already is
//! asked for first.

pub(crate) mod images;

use crate::error::{At, Result};
use crate::types::codec::rows;
use crate::types::names::{execute_all, execute_one, quoted};
use images::{Shape, equal, list};
use rusqlite::{Connection, params};

/// A table that is tracked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Tracked {
    /// The table.
    pub(crate) name: String,
    /// Where its old images are.
    pub(crate) old_table: String,
    /// It holds what a virtual table keeps: nobody but that can merge it.
    pub(crate) is_shadow: bool,
}

/// The tables of ours that are merged row by row, beside those of the stores.
const SYSTEM: [&str; 2] = ["larder_piece", "larder_redo_row"];

/// Tracks every table. In the transaction that prepares a workspace, before anything is changed in
/// it.
pub(crate) fn install(txn: &Connection) -> Result<()> {
    execute_all(
        txn,
        "CREATE TABLE larder_tracked (
           id INTEGER PRIMARY KEY, name TEXT NOT NULL, shadow INTEGER NOT NULL) STRICT;
         CREATE TABLE larder_base_schema AS
           SELECT type, name, tbl_name, sql FROM sqlite_schema WHERE name NOT LIKE 'sqlite\\_%' \
           ESCAPE '\\'
             AND name <> 'larder_tracked';
         CREATE TABLE larder_base_store AS
           SELECT id, name, provider, mount, table_store FROM larder_store;",
    )
    .at("the tracking")?;
    let tables: Vec<(String, String)> = rows(
        txn,
        "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND type IN ('table', \
         'shadow') \
         ORDER BY name",
        [],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
    .at("the tables")?;
    let mut id = 0;
    for (name, kind) in tables {
        let lower = name.to_ascii_lowercase();
        let is_ours = lower.starts_with("larder_") && !SYSTEM.contains(&lower.as_str());
        if lower.starts_with("sqlite_") || is_ours {
            continue;
        }
        id += 1;
        txn.execute(
            "INSERT INTO larder_tracked (id, name, shadow) VALUES (?1, ?2, ?3)",
            params![id, name, kind == "shadow"],
        )
        .at("larder_tracked")?;
        let shape = Shape::read(txn, "main", &name)?;
        for statement in table_and_triggers(&shape, id) {
            execute_one(txn, &statement).at(&name)?;
        }
    }
    Ok(())
}

/// The tables that a workspace tracks, from the schema `ws`.
pub(crate) fn tracked(connection: &Connection) -> Result<Vec<Tracked>> {
    rows(
        connection,
        "SELECT id, name, shadow FROM ws.larder_tracked ORDER BY id",
        [],
        |row| {
            Ok(Tracked {
                name: row.get(1)?,
                old_table: format!("larder_old_{}", row.get::<_, i64>(0)?),
                is_shadow: row.get(2)?,
            })
        },
    )
    .at("larder_tracked")
}

/// Whether a trigger of a table of ours is one of those that fill a table of old images, as this
/// version makes it.
pub(crate) fn is_tracking(
    connection: &Connection,
    name: &str,
    table: &str,
    sql: Option<&str>,
) -> Result<bool> {
    let number = (name.strip_prefix("larder_track_"))
        .and_then(|rest| rest.split('_').next())
        .and_then(|number| number.parse::<i64>().ok());
    let (Some(number), Some(sql)) = (number, sql) else {
        return Ok(false);
    };
    if table.starts_with("larder_") && !SYSTEM.contains(&table) {
        return Ok(false);
    }
    let shape = Shape::read(connection, "main", table)?;
    Ok((table_and_triggers(&shape, number).iter()).any(|made| made == sql))
}

/// The table of old images, and what fills it.
fn table_and_triggers(shape: &Shape, id: i64) -> [String; 6] {
    let old = format!("larder_old_{id}");
    let table = quoted(&shape.table);
    let key_names: Vec<String> = (0..shape.keys.len()).map(|at| format!("k{at}")).collect();
    let old_names: Vec<String> = (0..shape.columns.len())
        .map(|at| format!("c{at}"))
        .collect();
    let (keys, columns) = (list("", &key_names), list("", &old_names));
    let is_known = |side: &str| {
        let terms: Vec<String> = (shape.keys.iter().enumerate())
            .map(|(at, key)| format!("k{at} = {side}{}", quoted(key)))
            .collect();
        format!("EXISTS (SELECT 1 FROM {old} WHERE {})", terms.join(" AND "))
    };
    let keep_old = format!(
        "INSERT INTO {old} ({keys}, existed, {columns}) SELECT {}, 1, {} WHERE NOT {};",
        list("OLD.", &shape.keys),
        list("OLD.", &shape.columns),
        is_known("OLD."),
    );
    let note_new = format!(
        "INSERT INTO {old} ({keys}, existed) SELECT {}, 0 WHERE NOT {};",
        list("NEW.", &shape.keys),
        is_known("NEW."),
    );
    // REPLACE deletes rows without a DELETE trigger.
    let keep_replaced: String = (shape.uniques.iter())
        .map(|unique| {
            format!(
                "INSERT INTO {old} ({keys}, existed, {columns}) SELECT {}, 1, {} FROM {table} AS t \
                 WHERE {} AND NOT {};\n",
                list("t.", &shape.keys),
                list("t.", &shape.columns),
                equal("t.", "NEW.", unique),
                is_known("t."),
            )
        })
        .collect();
    let keep_others = if shape.uniques.len() > 1 {
        &keep_replaced
    } else {
        ""
    };
    let changed: Vec<String> = (shape.keys.iter())
        .map(|key| format!("NEW.{0} IS NOT OLD.{0}", quoted(key)))
        .collect();
    let mut declared: Vec<String> = key_names
        .iter()
        .map(|key| format!("{key} NOT NULL"))
        .collect();
    declared.push("existed INTEGER NOT NULL".into());
    declared.extend(old_names);
    let (declared, changed) = (declared.join(", "), changed.join(" OR "));
    let trigger = |part: &str, when: &str, body: &str| {
        format!("CREATE TRIGGER larder_track_{id}_{part} {when} BEGIN\n{body}END")
    };
    let on = |event: &str| format!("{event} ON {table}");
    [
        format!("CREATE TABLE {old} ({declared}, PRIMARY KEY ({keys})) WITHOUT ROWID"),
        trigger("bi", &on("BEFORE INSERT"), &keep_replaced),
        trigger("ai", &on("AFTER INSERT"), &format!("{note_new}\n")),
        trigger(
            "bu",
            &on("BEFORE UPDATE"),
            &format!("{keep_old}\n{keep_others}"),
        ),
        trigger(
            "au",
            &format!("{} WHEN {changed}", on("AFTER UPDATE")),
            &format!("{note_new}\n"),
        ),
        trigger("bd", &on("BEFORE DELETE"), &format!("{keep_old}\n")),
    ]
}
