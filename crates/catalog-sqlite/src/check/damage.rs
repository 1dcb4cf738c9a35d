//! Which tables of a damaged catalog still read.
//!
//! SQLite says of a damaged page only that there is one. Each table, with its indexes, has pages of
//! its own; so each is read by itself, and what is damaged has a name.

use crate::CatalogOptions;
use crate::conn::confine::{Use, VALUE_BYTES_MAX};
use crate::conn::connect::connect;
use crate::conn::place::{CATALOG_FILE, Place};
use crate::conn::trust::Code;
use crate::error::{At, CatalogError, Result};
use crate::guards::audit;
use crate::types::codec::rows;
use crate::types::names::quoted;
use rusqlite::{Connection, OpenFlags};
use std::path::Path;

/// Findings of one kind that are listed; a damaged catalog could have millions.
pub(crate) const FINDINGS_MAX: usize = 100;
/// What to do, behind a list of damage.
const REMEDY: &str = "restore the database from a copy";

/// What is damaged in the catalog of the database `dir`, and what still reads, one line each;
/// nothing: all of it reads. Also of a database that does not open for its damage. Cost: reads the
/// catalog.
pub fn find_damage(dir: &Path, options: &CatalogOptions) -> Result<Vec<String>> {
    let place = Place::find(dir)?;
    let connection = connect(&place, options, OpenFlags::empty(), Use::Reader)?;
    connection
        .pragma_update(None, "query_only", true)
        .at("a reader")?;
    let code = options.trust.judge(place.owner(), &place.path())?;
    survey(&connection, code, false)
}

/// The same by an open connection; `opens`: what needs only the sound tables can be read with
/// larder. Refuses to look where strangers' code would run (`SAFE-4`).
pub(crate) fn survey(connection: &Connection, code: Code, opens: bool) -> Result<Vec<String>> {
    // What is judged is what is read.
    let _moment = (connection.is_autocommit())
        .then(|| connection.unchecked_transaction())
        .transpose()
        .at("a reader")?;
    let listed = rows(
        connection,
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND rootpage > 0 ORDER BY name",
        [],
        |row| row.get::<_, String>(0),
    );
    let tables = match listed.at("sqlite_schema") {
        Err(CatalogError::Damaged { what }) => {
            return Ok(vec![format!(
                "{CATALOG_FILE}: the list of its tables is damaged ({what}), so that nothing of \
                 it reads; {REMEDY} \
                 ('sqlite3 {CATALOG_FILE} .recover' may save rows)"
            )]);
        }
        listed => listed?,
    };
    if code != Code::Trusted {
        match audit::require_to_prove(connection, code) {
            Err(CatalogError::Damaged { what }) => {
                return Ok(vec![format!(
                    "{CATALOG_FILE}: damaged at {what}; the other tables are not looked at, since \
                     whose code is in them cannot be read; {REMEDY}"
                )]);
            }
            looked => looked?,
        }
    }
    let (mut findings, mut sound) = (Vec::new(), Vec::new());
    for table in tables {
        match look_at(connection, &table)? {
            Some(what) => {
                findings.push(format!("{CATALOG_FILE}: table {table} is damaged: {what}"));
                findings.extend(find_long_values(connection, &table).unwrap_or_default());
            }
            None => {
                // What larder looks up before anything else may be too long for it.
                if !opens && table.starts_with("larder_") {
                    findings.extend(find_long_values(connection, &table).unwrap_or_default());
                }
                sound.push(table);
            }
        }
    }
    if !findings.is_empty() {
        let sound = name_sound(&sound);
        findings.push(match opens {
            true => format!(
                "the other tables read ({sound}): 'larder cp -r' copies out what does not need \
                 the damaged ones, and \
                 names the files that it cannot read; then {REMEDY}"
            ),
            false => format!(
                "the other tables read ({sound}), but larder needs the damaged ones; {REMEDY}, or \
                 save rows by 'sqlite3 {CATALOG_FILE} .recover'"
            ),
        });
    }
    Ok(findings)
}

/// The tables of stores by name, and how many others.
fn name_sound(sound: &[String]) -> String {
    let (ours, stores): (Vec<&String>, Vec<&String>) = sound
        .iter()
        .partition(|table| table.starts_with("larder_") || table.starts_with("sqlite_"));
    let mut named: Vec<String> = stores.into_iter().cloned().collect();
    named.push(format!("{} tables of larder", ours.len()));
    named.join(", ")
}

/// Values of a table that are longer than the engine's statements handle (`SAFE-10`), one line
/// each. A pass over the table, which reads no value.
pub(crate) fn find_long_values(connection: &Connection, table: &str) -> Result<Vec<String>> {
    let columns = rows(
        connection,
        "SELECT name, pk FROM pragma_table_info(?1, 'main')",
        [table],
        |row| Ok((row.get::<_, String>(0)?, row.get::<_, i64>(1)? > 0)),
    )
    .at(table)?;
    let is_long = |column: &str| format!("octet_length({}) > {VALUE_BYTES_MAX}", quoted(column));
    let any: Vec<String> = columns.iter().map(|(column, _)| is_long(column)).collect();
    if any.is_empty() {
        return Ok(Vec::new());
    }
    let mut told: Vec<String> = Vec::new();
    for (column, is_key) in &columns {
        let (name, shown) = (quoted(column), format!("'{}'", column.replace('\'', "''")));
        told.push(match is_key {
            // What is shown of the row is short.
            true => format!("iif(octet_length({name}) <= 300, {shown} || ' is ' || quote({name}))"),
            false => "NULL".into(),
        });
        told.push(format!(
            "iif({}, {shown} || ' has ' || octet_length({name}) || ' bytes')",
            is_long(column)
        ));
    }
    let sql = format!(
        "SELECT concat_ws(', ', {}) FROM main.{} WHERE {} LIMIT {FINDINGS_MAX}",
        told.join(", "),
        quoted(table),
        any.join(" OR ")
    );
    let found = rows(connection, &sql, [], |row| row.get::<_, String>(0)).at(table)?;
    let line = |row: String| format!("{table}: a row is too long to be read: {row} (SAFE-10)");
    Ok(found.into_iter().map(line).collect())
}

/// What is wrong with the pages of a table; `None`: nothing.
fn look_at(connection: &Connection, table: &str) -> Result<Option<String>> {
    let quoted = table.replace('"', "\"\"");
    let told = rows(
        connection,
        &format!("PRAGMA quick_check(\"{quoted}\")"),
        [],
        |row| row.get::<_, String>(0),
    );
    match told.at(table) {
        Err(CatalogError::Damaged { what }) => {
            let plain = what.strip_prefix(&format!("{table}: "));
            Ok(Some(plain.unwrap_or(&what).to_owned()))
        }
        Err(error) => Err(error),
        Ok(told) => {
            // Of several lines the first is a headline.
            let line = told.iter().find(|told| *told != "ok");
            Ok(line.map(|line| line.lines().last().unwrap_or(line).to_owned()))
        }
    }
}
