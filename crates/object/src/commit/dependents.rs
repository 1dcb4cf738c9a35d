//! What goes with what a rule refuses: by names, and by blocks (`CONSTRAINT-2`, see `refused`).

use crate::Result;
use crate::engine::Engine;
use larder_catalog::{Held, Save, Sharing};
use larder_space::Cover;
use larder_space::format::{Extent, FileKind, Ino, Name, StoreId};
use std::collections::{HashMap, HashSet};

/// An inode, of all stores.
pub(super) type Id = (StoreId, Ino);

/// A change of a name: directory, name, where it led to, and where it leads.
pub(super) struct Entry {
    pub dir: Id,
    pub name: Name,
    pub old: Option<Ino>,
    pub new: Option<Ino>,
}

/// What was taken out of a commit.
#[derive(Default)]
pub(super) struct TakenOut {
    /// Why: table and rule.
    pub why: HashMap<Id, String>,
    /// Names that stay as they were.
    pub entries: HashSet<(Id, Name)>,
    /// Directories that were removed and stay, for what comes back below them. What else was done
    /// in them is done.
    pub stays: HashSet<Id>,
    /// Saves that are not committed, of files that may go later.
    pub saves: Vec<Save>,
    /// How often an inode had been touched when its content was kept.
    pub kept: HashMap<Id, u64>,
    /// What is not let go of after all.
    pub gone: Vec<Extent>,
    /// What was written in vain.
    pub places: Vec<Extent>,
}

impl TakenOut {
    /// An inode goes with what is taken out.
    pub fn depend(&mut self, id: Id, why: &str) {
        self.why.entry(id).or_insert_with(|| why.to_owned());
    }

    /// A directory is not removed.
    pub fn stay(&mut self, id: Id) {
        if !self.holds(id) {
            self.stays.insert(id);
        }
    }

    pub fn holds(&self, id: Id) -> bool {
        self.why.contains_key(&id)
    }

    pub fn is_empty(&self) -> bool {
        self.why.is_empty()
    }
}

/// What loses its last name in a group.
#[derive(Default)]
pub(super) struct Going {
    pub all: HashSet<Id>,
    pub directories: HashSet<Id>,
}

/// Adds what depends on what is taken out, by names (`CONSTRAINT-2`). A directory that goes stays
/// where a name comes back into it.
fn close(out: &mut TakenOut, entries: &[Entry], going: &Going) {
    loop {
        let mut has_more = false;
        for entry in entries {
            let id = |ino: Ino| (entry.dir.0, ino);
            let (old, new) = (entry.old.map(id), entry.new.map(id));
            let mut ends = [Some(entry.dir), old, new].into_iter().flatten();
            let why = match ends.find_map(|id| out.why.get(&id)) {
                Some(why) => why.clone(),
                None if old.is_some_and(|id| out.stays.contains(&id)) => {
                    "what it replaces stays".to_owned()
                }
                None => continue,
            };
            if !out.entries.insert((entry.dir, entry.name.clone())) {
                continue;
            }
            has_more = true;
            if let Some(id) = new {
                out.depend(id, &why);
            }
            match old {
                Some(id) if going.directories.contains(&id) => out.stay(id),
                Some(id) => out.depend(id, &why),
                None => {}
            }
            if old.is_some() && going.directories.contains(&entry.dir) {
                out.stay(entry.dir);
            }
        }
        if !has_more {
            return;
        }
    }
}

/// What a group does with blocks.
pub(super) struct Blocks<'g> {
    pub allocated: &'g [Held],
    pub retired: &'g [Held],
    pub shared: &'g [Sharing],
    pub saves: &'g [Save],
}

impl Blocks<'_> {
    /// Adds what depends on what is taken out, by names and by blocks: what shares content that
    /// nobody has without it goes with it.
    pub fn close(&self, out: &mut TakenOut, entries: &[Entry], going: &Going) {
        loop {
            close(out, entries, going);
            let before = out.why.len();
            for save in self.saves {
                let from = (save.store, save.from);
                // What users attached to it has no other place.
                if out.holds((save.store, save.to)) && going.all.contains(&from) {
                    out.depend(from, "what it was saved as was refused");
                }
            }
            let is_out = |(_, store, ino): &Held| out.holds((*store, *ino));
            let place = |(extent, ..): &Held| *extent;
            let retired = self.retired.iter();
            let kept = Cover::new(retired.clone().filter(|held| is_out(held)).map(place));
            let let_go = Cover::new(retired.filter(|held| !is_out(held)).map(place));
            let shares = || self.shared.iter().filter(|share| is_out(&share.held));
            // What it has written, has brought back from the past, or has passed on after whoever
            // it has it from let go.
            let written = self.allocated.iter().filter(|held| is_out(held)).map(place);
            let revived = shares().filter(|share| share.as_of.is_some());
            let passed_on = shares().filter(|share| let_go.overlaps(&share.held.0));
            let new = written.chain(revived.chain(passed_on).map(|share| share.held.0));
            let new = Cover::new(new);
            for share in self.shared {
                let (extent, store, ino) = share.held;
                // Redo rows come back with what is kept, and would be written over the past
                // (SHARE-4).
                if new.overlaps(&extent) || (share.as_of.is_some() && kept.overlaps(&extent)) {
                    out.depend((store, ino), "what it shares was refused");
                }
            }
            if out.why.len() == before {
                return;
            }
        }
    }
}

impl Engine {
    /// Adds what depends on what is taken out (`CONSTRAINT-2`).
    pub(super) fn close_over(
        &self,
        out: &mut TakenOut,
        entries: &[Entry],
        blocks: &Blocks<'_>,
        going: &Going,
    ) -> Result<()> {
        let left = entries
            .iter()
            .filter_map(|entry| Some((entry.dir.0, entry.old?)));
        let (left, mut parents) = (left.collect(), HashMap::new());
        loop {
            blocks.close(out, entries, going);
            if !self.close_over_places(out, (entries, &left), going, &mut parents)? {
                return Ok(());
            }
        }
    }

    /// Directories that were moved have a way to the root, without what is taken out: what goes on
    /// that way stays, and where it is a ring, what was moved into it was not. Says whether there
    /// was any. `left`: what had a name before. `parents`: of directories, as the catalog has them.
    fn close_over_places(
        &self,
        out: &mut TakenOut,
        (entries, left): (&[Entry], &HashSet<Id>),
        going: &Going,
        parents: &mut HashMap<Id, Option<Id>>,
    ) -> Result<bool> {
        let mut moved: HashMap<Id, Id> = HashMap::new();
        for entry in entries {
            let is_out = || out.entries.contains(&(entry.dir, entry.name.clone()));
            if let Some(new) = entry.new
                && !is_out()
                && self.is_directory(entry.dir.0, new)?
            {
                moved.insert((entry.dir.0, new), entry.dir);
            }
        }
        let starts: Vec<Id> = moved
            .keys()
            .filter(|id| left.contains(id))
            .copied()
            .collect();
        let mut has_more = false;
        for start in starts {
            let (mut at, mut way) = (start, Vec::new());
            while at.1 != Ino::ROOT {
                if let Some(first) = way.iter().position(|one| *one == at) {
                    for id in way[first..].iter().filter(|id| moved.contains_key(id)) {
                        has_more |= !out.holds(*id);
                        out.depend(*id, "its place was refused");
                    }
                    break;
                }
                if going.directories.contains(&at) && !out.holds(at) && !out.stays.contains(&at) {
                    has_more = true;
                    out.stay(at);
                }
                way.push(at);
                let parent = match moved.get(&at) {
                    Some(dir) => Some(*dir),
                    None => match parents.get(&at) {
                        Some(parent) => *parent,
                        None => {
                            let found = self.patiently(|| self.catalog.parents(at.0, at.1))?;
                            let parent = found.into_iter().next().map(|(dir, _)| (at.0, dir));
                            parents.insert(at, parent);
                            parent
                        }
                    },
                };
                let Some(parent) = parent else { break };
                at = parent;
            }
        }
        Ok(has_more)
    }

    pub(super) fn is_directory(&self, store: StoreId, ino: Ino) -> Result<bool> {
        let kind = match self.cache.find(store, ino) {
            Some(node) => Some(node.kind()),
            None => (self.patiently(|| self.catalog.inode(store, ino))?).map(|row| row.kind),
        };
        Ok(kind == Some(FileKind::Directory))
    }
}

/// Takes those of `retired` that `is_taken` says; what is shared keeps its place among the others.
pub(super) fn take_held(
    retired: &mut Vec<Held>,
    shared: &mut [Sharing],
    is_taken: impl Fn(&Held) -> bool,
) -> Vec<Held> {
    let mut left_before: Vec<usize> = Vec::with_capacity(retired.len() + 1);
    let mut left = 0;
    for held in retired.iter() {
        left_before.push(left);
        left += usize::from(!is_taken(held));
    }
    left_before.push(left);
    for share in shared {
        share.retired_before = left_before[share.retired_before.min(retired.len())];
    }
    let (taken, stays) = retired.drain(..).partition(|held| is_taken(held));
    *retired = stays;
    taken
}
