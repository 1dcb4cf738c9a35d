//! The proof that names and attributes may be changed, and the list that takes a change back.
//!
//! # Words
//! A *step* is one change of something in memory: a row, an entry, an extended attribute, a list of
//! the open group. An *operation* is the steps between the guard's begin and its end. The *undo
//! list* has for each inode that a step touched what it was before the first one, and for each
//! other step what takes it back.
//!
//! ```text
//!  write() ─▶ open ─step─▶ touched ─step─▶ … ─commit()─▶ rules asked ─accepted─▶ in the group
//!               │            │                                │ refused
//!               └─ dropped ──┴──────────── undo ◀─────────────┘
//! ```
//!
//! # Invariants
//! * `GUARD-1` Who changes names or attributes holds the writer lock, the freeze barrier and the
//!   namespace, by a [`WriteGuard`]. *Guard*: the functions that change are its methods.
//! * `GUARD-2` A guard that is dropped without [`WriteGuard::commit`] leaves nothing: names,
//!   attributes, links, the list of the open group, orphans and saves are as before, and what an
//!   unlink would let go of content was not let go yet. *Guard*: the undo list; a test fails every
//!   step of every operation, and compares the tree, the space and the group. What other threads
//!   write to the content of the same inodes meanwhile stays.
//! * `GUARD-3` In a store with rules of the user's an operation is asked about before it is
//!   answered, as a whole, behind what the group has answered and not committed (`rules`). *Guard*:
//!   [`WriteGuard::commit`].

use crate::Result;
use crate::commit::NameChange;
use crate::engine::{Edit, Engine, EngineNamespace, lock};
use crate::view::node::{Node, NodeState};
use crate::write::{Asked, NodeBefore, Undo, UndoList};
use larder_catalog::{InodeChange, Save};
use std::cell::RefCell;
use std::collections::HashSet;
use std::mem::take;
use std::sync::{Arc, RwLockReadGuard, RwLockWriteGuard};

/// Changes of names that one group has, before another operation begins.
const NAME_CHANGES_MAX: usize = 1 << 14;
/// The memory of an undo list as long as this is not kept for the next operation.
const UNDO_KEPT_MAX: usize = 64;

/// A change of names and attributes under way: all of it is seen at once, and is in one commit.
/// Dropped without [`WriteGuard::commit`] it has not happened (`GUARD-2`).
pub struct WriteGuard<'e> {
    engine: &'e Engine,
    // Dropped in this order: the writer lock last. The undo list was emptied before.
    _names: RwLockWriteGuard<'e, ()>,
    _barrier: RwLockReadGuard<'e, ()>,
    _edit: Edit<'e>,
    undo: RefCell<UndoList>,
    /// The present, nanoseconds since 1970: one moment for the whole change.
    pub now_ns: i64,
}

impl<'e> EngineNamespace<'e> {
    /// Begins a change; waits for the writer lock.
    pub fn write_guard(&self) -> Result<WriteGuard<'e>> {
        self.begin_write(self.engine.edit()?)
    }

    /// The same for a user of the writer lock.
    pub(crate) fn begin_write(&self, edit: Edit<'e>) -> Result<WriteGuard<'e>> {
        if self.rules.is_full() || lock(&self.group).names.len() >= NAME_CHANGES_MAX {
            // Each operation is asked about behind all that wait: that they are few bounds what it
            // costs. Names changed again and again are to take no more memory than that.
            self.commits().commit_now()?;
        }
        debug_assert!(self.writer_lock.is_held(), "GUARD-1");
        let barrier = self.engine.enter_barrier();
        let names = self.engine.write_names();
        Ok(WriteGuard {
            engine: self.engine,
            _names: names,
            _barrier: barrier,
            _edit: edit,
            undo: RefCell::new(take(&mut *lock(&self.undo_list))),
            now_ns: self.now_ns(),
        })
    }
}

impl<'e> WriteGuard<'e> {
    /// The engine that is changed.
    pub(crate) fn engine(&self) -> &'e Engine {
        self.engine
    }

    /// Ends the operation: from here on it is in the open group.
    /// [`crate::ErrorKind::NotPermitted`], and nothing is left of it, if a rule of the user's
    /// refuses it (`GUARD-3`).
    pub fn commit(self) -> Result<()> {
        if self.undo.borrow().is_over {
            return Ok(()); // With the content that it set.
        }
        self.step("commit")?;
        if !self.undo.borrow().is_asked {
            self.ask_rules(None)?;
        }
        self.finish();
        Ok(())
    }

    /// The operation cannot be taken back from here on: what an unlink lets go goes.
    pub(crate) fn finish(&self) {
        let mut undo = self.undo.borrow_mut();
        undo.is_over = true;
        for before in &undo.nodes {
            let mut state = before.node.lock();
            if state.row.nlink == 0 && before.row.nlink > 0 && state.is_journal() {
                self.engine.background().wish_commit();
            }
            if state.is_deleted && !before.is_deleted {
                self.engine.content().discard(&mut state, 0, u64::MAX);
            }
        }
        // NAMES-1
        if self.engine.private.is_some() || self.engine.catalog.is_clients() {
            return;
        }
        let change = |step: Undo| match step {
            Undo::Entry {
                dir, name, target, ..
            } => Some(NameChange {
                dir: (dir.store, dir.ino),
                name,
                target,
                is_last: false,
            }),
            _ => None,
        };
        let names = &mut lock(&self.engine.group).names;
        let count = names.len();
        names.extend(undo.steps.drain(..).filter_map(change));
        if let Some(last) = names[count..].last_mut() {
            last.is_last = true;
        }
    }

    /// Asks the rules about all that was touched, with the length that one of the files gets.
    pub(crate) fn ask_rules(&self, grown: Option<(&Node, u64)>) -> Result<()> {
        if !self.engine.rules().has_rules() {
            return Ok(());
        }
        let mut undo = self.undo.borrow_mut();
        let mut asked = Asked::default();
        for before in &undo.nodes {
            let (store, ino) = (before.node.store, before.node.ino);
            if !self.engine.rules().is_constrained(store) {
                continue;
            }
            let state = before.node.lock();
            // Also what somebody has open goes in the end.
            let is_gone = state.is_deleted
                || state.is_parting
                || (state.row.nlink == 0 && before.row.nlink > 0);
            let mut change = match is_gone {
                true if before.is_new => continue,
                true => InodeChange::Delete(ino),
                false => InodeChange::Update(state.row.clone(), state.mask),
            };
            if let (InodeChange::Update(row, mask), Some((node, size_bytes))) = (&mut change, grown)
                && std::ptr::eq(node, &*before.node)
            {
                (row.size_bytes, mask.size) = (size_bytes, true);
            }
            asked.rows.push((store, change));
            if before.is_new {
                continue;
            }
            // What is removed before it was ever committed is none of the commit's changes.
            asked.is_unknown |= !is_gone && (state.is_fresh || state.is_committing);
            if before.in_group || state.is_committing || state.is_fresh {
                let row = InodeChange::Update(before.row.clone(), before.mask);
                asked.before.inodes.push((store, row));
            }
        }
        // The first step says what was before the operation.
        let (mut names, mut xattrs) = (HashSet::new(), HashSet::new());
        for step in &undo.steps {
            match step {
                Undo::Entry {
                    dir, name, before, ..
                } if self.engine.rules().is_constrained(dir.store) => {
                    let is_first = names.insert((dir.store, dir.ino, name));
                    if let Some(before) = before.as_ref().filter(|_| is_first) {
                        let target = before.target.map(|(ino, _)| ino);
                        let entry = (dir.store, dir.ino, name.clone(), target);
                        asked.before.dirents.push(entry);
                    }
                    let target = dir.lock().entries.get(name).and_then(|delta| delta.target);
                    let entry = (dir.store, dir.ino, name.clone(), target.map(|(ino, _)| ino));
                    asked.entries.push(entry);
                }
                Undo::Xattr { node, name, before }
                    if self.engine.rules().is_constrained(node.store) =>
                {
                    if xattrs.insert((node.store, node.ino, name)) {
                        let value = (node.store, node.ino, name.clone(), before.clone());
                        asked.before.xattrs.push(value);
                    }
                    let state = node.lock();
                    let value = state.xattrs.as_ref().and_then(|all| all.get(name)).cloned();
                    (asked.xattrs).push((node.store, node.ino, name.clone(), value));
                }
                _ => {}
            }
        }
        undo.is_asked = true;
        asked.saves = undo.saves.clone();
        drop(undo);
        self.engine.rules().ask_rules(asked)
    }

    /// What precedes every step on an inode, whose state is locked.
    pub(crate) fn remember(&self, node: &Arc<Node>, state: &NodeState) {
        let mut undo = self.undo.borrow_mut();
        undo.is_asked = false;
        let is_known = |before: &NodeBefore| Arc::ptr_eq(&before.node, node);
        if undo.nodes.iter().rev().any(is_known) {
            return;
        }
        undo.nodes.push(NodeBefore {
            node: node.clone(),
            row: state.row.clone(),
            mask: state.mask,
            xattrs_dirty: state.xattrs_dirty.clone(),
            parent: state.parent,
            generation: state.generation,
            in_group: state.in_group,
            is_deleted: state.is_deleted,
            is_anonymous: state.is_anonymous,
            is_linkable: state.is_linkable,
            is_new: false,
            touch_count: state.touch_count,
            own_touch_count: 0,
        });
    }

    /// The same of one that this operation makes.
    pub(crate) fn remember_new(&self, node: &Arc<Node>, state: &NodeState) {
        self.remember(node, state);
        if let Some(before) = self.undo.borrow_mut().nodes.last_mut() {
            before.is_new = true;
        }
    }

    /// Notes what takes a step back.
    pub(crate) fn push_undo(&self, undo: Undo) {
        let mut list = self.undo.borrow_mut();
        debug_assert!(!list.is_over, "GUARD-2, NAMES-1");
        list.steps.push(undo);
    }

    /// Notes a save, for the rules.
    pub(crate) fn note_save(&self, save: Save) {
        self.undo.borrow_mut().saves.push(save);
    }

    /// Puts a node on the dirty list; [`WriteGuard::remember`] came before.
    pub(crate) fn mark_dirty(&self, node: &Arc<Node>, state: &mut NodeState) {
        let mut undo = self.undo.borrow_mut();
        let mut nodes = undo.nodes.iter_mut().rev();
        let before = nodes.find(|before| Arc::ptr_eq(&before.node, node));
        debug_assert!(before.is_some(), "GUARD-2");
        if let Some(before) = before {
            before.own_touch_count += 1;
        }
        drop(undo);
        self.engine.content().mark_dirty(node, state);
    }

    /// A place where a test lets an operation fail.
    #[inline]
    pub(crate) fn step(&self, name: &'static str) -> Result<()> {
        step(name)
    }

    fn take_back(&self) {
        let undo = take(&mut *self.undo.borrow_mut());
        for step in undo.steps.into_iter().rev() {
            self.take_step_back(step);
        }
        for before in undo.nodes.into_iter().rev() {
            self.restore(before);
        }
    }

    fn take_step_back(&self, step: Undo) {
        let mut group = lock(&self.engine.group);
        match step {
            Undo::Entry {
                dir,
                name,
                before,
                known,
                ..
            } => {
                drop(group);
                let mut state = dir.lock();
                // What a commit has told of meanwhile is the catalog's.
                let committed = self.engine.commit_lock.committed();
                match before.filter(|delta| delta.generation > committed) {
                    Some(delta) => state.entries.insert(name.clone(), delta),
                    None => state.entries.remove(&name),
                }
                // CACHE-1
                match known {
                    Some(target) => self.engine.cache.set_name(&dir, &name, target),
                    None => self.engine.cache.forget_name(&dir, &name),
                }
            }
            Undo::Xattr { node, name, before } => {
                drop(group);
                let mut state = node.lock();
                if let Some(all) = state.xattrs.as_mut() {
                    match before {
                        Some(value) => drop(all.insert(name, value)),
                        None => drop(all.remove(&name)),
                    }
                }
            }
            Undo::OrphanAdded(id, holder) => group.forget_orphan(id, holder),
            Undo::OrphanForgotten(id, holders) => {
                group.orphans_added.push(id);
                let held = holders.into_iter().map(|session| (id.0, id.1, session));
                group.holders_added.extend(held);
            }
            Undo::OrphanAdopted(id) => {
                if let Some(at) = group.orphans_removed.iter().rposition(|&one| one == id) {
                    group.orphans_removed.remove(at);
                }
            }
            Undo::OrphanAgain(id, left) => {
                group.orphans_removed.push(id);
                let holder = left.map(|session| (id.0, id.1, session));
                let at = group.holders_removed.iter();
                if let Some(at) = holder.and_then(|holder| at.rev().position(|one| *one == holder))
                {
                    let index = group.holders_removed.len() - 1 - at;
                    group.holders_removed.remove(index);
                }
            }
            Undo::Parting(node) => {
                if let Some(at) = group
                    .parting
                    .iter()
                    .rposition(|one| Arc::ptr_eq(one, &node))
                {
                    group.parting.remove(at);
                }
                drop(group);
                node.lock().is_parting = false;
            }
            Undo::SaveAdded => drop(group.saves.pop()),
            Undo::SaveMoved(at, to) => {
                if let Some(save) = group.saves.get_mut(at) {
                    save.to = to;
                }
            }
            Undo::FileIdAdded => drop(group.file_ids.pop()),
            Undo::Revived => group.has_revived = false,
            Undo::AsideAdded(store, ino) => {
                drop(group);
                lock(&self.engine.asides).forget(store, ino);
            }
            Undo::AsideTaken(aside) => {
                drop(group);
                lock(&self.engine.asides).put_back(aside);
            }
        }
    }

    fn restore(&self, before: NodeBefore) {
        let node = &before.node;
        let mut state = node.lock();
        let is_ours_alone = state.touch_count == before.touch_count + before.own_touch_count;
        state.parent = before.parent;
        (state.is_anonymous, state.is_linkable) = (before.is_anonymous, before.is_linkable);
        state.is_deleted = before.is_deleted;
        // Blocks are placed by the commit that runs, beside the guard.
        let block_count = state.row.block_count;
        if is_ours_alone {
            state.row = before.row;
            state.row.block_count = block_count;
            // It may have been merged with the catalog's meanwhile.
            state.is_stale |= !state.is_fresh;
            state.mask = before.mask;
            state.xattrs_dirty = before.xattrs_dirty;
            state.generation = before.generation;
        } else {
            // Somebody has written content meanwhile: length, blocks and times are his.
            let row = &mut state.row;
            (row.mode, row.uid, row.gid) = (before.row.mode, before.row.uid, before.row.gid);
            (row.nlink, row.rdev) = (before.row.nlink, before.row.rdev);
        }
        if before.is_new {
            state.is_deleted = true;
            state.row.nlink = 0;
        }
        // What was moved meanwhile is in the group, too.
        let is_moved = state.content.map.is_dirty();
        let is_ours_alone = is_ours_alone && !is_moved;
        if state.in_group && !before.in_group && (is_ours_alone || before.is_new) {
            state.in_group = false;
            lock(&self.engine.group).forget_dirty(node);
        }
        self.engine.rules.take_back(node, &state);
        drop(state);
        if before.is_new {
            self.engine.cache.remove(node.store, node.ino);
        }
    }
}

impl Drop for WriteGuard<'_> {
    fn drop(&mut self) {
        if !self.undo.get_mut().is_over {
            self.take_back();
        }
        let mut list = take(self.undo.get_mut());
        list.nodes.clear();
        list.steps.clear();
        list.saves.clear();
        let longest = list.nodes.capacity().max(list.steps.capacity());
        if longest.max(list.saves.capacity()) <= UNDO_KEPT_MAX {
            (list.is_asked, list.is_over) = (false, false);
            *lock(&self.engine.undo_list) = list;
        }
    }
}

/// A place where a test lets something fail.
#[cfg(not(debug_assertions))]
#[inline]
pub(crate) fn step(_: &'static str) -> Result<()> {
    Ok(())
}

#[cfg(debug_assertions)]
pub(crate) fn step(name: &'static str) -> Result<()> {
    failpoints::pass(name)
}

/// Lets operations of this thread fail at a step (`GUARD-2`). Debug builds only.
#[cfg(debug_assertions)]
pub mod failpoints {
    use crate::{Error, ErrorKind, Result};
    use std::cell::Cell;

    thread_local! {
        static LEFT: Cell<Option<u32>> = const { Cell::new(None) };
        static KIND: Cell<ErrorKind> = const { Cell::new(ErrorKind::Io) };
    }

    /// The step after `left` others fails, once; `None`: none does.
    pub fn fail_after(left: Option<u32>) {
        LEFT.set(left);
    }

    /// As which error steps of this thread fail.
    pub fn fail_as(kind: ErrorKind) {
        KIND.set(kind);
    }

    /// Whether the step was not reached yet.
    pub fn is_armed() -> bool {
        LEFT.get().is_some()
    }

    pub(super) fn pass(name: &'static str) -> Result<()> {
        match LEFT.get() {
            None => Ok(()),
            Some(0) => {
                LEFT.set(None);
                let why = format!("a test lets step '{name}' fail");
                Err(Error::new(KIND.get(), why))
            }
            Some(left) => {
                LEFT.set(Some(left - 1));
                Ok(())
            }
        }
    }
}
