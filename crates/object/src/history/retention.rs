//! Changing how long history is kept, and what follows from it for space.
//!
//! # Invariants
//! * `TIME-8` A store gives up what is older than its own retention, or the database's where it has
//!   none, and under pressure the oldest first across all stores; what one gives up, no other
//!   loses. A store whose retention is guaranteed gives up nothing early. *Guard*: each store has a
//!   cut of its own in the catalog's `RetentionHorizons`, and reclaim goes by them (`HISTORY-7`).

pub(crate) mod horizon;
pub(crate) mod prune;

use crate::engine::{EngineRetention, lock};
use crate::history::as_of::AsOf;
use crate::view::ViewMoment;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{InodeRow, Retention, Retentions};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{CommitSeq, Ino, MapPage, StoreId};
use std::collections::BTreeSet;
use std::sync::atomic::Ordering;

const NO_RETENTION: &str =
    "the retention cannot be changed in a long transaction; do that outside of it";

impl ViewMoment<'_> {
    /// Whether a store can be read as of the moment that it shows: else an error that names where
    /// its history begins ([`ErrorKind::InvalidInput`]).
    pub fn require_reach(&self, store: StoreId) -> Result<()> {
        Ok(self.catalog.retention()?.require_reach(store)?)
    }
}

impl AsOf {
    /// The root of a store that cannot be read as of the moment that it shows, as it is now;
    /// `None`: the store can.
    pub fn unreached_root(&self, store: StoreId) -> Result<Option<InodeRow>> {
        let host = self.present();
        match self.moment().require_reach(store) {
            Err(error) if error.kind() == ErrorKind::InvalidInput => {
                let root = host.lookup().node(store, Ino::ROOT)?;
                Ok(Some(host.lookup().row(&root)?))
            }
            Err(error) => Err(error),
            Ok(()) => Ok(None),
        }
    }

    /// Whether a store cannot be read as of the moment that it shows though it was there: its
    /// history begins later. One that was made after the moment was not there.
    pub fn is_behind(&self, store: StoreId) -> Result<bool> {
        let shown_ns = self.moment().shows().map_or(i64::MAX, |(_, at_ns)| at_ns);
        let root = self.unreached_root(store)?;
        Ok(root.is_some_and(|root| root.btime_ns <= shown_ns))
    }
}

impl EngineRetention<'_> {
    /// The longest retention, and whether that of the stores without one of their own is
    /// guaranteed, as this engine knows them (`TIME-3`).
    pub fn of_database(&self) -> Retention {
        let known = match &self.private {
            Some(private) => &private.host.history,
            None => &self.history,
        };
        Retention {
            retention_ns: known.retention_ns.load(Ordering::SeqCst),
            is_guaranteed: known.is_guaranteed.load(Ordering::SeqCst),
        }
    }

    /// How long history is kept, as the catalog has it now.
    pub fn find_retentions(&self) -> Result<Retentions> {
        Ok(self.catalog.retention()?.retentions()?)
    }

    /// Another session may have changed it.
    pub(crate) fn learn_retention(&self) -> Result<()> {
        if self.session.workspace.is_some() {
            return Ok(());
        }
        let found = self.catalog.retention()?.retentions()?;
        let mut known = lock(&self.history.retentions);
        if known.as_ref() == Some(&found) {
            return Ok(());
        }
        let is_first = known.is_none() && found.stores.is_empty() && {
            let now = self.of_database();
            (now.retention_ns, now.is_guaranteed)
                == (found.longest_ns(), found.default.is_guaranteed)
        };
        self.history
            .retention_ns
            .store(found.longest_ns(), Ordering::SeqCst);
        self.history
            .is_guaranteed
            .store(found.default.is_guaranteed, Ordering::SeqCst);
        *known = Some(found);
        drop(known);
        if !is_first {
            self.expiry().forget_early_expiry();
        }
        Ok(())
    }

    /// Sets how long history is kept, for all sessions, of the stores without a retention of their
    /// own; what is over by then goes with the next commits. Where no store keeps any then it is
    /// off: the history is deleted, which is refused while a snapshot or a reader of the past needs
    /// it ([`ErrorKind::InvalidInput`]).
    pub fn set_retention(&self, wanted: Retention) -> Result<()> {
        self.change_retention(None, Some(wanted))
    }

    /// The same of one store, by its number; `None`: it follows the database again. What its
    /// history has lost does not come back. Errors also: [`ErrorKind::InvalidInput`] for a store
    /// that shows another one. Cost for the first store: reads the maps in the history.
    pub fn set_store_retention(&self, store: StoreId, wanted: Option<Retention>) -> Result<()> {
        self.change_retention(Some(store), wanted)
    }

    fn change_retention(&self, store: Option<StoreId>, wanted: Option<Retention>) -> Result<()> {
        self.workspace().require_parent(NO_RETENTION)?;
        if wanted.is_some_and(|wanted| wanted.retention_ns < 0) {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a retention is a length of time, or 0",
            ));
        }
        self.change_settings(|now_ns| {
            if store.is_some() {
                self.name_sharers()?;
            }
            Ok(Some(
                self.catalog
                    .retention()?
                    .set_retention(store, wanted, now_ns)?,
            ))
        })
    }

    /// Alone, without a commit under way: `change` returns the newest commit, or `None` where it
    /// has changed nothing.
    fn change_settings(&self, change: impl FnOnce(i64) -> Result<Option<CommitSeq>>) -> Result<()> {
        let _alone = self.alone()?;
        self.commits().commit_now()?;
        let _no_commit = self.commit_lock.lock();
        let Some(seq) = change(self.now_ns())? else {
            return self.learn_retention();
        };
        self.learn_retention()?;
        self.known_seq.store(seq.0, Ordering::SeqCst);
        self.space().reload_space()
    }

    /// A snapshot is going to be made: where no history is kept, it begins.
    pub(crate) fn keep_for_snapshots(&self) -> Result<()> {
        self.learn_retention()?;
        if self.expiry().keeps_history() {
            return Ok(());
        }
        self.workspace().require_parent(
            "a snapshot cannot be made in a long transaction; do that outside of it",
        )?;
        self.change_settings(|now_ns| Ok(self.catalog.retention()?.keep_for_snapshots(now_ns)?))
    }

    /// A snapshot has gone: history that was kept for snapshots alone goes with the last one.
    pub(crate) fn end_kept_in_vain(&self) -> Result<()> {
        match self.session.workspace.is_none() && self.catalog.retention()?.is_kept_in_vain()? {
            true => self.change_settings(|now_ns| {
                Ok(self.catalog.retention()?.end_kept_in_vain(now_ns)?)
            }),
            false => Ok(()),
        }
    }

    /// Has all stores named that have shared content, before one of them goes ahead (`HISTORY-8`).
    /// With the writer lock and the lock of the commits. Cost: the first time it reads the maps in
    /// the history.
    pub(crate) fn name_sharers(&self) -> Result<()> {
        if self.catalog.retention()?.are_sharers_named()? {
            return Ok(());
        }
        let known: Vec<StoreId> = self.stores_that_shared()?.into_iter().collect();
        Ok(self.catalog.retention()?.name_sharers(&known)?)
    }

    /// Stores that have content in their history that an object of another store came to own
    /// (`HISTORY-8`). Cost: reads the maps in the history.
    fn stores_that_shared(&self) -> Result<BTreeSet<StoreId>> {
        const BATCH: usize = 256;
        let (mut found, mut after) = (BTreeSet::new(), 0);
        loop {
            let maps = self.catalog.history()?.superseded_maps(after, BATCH)?;
            for map in &maps {
                after = map.row;
                let page = MapPage::decode(&map.runs).map_err(|error| {
                    Error::with_source(
                        ErrorKind::Corrupt,
                        "a map in the history cannot be read; run 'larder check'",
                        error,
                    )
                })?;
                let at = CommitSeq(map.until.0.saturating_sub(1));
                for run in page.runs() {
                    for place in self.moment().places_of(&run.extent, at)? {
                        let owners = self.catalog.space().stores_under(&place)?;
                        let others = owners.into_iter().filter(|owner| *owner != map.store);
                        found.extend(others.flat_map(|owner| [owner, map.store]));
                    }
                }
            }
            if maps.len() < BATCH {
                return Ok(found);
            }
        }
    }

    // ---- space ------------------------------------------------------------------------------

    /// Why there is no room, and what helps.
    pub(crate) fn why_full(&self) -> Result<String> {
        let is_kept =
            self.expiry().keeps_history() && self.free_space().space.quarantined_blocks() > 0;
        if is_kept && let Some(why) = self.why_guaranteed()? {
            return Ok(why);
        }
        if is_kept
            && self
                .catalog
                .retention()?
                .history_horizon(self.now_ns())?
                .held
                .is_some()
        {
            return Ok(
                "the database is full, and snapshots or readers of the past hold its history; \
                 destroy some \
                 ('larder snapshot list'), delete something, or raise the capacity"
                    .into(),
            );
        }
        Ok("the database is full; delete something or raise the capacity".into())
    }

    /// Whose guarantee keeps content, if any does, and what helps.
    fn why_guaranteed(&self) -> Result<Option<String>> {
        let Some(guarantor) = self.find_guarantor()? else {
            return Ok(None);
        };
        let retentions = self.catalog.retention()?.retentions()?;
        let (of, place) = match retentions.own(guarantor) {
            None => (String::new(), "DB".to_owned()),
            Some(_) => {
                let stores = self.catalog.stores().rows()?;
                let row = stores.into_iter().find(|row| row.store == guarantor);
                let row = row.map_or_else(Default::default, |row| (row.name, row.mount));
                (format!(" of store '{}'", row.0), format!("DB:{}", row.1))
            }
        };
        let seconds = retentions.of(guarantor).retention_ns / 1_000_000_000;
        Ok(Some(format!(
            "the database is full, and the history of the last {seconds} s{of} is guaranteed; \
             give some up ('larder \
             prune'), end the guarantee ('larder retention {place} {seconds}s --best-effort'), or \
             raise the capacity"
        )))
    }

    /// The store whose guarantee keeps most content that would go without one; `None`: no guarantee
    /// keeps any.
    pub(crate) fn find_guarantor(&self) -> Result<Option<StoreId>> {
        let horizon = self.catalog.retention()?.history_horizon(self.now_ns())?;
        Ok(self.catalog.retention()?.largest_guarantor(&horizon)?)
    }

    /// How much of `retired_bytes` history gives up when somebody needs it: nothing where something
    /// is held, unless stores have retentions of their own; then it is counted.
    pub(crate) fn spare_history_bytes(&self, retired_bytes: u64) -> Result<u64> {
        if !self.expiry().keeps_history() {
            return Ok(0);
        }
        let horizon = self.catalog.retention()?.history_horizon(self.now_ns())?;
        if !horizon.stores.is_empty() {
            return Ok(
                (self.catalog.retention()?.spare_blocks(&horizon)?).saturating_mul(BLOCK_BYTES)
            );
        }
        match horizon.is_spare() {
            true => Ok(retired_bytes),
            false => Ok(0),
        }
    }
}
