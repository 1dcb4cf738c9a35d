//! The database at another moment: reading what commits have superseded ([DBFS] "temporality").
//!
//! `CONTENT-9` What [`Database::as_of`] returns shows one whole commit, byte for byte, for as long
//! as it is open, and refuses every change with [`ErrorKind::ReadOnly`].

use crate::database::{Database, Shared, Shown};
use crate::readonly::ReadonlyProvider;
use crate::rooms::{History, Nodes, Sessions, Snapshots};
use crate::stores::KnownStores;
use crate::types::NodeId;
use larder_object::{Error, ErrorKind, Moment, Result, SnapshotRow, open_as_of, utc};
use std::collections::HashMap;
use std::sync::Arc;

/// Nanoseconds in the units that a distance in time is given in.
const UNITS: [(&str, i64); 6] = [
    ("s", 1_000_000_000),
    ("m", 60_000_000_000),
    ("h", 3_600_000_000_000),
    ("d", 86_400_000_000_000),
    ("w", 604_800_000_000_000),
    ("y", 31_536_000_000_000_000),
];

/// The moment that a text names: `seq:1234`; `-90s`, `-5m`, `-1h`, `-2d`, `-1w`, `-1y` before
/// `now_ns`; a time as [`utc::parse`] reads it, such as `2026-11-20T10:00:00Z`; anything else names
/// a snapshot. `now_ns`: nanoseconds since 1970.
pub fn parse_moment(text: &str, now_ns: i64) -> Result<Moment> {
    let refuse = |why: &str| {
        Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "'{text}' is no moment: {why}; write 2026-11-20T10:00:00Z, -1h, seq:1234, or the \
                 name of a snapshot"
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
        return match utc::parse(text) {
            Some(at_ns) => Ok(Moment::At(at_ns)),
            None => refuse("the time is not well formed"),
        };
    }
    match text.is_empty() {
        true => refuse("it is empty"),
        false => Ok(Moment::Snapshot(text.into())),
    }
}

impl Database {
    /// This database at a moment, for reading: names, attributes, extended attributes and content
    /// as the newest whole commit at or before it left them; the stores are those of the present,
    /// user columns are shown where their store is tracked since then. What ended before in this
    /// process counts. Cost: about 3 ms; it keeps what it shows from being reclaimed until its last
    /// clone goes. Errors: [`ErrorKind::InvalidInput`] before the history begins, in the future,
    /// and where the database keeps no history; [`ErrorKind::NotFound`]: no such snapshot.
    pub fn as_of(&self, moment: &Moment) -> Result<Database> {
        let past = open_as_of(self.whole()?, moment)?;
        let mut factories: HashMap<_, _> = HashMap::new();
        for (name, factory) in self.shared.factories.iter() {
            let (factory, host) = (Arc::clone(factory), self.clone());
            let of_the_past: crate::ProviderFactory = Arc::new(move |context| {
                let _stays_open = &host; // As long as anybody has its past.
                Arc::new(ReadonlyProvider::of_the_past(factory(context)))
            });
            factories.insert(name.clone(), of_the_past);
        }
        let shown = Database {
            shared: Arc::new(Shared {
                shown: Shown::Past(Arc::new(past)),
                factories: Arc::new(factories),
                stores: KnownStores::default(),
                pool: Arc::default(),
            }),
        };
        shown.reload_stores()?;
        Ok(shown)
    }

    /// The present of the database's clock, nanoseconds since 1970.
    pub fn now_ns(&self) -> i64 {
        self.shared.shown.view().now_ns()
    }
}

impl History<'_> {
    /// Whether this has a past: the database has a retention, and this is no long transaction's
    /// view of it.
    pub fn is_kept(&self) -> bool {
        match &self.database.shared.shown {
            Shown::Present(engine) | Shown::Transaction(engine, _) => {
                engine.expiry().keeps_history()
            }
            Shown::Past(past) => past.present().expiry().keeps_history(),
        }
    }

    /// The commit that a moment means, and its time, nanoseconds since 1970: as
    /// [`Database::as_of`], without opening it, so that it may be reclaimed. Cost: a few lookups,
    /// and a commit if anything waits for one.
    pub fn resolve(&self, moment: &Moment) -> Result<(u64, i64)> {
        let (seq, at_ns) = self.database.whole()?.past().resolve_moment(moment)?;
        Ok((seq.0, at_ns))
    }

    /// The commit that this shows, and its time, nanoseconds since 1970; `None`: the present.
    pub fn shown(&self) -> Option<(u64, i64)> {
        let (seq, at_ns) = self.database.shared.shown.view().moment().shows()?;
        Some((seq.0, at_ns))
    }
}

impl Sessions<'_> {
    /// What a node that is shown as it was at another moment is in the present, whether it is still
    /// there or not: all of a past, and what a store shows of a snapshot. `None`: it is of the
    /// present. No I/O.
    pub fn present_node(&self, node: NodeId) -> Option<NodeId> {
        match self.database.snapshot_table(node.store) {
            Some(store) => Some(NodeId { store, ..node }),
            None => matches!(self.database.shared.shown, Shown::Past(_)).then_some(node),
        }
    }
}

impl Nodes<'_> {
    /// The node in the present that is the file that `node`, which is no more, was at the moment
    /// that it is shown as of: a program has saved it since, which makes another inode of it.
    /// `None`: it was deleted, or `node` is of the present. Cost: a lookup, and the commit of saves
    /// that wait for one.
    pub fn saved_since(&self, node: NodeId) -> Result<Option<NodeId>> {
        let Some(present) = self.database.sessions().present_node(node) else {
            return Ok(None);
        };
        let (engine, shown) = match &self.database.shared.shown {
            Shown::Present(engine) | Shown::Transaction(engine, _) => (engine, None),
            Shown::Past(past) => (past.present(), past.moment().shows()),
        };
        let seq = match (self.database.snapshot_of(node.store), shown) {
            (Some(snapshot), _) => engine.past().resolve_moment(&Moment::Snapshot(snapshot))?.0,
            (None, Some((seq, _))) => seq,
            (None, None) => return Ok(None),
        };
        let saved =
            engine
                .namespace()
                .saved_as(self.database.table_of(present.store), present.ino, seq)?;
        Ok(saved.map(|ino| NodeId { ino, ..present }))
    }
}

impl Snapshots<'_> {
    /// Gives the present a name, durably: it can be read as [`Moment::Snapshot`] until it is
    /// destroyed, whatever the retention says. A name begins with a letter and has letters, digits,
    /// `_`, `-` and `.`. Cost: one commit.
    pub fn create(&self, name: &str) -> Result<SnapshotRow> {
        self.database.whole()?.past().create_snapshot(name)
    }

    /// All snapshots, oldest first.
    pub fn list(&self) -> Result<Vec<SnapshotRow>> {
        self.database.read(|view| view.moment().snapshots())
    }

    /// Ends a snapshot; [`ErrorKind::InvalidInput`] while it is held.
    pub fn destroy(&self, name: &str) -> Result<()> {
        self.database.whole()?.past().destroy_snapshot(name)
    }

    /// Keeps a snapshot from being destroyed, for a reason `tag`.
    pub fn hold(&self, name: &str, tag: &str) -> Result<()> {
        self.database.whole()?.past().hold_snapshot(name, tag)
    }

    /// Ends a hold.
    pub fn release(&self, name: &str, tag: &str) -> Result<()> {
        self.database.whole()?.past().release_snapshot(name, tag)
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
            "2026-11-20T10:00:00.Z",
            "-99999999999y",
        ] {
            let refused = parse_moment(bad, now).unwrap_err();
            assert_eq!(refused.kind(), ErrorKind::InvalidInput, "{bad}");
        }
    }
}
