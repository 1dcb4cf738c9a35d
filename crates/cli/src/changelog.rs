//! `larder log`: which commits changed a path, or anything.

use crate::address::Address;
use crate::databases::with_databases;
use crate::error::{At, Failure, Result};
use crate::output::{Output, put_name};
use crate::units::show_time;
use crate::visible::visible;
use clap::Args;
use larder::{CommitAuthor, LogChange, LogCommit, LogEvent};
use serde_json::{Map, Value, json};
use std::ffi::OsString;
use std::ops::ControlFlow;

/// Show which commits changed a path, or anything, newest first
#[derive(Debug, Args)]
#[command(
    after_help = "A file is followed through its renames, a directory stands for all below it, \
        and what is gone is found by
the last path it had. As far back as the history goes. Example: larder log \
photos.larder:/2026/a.jpg --limit 10"
)]
pub(crate) struct LogArgs {
    /// Database, or a path in one: DB or DB:/path
    #[arg(value_name = "DB[:PATH]")]
    pub(crate) address: OsString,
    /// Commits at most
    #[arg(long, value_name = "COUNT", value_parser = clap::value_parser!(u64).range(1..))]
    pub(crate) limit: Option<u64>,
}

/// `larder log`.
pub(crate) fn log(args: &LogArgs, out: &mut Output) -> Result<()> {
    let (directory, path) = match Address::parse(&args.address)? {
        Address::In(address) => (address.database, Some(address.path)),
        Address::Local(directory) => (directory, None),
    };
    with_databases("log", |databases| {
        let database = databases.open(&directory)?;
        if database.history().shown().is_some() {
            return Err(Failure::Usage(format!(
                "'{}' names one moment, and a log is of all; name the database without '@'",
                args.address.display()
            )));
        }
        let mut printed = Ok(());
        let told = database
            .history()
            .log(path.as_deref(), args.limit, &mut |commit| {
                printed = print_commit(&commit, out);
                match printed {
                    Ok(()) => ControlFlow::Continue(()),
                    Err(_) => ControlFlow::Break(()),
                }
            });
        printed?;
        told.at(|| args.address.to_string_lossy().into_owned())?;
        out.end_list()
    })
}

fn print_commit(commit: &LogCommit, out: &mut Output) -> Result<()> {
    if out.is_json() {
        let changes: Vec<Value> = commit.changes.iter().map(change_json).collect();
        let document = json!({
            "seq": commit.seq,
            "at_ns": commit.at_ns,
            "author": commit.author.as_ref().map(author_json),
            "changes": changes,
        });
        return out.item(&document.to_string());
    }
    let author = commit.author.as_ref().map(show_author);
    out.line(&format!(
        "commit {}  {}{}",
        commit.seq,
        show_time(commit.at_ns),
        author.unwrap_or_default()
    ))?;
    (commit.changes.iter()).try_for_each(|change| out.name_line(&change_line(change)))
}

/// Who made a commit, behind its time.
fn show_author(author: &CommitAuthor) -> String {
    let label = match author.label.as_str() {
        "" => "a program",
        label => label,
    };
    let label = visible(label);
    let pid = author.pid;
    match (author.user, author.uid) {
        // A mount works for others.
        (Some(user), uid) if user != uid => {
            format!("  by {label} for user {user} (process {pid} of user {uid})")
        }
        (_, uid) => format!("  by {label} (process {pid} of user {uid})"),
    }
}

fn author_json(author: &CommitAuthor) -> Value {
    json!({
        "session": author.session.0,
        "label": author.label,
        "pid": author.pid,
        "uid": author.uid,
        "user": author.user,
    })
}

/// A change as a line for people.
pub(crate) fn change_line(change: &LogChange) -> Vec<u8> {
    let word = format!("  {:<10}  ", word(&change.event));
    match &change.event {
        LogEvent::Renamed { from } => [word.as_bytes(), from, b" -> ", &change.path].concat(),
        _ => [word.as_bytes(), &change.path].concat(),
    }
}

fn word(event: &LogEvent) -> &'static str {
    match event {
        LogEvent::Created => "created",
        LogEvent::Removed => "removed",
        LogEvent::Renamed { .. } => "renamed",
        LogEvent::Linked => "linked",
        LogEvent::Unlinked => "unlinked",
        LogEvent::Content => "content",
        LogEvent::Attributes => "attributes",
        LogEvent::Columns => "columns",
    }
}

/// A change for programs.
pub(crate) fn change_json(change: &LogChange) -> Value {
    let mut object = Map::new();
    object.insert("event".into(), word(&change.event).into());
    put_name(&mut object, "path", &change.path);
    if let LogEvent::Renamed { from } = &change.event {
        put_name(&mut object, "from", from);
    }
    object.insert("kind".into(), change.kind.as_str().into());
    object.insert("store".into(), change.node.store.0.into());
    object.insert("ino".into(), change.node.ino.0.into());
    Value::Object(object)
}
