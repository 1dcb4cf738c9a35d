//! `larder clone`: files and trees that share their content.

use crate::address::{Address, split_moment};
use crate::databases::with_databases;
use crate::error::{At, Failure, Result};
use crate::output::Output;
use crate::units::show_size;
use clap::Args;
use larder::{CloneOptions, CloneReport};
use serde_json::json;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

/// Clone a file, a tree or a store: at once, and without space for its content
#[derive(Debug, Args)]
#[command(
    after_help = "The clone shares the blocks of its content until one side changes them; neither \
        sees what is written to the other.
What is cloned of the past shares with the history, and lives on when that goes. DEST must not \
exist. The root of a store,
cloned to DB:/NAME, becomes a store. Within one store it has the user columns, but those
with a unique index; those of the past, where the store is tracked since then.
Example: larder clone photos.larder:/2026 photos.larder:/2026-try"
)]
pub(crate) struct CloneArgs {
    /// What: DB:/path, or DB@MOMENT:/path as of then
    #[arg(value_name = "SRC")]
    pub(crate) source: OsString,
    /// The path that it gets in the same database
    #[arg(value_name = "DEST")]
    pub(crate) dest: OsString,
    /// Without the user columns
    #[arg(long)]
    pub(crate) no_columns: bool,
}

/// `larder clone`.
pub(crate) fn clone(args: &CloneArgs, out: &mut Output) -> Result<()> {
    let source = Address::parse_in_database(&args.source)?;
    let dest = Address::parse_in_database(&args.dest)?;
    let past = split_moment(&source.database);
    let directory = match &past {
        Some((directory, _)) => directory.clone(),
        None => source.database.clone(),
    };
    if split_moment(&dest.database).is_some() {
        return Err(Failure::Usage(format!(
            "'{}' is in the past, which cannot be changed; leave out the '@'",
            args.dest.display()
        )));
    }
    if !is_same(&dest.database, &directory) {
        return Err(Failure::Usage(format!(
            "'{}' is in another database, and content is shared within one; use 'larder cp -a'",
            args.dest.display()
        )));
    }
    with_databases("clone", |databases| {
        let then = match past {
            Some(_) => Some(databases.open(&source.database)?),
            None => None,
        };
        let present = databases.open(&directory)?;
        let options = CloneOptions {
            without_columns: args.no_columns,
        };
        let report = present
            .files()
            .clone_path_with(then.as_ref(), &source.path, &dest.path, &options)
            .at(|| format!("cannot clone '{}'", args.source.display()))?;
        print(args, &report, out)
    })
}

fn is_same(one: &Path, other: &Path) -> bool {
    let real = |path: &Path| path.canonicalize().unwrap_or_else(|_| PathBuf::from(path));
    real(one) == real(other)
}

fn print(args: &CloneArgs, report: &CloneReport, out: &mut Output) -> Result<()> {
    if out.is_json() {
        return out.document(&json!({
            "files": report.file_count,
            "directories": report.directory_count,
            "others": report.other_count,
            "content_bytes": report.content_bytes,
            "copied_bytes": report.copied_bytes,
            "is_store": report.is_store,
        }));
    }
    let what = match report.is_store {
        true => "store ",
        false => "",
    };
    out.line(&format!(
        "cloned to {what}{}: {} files, {} directories, {} others; {} of content, {} of it copied",
        args.dest.display(),
        report.file_count,
        report.directory_count,
        report.other_count,
        show_size(report.content_bytes),
        show_size(report.copied_bytes)
    ))
}
