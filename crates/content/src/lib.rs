//! The public crate: one call per POSIX primitive, dispatched to stores.
//!
//! # Words
//! A [`Database`] is an open database in this process. It holds *stores*; each is served by a
//! *provider* ([`StoreProvider`]). A *node* ([`NodeId`]) is an inode of a store. A *handle*
//! ([`FileHandle`]) is the open state of a regular file. A *path* is absolute, in bytes, and is
//! dispatched to the store with the longest matching mount prefix.
//!
//! # Invariants
//! * `CONTENT-1` A path is resolved component by component; a store mount hides a directory entry
//!   of the same name, and no entry of that name can be made beside it.
//! * `CONTENT-2` No operation crosses a store: rename and link between stores answer
//!   [`ErrorKind::CrossStore`].
//! * `CONTENT-3` Every operation is atomic, and the order of operations is the order of their
//!   effects after a crash: what remains is a prefix.
//! * `CONTENT-4` A name that is gone leaves its inode alive for as long as a handle is open.
//! * `CONTENT-5` `sync` on a handle or the database returns after the commit that holds every
//!   operation that ended before it was called.
//!
//! `CONTENT-6` and `CONTENT-7`, about transactions, stand in `transaction`, `CONTENT-9`, about the
//! past, in `past`, and `CONTENT-10` to `CONTENT-12`, about what it is good for, in `history`, and
//! `CLONE-1` in `clone`.
//!
//! What can be done stands in rooms: [`Database::files`], [`Database::history`], [`Database::sql`]
//! and others, each with an example.
//!
//! Every type is `Send + Sync`; calls block. Access checks are the caller's business (the mount
//! lets the kernel do them); the API acts as the owner of the database.

mod acl;
mod active_transaction;
mod as_of;
mod attributes;
mod by_path;
mod changes;
mod client;
mod clone;
mod copy;
mod database;
mod environment;
mod file;
mod files;
#[cfg(fuzzing)]
pub mod fuzzing;
mod glob;
mod guarded;
mod handle;
mod history;
mod inode_flags;
mod listing;
mod long;
mod maintenance;
mod nodes;
mod path;
mod provider;
mod readonly;
mod retention;
mod rooms;
#[cfg(feature = "seals")]
mod seal;
mod set_id;
mod sql;
mod sql_files;
mod staging;
mod stores;
mod transaction;
mod types;
mod walk;
mod xattr;

pub use as_of::parse_moment;
pub use by_path::ReadDir;
pub use changes::Changes;
pub use client::attach_client;
pub use clone::{CloneOptions, CloneReport};
pub use copy::{COPY_BYTES_MAX, copy_range};
pub use database::{CreateOptions, Database, DatabaseOptions, RETENTION_NS_DEFAULT};
pub use environment::{COVERED, TRANSACTION_VARIABLE, transaction_of};
pub use file::{File, OpenOptions};
pub use glob::matches as matches_glob;
pub use history::{
    DiffChange, DiffEvent, DiffReport, LogChange, LogCommit, LogEvent, RestoreAction,
    RestoreOptions, RestoreReport, RestoreRows, RestoreStep, RollbackReport, RowsReport,
    UndoReport, diff,
};
pub use larder_object::ClientHandle;
#[cfg(feature = "bundled")]
pub use larder_object::bound_requests;
pub use larder_object::directory;
#[cfg(debug_assertions)]
pub use larder_object::failpoints;
pub use larder_object::format::{self, FileKind, Ino, Name, NameError, StoreId, limits};
pub use larder_object::{
    AccessRule, AlignedBuf, Birth, CheckReport, CommitAuthor, CompactStep, Conflict, DefragObject,
    DefragOptions, DefragReport, EngineOptions, Error, ErrorKind, FeedBounds, FeedChange,
    FeedEvent, Follower, ForeignChange, ForeignObserver, FragReport, Gauges, HistoryReport, Keeper,
    MapCell, Moment, PruneCut, PruneReport, RefusedFile, Result, Retention, SCHEMA_VERSION,
    Savepoint, SealRow, SegmentMap, SessionInfo, SharedPages, ShrinkReport, SizeClass, SnapshotRow,
    SpaceReport, SqlRow, SqlValue, StatsReport, StoreHistory, StoreRetention, TemporalTable,
    TransactionInfo, TransactionOutcome, Tuning, UpgradeReport, act_for, await_followers,
    describe_server, drop_refused, free_killed, gather_bytes_default, list_refused, list_sessions,
    open_refused, upgrade,
};
pub use larder_object::{Trust, find_damage, utc};
pub use long::{LongTransaction, abort_long, begin_detached, commit_long, list_long};
pub use path::split_path;
pub use provider::{FileContent, FileHandle, ProviderContext, ProviderFactory, StoreProvider};
pub use retention::{KeepPolicy, Pruned};
pub use rooms::{
    Attributes, Feed, Files, History, Maintenance, Nodes, Sessions, Snapshots, Sql, Stores,
    Transactions,
};
#[cfg(feature = "seals")]
pub use seal::{
    PublicKey, SealReport, SealState, SigningKey, VerifiedSeal, VerifyFinding, VerifyOptions,
    VerifyReport,
};
pub use sql::{SqlResult, SqlSession};
pub use stores::StoreInfo;
pub use transaction::{Transaction, TransactionOptions};
pub use types::{
    AllocateMode, Caller, DirEntry, InodeFlags, Metadata, NewNode, NodeId, RenameMode, SeekTarget,
    SetAttr, SetTime, XattrMode,
};
