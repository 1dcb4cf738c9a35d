//! `larder rollback`: a database, or a store, goes back to what it was.

use crate::address::{Address, split_moment};
use crate::databases::with_database;
use crate::diff::{change_json, change_line};
use crate::error::{At, Failure, Result};
use crate::output::Output;
use crate::restore::{counted, rows_json};
use crate::units::{show_size, show_time};
use clap::Args;
use larder::{Database, RollbackReport, RowsReport, parse_moment};
use serde_json::{Value, json};
use std::ffi::OsString;

/// Go back: all of a database, or one store, becomes what it was at a moment, as one new commit
#[derive(Debug, Args)]
#[command(
    after_help = "Goes back in all stores and the rows and columns of tracked tables; with \
        DB:/store only in the store that is mounted there.
Names, links, attributes, times, extended attributes and content become what they were, and files \
keep their inode numbers
or get them again. What came since goes. All of that is history: another rollback takes this one \
back. What has no past
stays and is named: tables that are not tracked, columns of your own of stores that are not, \
stores that were made or destroyed since.
Example: larder rollback photos.larder 2026-11-20T10:00:00Z --dry-run"
)]
pub(crate) struct RollbackArgs {
    /// Database, or DB:/store
    #[arg(value_name = "DB[:/STORE]")]
    pub(crate) address: OsString,
    /// As of when: a time such as 2026-11-20T10:00:00Z, -1h, seq:1234, or the name of a snapshot
    #[arg(value_name = "MOMENT", allow_hyphen_values = true)]
    pub(crate) moment: String,
    /// Only list what would change
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `larder rollback`.
pub(crate) fn rollback(args: &RollbackArgs, out: &mut Output) -> Result<()> {
    let (database, path) = match Address::parse(&args.address)? {
        Address::In(address) => (address.database, Some(address.path)),
        Address::Local(database) => (database, None),
    };
    let shown = args.address.display();
    if split_moment(&database).is_some() {
        return Err(Failure::Usage(format!(
            "'{shown}' names a moment; write 'larder rollback DB MOMENT'"
        )));
    }
    with_database(&database, "rollback", |open: &Database| {
        let moment = parse_moment(&args.moment, open.now_ns())
            .at(|| format!("cannot roll '{shown}' back"))?;
        let report = (open
            .history()
            .rollback(&moment, path.as_deref(), args.dry_run))
        .at(|| format!("cannot roll '{shown}' back"))?;
        print(args, &report, out)
    })
}

fn print(args: &RollbackArgs, report: &RollbackReport, out: &mut Output) -> Result<()> {
    if out.is_json() {
        let changes: Vec<Value> = report.changes.iter().map(change_json).collect();
        let rows: Vec<Value> = report.rows.iter().map(rows_json).collect();
        return out.document(&json!({
            "seq": report.seq,
            "at_ns": report.at_ns,
            "before_seq": report.before_seq,
            "dry_run": args.dry_run,
            "stores": report.stores,
            "revived": report.revived_count,
            "removed": report.removed_count,
            "changed": report.changed_count,
            "content_bytes": report.content_bytes,
            "changes": changes,
            "rows": rows,
            "left": report.left,
        }));
    }
    for change in &report.changes {
        out.name_line(&change_line(change))?;
    }
    let shown = args.address.display();
    let moment = format!("commit {}, {}", report.seq, show_time(report.at_ns));
    match args.dry_run {
        true => out.line(&format!(
            "would roll {shown} back to {moment}: {} of paths",
            match report.changes.len() {
                0 => "no difference".into(),
                1 => "1 difference".into(),
                count => format!("{count} differences"),
            }
        ))?,
        false => out.line(&format!(
            "rolled {shown} back to {moment}: {}; {} of content written",
            counted(&[
                (report.revived_count, "brought back"),
                (report.removed_count, "removed"),
                (report.changed_count, "changed"),
            ]),
            show_size(report.content_bytes)
        ))?,
    }
    for rows in report.rows.iter().filter(|rows| is_changed(rows)) {
        let counts = [
            (rows.inserted_count, "inserted"),
            (rows.updated_count, "updated"),
            (rows.deleted_count, "deleted"),
        ];
        let would = if args.dry_run { "would be " } else { "" };
        out.line(&format!(
            "table {}: {would}{}",
            rows.table,
            counted(&counts)
        ))?;
    }
    for left in &report.left {
        out.line(&format!("not rolled back: {left}"))?;
    }
    let is_new = report.before_seq > report.seq;
    if !args.dry_run && is_new {
        out.line(&format!(
            "'larder rollback {shown} seq:{}' takes this back",
            report.before_seq
        ))?;
    }
    Ok(())
}

fn is_changed(rows: &RowsReport) -> bool {
    rows.inserted_count + rows.updated_count + rows.deleted_count > 0
}
