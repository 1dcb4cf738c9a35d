//! How long history is kept, and what it takes.
//!
//! The retention is a fact of the database (`larder_meta`). Every commit looks at it ([`crate::Catalog::commit`]), so
//! what a commit supersedes is kept as the newest setting says; sessions learn of it when they next have the turn.
//!
//! Where it was 0 there is a gap in history: turning it on begins anew, with a commit of its own.

use crate::Catalog;
use crate::codec::{signed, unsigned};
use crate::error::{At, CatalogError, Result};
use crate::history::{GIVEN_UP, first_kept, history_begins, search_moments};
use crate::meta::{find_meta, is_guaranteed, next_commit_seq};
use crate::read::rows;
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

/// What the history of one store takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct HistoryUse {
    /// The store that owns it.
    pub store: StoreId,
    /// Content that only history needs, blocks.
    pub block_count: u64,
    /// Rows in the catalog.
    pub row_count: u64,
    /// Bytes of small content, maps and patches in these rows.
    pub row_bytes: u64,
}

const META: &str = "larder_meta";

impl Catalog {
    /// How long history is kept now.
    pub fn retention(&self) -> Result<Retention> {
        self.read(|reader| {
            Ok(Retention {
                retention_ns: find_meta(reader, "retention_ns")?,
                is_guaranteed: is_guaranteed(reader)?,
            })
        })
    }

    /// Sets how long history is kept; returns the newest commit, a new one if history begins with it. The caller has
    /// the turn. Turning it off deletes the history, and is refused ([`CatalogError::Invalid`]) while a snapshot or a
    /// reader of the past needs it.
    pub fn set_retention(&self, wanted: Retention, now_ns: i64) -> Result<CommitSeq> {
        self.write(|txn| {
            let is_on = find_meta(txn, "retention_ns")? > 0;
            if is_on && wanted.retention_ns == 0 {
                refuse_if_needed(txn)?;
            }
            let set = |key: &str, value: i64| {
                txn.execute(
                    "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
                     ON CONFLICT (key) DO UPDATE SET value = excluded.value",
                    params![key, value],
                )
                .at(META)
                .map(drop)
            };
            let mut seq = CommitSeq(find_meta(txn, "commit_seq")? as u64);
            if is_on != (wanted.retention_ns > 0) {
                // What plain SQL changed before counts to this commit, and was not kept.
                seq = next_commit_seq(txn)?;
                for text in ["DELETE FROM larder_history", "DELETE FROM larder_home"] {
                    txn.execute(text, []).at("larder_history")?;
                }
                set("history_begins_seq", signed(seq.0))?;
                set("history_begins_ns", now_ns)?;
            }
            if is_on != (wanted.retention_ns > 0) || wanted.is_guaranteed {
                txn.execute("DELETE FROM larder_meta WHERE key = ?1", [GIVEN_UP])
                    .at(META)?;
            }
            set("retention_ns", wanted.retention_ns)?;
            set("retention_guarantee", i64::from(wanted.is_guaranteed))?;
            Ok(seq)
        })
    }

    /// Lets history go up to a commit, whatever the retention says, once nobody needs it ([`Catalog::history_horizon`]). It
    /// lasts until the history ends, or is guaranteed. The caller has the turn.
    pub fn give_up_history(&self, cut: CommitSeq) -> Result<()> {
        self.write(|txn| {
            txn.execute(
                "INSERT INTO larder_meta (key, value) VALUES (?1, ?2) \
                 ON CONFLICT (key) DO UPDATE SET value = max(value, excluded.value)",
                params![GIVEN_UP, signed(cut.0)],
            )
            .at(META)
            .map(drop)
        })
    }

    /// What the history takes that a prune up to `horizon` frees, by store. O(rows that it would delete).
    pub fn history_use(&self, horizon: CommitSeq) -> Result<Vec<HistoryUse>> {
        self.read(|reader| {
            let mut uses: Vec<HistoryUse> = rows(
                reader,
                "SELECT store, sum(block_count) FROM larder_extent \
                 WHERE retired_seq IS NOT NULL AND retired_seq <= ?1 GROUP BY store ORDER BY store",
                [signed(horizon.0)],
                |row| {
                    Ok(HistoryUse {
                        store: StoreId(row.get(0)?),
                        block_count: unsigned(row, 1)?,
                        ..HistoryUse::default()
                    })
                },
            )
            .at("larder_extent")?;
            let counts: Vec<(u32, u64, u64)> = rows(
                reader,
                "SELECT store, count(*), sum(iif(typeof(value) = 'blob', length(value), 0)) FROM larder_history \
                 WHERE id < ?1 AND store IS NOT NULL GROUP BY store ORDER BY store",
                [first_kept(reader, horizon)?],
                |row| Ok((row.get(0)?, unsigned(row, 1)?, unsigned(row, 2)?)),
            )
            .at("larder_history")?;
            for (store, row_count, row_bytes) in counts {
                let store = StoreId(store);
                let found = uses.iter_mut().find(|one| one.store == store);
                match found {
                    Some(one) => (one.row_count, one.row_bytes) = (row_count, row_bytes),
                    None => uses.push(HistoryUse {
                        store,
                        block_count: 0,
                        row_count,
                        row_bytes,
                    }),
                }
            }
            uses.sort_unstable_by_key(|one| one.store);
            Ok(uses)
        })
    }

    /// The newest whole commit at or before commit `seq` whose state can be read, and its time.
    pub fn moment_of(&self, seq: CommitSeq) -> Result<(CommitSeq, i64)> {
        self.read(|reader| {
            let (found, _) = search_moments(reader, |at, _| at <= seq)?;
            found.map_or_else(|| history_begins(reader), Ok)
        })
    }

    /// Who reads the past now, and as of which commit, oldest first.
    pub fn past_readers(&self) -> Result<Vec<(SessionId, CommitSeq)>> {
        self.read(past_readers)
    }
}

fn past_readers(connection: &Connection) -> Result<Vec<(SessionId, CommitSeq)>> {
    rows(
        connection,
        "SELECT session, seq FROM larder_past ORDER BY seq, id",
        [],
        |row| Ok((SessionId(unsigned(row, 0)?), CommitSeq(unsigned(row, 1)?))),
    )
    .at("larder_past")
}

fn refuse_if_needed(txn: &Connection) -> Result<()> {
    let snapshot: Option<String> = txn
        .prepare("SELECT name FROM larder_snapshot ORDER BY seq, name LIMIT 1")
        .and_then(|mut find| find.query_row([], |row| row.get(0)).optional())
        .at("larder_snapshot")?;
    if let Some(name) = snapshot {
        return Err(CatalogError::invalid(format!(
            "snapshot '{name}' needs the history; destroy all snapshots first ('larder snapshot destroy')"
        )));
    }
    match past_readers(txn)?.first() {
        None => Ok(()),
        Some((session, seq)) => Err(CatalogError::invalid(format!(
            "session {session} reads the past (commit {seq}); try again when it has ended"
        ))),
    }
}
