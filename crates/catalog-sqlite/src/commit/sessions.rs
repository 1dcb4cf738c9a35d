//! Sessions, the commits they pin, and the orphans they hold open.

use crate::authors::{self, Author, NOBODY};
use crate::conn::meta::{add_meta, find_meta};
use crate::error::{At, CatalogError, Result};
use crate::types::codec::{rows, signed, unsigned};
use crate::types::rows::SessionRow;
use crate::{CatalogForeign, CatalogSessions};
use larder_format::{CommitSeq, Ino, SessionId, StoreId};
use rusqlite::{Connection, params};
use std::sync::atomic::Ordering;

impl CatalogSessions<'_> {
    /// Registers a process, its id and its user; returns its session and the commit that it pins:
    /// the newest one. Refused when the schema is no longer this build's (`CATALOG-11`).
    pub fn begin(
        &self,
        (pid, uid): (u32, u32),
        label: &str,
        now_ns: i64,
    ) -> Result<(SessionId, CommitSeq)> {
        self.catalog.write(|txn| {
            crate::schema::require_known(txn)?;
            let pin = CommitSeq(find_meta(txn, "commit_seq")? as u64);
            let session = SessionId(add_meta(txn, "next_session", 1)? - 1); // CATALOG-4
            txn.execute(
                "INSERT INTO larder_session (id, pid, label, started_ns, pin_seq) \
                 VALUES (?1, ?2, ?3, ?4, ?5)",
                params![signed(session.0), pid, label, now_ns, signed(pin.0)],
            )
            .at("larder_session")?;
            authors::begin(txn, session, (pid, uid), label)?;
            Ok((session, pin))
        })
    }

    /// Removes a session, its pin, and its holds on orphans. Ending it twice is no error.
    pub fn end(&self, session: SessionId) -> Result<()> {
        self.end_all(&[session])
    }

    /// The same for several, in one commit.
    pub fn end_all(&self, sessions: &[SessionId]) -> Result<()> {
        self.catalog.write(|txn| {
            for session in sessions {
                for (table, key) in [
                    ("larder_holder", "session"),
                    ("larder_as_of", "session"),
                    ("larder_session", "id"),
                ] {
                    txn.prepare_cached(&format!("DELETE FROM {table} WHERE {key} = ?1"))
                        .and_then(|mut delete| delete.execute([signed(session.0)]))
                        .at(table)?;
                }
                authors::end(txn, *session)?;
            }
            Ok(())
        })
    }

    /// All sessions, oldest first; a process that died may have left one.
    pub fn rows(&self) -> Result<Vec<SessionRow>> {
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT id, pid, label, started_ns, pin_seq FROM larder_session ORDER BY id",
                [],
                |row| {
                    Ok(SessionRow {
                        session: SessionId(unsigned(row, 0)?),
                        pid: row.get(1)?,
                        label: row.get(2)?,
                        started_ns: row.get(3)?,
                        pin_seq: CommitSeq(unsigned(row, 4)?),
                    })
                },
            )
            .at("larder_session")
        })
    }

    /// Moves a session's pin, outside a commit ([`ChangeSet::pin`](crate::ChangeSet::pin) is
    /// cheaper).
    pub fn set_pin(&self, session: SessionId, seq: CommitSeq) -> Result<()> {
        self.catalog.write(|txn| update_pin(txn, session, seq))
    }

    /// Inodes without a name that live on, and the commit since when.
    pub fn orphans(&self) -> Result<Vec<(StoreId, Ino, CommitSeq)>> {
        self.orphans_after(None, usize::MAX)
    }

    /// Whether there is any. 2 µs.
    pub fn has_orphans(&self) -> Result<bool> {
        Ok(!self.orphans_after(None, 1)?.is_empty())
    }

    /// At most so many of them, behind one. O(these).
    pub fn orphans_after(
        &self,
        after: Option<(StoreId, Ino)>,
        count_max: usize,
    ) -> Result<Vec<(StoreId, Ino, CommitSeq)>> {
        let (store, ino) = after.map_or((-1, -1), |(store, ino)| (store.0.into(), signed(ino.0)));
        let count_max = i64::try_from(count_max).unwrap_or(i64::MAX);
        self.catalog.read(|reader| {
            rows(
                reader,
                "SELECT store, ino, seq FROM larder_orphan WHERE (store, ino) > (?1, ?2) \
                 ORDER BY store, ino LIMIT ?3",
                [store, ino, count_max],
                |row| {
                    Ok((
                        StoreId(row.get(0)?),
                        Ino(unsigned(row, 1)?),
                        CommitSeq(unsigned(row, 2)?),
                    ))
                },
            )
            .at("larder_orphan")
        })
    }

    /// Which session has which orphan open.
    pub fn holders(&self) -> Result<Vec<(StoreId, Ino, SessionId)>> {
        self.catalog.read(|reader| {
            let sql = "SELECT store, ino, session FROM larder_holder ORDER BY store, ino, session";
            rows(reader, sql, [], |row| {
                Ok((
                    StoreId(row.get(0)?),
                    Ino(unsigned(row, 1)?),
                    SessionId(unsigned(row, 2)?),
                ))
            })
            .at("larder_holder")
        })
    }

    /// The session has this orphan open, at once: for a session that learns of the orphan from
    /// another one's commit.
    pub fn add_holder(&self, store: StoreId, ino: Ino, session: SessionId) -> Result<()> {
        self.catalog.write(|txn| {
            txn.prepare_cached(
                "INSERT OR IGNORE INTO larder_holder(store, ino, session) VALUES (?1, ?2, ?3)",
            )
            .and_then(|mut add| add.execute(params![store.0, signed(ino.0), signed(session.0)]))
            .at("larder_holder")
            .map(drop)
        })
    }
}

/// Moves the pin of a session that must be there.
pub(crate) fn update_pin(txn: &Connection, session: SessionId, seq: CommitSeq) -> Result<()> {
    let changed = txn
        .prepare_cached("UPDATE larder_session SET pin_seq = ?2 WHERE id = ?1")
        .and_then(|mut pin| pin.execute([signed(session.0), signed(seq.0)]))
        .at("larder_session")?;
    match changed {
        1 => Ok(()),
        _ => Err(CatalogError::not_found(format!("session {session}"))),
    }
}

impl CatalogForeign<'_> {
    /// Commits are this session's from now on.
    pub fn set_session(&self, session: SessionId) {
        self.catalog.session.store(session.0, Ordering::Relaxed);
    }
}

impl CatalogSessions<'_> {
    /// Who commits next, for that user.
    pub(crate) fn author(&self, user: Option<u32>) -> Author {
        let session = self.catalog.session.load(Ordering::Relaxed);
        Author {
            session: (session != NOBODY).then_some(SessionId(session)),
            user,
        }
    }
}
