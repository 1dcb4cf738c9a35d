//! Temporary tables and views of a user's with the names of the catalog's: SQLite finds them first.
//!
//! On a connection where users may make them, the client's (`client`) and the one of an SQL session
//! (`user_sql`), nothing of ours is read or written while there is one (`CATALOG-12`): half of a
//! change would go to it, and the rest to the catalog.

use crate::error::{At, CatalogError, Result};
use rusqlite::{Connection, OptionalExtension};

/// One of them.
const FIND: &str = "SELECT t.name FROM sqlite_temp_schema AS t WHERE t.type IN ('table', 'view') \
     AND (lower(substr(t.name, 1, 7)) = 'larder_' \
       OR EXISTS (SELECT 1 FROM main.larder_store AS s WHERE s.table_store = s.id \
         AND lower(t.name) IN (lower(s.name), lower(s.name) || '_dirent', lower(s.name) || \
         '_content', \
           lower(s.name) || '_map', lower(s.name) || '_xattr'))) LIMIT 1";

/// Refuses where one of them stands for a table of ours (`CATALOG-12`). 1 µs.
pub(crate) fn require_none(connection: &Connection) -> Result<()> {
    let found: Option<String> = connection
        .prepare_cached(FIND)
        .and_then(|mut find| find.query_row([], |row| row.get(0)).optional())
        .at("the temporary tables")?;
    match found {
        None => Ok(()),
        Some(name) => Err(CatalogError::invalid(format!(
            "a temporary table or view '{name}' hides the catalog's; DROP temp.{name}, or give it \
             another name"
        ))),
    }
}
