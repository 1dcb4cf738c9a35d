//! One process that has the database open: being alive, the writer lock between processes, what it
//! pins for its readers, the other processes, and how a database is opened.
//!
//! # Words
//! A *session* is one process with one database. The *writer lock* says which session may have
//! changes that are not committed; a *pin* says which commit its readers may still reach.
//!
//! # Invariants
//! `SESSION-n` in `liveness` and `peers`, `TURN-n` in `writer_lock`, `BARRIER-n` in `barrier`,
//! `COMPANY-n` in `company`, `READONLY-n` in `readonly`.

pub(crate) mod barrier;
pub(crate) mod company;
pub(crate) mod liveness;
pub(crate) mod options;
pub(crate) mod other_processes;
pub(crate) mod peers;
pub(crate) mod pins;
pub(crate) mod readonly;
pub(crate) mod stores;
pub(crate) mod tuning;
pub(crate) mod writer_lock;

use crate::commit::group_fsync::SharedFlush;
use crate::session::company::Company;
use crate::session::liveness::Liveness;
use crate::session::options::EngineOptions;
use crate::session::pins::Pins;
use crate::txn::workspace::Workspace;
use crate::txn::writers::Writers;
use larder_catalog::DatabaseInfo;
use larder_segment::Storage;
use larder_segment::directory::DatabaseDir;
use std::path::PathBuf;
use std::sync::Arc;

/// One process that has a database open: what all its views share.
pub(crate) struct Session {
    pub path: PathBuf,
    /// All that is in it is reached from here.
    pub directory: DatabaseDir,
    /// `None`: an ordinary database.
    pub workspace: Option<Workspace>,
    pub storage: Arc<dyn Storage>,
    pub info: DatabaseInfo,
    pub options: EngineOptions,
    pub dirty_bytes_max: u64,
    /// Content of at most this many bytes is inline.
    pub inline_bytes_max: u64,
    pub liveness: Liveness,
    /// Which others there are.
    pub company: Company,
    /// Reads under way, by the commit they began at: what they may touch is not reclaimed.
    pub readers: Pins,
    /// Which of its views may change something.
    pub writers: Writers,
    /// Flushes that they share.
    pub flushes: SharedFlush,
}
