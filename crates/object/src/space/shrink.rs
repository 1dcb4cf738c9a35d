//! Shrinking: what lies at the end of the segments moves forward, and the host gets the rest back.
//!
//! ```text
//!  close the end ──▶ move what lies there ──commit──▶ reclaim ──▶ alone: nothing refers to the end
//!                          ▲   another session wrote there    │         │ commit the lower counts
//!                          └──────────────────────────────────┘         │ superblocks, then the
//!                                                                       │ truncation (SEGMENT-7)
//!                                                                       ▼ free set read anew
//! ```
//!
//! The catalog's count goes down first. A crash between it and the superblock leaves a segment that
//! is longer than the catalog says: the next session counts the blocks in again, as after an
//! interrupted growth, and the shrinking has not happened. Other sessions look at the length when
//! they next take the writer lock, before they can allocate (`RESERVE-1`).
//!
//! # Invariants
//! * `SHRINK-1` A segment is cut only while this session has the writer lock alone and no extent
//!   row, live or retired, reaches behind the new end.

use crate::engine::{Engine, EngineSegments, lock};
use crate::session::workspace::NO_MOVES;
use crate::space::ShrinkReport;
use crate::space::compact::{MoveLimits, Moved, is_survivable};
use crate::space::grow::kept_ahead;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{ExtentRow, GRANTS};
use larder_space::format::limits::{AG_BLOCKS, BLOCK_BYTES, HELD_BACK_DIVISOR};
use larder_space::format::{Extent, SegmentIndex};
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Extent rows read at a time.
const BATCH: usize = 1000;
/// How often the end is looked at again because somebody wrote or read there, and the pause
/// between.
const ROUNDS_MAX: u32 = 20;
const PAUSE: Duration = Duration::from_millis(100);

/// How much shorter a segment becomes.
#[derive(Debug, Clone, Copy)]
struct Cut {
    segment: SegmentIndex,
    old_count: u64,
    new_count: u64,
}

/// Before which block segments are not cut.
type Floors = BTreeMap<SegmentIndex, u64>;

impl EngineSegments<'_> {
    /// Makes the segments as short as `to_bytes` in all (default: as the content allows, with what
    /// is held back, and with what clones share, which is not moved), and returns the space to the
    /// host. Other sessions go on but for the last moment. [`ErrorKind::InvalidInput`] when the
    /// content needs more; [`ErrorKind::Busy`] when others keep writing or reading at the end, a
    /// snapshot holds something there, or, with `to_bytes`, clones share it. Cost: copies what lies
    /// there.
    pub fn shrink_segments(
        &self,
        to_bytes: Option<u64>,
        is_dry: bool,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<ShrinkReport> {
        self.workspace().require_parent(NO_MOVES)?;
        if self
            .catalog
            .workspace()?
            .oldest_transaction_pin()?
            .is_some()
        {
            return Err(Error::new(
                ErrorKind::Busy,
                "long transactions are open and keep what lies there; commit or abort them \
                 ('larder txn list')",
            ));
        }
        self.compaction().settle()?;
        let goal = self.shrink_goal(to_bytes)?;
        let mut report = ShrinkReport {
            is_dry,
            segment_bytes_before: self.total_blocks() * BLOCK_BYTES,
            ..ShrinkReport::default()
        };
        let find_floors = |report: &mut ShrinkReport| -> Result<Floors> {
            if to_bytes.is_some() {
                return Ok(Floors::new());
            }
            let (floors, shared_blocks) = self.find_shared_behind(goal)?;
            report.shared_bytes = shared_blocks * BLOCK_BYTES;
            Ok(floors)
        };
        let floors = find_floors(&mut report)?;
        let cuts = self.plan_cuts(goal, &floors);
        if is_dry || cuts.is_empty() {
            let cut: u64 = cuts.iter().map(|cut| cut.old_count - cut.new_count).sum();
            report.segment_bytes_after = (self.total_blocks() - cut) * BLOCK_BYTES;
            report.moved_bytes = self.live_bytes_behind(&cuts)?;
            return Ok(report);
        }
        if self.retention().find_guarantor()?.is_some() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "shrinking gives up history, and that is guaranteed; give it up before ('larder \
                 prune'), or end the \
                 guarantee ('larder retention DB --best-effort')",
            ));
        }
        // What applying copies for the past stays where it is placed: that is known before it is
        // looked for.
        self.redo().apply_now()?;
        self.compaction().settle()?;
        self.require_unheld(goal, to_bytes.is_some(), &floors)?;
        if to_bytes.is_some() {
            match self.find_shared_behind(goal)?.1 {
                0 => {}
                blocks => return Err(shared_at_the_end(blocks)),
            }
        }
        let _shrinking = Shrinking::begin(self);
        self.history.is_in_the_way.store(true, Ordering::SeqCst);
        loop {
            // Applying copies what history needs, and that is given up: before the free space is
            // counted.
            self.redo().apply_now()?;
            self.compaction().settle()?;
            let (used, spare) = self.used_and_spare()?;
            let cuts = self.plan_cuts(goal.max(used + spare), &find_floors(&mut report)?);
            if cuts.is_empty() {
                break;
            }
            report.moved_bytes += self.cut(&cuts, progress)?;
        }
        report.segment_bytes_after = self.total_blocks() * BLOCK_BYTES;
        Ok(report)
    }

    /// Gives what is free at the end of the last segment, if it is `segment`, back to the host:
    /// down to `block_count` at most, and only what growth ahead would not take again. Nothing is
    /// moved, and no history given up. Cost: O(1), and a short time alone.
    pub(crate) fn give_back_end(&self, segment: SegmentIndex, block_count: u64) -> Result<()> {
        let Some(cut) = self.plan_end(segment, block_count)? else {
            return Ok(());
        };
        let _shrinking = Shrinking::begin(self);
        let cuts = [cut];
        let _closed = self.close_ends(&cuts)?;
        // Somebody may have written there meanwhile: then it stays.
        self.cut_if_empty(&cuts).map(drop)
    }

    fn plan_end(&self, segment: SegmentIndex, block_count: u64) -> Result<Option<Cut>> {
        let _edit = self.edit()?;
        let Some((last, old_count)) = self.segment_blocks().pop_last() else {
            return Ok(None);
        };
        let used = self.catalog.space().last_extent(last)?;
        let least = used.map_or(0, |extent| extent.end_block()).max(block_count);
        let missing = {
            let space = &self.free_space().space;
            let cut = old_count.saturating_sub(least);
            let own = space.own_blocks().saturating_sub(cut);
            let left = space
                .free_blocks()
                .saturating_sub(cut + space.reserved_blocks());
            (kept_ahead(own) + own / HELD_BACK_DIVISOR).saturating_sub(left)
        };
        let new_count = least + missing;
        Ok((last == segment && new_count < old_count).then_some(Cut {
            segment,
            old_count,
            new_count,
        }))
    }

    /// Blocks in use, and blocks that must stay free in each step: what is held back of the present
    /// length takes some.
    fn used_and_spare(&self) -> Result<(u64, u64)> {
        let _edit = self.edit()?;
        let space = &self.free_space().space;
        let used = space.allocated_blocks() + space.quarantined_blocks();
        Ok((used, space.reserved_blocks() + space.held_back_blocks()))
    }

    /// Refuses, before history is given up for it, what a snapshot or a reader of the past is in
    /// the way of: what is retired after the commit that they hold stays where it is. (What lives
    /// is moved, and its past follows it.)
    fn require_unheld(&self, goal: u64, is_wanted: bool, floors: &Floors) -> Result<()> {
        let Some(held) = self
            .catalog
            .retention()?
            .history_horizon(self.now_ns())?
            .held
        else {
            return Ok(());
        };
        let stays = |row: &ExtentRow| row.retired_seq.is_some_and(|seq| seq > held);
        let mut kept = 0;
        self.report().for_each_extent(|row| {
            kept += u64::from(row.retired_seq.is_none() || stays(row)) * row.extent.block_count;
            Ok(())
        })?;
        let (_, spare) = self.used_and_spare()?;
        let mut is_in_the_way = is_wanted && goal < kept;
        let cuts = self.plan_cuts(goal.max(kept + spare), floors);
        self.for_each_behind(&cuts, &mut |row| {
            is_in_the_way |= stays(row);
            Ok(())
        })?;
        if !is_in_the_way {
            return Ok(());
        }
        let snapshots = self.catalog.history()?.snapshots()?;
        let holder = match snapshots.iter().find(|snapshot| snapshot.seq == held) {
            Some(snapshot) => format!("snapshot '{}'", snapshot.name),
            None => "a reader of the past".into(),
        };
        Err(Error::new(
            ErrorKind::Busy,
            format!(
                "{holder} keeps what lies at the end of the segments, or would when it is moved; \
                 end that first, or give \
                 a larger size"
            ),
        ))
    }

    /// What clones share behind the new ends, which is not moved (`SHARE-5`): where it ends, and
    /// how many blocks it has.
    fn find_shared_behind(&self, goal: u64) -> Result<(Floors, u64)> {
        let (mut floors, mut shared_blocks) = (Floors::new(), 0);
        if !self.catalog.space().has_shared()? {
            return Ok((floors, shared_blocks));
        }
        let (live, _) = self.catalog.survey().extent_totals()?;
        let (_, spare) = self.used_and_spare()?;
        let cuts = self.plan_cuts(goal.max(live + spare), &floors);
        self.for_each_behind(&cuts, &mut |row| {
            if row.shared_count > 0 {
                shared_blocks += row.extent.block_count;
                let floor = floors.entry(row.extent.segment).or_default();
                *floor = row.extent.end_block().max(*floor);
            }
            Ok(())
        })?;
        Ok((floors, shared_blocks))
    }

    /// The length of all segments together that is asked for, blocks.
    fn shrink_goal(&self, to_bytes: Option<u64>) -> Result<u64> {
        let (live, _) = self.catalog.survey().extent_totals()?;
        let least = live + live.div_ceil(HELD_BACK_DIVISOR - 1);
        match to_bytes.map(|bytes| bytes / BLOCK_BYTES) {
            Some(wanted) if wanted < least => Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "the content and what is held back take {} bytes; give at least that",
                    least * BLOCK_BYTES
                ),
            )),
            wanted => Ok(wanted.unwrap_or(least)),
        }
    }

    fn total_blocks(&self) -> u64 {
        self.segment_blocks().values().sum()
    }

    /// Which segments end where so that `goal` blocks are left, from the last one on; or more,
    /// where a floor is in the way.
    fn plan_cuts(&self, goal: u64, floors: &Floors) -> Vec<Cut> {
        let counts = self.segment_blocks();
        let mut surplus = counts.values().sum::<u64>().saturating_sub(goal);
        let mut cuts = Vec::new();
        for (segment, old_count) in counts.into_iter().rev() {
            let floor = floors.get(&segment).copied().unwrap_or_default();
            let cut = surplus.min(old_count.saturating_sub(floor));
            if cut > 0 {
                cuts.push(Cut {
                    segment,
                    old_count,
                    new_count: old_count - cut,
                });
            }
            if floor > 0 {
                break; // Segments before the last one are whole.
            }
            surplus -= cut;
        }
        cuts
    }

    /// Empties the ends and cuts them off; returns bytes moved.
    fn cut(&self, cuts: &[Cut], progress: &mut dyn FnMut(u64, u64)) -> Result<u64> {
        let mut moved = 0;
        for round in 0..ROUNDS_MAX {
            let _closed = self.close_ends(cuts)?;
            self.redo().apply_now()?; // What it copies is not placed there.
            let (moved_now, lacks_space) = self.empty_ends(cuts, progress)?;
            moved += moved_now;
            self.compaction().settle()?;
            if self.cut_if_empty(cuts)? {
                return Ok(moved);
            }
            if lacks_space && moved_now == 0 {
                return Err(Error::new(
                    ErrorKind::NoSpace,
                    "the content does not fit before the new end; give a larger size",
                ));
            }
            // What was moved has left room that is reclaimed by now.
            if round > 0 && !lacks_space {
                std::thread::sleep(PAUSE);
            }
        }
        Err(Error::new(
            ErrorKind::Busy,
            "other sessions keep using the end of a segment; try again when there is less to do",
        ))
    }

    fn close_ends<'e>(&'e self, cuts: &'e [Cut]) -> Result<Closed<'e>> {
        let _edit = self.edit()?;
        let closed = Closed { engine: self, cuts };
        for cut in cuts {
            if !cut.new_count.is_multiple_of(AG_BLOCKS) {
                self.space()
                    .require_ag(cut.segment, cut.new_count / AG_BLOCKS)?;
            }
            let outcome = self
                .free_space()
                .space
                .close_from(cut.segment, cut.new_count);
            outcome.map_err(|refused| {
                Error::with_source(
                    ErrorKind::NoSpace,
                    "what is free at the end cannot be spared now; give a larger size",
                    refused,
                )
            })?;
        }
        Ok(closed)
    }

    /// Moves the live extents that reach behind a new end; returns bytes moved, and whether some
    /// found no room.
    fn empty_ends(&self, cuts: &[Cut], progress: &mut dyn FnMut(u64, u64)) -> Result<(u64, bool)> {
        let total = self.live_bytes_behind(cuts)?;
        let limits = MoveLimits {
            blocks_max: u64::MAX,
            blocks_per_fragment: u64::MAX,
            fragments_max: u64::MAX,
            is_dry: false,
            should_stop: &|| self.check_running().is_err(),
        };
        let (mut moved, mut lacks_space) = (0, false);
        self.for_each_behind(cuts, &mut |row| {
            if row.retired_seq.is_some() || row.store == GRANTS {
                return Ok(());
            }
            let _edit = self.edit()?;
            let outcome = self.lookup().node(row.store, row.ino).and_then(|node| {
                let whole = self
                    .compaction()
                    .move_extent(&node, row.extent, None, &limits)?;
                match (whole, part_behind(row, cuts)) {
                    // Its own place before the new end is what the whole of it lacks.
                    (Moved::NoSpace { .. }, Some(part)) => {
                        self.compaction().move_extent(&node, part, None, &limits)
                    }
                    _ => Ok(whole),
                }
            });
            match outcome {
                Ok(Moved::Done { blocks, .. }) => moved += blocks * BLOCK_BYTES,
                Ok(Moved::NoSpace { .. }) => lacks_space = true,
                Ok(Moved::Shared) => return Err(shared_at_the_end(row.extent.block_count)),
                Ok(_) => {} // It is being changed: the next round sees where it lies then.
                Err(error) if error.kind() == ErrorKind::NotFound => {} // Just deleted.
                Err(error) if is_survivable(error.kind()) => {
                    let what = format!("{} cannot be moved: {error}", row.extent);
                    return Err(Error::with_source(error.kind(), what, error));
                }
                Err(error) => return Err(error),
            }
            progress(moved, total);
            Ok(())
        })?;
        Ok((moved, lacks_space))
    }

    /// The last step: cuts the segments if nothing refers to their ends; `false` if something does.
    /// A segment that another session has grown or shrunk ends the attempt too: the plan is made
    /// anew.
    fn cut_if_empty(&self, cuts: &[Cut]) -> Result<bool> {
        let _alone = self.alone()?;
        self.commits().commit_now()?;
        self.commits().commit_now()?;
        let mut is_used = false;
        self.for_each_behind(cuts, &mut |_| {
            is_used = true;
            Ok(())
        })?;
        let now = self.segment_blocks();
        let is_other = |cut: &Cut| now.get(&cut.segment) != Some(&cut.old_count);
        if cuts.iter().any(is_other) {
            return Ok(true);
        }
        if is_used {
            return Ok(false);
        }
        assert!(self.writer_lock.is_held(), "SHRINK-1");
        let counts = cuts.iter().map(|cut| (cut.segment, cut.new_count));
        lock(&self.group).segments.extend(counts);
        self.commits().commit_now()?;
        // The background may commit beside this: what its commit has allocated is in no row yet.
        let _no_commit = self.commit_lock.lock();
        for cut in cuts {
            self.segment(cut.segment)?.shrink(cut.new_count)?;
        }
        // Nothing is uncommitted: the free set begins anew, with nothing closed.
        self.space().reload_space()?;
        Ok(true)
    }

    fn live_bytes_behind(&self, cuts: &[Cut]) -> Result<u64> {
        let mut bytes = 0;
        self.for_each_behind(cuts, &mut |row| {
            if row.retired_seq.is_none() {
                bytes += row.extent.len_bytes();
            }
            Ok(())
        })?;
        Ok(bytes)
    }

    /// Calls `visit` with every extent row that reaches behind a new end.
    fn for_each_behind(
        &self,
        cuts: &[Cut],
        visit: &mut dyn FnMut(&ExtentRow) -> Result<()>,
    ) -> Result<()> {
        for cut in cuts {
            // An extent lies in one AG: none before this block reaches over the new end.
            let first = cut.new_count / AG_BLOCKS * AG_BLOCKS;
            let mut after = match (first, cut.segment.0) {
                (0, 0) => None,
                (0, segment) => Some((SegmentIndex(segment - 1), i64::MAX as u64)),
                _ => Some((cut.segment, first - 1)),
            };
            'rows: loop {
                let rows = self.catalog.space().extents(after, BATCH)?;
                let Some(last) = rows.last() else { break };
                after = Some((last.extent.segment, last.extent.start_block));
                for row in &rows {
                    if row.extent.segment != cut.segment {
                        break 'rows;
                    }
                    if row.extent.end_block() > cut.new_count {
                        visit(row)?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// Keeps growth ahead away until the writer lock is given back: it would take what was just
/// returned.
struct Shrinking<'e>(&'e Engine);

impl Shrinking<'_> {
    fn begin(engine: &Engine) -> Shrinking<'_> {
        engine.is_shrinking.store(true, Ordering::SeqCst);
        Shrinking(engine)
    }
}

impl Drop for Shrinking<'_> {
    fn drop(&mut self) {
        self.0.commits().unlock_writer();
        self.0.history.is_in_the_way.store(false, Ordering::SeqCst);
        self.0.is_shrinking.store(false, Ordering::SeqCst);
    }
}

fn shared_at_the_end(blocks: u64) -> Error {
    Error::new(
        ErrorKind::Busy,
        format!(
            "{} bytes that clones share lie at the end of the segments, and are not moved; remove \
             those clones, or copy \
             them ('larder cp -a'), or give a larger size",
            blocks * BLOCK_BYTES
        ),
    )
}

/// The part of an extent behind its segment's new end, if that is not all of it.
fn part_behind(row: &ExtentRow, cuts: &[Cut]) -> Option<Extent> {
    let extent = row.extent;
    let cut = cuts.iter().find(|cut| cut.segment == extent.segment)?;
    let skip = cut
        .new_count
        .checked_sub(extent.start_block)
        .filter(|&skip| skip > 0)?;
    Some(extent.slice(skip, extent.block_count - skip))
}

/// The ends are closed; they are opened again, unless they are gone.
struct Closed<'e> {
    engine: &'e Engine,
    cuts: &'e [Cut],
}

impl Drop for Closed<'_> {
    fn drop(&mut self) {
        let mut free = self.engine.free_space();
        for cut in self.cuts {
            if free.space.closed_from(cut.segment) != u64::MAX {
                free.space.reopen(cut.segment);
            }
        }
    }
}
