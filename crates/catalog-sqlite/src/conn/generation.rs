//! Whether anybody has committed, told by memory that all connections share: no system call, no
//! lock.
//!
//! SQLite keeps an index of the write-ahead log in shared memory (`catalog.db-shm`); its header
//! counts commits (<https://sqlite.org/walformat.html>, "The WAL-Index Header"). A commit is
//! visible to readers once it is counted, and it is counted before COMMIT returns.
//!
//! The memory is reached through SQLite's own file (`xShmMap`): to close another descriptor of that
//! file would drop SQLite's locks.

use rusqlite::Connection;
use rusqlite::ffi::{self, SQLITE_OK, sqlite3_file};
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU32, Ordering};

/// The first region of the index, in bytes: all that SQLite maps at once.
const REGION_BYTES: c_int = 32 << 10;
/// Words of the header: the count of commits, and the first salt of the log, which changes when it
/// begins anew.
const COUNT_WORD: usize = 2;
const SALT_WORD: usize = 8;

/// The header of the index of one catalog's log.
#[derive(Debug, Clone, Copy)]
pub(crate) struct LogIndex(*const AtomicU32);

// SAFETY: the header is read by atomic loads only, and stays mapped while the connection is open by
// which it was found; the catalog owns both.
unsafe impl Send for LogIndex {}
// SAFETY: as above.
unsafe impl Sync for LogIndex {}

impl LogIndex {
    /// Of an open connection; `None`: its catalog has no such memory.
    pub(crate) fn find(connection: &Connection) -> Option<LogIndex> {
        // The index is mapped by the first statement that reads.
        crate::data_version(connection).ok()?;
        let mut file: *mut sqlite3_file = std::ptr::null_mut();
        let mut region: *mut c_void = std::ptr::null_mut();
        // SAFETY: an open connection that nobody else uses meanwhile; SQLite sets `file` to the
        // file of its database, which lives as long as the connection. What its VFS maps stays
        // mapped for as long.
        unsafe {
            let code = ffi::sqlite3_file_control(
                connection.handle(),
                c"main".as_ptr(),
                ffi::SQLITE_FCNTL_FILE_POINTER,
                (&raw mut file).cast(),
            );
            if code != SQLITE_OK || file.is_null() || (*file).pMethods.is_null() {
                return None;
            }
            let methods = &*(*file).pMethods;
            let map = methods.xShmMap.filter(|_| methods.iVersion >= 2)?;
            if map(file, 0, REGION_BYTES, 0, &raw mut region) != SQLITE_OK {
                return None;
            }
        }
        let header = region.cast::<AtomicU32>().cast_const();
        (!header.is_null()).then_some(LogIndex(header))
    }

    pub(crate) fn generation(self) -> u64 {
        // SAFETY: both words lie in the mapped region, aligned.
        let (count, salt) = unsafe {
            (
                (*self.0.add(COUNT_WORD)).load(Ordering::SeqCst),
                (*self.0.add(SALT_WORD)).load(Ordering::SeqCst),
            )
        };
        u64::from(count) << 32 | u64::from(salt)
    }
}
