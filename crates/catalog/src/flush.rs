//! The flush of the log apart from the commit: one for several commits.

use crate::error::{At, BUSY_TIMEOUT, CatalogError, Result};
use crate::open::{configure, connect};
use crate::{Catalog, lock, log_vfs};
use rusqlite::{OpenFlags, ffi};
use std::sync::atomic::Ordering;

impl Catalog {
    /// Flushes the log: every commit that has returned is durable then, whoever made it. Beside commits. After an
    /// error nothing is written any more (`CATALOG-5`): what of them is durable, only reopening tells.
    pub fn flush_log(&self) -> Result<()> {
        let mut flusher = lock(&self.flusher);
        let flushed = (|| {
            let connection = match &mut *flusher {
                Some(connection) => connection,
                none => {
                    let connection =
                        connect(&self.path, &self.options, OpenFlags::empty(), BUSY_TIMEOUT)?;
                    configure(&connection)?;
                    none.insert(connection)
                }
            };
            // A look at the catalog opens the log, the first time.
            let log = match log_vfs::find_log(connection) {
                Some(log) => log,
                None => {
                    crate::meta::find_meta(connection, "commit_seq")?;
                    log_vfs::find_log(connection)
                        .ok_or_else(|| CatalogError::invalid("the catalog has no log"))?
                }
            };
            // SAFETY: the log is open as long as the connection is, which nobody else uses while it is locked;
            // an open file of any VFS can be synced.
            let code = unsafe {
                let sync = (*(*log).pMethods).xSync;
                sync.map_or(ffi::SQLITE_MISUSE, |sync| sync(log, ffi::SQLITE_SYNC_NORMAL))
            };
            match code {
                ffi::SQLITE_OK => Ok(()),
                code => Err(rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
                    .at("the flush of the log"),
            }
        })();
        flushed.map_err(|error: CatalogError| {
            self.is_stopped.store(true, Ordering::Release); // CATALOG-5
            tracing::error!(%error, "the outcome of catalog commits is unknown");
            CatalogError::CommitUnknown {
                cause: error.to_string(),
            }
        })
    }

    /// Whether the change feed is on. 2 µs.
    pub fn is_feed_on(&self) -> Result<bool> {
        self.read(crate::feed::is_on)
    }
}
