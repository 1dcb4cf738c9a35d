//! `larder restore`: what was is brought back.

use crate::address::{Address, split_moment};
use crate::databases::with_databases;
use crate::error::{At, Failure, Result};
use crate::output::{Output, put_name};
use crate::units::{show_size, show_time};
use clap::Args;
use larder::{RestoreAction, RestoreOptions, RestoreReport, RestoreRows, RowsReport};
use serde_json::{Map, Value, json};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Bring back a file, a tree or rows as they were, all of it or nothing
#[derive(Debug, Args)]
#[command(
    after_help = "Brings back names, modes, owners, times, extended attributes, content, links, \
        your own columns of a tracked
store, and with --table rows of tracked tables, in one commit. What is there now and was not then \
stays, unless --exact. What DEST
has is treated alike. Content is shared with the history, and takes no space, but for files of a \
few KiB and small overwrites.
Example: larder restore photos.larder@-1h:/2026 --table albums --where \"year = 2026\""
)]
pub(crate) struct RestoreArgs {
    /// What, and as of when: DB@MOMENT:/path; with --table also DB@MOMENT
    #[arg(value_name = "DB@MOMENT[:PATH]")]
    pub(crate) address: OsString,
    /// The path that it gets in the same database [default: the one that it had]
    #[arg(value_name = "DEST")]
    pub(crate) dest: Option<OsString>,
    /// Also the rows of this table, which 'larder track' keeps; may be given several times
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: Vec<String>,
    /// Of these tables only rows for which this condition holds
    #[arg(long = "where", value_name = "SQL", requires = "table")]
    pub(crate) filter: Option<String>,
    /// Leave your own columns as they are, also those of a tracked store
    #[arg(long)]
    pub(crate) keep_columns: bool,
    /// Also remove what is there now and was not then
    #[arg(long)]
    pub(crate) exact: bool,
    /// Only list what would be done
    #[arg(long)]
    pub(crate) dry_run: bool,
}

/// `larder restore`.
pub(crate) fn restore(args: &RestoreArgs, out: &mut Output) -> Result<()> {
    let (database, path) = match Address::parse(&args.address)? {
        Address::In(address) => (address.database, Some(address.path)),
        Address::Local(database) => (database, None),
    };
    let shown = args.address.display();
    let Some((directory, _)) = split_moment(&database) else {
        return Err(Failure::Usage(format!(
            "'{shown}' names no moment; write it as DB@MOMENT:/path, like photos.larder@-1h:/2026"
        )));
    };
    if path.is_none() && args.table.is_empty() {
        return Err(Failure::Usage(format!(
            "'{shown}' names no path; write it as DB@MOMENT:/path, or give a --table"
        )));
    }
    let rows = args.table.iter().map(|table| RestoreRows {
        table: table.clone(),
        filter: args.filter.clone(),
    });
    let options = RestoreOptions {
        to: destination(args.dest.as_deref(), &directory)?,
        rows: rows.collect(),
        is_exact: args.exact,
        keeps_columns: args.keep_columns,
        is_dry: args.dry_run,
    };
    with_databases("restore", |databases| {
        let past = databases.open(&database)?;
        let present = databases.open(&directory)?;
        let report = present
            .history()
            .restore(&past, path.as_deref(), &options)
            .at(|| format!("cannot restore '{shown}'"))?;
        print(args, path.as_deref(), past.history().shown(), &report, out)
    })
}

/// The path in the database that an argument names.
fn destination(dest: Option<&OsStr>, database: &Path) -> Result<Option<Vec<u8>>> {
    let Some(dest) = dest else { return Ok(None) };
    let same = |other: &Path| match (other.canonicalize(), database.canonicalize()) {
        (Ok(other), Ok(database)) => other == database,
        _ => false,
    };
    match Address::parse(dest)? {
        Address::In(to) if same(&to.database) => Ok(Some(to.path)),
        Address::Local(path) if path.is_absolute() => {
            Ok(Some(path.as_os_str().as_bytes().to_vec()))
        }
        Address::In(_) => Err(Failure::Usage(format!(
            "'{}' is in another database; restore within one, or use 'larder cp -a'",
            dest.display()
        ))),
        Address::Local(_) => Err(Failure::Usage(format!(
            "'{}' is no path in the database; begin it with '/', or use 'larder cp -a' to copy \
             out of it",
            dest.display()
        ))),
    }
}

fn print(
    args: &RestoreArgs,
    path: Option<&[u8]>,
    shows: Option<(u64, i64)>,
    report: &RestoreReport,
    out: &mut Output,
) -> Result<()> {
    let (seq, at_ns) = shows.unwrap_or_default();
    if out.is_json() {
        let steps: Vec<Value> = report
            .steps
            .iter()
            .map(|step| {
                let mut object = Map::new();
                object.insert("action".into(), word(step.action).into());
                put_name(&mut object, "path", &step.path);
                object.insert("kind".into(), step.kind.as_str().into());
                Value::Object(object)
            })
            .collect();
        let rows: Vec<Value> = report.rows.iter().map(rows_json).collect();
        return out.document(&json!({
            "seq": seq,
            "at_ns": at_ns,
            "dry_run": args.dry_run,
            "steps": steps,
            "content_bytes": report.content_bytes,
            "copied_bytes": report.copied_bytes,
            "rows": rows,
        }));
    }
    if args.dry_run {
        for step in &report.steps {
            let word = format!("would {:<10}  ", verb(step.action));
            out.name_line(&[word.as_bytes(), &step.path].concat())?;
        }
    }
    let done = match args.dry_run {
        true => "would restore",
        false => "restored",
    };
    let moment = format!("as of commit {seq}, {}", show_time(at_ns));
    if let Some(path) = path {
        let counts = ACTIONS.map(|action| {
            let steps = report.steps.iter();
            (
                steps.filter(|step| step.action == action).count() as u64,
                word(action),
            )
        });
        let copied = match args.dry_run {
            true => String::new(),
            false => format!(", {} of it copied", show_size(report.copied_bytes)),
        };
        out.line(&format!(
            "{done} {} {moment}: {}; {} of content{copied}",
            String::from_utf8_lossy(path),
            counted(&counts),
            show_size(report.content_bytes)
        ))?;
    }
    for rows in &report.rows {
        let counts = [
            (rows.inserted_count, "inserted"),
            (rows.updated_count, "updated"),
            (rows.deleted_count, "deleted"),
        ];
        let table = &rows.table;
        out.line(&format!(
            "{done} table {table} {moment}: {}",
            counted(&counts)
        ))?;
    }
    Ok(())
}

/// Those of the counts that are not 0.
pub(crate) fn counted(counts: &[(u64, &str)]) -> String {
    let counts = counts.iter().filter(|(count, _)| *count > 0);
    let counts: Vec<String> = counts
        .map(|(count, word)| format!("{count} {word}"))
        .collect();
    match counts.is_empty() {
        true => "nothing to do".into(),
        false => counts.join(", "),
    }
}

pub(crate) fn rows_json(rows: &RowsReport) -> Value {
    json!({
        "table": rows.table,
        "inserted": rows.inserted_count,
        "updated": rows.updated_count,
        "deleted": rows.deleted_count,
    })
}

/// In the order in which they are counted.
const ACTIONS: [RestoreAction; 7] = [
    RestoreAction::Create,
    RestoreAction::Move,
    RestoreAction::Link,
    RestoreAction::Replace,
    RestoreAction::Content,
    RestoreAction::Attributes,
    RestoreAction::Remove,
];

fn verb(action: RestoreAction) -> &'static str {
    match action {
        RestoreAction::Create => "create",
        RestoreAction::Link => "link",
        RestoreAction::Replace => "replace",
        RestoreAction::Move => "move",
        RestoreAction::Content => "write",
        RestoreAction::Attributes => "set",
        RestoreAction::Remove => "remove",
    }
}

fn word(action: RestoreAction) -> &'static str {
    match action {
        RestoreAction::Create => "created",
        RestoreAction::Link => "linked",
        RestoreAction::Replace => "replaced",
        RestoreAction::Move => "moved",
        RestoreAction::Content => "written",
        RestoreAction::Attributes => "set",
        RestoreAction::Remove => "removed",
    }
}
