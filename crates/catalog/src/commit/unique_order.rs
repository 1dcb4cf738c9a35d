//! Names and extended attributes in an order that the user's UNIQUE indexes accept.
//!
//! A commit writes what its group comes to, row by row, and SQLite looks at a UNIQUE index at each
//! row. One may lose in that commit the value that another gets: a file leaves a name and the next
//! one takes it, two names are exchanged. What counts is what the rows come to.
//!
//! # Invariants
//! * `CONSTRAINT-7` A UNIQUE index of the user's over the names or the extended attributes of a
//!   store refuses rows of a commit only if it would refuse them in any order. *Guard*: rows that
//!   are refused wait until all others are written; then what is there of them is removed, and they
//!   are written anew: all that is there at any step is part of what is there in the end. Excepted
//!   are rows that are there and that a foreign key of the user's refers to: they cannot go and
//!   come back without it. (Inodes neither: a UNIQUE index over their own columns is met in the
//!   order of the commit.)
//!
//! # Cost
//! Nothing but a look at the outcome, unless an index refuses a row.

use crate::error::{At, CatalogError, Result};
use rusqlite::{Connection, OptionalExtension};

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

/// Writes `rows` to `table`. `clear` removes what is there of a row, to be written again, and says
/// how many rows that were.
pub(crate) fn write_in_any_order<'r, T: 'r>(
    txn: &Connection,
    table: &str,
    rows: impl IntoIterator<Item = &'r T>,
    mut write: impl FnMut(&T, &mut Kept) -> Result<()>,
    mut clear: impl FnMut(&T, &mut Kept) -> Result<usize>,
) -> Result<()> {
    let mut waiting: Vec<(&T, Kept)> = Vec::new();
    let mut first = None;
    for row in rows {
        let mut kept = Kept::default();
        if let Err(error) = write(row, &mut kept) {
            if !may_wait(txn, table, &error)? {
                return Err(error);
            }
            waiting.push((row, kept));
            first.get_or_insert(error);
        }
    }
    let Some(error) = first else {
        return Ok(());
    };
    let is_referred = is_referred(txn, table)?;
    for (row, kept) in &mut waiting {
        match clear(row, kept) {
            Ok(0) => {}
            Ok(_) if !is_referred => {}
            Ok(_) => return Err(error),
            Err(other) if is_referred && other.is_of_a_rule() => return Err(error),
            Err(other) => return Err(other),
        }
    }
    (waiting.iter_mut()).try_for_each(|(row, kept)| write(row, kept))
}

/// Whether a UNIQUE index of `table` refuses the row: others may have to be written before. Not
/// where a rule has ended the transaction.
pub(crate) fn may_wait(txn: &Connection, table: &str, error: &CatalogError) -> Result<bool> {
    let CatalogError::Constraint { constraint, .. } = error else {
        return Ok(false);
    };
    let Some(of) = constraint
        .strip_prefix(UNIQUE)
        .filter(|_| !txn.is_autocommit())
    else {
        return Ok(false);
    };
    // An index over an expression is named instead of its table and columns.
    let index = of
        .strip_prefix("index '")
        .and_then(|of| of.strip_suffix('\''));
    let found = match index {
        None => of.split_once('.').map(|(table, _)| table.to_owned()),
        Some(index) => txn
            .prepare_cached("SELECT tbl_name FROM sqlite_schema WHERE type = 'index' AND name = ?1")
            .and_then(|mut find| find.query_row([index], |row| row.get(0)).optional())
            .at(table)?,
    };
    Ok(found.is_some_and(|found| found.eq_ignore_ascii_case(table)))
}

const UNIQUE: &str = "UNIQUE constraint failed: ";

impl CatalogError {
    /// Whether a UNIQUE index refuses it.
    pub(crate) fn is_of_unique_index(&self) -> bool {
        matches!(self, CatalogError::Constraint { constraint, .. }
            if constraint.starts_with(UNIQUE))
    }
}

/// Whether a foreign key of the user's refers to rows of a table.
pub(crate) fn is_referred(txn: &Connection, table: &str) -> Result<bool> {
    txn.prepare_cached(
        "SELECT 1 FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS keys \
         WHERE t.type = 'table' AND keys.\"table\" = ?1 COLLATE NOCASE",
    )
    .and_then(|mut find| find.exists([table]))
    .at(table)
}
