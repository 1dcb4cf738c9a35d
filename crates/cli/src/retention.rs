//! `larder retention`: how long the past stays, and what it takes.

use crate::address::Address;
use crate::databases::with_database;
use crate::error::{At, Failure, Result};
use crate::output::{Align, Output, Table};
use crate::units::{parse_time, show_size, show_time};
use clap::Args;
use larder::{
    Database, Error, ErrorKind, HistoryReport, Retention, SharedPages, StoreHistory, StoreRetention,
};
use serde_json::{Value, json};
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

/// Show how long the past stays and what it takes, or set how long
#[derive(Debug, Args)]
#[command(after_help = "\
TIME 0 turns the past off and forgets it. With --guarantee nothing of it is given up when space \
is short: writes are
refused instead. Sessions that have the database open follow at once.

A store may keep its past for a time of its own: give its place, DB:/path, or --store. All others \
follow the database.
'default' has a store follow it again. A store with TIME 0 keeps only what snapshots show.

Example: larder retention photos.larder:/raw 7d")]
pub(crate) struct RetentionArgs {
    /// Database to look at, or DB:/path of a store
    pub(crate) place: OsString,
    /// How long what is replaced and deleted shall stay readable [default: show it]
    #[arg(value_name = "TIME", value_parser = parse_wanted)]
    time: Option<Wanted>,
    /// The store that it is about
    #[arg(long, value_name = "NAME")]
    store: Option<String>,
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

/// What a retention shall be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Wanted {
    /// That of the database.
    Default,
    /// Nanoseconds.
    For(i64),
}

fn parse_wanted(text: &str) -> std::result::Result<Wanted, String> {
    match text {
        "default" => Ok(Wanted::Default),
        _ => parse_retention(text).map(Wanted::For),
    }
}

/// `larder retention`.
pub(crate) fn retention(args: &RetentionArgs, out: &mut Output) -> Result<()> {
    let (db, path) = place_of(&args.place)?;
    if path.is_some() && args.store.is_some() {
        return Err(Failure::Usage(
            "both the place and --store name a store; give one of them".into(),
        ));
    }
    let report = with_database(&db, "retention", |database| {
        let store = match (&args.store, &path) {
            (None, Some(path)) => Some(database.stores().at(path)?),
            (named, _) => named.clone(),
        };
        match &store {
            Some(store) => set_of_store(args, database, store),
            None => set_of_all(args, database),
        }
        .at(|| format!("cannot change the retention of '{}'", args.place.display()))?;
        let mut report = database.history().report()?;
        if let Some(store) = &store {
            report.own.retain(|one| one.name == *store);
            report.stores.retain(|one| one.name == *store);
        }
        Ok((store, report))
    })?;
    match (report, out.is_json()) {
        ((_, report), true) => out.document(&history_json(&report)),
        ((None, report), false) => history_lines(&report, out),
        ((Some(store), report), false) => store_lines(&store, &report, out),
    }
}

/// Sets that of the stores that have none of their own, if anything is asked for.
fn set_of_all(args: &RetentionArgs, database: &Database) -> larder::Result<()> {
    let now = database.history().retention()?;
    let retention_ns = match args.time {
        None => now.retention_ns,
        Some(Wanted::For(ns)) => ns,
        Some(Wanted::Default) => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "'default' is for a store, which follows the database then; give its place, \
                 DB:/path",
            ));
        }
    };
    let wanted = Retention {
        retention_ns,
        is_guaranteed: args.guarantee || (now.is_guaranteed && !args.best_effort),
    };
    match wanted == now {
        true => Ok(()),
        false => database.history().set_retention(wanted),
    }
}

/// Sets that of one store, if anything is asked for.
fn set_of_store(args: &RetentionArgs, database: &Database, store: &str) -> larder::Result<()> {
    let now = database.history().store_retention(store)?;
    let is_asked = args.time.is_some() || args.guarantee || args.best_effort;
    let base = now.map_or_else(|| database.history().retention(), Ok)?;
    let wanted = match args.time {
        Some(Wanted::Default) if args.guarantee || args.best_effort => {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a store that follows the database has no guarantee of its own; leave the option \
                 out",
            ));
        }
        Some(Wanted::Default) => None,
        Some(Wanted::For(_)) | None if is_asked => Some(Retention {
            retention_ns: match args.time {
                Some(Wanted::For(ns)) => ns,
                _ => base.retention_ns,
            },
            is_guaranteed: args.guarantee || (base.is_guaranteed && !args.best_effort),
        }),
        _ => now,
    };
    match wanted == now {
        true => Ok(()),
        false => database.history().set_store_retention(store, wanted),
    }
}

/// The database that `PLACE` names, and the path of a store in it.
pub(crate) fn place_of(place: &OsStr) -> Result<(PathBuf, Option<Vec<u8>>)> {
    if Path::new(place).exists() {
        return Ok((PathBuf::from(place), None));
    }
    Ok(match Address::parse(place)? {
        Address::In(address) => (address.database, Some(address.path)),
        Address::Local(path) => (path, None),
    })
}

/// How long one store keeps its past, for people.
fn store_lines(store: &str, report: &HistoryReport, out: &mut Output) -> Result<()> {
    match report.own.first() {
        Some(one) => out.line(&own_line(one))?,
        None => out.line(&format!(
            "store {store} follows the database, which keeps history for {}; it begins {} (commit \
             {})",
            show_duration(report.retention.retention_ns),
            show_time(report.begins_ns),
            report.begins_seq
        ))?,
    }
    stores_lines(&report.stores, out)
}

/// How long a store keeps its past that does not go with the database.
pub(crate) fn own_line(one: &StoreRetention) -> String {
    let how = match one.own {
        Some(own) if own.retention_ns == 0 => "keeps what snapshots show".to_owned(),
        Some(own) => {
            let how = match own.is_guaranteed {
                true => "guaranteed",
                false => "while there is space",
            };
            format!(
                "keeps history for {}, {how}",
                show_duration(own.retention_ns)
            )
        }
        None => "follows the database".to_owned(),
    };
    format!(
        "store {} {how}; it begins {} (commit {})",
        one.name,
        show_time(one.begins_ns),
        one.begins_seq
    )
}

/// What history there is, for people.
pub(crate) fn history_lines(report: &HistoryReport, out: &mut Output) -> Result<()> {
    let is_kept = |one: &StoreRetention| one.own.is_some_and(|own| own.retention_ns > 0);
    if report.retention.retention_ns == 0 && !report.own.iter().any(is_kept) {
        return out.line(match report.blocked_by.is_none() {
            true => "no history is kept; 'larder retention DB 1h' begins one",
            false => "history is kept for snapshots alone; 'larder retention DB 1h' keeps more",
        });
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
    for one in &report.own {
        out.line(&own_line(one))?;
    }
    stores_lines(&report.stores, out)?;
    pages_line(&report.pages, out)?;
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
        "map_pages": report.pages.page_count,
        "map_page_bytes": report.pages.bytes,
        "stores": stores_json(&report.stores),
        "retentions": own_json(&report.own),
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

/// What belongs to no store, if there is any.
pub(crate) fn pages_line(pages: &SharedPages, out: &mut Output) -> Result<()> {
    match pages.page_count {
        0 => Ok(()),
        count => out.line(&format!(
            "{count} pages of maps that clones had together, {} of the catalog",
            show_size(pages.bytes)
        )),
    }
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

/// Stores that do not go with the database.
pub(crate) fn own_json(own: &[StoreRetention]) -> Value {
    let one = |one: &StoreRetention| {
        json!({
            "store": one.store.0,
            "name": one.name,
            "retention_ns": one.own.map(|own| own.retention_ns),
            "is_guaranteed": one.own.map(|own| own.is_guaranteed),
            "begins_seq": one.begins_seq.0,
            "begins_ns": one.begins_ns,
        })
    };
    Value::Array(own.iter().map(one).collect())
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
    fn a_place_is_a_database_or_a_store_in_it() {
        let place = |text: &str| place_of(OsStr::new(text)).unwrap();
        assert_eq!(
            place("/x/a.larder:/raw"),
            (PathBuf::from("/x/a.larder"), Some(b"/raw".to_vec()))
        );
        assert_eq!(place("/x/a.larder"), (PathBuf::from("/x/a.larder"), None));
        assert_eq!(parse_wanted("default"), Ok(Wanted::Default));
        assert_eq!(parse_wanted("2s"), Ok(Wanted::For(2_000_000_000)));
    }
}
