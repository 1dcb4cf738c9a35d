//! Moving sealed blocks: how content comes to lie elsewhere without being changed.
//!
//! A move is an edit of an extent map, like a truncation: it joins the users of the writer lock,
//! takes free blocks, copies with verification, and then, inside the freeze barrier and under the
//! node's lock, lets the map name the new place. The open group carries the new extents and retires
//! the old ones; its commit flushes the segments before the catalog names anything new
//! (`COMMIT-2`). Readers keep the old place until nobody pins it (`SESSION-2`). Times, length and
//! generation of the object stay as they are.
//!
//! ```text
//!  runs of the map ─take─▶ new extents ─copy─▶ written ─install─▶ in the group ─commit─▶ moved
//!                                          └─ the object changed meanwhile: given back (COMPACT-4)
//! ```
//!
//! # Words
//! *Gather an object*: to move what lies in several fragments into one extent, or into fewer.
//!
//! # Invariants
//! * `COMPACT-3` A move changes no byte: every block is verified when it is read, and keeps its
//!   checksum.
//! * `COMPACT-4` An object that was changed while it was copied stays where it is.

use crate::engine::{Engine, EngineCompaction, lock};
use crate::session::workspace::NO_MOVES;
use crate::space::FreeSpace;
use crate::view::extent_map::Mapped;
use crate::view::node::{Node, NodeState};
use crate::{ErrorKind, Result};
use larder_catalog::Held;
use larder_segment::MappedBuf;
use larder_space::format::Extent;
use larder_space::format::limits::{AG_BLOCKS, BLOCK_BYTES};
use larder_space::{Placement, Purpose, Reservation, Space, Target};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Bytes that are copied with one request.
const COPY_BYTES: u64 = 8 << 20;

/// Logical blocks that lie together, with their checksums.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Run {
    logical_block: u64,
    extent: Extent,
    checksums: Vec<u32>,
}

/// What came of a move.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It is in the open group.
    Done {
        blocks: u64,
        fragments_before: u64,
        fragments_after: u64,
    },
    /// It lies as well as it can.
    Whole,
    /// No place is better than the present one.
    NoSpace { blocks: u64 },
    /// It is being written, or was changed or stopped while it was copied.
    Busy,
    /// It would cost more than the caller allows.
    TooDear,
    /// Another object shares some of it: it stays (`SHARE-5`).
    Shared,
}

/// How far a move may go.
pub(crate) struct MoveLimits<'a> {
    /// Blocks to copy at most.
    pub blocks_max: u64,
    /// A fragment less must be had for so many blocks; `u64::MAX`: for any number.
    pub blocks_per_fragment: u64,
    /// Fragments that a gathered part may have at most. More than one takes the largest holes away
    /// from what comes next.
    pub fragments_max: u64,
    /// Only find out what would be done.
    pub is_dry: bool,
    /// Asked between two requests.
    pub should_stop: &'a dyn Fn() -> bool,
}

impl<'e> EngineCompaction<'e> {
    /// Gathers up to one AG of an object's blocks from logical block `*from` on, which becomes the
    /// first block after them, or `None` at the end. The caller is a user of the writer lock.
    pub(crate) fn gather_part(
        &self,
        node: &Arc<Node>,
        from: &mut Option<u64>,
        limits: &MoveLimits<'_>,
    ) -> Result<Moved> {
        self.workspace().require_parent(NO_MOVES)?;
        let first = from.take().unwrap_or(0);
        let _pinned = self.begin_read();
        if node.lock().content.is_delayed {
            return Ok(Moved::Busy); // It is placed whole when it is complete.
        }
        let Some(runs) = self.stable_runs(node, first, AG_BLOCKS, None)? else {
            return Ok(Moved::Busy);
        };
        let blocks = block_count(&runs);
        *from = runs
            .last()
            .filter(|_| blocks == AG_BLOCKS)
            .map(|run| run.logical_block + run.extent.block_count);
        let fragments = count_fragments(runs.iter().map(|run| run.extent));
        if self.are_shared(&runs)? {
            return Ok(Moved::Shared);
        }
        if fragments <= 1 || blocks / (fragments - 1) > limits.blocks_per_fragment {
            return Ok(Moved::Whole);
        }
        if blocks > limits.blocks_max {
            return Ok(Moved::TooDear);
        }
        let fragments_max = limits.fragments_max.min(fragments - 1);
        let Some(taken) = self.take_few(blocks, fragments_max)? else {
            return Ok(Moved::NoSpace { blocks });
        };
        let fragments_after = count_fragments(taken.extents.iter().copied());
        let done = Moved::Done {
            blocks,
            fragments_before: fragments,
            fragments_after,
        };
        if limits.is_dry {
            return Ok(done);
        }
        let moved = self.relocate(node, &runs, first, AG_BLOCKS, None, taken, limits)?;
        Ok(if moved { done } else { Moved::Busy })
    }

    /// Moves the blocks of one live extent row of an object to `to`, or to any place when that is
    /// `None`. The caller is a user of the writer lock.
    pub(crate) fn move_extent(
        &self,
        node: &Arc<Node>,
        from: Extent,
        to: Option<Extent>,
        limits: &MoveLimits<'_>,
    ) -> Result<Moved> {
        self.workspace().require_parent(NO_MOVES)?;
        let _pinned = self.begin_read();
        let Some(runs) = self.stable_runs(node, 0, u64::MAX, Some(from))? else {
            return Ok(Moved::Busy);
        };
        let blocks = block_count(&runs);
        if blocks != from.block_count {
            return Ok(Moved::Busy); // Some of it has just been replaced.
        }
        if self.are_shared(&runs)? {
            return Ok(Moved::Shared);
        }
        if blocks > limits.blocks_max {
            return Ok(Moved::TooDear);
        }
        let taken = match to {
            Some(to) => self.take_exactly(to)?,
            None => self.take_any(blocks)?,
        };
        let Some(taken) = taken else {
            return Ok(Moved::NoSpace { blocks });
        };
        let done = Moved::Done {
            blocks,
            fragments_before: 1,
            fragments_after: taken.extents.len() as u64,
        };
        let moved = self.relocate(node, &runs, 0, u64::MAX, Some(from), taken, limits)?;
        Ok(if moved { done } else { Moved::Busy })
    }

    /// Up to `blocks_max` mapped blocks from logical block `first` on, of them those that lie in
    /// `within`; `None` while the object has dirty blocks or redo rows, or is gone.
    fn stable_runs(
        &self,
        node: &Arc<Node>,
        first: u64,
        blocks_max: u64,
        within: Option<Extent>,
    ) -> Result<Option<Vec<Run>>> {
        let _barrier = self.enter_barrier();
        let mut state = self.lock_thawed(node)?;
        self.runs_of(node, &mut state, first, blocks_max, within)
    }

    fn runs_of(
        &self,
        node: &Node,
        state: &mut NodeState,
        first: u64,
        blocks_max: u64,
        within: Option<Extent>,
    ) -> Result<Option<Vec<Run>>> {
        if state.is_deleted {
            return Ok(None); // The commit that retired its extents read its map, and only that.
        }
        self.maps().load_content(node, state)?;
        let content = &state.content;
        // The target of a redo row is soon written over, where it lies now (REDO-3).
        let has_redo_rows =
            content.redo_rows.next_present(0).is_some() || content.applied.is_some();
        if !content.gather.is_empty() || has_redo_rows {
            return Ok(None);
        }
        let source = self.maps().map_source(node);
        let map = &mut state.content.map;
        let wanted = within.map_or(blocks_max, |extent| extent.block_count);
        let (mut runs, mut at, mut left) = (Vec::new(), first, wanted);
        while left > 0 {
            match map.find(source, at)? {
                Mapped::Hole(_) => match map.next_mapped(source, at, u64::MAX)? {
                    Some(next) => at = next,
                    None => break,
                },
                Mapped::Run { extent, checksums } => {
                    let len = extent.block_count;
                    let inside = match within {
                        Some(within) => overlap(&extent, &within),
                        None => Some((0, len.min(left))),
                    };
                    if let Some((skip, count)) = inside {
                        let checksums = &checksums[skip as usize..(skip + count) as usize];
                        runs.push(Run {
                            logical_block: at + skip,
                            extent: extent.slice(skip, count),
                            checksums: checksums.to_vec(),
                        });
                        left -= count;
                    }
                    at += len;
                }
            }
        }
        Ok(Some(runs))
    }

    /// Whether another object holds some of the runs.
    fn are_shared(&self, runs: &[Run]) -> Result<bool> {
        for run in runs {
            if self.sharing().is_shared(&run.extent)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Copies `runs` to what was taken and lets the map name it; `false`, and nothing has happened,
    /// when the object changed meanwhile (`COMPACT-4`) or the caller wants to stop.
    #[allow(clippy::too_many_arguments)]
    fn relocate(
        &self,
        node: &Arc<Node>,
        runs: &[Run],
        first: u64,
        blocks_max: u64,
        within: Option<Extent>,
        taken: Taken<'_>,
        limits: &MoveLimits<'_>,
    ) -> Result<bool> {
        let pieces = lay_out(runs, &taken.extents);
        if !self.copy(runs, &taken.extents, limits.should_stop)? {
            return Ok(false);
        }
        let _barrier = self.enter_barrier();
        let mut state = self.lock_thawed(node)?;
        let now = self.runs_of(node, &mut state, first, blocks_max, within)?;
        if now.as_deref() != Some(runs) || self.are_shared(runs)? {
            return Ok(false); // SHARE-5
        }
        let source = self.maps().map_source(node);
        let mut replaced = Vec::new();
        for piece in &pieces {
            replaced.extend(state.content.map.insert(
                source,
                piece.logical_block,
                piece.extent,
                &piece.checksums,
            )?);
        }
        let moved: u64 = replaced.iter().map(|extent| extent.block_count).sum();
        debug_assert_eq!(moved, block_count(runs), "COMPACT-3");
        self.content().join_group(node, &mut state);
        let mut group = lock(&self.group);
        let mut free = self.free_space();
        for (from, to) in places(runs, &pieces) {
            group.moves.add(from, to); // HISTORY-5
        }
        // Not counted as retired bytes: the content lives on.
        for extent in replaced {
            self.sharing().quarantine_unshared(&mut free, extent);
            group.retired.push((extent, node.store, node.ino));
            group.moved_away.push(extent);
        }
        let held = taken.keep(&mut free).into_iter();
        let allocated: Vec<Held> = held.map(|extent| (extent, node.store, node.ino)).collect();
        let generation = self.open_generation.load(Ordering::SeqCst);
        self.sharing()
            .note_held(generation, allocated.iter().copied());
        group.allocated.extend(allocated);
        Ok(true)
    }

    /// Reads and verifies the runs, and writes them to `targets`, in large requests (`COMPACT-3`).
    /// Does not flush: the commit does.
    fn copy(
        &self,
        runs: &[Run],
        targets: &[Extent],
        should_stop: &dyn Fn() -> bool,
    ) -> Result<bool> {
        let mut parts = Parts { runs, skip: 0 };
        let largest = targets.iter().map(Extent::len_bytes).max().unwrap_or(0);
        let mut buffer = MappedBuf::zeroed(largest.min(COPY_BYTES) as usize);
        for target in targets {
            let mut done = 0;
            while done < target.block_count {
                if should_stop() {
                    return Ok(false);
                }
                let count = (COPY_BYTES / BLOCK_BYTES).min(target.block_count - done);
                let bytes = &mut buffer[..(count * BLOCK_BYTES) as usize];
                let mut filled = 0;
                while filled < count {
                    let Some((extent, checksums)) = parts.take(count - filled) else {
                        return Ok(false);
                    };
                    let end = filled + extent.block_count;
                    self.segment(extent.segment)?.read(
                        extent.start_block,
                        &mut bytes[(filled * BLOCK_BYTES) as usize..(end * BLOCK_BYTES) as usize],
                        checksums,
                    )?;
                    filled = end;
                }
                self.segment(target.segment)?
                    .write(target.start_block + done, &[bytes])?;
                done += count;
            }
        }
        Ok(true)
    }

    /// Free blocks in at most so many fragments: the best fit.
    fn take_few(&self, blocks: u64, fragments_max: u64) -> Result<Option<Taken<'e>>> {
        let taken = self.take_any(blocks)?;
        Ok(taken.filter(|taken| count_fragments(taken.extents.iter().copied()) <= fragments_max))
    }

    /// Free blocks by best fit, in as many extents as it takes; `None` when there are not so many.
    pub(crate) fn take_any(&self, blocks: u64) -> Result<Option<Taken<'e>>> {
        let reserved = self.free_space().space.reserve(blocks, Purpose::Privileged);
        match reserved {
            Ok(reservation) => self.allocate_reserved(reservation, blocks).map(Some),
            Err(_) => Ok(None),
        }
    }

    /// Turns `blocks` (at least 1) of a reservation into places; the rest of it is given back.
    pub(crate) fn allocate_reserved(
        &self,
        mut reservation: Reservation,
        blocks: u64,
    ) -> Result<Taken<'e>> {
        let _no_commit = self.commit_lock.lock(); // RESERVE-2
        let extents = self
            .space()
            .allocate_extents(&mut reservation, blocks, Placement::Known);
        let mut free = self.free_space();
        free.space.forfeit(reservation);
        let extents = extents?;
        free.taken_count += 1;
        Ok(Taken {
            engine: self.engine,
            extents,
        })
    }

    /// Exactly these blocks, if they are free and not reserved.
    fn take_exactly(&self, extent: Extent) -> Result<Option<Taken<'e>>> {
        let blocks = extent.block_count;
        let target = Target::At(extent.segment, extent.start_block);
        let _no_commit = self.commit_lock.lock(); // RESERVE-2
        let mut free = self.free_space();
        while let Some((segment, ag)) = free.space.find_wanted_ag_for(blocks, target) {
            self.space().load_ag(&mut free.space, segment, ag)?;
        }
        let Ok(mut reservation) = free.space.reserve(blocks, Purpose::Privileged) else {
            return Ok(None);
        };
        let place = free.space.allocate_whole(&mut reservation, blocks, target);
        free.space.forfeit(reservation);
        free.taken_count += u32::from(place.is_some());
        Ok(place.map(|place| Taken {
            engine: self.engine,
            extents: vec![place],
        }))
    }
}

/// Blocks out of the free set that nothing names yet; they go back unless they are kept.
pub(crate) struct Taken<'e> {
    engine: &'e Engine,
    pub(crate) extents: Vec<Extent>,
}

impl Taken<'_> {
    /// The open group has them now.
    pub(crate) fn keep(mut self, free: &mut FreeSpace) -> Vec<Extent> {
        free.taken_count -= 1;
        std::mem::take(&mut self.extents)
    }

    /// Gives back all but the first `blocks` blocks.
    pub(crate) fn cut(&mut self, blocks: u64) {
        let mut free = self.engine.free_space();
        let (mut kept, mut rest, mut left) = (Vec::new(), Vec::new(), blocks);
        for extent in std::mem::take(&mut self.extents) {
            let count = left.min(extent.block_count);
            if count > 0 {
                kept.push(extent.slice(0, count));
            }
            if count < extent.block_count {
                rest.push(extent.slice(count, extent.block_count - count));
            }
            left -= count;
        }
        // Without extents it counts for nothing (`Drop`).
        free.taken_count -= u32::from(kept.is_empty());
        give_back(&mut free.space, &rest);
        self.extents = kept;
    }
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        if self.extents.is_empty() {
            return;
        }
        let mut free = self.engine.free_space();
        free.taken_count -= 1;
        give_back(&mut free.space, &self.extents);
    }
}

/// Frees blocks that no commit has named.
pub(crate) fn give_back(space: &mut Space, extents: &[Extent]) {
    for extent in extents {
        space.quarantine(*extent);
        space.release(*extent);
    }
}

/// Runs that are handed out part by part.
struct Parts<'r> {
    runs: &'r [Run],
    /// Blocks of the first run that are out.
    skip: u64,
}

impl<'r> Parts<'r> {
    fn take(&mut self, blocks_max: u64) -> Option<(Extent, &'r [u32])> {
        let (run, rest) = self.runs.split_first()?;
        let (skip, count) = (
            self.skip,
            blocks_max.min(run.extent.block_count - self.skip),
        );
        self.skip += count;
        if self.skip == run.extent.block_count {
            (self.runs, self.skip) = (rest, 0);
        }
        let checksums = &run.checksums[skip as usize..(skip + count) as usize];
        Some((run.extent.slice(skip, count), checksums))
    }
}

/// The runs as they will lie on `targets`.
fn lay_out(runs: &[Run], targets: &[Extent]) -> Vec<Run> {
    let mut targets = targets.iter().copied();
    let mut target = targets.next();
    let mut pieces = Vec::with_capacity(runs.len());
    for run in runs {
        let mut done = 0;
        while let Some(here) = target.filter(|_| done < run.extent.block_count) {
            let count = here.block_count.min(run.extent.block_count - done);
            pieces.push(Run {
                logical_block: run.logical_block + done,
                extent: here.slice(0, count),
                checksums: run.checksums[done as usize..(done + count) as usize].to_vec(),
            });
            done += count;
            target = match here.block_count - count {
                0 => targets.next(),
                left => Some(here.slice(count, left)),
            };
        }
    }
    pieces
}

/// Where each of the pieces lies, and lay. Both lists hold the same blocks in logical order, and no
/// piece is of two runs.
fn places(runs: &[Run], pieces: &[Run]) -> Vec<(Extent, Extent)> {
    let mut runs = runs.iter().peekable();
    let mut pairs = Vec::with_capacity(pieces.len());
    for piece in pieces {
        let is_before =
            |run: &&Run| run.logical_block + run.extent.block_count <= piece.logical_block;
        while runs.next_if(is_before).is_some() {}
        if let Some(run) = runs.peek() {
            let skip = piece.logical_block - run.logical_block;
            let from = run.extent.slice(skip, piece.extent.block_count);
            pairs.push((from, piece.extent));
        }
    }
    pairs
}

/// The part of `extent` inside `within`: blocks to skip, and blocks.
fn overlap(extent: &Extent, within: &Extent) -> Option<(u64, u64)> {
    if !extent.overlaps(within) {
        return None;
    }
    let start = extent.start_block.max(within.start_block);
    let end = extent.end_block().min(within.end_block());
    Some((start - extent.start_block, end - start))
}

fn block_count(runs: &[Run]) -> u64 {
    runs.iter().map(|run| run.extent.block_count).sum()
}

/// Physically contiguous pieces, in logical order.
pub(crate) fn count_fragments(extents: impl IntoIterator<Item = Extent>) -> u64 {
    let mut count = 0;
    let mut last: Option<Extent> = None;
    for extent in extents {
        count += u64::from(!last.is_some_and(|last| last.is_followed_by(&extent)));
        last = Some(extent);
    }
    count
}

/// Whether a move may fail so without anything being wrong with the database as a whole.
pub(crate) fn is_survivable(kind: ErrorKind) -> bool {
    matches!(
        kind,
        ErrorKind::NotFound
            | ErrorKind::NoSpace
            | ErrorKind::Corrupt
            | ErrorKind::Busy
            | ErrorKind::TimedOut
    )
}
