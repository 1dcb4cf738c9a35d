//! When and what is moved: in the background within a credit, and by hand.
//!
//! Writing earns *credit*: a tenth of the bytes written, rising to half of them while the database
//! is more than 95 % full. It is kept in memory, and is never more than an allocation group. The
//! write path names *candidates*: objects that it had to split, or that it did not write whole.
//! Each step spends credit on one candidate: it gathers the object, or, where no hole is long
//! enough, makes one (`healing`): the oldest history goes first, then holes are joined; and it
//! gathers the object when the freed blocks are reclaimed (`COMMIT-3`). A candidate that was split
//! is a sign that holes get scarce, so it is taken up at once ("foreground"); others wait until
//! nobody writes. No candidate or no credit: nothing happens.
//!
//! By hand (`larder defrag`) there is no credit; all objects are surveyed, and holes are joined
//! until that gains next to nothing.
//!
//! # Invariants
//! * `COMPACT-5` The background moves at most what it has credit for.
//! * `COMPACT-6` It ends: a candidate is tried a few times at growing intervals and then forgotten
//!   until it is written again; by hand every step makes fewer fragments, or the same and a higher
//!   score of holes, and at most as much is moved as the database holds.
//!
//! Lock order: `compactor` is a leaf.

use crate::engine::{Edit, Engine, EngineCompaction, lock};
use crate::space::compact::{MoveLimits, Moved, count_fragments, is_survivable};
use crate::space::{Candidate, Compactor};
use crate::space::{DefragObject, DefragOptions, DefragReport};
use crate::view::node::Node;
use crate::{ErrorKind, Result};
use larder_catalog::{ExtentRow, GRANTS};
use larder_space::format::limits::{AG_BLOCKS, BLOCK_BYTES};
use larder_space::format::{CommitSeq, Extent, Ino, SegmentIndex, StoreId};
use larder_space::{CompactPlan, hole_score, plan_hole, plan_joins};
use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Candidates that are remembered.
const CANDIDATES_MAX: usize = 4096;
/// How often a candidate is tried, and how long it rests after the first time; then four times
/// longer.
const ATTEMPTS_MAX: u32 = 5;
const REST: Duration = Duration::from_millis(250);
/// Credit at most: enough for the longest extent.
const CREDIT_MAX: u64 = AG_BLOCKS * BLOCK_BYTES;
/// Nobody has written for so long: the database is idle.
const IDLE: Duration = Duration::from_secs(1);
/// Allocation groups that one step looks at for a new hole.
const AGS_PER_STEP: usize = 8;
/// Moves of one plan that joins holes.
const JOINS_MAX: usize = 256;
/// By hand, joins move at most one block in so many that live, and go on while a plan adds at least
/// one part in so many to the score.
const JOIN_SHARE: u64 = 4;
const JOIN_GAIN: u128 = 100;
/// Objects that wait for a hole, by hand.
const PENDING_MAX: usize = 100_000;
/// How often, and how long each time, a step by hand waits for other sessions' pins.
const PIN_WAITS_MAX: u32 = 80;
const PIN_WAIT: Duration = Duration::from_millis(25);

/// Whose the extents are.
type Owners = HashMap<Extent, (StoreId, Ino)>;

/// A step of the background under way; also a panic ends it.
struct Running<'e>(&'e Engine);

impl Drop for Running<'_> {
    fn drop(&mut self) {
        lock(&self.0.compactor).is_running = false;
    }
}

/// What one step of the background did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct CompactStep {
    /// Bytes copied.
    pub moved_bytes: u64,
    /// Whether a candidate waits for another step, when it has rested or there is more credit.
    pub has_more: bool,
}

impl EngineCompaction<'_> {
    // ---- what the write path tells ----------------------------------------------------------

    /// Blocks of content were written: earns credit.
    pub(crate) fn earn_credit(&self, blocks: u64) {
        if blocks == 0 {
            return;
        }
        let is_spare = self.expiry().is_history_spare();
        let (used, free) = {
            let free = self.free_space();
            let (live, waiting) = (
                free.space.allocated_blocks(),
                free.space.quarantined_blocks(),
            );
            match is_spare {
                true => (live, waiting + free.space.free_blocks()),
                false => (live + waiting, free.space.free_blocks()),
            }
        };
        // Without a capacity the segments grow before they are full.
        let total = self
            .segments()
            .capacity_blocks()
            .map(|max| max.max(used + free));
        let earned = credit_for(blocks * BLOCK_BYTES, used, total.unwrap_or(u64::MAX));
        let mut compactor = lock(&self.compactor);
        compactor.credit_bytes = (compactor.credit_bytes + earned).min(CREDIT_MAX);
        compactor.last_write = Some(Instant::now());
    }

    /// An object of `blocks` blocks was written in several pieces, or beside blocks it already had.
    pub(crate) fn add_candidate(&self, node: &Node, blocks: u64, was_split: bool) {
        let mut compactor = lock(&self.compactor);
        let key = (node.store, node.ino);
        if compactor.candidates.len() < CANDIDATES_MAX || compactor.candidates.contains_key(&key) {
            let candidate = Candidate {
                blocks,
                was_split,
                attempts: 0,
                not_before: Instant::now(),
            };
            compactor.candidates.insert(key, candidate);
        }
    }

    // ---- in the background ------------------------------------------------------------------

    /// One step of what the background does when it is due, whether idle or not: heals one
    /// candidate, or makes room for it, within the credit (`COMPACT-5`). Does nothing while another
    /// session has the writer lock.
    pub fn compact_step(&self) -> Result<CompactStep> {
        let found = lock(&self.compactor).find_due(true);
        let Some((key, candidate)) = found else {
            return Ok(CompactStep::default());
        };
        self.check_running()?;
        if !self
            .writer_lock
            .try_begin(|| self.sessions().refresh_locked())?
        {
            lock(&self.compactor).postpone(key);
            return Ok(CompactStep::default());
        }
        let _edit = Edit { engine: self };
        let credit_blocks = lock(&self.compactor).credit_bytes / BLOCK_BYTES;
        let outcome = self.heal(key, credit_blocks);
        let mut compactor = lock(&self.compactor);
        // Also after an error: the next tick must not meet the same again.
        compactor.rest(key, candidate, matches!(outcome, Ok((_, true))));
        let (moved_blocks, _) = outcome?;
        assert!(moved_blocks <= credit_blocks, "COMPACT-5");
        compactor.credit_bytes -= (moved_blocks * BLOCK_BYTES).min(compactor.credit_bytes);
        Ok(CompactStep {
            moved_bytes: moved_blocks * BLOCK_BYTES,
            has_more: !compactor.candidates.is_empty(),
        })
    }

    /// Bytes that the background may move now.
    pub fn compact_credit_bytes(&self) -> u64 {
        lock(&self.compactor).credit_bytes
    }

    // ---- by hand ----------------------------------------------------------------------------

    /// Gathers the objects that are fragmented: all of them, or the `targets`; without targets also
    /// joins holes. `on_object` hears of each that is not in one piece. Other sessions go on: the
    /// writer lock is taken per object. Cost: reads every map, and copies what is moved; at most as
    /// much as lives.
    pub fn defrag(
        &self,
        targets: Option<&[(StoreId, Ino)]>,
        options: &DefragOptions,
        on_object: &mut dyn FnMut(&DefragObject),
    ) -> Result<DefragReport> {
        self.commits().sync()?;
        self.redo().apply_now()?;
        let mut report = DefragReport {
            is_dry: options.is_dry,
            ..DefragReport::default()
        };
        (report.hole_score_before, report.largest_hole_bytes_before) = self.hole_summary()?;
        let mut work = ByHand {
            report: &mut report,
            on_object,
            pending: Vec::new(),
            blocks_left: self.catalog.survey().extent_totals()?.0,
        };
        match targets {
            Some(targets) => {
                for &(store, ino) in targets {
                    self.defrag_object(store, ino, true, &mut work)?;
                }
            }
            None => self.report().for_each_mapped(|store, row| {
                if row.block_count == 0 {
                    return Ok(());
                }
                self.defrag_object(store, row.ino, true, &mut work)
            })?,
        }
        if !options.is_dry {
            self.settle()?;
            self.defrag_pending(&mut work)?;
            if targets.is_none() {
                self.join_holes(&mut work)?;
                self.defrag_pending(&mut work)?;
            }
        }
        for (store, ino) in std::mem::take(&mut work.pending) {
            self.defrag_object(store, ino, false, &mut work)?;
        }
        if !options.is_dry {
            self.settle()?;
        }
        (report.hole_score_after, report.largest_hole_bytes_after) = self.hole_summary()?;
        Ok(report)
    }

    /// Gathers one object. What finds no hole waits if `may_wait`, else it is told as it is.
    fn defrag_object(
        &self,
        store: StoreId,
        ino: Ino,
        may_wait: bool,
        work: &mut ByHand<'_>,
    ) -> Result<()> {
        let before = match self.committed_fragments(store, ino) {
            Err(error) if is_survivable(error.kind()) => return Ok(()),
            found => found?,
        };
        if may_wait {
            work.report.object_count += 1;
        }
        if before <= 1 {
            return Ok(());
        }
        let mut limits = MoveLimits {
            blocks_max: work.blocks_left,
            blocks_per_fragment: u64::MAX,
            fragments_max: if may_wait { 1 } else { u64::MAX },
            is_dry: work.report.is_dry,
            should_stop: &|| self.check_running().is_err(),
        };
        let outcome = {
            let _edit = self.edit()?;
            self.lookup()
                .node(store, ino)
                .and_then(|node| self.gather_object(&node, &mut limits))
        };
        let sum = match outcome {
            Ok(sum) => sum,
            Err(error) if is_survivable(error.kind()) => {
                tracing::warn!("inode {ino} of store {store} stays as it is: {error}");
                Gathered::default()
            }
            Err(error) => return Err(error),
        };
        if sum.wanted_blocks > 0 && may_wait && work.pending.len() < PENDING_MAX {
            work.pending.push((store, ino));
            work.note_moved(sum.moved_blocks);
            return Ok(());
        }
        work.note_moved(sum.moved_blocks);
        let object = DefragObject {
            store,
            path: self.report().path_of(store, ino)?,
            fragments_before: before,
            fragments_after: before.saturating_sub(sum.fewer_fragments).max(1),
            moved_bytes: sum.moved_blocks * BLOCK_BYTES,
        };
        let report = &mut *work.report;
        report.fragmented_count += 1;
        report.healed_count += u64::from(object.fragments_after == 1);
        report.fragments_before += object.fragments_before;
        report.fragments_after += object.fragments_after;
        (work.on_object)(&object);
        let capacity = self.free_space().space.capacity_blocks();
        // What was left behind is the room of what follows.
        if !report.is_dry && self.expiry().settling_blocks() > capacity / 64 {
            self.settle()?;
        }
        Ok(())
    }

    /// Objects that found no hole: smallest first, each with a hole made for it if need be.
    fn defrag_pending(&self, work: &mut ByHand<'_>) -> Result<()> {
        let mut pending = Vec::new();
        for (store, ino) in std::mem::take(&mut work.pending) {
            if let Some(row) = self.catalog.tables().inode(store, ino)? {
                pending.push((row.block_count, store, ino));
            }
        }
        pending.sort_unstable();
        for (blocks, store, ino) in pending {
            let wanted = blocks.min(AG_BLOCKS);
            if !self.expire_for_hole(wanted)? {
                let moved = {
                    let _edit = self.edit()?;
                    self.make_hole(wanted, work.blocks_left)?
                };
                work.note_moved(moved);
                if moved > 0 {
                    self.settle()?;
                }
            }
            let largest = self.free_space().space.largest_hole_blocks();
            if largest >= wanted {
                self.defrag_object(store, ino, false, work)?;
            } else {
                work.pending.push((store, ino));
            }
        }
        Ok(())
    }

    /// Joins holes in every AG as long as that raises the score noticeably (`COMPACT-6`).
    fn join_holes(&self, work: &mut ByHand<'_>) -> Result<()> {
        let mut left = work.blocks_left / JOIN_SHARE;
        for (segment, ag) in self.ags() {
            loop {
                let (plan_blocks, moved) = {
                    let _edit = self.edit()?;
                    let (holes, live, owners) = self.movable(segment, ag)?;
                    let score = hole_score(holes.iter().copied());
                    let plan = plan_joins(holes, &live, JOINS_MAX, left);
                    if plan.gain < score / JOIN_GAIN {
                        break;
                    }
                    (plan.blocks(), self.carry_out(&plan, &owners, left)?)
                };
                left -= moved;
                work.note_moved(moved);
                work.report.join_bytes += moved * BLOCK_BYTES;
                self.settle()?;
                if moved < plan_blocks || moved == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Commits, and reclaims what the commit retired; waits a bounded time for other sessions.
    pub(crate) fn settle(&self) -> Result<()> {
        let mut retired_by = None;
        for _ in 0..PIN_WAITS_MAX {
            {
                let _edit = self.edit()?;
                self.expiry().commit_steps(|| false)?;
                // Files that another session might have had open are retired by a commit after
                // that.
                let newest = CommitSeq(i64::MAX as u64);
                if !self.orphans().has_lost_orphans(newest)? {
                    let seq = *retired_by.get_or_insert_with(|| self.known_seq());
                    // One more for what that one retired.
                    self.expiry().commit_steps(|| false)?;
                    let history = self.expiry().horizon()?.history.limit(seq);
                    let is_over = !self.catalog.retention()?.has_retired_by(&history)?
                        && self.expiry().moved_away_until(seq).is_empty();
                    if is_over {
                        break;
                    }
                }
            }
            std::thread::sleep(PIN_WAIT);
        }
        Ok(())
    }

    // ---- steps ------------------------------------------------------------------------------

    /// Gathers an object, AG by AG.
    pub(crate) fn gather_object(
        &self,
        node: &Arc<Node>,
        limits: &mut MoveLimits<'_>,
    ) -> Result<Gathered> {
        let mut sum = Gathered::default();
        let mut from = Some(0);
        while from.is_some() {
            match self.gather_part(node, &mut from, limits)? {
                Moved::Done {
                    blocks,
                    fragments_before,
                    fragments_after,
                } => {
                    sum.moved_blocks += blocks;
                    sum.fewer_fragments += fragments_before - fragments_after;
                    limits.blocks_max -= blocks;
                }
                Moved::Whole | Moved::Shared => {}
                Moved::Busy => {
                    sum.was_busy = true;
                    break;
                }
                Moved::TooDear => sum.is_too_dear = true,
                Moved::NoSpace { blocks } => {
                    sum.wanted_blocks = sum.wanted_blocks.max(blocks);
                }
            }
        }
        Ok(sum)
    }

    /// Moves what lies in the way of a hole of `wanted` blocks; returns blocks moved, 0 if there is
    /// no such place. The hole is there after the commits that reclaim. The caller is a user of the
    /// writer lock.
    pub(crate) fn make_hole(&self, wanted: u64, budget: u64) -> Result<u64> {
        let ags = self.ags();
        let first = std::mem::take(&mut lock(&self.compactor).ag_cursor);
        for step in 0..ags.len().min(AGS_PER_STEP) {
            let at = (first + step) % ags.len();
            let (segment, ag) = ags[at];
            let (holes, live, owners) = self.movable(segment, ag)?;
            if let Some(plan) = plan_hole(holes, &live, wanted, budget) {
                lock(&self.compactor).ag_cursor = at;
                return self.carry_out(&plan, &owners, budget);
            }
        }
        lock(&self.compactor).ag_cursor = first + AGS_PER_STEP;
        Ok(0)
    }

    /// Makes the moves of a plan; returns blocks moved. One that cannot be made is left out.
    fn carry_out(&self, plan: &CompactPlan, owners: &Owners, blocks_max: u64) -> Result<u64> {
        let mut moved = 0;
        for one in &plan.moves {
            let limits = MoveLimits {
                blocks_max: blocks_max - moved,
                blocks_per_fragment: u64::MAX,
                fragments_max: 1,
                is_dry: false,
                should_stop: &|| self.check_running().is_err(),
            };
            let (store, ino) = owners[&one.from];
            let outcome = self
                .lookup()
                .node(store, ino)
                .and_then(|node| self.move_extent(&node, one.from, Some(one.to), &limits));
            match outcome {
                Ok(Moved::Done { blocks, .. }) => moved += blocks,
                Ok(_) => {}
                Err(error) if is_survivable(error.kind()) => {
                    tracing::debug!("{} stays: {error}", one.from);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(moved)
    }

    /// All holes, the live extents of an AG that may be moved, and whose they are: of one moment,
    /// so that no live block is in a hole. One at the border of an AG may go on in the next one; it
    /// stays, or it would become a fragment.
    fn movable(
        &self,
        segment: SegmentIndex,
        ag: u64,
    ) -> Result<(Vec<Extent>, Vec<Extent>, Owners)> {
        // No commit: what it reclaims has no rows any more, and is free a moment later (RESERVE-2).
        let _no_commit = self.commit_lock.lock();
        let holes: Vec<Extent> = {
            let mut free = self.free_space();
            if !free.space.is_loaded(segment, ag) {
                self.space().load_ag(&mut free.space, segment, ag)?;
            }
            free.space.holes().collect()
        };
        let rows = self.catalog.space().extents_in_ag(segment, ag)?;
        let may_move = |row: &&ExtentRow| {
            let extent = row.extent;
            row.retired_seq.is_none()
                && row.store != GRANTS
                && row.shared_count == 0 // SHARE-5
                && (extent.start_block == 0 || !extent.start_block.is_multiple_of(AG_BLOCKS))
                && !extent.end_block().is_multiple_of(AG_BLOCKS)
        };
        let rows = rows.iter().filter(may_move);
        let owners: Owners = rows.map(|row| (row.extent, (row.store, row.ino))).collect();
        let mut live: Vec<Extent> = owners.keys().copied().collect();
        live.sort_unstable();
        Ok((holes, live, owners))
    }

    /// All AGs, the last of each segment perhaps short.
    fn ags(&self) -> Vec<(SegmentIndex, u64)> {
        let segments = self.segment_blocks().into_iter();
        segments
            .flat_map(|(segment, blocks)| {
                (0..blocks.div_ceil(AG_BLOCKS)).map(move |ag| (segment, ag))
            })
            .collect()
    }

    fn committed_fragments(&self, store: StoreId, ino: Ino) -> Result<u64> {
        Ok(count_fragments(self.report().extents_in_order(store, ino)?))
    }

    /// The score of the holes, and the largest one, bytes.
    fn hole_summary(&self) -> Result<(f64, u64)> {
        let _edit = self.edit()?;
        for (segment, ag) in self.ags() {
            self.space().require_ag(segment, ag)?;
        }
        let free = self.free_space();
        let score = hole_score(free.space.holes()) as f64;
        Ok((score, free.space.largest_hole_blocks() * BLOCK_BYTES))
    }
}

/// Starts a step if one is due. Called at every tick.
pub(crate) fn compact_if_due(engine: &Arc<Engine>) {
    let is_quiet = lock(&engine.group).is_empty();
    {
        let mut compactor = lock(&engine.compactor);
        let is_idle = is_quiet
            && compactor
                .last_write
                .is_none_or(|last| last.elapsed() >= IDLE);
        if compactor.is_running || compactor.find_due(is_idle).is_none() {
            return;
        }
        compactor.is_running = true;
    }
    let beside = engine.clone();
    let spawned = std::thread::Builder::new()
        .name("larder-compact".into())
        .spawn(move || {
            let _running = Running(&beside);
            match beside.compaction().compact_step() {
                Ok(_) => {}
                Err(error) if error.kind() == ErrorKind::Stopped => {}
                Err(error) => tracing::warn!("compaction: {error}"),
            }
        });
    if let Err(error) = spawned {
        lock(&engine.compactor).is_running = false;
        tracing::warn!("cannot start a thread to compact: {error}");
    }
}

impl Compactor {
    /// Objects that wait to be gathered.
    pub(crate) fn candidate_count(&self) -> u64 {
        self.candidates.len() as u64
    }

    /// The next candidate that the credit covers and that has rested.
    fn find_due(&self, is_idle: bool) -> Option<((StoreId, Ino), Candidate)> {
        let now = Instant::now();
        let is_due = |candidate: &Candidate| {
            candidate.not_before <= now
                && candidate.blocks.min(AG_BLOCKS) * BLOCK_BYTES <= self.credit_bytes
                && (is_idle || candidate.was_split)
        };
        let due = self.candidates.iter().filter(|(_, one)| is_due(one));
        due.min_by_key(|(_, one)| (one.attempts, one.not_before))
            .map(|(&key, &one)| (key, one))
    }

    /// Another session has the writer lock: a little later.
    fn postpone(&mut self, key: (StoreId, Ino)) {
        if let Some(candidate) = self.candidates.get_mut(&key) {
            candidate.not_before = Instant::now() + REST;
        }
    }

    /// After a step: forgets the candidate, or lets it rest (`COMPACT-6`). One that was written
    /// again meanwhile keeps its new entry.
    fn rest(&mut self, key: (StoreId, Ino), tried: Candidate, is_done: bool) {
        let Some(candidate) = self
            .candidates
            .get_mut(&key)
            .filter(|now| now.not_before == tried.not_before)
        else {
            return;
        };
        candidate.attempts += 1;
        candidate.not_before = Instant::now() + REST * 4_u32.pow(tried.attempts);
        if is_done || candidate.attempts >= ATTEMPTS_MAX {
            self.candidates.remove(&key);
        }
    }
}

/// What became of one object.
#[derive(Debug, Default)]
pub(crate) struct Gathered {
    pub moved_blocks: u64,
    fewer_fragments: u64,
    /// The largest part that found no hole, blocks.
    pub wanted_blocks: u64,
    pub was_busy: bool,
    pub is_too_dear: bool,
}

/// A run by hand.
struct ByHand<'r> {
    report: &'r mut DefragReport,
    on_object: &'r mut dyn FnMut(&DefragObject),
    /// Objects that found no hole yet.
    pending: Vec<(StoreId, Ino)>,
    /// What may still be moved (`COMPACT-6`).
    blocks_left: u64,
}

impl ByHand<'_> {
    fn note_moved(&mut self, blocks: u64) {
        self.blocks_left = self.blocks_left.saturating_sub(blocks);
        self.report.moved_bytes += blocks * BLOCK_BYTES;
    }
}

/// What `written_bytes` earn when `used` of `total` blocks are in use.
fn credit_for(written_bytes: u64, used: u64, total: u64) -> u64 {
    let full = used as f64 / total.max(1) as f64;
    let rate = 0.1 + 0.4 * ((full - 0.95) / 0.05).clamp(0.0, 1.0);
    (written_bytes as f64 * rate) as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credit_rises_above_95_percent() {
        for (used, earned) in [(0, 100), (950, 100), (975, 300), (1000, 500), (2000, 500)] {
            assert_eq!(credit_for(1000, used, 1000), earned, "COMPACT-5: {used}");
        }
        assert_eq!(credit_for(1000, 1 << 40, u64::MAX), 100);
    }

    #[test]
    fn a_candidate_is_tried_a_few_times_and_forgotten() {
        let mut compactor = Compactor {
            credit_bytes: 100 * BLOCK_BYTES,
            ..Compactor::default()
        };
        let key = (StoreId(0), Ino(7));
        let mut at = Instant::now();
        let new = Candidate {
            blocks: 50,
            was_split: false,
            attempts: 0,
            not_before: at,
        };
        compactor.candidates.insert(key, new);
        assert!(compactor.find_due(false).is_none(), "it waits for idleness");
        for attempt in 0..ATTEMPTS_MAX {
            let (_, candidate) = compactor.find_due(true).unwrap();
            assert_eq!(candidate.attempts, attempt);
            compactor.rest(key, candidate, false);
            assert!(compactor.find_due(true).is_none(), "it rests");
            at -= Duration::from_secs(1);
            if let Some(resting) = compactor.candidates.get_mut(&key) {
                resting.not_before = at;
            }
        }
        assert!(compactor.candidates.is_empty(), "COMPACT-6");
        compactor.candidates.insert(key, new);
        compactor.credit_bytes = 0;
        assert!(compactor.find_due(true).is_none(), "COMPACT-5");
    }
}
