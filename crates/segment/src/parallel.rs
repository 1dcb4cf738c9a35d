//! Several requests in flight at once.
//!
//! # Words
//! A *request* is what one call of the device transfers: at most [`REQUEST_BLOCKS`]. A *worker*
//! takes one request after the other until none is left.
//!
//! # Concurrency
//! The caller is the first worker; the others live as long as the call. How many are useful is the
//! device's word ([`Device::requests_in_flight_max`](crate::Device::requests_in_flight_max)); with
//! one, requests go to the device in order, from the calling thread. The caller may be bound to a
//! CPU; the others are not, so they work at the same time.

use std::io::IoSliceMut;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};

use larder_format::limits::BLOCK_BYTES;

use crate::binding::leave_binding;
use crate::error::SegmentError;

/// Blocks in one request at most (512 KiB): fewer cost more per byte, more are not faster and leave
/// nothing to overlap. Measured: docs/decisions/0011-direct-io.md.
pub(crate) const REQUEST_BLOCKS: u64 = 128;
/// Of what comes from memory so much is verified before the next is copied (128 KiB): the
/// processor's cache still has it.
pub(crate) const VERIFIED_BLOCKS: usize = 32;
/// From so many blocks on (768 KiB) a thread costs less than it saves.
pub(crate) const PARALLEL_BLOCKS_MIN: u64 = 192;

const BLOCK: usize = BLOCK_BYTES as usize;

/// Cuts buffers into requests of `request_blocks` blocks; the last may be shorter.
pub(crate) fn cut_slices<'b>(
    bufs: &'b mut [IoSliceMut<'_>],
    request_blocks: usize,
) -> Vec<Vec<IoSliceMut<'b>>> {
    let mut requests: Vec<Vec<IoSliceMut<'b>>> = Vec::new();
    let mut room = 0;
    for buf in bufs {
        let mut rest: &'b mut [u8] = buf;
        while !rest.is_empty() {
            if room == 0 {
                room = request_blocks * BLOCK;
                requests.push(Vec::new());
            }
            let (part, behind) = rest.split_at_mut(rest.len().min(room));
            room -= part.len();
            rest = behind;
            if let Some(request) = requests.last_mut() {
                request.push(IoSliceMut::new(part));
            }
        }
    }
    requests
}

/// Runs `work(0)` to `work(count - 1)`, `in_flight` at once, until all are done or one fails;
/// returns the first failure.
pub(crate) fn run_parallel(
    count: usize,
    in_flight: usize,
    work: impl Fn(usize) -> Result<(), SegmentError> + Sync,
) -> Result<(), SegmentError> {
    if in_flight.min(count) <= 1 {
        return (0..count).try_for_each(work);
    }
    let next = AtomicUsize::new(0);
    let failure: Mutex<Option<SegmentError>> = Mutex::new(None);
    let worker = || {
        loop {
            let at = next.fetch_add(1, Ordering::Relaxed);
            if at >= count {
                return;
            }
            if let Err(error) = work(at) {
                // Nobody begins anything more.
                next.store(count, Ordering::Relaxed);
                let mut failure = failure.lock().unwrap_or_else(PoisonError::into_inner);
                failure.get_or_insert(error);
                return;
            }
        }
    };
    std::thread::scope(|scope| {
        for _ in 1..in_flight.min(count) {
            scope.spawn(|| {
                leave_binding();
                worker();
            });
        }
        worker();
    });
    match failure.into_inner().unwrap_or_else(PoisonError::into_inner) {
        Some(error) => Err(error),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use larder_format::SegmentIndex;
    use rustix::process::getpid;
    use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
    use std::sync::Barrier;
    use std::thread::{current, spawn};

    #[test]
    fn the_first_failure_ends_all() {
        for in_flight in [1, 4] {
            let begun = AtomicUsize::new(0);
            let outcome = run_parallel(1000, in_flight, |at| {
                begun.fetch_add(1, Ordering::Relaxed);
                match at {
                    5 => Err(SegmentError::Poisoned {
                        segment: SegmentIndex(0),
                    }),
                    _ => Ok(()),
                }
            });
            assert!(matches!(outcome, Err(SegmentError::Poisoned { .. })));
            assert!(in_flight > 1 || begun.load(Ordering::Relaxed) == 6);
        }
    }
    #[test]
    fn who_helps_a_thread_that_is_bound_to_a_cpu_is_not() {
        let all = sched_getaffinity(Some(getpid())).unwrap();
        let first = (0..CpuSet::MAX_CPU).find(|&cpu| all.is_set(cpu)).unwrap();
        let caller = spawn(move || {
            let mut one = CpuSet::new();
            one.set(first);
            sched_setaffinity(None, &one).unwrap();
            let caller = current().id();
            let seen = Mutex::new(Vec::new());
            // All three are at work at the same time.
            let meet = Barrier::new(3);
            run_parallel(3, 3, |_| {
                let cpus = sched_getaffinity(None).unwrap();
                seen.lock().unwrap().push((current().id() == caller, cpus));
                meet.wait();
                Ok(())
            })
            .unwrap();
            for (is_caller, cpus) in seen.into_inner().unwrap() {
                assert_eq!(cpus, if is_caller { one } else { all });
            }
        });
        caller.join().unwrap();
    }
}
