//! Stores that keep history for different times: horizons, pruning and accounts, store by store.
//!
//! # Words
//! A store is *ahead* when its history goes further than the base of the [`RetentionHorizons`]. Its
//! history then *begins* at a commit of its own (`larder_meta`, `history_begins_seq:STORE`). Stores
//! are *sharing* when content of one was, or is, held by another.
//!
//! # Invariants
//! * `HISTORY-7` A store's own history begins at B: what was superseded, and retired, by commits up
//!   to B is gone, what came later is whole, of this store and all others. Of what lies before
//!   nobody reads anything: it is refused with the time of B. *Guard*: rows, extents and the number
//!   go in one transaction; who holds a state at or after B is looked for in it (a hold before B
//!   shows nothing of this store, and keeps nothing of it). `check` looks for rows and extents
//!   before B.
//! * `HISTORY-8` An extent that objects of several stores have held goes when the history of all of
//!   them lets it go. *Guard*: the commit that shares content between stores names both
//!   (`larder_meta`, `shares_across:STORE`), for good; content of all that are named goes at the
//!   lowest of their cuts. What an older version has shared is looked for once, before the first
//!   store goes ahead.
//! * `HISTORY-9` A pre-image goes when the store that owns the content lets its commit
//!   go. *Guard*: looked for before the extents go, when each place still has an owner. One that
//!   stays too long would mislead nobody: it counts for commits before its own, and a block is
//!   given to another object only after that commit has gone from the history of its last.
//!
//! # Cost
//! Nothing while the cuts are even. Otherwise a prune reads the rows of the history between the old
//! and the new beginning of each store that is ahead, those of other stores among them, once; so do
//! extents, by `retired_seq`. Up to where content of sharing stores has gone is noted
//! (`larder_meta`, `shares_gone_seq:COUNT` of them): nothing is retired there any more. When
//! another store begins to share, which may keep what it retired before, it is looked for from the
//! base once more.

use crate::CatalogRetention;
use crate::conn::meta::{of_store, of_stores};
use crate::error::{At, Result};
use crate::history::pre_images::{places_at, pre_image};
use crate::history::retention::steps::{self, Limit, Source, last_gone};
use crate::history::versions::first_row_after;
use crate::history::{self, BEGINS, GIVEN_UP, begins_of, held_since, history_begins, last_before};
use crate::space::extents::{self, extent};
use crate::space::holders::sharing;
use crate::space::map_pages;
use crate::types::codec::{rows, signed, unsigned};
use crate::types::retention_horizons::RetentionHorizons;
use larder_format::{CommitSeq, Extent, StoreId};
use rusqlite::{Connection, OptionalExtension, params};
use std::collections::BTreeMap;

/// A beginning that lags so many commits behind its cut is raised, though nothing goes with that:
/// what lies between is looked at each time.
const LAG_MAX: u64 = 1024;
/// Up to where content of the stores that share has gone; how many these are says which, since none
/// ever leaves them.
const SHARES_GONE: &str = "shares_gone_seq";

/// What the history of one store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryUse {
    /// The store that owns it.
    pub store: StoreId,
    /// Content that only history needs, blocks.
    pub block_count: u64,
    /// Rows in the catalog.
    pub row_count: u64,
    /// Bytes of small content, maps and redo rows in these rows.
    pub row_bytes: u64,
}

impl CatalogRetention<'_> {
    /// How far the histories of stores may go of those that are wanted, while these moments are
    /// held: what a store's history does not reach any more holds nothing of it.
    pub fn limit_cuts(
        &self,
        wanted: &RetentionHorizons,
        holds: &[CommitSeq],
    ) -> Result<RetentionHorizons> {
        self.catalog.read(|reader| {
            let oldest = holds.iter().min().copied();
            let none = CommitSeq(i64::MAX as u64);
            let mut stores = Vec::new();
            if !wanted.is_even() || is_ahead(reader)? {
                for store in owners(reader)? {
                    let begins = begins_of(reader, store)?;
                    let held = holds.iter().filter(|seq| **seq >= begins).min();
                    stores.push((store, wanted.of(store).min(held.copied().unwrap_or(none))));
                }
            }
            let oldest = oldest.unwrap_or(none);
            let base_max = oldest.min(wanted.base());
            Ok(RetentionHorizons::new(
                base_max,
                wanted.rest().min(oldest),
                stores,
            ))
        })
    }

    /// Whether anything that these cuts let go waits for its reclaim.
    pub fn has_retired_by(&self, cuts: &RetentionHorizons) -> Result<bool> {
        if self.catalog.space().has_retired(cuts.base())? {
            return Ok(true);
        }
        self.catalog.read(|reader| {
            let Some(split) = Split::find(reader, cuts, false)? else {
                return Ok(false);
            };
            for group in &split.extents {
                let is_any = reader
                    .prepare(&group.extents("SELECT 1 FROM larder_extent", " LIMIT 1"))
                    .and_then(|mut find| find.exists(group.range()))
                    .at(extents::TABLE)?;
                if is_any {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Whether a prune by these cuts would delete any row of the history, or of what a part of one
    /// has left (`TIME-9`), or has to raise a beginning. Cost: 6 µs; reads what lies between the
    /// beginnings and the cuts of stores that are ahead, up to the first row of theirs.
    pub fn has_past_by(&self, cuts: &RetentionHorizons) -> Result<bool> {
        self.catalog.read(|reader| {
            if steps::find_limit(reader, &steps::sources(cuts.base()), 0)?.is_some() {
                return Ok(true);
            }
            let Some(split) = Split::find(reader, cuts, false)? else {
                return Ok(false);
            };
            for group in &split.rows {
                let text = format!(
                    "SELECT 1 FROM larder_history WHERE {} LIMIT 1",
                    group.row_condition()
                );
                let range = group.row_range(reader)?;
                let is_any = group.to.0 - group.from.0 > LAG_MAX
                    || reader
                        .prepare(&text)
                        .and_then(|mut find| find.exists(range))
                        .at("larder_history")?;
                if is_any {
                    return Ok(true);
                }
            }
            Ok(false)
        })
    }

    /// Blocks that these cuts let go and that are not reclaimed. O(such rows).
    pub fn retired_blocks_by(&self, cuts: &RetentionHorizons) -> Result<u64> {
        if cuts.is_even() {
            return self.catalog.space().retired_blocks(cuts.base());
        }
        let uses = self.history_use(cuts)?;
        Ok(uses.iter().map(|one| one.block_count).sum())
    }

    /// What the history takes that a prune by these cuts frees, by store. O(rows that it would
    /// read).
    pub fn history_use(&self, cuts: &RetentionHorizons) -> Result<Vec<HistoryUse>> {
        self.catalog.read(|reader| {
            let state = reader.unchecked_transaction().at("larder_history")?;
            let mut uses: BTreeMap<StoreId, HistoryUse> = BTreeMap::new();
            let base = cuts.base();
            let split = Split::find(&state, cuts, false)?;
            let none = Vec::new();
            let (row_groups, extent_groups) = match &split {
                Some(split) => (&split.rows, &split.extents),
                None => (&none, &none),
            };
            let retired = "SELECT store, sum(block_count) FROM larder_extent";
            let mut counts: Vec<(u32, u64)> = rows(
                &state,
                &format!(
                    "{retired} WHERE retired_seq IS NOT NULL AND retired_seq <= ?1 GROUP BY store"
                ),
                [signed(base.0)],
                |row| Ok((row.get(0)?, unsigned(row, 1)?)),
            )
            .at(extents::TABLE)?;
            for group in extent_groups {
                let text = group.extents(retired, " GROUP BY store");
                let more = rows(&state, &text, group.range(), |row| {
                    Ok((row.get(0)?, unsigned(row, 1)?))
                });
                counts.extend(more.at(extents::TABLE)?);
            }
            for (store, block_count) in counts {
                let store = StoreId(store);
                uses.entry(store).or_default().block_count += block_count;
            }
            let superseded = "SELECT store, count(*), sum(iif(typeof(value) = 'blob', \
                length(value), 0)) \
                              FROM larder_history";
            let count = |row: &rusqlite::Row<'_>| {
                Ok((row.get::<_, u32>(0)?, unsigned(row, 1)?, unsigned(row, 2)?))
            };
            let mut counts = rows(
                &state,
                &format!("{superseded} WHERE id <= ?1 AND store IS NOT NULL GROUP BY store"),
                [last_gone(&state, base)?],
                count,
            )
            .at("larder_history")?;
            for group in row_groups {
                let text = format!(
                    "{superseded} WHERE {} GROUP BY store",
                    group.row_condition()
                );
                let more = rows(&state, &text, group.row_range(&state)?, count);
                counts.extend(more.at("larder_history")?);
            }
            for (store, row_count, row_bytes) in counts {
                let one = uses.entry(StoreId(store)).or_default();
                one.row_count += row_count;
                one.row_bytes += row_bytes;
            }
            for (store, one) in &mut uses {
                one.store = *store;
            }
            Ok(uses.into_values().collect())
        })
    }

    /// Stores with a table of their own, and the first whole commit of each whose state can be
    /// read, with its time.
    pub fn store_beginnings(&self) -> Result<Vec<(StoreId, CommitSeq, i64)>> {
        self.catalog.read(|reader| {
            let begin = |store: StoreId| {
                let (seq, at_ns) = history::reach_of(reader, store)?;
                Ok((store, seq, at_ns))
            };
            owners(reader)?.into_iter().map(begin).collect()
        })
    }

    /// Whether a store can be read as this catalog of the past shows it: an error that names where
    /// its history begins.
    pub fn require_reach(&self, store: StoreId) -> Result<()> {
        self.catalog.store_sql(store).map(drop)
    }

    /// Lets the histories of stores go up to these commits, whatever the retention says, once
    /// nobody needs them ([`CatalogRetention::history_horizon`]). It lasts until the history ends,
    /// or is guaranteed. The caller has the writer lock, and has named the sharers where the cuts
    /// are not even ([`CatalogRetention::name_sharers`]).
    pub fn give_up_history(&self, cuts: &RetentionHorizons) -> Result<()> {
        self.catalog.write(|txn| {
            let mut give_up = txn
                .prepare_cached(
                    "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
                     ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
                )
                .at("larder_meta")?;
            let base = cuts.base();
            give_up
                .execute(params![GIVEN_UP, signed(base.0)])
                .at("larder_meta")?;
            if cuts.is_even() {
                return Ok(());
            }
            for store in owners(txn)? {
                let seq = cuts.of(store);
                if seq > base {
                    give_up
                        .execute(params![of_store(GIVEN_UP, Some(store)), signed(seq.0)])
                        .at("larder_meta")?;
                }
            }
            Ok(())
        })
    }
}

/// Stores with a table of their own.
pub(crate) fn owners(connection: &Connection) -> Result<Vec<StoreId>> {
    rows(
        connection,
        "SELECT id FROM larder_store WHERE table_store = id ORDER BY id",
        [],
        |row| row.get(0).map(StoreId),
    )
    .at("larder_store")
}

/// Whether any store's history begins after that of the database.
fn is_ahead(connection: &Connection) -> Result<bool> {
    let begins = signed(history_begins(connection)?.0.0);
    let begun = of_stores(connection, BEGINS)?;
    Ok(begun.iter().any(|(_, at)| *at > begins))
}

/// A store is destroyed: what it has retired is of no store now.
pub(crate) fn forget_store(txn: &Connection, store: StoreId) -> Result<()> {
    let begins = begins_of(txn, store)?;
    txn.execute(
        "UPDATE larder_meta SET value = ?2 WHERE key = ?1 AND value > ?2",
        params![of_store(BEGINS, None), signed(begins.0)],
    )
    .at("larder_meta")?;
    for key in [BEGINS, GIVEN_UP] {
        txn.execute(
            "DELETE FROM larder_meta WHERE key = ?1",
            [of_store(key, Some(store))],
        )
        .at("larder_meta")?;
    }
    Ok(())
}

/// What one commit has reclaimed.
pub(crate) struct Reclaimed {
    /// Up to where nothing is left.
    pub(crate) kept: RetentionHorizons,
    /// By place.
    pub(crate) extents: Vec<Extent>,
    /// There is more that may go.
    pub(crate) has_more: bool,
}

/// Deletes what no state has that these cuts leave, in a step (`TIME-9`), and says how far it went:
/// not past what is held (`HISTORY-3`, `HISTORY-7`). A single commit that only
/// stores ahead of the others give up goes as a whole.
pub(crate) fn reclaim(
    txn: &Connection,
    wished: &RetentionHorizons,
    rows_max: u64,
) -> Result<Reclaimed> {
    let split = Split::find(txn, wished, true)?;
    let base = match &split {
        Some(split) => split.cuts.base(),
        None => limit_base(txn, wished)?,
    };
    let mut sources = steps::sources(base);
    if let Some(split) = &split {
        split.add_sources(txn, &mut sources)?;
    }
    let limit = steps::find_limit(txn, &sources, rows_max)?;
    let before = txn.total_changes();
    let (kept, extents) = match (limit, split) {
        (None, split) => reclaim_whole(txn, base, split)?,
        (Some(Limit::Part(seq)), _) if seq <= base => {
            let kept = RetentionHorizons::even(CommitSeq(seq.0.saturating_sub(1)));
            (kept, steps::reclaim_part(txn, seq, rows_max)?)
        }
        (Some(Limit::Part(seq) | Limit::Whole(seq)), split) => {
            // Of what was found: what is held counts for it.
            let found = split.as_ref().map_or(wished, |split| &split.cuts);
            let wished = found.limit(seq);
            let split = Split::find(txn, &wished, true)?;
            reclaim_whole(txn, limit_base(txn, &wished)?, split)?
        }
    };
    Ok(Reclaimed {
        kept,
        extents,
        // A step that takes nothing is the last one, whatever was expected of it.
        has_more: limit.is_some() && txn.total_changes() > before,
    })
}

/// How far all goes that all stores give up.
fn limit_base(txn: &Connection, wished: &RetentionHorizons) -> Result<CommitSeq> {
    let held = history::held(txn)?;
    Ok(held.map_or(wished.base(), |held| held.min(wished.base())))
}

fn reclaim_whole(
    txn: &Connection,
    base: CommitSeq,
    split: Option<Split>,
) -> Result<(RetentionHorizons, Vec<Extent>)> {
    let Some(split) = split else {
        steps::prune(txn, base)?;
        let reclaimed = extents::reclaim(txn, base)?;
        map_pages::reclaim(txn, base, u64::from(u32::MAX))?; // SHARE-7
        return Ok((RetentionHorizons::even(base), reclaimed));
    };
    let base = split.cuts.base();
    split.drop_pre_images(txn)?; // HISTORY-9: while each place has its owner.
    steps::prune(txn, base)?;
    let mut reclaimed = extents::reclaim(txn, base)?;
    map_pages::reclaim(txn, base, u64::from(u32::MAX))?; // SHARE-7
    for group in &split.rows {
        let text = format!("DELETE FROM larder_history WHERE {}", group.row_condition());
        txn.execute(&text, group.row_range(txn)?)
            .at("larder_history")?;
    }
    for group in &split.extents {
        let returning = " RETURNING segment, start_block, block_count";
        let text = group.extents("DELETE FROM larder_extent", returning);
        let gone = rows(txn, &text, group.range(), extent);
        reclaimed.extend(gone.at(extents::TABLE)?);
    }
    for (store, seq) in &split.begins {
        txn.execute(
            "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
             ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
            params![of_store(BEGINS, *store), signed(seq.0)],
        )
        .at("larder_meta")?;
    }
    if let Some(shared) = &split.shared {
        let key = shares_gone(&split.sharing);
        txn.execute(
            "DELETE FROM larder_meta WHERE key > ?1 AND key < ?2 AND key <> ?3",
            [
                format!("{SHARES_GONE}:"),
                format!("{SHARES_GONE};"),
                key.clone(),
            ],
        )
        .and_then(|_| {
            txn.execute(
                "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
                 ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
                params![key, signed(shared.0)],
            )
        })
        .at("larder_meta")?;
    }
    for key in [BEGINS, GIVEN_UP, SHARES_GONE] {
        // What the beginning of all has reached says nothing any more.
        txn.execute(
            "DELETE FROM larder_meta WHERE key > ?1 AND key < ?2 \
             AND value <= (SELECT value FROM larder_meta WHERE key = 'history_begins_seq')",
            [format!("{key}:"), format!("{key};")],
        )
        .at("larder_meta")?;
    }
    reclaimed.sort_unstable();
    Ok((split.cuts, reclaimed))
}

fn shares_gone(sharing: &[StoreId]) -> String {
    format!("{SHARES_GONE}:{}", sharing.len())
}

/// Stores whose history goes from one commit to another.
struct Group {
    /// What these commits, behind the first and up to the second, superseded and retired.
    from: CommitSeq,
    to: CommitSeq,
    /// A condition. (The `+` keeps SQLite from an index by store, which would read all of it.)
    which: String,
}

impl Group {
    fn range(&self) -> [i64; 2] {
        [signed(self.from.0), signed(self.to.0)]
    }

    /// A statement about retired rows of extents, with [`Group::range`].
    fn extents(&self, what: &str, end: &str) -> String {
        format!(
            "{what} WHERE retired_seq IS NOT NULL AND retired_seq > ?1 AND retired_seq <= ?2 AND \
             {}{end}",
            self.which
        )
    }

    /// The condition for rows of the history, with [`Group::row_range`].
    fn row_condition(&self) -> String {
        format!("id >= ?1 AND id <= ?2 AND {}", self.which)
    }

    /// By `HISTORY-2`. O(log rows).
    fn row_range(&self, connection: &Connection) -> Result<[Option<i64>; 2]> {
        Ok([
            first_row_after(connection, self.from)?,
            last_before(first_row_after(connection, self.to)?),
        ])
    }
}

/// What cuts that are not even mean for rows and extents.
struct Split {
    /// As far as they go.
    cuts: RetentionHorizons,
    /// What goes behind the base, of the history.
    rows: Vec<Group>,
    /// The same of extents.
    extents: Vec<Group>,
    /// Beginnings that rise.
    begins: Vec<(Option<StoreId>, CommitSeq)>,
    sharing: Vec<StoreId>,
    /// Up to where content of sharing stores goes.
    shared_to: CommitSeq,
    /// The same, where that is further than it has gone.
    shared: Option<CommitSeq>,
}

impl Split {
    /// `None`: the cuts are even. `looks`: not past what is held.
    fn find(
        connection: &Connection,
        wished: &RetentionHorizons,
        looks: bool,
    ) -> Result<Option<Split>> {
        if wished.is_even() {
            return Ok(None);
        }
        let held = |from: Option<CommitSeq>| -> Result<CommitSeq> {
            let found = match (looks, from) {
                (false, _) => None,
                (true, None) => history::held(connection)?,
                (true, Some(from)) => held_since(connection, from)?,
            };
            Ok(found.unwrap_or(CommitSeq(u64::MAX)))
        };
        let held_by_any = held(None)?;
        let base = wished.base().min(held_by_any);
        let begins = history_begins(connection)?.0;
        let begun = of_stores(connection, BEGINS)?;
        let from_of = |store: Option<StoreId>| {
            let own = begun.iter().find(|(one, _)| *one == store);
            own.map_or(begins, |(_, at)| begins.max(CommitSeq(*at as u64)))
        };
        let owners = owners(connection)?;
        let sharing = sharing(connection)?;
        let mut stores = Vec::with_capacity(owners.len());
        let mut rising = Vec::new();
        let mut groups: BTreeMap<(CommitSeq, CommitSeq), Vec<StoreId>> = BTreeMap::new();
        for store in &owners {
            let begun = from_of(Some(*store));
            let to = wished.of(*store).min(held(Some(begun))?).max(base);
            let from = begun.max(base);
            stores.push((*store, to));
            if to > from {
                groups.entry((from, to)).or_default().push(*store);
                rising.push((Some(*store), to));
            }
        }
        let rest_to = wished.rest().min(held_by_any).max(base);
        let rest_from = from_of(None).max(base);
        let of_shared = sharing.iter().map(|store| {
            let owner = stores.iter().find(|(one, _)| one == store);
            owner.map_or(rest_to, |(_, to)| *to)
        });
        let shared_to = of_shared.min().unwrap_or(base);
        let mut extents = Vec::new();
        let mut rows = Vec::new();
        for ((from, to), stores) in groups {
            let which = format!("+store IN ({})", list(&stores));
            rows.push(Group { from, to, which });
            let alone: Vec<StoreId> = stores
                .into_iter()
                .filter(|store| !sharing.contains(store))
                .collect();
            if !alone.is_empty() {
                let which = format!("+store IN ({})", list(&alone));
                extents.push(Group { from, to, which });
            }
        }
        let gone: Option<i64> = connection
            .prepare_cached("SELECT value FROM larder_meta WHERE key = ?1")
            .and_then(|mut find| {
                find.query_row([shares_gone(&sharing)], |row| row.get(0))
                    .optional()
            })
            .at("larder_meta")?;
        let shared_from = base.max(CommitSeq(gone.unwrap_or(0) as u64));
        let shared = Some(shared_to).filter(|to| *to > shared_from);
        if shared.is_some() {
            extents.push(Group {
                from: shared_from,
                to: shared_to,
                which: format!("+store IN ({})", list(&sharing)),
            });
        }
        if rest_to > rest_from {
            let others: Vec<StoreId> = owners.iter().chain(&sharing).copied().collect();
            extents.push(Group {
                from: rest_from,
                to: rest_to,
                which: format!("+store NOT IN ({})", list(&others)),
            });
            rising.push((None, rest_to));
        }
        Ok(Some(Split {
            cuts: RetentionHorizons::new(base, rest_to, stores),
            rows,
            extents,
            begins: rising,
            sharing,
            shared_to,
            shared,
        }))
    }

    /// What goes behind the base.
    fn add_sources(&self, txn: &Connection, sources: &mut Vec<Source>) -> Result<()> {
        for group in &self.rows {
            let which = group.row_condition();
            sources.push(Source {
                query: format!("SELECT until_seq FROM larder_history WHERE {which} ORDER BY id"),
                range: Some(group.row_range(txn)?),
                to: group.to,
            });
        }
        let extents = self.extents.iter().map(|group| Source {
            query: group.extents(
                "SELECT retired_seq FROM larder_extent",
                " ORDER BY retired_seq",
            ),
            range: Some(group.range().map(Some)),
            to: group.to,
        });
        sources.extend(extents);
        Ok(())
    }

    /// Up to where the content of a store goes.
    fn content_to(&self, store: StoreId) -> CommitSeq {
        match self.sharing.contains(&store) {
            true => self.shared_to, // HISTORY-8
            false => self.cuts.of(store),
        }
    }

    /// Deletes the pre-images whose content goes (`HISTORY-9`). Cost: a few looks for
    /// each row of the commits that go.
    fn drop_pre_images(&self, txn: &Connection) -> Result<()> {
        for group in &self.extents {
            let found: Vec<(Extent, Extent, CommitSeq)> = rows(
                txn,
                "SELECT segment, start_block, block_count, copy_segment, copy_block, until_seq \
                 FROM larder_pre_image \
                 WHERE until_seq > ?1 AND until_seq <= ?2",
                group.range(),
                pre_image,
            )
            .at("larder_pre_image")?;
            for (target, copy, until) in found {
                if !self.goes(txn, &copy, until)? {
                    continue;
                }
                txn.prepare_cached(
                    "DELETE FROM larder_pre_image WHERE segment = ?1 AND start_block = ?2 AND \
                     until_seq = ?3",
                )
                .and_then(|mut delete| {
                    let (start, until) = (signed(target.start_block), signed(until.0));
                    delete.execute(params![target.segment.0, start, until])
                })
                .at("larder_pre_image")?;
            }
        }
        Ok(())
    }

    /// Whether all who own what was in `copy` after commit `until` let that commit go.
    fn goes(&self, txn: &Connection, copy: &Extent, until: CommitSeq) -> Result<bool> {
        let (mut places, mut at) = (Vec::new(), 0);
        for (part, place) in places_at(txn, copy, until)? {
            let start = part.start_block - copy.start_block;
            if at < start {
                places.push(copy.slice(at, start - at));
            }
            places.push(place);
            at = start + part.block_count;
        }
        if at < copy.block_count {
            places.push(copy.slice(at, copy.block_count - at));
        }
        let mut is_owned = false;
        for place in &places {
            for row in extents::rows_under(txn, place)? {
                is_owned = true;
                if until > self.content_to(row.store) {
                    return Ok(false);
                }
            }
        }
        Ok(is_owned)
    }
}

fn list(stores: &[StoreId]) -> String {
    let numbers: Vec<String> = stores.iter().map(|store| store.0.to_string()).collect();
    numbers.join(", ")
}

#[cfg(test)]
mod tests;
