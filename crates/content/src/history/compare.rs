//! Walking two trees side by side, by path, and finding where they differ (`CONTENT-11`).

use crate::copy::read_full;
use crate::database::Database;
use crate::types::{Metadata, NodeId, SeekTarget};
use larder_object::format::{CommitSeq, FileKind, Name, StoreId};
use larder_object::{ErrorKind, HistoryReader, Result};
use std::collections::BTreeMap;

/// Entries that are read at once.
const PAGE: usize = 1000;
/// Content that is compared at once, bytes.
const STEP_BYTES: usize = 1 << 20;
/// User columns show under this prefix.
const COLUMN_PREFIX: &[u8] = b"user.column.";

/// In what two files differ.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Differs {
    pub(crate) kind: bool,
    pub(crate) mode: bool,
    pub(crate) owner: bool,
    pub(crate) xattrs: bool,
    /// The user's columns, where they have a past.
    pub(crate) columns: bool,
    /// The bytes of a file, the target of a symbolic link, the number of a device.
    pub(crate) content: bool,
}

impl Differs {
    pub(crate) fn any(&self) -> bool {
        *self != Differs::default()
    }
}

/// What two trees have at one path.
#[derive(Debug, Clone)]
pub(crate) struct Pair {
    /// Below the roots: empty, or with a slash in front.
    pub(crate) path: Vec<u8>,
    pub(crate) a: Option<Metadata>,
    pub(crate) b: Option<Metadata>,
    /// Nothing, when there is only one.
    pub(crate) differs: Differs,
}

/// A comparison under way.
pub(crate) struct Comparison<'d, 'r, 'c> {
    a: &'d Database,
    b: &'d Database,
    /// Of one database at two moments: what was written between the two.
    between: Option<(&'r HistoryReader<'c>, CommitSeq, CommitSeq)>,
    /// Content that was read, of both.
    pub(crate) read_bytes: u64,
    /// Content of files that are the same inode, of which nothing was written.
    pub(crate) unread_bytes: u64,
}

/// Calls `work` with a comparison of two databases, or of two moments of one.
pub(crate) fn compare<T>(
    a: &Database,
    b: &Database,
    work: impl FnOnce(&mut Comparison<'_, '_, '_>) -> Result<T>,
) -> Result<T> {
    let moment = |database: &Database| match database.history().shown() {
        Some((seq, _)) => CommitSeq(seq),
        None => CommitSeq(u64::MAX),
    };
    let (from, to) = (moment(a).min(moment(b)), moment(a).max(moment(b)));
    if from == to
        || !a
            .shared
            .shown
            .view()
            .moment()
            .is_of_one_database(b.shared.shown.view())
    {
        return work(&mut Comparison::new(a, b, None));
    }
    // One of them shows the past: its catalog reads, whatever the other is in the middle of.
    let past = match a.history().shown() {
        Some(_) => a.shared.shown.view(),
        None => b.shared.shown.view(),
    };
    past.moment()
        .read_history(|reader| work(&mut Comparison::new(a, b, Some((reader, from, to)))))
}

impl<'d, 'r, 'c> Comparison<'d, 'r, 'c> {
    fn new(
        a: &'d Database,
        b: &'d Database,
        between: Option<(&'r HistoryReader<'c>, CommitSeq, CommitSeq)>,
    ) -> Comparison<'d, 'r, 'c> {
        Comparison {
            a,
            b,
            between,
            read_bytes: 0,
            unread_bytes: 0,
        }
    }

    /// The history, if both are of one database.
    pub(crate) fn reader(&self) -> Option<&'r HistoryReader<'c>> {
        self.between.map(|(reader, ..)| reader)
    }

    /// Visits what two roots have at every path of either, a directory before what is in it; of
    /// what is mounted below them, the stores that `is_meant` names.
    pub(crate) fn walk(
        &mut self,
        roots: (Option<Metadata>, Option<Metadata>),
        is_meant: &dyn Fn(StoreId) -> bool,
        visit: &mut dyn FnMut(Pair) -> Result<()>,
    ) -> Result<()> {
        let mut stack = Vec::new();
        self.match_name(Vec::new(), roots, &mut stack, visit)?;
        while let Some((path, a, b)) = stack.pop() {
            let mut entries: BTreeMap<Name, (Option<Metadata>, Option<Metadata>)> = BTreeMap::new();
            let meant = |found: Vec<(Name, Metadata)>| {
                let found = found.into_iter();
                found.filter(|(_, attr)| is_meant(attr.node.store))
            };
            for (name, attr) in meant(list(self.a, a)?) {
                entries.entry(name).or_default().0 = Some(attr);
            }
            for (name, attr) in meant(list(self.b, b)?) {
                entries.entry(name).or_default().1 = Some(attr);
            }
            let waiting = stack.len();
            for (name, found) in entries {
                let below = [&path, &b"/"[..], name.as_bytes()].concat();
                self.match_name(below, found, &mut stack, visit)?;
            }
            stack[waiting..].reverse();
        }
        Ok(())
    }

    fn match_name(
        &mut self,
        path: Vec<u8>,
        (a, b): (Option<Metadata>, Option<Metadata>),
        stack: &mut Vec<(Vec<u8>, Option<NodeId>, Option<NodeId>)>,
        visit: &mut dyn FnMut(Pair) -> Result<()>,
    ) -> Result<()> {
        let directory = |attr: &Option<Metadata>| {
            let attr = attr
                .as_ref()
                .filter(|attr| attr.kind == FileKind::Directory);
            attr.map(|attr| attr.node)
        };
        let below = (directory(&a), directory(&b));
        if below.0.is_some() || below.1.is_some() {
            stack.push((path.clone(), below.0, below.1));
        }
        let differs = match (&a, &b) {
            (Some(a), Some(b)) => self.differences(a, b)?,
            _ => Differs::default(),
        };
        visit(Pair {
            path,
            a,
            b,
            differs,
        })
    }

    /// In what two files differ, `a` of the one database and `b` of the other.
    pub(crate) fn differences(&mut self, a: &Metadata, b: &Metadata) -> Result<Differs> {
        if a.kind != b.kind {
            return Ok(Differs {
                kind: true,
                ..Differs::default()
            });
        }
        let content = match a.kind {
            FileKind::File => !self.is_same_content(a, b)?,
            FileKind::Symlink => {
                self.a.nodes().read_link(a.node)? != self.b.nodes().read_link(b.node)?
            }
            FileKind::CharDevice | FileKind::BlockDevice => a.rdev != b.rdev,
            FileKind::Directory | FileKind::Fifo | FileKind::Socket => false,
        };
        Ok(Differs {
            kind: false,
            mode: a.mode != b.mode,
            owner: (a.uid, a.gid) != (b.uid, b.gid),
            xattrs: !self.has_same_xattrs(a.node, b.node)?,
            columns: !self.has_same_columns(a.node, b.node)?,
            content,
        })
    }

    fn is_same_content(&mut self, a: &Metadata, b: &Metadata) -> Result<bool> {
        if a.size_bytes != b.size_bytes {
            return Ok(false);
        }
        if a.size_bytes == 0 || self.is_untouched(a.node, b.node)? {
            self.unread_bytes = self.unread_bytes.saturating_add(a.size_bytes);
            return Ok(true);
        }
        let (a, b) = (
            self.a.nodes().open(a.node, false)?,
            self.b.nodes().open(b.node, false)?,
        );
        let (mut left, mut right) = (vec![0; STEP_BYTES], vec![0; STEP_BYTES]);
        let mut at = 0;
        loop {
            // Where both have a hole, both have zeros.
            let next = [a.seek(SeekTarget::Data, at)?, b.seek(SeekTarget::Data, at)?];
            let Some(start) = next.into_iter().flatten().min() else {
                return Ok(true);
            };
            let read = (
                read_full(&*a, start, &mut left)?,
                read_full(&*b, start, &mut right)?,
            );
            self.read_bytes += (read.0 + read.1) as u64;
            if left[..read.0] != right[..read.1] {
                return Ok(false);
            }
            if read.0 == 0 {
                return Ok(true);
            }
            at = start + read.0 as u64;
        }
    }

    /// Whether both are one inode, of whose content nothing was written between the two moments.
    fn is_untouched(&self, a: NodeId, b: NodeId) -> Result<bool> {
        self.ask(a, b, |reader, node, from, to| {
            let store = self.a.table_of(node.store);
            Ok(!reader.is_content_touched(store, node.ino, from, to)?)
        })
    }

    fn has_same_xattrs(&self, a: NodeId, b: NodeId) -> Result<bool> {
        let is_untouched = self.ask(a, b, |reader, node, from, to| {
            let store = self.a.table_of(node.store);
            Ok(!reader.are_xattrs_touched(store, node.ino, from, to)?)
        })?;
        Ok(is_untouched || xattrs(self.a, a)? == xattrs(self.b, b)?)
    }

    /// Of two moments of one database, as far as the columns are kept since the earlier one
    /// (`TEMPORAL-4`).
    fn has_same_columns(&self, a: NodeId, b: NodeId) -> Result<bool> {
        let Some((reader, from, to)) = self.between else {
            return Ok(true);
        };
        let store = self.a.table_of(a.store);
        if store != self.b.table_of(b.store) || !reader.keeps_columns(store, from)? {
            return Ok(true);
        }
        match a.ino == b.ino {
            true => Ok(!reader.are_columns_changed(store, a.ino, from, to)?),
            false => Ok(columns(self.a, a)? == columns(self.b, b)?),
        }
    }

    fn ask(
        &self,
        a: NodeId,
        b: NodeId,
        question: impl FnOnce(&HistoryReader<'c>, NodeId, CommitSeq, CommitSeq) -> Result<bool>,
    ) -> Result<bool> {
        match self.between {
            Some((reader, from, to)) if a == b => question(reader, a, from, to),
            _ => Ok(false),
        }
    }
}

/// The extended attributes of a node, but the user's columns.
pub(crate) fn xattrs(database: &Database, node: NodeId) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    attributes(database, node, false)
}

/// The user's columns of a node that are not NULL.
fn columns(database: &Database, node: NodeId) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    attributes(database, node, true)
}

fn attributes(
    database: &Database,
    node: NodeId,
    are_columns: bool,
) -> Result<BTreeMap<Vec<u8>, Vec<u8>>> {
    let mut found = BTreeMap::new();
    for name in database.attributes().list(node)? {
        if name.starts_with(COLUMN_PREFIX) != are_columns {
            continue;
        }
        match database.attributes().get(node, &name) {
            Ok(value) => drop(found.insert(name, value)),
            // Removed since they were listed.
            Err(error) if error.kind() == ErrorKind::NoAttribute => {}
            Err(error) => return Err(error),
        }
    }
    Ok(found)
}

/// The entries of a directory; of none, none.
pub(crate) fn list(database: &Database, node: Option<NodeId>) -> Result<Vec<(Name, Metadata)>> {
    let mut found: Vec<(Name, Metadata)> = Vec::new();
    let Some(node) = node else { return Ok(found) };
    loop {
        let after = found.last().map(|(name, _)| name.clone());
        let page = database.nodes().read_dir_plus(node, after.as_ref(), PAGE)?;
        let is_last = page.len() < PAGE;
        found.extend(page.into_iter().map(|(entry, attr)| (entry.name, attr)));
        if is_last {
            return Ok(found);
        }
    }
}
