//! The group commit: freeze → flush contents → sync devices → commit the catalog → publish.
//!
//! # Words
//! The *open group* takes changes; *freezing* closes it and opens the next one, in an instant in
//! which no change is under way. Groups are committed one after the other, each as a whole.
//!
//! ```text
//!  open ──freeze (barrier closed)──▶ frozen ──write─▶ written ──flush─▶ synced ──catalog─▶ durable
//!                                    any error from here on: the engine stops (COMMIT-4)
//! ```
//!
//! # Invariants
//! * `COMMIT-1` A group holds every change that ended before the freeze and none that began after:
//!   groups are prefixes of the order of operations.
//! * `COMMIT-2` Every block that the catalog names was written and flushed before the catalog's own
//!   commit, or that commit logs it (`log_inlined`).
//! * `COMMIT-3` Extents retired by a commit are reusable only after a later commit has deleted
//!   their rows, and that one is durable.
//! * `COMMIT-4` After a failed write, flush or commit nothing more is changed: memory is ahead of
//!   the catalog, and only reopening finds out how far. What the user's rules refuse is no failure
//!   (`refused`).
//! * `COMMIT-5` A group is committed a commit interval after its first change, and a seventh of
//!   that after its last one; what is being written delays it. So the row of a file is soon there,
//!   and a stream of changes costs no more commits. The removal of a file that was synced within
//!   the last second, as of a journal, by which others commit, begins one at once.

use crate::commit::Group;
use crate::commit::Told;
use crate::engine::{Edit, Engine, EngineCommits, lock};
use crate::history::Horizon;
use crate::session::workspace::assert_granted;
use crate::session::writer_lock::WriterLock;
use crate::view::node::{Node, NodeState};
use crate::write::delayed_allocation::PATIENCE_WITH_STREAMS;
use crate::write::frozen::FrozenNode;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{ChangeSet, CommitOutcome, ContentRow, InodeChange};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Extent, FileKind, Ino, StoreId};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// How long to leave reclaim alone after it found everything pinned.
const RECLAIM_PAUSE: Duration = Duration::from_secs(1);
/// Steps of a reclaim that closing takes at most, a few tens of milliseconds each; who opens the
/// database next goes on by himself.
const CLOSE_STEPS_MAX: usize = 4;

/// Lets users of the writer lock in again, whatever happens.
struct OpenAgain<'e>(&'e WriterLock);

impl Drop for OpenAgain<'_> {
    fn drop(&mut self) {
        self.0.open_again();
    }
}

/// Ends a commit that did not succeed: it stops the engine, because its group is lost and no later
/// one may follow (`COMMIT-1`), and lets go those who wait for frozen nodes.
struct CommitGuard<'e> {
    engine: &'e Engine,
    frozen: Vec<Arc<Node>>,
    is_done: bool,
}

impl Drop for CommitGuard<'_> {
    fn drop(&mut self) {
        if self.is_done {
            return;
        }
        if std::thread::panicking() {
            self.engine.stop(
                "a commit panicked, which is a defect; reopen the database, and report it".into(),
            );
        }
        for node in &self.frozen {
            node.thaw(&mut node.lock());
        }
    }
}

impl EngineCommits<'_> {
    /// Returns after the commit that holds every operation that ended before.
    pub fn sync(&self) -> Result<()> {
        if self.private.is_some() {
            return Ok(()); // Its commit is the transaction's.
        }
        let target = {
            // The freeze takes the group and its number under this lock.
            let group = lock(&self.group);
            let open = self.open_generation.load(Ordering::SeqCst);
            if group.is_empty() { open - 1 } else { open }
        };
        self.sync_generation(target)?;
        self.settle_flushes()?; // FLUSH-3
        self.redo().apply_if_full()
    }

    /// The same, if anything waits for it, without the work that may follow a sync.
    pub(crate) fn sync_own(&self) -> Result<()> {
        self.sync_if(|group| !group.is_empty())
    }

    /// The same, if the open group is one to be waited for; those before it are.
    pub(crate) fn sync_if(&self, is_wanted: impl FnOnce(&Group) -> bool) -> Result<()> {
        let target = {
            let group = lock(&self.group);
            let open = self.open_generation.load(Ordering::SeqCst);
            if is_wanted(&group) { open } else { open - 1 }
        };
        match self.commit_lock.committed() >= target {
            true => Ok(()),
            false => self.sync_generation(target),
        }
    }

    /// The same for the operations on one inode, by a handle that has told so much of refusals.
    pub fn sync_node(&self, node: &Node, told: &Told) -> Result<()> {
        if self.private.is_some() {
            return Ok(());
        }
        let generation = {
            let mut state = node.lock();
            state.synced_at = Some(Instant::now());
            let generation = state.generation;
            // What is frozen already is on its way.
            state.content.is_sync_wanted =
                state.in_group && self.commit_lock.committed() < generation;
            generation
        };
        self.sync_generation(generation)?;
        self.settle_flushes()?; // FLUSH-3
        self.redo().apply_if_full()?;
        self.refusals().report_refused(node, told)
    }

    fn sync_generation(&self, generation: u64) -> Result<()> {
        let Some(_leading) = self.commit_lock.lead(generation) else {
            return Ok(());
        };
        self.delayed_allocation().await_streams();
        let horizon = self.find_reclaimable()?;
        self.commit_group(horizon, true)
    }

    /// Commits the open group.
    pub(crate) fn commit_now(&self) -> Result<()> {
        let _one_at_a_time = self.commit_lock.lock();
        let horizon = self.find_reclaimable()?;
        self.commit_group(horizon, false)
    }

    /// The reclaim of a close: once for what the last commit retired, and in steps of what is left
    /// of a great deal, but no more than [`CLOSE_STEPS_MAX`] of them (`TIME-9`).
    pub(crate) fn reclaim_some(&self) -> Result<()> {
        let _one_at_a_time = self.commit_lock.lock();
        for _ in 0..CLOSE_STEPS_MAX {
            let Some(horizon) = self.find_reclaimable()? else {
                return Ok(());
            };
            self.commit_group(Some(horizon), false)?;
        }
        Ok(())
    }

    /// The background's part: due groups, reclaim, and giving the writer lock back.
    pub(crate) fn commit_if_due(&self, is_wished: bool) -> Result<()> {
        self.redo().apply_if_due()?;
        self.orphans().end_let_go()?;
        if !self.writer_lock.is_held() {
            let is_time = lock(&self.group)
                .reclaim_after
                .is_none_or(|after| Instant::now() >= after);
            let has_leftovers = self.may_have_orphans.load(Ordering::SeqCst)
                || self.delayed_allocation().has_delayed()
                || self.expiry().is_reclaim_due()?;
            if !is_time || !has_leftovers {
                return Ok(());
            }
            // Space waits to be reclaimed, and nobody else may come to do it. Do not wait for the
            // writer lock: this thread's pin is what others may wait for.
            if !self
                .writer_lock
                .try_begin(|| self.sessions().refresh_locked())?
            {
                lock(&self.group).reclaim_after = Some(Instant::now() + RECLAIM_PAUSE);
                return Ok(());
            }
            self.writer_lock.end();
        }
        // As a user of the writer lock: beside who is alone nothing is changed.
        if self.delayed_allocation().has_delayed()
            && self
                .writer_lock
                .try_begin(|| self.sessions().refresh_locked())?
        {
            let _edit = Edit { engine: self };
            self.delayed_allocation().place_delayed()?;
        }
        if self.writer_lock.is_wanted() {
            return self.hand_over();
        }
        let (is_empty, age, is_old, may_reclaim) = {
            let mut group = lock(&self.group);
            let is_empty = group.is_empty();
            // Also a group without nodes (a grown segment, a holder that left) has an age.
            let age = group.started.get_or_insert_with(Instant::now).elapsed();
            let is_old = !is_empty && age >= self.session.options.commit_interval;
            (
                is_empty,
                age,
                is_old,
                group
                    .reclaim_after
                    .is_none_or(|after| Instant::now() >= after),
            )
        };
        let is_large =
            self.delayed_allocation().gathered_bytes() > self.session.dirty_bytes_max / 4 * 3;
        let is_old = is_old || (is_wished && !is_empty);
        let is_due = is_old
            || (!is_empty
                && self
                    .background()
                    .idle_left()
                    .is_some_and(|left| left.is_zero()));
        let is_ripe = is_due
            && (age >= PATIENCE_WITH_STREAMS
                || self.delayed_allocation().half_written_bytes() == 0);
        if is_ripe || is_large || self.delayed_allocation().is_worth_writing() {
            self.commit_now()?;
        } else if is_empty {
            if may_reclaim {
                let _one_at_a_time = self.commit_lock.lock();
                match self.find_reclaimable()? {
                    Some(horizon) => self.commit_group(Some(horizon), false)?,
                    None => lock(&self.group).reclaim_after = Some(Instant::now() + RECLAIM_PAUSE),
                }
            }
            self.unlock_writer();
        }
        Ok(())
    }

    /// Commits, and gives the writer lock back.
    pub(crate) fn hand_over(&self) -> Result<()> {
        self.writer_lock.close();
        let _open_again = OpenAgain(&self.writer_lock);
        if !self.writer_lock.is_held() {
            return Ok(()); // Somebody else did; what is being taken again is not for us.
        }
        let outcome = self.commit_now();
        self.unlock_writer();
        outcome
    }

    /// Gives the writer lock back if everything is committed (`WRITER-1`).
    pub(crate) fn unlock_writer(&self) {
        // A commit that another thread runs must end first.
        let _no_commit = self.commit_lock.lock();
        self.writer_lock.release(|| {
            let is_clean =
                lock(&self.group).is_empty() && self.dirty_bytes.load(Ordering::SeqCst) == 0;
            debug_assert!(
                !is_clean || self.free_space().space.reserved_blocks() == 0,
                "WRITER-1"
            );
            is_clean
        });
    }

    /// Up to which commit retired extents can be reclaimed now; `None` if there are none. Every
    /// commit asks: what waits for reclaim is missing where the next objects want to go. Reclaiming
    /// is for who has the writer lock; it may have gone while the caller waited for `commit_lock`
    /// (WRITER-1).
    fn find_reclaimable(&self) -> Result<Option<Horizon>> {
        let found = self.ask_reclaimable()?;
        if found.is_none() {
            self.history.note_step(false); // Else the commit says it.
        }
        Ok(found)
    }

    fn ask_reclaimable(&self) -> Result<Option<Horizon>> {
        if !self.writer_lock.is_held() || self.private.is_some() {
            return Ok(None);
        }
        let has_others = lock(&self.group).has_others;
        let has_quarantine = self.free_space().space.quarantined_blocks() > 0;
        let may_have_orphans = self.may_have_orphans.load(Ordering::SeqCst);
        self.expiry().expire_ahead()?;
        let is_prune_due = self.expiry().is_prune_due()?;
        let has_moved = !self.free_space().moved_away.is_empty();
        let may_have_retired = match self.expiry().keeps_history() {
            // What is retired now is newer than the cut.
            true => is_prune_due || has_moved,
            false => has_quarantine || has_others,
        };
        if !may_have_retired && !may_have_orphans {
            self.history.note_last_step();
            return Ok(None);
        }
        let is_history = is_prune_due && !may_have_orphans && !has_moved;
        if is_history && has_others && self.expiry().is_known_pinned() {
            return Ok(None);
        }
        let horizon = self.expiry().horizon()?;
        if is_history && self.expiry().note_horizon(&horizon) {
            return Ok(None);
        }
        let oldest_retired = self.free_space().oldest_retired;
        if !may_have_orphans && oldest_retired.is_some_and(|seq| seq <= horizon.kept.base()) {
            return Ok(Some(horizon)); // The catalog would say no more.
        }
        self.may_have_orphans
            .store(self.catalog.sessions().has_orphans()?, Ordering::SeqCst);
        let is_worth_it = self.orphans().has_lost_orphans(horizon.pinned)?
            || self.catalog.retention()?.has_retired_by(&horizon.kept)?
            || (is_prune_due && self.catalog.retention()?.has_past_by(&horizon.kept)?)
            || !self.expiry().moved_away_until(horizon.pinned).is_empty();
        if !is_worth_it {
            self.expiry().note_pruned(&horizon.kept);
            self.history.note_last_step();
        }
        Ok(is_worth_it.then_some(horizon))
    }

    /// Freezes and commits the open group. The caller holds `commit_lock`. `is_awaited`: a sync
    /// waits for it.
    fn commit_group(&self, horizon: Option<Horizon>, is_awaited: bool) -> Result<()> {
        self.check_running()?;
        let is_any = horizon.is_some() || !lock(&self.group).is_empty();
        if self.private.is_none() && is_any {
            self.history().settle_rows();
        }
        let mut guard = CommitGuard {
            engine: self,
            frozen: Vec::new(),
            is_done: false,
        };
        let (generation, group, nodes) = {
            let _barrier = self.close_barrier();
            if !self.writer_lock.is_held() {
                // Who is just taking it has found segments that somebody else made longer.
                guard.is_done = true;
                self.check_running()?;
                debug_assert!(lock(&self.group).dirty.is_empty(), "WRITER-1");
                return Ok(());
            }
            if lock(&self.group).is_empty() && horizon.is_none() {
                guard.is_done = true;
                return Ok(());
            }
            self.freeze()
        };
        let is_frozen = |frozen: &&FrozenNode| frozen.flush.is_some();
        guard.frozen = nodes
            .iter()
            .filter(is_frozen)
            .map(|frozen| frozen.node.clone())
            .collect();
        let outcome = self.commit_frozen(generation, group, nodes, horizon, is_awaited);
        match &outcome {
            Ok(()) => guard.is_done = true,
            Err(error) => self.stop(format!(
                "a commit failed ({error}); close and reopen the database"
            )),
        }
        outcome
    }

    /// Closes the open group (`COMMIT-1`). The freeze barrier is closed; nothing here can fail.
    fn freeze(&self) -> (u64, Group, Vec<FrozenNode>) {
        self.orphans().end_parting();
        let (generation, mut group) = {
            let mut open = lock(&self.group);
            (
                self.open_generation.fetch_add(1, Ordering::SeqCst),
                open.take(),
            )
        };
        group.user = self.history.attribution.take();
        let nodes = std::mem::take(&mut group.dirty);
        let frozen = nodes
            .into_iter()
            .map(|node| self.freeze_node(node, generation))
            .collect();
        (generation, group, frozen)
    }

    fn freeze_node(&self, node: Arc<Node>, generation: u64) -> FrozenNode {
        let mut guard = node.lock();
        let state = &mut *guard;
        debug_assert!(state.in_group, "NODE-3");
        state.in_group = false;
        state.is_committing = true;
        let mut frozen = FrozenNode {
            node: node.clone(),
            row: state.row.clone(),
            mask: std::mem::take(&mut state.mask),
            is_fresh: std::mem::take(&mut state.is_fresh),
            is_deleted: state.is_deleted,
            entries: Vec::new(),
            xattrs: Vec::new(),
            content_row: None,
            redo_ended: Vec::new(),
            drops_pieces: false,
            piece_pages: Vec::new(),
            flush: None,
        };
        frozen.entries = state
            .entries
            .iter()
            .filter(|(_, delta)| delta.generation == generation)
            .map(|(name, delta)| (name.clone(), delta.target.map(|(ino, _)| ino)))
            .collect();
        if state.is_deleted {
            // A removed directory still has to tell which entries left it.
            return frozen;
        }
        let values = state.xattrs.as_ref();
        frozen.xattrs = std::mem::take(&mut state.xattrs_dirty)
            .into_iter()
            .map(|name| {
                let value = values.and_then(|values| values.get(&name)).cloned();
                (name, value)
            })
            .collect();
        match state.row.kind {
            FileKind::File => self.freeze_content(state, &mut frozen),
            FileKind::Symlink if frozen.is_fresh => {
                frozen.content_row = Some(state.target.clone().map(ContentRow::Target));
            }
            _ => {}
        }
        drop(guard);
        frozen
    }

    fn freeze_content(&self, state: &mut NodeState, frozen: &mut FrozenNode) {
        let content = &mut state.content;
        let size = state.row.size_bytes;
        frozen.drops_pieces = std::mem::take(&mut content.drops_pieces);
        if let Some(pieces) = content.pieces.as_mut() {
            debug_assert!(pieces.len_bytes() == size, "PIECE-3");
            frozen.piece_pages = pieces.take_changes(self.known_seq().0 + 1);
        }
        let has_pieces = content.pieces.is_some();
        debug_assert!(
            has_pieces
                || content
                    .gather
                    .find(size / BLOCK_BYTES)
                    .is_none_or(|last| last[(size % BLOCK_BYTES) as usize..]
                        .iter()
                        .all(|&byte| byte == 0)),
            "GATHER-2"
        );
        if let Some(block) = content.gather.find(0).filter(|_| {
            !has_pieces && size <= self.session.inline_bytes_max && state.row.block_count == 0
        }) {
            content.inline = Some(block[..size as usize].to_vec());
            content.inline_dirty = true;
            let (_, freed_bytes) = content.gather.discard(0, u64::MAX);
            self.dirty_bytes.fetch_sub(freed_bytes, Ordering::Relaxed);
            if let Some(reservation) = content.reservation.take() {
                self.free_space().space.forfeit(reservation);
            }
        }
        frozen.redo_ended = content.redo_rows.take_ended();
        frozen.flush = self.delayed_allocation().plan_flush(state);
        let content = &mut state.content;
        debug_assert!(content.is_loaded || !content.has_inline_row, "NODE-1");
        if std::mem::take(&mut content.inline_dirty) {
            frozen.content_row = Some(content.inline.clone().map(ContentRow::Inline));
            content.has_inline_row = content.inline.is_some();
        } else if content.has_inline_row && content.inline.is_none() {
            frozen.content_row = Some(None);
            content.has_inline_row = false;
        }
    }

    fn commit_frozen(
        &self,
        generation: u64,
        group: Group,
        mut nodes: Vec<FrozenNode>,
        horizon: Option<Horizon>,
        is_awaited: bool,
    ) -> Result<()> {
        assert!(
            horizon
                .as_ref()
                .is_none_or(|horizon| horizon.kept.highest() <= self.known_seq()),
            "COMMIT-3"
        );
        let is_alone = !group.has_others;
        debug_assert!(horizon.is_none() || self.private.is_none(), "PRIVATE-4");
        let mut set = ChangeSet {
            allocated: group.allocated,
            retired: group.retired,
            shared: group.shared,
            map_shares: group.map_shares,
            retired_bytes: group.retired_bytes,
            segments: group.segments,
            orphans_added: group.orphans_added,
            orphans_removed: group.orphans_removed,
            holders_added: group.holders_added,
            holders_removed: group.holders_removed,
            reclaim_horizon: horizon.as_ref().map(|horizon| horizon.kept.clone()),
            pre_images: group.pre_images,
            moves: group.moves.into_pairs(),
            moved_away: horizon
                .as_ref()
                .map(|horizon| self.expiry().moved_away_until(horizon.pinned))
                .unwrap_or_default(),
            now_ns: self.now_ns(),
            user: group.user,
            has_revived: group.has_revived,
            saves: group.saves,
            file_ids: group.file_ids,
            // Most nodes are new files, or have one row of each kind that changed.
            inodes: Vec::with_capacity(nodes.len()),
            dirents: Vec::with_capacity(nodes.len()),
            map_pages: Vec::with_capacity(nodes.len()),
            ..ChangeSet::default()
        };
        set.allocated.reserve(nodes.len());
        self.placement()
            .flush_contents(generation, &mut nodes, &mut set, is_awaited, is_alone)?;
        for frozen in &mut nodes {
            self.collect(frozen, &mut set)?;
        }
        // Names that go first (`ChangeSet::dirents`).
        (set.dirents).sort_by_key(|(store, _, _, target)| (*store, target.is_some()));
        let mut has_more = false;
        if let Some(horizon) = &horizon
            && self.may_have_orphans.load(Ordering::SeqCst)
        {
            has_more = self
                .orphans()
                .collect_lost_orphans(horizon.pinned, &mut set)?;
        }
        let is_unknown = |frozen: &&FrozenNode| frozen.is_fresh && frozen.is_deleted;
        let unknown = nodes.iter().filter(is_unknown);
        crate::write::saves::settle(unknown.map(|one| (one.node.store, one.node.ino)), &mut set);
        if self.session.workspace.is_some() {
            assert_granted(&self.catalog.grants(), &set.allocated);
        }
        // COMMIT-2: the extents above were flushed by flush_contents, or are redo rows of this
        // commit.
        let mut moved_away = group.moved_away;
        let (names, moved) = (group.names, &mut moved_away);
        let outcome = self
            .refusals()
            .commit_accepted(&mut nodes, &mut set, names, moved)?;
        self.publish(generation, &nodes, &set, &outcome, moved_away);
        if let (Some(wished), Some(kept)) = (&horizon, &outcome.reclaim_horizon) {
            self.expiry().note_pruned(kept);
            if wished.kept.passes(kept) {
                self.expiry().look_anew(); // Or the next commit would wish for the same.
            }
        }
        has_more |= outcome.has_more;
        self.history.note_step(has_more);
        if horizon.is_some() && !has_more {
            self.history.note_last_step();
        }
        if !set.orphans_added.is_empty() {
            // Set when they were made, too; a look at the catalog before this commit cleared it.
            self.may_have_orphans.store(true, Ordering::SeqCst);
        }
        if let Err(error) = self.checkpoint(&set, has_more) {
            // The commit is durable; the log is only longer than it should be.
            tracing::warn!("a checkpoint failed: {error}");
        }
        Ok(())
    }

    /// Adds a node's rows to the change set.
    fn collect(&self, frozen: &mut FrozenNode, set: &mut ChangeSet) -> Result<()> {
        let (store, ino) = (frozen.node.store, frozen.node.ino);
        let entries = std::mem::take(&mut frozen.entries);
        if !(frozen.is_deleted && frozen.is_fresh) {
            set.dirents.extend(
                entries
                    .into_iter()
                    .map(|(name, target)| (store, ino, name, target)),
            );
        }
        if frozen.is_deleted {
            // A fresh one may have shared something.
            let mut state = frozen.node.lock();
            let extents = state
                .content
                .map
                .extents(self.maps().map_source(&frozen.node))?;
            drop(state);
            if frozen.is_fresh {
                self.retire_into(set, (store, ino), extents);
            } else {
                self.retire_into(set, (store, ino), extents);
                set.inodes.push((store, InodeChange::Delete(ino)));
            }
            return Ok(());
        }
        let row = frozen.row.clone();
        set.inodes.push((
            store,
            if frozen.is_fresh {
                InodeChange::Insert(row)
            } else {
                InodeChange::Update(row, frozen.mask)
            },
        ));
        let xattrs = std::mem::take(&mut frozen.xattrs);
        set.xattrs.extend(
            xattrs
                .into_iter()
                .map(|(name, value)| (store, ino, name, value)),
        );
        if frozen.drops_pieces {
            set.piece_drops.push((store, ino));
        }
        let pages = std::mem::take(&mut frozen.piece_pages);
        set.piece_pages.extend(
            pages
                .into_iter()
                .map(|(page, bytes)| (store, ino, page, bytes)),
        );
        if let Some(content) = frozen.content_row.take() {
            set.contents.push((store, ino, content));
        }
        Ok(())
    }

    /// Retires extents with the commit that is being made.
    pub(crate) fn retire_into(
        &self,
        set: &mut ChangeSet,
        (store, ino): (StoreId, Ino),
        extents: Vec<Extent>,
    ) {
        let mut free = self.free_space();
        for extent in extents {
            self.sharing().quarantine_unshared(&mut free, extent);
            set.retired_bytes += extent.len_bytes();
            set.retired.push((extent, store, ino));
        }
    }

    /// Makes the commit known in this process.
    fn publish(
        &self,
        generation: u64,
        nodes: &[FrozenNode],
        set: &ChangeSet,
        outcome: &CommitOutcome,
        moved_away: Vec<Extent>,
    ) {
        self.known_seq.store(outcome.seq.0, Ordering::SeqCst);
        self.redo().publish_redo(outcome.redo_blocks_change);
        if self.private.is_none() {
            self.redo()
                .note_redo_at(outcome.seq, self.redo_rows.blocks.load(Ordering::SeqCst));
        }
        self.space().publish_free_space(set, outcome, moved_away);
        self.sharing().publish_shares(generation);
        for frozen in nodes {
            let mut state = frozen.node.lock();
            state.is_committing = false;
            state.entries.retain(|delta| delta.generation > generation);
            state.content.map.forget_cut();
            state.content.redo_rows.publish(outcome.seq);
            self.cache.count_map(&frozen.node, &state);
            if frozen.is_deleted {
                drop(state);
                self.cache.remove(frozen.node.store, frozen.node.ino);
            }
        }
        // Also those that no operation of this session has deleted: nobody had them open any more.
        for &(store, ino) in &set.orphans_removed {
            // Some have a name again.
            if (self.cache.find(store, ino)).is_some_and(|node| node.lock().is_deleted) {
                self.cache.remove(store, ino);
            }
        }
        self.rules.publish(generation);
        self.commit_lock.set_committed(generation);
    }
}

/// An error that says that the engine cannot go on.
pub(crate) fn broken(what: &str) -> Error {
    Error::new(ErrorKind::Corrupt, format!("{what}; run 'larder check'"))
}
