//! Long transactions: beginning and ending them, and the engine on a workspace. Words and
//! invariants: see `workspace`.

use crate::engine::open::open_or_copy;
use crate::engine::{Edit, Engine, EngineWorkspace, lock};
use crate::error::io_error;
use crate::session::open_directory;
use crate::session::options::EngineOptions;
use crate::session::workspace::{
    DIRECTORY, SEGMENT_BLOCKS, Sealing, canonical, directory_of, find_length, is_abandoned,
    make_directory, name_of, remove_directory, seal, seal_if_idle, try_seal,
};
use crate::space::FreeSpace;
use crate::space::reservation::corrupt;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{Conflict, GRANTS, InoRange, Merged, SegmentRow, TransactionRow};
use larder_segment::directory::DatabaseDir;
use larder_space::format::limits::{AG_BLOCKS, BLOCK_BYTES};
use larder_space::format::{CommitSeq, Extent, Ino, SegmentIndex, StoreId};
use larder_space::{AgSummary, Purpose, Reservation, Space};
use std::cmp::Reverse;
use std::fs::File;
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;

/// Blocks are granted by a quarter of what is granted, at least 64 MiB and at most 1 GiB at a time.
const GRANT_BLOCKS_MIN: u64 = (64 << 20) / BLOCK_BYTES;
const GRANT_BLOCKS_MAX: u64 = (1 << 30) / BLOCK_BYTES;
/// A long transaction, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TransactionInfo {
    /// Its number.
    pub id: u64,
    /// Its workspace.
    pub directory: PathBuf,
    /// The process that began it.
    pub pid: u32,
    /// What it is.
    pub label: String,
    /// When it began, nanoseconds since 1970.
    pub begun_ns: i64,
    /// It ends with its process.
    pub is_bound: bool,
    /// Somebody has the workspace open.
    pub is_open: bool,
    /// Bytes of the database that are kept for it.
    pub granted_bytes: u64,
}

/// How a commit of a long transaction ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TransactionOutcome {
    /// Everything is in the parent, durably.
    Committed,
    /// Nothing was changed, the transaction is still open; this is in the way.
    Conflicts(Vec<Conflict>),
}

/// A long transaction that this process has begun. Dropping it ends a bound one, as the end of the
/// process does: whoever opens the parent next clears it away.
#[derive(Debug)]
pub struct TransactionOwner {
    parent: PathBuf,
    id: u64,
    _owner: File,
}

impl TransactionOwner {
    /// Its number.
    pub fn id(&self) -> u64 {
        self.id
    }

    /// Its workspace, a database to open.
    pub fn directory(&self) -> PathBuf {
        directory_of(&self.parent, self.id)
    }

    /// The database that it changes.
    pub fn parent(&self) -> &Path {
        &self.parent
    }
}

// ---- the life of a transaction
// -------------------------------------------------------------------

/// Begins a long transaction on the database in `parent`. With `is_bound` it ends with the process
/// that has the owner. Cost: two short visits, and a copy of the catalog beside which the parent
/// goes on.
pub fn begin_transaction(parent: &Path, label: &str, is_bound: bool) -> Result<TransactionOwner> {
    let parent = open_directory(&canonical(parent)?)?;
    visit(&parent, false, |engine| {
        engine
            .workspace()
            .require_parent("a long transaction cannot begin in another one; commit that first")?;
        let (row, ranges, (workspace, owner)) = {
            let _alone = engine.alone()?;
            engine.commits().commit_now()?;
            let (row, ranges) = engine.catalog.workspace()?.begin_transaction(
                std::process::id(),
                label,
                is_bound,
                engine.now_ns(),
            )?;
            // Whoever looks for the dead needs the writer lock: by then the owner is alive
            // (WORKSPACE-7).
            let last = engine.segment_blocks().pop_last();
            let owner = make_directory(&parent, row.id, last.unwrap_or((SegmentIndex(0), 0)))?;
            engine.workspace().adopt_commit(row.pin_seq)?;
            (row, ranges, owner)
        };
        engine.commits().unlock_writer();
        let owner = TransactionOwner {
            parent: parent.path().to_owned(),
            id: row.id,
            _owner: owner,
        };
        let copied = engine
            .catalog
            .workspace()?
            .copy_to_workspace(&workspace, &row, &ranges);
        if let Err(error) = copied {
            let seal = seal(&parent, row.id)?;
            engine.workspace().end_transaction(row.id)?;
            remove_directory(&parent, row.id, seal)?;
            return Err(error.into());
        }
        Ok(owner)
    })
}

/// Takes everything that was committed in the workspace over into the database, as one commit; or
/// nothing, when something was changed on both sides. [`ErrorKind::Busy`] while somebody has the
/// workspace open. Cost: what was touched.
pub fn commit_transaction(parent: &Path, id: u64) -> Result<TransactionOutcome> {
    let parent = open_directory(&canonical(parent)?)?;
    let seal = seal(&parent, id)?;
    let outcome = visit(&parent, false, |engine| {
        let _alone = engine.alone()?;
        engine.commits().commit_now()?;
        engine.workspace().require_transaction(id)?;
        let workspace = parent.open_dir(name_of(id)).map_err(|error| {
            let path = parent.join(name_of(id));
            io_error(format!("cannot open {}", path.display()), error)
        })?;
        let merged =
            (engine.catalog.workspace()?).merge_workspace(&workspace, id, engine.now_ns())?;
        // Another connection did that: it is as foreign as if another process had.
        engine.sessions().notice_foreign()?;
        engine.space().sync_space()?;
        Ok(match merged {
            Merged::Done(_) => TransactionOutcome::Committed,
            Merged::Conflicts(conflicts) => TransactionOutcome::Conflicts(conflicts),
        })
    })?;
    if outcome == TransactionOutcome::Committed {
        // It is durable; what is left here is swept by the next opener.
        if let Err(error) = remove_directory(&parent, id, seal) {
            tracing::warn!("{error}");
        }
    }
    Ok(outcome)
}

/// Ends a long transaction without a trace. What the segments have grown by for it goes back to the
/// host, as far as nobody else has used it. [`ErrorKind::Busy`] while somebody has the workspace
/// open.
pub fn abort_transaction(parent: &Path, id: u64) -> Result<()> {
    let parent = open_directory(&canonical(parent)?)?;
    let seal = seal(&parent, id)?;
    visit(&parent, false, |engine| {
        engine.workspace().end_transaction(id)?;
        let length = find_length(&parent, id);
        let cut = length.map_or(Ok(()), |(segment, blocks)| {
            engine.segments().give_back_end(segment, blocks)
        });
        // It has ended: what does not go back is free in the database.
        if let Err(error) = cut {
            tracing::warn!("segments stay as long as the transaction has made them: {error}");
        }
        Ok(())
    })?;
    remove_directory(&parent, id, seal)
}

/// The long transactions that are open on a database, oldest first.
pub fn list_transactions(parent: &Path) -> Result<Vec<TransactionInfo>> {
    let parent = open_directory(&canonical(parent)?)?;
    visit(&parent, true, |engine| {
        let open = engine.catalog.workspace()?.transactions()?.into_iter();
        let infos = open.filter(|row| !is_abandoned(&parent, row)).map(|row| {
            Ok(TransactionInfo {
                id: row.id,
                directory: directory_of(parent.path(), row.id),
                pid: row.pid,
                label: row.label,
                begun_ns: row.begun_ns,
                is_bound: row.is_bound,
                is_open: matches!(try_seal(&parent, row.id)?, Sealing::Open),
                granted_bytes: (engine.catalog.workspace()?.granted_blocks(Some(row.id))?)
                    .saturating_mul(BLOCK_BYTES),
            })
        });
        infos.collect()
    })
}

/// Opens the parent for a moment.
fn visit<T>(
    parent: &DatabaseDir,
    is_reader: bool,
    work: impl FnOnce(&Engine) -> Result<T>,
) -> Result<T> {
    let options = EngineOptions {
        has_background: false,
        is_reader,
        ..EngineOptions::default()
    };
    let engine = open_or_copy(parent, "long transaction", &options)?;
    let outcome = work(&engine);
    let closed = engine.close();
    let value = outcome?;
    closed?;
    Ok(value)
}

// ---- the engine on a workspace
// -------------------------------------------------------------------

impl EngineWorkspace<'_> {
    /// The catalog and the place agree on what this is.
    pub(crate) fn check_workspace(&self) -> Result<()> {
        if self.catalog.workspace()?.id() == self.transaction() {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::Corrupt,
            format!(
                "{} is a copy of a long transaction, or of a part of it; open the database itself",
                self.session.path.display()
            ),
        ))
    }

    /// Refuses what only the parent can do (`WORKSPACE-8`).
    pub(crate) fn require_parent(&self, why: &str) -> Result<()> {
        match self.session.workspace {
            None => Ok(()),
            Some(_) => Err(Error::new(ErrorKind::InvalidInput, why)),
        }
    }

    /// Quarantines what this engine may reclaim one day.
    pub(crate) fn quarantine(&self, free: &mut FreeSpace, extent: Extent) {
        match self.session.workspace {
            None => free.space.quarantine(extent),
            Some(_) => {
                for (part, is_granted) in self.catalog.grants().parts(extent) {
                    if is_granted {
                        free.space.quarantine(part); // WORKSPACE-8
                    }
                }
            }
        }
    }

    /// For whom a reservation is: the parent has held back what it holds back.
    pub(crate) fn purpose(&self, purpose: Purpose) -> Purpose {
        match self.session.workspace {
            None => purpose,
            Some(_) => Purpose::Privileged,
        }
    }

    // ---- the free set: grants less extent rows ------------------------------------------------

    /// Segments of which nothing is free.
    pub(crate) fn add_full_segments(&self, space: &mut Space, known: u32) -> Result<()> {
        let segments = self.catalog.space().segments()?;
        for row in segments.iter().filter(|row| row.segment.0 >= known) {
            space.grow_segment(row.segment, SEGMENT_BLOCKS);
            for ag in 0..SEGMENT_BLOCKS / AG_BLOCKS {
                let full = AgSummary {
                    used_blocks: AG_BLOCKS,
                    quarantined_blocks: 0,
                };
                space.summarize_ag(row.segment, ag, full).map_err(corrupt)?;
            }
        }
        Ok(())
    }

    /// What is free of each AG that has grants.
    pub(crate) fn summarize_grants(&self, space: &mut Space) -> Result<()> {
        self.catalog.workspace()?.reload_grants()?;
        let grants = self.catalog.grants();
        let mut ags: Vec<(SegmentIndex, u64)> = (grants.extents().iter())
            .map(|extent| (extent.segment, extent.ag_index()))
            .collect();
        ags.dedup();
        for (segment, ag) in ags {
            let rows = self.catalog.space().extents_in_ag(segment, ag)?;
            let inside = |is_retired: bool| -> u64 {
                (rows
                    .iter()
                    .filter(|row| !is_retired || row.retired_seq.is_some()))
                .flat_map(|row| grants.parts(row.extent))
                .filter(|(_, is_granted)| *is_granted)
                .map(|(part, _)| part.block_count)
                .sum()
            };
            let granted: u64 = (grants.extents().iter())
                .filter(|extent| (extent.segment, extent.ag_index()) == (segment, ag))
                .map(|extent| extent.block_count)
                .sum();
            let summary = AgSummary {
                used_blocks: AG_BLOCKS - granted + inside(false),
                quarantined_blocks: inside(true),
            };
            space.summarize_ag(segment, ag, summary).map_err(corrupt)?;
        }
        Ok(())
    }

    /// What of an AG is not free: `held` by extent rows, or not granted.
    pub(crate) fn in_use(&self, segment: SegmentIndex, ag: u64, held: Vec<Extent>) -> Vec<Extent> {
        if self.session.workspace.is_none() {
            return held;
        }
        let grants = self.catalog.grants();
        let whole = Extent::new(segment, ag * AG_BLOCKS, AG_BLOCKS);
        let outside = grants
            .parts(whole)
            .into_iter()
            .filter(|(_, is_granted)| !is_granted);
        let inside = held.into_iter().flat_map(|extent| grants.parts(extent));
        inside
            .filter(|(_, is_granted)| *is_granted)
            .chain(outside)
            .map(|(part, _)| part)
            .collect()
    }

    /// Gets more blocks from the parent; `false` when it has none.
    pub(crate) fn ask_for_blocks(&self, wanted_blocks: u64) -> Result<bool> {
        let Some(workspace) = &self.session.workspace else {
            return Ok(false);
        };
        let granted: u64 = (self.catalog.grants().extents().iter())
            .map(|extent| extent.block_count)
            .sum();
        let step = (granted / 4)
            .clamp(GRANT_BLOCKS_MIN, GRANT_BLOCKS_MAX)
            .max(wanted_blocks + wanted_blocks / 16);
        let Some((extents, segments)) =
            grant(workspace.parent(), workspace.id, step, wanted_blocks)?
        else {
            return Ok(false);
        };
        // Under this lock nobody reads where an AG is free: the rows and the free set change
        // together.
        let mut free = self.free_space();
        let known = self.catalog.space().segments()?.len() as u32;
        self.catalog.workspace()?.add_grants(&extents, &segments)?;
        self.add_full_segments(&mut free.space, known)?;
        for extent in extents {
            free.space.quarantine(extent);
            free.space.release(extent);
        }
        drop(free);
        self.segments().open_segments()?;
        Ok(true)
    }

    /// The next inode numbers, when those that the workspace has are used up (`WORKSPACE-5`).
    pub(crate) fn next_ino(&self, store: StoreId, next: u64) -> Result<u64> {
        let Some(workspace) = &self.session.workspace else {
            return Ok(next);
        };
        let known = lock(&workspace.ino_ends).get(&store).copied();
        let end = match known {
            Some(end) => end,
            None => self.catalog.workspace()?.ino_end(store)?,
        };
        lock(&workspace.ino_ends).insert(store, end);
        if next < end {
            return Ok(next);
        }
        lock(&workspace.ino_ends).clear();
        let ranges: Vec<InoRange> = visit(workspace.parent(), false, |engine| {
            let _alone = engine.alone()?;
            engine.commits().commit_now()?;
            engine.workspace().require_transaction(workspace.id)?;
            let ranges = engine.catalog.workspace()?.give_inos(engine.now_ns())?;
            engine
                .workspace()
                .adopt_commit(engine.catalog.tables().commit_seq()?)?;
            Ok(ranges)
        })?;
        self.catalog.workspace()?.set_ino_ranges(&ranges)?;
        Ok(self.catalog.stores().next_ino(store)?.0)
    }

    /// A transaction that may have got inode numbers was taken back, and they are nobody's
    /// (`WORKSPACE-5`).
    pub(crate) fn forget_ino_ends(&self) {
        if let Some(workspace) = &self.session.workspace {
            lock(&workspace.ino_ends).clear();
        }
    }

    // ---- the engine of the parent -------------------------------------------------------------

    /// The catalog made a commit of its own, under this engine's writer lock and beside no group.
    fn adopt_commit(&self, seq: CommitSeq) -> Result<()> {
        self.known_seq.store(seq.0, Ordering::SeqCst);
        lock(&self.next_inos).clear();
        lock(&self.group).has_others = true;
        self.space().reload_space()
    }

    fn require_transaction(&self, id: u64) -> Result<TransactionRow> {
        let found = self
            .catalog
            .workspace()?
            .transactions()?
            .into_iter()
            .find(|row| row.id == id);
        found.ok_or_else(|| {
            Error::new(
                ErrorKind::NotFound,
                format!("there is no open transaction {id}; 'larder txn list' lists them"),
            )
        })
    }

    fn end_transaction(&self, id: u64) -> Result<()> {
        let _alone = self.alone()?;
        self.commits().commit_now()?;
        self.require_transaction(id)?;
        let seq = self
            .catalog
            .workspace()?
            .end_transaction(id, self.now_ns())?;
        self.adopt_commit(seq)
    }

    /// Ends the transactions whose owner is gone, and removes what ended ones have left
    /// (`WORKSPACE-7`). Never waits for the writer lock: there is always a next opener.
    pub(crate) fn sweep_transactions(&self) -> Result<()> {
        let names = match self
            .session
            .directory
            .open_dir(DIRECTORY)
            .and_then(|all| all.names())
        {
            Ok(names) => names,
            // There never was one.
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                tracing::warn!("ended transactions are not looked for: {error}");
                return Ok(());
            }
        };
        let numbers = names.iter().filter_map(|name| name.to_str()?.parse().ok());
        let ids: Vec<u64> = numbers.collect();
        let open = self.catalog.workspace()?.transactions()?;
        let is_over = |id: u64| match open.iter().find(|row| row.id == id) {
            Some(row) => is_abandoned(&self.session.directory, row),
            None => true,
        };
        if !ids.iter().any(|id| is_over(*id)) && open.iter().all(|row| ids.contains(&row.id)) {
            return Ok(());
        }
        if !self
            .writer_lock
            .try_begin(|| self.sessions().refresh_locked())?
        {
            return Ok(());
        }
        let swept = {
            let _edit = Edit { engine: self };
            self.sweep_locked(&ids)
        };
        // While the writer lock is in hand: nobody is waited for.
        let cut = match &swept {
            Ok(Some((segment, blocks))) => self.segments().give_back_end(*segment, *blocks),
            _ => Ok(()),
        };
        if let Err(error) = cut {
            tracing::warn!("segments stay as long as killed transactions have made them: {error}");
        }
        self.commits().unlock_writer();
        swept.map(drop)
    }

    /// How long the last segment was before those that are gone now, as far as that is known.
    fn sweep_locked(&self, ids: &[u64]) -> Result<Option<(SegmentIndex, u64)>> {
        let mut lengths = Vec::new();
        self.commits().commit_now()?;
        let open = self.catalog.workspace()?.transactions()?;
        for row in &open {
            if !is_abandoned(&self.session.directory, row) {
                continue;
            }
            let Sealing::Sealed(seal) = seal_if_idle(&self.session.directory, row.id)? else {
                continue; // A program that it started lives on.
            };
            let seq = self
                .catalog
                .workspace()?
                .end_transaction(row.id, self.now_ns())?;
            self.adopt_commit(seq)?;
            lengths.extend(find_length(&self.session.directory, row.id));
            remove_directory(&self.session.directory, row.id, seal)?;
        }
        for id in ids
            .iter()
            .filter(|id| !open.iter().any(|row| row.id == **id))
        {
            if let Sealing::Sealed(seal) = seal_if_idle(&self.session.directory, *id)? {
                remove_directory(&self.session.directory, *id, seal)?;
            }
        }
        let longest = |length: &(SegmentIndex, u64)| (length.0, Reverse(length.1));
        Ok(lengths.into_iter().max_by_key(longest))
    }
}

/// Gets blocks from the parent: `step`, or at least `least`; `None` when it is full. Also how long
/// its segments are.
fn grant(
    parent: &DatabaseDir,
    id: u64,
    step: u64,
    least: u64,
) -> Result<Option<(Vec<Extent>, Vec<SegmentRow>)>> {
    visit(parent, false, |engine| {
        let gained = engine.segments().grow_for_grant(step)?; // RESERVE-3
        let _alone = engine.alone()?;
        engine.commits().commit_now()?;
        engine.workspace().require_transaction(id)?;
        let found = match gained {
            // All of it, or a hole that is left would be the smallest that fits what others write.
            Some(gained) if gained.blocks() >= least => {
                reserve_granted(engine, gained.blocks(), Purpose::Privileged)?
            }
            _ => None,
        };
        let found = match found {
            None => reserve_granted(engine, step, Purpose::Ordinary)?,
            found => found,
        };
        let found = match found {
            None => reserve_granted(engine, least, Purpose::Ordinary)?,
            found => found,
        };
        let Some((reservation, blocks)) = found else {
            return Ok(None);
        };
        let extents = {
            let _no_commit = engine.commit_lock.lock();
            engine
                .segments()
                .allocate_for_grant(reservation, blocks, gained)?
        };
        let granted = extents.iter().map(|extent| (*extent, GRANTS, Ino(id)));
        lock(&engine.group).allocated.extend(granted);
        engine.commits().commit_now()?;
        Ok(Some((extents, engine.catalog.space().segments()?)))
    })
}

/// A reservation of so many blocks; `None` when there are fewer.
fn reserve_granted(
    engine: &Engine,
    blocks: u64,
    purpose: Purpose,
) -> Result<Option<(Reservation, u64)>> {
    match engine.space().reserve(blocks, purpose) {
        Ok(reservation) => Ok(Some((reservation, blocks))),
        Err(error) if error.kind() == ErrorKind::NoSpace => Ok(None),
        Err(error) => Err(error),
    }
}
