//! How much history may go: the horizon of reclaim, and giving history up when space is short.
//!
//! # Words
//! The *cut*: the commit up to which the retention lets history go. *Pressing*: moving the cut on because somebody
//! needs the space.
//!
//! # Invariants
//! * `TIME-1` Reclaim goes up to the oldest of: the pins (`SESSION-2`), the cut, what is held (snapshots and readers of the
//!   past). The catalog looks at what is held again, in the commit that reclaims (`HISTORY-3`).
//! * `TIME-2` Pressing gives up the oldest history first, never more than a pin or a hold allows, and at least
//!   [`PRESS_DIVISOR`]th part of the segments at a time.
//!
//! The cut moves in steps of a part of the retention, so that not every commit reclaims.

use crate::engine::{Engine, lock};
use crate::{Error, ErrorKind, Result};
use larder_catalog::SnapshotRow;
use larder_space::format::CommitSeq;
use std::sync::atomic::Ordering;

/// Steps of the cut in one retention.
const STEPS: i64 = 256;
/// But no step is shorter, nanoseconds.
const STEP_NS_MIN: i64 = 1_000_000_000;
/// Under pressure at least one part in this of the segments is given up at a time.
const PRESS_DIVISOR: u64 = 64;

/// Up to which commit what was superseded and retired may go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Horizon {
    /// Nobody who is alive can reach it.
    pub pinned: CommitSeq,
    /// Nor does history need it: beyond all commits where there is none.
    pub history: CommitSeq,
    /// Both.
    pub kept: CommitSeq,
}

/// The cut, remembered.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HistoryClock {
    /// Looked at, and when again, nanoseconds since 1970.
    looked: Option<(i64, i64)>,
    cut: CommitSeq,
    held: Option<CommitSeq>,
    /// Given up under pressure.
    pressed: CommitSeq,
    /// Pruned up to here.
    pruned: CommitSeq,
}

impl Engine {
    /// Whether the database keeps history.
    pub fn keeps_history(&self) -> bool {
        self.info.retention_ns > 0 && self.workspace.is_none()
    }

    /// Up to where reclaim may go now (`TIME-1`).
    pub(crate) fn horizon(&self) -> Result<Horizon> {
        let pinned = self.reclaim_horizon()?;
        let history = self.history_cut()?;
        Ok(Horizon {
            pinned,
            history,
            kept: pinned.min(history),
        })
    }

    fn history_cut(&self) -> Result<CommitSeq> {
        const NEVER: CommitSeq = CommitSeq(u64::MAX);
        if !self.keeps_history() {
            return Ok(NEVER);
        }
        let now_ns = self.now_ns();
        let mut clock = lock(&self.history);
        let is_fresh = clock
            .looked
            .is_some_and(|(at, next)| (at..next).contains(&now_ns));
        if !is_fresh {
            let found = self.catalog.history_horizon(now_ns)?;
            (clock.cut, clock.held) = (found.retained, found.held);
            let step = (self.info.retention_ns / STEPS).max(STEP_NS_MIN);
            clock.looked = Some((now_ns, now_ns.saturating_add(step)));
        }
        let given_up = match self.is_shrinking.load(Ordering::SeqCst) {
            // The end of the segments has to go.
            true => NEVER,
            false => clock.cut.max(clock.pressed),
        };
        Ok(clock.held.map_or(given_up, |held| held.min(given_up)))
    }

    /// Whether the cut has moved since history was pruned.
    pub(crate) fn is_prune_due(&self) -> Result<bool> {
        Ok(self.keeps_history() && self.history_cut()? > lock(&self.history).pruned)
    }

    /// History was pruned up to there. Not what was wished: who began to hold something in between lets go of it later,
    /// and then there is a prune to be made.
    pub(crate) fn note_pruned(&self, kept: CommitSeq) {
        let mut clock = lock(&self.history);
        clock.pruned = clock.pruned.max(kept);
    }

    /// What is held has changed: the clock looks again.
    pub(crate) fn look_at_held(&self) {
        lock(&self.history).looked = None;
    }

    /// Lets as much of the oldest history go as gives `blocks` blocks (`TIME-2`); the next commits reclaim it.
    pub(crate) fn press_history(&self, blocks: u64) -> Result<()> {
        if !self.keeps_history() || self.private.is_some() {
            return Ok(());
        }
        let least = self.lock_room().space.capacity_blocks() / PRESS_DIVISOR;
        let Some(found) = self.catalog.find_retired(blocks.max(least))? else {
            return Ok(());
        };
        // What is held may have changed since the clock looked.
        let held = self.catalog.history_horizon(self.now_ns())?.held;
        let mut clock = lock(&self.history);
        clock.held = held;
        if found > clock.pressed.max(clock.cut) {
            tracing::info!("space is short: history before commit {found} is given up");
            clock.pressed = found;
        }
        Ok(())
    }

    /// How much of `retired_bytes` history gives up when somebody needs it: nothing where something is held.
    pub(crate) fn spare_history_bytes(&self, retired_bytes: u64) -> Result<u64> {
        if !self.keeps_history() || self.catalog.history_horizon(self.now_ns())?.held.is_some() {
            return Ok(0);
        }
        Ok(retired_bytes)
    }

    // ---- snapshots --------------------------------------------------------------------------

    fn require_history(&self) -> Result<()> {
        match self.keeps_history() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::InvalidInput,
                "the database keeps no history (its retention is 0), so there is nothing to make snapshots of",
            )),
        }
    }

    /// Has what plain SQL changed by itself become a commit. Takes the turn only where there is such a change.
    pub(crate) fn sync_loose_changes(&self) -> Result<()> {
        let is_wanted = self.keeps_history()
            && !self.options.is_extension
            && self.catalog.has_loose_changes()?;
        if !is_wanted {
            return Ok(());
        }
        let _edit = self.edit()?;
        self.commit_loose_changes()
    }

    /// The same for who has the turn.
    fn commit_loose_changes(&self) -> Result<()> {
        self.commit_now()?; // It takes them in, if there is anything to commit.
        let _one_at_a_time = self.commit_lock.lock();
        self.settle_rows();
        if let Some(seq) = self.catalog.commit_loose_changes(self.now_ns())? {
            self.known_seq.store(seq.0, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Gives the present, all that ended before, a name. One row.
    pub fn create_snapshot(&self, name: &str) -> Result<SnapshotRow> {
        self.require_history()?;
        let _edit = self.edit()?;
        self.commit_loose_changes()?;
        Ok(self.catalog.create_snapshot(name, self.now_ns())?)
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        Ok(self.catalog.snapshots()?)
    }

    /// Ends a snapshot.
    pub fn destroy_snapshot(&self, name: &str) -> Result<()> {
        let _edit = self.edit()?;
        self.catalog.destroy_snapshot(name)?;
        self.look_at_held();
        Ok(())
    }

    /// Holds a snapshot under a tag.
    pub fn hold_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        let _edit = self.edit()?;
        Ok(self.catalog.hold_snapshot(name, tag)?)
    }

    /// Ends a hold.
    pub fn release_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        let _edit = self.edit()?;
        Ok(self.catalog.release_snapshot(name, tag)?)
    }
}
