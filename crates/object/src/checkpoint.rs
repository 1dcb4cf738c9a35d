//! When the catalog's log is copied into the catalog: after commits, and beside them.
//!
//! The log begins anew, in place, when all of it is copied; so it stays as short as its bound lets it. To copy
//! it takes as long as many commits. So with a background they do not wait for that: it copies most of the log
//! while commits go on, and only what came meanwhile is copied with the commit lock held.
//!
//! # Invariants
//! * `CHECKPOINT-1` The log is bounded: when more than [`WAL_BYTES_MAX`] wait to be copied, commits wait for a
//!   checkpoint.

use crate::Result;
use crate::engine::Engine;
use larder_catalog::{ChangeSet, CheckpointKind};
use std::sync::atomic::Ordering;

/// The write-ahead log is checkpointed when more of it waits for that, bytes. Pages that change often
/// are copied once in so many.
const WAL_BYTES_PASSIVE: u64 = 32 << 20;
/// When it is longer than this in spite of that, a checkpoint waits for readers.
const WAL_BYTES_MAX: u64 = 256 << 20;
/// The length of the log is looked at again after so many changed rows, of a few pages each at worst. A
/// commit counts as some more: the pages that every commit changes.
const WAL_LOOK_ROWS: u64 = 1024;
const COMMIT_ROWS: u64 = 16;
/// So little is copied with the commit lock held, bytes, ...
const WAL_BYTES_REST: u64 = 1 << 20;
/// ... or what is left after so many times beside commits.
const PASSES_MAX: usize = 4;

impl Engine {
    /// Looks after the log, after a commit.
    pub(crate) fn checkpoint(&self, set: &ChangeSet) -> Result<()> {
        let rows = set.inodes.len() + set.dirents.len() + set.map_pages.len() + set.retired.len();
        self.look_at_log(COMMIT_ROWS + rows as u64)
    }

    /// `rows` more were changed. In a transaction its end looks.
    pub(crate) fn look_at_log(&self, rows: u64) -> Result<()> {
        if self.unlogged_rows.fetch_add(rows, Ordering::Relaxed) < WAL_LOOK_ROWS
            || self.private.is_some()
        {
            return Ok(());
        }
        self.unlogged_rows.store(0, Ordering::Relaxed);
        let is_wanted = self.is_checkpoint_wanted.load(Ordering::SeqCst);
        // The file's length is not kept from us by who copies it.
        if is_wanted && self.catalog.wal_bytes()? <= WAL_BYTES_MAX {
            return Ok(());
        }
        let wal = self.catalog.wal_pending_bytes()?;
        if wal > WAL_BYTES_MAX {
            self.catalog.checkpoint(CheckpointKind::Truncate)?; // CHECKPOINT-1
        } else if wal > WAL_BYTES_PASSIVE {
            if self.options.has_background {
                self.is_checkpoint_wanted.store(true, Ordering::SeqCst);
            } else {
                self.catalog.checkpoint(CheckpointKind::Passive)?;
            }
        }
        Ok(())
    }

    /// The background's part.
    pub(crate) fn checkpoint_if_wanted(&self) -> Result<()> {
        if !self.is_checkpoint_wanted.load(Ordering::SeqCst) {
            return Ok(());
        }
        let copied = self.copy_log();
        self.is_checkpoint_wanted.store(false, Ordering::SeqCst);
        copied
    }

    fn copy_log(&self) -> Result<()> {
        for _ in 0..PASSES_MAX {
            self.catalog.checkpoint(CheckpointKind::Passive)?;
            if self.catalog.wal_pending_bytes()? <= WAL_BYTES_REST {
                break;
            }
        }
        // With nothing more coming it is copied to its end: the next commit begins it anew.
        let _no_commit = self.commit_lock.lock();
        self.catalog.checkpoint(CheckpointKind::Passive)?;
        Ok(())
    }
}
