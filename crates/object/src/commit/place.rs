//! The write path: what a group's dirty blocks go through, once.
//!
//! 1 place (largest first; small ones in one contiguous run) · 2 checksum · 3 write in large
//! requests · 4 flush · 5 map. The catalog's commit follows. Steps 3 and 4 are left out for what is
//! `log_inlined`.

use crate::engine::EnginePlacement;
use crate::view::extent_map::Mapped;
use crate::view::gather::Gather;
use crate::view::node::stream_of;
use crate::view::redo_rows::ending;
use crate::write::frozen::{ContentFlush, Fate, FrozenNode};
use crate::{Error, ErrorKind, Result};
use larder_catalog::ChangeSet;
use larder_segment::{BlockWrite, write_all};
use larder_space::format::{Extent, SegmentIndex, block_checksum};
use larder_space::{Placement, Reservation};
use std::cmp::Reverse;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Objects of at most this many blocks (64 KiB) are packed into one run, where there is a hole for
/// it.
const SMALL_BLOCKS: u64 = 16;

/// Dirty blocks with a place.
struct Placed {
    /// Index into the group's nodes.
    node_index: usize,
    logical_block: u64,
    extent: Extent,
    checksums: Vec<u32>,
}

impl EnginePlacement<'_> {
    /// Writes, flushes and maps the dirty blocks of a group.
    pub(crate) fn flush_contents(
        &self,
        generation: u64,
        nodes: &mut [FrozenNode],
        set: &mut ChangeSet,
        is_awaited: bool,
        is_alone: bool,
    ) -> Result<()> {
        // First: of one block the newer row counts.
        for frozen in nodes.iter_mut().filter(|f| !f.redo_ended.is_empty()) {
            let ended = std::mem::take(&mut frozen.redo_ended);
            let row = (frozen.node.store, frozen.node.ino, ending(ended));
            set.redo_rows.push(row);
        }
        self.redo().log_small_redo(nodes, set)?;
        let mut placed = self.place(nodes)?;
        let gathers: Vec<Option<Arc<Gather>>> = nodes
            .iter()
            .map(|frozen| frozen.flush.as_ref().map(|flush| flush.gather.clone()))
            .collect();
        let blocks = placed.iter().map(|piece| piece.extent.block_count).sum();
        let is_unmet = is_alone || placed.iter().all(|piece| nodes[piece.node_index].is_fresh);
        let is_logged = self.is_logged(blocks, is_awaited, is_unmet, set)?;
        if is_logged {
            take_checksums(&mut placed, &gathers)?;
        } else {
            // What moved in this group is written, and must be flushed too.
            let moved = set.allocated.iter().map(|(extent, ..)| extent.segment);
            self.write_placed(&mut placed, &gathers, moved.collect())?;
        }
        drop(gathers);
        self.compaction().earn_credit(blocks);
        self.map_placed(generation, nodes, placed, is_logged, set)
    }

    /// Allocates: large objects first, each alone; then all small ones together.
    fn place(&self, nodes: &mut [FrozenNode]) -> Result<Vec<Placed>> {
        let blocks_of =
            |frozen: &FrozenNode| frozen.flush.as_ref().map_or(0, ContentFlush::block_count);
        let is_alone = |frozen: &FrozenNode| {
            let is_stream = |flush: &ContentFlush| flush.fate != Fate::Known;
            blocks_of(frozen) > SMALL_BLOCKS || frozen.flush.as_ref().is_some_and(is_stream)
        };
        let mut order: Vec<usize> = (0..nodes.len())
            .filter(|&index| blocks_of(&nodes[index]) > 0)
            .collect();
        order.sort_by_key(|&index| Reverse((is_alone(&nodes[index]), blocks_of(&nodes[index]))));
        let small_from = order.partition_point(|&index| is_alone(&nodes[index]));
        let mut placed = Vec::new();
        for &index in &order[..small_from] {
            self.place_alone(index, &mut nodes[index], &mut placed)?;
        }
        self.place_small(&order[small_from..], nodes, &mut placed)?;
        Ok(placed)
    }

    fn place_alone(
        &self,
        index: usize,
        frozen: &mut FrozenNode,
        placed: &mut Vec<Placed>,
    ) -> Result<()> {
        let Some(flush) = frozen.flush.as_mut() else {
            return Ok(());
        };
        let runs = flush.runs.clone();
        let placement = match flush.fate {
            Fate::Known => Placement::Known,
            Fate::Stream(expected_blocks) => Placement::Stream {
                stream: stream_of(&frozen.node),
                after: self.end_before(&frozen.node, runs[0].0)?,
                expected_blocks,
            },
        };
        let mut reservation = flush.reservation.take().ok_or_else(unreserved)?;
        let pieces =
            self.space()
                .allocate_extents(&mut reservation, flush.block_count(), placement);
        // Only now: who closes it from here on ends the stream.
        let is_over = frozen.node.lock().writer_count == 0;
        {
            let mut free = self.free_space();
            free.space.forfeit(reservation);
            if is_over {
                free.space.end_stream(stream_of(&frozen.node));
            }
        }
        let pieces = pieces?;
        spread(index, &runs, &mut Pieces::new(pieces), placed);
        Ok(())
    }

    fn place_small(
        &self,
        order: &[usize],
        nodes: &mut [FrozenNode],
        placed: &mut Vec<Placed>,
    ) -> Result<()> {
        let mut reservation: Option<Reservation> = None;
        let mut blocks = 0;
        for &index in order {
            let Some(flush) = nodes[index].flush.as_mut() else {
                continue;
            };
            blocks += flush.block_count();
            let part = flush.reservation.take().ok_or_else(unreserved)?;
            match reservation.as_mut() {
                Some(reservation) => reservation.merge(part),
                None => reservation = Some(part),
            }
        }
        let Some(mut reservation) = reservation else {
            return Ok(());
        };
        let outcome = self.place_batch(order, nodes, blocks, &mut reservation, placed);
        self.free_space().space.forfeit(reservation);
        outcome
    }

    /// All in one extent if there is a hole for that, else each by its own best fit: a batch that
    /// was cut anywhere would cut objects.
    fn place_batch(
        &self,
        order: &[usize],
        nodes: &[FrozenNode],
        blocks: u64,
        reservation: &mut Reservation,
        placed: &mut Vec<Placed>,
    ) -> Result<()> {
        let whole = self.space().allocate_whole(reservation, blocks)?;
        let mut pieces = whole.map(|extent| Pieces::new(vec![extent]));
        for &index in order {
            let Some(flush) = &nodes[index].flush else {
                continue;
            };
            match pieces.as_mut() {
                Some(pieces) => spread(index, &flush.runs, pieces, placed),
                None => {
                    let own = self.space().allocate_extents(
                        reservation,
                        flush.block_count(),
                        Placement::Known,
                    )?;
                    spread(index, &flush.runs, &mut Pieces::new(own), placed);
                }
            }
        }
        Ok(())
    }

    /// The place right after the block before `block`, for content that goes on there.
    fn end_before(
        &self,
        node: &crate::view::node::Node,
        block: u64,
    ) -> Result<Option<(SegmentIndex, u64)>> {
        if block == 0 {
            return Ok(None);
        }
        let mut state = node.lock();
        Ok(
            match state
                .content
                .map
                .find(self.maps().map_source(node), block - 1)?
            {
                Mapped::Run { extent, .. } => Some((extent.segment, extent.start_block + 1)),
                Mapped::Hole(_) => None,
            },
        )
    }

    /// Checksums and writes everything in address order, neighbours joined; then flushes every
    /// segment that was written to, `touched` among them.
    fn write_placed(
        &self,
        placed: &mut [Placed],
        gathers: &[Option<Arc<Gather>>],
        mut touched: BTreeSet<SegmentIndex>,
    ) -> Result<()> {
        placed.sort_by_key(|piece| piece.extent);
        let mut writes: Vec<BlockWrite<'_>> = Vec::new();
        let mut end: Option<Extent> = None;
        for piece in placed.iter() {
            let gather = gathers[piece.node_index].as_ref().ok_or_else(unreserved)?;
            let buffers = gather.slices(piece.logical_block, piece.extent.block_count);
            match writes.last_mut() {
                Some(write) if end.is_some_and(|end| end.is_followed_by(&piece.extent)) => {
                    write.buffers.extend(buffers);
                }
                _ => writes.push(BlockWrite {
                    segment: self.segment(piece.extent.segment)?,
                    start_block: piece.extent.start_block,
                    buffers,
                }),
            }
            end = Some(piece.extent);
        }
        let mut checksums = write_all(&writes)?.into_iter().flatten();
        for piece in placed.iter_mut() {
            let count = piece.extent.block_count as usize;
            piece.checksums = checksums.by_ref().take(count).collect();
        }
        touched.extend(placed.iter().map(|piece| piece.extent.segment));
        if self.short_transaction().flushes_later(&touched) {
            return Ok(()); // PRIVATE-2
        }
        for segment in touched {
            self.segment(segment)?.flush()?;
        }
        Ok(())
    }

    /// Puts the placed blocks into the extent maps, and maps and extents into the change set; where
    /// they are logged, their bytes as well.
    fn map_placed(
        &self,
        generation: u64,
        nodes: &mut [FrozenNode],
        mut placed: Vec<Placed>,
        is_logged: bool,
        set: &mut ChangeSet,
    ) -> Result<()> {
        placed.sort_by_key(|piece| (piece.node_index, piece.logical_block));
        let mut placed = placed.into_iter().peekable();
        for (index, frozen) in nodes.iter_mut().enumerate() {
            let Some(mut flush) = frozen.flush.take() else {
                continue;
            };
            let (store, ino) = (frozen.node.store, frozen.node.ino);
            let source = self.maps().map_source(&frozen.node);
            let mut state = frozen.node.lock();
            if let Some(applied) = flush.applied.take() {
                self.redo()
                    .map_applied(&frozen.node, &mut state, applied, set)?;
            }
            let mut replaced = Vec::new();
            let mut ended = Vec::new();
            let mut logged = Vec::new();
            let mut allocated: Vec<Extent> = Vec::new();
            while let Some(piece) = placed.next_if(|piece| piece.node_index == index) {
                let end = piece.logical_block + piece.extent.block_count;
                let gone = state.content.redo_rows.remove(piece.logical_block, end);
                if is_logged {
                    logged.push((piece.logical_block, piece.extent.block_count));
                } else {
                    ended.extend(gone);
                }
                let map = &mut state.content.map;
                replaced.extend(map.insert(
                    source,
                    piece.logical_block,
                    piece.extent,
                    &piece.checksums,
                )?);
                match allocated.last_mut() {
                    Some(last)
                        if last.is_followed_by(&piece.extent)
                            && last.ag_index() == piece.extent.ag_index() =>
                    {
                        last.block_count += piece.extent.block_count;
                    }
                    _ => allocated.push(piece.extent),
                }
            }
            let lost: u64 = replaced.iter().map(|extent| extent.block_count).sum();
            let blocks_before = state.row.block_count;
            state.row.block_count = blocks_before + flush.block_count() - lost;
            frozen.row.block_count = state.row.block_count;
            let has_other_blocks = state.row.block_count > flush.block_count();
            let is_split = allocated.len() > 1 || (has_other_blocks && !allocated.is_empty());
            if is_split && !flush.keeps {
                self.compaction().add_candidate(
                    &frozen.node,
                    state.row.block_count,
                    allocated.len() > 1,
                );
            }
            // What is only placed anew, moved or applied changes no attribute that the catalog
            // keeps beside it: who looks for writes takes the row of the inode for one.
            frozen.mask.size |= state.row.block_count != blocks_before;
            if !ended.is_empty() {
                set.redo_rows.push((store, ino, ending(ended)));
            }
            if !logged.is_empty() {
                let row = state.content.redo_rows.log(&flush.gather, &logged);
                set.redo_rows.push((store, ino, row));
            }
            let held = allocated.into_iter().map(|extent| (extent, store, ino));
            self.sharing().note_held(generation, held.clone());
            set.allocated.extend(held);
            let changes = state.content.map.take_changes();
            if let Some(cut) = changes.cut {
                set.map_cuts.push((store, ino, cut));
            }
            set.map_pages.extend(
                changes
                    .pages
                    .into_iter()
                    .map(|(page, bytes)| (store, ino, page, bytes)),
            );
            frozen.node.thaw(&mut state);
            self.dirty_bytes
                .fetch_sub(flush.gather.memory_bytes(), Ordering::Relaxed);
            if flush.keeps {
                self.delayed_allocation().keep(
                    &frozen.node,
                    &mut state,
                    std::mem::take(&mut flush.gather),
                );
            }
            drop(state);
            let retired_bytes = set.retired_bytes;
            self.commits().retire_into(set, (store, ino), replaced);
            if flush.is_rewrite {
                // Storage age counts objects that are gone; this one only moved.
                set.retired_bytes = retired_bytes;
            }
        }
        Ok(())
    }
}

/// The checksums of what is not written now (`LOGGED-1`).
fn take_checksums(placed: &mut [Placed], gathers: &[Option<Arc<Gather>>]) -> Result<()> {
    for piece in placed {
        let gather = gathers[piece.node_index].as_ref().ok_or_else(unreserved)?;
        let blocks = piece.logical_block..piece.logical_block + piece.extent.block_count;
        let checksum = |block| gather.find(block).map(block_checksum);
        let checksums: Option<Vec<u32>> = blocks.map(checksum).collect();
        piece.checksums = checksums.ok_or_else(unreserved)?;
    }
    Ok(())
}

/// Extents that are handed out block by block.
struct Pieces {
    left: std::vec::IntoIter<Extent>,
    current: Option<Extent>,
}

impl Pieces {
    fn new(pieces: Vec<Extent>) -> Pieces {
        let mut left = pieces.into_iter();
        Pieces {
            current: left.next(),
            left,
        }
    }

    /// At most `blocks` blocks, contiguous.
    fn take(&mut self, blocks: u64) -> Option<Extent> {
        let piece = self.current?;
        let taken = piece.slice(0, blocks.min(piece.block_count));
        let rest = piece.block_count - taken.block_count;
        self.current = if rest > 0 {
            Some(piece.slice(taken.block_count, rest))
        } else {
            self.left.next()
        };
        Some(taken)
    }
}

/// Gives the runs of one object their places.
fn spread(node_index: usize, runs: &[(u64, u64)], pieces: &mut Pieces, placed: &mut Vec<Placed>) {
    for &(first, count) in runs {
        let mut logical_block = first;
        while logical_block < first + count {
            let Some(extent) = pieces.take(first + count - logical_block) else {
                return;
            };
            placed.push(Placed {
                node_index,
                logical_block,
                extent,
                checksums: Vec::new(),
            });
            logical_block += extent.block_count;
        }
    }
}

fn unreserved() -> Error {
    Error::new(
        ErrorKind::Corrupt,
        "dirty blocks without a reservation (EDIT-1); please report this",
    )
}
