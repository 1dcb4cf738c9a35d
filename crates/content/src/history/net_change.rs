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
    /// The inode that it was before: another one if it was saved (`SAVE-2`).
    pub(crate) was_ino: Ino,
    /// It tells only of the names of an inode before it became another file by a save, or after.
    pub(crate) is_rest: bool,
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
        was_ino: ino,
        is_rest: false,
        before: was,
        after: is,
        has_content,
        has_attributes,
        has_columns,
    }))
}

/// Makes one change of the two that a save is: the inode that the file was, and the one that it is
/// from then on. What the latter was before, and what the former is if it stays, as a backup, are
/// changes of their own. Cost: 5 µs for each file that is there after, and where some were saved
/// for each that was before.
pub(crate) fn join_saves(
    reader: &HistoryReader<'_>,
    nets: Vec<NetChange>,
    before: CommitSeq,
    after: CommitSeq,
) -> Result<Vec<NetChange>> {
    let is_file = |state: &Option<State>| {
        let kind = state.as_ref().map(|state| state.row.kind);
        kind == Some(FileKind::File)
    };
    let is_gone = |net: &NetChange| is_file(&net.before) && net.after.is_none();
    let mut is_any = nets.iter().any(is_gone);
    let mut files: Vec<(usize, i64)> = Vec::new();
    for (index, net) in nets
        .iter()
        .enumerate()
        .filter(|(_, net)| is_file(&net.after))
    {
        if let Some(id) = reader.file_id(net.store, net.ino, after)? {
            is_any |= id != net.ino.0 as i64;
            files.push((index, id));
        }
    }
    if !is_any || files.is_empty() {
        return Ok(nets);
    }
    let mut were: HashMap<(StoreId, i64), usize> = HashMap::new();
    for (index, net) in nets
        .iter()
        .enumerate()
        .filter(|(_, net)| is_file(&net.before))
    {
        if let Some(id) = reader.file_id(net.store, net.ino, before)? {
            were.insert((net.store, id), index);
        }
    }
    let mut nets: Vec<Option<NetChange>> = nets.into_iter().map(Some).collect();
    for (new, id) in files {
        let store = nets[new].as_ref().map_or(StoreId::MAIN, |net| net.store);
        let old = were.get(&(store, id)).copied().filter(|old| *old != new);
        let Some((old, was, mut is)) = old.and_then(|old| {
            let was = nets[old].take()?;
            Some((old, was, nets[new].take()?))
        }) else {
            continue;
        };
        let rights = |state: &Option<State>| {
            let row = state.as_ref().map(|state| &state.row);
            row.map(|row| (row.mode, row.uid, row.gid))
        };
        let rest = |ino: Ino, before: Option<State>, after: Option<State>| NetChange {
            store,
            ino,
            was_ino: ino,
            is_rest: true,
            before,
            after,
            has_content: false,
            has_attributes: false,
            has_columns: false,
        };
        let had = std::mem::replace(&mut is.before, was.before);
        let (had, left) = (rest(is.ino, had, None), rest(was.ino, None, was.after));
        is.has_attributes = rights(&is.before) != rights(&is.after);
        (is.has_content, is.has_columns) = (true, false);
        is.was_ino = was.ino;
        nets[new] = Some(is);
        nets[old] = Some(had).filter(|had| had.before.is_some());
        nets.push(Some(left).filter(|left| left.after.is_some()));
    }
    Ok(nets.into_iter().flatten().collect())
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
