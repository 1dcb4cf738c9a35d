//! A database that is open as of a commit.

use larder::Database;

/// The database as of a commit, while somebody uses it.
pub(crate) struct Open {
    pub(super) database: Database,
}
