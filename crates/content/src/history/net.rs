//! Net changes of inodes, and the paths that they had.

use crate::database::Database;
use larder_object::format::{CommitSeq, FileKind, Ino, Name, StoreId};
use larder_object::{HistoryReader, InodeRow, Result};
use std::collections::HashMap;
use std::rc::Rc;

/// No path has more components.
const DEPTH_MAX: usize = 4096;

/// An inode that is there.
pub(crate) struct State {
    pub(crate) row: InodeRow,
    /// Its names, with their directories; the root has none.
    pub(crate) names: Vec<(Ino, Name)>,
}

/// What became of an inode between two states of the database.
pub(crate) struct NetChange {
    pub(crate) store: StoreId,
    pub(crate) ino: Ino,
    pub(crate) before: Option<State>,
    pub(crate) after: Option<State>,
    /// Its content was written, or may have been.
    pub(crate) has_content: bool,
    /// Mode, owner, extended attributes, or a time that somebody set.
    pub(crate) has_attributes: bool,
    /// Its user columns have other values, where they are kept.
    pub(crate) has_columns: bool,
}

/// What became of an inode from commit `before` to `after`; `None`: it is there in neither.
pub(crate) fn net_change(
    reader: &HistoryReader<'_>,
    (store, ino): (StoreId, Ino),
    before: CommitSeq,
    after: CommitSeq,
) -> Result<Option<NetChange>> {
    let was = state(reader, (store, ino), before)?;
    let is = state(reader, (store, ino), after)?;
    let (mut has_content, mut has_attributes, mut has_columns) = (false, false, false);
    match (&was, &is) {
        (None, None) => return Ok(None),
        (Some(was), Some(is)) => {
            let (was, is) = (&was.row, &is.row);
            // A move of content to another place writes the map, and nothing else (CONTENT-10).
            has_content = is.kind == FileKind::File
                && (was.size_bytes != is.size_bytes
                    || reader.is_content_written(store, ino, before, after)?);
            has_attributes = (was.mode, was.uid, was.gid) != (is.mode, is.uid, is.gid)
                || (is.kind != FileKind::Directory && !has_content && was.mtime_ns != is.mtime_ns)
                || reader.are_xattrs_touched(store, ino, before, after)?;
            has_columns = reader.are_columns_changed(store, ino, before, after)?;
        }
        _ => {}
    }
    Ok(Some(NetChange {
        store,
        ino,
        before: was,
        after: is,
        has_content,
        has_attributes,
        has_columns,
    }))
}

/// An inode as it was after commit `seq`, if it was there.
pub(crate) fn state(
    reader: &HistoryReader<'_>,
    (store, ino): (StoreId, Ino),
    seq: CommitSeq,
) -> Result<Option<State>> {
    let Some(row) = reader.inode(store, ino, seq)? else {
        return Ok(None);
    };
    let names = reader.names(store, ino, seq)?;
    let is_there = ino == Ino::ROOT || !names.is_empty();
    Ok(is_there.then_some(State { row, names }))
}

/// A directory at a moment.
pub(crate) struct Place {
    /// Its path, without a slash at the end: that of the root is empty.
    pub(crate) path: Vec<u8>,
    /// The directories that lead to it from the root of its store, itself the last.
    pub(crate) chain: Vec<Ino>,
}

/// The paths that directories had.
pub(crate) struct Paths<'r, 'c> {
    reader: &'r HistoryReader<'c>,
    mounts: HashMap<StoreId, Vec<u8>>,
    known: HashMap<(StoreId, Ino, CommitSeq), Rc<Place>>,
}

impl<'r, 'c> Paths<'r, 'c> {
    pub(crate) fn new(database: &Database, reader: &'r HistoryReader<'c>) -> Paths<'r, 'c> {
        let stores = database.read_stores();
        let mount = |mount: &str| match mount {
            "/" => Vec::new(),
            mount => mount.as_bytes().to_vec(),
        };
        Paths {
            reader,
            mounts: stores
                .iter()
                .map(|one| (one.row.store, mount(&one.row.mount)))
                .collect(),
            known: HashMap::new(),
        }
    }

    /// Forgets what will not be asked again.
    pub(crate) fn forget(&mut self) {
        self.known.clear();
    }

    /// A directory as it was after commit `seq`; `None`: it had no path then.
    pub(crate) fn directory(
        &mut self,
        store: StoreId,
        ino: Ino,
        seq: CommitSeq,
    ) -> Result<Option<Rc<Place>>> {
        let mut below: Vec<(Ino, Name)> = Vec::new();
        let mut at = ino;
        let mut place = loop {
            if let Some(known) = self.known.get(&(store, at, seq)) {
                break Rc::clone(known);
            }
            if at == Ino::ROOT {
                break Rc::new(Place {
                    path: self.mounts.get(&store).cloned().unwrap_or_default(),
                    chain: vec![at],
                });
            }
            let name = self.reader.names(store, at, seq)?.into_iter().next();
            let Some((parent, name)) = name.filter(|_| below.len() < DEPTH_MAX) else {
                return Ok(None);
            };
            below.push((at, name));
            at = parent;
        };
        self.known.insert((store, at, seq), Rc::clone(&place));
        for (ino, name) in below.into_iter().rev() {
            place = Rc::new(Place {
                path: [&place.path, &b"/"[..], name.as_bytes()].concat(),
                chain: [&place.chain[..], &[ino]].concat(),
            });
            self.known.insert((store, ino, seq), Rc::clone(&place));
        }
        Ok(Some(place))
    }
}
