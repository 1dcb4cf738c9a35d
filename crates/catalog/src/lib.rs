//! The catalog of a database behind one interface: names, attributes, extent maps, allocation.
//!
//! # Words
//! A *catalog* is where the rows of a database lie: in SQLite ([`SqliteCatalog`]), or in memory
//! ([`MemoryCatalog`], for tests). Its *core* is what each of them does: [`Catalog::commit`] and
//! the parts of `interface.rs`. A [`Feature`] is a part that a catalog has as a whole, or not at
//! all.
//!
//! # Invariants
//! * `INTERFACE-1` To the same calls of the core every catalog gives the same answers, but for what
//!   the header of `memory.rs` names. *Guard*: the conformance suite (`tests/conformance`) puts
//!   each of them to the same questions.
//! * `INTERFACE-2` What a catalog has not it refuses by name ([`CatalogError::Unsupported`]) and
//!   changes nothing. *Guard*: a feature is reached through a method that returns it or that error.
//! * `INTERFACE-3` No type and no error of rusqlite crosses, and the engine does not use the crates
//!   below. *Guard*: `cargo xtask tidy` knows which crates may use which.
//!
//! # Two ways to commit
//! [`Catalog::commit`] takes all that a group changes at once; nothing is asked in between, so a
//! catalog beyond the network can do it in few trips. [`Catalog::transaction`] is for a
//! transaction that interleaves a user's SQL: begin, changes, SQL, savepoints, commit; only its
//! owner can do that again.

mod catalog;
mod interface;
mod memory;

pub use catalog::Catalog;
pub use interface::{
    CatalogMaps, CatalogSessions, CatalogSpace, CatalogStores, CatalogSurvey, CatalogTables,
};
#[cfg(feature = "bundled")]
pub use larder_catalog_sqlite::bound_requests;
pub use larder_catalog_sqlite::{
    BUSY_TIMEOUT, Beginnings, CATALOG_FILE, CatalogClient, CatalogFeed, CatalogForeign,
    CatalogHistory, CatalogLog, CatalogOptions, CatalogPast, CatalogRetention, CatalogRules,
    CatalogSql, CatalogTemporal, CatalogTransaction, CatalogWorkspace, CheckpointKind,
    CheckpointOutcome, ClientEnd, ClientHandle, ClientLocks, ClientStatement, ClientWatch,
    ColumnsStep, CommitAuthor, Conflict, ExactRows, FeedBounds, FeedChange, FeedEvent, FileRow,
    FileRows, ForeignLook, GRANTS, Grants, HistoryHorizon, HistoryReader, HistoryUse, INO_RANGE,
    InoRange, KeptRow, Length, LogEnd, LogFlush, LogUse, Mark, Merged, PastRows, Refusal,
    Retention, Retentions, RowsChange, RowsStep, SCHEMA_VERSION, SealRow, SealedKind, SealedPart,
    SnapshotRow, SqlControl, SqlFile, SqlFiles, SqlMoment, SqlRow, SqlStatement, SqlValue,
    SqliteCatalog, StoreColumns, StoreHorizon, SupersededMap, TemporalTable, Touch, TransactionRow,
    Trust, UNFLUSHED_COMMITS_MAX, Upgrade, VALUE_BYTES_MAX, WholeCommit, find_damage, is_complete,
    open_client, own_snapshot, require_sound_log, waiting,
};
pub use larder_catalog_types::{
    AccessTime, AgRow, AttrMask, CatalogError, ChangeSet, CommitOutcome, ContentRow, DatabaseInfo,
    DatabaseInit, DirentChange, DirentRow, ExtentRow, Feature, FileContent, Held, InodeChange,
    InodeRow, MapShare, Moment, PastPin, RedoRow, Result, RetentionHorizons, Save, SegmentRow,
    SessionRow, SharedPages, SharedRow, Sharing, StoreRow, Tuning, XattrChange, check_store_name,
    dirent_order, utc,
};
pub use larder_format as format;
pub use memory::MemoryCatalog;
