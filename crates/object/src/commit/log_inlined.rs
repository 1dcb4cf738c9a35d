//! Logged content: what a sync waits for goes into the catalog's log first, if it is small.
//!
//! New content needs two flushes to be durable: that of its segment, and then that of the catalog's
//! log. A flush costs more than the bytes of a small file. So where a sync waits for a group, and
//! all of the group's new content is small, it gets its place, its checksums and its map as always,
//! but its bytes go into rows of `larder_redo_row`, in the commit's own transaction: one flush.
//! From then on these blocks have redo rows (`redo`): they are read from memory or the catalog,
//! and written to their targets later.
//!
//! # Invariants
//! * `LOGGED-1` All new content of a group is logged, or none of it: a single block in a segment
//!   costs the flush. What is logged is at most [`LOGGED_BLOCKS_MAX`], and within the bound of
//!   redo rows (`REDO-5`).
//! * `LOGGED-2` Content is logged only while no other session lives, or where all of it is of
//!   inodes that the commit makes. Another session might meet the map of the commit without its
//!   rows, since it reads redo rows first (`REDO-2`), and then read a target that was never
//!   written; the target of an ordinary redo row holds the old content. A session that is born
//!   later knows the commit, and who has read a row that it made, before any look, asks for its
//!   redo rows (`ViewMaps::load_content`). To a transaction the engine beside it is another
//!   session: it reads while the transaction commits.
//!
//! In a transaction the steps count together: it is awaited, and has one flush of each segment at
//! its end.
//!
//! Both are decided here; the proofs of `redo` hold for the rest: one commit maps a logged block
//! and gives it its redo row (`REDO-1`), and nobody reads the target before the apply has written
//! and flushed it, and the row is gone. See docs/decisions/0022-durable-commits.md.

use crate::Result;
use crate::engine::EnginePlacement;
use larder_catalog::ChangeSet;
use std::sync::atomic::Ordering;

/// Most new blocks of a group that is logged (64 KiB): with more, writing them twice costs more
/// than a flush.
const LOGGED_BLOCKS_MAX: u64 = 16;

impl EnginePlacement<'_> {
    /// Whether `blocks` blocks of new content, all that a group has, are logged. `is_awaited`: a
    /// sync waits for the group; `is_unmet`: nobody can meet the map without the rows (`LOGGED-2`).
    pub(crate) fn is_logged(
        &self,
        blocks: u64,
        is_awaited: bool,
        is_unmet: bool,
        set: &ChangeSet,
    ) -> Result<bool> {
        // LOGGED-1: what was moved lies in a segment, and must be flushed there.
        let is_all = blocks > 0 && set.allocated.is_empty();
        let blocks_max = match &self.private {
            Some(private) => private.blocks_to_log(LOGGED_BLOCKS_MAX),
            None if is_awaited => LOGGED_BLOCKS_MAX,
            None => 0,
        };
        if !is_all || blocks > blocks_max || !is_unmet {
            return Ok(false); // LOGGED-2
        }
        let rows = set.redo_rows.iter().filter(|(.., row)| row.bytes.is_some());
        let redo_blocks: u64 = rows.map(|(.., row)| row.blocks.len() as u64).sum();
        let waiting = self.redo_rows.blocks.load(Ordering::SeqCst);
        let fits = waiting + redo_blocks + blocks <= self.redo().redo_blocks_max()?; // REDO-5
        if let Some(private) = self.private.as_ref().filter(|_| fits) {
            private.note_logged(blocks);
        }
        Ok(fits)
    }
}
