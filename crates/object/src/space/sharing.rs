//! Sharing content: an object takes over blocks of another one, and nothing is copied.
//!
//! ```text
//!  source, under its lock          the open group                     target, under its lock
//!  what is clean and mapped ──────▶ one more holder of each extent ──▶ the map names them
//!                                    └── the target has changed meanwhile: it lets go again
//! ```
//!
//! All of that happens inside the freeze barrier, so it is in one group. Blocks of the source that
//! differ from what its map names (dirty, frozen, with a redo row) are not shared: the caller
//! copies them. Before, what is dirty is committed and redo rows are written in place, so that
//! there are few.
//!
//! What is shared out of the past: see `past`.
//!
//! # Words
//! *Holder*, *owner* and *sharer* are those of the catalog (`holders`). *Young*: held by a group
//! that is not committed, because it is shared, or was placed or moved there.
//!
//! # Invariants
//! `SHARE-1` to `SHARE-3` and `SHARE-9`, and `SHARE-7` and `SHARE-8` of the pages of maps, stand in
//! the catalog.
//! * `SHARE-4` A block that has several holders is never written over: no redo row is made of it,
//!   and no block with a redo row is shared.
//! * `SHARE-5` A block that has several holders is not moved.
//! * `SHARE-6` Once anything may be shared, what an object lets go is quarantined in memory when
//!   the catalog has said that it was the last holder, and not before. *Guard*: that begins with an
//!   empty group.
//!
//! # Cost
//! Where nothing is shared: a look at a flag for each run that may become a redo row or is moved;
//! one lookup in an empty table when the free set is read anew. Where something is: a lookup in the
//! extent rows for each of these runs.
//!
//! # Concurrency
//! One node is locked at a time. The source may be changed as soon as it is unlocked: its blocks
//! have a further holder then, in the same group or an earlier one than the change.

use crate::engine::{Edit, EngineSharing, lock};
use crate::space::{FreeSpace, Young};
use crate::view::View;
use crate::view::extent_map::Mapped;
use crate::view::node::{Node, NodeState, require_alive};
use crate::write::guard::step;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{CommitOutcome, Held, MapShare, Sharing};
use larder_space::Purpose;
use larder_space::format::limits::{BLOCK_BYTES, FILE_BYTES_MAX, MAP_PAGE_BLOCKS};
use larder_space::format::{CommitSeq, Extent, FileKind, Ino, StoreId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

mod revive;

/// Mapped blocks that are shared in one step at most (1 GiB).
const STEP_BLOCKS: u64 = (1 << 30) / BLOCK_BYTES;

impl Young {
    /// An object holds it, for whatever reason. No group is older than those before. O(log young).
    fn hold(&mut self, generation: u64, (extent, store, ino): Held) {
        let of = self.by_holder.entry((store, ino)).or_default();
        // Where it had let go of a part, that is as young as this now.
        while let Some((&(segment, at), &(until, group))) =
            of.range(..(extent.segment, extent.end_block())).next_back()
            && segment == extent.segment
            && until > extent.start_block
        {
            of.remove(&(segment, at));
            if at < extent.start_block {
                of.insert((segment, at), (extent.start_block, group));
            }
            if until > extent.end_block() {
                of.insert((segment, extent.end_block()), (until, group));
            }
        }
        let place = (extent.segment, extent.start_block);
        of.insert(place, (extent.end_block(), generation));
    }

    /// The same because it shares it.
    fn share(&mut self, generation: u64, held: Held) {
        let extent = held.0;
        self.hold(generation, held);
        let (mut start, mut end) = (extent.start_block, extent.end_block());
        while let Some((&(segment, at), &until)) =
            self.covered.range(..=(extent.segment, end)).next_back()
            && segment == extent.segment
            && until >= start
        {
            self.covered.remove(&(segment, at));
            (start, end) = (start.min(at), end.max(until));
        }
        self.covered.insert((extent.segment, start), end);
    }

    /// What was shared last by a holder was taken back.
    fn forget(&mut self, (extent, store, ino): &Held) {
        let Some(of) = self.by_holder.get_mut(&(*store, *ino)) else {
            return;
        };
        of.remove(&(extent.segment, extent.start_block));
        if of.is_empty() {
            self.by_holder.remove(&(*store, *ino));
        }
        if self.by_holder.is_empty() {
            self.covered.clear();
        }
    }

    /// Whether anybody has just shared a block of `extent`.
    fn covers(&self, extent: &Extent) -> bool {
        let mut before = self.covered.range(..(extent.segment, extent.end_block()));
        before.next_back().is_some_and(|(&(segment, _), &until)| {
            segment == extent.segment && until > extent.start_block
        })
    }

    /// Whether this object has just come to hold one. O(log young).
    fn is_held(&self, extent: &Extent, holder: (StoreId, Ino)) -> bool {
        let before_end = ..(extent.segment, extent.end_block());
        let of = self.by_holder.get(&holder);
        let last = of.and_then(|of| of.range(before_end).next_back());
        last.is_some_and(|(&(segment, _), &(until, _))| {
            segment == extent.segment && until > extent.start_block
        })
    }

    /// What came up to this group is young no more.
    fn grow_up(&mut self, generation: u64) {
        self.by_holder.retain(|_, of| {
            of.retain(|_, (_, at)| *at > generation);
            !of.is_empty()
        });
        if self.by_holder.is_empty() {
            self.covered.clear();
        }
    }
}

/// Blocks of the target.
struct Run {
    logical_block: u64,
    extent: Extent,
    checksums: Vec<u32>,
}

/// What a source offers.
struct Offer {
    runs: Vec<Run>,
    /// Blocks of it, holes included.
    block_count: u64,
    /// Where it ends in the source, bytes.
    end: u64,
    /// Its last block is the last one of the source, and the end of the source is inside.
    has_tail: bool,
}

impl Offer {
    /// Leaves out what begins at this block of the target, when it was at `first` of the source and
    /// is now at `to_first`.
    fn cut(&mut self, (first, to_first): (u64, u64), block: u64) {
        self.block_count = block - to_first;
        let end = (first + self.block_count) * BLOCK_BYTES;
        self.has_tail &= end > self.end;
        self.end = self.end.min(end);
    }
}

/// What of a source is mapped and nothing else from `from_offset` on, up to 1 GiB.
fn find_clean(
    view: &View,
    (from, state): (&Node, &mut NodeState),
    from_offset: u64,
    (to_offset, to_size): (u64, u64),
    len_bytes: u64,
) -> Result<Option<Offer>> {
    require_alive(state)?;
    view.maps().load_content(from, state)?;
    let size = state.row.size_bytes;
    let content = &mut state.content;
    if content.pieces.is_some() || content.inline.is_some() || from_offset >= size {
        return Ok(None);
    }
    let end = size.min(from_offset.saturating_add(len_bytes));
    let first = from_offset / BLOCK_BYTES;
    let covers_end = to_size <= to_offset + (end - from_offset);
    let has_tail = end == size && !end.is_multiple_of(BLOCK_BYTES) && covers_end;
    let mut stop = match has_tail {
        true => end.div_ceil(BLOCK_BYTES),
        false => end / BLOCK_BYTES,
    };
    let frozen = content.frozen.as_ref();
    let unclean = [
        content.gather.next_present(first),
        frozen.and_then(|frozen| frozen.next_present(first)),
        content.redo_rows.next_present(first),
    ];
    stop = unclean.into_iter().flatten().fold(stop, u64::min);
    let source = view.maps().map_source(from);
    let (mut runs, mut at, mut left) = (Vec::new(), first, STEP_BLOCKS);
    while at < stop && left > 0 {
        match content.map.find(source, at)? {
            Mapped::Hole(_) => match content.map.next_mapped(source, at, stop)? {
                Some(next) => at = next,
                None => at = stop,
            },
            Mapped::Run { extent, checksums } => {
                let count = extent.block_count.min(stop - at).min(left);
                runs.push(Run {
                    logical_block: at - first + to_offset / BLOCK_BYTES,
                    extent: extent.slice(0, count),
                    checksums: checksums[..count as usize].to_vec(),
                });
                (at, left) = (at + count, left - count);
            }
        }
    }
    Ok((at > first).then(|| Offer {
        runs,
        block_count: at - first,
        end: end.min(at * BLOCK_BYTES),
        has_tail: has_tail && at * BLOCK_BYTES > end,
    }))
}

impl EngineSharing<'_> {
    /// Gives `to` the content that `from` has from `from_offset` on, in the place of what it has
    /// from `to_offset` on, without copying. Returns how many bytes, at most `len_bytes`: fewer
    /// where the source has just been written, after 1 GiB, and at its end; 0 where nothing can be
    /// shared, and the caller copies: offsets that are no multiples of a block, the same file,
    /// inline content, lists of pieces, long transactions. What is shared counts as written: length
    /// and times of `to` change. Errors: [`ErrorKind::FileTooLarge`], [`ErrorKind::NotFound`].
    /// Cost: the map pages of the range, and where the source was not settled a commit and an
    /// apply.
    pub fn share(
        &self,
        (from, from_offset): (&Arc<Node>, u64),
        (to, to_offset): (&Arc<Node>, u64),
        len_bytes: u64,
    ) -> Result<u64> {
        let is_aligned =
            from_offset.is_multiple_of(BLOCK_BYTES) && to_offset.is_multiple_of(BLOCK_BYTES);
        let is_one = (from.store, from.ino) == (to.store, to.ino);
        let are_files = from.kind() == FileKind::File && to.kind() == FileKind::File;
        if self.session.workspace.is_some() || !is_aligned || is_one || !are_files || len_bytes == 0
        {
            return Ok(0);
        }
        if to_offset
            .checked_add(len_bytes)
            .is_none_or(|end| end > FILE_BYTES_MAX)
        {
            return Err(crate::write::edit::too_large());
        }
        step("look at the host")?;
        self.content().require_room(Purpose::Ordinary)?;
        step("take the writer lock")?;
        let _edit = self.edit_sharing()?;
        let _barrier = loop {
            step("settle the source")?;
            if !self.settle_source(from, from_offset, len_bytes)? {
                return Ok(0);
            }
            let barrier = self.enter_barrier();
            // A rule may still refuse what is being committed, and it would be gone from there.
            if !self.lock_node(from)?.is_committing {
                break barrier;
            }
        };
        // What is behind its last block there stays; if that changes meanwhile, nothing is taken
        // over.
        step("lock the target's row")?;
        let to_size = self.lock_node(to)?.row.size_bytes;
        step("look at the source")?;
        let Some(offer) = self.offer((from, from_offset), (to, to_offset, to_size), len_bytes)?
        else {
            return Ok(0);
        };
        self.take_over((from, from_offset), (to, to_offset), &offer)
    }

    /// Puts all content where it stays, as far as readers let that be: before much of it is shared.
    /// Cost: a commit, and the apply of all redo rows.
    pub fn settle_content(&self) -> Result<()> {
        let _edit = self.edit()?;
        self.delayed_allocation().place_delayed()?;
        self.commits().commit_now()?;
        self.redo().apply_redo()
    }

    /// Commits what is dirty of the range and writes its redo rows in place, as far as
    /// that can be; `false` if nothing of it can be shared anyway. What is dirty elsewhere stays
    /// so: beside a writer every copy would commit.
    fn settle_source(&self, from: &Arc<Node>, from_offset: u64, len_bytes: u64) -> Result<bool> {
        let first = from_offset / BLOCK_BYTES;
        let end = from_offset.saturating_add(len_bytes).div_ceil(BLOCK_BYTES);
        let is_dirty = {
            let mut state = self.lock_node(from)?;
            require_alive(&state)?;
            self.maps().load_content(from, &mut state)?;
            let content = &state.content;
            let is_new =
                content.inline.is_none() || !content.gather.is_empty() || content.frozen.is_some();
            if content.pieces.is_some() || !is_new || from_offset >= state.row.size_bytes {
                return Ok(false);
            }
            let frozen = content.frozen.as_ref();
            let dirty = [
                content.gather.next_present(first),
                frozen.and_then(|frozen| frozen.next_present(first)),
            ];
            let is_dirty = dirty.into_iter().flatten().any(|block| block < end);
            // While somebody writes, no commit places it for good.
            let is_delayed = content.is_delayed && state.writer_count == 0;
            is_dirty || is_delayed || state.is_committing
        };
        if is_dirty {
            self.delayed_allocation().place_delayed()?;
            self.commits().commit_now()?;
        }
        let has_redo_rows = {
            let mut state = self.lock_node(from)?;
            self.maps().load_content(from, &mut state)?;
            let next = state.content.redo_rows.next_present(first);
            next.is_some_and(|block| block < end)
        };
        if has_redo_rows && self.private.is_none() {
            self.redo().apply_redo()?;
        }
        Ok(true)
    }

    /// What of a source can be shared from `from_offset` on; `to` holds it from here on.
    fn offer(
        &self,
        (from, from_offset): (&Arc<Node>, u64),
        (to, to_offset, to_size): (&Arc<Node>, u64, u64),
        len_bytes: u64,
    ) -> Result<Option<Offer>> {
        let mut guard = self.lock_node(from)?;
        let state = &mut *guard;
        let found = find_clean(
            self,
            (from, state),
            from_offset,
            (to_offset, to_size),
            len_bytes,
        )?;
        let Some(mut offer) = found else {
            return Ok(None);
        };
        for index in 0..offer.runs.len() {
            let run = &offer.runs[index];
            if self.holds(to, &run.extent)? {
                // SHARE-1: one map names a block once.
                let places = (from_offset / BLOCK_BYTES, to_offset / BLOCK_BYTES);
                offer.cut(places, run.logical_block);
                offer.runs.truncate(index);
                break;
            }
        }
        if offer.block_count == 0 {
            return Ok(None);
        }
        // Still under the lock of the source: it cannot let go before.
        Ok(self.hold(to, &offer, None).then_some(offer))
    }

    /// `to` holds what is offered from here on, in the open group; with `as_of` it is content of
    /// that state. `false`, and nothing has changed, if it has just come to hold some of it by
    /// another thread (`SHARE-1`).
    fn hold(&self, to: &Node, offer: &Offer, as_of: Option<CommitSeq>) -> bool {
        let mut group = lock(&self.group);
        let generation = self.open_generation.load(Ordering::SeqCst);
        let mut young = lock(&self.shares.young);
        let is_held = |run: &Run| young.is_held(&run.extent, (to.store, to.ino));
        if offer.runs.iter().any(is_held) {
            return false;
        }
        let retired_before = group.retired.len();
        for run in &offer.runs {
            let held = (run.extent, to.store, to.ino);
            group.shared.push(Sharing {
                held,
                retired_before,
                as_of,
            });
            young.share(generation, held);
        }
        true
    }

    /// Makes what is offered, and held, the content of `to`; 0, and nothing has changed, where that
    /// cannot be.
    fn take_over(
        &self,
        (from, from_offset): (&Arc<Node>, u64),
        (to, to_offset): (&Arc<Node>, u64),
        offer: &Offer,
    ) -> Result<u64> {
        let taken = self.try_take_over((from, from_offset), (to, to_offset), offer);
        if !matches!(taken, Ok(bytes) if bytes > 0) {
            // The freeze barrier has been passed since they were held: the group is the same.
            let mut group = lock(&self.group);
            let mut young = lock(&self.shares.young);
            for run in offer.runs.iter().rev() {
                let held = (run.extent, to.store, to.ino);
                group.forget_share(&held);
                young.forget(&held);
            }
        }
        taken
    }

    fn try_take_over(
        &self,
        (from, from_offset): (&Arc<Node>, u64),
        (to, to_offset): (&Arc<Node>, u64),
        offer: &Offer,
    ) -> Result<u64> {
        step("lock the target")?;
        let mut guard = self.lock_thawed(to)?;
        let state = &mut *guard;
        step("load extended attributes")?;
        self.content().begin_content(to, state)?;
        step("load the content")?;
        self.maps().load_content(to, state)?;
        let bytes = offer.end - from_offset;
        let (end, size) = (to_offset + bytes, state.row.size_bytes);
        // The last block of the source has zeros behind its end.
        let covers_end = size <= end;
        let is_inline = state.content.inline.is_some();
        let fits =
            (covers_end || !offer.has_tail) && (!is_inline || (to_offset == 0 && covers_end));
        if state.content.pieces.is_some() || !fits {
            return Ok(0);
        }
        step("ask the rules")?;
        self.rules().ask_content(to, state, size.max(end), None)?;
        let first = to_offset / BLOCK_BYTES;
        let stop = first + offer.block_count;
        let source = self.maps().map_source(to);
        step("load the map")?;
        state.content.map.load_blocks(source, first, stop)?;
        // From here on nothing fails: the pages of the range are in memory, or there are none.
        let removed = state.content.unmap_loaded(first, stop);
        state.content.inline = None;
        state.content.inline_dirty = false;
        self.delayed_allocation().drop_kept(&mut state.content); // WHOLE-1
        self.content().discard(state, first, stop);
        self.content().retire(to, state, removed);
        for run in &offer.runs {
            let map = &mut state.content.map;
            let replaced = map.insert(source, run.logical_block, run.extent, &run.checksums);
            let is_free = replaced.as_ref().is_ok_and(Vec::is_empty);
            if !is_free {
                self.stop("a map could not take what it shares; reopen the database".into());
                replaced?;
                return Err(broken_map(to));
            }
            state.row.block_count += run.extent.block_count;
        }
        state.row.size_bytes = size.max(end);
        self.content().touch_content(to, state, None);
        self.note_pages((from, from_offset / BLOCK_BYTES), (to, first), offer);
        Ok(bytes)
    }

    /// Notes which pages of the two maps may be the same from the next commit on; it compares them
    /// (`SHARE-7`).
    fn note_pages(
        &self,
        (from, from_first): (&Node, u64),
        (to, first): (&Node, u64),
        offer: &Offer,
    ) {
        let is_one = (from.store, from.ino) == (to.store, to.ino); // As it was.
        if is_one || !first.abs_diff(from_first).is_multiple_of(MAP_PAGE_BLOCKS) {
            return;
        }
        let mut group = lock(&self.group);
        let mut last = None;
        // No run goes beyond its page.
        for run in &offer.runs {
            let page = run.logical_block / MAP_PAGE_BLOCKS;
            if last.replace(page) != Some(page) {
                group.map_shares.push(MapShare {
                    store: to.store,
                    ino: to.ino,
                    page,
                    from_store: from.store,
                    from_ino: from.ino,
                    from_page: (run.logical_block - first + from_first) / MAP_PAGE_BLOCKS,
                });
            }
        }
    }

    /// An object has these extents for itself, and the catalog will know it by this group: whoever
    /// shares them may share them back before (`SHARE-1`). Called under the node's lock, while the
    /// map comes to name them.
    pub(crate) fn note_held(&self, generation: u64, held: impl IntoIterator<Item = Held>) {
        if !self.may_share() {
            return;
        }
        let mut young = lock(&self.shares.young);
        for held in held {
            young.hold(generation, held);
        }
    }

    /// Whether an object holds a block of `extent`, as far as other objects may hold it too.
    fn holds(&self, node: &Node, extent: &Extent) -> Result<bool> {
        let holder = (node.store, node.ino);
        if lock(&self.shares.young).is_held(extent, holder) {
            return Ok(true);
        }
        Ok(self.catalog.space().holds(extent, node.store, node.ino)?)
    }

    // ---- what is shared ---------------------------------------------------------------------

    /// Learns whether anything is shared. Needs the writer lock, and nothing uncommitted.
    pub(crate) fn find_shares(&self) -> Result<()> {
        let may_be = self.catalog.space().has_shared()?;
        self.shares.may_be.store(may_be, Ordering::SeqCst);
        self.forget_shares();
        Ok(())
    }

    pub(crate) fn may_share(&self) -> bool {
        self.shares.may_be.load(Ordering::SeqCst)
    }

    /// Whether a block of `extent` has several holders, or will have when the open group is
    /// committed.
    pub(crate) fn is_shared(&self, extent: &Extent) -> Result<bool> {
        if !self.may_share() {
            return Ok(false);
        }
        // The young first: a commit takes them from there when the catalog has them.
        let is_young = lock(&self.shares.young).covers(extent);
        Ok(is_young || self.catalog.space().is_shared(extent)?)
    }

    /// Joins the users of the writer lock, when quarantining waits for the catalog (`SHARE-6`).
    /// Cost: nothing, but for the first time, when it waits for the other users.
    fn edit_sharing(&self) -> Result<Edit<'_>> {
        loop {
            let edit = self.edit()?;
            // With the writer lock it stays so.
            if self.may_share() {
                return Ok(edit);
            }
            drop(edit);
            // One operation at a time passes a private engine: it is alone anyway.
            let _alone = match self.private {
                None => Some(self.alone()?),
                Some(_) => None,
            };
            self.commits().commit_now()?;
            let _no_commit = self.commit_lock.lock();
            let _barrier = self.close_barrier();
            if lock(&self.group).is_empty() {
                self.shares.may_be.store(true, Ordering::SeqCst);
            }
        }
    }

    /// Quarantines what an object lets go, if nobody else can hold it (`SHARE-6`).
    pub(crate) fn quarantine_unshared(&self, free: &mut FreeSpace, extent: Extent) {
        if !self.may_share() {
            self.workspace().quarantine(free, extent);
        }
    }

    /// Quarantines what nobody holds any more since a commit, and takes back what somebody holds
    /// again (`SHARE-6`).
    pub(crate) fn quarantine_retired(&self, free: &mut FreeSpace, outcome: &CommitOutcome) {
        let is_late = self.may_share();
        assert!(is_late || outcome.revived.is_empty(), "SHARE-6");
        let mut done = 0;
        for (extent, before) in &outcome.revived {
            for retired in &outcome.retired[done..*before] {
                self.workspace().quarantine(free, *retired);
            }
            free.space.revive(*extent);
            done = *before;
        }
        if is_late {
            for extent in &outcome.retired[done..] {
                self.workspace().quarantine(free, *extent);
            }
        }
    }

    /// The catalog knows who came to hold what up to this group.
    pub(crate) fn publish_shares(&self, generation: u64) {
        lock(&self.shares.young).grow_up(generation);
    }

    /// Nothing that was shared is left: the transaction was rolled back.
    pub(crate) fn forget_shares(&self) {
        *lock(&self.shares.young) = Young::default();
    }
}

fn broken_map(node: &Node) -> Error {
    Error::new(
        ErrorKind::Corrupt,
        format!("the map of inode {} changed while it was locked", node.ino),
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_space::format::SegmentIndex;

    /// Looked for one by one in a list of all they would take minutes.
    #[test]
    fn very_many_fragments_of_one_file_are_looked_for_in_no_time() {
        let began = std::time::Instant::now();
        let mut young = Young::default();
        let holder = (StoreId(1), Ino(2));
        for at in 0..150_000 {
            let extent = Extent::new(SegmentIndex(0), 2 * at, 1);
            assert!(!young.is_held(&extent, holder), "SHARE-1");
            young.share(1, (extent, holder.0, holder.1));
        }
        assert!(began.elapsed().as_secs() < 20);
    }

    /// Against a list of all.
    #[test]
    fn the_young_are_found_by_place_and_by_holder() {
        let mut state: u64 = 42;
        let mut below = |bound: u64| {
            state = state
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            (state >> 33) % bound
        };
        let (mut young, mut model) = (Young::default(), Vec::<(u64, Held)>::new());
        for step in 0..2000 {
            let mut some = || {
                let segment = SegmentIndex(below(2) as u32);
                let extent = Extent::new(segment, below(200), 1 + below(9));
                (extent, StoreId(below(2) as u32), Ino(1 + below(5)))
            };
            let (held, asked) = (some(), some());
            young.share(step, held);
            model.push((step, held));
            if step % 40 == 39 {
                let old = step - step % 120;
                young.grow_up(old);
                model.retain(|(at, _)| *at > old);
            }
            let overlaps = |held: &Held| held.0.overlaps(&asked.0);
            let is_there = model.iter().any(|(_, held)| overlaps(held));
            assert!(young.covers(&asked.0) || !is_there, "SHARE-4");
            assert!(!model.is_empty() || !young.covers(&asked.0));
            let is_holder = |held: &Held| (held.1, held.2) == (asked.1, asked.2);
            let is_held = model
                .iter()
                .any(|(_, held)| overlaps(held) && is_holder(held));
            assert_eq!(
                young.is_held(&asked.0, (asked.1, asked.2)),
                is_held,
                "SHARE-1"
            );
        }
    }
}
