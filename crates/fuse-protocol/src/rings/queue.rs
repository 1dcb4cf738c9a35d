//! What is known of the entries of one queue: how many there are, and what their handlers do.

use crate::relief::Wait;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Entries that waits for locks leave to others.
const SPARE_OF_LOCKS: usize = 4;
/// Entries that waits for the kernel leave.
const SPARE_OF_KERNEL: usize = 1;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Queue {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    entries: usize,
    /// Of these, those whose handlers wait for long.
    waits: usize,
}

impl Queue {
    /// The kernel has so many entries for it.
    pub(super) fn begin(&self, entries: usize) {
        self.state().entries = entries;
    }

    /// A handler is about to wait; `false`: too many do (`RING-2`).
    pub(super) fn begin_wait(&self, wait: Wait) -> bool {
        let spare = match wait {
            Wait::Lock => SPARE_OF_LOCKS,
            Wait::Kernel => SPARE_OF_KERNEL,
        };
        let mut state = self.state();
        let may_wait = state.waits + spare < state.entries;
        state.waits += usize::from(may_wait);
        may_wait
    }

    /// It has waited.
    pub(super) fn end_wait(&self) {
        self.state().waits -= 1;
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn waits_leave_entries_to_others() {
        let queue = Queue::default();
        queue.begin(6);
        assert!(queue.begin_wait(Wait::Lock) && queue.begin_wait(Wait::Lock));
        assert!(!queue.begin_wait(Wait::Lock), "RING-2: four are left");
        for _ in 0..3 {
            assert!(queue.begin_wait(Wait::Kernel));
        }
        assert!(!queue.begin_wait(Wait::Kernel), "RING-2: one is left");
        queue.end_wait();
        assert!(!queue.begin_wait(Wait::Lock) && queue.begin_wait(Wait::Kernel));
    }
}
