//! Matching what was with what is, name by name, for a restore: by path, but that what still is the
//! same inode and lies elsewhere *comes* from there (`CONTENT-12`).
//!
//! ```text
//!  was:     /a (1)  /b (2)  /d (3)  /d/f (4)         is: /a (2)  /b (1)  /e (3)  /e/f (4)
//!  matched: /a: 1 comes from /b    /b: 2 comes from /a    /d: 3 comes from /e
//!           /d/f: 4 is in 3 already
//! ```
//!
//! A name can be left only if what has it may go: it was another's, or the restore is exact.
//! Directories come only in an exact restore, since they take with them what is in them; else those
//! that have the paths now stay.

use crate::database::Database;
use crate::history::compare::{Comparison, Differs, list};
use crate::history::net_change::Paths;
use crate::types::{Metadata, NodeId};
use larder_object::format::{CommitSeq, FileKind, Ino, Name};
use larder_object::{HistoryReader, Result};
use std::collections::{BTreeMap, HashMap, VecDeque};

/// As of now.
const NOW: CommitSeq = CommitSeq(i64::MAX as u64);

/// Where something lies now.
#[derive(Debug, Clone)]
pub(crate) struct Location {
    pub(crate) parent: NodeId,
    pub(crate) name: Name,
    /// Below the root.
    pub(crate) path: Vec<u8>,
}

/// What was at a name, and what is.
#[derive(Debug)]
pub(crate) struct MatchedName {
    /// Below the root, as it was: empty, or with a slash in front.
    pub(crate) path: Vec<u8>,
    pub(crate) was: Option<Metadata>,
    /// What has the name now, unless it comes elsewhere.
    pub(crate) is: Option<Metadata>,
    /// Where that lies; the root lies in nothing.
    pub(crate) place: Option<Location>,
    /// The inode that `was` is still, and where it lies now.
    pub(crate) comes: Option<(Metadata, Location)>,
    /// In what `was` differs from what comes, or else from what is.
    pub(crate) differs: Differs,
}

/// Directories that are matched, and wait for what is in them.
struct Below {
    path: Vec<u8>,
    /// The path of `is` now.
    now: Vec<u8>,
    was: Option<NodeId>,
    is: Option<NodeId>,
}

/// The paths of a tree at a moment.
struct Tree<'r, 'c> {
    paths: Paths<'r, 'c>,
    seq: CommitSeq,
    /// The root's, with a slash at the end.
    root: Vec<u8>,
}

/// What was and what is in a tree.
struct Trees<'r, 'c> {
    reader: &'r HistoryReader<'c>,
    was: Tree<'r, 'c>,
    is: Tree<'r, 'c>,
}

/// A matching under way.
pub(crate) struct InodeMatching<'m, 'd, 'r, 'c> {
    past: &'m Database,
    view: &'m Database,
    comparison: &'m mut Comparison<'d, 'r, 'c>,
    is_exact: bool,
    /// In which directories are looked for; `None`: none comes.
    trees: Option<Trees<'r, 'c>>,
    /// Where directories lie now that were in the tree, and are in it.
    known: HashMap<NodeId, Option<Location>>,
    matched: Vec<MatchedName>,
    stack: Vec<Below>,
}

impl<'m, 'd, 'r, 'c> InodeMatching<'m, 'd, 'r, 'c> {
    /// Between the moment that `past` shows and `view`, the present.
    pub(crate) fn new(
        (past, view): (&'m Database, &'m Database),
        comparison: &'m mut Comparison<'d, 'r, 'c>,
        is_exact: bool,
    ) -> InodeMatching<'m, 'd, 'r, 'c> {
        InodeMatching {
            past,
            view,
            comparison,
            is_exact,
            trees: None,
            known: HashMap::new(),
            matched: Vec::new(),
            stack: Vec::new(),
        }
    }

    /// What is of interest, a directory before what is in it; `see` sees all.
    pub(crate) fn walk(
        mut self,
        (was, is): (Metadata, Option<Metadata>),
        see: &mut dyn FnMut(&MatchedName),
    ) -> Result<Vec<MatchedName>> {
        if self.is_exact
            && let Some(is) = &is
        {
            self.trees = self.find_trees(was.node, is.node)?;
        }
        self.match_name(Vec::new(), None, (Some(was), is), see)?;
        while let Some(below) = self.stack.pop() {
            let mut entries: BTreeMap<Name, (Option<Metadata>, Option<Metadata>)> = BTreeMap::new();
            for (name, attr) in list(self.past, below.was)? {
                entries.entry(name).or_default().0 = Some(attr);
            }
            for (name, attr) in list(self.view, below.is)? {
                entries.entry(name).or_default().1 = Some(attr);
            }
            let waiting = self.stack.len();
            for (name, found) in entries {
                let path = [&below.path, &b"/"[..], name.as_bytes()].concat();
                let place = below.is.map(|parent| Location {
                    parent,
                    path: [&below.now, &b"/"[..], name.as_bytes()].concat(),
                    name,
                });
                self.match_name(path, place, found, see)?;
            }
            self.stack[waiting..].reverse();
        }
        self.bring_files();
        self.compare()?;
        Ok(self.matched)
    }

    fn match_name(
        &mut self,
        path: Vec<u8>,
        place: Option<Location>,
        (mut was, mut is): (Option<Metadata>, Option<Metadata>),
        see: &mut dyn FnMut(&MatchedName),
    ) -> Result<()> {
        let node = |attr: &Option<Metadata>| attr.as_ref().map(|attr| attr.node);
        if node(&was) != node(&is) {
            if let Some(found) = is.as_ref().filter(|attr| is_directory(attr))
                && self.moved(found.node)?.is_some()
            {
                is = None; // It is matched where it was.
            }
            if let Some(found) = was.as_ref().filter(|attr| is_directory(attr))
                && let Some(from) = self.moved(found.node)?
            {
                let attr = self.view.nodes().metadata(found.node)?;
                let matched = MatchedName {
                    path: path.clone(),
                    was: was.take(),
                    is: None,
                    place: None,
                    comes: Some((attr, from)),
                    differs: Differs::default(),
                };
                self.add(matched, see);
            }
        }
        let differs = match (&was, &is) {
            (Some(was), Some(is)) if was.node == is.node || is_directory(was) => {
                self.comparison.differences(was, is)?
            }
            (None, None) => return Ok(()),
            _ => Differs::default(), // Of interest anyway, and maybe something else comes.
        };
        let matched = MatchedName {
            path,
            was,
            is,
            place,
            comes: None,
            differs,
        };
        self.add(matched, see);
        Ok(())
    }

    fn add(&mut self, matched: MatchedName, see: &mut dyn FnMut(&MatchedName)) {
        see(&matched);
        let now = match (&matched.comes, &matched.place) {
            (Some((_, from)), _) => from.path.clone(),
            (None, Some(place)) => place.path.clone(),
            (None, None) => Vec::new(),
        };
        let directory = |attr: Option<&Metadata>| {
            let attr = attr.filter(|attr| is_directory(attr));
            attr.map(|attr| attr.node)
        };
        let (was, is) = (
            directory(matched.was.as_ref()),
            directory(matched.becomes()),
        );
        if was.is_some() || is.is_some() {
            self.stack.push(Below {
                path: matched.path.clone(),
                now,
                was,
                is,
            });
        }
        if matched.is_of_interest(self.is_exact) {
            self.matched.push(matched);
        }
    }

    /// Lets files come that lie where they may be taken away.
    fn bring_files(&mut self) {
        let mut free: HashMap<NodeId, VecDeque<usize>> = HashMap::new();
        for (index, matched) in self.matched.iter().enumerate() {
            let was = matched.was.as_ref().map(|was| was.node);
            let is = matched.is.as_ref().filter(|is| !is_directory(is));
            if let Some(is) = is.filter(|is| was != Some(is.node) && matched.place.is_some()) {
                free.entry(is.node).or_default().push_back(index);
            }
        }
        let mut coming: Vec<(usize, usize)> = Vec::new();
        for (index, matched) in self.matched.iter().enumerate() {
            let Some(was) = matched.was.as_ref().filter(|was| !is_directory(was)) else {
                continue;
            };
            let is_there = matched.is.as_ref().is_some_and(|is| is.node == was.node);
            if !is_there
                && !matched.path.is_empty()
                && let Some(from) = free.get_mut(&was.node).and_then(VecDeque::pop_front)
            {
                coming.push((index, from));
            }
        }
        for (to, from) in coming {
            let found = self.matched[from].is.take();
            self.matched[to].comes = found.zip(self.matched[from].place.clone());
        }
    }

    /// Compares what was not compared before.
    fn compare(&mut self) -> Result<()> {
        for matched in &mut self.matched {
            let Some(was) = &matched.was else { continue };
            let is_compared = matched.comes.is_none() && is_directory(was);
            let becomes = matched
                .comes
                .as_ref()
                .map(|(attr, _)| attr)
                .or(matched.is.as_ref());
            if let Some(becomes) = becomes.filter(|_| !is_compared) {
                matched.differs = self.comparison.differences(was, becomes)?;
            }
        }
        Ok(())
    }

    fn find_trees(&self, was: NodeId, is: NodeId) -> Result<Option<Trees<'r, 'c>>> {
        let (Some(reader), Some((seq, _))) =
            (self.comparison.reader(), self.past.history().shown())
        else {
            return Ok(None);
        };
        let was = Tree::find(self.past, reader, CommitSeq(seq), was)?;
        let is = Tree::find(self.view, reader, NOW, is)?;
        Ok(was.zip(is).map(|(was, is)| Trees { reader, was, is }))
    }

    /// Where a directory lies now that was in the tree and is in it; its root does not count.
    fn moved(&mut self, node: NodeId) -> Result<Option<Location>> {
        if let Some(known) = self.known.get(&node) {
            return Ok(known.clone());
        }
        let is_of_table = self.view.table_of(node.store) == node.store;
        let found = match &mut self.trees {
            Some(trees) if is_of_table && node.ino != Ino::ROOT => trees.find(node)?,
            _ => None,
        };
        self.known.insert(node, found.clone());
        Ok(found)
    }
}

impl<'r, 'c> Tree<'r, 'c> {
    fn find(
        database: &Database,
        reader: &'r HistoryReader<'c>,
        seq: CommitSeq,
        root: NodeId,
    ) -> Result<Option<Tree<'r, 'c>>> {
        if database.table_of(root.store) != root.store {
            return Ok(None);
        }
        let mut paths = Paths::new(database, reader);
        let root = paths.directory(root.store, root.ino, seq)?;
        Ok(root.map(|place| Tree {
            paths,
            seq,
            root: [&place.path, &b"/"[..]].concat(),
        }))
    }

    /// The path of a directory below the root.
    fn below(&mut self, node: NodeId) -> Result<Option<Vec<u8>>> {
        let place = self.paths.directory(node.store, node.ino, self.seq)?;
        Ok(place.and_then(|place| {
            let rest = place.path.strip_prefix(&self.root[..])?;
            Some([&b"/"[..], rest].concat())
        }))
    }
}

impl Trees<'_, '_> {
    fn find(&mut self, node: NodeId) -> Result<Option<Location>> {
        if self.was.below(node)?.is_none() {
            return Ok(None);
        }
        let Some(path) = self.is.below(node)? else {
            return Ok(None);
        };
        let names = self.reader.names(node.store, node.ino, NOW)?;
        Ok(names.into_iter().next().map(|(parent, name)| Location {
            parent: NodeId {
                store: node.store,
                ino: parent,
            },
            name,
            path,
        }))
    }
}

impl MatchedName {
    /// What `was` is going to be, if it is kept.
    pub(crate) fn becomes(&self) -> Option<&Metadata> {
        let comes = self.comes.as_ref().map(|(attr, _)| attr);
        comes.or(self.is.as_ref())
    }

    fn is_of_interest(&self, is_exact: bool) -> bool {
        match (&self.was, &self.is) {
            _ if self.comes.is_some() => true,
            (None, _) => is_exact,
            (Some(_), None) => true,
            (Some(was), Some(is)) => {
                let is_other = !is_directory(was) && was.node != is.node;
                self.differs.any() || was.kind != is.kind || was.mtime_ns != is.mtime_ns || is_other
            }
        }
    }
}

fn is_directory(attr: &Metadata) -> bool {
    attr.kind == FileKind::Directory
}
