//! `larder prune`: the past goes, on somebody's word.

use crate::databases::with_database;
use crate::error::{At, Failure, Result};
use crate::output::Output;
use crate::retention::{
    own_json, own_line, pages_line, place_of, stores_json, stores_lines, sum_of,
};
use crate::units::{show_size, show_time};
use clap::Args;
use larder::{KeepPolicy, PruneCut, Pruned, SnapshotRow, parse_moment};
use serde_json::json;
use std::ffi::OsString;

/// Let the past go: what was replaced and deleted, and snapshots that a policy does not keep
#[derive(Debug, Args)]
#[command(after_help = "\
Without options all of the past goes, but what snapshots keep. With --keep-... the snapshots that \
no rule keeps are
destroyed, unless they are held, and then what neither the retention nor a snapshot keeps goes. \
COUNT may be
'unlimited'. With DB:/path, or --store, the past of that store alone goes. MOMENT: \
2026-11-20T10:00:00Z, -30d, seq:1234, or the name of a snapshot.

Example: larder prune photos.larder --keep-hourly 24 --keep-daily 30 --dry-run")]
pub(crate) struct PruneArgs {
    /// Database to prune, or DB:/path of a store
    pub(crate) place: OsString,
    /// Only the past of this store
    #[arg(long, value_name = "NAME")]
    store: Option<String>,
    /// Only what is older than this moment, which stays readable
    #[arg(long, value_name = "MOMENT", allow_hyphen_values = true)]
    older_than: Option<String>,
    /// Keep the newest snapshots
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    keep_last: Option<u32>,
    /// Keep the newest snapshot of each of so many hours
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    keep_hourly: Option<u32>,
    /// The same for days
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    keep_daily: Option<u32>,
    /// The same for weeks
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    keep_weekly: Option<u32>,
    /// The same for months
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    keep_monthly: Option<u32>,
    /// The same for years
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    keep_yearly: Option<u32>,
    /// Only say what would go
    #[arg(long)]
    dry_run: bool,
}

fn parse_count(text: &str) -> std::result::Result<u32, String> {
    match text {
        "unlimited" | "all" => Ok(KeepPolicy::ALL),
        _ => text
            .parse()
            .map_err(|_| format!("'{text}' is no count; write a whole number, or 'unlimited'")),
    }
}

impl PruneArgs {
    /// `None` when no rule is given.
    fn policy(&self) -> Result<Option<KeepPolicy>> {
        let rules = [
            self.keep_last,
            self.keep_hourly,
            self.keep_daily,
            self.keep_weekly,
            self.keep_monthly,
            self.keep_yearly,
        ];
        if rules.iter().all(Option::is_none) {
            return Ok(None);
        }
        let [last, hourly, daily, weekly, monthly, yearly] = rules.map(Option::unwrap_or_default);
        if [last, hourly, daily, weekly, monthly, yearly] == [0; 6] {
            return Err(Failure::Usage(
                "rules that keep nothing would destroy all snapshots; give one of --keep-... a \
                 count above 0"
                    .into(),
            ));
        }
        Ok(Some(KeepPolicy {
            last,
            hourly,
            daily,
            weekly,
            monthly,
            yearly,
        }))
    }
}

/// `larder prune`.
pub(crate) fn prune(args: &PruneArgs, out: &mut Output) -> Result<()> {
    let policy = args.policy()?;
    let (db, path) = place_of(&args.place)?;
    if (path.is_some() || args.store.is_some()) && policy.is_some() {
        return Err(Failure::Usage(
            "snapshots are of all stores, so --keep-... is for the database; name no store with it"
                .into(),
        ));
    }
    if path.is_some() && args.store.is_some() {
        return Err(Failure::Usage(
            "both the place and --store name a store; give one of them".into(),
        ));
    }
    let pruned = with_database(&db, "prune", |database| {
        let cut = match &args.older_than {
            Some(text) => PruneCut::OlderThan(parse_moment(text, database.now_ns())?),
            None if policy.is_some() => PruneCut::Retention,
            None => PruneCut::All,
        };
        let store = match (&args.store, &path) {
            (None, Some(path)) => Some(database.stores().at(path)?),
            (named, _) => named.clone(),
        };
        match store {
            None => database.history().prune(cut, policy.as_ref(), args.dry_run),
            Some(store) => {
                (database.history().prune_store(&store, cut, args.dry_run)).map(Pruned::from)
            }
        }
        .at(|| format!("cannot prune '{}'", args.place.display()))
    })?;
    tell(&pruned, out)?;
    let report = &pruned.report;
    let (bytes, rows) = sum_of(&report.freed);
    match &report.blocked_by {
        Some(what) if (bytes, rows) == (0, 0) && report.destroyed.is_empty() => {
            Err(Failure::Other(format!(
                "nothing can be pruned: {what}; destroy the snapshot, or end what reads the past"
            )))
        }
        _ => Ok(()),
    }
}

fn tell(pruned: &Pruned, out: &mut Output) -> Result<()> {
    let report = &pruned.report;
    if out.is_json() {
        let names =
            |rows: &[SnapshotRow]| rows.iter().map(|row| row.name.clone()).collect::<Vec<_>>();
        let (bytes, rows) = sum_of(&report.freed);
        return out.document(&json!({
            "is_dry": report.is_dry,
            "destroyed": names(&report.destroyed),
            "held": names(&pruned.held),
            "freed_bytes": bytes,
            "freed_rows": rows,
            "freed_map_pages": report.freed_pages.page_count,
            "freed_map_page_bytes": report.freed_pages.bytes,
            "stores": stores_json(&report.freed),
            "begins_seq": report.begins_seq.0,
            "begins_ns": report.begins_ns,
            "retentions": own_json(&report.stores),
            "blocked_by": report.blocked_by,
            "is_waiting": report.is_waiting,
        }));
    }
    let would = if report.is_dry { "would be " } else { "" };
    for row in &report.destroyed {
        out.line(&format!(
            "snapshot {} of {} {would}destroyed",
            row.name,
            show_time(row.created_ns)
        ))?;
    }
    for row in &pruned.held {
        out.line(&format!(
            "snapshot {} of {} stays: it is held by {}",
            row.name,
            show_time(row.created_ns),
            row.holds.join(", ")
        ))?;
    }
    stores_lines(&report.freed, out)?;
    pages_line(&report.freed_pages, out)?;
    let (bytes, rows) = sum_of(&report.freed);
    out.line(&format!(
        "{} of content and {rows} rows {would}freed; history {} {} (commit {})",
        show_size(bytes),
        if report.is_dry {
            "would begin"
        } else {
            "begins"
        },
        show_time(report.begins_ns),
        report.begins_seq
    ))?;
    for one in &report.stores {
        out.line(&own_line(one))?;
    }
    if let Some(what) = &report.blocked_by {
        out.line(&format!("more would go, but {what}"))?;
    }
    if report.is_waiting {
        out.line("another session still uses some of it; it is free when that is over")?;
    }
    Ok(())
}
