//! When files were read last.
//!
//! # Invariants
//! * `ATIME-1` That a file was read is no change of it: nothing supersedes a row, no commit counts,
//!   nobody is told, and no trigger runs. So histories, feeds and the memory of other sessions are
//!   as before.
//!
//! A reader of the past finds the time of the last reading of whatever has not been changed since.

use crate::commit::transaction::Stage;
use crate::error::{At, CatalogError, Result};
use crate::types::codec::signed;
use crate::types::rows::AccessTime;
use crate::{CatalogSessions, lock};
use rusqlite::params;
use std::time::Duration;

/// How long others may keep the lock: they are not waited for.
const PATIENCE: Duration = Duration::from_millis(1);

impl CatalogSessions<'_> {
    /// Notes when inodes were read, in one transaction (`ATIME-1`); those that are gone are passed
    /// over. `false`: somebody else is writing, and nothing was done. Cost: 3 µs each, and one
    /// sync.
    pub fn note_access(&self, times: &[AccessTime]) -> Result<bool> {
        // The stores are asked for before: that takes another connection.
        let groups = times
            .chunk_by(|one, other| one.0 == other.0)
            .map(|group| Ok((self.catalog.store_sql(group[0].0)?, group)))
            .collect::<Result<Vec<_>>>()?;
        let mut writer = lock(&self.catalog.writer);
        if writer.stage != Stage::Idle {
            return Ok(false);
        }
        let waits = writer.waits.clone();
        if let Some(waits) = &waits {
            waits.set(PATIENCE);
        }
        let written = self.catalog.transact_on(&mut writer, |txn, guards| {
            guards.silence(txn)?;
            for (sql, group) in &groups {
                let update = format!("UPDATE \"{}\" SET atime_ns = ?2 WHERE ino = ?1", sql.table);
                let mut update = txn.prepare_cached(&update).at(&sql.table)?;
                for (_, ino, at_ns) in *group {
                    (update.execute(params![signed(ino.0), at_ns])).at(&sql.table)?;
                }
            }
            Ok(())
        });
        if let Some(waits) = &waits {
            waits.set(self.catalog.options.wait_max());
        }
        match written {
            Ok(()) => Ok(true),
            Err(CatalogError::Busy { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
