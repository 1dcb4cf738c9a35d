//! Asking the user's rules about an operation before it is answered.
//!
//! # Words
//! A *rule* is a trigger, CHECK, UNIQUE index or foreign key of the user's on a store's table. *Pending* rows are those that
//! the engine has answered and not committed, of stores with rules. To *ask* is to write rows behind the pending ones in a
//! transaction that is taken back.
//!
//! # Invariants
//! * `CONSTRAINT-5` What the rules would refuse as they are, of the state that the session sees, is refused at the operation:
//!   the program gets the error, and nothing is left of the operation (`GUARD-2`). *Guard*: every operation in a store with
//!   rules asks, behind all that is pending. What SQL adds later is found in the commit (`commit/refused`).
//! * `CONSTRAINT-6` Stores without rules pay nothing for those that have some: one look at a flag.
//!
//! # Cost
//! In a store with rules: a transaction without a flush for each operation, with a row for each of at most
//! [`PENDING_MAX`] inodes that wait, 3 µs each; then they are committed.

use crate::engine::{Engine, lock};
use crate::view::node::{Node, NodeState};
use crate::{Error, ErrorKind, Result};
use larder_catalog::{AttrMask, CatalogError, ChangeSet, InodeChange, InodeRow, Save};
use larder_space::format::{Ino, StoreId};
use std::collections::{BTreeMap, HashSet};
use std::sync::{Mutex, PoisonError};

/// Inodes that wait at most, of stores with rules.
const PENDING_MAX: usize = 128;

/// A row that is answered and not committed.
struct Pending {
    row: InodeRow,
    mask: AttrMask,
    is_deleted: bool,
    generation: u64,
}

/// What is pending. A leaf lock.
#[derive(Default)]
pub(crate) struct Rules {
    pending: Mutex<BTreeMap<(StoreId, Ino), Pending>>,
}

/// Whether an inode is new in the open group.
pub(crate) fn is_fresh_change(state: &NodeState) -> bool {
    state.is_fresh
}

impl Rules {
    /// Whether so much is pending that it should be committed.
    pub fn is_full(&self) -> bool {
        lock(&self.pending).len() >= PENDING_MAX
    }

    fn note(&self, node: &Node, state: &NodeState) {
        let mut pending = lock(&self.pending);
        let id = (node.store, node.ino);
        if state.is_deleted && state.is_fresh {
            pending.remove(&id);
            return;
        }
        let before = pending.get(&id).map(|one| one.mask).unwrap_or_default();
        let one = Pending {
            row: state.row.clone(),
            mask: state.mask | before,
            is_deleted: state.is_deleted,
            generation: state.generation,
        };
        pending.insert(id, one);
    }

    /// An operation was taken back; the node is as it was before.
    pub fn take_back(&self, node: &Node, state: &NodeState) {
        let mut pending = lock(&self.pending);
        let id = (node.store, node.ino);
        if !pending.contains_key(&id) {
            return;
        }
        match state.in_group || state.is_committing {
            true => {
                drop(pending);
                self.note(node, state);
            }
            false => drop(pending.remove(&id)),
        }
    }

    /// What was pending in groups up to `generation` is committed, or taken out.
    pub fn publish(&self, generation: u64) {
        lock(&self.pending).retain(|_, one| one.generation > generation);
    }

    /// Of these nothing is pending any more.
    pub fn forget<'i>(&self, ids: impl Iterator<Item = &'i (StoreId, Ino)>) {
        let mut pending = lock(&self.pending);
        ids.for_each(|id| drop(pending.remove(id)));
    }

    fn rows(&self) -> Vec<(StoreId, InodeChange)> {
        let pending = lock(&self.pending);
        let (gone, made): (Vec<_>, Vec<_>) = pending.iter().partition(|(_, one)| one.is_deleted);
        let made = made
            .into_iter()
            .map(|((store, _), one)| (*store, InodeChange::Update(one.row.clone(), one.mask)));
        let gone = gone
            .into_iter()
            .map(|((store, ino), _)| (*store, InodeChange::Delete(*ino)));
        made.chain(gone).collect()
    }
}

impl Engine {
    /// Whether any store has rules of the user's.
    pub(crate) fn has_rules(&self) -> bool {
        let constrained = self.constrained.read();
        !constrained
            .unwrap_or_else(PoisonError::into_inner)
            .is_empty()
    }

    /// Whether something of the user's may refuse a row of this store.
    pub(crate) fn is_constrained(&self, store: StoreId) -> bool {
        let constrained = self.constrained.read();
        constrained
            .unwrap_or_else(PoisonError::into_inner)
            .contains(&store)
    }

    /// Notes that a row is pending, where rules may refuse it. The node's state is locked.
    pub(crate) fn note_pending(&self, node: &Node, state: &NodeState) {
        if self.is_constrained(node.store) {
            self.rules.note(node, state);
        }
    }

    /// Asks the rules about rows of stores that have some, and saves.
    pub(crate) fn ask_rules(
        &self,
        mut rows: Vec<(StoreId, InodeChange)>,
        saves: Vec<Save>,
    ) -> Result<()> {
        if rows.is_empty() {
            return Ok(());
        }
        rows.sort_by_key(|(_, change)| matches!(change, InodeChange::Delete(_)));
        let changes = ChangeSet {
            inodes: rows,
            saves: (saves.into_iter())
                .filter(|save| self.is_constrained(save.store))
                .collect(),
            ..ChangeSet::default()
        };
        let mut pending = self.rules.rows();
        // What is asked about is pending too: as it was, and as it will be.
        let ids: HashSet<(StoreId, Ino)> = changes.inodes.iter().map(id_of).collect();
        pending.retain(|row| !ids.contains(&id_of(row)));
        (self.catalog.try_rows(&pending, &changes)).map_err(refused_by_rule)
    }

    /// Asks the rules about a change of content after which a file has `size_bytes`. The node's state is locked.
    pub(crate) fn ask_content(
        &self,
        node: &Node,
        state: &NodeState,
        size_bytes: u64,
    ) -> Result<()> {
        if !self.is_constrained(node.store) {
            return Ok(());
        }
        let is_pending = state.in_group && state.mask.size && state.mask.mtime;
        if is_pending && size_bytes == state.row.size_bytes {
            return Ok(()); // It was asked about, but for the time.
        }
        let now_ns = self.now_ns();
        let mut row = state.row.clone();
        row.size_bytes = size_bytes;
        (row.mtime_ns, row.ctime_ns) = (now_ns, now_ns);
        let mut mask = state.mask;
        (mask.size, mask.mtime, mask.ctime) = (true, true, true);
        let rows = vec![(node.store, InodeChange::Update(row, mask))];
        self.ask_rules(rows, Vec::new())
    }
}

fn id_of((store, change): &(StoreId, InodeChange)) -> (StoreId, Ino) {
    match change {
        InodeChange::Insert(row) | InodeChange::Update(row, _) => (*store, row.ino),
        InodeChange::Delete(ino) => (*store, *ino),
    }
}

fn refused_by_rule(error: CatalogError) -> Error {
    match error {
        CatalogError::Constraint { .. } => {
            tracing::warn!("refused by a constraint: {error}");
            Error::with_source(
                ErrorKind::NotPermitted,
                "a constraint of the database refuses it",
                error,
            )
        }
        other => other.into(),
    }
}
