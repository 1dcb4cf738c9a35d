//! `larder retention`: how long the past stays, and what it takes.

use crate::databases::with_database;
use crate::error::{At, Failure, Result};
use crate::output::{Align, Output, Table};
use crate::units::{parse_time, show_size, show_time};
use clap::Args;
use larder::{HistoryReport, Retention, StoreHistory};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Show how long the past stays and what it takes, or set how long
#[derive(Debug, Args)]
#[command(after_help = "\
TIME 0 turns the past off and forgets it. With --guarantee nothing of it is given up when space is short: writes are
refused instead. Sessions that have the database open follow at once.

Example: larder retention photos.larder 30d")]
pub(crate) struct RetentionArgs {
    /// Database to look at
    pub(crate) place: OsString,
    /// How long what is replaced and deleted shall stay readable [default: show it]
    #[arg(value_name = "TIME", value_parser = parse_retention)]
    time: Option<i64>,
    /// Refuse writes rather than give up any of it
    #[arg(long, conflicts_with = "best_effort")]
    guarantee: bool,
    /// Give up the oldest of it when space is short
    #[arg(long)]
    best_effort: bool,
}

/// A time, or 0 without a unit, or `off`.
pub(crate) fn parse_retention(text: &str) -> std::result::Result<i64, String> {
    match text {
        "0" | "off" => Ok(0),
        _ => parse_time(text),
    }
}

/// `larder retention`.
pub(crate) fn retention(args: &RetentionArgs, out: &mut Output) -> Result<()> {
    let db = database_of(&args.place)?;
    let report = with_database(&db, "retention", |database| {
        let now = database.retention()?;
        let wanted = Retention {
            retention_ns: args.time.unwrap_or(now.retention_ns),
            is_guaranteed: args.guarantee || (now.is_guaranteed && !args.best_effort),
        };
        if wanted != now {
            database
                .set_retention(wanted)
                .at(|| format!("cannot change the retention of '{}'", db.display()))?;
        }
        Ok(database.history()?)
    })?;
    match out.is_json() {
        true => out.document(&history_json(&report)),
        false => history_lines(&report, out),
    }
}

/// The database that `PLACE` names.
pub(crate) fn database_of(place: &OsStr) -> Result<PathBuf> {
    let is_store = place.as_bytes().windows(2).any(|pair| pair == b":/");
    match is_store && !Path::new(place).exists() {
        true => Err(Failure::Usage(format!(
            "'{}' names a store, and history is kept for the database as a whole; give the database, like photos.larder",
            place.display()
        ))),
        false => Ok(PathBuf::from(place)),
    }
}

/// What history there is, for people.
pub(crate) fn history_lines(report: &HistoryReport, out: &mut Output) -> Result<()> {
    if report.retention.retention_ns == 0 {
        return out.line("no history is kept; 'larder retention DB 1h' begins one");
    }
    let how = match report.retention.is_guaranteed {
        true => "guaranteed",
        false => "while there is space",
    };
    out.line(&format!(
        "history is kept for {}, {how}; it begins {} (commit {})",
        show_duration(report.retention.retention_ns),
        show_time(report.begins_ns),
        report.begins_seq
    ))?;
    stores_lines(&report.stores, out)?;
    let (bytes, rows) = sum_of(&report.stores);
    out.line(&format!(
        "a prune of all of it would free {} of content and {rows} rows",
        show_size(bytes)
    ))?;
    match &report.blocked_by {
        Some(what) => out.line(&format!("more would go, but {what}")),
        None => Ok(()),
    }
}

/// One line: what a prune would free, by store.
pub(crate) fn history_summary(report: &HistoryReport) -> String {
    let (bytes, _) = sum_of(&report.stores);
    let each = report.stores.iter();
    let each: Vec<String> = each
        .map(|one| format!("{} {}", named(one), show_size(one.bytes)))
        .collect();
    match each.is_empty() {
        true => "0 B".into(),
        false => format!(
            "{} of the retired, which 'larder prune' would free ({})",
            show_size(bytes),
            each.join(", ")
        ),
    }
}

/// The same as JSON.
pub(crate) fn history_json(report: &HistoryReport) -> Value {
    let (bytes, rows) = sum_of(&report.stores);
    json!({
        "retention_ns": report.retention.retention_ns,
        "is_guaranteed": report.retention.is_guaranteed,
        "begins_seq": report.begins_seq.0,
        "begins_ns": report.begins_ns,
        "history_bytes": bytes,
        "history_rows": rows,
        "stores": stores_json(&report.stores),
        "blocked_by": report.blocked_by,
    })
}

/// One line per store.
pub(crate) fn stores_lines(stores: &[StoreHistory], out: &mut Output) -> Result<()> {
    let mut table = Table::new(&[Align::Left, Align::Right, Align::Right, Align::Right]);
    for one in stores {
        table.row(vec![
            format!("store {}", named(one)),
            format!("{} of content", show_size(one.bytes)),
            format!("{} rows", one.row_count),
            format!("{} in rows", show_size(one.row_bytes)),
        ]);
    }
    let lines = table.take_lines();
    lines.iter().try_for_each(|line| out.line(line))
}

pub(crate) fn stores_json(stores: &[StoreHistory]) -> Value {
    let one = |one: &StoreHistory| {
        json!({
            "store": one.store.0,
            "name": one.name,
            "bytes": one.bytes,
            "row_count": one.row_count,
            "row_bytes": one.row_bytes,
        })
    };
    Value::Array(stores.iter().map(one).collect())
}

fn named(one: &StoreHistory) -> String {
    match one.name.is_empty() {
        true => format!("{} (destroyed)", one.store),
        false => one.name.clone(),
    }
}

/// Bytes of content and rows, together.
pub(crate) fn sum_of(stores: &[StoreHistory]) -> (u64, u64) {
    stores.iter().fold((0, 0), |(bytes, rows), one| {
        (bytes + one.bytes, rows + one.row_count)
    })
}

/// A length of time in the largest unit that divides it.
fn show_duration(ns: i64) -> String {
    const UNITS: [(&str, i64); 7] = [
        ("w", 604_800_000_000_000),
        ("d", 86_400_000_000_000),
        ("h", 3_600_000_000_000),
        ("min", 60_000_000_000),
        ("s", 1_000_000_000),
        ("ms", 1_000_000),
        ("us", 1_000),
    ];
    let unit = UNITS.iter().find(|(_, length)| ns % length == 0);
    match unit {
        Some((unit, length)) => format!("{}{unit}", ns / length),
        None => format!("{ns} ns"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_retention_is_shown_as_it_is_written() {
        for text in ["90s", "1h", "30d", "2w", "15min", "5ms"] {
            assert_eq!(show_duration(parse_retention(text).unwrap()), text);
        }
        assert_eq!(parse_retention("0"), Ok(0));
        assert_eq!(parse_retention("off"), Ok(0));
        assert!(parse_retention("soon").is_err());
    }

    #[test]
    fn a_store_has_no_retention_of_its_own() {
        assert!(database_of(OsStr::new("a.larder:/raw")).is_err());
        assert!(database_of(OsStr::new("/x/a.larder:/raw")).is_err());
        assert_eq!(
            database_of(OsStr::new("/x/a.larder")).unwrap(),
            PathBuf::from("/x/a.larder")
        );
    }
}
