//! The requests in work, and interrupting them (`PROTOCOL-3`).
//!
//! A *seat* is where one worker notes the request that it is working on. Noting costs two stores;
//! all looking is done by whoever serves an INTERRUPT. Requests are never numbered 0, and no two
//! alike, so a mark that comes late marks nothing.

use crate::device::Device;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
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
    seats: Box<[Seat]>,
}

impl Seats {
    pub(crate) fn new(count: usize) -> Seats {
        Seats {
            seats: (0..count).map(|_| Seat::default()).collect(),
        }
    }

    pub(crate) fn seat(&self, index: usize) -> &Seat {
        &self.seats[index]
    }

    /// A seat for a new worker; `None` when all are taken.
    pub(crate) fn reserve(&self) -> Option<usize> {
        self.seats
            .iter()
            .position(|seat| !std::mem::replace(&mut seat.holder().is_taken, true))
    }

    /// The seat is free again.
    pub(crate) fn leave(&self, index: usize) {
        *self.seats[index].holder() = Holder::default();
    }

    /// Marks `unique` and wakes its worker; `false` when nobody is working on it.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let found = (self.seats.iter()).find(|seat| seat.current.load(Ordering::SeqCst) == unique);
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
        (self.seats.iter())
            .filter_map(|seat| Some(seat.holder().worker.as_ref()?.1.clone()))
            .collect()
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
