//! Pre-images of redo rows: their targets are copied before they are written over, where history
//! needs what they hold.
//!
//! A small overwrite becomes a redo row and is written over its target later (`redo`), so that
//! objects stay in one piece. Older versions name the same blocks. So before an apply writes, the
//! content of the targets goes to new extents, which are retired by the same commit, and a row of
//! `larder_pre_image` says where it is for whoever reads an older state.
//!
//! The catalog calls every such row a *pre-image* (its module `pre_images`), also those of moves,
//! which `space/relocations` makes: there the content has gone to a new place already.
//!
//! # Invariants
//! * `PREIMAGE-1` While the database keeps history, a target that held something is written over
//!   only after its copy was flushed and its row is durable.
//! * `PREIMAGE-2` A target is copied once for a redo row, however often the apply is tried; and
//!   there is room for all targets of an apply before one is copied. What is copied is kept as long
//!   as history.
//!
//! What is not copied: targets of logged content, which held nothing before; and targets that an
//! interrupted apply has written to already, whose first copy counts. Both show in their checksums;
//! the second by their rows, too.

use crate::commit::group_commit::broken;
use crate::engine::{EngineRedo, lock};
use crate::view::node::Node;
use crate::view::redo_rows::{Applied, InPlace};
use crate::{Error, ErrorKind, Result};
use larder_segment::SegmentError;
use larder_space::Purpose;
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Checksum, Extent, Ino, StoreId};
use std::collections::BTreeSet;
use std::sync::Arc;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Blocks that are read and copied at a time.
const RUN_BLOCKS: usize = 1024;

/// The target of a redo row that will be applied.
struct Target<'w> {
    owner: (StoreId, Ino),
    write: &'w InPlace,
}

/// Targets that will be written over, and where they were copied to.
struct PreImage {
    owner: (StoreId, Ino),
    target: Extent,
    copy: Extent,
}

impl EngineRedo<'_> {
    /// Copies what the apply will write over, and commits that (`PREIMAGE-1`). The caller has the
    /// writer lock and a pin. [`ErrorKind::NoSpace`]: nothing was copied. Cost: reads and writes
    /// the blocks, one flush per segment, one commit.
    pub(crate) fn keep_pre_images(&self, objects: &[(Arc<Node>, Applied)]) -> Result<()> {
        if !self.expiry().keeps_history() {
            return Ok(());
        }
        let targets = self.missing_pre_images(objects)?;
        if targets.is_empty() {
            return Ok(());
        }
        // Makes room if need be, as for any content (`PREIMAGE-2`).
        let blocks = targets.len() as u64;
        let reservation = self.space().reserve(blocks, Purpose::Ordinary)?;
        let mut taken = self.compaction().allocate_reserved(reservation, blocks)?;
        let copies = self.copy_targets(&targets, &taken.extents)?;
        taken.cut(copies.iter().map(|done| done.copy.block_count).sum());
        if copies.is_empty() {
            return Ok(());
        }
        {
            let _barrier = self.enter_barrier();
            let mut group = lock(&self.group);
            let mut free = self.free_space();
            taken.keep(&mut free);
            for (extent, (store, ino)) in owned(&copies) {
                group.allocated.push((extent, store, ino));
                group.retired.push((extent, store, ino));
                self.sharing().quarantine_unshared(&mut free, extent);
            }
            group
                .pre_images
                .extend(copies.iter().map(|done| (done.target, done.copy)));
        }
        self.commits().commit_now()
    }

    /// Targets that will change and have no copy yet, by address.
    fn missing_pre_images<'w>(
        &self,
        objects: &'w [(Arc<Node>, Applied)],
    ) -> Result<Vec<Target<'w>>> {
        let mut targets: Vec<Target<'w>> = Vec::new();
        for (node, applied) in objects {
            let writes = applied.writes.iter();
            targets.extend(
                writes
                    .filter(|write| write.old_checksum != write.checksum)
                    .map(|write| Target {
                        owner: (node.store, node.ino),
                        write,
                    }),
            );
        }
        targets.sort_unstable_by_key(|target| target.write.target);
        let Some(oldest) = targets.iter().map(|target| target.write.seq).min() else {
            return Ok(targets);
        };
        // A copy that was made since the redo row is of its target: the block has not moved
        // (REDO-1).
        let mut is_saved = vec![false; targets.len()];
        for (saved, until) in self.catalog.past()?.pre_images_after(oldest)? {
            let first = targets.partition_point(|target| {
                let extent = &target.write.target;
                (extent.segment, extent.start_block) < (saved.segment, saved.start_block)
            });
            let saved_now = targets[first..]
                .iter()
                .take_while(|target| saved.overlaps(&target.write.target));
            for (target, is_saved) in saved_now.zip(&mut is_saved[first..]) {
                *is_saved |= target.write.seq < until;
            }
        }
        let mut is_saved = is_saved.into_iter();
        targets.retain(|_| is_saved.next() == Some(false));
        Ok(targets)
    }

    /// Copies targets to `places`, from the first on, and flushes the copies.
    fn copy_targets(&self, targets: &[Target<'_>], places: &[Extent]) -> Result<Vec<PreImage>> {
        let mut places = Places {
            extents: places,
            skip: 0,
        };
        let mut copies = Vec::new();
        let mut touched = BTreeSet::new();
        let mut bytes: Vec<u8> = Vec::new();
        let runs = targets.chunk_by(|a, b| {
            let (left, right) = (&a.write.target, &b.write.target);
            a.owner == b.owner && left.is_followed_by(right) && left.ag_index() == right.ag_index()
        });
        for run in runs.flat_map(|run| run.chunks(RUN_BLOCKS)) {
            let owner = run[0].owner;
            let start = run[0].write.target;
            let whole = Extent::new(start.segment, start.start_block, run.len() as u64);
            bytes.resize(run.len() * BLOCK, 0);
            for (mut first, mut count) in self.read_run(&whole, run, &mut bytes)? {
                while count > 0 {
                    let Some(copy) = places.take(count) else {
                        return Err(broken(
                            "there are fewer places than targets to save (PREIMAGE-2)",
                        ));
                    };
                    let part = first as usize * BLOCK..(first + copy.block_count) as usize * BLOCK;
                    self.segment(copy.segment)?
                        .write(copy.start_block, &[&bytes[part]])?;
                    touched.insert(copy.segment);
                    let target = whole.slice(first, copy.block_count);
                    copies.push(PreImage {
                        owner,
                        target,
                        copy,
                    });
                    first += copy.block_count;
                    count -= copy.block_count;
                }
            }
        }
        for segment in touched {
            self.segment(segment)?.flush()?;
        }
        Ok(copies)
    }

    /// Reads a run, and says which of its blocks, `(first, count)`, hold what the map says of them.
    fn read_run(
        &self,
        whole: &Extent,
        run: &[Target<'_>],
        bytes: &mut [u8],
    ) -> Result<Vec<(u64, u64)>> {
        let checksums: Vec<Checksum> = run.iter().map(|target| target.write.old_checksum).collect();
        let segment = self.segment(whole.segment)?;
        if is_there(segment.read(whole.start_block, bytes, &checksums))? {
            return Ok(vec![(0, whole.block_count)]);
        }
        let mut found: Vec<(u64, u64)> = Vec::new();
        for (at, (block, checksum)) in (0..).zip(bytes.chunks_mut(BLOCK).zip(&checksums)) {
            let read = segment.read(
                whole.start_block + at,
                block,
                std::slice::from_ref(checksum),
            );
            if !is_there(read)? {
                continue;
            }
            match found.last_mut() {
                Some((first, count)) if *first + *count == at => *count += 1,
                _ => found.push((at, 1)),
            }
        }
        Ok(found)
    }
}

/// Whether a read found the bytes that it was to find.
fn is_there(read: std::result::Result<(), SegmentError>) -> Result<bool> {
    match read.map_err(Error::from) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::Corrupt => Ok(false),
        Err(error) => Err(error),
    }
}

/// The copies as extents with their owners, neighbours joined.
fn owned(copies: &[PreImage]) -> Vec<(Extent, (StoreId, Ino))> {
    let mut joined: Vec<(Extent, (StoreId, Ino))> = Vec::new();
    for done in copies {
        match joined.last_mut() {
            Some((last, owner))
                if *owner == done.owner
                    && last.is_followed_by(&done.copy)
                    && last.ag_index() == done.copy.ag_index() =>
            {
                last.block_count += done.copy.block_count;
            }
            _ => joined.push((done.copy, done.owner)),
        }
    }
    joined
}

/// Extents that are handed out part by part.
struct Places<'t> {
    extents: &'t [Extent],
    /// Blocks of the first one that are out.
    skip: u64,
}

impl Places<'_> {
    /// The next blocks in one piece, at most so many.
    fn take(&mut self, blocks_max: u64) -> Option<Extent> {
        let (first, rest) = self.extents.split_first()?;
        let part = first.slice(self.skip, blocks_max.min(first.block_count - self.skip));
        self.skip += part.block_count;
        if self.skip == first.block_count {
            (self.extents, self.skip) = (rest, 0);
        }
        Some(part)
    }
}
