//! The read path: gather → frozen → inline → patch → extent map → segment (verify) → bytes.
//!
//! Memory is copied under the node's lock; devices are read without it. What a read may touch is
//! pinned by `begin_read` (`SESSION-2`).

use crate::Result;
use crate::edit::require_alive;
use crate::engine::Engine;
use crate::map::{MapSource, Mapped};
use crate::node::{Node, NodeState};
use larder_catalog::ContentRow;
use larder_space::format::Extent;
use larder_space::format::limits::BLOCK_BYTES;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Part of a read that must come from a device.
struct DeviceRead {
    /// Where in the caller's buffer the bytes go.
    at: usize,
    len: usize,
    extent: Extent,
    /// Bytes to skip in the first block.
    skip: usize,
    checksums: Vec<u32>,
}

impl Engine {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 at or after the end.
    pub fn read(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let pin = self.begin_read();
        let outcome = self.read_pinned(node, offset, buffer);
        self.end_read(pin);
        outcome
    }

    fn read_pinned(&self, node: &Node, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut reads = Vec::new();
        let len = {
            let mut state = self.lock_node(node)?;
            require_alive(&state)?;
            let left = state.row.size_bytes.saturating_sub(offset);
            let len = buffer
                .len()
                .min(usize::try_from(left).unwrap_or(usize::MAX));
            self.plan(node, &mut state, offset, &mut buffer[..len], &mut reads)?;
            len
        };
        for read in reads {
            self.read_device(&read, &mut buffer[read.at..read.at + read.len])?;
        }
        Ok(len)
    }

    /// Copies what is in memory and notes what is not.
    fn plan(
        &self,
        node: &Node,
        state: &mut NodeState,
        offset: u64,
        buffer: &mut [u8],
        reads: &mut Vec<DeviceRead>,
    ) -> Result<()> {
        if buffer.is_empty() {
            return Ok(());
        }
        self.load_content(node, state)?;
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
                .or_else(|| content.frozen.as_ref()?.find(block));
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
            if let Some(bytes) = content.patches.find(block) {
                buffer[done..done + in_block].copy_from_slice(&bytes[within..within + in_block]);
                done += in_block;
                continue;
            }
            // The next dirty or patched block ends what the map may answer for.
            let wanted = (within + buffer.len() - done).div_ceil(BLOCK) as u64;
            let dirty = content.gather.next_present(block).into_iter();
            let frozen = content
                .frozen
                .as_ref()
                .and_then(|frozen| frozen.next_present(block));
            let blocks = dirty
                .chain(frozen)
                .chain(content.patches.next_present(block))
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
                Mapped::Run(run) => {
                    let count = run.extent.block_count.min(blocks);
                    let len = ((count * BLOCK_BYTES) as usize - within).min(buffer.len() - done);
                    reads.push(DeviceRead {
                        at: done,
                        len,
                        extent: run.extent.slice(0, count),
                        skip: within,
                        checksums: run.checksums[..count as usize].to_vec(),
                    });
                    done += len;
                }
            }
        }
        Ok(())
    }

    fn read_device(&self, read: &DeviceRead, target: &mut [u8]) -> Result<()> {
        let segment = self.segment(read.extent.segment)?;
        let start = read.extent.start_block;
        if read.skip == 0 && target.len().is_multiple_of(BLOCK) {
            return Ok(segment.read(start, target, &read.checksums)?);
        }
        // Whole blocks go straight to the caller; the ragged ends through one block of memory.
        let mut bounce = [0; BLOCK];
        let mut done = 0;
        let mut block = 0;
        while done < target.len() {
            let skip = if block == 0 { read.skip } else { 0 };
            let whole = if skip == 0 {
                (target.len() - done) / BLOCK
            } else {
                0
            };
            if whole > 0 {
                let len = whole * BLOCK;
                segment.read(
                    start + block as u64,
                    &mut target[done..done + len],
                    &read.checksums[block..block + whole],
                )?;
                done += len;
                block += whole;
            } else {
                let len = (BLOCK - skip).min(target.len() - done);
                segment.read(
                    start + block as u64,
                    &mut bounce,
                    &read.checksums[block..=block],
                )?;
                target[done..done + len].copy_from_slice(&bounce[skip..skip + len]);
                done += len;
                block += 1;
            }
        }
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
        let mut reads = Vec::new();
        self.plan(node, state, block * BLOCK_BYTES, target, &mut reads)?;
        for read in reads {
            self.read_device(&read, &mut target[read.at..read.at + read.len])?;
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

    /// Reads the patches, and the inline row if there is one.
    pub(crate) fn load_content(&self, node: &Node, state: &mut NodeState) -> Result<()> {
        if !state.content.is_loaded {
            debug_assert!(state.content.map.is_unread(), "PATCH-2");
            state.content.patches = self.load_patches(node.store, node.ino)?;
            state.content.inline = match self.catalog.content(node.store, node.ino)? {
                Some(ContentRow::Inline(bytes)) => Some(bytes),
                Some(ContentRow::Target(_)) | None => None,
            };
            state.content.has_inline_row = state.content.inline.is_some();
            state.content.is_loaded = true;
        }
        Ok(())
    }

    pub(crate) fn map_source(&self, node: &Node) -> MapSource<'_> {
        MapSource {
            catalog: &self.catalog,
            store: node.store,
            ino: node.ino,
        }
    }

    /// Asks the devices to fetch what will be read soon. Errors only cost speed, and show when the
    /// read itself comes.
    pub fn prefetch(&self, node: &Node, offset: u64, len_bytes: u64) -> Result<()> {
        let mut state = self.lock_node(node)?;
        let end = state
            .row
            .size_bytes
            .min(offset.saturating_add(len_bytes))
            .div_ceil(BLOCK_BYTES);
        self.load_content(node, &mut state)?;
        let source = self.map_source(node);
        let mut block = offset / BLOCK_BYTES;
        while block < end {
            match state.content.map.find(source, block)? {
                Mapped::Hole(hole) => block += hole,
                Mapped::Run(run) => {
                    let count = run.extent.block_count.min(end - block);
                    self.segment(run.extent.segment)?
                        .prefetch(run.extent.start_block, count);
                    block += count;
                }
            }
        }
        Ok(())
    }

    /// The next byte at or after `offset` that is data, or in a hole; `None` when `offset` is at or
    /// after the end, or no data follows. A dirty block counts as data.
    pub fn seek(&self, node: &Node, for_data: bool, offset: u64) -> Result<Option<u64>> {
        let mut state = self.lock_node(node)?;
        require_alive(&state)?;
        let size = state.row.size_bytes;
        if offset >= size {
            return Ok(None);
        }
        self.load_content(node, &mut state)?;
        let source = self.map_source(node);
        let end = size.div_ceil(BLOCK_BYTES);
        let mut block = offset / BLOCK_BYTES;
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
                Some(Mapped::Run(run)) => (true, run.extent.block_count),
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
                return Ok(Some(offset.max(block * BLOCK_BYTES).min(size)));
            }
            block += count;
        }
        Ok((!for_data).then_some(size))
    }
}

fn copy_padded(from: &[u8], to: &mut [u8]) {
    let len = from.len().min(to.len());
    to[..len].copy_from_slice(&from[..len]);
    to[len..].fill(0);
}
