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
//!   depends on that: operations on names that led or lead to them or are in a refused directory,
//!   what took a name that comes back, what replaced or was replaced by them, what was saved as
//!   them, what shares their new content, and what later operations did to any of these. A
//!   directory whose removal is refused stays; what else was removed in it is. Everything else is
//!   committed. *Guard*: the operations of the commit, and those of the open group, are replayed
//!   without it (`names`); a closure over blocks (`dependents`).
//! * `CONSTRAINT-3` After the commit memory and catalog agree: what was taken out is, in memory, as
//!   the catalog has it. *Guard*: it is forgotten under the closed freeze barrier and the namespace
//!   lock, before the commit is published.
//! * `CONSTRAINT-4` Nothing is lost in silence: content that was taken out is on the host's disk
//!   before the commit (`refused_content`), or the log and the error say why it could not be kept;
//!   the log names rule, table and path, and the file's next sync and close answer an error.

use crate::commit::NameChange;
use crate::commit::Told;
use crate::commit::dependents::{Blocks, close_over, take_held};
use crate::commit::names::Names;
use crate::commit::refused_content::RefusedFile;
use crate::commit::taken_out::{Id, TakenOut};
use crate::engine::EngineRefusals;
use crate::view::node::{Node, NodeState, Unreported};
use crate::write::frozen::FrozenNode;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{
    AttrMask, CatalogError, ChangeSet, CommitOutcome, Held, InodeChange, InodeRow, Refusal, Save,
};
use larder_space::Cover;
use larder_space::format::{Extent, FileKind, Ino, Name, StoreId};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// How often in one commit nothing is found that a rule refuses: SQL may change what it asks for
/// between the commit and the look.
const VAIN_LOOKS_MAX: u32 = 100;

/// Whether `error` may be a rule's: only a look at the rows tells.
fn may_be_refusal(error: &CatalogError) -> bool {
    let may_be = matches!(
        error,
        CatalogError::Storage { .. } | CatalogError::Corrupt { .. }
    );
    may_be || error.is_of_a_rule()
}

impl EngineRefusals<'_> {
    /// Commits `set` without what the user's rules refuse (`CONSTRAINT-2`), and forgets that.
    pub(crate) fn commit_accepted(
        &self,
        nodes: &mut [FrozenNode],
        set: &mut ChangeSet,
        changes: Vec<NameChange>,
        moved_away: &mut Vec<Extent>,
    ) -> Result<CommitOutcome> {
        let mut taken = TakenOut::default();
        let (mut names, mut changes) = (None, Some(changes));
        let mut vain_looks = [0, 0];
        let outcome = loop {
            let error = match self.commits().patiently(|| self.catalog.commit(set)) {
                Ok(outcome) => break outcome,
                Err(error) => error,
            };
            // A transaction is refused as a whole.
            if self.private.is_some() || self.catalog.is_clients() || !may_be_refusal(&error) {
                return Err(error.into());
            }
            let found = self
                .commits()
                .patiently(|| self.catalog.rules()?.find_refusals(set))?;
            if found.is_empty() {
                // By now the rules accept it, or it is no rule's doing.
                let is_of_a_rule = error.is_of_a_rule();
                let looks = &mut vain_looks[usize::from(is_of_a_rule)];
                *looks += 1;
                if *looks > if is_of_a_rule { VAIN_LOOKS_MAX } else { 1 } {
                    return Err(error.into());
                }
                continue;
            }
            let names = match &mut names {
                Some(names) => names,
                none => none.insert(Names::of(self, changes.take().unwrap_or_default())?),
            };
            self.take_out(&found, nodes, set, names, moved_away, &mut taken)?;
        };
        match names {
            None => Ok(outcome),
            Some(names) => self.forget_taken(nodes, taken, names, outcome),
        }
    }

    /// Takes refused rows and what depends on them out of a change set, and keeps their content.
    fn take_out(
        &self,
        found: &[Refusal],
        nodes: &[FrozenNode],
        set: &mut ChangeSet,
        names: &mut Names,
        moved_away: &mut Vec<Extent>,
        taken: &mut TakenOut,
    ) -> Result<()> {
        let mut out = TakenOut {
            why: taken.why.clone(),
            stays: taken.stays.clone(),
            ..TakenOut::default()
        };
        for refusal in found {
            let why = format!("{}: {}", refusal.table, refusal.constraint);
            out.depend((refusal.store, refusal.ino), &why);
        }
        let blocks = Blocks {
            allocated: &set.allocated,
            retired: &set.retired,
            shared: &set.shared,
            saves: &set.saves,
        };
        close_over(self, &mut out, names, &blocks)?;
        for frozen in nodes {
            let id = (frozen.node.store, frozen.node.ino);
            let Some(why) = out.why.get(&id).filter(|_| !taken.holds(id)) else {
                continue;
            };
            if !is_change(frozen.is_fresh, frozen.is_deleted, frozen.mask) {
                continue; // It was only moved, or written in place.
            }
            let is_written = frozen.is_fresh || frozen.mask.size;
            let kept = self.note_taken(&frozen.node, why, names, is_written);
            out.kept.insert(id, kept);
        }
        self.mend_names(names, set)?;
        self.keep_directories(&out, names, nodes, set)?;
        self.filter(&mut out, taken, set, moved_away);
        (taken.why, taken.stays) = (out.why, out.stays);
        taken.kept.extend(out.kept);
        taken.saves.extend(out.saves);
        taken.gone.extend(out.gone);
        taken.places.extend(out.places);
        Ok(())
    }

    /// Names lead to what they lead to without what was taken out, and directories count the
    /// directories in them.
    fn mend_names(&self, names: &mut Names, set: &mut ChangeSet) -> Result<()> {
        let is_known =
            |(store, dir, name, _): &(StoreId, Ino, Name, _)| names.knows((*store, *dir), name);
        debug_assert!(set.dirents.iter().all(is_known), "NAMES-1");
        set.dirents = names.changes();
        for (store, change) in &mut set.inodes {
            if let InodeChange::Insert(row) | InodeChange::Update(row, _) = change
                && row.nlink > 0
                && names.has_changes_in((*store, row.ino))
            {
                row.nlink = self.links(names, (*store, row.ino))?;
            }
        }
        Ok(())
    }

    /// The links that a directory has by the names that are left.
    pub(super) fn links(&self, names: &mut Names, dir: Id) -> Result<u32> {
        let row = self
            .commits()
            .patiently(|| self.catalog.tables().inode(dir.0, dir.1))?;
        let links = row.map_or(2, |row| row.nlink);
        Ok(links.saturating_add_signed(names.links_of(self, dir)?))
    }

    /// Directories that stay are updated, not removed: with the links that they have left.
    fn keep_directories(
        &self,
        out: &TakenOut,
        names: &mut Names,
        nodes: &[FrozenNode],
        set: &mut ChangeSet,
    ) -> Result<()> {
        if out.stays.is_empty() {
            return Ok(());
        }
        set.inodes.retain(|(store, change)| match change {
            InodeChange::Insert(row) | InodeChange::Update(row, _) => {
                !out.stays.contains(&(*store, row.ino))
            }
            InodeChange::Delete(ino) => !out.stays.contains(&(*store, *ino)),
        });
        (set.orphans_added).retain(|id| !out.stays.contains(id));
        (set.holders_added).retain(|(store, ino, _)| !out.stays.contains(&(*store, *ino)));
        let mut updates = Vec::new();
        for frozen in nodes {
            let (store, ino) = (frozen.node.store, frozen.node.ino);
            if !out.stays.contains(&(store, ino)) || out.holds((store, ino)) {
                continue;
            }
            debug_assert!(!frozen.is_fresh, "NAMES-2");
            let kept = InodeRow {
                nlink: self.links(names, (store, ino))?,
                ..frozen.row.clone()
            };
            let mask = AttrMask {
                nlink: true,
                mtime: true,
                ctime: true,
                ..frozen.mask
            };
            updates.push((store, InodeChange::Update(kept, mask)));
            if !frozen.is_deleted {
                continue;
            }
            // Of one that was to go none were collected.
            let mut state = frozen.node.lock();
            for name in std::mem::take(&mut state.xattrs_dirty) {
                let values = state.xattrs.as_ref();
                let value = values.and_then(|values| values.get(&name)).cloned();
                set.xattrs.push((store, ino, name, value));
            }
        }
        set.inodes.splice(0..0, updates);
        Ok(())
    }

    /// Leaves out of a set what was taken out. What it has written is retired by the commit that
    /// would have named it: somebody may be reading there.
    /// `earlier`: what is left out already, with what it has written among what is retired.
    fn filter(
        &self,
        taken: &mut TakenOut,
        earlier: &TakenOut,
        set: &mut ChangeSet,
        moved_away: &mut Vec<Extent>,
    ) {
        let out = &*taken;
        let stays = |store: &StoreId, ino: &Ino| {
            let id = (*store, *ino);
            !out.holds(id) || earlier.holds(id)
        };
        set.inodes.retain(|(store, change)| match change {
            InodeChange::Insert(row) | InodeChange::Update(row, _) => stays(store, &row.ino),
            InodeChange::Delete(ino) => stays(store, ino),
        });
        let is_saved = |save: &Save| stays(&save.store, &save.from) && stays(&save.store, &save.to);
        let saves = set.saves.iter().filter(|save| !is_saved(save)).copied();
        let saves: Vec<Save> = saves.collect();
        set.saves.retain(is_saved);
        set.file_ids.retain(|(store, ino, _)| stays(store, ino));
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
        (taken.gone, taken.places, taken.saves) = (gone, places, saves);
    }

    /// Says that something of an inode is taken out, and keeps its content, if the commit or the
    /// open group has written some. Returns how often it had been touched before.
    pub(super) fn note_taken(
        &self,
        node: &Arc<Node>,
        why: &str,
        names: &Names,
        is_written: bool,
    ) -> u64 {
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
        let path = self.refused_path((store, ino), names);
        let number = self.refusals.count.fetch_add(1, Ordering::Relaxed) + 1;
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
        // What only a keeper holds open, nobody closes.
        if state.open_count > u32::from(state.is_kept) {
            let older = state.refusal.replace(Unreported {
                why: format!("a constraint of the database refused {shown}: {why}; {kept}"),
                number,
                is_told: false,
            });
            if older.is_some_and(|older| !older.is_told) {
                self.refusals.unreported.fetch_add(1, Ordering::Relaxed);
            }
        } else {
            self.refusals.unreported.fetch_add(1, Ordering::Relaxed);
        }
        touch_count
    }

    /// The name of a store, for messages.
    fn store_name(&self, store: StoreId) -> String {
        let rows = self.catalog.stores().rows().inspect_err(|error| {
            tracing::debug!("the name of store {store}: {error}");
        });
        let mut rows = rows.into_iter().flatten();
        let named = rows.find(|row| row.store == store);
        named.map_or_else(|| format!("store {store}"), |row| row.name)
    }

    /// The path of an inode in its store, as far as the group and the catalog know names.
    fn refused_path(&self, (store, ino): Id, names: &Names) -> Vec<u8> {
        let mut parts: Vec<Vec<u8>> = Vec::new();
        let mut at = ino;
        while at != Ino::ROOT && parts.len() < 1024 {
            let found = match names.last_of((store, at)) {
                Some((dir, name)) => Some((dir.1, name.clone())),
                None => match self.catalog.tables().parents(store, at) {
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

    /// What a handle that is opened now has to say of refusals of its file.
    pub fn told_at_open(&self, node: &Node) -> Told {
        let before = match &node.lock().refusal {
            Some(refusal) if refusal.is_told => refusal.number,
            _ => 0,
        };
        Told {
            over: AtomicU64::new(before),
            by_sync: AtomicU64::new(before),
        }
    }

    /// What a sync by a handle has to say of a refusal: once.
    pub(crate) fn report_refused(&self, node: &Node, told: &Told) -> Result<()> {
        let mut state = node.lock();
        let Some(refusal) = state.refusal.as_mut() else {
            return Ok(());
        };
        if told.by_sync.fetch_max(refusal.number, Ordering::Relaxed) >= refusal.number {
            told.over.fetch_max(refusal.number, Ordering::Relaxed);
            return Ok(());
        }
        refusal.is_told = true;
        Err(Error::new(ErrorKind::Io, refusal.why.clone()))
    }

    /// The same of a close: the answer to it is the last thing that a program hears. Each one of
    /// several descriptors says it, and it counts for none: nobody knows whose answer is looked at.
    pub fn report_refused_at_close(&self, node: &Node, told: &Told) -> Result<()> {
        match &node.lock().refusal {
            Some(refusal) if refusal.number > told.over.load(Ordering::Relaxed) => {
                Err(Error::new(ErrorKind::Io, refusal.why.clone()))
            }
            _ => Ok(()),
        }
    }

    /// A handle has ended. Where it was the last one, and nobody was told what was refused, the end
    /// of the session tells it.
    pub(crate) fn end_report(&self, state: &mut NodeState) {
        if state.open_count > u32::from(state.is_kept) {
            return;
        }
        let refusal = state.refusal.take();
        if refusal.is_some_and(|refusal| !refusal.is_told) {
            self.refusals.unreported.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// Whether the user's rules may refuse changes of this file, those that come while it is open
    /// too: where the user has a schema of his own.
    pub fn may_refuse(&self, node: &Node) -> bool {
        self.has_users_schema.load(Ordering::SeqCst) || self.rules().is_constrained(node.store)
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

/// Whether it is a change of an inode's own: what only was moved, or came and went, has none.
pub(super) fn is_change(is_fresh: bool, is_deleted: bool, mask: AttrMask) -> bool {
    match (is_fresh, is_deleted) {
        (true, true) => false,
        (false, false) => mask != AttrMask::default(),
        _ => true,
    }
}

/// How many bytes of what is held are not in `uncounted`.
pub(super) fn bytes_beside(uncounted: &Cover, held: &[Held]) -> u64 {
    let counted = held
        .iter()
        .filter(|(extent, ..)| !uncounted.overlaps(extent));
    counted.map(|(extent, ..)| extent.len_bytes()).sum()
}
