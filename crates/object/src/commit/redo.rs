//! Redo rows: small overwrites, kept in the catalog until they are written in place.
//!
//! Overwriting a few blocks of a large object copy-on-write would leave the object in as many
//! pieces, and every fsync would cost a data flush beside the catalog's own. So a small run of
//! dirty blocks that are mapped already is committed as a *redo row*: its bytes go into a row of
//! `larder_redo_row`, in the same transaction as everything else: one sequential write, one flush.
//! The catalog's write-ahead log is the redo log. Later, and in the background, redo rows are
//! *applied*: written over their targets, in order of address.
//!
//! ```text
//!             freeze          catalog's commit              written in place, flushed
//!  dirty run ────────▶ redo row ──────────────────▶ committed ───────────────────────────┐
//!                        ▲                          │ newer overwrite: replaced       │
//!                        │                          │ copy-on-write, truncate, punch: │
//!                        └──────────────────────────┘   ended by a row without bytes  ▼
//!                                       rows gone, checksums in the map ◀── the apply's commit
//! ```
//!
//! # Words
//! *Redo row*: the newest content of a mapped block, in the catalog. *Target* of a redo row: the
//! block of a segment that the map names for it. *Apply*: to write redo rows in place, over their
//! targets.
//!
//! # Invariants
//! * `REDO-1` A block with a redo row is mapped, and its redo row is its content: nobody reads the
//!   target, which may be old, torn or new.
//! * `REDO-2` A session reads the redo rows of an object from the catalog after the root of its
//!   list of pieces and before any of its map pages, and drops all of them together.
//! * `REDO-3` A target is written only while a committed redo row covers it, by the session that
//!   has the writer lock, and only when every pin and every read under way is at or past the redo
//!   row's commit.
//! * `REDO-4` Rows go in a commit that follows the flush of the targets, and that brings the
//!   checksums of what was written.
//! * `REDO-5` Redo rows are bounded: beyond `EngineOptions::redo_bytes_max`, and beyond the
//!   catalog's share of the host, small overwrites go copy-on-write as all others do.
//! * `REDO-6` An overwrite becomes a redo row only where the block will stay: nothing of an object
//!   of which anything is kept (`WHOLE-1`), and no block of a delayed one. (New blocks may be redo
//!   rows whatever becomes of them, see `log_inlined`: who places them anew ends these redo rows.)
//!
//! # Why no reader meets a target that is being written
//! Let a redo row be of commit S. Whoever reads a target from a segment, with the checksum of the
//! map, has planned that from redo rows and map pages in memory.
//! * In this process: a plan made before the redo row was in memory belongs to a read that began
//!   (`begin_read`) below S, and holds the horizon below S until it ends. A plan made later, under
//!   the node's lock, finds the redo row and copies it. Fills of partial writes read under the
//!   node's lock.
//! * In another session: while its pin is below S nothing is written (`REDO-3`). A pin reaches S
//!   only after the session dropped all that is older (`SESSION-3`); what it reads from the catalog
//!   after that holds the row of S, until the apply's commit A deletes it. If it read the redo row
//!   before A and the map page after: the redo row hides the new target, and both are the same
//!   bytes. Redo row after A and map page before A would be wrong, and cannot be (`REDO-2`).
//! * A read that begins during the apply, in any session, begins at S or later: one of the above.
//!
//! The targets cannot be given to another object meanwhile: applying is a read itself (it pins), so
//! nothing that is retired during the apply is reclaimed.
//!
//! # Recovery
//! None. Rows of a commit that is durable are there, and cover what an interrupted apply left; the
//! next apply does it all again.

use crate::commit::group_commit::broken;
use crate::engine::{Edit, Engine, EngineRedo, lock};
use crate::session::workspace::NO_MOVES;
use crate::view::ViewMaps;
use crate::view::extent_map::Mapped;
use crate::view::node::{Node, NodeState};
use crate::view::redo_rows::{Applied, InPlace, RedoRows, Run};
use crate::write::frozen::{ContentFlush, Fate, FrozenNode};
use crate::{Error, ErrorKind, Result};
use larder_catalog::ChangeSet;
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{CommitSeq, Ino, StoreId, block_checksum};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Longer runs go copy-on-write (64 KiB).
const RUN_BLOCKS_MAX: u64 = 16;
/// An object with more blocks in small runs than this, in one group, goes copy-on-write
/// (docs/decisions/0009-patches.md has the measurement).
const OBJECT_BLOCKS_MAX: u64 = 2048;
/// Redo rows are applied when so many of `EngineOptions::redo_bytes_max` wait: one part in this.
const FULL_DIVISOR: u64 = 4;
/// Redo rows are applied when the newest is so old.
const IDLE: Duration = Duration::from_secs(2);
/// How long to leave redo rows alone that readers still hold back.
const PAUSE: Duration = Duration::from_secs(1);
/// Blocks in one request to a device at most.
const REQUEST_BLOCKS: usize = 1024;

impl ViewMaps<'_> {
    /// Bytes of redo rows that wait for being applied, replaced ones included, as far as this
    /// session has noticed: exact with the writer lock.
    pub(crate) fn redo_bytes(&self) -> u64 {
        // A stranger's rows may say anything.
        let blocks = self.redo_rows.blocks.load(Ordering::SeqCst);
        blocks.saturating_mul(BLOCK_BYTES)
    }

    /// Reads the redo rows of an object. The map must not have been read before (`REDO-2`).
    pub(crate) fn load_redo_rows(&self, store: StoreId, ino: Ino) -> Result<RedoRows> {
        Ok(RedoRows::decode(self.catalog.maps().redo_rows(store, ino)?))
    }
}

impl EngineRedo<'_> {
    pub(crate) fn redo_blocks_max(&self) -> Result<u64> {
        if self.session.workspace.is_some() {
            return Ok(0); // WORKSPACE-8
        }
        let share = self.segments().catalog_share_bytes()?;
        Ok(self.session.options.redo_bytes_max.min(share) / BLOCK_BYTES)
    }

    /// Learns from the catalog how much waits to be written in place: when the database is opened,
    /// and when another session committed, before anything else is read again (`REDO-2`). `seq`:
    /// the commit that is read.
    pub(crate) fn refresh_redo(&self, seq: CommitSeq) -> Result<()> {
        let noted = *lock(&self.host_or_self().redo_rows.noted);
        let blocks = match noted {
            Some((at, blocks)) if at == seq => blocks,
            _ => self.catalog.maps().redo_blocks()?,
        };
        if self.redo_rows.blocks.swap(blocks, Ordering::SeqCst) != blocks {
            lock(&self.redo_rows.clock).newest = Some(Instant::now());
        }
        Ok(())
    }

    /// Notes for the engines beside this one how many blocks all redo rows have after commit
    /// `seq`, which the caller knows from having the writer lock: to sum them up costs more than a
    /// small transaction.
    pub(crate) fn note_redo_at(&self, seq: CommitSeq, blocks: u64) {
        *lock(&self.redo_rows.noted) = Some((seq, blocks));
    }

    fn host_or_self(&self) -> &Engine {
        self.private.as_ref().map_or(self, |private| &private.host)
    }

    /// A commit of ours changed the number of blocks in redo rows.
    pub(crate) fn publish_redo(&self, change: i64) {
        let blocks = &self.redo_rows.blocks;
        let after = blocks.load(Ordering::SeqCst).saturating_add_signed(change);
        blocks.store(after, Ordering::SeqCst);
        if change > 0 {
            lock(&self.redo_rows.clock).newest = Some(Instant::now());
        }
    }

    // ---- making redo rows -----------------------------------------------------------------------

    /// Makes redo rows of small runs of dirty blocks that are mapped; the others stay in
    /// [`ContentFlush::runs`]. The nodes are frozen, so what is mapped now stays so (`NODE-2`).
    pub(crate) fn log_small_redo(
        &self,
        nodes: &mut [FrozenNode],
        set: &mut ChangeSet,
    ) -> Result<()> {
        let waiting = self.redo_rows.blocks.load(Ordering::SeqCst);
        let mut left = self.redo_blocks_max()?.saturating_sub(waiting);
        for frozen in nodes.iter_mut() {
            let Some(flush) = frozen.flush.as_mut().filter(|flush| flush.may_log_redo) else {
                continue;
            };
            assert!(!flush.keeps, "REDO-6");
            let node = &frozen.node;
            let mut state = node.lock();
            let (small, large) = self.split_runs(node, &mut state, &flush.runs)?;
            let count: u64 = small.iter().map(|(_, count)| count).sum();
            if count > 0 && count <= OBJECT_BLOCKS_MAX.min(left) {
                left -= count; // REDO-5
                let row = state.content.redo_rows.log(&flush.gather, &small);
                set.redo_rows.push((node.store, node.ino, row));
                flush.runs = large;
                self.give_back_reservation(flush);
            }
            let end = frozen.row.size_bytes.div_ceil(BLOCK_BYTES);
            if !matches!(flush.runs[..], [(first, count)] if first + count == end) {
                // Only an end goes on.
                flush.fate = Fate::Known;
            }
        }
        Ok(())
    }

    /// What was reserved beyond the blocks that get a new place.
    fn give_back_reservation(&self, flush: &mut ContentFlush) {
        if let Some(mut reservation) = flush.reservation.take() {
            let blocks = flush.block_count();
            flush.reservation = (blocks > 0).then(|| reservation.split(blocks));
            self.free_space().space.forfeit(reservation);
        }
    }

    /// Small runs on mapped blocks, and the others. A run that is mapped in part is divided: an
    /// append logs the last block that is there, and the rest of it goes right behind that
    /// block.
    fn split_runs(
        &self,
        node: &Node,
        state: &mut NodeState,
        runs: &[Run],
    ) -> Result<(Vec<Run>, Vec<Run>)> {
        let source = self.maps().map_source(node);
        let (mut small, mut large) = (Vec::new(), Vec::new());
        for &(first, count) in runs {
            let end = first + count;
            let mut parts: Vec<(bool, Run)> = Vec::new();
            let mut block = first;
            while block < end {
                let (is_fixed, found) = match state.content.map.find(source, block)? {
                    Mapped::Run { extent, .. } => {
                        let part = extent.slice(0, extent.block_count.min(end - block));
                        (!self.sharing().is_shared(&part)?, part.block_count) // SHARE-4
                    }
                    Mapped::Hole(hole) => (false, hole),
                };
                let found = found.min(end - block);
                match parts.last_mut() {
                    Some((before, (_, blocks))) if *before == is_fixed => *blocks += found,
                    _ => parts.push((is_fixed, (block, found))),
                }
                block += found;
            }
            let is_append =
                matches!(parts[..], [(true, (_, head)), (false, _)] if head <= RUN_BLOCKS_MAX);
            if count > RUN_BLOCKS_MAX && !is_append {
                large.push((first, count));
                continue;
            }
            for (is_fixed, part) in parts {
                if is_fixed { &mut small } else { &mut large }.push(part);
            }
        }
        Ok((small, large))
    }

    // ---- applying them ------------------------------------------------------------------------

    /// Whether the background should apply redo rows now.
    fn is_apply_due(&self) -> Result<bool> {
        let waiting = self.redo_rows.blocks.load(Ordering::SeqCst);
        if waiting == 0 || self.session.workspace.is_some() {
            return Ok(false);
        }
        let is_full = self.is_redo_full()?;
        let clock = lock(&self.redo_rows.clock);
        let is_rested = clock.not_before.is_none_or(|at| Instant::now() >= at);
        let is_idle = clock.newest.is_none_or(|newest| newest.elapsed() >= IDLE);
        Ok(is_rested && (is_idle || is_full))
    }

    fn is_redo_full(&self) -> Result<bool> {
        let waiting = self.redo_rows.blocks.load(Ordering::SeqCst);
        Ok(waiting > 0 && waiting >= self.redo_blocks_max()? / FULL_DIVISOR)
    }

    /// The background's part. Never waits for the writer lock.
    pub(crate) fn apply_if_due(&self) -> Result<()> {
        // Who waits for the writer lock comes first.
        if !self.is_apply_due()? || self.writer_lock.is_wanted() {
            return Ok(());
        }
        if !self
            .writer_lock
            .try_begin(|| self.sessions().refresh_locked())?
        {
            lock(&self.redo_rows.clock).not_before = Some(Instant::now() + PAUSE);
            return Ok(());
        }
        let _edit = Edit { engine: self };
        self.apply_redo()
    }

    /// The same for an engine without background: after a sync, when enough waits.
    pub(crate) fn apply_if_full(&self) -> Result<()> {
        if self.session.options.has_background || !self.is_redo_full()? {
            return Ok(());
        }
        let _edit = self.edit()?;
        self.apply_redo()
    }

    /// The same, whether it is time or not: what has redo rows cannot be moved.
    pub(crate) fn apply_now(&self) -> Result<()> {
        self.workspace().require_parent(NO_MOVES)?;
        let _edit = self.edit()?;
        self.apply_redo()
    }

    /// Writes in place what no reader holds back, and commits that; where the catalog is busy or
    /// the host is full it is left for later. The caller has the writer lock. Cost: one request per
    /// contiguous piece, one flush per segment, one commit.
    pub(crate) fn apply_redo(&self) -> Result<()> {
        if self.redo_rows.blocks.load(Ordering::SeqCst) == 0 || self.session.workspace.is_some() {
            return Ok(()); // WORKSPACE-8: the targets are the parent's.
        }
        let _one_at_a_time = lock(&self.redo_rows.applying);
        match self.apply_pinned() {
            // What was written in place is as before, or on its way into a commit; the rest waits.
            Err(error) if is_passing(&error) && self.check_running().is_ok() => {
                tracing::warn!("redo rows wait to be written in place: {error}");
                lock(&self.redo_rows.clock).not_before = Some(Instant::now() + PAUSE);
                Ok(())
            }
            Err(error) => {
                // Another thread's commit must end before the writer lock is abandoned.
                let _no_commit = self.commit_lock.lock();
                self.stop(format!(
                    "redo rows could not be written in place ({error}); close and reopen the \
                     database"
                ));
                Err(error)
            }
            Ok(()) => Ok(()),
        }
    }

    fn apply_pinned(&self) -> Result<()> {
        let _pin = self.begin_read();
        let horizon = self.sessions().reclaim_horizon()?;
        let before = self.redo_rows.blocks.load(Ordering::SeqCst);
        let mut objects: Vec<(Arc<Node>, Applied)> = Vec::new();
        for (store, ino) in self.catalog.maps().objects_with_redo_rows()? {
            let node = match self.lookup().node(store, ino) {
                // Deleted by the open group; the rows go with it.
                Err(error) if error.kind() == ErrorKind::NotFound => continue,
                node => node?,
            };
            if let Some(applied) = self.plan_apply(&node, horizon)? {
                objects.push((node, applied));
            }
        }
        self.keep_pre_images(&objects)?; // PREIMAGE-1
        self.commits().settle_flushes()?; // FLUSH-3
        self.write_in_place(&objects)?;
        for (node, applied) in objects {
            let _barrier = self.enter_barrier();
            let mut state = self.lock_node(&node)?;
            if !state.is_deleted && state.content.refused_count == applied.refused_count {
                state.content.applied = Some(applied);
                self.content().mark_dirty(&node, &mut state);
            }
        }
        self.commits().commit_now()?;
        let mut clock = lock(&self.redo_rows.clock);
        // What remains is too new for some reader; or it came meanwhile, and is soon due.
        let is_stuck = self.redo_rows.blocks.load(Ordering::SeqCst) >= before;
        clock.not_before = is_stuck.then(|| Instant::now() + PAUSE);
        Ok(())
    }

    /// What of an object can be written in place (`REDO-3`).
    fn plan_apply(&self, node: &Arc<Node>, horizon: CommitSeq) -> Result<Option<Applied>> {
        let mut guard = self.lock_node(node)?;
        let state = &mut *guard;
        if state.is_deleted || state.content.applied.is_some() {
            return Ok(None);
        }
        self.maps().load_content(node, state)?;
        let source = self.maps().map_source(node);
        let content = &mut state.content;
        let Some(upto) = content.redo_rows.find_cut(horizon) else {
            return Ok(None);
        };
        let mut writes = Vec::new();
        for (&block, redo_row) in &content.redo_rows.blocks {
            let Some(seq) = redo_row.seq.filter(|&seq| seq <= upto) else {
                continue;
            };
            let Mapped::Run { extent, checksums } = content.map.find(source, block)? else {
                return Err(broken(&format!(
                    "block {block} of inode {} has a redo row and is not mapped (REDO-1)",
                    node.ino
                )));
            };
            writes.push(InPlace {
                block,
                seq,
                target: extent.slice(0, 1),
                bytes: redo_row.bytes.clone(),
                checksum: block_checksum(&redo_row.bytes),
                old_checksum: checksums[0],
            });
        }
        let is_held_back = writes.is_empty() && !content.redo_rows.blocks.is_empty();
        Ok((!is_held_back).then_some(Applied {
            upto,
            writes,
            refused_count: content.refused_count,
        }))
    }

    /// Writes in order of address, neighbours in one request; then flushes.
    fn write_in_place(&self, objects: &[(Arc<Node>, Applied)]) -> Result<()> {
        let mut writes: Vec<&InPlace> = objects
            .iter()
            .flat_map(|(_, applied)| &applied.writes)
            .collect();
        writes.sort_unstable_by_key(|write| write.target);
        let mut touched = BTreeSet::new();
        let pieces = writes.chunk_by(|a, b| a.target.is_followed_by(&b.target));
        for piece in pieces.flat_map(|piece| piece.chunks(REQUEST_BLOCKS)) {
            let buffers: Vec<&[u8]> = piece.iter().map(|write| &*write.bytes).collect();
            let start = piece[0].target;
            self.segment(start.segment)?
                .write(start.start_block, &buffers)?;
            touched.insert(start.segment);
        }
        for segment in touched {
            self.segment(segment)?.flush()?;
        }
        Ok(())
    }

    /// Part of the commit: the map takes the checksums of what was written in place, and the rows
    /// go (`REDO-4`). A redo row that was replaced or ended meanwhile is left out: the newer row,
    /// or the new place, counts.
    pub(crate) fn map_applied(
        &self,
        node: &Node,
        state: &mut NodeState,
        applied: Applied,
        set: &mut ChangeSet,
    ) -> Result<()> {
        let source = self.maps().map_source(node);
        let content = &mut state.content;
        // The target then holds, since the redo row, what the map has said of it since: nothing
        // else is to be kept.
        let is_settled = applied.writes.iter().all(|write| {
            content.redo_rows.is_of(write.block, write.seq) && write.old_checksum == write.checksum
        });
        let settled = is_settled.then_some(applied.writes.len() as u64);
        for write in applied.writes {
            if !content.redo_rows.is_of(write.block, write.seq) {
                continue;
            }
            let is_there = match content.map.find(source, write.block)? {
                // What was logged has its checksum already.
                Mapped::Run { extent, checksums } if extent.slice(0, 1) == write.target => {
                    checksums[0] == write.checksum
                        || content.map.insert(
                            source,
                            write.block,
                            write.target,
                            &[write.checksum],
                        )? == [write.target]
                }
                _ => false,
            };
            if !is_there {
                return Err(broken(&format!(
                    "block {} of inode {} moved while its redo row was applied (REDO-1)",
                    write.block, node.ino
                )));
            }
            content.redo_rows.blocks.remove(&write.block);
        }
        assert!(
            content
                .redo_rows
                .blocks
                .values()
                .all(|redo_row| redo_row.seq.is_none_or(|seq| seq > applied.upto)),
            "REDO-4"
        );
        set.redo_applied
            .push((node.store, node.ino, applied.upto, settled));
        Ok(())
    }

    // ---- check --------------------------------------------------------------------------------

    /// Every redo row lies on a mapped block. Nothing is uncommitted.
    pub(crate) fn check_redo_rows(&self, findings: &mut Vec<String>) -> Result<()> {
        for (store, ino) in self.catalog.maps().objects_with_redo_rows()? {
            let redo_rows = RedoRows::decode(self.catalog.maps().redo_rows(store, ino)?);
            let source = crate::view::extent_map::MapSource {
                catalog: &self.catalog,
                store,
                ino,
            };
            let mut map = crate::view::extent_map::ExtentMap::default();
            for &block in redo_rows.blocks.keys() {
                if !map.contains(source, block)? {
                    findings.push(format!(
                        "store {store} inode {ino}: block {block} has a redo row and is not mapped \
                         (REDO-1)"
                    ));
                }
            }
        }
        Ok(())
    }
}

/// Whether trying again later may help, without anything being lost meanwhile.
fn is_passing(error: &Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::Busy | ErrorKind::TimedOut | ErrorKind::NoSpace
    )
}
