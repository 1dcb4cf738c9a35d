//! Rows of temporal tables as they were, and bringing them back.

use crate::database::Database;
use crate::rooms::Sql;
use crate::sql::SqlResult;
use crate::transaction::Transaction;
use crate::types::NodeId;
use larder_object::{
    Error, ErrorKind, ExactRows, PastRows, Result, RowsChange, SqlValue, TemporalTable,
};
use std::collections::BTreeMap;

/// Which rows to restore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreRows {
    /// A temporal table.
    pub table: String,
    /// A condition on its columns, in SQL: only rows for which it holds; `None`: all.
    pub filter: Option<String>,
}

/// What a restore did to the rows of a table, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RowsReport {
    /// The table.
    pub table: String,
    /// Rows that are there now and were not then, and go.
    pub deleted_count: u64,
    /// Rows that get the values that they had.
    pub updated_count: u64,
    /// Rows that come back.
    pub inserted_count: u64,
}

impl Sql<'_> {
    /// Keeps what is superseded in a table of the user's from now on, by triggers, for every SQL
    /// client: its rows can be read and restored as of any moment that the history has. The name of
    /// a store stands for the columns that the user added to its table: they show in its past, and
    /// come back with its files. `ALTER TABLE` goes on working. Errors: [`ErrorKind::InvalidInput`]
    /// for another table of larder, a view, more than 63 columns, and a database without history;
    /// [`ErrorKind::NotFound`]. Cost: one row per row that is superseded, about 10 µs.
    pub fn track_table(&self, table: &str) -> Result<()> {
        self.database.whole()?.history().track_table(table, true)
    }

    /// Ends that. What was kept can be read no more.
    pub fn untrack_table(&self, table: &str) -> Result<()> {
        self.database.whole()?.history().track_table(table, false)
    }

    /// The tables whose rows have a past, by name.
    pub fn tracked_tables(&self) -> Result<Vec<TemporalTable>> {
        self.database.read(|view| view.moment().temporal_tables())
    }

    /// The rows of a temporal table as `past`, another moment of this database, has them, with the
    /// columns that the table has now; those that it did not have are NULL. What plain SQL changed
    /// is seen as of the time that was asked for, to the millisecond. `filter`: only rows for which
    /// this SQL holds. Errors: [`ErrorKind::InvalidInput`] when the table was not tracked then;
    /// [`ErrorKind::Sql`]: the filter. Cost: reads the table.
    pub fn rows_as_of(
        &self,
        past: &Database,
        table: &str,
        filter: Option<&str>,
    ) -> Result<SqlResult> {
        let transaction = self.database.transactions().begin()?;
        let rows = transaction.past_rows(past, table)?;
        let columns: Vec<String> = rows.columns.iter().map(|name| quoted(name)).collect();
        let sql = format!(
            "SELECT {} FROM ({}) WHERE ({}\n)",
            columns.join(", "),
            rows.select,
            filter.unwrap_or("1")
        );
        transaction.sql(&sql, &[])
    }
}

impl Transaction {
    fn past_rows(&self, past: &Database, table: &str) -> Result<PastRows> {
        if !past
            .shared
            .shown
            .view()
            .moment()
            .is_of_one_database(self.shared.shown.view())
        {
            let why = "rows are read as of another moment of the same database";
            return Err(Error::new(ErrorKind::InvalidInput, why));
        }
        self.enter(|engine| engine.history().past_rows(past.shared.shown.view(), table))
    }

    /// Restores rows. A constraint may refuse what stands in their way, such as two that exchanged
    /// a unique value. Where they refer to inodes of files that were made anew, `recreated`, they
    /// follow them. [`ErrorKind::Conflict`] when the number of one was given to another row that
    /// may not go.
    pub(crate) fn restore_rows(
        &self,
        past: &Database,
        wanted: &RestoreRows,
        (is_exact, is_dry): (bool, bool),
        recreated: &[(NodeId, NodeId)],
    ) -> Result<RowsReport> {
        let rows = self.past_rows(past, &wanted.table)?;
        let filter = wanted.filter.as_deref().unwrap_or("1");
        let (source, parameters) = self.source(&rows, filter, recreated);
        let (kept, _) = self.source(&rows, "1", recreated);
        let exact = is_exact.then_some(ExactRows {
            filter,
            kept: &kept,
        });
        let mut report = RowsReport {
            table: rows.table.clone(),
            ..RowsReport::default()
        };
        let newest = self.enter(|engine| engine.history().newest_record())?;
        for step in rows.restore(&source, exact) {
            if step.change == RowsChange::Conflict {
                if counted(&self.sql(&step.count, &parameters)?) > 0 {
                    let named = self.sql(&step.run, &parameters)?;
                    return Err(in_the_way(&rows.table, &named));
                }
                continue;
            }
            let count = match is_dry {
                true => counted(&self.sql(&step.count, &parameters)?),
                false => self.sql(&step.run, &parameters)?.changed_count,
            };
            match step.change {
                RowsChange::Conflict => {}
                RowsChange::Delete => report.deleted_count = count,
                RowsChange::Update => report.updated_count = count,
                RowsChange::Insert => report.inserted_count = count,
            }
        }
        let changed_count = report.deleted_count + report.updated_count + report.inserted_count;
        if !is_dry && changed_count > 0 {
            self.enter(|engine| engine.history().mark_restored(&rows, newest))?;
        }
        Ok(report)
    }

    /// The query for what the rows are to be, with its parameters.
    fn source(
        &self,
        rows: &PastRows,
        filter: &str,
        recreated: &[(NodeId, NodeId)],
    ) -> (String, Vec<SqlValue>) {
        let inner = format!("SELECT * FROM ({}) WHERE ({filter}\n)", rows.select);
        let mut columns: Vec<String> = rows
            .columns
            .iter()
            .map(|name| format!("larder_row.{}", quoted(name)))
            .collect();
        let (mut joins, mut parameters) = (String::new(), Vec::new());
        for (column, table) in &rows.inodes {
            let moved = self.moved(table, recreated);
            let at = rows.columns.iter().position(|name| name == column);
            let (false, Some(at)) = (moved.is_empty(), at) else {
                continue;
            };
            parameters.push(SqlValue::Text(moved_json(&moved)));
            let (number, name) = (parameters.len(), quoted(column));
            joins += &format!(
                " LEFT JOIN (SELECT CAST(key AS INTEGER) AS old, value AS new FROM \
                 json_each(?{number})) \
                 AS larder_recreated{number} ON larder_recreated{number}.old = larder_row.{name}"
            );
            columns[at] =
                format!("coalesce(larder_recreated{number}.new, larder_row.{name}) AS {name}");
        }
        match parameters.is_empty() {
            true => (inner, parameters),
            false => (
                format!(
                    "SELECT larder_row.larder_key, {} FROM ({inner}) AS larder_row{joins}",
                    columns.join(", ")
                ),
                parameters,
            ),
        }
    }

    /// The inodes of a store's table that were made anew.
    pub(crate) fn moved(&self, table: &str, recreated: &[(NodeId, NodeId)]) -> BTreeMap<u64, u64> {
        let stores = self.read_stores();
        let store = stores.iter().find(|one| one.row.name == table);
        let of_store = |node: &NodeId| store.is_some_and(|one| one.row.table_store == node.store);
        let pairs = recreated.iter().filter(|(was, _)| of_store(was));
        pairs.map(|(was, is)| (was.ino.0, is.ino.0)).collect()
    }
}

/// Which inodes are others now, as a statement takes it.
pub(crate) fn moved_json(moved: &BTreeMap<u64, u64>) -> String {
    let pairs: Vec<String> = moved
        .iter()
        .map(|(old, new)| format!("\"{old}\":{new}"))
        .collect();
    format!("{{{}}}", pairs.join(","))
}

fn in_the_way(table: &str, named: &SqlResult) -> Error {
    let numbers = named.rows.first().and_then(|row| row.values.first());
    let numbers = match numbers {
        Some(SqlValue::Text(numbers)) => numbers.as_str(),
        _ => "?",
    };
    Error::new(
        ErrorKind::Conflict,
        format!(
            "the numbers of rows that were there belong to others now ({numbers} in '{table}'), \
             which were inserted later; \
             give those other numbers, or restore exactly, which replaces them where the \
             condition holds for them"
        ),
    )
}

pub(crate) fn counted(result: &SqlResult) -> u64 {
    let value = result.rows.first().and_then(|row| row.values.first());
    match value {
        Some(SqlValue::Integer(count)) => u64::try_from(*count).unwrap_or(0),
        _ => 0,
    }
}

fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}
