//! From a change set to what is told of it. Pure.

use crate::types::changes::{ChangeSet, InodeChange};
use larder_format::{ChangeRecord, Entry, FileKind, Ino, Operation, StoreId};
use std::collections::{HashMap, HashSet};

type Key = (StoreId, Ino);

/// What a commit of `changes` did, names first; `before` has the inode that each entry of
/// [`ChangeSet::dirents`] named before, where that was asked for.
pub(super) fn collect(changes: &ChangeSet, before: &[Option<Ino>]) -> Vec<ChangeRecord> {
    let mut collected = Collected {
        changes,
        fresh: HashMap::new(),
        lost: HashMap::new(),
        records: Vec::with_capacity(changes.inodes.len()),
    };
    for (store, change) in &changes.inodes {
        if let InodeChange::Insert(row) = change {
            collected.fresh.insert((*store, row.ino), row.kind);
        }
    }
    let fresh = collected.fresh.clone();
    collected.names(before);
    // So that most can be followed one by one: what leaves a name before what takes it, and
    // directories, which have the lower numbers, before what was made in them.
    collected
        .records
        .sort_by_key(|record| match record.operation {
            Operation::Remove(_) => (0, Ino(0)),
            Operation::Rename { .. } => (1, Ino(0)),
            Operation::Create { .. } => (3, record.ino),
            _ => (2, Ino(0)),
        });
    collected.contents(&fresh);
    collected.records
}

struct Collected<'c> {
    changes: &'c ChangeSet,
    /// New inodes that were not told of yet.
    fresh: HashMap<Key, FileKind>,
    /// Names that inodes have lost.
    lost: HashMap<Key, Vec<Entry>>,
    records: Vec<ChangeRecord>,
}

impl Collected<'_> {
    fn tell(&mut self, (store, ino): Key, operation: Operation) {
        self.records.push(ChangeRecord {
            store,
            ino,
            operation,
        });
    }

    fn names(&mut self, before: &[Option<Ino>]) {
        let changes = self.changes;
        for ((store, parent, name, target), had) in changes.dirents.iter().zip(before) {
            if let Some(had) = had.filter(|had| Some(*had) != *target) {
                let entry = Entry {
                    parent: *parent,
                    name: name.clone(),
                };
                self.lost.entry((*store, had)).or_default().push(entry);
            }
        }
        for ((store, parent, name, target), had) in changes.dirents.iter().zip(before) {
            let Some(ino) = target.filter(|ino| *had != Some(*ino)) else {
                continue;
            };
            let key = (*store, ino);
            let to = Entry {
                parent: *parent,
                name: name.clone(),
            };
            let operation = match self.fresh.remove(&key) {
                Some(kind) => Operation::Create {
                    kind,
                    entry: Some(to),
                },
                None => match self.lost.get_mut(&key).and_then(Vec::pop) {
                    Some(from) => Operation::Rename { from, to },
                    None => Operation::Link(to),
                },
            };
            self.tell(key, operation);
        }
        // In the order of the set, so that the same set tells the same.
        for (store, change) in &changes.inodes {
            if let InodeChange::Insert(row) = change
                && let Some(kind) = self.fresh.remove(&(*store, row.ino))
            {
                self.tell((*store, row.ino), Operation::Create { kind, entry: None });
            }
        }
        for ((store, ..), had) in changes.dirents.iter().zip(before) {
            let Some(key) = had.map(|had| (*store, had)) else {
                continue;
            };
            for entry in self.lost.remove(&key).unwrap_or_default() {
                self.tell(key, Operation::Remove(entry));
            }
        }
    }

    fn contents(&mut self, fresh: &HashMap<Key, FileKind>) {
        let changes = self.changes;
        let mut written: HashSet<Key> = HashSet::new();
        written.extend(changes.contents.iter().map(|row| (row.0, row.1)));
        written.extend(changes.map_pages.iter().map(|row| (row.0, row.1)));
        written.extend(changes.map_cuts.iter().map(|row| (row.0, row.1)));
        written.extend(changes.piece_drops.iter().copied());
        written.extend(changes.piece_pages.iter().map(|row| (row.0, row.1)));
        written.extend(changes.redo_rows.iter().map(|row| (row.0, row.1)));
        let directories: HashSet<Key> = (changes.dirents.iter())
            .map(|entry| (entry.0, entry.1))
            .collect();
        for (store, change) in &changes.inodes {
            match change {
                InodeChange::Insert(_) => {}
                InodeChange::Delete(ino) => self.tell((*store, *ino), Operation::Delete),
                InodeChange::Update(row, mask) => {
                    let key = (*store, row.ino);
                    // Blocks that are only moved elsewhere leave the time of change alone.
                    let is_content = mask.mtime && (mask.size || written.contains(&key));
                    let is_listing = directories.contains(&key);
                    if is_content {
                        self.tell(key, Operation::Content);
                    }
                    let has_time = mask.mtime && !is_content && !is_listing;
                    if mask.mode || mask.owner || mask.atime || has_time {
                        self.tell(key, Operation::Attributes);
                    }
                }
            }
        }
        for (store, ino, name, _) in &changes.xattrs {
            if !fresh.contains_key(&(*store, *ino)) {
                self.tell((*store, *ino), Operation::Xattr(name.clone()));
            }
        }
    }
}
