//! Who made a commit: its session, and what that was, for as long as the history names it.
//!
//! The row of a commit in `larder_history` has the session's number, and the user for whom a mount
//! made all of it. What the session was stands in a row of its own, one per session and none per
//! commit.
//!
//! * `AUTHOR-1` The session that a commit in the history names has its row. *Guard*: it is written
//!   with the session's, and deleted, when another session begins, only if the session ended before
//!   the history begins.

use crate::conn::meta::find_meta;
use crate::error::{At, Result};
use crate::types::codec::{signed, unsigned};
use larder_format::SessionId;
use rusqlite::{Connection, OptionalExtension, params};

const TABLE: &str = "larder_author";
/// The number of no session.
pub(crate) const NOBODY: u64 = u64::MAX;

/// Who made a commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitAuthor {
    /// The session; its number is never used again.
    pub session: SessionId,
    /// What it was, for people: `mount ./photos`.
    pub label: String,
    /// The process, on its host.
    pub pid: u32,
    /// Its user.
    pub uid: u32,
    /// Of a mount: the user of the host for whom all of the commit was made; `None`: for several,
    /// or nobody knows.
    pub user: Option<u32>,
}

/// What a commit notes of who makes it.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Author {
    pub(crate) session: Option<SessionId>,
    pub(crate) user: Option<u32>,
}

/// A session begins. What nobody names any more goes.
pub(crate) fn begin(
    txn: &Connection,
    session: SessionId,
    (pid, uid): (u32, u32),
    label: &str,
) -> Result<()> {
    let begins = match find_meta(txn, "retention_ns")? {
        ..=0 => i64::MAX,
        _ => find_meta(txn, "history_begins_seq")?,
    };
    txn.execute("DELETE FROM larder_author WHERE until_seq <= ?1", [begins])
        .at(TABLE)?;
    txn.execute(
        "INSERT INTO larder_author (session, pid, uid, label, since_seq) \
         VALUES (?1, ?2, ?3, ?4, (SELECT value FROM larder_meta WHERE key = 'commit_seq'))",
        params![signed(session.0), pid, uid, label],
    )
    .at(TABLE)
    .map(drop)
}

/// It ends: it made no commit after the newest one, and none at all if that is the one that it
/// began with.
pub(crate) fn end(txn: &Connection, session: SessionId) -> Result<()> {
    let newest = find_meta(txn, "commit_seq")?;
    txn.execute(
        "DELETE FROM larder_author WHERE session = ?1 AND since_seq = ?2 AND until_seq IS NULL",
        [signed(session.0), newest],
    )
    .at(TABLE)?;
    txn.execute(
        "UPDATE larder_author SET until_seq = ?2 WHERE session = ?1 AND until_seq IS NULL",
        [signed(session.0), newest],
    )
    .at(TABLE)
    .map(drop)
}

/// Who made the whole commit whose first row of the history is `first`, or a later one; `None`:
/// plain SQL, or an older format.
pub(crate) fn find(connection: &Connection, first: Option<i64>) -> Result<Option<CommitAuthor>> {
    connection
        .prepare_cached(
            "SELECT a.session, a.label, a.pid, a.uid, c.uid FROM (SELECT value, uid FROM \
             larder_history \
             WHERE what = 'commit' AND id >= ?1 ORDER BY id LIMIT 1) AS c JOIN larder_author AS a \
             ON a.session = c.value",
        )
        .and_then(|mut find| {
            find.query_row([first], |row| {
                Ok(CommitAuthor {
                    session: SessionId(unsigned(row, 0)?),
                    label: row.get(1)?,
                    pid: row.get(2)?,
                    uid: row.get(3)?,
                    user: row.get(4)?,
                })
            })
            .optional()
        })
        .at(TABLE)
}
