//! The log: which commits changed a path, or anything, and what they did (`CONTENT-10`).

use crate::database::Database;
use crate::history::net_change::{NetChange, Paths, State, join_saves, net_change};
use crate::path::split_path;
use crate::rooms::History;
use crate::types::NodeId;
use larder_object::format::{CommitSeq, FileKind, Ino, Name, StoreId};
use larder_object::{CommitAuthor, Error, ErrorKind, HistoryReader, Result, Touch, WholeCommit};
use std::collections::{BTreeSet, HashSet};
use std::ops::ControlFlow;
use std::rc::Rc;

/// As of now.
const NOW: CommitSeq = CommitSeq(i64::MAX as u64);
/// Commits that are looked at together first; then twice as many each time.
const WINDOW_MIN: usize = 64;
/// Changes that are told at once, unless one commit has more.
const TOLD_MAX: usize = 1000;

/// What a commit did to a file.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum LogEvent {
    /// It was made, with this name.
    Created,
    /// Its last name is gone.
    Removed,
    /// It had this path before.
    Renamed {
        /// The path before.
        from: Vec<u8>,
    },
    /// It got this name beside others.
    Linked,
    /// It lost this name, and kept others.
    Unlinked,
    /// Its content was written or cut.
    Content,
    /// Mode, owner, extended attributes, or a time of modification that somebody set.
    Attributes,
    /// User columns of a tracked store.
    Columns,
}

/// One thing that a commit did to one file.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogChange {
    /// The file.
    pub node: NodeId,
    /// What it is.
    pub kind: FileKind,
    /// Its path after the commit; of what is gone, before it.
    pub path: Vec<u8>,
    /// What was done.
    pub event: LogEvent,
}

/// What a commit did, all of it or to what was asked for.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct LogCommit {
    /// Its number; a transaction has that of its last step.
    pub seq: u64,
    /// Its time, nanoseconds since 1970.
    pub at_ns: i64,
    /// Who made it; `None`: plain SQL, or a version of larder that did not note it.
    pub author: Option<CommitAuthor>,
    /// What it did, by path.
    pub changes: Vec<LogChange>,
}

/// What a log is about.
#[derive(Clone)]
enum Subject {
    All,
    /// A directory, with all that lies below it then.
    Below(StoreId, Ino),
    One(Rc<File>),
}

/// A file, which each save makes another inode.
struct File {
    store: StoreId,
    /// Its `file_id`; `None`: it was never saved.
    id: Option<i64>,
    inodes: BTreeSet<Ino>,
}

impl File {
    fn new(reader: &HistoryReader<'_>, store: StoreId, ino: Ino) -> Result<File> {
        let mut id = reader.file_id(store, ino, NOW)?;
        if id.is_none() {
            // It is gone: as which file?
            for step in reader.touches_of(store, ino)? {
                id = reader.file_id(store, ino, CommitSeq(step.0.saturating_sub(1)))?;
                if id.is_some() {
                    break;
                }
            }
        }
        let mut inodes: BTreeSet<Ino> = [ino].into();
        if let Some(id) = id.filter(|id| *id > 0) {
            inodes.extend(reader.inodes_of_file(store, id)?);
        }
        let id = id.filter(|_| inodes.len() > 1);
        Ok(File { store, id, inodes })
    }

    /// Whether an inode was this file after one of two commits.
    fn is_it(
        &self,
        reader: &HistoryReader<'_>,
        ino: Ino,
        (before, after): (CommitSeq, CommitSeq),
    ) -> Result<bool> {
        let Some(id) = self.id else {
            return Ok(true);
        };
        Ok(reader.file_id(self.store, ino, after)? == Some(id)
            || reader.file_id(self.store, ino, before)? == Some(id))
    }
}

impl History<'_> {
    /// Calls `visit` with the commits that changed `path`, newest first, at most `limit`: a file is
    /// followed through its renames, a directory stands for all below it, and `None` for
    /// everything. What is not there any more is found by the last path it had. Times of
    /// directories, which every name in them moves, are no changes.
    ///
    /// `visit` may take its time: the history is read in between, not meanwhile, and what is given
    /// up by then is not told.
    ///
    /// Cost: 20 µs per change told; of a directory, or everything, also a pass over the names of
    /// all stores for every doubling of the commits looked at. Errors: [`ErrorKind::InvalidInput`]
    /// where the database keeps no history; [`ErrorKind::NotFound`] when nothing ever had the path,
    /// as far as the history goes.
    pub fn log(
        &self,
        path: Option<&[u8]>,
        limit: Option<u64>,
        visit: &mut dyn FnMut(LogCommit) -> ControlFlow<()>,
    ) -> Result<()> {
        let engine = self.database.whole()?;
        let (subject, mut road) = engine.history().read_history(|reader| {
            let subject = match path {
                None => Subject::All,
                Some(path) => self.find_subject(reader, path)?,
            };
            Ok((subject.clone(), Road::new(reader, subject)?))
        })?;
        let mut left = limit.unwrap_or(u64::MAX);
        let mut is_end = false;
        while left > 0 && !is_end {
            let mut told: Vec<LogCommit> = Vec::new();
            engine.history().read_history(|reader| {
                let mut log = Log::new(self.database, reader, subject.clone());
                let mut change_count = 0;
                while (told.len() as u64) < left && change_count < TOLD_MAX {
                    let Some((inodes, before, (seq, at_ns))) = road.next(reader)? else {
                        is_end = true;
                        break;
                    };
                    let changes = log.changes(&inodes, before, seq)?;
                    change_count += changes.len();
                    if !changes.is_empty() {
                        told.push(LogCommit {
                            seq: seq.0,
                            at_ns,
                            author: reader.author(seq)?,
                            changes,
                        });
                    }
                }
                Ok(())
            })?;
            left -= told.len() as u64;
            if told.into_iter().any(|commit| visit(commit).is_break()) {
                break;
            }
        }
        Ok(())
    }

    fn find_subject(&self, reader: &HistoryReader<'_>, path: &[u8]) -> Result<Subject> {
        let found = match self.database.nodes().resolve(path, false) {
            Ok(attr) => Some((attr.node, attr.kind)),
            Err(error) => match error.kind() {
                ErrorKind::NotFound | ErrorKind::NotADirectory => {
                    let node = self.find_ever(reader, NodeId::ROOT, &split_path(path)?)?;
                    match node {
                        Some(node) => self.kind_ever(reader, node)?.map(|kind| (node, kind)),
                        None => None,
                    }
                }
                _ => return Err(error),
            },
        };
        let Some((node, kind)) = found else {
            return Err(Error::new(
                ErrorKind::NotFound,
                format!(
                    "'{}' is not there, nor was it after commit {}, when the history begins",
                    String::from_utf8_lossy(path),
                    reader.begins()?.0
                ),
            ));
        };
        let store = self.database.table_of(node.store);
        Ok(match kind {
            FileKind::Directory if node == NodeId::ROOT => Subject::All,
            FileKind::Directory => Subject::Below(store, node.ino),
            _ => Subject::One(Rc::new(File::new(reader, store, node.ino)?)),
        })
    }

    /// What the names `parts` led to last from directory `at`.
    fn find_ever(
        &self,
        reader: &HistoryReader<'_>,
        at: NodeId,
        parts: &[&[u8]],
    ) -> Result<Option<NodeId>> {
        let Some((first, rest)) = parts.split_first() else {
            return Ok(Some(at));
        };
        let Ok(name) = Name::new(first) else {
            return Ok(None);
        };
        if let Some(store) = self.database.find_mount(at, &name) {
            let ino = Ino::ROOT;
            return self.find_ever(reader, NodeId { store, ino }, rest);
        }
        for ino in reader.find_ever(self.database.table_of(at.store), at.ino, &name)? {
            let next = NodeId {
                store: at.store,
                ino,
            };
            if let Some(found) = self.find_ever(reader, next, rest)? {
                return Ok(Some(found));
            }
        }
        Ok(None)
    }

    fn kind_ever(&self, reader: &HistoryReader<'_>, node: NodeId) -> Result<Option<FileKind>> {
        let store = self.database.table_of(node.store);
        for step in reader.touches_of(store, node.ino)? {
            let (before, whole) = reader.around(step)?;
            for seq in whole.map(|(seq, _)| seq).into_iter().chain([before]) {
                if let Some(row) = reader.inode(store, node.ino, seq)? {
                    return Ok(Some(row.kind));
                }
            }
        }
        Ok(None)
    }
}

/// What a commit, from the state of `before` to its own, `seq`, made of some inodes.
pub(crate) fn changes_of(
    database: &Database,
    reader: &HistoryReader<'_>,
    inodes: &BTreeSet<(StoreId, Ino)>,
    (before, seq): (CommitSeq, CommitSeq),
) -> Result<Vec<LogChange>> {
    Log::new(database, reader, Subject::All).changes(inodes, before, seq)
}

/// A commit that may have changed the inodes: the state before it, its number and time.
type Maybe = (BTreeSet<(StoreId, Ino)>, CommitSeq, (CommitSeq, i64));

/// The commits that a log is still to look at.
enum Road {
    One {
        file: Rc<File>,
        /// The oldest first.
        steps: Vec<(CommitSeq, Ino)>,
        last: Option<CommitSeq>,
    },
    All {
        window: usize,
        /// Of the window, the newest first; those before `at` are done.
        commits: Vec<WholeCommit>,
        at: usize,
        /// The whole commit before them.
        floor: CommitSeq,
        touches: Vec<Touch>,
    },
}

impl Road {
    fn new(reader: &HistoryReader<'_>, subject: Subject) -> Result<Road> {
        Ok(match subject {
            Subject::One(file) => {
                let mut steps = Vec::new();
                for &ino in &file.inodes {
                    let touches = reader.touches_of(file.store, ino)?;
                    steps.extend(touches.into_iter().map(|step| (step, ino)));
                }
                steps.sort_unstable();
                Road::One {
                    file,
                    steps,
                    last: None,
                }
            }
            Subject::All | Subject::Below(..) => Road::All {
                window: WINDOW_MIN,
                commits: Vec::new(),
                at: 0,
                floor: CommitSeq(0),
                touches: Vec::new(),
            },
        })
    }

    fn next(&mut self, reader: &HistoryReader<'_>) -> Result<Option<Maybe>> {
        let begins = reader.begins()?.0;
        let found = match self {
            Road::One { file, steps, last } => loop {
                let Some((step, ino)) = steps.pop() else {
                    break None;
                };
                let (before, whole) = reader.around(step)?;
                // Attributes that plain SQL changed count to the next commit.
                let Some((seq, at_ns)) = whole.filter(|(seq, _)| *last != Some(*seq)) else {
                    continue;
                };
                *last = Some(seq);
                let mut touched: BTreeSet<Ino> = [ino].into();
                while let Some((_, ino)) = steps.pop_if(|(step, _)| *step > before) {
                    touched.insert(ino);
                }
                let mut inodes = BTreeSet::new();
                for ino in touched {
                    if file.is_it(reader, ino, (before, seq))? {
                        inodes.insert((file.store, ino));
                    }
                }
                if !inodes.is_empty() {
                    break Some((inodes, before, (seq, at_ns)));
                }
            },
            Road::All {
                window,
                commits,
                at,
                floor,
                touches,
            } => {
                if *at == commits.len() {
                    *commits = reader.commits_before(commits.last(), *window)?;
                    (*at, *window) = (0, window.saturating_mul(2));
                    if let (Some(newest), Some(oldest)) = (commits.first(), commits.last()) {
                        let earlier = reader.commits_before(Some(oldest), 1)?;
                        *floor = earlier.first().map_or(begins, |commit| commit.seq);
                        *touches = reader.touches(*floor, newest.seq)?;
                    }
                }
                commits.get(*at).map(|commit| {
                    *at += 1;
                    let before = commits.get(*at).map_or(*floor, |commit| commit.seq);
                    let from = touches.partition_point(|touch| touch.step <= before);
                    let to = touches.partition_point(|touch| touch.step <= commit.seq);
                    let inodes = touches[from..to].iter();
                    let inodes = inodes.map(|touch| (touch.store, touch.ino)).collect();
                    (inodes, before, (commit.seq, commit.at_ns))
                })
            }
        };
        // The state before it may be given up by now.
        Ok(found.filter(|(_, before, _)| *before >= begins))
    }
}

struct Log<'r, 'c> {
    reader: &'r HistoryReader<'c>,
    paths: Paths<'r, 'c>,
    subject: Subject,
}

impl<'r, 'c> Log<'r, 'c> {
    fn new(database: &Database, reader: &'r HistoryReader<'c>, subject: Subject) -> Log<'r, 'c> {
        Log {
            reader,
            paths: Paths::new(database, reader),
            subject,
        }
    }

    /// What a commit made of some inodes, by path.
    fn changes(
        &mut self,
        inodes: &BTreeSet<(StoreId, Ino)>,
        before: CommitSeq,
        seq: CommitSeq,
    ) -> Result<Vec<LogChange>> {
        self.paths.forget();
        let mut changes = Vec::new();
        let mut nets = Vec::new();
        for &inode in inodes {
            nets.extend(net_change(self.reader, inode, before, seq)?);
        }
        for net in join_saves(self.reader, nets, before, seq)? {
            self.add_changes(&net, before, seq, &mut changes)?;
        }
        changes.sort_by(|a, b| a.path.cmp(&b.path));
        Ok(changes)
    }

    fn add_changes(
        &mut self,
        net: &NetChange,
        before: CommitSeq,
        after: CommitSeq,
        changes: &mut Vec<LogChange>,
    ) -> Result<()> {
        let none: &[(Ino, Name)] = &[];
        let was = net.before.as_ref().map_or(none, |state| &state.names[..]);
        let is = net.after.as_ref().map_or(none, |state| &state.names[..]);
        // An inode may have a great many names, of a stranger's making.
        let (had, has): (HashSet<_>, HashSet<_>) = (was.iter().collect(), is.iter().collect());
        let mut gone = was.iter().filter(|name| !has.contains(name));
        let new = is.iter().filter(|name| !had.contains(name));
        let mut is_first = true;
        let mut found: Vec<(Told, LogEvent)> = Vec::new();
        for name in new {
            let Some(to) = self.path_of(net, name, after)? else {
                continue;
            };
            let is_new = net.before.is_none() && std::mem::replace(&mut is_first, false);
            let event = match gone.next() {
                _ if is_new => LogEvent::Created,
                None => LogEvent::Linked,
                Some(name) => match self.path_of(net, name, before)? {
                    Some(from) => {
                        let is_within = to.is_within || from.is_within;
                        let event = LogEvent::Renamed { from: from.path };
                        found.push((Told { is_within, ..to }, event));
                        continue;
                    }
                    None => LogEvent::Linked,
                },
            };
            found.push((to, event));
        }
        for name in gone {
            let event = match net.after {
                None => LogEvent::Removed,
                Some(_) => LogEvent::Unlinked,
            };
            found.extend(self.path_of(net, name, before)?.map(|from| (from, event)));
        }
        if net.before.is_some()
            && let Some(state) = &net.after
            && (net.has_content || net.has_attributes || net.has_columns)
        {
            let told = self.path_of_state(net, state, after)?;
            let events = [
                (net.has_content, LogEvent::Content),
                (net.has_attributes, LogEvent::Attributes),
                (net.has_columns, LogEvent::Columns),
            ];
            for (has, event) in events {
                found.extend(told.clone().filter(|_| has).map(|told| (told, event)));
            }
        }
        let state = net.after.as_ref().or(net.before.as_ref());
        let Some(kind) = state.map(|state| state.row.kind) else {
            return Ok(());
        };
        let wanted = found.into_iter().filter(|(told, _)| told.is_within);
        changes.extend(wanted.map(|(told, event)| LogChange {
            node: NodeId {
                store: net.store,
                ino: net.ino,
            },
            kind,
            path: told.path,
            event,
        }));
        Ok(())
    }

    fn path_of_state(
        &mut self,
        net: &NetChange,
        state: &State,
        seq: CommitSeq,
    ) -> Result<Option<Told>> {
        if let Some(name) = state.names.first() {
            return self.path_of(net, name, seq);
        }
        let place = self.paths.directory(net.store, net.ino, seq)?;
        Ok(place.map(|place| Told {
            path: match place.path.is_empty() {
                true => b"/".to_vec(),
                false => place.path.clone(),
            },
            is_within: self.is_within(net, &place.chain),
        }))
    }

    fn path_of(
        &mut self,
        net: &NetChange,
        (parent, name): &(Ino, Name),
        seq: CommitSeq,
    ) -> Result<Option<Told>> {
        let place = self.paths.directory(net.store, *parent, seq)?;
        Ok(place.map(|place| Told {
            path: [&place.path, &b"/"[..], name.as_bytes()].concat(),
            is_within: self.is_within(net, &place.chain),
        }))
    }

    /// Whether something in the directory at the end of `chain` is asked for.
    fn is_within(&self, net: &NetChange, chain: &[Ino]) -> bool {
        match &self.subject {
            Subject::All => true,
            Subject::One(file) => {
                file.store == net.store && file.inodes.contains(&net.ino) && !net.is_rest
            }
            Subject::Below(store, ino) => {
                *store == net.store && (*ino == net.ino || chain.contains(ino))
            }
        }
    }
}

/// A path that is told, and whether it was asked for.
#[derive(Clone)]
struct Told {
    path: Vec<u8>,
    is_within: bool,
}
