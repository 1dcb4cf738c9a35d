//! How an engine is created and opened.

use crate::session::readonly::Readonly;
use larder_catalog::{CatalogOptions, Trust};
use larder_segment::Storage;
use std::sync::Arc;
use std::time::Duration;

/// How long loading the extension waits for the writer lock.
const LOAD_WAIT_MAX: Duration = Duration::from_secs(30);

/// How long a session waits for another session's group before it gives up.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(300);

/// A clock: nanoseconds since 1970.
pub type Clock = Arc<dyn Fn() -> i64 + Send + Sync>;

/// Settings of an engine; the default suits everyone but tests.
#[derive(Clone)]
pub struct EngineOptions {
    /// Where segments live; default: files in the database directory.
    pub storage: Option<Arc<dyn Storage>>,
    /// A named SQLite VFS for the catalog; default: the system's.
    pub catalog_vfs: Option<String>,
    /// A group of changes is committed at most this long after its first one.
    pub commit_interval: Duration,
    /// Dirty content kept in memory at most, bytes; then writers wait. 0: what the database asks
    /// for ([`crate::Tuning`]), else [`crate::gather_bytes_default`].
    pub dirty_bytes_max: u64,
    /// A segment grows to so many bytes. Default: 4 TiB, what every filesystem can hold in one
    /// file.
    pub segment_bytes_max: u64,
    /// Redo rows (small overwrites that are not yet in place) kept in the catalog at most, bytes;
    /// they are written in place in the background when there are a quarter of that.
    pub redo_bytes_max: u64,
    /// Where the present comes from; default: the system clock.
    pub clock: Option<Clock>,
    /// Commits in the background; without it only `sync` and a full gather commit (tests that must
    /// repeat exactly).
    pub has_background: bool,
    /// How long an operation waits for other sessions, before it fails with
    /// [`crate::ErrorKind::TimedOut`].
    pub wait_max: Duration,
    /// The process is another program's, which has loaded the extension: the session does nothing
    /// that can be left to others: no checkpoints, no upgrade; it reclaims where it need not wait.
    pub is_extension: bool,
    /// Whom code in the database's schema is taken from.
    pub trust: Trust,
    /// How a session that only reads is born.
    pub birth: Birth,
    /// The session is begun in order to read: what killed transactions have left stays until
    /// somebody comes who changes something.
    pub is_reader: bool,
    /// The session is a command's: what it commits is acknowledged by its end, which waits for all
    /// mounts ([`await_followers`](crate::await_followers)), so that it does not announce itself
    /// before (`COMPANY-1`).
    pub is_command: bool,
    /// Set by `Engine::open`: the database cannot be written by this process.
    pub readonly: Option<Arc<Readonly>>,
}

/// How a session is born (`SESSION-4`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Birth {
    /// With the writer lock, so with all committed that others have done before.
    #[default]
    WriterLocked,
    /// The same; [`crate::ErrorKind::Busy`] when the writer lock is not to be had for so long.
    Within(Duration),
    /// Beside who has the writer lock (`SESSION-8`); [`ErrorKind::Busy`](crate::ErrorKind::Busy)
    /// where the catalog's write lock is not to be had.
    Beside,
    /// In a copy of the catalog, beside whoever does what (`READONLY-4`).
    InCopy,
}

impl EngineOptions {
    /// How long the session waits for the writer lock.
    pub(crate) fn writer_lock_wait_max(&self) -> Duration {
        match self.is_extension {
            true => LOAD_WAIT_MAX,
            false => self.wait_max,
        }
    }

    pub(crate) fn for_catalog(&self) -> CatalogOptions {
        CatalogOptions {
            vfs: self.catalog_vfs.clone(),
            is_extension: self.is_extension,
            trust: self.trust,
            // Without a limit of its own a session waits so long for another one's group, and for
            // locks of SQLite's as long as that is used to.
            wait_max: (self.wait_max != WAIT_MAX).then_some(self.wait_max),
        }
    }
}

impl Default for EngineOptions {
    fn default() -> EngineOptions {
        EngineOptions {
            storage: None,
            catalog_vfs: None,
            commit_interval: Duration::from_millis(100),
            dirty_bytes_max: 0,
            segment_bytes_max: 4 << 40,
            redo_bytes_max: 64 << 20,
            clock: None,
            has_background: true,
            wait_max: WAIT_MAX,
            is_extension: false,
            trust: Trust::of_environment(),
            birth: Birth::default(),
            is_reader: false,
            is_command: false,
            readonly: None,
        }
    }
}

/// How a database is created.
#[derive(Debug, Clone)]
pub struct InitOptions {
    /// Bytes of content it may hold; `None`: what the filesystem has.
    pub capacity_bytes: Option<u64>,
    /// How long history is kept, nanoseconds; 0: not at all.
    pub retention_ns: i64,
    /// Mode of the root directory.
    pub root_mode: u32,
    /// Its owner.
    pub root_uid: u32,
    /// Its group.
    pub root_gid: u32,
    /// A group whose members share the database; `None`: its owner alone has it.
    pub group: Option<u32>,
}
