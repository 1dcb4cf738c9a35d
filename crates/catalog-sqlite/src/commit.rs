//! The commit of a change set.

pub(crate) mod access_times;
pub(crate) mod constraints;
pub(crate) mod flush;
pub(crate) mod foreign;
pub(crate) mod redo_rows;
pub(crate) mod refusals;
pub(crate) mod saves;
pub(crate) mod sessions;
mod side_rows;
#[cfg(test)]
mod statement_tests;
pub(crate) mod transaction;
pub(crate) mod unique_order;

use crate::SqliteCatalog;
use crate::commit::side_rows::{apply_dirents, apply_xattrs, require_no_row, runs_triggers};
use crate::conn::meta::{add_meta, next_commit_seq};
use crate::error::{At, CatalogError, Result, ignored, require_row};
use crate::feed;
use crate::history::retention;
use crate::history::retention::steps::STEP_ROWS;
use crate::history::{self, Keeper};
use crate::schema::statements::{StoreSql, Stores, insert_inode};
use crate::space::extents::{self, AgChanges};
use crate::space::holders;
use crate::space::map_pages;
use crate::temporal;
use crate::types::changes::{AttrMask, ChangeSet, CommitOutcome, InodeChange};
use crate::types::codec::{bound, signed};
use crate::types::rows::ContentRow;
use larder_format::checksum::crc32c;
use larder_format::{CommitSeq, StoreId};
use rusqlite::{CachedStatement, Connection, OptionalExtension, params};
use std::collections::{BTreeSet, HashMap};

impl SqliteCatalog {
    /// Applies `changes` as a whole, durably, as the next commit. One `BEGIN IMMEDIATE … COMMIT`;
    /// what can be computed before is. Any error leaves everything as it was and the connection
    /// clean, but [`CatalogError::CommitUnknown`] means: stop and reopen. A user's constraint or
    /// trigger may refuse the set ([`CatalogError::Constraint`] names it).
    /// Cost: about 10 µs per new file (4 rows), plus one sync.
    pub fn commit(&self, changes: &ChangeSet) -> Result<CommitOutcome> {
        let stores = self.stores_of(changes)?;
        let allocated = extents::coalesce(&changes.allocated);
        let (retired, dropped) = self.workspace().split_retired(&changes.retired);
        let is_step = self.user.is_some() || self.client().is_clients();
        let mut rows = (0, 0);
        let outcome = self.write(|txn| {
            rows.0 = foreign::newest_row(txn)?;
            let seq = next_commit_seq(txn)?;
            let before = feed::look_before(txn, &stores, changes)?;
            let keeper = match is_step {
                true => Keeper::begin_step(txn, seq)?,
                false => Keeper::begin(txn, seq, changes.now_ns)?
                    .by(self.sessions().author(changes.user)),
            };
            let purpose = match is_step {
                true => saves::Purpose::Step,
                false => saves::Purpose::Commit,
            };
            apply_inodes(txn, &stores, changes, &keeper, purpose)?;
            apply_sides(txn, &stores, changes, &keeper)?;
            apply_pieces(txn, &stores, changes, &keeper)?;
            extents::allocate(txn, seq, &allocated)?;
            let holders = holders::apply(txn, seq, &changes.shared, &retired)?;
            let dropped = holders::drop_live(txn, seq, &dropped)?;
            let step = match &changes.reclaim_horizon {
                Some(wished) => Some(retention::stores::reclaim(txn, wished, STEP_ROWS)?),
                None => None,
            };
            let has_more = step.as_ref().is_some_and(|step| step.has_more);
            let (reclaim_horizon, mut reclaimed) = match step {
                Some(step) => (Some(step.kept), step.extents),
                None => (None, Vec::new()),
            };
            reclaimed.extend(extents::reclaim_moved(txn, &changes.moved_away)?);
            let mut ags = AgChanges::default();
            ags.allocate(allocated.iter().map(|(extent, ..)| extent));
            ags.retire(&holders.retired);
            ags.revive(holders.revived.iter().map(|(extent, _)| extent));
            ags.drop_live(&dropped);
            ags.reclaim(&reclaimed);
            ags.apply(txn, seq)?; // CATALOG-8
            apply_segments(txn, changes)?;
            apply_orphans(txn, seq, changes)?;
            apply_session(txn, changes)?;
            if let Some(before) = before {
                feed::append(txn, seq, changes, &before)?;
            }
            let owner = |store| stores[&store].table_store;
            let redo_blocks_change = redo_rows::apply(txn, &keeper, changes, owner)?;
            history::add_pre_images(txn, seq, &changes.pre_images)?;
            history::add_moves(txn, &keeper, &changes.moves)?;
            debug_assert_eq!(
                match keeper.keeps() && self.foreign().tells() && !changes.has_revived {
                    true => foreign::find_untold(txn, &stores, changes, seq)?,
                    false => None,
                },
                None,
                "FOREIGN-2"
            );
            if changes.has_revived || is_step && foreign::has_hidden_triggers(txn)? {
                foreign::note_gap(txn, seq)?;
            }
            if !is_step {
                keeper.end(txn)?;
            }
            rows.1 = foreign::newest_row(txn)?;
            Ok(CommitOutcome {
                seq,
                retired: holders.retired,
                revived: holders.revived,
                reclaimed,
                reclaim_horizon,
                has_more,
                redo_blocks_change,
            })
        })?;
        match is_step {
            true => *crate::lock(&self.moment_ns) = Some(changes.now_ns),
            false => self.foreign().note_own_rows(rows),
        }
        Ok(outcome)
    }

    pub(crate) fn stores_of(&self, changes: &ChangeSet) -> Result<Stores> {
        let mut ids: BTreeSet<StoreId> = changes.inodes.iter().map(|change| change.0).collect();
        ids.extend(changes.saves.iter().map(|save| save.store));
        ids.extend(changes.file_ids.iter().map(|change| change.0));
        ids.extend(changes.dirents.iter().map(|change| change.0));
        ids.extend(changes.contents.iter().map(|change| change.0));
        ids.extend(changes.map_pages.iter().map(|change| change.0));
        ids.extend(changes.map_cuts.iter().map(|change| change.0));
        ids.extend(changes.piece_drops.iter().map(|change| change.0));
        ids.extend(changes.piece_pages.iter().map(|change| change.0));
        ids.extend(changes.xattrs.iter().map(|change| change.0));
        ids.extend(changes.redo_rows.iter().map(|change| change.0));
        ids.extend(changes.redo_applied.iter().map(|change| change.0));
        let mut stores = (ids.into_iter())
            .map(|id| Ok((id, self.store_sql(id)?)))
            .collect::<Result<Stores>>()?;
        for share in &changes.map_shares {
            // Where that store is gone, nothing is the same any more.
            if !stores.contains_key(&share.from_store)
                && let Ok(sql) = self.store_sql(share.from_store)
            {
                stores.insert(share.from_store, sql);
            }
        }
        Ok(stores)
    }
}

/// What is new and what changes, what goes over from row to row, and what goes (`SAVE-2`).
pub(crate) fn apply_inodes(
    txn: &Connection,
    stores: &Stores,
    changes: &ChangeSet,
    keeper: &Keeper,
    purpose: saves::Purpose,
) -> Result<()> {
    let stays = |(_, change): &(StoreId, InodeChange)| !matches!(change, InodeChange::Delete(_));
    let (made, gone) = match changes.saves.is_empty() && changes.file_ids.is_empty() {
        true => (&changes.inodes[..], &[][..]),
        false => {
            let inodes = &changes.inodes;
            debug_assert!(inodes.is_sorted_by_key(|one| !stays(one)), "SAVE-2");
            inodes.split_at(inodes.partition_point(stays))
        }
    };
    apply_rows(txn, stores, (changes, made), keeper)?;
    saves::apply(txn, stores, changes, keeper, purpose)?;
    apply_rows(txn, stores, (changes, gone), keeper)
}

/// The same for some of the rows, one after the other.
pub(crate) fn apply_rows(
    txn: &Connection,
    stores: &Stores,
    (changes, inodes): (&ChangeSet, &[(StoreId, InodeChange)]),
    keeper: &Keeper,
) -> Result<()> {
    for group in inodes.chunk_by(|a, b| a.0 == b.0) {
        let sql = &stores[&group[0].0];
        let mut ino_max = 0;
        let mut kept: Option<Option<i64>> = None;
        let mut find_kept = || match kept {
            Some(kept) => Ok(kept),
            None if !keeper.keeps() => Ok(None),
            None => {
                let found = temporal::find_kept(txn, &sql.table)?;
                kept = Some(found);
                Ok::<_, CatalogError>(found)
            }
        };
        let mut insert = txn.prepare_cached(&sql.inode_insert).at(&sql.table)?;
        let mut update: Option<(AttrMask, CachedStatement<'_>)> = None;
        for (_, change) in group {
            match change {
                InodeChange::Insert(row) => {
                    let is_given = changes.has_revived && saves::is_given(txn, sql, row.ino)?;
                    let inserted = match is_given {
                        true => saves::insert_given(txn, sql, row, keeper.seq)?,
                        false => insert_inode(&mut insert, row, keeper.seq).at(&sql.table)?,
                    };
                    require_row(inserted, &sql.table)?;
                    ino_max = ino_max.max(row.ino.0);
                    if changes.has_revived
                        && let Some(id) = find_kept()?
                    {
                        temporal::keep_absent(txn, keeper, id, signed(row.ino.0))?;
                    }
                }
                InodeChange::Update(row, mask) => {
                    let Some(text) = sql.inode_update(*mask) else {
                        continue;
                    };
                    keeper.keep(txn, &sql.keep.inode, params![signed(row.ino.0)])?;
                    // Those of one commit most often change the same columns.
                    let update = match &mut update {
                        Some((used, update)) if used == mask => update,
                        _ => {
                            let other = txn.prepare_cached(text).at(&sql.table)?;
                            &mut update.insert((*mask, other)).1
                        }
                    };
                    if insert_inode(update, row, keeper.seq).at(&sql.table)? != 1 {
                        let found = (&*sql.table, &*sql.inode);
                        require_no_row(txn, found, params![signed(row.ino.0)])?;
                        return Err(CatalogError::corrupt(format!(
                            "{}: inode {} is to be changed and does not exist",
                            sql.table, row.ino
                        )));
                    }
                }
                InodeChange::Delete(ino) => {
                    for text in sql.keep.all() {
                        keeper.keep(txn, text, params![signed(ino.0)])?;
                    }
                    if let Some(id) = find_kept()? {
                        temporal::keep_deleted(txn, keeper, id, signed(ino.0))?; // TEMPORAL-4
                    }
                    let references = &sql.map_references.pages;
                    let key = params![signed(ino.0)];
                    let let_go = keeper.let_go_pages(txn, references, key)?;
                    for text in &sql.inode_delete {
                        txn.prepare_cached(text)
                            .and_then(|mut delete| delete.execute([signed(ino.0)]))
                            .at(&sql.table)?;
                    }
                    if runs_triggers(txn)? {
                        let left: Option<String> = txn
                            .prepare_cached(&sql.inode_left)
                            .and_then(|mut find| {
                                find.query_row([signed(ino.0)], |row| row.get(0)).optional()
                            })
                            .at(&sql.table)?;
                        left.map_or(Ok(()), |table| Err(ignored(&table)))?;
                    }
                    map_pages::require_gone(txn, let_go, references, key, &sql.table_map)?;
                    remove_pieces(txn, keeper, sql.table_store, *ino)?;
                }
            }
        }
        if ino_max > 0 {
            raise_next_ino(txn, sql.table_store, ino_max)?;
        }
    }
    Ok(())
}

/// Inode numbers that the counter is raised by at a time: its page is written once for so many.
const INO_STRIDE: i64 = 64;

/// `CATALOG-4`: no later inode gets this number or a lower one. What is left of a stride when a
/// session ends is never used.
pub(crate) fn raise_next_ino(txn: &Connection, store: StoreId, ino_max: u64) -> Result<()> {
    txn.prepare_cached(
        "UPDATE larder_store SET next_ino = ?2 + ?3 WHERE id = ?1 AND next_ino <= ?2",
    )
    .and_then(|mut raise| raise.execute(params![store.0, signed(ino_max), INO_STRIDE]))
    .at("larder_store")?;
    Ok(())
}

/// What a change set says of the side tables of stores.
pub(crate) fn apply_sides(
    txn: &Connection,
    stores: &Stores,
    changes: &ChangeSet,
    keeper: &Keeper,
) -> Result<()> {
    apply_dirents(txn, stores, changes, keeper)?;
    apply_contents(txn, stores, changes, keeper)?;
    apply_maps(txn, stores, changes, keeper)?;
    apply_xattrs(txn, stores, changes, keeper)
}

fn apply_contents(
    txn: &Connection,
    stores: &Stores,
    changes: &ChangeSet,
    keeper: &Keeper,
) -> Result<()> {
    let since = signed(keeper.seq.0);
    let has_triggers = runs_triggers(txn)?;
    for group in changes.contents.chunk_by(|a, b| a.0 == b.0) {
        let sql = &stores[&group[0].0];
        let mut add = txn
            .prepare_cached(&sql.content_add)
            .at(&sql.table_content)?;
        let mut set = txn
            .prepare_cached(&sql.content_set)
            .at(&sql.table_content)?;
        let mut remove = txn
            .prepare_cached(&sql.content_remove)
            .at(&sql.table_content)?;
        for (_, ino, content) in group {
            let ino = signed(ino.0);
            let (inline, target) = match content {
                Some(ContentRow::Inline(bytes)) => (Some(bytes), None),
                Some(ContentRow::Target(bytes)) => (None, Some(bytes)),
                None => {
                    keeper.keep(txn, &sql.keep.content, params![ino])?;
                    let removed = remove.execute([ino]).at(&sql.table_content)?;
                    if has_triggers && removed == 0 {
                        let found = (&*sql.table_content, &*sql.content);
                        require_no_row(txn, found, params![ino])?;
                    }
                    continue;
                }
            };
            let checksum = inline.or(target).map(|bytes| crc32c(bytes));
            let row = params![ino, inline, target, since, checksum];
            if add.execute(row).at(&sql.table_content)? == 0 {
                keeper.keep(txn, &sql.keep.content, params![ino])?;
                require_row(set.execute(row).at(&sql.table_content)?, &sql.table_content)?;
            }
        }
    }
    Ok(())
}

fn apply_maps(
    txn: &Connection,
    stores: &Stores,
    changes: &ChangeSet,
    keeper: &Keeper,
) -> Result<()> {
    let since = signed(keeper.seq.0);
    let has_triggers = runs_triggers(txn)?;
    for (store, ino, page) in &changes.map_cuts {
        let sql = &stores[store];
        let from = [signed(ino.0), bound(*page)];
        keeper.keep(txn, &sql.keep.pages_from, params![from[0], from[1]])?;
        let (references, key) = (&sql.map_references.pages_from, params![from[0], from[1]]);
        let let_go = keeper.let_go_pages(txn, references, key)?;
        txn.prepare_cached(&sql.map_cut)
            .and_then(|mut cut| cut.execute(from))
            .at(&sql.table_map)?;
        if has_triggers {
            require_no_row(txn, (&sql.table_map, &sql.map_from), key)?;
        }
        map_pages::require_gone(txn, let_go, references, key, &sql.table_map)?;
    }
    // The last one that gave a page counts; its origin is written before.
    let mut shares: HashMap<PageKey, usize> = HashMap::new();
    for (order, share) in changes.map_shares.iter().enumerate() {
        shares.insert((share.store, share.ino, share.page), order);
    }
    let mut later: Vec<(usize, &[u8])> = Vec::new();
    for group in changes.map_pages.chunk_by(|a, b| a.0 == b.0) {
        let sql = &stores[&group[0].0];
        let mut add = txn.prepare_cached(&sql.map_add).at(&sql.table_map)?;
        let mut set = txn.prepare_cached(&sql.map_set).at(&sql.table_map)?;
        let mut remove = txn.prepare_cached(&sql.map_remove).at(&sql.table_map)?;
        for (store, ino, page, runs) in group {
            let key = [signed(ino.0), signed(*page)];
            if let Some(runs) = runs {
                if let Some(order) = shares.get(&(*store, *ino, *page)) {
                    later.push((*order, runs));
                    continue;
                }
                let row = params![key[0], key[1], runs, since];
                if add.execute(row).at(&sql.table_map)? == 0 {
                    supersede_page(txn, sql, keeper, key)?;
                    require_row(set.execute(row).at(&sql.table_map)?, &sql.table_map)?;
                }
            } else {
                let let_go = supersede_page(txn, sql, keeper, key)?;
                let removed = remove.execute(key).at(&sql.table_map)?;
                if has_triggers && removed == 0 {
                    let key = params![key[0], key[1]];
                    require_no_row(txn, (&sql.table_map, &sql.map_page), key)?;
                }
                if let_go > 0 {
                    require_row(removed, &sql.table_map)?;
                }
            }
        }
    }
    later.sort_unstable_by_key(|(order, _)| *order);
    for (order, runs) in later {
        let share = &changes.map_shares[order];
        let sql = &stores[&share.store];
        let reference = match stores.get(&share.from_store) {
            Some(origin) => {
                let key = [signed(share.from_ino.0), signed(share.from_page)];
                map_pages::share(txn, &origin.table_map, key, runs)?
            }
            None => None,
        };
        if reference.is_some() {
            keeper.note_shared_page();
        }
        let key = [signed(share.ino.0), signed(share.page)];
        let written = reference.as_deref().unwrap_or(runs);
        let row = params![key[0], key[1], written, since];
        let run = |text: &str| {
            txn.prepare_cached(text)
                .and_then(|mut write| write.execute(row))
                .at(&sql.table_map)
        };
        if run(&sql.map_add)? == 0 {
            supersede_page(txn, sql, keeper, key)?;
            require_row(run(&sql.map_set)?, &sql.table_map)?;
        }
    }
    Ok(())
}

/// A page of a map: whose, and its number.
type PageKey = (StoreId, larder_format::Ino, u64);

/// The row of a map with this `ino` and `page` goes, or is written over. How many references go
/// with it.
fn supersede_page(
    txn: &Connection,
    sql: &StoreSql,
    keeper: &Keeper,
    key: [i64; 2],
) -> Result<usize> {
    keeper.keep(txn, &sql.keep.page, params![key[0], key[1]])?;
    keeper.let_go_pages(txn, &sql.map_references.page, params![key[0], key[1]])
}

/// Applies the changes of lists: whole lists that go, then pages.
fn apply_pieces(
    txn: &Connection,
    stores: &Stores,
    changes: &ChangeSet,
    keeper: &Keeper,
) -> Result<()> {
    let since = signed(keeper.seq.0);
    for (store, ino) in &changes.piece_drops {
        remove_pieces(txn, keeper, stores[store].table_store, *ino)?;
    }
    if changes.piece_pages.is_empty() {
        return Ok(());
    }
    let mut set = txn
        .prepare_cached(
            "INSERT INTO larder_piece (store, ino, page, entries, since_seq) \
             VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (store, ino, page) \
             DO UPDATE SET entries = excluded.entries, since_seq = excluded.since_seq",
        )
        .at("larder_piece")?;
    let mut remove = txn
        .prepare_cached("DELETE FROM larder_piece WHERE store = ?1 AND ino = ?2 AND page = ?3")
        .at("larder_piece")?;
    for (store, ino, page, entries) in &changes.piece_pages {
        let (store, ino, page) = (stores[store].table_store.0, signed(ino.0), signed(*page));
        keeper.keep(txn, history::KEEP_PIECE, params![store, ino, page])?;
        match entries {
            Some(entries) => set.execute(params![store, ino, page, entries, since]),
            None => remove.execute(params![store, ino, page]),
        }
        .at("larder_piece")?;
    }
    Ok(())
}

/// Removes the list of one inode.
fn remove_pieces(
    txn: &Connection,
    keeper: &Keeper,
    owner: StoreId,
    ino: larder_format::Ino,
) -> Result<()> {
    keeper.keep(txn, history::KEEP_PIECES, params![owner.0, signed(ino.0)])?;
    txn.prepare_cached("DELETE FROM larder_piece WHERE store = ?1 AND ino = ?2")
        .and_then(|mut remove| remove.execute(params![owner.0, signed(ino.0)]))
        .at("larder_piece")
        .map(drop)
}

fn apply_segments(txn: &Connection, changes: &ChangeSet) -> Result<()> {
    for (segment, block_count) in &changes.segments {
        txn.prepare_cached(
            "INSERT INTO larder_segment (segment, block_count) VALUES (?1, ?2) \
             ON CONFLICT (segment) DO UPDATE SET block_count = excluded.block_count",
        )
        .and_then(|mut set| set.execute([i64::from(segment.0), signed(*block_count)]))
        .at("larder_segment")?;
    }
    Ok(())
}

fn apply_orphans(txn: &Connection, seq: CommitSeq, changes: &ChangeSet) -> Result<()> {
    for (store, ino) in &changes.orphans_added {
        txn.prepare_cached("INSERT INTO larder_orphan (store, ino, seq) VALUES (?1, ?2, ?3)")
            .and_then(|mut add| add.execute(params![store.0, signed(ino.0), signed(seq.0)]))
            .at("larder_orphan")?;
    }
    for (store, ino) in &changes.orphans_removed {
        for text in [
            "DELETE FROM larder_orphan WHERE store = ?1 AND ino = ?2",
            "DELETE FROM larder_holder WHERE store = ?1 AND ino = ?2",
        ] {
            txn.prepare_cached(text)
                .and_then(|mut remove| remove.execute(params![store.0, signed(ino.0)]))
                .at("larder_orphan")?;
        }
    }
    let holders = [
        (
            "INSERT INTO larder_holder (store, ino, session) VALUES (?1, ?2, ?3) ON CONFLICT DO \
             NOTHING",
            &changes.holders_added,
        ),
        (
            "DELETE FROM larder_holder WHERE store = ?1 AND ino = ?2 AND session = ?3",
            &changes.holders_removed,
        ),
    ];
    for (text, rows) in holders {
        for (store, ino, session) in rows {
            txn.prepare_cached(text)
                .and_then(|mut change| {
                    change.execute(params![store.0, signed(ino.0), signed(session.0)])
                })
                .at("larder_holder")?;
        }
    }
    Ok(())
}

fn apply_session(txn: &Connection, changes: &ChangeSet) -> Result<()> {
    if changes.retired_bytes > 0 {
        add_meta(txn, "retired_bytes_total", changes.retired_bytes)?;
    }
    if let Some((session, seq)) = changes.pin {
        crate::commit::sessions::update_pin(txn, session, seq)?;
    }
    Ok(())
}
