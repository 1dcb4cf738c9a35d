//! How long history is kept, and what it takes.
//!
//! The retention is a fact of the database (`larder_meta`). Every commit looks at it
//! ([`crate::SqliteCatalog::commit`]), so what a commit supersedes is kept as the newest setting
//! says; sessions learn of it when they next have the writer lock.
//!
//! A store may have one of its own; the others follow that of the database, the *default*.
//! `retention_ns` is the longest of them all: while it is not 0 commits keep history, and what
//! belongs to no store (moments, rows of users' tables) stays so long. `retention_default_ns` is
//! the default where that is another, `retention_ns:STORE` and `retention_guarantee:STORE` are
//! those of single stores.
//!
//! Where it was 0 there is a gap in history: turning it on begins anew, with a commit of its own.
//!
//! Where no store keeps any, the first snapshot begins history all the same, and the end of the
//! last one ends it: meanwhile the longest retention is [`KEPT_NS_MIN`], and the default 0, so that
//! commits keep what snapshots show and nothing else lasts.

pub(crate) mod horizon;
pub(crate) mod steps;
pub(crate) mod stores;

use crate::CatalogRetention;
use crate::conn::meta::{
    KEPT_NS_MIN, find_meta, is_guaranteed, next_commit_seq, of_store, of_stores,
};
use crate::error::{At, CatalogError, Result};
use crate::history::retention::stores::owners;
use crate::history::{BEGINS, GIVEN_UP, given_up, history_begins, search_moments};
use crate::space::holders::{find_sharing, mark_sharing};
use crate::types::codec::{rows, signed, unsigned};
use crate::types::tuning::{Tuning, store};
use larder_format::{CommitSeq, SessionId, StoreId};
use rusqlite::{Connection, OptionalExtension, params};

/// How long what was superseded stays readable.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Retention {
    /// Nanoseconds; 0: not at all.
    pub retention_ns: i64,
    /// Nothing of it is given up when space is short: writes are refused instead.
    pub is_guaranteed: bool,
}

const META: &str = "larder_meta";
/// Of one store.
pub(crate) const OWN: &str = "retention_ns";
/// Of one store, where it is guaranteed.
pub(crate) const GUARANTEES: &str = "retention_guarantee";
/// What an older version has shared between stores is named (`HISTORY-8`). (Its key is not one that
/// `foreign` reads.)
const SHARERS_NAMED: &str = "shares_named";
/// Of stores that have none of their own, where that is not the longest.
const DEFAULT: &str = "retention_default_ns";

/// How long each store keeps its history.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Retentions {
    /// Of the stores that have none of their own.
    pub default: Retention,
    /// Of single stores, by number.
    pub stores: Vec<(StoreId, Retention)>,
    /// History is kept, if for snapshots alone.
    pub is_on: bool,
}

impl Retentions {
    /// Of one store.
    pub fn of(&self, store: StoreId) -> Retention {
        self.own(store).unwrap_or(self.default)
    }

    /// What a store has of its own.
    pub fn own(&self, store: StoreId) -> Option<Retention> {
        let found = self.stores.iter().find(|(one, _)| *one == store);
        found.map(|(_, retention)| *retention)
    }

    /// The longest, nanoseconds; 0: no history is kept.
    pub fn longest_ns(&self) -> i64 {
        match self.longest_wanted_ns() {
            0 if self.is_on => KEPT_NS_MIN,
            longest_ns => longest_ns,
        }
    }

    /// The longest that somebody has asked for.
    fn longest_wanted_ns(&self) -> i64 {
        self.all().map(|one| one.retention_ns).max().unwrap_or(0)
    }

    /// The shortest, nanoseconds.
    pub fn shortest_ns(&self) -> i64 {
        self.all().map(|one| one.retention_ns).min().unwrap_or(0)
    }

    fn all(&self) -> impl Iterator<Item = &Retention> {
        let own = self.stores.iter().map(|(_, retention)| retention);
        own.chain([&self.default])
    }
}

/// How long each store keeps its history now.
pub(crate) fn retentions(connection: &Connection) -> Result<Retentions> {
    let default_ns = connection
        .prepare_cached("SELECT value FROM larder_meta WHERE key = ?1")
        .and_then(|mut find| find.query_row([DEFAULT], |row| row.get(0)).optional())
        .at(META)?;
    let guaranteed = of_stores(connection, GUARANTEES)?;
    let own = of_stores(connection, OWN)?.into_iter();
    let mut stores: Vec<(StoreId, Retention)> = own
        .filter_map(|(store, retention_ns)| {
            let is_guaranteed = guaranteed.contains(&(store, 1));
            let retention = Retention {
                retention_ns,
                is_guaranteed,
            };
            store.map(|store| (store, retention))
        })
        .collect();
    stores.sort_unstable_by_key(|(store, _)| *store);
    Ok(Retentions {
        default: Retention {
            retention_ns: default_ns.map_or_else(|| find_meta(connection, OWN), Ok)?,
            is_guaranteed: is_guaranteed(connection)?,
        },
        stores,
        is_on: find_meta(connection, OWN)? > 0,
    })
}

impl CatalogRetention<'_> {
    /// How long each store keeps its history now.
    pub fn retentions(&self) -> Result<Retentions> {
        self.catalog.read(retentions)
    }

    /// Sets how long history is kept: of the stores that have no retention of their own, or of one
    /// store (`None`: it follows the others again). Returns the newest commit, a new one if history
    /// begins with it. Who lets stores go apart has named the sharers before
    /// ([`CatalogRetention::name_sharers`]). The caller has the writer lock. Turning all of it off
    /// deletes the history, and is refused ([`CatalogError::Invalid`]) while a snapshot or a reader
    /// of the past needs it.
    pub fn set_retention(
        &self,
        store: Option<StoreId>,
        wanted: Option<Retention>,
        now_ns: i64,
    ) -> Result<CommitSeq> {
        self.catalog.write(|txn| {
            let mut settings = retentions(txn)?;
            let is_for_snapshots = settings.longest_wanted_ns() == 0 && has_snapshots(txn)?;
            match store {
                None => settings.default = wanted.unwrap_or_default(),
                Some(store) => {
                    require_table(txn, store)?;
                    settings.stores.retain(|(one, _)| *one != store);
                    settings.stores.extend(wanted.map(|wanted| (store, wanted)));
                }
            }
            if wanted.is_some_and(|wanted| wanted.is_guaranteed) {
                take_back(txn, &settings, store)?;
            }
            write_settings(txn, &settings, is_for_snapshots, now_ns)
        })
    }

    /// A snapshot is going to be made: where no store keeps history, it begins. The newest commit
    /// then; `None`: it is kept already. The caller has the writer lock.
    pub fn keep_for_snapshots(&self, now_ns: i64) -> Result<Option<CommitSeq>> {
        self.catalog.write(|txn| match find_meta(txn, OWN)? > 0 {
            true => Ok(None),
            false => write_settings(txn, &retentions(txn)?, true, now_ns).map(Some),
        })
    }

    /// Whether history is kept for snapshots alone, and there is none, nor a reader of the past.
    pub fn is_kept_in_vain(&self) -> Result<bool> {
        self.catalog.read(is_kept_in_vain)
    }

    /// Ends such a history. The newest commit then; `None`: somebody needs it. The caller has the
    /// writer lock.
    pub fn end_kept_in_vain(&self, now_ns: i64) -> Result<Option<CommitSeq>> {
        self.catalog.write(|txn| match is_kept_in_vain(txn)? {
            false => Ok(None),
            true => write_settings(txn, &retentions(txn)?, false, now_ns).map(Some),
        })
    }

    /// Whether all stores are named that have shared content: an older version did not name them
    /// (`HISTORY-8`).
    pub fn are_sharers_named(&self) -> Result<bool> {
        self.catalog.read(|reader| {
            reader
                .prepare_cached("SELECT 1 FROM larder_meta WHERE key = ?1")
                .and_then(|mut find| find.exists([SHARERS_NAMED]))
                .at(META)
        })
    }

    /// Names the stores that have shared content: those that share some now, and `known`, whose
    /// history does. Once, before the first store lets go what others keep. The caller has the
    /// writer lock.
    pub fn name_sharers(&self, known: &[StoreId]) -> Result<()> {
        self.catalog.write(|txn| {
            mark_sharing(txn, known)?;
            mark_sharing(txn, &find_sharing(txn)?)?;
            txn.execute(
                "INSERT INTO larder_meta (key, value) VALUES (?1, 1) ON CONFLICT DO NOTHING",
                [SHARERS_NAMED],
            )
            .at(META)
            .map(drop)
        })
    }

    /// The newest whole commit at or before commit `seq` whose state can be read, and its time.
    pub fn moment_of(&self, seq: CommitSeq) -> Result<(CommitSeq, i64)> {
        self.catalog.read(|reader| {
            let (found, _) = search_moments(reader, |at, _| at <= seq)?;
            found.map_or_else(|| history_begins(reader), Ok)
        })
    }

    /// Who reads the past now, and as of which commit, oldest first.
    pub fn past_readers(&self) -> Result<Vec<(SessionId, CommitSeq)>> {
        self.catalog.read(past_readers)
    }
}

fn has_snapshots(connection: &Connection) -> Result<bool> {
    connection
        .prepare("SELECT 1 FROM larder_snapshot")
        .and_then(|mut find| find.exists([]))
        .at("larder_snapshot")
}

fn is_kept_in_vain(connection: &Connection) -> Result<bool> {
    Ok(find_meta(connection, OWN)? > 0
        && retentions(connection)?.longest_wanted_ns() == 0
        && !has_snapshots(connection)?
        && past_readers(connection)?.is_empty())
}

fn past_readers(connection: &Connection) -> Result<Vec<(SessionId, CommitSeq)>> {
    rows(
        connection,
        "SELECT session, seq FROM larder_as_of ORDER BY seq, id",
        [],
        |row| Ok((SessionId(unsigned(row, 0)?), CommitSeq(unsigned(row, 1)?))),
    )
    .at("larder_as_of")
}

/// A store is destroyed: its retention ends. Where nothing else has kept history, that ends too.
pub(crate) fn forget_store(txn: &Connection, store: StoreId, now_ns: i64) -> Result<()> {
    let mut settings = retentions(txn)?;
    if settings.own(store).is_none() {
        return Ok(());
    }
    settings.stores.retain(|(one, _)| *one != store);
    let is_for_snapshots = settings.longest_wanted_ns() == 0 && has_snapshots(txn)?;
    write_settings(txn, &settings, is_for_snapshots, now_ns).map(drop)
}

/// Somebody guarantees history, of one store or of those that follow the database: what was given
/// up of it before and is still there stays. What others have given up goes on (`TIME-6`).
fn take_back(txn: &Connection, settings: &Retentions, store: Option<StoreId>) -> Result<()> {
    let mut others: Vec<(Option<StoreId>, CommitSeq)> = Vec::new();
    for owner in owners(txn)? {
        let is_meant = match store {
            Some(store) => owner == store,
            None => settings.own(owner).is_none(),
        };
        if !is_meant {
            others.push((Some(owner), given_up(txn, Some(owner))?));
        }
    }
    if store.is_some() {
        others.push((None, given_up(txn, None)?));
    }
    txn.execute("DELETE FROM larder_meta WHERE key = ?1", [GIVEN_UP])
        .at(META)?;
    delete_of_stores(txn, GIVEN_UP)?;
    for (other, seq) in others.iter().filter(|(_, seq)| *seq > CommitSeq(0)) {
        txn.execute(
            "INSERT INTO larder_meta (key, value) VALUES (?1, ?2)",
            params![of_store(GIVEN_UP, *other), signed(seq.0)],
        )
        .at(META)?;
    }
    Ok(())
}

/// Writes the settings; returns the newest commit, a new one if history begins or ends with it.
/// `is_for_snapshots`: where no store keeps any, it is kept for snapshots.
fn write_settings(
    txn: &Connection,
    settings: &Retentions,
    is_for_snapshots: bool,
    now_ns: i64,
) -> Result<CommitSeq> {
    let is_on = find_meta(txn, OWN)? > 0;
    let longest_ns = match settings.longest_wanted_ns() {
        0 if is_for_snapshots => KEPT_NS_MIN,
        longest_ns => longest_ns,
    };
    if is_on && longest_ns == 0 {
        refuse_if_needed(txn)?;
    }
    let is_switched = is_on != (longest_ns > 0);
    let set = |key: &str, value: i64| {
        txn.execute(
            "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
             ON CONFLICT (key) DO UPDATE SET value = excluded.value",
            params![key, value],
        )
        .at(META)
        .map(drop)
    };
    let unset = |key: &str| {
        txn.execute("DELETE FROM larder_meta WHERE key = ?1", [key])
            .at(META)
            .map(drop)
    };
    let mut seq = CommitSeq(find_meta(txn, "commit_seq")? as u64);
    if is_switched {
        // What plain SQL changed before counts to this commit, and was not kept.
        seq = next_commit_seq(txn)?;
        for text in ["DELETE FROM larder_history", "DELETE FROM larder_pre_image"] {
            txn.execute(text, []).at("larder_history")?;
        }
        delete_of_stores(txn, BEGINS)?;
        set(BEGINS, signed(seq.0))?;
        set("history_begins_ns", now_ns)?;
    }
    if is_switched {
        unset(GIVEN_UP)?;
        delete_of_stores(txn, GIVEN_UP)?;
    }
    set(OWN, longest_ns)?;
    set(GUARANTEES, i64::from(settings.default.is_guaranteed))?;
    delete_of_stores(txn, OWN)?;
    delete_of_stores(txn, GUARANTEES)?;
    for (store, retention) in &settings.stores {
        set(&of_store(OWN, Some(*store)), retention.retention_ns)?;
        if retention.is_guaranteed {
            set(&of_store(GUARANTEES, Some(*store)), 1)?;
        }
    }
    match settings.default.retention_ns == longest_ns {
        true => unset(DEFAULT)?,
        false => set(DEFAULT, settings.default.retention_ns)?,
    }
    Ok(seq)
}

/// Deletes what `key` says of single stores.
fn delete_of_stores(txn: &Connection, key: &str) -> Result<()> {
    txn.execute(
        "DELETE FROM larder_meta WHERE key > ?1 AND key < ?2",
        [format!("{key}:"), format!("{key};")],
    )
    .at(META)
    .map(drop)
}

/// A retention is of the store that has the table.
fn require_table(txn: &Connection, store: StoreId) -> Result<()> {
    let found: Option<(String, String)> = txn
        .query_row(
            "SELECT s.name, o.name FROM larder_store AS s JOIN larder_store AS o ON o.id = \
             s.table_store \
             WHERE s.id = ?1 AND s.table_store <> s.id",
            [store.0],
            |row| Ok((row.get(0)?, row.get(1)?)),
        )
        .optional()
        .at("larder_store")?;
    match found {
        None => Ok(()),
        Some((name, owner)) => Err(CatalogError::invalid(format!(
            "store '{name}' only shows store '{owner}', whose history it has; set the retention \
             of that one"
        ))),
    }
}

fn refuse_if_needed(txn: &Connection) -> Result<()> {
    let snapshot: Option<String> = txn
        .prepare("SELECT name FROM larder_snapshot ORDER BY seq, name LIMIT 1")
        .and_then(|mut find| find.query_row([], |row| row.get(0)).optional())
        .at("larder_snapshot")?;
    if let Some(name) = snapshot {
        return Err(CatalogError::invalid(format!(
            "snapshot '{name}' needs the history; destroy all snapshots first ('larder snapshot \
             destroy')"
        )));
    }
    match past_readers(txn)?.first() {
        None => Ok(()),
        Some((session, seq)) => Err(CatalogError::invalid(format!(
            "session {session} reads the past (commit {seq}); try again when it has ended"
        ))),
    }
}

impl CatalogRetention<'_> {
    /// Stores what was chosen. Whoever opens the database from now on obeys it.
    pub fn set_tuning(&self, tuning: &Tuning) -> Result<()> {
        self.catalog.write(|txn| store(txn, tuning))
    }
}
