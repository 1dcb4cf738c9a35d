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
//!  find refusals (catalog) ──none, time after time──▶ the engine stops (COMMIT-4)
//!    ▼
//!  close over dependents ─▶ keep their content ─▶ filter the set ─▶ commit ─┬─▶ forget in memory
//!    ▲                                                                      │ ─▶ report ─▶ publish
//!    └─────────────────── refused again: SQL was faster ────────────────────┘
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

use crate::commit::dependents::{Blocks, Entry, Id, TakenOut, take_held};
use crate::commit::refused_content::RefusedFile;
use crate::engine::{Engine, lock};
use crate::view::ForeignChange;
use crate::view::node::{Node, NodeState, Unreported};
use crate::write::frozen::FrozenNode;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{
    AttrMask, CatalogError, ChangeSet, CommitOutcome, Held, InodeChange, Refusal,
};
use larder_space::Cover;
use larder_space::format::{Extent, FileKind, Ino, Name, StoreId};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::Ordering;

/// How often in one commit nothing is found that a rule refuses: SQL may change what it asks for
/// between the commit and the look.
const VAIN_LOOKS_MAX: u32 = 100;

/// Whether `error` is a rule's for certain.
fn is_of_a_rule(error: &CatalogError) -> bool {
    matches!(
        error,
        CatalogError::Constraint { .. } | CatalogError::Refused { .. }
    )
}

/// Whether `error` may be a rule's: only a look at the rows tells.
fn may_be_refusal(error: &CatalogError) -> bool {
    let may_be = matches!(
        error,
        CatalogError::Sqlite { .. } | CatalogError::Corrupt { .. }
    );
    may_be || is_of_a_rule(error)
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
        let mut vain_looks = 0;
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
                vain_looks += 1;
                let most = if is_of_a_rule(&error) {
                    VAIN_LOOKS_MAX
                } else {
                    1
                };
                if vain_looks > most {
                    return Err(error.into());
                }
                continue;
            }
            self.take_out(&found, nodes, set, moved_away, &mut taken)?;
        };
        match taken.is_empty() {
            true => Ok(outcome),
            false => self.forget_taken(generation, nodes, taken, outcome),
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
        let blocks = Blocks {
            allocated: &set.allocated,
            retired: &set.retired,
            shared: &set.shared,
        };
        let deleted = set
            .inodes
            .iter()
            .filter_map(|(store, change)| match change {
                InodeChange::Delete(ino) => Some((*store, *ino)),
                InodeChange::Insert(_) | InodeChange::Update(..) => None,
            });
        let going = deleted.chain(set.orphans_added.iter().copied()).collect();
        self.close_over(&mut out, &entries, &blocks, &going)?;
        for frozen in nodes {
            let id = (frozen.node.store, frozen.node.ino);
            let Some(why) = out.why.get(&id) else {
                continue;
            };
            let is_changed = frozen.is_fresh || frozen.is_deleted;
            if !is_changed && frozen.mask == AttrMask::default() {
                continue; // It was only moved, or written in place.
            }
            let is_written = frozen.is_fresh || frozen.mask.size;
            let kept = self.note_taken(&frozen.node, why, &entries, is_written);
            out.kept.insert(id, kept);
        }
        self.mend_links(&out, &entries, set)?;
        self.filter(&mut out, set, moved_away);
        taken.why.extend(out.why);
        taken.entries.extend(out.entries);
        taken.kept.extend(out.kept);
        taken.gone.extend(out.gone);
        taken.places.extend(out.places);
        Ok(())
    }

    /// The names that a set changes.
    fn entries_of(&self, set: &ChangeSet) -> Result<Vec<Entry>> {
        let entry = |(store, dir, name, new): &(StoreId, Ino, Name, Option<Ino>)| {
            Ok(Entry {
                dir: (*store, *dir),
                name: name.clone(),
                old: self.patiently(|| self.catalog.dirent(*store, *dir, name))?,
                new: *new,
            })
        };
        set.dirents.iter().map(entry).collect()
    }

    /// Directories that stay count the directories in them: of names that stay as they were.
    fn mend_links(&self, out: &TakenOut, entries: &[Entry], set: &mut ChangeSet) -> Result<()> {
        let mut changes: HashMap<Id, i32> = HashMap::new();
        for entry in entries {
            if out.entries.contains(&(entry.dir, entry.name.clone())) && !out.holds(entry.dir) {
                *changes.entry(entry.dir).or_default() += self.links_of(entry)?;
            }
        }
        for (store, row) in &mut set.inodes {
            if let InodeChange::Insert(row) | InodeChange::Update(row, _) = row
                && let Some(change) = changes.get(&(*store, row.ino))
            {
                row.nlink = row.nlink.saturating_add_signed(-change);
            }
        }
        Ok(())
    }

    /// A directory has the links that the catalog says, and those that the names give it which the
    /// open group changes. Whoever is in it gave and took some for names that are gone.
    fn count_links(&self, dir: Id, later: &[Entry]) -> Result<()> {
        let Some(node) = self.cache.find(dir.0, dir.1) else {
            return Ok(());
        };
        let row = self.patiently(|| self.catalog.inode(dir.0, dir.1))?;
        let mut nlink = row.map_or(2, |row| row.nlink);
        for entry in later.iter().filter(|entry| entry.dir == dir) {
            nlink = nlink.saturating_add_signed(self.links_of(entry)?);
        }
        let mut state = node.lock();
        if state.row.nlink > 0 && !state.is_deleted && !state.is_parting {
            state.row.nlink = nlink;
        }
        Ok(())
    }

    /// By how much a change of a name changes the links of its directory.
    fn links_of(&self, entry: &Entry) -> Result<i32> {
        let is_directory = |ino: Option<Ino>| -> Result<i32> {
            let Some(ino) = ino else { return Ok(0) };
            let kind = match self.cache.find(entry.dir.0, ino) {
                Some(node) => Some(node.kind()),
                None => {
                    (self.patiently(|| self.catalog.inode(entry.dir.0, ino))?).map(|row| row.kind)
                }
            };
            Ok(i32::from(kind == Some(FileKind::Directory)))
        };
        Ok(is_directory(entry.new)? - is_directory(entry.old)?)
    }

    /// Leaves out of a set what was taken out. What it has written is retired by the commit that
    /// would have named it: somebody may be reading there.
    fn filter(&self, taken: &mut TakenOut, set: &mut ChangeSet, moved_away: &mut Vec<Extent>) {
        let out = &*taken;
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
        // What was written in place has its rows still (`REDO-4`): the map does not tell of it.
        (set.redo_applied).retain(|(store, ino, ..)| stays(store, ino));
        set.xattrs.retain(|(store, ino, ..)| stays(store, ino));
        set.orphans_added.retain(|(store, ino)| stays(store, ino));
        set.holders_added
            .retain(|(store, ino, _)| stays(store, ino));
        set.orphans_removed.retain(|(store, ino)| stays(store, ino));
        let new: Vec<Held> = (set.allocated.iter())
            .filter(|(_, store, ino)| !stays(store, ino))
            .copied()
            .collect();
        let gone = take_held(&mut set.retired, &mut set.shared, |held| {
            !stays(&held.1, &held.2)
        });
        set.shared
            .retain(|share| stays(&share.held.1, &share.held.2));
        let copies = set.pre_images.iter().map(|(_, copy)| *copy);
        let uncounted = Cover::new(moved_away.iter().copied().chain(copies));
        set.retired_bytes = (set.retired_bytes).saturating_sub(bytes_beside(&uncounted, &gone));
        let places: Vec<Extent> = new.iter().map(|(extent, ..)| *extent).collect();
        let in_vain = Cover::new(places.iter().copied());
        set.moves.retain(|(_, to)| !in_vain.overlaps(to));
        let gone: Vec<Extent> = gone.into_iter().map(|(extent, ..)| extent).collect();
        let stayed = Cover::new(gone.iter().copied());
        moved_away.retain(|place| !stayed.overlaps(place));
        set.retired.extend(new);
        (taken.gone, taken.places) = (gone, places);
    }

    /// What was let go of lives on, and what was written in vain goes: in the books, once for the
    /// commit and the open group, between which blocks may have passed.
    fn turn_back(&self, taken: &TakenOut) {
        let gone = Cover::new(taken.gone.iter().copied());
        let places = Cover::new(taken.places.iter().copied());
        let mut free = self.free_space();
        for extent in gone.without(&places) {
            if !self.may_share() {
                free.space.revive(extent);
            }
        }
        for extent in places.without(&gone) {
            self.quarantine_unshared(&mut free, extent);
        }
    }

    /// Says that something of an inode is taken out, and keeps its content, if the commit or the
    /// open group has written some. Returns how often it had been touched before.
    fn note_taken(&self, node: &Arc<Node>, why: &str, entries: &[Entry], is_written: bool) -> u64 {
        let (store, ino) = (node.store, node.ino);
        let (touch_count, has_content) = {
            let state = node.lock();
            let is_written = is_written
                || state.is_fresh
                || state.mask.size
                || (state.in_group && !state.content.gather.is_empty());
            let is_file = node.kind() == FileKind::File && !state.is_deleted;
            let has_content = is_file && is_written && state.row.size_bytes > 0;
            (state.touch_count, has_content)
        };
        let path = self.refused_path((store, ino), entries);
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
        touch_count
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
    fn refused_path(&self, (store, ino): Id, entries: &[Entry]) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT && parts.len() < 1024 {
            let known = |entry: &&Entry| {
                entry.dir.0 == store && (entry.new == Some(at) || entry.old == Some(at))
            };
            let found = match entries.iter().find(known) {
                Some(entry) => Some((entry.dir.1, entry.name.clone())),
                None => match self.catalog.parents(store, at) {
                    Ok(parents) if !parents.is_empty() => parents.into_iter().next(),
                    // It is for a message.
                    Ok(_) | Err(_) => self.cache.find_parent(store, at),
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
        path
    }

    /// Makes memory what the catalog is, of all that was taken out and of what the open group did
    /// to it (`CONSTRAINT-3`).
    fn forget_taken(
        &self,
        generation: u64,
        nodes: &mut [FrozenNode],
        mut taken: TakenOut,
        outcome: CommitOutcome,
    ) -> Result<CommitOutcome> {
        let told = {
            let _barrier = self.close_barrier();
            let _names = self.write_names();
            let dirty: Vec<Arc<Node>> = lock(&self.group).dirty.clone();
            let mut later = self.later_entries(generation, &dirty)?;
            let mut all = TakenOut {
                why: taken.why.clone(),
                ..TakenOut::default()
            };
            let is_going = |node: &&Arc<Node>| {
                let state = node.lock();
                state.is_deleted || state.is_parting || state.row.nlink == 0
            };
            let going: HashSet<Id> = (dirty.iter().filter(is_going))
                .map(|node| (node.store, node.ino))
                .collect();
            for (dir, name) in taken.entries.iter().filter(|(dir, _)| going.contains(dir)) {
                if (self.patiently(|| self.catalog.dirent(dir.0, dir.1, name))?).is_some() {
                    all.depend(*dir, "a name in it was refused");
                }
            }
            {
                let group = lock(&self.group);
                let (allocated, retired) = (group.allocated.clone(), group.retired.clone());
                let shared = group.shared.clone();
                drop(group);
                let blocks = Blocks {
                    allocated: &allocated,
                    retired: &retired,
                    shared: &shared,
                };
                self.close_over(&mut all, &later, &blocks, &going)?;
            }
            for node in &dirty {
                let id = (node.store, node.ino);
                let Some(why) = all.why.get(&id) else {
                    continue;
                };
                // What was kept is not all of it if it was touched since.
                let touch_count = node.lock().touch_count;
                if taken.kept.get(&id) != Some(&touch_count) {
                    self.note_taken(node, why, &later, false);
                }
            }
            later.retain(|entry| !all.entries.contains(&(entry.dir, entry.name.clone())));
            let names = taken.entries.iter().chain(&all.entries);
            let dirs: HashSet<Id> = names.map(|(dir, _)| *dir).collect();
            for dir in dirs.into_iter().filter(|dir| !all.holds(*dir)) {
                self.count_links(dir, &later)?;
            }
            all.gone = std::mem::take(&mut taken.gone);
            all.places = std::mem::take(&mut taken.places);
            self.forget_in_group(&mut all);
            self.turn_back(&all);
            let mut told: Vec<Id> = all.why.keys().copied().collect();
            for ((store, dir), name) in taken.entries.iter().chain(&all.entries) {
                if let Some(node) = self.cache.find(*store, *dir) {
                    // What got the name in the open group, and depends on nothing, keeps it.
                    let is_later = all.entries.contains(&((*store, *dir), name.clone()));
                    let last = if is_later { u64::MAX } else { generation };
                    node.lock().entries.forget(name, last);
                    self.cache.forget_names(&node);
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
                    old: self.patiently(|| self.catalog.dirent(dir.store, dir.ino, &name))?,
                    name,
                    new,
                });
            }
        }
        Ok(entries)
    }

    /// Takes inodes out of the open group. The freeze barrier is closed.
    fn forget_in_group(&self, taken: &mut TakenOut) {
        let mut group = lock(&self.group);
        let (group, out) = (&mut *group, &*taken);
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
        let copies = group.pre_images.iter().map(|(_, copy)| *copy);
        let uncounted = Cover::new(group.moved_away.iter().copied().chain(copies));
        let lost = bytes_beside(&uncounted, &gone);
        group.retired_bytes = group.retired_bytes.saturating_sub(lost);
        let stayed = Cover::new(gone.iter().map(|(extent, ..)| *extent));
        group.moved_away.retain(|place| !stayed.overlaps(place));
        // What was moved lies where it was; its copy goes with this group.
        let new: Vec<Held> = (group.allocated.iter())
            .filter(|(_, store, ino)| !stays(store, ino))
            .copied()
            .collect();
        let places: Vec<Extent> = new.iter().map(|(extent, ..)| *extent).collect();
        group.moves.forget(&Cover::new(places.iter().copied()));
        group.retired.extend(new);
        taken
            .gone
            .extend(gone.into_iter().map(|(extent, ..)| extent));
        taken.places.extend(places);
    }

    /// Makes a node in memory what the catalog says of it.
    fn forget_node(&self, (store, ino): Id) -> Result<()> {
        let Some(node) = self.cache.find(store, ino) else {
            return Ok(());
        };
        let row = self.patiently(|| self.catalog.inode(store, ino))?;
        let mut state = node.lock();
        let was_anonymous = state.is_anonymous;
        state.reset();
        self.discard(&mut state, 0, u64::MAX);
        state.content.forget();
        self.cache.count_map(&node, &state);
        self.cache.forget_names(&node);
        match row {
            Some(row) => {
                // Who has it open may try again to give it a name.
                state.is_anonymous = was_anonymous && row.nlink == 0;
                state.is_linkable = state.is_anonymous;
                state.row = row;
            }
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

/// How many bytes of what is held are not in `uncounted`.
fn bytes_beside(uncounted: &Cover, held: &[Held]) -> u64 {
    let counted = held
        .iter()
        .filter(|(extent, ..)| !uncounted.overlaps(extent));
    counted.map(|(extent, ..)| extent.len_bytes()).sum()
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
        self.content.refused_count += 1;
    }
}
