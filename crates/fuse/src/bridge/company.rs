//! What the bridge does for other mounts of the database, and they for it: see [`crate::company`].

use super::{Bridge, Call};
use crate::convert::slot_of_number;
use crate::errno::errno;
use larder_fuse_protocol::{Errno, FopenFlags, LockRequest, NodeNumber, Reserved};
use std::time::Duration;

impl Bridge {
    /// Takes in what others have committed so far: before each answer that they may have changed
    /// (`FOREIGN-6`).
    pub(crate) fn freshen(&self) -> Result<(), Errno> {
        let fresh = self.database.catch_up_if_moved();
        fresh.map_err(|error| errno(&error, "take in what others have changed"))
    }

    /// How long the kernel may trust a name, or attributes.
    pub(crate) fn ttl(&self) -> Duration {
        match self.database.has_writers_beside() {
            true => Duration::ZERO,
            false => self.cache_ttl,
        }
    }

    /// `ESTALE` if the name by which a file is opened may be another one's.
    pub(crate) fn require_fresh_name(
        &self,
        call: &Call<'_>,
        node: NodeNumber,
    ) -> Result<(), Errno> {
        self.freshen()?;
        let thread = call.request.pid;
        match slot_of_number(node) {
            None => {
                (self.stale_names).require_fresh(thread, node, !self.database.has_writers_beside())
            }
            Some(_) => Ok(()), // What is past stays.
        }
    }

    /// The same of a file that is cut off by its name; that an `open` cuts off was opened by one.
    pub(crate) fn require_fresh_cut(&self, call: &Call<'_>, node: NodeNumber) -> Result<(), Errno> {
        match self.stale_names.take_opened(call.request.pid, node) {
            true => self.freshen(),
            false => self.require_fresh_name(call, node),
        }
    }

    /// What the kernel is told of the pages of a file that is opened: they stay, unless it was not
    /// told yet of what others have changed.
    pub(crate) fn page_flags(&self) -> FopenFlags {
        match self.changes.is_stale() {
            true => FopenFlags::NONE,
            false => FopenFlags::KEEP_CACHE,
        }
    }

    /// What the kernel may keep of a directory's listing.
    pub(crate) fn listing_flags(&self) -> FopenFlags {
        match self.database.has_writers_beside() || self.changes.is_stale() {
            true => FopenFlags::NONE,
            false => FopenFlags::KEEP_CACHE.union(FopenFlags::CACHE_DIR),
        }
    }

    /// Before a lock is dropped or made weaker: other mounts shall see what was done under it
    /// (`COMPANY-6`).
    pub(crate) fn before_unlock(&self, node: NodeNumber) {
        let may_have_written = || {
            let locks = self.locks.as_ref();
            locks.is_some_and(|locks| locks.has_writer(node))
        };
        if self.database.has_followers_beside()
            && may_have_written()
            && let Err(error) = self.database.show_others(true)
        {
            // The lock goes all the same: the session has stopped, and nothing more is written by
            // it.
            tracing::error!("what was done under a lock is not committed: {error}");
        }
    }

    /// The same for a request; one that sets a lock for writing drops none.
    pub(crate) fn before_lock(&self, node: NodeNumber, lock: &LockRequest) {
        if lock.lock.kind != libc::F_WRLCK {
            self.before_unlock(node);
        }
    }

    /// Before a lock is set after which the kernel may have to drop pages. `ENOLCK`: it must not
    /// be set.
    pub(crate) fn reserve_after_lock<'c>(
        &self,
        call: &'c Call<'_>,
        lock: &LockRequest,
    ) -> Result<Option<Reserved<'c>>, Errno> {
        match lock.lock.kind {
            libc::F_UNLCK => Ok(None),
            // `EAGAIN` would say that somebody else has it.
            _ => call.reserve_wait().map(Some).map_err(|_| Errno::ENOLCK),
        }
    }

    /// After a lock was set: its owner shall see what was done under it elsewhere (`COMPANY-6`).
    pub(crate) fn after_lock(&self, reserved: Option<Reserved<'_>>) -> Result<(), Errno> {
        let Some(reserved) = reserved else {
            return Ok(()); // It was dropped.
        };
        self.freshen()?;
        if self.changes.is_stale() {
            reserved.wait(|| self.changes.settle_stale());
        }
        Ok(())
    }

    /// A name was taken away (`COMPANY-7`).
    pub(crate) fn after_removal(&self) -> Result<(), Errno> {
        let shown = self.database.show_others(false);
        shown.map_err(|error| errno(&error, "commit a name that was taken away"))
    }
}
