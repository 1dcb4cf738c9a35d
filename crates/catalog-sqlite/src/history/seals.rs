//! Seals: the chain of digests over snapshots, and the rows that digests are made of, byte for
//! byte.
//!
//! What a digest is of is decided above; here are the rows.
//!
//! # Invariants
//! * `SEAL-1` Links are numbered from 1 without a gap, and each names the one before (`previous`).
//!   *Guard*: a link is added only behind the one that it was made for; none is deleted; `check`
//!   compares neighbours.
//! * `SEAL-2` The bytes of a row are the same as long as its values are, whatever the schema has
//!   besides: each value with its type and length, NULL left out; a page of a map that is shared
//!   counts as the page. *Guard*: the columns are named here, or by the seal.

use crate::CatalogHistory;
use crate::conn::meta::of_stores;
use crate::error::{At, CatalogError, Result};
use crate::history::versions::first_row_after;
use crate::history::{BEGINS, history_begins};
use crate::space::map_pages::resolved;
use crate::temporal::PastRows;
use crate::types::codec::{rows, signed, unsigned};
use larder_format::{CommitSeq, StoreId};
use rusqlite::types::ValueRef;
use rusqlite::{Connection, OptionalExtension, Row, params};

const TABLE: &str = "larder_seal";
const PARTS: &str = "larder_sealed";
/// Moments, in the place of a store.
const MOMENTS: i64 = -1;
/// Rows of temporal tables.
const ROWS: i64 = -2;

/// A link of the chain.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealRow {
    /// From 1 on.
    pub number: u64,
    /// The snapshot's name.
    pub snapshot: String,
    /// The commit whose state it shows.
    pub seq: CommitSeq,
    /// When that was made, nanoseconds since 1970.
    pub at_ns: i64,
    /// When it was sealed.
    pub sealed_ns: i64,
    /// The digest of the state.
    pub state: [u8; 32],
    /// The link before; zeros: there is none.
    pub previous: [u8; 32],
    /// The digest of all of it.
    pub link: [u8; 32],
    /// A public key, and what its owner signed the link with.
    pub signature: Option<([u8; 32], [u8; 64])>,
    /// The snapshot was destroyed since.
    pub is_destroyed: bool,
}

/// Of what a part of a seal is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum SealedKind {
    /// The tree of a store.
    Store,
    /// The entries of a directory: says where a difference is.
    Directory,
    /// The rows of a temporal table.
    Table,
    /// What some commits superseded in a store; -1: their moments; -2: rows of tables.
    History,
}

impl SealedKind {
    /// The word in the catalog.
    pub fn as_str(self) -> &'static str {
        match self {
            SealedKind::Store => "store",
            SealedKind::Directory => "directory",
            SealedKind::Table => "table",
            SealedKind::History => "history",
        }
    }
}

/// A part of what is sealed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SealedPart {
    /// Of what.
    pub kind: SealedKind,
    /// The store; see [`SealedKind::History`]; of a table 0.
    pub store: i64,
    /// The directory, the table's number, or the last commit.
    pub number: u64,
    /// Of history: the commits after this one.
    pub from: CommitSeq,
    /// The name of the store or table.
    pub name: String,
    /// The columns of a table.
    pub columns: Vec<String>,
    /// Entries, rows.
    pub entry_count: u64,
    /// The digest.
    pub digest: [u8; 32],
    /// Twelve bytes for each entry of a directory or row of a table, in their order.
    pub hints: Vec<u8>,
}

/// A row of the history, for a digest.
#[derive(Debug, Clone, Copy)]
pub struct KeptRow<'a> {
    /// The commit that superseded it.
    pub until: CommitSeq,
    /// The store; -1: the moment of a commit, the last row of it; -2: a row of a table.
    pub owner: i64,
    /// `SEAL-2`.
    pub bytes: &'a [u8],
}

/// Where what the history has of commits begins.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Beginnings {
    /// Of all stores, and of moments and tables.
    pub all: CommitSeq,
    /// Of stores whose history begins later.
    pub stores: Vec<(StoreId, CommitSeq)>,
}

impl Beginnings {
    /// Of an owner of rows ([`KeptRow::owner`]).
    pub fn of(&self, owner: i64) -> CommitSeq {
        let own = self.stores.iter();
        let mut own = own.filter(|(store, _)| i64::from(store.0) == owner);
        own.next().map_or(self.all, |(_, at)| self.all.max(*at))
    }
}

impl CatalogHistory<'_> {
    /// All links, oldest first.
    pub fn seals(&self) -> Result<Vec<SealRow>> {
        self.catalog.read(|reader| {
            let found = rows(
                reader,
                "SELECT number, snapshot, seq, at_ns, sealed_ns, state, previous, link, \
                 public_key, signature, \
                 is_destroyed FROM larder_seal ORDER BY number",
                [],
                seal_row,
            );
            found.at(TABLE)
        })
    }

    /// Adds a link with its parts; `false`: another one came before it, and nothing was done
    /// (`SEAL-1`). One row for each part, about 10 µs.
    pub fn add_seal(&self, seal: &SealRow, parts: &[SealedPart]) -> Result<bool> {
        self.catalog.write(|txn| {
            let newest: Option<(i64, [u8; 32])> = txn
                .query_row(
                    "SELECT number, link FROM larder_seal ORDER BY number DESC LIMIT 1",
                    [],
                    |row| Ok((row.get(0)?, row.get(1)?)),
                )
                .optional()
                .at(TABLE)?;
            let (number, previous) = newest.unwrap_or((0, [0; 32]));
            if seal.number != number as u64 + 1 || seal.previous != previous {
                return Ok(false);
            }
            let is_there = txn
                .prepare("SELECT 1 FROM larder_snapshot WHERE name = ?1 AND seq = ?2")
                .and_then(|mut find| find.exists(params![seal.snapshot, signed(seal.seq.0)]))
                .at("larder_snapshot")?;
            if !is_there {
                return Err(CatalogError::not_found(format!(
                    "snapshot '{}' (it was destroyed while it was sealed)",
                    seal.snapshot
                )));
            }
            insert(txn, seal, parts)?;
            Ok(true)
        })
    }

    /// The parts of a seal, of one kind, in the order of the state.
    pub fn sealed_parts(&self, seal: u64, kind: SealedKind) -> Result<Vec<SealedPart>> {
        self.catalog.read(|reader| {
            let sql = format!(
                "{SELECT_PART} WHERE seal = ?1 AND what = ?2 ORDER BY from_seq, store, number"
            );
            let found = rows(reader, &sql, params![signed(seal), kind.as_str()], |row| {
                part(row, kind)
            });
            found.at(PARTS)
        })
    }

    /// What was sealed of a directory.
    pub fn sealed_directory(
        &self,
        seal: u64,
        store: i64,
        number: u64,
    ) -> Result<Option<SealedPart>> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached(&format!(
                    "{SELECT_PART} WHERE seal = ?1 AND what = 'directory' AND store = ?2 AND \
                     number = ?3"
                ))
                .and_then(|mut find| {
                    find.query_row(params![signed(seal), store, signed(number)], |row| {
                        part(row, SealedKind::Directory)
                    })
                    .optional()
                })
                .at(PARTS)
        })
    }

    /// Visits what the history has of the commits after `after`, up to `upto`, in its order, and
    /// says where it begins; both are whole commits, or `after` is before all. What cannot be read
    /// any more is not there: [`CatalogHistory::history_begins`]. Cost: about 1 µs a row.
    pub fn for_each_kept(
        &self,
        after: CommitSeq,
        upto: CommitSeq,
        visit: &mut dyn FnMut(KeptRow<'_>),
    ) -> Result<Beginnings> {
        self.catalog.read(|reader| {
            let state = reader.unchecked_transaction().at(PARTS)?;
            let begins = history_begins(&state)?.0;
            let first = first_row_after(&state, after.max(begins))?;
            let mut list = state
                .prepare_cached(&format!(
                    "SELECT until_seq, iif(what = 'redo', '{}', what), store, ino, key, since_seq, \
                     CASE WHEN what = 'map' THEN {} ELSE value END, extra, kind, mode, uid, gid, \
                     nlink, size, \
                     blocks, atime_ns, mtime_ns, ctime_ns, btime_ns, rdev FROM larder_history \
                     WHERE id >= ?1 ORDER BY id",
                    larder_format_one::REDO_ROW.0, // As the first seals were made.
                    resolved("main", "value")
                ))
                .at(PARTS)?;
            let mut found = list.query([first]).at(PARTS)?;
            let mut bytes = Vec::new();
            while let Some(row) = found.next().at(PARTS)? {
                let until = CommitSeq(unsigned(row, 0).at(PARTS)?);
                if until > upto {
                    break;
                }
                let what: String = row.get(1).at(PARTS)?;
                let owner = match (what.as_str(), row.get_ref(2).at(PARTS)?) {
                    ("commit", _) => MOMENTS,
                    ("row", _) => ROWS,
                    (_, ValueRef::Integer(store)) => store,
                    _ => return Err(CatalogError::corrupt("larder_history: a row of no store")),
                };
                encode(row, 20, &mut bytes).at(PARTS)?;
                visit(KeptRow {
                    until,
                    owner,
                    bytes: &bytes,
                });
            }
            let begun = of_stores(&state, BEGINS)?.into_iter();
            let later = begun.filter_map(|(store, at)| Some((store?, CommitSeq(at as u64))));
            Ok(Beginnings {
                all: begins,
                stores: later.collect(),
            })
        })
    }

    /// Visits the rows of a temporal table as they were, in the order of their keys: the bytes of
    /// the key, and those of `columns`. [`CatalogError::NotFound`] names a column that is gone. The
    /// memory is SQLite's, which sorts on disk.
    pub fn for_each_past_row(
        &self,
        past: &PastRows,
        columns: &[String],
        visit: &mut dyn FnMut(&[u8], &[u8]),
    ) -> Result<()> {
        let gone = columns.iter().find(|name| !past.columns.contains(name));
        if let Some(name) = gone {
            return Err(CatalogError::not_found(format!(
                "column '{name}' of table '{}'",
                past.table
            )));
        }
        let quoted = |name: &String| format!(", \"{}\"", name.replace('"', "\"\""));
        let sql = format!(
            "SELECT larder_key{} FROM ({}) ORDER BY larder_key COLLATE BINARY",
            columns.iter().map(quoted).collect::<String>(),
            past.select
        );
        self.catalog.read(|reader| {
            let mut list = reader.prepare(&sql).at(&past.table)?;
            let mut found = list.query([]).at(&past.table)?;
            let (mut key, mut bytes) = (Vec::new(), Vec::new());
            while let Some(row) = found.next().at(&past.table)? {
                encode(row, 1, &mut key).at(&past.table)?;
                encode(row, columns.len() + 1, &mut bytes).at(&past.table)?;
                visit(&key, &bytes);
            }
            Ok(())
        })
    }
}

const SELECT_PART: &str =
    "SELECT store, number, from_seq, name, columns, entry_count, digest, hints FROM larder_sealed";

fn part(row: &Row<'_>, kind: SealedKind) -> rusqlite::Result<SealedPart> {
    let columns: String = row.get(4)?;
    Ok(SealedPart {
        kind,
        store: row.get(0)?,
        number: unsigned(row, 1)?,
        from: CommitSeq(unsigned(row, 2)?),
        name: row.get(3)?,
        columns: match columns.is_empty() {
            true => Vec::new(),
            false => columns.split(BETWEEN).map(str::to_owned).collect(),
        },
        entry_count: unsigned(row, 5)?,
        digest: row.get(6)?,
        hints: row.get(7)?,
    })
}

/// Between the names of columns; SQL cannot have it in one.
const BETWEEN: char = '\0';

fn seal_row(row: &Row<'_>) -> rusqlite::Result<SealRow> {
    let (key, signature): (Option<[u8; 32]>, Option<[u8; 64]>) = (row.get(8)?, row.get(9)?);
    Ok(SealRow {
        number: unsigned(row, 0)?,
        snapshot: row.get(1)?,
        seq: CommitSeq(unsigned(row, 2)?),
        at_ns: row.get(3)?,
        sealed_ns: row.get(4)?,
        state: row.get(5)?,
        previous: row.get(6)?,
        link: row.get(7)?,
        signature: key.zip(signature),
        is_destroyed: row.get(10)?,
    })
}

fn insert(txn: &Connection, seal: &SealRow, parts: &[SealedPart]) -> Result<()> {
    txn.execute(
        "INSERT INTO larder_seal (number, snapshot, seq, at_ns, sealed_ns, state, previous, link, \
         public_key, signature) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        params![
            signed(seal.number),
            seal.snapshot,
            signed(seal.seq.0),
            seal.at_ns,
            seal.sealed_ns,
            seal.state,
            seal.previous,
            seal.link,
            seal.signature.map(|(key, _)| key),
            seal.signature.map(|(_, signature)| signature),
        ],
    )
    .at(TABLE)?;
    let mut add = txn
        .prepare_cached(
            "INSERT INTO larder_sealed (seal, what, store, number, from_seq, name, columns, \
             entry_count, digest, hints) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)",
        )
        .at(PARTS)?;
    for part in parts {
        add.execute(params![
            signed(seal.number),
            part.kind.as_str(),
            part.store,
            signed(part.number),
            signed(part.from.0),
            part.name,
            part.columns.join(&BETWEEN.to_string()),
            signed(part.entry_count),
            part.digest,
            part.hints,
        ])
        .at(PARTS)?;
    }
    Ok(())
}

/// A snapshot is destroyed: its links stay, what says where a difference would be goes (`SEAL-1`).
pub(crate) fn note_destroyed(txn: &Connection, snapshot: &str) -> Result<()> {
    txn.execute(
        "DELETE FROM larder_sealed WHERE what = 'directory' AND seal IN \
         (SELECT number FROM larder_seal WHERE snapshot = ?1)",
        [snapshot],
    )
    .at(PARTS)?;
    txn.execute(
        "UPDATE larder_seal SET is_destroyed = 1 WHERE snapshot = ?1",
        [snapshot],
    )
    .at(TABLE)
    .map(drop)
}

/// The bytes of the first `count` columns of a row, or of one column (`SEAL-2`).
fn encode(row: &Row<'_>, count: usize, bytes: &mut Vec<u8>) -> rusqlite::Result<()> {
    bytes.clear();
    for index in 0..count {
        let (kind, length) = match row.get_ref(index)? {
            ValueRef::Null => continue,
            ValueRef::Integer(_) => (1, 8),
            ValueRef::Real(_) => (2, 8),
            ValueRef::Text(text) => (3, text.len()),
            ValueRef::Blob(blob) => (4, blob.len()),
        };
        bytes.extend((index as u16).to_le_bytes());
        bytes.push(kind);
        bytes.extend((length as u64).to_le_bytes());
        match row.get_ref(index)? {
            ValueRef::Null => {}
            ValueRef::Integer(value) => bytes.extend(value.to_le_bytes()),
            // Both zeros are one: an image does not tell them apart.
            ValueRef::Real(value) => bytes.extend((value + 0.0).to_le_bytes()),
            ValueRef::Text(value) | ValueRef::Blob(value) => bytes.extend(value),
        }
    }
    Ok(())
}
