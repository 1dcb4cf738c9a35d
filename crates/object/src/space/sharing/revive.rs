//! Sharing content of the past: an object takes over blocks that a state of before has named, and
//! nothing is copied.
//!
//! ```text
//!  the map as of S ─▶ where that lies by now ─▶ its extent rows ─┬─ live: one more holder
//!   (less what lay     (moved, or copied before                  └─ retired: lives again (SHARE-9)
//!    in redo rows)        it was written over)
//! ```
//!
//! What comes back so is what a clone of a snapshot, and a restore of what was deleted, need: no
//! content is read or written, and no space is taken. Not shared, but copied by the caller: what
//! lay in redo rows at S, inline content, lists of pieces, offsets that are no multiples of a
//! block, and targets of redo rows that their holder has not applied yet.
//!
//! # Invariants
//! * `SHARE-10` From the look at where the content of S lies to the group that takes it over
//!   nothing is committed, and the state is still kept then. *Guard*: the lock of the commits, and
//!   the writer lock; the pin of the state is looked for after that. In the commit of that group
//!   holders come before what is reclaimed, so the end of the pin may come at any time.
//!
//! Blocks with redo rows are not shared here either (SHARE-4): the holder of a live row may be
//! another object than the one that is read, with redo rows that wait; a row that was shared in
//! part by this group is one row still. And none is applied meanwhile.
//!
//! # Why the histories stay as they were
//! The row lives longer than `retired_seq` said, so nobody's past loses it. Who holds it now may
//! write over it in place or move it: then it has a pre-image, which counts for all states before
//! (`HISTORY-4`, `HISTORY-5`), those of former holders among them. Pre-images that are older than
//! the commit that brought it back count for older states only, so the new holder's past does not
//! meet them.
//!
//! # Why no free set is wrong
//! A retired block is in no free set: in memory it is a number of its group's quarantine, and it
//! becomes free when a commit has deleted its row. That commit and this one have the writer lock,
//! one after the other, and both look at the row. The number is put right when this commit is
//! known: here by `quarantine_retired`, elsewhere by the counts of `larder_ag`.

use super::{Offer, Run, find_clean};
use crate::engine::{EngineSharing, lock};
use crate::view::View;
use crate::view::extent_map::Mapped;
use crate::view::node::Node;
use crate::write::edit::too_large;
use crate::write::guard::step;
use crate::{ErrorKind, Result};
use larder_catalog::{ExtentRow, GRANTS};
use larder_space::format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use larder_space::format::{CommitSeq, Extent, FileKind, Ino, StoreId};
use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// The targets of the redo rows of objects.
type RedoTargets = HashMap<(StoreId, Ino), Vec<Extent>>;

impl EngineSharing<'_> {
    /// Gives `to` the content that `from` had in `past`, another moment of this database, from
    /// `from_offset` on, in the place of what it has from `to_offset` on, without copying. Returns
    /// how many bytes, at most `len_bytes`: fewer where something cannot be shared, after 1 GiB,
    /// and at the end of `from`; 0 where nothing can be, and the caller copies. Both may be the
    /// same inode. What is shared counts as written: length and times of `to` change. Errors:
    /// [`ErrorKind::FileTooLarge`], [`ErrorKind::NotFound`]. Cost: the map pages of the range, and
    /// two or three looks at the catalog for each piece of it; where `to` has just let go of
    /// something a commit.
    pub fn share_past(
        &self,
        past: &View,
        (from, from_offset): (&Arc<Node>, u64),
        (to, to_offset): (&Arc<Node>, u64),
        len_bytes: u64,
    ) -> Result<u64> {
        let is_aligned =
            from_offset.is_multiple_of(BLOCK_BYTES) && to_offset.is_multiple_of(BLOCK_BYTES);
        let are_files = from.kind() == FileKind::File && to.kind() == FileKind::File;
        let can_be = is_aligned && are_files && len_bytes > 0 && self.session.workspace.is_none();
        let shown = past
            .moment()
            .shows()
            .filter(|_| past.moment().is_of_one_database(self));
        let Some((as_of, _)) = shown.filter(|_| can_be) else {
            return Ok(0);
        };
        let end = to_offset.checked_add(len_bytes);
        if end.is_none_or(|end| end > FILE_BYTES_MAX) {
            return Err(too_large());
        }
        step("take the writer lock")?;
        let _edit = self.edit_sharing()?;
        // What it has let go of it may get again, when the catalog knows (`SHARE-1`).
        let is_holder = |held: &(Extent, StoreId, Ino)| (held.1, held.2) == (to.store, to.ino);
        let is_fresh = self.lock_node(to)?.is_fresh;
        let has_let_go = || lock(&self.group).retired.iter().any(is_holder);
        if !is_fresh && has_let_go() {
            self.commits().commit_now()?;
        }
        // A running apply writes targets that their object may have let go of meanwhile.
        let _no_apply = lock(&self.redo_rows.applying);
        let _no_commit = self.commit_lock.lock(); // SHARE-10
        let _barrier = self.enter_barrier();
        let to_size = {
            let mut state = self.lock_node(to)?;
            self.maps().load_content(to, &mut state)?;
            if state.content.pieces.is_some() {
                return Ok(0);
            }
            state.row.size_bytes
        };
        let target = (to, to_offset, to_size);
        step("look at the source")?;
        let offer = self.offer_past((past, as_of), (from, from_offset), target, len_bytes)?;
        step("look for the pin")?;
        past.moment().require_shown()?; // SHARE-10
        let Some(offer) = offer else {
            return Ok(0);
        };
        if !self.hold(to, &offer, Some(as_of)) {
            return Ok(0);
        }
        self.take_over((from, from_offset), (to, to_offset), &offer)
    }

    /// What of the content as of a commit can be shared from `from_offset` on.
    fn offer_past(
        &self,
        (past, as_of): (&View, CommitSeq),
        (from, from_offset): (&Arc<Node>, u64),
        (to, to_offset, to_size): (&Arc<Node>, u64, u64),
        len_bytes: u64,
    ) -> Result<Option<Offer>> {
        let found = {
            let mut state = past.lock_node(from)?;
            find_clean(
                past,
                (from, &mut state),
                from_offset,
                (to_offset, to_size),
                len_bytes,
            )?
        };
        let Some(mut offer) = found else {
            return Ok(None);
        };
        let mut redo_targets = RedoTargets::new();
        let mut runs = Vec::with_capacity(offer.runs.len());
        for run in std::mem::take(&mut offer.runs) {
            let shared = self.share_run((&run, as_of), to, &mut redo_targets, &mut runs)?;
            if shared < run.extent.block_count {
                let places = (from_offset / BLOCK_BYTES, to_offset / BLOCK_BYTES);
                offer.cut(places, run.logical_block + shared);
                break;
            }
        }
        offer.runs = runs;
        Ok((offer.block_count > 0).then_some(offer))
    }

    /// Adds what of a run can be shared, from its beginning on, where it lies by now; says how many
    /// blocks.
    fn share_run(
        &self,
        (run, as_of): (&Run, CommitSeq),
        to: &Node,
        redo_targets: &mut RedoTargets,
        runs: &mut Vec<Run>,
    ) -> Result<u64> {
        let mut done = 0;
        for place in self.moment().places_of(&run.extent, as_of)? {
            let before = done;
            // In parts of rows: places that touch may lie in two groups.
            for row in self.catalog.space().extents_under(&place)? {
                let start = row.extent.start_block.max(place.start_block);
                let stop = row.extent.end_block().min(place.end_block());
                if start - place.start_block != done - before {
                    break;
                }
                let part = place.slice(start - place.start_block, stop - start);
                let count = self.shareable_blocks((&row, &part), as_of, to, redo_targets)?;
                if count > 0 {
                    let (from, until) = (done as usize, (done + count) as usize);
                    runs.push(Run {
                        logical_block: run.logical_block + done,
                        extent: part.slice(0, count),
                        checksums: run.checksums[from..until].to_vec(),
                    });
                }
                done += count;
                if count < part.block_count {
                    return Ok(done);
                }
            }
            if done - before < place.block_count {
                return Ok(done); // Nothing holds it: to read it will tell.
            }
        }
        Ok(done)
    }

    /// How many blocks of `part`, of a row, `to` may share.
    fn shareable_blocks(
        &self,
        (row, part): (&ExtentRow, &Extent),
        as_of: CommitSeq,
        to: &Node,
        redo_targets: &mut RedoTargets,
    ) -> Result<u64> {
        if lock(&self.shares.young).is_held(part, (to.store, to.ino)) {
            return Ok(0); // SHARE-1: one map names a block once.
        }
        if let Some(retired_seq) = row.retired_seq {
            return Ok(if retired_seq > as_of {
                part.block_count
            } else {
                0
            }); // SHARE-9
        }
        if row.store == GRANTS || self.catalog.space().holds(part, to.store, to.ino)? {
            return Ok(0);
        }
        if row.shared_count > 0 {
            return Ok(part.block_count); // Nothing of it has a redo row.
        }
        let targets = match redo_targets.entry((row.store, row.ino)) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => new.insert(self.redo_targets(row.store, row.ino)?),
        };
        let within = targets.iter().filter(|target| target.overlaps(part));
        let first = within
            .map(|target| target.start_block - part.start_block)
            .min();
        Ok(first.unwrap_or(part.block_count))
    }

    /// The targets of the redo rows of an object (`SHARE-4`). The caller has the lock of the
    /// commits: no redo row is made meanwhile.
    fn redo_targets(&self, store: StoreId, ino: Ino) -> Result<Vec<Extent>> {
        if self.redo_rows.blocks.load(Ordering::SeqCst) == 0 {
            return Ok(Vec::new());
        }
        let node = match self.lookup().node(store, ino) {
            // Deleted by the open group; the redo rows go with it.
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            node => node?,
        };
        let mut guard = self.lock_node(&node)?;
        let state = &mut *guard;
        if state.is_deleted {
            return Ok(Vec::new());
        }
        self.maps().load_content(&node, state)?;
        let source = self.maps().map_source(&node);
        let content = &mut state.content;
        let mut targets = Vec::with_capacity(content.redo_rows.blocks.len());
        for &block in content.redo_rows.blocks.keys() {
            if let Mapped::Run { extent, .. } = content.map.find(source, block)? {
                targets.push(extent.slice(0, 1));
            }
        }
        Ok(targets)
    }
}
