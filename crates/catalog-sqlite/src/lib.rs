//! The catalog: names, attributes, extent maps and allocation of a database, in SQLite. The only
//! crate with catalog SQL.
//!
//! # Words
//! A *store table* has one row per inode: our columns and the user's. Its *side tables* hold
//! directory entries, inline content, extent maps and extended attributes. An *extent row* says who
//! holds which blocks; it is *live* until a commit *retires* it, and *reclaim* deletes it. A
//! *change set* is what one group commit changes; *commit seq* numbers them. A *session* is a
//! process that has the database open; its *pin* keeps what was retired later from being reclaimed.
//! The *guard switch* is the row that lets the engine pass its guard triggers (`guards`). What
//! commits supersede is kept in the *history* (`history`), and read by a catalog of the *past*
//! (`past`).
//!
//! SqliteCatalog has more than 20 fields: some serve only the past, a client or a workspace.
//!
//! # Invariants
//! * `CATALOG-1` The extent rows are the only truth of allocation: no two overlap, none crosses an
//!   allocation group, and what no row covers is free. *Guard*: [`SqliteCatalog::commit`] refuses
//!   an allocation that overlaps a row and a retirement of what is not live; a CHECK keeps each in
//!   its group; `check` reads them all.
//! * `CATALOG-2` A change set is applied as a whole or not at all, and so is everything else that
//!   writes. *Guard*: one `BEGIN IMMEDIATE … COMMIT`; leaving early rolls back.
//! * `CATALOG-3` Outside the engine's transactions the guard switch is closed, and while it is
//!   closed only user columns and attributes of a store table can change. *Guard*: guard triggers
//!   in pure SQL, which hold in every SQLite ≥ 3.40; `check` reports an open guard switch and
//!   missing triggers. Only the engine's own writer passes them, and a user's triggers see what it
//!   does (`guards`).
//! * `CATALOG-4` Inode numbers, store ids, session ids and numbers of shared map pages are never
//!   reused. *Guard*: counters that only grow, raised in the transaction that uses them.
//! * `CATALOG-5` After a COMMIT with an unknown outcome nothing is written any more. *Guard*: a
//!   flag that every write looks at; the caller reopens.
//! * `CATALOG-6` Names and attribute names are TEXT when they are UTF-8, else BLOB, so one name has
//!   one form; SQLite sorts TEXT before BLOB, and [`dirent_order`] says the same. *Guard*: one type
//!   binds them; a property test compares the orders.
//! * `CATALOG-7` A commit is durable when it returns, but one whose caller takes the flush upon
//!   himself ([`CatalogTransaction::commit`], [`CatalogTransaction::flush_log`]). *Guard*:
//!   `synchronous = FULL` on every connection that writes; crash tests of the layers above.
//!
//! * `CATALOG-8` `larder_ag` says for each allocation group how many blocks its extent rows have,
//!   and how many of them are retired. It is derived: nothing is ever decided by it that the rows
//!   decide otherwise. *Guard*: changed in the transaction that changes the rows; `check` compares
//!   them.
//! * `CATALOG-9` In a transaction of its owner ([`SqliteCatalog::open_private`]) nothing is
//!   committed but by [`CatalogTransaction::commit`]: everything else that writes is a savepoint in
//!   it. *Guard*: an SQL statement that would begin, end or leave a transaction is refused.
//! * `CATALOG-12` Where users may make temporary tables, nothing of ours is read or written while
//!   one has the name of a table of ours (`temporary`). *Guard*: every read, write and commit on
//!   such a connection looks.
//!
//! # Concurrency
//! [`SqliteCatalog`] is `Sync`. One writer connection stands behind a mutex; readers borrow
//! connections of their own and never wait for it, since the log (WAL) gives each statement one
//! committed moment. Checkpoints have a connection of their own and run beside commits. Lock order:
//! `writer`, then `stores`; the others are leaves. Other processes, an `sqlite3` shell among them,
//! may read and write at any time; our connections wait for their locks up to 30 s. A shell without
//! a busy timeout fails while we hold the write lock, hence everything is computed before BEGIN.
//!
//! # Recovery
//! SQLite's own: an interrupted transaction leaves nothing. Of the last commits, those that
//! returned are there.
//!
//! # Cost
//! A commit: about 10 µs per new file, plus one sync. A lookup: 2–4 µs. See
//! `examples/commit_cost.rs`.

mod authors;
mod check;
mod commit;
mod conn;
mod error;
mod feed;
#[cfg(fuzzing)]
pub mod fuzzing;
mod guards;
mod history;
mod open;
mod past;
mod schema;
mod space;
mod stores;
mod temporal;
mod types;
mod upgrade;
mod user_sql;
mod workspace;

pub use authors::CommitAuthor;
pub use check::damage::find_damage;
pub use commit::foreign::{ForeignLook, Mark};
pub use commit::refusals::Refusal;
pub use commit::transaction::LogFlush;
pub use conn::functions::{FileRow, FileRows, SqlFile, SqlFiles, SqlMoment, VALUE_BYTES_MAX};
pub use conn::log::{CheckpointKind, CheckpointOutcome, Length, LogUse};
pub use conn::log_scan::{LogEnd, UNFLUSHED_COMMITS_MAX, require_sound_log};
#[cfg(feature = "bundled")]
pub use conn::memory::bound_requests;
pub use conn::place::{CATALOG_FILE, CatalogOptions};
pub use conn::trust::Trust;
pub use conn::waiting;
pub use error::BUSY_TIMEOUT;
pub use feed::{FeedBounds, FeedChange, FeedEvent};
pub use history::SupersededMap;
pub use history::retention::horizon::{HistoryHorizon, StoreHorizon};
pub use history::retention::stores::HistoryUse;
pub use history::retention::{Retention, Retentions};
pub use history::seals::{Beginnings, KeptRow, SealRow, SealedKind, SealedPart};
pub use history::snapshot_stores::own_snapshot;
pub use history::versions::{HistoryReader, Touch, WholeCommit};
pub use larder_catalog_types::{
    AccessTime, AgRow, AttrMask, CatalogError, ChangeSet, CommitOutcome, ContentRow, DatabaseInfo,
    DatabaseInit, DirentChange, DirentRow, ExtentRow, FileContent, Held, InodeChange, InodeRow,
    MapShare, Moment, PastPin, RedoRow, Result, RetentionHorizons, Save, SegmentRow, SessionRow,
    SharedPages, SharedRow, Sharing, StoreRow, Tuning, XattrChange, check_store_name, dirent_order,
};
pub use larder_format as format;
pub use past::snapshots::SnapshotRow;
pub use schema::SCHEMA_VERSION;
pub use space::grants::Grants;
pub use temporal::{
    ColumnsStep, ExactRows, PastRows, RowsChange, RowsStep, StoreColumns, TemporalTable,
};
pub use types::sql::{SqlRow, SqlValue, is_complete};
pub use upgrade::Upgrade;
pub use user_sql::client::{
    ClientEnd, ClientHandle, ClientLocks, ClientStatement, ClientWatch, open_client,
};
pub use user_sql::{SqlControl, SqlStatement};
pub use workspace::{Conflict, GRANTS, INO_RANGE, InoRange, Merged, TransactionRow};

use commit::transaction::Stage;
use conn::meta::data_version;
use conn::place::Place;
use conn::waiting::{Waits, lock};
use error::{At, sort};
use guards::Guards;
use larder_format::{CommitSeq, StoreId};
use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior};
use schema::statements::StoreSql;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError, RwLock};
use std::time::Duration;
use types::names::StoreName;
use user_sql::UserSide;
use user_sql::client::ClientSide;

/// Idle read connections that are kept.
const READERS_MAX: usize = 8;

/// An open catalog. Dropping it closes the connections; the last one in the world to close also
/// empties the log.
pub struct SqliteCatalog {
    /// Of a catalog with one owner, who reads on the connection that writes (`transaction`): the
    /// user's side of it. Dropped first: what it compiled must not outlive the connection.
    user: Option<UserSide>,
    /// Of a catalog that is another program's connection (`client`).
    client: Option<ClientSide>,
    place: Place,
    options: CatalogOptions,
    /// What a catalog has is decided when it is created.
    page_bytes: u32,
    writer: Mutex<Writer>,
    /// Closed after nobody reads the index any more.
    log_index: OnceLock<Option<conn::generation::LogIndex>>,
    checkpointer: Mutex<Connection>,
    /// Flushes the log beside commits; opened when it is needed.
    flusher: Mutex<Option<Connection>>,
    readers: Mutex<Vec<Connection>>,
    stores: RwLock<HashMap<StoreId, Arc<StoreSql>>>,
    is_stopped: AtomicBool,
    /// Its commits tell what they add (`FOREIGN-2`).
    tells: AtomicBool,
    /// Which rows of the history its commits have added since the last look: the first and the last
    /// of each run.
    own_rows: Mutex<Vec<(i64, i64)>>,
    /// It is of the past, and reads only.
    as_of: Option<CommitSeq>,
    /// What keeps that past.
    past_pin: Option<PastPin>,
    /// How to read the user's columns then, by store, and of which version of the schema that is.
    past_columns: Mutex<HashMap<StoreId, VersionedColumns>>,
    /// Of the last step of the owner's transaction.
    moment_ns: Mutex<Option<i64>>,
    /// Whose commits these are (`authors`).
    session: AtomicU64,
    /// The long transaction whose workspace this is.
    workspace: Option<u64>,
    grants: RwLock<Arc<Grants>>,
}

/// How to read the user's columns of a store as of a moment, and of which version of the schema
/// that is; `None`: they have no past.
type VersionedColumns = (i64, Option<Arc<StoreColumns>>);

/// The connection that writes.
struct Writer {
    connection: Connection,
    /// How it waits for locks; `None`: the connection is another program's.
    waits: Option<Arc<Waits>>,
    /// The owner's transaction.
    stage: Stage,
    /// What it saw last.
    data_version: i64,
    guards: Guards,
}

/// Parts of the catalog's interface: each a reference to the catalog, with the methods of its room.
macro_rules! parts {
    ($($(#[$doc:meta])* $name:ident $part:ident)*) => {
        $(
            $(#[$doc])*
            #[derive(Debug, Clone, Copy)]
            pub struct $part<'c> {
                catalog: &'c SqliteCatalog,
            }
        )*

        impl SqliteCatalog {
            $(
                $(#[$doc])*
                pub fn $name(&self) -> $part<'_> {
                    $part { catalog: self }
                }
            )*
        }
    };
}

parts! {
    /// Inodes, names, content and extended attributes, as they are now.
    tables CatalogTables
    /// Where the content of an object lies: redo rows and lists of pieces.
    maps CatalogMaps
    /// Extents, segments, and who holds them.
    space CatalogSpace
    /// Stores.
    stores CatalogStores
    /// Sessions, what they pin and hold open.
    sessions CatalogSessions
    /// What others have committed.
    foreign CatalogForeign
    /// The log (WAL), and how it gets into the database file.
    log CatalogLog
    /// The owner's transaction, and when commits are durable.
    transaction CatalogTransaction
    /// What the user's rules accept.
    rules CatalogRules
    /// How long history is kept.
    retention CatalogRetention
    /// What is kept of the past, and snapshots.
    history CatalogHistory
    /// Moments of the past, and catalogs that show one.
    past CatalogPast
    /// Users' tables and columns that have a past.
    temporal CatalogTemporal
    /// The feed of changes.
    feed CatalogFeed
    /// SQL of users.
    sql CatalogSql
    /// The connection of another program.
    client CatalogClient
    /// The workspace of a long transaction.
    workspace CatalogWorkspace
    /// Looking through all that there is.
    survey CatalogSurvey
}

impl SqliteCatalog {
    /// Runs `body` on a read connection. Every statement sees one committed moment.
    fn read<T>(&self, body: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        if self.user.is_some() || self.client.is_some() {
            let writer = lock(&self.writer);
            self.require_unhidden(&writer.connection)?;
            return body(&writer.connection);
        }
        let idle = lock(&self.readers).pop();
        let reader = match idle {
            Some(reader) => reader,
            None => self.connect_reader()?,
        };
        let result = body(&reader);
        let result = self.past().require_pinned(&reader).and(result);
        let mut readers = lock(&self.readers);
        if readers.len() < READERS_MAX {
            readers.push(reader);
        }
        result
    }

    /// From now on what writes waits so long for others; `None`: as it was opened.
    pub fn wait_at_most(&self, wait_max: Option<Duration>) {
        if let Some(waits) = &lock(&self.writer).waits {
            waits.set(wait_max.unwrap_or_else(|| self.options.wait_max()));
        }
    }

    /// Runs `body` in the one write transaction; the guards let it pass (`CATALOG-3`).
    fn write<T>(&self, body: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.transact(|txn, guards| {
            guards.open(txn)?;
            if guards.take_news() && self.workspace.is_none() {
                temporal::refresh(txn)?;
            }
            let value = body(txn)?;
            guards.close(txn)?;
            Ok(value)
        })
    }

    /// The same; the guards treat `body` like an `sqlite3` shell.
    fn write_as_user<T>(&self, body: impl FnOnce(&Connection) -> Result<T>) -> Result<T> {
        self.transact(|txn, guards| {
            guards.stand(txn, false)?;
            body(txn)
        })
    }

    fn transact<T>(&self, body: impl FnOnce(&Connection, &mut Guards) -> Result<T>) -> Result<T> {
        self.transact_on(&mut lock(&self.writer), body)
    }

    fn transact_on<T>(
        &self,
        writer: &mut Writer,
        body: impl FnOnce(&Connection, &mut Guards) -> Result<T>,
    ) -> Result<T> {
        let Writer {
            connection,
            guards,
            stage,
            ..
        } = writer;
        if self.is_stopped.load(Ordering::Acquire) {
            return Err(CatalogError::CommitUnknown {
                cause: "an earlier commit failed".into(),
            });
        }
        self.require_unhidden(connection)?;
        match stage {
            // CLIENT-1: no savepoint either. Who fails refuses the client's commit.
            Stage::Client => {
                return self
                    .client()
                    .transact_for_client(|| body(connection, guards));
            }
            Stage::Reading | Stage::Writing => {
                return commit::transaction::as_step(connection, |step| {
                    body(step, guards).map_err(|error| guards.explain(error))
                });
            }
            Stage::Idle => {}
        }
        let txn = Transaction::new_unchecked(connection, TransactionBehavior::Immediate)
            .at("the start of a commit")?;
        // Leaving here rolls back (CATALOG-2).
        let value = body(&txn, guards).map_err(|error| guards.explain(error))?;
        txn.commit().map_err(|error| self.sort_commit(error))?;
        Ok(value)
    }

    /// `CATALOG-12`, where users may make temporary tables.
    fn require_unhidden(&self, connection: &Connection) -> Result<()> {
        let makes = self.user.as_ref().is_some_and(UserSide::makes_temporary);
        match makes || self.client.is_some() {
            true => conn::temporary::require_none(connection),
            false => Ok(()),
        }
    }

    /// A failed COMMIT: SQLite is definite about a deferred constraint, a lock and a full disk (the
    /// frame that commits was not written), and nobody can be definite about anything else.
    fn sort_commit(&self, error: rusqlite::Error) -> CatalogError {
        match error.sqlite_error_code() {
            Some(
                ErrorCode::ConstraintViolation | ErrorCode::DatabaseBusy | ErrorCode::DiskFull,
            ) => sort("the commit", error),
            _ => {
                self.is_stopped.store(true, Ordering::Release); // CATALOG-5
                tracing::error!(%error, "the outcome of a catalog commit is unknown");
                CatalogError::CommitUnknown {
                    cause: error.to_string(),
                }
            }
        }
    }

    /// The statements for a store; from the catalog the first time.
    fn store_sql(&self, store: StoreId) -> Result<Arc<StoreSql>> {
        let cached = self
            .stores
            .read()
            .unwrap_or_else(PoisonError::into_inner)
            .get(&store)
            .cloned();
        if let Some(sql) = cached {
            return Ok(sql);
        }
        let (owner, name): (u32, StoreName) = self.read(|reader| {
            reader
                .prepare_cached(
                    "SELECT owner.id, owner.name FROM larder_store AS store \
                     JOIN larder_store AS owner ON owner.id = store.table_store WHERE store.id = \
                     ?1",
                )
                .and_then(|mut find| {
                    find.query_row([store.0], |row| Ok((row.get(0)?, row.get(1)?)))
                        .optional()
                })
                .at("larder_store")?
                .ok_or_else(|| CatalogError::not_found(format!("store {store}")))
        })?;
        if let Some(seq) = self.as_of {
            // It stays so: what reaches this commit is held by the pin (HISTORY-7).
            self.read(|reader| history::require_reach(reader, StoreId(owner), &name, seq))?;
        }
        let sql = Arc::new(match self.as_of {
            None => StoreSql::new(StoreId(owner), &name),
            Some(seq) => StoreSql::as_of(StoreId(owner), &name, seq),
        });
        let mut stores = self.stores.write().unwrap_or_else(PoisonError::into_inner);
        Ok(Arc::clone(stores.entry(store).or_insert(sql)))
    }
}

impl std::fmt::Debug for SqliteCatalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqliteCatalog")
            .field("path", &self.place.path())
            .finish_non_exhaustive()
    }
}
