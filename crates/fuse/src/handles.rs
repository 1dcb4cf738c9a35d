//! What is open: files and directories by the number that the kernel was given for them.

use larder::{DirEntry, Error, Name};
use larder_fuse_protocol::{Errno, HandleNumber};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// Entries that one call of the Content API lists.
pub(crate) const DIRECTORY_PAGE_COUNT: usize = 512;

/// Open things by number. Numbers are never reused.
pub(crate) struct Table<T> {
    next: AtomicU64,
    open: RwLock<HashMap<u64, Arc<T>>>,
}

impl<T> Default for Table<T> {
    fn default() -> Table<T> {
        Table {
            next: AtomicU64::new(1),
            open: RwLock::default(),
        }
    }
}

impl<T> Table<T> {
    /// Opens; returns the number.
    pub(crate) fn insert(&self, value: T) -> HandleNumber {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.insert(number, Arc::new(value));
        HandleNumber(number)
    }

    /// What has this number; `EBADF` if nothing has.
    pub(crate) fn find(&self, number: HandleNumber) -> Result<Arc<T>, Errno> {
        let open = self.open.read().unwrap_or_else(PoisonError::into_inner);
        open.get(&number.0).cloned().ok_or(Errno::EBADF)
    }

    /// Closes, once the last request on it is done and the caller has dropped it.
    pub(crate) fn remove(&self, number: HandleNumber) -> Option<Arc<T>> {
        let mut open = self.open.write().unwrap_or_else(PoisonError::into_inner);
        open.remove(&number.0)
    }
}

/// An open directory: everything that it has listed since it was last rewound (`FUSE-4`).
#[derive(Default)]
pub(crate) struct OpenDirectory {
    listing: Mutex<Listing>,
}

impl OpenDirectory {
    /// The listing, for one reader at a time.
    pub(crate) fn listing(&self) -> MutexGuard<'_, Listing> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The entries listed so far. Memory: what was listed.
#[derive(Default)]
pub(crate) struct Listing {
    entries: Vec<DirEntry>,
    is_complete: bool,
}

impl Listing {
    /// Forgets everything: the directory was rewound.
    pub(crate) fn restart(&mut self) {
        *self = Listing::default();
    }

    /// The entry at `index`, or `None` after the last. `load` reads the page that follows a name.
    pub(crate) fn entry(
        &mut self,
        index: usize,
        mut load: impl FnMut(Option<&Name>) -> Result<Vec<DirEntry>, Error>,
    ) -> Result<Option<&DirEntry>, Error> {
        while index >= self.entries.len() && !self.is_complete {
            let page = load(self.entries.last().map(|entry| &entry.name))?;
            self.is_complete = page.len() < DIRECTORY_PAGE_COUNT;
            self.entries.extend(page);
        }
        Ok(self.entries.get(index))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder::{FileKind, Ino, NodeId, StoreId};
    use std::collections::BTreeSet;

    fn page(names: &BTreeSet<u64>, after: Option<&Name>) -> Vec<DirEntry> {
        let text = |number: u64| format!("{number:05}").into_bytes();
        (names.iter())
            .map(|&number| DirEntry {
                name: Name::new(&text(number)).unwrap(),
                node: NodeId {
                    store: StoreId::MAIN,
                    ino: Ino(number),
                },
                kind: FileKind::File,
            })
            .filter(|entry| after.is_none_or(|after| entry.name > *after))
            .take(DIRECTORY_PAGE_COUNT)
            .collect()
    }

    #[test]
    fn offsets_stay_valid_while_entries_come_and_go() {
        let mut names: BTreeSet<u64> = (0..2 * DIRECTORY_PAGE_COUNT as u64).collect();
        let mut listing = Listing::default();
        let mut seen = Vec::new();
        for index in 0.. {
            let Some(entry) = listing
                .entry(index, |after| Ok(page(&names, after)))
                .unwrap()
            else {
                break;
            };
            seen.push(entry.node.ino.0);
            names.remove(&entry.node.ino.0);
        }
        assert!(
            seen.iter().copied().eq(0..2 * DIRECTORY_PAGE_COUNT as u64),
            "FUSE-4"
        );
        assert!(names.is_empty());
        let again = listing.entry(3, |_| unreachable!("FUSE-4")).unwrap();
        assert_eq!(again.map(|entry| entry.node.ino), Some(Ino(3)), "FUSE-4");
        listing.restart();
        assert!(
            listing
                .entry(0, |after| Ok(page(&names, after)))
                .unwrap()
                .is_none()
        );
    }

    #[test]
    fn a_number_is_good_from_open_to_close() {
        let table = Table::default();
        let (one, other) = (table.insert('a'), table.insert('b'));
        assert_ne!(one, other);
        assert_eq!(table.find(one).as_deref(), Ok(&'a'));
        assert_eq!(table.remove(one).as_deref(), Some(&'a'));
        assert_eq!(table.find(one), Err(Errno::EBADF));
        assert_eq!(table.find(other).as_deref(), Ok(&'b'));
    }
}
