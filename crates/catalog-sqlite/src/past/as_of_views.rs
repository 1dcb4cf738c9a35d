//! SQL of the past: temporary views with the names of the tables of stores, which stand in front of
//! them and have the rows of one commit (`history`).
//!
//! # Invariants
//! * `PASTSQL-1` A statement in a connection that shows the past reads no table that is not as of
//!   then: a name leads to one of these views, or is refused. *Guard*: [`refusal`], while a
//!   statement is compiled.

use crate::error::{At, Result};
use crate::history::begins_of;
use crate::past::as_of::ATTRIBUTES;
use crate::space::map_pages::resolved;
use crate::temporal::StoreColumns;
use crate::types::codec::rows;
use crate::types::names::{StoreName, execute_one};
use larder_format::{CommitSeq, StoreId};
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext};
use std::collections::HashSet;

/// What may be read of the present: it tells of the database, not of files, or is no table at all.
const ALLOWED: [&str; 9] = [
    "sqlite_schema",
    "sqlite_master",
    "larder_store",
    "larder_snapshot",
    "larder_history",
    "files",
    "files_as_of",
    "json_each",
    "json_tree",
];

/// The tables and views of the user and of the engine that no view of ours stands in front of, in
/// lower case.
pub(crate) fn names_of_present(connection: &Connection) -> Result<HashSet<String>> {
    let names: Vec<String> = rows(
        connection,
        "SELECT lower(name) FROM main.sqlite_schema WHERE type IN ('table', 'view') \
         EXCEPT SELECT lower(name) FROM temp.sqlite_schema WHERE type = 'view'",
        [],
        |row| row.get(0),
    )
    .at("the tables of the present")?;
    Ok(names.into_iter().collect())
}

/// Why a statement may not do this, if it shows the past. `present`: [`names_of_present`].
pub(crate) fn refusal(context: &AuthContext<'_>, present: &HashSet<String>) -> Option<String> {
    let AuthAction::Read { table_name, .. } = context.action else {
        return None;
    };
    // What a view of ours reads is as of then.
    if context.accessor.is_some() {
        return None;
    }
    let name = table_name.to_ascii_lowercase();
    let is_present = match context.database_name {
        Some(schema) => schema.eq_ignore_ascii_case("main"),
        // Of a table without columns, as in `count(*)`, SQLite tells the schema only where it was
        // written. It may also be a name of the statement's own.
        None => present.contains(&name),
    };
    match !is_present || ALLOWED.contains(&&*name) || name.starts_with("pragma_") {
        true => None,
        false => Some(format!(
            "'{table_name}' cannot be read as of a moment, only the tables of stores can whose \
             history reaches it; ask for it in the present"
        )),
    }
}

/// Creates the views, for all stores there are, with those columns of the user's that have a past:
/// what plain SQL did to them after the commit counts up to `at_ns`.
pub(crate) fn create(connection: &Connection, seq: CommitSeq, at_ns: i64) -> Result<()> {
    let stores: Vec<(StoreId, StoreName, Option<String>)> = rows(
        connection,
        "SELECT id, name, (SELECT sql FROM main.sqlite_schema WHERE type = 'view' AND name = \
         store.name || '_path') \
         FROM larder_store AS store WHERE table_store = id",
        [],
        |row| Ok((StoreId(row.get(0)?), row.get(1)?, row.get(2)?)),
    )
    .at("larder_store")?;
    for (store, name, path_view) in stores {
        if seq < begins_of(connection, store)? {
            continue; // HISTORY-7: its names are refused.
        }
        let columns = StoreColumns::find(connection, store, (seq, at_ns))?;
        for view in views(store, &name, seq, columns.as_ref()) {
            execute_one(connection, &view).at(&name)?;
        }
        // It names no schema, so that in this one it reads the views.
        if let Some(rest) = path_view
            .as_ref()
            .and_then(|sql| sql.strip_prefix("CREATE VIEW"))
        {
            let view = format!("CREATE TEMP VIEW{rest}");
            execute_one(connection, &view).at(&name)?;
        }
    }
    Ok(())
}

fn views(
    store: StoreId,
    name: &str,
    seq: CommitSeq,
    columns: Option<&StoreColumns>,
) -> [String; 5] {
    let attributes = ATTRIBUTES.join(", ");
    let inode = format!("ino, {attributes}, file_id");
    let inode_then = format!("ino, {attributes}, coalesce(value, ino)");
    let view_of = |suffix: &str, what: &str, columns: &str, now: &str, then: &str, key: &str| {
        format!(
            "CREATE TEMP VIEW \"{name}{suffix}\" ({columns}) AS \
             SELECT {now} FROM main.\"{name}{suffix}\" WHERE since_seq <= {seq} \
             UNION ALL SELECT {then} FROM main.larder_history WHERE store = {store} AND what = \
             '{what}'{key} \
             AND until_seq > {seq} AND since_seq <= {seq}"
        )
    };
    let view = |suffix: &str, what: &str, columns: &str, then: &str, key: &str| {
        view_of(suffix, what, columns, columns, then, key)
    };
    let only = " AND key = 0";
    let files = match columns {
        None => view("", "inode", &inode, &inode_then, only),
        Some(past) => {
            let attributes_of = |row: &str, file_id: &str| {
                let columns = ATTRIBUTES.map(|column| format!(", {row}.{column}"));
                format!("{row}.ino{}, {file_id}{}", columns.concat(), past.listed())
            };
            let names = past.columns.iter();
            let names = names.map(|column| format!(", \"{}\"", column.replace('"', "\"\"")));
            format!(
                "CREATE TEMP VIEW \"{name}\" ({inode}{}) AS SELECT {} FROM main.\"{name}\" AS \
                 larder_of{} \
                 WHERE larder_of.since_seq <= {seq} UNION ALL SELECT {} FROM main.larder_history \
                 AS larder_was{} \
                 WHERE larder_was.store = {store} AND larder_was.what = 'inode' AND \
                 larder_was.key = 0 \
                 AND larder_was.until_seq > {seq} AND larder_was.since_seq <= {seq}",
                names.collect::<String>(),
                attributes_of("larder_of", "larder_of.file_id"),
                past.joins("larder_of.ino"),
                attributes_of("larder_was", "coalesce(larder_was.value, larder_was.ino)"),
                past.joins("larder_was.ino")
            )
        }
    };
    [
        files,
        view(
            "_dirent",
            "name",
            "parent, name, ino",
            "ino, key, value",
            "",
        ),
        view(
            "_content",
            "content",
            "ino, inline, target",
            "ino, iif(kind = 'symlink', NULL, value), iif(kind = 'symlink', value, NULL)",
            only,
        ),
        view_of(
            "_map",
            "map",
            "ino, page, runs",
            &format!("ino, page, {}", resolved("main", "runs")), // SHARE-8
            &format!("ino, key, {}", resolved("main", "value")),
            "",
        ),
        view("_xattr", "xattr", "ino, name, value", "ino, key, value", ""),
    ]
}
