//! Extents of a catalog in memory, and who holds them.

use super::MemorySpace;
use super::space::{extent_row, place_of};
use crate::{AgRow, ExtentRow, Result, SegmentRow, SharedRow};
use larder_format::{CommitSeq, Extent, Ino, SegmentIndex, StoreId};
use std::ops::Bound;

impl MemorySpace<'_> {
    /// The segments of the database, by index.
    pub fn segments(&self) -> Result<Vec<SegmentRow>> {
        self.0.read(|state| {
            let segments = state.space.segments.iter();
            let row = |(segment, block_count): (&SegmentIndex, &u64)| SegmentRow {
                segment: *segment,
                block_count: *block_count,
            };
            Ok(segments.map(row).collect())
        })
    }

    /// At most `limit` extent rows, live and retired, after the one that begins at `after`
    /// (segment, start block), in that order.
    pub fn extents(
        &self,
        after: Option<(SegmentIndex, u64)>,
        limit: usize,
    ) -> Result<Vec<ExtentRow>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.read(|state| {
            let rows = state.space.rows.range((from, Bound::Unbounded));
            Ok(rows.take(limit).map(extent_row).collect())
        })
    }

    /// All extent rows of one allocation group, by start.
    pub fn extents_in_ag(&self, segment: SegmentIndex, ag: u64) -> Result<Vec<ExtentRow>> {
        self.0
            .read(|state| Ok(state.space.in_ag(segment, ag).collect()))
    }

    /// The extent, live or retired, that lies nearest to the end of a segment.
    pub fn last_extent(&self, segment: SegmentIndex) -> Result<Option<Extent>> {
        self.0.read(|state| {
            let mut rows = state.space.rows.range((segment, 0)..=(segment, u64::MAX));
            Ok(rows.next_back().map(|row| extent_row(row).extent))
        })
    }

    /// The allocation groups in which a commit after `seq` allocated, retired or reclaimed; from 0,
    /// all that ever had an extent.
    pub fn ags_changed_since(&self, seq: CommitSeq) -> Result<Vec<AgRow>> {
        self.0.read(|state| {
            let space = &state.space;
            let changed = space.changed.iter().filter(|(_, at)| **at > seq);
            let count = |(&(segment, ag_index), _): (&(SegmentIndex, u64), _)| {
                let mut row = AgRow {
                    segment,
                    ag_index,
                    used_blocks: 0,
                    retired_blocks: 0,
                };
                for held in space.in_ag(segment, ag_index) {
                    row.used_blocks += held.extent.block_count;
                    if held.retired_seq.is_some() {
                        row.retired_blocks += held.extent.block_count;
                    }
                }
                row
            };
            Ok(changed.map(count).collect())
        })
    }

    /// Whether anything retired at or before `horizon` waits for its reclaim.
    pub fn has_retired(&self, horizon: CommitSeq) -> Result<bool> {
        Ok(self.retired_blocks(horizon)? > 0)
    }

    /// Blocks that commits up to `horizon` retired and that are not reclaimed.
    pub fn retired_blocks(&self, horizon: CommitSeq) -> Result<u64> {
        self.0.read(|state| {
            let rows = state.space.rows.values();
            let rows = rows.filter(|row| row.is_retired_by(horizon));
            Ok(rows.map(|row| row.block_count).sum())
        })
    }

    /// Whether any extent has several holders.
    pub fn has_shared(&self) -> Result<bool> {
        self.0.read(|state| {
            let mut rows = state.space.rows.values();
            Ok(rows.any(|row| !row.sharers.is_empty()))
        })
    }

    /// Whether a block of `extent` has several holders.
    pub fn is_shared(&self, extent: &Extent) -> Result<bool> {
        let rows = self.extents_under(extent)?;
        Ok(rows.iter().any(|row| row.shared_count > 0))
    }

    /// The rows that have blocks of `extent`, live or retired, by place.
    pub fn extents_under(&self, extent: &Extent) -> Result<Vec<ExtentRow>> {
        let mut rows = self.0.read(|state| state.space.under(extent));
        rows.reverse();
        Ok(rows)
    }

    /// The stores of those who own blocks of `extent`, live or retired; the last row's first.
    pub fn stores_under(&self, extent: &Extent) -> Result<Vec<StoreId>> {
        self.0.read(|state| {
            let rows = state.space.under(extent).into_iter();
            Ok(rows.map(|row| row.store).collect())
        })
    }

    /// Whether an object holds a block of `extent`.
    pub fn holds(&self, extent: &Extent, store: StoreId, ino: Ino) -> Result<bool> {
        self.0.read(|state| {
            let space = &state.space;
            let mut rows = space.under(extent).into_iter();
            Ok(rows.any(|row| {
                row.retired_seq.is_none()
                    && space.rows[&place_of(&row.extent)].is_held_by((store, ino))
            }))
        })
    }

    /// At most `limit` sharers after `after`, in order.
    pub fn sharers(&self, after: Option<SharedRow>, limit: usize) -> Result<Vec<SharedRow>> {
        self.0.read(|state| {
            let rows = state.space.rows.iter();
            let all = rows.flat_map(|((segment, start_block), row)| {
                row.sharers.iter().map(|(store, ino)| SharedRow {
                    segment: *segment,
                    start_block: *start_block,
                    store: *store,
                    ino: *ino,
                })
            });
            let later = all.filter(|row| after.is_none_or(|after| *row > after));
            Ok(later.take(limit).collect())
        })
    }

    /// Blocks that sharing saves: those of each row as often as it has sharers.
    pub fn shared_blocks(&self) -> Result<u64> {
        self.0.read(|state| {
            let rows = state.space.rows.values();
            Ok(rows
                .map(|row| row.block_count * row.sharers.len() as u64)
                .sum())
        })
    }
}
