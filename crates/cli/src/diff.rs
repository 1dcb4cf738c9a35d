//! `larder diff`: where two states differ.
//!
//! `CLI-31` Its exit code is that of diff(1): 0 when nothing differs, 1 when something does, 2 for
//! every failure.

use crate::databases::{Databases, with_databases};
use crate::error::{At, Failure, Result};
use crate::output::{Output, attr_json, put_name};
use crate::units::show_size;
use clap::Args;
use larder::{DiffChange, DiffEvent, DiffReport, FileKind, Metadata};
use serde_json::{Map, Value, json};
use std::ffi::OsString;

/// Show where two trees differ: of two moments, two places or two databases
#[derive(Debug, Args)]
#[command(
    after_help = "Compares names, kinds, modes, owners, content and extended attributes; not \
        times. Your own columns of
a store that is tracked ('larder track') are compared between two moments of a database.
Between two moments of a database only that content is read of which something was written.
Exits with 0 when nothing differs, 1 when something does, 2 when it fails.
Example: larder diff photos.larder@-1h:/2026 photos.larder:/2026"
)]
pub(crate) struct DiffArgs {
    /// The first: DB:/path or DB@MOMENT:/path
    #[arg(value_name = "ADDRESS")]
    pub(crate) a: OsString,
    /// The second
    #[arg(value_name = "ADDRESS")]
    pub(crate) b: OsString,
    /// Also say how much content was read
    #[arg(long)]
    pub(crate) cost: bool,
}

/// `larder diff`.
pub(crate) fn diff(args: &DiffArgs, out: &mut Output) -> Result<()> {
    let outcome = with_databases("diff", |databases| {
        let report = compare(databases, args)?;
        print(args, &report, out)?;
        Ok(report.changes.is_empty())
    });
    match outcome {
        Ok(true) => Ok(()),
        Ok(false) => Err(Failure::Told(1)),
        Err(Failure::Pipe) => Err(Failure::Pipe),
        Err(failure) => {
            // CLI-31
            failure.tell();
            Err(Failure::Told(2))
        }
    }
}

fn compare(databases: &mut Databases, args: &DiffArgs) -> Result<DiffReport> {
    let (database_a, a) = databases.address(&args.a)?;
    let (database_b, b) = databases.address(&args.b)?;
    // So that the message says which of the two is not there.
    for (database, address) in [(&database_a, &a), (&database_b, &b)] {
        (database.nodes().resolve(&address.path, false)).at(|| address.to_string())?;
    }
    larder::diff((&database_a, &a.path), (&database_b, &b.path))
        .at(|| format!("cannot compare '{a}' and '{b}'"))
}

fn print(args: &DiffArgs, report: &DiffReport, out: &mut Output) -> Result<()> {
    if out.is_json() {
        let changes: Vec<Value> = report.changes.iter().map(change_json).collect();
        return out.document(&json!({
            "changes": changes,
            "read_bytes": report.read_bytes,
            "unread_bytes": report.unread_bytes,
        }));
    }
    for change in &report.changes {
        out.name_line(&change_line(change))?;
    }
    if args.cost {
        out.line(&format!(
            "content: {} read, {} known to be the same",
            show_size(report.read_bytes),
            show_size(report.unread_bytes)
        ))?;
    }
    Ok(())
}

/// A line for people about a path that differs.
pub(crate) fn change_line(change: &DiffChange) -> Vec<u8> {
    let details = details(change);
    let path = &change.path;
    let mut line = match &change.event {
        DiffEvent::Renamed { from } => [b"renamed  ", &from[..], b" -> ", path].concat(),
        event => [format!("{:<9}", word(event)).as_bytes(), path].concat(),
    };
    if !details.is_empty() {
        line.extend_from_slice(format!("  ({})", details.join(", ")).as_bytes());
    }
    line
}

fn word(event: &DiffEvent) -> &'static str {
    match event {
        DiffEvent::Added => "added",
        DiffEvent::Removed => "removed",
        DiffEvent::Renamed { .. } => "renamed",
        DiffEvent::Changed => "changed",
    }
}

/// What differs, in words.
fn details(change: &DiffChange) -> Vec<String> {
    let (Some(before), Some(after)) = (&change.before, &change.after) else {
        return Vec::new();
    };
    let mut details = Vec::new();
    if change.has_other_kind() {
        let kinds = (before.kind.as_str(), after.kind.as_str());
        details.push(format!("{} -> {}", kinds.0, kinds.1));
    }
    if change.mode {
        details.push(format!("mode {:04o} -> {:04o}", before.mode, after.mode));
    }
    if change.owner {
        let owner = |attr: &Metadata| format!("{}:{}", attr.uid, attr.gid);
        details.push(format!("owner {} -> {}", owner(before), owner(after)));
    }
    if change.content {
        let (was, is) = (before.size_bytes, after.size_bytes);
        details.push(match after.kind {
            FileKind::File if was == is => "content".into(),
            FileKind::File => format!("content, {was} -> {is} bytes"),
            FileKind::Symlink => "target".into(),
            _ => "device number".into(),
        });
    }
    if change.xattrs {
        details.push("extended attributes".into());
    }
    if change.columns {
        details.push("your columns".into());
    }
    details
}

pub(crate) fn change_json(change: &DiffChange) -> Value {
    let mut object = Map::new();
    object.insert("event".into(), word(&change.event).into());
    put_name(&mut object, "path", &change.path);
    if let DiffEvent::Renamed { from } = &change.event {
        put_name(&mut object, "from", from);
    }
    let flags = [
        (change.has_other_kind(), "kind"),
        (change.mode, "mode"),
        (change.owner, "owner"),
        (change.xattrs, "xattrs"),
        (change.columns, "columns"),
        (change.content, "content"),
    ];
    let differs: Vec<&str> = flags
        .iter()
        .filter(|flag| flag.0)
        .map(|flag| flag.1)
        .collect();
    object.insert("differs".into(), json!(differs));
    for (key, attr) in [("before", &change.before), ("after", &change.after)] {
        let attr = attr.as_ref().map(|attr| Value::Object(attr_json(attr)));
        object.insert(key.into(), attr.unwrap_or(Value::Null));
    }
    Value::Object(object)
}
