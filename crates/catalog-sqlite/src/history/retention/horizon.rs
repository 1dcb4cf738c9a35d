//! The retention horizon: up to which commit history may go, of each store, and what early expiry
//! would set free.

use crate::CatalogRetention;
use crate::conn::meta::{KEPT_NS_MIN, of_stores};
use crate::error::{At, Result};
use crate::history::retention::retentions;
use crate::history::{
    self, BEGINS, GIVEN_UP, begins_of, find_moment, given_up, held_since, history_begins,
    search_moments,
};
use crate::space::extents;
use crate::space::holders::sharing;
use crate::types::codec::{rows, signed, unsigned};
use crate::types::retention_horizons::RetentionHorizons;
use larder_format::{CommitSeq, StoreId};
use rusqlite::Connection;
use std::collections::BTreeMap;

/// What the retention says of one store, and what holds its history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct StoreHorizon {
    /// Up to which commit it lets history go. Under space pressure more may go.
    pub retained: CommitSeq,
    /// But not here.
    pub is_guaranteed: bool,
    /// The oldest snapshot or reader of the past that shows the store: nothing after it goes.
    pub held: Option<CommitSeq>,
}

impl StoreHorizon {
    /// Up to where history goes when all up to `expired_early` is given up.
    fn cut(&self, expired_early: CommitSeq) -> CommitSeq {
        let all = match self.is_guaranteed {
            true => self.retained, // TIME-4
            false => self.retained.max(expired_early),
        };
        self.held.map_or(all, |held| held.min(all))
    }
}

/// Up to which commit history may go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct HistoryHorizon {
    /// The oldest snapshot or reader of the past.
    pub held: Option<CommitSeq>,
    /// Of stores that are not named, and what belongs to none.
    pub rest: StoreHorizon,
    /// Of stores with a retention, or a beginning, of their own.
    pub stores: Vec<(StoreId, StoreHorizon)>,
    /// Stores whose content goes together (`HISTORY-8`).
    pub sharing: Vec<StoreId>,
    /// The shortest retention, nanoseconds.
    pub shortest_ns: i64,
}

impl HistoryHorizon {
    /// Up to where history goes when all up to `expired_early` is given up.
    pub fn cuts(&self, expired_early: CommitSeq) -> RetentionHorizons {
        let stores = self.stores.iter();
        RetentionHorizons::new(
            self.held.unwrap_or(CommitSeq(i64::MAX as u64)),
            self.rest.cut(expired_early),
            stores
                .map(|(store, horizon)| (*store, horizon.cut(expired_early)))
                .collect(),
        )
    }

    /// What the retentions say, whatever is held.
    pub fn retained(&self) -> RetentionHorizons {
        let stores = self.stores.iter();
        RetentionHorizons::new(
            CommitSeq(i64::MAX as u64),
            self.rest.retained,
            stores
                .map(|(store, horizon)| (*store, horizon.retained))
                .collect(),
        )
    }

    /// Whether all of it is guaranteed.
    pub fn is_all_guaranteed(&self) -> bool {
        self.all().all(|one| one.is_guaranteed)
    }

    /// Whether nothing of it is guaranteed or held.
    pub fn is_spare(&self) -> bool {
        self.all()
            .all(|one| !one.is_guaranteed && one.held.is_none())
    }

    /// Whether early expiry gives up what a store has retired by commit `seq`.
    fn may_expire(&self, store: StoreId, seq: CommitSeq) -> bool {
        let may = |store: StoreId| {
            let one = self.of(store);
            !one.is_guaranteed && one.held.is_none_or(|held| seq <= held)
        };
        match self.sharing.contains(&store) {
            true => self.sharing.iter().all(|store| may(*store)),
            false => may(store),
        }
    }

    /// The store whose guarantee keeps what a store has retired by commit `seq`, and which nothing
    /// holds.
    fn guarantor(&self, store: StoreId, seq: CommitSeq) -> Option<StoreId> {
        let keeps = |store: &StoreId| {
            let one = self.of(*store);
            one.is_guaranteed && seq > one.retained && one.held.is_none_or(|held| seq <= held)
        };
        match self.sharing.contains(&store) {
            true => self.sharing.iter().copied().find(keeps), // HISTORY-8
            false => Some(store).filter(keeps),
        }
    }

    fn of(&self, store: StoreId) -> &StoreHorizon {
        let named = self.stores.iter().find(|(one, _)| *one == store);
        named.map_or(&self.rest, |(_, horizon)| horizon)
    }

    fn all(&self) -> impl Iterator<Item = &StoreHorizon> {
        let named = self.stores.iter().map(|(_, horizon)| horizon);
        named.chain([&self.rest])
    }
}

/// A store, a commit, and how many blocks the store has retired by it.
type RetiredBlocks = (StoreId, CommitSeq, u64);

impl CatalogRetention<'_> {
    /// Up to which commit history may go at `now_ns`: what the retentions say, or somebody has
    /// given up, and what holds it. Without history the first is beyond all commits. O(log commits)
    /// for each retention.
    pub fn history_horizon(&self, now_ns: i64) -> Result<HistoryHorizon> {
        self.catalog.read(|reader| {
            let held = history::held(reader)?;
            let settings = retentions(reader)?;
            if settings.longest_ns() <= 0 {
                return Ok(HistoryHorizon {
                    held,
                    rest: StoreHorizon {
                        retained: CommitSeq(i64::MAX as u64),
                        is_guaranteed: settings.default.is_guaranteed,
                        held,
                    },
                    ..HistoryHorizon::default()
                });
            }
            let retained = |retention_ns: i64, store: Option<StoreId>| {
                retained(reader, now_ns, retention_ns, store)
            };
            let begins = history_begins(reader)?.0;
            let begun = of_stores(reader, BEGINS)?;
            let own = settings.stores.iter().map(|(store, _)| *store);
            let ahead = begun.iter().filter(|(_, at)| *at > signed(begins.0));
            let given = of_stores(reader, GIVEN_UP)?;
            let given = given.iter().filter_map(|(store, _)| *store);
            let named = ahead
                .filter_map(|(store, _)| *store)
                .chain(own)
                .chain(given);
            let mut stores = Vec::new();
            let mut ids: Vec<StoreId> = named.collect();
            ids.sort_unstable();
            ids.dedup();
            for store in ids {
                let retention = settings.of(store);
                let horizon = StoreHorizon {
                    retained: retained(retention.retention_ns, Some(store))?,
                    is_guaranteed: retention.is_guaranteed,
                    held: held_since(reader, begins_of(reader, store)?)?,
                };
                stores.push((store, horizon));
            }
            Ok(HistoryHorizon {
                held,
                rest: StoreHorizon {
                    retained: retained(settings.default.retention_ns, None)?,
                    is_guaranteed: settings.default.is_guaranteed,
                    held,
                },
                stores,
                sharing: sharing(reader)?,
                shortest_ns: settings.shortest_ns(),
            })
        })
    }

    /// The first whole commit up to which at least `blocks` blocks were retired that early expiry
    /// sets free; the newest one if all are not enough; `None` if there are none. O(rows retired up
    /// to there).
    pub fn find_retired(&self, blocks: u64, horizon: &HistoryHorizon) -> Result<Option<CommitSeq>> {
        self.catalog.read(|reader| {
            // Without stores of their own kind the index says it all.
            let (columns, is_even) = match horizon.stores.is_empty() {
                true => ("retired_seq, block_count, 0", true),
                false => ("retired_seq, block_count, store", false),
            };
            let mut list = reader
                .prepare_cached(&format!(
                    "SELECT {columns} FROM larder_extent WHERE retired_seq IS NOT NULL ORDER BY \
                     retired_seq"
                ))
                .at(extents::TABLE)?;
            let mut rows = list.query([]).at(extents::TABLE)?;
            let (mut found, mut last) = (0, None);
            while let Some(row) = rows.next().at(extents::TABLE)? {
                let seq = unsigned(row, 0).at(extents::TABLE)?;
                if found >= blocks && last != Some(seq) {
                    break;
                }
                let store = StoreId(row.get(2).at(extents::TABLE)?);
                if is_even || horizon.may_expire(store, CommitSeq(seq)) {
                    found += unsigned(row, 1).at(extents::TABLE)?;
                    last = Some(seq);
                }
            }
            drop(rows);
            let Some(last) = last else { return Ok(None) };
            let (_, whole) = search_moments(reader, |seq, _| seq.0 < last)?;
            Ok(Some(whole.map_or(CommitSeq(last), |(seq, _)| seq)))
        })
    }

    /// Blocks that early expiry would set free. O(retired rows).
    pub fn spare_blocks(&self, horizon: &HistoryHorizon) -> Result<u64> {
        let may_go = |(store, seq, _): &RetiredBlocks| horizon.may_expire(*store, *seq);
        let retired = self.retired_by_store()?;
        Ok(retired.into_iter().filter(may_go).map(|row| row.2).sum())
    }

    /// The store whose guarantee keeps most of the content that would go without one; `None`: no
    /// guarantee keeps any. O(retired rows).
    pub fn largest_guarantor(&self, horizon: &HistoryHorizon) -> Result<Option<StoreId>> {
        let mut kept: BTreeMap<StoreId, u64> = BTreeMap::new();
        if !horizon.all().any(|one| one.is_guaranteed) {
            return Ok(None);
        }
        for (store, seq, blocks) in self.retired_by_store()? {
            if let Some(guarantor) = horizon.guarantor(store, seq) {
                *kept.entry(guarantor).or_default() += blocks;
            }
        }
        let largest = kept.into_iter().max_by_key(|(_, blocks)| *blocks);
        Ok(largest.map(|(store, _)| store))
    }

    fn retired_by_store(&self) -> Result<Vec<RetiredBlocks>> {
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT store, retired_seq, sum(block_count) FROM larder_extent \
                 WHERE retired_seq IS NOT NULL GROUP BY store, retired_seq",
                [],
                |row| {
                    Ok((
                        StoreId(row.get(0)?),
                        CommitSeq(unsigned(row, 1)?),
                        unsigned(row, 2)?,
                    ))
                },
            )
            .at(extents::TABLE)
        })
    }
}

/// Up to which commit a retention lets the history of a store go.
fn retained(
    reader: &Connection,
    now_ns: i64,
    retention_ns: i64,
    store: Option<StoreId>,
) -> Result<CommitSeq> {
    let begins = history_begins(reader)?.0;
    let kept_ns = match retention_ns {
        ..=0 => KEPT_NS_MIN,
        _ => retention_ns,
    };
    let all = find_moment(reader, now_ns.saturating_sub(kept_ns))?.map_or(begins, |(seq, _)| seq);
    Ok(all.max(given_up(reader, store)?))
}
