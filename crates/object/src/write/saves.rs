//! Files that are saved by way of another name: a program sets the old file aside, writes a new one
//! with its name, and keeps the old one as a backup, or removes it.
//!
//! ```text
//!  rename f → f~    create f, or rename tmp → f: f is the file, and f~ is not
//!                   (the name says: a backup)
//!  rename f → x     create f, or rename tmp → f     unlink x: f is the file
//!                   (x may be any name)
//! ```
//!
//! # Invariants
//! * `SAVE-4` A file that was set aside is remembered for [`ASIDE_NS`], of the last [`ASIDES_MAX`]
//!   ones, by this process only. What is forgotten, as in a crash, makes the new file another one;
//!   what is attached to the old one stays with it. *Guard*: what is remembered is compared with
//!   the names that there are.

use crate::Result;
use crate::engine::{EngineNamespace, lock};
use crate::view::node::Node;
use crate::write::guard::WriteGuard;
use crate::write::{Aside, Asides, Undo};
use larder_catalog::{ChangeSet, InodeChange, Save};
use larder_space::format::{CommitSeq, FileKind, Ino, Name, StoreId};
use std::collections::HashSet;
use std::sync::Arc;

/// How long a program may take between setting a file aside and the end of its save, nanoseconds.
const ASIDE_NS: i64 = 60_000_000_000;
/// Files that are remembered.
const ASIDES_MAX: usize = 64;

impl Asides {
    /// Forgets what is too old, or of a time to come: the clock was set back.
    fn settle(&mut self, now_ns: i64) {
        (self.0).retain(|one| (0..ASIDE_NS).contains(&now_ns.saturating_sub(one.at_ns)));
    }

    /// A file is not set aside.
    pub fn forget(&mut self, store: StoreId, ino: Ino) {
        self.0.retain(|one| (one.store, one.ino) != (store, ino));
    }

    /// One that was taken out, and is set aside still.
    pub fn put_back(&mut self, aside: Aside) {
        self.forget(aside.store, aside.ino);
        let at = self.0.partition_point(|one| one.at_ns <= aside.at_ns);
        self.0.insert(at, aside);
    }

    fn find(&self, is_it: impl Fn(&Aside) -> bool) -> Option<usize> {
        self.0.iter().rposition(is_it)
    }
}

/// Whether `name` is that of a backup of what is called `of`.
pub fn is_backup(name: &Name, of: &Name) -> bool {
    name.as_bytes().strip_suffix(b"~") == Some(of.as_bytes())
}

impl WriteGuard<'_> {
    /// Notes that a regular file with this name only gets another one.
    pub fn set_aside(&self, node: &Node, (dir, name): (&Node, &Name), new_name: (&Node, &Name)) {
        self.push_undo(Undo::AsideAdded(node.store, node.ino));
        let mut asides = lock(&self.engine().asides);
        asides.settle(self.now_ns);
        if let Some(index) = asides.find(|one| (one.store, one.ino) == (node.store, node.ino)) {
            asides.0.remove(index);
        }
        if asides.0.len() == ASIDES_MAX {
            asides.0.pop_front();
        }
        asides.0.push_back(Aside {
            store: node.store,
            ino: node.ino,
            dir: dir.ino,
            name: name.clone(),
            is_backup: dir.ino == new_name.0.ino && is_backup(new_name.1, name),
            at_ns: self.now_ns,
        });
    }

    /// A regular file gets a name that was free: if another one was renamed from it to that of a
    /// backup, this is its file now (`SAVE-2`).
    pub fn fill_name(&self, node: &Arc<Node>, dir: &Node, name: &Name) -> Result<()> {
        let engine = self.engine();
        let ino = {
            let mut asides = lock(&engine.asides);
            if asides.0.is_empty() {
                return Ok(());
            }
            asides.settle(self.now_ns);
            let is_it = |one: &Aside| {
                (one.store, one.dir) == (dir.store, dir.ino) && one.is_backup && one.name == *name
            };
            let Some(index) = asides.find(is_it) else {
                return Ok(());
            };
            let ino = asides.0[index].ino;
            if let Some(aside) = asides.0.remove(index) {
                self.push_undo(Undo::AsideTaken(aside));
            }
            ino
        };
        let Ok(backup) = Name::new(&[name.as_bytes(), b"~"].concat()) else {
            return Ok(());
        };
        if ino == node.ino || self.find_entry(dir, &backup)? != Some(ino) {
            return Ok(());
        }
        let old = self.node(dir.store, ino)?;
        self.hand_over(&old, node, false)
    }

    /// The file that has the name which `node`, a regular file that is being removed, had before.
    pub fn find_successor(&self, node: &Node) -> Result<Option<Arc<Node>>> {
        let engine = self.engine();
        let (dir, name) = {
            let mut asides = lock(&engine.asides);
            if asides.0.is_empty() {
                return Ok(None);
            }
            asides.settle(self.now_ns);
            let is_it = |one: &Aside| (one.store, one.ino) == (node.store, node.ino);
            let Some(aside) = asides.find(is_it).and_then(|index| asides.0.remove(index)) else {
                return Ok(None);
            };
            let at = (aside.dir, aside.name.clone());
            self.push_undo(Undo::AsideTaken(aside));
            at
        };
        let Ok(dir) = self.node(node.store, dir) else {
            return Ok(None); // It was removed, with the name.
        };
        let Some(ino) = self.find_entry(&dir, &name)?.filter(|ino| *ino != node.ino) else {
            return Ok(None);
        };
        let successor = self.node(node.store, ino)?;
        if successor.kind() != FileKind::File {
            return Ok(None);
        }
        self.touch_row(&successor)?;
        Ok(Some(successor))
    }

    /// Lets what is attached to `from`, which stays, go over to `to` (`SAVE-2`); `is_forced`:
    /// whatever the store says of saves.
    pub(crate) fn hand_over(
        &self,
        from: &Arc<Node>,
        to: &Arc<Node>,
        is_forced: bool,
    ) -> Result<()> {
        let is_fresh = from.lock().is_fresh;
        let save = Save {
            store: from.store,
            from: from.ino,
            to: to.ino,
            is_forced,
        };
        self.touch_row(from)?;
        self.touch_row(to)?;
        self.add_save(save, is_fresh);
        Ok(())
    }

    /// Makes an inode the file with this `file_id` again, if no other one is (`SAVE-1`).
    pub fn set_file_id(&self, node: &Arc<Node>, file_id: i64) -> Result<()> {
        self.touch_row(node)?;
        let id = (node.store, node.ino, file_id);
        lock(&self.engine().group).file_ids.push(id);
        self.push_undo(Undo::FileIdAdded);
        Ok(())
    }

    /// Takes a save back, whatever the store says of saves by now: what users attached to `from`
    /// goes to `to` (`SAVE-2`).
    pub fn save_back(&self, from: &Arc<Node>, to: &Arc<Node>) -> Result<()> {
        self.hand_over(from, to, true)
    }

    /// Lets the next commit write an inode's row, as it is.
    fn touch_row(&self, node: &Arc<Node>) -> Result<()> {
        let mut state = self.engine().lock_node(node)?;
        self.step("touch a row")?;
        self.remember(node, &state);
        state.mask.ctime = true;
        self.mark_dirty(node, &mut state);
        Ok(())
    }

    /// Notes a save, in the group and for the rules.
    pub(crate) fn add_save(&self, save: Save, is_fresh: bool) {
        self.note_save(save);
        if let Some(undo) = lock(&self.engine().group).add_save(save, is_fresh) {
            self.push_undo(undo);
        }
    }
}

impl EngineNamespace<'_> {
    /// The inode that is now the file that inode `ino` was after commit `seq`, and is no more: it
    /// was saved since. Cost: a lookup, and the commit of saves that wait for one.
    pub fn saved_as(&self, store: StoreId, ino: Ino, seq: CommitSeq) -> Result<Option<Ino>> {
        self.check_running()?;
        if self.private.is_none() {
            self.commits().sync_if(|group| !group.saves.is_empty())?;
        }
        Ok(self.catalog.stores().saved_as(store, ino, seq)?)
    }
}

/// Leaves out what was saved to inodes that came and went in this group, `unknown` to the catalog,
/// and lets what goes come last (`SAVE-2`).
pub(crate) fn settle(unknown: impl Iterator<Item = (StoreId, Ino)>, set: &mut ChangeSet) {
    if set.saves.is_empty() && set.file_ids.is_empty() {
        return;
    }
    let unknown: HashSet<(StoreId, Ino)> = unknown.collect();
    set.saves
        .retain(|save| !unknown.contains(&(save.store, save.to)));
    set.file_ids
        .retain(|&(store, ino, _)| !unknown.contains(&(store, ino)));
    (set.inodes).sort_by_key(|(_, change)| matches!(change, InodeChange::Delete(_)));
}
