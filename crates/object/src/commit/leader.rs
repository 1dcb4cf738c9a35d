//! Who commits next, and who only waits for a commit.
//!
//! # Words
//! *Leader*: the sync that commits its group for all syncs that wait for that group. *Generation*:
//! see `node`.
//!
//! While a commit runs, those who change something wait for the next group. When it ends, all who
//! waited for it go on, and one of those who wait for the next one becomes its leader:
//!
//! ```text
//!  sync ──▶ durable already? ──yes──▶ done
//!              │ no                      ▲ all of this group are woken
//!              ▼          lock taken     │
//!            free? ──no──▶ waits for its group ◀── one is woken when the lock is free
//!              │ yes                     │
//!              └────────▶ leader ◀───────┘
//! ```
//!
//! # Invariants
//! * `LEADER-1` While the lock is free nobody sleeps who could take it: letting it go wakes all
//!   whose group became durable, one who waits for a group that is not, and one who wants the lock
//!   for something else.
//!
//! Without this, with a plain mutex, a group of 32 syncs wakes one by one, and each that is awake
//! early commits the next group alone (docs/decisions/0019-commit-speed.md).

use crate::commit::{CommitLock, LockState};
use std::sync::atomic::Ordering;
use std::sync::{Condvar, MutexGuard, PoisonError};

/// The commit lock, held.
pub(crate) struct Committing<'l> {
    lock: &'l CommitLock,
}

impl CommitLock {
    fn state(&self) -> MutexGuard<'_, LockState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The newest group that is durable; 0 before the first.
    pub fn committed(&self) -> u64 {
        self.committed.load(Ordering::SeqCst)
    }

    /// Makes it known that the group is durable. The caller holds the lock.
    pub fn set_committed(&self, generation: u64) {
        debug_assert!(self.is_held());
        self.committed.store(generation, Ordering::SeqCst);
    }

    /// Whether somebody holds the lock.
    pub fn is_held(&self) -> bool {
        self.state().is_held
    }

    /// Takes the lock.
    pub fn lock(&self) -> Committing<'_> {
        let mut state = self.state();
        while state.is_held {
            state.lockers += 1;
            state = wait(&self.free, state);
            state.lockers -= 1;
        }
        state.is_held = true;
        Committing { lock: self }
    }

    /// Takes the lock in order to commit group `generation`, unless somebody else commits it first:
    /// then it returns `None`, after that commit.
    pub fn lead(&self, generation: u64) -> Option<Committing<'_>> {
        let parity = parity(generation);
        let mut state = self.state();
        loop {
            if self.committed() >= generation {
                return None;
            }
            if !state.is_held {
                state.is_held = true;
                return Some(Committing { lock: self });
            }
            state.syncs[parity] += 1;
            state = wait(&self.ended[parity], state);
            state.syncs[parity] -= 1;
        }
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        let lock = self.lock;
        let mut state = lock.state();
        state.is_held = false;
        let committed = lock.committed();
        let is_new =
            |generation: u64| generation > state.told && state.syncs[parity(generation)] > 0;
        let ended = [committed.saturating_sub(1), committed].map(is_new);
        state.told = committed;
        let next = [committed + 1, committed + 2].map(parity);
        let next = next.into_iter().find(|&parity| state.syncs[parity] > 0);
        let has_lockers = state.lockers > 0;
        drop(state);
        // LEADER-1
        for (back, _) in ended
            .iter()
            .rev()
            .enumerate()
            .filter(|(_, is_new)| **is_new)
        {
            lock.ended[parity(committed - back as u64)].notify_all();
        }
        if let Some(parity) = next {
            lock.ended[parity].notify_one();
        }
        if has_lockers {
            lock.free.notify_one();
        }
    }
}

fn parity(generation: u64) -> usize {
    (generation % 2) as usize
}

fn wait<'s>(condvar: &Condvar, state: MutexGuard<'s, LockState>) -> MutexGuard<'s, LockState> {
    condvar.wait(state).unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::AtomicU64;

    #[test]
    fn every_sync_is_served() {
        // Groups: what was asked for before a leader closes the group is in it.
        let lock = CommitLock::default();
        let open = AtomicU64::new(1);
        std::thread::scope(|scope| {
            for thread in 0..16 {
                let (lock, open) = (&lock, &open);
                scope.spawn(move || {
                    for round in 0..200 {
                        if (thread + round) % 50 == 0 {
                            // Somebody who only keeps commits out.
                            drop(lock.lock());
                        }
                        let generation = open.load(Ordering::SeqCst);
                        if let Some(_leading) = lock.lead(generation) {
                            let closed = open.fetch_add(1, Ordering::SeqCst);
                            std::thread::sleep(std::time::Duration::from_micros(50));
                            lock.set_committed(closed);
                        }
                        assert!(lock.committed() >= generation, "LEADER-1");
                    }
                });
            }
        });
        assert_is_free(&lock);
    }

    #[test]
    fn those_who_wait_for_one_group_share_its_commit() {
        let lock = CommitLock::default();
        let commits = AtomicU64::new(0);
        for generation in 1..=50 {
            std::thread::scope(|scope| {
                let held = lock.lock();
                for _ in 0..8 {
                    scope.spawn(|| {
                        if let Some(_leading) = lock.lead(generation) {
                            lock.set_committed(generation);
                            commits.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
                while lock.state().syncs[parity(generation)] < 8 {
                    std::thread::yield_now();
                }
                drop(held);
            });
            assert_eq!(commits.load(Ordering::SeqCst), generation, "LEADER-1");
        }
        assert_is_free(&lock);
    }

    fn assert_is_free(lock: &CommitLock) {
        let state = lock.state();
        assert!(!state.is_held && state.lockers == 0 && state.syncs == [0, 0]);
    }

    #[test]
    fn a_leader_that_fails_leaves_the_next_one_awake() {
        let lock = CommitLock::default();
        let leaders = AtomicU64::new(0);
        std::thread::scope(|scope| {
            let held = lock.lock();
            for thread in 0..8 {
                let (lock, leaders) = (&lock, &leaders);
                scope.spawn(move || {
                    // Both groups that can be waited for; nobody commits any.
                    let leading = lock.lead(1 + thread % 2);
                    assert!(leading.is_some(), "LEADER-1");
                    leaders.fetch_add(1, Ordering::SeqCst);
                });
            }
            while lock.state().syncs.iter().sum::<u32>() < 8 {
                std::thread::yield_now();
            }
            drop(held);
        });
        assert_eq!(leaders.load(Ordering::SeqCst), 8, "LEADER-1");
    }
}
