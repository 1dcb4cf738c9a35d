//! Who holds an extent: its owner, and those that share it.
//!
//! # Words
//! A *holder* of an extent row is an object whose map names all of its blocks. One of them stands
//! in the row, its *owner*; the others, the *sharers*, in `larder_shared`. `shared_count` says how
//! many sharers there are.
//!
//! # Invariants
//! * `SHARE-1` A live extent row has as holders exactly the objects whose maps name its blocks, and
//!   each of them names all of them once. `check` proves it.
//! * `SHARE-2` A row is retired by the commit in which its last holder lets go. So `retired_seq` is
//!   at or after every commit that superseded a map with its blocks, and the histories of all
//!   holders can be read.
//! * `SHARE-3` Where a part of a row gets other holders than the rest, the row is cut, and its
//!   sharers follow. A row with sharers is not joined to another.
//! * `SHARE-9` A retired row lives again only by a commit that gives it a holder, whose content is
//!   that of a state before the row was retired. So `retired_seq` only grows, and whoever held it
//!   before reads on: its blocks hold what they held then, or a pre-image says where that is.
//!   *Guard*: the state is named in [`Sharing::as_of`], and its commit is compared with
//!   `retired_seq`; who names it has it pinned (`HISTORY-3`).
//!
//! ```text
//!          share                      the last holder lets go
//!  live ◀────────▶ live, shared ──▶ live ─────────────────────▶ retired ──reclaim──▶ no row
//!        let go                      ▲                              │
//!                                    └── a state that had it: share ┘
//! ```
//!
//! # Cost
//! A row without sharers is retired by one statement. Cutting a row costs O(its sharers).

use crate::CatalogSpace;
use crate::conn::meta::{add_meta, next_commit_seq, of_store, of_stores};
use crate::error::{At, CatalogError, Result};
use crate::space::extents::{AgChanges, TABLE, extent, resize, rows_under};
use crate::types::changes::{Held, Sharing};
use crate::types::codec::{row_limit, rows, signed, unsigned};
use crate::types::rows::{ExtentRow, SharedRow};
use larder_format::{CommitSeq, Extent, Ino, SegmentIndex, StoreId};
use rusqlite::{Connection, OptionalExtension, Params, params};

const SHARED: &str = "larder_shared";
/// Stores that have shared content with another (`HISTORY-8`).
const SHARES: &str = "shares_across";

/// Which rows are of inodes without a name, for [`let_go_where`].
pub(crate) const ORPHANS: &str = "(store, ino) IN (SELECT store, ino FROM larder_orphan)";

impl CatalogSpace<'_> {
    /// Whether any extent has several holders. O(1), a few µs.
    pub fn has_shared(&self) -> Result<bool> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached("SELECT 1 FROM larder_shared LIMIT 1")
                .and_then(|mut find| find.exists([]))
                .at(SHARED)
        })
    }

    /// Whether a block of `extent` has several holders. O(rows under it).
    pub fn is_shared(&self, extent: &Extent) -> Result<bool> {
        let rows = self.catalog.read(|reader| rows_under(reader, extent))?;
        Ok(rows.iter().any(|row| row.shared_count > 0))
    }

    /// The rows that have blocks of `extent`, live or retired, by place. O(rows under it).
    pub fn extents_under(&self, extent: &Extent) -> Result<Vec<ExtentRow>> {
        let mut rows = self.catalog.read(|reader| rows_under(reader, extent))?;
        rows.reverse();
        Ok(rows)
    }

    /// The stores of those who own blocks of `extent`, live or retired. O(rows under it).
    pub fn stores_under(&self, extent: &Extent) -> Result<Vec<StoreId>> {
        let rows = self.catalog.read(|reader| rows_under(reader, extent))?;
        Ok(rows.into_iter().map(|row| row.store).collect())
    }

    /// Whether an object holds a block of `extent`. One statement, for one moment: between two a
    /// sharer may become the owner. O(rows under it).
    pub fn holds(&self, extent: &Extent, store: StoreId, ino: Ino) -> Result<bool> {
        self.catalog.read(|reader| {
            let mut before_end = reader
                .prepare_cached(
                    "SELECT e.start_block + e.block_count, e.retired_seq IS NULL AND \
                     ((e.store, e.ino) = (?3, ?4) OR e.shared_count > 0 AND EXISTS (SELECT 1 FROM \
                     larder_shared AS s WHERE s.segment = e.segment AND \
                     s.start_block = e.start_block AND s.store = ?3 AND s.ino = ?4)) \
                     FROM larder_extent AS e WHERE e.segment = ?1 AND e.start_block < ?2 \
                     ORDER BY e.start_block DESC",
                )
                .at(TABLE)?;
            let end = signed(extent.end_block());
            let asked = params![extent.segment.0, end, store.0, signed(ino.0)];
            let mut rows = before_end.query(asked).at(TABLE)?;
            while let Some(row) = rows.next().at(TABLE)? {
                if unsigned(row, 0).at(TABLE)? <= extent.start_block {
                    break;
                }
                if row.get(1).at(TABLE)? {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// At most `limit` sharers after `after`, in order.
    pub fn sharers(&self, after: Option<SharedRow>, limit: usize) -> Result<Vec<SharedRow>> {
        let key = after.map_or((0, -1, 0, 0), |row| {
            let place = (row.segment.0, signed(row.start_block));
            (place.0, place.1, row.store.0, signed(row.ino.0))
        });
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT segment, start_block, store, ino FROM larder_shared \
                 WHERE (segment, start_block, store, ino) > (?1, ?2, ?3, ?4) \
                 ORDER BY segment, start_block, store, ino LIMIT ?5",
                params![key.0, key.1, key.2, key.3, row_limit(limit)],
                |row| {
                    Ok(SharedRow {
                        segment: SegmentIndex(row.get(0)?),
                        start_block: unsigned(row, 1)?,
                        store: StoreId(row.get(2)?),
                        ino: Ino(unsigned(row, 3)?),
                    })
                },
            )
            .at(SHARED)
        })
    }

    /// Blocks that sharing saves: those of each row as often as it has sharers. O(sharers).
    pub fn shared_blocks(&self) -> Result<u64> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached(
                    "SELECT coalesce(sum(e.block_count), 0) FROM larder_shared AS s JOIN \
                     larder_extent AS e \
                     ON e.segment = s.segment AND e.start_block = s.start_block",
                )
                .and_then(|mut sum| sum.query_row([], |row| unsigned(row, 0)))
                .at(SHARED)
        })
    }
}

/// What a change set has done to extents.
#[derive(Debug, Default)]
pub(crate) struct HolderChanges {
    /// What nobody holds any more.
    pub(crate) retired: Vec<Extent>,
    /// What was retired and lives again, and how many of `retired` come before that.
    pub(crate) revived: Vec<(Extent, usize)>,
}

/// What a change set does to holders, in its order.
pub(crate) fn apply(
    txn: &Connection,
    seq: CommitSeq,
    shared: &[Sharing],
    retired: &[Held],
) -> Result<HolderChanges> {
    let (mut holders, mut done) = (HolderChanges::default(), 0);
    for sharing in shared {
        let part = retired.get(done..sharing.retired_before).ok_or_else(|| {
            CatalogError::invalid("what is shared in a workspace, or out of order, is refused")
        })?;
        holders.retired.extend(retire(txn, seq, part)?);
        let revived = share(txn, sharing)?;
        let before = holders.retired.len();
        (holders.revived).extend(revived.into_iter().map(|extent| (extent, before)));
        done = sharing.retired_before;
    }
    holders.retired.extend(retire(txn, seq, &retired[done..])?);
    Ok(holders)
}

/// Gives blocks one more holder, cutting rows where they are a part of them. Returns what was
/// retired and lives again.
fn share(txn: &Connection, sharing: &Sharing) -> Result<Vec<Extent>> {
    let (extent, store, ino) = &sharing.held;
    let (mut revived, mut covered_blocks) = (Vec::new(), 0);
    for row in rows_under(txn, extent)? {
        let is_live = row.retired_seq.is_none();
        if !is_live && (sharing.as_of.is_none() || row.retired_seq <= sharing.as_of) {
            return Err(CatalogError::corrupt(format!(
                "{extent} is to be shared, but {} is retired (SHARE-1, SHARE-9)",
                row.extent
            )));
        }
        let part = cut_out(txn, &row, extent, None)?;
        covered_blocks += part.extent.block_count;
        match is_live {
            true => add_sharer(txn, &part, *store, *ino)?,
            false => {
                revive(txn, &part, *store, *ino)?;
                revived.push(part.extent);
            }
        }
        if row.store != *store {
            mark_sharing(txn, &[row.store, *store])?; // HISTORY-8
        }
    }
    if covered_blocks != extent.block_count {
        return Err(CatalogError::corrupt(format!(
            "{extent} is to be shared, but only {covered_blocks} of its blocks are allocated \
             (SHARE-1)"
        )));
    }
    Ok(revived)
}

/// An object that does not hold a live row shares it.
fn add_sharer(txn: &Connection, row: &ExtentRow, store: StoreId, ino: Ino) -> Result<()> {
    let (segment, start) = (row.extent.segment.0, signed(row.extent.start_block));
    let added = txn
        .prepare_cached(
            "INSERT INTO larder_shared (segment, start_block, store, ino) \
             SELECT ?1, ?2, ?3, ?4 WHERE ?5 ON CONFLICT DO NOTHING",
        )
        .and_then(|mut add| {
            let is_other = (row.store, row.ino) != (store, ino);
            add.execute(params![segment, start, store.0, signed(ino.0), is_other])
        })
        .at(SHARED)?;
    match added {
        1 => count_sharers(txn, &row.extent, 1),
        _ => Err(CatalogError::corrupt(format!(
            "inode {ino} of store {store} is to share {}, which it holds (SHARE-1)",
            row.extent
        ))),
    }
}

/// A row that was retired, and cut out as live (`cut_out`), has this object as its owner.
fn revive(txn: &Connection, row: &ExtentRow, store: StoreId, ino: Ino) -> Result<()> {
    let (segment, start) = (row.extent.segment.0, signed(row.extent.start_block));
    let changed = txn
        .prepare_cached(
            "UPDATE larder_extent SET retired_seq = NULL, store = ?3, ino = ?4 \
             WHERE segment = ?1 AND start_block = ?2 AND shared_count = 0",
        )
        .and_then(|mut revive| revive.execute(params![segment, start, store.0, signed(ino.0)]))
        .at(TABLE)?;
    match changed {
        1 => Ok(()),
        _ => Err(CatalogError::corrupt(format!(
            "{TABLE}: {} is retired and has holders (SHARE-1)",
            row.extent
        ))),
    }
}

/// Lets objects hold these extents no more, cutting rows where an extent is a part of them. What
/// has no other holder is retired at `seq`, and returned. Refuses what is not wholly live, and who
/// does not hold it: whoever is told to let go twice would give away what is the others' by now
/// (`SHARE-1`).
pub(crate) fn retire(txn: &Connection, seq: CommitSeq, retired: &[Held]) -> Result<Vec<Extent>> {
    let mut gone = Vec::with_capacity(retired.len());
    let mut retire_row = txn
        .prepare_cached(
            "UPDATE larder_extent SET retired_seq = ?4 WHERE segment = ?1 AND start_block = ?2 \
             AND block_count = ?3 AND retired_seq IS NULL AND shared_count = 0 AND store = ?5 AND \
             ino = ?6",
        )
        .at(TABLE)?;
    for (extent, store, ino) in retired {
        // Most often it is one row, and then nothing else can lie under it.
        let (start, count) = (signed(extent.start_block), signed(extent.block_count));
        let (segment, at) = (extent.segment.0, signed(seq.0));
        let is_whole_row = retire_row
            .execute(params![segment, start, count, at, store.0, signed(ino.0)])
            .at(TABLE)?
            == 1;
        if is_whole_row {
            gone.push(*extent);
            continue;
        }
        let mut covered_blocks = 0;
        for row in rows_under(txn, extent)? {
            if row.retired_seq.is_some() {
                return Err(CatalogError::corrupt(format!(
                    "{extent} is to be retired, but {} is retired already (CATALOG-1)",
                    row.extent
                )));
            }
            if row.shared_count == 0 && (row.store, row.ino) != (*store, *ino) {
                return Err(not_held(&row, *store, *ino));
            }
            let row = cut_out(txn, &row, extent, Some(seq))?;
            covered_blocks += row.extent.block_count;
            match row.shared_count {
                0 => gone.push(row.extent),
                _ => let_go(txn, &row, *store, *ino)?,
            }
        }
        if covered_blocks != extent.block_count {
            return Err(CatalogError::corrupt(format!(
                "{extent} is to be retired, but only {covered_blocks} of its blocks are allocated \
                 (CATALOG-1)"
            )));
        }
    }
    Ok(gone)
}

/// The same without rows that stay: in a workspace, what is the parent's and dropped
/// (`WORKSPACE-1`).
pub(crate) fn drop_live(txn: &Connection, seq: CommitSeq, dropped: &[Held]) -> Result<Vec<Extent>> {
    let gone = retire(txn, seq, dropped)?;
    for extent in &gone {
        txn.prepare_cached(
            "DELETE FROM larder_extent WHERE segment = ?1 AND start_block >= ?2 AND start_block < \
             ?3",
        )
        .and_then(|mut delete| {
            delete.execute(params![
                extent.segment.0,
                signed(extent.start_block),
                signed(extent.end_block())
            ])
        })
        .at(TABLE)?;
    }
    Ok(gone)
}

/// Retires what only this store holds, and adds it to the bytes ever retired. Scans all extent
/// rows.
pub(crate) fn retire_store(txn: &Connection, store: StoreId) -> Result<CommitSeq> {
    let seq = next_commit_seq(txn)?;
    let_go_where(txn, "store = ?1", [store.0])?;
    let retired: Vec<Extent> = rows(
        txn,
        "UPDATE larder_extent SET retired_seq = ?2 WHERE store = ?1 AND retired_seq IS NULL \
         RETURNING segment, start_block, block_count",
        params![store.0, signed(seq.0)],
        extent,
    )
    .at(TABLE)?;
    let mut ags = AgChanges::default();
    ags.retire(&retired);
    ags.apply(txn, seq)?;
    let retired_bytes = retired.iter().map(Extent::len_bytes).sum();
    add_meta(txn, "retired_bytes_total", retired_bytes)?;
    Ok(seq)
}

/// Lets the objects that `which` says share nothing any more: what they own has no sharers
/// afterwards, and what others hold too is the others'. Scans the extent rows, if anything is
/// shared.
pub(crate) fn let_go_where(
    txn: &Connection,
    which: &str,
    parameters: impl Params + Copy,
) -> Result<()> {
    let is_shared = txn
        .prepare_cached("SELECT 1 FROM larder_shared LIMIT 1")
        .and_then(|mut find| find.exists([]))
        .at(SHARED)?;
    if !is_shared {
        return Ok(());
    }
    let left: Vec<(u32, i64)> = rows(
        txn,
        &format!("DELETE FROM larder_shared WHERE {which} RETURNING segment, start_block"),
        parameters,
        |row| Ok((row.get(0)?, row.get(1)?)),
    )
    .at(SHARED)?;
    for (segment, start) in left {
        let place = Extent::new(SegmentIndex(segment), start as u64, 1);
        count_sharers(txn, &place, -1)?;
    }
    let owned: Vec<Extent> = rows(
        txn,
        &format!(
            "SELECT segment, start_block, block_count FROM larder_extent \
             WHERE {which} AND retired_seq IS NULL AND shared_count > 0"
        ),
        parameters,
        extent,
    )
    .at(TABLE)?;
    for place in owned {
        hand_over(txn, &place)?;
    }
    Ok(())
}

/// One of the holders of a row with sharers lets go of all of it.
fn let_go(txn: &Connection, row: &ExtentRow, store: StoreId, ino: Ino) -> Result<()> {
    if (row.store, row.ino) == (store, ino) {
        return hand_over(txn, &row.extent);
    }
    let removed = txn
        .prepare_cached(
            "DELETE FROM larder_shared WHERE segment = ?1 AND start_block = ?2 AND store = ?3 AND \
             ino = ?4",
        )
        .and_then(|mut remove| {
            let start = signed(row.extent.start_block);
            remove.execute(params![row.extent.segment.0, start, store.0, signed(ino.0)])
        })
        .at(SHARED)?;
    if removed != 1 {
        return Err(not_held(row, store, ino));
    }
    count_sharers(txn, &row.extent, -1)
}

fn not_held(row: &ExtentRow, store: StoreId, ino: Ino) -> CatalogError {
    CatalogError::corrupt(format!(
        "inode {ino} of store {store} lets go of {}, which it does not hold (SHARE-1)",
        row.extent
    ))
}

/// The owner of a row lets go: one of its sharers owns it.
fn hand_over(txn: &Connection, place: &Extent) -> Result<()> {
    let (segment, start) = (place.segment.0, signed(place.start_block));
    let heir: Option<(u32, i64)> = txn
        .prepare_cached(
            "SELECT store, ino FROM larder_shared WHERE segment = ?1 AND start_block = ?2 \
             ORDER BY store, ino LIMIT 1",
        )
        .and_then(|mut find| {
            find.query_row(params![segment, start], |row| {
                Ok((row.get(0)?, row.get(1)?))
            })
            .optional()
        })
        .at(SHARED)?;
    let Some((store, ino)) = heir else {
        return Err(CatalogError::corrupt(format!(
            "{place} is said to be shared, and nobody shares it (SHARE-1)"
        )));
    };
    txn.prepare_cached(
        "DELETE FROM larder_shared WHERE segment = ?1 AND start_block = ?2 AND store = ?3 AND ino \
         = ?4",
    )
    .and_then(|mut remove| remove.execute(params![segment, start, store, ino]))
    .at(SHARED)?;
    txn.prepare_cached(
        "UPDATE larder_extent SET store = ?3, ino = ?4, shared_count = shared_count - 1 \
         WHERE segment = ?1 AND start_block = ?2",
    )
    .and_then(|mut change| change.execute(params![segment, start, store, ino]))
    .at(TABLE)
    .map(drop)
}

/// Adds to the count of the row that begins there.
fn count_sharers(txn: &Connection, place: &Extent, change: i64) -> Result<()> {
    txn.prepare_cached(
        "UPDATE larder_extent SET shared_count = shared_count + ?3 WHERE segment = ?1 AND \
         start_block = ?2",
    )
    .and_then(|mut count| {
        count.execute(params![place.segment.0, signed(place.start_block), change])
    })
    .at(TABLE)
    .map(drop)
}

/// Cuts `row` so that the part of it under `extent` is a row of its own, with its
/// sharers (`SHARE-3`), and retires that part where it has none and `retired_seq` says so; returns
/// the part.
fn cut_out(
    txn: &Connection,
    row: &ExtentRow,
    extent: &Extent,
    retired_seq: Option<CommitSeq>,
) -> Result<ExtentRow> {
    let start = row.extent.start_block.max(extent.start_block);
    let end = row.extent.end_block().min(extent.end_block());
    let (left_count, count) = (start - row.extent.start_block, end - start);
    let right_count = row.extent.end_block() - end;
    let part = ExtentRow {
        extent: row.extent.slice(left_count, count),
        retired_seq: retired_seq.filter(|_| row.shared_count == 0),
        ..row.clone()
    };
    if left_count > 0 {
        resize(txn, &row.extent, left_count)?;
        insert_part(txn, row, &part)?;
    } else if right_count > 0 || part.retired_seq.is_some() {
        txn.prepare_cached(
            "UPDATE larder_extent SET block_count = ?3, retired_seq = ?4 \
             WHERE segment = ?1 AND start_block = ?2",
        )
        .and_then(|mut cut| {
            cut.execute(params![
                part.extent.segment.0,
                signed(start),
                signed(count),
                part.retired_seq.map(|seq| signed(seq.0))
            ])
        })
        .at(TABLE)?;
    }
    if right_count > 0 {
        let right = ExtentRow {
            extent: row.extent.slice(left_count + count, right_count),
            ..row.clone()
        };
        insert_part(txn, row, &right)?;
    }
    Ok(part)
}

/// Adds `part` of `row` as a row of its own, and its sharers.
fn insert_part(txn: &Connection, row: &ExtentRow, part: &ExtentRow) -> Result<()> {
    let (segment, start) = (part.extent.segment.0, signed(part.extent.start_block));
    txn.prepare_cached(
        "INSERT INTO larder_extent (segment, start_block, block_count, store, ino, retired_seq, \
         shared_count, born_seq) \
         VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)",
    )
    .and_then(|mut add| {
        add.execute(params![
            segment,
            start,
            signed(part.extent.block_count),
            part.store.0,
            signed(part.ino.0),
            part.retired_seq.map(|seq| signed(seq.0)),
            signed(part.shared_count),
            signed(part.born_seq.0)
        ])
    })
    .at(TABLE)?;
    if part.shared_count > 0 {
        txn.prepare_cached(
            "INSERT INTO larder_shared (segment, start_block, store, ino) \
             SELECT segment, ?3, store, ino FROM larder_shared WHERE segment = ?1 AND start_block \
             = ?2",
        )
        .and_then(|mut add| add.execute(params![segment, signed(row.extent.start_block), start]))
        .at(SHARED)?;
    }
    Ok(())
}

/// Two stores share content from here on, for good (`HISTORY-8`).
pub(crate) fn mark_sharing(txn: &Connection, stores: &[StoreId]) -> Result<()> {
    for store in stores {
        txn.prepare_cached(
            "INSERT INTO larder_meta (key, value) VALUES (?1, 1) ON CONFLICT DO NOTHING",
        )
        .and_then(|mut mark| mark.execute([of_store(SHARES, Some(*store))]))
        .at("larder_meta")?;
    }
    Ok(())
}

/// Stores whose content goes together (`HISTORY-8`).
pub(crate) fn sharing(connection: &Connection) -> Result<Vec<StoreId>> {
    let named = of_stores(connection, SHARES)?;
    Ok(named.into_iter().filter_map(|(store, _)| store).collect())
}

/// Stores that share content with others now. O(sharers).
pub(crate) fn find_sharing(connection: &Connection) -> Result<Vec<StoreId>> {
    let found: Option<String> = connection
        .prepare_cached(
            "SELECT group_concat(DISTINCT e.store) || ',' || group_concat(DISTINCT s.store) FROM \
             larder_shared AS s \
             JOIN larder_extent AS e ON e.segment = s.segment AND e.start_block = s.start_block \
             WHERE e.store <> s.store",
        )
        .and_then(|mut find| find.query_row([], |row| row.get(0)).optional())
        .map(Option::flatten)
        .at("larder_shared")?;
    let numbers = found.unwrap_or_default();
    let numbers = numbers.split(',').filter_map(|number| number.parse().ok());
    Ok(numbers.map(StoreId).collect())
}
