//! What goes with what a rule refuses: by names, and by blocks (`CONSTRAINT-2`, see `refused`).

use larder_catalog::{Held, MapShare, Sharing};
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
}

impl TakenOut {
    pub fn holds(&self, id: Id) -> bool {
        self.why.contains_key(&id)
    }

    pub fn is_empty(&self) -> bool {
        self.why.is_empty()
    }
}

fn depend(out: &mut TakenOut, id: Id, why: &str) {
    out.why.entry(id).or_insert_with(|| why.to_owned());
}

/// Adds what depends on what is taken out, by names (`CONSTRAINT-2`).
fn close(out: &mut TakenOut, entries: &[Entry]) {
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
                depend(out, id(ino), &why);
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
    pub map_shares: &'g [MapShare],
}

impl Blocks<'_> {
    /// Adds what depends on what is taken out, by names and by blocks: what shares content that is
    /// taken out goes with it.
    pub fn close(&self, out: &mut TakenOut, entries: &[Entry]) {
        loop {
            close(out, entries);
            let before = out.why.len();
            let is_out = |(_, store, ino): &&Held| out.holds((*store, *ino));
            let mut new: Vec<Extent> = (self.allocated.iter().filter(is_out))
                .map(|(extent, ..)| *extent)
                .collect();
            // What it has passed on, and whoever it has it from has let go of.
            let let_go = |extent: &Extent| {
                let mut others = self.retired.iter().filter(|held| !is_out(held));
                others.any(|(one, ..)| one.overlaps(extent))
            };
            let shared = self.shared.iter().map(|share| &share.held).filter(is_out);
            new.extend(shared.map(|(extent, ..)| *extent).filter(let_go));
            for share in self.shared {
                let (extent, store, ino) = share.held;
                if new.iter().any(|one| one.overlaps(&extent)) {
                    depend(out, (store, ino), "what it shares was refused");
                }
            }
            for share in self.map_shares {
                if out.holds((share.from_store, share.from_ino)) {
                    let id = (share.store, share.ino);
                    depend(out, id, "what it shares was refused");
                }
            }
            if out.why.len() == before {
                return;
            }
        }
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

/// What of `extents` no extent of `minus` covers.
pub(super) fn subtract(extents: &[Extent], minus: &[Extent]) -> Vec<Extent> {
    let mut left = extents.to_vec();
    for hole in minus {
        let cut = |extent: Extent| -> Vec<Extent> {
            if !extent.overlaps(hole) {
                return vec![extent];
            }
            let from = hole.start_block.max(extent.start_block) - extent.start_block;
            let to = hole.end_block().min(extent.end_block()) - extent.start_block;
            let parts = [(0, from), (to, extent.block_count - to)];
            (parts.into_iter())
                .filter(|(_, count)| *count > 0)
                .map(|(skip, count)| extent.slice(skip, count))
                .collect()
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left
}
