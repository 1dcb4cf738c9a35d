//! One process that has the database open: being alive, the writer lock between processes, what it
//! pins for its readers, and the other processes.
//!
//! # Words
//! A *session* is one process with one database. The *writer lock* says which session may have
//! changes that are not committed; a *pin* says which commit its readers may still reach.
//!
//! # Invariants
//! `SESSION-n` in `liveness` and `peers`, `WRITER-n` in `writer_lock`, `BARRIER-n` in `barrier`,
//! `COMPANY-n` in `company`, `READONLY-n` in `readonly` and `copy_place`, `WORKSPACE-6` to
//! `WORKSPACE-8` in `workspace`, `FLUSH-n` in `group_fsync`.

pub(crate) mod barrier;
pub(crate) mod company;
pub(crate) mod copy_place;
pub(crate) mod group_fsync;
pub(crate) mod liveness;
pub(crate) mod log_growth;
pub(crate) mod options;
pub(crate) mod other_processes;
pub(crate) mod peers;
pub(crate) mod pins;
pub(crate) mod readonly;
pub(crate) mod workspace;
pub(crate) mod writer_lock;
pub(crate) mod writers;

use crate::error::{Error, ErrorKind, Result, io_error};
use crate::session::group_fsync::SharedFlush;
use crate::session::liveness::Liveness;
use crate::session::options::EngineOptions;
use crate::session::pins::Pins;
use crate::session::workspace::Workspace;
use crate::session::writers::Writers;
use larder_catalog::DatabaseInfo;
use larder_segment::Storage;
use larder_segment::directory::DatabaseDir;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};

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

/// What a session knows of the others.
#[derive(Default)]
pub(crate) struct Company {
    has_writers: AtomicBool,
    has_followers: AtomicBool,
    /// Held while it is looked.
    look: Mutex<()>,
    /// The others know that this session writes.
    is_announced: AtomicBool,
    /// Held while they are told.
    announcing: Mutex<()>,
}

/// Opens the directory of a database.
pub(crate) fn open_directory(path: &Path) -> Result<DatabaseDir> {
    DatabaseDir::open(path).map_err(|error| match error.kind() {
        std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory => Error::new(
            ErrorKind::NotFound,
            format!(
                "{} does not exist; check the path",
                path.join(larder_catalog::CATALOG_FILE).display()
            ),
        ),
        _ => io_error(format!("cannot open {}", path.display()), error),
    })
}
