//! Names and extended attributes of a commit, which a user's UNIQUE index may meet in any order
//! (`unique_order`).

use crate::commit::unique_order::{Kept, Rows, write_in_any_order};
use crate::error::{At, CatalogError, Result, ignored, require_row};
use crate::history::Keeper;
use crate::schema::statements::{StoreSql, Stores};
use crate::types::changes::{ChangeSet, DirentChange, XattrChange};
use crate::types::codec::{TextOrBlob, signed};
use rusqlite::config::DbConfig;
use rusqlite::{CachedStatement, Connection, ToSql, params};

pub(super) fn apply_dirents(
    txn: &Connection,
    stores: &Stores,
    changes: &ChangeSet,
    keeper: &Keeper,
) -> Result<()> {
    let has_triggers = runs_triggers(txn)?;
    for group in changes.dirents.chunk_by(|a, b| a.0 == b.0) {
        let sql = &stores[&group[0].0];
        let prepare = |text: &str| txn.prepare_cached(text).at(&sql.table_dirent);
        let mut dirents = Dirents {
            txn,
            sql,
            keeper,
            has_triggers,
            add: prepare(&sql.dirent_add)?,
            set: prepare(&sql.dirent_set)?,
            remove: prepare(&sql.dirent_remove)?,
        };
        write_in_any_order((txn, &sql.table_dirent), group, &mut dirents)?;
    }
    Ok(())
}

/// The names of a store.
struct Dirents<'t> {
    txn: &'t Connection,
    sql: &'t StoreSql,
    keeper: &'t Keeper,
    has_triggers: bool,
    add: CachedStatement<'t>,
    set: CachedStatement<'t>,
    remove: CachedStatement<'t>,
}

impl Dirents<'_> {
    fn remove(&mut self, key: &[&dyn ToSql], kept: &mut Kept) -> Result<usize> {
        kept.once(|| self.keeper.keep(self.txn, &self.sql.keep.name, key))?;
        self.remove.execute(key).at(&self.sql.table_dirent)
    }
}

impl Rows for Dirents<'_> {
    type Row = DirentChange;

    fn write(&mut self, (_, parent, name, ino): &DirentChange, kept: &mut Kept) -> Result<()> {
        let table = &self.sql.table_dirent;
        let key = params![signed(parent.0), TextOrBlob(name.as_bytes())];
        let Some(ino) = ino else {
            let removed = self.remove(key, kept)?;
            if self.has_triggers && removed == 0 {
                require_no_row(self.txn, (table, &self.sql.dirent), key)?;
            }
            return Ok(());
        };
        let row = params![key[0], key[1], signed(ino.0), signed(self.keeper.seq.0)];
        if self.add.execute(row).at(table)? == 0 {
            kept.once(|| self.keeper.keep(self.txn, &self.sql.keep.name, key))?;
            require_row(self.set.execute(row).at(table)?, table)?;
        }
        Ok(())
    }

    fn clear(&mut self, (_, parent, name, _): &DirentChange, kept: &mut Kept) -> Result<usize> {
        let key = params![signed(parent.0), TextOrBlob(name.as_bytes())];
        self.remove(key, kept)
    }

    fn refuse(&mut self, _: &DirentChange, error: CatalogError) -> Result<()> {
        Err(error)
    }
}

pub(super) fn apply_xattrs(
    txn: &Connection,
    stores: &Stores,
    changes: &ChangeSet,
    keeper: &Keeper,
) -> Result<()> {
    let has_triggers = runs_triggers(txn)?;
    let mut xattrs: Vec<&XattrChange> = changes.xattrs.iter().collect();
    xattrs.sort_by_key(|change| change.0);
    for group in xattrs.chunk_by(|a, b| a.0 == b.0) {
        let sql = &stores[&group[0].0];
        let mut of_store = Xattrs {
            txn,
            sql,
            keeper,
            has_triggers,
        };
        let rows = group.iter().copied();
        write_in_any_order((txn, &sql.table_xattr), rows, &mut of_store)?;
    }
    Ok(())
}

/// The extended attributes of a store.
struct Xattrs<'t> {
    txn: &'t Connection,
    sql: &'t StoreSql,
    keeper: &'t Keeper,
    has_triggers: bool,
}

impl Xattrs<'_> {
    fn run(&self, text: &str, row: &[&dyn ToSql]) -> Result<usize> {
        self.txn
            .prepare_cached(text)
            .and_then(|mut change| change.execute(row))
            .at(&self.sql.table_xattr)
    }

    fn remove(&self, key: &[&dyn ToSql], kept: &mut Kept) -> Result<usize> {
        kept.once(|| self.keeper.keep(self.txn, &self.sql.keep.xattr, key))?;
        self.run(&self.sql.xattr_remove, key)
    }
}

impl Rows for Xattrs<'_> {
    type Row = XattrChange;

    fn write(&mut self, (_, ino, name, value): &XattrChange, kept: &mut Kept) -> Result<()> {
        let table = &self.sql.table_xattr;
        let key = params![signed(ino.0), TextOrBlob(name)];
        let Some(value) = value else {
            let removed = self.remove(key, kept)?;
            if self.has_triggers && removed == 0 {
                require_no_row(self.txn, (table, &self.sql.xattr), key)?;
            }
            return Ok(());
        };
        let row = params![key[0], key[1], value, signed(self.keeper.seq.0)];
        if self.run(&self.sql.xattr_add, row)? == 0 {
            kept.once(|| self.keeper.keep(self.txn, &self.sql.keep.xattr, key))?;
            require_row(self.run(&self.sql.xattr_set, row)?, table)?;
        }
        Ok(())
    }

    fn clear(&mut self, (_, ino, name, _): &XattrChange, kept: &mut Kept) -> Result<usize> {
        self.remove(params![signed(ino.0), TextOrBlob(name)], kept)
    }

    fn refuse(&mut self, _: &XattrChange, error: CatalogError) -> Result<()> {
        Err(error)
    }
}

/// Whether triggers run on this connection now.
pub(super) fn runs_triggers(txn: &Connection) -> Result<bool> {
    (txn.db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_TRIGGER)).at("the triggers")
}

/// What `find` finds in `table` should have been changed or removed: a trigger of the user's has
/// left it out, without an error.
pub(super) fn require_no_row(
    txn: &Connection,
    (table, find): (&str, &str),
    key: &[&dyn ToSql],
) -> Result<()> {
    let is_there = txn
        .prepare_cached(find)
        .and_then(|mut find| find.exists(key))
        .at(table)?;
    match is_there {
        true => Err(ignored(table)),
        false => Ok(()),
    }
}
