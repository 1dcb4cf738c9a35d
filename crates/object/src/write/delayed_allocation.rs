//! Gathering objects whole: an object that is being written stays in memory until it is complete,
//! and is then placed once, at its final size. That is what keeps objects in one piece however
//! often they are replaced (docs/decisions/0012).
//!
//! # Words
//! *Complete*: no writer has it open, its own sync asks for it, or it is as long as was announced.
//! *Half written*: being written, and not complete. *Kept*: clean copies, in memory, of the mapped
//! blocks of an object that may still be placed whole. *Delayed*: an object whose blocks have a
//! place only because a commit had to hold them while it was half written (`COMMIT-1`); its
//! allocation is still to come. *Stream*: an object that is written out as it comes.
//!
//! ```text
//!         write              a commit meets it half written            complete
//!  new ──────────▶ gathered ─────────────────────────────▶ delayed ────────────▶ placed whole
//!                   │  │     dirty blocks to any place,  ▲ │                      ▲  (what was
//!                   │  │     copies of them kept         └─┘ again                │  delayed
//!                   │  └────────────────── complete ──────────────────────────────┘   is retired)
//!                   └─ longer than memory may hold ──▶ stream
//! ```
//!
//! # Invariants
//! * `WHOLE-1` While anything of an object is kept and no commit is writing it, the kept blocks are
//!   exactly its mapped ones, and have their content.
//! * `WHOLE-2` What is kept is at most half of the bound of the gather (`CLAIM-1`).
//! * `WHOLE-3` A delayed object whose last writer is gone is in the open group or on the list
//!   of the delayed ones, so the next commits place it whole.
//!
//! # Cost
//! An object that a commit meets half written is written at most twice. Syncs wait a moment for
//! those that are just being written, at most for as long as writing their dirty bytes twice would
//! take ([`STREAM_BYTES_PER_US`]); so this stays rare.

use crate::Result;
use crate::engine::{EngineDelayedAllocation, lock};
use crate::view::gather::Gather;
use crate::view::node::{Content, Node, NodeState};
use crate::write::frozen::{ContentFlush, Fate};
use larder_space::Purpose;
use larder_space::format::limits::BLOCK_BYTES;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Part of the gather's bound that one object may take and still be gathered whole.
const WHOLE_DIVISOR: u64 = 4;
/// A writer that wrote this long ago is at work.
const ACTIVE: Duration = Duration::from_millis(2);
/// How fast bytes of delayed objects could be written instead of waiting, bytes per microsecond
/// (1 GB/s).
const STREAM_BYTES_PER_US: u64 = 1000;
/// How often a sync that waits looks again.
const LOOK: Duration = Duration::from_micros(100);
/// A group that is due waits at most this long for half written objects.
pub(crate) const PATIENCE_WITH_STREAMS: Duration = Duration::from_millis(500);
/// With so many complete bytes a group is committed at once: the device would idle meanwhile.
const EAGER_BYTES: u64 = 32 << 20;
/// Groups with more nodes than this have little to gain by waiting.
const NODES_MAX: usize = 256;

impl EngineDelayedAllocation<'_> {
    /// Most blocks that an object may have to be gathered whole.
    fn whole_blocks_max(&self) -> u64 {
        self.session.dirty_bytes_max / WHOLE_DIVISOR / BLOCK_BYTES
    }

    /// Whether all that is mapped of the object is in memory, so that it can be placed whole.
    fn is_gathered(state: &NodeState) -> bool {
        state.row.block_count == state.content.kept.block_count()
    }

    /// Decides what a freeze takes of a node's content, and how it will be placed.
    pub(crate) fn plan_flush(&self, state: &mut NodeState) -> Option<ContentFlush> {
        let is_synced = std::mem::take(&mut state.content.is_sync_wanted);
        if state.content.pieces.is_some() {
            return self.plan_pieced(state);
        }
        let is_gathered = Self::is_gathered(state);
        debug_assert!(
            is_gathered || state.content.kept.is_empty(),
            "WHOLE-1: {} mapped, {} kept",
            state.row.block_count,
            state.content.kept.block_count()
        );
        let is_open = state.writer_count > 0 && !self.is_closed.load(Ordering::SeqCst);
        let size_blocks = state.row.size_bytes.div_ceil(BLOCK_BYTES);
        let content = &mut state.content;
        let has_dirty = !content.gather.is_empty();
        if !has_dirty && (is_open || !content.is_delayed) {
            if !is_open {
                self.drop_kept(content);
            }
            if !content.map.is_dirty() && content.applied.is_none() {
                return None;
            }
            return Some(ContentFlush::freeze(content, Fate::Known));
        }
        let expected_blocks = content.expected_bytes.div_ceil(BLOCK_BYTES);
        let in_memory = content.kept.block_count() + content.gather.block_count();
        let is_as_announced =
            expected_blocks > 0 && expected_blocks == size_blocks && in_memory >= size_blocks;
        let is_complete = !is_open || is_as_announced || (is_synced && !content.was_synced);
        let growing = Fate::Stream((expected_blocks > 0).then_some(expected_blocks));
        let mut fate = Fate::Known;
        let mut keeps = false;
        let mut is_rewrite = false;
        let mut may_log_redo = false;
        if !is_gathered && content.gather.block_count() >= size_blocks {
            // All of it is new: nothing of what is mapped stays.
            self.drop_kept(content);
        } else if !is_gathered {
            may_log_redo = true;
            fate = growing; // If that is what the write path finds left of it.
        } else if is_complete {
            let is_whole = content.kept.is_empty();
            is_rewrite = !is_whole && self.gather_kept(content);
            keeps = is_open
                && (is_whole || is_rewrite)
                && self.reserve_memory(content.gather.memory_bytes());
            content.was_synced = is_synced;
            content.is_delayed = false;
        } else if in_memory.max(expected_blocks) > self.whole_blocks_max()
            || !self.reserve_memory(content.gather.memory_bytes())
        {
            // Too long for memory: what has a place becomes the beginning of the stream.
            is_rewrite = self.gather_kept(content);
            content.is_delayed = false;
            fate = growing;
        } else {
            if content.was_synced {
                // Appended and synced again and again: a log. Its end is kept in one place.
                fate = growing;
            }
            keeps = true;
            content.is_delayed = true;
        }
        let mut flush = ContentFlush::freeze(content, fate);
        flush.keeps = keeps;
        flush.is_rewrite = is_rewrite;
        flush.may_log_redo = may_log_redo;
        Some(flush)
    }

    /// The same for an object with pieces, whose base has no end that could be complete.
    fn plan_pieced(&self, state: &mut NodeState) -> Option<ContentFlush> {
        let content = &mut state.content;
        self.drop_kept(content);
        if content.gather.is_empty() && !content.map.is_dirty() && content.applied.is_none() {
            return None;
        }
        let mut flush = ContentFlush::freeze(content, Fate::Known);
        flush.may_log_redo = true;
        Some(flush)
    }

    /// Counts `bytes` of memory more as kept if the bound allows it (`WHOLE-2`). Only the freeze
    /// asks.
    fn reserve_memory(&self, bytes: u64) -> bool {
        let fits =
            self.kept_bytes.load(Ordering::Relaxed) + bytes <= self.session.dirty_bytes_max / 2;
        if fits {
            self.kept_bytes.fetch_add(bytes, Ordering::Relaxed);
        }
        fits
    }

    /// Makes what is kept dirty again, under what is dirty, if there is something, and space to
    /// write all of it once more; else it stays where it is. Either way nothing is kept any more.
    fn gather_kept(&self, content: &mut Content) -> bool {
        if content.kept.is_empty() {
            return false;
        }
        let extra = self
            .free_space()
            .space
            .reserve(content.kept.block_count(), Purpose::Privileged);
        let Ok(extra) = extra else {
            self.drop_kept(content);
            return false;
        };
        let mut all = std::mem::take(&mut content.kept);
        let kept_bytes = all.memory_bytes();
        let dirty = std::mem::take(&mut content.gather);
        self.dirty_bytes
            .fetch_sub(dirty.memory_bytes(), Ordering::Relaxed);
        all.absorb(dirty);
        self.dirty_bytes
            .fetch_add(all.memory_bytes(), Ordering::Relaxed);
        self.kept_bytes.fetch_sub(kept_bytes, Ordering::Relaxed);
        // The reservation of blocks that are in both is given back with the rest of it.
        match content.reservation.as_mut() {
            Some(reservation) => reservation.merge(extra),
            None => content.reservation = Some(extra),
        }
        content.gather = all;
        true
    }

    /// Forgets the copies; the object stays where it is.
    pub(crate) fn drop_kept(&self, content: &mut Content) {
        let kept = std::mem::take(&mut content.kept);
        self.kept_bytes
            .fetch_sub(kept.memory_bytes(), Ordering::Relaxed);
        content.is_delayed = false;
        content.was_synced = false;
    }

    /// Takes flushed blocks, reserved to be kept, as kept ones; `WHOLE-1` holds again.
    pub(crate) fn keep(&self, node: &Arc<Node>, state: &mut NodeState, flushed: Arc<Gather>) {
        let (reserved, before) = (flushed.memory_bytes(), state.content.kept.memory_bytes());
        if !state.is_deleted {
            // Nobody else looks at them any more: readers copy under the node's lock.
            let flushed = Arc::into_inner(flushed).unwrap_or_default();
            state.content.kept.absorb(flushed);
        }
        let twice = before + reserved - state.content.kept.memory_bytes();
        self.kept_bytes.fetch_sub(twice, Ordering::Relaxed);
        debug_assert!(
            self.kept_bytes.load(Ordering::Relaxed) <= self.session.dirty_bytes_max / 2,
            "WHOLE-2"
        );
        if !Self::is_gathered(state) {
            // Replaced as a whole while this was being written (WHOLE-1).
            self.drop_kept(&mut state.content);
        }
        self.settle_later(node, state);
    }

    /// Called when the last writer has gone, or a commit has kept blocks of an object without a
    /// writer (`WHOLE-3`).
    pub(crate) fn settle_later(&self, node: &Arc<Node>, state: &mut NodeState) {
        if state.writer_count > 0 || state.content.kept.is_empty() {
            return;
        }
        if !state.content.is_delayed {
            self.drop_kept(&mut state.content);
        } else if !state.in_group {
            lock(&self.delayed).push(node.clone());
        }
    }

    /// Whether delayed objects wait for a commit that places them.
    pub(crate) fn has_delayed(&self) -> bool {
        !lock(&self.delayed).is_empty()
    }

    /// Puts the delayed objects into the open group. The caller is a user of the writer lock, or
    /// alone.
    pub(crate) fn place_delayed(&self) -> Result<()> {
        let nodes = std::mem::take(&mut *lock(&self.delayed));
        if nodes.is_empty() {
            return Ok(());
        }
        let _barrier = self.enter_barrier();
        for node in nodes {
            let mut state = self.lock_node(&node)?;
            if state.content.is_delayed && !state.is_deleted && state.writer_count == 0 {
                self.content().mark_dirty(&node, &mut state);
            }
        }
        Ok(())
    }

    /// Dirty bytes of half written objects whose writers are at work, as a reason to wait for them.
    /// 0 in a group of more than [`NODES_MAX`] nodes, however many there are: looking at each would
    /// cost every tick more than waiting can gain.
    pub(crate) fn half_written_bytes(&self) -> u64 {
        let nodes: Vec<Arc<Node>> = {
            let group = lock(&self.group);
            if group.node_count() > NODES_MAX {
                return 0;
            }
            group.nodes().cloned().collect()
        };
        let now_ns = self.now_ns();
        let mut bytes = 0;
        for node in nodes {
            let state = node.lock();
            let content = &state.content;
            let is_active = now_ns.saturating_sub(state.row.mtime_ns) < ACTIVE.as_nanos() as i64;
            let is_half_written = state.writer_count > 0
                && !content.is_sync_wanted
                && !content.gather.is_empty()
                && Self::is_gathered(&state)
                && content.gather.block_count() + content.kept.block_count()
                    <= self.whole_blocks_max();
            if is_active && is_half_written {
                bytes += content.gather.memory_bytes();
            }
        }
        bytes
    }

    /// Whether so much is complete that the device should begin with it, though no time is up; and
    /// little is half written, so that little is written twice.
    pub(crate) fn is_worth_writing(&self) -> bool {
        let dirty = self.dirty_bytes.load(Ordering::Relaxed);
        // What another commit is writing counts as dirty until it is done.
        if dirty < EAGER_BYTES || self.commit_lock.is_held() {
            return false;
        }
        let half_written = self.half_written_bytes();
        dirty.saturating_sub(half_written) >= EAGER_BYTES.max(8 * half_written)
    }

    /// Lets objects that are just being written become complete before a commit, for no longer than
    /// it would take to write their dirty bytes twice.
    pub(crate) fn await_streams(&self) {
        if !self.session.options.has_background {
            return;
        }
        let began = Instant::now();
        loop {
            let bytes = self.half_written_bytes();
            // Not for a look that would take longer.
            let worth = Duration::from_micros(bytes / STREAM_BYTES_PER_US);
            if began.elapsed() + LOOK >= worth {
                return;
            }
            std::thread::sleep(LOOK);
        }
    }
}
