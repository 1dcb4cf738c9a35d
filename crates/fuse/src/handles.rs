//! What is open: files and directories by the number that the kernel was given for them.

use crate::history::Open;
use larder::{DirEntry, Error, ErrorKind, Name};
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

/// What an open directory of the past keeps from being closed (`FUSE-10`).
pub(crate) type Held = Option<Arc<Open>>;

/// An open directory: what it has listed since it was last rewound (`FUSE-4`).
pub(crate) struct OpenDirectory {
    listing: Mutex<Listing>,
    _held: Held,
}

impl OpenDirectory {
    pub(crate) fn new(_held: Held) -> OpenDirectory {
        let listing = Mutex::default();
        OpenDirectory { listing, _held }
    }

    /// The listing, for one reader at a time.
    pub(crate) fn listing(&self) -> MutexGuard<'_, Listing> {
        self.listing.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The names listed so far, and the entries of the newest page. Memory: the names, and 8 bytes
/// each.
#[derive(Default)]
pub(crate) struct Listing {
    names: Vec<u8>,
    /// Where in `names` each ends.
    ends: Vec<usize>,
    /// The newest entries listed: as many of the last names.
    page: Vec<DirEntry>,
    is_complete: bool,
}

/// What is at a place of a listing.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Line<'l> {
    /// An entry of the newest page.
    Entry(&'l DirEntry),
    /// A name of an older page: what it leads to now is to be looked up, if it still leads
    /// anywhere.
    Name(Name),
    /// Nothing: all was listed.
    End,
}

impl Listing {
    /// Forgets everything: the directory was rewound.
    pub(crate) fn restart(&mut self) {
        *self = Listing::default();
    }

    /// The line at `index`. `load` reads the page that follows a name.
    pub(crate) fn line(
        &mut self,
        index: usize,
        mut load: impl FnMut(Option<&Name>) -> Result<Vec<DirEntry>, Error>,
    ) -> Result<Line<'_>, Error> {
        while index >= self.ends.len() && !self.is_complete {
            let page = load(self.page.last().map(|entry| &entry.name))?;
            self.is_complete = page.len() < DIRECTORY_PAGE_COUNT;
            for entry in &page {
                self.names.extend(entry.name.as_bytes());
                self.ends.push(self.names.len());
            }
            if !page.is_empty() {
                self.page = page;
            }
        }
        let Some(&end) = self.ends.get(index) else {
            return Ok(Line::End);
        };
        let older = self.ends.len() - self.page.len();
        if let Some(in_page) = index.checked_sub(older) {
            return Ok(Line::Entry(&self.page[in_page]));
        }
        let start = index.checked_sub(1).map_or(0, |before| self.ends[before]);
        let name = Name::new(&self.names[start..end]).map_err(|error| {
            Error::new(
                ErrorKind::Corrupt,
                format!("a listed name is none: {error}"),
            )
        })?;
        Ok(Line::Name(name))
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
        let count = 3 * DIRECTORY_PAGE_COUNT as u64;
        let mut names: BTreeSet<u64> = (0..count).collect();
        let mut listing = Listing::default();
        let mut seen = Vec::new();
        for index in 0.. {
            let line = listing.line(index, |after| Ok(page(&names, after)));
            let Line::Entry(entry) = line.unwrap() else {
                break;
            };
            seen.push(entry.node.ino.0);
            names.remove(&entry.node.ino.0);
            if entry.node.ino.0 < count {
                names.insert(count + entry.node.ino.0 % 2 * 1_000_000);
            }
        }
        assert!(
            seen.iter().copied().take(count as usize).eq(0..count),
            "FUSE-4"
        );
        assert!(names.is_empty(), "what came behind was listed too");
        // Back to any place: the newest page is known, of older ones the names.
        for index in [0, 3, DIRECTORY_PAGE_COUNT, 2 * DIRECTORY_PAGE_COUNT] {
            let line = listing.line(index, |_| unreachable!("FUSE-4")).unwrap();
            let name = Name::new(format!("{index:05}").as_bytes()).unwrap();
            assert_eq!(line, Line::Name(name), "FUSE-4");
        }
        let last = listing.line(seen.len() - 1, |_| unreachable!("FUSE-4"));
        assert!(
            matches!(last.unwrap(), Line::Entry(entry) if entry.node.ino.0 == seen[seen.len() - 1])
        );
        listing.restart();
        let line = listing.line(0, |after| Ok(page(&names, after))).unwrap();
        assert_eq!(line, Line::End);
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
