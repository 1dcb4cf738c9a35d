//! The gather: dirty blocks of one object, in front of allocation.
//!
//! # Invariants
//! * `GATHER-1` Every block that is present is whole: 4096 bytes that are the block's newest
//!   content. A partial write brings the rest of the block along (`fill`).
//! * `GATHER-2` Bytes after the logical end of the object are zero in every present block, so that
//!   extending the object reveals zeros and nothing else.
//! * `GATHER-3` [`Gather::memory_bytes`] is what the buffers of all its chunks take of memory.

use crate::view::buffers;
use larder_segment::PageBuf;
use larder_space::format::limits::BLOCK_BYTES;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Blocks in one chunk of memory (32 KiB): one bit each in [`Chunk::present`]. A lone dirty block
/// takes a whole chunk at worst.
const CHUNK_BLOCKS: u64 = 8;
/// Memory of a whole chunk, bytes.
const CHUNK_MEMORY_BYTES: u64 = CHUNK_BLOCKS * BLOCK_BYTES;

/// The memory that a write of `len_bytes` anywhere can take, bytes, at most.
pub(crate) fn memory_bytes_max(len_bytes: u64) -> u64 {
    (len_bytes.div_ceil(CHUNK_MEMORY_BYTES) + 1) * CHUNK_MEMORY_BYTES
}

/// Dirty blocks by logical block number.
#[derive(Debug, Default)]
pub(crate) struct Gather {
    chunks: BTreeMap<u64, Chunk>,
    block_count: u64,
    memory_bytes: u64,
}

#[derive(Debug, Default)]
struct Chunk {
    /// Grows to the last present block.
    bytes: PageBuf,
    present: u32,
}

impl Chunk {
    fn memory_bytes(&self) -> u64 {
        self.bytes.capacity_bytes() as u64
    }

    /// Moves to a buffer in which `len_bytes` have room, if they have none yet.
    fn ensure_capacity(&mut self, len_bytes: usize) {
        if self.bytes.capacity_bytes() < len_bytes {
            let mut larger = buffers::take(len_bytes);
            larger.extend_from_slice(&self.bytes);
            buffers::give(std::mem::replace(&mut self.bytes, larger));
        }
    }
}

impl Drop for Chunk {
    fn drop(&mut self) {
        buffers::give(std::mem::take(&mut self.bytes));
    }
}

impl Gather {
    /// Number of dirty blocks.
    pub fn block_count(&self) -> u64 {
        self.block_count
    }

    /// What it takes of memory, bytes; at least that of its blocks.
    pub fn memory_bytes(&self) -> u64 {
        debug_assert_eq!(
            self.memory_bytes,
            self.chunks.values().map(Chunk::memory_bytes).sum::<u64>(),
            "GATHER-3"
        );
        self.memory_bytes
    }

    /// Whether nothing is dirty.
    pub fn is_empty(&self) -> bool {
        self.block_count == 0
    }

    /// The content of block `block`, if it is dirty.
    pub fn find(&self, block: u64) -> Option<&[u8]> {
        let chunk = self.chunks.get(&(block / CHUNK_BLOCKS))?;
        let at = block % CHUNK_BLOCKS;
        (chunk.present & (1 << at) != 0).then(|| &chunk.bytes[at as usize * BLOCK..][..BLOCK])
    }

    /// The first dirty block at or after `from`.
    pub fn next_present(&self, from: u64) -> Option<u64> {
        for (&index, chunk) in self.chunks.range(from / CHUNK_BLOCKS..) {
            let first = index * CHUNK_BLOCKS;
            let skip = from.saturating_sub(first);
            let left = chunk.present & (u32::MAX.checked_shl(skip as u32).unwrap_or(0));
            if left != 0 {
                return Some(first + u64::from(left.trailing_zeros()));
            }
        }
        None
    }

    /// Blocks whose present content a write of `len_bytes` at `offset` needs: the first and the
    /// last one, where they are covered in part and not dirty.
    pub fn edges(&self, offset: u64, len_bytes: u64) -> [Option<u64>; 2] {
        let end = offset + len_bytes;
        let (first, last) = (offset / BLOCK_BYTES, end / BLOCK_BYTES);
        let is_first = !offset.is_multiple_of(BLOCK_BYTES) || (first == last && len_bytes > 0);
        let is_last = !end.is_multiple_of(BLOCK_BYTES) && last != first;
        let needed = |is_needed: bool, block: u64| {
            (is_needed && self.find(block).is_none()).then_some(block)
        };
        [needed(is_first, first), needed(is_last, last)]
    }

    /// Writes `data` at byte `offset`. For a block that is not dirty yet and not wholly covered,
    /// `fill(block, buffer)` supplies its present content in a buffer of zeros (`GATHER-1`).
    pub fn write(&mut self, offset: u64, data: &[u8], mut fill: impl FnMut(u64, &mut [u8])) {
        let mut done = 0;
        while done < data.len() {
            let position = offset + done as u64;
            let (block, within) = (position / BLOCK_BYTES, (position % BLOCK_BYTES) as usize);
            let whole_blocks = (CHUNK_BLOCKS - block % CHUNK_BLOCKS) as usize;
            let take = if within == 0 && data.len() - done >= BLOCK {
                ((data.len() - done) / BLOCK).min(whole_blocks) * BLOCK
            } else {
                (BLOCK - within).min(data.len() - done)
            };
            if take < BLOCK && self.find(block).is_none() {
                let mut base = [0; BLOCK];
                fill(block, &mut base);
                self.put(block, &base);
            }
            self.copy_in(position, &data[done..done + take]);
            done += take;
        }
    }

    /// Copies into one chunk and marks the touched blocks present.
    fn copy_in(&mut self, position: u64, data: &[u8]) {
        let block = position / BLOCK_BYTES;
        let chunk = self.chunks.entry(block / CHUNK_BLOCKS).or_default();
        let memory_before = chunk.memory_bytes();
        let start = (position % (CHUNK_BLOCKS * BLOCK_BYTES)) as usize;
        let end = start + data.len();
        let padded = end.next_multiple_of(BLOCK);
        if chunk.bytes.len() == start {
            chunk.ensure_capacity(match start {
                0 => padded,
                _ => CHUNK_BLOCKS as usize * BLOCK,
            });
            chunk.bytes.extend_from_slice(data);
            chunk.bytes.resize(padded);
        } else {
            if chunk.bytes.len() < padded {
                chunk.ensure_capacity(padded);
                chunk.bytes.resize(padded);
            }
            chunk.bytes[start..end].copy_from_slice(data);
        }
        self.memory_bytes += chunk.memory_bytes() - memory_before;
        for at in start / BLOCK..padded / BLOCK {
            if chunk.present & (1 << at) == 0 {
                chunk.present |= 1 << at;
                self.block_count += 1;
            }
        }
    }

    /// Sets one whole block.
    pub fn put(&mut self, block: u64, bytes: &[u8; BLOCK]) {
        self.copy_in(block * BLOCK_BYTES, bytes);
    }

    /// Zeroes bytes `from..to` of block `block` if it is dirty; says whether it was.
    pub fn zero_within(&mut self, block: u64, from: usize, to: usize) -> bool {
        if self.find(block).is_none() {
            return false;
        }
        let at = (block % CHUNK_BLOCKS) as usize * BLOCK;
        if let Some(chunk) = self.chunks.get_mut(&(block / CHUNK_BLOCKS)) {
            chunk.bytes[at + from..at + to].fill(0);
        }
        true
    }

    /// Forgets the dirty blocks `from..to`; returns how many there were, and how many bytes of
    /// memory that freed.
    pub fn discard(&mut self, from: u64, to: u64) -> (u64, u64) {
        let (before, memory_before) = (self.block_count, self.memory_bytes);
        if from >= to {
            return (0, 0);
        }
        let touched: Vec<u64> = self
            .chunks
            .range(from / CHUNK_BLOCKS..=(to - 1) / CHUNK_BLOCKS)
            .map(|(&index, _)| index)
            .collect();
        for index in touched {
            let first = index * CHUNK_BLOCKS;
            let low = from.saturating_sub(first).min(CHUNK_BLOCKS);
            let high = (to - first).min(CHUNK_BLOCKS);
            let mask = (((1u64 << (high - low)) - 1) << low) as u32;
            if let Some(chunk) = self.chunks.get_mut(&index) {
                self.block_count -= u64::from((chunk.present & mask).count_ones());
                chunk.present &= !mask;
                if chunk.present == 0 {
                    self.memory_bytes -= chunk.memory_bytes();
                    self.chunks.remove(&index);
                }
            }
        }
        (before - self.block_count, memory_before - self.memory_bytes)
    }

    /// Takes over the blocks of `newer`; where both have one, that of `newer` stays.
    pub fn absorb(&mut self, newer: Gather) {
        for (index, chunk) in newer.chunks {
            match self.chunks.entry(index) {
                Entry::Vacant(vacant) => {
                    self.block_count += u64::from(chunk.present.count_ones());
                    self.memory_bytes += chunk.memory_bytes();
                    vacant.insert(chunk);
                }
                Entry::Occupied(mut occupied) => {
                    let mine = occupied.get_mut();
                    let memory_before = mine.memory_bytes();
                    if mine.bytes.len() < chunk.bytes.len() {
                        mine.ensure_capacity(chunk.bytes.len());
                        mine.bytes.resize(chunk.bytes.len());
                    }
                    for at in (0..CHUNK_BLOCKS as usize).filter(|at| chunk.present & (1 << at) != 0)
                    {
                        let range = at * BLOCK..(at + 1) * BLOCK;
                        mine.bytes[range.clone()].copy_from_slice(&chunk.bytes[range]);
                    }
                    self.block_count += u64::from((chunk.present & !mine.present).count_ones());
                    mine.present |= chunk.present;
                    self.memory_bytes += mine.memory_bytes() - memory_before;
                }
            }
        }
    }

    /// The dirty runs: `(first block, blocks)`, each contiguous in logical space, in order.
    pub fn runs(&self) -> Vec<(u64, u64)> {
        let mut runs: Vec<(u64, u64)> = Vec::with_capacity(1);
        for (&index, chunk) in &self.chunks {
            for at in 0..CHUNK_BLOCKS {
                if chunk.present & (1 << at) == 0 {
                    continue;
                }
                let block = index * CHUNK_BLOCKS + at;
                match runs.last_mut() {
                    Some((first, count)) if *first + *count == block => *count += 1,
                    _ => runs.push((block, 1)),
                }
            }
        }
        runs
    }

    /// The bytes of dirty blocks `from..from + count`, as slices of memory in order. Panics if one
    /// of them is not dirty.
    pub fn slices(&self, from: u64, count: u64) -> Vec<&[u8]> {
        let mut slices = Vec::new();
        let mut block = from;
        while block < from + count {
            let chunk = &self.chunks[&(block / CHUNK_BLOCKS)];
            let at = block % CHUNK_BLOCKS;
            let take = (CHUNK_BLOCKS - at).min(from + count - block);
            debug_assert!(
                (at..at + take).all(|bit| chunk.present & (1 << bit) != 0),
                "GATHER-1"
            );
            slices.push(&chunk.bytes[at as usize * BLOCK..(at + take) as usize * BLOCK]);
            block += take;
        }
        slices
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Debug, Clone)]
    enum Op {
        Write(u64, Vec<u8>),
        Discard(u64, u64),
        ZeroTail(u64, usize),
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            (0..600_000u64, 1..200_000usize, any::<u8>())
                .prop_map(|(at, len, byte)| Op::Write(at, vec![byte; len])),
            (0..200u64, 0..100u64).prop_map(|(from, count)| Op::Discard(from, from + count)),
            (0..200u64, 0..4096usize).prop_map(|(block, from)| Op::ZeroTail(block, from)),
        ]
    }

    proptest! {
        #[test]
        fn a_gather_behaves_like_blocks(ops in prop::collection::vec(op(), 1..12)) {
            let mut gather = Gather::default();
            let mut model: BTreeMap<u64, Vec<u8>> = BTreeMap::new();
            for op in ops {
                match op {
                    Op::Write(at, data) => {
                        let memory_before = gather.memory_bytes();
                        let edges = gather.edges(at, data.len() as u64);
                        let mut filled = Vec::new();
                        gather.write(at, &data, |block, buffer| {
                            buffer.fill(block as u8);
                            filled.push(Some(block));
                        });
                        let edges: Vec<_> = edges.into_iter().filter(Option::is_some).collect();
                        prop_assert_eq!(edges, filled, "GATHER-1");
                        let grown_bytes = gather.memory_bytes() - memory_before;
                        let bytes_max = memory_bytes_max(data.len() as u64);
                        prop_assert!(grown_bytes <= bytes_max, "GATHER-3");
                        for (i, byte) in data.iter().enumerate() {
                            let position = at + i as u64;
                            let block = position / BLOCK_BYTES;
                            let content = model
                                .entry(block)
                                .or_insert_with(|| vec![block as u8; BLOCK]);
                            content[(position % BLOCK_BYTES) as usize] = *byte;
                        }
                    }
                    Op::Discard(from, to) => {
                        let (gone, _) = gather.discard(from, to);
                        let before = model.len() as u64;
                        model.retain(|block, _| !(from..to).contains(block));
                        prop_assert_eq!(gone, before - model.len() as u64);
                    }
                    Op::ZeroTail(block, from) => {
                        let was = gather.zero_within(block, from, BLOCK);
                        prop_assert_eq!(was, model.contains_key(&block));
                        if let Some(content) = model.get_mut(&block) {
                            content[from..].fill(0);
                        }
                    }
                }
                prop_assert_eq!(gather.block_count(), model.len() as u64);
                let content_bytes = gather.block_count() * BLOCK_BYTES;
                prop_assert!(gather.memory_bytes() >= content_bytes, "GATHER-3");
                let mut seen = 0;
                for (first, count) in gather.runs() {
                    let bytes = gather.slices(first, count).concat();
                    for i in 0..count {
                        let expected = &model[&(first + i)];
                        let found = &bytes[i as usize * BLOCK..][..BLOCK];
                        prop_assert_eq!(found, &expected[..], "GATHER-1");
                        prop_assert_eq!(gather.find(first + i), Some(&expected[..]));
                        seen += 1;
                    }
                }
                prop_assert_eq!(seen, model.len());
                for probe in [0, 31, 32, 63, 100] {
                    let next = model.range(probe..).next().map(|(&b, _)| b);
                    prop_assert_eq!(gather.next_present(probe), next);
                }
            }
        }
    }
}
