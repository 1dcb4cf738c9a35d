//! What a merge gathers on its way.

use crate::error::{CatalogError, Result};
use crate::types::changes::Held;
use std::collections::BTreeSet;
use std::fmt;

/// What a merge gathers on its way.
#[derive(Debug, Default)]
pub(crate) struct Findings {
    pub(super) conflicts: BTreeSet<Conflict>,
    /// Blocks of the parent, and the objects that hold them no more.
    pub(crate) retired: Vec<Held>,
    /// Files of the parent that lost their last name: `(table of the store, inode)`.
    pub(crate) removed: Vec<(String, i64)>,
    /// Tables that a row was changed in.
    pub(crate) changed_tables: BTreeSet<String>,
}

impl Findings {
    pub(crate) fn conflict(&mut self, what: impl Into<String>, why: impl Into<String>) {
        self.conflicts.insert(Conflict {
            what: what.into(),
            why: why.into(),
        });
    }

    /// A row that a constraint refuses is a conflict: the workspace had it.
    pub(crate) fn refused(
        &mut self,
        what: impl FnOnce() -> String,
        done: Result<()>,
    ) -> Result<()> {
        match done {
            Err(CatalogError::Constraint { table, constraint }) => {
                self.conflict(what(), format!("{constraint} ({table})"));
                Ok(())
            }
            other => other,
        }
    }
}

/// Why a workspace cannot be merged: one thing that both sides changed.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Conflict {
    /// The path of a file, or the table and the key of a row.
    pub what: String,
    /// What happened on which side.
    pub why: String,
}

impl fmt::Display for Conflict {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}: {}", self.what, self.why)
    }
}
