//! Segments become longer: ahead of those who write, for a grant, or when a reservation finds no
//! room.
//!
//! To write zeros takes seconds (docs/decisions/0005-growth-by-zero-writing.md), and who has the
//! writer lock, or is one of its users, keeps every other session waiting that long. So whoever can
//! do it without the writer lock does, and takes over what was gained afterwards (`RESERVE-3`):
//!
//! ```text
//!  ahead, grant: zeros, superblock (SEGMENT-2) ─writer lock─▶ free set, group ─commit─▶ counted
//!  reservation:  writer lock ─▶ zeros, superblock ─▶ free set, group ─commit─▶ counted
//! ```
//!
//! It counts when the catalog says so.
//!
//! # Recovery
//! What was grown and not counted is counted in by the next session that has the writer lock
//! (`adopt_growth`).

use crate::Result;
use crate::engine::{Engine, EngineSegments, lock};
use crate::history::retention::horizon::GROWN_BLOCKS_MIN;
use crate::space::compact::give_back;
use crate::space::host_reserve::RESERVE_LOG_BYTES;
use larder_segment::{Segment, SegmentError, leave_binding};
use larder_space::format::limits::{AG_BLOCKS, BLOCK_BYTES, HELD_BACK_DIVISOR};
use larder_space::format::{CommitSeq, Extent, SegmentIndex};
use larder_space::{Placement, Purpose, Reservation, Target};
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};

/// Segments grow by a quarter, at least 64 MiB and at most 1 GiB at a time.
const GROW_BLOCKS_MIN: u64 = (64 << 20) / BLOCK_BYTES;
const GROW_BLOCKS_MAX: u64 = (1 << 30) / BLOCK_BYTES;
/// Bytes that growing leaves to the catalog on the host's filesystem, with those that its log has
/// already taken; ...
const HOST_MARGIN_BYTES: u64 = 64 << 20;
/// ... of a small one no more than this part.
const HOST_MARGIN_DIVISOR: u64 = 8;

/// A growth that the capacity and the host allow.
struct Plan {
    /// The last segment; `None`: it is as long as segments get, or there is none.
    segment: Option<Arc<Segment>>,
    /// How many segments there are.
    segment_count: u32,
    step_blocks: u64,
    /// What the host has, and what the segments have taken of it, bytes.
    begun_at: (u64, u64),
}

/// Blocks that the end of a segment has gained: `from` and on, below `to`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Gained {
    segment: SegmentIndex,
    from: u64,
    to: u64,
}

impl Gained {
    /// How many.
    pub fn blocks(&self) -> u64 {
        self.to - self.from
    }
}

/// How many blocks growth ahead keeps available where so many are not granted to long transactions.
pub(crate) fn kept_ahead(own_blocks: u64) -> u64 {
    (own_blocks / 4).clamp(GROW_BLOCKS_MIN, GROW_BLOCKS_MAX) / 2
}

impl EngineSegments<'_> {
    /// Opens the segments that the catalog names and that are not open yet; lets the others learn
    /// how long another session has made them. With the writer lock that is the truth.
    pub(crate) fn open_segments(&self) -> Result<()> {
        if self.look_at_segments()? {
            // Blocks are gone: the free set is read anew before it is used (RESERVE-1).
            self.free_space().forget();
        }
        Ok(())
    }

    /// Bytes that content may take at most.
    pub(crate) fn capacity_blocks(&self) -> Option<u64> {
        (self.session.info.capacity_bytes > 0)
            .then_some(self.session.info.capacity_bytes / BLOCK_BYTES)
    }

    /// Preallocates more of a segment; `false` when the capacity or the host allows no more. Needs
    /// the writer lock.
    pub(crate) fn grow(&self, wanted_blocks: u64) -> Result<bool> {
        let _one_at_a_time = lock(&self.growth.one_at_a_time);
        if self.session.workspace.is_some() {
            let free = self
                .free_space()
                .space
                .available_blocks(Purpose::Privileged);
            return Ok(free >= wanted_blocks || self.workspace().ask_for_blocks(wanted_blocks)?);
        }
        self.take_over_growth();
        let available = self.free_space().space.available_blocks(Purpose::Ordinary);
        if available >= wanted_blocks {
            return Ok(true);
        }
        let Some(plan) = self.plan_growth(available, wanted_blocks)? else {
            return Ok(false);
        };
        let segment = match &plan.segment {
            // It is being emptied; what it gained would be closed too.
            Some(last) if self.is_closed_at_end(last.index()) => return Ok(false),
            Some(segment) => segment.clone(),
            None => self.create_segment(SegmentIndex(plan.segment_count))?,
        };
        let Some(block_count) = self.write_growth(&plan, &segment)? else {
            return Ok(false);
        };
        lock(&self.group)
            .segments
            .push((segment.index(), block_count));
        self.free_space()
            .space
            .grow_segment(segment.index(), block_count);
        Ok(true)
    }

    /// The same without the writer lock, of the last segment. `false` when that is not to be had:
    /// [`EngineSegments::grow`] finds out more.
    fn grow_unlocked(&self, wanted_blocks: u64) -> Result<bool> {
        let _one_at_a_time = lock(&self.growth.one_at_a_time);
        let available = self.free_space().space.available_blocks(Purpose::Ordinary);
        if available >= wanted_blocks {
            return Ok(true);
        }
        let Some(plan) = self.plan_growth(available, wanted_blocks)? else {
            return Ok(false);
        };
        let Some(segment) = &plan.segment else {
            return Ok(false); // Only who has the writer lock makes one.
        };
        if self.is_closed_at_end(segment.index()) {
            return Ok(false);
        }
        let Some(block_count) = self.write_growth(&plan, segment)? else {
            return Ok(false);
        };
        *lock(&self.growth.ahead) = Some((segment.index(), block_count));
        Ok(true)
    }

    /// Takes over what was grown without the writer lock (`RESERVE-3`). Needs the writer lock.
    fn take_over_growth(&self) {
        debug_assert!(self.writer_lock.is_held(), "RESERVE-3");
        let Some((index, block_count)) = lock(&self.growth.ahead).take() else {
            return;
        };
        // Where the writer lock was away, others may have cut it again, and its length was looked
        // at since.
        let found = self.segment(index).map(|segment| segment.block_count());
        if !found.is_ok_and(|found| found == block_count) || self.is_closed_at_end(index) {
            return;
        }
        self.free_space().space.grow_segment(index, block_count);
        lock(&self.group).segments.push((index, block_count));
    }

    fn is_closed_at_end(&self, index: SegmentIndex) -> bool {
        self.free_space().space.closed_from(index) != u64::MAX
    }

    /// What growth makes `wanted_blocks` available where `available` are; `None`: none does.
    fn plan_growth(&self, available: u64, wanted_blocks: u64) -> Result<Option<Plan>> {
        let segments = self
            .segments
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .clone();
        let total: u64 = segments.iter().map(|segment| segment.block_count()).sum();
        let step = (total.saturating_sub(self.free_space().space.granted_blocks()) / 4)
            .clamp(GROW_BLOCKS_MIN, GROW_BLOCKS_MAX)
            .max(wanted_blocks + wanted_blocks / 16);
        let left_blocks = match self.capacity_blocks() {
            Some(capacity) => capacity.saturating_sub(total),
            None => u64::MAX,
        };
        let host = self.space().host_bytes()?;
        let margin = self.host_margin_bytes()?;
        let possible = left_blocks.min(host.saturating_sub(margin) / BLOCK_BYTES);
        if possible == 0 || available.saturating_add(possible) < wanted_blocks {
            return Ok(None);
        }
        let last = segments.last().cloned();
        Ok(Some(Plan {
            segment: last.filter(|segment| segment.block_count() < self.segment_blocks_max()),
            segment_count: segments.len() as u32,
            step_blocks: step.min(possible),
            begun_at: (host, total * BLOCK_BYTES),
        }))
    }

    fn segment_blocks_max(&self) -> u64 {
        self.session.options.segment_bytes_max / BLOCK_BYTES
    }

    /// Writes the zeros of a growth; how long the segment is then, or `None` when the host is full.
    fn write_growth(&self, plan: &Plan, segment: &Segment) -> Result<Option<u64>> {
        let wanted = segment.block_count() + plan.step_blocks;
        let block_count = wanted.min(self.segment_blocks_max());
        *lock(&self.growth.begun_at) = Some(plan.begun_at);
        let grown = segment.grow(block_count);
        *lock(&self.growth.begun_at) = None;
        match grown {
            Ok(block_count) => Ok(Some(block_count)),
            Err(SegmentError::NoSpace { .. }) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// Bytes that growing leaves on the host's filesystem. The log comes and goes: what it takes is
    /// the catalog's share, not the segments', or a database would be smaller while its log is
    /// long. But not the reserve (`HOST-1`), nor what a log takes that was just copied.
    pub(crate) fn host_margin_bytes(&self) -> Result<u64> {
        let (log, part) = (self.report().log_bytes(), self.catalog_share_bytes()?);
        let kept = self.space().host_reserve_bytes()? + RESERVE_LOG_BYTES.saturating_sub(log);
        Ok(kept.max(part.saturating_sub(log)))
    }

    /// The catalog's share of the host, bytes. No more small overwrites wait in its log, however
    /// small the host (`REDO-5`).
    pub(crate) fn catalog_share_bytes(&self) -> Result<u64> {
        Ok(HOST_MARGIN_BYTES.min(self.space().host_size_bytes()? / HOST_MARGIN_DIVISOR))
    }

    fn create_segment(&self, index: SegmentIndex) -> Result<Arc<Segment>> {
        let device = match self.session.storage.create_segment(index) {
            // A session that died before its commit may have left it; the catalog names it not.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => {
                self.session.storage.open_segment(index)
            }
            created => created,
        }
        .map_err(|error| crate::error::io_error(format!("cannot create segment {index}"), error))?;
        let segment = Arc::new(Segment::create(
            device,
            self.session.info.database_id,
            index,
            self.now_ns(),
        )?);
        self.segments
            .write()
            .unwrap_or_else(PoisonError::into_inner)
            .push(segment.clone());
        Ok(segment)
    }

    // ---- for a grant --------------------------------------------------------------------------

    /// Before a grant of `blocks`: makes the last segment longer, without the writer lock, unless
    /// there is that much beside what others should find. All that is gained is for the grant, so
    /// that no small hole between grants attracts what others write (`SPACE-8`): a long
    /// transaction's blocks lie at the end, where they can be cut off again. `None`: nothing was
    /// gained.
    pub(crate) fn grow_for_grant(&self, blocks: u64) -> Result<Option<Gained>> {
        let _one_at_a_time = lock(&self.growth.one_at_a_time);
        self.open_segments()?;
        let total: u64 = self.segment_blocks().values().sum();
        let (mut used, mut retired) = (0, 0);
        for ag in self.catalog.space().ags_changed_since(CommitSeq(0))? {
            used += ag.used_blocks;
            retired += ag.retired_blocks;
        }
        // What is used is live or retired.
        let own = total.saturating_sub(self.catalog.workspace()?.granted_blocks(None)?);
        let available = total
            .saturating_sub(used)
            .saturating_sub(own / HELD_BACK_DIVISOR);
        // Where history fills the segments it gives way first (TIME-7): that takes the writer lock.
        if available >= blocks + kept_ahead(own) || retired > used - retired + GROWN_BLOCKS_MIN {
            return Ok(None);
        }
        // Not the last that the capacity allows: others need some of it, and what is held back.
        let needed = blocks + blocks.div_ceil(HELD_BACK_DIVISOR - 1);
        let Some(mut plan) = self.plan_growth(0, needed)? else {
            return Ok(None); // Whoever has the writer lock finds what there is.
        };
        plan.step_blocks = plan.step_blocks.min(blocks);
        let Some(segment) = &plan.segment else {
            return Ok(None);
        };
        let from = segment.block_count();
        let to = self.write_growth(&plan, segment)?.unwrap_or(from);
        Ok((to > from).then_some(Gained {
            segment: segment.index(),
            from,
            to,
        }))
    }

    /// Turns `blocks` of a reservation into extents for a grant: of what was gained for it, as far
    /// as it is free. Uses the reservation up; where it fails all of it is given back.
    pub(crate) fn allocate_for_grant(
        &self,
        mut reservation: Reservation,
        blocks: u64,
        gained: Option<Gained>,
    ) -> Result<Vec<Extent>> {
        let mut extents = Vec::new();
        let taken = self.take_for_grant(&mut reservation, blocks, gained, &mut extents);
        let mut free = self.free_space();
        free.space.forfeit(reservation);
        match taken {
            Ok(()) => Ok(extents),
            Err(error) => {
                give_back(&mut free.space, &extents);
                Err(error)
            }
        }
    }

    fn take_for_grant(
        &self,
        reservation: &mut Reservation,
        blocks: u64,
        gained: Option<Gained>,
        extents: &mut Vec<Extent>,
    ) -> Result<()> {
        let mut left = blocks;
        if let Some(gained) = gained {
            let mut at = gained.from;
            let to = gained.to.min(gained.from + blocks);
            while at < to {
                let end = ((at / AG_BLOCKS + 1) * AG_BLOCKS).min(to);
                let target = Target::At(gained.segment, at);
                // It may be cut off again by now, or somebody else was faster.
                let is_there = self
                    .segment(gained.segment)
                    .is_ok_and(|segment| segment.block_count() >= gained.to);
                if is_there
                    && let Some(extent) =
                        self.space()
                            .allocate_whole_in(reservation, end - at, target)?
                {
                    left -= extent.block_count;
                    extents.push(extent);
                }
                at = end;
            }
        }
        if left > 0 {
            extents.extend(
                self.space()
                    .allocate_extents(reservation, left, Placement::Known)?,
            );
        }
        Ok(())
    }
}

/// Grows in the background before writers have to wait for it. Meanwhile the writer lock can go
/// to others.
pub(crate) fn grow_ahead(engine: &Arc<Engine>) {
    let is_busy =
        engine.is_growing.load(Ordering::SeqCst) || engine.is_shrinking.load(Ordering::SeqCst);
    if is_busy || !engine.writer_lock.is_held() || engine.session.workspace.is_some() {
        return;
    }
    let (available, capacity, own) = {
        let space = &engine.free_space().space;
        (
            space.available_blocks(Purpose::Ordinary),
            space.capacity_blocks(),
            space.own_blocks(),
        )
    };
    let wanted = kept_ahead(own);
    let is_full = engine
        .segments()
        .capacity_blocks()
        .is_some_and(|max| capacity >= max);
    if available >= wanted || is_full || engine.expiry().is_history_large() {
        return;
    }
    engine.is_growing.store(true, Ordering::SeqCst);
    let beside = engine.clone();
    let spawned = std::thread::Builder::new()
        .name("larder-grow".into())
        .spawn(move || {
            leave_binding();
            let grown = beside.segments().grow_unlocked(wanted);
            let outcome = grown.and_then(|is_grown| {
                let _edit = beside.edit()?;
                match is_grown {
                    true => beside.segments().take_over_growth(),
                    false => drop(beside.segments().grow(wanted)?),
                }
                Ok(())
            });
            beside.is_growing.store(false, Ordering::SeqCst);
            // The end of the session is no failure of this.
            let is_over =
                beside.is_closed.load(Ordering::SeqCst) || beside.check_running().is_err();
            if let Err(error) = outcome
                && !is_over
            {
                tracing::warn!("growing ahead: {error}");
            }
        });
    if let Err(error) = spawned {
        engine.is_growing.store(false, Ordering::SeqCst);
        tracing::warn!(
            "cannot start a thread to grow ahead: {error}; writers grow segments themselves"
        );
    }
}
