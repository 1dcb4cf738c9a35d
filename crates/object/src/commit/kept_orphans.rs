//! Orphans that rules of the user's keep: plain data.

use larder_space::format::{Ino, StoreId};
use std::collections::HashMap;
use std::time::{Duration, Instant};

/// Orphans that rules of the user's keep.
#[derive(Debug, Default)]
pub(crate) struct KeptOrphans {
    /// Until when each is not asked about, and how long that was.
    pub(super) by: HashMap<(StoreId, Ino), (Instant, Duration)>,
    /// How often a rule was asked.
    pub(super) tried: u64,
}

impl KeptOrphans {
    /// The rules are others now.
    pub(crate) fn forget(&mut self) {
        self.by.clear();
    }
}
