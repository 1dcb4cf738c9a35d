//! Space for content: the free set in memory, and reservations from it. `grow` makes segments
//! longer.
//!
//! # Invariants
//! * `RESERVE-1` The free set is the complement of the committed extent rows and of what the open
//!   group allocated. How much is free is known of each allocation group (AG) from `larder_ag`;
//!   where, is read from the rows when an allocation needs the AG. What another session committed
//!   is known before anything is allocated (`larder_ag` says where).
//! * `RESERVE-2` AGs are read only under the commit lock or with nothing uncommitted, so the rows
//!   read are those of the last commit that this session made known.
//! * `RESERVE-3` Blocks by which a segment has grown are in the free set only after somebody with
//!   the writer lock has looked how long the segment is. So it may grow without the writer lock,
//!   and nobody waits for zeros to be written who does not need them (`grow`).
//!
//! A reservation (`Reservation`) is taken before any lock of names or nodes, because making room
//! may need a commit.

use crate::engine::{EngineSpace, lock};
use crate::session::workspace::SEGMENT_BLOCKS;
use crate::space::FreeSpace;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{ChangeSet, CommitOutcome, RetentionHorizons};
use larder_space::format::{CommitSeq, Extent, SegmentIndex};
use larder_space::{AgSummary, Placement, Purpose, Reservation, Space, SpaceError, Target};
use std::sync::PoisonError;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Commits that may be needed until what was just deleted can be used again: the one that retires,
/// the one that reclaims, and one that was running already.
const RECLAIM_COMMITS_MAX: u32 = 3;
/// How often, and how long each time, a full database waits for other sessions' pins.
const PIN_WAITS_MAX: u32 = 40;
const PIN_WAIT: Duration = Duration::from_millis(25);

impl FreeSpace {
    /// Whether this session has changed something yet, and so knows the free set.
    pub fn is_loaded(&self) -> bool {
        self.synced.is_some()
    }

    /// Has the free set read anew before its next use.
    pub fn forget(&mut self) {
        self.synced = None;
    }
}

impl EngineSpace<'_> {
    /// Brings the free set up to date (`RESERVE-1`). Needs the writer lock.
    pub(crate) fn sync_space(&self) -> Result<()> {
        let synced = self.free_space().synced;
        match synced {
            None => self.reload_space(),
            Some(seq) if seq == self.known_seq() => Ok(()),
            Some(seq) => {
                self.segments().open_segments()?;
                if !self.free_space().is_loaded() {
                    return self.reload_space();
                }
                self.adopt_growth()?;
                let mut free = self.free_space();
                self.add_segments(&mut free.space)?;
                self.summarize(&mut free.space, seq)?;
                self.sharing().find_shares()?;
                free.synced = Some(self.known_seq());
                Ok(())
            }
        }
    }

    /// Learns anew how much of everything is free. O(AGs). Needs the writer lock, and nothing
    /// uncommitted.
    pub(crate) fn reload_space(&self) -> Result<()> {
        self.segments().open_segments()?;
        let mut space = Space::new();
        self.add_segments(&mut space)?;
        self.summarize(&mut space, CommitSeq(0))?;
        self.sharing().find_shares()?;
        self.adopt_growth()?;
        let mut free = self.free_space();
        free.space = space;
        free.synced = Some(self.known_seq());
        Ok(())
    }

    /// Takes over the summaries of AGs that changed since commit `seq`.
    fn summarize(&self, space: &mut Space, seq: CommitSeq) -> Result<()> {
        if self.session.workspace.is_some() {
            return self.workspace().summarize_grants(space);
        }
        space.set_granted(self.catalog.workspace()?.granted_blocks(None)?);
        for row in self.catalog.space().ags_changed_since(seq)? {
            let summary = AgSummary {
                used_blocks: row.used_blocks,
                quarantined_blocks: row.retired_blocks,
            };
            space
                .summarize_ag(row.segment, row.ag_index, summary)
                .map_err(corrupt)?;
        }
        Ok(())
    }

    /// Turns `blocks` of a reservation into extents ([`Space::allocate`]), and reads the AGs that
    /// this needs.
    pub(crate) fn allocate_extents(
        &self,
        reservation: &mut Reservation,
        blocks: u64,
        placement: Placement,
    ) -> Result<Vec<Extent>> {
        debug_assert!(self.commit_lock.is_held(), "RESERVE-2");
        let mut free = self.free_space();
        while let Some((segment, ag)) = free.space.find_wanted_ag(blocks, placement) {
            self.load_ag(&mut free.space, segment, ag)?;
        }
        Ok(free.space.allocate(reservation, blocks, placement))
    }

    /// Turns `blocks` of a reservation into one extent, by best fit; `None` when no hole is long
    /// enough.
    pub(crate) fn allocate_whole(
        &self,
        reservation: &mut Reservation,
        blocks: u64,
    ) -> Result<Option<Extent>> {
        self.allocate_whole_in(reservation, blocks, Target::Anywhere)
    }

    /// The same in a part of the segments.
    pub(crate) fn allocate_whole_in(
        &self,
        reservation: &mut Reservation,
        blocks: u64,
        target: Target,
    ) -> Result<Option<Extent>> {
        debug_assert!(self.commit_lock.is_held(), "RESERVE-2");
        if blocks == 0 {
            return Ok(None);
        }
        let mut free = self.free_space();
        while let Some((segment, ag)) = free.space.find_wanted_ag_for(blocks, target) {
            self.load_ag(&mut free.space, segment, ag)?;
        }
        Ok(free.space.allocate_whole(reservation, blocks, target))
    }

    /// Reads where an AG is free, unless that is known. The caller is a user of the writer lock.
    pub(crate) fn require_ag(&self, segment: SegmentIndex, ag: u64) -> Result<()> {
        let _no_commit = self.commit_lock.lock(); // RESERVE-2
        let mut free = self.free_space();
        match free.space.is_loaded(segment, ag) {
            true => Ok(()),
            false => self.load_ag(&mut free.space, segment, ag),
        }
    }

    /// Reads where an AG is free (`RESERVE-2`). O(extents in the AG), about 1 ms.
    pub(crate) fn load_ag(&self, space: &mut Space, segment: SegmentIndex, ag: u64) -> Result<()> {
        let rows = self.catalog.space().extents_in_ag(segment, ag)?;
        let held = rows.iter().map(|row| row.extent).collect();
        let extents = self.workspace().in_use(segment, ag, held);
        space.load_ag(segment, ag, &extents).map_err(corrupt)
    }

    /// A session that died may have grown a segment without committing that; the growth is good. Or
    /// it was about to shrink one: it stays as long as it is.
    fn adopt_growth(&self) -> Result<()> {
        if self.session.workspace.is_some() {
            return Ok(()); // It is the parent's.
        }
        let rows = self.catalog.space().segments()?;
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        for segment in segments.iter() {
            let committed = rows
                .iter()
                .find(|row| row.segment == segment.index())
                .map_or(0, |row| row.block_count);
            if segment.block_count() > committed {
                lock(&self.group)
                    .segments
                    .push((segment.index(), segment.block_count()));
            }
        }
        Ok(())
    }

    fn add_segments(&self, space: &mut Space) -> Result<()> {
        if self.session.workspace.is_some() {
            let known = space.capacity_blocks() / SEGMENT_BLOCKS;
            return self.workspace().add_full_segments(space, known as u32);
        }
        let segments = self.segments.read().unwrap_or_else(PoisonError::into_inner);
        for segment in segments.iter().filter(|segment| segment.block_count() > 0) {
            space.grow_segment(segment.index(), segment.block_count());
        }
        Ok(())
    }

    /// The free set is known through this process's own commit `seq`.
    pub(crate) fn publish_free_space(
        &self,
        set: &ChangeSet,
        outcome: &CommitOutcome,
        moved_away: Vec<Extent>,
    ) {
        let keeps_history = self.expiry().keeps_history();
        let has_moves = !lock(&self.group).allocated.is_empty();
        let mut free = self.free_space();
        self.sharing().quarantine_retired(&mut free, outcome);
        for extent in &outcome.reclaimed {
            free.space.release(*extent);
        }
        if !has_moves && free.taken_count == 0 {
            free.space.settle();
        }
        free.synced = Some(outcome.seq);
        let horizon = outcome
            .reclaim_horizon
            .as_ref()
            .map(RetentionHorizons::base);
        free.oldest_retired = free.oldest_retired.filter(|&seq| horizon < Some(seq));
        if !set.retired.is_empty() {
            free.oldest_retired.get_or_insert(outcome.seq);
        }
        free.moved_away.drain(..set.moved_away.len());
        if keeps_history {
            let moved = moved_away.into_iter().map(|place| (place, outcome.seq));
            free.moved_away.extend(moved);
        }
    }

    /// A reservation of `blocks` blocks. Makes room by growing a segment or by reclaiming what was
    /// deleted; [`ErrorKind::NoSpace`] only when neither helps. Needs the writer lock, and no lock.
    pub(crate) fn reserve(&self, blocks: u64, purpose: Purpose) -> Result<Reservation> {
        let purpose = self.workspace().purpose(purpose);
        let mut commits_left = RECLAIM_COMMITS_MAX;
        let mut waits_left = PIN_WAITS_MAX;
        let has_enough = || self.free_space().space.available_blocks(purpose) >= blocks;
        loop {
            let refused = match self.free_space().space.reserve(blocks, purpose) {
                Ok(reservation) => return Ok(reservation),
                Err(refused) => refused,
            };
            let expires_first = commits_left > 0 && self.expiry().is_history_large(); // TIME-7
            if expires_first && self.private.is_none() && self.expiry().expire_history(blocks)? {
                commits_left -= 1;
                self.expiry().commit_steps(has_enough)?;
                continue;
            }
            if self.segments().grow(blocks)? {
                continue;
            }
            self.expiry().expire_history(blocks)?;
            if self.private.is_some() {
                // PRIVATE-4: nothing is reclaimed while others wait for the writer lock.
                (commits_left, waits_left) = (0, 0);
                self.expiry().note_refused(blocks); // TIME-5
            }
            if commits_left > 0 && self.wants_reclaim()? {
                commits_left -= 1;
                self.expiry().commit_steps(has_enough)?;
                continue;
            }
            let has_orphans = self.may_have_orphans.load(Ordering::SeqCst);
            if waits_left > 0 && (has_orphans || self.expiry().awaits_pins()?) {
                // Other sessions need a tick to let go of what was just deleted.
                waits_left -= 1;
                std::thread::sleep(PIN_WAIT);
                self.expiry().commit_steps(has_enough)?;
                continue;
            }
            self.require_measured_host()?;
            return Err(Error::with_source(
                ErrorKind::NoSpace,
                self.retention().why_full()?,
                refused,
            ));
        }
    }

    /// Whether a commit could set space free: something waits for reclaim, or the open group may
    /// delete something.
    pub(crate) fn wants_reclaim(&self) -> Result<bool> {
        Ok(!lock(&self.group).is_empty()
            || self.may_have_orphans.load(Ordering::SeqCst)
            || self.free_space().space.quarantined_blocks() > 0
            || self
                .catalog
                .space()
                .has_retired(CommitSeq(i64::MAX as u64))?)
    }
}

pub(crate) fn corrupt(error: SpaceError) -> Error {
    Error::with_source(
        ErrorKind::Corrupt,
        "the extent rows contradict each other; run 'larder check'",
        error,
    )
}
