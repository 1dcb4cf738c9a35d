//! The engine: objects on segments, names and attributes in the catalog, one commit over both.
//!
//! # Words
//! See the modules: *writer lock* (which session may change something), *gather* (dirty blocks),
//! *group* (what is committed together), *free space* (and reservations of it), *pin* (what readers
//! may still reach).
//!
//! # Invariants
//! Each module states its own: `WRITER-n`, `SESSION-n`, `CACHE-n`, `NODE-n`, `GATHER-n`, `WHOLE-n`,
//! `MAP-4`, `PIECE-n`, `REDO-n`, `LOGGED-n`, `POOL-n`, `EDIT-n`, `COMMIT-n`, `CHECKPOINT-n`,
//! `LEADER-n`, `RESERVE-n`, `PRIVATE-n`, `SHARE-n`, `FOREIGN-3`, `FOREIGN-4`.
//!
//! # The road
//! ```text
//!  content ── namespace (names, attributes) ─┐
//!          └─ edit (content) ── gather ──────┴─▶ group ──▶ commit ─┬─ write_path ─▶ segment
//!  content ── read_path ◀── gather | frozen | inline | redo row | map          └─ catalog
//! ```
//!
//! # Concurrency
//! Lock order: writer lock, `applying`, `commit_lock`, freeze barrier, namespace, `cache`, node
//! (one at a time), `group`, `free_space`, `young`. Operations are users of the writer lock and
//! inside the freeze barrier; the freeze of a group closes the freeze barrier for an instant.
//! Nobody takes `commit_lock` while inside the freeze barrier.
//!
//! # Recovery
//! Opening is recovery: see `Engine::open` and docs/durability.md.

mod commit;
mod engine;
mod error;
#[cfg(fuzzing)]
pub mod fuzzing;
mod history;
mod host;
mod parts;
mod report;
mod session;
mod space;
mod txn;
mod upgrade;
mod view;
mod write;

pub use commit::Told;
pub use commit::refused_content::{RefusedFile, drop_refused, list_refused, open_refused};
pub use engine::tuning::gather_bytes_default;
pub use engine::{
    Engine, EngineAccessTimes, EngineClient, EngineCommits, EngineCompaction, EngineContent,
    EngineExpiry, EngineFragments, EngineHistory, EngineNamespace, EngineOrphans, EnginePast,
    EngineRefusals, EngineReport, EngineRetention, EngineSegments, EngineSessions, EngineSharing,
    EngineShortTransaction, EngineSql,
};
pub use error::{Error, ErrorKind, Result};
pub use history::as_of::{AsOf, open_as_of};
pub use history::attribution::act_for;
pub use history::retention::prune::{
    HistoryReport, PruneCut, PruneOptions, PruneReport, StoreHistory, StoreRetention,
};
pub use host::process_owner;
#[cfg(feature = "bundled")]
pub use larder_catalog::bound_requests;
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
pub use report::survey::find_damage;
pub use report::{
    CheckReport, FragReport, Gauges, MapCell, SegmentMap, SizeClass, SpaceReport, StatsReport,
};
pub use session::barrier::{Follower, await_followers};
pub use session::options::{Birth, Clock, EngineOptions, InitOptions};
pub use session::peers::{SessionInfo, describe_server, free_killed, list_sessions};
pub use session::readonly::Readonly;
pub use space::defrag::CompactStep;
pub use space::{DefragObject, DefragOptions, DefragReport, ShrinkReport};
pub use txn::Savepoint;
pub use txn::client::{open_client, require_other_thread};
pub use txn::long::{
    TransactionInfo, TransactionOutcome, TransactionOwner, abort_transaction, begin_transaction,
    commit_transaction, list_transactions,
};
pub use txn::short::{Ended, Staging, WriterTicket, enter_writers, open_private};
pub use upgrade::{UpgradeReport, upgrade};
pub use view::node::Node;
pub use view::{ForeignChange, ForeignObserver, View, ViewForeign, ViewLookup, ViewMoment};
pub use write::Keeper;
pub use write::RowEdit;
pub use write::access_times::AccessRule;
pub use write::edit::CAPABILITY_XATTR;
pub use write::guard::WriteGuard;
#[cfg(debug_assertions)]
pub use write::guard::failpoints;
pub use write::namespace::Look;
pub use write::put::NewContent;
pub use write::saves::is_backup;
