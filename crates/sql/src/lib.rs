//! The SQLite extension: Larder's functions about files in any program's SQLite.
//!
//! This is the door only: it takes SQLite's functions from the program that loads it, and hands the
//! program's connection to `larder::attach_client`, which does everything. So there is one SQLite
//! in the process: a second one would lose the first one's locks whenever it closes a file (POSIX
//! drops them all).
//!
//! It stays loaded for as long as the process lives, and works with SQLite from 3.40 on.

use larder::{ClientHandle, attach_client};
use rusqlite::ffi::{self, sqlite3_api_routines};
use std::ffi::{c_char, c_int};
use std::mem::offset_of;
use std::ptr;
use std::sync::atomic::{AtomicPtr, Ordering};

/// The oldest SQLite that it works with.
const VERSION_MIN: c_int = 3_040_000;

/// Where functions were added to SQLite's table since then: from which version on, and at which
/// byte. An older table ends there.
const ADDED: [(c_int, usize); 3] = [
    (3_041_000, offset_of!(sqlite3_api_routines, is_interrupted)),
    (3_043_000, offset_of!(sqlite3_api_routines, stmt_explain)),
    (3_044_000, offset_of!(sqlite3_api_routines, get_clientdata)),
];

/// What `load_extension('…/larder')` calls, by this name.
///
/// # Safety
/// For SQLite only: an open connection, a place for a message, and SQLite's table of functions.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn sqlite3_larder_init(
    connection: *mut ffi::sqlite3,
    message: *mut *mut c_char,
    api: *mut sqlite3_api_routines,
) -> c_int {
    // SAFETY: as SQLite gave them.
    let loaded = unsafe {
        bind(api).and_then(|()| {
            let client = ClientHandle::new(connection);
            let attach = std::panic::AssertUnwindSafe(|| attach_client(client));
            match std::panic::catch_unwind(attach) {
                Ok(attached) => attached.map_err(|error| error.to_string()),
                Err(_) => Err("loading panicked, which is a defect; report it".into()),
            }
        })
    };
    match loaded {
        Ok(()) => ffi::SQLITE_OK_LOAD_PERMANENTLY,
        Err(why) => {
            // SAFETY: as above.
            unsafe { tell(api, message, &format!("larder: {why}")) };
            ffi::SQLITE_ERROR
        }
    }
}

/// Takes the functions of the SQLite that has loaded this.
///
/// # Safety
/// `api` is its table.
unsafe fn bind(api: *mut sqlite3_api_routines) -> Result<(), String> {
    static BOUND: AtomicPtr<sqlite3_api_routines> = AtomicPtr::new(ptr::null_mut());
    let bound = BOUND.load(Ordering::SeqCst);
    if bound == api {
        return Ok(());
    }
    if !bound.is_null() {
        return Err(
            "another copy of SQLite in this process has loaded the extension, and two \
            would lose each other's locks; use one of them"
                .into(),
        );
    }
    // SAFETY: every table has this function, near its beginning.
    let version = unsafe { (*api).libversion_number.map_or(0, |ask| ask()) };
    if version < VERSION_MIN {
        let (major, minor) = (version / 1_000_000, version / 1000 % 1000);
        return Err(format!(
            "SQLite {major}.{minor} is too old; 3.40 or newer is needed"
        ));
    }
    let whole = size_of::<sqlite3_api_routines>();
    let known = ADDED.iter().find(|(since, _)| version < *since);
    let known = known.map_or(whole, |(_, at)| *at);
    // SAFETY: a table without functions is all zeros, and `known` bytes of SQLite's are there.
    let mut table = unsafe {
        let mut table: sqlite3_api_routines = std::mem::zeroed();
        ptr::copy_nonoverlapping(api.cast::<u8>(), (&raw mut table).cast::<u8>(), known);
        table
    };
    if version < ffi::SQLITE_VERSION_NUMBER {
        // The bindings ask for the version that they were made from, lest they call what is not
        // there. What came after 3.40 is not called here, and is none in `table`.
        table.libversion_number = Some(claim_version);
    }
    // SAFETY: a table as SQLite has it.
    unsafe { ffi::rusqlite_extension_init2(&raw mut table) }.map_err(|error| error.to_string())?;
    BOUND.store(api, Ordering::SeqCst);
    Ok(())
}

unsafe extern "C" fn claim_version() -> c_int {
    ffi::SQLITE_VERSION_NUMBER
}

/// Leaves a message in memory of SQLite's.
///
/// # Safety
/// As [`sqlite3_larder_init`]'s.
unsafe fn tell(api: *mut sqlite3_api_routines, message: *mut *mut c_char, what: &str) {
    // SAFETY: SQLite frees what its own `malloc` gave, which is as long as asked for, or null.
    unsafe {
        let Some(allocate) = (*api).malloc else {
            return;
        };
        if message.is_null() {
            return;
        }
        let text = allocate(what.len() as c_int + 1).cast::<u8>();
        if !text.is_null() {
            ptr::copy_nonoverlapping(what.as_ptr(), text, what.len());
            *text.add(what.len()) = 0;
            *message = text.cast();
        }
    }
}
