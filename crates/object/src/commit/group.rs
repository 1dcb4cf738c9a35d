//! The open group, while it takes changes and when they are taken back.

use crate::commit::Group;
use crate::view::node::Node;
use crate::write::Undo;
use larder_catalog::{Held, Save};
use larder_space::format::{Ino, SessionId, StoreId};
use std::sync::Arc;
use std::time::Instant;

impl Group {
    /// Adds a node with changes.
    pub fn push(&mut self, node: Arc<Node>) {
        self.started.get_or_insert_with(Instant::now);
        self.dirty.push(node);
    }

    /// Blocks that were shared last are not held: that was taken back.
    pub fn forget_share(&mut self, held: &Held) {
        if let Some(at) = self.shared.iter().rposition(|share| share.held == *held) {
            self.shared.remove(at);
        }
        if self.is_empty() {
            self.started = None;
        }
    }

    /// A node has no changes any more: they were taken back.
    pub fn forget_dirty(&mut self, node: &Arc<Node>) {
        if let Some(at) = self.dirty.iter().rposition(|one| Arc::ptr_eq(one, node)) {
            self.dirty.remove(at);
        }
        if self.is_empty() {
            self.started = None;
        }
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.dirty.is_empty()
            && self.retired.is_empty()
            && self.shared.is_empty()
            && self.allocated.is_empty()
            && self.pre_images.is_empty()
            && self.segments.is_empty()
            && self.orphans_added.is_empty()
            && self.orphans_removed.is_empty()
            && self.holders_added.is_empty()
            && self.holders_removed.is_empty()
    }

    /// Notes a save. Of an inode that the catalog does not know yet, `is_fresh`, only what has come
    /// over to it in this group goes on: nobody can have attached anything to it. What takes it
    /// back.
    pub fn add_save(&mut self, save: Save, is_fresh: bool) -> Option<Undo> {
        if !is_fresh {
            self.saves.push(save);
            return Some(Undo::SaveAdded);
        }
        let is_it = |one: &Save| (one.store, one.to) == (save.store, save.from);
        let index = self.saves.iter().rposition(is_it)?;
        let earlier = &mut self.saves[index];
        Some(Undo::SaveMoved(
            index,
            std::mem::replace(&mut earlier.to, save.to),
        ))
    }

    /// An inode lost its last name, or never had one; `holder` has it open.
    pub fn add_orphan(&mut self, (store, ino): (StoreId, Ino), holder: Option<SessionId>) {
        self.orphans_added.push((store, ino));
        self.holders_added
            .extend(holder.map(|session| (store, ino, session)));
    }

    /// What [`Group::add_orphan`] did is taken back.
    pub fn forget_orphan(&mut self, (store, ino): (StoreId, Ino), holder: Option<SessionId>) {
        if let Some(at) = (self.orphans_added.iter()).rposition(|&id| id == (store, ino)) {
            self.orphans_added.remove(at);
        }
        let held = holder.map(|session| (store, ino, session));
        if let Some(at) =
            held.and_then(|held| self.holders_added.iter().rposition(|&one| one == held))
        {
            self.holders_added.remove(at);
        }
    }

    /// An inode without a name gets one. What this group adds, the catalog never hears of. What
    /// takes it back.
    pub fn adopt_orphan(&mut self, (store, ino): (StoreId, Ino)) -> Undo {
        let is_it = |&id: &(StoreId, Ino)| id == (store, ino);
        match self.orphans_added.iter().rposition(is_it) {
            Some(index) => {
                self.orphans_added.remove(index);
                let mut holders = Vec::new();
                self.holders_added.retain(|&(s, i, session)| {
                    let stays = (s, i) != (store, ino);
                    if !stays {
                        holders.push(session);
                    }
                    stays
                });
                Undo::OrphanForgotten((store, ino), holders)
            }
            None => {
                self.orphans_removed.push((store, ino));
                Undo::OrphanAdopted((store, ino))
            }
        }
    }

    /// The same inode loses that name again. `true`: in the group that gave it, so that the catalog
    /// knows it as an orphan still.
    pub fn orphan_again(
        &mut self,
        (store, ino): (StoreId, Ino),
        is_open: bool,
        session: SessionId,
    ) -> bool {
        let Some(index) = self
            .orphans_removed
            .iter()
            .rposition(|&id| id == (store, ino))
        else {
            return false;
        };
        self.orphans_removed.remove(index);
        if !is_open {
            self.holders_removed.push((store, ino, session));
        }
        true
    }

    /// Nodes with changes.
    pub fn nodes(&self) -> impl Iterator<Item = &Arc<Node>> {
        self.dirty.iter()
    }

    /// How many there are.
    pub fn node_count(&self) -> usize {
        self.dirty.len()
    }

    /// Closes the group; the next one is open.
    pub fn take(&mut self) -> Group {
        let next = Group {
            has_others: self.has_others,
            reclaim_after: self.reclaim_after,
            ..Group::default()
        };
        std::mem::replace(self, next)
    }
}
