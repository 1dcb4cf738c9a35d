//! How much history may go: the horizon of reclaim, and giving history up when space is short.
//!
//! # Words
//! The *retention horizon*: the commit up to which the retention lets history go. *Early expiry*:
//! moving the horizon on because somebody needs the space. The *pool*: free space that early expiry
//! keeps ahead, in a database that can grow no more.
//!
//! # Invariants
//! * `TIME-1` Reclaim goes up to the oldest of: the pins (`SESSION-2`), the retention horizon, what
//!   is held (snapshots and readers of the past). The catalog looks at what is held again, in the
//!   commit that reclaims (`HISTORY-3`).
//! * `TIME-2` Early expiry gives up the oldest history first, never more than a pin or a hold
//!   allows, and at least [`EXPIRY_DIVISOR`]th part of the segments at a time.
//! * `TIME-3` A session that has the writer lock knows the retention: it is changed with the writer
//!   lock, and read anew when the writer lock is taken after a foreign commit. The transactions of
//!   a session decide by what the session knows, which may be older by one look at foreign commits
//!   (20 ms; 1 s beside clients). What a commit keeps is decided by the catalog in any case.
//! * `TIME-4` Where the retention is guaranteed, nothing in it expires early.
//! * `TIME-5` A transaction that was refused room lets the next one find it; one that has left less
//!   than the pool makes it good when it has ended. Who only reads does neither, but after a
//!   refusal.
//!
//! * `TIME-7` A database without a capacity does not grow for history that takes more than what
//!   lives and [`GROWN_BLOCKS_MIN`]: the host has other uses for its space. (Guaranteed history,
//!   and what is held, it grows for.)
//!
//! * `TIME-9` History goes in steps: a commit deletes at most about 8,192 rows of each table (of a
//!   single commit too, but not of one that only stores with retentions of their own give up), and
//!   the log is copied after each step that leaves something. So however much goes, the log stays
//!   short, nobody waits for long, a close ends soon, and whoever comes after it, or after a crash,
//!   goes on by himself. *Guard*: the catalog limits each reclaim (`larder_catalog`, `steps`); who
//!   needs the space goes on ([`EngineExpiry::commit_steps`]), a close takes some steps and no more
//!   ([`EngineCommits::reclaim_some`]), others go on with their next commits, and a session that
//!   begins looks for what was left ([`EngineExpiry::note_left_steps`]).
//!
//! # Why there is a pool
//! Best fit keeps objects whole while the free space is many times an object. History would fill
//! all of it, and then every object would be placed in what was just given up. So it keeps out of a
//! [`POOL_DIVISOR`]th part.
//!
//! # Stores with retentions of their own
//! Each store has one (`larder_catalog::RetentionHorizons`); early expiry moves those of all
//! on to one commit, but those that are guaranteed (`TIME-8`, in `retention`).
//!
//! The horizon moves in steps of a part of the retention, so that not every commit reclaims.

use crate::engine::{Edit, EngineExpiry, EnginePast, lock};
use crate::history::Horizon;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{HistoryHorizon, Moment, RetentionHorizons, SnapshotRow};
use larder_space::Purpose;
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{CommitSeq, Extent};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Beyond all commits.
const NEVER: CommitSeq = CommitSeq(i64::MAX as u64);
/// Steps of the retention horizon in one retention.
const STEPS: i64 = 256;
/// But no step is shorter, nanoseconds.
const STEP_NS_MIN: i64 = 1_000_000_000;
/// Under pressure at least one part in this of the segments is given up at a time.
pub(crate) const EXPIRY_DIVISOR: u64 = 64;
/// The pool is one part in this of the segments.
const POOL_DIVISOR: u64 = 16;
/// A database without a capacity grows for so much history, whatever lives: 256 MiB.
pub(crate) const GROWN_BLOCKS_MIN: u64 = (256 << 20) / BLOCK_BYTES;

/// How long commits do not look whether another session has stopped reading what is to go. Less
/// than a prune waits between two of its own looks.
const PIN_PAUSE: Duration = Duration::from_millis(20);

impl EngineExpiry<'_> {
    /// Whether the database keeps history, of any store.
    pub fn keeps_history(&self) -> bool {
        self.retention().of_database().retention_ns > 0 && self.session.workspace.is_none()
    }

    /// Of what has expired early and is still there, nothing goes that is guaranteed now.
    pub(crate) fn forget_early_expiry(&self) {
        lock(&self.history.clock).expired_early = CommitSeq(0);
        self.look_anew();
    }

    /// What the clock knows may be old.
    pub(crate) fn look_anew(&self) {
        let mut clock = lock(&self.history.clock);
        (clock.looked, clock.pinned_until) = (None, None);
        clock.is_spent = false;
    }

    /// Another session may have ended what keeps history here. (What begins to is looked for by who
    /// reclaims.)
    pub(crate) fn learn_holds(&self) -> Result<()> {
        let known = lock(&self.history.clock).found.held;
        if known.is_some() && self.catalog.history()?.oldest_held()? != known {
            self.look_anew();
        }
        Ok(())
    }

    /// Up to where reclaim may go now (`TIME-1`).
    pub(crate) fn horizon(&self) -> Result<Horizon> {
        let pinned = self.sessions().reclaim_horizon()?;
        let history = self.retention_horizons()?;
        Ok(Horizon {
            pinned,
            kept: history.limit(pinned),
            history,
        })
    }

    fn retention_horizons(&self) -> Result<RetentionHorizons> {
        if !self.keeps_history() {
            return Ok(RetentionHorizons::even(NEVER));
        }
        let now_ns = self.now_ns();
        let mut clock = lock(&self.history.clock);
        let is_fresh = clock
            .looked
            .is_some_and(|(at, next)| (at..next).contains(&now_ns));
        if !is_fresh {
            let found = self.catalog.retention()?.history_horizon(now_ns)?;
            clock.is_spent = false;
            let step = (found.shortest_ns / STEPS).max(STEP_NS_MIN);
            clock.kept_blocks = self.count_kept(&found)?;
            clock.found = found;
            clock.looked = Some((now_ns, now_ns.saturating_add(step)));
        }
        Ok(match self.history.is_in_the_way.load(Ordering::SeqCst) {
            true => clock.found.cuts(NEVER), // But what is guaranteed.
            false => clock.given_up(),
        })
    }

    /// Finds out whether others have left steps (`TIME-9`): then the background goes on with them.
    pub(crate) fn note_left_steps(&self) -> Result<()> {
        let horizons = self.retention_horizons()?;
        let is_left = self.catalog.retention()?.has_retired_by(&horizons)?
            || self.catalog.retention()?.has_past_by(&horizons)?;
        self.history.is_left.store(is_left, Ordering::SeqCst);
        Ok(())
    }

    /// Whether the retention horizon has moved since history was pruned.
    pub(crate) fn is_prune_due(&self) -> Result<bool> {
        if !self.keeps_history() {
            return Ok(false);
        }
        let horizons = self.retention_horizons()?;
        Ok(horizons.passes(&lock(&self.history.clock).pruned))
    }

    /// History was pruned up to there. Not what was wished: who began to hold something in between
    /// lets go of it later, and then there is a prune to be made.
    pub(crate) fn note_pruned(&self, kept: &RetentionHorizons) {
        let mut clock = lock(&self.history.clock);
        if kept.passes(&clock.pruned) {
            clock.pruned = clock.pruned.raise(kept);
            clock.is_spent = false;
        }
    }

    /// Commits the open group, and the steps that follow (`TIME-9`), until `is_enough`, or none is
    /// left.
    pub(crate) fn commit_steps(&self, is_enough: impl Fn() -> bool) -> Result<()> {
        loop {
            self.commits().commit_now()?;
            if !self.history.has_more() || is_enough() {
                return Ok(());
            }
        }
    }

    /// Whether another session was found, just now, to keep what is to go: to ask again costs a
    /// look at all of them.
    pub(crate) fn is_known_pinned(&self) -> bool {
        let until = lock(&self.history.clock).pinned_until;
        until.is_some_and(|until| Instant::now() < until)
    }

    /// Up to where reclaim may go was found out. Says whether history up to there has gone before.
    pub(crate) fn note_horizon(&self, horizon: &Horizon) -> bool {
        let mut clock = lock(&self.history.clock);
        let is_pinned =
            horizon.history.passes(&horizon.kept) && !horizon.kept.passes(&clock.pruned);
        clock.pinned_until = is_pinned.then(|| Instant::now() + PIN_PAUSE);
        is_pinned
    }

    /// Lets as much of the oldest history go as gives `blocks` blocks (`TIME-2`); the next commits
    /// reclaim it. Says whether anything goes that was kept. O(rows that go).
    pub(crate) fn expire_history(&self, blocks: u64) -> Result<bool> {
        let may_expire = self.keeps_history() && self.private.is_none();
        if !may_expire {
            return Ok(false);
        }
        // What is held may have changed since the clock looked.
        let horizon = self.catalog.retention()?.history_horizon(self.now_ns())?;
        let least = self.free_space().space.capacity_blocks() / EXPIRY_DIVISOR;
        let found = match horizon.is_all_guaranteed() {
            true => None, // TIME-4
            false => self
                .catalog
                .retention()?
                .find_retired(blocks.max(least), &horizon)?,
        };
        let mut clock = lock(&self.history.clock);
        clock.found = horizon;
        let Some(found) = found else {
            clock.is_spent = true;
            return Ok(false);
        };
        let before = clock.given_up();
        clock.expired_early = clock.expired_early.max(found);
        clock.pinned_until = None;
        let is_more = clock.given_up().passes(&before);
        clock.is_spent = !is_more;
        if is_more {
            tracing::debug!("space is short: history before commit {found} is given up");
        }
        Ok(is_more)
    }

    /// Whether early expiry has come to a commit.
    pub(crate) fn has_given_up(&self, seq: CommitSeq) -> bool {
        lock(&self.history.clock).expired_early >= seq
    }

    /// Lets history go that has come into the pool. The caller has the writer lock. A look at some
    /// counts, unless the pool is short.
    pub(crate) fn expire_ahead(&self) -> Result<()> {
        if !self.keeps_history() || lock(&self.history.clock).is_spent {
            return Ok(());
        }
        match self.find_short_pool() {
            0 => Ok(()),
            missing => self.expire_history(missing).map(drop),
        }
    }

    /// Blocks that the pool lacks and history may have.
    fn find_short_pool(&self) -> u64 {
        let can_grow = self.can_grow();
        let free = self.free_space();
        let space = &free.space;
        if !free.is_loaded() || can_grow || space.quarantined_blocks() == 0 {
            return 0;
        }
        (space.capacity_blocks() / POOL_DIVISOR)
            .saturating_sub(space.available_blocks(Purpose::Ordinary))
    }

    /// Whether the segments grow before history is given up, as far as the database has a say in
    /// it.
    pub(crate) fn can_grow(&self) -> bool {
        let blocks = self.free_space().space.capacity_blocks();
        self.segments()
            .capacity_blocks()
            .is_none_or(|max| blocks < max)
            && !self.is_history_large()
    }

    /// Whether history goes before the segments grow (`TIME-7`).
    pub(crate) fn is_history_large(&self) -> bool {
        let Some((retired, most)) = self.large_history() else {
            return false;
        };
        if self.is_history_spare() {
            return true;
        }
        // What was retired since the last look may be kept as well: then early expiry says so,
        // once.
        let clock = lock(&self.history.clock);
        let is_partly_spare = !clock.is_spent && !clock.found.is_all_guaranteed();
        is_partly_spare && retired.saturating_sub(clock.kept_blocks) > most
    }

    /// Blocks that are retired, and how many of them a database without a capacity grows for;
    /// `None` where these are not more, or there is a capacity.
    fn large_history(&self) -> Option<(u64, u64)> {
        if self.segments().capacity_blocks().is_some() || !self.keeps_history() {
            return None;
        }
        let space = &self.free_space().space;
        let retired = space.quarantined_blocks();
        let most = space.allocated_blocks() + GROWN_BLOCKS_MIN;
        (retired > most).then_some((retired, most))
    }

    /// Blocks of the retired that are guaranteed or held, where only some are and they are so many
    /// that it matters. O(retired rows).
    fn count_kept(&self, found: &HistoryHorizon) -> Result<u64> {
        let is_partly_spare = !found.is_spare() && !found.is_all_guaranteed();
        match self.large_history().filter(|_| is_partly_spare) {
            None => Ok(0),
            Some((retired, _)) => {
                Ok(retired.saturating_sub(self.catalog.retention()?.spare_blocks(found)?))
            }
        }
    }

    /// Places that content was moved away from and nobody reads any more, up to a commit
    /// (`HISTORY-5`).
    pub(crate) fn moved_away_until(&self, pinned: CommitSeq) -> Vec<(Extent, CommitSeq)> {
        let free = self.free_space();
        let moved = free.moved_away.iter();
        moved
            .take_while(|(_, seq)| *seq <= pinned)
            .copied()
            .collect()
    }

    /// Whether this session, which knows the free set or has a step before it, may find something
    /// to reclaim.
    pub(crate) fn is_reclaim_due(&self) -> Result<bool> {
        let (is_known, has_moved, has_quarantine) = {
            let free = self.free_space();
            (
                free.is_loaded(),
                !free.moved_away.is_empty(),
                free.space.quarantined_blocks() > 0,
            )
        };
        Ok(match self.keeps_history() {
            _ if self.history.has_more() || self.history.is_left.load(Ordering::SeqCst) => true,
            // Most of what is retired is history.
            true => is_known && (has_moved || self.is_prune_due()?),
            false => has_quarantine,
        })
    }

    /// Whether something is retired that nothing but reads under way keeps.
    pub(crate) fn awaits_pins(&self) -> Result<bool> {
        if !self.keeps_history() {
            return Ok(self.free_space().space.quarantined_blocks() > 0);
        }
        let horizons = self.retention_horizons()?;
        let has_moved = !self.free_space().moved_away.is_empty();
        Ok(has_moved || self.catalog.retention()?.has_retired_by(&horizons)?)
    }

    /// Blocks that a commit or two set free: what was moved away from, and without history all that
    /// was retired.
    pub(crate) fn settling_blocks(&self) -> u64 {
        if !self.keeps_history() {
            return self.free_space().space.quarantined_blocks();
        }
        let open: u64 = lock(&self.group)
            .moved_away
            .iter()
            .map(|place| place.block_count)
            .sum();
        let free = self.free_space();
        let committed: u64 = free
            .moved_away
            .iter()
            .map(|(place, _)| place.block_count)
            .sum();
        open + committed
    }

    /// Whether history fills space that anybody may have who needs it, as far as is known.
    pub(crate) fn is_history_spare(&self) -> bool {
        self.keeps_history()
            && !self.retention().of_database().is_guaranteed
            && lock(&self.history.clock).found.is_spare()
    }

    /// Lets history go up to a commit, on somebody's word.
    pub(crate) fn give_up_until(&self, seq: CommitSeq) {
        let mut clock = lock(&self.history.clock);
        clock.expired_early = clock.expired_early.max(seq);
        (clock.looked, clock.pinned_until) = (None, None);
    }

    // ---- for transactions (TIME-5) ----------------------------------------------------------

    /// A transaction was refused so many blocks.
    pub(crate) fn note_refused(&self, blocks: u64) {
        if let Some(private) = &self.private {
            let missed = &private.host.history.missed_blocks;
            missed.fetch_max(blocks, Ordering::SeqCst);
        }
    }

    /// What transactions were refused since this was asked last.
    pub(crate) fn take_missed(&self) -> u64 {
        self.history.missed_blocks.swap(0, Ordering::SeqCst)
    }

    /// A transaction commits; its engine has seen what it leaves free.
    pub(crate) fn note_short_pool(&self) {
        let missing = self.find_short_pool();
        if let Some(private) = &self.private
            && missing > 0
            && self.keeps_history()
        {
            let short = &private.host.history.short_blocks;
            short.fetch_max(missing, Ordering::SeqCst);
        }
    }

    /// How often room was made for transactions.
    pub fn early_expiries(&self) -> u64 {
        self.history.early_expiries.load(Ordering::SeqCst)
    }

    /// Makes the room that transactions were refused, unless nothing helps; with `is_writer` also
    /// what they have left the pool short of. Not while another has the writer lock, who may be a
    /// transaction of the caller's.
    pub fn expire_early_if_missed(&self, is_writer: bool) -> Result<()> {
        let history = &self.history;
        let is_missed = history.missed_blocks.load(Ordering::SeqCst) > 0
            || is_writer && history.short_blocks.load(Ordering::SeqCst) > 0;
        if !is_missed || !self.keeps_history() || self.private.is_some() {
            return Ok(());
        }
        if lock(&history.clock).is_spent {
            return Ok(());
        }
        let Ok(_one_at_a_time) = history.expiring_early.try_lock() else {
            return Ok(());
        };
        self.check_running()?;
        if !self
            .writer_lock
            .try_begin(|| self.sessions().refresh_locked())?
        {
            return Ok(());
        }
        let _edit = Edit { engine: self };
        self.expire_early(0).map(drop)
    }

    /// Makes the room that a transaction was refused which began when it had been made `since`
    /// times ([`EngineExpiry::early_expiries`]), and so many `doublings` of it; waits for the
    /// writer lock. Whether it has a reason to try again: there is more room than before, or
    /// somebody else has made some meanwhile.
    pub fn expire_early_again(&self, doublings: u32, since: u64) -> Result<bool> {
        if !self.keeps_history() || self.private.is_some() {
            return Ok(false);
        }
        let _one_at_a_time = lock(&self.history.expiring_early);
        let _edit = self.edit()?;
        let is_more = self.expire_early(doublings)?;
        Ok(is_more || self.early_expiries() != since)
    }

    /// With the writer lock.
    fn expire_early(&self, doublings: u32) -> Result<bool> {
        let short = self.history.short_blocks.swap(0, Ordering::SeqCst);
        let missed = self.take_missed().max(short);
        let (before, least) = {
            let space = &self.free_space().space;
            (
                space.available_blocks(Purpose::Ordinary),
                space.capacity_blocks() / EXPIRY_DIVISOR,
            )
        };
        let goal = before + (missed.max(least) << doublings.min(16));
        let mut available = before;
        while available < goal && self.expire_history(goal - available)? {
            let available_blocks = || self.free_space().space.available_blocks(Purpose::Ordinary);
            self.commit_steps(|| available_blocks() >= goal)?;
            let now = available_blocks();
            if now <= available {
                break; // It is pinned; the rest would be given up in vain.
            }
            available = now;
        }
        if available > before {
            self.history.early_expiries.fetch_add(1, Ordering::SeqCst);
        }
        Ok(available > before)
    }
}

impl EnginePast<'_> {
    pub(crate) fn require_history(&self) -> Result<()> {
        self.retention().learn_retention()?;
        match self.expiry().keeps_history() {
            true => Ok(()),
            false => Err(Error::new(
                ErrorKind::InvalidInput,
                "the database keeps no history (its retention is 0); 'larder retention DB 1h' \
                 begins one",
            )),
        }
    }

    /// Has what plain SQL changed by itself become a commit. Takes the writer lock only where there
    /// is such a change.
    pub(crate) fn sync_unsequenced_changes(&self) -> Result<()> {
        let is_wanted = self.expiry().keeps_history()
            && !self.session.options.is_extension
            && !self.is_readonly()
            && self.catalog.temporal()?.has_unsequenced_changes()?;
        if !is_wanted {
            return Ok(());
        }
        let _edit = self.edit()?;
        self.commit_unsequenced_changes()
    }

    /// The same for who has the writer lock.
    fn commit_unsequenced_changes(&self) -> Result<()> {
        self.commits().commit_now()?; // It takes them in, if there is anything to commit.
        let _one_at_a_time = self.commit_lock.lock();
        self.history().settle_rows();
        if let Some(seq) = self
            .catalog
            .temporal()?
            .commit_unsequenced_changes(self.now_ns())?
        {
            self.known_seq.store(seq.0, Ordering::SeqCst);
        }
        Ok(())
    }

    /// Gives the present, all that ended before, a name. One row; where no history is kept it
    /// begins, for snapshots alone.
    pub fn create_snapshot(&self, name: &str) -> Result<SnapshotRow> {
        self.retention().keep_for_snapshots()?;
        let _edit = self.edit()?;
        self.commit_unsequenced_changes()?;
        Ok(self
            .catalog
            .history()?
            .create_snapshot(name, self.now_ns())?)
    }

    /// The same for an older moment, which the history still has.
    pub fn snapshot_moment(&self, name: &str, moment: &Moment) -> Result<SnapshotRow> {
        self.require_history()?;
        let _edit = self.edit()?;
        self.commit_unsequenced_changes()?;
        let now_ns = self.now_ns();
        Ok(self
            .catalog
            .history()?
            .snapshot_moment(name, moment, now_ns)?)
    }

    /// Ends a snapshot.
    pub fn destroy_snapshot(&self, name: &str) -> Result<()> {
        {
            let _edit = self.edit()?;
            self.catalog.history()?.destroy_snapshot(name)?;
            self.expiry().look_anew();
        }
        self.retention().end_kept_in_vain()
    }

    /// Holds a snapshot under a tag.
    pub fn hold_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        let _edit = self.edit()?;
        Ok(self.catalog.history()?.hold_snapshot(name, tag)?)
    }

    /// Ends a hold.
    pub fn release_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        let _edit = self.edit()?;
        Ok(self.catalog.history()?.release_snapshot(name, tag)?)
    }
}

#[cfg(test)]
mod tests;
