//! What plain SQL changes between commits becomes commits.
//!
//! # Words
//! A change by plain SQL is *unsequenced* until a commit gives it its number: what a trigger keeps
//! of it counts to the next one. A commit that was not made for it would swallow it: then it is of
//! that commit's moment, or of none.
//!
//! # Invariants
//! * `HISTORY-6` A commit of the engine that is no group of changes, and takes a number for itself,
//!   leaves no unsequenced change behind it: such changes get a commit with a moment before.
//!   *Guard*: who makes such a commit calls [`settle_unsequenced`] in the same transaction, before
//!   it takes the number.

use crate::conn::meta::{find_meta, next_commit_seq};
use crate::error::{At, Result};
use crate::history::{Keeper, newest_moment, newest_until};
use crate::types::codec::signed;
use crate::{CatalogTemporal, temporal};
use larder_format::CommitSeq;
use rusqlite::Connection;

const TABLE: &str = "larder_history";

impl CatalogTemporal<'_> {
    /// Whether plain SQL has changed something since the newest commit that has no moment yet. 3
    /// µs.
    pub fn has_unsequenced_changes(&self) -> Result<bool> {
        self.catalog.read(has_unsequenced_changes)
    }

    /// Makes the next commits for such changes, of nothing else, and returns the number of the
    /// last; `None` when there are none. The caller has the writer lock: who has it knows the
    /// number of its next commit.
    pub fn commit_unsequenced_changes(&self, now_ns: i64) -> Result<Option<CommitSeq>> {
        self.catalog.write(|txn| settle_unsequenced(txn, now_ns))
    }

    /// Gives what plain SQL did to rows since the last commit a moment of its own: before anything
    /// else is committed, by who has the writer lock. The commit, if there was anything. 4 µs.
    pub fn settle_rows(&self, now_ns: i64) -> Result<Option<CommitSeq>> {
        match self.has_unsequenced_changes()? {
            true => self.catalog.write(|txn| settle_rows(txn, now_ns)),
            false => Ok(None),
        }
    }

    /// Before the end of the owner's transaction, made at `now_ns`: SQL that changed what has a
    /// past is a commit, though there was no step; and what it did to the schema counts. 6 µs.
    pub fn settle_sql(&self, now_ns: i64) -> Result<()> {
        let is_new = {
            let writer = crate::lock(&self.catalog.writer);
            if has_unsequenced_changes(&writer.connection)? {
                crate::lock(&self.catalog.moment_ns).get_or_insert(now_ns);
            }
            writer.guards.is_new_schema(&writer.connection)?
        };
        match is_new && self.catalog.workspace.is_none() {
            true => self.catalog.write(temporal::refresh),
            false => Ok(()),
        }
    }
}

fn has_unsequenced_changes(connection: &Connection) -> Result<bool> {
    Ok(newest_until(connection)? > commit_seq(connection)?)
}

fn commit_seq(connection: &Connection) -> Result<CommitSeq> {
    Ok(CommitSeq(find_meta(connection, "commit_seq")? as u64))
}

/// Gives all unsequenced changes their moments: rows their own, attributes of files one of now. The
/// newest commit that this made (`HISTORY-6`). 4 µs when there is nothing.
pub(crate) fn settle_unsequenced(txn: &Connection, now_ns: i64) -> Result<Option<CommitSeq>> {
    let rows = match has_unsequenced_changes(txn)? {
        true => settle_rows(txn, now_ns)?,
        false => None,
    };
    if !has_unsequenced_changes(txn)? {
        return Ok(rows);
    }
    let seq = next_commit_seq(txn)?;
    Keeper::begin(txn, seq, now_ns)?.end(txn)?;
    Ok(Some(seq))
}

fn settle_rows(txn: &Connection, now_ns: i64) -> Result<Option<CommitSeq>> {
    let newest = commit_seq(txn)?;
    let last: Option<i64> = txn
        .query_row(
            "SELECT max(mtime_ns) FROM larder_history WHERE what = 'row' AND until_seq > ?1 AND \
             id > coalesce(\
             (SELECT id FROM larder_history WHERE what = 'commit' ORDER BY id DESC LIMIT 1), 0)",
            [signed(newest.0)],
            |row| row.get(0),
        )
        .at(TABLE)?;
    match last {
        // Only attributes of files: they count to the next commit.
        None => Ok(None),
        Some(at_ns) => {
            let seq = next_commit_seq(txn)?;
            let newest_ns = newest_moment(txn)?.map_or(i64::MIN, |(_, newest_ns)| newest_ns);
            txn.execute(
                "INSERT INTO larder_history (until_seq, what, key, since_seq, kind) VALUES (?1, \
                 'commit', ?2, ?1, 'sql')",
                [signed(seq.0), at_ns.min(now_ns).max(newest_ns)],
            )
            .at(TABLE)
            .map(|_| Some(seq))
        }
    }
}
