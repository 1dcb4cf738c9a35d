//! `larder upgrade`: a database of an older format, converted in a new directory.

use crate::error::{At, Result};
use crate::output::Output;
use crate::progress::Progress;
use crate::units::show_size;
use clap::{Args, ValueHint};
use larder::Trust;
use serde_json::json;
use std::path::PathBuf;

/// Convert a database that an older larder wrote, in a new directory
#[derive(Debug, Args)]
#[command(after_help = "\
OLD stays as it is; nobody may have it open meanwhile. Content, history, tables, columns, indexes
and triggers go along, and what was copied is compared. Where it was interrupted it goes on: run
it again. Example: larder upgrade photos.larder photos2.larder")]
pub(crate) struct UpgradeArgs {
    /// Database to convert
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) old: PathBuf,
    /// Directory to create; nothing may be there
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) new: PathBuf,
}

/// `larder upgrade`.
pub(crate) fn upgrade(args: &UpgradeArgs, out: &mut Output) -> Result<()> {
    let progress = Progress::new(None);
    let report = larder::upgrade(
        &args.old,
        &args.new,
        Trust::of_environment(),
        &mut |bytes| {
            progress.advance(bytes);
        },
    );
    drop(progress);
    let report = report.at(|| format!("cannot upgrade '{}'", args.old.display()))?;
    if out.is_json() {
        return out.document(&json!({
            "database": args.new.to_string_lossy(),
            "segment_count": report.segment_count,
            "segment_bytes": report.segment_bytes,
        }));
    }
    out.line(&format!(
        "converted {} to {} ({}); when 'larder check --read' has read all of it, {} may go",
        args.old.display(),
        args.new.display(),
        show_size(report.segment_bytes),
        args.old.display()
    ))
}
