//! `larder watch`: the change feed of a database.
//!
//! ```text
//! 17  2026-11-22T03:31:22Z  rename  main 12  /a/old.txt -> /a/new.txt
//! ```
//!
//! # Invariants
//! * `CLI-26` Every change is printed once, in order, with its position; an interrupted command
//!   resumes behind the last one with `--since`. With `--json` each is a document on a line of its
//!   own, since there is no end.

use crate::databases::with_database;
use crate::error::{At, Failure, Result, warn};
use crate::output::{Output, put_name};
use crate::units::show_time;
use clap::{Args, ValueHint};
use larder::format::{ChangeRecord, Entry, Operation};
use larder::{Database, FeedChange, FeedEvent, Ino, NodeId, SqlValue, StoreId};
use serde_json::{Map, Value};
use signal_hook::consts::{SIGINT, SIGTERM};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// How long a signal waits for its effect at most.
const PAUSE_MAX: Duration = Duration::from_millis(200);

/// Print every committed change, in order, until Ctrl-C
#[derive(Debug, Args)]
#[command(
    after_help = "A line: position, time (UTC), what, store and inode (or table and key), path. \
        Keep the position of the last
change that you have dealt with, and resume with --since. The feed keeps the last million changes \
and the
last 24 hours, whichever is less. Paths are those of now. --json prints one document per line.
Example: larder watch photos.larder --enable"
)]
pub(crate) struct WatchArgs {
    /// Database to follow
    #[arg(value_hint = ValueHint::DirPath)]
    pub(crate) db: PathBuf,
    /// Begin behind this position [default: what comes from now on; with --once: all that is kept]
    #[arg(long, value_name = "POSITION")]
    pub(crate) since: Option<u64>,
    /// Print what is there, and end
    #[arg(long)]
    pub(crate) once: bool,
    /// Go on until Ctrl-C: the default
    #[arg(long, conflicts_with = "once")]
    pub(crate) follow: bool,
    /// Switch the feed on first, for everybody; it stays on
    #[arg(long)]
    pub(crate) enable: bool,
    /// Switch the feed off, and end
    #[arg(long, conflicts_with_all = ["enable", "since", "once", "follow", "table", "no_table"])]
    pub(crate) disable: bool,
    /// Also tell what SQL does to the rows of this table of yours, from now on; may be repeated
    #[arg(long, value_name = "TABLE")]
    pub(crate) table: Vec<String>,
    /// Tell of this table no longer
    #[arg(long, value_name = "TABLE")]
    pub(crate) no_table: Vec<String>,
}

/// `larder watch`.
pub(crate) fn watch(args: &WatchArgs, out: &mut Output) -> Result<()> {
    let stopping = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, stopping.clone())
            .at(|| "cannot listen to signals".into())?;
    }
    with_database(&args.db, "watch", |database| {
        if args.disable {
            database.feed().set(false)?;
            return Ok(());
        }
        if args.enable {
            database.feed().set(true)?;
        }
        let bounds = database.feed().bounds()?;
        if !bounds.is_on {
            let since_there = args.once && bounds.newest > 0;
            if !since_there {
                return Err(Failure::Other(format!(
                    "the change feed of '{0}' is off; switch it on with 'larder watch {0} \
                     --enable'",
                    args.db.display()
                )));
            }
        }
        for table in &args.no_table {
            database.sql().watch_table(table, false)?;
        }
        for table in &args.table {
            database.sql().watch_table(table, true)?;
        }
        let since = match (args.since, args.once) {
            (Some(since), _) => since,
            (None, true) => bounds.oldest,
            (None, false) => bounds.newest,
        };
        follow(database, since, args.once, &stopping, out)
    })
}

fn follow(
    database: &Database,
    since: u64,
    is_once: bool,
    stopping: &AtomicBool,
    out: &mut Output,
) -> Result<()> {
    let mut changes = database.feed().changes(since);
    while !stopping.load(Ordering::Relaxed) {
        let printer = Printer::new(database)?;
        for change in changes.by_ref() {
            printer.print(&change?, out)?;
            if stopping.load(Ordering::Relaxed) {
                break;
            }
        }
        out.flush()?;
        if is_once {
            return Ok(());
        }
        changes.wait(PAUSE_MAX)?;
    }
    if !out.is_json() {
        let position = changes.position();
        warn(&format!(
            "position {position}; resume with --since {position}"
        ));
    }
    Ok(())
}

/// Prints changes, with the names of stores.
struct Printer<'d> {
    database: &'d Database,
    stores: Vec<(StoreId, String)>,
}

impl<'d> Printer<'d> {
    fn new(database: &'d Database) -> Result<Printer<'d>> {
        let stores = database.stores().list()?.into_iter();
        Ok(Printer {
            database,
            stores: stores.map(|info| (info.store, info.name)).collect(),
        })
    }

    fn print(&self, change: &FeedChange, out: &mut Output) -> Result<()> {
        let told = self.told(change)?;
        if out.is_json() {
            return out.document(&told.json(change));
        }
        let mut line = format!(
            "{}  {}  {}",
            change.seq,
            show_time(change.at_ns),
            told.operation
        )
        .into_bytes();
        line.extend(told.subject().as_bytes());
        if let Some(from) = &told.from {
            line.extend([b"  ", from.as_slice(), b" ->"].concat());
        }
        if let Some(path) = &told.path {
            line.extend([b"  ", path.as_slice()].concat());
        }
        if let Some(attribute) = &told.attribute {
            line.extend([b"  ", attribute.as_slice()].concat());
        }
        out.name_line(&line)
    }

    fn told(&self, change: &FeedChange) -> Result<Told> {
        match &change.event {
            FeedEvent::Begin => Ok(Told::new("begin")),
            FeedEvent::End => Ok(Told::new("end")),
            FeedEvent::Object(record) => self.told_object(record),
            FeedEvent::Row {
                table,
                key,
                operation,
            } => {
                let store = self.stores.iter().find(|(_, name)| name == table);
                // Rows of other tables have numbers, too.
                if let (Some((store, name)), SqlValue::Integer(ino)) = (store, key) {
                    let node = NodeId {
                        store: *store,
                        ino: Ino(ino.unsigned_abs()),
                    };
                    return Ok(Told {
                        store: Some((name.clone(), node.ino)),
                        path: self.database.nodes().path(node)?,
                        ..Told::new(operation)
                    });
                }
                Ok(Told {
                    row: Some((table.clone(), key.clone())),
                    ..Told::new(operation)
                })
            }
        }
    }

    fn told_object(&self, record: &ChangeRecord) -> Result<Told> {
        let name = self.stores.iter().find(|(id, _)| *id == record.store);
        let name = name.map_or_else(|| record.store.to_string(), |(_, name)| name.clone());
        let of_entry = |entry: &Entry| -> Result<Option<Vec<u8>>> {
            let parent = NodeId {
                store: record.store,
                ino: entry.parent,
            };
            let directory = self.database.nodes().path(parent)?;
            Ok(directory.map(|mut path| {
                if path != b"/" {
                    path.push(b'/');
                }
                path.extend(entry.name.as_bytes());
                path
            }))
        };
        let node = NodeId {
            store: record.store,
            ino: record.ino,
        };
        let mut told = Told::new("");
        told.store = Some((name, record.ino));
        told.operation = match &record.operation {
            Operation::Create { kind, entry } => {
                told.kind = Some(kind.as_str());
                told.entry.clone_from(entry);
                "create"
            }
            Operation::Link(entry) => {
                told.entry = Some(entry.clone());
                "link"
            }
            Operation::Rename { from, to } => {
                told.from = of_entry(from)?;
                told.from_entry = Some(from.clone());
                told.entry = Some(to.clone());
                "rename"
            }
            Operation::Remove(entry) => {
                told.entry = Some(entry.clone());
                "remove"
            }
            Operation::Delete => "delete",
            Operation::Content => "content",
            Operation::Attributes => "attributes",
            Operation::Xattr(name) => {
                told.attribute = Some(name.clone());
                "xattr"
            }
        }
        .into();
        told.path = match &told.entry {
            Some(entry) => of_entry(entry)?,
            None => self.database.nodes().path(node)?,
        };
        Ok(told)
    }
}

/// What is told of a change.
struct Told {
    operation: String,
    store: Option<(String, Ino)>,
    kind: Option<&'static str>,
    path: Option<Vec<u8>>,
    entry: Option<Entry>,
    from: Option<Vec<u8>>,
    from_entry: Option<Entry>,
    attribute: Option<Vec<u8>>,
    row: Option<(String, SqlValue)>,
}

impl Told {
    fn new(operation: &str) -> Told {
        Told {
            operation: operation.into(),
            store: None,
            kind: None,
            path: None,
            entry: None,
            from: None,
            from_entry: None,
            attribute: None,
            row: None,
        }
    }

    fn subject(&self) -> String {
        match (&self.store, &self.row) {
            (Some((store, ino)), _) => format!("  {store} {ino}"),
            (None, Some((table, key))) => format!("  {table} {}", json_value(key)),
            (None, None) => String::new(),
        }
    }

    fn json(&self, change: &FeedChange) -> Value {
        let mut object = Map::new();
        object.insert("seq".into(), change.seq.into());
        object.insert("at_ns".into(), change.at_ns.into());
        object.insert("time".into(), show_time(change.at_ns).into());
        if let Some(commit) = change.commit_seq {
            object.insert("commit".into(), commit.0.into());
        }
        object.insert("op".into(), self.operation.as_str().into());
        if let Some((store, ino)) = &self.store {
            object.insert("store".into(), store.as_str().into());
            object.insert("ino".into(), ino.0.into());
        }
        if let Some(kind) = self.kind {
            object.insert("kind".into(), kind.into());
        }
        if let Some((table, key)) = &self.row {
            object.insert("table".into(), table.as_str().into());
            object.insert("key".into(), json_value(key));
        }
        for (prefix, path, entry) in [
            ("", &self.path, &self.entry),
            ("from_", &self.from, &self.from_entry),
        ] {
            if let Some(path) = path {
                put_name(&mut object, &format!("{prefix}path"), path);
            }
            if let Some(entry) = entry {
                object.insert(format!("{prefix}parent"), entry.parent.0.into());
                put_name(&mut object, &format!("{prefix}name"), entry.name.as_bytes());
            }
        }
        if let Some(attribute) = &self.attribute {
            put_name(&mut object, "attribute", attribute);
        }
        object.into()
    }
}

fn json_value(value: &SqlValue) -> Value {
    match value {
        SqlValue::Null => Value::Null,
        SqlValue::Integer(number) => (*number).into(),
        SqlValue::Real(number) => (*number).into(),
        SqlValue::Text(text) => text.as_str().into(),
        SqlValue::Blob(bytes) => {
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            hex.into()
        }
    }
}
