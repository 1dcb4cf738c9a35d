//! The requests in work, and interrupting them (`PROTOCOL-3`).
//!
//! A *seat* is where one worker notes the request that it is working on. Noting costs two stores;
//! all looking is done by whoever serves an INTERRUPT. Requests are never numbered 0, and no two
//! alike, so a mark that comes late marks nothing.
//!
//! There are so many seats, and one more for each worker that is *away*: it waits for the kernel,
//! which may wait for requests that others serve (`PROTOCOL-4`).

use crate::device::Device;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock, RwLockReadGuard};
use std::thread::Thread;

/// Nobody's request.
const NOTHING: u64 = 0;

/// What one worker is working on.
#[derive(Debug, Default)]
pub(crate) struct Seat {
    current: AtomicU64,
    interrupted: AtomicU64,
    holder: Mutex<Holder>,
}

/// Who sits there.
#[derive(Debug, Default)]
struct Holder {
    is_taken: bool,
    worker: Option<(Thread, Device)>,
}

impl Seat {
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

    /// The calling thread sits down, and reads requests from `device`.
    pub(crate) fn sit(&self, device: &Device) {
        self.holder().worker = Some((std::thread::current(), device.clone()));
    }

    fn holder(&self) -> MutexGuard<'_, Holder> {
        self.holder.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// All seats of a session.
#[derive(Debug)]
pub(crate) struct Seats {
    /// Never fewer; some more when workers were away.
    seats: RwLock<Vec<Arc<Seat>>>,
    count: usize,
    away: AtomicUsize,
}

/// A worker is away until this is dropped.
pub(crate) struct Away<'s>(&'s Seats);

impl Drop for Away<'_> {
    fn drop(&mut self) {
        self.0.away.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Seats {
    pub(crate) fn new(count: usize) -> Seats {
        Seats {
            seats: RwLock::new((0..count).map(|_| Arc::default()).collect()),
            count,
            away: AtomicUsize::new(0),
        }
    }

    pub(crate) fn seat(&self, index: usize) -> Arc<Seat> {
        self.read()[index].clone()
    }

    /// A seat for a new worker; `None` when all are taken. Cost: O(seats).
    pub(crate) fn reserve(&self) -> Option<usize> {
        let mut seats = self.seats.write().unwrap_or_else(PoisonError::into_inner);
        let taken_count = seats.iter().filter(|seat| seat.holder().is_taken).count();
        if taken_count >= self.count + self.away.load(Ordering::SeqCst) {
            return None;
        }
        let free = seats.iter().position(|seat| !seat.holder().is_taken);
        let index = free.unwrap_or_else(|| {
            seats.push(Arc::default());
            seats.len() - 1
        });
        seats[index].holder().is_taken = true;
        Some(index)
    }

    /// The seat is free again.
    pub(crate) fn leave(&self, index: usize) {
        *self.read()[index].holder() = Holder::default();
    }

    /// A worker waits for the kernel: its seat does not count.
    pub(crate) fn away(&self) -> Away<'_> {
        self.away.fetch_add(1, Ordering::SeqCst);
        Away(self)
    }

    /// Marks `unique` and wakes its worker; `false` when nobody is working on it.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let seats = self.read();
        let found = (seats.iter()).find(|seat| seat.current.load(Ordering::SeqCst) == unique);
        let Some(seat) = found.filter(|_| unique != NOTHING) else {
            return false;
        };
        seat.interrupted.store(unique, Ordering::SeqCst);
        if let Some((thread, _)) = &seat.holder().worker {
            thread.unpark();
        }
        true
    }

    /// The devices that workers read from.
    pub(crate) fn devices(&self) -> Vec<Device> {
        (self.read().iter())
            .filter_map(|seat| Some(seat.holder().worker.as_ref()?.1.clone()))
            .collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Vec<Arc<Seat>>> {
        self.seats.read().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_request_in_work_is_interrupted() {
        let seats = Seats::new(2);
        let (one, other) = (seats.reserve().unwrap(), seats.reserve().unwrap());
        assert_eq!(seats.reserve(), None);
        seats.seat(one).begin(8);
        seats.seat(other).begin(10);
        assert!(!seats.interrupt(6), "PROTOCOL-3: not in work");
        assert!(!seats.interrupt(0), "PROTOCOL-3: nobody's");
        assert!(seats.interrupt(10));
        assert!(seats.seat(other).is_interrupted(10), "PROTOCOL-3");
        assert!(!seats.seat(one).is_interrupted(8), "PROTOCOL-3");
        seats.seat(other).end();
        assert!(!seats.interrupt(10));
        seats.seat(other).begin(12);
        assert!(!seats.seat(other).is_interrupted(12), "PROTOCOL-3");
        seats.leave(one);
        assert_eq!(seats.reserve(), Some(one));
    }

    #[test]
    fn who_is_away_takes_no_seat() {
        let seats = Seats::new(2);
        assert_eq!([seats.reserve(), seats.reserve()], [Some(0), Some(1)]);
        let away = seats.away();
        assert_eq!(seats.reserve(), Some(2), "PROTOCOL-4");
        assert_eq!(seats.reserve(), None);
        drop(away);
        seats.leave(0);
        assert_eq!(seats.reserve(), None, "who was away is back");
        seats.leave(1);
        assert_eq!(seats.reserve(), Some(0));
    }

    #[test]
    fn an_interrupt_wakes_the_worker() {
        let seats = Seats::new(1);
        std::thread::scope(|scope| {
            let worker = scope.spawn(|| {
                let null = std::fs::File::open("/dev/null").unwrap();
                let seat = seats.seat(seats.reserve().unwrap());
                seat.sit(&Device::new(null.into()));
                seat.begin(4);
                while !seat.is_interrupted(4) {
                    std::thread::park();
                }
            });
            while !seats.interrupt(4) {
                std::thread::yield_now();
            }
            worker.join().unwrap();
        });
    }
}
