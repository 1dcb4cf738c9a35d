//! What a commit does when the user's rules refuse a row: it takes that out with what depends on
//! it, and commits the rest.
//!
//! # Words
//! A *rule* is a trigger, CHECK, UNIQUE index or foreign key of the user's on a store's table. An
//! operation is *answered* before its group is committed; where its rule can be asked then, it is
//! (`write/rules`), and refused with an error. What is refused in the commit was answered already:
//! by a rule or a row that SQL added in between. It is *taken out*.
//!
//! ```text
//!  commit ──accepted──▶ publish
//!    │ a rule refuses
//!    ▼
//!  find refusals (catalog) ──none, or not of a rule──▶ the engine stops (COMMIT-4)
//!    ▼
//!  close over dependents ─▶ keep their content ─▶ filter the set ─▶ commit ─┬─▶ forget in memory
//!    ▲                                                                      │ ─▶ report ─▶ publish
//!    └─────────────────── refused again: SQL was faster ────────────────────┘
//!         (each round takes out one inode at least)
//! ```
//!
//! # Invariants
//! * `CONSTRAINT-2` What is taken out is what the group changed of the refused inodes, and what
//!   depends on that: the names that lead or led to them, the names below a directory that is
//!   refused, what replaced or was replaced by them, what shares their new content, and what later
//!   operations did to any of these. Everything else is committed. *Guard*: one closure over the
//!   names of the set, and over those of the open group.
//! * `CONSTRAINT-3` After the commit memory and catalog agree: what was taken out is, in memory, as
//!   the catalog has it. *Guard*: it is forgotten under the closed freeze barrier and the namespace
//!   lock, before the commit is published.
//! * `CONSTRAINT-4` Nothing is lost in silence: content that was taken out is on the host's disk
//!   before the commit (`refused_content`), or the log and the error say why it could not be kept;
//!   the log names rule, table and path, and the file's next sync and close answer an error.

use crate::commit::refused_content::RefusedFile;
use crate::engine::{Engine, lock};
use crate::view::ForeignChange;
use crate::view::node::{Node, NodeState, Unreported};
use crate::write::frozen::FrozenNode;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{
    AttrMask, CatalogError, ChangeSet, CommitOutcome, Held, InodeChange, Refusal, Sharing,
};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Extent, FileKind, Ino, Name, StoreId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// An inode, of all stores.
type Id = (StoreId, Ino);

/// A change of a name: directory, name, where it led to, and where it leads.
struct Entry {
    dir: Id,
    name: Name,
    old: Option<Ino>,
    new: Option<Ino>,
}

/// What was taken out of a commit.
#[derive(Default)]
pub(crate) struct TakenOut {
    /// Why: table and rule.
    why: HashMap<Id, String>,
    /// Names that stay as they were.
    entries: HashSet<(Id, Name)>,
}

impl TakenOut {
    fn holds(&self, id: Id) -> bool {
        self.why.contains_key(&id)
    }

    fn is_empty(&self) -> bool {
        self.why.is_empty()
    }
}

/// Whether `error` may be a rule's: only a look at the rows tells.
fn may_be_refusal(error: &CatalogError) -> bool {
    matches!(
        error,
        CatalogError::Constraint { .. }
            | CatalogError::Refused { .. }
            | CatalogError::Sqlite { .. }
            | CatalogError::Corrupt { .. }
    )
}

impl Engine {
    /// Commits `set` without what the user's rules refuse (`CONSTRAINT-2`), and forgets that.
    pub(crate) fn commit_accepted(
        &self,
        generation: u64,
        nodes: &mut [FrozenNode],
        set: &mut ChangeSet,
        moved_away: &mut Vec<Extent>,
    ) -> Result<CommitOutcome> {
        let mut taken = TakenOut::default();
        let outcome = loop {
            let error = match self.patiently(|| self.catalog.commit(set)) {
                Ok(outcome) => break outcome,
                Err(error) => error,
            };
            // A transaction is refused as a whole.
            if self.private.is_some() || self.catalog.is_clients() || !may_be_refusal(&error) {
                return Err(error.into());
            }
            let found = self.patiently(|| self.catalog.find_refusals(set))?;
            if found.is_empty() {
                // By now the rules accept it, or it is no rule's doing.
                return match self.patiently(|| self.catalog.commit(set)) {
                    Ok(outcome) if taken.is_empty() => Ok(outcome),
                    Ok(outcome) => self.forget_taken(generation, nodes, &taken, outcome),
                    Err(again) => Err(again.into()),
                };
            }
            self.take_out(&found, nodes, set, moved_away, &mut taken)?;
        };
        match taken.is_empty() {
            true => Ok(outcome),
            false => self.forget_taken(generation, nodes, &taken, outcome),
        }
    }

    /// Takes refused rows and what depends on them out of a change set, and keeps their content.
    fn take_out(
        &self,
        found: &[Refusal],
        nodes: &[FrozenNode],
        set: &mut ChangeSet,
        moved_away: &mut Vec<Extent>,
        taken: &mut TakenOut,
    ) -> Result<()> {
        let entries = self.entries_of(set)?;
        let mut out = TakenOut::default();
        for refusal in found {
            let why = format!("{}: {}", refusal.table, refusal.constraint);
            out.why.insert((refusal.store, refusal.ino), why);
        }
        close(&mut out, &entries);
        self.close_over_shares(&mut out, &entries, set);
        for frozen in nodes {
            let id = (frozen.node.store, frozen.node.ino);
            let Some(why) = out.why.get(&id) else {
                continue;
            };
            let has_content = !frozen.is_deleted
                && frozen.row.kind == FileKind::File
                && frozen.row.size_bytes > 0
                && (frozen.is_fresh || frozen.mask.size);
            let path = self.refused_path(id, &entries)?;
            self.note_taken(&frozen.node, why, path, has_content);
        }
        self.mend_links(&out, &entries, set)?;
        self.filter(&out, set, moved_away);
        taken.why.extend(out.why);
        taken.entries.extend(out.entries);
        Ok(())
    }

    /// The names that a set changes.
    fn entries_of(&self, set: &ChangeSet) -> Result<Vec<Entry>> {
        let entry = |(store, dir, name, new): &(StoreId, Ino, Name, Option<Ino>)| {
            Ok(Entry {
                dir: (*store, *dir),
                name: name.clone(),
                old: self.catalog.dirent(*store, *dir, name)?,
                new: *new,
            })
        };
        set.dirents.iter().map(entry).collect()
    }

    /// What shares content that is taken out goes with it.
    fn close_over_shares(&self, out: &mut TakenOut, entries: &[Entry], set: &ChangeSet) {
        loop {
            let before = out.why.len();
            let is_out = |(_, store, ino): &&Held| out.holds((*store, *ino));
            let mut new: Vec<Extent> = (set.allocated.iter().filter(is_out))
                .map(|(extent, ..)| *extent)
                .collect();
            // What it has passed on, and whoever it has it from has let go of.
            let let_go = |extent: &Extent| {
                let mut others = set.retired.iter().filter(|held| !is_out(held));
                others.any(|(one, ..)| one.overlaps(extent))
            };
            let shared = set.shared.iter().map(|share| &share.held).filter(is_out);
            new.extend(shared.map(|(extent, ..)| *extent).filter(let_go));
            for share in &set.shared {
                let (extent, store, ino) = share.held;
                if new.iter().any(|one| one.overlaps(&extent)) {
                    depend(out, (store, ino), "what it shares was refused");
                }
            }
            for share in &set.map_shares {
                if out.holds((share.from_store, share.from_ino)) {
                    let id = (share.store, share.ino);
                    depend(out, id, "what it shares was refused");
                }
            }
            close(out, entries);
            if out.why.len() == before {
                return;
            }
        }
    }

    /// Directories that stay count the directories in them: of names that stay as they were.
    fn mend_links(&self, out: &TakenOut, entries: &[Entry], set: &mut ChangeSet) -> Result<()> {
        for entry in entries {
            if !out.entries.contains(&(entry.dir, entry.name.clone())) || out.holds(entry.dir) {
                continue;
            }
            let change = self.links_of(entry)?;
            for (store, row) in &mut set.inodes {
                match row {
                    InodeChange::Insert(row) | InodeChange::Update(row, _)
                        if (*store, row.ino) == entry.dir =>
                    {
                        row.nlink = row.nlink.saturating_add_signed(-change);
                    }
                    _ => {}
                }
            }
            if let Some(node) = self.cache.find(entry.dir.0, entry.dir.1) {
                let mut state = node.lock();
                state.row.nlink = state.row.nlink.saturating_add_signed(-change);
            }
        }
        Ok(())
    }

    /// By how much a change of a name changes the links of its directory.
    fn links_of(&self, entry: &Entry) -> Result<i32> {
        let is_directory = |ino: Option<Ino>| -> Result<i32> {
            let Some(ino) = ino else { return Ok(0) };
            let kind = match self.cache.find(entry.dir.0, ino) {
                Some(node) => Some(node.kind()),
                None => self.catalog.inode(entry.dir.0, ino)?.map(|row| row.kind),
            };
            Ok(i32::from(kind == Some(FileKind::Directory)))
        };
        Ok(is_directory(entry.new)? - is_directory(entry.old)?)
    }

    /// Leaves out of a set what was taken out. What it has written is retired by the commit that
    /// would have named it: somebody may be reading there.
    fn filter(&self, out: &TakenOut, set: &mut ChangeSet, moved_away: &mut Vec<Extent>) {
        let stays = |store: &StoreId, ino: &Ino| !out.holds((*store, *ino));
        set.inodes.retain(|(store, change)| match change {
            InodeChange::Insert(row) | InodeChange::Update(row, _) => stays(store, &row.ino),
            InodeChange::Delete(ino) => stays(store, ino),
        });
        (set.saves).retain(|save| stays(&save.store, &save.from) && stays(&save.store, &save.to));
        set.file_ids.retain(|(store, ino, _)| stays(store, ino));
        (set.dirents).retain(|(store, dir, name, _)| {
            !out.entries.contains(&((*store, *dir), name.clone())) && stays(store, dir)
        });
        set.contents.retain(|(store, ino, _)| stays(store, ino));
        set.map_cuts.retain(|(store, ino, _)| stays(store, ino));
        set.map_pages.retain(|(store, ino, ..)| stays(store, ino));
        (set.map_shares).retain(|share| {
            stays(&share.store, &share.ino) && stays(&share.from_store, &share.from_ino)
        });
        set.piece_drops.retain(|(store, ino)| stays(store, ino));
        set.piece_pages.retain(|(store, ino, ..)| stays(store, ino));
        set.redo_rows.retain(|(store, ino, _)| stays(store, ino));
        set.xattrs.retain(|(store, ino, ..)| stays(store, ino));
        set.orphans_added.retain(|(store, ino)| stays(store, ino));
        set.holders_added
            .retain(|(store, ino, _)| stays(store, ino));
        set.orphans_removed.retain(|(store, ino)| stays(store, ino));
        let new: Vec<Held> = (set.allocated.iter())
            .filter(|(_, store, ino)| !stays(store, ino))
            .copied()
            .collect();
        let places: Vec<Extent> = new.iter().map(|(extent, ..)| *extent).collect();
        let gone = take_held(&mut set.retired, &mut set.shared, |held| {
            !stays(&held.1, &held.2)
        });
        let lost: u64 = gone.iter().map(|(extent, ..)| extent.len_bytes()).sum();
        set.retired_bytes = set.retired_bytes.saturating_sub(lost);
        set.shared
            .retain(|share| stays(&share.held.1, &share.held.2));
        set.moves
            .retain(|(_, to)| !places.iter().any(|place| place.overlaps(to)));
        let gone: Vec<Extent> = gone.into_iter().map(|(extent, ..)| extent).collect();
        moved_away.retain(|place| !gone.iter().any(|one| one.overlaps(place)));
        self.turn_back(&gone, &places);
        set.retired.extend(new);
    }

    /// What is not let go of after all, and what was written in vain.
    fn turn_back(&self, gone: &[Extent], places: &[Extent]) {
        let mut free = self.free_space();
        for extent in subtract(gone, places) {
            if !self.may_share() {
                free.space.revive(extent);
            }
        }
        for extent in subtract(places, gone) {
            self.quarantine_unshared(&mut free, extent);
        }
    }

    /// Says that something of an inode is taken out, and keeps its content.
    fn note_taken(&self, node: &Arc<Node>, why: &str, path: Vec<u8>, has_content: bool) {
        let (store, ino) = (node.store, node.ino);
        self.refusals.count.fetch_add(1, Ordering::Relaxed);
        let shown = String::from_utf8_lossy(&path).into_owned();
        let table = self.store_name(store);
        let kept = match self.keep_refused(node, why, path, has_content) {
            Ok(Some(RefusedFile { id, .. })) if has_content => {
                format!("its content is kept: 'larder refused get DATABASE {id}'")
            }
            Ok(Some(_)) => "'larder refused list DATABASE' lists it".to_owned(),
            Ok(None) => "content not kept yet: the host is full; it is in memory until there is \
                         room, and then 'larder refused list DATABASE' lists it"
                .to_owned(),
            Err(error) => format!("its content could not be kept: {error}"),
        };
        tracing::warn!(
            "refused by a constraint after it was answered: {table}:{shown} (inode {ino}): {why}; \
             {kept}"
        );
        let mut state = node.lock();
        if state.open_count > 0 || state.refusal.is_some() {
            state.refusal = Some(Unreported {
                why: format!("a constraint of the database refused {shown}: {why}; {kept}"),
                by_sync: false,
                by_close: false,
            });
        } else {
            self.refusals.unreported.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The name of a store, for messages.
    fn store_name(&self, store: StoreId) -> String {
        let rows = self.catalog.stores().inspect_err(|error| {
            tracing::debug!("the name of store {store}: {error}");
        });
        let mut rows = rows.into_iter().flatten();
        let named = rows.find(|row| row.store == store);
        named.map_or_else(|| format!("store {store}"), |row| row.name)
    }

    /// The path of an inode in its store, as far as the set and the catalog know names.
    fn refused_path(&self, (store, ino): Id, entries: &[Entry]) -> Result<Vec<u8>> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT && parts.len() < 1024 {
            let known = |entry: &&Entry| {
                entry.dir.0 == store && (entry.new == Some(at) || entry.old == Some(at))
            };
            let found = match entries.iter().find(known) {
                Some(entry) => Some((entry.dir.1, entry.name.clone())),
                None => match self.catalog.parents(store, at)?.into_iter().next() {
                    Some(parent) => Some(parent),
                    None => self.cache.find_parent(store, at),
                },
            };
            let Some((dir, name)) = found else {
                parts.push(format!("(inode {at})").into_bytes());
                break;
            };
            parts.push(name.as_bytes().to_vec());
            at = dir;
        }
        parts.reverse();
        let mut path = Vec::new();
        for part in parts {
            path.push(b'/');
            path.extend(part);
        }
        if path.is_empty() {
            path.push(b'/');
        }
        Ok(path)
    }

    /// Makes memory what the catalog is, of all that was taken out and of what the open group did
    /// to it (`CONSTRAINT-3`).
    fn forget_taken(
        &self,
        generation: u64,
        nodes: &mut [FrozenNode],
        taken: &TakenOut,
        outcome: CommitOutcome,
    ) -> Result<CommitOutcome> {
        let told = {
            let _barrier = self.close_barrier();
            let _names = self.write_names();
            let dirty: Vec<Arc<Node>> = lock(&self.group).dirty.clone();
            let mut later = self.later_entries(generation, &dirty)?;
            let mut all = TakenOut {
                why: taken.why.clone(),
                entries: HashSet::new(),
            };
            close(&mut all, &later);
            for node in &dirty {
                let id = (node.store, node.ino);
                let (Some(why), false) = (all.why.get(&id), taken.holds(id)) else {
                    continue;
                };
                let (is_file, size, is_touched) = {
                    let state = node.lock();
                    let is_touched = state.is_fresh || state.mask.size;
                    let is_file = node.kind() == FileKind::File && !state.is_deleted;
                    (is_file, state.row.size_bytes, is_touched)
                };
                let path = self.refused_path(id, &later)?;
                self.note_taken(node, why, path, is_file && size > 0 && is_touched);
            }
            later.retain(|entry| all.entries.contains(&(entry.dir, entry.name.clone())));
            for entry in later.iter().filter(|entry| !all.holds(entry.dir)) {
                let change = self.links_of(entry)?;
                if let Some(dir) = self.cache.find(entry.dir.0, entry.dir.1) {
                    let mut state = dir.lock();
                    state.row.nlink = state.row.nlink.saturating_add_signed(-change);
                }
            }
            self.forget_in_group(&all);
            let names = taken.entries.iter().chain(&all.entries);
            let mut told: Vec<Id> = all.why.keys().copied().collect();
            for ((store, dir), name) in names {
                if let Some(dir) = self.cache.find(*store, *dir) {
                    dir.lock().entries.remove(name);
                    self.cache.forget_names(&dir);
                }
                told.push((*store, *dir));
            }
            for id in all.why.keys() {
                self.forget_node(*id)?;
            }
            self.rules.forget(all.why.keys());
            for frozen in nodes.iter_mut() {
                if taken.holds((frozen.node.store, frozen.node.ino)) {
                    // What was new never was; what was to go stays.
                    frozen.is_deleted = frozen.is_fresh;
                }
            }
            told
        };
        let told = ForeignChange::Inodes(told);
        self.tell_observers(&told);
        Ok(outcome)
    }

    /// The names that the open group changes.
    fn later_entries(&self, generation: u64, dirty: &[Arc<Node>]) -> Result<Vec<Entry>> {
        let mut entries = Vec::new();
        for dir in dirty.iter().filter(|dir| dir.kind() == FileKind::Directory) {
            let changed: Vec<(Name, Option<Ino>)> = {
                let state = dir.lock();
                let later = state.entries.iter();
                later
                    .filter(|(_, delta)| delta.generation > generation)
                    .map(|(name, delta)| (name.clone(), delta.target.map(|(ino, _)| ino)))
                    .collect()
            };
            for (name, new) in changed {
                entries.push(Entry {
                    dir: (dir.store, dir.ino),
                    old: self.catalog.dirent(dir.store, dir.ino, &name)?,
                    name,
                    new,
                });
            }
        }
        Ok(entries)
    }

    /// Takes inodes out of the open group. The freeze barrier is closed.
    fn forget_in_group(&self, out: &TakenOut) {
        let mut group = lock(&self.group);
        let group = &mut *group;
        let stays = |store: &StoreId, ino: &Ino| !out.holds((*store, *ino));
        group.dirty.retain(|node| stays(&node.store, &node.ino));
        let gone = take_held(&mut group.retired, &mut group.shared, |held| {
            !stays(&held.1, &held.2)
        });
        group
            .shared
            .retain(|share| stays(&share.held.1, &share.held.2));
        (group.map_shares).retain(|share| {
            stays(&share.store, &share.ino) && stays(&share.from_store, &share.from_ino)
        });
        (group.saves).retain(|save| stays(&save.store, &save.from) && stays(&save.store, &save.to));
        group.file_ids.retain(|(store, ino, _)| stays(store, ino));
        group.orphans_added.retain(|(store, ino)| stays(store, ino));
        group
            .holders_added
            .retain(|(store, ino, _)| stays(store, ino));
        group
            .orphans_removed
            .retain(|(store, ino)| stays(store, ino));
        let blocks: u64 = gone.iter().map(|(extent, ..)| extent.block_count).sum();
        group.retired_bytes = group.retired_bytes.saturating_sub(blocks * BLOCK_BYTES);
        let gone: Vec<Extent> = gone.into_iter().map(|(extent, ..)| extent).collect();
        (group.moved_away).retain(|place| !gone.iter().any(|one| one.overlaps(place)));
        // What was moved lies where it was; its copy goes with this group.
        let new: Vec<Held> = (group.allocated.iter())
            .filter(|(_, store, ino)| !stays(store, ino))
            .copied()
            .collect();
        let places: Vec<Extent> = new.iter().map(|(extent, ..)| *extent).collect();
        group.moves.forget(&places);
        self.turn_back(&gone, &places);
        group.retired.extend(new);
    }

    /// Makes a node in memory what the catalog says of it.
    fn forget_node(&self, (store, ino): Id) -> Result<()> {
        let Some(node) = self.cache.find(store, ino) else {
            return Ok(());
        };
        let row = self.catalog.inode(store, ino)?;
        let mut state = node.lock();
        state.reset();
        self.discard(&mut state, 0, u64::MAX);
        state.content.forget();
        self.cache.count_map(&node, &state);
        self.cache.forget_names(&node);
        match row {
            Some(row) => state.row = row,
            None => {
                state.row.nlink = 0;
                state.row.block_count = 0;
                state.is_deleted = true;
                drop(state);
                self.cache.remove(store, ino);
            }
        }
        Ok(())
    }

    /// What a sync of this file has to say of a refusal.
    pub(crate) fn report_refused(&self, node: &Node) -> Result<()> {
        let mut state = node.lock();
        match state.refusal.as_mut() {
            Some(refusal) if !refusal.by_sync => {
                refusal.by_sync = true;
                Err(told(refusal))
            }
            _ => Ok(()),
        }
    }

    /// The same of a close: an answer to it is the last thing that a program hears.
    pub fn report_refused_at_close(&self, node: &Node) -> Result<()> {
        let mut state = node.lock();
        match state.refusal.as_mut() {
            Some(refusal) if !refusal.by_close => {
                refusal.by_close = true;
                Err(told(refusal))
            }
            _ => Ok(()),
        }
    }

    /// Whether the user's rules may refuse changes of this file, those that come while it is open
    /// too: where the user has a schema of his own.
    pub fn may_refuse(&self, node: &Node) -> bool {
        self.has_users_schema.load(Ordering::SeqCst) || self.is_constrained(node.store)
    }

    /// What nobody was told who could have asked.
    pub(crate) fn report_unreported(&self) -> Result<()> {
        match self.refusals.unreported.swap(0, Ordering::Relaxed) {
            0 => Ok(()),
            count => Err(Error::new(
                ErrorKind::NotPermitted,
                format!(
                    "a constraint of the database refused {count} of the changes after they were \
                     answered, and all others are \
                     committed; 'larder refused list {}' names them",
                    self.path().display()
                ),
            )),
        }
    }
}

fn told(refusal: &Unreported) -> Error {
    Error::new(ErrorKind::Io, refusal.why.clone())
}

impl NodeState {
    /// Forgets all that the catalog does not have; content is left to the caller.
    fn reset(&mut self) {
        self.mask = AttrMask::default();
        (self.is_fresh, self.is_deleted) = (false, false);
        (self.in_group, self.is_stale) = (false, false);
        self.is_parting = false;
        (self.is_anonymous, self.is_linkable) = (false, false);
        self.entries.clear();
        self.parent = None;
        self.target = None;
        self.xattrs = None;
        self.xattrs_dirty.clear();
        self.content.inline_dirty = false;
        self.content.drops_pieces = false;
        self.content.applied = None;
    }
}

fn depend(out: &mut TakenOut, id: Id, why: &str) {
    out.why.entry(id).or_insert_with(|| why.to_owned());
}

/// Adds what depends on what is taken out, by names (`CONSTRAINT-2`).
fn close(out: &mut TakenOut, entries: &[Entry]) {
    loop {
        let mut has_more = false;
        for entry in entries {
            let id = |ino: Ino| (entry.dir.0, ino);
            let ends = [entry.old, entry.new];
            let cause = (std::iter::once(entry.dir).chain(ends.into_iter().flatten().map(id)))
                .find(|id| out.holds(*id));
            let Some(cause) = cause else { continue };
            let key = (entry.dir, entry.name.clone());
            if !out.entries.insert(key) {
                continue;
            }
            has_more = true;
            let why = out.why[&cause].clone();
            for ino in ends.into_iter().flatten() {
                depend(out, id(ino), &why);
            }
        }
        if !has_more {
            return;
        }
    }
}

/// Takes those of `retired` that `is_taken` says; what is shared keeps its place among the others.
fn take_held(
    retired: &mut Vec<Held>,
    shared: &mut [Sharing],
    is_taken: impl Fn(&Held) -> bool,
) -> Vec<Held> {
    let mut left_before: Vec<usize> = Vec::with_capacity(retired.len() + 1);
    let mut left = 0;
    for held in retired.iter() {
        left_before.push(left);
        left += usize::from(!is_taken(held));
    }
    left_before.push(left);
    for share in shared {
        share.retired_before = left_before[share.retired_before.min(retired.len())];
    }
    let (taken, stays) = retired.drain(..).partition(|held| is_taken(held));
    *retired = stays;
    taken
}

/// What of `extents` no extent of `minus` covers.
fn subtract(extents: &[Extent], minus: &[Extent]) -> Vec<Extent> {
    let mut left = extents.to_vec();
    for hole in minus {
        let cut = |extent: Extent| -> Vec<Extent> {
            if !extent.overlaps(hole) {
                return vec![extent];
            }
            let from = hole.start_block.max(extent.start_block) - extent.start_block;
            let to = hole.end_block().min(extent.end_block()) - extent.start_block;
            let parts = [(0, from), (to, extent.block_count - to)];
            (parts.into_iter())
                .filter(|(_, count)| *count > 0)
                .map(|(skip, count)| extent.slice(skip, count))
                .collect()
        };
        left = left.into_iter().flat_map(cut).collect();
    }
    left
}
