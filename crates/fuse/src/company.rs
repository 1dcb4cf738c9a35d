//! Other sessions beside the mount: what the kernel may answer by itself, and what reaches the
//! server by a name that is not right any more.
//!
//! Alone, the kernel is given names and attributes for long. While another session may write, it is
//! given them for no time at all and asks; and each request is answered as of now
//! (`Bridge::freshen`).
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
//! others change all the time is opened, too. `open` with `O_TRUNC` is two requests, an OPEN and a
//! SETATTR that names no open file, and has one ESTALE for both: what a thread cuts off right after
//! its OPEN is what it has opened.
//!
//! A CREATE of a name that somebody else has made meanwhile carries the name: it opens what is
//! there (`create.rs`).
//!
//! # Invariants
//! * `COMPANY-5` No file is opened, truncated or linked by a name that was another file's in a
//!   commit that had ended when the name was looked up last.
//! * `COMPANY-6` A lock that is granted after another mount's unlock finds all that was done there
//!   before: the unlock is answered after a commit, the grant after the kernel has dropped the
//!   pages and attributes of what that has changed.
//! * `COMPANY-7` While a mount has other mounts beside it, what takes a name away (rename, unlink,
//!   rmdir) is committed before its reply.
//! * `COMPANY-8` A CREATE of a name that has come meanwhile opens what has it, if the caller owns
//!   that, or its mode lets everybody in. An `open` that was sent back once succeeds or fails for a
//!   reason of its own.

use crate::convert::node_number;
use larder::{ForeignChange, NodeId};
use larder_fuse_protocol::{Errno, NodeNumber};
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
/// An `open` that cuts off what it opens does so in this time.
const OPENS_FOR: Duration = Duration::from_secs(1);
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
    /// By thread: what it has opened since it looked up anything, and when.
    opened: Threads<(NodeNumber, Instant)>,
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
            let mut state = self.lock();
            state.looked_up.note(thread, (node, count));
            state.opened.0.remove(&thread);
        }
    }

    /// A thread has opened `node`.
    pub(crate) fn opened(&self, thread: u32, node: NodeNumber) {
        if self.is_any.load(Ordering::SeqCst) {
            self.lock().opened.note(thread, (node, Instant::now()));
        }
    }

    /// Whether a thread that cuts `node` off does it as a part of its `open`; it does so once.
    pub(crate) fn take_opened(&self, thread: u32, node: NodeNumber) -> bool {
        self.is_any.load(Ordering::SeqCst)
            && (self.lock().opened.0.remove(&thread))
                .is_some_and(|(opened, at)| opened == node && at.elapsed() < OPENS_FOR)
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
    fn who_cuts_off_what_he_opens_is_sent_back_once_for_both() {
        let names = StaleNames::default();
        names.note(&changed());
        assert_eq!(names.require_fresh(1, NODE, IN_COMPANY), Err(Errno::ESTALE));
        names.looked_up(1, NODE, names.count());
        names.note(&changed());
        assert_eq!(names.require_fresh(1, NODE, IN_COMPANY), Ok(()));
        names.opened(1, NODE);
        names.note(&changed());
        assert!(!names.take_opened(2, NODE), "COMPANY-5");
        assert!(names.take_opened(1, NODE), "COMPANY-8");
        assert!(!names.take_opened(1, NODE), "COMPANY-5: once");
        names.opened(1, NODE);
        assert!(!names.take_opened(1, NodeNumber(8)), "COMPANY-5");
        names.opened(1, NODE);
        names.looked_up(1, NODE, names.count());
        assert!(!names.take_opened(1, NODE), "COMPANY-5: a cut by a name");
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
