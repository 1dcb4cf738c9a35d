//! A SQLite VFS that writes what a commit adds to the write-ahead log with one request.
//!
//! SQLite writes each page of a commit with two requests, its frame's head and the page: fourteen
//! for one small file, more CPU time than all statements of the commit. Here the log's file keeps
//! what is written to it in memory, as long as each write begins where the last one ended, and
//! writes it when SQLite syncs, reads, or asks anything else of the file. Everything but logs is
//! opened by the VFS below as if this one were not there.
//!
//! # Invariants
//! * `LOG-1` Only a connection that syncs the log with every commit may use it (`CATALOG-7`):
//!   SQLite shows a commit to others after that sync, so nobody reads what is still in memory here.
//! * `LOG-2` What the file below has after a sync, a read or a truncation is what it would have had
//!   without this VFS.
//! * `LOG-3` Outside of COMMIT nothing is kept: the connection does not spill its cache, so frames
//!   are only written by a COMMIT, which ends with the sync. What a commit that failed has left is
//!   dropped: by then others may have written their own commits to that place.
//! * `LOG-4` A sync leaves the flush out only while [`defer_flush`] says so, and writes what is
//!   kept all the same (`LOG-1`). The flush of the log's head is never left out: old frames under a
//!   head that is not on the medium yet would bring back what a checkpoint has long overwritten.
//!
//! * `LOG-5` Before the first flush of a log is left out, a mark beside it says so, durably: the
//!   log's salts. Without one, every commit in it was flushed before the next one was written
//!   (`SCAN-1`).
//! * `LOG-6` No log is recovered by a connection of ours that would lose acknowledged commits by it
//!   (`log_scan`). *Guard*: SQLite reads the log's header when, and only when, it recovers, with
//!   all locks of the log in hand.
//!
//! Whether a COMMIT has flushed the log, which one without changes does not, is told by
//! [`take_flushed`].
//!
//! # Safety, for the whole file
//! SQLite calls the functions below with pointers that it got from [`register`] (the VFS) or that
//! [`open`] filled in (files). Both outlive their use: a registered VFS is never freed, and SQLite
//! frees a file's memory only after `xClose`. A log's memory is `szOsFile` bytes: first a
//! [`LogFile`], behind it the file of the VFS below, which alone touches that part. Any other
//! file's memory belongs to the VFS below wholly. SQLite uses one file from one thread at a time.

use crate::conn::log_scan::{self, SHARED_FLUSH_SUFFIX};
use crate::error::refused::set_refused;
use crate::error::{CatalogError, Result};
use rusqlite::Connection;
use rusqlite::ffi::{
    self, SQLITE_OK, sqlite3_file, sqlite3_filename, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs,
};
use std::collections::HashMap;
use std::ffi::{CStr, CString, OsStr, c_char, c_int, c_void};
use std::mem::size_of;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::Duration;

/// Most bytes that are kept: SQLite's "unix" takes no more than 0x1ffff in one call.
const KEPT_BYTES_MAX: usize = 31 * 4096;
const _: () = assert!(KEPT_BYTES_MAX <= 0x1ffff);

/// The head of a log's memory; the file of the VFS below follows it.
#[repr(C)]
struct LogFile {
    base: sqlite3_file,
    /// The VFS below.
    worker: *mut sqlite3_vfs,
    /// What was written and is not in the file below. Owned: freed at close.
    kept: *mut Kept,
}

/// Bytes at one place of the log.
#[derive(Default)]
struct Kept {
    offset: i64,
    bytes: Vec<u8>,
    /// The log's head was written and not flushed.
    has_new_head: bool,
    /// Flushes are left to somebody else.
    defers: bool,
    /// One was left out.
    is_owed: bool,
    /// One was made.
    is_flushed: bool,
    /// The log's path.
    path: CString,
    /// The salts of the log that is marked (`LOG-5`).
    marked: Option<[u8; 8]>,
}

/// How the names of the VFSs of this file begin.
const NAME_START: &str = "larder-log-";

/// The head of the log, bytes.
const HEAD_BYTES: i64 = 32;

/// The log of a connection, if it has one that is open.
pub(crate) fn find_log(connection: &Connection) -> Option<*mut sqlite3_file> {
    let mut file: *mut sqlite3_file = std::ptr::null_mut();
    // SAFETY: an open connection; SQLite sets `file` to a file that lives as long as the log is
    // open, or to one without methods, or leaves it null.
    let is_open = unsafe {
        let code = ffi::sqlite3_file_control(
            connection.handle(),
            c"main".as_ptr(),
            ffi::SQLITE_FCNTL_JOURNAL_POINTER,
            (&raw mut file).cast(),
        );
        code == SQLITE_OK && !file.is_null() && !(*file).pMethods.is_null()
    };
    is_open.then_some(file)
}

/// From now on, until [`end_deferring`], the connection's commits leave the flush of the log to the
/// caller (`LOG-4`); `false`: it has no log of this VFS, and flushes. Nobody else uses the
/// connection meanwhile.
pub(crate) fn defer_flush(connection: &Connection) -> bool {
    set_defers(connection, true).is_some()
}

/// Ends it; whether a flush was left out.
pub(crate) fn end_deferring(connection: &Connection) -> bool {
    set_defers(connection, false).is_some_and(|is_owed| is_owed)
}

/// Whether the connection has flushed its log since this was asked last; `false` too where that is
/// not known. What was in the log before, of whichever connection, is durable then.
pub(crate) fn take_flushed(connection: &Connection) -> bool {
    with_kept(connection, |kept| std::mem::take(&mut kept.is_flushed)) == Some(true)
}

fn set_defers(connection: &Connection, defers: bool) -> Option<bool> {
    with_kept(connection, |kept| {
        kept.defers = defers;
        std::mem::take(&mut kept.is_owed)
    })
}

/// What the log of a connection has not written yet; `None`: it has no log of this VFS.
fn with_kept<T>(connection: &Connection, work: impl FnOnce(&mut Kept) -> T) -> Option<T> {
    let file = find_log(connection)?;
    // SAFETY: `find_log` has an open file; with our methods it is one of ours, and the caller sees
    // to it that SQLite does not use it meanwhile.
    unsafe {
        if !std::ptr::eq((*file).pMethods, &raw const METHODS) {
            return None;
        }
        Some(work(kept(file)))
    }
}

/// The name of the VFS in front of the one named `below` (none: the system's); registered the first
/// time.
pub(crate) fn register(below: Option<&str>) -> Result<String> {
    register_for(below, Keeping::Commits)
}

/// The same for connections that may not keep `LOG-1`: they write as SQLite does, and are kept from
/// recovering what is damaged (`LOG-6`).
pub(crate) fn register_through(below: Option<&str>) -> Result<String> {
    register_for(below, Keeping::Nothing)
}

/// What a VFS keeps in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Keeping {
    Commits,
    Nothing,
}

type Names = HashMap<(Option<String>, Keeping), String>;

fn register_for(below: Option<&str>, keeping: Keeping) -> Result<String> {
    static NAMES: Mutex<Option<Names>> = Mutex::new(None);
    let mut names = NAMES.lock().unwrap_or_else(PoisonError::into_inner);
    let names = names.get_or_insert_default();
    let key = (below.map(str::to_owned), keeping);
    if let Some(name) = names.get(&key) {
        return Ok(name.clone());
    }
    let failed = |what: &str| CatalogError::invalid(format!("the log's VFS: {what}"));
    let below_name = CString::new(below.unwrap_or_default())
        .map_err(|_| failed("a name contains a NUL byte"))?;
    let kind = match keeping {
        Keeping::Commits => "gathers",
        Keeping::Nothing => "through",
    };
    let name = format!("{NAME_START}{kind}-{}", below.unwrap_or("system"));
    let c_name = CString::new(name.as_str()).map_err(|_| failed("a name contains a NUL byte"))?;
    // In an extension SQLite has started long ago.
    #[cfg(feature = "bundled")]
    // SAFETY: initialising is always allowed, and is needed before a VFS can be found.
    if unsafe { ffi::sqlite3_initialize() } != SQLITE_OK {
        return Err(failed("SQLite does not start"));
    }
    let wanted = below.map_or(std::ptr::null(), |_| below_name.as_ptr());
    // SAFETY: null (the default VFS) or a C string; the result is null or lives until the process
    // ends.
    let found = unsafe { ffi::sqlite3_vfs_find(wanted) };
    if found.is_null() {
        return Err(failed("SQLite does not know the VFS below"));
    }
    // SAFETY: not null, and a registered VFS stays as it is.
    let known = unsafe { &*found };
    let vfs = Box::new(sqlite3_vfs {
        iVersion: 2,
        szOsFile: size_of::<LogFile>() as c_int + known.szOsFile,
        mxPathname: known.mxPathname,
        pNext: std::ptr::null_mut(),
        zName: c_name.into_raw(),
        pAppData: found.cast(),
        xOpen: Some(match keeping {
            Keeping::Commits => open,
            Keeping::Nothing => open_through,
        }),
        xDelete: Some(delete),
        xAccess: Some(access),
        xFullPathname: Some(full_pathname),
        // Extensions are not loaded through this VFS.
        xDlOpen: None,
        xDlError: None,
        xDlSym: None,
        xDlClose: None,
        xRandomness: Some(randomness),
        xSleep: Some(sleep),
        xCurrentTime: Some(current_time),
        xGetLastError: Some(last_error),
        xCurrentTimeInt64: Some(current_time_ms),
        xSetSystemCall: None,
        xGetSystemCall: None,
        xNextSystemCall: None,
    });
    // SAFETY: the VFS and its name are leaked here, so they stay valid; all that version 2 demands
    // is set.
    if unsafe { ffi::sqlite3_vfs_register(Box::into_raw(vfs), 0) } != SQLITE_OK {
        return Err(failed("SQLite does not take it"));
    }
    names.insert(key, name.clone());
    Ok(name)
}

/// The VFS that does the work.
///
/// # Safety
/// `vfs` is one of ours.
unsafe fn worker(vfs: *mut sqlite3_vfs) -> *mut sqlite3_vfs {
    // SAFETY: `register` put it there, and nobody changes it.
    unsafe { (*vfs).pAppData.cast() }
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    path: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's arguments, handed on.
    unsafe { open_with(&METHODS, vfs, path, file, flags, out_flags) }
}

unsafe extern "C" fn open_through(
    vfs: *mut sqlite3_vfs,
    path: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // SAFETY: SQLite's arguments, handed on.
    unsafe { open_with(&THROUGH, vfs, path, file, flags, out_flags) }
}

/// # Safety
/// The arguments are those that SQLite has called `xOpen` of one of our VFSs with.
unsafe fn open_with(
    methods: &'static sqlite3_io_methods,
    vfs: *mut sqlite3_vfs,
    path: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let is_log = flags & ffi::SQLITE_OPEN_WAL != 0;
    // SAFETY: SQLite passes the VFS that was asked, and memory of `szOsFile` bytes, aligned to 8;
    // the flags and the path (with the parameters SQLite keeps behind it) are handed on as they
    // came. Without methods SQLite takes a file for closed, and it calls xClose if and only if they
    // are set; the VFS below has set or cleared its own by the same rule.
    unsafe {
        let worker = worker(vfs);
        let Some(open_below) = (*worker).xOpen else {
            return ffi::SQLITE_CANTOPEN;
        };
        if !is_log {
            return open_below(worker, path, file, flags, out_flags);
        }
        let head = file.cast::<LogFile>();
        (*head).base.pMethods = std::ptr::null();
        let code = open_below(worker, path, below(file), flags, out_flags);
        if !(*below(file)).pMethods.is_null() {
            let kept = Kept {
                path: CStr::from_ptr(path).to_owned(),
                ..Kept::default()
            };
            (*head).worker = worker;
            (*head).kept = Box::into_raw(Box::new(kept));
            (*head).base.pMethods = methods;
        }
        code
    }
}

/// What does the sleeping, once somebody has said so.
static SLEEP: OnceLock<fn(c_int)> = OnceLock::new();

/// SQLite sleeps only between two tries to begin a read (to wait for locks is its caller's): by
/// `sleep`, which is told how long, µs.
pub(crate) fn sleep_by(sleep: fn(c_int)) {
    SLEEP.get_or_init(|| sleep);
}

unsafe extern "C" fn sleep(_: *mut sqlite3_vfs, microseconds: c_int) -> c_int {
    match SLEEP.get() {
        Some(sleep) => sleep(microseconds),
        None => std::thread::sleep(Duration::from_micros(microseconds.unsigned_abs().into())),
    }
    microseconds
}

/// VFS functions that only hand on to the VFS below.
macro_rules! vfs_delegates {
    ($($name:ident = $slot:ident($($arg:ident: $type:ty),*);)*) => {$(
        unsafe extern "C" fn $name(vfs: *mut sqlite3_vfs, $($arg: $type),*) -> c_int {
            // SAFETY: the VFS is ours; the VFS below gets its own pointer and SQLite's arguments.
            unsafe {
                let worker = worker(vfs);
                match (*worker).$slot {
                    Some(function) => function(worker, $($arg),*),
                    None => ffi::SQLITE_ERROR,
                }
            }
        }
    )*};
}

vfs_delegates! {
    delete = xDelete(path: *const c_char, sync_directory: c_int);
    access = xAccess(path: *const c_char, flags: c_int, out: *mut c_int);
    full_pathname = xFullPathname(path: *const c_char, len: c_int, out: *mut c_char);
    randomness = xRandomness(len: c_int, out: *mut c_char);
    current_time = xCurrentTime(out: *mut f64);
    last_error = xGetLastError(len: c_int, out: *mut c_char);
    current_time_ms = xCurrentTimeInt64(out: *mut sqlite3_int64);
}

/// The file of the VFS below, behind our head.
///
/// # Safety
/// `file` has the `szOsFile` bytes of our VFS.
unsafe fn below(file: *mut sqlite3_file) -> *mut sqlite3_file {
    // SAFETY: the head is part of that memory, and so is what follows it.
    unsafe { file.cast::<u8>().add(size_of::<LogFile>()).cast() }
}

/// What a log has not written yet.
///
/// # Safety
/// `file` was opened by [`open`] as a log and is not closed; nobody else has this reference now.
unsafe fn kept<'f>(file: *mut sqlite3_file) -> &'f mut Kept {
    // SAFETY: `open` put a leaked box there; SQLite uses a file from one thread at a time.
    unsafe { &mut *(*file.cast::<LogFile>()).kept }
}

/// Writes what is kept (`LOG-2`).
///
/// # Safety
/// As [`kept`].
unsafe fn write_kept(file: *mut sqlite3_file) -> c_int {
    // SAFETY: the caller's promise; the bytes are readable during the call.
    unsafe {
        let kept = kept(file);
        if kept.bytes.is_empty() {
            return SQLITE_OK;
        }
        let (bytes, len) = (kept.bytes.as_ptr().cast(), kept.bytes.len() as c_int);
        let code = write_below(file, bytes, len, kept.offset);
        kept.bytes.clear(); // LOG-3
        code
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    data: *const c_void,
    len: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite passes an open log and `len` readable bytes.
    unsafe {
        let data = std::slice::from_raw_parts(data.cast::<u8>(), len as usize);
        let end = kept(file).offset + kept(file).bytes.len() as i64;
        if offset != end || kept(file).bytes.len() + data.len() > KEPT_BYTES_MAX {
            let code = write_kept(file);
            if code != SQLITE_OK {
                return code;
            }
        }
        let kept = kept(file);
        kept.has_new_head |= offset < HEAD_BYTES;
        if kept.bytes.is_empty() {
            kept.offset = offset;
        }
        kept.bytes.extend_from_slice(data);
        SQLITE_OK
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file once; the box was leaked by `open` and is not used after.
    unsafe {
        // LOG-3: what was not synced was not committed.
        drop(Box::from_raw((*file.cast::<LogFile>()).kept));
        close_below(file)
    }
}

/// File functions that only hand on to the file below.
macro_rules! file_delegates {
    ($($name:ident = $slot:ident($($arg:ident: $type:ty),*);)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($arg: $type),*) -> c_int {
            // SAFETY: SQLite passes an open log; the file below has methods and gets its own
            // pointer and SQLite's arguments.
            unsafe {
                let below = below(file);
                match (*(*below).pMethods).$slot {
                    Some(function) => function(below, $($arg),*),
                    None => ffi::SQLITE_ERROR,
                }
            }
        }
    )*};
}

file_delegates! {
    close_below = xClose();
    write_below = xWrite(data: *const c_void, len: c_int, offset: sqlite3_int64);
    read_below = xRead(data: *mut c_void, len: c_int, offset: sqlite3_int64);
    truncate_below = xTruncate(size: sqlite3_int64);
    sync_below = xSync(flags: c_int);
    file_size_below = xFileSize(out: *mut sqlite3_int64);
    lock = xLock(level: c_int);
    unlock = xUnlock(level: c_int);
    check_reserved_lock = xCheckReservedLock(out: *mut c_int);
    file_control = xFileControl(op: c_int, arg: *mut c_void);
    sector_size = xSectorSize();
    device_characteristics = xDeviceCharacteristics();
}

/// The same after what is kept was written.
macro_rules! after_writing {
    ($($name:ident = $below:ident($($arg:ident: $type:ty),*);)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($arg: $type),*) -> c_int {
            // SAFETY: SQLite passes an open log, and arguments for the file below.
            unsafe {
                match write_kept(file) {
                    SQLITE_OK => $below(file, $($arg),*),
                    code => code,
                }
            }
        }
    )*};
}

after_writing! {
    read = read_checked(data: *mut c_void, len: c_int, offset: sqlite3_int64);
    truncate = truncate_below(size: sqlite3_int64);
    flush = sync_below(flags: c_int);
    file_size = file_size_below(out: *mut sqlite3_int64);
}

/// Reads; before a recovery it looks whether that may be (`LOG-6`).
unsafe extern "C" fn read_checked(
    file: *mut sqlite3_file,
    data: *mut c_void,
    len: c_int,
    offset: sqlite3_int64,
) -> c_int {
    if offset == 0 && i64::from(len) == HEAD_BYTES {
        // SAFETY: SQLite passes an open log.
        let path = unsafe { Path::new(OsStr::from_bytes(kept(file).path.to_bytes())) };
        let refused = log_scan::why_refused(path);
        if let Some(why) = refused {
            set_refused(why);
            return ffi::SQLITE_IOERR_DATA;
        }
    }
    // SAFETY: SQLite's arguments for the file below.
    unsafe { read_below(file, data, len, offset) }
}

/// Marks the log as one in which flushes are left out (`LOG-5`), unless it is; whether it is now.
///
/// # Safety
/// As [`kept`].
unsafe fn is_marked(file: *mut sqlite3_file) -> bool {
    let mut head = [0_u8; HEAD_BYTES as usize];
    // SAFETY: an open log, and room for what is read; nobody else uses it.
    unsafe {
        if read_below(file, head.as_mut_ptr().cast(), HEAD_BYTES as c_int, 0) != SQLITE_OK {
            return false;
        }
        let mut salts = [0; 8];
        salts.copy_from_slice(&head[16..24]);
        if kept(file).marked != Some(salts) {
            let code = write_mark(file, &salts);
            if code != SQLITE_OK {
                tracing::warn!(
                    "transactions do not share their flushes: the mark beside the log cannot be \
                     written (SQLite code {code})"
                );
                return false;
            }
            kept(file).marked = Some(salts);
        }
    }
    true
}

/// # Safety
/// As [`kept`].
unsafe fn write_mark(file: *mut sqlite3_file, salts: &[u8; 8]) -> c_int {
    const FLAGS: c_int =
        ffi::SQLITE_OPEN_READWRITE | ffi::SQLITE_OPEN_CREATE | ffi::SQLITE_OPEN_SUPER_JOURNAL;
    // SAFETY: the VFS below gets the memory that it asks for, aligned to 8, a C string that
    // outlives the call, and flags of a file without parameters; the file is closed if and only if
    // it has methods.
    unsafe {
        let worker = (*file.cast::<LogFile>()).worker;
        let mut name = kept(file).path.to_bytes().to_vec();
        name.extend_from_slice(SHARED_FLUSH_SUFFIX.as_bytes());
        let (Ok(name), Some(open)) = (CString::new(name), (*worker).xOpen) else {
            return ffi::SQLITE_CANTOPEN;
        };
        let mut memory = vec![0_u64; ((*worker).szOsFile as usize).div_ceil(8)];
        let mark: *mut sqlite3_file = memory.as_mut_ptr().cast();
        let mut code = open(worker, name.as_ptr(), mark, FLAGS, std::ptr::null_mut());
        let Some(methods) = (*mark).pMethods.as_ref() else {
            return if code == SQLITE_OK {
                ffi::SQLITE_CANTOPEN
            } else {
                code
            };
        };
        if code == SQLITE_OK {
            code = match (methods.xWrite, methods.xSync) {
                (Some(write), Some(sync)) => {
                    match write(mark, salts.as_ptr().cast(), salts.len() as c_int, 0) {
                        SQLITE_OK => sync(mark, ffi::SQLITE_SYNC_NORMAL),
                        code => code,
                    }
                }
                _ => ffi::SQLITE_MISUSE,
            };
        }
        match methods.xClose {
            Some(close) => {
                let closed = close(mark);
                if code == SQLITE_OK { closed } else { code }
            }
            None => code,
        }
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite passes an open log.
    unsafe {
        if kept(file).defers && !kept(file).has_new_head && is_marked(file) {
            kept(file).is_owed = true;
            return write_kept(file); // LOG-4
        }
        let code = flush(file, flags);
        kept(file).has_new_head &= code != SQLITE_OK;
        kept(file).is_flushed |= code == SQLITE_OK;
        code
    }
}

/// A log needs no shared memory and is not mapped: version 1.
static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 1,
    xClose: Some(close),
    xRead: Some(read),
    xWrite: Some(write),
    xTruncate: Some(truncate),
    xSync: Some(sync),
    xFileSize: Some(file_size),
    xLock: Some(lock),
    xUnlock: Some(unlock),
    xCheckReservedLock: Some(check_reserved_lock),
    xFileControl: Some(file_control),
    xSectorSize: Some(sector_size),
    xDeviceCharacteristics: Some(device_characteristics),
    xShmMap: None,
    xShmLock: None,
    xShmBarrier: None,
    xShmUnmap: None,
    xFetch: None,
    xUnfetch: None,
};

/// Of a log that is written as SQLite does: what is kept is always empty.
static THROUGH: sqlite3_io_methods = sqlite3_io_methods {
    xRead: Some(read_checked),
    xWrite: Some(write_below),
    xTruncate: Some(truncate_below),
    xSync: Some(sync_below),
    xFileSize: Some(file_size_below),
    ..METHODS
};

#[cfg(test)]
mod tests;
