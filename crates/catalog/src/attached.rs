//! What the schema says of what users attach to the files of a store (`saves`), remembered with the store's statements.

use std::sync::Arc;

/// What the schema says of a store's table.
#[derive(Debug)]
pub(crate) struct Attached {
    /// The user's columns that are stored, quoted, and the text of their defaults.
    pub(crate) columns: Vec<(String, String)>,
    /// Foreign keys to the inode or to the number of the file.
    pub(crate) keys: Vec<Key>,
    /// Any foreign key refers to the table.
    pub(crate) is_parent: bool,
    /// Some columns, or the number of the file, must be unique.
    pub(crate) has_unique: bool,
}

/// A column of a foreign key, quoted.
#[derive(Debug)]
pub(crate) struct Key {
    pub(crate) table: String,
    pub(crate) column: String,
    pub(crate) is_ino: bool,
}

/// What is known of the schema, and as of which version of it.
pub(crate) type Known = Option<(i64, Arc<Attached>)>;
