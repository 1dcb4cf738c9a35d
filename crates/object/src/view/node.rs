//! An inode in memory: attributes, entries, content; what is new in it and not yet committed.
//!
//! # Words
//! *Generation*: the number of the group that a change belongs to. *Fresh*: not in the catalog yet.
//! *Frozen*: dirty blocks that the running commit is writing. *Structural edit*: anything that
//! changes the extent map other than a flush (truncate, punch, delete).
//!
//! ```text
//!            write                    freeze                  flushed
//!  clean ───────────▶ dirty (gather) ───────▶ frozen ────────────────────▶ mapped, in the catalog
//!                        ▲  │ write while frozen: a new gather in front      at the commit's end
//!                        └──┘ structural edit while frozen: waits
//! ```
//!
//! NodeState has more than 20 fields: one lock guards all that can change of an inode.
//!
//! # Invariants
//! * `NODE-1` Content is read gather first, then frozen, then kept, then inline, then redo row,
//!   then map, then hole.
//! * `NODE-2` While `frozen` is set nobody but the commit edits the map.
//! * `NODE-3` A node with uncommitted changes is on the dirty list of the open group.
//! * `NODE-4` Nothing changes a node without the writer lock (see `writer_lock`).
//!
//! Lock order: see the crate's header. At most one node is locked at a time.

use crate::error::{Error, ErrorKind, Result};
use crate::view::entries::EntryDeltas;
use crate::view::extent_map::ExtentMap;
use crate::view::gather::Gather;
use crate::view::pieces::Pieces;
use crate::view::redo_rows::{Applied, RedoRows};
use larder_catalog::{AttrMask, InodeRow};
use larder_space::format::{Extent, FileKind, Ino, Name, StoreId};
use larder_space::{Reservation, StreamId};
use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicU64;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, Instant};

/// A file that is removed so soon after a sync may have been a journal.
const JOURNAL_AGE_MAX: Duration = Duration::from_secs(1);

/// An inode in memory.
pub struct Node {
    pub(crate) store: StoreId,
    pub(crate) ino: Ino,
    kind: FileKind,
    /// Directories: what is known of their entries (`CACHE-1`).
    pub(crate) names: RwLock<Names>,
    /// When the node was used last, by the cache's clock.
    pub(crate) used: AtomicU64,
    /// What the cache counts for the extent map, bytes.
    pub(crate) map_bytes: AtomicU64,
    state: Mutex<NodeState>,
    thawed: Condvar,
}

/// What a directory's node knows of its entries.
#[derive(Default)]
pub(crate) struct Names {
    /// Where names lead to; `None`: there is no such entry.
    pub known: HashMap<Name, Option<Ino>>,
    /// Every entry that the directory has is in `known`.
    pub are_all: bool,
    /// They were too many, and the first ones are not in `known` any more.
    pub were_more: bool,
}

/// The changing part of a node.
pub(crate) struct NodeState {
    pub row: InodeRow,
    /// Attributes that differ from the catalog's.
    pub mask: AttrMask,
    /// When it was read last, where the catalog does not know yet (`ATIME-2`).
    pub accessed_ns: Option<i64>,
    pub is_fresh: bool,
    /// The inode has no name and nobody has it open: it goes with the next commit.
    pub is_deleted: bool,
    /// On the dirty list of the open group (`NODE-3`).
    pub in_group: bool,
    /// In the group that is being committed.
    pub is_committing: bool,
    /// The newest group with a change of this node.
    pub generation: u64,
    /// Counts changes.
    pub touch_count: u64,
    /// Another session may have changed the row: read it again before use.
    pub is_stale: bool,
    /// It has lost its last name in the open group (`NAMELESS-2`).
    pub is_parting: bool,
    /// A keeper holds it: one of `open_count` (`NAMELESS-1`).
    pub is_kept: bool,
    /// Handles in this process.
    pub open_count: u32,
    /// Those of them that may write.
    pub writer_count: u32,
    /// It was made without a name.
    pub is_anonymous: bool,
    /// It may still get its first name.
    pub is_linkable: bool,
    /// Who waits for the frozen state to end.
    pub thaw_waiter_count: u32,
    /// Directories: entries that differ from the catalog's.
    pub entries: EntryDeltas,
    /// Directories: where it was put by this process, when the catalog may not know yet.
    pub parent: Option<Ino>,
    /// Symbolic links: the target, once known.
    pub target: Option<Vec<u8>>,
    /// Extended attributes, once loaded.
    pub xattrs: Option<BTreeMap<Vec<u8>, Vec<u8>>>,
    /// Attribute names that differ from the catalog's.
    pub xattrs_dirty: Vec<Vec<u8>>,
    /// Something of it was refused after it was answered, while somebody has it open.
    pub refusal: Option<Unreported>,
    /// When a sync asked for it last.
    pub synced_at: Option<Instant>,
    /// Regular files.
    pub content: Content,
}

/// The content of a regular file.
#[derive(Default)]
pub(crate) struct Content {
    pub map: ExtentMap,
    /// Which bytes of the base appear where; none: all, where they are (see `pieces`).
    pub pieces: Option<Pieces>,
    /// The catalog may have pages of a list that is gone.
    pub drops_pieces: bool,
    /// Whether `inline` and the root of `pieces` have been read from the catalog.
    pub is_loaded: bool,
    /// Small overwrites that are in the catalog and not in place, by base block; loaded with
    /// `inline`.
    pub redo_rows: RedoRows,
    /// What was written in place and not yet committed.
    pub applied: Option<Applied>,
    /// How often what was here was refused in a commit, and forgotten (`CONSTRAINT-3`).
    pub refused_count: u64,
    pub inline: Option<Vec<u8>>,
    /// The catalog has an inline row, as far as is loaded.
    pub has_inline_row: bool,
    /// `inline` differs from the catalog's.
    pub inline_dirty: bool,
    pub gather: Gather,
    pub frozen: Option<Arc<Gather>>,
    /// The reservation for the gather.
    pub reservation: Option<Reservation>,
    /// Final length as announced, bytes; 0 if unknown.
    pub expected_bytes: u64,
    /// Clean copies of the mapped blocks, while the object may still be placed whole (`WHOLE-1`).
    pub kept: Gather,
    /// Its allocation is delayed: kept blocks lie at places that it will leave.
    pub is_delayed: bool,
    /// A sync of this object waits for the next commit.
    pub is_sync_wanted: bool,
    /// It was complete once, by a sync, and is still open.
    pub was_synced: bool,
}

impl Content {
    /// Drops what was read from the catalog. Nothing of it may be uncommitted.
    pub fn forget(&mut self) {
        self.map = ExtentMap::default();
        self.pieces = None;
        self.redo_rows = RedoRows::default(); // REDO-2
        self.inline = None;
        // Else the next change of the inode's attributes would drop the row that is there (NODE-1).
        self.has_inline_row = false;
        self.is_loaded = false;
    }

    /// Unmaps blocks `from..to`, whose map pages were loaded just before, and ends their redo rows
    /// (`REDO-1`); returns the extents they lay on. It cannot fail (`GUARD-4`).
    pub fn unmap_loaded(&mut self, from: u64, to: u64) -> Vec<Extent> {
        self.redo_rows.end(from, to);
        self.map.remove_loaded(from, to)
    }

    /// The same for everything from block `from` on.
    pub fn unmap_loaded_from(&mut self, from: u64) -> Vec<Extent> {
        self.redo_rows.end(from, u64::MAX);
        self.map.truncate_loaded(from)
    }

    /// Goes back to having no pieces.
    pub fn drop_pieces(&mut self) {
        self.drops_pieces |= self.pieces.take().is_some();
    }
}

impl Drop for Content {
    fn drop(&mut self) {
        // Only an engine that stopped leaves reservations behind, and its books end with it.
        std::mem::forget(self.reservation.take());
    }
}

impl Node {
    pub(crate) fn new(store: StoreId, row: InodeRow, is_fresh: bool) -> Node {
        let mut content = Content::default();
        if is_fresh {
            (content.map, content.is_loaded) = (ExtentMap::new_empty(), true);
        }
        let state = NodeState {
            mask: AttrMask::default(),
            accessed_ns: None,
            is_fresh,
            is_deleted: false,
            in_group: false,
            is_committing: false,
            generation: 0,
            touch_count: 0,
            is_stale: false,
            is_parting: false,
            is_kept: false,
            open_count: 0,
            writer_count: 0,
            is_anonymous: false,
            is_linkable: false,
            thaw_waiter_count: 0,
            entries: EntryDeltas::default(),
            parent: None,
            target: None,
            xattrs: is_fresh.then(BTreeMap::new),
            xattrs_dirty: Vec::new(),
            refusal: None,
            synced_at: None,
            content,
            row,
        };
        Node {
            store,
            ino: state.row.ino,
            kind: state.row.kind,
            // What was just created has no entries.
            names: RwLock::new(Names {
                known: HashMap::new(),
                are_all: is_fresh && state.row.kind == FileKind::Directory,
                were_more: false,
            }),
            used: AtomicU64::new(0),
            map_bytes: AtomicU64::new(0),
            state: Mutex::new(state),
            thawed: Condvar::new(),
        }
    }

    /// What it is; that never changes.
    pub fn kind(&self) -> FileKind {
        self.kind
    }

    /// Which inode it is.
    pub fn ino(&self) -> Ino {
        self.ino
    }

    pub(crate) fn lock(&self) -> MutexGuard<'_, NodeState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The state once no commit is writing the node's blocks (`NODE-2`).
    pub(crate) fn lock_thawed(&self) -> MutexGuard<'_, NodeState> {
        let mut state = self.lock();
        while state.content.frozen.is_some() {
            state.thaw_waiter_count += 1;
            state = self
                .thawed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
            state.thaw_waiter_count -= 1;
        }
        state
    }

    /// Ends the frozen state; the commit calls it when the map has taken the blocks.
    pub(crate) fn thaw(&self, state: &mut NodeState) {
        state.content.frozen = None;
        // To wake nobody is a system call too, and a commit thaws many nodes.
        if state.thaw_waiter_count > 0 {
            self.thawed.notify_all();
        }
    }
}

impl NodeState {
    /// Removes an extended attribute, if it is known to be there. The caller marks the node dirty.
    pub(crate) fn drop_xattr(&mut self, name: &[u8]) {
        let known = self.xattrs.as_mut();
        if known.is_some_and(|known| known.remove(name).is_some()) {
            self.note_xattr(name);
        }
    }

    /// The value of an extended attribute differs from the catalog's.
    pub(crate) fn note_xattr(&mut self, name: &[u8]) {
        if !self.xattrs_dirty.iter().any(|dirty| dirty == name) {
            self.xattrs_dirty.push(name.to_vec());
        }
    }

    /// Whether it may be a journal, whose removal is a commit: a file that was synced just now.
    pub(crate) fn is_journal(&self) -> bool {
        self.synced_at
            .is_some_and(|at| at.elapsed() < JOURNAL_AGE_MAX)
    }

    /// Whether the node can be forgotten: the catalog has everything and nobody needs it.
    pub(crate) fn is_idle(&self) -> bool {
        !self.in_group
            && !self.is_committing
            && self.open_count == 0
            && self.refusal.is_none()
            && self.content.frozen.is_none()
            && self.entries.is_empty()
    }
}

/// Why something of an inode was taken out, as long as its file is open.
#[derive(Debug, Clone)]
pub(crate) struct Unreported {
    pub why: String,
    /// Refusals are counted from 1.
    pub number: u64,
    pub is_told: bool,
}

/// Refuses what was removed.
pub(crate) fn require_alive(state: &NodeState) -> Result<()> {
    if state.is_deleted {
        return Err(Error::new(
            ErrorKind::NotFound,
            "the file was removed by another session; open it again",
        ));
    }
    Ok(())
}

/// The stream of an object's appends.
pub(crate) fn stream_of(node: &Node) -> StreamId {
    StreamId((u64::from(node.store.0) << 48) | node.ino.0)
}

/// Refuses what has no entries.
pub(crate) fn require_directory(state: &NodeState) -> Result<()> {
    if state.row.kind == FileKind::Directory {
        return Ok(());
    }
    Err(Error::new(ErrorKind::NotADirectory, "not a directory"))
}
