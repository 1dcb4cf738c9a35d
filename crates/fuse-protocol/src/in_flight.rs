//! The requests in work, and interrupting them (`PROTOCOL-3`).
//!
//! A *slot* is where one worker notes the request that it is working on. Noting costs two stores;
//! all looking is done by whoever serves an INTERRUPT. Requests are never numbered 0, and no two
//! alike, so a mark that comes late marks nothing.
//!
//! There are so many slots, and one more for each worker that is *away*: it waits for the kernel,
//! which may wait for requests that others serve (`PROTOCOL-4`).

use crate::device::Device;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread::Thread;

/// Nobody's request.
const NOTHING: u64 = 0;

/// What one worker is working on.
#[derive(Debug, Default)]
pub(crate) struct RequestSlot {
    current: AtomicU64,
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
    /// The worker begins with `unique`.
    pub(crate) fn begin(&self, unique: u64) {
        self.current.store(unique, Ordering::SeqCst);
    }

    /// The worker has answered.
    pub(crate) fn end(&self) {
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
    /// Never fewer; some more when workers were away.
    slots: RwLock<Vec<Arc<RequestSlot>>>,
    count: usize,
    away: AtomicUsize,
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
            slots: RwLock::new((0..count).map(|_| Arc::default()).collect()),
            count,
            away: AtomicUsize::new(0),
        }
    }

    pub(crate) fn slot(&self, index: usize) -> Arc<RequestSlot> {
        self.read()[index].clone()
    }

    /// A slot for a new worker; `None` when all are taken. Cost: O(slots).
    pub(crate) fn reserve(&self) -> Option<usize> {
        let mut slots = self.slots.write().unwrap_or_else(PoisonError::into_inner);
        let taken_count = slots.iter().filter(|slot| slot.holder().is_taken).count();
        if taken_count >= self.count + self.away.load(Ordering::SeqCst) {
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

    /// The slot is free again.
    pub(crate) fn leave(&self, index: usize) {
        *self.read()[index].holder() = Holder::default();
    }

    /// A worker waits for the kernel: its slot does not count.
    pub(crate) fn away(&self) -> Away<'_> {
        self.away.fetch_add(1, Ordering::SeqCst);
        Away(self)
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_request_in_work_is_interrupted() {
        let slots = InFlight::new(2);
        let (one, other) = (slots.reserve().unwrap(), slots.reserve().unwrap());
        assert_eq!(slots.reserve(), None);
        slots.slot(one).begin(8);
        slots.slot(other).begin(10);
        assert!(!slots.interrupt(6), "PROTOCOL-3: not in work");
        assert!(!slots.interrupt(0), "PROTOCOL-3: nobody's");
        assert!(slots.interrupt(10));
        assert!(slots.slot(other).is_interrupted(10), "PROTOCOL-3");
        assert!(!slots.slot(one).is_interrupted(8), "PROTOCOL-3");
        slots.slot(other).end();
        assert!(!slots.interrupt(10));
        slots.slot(other).begin(12);
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
    }

    #[test]
    fn an_interrupt_wakes_the_worker() {
        let slots = InFlight::new(1);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let null = std::fs::File::open("/dev/null").unwrap();
                let slot = slots.slot(slots.reserve().unwrap());
                slot.attach(&Device::new(null.into()));
                slot.begin(4);
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
}
