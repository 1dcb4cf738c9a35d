//! What was taken out of a commit (see `refused`).

use larder_catalog::Save;
use larder_space::format::{Extent, Ino, StoreId};
use std::collections::{HashMap, HashSet};

/// An inode, of all stores.
pub(crate) type Id = (StoreId, Ino);

/// What was taken out of a commit.
#[derive(Default)]
pub(super) struct TakenOut {
    /// Why: table and rule.
    pub why: HashMap<Id, String>,
    /// Directories that were removed and stay: what removed them was refused. What else was done in
    /// them is done.
    pub stays: HashSet<Id>,
    /// Saves that are not committed.
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

    pub fn holds(&self, id: Id) -> bool {
        self.why.contains_key(&id)
    }
}
