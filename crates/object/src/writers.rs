//! The order of the transactions of one process that want to change something.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// The transactions of this process that want to change something: one at a time, in order.
#[derive(Default)]
pub(crate) struct Writers {
    state: Mutex<Tickets>,
    changed: Condvar,
}

#[derive(Default)]
struct Tickets {
    next: u64,
    serving: u64,
}

impl Writers {
    /// Waits for its turn among them; ends with [`Writers::leave`].
    pub(crate) fn enter(&self) {
        let mut tickets = self.lock();
        let mine = tickets.next;
        tickets.next += 1;
        while tickets.serving != mine {
            tickets = self
                .changed
                .wait(tickets)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn leave(&self) {
        let mut tickets = self.lock();
        tickets.serving += 1;
        if tickets.serving < tickets.next {
            self.changed.notify_all();
        }
    }

    /// Whether somebody waits for the one who is served.
    pub(crate) fn has_waiters(&self) -> bool {
        let tickets = self.lock();
        tickets.next > tickets.serving + 1
    }

    fn lock(&self) -> MutexGuard<'_, Tickets> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
