//! What is kept of a temporal table, and the triggers that keep it.

use crate::error::{At, CatalogError, Result};
use crate::types::codec::rows;
use crate::types::names::{execute_one, quoted};
use rusqlite::{Connection, OptionalExtension};

/// The present in SQL, as triggers know it: whole milliseconds.
pub(super) const NOW: &str =
    "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000";
/// The next commit; of what the engine does by foreign keys, the one under way.
pub(super) const UNTIL: &str = "((SELECT value FROM larder_meta WHERE key = 'commit_seq') \
     + ((SELECT open FROM larder_guard_switch) IS NOT 1))";
/// SQLite's functions take 127 arguments at most, and an image two for every column.
const COLUMNS_MAX: usize = 63;
/// The triggers of a table.
const PARTS: [&str; 5] = ["bi", "ai", "bu", "au", "bd"];
/// What the key of a row without a primary key begins with, as a blob; its rowid follows.
pub(super) const PLACE: &str = "rowid ";

/// What identifies a row (`TEMPORAL-3`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Key {
    /// The rowid, under a name that no column hides. `Some`: it is the primary key, this column.
    Rowid(&'static str, Option<String>),
    /// The primary key of a table that has rowids besides. One of which a column is NULL does not
    /// tell two rows apart: then it is the rowid.
    Declared(&'static str, Vec<String>),
    /// The primary key of a table without rowids.
    Columns(Vec<String>),
}

/// Columns that no two rows have alike.
#[derive(Debug, PartialEq, Eq)]
struct Unique {
    /// Each with the collation of the index.
    columns: Vec<(String, String)>,
    /// The rows that a partial index has, in SQL.
    condition: Option<String>,
}

/// What triggers have to know of a table.
pub(super) struct Shape {
    id: i64,
    name: String,
    pub(super) columns: Vec<String>,
    pub(super) key: Key,
    uniques: Vec<Unique>,
    /// A unique index over expressions.
    unseen: Option<String>,
}

/// What a record says.
struct Said<'s> {
    key: &'s str,
    /// SQL for an image, or NULL.
    value: &'s str,
    /// SQL for its `kind`.
    kind: &'s str,
}

pub(super) fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

pub(super) fn joined(parts: impl Iterator<Item = String>, between: &str) -> String {
    parts.collect::<Vec<_>>().join(between)
}

/// That one of the columns of `row` is NULL.
pub(super) fn has_null(names: &[String], row: &str) -> String {
    let terms = names
        .iter()
        .map(|name| format!("{row}.{} IS NULL", quoted(name)));
    joined(terms, " OR ")
}

/// That two rows have the same values, by the first one's index.
pub(super) fn equal(names: &[String], left: &str, right: &str) -> String {
    let terms = names.iter().map(|name| {
        let name = quoted(name);
        format!("{left}.{name} = {right}.{name}")
    });
    joined(terms, " AND ")
}

/// A column and its value, as arguments of `json_object`. (`quote` keeps every real number exactly,
/// but older versions write an infinite one so that none can read it.)
pub(super) fn pair(column: &str) -> String {
    let name = quoted(column);
    format!(
        "{}, CASE typeof({name}) WHEN 'blob' THEN json_array('x', hex({name})) \
         WHEN 'real' THEN json_array('r', replace(quote({name}), 'Inf', '9e999')) ELSE {name} END",
        text(column)
    )
}

/// The value of a column in the image `image`; NULL where that has none, or is none.
pub(super) fn value_in(image: &str, column: &str) -> String {
    format!(
        "(SELECT CASE j.type WHEN 'array' THEN CASE json_extract(j.value, '$[0]') \
         WHEN 'x' THEN unhex(json_extract(j.value, '$[1]')) \
         ELSE CAST(json_extract(j.value, '$[1]') AS REAL) END ELSE j.value END \
         FROM json_each({image}) AS j WHERE j.key = {})",
        text(column)
    )
}

impl Key {
    /// Of the row that is called `row`. Without an affinity, and byte by byte: an index of keys has
    /// neither affinity nor collation.
    pub(super) fn of(&self, row: &str) -> String {
        let values = |names: &[String]| {
            let parts = names
                .iter()
                .map(|name| format!("quote({row}.{})", quoted(name)));
            joined(parts, " || ', ' || ")
        };
        match self {
            Key::Rowid(alias, _) => format!("+{row}.{alias}"),
            Key::Declared(alias, names) => {
                let value = match &names[..] {
                    [one] => format!("{row}.{}", quoted(one)),
                    several => values(several),
                };
                format!(
                    "CASE WHEN {} THEN CAST('{PLACE}' || {row}.{alias} AS BLOB) ELSE {value} END",
                    has_null(names, row)
                )
            }
            Key::Columns(names) => match &names[..] {
                [one] => format!("+{row}.{} COLLATE BINARY", quoted(one)),
                several => format!("({})", values(several)),
            },
        }
    }

    /// That two are one row, by an index of the table.
    fn same(&self, left: &str, right: &str) -> String {
        match self {
            Key::Rowid(alias, _) | Key::Declared(alias, _) => {
                format!("{left}.{alias} = {right}.{alias}")
            }
            Key::Columns(names) => equal(names, left, right),
        }
    }
}

impl Shape {
    /// The shape of a table of the catalog's, whatever temporary table has its name.
    pub(super) fn read(connection: &Connection, id: i64, name: &str) -> Result<Shape> {
        let columns: Vec<(String, i64)> = rows(
            connection,
            "SELECT name, pk FROM pragma_table_xinfo(?1, 'main') WHERE hidden = 0",
            [name],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at(name)?;
        // A primary key that is the rowid has no index.
        let kind: (bool, bool) = connection
            .query_row(
                "SELECT wr, EXISTS (SELECT 1 FROM pragma_index_list(?1, 'main') WHERE origin = \
                 'pk') \
                 FROM pragma_table_list WHERE schema = 'main' AND name = ?1",
                [name],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .at(name)?;
        let mut shape = Shape {
            id,
            name: name.into(),
            key: key(name, &columns, kind)?,
            columns: columns.into_iter().map(|(name, _)| name).collect(),
            uniques: Vec::new(),
            unseen: None,
        };
        let indexes: Vec<(String, bool, Option<String>)> = rows(
            connection,
            "SELECT l.name, l.partial, s.sql FROM pragma_index_list(?1, 'main') AS l \
             LEFT JOIN main.sqlite_schema AS s ON s.type = 'index' AND s.name = l.name WHERE \
             l.\"unique\"",
            [name],
            |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)),
        )
        .at(name)?;
        for (index, is_partial, sql) in indexes {
            let parts: Vec<Option<(String, String)>> = rows(
                connection,
                "SELECT name, coll FROM pragma_index_xinfo(?1, 'main') WHERE key ORDER BY seqno",
                [&index],
                |row| {
                    let name: Option<String> = row.get(0)?;
                    name.map(|name| Ok((name, row.get(1)?))).transpose()
                },
            )
            .at(name)?;
            match parts.into_iter().collect::<Option<Vec<_>>>() {
                Some(columns) => shape.uniques.push(Unique {
                    columns,
                    condition: sql.filter(|_| is_partial).and_then(|sql| condition(&sql)),
                }),
                // An expression has no name there.
                None => shape.unseen = Some(index),
            }
        }
        Ok(shape)
    }

    /// The image of the row of the table for which `condition` holds, in which it is called
    /// `larder_copy` (`TEMPORAL-2`).
    fn image(&self, condition: &str) -> String {
        format!(
            "(SELECT (SELECT json_object({}) FROM {} AS larder_copy WHERE {condition}) FROM \
             (SELECT {}))",
            joined(self.columns.iter().map(|column| pair(column)), ", "),
            quoted(&self.name),
            joined(
                self.columns
                    .iter()
                    .map(|column| format!("NULL AS {}", quoted(column))),
                ", "
            ),
        )
    }

    /// A statement that keeps a record for all rows of `from` (`TEMPORAL-1`), unless this commit
    /// has one of the key since `since`, a time, for which `known` holds.
    fn record(
        &self,
        until: &str,
        (since, known): (&str, &str),
        said: &Said<'_>,
        from: &str,
    ) -> String {
        let id = self.id;
        let Said { key, value, kind } = said;
        format!(
            "INSERT INTO larder_history (until_seq, what, ino, key, since_seq, value, kind, \
             mtime_ns) \
             SELECT {until}, 'row', {id}, {key}, 0, {value}, {kind}, {NOW} {from} \
             (SELECT value FROM larder_meta WHERE key = 'retention_ns') > 0 AND NOT EXISTS \
             (SELECT 1 FROM larder_history AS larder_known WHERE larder_known.what = 'row' \
             AND larder_known.ino = {id} AND larder_known.key = {key} AND larder_known.until_seq \
             = {until} \
             AND larder_known.mtime_ns >= {since}{known});"
        )
    }

    /// A statement that keeps what the merge of a workspace is going to change, or with `is_done`
    /// has changed, of the rows that are called `larder_row` in `from`, with commit `until`.
    pub(super) fn record_merged(&self, until: &str, from: &str, is_done: bool) -> String {
        let key = self.key.of("larder_row");
        let value = match is_done {
            // What is there now, and had no image, was not there.
            true => "NULL".to_owned(),
            false => self.image(&self.key.same("larder_copy", "larder_row")),
        };
        let said = Said {
            key: &key,
            value: &value,
            kind: "NULL",
        };
        self.record(until, ("0", ""), &said, from)
    }

    fn trigger_name(&self, part: &str) -> String {
        format!("larder_temporal_{}_{part}", self.id)
    }

    /// The triggers: their names and texts, as the schema has them.
    pub(super) fn triggers(&self) -> [(String, String); 5] {
        let table = quoted(&self.name);
        let image = |row: &str| self.image(&self.key.same("larder_copy", row));
        let record = |row: &str, value: &str, kind: &str, from: &str| {
            let key = self.key.of(row);
            // A number that is given anew is told (TEMPORAL-3), though the row that had it went at
            // the same time.
            let known = match &self.key {
                Key::Rowid(..) | Key::Declared(..) if value == "NULL" => {
                    " AND (larder_known.value IS NULL OR larder_known.kind = 'replaced')"
                }
                // That it was replaced is told beside what it was before a change in the same
                // millisecond.
                Key::Rowid(..) | Key::Declared(..) if kind != "NULL" => {
                    " AND larder_known.kind = 'replaced'"
                }
                _ => "",
            };
            let said = Said {
                key: &key,
                value,
                kind,
            };
            self.record(UNTIL, (NOW, known), &said, from)
        };
        let is = record("NEW", "NULL", "NULL", "WHERE");
        let was = record("OLD", &image("OLD"), "NULL", "WHERE");
        let other_key = format!("{} IS NOT {}", self.key.of("NEW"), self.key.of("OLD"));
        let replaced = |of_key: &str, but: &str| {
            let keys = [(self.key.same("larder_row", "NEW"), of_key)];
            let uniques = self.uniques.iter().map(|unique| {
                let mut terms: Vec<String> = (unique.columns.iter())
                    .map(|(column, collation)| {
                        let (column, collation) = (quoted(column), quoted(collation));
                        format!("larder_row.{column} = NEW.{column} COLLATE {collation}")
                    })
                    .collect();
                terms.extend(unique.condition.iter().map(|sql| format!("({sql}\n)")));
                (terms.join(" AND "), "NULL")
            });
            let records = keys.into_iter().chain(uniques).map(|(condition, kind)| {
                let from = format!("FROM {table} AS larder_row WHERE {condition} AND {but}");
                record("larder_row", &image("larder_row"), kind, &from)
            });
            joined(records, " ")
        };
        let not_itself = format!(
            "{} IS NOT {} AND",
            self.key.of("larder_row"),
            self.key.of("OLD")
        );
        let of_key = match &self.key {
            Key::Rowid(..) | Key::Declared(..) => "'replaced'",
            Key::Columns(_) => "NULL",
        };
        let bodies = [
            ("BEFORE INSERT", replaced(of_key, "")),
            ("AFTER INSERT", is.clone()),
            (
                "BEFORE UPDATE",
                format!("{was} {}", replaced("NULL", &not_itself)),
            ),
            ("AFTER UPDATE", is),
            ("BEFORE DELETE", was.clone()),
        ];
        let mut at = 0;
        bodies.map(|(when, body)| {
            let name = self.trigger_name(PARTS[at]);
            at += 1;
            let condition = match when {
                "AFTER UPDATE" => format!("WHEN {other_key} "),
                _ => String::new(),
            };
            let sql =
                format!("CREATE TRIGGER {name} {when} ON {table} {condition}BEGIN {body} END");
            (name, sql)
        })
    }

    pub(super) fn drop_triggers(&self, txn: &Connection) -> Result<()> {
        for part in PARTS {
            let name = self.trigger_name(part);
            execute_one(txn, &format!("DROP TRIGGER IF EXISTS main.{name}")).at(&self.name)?;
        }
        Ok(())
    }

    pub(super) fn make_triggers(&self, txn: &Connection) -> Result<()> {
        if self.columns.len() > COLUMNS_MAX {
            return Err(CatalogError::invalid(format!(
                "'{}' has {} columns, and the past of at most {COLUMNS_MAX} can be kept; move \
                 some to a table of their own",
                self.name,
                self.columns.len()
            )));
        }
        self.drop_triggers(txn)?;
        for (_, sql) in self.triggers() {
            // In the catalog, whatever temporary table has the name; the schema has it without.
            let sql = sql.replacen("CREATE TRIGGER ", "CREATE TRIGGER main.", 1);
            execute_one(txn, &sql).at(&self.name)?;
        }
        Ok(())
    }

    /// The triggers as they are, one after the other; those that are not there are left out.
    pub(super) fn found_triggers(&self, txn: &Connection) -> Result<Vec<String>> {
        let mut found = Vec::new();
        for part in PARTS {
            let sql: Option<String> = txn
                .query_row(
                    "SELECT sql FROM main.sqlite_schema WHERE type = 'trigger' AND name = ?1",
                    [self.trigger_name(part)],
                    |row| row.get(0),
                )
                .optional()
                .at(&self.name)?;
            found.extend(sql);
        }
        Ok(found)
    }

    /// Whether triggers with these texts keep rows under other keys than this shape has: older
    /// versions went by the rowid wherever there is one.
    pub(super) fn has_other_keys(&self, triggers: &[String]) -> bool {
        let Key::Declared(alias, _) = &self.key else {
            return false;
        };
        let id = self.id;
        let rowid = format!("'row', {id}, +OLD.{alias}, 0,");
        triggers.iter().any(|sql| sql.contains(&rowid))
    }

    /// Refuses what has a unique index over expressions: what REPLACE deletes by it could not be
    /// seen before.
    pub(super) fn require_seen(&self) -> Result<()> {
        match &self.unseen {
            None => Ok(()),
            Some(index) => Err(CatalogError::invalid(format!(
                "the unique index '{index}' of '{}' is over an expression, and what REPLACE \
                 deletes by it would have no \
                 past; make it one over a generated column, or drop it",
                self.name
            ))),
        }
    }
}

fn key(
    table: &str,
    columns: &[(String, i64)],
    (has_no_rowid, has_index): (bool, bool),
) -> Result<Key> {
    let mut parts: Vec<_> = columns.iter().filter(|(_, pk)| *pk > 0).collect();
    parts.sort_by_key(|(_, pk)| *pk);
    let names: Vec<String> = parts.into_iter().map(|(name, _)| name.clone()).collect();
    if has_no_rowid {
        return Ok(Key::Columns(names));
    }
    let is_hidden = |alias: &&str| {
        !columns
            .iter()
            .any(|(name, _)| name.eq_ignore_ascii_case(alias))
    };
    let alias = ["rowid", "_rowid_", "oid"].into_iter().find(is_hidden);
    let alias = alias.ok_or_else(|| {
        CatalogError::invalid(format!(
            "the columns of '{table}' hide its rowid; rename one"
        ))
    })?;
    Ok(match has_index {
        true => Key::Declared(alias, names),
        false => Key::Rowid(alias, names.into_iter().next()),
    })
}

/// Which rows a partial index has: what follows WHERE in the statement that made it, outside of
/// strings, names, comments and parentheses.
fn condition(sql: &str) -> Option<String> {
    let bytes = sql.as_bytes();
    let (mut at, mut depth) = (0, 0);
    while at < bytes.len() {
        let end = match (bytes[at], bytes.get(at + 1)) {
            (quote @ (b'\'' | b'"' | b'`'), _) => past(bytes, at + 1, &[quote]),
            (b'[', _) => past(bytes, at + 1, b"]"),
            (b'-', Some(b'-')) => past(bytes, at + 2, b"\n"),
            (b'/', Some(b'*')) => past(bytes, at + 2, b"*/"),
            (byte, _) if is_of_word(byte) => {
                let len = bytes[at..].iter().take_while(|byte| is_of_word(**byte));
                at + len.count()
            }
            (byte, _) => {
                depth += i32::from(byte == b'(') - i32::from(byte == b')');
                at + 1
            }
        };
        if depth == 0 && bytes[at..end].eq_ignore_ascii_case(b"WHERE") {
            return Some(sql[end..].trim().to_owned());
        }
        at = end;
    }
    None
}

/// Where the first `mark` from `from` on ends, or the text.
fn past(bytes: &[u8], from: usize, mark: &[u8]) -> usize {
    let rest = bytes.get(from..).unwrap_or_default();
    let found = rest.windows(mark.len()).position(|part| part == mark);
    found.map_or(bytes.len(), |found| from + found + mark.len())
}

fn is_of_word(byte: u8) -> bool {
    byte.is_ascii_alphanumeric() || byte == b'_' || byte == b'$' || !byte.is_ascii()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_condition_of_a_partial_index_is_found() {
        for (sql, expected) in [
            ("CREATE UNIQUE INDEX i ON t (a)", None),
            ("CREATE UNIQUE INDEX i ON t (a) WHERE b", Some("b")),
            (
                "CREATE UNIQUE INDEX \"where\" ON [where] (a, \"a\"\"where \") wHere\n a > (1) \
                 AND c = ' where '",
                Some("a > (1) AND c = ' where '"),
            ),
            (
                "CREATE UNIQUE INDEX i ON t (a /* where */ COLLATE NOCASE) -- where\n WHERE \
                 nowhere IS 1 --",
                Some("nowhere IS 1 --"),
            ),
            (
                "CREATE UNIQUE INDEX `i``where ` ON t (äwhere, wherea)",
                None,
            ),
        ] {
            assert_eq!(condition(sql).as_deref(), expected, "{sql}");
        }
    }
}
