//! The decoders of this crate that `cargo xtask fuzz` calls: of files and names in the directory of
//! a database. Only built by it.

use crate::session::{barrier, peers};
use crate::txn::workspace;

/// What a session's lock file says, and the length that a transaction began with.
pub fn read_text(text: &str) {
    if let Some(record) = peers::Record::parse(text) {
        let again = peers::Record::parse(&record.to_string());
        assert!(again.is_some(), "SESSION-5: {text:?}");
    }
    let _ = workspace::parse_length(text);
}

/// The name of a file among those of sessions.
pub fn read_name(name: &str) {
    let _ = barrier::session_of(name.as_ref());
}
