//! How rows were, and how they come back, in SQL.

use super::columns::StoreColumns;
use super::shape::{Key, PLACE, Shape, equal, has_null, joined, value_in};
use crate::types::names::quoted;
use larder_format::CommitSeq;

/// How to read a temporal table as of a commit, and to restore it, in SQL of the present.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PastRows {
    /// Its name now.
    pub table: String,
    /// Its columns now.
    pub columns: Vec<String>,
    /// A query for `larder_key` and the columns as they were.
    pub select: String,
    /// Its number.
    pub(super) id: i64,
    /// The commit.
    pub(super) seq: CommitSeq,
    /// What identifies a row of it.
    pub(super) key: Key,
    /// The records after the moment, which are called `h` in it.
    pub(super) after: String,
    /// Columns that refer to the inode of a store: the column, the table.
    pub inodes: Vec<(String, String)>,
    /// They are the user's columns of files: rows come and go with those.
    pub(super) is_of_files: bool,
}

/// What a step of a restore does to rows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RowsChange {
    /// Nothing: `count` finds rows that stand in the way of others.
    Conflict,
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
    /// The statement; of a conflict a query for the numbers of some of the rows, as a text.
    pub run: String,
    /// A query for the number of rows that it would change.
    pub count: String,
}

/// What a restore may do to the rows that it was not asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExactRows<'s> {
    /// A condition: rows of the present for which it holds may go.
    pub filter: &'s str,
    /// A query of the form of [`PastRows::select`]: those that stay.
    pub kept: &'s str,
}

/// Numbers that a conflict names.
const NAMED_MAX: usize = 10;

impl PastRows {
    pub(super) fn new(
        shape: Shape,
        table: String,
        (id, seq, after): (i64, CommitSeq, String),
    ) -> PastRows {
        let column = |column: &String| {
            // The column that is the key has kept its name or not.
            let value = match &shape.key {
                Key::Columns(names) if names[..] == [column.clone()] => {
                    return format!("larder_then.key AS {}", quoted(column));
                }
                Key::Declared(_, names) if names[..] == [column.clone()] => {
                    return format!(
                        "CASE WHEN {} THEN NULL ELSE larder_then.key END AS {}",
                        is_place("larder_then.key"),
                        quoted(column)
                    );
                }
                _ => value_in("larder_then.value", column),
            };
            format!("{value} AS {}", quoted(column))
        };
        let now = |column: &String| format!("larder_now.{}", quoted(column));
        let key = shape.key.of("larder_now");
        let select = format!(
            "SELECT {key} AS larder_key, {} FROM main.{} AS larder_now WHERE NOT EXISTS (SELECT 1 \
             FROM larder_history AS h \
             WHERE {after} AND h.key = {key}) \
             UNION ALL SELECT larder_then.key, {} FROM (SELECT key, value FROM (SELECT key, \
             value, row_number() OVER \
             (PARTITION BY key ORDER BY until_seq, id) AS place FROM larder_history AS h WHERE \
             {after}) WHERE place = 1) \
             AS larder_then WHERE larder_then.value IS NOT NULL",
            joined(shape.columns.iter().map(now), ", "),
            quoted(&table),
            joined(shape.columns.iter().map(column), ", "),
        );
        PastRows {
            columns: shape.columns,
            key: shape.key,
            table,
            select,
            id,
            seq,
            after,
            inodes: Vec::new(),
            is_of_files: false,
        }
    }

    /// Of the user's columns of a store's files: those that were there then, by their inodes.
    pub(super) fn of_files(past: &StoreColumns, (id, seq): (i64, CommitSeq)) -> PastRows {
        let mut columns = vec!["ino".to_owned()];
        columns.extend(past.columns.iter().cloned());
        PastRows {
            columns,
            key: Key::Rowid("rowid", Some("ino".into())),
            table: past.table.clone(),
            select: past.select(seq),
            id,
            seq,
            after: past.after.clone(),
            // What was made anew in the place of one gets its values.
            inodes: vec![("ino".into(), past.table.clone())],
            is_of_files: true,
        }
    }

    /// What makes the present of the rows that `source` has, a query of the form of `select`, in
    /// this order. Rows that have the key of one are that one, unless their key is a number that
    /// was given anew (`TEMPORAL-3`): then the table's own number is a conflict, and a row without
    /// a primary key comes back beside the other.
    pub fn restore(&self, source: &str, exact: Option<ExactRows<'_>>) -> Vec<RowsStep> {
        let table = format!("main.{}", quoted(&self.table));
        let mut steps = Vec::new();
        if self.is_of_files {
            let columns = &self.columns[1..];
            steps.extend((!columns.is_empty()).then(|| self.update(source, columns, exact)));
            return steps;
        }
        if let Key::Rowid(_, Some(column)) = &self.key {
            let column = quoted(column);
            let which = format!(
                "FROM ({source}) AS larder_was JOIN {table} AS larder_row \
                 ON larder_row.{column} = larder_was.{column} WHERE {} AND ({}) AND NOT ({})",
                self.is_given_anew(),
                self.differs("larder_row"),
                self.may_go("larder_row", exact)
            );
            let named =
                format!("SELECT larder_row.{column} AS n {which} ORDER BY n LIMIT {NAMED_MAX}");
            steps.push(RowsStep {
                change: RowsChange::Conflict,
                run: format!("SELECT group_concat(n, ', ') FROM ({named})"),
                count: format!("SELECT count(*) {which}"),
            });
        }
        if let Some(exact) = exact {
            let which = format!("FROM {table} AS larder_row WHERE {}", self.is_new(exact));
            steps.push(RowsStep {
                change: RowsChange::Delete,
                run: format!("DELETE {which}"),
                count: format!("SELECT count(*) {which}"),
            });
        }
        steps.push(self.update(source, &self.columns, exact));
        let names = || self.columns.iter().map(|column| quoted(column));
        let gone = self.gone(source, &table, exact);
        let (mut into, mut from) = (names().collect::<Vec<_>>(), names().collect::<Vec<_>>());
        if let Key::Rowid(alias, None) | Key::Declared(alias, _) = &self.key {
            into.push((*alias).to_owned());
            from.push("larder_free".to_owned());
        }
        let (into, from) = (into.join(", "), from.join(", "));
        steps.push(RowsStep {
            change: RowsChange::Insert,
            run: format!(
                "INSERT INTO {table} ({into}) SELECT {from} FROM ({gone}) ORDER BY larder_free IS \
                 NULL, larder_free"
            ),
            count: format!("SELECT count(*) FROM ({gone})"),
        });
        steps
    }

    /// Has the rows that are there get the values of `columns`.
    fn update(&self, source: &str, columns: &[String], exact: Option<ExactRows<'_>>) -> RowsStep {
        let table = format!("main.{}", quoted(&self.table));
        let names = columns.iter().map(|column| quoted(column));
        let set = names.map(|name| format!("{name} = larder_was.{name}"));
        let which = format!(
            "({source}) AS larder_was WHERE {} AND ({})",
            self.is_it("larder_row", exact),
            self.differs("larder_row")
        );
        RowsStep {
            change: RowsChange::Update,
            run: format!(
                "UPDATE {table} AS larder_row SET {} FROM {which}",
                joined(set, ", ")
            ),
            count: format!("SELECT count(*) FROM {table} AS larder_row, {which}"),
        }
    }

    /// Those of `source` that are not there, with `larder_free`: the rowid that they had, if they
    /// should have it again and nobody has it.
    fn gone(&self, source: &str, table: &str, exact: Option<ExactRows<'_>>) -> String {
        let it = self.is_it("larder_row", exact);
        let missing = format!("NOT EXISTS (SELECT 1 FROM {table} AS larder_row WHERE {it})");
        let Some(place) = self.place() else {
            return format!(
                "SELECT *, NULL AS larder_free FROM ({source}) AS larder_was WHERE {missing}"
            );
        };
        let alias = self.alias();
        let free = format!(
            "SELECT *, CASE WHEN NOT EXISTS (SELECT 1 FROM {table} AS larder_row WHERE \
             larder_row.{alias} = {place}) \
             THEN {place} END AS larder_free, {place} AS larder_place FROM ({source}) AS \
             larder_was WHERE {missing}"
        );
        // Rows that came back beside another are known by their values: as many as are there need
        // not come again.
        let names = || self.columns.iter().map(|column| quoted(column));
        let columns = joined(names(), ", ");
        let alike = joined(
            names().map(|name| format!("larder_there.{name} IS larder_was.{name}")),
            " AND ",
        );
        format!(
            "SELECT larder_was.* FROM (SELECT *, larder_place IS NOT NULL AND larder_free IS NULL \
             AS larder_taken, \
             row_number() OVER (PARTITION BY larder_place IS NOT NULL AND larder_free IS NULL, \
             {columns}) AS larder_nth \
             FROM ({free})) AS larder_was LEFT JOIN (SELECT {columns}, count(*) AS larder_count \
             FROM {table} AS larder_row WHERE NOT ({new}) AND {key} NOT IN (SELECT larder_key \
             FROM ({select}) AS larder_was WHERE NOT {anew}) GROUP BY {columns}) AS larder_there \
             ON larder_taken AND {alike} \
             WHERE NOT larder_taken OR larder_nth > coalesce(larder_count, 0)",
            new = exact.map_or("0".into(), |exact| self.is_new(exact)),
            key = self.key.of("larder_row"),
            select = self.select,
            anew = self.is_given_anew(),
        )
    }

    /// That a row of the present is the one of `larder_was`.
    fn is_it(&self, row: &str, exact: Option<ExactRows<'_>>) -> String {
        let table = format!("main.{}", quoted(&self.table));
        let is_same_or_goes = |row: &str| {
            format!(
                "(NOT {} OR {})",
                self.is_given_anew(),
                self.may_go(row, exact)
            )
        };
        match &self.key {
            Key::Rowid(_, Some(column)) => {
                let column = quoted(column);
                format!("{row}.{column} = larder_was.{column}")
            }
            Key::Rowid(alias, None) => format!(
                "{row}.{alias} = larder_was.larder_key AND {}",
                is_same_or_goes(row)
            ),
            Key::Declared(alias, names) => format!(
                "{row}.{alias} = (SELECT larder_it.{alias} FROM {table} AS larder_it WHERE {} \
                 UNION ALL \
                 SELECT larder_it.{alias} FROM {table} AS larder_it WHERE larder_it.{alias} = {} \
                 AND ({}) AND {})",
                equal(names, "larder_it", "larder_was"),
                placed(),
                has_null(names, "larder_it"),
                is_same_or_goes("larder_it")
            ),
            Key::Columns(names) => equal(names, row, "larder_was"),
        }
    }

    /// That a row of the present was not there, and may go.
    fn is_new(&self, exact: ExactRows<'_>) -> String {
        let row = "larder_row";
        let kept = exact.kept;
        let is_other = match &self.key {
            Key::Rowid(alias, column) => {
                let kept_key = column
                    .as_ref()
                    .map_or("larder_key".into(), |name| quoted(name));
                format!("{row}.{alias} NOT IN (SELECT {kept_key} FROM ({kept}))")
            }
            Key::Columns(names) => format!(
                "({}) NOT IN (SELECT {} FROM ({kept}) AS larder_kept)",
                listed(names, row),
                listed(names, "larder_kept")
            ),
            Key::Declared(_, names) => format!(
                "CASE WHEN {} THEN {} NOT IN (SELECT larder_key FROM ({kept})) ELSE ({}) NOT IN \
                 (SELECT {} FROM ({kept}) AS larder_kept WHERE NOT ({})) END",
                has_null(names, row),
                self.key.of(row),
                listed(names, row),
                listed(names, "larder_kept"),
                has_null(names, "larder_kept")
            ),
        };
        format!("{} AND {is_other}", self.may_go(row, Some(exact)))
    }

    /// That a restore may replace or delete a row of the present that is another than was asked
    /// for.
    fn may_go(&self, row: &str, exact: Option<ExactRows<'_>>) -> String {
        let Some(ExactRows { filter, .. }) = exact else {
            return "0".into();
        };
        // The condition names the columns of one table.
        let table = quoted(&self.table);
        let key = |row: &str| match &self.key {
            Key::Rowid(alias, _) | Key::Declared(alias, _) => format!("{row}.{alias}"),
            Key::Columns(names) => listed(names, row),
        };
        format!(
            "({}) IN (SELECT {} FROM main.{table} WHERE ({filter}\n))",
            key(row),
            key(&table)
        )
    }

    fn differs(&self, row: &str) -> String {
        let terms = self.columns.iter().map(|column| {
            let column = quoted(column);
            format!("{row}.{column} IS NOT larder_was.{column} COLLATE BINARY")
        });
        joined(terms, " OR ")
    }

    /// That the number which is the key of `larder_was` has another row now (`TEMPORAL-3`): it was
    /// given anew since, and no restore gave it back; or one gave it to what had it at another
    /// time, and it was given anew between the two.
    fn is_given_anew(&self) -> String {
        let PastRows { id, seq, after, .. } = self;
        format!(
            "coalesce((SELECT h.kind IS NOT 'restored' OR EXISTS (SELECT 1 FROM larder_history AS \
             larder_between \
             WHERE larder_between.what = 'row' AND larder_between.ino = {id} AND \
             larder_between.key = h.key \
             AND larder_between.until_seq > min({seq}, h.since_seq) AND larder_between.until_seq \
             <= max({seq}, h.since_seq) \
             AND larder_between.value IS NULL AND larder_between.kind IS NOT 'restored') \
             FROM larder_history AS h WHERE {after} AND h.key = larder_was.larder_key \
             AND (h.value IS NULL OR h.kind = 'restored') ORDER BY h.until_seq DESC, h.id DESC \
             LIMIT 1), 0)"
        )
    }

    /// The rowid that `larder_was` should have again, if there is one.
    fn place(&self) -> Option<String> {
        match &self.key {
            Key::Rowid(_, None) => Some("larder_was.larder_key".into()),
            Key::Declared(..) => Some(placed()),
            Key::Rowid(_, Some(_)) | Key::Columns(_) => None,
        }
    }

    fn alias(&self) -> &'static str {
        match &self.key {
            Key::Rowid(alias, _) | Key::Declared(alias, _) => alias,
            Key::Columns(_) => "rowid",
        }
    }
}

/// Some columns of a row.
fn listed(names: &[String], row: &str) -> String {
    let names = names.iter().map(|name| format!("{row}.{}", quoted(name)));
    joined(names, ", ")
}

/// That a key of a table with a primary key is a rowid.
fn is_place(key: &str) -> String {
    let len = PLACE.len();
    format!("(typeof({key}) = 'blob' AND substr({key}, 1, {len}) = CAST('{PLACE}' AS BLOB))")
}

/// The rowid that is the key of `larder_was`; NULL: it is none.
fn placed() -> String {
    let key = "larder_was.larder_key";
    format!(
        "CASE WHEN {} THEN CAST(CAST(substr({key}, {}) AS TEXT) AS INTEGER) END",
        is_place(key),
        PLACE.len() + 1
    )
}
