//! For whom a thread changes something: a mount serves many users in one session.
//!
//! A commit has one user if all that was changed in it was changed for one, and none otherwise.
//! What nobody is named for, such as work in the background, does not count.

use crate::history::Attribution;
use std::cell::Cell;
use std::sync::atomic::Ordering;

/// Nothing was changed for anybody.
const NONE: u64 = 0;
/// For several.
const SEVERAL: u64 = u64::MAX;

thread_local! {
    static USER: Cell<u64> = const { Cell::new(NONE) };
}

/// What this thread changes from now on is for that user, until it is told otherwise; `None`: for
/// nobody who is known.
pub fn act_for(user: Option<u32>) {
    USER.set(user.map_or(NONE, |user| u64::from(user) + 1));
}

impl Attribution {
    /// This thread changes something, inside the freeze barrier. 1 ns.
    pub fn note(&self) {
        let user = USER.get();
        let known = self.0.load(Ordering::Relaxed);
        if user == NONE || user == known || known == SEVERAL {
            return;
        }
        let first = self
            .0
            .compare_exchange(NONE, user, Ordering::Relaxed, Ordering::Relaxed);
        if first.is_err_and(|known| known != user) {
            self.0.store(SEVERAL, Ordering::Relaxed);
        }
    }

    /// The group ends, with the freeze barrier closed.
    pub fn take(&self) -> Option<u32> {
        let user = self.0.swap(NONE, Ordering::Relaxed);
        match user {
            NONE | SEVERAL => None,
            user => u32::try_from(user - 1).ok(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_user_if_it_has_one() {
        let attribution = Attribution::default();
        attribution.note();
        assert_eq!(attribution.take(), None);
        let note = |user| {
            act_for(user);
            attribution.note();
        };
        note(Some(0));
        note(None);
        note(Some(0));
        assert_eq!(attribution.take(), Some(0));
        note(Some(u32::MAX));
        assert_eq!(attribution.take(), Some(u32::MAX));
        note(Some(7));
        note(Some(8));
        note(Some(7));
        assert_eq!(attribution.take(), None);
        note(Some(7));
        assert_eq!(attribution.take(), Some(7), "each group by itself");
        act_for(None);
    }
}
