//! A transaction that its owner keeps open between calls, on the connection that writes.
//!
//! A *private* catalog ([`SqliteCatalog::open_private`]) has one owner. All its reads and writes go
//! through one connection, so the owner sees what its transaction has done, and nobody else does
//! before the commit: SQLite's log gives everybody else the state before.
//!
//! ```text
//!          begin_snapshot              take_write_lock
//!  idle ───────────────────▶ reading ──────────────────▶ writing ── commit_transaction ──▶ idle
//!    │                          └── stale: somebody committed ──┐       │ step by step
//!    └── begin_immediate ──▶ writing                            ▼       └── roll_back ───▶ idle
//!                                                      the owner rolls back
//! ```
//!
//! A *step* is what is a transaction of its own elsewhere: a group commit, a trial, a statement.
//! Here it is a savepoint, or as atomic by itself.
//!
//! `CATALOG-9` stands in the crate's header.

use crate::authors::Author;
use crate::conn::log_vfs;
use crate::conn::meta::{find_meta, next_commit_seq, set_guard_switch};
use crate::conn::savepoint::execute;
pub(crate) use crate::conn::savepoint::{Stage, as_step, as_trial, require_open};
use crate::conn::waiting::{Patience, describe_sqlite_holder};
use crate::error::{At, CatalogError, Result};
use crate::history::{Keeper, newest_moment, newest_until};
use crate::{CatalogTransaction, Writer, lock};
use larder_format::CommitSeq;
use rusqlite::{Connection, ffi};
use std::sync::atomic::Ordering;
use std::time::Duration;

fn savepoint_name(depth: usize) -> String {
    format!("larder_savepoint_{depth}")
}

/// What the end of a transaction did to the log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFlush {
    /// Flushed it: this commit, and every one before it, is durable.
    Made,
    /// Left that out: the caller is to call [`CatalogTransaction::flush_log`], of any catalog of
    /// this database, which begins afterwards.
    Owed,
    /// Wrote nothing, as far as is known: commits before it may owe their flush.
    None,
}

impl CatalogTransaction<'_> {
    fn enter(&self, writer: &mut Writer, begin: &str, stage: Stage) -> Result<bool> {
        debug_assert_eq!(writer.stage, Stage::Idle, "CATALOG-9");
        self.require_running()?;
        execute(&writer.connection, begin).at("the start of a transaction")?;
        writer.stage = stage;
        let seen = crate::data_version(&writer.connection)?; // Takes the snapshot.
        Ok(std::mem::replace(&mut writer.data_version, seen) != seen)
    }

    /// Begins a transaction: from here on the owner sees this moment. Says whether anybody else has
    /// committed since the owner's last transaction. 3 µs.
    pub fn begin_snapshot(&self) -> Result<bool> {
        self.enter(&mut lock(&self.catalog.writer), "BEGIN", Stage::Reading)
    }

    /// The same with the write lock, for which it waits up to 30 s.
    pub fn begin_immediate(&self) -> Result<bool> {
        let mut writer = lock(&self.catalog.writer);
        self.enter(&mut writer, "BEGIN IMMEDIATE", Stage::Writing)
    }

    /// Takes the write lock in a transaction that reads; `false` when its snapshot is not the
    /// present any more. Waits up to 30 s for an SQL client that has the lock.
    pub fn take_write_lock(&self) -> Result<bool> {
        let mut writer = lock(&self.catalog.writer);
        require_open(&writer.connection)?;
        let mut patience = Patience::new(self.catalog.options.wait_max());
        loop {
            // Changes nothing, but SQLite begins to write.
            let tried = execute(
                &writer.connection,
                "UPDATE larder_guard_switch SET open = open WHERE id < 0",
            );
            let code = tried
                .as_ref()
                .err()
                .and_then(|error| error.sqlite_error())
                .map(|error| error.extended_code);
            match code {
                Some(ffi::SQLITE_BUSY_SNAPSHOT) => return Ok(false),
                Some(ffi::SQLITE_BUSY) => {
                    let directory = self.catalog.place.directory();
                    let who = || describe_sqlite_holder(directory);
                    if let Some(why) = patience.look("the catalog's lock", directory, who) {
                        return Err(CatalogError::Busy {
                            waited: patience.waited(),
                            why: Some(why),
                        });
                    }
                    // SQLite does not wait here: who commits meanwhile makes the snapshot old.
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => {
                    tried.at("the write lock")?;
                    writer.stage = Stage::Writing;
                    return Ok(true);
                }
            }
        }
    }

    /// Commits the transaction, durably. Any error rolls it back, but after
    /// [`CatalogError::CommitUnknown`] only reopening tells. Without changes: nothing is written.
    ///
    /// With `defers` others may see it before it is durable ([`LogFlush::Owed`]).
    pub fn commit(&self, defers: bool) -> Result<LogFlush> {
        let mut writer = lock(&self.catalog.writer);
        debug_assert!(writer.stage != Stage::Client, "CLIENT-1");
        require_open(&writer.connection)?;
        if let Some(now_ns) = lock(&self.catalog.moment_ns).take()
            && let Err(error) = self
                .catalog
                .require_unhidden(&writer.connection)
                .and_then(|()| {
                    note_moment(
                        &writer.connection,
                        now_ns,
                        self.catalog.sessions().author(None),
                    )
                })
        {
            end(&mut writer)?;
            return Err(error);
        }
        let defers = defers && log_vfs::defer_flush(&writer.connection);
        log_vfs::take_flushed(&writer.connection); // That was an earlier one.
        let committed = execute(&writer.connection, "COMMIT");
        let is_owed = defers && log_vfs::end_deferring(&writer.connection);
        let is_flushed = log_vfs::take_flushed(&writer.connection);
        match committed {
            Ok(()) => {
                writer.stage = Stage::Idle;
                Ok(match (is_owed, is_flushed) {
                    (true, _) => LogFlush::Owed,
                    (false, true) => LogFlush::Made,
                    (false, false) => LogFlush::None,
                })
            }
            Err(error) => {
                let error = self.catalog.sort_commit(error);
                end(&mut writer)?;
                Err(error)
            }
        }
    }

    /// Rolls the transaction back, if there is one.
    pub fn roll_back(&self) -> Result<()> {
        *lock(&self.catalog.moment_ns) = None;
        end(&mut lock(&self.catalog.writer))
    }

    /// Sets a savepoint inside of `depth` others.
    pub fn set_savepoint(&self, depth: usize) -> Result<()> {
        self.on_savepoint("SAVEPOINT", depth)
    }

    /// Takes back everything since the savepoint, which stays.
    pub fn roll_back_to(&self, depth: usize) -> Result<()> {
        self.on_savepoint("ROLLBACK TO", depth)?;
        lock(&self.catalog.writer).guards.forget();
        Ok(())
    }

    /// Forgets the savepoint and those after it; what was done since stays.
    pub fn release_savepoint(&self, depth: usize) -> Result<()> {
        self.on_savepoint("RELEASE", depth)
    }

    fn on_savepoint(&self, verb: &str, depth: usize) -> Result<()> {
        let writer = lock(&self.catalog.writer);
        require_open(&writer.connection)?;
        execute(
            &writer.connection,
            &format!("{verb} {}", savepoint_name(depth)),
        )
        .at("a savepoint")
    }

    /// Whether the owner's transaction is open: SQLite may have rolled it back.
    pub fn is_in_transaction(&self) -> bool {
        !lock(&self.catalog.writer).connection.is_autocommit()
    }

    fn require_running(&self) -> Result<()> {
        match self.catalog.is_stopped.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(CatalogError::CommitUnknown {
                cause: "an earlier commit failed".into(),
            }),
        }
    }
}

/// The steps of a transaction have one moment, unless all were taken back. With triggers off or the
/// guard switch closed: a transaction of its own in what its owner began.
pub(crate) fn note_moment(connection: &Connection, now_ns: i64, author: Author) -> Result<()> {
    set_guard_switch(connection, true)?;
    let mut seq = CommitSeq(find_meta(connection, "commit_seq")? as u64);
    if newest_until(connection)? > seq {
        // SQL changed attributes after the last step: that counts to the next commit, which is this
        // one.
        seq = next_commit_seq(connection)?;
    }
    if newest_moment(connection)?.is_none_or(|(newest, _)| newest < seq) {
        Keeper::begin(connection, seq, now_ns)?
            .by(author)
            .end(connection)?;
    }
    set_guard_switch(connection, false)
}

fn end(writer: &mut Writer) -> Result<()> {
    if writer.stage == Stage::Client {
        return Ok(()); // CLIENT-1
    }
    let was_writing = std::mem::replace(&mut writer.stage, Stage::Idle) == Stage::Writing;
    if was_writing {
        writer.guards.forget();
    }
    match writer.connection.is_autocommit() {
        true => Ok(()),
        false => execute(&writer.connection, "ROLLBACK").at("the end of a transaction"),
    }
}
