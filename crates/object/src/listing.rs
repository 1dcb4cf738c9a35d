//! Listing directories: a page of the catalog's entries, with what is not committed yet merged in.

use crate::Result;
use crate::engine::Engine;
use crate::namespace::require_directory;
use crate::node::{EntryDelta, Node};
use larder_catalog::{DirentRow, InodeRow, dirent_order};
use larder_space::format::{FileKind, Ino, Name};
use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;

impl Engine {
    /// At most `limit` entries after `after`, in catalog order. The caller holds the namespace lock.
    pub(crate) fn list(
        &self,
        dir: &Node,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<DirentRow>> {
        self.pages(
            dir,
            after,
            limit,
            |after, want| self.catalog.dirents(dir.store, dir.ino, after, want),
            |row| &row.name,
            |name, (ino, kind)| Ok(DirentRow { name, ino, kind }),
        )
    }

    /// The same with attributes. What was not in memory is remembered: who lists with attributes most
    /// often goes on with what is listed.
    pub(crate) fn list_with_rows(
        &self,
        dir: &Node,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(Name, InodeRow)>> {
        let mut entries = self.pages(
            dir,
            after,
            limit,
            |after, want| {
                self.catalog
                    .dirents_with_rows(dir.store, dir.ino, after, want)
            },
            |(name, _)| name,
            |name, (ino, _)| {
                let node = self.node(dir.store, ino)?;
                Ok((name, self.row(&node)?))
            },
        )?;
        for (name, row) in &mut entries {
            match self.cache.find(dir.store, row.ino) {
                // It may have changed since the last commit.
                Some(node) => *row = self.row(&node)?,
                None => {
                    let node = Node::new(dir.store, row.clone(), false);
                    self.cache.insert(Arc::new(node));
                }
            }
            self.cache.set_name(dir, name, Some(row.ino));
        }
        Ok(entries)
    }

    /// Pages of the catalog from `load`, with the entries that differ from it (`CACHE-1`).
    fn pages<T>(
        &self,
        dir: &Node,
        after: Option<&Name>,
        limit: usize,
        load: impl Fn(Option<&Name>, usize) -> larder_catalog::Result<Vec<T>>,
        name_of: impl Fn(&T) -> &Name,
        make: impl Fn(Name, Target) -> Result<T>,
    ) -> Result<Vec<T>> {
        let mut entries = Vec::new();
        let mut from = after.cloned();
        while entries.len() < limit {
            let want = limit - entries.len();
            // These first: what a commit that ends meanwhile takes out of them is in the page.
            let (deltas, is_cut) = {
                let state = self.lock_node(dir)?;
                require_directory(&state)?;
                state.entries.after(from.as_ref(), want)
            };
            let mut page = load(from.as_ref(), want)?;
            // Beyond the end of a page that goes on, the other one may know more.
            let page_end = page.last().map(&name_of).filter(|_| page.len() == want);
            let deltas_end = deltas.last().map(|(name, _)| name).filter(|_| is_cut);
            let end = match (page_end, deltas_end) {
                (Some(one), Some(other)) if dirent_order(one, other).is_gt() => Some(other),
                (one, other) => one.or(other),
            };
            let end = end.cloned();
            let is_within = |name: &Name| {
                let end = end.as_ref();
                end.is_none_or(|end| dirent_order(name, end).is_le())
            };
            page.truncate(page.partition_point(|row| is_within(name_of(row))));
            let mut page = page.into_iter().peekable();
            for (name, delta) in deltas.into_iter().filter(|(name, _)| is_within(name)) {
                let is_before = |row: &T| dirent_order(name_of(row), &name).is_lt();
                while let Some(row) = page.next_if(is_before) {
                    entries.push(row);
                }
                page.next_if(|row| *name_of(row) == name);
                if let Some(target) = delta.target {
                    entries.push(make(name, target)?);
                }
            }
            entries.extend(page);
            if end.is_none() {
                break;
            }
            from = end;
        }
        entries.truncate(limit);
        Ok(entries)
    }
}

/// The entries of a directory that differ from the catalog's.
#[derive(Default)]
pub(crate) struct EntryDeltas {
    /// In catalog order: names that are UTF-8, then the others; in each, by bytes.
    parts: [BTreeMap<Name, EntryDelta>; 2],
}

impl EntryDeltas {
    fn part_of(name: &Name) -> usize {
        usize::from(std::str::from_utf8(name.as_bytes()).is_err())
    }

    /// What is known of a name.
    pub fn get(&self, name: &Name) -> Option<&EntryDelta> {
        self.parts[Self::part_of(name)].get(name)
    }

    /// Notes a change.
    pub fn insert(&mut self, name: Name, delta: EntryDelta) {
        self.parts[Self::part_of(&name)].insert(name, delta);
    }

    /// All, in catalog order.
    pub fn iter(&self) -> impl Iterator<Item = (&Name, &EntryDelta)> {
        self.parts.iter().flatten()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.parts.iter().all(BTreeMap::is_empty)
    }

    /// Forgets all.
    pub fn clear(&mut self) {
        self.parts.iter_mut().for_each(BTreeMap::clear);
    }

    /// Keeps those that `keep` says.
    pub fn retain(&mut self, mut keep: impl FnMut(&EntryDelta) -> bool) {
        let parts = self.parts.iter_mut();
        parts.for_each(|part| part.retain(|_, delta| keep(delta)));
    }

    /// Those after `from`, in catalog order, until `count` (at least 1) are entries that exist; and whether
    /// that cut them.
    fn after(&self, from: Option<&Name>, count: usize) -> (Vec<(Name, EntryDelta)>, bool) {
        let mut found = Vec::new();
        let mut left = count;
        let first = from.map_or(0, Self::part_of);
        for (index, part) in self.parts.iter().enumerate().skip(first) {
            let bound = match from {
                Some(from) if index == first => Bound::Excluded(from),
                _ => Bound::Unbounded,
            };
            for (name, delta) in part.range::<Name, _>((bound, Bound::Unbounded)) {
                found.push((name.clone(), *delta));
                left -= usize::from(delta.target.is_some());
                if left == 0 {
                    return (found, true);
                }
            }
        }
        (found, false)
    }
}

/// What an entry leads to.
type Target = (Ino, FileKind);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn changes_come_in_catalog_order_and_are_cut_behind_an_entry() {
        let name = |bytes: &[u8]| Name::new(bytes).unwrap();
        let mut deltas = EntryDeltas::default();
        let target = Some((Ino(7), FileKind::File));
        for (bytes, target) in [
            (&b"\xff"[..], target),
            (b"b", None),
            (b"\xc3\xa9", target),
            (b"a", target),
            (b"c", target),
        ] {
            let generation = 1;
            deltas.insert(name(bytes), EntryDelta { target, generation });
        }
        let after = |from: Option<&[u8]>, count| {
            let from = from.map(name);
            let (found, is_cut) = deltas.after(from.as_ref(), count);
            let bytes: Vec<Vec<u8>> = found
                .iter()
                .map(|(name, _)| name.as_bytes().to_vec())
                .collect();
            (bytes, is_cut)
        };
        let all: Vec<Vec<u8>> = [&b"a"[..], b"b", b"c", b"\xc3\xa9", b"\xff"]
            .iter()
            .map(|name| name.to_vec())
            .collect();
        assert_eq!(after(None, 9), (all.clone(), false));
        assert_eq!(after(None, 2), (all[..3].to_vec(), true));
        assert_eq!(after(Some(b"a"), 1), (all[1..3].to_vec(), true));
        assert_eq!(after(Some(b"\xc3\xa9"), 9), (all[4..].to_vec(), false));
        assert_eq!(after(Some(b"\xfe"), 1), (all[4..].to_vec(), true));
        assert!(
            all.iter()
                .is_sorted_by(|a, b| dirent_order(&name(a), &name(b)).is_lt())
        );
        assert_eq!(deltas.iter().count(), 5);
        assert!(deltas.get(&name(b"\xff")).is_some() && deltas.get(&name(b"\xfe")).is_none());
        deltas.retain(|delta| delta.target.is_none());
        assert_eq!(deltas.iter().count(), 1);
        deltas.clear();
        assert!(deltas.is_empty());
    }
}
