//! A SQLite VFS that does what "unix" does and tells a recorder about it.
//!
//! Recorded are writes, truncations, syncs, creations and deletions of main databases, their
//! write-ahead logs and rollback journals. Shared memory (`-shm`) and temporary files are not: no
//! crash leaves anything of them that SQLite would use.
//!
//! # Safety, for the whole file
//! SQLite calls the functions below with pointers that it got from [`RecordingVfs::register`] (the
//! VFS) or that [`open`] filled in (files). Both outlive their use: a registered VFS is never
//! freed, and SQLite frees a file's memory only after `xClose`. A file's memory is `szOsFile`
//! bytes: first a [`RecordedFile`], behind it the file of the VFS below, which alone touches that
//! part.

use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::mem::size_of;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use rusqlite::ffi::{
    self, SQLITE_OK, sqlite3_file, sqlite3_filename, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs,
};

use crate::event::{Event, FileName, Payload};
use crate::record::Recorder;

/// A registered VFS; open databases with its name.
pub struct RecordingVfs {
    name: String,
    faults: Arc<VfsFaults>,
}

/// What fails from now on.
#[derive(Debug, Default)]
pub struct VfsFaults {
    /// No file is opened (SQLITE_CANTOPEN, as of a process with too many).
    pub refuses_open: AtomicBool,
    /// Flushes of write-ahead logs (SQLITE_IOERR_FSYNC).
    pub fails_log_sync: AtomicBool,
    /// Flushes of write-ahead logs wait before they begin, until it is cleared, 60 s at most.
    pub holds_log_sync: AtomicBool,
}

/// How long a flush is held.
const HOLD_MAX: Duration = Duration::from_secs(60);

/// What our functions find behind `pAppData`.
struct App {
    /// The VFS that does the work.
    below: *mut sqlite3_vfs,
    recorder: Recorder,
    faults: Arc<VfsFaults>,
}

/// The head of a file's memory; the file of the VFS below follows it.
#[repr(C)]
struct RecordedFile {
    base: sqlite3_file,
    recorder: *const Recorder,
    faults: *const VfsFaults,
    /// `null`: not recorded. Owned: freed at close.
    name: *mut FileName,
}

impl RecordingVfs {
    /// Registers a VFS that reports to `recorder`. Files are named by their last path component.
    /// The registration lasts until the process ends (a few hundred bytes).
    pub fn register(recorder: &Recorder) -> RecordingVfs {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("larder-recording-{}", COUNT.fetch_add(1, Ordering::Relaxed));
        let c_name = CString::new(name.as_str()).expect("the name has no NUL");
        // SAFETY: initialising is always allowed, and is needed before "unix" can be found.
        assert_eq!(
            unsafe { ffi::sqlite3_initialize() },
            SQLITE_OK,
            "SQLite does not start"
        );
        // SAFETY: the argument is a C string; the result is null or lives until the process ends.
        let below = unsafe { ffi::sqlite3_vfs_find(c"unix".as_ptr()) };
        assert!(!below.is_null(), "SQLite has no VFS named unix");
        // SAFETY: not null, and SQLite never changes or frees its built-in VFS.
        let unix = unsafe { &*below };
        let faults = Arc::<VfsFaults>::default();
        let app = Box::new(App {
            below,
            recorder: recorder.clone(),
            faults: Arc::clone(&faults),
        });
        let vfs = Box::new(sqlite3_vfs {
            iVersion: 2,
            szOsFile: size_of::<RecordedFile>() as c_int + unix.szOsFile,
            mxPathname: unix.mxPathname,
            pNext: std::ptr::null_mut(),
            zName: c_name.into_raw(),
            pAppData: Box::into_raw(app).cast(),
            xOpen: Some(open),
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
        // SAFETY: the VFS, its name and its App were leaked just above, so they stay valid; all
        // pointers that version 2 demands are set.
        assert_eq!(
            unsafe { ffi::sqlite3_vfs_register(Box::into_raw(vfs), 0) },
            SQLITE_OK
        );
        RecordingVfs { name, faults }
    }

    /// What fails, for all files opened with it.
    pub fn faults(&self) -> &VfsFaults {
        &self.faults
    }

    /// The name to open databases with.
    pub fn name(&self) -> &str {
        &self.name
    }
}

/// # Safety
/// `vfs` is one of ours.
unsafe fn app<'a>(vfs: *mut sqlite3_vfs) -> &'a App {
    // SAFETY: `register` put a leaked App there, and nobody changes it.
    unsafe { &*(*vfs).pAppData.cast::<App>() }
}

/// The name a path is recorded under.
///
/// # Safety
/// `path` is a C string.
unsafe fn file_name(path: *const c_char) -> FileName {
    // SAFETY: as promised by the caller; the borrow ends in this function.
    let path = unsafe { CStr::from_ptr(path) }.to_string_lossy();
    path.rsplit('/').next().unwrap_or(&path).into()
}

unsafe extern "C" fn open(
    vfs: *mut sqlite3_vfs,
    path: sqlite3_filename,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    // The last is the mark beside a log (LOG-5).
    const RECORDED: c_int = ffi::SQLITE_OPEN_MAIN_DB
        | ffi::SQLITE_OPEN_WAL
        | ffi::SQLITE_OPEN_MAIN_JOURNAL
        | ffi::SQLITE_OPEN_SUPER_JOURNAL;
    // SAFETY: SQLite passes the VFS that was asked.
    let app = unsafe { app(vfs) };
    let head = file.cast::<RecordedFile>();
    // SAFETY: the file's memory has `szOsFile` bytes and is aligned to 8, as the head needs.
    // Without methods SQLite takes the file for closed.
    unsafe {
        (*head).base.pMethods = std::ptr::null();
        (*head).recorder = &raw const app.recorder;
        (*head).faults = Arc::as_ptr(&app.faults);
        (*head).name = std::ptr::null_mut();
    }
    if app.faults.refuses_open.load(Ordering::SeqCst) {
        return ffi::SQLITE_CANTOPEN;
    }
    let is_recorded = flags & RECORDED != 0 && !path.is_null();
    let mut existed: c_int = 1;
    if is_recorded && flags & ffi::SQLITE_OPEN_CREATE != 0 {
        // SAFETY: as SQLite itself would ask; `path` is a C string, `existed` a valid place.
        let code = unsafe { access(vfs, path, ffi::SQLITE_ACCESS_EXISTS, &mut existed) };
        if code != SQLITE_OK {
            return code;
        }
    }
    // SAFETY: the memory behind the head has the size that the VFS below asked for; the flags and
    // the path (with the parameters SQLite keeps behind it) are handed on as they came.
    let code = unsafe {
        ((*app.below).xOpen.expect("unix opens"))(app.below, path, below(file), flags, out_flags)
    };
    // SAFETY: the head as above. SQLite calls xClose if and only if pMethods is set, and the VFS
    // below has set or cleared its own by the same rule.
    unsafe {
        if !(*below(file)).pMethods.is_null() {
            (*head).base.pMethods = &raw const METHODS;
        }
        if code == SQLITE_OK && is_recorded {
            let name = file_name(path);
            if existed == 0 {
                app.recorder.push(Event::Create { file: name.clone() });
            }
            (*head).name = Box::into_raw(Box::new(name));
        }
    }
    code
}

unsafe extern "C" fn delete(
    vfs: *mut sqlite3_vfs,
    path: *const c_char,
    sync_directory: c_int,
) -> c_int {
    // SAFETY: SQLite passes the VFS that was asked and a C string; both are handed on.
    unsafe {
        let app = app(vfs);
        let code = ((*app.below).xDelete.expect("unix deletes"))(app.below, path, sync_directory);
        if code == SQLITE_OK {
            app.recorder.push(Event::Delete {
                file: file_name(path),
                durable: sync_directory != 0,
            });
        }
        code
    }
}

/// VFS functions that only hand on to the VFS below.
macro_rules! vfs_delegates {
    ($($name:ident = $slot:ident($($arg:ident: $type:ty),*);)*) => {$(
        unsafe extern "C" fn $name(vfs: *mut sqlite3_vfs, $($arg: $type),*) -> c_int {
            // SAFETY: the VFS is ours; the VFS below gets its own pointer and SQLite's arguments.
            unsafe {
                let below = app(vfs).below;
                ((*below).$slot.expect("unix has every function"))(below, $($arg),*)
            }
        }
    )*};
}

vfs_delegates! {
    access = xAccess(path: *const c_char, flags: c_int, out: *mut c_int);
    full_pathname = xFullPathname(path: *const c_char, len: c_int, out: *mut c_char);
    randomness = xRandomness(len: c_int, out: *mut c_char);
    sleep = xSleep(microseconds: c_int);
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
    unsafe { file.cast::<u8>().add(size_of::<RecordedFile>()).cast() }
}

/// Where a file is recorded and under which name; `None` if it is not.
///
/// # Safety
/// `file` was opened by [`open`] and is not closed.
unsafe fn recorded<'a>(file: *mut sqlite3_file) -> Option<(&'a Recorder, &'a FileName)> {
    // SAFETY: `open` set both pointers; the recorder is leaked, the name lives until `close`.
    unsafe {
        let head = file.cast::<RecordedFile>();
        (*head).name.as_ref().map(|name| (&*(*head).recorder, name))
    }
}

unsafe extern "C" fn close(file: *mut sqlite3_file) -> c_int {
    // SAFETY: SQLite closes a file once; the name was made by Box::into_raw and is not used after.
    unsafe {
        let head = file.cast::<RecordedFile>();
        if !(*head).name.is_null() {
            drop(Box::from_raw((*head).name));
            (*head).name = std::ptr::null_mut();
        }
        call_close(file)
    }
}

unsafe extern "C" fn write(
    file: *mut sqlite3_file,
    data: *const c_void,
    len: c_int,
    offset: sqlite3_int64,
) -> c_int {
    // SAFETY: SQLite passes an open file and `len` readable bytes. It writes one file from one
    // thread at a time (its locks see to that), so the log has the order of effects.
    unsafe {
        let code = call_write(file, data, len, offset);
        if let (SQLITE_OK, Some((recorder, name))) = (code, recorded(file)) {
            let bytes = Payload::of(std::slice::from_raw_parts(data.cast(), len as usize));
            recorder.push(Event::Write {
                file: name.clone(),
                offset_bytes: offset as u64,
                bytes,
            });
        }
        code
    }
}

unsafe extern "C" fn truncate(file: *mut sqlite3_file, size: sqlite3_int64) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe {
        let code = call_truncate(file, size);
        if let (SQLITE_OK, Some((recorder, name))) = (code, recorded(file)) {
            recorder.push(Event::Truncate {
                file: name.clone(),
                len_bytes: size as u64,
            });
        }
        code
    }
}

unsafe extern "C" fn sync(file: *mut sqlite3_file, flags: c_int) -> c_int {
    // SAFETY: SQLite passes an open file.
    unsafe {
        let is_log = recorded(file).is_some_and(|(_, name)| name.ends_with("-wal"));
        // `open` set it to what is never freed.
        let faults = &*(*file.cast::<RecordedFile>()).faults;
        let began = Instant::now();
        while is_log && faults.holds_log_sync.load(Ordering::SeqCst) && began.elapsed() < HOLD_MAX {
            std::thread::yield_now();
        }
        let covers = recorded(file).map_or(0, |(recorder, _)| recorder.position());
        if is_log && faults.fails_log_sync.load(Ordering::SeqCst) {
            return ffi::SQLITE_IOERR_FSYNC;
        }
        let code = call_sync(file, flags);
        if let (SQLITE_OK, Some((recorder, name))) = (code, recorded(file)) {
            recorder.push(Event::Flush {
                file: name.clone(),
                covers,
            });
        }
        code
    }
}

unsafe extern "C" fn shm_barrier(file: *mut sqlite3_file) {
    // SAFETY: SQLite passes an open file; the VFS below gets its own.
    unsafe {
        let below = below(file);
        ((*(*below).pMethods)
            .xShmBarrier
            .expect("unix has every function"))(below)
    }
}

/// File functions that only hand on to the file below.
macro_rules! file_delegates {
    ($($name:ident = $slot:ident($($arg:ident: $type:ty),*);)*) => {$(
        unsafe extern "C" fn $name(file: *mut sqlite3_file, $($arg: $type),*) -> c_int {
            // SAFETY: SQLite passes an open file; the file below has its methods (version 3, as
            // METHODS) and gets its own pointer and SQLite's arguments.
            unsafe {
                let below = below(file);
                ((*(*below).pMethods).$slot.expect("unix has every function"))(below, $($arg),*)
            }
        }
    )*};
}

file_delegates! {
    call_close = xClose();
    call_write = xWrite(data: *const c_void, len: c_int, offset: sqlite3_int64);
    call_truncate = xTruncate(size: sqlite3_int64);
    call_sync = xSync(flags: c_int);
    read = xRead(data: *mut c_void, len: c_int, offset: sqlite3_int64);
    file_size = xFileSize(out: *mut sqlite3_int64);
    lock = xLock(level: c_int);
    unlock = xUnlock(level: c_int);
    check_reserved_lock = xCheckReservedLock(out: *mut c_int);
    file_control = xFileControl(op: c_int, arg: *mut c_void);
    sector_size = xSectorSize();
    device_characteristics = xDeviceCharacteristics();
    shm_map = xShmMap(page: c_int, size: c_int, extend: c_int, out: *mut *mut c_void);
    shm_lock = xShmLock(offset: c_int, count: c_int, flags: c_int);
    shm_unmap = xShmUnmap(delete: c_int);
    fetch = xFetch(offset: sqlite3_int64, len: c_int, out: *mut *mut c_void);
    unfetch = xUnfetch(offset: sqlite3_int64, page: *mut c_void);
}

static METHODS: sqlite3_io_methods = sqlite3_io_methods {
    iVersion: 3,
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
    xShmMap: Some(shm_map),
    xShmLock: Some(shm_lock),
    xShmBarrier: Some(shm_barrier),
    xShmUnmap: Some(shm_unmap),
    xFetch: Some(fetch),
    xUnfetch: Some(unfetch),
};
