//! The parts of a state: what a seal is of, and the digests that tell where a difference is.

use crate::database::Database;
use crate::seal::digest::{Digest, HINT_BYTES, Hasher, hint, name_hint};
use crate::seal::tree::{DoneDirectory, TreeReader};
use larder_object::format::{CommitSeq, StoreId};
use larder_object::{Beginnings, Result, SealedKind, SealedPart};
use std::collections::BTreeMap;

/// Commits whose rows have digests together.
const COMMITS: u64 = 256;
/// In the place of a store: the moments of commits.
pub(crate) const MOMENTS: i64 = -1;

/// All parts of a state.
#[derive(Default)]
pub(crate) struct Parts {
    /// In the order of the state: stores, tables, history.
    pub(crate) list: Vec<SealedPart>,
    /// Directories, which say where a difference is.
    pub(crate) directories: Vec<SealedPart>,
    /// Stores that were there and cannot be read as of then, by name: their histories begin later.
    pub(crate) left_out: Vec<String>,
    pub(crate) file_count: u64,
    pub(crate) content_bytes: u64,
}

impl Parts {
    /// Reads the stores and tables of `past`, a snapshot of `present`.
    pub(crate) fn read(present: &Database, past: &Database) -> Result<Parts> {
        let mut parts = Parts::default();
        let own = own_stores(past)?;
        parts.left_out = own.left_out.into_iter().map(|(_, name)| name).collect();
        for (store, name) in own.shown {
            let mut tree = TreeReader::new(past.shared.shown.past()?, store, false);
            let directories = &mut parts.directories;
            let found = tree.digest(&mut |_, done| {
                directories.push(directory_part(store, done));
                Ok(())
            })?;
            parts
                .list
                .extend(found.map(|found| store_part(store, &name, found)));
            parts.file_count += tree.file_count;
            parts.content_bytes += tree.content_bytes;
        }
        let (seq, _) = past.history().shown().unwrap_or_default();
        let mut tables = present.sql().tracked_tables()?;
        tables.retain(|table| table.since.0 <= seq);
        tables.sort_by_key(|table| table.id);
        for table in tables {
            let part = table_part(present, past, (table.id as u64, &table.name), None)?;
            parts.list.push(part);
        }
        Ok(parts)
    }

    /// Reads what the commits after `after`, up to `upto`, superseded, in the place of what was
    /// read of it before.
    pub(crate) fn read_history(
        &mut self,
        present: &Database,
        after: CommitSeq,
        upto: CommitSeq,
    ) -> Result<()> {
        self.list.retain(|part| part.kind != SealedKind::History);
        self.list.extend(history_parts(present, after, upto)?.0);
        Ok(())
    }

    /// All of them.
    pub(crate) fn all(&self) -> Vec<SealedPart> {
        let all = self.list.iter().chain(&self.directories);
        all.cloned().collect()
    }
}

/// The stores of a moment that have a table of their own, and their names.
pub(crate) struct OwnStores {
    /// They can be read as of then.
    pub(crate) shown: Vec<(StoreId, String)>,
    /// They were there, and their histories begin later (`HISTORY-7`).
    pub(crate) left_out: Vec<(StoreId, String)>,
}

pub(crate) fn own_stores(past: &Database) -> Result<OwnStores> {
    let mut own = OwnStores {
        shown: Vec::new(),
        left_out: Vec::new(),
    };
    for store in past.read_stores().iter() {
        if store.row.store != store.row.table_store {
            continue;
        }
        let list = match past.shared.shown.past()?.is_behind(store.row.store)? {
            true => &mut own.left_out,
            false => &mut own.shown,
        };
        list.push((store.row.store, store.row.name.clone()));
    }
    Ok(own)
}

pub(crate) fn store_part(
    store: StoreId,
    name: &str,
    (digest, entry_count): (Digest, u64),
) -> SealedPart {
    SealedPart {
        kind: SealedKind::Store,
        store: store.0.into(),
        number: 0,
        from: CommitSeq(0),
        name: name.to_owned(),
        columns: Vec::new(),
        entry_count,
        digest,
        hints: Vec::new(),
    }
}

fn directory_part(store: StoreId, done: DoneDirectory) -> SealedPart {
    SealedPart {
        kind: SealedKind::Directory,
        store: store.0.into(),
        number: done.ino.0,
        from: CommitSeq(0),
        name: String::new(),
        columns: Vec::new(),
        entry_count: done.entry_count,
        digest: done.digest,
        hints: done.hints,
    }
}

/// The rows of a tracked table, of `columns`, or of all that it has.
pub(crate) fn table_part(
    present: &Database,
    past: &Database,
    (number, name): (u64, &str),
    columns: Option<&[String]>,
) -> Result<SealedPart> {
    let mut hasher = Hasher::new("table");
    let (mut hints, mut entry_count) = (Vec::new(), 0);
    let mut visit = |key: &[u8], row: &[u8]| {
        hasher.bytes(row);
        hints.extend(row_hint(key, row));
        entry_count += 1;
    };
    let engine = present.shared.shown.engine()?;
    let columns =
        engine
            .history()
            .for_each_past_row(past.shared.shown.view(), name, columns, &mut visit)?;
    Ok(SealedPart {
        kind: SealedKind::Table,
        store: 0,
        number,
        from: CommitSeq(0),
        name: name.to_owned(),
        columns,
        entry_count,
        digest: hasher.end(),
        hints,
    })
}

/// Of a row: of its key, and of all of it.
pub(crate) fn row_hint(key: &[u8], row: &[u8]) -> [u8; HINT_BYTES] {
    let mut hasher = Hasher::new("row");
    hasher.bytes(row);
    let digest = hasher.end();
    let mut found = [0; HINT_BYTES];
    found[..4].copy_from_slice(&name_hint(key));
    found[4..8].copy_from_slice(&hint(&digest));
    found
}

/// What the commits after `after`, up to `upto`, superseded, by store, of up to [`COMMITS`] commits
/// each; and where the history begins. Of a store whose history begins within such commits there is
/// nothing of them.
pub(crate) fn history_parts(
    present: &Database,
    after: CommitSeq,
    upto: CommitSeq,
) -> Result<(Vec<SealedPart>, Beginnings)> {
    let mut parts: Vec<SealedPart> = Vec::new();
    let mut open: BTreeMap<i64, (Hasher, u64)> = BTreeMap::new();
    let (mut from, mut commits, mut last) = (after, 0, after);
    let mut close = |open: &mut BTreeMap<i64, (Hasher, u64)>, from: CommitSeq, to: CommitSeq| {
        for (store, (hasher, entry_count)) in std::mem::take(open) {
            parts.push(SealedPart {
                kind: SealedKind::History,
                store,
                number: to.0,
                from,
                name: String::new(),
                columns: Vec::new(),
                entry_count,
                digest: hasher.end(),
                hints: Vec::new(),
            });
        }
    };
    let begins =
        (present.shared.shown.engine()?)
            .history()
            .for_each_kept(after, upto, &mut |row| {
                let (hasher, count) = open
                    .entry(row.owner)
                    .or_insert_with(|| (Hasher::new("history"), 0));
                hasher.bytes(row.bytes);
                *count += 1;
                last = row.until;
                if row.owner == MOMENTS {
                    commits += 1;
                    if commits % COMMITS == 0 {
                        close(&mut open, from, last);
                        from = last;
                    }
                }
            })?;
    close(&mut open, from, last);
    // What was pruned before is of no seal.
    let first = parts.iter().map(|part| part.from).min();
    for part in &mut parts {
        if Some(part.from) == first {
            part.from = part.from.max(begins.all);
        }
    }
    parts.retain(|part| begins.of(part.store) <= part.from);
    Ok((parts, begins))
}
