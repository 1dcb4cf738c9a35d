//! Rules of tables: what SQLite says in a CHECK, or by a key.

use crate::{CatalogError, InodeRow, Result};

/// A rule of a table: what SQLite says in a CHECK, or by a key.
pub(super) fn require(is_kept: bool, rule: &str) -> Result<()> {
    match is_kept {
        true => Ok(()),
        false => {
            let (table, constraint) = rule.split_once(": ").unwrap_or((rule, rule));
            Err(CatalogError::Constraint {
                table: table.into(),
                constraint: constraint.into(),
            })
        }
    }
}

/// An attribute row that the table takes.
pub(super) fn require_attributes(row: &InodeRow) -> Result<()> {
    let is_count = |number: u64| i64::try_from(number).is_ok();
    require(
        row.ino.0 > 0 && is_count(row.ino.0),
        "inodes: ino is 1 or more",
    )?;
    require(row.mode <= 0o7777, "inodes: mode is 0 to 4095 (octal 7777)")?;
    require(
        [row.size_bytes, row.block_count, row.rdev]
            .into_iter()
            .all(is_count),
        "inodes: size, blocks and rdev are counts",
    )
}
