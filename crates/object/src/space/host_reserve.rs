//! What is left of the host's filesystem for the catalog: what makes the catalog longer is refused
//! before nothing is left for deleting, pruning, checkpoints, and opening.
//!
//! Deleting needs space too: a commit is appended to the log, and history keeps what was deleted.
//! Copying the log makes the catalog's file longer by the pages that it does not have yet. So there
//! is a *reserve*, which only who frees something uses; beside it lies what copying the log takes.
//!
//! # Invariants
//! * `HOST-1` New inodes, additional names, attributes and content, whichever way it comes, are
//!   refused ([`ErrorKind::NoSpace`]) while the host has less than the reserve, and the segments do
//!   not grow into it. What a rollback brings back is not new. *Guard*:
//!   [`EngineSpace::require_host_space`], [`EngineSegments::host_margin_bytes`].
//! * `HOST-2` Where the host has little, the log is copied early, so that it does not take what is
//!   left.
//!
//! Other programs may take the reserve all the same: then commits wait until there is room
//! (`COMMIT-4`).

use crate::engine::{EngineSpace, lock};
use crate::{Error, ErrorKind, Result};
use larder_catalog::CATALOG_FILE;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// The reserve, bytes; ...
const RESERVE_BYTES_MIN: u64 = 16 << 20;
/// ... and what the catalog uses, but no more than this: what is deleted may stay in the history,
/// whose rows are new ones.
const RESERVE_CATALOG_BYTES_MAX: u64 = 256 << 20;
/// Of the reserve the log needs so much, bytes, and as much as the catalog uses: a commit is
/// written there first, with all pages that it changes. What the catalog's file has free serves for
/// the rest.
pub(crate) const RESERVE_LOG_BYTES: u64 = 8 << 20;
/// Where the host has less than so many reserves, or than one and a log that is copied at leisure,
/// it has little.
const LITTLE_RESERVES: u64 = 2;
/// The write-ahead log is checkpointed when more of it waits for that, bytes. Pages that change
/// often are copied once in so many.
pub(crate) const WAL_BYTES_PASSIVE: u64 = 32 << 20;
/// What an operation makes the catalog and its log longer by, bytes: most take some 10 KB.
const OPERATION_BYTES: u64 = 1 << 20;
/// So many operations go by between two looks: where there is hardly enough, where there is much.
const LOOK_OPERATIONS: [u32; 2] = [32, 4096];
/// Nor more time: what other programs take is not foreseen.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// Why nothing can be written there.
pub(crate) const UNMEASURED: &str = "the filesystem that holds the database reports a size of 0 \
    blocks, so that nobody \
     knows what room it has; move the database to one that tells ('df' shows it)";

impl EngineSpace<'_> {
    /// Refuses what makes the catalog longer while the host has no more than the reserve
    /// (`HOST-1`). A look takes 20 µs; [`operations_between_looks`] says how often it is taken.
    pub(crate) fn require_host_space(&self) -> Result<()> {
        let free = &self.host_space;
        let is_due = free.operations.fetch_add(1, Ordering::Relaxed)
            >= free.operations_max.load(Ordering::Relaxed);
        let is_old = lock(&free.looked).is_none_or(|looked| looked.elapsed() >= LOOK_PAUSE);
        if !is_due && !is_old && !free.is_short.load(Ordering::Relaxed) {
            return Ok(());
        }
        let (host, reserve) = self.look_at_host()?;
        if host >= reserve {
            return Ok(());
        }
        // What is copied by then needs no more.
        self.is_checkpoint_wanted.store(true, Ordering::SeqCst);
        self.require_measured_host()?;
        Err(Error::new(
            ErrorKind::NoSpace,
            format!(
                "the filesystem that holds the database has {} MiB left, and {} MiB are kept for \
                 the catalog; free some \
                 space there, or delete something and run 'larder prune' and 'larder shrink'",
                host >> 20,
                reserve >> 20
            ),
        ))
    }

    /// Bytes that the host has left, with those of the log, and the reserve; notes whether that is
    /// little (`HOST-2`).
    pub(crate) fn look_at_host(&self) -> Result<(u64, u64)> {
        let free = &self.host_space;
        *lock(&free.looked) = Some(Instant::now());
        // What the log has taken of the reserve it has: it begins anew in place.
        let host = self.host_bytes()? + self.report().log_bytes().min(RESERVE_LOG_BYTES);
        let reserve = self.host_reserve_bytes()?;
        let little = (LITTLE_RESERVES * reserve).max(reserve + WAL_BYTES_PASSIVE);
        free.operations.store(0, Ordering::Relaxed);
        (free.operations_max).store(operations_between_looks(host, little), Ordering::Relaxed);
        free.has_little.store(host < little, Ordering::Relaxed);
        free.is_short.store(host < reserve, Ordering::Relaxed);
        Ok((host, reserve))
    }

    /// Refuses a host that does not say what room it has: deleting something would not help.
    pub(crate) fn require_measured_host(&self) -> Result<()> {
        match self.is_host_measured()? {
            true => Ok(()),
            false => Err(Error::new(ErrorKind::NoSpace, UNMEASURED)),
        }
    }

    /// Whether the host says what room it has. Where it does not, nothing can be written.
    pub(crate) fn is_host_measured(&self) -> Result<bool> {
        Ok(self.host_size_bytes()? > 0)
    }

    /// The size of the host's filesystem, bytes; 0: it does not say.
    pub(crate) fn host_size_bytes(&self) -> Result<u64> {
        let failed =
            |error| crate::error::io_error("cannot ask the host for its size".into(), error);
        self.session.storage.host_size_bytes().map_err(failed)
    }

    /// Whether the host had little when somebody looked last (`HOST-2`).
    pub(crate) fn has_little_space(&self) -> bool {
        self.host_space.has_little.load(Ordering::Relaxed)
    }

    /// Bytes that the host's filesystem has left.
    pub(crate) fn host_bytes(&self) -> Result<u64> {
        self.session.storage.available_bytes().map_err(|error| {
            crate::error::io_error("cannot learn how much room the host has".into(), error)
        })
    }

    /// The reserve, with what copying the log takes, bytes.
    pub(crate) fn host_reserve_bytes(&self) -> Result<u64> {
        let file_bytes = self.report().file_bytes(CATALOG_FILE);
        let catalog = self.catalog.log()?.length()?;
        // What is free in the catalog's file is taken before it grows.
        let used = catalog.bytes.saturating_sub(catalog.free_bytes);
        let for_history = used.min(RESERVE_CATALOG_BYTES_MAX);
        let all = RESERVE_BYTES_MIN + for_history;
        let reserve = (all.saturating_sub(catalog.free_bytes))
            .max(for_history)
            .max(RESERVE_LOG_BYTES);
        Ok(reserve + catalog.bytes.saturating_sub(file_bytes))
    }
}

/// How many operations leave a host that has `host` bytes with more than `little`.
fn operations_between_looks(host: u64, little: u64) -> u32 {
    let [least, most] = LOOK_OPERATIONS;
    let left = host.saturating_sub(little) / OPERATION_BYTES;
    u32::try_from(left).unwrap_or(most).clamp(least, most)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_less_a_host_has_the_more_often_it_is_looked_at() {
        let little = 40 << 20;
        let [least, most] = LOOK_OPERATIONS;
        for (host, operations) in [
            (0, least),
            (little - 1, least),
            (little, least),
            (little + 33 * OPERATION_BYTES - 1, least),
            (little + 500 * OPERATION_BYTES, 500),
            (little + 5000 * OPERATION_BYTES, most),
            (u64::MAX, most),
        ] {
            assert_eq!(
                operations_between_looks(host, little),
                operations,
                "{host}, HOST-1"
            );
        }
    }
}
