//! Snapshots: moments with a name, and the holds that keep them.

use crate::CatalogHistory;
use crate::error::{At, CatalogError, Result};
use crate::history::seals;
use crate::history::snapshot_stores::{own_snapshot, shown_by};
use crate::past::{present, resolve};
use crate::types::codec::{rows, signed, unsigned};
use crate::types::moment::Moment;
use larder_format::CommitSeq;
use rusqlite::{Connection, params};

/// A snapshot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotRow {
    /// Its name, unique without regard to case.
    pub name: String,
    /// The commit whose state it shows.
    pub seq: CommitSeq,
    /// When that commit was made, nanoseconds since 1970.
    pub at_ns: i64,
    /// When the snapshot was made.
    pub created_ns: i64,
    /// Why it must not be destroyed, sorted.
    pub holds: Vec<String>,
}

impl CatalogHistory<'_> {
    /// Names the newest whole commit. One row; nothing is copied. [`CatalogError::Exists`] when the
    /// name is taken; [`CatalogError::Invalid`] without history, and for a name that a moment could
    /// not be written with.
    pub fn create_snapshot(&self, name: &str, now_ns: i64) -> Result<SnapshotRow> {
        self.create_at(name, now_ns, present)
    }

    /// The same for the newest whole commit at or before a moment. Errors as of
    /// [`crate::CatalogPast::resolve_moment`] too.
    pub fn snapshot_moment(&self, name: &str, moment: &Moment, now_ns: i64) -> Result<SnapshotRow> {
        self.create_at(name, now_ns, |txn| resolve(txn, moment, now_ns))
    }

    fn create_at(
        &self,
        name: &str,
        now_ns: i64,
        find: impl FnOnce(&Connection) -> Result<(CommitSeq, i64)>,
    ) -> Result<SnapshotRow> {
        check_name(name)?;
        self.catalog.write(|txn| {
            let (seq, at_ns) = find(txn)?;
            if exists(txn, name)? {
                return Err(CatalogError::Exists {
                    what: format!("a snapshot '{name}'"),
                });
            }
            txn.execute(
                "INSERT INTO larder_snapshot (name, seq, at_ns, created_ns) VALUES (?1, ?2, ?3, \
                 ?4)",
                params![name, signed(seq.0), at_ns, now_ns],
            )
            .at("larder_snapshot")?;
            Ok(SnapshotRow {
                name: name.into(),
                seq,
                at_ns,
                created_ns: now_ns,
                holds: Vec::new(),
            })
        })
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        self.catalog.read(|reader| {
            let mut found: Vec<SnapshotRow> = rows(
                reader,
                "SELECT name, seq, at_ns, created_ns FROM larder_snapshot ORDER BY seq, \
                 created_ns, name",
                [],
                |row| {
                    Ok(SnapshotRow {
                        name: row.get(0)?,
                        seq: CommitSeq(unsigned(row, 1)?),
                        at_ns: row.get(2)?,
                        created_ns: row.get(3)?,
                        holds: Vec::new(),
                    })
                },
            )
            .at("larder_snapshot")?;
            let holds: Vec<(String, String)> = rows(
                reader,
                "SELECT snapshot, tag FROM larder_hold ORDER BY snapshot, tag",
                [],
                |row| Ok((row.get(0)?, row.get(1)?)),
            )
            .at("larder_hold")?;
            for (snapshot, tag) in holds {
                let held = found
                    .iter_mut()
                    .find(|row| row.name.eq_ignore_ascii_case(&snapshot));
                if let Some(held) = held {
                    held.holds.push(tag);
                }
            }
            Ok(found)
        })
    }

    /// Ends a snapshot; what only it kept goes with the next reclaim. Refuses while it is held.
    pub fn destroy_snapshot(&self, name: &str) -> Result<()> {
        self.catalog.write(|txn| {
            require(txn, name)?;
            if let Some(store) = shown_by(txn, name)? {
                return Err(CatalogError::invalid(format!(
                    "snapshot '{name}' is what store '{store}' shows; destroy that store first \
                     ('larder store destroy')"
                )));
            }
            let holds: Vec<String> = rows(
                txn,
                "SELECT tag FROM larder_hold WHERE snapshot = ?1 ORDER BY tag",
                [name],
                |row| row.get(0),
            )
            .at("larder_hold")?;
            if !holds.is_empty() {
                return Err(CatalogError::invalid(format!(
                    "snapshot '{name}' is held by {}; release it first ('larder snapshot release')",
                    holds.join(", ")
                )));
            }
            txn.execute("DELETE FROM larder_snapshot WHERE name = ?1", [name])
                .at("larder_snapshot")?;
            seals::note_destroyed(txn, name)
        })
    }

    /// Holds a snapshot under a tag, so that it cannot be destroyed; twice is no error.
    pub fn hold_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        check_name(tag)?;
        self.catalog.write(|txn| {
            require(txn, name)?;
            txn.execute(
                "INSERT INTO larder_hold (snapshot, tag) VALUES (?1, ?2) ON CONFLICT DO NOTHING",
                [name, tag],
            )
            .at("larder_hold")
            .map(drop)
        })
    }

    /// Ends a hold.
    pub fn release_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        self.catalog.write(|txn| {
            require(txn, name)?;
            if let Some(store) = shown_by(txn, name)?
                && tag.eq_ignore_ascii_case(&own_snapshot(&store))
            {
                return Err(CatalogError::invalid(format!(
                    "hold '{tag}' is that of store '{store}', which shows the snapshot; it ends \
                     with the store \
                     ('larder store destroy')"
                )));
            }
            let gone = txn
                .execute(
                    "DELETE FROM larder_hold WHERE snapshot = ?1 AND tag = ?2",
                    [name, tag],
                )
                .at("larder_hold")?;
            match gone {
                0 => Err(CatalogError::not_found(format!(
                    "hold '{tag}' of snapshot '{name}'"
                ))),
                _ => Ok(()),
            }
        })
    }
}

/// A name stands in addresses, `DB@NAME:/path`, where a time may stand too.
fn check_name(name: &str) -> Result<()> {
    let is_allowed = |c: char| c.is_alphanumeric() || matches!(c, '_' | '-' | '.');
    let is_good = name.starts_with(|c: char| c.is_alphabetic() || c == '_')
        && name.chars().all(is_allowed)
        && name.len() <= NAME_BYTES_MAX;
    match is_good {
        true => Ok(()),
        false => Err(CatalogError::invalid(format!(
            "'{name}' cannot be a name here; use letters, digits, '_', '-' and '.', beginning \
             with a letter, at \
             most {NAME_BYTES_MAX} bytes"
        ))),
    }
}

/// Bytes of a name of a snapshot or a hold at most.
const NAME_BYTES_MAX: usize = 128;

fn exists(txn: &Connection, name: &str) -> Result<bool> {
    txn.prepare("SELECT 1 FROM larder_snapshot WHERE name = ?1")
        .and_then(|mut find| find.exists([name]))
        .at("larder_snapshot")
}

fn require(txn: &Connection, name: &str) -> Result<()> {
    match exists(txn, name)? {
        true => Ok(()),
        false => Err(CatalogError::not_found(format!("snapshot '{name}'"))),
    }
}
