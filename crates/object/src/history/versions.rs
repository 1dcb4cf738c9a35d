//! Reading the history of single inodes, for those above.

use crate::engine::EngineHistory;
use crate::view::{View, ViewMoment};
use crate::{Error, Result};
use larder_catalog::{HistoryReader, LogFlush, PastRows, SnapshotRow, StoreColumns, TemporalTable};
use larder_space::format::StoreId;
use std::sync::atomic::Ordering;

impl ViewMoment<'_> {
    /// Calls `work` with a reader of the history.
    /// [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) where the database keeps none.
    /// The reader sees one state, whoever commits meanwhile.
    pub fn read_history<T>(&self, work: impl FnOnce(&HistoryReader<'_>) -> Result<T>) -> Result<T> {
        self.check_running()?;
        self.catalog.history()?.read_history::<T, Error>(work)
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        Ok(self.catalog.history()?.snapshots()?)
    }

    /// The temporal tables, by name.
    pub fn temporal_tables(&self) -> Result<Vec<TemporalTable>> {
        Ok(self.catalog.temporal()?.temporal_tables()?)
    }

    /// Whether both show the same database, maybe at two moments. Copies of a database are others.
    pub fn is_of_one_database(&self, other: &View) -> bool {
        self.session.info.database_id == other.session.info.database_id
            && self.session.path == other.session.path
    }
}

impl EngineHistory<'_> {
    /// Calls `work` with a reader of the history, which holds everything that ended before in this
    /// process. [`ErrorKind::InvalidInput`](crate::ErrorKind::InvalidInput) where the database
    /// keeps none. The reader sees one state, whoever commits meanwhile.
    pub fn read_history<T>(&self, work: impl FnOnce(&HistoryReader<'_>) -> Result<T>) -> Result<T> {
        self.check_running()?;
        self.commits().sync_own()?;
        self.view.moment().read_history(work)
    }

    /// Makes a table of the user's temporal, or lets it go, durably.
    pub fn track_table(&self, table: &str, is_tracked: bool) -> Result<()> {
        self.require_writable()?;
        let _edit = self.edit()?;
        self.commits().commit_now()?;
        Ok(self.catalog.temporal()?.track_table(table, is_tracked)?)
    }

    /// How to read a temporal table as `past` shows it, and to restore it, in SQL for this engine's
    /// connection.
    pub fn past_rows(&self, past: &View, table: &str) -> Result<PastRows> {
        match past.moment().asked_ns() {
            Some((seq, at_ns)) => Ok(self.catalog.temporal()?.past_rows(table, seq, at_ns)?),
            None => Err(Error::new(
                crate::ErrorKind::InvalidInput,
                "the present has no rows of the past; open a moment with 'as_of'",
            )),
        }
    }

    /// How to read the user's columns of a store as `source` shows them, and to give them to files,
    /// in SQL for this engine's connection; `None`: there are none, or they are not kept since
    /// then.
    pub fn columns_in(&self, source: &View, store: StoreId) -> Result<Option<StoreColumns>> {
        match source.moment().asked_ns() {
            Some((seq, at_ns)) => Ok(self.catalog.temporal()?.past_columns(store, seq, at_ns)?),
            None => Ok(self.catalog.temporal()?.present_columns(store)?),
        }
    }

    /// The newest row of the history, as the transaction that this engine serves sees it.
    pub fn newest_record(&self) -> Result<i64> {
        Ok(self.catalog.temporal()?.newest_record()?)
    }

    /// Notes which rows the transaction that this engine serves has restored: those whose records
    /// are newer than `after`.
    pub fn mark_restored(&self, rows: &PastRows, after: i64) -> Result<()> {
        Ok(self.catalog.temporal()?.mark_restored(rows, after)?)
    }

    /// What plain SQL did to rows of temporal tables gets a moment of its own before this engine
    /// commits more. What fails is no reason not to commit: it counts to that commit then.
    pub(crate) fn settle_rows(&self) {
        if !self.expiry().keeps_history() {
            return;
        }
        let now_ns = self.now_ns();
        match (self.catalog.temporal()).and_then(|tables| tables.settle_rows(now_ns)) {
            Ok(None) => {}
            Ok(Some(seq)) => self.known_seq.store(seq.0, Ordering::SeqCst),
            Err(error) => tracing::warn!("rows that SQL changed have no moment: {error}"),
        }
    }

    /// Commits the transaction in the catalog; it may owe its flush (`may_share`). What SQL did in
    /// it is a commit though there was no step.
    pub(crate) fn commit_sql(&self, may_share: bool) -> Result<LogFlush> {
        if self.expiry().keeps_history() {
            self.catalog.temporal()?.settle_sql(self.now_ns())?;
        }
        Ok(self.catalog.transaction()?.commit(may_share)?)
    }
}
