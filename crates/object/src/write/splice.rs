//! Fragment operations: inserting, deleting, replacing and moving bytes in the middle of an object,
//! by editing its list of pieces. The rest of the object is not read and not written.
//!
//! # How
//! 1. Each place where the list will change becomes the start of a block (*cut*): the second half
//!    of the block there goes to a fresh base block, the first half stays. This changes nothing
//!    that can be read, and it is the only copying: two blocks per place, whatever the object's
//!    size.
//! 2. The list is edited; base blocks that are in no piece any more are unmapped and retired.
//! 3. At every *seam* (where pieces meet whose lengths or neighbours changed) a piece that fits
//!    behind the end of the one before goes there (*join*). So of two neighbours the second is
//!    longer than what the first leaves free, and an object takes less than twice its size (and a
//!    block), however it was edited.
//!
//! Everything that can fail (reading, loading pages) is done before step 2.
//!
//! # When there is no list
//! An object of at most [`REWRITE_BYTES_MAX`] bytes before and after is written anew instead: it is
//! placed as one of the small ones anyway. A change of the end needs no list either.
//!
//! # Invariants
//! See `pieces`. All of an operation is in one group (`COMMIT-1`).

use crate::engine::EngineFragments;
use crate::view::node::{Node, NodeState};
use crate::view::pieces::{Piece, Pieces};
use crate::view::read::Plan;
use crate::write::change::{ContentGuard, HeldReservation, Wait};
use crate::write::edit::too_large;
use crate::write::guard::step;
use crate::{Error, ErrorKind, Result};
use larder_space::Purpose;
use larder_space::format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Objects up to this size are written anew: as many blocks as the write path packs with others.
pub(crate) const REWRITE_BYTES_MAX: u64 = 64 * BLOCK_BYTES;
/// Blocks that an operation may make dirty beside its data, at most: at each of three places a cut
/// (two) and three seams (two brought in and one joined), and content that leaves its inline place.
pub(crate) const EDGE_BLOCKS: u64 = 40;

/// What comes in.
#[derive(Clone, Copy)]
enum Filling<'a> {
    Data(&'a [u8]),
    /// So many bytes that are not stored.
    Hole(u64),
}

impl Filling<'_> {
    fn len_bytes(&self) -> u64 {
        match self {
            Filling::Data(data) => data.len() as u64,
            Filling::Hole(len_bytes) => *len_bytes,
        }
    }

    fn block_count(&self) -> u64 {
        match self {
            Filling::Data(data) => (data.len() as u64).div_ceil(BLOCK_BYTES),
            Filling::Hole(_) => 0,
        }
    }
}

/// How far the range may reach.
#[derive(Clone, Copy)]
enum Reach {
    /// To the end of the object.
    End,
    /// Something must follow it.
    BeforeEnd,
}

impl EngineFragments<'_> {
    /// `FALLOC_FL_INSERT_RANGE`: [`EngineFragments::insert_hole`] of whole blocks before the end.
    /// [`ErrorKind::InvalidInput`] for others.
    pub fn insert_blocks(&self, node: &Arc<Node>, offset: u64, len_bytes: u64) -> Result<()> {
        require_blocks(offset, len_bytes)?;
        let filling = Filling::Hole(len_bytes);
        self.splice(node, (offset, 0), filling, Reach::BeforeEnd)
    }

    /// `FALLOC_FL_COLLAPSE_RANGE`: [`EngineFragments::delete_range`] of whole blocks that do not
    /// reach the end. [`ErrorKind::InvalidInput`] for others.
    pub fn collapse_blocks(&self, node: &Arc<Node>, offset: u64, len_bytes: u64) -> Result<()> {
        require_blocks(offset, len_bytes)?;
        let range = (offset, len_bytes);
        self.splice(node, range, Filling::Hole(0), Reach::BeforeEnd)
    }

    /// Inserts `data` at `offset` ≤ the size; what was there and behind moves on by its length.
    /// [`ErrorKind::InvalidInput`] beyond the end. Cost: the data, a few blocks, O(log pieces)
    /// pages.
    pub fn insert_range(&self, node: &Arc<Node>, offset: u64, data: &[u8]) -> Result<()> {
        self.splice(node, (offset, 0), Filling::Data(data), Reach::End)
    }

    /// Inserts `len_bytes` zeros, which are not stored.
    pub fn insert_hole(&self, node: &Arc<Node>, offset: u64, len_bytes: u64) -> Result<()> {
        self.splice(node, (offset, 0), Filling::Hole(len_bytes), Reach::End)
    }

    /// Removes `offset..offset + len_bytes`, which lies inside the object; what follows closes up.
    /// Cost: a few blocks, and the pages of pieces and map of what goes.
    pub fn delete_range(&self, node: &Arc<Node>, offset: u64, len_bytes: u64) -> Result<()> {
        self.splice(node, (offset, len_bytes), Filling::Hole(0), Reach::End)
    }

    /// Puts `data`, of any length, in the place of `offset..offset + len_bytes`, in one step.
    pub fn replace_range(
        &self,
        node: &Arc<Node>,
        offset: u64,
        len_bytes: u64,
        data: &[u8],
    ) -> Result<()> {
        self.splice(node, (offset, len_bytes), Filling::Data(data), Reach::End)
    }

    /// Moves `from..from + len_bytes` so that it begins at `to` afterwards; what lies between makes
    /// room. Both places lie inside the object. Cost: a few blocks, and the pages of pieces of the
    /// shorter of what moves and what makes room.
    pub fn move_range(&self, node: &Arc<Node>, from: u64, len_bytes: u64, to: u64) -> Result<()> {
        step("claim memory")?;
        let _memory = self.delayed_allocation().claim_memory(REWRITE_BYTES_MAX)?;
        let blocks = REWRITE_BYTES_MAX / BLOCK_BYTES + EDGE_BLOCKS;
        let reserved = (blocks, Purpose::Privileged);
        let mut change = self
            .content()
            .content_guard(node, reserved, Wait::UntilThawed)?;
        let size = change.state.row.size_bytes;
        let ends = [from, to].map(|at| at.checked_add(len_bytes));
        if ends.iter().any(|end| end.is_none_or(|end| end > size)) {
            return Err(outside(size));
        }
        if len_bytes == 0 || from == to {
            return Ok(());
        }
        change.ask(size)?;
        // The two neighbours that change places.
        let (low, middle, high) = if to < from {
            (to, from, from + len_bytes)
        } else {
            (from, from + len_bytes, to + len_bytes)
        };
        if size <= REWRITE_BYTES_MAX {
            self.rewrite(node, &mut change, |bytes| {
                bytes[low as usize..high as usize].rotate_left((middle - low) as usize);
            })?;
        } else {
            self.exchange(node, &mut change, low, middle, high)?;
        }
        change.commit(size);
        Ok(())
    }

    fn splice(
        &self,
        node: &Arc<Node>,
        (offset, len_bytes): (u64, u64),
        filling: Filling<'_>,
        reach: Reach,
    ) -> Result<()> {
        step("claim memory")?;
        let _memory = self
            .delayed_allocation()
            .claim_memory(filling.block_count() * BLOCK_BYTES + REWRITE_BYTES_MAX)?;
        let blocks = filling.block_count() + REWRITE_BYTES_MAX / BLOCK_BYTES + EDGE_BLOCKS;
        let purpose = match filling.len_bytes() {
            0 => Purpose::Privileged,
            _ => Purpose::Ordinary, // A hole makes the map longer.
        };
        let mut change =
            self.content()
                .content_guard(node, (blocks, purpose), Wait::UntilThawed)?;
        let size = change.state.row.size_bytes;
        let last = match reach {
            Reach::End => Some(size),
            Reach::BeforeEnd => size.checked_sub(1),
        };
        let end = offset
            .checked_add(len_bytes)
            .filter(|&end| last.is_some_and(|last| end <= last))
            .ok_or_else(|| outside(size))?;
        let new_size = (size - len_bytes)
            .checked_add(filling.len_bytes())
            .filter(|&size| size <= FILE_BYTES_MAX)
            .ok_or_else(too_large)?;
        if len_bytes == 0 && filling.len_bytes() == 0 {
            return Ok(());
        }
        change.ask(new_size)?;
        if size.max(new_size) <= REWRITE_BYTES_MAX {
            self.rewrite(node, &mut change, |bytes| {
                let new = match filling {
                    Filling::Data(data) => data.to_vec(),
                    Filling::Hole(len_bytes) => vec![0; len_bytes as usize],
                };
                bytes.splice(offset as usize..end as usize, new);
            })?;
        } else if change.state.content.pieces.is_none() && end == size {
            self.replace_end(node, &mut change, offset, filling)?;
        } else {
            self.replace_pieces(node, &mut change, (offset, end), filling)?;
        }
        change.commit(new_size);
        Ok(())
    }

    /// Changes a small object as a whole. It has no pieces afterwards, and its zero blocks are
    /// holes.
    fn rewrite(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        edit: impl FnOnce(&mut Vec<u8>),
    ) -> Result<()> {
        let state = &mut *change.state;
        let size = state.row.size_bytes;
        let mut bytes = vec![0; size as usize];
        step("load the pieces")?;
        self.require_pieces(node, state, 0, size)?;
        let mut plan = Plan::default();
        step("read the content")?;
        self.maps().plan(node, state, 0, &mut bytes, &mut plan)?;
        self.maps().read_devices(&plan, &mut bytes)?;
        step("load the map")?;
        let source = self.maps().map_source(node);
        state.content.map.load_blocks(source, 0, u64::MAX)?;
        edit(&mut bytes);
        // From here on nothing fails.
        let removed = state.content.unmap_loaded_from(0);
        state.content.inline = None;
        state.content.inline_dirty = false;
        state.content.drop_pieces();
        self.content().discard(state, 0, u64::MAX);
        self.content().retire(node, state, removed);
        self.content()
            .gather(node, state, &mut change.reservation, |gather| {
                for (block, bytes) in bytes.chunks(BLOCK).enumerate() {
                    if bytes.iter().any(|&byte| byte != 0) {
                        let mut whole = [0; BLOCK];
                        whole[..bytes.len()].copy_from_slice(bytes);
                        gather.put(block as u64, &whole);
                    }
                }
            });
        Ok(())
    }

    /// Puts `filling` in the place of everything from `offset` on; the object has no pieces.
    fn replace_end(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        offset: u64,
        filling: Filling<'_>,
    ) -> Result<()> {
        let state = &mut *change.state;
        let shrinking = match offset < state.row.size_bytes {
            true => Some(self.content().plan_shrink(node, state, offset)?),
            false => None,
        };
        // Where nothing is cut off, data may begin inside the last block.
        let mut last = [0; BLOCK];
        if shrinking.is_none() && !offset.is_multiple_of(BLOCK_BYTES) {
            step("read the last block")?;
            self.maps()
                .read_block(node, state, offset / BLOCK_BYTES, &mut last)?;
        }
        // From here on nothing fails.
        if let Some(shrinking) = &shrinking {
            self.content()
                .shrink(node, state, &mut change.reservation, shrinking);
        }
        if let Filling::Data(data) = filling {
            self.content()
                .leave_inline(node, state, &mut change.reservation);
            self.content()
                .gather(node, state, &mut change.reservation, |gather| {
                    gather.write(offset, data, |block, target| {
                        if block == offset / BLOCK_BYTES {
                            target.copy_from_slice(&last);
                        }
                    });
                });
        }
        Ok(())
    }

    /// Puts `filling` in the place of bytes `from..to`. The caller sets the size.
    fn replace_pieces(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        (from, to): (u64, u64),
        filling: Filling<'_>,
    ) -> Result<()> {
        let len_bytes = filling.len_bytes();
        let [before, behind] = self.prepare(node, change, [from, to])?;
        let state = &mut *change.state;
        if !list(state).has_base_for(len_bytes) {
            return Err(too_large());
        }
        step("load the pieces")?;
        self.require_pieces(node, state, from, to)?;
        step("load the map")?;
        self.load_maps(node, state, from, to)?;
        step("load the edges")?;
        self.load_edges(node, state, &before)?;
        self.load_edges(node, state, &behind)?;
        // From here on nothing fails.
        let reservation = &mut change.reservation;
        let gone = list(state).remove(from, to);
        self.free(node, state, gone);
        if len_bytes > 0 {
            let first_block = list(state).take_base(len_bytes.div_ceil(BLOCK_BYTES));
            if let Filling::Data(data) = filling {
                self.content().gather(node, state, reservation, |gather| {
                    // Nothing is in fresh blocks yet.
                    gather.write(first_block * BLOCK_BYTES, data, |_, _| {});
                });
            }
            let piece = Piece {
                first_block,
                len_bytes,
            };
            list(state).insert(from, piece);
        }
        let [before_from, ..] = before;
        let [.., behind_to] = behind;
        let end = from + len_bytes;
        for at in [end + (behind_to - to), end, from, before_from] {
            self.join(node, state, reservation, at);
        }
        self.drop_idle_pieces(state);
        Ok(())
    }

    /// Removes everything from `size_bytes` on, of an object with pieces. The caller sets the size.
    pub(crate) fn cut_off(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        size_bytes: u64,
    ) -> Result<()> {
        let range = (size_bytes, change.state.row.size_bytes);
        self.replace_pieces(node, change, range, Filling::Hole(0))
    }

    /// Lets the neighbours `low..middle` and `middle..high` change places.
    fn exchange(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        low: u64,
        middle: u64,
        high: u64,
    ) -> Result<()> {
        let seams = self.prepare(node, change, [low, middle, high])?;
        let state = &mut *change.state;
        let is_second_shorter = high - middle <= middle - low;
        let (from, to) = if is_second_shorter {
            (middle, high)
        } else {
            (low, middle)
        };
        step("load the pieces")?;
        self.require_pieces(node, state, from, to)?;
        for seams in &seams {
            step("load the edges")?;
            self.load_edges(node, state, seams)?;
        }
        // From here on nothing fails.
        let reservation = &mut change.reservation;
        let pieces = list(state);
        let target = if is_second_shorter {
            low
        } else {
            low + (high - middle)
        };
        let moved = pieces.remove(from, to);
        for piece in moved.into_iter().rev() {
            pieces.insert(target, piece);
        }
        let moved_to = |at: u64| match at {
            at if at < low || at > high => at,
            at if at < middle => at + (high - middle),
            at => low + (at - middle),
        };
        let mut seams: Vec<u64> = seams.into_iter().flatten().map(moved_to).collect();
        seams.extend([low, high]);
        seams.sort_unstable();
        seams.dedup();
        for at in seams.into_iter().rev() {
            self.join(node, state, reservation, at);
        }
        self.drop_idle_pieces(state);
        Ok(())
    }

    /// Makes each place the start of a block; returns the seams around each: where the piece before
    /// it begins, itself, and where the piece behind it ends. Brings what may be joined there into
    /// memory. Changes nothing that can be read, and is taken back if the operation fails.
    fn prepare<const N: usize>(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        places: [u64; N],
    ) -> Result<[[u64; 3]; N]> {
        change.note_pieces();
        change.leave_inline_noted();
        let state = &mut *change.state;
        let size = state.row.size_bytes;
        self.content().mark_dirty(node, state);
        let pieces = &mut state.content.pieces;
        pieces.get_or_insert_with(|| Pieces::new_whole(size));
        self.may_have_pieces.store(true, Ordering::SeqCst);
        for at in places {
            self.cut_piece(node, change, at)?;
        }
        let mut seams = [[0; 3]; N];
        for (index, at) in places.into_iter().enumerate() {
            step("load the pieces around a seam")?;
            let state = &mut *change.state;
            self.require_pieces(node, state, at, at)?;
            let pieces = list(state);
            let before = at.checked_sub(1).map_or(at, |last| pieces.find(last).0);
            let behind = if at < size {
                let (start, piece) = pieces.find(at);
                start + piece.len_bytes
            } else {
                at
            };
            seams[index] = [before, at, behind];
            for at in seams[index] {
                let edges = self.edge_blocks(node, &mut change.state, at)?;
                for block in edges.into_iter().flatten() {
                    self.bring_in(node, change, block)?;
                }
            }
        }
        Ok(seams)
    }

    /// Makes `at` the start of a block of a piece.
    fn cut_piece(&self, node: &Arc<Node>, change: &mut ContentGuard<'_>, at: u64) -> Result<()> {
        step("load the pieces around a cut")?;
        let state = &mut *change.state;
        self.require_pieces(node, state, at, at)?;
        let pieces = list(state);
        if at >= pieces.len_bytes() {
            return Ok(());
        }
        let (start, piece) = pieces.find(at);
        let kept = ((at - start) % BLOCK_BYTES) as usize;
        if kept == 0 {
            return Ok(());
        }
        if !pieces.has_base_for(0) {
            return Err(too_large());
        }
        let block = piece.first_block + (at - start) / BLOCK_BYTES;
        let is_stored = self.bring_in(node, change, block)?;
        let state = &mut *change.state;
        let fresh = list(state).take_base(1);
        list(state).cut(at, fresh);
        if is_stored {
            let mut moved = [0; BLOCK];
            if let Some(bytes) = state.content.gather.find(block) {
                moved[..BLOCK - kept].copy_from_slice(&bytes[kept..]);
            }
            change.zero_noted(block, kept, BLOCK); // PIECE-4
            change.put_noted(fresh, &moved);
        }
        Ok(())
    }

    /// Brings a base block into the gather as it is; `false` when it is a hole.
    fn bring_in(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        block: u64,
    ) -> Result<bool> {
        let state = &mut *change.state;
        if state.content.gather.find(block).is_some() {
            return Ok(true);
        }
        step("load the map of a block")?;
        if !state
            .content
            .map
            .contains(self.maps().map_source(node), block)?
        {
            return Ok(false);
        }
        let mut bytes = [0; BLOCK];
        step("read a block")?;
        self.maps().read_block(node, state, block, &mut bytes)?;
        change.put_noted(block, &bytes);
        Ok(true)
    }

    /// The base blocks beside `at`, the start of a block, that could be joined with another: the
    /// one before if its bytes end inside it, and the one behind if the rest of its piece is in it.
    fn edge_blocks(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        at: u64,
    ) -> Result<[Option<u64>; 2]> {
        self.require_pieces(node, state, at, at)?;
        let pieces = list(state);
        let before = (at > 0).then(|| pieces.find(at - 1));
        let behind = (at < pieces.len_bytes()).then(|| pieces.find(at));
        Ok([
            before.and_then(|(start, piece)| {
                let is_ragged = !(at - start).is_multiple_of(BLOCK_BYTES);
                is_ragged.then(|| piece.first_block + (at - start) / BLOCK_BYTES)
            }),
            behind.and_then(|(start, piece)| {
                let is_short = start + piece.len_bytes - at < BLOCK_BYTES;
                is_short.then(|| piece.first_block + (at - start) / BLOCK_BYTES)
            }),
        ])
    }

    /// Loads the map pages of the pieces of `from..to`.
    fn load_maps(&self, node: &Node, state: &mut NodeState, from: u64, to: u64) -> Result<()> {
        let source = self.maps().map_source(node);
        for range in list(state).translate(from, to) {
            let first = range.offset / BLOCK_BYTES;
            let map = &mut state.content.map;
            map.load_blocks(source, first, range.end_block())?;
        }
        Ok(())
    }

    /// Loads the map pages of the blocks that joins at these places may give back.
    fn load_edges(&self, node: &Arc<Node>, state: &mut NodeState, places: &[u64]) -> Result<()> {
        let source = self.maps().map_source(node);
        for &at in places {
            let [_, behind] = self.edge_blocks(node, state, at)?;
            if let Some(block) = behind {
                state.content.map.load_blocks(source, block, block + 1)?;
            }
        }
        Ok(())
    }

    /// Gives the base blocks of pieces back; their map pages are loaded.
    fn free(&self, node: &Node, state: &mut NodeState, pieces: Vec<Piece>) {
        for piece in pieces {
            self.content()
                .discard(state, piece.first_block, piece.end_block());
            let content = &mut state.content;
            let removed = content.unmap_loaded(piece.first_block, piece.end_block());
            self.content().retire(node, state, removed);
        }
    }

    /// If the piece that begins at `at` fits behind the end of the one before, it goes there. Both
    /// blocks were brought in, so what is not in the gather is a hole.
    fn join(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        reservation: &mut HeldReservation<'_>,
        at: u64,
    ) {
        let pieces = list(state);
        let (Some((start, left)), Some(right)) = (pieces.ending_at(at), pieces.starting_at(at))
        else {
            return;
        };
        let used = left.tail_bytes() as usize;
        let more = right.len_bytes as usize;
        if used == 0 || more > BLOCK - used {
            return;
        }
        pieces.remove(start, at + right.len_bytes);
        let len_bytes = left.len_bytes + right.len_bytes;
        pieces.insert(start, Piece { len_bytes, ..left });
        let last = left.end_block() - 1;
        let source = self.maps().map_source(node);
        debug_assert!(
            [last, right.first_block].into_iter().all(|block| {
                state.content.gather.find(block).is_some()
                    || !matches!(state.content.map.contains(source, block), Ok(true))
            }),
            "a block was not brought in"
        );
        self.content().gather(node, state, reservation, |gather| {
            let mut bytes = [0; BLOCK];
            if let Some(moved) = gather.find(right.first_block) {
                bytes[used..used + more].copy_from_slice(&moved[..more]);
                if let Some(there) = gather.find(last) {
                    debug_assert!(there[used..].iter().all(|&byte| byte == 0), "PIECE-4");
                    bytes[..used].copy_from_slice(&there[..used]);
                }
                gather.put(last, &bytes);
            }
        });
        self.free(node, state, vec![right]);
    }
}

/// The list of an object that has one; the callers made sure of that.
fn list(state: &mut NodeState) -> &mut Pieces {
    state
        .content
        .pieces
        .as_mut()
        .unwrap_or_else(|| panic!("a fragment operation needs a list of pieces"))
}

fn require_blocks(offset: u64, len_bytes: u64) -> Result<()> {
    if offset.is_multiple_of(BLOCK_BYTES) && len_bytes.is_multiple_of(BLOCK_BYTES) {
        return Ok(());
    }
    Err(Error::new(
        ErrorKind::InvalidInput,
        format!("offset and length must be multiples of {BLOCK_BYTES} bytes"),
    ))
}

fn outside(size_bytes: u64) -> Error {
    Error::new(
        ErrorKind::InvalidInput,
        format!("the range is not inside the object, which has {size_bytes} bytes"),
    )
}
