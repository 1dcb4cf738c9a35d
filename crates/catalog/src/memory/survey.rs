//! Looking through all that a catalog in memory holds.

use super::MemorySurvey;
use crate::{InodeRow, Result, SharedPages};
use larder_format::{CommitSeq, Ino, StoreId};
use std::collections::BTreeSet;
use std::ops::Bound;

impl MemorySurvey<'_> {
    /// At most `limit` inodes after `after`, in order.
    pub fn inodes(
        &self,
        store: StoreId,
        after: Option<Ino>,
        limit: usize,
    ) -> Result<Vec<InodeRow>> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        self.0.read_tables(store, |tables| {
            let inodes = tables.inodes.range((from, Bound::Unbounded)).take(limit);
            inodes.map(|(_, inode)| inode.row.clone()).collect()
        })
    }

    /// Number of inodes of a store.
    pub fn inode_count(&self, store: StoreId) -> Result<u64> {
        self.0
            .read_tables(store, |tables| tables.inodes.len() as u64)
    }

    /// Blocks in live extents, and in retired ones.
    pub fn extent_totals(&self) -> Result<(u64, u64)> {
        self.0.read(|state| {
            Ok(state
                .space
                .extents()
                .fold((0, 0), |(live, retired), row| match row.retired_seq {
                    None => (live + row.extent.block_count, retired),
                    Some(_) => (live, retired + row.extent.block_count),
                }))
        })
    }

    /// Proves the structure of what it holds. Returns one line per finding; none means sound.
    pub fn check(&self) -> Result<Vec<String>> {
        self.0.read(|state| {
            let mut findings = Vec::new();
            state.check_space(&mut findings);
            state.check_holders(&mut findings);
            for (owner, tables) in &state.tables {
                let store = state.store(*owner)?;
                tables.check(&store.row.name, store.next_ino, &mut findings);
                let orphans: BTreeSet<Ino> = (state.orphans.keys())
                    .filter(|(of, _)| of == owner)
                    .map(|(_, ino)| *ino)
                    .collect();
                tables.check_orphans(&store.row.name, &orphans, &mut findings);
            }
            Ok(findings)
        })
    }

    /// What cannot be read for damage: nothing.
    pub fn damage(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// The user's triggers and views: there are none.
    pub fn users_code(&self) -> Result<Vec<String>> {
        Ok(Vec::new())
    }

    /// Pages that several maps have: none.
    pub fn shared_pages(&self) -> Result<SharedPages> {
        Ok(SharedPages::default())
    }

    /// Those that go when the history of all stores goes up to `base`: none.
    pub fn retired_pages(&self, _base: CommitSeq) -> Result<SharedPages> {
        Ok(SharedPages::default())
    }
}
