//! `larder undo`: one commit is taken back.

use crate::changelog::{change_json, change_line};
use crate::databases::with_database;
use crate::error::{At, Result};
use crate::output::Output;
use crate::units::show_time;
use clap::{Args, ValueHint};
use serde_json::{Value, json};
use std::path::PathBuf;

/// Take back what one commit did to files, as a new commit; refused where later commits changed the
/// same
#[derive(Debug, Args)]
#[command(
    after_help = "'larder log' shows the numbers of commits. A transaction is taken back as a \
        whole, or not at all.
Example: larder undo photos.larder 1234 --dry-run"
)]
pub(crate) struct UndoArgs {
    /// Database
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// The number of the commit
    pub(crate) seq: u64,
    /// Only say what would be taken back
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `larder undo`.
pub(crate) fn undo(args: &UndoArgs, out: &mut Output) -> Result<()> {
    with_database(&args.db, "undo", |database| {
        let report = database
            .history()
            .undo(args.seq, args.dry_run)
            .at(|| format!("cannot undo commit {}", args.seq))?;
        if out.is_json() {
            let changes: Vec<Value> = report.changes.iter().map(change_json).collect();
            return out.document(&json!({
                "seq": report.seq,
                "at_ns": report.at_ns,
                "dry_run": args.dry_run,
                "changes": changes,
            }));
        }
        let done = match args.dry_run {
            true => "would take back",
            false => "took back",
        };
        out.line(&format!(
            "{done} commit {}, {}:",
            report.seq,
            show_time(report.at_ns)
        ))?;
        (report.changes.iter()).try_for_each(|change| out.name_line(&change_line(change)))
    })
}
