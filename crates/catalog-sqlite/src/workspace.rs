//! Long transactions: what the parent's catalog knows of them, and what a workspace's knows of
//! itself.
//!
//! # Words
//! A *long transaction* works in a *workspace*: a directory with a private copy of the catalog of
//! its *parent*, taken in one moment (the *base*), beside which the parent goes on. Content goes to
//! the parent's segments, to blocks that the parent *granted*. A *merge* ends it: it takes what the
//! workspace changed over into the parent, or lists the *conflicts* and changes nothing.
//!
//! ```text
//!  begin: row with pin, numbers ─▶ copy, prepare ─▶ changes, tracked ─▶ merge ─▶ row, grants gone
//!                                       ▲ grants, more numbers │ └─▶ conflicts: as before
//!                                       └──── short visits ────┘ └─▶ abort: row and grants gone
//! ```
//!
//! # Invariants
//! * `WORKSPACE-1` A workspace allocates only in its grants. In the parent a grant is an extent row
//!   of the store [`GRANTS`], so it is in use for everybody else. *Guard*: the free set of a
//!   workspace is its grants less its extent rows; `check` looks for grants of no transaction.
//! * `WORKSPACE-2` What the base refers to stays readable until the transaction has ended: nothing
//!   that was retired after its pin is reclaimed, and no redo row that came later is written in
//!   place. *Guard*: the pin is ≤ the copied commit, and is durable before the copy begins.
//! * `WORKSPACE-3` Of every row that is changed in a workspace its first image is kept, whoever
//!   changes it, the engine or any SQL client. *Guard*: triggers on every table (`tracking`).
//! * `WORKSPACE-4` A merge is one transaction: all that the workspace changed, or nothing. A key
//!   that both sides changed, each in another way, is a conflict. *Guard*: `merge` compares three
//!   images.
//! * `WORKSPACE-5` Inode numbers of a workspace come from ranges that its parent gave away for
//!   good, so no two inodes have one number (`CATALOG-4`).
//!
//! # Cost
//! A copy: the pages of the catalog, and a scan of its extent rows. A merge: what was touched.

mod content;
mod copy;
mod dirents;
mod files;
mod findings;
mod merge;
mod rows;
mod superseded;

pub use findings::Conflict;
pub use merge::Merged;

use crate::CatalogWorkspace;
use crate::conn::meta::{add_meta, find_meta, next_commit_seq};
use crate::error::{At, CatalogError, Result};
use crate::space::extents;
use crate::space::extents::AgChanges;
use crate::space::grants::{Grants, read_grants};
use crate::temporal::unsequenced::settle_unsequenced;
use crate::types::changes::Held;
use crate::types::codec::{rows, signed, unsigned};
use crate::types::rows::SegmentRow;
use larder_format::{CommitSeq, Extent, StoreId};
use rusqlite::{Connection, params};
use std::sync::{Arc, PoisonError};

/// The store of extent rows that are grants; their inode is the number of the transaction.
pub const GRANTS: StoreId = StoreId(u32::MAX);

/// Inode numbers that a workspace gets at a time, of each store.
pub const INO_RANGE: u64 = 1 << 20;

/// A long transaction, as its parent knows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionRow {
    /// Its number; never used again (`CATALOG-4`: sessions count with it).
    pub id: u64,
    /// The process that began it.
    pub pid: u32,
    /// What it is, for people.
    pub label: String,
    /// When it began, nanoseconds since 1970.
    pub begun_ns: i64,
    /// What was retired after this commit is kept for it (`WORKSPACE-2`).
    pub pin_seq: CommitSeq,
    /// It ends with its process.
    pub is_bound: bool,
}

/// Inode numbers of a store, from `first` on and below `end`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InoRange {
    /// The store that owns the tables.
    pub store: StoreId,
    /// The first number.
    pub first: u64,
    /// One after the last.
    pub end: u64,
}

impl CatalogWorkspace<'_> {
    // ---- the parent's side --------------------------------------------------------------------

    /// Enters a long transaction, as a commit of its own, with its pin and its first inode numbers.
    /// The caller has the writer lock, and nothing uncommitted.
    pub fn begin_transaction(
        &self,
        pid: u32,
        label: &str,
        is_bound: bool,
        now_ns: i64,
    ) -> Result<(TransactionRow, Vec<InoRange>)> {
        self.catalog.write(|txn| {
            settle_unsequenced(txn, now_ns)?; // HISTORY-6
            let pin_seq = next_commit_seq(txn)?;
            let id = add_meta(txn, "next_session", 1)? - 1; // CATALOG-4
            txn.execute(
                "INSERT INTO larder_transaction (id, pid, label, begun_ns, pin_seq, bound) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6)",
                params![signed(id), pid, label, now_ns, signed(pin_seq.0), is_bound],
            )
            .at("larder_transaction")?;
            let row = TransactionRow {
                id,
                pid,
                label: label.into(),
                begun_ns: now_ns,
                pin_seq,
                is_bound,
            };
            Ok((row, take_inos(txn)?))
        })
    }

    /// Gives away more inode numbers, as a commit of its own (`WORKSPACE-5`). The caller has the
    /// writer lock.
    pub fn give_inos(&self, now_ns: i64) -> Result<Vec<InoRange>> {
        self.catalog.write(|txn| {
            settle_unsequenced(txn, now_ns)?; // HISTORY-6
            next_commit_seq(txn)?;
            take_inos(txn)
        })
    }

    /// The long transactions that are open, oldest first.
    pub fn transactions(&self) -> Result<Vec<TransactionRow>> {
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT id, pid, label, begun_ns, pin_seq, bound FROM larder_transaction ORDER BY \
                 id",
                [],
                |row| {
                    Ok(TransactionRow {
                        id: unsigned(row, 0)?,
                        pid: row.get(1)?,
                        label: row.get(2)?,
                        begun_ns: row.get(3)?,
                        pin_seq: CommitSeq(unsigned(row, 4)?),
                        is_bound: row.get(5)?,
                    })
                },
            )
            .at("larder_transaction")
        })
    }

    /// The oldest pin of a long transaction (`WORKSPACE-2`).
    pub fn oldest_transaction_pin(&self) -> Result<Option<CommitSeq>> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached("SELECT min(pin_seq) FROM larder_transaction")
                .and_then(|mut find| find.query_row([], |row| row.get::<_, Option<i64>>(0)))
                .map(|seq| seq.map(|seq| CommitSeq(seq as u64)))
                .at("larder_transaction")
        })
    }

    /// Blocks that are granted to a transaction; `None`: to all of them. Cost: an index lookup per
    /// extent granted.
    pub fn granted_blocks(&self, id: Option<u64>) -> Result<u64> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached(
                    "SELECT coalesce(sum(block_count), 0) FROM larder_extent \
                     WHERE store = 4294967295 AND ino BETWEEN ?1 AND ?2",
                )
                .and_then(|mut sum| {
                    let (first, last) = id.map_or((0, i64::MAX), |id| (signed(id), signed(id)));
                    sum.query_row([first, last], |row| unsigned(row, 0))
                })
                .at("larder_extent")
        })
    }

    /// Ends a transaction without a trace: its grants are free, its pin is gone; one commit. The
    /// caller has the writer lock, and nobody writes to the grants any more.
    /// [`CatalogError::NotFound`] when it is not open.
    pub fn end_transaction(&self, id: u64, now_ns: i64) -> Result<CommitSeq> {
        self.catalog.write(|txn| {
            settle_unsequenced(txn, now_ns)?; // HISTORY-6
            let seq = next_commit_seq(txn)?;
            let mut ags = AgChanges::default();
            end(txn, id, &mut ags)?;
            ags.apply(txn, seq)?;
            Ok(seq)
        })
    }

    // ---- the workspace's side -----------------------------------------------------------------

    /// The number of the transaction whose workspace this is; `None`: an ordinary database.
    pub fn id(&self) -> Option<u64> {
        self.catalog.workspace
    }

    /// Where this workspace may allocate, as far as this process knows.
    pub fn grants(&self) -> Arc<Grants> {
        let grants = self.catalog.grants.read();
        Arc::clone(&grants.unwrap_or_else(PoisonError::into_inner))
    }

    /// Learns of grants that another session of the workspace got. 3 µs and the rows.
    pub fn reload_grants(&self) -> Result<()> {
        let found = self.catalog.read(read_grants)?;
        *self
            .catalog
            .grants
            .write()
            .unwrap_or_else(PoisonError::into_inner) = Arc::new(found);
        Ok(())
    }

    /// Enters new grants, and how long the parent's segments are by now.
    pub fn add_grants(&self, extents: &[Extent], segments: &[SegmentRow]) -> Result<()> {
        self.catalog.write(|txn| {
            for extent in extents {
                txn.prepare_cached(
                    "INSERT INTO larder_grant (segment, start_block, block_count) VALUES (?1, ?2, \
                     ?3)",
                )
                .and_then(|mut add| {
                    add.execute(params![
                        extent.segment.0,
                        signed(extent.start_block),
                        signed(extent.block_count)
                    ])
                })
                .at("larder_grant")?;
            }
            for row in segments {
                txn.prepare_cached(
                    "INSERT INTO larder_segment (segment, block_count) VALUES (?1, ?2) \
                     ON CONFLICT (segment) DO UPDATE SET block_count = excluded.block_count",
                )
                .and_then(|mut set| {
                    set.execute([i64::from(row.segment.0), signed(row.block_count)])
                })
                .at("larder_segment")?;
            }
            Ok(())
        })?;
        self.reload_grants()
    }

    /// One after the last inode number that the workspace may use in the store (`WORKSPACE-5`).
    pub fn ino_end(&self, store: StoreId) -> Result<u64> {
        let owner = self.catalog.store_sql(store)?.table_store;
        self.catalog
            .read(|reader| Ok(find_meta(reader, &ino_end_key(owner))? as u64))
    }

    /// Goes on with these inode numbers.
    pub fn set_ino_ranges(&self, ranges: &[InoRange]) -> Result<()> {
        self.catalog.write(|txn| set_ino_ranges(txn, ranges))
    }

    /// Which extents of a change set are retired, and which are only dropped: they are the
    /// parent's, and the merge retires them there.
    pub(crate) fn split_retired(&self, retired: &[Held]) -> (Vec<Held>, Vec<Held>) {
        if self.catalog.workspace.is_none() {
            return (retired.to_vec(), Vec::new());
        }
        let grants = self.grants();
        let (mut own, mut dropped) = (Vec::new(), Vec::new());
        for &(extent, store, ino) in retired {
            for (part, is_granted) in grants.parts(extent) {
                if is_granted { &mut own } else { &mut dropped }.push((part, store, ino));
            }
        }
        (own, dropped)
    }
}

/// The next numbers of every store that owns tables.
fn take_inos(txn: &Connection) -> Result<Vec<InoRange>> {
    let mut ranges = rows(
        txn,
        "UPDATE larder_store SET next_ino = next_ino + ?1 WHERE table_store = id \
         RETURNING id, next_ino",
        [signed(INO_RANGE)],
        |row| {
            let end = unsigned(row, 1)?;
            Ok(InoRange {
                store: StoreId(row.get(0)?),
                first: end - INO_RANGE,
                end,
            })
        },
    )
    .at("larder_store")?;
    ranges.sort_unstable_by_key(|range| range.store);
    Ok(ranges)
}

fn set_ino_ranges(txn: &Connection, ranges: &[InoRange]) -> Result<()> {
    for range in ranges {
        txn.execute(
            "UPDATE larder_store SET next_ino = ?2 WHERE id = ?1",
            params![range.store.0, signed(range.first)],
        )
        .at("larder_store")?;
        txn.execute(
            "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            params![ino_end_key(range.store), signed(range.end)],
        )
        .at("larder_meta")?;
    }
    Ok(())
}

fn ino_end_key(store: StoreId) -> String {
    format!("ino_end_{store}")
}

/// Takes the row and the grants of a transaction away.
fn end(txn: &Connection, id: u64, ags: &mut AgChanges) -> Result<()> {
    let gone = txn
        .execute("DELETE FROM larder_transaction WHERE id = ?1", [signed(id)])
        .at("larder_transaction")?;
    if gone != 1 {
        return Err(CatalogError::not_found(format!("transaction {id}")));
    }
    let granted: Vec<Extent> = rows(
        txn,
        "DELETE FROM larder_extent WHERE store = 4294967295 AND ino = ?1 \
         RETURNING segment, start_block, block_count",
        [signed(id)],
        extents::extent,
    )
    .at("larder_extent")?;
    ags.drop_live(&granted);
    Ok(())
}
