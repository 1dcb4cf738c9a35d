//! The user's columns of a store's table: what keeps their past, and how it is read.
//!
//! # Words
//! An *image* of an inode has the user's columns of its row, as JSON (`temporal`); the engine's
//! have a past of their own (`history`). A view of them, `larder_temporal_N_image`, is what
//! triggers and the engine take it from. A *record* has the inode as its key.
//!
//! # Invariants
//! * `TEMPORAL-4` While the database keeps history, the user's columns of an inode are as of a
//!   moment what its first record after that says; without one what they are now, and NULL when it
//!   is gone. *Guard*: triggers keep what plain SQL and the actions of foreign keys change; the
//!   engine, which runs without triggers, keeps what goes with a row that it deletes
//!   ([`keep_deleted`]), and what a merge changes ([`keep_changed`]). Model tests of the layers
//!   above.
//! * `TEMPORAL-5` Whoever changes no column of the user's writes no record: a new file has none,
//!   nor has one that is deleted with NULL in all of them. Only an inode that comes back under its
//!   number (`ROLLBACK-1`) has a record of absence, since its new row has the defaults
//!   ([`keep_absent`]).
//!
//! One trigger names the columns (`_set`), and works for everybody. The other (`_columns`) works
//! for plain SQL that changes no attribute: so what a client does to a column that it has just
//! added is seen, before a session makes the first one anew.
//!
//! `DROP COLUMN` takes values with it that no record has. What is kept under the name that a column
//! had before is not shown under its new one.

use super::active::{Active, active};
use super::shape::{NOW, UNTIL, joined, pair, text, value_in};
use crate::error::{At, Result};
use crate::history::{Keeper, require_reach};
use crate::schema::ENGINE_COLUMNS;
use crate::types::codec::rows;
use crate::types::names::{execute_one, quoted};
use larder_format::{CommitSeq, StoreId};
use rusqlite::{Connection, OptionalExtension, params};

const TABLE: &str = "larder_temporal";
/// Columns in one `json_object`: SQLite's functions take 127 arguments at most.
const OBJECT_COLUMNS: usize = 60;

/// What is kept of a store's table.
pub(super) struct Columns {
    id: i64,
    table: String,
    columns: Vec<String>,
}

/// A part of the schema: its type, its name, its text there.
type Object = (&'static str, String, String);

impl Columns {
    pub(super) fn read(connection: &Connection, id: i64, table: &str) -> Result<Columns> {
        Ok(Columns {
            id,
            table: table.into(),
            columns: stored_columns(connection, table)?,
        })
    }

    /// The view and the triggers.
    fn objects(&self) -> Vec<Object> {
        let (id, view, table) = (self.id, image_view(self.id), quoted(&self.table));
        let objects = self.columns.chunks(OBJECT_COLUMNS).map(|columns| {
            let pairs = columns.iter().map(|column| pair(column));
            format!("json_object({})", joined(pairs, ", "))
        });
        // A JSON patch leaves NULLs out, which are what a column without a value is.
        let image = objects.reduce(|all, more| format!("json_patch({all}, {more})"));
        let names = self.columns.iter().map(|column| quoted(column));
        let nulls = names.clone().map(|name| format!(", NULL AS {name}"));
        // As in an image of a row: what is dropped reads as NULL (TEMPORAL-2).
        let image = format!(
            "CREATE VIEW {view} (ino, value) AS SELECT larder_row.ino, (SELECT (SELECT {} FROM \
             {table} AS larder_copy \
             WHERE larder_copy.ino = larder_row.ino) FROM (SELECT NULL AS larder_none{})) FROM \
             {table} AS larder_row",
            image.as_deref().unwrap_or("json_object()"),
            joined(nulls, "")
        );
        let record = format!(
            "INSERT INTO larder_history (until_seq, what, ino, key, since_seq, value, mtime_ns) \
             SELECT {UNTIL}, 'row', {id}, OLD.ino, 0, (SELECT value FROM {view} WHERE ino = \
             OLD.ino), {NOW} \
             WHERE (SELECT value FROM larder_meta WHERE key = 'retention_ns') > 0 AND NOT EXISTS \
             (SELECT 1 FROM larder_history AS larder_known WHERE larder_known.what = 'row' \
             AND larder_known.ino = {id} AND larder_known.key = +OLD.ino AND \
             larder_known.until_seq = {UNTIL} \
             AND larder_known.mtime_ns >= {NOW});"
        );
        let attributes = ENGINE_COLUMNS
            .iter()
            .map(|column| format!("AND NEW.{column} IS OLD.{column}"));
        let trigger = |part: &str, when: &str| {
            let name = format!("larder_temporal_{id}_{part}");
            let sql = format!("CREATE TRIGGER {name} BEFORE UPDATE {when} BEGIN {record} END");
            ("trigger", name, sql)
        };
        let mut objects = vec![
            ("view", view, image),
            trigger(
                "columns",
                &format!(
                    "ON {table} WHEN (SELECT open FROM larder_guard_switch) IS NOT 1 {}",
                    joined(attributes, " ")
                ),
            ),
        ];
        if !self.columns.is_empty() {
            let names = joined(names, ", ");
            objects.push(trigger("set", &format!("OF {names} ON {table}")));
        }
        objects
    }

    /// Whether they are there as they should be.
    pub(super) fn is_kept(&self, txn: &Connection) -> Result<bool> {
        let mut find = txn
            .prepare_cached("SELECT sql FROM main.sqlite_schema WHERE type = ?1 AND name = ?2")
            .at(TABLE)?;
        for (kind, name, sql) in self.objects() {
            let found: Option<String> = find
                .query_row([kind, name.as_str()], |row| row.get(0))
                .optional()
                .at(TABLE)?;
            if found.as_ref() != Some(&sql) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// The name and the text of each.
    pub(super) fn texts(&self) -> Vec<(String, String)> {
        let objects = self.objects().into_iter();
        objects.map(|(_, name, sql)| (name, sql)).collect()
    }

    pub(super) fn make(&self, txn: &Connection) -> Result<()> {
        self.drop(txn)?;
        for (kind, _, sql) in self.objects() {
            // In the catalog, whatever temporary table has the name; the schema has it without.
            let create = format!("CREATE {} ", kind.to_ascii_uppercase());
            let sql = sql.replacen(&create, &format!("{create}main."), 1);
            execute_one(txn, &sql).at(&self.table)?;
        }
        Ok(())
    }

    pub(super) fn drop(&self, txn: &Connection) -> Result<()> {
        let id = self.id;
        for what in [
            format!("TRIGGER IF EXISTS main.larder_temporal_{id}_columns"),
            format!("TRIGGER IF EXISTS main.larder_temporal_{id}_set"),
            format!("VIEW IF EXISTS main.{}", image_view(id)),
        ] {
            execute_one(txn, &format!("DROP {what}")).at(&self.table)?;
        }
        Ok(())
    }
}

fn image_view(id: i64) -> String {
    format!("larder_temporal_{id}_image")
}

/// The user's columns of a store's table that are stored: not those that are computed.
fn stored_columns(connection: &Connection, table: &str) -> Result<Vec<String>> {
    let mut columns: Vec<String> = rows(
        connection,
        "SELECT name FROM pragma_table_xinfo(?1, 'main') WHERE hidden = 0",
        [table],
        |row| row.get(0),
    )
    .at(table)?;
    let is_ours = |column: &String| {
        let mut ours = ENGINE_COLUMNS.iter();
        ours.any(|ours| ours.eq_ignore_ascii_case(column))
    };
    columns.retain(|column| !is_ours(column));
    Ok(columns)
}

// ---- what the engine changes ----------------------------------------------------------------

/// The number of a store's table, if its columns are kept. 1 µs where none is; else a pass over the
/// schema.
pub(crate) fn find_kept(txn: &Connection, table: &str) -> Result<Option<i64>> {
    txn.prepare_cached(
        "SELECT id FROM larder_temporal AS t WHERE until_seq IS NULL AND name = ?1 AND EXISTS \
         (SELECT 1 FROM main.sqlite_schema AS s WHERE s.type = 'view' AND s.name = \
         'larder_temporal_' || t.id || '_image')",
    )
    .and_then(|mut find| find.query_row([table], |row| row.get(0)).optional())
    .at(TABLE)
}

/// Keeps the columns of an inode that commit `keeper` deletes, unless there is nothing in them
/// (`TEMPORAL-5`).
pub(crate) fn keep_deleted(txn: &Connection, keeper: &Keeper, id: i64, ino: i64) -> Result<()> {
    let some = "AND EXISTS (SELECT 1 FROM json_each(larder_row.value) WHERE type <> 'null')";
    keeper.keep(txn, &keep_sql(id, some), params![ino])
}

/// Keeps the columns of an inode that commit `keeper` changes.
pub(crate) fn keep_changed(txn: &Connection, keeper: &Keeper, id: i64, ino: i64) -> Result<()> {
    keeper.keep(txn, &keep_sql(id, ""), params![ino])
}

fn keep_sql(id: i64, condition: &str) -> String {
    format!(
        "INSERT INTO main.larder_history (until_seq, what, ino, key, since_seq, value, mtime_ns) \
         SELECT ?1, 'row', {id}, ?2, 0, larder_row.value, {NOW} FROM main.{} AS larder_row \
         WHERE larder_row.ino = ?2 {condition} AND NOT EXISTS (SELECT 1 FROM main.larder_history \
         AS larder_known \
         WHERE larder_known.what = 'row' AND larder_known.ino = {id} AND larder_known.key = +?2 \
         AND larder_known.until_seq = ?1)",
        image_view(id)
    )
}

/// Says that an inode which commit `keeper` brings back had no columns before.
pub(crate) fn keep_absent(txn: &Connection, keeper: &Keeper, id: i64, ino: i64) -> Result<()> {
    let text = format!(
        "INSERT INTO main.larder_history (until_seq, what, ino, key, since_seq, mtime_ns) \
         SELECT ?1, 'row', {id}, ?2, 0, {NOW}"
    );
    keeper.keep(txn, &text, params![ino])
}

/// A store's table goes, with all that is kept of it.
pub(crate) fn forget_table(txn: &Connection, table: &str, seq: CommitSeq) -> Result<()> {
    if let Some(id) = find_kept(txn, table)? {
        Columns::read(txn, id, table)?.drop(txn)?;
        super::end(txn, id, crate::types::codec::signed(seq.0))?;
    }
    Ok(())
}

/// Drops the views of tables that are gone: an older version destroys a store without them, and
/// ALTER TABLE stumbles over a view of nothing.
pub(super) fn drop_left(txn: &Connection, active: &[Active]) -> Result<()> {
    let views: Vec<String> = rows(
        txn,
        "SELECT name FROM main.sqlite_schema WHERE type = 'view' AND name GLOB \
         'larder_temporal_[0-9]*_image'",
        [],
        |row| row.get(0),
    )
    .at(TABLE)?;
    let is_left = |view: &&String| !active.iter().any(|one| image_view(one.id) == **view);
    for view in views.iter().filter(is_left) {
        execute_one(txn, &format!("DROP VIEW main.{}", quoted(view))).at(TABLE)?;
    }
    Ok(())
}

// ---- reading --------------------------------------------------------------------------------

/// How to read the user's columns of a store's files, as of a moment or as they are, and to give
/// them to files, in SQL of the present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreColumns {
    /// The store's table.
    pub table: String,
    /// The columns that it has now, but those that are computed.
    pub columns: Vec<String>,
    /// Those of them that a unique index is about.
    pub unique_columns: Vec<String>,
    /// Those of them that refer to the inode of a store: the column, the table.
    pub inodes: Vec<(String, String)>,
    store: StoreId,
    /// The records after the moment, which are called `h` in it: none of the present.
    pub(super) after: String,
}

/// What gives columns to files: of the pairs of inodes in parameter 1, JSON like
/// `[[2, 2], [3, null]]`, the second gets what the first had; null is one that is still to be made.
/// For each of [`StoreColumns::inodes`] there is a parameter more, from 2 on: which files are other
/// inodes now, JSON like `{"4": 9}`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ColumnsStep {
    /// A query for the number of files that get other values than they have, or, if they are still
    /// to be made, any.
    pub count: String,
    /// The statement.
    pub run: String,
}

impl StoreColumns {
    /// Of the store that owns a table, as of commit `seq`, and what plain SQL did after it up to
    /// `at_ns`; `None` when its columns are not kept since then, or it has none.
    pub(crate) fn find(
        connection: &Connection,
        store: StoreId,
        (seq, at_ns): (CommitSeq, i64),
    ) -> Result<Option<StoreColumns>> {
        let is_any = connection
            .prepare_cached("SELECT 1 FROM larder_temporal WHERE until_seq IS NULL LIMIT 1")
            .and_then(|mut find| find.exists([]))
            .at(TABLE)?;
        if !is_any {
            return Ok(None);
        }
        let found = active(connection)?.into_iter();
        let mut found = found.filter(|one| one.store == Some(store) && one.since <= seq);
        let Some(one) = found.next() else {
            return Ok(None);
        };
        let past = StoreColumns::read(connection, &one, store, (seq, at_ns))?;
        Ok(Some(past).filter(|past| !past.columns.is_empty()))
    }

    pub(super) fn read(
        connection: &Connection,
        one: &Active,
        store: StoreId,
        (seq, at_ns): (CommitSeq, i64),
    ) -> Result<StoreColumns> {
        require_reach(connection, store, &one.name, seq)?;
        let after = super::records_after(connection, one.id, seq, at_ns)?;
        StoreColumns::of(connection, &one.name, store, after)
    }

    /// As they are in the table of a store now; `None`: it has none.
    pub(super) fn of_present(
        connection: &Connection,
        table: &str,
        store: StoreId,
    ) -> Result<Option<StoreColumns>> {
        let present = StoreColumns::of(connection, table, store, "0".into())?;
        Ok(Some(present).filter(|present| !present.columns.is_empty()))
    }

    fn of(
        connection: &Connection,
        table: &str,
        store: StoreId,
        after: String,
    ) -> Result<StoreColumns> {
        let columns = stored_columns(connection, table)?;
        let unique: Vec<(Option<String>, Option<String>)> = rows(
            connection,
            "SELECT p.name, CASE WHEN l.partial OR p.name IS NULL THEN s.sql END \
             FROM pragma_index_list(?1, 'main') AS l, pragma_index_info(l.name, 'main') AS p \
             LEFT JOIN main.sqlite_schema AS s ON s.type = 'index' AND s.name = l.name WHERE \
             l.\"unique\"",
            [table],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .at(table)?;
        // What an expression or a condition is about, its text says.
        let is_unique = |column: &&String| {
            unique.iter().any(|(name, sql)| {
                name.as_ref() == Some(*column)
                    || sql.as_ref().is_some_and(|sql| index_names(sql, column))
            })
        };
        Ok(StoreColumns {
            unique_columns: columns.iter().filter(is_unique).cloned().collect(),
            inodes: super::references(connection, table)?,
            after,
            table: table.into(),
            columns,
            store,
        })
    }

    /// The value that a column of an inode had, where [`StoreColumns::joins`] stands.
    pub(crate) fn value(&self, column: &str) -> String {
        format!(
            "CASE WHEN larder_record.id IS NULL THEN larder_now.{} ELSE {} END",
            quoted(column),
            value_in("larder_record.value", column)
        )
    }

    /// What follows in a FROM clause that has the inode `ino`: its first record and its row, as far
    /// as there are such. (A table of which nothing but the rowid is used SQLite takes for one that
    /// the statement around a view reads: `PASTSQL-1`.)
    pub(crate) fn joins(&self, ino: &str) -> String {
        format!(
            " LEFT JOIN main.larder_history AS larder_record ON larder_record.id = (SELECT h.id \
             FROM main.larder_history AS h \
             WHERE {} AND h.key = +{ino} ORDER BY h.until_seq, h.id LIMIT 1) \
             LEFT JOIN main.{} AS larder_now ON larder_now.ino = {ino} AND larder_now.kind NOT \
             NULL",
            self.after,
            quoted(&self.table)
        )
    }

    /// The columns, with their names, each after a comma.
    pub(crate) fn listed(&self) -> String {
        let columns = self.columns.iter();
        joined(
            columns.map(|column| format!(", {} AS {}", self.value(column), quoted(column))),
            "",
        )
    }

    /// `larder_key`, `ino` and the columns of all that were there.
    pub(super) fn select(&self, seq: CommitSeq) -> String {
        let (table, store) = (quoted(&self.table), self.store);
        format!(
            "SELECT larder_of.ino AS larder_key, larder_of.ino AS ino{} FROM (SELECT ino FROM \
             main.{table} \
             WHERE since_seq <= {seq} UNION ALL SELECT ino FROM main.larder_history WHERE store = \
             {store} \
             AND what = 'inode' AND key = 0 AND until_seq > {seq} AND since_seq <= {seq}) AS \
             larder_of{}",
            self.listed(),
            self.joins("larder_of.ino")
        )
    }

    /// What gives files the columns, but `without` some; `None`: nothing is left.
    pub fn give(&self, without: &[String]) -> Option<ColumnsStep> {
        let columns: Vec<String> = (self.columns.iter())
            .filter(|column| !without.contains(column))
            .map(|column| quoted(column))
            .collect();
        if columns.is_empty() {
            return None;
        }
        let table = format!("main.{}", quoted(&self.table));
        let source = format!(
            "SELECT larder_of.now AS larder_now_ino{} FROM (SELECT json_extract(value, '$[0]') AS \
             was, \
             json_extract(value, '$[1]') AS now FROM json_each(?1)) AS larder_of{}",
            self.listed(),
            self.joins("larder_of.was")
        );
        let source = self.follow(source);
        let differs = columns
            .iter()
            .map(|name| format!("larder_row.{name} IS NOT larder_was.{name} COLLATE BINARY"));
        let differs = joined(differs, " OR ");
        let from = format!(
            "FROM ({source}) AS larder_was LEFT JOIN {table} AS larder_row ON larder_row.ino = \
             larder_was.larder_now_ino \
             WHERE ({differs})"
        );
        let set = columns
            .iter()
            .map(|name| format!("{name} = larder_was.{name}"));
        Some(ColumnsStep {
            count: format!("SELECT count(*) {from}"),
            run: format!(
                "UPDATE {table} AS larder_row SET {} FROM ({source}) AS larder_was \
                 WHERE larder_row.ino = larder_was.larder_now_ino AND ({differs})",
                joined(set, ", ")
            ),
        })
    }

    /// Has columns that refer to files follow those that are other inodes now.
    fn follow(&self, source: String) -> String {
        if self.inodes.is_empty() {
            return source;
        }
        let (mut joins, mut listed) = (String::new(), String::new());
        for column in &self.columns {
            let name = quoted(column);
            let at = self.inodes.iter().position(|(one, _)| one == column);
            let Some(parameter) = at.map(|at| at + 2) else {
                listed += &format!(", larder_then.{name}");
                continue;
            };
            let moved = format!("larder_moved{parameter}");
            listed += &format!(", coalesce({moved}.now, larder_then.{name}) AS {name}");
            joins += &format!(
                " LEFT JOIN (SELECT CAST(key AS INTEGER) AS was, value AS now FROM \
                 json_each(?{parameter})) AS {moved} \
                 ON {moved}.was = larder_then.{name}"
            );
        }
        format!("SELECT larder_now_ino{listed} FROM ({source}) AS larder_then{joins}")
    }
}

/// Whether the text of an index names a column behind the table.
fn index_names(sql: &str, column: &str) -> bool {
    let sql = sql.to_lowercase();
    let about = sql.find('(').map_or("", |at| &sql[at..]);
    let is_of_name = |letter: char| letter.is_alphanumeric() || letter == '_';
    about
        .match_indices(&column.to_lowercase())
        .any(|(at, found)| {
            !about[..at].ends_with(is_of_name) && !about[at + found.len()..].starts_with(is_of_name)
        })
}

/// Statements about what became of the columns of one inode (`versions`).
pub(crate) struct ColumnsText {
    /// The number of the table.
    pub(crate) id: i64,
    /// Since when they are kept.
    pub(crate) since: CommitSeq,
    /// Whether one was changed after commit `?2`, up to `?3`, and has another value; of inode `?1`.
    pub(crate) changed: String,
}

impl ColumnsText {
    /// Of all stores whose columns are kept.
    pub(crate) fn find(connection: &Connection) -> Result<Vec<(StoreId, ColumnsText)>> {
        let is_any = connection
            .prepare_cached("SELECT 1 FROM larder_temporal WHERE until_seq IS NULL LIMIT 1")
            .and_then(|mut find| find.exists([]))
            .at(TABLE)?;
        if !is_any {
            return Ok(Vec::new());
        }
        let mut found = Vec::new();
        for one in active(connection)? {
            let Some(store) = one.store else { continue };
            let columns = stored_columns(connection, &one.name)?;
            found.push((store, ColumnsText::new(&one, &columns)));
        }
        Ok(found)
    }

    fn new(one: &Active, columns: &[String]) -> ColumnsText {
        let id = one.id;
        let names = joined(columns.iter().map(|column| text(column)), ", ");
        let image = |seq: &str| {
            format!(
                "SELECT j.key, j.type, j.value FROM (SELECT CASE WHEN r.id IS NULL THEN \
                 (SELECT value FROM main.{} WHERE ino = ?1) ELSE r.value END AS image FROM \
                 (SELECT 1) \
                 LEFT JOIN main.larder_history AS r ON r.id = (SELECT h.id FROM \
                 main.larder_history AS h WHERE h.what = 'row' \
                 AND h.ino = {id} AND h.key = +?1 AND h.until_seq > {seq} ORDER BY h.until_seq, \
                 h.id LIMIT 1)) AS i, \
                 json_each(i.image) AS j WHERE j.type <> 'null' AND j.key IN ({names})",
                image_view(id)
            )
        };
        let (was, is) = (image("?2"), image("?3"));
        ColumnsText {
            id,
            since: one.since,
            changed: format!(
                "SELECT EXISTS (SELECT 1 FROM main.larder_history AS t WHERE t.what = 'row' AND \
                 t.ino = {id} \
                 AND t.key = +?1 AND t.until_seq > ?2 AND t.until_seq <= ?3) \
                 AND (EXISTS (SELECT * FROM ({was}) EXCEPT SELECT * FROM ({is})) \
                 OR EXISTS (SELECT * FROM ({is}) EXCEPT SELECT * FROM ({was})))"
            ),
        }
    }
}
