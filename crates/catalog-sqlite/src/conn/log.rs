//! The log (WAL): how long it is, and how it gets into the database file.

use crate::CatalogLog;
use crate::conn::place::CATALOG_FILE;
use crate::conn::waiting::lock;
use crate::error::{At, CatalogError, Result, refused};
use crate::types::codec;

/// How thorough a checkpoint is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CheckpointKind {
    /// Copies what it can from the log into the database; blocks nobody.
    Passive,
    /// Copies everything, and the next commit begins the log anew: needs a moment without writers
    /// and without readers of what the log held, and gives up after 100 ms. (After a copy of
    /// everything beside others the log begins anew only if nobody happens to read or to write.)
    Restart,
    /// The same, and empties the log file.
    Truncate,
}

/// What a checkpoint achieved.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CheckpointOutcome {
    /// Whether all of the log is now in the database; if not, a reader or writer was in the way.
    pub is_complete: bool,
    /// Pages in the log.
    pub log_pages: u64,
    /// Of these, copied.
    pub copied_pages: u64,
}

/// How long the catalog's file is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Length {
    /// All of it, bytes.
    pub bytes: u64,
    /// Of it, what new rows take before it grows, bytes.
    pub free_bytes: u64,
}

/// How much of the log's file is in use. (The file is longer: it stays as long as it ever was, and
/// is written from the start again once all is copied.)
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LogUse {
    /// Pages that were logged since it began anew, bytes.
    pub used_bytes: u64,
    /// Those that no checkpoint has copied yet, bytes.
    pub pending_bytes: u64,
}

impl CatalogLog<'_> {
    /// Copies the log (WAL) into the database file. Nobody else does it, except the last connection
    /// when it closes: call it after commits, or the log grows without bound.
    pub fn checkpoint(&self, kind: CheckpointKind) -> Result<CheckpointOutcome> {
        let mode = match kind {
            CheckpointKind::Passive => "PRAGMA wal_checkpoint(PASSIVE)",
            CheckpointKind::Restart => "PRAGMA wal_checkpoint(RESTART)",
            CheckpointKind::Truncate => "PRAGMA wal_checkpoint(TRUNCATE)",
        };
        let checkpointer = lock(&self.catalog.checkpointer);
        let (busy, log, copied): (bool, i64, i64) = checkpointer
            .query_row(mode, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))
            .at("the checkpoint")?;
        refused::take_in_vain(); // That it waited is told by its outcome, which is no error.
        Ok(CheckpointOutcome {
            is_complete: !busy && log == copied,
            log_pages: log.max(0) as u64,
            copied_pages: copied.max(0) as u64,
        })
    }

    /// How much of the log is in use.
    pub fn log_use(&self) -> Result<LogUse> {
        let (log, copied): (i64, i64) = lock(&self.catalog.checkpointer)
            .query_row("PRAGMA wal_checkpoint(NOOP)", [], |row| {
                Ok((row.get(1)?, row.get(2)?))
            })
            .at("the length of the log")?;
        let bytes = |pages: i64| pages.max(0) as u64 * u64::from(self.catalog.page_bytes);
        Ok(LogUse {
            used_bytes: bytes(log),
            pending_bytes: bytes(log - copied),
        })
    }

    /// How long the catalog's file is when all of the log is copied. 10 µs.
    pub fn length(&self) -> Result<Length> {
        self.catalog.read(|reader| {
            let ask = |sql: &str| -> Result<u64> {
                let pages: u64 = reader
                    .prepare_cached(sql)
                    .and_then(|mut ask| ask.query_row([], |row| codec::unsigned(row, 0)))
                    .at("the length of the catalog")?;
                Ok(pages * u64::from(self.catalog.page_bytes))
            };
            Ok(Length {
                bytes: ask("PRAGMA page_count")?,
                free_bytes: ask("PRAGMA freelist_count")?,
            })
        })
    }

    /// Bytes of the log file on disk; 0 when there is none.
    pub fn wal_bytes(&self) -> Result<u64> {
        let name = format!("{CATALOG_FILE}-wal");
        self.catalog
            .place
            .directory()
            .file_bytes(&name)
            .map_err(|error| {
                CatalogError::invalid(format!(
                    "{} cannot be examined ({error}); check its permissions",
                    self.catalog.place.directory().join(name).display()
                ))
            })
    }
}
