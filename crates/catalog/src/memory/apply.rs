//! A change set applied to a state in memory, in the order in which the SQLite catalog applies it:
//! so both refuse what does not fit for the same reason (`MEMORY-1`).

use super::constraints::{require, require_attributes};
use super::space;
use super::state::{Inode, Pages, State, Tables, rank, redo_block_count};
use crate::{
    AttrMask, CatalogError, ChangeSet, CommitOutcome, ContentRow, InodeChange, InodeRow, RedoRow,
    Result, Save,
};
use larder_format::limits::{BLOCK_BYTES, INLINE_BYTES_MAX, SYMLINK_BYTES_MAX};
use larder_format::{CommitSeq, Extent, Ino, StoreId};
use std::collections::{BTreeMap, BTreeSet};

/// Inode numbers that the counter is raised by at a time.
const INO_STRIDE: u64 = 64;

impl State {
    pub(super) fn apply(&mut self, changes: &ChangeSet) -> Result<CommitOutcome> {
        for store in stores_of(changes) {
            self.store(store)?;
        }
        let seq = self.next_seq();
        self.apply_inodes(changes, seq)?;
        self.apply_sides(changes)?;
        self.apply_pieces(changes)?;

        let allocated = space::coalesce(&changes.allocated);
        self.space.allocate(seq, &allocated)?;
        let holders = self
            .space
            .apply_holders(seq, &changes.shared, &changes.retired)?;
        let owners: Vec<StoreId> = self.tables.keys().copied().collect();
        let step = changes.reclaim_horizon.as_ref();
        let step = step.map(|wished| self.space.reclaim(wished, &owners));
        let (reclaim_horizon, mut reclaimed) = match step {
            Some((horizon, extents)) => (Some(horizon), extents),
            None => (None, Vec::new()),
        };
        reclaimed.extend(self.space.reclaim_moved(&changes.moved_away));
        let revived = holders.revived.iter().map(|(extent, _)| extent);
        let changed = allocated.iter().map(|(extent, ..)| extent);
        let changed: Vec<&Extent> = changed
            .chain(&holders.retired)
            .chain(revived)
            .chain(&reclaimed)
            .collect();
        self.space.note_changed(seq, changed);

        self.space.segments.extend(changes.segments.iter().copied());
        self.apply_orphans(changes, seq)?;
        self.info.retired_bytes_total += changes.retired_bytes;
        if let Some((session, pin)) = changes.pin {
            self.move_pin(session, pin)?;
        }
        let redo_blocks_change = self.apply_redo_rows(changes, seq)?;
        Ok(CommitOutcome {
            seq,
            retired: holders.retired,
            revived: holders.revived,
            reclaimed,
            reclaim_horizon,
            has_more: false,
            redo_blocks_change,
        })
    }

    /// Takes the next commit number.
    pub(super) fn next_seq(&mut self) -> CommitSeq {
        self.info.commit_seq.0 += 1;
        self.info.commit_seq
    }

    /// What is new and what changes, what goes over from row to row, and what goes (`SAVE-2`).
    fn apply_inodes(&mut self, changes: &ChangeSet, seq: CommitSeq) -> Result<()> {
        let stays =
            |(_, change): &(StoreId, InodeChange)| !matches!(change, InodeChange::Delete(_));
        let made = match changes.saves.is_empty() && changes.file_ids.is_empty() {
            true => changes.inodes.len(),
            false => changes.inodes.partition_point(stays),
        };
        let (made, gone) = changes.inodes.split_at(made);
        let going: BTreeSet<(StoreId, Ino)> = (changes.inodes.iter())
            .filter_map(|(store, change)| match change {
                InodeChange::Delete(ino) => Some((*store, *ino)),
                InodeChange::Insert(_) | InodeChange::Update(..) => None,
            })
            .collect();
        self.apply_rows(made, changes.has_revived, seq)?;
        for save in &changes.saves {
            if save.is_forced || self.keeps(save.store)? {
                let stays = !going.contains(&(save.store, save.from));
                self.tables_mut(save.store)?.save(save, stays, seq);
            }
        }
        for (store, ino, file_id) in &changes.file_ids {
            self.tables_mut(*store)?.identify(*ino, *file_id, seq)?;
        }
        self.apply_rows(gone, changes.has_revived, seq)
    }

    fn apply_rows(
        &mut self,
        inodes: &[(StoreId, InodeChange)],
        has_revived: bool,
        seq: CommitSeq,
    ) -> Result<()> {
        for group in inodes.chunk_by(|one, other| one.0 == other.0) {
            let owner = self.owner(group[0].0)?;
            let tables = self.tables.entry(owner).or_default();
            let mut ino_max = 0;
            for (_, change) in group {
                match change {
                    InodeChange::Insert(row) => {
                        tables.insert_inode(row, has_revived, seq)?;
                        ino_max = ino_max.max(row.ino.0);
                    }
                    InodeChange::Update(row, mask) => tables.update_inode(row, *mask, seq)?,
                    InodeChange::Delete(ino) => tables.delete_inode(*ino),
                }
            }
            // CATALOG-4
            if let Some(store) = self.stores.get_mut(&owner)
                && store.next_ino <= ino_max
            {
                store.next_ino = ino_max + INO_STRIDE;
            }
        }
        Ok(())
    }

    fn apply_sides(&mut self, changes: &ChangeSet) -> Result<()> {
        for (store, parent, name, ino) in &changes.dirents {
            let names = self.tables_mut(*store)?.dirents.entry(*parent).or_default();
            let key = (rank(name.as_bytes()), name.clone());
            match ino {
                Some(ino) => {
                    require(parent.0 > 0 && ino.0 > 0, "dirents: ino is 1 or more")?;
                    names.insert(key, *ino);
                }
                None => drop(names.remove(&key)),
            }
        }
        for (store, ino, content) in &changes.contents {
            let contents = &mut self.tables_mut(*store)?.contents;
            match content {
                Some(content) => {
                    require(ino.0 > 0, "contents: ino is 1 or more")?;
                    require_bounds(content)?;
                    contents.insert(*ino, content.clone());
                }
                None => drop(contents.remove(ino)),
            }
        }
        for (store, ino, from_page) in &changes.map_cuts {
            if let Some(pages) = self.tables_mut(*store)?.maps.get_mut(ino) {
                drop(pages.split_off(from_page));
            }
        }
        for (store, ino, page, runs) in &changes.map_pages {
            set_page(
                &mut self.tables_mut(*store)?.maps,
                *ino,
                *page,
                runs.as_ref(),
            )?;
        }
        for (store, ino, name, value) in &changes.xattrs {
            let xattrs = self.tables_mut(*store)?.xattrs.entry(*ino).or_default();
            let key = (rank(name), name.clone());
            match value {
                Some(value) => {
                    require(ino.0 > 0, "xattrs: ino is 1 or more")?;
                    require(!name.is_empty(), "xattrs: a name has a byte")?;
                    xattrs.insert(key, value.clone());
                }
                None => drop(xattrs.remove(&key)),
            }
        }
        Ok(())
    }

    /// Whole lists that go, then pages.
    fn apply_pieces(&mut self, changes: &ChangeSet) -> Result<()> {
        for (store, ino) in &changes.piece_drops {
            self.tables_mut(*store)?.pieces.remove(ino);
        }
        for (store, ino, page, entries) in &changes.piece_pages {
            let entries = entries.as_ref();
            set_page(&mut self.tables_mut(*store)?.pieces, *ino, *page, entries)?;
        }
        Ok(())
    }

    fn apply_orphans(&mut self, changes: &ChangeSet, seq: CommitSeq) -> Result<()> {
        for orphan in &changes.orphans_added {
            let is_new = self.orphans.insert(*orphan, seq).is_none();
            require(is_new, "orphans: an inode is one once")?;
        }
        for (store, ino) in &changes.orphans_removed {
            self.orphans.remove(&(*store, *ino));
            self.holders
                .retain(|(of, held, _)| (of, held) != (store, ino));
        }
        self.holders.extend(changes.holders_added.iter().copied());
        for holder in &changes.holders_removed {
            self.holders.remove(holder);
        }
        Ok(())
    }

    /// Deletes what was applied or lost its inode, adds what is new; by how much the blocks in all
    /// rows changed.
    fn apply_redo_rows(&mut self, changes: &ChangeSet, seq: CommitSeq) -> Result<i64> {
        let mut change = 0;
        let count = |rows: &[RedoRow]| rows.iter().map(redo_block_count).sum::<u64>() as i64;
        for (store, ino, upto, _) in &changes.redo_applied {
            if let Some(rows) = self.tables_mut(*store)?.redo_rows.get_mut(ino) {
                let before = count(rows);
                rows.retain(|row| row.seq > *upto);
                change += count(rows) - before;
            }
        }
        for (store, gone) in &changes.inodes {
            if let InodeChange::Delete(ino) = gone
                && let Some(rows) = self.tables_mut(*store)?.redo_rows.remove(ino)
            {
                change -= count(&rows);
            }
        }
        for (store, ino, row) in &changes.redo_rows {
            require_whole(row)?;
            require(ino.0 > 0, "redo rows: ino is 1 or more")?;
            let row = RedoRow { seq, ..row.clone() };
            change += redo_block_count(&row) as i64;
            let rows = self.tables_mut(*store)?.redo_rows.entry(*ino).or_default();
            rows.push(row);
        }
        Ok(change)
    }
}

impl Tables {
    fn insert_inode(&mut self, row: &InodeRow, has_revived: bool, since: CommitSeq) -> Result<()> {
        require_attributes(row)?;
        let is_given = has_revived && self.is_given(row.ino);
        let inode = Inode {
            row: row.clone(),
            since,
            first_ino: is_given.then_some(-(row.ino.0 as i64)),
        };
        let is_new = self.inodes.insert(row.ino, inode).is_none();
        require(is_new, "inodes: a number is given once")
    }

    fn update_inode(&mut self, new: &InodeRow, mask: AttrMask, seq: CommitSeq) -> Result<()> {
        if mask == AttrMask::default() {
            return Ok(());
        }
        let Some(inode) = self.inodes.get_mut(&new.ino) else {
            return Err(CatalogError::corrupt(format!(
                "inode {} is to be changed and does not exist",
                new.ino
            )));
        };
        let row = &mut inode.row;
        if mask.mode {
            row.mode = new.mode;
        }
        if mask.owner {
            (row.uid, row.gid) = (new.uid, new.gid);
        }
        if mask.nlink {
            row.nlink = new.nlink;
        }
        if mask.size {
            (row.size_bytes, row.block_count) = (new.size_bytes, new.block_count);
        }
        if mask.atime {
            row.atime_ns = new.atime_ns;
        }
        if mask.mtime {
            row.mtime_ns = new.mtime_ns;
        }
        if mask.ctime {
            row.ctime_ns = new.ctime_ns;
        }
        if mask.flags {
            row.rdev = new.rdev;
        }
        inode.since = seq;
        require_attributes(&inode.row)
    }

    /// With all that belongs to it but its redo rows, which go with those that were applied.
    fn delete_inode(&mut self, ino: Ino) {
        self.inodes.remove(&ino);
        self.contents.remove(&ino);
        self.maps.remove(&ino);
        self.xattrs.remove(&ino);
        self.pieces.remove(&ino);
    }

    /// Whether the file that an inode was first is another inode now.
    fn is_given(&self, ino: Ino) -> bool {
        self.find_given(ino.0 as i64).is_some()
    }

    /// The inode that is now the file of this number, which is not its own.
    pub(super) fn find_given(&self, file_id: i64) -> Option<Ino> {
        let mut inodes = self.inodes.iter();
        inodes
            .find(|(_, inode)| inode.first_ino == Some(file_id))
            .map(|(ino, _)| *ino)
    }

    /// The number of a file goes over (`SAVE-1`), where both inodes are there. `stays`: the one
    /// that is replaced keeps its row.
    fn save(&mut self, save: &Save, stays: bool, seq: CommitSeq) {
        let from_id = self.inodes.get(&save.from).map(Inode::file_id);
        let Some(from_id) = from_id.filter(|_| self.inodes.contains_key(&save.to)) else {
            return;
        };
        let (from, to) = (save.from.0 as i64, save.to.0 as i64);
        if from_id < 0 {
            return; // It gave its file away before.
        }
        if stays {
            let is_given = from_id == from || self.is_given(save.from);
            self.set_first(save.from, is_given.then_some(-from), seq);
        }
        self.set_first(save.to, (from_id != to).then_some(from_id), seq);
    }

    /// Gives an inode the number of a file that no other one has; else nothing.
    fn identify(&mut self, ino: Ino, file_id: i64, seq: CommitSeq) -> Result<()> {
        let own = u64::try_from(file_id).ok().map(Ino);
        let own = own.and_then(|own| self.inodes.get(&own));
        let is_own = own.is_some_and(|inode| inode.first_ino.is_none());
        if is_own || self.find_given(file_id).is_some() {
            return Ok(());
        }
        if !self.inodes.contains_key(&ino) {
            return Err(CatalogError::corrupt(format!(
                "inode {ino} is to be another file and does not exist"
            )));
        }
        let first = (file_id != ino.0 as i64).then_some(file_id);
        self.set_first(ino, first, seq);
        Ok(())
    }

    fn set_first(&mut self, ino: Ino, first_ino: Option<i64>, seq: CommitSeq) {
        if let Some(inode) = self.inodes.get_mut(&ino) {
            (inode.first_ino, inode.since) = (first_ino, seq);
        }
    }
}

/// The stores whose tables a change set names.
fn stores_of(changes: &ChangeSet) -> BTreeSet<StoreId> {
    let mut ids: BTreeSet<StoreId> = changes.inodes.iter().map(|change| change.0).collect();
    ids.extend(changes.saves.iter().map(|save| save.store));
    ids.extend(changes.file_ids.iter().map(|change| change.0));
    ids.extend(changes.dirents.iter().map(|change| change.0));
    ids.extend(changes.contents.iter().map(|change| change.0));
    ids.extend(changes.map_pages.iter().map(|change| change.0));
    ids.extend(changes.map_cuts.iter().map(|change| change.0));
    ids.extend(changes.piece_drops.iter().map(|change| change.0));
    ids.extend(changes.piece_pages.iter().map(|change| change.0));
    ids.extend(changes.xattrs.iter().map(|change| change.0));
    ids.extend(changes.redo_rows.iter().map(|change| change.0));
    ids.extend(changes.redo_applied.iter().map(|change| change.0));
    ids
}

fn set_page(
    pages: &mut BTreeMap<Ino, Pages>,
    ino: Ino,
    page: u64,
    bytes: Option<&Vec<u8>>,
) -> Result<()> {
    let pages = pages.entry(ino).or_default();
    match bytes {
        Some(bytes) => {
            require(
                ino.0 > 0 && !bytes.is_empty(),
                "pages: of an inode, and not empty",
            )?;
            pages.insert(page, bytes.clone());
        }
        None => drop(pages.remove(&page)),
    }
    Ok(())
}

fn require_bounds(content: &ContentRow) -> Result<()> {
    let is_right = match content {
        ContentRow::Inline(bytes) => bytes.len() as u64 <= INLINE_BYTES_MAX,
        ContentRow::Target(bytes) => (1..=SYMLINK_BYTES_MAX).contains(&bytes.len()),
    };
    require(is_right, "contents: a content is in its bounds")
}

/// A redo row holds its blocks whole, or none of them.
fn require_whole(row: &RedoRow) -> Result<()> {
    let whole = row.blocks.len() as u64 * BLOCK_BYTES;
    let is_whole = row
        .bytes
        .as_ref()
        .is_none_or(|bytes| bytes.len() as u64 == whole);
    require(
        is_whole && !row.blocks.is_empty(),
        "redo rows: one holds its blocks whole, or none of them",
    )
}
