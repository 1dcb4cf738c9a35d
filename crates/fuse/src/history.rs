//! History on the mount of the present: `.larder/at/MOMENT/…` and `.larder/snapshots/NAME/…`.
//!
//! # Words
//! A *view* is a name in one of the two directories and the commit that it stands for. A *slot*
//! numbers one store of a view; nodes in it stand for those of that store then, with their inode
//! numbers. A *past* is the database as of one commit, open; views of the same commit share it.
//! Slot 0 is not of a view: it has the three directories.
//!
//! # Why a view has numbers of its own
//! Programs take equal `st_dev` and `st_ino` for the same file: diff(1) would not compare a file
//! with what it was, and cp(1) and rsync(1) would make hard links. And the kernel gives a directory
//! one name only: were it known by two (`at/seq:7` and `at/-1h`), each look at one would take it
//! from the other.
//!
//! # What a name in `at` stands for
//! A name is resolved when it is looked up first. It stands for that commit until nobody has used
//! it for [`IDLE`], since a program that walks through `at/-1h` looks the name up again for each
//! file and wants one moment. Names of snapshots are looked up each time.
//!
//! # How long a past is open
//! It keeps all it shows from being reclaimed (`CONTENT-9`). So it is closed when nobody has used
//! it for [`IDLE`], and when more than [`KEPT_COUNT_MAX`] are open, the one that was not used for
//! the longest time; but never one in which something is open (`FUSE-10`). A node that the kernel
//! still has opens it again, if its moment can still be read.
//!
//! # Concurrency
//! `state` is a leaf. The lock of a past is held while it is opened, which calls the Content API:
//! others wait there who want the same past. Under `state` it is only taken where nobody else has,
//! or can get, the past.

mod access;
mod file;
mod open;

use crate::convert::{SLOT_BITS, mix, past_node, slot_of};
use crate::options::HistoryAccess;
pub(crate) use access::limit;
use file::PastFile;
use larder::{
    Database, DirEntry, Error, ErrorKind, FileHandle, FileKind, Ino, Metadata, Moment, Name,
    NodeId, StoreId, parse_moment,
};
pub(crate) use open::Open;
use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The name of it in the root of the mount.
pub(crate) const NAME: &[u8] = b".larder";
/// How long what nobody uses is kept.
const IDLE: Duration = Duration::from_secs(60);
/// Pasts that stay open though nobody uses them; each has some open files and a few MB of memory.
const KEPT_COUNT_MAX: usize = 8;
/// Pasts that may be open at all: programs must not use up the files of the server.
const OPEN_COUNT_MAX: usize = 32;
/// Names in `at` that are remembered; others are resolved at each look.
const NAME_COUNT_MAX: usize = 4096;
/// From so many slots on, those that the kernel does not know are given up.
const SLOT_COUNT_SWEPT: usize = 1 << 16;
/// Lines in the log per second about names that stand for no moment.
const LINES_MAX: u32 = 10;

/// The directories that are no moment's; the numbers are their inodes in slot 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum Directory {
    /// `.larder`.
    Top = 1,
    /// `.larder/at`.
    At = 2,
    /// `.larder/snapshots`.
    Snapshots = 3,
}

impl Directory {
    /// All of them.
    pub(crate) const ALL: [Directory; 3] = [Directory::Top, Directory::At, Directory::Snapshots];

    /// Its node.
    pub(crate) fn node(self) -> NodeId {
        past_node(0, Ino(self as u64))
    }

    /// The directory that a node is.
    fn of(node: NodeId) -> Option<Directory> {
        let mut all = Directory::ALL.into_iter();
        all.find(|directory| directory.node() == node)
    }
}

/// Whether the directory holds names that may stand for something else some time later, so that the
/// kernel must not remember for long what they lead to, nor that they are not there.
pub(crate) fn is_changing(directory: NodeId) -> bool {
    slot_of(directory) == Some(0)
}

/// A name, and the commit that it stands for.
#[derive(Debug, PartialEq, Eq, Hash)]
struct View {
    directory: Directory,
    name: Name,
    seq: u64,
}

/// A store of a view.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Slot {
    view: Arc<View>,
    store: StoreId,
}

/// A commit that was asked for.
struct Past {
    open: Mutex<PastState>,
}

struct PastState {
    open: Option<Arc<Open>>,
    used: Instant,
}

impl Past {
    fn lock(&self) -> MutexGuard<'_, PastState> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl PastState {
    /// What may be closed: nobody else has it, and nobody can get it without this lock.
    fn is_unused(&self) -> bool {
        self.open
            .as_ref()
            .is_some_and(|open| Arc::strong_count(open) == 1)
    }
}

#[derive(Default)]
struct State {
    slots: HashMap<u32, Slot>,
    numbers: HashMap<Slot, u32>,
    last_slot: u32,
    /// Slots left by the last sweep.
    swept_count: usize,
    /// What names in `at` stand for, and when they were last looked up.
    names: HashMap<Name, (u64, Instant)>,
    pasts: HashMap<u64, Arc<Past>>,
    /// Lines in the log since a moment.
    lines: Option<(Instant, u32)>,
}

/// The history of the database of one mount.
pub(crate) struct History {
    present: Database,
    access: HistoryAccess,
    began_ns: i64,
    state: Mutex<State>,
}

/// A node of the past with what it needs to be read.
pub(crate) struct Inside {
    history: Arc<History>,
    open: Arc<Open>,
    slot: Slot,
    number: u32,
    ino: Ino,
}

impl History {
    pub(crate) fn new(present: Database, access: HistoryAccess) -> History {
        History {
            began_ns: present.now_ns(),
            access,
            present,
            state: Mutex::default(),
        }
    }

    // ---- the directories --------------------------------------------------------------------

    /// The attributes of a directory. It belongs to whoever the root belongs to, and is for who may
    /// read that.
    pub(crate) fn directory_attr(&self, directory: Directory) -> Result<Metadata, Error> {
        let root = self.present.nodes().metadata(NodeId::ROOT)?;
        Ok(Metadata {
            node: directory.node(),
            kind: FileKind::Directory,
            mode: access::leading(
                self.access,
                &root,
                access::has_acl(&self.present, NodeId::ROOT)?,
            ),
            // As filesystems say that do not count the subdirectories.
            nlink: 1,
            size_bytes: 0,
            allocated_bytes: 0,
            atime_ns: self.began_ns,
            mtime_ns: self.began_ns,
            ctime_ns: self.began_ns,
            btime_ns: self.began_ns,
            ..root
        })
    }

    /// The directory that `node` is; [`ErrorKind::NotFound`] when it is none.
    pub(crate) fn directory(&self, node: NodeId) -> Result<Directory, Error> {
        Directory::of(node).ok_or_else(gone)
    }

    /// Looks a name up in a directory. What stands for no moment is not there, and the log says
    /// why.
    pub(crate) fn lookup(
        self: &Arc<History>,
        directory: Directory,
        name: &Name,
    ) -> Result<Metadata, Error> {
        let found = match (directory, name.as_bytes()) {
            (Directory::Top, b"at") => return self.directory_attr(Directory::At),
            (Directory::Top, b"snapshots") => return self.directory_attr(Directory::Snapshots),
            (Directory::Top, _) => return Err(gone()),
            (Directory::At, _) => self.find_moment(name),
            (Directory::Snapshots, _) => self.find_snapshot(name),
        };
        let root = found.and_then(|seq| {
            let view = View {
                directory,
                name: name.clone(),
                seq,
            };
            self.enter(self.node(view, StoreId::MAIN)?)?.attr()
        });
        root.map_err(|error| match error.kind() {
            ErrorKind::NotFound | ErrorKind::InvalidInput => {
                self.tell(directory, name, &error);
                Error::new(ErrorKind::NotFound, error.to_string())
            }
            _ => error,
        })
    }

    /// The entries of a directory after one, at most `limit`. `at` has any number, and lists none.
    pub(crate) fn read_dir(
        &self,
        directory: Directory,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<DirEntry>, Error> {
        let entry = |name: &[u8], node: NodeId| {
            let name = Name::new(name)
                .map_err(|error| Error::new(ErrorKind::Corrupt, error.to_string()))?;
            let kind = FileKind::Directory;
            Ok(DirEntry { name, node, kind })
        };
        let mut entries: Vec<DirEntry> = match directory {
            Directory::Top => [
                entry(b"at", Directory::At.node()),
                entry(b"snapshots", Directory::Snapshots.node()),
            ]
            .into_iter()
            .collect::<Result<_, Error>>()?,
            Directory::At => Vec::new(),
            Directory::Snapshots => {
                let rows = self.present.snapshots().list()?;
                (rows.iter())
                    .map(|row| {
                        let entry = entry(row.name.as_bytes(), NodeId::ROOT)?;
                        let view = View {
                            directory,
                            name: entry.name.clone(),
                            seq: row.seq.0,
                        };
                        let node = self.node(view, StoreId::MAIN)?;
                        Ok(DirEntry { node, ..entry })
                    })
                    .collect::<Result<_, Error>>()?
            }
        };
        entries.retain(|entry| after.is_none_or(|after| entry.name > *after));
        entries.sort_by(|one, other| one.name.cmp(&other.name));
        entries.truncate(limit);
        Ok(entries)
    }

    /// The commit that a name in `at` stands for.
    fn find_moment(&self, name: &Name) -> Result<u64, Error> {
        if let Some(seq) = self.lock().remembered(name, Instant::now()) {
            return Ok(seq);
        }
        let text = std::str::from_utf8(name.as_bytes())
            .map_err(|_| Error::new(ErrorKind::InvalidInput, "a moment is written in UTF-8"))?;
        let moment = parse_moment(text, self.present.now_ns())?;
        let (seq, _) = self.present.history().resolve(&moment)?;
        if matches!(moment, Moment::Snapshot(_)) {
            return Ok(seq);
        }
        // Somebody else may have been faster.
        let mut state = self.lock();
        if let Some(seq) = state.remembered(name, Instant::now()) {
            return Ok(seq);
        }
        if state.names.len() < NAME_COUNT_MAX {
            state.names.insert(name.clone(), (seq, Instant::now()));
        }
        Ok(seq)
    }

    fn find_snapshot(&self, name: &Name) -> Result<u64, Error> {
        let moment = Moment::Snapshot(name.to_string());
        Ok(self.present.history().resolve(&moment)?.0)
    }

    /// Says in the log why a name is not there; not more often than somebody can read.
    fn tell(&self, directory: Directory, name: &Name, error: &Error) {
        let now = Instant::now();
        let is_told = {
            let mut state = self.lock();
            let second = match state.lines {
                Some((begun, count)) if now - begun < Duration::from_secs(1) => (begun, count + 1),
                _ => (now, 1),
            };
            state.lines = Some(second);
            second.1 <= LINES_MAX
        };
        let place = match directory {
            Directory::Snapshots => "snapshots",
            Directory::Top | Directory::At => "at",
        };
        match is_told {
            true => tracing::warn!("there is no '.larder/{place}/{name}': {error}"),
            false => tracing::debug!("there is no '.larder/{place}/{name}': {error}"),
        }
    }

    // ---- slots ------------------------------------------------------------------------------

    /// The node of the root of a store in a view.
    fn node(&self, view: View, store: StoreId) -> Result<NodeId, Error> {
        let view = Arc::new(view);
        let number = self.lock().number(Slot { view, store })?;
        Ok(past_node(number, Ino::ROOT))
    }

    /// Gives up slots that `known` has not, when there are many.
    pub(crate) fn sweep_slots(&self, known: impl FnOnce() -> HashSet<u32>) {
        let is_due = |state: &State| {
            let count = state.slots.len();
            count > SLOT_COUNT_SWEPT && count > 2 * state.swept_count
        };
        if !is_due(&self.lock()) {
            return;
        }
        // A reply on its way may name one of the newest: they stay.
        let newest = self.lock().last_slot;
        let known = known();
        let mut state = self.lock();
        let is_kept = |number: &u32| {
            let age = newest.wrapping_sub(*number) & ((1 << SLOT_BITS) - 1);
            age < SLOT_COUNT_SWEPT as u32 / 2
                || age > 1 << (SLOT_BITS - 1)
                || known.contains(number)
        };
        let State { slots, numbers, .. } = &mut *state;
        slots.retain(|number, slot| {
            let keeps = is_kept(number);
            if !keeps {
                numbers.remove(slot);
            }
            keeps
        });
        state.swept_count = state.slots.len();
    }

    /// The commit that the nodes of a slot are as of; `None`: nobody knows it any more.
    pub(crate) fn moment_of(&self, slot: u32) -> Option<u64> {
        Some(self.lock().slots.get(&slot)?.view.seq)
    }

    // ---- pasts ------------------------------------------------------------------------------

    /// Opens what a node of a view needs. [`ErrorKind::NotFound`] when its moment cannot be read
    /// any more.
    pub(crate) fn enter(self: &Arc<History>, node: NodeId) -> Result<Inside, Error> {
        let number = slot_of(node).ok_or_else(gone)?;
        let slot = self.lock().slots.get(&number).cloned().ok_or_else(gone)?;
        let open = self.open(slot.view.seq)?;
        Ok(Inside {
            history: Arc::clone(self),
            open,
            slot,
            number,
            ino: node.ino,
        })
    }

    fn open(&self, seq: u64) -> Result<Arc<Open>, Error> {
        let now = Instant::now();
        let past = {
            let mut state = self.lock();
            let fresh = || {
                let open = Mutex::new(PastState {
                    open: None,
                    used: now,
                });
                Arc::new(Past { open })
            };
            Arc::clone(state.pasts.entry(seq).or_insert_with(fresh))
        };
        let mut found = past.lock();
        found.used = now;
        if let Some(open) = &found.open {
            return Ok(Arc::clone(open));
        }
        // One more is one less of those that nobody uses.
        self.close_unused(now, KEPT_COUNT_MAX - 1);
        if self.lock().pasts.len() > OPEN_COUNT_MAX {
            return Err(Error::new(
                ErrorKind::Busy,
                format!(
                    "files of {OPEN_COUNT_MAX} moments are open on this mount; close some of them"
                ),
            ));
        }
        let database = self.present.as_of(&Moment::Seq(seq)).map_err(|error| {
            match error.kind() {
                // It was there when it was looked up.
                ErrorKind::InvalidInput => Error::new(ErrorKind::NotFound, error.to_string()),
                _ => error,
            }
        })?;
        if database.history().shown().map(|(shown, _)| shown) != Some(seq) {
            return Err(gone());
        }
        let open = Arc::new(Open { database });
        found.open = Some(Arc::clone(&open));
        Ok(open)
    }

    /// Closes what nobody has used for [`IDLE`], and forgets what names in `at` stood for. Cheap
    /// while there is nothing.
    pub(crate) fn close_idle(&self, now: Instant) {
        self.close_unused(now, KEPT_COUNT_MAX);
        let mut state = self.lock();
        let State { names, pasts, .. } = &mut *state;
        names.retain(|_, (seq, used)| is_fresh(now, *used) || pasts.contains_key(&*seq));
    }

    /// Closes pasts that nobody uses: the idle ones, and of the others the oldest until `keep` are
    /// left.
    fn close_unused(&self, now: Instant, keep: usize) {
        let mut closed = Vec::new();
        {
            let mut state = self.lock();
            let mut unused: Vec<(Instant, u64)> = Vec::new();
            state.pasts.retain(|seq, past| {
                // Who holds the lock, or is about to, uses it.
                if Arc::strong_count(past) > 1 {
                    return true;
                }
                let found = past.lock();
                if found.is_unused() {
                    unused.push((found.used, *seq));
                }
                found.open.is_some() // Else it could not be opened.
            });
            unused.sort_unstable();
            let surplus = unused.len().saturating_sub(keep);
            for (index, (used, seq)) in unused.into_iter().enumerate() {
                if index < surplus || !is_fresh(now, used) {
                    closed.extend(state.pasts.remove(&seq));
                }
            }
        }
        // Closing writes to the catalog: no lock is held.
        drop(closed);
    }

    /// How many pasts there are.
    #[cfg(test)]
    fn past_count(&self) -> usize {
        self.lock().pasts.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    /// What a name in `at` stands for, if that is known.
    fn remembered(&mut self, name: &Name, now: Instant) -> Option<u64> {
        let (seq, used) = self.names.get_mut(name)?;
        let is_in_use = is_fresh(now, *used) || self.pasts.contains_key(&*seq);
        if !is_in_use {
            self.names.remove(name);
            return None;
        }
        *used = now;
        Some(*seq)
    }

    /// The number of a slot, the same as long as it is known.
    fn number(&mut self, slot: Slot) -> Result<u32, Error> {
        if let Some(number) = self.numbers.get(&slot) {
            return Ok(*number);
        }
        let count_max = (1 << SLOT_BITS) - 1;
        if self.slots.len() >= count_max as usize {
            return Err(Error::new(
                ErrorKind::Busy,
                "the kernel knows too many moments of this mount; mount it again",
            ));
        }
        loop {
            // 0 is not of a view.
            self.last_slot = self.last_slot % count_max + 1;
            if !self.slots.contains_key(&self.last_slot) {
                break;
            }
        }
        self.slots.insert(self.last_slot, slot.clone());
        self.numbers.insert(slot, self.last_slot);
        Ok(self.last_slot)
    }
}

impl Inside {
    /// The database as of then; its nodes are not those that the mount shows.
    fn database(&self) -> &Database {
        &self.open.database
    }

    /// The node there.
    fn then(&self) -> NodeId {
        NodeId {
            store: self.slot.store,
            ino: self.ino,
        }
    }

    /// What keeps it from being closed (`FUSE-10`).
    pub(crate) fn hold(&self) -> Arc<Open> {
        Arc::clone(&self.open)
    }

    /// What the mount shows for a node of that time.
    fn shown(&self, node: NodeId) -> Result<NodeId, Error> {
        let number = match node.store == self.slot.store {
            true => self.number,
            false => self.history.lock().number(Slot {
                view: Arc::clone(&self.slot.view),
                store: node.store,
            })?,
        };
        Ok(past_node(number, node.ino))
    }

    fn shown_attr(&self, attr: Metadata) -> Result<Metadata, Error> {
        let node = self.shown(attr.node)?;
        let attr = limit(
            self.history.access,
            &self.history.present,
            self.database(),
            attr,
        )?;
        Ok(Metadata { node, ..attr })
    }

    fn shown_entry(&self, entry: DirEntry) -> Result<DirEntry, Error> {
        let node = self.shown(entry.node)?;
        Ok(DirEntry { node, ..entry })
    }

    pub(crate) fn lookup(&self, name: &Name) -> Result<Metadata, Error> {
        self.shown_attr(self.database().nodes().lookup(self.then(), name)?)
    }

    pub(crate) fn attr(&self) -> Result<Metadata, Error> {
        self.shown_attr(self.database().nodes().metadata(self.then())?)
    }

    pub(crate) fn parent(&self) -> Result<NodeId, Error> {
        match self.then() {
            NodeId::ROOT => Ok(self.slot.view.directory.node()),
            node => self.shown(self.database().nodes().parent(node)?),
        }
    }

    pub(crate) fn read_dir(
        &self,
        after: Option<&Name>,
        limit: usize,
        and_attr: bool,
    ) -> Result<Vec<DirEntry>, Error> {
        let entries = read_dir(self.database(), self.then(), after, limit, and_attr)?;
        entries
            .into_iter()
            .map(|entry| self.shown_entry(entry))
            .collect()
    }

    pub(crate) fn read_link(&self) -> Result<Vec<u8>, Error> {
        self.database().nodes().read_link(self.then())
    }

    pub(crate) fn xattrs(&self) -> Result<Vec<Vec<u8>>, Error> {
        self.database().attributes().list(self.then())
    }

    pub(crate) fn xattr(&self, name: &[u8]) -> Result<Vec<u8>, Error> {
        self.database().attributes().get(self.then(), name)
    }

    /// Opens a regular file for reading; the handle keeps the past open (`FUSE-10`).
    pub(crate) fn open_file(&self) -> Result<Box<dyn FileHandle>, Error> {
        let file = self.database().nodes().open(self.then(), false)?;
        let node = self.shown(self.then())?;
        Ok(Box::new(PastFile::new(file, node, self.hold())))
    }

    /// A number for the locks of programs: the same for the same file and commit on all mounts,
    /// and, but for a chance of 2⁻⁶³, nobody else's.
    pub(crate) fn lock_number(&self) -> u64 {
        let parts = [self.slot.view.seq, u64::from(self.slot.store.0), self.ino.0];
        mix(parts) | 1 << 63
    }
}

/// Entries of a directory of a database; `and_attr`: their attributes come into memory by the same
/// scan.
pub(crate) fn read_dir(
    database: &Database,
    node: NodeId,
    after: Option<&Name>,
    limit: usize,
    and_attr: bool,
) -> Result<Vec<DirEntry>, Error> {
    if !and_attr {
        return database.nodes().read_dir(node, after, limit);
    }
    let entries = database.nodes().read_dir_plus(node, after, limit)?;
    Ok(entries.into_iter().map(|(entry, _)| entry).collect())
}

fn is_fresh(now: Instant, used: Instant) -> bool {
    now.saturating_duration_since(used) < IDLE
}

fn gone() -> Error {
    Error::new(ErrorKind::NotFound, "there is nothing of this name here")
}

#[cfg(test)]
mod tests;
