//! The engine: objects on segments, names and attributes in the catalog, one commit over both.
//!
//! # Words
//! See the modules: *turn* (which session may change something), *gather* (dirty blocks), *group*
//! (what is committed together), *room* (free space and promises of it), *pin* (what readers may
//! still reach).
//!
//! # Invariants
//! Each module states its own: `TURN-n`, `SESSION-n`, `CACHE-n`, `NODE-n`, `GATHER-n`, `WHOLE-n`, `MAP-4`,
//! `PIECE-n`, `PATCH-n`, `LOGGED-n`, `POOL-n`, `EDIT-n`, `COMMIT-n`, `CHECKPOINT-n`, `LEADER-n`, `ROOM-n`,
//! `PRIVATE-n`, `SHARE-n`, `FOREIGN-3`, `FOREIGN-4`.
//!
//! # The road
//! ```text
//!  content ── namespace (names, attributes) ─┐
//!          └─ edit (content) ── gather ──────┴─▶ group ──▶ commit ─┬─ write_path ─▶ segment
//!  content ── read_path ◀── gather | frozen | inline | patch | map          └─ catalog
//! ```
//!
//! # Concurrency
//! Lock order: turn, `commit_lock`, gate, namespace, `cache`, node (one at a
//! time), `group`, `room`. Operations are
//! users of the turn and inside the gate; the freeze of a group closes the gate for an instant.
//! Nobody takes `commit_lock` while inside the gate.
//!
//! # Recovery
//! Opening is recovery: see `Engine::open` and docs/durability.md.

mod acting;
mod attached;
mod barrier;
mod cache;
mod check_holders;
mod check_pieces;
mod checkpoint;
mod chunk_pool;
mod claims;
mod client;
mod commit;
mod commit_lock;
mod compact;
mod defrag;
mod edit;
mod engine;
mod entries;
mod error;
mod feed;
mod foreign;
mod fragments;
mod gather;
mod group;
mod growth;
mod healing;
mod history;
mod homes;
mod host;
mod host_room;
mod listing;
mod logged;
mod map;
mod moves;
mod namespace;
mod node;
mod options;
mod overlay;
mod past;
mod patch;
mod peers;
mod pieced;
mod pieces;
mod pins;
mod prune;
mod put;
mod read_path;
mod readonly;
mod report;
mod retention;
mod rollback;
mod room;
mod saves;
mod seals;
mod session;
mod share;
mod shared_flush;
mod shrink;
mod sql;
mod stats;
mod stores;
mod survey;
mod transaction;
mod transactions;
mod tuning;
mod turn;
mod versions;
mod whole;
mod workspace;
mod write_path;
mod writers;

pub use acting::act_for;
pub use barrier::{Follower, await_followers};
pub use client::require_other_thread;
pub use defrag::CompactStep;
pub use edit::CAPABILITY_XATTR;
pub use engine::Engine;
pub use error::{Error, ErrorKind, Result};
pub use foreign::{ForeignChange, ForeignObserver};
pub use host::process_owner;
pub use larder_catalog::{AttrMask, DirentRow, InodeRow, SessionRow, SqlRow, SqlValue, StoreRow};
pub use larder_catalog::{Beginnings, Retention, Retentions, SharedPages};
pub use larder_catalog::{ClientEnd, ClientHandle, ClientLocks, ClientStatement, ClientWatch};
pub use larder_catalog::{
    ColumnsStep, ExactRows, PastRows, RowsChange, RowsStep, StoreColumns, TemporalTable,
};
pub use larder_catalog::{CommitAuthor, HistoryReader, Touch, WholeCommit};
pub use larder_catalog::{Conflict, Moment, SCHEMA_VERSION, SnapshotRow, Tuning};
pub use larder_catalog::{FeedBounds, FeedChange, FeedEvent};
pub use larder_catalog::{
    FileRow, FileRows, SqlControl, SqlFile, SqlFiles, SqlMoment, SqlStatement, VALUE_BYTES_MAX,
    is_complete as is_complete_sql,
};
pub use larder_catalog::{KeptRow, SealRow, SealedKind, SealedPart};
pub use larder_catalog::{Trust, utc};
pub use larder_catalog::{check_store_name, own_snapshot};
pub use larder_segment::directory;
pub use larder_segment::{AlignedBuf, Device, Storage};
pub use larder_space::format;
pub use namespace::{Change, View};
pub use node::Node;
pub use options::{Birth, Clock, EngineOptions, InitOptions};
pub use peers::{describe_server, free_killed};
pub use prune::{HistoryReport, PruneCut, PruneOptions, PruneReport, StoreHistory, StoreRetention};
pub use put::NewContent;
pub use readonly::Readonly;
pub use report::{
    CheckReport, DefragObject, DefragOptions, DefragReport, FragReport, Gauges, MapCell,
    SegmentMap, ShrinkReport, SizeClass, SpaceReport, StatsReport,
};
pub use saves::is_backup;
pub use survey::find_damage;
pub use transaction::{Ended, Savepoint, Staging, WriterTicket};
pub use transactions::{
    TransactionInfo, TransactionOutcome, TransactionOwner, abort_transaction, begin_transaction,
    commit_transaction, list_transactions,
};
pub use tuning::gather_bytes_default;
