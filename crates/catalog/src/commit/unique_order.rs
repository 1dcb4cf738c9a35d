//! Rows of a commit in an order that the user's UNIQUE indexes accept.
//!
//! A commit writes what its group comes to, row by row, and SQLite looks at a UNIQUE index at each
//! row. One may lose in that commit the value that another gets: a file leaves a name and the next
//! one takes it, two names are exchanged. What counts is what the rows come to.
//!
//! # Invariants
//! * `CONSTRAINT-7` A UNIQUE index of the user's on a store's tables refuses rows of a commit only
//!   if it would refuse them in any order. *Guard*: a row that is refused waits for the others.
//!   Rows that wait for each other are removed and written anew: all that is there at any step is
//!   then part of what is there in the end. Two things are excepted: rows of inodes, which cannot
//!   go and come back, and names to which a foreign key of the user's refers whose action would
//!   change other rows.
//!
//! # Cost
//! Nothing but a look at the outcome, unless an index refuses a row.

use crate::error::{At, CatalogError, Result};
use rusqlite::Connection;

/// Whether the past of a row is kept: once, however often it is written.
#[derive(Default)]
pub(crate) struct Kept(bool);

impl Kept {
    pub(crate) fn once(&mut self, keep: impl FnOnce() -> Result<()>) -> Result<()> {
        if !self.0 {
            keep()?;
            self.0 = true;
        }
        Ok(())
    }
}

/// Writes `rows` to `table`. `clear` removes what is there of a row, to be written again; `false`:
/// it cannot.
pub(crate) fn write_in_any_order<'r, T: 'r>(
    txn: &Connection,
    table: &str,
    rows: impl IntoIterator<Item = &'r T>,
    mut write: impl FnMut(&T, &mut Kept) -> Result<()>,
    mut clear: impl FnMut(&T, &mut Kept) -> Result<bool>,
) -> Result<()> {
    let mut waiting: Vec<(&T, Kept)> = Vec::new();
    for row in rows {
        let mut kept = Kept::default();
        match write(row, &mut kept) {
            Err(error) if may_wait(txn, table, &error) => waiting.push((row, kept)),
            outcome => outcome?,
        }
    }
    while !waiting.is_empty() {
        let count = waiting.len();
        let mut refused = None;
        let mut left = Vec::new();
        for (row, mut kept) in waiting {
            match write(row, &mut kept) {
                Err(error) if may_wait(txn, table, &error) => {
                    left.push((row, kept));
                    refused.get_or_insert(error);
                }
                outcome => outcome?,
            }
        }
        waiting = left;
        if let Some(error) = refused
            && waiting.len() == count
        {
            for (row, kept) in &mut waiting {
                if !clear(row, kept)? {
                    return Err(error);
                }
            }
            return (waiting.iter_mut()).try_for_each(|(row, kept)| write(row, kept));
        }
    }
    Ok(())
}

/// Whether other rows may have to be written before the one that `error` refuses. Not where a
/// rule has ended the transaction.
fn may_wait(txn: &Connection, table: &str, error: &CatalogError) -> bool {
    let is_of_table = matches!(error, CatalogError::Constraint { table: of, .. }
        if of.eq_ignore_ascii_case(table));
    is_of_table && error.is_of_unique_index() && !txn.is_autocommit()
}

impl CatalogError {
    /// Whether a UNIQUE index refuses it.
    pub(crate) fn is_of_unique_index(&self) -> bool {
        matches!(self, CatalogError::Constraint { constraint, .. }
            if constraint.starts_with("UNIQUE constraint failed"))
    }
}

/// Whether rows of a table may go and come back without a foreign key of the user's that refers to
/// them acting on others.
pub(crate) fn may_come_back(txn: &Connection, table: &str) -> Result<bool> {
    txn.prepare_cached(
        "SELECT 1 FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS keys \
         WHERE t.type = 'table' AND keys.\"table\" = ?1 COLLATE NOCASE \
           AND keys.on_delete NOT IN ('NO ACTION', 'RESTRICT')",
    )
    .and_then(|mut find| find.exists([table]))
    .map(|acts| !acts)
    .at(table)
}
