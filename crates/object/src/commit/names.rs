//! What operations did to names, in their order, and what of it is left without what is refused.
//!
//! # Words
//! An *operation* changes one name (it makes, links, removes) or several (it renames, exchanges).
//! It is *about* the directories of these names, what they led to and what they lead to; the
//! latter two are its *subjects*. The operations of a group are *replayed* without what was taken
//! out: a name then leads to what it leads to in a history in which that was never asked for.
//!
//! # Invariants
//! * `NAMES-1` A group has every change of a name that was answered in it, in the order of the
//!   answers, and nothing of an operation that was taken back. *Guard*: an operation is noted where
//!   its guard ends, with the namespace lock and the freeze barrier held. Where commits are refused
//!   as a whole, none is.
//! * `NAMES-2` An operation is refused if something that it is about was taken out, if one of its
//!   names leads elsewhere than when it was answered, if a directory that it removes is not empty,
//!   or if it moves a directory below itself. Then its subjects are taken out, but for a directory
//!   that it was to remove: that one stays, and what else was done in it is done. Each operation is
//!   judged when all before it that are left are known; what one look at a set has refused, the
//!   next one does not accept. *Guard*: [`Names::replay`]; two models.
//!
//! # Cost
//! Nothing but the list, unless something is refused. Then a replay, and one more for each time
//! that an operation refuses one before it; what is about one inode goes at once.

use crate::Result;
use crate::commit::NameChange;
use crate::commit::taken_out::{Id, TakenOut};
use crate::engine::Engine;
use larder_space::format::{FileKind, Ino, Name, StoreId};
use std::collections::{HashMap, HashSet};

/// What a name leads to.
#[derive(Clone, Copy)]
pub(super) struct Known {
    /// In the catalog.
    pub committed: Option<Ino>,
    /// After them, as the next one sees it.
    seen: Option<Ino>,
    /// After those that are left.
    pub left: Option<Ino>,
}

impl Known {
    /// The name leads elsewhere than the operations said.
    pub fn is_other(&self) -> bool {
        self.seen != self.left
    }
}

/// An operation, and what it is about.
struct Step {
    /// What it did to names, in its order.
    operation: Vec<NameChange>,
    /// What its names led to, as it saw them.
    was: Vec<Option<Ino>>,
    /// What goes with it: its subjects, without directories that it removes and that the catalog
    /// knows.
    subjects: Vec<Id>,
    /// Directories that it removes, and whether the catalog knows them.
    removed: Vec<(Id, bool)>,
    /// Directories that get a place: in which directory, and whether they had one.
    placed: Vec<(Id, Id, bool)>,
    is_out: bool,
}

impl Step {
    /// Its subjects are taken out; those that were not.
    fn take_out(&self, out: &mut TakenOut, why: &str) -> Vec<Id> {
        let new: Vec<Id> = (self.subjects.iter().copied())
            .filter(|id| !out.holds(*id))
            .collect();
        new.iter().for_each(|id| out.depend(*id, why));
        new
    }
}

/// The names that a group changes, without what was taken out.
#[derive(Default)]
pub(super) struct Names {
    at: HashMap<Id, HashMap<Name, Known>>,
    steps: Vec<Step>,
    /// The steps that are about an inode.
    about: HashMap<Id, Vec<usize>>,
    /// What was taken out, and is out of all that is about it.
    closed: HashSet<Id>,
    /// Of directories, as the catalog has them.
    parents: HashMap<Id, Option<Id>>,
    /// Of directories that operations have given a place.
    places: HashMap<Id, Id>,
    /// The last name that operations have given an inode.
    last: HashMap<Id, (Id, Name)>,
    is_directory: HashMap<Id, bool>,
}

impl Names {
    /// Those of `changes`, of which the catalog has none yet.
    pub fn of(engine: &Engine, changes: Vec<NameChange>) -> Result<Names> {
        let mut names = Names::default();
        names.add(engine, changes)?;
        Ok(names)
    }

    /// Those after the commit of what is left, which others have changed since by `changes`: for
    /// them all of it was done.
    pub fn go_on(self, engine: &Engine, changes: Vec<NameChange>) -> Result<Names> {
        let mut names = Names {
            at: self.at,
            is_directory: self.is_directory,
            ..Names::default()
        };
        for known in names.at.values_mut().flat_map(HashMap::values_mut) {
            known.committed = known.left;
        }
        names.add(engine, changes)?;
        Ok(names)
    }

    /// What the operations that are left did.
    pub fn into_left(self) -> Vec<NameChange> {
        let left = self.steps.into_iter().filter(|step| !step.is_out);
        left.flat_map(|step| step.operation).collect()
    }

    fn add(&mut self, engine: &Engine, changes: Vec<NameChange>) -> Result<()> {
        let mut operation = Vec::new();
        for change in changes {
            let is_last = change.is_last;
            operation.push(change);
            if !is_last {
                continue;
            }
            let operation = std::mem::take(&mut operation);
            let (mut was, mut lost, mut got) = (Vec::new(), Vec::new(), Vec::new());
            for change in &operation {
                let names = self.at.entry(change.dir).or_default();
                let known = match names.get_mut(&change.name) {
                    Some(known) => known,
                    None => {
                        let (dir, name) = (change.dir, change.name.clone());
                        let found = engine
                            .commits()
                            .patiently(|| engine.catalog.tables().dirent(dir.0, dir.1, &name));
                        let found = found?;
                        let known = Known {
                            committed: found,
                            seen: found,
                            left: found,
                        };
                        names.entry(name).or_insert(known)
                    }
                };
                let id = |ino: Ino| (change.dir.0, ino);
                was.push(known.seen);
                lost.extend(known.seen.map(id));
                known.seen = change.target;
                if let Some(target) = change.target.map(id) {
                    got.push((target, change.dir));
                    self.last.insert(target, (change.dir, change.name.clone()));
                }
            }
            let (mut removed, mut placed) = (Vec::new(), Vec::new());
            for id in &lost {
                let is_moved = got.iter().any(|(one, _)| one == id);
                if !is_moved && self.is_directory(engine, *id)? {
                    let row = engine
                        .commits()
                        .patiently(|| engine.catalog.tables().inode(id.0, id.1))?;
                    removed.push((*id, row.is_some()));
                }
            }
            for (id, dir) in &got {
                if self.is_directory(engine, *id)? {
                    placed.push((*id, *dir, lost.contains(id)));
                }
            }
            let mut subjects = lost;
            subjects.extend(got.iter().map(|(id, _)| *id));
            let dirs = operation.iter().map(|change| change.dir);
            let about: HashSet<Id> = subjects.iter().copied().chain(dirs).collect();
            for id in about {
                self.about.entry(id).or_default().push(self.steps.len());
            }
            subjects.retain(|id| !removed.contains(&(*id, true)));
            self.steps.push(Step {
                operation,
                was,
                subjects,
                removed,
                placed,
                is_out: false,
            });
        }
        Ok(())
    }

    /// Whether an operation made or moved the inode, or took a name from it.
    pub fn has_subject(&self, id: Id) -> bool {
        let steps = self.about.get(&id).into_iter().flatten();
        steps
            .into_iter()
            .any(|step| self.steps[*step].subjects.contains(&id))
    }

    /// Directories in which a name leads elsewhere than the operations said, or an operation is
    /// out.
    pub fn touched(&self) -> HashSet<Id> {
        let is_other = |names: &HashMap<Name, Known>| names.values().any(Known::is_other);
        let others = self.at.iter().filter(|(_, names)| is_other(names));
        let others = others.map(|(dir, _)| *dir);
        let out = self.steps.iter().filter(|step| step.is_out);
        let out = out.flat_map(|step| step.operation.iter().map(|change| change.dir));
        others.chain(out).collect()
    }

    /// What is known of the names in a directory.
    pub fn known_in(&self, dir: Id) -> impl Iterator<Item = (&Name, &Known)> {
        self.at.get(&dir).into_iter().flatten()
    }

    /// The last name that operations gave an inode, whatever is left of them.
    pub fn last_of(&self, id: Id) -> Option<&(Id, Name)> {
        self.last.get(&id)
    }

    /// Where operations that are left have put a directory.
    pub fn place_of(&self, dir: Id) -> Option<Id> {
        self.places.get(&dir).copied()
    }

    /// What is to be committed: store by store, names that go first.
    pub fn changes(&self) -> Vec<(StoreId, Ino, Name, Option<Ino>)> {
        let all = self.at.iter();
        let all = all.flat_map(|(dir, names)| names.iter().map(|(name, one)| (*dir, name, one)));
        let changed = all.filter(|(.., known)| known.left != known.committed);
        let change = |(dir, name, known): (Id, &Name, &Known)| {
            let (store, dir) = dir;
            (store, dir, name.clone(), known.left)
        };
        let mut changes: Vec<_> = changed.map(change).collect();
        changes.sort_unstable_by(|(store, dir, name, target), other| {
            let key = (*store, target.is_some(), *dir);
            key.cmp(&(other.0, other.3.is_some(), other.1))
                .then_with(|| name.cmp(&other.2))
        });
        changes
    }

    /// Whether an operation was about this name.
    pub fn knows(&self, dir: Id, name: &Name) -> bool {
        (self.at.get(&dir)).is_some_and(|names| names.contains_key(name))
    }

    /// Whether names of this directory are changed.
    pub fn has_changes_in(&self, dir: Id) -> bool {
        self.at.contains_key(&dir)
    }

    /// By how much a directory has more links than the catalog says.
    pub fn links_of(&mut self, engine: &Engine, dir: Id) -> Result<i32> {
        let known = self.known_in(dir);
        let ends: Vec<_> = known.map(|(_, one)| (one.committed, one.left)).collect();
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

    /// Takes out all that is about what is taken out; the first step that this refuses.
    fn close(&mut self, out: &mut TakenOut) -> Option<usize> {
        let new = out.why.keys().filter(|id| !self.closed.contains(*id));
        let mut new: Vec<Id> = new.copied().collect();
        let mut first = None;
        while let Some(id) = new.pop() {
            if !self.closed.insert(id) {
                continue;
            }
            let why = out.why[&id].clone();
            for index in self.about.get(&id).into_iter().flatten() {
                let step = &mut self.steps[*index];
                if !std::mem::replace(&mut step.is_out, true) {
                    new.extend(step.take_out(out, &why));
                    first = Some(first.map_or(*index, |first: usize| first.min(*index)));
                }
            }
        }
        first
    }

    /// Replays the operations without what is taken out, and takes out what cannot be replayed
    /// (`NAMES-2`).
    pub fn replay(&mut self, engine: &Engine, out: &mut TakenOut) -> Result<()> {
        self.close(out);
        loop {
            let is_out: Vec<bool> = self.steps.iter().map(|step| step.is_out).collect();
            let (why, closed) = (out.why.clone(), self.closed.clone());
            let Some((index, refusal)) = self.replay_all(engine, out)? else {
                return Ok(());
            };
            // What was judged since then was so beside an operation that is refused now.
            for (step, is_out) in self.steps.iter_mut().zip(is_out) {
                step.is_out = is_out;
            }
            (out.why, self.closed) = (why, closed);
            let step = &mut self.steps[index];
            step.is_out = true;
            step.take_out(out, refusal);
            self.close(out);
        }
    }

    /// An operation that refuses one before it, and why it is refused; `None`: all were replayed.
    fn replay_all(
        &mut self,
        engine: &Engine,
        out: &mut TakenOut,
    ) -> Result<Option<(usize, &'static str)>> {
        for known in self.at.values_mut().flat_map(HashMap::values_mut) {
            known.left = known.committed;
        }
        self.places.clear();
        out.stays.clear();
        for index in 0..self.steps.len() {
            if !self.steps[index].is_out
                && let Some(why) = self.replay_one(engine, index)?
            {
                let step = &mut self.steps[index];
                step.is_out = true;
                step.take_out(out, why);
                if self.close(out).is_some_and(|first| first < index) {
                    return Ok(Some((index, why)));
                }
            }
            if self.steps[index].is_out {
                let stay = self.steps[index].removed.iter();
                let stay = stay.filter(|(id, is_committed)| *is_committed && !out.holds(*id));
                out.stays
                    .extend(stay.map(|(id, _)| *id).collect::<Vec<_>>());
            }
        }
        let why = &out.why;
        out.stays.retain(|id| !why.contains_key(id));
        Ok(None)
    }

    /// Why an operation cannot be replayed; `None`: it was.
    fn replay_one(&mut self, engine: &Engine, index: usize) -> Result<Option<&'static str>> {
        let step = &self.steps[index];
        let mut before = Vec::with_capacity(step.was.len());
        let mut why = None;
        for (change, was) in step.operation.iter().zip(&step.was) {
            let names = self.at.get_mut(&change.dir);
            let known = names.and_then(|names| names.get_mut(&change.name));
            let known = known.expect("NAMES-1");
            if known.left != *was {
                why = Some("what had its name was refused");
            }
            before.push(known.left);
            known.left = change.target;
        }
        let is_kept =
            |(id, _): &(Id, bool)| self.known_in(*id).any(|(_, known)| known.left.is_some());
        if why.is_none() && step.removed.iter().any(is_kept) {
            why = Some("the directory that it removes is not empty");
        }
        if why.is_none() {
            for (id, dir, had_place) in step.placed.clone() {
                if had_place && self.is_below(engine, dir, id)? {
                    why = Some("its place was refused");
                }
            }
        }
        let step = &self.steps[index];
        if why.is_none() {
            self.places
                .extend(step.placed.iter().map(|(id, dir, _)| (*id, *dir)));
            return Ok(None);
        }
        for (change, left) in step.operation.iter().zip(before).rev() {
            let names = self.at.get_mut(&change.dir);
            let known = names.and_then(|names| names.get_mut(&change.name));
            known.expect("NAMES-1").left = left;
        }
        Ok(why)
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
                    let found = engine
                        .commits()
                        .patiently(|| engine.catalog.tables().parents(at.0, at.1))?;
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

    fn is_directory(&mut self, engine: &Engine, id: Id) -> Result<bool> {
        if let Some(is_directory) = self.is_directory.get(&id) {
            return Ok(*is_directory);
        }
        let is_directory = kind_of(engine, id.0, id.1)? == Some(FileKind::Directory);
        self.is_directory.insert(id, is_directory);
        Ok(is_directory)
    }
}
pub(super) fn kind_of(engine: &Engine, store: StoreId, ino: Ino) -> Result<Option<FileKind>> {
    Ok(match engine.cache.find(store, ino) {
        Some(node) => Some(node.kind()),
        None => (engine
            .commits()
            .patiently(|| engine.catalog.tables().inode(store, ino))?)
        .map(|row| row.kind),
    })
}
