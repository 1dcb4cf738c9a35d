//! What goes with what a rule refuses: by names (`names`), and by blocks (`CONSTRAINT-2`, see
//! `refused`).

use crate::Result;
use crate::commit::names::Names;
use crate::commit::taken_out::TakenOut;
use crate::engine::Engine;
use larder_catalog::{Held, Save, Sharing};
use larder_space::Cover;

/// What a group does with blocks.
pub(super) struct Blocks<'g> {
    pub allocated: &'g [Held],
    pub retired: &'g [Held],
    pub shared: &'g [Sharing],
    pub saves: &'g [Save],
}

impl Blocks<'_> {
    /// Adds what depends on what is taken out by blocks, once: what shares content that nobody has
    /// without it goes with it, and the names of what was saved as it: what users attached to that
    /// has no other place.
    fn close(&self, out: &mut TakenOut, names: &Names) {
        for save in self.saves {
            let from = (save.store, save.from);
            if out.holds((save.store, save.to)) && names.has_subject(from) {
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
    }
}

/// Adds what depends on what is taken out (`CONSTRAINT-2`).
pub(super) fn close_over(
    engine: &Engine,
    out: &mut TakenOut,
    names: &mut Names,
    blocks: &Blocks<'_>,
) -> Result<()> {
    loop {
        names.replay(engine, out)?;
        let before = out.why.len();
        blocks.close(out, names);
        if out.why.len() == before {
            return Ok(());
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
