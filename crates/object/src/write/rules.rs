//! Asking the user's rules about an operation before it is answered.
//!
//! # Words
//! A *rule* is a trigger, CHECK, UNIQUE index or foreign key of the user's on a store's tables.
//! *Pending* rows are those that the engine has answered and not committed, of stores with rules.
//! To *ask* is to write rows behind the pending ones in a transaction that is taken back.
//!
//! # Invariants
//! * `CONSTRAINT-5` What the rules would refuse as they are, of the state that the session sees, is
//!   refused at the operation: the program gets the error, and nothing is left of the operation
//!   (`GUARD-2`). *Guard*: every operation in a store with rules asks, behind all that is pending.
//!   What SQL adds later is found in the commit (`commit/refused`), and so are rules on the tables
//!   of content and extent maps, whose rows are made there.
//!
//! # Cost
//! In a store without rules one look at a set. In a store with rules: a transaction without a flush
//! for each operation, with a row for each of at most [`PENDING_MAX`] inodes, names and extended
//! attributes that wait, 3 µs each; then they are committed.

use crate::engine::{EngineRules, lock};
use crate::view::node::{Node, NodeState};
use crate::write::{Asked, Pending, RowEdit, Rules};
use crate::{Error, ErrorKind, Result};
use larder_catalog::{CatalogError, ChangeSet, DirentChange, InodeChange};
use larder_space::format::{Ino, Name, StoreId};
use std::sync::PoisonError;

/// Inodes, names and extended attributes that wait at most, of stores with rules.
const PENDING_MAX: usize = 256;
/// Values of extended attributes that wait at most: each operation writes them.
const PENDING_BYTES_MAX: usize = 256 << 10;

impl Rules {
    /// Whether so much is pending that it should be committed.
    pub fn is_full(&self) -> bool {
        let pending = lock(&self.pending);
        let rows: usize = (pending.values())
            .map(|one| 1 + one.entries.len() + one.xattrs.len())
            .sum();
        let values = pending.values().flat_map(|one| one.xattrs.values());
        let bytes: usize = (values.filter_map(|(_, value)| value.as_ref()))
            .map(Vec::len)
            .sum();
        rows >= PENDING_MAX || bytes >= PENDING_BYTES_MAX
    }

    fn note(&self, node: &Node, state: &NodeState) {
        let mut pending = lock(&self.pending);
        let id = (node.store, node.ino);
        if state.is_deleted && state.is_fresh {
            pending.remove(&id);
            return;
        }
        let before = pending.remove(&id);
        let mask = before.as_ref().map(|one| one.mask).unwrap_or_default();
        // Those that a commit takes along are pending until it is done.
        let mut xattrs = before.map(|one| one.xattrs).unwrap_or_default();
        let dirty = state.xattrs_dirty.iter();
        xattrs.extend(dirty.map(|name| (name.clone(), (state.generation, None))));
        if let Some(values) = &state.xattrs {
            for (name, (_, value)) in &mut xattrs {
                *value = values.get(name).cloned();
            }
        }
        let one = Pending {
            row: state.row.clone(),
            mask: state.mask | mask,
            is_deleted: state.is_deleted,
            generation: state.generation,
            entries: (state.entries.iter())
                .map(|(name, delta)| (name.clone(), delta.target.map(|(ino, _)| ino)))
                .collect(),
            xattrs,
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
            false => {
                pending.remove(&id);
            }
        }
    }

    /// What was pending in groups up to `generation` is committed, or taken out.
    pub fn publish(&self, generation: u64) {
        lock(&self.pending).retain(|_, one| {
            one.xattrs.retain(|_, (of, _)| *of > generation);
            one.generation > generation
        });
    }

    /// Of these nothing is pending any more.
    pub fn forget<'i>(&self, ids: impl Iterator<Item = &'i (StoreId, Ino)>) {
        let mut pending = lock(&self.pending);
        for id in ids {
            pending.remove(id);
        }
    }

    fn rows(&self) -> ChangeSet {
        let pending = lock(&self.pending);
        let names = pending.iter().flat_map(|(&(store, dir), one)| {
            let names = one.entries.iter();
            names.map(move |(name, target)| (store, dir, name.clone(), *target))
        });
        let dirents = gone_first(names.collect());
        let xattrs = (pending.iter()).filter(|(_, one)| !one.is_deleted);
        let xattrs = xattrs.flat_map(|(&(store, ino), one)| {
            let values = one.xattrs.iter();
            values.map(move |(name, (_, value))| (store, ino, name.clone(), value.clone()))
        });
        let xattrs = xattrs.collect();
        let (gone, made): (Vec<_>, Vec<_>) = pending.iter().partition(|(_, one)| one.is_deleted);
        let made = made
            .into_iter()
            .map(|((store, _), one)| (*store, InodeChange::Update(one.row.clone(), one.mask)));
        let gone = gone
            .into_iter()
            .map(|((store, ino), _)| (*store, InodeChange::Delete(*ino)));
        ChangeSet {
            inodes: made.chain(gone).collect(),
            dirents,
            xattrs,
            ..ChangeSet::default()
        }
    }
}

impl EngineRules<'_> {
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

    /// Asks the rules about an operation: the rows that it changes, as they are after it, and the
    /// saves.
    pub(crate) fn ask_rules(&self, mut asked: Asked) -> Result<()> {
        if asked.rows.is_empty() {
            return Ok(());
        }
        (asked.rows).sort_by_key(|(_, change)| matches!(change, InodeChange::Delete(_)));
        let changes = ChangeSet {
            inodes: asked.rows,
            saves: (asked.saves.into_iter())
                .filter(|save| self.is_constrained(save.store))
                .collect(),
            dirents: gone_first(asked.entries),
            xattrs: asked.xattrs,
            ..ChangeSet::default()
        };
        let pending = self.rules.rows();
        let ask = |before: &ChangeSet| {
            let tried = self.catalog.rules()?.try_rows(&pending, before, &changes);
            tried.map_err(|error| self.refused_by_rule(error, &changes, &pending))
        };
        let before = asked.before;
        if asked.is_unknown {
            // The commit will make it in one step, as it is then.
            ask(&ChangeSet {
                inodes: Vec::new(),
                ..before.clone()
            })?;
        }
        ask(&before)
    }

    /// Asks the rules about a change of content after which a file has `size_bytes`, and the
    /// attributes that come with it. The node's state is locked.
    pub(crate) fn ask_content(
        &self,
        node: &Node,
        state: &NodeState,
        size_bytes: u64,
        with: Option<&RowEdit<'_>>,
    ) -> Result<()> {
        if !self.is_constrained(node.store) {
            return Ok(());
        }
        let is_pending = state.in_group && state.mask.size && state.mask.mtime;
        if is_pending && size_bytes == state.row.size_bytes && with.is_none() {
            return Ok(()); // It was asked about, but for the time.
        }
        let now_ns = self.now_ns();
        let mut row = state.row.clone();
        row.size_bytes = size_bytes;
        (row.mtime_ns, row.ctime_ns) = (now_ns, now_ns);
        let mut mask = state.mask;
        (mask.size, mask.mtime, mask.ctime) = (true, true, true);
        if let Some(with) = with {
            (with.edit)(&mut row, now_ns);
            mask = mask | with.mask;
        }
        let mut before = ChangeSet::default();
        if state.in_group || state.is_committing || state.is_fresh {
            let row = InodeChange::Update(state.row.clone(), state.mask);
            before.inodes.push((node.store, row));
        }
        self.ask_rules(Asked {
            rows: vec![(node.store, InodeChange::Update(row, mask))],
            before,
            is_unknown: state.is_fresh || state.is_committing,
            ..Asked::default()
        })
    }

    /// The error of what a rule refuses; the log names the rule, the table and the path.
    fn refused_by_rule(
        &self,
        error: CatalogError,
        asked: &ChangeSet,
        pending: &ChangeSet,
    ) -> Error {
        match error {
            CatalogError::Constraint { .. } => {
                let path = self.asked_path(asked, pending);
                tracing::warn!("refused by a constraint: {error}: {path}");
                Error::with_source(
                    ErrorKind::NotPermitted,
                    "a constraint of the database refuses it",
                    error,
                )
            }
            other => other.into(),
        }
    }

    /// The path of what a rule was asked about, in its store: by the names that it is to have, that
    /// wait for their commit, or that the catalog knows. Inodes may be locked.
    fn asked_path(&self, asked: &ChangeSet, pending: &ChangeSet) -> String {
        let named = asked.dirents.iter().rfind(|entry| entry.3.is_some());
        let (store, mut at, mut parts) =
            match (named.or(asked.dirents.last()), asked.inodes.first()) {
                (Some((store, dir, name, _)), _) => (*store, *dir, vec![name.to_string()]),
                (None, Some(row)) => {
                    let (store, ino) = id_of(row);
                    (store, ino, Vec::new())
                }
                (None, None) => return String::new(),
            };
        while at != Ino::ROOT && parts.len() < 1024 {
            let is_it = |(one, _, _, target): &&(StoreId, Ino, Name, Option<Ino>)| {
                (*one, *target) == (store, Some(at))
            };
            let waiting = pending.dirents.iter().find(is_it);
            let found = match waiting {
                Some((_, dir, name, _)) => Some((*dir, name.clone())),
                None => {
                    let found = self.catalog.tables().parents(store, at);
                    found.ok().and_then(|found| found.into_iter().next())
                }
            };
            let Some((dir, name)) = found else {
                parts.push(format!("(inode {at})"));
                break;
            };
            parts.push(name.to_string());
            at = dir;
        }
        parts.reverse();
        format!("/{}", parts.join("/"))
    }
}

/// Names in the order in which a commit writes them.
fn gone_first(mut entries: Vec<DirentChange>) -> Vec<DirentChange> {
    entries.sort_by_key(|(store, _, _, target)| (*store, target.is_some()));
    entries
}

fn id_of((store, change): &(StoreId, InodeChange)) -> (StoreId, Ino) {
    match change {
        InodeChange::Insert(row) | InodeChange::Update(row, _) => (*store, row.ino),
        InodeChange::Delete(ino) => (*store, *ino),
    }
}
