//! Bringing back what was: a file or a tree as one transaction (`CONTENT-12`).
//!
//! ```text
//!  match the past with the present ─▶ decide what is to be done ─▶ do it ─▶ commit
//!                                     └── a dry run ends here
//! ```
//!
//! What is still the same inode keeps it, and comes back from where it lies now (`inode_matching`):
//! what users keep with inodes stays with them. What is gone is made anew; content is shared with
//! the history where it can be, and copied where not. Another file that has its path now is written
//! over only if it has no other names than those of the file that was there, else it loses the path
//! and keeps its content.

use crate::database::Database;
use crate::history::columns::{ColumnsPair, Giving, be_files_again, give_columns};
use crate::history::compare::{Comparison, Differs, compare};
use crate::history::diff::joined;
use crate::history::inode_matching::{InodeMatching, Location, MatchedName};
use crate::history::materialize::{Materializer, times};
use crate::history::restored::{RestoreAction, RestoreOptions, RestoreReport, RestoreStep};
use crate::path::split_path;
use crate::transaction::{Transaction, TransactionOptions};
use crate::types::{Metadata, NodeId, RenameMode};
use larder_object::format::{CommitSeq, FileKind, Ino, Name};
use larder_object::{Error, ErrorKind, Result};
use std::collections::hash_map::Entry;
use std::collections::{BTreeSet, HashMap, HashSet};
use std::time::Duration;

/// How long a restore may keep others waiting: trees may be large, and half of one is of no use.
pub(crate) const WRITER_LOCK_MAX: Duration = Duration::from_secs(24 * 3600);

/// What `History::restore` does.
pub(super) fn restore(
    database: &Database,
    past: &Database,
    path: Option<&[u8]>,
    options: &RestoreOptions,
) -> Result<RestoreReport> {
    let is_past = past.history().shown().is_some();
    if !is_past
        || !past
            .shared
            .shown
            .view()
            .moment()
            .is_of_one_database(database.shared.shown.view())
    {
        let why = "what is restored is another moment of the same database; open it with 'as_of'";
        return Err(Error::new(ErrorKind::InvalidInput, why));
    }
    if options.to.is_some() && !options.is_dry {
        // Before the transaction, which cannot: beside the originals what is in place can be
        // shared.
        database.whole()?.sharing().settle_content()?;
    }
    let transaction = database.transactions().begin_with(&TransactionOptions {
        is_immediate: !options.is_dry,
        writer_lock_max: WRITER_LOCK_MAX,
    })?;
    let (mut report, mut recreated, columns) = match path {
        Some(path) => restore_files(&transaction, past, path, options)?,
        None => Default::default(),
    };
    // A copy beside the original takes no rows from it.
    let is_there = |was: NodeId| {
        transaction
            .nodes()
            .metadata(was)
            .is_ok_and(|attr| attr.nlink > 0)
    };
    recreated.retain(|(was, _)| !is_there(*was));
    let how = (options.is_exact, options.is_dry);
    for rows in &options.rows {
        let done = transaction
            .restore_rows(past, rows, how, &recreated)
            .map_err(|error| error.context(format!("table '{}'", rows.table)))?;
        report.rows.push(done);
    }
    if !options.keeps_columns {
        // What they refer to has come back.
        let giving = Giving::restored(options.is_dry);
        let done = give_columns(&transaction, past, &columns, &recreated, giving)
            .map_err(|error| error.context("--keep-columns leaves them as they are"))?;
        report.rows.extend(done);
    }
    if !options.is_dry {
        transaction.commit()?;
    }
    Ok(report)
}

/// Files of the past, and what they are now, where that is another inode.
type Recreated = Vec<(NodeId, NodeId)>;

/// The same of files, in a transaction that has done nothing to them yet.
fn restore_files(
    transaction: &Transaction,
    past: &Database,
    path: &[u8],
    options: &RestoreOptions,
) -> Result<(RestoreReport, Recreated, Vec<ColumnsPair>)> {
    let to = options.to.as_deref().unwrap_or(path);
    let was = past.nodes().resolve(path, false)?;
    let is = match transaction.nodes().resolve(to, false) {
        Ok(attr) => Some(attr),
        Err(error) if error.kind() == ErrorKind::NotFound => None,
        Err(error) => return Err(error),
    };
    compare(past, transaction, |comparison| {
        let reader = comparison.reader();
        let mut plan = Plan::new(past, transaction, to, options.is_exact);
        if options.to.is_none() {
            plan.find_parents(path)?;
        }
        plan.find(comparison, (was, is))?;
        if !options.is_dry {
            let there = plan.recreated.len();
            plan.run()?;
            plan.report.copied_bytes = plan.materializer.copied_bytes();
            if let (Some(reader), Some((seq, _))) = (reader, past.history().shown()) {
                be_files_again(
                    transaction,
                    reader,
                    CommitSeq(seq),
                    &plan.recreated[there..],
                )?;
            }
        }
        let columns = plan.columns();
        Ok((plan.report, plan.recreated, columns))
    })
}

/// Where a file of the past is now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Target {
    /// It is this one.
    Existing(NodeId),
    /// It will be made.
    Pending,
}

/// What is to be done at a path.
struct Work {
    /// Below the root of what is restored.
    path: Vec<u8>,
    was: Metadata,
    /// What it is now, if it stays.
    kept: Option<NodeId>,
    /// Where that lies, if not here.
    from: Option<Location>,
    /// What has the path now goes first.
    replaces: bool,
    /// Its content is written.
    has_content: bool,
}

/// What goes.
struct Removal {
    path: Vec<u8>,
    /// Where it lies; the root lies in nothing.
    place: Option<Location>,
    kind: FileKind,
}

/// What is between two places.
struct Parked {
    /// The directories that this changes, as they were before: of the others some go.
    changed: HashMap<NodeId, Metadata>,
    /// Of each work what it is called, in the root of its store.
    names: Vec<Option<Name>>,
}

struct Plan<'d> {
    past: &'d Database,
    view: &'d Database,
    materializer: Materializer<'d>,
    to: &'d [u8],
    is_exact: bool,
    /// Directories that lead to the root and are gone: their paths, and how they were. Outer ones
    /// first.
    parents: Vec<(Vec<u8>, Metadata)>,
    /// What goes, a directory before what is in it.
    removals: Vec<Removal>,
    work: Vec<Work>,
    /// The directories that are there and stay: where they are, and how they were.
    directories: HashMap<Vec<u8>, (NodeId, Metadata)>,
    targets: HashMap<NodeId, Target>,
    /// Of which file of the past a file of the present is the target.
    taken: HashMap<NodeId, NodeId>,
    /// How many names lead to a file with several in the present, and to the other in the past.
    shared: HashMap<(NodeId, NodeId), u32>,
    recreated: Recreated,
    /// Whose user columns come back, and in what, if that is there already.
    columns: Vec<(NodeId, Option<NodeId>)>,
    report: RestoreReport,
}

impl<'d> Plan<'d> {
    fn new(past: &'d Database, view: &'d Database, to: &'d [u8], is_exact: bool) -> Plan<'d> {
        Plan {
            past,
            view,
            materializer: Materializer::new(past, view),
            to,
            is_exact,
            parents: Vec::new(),
            removals: Vec::new(),
            work: Vec::new(),
            directories: HashMap::new(),
            targets: HashMap::new(),
            taken: HashMap::new(),
            shared: HashMap::new(),
            recreated: Recreated::new(),
            columns: Vec::new(),
            report: RestoreReport::default(),
        }
    }

    // ---- finding out ------------------------------------------------------------------------

    /// The directories above `path` that are gone.
    fn find_parents(&mut self, path: &[u8]) -> Result<()> {
        let parts = split_path(path)?;
        let mut above = Vec::new();
        for part in parts.iter().take(parts.len().saturating_sub(1)) {
            above.extend_from_slice(b"/");
            above.extend_from_slice(part);
            match self.view.nodes().resolve(&above, true) {
                Ok(_) => continue,
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) => return Err(error),
            }
            let was = self.past.nodes().resolve(&above, false)?;
            if was.kind != FileKind::Directory {
                let shown = String::from_utf8_lossy(&above).into_owned();
                let why =
                    format!("'{shown}', which leads there, was no directory; restore it first");
                return Err(Error::new(ErrorKind::NotADirectory, why));
            }
            self.report.steps.push(RestoreStep {
                path: above.clone(),
                kind: was.kind,
                action: RestoreAction::Create,
            });
            self.columns.push((was.node, None));
            self.parents.push((above.clone(), was));
        }
        Ok(())
    }

    fn find(
        &mut self,
        comparison: &mut Comparison<'_, '_, '_>,
        roots: (Metadata, Option<Metadata>),
    ) -> Result<()> {
        let matching = InodeMatching::new((self.past, self.view), comparison, self.is_exact);
        let matched = matching.walk(roots, &mut |matched| self.look_at(matched))?;
        for one in &matched {
            if let (Some(was), Some((is, _))) = (&one.was, &one.comes)
                && (was.nlink > 1 || is.nlink > 1)
                && was.kind != FileKind::Directory
            {
                self.settle(was.node, is.node);
            }
        }
        matched
            .into_iter()
            .try_for_each(|matched| self.decide(matched))
    }

    /// Notes the directories, and the files with several names that are what they were.
    fn look_at(&mut self, matched: &MatchedName) {
        let (Some(a), Some(b)) = (&matched.was, matched.becomes()) else {
            return;
        };
        let is_directory = |attr: &Metadata| attr.kind == FileKind::Directory;
        if is_directory(a) && is_directory(b) {
            let found = (b.node, a.clone());
            self.directories.insert(matched.path.clone(), found);
            self.note_recreated(a, b.node);
            return;
        }
        if b.nlink > 1 {
            *self.shared.entry((a.node, b.node)).or_default() += 1;
        }
        if a.node == b.node && (a.nlink > 1 || b.nlink > 1) {
            self.settle(a.node, b.node);
        }
    }

    /// Notes what stays in the place of something else.
    fn note_recreated(&mut self, was: &Metadata, is: NodeId) {
        if was.node != is {
            self.recreated.push((was.node, is));
        }
    }

    fn settle(&mut self, past: NodeId, present: NodeId) {
        self.targets.insert(past, Target::Existing(present));
        self.taken.insert(present, past);
    }

    fn decide(&mut self, matched: MatchedName) -> Result<()> {
        let MatchedName {
            path, is, place, ..
        } = matched;
        let Some(was) = matched.was else {
            if let Some(is) = is {
                self.remove(path, place, is.kind);
            }
            return Ok(());
        };
        let differs = matched.differs;
        let has_content = differs.content && was.kind == FileKind::File;
        let has_attributes = |is: &Metadata| has_other_attributes(&was, is, &differs);
        let (mut kept, mut from) = (None, None);
        let mut action = match is.is_some() {
            true => RestoreAction::Replace,
            false => RestoreAction::Create,
        };
        let written = match has_content {
            true => RestoreAction::Content,
            false => RestoreAction::Attributes,
        };
        let mut more = None;
        if let Some((attr, location)) = matched.comes {
            action = RestoreAction::Move;
            more = (has_content || has_attributes(&attr)).then_some(written);
            (kept, from) = (Some(attr.node), Some(location));
        } else if let Some(is) = &is
            && self.is_reusable(&was, is, differs.content)
        {
            if was.kind != FileKind::Directory {
                self.note_recreated(&was, is.node);
            }
            if !has_content && !has_attributes(is) {
                self.columns.push((was.node, Some(is.node)));
                self.note_target(&was, Target::Existing(is.node));
                return Ok(());
            }
            kept = Some(is.node);
            action = written;
        }
        if let Some(node) = kept {
            self.note_target(&was, Target::Existing(node));
        }
        // What has the path now and does not become it.
        let other = is.filter(|is| kept != Some(is.node));
        let is_directory = other
            .as_ref()
            .is_some_and(|other| other.kind == FileKind::Directory);
        if is_directory {
            if !self.is_exact {
                let shown = joined(self.to, &path);
                return Err(Error::new(
                    ErrorKind::Exists,
                    format!(
                        "'{}' is a directory now and was none then; move it away, or restore \
                         exactly, which \
                         removes it",
                        String::from_utf8_lossy(&shown)
                    ),
                ));
            }
            self.remove(path.clone(), place, FileKind::Directory);
        }
        let mut is_written = kept.is_none() || has_content;
        if kept.is_none() && was.kind != FileKind::Directory && was.nlink > 1 {
            match self.targets.contains_key(&was.node) {
                true => {
                    is_written = false;
                    if other.is_none() {
                        action = RestoreAction::Link;
                    }
                }
                false => self.note_target(&was, Target::Pending),
            }
        }
        let target = match self.targets.get(&was.node) {
            Some(Target::Existing(node)) => Some(*node),
            _ => kept,
        };
        self.columns.push((was.node, target));
        if is_written && was.kind == FileKind::File {
            self.report.content_bytes = self.report.content_bytes.saturating_add(was.size_bytes);
        }
        for action in std::iter::once(action).chain(more) {
            self.report.steps.push(RestoreStep {
                path: joined(self.to, &path),
                kind: was.kind,
                action,
            });
        }
        self.work.push(Work {
            path,
            has_content: kept.is_some() && has_content,
            was,
            kept,
            from,
            replaces: other.is_some() && !is_directory,
        });
        Ok(())
    }

    fn remove(&mut self, path: Vec<u8>, place: Option<Location>, kind: FileKind) {
        let now = place.as_ref().map_or(&path, |place| &place.path);
        self.report.steps.push(RestoreStep {
            path: joined(self.to, now),
            kind,
            action: RestoreAction::Remove,
        });
        self.removals.push(Removal { path, place, kind });
    }

    fn note_target(&mut self, was: &Metadata, target: Target) {
        if was.kind == FileKind::Directory || was.nlink < 2 {
            return;
        }
        match target {
            Target::Existing(node) => self.settle(was.node, node),
            Target::Pending => {
                self.targets.insert(was.node, target);
            }
        }
    }

    /// Whether what has the path now can become what was there then.
    fn is_reusable(&self, was: &Metadata, is: &Metadata, has_other_content: bool) -> bool {
        if was.kind != is.kind {
            return false;
        }
        if was.kind == FileKind::Directory {
            return true;
        }
        let is_target = match self.targets.get(&was.node) {
            Some(target) => *target == Target::Existing(is.node),
            None => true,
        };
        let is_taken = self.taken.get(&is.node).is_some_and(|by| *by != was.node);
        // Only files can be written over.
        let can_change = was.kind == FileKind::File || !has_other_content;
        // No name that it has leads to it from elsewhere.
        let shared = self.shared.get(&(was.node, is.node)).copied();
        let is_alone = is.nlink == 1 || shared == Some(is.nlink);
        is_target && !is_taken && can_change && (is.node == was.node || is_alone)
    }

    /// Whose user columns come back, and in what, as far as that is there.
    fn columns(&self) -> Vec<ColumnsPair> {
        let made: HashMap<NodeId, NodeId> = self.recreated.iter().copied().collect();
        let columns: BTreeSet<(NodeId, Option<NodeId>)> = self.columns.iter().copied().collect();
        let pair = |(was, there): (NodeId, Option<NodeId>)| ColumnsPair {
            was,
            is: there.or_else(|| made.get(&was).copied()),
            is_new: there.is_none(),
        };
        columns.into_iter().map(pair).collect()
    }

    // ---- doing it ---------------------------------------------------------------------------

    fn run(&mut self) -> Result<()> {
        let mut parents = Vec::new();
        for (path, was) in &self.parents {
            let (parent, name) = self.view.nodes().resolve_parent(path)?;
            let node = self.materializer.make(parent, &name, was)?;
            self.materializer.set_attributes(was, node)?;
            self.recreated.push((was.node, node));
            parents.push((node, was.clone()));
        }
        let mut touched: BTreeSet<Vec<u8>> = BTreeSet::new();
        let parked = self.park()?;
        // From the inside to the outside.
        for removal in self.removals.iter().rev() {
            let (parent, name) = match &removal.place {
                Some(place) => (place.parent, place.name.clone()),
                None => self
                    .view
                    .nodes()
                    .resolve_parent(&joined(self.to, &removal.path))?,
            };
            match removal.kind {
                FileKind::Directory => self.view.nodes().remove_dir(parent, &name)?,
                _ => self.view.nodes().unlink(parent, &name)?,
            }
            touched.extend(parent_of(&removal.path).map(<[u8]>::to_vec));
        }
        let mut made: HashMap<Vec<u8>, (NodeId, Metadata)> = HashMap::new();
        let mut linked: HashMap<NodeId, NodeId> = HashMap::new();
        for (work, between) in self.work.iter().zip(&parked.names) {
            let node = match (work.kept, &work.from) {
                (Some(node), None) => node,
                _ => {
                    touched.extend(parent_of(&work.path).map(<[u8]>::to_vec));
                    let node = self.put((work, between.as_ref()), &made, &linked)?;
                    if node != work.was.node {
                        self.recreated.push((work.was.node, node));
                    }
                    node
                }
            };
            let was = &work.was;
            if was.kind == FileKind::Directory {
                touched.insert(work.path.clone());
                made.insert(work.path.clone(), (node, was.clone()));
            } else if was.nlink > 1 {
                linked.insert(was.node, node);
            }
            if work.has_content {
                self.materializer.write_content(was, node)?;
            }
            self.materializer.set_attributes(was, node)?;
        }
        // What was done in a directory has moved its times.
        for (node, was) in &parked.changed {
            if node.ino != Ino::ROOT {
                continue;
            }
            self.view.nodes().set_attr(*node, &times(was))?;
        }
        for (node, was) in self.directories.values() {
            if parked.changed.contains_key(node) {
                self.view.nodes().set_attr(*node, &times(was))?;
            }
        }
        for path in touched.iter().rev() {
            let found = made.get(path).or_else(|| self.directories.get(path));
            if let Some((node, was)) = found {
                self.view.nodes().set_attr(*node, &times(was))?;
            }
        }
        for (node, was) in parents {
            self.view.nodes().set_attr(node, &times(&was))?;
        }
        Ok(())
    }

    /// Takes away what comes elsewhere, to names that nobody has: two may have exchanged theirs,
    /// and what was in a directory may hold it now.
    fn park(&self) -> Result<Parked> {
        let mut changed = HashMap::new();
        let names = self.parking_names()?;
        for (work, between) in self.work.iter().zip(&names) {
            let (Some(from), Some(between)) = (&work.from, between) else {
                continue;
            };
            let root = root_of(from.parent);
            for node in [root, from.parent] {
                if let Entry::Vacant(entry) = changed.entry(node) {
                    entry.insert(self.view.nodes().metadata(node)?);
                }
            }
            let (parent, name, mode) = (from.parent, &from.name, RenameMode::NoReplace);
            self.view
                .nodes()
                .rename(parent, name, root, between, mode)?;
        }
        Ok(Parked { changed, names })
    }

    /// For each work that comes from elsewhere a name that nothing has in the root of its store,
    /// and that nothing gets there. Cost: a lookup for each, and for each of the user's that looks
    /// like these.
    fn parking_names(&self) -> Result<Vec<Option<Name>>> {
        let paths = self.work.iter().map(|work| &work.path);
        let coming = paths.map(|path| joined(self.to, path));
        let coming: HashSet<Vec<u8>> = coming
            .chain(self.parents.iter().map(|(path, _)| path.clone()))
            .filter_map(|path| path.rsplit(|&byte| byte == b'/').next().map(<[u8]>::to_vec))
            .filter(|name| name.starts_with(PARKING.as_bytes()))
            .collect();
        let mut numbers = 0_u64..;
        let mut find = |root: NodeId| -> Result<Name> {
            loop {
                let name = parking_name(numbers.next().unwrap_or_default())?;
                let is_free = match self.view.nodes().lookup(root, &name) {
                    Ok(_) => false,
                    Err(error) if error.kind() == ErrorKind::NotFound => true,
                    Err(error) => return Err(error),
                };
                if is_free && !coming.contains(name.as_bytes()) {
                    return Ok(name);
                }
            }
        };
        let from = self.work.iter().map(|work| work.from.as_ref());
        from.map(|from| from.map(|from| find(root_of(from.parent))).transpose())
            .collect()
    }

    /// Makes what was there, or another name of it, or moves it.
    fn put(
        &self,
        (work, between): (&Work, Option<&Name>),
        made: &HashMap<Vec<u8>, (NodeId, Metadata)>,
        linked: &HashMap<NodeId, NodeId>,
    ) -> Result<NodeId> {
        let known = parent_of(&work.path)
            .and_then(|parent| made.get(parent).or_else(|| self.directories.get(parent)));
        let name = work.path.rsplit(|&byte| byte == b'/').next();
        let (parent, name) = match (known, name.map(Name::new)) {
            (Some((parent, _)), Some(Ok(name))) => (*parent, name),
            _ => self
                .view
                .nodes()
                .resolve_parent(&joined(self.to, &work.path))?,
        };
        if work.replaces {
            self.view.nodes().unlink(parent, &name)?;
        }
        if let (Some(node), Some(from), Some(between)) = (work.kept, &work.from, between) {
            let (root, mode) = (root_of(from.parent), RenameMode::NoReplace);
            self.view
                .nodes()
                .rename(root, between, parent, &name, mode)?;
            return Ok(node);
        }
        let target = match self.targets.get(&work.was.node) {
            Some(Target::Existing(node)) => Some(*node),
            _ => linked.get(&work.was.node).copied(),
        };
        match target {
            Some(node) => Ok(self.view.nodes().link(node, parent, &name)?.node),
            None => self.materializer.make(parent, &name, &work.was),
        }
    }
}

fn root_of(node: NodeId) -> NodeId {
    NodeId {
        store: node.store,
        ino: Ino::ROOT,
    }
}

/// What the names begin with that files have in the root of their store between two places.
const PARKING: &str = ".larder-restore-";

fn parking_name(number: u64) -> Result<Name> {
    Name::new(format!("{PARKING}{number}").as_bytes())
        .map_err(|error| Error::new(ErrorKind::InvalidInput, error.to_string()))
}

/// Whether two files of one kind differ in more than their content.
fn has_other_attributes(was: &Metadata, is: &Metadata, differs: &Differs) -> bool {
    differs.mode || differs.owner || differs.xattrs || was.mtime_ns != is.mtime_ns
}

/// The path of the directory that a path below the root is in; the root itself is in none.
fn parent_of(path: &[u8]) -> Option<&[u8]> {
    let slash = path.iter().rposition(|&byte| byte == b'/')?;
    Some(&path[..slash])
}
