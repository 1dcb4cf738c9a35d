//! The read path: (pieces →) gather → frozen → kept → inline → redo row → extent map → segment
//! (verify) → bytes.
//!
//! Memory is copied under the node's lock; devices are read without it. What a read may touch is
//! pinned by `begin_read` (`SESSION-2`).

use crate::view::extent_map::{MapSource, Mapped};
use crate::view::node::{Node, NodeState, require_alive};
use crate::view::pieces::{Piece, Pieces};
use crate::view::{Shown, View, ViewMaps};
use crate::{Error, ErrorKind, Result};
use larder_segment::AlignedBuf;
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Checksum, Extent};
use std::io::IoSliceMut;
use std::sync::atomic::Ordering;

const BLOCK: usize = BLOCK_BYTES as usize;

/// What a read must bring from devices.
#[derive(Default)]
pub(crate) struct Plan {
    reads: Vec<DeviceRead>,
    /// Of all blocks of all reads, in order.
    checksums: Vec<Checksum>,
}

/// Part of a read that must come from a device.
pub(crate) struct DeviceRead {
    /// Where in the caller's buffer the bytes go.
    pub at: usize,
    pub len: usize,
    pub extent: Extent,
    /// Bytes to skip in the first block.
    pub skip: usize,
    /// Index of its first checksum in the plan.
    pub checksum_index: usize,
}

impl View {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 at or after the end.
    pub fn read(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let _pin = self.begin_read();
        let mut plan = Plan::default();
        let len = loop {
            let mut state = self.lock_node(node)?;
            require_alive(&state)?;
            if !self
                .maps()
                .ready_pieces(node, &mut state, offset, buffer.len())?
            {
                continue;
            }
            let left = state.row.size_bytes.saturating_sub(offset);
            let len = buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            self.maps()
                .plan(node, &mut state, offset, &mut buffer[..len], &mut plan)?;
            if self.maps().is_of_one_moment(node, &mut state)? {
                break len;
            }
            plan = Plan::default();
        };
        self.maps().read_devices(&plan, &mut buffer[..len])?;
        Ok(len)
    }

    /// Reads all of an object into `buffer`, which then has its length. One lock and, for an object
    /// in one piece, one request; a buffer that was used before is not cleared first.
    pub fn read_whole(&self, node: &Node, buffer: &mut AlignedBuf) -> Result<()> {
        let _pin = self.begin_read();
        let mut plan = Plan::default();
        let size = loop {
            let mut state = self.lock_node(node)?;
            require_alive(&state)?;
            if !self.maps().ready_pieces(node, &mut state, 0, usize::MAX)? {
                continue;
            }
            let size = usize::try_from(state.row.size_bytes).map_err(|_| too_long_for_memory())?;
            // Whole blocks: then none needs a copy. What is after the end reads as zero (GATHER-2).
            let padded = size.next_multiple_of(BLOCK);
            if !buffer.try_resize(padded) {
                return Err(too_long_for_memory());
            }
            // What is after the end belongs to no piece.
            let visible = match state.content.pieces {
                None => padded,
                Some(_) => size,
            };
            self.maps()
                .plan(node, &mut state, 0, &mut buffer[..visible], &mut plan)?;
            if self.maps().is_of_one_moment(node, &mut state)? {
                break size;
            }
            plan = Plan::default();
        };
        self.maps().read_devices(&plan, buffer)?;
        buffer.resize(size, 0);
        Ok(())
    }

    /// Asks the devices to fetch what will be read soon. Errors only cost speed, and show when the
    /// read itself comes.
    pub fn prefetch(&self, node: &Node, offset: u64, len_bytes: u64) -> Result<()> {
        let mut state = self.lock_node(node)?;
        if offset >= state.row.size_bytes {
            return Ok(());
        }
        let end = offset.saturating_add(len_bytes);
        if !self.maps().load_pieces(node, &mut state, offset, end)? {
            return Ok(());
        }
        let end = state.row.size_bytes.min(end);
        let ranges = match &state.content.pieces {
            None => vec![(offset / BLOCK_BYTES, end.div_ceil(BLOCK_BYTES))],
            Some(pieces) => pieces
                .translate(offset, end)
                .iter()
                .map(|range| (range.offset / BLOCK_BYTES, range.end_block()))
                .collect(),
        };
        let source = self.maps().map_source(node);
        for (mut block, end) in ranges {
            while block < end {
                match state.content.map.find(source, block)? {
                    Mapped::Hole(hole) => block += hole,
                    Mapped::Run { extent, .. } => {
                        let count = extent.block_count.min(end - block);
                        self.segment(extent.segment)?
                            .prefetch(extent.start_block, count);
                        block += count;
                    }
                }
            }
        }
        Ok(())
    }

    /// The next byte at or after `offset` that is data, or in a hole; `None` when `offset` is at or
    /// after the end, or no data follows. A dirty block counts as data.
    pub fn seek(&self, node: &Node, for_data: bool, offset: u64) -> Result<Option<u64>> {
        loop {
            let mut state = self.lock_node(node)?;
            require_alive(&state)?;
            let Some(found) = self.maps().seek_once(node, &mut state, for_data, offset)? else {
                continue;
            };
            if self.maps().is_of_one_moment(node, &mut state)? {
                return Ok(found);
            }
        }
    }
}

impl<'v> ViewMaps<'v> {
    /// Loads the pieces that a read needs; `false`: the lock was let go meanwhile, look again.
    fn ready_pieces(
        &self,
        node: &Node,
        state: &mut NodeState,
        offset: u64,
        len: usize,
    ) -> Result<bool> {
        if !state.is_committing
            && let Some(pieces) = state.content.pieces.as_mut()
        {
            pieces.shrink();
        }
        self.load_pieces(node, state, offset, offset.saturating_add(len as u64))
    }

    /// Copies what is in memory and notes what is not. Pieces are loaded.
    pub(crate) fn plan(
        &self,
        node: &Node,
        state: &mut NodeState,
        offset: u64,
        buffer: &mut [u8],
        plan: &mut Plan,
    ) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.load_content(node, state)?;
        let Some(pieces) = &state.content.pieces else {
            return self.plan_base(node, state, offset, 0, buffer, plan);
        };
        let mut at = 0;
        for range in pieces.translate(offset, offset + buffer.len() as u64) {
            let end = at + range.len_bytes as usize;
            self.plan_base(node, state, range.offset, at, &mut buffer[at..end], plan)?;
            at = end;
        }
        Ok(())
    }

    /// The same at an offset in the base; `buffer` begins at `at` of the caller's buffer.
    fn plan_base(
        &self,
        node: &Node,
        state: &mut NodeState,
        offset: u64,
        at: usize,
        buffer: &mut [u8],
        plan: &mut Plan,
    ) -> Result<()> {
        let source = self.map_source(node);
        let content = &mut state.content;
        if !state.is_committing {
            // MAP-4: until the commit has ended the catalog lacks what the map has.
            content.map.shrink();
        }
        let mut done = 0;
        while done < buffer.len() {
            let position = offset + done as u64;
            let (block, within) = (position / BLOCK_BYTES, (position % BLOCK_BYTES) as usize);
            let in_block = (BLOCK - within).min(buffer.len() - done);
            let in_memory = content
                .gather
                .find(block)
                .or_else(|| content.frozen.as_ref()?.find(block))
                .or_else(|| content.kept.find(block));
            if let Some(bytes) = in_memory {
                buffer[done..done + in_block].copy_from_slice(&bytes[within..within + in_block]);
                done += in_block;
                continue;
            }
            if let Some(inline) = content.inline.as_deref().filter(|_| block == 0) {
                copy_padded(
                    &inline[within.min(inline.len())..],
                    &mut buffer[done..done + in_block],
                );
                done += in_block;
                continue;
            }
            if let Some(bytes) = content.redo_rows.find(block) {
                buffer[done..done + in_block].copy_from_slice(&bytes[within..within + in_block]);
                done += in_block;
                continue;
            }
            // The next block that is dirty or has a redo row ends what the map may answer for.
            let wanted = (within + buffer.len() - done).div_ceil(BLOCK) as u64;
            let dirty = content.gather.next_present(block).into_iter();
            let frozen = content
                .frozen
                .as_ref()
                .and_then(|frozen| frozen.next_present(block));
            let blocks = dirty
                .chain(frozen)
                .chain(content.redo_rows.next_present(block))
                .map(|next| next - block)
                .chain([wanted])
                .min()
                .unwrap_or(wanted);
            match content.map.find(source, block)? {
                Mapped::Hole(hole) => {
                    let len = ((hole.min(blocks) * BLOCK_BYTES) as usize - within)
                        .min(buffer.len() - done);
                    buffer[done..done + len].fill(0);
                    done += len;
                }
                Mapped::Run { extent, checksums } => {
                    let count = extent.block_count.min(blocks);
                    let len = ((count * BLOCK_BYTES) as usize - within).min(buffer.len() - done);
                    plan.add(at + done, len, extent.slice(0, count), within, checksums);
                    done += len;
                }
            }
        }
        self.cache.count_map(node, state);
        Ok(())
    }

    /// Reads what [`ViewMaps::plan`] found to be on devices.
    pub(crate) fn read_devices(&self, plan: &Plan, buffer: &mut [u8]) -> Result<()> {
        for read in &plan.reads {
            let checksums = &plan.checksums[read.checksum_index..][..read.block_count()];
            let target = &mut buffer[read.at..read.at + read.len];
            match self.moment {
                Shown::Present | Shown::Snapshot(_) => self.read_device(read, checksums, target)?,
                Shown::Past(_) => self.moment().read_past(read, checksums, target)?,
            }
        }
        Ok(())
    }

    /// Whole blocks go straight to `target`, the ragged ends through a block of memory each; all of
    /// it is one read of the segment.
    pub(crate) fn read_device(
        &self,
        read: &DeviceRead,
        checksums: &[Checksum],
        target: &mut [u8],
    ) -> Result<()> {
        let done = self.read_segment(read, checksums, target);
        self.require_unchanged()?;
        done
    }

    fn read_segment(
        &self,
        read: &DeviceRead,
        checksums: &[Checksum],
        target: &mut [u8],
    ) -> Result<()> {
        let segment = self.segment(read.extent.segment)?;
        let start = read.extent.start_block;
        if read.skip == 0 && target.len().is_multiple_of(BLOCK) {
            return Ok(segment.read(start, target, checksums)?);
        }
        let (mut head, mut tail) = ([0; BLOCK], [0; BLOCK]);
        let head_len = match read.skip {
            0 => 0,
            skip => (BLOCK - skip).min(target.len()),
        };
        let tail_len = (target.len() - head_len) % BLOCK;
        let body_end = target.len() - tail_len;
        let mut bufs = Vec::with_capacity(3);
        if head_len > 0 {
            bufs.push(IoSliceMut::new(&mut head));
        }
        if head_len < body_end {
            bufs.push(IoSliceMut::new(&mut target[head_len..body_end]));
        }
        if tail_len > 0 {
            bufs.push(IoSliceMut::new(&mut tail));
        }
        segment.read_vectored(start, &mut bufs, checksums)?;
        target[..head_len].copy_from_slice(&head[read.skip..read.skip + head_len]);
        target[body_end..].copy_from_slice(&tail[..tail_len]);
        Ok(())
    }

    /// The newest content of one block, for a partial write. The node's lock is held: a flush
    /// cannot retire what is being read.
    pub(crate) fn read_block(
        &self,
        node: &Node,
        state: &mut NodeState,
        block: u64,
        target: &mut [u8],
    ) -> Result<()> {
        let mut plan = Plan::default();
        self.load_content(node, state)?;
        self.plan_base(node, state, block * BLOCK_BYTES, 0, target, &mut plan)?;
        self.read_devices(&plan, target)?;
        if state.content.pieces.is_some() {
            return Ok(()); // PIECE-4
        }
        // GATHER-2: bytes after the end are zero, also when the last block was written whole.
        let end = state
            .row
            .size_bytes
            .saturating_sub(block * BLOCK_BYTES)
            .min(BLOCK_BYTES) as usize;
        target[end..].fill(0);
        Ok(())
    }

    /// Reads the inline row, the root of the list of pieces and the redo rows, if there are any.
    pub(crate) fn load_content(&self, node: &Node, state: &mut NodeState) -> Result<()> {
        if state.content.is_loaded {
            return Ok(());
        }
        debug_assert!(state.content.map.is_unread(), "REDO-2");
        // What this session knows of pieces and redo rows is of its last look, and what is read
        // here may be newer: a file that another session has just made may be nothing else.
        let is_unknown = self.foreign.has_moved(self.catalog.foreign()?.generation());
        let may_have_pieces = is_unknown || self.may_have_pieces.load(Ordering::SeqCst);
        // What has blocks has no inline row: one commit puts the first and drops the second.
        if state.row.block_count == 0 || may_have_pieces {
            let stored = self.catalog.maps().file_content(node.store, node.ino)?;
            let root = stored
                .piece_root
                .map(|bytes| self.decode_piece_page(node, 0, &bytes));
            state.content.pieces = root.transpose()?.map(Pieces::from_root);
            state.content.inline = stored.inline;
            state.content.has_inline_row = state.content.inline.is_some();
        }
        // A list may be newer than what this session has noticed; so must the redo rows be.
        let has_list = state.content.pieces.is_some();
        if has_list || is_unknown || self.redo_bytes() > 0 || self.moment().is_past() {
            // After the root, so that its number vouches for them (PIECE-5); before the map
            // (REDO-2).
            state.content.redo_rows = self.load_redo_rows(node.store, node.ino)?;
        }
        state.content.is_loaded = true;
        Ok(())
    }

    pub(crate) fn map_source(&self, node: &Node) -> MapSource<'v> {
        MapSource {
            catalog: &self.view.catalog,
            store: node.store,
            ino: node.ino,
        }
    }

    /// The same; `None` when another session changed the pieces meanwhile.
    fn seek_once(
        &self,
        node: &Node,
        state: &mut NodeState,
        for_data: bool,
        offset: u64,
    ) -> Result<Option<Option<u64>>> {
        let mut at = offset;
        loop {
            if !self.load_pieces(node, state, at, at)? {
                return Ok(None);
            }
            let size = state.row.size_bytes;
            if at >= size {
                // The end counts as a hole, but not for who asks there.
                return Ok(Some((!for_data && offset < size).then_some(size)));
            }
            let whole = Piece {
                first_block: 0,
                len_bytes: size,
            };
            let pieces = state.content.pieces.as_ref();
            let (start, piece) = pieces.map_or((0, whole), |pieces| pieces.find(at));
            let block = piece.first_block + (at - start) / BLOCK_BYTES;
            let found = self.seek_base(node, state, for_data, block, piece.end_block())?;
            if let Some(block) = found {
                let found = start + (block - piece.first_block) * BLOCK_BYTES;
                return Ok(Some(Some(found.max(at).min(size))));
            }
            at = start + piece.len_bytes;
        }
    }

    /// The first base block in `block..end` that is data, or a hole.
    fn seek_base(
        &self,
        node: &Node,
        state: &mut NodeState,
        for_data: bool,
        mut block: u64,
        end: u64,
    ) -> Result<Option<u64>> {
        let source = self.map_source(node);
        let content = &mut state.content;
        while block < end {
            let is_dirty = content.gather.find(block).is_some()
                || content
                    .frozen
                    .as_ref()
                    .is_some_and(|frozen| frozen.find(block).is_some())
                || (block == 0
                    && content
                        .inline
                        .as_ref()
                        .is_some_and(|inline| !inline.is_empty()));
            let mapped = if is_dirty {
                None
            } else {
                Some(content.map.find(source, block)?)
            };
            let (is_data, count) = match mapped {
                None => (true, 1),
                Some(Mapped::Run { extent, .. }) => (true, extent.block_count),
                Some(Mapped::Hole(hole)) => {
                    let dirty = content.gather.next_present(block);
                    let frozen = content
                        .frozen
                        .as_ref()
                        .and_then(|frozen| frozen.next_present(block));
                    let until = dirty
                        .into_iter()
                        .chain(frozen)
                        .map(|next| next - block)
                        .min();
                    if for_data {
                        // The map jumps over the pages that are not stored.
                        let limit = until.map_or(end, |until| (block + until).min(end));
                        match (content.map.next_mapped(source, block, limit)?, until) {
                            (Some(next), _) => (false, next - block),
                            (None, Some(until)) => (false, until),
                            (None, None) => return Ok(None),
                        }
                    } else {
                        (false, until.map_or(hole, |until| until.min(hole)))
                    }
                }
            };
            if is_data == for_data {
                return Ok(Some(block));
            }
            block += count;
        }
        Ok(None)
    }
}

impl Plan {
    fn add(&mut self, at: usize, len: usize, extent: Extent, skip: usize, checksums: &[Checksum]) {
        self.reads.push(DeviceRead {
            at,
            len,
            extent,
            skip,
            checksum_index: self.checksums.len(),
        });
        self.checksums
            .extend_from_slice(&checksums[..extent.block_count as usize]);
    }
}

impl DeviceRead {
    fn block_count(&self) -> usize {
        self.extent.block_count as usize
    }
}

fn too_long_for_memory() -> Error {
    Error::new(
        ErrorKind::TooBig,
        "the file is too long for this machine's memory; read it in parts",
    )
}

fn copy_padded(from: &[u8], to: &mut [u8]) {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    to[len..].fill(0);
}
