//! `larder track`, `untrack` and `rows`: tables of the user's whose rows have a past.

use crate::address::split_moment;
use crate::databases::{with_database, with_databases};
use crate::error::{At, Failure, Result};
use crate::output::{Align, Output, Table};
use crate::rows::{RowFormat, RowPrinter};
use clap::{Args, ValueHint};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Keep what is superseded in a table of your own, or in your columns of a store, to read and
/// restore it; or list such tables
#[derive(Debug, Args)]
#[command(
    after_help = "From then on, whatever changes the table. Triggers in it do that; ALTER TABLE \
        goes on working, and DROP TABLE ends it.
Rows are known by their primary key; a table without one must not be renumbered by VACUUM.
The name of a store stands for the columns that you added to its table: 'larder restore' brings \
them back with its files.
Example: larder track photos.larder albums
         larder track photos.larder main"
)]
pub(crate) struct TrackArgs {
    /// Database
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Table of your own, or a store [default: list those that are tracked]
    pub(crate) table: Option<String>,
}

/// End what 'larder track' began; what was kept of the table can be read no more
#[derive(Debug, Args)]
#[command(after_help = "Example: larder untrack photos.larder albums")]
pub(crate) struct UntrackArgs {
    /// Database
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Table of your own, or a store
    pub(crate) table: String,
}

/// Print the rows of a tracked table as they were
#[derive(Debug, Args)]
#[command(
    after_help = "With the columns that the table has now. Example: larder rows photos.larder@-1h \
        albums --where \"year = 2026\""
)]
pub(crate) struct RowsArgs {
    /// Database, and as of when
    #[arg(value_name = "DB@MOMENT", value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Table that is tracked, or store
    pub(crate) table: String,
    /// Only rows for which this condition holds
    #[arg(long = "where", value_name = "SQL")]
    pub(crate) filter: Option<String>,
    /// Print comma-separated values (RFC 4180) with a header line
    #[arg(long, conflicts_with = "json")]
    pub(crate) csv: bool,
}

/// `larder track`.
pub(crate) fn track(args: &TrackArgs, out: &mut Output) -> Result<()> {
    with_database(&args.db, "track", |database| match &args.table {
        Some(table) => database
            .sql()
            .track_table(table)
            .at(|| format!("cannot track table '{table}'")),
        None => {
            let tables = database.sql().tracked_tables()?;
            if out.is_json() {
                let all: Vec<Value> = tables
                    .iter()
                    .map(|table| json!({ "table": table.name, "since_seq": table.since.0 }))
                    .collect();
                return out.document(&Value::Array(all));
            }
            let mut lines = Table::new(&[Align::Left, Align::Left]);
            for table in &tables {
                lines.row(vec![
                    table.name.clone(),
                    format!("since commit {}", table.since),
                ]);
            }
            lines
                .take_lines()
                .iter()
                .try_for_each(|line| out.line(line))
        }
    })
}

/// `larder untrack`.
pub(crate) fn untrack(args: &UntrackArgs) -> Result<()> {
    let table = &args.table;
    with_database(&args.db, "untrack", |database| {
        database
            .sql()
            .untrack_table(table)
            .at(|| format!("cannot untrack table '{table}'"))
    })
}

/// `larder rows`.
pub(crate) fn rows(args: &RowsArgs, out: &mut Output) -> Result<()> {
    let format = match (out.is_json(), args.csv) {
        (true, _) => RowFormat::Json,
        (false, true) => RowFormat::Csv,
        (false, false) => RowFormat::Table,
    };
    let Some((directory, _)) = split_moment(&args.db) else {
        return Err(Failure::Usage(format!(
            "'{}' names no moment; write DB@MOMENT, like photos.larder@-1h, or use 'larder sql' \
             for the present",
            args.db.display()
        )));
    };
    with_databases("rows", |databases| {
        let past = databases.open(&args.db)?;
        let present = databases.open(&directory)?;
        let found = present
            .sql()
            .rows_as_of(&past, &args.table, args.filter.as_deref())
            .at(|| format!("cannot read table '{}'", args.table))?;
        let mut printer = RowPrinter::new(format);
        for row in found.rows {
            printer.row(row, out)?;
        }
        printer.end(out)
    })
}
