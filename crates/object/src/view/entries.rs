//! What of a directory's entries is not committed yet.

use larder_space::format::{FileKind, Ino, Name};
use std::collections::BTreeMap;
use std::ops::Bound;

/// What an entry leads to.
pub(crate) type Target = (Ino, FileKind);

/// What a change to a directory's entries leads to: the entry's target, or none.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct EntryDelta {
    pub target: Option<Target>,
    pub generation: u64,
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

    /// Forgets a change.
    pub fn remove(&mut self, name: &Name) {
        self.parts[Self::part_of(name)].remove(name);
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

    /// Those after `from`, in catalog order, until `count` (at least 1) are entries that exist; and
    /// whether that cut them.
    pub fn after(&self, from: Option<&Name>, count: usize) -> (Vec<(Name, EntryDelta)>, bool) {
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

#[cfg(test)]
mod tests {
    use super::*;
    use larder_catalog::dirent_order;

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
