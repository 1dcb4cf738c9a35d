//! What goes with what a rule refuses: by names, and by blocks (`CONSTRAINT-2`, see `refused`).

use crate::Result;
use crate::engine::Engine;
use larder_catalog::{Held, Sharing};
use larder_space::Cover;
use larder_space::format::{Extent, Ino, Name, StoreId};
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

    pub fn holds(&self, id: Id) -> bool {
        self.why.contains_key(&id)
    }

    pub fn is_empty(&self) -> bool {
        self.why.is_empty()
    }
}

/// Adds what depends on what is taken out, by names (`CONSTRAINT-2`). A directory among `going`
/// stays where a name comes back into it.
fn close(out: &mut TakenOut, entries: &[Entry], going: &HashSet<Id>) {
    loop {
        let mut has_more = false;
        for entry in entries {
            let id = |ino: Ino| (entry.dir.0, ino);
            let ends = [entry.old, entry.new];
            let cause = (std::iter::once(entry.dir).chain(ends.into_iter().flatten().map(id)))
                .find(|id| out.holds(*id));
            let Some(cause) = cause else { continue };
            let key = (entry.dir, entry.name.clone());
            if !out.entries.insert(key) {
                continue;
            }
            has_more = true;
            let why = out.why[&cause].clone();
            for ino in ends.into_iter().flatten() {
                out.depend(id(ino), &why);
            }
            if entry.old.is_some() && going.contains(&entry.dir) {
                out.depend(entry.dir, &why);
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
}

impl Blocks<'_> {
    /// Adds what depends on what is taken out, by names and by blocks: what shares content that
    /// nobody has without it goes with it.
    pub fn close(&self, out: &mut TakenOut, entries: &[Entry], going: &HashSet<Id>) {
        loop {
            close(out, entries, going);
            let before = out.why.len();
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
    /// Adds what depends on what is taken out (`CONSTRAINT-2`); directories among `going` lose
    /// their last name.
    pub(super) fn close_over(
        &self,
        out: &mut TakenOut,
        entries: &[Entry],
        blocks: &Blocks<'_>,
        going: &HashSet<Id>,
    ) -> Result<()> {
        loop {
            blocks.close(out, entries, going);
            let lost = self.lost_directories(out, entries, going)?;
            if lost.is_empty() {
                return Ok(());
            }
            for id in lost {
                out.depend(id, "its place was refused");
            }
        }
    }

    /// What stands between directories that were moved and the root, without what is taken out:
    /// one that goes, or the directory itself.
    fn lost_directories(
        &self,
        out: &TakenOut,
        entries: &[Entry],
        going: &HashSet<Id>,
    ) -> Result<Vec<Id>> {
        let stays = |entry: &&Entry| !out.entries.contains(&(entry.dir, entry.name.clone()));
        let moved: HashMap<Id, Id> = (entries.iter().filter(stays))
            .filter_map(|entry| Some(((entry.dir.0, entry.new?), entry.dir)))
            .collect();
        let left: HashSet<Id> = (entries.iter())
            .filter_map(|entry| Some((entry.dir.0, entry.old?)))
            .collect();
        let mut lost = Vec::new();
        for &start in moved.keys().filter(|id| left.contains(id)) {
            let (mut at, mut passed) = (start, HashSet::new());
            while at.1 != Ino::ROOT {
                if !passed.insert(at) {
                    lost.push(start);
                    break;
                }
                if at != start && going.contains(&at) && !out.holds(at) {
                    lost.push(at);
                }
                let parents = || self.catalog.parents(at.0, at.1);
                at = match moved.get(&at) {
                    Some(dir) => *dir,
                    None => match self.patiently(parents)?.into_iter().next() {
                        Some((dir, _)) => (at.0, dir),
                        None => break,
                    },
                };
            }
        }
        Ok(lost)
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
