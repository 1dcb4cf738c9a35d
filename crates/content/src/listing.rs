//! Listing directories: the entries of a provider, then the stores that are mounted there.

use crate::database::Shown;
use crate::rooms::Nodes;
use crate::stores::MountedStore;
use crate::types::{DirEntry, Metadata, NodeId};
use larder_object::format::{FileKind, Ino, Name};
use larder_object::{ErrorKind, Result};

impl Nodes<'_> {
    /// At most `limit` entries after `after` (`None`: from the start). Fewer than `limit` only at
    /// the end. Stores mounted here come last.
    pub fn read_dir(
        &self,
        node: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<DirEntry>> {
        let (past_entries, mounts) = self.mounts_after(node, after);
        let mut entries = match past_entries {
            true => Vec::new(),
            false => self
                .database
                .shared_provider(node.store)?
                .read_dir(node.ino, after, limit)?,
        };
        let left = limit - entries.len().min(limit);
        entries.extend(mounts.into_iter().take(left));
        Ok(entries)
    }

    /// The same with the attributes of what the entries name. Cost: one scan for a page, about 1 µs
    /// per entry.
    pub fn read_dir_plus(
        &self,
        node: NodeId,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Metadata)>> {
        let (past_entries, mounts) = self.mounts_after(node, after);
        let mut entries = match past_entries {
            true => Vec::new(),
            false => self
                .database
                .shared_provider(node.store)?
                .read_dir_plus(node.ino, after, limit)?,
        };
        let left = limit - entries.len().min(limit);
        for entry in mounts.into_iter().take(left) {
            match self.listed_attr(&entry) {
                Ok(attr) => entries.push((entry, attr)),
                // Its store was made after the moment that this shows.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
        }
        Ok(entries)
    }

    /// The attributes of an entry, as a listing shows them. A store whose history does not reach
    /// the moment that this shows is listed nevertheless, as it is now; only who looks into it is
    /// refused.
    pub fn listed_attr(&self, entry: &DirEntry) -> Result<Metadata> {
        let NodeId { store, ino } = entry.node;
        match self.metadata(entry.node) {
            Err(error) if ino == Ino::ROOT && error.kind() == ErrorKind::InvalidInput => {
                let root = match &self.database.shared.shown {
                    Shown::Past(past) => past.unreached_root(self.database.table_of(store))?,
                    Shown::Present(_) | Shown::Transaction(..) => None,
                };
                root.map(|row| Metadata::of(store, row)).ok_or(error)
            }
            found => found,
        }
    }

    /// Whether `after` names a store that is mounted in directory `node`, which come last; and
    /// those that follow it.
    fn mounts_after(&self, node: NodeId, after: Option<&Name>) -> (bool, Vec<DirEntry>) {
        if node.ino != Ino::ROOT {
            return (false, Vec::new());
        }
        let here = |one: &MountedStore| match &one.place {
            Some((host, name)) if *host == node.store => Some(DirEntry {
                name: name.clone(),
                node: NodeId {
                    store: one.row.store,
                    ino: Ino::ROOT,
                },
                kind: FileKind::Directory,
            }),
            _ => None,
        };
        self.database.refresh_stores();
        let mut mounts: Vec<DirEntry> = self
            .database
            .read_stores()
            .iter()
            .filter_map(here)
            .collect();
        let past = after.and_then(|after| mounts.iter().position(|mount| mount.name == *after));
        mounts.drain(..past.map_or(0, |at| at + 1));
        (past.is_some(), mounts)
    }
}
