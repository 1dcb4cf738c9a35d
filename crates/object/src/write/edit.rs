//! Changes of content: into the gather, or as edits of the extent map. No device is written here.
//!
//! # Invariants
//! * `EDIT-1` Every dirty block is covered by a promise of space, taken before the change: a write
//!   that was accepted never meets a full device later.
//! * `EDIT-2` Extents that an edit drops are quarantined and retired by the group of that edit.
//! * `EDIT-3` A change of content takes the file's capability (`security.capability`) with it:
//!   nobody has vouched for the new content.

use crate::engine::{Edit, Engine, lock};
use crate::view::node::{Node, NodeState};
use crate::write::gather::Gather;
use crate::{Error, ErrorKind, Result};
use larder_space::format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use larder_space::format::{Extent, FileKind};
use larder_space::{Purpose, Reservation, StreamId};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: usize = BLOCK_BYTES as usize;
/// The rights that a program file gives to who runs it (`capabilities(7)`).
pub const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// A promise that gives itself back.
pub(crate) struct Promise<'e> {
    engine: &'e Engine,
    reservation: Option<Reservation>,
}

impl Promise<'_> {
    /// Moves `blocks` of the promise to `to`.
    pub(crate) fn give(&mut self, blocks: u64, to: &mut Option<Reservation>) {
        if let Some(mine) = self.reservation.as_mut().filter(|_| blocks > 0) {
            let part = mine.split(blocks);
            match to {
                Some(theirs) => theirs.merge(part),
                None => *to = Some(part),
            }
        }
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if let Some(reservation) = self.reservation.take() {
            self.engine.lock_room().space.forfeit(reservation);
        }
    }
}

/// Reads the newest content of a block.
type ReadBlock<'r> = &'r mut dyn FnMut(u64, &mut [u8]) -> Result<()>;

impl Engine {
    /// A promise of `blocks` blocks for a change that follows.
    pub(crate) fn promise(
        &self,
        _edit: &Edit<'_>,
        blocks: u64,
        purpose: Purpose,
    ) -> Result<Promise<'_>> {
        let reservation = self.reserve(blocks, purpose)?;
        Ok(Promise {
            engine: self,
            reservation: Some(reservation),
        })
    }

    /// Writes all of `data` at `offset`.
    pub fn write(&self, node: &Arc<Node>, offset: u64, data: &[u8]) -> Result<()> {
        self.write_somewhere(node, Some(offset), data).map(|_| ())
    }

    /// Writes all of `data` at the end; returns where that was.
    pub fn append(&self, node: &Arc<Node>, data: &[u8]) -> Result<u64> {
        self.write_somewhere(node, None, data)
    }

    pub(crate) fn write_somewhere(
        &self,
        node: &Arc<Node>,
        asked: Option<u64>,
        data: &[u8],
    ) -> Result<u64> {
        let _memory = self.claim_memory(data.len() as u64)?;
        self.require_host_room()?;
        let edit = self.edit()?;
        let mut promise = self.promise(
            &edit,
            blocks_touched(asked, data.len() as u64),
            Purpose::Ordinary,
        )?;
        let gate = self.enter_gate();
        let mut state = self.lock_node(node)?;
        self.begin_content(node, &mut state)?;
        let offset = asked.unwrap_or(state.row.size_bytes);
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|&end| end <= FILE_BYTES_MAX)
            .ok_or_else(too_large)?;
        if data.is_empty() {
            return Ok(offset);
        }
        self.ask_content(node, &state, end.max(state.row.size_bytes))?;
        self.load_content(node, &mut state)?;
        if state.content.pieces.is_some() {
            drop((state, gate, promise, edit));
            return self.write_pieces(node, asked, data);
        }
        self.leave_inline(node, &mut state, &mut promise)?;
        let outcome = self.gather(node, &mut state, &mut promise, |gather, fill| {
            gather.write(offset, data, fill)
        });
        if outcome.is_ok() {
            if end > state.row.size_bytes {
                state.row.size_bytes = end;
            }
            self.touch_content(node, &mut state);
        } else {
            // GATHER-2: what was gathered before the failure must not show after the end.
            let size = state.row.size_bytes;
            self.discard(&mut state, size.div_ceil(BLOCK_BYTES), u64::MAX);
            state.content.gather.zero_within(
                size / BLOCK_BYTES,
                (size % BLOCK_BYTES) as usize,
                BLOCK,
            );
        }
        outcome.map(|_| offset)
    }

    /// Runs `change` on the gather with a `fill` that reads what is there now, and moves the
    /// promise for what became dirty, also when `change` fails half way (`EDIT-1`).
    pub(crate) fn gather(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        promise: &mut Promise<'_>,
        change: impl FnOnce(&mut Gather, ReadBlock<'_>) -> Result<u64>,
    ) -> Result<u64> {
        let mut gather = std::mem::take(&mut state.content.gather);
        let (before, memory_before) = (gather.block_count(), gather.memory_bytes());
        let outcome = change(&mut gather, &mut |block, target| {
            self.read_block(node, state, block, target)
        });
        let added = gather.block_count() - before;
        self.dirty_bytes
            .fetch_add(gather.memory_bytes() - memory_before, Ordering::Relaxed);
        state.content.gather = gather;
        promise.give(added, &mut state.content.promise);
        if added > 0 {
            self.mark_dirty(node, state);
        }
        outcome
    }

    /// Makes inline content an ordinary dirty block.
    pub(crate) fn leave_inline(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        promise: &mut Promise<'_>,
    ) -> Result<()> {
        let Some(inline) = state.content.inline.take() else {
            return Ok(());
        };
        state.content.inline_dirty = false;
        let mut block = [0; BLOCK];
        block[..inline.len()].copy_from_slice(&inline);
        self.gather(node, state, promise, |gather, _| {
            gather.put(0, &block);
            Ok(1)
        })?;
        Ok(())
    }

    /// Sets the logical length.
    pub fn truncate(&self, node: &Arc<Node>, size_bytes: u64) -> Result<()> {
        if size_bytes > FILE_BYTES_MAX {
            return Err(too_large());
        }
        let edit = self.edit()?;
        // The last block stays, with zeros behind the end.
        let tail_blocks = u64::from(!size_bytes.is_multiple_of(BLOCK_BYTES));
        let mut promise = self.promise(&edit, tail_blocks, Purpose::Privileged)?;
        let gate = self.enter_gate();
        let mut state = self.lock_thawed(node)?;
        self.begin_content(node, &mut state)?;
        self.load_content(node, &mut state)?;
        if state.content.pieces.is_some() {
            drop((state, gate, promise, edit));
            return self.truncate_pieces(node, size_bytes);
        }
        self.ask_content(node, &state, size_bytes)?;
        if size_bytes < state.row.size_bytes {
            self.shrink(node, &mut state, &mut promise, size_bytes)?;
        }
        state.row.size_bytes = size_bytes;
        self.touch_content(node, &mut state);
        Ok(())
    }

    pub(crate) fn shrink(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        promise: &mut Promise<'_>,
        size: u64,
    ) -> Result<()> {
        if let Some(inline) = state.content.inline.as_mut()
            && (size as usize) < inline.len()
        {
            inline.truncate(size as usize);
            state.content.inline_dirty = true;
        }
        self.zero(
            node,
            state,
            promise,
            size,
            size.next_multiple_of(BLOCK_BYTES),
        )?;
        let keep = size.div_ceil(BLOCK_BYTES);
        self.discard(state, keep, u64::MAX);
        let removed = state.content.unmap_from(self.map_source(node), keep)?;
        self.retire(node, state, removed);
        Ok(())
    }

    /// Zeroes bytes `from..to`, which lie in one block, if anything is stored there.
    pub(crate) fn zero(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        promise: &mut Promise<'_>,
        from: u64,
        to: u64,
    ) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let block = from / BLOCK_BYTES;
        let start = block * BLOCK_BYTES;
        let (from, to) = ((from - start) as usize, (to - start) as usize);
        if state.content.gather.zero_within(block, from, to) {
            return Ok(());
        }
        let is_mapped = state.content.map.contains(self.map_source(node), block)?;
        if is_mapped {
            let mut bytes = [0; BLOCK];
            self.read_block(node, state, block, &mut bytes)?;
            bytes[from..to].fill(0);
            self.gather(node, state, promise, |gather, _| {
                gather.put(block, &bytes);
                Ok(1)
            })?;
        }
        Ok(())
    }

    /// Makes `offset..offset + len` read as zero and gives its whole blocks back. Never changes the
    /// logical length.
    pub fn punch(&self, node: &Arc<Node>, offset: u64, len_bytes: u64) -> Result<()> {
        self.zero_range(node, offset, len_bytes, true)
    }

    /// The same; grows the object to the end of the range unless `keep_size`.
    pub fn zero_range(
        &self,
        node: &Arc<Node>,
        offset: u64,
        len_bytes: u64,
        keep_size: bool,
    ) -> Result<()> {
        let end = offset
            .checked_add(len_bytes)
            .filter(|&end| end <= FILE_BYTES_MAX)
            .ok_or_else(too_large)?;
        let edit = self.edit()?;
        let mut promise = self.promise(&edit, 3, Purpose::Privileged)?;
        let gate = self.enter_gate();
        let mut state = self.lock_thawed(node)?;
        self.begin_content(node, &mut state)?;
        self.load_content(node, &mut state)?;
        if state.content.pieces.is_some() {
            drop((state, gate, promise, edit));
            return self.zero_pieces(node, offset, end, keep_size);
        }
        let grown = if keep_size { 0 } else { end };
        self.ask_content(node, &state, grown.max(state.row.size_bytes))?;
        self.leave_inline(node, &mut state, &mut promise)?;
        let stop = end.min(state.row.size_bytes);
        let is_tail = stop == state.row.size_bytes;
        self.zero_base(node, &mut state, &mut promise, offset, stop, is_tail)?;
        if !keep_size && end > state.row.size_bytes {
            state.row.size_bytes = end;
        }
        self.touch_content(node, &mut state);
        Ok(())
    }

    /// Zeroes bytes `from..to` of the base: unmaps its whole blocks. With `is_tail` nothing but
    /// zeros follows in the last block, so that counts as whole.
    pub(crate) fn zero_base(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        promise: &mut Promise<'_>,
        from: u64,
        to: u64,
        is_tail: bool,
    ) -> Result<()> {
        if from >= to {
            return Ok(());
        }
        let first_whole = from.next_multiple_of(BLOCK_BYTES);
        let last_whole = if is_tail {
            to.next_multiple_of(BLOCK_BYTES)
        } else {
            to / BLOCK_BYTES * BLOCK_BYTES
        };
        self.zero(node, state, promise, from, first_whole.min(to))?;
        if first_whole < last_whole {
            let (from, to) = (first_whole / BLOCK_BYTES, last_whole / BLOCK_BYTES);
            self.discard(state, from, to);
            let removed = state.content.unmap(self.map_source(node), from, to)?;
            self.retire(node, state, removed);
        }
        self.zero(node, state, promise, last_whole.max(first_whole), to)
    }

    /// Checks that `offset..offset + len` could be written now, and takes it as a size hint; grows
    /// the object unless `keep_size`. Content is written to new places always, so nothing stronger
    /// can be promised for longer.
    pub fn allocate(
        &self,
        node: &Arc<Node>,
        offset: u64,
        len_bytes: u64,
        keep_size: bool,
    ) -> Result<()> {
        let end = offset
            .checked_add(len_bytes)
            .filter(|&end| end <= FILE_BYTES_MAX)
            .ok_or_else(too_large)?;
        let edit = self.edit()?;
        let promise = self.promise(&edit, len_bytes.div_ceil(BLOCK_BYTES), Purpose::Ordinary)?;
        let _gate = self.enter_gate();
        let mut state = self.lock_node(node)?;
        self.begin_content(node, &mut state)?;
        let grown = if keep_size { 0 } else { end };
        self.ask_content(node, &state, grown.max(state.row.size_bytes))?;
        state.content.expected_bytes = state.content.expected_bytes.max(end);
        if !keep_size && end > state.row.size_bytes {
            self.grow_pieces(node, &mut state, end)?;
            state.row.size_bytes = end;
        }
        self.touch_content(node, &mut state);
        drop(promise);
        Ok(())
    }

    /// Announces the final length, bytes.
    pub fn expect_len(&self, node: &Arc<Node>, size_bytes: u64) {
        node.lock().content.expected_bytes = size_bytes;
    }

    /// Counts a handle, that may write or not. [`Engine::close_node`] must follow.
    pub fn open_node(&self, node: &Node, may_write: bool) -> Result<()> {
        let mut state = self.lock_node(node)?;
        require_alive(&state)?;
        if state.row.kind != FileKind::File {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "only regular files have content to open",
            ));
        }
        if state.row.nlink == 0 && state.open_count == 0 && !state.is_parting {
            // Nobody holds it for us: it may be reclaimed at any moment.
            return Err(Error::new(ErrorKind::NotFound, "the file was removed"));
        }
        state.open_count += 1;
        state.writer_count += u32::from(may_write);
        Ok(())
    }

    /// Ends a handle. The last one of an inode without a name lets it go (`CONTENT-4`).
    pub fn close_node(&self, node: &Arc<Node>, may_write: bool) -> Result<()> {
        {
            let mut state = node.lock();
            state.open_count -= 1;
            state.writer_count -= u32::from(may_write);
            if may_write && state.writer_count == 0 {
                state.content.expected_bytes = 0;
                self.settle_later(node, &mut state);
                self.lock_room().space.end_stream(stream_of(node));
            }
            if state.open_count > 0 {
                return Ok(());
            }
            // Another session may have taken its last name.
            self.freshen(node, &mut state)?;
            let is_over = state.row.nlink == 0 && !state.is_deleted && !state.is_parting;
            if !is_over || self.keep_if_known(node, &mut state, true) {
                return Ok(());
            }
        }
        let _edit = self.edit()?;
        let _gate = self.enter_gate();
        let mut state = self.lock_node(node)?;
        self.end_orphan(node, &mut state);
        Ok(())
    }

    /// Marks an inode as gone; the commit retires its extents.
    pub(crate) fn delete(&self, node: &Arc<Node>, state: &mut NodeState) {
        state.is_deleted = true;
        self.discard(state, 0, u64::MAX);
        self.mark_dirty(node, state);
    }

    /// Forgets dirty blocks `from..to` and their promise.
    pub(crate) fn discard(&self, state: &mut NodeState, from: u64, to: u64) {
        let content = &mut state.content;
        let (_, freed_bytes) = content.kept.discard(from, to);
        self.kept_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
        content.is_provisional &= !content.kept.is_empty();
        let (gone, freed_bytes) = content.gather.discard(from, to);
        self.dirty_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
        if let Some(promise) = state.content.promise.as_mut().filter(|_| gone > 0) {
            let part = promise.split(gone);
            self.lock_room().space.forfeit(part);
        }
    }

    /// Retires extents with the open group (`EDIT-2`).
    pub(crate) fn retire(&self, node: &Node, state: &mut NodeState, extents: Vec<Extent>) {
        debug_assert!(state.content.frozen.is_none(), "NODE-2");
        let blocks: u64 = extents.iter().map(|extent| extent.block_count).sum();
        state.row.block_count -= blocks;
        let mut group = lock(&self.group);
        group.retired_bytes += blocks * BLOCK_BYTES;
        let mut room = self.lock_room();
        for extent in extents {
            self.quarantine_unshared(&mut room, extent);
            group.retired.push((extent, node.store, node.ino));
        }
    }

    /// What precedes every change of content: the object is there, and what goes with its old
    /// content (`EDIT-3`) is known.
    pub(crate) fn begin_content(&self, node: &Node, state: &mut NodeState) -> Result<()> {
        require_alive(state)?;
        self.load_xattrs(node, state)
    }

    /// Notes a change of content: length, times, the dirty list.
    pub(crate) fn touch_content(&self, node: &Arc<Node>, state: &mut NodeState) {
        let now_ns = self.now_ns();
        debug_assert!(state.xattrs.is_some(), "EDIT-3");
        state.drop_xattr(CAPABILITY_XATTR);
        state.row.mtime_ns = now_ns;
        state.row.ctime_ns = now_ns;
        state.mask.size = true;
        state.mask.mtime = true;
        state.mask.ctime = true;
        self.mark_dirty(node, state);
    }

    /// Puts a node on the dirty list of the open group (`NODE-3`). Inside the gate only.
    pub(crate) fn mark_dirty(&self, node: &Arc<Node>, state: &mut NodeState) {
        debug_assert!(
            self.turn.is_held() || self.check_running().is_err(),
            "NODE-4"
        );
        state.generation = self.open_generation.load(Ordering::SeqCst);
        state.touch_count += 1;
        self.history.acting.note();
        self.join_group(node, state);
        self.note_pending(node, state);
    }

    /// The same for a change that nobody waits for: fsync need not know of it.
    pub(crate) fn join_group(&self, node: &Arc<Node>, state: &mut NodeState) {
        if !state.in_group {
            state.in_group = true;
            lock(&self.group).push(node.clone());
        }
    }
}

/// The stream of an object's appends.
pub(crate) fn stream_of(node: &Node) -> StreamId {
    StreamId((u64::from(node.store.0) << 48) | node.ino.0)
}

/// How many blocks a write can make dirty, at most; where an append begins is not known yet.
pub(crate) fn blocks_touched(offset: Option<u64>, len_bytes: u64) -> u64 {
    match offset {
        // Content that leaves its inline place takes block 0.
        Some(offset) => {
            (offset % BLOCK_BYTES + len_bytes).div_ceil(BLOCK_BYTES)
                + u64::from(offset >= BLOCK_BYTES)
        }
        None => len_bytes / BLOCK_BYTES + 3,
    }
}

pub(crate) fn require_alive(state: &NodeState) -> Result<()> {
    if state.is_deleted {
        return Err(Error::new(
            ErrorKind::NotFound,
            "the file was removed by another session; open it again",
        ));
    }
    Ok(())
}

pub(crate) fn too_large() -> Error {
    Error::new(
        ErrorKind::FileTooLarge,
        format!("a file has at most {FILE_BYTES_MAX} bytes"),
    )
}
