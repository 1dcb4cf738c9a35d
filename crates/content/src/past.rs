//! The database at another moment: reading what commits have superseded ([DBFS] "temporality").
//!
//! `CONTENT-9` What [`Database::as_of`] returns shows one whole commit, byte for byte, for as long as it is open, and
//! refuses every change with [`ErrorKind::ReadOnly`].

use crate::database::{Database, Shared};
use crate::readonly::ReadonlyProvider;
use larder_object::{Engine, Error, ErrorKind, Moment, Result, SnapshotRow};
use std::collections::HashMap;
use std::sync::{Arc, RwLock};

/// Nanoseconds in the units that a distance in time is given in.
const UNITS: [(&str, i64); 6] = [
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("w", 604_800_000_000_000),
    ("y", 31_536_000_000_000_000),
];

/// The moment that a text names: `seq:1234`; `-90s`, `-5m`, `-1h`, `-2d`, `-1w`, `-1y` before `now_ns`; a time in UTC,
/// `2026-11-20T10:00:00Z`, with or without seconds, their parts, and the `Z`; a day, `2026-11-20`, its first
/// moment; anything else names a snapshot. `now_ns`: nanoseconds since 1970.
pub fn parse_moment(text: &str, now_ns: i64) -> Result<Moment> {
    let refuse = |why: &str| {
        Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "'{text}' is no moment: {why}; write 2026-11-20T10:00:00Z, -1h, seq:1234, or the name of a snapshot"
            ),
        ))
    };
    if let Some(number) = text.strip_prefix("seq:") {
        return match number.parse() {
            Ok(seq) => Ok(Moment::Seq(seq)),
            Err(_) => refuse("after 'seq:' comes the number of a commit"),
        };
    }
    if let Some(distance) = text.strip_prefix('-') {
        let unit = UNITS
            .iter()
            .find(|(unit, _)| distance.strip_suffix(unit).is_some());
        let Some((unit, unit_ns)) = unit else {
            return refuse("a distance in time ends with s, m, h, d, w or y");
        };
        let count: Option<i64> = distance[..distance.len() - unit.len()]
            .parse::<u32>()
            .ok()
            .map(i64::from);
        return match count.and_then(|count| count.checked_mul(*unit_ns)) {
            Some(back_ns) => Ok(Moment::At(now_ns.saturating_sub(back_ns))),
            None => refuse("before the unit comes a whole number"),
        };
    }
    if text.starts_with(|c: char| c.is_ascii_digit()) {
        return match parse_time(text) {
            Some(at_ns) => Ok(Moment::At(at_ns)),
            None => refuse("the time is not well formed"),
        };
    }
    match text.is_empty() {
        true => refuse("it is empty"),
        false => Ok(Moment::Snapshot(text.into())),
    }
}

/// Nanoseconds since 1970 of `YYYY-MM-DD[THH:MM[:SS[.FFFFFFFFF]]][Z]`.
fn parse_time(text: &str) -> Option<i64> {
    let text = text.strip_suffix('Z').unwrap_or(text);
    let (day, clock) = text
        .split_once(['T', ' '])
        .map_or((text, None), |(day, clock)| (day, Some(clock)));
    let number = |text: &str, digits: usize, max: i64| {
        let is_good = text.len() == digits && text.bytes().all(|byte| byte.is_ascii_digit());
        is_good
            .then(|| text.parse::<i64>().ok())
            .flatten()
            .filter(|&value| value <= max)
    };
    let mut parts = day.split('-');
    let year = number(parts.next()?, 4, 9999)?;
    let month = number(parts.next()?, 2, 12).filter(|&month| month > 0)?;
    let day = number(parts.next()?, 2, days_of(year, month)).filter(|&day| day > 0)?;
    if parts.next().is_some() {
        return None;
    }
    let mut of_day_ns = 0;
    if let Some(clock) = clock {
        let mut parts = clock.split(':');
        let hour = number(parts.next()?, 2, 23)?;
        let minute = number(parts.next()?, 2, 59)?;
        of_day_ns = (hour * 3600 + minute * 60) * 1_000_000_000;
        if let Some(seconds) = parts.next() {
            let (whole, part) = seconds
                .split_once('.')
                .map_or((seconds, None), |(whole, part)| (whole, Some(part)));
            of_day_ns += number(whole, 2, 59)? * 1_000_000_000;
            if let Some(part) = part {
                let is_good = (1..=9).contains(&part.len());
                let digits = is_good.then(|| format!("{part:0<9}"))?;
                of_day_ns += number(&digits, 9, i64::MAX)?;
            }
        }
        if parts.next().is_some() {
            return None;
        }
    }
    // Days from civil (Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms").
    let shifted_year = if month <= 2 { year - 1 } else { year };
    let era = shifted_year.div_euclid(400);
    let of_era = shifted_year.rem_euclid(400);
    let of_year = (153 * (month + if month > 2 { -3 } else { 9 }) + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    // Beyond the year 2262: as far as the clock goes.
    Some(
        days.saturating_mul(86_400_000_000_000)
            .saturating_add(of_day_ns),
    )
}

fn days_of(year: i64, month: i64) -> i64 {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    match month {
        4 | 6 | 9 | 11 => 30,
        2 => 28 + i64::from(is_leap),
        _ => 31,
    }
}

impl Database {
    /// This database at a moment, for reading: names, attributes, extended attributes and content as the newest
    /// whole commit at or before it left them; the stores are those of the present, user columns are not shown.
    /// What ended before in this process counts. Cost: about 3 ms; it keeps what it shows from being reclaimed
    /// until its last clone goes. Errors: [`ErrorKind::InvalidInput`] before the history begins, in the future, and
    /// where the database keeps no history; [`ErrorKind::NotFound`]: no such snapshot.
    pub fn as_of(&self, moment: &Moment) -> Result<Database> {
        let engine = Engine::open_as_of(self.whole()?, moment)?;
        let mut factories: HashMap<_, _> = HashMap::new();
        for (name, factory) in self.shared.factories.iter() {
            let (factory, host) = (Arc::clone(factory), self.clone());
            let of_the_past: crate::ProviderFactory = Arc::new(move |context| {
                let _stays_open = &host; // As long as anybody has its past.
                Arc::new(ReadonlyProvider::of_the_past(factory(context)))
            });
            factories.insert(name.clone(), of_the_past);
        }
        let past = Database {
            shared: Arc::new(Shared {
                engine,
                factories: Arc::new(factories),
                stores: RwLock::default(),
                pool: Arc::default(),
                turnstile: None,
                owns_engine: true,
            }),
        };
        past.reload_stores()?;
        Ok(past)
    }

    /// Whether this has a past: the database has a retention, and this is no long transaction's view of it.
    pub fn keeps_history(&self) -> bool {
        self.shared.engine.keeps_history()
    }

    /// The commit that a moment means, and its time, nanoseconds since 1970: as [`Database::as_of`], without opening it,
    /// so that it may be reclaimed. Cost: a few lookups, and a commit if anything waits for one.
    pub fn resolve_moment(&self, moment: &Moment) -> Result<(u64, i64)> {
        let (seq, at_ns) = self.whole()?.resolve_moment(moment)?;
        Ok((seq.0, at_ns))
    }

    /// The commit that this shows, and its time, nanoseconds since 1970; `None`: the present.
    pub fn shows(&self) -> Option<(u64, i64)> {
        let (seq, at_ns) = self.shared.engine.shows()?;
        Some((seq.0, at_ns))
    }

    /// The present of the database's clock, nanoseconds since 1970.
    pub fn now_ns(&self) -> i64 {
        self.shared.engine.now_ns()
    }

    /// Gives the present a name, durably: it can be read as [`Moment::Snapshot`] until it is destroyed, whatever the
    /// retention says. A name begins with a letter and has letters, digits, `_`, `-` and `.`. Cost: one commit.
    pub fn create_snapshot(&self, name: &str) -> Result<SnapshotRow> {
        self.whole()?.create_snapshot(name)
    }

    /// All snapshots, oldest first.
    pub fn snapshots(&self) -> Result<Vec<SnapshotRow>> {
        self.whole()?.snapshots()
    }

    /// Ends a snapshot; [`ErrorKind::InvalidInput`] while it is held.
    pub fn destroy_snapshot(&self, name: &str) -> Result<()> {
        self.whole()?.destroy_snapshot(name)
    }

    /// Keeps a snapshot from being destroyed, for a reason `tag`.
    pub fn hold_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        self.whole()?.hold_snapshot(name, tag)
    }

    /// Ends a hold.
    pub fn release_snapshot(&self, name: &str, tag: &str) -> Result<()> {
        self.whole()?.release_snapshot(name, tag)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_are_read_and_mistakes_are_told() {
        let now = 1_800_000_000_000_000_000;
        let at = |text: &str| match parse_moment(text, now).unwrap() {
            Moment::At(at_ns) => at_ns,
            other => panic!("{text}: {other:?}"),
        };
        assert_eq!(at("1970-01-01T00:00:00Z"), 0);
        assert_eq!(at("2026-11-20T10:00:00Z"), 1_795_168_800_000_000_000);
        assert_eq!(at("2026-11-20 10:00"), 1_795_168_800_000_000_000);
        assert_eq!(at("2024-02-29T23:59:59.5Z"), 1_709_251_199_500_000_000);
        assert_eq!(at("1969-12-31"), -86_400_000_000_000);
        assert_eq!(at("-1h"), now - 3_600_000_000_000);
        assert_eq!(at("-90s"), now - 90_000_000_000);
        assert_eq!(parse_moment("seq:12", now).unwrap(), Moment::Seq(12));
        let snapshot = Moment::Snapshot("before-upgrade".into());
        assert_eq!(parse_moment("before-upgrade", now).unwrap(), snapshot);
        for bad in [
            "",
            "seq:",
            "seq:-1",
            "-",
            "-h",
            "-1x",
            "-1.5h",
            "2026",
            "2026-13-01",
            "2025-02-29",
            "2026-11-20T25:00",
            "2026-11-20T10:00:00+01:00",
            "2026-11-20T10:00:00.Z",
            "-99999999999y",
        ] {
            let refused = parse_moment(bad, now).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }
}
