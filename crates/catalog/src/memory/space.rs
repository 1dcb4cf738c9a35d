//! Extent rows in memory, and who holds them: cut and joined as `space::extents` and
//! `space::holders` do it (`CATALOG-1`, `SHARE-1` to `SHARE-3`, `SHARE-9`).

use super::constraints::require;
use crate::{CatalogError, ExtentRow, Held, Result, RetentionHorizons, Sharing};
use larder_format::limits::AG_BLOCKS;
use larder_format::{CommitSeq, Extent, Ino, SegmentIndex, StoreId};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

/// Where a row begins.
type Place = (SegmentIndex, u64);

/// Segments, and what of them is allocated.
#[derive(Debug, Clone, Default)]
pub(super) struct Space {
    pub(super) segments: BTreeMap<SegmentIndex, u64>,
    pub(super) rows: BTreeMap<Place, Row>,
    /// The last commit that changed a group. Its counts are those of its rows.
    pub(super) changed: BTreeMap<(SegmentIndex, u64), CommitSeq>,
    /// Stores that have shared content with another, for good (`HISTORY-8`).
    sharing: BTreeSet<StoreId>,
}

/// Blocks, and who holds them.
#[derive(Debug, Clone)]
pub(super) struct Row {
    pub(super) block_count: u64,
    /// The owner.
    store: StoreId,
    ino: Ino,
    retired_seq: Option<CommitSeq>,
    pub(super) sharers: BTreeSet<(StoreId, Ino)>,
    born_seq: CommitSeq,
}

/// What a change set has done to holders.
#[derive(Debug, Default)]
pub(super) struct HolderChanges {
    /// What nobody holds any more.
    pub(super) retired: Vec<Extent>,
    /// What was retired and lives again, and how many of `retired` come before that.
    pub(super) revived: Vec<(Extent, usize)>,
}

pub(super) fn place_of(extent: &Extent) -> Place {
    (extent.segment, extent.start_block)
}

/// Where rows begin that lie in `extent`.
fn places(extent: &Extent) -> Range<Place> {
    place_of(extent)..(extent.segment, extent.end_block())
}

pub(super) fn extent_row((place, row): (&Place, &Row)) -> ExtentRow {
    ExtentRow {
        extent: row.extent_at(*place),
        store: row.store,
        ino: row.ino,
        retired_seq: row.retired_seq,
        shared_count: row.sharers.len() as u64,
        born_seq: row.born_seq,
    }
}

impl Row {
    fn extent_at(&self, (segment, start_block): Place) -> Extent {
        Extent::new(segment, start_block, self.block_count)
    }

    pub(super) fn owner(&self) -> (StoreId, Ino) {
        (self.store, self.ino)
    }

    pub(super) fn is_held_by(&self, holder: (StoreId, Ino)) -> bool {
        self.owner() == holder || self.sharers.contains(&holder)
    }

    /// Whether commits up to `horizon` retired it.
    pub(super) fn is_retired_by(&self, horizon: CommitSeq) -> bool {
        self.retired_seq.is_some_and(|seq| seq <= horizon)
    }

    /// The owner lets go: one of its sharers owns it. There is one.
    fn hand_over(&mut self) {
        if let Some((store, ino)) = self.sharers.pop_first() {
            (self.store, self.ino) = (store, ino);
        }
    }
}

impl Space {
    /// All rows, by place.
    pub(super) fn extents(&self) -> impl Iterator<Item = ExtentRow> {
        self.rows.iter().map(extent_row)
    }

    /// The rows that have a block in common with `extent`, last first.
    pub(super) fn under(&self, extent: &Extent) -> Vec<ExtentRow> {
        let before_end = (extent.segment, 0)..(extent.segment, extent.end_block());
        let rows = self.rows.range(before_end).rev().map(extent_row);
        rows.take_while(|row| row.extent.overlaps(extent)).collect()
    }

    /// The rows of one group, by start.
    pub(super) fn in_ag(&self, segment: SegmentIndex, ag: u64) -> impl Iterator<Item = ExtentRow> {
        let first = ag.saturating_mul(AG_BLOCKS);
        let places = (segment, first)..(segment, first.saturating_add(AG_BLOCKS));
        self.rows.range(places).map(extent_row)
    }

    /// Inserts live rows of commit `seq`, joined to those of the same holder that they touch in
    /// their group. `allocated` is coalesced.
    pub(super) fn allocate(&mut self, seq: CommitSeq, allocated: &[Held]) -> Result<()> {
        for run in allocated.chunk_by(|left, right| left.0.is_followed_by(&right.0)) {
            let block_count = run.iter().map(|(extent, ..)| extent.block_count).sum();
            let whole_run = Extent::new(run[0].0.segment, run[0].0.start_block, block_count);
            if let Some(taken) = self.under(&whole_run).first() {
                return Err(CatalogError::corrupt(format!(
                    "{whole_run} is to be allocated, but inode {} of store {} holds {} (CATALOG-1)",
                    taken.ino, taken.store, taken.extent
                )));
            }
            for (extent, store, ino) in run {
                self.add(seq, *extent, *store, *ino)?;
            }
        }
        Ok(())
    }

    fn add(&mut self, seq: CommitSeq, extent: Extent, store: StoreId, ino: Ino) -> Result<()> {
        let joins = |row: &ExtentRow| {
            (row.store, row.ino, row.retired_seq) == (store, ino, None)
                && row.shared_count == 0 // SHARE-3
                && row.extent.ag_index() == extent.ag_index()
        };
        let before = self.rows.range(..place_of(&extent)).next_back();
        let left =
            (before.map(extent_row)).filter(|row| joins(row) && row.extent.is_followed_by(&extent));
        let after = (extent.segment, extent.end_block());
        let right = (self.rows.get_key_value(&after).map(extent_row)).filter(joins);
        let mut whole = extent;
        for row in [&left, &right].into_iter().flatten() {
            self.rows.remove(&place_of(&row.extent));
            whole.start_block = whole.start_block.min(row.extent.start_block);
            whole.block_count += row.extent.block_count;
        }
        let is_in_group = whole.ag_index() == (whole.end_block() - 1) / AG_BLOCKS;
        require(is_in_group && ino.0 > 0, "extents: a group, and an inode")?;
        let row = Row {
            block_count: whole.block_count,
            store,
            ino,
            retired_seq: None,
            sharers: BTreeSet::new(),
            born_seq: seq,
        };
        self.rows.insert(place_of(&whole), row);
        Ok(())
    }

    /// What a change set does to holders, in its order.
    pub(super) fn apply_holders(
        &mut self,
        seq: CommitSeq,
        shared: &[Sharing],
        retired: &[Held],
    ) -> Result<HolderChanges> {
        let (mut holders, mut done) = (HolderChanges::default(), 0);
        for sharing in shared {
            let part = retired
                .get(done..sharing.retired_before)
                .ok_or_else(|| CatalogError::invalid("what is shared out of order is refused"))?;
            holders.retired.extend(self.retire(seq, part)?);
            let revived = self.share(sharing)?;
            let before = holders.retired.len();
            (holders.revived).extend(revived.into_iter().map(|extent| (extent, before)));
            done = sharing.retired_before;
        }
        holders.retired.extend(self.retire(seq, &retired[done..])?);
        Ok(holders)
    }

    /// Gives blocks one more holder. Returns what was retired and lives again, last first.
    fn share(&mut self, sharing: &Sharing) -> Result<Vec<Extent>> {
        let (extent, store, ino) = sharing.held;
        let refuse = |why: String| {
            let what = format!("{extent} is to be shared, but {why} (SHARE-1)");
            Err(CatalogError::corrupt(what))
        };
        let (mut revived, mut covered_blocks) = (Vec::new(), 0);
        self.cut_out(&extent);
        for (place, row) in self.rows.range_mut(places(&extent)).rev() {
            let part = row.extent_at(*place);
            covered_blocks += part.block_count;
            if row.store != store {
                self.sharing.extend([row.store, store]);
            }
            match row.retired_seq {
                Some(retired) if sharing.as_of.is_none_or(|as_of| retired <= as_of) => {
                    return refuse(format!("{part} is retired (SHARE-9)"));
                }
                Some(_) => {
                    (row.retired_seq, row.store, row.ino) = (None, store, ino);
                    revived.push(part);
                }
                None if row.is_held_by((store, ino)) => {
                    return refuse(format!("inode {ino} of store {store} holds {part}"));
                }
                None => drop(row.sharers.insert((store, ino))),
            }
            require(ino.0 > 0, "sharers: an inode")?;
        }
        match covered_blocks == extent.block_count {
            true => Ok(revived),
            false => refuse(format!("only {covered_blocks} of its blocks are allocated")),
        }
    }

    /// Lets objects hold these extents no more. What has no other holder is retired, and returned.
    fn retire(&mut self, seq: CommitSeq, retired: &[Held]) -> Result<Vec<Extent>> {
        let mut gone = Vec::with_capacity(retired.len());
        for (extent, store, ino) in retired {
            let refuse = |why: String| {
                let who = format!("inode {ino} of store {store}");
                let what = format!("{who} lets go of {extent}, but {why} (SHARE-1)");
                Err(CatalogError::corrupt(what))
            };
            let (holder, mut covered_blocks) = ((*store, *ino), 0);
            self.cut_out(extent);
            for (place, row) in self.rows.range_mut(places(extent)).rev() {
                let part = row.extent_at(*place);
                covered_blocks += part.block_count;
                if row.retired_seq.is_some() {
                    return refuse(format!("{part} is retired already"));
                }
                if !row.is_held_by(holder) {
                    return refuse(format!("does not hold {part}"));
                }
                if row.sharers.is_empty() {
                    row.retired_seq = Some(seq);
                    gone.push(part);
                } else if !row.sharers.remove(&holder) {
                    row.hand_over();
                }
            }
            if covered_blocks != extent.block_count {
                return refuse(format!("only {covered_blocks} of its blocks are allocated"));
            }
        }
        Ok(gone)
    }

    /// Cuts rows where `extent` begins and ends, so that none lies in it in part (`SHARE-3`).
    fn cut_out(&mut self, extent: &Extent) {
        for block in [extent.start_block, extent.end_block()] {
            let before = (extent.segment, 0)..(extent.segment, block);
            let Some((place, row)) = self.rows.range_mut(before).next_back() else {
                continue;
            };
            let left_count = block - place.1;
            if left_count < row.block_count {
                let right = Row {
                    block_count: row.block_count - left_count,
                    ..row.clone()
                };
                row.block_count = left_count;
                self.rows.insert((extent.segment, block), right);
            }
        }
    }

    /// A store goes: what only it holds is retired, and returned.
    pub(super) fn retire_store(&mut self, seq: CommitSeq, store: StoreId) -> Vec<Extent> {
        let mut gone = Vec::new();
        for (place, row) in &mut self.rows {
            row.sharers.retain(|(sharer, _)| *sharer != store);
            if row.store != store || row.retired_seq.is_some() {
                continue;
            }
            match row.sharers.is_empty() {
                true => {
                    row.retired_seq = Some(seq);
                    gone.push(row.extent_at(*place));
                }
                false => row.hand_over(),
            }
        }
        gone
    }

    /// Deletes what was retired at or before these commits, and returns how far they go and what
    /// is free, by place. `owners` are the stores with tables of their own.
    pub(super) fn reclaim(
        &mut self,
        wished: &RetentionHorizons,
        owners: &[StoreId],
    ) -> (RetentionHorizons, Vec<Extent>) {
        let base = wished.base();
        if wished.is_even() {
            let gone = self.delete_where(|_, row| row.is_retired_by(base));
            return (RetentionHorizons::even(base), gone);
        }
        let rest = wished.rest().max(base);
        let horizon_of = |store: StoreId| match owners.contains(&store) {
            true => wished.of(store).max(base),
            false => rest,
        };
        let shared = self.sharing.iter().map(|store| horizon_of(*store)).min(); // HISTORY-8
        let sharing = self.sharing.clone();
        let gone = self.delete_where(|_, row| {
            let horizon = shared.filter(|_| sharing.contains(&row.store));
            row.is_retired_by(horizon.unwrap_or_else(|| horizon_of(row.store)))
        });
        let stores = owners.iter().map(|store| (*store, horizon_of(*store)));
        (RetentionHorizons::new(base, rest, stores.collect()), gone)
    }

    /// Deletes what is left of the rows that these commits retired there.
    pub(super) fn reclaim_moved(&mut self, moved: &[(Extent, CommitSeq)]) -> Vec<Extent> {
        let gone = moved.iter().flat_map(|(place, seq)| {
            self.delete_where(|(segment, start), row| {
                segment == place.segment
                    && (place.start_block..place.end_block()).contains(&start)
                    && row.retired_seq == Some(*seq)
            })
        });
        gone.collect()
    }

    fn delete_where(&mut self, goes: impl Fn(Place, &Row) -> bool) -> Vec<Extent> {
        let gone = self.rows.extract_if(.., |place, row| goes(*place, row));
        gone.map(|(place, row)| row.extent_at(place)).collect()
    }

    /// Commit `seq` has changed the groups of these extents.
    pub(super) fn note_changed<'e>(
        &mut self,
        seq: CommitSeq,
        extents: impl IntoIterator<Item = &'e Extent>,
    ) {
        let groups = extents.into_iter().map(|one| (one.segment, one.ag_index()));
        self.changed.extend(groups.map(|group| (group, seq)));
    }
}

/// Sorts allocations by place and joins those that touch in one group and have one holder.
pub(super) fn coalesce(allocated: &[Held]) -> Vec<Held> {
    let mut sorted = allocated.to_vec();
    sorted.sort_unstable();
    sorted.dedup_by(|next, last| {
        let joins = (last.1, last.2) == (next.1, next.2)
            && last.0.is_followed_by(&next.0)
            && last.0.ag_index() == next.0.ag_index();
        if joins {
            last.0.block_count += next.0.block_count;
        }
        joins
    });
    sorted
}
