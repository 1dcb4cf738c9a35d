//! The flush of the log apart from the commit: one for several commits.

use crate::conn::confine::Use;
use crate::conn::connect::{configure, connect};
use crate::conn::log_vfs;
use crate::conn::meta::find_meta;
use crate::error::{At, CatalogError, Result};
use crate::{CatalogTransaction, lock};
use rusqlite::{Connection, OpenFlags, ffi};
use std::sync::atomic::Ordering;

impl CatalogTransaction<'_> {
    /// Opens what [`CatalogTransaction::flush_log`] needs, so that afterwards nothing but the flush
    /// itself can fail. Once.
    pub fn open_flusher(&self) -> Result<()> {
        self.open_log(&mut lock(&self.catalog.flusher)).map(drop)
    }

    /// Flushes the log: every commit that has returned is durable then, whoever made it. Beside
    /// commits. After an error nothing is written any more (`CATALOG-5`): what of them is durable,
    /// only reopening tells.
    pub fn flush_log(&self) -> Result<()> {
        let flushed = self.flush_by(&mut lock(&self.catalog.flusher));
        flushed.map_err(|error| {
            self.catalog.is_stopped.store(true, Ordering::Release); // CATALOG-5
            tracing::error!(%error, "the outcome of catalog commits is unknown");
            CatalogError::CommitUnknown {
                cause: error.to_string(),
            }
        })
    }

    fn open_log(&self, flusher: &mut Option<Connection>) -> Result<*mut ffi::sqlite3_file> {
        if flusher.is_none() {
            let none = OpenFlags::empty();
            let connection = connect(
                &self.catalog.place,
                &self.catalog.options,
                none,
                Use::Reader,
            )?;
            configure(&connection)?;
            // A look at the catalog opens the log.
            find_meta(&connection, "commit_seq")?;
            *flusher = Some(connection);
        }
        let log = flusher.as_ref().and_then(log_vfs::find_log);
        log.ok_or_else(|| CatalogError::invalid("the catalog has no log"))
    }

    fn flush_by(&self, flusher: &mut Option<Connection>) -> Result<()> {
        let log = self.open_log(flusher)?;
        // SAFETY: the log is open as long as the connection is, which nobody else uses while it is
        // locked; an open file of any VFS can be synced.
        let code = unsafe {
            let sync = (*(*log).pMethods).xSync;
            sync.map_or(ffi::SQLITE_MISUSE, |sync| {
                sync(log, ffi::SQLITE_SYNC_NORMAL)
            })
        };
        match code {
            ffi::SQLITE_OK => Ok(()),
            code => {
                let failed = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
                Err(failed).at("the flush of the log")
            }
        }
    }

    /// Whether the change feed is on. 2 µs.
    pub fn is_feed_on(&self) -> Result<bool> {
        self.catalog.read(crate::feed::is_on)
    }
}
