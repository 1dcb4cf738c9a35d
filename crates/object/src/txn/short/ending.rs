//! What surrounds a transaction: its place among the writers, what is left when it has ended, and
//! files that are written beside it.

use crate::engine::{Engine, EngineShortTransaction, lock};
use crate::txn::{Stage, State};
use crate::{Error, ErrorKind, Result};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

/// Rows that a transaction counts for when the length of the log is looked at.
const TRANSACTION_ROWS: u64 = 32;

/// A place at the head of those of this process who change something; dropping it calls the next
/// one.
pub struct WriterTicket {
    host: Option<Arc<Engine>>,
}

impl WriterTicket {
    /// The place is kept by somebody else from now on.
    fn keep(mut self) {
        self.host = None;
    }
}

impl Drop for WriterTicket {
    fn drop(&mut self) {
        if let Some(host) = &self.host {
            host.session.writers.leave();
        }
    }
}

/// What is left of a transaction that has ended. To be dropped after its engine was given back:
/// that calls the next one who waits to change something, and then has the host learn what was
/// committed.
#[must_use = "the engine is to be given back before"]
pub struct Ended {
    ticket: Option<WriterTicket>,
    /// The flush that it, or what it has read, waits for (`group_fsync`).
    pending_flush: Option<(Arc<Engine>, u64)>,
    /// Of a transaction that has changed something.
    host: Option<Arc<Engine>>,
}

impl Ended {
    /// Of one that has a place in `of`'s queue, or in nobody's.
    pub(super) fn new(of: Option<&Arc<Engine>>) -> Ended {
        Ended {
            ticket: of.map(|host| WriterTicket {
                host: Some(Arc::clone(host)),
            }),
            pending_flush: None,
            host: None,
        }
    }

    /// The host has to learn of it.
    pub(super) fn has_changed(&mut self, host: &Arc<Engine>) {
        self.host = Some(Arc::clone(host));
    }

    /// It is durable when this commit is.
    pub(super) fn set_pending_flush(&mut self, pending_flush: Option<(Arc<Engine>, u64)>) {
        self.pending_flush = pending_flush;
    }

    /// Calls the next one, and waits until the transaction is durable (`FLUSH-1`).
    /// [`ErrorKind::Stopped`]: only reopening tells whether it is.
    pub fn finish(mut self) -> Result<()> {
        drop(self.ticket.take());
        match self.pending_flush.take() {
            None => Ok(()),
            Some((host, number)) => host.commits().settle_flush(number),
        }
    }
}

impl Drop for Ended {
    fn drop(&mut self) {
        drop(self.ticket.take());
        let Some(host) = &self.host else { return };
        if let Err(error) = host.sessions().notice_foreign() {
            // It is durable; the host learns of it at its next look.
            tracing::warn!("after a transaction: {error}");
        }
        if let Err(error) = host.expiry().expire_early_if_missed(true) {
            tracing::warn!("no room is made ahead of transactions: {error}"); // TIME-5
        }
        if let Err(error) = host.commits().look_at_log(TRANSACTION_ROWS) {
            tracing::warn!("a checkpoint failed: {error}");
        }
    }
}

/// Content is being written beside a transaction.
pub struct Staging {
    count: Arc<AtomicU32>,
}

impl Drop for Staging {
    fn drop(&mut self) {
        self.count.fetch_sub(1, Ordering::SeqCst);
    }
}

/// [`ErrorKind::Busy`] while content is written beside the transaction.
pub(super) fn refuse_while_staging(state: &State) -> Result<()> {
    match state.staging_count.load(Ordering::SeqCst) {
        0 => Ok(()),
        _ => Err(Error::new(
            ErrorKind::Busy,
            "a file is being written beside the transaction; change nothing in it before that is \
             done",
        )),
    }
}

/// Waits until a transaction beside this engine may change something; for
/// [`EngineShortTransaction::use_ticket`].
pub fn enter_writers(engine: &Arc<Engine>) -> WriterTicket {
    engine.session.writers.enter();
    WriterTicket {
        host: Some(Arc::clone(engine)),
    }
}

impl EngineShortTransaction<'_> {
    /// Gives the next transaction of this engine the place that its host has given out.
    pub fn use_ticket(&self, ticket: WriterTicket) -> Result<()> {
        let private = self.private()?;
        let is_new = !std::mem::replace(&mut lock(&private.state).is_writer, true);
        debug_assert!(is_new, "PRIVATE-1");
        ticket.keep();
        Ok(())
    }

    /// Before the session writes content for the transaction beside it: until the guard is dropped
    /// the transaction takes no writer lock, for which the session would wait. `None` when it has
    /// the writer lock.
    pub fn begin_staging(&self) -> Result<Option<Staging>> {
        let state = lock(&self.private()?.state);
        if state.stage == Stage::Writing {
            return Ok(None);
        }
        let count = Arc::clone(&state.staging_count);
        count.fetch_add(1, Ordering::SeqCst);
        Ok(Some(Staging { count }))
    }
}
