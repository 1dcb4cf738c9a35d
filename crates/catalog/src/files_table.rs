//! The table-valued function `files(pattern)`: what a pattern of paths matches, row by row.

use crate::codec::signed;
use crate::functions::{FileRow, FileRows, FilesSlot, TABLE, text, wrong};
use rusqlite::types::{Value, ValueRef};
use rusqlite::vtab::{
    Context, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection,
    VTabCursor,
};
use rusqlite::{Connection, Error, Result, ffi};
use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;

const DECLARATION: &CStr = c"CREATE TABLE files (path TEXT, ino INTEGER, store TEXT, kind TEXT, size INTEGER, mode INTEGER, uid INTEGER, gid INTEGER, nlink INTEGER, mtime_ns INTEGER, ctime_ns INTEGER, btime_ns INTEGER, pattern HIDDEN)";
const COLUMN_PATTERN: c_int = 12;

/// Gives a connection the table.
pub(crate) fn register(connection: &Connection, files: &FilesSlot) -> Result<()> {
    const MODULE: Module<'_, FilesTable> = Module::eponymous_only_module();
    connection.create_module(TABLE, &MODULE, Some(files.clone()))
}

#[repr(C)]
struct FilesTable {
    /// SQLite's part; must be first.
    base: ffi::sqlite3_vtab,
    files: FilesSlot,
}

// SAFETY: `FilesTable` is `repr(C)` and begins with SQLite's part, which is what SQLite has pointers to.
unsafe impl<'vtab> VTab<'vtab> for FilesTable {
    type Aux = FilesSlot;
    type Cursor = FilesCursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        aux: Option<&FilesSlot>,
        _module: &[u8],
        _database: &[u8],
        _table: &[u8],
        _args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, FilesTable)> {
        db.config(VTabConfig::DirectOnly)?;
        let table = FilesTable {
            base: ffi::sqlite3_vtab::default(),
            files: aux.cloned().unwrap_or_default(),
        };
        Ok((Cow::Borrowed(DECLARATION), table))
    }

    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut is_given = false;
        let mut usable = None;
        for (index, constraint) in info.constraints().enumerate() {
            if constraint.column() == COLUMN_PATTERN
                && constraint.operator() == IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ
            {
                is_given = true;
                usable = usable.or(constraint.is_usable().then_some(index));
            }
        }
        match usable {
            Some(index) => {
                let mut usage = info.constraint_usage(index);
                usage.set_argv_index(1);
                usage.set_omit(true);
                info.set_estimated_cost(1000.0);
                info.set_estimated_rows(1000);
                Ok(true)
            }
            // Another order of the join has the pattern.
            None if is_given => Ok(false),
            None => {
                info.set_estimated_cost(1e12);
                Ok(true)
            }
        }
    }

    fn open(&'vtab mut self) -> Result<FilesCursor<'vtab>> {
        Ok(FilesCursor {
            base: ffi::sqlite3_vtab_cursor::default(),
            files: self.files.clone(),
            rows: None,
            row: None,
            number: 0,
            phantom: PhantomData,
        })
    }
}

#[repr(C)]
struct FilesCursor<'vtab> {
    /// SQLite's part; must be first.
    base: ffi::sqlite3_vtab_cursor,
    files: FilesSlot,
    rows: Option<FileRows>,
    /// Where it is.
    row: Option<FileRow>,
    number: i64,
    phantom: PhantomData<&'vtab FilesTable>,
}

// SAFETY: `FilesCursor` is `repr(C)` and begins with SQLite's part.
unsafe impl VTabCursor for FilesCursor<'_> {
    fn filter(&mut self, _plan: c_int, _name: Option<&str>, args: &Filters<'_>) -> Result<()> {
        (self.rows, self.row, self.number) = (None, None, 0);
        let pattern = match args.iter().next() {
            Some(ValueRef::Text(pattern) | ValueRef::Blob(pattern)) => pattern,
            Some(ValueRef::Null) => return Ok(()),
            Some(other) => return Err(told(wrong("files: the pattern is text", other))),
            None => {
                let how = "files: give it a pattern of paths, as in files('/photos/*.jpg')";
                return Err(Error::ModuleError(how.into()));
            }
        };
        let files = self.files.find().map_err(told)?;
        self.rows = Some(files.files(pattern).map_err(Error::ModuleError)?);
        self.next()
    }

    fn next(&mut self) -> Result<()> {
        let next = self.rows.as_mut().and_then(Iterator::next);
        self.row = next.transpose().map_err(Error::ModuleError)?;
        self.number += 1;
        Ok(())
    }

    fn eof(&self) -> bool {
        self.row.is_none()
    }

    fn column(&self, context: &mut Context, column: c_int) -> Result<()> {
        let Some(row) = &self.row else {
            return context.set_result(Value::Null);
        };
        context.set_result(match column {
            0 => text(row.path.clone()),
            1 => Value::Integer(signed(row.ino)),
            2 => Value::Text(row.store.clone()),
            3 => Value::Text(row.kind.as_str().into()),
            4 => Value::Integer(signed(row.size_bytes)),
            5 => Value::Integer(row.mode.into()),
            6 => Value::Integer(row.uid.into()),
            7 => Value::Integer(row.gid.into()),
            8 => Value::Integer(row.nlink.into()),
            9 => Value::Integer(row.mtime_ns),
            10 => Value::Integer(row.ctime_ns),
            11 => Value::Integer(row.btime_ns),
            _ => Value::Null,
        })
    }

    fn rowid(&self) -> Result<i64> {
        Ok(self.number)
    }
}

/// What SQLite passes on from a table.
fn told(error: Error) -> Error {
    Error::ModuleError(error.to_string())
}
