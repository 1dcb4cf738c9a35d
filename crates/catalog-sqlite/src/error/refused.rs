//! What SQLite hands on as a code, in words: why a recovery of a log was refused (`LOG-6`), for
//! whom a lock was waited in vain (`WAIT-1`), and whether a row was too long (`SAFE-10`).

use std::cell::{Cell, RefCell};
use std::time::Duration;

thread_local! {
    /// Why this thread's last recovery was refused.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
    /// How long this thread has waited for a lock in vain, and who has it.
    static IN_VAIN: RefCell<Option<InVain>> = const { RefCell::new(None) };
    /// This thread has asked for more memory at once than it is given.
    static TOO_LONG: Cell<bool> = const { Cell::new(false) };
}

/// How long a lock was waited for, and the words about who has it, if they were asked for.
pub(crate) type InVain = (Duration, Option<String>);

/// SQLite is going to fail with `SQLITE_BUSY` in this thread after this wait; `None`: it is not.
pub(crate) fn set_in_vain(waited: Option<InVain>) {
    IN_VAIN.set(waited);
}

/// What this thread has just waited for in vain.
pub(crate) fn take_in_vain() -> Option<InVain> {
    IN_VAIN.take()
}

/// SQLite is going to fail with `SQLITE_IOERR_DATA` in this thread, for this.
pub(crate) fn set_refused(why: String) {
    REFUSED.set(Some(why));
}

/// Why SQLite has just failed with that code, if it was for a log.
pub(crate) fn take_refused() -> Option<String> {
    REFUSED.take()
}

/// SQLite is going to fail with `SQLITE_NOMEM` in this thread, for it reads a row that is too long.
#[cfg(feature = "bundled")]
pub(crate) fn note_too_long() {
    // A thread that ends has no such cell any more, and nobody to tell.
    let _ = TOO_LONG.try_with(|too_long| too_long.set(true));
}

/// Whether SQLite has just failed with that code for this.
pub(crate) fn take_too_long() -> bool {
    TOO_LONG.take()
}
