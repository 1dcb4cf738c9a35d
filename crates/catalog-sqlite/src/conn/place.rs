//! Where a catalog lies, and how SQLite is led there.
//!
//! SQLite opens its files by path, and removes them by path when the last connection closes, so it
//! is given a path of a descriptor (`/proc/self/fd/N/catalog.db`): that one leads to the directory
//! that was judged, whatever its owner does to the names meanwhile (crate `larder-directory`).
//!
//! # Invariants
//! * `PLACE-1` The catalog's file, its log with the mark and its shared memory are regular files
//!   with one name, or absent, when SQLite opens them; it follows no link itself.
//! * `PLACE-2` A descriptor that SQLite was given the path of stays open until nobody in the world
//!   has the catalog open: its number must not become another directory's, from which SQLite would
//!   remove files. *Why not only as long as our own connections*: those of one process share the
//!   name of the shared memory, and this process may have others than ours.

use crate::conn::log_vfs;
use crate::conn::trust::Trust;
use crate::error::{At, BUSY_TIMEOUT, CatalogError, Result};
use larder_directory::{Access, DatabaseDir};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, OpenFlags, ffi};
use std::ffi::{CStr, c_char, c_int};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// The catalog's file in the database directory.
pub const CATALOG_FILE: &str = "catalog.db";
/// What SQLite keeps beside the file of a catalog, and the mark of its log (`LOG-5`).
const BESIDE: [&str; 5] = ["", "-wal", "-wal-shared", "-shm", "-journal"];
/// Where the paths of descriptors begin.
const DESCRIPTORS: &[u8] = b"/proc/self/fd/";
const VFS: &CStr = c"larder-directory";

/// How to open a catalog.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct CatalogOptions {
    /// A named SQLite VFS that the process has registered (crash tests); `None`: the system's.
    pub vfs: Option<String>,
    /// SQLite is that of a program that has loaded the extension, whatever its version: nothing is
    /// checkpointed by it.
    pub is_extension: bool,
    /// Whom code in the schema is taken from.
    pub trust: Trust,
    /// How long its connections wait for locks of others; `None`: [`BUSY_TIMEOUT`].
    pub wait_max: Option<Duration>,
}

/// The file of a catalog, in its directory.
#[derive(Debug, Clone)]
pub(crate) struct Place {
    directory: DatabaseDir,
    file: &'static str,
}

/// The descriptors whose paths SQLite has (`PLACE-2`), and how many [`InUse`] each has.
static IN_USE: Mutex<Vec<(Arc<DatabaseDir>, usize)>> = Mutex::new(Vec::new());

/// A descriptor in use. When the last of a directory goes, and no catalog there is open, it is
/// closed.
struct InUse(Arc<DatabaseDir>);

impl Place {
    /// The catalog in `directory`.
    pub fn of(directory: &DatabaseDir) -> Place {
        Place::named(directory, CATALOG_FILE)
    }

    /// Another file there.
    pub fn named(directory: &DatabaseDir, file: &'static str) -> Place {
        Place {
            directory: directory.clone(),
            file,
        }
    }

    /// The catalog in the directory `path`.
    pub fn find(path: &Path) -> Result<Place> {
        let missing =
            || CatalogError::not_found(format!("database {}", path.join(CATALOG_FILE).display()));
        match DatabaseDir::open(path) {
            Ok(directory) => Ok(Place::of(&directory)),
            Err(error) => Err(match error.kind() {
                io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => missing(),
                _ => CatalogError::NotADatabase {
                    path: path.into(),
                    why: format!("its directory cannot be opened ({error}); check its permissions"),
                },
            }),
        }
    }

    pub fn directory(&self) -> &DatabaseDir {
        &self.directory
    }

    /// As the user named it, for messages.
    pub fn path(&self) -> PathBuf {
        self.directory.join(self.file)
    }

    /// Whether there is a file.
    pub fn exists(&self) -> bool {
        matches!(self.directory.kind(self.file), Ok(Some(_)))
    }

    /// The user who owns the file; `None`: there is none.
    pub fn owner(&self) -> io::Result<Option<u32>> {
        Ok((self.directory.status(self.file)?).map(|status| status.uid))
    }

    /// Opens a connection. With `has_log` its log is ours (`LOG-1`).
    pub fn connect(
        &self,
        options: &CatalogOptions,
        flags: OpenFlags,
        has_log: bool,
    ) -> Result<rusqlite::Result<Connection>> {
        self.require_own_files()?;
        if options.keeps_paths() {
            let path = self.path();
            let vfs = vfs_over(options.vfs.as_deref(), has_log)?;
            return Ok(Connection::open_with_flags_and_vfs(
                &path,
                flags,
                vfs.as_str(),
            ));
        }
        if flags.contains(OpenFlags::SQLITE_OPEN_CREATE) {
            // SQLite's own would be for everybody to read, and its log and shared memory take after
            // it.
            match self.directory.open_file(self.file, Access::MakeNew) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                    return Err(CatalogError::ReadOnly {
                        what: format!("{} ({error})", self.path().display()),
                    });
                }
                _ => {}
            }
        }
        let vfs = vfs_over(Some(register()?), has_log)?;
        let in_use = InUse::of(&self.directory)?;
        let flags = flags | OpenFlags::SQLITE_OPEN_NOFOLLOW;
        let path = in_use.0.path_of_descriptor().join(self.file);
        let opened = Connection::open_with_flags_and_vfs(path, flags, vfs.as_str());
        opened
            .map(|connection| in_use.last_as_long_as(&connection).map(|()| connection))
            .map_or_else(|error| Ok(Err(error)), |held| held.map(Ok))
    }

    /// Runs `work` with a path for ATTACH on a connection of [`Place::connect`], which closes
    /// before it ends.
    pub fn attach<T>(
        &self,
        options: &CatalogOptions,
        work: impl FnOnce(&Path) -> Result<T>,
    ) -> Result<T> {
        self.require_own_files()?;
        if options.keeps_paths() {
            return work(&self.path());
        }
        let in_use = InUse::of(&self.directory)?;
        work(&in_use.0.path_of_descriptor().join(self.file))
    }

    /// `PLACE-1`.
    fn require_own_files(&self) -> Result<()> {
        for suffix in BESIDE {
            let name = format!("{}{suffix}", self.file);
            if let Err(error) = self.directory.check_file(&name) {
                return Err(CatalogError::NotADatabase {
                    path: self.directory.join(name),
                    why: error.to_string(),
                });
            }
        }
        Ok(())
    }
}

/// A connection's VFS over the one `below`: with a log of ours (`LOG-1`), or one that only guards
/// it (`LOG-6`).
fn vfs_over(below: Option<&str>, has_log: bool) -> Result<String> {
    match has_log {
        true => log_vfs::register(below),
        false => log_vfs::register_through(below),
    }
}

impl CatalogOptions {
    /// See `wait_max`.
    pub(crate) fn wait_max(&self) -> Duration {
        self.wait_max.unwrap_or(BUSY_TIMEOUT)
    }

    /// The same, waiting for so long.
    pub(crate) fn waiting(&self, wait_max: Duration) -> CatalogOptions {
        CatalogOptions {
            wait_max: Some(wait_max),
            ..self.clone()
        }
    }

    /// SQLite opens the paths of users: in a program that has loaded the extension, whose
    /// connections outlive ours and keep these names, and on another VFS, which knows its own files
    /// only.
    fn keeps_paths(&self) -> bool {
        self.is_extension || self.vfs.is_some()
    }
}

impl InUse {
    /// The descriptor of this directory that SQLite has the path of already, or this one.
    fn of(directory: &DatabaseDir) -> Result<InUse> {
        let failed = |error: io::Error| {
            CatalogError::invalid(format!(
                "{} cannot be reached by its descriptor ({error}); mount /proc",
                directory.path().display()
            ))
        };
        let mut all = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let own = directory.identity().map_err(failed)?;
        let found = all
            .iter_mut()
            .find(|(known, _)| known.identity().is_ok_and(|identity| identity == own));
        let known = match found {
            Some((known, count)) => {
                *count += 1;
                Arc::clone(known)
            }
            None => {
                let new = Arc::new(directory.clone());
                all.push((Arc::clone(&new), 1));
                new
            }
        };
        drop(all);
        let in_use = InUse(known);
        let named = DatabaseDir::open(&in_use.0.path_of_descriptor()).map_err(failed)?;
        match named.identity().map_err(failed)? == own {
            true => Ok(in_use),
            false => Err(failed(io::ErrorKind::NotFound.into())),
        }
    }

    /// SQLite lets go of a function after it has closed the files.
    fn last_as_long_as(self, connection: &Connection) -> Result<()> {
        let path = self.0.path().display().to_string();
        connection
            .create_scalar_function(
                c"larder_directory",
                0,
                FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY,
                move |_| {
                    let _held = &self;
                    Ok(path.clone())
                },
            )
            .at("larder_directory()")
    }
}

impl Drop for InUse {
    fn drop(&mut self) {
        let mut all = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let own = &self.0;
        if let Some((_, count)) = all.iter_mut().find(|(known, _)| Arc::ptr_eq(known, own)) {
            *count -= 1;
        }
        let is_open = || !matches!(own.kind(format!("{CATALOG_FILE}-shm")), Ok(None));
        all.retain(|(known, count)| *count > 0 || !Arc::ptr_eq(known, own) || is_open());
    }
}

/// The name of the system's VFS with one difference: the path of a descriptor is left as it is.
/// SQLite would else look up where it leads now, and use that name from then on.
fn register() -> Result<&'static str> {
    static IS_DONE: Mutex<bool> = Mutex::new(false);
    let mut is_done = IS_DONE.lock().unwrap_or_else(PoisonError::into_inner);
    let name = VFS.to_str().unwrap_or_default();
    if *is_done {
        return Ok(name);
    }
    let failed = |what: &str| CatalogError::invalid(format!("the VFS of directories: {what}"));
    let system = system_vfs().ok_or_else(|| failed("SQLite has none to begin with"))?;
    let vfs = Box::new(ffi::sqlite3_vfs {
        pNext: std::ptr::null_mut(),
        zName: VFS.as_ptr(),
        xFullPathname: Some(full_pathname),
        ..*system
    });
    // SAFETY: leaked here, so it stays valid, and complete: its other functions ask nothing of it
    // but what was copied from the VFS that they belong to, as SQLite's own VFSes share them.
    if unsafe { ffi::sqlite3_vfs_register(Box::into_raw(vfs), 0) } != ffi::SQLITE_OK {
        return Err(failed("SQLite does not take it"));
    }
    *is_done = true;
    Ok(name)
}

fn system_vfs() -> Option<&'static ffi::sqlite3_vfs> {
    // In an extension SQLite has started long ago.
    #[cfg(feature = "bundled")]
    // SAFETY: initialising is always allowed, and is needed before a VFS can be found.
    if unsafe { ffi::sqlite3_initialize() } != ffi::SQLITE_OK {
        return None;
    }
    // SAFETY: null asks for the default, which lives until the process ends and stays as it is.
    unsafe { ffi::sqlite3_vfs_find(std::ptr::null()).as_ref() }
}

unsafe extern "C" fn full_pathname(
    _: *mut ffi::sqlite3_vfs,
    path: *const c_char,
    len: c_int,
    out: *mut c_char,
) -> c_int {
    // SAFETY: SQLite passes a C string.
    let bytes = unsafe { CStr::from_ptr(path) }.to_bytes_with_nul();
    if bytes.starts_with(DESCRIPTORS) {
        if bytes.len() > usize::try_from(len).unwrap_or(0) {
            return ffi::SQLITE_CANTOPEN;
        }
        // SAFETY: `out` has `len` bytes, as many as are written at least, and is none of SQLite's
        // `path`.
        unsafe { std::ptr::copy_nonoverlapping(path, out, bytes.len()) };
        return ffi::SQLITE_OK;
    }
    let Some(system) = system_vfs() else {
        return ffi::SQLITE_CANTOPEN;
    };
    match system.xFullPathname {
        // SAFETY: it gets its own VFS, which it does not change, and what SQLite passed.
        Some(function) => unsafe {
            function(std::ptr::from_ref(system).cast_mut(), path, len, out)
        },
        None => ffi::SQLITE_CANTOPEN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn open(place: &Place, flags: OpenFlags) -> Result<rusqlite::Result<Connection>> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | flags;
        place.connect(&CatalogOptions::default(), flags, false)
    }

    fn is_in_use(directory: &DatabaseDir) -> bool {
        let all = IN_USE.lock().unwrap();
        let own = directory.identity().unwrap();
        all.iter()
            .any(|(known, _)| known.identity().unwrap() == own)
    }

    #[test]
    fn only_regular_files_are_left_to_sqlite() {
        for name in BESIDE.map(|suffix| format!("{CATALOG_FILE}{suffix}")) {
            let dir = tempfile::tempdir().unwrap();
            symlink(dir.path().join("else"), dir.path().join(&name)).unwrap();
            let place = Place::find(dir.path()).unwrap();
            let refused = open(&place, OpenFlags::SQLITE_OPEN_CREATE).unwrap_err();
            assert!(
                refused.to_string().contains("symbolic link"),
                "PLACE-1: {refused}"
            );
            assert!(!dir.path().join("else").exists(), "PLACE-1");
        }
    }

    /// The descriptor outlives our connection while another one of this process has the file open,
    /// and goes then.
    #[test]
    fn the_descriptor_stays_while_anybody_has_the_catalog_open() {
        let dir = tempfile::tempdir().unwrap();
        let place = Place::find(dir.path()).unwrap();
        let is_kept = || is_in_use(&place.directory);
        let ours = open(&place, OpenFlags::SQLITE_OPEN_CREATE)
            .unwrap()
            .unwrap();
        ours.pragma_update(None, "journal_mode", "WAL").unwrap();
        ours.execute_batch("CREATE TABLE t (x)").unwrap();
        let other = Connection::open(place.path()).unwrap();
        let count = |of: &Connection| {
            of.query_row("SELECT count(*) FROM t", [], |row| row.get::<_, i64>(0))
                .unwrap()
        };
        assert_eq!((count(&other), is_kept()), (0, true));
        drop(ours);
        assert_eq!((count(&other), is_kept()), (0, true), "PLACE-2");
        drop(other);
        drop(open(&place, OpenFlags::empty()).unwrap().unwrap());
        assert!(!is_kept(), "PLACE-2");
        assert!(!dir.path().join(format!("{CATALOG_FILE}-shm")).exists());
    }

    /// Who holds it is counted and let go in one step: two that go at the same time would each take
    /// the other for somebody who stays.
    #[test]
    fn the_descriptor_goes_with_the_last_of_many_that_go_at_once() {
        const THREADS: usize = 16;
        let dir = tempfile::tempdir().unwrap();
        let directory = DatabaseDir::open(dir.path()).unwrap();
        let together = std::sync::Barrier::new(THREADS);
        std::thread::scope(|scope| {
            for _ in 0..THREADS {
                scope.spawn(|| {
                    for round in 0..20000 {
                        let held = InUse::of(&directory).unwrap();
                        together.wait();
                        drop(held);
                        together.wait();
                        assert!(!is_in_use(&directory), "PLACE-2: round {round}");
                        together.wait();
                    }
                });
            }
        });
    }
}
