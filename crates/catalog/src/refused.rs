//! Why a recovery of a log was refused: SQLite hands on a code and no words (`LOG-6`).

use std::cell::RefCell;

thread_local! {
    /// Why this thread's last recovery was refused.
    static REFUSED: RefCell<Option<String>> = const { RefCell::new(None) };
}

/// SQLite is going to fail with `SQLITE_IOERR_DATA` in this thread, for this.
pub(crate) fn set_refused(why: String) {
    REFUSED.set(Some(why));
}

/// Why SQLite has just failed with that code, if it was for a log.
pub(crate) fn take_refused() -> Option<String> {
    REFUSED.take()
}
