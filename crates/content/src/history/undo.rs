//! Taking back one commit, where nothing later built on it (`CONTENT-12`).
//!
//! ```text
//!  net changes of the commit ─▶ is any of it not as the commit left it?
//!    ├── yes ─▶ conflict, nothing is done
//!    └── no ──▶ names away, what was made away, what was removed back, names back, content and
//!               attributes back ─▶ commit
//! ```
//!
//! Names go by way of others that nobody has, in the root of their store, so that two files can
//! have exchanged theirs, and one can leave a directory that goes.

use crate::database::Database;
use crate::history::columns::{ColumnsPair, Giving, be_files_again, give_columns};
use crate::history::log::{LogChange, changes_of};
use crate::history::materialize::{Materializer, times};
use crate::history::net_change::{NetChange, Paths, State, join_saves, net_change, state};
use crate::history::restore::WRITER_LOCK_MAX;
use crate::transaction::TransactionOptions;
use crate::types::{Metadata, NodeId, RenameMode};
use larder_object::format::{CommitSeq, FileKind, Ino, Name, StoreId};
use larder_object::{Error, ErrorKind, HistoryReader, Moment, Result};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap};

/// As of now.
const NOW: CommitSeq = CommitSeq(i64::MAX as u64);
/// Paths that a conflict names.
const NAMED_MAX: usize = 10;

/// What an undo took back, or would take back.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct UndoReport {
    /// The commit.
    pub seq: u64,
    /// Its time, nanoseconds since 1970.
    pub at_ns: i64,
    /// What it had done, by path.
    pub changes: Vec<LogChange>,
}

/// What `History::undo` does.
pub(super) fn undo(database: &Database, seq: u64, is_dry: bool) -> Result<UndoReport> {
    let engine = database.whole()?;
    let (before, found) = engine.history().read_history(|reader| {
        let begins = reader.begins()?.0;
        if seq <= begins.0 {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "commit {seq} is not after commit {begins}, when the history begins; \
                    name a later one"
                ),
            ));
        }
        let found = reader.around(CommitSeq(seq))?;
        // What the commit did there nobody can tell any more: half of it would be taken back.
        let at_ns = found.1.map_or(i64::MAX, |(_, at_ns)| at_ns);
        if let Some((name, begins)) = reader.stores_behind(found.0, at_ns)?.first() {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "commit {seq} may have changed store '{name}' too, whose history begins \
                     at commit {begins}; use \
                     'larder restore'"
                ),
            ));
        }
        Ok(found)
    })?;
    let Some((whole, at_ns)) = found else {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!("there is no commit {seq} yet; 'larder log' shows those there are"),
        ));
    };
    // From here on the state before it is kept, and with it all that follows.
    let past = database.as_of(&Moment::Seq(before.0))?;
    let transaction = database.transactions().begin_with(&TransactionOptions {
        is_immediate: !is_dry,
        writer_lock_max: WRITER_LOCK_MAX,
    })?;
    let changes = past.shared.shown.view().moment().read_history(|reader| {
        let (undo, changes) = Undo::find(database, reader, (before, whole))?;
        if !is_dry {
            let materializer = Materializer::new(&past, &transaction);
            let made = undo
                .run(&materializer)
                .map_err(|error| in_the_way(error, whole))?;
            let made_of = made
                .iter()
                .map(|(&(store, ino), node)| (here(store, ino), *node));
            let recreated: Vec<(NodeId, NodeId)> = made_of.collect();
            be_files_again(&transaction, reader, before, &recreated)?;
            let pairs = undo.columns(&made);
            give_columns(&transaction, &past, &pairs, &recreated, Giving::Restored)?;
        }
        Ok(changes)
    })?;
    if !is_dry {
        transaction.commit()?;
    }
    Ok(UndoReport {
        seq: whole.0,
        at_ns,
        changes,
    })
}

/// Who has a name that is needed, or is in a directory that goes, came later.
fn in_the_way(error: Error, seq: CommitSeq) -> Error {
    match error.kind() {
        ErrorKind::Exists | ErrorKind::NotEmpty | ErrorKind::NotFound => Error::new(
            ErrorKind::Conflict,
            format!(
                "commit {seq} cannot be undone, later ones are in the way: {error}; use 'larder \
                 restore'"
            ),
        ),
        _ => error,
    }
}

/// What is to be taken back.
struct Undo {
    nets: Vec<NetChange>,
    /// How deep directories lie that were made or removed: where they were.
    depths: HashMap<(StoreId, Ino), usize>,
}

impl Undo {
    fn find(
        database: &Database,
        reader: &HistoryReader<'_>,
        (before, seq): (CommitSeq, CommitSeq),
    ) -> Result<(Undo, Vec<LogChange>)> {
        if reader.are_rows_touched(before, seq)? {
            return Err(Error::new(
                ErrorKind::Unsupported,
                format!(
                    "commit {seq} changed rows of tracked tables too; use 'larder restore' with \
                     --table"
                ),
            ));
        }
        let touches = reader.touches(before, seq)?;
        let inodes: BTreeSet<(StoreId, Ino)> = touches
            .iter()
            .map(|touch| (touch.store, touch.ino))
            .collect();
        let changes = changes_of(database, reader, &inodes, (before, seq))?;
        if changes.is_empty() {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!("commit {seq} changed no files; 'larder log' shows those that did"),
            ));
        }
        let mut undo = Undo {
            nets: Vec::new(),
            depths: HashMap::new(),
        };
        let mut paths = Paths::new(database, reader);
        let mut conflicts: BTreeSet<Vec<u8>> = BTreeSet::new();
        let mut nets = Vec::new();
        for inode in inodes {
            nets.extend(net_change(reader, inode, before, seq)?);
        }
        for net in join_saves(reader, nets, before, seq)? {
            let inode = (net.store, net.ino);
            if !net.is_rest && is_changed_since(reader, &net, seq)? {
                let node = NodeId {
                    store: net.store,
                    ino: net.ino,
                };
                let of_it = changes.iter().filter(|change| change.node == node);
                conflicts.extend(of_it.map(|change| change.path.clone()));
            }
            for (has, seq) in [(net.before.is_some(), before), (net.after.is_some(), seq)] {
                if has && let Some(place) = paths.directory(net.store, net.ino, seq)? {
                    undo.depths.insert(inode, place.chain.len());
                }
            }
            undo.nets.push(net);
        }
        if !conflicts.is_empty() {
            let named: Vec<String> = (conflicts.iter().take(NAMED_MAX))
                .map(|path| format!("'{}'", String::from_utf8_lossy(path)))
                .collect();
            let more = match conflicts.len().saturating_sub(NAMED_MAX) {
                0 => String::new(),
                more => format!(" and {more} more"),
            };
            return Err(Error::new(
                ErrorKind::Conflict,
                format!(
                    "commit {seq} cannot be undone, since later ones changed {}{more}; use \
                     'larder restore'",
                    named.join(", ")
                ),
            ));
        }
        Ok((undo, changes))
    }

    /// Whose columns come back, and in what: of what was made anew with another number, `made`.
    fn columns(&self, made: &HashMap<(StoreId, Ino), NodeId>) -> Vec<ColumnsPair> {
        let mut pairs = Vec::new();
        for net in self.nets.iter().filter(|net| !net.is_rest) {
            let is_new = net.after.is_none();
            if net.before.is_some() && (is_new || net.has_columns) {
                pairs.push(ColumnsPair {
                    was: node_of(net),
                    is: Some(node_now(made, net.store, net.ino)),
                    is_new,
                });
            }
        }
        pairs
    }

    /// Returns what was made anew.
    fn run(&self, materializer: &Materializer<'_>) -> Result<HashMap<(StoreId, Ino), NodeId>> {
        let view = materializer.view;
        let mut recreated: HashMap<(StoreId, Ino), NodeId> = HashMap::new();
        // Names away.
        let mut moved: Vec<(NodeId, Name, NodeId, (Ino, Name))> = Vec::new();
        let mut linked: Vec<(NodeId, (Ino, Name))> = Vec::new();
        let mut roots: HashMap<NodeId, Metadata> = HashMap::new();
        for net in &self.nets {
            let (Some(was), Some(is)) = (&net.before, &net.after) else {
                continue;
            };
            let node = node_of(net);
            let mut gone = was.names.iter().filter(|name| !is.names.contains(name));
            for (parent, name) in is.names.iter().filter(|name| !was.names.contains(name)) {
                let parent = here(net.store, *parent);
                match gone.next() {
                    None => view.nodes().unlink(parent, name)?,
                    Some(old) => {
                        let between = format!(".larder-undo-{}-{}", net.ino, moved.len());
                        let between = Name::new(between.as_bytes())?;
                        let (root, mode) = (here(net.store, Ino::ROOT), RenameMode::NoReplace);
                        if let Entry::Vacant(entry) = roots.entry(root) {
                            entry.insert(view.nodes().metadata(root)?);
                        }
                        view.nodes().rename(parent, name, root, &between, mode)?;
                        moved.push((root, between, node, old.clone()));
                    }
                }
            }
            linked.extend(gone.map(|name| (node, name.clone())));
        }
        // What was made away, from the inside to the outside.
        for (net, is) in self.sorted(|net| net.before.is_none(), true) {
            for (parent, name) in &is.names {
                let parent = here(net.store, *parent);
                match is.row.kind {
                    FileKind::Directory => view.nodes().remove_dir(parent, name)?,
                    _ => view.nodes().unlink(parent, name)?,
                }
            }
        }
        // What was removed back, from the outside to the inside.
        let mut made = Vec::new();
        for (net, state) in self.sorted(|net| net.after.is_none(), false) {
            let was = materializer.past.nodes().metadata(node_of(net))?;
            let mut first: Option<NodeId> = None;
            for (parent, name) in &state.names {
                let parent = node_now(&recreated, net.store, *parent);
                match first {
                    Some(node) => {
                        view.nodes().link(node, parent, name)?;
                    }
                    None => first = Some(materializer.make(parent, name, &was)?),
                }
            }
            if let Some(node) = first {
                if !net.is_rest {
                    recreated.insert((net.store, net.ino), node);
                }
                made.push((node, was));
            }
        }
        // Names back.
        for (parent, between, node, (to, name)) in moved {
            let to = node_now(&recreated, node.store, to);
            view.nodes()
                .rename(parent, &between, to, &name, RenameMode::NoReplace)?;
        }
        for (root, was) in roots
            .into_iter()
            .filter(|(root, _)| !self.has_names_in(*root))
        {
            view.nodes().set_attr(root, &times(&was))?;
        }
        for (node, (parent, name)) in linked {
            let parent = node_now(&recreated, node.store, parent);
            view.nodes().link(node, parent, &name)?;
        }
        for net in &self.nets {
            if net.before.is_none() || net.after.is_none() {
                continue;
            }
            let node = node_of(net);
            let was_node = here(net.store, net.was_ino);
            if net.has_content {
                let was = materializer.past.nodes().metadata(was_node)?;
                materializer.write_content(&was, node)?;
                view.nodes().set_attr(node, &times(&was))?;
            }
            if net.has_attributes || was_node != node {
                let was = materializer.past.nodes().metadata(was_node)?;
                materializer.set_attributes(&was, node)?;
            }
        }
        // What was put into a directory has moved its times.
        for (node, was) in made.iter().rev() {
            materializer.set_attributes(was, *node)?;
        }
        Ok(recreated)
    }

    /// Whether names in a directory come or go.
    fn has_names_in(&self, node: NodeId) -> bool {
        let nets = self.nets.iter().filter(|net| net.store == node.store);
        let mut names = nets.map(|net| {
            let in_it = |state: &Option<State>| -> Vec<Name> {
                let names = state.iter().flat_map(|state| &state.names);
                let names = names.filter(|(parent, _)| *parent == node.ino);
                names.map(|(_, name)| name.clone()).collect()
            };
            (in_it(&net.before), in_it(&net.after))
        });
        names.any(|(before, after)| before != after)
    }

    /// The changes of a kind with the state that they have one of, directories by their depth:
    /// outer ones first, or last; files where they harm nothing.
    fn sorted(
        &self,
        is_wanted: impl Fn(&NetChange) -> bool,
        is_inside_first: bool,
    ) -> Vec<(&NetChange, &State)> {
        let wanted = self.nets.iter().filter(|net| is_wanted(net));
        let mut found: Vec<(&NetChange, &State)> = wanted
            .filter_map(|net| Some((net, net.after.as_ref().or(net.before.as_ref())?)))
            .collect();
        found.sort_by_key(|(net, state)| match state.row.kind {
            FileKind::Directory => self.depths.get(&(net.store, net.ino)).copied().unwrap_or(0),
            _ => usize::MAX,
        });
        if is_inside_first {
            found.reverse();
        }
        found
    }
}

/// Whether what a commit made of an inode is not as it left it.
fn is_changed_since(reader: &HistoryReader<'_>, net: &NetChange, seq: CommitSeq) -> Result<bool> {
    let inode = (net.store, net.ino);
    let now = state(reader, inode, NOW)?;
    let (Some(left), Some(now)) = (&net.after, &now) else {
        return Ok(net.after.is_some() != now.is_some());
    };
    let is_new = net.before.is_none();
    let has_names = is_new
        || net
            .before
            .as_ref()
            .is_some_and(|was| was.names != left.names);
    let rights = |state: &State| (state.row.mode, state.row.uid, state.row.gid);
    let has_other_rights = (is_new || net.has_attributes)
        && (rights(left) != rights(now)
            || reader.are_xattrs_touched(net.store, net.ino, seq, NOW)?);
    let has_other_content = (is_new || net.has_content)
        && left.row.kind == FileKind::File
        && (left.row.size_bytes != now.row.size_bytes
            || reader.is_content_written(net.store, net.ino, seq, NOW)?);
    let has_other_columns =
        (is_new || net.has_columns) && reader.are_columns_changed(net.store, net.ino, seq, NOW)?;
    Ok((has_names && left.names != now.names)
        || has_other_rights
        || has_other_content
        || has_other_columns)
}

fn node_of(net: &NetChange) -> NodeId {
    here(net.store, net.ino)
}

fn here(store: StoreId, ino: Ino) -> NodeId {
    NodeId { store, ino }
}

/// What an inode of the past is now: made anew, or the same.
fn node_now(recreated: &HashMap<(StoreId, Ino), NodeId>, store: StoreId, ino: Ino) -> NodeId {
    recreated
        .get(&(store, ino))
        .copied()
        .unwrap_or(here(store, ino))
}
