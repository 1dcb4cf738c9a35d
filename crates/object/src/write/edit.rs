//! Changes of content: into the gather, or as edits of the extent map. No device is written here.
//!
//! # Invariants
//! * `EDIT-1` Every dirty block is covered by a reservation, taken before the change: a write
//!   that was accepted never meets a full device later.
//! * `EDIT-2` Extents that an edit drops are quarantined and retired by the group of that edit.
//! * `EDIT-3` A change of content takes the file's capability (`security.capability`) with it:
//!   nobody has vouched for the new content.

use crate::engine::{Edit, EngineContent, lock};
use crate::view::gather::Gather;
use crate::view::node::{Node, NodeState, require_alive, stream_of};
use crate::write::RowEdit;
use crate::write::change::{ContentGuard, HeldReservation, Wait};
use crate::write::guard::step;
use crate::{Error, ErrorKind, Result};
use larder_catalog::InodeRow;
use larder_space::Purpose;
use larder_space::format::limits::{BLOCK_BYTES, FILE_BYTES_MAX};
use larder_space::format::{Extent, FileKind};
use std::sync::Arc;
use std::sync::atomic::Ordering;

const BLOCK: usize = BLOCK_BYTES as usize;
/// The rights that a program file gives to who runs it (`capabilities(7)`).
pub const CAPABILITY_XATTR: &[u8] = b"security.capability";

/// What is zeroed of a base: whole blocks, and the edges beside them as they will be.
pub(crate) struct Zeroing {
    first_whole: u64,
    last_whole: u64,
    edges: [Edge; 2],
}

/// Bytes of one block that will be zero; the block as it will be, if it is stored and not dirty.
struct Edge {
    block: u64,
    from: usize,
    to: usize,
    bytes: Option<Box<[u8; BLOCK]>>,
}

/// What becomes shorter.
pub(crate) struct Shrinking {
    size_bytes: u64,
    tail: Edge,
}

impl<'e> EngineContent<'e> {
    /// New content needs the host's space too, though it may have no block of its own (`HOST-1`).
    /// Asked before anything is locked.
    pub(crate) fn require_room(&self, purpose: Purpose) -> Result<()> {
        match purpose {
            Purpose::Ordinary => self.space().require_host_space(),
            Purpose::Privileged => Ok(()),
        }
    }

    /// A reservation of `blocks` blocks for a change that follows.
    pub(crate) fn reservation(
        &self,
        _edit: &Edit<'_>,
        blocks: u64,
        purpose: Purpose,
    ) -> Result<HeldReservation<'e>> {
        let reservation = self.space().reserve(blocks, purpose)?;
        Ok(HeldReservation {
            engine: self.engine,
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
        step("claim memory")?;
        let _memory = self.delayed_allocation().claim_memory(data.len() as u64)?;
        let blocks = blocks_touched(asked, data.len() as u64);
        let mut change = self.content_guard(node, (blocks, Purpose::Ordinary), Wait::No)?;
        let size = change.state.row.size_bytes;
        let offset = asked.unwrap_or(size);
        let end = offset
            .checked_add(data.len() as u64)
            .filter(|&end| end <= FILE_BYTES_MAX)
            .ok_or_else(too_large)?;
        if data.is_empty() {
            return Ok(offset);
        }
        change.ask(end.max(size))?;
        if change.state.content.pieces.is_some() {
            drop(change);
            return self.fragments().write_pieces(node, asked, data);
        }
        match change.state.content.gather.edges(offset, data.len() as u64) {
            [None, None] => self.gather_write(node, &mut change, (offset, data), |_, _| {}),
            edges => self.write_with_edges(node, &mut change, (offset, data), edges)?,
        }
        change.commit(end.max(size));
        Ok(offset)
    }

    /// Reads the blocks at the edges of a write, and writes.
    fn write_with_edges(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        data: (u64, &[u8]),
        edges: [Option<u64>; 2],
    ) -> Result<()> {
        let mut read = [[0; BLOCK]; 2];
        for (edge, bytes) in edges.into_iter().zip(&mut read) {
            if let Some(block) = edge {
                step("read an edge")?;
                self.maps()
                    .read_block(node, &mut change.state, block, bytes)?;
            }
        }
        self.gather_write(node, change, data, |block, target| {
            let known = edges.iter().position(|edge| *edge == Some(block));
            if let Some(bytes) = known.and_then(|at| read.get(at)) {
                target.copy_from_slice(bytes);
            }
        });
        Ok(())
    }

    /// Writes into the gather; `fill` has what is at the edges.
    fn gather_write(
        &self,
        node: &Arc<Node>,
        change: &mut ContentGuard<'_>,
        (offset, data): (u64, &[u8]),
        mut fill: impl FnMut(u64, &mut [u8]),
    ) {
        let state = &mut *change.state;
        self.leave_inline(node, state, &mut change.reservation);
        self.gather(node, state, &mut change.reservation, |gather| {
            gather.write(offset, data, &mut fill);
        });
    }

    /// Runs `change` on the gather, and moves the reservation for what became dirty (`EDIT-1`).
    pub(crate) fn gather(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        reservation: &mut HeldReservation<'_>,
        change: impl FnOnce(&mut Gather),
    ) {
        let gather = &mut state.content.gather;
        let (before, memory_before) = (gather.block_count(), gather.memory_bytes());
        change(gather);
        let added = gather.block_count() - before;
        self.dirty_bytes
            .fetch_add(gather.memory_bytes() - memory_before, Ordering::Relaxed);
        reservation.give(added, &mut state.content.reservation);
        if added > 0 {
            self.mark_dirty(node, state);
        }
    }

    /// Makes inline content an ordinary dirty block.
    pub(crate) fn leave_inline(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        reservation: &mut HeldReservation<'_>,
    ) {
        let Some(inline) = state.content.inline.take() else {
            return;
        };
        state.content.inline_dirty = false;
        let mut block = [0; BLOCK];
        block[..inline.len()].copy_from_slice(&inline);
        self.gather(node, state, reservation, |gather| gather.put(0, &block));
    }

    /// Sets the logical length.
    pub fn truncate(&self, node: &Arc<Node>, size_bytes: u64) -> Result<()> {
        self.truncate_with(node, size_bytes, None).map(drop)
    }

    /// The same with attributes: all of it, or nothing.
    pub fn truncate_with(
        &self,
        node: &Arc<Node>,
        size_bytes: u64,
        with: Option<&RowEdit<'_>>,
    ) -> Result<InodeRow> {
        if size_bytes > FILE_BYTES_MAX {
            return Err(too_large());
        }
        // The last block stays, with zeros behind the end.
        let tail_blocks = u64::from(!size_bytes.is_multiple_of(BLOCK_BYTES));
        let reserved = (tail_blocks, Purpose::Privileged);
        let mut change = self.content_guard(node, reserved, Wait::UntilThawed)?;
        if change.state.content.pieces.is_some() {
            drop(change);
            return self.fragments().truncate_pieces(node, size_bytes, with);
        }
        change.ask_with(size_bytes, with)?;
        if size_bytes < change.state.row.size_bytes {
            let shrinking = self.plan_shrink(node, &mut change.state, size_bytes)?;
            let state = &mut *change.state;
            self.shrink(node, state, &mut change.reservation, &shrinking);
        }
        Ok(change.commit_with(size_bytes, with))
    }

    /// Loads and reads what [`EngineContent::shrink`] needs. Changes nothing.
    pub(crate) fn plan_shrink(
        &self,
        node: &Node,
        state: &mut NodeState,
        size_bytes: u64,
    ) -> Result<Shrinking> {
        let end = size_bytes.next_multiple_of(BLOCK_BYTES);
        let tail = self.plan_edge(node, state, size_bytes, end)?;
        step("load the map")?;
        let source = self.maps().map_source(node);
        let keep = size_bytes.div_ceil(BLOCK_BYTES);
        state.content.map.load_blocks(source, keep, u64::MAX)?;
        Ok(Shrinking { size_bytes, tail })
    }

    /// Lets everything from an offset on go, of an object without pieces; the caller sets the size.
    pub(crate) fn shrink(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        reservation: &mut HeldReservation<'_>,
        shrinking: &Shrinking,
    ) {
        let size = shrinking.size_bytes;
        if let Some(inline) = state.content.inline.as_mut()
            && (size as usize) < inline.len()
        {
            inline.truncate(size as usize);
            state.content.inline_dirty = true;
        }
        self.zero_edge(node, state, reservation, &shrinking.tail);
        let keep = size.div_ceil(BLOCK_BYTES);
        self.discard(state, keep, u64::MAX);
        let removed = state.content.unmap_loaded_from(keep);
        self.retire(node, state, removed);
    }

    /// What zeroing bytes `from..to`, which lie in one block, needs to know of that.
    fn plan_edge(&self, node: &Node, state: &mut NodeState, from: u64, to: u64) -> Result<Edge> {
        let block = from / BLOCK_BYTES;
        let start = block * BLOCK_BYTES;
        let mut edge = Edge {
            block,
            from: (from - start) as usize,
            to: (to.max(from) - start) as usize,
            bytes: None,
        };
        if edge.from == edge.to || state.content.gather.find(block).is_some() {
            return Ok(edge);
        }
        step("load the map at an edge")?;
        if state
            .content
            .map
            .contains(self.maps().map_source(node), block)?
        {
            let mut bytes = Box::new([0; BLOCK]);
            step("read an edge")?;
            self.maps().read_block(node, state, block, &mut bytes[..])?;
            bytes[edge.from..edge.to].fill(0);
            edge.bytes = Some(bytes);
        }
        Ok(edge)
    }

    fn zero_edge(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        reservation: &mut HeldReservation<'_>,
        edge: &Edge,
    ) {
        if edge.from == edge.to
            || (state.content.gather).zero_within(edge.block, edge.from, edge.to)
        {
            return;
        }
        if let Some(bytes) = &edge.bytes {
            self.gather(node, state, reservation, |gather| {
                gather.put(edge.block, bytes)
            });
        }
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
        let reserved = (3, Purpose::Privileged);
        let mut change = self.content_guard(node, reserved, Wait::UntilThawed)?;
        if change.state.content.pieces.is_some() {
            drop(change);
            return self.fragments().zero_pieces(node, offset, end, keep_size);
        }
        let size = change.state.row.size_bytes;
        let grown = if keep_size { size } else { size.max(end) };
        change.ask(grown)?;
        let stop = end.min(size);
        let range = (offset, stop, stop == size);
        let zeroing = self.plan_zero(node, &mut change.state, range)?;
        let state = &mut *change.state;
        self.leave_inline(node, state, &mut change.reservation);
        self.zero_base(node, state, &mut change.reservation, zeroing.as_slice());
        change.commit(grown);
        Ok(())
    }

    /// Loads and reads what zeroing bytes `from..to` of the base needs. With `is_tail` nothing but
    /// zeros follows in the last block, so that counts as whole. Changes nothing.
    pub(crate) fn plan_zero(
        &self,
        node: &Node,
        state: &mut NodeState,
        (from, to, is_tail): (u64, u64, bool),
    ) -> Result<Option<Zeroing>> {
        if from >= to {
            return Ok(None);
        }
        let first_whole = from.next_multiple_of(BLOCK_BYTES);
        let last_whole = if is_tail {
            to.next_multiple_of(BLOCK_BYTES)
        } else {
            to / BLOCK_BYTES * BLOCK_BYTES
        };
        let edges = [
            self.plan_edge(node, state, from, first_whole.min(to))?,
            self.plan_edge(node, state, last_whole.max(first_whole), to)?,
        ];
        if first_whole < last_whole {
            step("load the map")?;
            let (from, to) = (first_whole / BLOCK_BYTES, last_whole / BLOCK_BYTES);
            let source = self.maps().map_source(node);
            state.content.map.load_blocks(source, from, to)?;
        }
        Ok(Some(Zeroing {
            first_whole,
            last_whole,
            edges,
        }))
    }

    /// Zeroes ranges of the base: unmaps their whole blocks.
    pub(crate) fn zero_base(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        reservation: &mut HeldReservation<'_>,
        ranges: &[Zeroing],
    ) {
        for zeroing in ranges {
            for edge in &zeroing.edges {
                self.zero_edge(node, state, reservation, edge);
            }
            if zeroing.first_whole < zeroing.last_whole {
                let from = zeroing.first_whole / BLOCK_BYTES;
                let to = zeroing.last_whole / BLOCK_BYTES;
                self.discard(state, from, to);
                let removed = state.content.unmap_loaded(from, to);
                self.retire(node, state, removed);
            }
        }
    }

    /// Checks that `offset..offset + len` could be written now, and takes it as a size hint; grows
    /// the object unless `keep_size`. Content is written to new places always, so nothing stronger
    /// can be reserved for longer.
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
        let reserved = (len_bytes.div_ceil(BLOCK_BYTES), Purpose::Ordinary);
        let mut change = self.content_guard(node, reserved, Wait::No)?;
        let size = change.state.row.size_bytes;
        let grown = if keep_size { size } else { size.max(end) };
        change.ask(grown)?;
        let state = &mut *change.state;
        self.fragments().plan_longer(node, state, grown)?;
        self.fragments().grow_pieces(node, state, grown);
        state.content.expected_bytes = state.content.expected_bytes.max(end);
        change.commit(grown);
        Ok(())
    }

    /// Announces the final length, bytes.
    pub fn expect_len(&self, node: &Arc<Node>, size_bytes: u64) {
        node.lock().content.expected_bytes = size_bytes;
    }

    /// Counts a handle, that may write or not. [`EngineContent::close_node`] must follow.
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
                self.delayed_allocation().settle_later(node, &mut state);
                self.free_space().space.end_stream(stream_of(node));
            }
            self.refusals().end_report(&mut state);
            if state.open_count > 0 {
                return Ok(());
            }
            // Another session may have taken its last name.
            self.freshen(node, &mut state)?;
            let is_over = state.row.nlink == 0 && !state.is_deleted && !state.is_parting;
            if !is_over || self.orphans().keep_if_known(node, &mut state, true) {
                return Ok(());
            }
        }
        let _edit = self.edit()?;
        let _barrier = self.enter_barrier();
        let mut state = self.lock_node(node)?;
        self.orphans().end_orphan(node, &mut state);
        Ok(())
    }

    /// Marks an inode as gone; the commit retires its extents.
    pub(crate) fn delete(&self, node: &Arc<Node>, state: &mut NodeState) {
        state.is_deleted = true;
        self.discard(state, 0, u64::MAX);
        self.mark_dirty(node, state);
    }

    /// Forgets dirty blocks `from..to` and their reservation.
    pub(crate) fn discard(&self, state: &mut NodeState, from: u64, to: u64) {
        let content = &mut state.content;
        let (_, freed_bytes) = content.kept.discard(from, to);
        self.kept_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
        content.is_delayed &= !content.kept.is_empty();
        let (gone, freed_bytes) = content.gather.discard(from, to);
        self.dirty_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
        if let Some(reservation) = state.content.reservation.as_mut().filter(|_| gone > 0) {
            let part = reservation.split(gone);
            self.free_space().space.forfeit(part);
        }
    }

    /// Retires extents with the open group (`EDIT-2`).
    pub(crate) fn retire(&self, node: &Node, state: &mut NodeState, extents: Vec<Extent>) {
        debug_assert!(state.content.frozen.is_none(), "NODE-2");
        let blocks: u64 = extents.iter().map(|extent| extent.block_count).sum();
        state.row.block_count -= blocks;
        let mut group = lock(&self.group);
        group.retired_bytes += blocks * BLOCK_BYTES;
        let mut free = self.free_space();
        for extent in extents {
            self.sharing().quarantine_unshared(&mut free, extent);
            group.retired.push((extent, node.store, node.ino));
        }
    }

    /// What precedes every change of content: the object is there, and what goes with its old
    /// content (`EDIT-3`) is known.
    pub(crate) fn begin_content(&self, node: &Node, state: &mut NodeState) -> Result<()> {
        require_alive(state)?;
        self.lookup().load_xattrs(node, state)
    }

    /// Notes a change of content: length, times, the dirty list; and attributes that come with it.
    pub(crate) fn touch_content(
        &self,
        node: &Arc<Node>,
        state: &mut NodeState,
        with: Option<&RowEdit<'_>>,
    ) {
        let now_ns = self.now_ns();
        debug_assert!(state.xattrs.is_some(), "EDIT-3");
        state.drop_xattr(CAPABILITY_XATTR);
        state.row.mtime_ns = now_ns;
        state.row.ctime_ns = now_ns;
        state.mask.size = true;
        state.mask.mtime = true;
        state.mask.ctime = true;
        if let Some(with) = with {
            (with.edit)(&mut state.row, now_ns);
            state.mask = state.mask | with.mask;
        }
        self.mark_dirty(node, state);
    }

    /// Puts a node on the dirty list of the open group (`NODE-3`). Inside the freeze barrier only.
    pub(crate) fn mark_dirty(&self, node: &Arc<Node>, state: &mut NodeState) {
        debug_assert!(
            self.writer_lock.is_held() || self.check_running().is_err(),
            "NODE-4"
        );
        state.generation = self.open_generation.load(Ordering::SeqCst);
        state.touch_count += 1;
        self.history.attribution.note();
        self.join_group(node, state);
        self.rules().note_pending(node, state);
    }

    /// The same for a change that nobody waits for: fsync need not know of it.
    pub(crate) fn join_group(&self, node: &Arc<Node>, state: &mut NodeState) {
        if !state.in_group {
            state.in_group = true;
            lock(&self.group).push(node.clone());
        }
    }
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

pub(crate) fn too_large() -> Error {
    Error::new(
        ErrorKind::FileTooLarge,
        format!("a file has at most {FILE_BYTES_MAX} bytes"),
    )
}
