//! The SQL functions about files: their names, the types of their arguments, and who answers them.
//!
//! | function | result |
//! |---|---|
//! | `content(ino or path)` | the bytes of a file; NULL if there is none |
//! | `content(ino or path, offset, length)` | some of them |
//! | `write_content(path, bytes)` | the number of bytes that the file is going to have |
//! | `write_content(path, offset, length, bytes)` | the number of `bytes`, in the place of a part |
//! | `path(ino)`, `path(ino, store)` | a path of an inode; NULL if it has none |
//! | `ino(path)` | the number of the inode; NULL if there is none |
//! | `larder_time()` | the present, nanoseconds since 1970 |
//! | `files(pattern)` | a table, see `files_table` |
//! | `content_as_of(moment, ino or path)`, with offset and length too | the same at a moment |
//! | `files_as_of(moment, pattern)` | a table: the same at a moment |
//! | `files_as_of(moment)` | of all paths then |
//!
//! All may be called by statements only, not by triggers, views, constraints or indexes: every
//! SQLite has to be able to write the catalog, and most do not have them.

use crate::lock;
use larder_format::FileKind;
use rusqlite::functions::{Context, FunctionFlags};
use rusqlite::types::{ToSqlOutput, Value, ValueRef};
use rusqlite::{Connection, Error, Result};
use std::sync::{Arc, Mutex};

/// The longest content that is one value: SQLite's limit.
pub const VALUE_BYTES_MAX: u64 = 1_000_000_000;

/// The functions.
pub(crate) const NAMES: [&str; 6] = [
    "content",
    WRITE,
    "path",
    "ino",
    "larder_time",
    CONTENT_AS_OF,
];
/// The one that writes.
pub(crate) const WRITE: &str = "write_content";
/// The one that reads the past.
const CONTENT_AS_OF: &str = "content_as_of";
/// The table.
pub(crate) const TABLE: &str = "files";
/// The table of the past.
pub(crate) const TABLE_AS_OF: &str = "files_as_of";

/// Who cannot read the past says so.
const NO_PAST: &str = "this program does not read the past; 'larder sql' does";

/// How a statement names a moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlMoment<'a> {
    /// As people write it.
    Text(&'a str),
    /// A time, nanoseconds since 1970.
    At(i64),
}

/// How a statement names a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlFile<'a> {
    /// By the number of an inode of the store `main`.
    Ino(u64),
    /// By its path.
    Path(&'a [u8]),
}

/// A row of `files`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileRow {
    /// Its path, in bytes.
    pub path: Vec<u8>,
    /// The name of its store.
    pub store: String,
    /// Its inode in that store.
    pub ino: u64,
    /// What it is.
    pub kind: FileKind,
    /// Length, bytes.
    pub size_bytes: u64,
    /// Permission bits: `0..=0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Last change of content.
    pub mtime_ns: i64,
    /// Last change of content or attributes.
    pub ctime_ns: i64,
    /// Creation.
    pub btime_ns: i64,
}

/// The rows of `files`, or what is wrong.
pub type FileRows = Box<dyn Iterator<Item = std::result::Result<FileRow, String>> + Send>;

/// Who answers the functions of a statement. Errors are for people, one line. It is called while
/// the statement runs, and must change nothing that the statement may read.
pub trait SqlFiles: Send + Sync {
    /// The content of a regular file, or of the part at `range` (offset and length, bytes): fewer
    /// bytes where the file ends. `None`: no such file.
    fn content(
        &self,
        file: SqlFile<'_>,
        range: Option<(u64, u64)>,
    ) -> std::result::Result<Option<Vec<u8>>, String>;
    /// Takes what the content of a file is to be when the statement has ended; or, of a file that
    /// is there, what is to take the place of the part at `range` (offset and length, bytes).
    fn write_content(
        &self,
        path: &[u8],
        range: Option<(u64, u64)>,
        bytes: &[u8],
    ) -> std::result::Result<(), String>;
    /// A path of an inode of a store (default: `main`).
    fn path(&self, ino: u64, store: Option<&str>) -> std::result::Result<Option<Vec<u8>>, String>;
    /// The number of what a path leads to, in its store.
    fn ino(&self, path: &[u8]) -> std::result::Result<Option<u64>, String>;
    /// The present, nanoseconds since 1970.
    fn now_ns(&self) -> i64;
    /// What a pattern matches.
    fn files(self: Arc<Self>, pattern: &[u8]) -> std::result::Result<FileRows, String>;
    /// [`SqlFiles::content`] at a moment. Who does not implement it reads no past.
    fn content_as_of(
        &self,
        _moment: SqlMoment<'_>,
        _file: SqlFile<'_>,
        _range: Option<(u64, u64)>,
    ) -> std::result::Result<Option<Vec<u8>>, String> {
        Err(NO_PAST.into())
    }
    /// [`SqlFiles::files`] at a moment. Who does not implement it reads no past.
    fn files_as_of(
        self: Arc<Self>,
        _moment: SqlMoment<'_>,
        _pattern: &[u8],
    ) -> std::result::Result<FileRows, String> {
        Err(NO_PAST.into())
    }
}

/// Where the functions of a connection find who answers them, while a statement runs.
#[derive(Clone, Default)]
pub(crate) struct FilesSlot(Arc<Mutex<Option<Arc<dyn SqlFiles>>>>);

/// Empties the slot at the end.
pub(crate) struct Lent<'s>(&'s FilesSlot);

impl FilesSlot {
    pub(crate) fn lend(&self, files: Option<Arc<dyn SqlFiles>>) -> Lent<'_> {
        *lock(&self.0) = files;
        Lent(self)
    }

    pub(crate) fn find(&self) -> Result<Arc<dyn SqlFiles>> {
        let files = lock(&self.0).clone();
        files.ok_or_else(|| failure("files are reached in a transaction only"))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        *lock(&self.0.0) = None;
    }
}

/// An error of a function.
pub(crate) fn failure(what: impl Into<String>) -> Error {
    Error::UserFunctionError(what.into().into())
}

type Answer = Result<ToSqlOutput<'static>>;

/// Gives a connection the functions.
pub(crate) fn register(connection: &Connection, files: &FilesSlot) -> Result<()> {
    let define = |name: &str, count: i32, body: fn(&Context<'_>, &dyn SqlFiles) -> Answer| {
        let files = files.clone();
        let flags = FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY;
        connection.create_scalar_function(name, count, flags, move |context| {
            body(context, &*files.find()?)
        })
    };
    for count in [1, 3] {
        define("content", count, |context, files| {
            content(context, files, "content", None)
        })?;
    }
    for count in [2, 4] {
        define(CONTENT_AS_OF, count, |context, files| {
            match find_moment(context.get_raw(0), CONTENT_AS_OF)? {
                None => Ok(null()),
                moment => content(context, files, CONTENT_AS_OF, moment),
            }
        })?;
    }
    for count in [2, 4] {
        define(WRITE, count, write_content)?;
    }
    define("path", 1, |context, files| path(context, files, None))?;
    define("path", 2, |context, files| match context.get_raw(1) {
        ValueRef::Null => Ok(null()),
        ValueRef::Text(name) => match std::str::from_utf8(name) {
            Ok(name) => path(context, files, Some(name)),
            Err(_) => Err(wrong(
                "path: the store is a name in UTF-8",
                ValueRef::Blob(name),
            )),
        },
        other => Err(wrong("path: the store is a name", other)),
    })?;
    define("ino", 1, |context, files| match context.get_raw(0) {
        ValueRef::Null => Ok(null()),
        ValueRef::Text(path) | ValueRef::Blob(path) => {
            let found = files.ino(path).map_err(failure)?;
            Ok(found.map_or(null(), integer))
        }
        other => Err(wrong("ino: the argument is a path", other)),
    })?;
    define("larder_time", 0, |_, files| {
        Ok(ToSqlOutput::Owned(Value::Integer(files.now_ns())))
    })
}

/// The arguments behind the moment, if there is one: the file, and a range of it.
fn content(
    context: &Context<'_>,
    files: &dyn SqlFiles,
    name: &str,
    moment: Option<SqlMoment<'_>>,
) -> Answer {
    let first = usize::from(moment.is_some());
    let file = match context.get_raw(first) {
        ValueRef::Null => return Ok(null()),
        ValueRef::Text(path) | ValueRef::Blob(path) => SqlFile::Path(path),
        // There are none below 1.
        ValueRef::Integer(ino) => SqlFile::Ino(u64::try_from(ino).unwrap_or(0)),
        other => {
            let rule = format!("{name}: the file is the number of an inode, or a path");
            return Err(wrong(&rule, other));
        }
    };
    let range = match context.len() == first + 3 {
        false => None,
        true => match (context.get_raw(first + 1), context.get_raw(first + 2)) {
            (ValueRef::Null, _) | (_, ValueRef::Null) => return Ok(null()),
            (offset, length) => Some((
                count(offset, &format!("{name}: the offset"))?,
                count(length, &format!("{name}: the length"))?,
            )),
        },
    };
    let found = match moment {
        None => files.content(file, range),
        Some(moment) => files.content_as_of(moment, file, range),
    };
    let found = found.map_err(failure)?;
    Ok(found.map_or(null(), |bytes| ToSqlOutput::Owned(Value::Blob(bytes))))
}

/// The moment that an argument names; `None` for NULL.
pub(crate) fn find_moment<'v>(value: ValueRef<'v>, name: &str) -> Result<Option<SqlMoment<'v>>> {
    let rule = || {
        format!(
            "{name}: the moment is text, like '-1h' or the name of a snapshot, or nanoseconds \
             since 1970"
        )
    };
    match value {
        ValueRef::Null => Ok(None),
        ValueRef::Integer(at_ns) => Ok(Some(SqlMoment::At(at_ns))),
        ValueRef::Text(text) => match std::str::from_utf8(text) {
            Ok(text) => Ok(Some(SqlMoment::Text(text))),
            Err(_) => Err(wrong(&rule(), ValueRef::Blob(text))),
        },
        other => Err(wrong(&rule(), other)),
    }
}

fn write_content(context: &Context<'_>, files: &dyn SqlFiles) -> Answer {
    let path = match context.get_raw(0) {
        ValueRef::Text(path) | ValueRef::Blob(path) => path,
        other => return Err(wrong("write_content: the file is a path", other)),
    };
    let range = match context.len() {
        4 => Some((
            count(context.get_raw(1), "write_content: the offset")?,
            count(context.get_raw(2), "write_content: the length")?,
        )),
        _ => None,
    };
    let bytes = match context.get_raw(context.len() - 1) {
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => bytes,
        ValueRef::Null => {
            return Err(failure(format!(
                "write_content: the content for '{}' is NULL; give x'' for an empty file, or \
                 leave the row out",
                String::from_utf8_lossy(path)
            )));
        }
        other => {
            let rule = "write_content: content is text or a blob (CAST it)";
            return Err(wrong(rule, other));
        }
    };
    files.write_content(path, range, bytes).map_err(failure)?;
    Ok(integer(bytes.len() as u64))
}

fn path(context: &Context<'_>, files: &dyn SqlFiles, store: Option<&str>) -> Answer {
    match context.get_raw(0) {
        ValueRef::Null => Ok(null()),
        ValueRef::Integer(ino) => {
            let ino = u64::try_from(ino).unwrap_or(0);
            let found = files.path(ino, store).map_err(failure)?;
            Ok(found.map_or(null(), |path| ToSqlOutput::Owned(text(path))))
        }
        other => Err(wrong("path: the argument is the number of an inode", other)),
    }
}

/// Text where it is UTF-8, else a blob (`CATALOG-6`).
pub(crate) fn text(bytes: Vec<u8>) -> Value {
    match String::from_utf8(bytes) {
        Ok(text) => Value::Text(text),
        Err(error) => Value::Blob(error.into_bytes()),
    }
}

fn null() -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(Value::Null)
}

fn integer(number: u64) -> ToSqlOutput<'static> {
    ToSqlOutput::Owned(Value::Integer(crate::types::codec::signed(number)))
}

fn count(value: ValueRef<'_>, what: &str) -> Result<u64> {
    match value {
        ValueRef::Integer(number) if number >= 0 => Ok(number as u64),
        other => Err(wrong(&format!("{what} is a whole number from 0 on"), other)),
    }
}

/// A value of the wrong type.
pub(crate) fn wrong(rule: &str, value: ValueRef<'_>) -> Error {
    let is = match value {
        ValueRef::Null => "NULL".into(),
        ValueRef::Integer(number) => number.to_string(),
        ValueRef::Real(number) => number.to_string(),
        ValueRef::Text(text) => {
            let shown: String = String::from_utf8_lossy(text).chars().take(60).collect();
            format!("'{shown}'")
        }
        ValueRef::Blob(bytes) => format!("a blob of {} bytes", bytes.len()),
    };
    failure(format!("{rule}, not {is}"))
}
