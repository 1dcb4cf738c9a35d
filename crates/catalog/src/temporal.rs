//! Temporal tables: tables of users whose rows have a past, as files have.
//!
//! # Words
//! An *image* is a row as JSON: an object of its columns; a blob is `["x", hex]`, a real number `["r", text]`. A *record* is a
//! row of `larder_history` with `what = 'row'`: the image that a commit superseded, or NULL where there was no row.
//!
//! # Invariants
//! * `TEMPORAL-1` While the database keeps history, every change of a row leaves a record of what it was before. As of a
//!   moment a row is what its first record after that says, and without one what it is now. *Guard*: triggers of pure
//!   SQL, which run for every client; the merge of a workspace, which runs none, keeps what it touches.
//! * `TEMPORAL-2` Triggers name columns, and do not keep `ALTER TABLE` from anything: a column that is gone reads as NULL in
//!   them. They are made anew by the first write of a session that sees another schema. *Guard*: an image is taken in a
//!   query whose outer level has a NULL for every name.
//!
//! What plain SQL changes counts to the next commit. Before the engine commits anything else, it gives that a moment of
//! its own, at the time of the last change (`loose`); and who asks for a time between two changes of plain SQL gets what
//! was there then, by the times of the records, to the millisecond. What the engine's transactions do is as of their
//! end, all at once.
//!
//! REPLACE deletes rows without a DELETE trigger: what it will delete is looked for before.

use crate::Catalog;
use crate::codec::signed;
use crate::error::{At, CatalogError, Result};
use crate::history::{no_history, search_moments};
use crate::meta::find_meta;
use crate::read::rows;
use larder_format::CommitSeq;
use rusqlite::{Connection, OptionalExtension, params};

const TABLE: &str = "larder_temporal";
/// The present in SQL, as triggers know it: whole milliseconds.
const NOW: &str = "CAST(round((julianday('now') - 2440587.5) * 86400000.0) AS INTEGER) * 1000000";
/// SQLite's functions take 127 arguments at most, and an image two for every column.
const COLUMNS_MAX: usize = 63;
/// The triggers of a table.
const PARTS: [&str; 5] = ["bi", "ai", "bu", "au", "bd"];

/// A temporal table.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TemporalTable {
    /// Its name now.
    pub name: String,
    /// The first commit as of which it can be read.
    pub since: CommitSeq,
}

/// How to read a temporal table as of a commit, and to restore it, in SQL of the present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastRows {
    /// Its name now.
    pub table: String,
    /// Its columns now.
    pub columns: Vec<String>,
    /// A query for `larder_key` and the columns as they were.
    pub select: String,
    /// The key of a row of the table, which is called so in the text.
    key: Key,
    /// Columns that refer to the inode of a store: the column, the table.
    pub inodes: Vec<(String, String)>,
}

/// What a step of a restore does to rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsChange {
    /// They were not there.
    Delete,
    /// They were other.
    Update,
    /// They are gone.
    Insert,
}

/// A step of a restore of rows, in SQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RowsStep {
    /// What it does.
    pub change: RowsChange,
    /// The statement.
    pub run: String,
    /// A query for the number of rows that it would change.
    pub count: String,
}

/// What identifies a row.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Key {
    /// The rowid, under a name that no column hides.
    Rowid(&'static str),
    /// The primary key of a table without one.
    Columns(Vec<String>),
}

/// What triggers have to know of a table.
struct Shape {
    id: i64,
    name: String,
    columns: Vec<String>,
    key: Key,
    /// Sets of columns that are unique.
    uniques: Vec<Vec<String>>,
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

fn text(value: &str) -> String {
    format!("'{}'", value.replace('\'', "''"))
}

fn joined(parts: impl Iterator<Item = String>, between: &str) -> String {
    parts.collect::<Vec<_>>().join(between)
}

impl Key {
    /// Of the row that is called `row`. Without an affinity: an index of keys has none.
    fn of(&self, row: &str) -> String {
        match self {
            Key::Rowid(alias) => format!("+{row}.{alias}"),
            Key::Columns(names) => match &names[..] {
                [one] => format!("+{row}.{}", quoted(one)),
                several => {
                    let parts = several
                        .iter()
                        .map(|name| format!("quote({row}.{})", quoted(name)));
                    format!("({})", joined(parts, " || ', ' || "))
                }
            },
        }
    }

    /// That two rows have the same, by an index of the table.
    fn same(&self, left: &str, right: &str) -> String {
        match self {
            Key::Rowid(alias) => format!("{left}.{alias} = {right}.{alias}"),
            Key::Columns(names) => {
                let terms = names.iter().map(|name| {
                    let name = quoted(name);
                    format!("{left}.{name} = {right}.{name}")
                });
                joined(terms, " AND ")
            }
        }
    }
}

impl Shape {
    fn read(connection: &Connection, id: i64, name: &str) -> Result<Shape> {
        let columns: Vec<(String, i64)> = rows(
            connection,
            "SELECT name, pk FROM pragma_table_xinfo(?1) WHERE hidden = 0",
            [name],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at(name)?;
        let has_no_rowid: bool = connection
            .query_row(
                "SELECT wr FROM pragma_table_list WHERE schema = 'main' AND name = ?1",
                [name],
                |row| row.get(0),
            )
            .at(name)?;
        let key = match has_no_rowid {
            true => {
                let mut key: Vec<_> = columns.iter().filter(|(_, pk)| *pk > 0).collect();
                key.sort_by_key(|(_, pk)| *pk);
                Key::Columns(key.into_iter().map(|(name, _)| name.clone()).collect())
            }
            false => {
                let is_hidden = |alias: &&str| {
                    !columns
                        .iter()
                        .any(|(name, _)| name.eq_ignore_ascii_case(alias))
                };
                let alias = ["rowid", "_rowid_", "oid"].into_iter().find(is_hidden);
                Key::Rowid(alias.ok_or_else(|| {
                    CatalogError::invalid(format!(
                        "the columns of '{name}' hide its rowid; rename one"
                    ))
                })?)
            }
        };
        let indexes: Vec<String> = rows(
            connection,
            "SELECT name FROM pragma_index_list(?1) WHERE \"unique\" AND NOT partial",
            [name],
            |row| row.get(0),
        )
        .at(name)?;
        let mut uniques = Vec::new();
        for index in indexes {
            let parts: Vec<Option<String>> = rows(
                connection,
                "SELECT name FROM pragma_index_info(?1) ORDER BY seqno",
                [&index],
                |row| row.get(0),
            )
            .at(name)?;
            // An index over an expression has no name there; REPLACE through it is not seen.
            uniques.extend(parts.into_iter().collect::<Option<Vec<String>>>());
        }
        Ok(Shape {
            id,
            name: name.into(),
            columns: columns.into_iter().map(|(name, _)| name).collect(),
            key,
            uniques,
        })
    }

    /// (`quote` keeps every real number exactly, but older versions write an infinite one so that none can read it.)
    /// The image of the row of the table for which `condition` holds, in which it is called `larder_copy`
    /// (`TEMPORAL-2`).
    fn image(&self, condition: &str) -> String {
        let pair = |column: &String| {
            let name = quoted(column);
            format!(
                "{}, CASE typeof({name}) WHEN 'blob' THEN json_array('x', hex({name})) \
                 WHEN 'real' THEN json_array('r', replace(quote({name}), 'Inf', '9e999')) ELSE {name} END",
                text(column)
            )
        };
        format!(
            "(SELECT (SELECT json_object({}) FROM {} AS larder_copy WHERE {condition}) FROM (SELECT {}))",
            joined(self.columns.iter().map(pair), ", "),
            quoted(&self.name),
            joined(
                self.columns
                    .iter()
                    .map(|column| format!("NULL AS {}", quoted(column))),
                ", "
            ),
        )
    }

    /// A statement that keeps a record of `key` for all rows of `from` (`TEMPORAL-1`), unless this commit has one since
    /// `since`, a time.
    fn record(&self, until: &str, since: &str, (key, value): (&str, &str), from: &str) -> String {
        let id = self.id;
        format!(
            "INSERT INTO larder_history (until_seq, what, ino, key, since_seq, value, mtime_ns) \
             SELECT {until}, 'row', {id}, {key}, 0, {value}, {NOW} {from} \
             (SELECT value FROM larder_meta WHERE key = 'retention_ns') > 0 AND NOT EXISTS \
             (SELECT 1 FROM larder_history AS larder_known WHERE larder_known.what = 'row' \
             AND larder_known.ino = {id} AND larder_known.key = {key} AND larder_known.until_seq = {until} \
             AND larder_known.mtime_ns >= {since});"
        )
    }

    fn trigger_name(&self, part: &str) -> String {
        format!("larder_temporal_{}_{part}", self.id)
    }

    /// The triggers: their names and texts.
    fn triggers(&self) -> [(String, String); 5] {
        // The next commit; of what the engine does by foreign keys, the one under way.
        const UNTIL: &str = "((SELECT value FROM larder_meta WHERE key = 'commit_seq') \
             + ((SELECT open FROM larder_gate) IS NOT 1))";
        let table = quoted(&self.name);
        let image = |row: &str| self.image(&self.key.same("larder_copy", row));
        let record = |row: &str, value: &str, from: &str| {
            self.record(UNTIL, NOW, (&self.key.of(row), value), from)
        };
        let is = record("NEW", "NULL", "WHERE");
        let was = record("OLD", &image("OLD"), "WHERE");
        let other_key = format!("{} IS NOT {}", self.key.of("NEW"), self.key.of("OLD"));
        let replaced = |but: &str| {
            let of_key = self.key.same("larder_row", "NEW");
            let of_uniques = self.uniques.iter().map(|unique| {
                let terms = unique.iter().map(|column| {
                    let column = quoted(column);
                    format!("larder_row.{column} = NEW.{column}")
                });
                joined(terms, " AND ")
            });
            let conditions = std::iter::once(of_key).chain(of_uniques);
            let records = conditions.map(|condition| {
                let from = format!("FROM {table} AS larder_row WHERE {condition} AND {but}");
                record("larder_row", &image("larder_row"), &from)
            });
            joined(records, " ")
        };
        let not_itself = format!(
            "{} IS NOT {} AND",
            self.key.of("larder_row"),
            self.key.of("OLD")
        );
        let bodies = [
            ("BEFORE INSERT", replaced("")),
            ("AFTER INSERT", is.clone()),
            ("BEFORE UPDATE", format!("{was} {}", replaced(&not_itself))),
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

    fn drop_triggers(&self, txn: &Connection) -> Result<()> {
        for part in PARTS {
            let name = self.trigger_name(part);
            txn.execute_batch(&format!("DROP TRIGGER IF EXISTS {name}"))
                .at(&self.name)?;
        }
        Ok(())
    }

    fn make_triggers(&self, txn: &Connection) -> Result<()> {
        if self.columns.len() > COLUMNS_MAX {
            return Err(CatalogError::invalid(format!(
                "'{}' has {} columns, and the past of at most {COLUMNS_MAX} can be kept; move some to a table of their own",
                self.name,
                self.columns.len()
            )));
        }
        self.drop_triggers(txn)?;
        for (_, sql) in self.triggers() {
            txn.execute_batch(&sql).at(&self.name)?;
        }
        Ok(())
    }
}

impl Catalog {
    /// Makes a table of the user's temporal, or lets it go: what is kept of it then stays until the horizon passes.
    /// Twice is no error. [`CatalogError::Invalid`] for a table of ours, a view, and where there is no history.
    pub fn track_table(&self, table: &str, is_tracked: bool) -> Result<()> {
        self.write(|txn| {
            if find_meta(txn, "retention_ns")? <= 0 {
                return Err(no_history());
            }
            let name = find_table(txn, table)?;
            let known = active(txn)?.into_iter().find(|one| one.1 == name);
            let seq = find_meta(txn, "commit_seq")?;
            match (known, is_tracked) {
                (Some(_), true) => return Ok(()),
                (None, true) => {}
                (Some((id, ..)), false) => {
                    Shape::read(txn, id, &name)?.drop_triggers(txn)?;
                    return txn
                        .execute(
                            "UPDATE larder_temporal SET until_seq = ?2 WHERE id = ?1",
                            [id, seq],
                        )
                        .at(TABLE)
                        .map(drop);
                }
                (None, false) => {
                    return Err(CatalogError::not_found(format!("tracked table '{table}'")));
                }
            }
            let id: i64 = txn
                .query_row(
                    "INSERT INTO larder_temporal (name, since_seq) VALUES (?1, ?2) RETURNING id",
                    params![name, seq],
                    |row| row.get(0),
                )
                .at(TABLE)?;
            Shape::read(txn, id, &name)?.make_triggers(txn)
        })
    }

    /// The temporal tables, by name.
    pub fn temporal_tables(&self) -> Result<Vec<TemporalTable>> {
        self.read(|reader| {
            let mut found: Vec<TemporalTable> = active(reader)?
                .into_iter()
                .map(|(_, name, since)| TemporalTable { name, since })
                .collect();
            found.sort_by(|a, b| a.name.cmp(&b.name));
            Ok(found)
        })
    }

    /// How to read a temporal table as of commit `seq`, or of what plain SQL did after it up to the time `at_ns`; the
    /// caller makes sure that the state is kept. [`CatalogError::NotFound`]: no such table; [`CatalogError::Invalid`]
    /// when it was not tracked then.
    pub fn past_rows(&self, table: &str, seq: CommitSeq, at_ns: i64) -> Result<PastRows> {
        self.read(|reader| past_rows(reader, table, seq, at_ns))
    }
}

/// Those that are tracked: number, name now, since when. Where the triggers are, the table is.
fn active(connection: &Connection) -> Result<Vec<(i64, String, CommitSeq)>> {
    rows(
        connection,
        "SELECT t.id, s.tbl_name, t.since_seq FROM larder_temporal AS t JOIN sqlite_schema AS s \
         ON s.type = 'trigger' AND s.name = 'larder_temporal_' || t.id || '_bd' \
         WHERE t.until_seq IS NULL ORDER BY t.id",
        [],
        |row| {
            Ok((
                row.get(0)?,
                row.get(1)?,
                CommitSeq(row.get::<_, i64>(2)? as u64),
            ))
        },
    )
    .at(TABLE)
}

/// Makes triggers anew that are not what they should be (`TEMPORAL-2`).
pub(crate) fn refresh(txn: &Connection) -> Result<()> {
    for (id, name, _) in active(txn)? {
        let shape = Shape::read(txn, id, &name)?;
        let mut is_as_wanted = true;
        for (trigger, sql) in shape.triggers() {
            let found: Option<String> = txn
                .query_row(
                    "SELECT sql FROM sqlite_schema WHERE type = 'trigger' AND name = ?1",
                    [&trigger],
                    |row| row.get(0),
                )
                .optional()
                .at(&name)?;
            is_as_wanted &= found.is_some_and(|found| found == sql);
        }
        if !is_as_wanted {
            shape.make_triggers(txn)?;
        }
    }
    Ok(())
}

/// Whether plain SQL made the commit after `seq`, or what is going to be it.
fn is_plain_next(connection: &Connection, seq: CommitSeq) -> Result<bool> {
    let (_, next) = search_moments(connection, |found, _| found <= seq)?;
    let Some((next, _)) = next else {
        return Ok(true);
    };
    connection
        .query_row(
            "SELECT EXISTS (SELECT 1 FROM larder_history WHERE what = 'commit' AND until_seq = ?1 AND kind = 'sql')",
            [signed(next.0)],
            |row| row.get(0),
        )
        .at("larder_history")
}

/// Keeps what the merge of a workspace will change in a table, `keys` of which are `k0`, … in `ws.old_table`.
pub(crate) fn keep_merged(
    txn: &Connection,
    seq: CommitSeq,
    table: &str,
    (keys, old_table): (&[String], &str),
    is_done: bool,
) -> Result<()> {
    let Some((id, name, _)) = active(txn)?.into_iter().find(|one| one.1 == table) else {
        return Ok(());
    };
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
    let key = shape.key.of("larder_row");
    let value = match is_done {
        // What is there now, and had no image, was not there.
        true => "NULL".to_owned(),
        false => shape.image(&shape.key.same("larder_copy", "larder_row")),
    };
    let record = shape.record(&seq.to_string(), "0", (&key, &value), &from);
    txn.execute_batch(&record).at(&name)
}

fn past_rows(connection: &Connection, table: &str, seq: CommitSeq, at_ns: i64) -> Result<PastRows> {
    let name = find_table(connection, table)?;
    let found = active(connection)?.into_iter().find(|one| one.1 == name);
    let Some((id, _, since)) = found else {
        return Err(CatalogError::invalid(format!(
            "table '{name}' has no past; 'larder track' keeps it from then on"
        )));
    };
    if seq < since {
        return Err(CatalogError::invalid(format!(
            "table '{name}' is tracked since commit {since}; ask for that or later"
        )));
    }
    let shape = Shape::read(connection, id, &name)?;
    let column = |column: &String| {
        format!(
            "(SELECT CASE j.type WHEN 'array' THEN CASE json_extract(j.value, '$[0]') \
             WHEN 'x' THEN unhex(json_extract(j.value, '$[1]')) \
             ELSE CAST(json_extract(j.value, '$[1]') AS REAL) END ELSE j.value END \
             FROM json_each(larder_past.value) AS j WHERE j.key = {}) AS {}",
            text(column),
            quoted(column)
        )
    };
    let now = |column: &String| format!("larder_now.{}", quoted(column));
    let key = shape.key.of("larder_now");
    let later = match is_plain_next(connection, seq)? {
        true => format!("AND (h.until_seq > {} OR h.mtime_ns > {at_ns})", seq.0 + 1),
        false => String::new(),
    };
    let after = format!("h.what = 'row' AND h.ino = {id} AND h.until_seq > {seq} {later}");
    let select = format!(
        "SELECT {key} AS larder_key, {} FROM {} AS larder_now WHERE NOT EXISTS (SELECT 1 FROM larder_history AS h \
         WHERE {after} AND h.key = {key}) \
         UNION ALL SELECT larder_past.key, {} FROM (SELECT key, value FROM (SELECT key, value, row_number() OVER \
         (PARTITION BY key ORDER BY until_seq, id) AS place FROM larder_history AS h WHERE {after}) WHERE place = 1) \
         AS larder_past WHERE larder_past.value IS NOT NULL",
        joined(shape.columns.iter().map(now), ", "),
        quoted(&name),
        joined(shape.columns.iter().map(column), ", "),
    );
    let inodes = rows(
        connection,
        "SELECT f.\"from\", s.name FROM pragma_foreign_key_list(?1) AS f JOIN larder_store AS s \
         ON s.table_store = s.id AND s.name = f.\"table\" COLLATE NOCASE \
         WHERE coalesce(f.\"to\", 'ino') = 'ino' COLLATE NOCASE",
        [&name],
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
    .at(&name)?;
    Ok(PastRows {
        columns: shape.columns,
        key: shape.key,
        table: name,
        select,
        inodes,
    })
}

impl PastRows {
    /// What makes the present of the rows that `source` has, a query of the form of `select`, in this order: first, if
    /// `filter` says which rows of the present may go, those go that `select` does not have.
    pub fn restore(&self, source: &str, filter: Option<&str>) -> Vec<RowsStep> {
        let table = quoted(&self.table);
        let key = self.key.of(&table);
        let own_key = key.trim_start_matches('+'); // By the table's own index.
        let there = match &self.key {
            Key::Columns(names) if names.len() > 1 => format!(
                "larder_was.larder_key IN (SELECT {} FROM {table} AS larder_there)",
                self.key.of("larder_there")
            ),
            one => format!(
                "EXISTS (SELECT 1 FROM {table} AS larder_there WHERE {} = larder_was.larder_key)",
                one.of("larder_there").trim_start_matches('+')
            ),
        };
        let names = || self.columns.iter().map(|column| quoted(column));
        let mut steps = Vec::new();
        if let Some(filter) = filter {
            let which = format!(
                "FROM {table} WHERE ({filter}\n) AND {key} NOT IN (SELECT larder_key FROM ({}))",
                self.select
            );
            steps.push(RowsStep {
                change: RowsChange::Delete,
                run: format!("DELETE {which}"),
                count: format!("SELECT count(*) {which}"),
            });
        }
        let set = names().map(|name| format!("{name} = larder_was.{name}"));
        let differs = names().map(|name| format!("{table}.{name} IS NOT larder_was.{name}"));
        let which = format!(
            "({source}) AS larder_was WHERE {own_key} = larder_was.larder_key AND ({})",
            joined(differs, " OR ")
        );
        steps.push(RowsStep {
            change: RowsChange::Update,
            run: format!("UPDATE {table} SET {} FROM {which}", joined(set, ", ")),
            count: format!("SELECT count(*) FROM {table}, {which}"),
        });
        let (mut into, mut from) = (Vec::new(), Vec::new());
        if let Key::Rowid(alias) = &self.key {
            into.push((*alias).to_owned());
            from.push("larder_was.larder_key".to_owned());
        }
        into.extend(names());
        from.extend(names().map(|name| format!("larder_was.{name}")));
        let (into, from) = (into.join(", "), from.join(", "));
        let which = format!("FROM ({source}) AS larder_was WHERE NOT {there}");
        steps.push(RowsStep {
            change: RowsChange::Insert,
            run: format!("INSERT INTO {table} ({into}) SELECT {from} {which}"),
            count: format!("SELECT count(*) {which}"),
        });
        steps
    }
}

/// The name of a table of the user's, as it is written there.
fn find_table(connection: &Connection, table: &str) -> Result<String> {
    let found: Option<(String, String)> = connection
        .query_row(
            "SELECT name, type FROM pragma_table_list WHERE schema = 'main' AND name = ?1 COLLATE NOCASE",
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
    let is_of_store: bool = connection
        .query_row(
            "SELECT EXISTS (SELECT 1 FROM larder_store WHERE ?1 IN (name, name || '_dirent', name || '_content', \
             name || '_map', name || '_xattr'))",
            [&name],
            |row| row.get(0),
        )
        .at("larder_store")?;
    let lower = name.to_ascii_lowercase();
    if is_of_store || lower.starts_with("larder_") || lower.starts_with("sqlite_") {
        return Err(CatalogError::invalid(format!(
            "'{name}' is a table of larder: files have a past anyway, your own columns of them have none yet; give a \
             table of your own"
        )));
    }
    Ok(name)
}
