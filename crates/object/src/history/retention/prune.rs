//! Pruning: history goes on somebody's word; and what it takes.
//!
//! What a prune frees is told exactly: content that only the history needs, and its rows in the
//! catalog, by store. A dry run counts what the real run then deletes, with the same statements.
//!
//! # Invariants
//! * `TIME-6` A prune goes up to what was asked for, but not past the oldest snapshot that stays,
//!   nor past a reader of the past; what stopped it is named. What has to wait for a session that
//!   still reads it goes when that is over, with the next commit that looks at the clock, of
//!   whichever session: the catalog remembers the cut.

use crate::engine::EngineRetention;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{HistoryUse, Moment, Retention, RetentionHorizons, SharedPages, SnapshotRow};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{CommitSeq, StoreId};
use std::time::Duration;

/// How often, and how long each time, a prune waits for other sessions' pins.
const PIN_WAITS_MAX: u32 = 80;
const PIN_WAIT: Duration = Duration::from_millis(25);

/// Up to where history shall go.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub enum PruneCut {
    /// All of it.
    #[default]
    All,
    /// What is older than this moment, whose state stays readable.
    OlderThan(Moment),
    /// What the retention does not keep: snapshots alone do.
    Retention,
}

/// What shall go.
#[derive(Debug, Clone, Default)]
pub struct PruneOptions {
    /// Up to where.
    pub cut: PruneCut,
    /// Of this store only, by its number; what others keep is not touched.
    pub store: Option<StoreId>,
    /// Snapshots to destroy before. None of them is held.
    pub destroys: Vec<String>,
    /// Only find out what would go.
    pub is_dry: bool,
}

/// What the history of one store takes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct StoreHistory {
    /// The store.
    pub store: StoreId,
    /// Its name; empty when it was destroyed.
    pub name: String,
    /// Content in segments, bytes.
    pub bytes: u64,
    /// Rows in the catalog.
    pub row_count: u64,
    /// Small content, maps and redo rows in these rows, bytes.
    pub row_bytes: u64,
}

/// How long one store keeps its history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct StoreRetention {
    /// The store.
    pub store: StoreId,
    /// Its name.
    pub name: String,
    /// Its own retention; `None`: it follows the database.
    pub own: Option<Retention>,
    /// The oldest commit whose state of this store can be read.
    pub begins_seq: CommitSeq,
    /// And its time, nanoseconds since 1970.
    pub begins_ns: i64,
}

/// What a prune did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PruneReport {
    /// Nothing was changed.
    pub is_dry: bool,
    /// Snapshots that are gone.
    pub destroyed: Vec<SnapshotRow>,
    /// What went, by store.
    pub freed: Vec<StoreHistory>,
    /// Pages of maps that clones shared and no map has any more; they belong to no store, and go
    /// with what all stores give up.
    pub freed_pages: SharedPages,
    /// The oldest commit whose state can be read now.
    pub begins_seq: CommitSeq,
    /// And its time, nanoseconds since 1970.
    pub begins_ns: i64,
    /// Stores that begin later, or keep their history for a time of their own.
    pub stores: Vec<StoreRetention>,
    /// What keeps history that was to go; `None`: all of it went.
    pub blocked_by: Option<String>,
    /// Another session still uses what went; it is free when that is over.
    pub is_waiting: bool,
}

/// What there is of history.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryReport {
    /// How long it is kept, of stores without a retention of their own.
    pub retention: Retention,
    /// The others, and those that begin later than the database.
    pub own: Vec<StoreRetention>,
    /// The oldest commit whose state can be read.
    pub begins_seq: CommitSeq,
    /// And its time, nanoseconds since 1970.
    pub begins_ns: i64,
    /// What a prune of all history would free now, by store.
    pub stores: Vec<StoreHistory>,
    /// And pages of maps that clones shared, of no store.
    pub pages: SharedPages,
    /// What would stop it.
    pub blocked_by: Option<String>,
}

impl EngineRetention<'_> {
    /// What history takes, by store: just what [`EngineRetention::prune`] of all of it would free,
    /// without destroying snapshots. Cost: reads the rows of the history.
    pub fn history_report(&self) -> Result<HistoryReport> {
        let retention = self.catalog.retention()?.retentions()?.default;
        let (begins_seq, begins_ns) = self.catalog.history()?.history_begins()?;
        let newest = self.catalog.tables().commit_seq()?;
        let snapshots = self.catalog.history()?.snapshots()?;
        let (cut, blocked_by) = self.limit(&RetentionHorizons::even(newest), &snapshots)?;
        Ok(HistoryReport {
            retention,
            own: self.store_retentions(&RetentionHorizons::default(), (begins_seq, begins_ns))?,
            begins_seq,
            begins_ns,
            stores: self.name_stores(self.catalog.retention()?.history_use(&cut)?)?,
            pages: self.catalog.survey().retired_pages(cut.base())?,
            blocked_by,
        })
    }

    /// Content that only history needs and nothing holds, bytes. O(rows of it).
    pub fn history_bytes(&self) -> Result<u64> {
        if !self.expiry().keeps_history() {
            return Ok(0);
        }
        let newest = self.catalog.tables().commit_seq()?;
        let (cut, _) = self.limit(
            &RetentionHorizons::even(newest),
            &self.catalog.history()?.snapshots()?,
        )?;
        Ok((self.catalog.retention()?.retired_blocks_by(&cut)?).saturating_mul(BLOCK_BYTES))
    }

    /// Lets history go (`TIME-6`). Errors: [`ErrorKind::InvalidInput`] without history, for a
    /// snapshot that is held, and a moment in the future; [`ErrorKind::NotFound`]: no such
    /// snapshot. O(what goes).
    pub fn prune(&self, options: &PruneOptions) -> Result<PruneReport> {
        self.past().require_history()?;
        let edit = self.edit()?;
        self.commits().commit_now()?;
        let mut left = self.catalog.history()?.snapshots()?;
        let mut destroyed = Vec::with_capacity(options.destroys.len());
        for name in &options.destroys {
            let found = left
                .iter()
                .position(|row| row.name.eq_ignore_ascii_case(name));
            let Some(at) = found else {
                return Err(Error::new(
                    ErrorKind::NotFound,
                    format!(
                        "there is no snapshot '{name}'; 'larder snapshot list' names those there \
                         are"
                    ),
                ));
            };
            if !left[at].holds.is_empty() {
                return Err(Error::new(
                    ErrorKind::InvalidInput,
                    format!(
                        "snapshot '{name}' is held by {}; release it first ('larder snapshot \
                         release')",
                        left[at].holds.join(", ")
                    ),
                ));
            }
            destroyed.push(left.remove(at));
        }
        let wanted = self.find_cut(&options.cut, options.store)?;
        let (cut, blocked_by) = self.limit(&wanted, &left)?;
        if !cut.is_even() {
            let _one_at_a_time = self.commit_lock.lock();
            self.name_sharers()?; // HISTORY-8; a dry run counts by them too.
        }
        let freed = self.name_stores(self.catalog.retention()?.history_use(&cut)?)?;
        let (begins_seq, begins_ns) = self
            .catalog
            .retention()?
            .moment_of(cut.base())?
            .max(self.catalog.history()?.history_begins()?);
        let mut report = PruneReport {
            is_dry: options.is_dry,
            destroyed,
            freed,
            freed_pages: self.catalog.survey().retired_pages(cut.base())?,
            begins_seq,
            begins_ns,
            stores: self.store_retentions(&cut, (begins_seq, begins_ns))?,
            blocked_by,
            is_waiting: false,
        };
        if options.is_dry {
            return Ok(report);
        }
        for row in &report.destroyed {
            self.catalog.history()?.destroy_snapshot(&row.name)?;
        }
        self.catalog.retention()?.give_up_history(&cut)?; // TIME-6
        self.expiry().give_up_until(cut.base());
        drop(edit);
        report.is_waiting = !self.settle_history(&cut)?;
        if !report.destroyed.is_empty() {
            self.end_kept_in_vain()?;
        }
        Ok(report)
    }

    /// The commits up to which was asked for.
    fn find_cut(&self, cut: &PruneCut, store: Option<StoreId>) -> Result<RetentionHorizons> {
        let now_ns = self.now_ns();
        let seq = match cut {
            PruneCut::All => self.known_seq(),
            PruneCut::Retention => {
                let retained = self
                    .catalog
                    .retention()?
                    .history_horizon(now_ns)?
                    .retained();
                return Ok(match store {
                    None => retained,
                    Some(store) => RetentionHorizons::of_one(store, retained.of(store)),
                });
            }
            // Before all that can be read: nothing is so old.
            PruneCut::OlderThan(Moment::At(at_ns)) if *at_ns <= now_ns => {
                match self.catalog.history()?.find_moment(*at_ns)? {
                    Some((seq, _)) => seq,
                    None => self.catalog.history()?.history_begins()?.0,
                }
            }
            PruneCut::OlderThan(moment) => self.catalog.past()?.resolve_moment(moment, now_ns)?.0,
        };
        Ok(match store {
            None => RetentionHorizons::even(seq),
            Some(store) => RetentionHorizons::of_one(store, seq),
        })
    }

    /// Up to where history can go that is wanted up to some commits, while these snapshots stay;
    /// and what is in the way.
    fn limit(
        &self,
        wanted: &RetentionHorizons,
        snapshots: &[SnapshotRow],
    ) -> Result<(RetentionHorizons, Option<String>)> {
        let readers = self.catalog.retention()?.past_readers()?;
        let holds: Vec<CommitSeq> = (snapshots.iter().map(|row| row.seq))
            .chain(readers.iter().map(|(_, seq)| *seq))
            .collect();
        let cuts = self.catalog.retention()?.limit_cuts(wanted, &holds)?;
        if !wanted.passes(&cuts) {
            return Ok((cuts, None));
        }
        // A hold that no store is shown by any more which it would keep from going is not in the
        // way.
        let stands = |seq: CommitSeq| seq < wanted.highest() && seq >= cuts.lowest_below(wanted);
        let snapshot = snapshots.iter().find(|row| stands(row.seq)).map(|row| {
            let held = match row.holds.is_empty() {
                true => String::new(),
                false => format!(", held by {},", row.holds.join(", ")),
            };
            let what = format!(
                "snapshot '{}'{held} keeps the history since commit {}",
                row.name, row.seq
            );
            (row.seq, what)
        });
        let reader = readers.iter().find(|(_, seq)| stands(*seq));
        let reader = reader.map(|(session, seq)| {
            let what = format!("session {session} reads the past as of commit {seq}");
            (*seq, what)
        });
        let first = snapshot.into_iter().chain(reader).min();
        Ok((cuts, first.map(|(_, what)| what)))
    }

    /// Stores with a retention of their own, and those that begin later than `begins` when the
    /// history has gone by `cuts`.
    fn store_retentions(
        &self,
        cuts: &RetentionHorizons,
        begins: (CommitSeq, i64),
    ) -> Result<Vec<StoreRetention>> {
        let retentions = self.catalog.retention()?.retentions()?;
        let stores = self.catalog.stores().rows()?;
        let mut found = Vec::new();
        for (store, seq, at_ns) in self.catalog.retention()?.store_beginnings()? {
            let goes_to = self.catalog.retention()?.moment_of(cuts.of(store))?;
            let (begins_seq, begins_ns) = goes_to.max((seq, at_ns)).max(begins);
            let own = retentions.own(store);
            if own.is_some() || begins_seq > begins.0 {
                let row = stores.iter().find(|row| row.store == store);
                found.push(StoreRetention {
                    store,
                    name: row.map_or_else(String::new, |row| row.name.clone()),
                    own,
                    begins_seq,
                    begins_ns,
                });
            }
        }
        Ok(found)
    }

    /// Commits until what was retired and superseded up to `cut` is gone, in steps between which
    /// others come in (`TIME-9`); `false` when somebody else keeps it.
    fn settle_history(&self, cut: &RetentionHorizons) -> Result<bool> {
        let mut waits_left = PIN_WAITS_MAX;
        loop {
            {
                let _edit = self.edit()?;
                self.commits().commit_now()?;
                if self.history.has_more() {
                    continue;
                }
                if !self.catalog.retention()?.has_retired_by(cut)?
                    && !self.catalog.retention()?.has_past_by(cut)?
                {
                    return Ok(true);
                }
            }
            if waits_left == 0 {
                return Ok(false);
            }
            waits_left -= 1;
            std::thread::sleep(PIN_WAIT);
        }
    }

    fn name_stores(&self, uses: Vec<HistoryUse>) -> Result<Vec<StoreHistory>> {
        let stores = self.catalog.stores().rows()?;
        let named = uses.into_iter().map(|one| StoreHistory {
            store: one.store,
            name: stores
                .iter()
                .find(|row| row.store == one.store)
                .map_or_else(String::new, |row| row.name.clone()),
            bytes: one.block_count.saturating_mul(BLOCK_BYTES),
            row_count: one.row_count,
            row_bytes: one.row_bytes,
        });
        Ok(named.collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engine::Engine;
    use crate::{EngineOptions, InitOptions};
    use larder_catalog::InodeRow;
    use larder_space::format::{FileKind, Ino};
    use std::sync::Arc;
    use std::sync::atomic::{AtomicI64, Ordering};
    use std::time::Instant;

    const HOUR_NS: i64 = 3_600_000_000_000;

    /// What another session still reads goes when it has ended; until then not every commit asks.
    #[test]
    fn commits_ask_now_and_then_whether_a_reader_is_gone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("db");
        let now_ns = Arc::new(AtomicI64::new(1_800_000_000_000_000_000));
        let clock = Arc::clone(&now_ns);
        let options = EngineOptions {
            has_background: false,
            clock: Some(Arc::new(move || clock.load(Ordering::SeqCst))),
            ..EngineOptions::default()
        };
        let init = InitOptions {
            capacity_bytes: Some(64 << 20),
            retention_ns: HOUR_NS,
            root_mode: 0o755,
            root_uid: 0,
            root_gid: 0,
            group: None,
        };
        Engine::create(&path, &init, &options).unwrap();
        let writer = Engine::open(&path, "writer", &options).unwrap();
        let root = writer.lookup().node(StoreId::MAIN, Ino::ROOT).unwrap();
        let row = InodeRow {
            kind: FileKind::File,
            nlink: 1,
            ..writer.lookup().row(&root).unwrap()
        };
        let guard = writer.namespace().write_guard().unwrap();
        let node = guard.insert(StoreId::MAIN, row, None).unwrap();
        guard.commit().unwrap();
        let rewrite = |salt: u8| {
            writer
                .content()
                .write(&node, 0, &vec![salt; 100_000])
                .unwrap();
            writer.commits().sync().unwrap();
            writer.expiry().prune_state()
        };
        rewrite(1);
        writer.commits().unlock_writer();
        let reader = Engine::open(&path, "reader", &options).unwrap();
        reader.commits().unlock_writer();
        let pinned = rewrite(2).1;
        now_ns.fetch_add(2 * HOUR_NS, Ordering::SeqCst);
        let pinned = rewrite(3).1.max(pinned);
        // The background commits never: who asks is one of these.
        let (asked, pruned) = rewrite(4);
        assert!(asked.is_some(), "the reader is in the way");
        for salt in 5..=9 {
            let found = rewrite(salt);
            assert_eq!(found.1, pruned, "TIME-6");
            assert!(found.0 == asked || asked < Some(Instant::now()));
        }
        writer.commits().unlock_writer();
        reader.close().unwrap();
        while writer.expiry().is_known_pinned() {
            std::thread::yield_now();
        }
        let (asked, pruned) = rewrite(0);
        assert!(asked.is_none() && pruned > pinned, "TIME-6");
        drop((node, root));
        writer.close().unwrap();
    }
}
