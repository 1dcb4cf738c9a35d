//! How one learns of a client's transactions: a tracer, and a virtual table that SQLite tells of
//! them.

use super::handle::{ClientEnd, ClientHandle, ClientStatement, ClientWatch, REGISTERED};
use crate::lock;
use rusqlite::ffi;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;

pub(super) struct Watch {
    watch: Arc<dyn ClientWatch>,
    /// A child of `fork` has the connection too, but neither the threads nor the session: there
    /// nothing is done.
    process: u32,
    client: usize,
}

impl Watch {
    pub(super) fn new(watch: Arc<dyn ClientWatch>, client: ClientHandle) -> Watch {
        Watch {
            watch,
            process: std::process::id(),
            client: client.0.addr(),
        }
    }

    /// Tells it; the answer in a child of the process, and after a panic, is `otherwise`.
    fn tell<T>(&self, otherwise: T, tell: impl FnOnce(&dyn ClientWatch) -> T) -> T {
        if std::process::id() != self.process {
            return otherwise;
        }
        let telling = std::panic::AssertUnwindSafe(|| tell(&*self.watch));
        std::panic::catch_unwind(telling).unwrap_or_else(|_| {
            tracing::error!(
                "the extension panicked, which is a defect; close the connection, and report it"
            );
            otherwise
        })
    }
}

/// Why a commit is refused that nobody here knows of.
fn unknown() -> std::result::Result<(), String> {
    Err(
        "the extension panicked, or this process is a child of the one that loaded it; open \
        another connection"
            .into(),
    )
}

/// The table, as SQLite knows it.
#[repr(C)]
struct Table {
    /// SQLite's part; must be first.
    base: ffi::sqlite3_vtab,
    /// SQLite may disconnect it after it has replaced the module.
    watch: Arc<Watch>,
}

/// SAFETY: only SQLite calls what is in it, with what `connect` made.
pub(super) static MODULE: ffi::sqlite3_module = ffi::sqlite3_module {
    iVersion: 2,
    xConnect: Some(connect),
    xBestIndex: Some(refuse_plan),
    xDisconnect: Some(disconnect),
    xOpen: Some(refuse_cursor),
    xUpdate: Some(update),
    xBegin: Some(begin),
    xSync: Some(before_commit),
    xCommit: Some(after_end),
    xRollback: Some(after_end),
    xSavepoint: Some(before_savepoint),
    xRelease: Some(release),
    xRollbackTo: Some(went_back),
    // SAFETY: all that is left are pointers to functions, none.
    ..unsafe { std::mem::zeroed::<ffi::sqlite3_module>() }
};

/// # Safety
/// `table` is what [`connect`] made, and is not disconnected.
unsafe fn watch_of<'t>(table: *mut ffi::sqlite3_vtab) -> &'t Watch {
    // SAFETY: the table begins with SQLite's part, and has the watch.
    unsafe { &(*table.cast::<Table>()).watch }
}

pub(super) unsafe extern "C" fn destroy_watch(watch: *mut c_void) {
    // SAFETY: made by `ClientHandle::register`, and SQLite calls this once.
    let watch = unsafe { Arc::from_raw(watch.cast::<Watch>()) };
    if std::process::id() != watch.process {
        // The session is the parent's: it must not end here, nor its locks be given back.
        std::mem::forget(watch);
        return;
    }
    lock(&REGISTERED).retain(|client| *client != watch.client);
}

pub(super) unsafe extern "C" fn trace(
    event: c_uint,
    watch: *mut c_void,
    statement: *mut c_void,
    told: *mut c_void,
) -> c_int {
    // SAFETY: `ClientHandle::register` gave it; no statement runs after its end.
    let watch = unsafe { &*watch.cast::<Watch>() };
    if event == ffi::SQLITE_TRACE_PROFILE {
        watch.tell((), |watch| watch.ended(ClientEnd(statement.cast())));
        return 0;
    }
    let statement: *mut ffi::sqlite3_stmt = statement.cast();
    // SAFETY: SQLite passes the statement that begins.
    let (sql, is_read_only) = unsafe {
        let is_read_only = ffi::sqlite3_stmt_readonly(statement) != 0;
        (ffi::sqlite3_sql(statement), is_read_only)
    };
    // It tells the text of the statement itself, but a comment of a trigger or a nested statement.
    let is_outermost = !sql.is_null() && sql == told.cast::<c_char>().cast_const();
    let outermost = is_outermost.then(|| ClientStatement {
        // SAFETY: a C string that lives as long as the statement.
        text: unsafe { CStr::from_ptr(sql) }.to_bytes(),
        is_read_only,
    });
    watch.tell((), |watch| watch.begins(outermost));
    0
}

unsafe extern "C" fn connect(
    connection: *mut ffi::sqlite3,
    watch: *mut c_void,
    _count: c_int,
    _arguments: *const *const c_char,
    table: *mut *mut ffi::sqlite3_vtab,
    _error: *mut *mut c_char,
) -> c_int {
    // SAFETY: SQLite's own connection and a C string; `table` is its place for the answer.
    unsafe {
        let code = ffi::sqlite3_declare_vtab(connection, c"CREATE TABLE x(y)".as_ptr());
        if code == ffi::SQLITE_OK {
            let made = Box::new(Table {
                base: ffi::sqlite3_vtab::default(),
                watch: {
                    // The module keeps its own.
                    let watch = watch.cast::<Watch>().cast_const();
                    Arc::increment_strong_count(watch);
                    Arc::from_raw(watch)
                },
            });
            *table = Box::into_raw(made).cast();
        }
        code
    }
}

unsafe extern "C" fn disconnect(table: *mut ffi::sqlite3_vtab) -> c_int {
    // SAFETY: `connect` made it, and SQLite disconnects it once.
    unsafe {
        // In a child too: what is compiled keeps the connection from closing.
        watch_of(table).watch.disconnect();
        let table = Box::from_raw(table.cast::<Table>());
        if std::process::id() != table.watch.process {
            std::mem::forget(table);
        }
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn refuse_plan(
    table: *mut ffi::sqlite3_vtab,
    _info: *mut ffi::sqlite3_index_info,
) -> c_int {
    // SAFETY: `connect` made it.
    unsafe { refuse(table, "larder_client is not for reading".into()) }
}

unsafe extern "C" fn refuse_cursor(
    table: *mut ffi::sqlite3_vtab,
    _cursor: *mut *mut ffi::sqlite3_vtab_cursor,
) -> c_int {
    // SAFETY: `connect` made it.
    unsafe { refuse(table, "larder_client is not for reading".into()) }
}

unsafe extern "C" fn update(
    table: *mut ffi::sqlite3_vtab,
    _count: c_int,
    _values: *mut *mut ffi::sqlite3_value,
    row: *mut ffi::sqlite3_int64,
) -> c_int {
    // SAFETY: `connect` made the table; SQLite's place for the answer.
    unsafe {
        watch_of(table).tell((), |watch| watch.enlisted());
        *row = 1;
    }
    ffi::SQLITE_OK
}

unsafe extern "C" fn begin(_table: *mut ffi::sqlite3_vtab) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn before_commit(table: *mut ffi::sqlite3_vtab) -> c_int {
    // SAFETY: `connect` made it.
    unsafe {
        match watch_of(table).tell(unknown(), |watch| watch.before_commit()) {
            Ok(()) => ffi::SQLITE_OK,
            Err(why) => refuse(table, why),
        }
    }
}

unsafe extern "C" fn after_end(table: *mut ffi::sqlite3_vtab) -> c_int {
    // SAFETY: `connect` made it.
    unsafe { watch_of(table) }.tell((), |watch| watch.after_end());
    ffi::SQLITE_OK
}

unsafe extern "C" fn before_savepoint(table: *mut ffi::sqlite3_vtab, _number: c_int) -> c_int {
    // SAFETY: `connect` made it.
    unsafe {
        match watch_of(table).tell(unknown(), |watch| watch.before_savepoint()) {
            Ok(()) => ffi::SQLITE_OK,
            Err(why) => refuse(table, why),
        }
    }
}

unsafe extern "C" fn release(_table: *mut ffi::sqlite3_vtab, _number: c_int) -> c_int {
    ffi::SQLITE_OK
}

unsafe extern "C" fn went_back(table: *mut ffi::sqlite3_vtab, _number: c_int) -> c_int {
    // SAFETY: `connect` made it.
    unsafe { watch_of(table) }.tell((), |watch| watch.went_back());
    ffi::SQLITE_OK
}

/// Tells SQLite why not.
///
/// # Safety
/// `table` is what [`connect`] made.
unsafe fn refuse(table: *mut ffi::sqlite3_vtab, why: String) -> c_int {
    // SAFETY: the text is in memory of SQLite's, which it frees, as it does what was there before.
    unsafe {
        ffi::sqlite3_free((*table).zErrMsg.cast());
        let text = ffi::sqlite3_malloc64(why.len() as u64 + 1).cast::<u8>();
        if !text.is_null() {
            std::ptr::copy_nonoverlapping(why.as_ptr(), text, why.len());
            *text.add(why.len()) = 0;
        }
        (*table).zErrMsg = text.cast();
    }
    ffi::SQLITE_ERROR
}
