//! What a restore is asked, and what it says that it did.

use crate::history::rows::{RestoreRows, RowsReport};
use larder_object::format::FileKind;

/// How to restore.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RestoreOptions {
    /// The path that it gets; `None`: the one that it had.
    pub to: Option<Vec<u8>>,
    /// Rows to restore with it, in the same transaction.
    pub rows: Vec<RestoreRows>,
    /// Removes what is there now and was not then, so that the tree is as it was.
    pub is_exact: bool,
    /// Leaves user columns as they are, also those of tracked stores.
    pub keeps_columns: bool,
    /// Only finds out what would be done.
    pub is_dry: bool,
}

/// What a restore does to a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RestoreAction {
    /// Makes it.
    Create,
    /// Makes it another name of a file that is restored or is there.
    Link,
    /// Puts it in the place of something else.
    Replace,
    /// Renames it: it lies elsewhere now.
    Move,
    /// Writes its content as it was, and its attributes.
    Content,
    /// Sets mode, owner, times and extended attributes as they were.
    Attributes,
    /// Removes it.
    Remove,
}

/// One step of a restore.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreStep {
    /// The path in the present.
    pub path: Vec<u8>,
    /// What it is then; of what is removed, what it is now.
    pub kind: FileKind,
    /// What is done.
    pub action: RestoreAction,
}

/// What a restore did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RestoreReport {
    /// Step by step; directories before what is in them.
    pub steps: Vec<RestoreStep>,
    /// Content of the files that are written, bytes.
    pub content_bytes: u64,
    /// What of it was copied, bytes; the rest is shared with the history. 0 in a dry run.
    pub copied_bytes: u64,
    /// What is done to rows, by table.
    pub rows: Vec<RowsReport>,
}

impl RestoreReport {
    /// What a dry run tells of it.
    pub fn planned(&self) -> RestoreReport {
        RestoreReport {
            copied_bytes: 0,
            ..self.clone()
        }
    }
}
