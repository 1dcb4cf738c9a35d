//! The change feed: what commits did, in order, for those who follow it.
//!
//! # Words
//! A *change* is what happened to one inode, or to one row of a user's table. Its *position* is its
//! number. A *watched* table is one of the user's whose rows tell what plain SQL does to them.
//!
//! # Invariants
//! * `FEED-1` Positions follow each other without a gap, in the order of the commits; a change has
//!   its position for ever, and is written in the transaction that it tells of.
//! * `FEED-2` The newest row stays, so that no position is given twice. Older rows go when there
//!   are more than [`FEED_CHANGES_MAX`] changes behind them, or after [`FEED_AGE_MAX_NS`]; who asks
//!   for what is gone is told so.
//! * `FEED-3` While the feed is off it costs one lookup per commit, and nothing is written.
//!
//! A commit is told as its outcome: a file that is made and removed again between two commits is
//! not told of at all, and of two renames that exchange names each may be told first. A name that
//! is set takes the place of what had it. Creating and destroying stores is not told. Of what a
//! long transaction brings only that it came is told: as if the feed began there.

mod collect;
mod trigger;

use crate::CatalogFeed;
use crate::error::{At, CatalogError, Result};
use crate::schema::statements::StoreSql;
use crate::types::changes::ChangeSet;
use crate::types::codec::{TextOrBlob, signed, unsigned};
use crate::types::names::{StoreName, execute_one, quoted};
use crate::types::sql::{SqlValue, value};
use collect::collect;
use larder_format::change_record::{decode_changes, encode_changes};
use larder_format::limits::{FEED_AGE_MAX_NS, FEED_CHANGES_MAX, FEED_ROW_CHANGES_MAX};
use larder_format::{ChangeRecord, CommitSeq, Ino, StoreId};
use rusqlite::{Connection, OptionalExtension, Row, params};
use std::collections::HashMap;
use std::sync::Arc;
use trigger::{NOW, find_table, watch_name};
pub(crate) use trigger::{is_watch, store_trigger};

/// Old rows are looked for when the position passes a multiple of this.
const TRIM_STRIDE: u64 = 4096;

/// What happened.
#[derive(Debug, Clone, PartialEq)]
pub enum FeedEvent {
    /// To an inode.
    Object(ChangeRecord),
    /// To a row of a table, by plain SQL: of a watched table `insert`, `update`, `delete`; of a
    /// store's table `attributes` or `columns`.
    Row {
        /// The table.
        table: String,
        /// The rowid; of a table without one the primary key.
        key: SqlValue,
        /// What.
        operation: String,
    },
    /// The feed was switched on, or a long transaction was merged: what came before and was not
    /// told is not going to be; read anew what you keep of the database.
    Begin,
    /// The feed was switched off.
    End,
}

/// One change with its position.
#[derive(Debug, Clone, PartialEq)]
pub struct FeedChange {
    /// Its position.
    pub seq: u64,
    /// When, nanoseconds since 1970.
    pub at_ns: i64,
    /// The group commit that it is of; plain SQL has none.
    pub commit_seq: Option<CommitSeq>,
    /// What happened.
    pub event: FeedEvent,
}

/// What the feed has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FeedBounds {
    /// The position before the oldest change that is kept.
    pub oldest: u64,
    /// The newest position; 0 before the first.
    pub newest: u64,
    /// Whether changes are written.
    pub is_on: bool,
}

impl CatalogFeed<'_> {
    /// What the feed has.
    pub fn bounds(&self) -> Result<FeedBounds> {
        self.catalog.read(bounds)
    }

    /// Switches the feed on or off; returns the position before the first change that will be told.
    /// Off, it forgets which tables are watched.
    pub fn set(&self, is_on: bool) -> Result<u64> {
        self.catalog.write(|txn| {
            let found = bounds(txn)?;
            if found.is_on == is_on {
                return Ok(found.newest);
            }
            if !is_on {
                for (trigger, _) in watches(txn)? {
                    drop_trigger(txn, &trigger)?;
                }
            }
            append_mark(txn, if is_on { "begin" } else { "end" })?;
            if is_on {
                watch_stores(txn)?;
            }
            bounds(txn).map(|bounds| bounds.newest)
        })
    }

    /// Watches a table of the user's, or no longer. The feed must be on.
    pub fn watch_table(&self, table: &str, is_watched: bool) -> Result<()> {
        self.catalog.write(|txn| {
            if !bounds(txn)?.is_on {
                return Err(off());
            }
            let found = find_table(txn, table)?;
            for operation in ["insert", "update", "delete"] {
                drop_trigger(txn, &watch_name(&found.name, operation))?;
            }
            if is_watched {
                for trigger in found.triggers() {
                    execute_one(txn, &trigger).at(table)?;
                }
            }
            Ok(())
        })
    }

    /// The changes of at least one row of the feed behind position `since`, at most `rows_max` rows
    /// of them; none when there are no more. [`CatalogError::Invalid`] when they are gone, or were
    /// never there.
    pub fn after(&self, since: u64, rows_max: u32) -> Result<Vec<FeedChange>> {
        self.catalog.read(|reader| {
            let mut changes = Vec::new();
            let mut select = reader
                .prepare_cached(
                    "SELECT seq, change_count, at_ns, op, commit_seq, changes, tbl, row_key \
                     FROM larder_change WHERE seq > ?1 ORDER BY seq LIMIT ?2",
                )
                .at("larder_change")?;
            let mut rows = select
                .query(params![signed(since), rows_max])
                .at("larder_change")?;
            let mut expected = since;
            while let Some(row) = rows.next().at("larder_change")? {
                let (first, row_changes) = read_row(row)?;
                // The first row may begin before; FEED-1 says that nothing is missing between rows.
                if first > expected + 1 {
                    return Err(gone(since, first - 1));
                }
                expected = first + row_changes.len() as u64 - 1;
                changes.extend(row_changes.into_iter().filter(|change| change.seq > since));
            }
            drop(rows);
            if changes.is_empty() {
                let FeedBounds { newest, is_on, .. } = bounds(reader)?;
                if since > newest {
                    return Err(CatalogError::invalid(format!(
                        "position {since} is not reached yet, the newest is {newest}; give that \
                         or less"
                    )));
                }
                if !is_on && newest == 0 {
                    return Err(off());
                }
            }
            Ok(changes)
        })
    }
}

fn off() -> CatalogError {
    CatalogError::invalid("the change feed is off; switch it on with 'larder watch --enable'")
}

fn gone(since: u64, oldest: u64) -> CatalogError {
    CatalogError::invalid(format!(
        "what followed position {since} is not kept any more, the oldest position is {oldest}; \
         begin with \
         that, and read anew what you keep of the database"
    ))
}

fn bounds(connection: &Connection) -> Result<FeedBounds> {
    let Some((newest, is_on)) = newest(connection)? else {
        return Ok(FeedBounds::default());
    };
    let oldest = connection
        .prepare_cached("SELECT seq - change_count FROM larder_change ORDER BY seq LIMIT 1")
        .and_then(|mut find| find.query_row([], |row| unsigned(row, 0)))
        .at("larder_change")?;
    Ok(FeedBounds {
        oldest,
        newest,
        is_on,
    })
}

/// Whether the feed is on.
pub(crate) fn is_on(connection: &Connection) -> Result<bool> {
    Ok(newest(connection)?.is_some_and(|(_, is_on)| is_on))
}

/// The newest position, and whether the feed is on.
fn newest(connection: &Connection) -> Result<Option<(u64, bool)>> {
    connection
        .prepare_cached("SELECT seq, op <> 'end' FROM larder_change ORDER BY seq DESC LIMIT 1")
        .and_then(|mut find| {
            find.query_row([], |row| Ok((unsigned(row, 0)?, row.get(1)?)))
                .optional()
        })
        .at("larder_change")
}

/// The position of the first change of a row, and all of them.
fn read_row(row: &Row<'_>) -> Result<(u64, Vec<FeedChange>)> {
    let number = |index| unsigned(row, index).at("larder_change");
    let (seq, count) = (number(0)?, number(1)?);
    let at_ns: i64 = row.get(2).at("larder_change")?;
    let op: String = row.get(3).at("larder_change")?;
    let commit_seq: Option<i64> = row.get(4).at("larder_change")?;
    let event = match op.as_str() {
        "begin" => FeedEvent::Begin,
        "end" => FeedEvent::End,
        "commit" => {
            let bytes = row.get_ref(5).at("larder_change")?.as_blob();
            let bytes =
                bytes.map_err(|why| CatalogError::corrupt(format!("larder_change: {why}")))?;
            let records = decode_changes(bytes)
                .map_err(|why| CatalogError::corrupt(format!("larder_change {seq}: {why}")))?;
            if records.len() as u64 != count || count > seq {
                let found = records.len();
                let what = format!("larder_change {seq}: {count} changes expected, found {found}");
                return Err(CatalogError::corrupt(what));
            }
            let first = seq - count + 1;
            let changes = records.into_iter().zip(first..);
            let changes = changes.map(|(record, seq)| FeedChange {
                seq,
                at_ns,
                commit_seq: commit_seq.map(|seq| CommitSeq(seq as u64)),
                event: FeedEvent::Object(record),
            });
            return Ok((first, changes.collect()));
        }
        _ => FeedEvent::Row {
            table: row.get(6).at("larder_change")?,
            key: value(row.get_ref(7).at("larder_change")?),
            operation: op,
        },
    };
    let change = FeedChange {
        seq,
        at_ns,
        commit_seq: None,
        event,
    };
    Ok((seq, vec![change]))
}

/// What each entry that `changes` sets names before it is applied; `None` while the feed is off.
/// Entries of new inodes are not looked up: they take the place of what had the name.
pub(crate) fn look_before(
    txn: &Connection,
    stores: &HashMap<StoreId, Arc<StoreSql>>,
    changes: &ChangeSet,
) -> Result<Option<Vec<Option<Ino>>>> {
    // FEED-3
    if !newest(txn)?.is_some_and(|(_, is_on)| is_on) {
        return Ok(None);
    }
    let fresh: std::collections::HashSet<(StoreId, Ino)> = (changes.inodes.iter())
        .filter_map(|(store, change)| match change {
            crate::InodeChange::Insert(row) => Some((*store, row.ino)),
            _ => None,
        })
        .collect();
    let look =
        |(store, parent, name, target): &(StoreId, Ino, larder_format::Name, Option<Ino>)| {
            if target.is_some_and(|ino| fresh.contains(&(*store, ino))) {
                return Ok(None);
            }
            let sql = &stores[store];
            txn.prepare_cached(&sql.dirent)
                .and_then(|mut find| {
                    find.query_row(
                        params![signed(parent.0), TextOrBlob(name.as_bytes())],
                        |row| unsigned(row, 0),
                    )
                    .optional()
                })
                .map(|found| found.map(Ino))
                .at(&sql.table_dirent)
        };
    let before: Result<Vec<Option<Ino>>> = changes.dirents.iter().map(look).collect();
    before.map(Some)
}

/// Writes what commit `seq` did (`FEED-1`).
pub(crate) fn append(
    txn: &Connection,
    seq: CommitSeq,
    changes: &ChangeSet,
    before: &[Option<Ino>],
) -> Result<()> {
    let records = collect(changes, before);
    let Some((mut position, _)) = newest(txn)? else {
        return Ok(());
    };
    let began = position;
    for part in records.chunks(FEED_ROW_CHANGES_MAX) {
        position += part.len() as u64;
        txn.prepare_cached(&format!(
            "INSERT INTO larder_change (seq, change_count, at_ns, op, commit_seq, changes) \
             VALUES (?1, ?2, {NOW}, 'commit', ?3, ?4)"
        ))
        .and_then(|mut insert| {
            insert.execute(params![
                signed(position),
                signed(part.len() as u64),
                signed(seq.0),
                encode_changes(part)
            ])
        })
        .at("larder_change")?;
    }
    if began / TRIM_STRIDE != position / TRIM_STRIDE {
        trim(txn, position)?;
    }
    Ok(())
}

/// Says that what came here is not told: a long transaction was merged.
pub(crate) fn append_gap(txn: &Connection) -> Result<()> {
    match newest(txn)? {
        Some((_, true)) => append_mark(txn, "begin"),
        _ => Ok(()), // FEED-3
    }
}

/// Writes that the feed begins or ends here.
fn append_mark(txn: &Connection, op: &str) -> Result<()> {
    txn.execute(
        &format!("INSERT INTO larder_change (at_ns, op) VALUES ({NOW}, ?1)"),
        [op],
    )
    .at("larder_change")
    .map(drop)
}

/// Drops what is too old, but never the newest row (`FEED-2`).
fn trim(txn: &Connection, newest: u64) -> Result<()> {
    // Times are in the order of positions but for a clock that is set: what is older goes from the
    // front.
    let first_young =
        format!("SELECT seq FROM larder_change WHERE at_ns >= {NOW} - ?1 ORDER BY seq LIMIT 1");
    let young: Option<i64> = txn
        .prepare_cached(&first_young)
        .and_then(|mut find| {
            find.query_row([FEED_AGE_MAX_NS], |row| row.get(0))
                .optional()
        })
        .at("larder_change")?;
    let by_count = signed(newest.saturating_sub(FEED_CHANGES_MAX));
    let before = young.map_or(signed(newest), |young| young.max(by_count));
    txn.prepare_cached("DELETE FROM larder_change WHERE seq < ?1 AND seq < ?2")
        .and_then(|mut delete| delete.execute([before, signed(newest)]))
        .at("larder_change")
        .map(drop)
}

// ---- triggers ---------------------------------------------------------------------------------

/// Has the store tables tell what plain SQL does to their rows, where they do not yet.
pub(crate) fn watch_stores(txn: &Connection) -> Result<()> {
    if !newest(txn)?.is_some_and(|(_, is_on)| is_on) {
        return Ok(());
    }
    let mut select = txn
        .prepare("SELECT name FROM larder_store WHERE table_store = id")
        .at("larder_store")?;
    let names: Vec<StoreName> = select
        .query_map([], |row| row.get(0))
        .and_then(Iterator::collect)
        .at("larder_store")?;
    for name in names {
        let trigger = store_trigger(&name).replacen("TRIGGER", "TRIGGER IF NOT EXISTS", 1);
        execute_one(txn, &trigger).at(&name)?;
    }
    Ok(())
}

/// The same after an upgrade: what tells of the rows may have to know of a new column.
pub(crate) fn watch_stores_anew(txn: &Connection) -> Result<()> {
    for (trigger, _) in watches(txn)? {
        if trigger.starts_with("larder_feed_") {
            drop_trigger(txn, &trigger)?;
        }
    }
    watch_stores(txn)
}

/// The triggers of the feed, with their tables.
fn watches(txn: &Connection) -> Result<Vec<(String, String)>> {
    let mut select = txn
        .prepare(
            "SELECT name, tbl_name FROM sqlite_schema WHERE type = 'trigger' AND \
             (name LIKE 'larder\\_watch\\_%' ESCAPE '\\' OR name LIKE 'larder\\_feed\\_%' ESCAPE \
             '\\')",
        )
        .at("the triggers")?;
    select
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))
        .and_then(Iterator::collect)
        .at("the triggers")
}

fn drop_trigger(txn: &Connection, name: &str) -> Result<()> {
    execute_one(txn, &format!("DROP TRIGGER IF EXISTS {}", quoted(name))).at(name)
}
