//! Names and extended attributes in an order that the user's UNIQUE indexes accept.
//!
//! A commit writes what its group comes to, row by row, and SQLite looks at a UNIQUE index at each
//! row. One may lose in that commit the value that another gets: a file leaves a name and the next
//! one takes it, two names are exchanged. What counts is what the rows come to.
//!
//! # Invariants
//! * `CONSTRAINT-7` A UNIQUE index of the user's over the names or the extended attributes of a
//!   store refuses rows of a commit only if it would refuse them in any order. *Guard*: a row that
//!   is refused waits for the others. What is there of rows that wait for each other is removed,
//!   and they are written anew: all that is there at any step is part of what is there in the end.
//!   Excepted are rows that wait for each other and that a foreign key of the user's refers to:
//!   they cannot go and come back without it. (Inodes neither: a UNIQUE index over their own
//!   columns is met in the order of the commit.) The commit and the search for what it refuses
//!   (`refusals`) go this one road.
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

/// How rows of a side table are written.
pub(crate) trait Rows {
    type Row;

    /// Writes a row.
    fn write(&mut self, row: &Self::Row, kept: &mut Kept) -> Result<()>;

    /// Removes what is there of a row, to be written again; says how many rows that were.
    fn clear(&mut self, row: &Self::Row, kept: &mut Kept) -> Result<usize>;

    /// A rule refuses the row: an error ends it, else the others go on.
    fn refuse(&mut self, row: &Self::Row, error: CatalogError) -> Result<()>;
}

/// Writes rows to `table`.
pub(crate) fn write_in_any_order<'r, R: Rows>(
    (txn, table): (&Connection, &str),
    rows: impl IntoIterator<Item = &'r R::Row>,
    to: &mut R,
) -> Result<()>
where
    R::Row: 'r,
{
    let mut waiting: Vec<(&R::Row, Kept, CatalogError)> = Vec::new();
    for row in rows {
        let mut kept = Kept::default();
        match to.write(row, &mut kept) {
            Err(error) if may_wait(txn, table, &error)? => waiting.push((row, kept, error)),
            Err(error) => to.refuse(row, error)?,
            Ok(()) => {}
        }
    }
    // One may have waited for another, most often for the next: backwards, and then the other way.
    let mut count = usize::MAX;
    while !waiting.is_empty() && waiting.len() < count {
        count = waiting.len();
        for (row, mut kept, _) in std::mem::take(&mut waiting).into_iter().rev() {
            match to.write(row, &mut kept) {
                Err(error) if may_wait(txn, table, &error)? => waiting.push((row, kept, error)),
                Err(error) => to.refuse(row, error)?,
                Ok(()) => {}
            }
        }
    }
    if waiting.is_empty() {
        return Ok(());
    }
    let is_referred = is_referred(txn, table)?;
    let mut cleared = Vec::new();
    for (row, mut kept, error) in waiting {
        match to.clear(row, &mut kept) {
            Ok(removed) if removed == 0 || !is_referred => cleared.push((row, kept)),
            Ok(_) => to.refuse(row, error)?,
            Err(other) if is_referred && other.is_of_a_rule() => to.refuse(row, error)?,
            Err(other) => to.refuse(row, other)?,
        }
    }
    for (row, mut kept) in cleared {
        if let Err(error) = to.write(row, &mut kept) {
            to.refuse(row, error)?;
        }
    }
    Ok(())
}

/// Whether a UNIQUE index of `table` refuses the row: others may have to be written before. Not
/// where a rule has ended the transaction.
fn may_wait(txn: &Connection, table: &str, error: &CatalogError) -> Result<bool> {
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

/// Whether a UNIQUE index refuses it.
pub(crate) fn is_of_unique_index(error: &CatalogError) -> bool {
    matches!(error, CatalogError::Constraint { constraint, .. } if constraint.starts_with(UNIQUE))
}

/// Whether a foreign key of the user's refers to rows of a table.
fn is_referred(txn: &Connection, table: &str) -> Result<bool> {
    txn.prepare_cached(
        "SELECT 1 FROM sqlite_schema AS t, pragma_foreign_key_list(t.name) AS keys \
         WHERE t.type = 'table' AND keys.\"table\" = ?1 COLLATE NOCASE",
    )
    .and_then(|mut find| find.exists([table]))
    .at(table)
}
