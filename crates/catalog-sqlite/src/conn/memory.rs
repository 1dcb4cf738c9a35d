//! How much memory SQLite is given at once.
//!
//! SQLite's bound on the length of a value holds where a statement takes one out of a row. Before
//! that, a search in a table without rowids, or in an index, takes each row that it comes by into
//! memory as a whole, if that does not lie in one page: whoever looks for a key beside a value of
//! 900 MB would need as much.
//!
//! # Invariants
//! * `SAFE-10` In a process that asks for it, no row of a catalog makes a statement of ours take
//!   more than [`REQUEST_BYTES_MAX`] for it: the statement fails, and with it its transaction. What
//!   a person types is not bounded so. *Guard*: [`bound_requests`], [`unbounded`]; `check` names
//!   rows that are too long.

use crate::conn::confine::VALUE_BYTES_MAX;
use crate::error::refused::note_too_long;
use rusqlite::ffi;
use std::cell::Cell;
use std::ffi::{c_int, c_void};
use std::mem::MaybeUninit;
use std::sync::OnceLock;

/// The largest piece of memory that SQLite is given, bytes: for a row with the longest value that
/// the engine handles, and what else may be in it.
const REQUEST_BYTES_MAX: c_int = VALUE_BYTES_MAX + (16 << 20);

type Malloc = unsafe extern "C" fn(c_int) -> *mut c_void;
type Realloc = unsafe extern "C" fn(*mut c_void, c_int) -> *mut c_void;

/// SQLite's own.
static OWN: OnceLock<(Malloc, Realloc)> = OnceLock::new();

thread_local! {
    static IS_UNBOUNDED: Cell<bool> = const { Cell::new(false) };
}

/// Bounds what SQLite is given at once in this process, for all its connections (`SAFE-10`). To be
/// called before the first database is opened; else nothing is changed, and false is returned.
pub fn bound_requests() -> bool {
    let mut methods = MaybeUninit::<ffi::sqlite3_mem_methods>::zeroed();
    // SAFETY: null pointers and zeros are such methods; SQLite fills them, or refuses if it is in
    // use already.
    let (code, mut methods) = unsafe {
        let code = ffi::sqlite3_config(ffi::SQLITE_CONFIG_GETMALLOC, methods.as_mut_ptr());
        (code, methods.assume_init())
    };
    let (ffi::SQLITE_OK, Some(malloc), Some(realloc)) = (code, methods.xMalloc, methods.xRealloc)
    else {
        return false;
    };
    if OWN.set((malloc, realloc)).is_err() {
        return true; // It was asked for before.
    }
    methods.xMalloc = Some(bounded_malloc);
    methods.xRealloc = Some(bounded_realloc);
    // SAFETY: SQLite copies the methods, which are its own but for the two that call its own.
    unsafe { ffi::sqlite3_config(ffi::SQLITE_CONFIG_MALLOC, &raw const methods) == ffi::SQLITE_OK }
}

/// While it lives, this thread's statements are a person's.
pub(crate) struct Unbounded {
    before: bool,
}

/// Lifts the bound for this thread.
pub(crate) fn unbounded() -> Unbounded {
    Unbounded {
        before: IS_UNBOUNDED.replace(true),
    }
}

impl Drop for Unbounded {
    fn drop(&mut self) {
        IS_UNBOUNDED.set(self.before);
    }
}

fn is_too_much(bytes: c_int) -> bool {
    // A thread that ends has no such cells any more.
    let is_too_much =
        bytes > REQUEST_BYTES_MAX && !IS_UNBOUNDED.try_with(Cell::get).unwrap_or(false);
    if is_too_much {
        note_too_long();
    }
    is_too_much
}

unsafe extern "C" fn bounded_malloc(bytes: c_int) -> *mut c_void {
    match OWN.get() {
        // SAFETY: SQLite's own, with what it was asked for.
        Some((malloc, _)) if !is_too_much(bytes) => unsafe { malloc(bytes) },
        _ => std::ptr::null_mut(),
    }
}

unsafe extern "C" fn bounded_realloc(memory: *mut c_void, bytes: c_int) -> *mut c_void {
    match OWN.get() {
        // SAFETY: as above; the memory is from there.
        Some((_, realloc)) if !is_too_much(bytes) => unsafe { realloc(memory, bytes) },
        _ => std::ptr::null_mut(),
    }
}
