//! Reads under way, by the commit they began at: what they may touch is not reclaimed
//! (`SESSION-2`).
//!
//! # Concurrency
//! A read takes one of [`SLOTS`] slots and gives it back, without a lock: each thread tries its own
//! slot first. More reads at once than slots share a map behind a mutex.
//!
//! A pin counts from the moment its slot is set. Whoever computes the oldest pin either sees it, or
//! has read the newest commit before it was set; then the read looks at extent maps that are at
//! least as new as that commit, and cannot meet what it retired.

use larder_space::format::CommitSeq;
use std::cell::Cell;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

const SLOTS: usize = 64;
/// No commit: the slot is free.
const FREE: u64 = u64::MAX;

/// A slot alone on its cache line, so that threads do not take it from each other.
#[repr(align(64))]
struct Slot(AtomicU64);

/// The reads under way in this process.
pub(crate) struct Pins {
    slots: [Slot; SLOTS],
    /// Reads that found no free slot.
    others: Mutex<BTreeMap<CommitSeq, u32>>,
}

/// A read under way. Dropping it ends the read.
pub(crate) struct Pin<'p> {
    pins: &'p Pins,
    place: Place,
}

/// Where a pin is kept.
#[derive(Clone, Copy)]
pub(crate) enum Place {
    Slot(usize),
    Shared(CommitSeq),
}

impl Default for Pins {
    fn default() -> Pins {
        Pins {
            slots: std::array::from_fn(|_| Slot(AtomicU64::new(FREE))),
            others: Mutex::default(),
        }
    }
}

/// The slot that this thread tries first.
fn slot_of_thread() -> usize {
    static NEXT: AtomicUsize = AtomicUsize::new(0);
    thread_local! {
        static SLOT: Cell<Option<usize>> = const { Cell::new(None) };
    }
    SLOT.with(|slot| {
        let mine = slot.get();
        let mine = mine.unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed) % SLOTS);
        slot.set(Some(mine));
        mine
    })
}

impl Pins {
    /// Pins the commit that `known` says now.
    pub fn pin(&self, known: &AtomicU64) -> Pin<'_> {
        Pin {
            pins: self,
            place: self.take(known),
        }
    }

    /// The same for a read that outlives its caller; [`Pins::give_back`] must follow.
    pub fn take(&self, known: &AtomicU64) -> Place {
        let seq = known.load(Ordering::SeqCst);
        let first = slot_of_thread();
        for at in (first..SLOTS).chain(0..first) {
            let taken =
                self.slots[at]
                    .0
                    .compare_exchange(FREE, seq, Ordering::SeqCst, Ordering::Relaxed);
            if taken.is_ok() {
                return Place::Slot(at);
            }
        }
        *self.others().entry(CommitSeq(seq)).or_insert(0) += 1;
        Place::Shared(CommitSeq(seq))
    }

    /// Ends what [`Pins::take`] began.
    pub fn give_back(&self, place: Place) {
        match place {
            Place::Slot(at) => self.slots[at].0.store(FREE, Ordering::SeqCst),
            Place::Shared(seq) => {
                let mut others = self.others();
                if let Some(count) = others.get_mut(&seq) {
                    *count -= 1;
                    if *count == 0 {
                        others.remove(&seq);
                    }
                }
            }
        }
    }

    fn others(&self) -> MutexGuard<'_, BTreeMap<CommitSeq, u32>> {
        self.others.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The oldest pin, or what `known` says when nothing is read now.
    pub fn oldest(&self, known: &AtomicU64) -> CommitSeq {
        // First: a pin that is set after this is at least as new (see the header).
        let newest = known.load(Ordering::SeqCst);
        let slots = self.slots.iter().map(|slot| slot.0.load(Ordering::SeqCst));
        let shared = self.others().keys().next().map(|seq| seq.0);
        CommitSeq(slots.chain(shared).fold(newest, u64::min))
    }
}

impl Drop for Pin<'_> {
    fn drop(&mut self) {
        self.pins.give_back(self.place);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_read_counts_however_many_there_are() {
        let (pins, known) = (Pins::default(), AtomicU64::new(7));
        assert_eq!(pins.oldest(&known), CommitSeq(7));
        let old: Vec<Pin<'_>> = (0..SLOTS + 3).map(|_| pins.pin(&known)).collect();
        known.store(9, Ordering::SeqCst);
        let new: Vec<Pin<'_>> = (0..3).map(|_| pins.pin(&known)).collect();
        assert_eq!(pins.oldest(&known), CommitSeq(7), "SESSION-2");
        // Those in slots go first; what is left is behind the mutex.
        let mut old = old;
        let shared = old.split_off(SLOTS);
        drop(old);
        assert_eq!(pins.oldest(&known), CommitSeq(7), "SESSION-2");
        drop(shared);
        assert_eq!(pins.oldest(&known), CommitSeq(9));
        known.store(11, Ordering::SeqCst);
        assert_eq!(pins.oldest(&known), CommitSeq(9), "SESSION-2");
        drop(new);
        assert_eq!(pins.oldest(&known), CommitSeq(11));
        assert!(pins.others().is_empty());
    }
}
