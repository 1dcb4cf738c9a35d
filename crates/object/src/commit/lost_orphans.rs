//! Inodes without a name that nobody has open any more: the commit deletes them.

use crate::Result;
use crate::engine::Engine;
use crate::view::extent_map::{ExtentMap, MapSource};
use larder_catalog::{ChangeSet, InodeChange};
use larder_space::format::CommitSeq;

impl Engine {
    /// Inodes that lost their name while another session had them open, and are closed by now.
    pub(super) fn collect_lost_orphans(
        &self,
        horizon: CommitSeq,
        set: &mut ChangeSet,
    ) -> Result<()> {
        for (store, ino) in self.lost_orphans(horizon)? {
            if set.orphans_removed.contains(&(store, ino)) {
                continue;
            }
            let cached = self.cache.find(store, ino);
            let extents = match &cached {
                Some(node) => {
                    let mut state = node.lock();
                    if state.is_deleted
                        || state.in_group
                        || state.is_committing
                        || state.open_count > 0
                    {
                        continue;
                    }
                    state.is_deleted = true;
                    self.drop_kept(&mut state.content);
                    state.content.map.extents(self.map_source(node))?
                }
                None => {
                    let source = MapSource {
                        catalog: &self.catalog,
                        store,
                        ino,
                    };
                    ExtentMap::default().extents(source)?
                }
            };
            self.retire_into(set, (store, ino), extents);
            set.inodes.push((store, InodeChange::Delete(ino)));
            set.orphans_removed.push((store, ino));
        }
        Ok(())
    }
}
