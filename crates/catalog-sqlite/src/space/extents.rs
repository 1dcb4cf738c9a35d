//! Extent rows: the truth of allocation (`CATALOG-1`).

use crate::CatalogSpace;
use crate::error::{At, CatalogError, Result};
use crate::types::changes::Held;
pub(crate) use crate::types::codec::extent;
use crate::types::codec::{bound, row_limit, rows, signed, unsigned};
use crate::types::rows::{AgRow, ExtentRow, SegmentRow};
use larder_format::limits::AG_BLOCKS;
use larder_format::{CommitSeq, Extent, Ino, SegmentIndex, StoreId};
use rusqlite::{Connection, Row, Statement, params};
use std::collections::BTreeMap;

pub(crate) const TABLE: &str = "larder_extent";

impl CatalogSpace<'_> {
    /// The segments of the database, by index.
    pub fn segments(&self) -> Result<Vec<SegmentRow>> {
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT segment, block_count FROM larder_segment ORDER BY segment",
                [],
                |row| {
                    Ok(SegmentRow {
                        segment: SegmentIndex(row.get(0)?),
                        block_count: unsigned(row, 1)?,
                    })
                },
            )
            .at("larder_segment")
        })
    }

    /// At most `limit` extent rows, live and retired, after the one that begins at `after`
    /// (segment, start block), in that order.
    pub fn extents(
        &self,
        after: Option<(SegmentIndex, u64)>,
        limit: usize,
    ) -> Result<Vec<ExtentRow>> {
        let (segment, start) = after.map_or((0, -1), |(segment, start)| (segment.0, bound(start)));
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT segment, start_block, block_count, store, ino, retired_seq, shared_count, \
                 born_seq FROM larder_extent \
                 WHERE (segment, start_block) > (?1, ?2) ORDER BY segment, start_block LIMIT ?3",
                params![segment, start, row_limit(limit)],
                extent_row,
            )
            .at(TABLE)
        })
    }

    /// All extent rows of one allocation group, by start.
    pub fn extents_in_ag(&self, segment: SegmentIndex, ag: u64) -> Result<Vec<ExtentRow>> {
        let first = ag.saturating_mul(AG_BLOCKS);
        let last = first.saturating_add(AG_BLOCKS - 1);
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT segment, start_block, block_count, store, ino, retired_seq, shared_count, \
                 born_seq FROM larder_extent \
                 WHERE segment = ?1 AND start_block BETWEEN ?2 AND ?3 ORDER BY start_block",
                params![segment.0, signed(first), signed(last)],
                extent_row,
            )
            .at(TABLE)
        })
    }

    /// The extent, live or retired, that lies nearest to the end of a segment. O(log rows).
    pub fn last_extent(&self, segment: SegmentIndex) -> Result<Option<Extent>> {
        self.catalog.read(|reader| {
            let found = rows(
                reader,
                "SELECT segment, start_block, block_count FROM larder_extent \
                 WHERE segment = ?1 ORDER BY start_block DESC LIMIT 1",
                [segment.0],
                extent,
            );
            Ok(found.at(TABLE)?.pop())
        })
    }

    /// The allocation groups in which a commit after `seq` allocated, retired or reclaimed; from 0,
    /// all that ever had an extent. O(groups).
    pub fn ags_changed_since(&self, seq: CommitSeq) -> Result<Vec<AgRow>> {
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT segment, ag, used_blocks, retired_blocks FROM larder_ag \
                 WHERE changed_seq > ?1 ORDER BY segment, ag",
                [bound(seq.0)],
                |row| {
                    Ok(AgRow {
                        segment: SegmentIndex(row.get(0)?),
                        ag_index: unsigned(row, 1)?,
                        used_blocks: unsigned(row, 2)?,
                        retired_blocks: unsigned(row, 3)?,
                    })
                },
            )
            .at("larder_ag")
        })
    }

    /// Whether anything retired at or before `horizon` waits for its reclaim.
    pub fn has_retired(&self, horizon: CommitSeq) -> Result<bool> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached(
                    "SELECT 1 FROM larder_extent \
                     WHERE retired_seq IS NOT NULL AND retired_seq <= ?1 LIMIT 1",
                )
                .and_then(|mut find| find.exists([bound(horizon.0)]))
                .at(TABLE)
        })
    }

    /// Blocks that commits up to `horizon` retired and that are not reclaimed. O(such rows).
    pub fn retired_blocks(&self, horizon: CommitSeq) -> Result<u64> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached(
                    "SELECT coalesce(sum(block_count), 0) FROM larder_extent \
                     WHERE retired_seq IS NOT NULL AND retired_seq <= ?1",
                )
                .and_then(|mut sum| sum.query_row([bound(horizon.0)], |row| unsigned(row, 0)))
                .at(TABLE)
        })
    }
}

/// Sorts allocations by place and joins those that touch in one group and have one holder.
pub(crate) fn coalesce(allocated: &[Held]) -> Vec<Held> {
    let mut sorted = allocated.to_vec();
    sorted.sort_unstable();
    let mut joined: Vec<Held> = Vec::with_capacity(sorted.len());
    for (extent, store, ino) in sorted {
        match joined.last_mut() {
            Some((last, last_store, last_ino))
                if (*last_store, *last_ino) == (store, ino)
                    && last.is_followed_by(&extent)
                    && last.ag_index() == extent.ag_index() =>
            {
                last.block_count += extent.block_count;
            }
            _ => joined.push((extent, store, ino)),
        }
    }
    joined
}

/// Inserts live rows, of commit `seq`; a row of the same holder that touches in the same group is
/// extended instead, and is of that commit too.
/// Refuses what any row covers already. `allocated` is [coalesced](coalesce). O(log rows) each.
pub(crate) fn allocate(txn: &Connection, seq: CommitSeq, allocated: &[Held]) -> Result<()> {
    // The neighbour to the right begins at the end; the row before it, if it reaches the start,
    // overlaps or is the neighbour to the left.
    let mut neighbours = txn
        .prepare_cached(
            "SELECT segment, start_block, block_count, store, ino, retired_seq, shared_count, \
                 born_seq FROM larder_extent \
             WHERE segment = ?1 AND start_block <= ?2 ORDER BY start_block DESC LIMIT 2",
        )
        .at(TABLE)?;
    let mut insert = txn.prepare_cached(INSERT).at(TABLE)?;
    // A commit's small objects lie side by side: they have two neighbours together.
    for run in allocated.chunk_by(|left, right| left.0.is_followed_by(&right.0)) {
        let mut whole_run = run[0].0;
        whole_run.block_count = run.iter().map(|(extent, ..)| extent.block_count).sum();
        let near = neighbours
            .query_map(
                params![whole_run.segment.0, signed(whole_run.end_block())],
                extent_row,
            )
            .and_then(|rows| rows.collect::<rusqlite::Result<Vec<ExtentRow>>>())
            .at(TABLE)?;
        if let Some(taken) = near.iter().find(|row| row.extent.overlaps(&whole_run)) {
            return Err(CatalogError::corrupt(format!(
                "{whole_run} is to be allocated, but inode {} of store {} holds {} (CATALOG-1)",
                taken.ino, taken.store, taken.extent
            )));
        }
        for (extent, store, ino) in run {
            let joins = |row: &&ExtentRow| {
                (row.store, row.ino, row.retired_seq) == (*store, *ino, None)
                    && row.shared_count == 0 // SHARE-3
                    && row.extent.ag_index() == extent.ag_index()
            };
            let left = near
                .iter()
                .filter(joins)
                .find(|row| row.extent.is_followed_by(extent));
            let right = near
                .iter()
                .filter(joins)
                .find(|row| extent.is_followed_by(&row.extent));
            let mut whole = *extent;
            if let Some(right) = right {
                delete(txn, &right.extent)?;
                whole.block_count += right.extent.block_count;
            }
            match left {
                Some(left) => {
                    whole.block_count += left.extent.block_count;
                    extend(txn, seq, &left.extent, whole.block_count)?;
                }
                None => insert_row(&mut insert, &whole, (*store, *ino), seq)?,
            }
        }
    }
    Ok(())
}

/// The rows that have a block in common with `extent`, last first.
pub(crate) fn rows_under(txn: &Connection, extent: &Extent) -> Result<Vec<ExtentRow>> {
    let mut before_end = txn
        .prepare_cached(
            "SELECT segment, start_block, block_count, store, ino, retired_seq, shared_count, \
                 born_seq FROM larder_extent \
             WHERE segment = ?1 AND start_block < ?2 ORDER BY start_block DESC",
        )
        .at(TABLE)?;
    before_end
        .query_map(
            params![extent.segment.0, signed(extent.end_block())],
            extent_row,
        )
        .and_then(|rows| {
            rows.take_while(|row| row.as_ref().map_or(true, |row| row.extent.overlaps(extent)))
                .collect()
        })
        .at(TABLE)
}

/// Deletes the rows retired at or before `horizon`, and returns their extents, by place.
pub(crate) fn reclaim(txn: &Connection, horizon: CommitSeq) -> Result<Vec<Extent>> {
    let mut reclaimed = rows(
        txn,
        "DELETE FROM larder_extent WHERE retired_seq IS NOT NULL AND retired_seq <= ?1 \
         RETURNING segment, start_block, block_count",
        [signed(horizon.0)],
        extent,
    )
    .at(TABLE)?;
    reclaimed.sort_unstable();
    Ok(reclaimed)
}

/// Deletes what is left of the rows that these commits retired there, and returns their extents
/// (`HISTORY-5`).
pub(crate) fn reclaim_moved(
    txn: &Connection,
    moved: &[(Extent, CommitSeq)],
) -> Result<Vec<Extent>> {
    let mut reclaimed = Vec::with_capacity(moved.len());
    for (place, seq) in moved {
        // Rows were cut where the place begins and ends (`retire`), so none is in it in part.
        reclaimed.extend(
            rows(
                txn,
                "DELETE FROM larder_extent WHERE segment = ?1 AND start_block >= ?2 AND \
                 start_block < ?3 \
                 AND retired_seq = ?4 RETURNING segment, start_block, block_count",
                params![
                    place.segment.0,
                    signed(place.start_block),
                    signed(place.end_block()),
                    signed(seq.0)
                ],
                extent,
            )
            .at(TABLE)?,
        );
    }
    Ok(reclaimed)
}

/// What a transaction changes in the counts of `larder_ag` (`CATALOG-8`).
#[derive(Debug, Default)]
pub(crate) struct AgChanges {
    /// Blocks more, or less, in use and retired, by group.
    by_ag: BTreeMap<(SegmentIndex, u64), (i64, i64)>,
}

impl AgChanges {
    /// Live rows were added.
    pub(crate) fn allocate<'e>(&mut self, extents: impl IntoIterator<Item = &'e Extent>) {
        self.count(extents, 1, 0);
    }

    /// Live rows were retired.
    pub(crate) fn retire<'e>(&mut self, extents: impl IntoIterator<Item = &'e Extent>) {
        self.count(extents, 0, 1);
    }

    /// Retired rows live again.
    pub(crate) fn revive<'e>(&mut self, extents: impl IntoIterator<Item = &'e Extent>) {
        self.count(extents, 0, -1);
    }

    /// Live rows were deleted.
    pub(crate) fn drop_live<'e>(&mut self, extents: impl IntoIterator<Item = &'e Extent>) {
        self.count(extents, -1, 0);
    }

    /// Retired rows were deleted.
    pub(crate) fn reclaim<'e>(&mut self, extents: impl IntoIterator<Item = &'e Extent>) {
        self.count(extents, -1, -1);
    }

    fn count<'e>(
        &mut self,
        extents: impl IntoIterator<Item = &'e Extent>,
        used_sign: i64,
        retired_sign: i64,
    ) {
        for extent in extents {
            let mut start = extent.start_block;
            while start < extent.end_block() {
                let ag = start / AG_BLOCKS;
                let end = extent.end_block().min((ag + 1) * AG_BLOCKS);
                let (used, retired) = self.by_ag.entry((extent.segment, ag)).or_default();
                *used += used_sign * signed(end - start);
                *retired += retired_sign * signed(end - start);
                start = end;
            }
        }
    }

    /// Changes the counts, and notes `seq` in every group named, for other sessions.
    pub(crate) fn apply(self, txn: &Connection, seq: CommitSeq) -> Result<()> {
        for ((segment, ag), (used, retired)) in self.by_ag {
            let (segment, ag, seq) = (segment.0, signed(ag), signed(seq.0));
            let is_known = txn
                .prepare_cached("SELECT 1 FROM larder_ag WHERE segment = ?1 AND ag = ?2")
                .and_then(|mut find| find.exists(params![segment, ag]))
                .at("larder_ag")?;
            let text = match is_known {
                true => {
                    "UPDATE larder_ag SET changed_seq = ?3, used_blocks = used_blocks + ?4, \
                     retired_blocks = retired_blocks + ?5 WHERE segment = ?1 AND ag = ?2"
                }
                false => {
                    "INSERT INTO larder_ag (segment, ag, changed_seq, used_blocks, retired_blocks) \
                     VALUES (?1, ?2, ?3, ?4, ?5)"
                }
            };
            txn.prepare_cached(text)
                .and_then(|mut change| change.execute(params![segment, ag, seq, used, retired]))
                .at("larder_ag")?;
        }
        Ok(())
    }
}

const INSERT: &str = "INSERT INTO larder_extent (segment, start_block, block_count, store, ino, \
    born_seq) \
    VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

/// Runs [`INSERT`].
fn insert_row(
    insert: &mut Statement<'_>,
    extent: &Extent,
    (store, ino): (StoreId, Ino),
    born_seq: CommitSeq,
) -> Result<()> {
    let row = params![
        extent.segment.0,
        signed(extent.start_block),
        signed(extent.block_count),
        store.0,
        signed(ino.0),
        signed(born_seq.0)
    ];
    insert.execute(row).at(TABLE).map(drop)
}

/// Gives the live row that begins where `extent` does another length.
pub(crate) fn resize(txn: &Connection, extent: &Extent, block_count: u64) -> Result<()> {
    txn.prepare_cached(
        "UPDATE larder_extent SET block_count = ?3 WHERE segment = ?1 AND start_block = ?2",
    )
    .and_then(|mut resize| {
        resize.execute(params![
            extent.segment.0,
            signed(extent.start_block),
            signed(block_count)
        ])
    })
    .at(TABLE)?;
    Ok(())
}

/// Gives the live row that begins where `extent` does more blocks, those of commit `seq`.
fn extend(txn: &Connection, seq: CommitSeq, extent: &Extent, block_count: u64) -> Result<()> {
    txn.prepare_cached(
        "UPDATE larder_extent SET block_count = ?3, born_seq = ?4 \
         WHERE segment = ?1 AND start_block = ?2",
    )
    .and_then(|mut extend| {
        extend.execute(params![
            extent.segment.0,
            signed(extent.start_block),
            signed(block_count),
            signed(seq.0)
        ])
    })
    .at(TABLE)
    .map(drop)
}

fn delete(txn: &Connection, extent: &Extent) -> Result<()> {
    txn.prepare_cached("DELETE FROM larder_extent WHERE segment = ?1 AND start_block = ?2")
        .and_then(|mut delete| {
            delete.execute(params![extent.segment.0, signed(extent.start_block)])
        })
        .at(TABLE)?;
    Ok(())
}

fn extent_row(row: &Row<'_>) -> rusqlite::Result<ExtentRow> {
    Ok(ExtentRow {
        extent: extent(row)?,
        store: StoreId(row.get(3)?),
        ino: Ino(unsigned(row, 4)?),
        retired_seq: row
            .get::<_, Option<i64>>(5)?
            .map(|seq| CommitSeq(seq as u64)),
        shared_count: unsigned(row, 6)?,
        born_seq: CommitSeq(unsigned(row, 7)?),
    })
}
