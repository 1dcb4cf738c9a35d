//! What is changed, before it is committed: names and attributes, content in memory, and whole
//! objects at once.
//!
//! # Words
//! Dirty blocks are *gathered* in memory that was *claimed* before. An object whose size may still
//! grow has its allocation *delayed*.
//!
//! # Invariants
//! `EDIT-n` in `edit`, `CLAIM-n` in `claims`, `WHOLE-n` in `delayed_allocation`, `SAVE-4` in
//! `saves`, `GUARD-n` in `guard` and `change`, `CONSTRAINT-5` in `rules`, `NAMELESS-n` in
//! `nameless`, `ATIME-n` in `access_times`.

pub(crate) mod access_times;
pub(crate) mod change;
pub(crate) mod claims;
pub(crate) mod delayed_allocation;
pub(crate) mod edit;
pub(crate) mod frozen;
pub(crate) mod guard;
pub(crate) mod nameless;
pub(crate) mod namespace;
pub(crate) mod pieced;
pub(crate) mod put;
pub(crate) mod rules;
pub(crate) mod saves;
pub(crate) mod splice;

use crate::view::entries::EntryDelta;
use crate::view::node::Node;
use larder_catalog::{AttrMask, ChangeSet, DirentChange, InodeChange, InodeRow, Save, XattrChange};
use larder_space::format::{Ino, Name, SessionId, StoreId};
use std::collections::{BTreeMap, VecDeque};
use std::sync::atomic::{AtomicU32, AtomicU64};
use std::sync::{Arc, Mutex, RwLock, Weak};
use std::time::Instant;

/// A file that lost the name it had.
#[derive(Debug)]
pub(crate) struct Aside {
    store: StoreId,
    ino: Ino,
    dir: Ino,
    name: Name,
    /// It got the name of a backup.
    is_backup: bool,
    at_ns: i64,
}

/// The files that were set aside last, the oldest first.
#[derive(Debug, Default)]
pub(crate) struct Asides(VecDeque<Aside>);

/// What is pending. A leaf lock.
#[derive(Default)]
pub(crate) struct Rules {
    pending: Mutex<BTreeMap<(StoreId, Ino), Pending>>,
}

/// A row that is answered and not committed.
struct Pending {
    row: InodeRow,
    mask: AttrMask,
    is_deleted: bool,
    generation: u64,
    /// The names in it that are not committed.
    entries: Vec<(Name, Option<Ino>)>,
    /// Its extended attributes that are not committed: of which group, and their values.
    xattrs: BTreeMap<Vec<u8>, (u64, Option<Vec<u8>>)>,
}

/// What the rules are asked about.
#[derive(Default)]
pub(crate) struct Asked {
    /// The rows of an operation, as they are after it.
    pub rows: Vec<(StoreId, InodeChange)>,
    /// What of all that waits for its commit already, as it was before it.
    pub before: ChangeSet,
    /// The catalog may not know one of them.
    pub is_unknown: bool,
    /// What is saved.
    pub saves: Vec<Save>,
    /// The names that it changes.
    pub entries: Vec<DirentChange>,
    /// The extended attributes that it changes.
    pub xattrs: Vec<XattrChange>,
}

/// Who may know inodes that have no handle. Its locks are leaves: it is asked with an inode locked.
pub trait Keeper: Send + Sync {
    /// Whether it knows the inode.
    fn knows(&self, store: StoreId, ino: Ino) -> bool;

    /// The same; if so, [`crate::EngineOrphans::let_go`] follows once it knows it no more.
    /// `by_others`: another session took the last name, by which it may still know it.
    fn keep(&self, store: StoreId, ino: Ino, by_others: bool) -> bool;
}

/// What an engine knows of keepers.
#[derive(Default)]
pub(crate) struct Nameless {
    keeper: RwLock<Option<Weak<dyn Keeper>>>,
    /// What keepers have let go, and nobody has looked at yet.
    let_go: Mutex<Vec<(StoreId, Ino)>>,
}

/// All claims of a session.
#[derive(Default)]
pub(crate) struct Claims {
    bytes: AtomicU64,
    /// Held by the one that waits longest.
    first: Mutex<()>,
    waiting_count: AtomicU32,
}

/// What waits to be written.
#[derive(Default)]
pub(crate) struct AccessTimes(Mutex<Waiting>);

#[derive(Default)]
struct Waiting {
    nodes: Vec<Arc<Node>>,
    /// When the first of them came.
    since: Option<Instant>,
    /// Somebody else was writing, or was not to be disturbed: not before that.
    rest_until: Option<Instant>,
}

/// What takes an operation back.
#[derive(Default)]
pub(crate) struct UndoList {
    pub nodes: Vec<NodeBefore>,
    pub steps: Vec<Undo>,
    /// What was saved in this operation, for the rules.
    pub saves: Vec<Save>,
    /// The rules were asked about all that was touched.
    pub is_asked: bool,
    /// Nothing is taken back any more.
    pub is_over: bool,
}

/// An inode before the operation.
pub(crate) struct NodeBefore {
    pub node: Arc<Node>,
    pub row: InodeRow,
    pub mask: AttrMask,
    pub xattrs_dirty: Vec<Vec<u8>>,
    pub parent: Option<Ino>,
    pub generation: u64,
    pub in_group: bool,
    pub is_deleted: bool,
    pub is_anonymous: bool,
    pub is_linkable: bool,
    /// This operation made it.
    pub is_new: bool,
    /// How often it had been touched, and how often this operation has touched it.
    pub touch_count: u64,
    pub own_touch_count: u64,
}

/// What takes one step back.
pub(crate) enum Undo {
    /// An entry of a directory, what it leads to now; what was not committed, and what was known of
    /// the name.
    Entry {
        dir: Arc<Node>,
        name: Name,
        target: Option<Ino>,
        before: Option<EntryDelta>,
        known: Option<Option<Ino>>,
    },
    /// An extended attribute.
    Xattr {
        node: Arc<Node>,
        name: Vec<u8>,
        before: Option<Vec<u8>>,
    },
    OrphanAdded((StoreId, Ino), Option<SessionId>),
    /// With its holders: it was an orphan of this group.
    OrphanForgotten((StoreId, Ino), Vec<SessionId>),
    OrphanAdopted((StoreId, Ino)),
    /// It was in no group's list before; whether a holder left it.
    OrphanAgain((StoreId, Ino), Option<SessionId>),
    /// It lost its last name, and somebody may know it still.
    Parting(Arc<Node>),
    SaveAdded,
    SaveMoved(usize, Ino),
    FileIdAdded,
    /// A file that was set aside is not.
    AsideAdded(StoreId, Ino),
    AsideTaken(Aside),
    Revived,
}

/// Attributes that a truncate sets in the same step: which, and what sets them at a moment,
/// nanoseconds since 1970.
pub struct RowEdit<'r> {
    /// What `edit` touches.
    pub mask: AttrMask,
    /// Sets them.
    pub edit: &'r dyn Fn(&mut InodeRow, i64),
}
