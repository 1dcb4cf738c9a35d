//! `larder snapshot`: moments with a name.

use crate::databases::with_database;
use crate::error::{At, Result};
use crate::output::{Align, Output, Table};
use crate::seal::{VerifyArgs, keygen, read_key, seal_one, verify};
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
        /// Seal it too, as 'larder snapshot seal' does
        #[arg(long)]
        seal: bool,
        /// The private key that signs the seal
        #[arg(long, value_name = "FILE", requires = "seal", value_hint = ValueHint::FilePath)]
        sign: Option<PathBuf>,
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
    /// Write a digest over all that a snapshot shows, so that what is changed behind it is found
    #[command(
        after_help = "Reads all its content. The digests are a chain: each is also over the one \
            before, and over the history since.
Who can write the database can write another chain, so write the printed link down elsewhere, or \
sign it. A store that the
snapshot does not show, since its history begins later, is left out, and named.
Example: larder snapshot seal photos.larder before-upgrade --sign auditor.key"
    )]
    Seal {
        /// Database
        #[arg(value_hint = ValueHint::DirPath)]
        db: PathBuf,
        /// The name of the snapshot
        name: String,
        /// The private key that signs it, which 'larder snapshot keygen' makes
        #[arg(long, value_name = "FILE", value_hint = ValueHint::FilePath)]
        sign: Option<PathBuf>,
    },
    /// Read sealed snapshots again, and name what is not as it was sealed
    #[command(
        after_help = "Ends with exit code 1 when there is a finding. Without --expect or \
            --public-key it shows that the seals and the
snapshots belong together, not that nobody made both anew.
Example: larder snapshot verify photos.larder --all --public-key auditor.key.pub"
    )]
    Verify(VerifyArgs),
    /// Make a key for seals: FILE, which must be kept secret, and FILE.pub
    #[command(after_help = "Example: larder snapshot keygen auditor.key")]
    Keygen {
        /// Where the private key goes
        #[arg(value_hint = ValueHint::FilePath)]
        file: PathBuf,
    },
}

/// `larder snapshot …`.
pub(crate) fn snapshot(verb: &SnapshotVerb, out: &mut Output) -> Result<()> {
    match verb {
        SnapshotVerb::Create {
            db,
            name,
            seal,
            sign,
        } => {
            let key = sign.as_deref().map(read_key).transpose()?;
            with_database(db, "snapshot create", |database| {
                let row = database
                    .snapshots()
                    .create(name)
                    .at(|| format!("cannot make snapshot '{name}'"))?;
                match (out.is_json(), seal) {
                    (true, true) => {}
                    (true, false) => out.document(&document(&row))?,
                    (false, _) => out.line(&format!(
                        "snapshot {} is of commit {}, {}",
                        row.name,
                        row.seq,
                        show_time(row.at_ns)
                    ))?,
                }
                match seal {
                    true => seal_one(database, name, key.as_ref(), out),
                    false => Ok(()),
                }
            })
        }
        SnapshotVerb::Seal { db, name, sign } => {
            let key = sign.as_deref().map(read_key).transpose()?;
            with_database(db, "snapshot seal", |database| {
                seal_one(database, name, key.as_ref(), out)
            })
        }
        SnapshotVerb::Verify(args) => verify(args, out),
        SnapshotVerb::Keygen { file } => keygen(file, out),
        SnapshotVerb::List { db } => with_database(db, "snapshot list", |database| {
            let rows = database.snapshots().list()?;
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
                    false => database.snapshots().destroy(name).at(cannot),
                }
            })
        }
        SnapshotVerb::Hold { db, name, tag } => with_database(db, "snapshot hold", |database| {
            database
                .snapshots()
                .hold(name, tag)
                .at(|| format!("cannot hold snapshot '{name}'"))
        }),
        SnapshotVerb::Release { db, name, tag } => {
            with_database(db, "snapshot release", |database| {
                database
                    .snapshots()
                    .release(name, tag)
                    .at(|| format!("cannot release snapshot '{name}'"))
            })
        }
    }
}

/// The snapshot of that name, if it can be destroyed now.
fn destroyable(database: &Database, name: &str) -> larder::Result<SnapshotRow> {
    let rows = database.snapshots().list()?;
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
