//! The order of the transactions of one process that want to change something.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

/// Those who wait are woken one by one, as long as there are no more of them.
const CONDVARS: usize = 16;

/// The transactions of this process that want to change something: one at a time, in order.
#[derive(Default)]
pub(crate) struct Writers {
    state: Mutex<Tickets>,
    /// Who has a ticket waits on its condition variable.
    called: [Condvar; CONDVARS],
}

#[derive(Default)]
struct Tickets {
    next: u64,
    serving: u64,
}

impl Writers {
    /// The same as [`Writers::enter`] where nobody is before it; else `false`.
    pub(crate) fn try_enter(&self) -> bool {
        let mut tickets = self.lock();
        let is_free = tickets.serving == tickets.next;
        tickets.next += u64::from(is_free);
        is_free
    }

    /// Waits for its turn among them; ends with [`Writers::leave`].
    pub(crate) fn enter(&self) {
        let mut tickets = self.lock();
        let mine = tickets.next;
        tickets.next += 1;
        while tickets.serving != mine {
            tickets = (self.condvar(mine).wait(tickets)).unwrap_or_else(PoisonError::into_inner);
        }
    }

    pub(crate) fn leave(&self) {
        let mut tickets = self.lock();
        tickets.serving += 1;
        if tickets.serving < tickets.next {
            // Others may sit there, a round later.
            self.condvar(tickets.serving).notify_all();
        }
    }

    fn condvar(&self, ticket: u64) -> &Condvar {
        &self.called[(ticket % CONDVARS as u64) as usize]
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

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;

    #[test]
    fn more_than_may_be_in_flight_go_in_order() {
        let writers = Arc::new(Writers::default());
        let order = Arc::new(Mutex::new(Vec::new()));
        writers.enter();
        let waiting: Vec<_> = (0..3 * CONDVARS as u64)
            .map(|number| {
                let (writers, order) = (Arc::clone(&writers), Arc::clone(&order));
                let mine = Arc::clone(&writers);
                let thread = std::thread::spawn(move || {
                    mine.enter();
                    order.lock().unwrap().push(number);
                    mine.leave();
                });
                // The next one comes when this one has its ticket.
                while writers.lock().next < number + 2 {
                    std::thread::yield_now();
                }
                thread
            })
            .collect();
        assert!(writers.has_waiters());
        writers.leave();
        waiting.into_iter().for_each(|one| one.join().unwrap());
        let came = order.lock().unwrap().clone();
        assert_eq!(came, (0..3 * CONDVARS as u64).collect::<Vec<_>>());
        assert!(!writers.has_waiters());
    }
}
