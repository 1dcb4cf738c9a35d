//! What others commit: a session drops what that has made stale, and keeps the rest where the
//! catalog knows exactly what was changed.
//!
//! # Invariants
//! * `FOREIGN-3` Of an inode of which another one's commit has changed anything that is remembered
//!   here, all that is older is dropped, or marked to be read again, before observers are told and
//!   before the pin follows (`SESSION-3`). *Guard*: what is read from the catalog is remembered
//!   under the namespace lock or the node's, or not if something was dropped meanwhile
//!   (`ViewForeign::remember`); a look reads the catalog before that, and the next one goes on from
//!   there.
//! * `FOREIGN-6` Between the commit of another session and the end of a look that knows of it the
//!   catalog's generation is not the one that was noted: who compares the two before it answers,
//!   answers nothing that is older.
//! * `FOREIGN-4` What
//!   [`CatalogSessions::look_at_changes`](larder_catalog::CatalogForeign::look_at_changes) does
//!   not know is dropped as a whole.
//!
//! What is dropped of an inode is the same in both cases. A session's own commits are no changes,
//! whatever their number: plain SQL may have changed something under the same one. An engine that
//! serves transactions begins anew with each of them, and asks nobody.

use crate::Result;
use crate::engine::{EngineSessions, lock};
use crate::view::ForeignChange;
use crate::view::node::Node;
use larder_space::format::{Ino, StoreId};
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// Rows of the history that a look reads at most: 5 ms; dropping everything costs less than reading
/// more of them.
const LOOK_ROWS_MAX: usize = 4096;

impl EngineSessions<'_> {
    /// Drops what another session's commit, or an SQL client's, has made stale. When it fails it
    /// has not happened: the next call does it all again.
    pub(crate) fn notice_foreign(&self) -> Result<()> {
        // What is counted later is looked for by the next look.
        let generation = self.catalog.foreign()?.generation();
        self.look_for_foreign()?;
        self.foreign().await_observers();
        self.foreign.note_generation(generation);
        Ok(())
    }

    /// Takes in what others have committed; observers have been told when it returns.
    pub fn catch_up(&self) -> Result<()> {
        self.check_running()?;
        self.notice_foreign()?;
        self.foreign().await_observers();
        Ok(())
    }

    /// Takes in what others have committed before this call; observers have been told when it
    /// returns. Without a commit of anybody since the last look: a few nanoseconds (`FOREIGN-6`).
    pub fn catch_up_if_moved(&self) -> Result<()> {
        if self.private.is_some() || self.is_readonly() {
            return Ok(());
        }
        // Who has the writer lock has looked when it got it, and no other session has committed
        // since (WRITER-1).
        let has_moved = self.foreign.has_moved(self.catalog.foreign()?.generation());
        match has_moved && !self.writer_lock.is_held() {
            true => self.catch_up(),
            false => Ok(()),
        }
    }

    fn look_for_foreign(&self) -> Result<()> {
        let (told, observers) = {
            let _no_commit = self.commit_lock.lock();
            if self.catalog.foreign()?.foreign_change()? {
                self.has_foreign_change.store(true, Ordering::SeqCst);
            }
            if !self.has_foreign_change.load(Ordering::SeqCst) {
                return Ok(());
            }
            self.rules().find_constraints()?;
            self.retention().learn_retention()?; // TIME-3
            self.expiry().learn_holds()?;
            let before = self.foreign.mark();
            let look = (self.catalog.foreign()?).look_at_changes(before.as_ref(), LOOK_ROWS_MAX)?;
            let seq = look.seq;
            // Our own commits are not foreign, so a newer number is another session's; the writer
            // lock was theirs, so nothing here is uncommitted (WRITER-1).
            let has_new_content = seq > self.known_seq();
            if has_new_content {
                self.segments().open_segments()?;
                self.redo().refresh_redo(seq)?;
                self.maps().find_pieces()?;
            }
            let (held, told) = {
                let _barrier = self.close_barrier();
                let _names = self.write_names();
                if has_new_content {
                    lock(&self.next_inos).clear();
                }
                match look.changed {
                    None => (self.invalidate(has_new_content), ForeignChange::Everything),
                    Some(changed) => {
                        let mut held = self.invalidate_some(&changed, has_new_content);
                        if look.have_redo_rows_gone {
                            held.extend(self.invalidate_redone(has_new_content));
                        }
                        (held, ForeignChange::Inodes(changed))
                    }
                }
            };
            if let Err(error) = self.hold_orphans(&held) {
                self.foreign.set_mark(None); // Observers are told of everything, then.
                return Err(error);
            }
            if has_new_content {
                // Only now: the pin follows this number (SESSION-3).
                self.known_seq.store(seq.0, Ordering::SeqCst);
                if self.free_space().is_loaded() {
                    // It may have left something to reclaim that only waited for this pin.
                    self.may_have_orphans.store(true, Ordering::SeqCst);
                }
            }
            self.foreign.set_mark(look.mark);
            self.has_foreign_change.store(false, Ordering::SeqCst);
            let count = match told {
                ForeignChange::Everything => &self.foreign.whole_count,
                ForeignChange::Inodes(_) => &self.foreign.exact_count,
            };
            count.fetch_add(1, Ordering::Relaxed);
            // Before the next look can begin: see `await_observers`.
            (told, self.foreign.observers())
        };
        for observer in observers.iter() {
            observer(&told);
        }
        Ok(())
    }

    /// Marks or forgets all that is cached; returns what is open here (`FOREIGN-4`).
    pub(crate) fn invalidate(&self, has_new_content: bool) -> HashSet<(StoreId, Ino)> {
        let mut held = HashSet::new();
        self.foreign.begin_drop();
        (self.cache).retain(|node| self.stays_stale(node, has_new_content, &mut held));
        held
    }

    /// The same for some inodes (`FOREIGN-3`).
    fn invalidate_some(
        &self,
        changed: &[(StoreId, Ino)],
        has_new_content: bool,
    ) -> HashSet<(StoreId, Ino)> {
        let mut held = HashSet::new();
        self.foreign.begin_drop();
        self.cache.retain_of(changed, |node| {
            self.stays_stale(node, has_new_content, &mut held)
        });
        held
    }

    /// The same for all of which redo rows are remembered.
    fn invalidate_redone(&self, has_new_content: bool) -> HashSet<(StoreId, Ino)> {
        let mut held = HashSet::new();
        self.foreign.begin_drop();
        self.cache.retain(|node| {
            let has_redo_rows = !node.lock().content.redo_rows.blocks.is_empty();
            !has_redo_rows || self.stays_stale(node, has_new_content, &mut held)
        });
        held
    }

    /// Drops what is known of a node; `false`: it can be forgotten itself. Those that are open here
    /// become `held`.
    fn stays_stale(
        &self,
        node: &Arc<Node>,
        has_new_content: bool,
        held: &mut HashSet<(StoreId, Ino)>,
    ) -> bool {
        self.foreign.dropped_count.fetch_add(1, Ordering::Relaxed);
        let mut state = node.lock();
        self.cache.forget_names(node);
        if Arc::strong_count(node) == 1 && state.is_idle() {
            return false;
        }
        state.is_stale = true;
        if has_new_content && !state.in_group {
            if state.open_count > 0 {
                held.insert((node.store, node.ino));
            }
            state.entries.clear();
            self.delayed_allocation().drop_kept(&mut state.content);
            state.content.forget();
            self.cache.count_map(node, &state);
        }
        if !state.in_group {
            state.parent = None;
            state.target = None;
            state.xattrs = None;
        }
        true
    }

    /// Registers as a holder of what another session unlinked while it was open here (`SESSION-3`),
    /// or known to a keeper (`NAMELESS-1`).
    fn hold_orphans(&self, held: &HashSet<(StoreId, Ino)>) -> Result<()> {
        if held.is_empty() && !self.orphans().has_keeper() {
            return Ok(());
        }
        for (store, ino, _) in self.catalog.sessions().orphans()? {
            if self.orphans().keep_orphan(store, ino)? || held.contains(&(store, ino)) {
                self.catalog
                    .sessions()
                    .add_holder(store, ino, self.session.liveness.id)?;
            }
        }
        Ok(())
    }
}

impl EngineSessions<'_> {
    /// Forgets idle nodes when they keep too much (`CACHE-2`).
    pub(crate) fn shrink_cache(&self) {
        if !self.cache.tick() {
            return;
        }
        let _barrier = self.close_barrier();
        let _names = self.write_names();
        self.cache.shrink();
    }
}
