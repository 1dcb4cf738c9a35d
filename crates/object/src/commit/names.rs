//! What operations did to names, in their order, and what of it is left without what is refused.
//!
//! # Words
//! An *operation* changes one name (it makes, links, removes) or several (it renames, exchanges).
//! Names of a group are *replayed* without what was taken out: a name then leads to what it leads
//! to in a history in which these operations were never answered.
//!
//! # Invariants
//! * `NAMES-1` The open group has every change of a name that is answered and not committed, in
//!   the order of the answers; of an operation that was taken back it has none. *Guard*: a change
//!   is noted and taken back in the step that sets the entry, under the namespace lock.
//! * `NAMES-2` An operation is replayed if nothing that it is about was taken out (directory, what
//!   the name led to, what it leads to), if its names lead to what they led to when it was
//!   answered, if a directory that it removes is empty, and if no directory gets below itself.
//!   Otherwise what it is about is taken out, but for a directory that it was to remove: that one
//!   stays, and what else was done in it is done. *Guard*: [`Names::replay`]; a model.

use crate::Result;
use crate::commit::NameChange;
use crate::commit::taken_out::{Id, TakenOut};
use crate::engine::Engine;
use larder_space::format::{FileKind, Ino, Name};
use std::collections::{HashMap, HashSet};

/// What a name leads to.
#[derive(Clone, Copy, Default)]
pub(super) struct Known {
    /// In the catalog.
    pub committed: Option<Ino>,
    /// Before the changes, as the first operation saw it.
    seen_first: Option<Ino>,
    /// After them, as the next operation sees it.
    pub seen: Option<Ino>,
    /// After those that were replayed.
    pub left: Option<Ino>,
}

impl Known {
    /// The name leads elsewhere than the operations said.
    pub fn is_other(&self) -> bool {
        self.seen != self.left
    }
}

/// The names that a group changes, without what was taken out.
#[derive(Default)]
pub(super) struct Names {
    at: HashMap<Id, HashMap<Name, Known>>,
    /// Of directories, as the catalog has them.
    parents: HashMap<Id, Option<Id>>,
    /// Of directories that operations have given a place.
    places: HashMap<Id, Id>,
    kinds: HashMap<Id, bool>,
}

impl Names {
    /// Those of `changes`, of which the catalog has none yet.
    pub fn of(engine: &Engine, changes: &[NameChange]) -> Result<Names> {
        let mut names = Names::default();
        names.add(engine, changes)?;
        Ok(names)
    }

    /// Those after the commit of what was replayed, which others have changed since by `changes`:
    /// for them all of it was done.
    pub fn go_on(&mut self, engine: &Engine, changes: &[NameChange]) -> Result<()> {
        for known in self.at.values_mut().flat_map(HashMap::values_mut) {
            known.committed = known.left;
            known.seen_first = known.seen;
        }
        self.parents.clear();
        self.add(engine, changes)
    }

    fn add(&mut self, engine: &Engine, changes: &[NameChange]) -> Result<()> {
        for NameChange { dir, name, .. } in changes {
            let names = self.at.entry(*dir).or_default();
            if names.contains_key(name) {
                continue;
            }
            let found = engine.patiently(|| engine.catalog.dirent(dir.0, dir.1, name))?;
            let known = Known {
                committed: found,
                seen_first: found,
                seen: found,
                left: found,
            };
            names.insert(name.clone(), known);
        }
        Ok(())
    }

    /// What is known of a name.
    pub fn get(&self, dir: Id, name: &Name) -> Option<&Known> {
        self.at.get(&dir)?.get(name)
    }

    /// All that lead elsewhere than the operations said.
    pub fn others(&self) -> impl Iterator<Item = (Id, &Name, &Known)> {
        let all = self.at.iter();
        let all = all.flat_map(|(dir, names)| names.iter().map(|(name, one)| (*dir, name, one)));
        all.filter(|(.., known)| known.is_other())
    }

    /// By how much a directory has more links than the catalog says.
    pub fn links_of(&mut self, engine: &Engine, dir: Id) -> Result<i32> {
        let ends = self.at.get(&dir).into_iter().flat_map(HashMap::values);
        let ends: Vec<_> = ends.map(|known| (known.committed, known.left)).collect();
        let mut links = 0;
        for (committed, left) in ends {
            for (ino, change) in [(committed, -1), (left, 1)] {
                if let Some(ino) = ino
                    && self.is_directory(engine, (dir.0, ino))?
                {
                    links += change;
                }
            }
        }
        Ok(links)
    }

    /// Replays `changes` without what was taken out, and adds what depends on that (`NAMES-2`).
    /// Says which operations are left, by their first changes; that they are all that are left is
    /// certain when nothing was added.
    pub fn replay(
        &mut self,
        engine: &Engine,
        changes: &[NameChange],
        out: &mut TakenOut,
    ) -> Result<Vec<bool>> {
        for known in self.at.values_mut().flat_map(HashMap::values_mut) {
            (known.seen, known.left) = (known.seen_first, known.committed);
        }
        self.places.clear();
        let mut is_left = Vec::with_capacity(changes.len());
        for operation in changes.chunk_by(|_, next| !next.is_first) {
            let is_done = self.replay_one(engine, operation, out)?;
            is_left.resize(is_left.len() + operation.len(), is_done);
        }
        Ok(is_left)
    }

    /// Whether the operation is left.
    fn replay_one(
        &mut self,
        engine: &Engine,
        operation: &[NameChange],
        out: &mut TakenOut,
    ) -> Result<bool> {
        let mut refusal = None;
        let (mut before, mut lost, mut got) = (Vec::new(), Vec::new(), Vec::new());
        for change in operation {
            let names = self.at.get_mut(&change.dir);
            let known = names.and_then(|names| names.get_mut(&change.name));
            let known = known.expect("NAMES-1");
            let id = |ino: Ino| (change.dir.0, ino);
            let (was, is) = (known.seen.map(id), change.target.map(id));
            let mut about = [Some(change.dir), was, is].into_iter().flatten();
            if let Some(why) = about.find_map(|id| out.why.get(&id)) {
                refusal = Some(why.clone());
            } else if known.left != known.seen && refusal.is_none() {
                refusal = Some("what had its name was refused".to_owned());
            }
            before.push(known.left);
            (known.seen, known.left) = (change.target, change.target);
            lost.extend(was);
            got.extend(is.map(|id| (id, change.dir)));
        }
        let mut removed: HashSet<Id> = HashSet::new();
        for id in lost
            .iter()
            .filter(|id| !got.iter().any(|(one, _)| one == *id))
        {
            if self.is_directory(engine, *id)? {
                removed.insert(*id);
            }
        }
        if refusal.is_none() {
            let is_kept = |id: &Id| {
                let mut names = self.at.get(id).into_iter().flat_map(HashMap::values);
                out.stays.contains(id) || names.any(|known| known.left.is_some())
            };
            if removed.iter().any(is_kept) {
                refusal = Some("the directory that it replaces stays".to_owned());
            }
        }
        for (id, dir) in got.iter().filter(|(id, _)| lost.contains(id)) {
            let is_ring = refusal.is_none()
                && self.is_directory(engine, *id)?
                && self.is_below(engine, *dir, *id)?;
            if is_ring {
                refusal = Some("its place was refused".to_owned());
            }
        }
        let Some(why) = refusal else {
            for (id, dir) in got {
                if self.is_directory(engine, id)? {
                    self.places.insert(id, dir);
                }
            }
            return Ok(true);
        };
        for (change, left) in operation.iter().zip(before).rev() {
            let names = self.at.get_mut(&change.dir);
            if let Some(known) = names.and_then(|names| names.get_mut(&change.name)) {
                known.left = left;
            }
        }
        for id in lost.into_iter().chain(got.into_iter().map(|(id, _)| id)) {
            // What came and went in the group never was.
            match removed.contains(&id) && self.is_committed(engine, id)? {
                true => out.stay(id),
                false => out.depend(id, &why),
            }
        }
        Ok(false)
    }

    /// Whether directory `at` is `top`, or below it.
    fn is_below(&mut self, engine: &Engine, mut at: Id, top: Id) -> Result<bool> {
        let mut way = HashSet::new();
        while at.1 != Ino::ROOT && way.insert(at) {
            if at == top {
                return Ok(true);
            }
            let known = self.places.get(&at).map(|dir| Some(*dir));
            let parent = match known.or_else(|| self.parents.get(&at).copied()) {
                Some(parent) => parent,
                None => {
                    let found = engine.patiently(|| engine.catalog.parents(at.0, at.1))?;
                    let parent = found.into_iter().next().map(|(dir, _)| (at.0, dir));
                    self.parents.insert(at, parent);
                    parent
                }
            };
            let Some(parent) = parent else { break };
            at = parent;
        }
        Ok(false)
    }

    fn is_committed(&self, engine: &Engine, id: Id) -> Result<bool> {
        let row = engine.patiently(|| engine.catalog.inode(id.0, id.1))?;
        Ok(row.is_some())
    }

    fn is_directory(&mut self, engine: &Engine, id: Id) -> Result<bool> {
        if let Some(is_directory) = self.kinds.get(&id) {
            return Ok(*is_directory);
        }
        let is_directory = engine.kind_of(id.0, id.1)? == Some(FileKind::Directory);
        self.kinds.insert(id, is_directory);
        Ok(is_directory)
    }
}
