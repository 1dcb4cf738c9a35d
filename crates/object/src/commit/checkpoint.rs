//! When the catalog's log is copied into the catalog: after commits, and beside them.
//!
//! The log begins anew, in place, when all of it is copied; so it stays as short as its bound lets
//! it. To copy it takes as long as many commits. So with a background they do not wait for that: it
//! copies most of the log while commits go on, and only what came meanwhile is copied while nobody
//! commits: with the writer lock, which keeps transactions and other sessions out too, and the
//! commit lock held.
//!
//! # Invariants
//! * `CHECKPOINT-1` The log is bounded: when more than [`WAL_BYTES_MAX`] wait to be copied, commits
//!   wait for a checkpoint; and when its file is longer than that, the end of a copy waits for
//!   those who read the log.
//! * `CHECKPOINT-2` It begins anew beside sessions that leave each other no pause: from
//!   [`WAL_BYTES_LONG`] on the end of a copy queues for the writer lock, as long as the log grows,
//!   and the longer it is the more patiently: on a busy machine the writer lock is a long time
//!   away. With the writer lock it waits for who reads the log, too. (Where nobody commits, one
//!   that idles need not give the writer lock up for it, up to [`WAL_BYTES_MAX`].)

use crate::engine::{Edit, EngineCommits, lock};
use crate::session::log_growth::WAL_BYTES_STEP;
use crate::space::host_reserve::WAL_BYTES_PASSIVE;
use crate::{ErrorKind, Result};
use larder_catalog::{CatalogError, ChangeSet, CheckpointKind};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// When the log is longer than this in spite of [`WAL_BYTES_PASSIVE`], a checkpoint waits for
/// readers.
const WAL_BYTES_MAX: u64 = 256 << 20;
/// The same two where the host has little room.
const WAL_BYTES_PASSIVE_LITTLE: u64 = 4 << 20;
const WAL_BYTES_MAX_LITTLE: u64 = 8 << 20;
/// When more of it than this is in use, a checkpoint waits for the writer lock: a file that grows
/// is slower to flush than one that is written over.
const WAL_BYTES_LONG: u64 = 64 << 20;
/// The length of the log is looked at again after so many changed rows, of a few pages each at
/// worst. A commit counts as some more: the pages that every commit changes.
const WAL_LOOK_ROWS: u64 = 1024;
const COMMIT_ROWS: u64 = 16;
/// So little is left to be copied when the writer lock is asked for, bytes, ...
const WAL_BYTES_REST: u64 = 1 << 20;
/// ... or what is left after so many times beside commits.
const PASSES_MAX: usize = 4;
/// The background tries so often to get the writer lock, 1 ms apart; then it goes on with its other
/// work, and comes again.
const WRITER_LOCK_TRIES: u32 = 20;
/// When it waits for the writer lock, it does so among the others and so long; twice as long for
/// each [`WAL_BYTES_STEP`] that the log is longer, up to a second. Without the writer lock its
/// session has nothing to commit meanwhile (`WRITER-1`).
const WRITER_LOCK_WAIT: Duration = Duration::from_millis(30);
const WAIT_DOUBLINGS_MAX: u64 = 5;

/// How long a commit waits for the catalog's write lock or for space on the host before the engine
/// gives up.
const PATIENCE: Duration = Duration::from_secs(300);

impl EngineCommits<'_> {
    /// Looks after the log, after a commit; behind a step that has left something it is copied.
    pub(crate) fn checkpoint(&self, set: &ChangeSet, has_more: bool) -> Result<()> {
        if has_more {
            self.catalog.log()?.checkpoint(CheckpointKind::Passive)?; // TIME-9
        }
        let rows = set.inodes.len() + set.dirents.len() + set.map_pages.len() + set.retired.len();
        self.look_at_log(COMMIT_ROWS + rows as u64)
    }

    /// `rows` more were changed. In a transaction its end looks.
    pub(crate) fn look_at_log(&self, rows: u64) -> Result<()> {
        if self.unlogged_rows.fetch_add(rows, Ordering::Relaxed) < WAL_LOOK_ROWS
            || self.private.is_some()
        {
            return Ok(());
        }
        self.unlogged_rows.store(0, Ordering::Relaxed);
        // Who only removes something asks for no space.
        self.space().look_at_host()?;
        let is_wanted = self.is_checkpoint_wanted.load(Ordering::SeqCst);
        // The file's length is not kept from us by who copies it.
        if is_wanted
            && !self.space().has_little_space()
            && self.catalog.log()?.wal_bytes()? <= WAL_BYTES_MAX
        {
            return Ok(());
        }
        let wal = self.catalog.log()?.log_use()?.pending_bytes;
        let (passive, max) = match self.space().has_little_space() {
            true => (WAL_BYTES_PASSIVE_LITTLE, WAL_BYTES_MAX_LITTLE), // HOST-2
            false => (WAL_BYTES_PASSIVE, WAL_BYTES_MAX),
        };
        if wal > max {
            self.catalog.log()?.checkpoint(CheckpointKind::Truncate)?; // CHECKPOINT-1
        } else if wal > passive {
            if self.session.options.has_background {
                self.is_checkpoint_wanted.store(true, Ordering::SeqCst);
            } else {
                self.catalog.log()?.checkpoint(CheckpointKind::Passive)?;
            }
        }
        Ok(())
    }

    /// Asks the catalog for a commit, or of one; waits out an SQL client that keeps the write lock,
    /// and a host without space: nothing is lost by waiting, and both can be helped from outside.
    /// Not in a client's transaction, which has the lock, and of which SQLite may have taken back a
    /// part.
    pub(crate) fn patiently<T>(
        &self,
        ask: impl Fn() -> std::result::Result<T, CatalogError>,
    ) -> std::result::Result<T, CatalogError> {
        let deadline = Instant::now() + PATIENCE.min(self.session.options.wait_max);
        loop {
            match ask() {
                Ok(answer) => return Ok(answer),
                Err(error @ (CatalogError::Busy { .. } | CatalogError::NoSpace))
                    if !self.catalog.is_clients() && Instant::now() < deadline =>
                {
                    tracing::warn!("a commit waits: {error}");
                    if matches!(error, CatalogError::NoSpace) {
                        self.shorten_log();
                    }
                    std::thread::sleep(Duration::from_millis(500));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// The host is full: what of the log can be copied without more space makes room.
    pub(crate) fn shorten_log(&self) {
        if self.private.is_none()
            && let Err(error) =
                (self.catalog.log()).and_then(|log| log.checkpoint(CheckpointKind::Truncate))
        {
            tracing::warn!("the log cannot be copied: {error}");
        }
    }

    /// The background's part.
    pub(crate) fn checkpoint_if_wanted(&self) -> Result<()> {
        if !self.is_checkpoint_wanted.load(Ordering::SeqCst) {
            return Ok(());
        }
        let copied = self.copy_log();
        let is_wanted = matches!(copied, Ok(false));
        self.is_checkpoint_wanted.store(is_wanted, Ordering::SeqCst);
        copied.map(drop)
    }

    /// `false`: somebody else kept the writer lock, or read the log, so it does not begin anew.
    fn copy_log(&self) -> Result<bool> {
        let mut log = self.catalog.log()?.log_use()?;
        for _ in 0..PASSES_MAX {
            self.catalog.log()?.checkpoint(CheckpointKind::Passive)?;
            log = self.catalog.log()?.log_use()?;
            if log.pending_bytes <= WAL_BYTES_REST {
                break;
            }
        }
        let has_little = self.space().has_little_space();
        let max = if has_little {
            WAL_BYTES_MAX_LITTLE
        } else {
            WAL_BYTES_MAX
        };
        let is_long = self.catalog.log()?.wal_bytes()? > max;
        let (grows, may_restart) = lock(&self.log_growth).look(log.used_bytes);
        if log.used_bytes < WAL_BYTES_PASSIVE && !is_long && !has_little {
            return Ok(true); // Another session has had it begin anew.
        }
        let is_growing_long = grows && log.used_bytes > WAL_BYTES_LONG;
        if is_growing_long && !may_restart && !is_long {
            return Ok(false);
        }
        // With nothing more coming it is copied to its end: the next commit begins it anew.
        let waits = is_long || is_growing_long;
        if !self.try_writer_lock(waits.then(|| writer_lock_wait(log.used_bytes)))? {
            return Ok(false);
        }
        let _edit = Edit { engine: self };
        let _no_commit = self.commit_lock.lock();
        if is_long {
            self.catalog.log()?.checkpoint(CheckpointKind::Truncate)?;
            return Ok(true);
        }
        self.catalog.log()?.checkpoint(CheckpointKind::Passive)?;
        let log = self.catalog.log()?.log_use()?;
        // What holds more of the log than its end is no moment's reader: in vain to wait for.
        if !waits || log.pending_bytes > WAL_BYTES_REST {
            return Ok(true);
        }
        let restarted = self
            .catalog
            .log()?
            .checkpoint(CheckpointKind::Restart)?
            .is_complete; // CHECKPOINT-2
        if !restarted {
            lock(&self.log_growth).refused_bytes = Some(log.used_bytes);
        }
        Ok(restarted)
    }

    /// Who only tries is nobody that others give the writer lock back for, or that a transaction
    /// which idles is rolled back for.
    fn try_writer_lock(&self, wait_max: Option<Duration>) -> Result<bool> {
        if let Some(wait_max) = wait_max {
            let taken =
                (self.writer_lock).begin_within(wait_max, || self.sessions().refresh_locked());
            return match taken {
                Err(error) if error.kind() == ErrorKind::Busy => Ok(false),
                taken => taken.map(|()| true),
            };
        }
        for _ in 0..WRITER_LOCK_TRIES {
            if self
                .writer_lock
                .try_begin(|| self.sessions().refresh_locked())?
            {
                return Ok(true);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(false)
    }
}

/// How long the writer lock is waited for where so much of the log is in use, bytes.
fn writer_lock_wait(used_bytes: u64) -> Duration {
    let steps = used_bytes.saturating_sub(WAL_BYTES_LONG) / WAL_BYTES_STEP;
    WRITER_LOCK_WAIT * (1 << steps.min(WAIT_DOUBLINGS_MAX))
}
