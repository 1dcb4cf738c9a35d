//! What memory forgets when something was taken out of a commit (`CONSTRAINT-3`, see `refused`).

use crate::Result;
use crate::commit::dependents::{Blocks, close_over, take_held};
use crate::commit::names::{Known, Names, kind_of};
use crate::commit::refused::{bytes_beside, is_change};
use crate::commit::taken_out::{Id, TakenOut};
use crate::engine::{EngineRefusals, lock};
use crate::view::ForeignChange;
use crate::view::entries::EntryDelta;
use crate::view::node::NodeState;
use crate::write::frozen::FrozenNode;
use larder_catalog::{AttrMask, CommitOutcome, Held};
use larder_space::Cover;
use larder_space::format::{Extent, FileKind, Ino, Name, StoreId};
use std::sync::atomic::Ordering;

impl EngineRefusals<'_> {
    /// Makes memory what the catalog is, of all that was taken out and of what the open group did
    /// to it (`CONSTRAINT-3`).
    pub(super) fn forget_taken(
        &self,
        nodes: &mut [FrozenNode],
        mut taken: TakenOut,
        names: Names,
        outcome: CommitOutcome,
    ) -> Result<CommitOutcome> {
        let told = {
            let _barrier = self.close_barrier();
            let _names = self.write_names();
            let (dirty, changes) = {
                let mut group = lock(&self.group);
                (group.dirty.clone(), std::mem::take(&mut group.names))
            };
            let mut names = names.go_on(self, changes)?;
            let mut all = TakenOut {
                why: taken.why.clone(),
                ..TakenOut::default()
            };
            {
                let group = lock(&self.group);
                let (allocated, retired) = (group.allocated.clone(), group.retired.clone());
                let (shared, mut saves) = (group.shared.clone(), group.saves.clone());
                drop(group);
                saves.extend(&taken.saves);
                let blocks = Blocks {
                    allocated: &allocated,
                    retired: &retired,
                    shared: &shared,
                    saves: &saves,
                };
                close_over(self, &mut all, &mut names, &blocks)?;
            }
            all.stays.extend(&taken.stays);
            for node in &dirty {
                let id = (node.store, node.ino);
                let Some(why) = all.why.get(&id) else {
                    continue;
                };
                // What was kept is not all of it if it was written since.
                let (is_changed, is_written, touch_count) = {
                    let state = node.lock();
                    let is_written = state.mask.size || !state.content.gather.is_empty();
                    let is_changed = is_change(state.is_fresh, state.is_deleted, state.mask);
                    (is_changed || is_written, is_written, state.touch_count)
                };
                let is_news = match taken.kept.get(&id) {
                    Some(kept) => is_written && *kept != touch_count,
                    None => is_changed,
                };
                if is_news {
                    self.note_taken(node, why, &names, is_written);
                }
            }
            let touched = names.touched();
            for dir in touched.union(&all.stays).filter(|dir| !all.holds(**dir)) {
                self.count_links(*dir, &mut names, all.stays.contains(dir))?;
            }
            all.gone = std::mem::take(&mut taken.gone);
            all.places = std::mem::take(&mut taken.places);
            for dir in &touched {
                self.forget_names(*dir, &names)?;
            }
            self.forget_in_group(&mut all, names);
            self.turn_back(&all);
            let mut told: Vec<Id> = all.why.keys().chain(&all.stays).copied().collect();
            told.extend(touched);
            for id in all.why.keys() {
                self.forget_node(*id)?;
            }
            self.rules.forget(all.why.keys());
            for frozen in nodes.iter_mut() {
                let id = (frozen.node.store, frozen.node.ino);
                if taken.holds(id) || taken.stays.contains(&id) {
                    // What was new never was; what was to go stays.
                    frozen.is_deleted = frozen.is_fresh;
                }
            }
            told
        };
        let told = ForeignChange::Inodes(told);
        self.foreign().tell_observers(&told);
        Ok(outcome)
    }

    /// Makes the names in a directory, in memory, what they are (`NAMES-1`: also those that lead
    /// where they led, as if nothing had been).
    fn forget_names(&self, dir: Id, names: &Names) -> Result<()> {
        let Some(node) = self.cache.find(dir.0, dir.1) else {
            return Ok(());
        };
        let mut targets: Vec<(&Name, Option<(Ino, FileKind)>)> = Vec::new();
        let is_new = |known: &Known| known.is_other() && known.left != known.committed;
        let others = names.known_in(dir).filter(|(_, known)| is_new(known));
        for (name, known) in others {
            let target = match known.left {
                Some(ino) => kind_of(self, dir.0, ino)?.map(|kind| (ino, kind)),
                None => None,
            };
            targets.push((name, target));
        }
        let generation = self.open_generation.load(Ordering::SeqCst);
        let mut state = node.lock();
        for (name, target) in targets {
            (state.entries).insert(name.clone(), EntryDelta { target, generation });
        }
        let as_before = names
            .known_in(dir)
            .filter(|(_, known)| known.left == known.committed);
        as_before.for_each(|(name, _)| state.entries.remove(name));
        self.rules.take_back(&node, &state);
        self.cache.forget_names(&node);
        Ok(())
    }

    /// Takes inodes out of the open group. The freeze barrier is closed.
    fn forget_in_group(&self, taken: &mut TakenOut, names: Names) {
        let mut group = lock(&self.group);
        let (group, out) = (&mut *group, &*taken);
        let stays = |store: &StoreId, ino: &Ino| !out.holds((*store, *ino));
        group.dirty.retain(|node| stays(&node.store, &node.ino));
        group.names = names.into_left();
        let gone = take_held(&mut group.retired, &mut group.shared, |held| {
            !stays(&held.1, &held.2)
        });
        group
            .shared
            .retain(|share| stays(&share.held.1, &share.held.2));
        (group.map_shares).retain(|share| {
            stays(&share.store, &share.ino) && stays(&share.from_store, &share.from_ino)
        });
        (group.saves).retain(|save| stays(&save.store, &save.from) && stays(&save.store, &save.to));
        group.file_ids.retain(|(store, ino, _)| stays(store, ino));
        let lives =
            |store: &StoreId, ino: &Ino| stays(store, ino) && !out.stays.contains(&(*store, *ino));
        group.orphans_added.retain(|(store, ino)| lives(store, ino));
        group
            .holders_added
            .retain(|(store, ino, _)| lives(store, ino));
        group
            .orphans_removed
            .retain(|(store, ino)| lives(store, ino));
        let holds = |(store, ino, _): &(StoreId, Ino, _)| !out.stays.contains(&(*store, *ino));
        group.holders_removed.retain(holds);
        let copies = group.pre_images.iter().map(|(_, copy)| *copy);
        let uncounted = Cover::new(group.moved_away.iter().copied().chain(copies));
        let lost = bytes_beside(&uncounted, &gone);
        group.retired_bytes = group.retired_bytes.saturating_sub(lost);
        let stayed = Cover::new(gone.iter().map(|(extent, ..)| *extent));
        group.moved_away.retain(|place| !stayed.overlaps(place));
        // What was moved lies where it was; its copy goes with this group.
        let new: Vec<Held> = (group.allocated.iter())
            .filter(|(_, store, ino)| !stays(store, ino))
            .copied()
            .collect();
        let places: Vec<Extent> = new.iter().map(|(extent, ..)| *extent).collect();
        group.moves.forget(&Cover::new(places.iter().copied()));
        group.retired.extend(new);
        taken
            .gone
            .extend(gone.into_iter().map(|(extent, ..)| extent));
        taken.places.extend(places);
    }

    /// What was let go of lives on, and what was written in vain goes: in the books, once for the
    /// commit and the open group, between which blocks may have passed.
    fn turn_back(&self, taken: &TakenOut) {
        let gone = Cover::new(taken.gone.iter().copied());
        let places = Cover::new(taken.places.iter().copied());
        let mut free = self.free_space();
        for extent in gone.without(&places) {
            if !self.sharing().may_share() {
                free.space.revive(extent);
            }
        }
        for extent in places.without(&gone) {
            self.sharing().quarantine_unshared(&mut free, extent);
        }
    }

    /// Makes a node in memory what the catalog says of it.
    fn forget_node(&self, (store, ino): Id) -> Result<()> {
        let Some(node) = self.cache.find(store, ino) else {
            return Ok(());
        };
        let row = self
            .commits()
            .patiently(|| self.catalog.tables().inode(store, ino))?;
        let mut state = node.lock();
        let was_anonymous = state.is_anonymous;
        let may_be_linked = was_anonymous && (state.is_linkable || state.row.nlink > 0);
        state.reset();
        self.content().discard(&mut state, 0, u64::MAX);
        state.content.forget();
        self.cache.count_map(&node, &state);
        self.cache.forget_names(&node);
        match row {
            Some(row) => {
                // Who has it open may try again to give it a name.
                state.is_anonymous = was_anonymous && row.nlink == 0;
                state.is_linkable = may_be_linked && row.nlink == 0;
                state.row = row;
            }
            None => {
                state.row.nlink = 0;
                state.row.block_count = 0;
                state.is_deleted = true;
                drop(state);
                self.cache.remove(store, ino);
            }
        }
        Ok(())
    }

    /// A directory has the links that the catalog says, and those that the names give it which the
    /// open group changes. Whoever is in it gave and took some for names that are gone.
    fn count_links(&self, dir: Id, names: &mut Names, stays: bool) -> Result<()> {
        let Some(node) = self.cache.find(dir.0, dir.1) else {
            return Ok(());
        };
        let nlink = self.links(names, dir)?;
        let mut state = node.lock();
        if stays {
            // It was removed, in the commit or in the open group.
            (state.is_deleted, state.is_parting) = (false, false);
            state.parent = names.place_of(dir).map(|(_, ino)| ino);
            state.mask.nlink |= state.in_group;
        }
        if stays || (state.row.nlink > 0 && !state.is_deleted && !state.is_parting) {
            state.row.nlink = nlink;
        }
        if stays {
            self.rules.take_back(&node, &state);
        }
        Ok(())
    }
}

impl NodeState {
    /// Forgets all that the catalog does not have; content is left to the caller.
    fn reset(&mut self) {
        self.mask = AttrMask::default();
        (self.is_fresh, self.is_deleted) = (false, false);
        (self.in_group, self.is_stale) = (false, false);
        self.is_parting = false;
        (self.is_anonymous, self.is_linkable) = (false, false);
        self.entries.clear();
        self.parent = None;
        self.target = None;
        self.xattrs = None;
        self.xattrs_dirty.clear();
        self.content.inline_dirty = false;
        self.content.drops_pieces = false;
        self.content.applied = None;
        self.content.refused_count += 1;
    }
}
