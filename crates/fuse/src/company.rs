//! Other sessions beside the mount: what the kernel may answer by itself, and what reaches the
//! server by a name that is not right any more.
//!
//! Alone, the kernel is given names and attributes for long. While another session may write, it is
//! given them for no time at all and asks; and each request is answered as of now
//! ([`Bridge::freshen`]).
//!
//! # Stale names
//! OPEN carries no name: between the kernel's LOOKUP and its OPEN another session may have given
//! the name to another file, and what is written then is lost with the old one. So an OPEN of a
//! node that others have changed since the same thread looked it up is answered `ESTALE`, once: the
//! kernel looks up all names of the path anew and comes again. The same for a truncation by path,
//! which is a SETATTR without an open file, and for what gets another name by LINK.
//!
//! A thread looks up the last name of a path right before it opens: of each one the last LOOKUP is
//! remembered. Where it is not known (the kernel knew the name, or there was none, as with
//! `/proc/self/fd`) the second request passes too.
//!
//! The kernel comes again only once, and an application must not see `ESTALE`. So whoever was sent
//! back passes, whatever node it then comes to: it has looked up all names since. A file that
//! others change all the time is opened, too. The same for a CREATE of a name that somebody else
//! has made meanwhile: it is sent back to open the file.
//!
//! Limit: where one mount removes and makes a name again without a pause, an open on another one
//! that would also make it (`O_CREAT`) sees `ESTALE` now and then: the second time it finds no file
//! and may not open, without the kernel's permission checks, the one that has come meanwhile.
//!
//! # Invariants
//! * `COMPANY-5` No file is opened, truncated or linked by a name that was another file's in a
//!   commit that had ended when the name was looked up last.
//! * `COMPANY-6` A lock that is granted after another mount's unlock finds all that was done there
//!   before: the unlock is answered after a commit, the grant after the kernel has dropped the
//!   pages and attributes of what that has changed.
//! * `COMPANY-7` While a mount has other mounts beside it, what takes a name away (rename, unlink,
//!   rmdir) is committed before its reply.

use crate::bridge::{Bridge, Call};
use crate::convert::{node_number, slot_of_number};
use crate::errno::errno;
use larder::{ForeignChange, NodeId};
use larder_fuse_protocol::{Errno, FopenFlags, LockRequest, NodeNumber};
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How long a change counts while nobody else writes: the kernel was told of it, and whoever went
/// by an older name has come to its OPEN. (In company names are looked up each time, and it counts
/// for good.)
const CHANGE_AGE_MAX: Duration = Duration::from_secs(10);
/// Nodes whose changes are known one by one, at most; of more, all are taken as changed.
const CHANGED_COUNT_MAX: usize = 1 << 15;
/// Threads of which the last LOOKUP is remembered, at most; an OPEN of one that was forgotten comes
/// twice.
const THREAD_COUNT_MAX: usize = 1 << 12;

/// What the server knows of stale names.
#[derive(Default)]
pub(crate) struct StaleNames {
    /// Somebody has changed something: only then is it worth remembering who looks up what.
    is_any: AtomicBool,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    /// Counts changes.
    count: u64,
    changed: HashMap<NodeNumber, Change>,
    /// The last one after which any node may be another one.
    everything: Option<Change>,
    /// By thread: the node it looked up last, and how many changes there had been.
    looked_up: Threads<(NodeNumber, u64)>,
    /// By thread: when it was answered `ESTALE`, until it comes again.
    sent_back: Threads<Instant>,
}

/// Something by thread, of at most [`THREAD_COUNT_MAX`].
struct Threads<T>(HashMap<u32, T>);

#[derive(Debug, Clone, Copy)]
struct Change {
    count: u64,
    at: Instant,
}

impl StaleNames {
    /// Others have changed something.
    pub(crate) fn note(&self, foreign: &ForeignChange) {
        let mut state = self.lock();
        let at = Instant::now();
        let count = state.count + 1;
        let change = Change { count, at };
        match foreign {
            ForeignChange::Inodes(inodes) if inodes.is_empty() => return,
            ForeignChange::Inodes(inodes) => {
                let numbers = inodes
                    .iter()
                    .filter_map(|&(store, ino)| node_number(NodeId { store, ino }).ok());
                state.changed.extend(numbers.map(|node| (node, change)));
            }
            ForeignChange::Everything => state.everything = Some(change),
        }
        state.count = count;
        if state.changed.len() > CHANGED_COUNT_MAX {
            state.changed.clear();
            state.everything = Some(change);
        }
        self.is_any.store(true, Ordering::SeqCst);
    }

    /// How many changes there have been: before a name is looked up.
    pub(crate) fn count(&self) -> u64 {
        match self.is_any.load(Ordering::SeqCst) {
            true => self.lock().count,
            false => 0,
        }
    }

    /// A thread has looked up a name of `node`, after so many changes.
    pub(crate) fn looked_up(&self, thread: u32, node: NodeNumber, count: u64) {
        if self.is_any.load(Ordering::SeqCst) {
            self.lock().looked_up.note(thread, (node, count));
        }
    }

    /// `ESTALE` if the name by which a thread opens `node` may be another one's (`COMPANY-5`).
    /// `is_alone`: nobody else writes.
    pub(crate) fn require_fresh(
        &self,
        thread: u32,
        node: NodeNumber,
        is_alone: bool,
    ) -> Result<(), Errno> {
        if !self.is_any.load(Ordering::SeqCst) {
            return Ok(());
        }
        let mut state = self.lock();
        let comes_again =
            (state.sent_back.0.remove(&thread)).is_some_and(|at| at.elapsed() <= CHANGE_AGE_MAX);
        if is_alone {
            let is_young = |change: &Change| change.at.elapsed() <= CHANGE_AGE_MAX;
            state.changed.retain(|_, change| is_young(change));
            state.everything = state.everything.filter(is_young);
            if state.changed.is_empty() && state.everything.is_none() {
                self.is_any.store(false, Ordering::SeqCst);
                return Ok(());
            }
        }
        let one = state.changed.get(&node).map(|change| change.count);
        let all = state.everything.map(|change| change.count);
        let Some(changed) = one.max(all) else {
            return Ok(());
        };
        let looked_up = state.looked_up.0.get(&thread);
        let is_fresh = looked_up.is_some_and(|&(of, at)| of == node && at >= changed);
        if comes_again || is_fresh {
            return Ok(());
        }
        state.sent_back.note(thread, Instant::now());
        Err(Errno::ESTALE)
    }

    /// A thread shall look up a name again: `ESTALE`, after which it is not sent back once more.
    pub(crate) fn send_back(&self, thread: u32) -> Errno {
        self.lock().sent_back.note(thread, Instant::now());
        Errno::ESTALE
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<T> Default for Threads<T> {
    fn default() -> Self {
        Self(HashMap::new())
    }
}

impl<T> Threads<T> {
    fn note(&mut self, thread: u32, what: T) {
        if self.0.len() >= THREAD_COUNT_MAX {
            self.0.clear();
        }
        self.0.insert(thread, what);
    }
}

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

    /// After a lock was set: its owner shall see what was done under it elsewhere (`COMPANY-6`).
    pub(crate) fn after_lock(&self, call: &Call<'_>, lock: &LockRequest) -> Result<(), Errno> {
        if lock.lock.kind == libc::F_UNLCK {
            return Ok(());
        }
        self.freshen()?;
        if self.changes.is_stale() {
            call.away(|| self.changes.settle_stale());
        }
        Ok(())
    }

    /// A name was taken away (`COMPANY-7`).
    pub(crate) fn after_removal(&self) -> Result<(), Errno> {
        let shown = self.database.show_others(false);
        shown.map_err(|error| errno(&error, "commit a name that was taken away"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder::{Ino, StoreId};

    const NODE: NodeNumber = NodeNumber(7);
    const ALONE: bool = true;
    const IN_COMPANY: bool = false;

    fn changed() -> ForeignChange {
        ForeignChange::Inodes(vec![(StoreId(0), Ino(7))])
    }

    #[test]
    fn who_opens_by_an_older_name_is_sent_back_once_and_nobody_else() {
        let names = StaleNames::default();
        let open = |thread, node| names.require_fresh(thread, node, IN_COMPANY);
        assert_eq!(open(1, NODE), Ok(()), "nothing was changed");
        names.note(&changed());
        // One that was looked up before the change, and two whose LOOKUP is not known.
        names.looked_up(1, NODE, 0);
        for thread in [1, 2, 3] {
            assert_eq!(open(thread, NODE), Err(Errno::ESTALE), "COMPANY-5");
            assert_eq!(open(thread, NODE), Ok(()), "once");
        }
        names.looked_up(4, NODE, names.count());
        assert_eq!(open(4, NODE), Ok(()), "it was looked up after the change");
        assert_eq!(open(5, NodeNumber(8)), Ok(()), "it was not changed");
        names.note(&ForeignChange::Everything);
        assert_eq!(open(4, NODE), Err(Errno::ESTALE), "COMPANY-5");
        assert_eq!(open(5, NodeNumber(8)), Err(Errno::ESTALE), "COMPANY-5");
        // What is changed again meanwhile, and another file, send nobody back a second time.
        names.looked_up(4, NODE, names.count());
        names.note(&changed());
        assert_eq!(open(4, NODE), Ok(()), "COMPANY-5");
        assert_eq!(open(4, NODE), Err(Errno::ESTALE), "COMPANY-5");
        assert_eq!(open(5, NODE), Ok(()), "COMPANY-5");
        assert_eq!(names.send_back(6), Errno::ESTALE);
        assert_eq!(open(6, NODE), Ok(()), "COMPANY-5");
    }

    #[test]
    fn a_change_of_nothing_and_one_that_all_know_send_nobody_back() {
        let names = StaleNames::default();
        names.note(&ForeignChange::Inodes(Vec::new()));
        assert_eq!(names.require_fresh(1, NODE, ALONE), Ok(()));
        names.note(&changed());
        let old = Instant::now() - CHANGE_AGE_MAX - Duration::from_secs(1);
        names
            .lock()
            .changed
            .values_mut()
            .for_each(|change| change.at = old);
        assert_eq!(names.require_fresh(1, NODE, ALONE), Ok(()));
        assert!(!names.is_any.load(Ordering::SeqCst));
    }

    #[test]
    fn memory_is_bounded() {
        let names = StaleNames::default();
        let many = (1..=CHANGED_COUNT_MAX as u64 + 1).map(|ino| (StoreId(0), Ino(ino)));
        names.note(&ForeignChange::Inodes(many.collect()));
        assert!(names.lock().changed.is_empty());
        assert_eq!(names.require_fresh(1, NODE, IN_COMPANY), Err(Errno::ESTALE));
        for thread in 0..2 * THREAD_COUNT_MAX as u32 {
            names.looked_up(thread, NODE, 1);
            names.send_back(thread);
        }
        assert!(names.lock().looked_up.0.len() <= THREAD_COUNT_MAX);
        assert!(names.lock().sent_back.0.len() <= THREAD_COUNT_MAX);
    }
}
