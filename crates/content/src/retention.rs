//! How long the past stays, what it takes, and letting it go: retention, keep-policies, prune.
//!
//! # Keep-policies
//! Those of restic: going from the newest snapshot back, `keep-last N` keeps the first N,
//! `keep-daily N` the newest of each of the N newest days that have one, and so on; one that any
//! rule keeps stays. The oldest snapshot counts as one of a time of its own, so a rule that has not
//! kept its number yet keeps it. Days, weeks (from Monday), months and years are those of UTC, of
//! the time when the snapshot was made.

use crate::rooms::{History, Stores};
use larder_object::format::Ino;
use larder_object::utc;
use larder_object::{
    Error, ErrorKind, HistoryReport, PruneCut, PruneOptions, PruneReport, Result, Retention,
    SnapshotRow,
};

/// Which snapshots stay: so many of each kind. [`KeepPolicy::ALL`]: without a limit.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct KeepPolicy {
    /// The newest ones.
    pub last: u32,
    /// The newest of an hour.
    pub hourly: u32,
    /// The newest of a day.
    pub daily: u32,
    /// The newest of a week.
    pub weekly: u32,
    /// The newest of a month.
    pub monthly: u32,
    /// The newest of a year.
    pub yearly: u32,
}

impl KeepPolicy {
    /// Without a limit.
    pub const ALL: u32 = u32::MAX;

    /// For each snapshot whether it stays. Snapshots in any order. O(n log n).
    pub fn keeps(&self, snapshots: &[SnapshotRow]) -> Vec<bool> {
        let mut order: Vec<usize> = (0..snapshots.len()).collect();
        order.sort_by_key(|&at| {
            let row = &snapshots[at];
            std::cmp::Reverse((row.created_ns, row.seq, at))
        });
        let mut rules: Vec<(u32, Span, Option<i64>)> = [
            (self.last, Span::Each),
            (self.hourly, Span::Hour),
            (self.daily, Span::Day),
            (self.weekly, Span::Week),
            (self.monthly, Span::Month),
            (self.yearly, Span::Year),
        ]
        .map(|(count, span)| (count, span, None))
        .to_vec();
        let mut keeps = vec![false; snapshots.len()];
        for (nth, &at) in order.iter().enumerate() {
            let is_oldest = nth + 1 == order.len();
            for (count, span, last) in rules.iter_mut().filter(|(count, ..)| *count > 0) {
                let value = span.number(snapshots[at].created_ns, nth);
                if *last == Some(value) && !is_oldest {
                    continue;
                }
                keeps[at] = true;
                *last = Some(value);
                if *count != KeepPolicy::ALL {
                    *count -= 1;
                }
            }
        }
        keeps
    }
}

/// What has one snapshot of it kept.
#[derive(Debug, Clone, Copy)]
enum Span {
    Each,
    Hour,
    Day,
    Week,
    Month,
    Year,
}

impl Span {
    /// Which of these a time is in.
    fn number(self, at_ns: i64, nth: usize) -> i64 {
        const HOUR_NS: i64 = 3_600_000_000_000;
        let day = at_ns.div_euclid(24 * HOUR_NS);
        match self {
            Span::Each => nth as i64,
            Span::Hour => at_ns.div_euclid(HOUR_NS),
            Span::Day => day,
            // 1970-01-01 was a Thursday.
            Span::Week => (day + 3).div_euclid(7),
            Span::Month => utc::months(at_ns),
            Span::Year => utc::months(at_ns).div_euclid(12),
        }
    }
}

/// What a prune with a policy did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Pruned {
    /// What went.
    pub report: PruneReport,
    /// Snapshots that the policy does not keep, and a hold does.
    pub held: Vec<SnapshotRow>,
}

impl From<PruneReport> for Pruned {
    fn from(report: PruneReport) -> Pruned {
        Pruned {
            report,
            held: Vec::new(),
        }
    }
}

impl History<'_> {
    /// How long the past stays, of stores without a retention of their own.
    pub fn retention(&self) -> Result<Retention> {
        Ok(self
            .database
            .whole()?
            .retention()
            .find_retentions()?
            .default)
    }

    /// Sets how long the past stays, for all sessions at once, of stores without a retention of
    /// their own; what is older goes with the next commits. Off (0) forgets the past, unless a
    /// store keeps its own, and is refused while a snapshot or a reader of the past needs it.
    pub fn set_retention(&self, retention: Retention) -> Result<()> {
        self.database.whole()?.retention().set_retention(retention)
    }

    /// How long the past of one store stays, by its name, where it has a retention of its own;
    /// `None`: it follows the database.
    pub fn store_retention(&self, store: &str) -> Result<Option<Retention>> {
        let store = self.database.find_store(store)?;
        Ok(self
            .database
            .whole()?
            .retention()
            .find_retentions()?
            .own(store))
    }

    /// Sets how long the past of one store stays, for all sessions at once; `None`: as long as that
    /// of the database. Its history begins at its own retention horizon: a look at an older moment
    /// is refused with that time. What other stores keep is not touched. 0: only what snapshots
    /// show, and the last 5 s. What belongs to no store, rows of tracked tables and the times of
    /// commits, stays as long as the longest retention. Errors: [`ErrorKind::NotFound`]: no such
    /// store; [`ErrorKind::InvalidInput`] for one that shows another store, and where no history is
    /// kept afterwards while a snapshot needs it.
    pub fn set_store_retention(&self, store: &str, retention: Option<Retention>) -> Result<()> {
        let store = self.database.find_store(store)?;
        self.database
            .whole()?
            .retention()
            .set_store_retention(store, retention)
    }

    /// What the past takes, by store: just what [`History::prune`] of all of it would free. Cost:
    /// reads the rows of the history.
    pub fn report(&self) -> Result<HistoryReport> {
        self.database.whole()?.retention().history_report()
    }

    /// Lets the past go, up to `cut`; with a policy after destroying the snapshots that it does not
    /// keep, held ones excepted. What stays of snapshots keeps what came after it. A dry run
    /// (`is_dry`) says what would go.
    pub fn prune(
        &self,
        cut: PruneCut,
        policy: Option<&KeepPolicy>,
        is_dry: bool,
    ) -> Result<Pruned> {
        let engine = self.database.whole()?;
        let mut destroys = Vec::new();
        let mut held = Vec::new();
        if let Some(policy) = policy {
            let snapshots = engine.moment().snapshots()?;
            let keeps = policy.keeps(&snapshots);
            for (row, _) in snapshots.into_iter().zip(keeps).filter(|(_, keep)| !keep) {
                match row.holds.is_empty() {
                    true => destroys.push(row.name),
                    false => held.push(row),
                }
            }
        }
        let report = engine.retention().prune(&PruneOptions {
            cut,
            destroys,
            is_dry,
            ..PruneOptions::default()
        })?;
        Ok(Pruned { report, held })
    }

    /// Lets the past of one store go, by its name, up to `cut`, but for what snapshots and readers
    /// of the past show of it. What other stores keep is not touched. A dry run (`is_dry`) says
    /// what would go.
    pub fn prune_store(&self, store: &str, cut: PruneCut, is_dry: bool) -> Result<PruneReport> {
        let store = self.database.find_store(store)?;
        self.database.whole()?.retention().prune(&PruneOptions {
            cut,
            store: Some(store),
            destroys: Vec::new(),
            is_dry,
        })
    }
}

impl Stores<'_> {
    /// The name of the store that is mounted at a path. [`ErrorKind::InvalidInput`]: none is.
    pub fn at(&self, path: &[u8]) -> Result<String> {
        let node = self.database.nodes().resolve(path, false)?.node;
        let stores = self.database.read_stores();
        let found = stores.iter().find(|one| one.row.store == node.store);
        match found.filter(|_| node.ino == Ino::ROOT) {
            Some(one) => Ok(one.row.name.clone()),
            None => Err(Error::new(
                ErrorKind::InvalidInput,
                format!(
                    "'{}' is not where a store is mounted; 'larder store list' names them",
                    String::from_utf8_lossy(path)
                ),
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::parse_moment;
    use larder_object::Moment;
    use larder_object::format::CommitSeq;

    fn rows(times: &[&str]) -> Vec<SnapshotRow> {
        let at_ns = |text: &str| match parse_moment(text, 0).unwrap() {
            Moment::At(at_ns) => at_ns,
            other => panic!("{other:?}"),
        };
        let row = |(nth, text): (usize, &&str)| SnapshotRow {
            name: format!("s{nth}"),
            seq: CommitSeq(nth as u64),
            at_ns: at_ns(text),
            created_ns: at_ns(text),
            holds: Vec::new(),
        };
        times.iter().enumerate().map(row).collect()
    }

    fn kept(policy: KeepPolicy, times: &[&str]) -> Vec<String> {
        let keeps = policy.keeps(&rows(times));
        let kept = times.iter().zip(keeps).filter(|(_, keep)| *keep);
        kept.map(|(time, _)| (*time).to_owned()).collect()
    }

    /// The examples of restic's own documentation of `forget` hold here.
    #[test]
    fn policies_keep_what_restics_keep() {
        let times = [
            "2024-12-29T10:00", // A Sunday.
            "2024-12-30T09:00", // The week of 2025-01-01 begins.
            "2024-12-30T23:59",
            "2024-12-31T00:00",
            "2025-01-01T08:00",
            "2025-01-01T08:30",
            "2025-01-05T12:00",
            "2025-01-06T12:00",
        ];
        let none = KeepPolicy::default();
        assert!(kept(none, &times).is_empty());
        let last = KeepPolicy { last: 2, ..none };
        assert_eq!(kept(last, &times), &times[6..]);
        let all = KeepPolicy {
            last: KeepPolicy::ALL,
            ..none
        };
        assert_eq!(kept(all, &times), &times);
        let hourly = KeepPolicy { hourly: 3, ..none };
        assert_eq!(kept(hourly, &times), &times[5..]);
        let daily = KeepPolicy { daily: 4, ..none };
        assert_eq!(
            kept(daily, &times),
            [times[3], times[5], times[6], times[7]]
        );
        // Weeks from Monday, over the end of the year.
        let weekly = KeepPolicy { weekly: 3, ..none };
        assert_eq!(kept(weekly, &times), [times[0], times[6], times[7]]);
        let monthly = KeepPolicy { monthly: 2, ..none };
        assert_eq!(kept(monthly, &times), [times[3], times[7]]);
        // Two of the three are there; the third goes to the oldest.
        let monthly = KeepPolicy { monthly: 3, ..none };
        assert_eq!(kept(monthly, &times), [times[0], times[3], times[7]]);
        let yearly = KeepPolicy { yearly: 1, ..none };
        assert_eq!(kept(yearly, &times), [times[7]]);
        let both = KeepPolicy {
            last: 1,
            daily: 2,
            ..none
        };
        assert_eq!(kept(both, &times), [times[6], times[7]]);
    }

    #[test]
    fn months_are_those_of_the_calendar() {
        let month = |text: &str| Span::Month.number(rows(&[text])[0].created_ns, 0);
        assert_eq!(month("1970-01-01"), 1970 * 12);
        assert_eq!(month("2024-02-29"), 2024 * 12 + 1);
        assert_eq!(month("2024-12-31"), month("2025-01-01") - 1);
        assert_eq!(month("1999-03-01"), 1999 * 12 + 2);
    }
}
