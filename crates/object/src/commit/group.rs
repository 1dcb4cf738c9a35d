//! The open group: what the next commit holds beside what is in the nodes.

use crate::space::relocations::Moves;
use crate::view::node::Node;
use larder_catalog::{Held, MapShare, Save, Sharing};
use larder_space::format::{Extent, Ino, SegmentIndex, SessionId, StoreId};
use std::sync::Arc;
use std::time::Instant;

/// The open group: what is not in a node.
#[derive(Default)]
pub(crate) struct Group {
    pub dirty: Vec<Arc<Node>>,
    /// When the first change came.
    pub started: Option<Instant>,
    /// Inodes that have lost their last name and may be known still (`NAMELESS-2`).
    pub parting: Vec<Arc<Node>>,
    pub retired: Vec<Held>,
    /// Blocks that an object shares.
    pub shared: Vec<Sharing>,
    /// Pages of maps that were made of others.
    pub map_shares: Vec<MapShare>,
    /// Written already, to be flushed: what moved in this group.
    pub allocated: Vec<Held>,
    pub retired_bytes: u64,
    /// Blocks that will be written over, and where their content is kept (`pre_images`).
    pub homes: Vec<(Extent, Extent)>,
    /// What was moved: where from, for the history.
    pub moves: Moves,
    /// Places that content was moved away from; they are retired as well.
    pub moved_away: Vec<Extent>,
    pub segments: Vec<(SegmentIndex, u64)>,
    /// An inode number came back (`ROLLBACK-1`).
    pub has_revived: bool,
    /// Files that become other inodes (`SAVE-2`).
    pub saves: Vec<Save>,
    /// Inodes that are files again which have none.
    pub file_ids: Vec<(StoreId, Ino, i64)>,
    pub orphans_added: Vec<(StoreId, Ino)>,
    pub orphans_removed: Vec<(StoreId, Ino)>,
    pub holders_added: Vec<(StoreId, Ino, SessionId)>,
    pub holders_removed: Vec<(StoreId, Ino, SessionId)>,
    /// The user for whom all of it was done; known when it is closed.
    pub user: Option<u32>,
    /// A change of names or attributes is in it.
    pub has_names: bool,
    /// Other sessions live (`SESSION-4`). Kept from group to group.
    pub has_others: bool,
    /// Reclaim found everything pinned: not before this moment again.
    pub reclaim_after: Option<Instant>,
}

impl Group {
    /// Adds a node with changes.
    pub fn push(&mut self, node: Arc<Node>) {
        self.started.get_or_insert_with(Instant::now);
        self.dirty.push(node);
    }

    /// Whether there is nothing to commit.
    pub fn is_empty(&self) -> bool {
        self.dirty.is_empty()
            && self.retired.is_empty()
            && self.shared.is_empty()
            && self.allocated.is_empty()
            && self.homes.is_empty()
            && self.segments.is_empty()
            && self.orphans_added.is_empty()
            && self.orphans_removed.is_empty()
            && self.holders_added.is_empty()
            && self.holders_removed.is_empty()
    }

    /// Notes a save. Of an inode that the catalog does not know yet, `is_fresh`, only what has come over to it in this
    /// group goes on: nobody can have attached anything to it.
    pub fn add_save(&mut self, save: Save, is_fresh: bool) {
        if !is_fresh {
            self.saves.push(save);
            return;
        }
        let mut earlier = self.saves.iter_mut();
        if let Some(earlier) = earlier.rfind(|one| (one.store, one.to) == (save.store, save.from)) {
            earlier.to = save.to;
        }
    }

    /// An inode lost its last name, or never had one; `holder` has it open.
    pub fn add_orphan(&mut self, (store, ino): (StoreId, Ino), holder: Option<SessionId>) {
        self.orphans_added.push((store, ino));
        self.holders_added
            .extend(holder.map(|session| (store, ino, session)));
    }

    /// An inode without a name gets one. What this group adds, the catalog never hears of.
    pub fn adopt_orphan(&mut self, (store, ino): (StoreId, Ino)) {
        match self
            .orphans_added
            .iter()
            .rposition(|&id| id == (store, ino))
        {
            Some(index) => {
                self.orphans_added.remove(index);
                self.holders_added
                    .retain(|&(s, i, _)| (s, i) != (store, ino));
            }
            None => self.orphans_removed.push((store, ino)),
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
