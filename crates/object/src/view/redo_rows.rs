//! The redo rows of an object in memory: plain data, without I/O. See `redo` for words and
//! invariants.

use crate::view::gather::Gather;
use larder_catalog::RedoRow;
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Checksum, CommitSeq, Extent};
use std::collections::BTreeMap;
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Mutex};
use std::time::Instant;

/// Blocks of one object that are applied at a time.
const APPLY_BLOCKS: usize = 4096;

/// `(first block, blocks)`.
pub(crate) type Run = (u64, u64);

/// What the engine knows of all redo rows.
#[derive(Default)]
pub(crate) struct RedoBook {
    /// Blocks in all rows, replaced ones included.
    pub blocks: AtomicU64,
    /// A commit of this process, and that number after it.
    pub noted: Mutex<Option<(CommitSeq, u64)>>,
    /// Held while redo rows are applied.
    pub applying: Mutex<()>,
    pub clock: Mutex<Clock>,
}

#[derive(Default)]
pub(crate) struct Clock {
    /// When this process last saw a new redo row.
    pub newest: Option<Instant>,
    /// Not to be applied before this moment.
    pub not_before: Option<Instant>,
}

/// The redo rows of one object, in memory.
#[derive(Default)]
pub(crate) struct RedoRows {
    pub blocks: BTreeMap<u64, RedoBlock>,
    /// Blocks whose redo row an edit of the open group ended.
    ended: Vec<u64>,
    /// Blocks with a redo row whose commit is not known yet.
    new: Vec<u64>,
}

pub(crate) struct RedoBlock {
    /// Its commit; `None` while that runs.
    pub seq: Option<CommitSeq>,
    pub bytes: Arc<[u8]>,
}

/// Redo rows of one object that were written in place; the next commit may tell.
pub(crate) struct Applied {
    /// All redo rows up to this commit are among them, or replaced, or ended.
    pub upto: CommitSeq,
    pub writes: Vec<InPlace>,
    /// `Content::refused_count` when they were chosen: a refusal brings back rows that had been
    /// replaced or ended, and then there is nothing to tell.
    pub refused_count: u64,
}

pub(crate) struct InPlace {
    pub block: u64,
    pub seq: CommitSeq,
    /// The target, one block.
    pub target: Extent,
    pub bytes: Arc<[u8]>,
    pub checksum: Checksum,
    /// What the map says of the target now; of logged content (`log_inlined`) the same.
    pub old_checksum: Checksum,
}

impl RedoRows {
    /// From the rows of the catalog, oldest first.
    pub fn decode(rows: Vec<RedoRow>) -> RedoRows {
        let mut blocks = BTreeMap::new();
        for row in rows {
            for (index, block) in row.blocks.into_iter().enumerate() {
                match &row.bytes {
                    Some(bytes) => {
                        let at = index * BLOCK_BYTES as usize;
                        let redo = RedoBlock {
                            seq: Some(row.seq),
                            bytes: bytes[at..at + BLOCK_BYTES as usize].into(),
                        };
                        blocks.insert(block, redo);
                    }
                    None => {
                        blocks.remove(&block);
                    }
                }
            }
        }
        RedoRows {
            blocks,
            ..RedoRows::default()
        }
    }

    /// The content of block `block`, if it has a redo row.
    pub fn find(&self, block: u64) -> Option<&[u8]> {
        self.blocks.get(&block).map(|redo_row| &*redo_row.bytes)
    }

    /// The parts of `count` blocks from `first` on without redo rows, as `(offset, blocks)`.
    pub fn gaps(&self, first: u64, count: u64) -> Vec<(u64, u64)> {
        let mut gaps = Vec::new();
        let mut at = 0;
        while at < count {
            let next = self.next_present(first + at).map_or(count, |b| b - first);
            let end = next.min(count);
            if end > at {
                gaps.push((at, end - at));
            }
            at = end + 1;
        }
        gaps
    }

    /// The first block with a redo row at or after `from`.
    pub fn next_present(&self, from: u64) -> Option<u64> {
        self.blocks.range(from..).next().map(|(&block, _)| block)
    }

    /// Makes redo rows of the dirty blocks of `runs`: in memory, and as a row.
    pub fn log(&mut self, gather: &Gather, runs: &[Run]) -> RedoRow {
        let count: u64 = runs.iter().map(|(_, count)| count).sum();
        let mut blocks = Vec::with_capacity(count as usize);
        let mut all = Vec::with_capacity((count * BLOCK_BYTES) as usize);
        for block in runs.iter().flat_map(|&(first, count)| first..first + count) {
            for bytes in gather.slices(block, 1) {
                all.extend_from_slice(bytes);
                let redo = RedoBlock {
                    seq: None,
                    bytes: bytes.into(),
                };
                self.blocks.insert(block, redo);
            }
            blocks.push(block);
        }
        self.new.extend_from_slice(&blocks);
        RedoRow {
            seq: CommitSeq(0),
            blocks,
            bytes: Some(all),
        }
    }

    /// Ends the redo rows of blocks `from..to` with the open group.
    pub fn end(&mut self, from: u64, to: u64) {
        let ended = self.remove(from, to);
        self.ended.extend(ended);
    }

    /// Takes what [`RedoRows::end`] ended.
    pub fn take_ended(&mut self) -> Vec<u64> {
        std::mem::take(&mut self.ended)
    }

    /// Forgets the redo rows of blocks `from..to`; says which blocks had one.
    pub fn remove(&mut self, from: u64, to: u64) -> Vec<u64> {
        if from >= to {
            return Vec::new();
        }
        let gone: Vec<u64> = self.blocks.range(from..to).map(|(&b, _)| b).collect();
        for block in &gone {
            self.blocks.remove(block);
        }
        gone
    }

    /// Every redo row is committed now, the new ones by `seq`.
    pub fn publish(&mut self, seq: CommitSeq) {
        for block in self.new.drain(..) {
            if let Some(redo_row) = self.blocks.get_mut(&block) {
                redo_row.seq.get_or_insert(seq);
            }
        }
        debug_assert!(self.blocks.values().all(|redo_row| redo_row.seq.is_some()));
    }

    pub fn is_of(&self, block: u64, seq: CommitSeq) -> bool {
        self.blocks
            .get(&block)
            .is_some_and(|row| row.seq == Some(seq))
    }

    /// Up to which commit redo rows can be applied at once: at most `horizon`, and not many more
    /// than [`APPLY_BLOCKS`] of them. While a commit has new ones, before those: what is published
    /// of it first is its number, which may be the horizon.
    pub fn find_cut(&self, horizon: CommitSeq) -> Option<CommitSeq> {
        let known = || self.blocks.values().filter_map(|redo_row| redo_row.seq);
        let horizon = match self.new.is_empty() {
            true => horizon,
            false => known().max()?.min(horizon),
        };
        let mut due: Vec<CommitSeq> = known().filter(|&seq| seq <= horizon).collect();
        if due.len() <= APPLY_BLOCKS {
            return Some(horizon);
        }
        Some(*due.select_nth_unstable(APPLY_BLOCKS - 1).1)
    }
}

/// The row that ends the redo rows of `blocks`.
pub(crate) fn ending(blocks: Vec<u64>) -> RedoRow {
    RedoRow {
        seq: CommitSeq(0),
        blocks,
        bytes: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `REDO-4`: what is deleted up to a commit was all written in place.
    #[test]
    fn what_a_running_commit_logs_is_behind_every_cut() {
        let mut gather = Gather::default();
        gather.write(0, &[7; 4 * BLOCK_BYTES as usize], |_, _| {});
        let mut rows = RedoRows::default();
        rows.log(&gather, &[(0, 1)]);
        assert_eq!(rows.find_cut(CommitSeq(7)), None);
        rows.publish(CommitSeq(5));
        assert_eq!(rows.find_cut(CommitSeq(7)), Some(CommitSeq(7)));
        // Commit 7 is known already, and its rows are not.
        rows.log(&gather, &[(2, 2)]);
        assert_eq!(rows.find_cut(CommitSeq(7)), Some(CommitSeq(5)));
        assert_eq!(rows.find_cut(CommitSeq(4)), Some(CommitSeq(4)));
        rows.publish(CommitSeq(7));
        assert_eq!(rows.find_cut(CommitSeq(7)), Some(CommitSeq(7)));
    }
}
