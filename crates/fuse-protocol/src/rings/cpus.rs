//! The CPUs of the system: which there may be, which there are, and binding a thread to one.

use super::weight::Weight;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use std::path::Path;

const POSSIBLE_PATH: &str = "/sys/devices/system/cpu/possible";

/// So many small requests after a large one bring a thread back to the CPU of its queue.
const SMALL_COUNT: u32 = 16;

/// How many queues the kernel wants: one for each CPU that there may ever be. `None`: unknown.
pub(super) fn queue_count() -> Option<u16> {
    let list = std::fs::read_to_string(Path::new(POSSIBLE_PATH)).ok()?;
    count_listed(list.trim())
}

/// How many numbers a list like `0-3,8` has. The kernel numbers queues from 0 on, as many as there
/// are.
fn count_listed(list: &str) -> Option<u16> {
    let mut count: u16 = 0;
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u16, u16) = (first.parse().ok()?, last.parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// Where a thread of a queue runs.
#[derive(Debug)]
pub(super) struct Binding {
    /// The CPU of the queue alone; `None`: it may not be used, or is off.
    own: Option<CpuSet>,
    /// All that this process may use; `None`: unknown.
    all: Option<CpuSet>,
    is_bound: bool,
    /// Requests since the last large one, up to [`SMALL_COUNT`].
    small_count: u32,
}

impl Binding {
    /// Of the CPU that `queue` is for, among those that the calling thread, which is not bound yet,
    /// may use.
    pub(super) fn new(queue: u16, all: Option<CpuSet>) -> Binding {
        let cpu = usize::from(queue);
        let may_use = all.is_some_and(|all| cpu < CpuSet::MAX_CPU && all.is_set(cpu));
        let own = may_use.then(|| {
            let mut own = CpuSet::new();
            own.set(cpu);
            own
        });
        Binding {
            own,
            all,
            is_bound: false,
            small_count: SMALL_COUNT,
        }
    }

    /// Binds the calling thread, if that is possible. A thread that was started by a bound one is
    /// bound as that is.
    pub(super) fn bind(&mut self) {
        let Some(own) = &self.own else {
            return;
        };
        match sched_setaffinity(None, own) {
            Ok(()) => self.is_bound = true,
            Err(error) => {
                // Not asked for again: the CPU is off, or was taken away.
                tracing::debug!("a thread is not bound to its CPU: {error}");
                self.own = None;
                self.unbind();
            }
        }
    }

    fn unbind(&mut self) {
        if let Some(all) = &self.all
            && let Err(error) = sched_setaffinity(None, all)
        {
            tracing::debug!("a thread stays bound to its CPU: {error}");
        }
        self.is_bound = false;
    }

    /// The calling thread is about to serve a request.
    pub(super) fn before(&mut self, weight: Weight) {
        match (self.wants_bound(weight), self.is_bound) {
            (true, false) => self.bind(),
            (false, true) => self.unbind(),
            _ => {}
        }
    }

    fn wants_bound(&mut self, weight: Weight) -> bool {
        self.small_count = match weight {
            Weight::Large => 0,
            Weight::Small => self.small_count.saturating_add(1).min(SMALL_COUNT),
            Weight::Slow => self.small_count,
        };
        weight == Weight::Small && self.own.is_some() && self.small_count == SMALL_COUNT
    }
}

/// The CPUs that the calling thread may use.
pub(super) fn usable() -> Option<CpuSet> {
    sched_getaffinity(None).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cpus_are_counted() {
        assert_eq!(count_listed("0"), Some(1));
        assert_eq!(count_listed("0-1"), Some(2));
        assert_eq!(count_listed("0-3,8,10-11"), Some(7));
        for bad in ["", "a", "3-1", "0-", "0-65535"] {
            assert_eq!(count_listed(bad), None, "{bad:?}");
        }
        assert!(queue_count().is_some_and(|count| count > 0));
    }

    #[test]
    fn a_thread_is_bound_for_small_requests_and_free_for_large_ones() {
        std::thread::spawn(|| {
            let all = usable();
            let cpu = (0..CpuSet::MAX_CPU).find(|&cpu| all.unwrap().is_set(cpu));
            let mut binding = Binding::new(cpu.unwrap() as u16, all);
            binding.before(Weight::Small);
            assert_eq!(usable().unwrap().count(), 1, "RING-6");
            binding.before(Weight::Large);
            assert_eq!(usable(), all, "RING-6");
            for _ in 1..SMALL_COUNT {
                binding.before(Weight::Small);
                assert_eq!(usable(), all, "RING-6");
            }
            binding.before(Weight::Small);
            assert_eq!(usable().unwrap().count(), 1, "RING-6");
            binding.before(Weight::Slow);
            assert_eq!(usable(), all, "RING-6");
            binding.before(Weight::Small);
            assert_eq!(
                usable().unwrap().count(),
                1,
                "RING-6: it was a small one before"
            );
        })
        .join()
        .unwrap();
    }

    #[test]
    fn a_cpu_that_may_not_be_used_is_done_without() {
        std::thread::spawn(|| {
            let all = usable();
            let mut other = Binding::new(u16::MAX, all);
            other.bind();
            assert!(!other.is_bound, "RING-6");
            assert!(
                (0..100).all(|_| !other.wants_bound(Weight::Small)),
                "RING-6"
            );
            // Off, though the list says otherwise.
            let mut claimed = CpuSet::new();
            claimed.set(CpuSet::MAX_CPU - 1);
            let mut off = Binding::new(CpuSet::MAX_CPU as u16 - 1, Some(claimed));
            off.bind();
            assert!(!off.is_bound && off.own.is_none(), "RING-6");
            assert_eq!(usable(), all, "RING-6");
        })
        .join()
        .unwrap();
    }
}
