//! The requests in work, and interrupting them (`PROTOCOL-3`).
//!
//! A *slot* is where one worker notes the request that it is working on. Noting costs three stores;
//! all looking is done by whoever serves an INTERRUPT. Requests are never numbered 0, and no two
//! alike, so a mark that comes late marks nothing.
//!
//! There are so many slots, and one more for each worker that is *away*: it waits for the kernel,
//! which may wait for requests that others serve (`PROTOCOL-4`).
//!
//! An INTERRUPT may be read before the request that it is about is in work. Where all come by one
//! device, the kernel is asked for it again. Where the requests come by rings, the kernel would not
//! find them, so it is *expected*: kept here until the request begins. A request that was answered
//! meanwhile never does: nothing is expected of those that ended last, and the rest is forgotten
//! after a while.

use crate::device::Device;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread::Thread;
use std::time::{Duration, Instant};

/// Nobody's request.
const NOTHING: u64 = 0;
/// INTERRUPTs that are expected, at most: each thread of a session has at most one request that it
/// was sent and has not begun, and there are fewer threads.
const EXPECTED_MAX: usize = 4096;
/// A request that was sent begins sooner, however busy the machine is.
const EXPECTED_FOR: Duration = Duration::from_secs(60);

/// What one worker is working on.
#[derive(Debug, Default)]
pub(crate) struct RequestSlot {
    current: AtomicU64,
    /// What was worked on last, and has ended.
    ended: AtomicU64,
    interrupted: AtomicU64,
    holder: Mutex<Holder>,
}

/// Who has the slot.
#[derive(Debug, Default)]
struct Holder {
    is_taken: bool,
    worker: Option<(Thread, Device)>,
}

impl RequestSlot {
    /// The worker has answered.
    pub(crate) fn end(&self) {
        let ended = self.current.load(Ordering::SeqCst);
        // First this: whoever does not find it in work then finds that it has ended.
        self.ended.store(ended, Ordering::Release);
        self.current.store(NOTHING, Ordering::Release);
    }

    /// Whether the caller of `unique` was interrupted.
    pub(crate) fn is_interrupted(&self, unique: u64) -> bool {
        self.interrupted.load(Ordering::SeqCst) == unique
    }

    /// The calling thread takes the slot, and reads requests from `device`.
    pub(crate) fn attach(&self, device: &Device) {
        self.holder().worker = Some((std::thread::current(), device.clone()));
    }

    fn holder(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All slots of a session.
#[derive(Debug)]
pub(crate) struct InFlight {
    /// Made when they are first needed.
    slots: RwLock<Vec<Arc<RequestSlot>>>,
    count: AtomicUsize,
    away: AtomicUsize,
    /// INTERRUPTs of requests that are not in work, and when they came, the oldest first.
    expected: Mutex<VecDeque<(u64, Instant)>>,
    /// How many there are, to be read without the lock.
    expected_count: AtomicUsize,
}

/// A worker is away until this is dropped.
pub(crate) struct Away<'s>(&'s InFlight);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.away.fetch_sub(1, Ordering::SeqCst);
    }
}

impl InFlight {
    pub(crate) fn new(count: usize) -> InFlight {
        InFlight {
            slots: RwLock::new(Vec::new()),
            count: AtomicUsize::new(count),
            away: AtomicUsize::new(0),
            expected: Mutex::new(VecDeque::new()),
            expected_count: AtomicUsize::new(0),
        }
    }

    pub(crate) fn slot(&self, index: usize) -> Arc<RequestSlot> {
        self.read()[index].clone()
    }

    /// A slot for a new worker; `None` when all are taken. Cost: O(slots).
    pub(crate) fn reserve(&self) -> Option<usize> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let taken_count = slots.iter().filter(|slot| slot.holder().is_taken).count();
        let count = self.count.load(Ordering::SeqCst);
        if taken_count >= count + self.away.load(Ordering::SeqCst) {
            return None;
        }
        let free = slots.iter().position(|slot| !slot.holder().is_taken);
        let index = free.unwrap_or_else(|| {
            slots.push(Arc::default());
            slots.len() - 1
        });
        slots[index].holder().is_taken = true;
        Some(index)
    }

    /// There are only so many slots from now on.
    pub(crate) fn limit(&self, count: usize) {
        self.count.store(count, Ordering::SeqCst);
    }

    /// The slot is free again.
    pub(crate) fn leave(&self, index: usize) {
        *self.read()[index].holder() = Holder::default();
    }

    /// A worker waits for the kernel: its slot does not count.
    pub(crate) fn away(&self) -> Away<'_> {
        self.away.fetch_add(1, Ordering::SeqCst);
        Away(self)
    }

    /// The worker of `slot` begins with `unique`.
    pub(crate) fn begin(&self, slot: &RequestSlot, unique: u64) {
        slot.current.store(unique, Ordering::SeqCst);
        // Who expects it looks at the slots afterwards: one of the two sees the other.
        if self.expected_count.load(Ordering::SeqCst) > 0
            && self.take_expected(unique, Instant::now())
        {
            slot.interrupted.store(unique, Ordering::SeqCst);
        }
    }

    /// Marks `unique` now, or else when its worker begins (`PROTOCOL-3`).
    pub(crate) fn interrupt_or_expect(&self, unique: u64) {
        if self.interrupt(unique) || self.has_just_ended(unique) {
            return;
        }
        let now = Instant::now();
        self.expect(unique, now);
        // It may have begun, and even ended, before it was expected.
        if self.interrupt(unique) || self.has_just_ended(unique) {
            self.take_expected(unique, now);
        }
    }

    fn expect(&self, unique: u64, now: Instant) {
        let mut expected = self.expected();
        forget_old(&mut expected, now);
        if expected.len() == EXPECTED_MAX {
            expected.pop_front();
        }
        expected.push_back((unique, now));
        self.expected_count.store(expected.len(), Ordering::SeqCst);
    }

    fn take_expected(&self, unique: u64, now: Instant) -> bool {
        let mut expected = self.expected();
        forget_old(&mut expected, now);
        let found = expected.iter().position(|&(one, _)| one == unique);
        found.and_then(|at| expected.remove(at));
        self.expected_count.store(expected.len(), Ordering::SeqCst);
        found.is_some()
    }

    fn expected(&self) -> MutexGuard<'_, VecDeque<(u64, Instant)>> {
        self.expected.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether it is what one of the workers has ended last.
    fn has_just_ended(&self, unique: u64) -> bool {
        let slots = self.read();
        (slots.iter()).any(|slot| slot.ended.load(Ordering::SeqCst) == unique)
    }

    /// Marks `unique` and wakes its worker; `false` when nobody is working on it.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let slots = self.read();
        let found = (slots.iter()).find(|slot| slot.current.load(Ordering::SeqCst) == unique);
        let Some(slot) = found.filter(|_| unique != NOTHING) else {
            return false;
        };
        slot.interrupted.store(unique, Ordering::SeqCst);
        if let Some((thread, _)) = &slot.holder().worker {
            thread.unpark();
        }
        true
    }

    /// The devices that workers read from.
    pub(crate) fn devices(&self) -> Vec<Device> {
        (self.read().iter())
            .filter_map(|slot| Some(slot.holder().worker.as_ref()?.1.clone()))
            .collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<RequestSlot>>> {
        self.slots.read().unwrap_or_else(PoisonError::into_inner)
    }
}

fn forget_old(expected: &mut VecDeque<(u64, Instant)>, now: Instant) {
    let is_old = |came: Instant| now.saturating_duration_since(came) > EXPECTED_FOR;
    while expected.front().is_some_and(|&(_, came)| is_old(came)) {
        expected.pop_front();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_request_in_work_is_interrupted() {
        let slots = InFlight::new(2);
        let (one, other) = (slots.reserve().unwrap(), slots.reserve().unwrap());
        assert_eq!(slots.reserve(), None);
        slots.begin(&slots.slot(one), 8);
        slots.begin(&slots.slot(other), 10);
        assert!(!slots.interrupt(6), "PROTOCOL-3: not in work");
        assert!(!slots.interrupt(0), "PROTOCOL-3: nobody's");
        assert!(slots.interrupt(10));
        assert!(slots.slot(other).is_interrupted(10), "PROTOCOL-3");
        assert!(!slots.slot(one).is_interrupted(8), "PROTOCOL-3");
        slots.slot(other).end();
        assert!(!slots.interrupt(10));
        slots.begin(&slots.slot(other), 12);
        assert!(!slots.slot(other).is_interrupted(12), "PROTOCOL-3");
        slots.leave(one);
        assert_eq!(slots.reserve(), Some(one));
    }

    #[test]
    fn who_is_away_takes_no_slot() {
        let slots = InFlight::new(2);
        assert_eq!([slots.reserve(), slots.reserve()], [Some(0), Some(1)]);
        let away = slots.away();
        assert_eq!(slots.reserve(), Some(2), "PROTOCOL-4");
        assert_eq!(slots.reserve(), None);
        drop(away);
        slots.leave(0);
        assert_eq!(slots.reserve(), None, "who was away is back");
        slots.leave(1);
        assert_eq!(slots.reserve(), Some(0));
        slots.limit(1);
        slots.leave(0);
        assert_eq!(slots.reserve(), None, "RING-1: slot 2 is taken");
    }

    #[test]
    fn an_interrupt_wakes_the_worker() {
        let slots = InFlight::new(1);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let null = std::fs::File::open("/dev/null").unwrap();
                let slot = slots.slot(slots.reserve().unwrap());
                slot.attach(&Device::new(null.into()));
                slots.begin(&slot, 4);
                while !slot.is_interrupted(4) {
                    std::thread::park();
                }
            });
            while !slots.interrupt(4) {
                std::thread::yield_now();
            }
            worker.join().unwrap();
        });
    }

    #[test]
    fn an_interrupt_that_comes_early_is_expected() {
        let slots = InFlight::new(2);
        let slot = slots.slot(slots.reserve().unwrap());
        slots.begin(&slot, 4);
        slots.interrupt_or_expect(4);
        assert!(slot.is_interrupted(4), "PROTOCOL-3: it is in work");
        slots.interrupt_or_expect(8);
        slot.end();
        slots.begin(&slot, 6);
        assert!(!slot.is_interrupted(6), "PROTOCOL-3: another one is");
        slot.end();
        slots.begin(&slot, 8);
        assert!(slot.is_interrupted(8), "PROTOCOL-3");
        assert!(slots.expected().is_empty());
        for unique in 0..3 * EXPECTED_MAX as u64 {
            slots.interrupt_or_expect(2 * unique + 10);
        }
        assert_eq!(slots.expected().len(), EXPECTED_MAX, "it is bounded");
    }

    #[test]
    fn what_is_expected_of_a_request_that_has_ended_is_forgotten() {
        let slots = InFlight::new(2);
        let slot = slots.slot(slots.reserve().unwrap());
        let count = || slots.expected_count.load(Ordering::SeqCst);
        slots.begin(&slot, 4);
        slot.end();
        slots.interrupt_or_expect(4);
        assert_eq!(count(), 0, "it has just ended");
        slots.begin(&slot, 6);
        slots.interrupt_or_expect(4);
        assert_eq!(count(), 0, "another one has begun since");
        slot.end();
        let now = Instant::now();
        let later = now + EXPECTED_FOR + Duration::from_secs(1);
        slots.expect(8, now);
        slots.expect(10, later);
        assert!(!slots.take_expected(8, later), "it ended long ago");
        assert!(slots.take_expected(10, later), "PROTOCOL-3");
        assert_eq!(count(), 0);
        slots.expect(12, now);
        assert!(!slots.take_expected(14, later));
        assert_eq!(count(), 0, "whoever looks forgets it");
    }

    /// A worker and an interrupter meet at each request, in whatever order.
    #[test]
    fn an_interrupt_is_never_lost_between_the_list_and_the_slot() {
        let slots = InFlight::new(1);
        let slot = slots.slot(slots.reserve().unwrap());
        for unique in (2..20_000).step_by(2) {
            std::thread::scope(|scope| {
                if unique % 100 == 2 {
                    scope.spawn(|| slots.interrupt_or_expect(unique));
                } else {
                    slots.interrupt_or_expect(unique);
                }
                slots.begin(&slot, unique);
            });
            assert!(slot.is_interrupted(unique), "PROTOCOL-3");
            slot.end();
        }
        assert!(slots.expected().is_empty());
    }
}
