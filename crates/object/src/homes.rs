//! Homes: what patches will be written over is copied first, where history needs it.
//!
//! A small overwrite becomes a patch and is written in place later (`patch`), so that objects stay in one piece. Older
//! versions name the same blocks. So before an apply writes, the old content of the blocks goes to new extents,
//! which are retired by the same commit, and a row of `larder_home` says where it is for whoever reads an older state.
//!
//! # Invariants
//! * `HOME-1` While the database keeps history, a home that held something is written over only after its copy was
//!   flushed and its row is durable.
//!
//! What is not copied: homes of logged content, which held nothing before; and homes that an interrupted apply has
//! written to already, whose first copy counts. Both show in their checksums.

use crate::engine::{Engine, lock};
use crate::node::Node;
use crate::overlay::{Applied, InPlace};
use crate::{Error, ErrorKind, Result};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Checksum, Extent, Ino, StoreId};
use std::sync::Arc;

const BLOCK: usize = BLOCK_BYTES as usize;
/// Blocks that are read and copied at a time.
const RUN_BLOCKS: usize = 1024;

impl Engine {
    /// Copies what the apply will write over, and commits that (`HOME-1`). The caller has the turn and a pin.
    pub(crate) fn save_homes(&self, objects: &[(Arc<Node>, Applied)]) -> Result<()> {
        if !self.keeps_history() {
            return Ok(());
        }
        let mut has_any = false;
        for (node, applied) in objects {
            let mut wanted: Vec<&InPlace> = applied
                .writes
                .iter()
                .filter(|write| write.old_checksum != write.checksum)
                .collect();
            wanted.sort_unstable_by_key(|write| write.home);
            let runs = wanted.chunk_by(|a, b| {
                a.home.is_followed_by(&b.home) && a.home.ag_index() == b.home.ag_index()
            });
            for run in runs.flat_map(|run| run.chunks(RUN_BLOCKS)) {
                has_any |= self.save_run((node.store, node.ino), run)?;
            }
        }
        if has_any {
            self.commit_now()?;
        }
        Ok(())
    }

    /// Says whether anything was copied.
    fn save_run(&self, owner: (StoreId, Ino), run: &[InPlaceRef<'_>]) -> Result<bool> {
        let whole = Extent::new(
            run[0].home.segment,
            run[0].home.start_block,
            run.len() as u64,
        );
        let checksums: Vec<Checksum> = run.iter().map(|write| write.old_checksum).collect();
        let mut bytes = vec![0; run.len() * BLOCK];
        let segment = self.segment(whole.segment)?;
        match segment.read(whole.start_block, &mut bytes, &checksums) {
            Ok(()) => {
                self.save_copy(owner, whole, &bytes)?;
                return Ok(true);
            }
            Err(error) => {
                let error = Error::from(error);
                if error.kind() != ErrorKind::Corrupt {
                    return Err(error);
                }
            }
        }
        let mut has_any = false;
        for (index, checksum) in checksums.iter().enumerate() {
            let home = whole.slice(index as u64, 1);
            let block = &mut bytes[..BLOCK];
            match segment.read(home.start_block, block, std::slice::from_ref(checksum)) {
                Ok(()) => {
                    self.save_copy(owner, home, &bytes[..BLOCK])?;
                    has_any = true;
                }
                Err(error) => {
                    let error = Error::from(error);
                    if error.kind() != ErrorKind::Corrupt {
                        return Err(error);
                    }
                }
            }
        }
        Ok(has_any)
    }

    fn save_copy(&self, (store, ino): (StoreId, Ino), home: Extent, bytes: &[u8]) -> Result<()> {
        // Makes room if need be, as for any content.
        let promise = self.reserve(home.block_count, larder_space::Purpose::Ordinary)?;
        self.lock_room().space.forfeit(promise);
        let taken = self.take_any(home.block_count)?.ok_or_else(|| {
            Error::new(
                ErrorKind::NoSpace,
                "there is no room for what patches write over; delete something or raise the capacity",
            )
        })?;
        let mut done = 0;
        for copy in &taken.extents {
            let len = copy.len_bytes() as usize;
            let segment = self.segment(copy.segment)?;
            segment.write(copy.start_block, &[&bytes[done..done + len]])?;
            segment.flush()?;
            done += len;
        }
        let _gate = self.enter_gate();
        let mut group = lock(&self.group);
        let mut room = self.lock_room();
        let mut from = 0;
        for copy in taken.keep(&mut room) {
            group.homes.push((home.slice(from, copy.block_count), copy));
            group.allocated.push((copy, store, ino));
            group.retired.push(copy);
            room.space.quarantine(copy);
            from += copy.block_count;
        }
        Ok(())
    }
}

type InPlaceRef<'w> = &'w InPlace;
