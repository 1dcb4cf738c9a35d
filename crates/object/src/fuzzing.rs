//! The decoders of this crate that `cargo xtask fuzz` calls: of files and names in the directory of
//! a database. Only built by it.

use crate::commit::refused_content;
use crate::session::workspace;
use crate::session::{barrier, peers};

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

/// The description of what was refused, in `refused/ID` (`CONSTRAINT-4`).
pub fn read_refused(about: &[u8]) {
    if let Some(found) = refused_content::decode(1, about) {
        let again = refused_content::decode(1, &refused_content::encode_again(&found));
        let again = again.expect("what is written is read");
        assert_eq!(
            (
                again.at_ns,
                again.store,
                again.ino,
                again.size_bytes,
                &again.path
            ),
            (
                found.at_ns,
                found.store,
                found.ino,
                found.size_bytes,
                &found.path
            ),
            "CONSTRAINT-4"
        );
    }
}
