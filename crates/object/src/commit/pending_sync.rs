//! Which transactions leave out their flush, and who waits for it: see `session::group_fsync`.

use crate::Result;
use crate::engine::{EngineCommits, Private};
use crate::session::other_processes::Attachments;
use larder_catalog::UNFLUSHED_COMMITS_MAX;

impl EngineCommits<'_> {
    /// Whether the transaction's COMMIT, which comes next, may leave out its flush, and somebody
    /// has something of that (`FLUSH-2`).
    pub(crate) fn may_share_flush(&self, private: &Private) -> Result<bool> {
        let host = &private.host;
        debug_assert!(self.writer_lock.is_held(), "FLUSH-2");
        if !host.session.writers.has_waiters()
            || host.session.workspace.is_some()
            || host.session.options.is_extension
        {
            return Ok(false);
        }
        // FLUSH-6
        if host.session.flushes.owed_now() >= UNFLUSHED_COMMITS_MAX {
            return Ok(false);
        }
        // Nobody is left with a debt that cannot be paid for want of a file.
        let open = || {
            let ready = (host.catalog.transaction()).and_then(|owner| owner.open_flusher());
            if let Err(error) = &ready {
                tracing::warn!("transactions do not share their flushes: {error}");
            }
            ready.ok()?;
            Attachments::open(&host.session.directory).ok()
        };
        let attachments = host.session.flushes.attachments.get_or_init(open);
        if attachments.as_ref().is_none_or(Attachments::has_others) {
            return Ok(false);
        }
        Ok(self.catalog.sessions().rows()?.len() == 1
            && self
                .catalog
                .workspace()?
                .oldest_transaction_pin()?
                .is_none()
            && !self.catalog.transaction()?.is_feed_on()?)
    }

    /// Waits until everything is durable that transactions of this process have committed
    /// (`FLUSH-3`). Nothing when nothing is owed.
    pub fn settle_flushes(&self) -> Result<()> {
        match self.session.flushes.newest_owed() {
            None => Ok(()),
            Some(number) => self.settle_flush(number),
        }
    }

    /// The same up to one commit.
    pub(crate) fn settle_flush(&self, number: u64) -> Result<()> {
        // FLUSH-4: before anybody else may append. Only who has flushed knows that it failed.
        let flush = || {
            let flushed = (self.catalog.transaction()).and_then(|owner| owner.flush_log());
            flushed.inspect_err(|_| self.session.liveness.mark_log_unsound())?;
            Ok(())
        };
        self.session
            .flushes
            .settle(number, flush)
            .inspect_err(|error| {
                // Another thread's commit must end before the writer lock is abandoned.
                let _no_commit = self.commit_lock.lock();
                self.stop(error.to_string());
            })
    }
}
