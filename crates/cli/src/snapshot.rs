//! `larder snapshot`: moments with a name.

use crate::databases::with_database;
use crate::error::{At, Result};
use crate::output::{Align, Output, Table};
use crate::units::show_time;
use clap::{Subcommand, ValueHint};
use larder::{Database, ErrorKind, SnapshotRow};
use serde_json::{Value, json};
use std::path::PathBuf;

/// What to do with snapshots.
#[derive(Debug, Subcommand)]
pub(crate) enum SnapshotVerb {
    /// Name the present; DB@NAME:/path then reads it, until the snapshot is destroyed
    #[command(after_help = "Example: larder snapshot create photos.larder before-upgrade")]
    Create {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// Its name: letters, digits, '_', '-' and '.', beginning with a letter
        name: String,
    },
    /// List snapshots, oldest first
    #[command(after_help = "Example: larder snapshot list photos.larder")]
    List {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
    },
    /// End a snapshot: the retention alone says then how long its moment stays readable
    #[command(after_help = "Example: larder snapshot destroy photos.larder before-upgrade")]
    Destroy {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// Its name
        name: String,
        /// Only say what would be done
        #[arg(long)]
        dry_run: bool,
    },
    /// Keep a snapshot from being destroyed
    #[command(after_help = "Example: larder snapshot hold photos.larder before-upgrade audit")]
    Hold {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// Its name
        name: String,
        /// Why, in one word
        tag: String,
    },
    /// End a hold
    #[command(after_help = "Example: larder snapshot release photos.larder before-upgrade audit")]
    Release {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// The name of the snapshot
        name: String,
        /// The word it is held by
        tag: String,
    },
}

/// `larder snapshot …`.
pub(crate) fn snapshot(verb: &SnapshotVerb, out: &mut Output) -> Result<()> {
    match verb {
        SnapshotVerb::Create { db, name } => with_database(db, "snapshot create", |database| {
            let row = database
                .create_snapshot(name)
                .at(|| format!("cannot make snapshot '{name}'"))?;
            match out.is_json() {
                true => out.document(&document(&row)),
                false => out.line(&format!(
                    "snapshot {} is of commit {}, {}",
                    row.name,
                    row.seq,
                    show_time(row.at_ns)
                )),
            }
        }),
        SnapshotVerb::List { db } => with_database(db, "snapshot list", |database| {
            let rows = database.snapshots()?;
            if out.is_json() {
                let all: Vec<Value> = rows.iter().map(document).collect();
                return out.document(&Value::Array(all));
            }
            let mut table = Table::new(&[Align::Left, Align::Right, Align::Left, Align::Left]);
            for row in &rows {
                table.row(vec![
                    row.name.clone(),
                    row.seq.to_string(),
                    show_time(row.at_ns),
                    row.holds.join(", "),
                ]);
            }
            let lines = table.take_lines();
            lines.iter().try_for_each(|line| out.line(line))
        }),
        SnapshotVerb::Destroy { db, name, dry_run } => {
            with_database(db, "snapshot destroy", |database| {
                let cannot = || format!("cannot destroy snapshot '{name}'");
                match dry_run {
                    true => {
                        let row = destroyable(database, name).at(cannot)?;
                        out.line(&format!(
                            "snapshot {} of commit {} would be destroyed",
                            row.name, row.seq
                        ))
                    }
                    false => database.destroy_snapshot(name).at(cannot),
                }
            })
        }
        SnapshotVerb::Hold { db, name, tag } => with_database(db, "snapshot hold", |database| {
            database
                .hold_snapshot(name, tag)
                .at(|| format!("cannot hold snapshot '{name}'"))
        }),
        SnapshotVerb::Release { db, name, tag } => {
            with_database(db, "snapshot release", |database| {
                database
                    .release_snapshot(name, tag)
                    .at(|| format!("cannot release snapshot '{name}'"))
            })
        }
    }
}

/// The snapshot of that name, if it can be destroyed now.
fn destroyable(database: &Database, name: &str) -> larder::Result<SnapshotRow> {
    let rows = database.snapshots()?;
    let Some(row) = rows
        .into_iter()
        .find(|row| row.name.eq_ignore_ascii_case(name))
    else {
        return Err(larder::Error::new(
            ErrorKind::NotFound,
            "there is no such snapshot; 'larder snapshot list' shows those there are",
        ));
    };
    match row.holds.is_empty() {
        true => Ok(row),
        false => Err(larder::Error::new(
            ErrorKind::InvalidInput,
            format!(
                "it is held by {}; release it first ('larder snapshot release')",
                row.holds.join(", ")
            ),
        )),
    }
}

fn document(row: &SnapshotRow) -> Value {
    json!({
        "name": row.name,
        "seq": row.seq.0,
        "at_ns": row.at_ns,
        "created_ns": row.created_ns,
        "holds": row.holds,
    })
}
