//! The table-valued functions `files(pattern)` and `files_as_of(moment, pattern)`: what a pattern
//! of paths matches, row by row, now and at a moment.

use crate::conn::functions::{
    FileRow, FileRows, FilesSlot, TABLE, TABLE_AS_OF, find_moment, text, wrong,
};
use crate::types::codec::signed;
use rusqlite::types::{Value, ValueRef};
use rusqlite::vtab::{
    Context, Filters, IndexConstraintOp, IndexInfo, Module, VTab, VTabConfig, VTabConnection,
    VTabCursor,
};
use rusqlite::{Connection, Error, Result, ffi};
use std::borrow::Cow;
use std::ffi::{CStr, c_int};
use std::marker::PhantomData;

const DECLARATION: &CStr = c"CREATE TABLE files (path TEXT, ino INTEGER, store TEXT, kind TEXT, \
    size INTEGER, mode INTEGER, uid INTEGER, gid INTEGER, nlink INTEGER, mtime_ns INTEGER, \
    ctime_ns INTEGER, btime_ns INTEGER, pattern HIDDEN)";
const DECLARATION_AS_OF: &CStr = c"CREATE TABLE files_as_of (path TEXT, ino INTEGER, store TEXT, \
    kind TEXT, size INTEGER, mode INTEGER, uid INTEGER, gid INTEGER, nlink INTEGER, mtime_ns \
    INTEGER, ctime_ns INTEGER, btime_ns INTEGER, moment HIDDEN, pattern HIDDEN)";
/// The first hidden column, which is the first argument.
const COLUMN_ARGUMENTS: c_int = 12;
/// Arguments at most.
const ARGUMENTS_MAX: usize = 2;

/// Gives a connection the tables.
pub(crate) fn register(connection: &Connection, files: &FilesSlot) -> Result<()> {
    const MODULE: Module<'_, FilesTable> = Module::eponymous_only_module();
    for (name, has_moment) in [(TABLE, false), (TABLE_AS_OF, true)] {
        let given = Given {
            files: files.clone(),
            has_moment,
        };
        connection.create_module(name, &MODULE, Some(given))?;
    }
    Ok(())
}

/// What a table is made from.
#[derive(Clone, Default)]
struct Given {
    files: FilesSlot,
    has_moment: bool,
}

#[repr(C)]
struct FilesTable {
    /// SQLite's part; must be first.
    base: ffi::sqlite3_vtab,
    given: Given,
}

// SAFETY: `FilesTable` is `repr(C)` and begins with SQLite's part, which is what SQLite has
// pointers to.
unsafe impl<'vtab> VTab<'vtab> for FilesTable {
    type Aux = Given;
    type Cursor = FilesCursor<'vtab>;

    fn connect(
        db: &mut VTabConnection,
        aux: Option<&Given>,
        _module: &[u8],
        _database: &[u8],
        _table: &[u8],
        _args: &[&[u8]],
    ) -> Result<(Cow<'static, CStr>, FilesTable)> {
        db.config(VTabConfig::DirectOnly)?;
        let table = FilesTable {
            base: ffi::sqlite3_vtab::default(),
            given: aux.cloned().unwrap_or_default(),
        };
        let declaration = match table.given.has_moment {
            true => DECLARATION_AS_OF,
            false => DECLARATION,
        };
        Ok((Cow::Borrowed(declaration), table))
    }

    /// The plan has a bit for each argument that is given, in order.
    fn best_index(&self, info: &mut IndexInfo) -> Result<bool> {
        let mut is_given = [false; ARGUMENTS_MAX];
        let mut usable = [None; ARGUMENTS_MAX];
        for (index, constraint) in info.constraints().enumerate() {
            let argument = usize::try_from(constraint.column() - COLUMN_ARGUMENTS);
            if let Ok(argument) = argument
                && argument < ARGUMENTS_MAX
                && constraint.operator() == IndexConstraintOp::SQLITE_INDEX_CONSTRAINT_EQ
            {
                is_given[argument] = true;
                usable[argument] = usable[argument].or(constraint.is_usable().then_some(index));
            }
        }
        let (mut plan, mut count) = (0, 0);
        for (argument, index) in usable.into_iter().enumerate() {
            match index {
                Some(index) => {
                    count += 1;
                    plan |= 1 << argument;
                    let mut usage = info.constraint_usage(index);
                    usage.set_argv_index(count);
                    usage.set_omit(true);
                }
                // Another order of the join has it.
                None if is_given[argument] => return Ok(false),
                None => {}
            }
        }
        info.set_idx_num(plan);
        match plan {
            0 => info.set_estimated_cost(1e12),
            _ => {
                info.set_estimated_cost(1000.0);
                info.set_estimated_rows(1000);
            }
        }
        Ok(true)
    }

    fn open(&'vtab mut self) -> Result<FilesCursor<'vtab>> {
        Ok(FilesCursor {
            base: ffi::sqlite3_vtab_cursor::default(),
            given: self.given.clone(),
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
    given: Given,
    rows: Option<FileRows>,
    /// Where it is.
    row: Option<FileRow>,
    number: i64,
    phantom: PhantomData<&'vtab FilesTable>,
}

// SAFETY: `FilesCursor` is `repr(C)` and begins with SQLite's part.
unsafe impl VTabCursor for FilesCursor<'_> {
    fn filter(&mut self, plan: c_int, _name: Option<&str>, args: &Filters<'_>) -> Result<()> {
        (self.rows, self.row, self.number) = (None, None, 0);
        let mut values = args.iter();
        let mut argument = |number: c_int| match plan & (1 << number) {
            0 => None,
            _ => values.next(),
        };
        let (moment, pattern) = match self.given.has_moment {
            true => (
                Some(argument(0)),
                argument(1).or(Some(ValueRef::Text(b"/**"))),
            ),
            false => (None, argument(0)),
        };
        let name = match moment {
            Some(_) => TABLE_AS_OF,
            None => TABLE,
        };
        let pattern = match pattern {
            Some(ValueRef::Text(pattern) | ValueRef::Blob(pattern)) => pattern,
            Some(ValueRef::Null) => return Ok(()),
            Some(other) => {
                let rule = format!("{name}: the pattern is text");
                return Err(told(wrong(&rule, other)));
            }
            None => {
                let how = "files: give it a pattern of paths, as in files('/photos/*.jpg')";
                return Err(Error::ModuleError(how.into()));
            }
        };
        let rows = match moment {
            None => self.given.files.find().map_err(told)?.files(pattern),
            Some(None) => Err(format!(
                "{name}: give it a moment, as in {name}('-1h', '/photos/*.jpg')"
            )),
            Some(Some(moment)) => {
                let Some(moment) = find_moment(moment, name).map_err(told)? else {
                    return Ok(());
                };
                let files = self.given.files.find().map_err(told)?;
                files.files_as_of(moment, pattern)
            }
        };
        self.rows = Some(rows.map_err(Error::ModuleError)?);
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
