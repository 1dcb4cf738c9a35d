//! Waiting for locks that others have: for how long, and that it is said who has them.
//!
//! Everything that waits for another process does so here: the writer lock, the door to the
//! sessions (`larder-object`), SQLite's locks.
//!
//! # Invariants
//! * `WAIT-1` Who waits for a lock of a database's files waits no longer than the command was told,
//!   says after [`TELL_AFTER`] who has it (process, command, since when), and fails with the same
//!   words. *Guard*: [`Patience`]; of SQLite's locks `Waits`, which is its busy handler, and
//!   `wait_to_read` where SQLite asks for none.

use crate::conn::log_vfs;
use crate::conn::place::{CATALOG_FILE, Place};
use crate::error::refused::set_in_vain;
use crate::error::{At, Result};
use crate::types::utc;
use larder_directory::DatabaseDir;
use larder_directory::holders::{For, Lock, Process, find_holder};
use rusqlite::functions::FunctionFlags;
use rusqlite::{Connection, ffi};
use std::cell::RefCell;
use std::ffi::{c_int, c_void};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::{Duration, Instant};

/// After so long it is said who is waited for, and then so often.
pub const TELL_AFTER: Duration = Duration::from_secs(2);
const TELL_REST: Duration = Duration::from_secs(60);
/// Who waits for less does not ask: it is somebody who does not mind.
const ASK_AFTER: Duration = Duration::from_millis(500);

/// Where SQLite has its locks, in the order in which they are looked for, in `catalog.db-shm`: who
/// writes, copies the log, recovers it (any lock keeps others from it); who keeps readers out. In
/// `catalog.db`: who has it alone. (<https://sqlite.org/walformat.html#wal_locks>, `os_unix.c`.)
const LOCKS: [(&str, u64, u64, For); 5] = [
    ("-shm", 120, 120, For::Anything),
    ("-shm", 122, 122, For::Anything),
    ("-shm", 121, 121, For::Anything),
    ("-shm", 123, 128, For::Writing),
    ("", 0x4000_0000, 0x4000_01FF, For::Writing),
];

/// How long somebody waits for a lock.
#[derive(Debug)]
pub struct Patience {
    began: Instant,
    deadline: Instant,
    /// When it is said who has it.
    tell: Instant,
}

impl Patience {
    /// From now on.
    pub fn new(wait_max: Duration) -> Patience {
        let began = Instant::now();
        Patience {
            began,
            deadline: began + wait_max,
            tell: began + TELL_AFTER,
        }
    }

    /// What is left of so long a wait.
    pub fn left(&self, wait_max: Duration) -> Duration {
        wait_max.saturating_sub(self.waited())
    }

    /// How long it has been.
    pub fn waited(&self) -> Duration {
        self.began.elapsed()
    }

    /// The lock is not free yet: says now and then who has it, as `who` finds out. When it is over,
    /// the words to fail with (`WAIT-1`).
    pub fn look(
        &mut self,
        what: &str,
        of: &DatabaseDir,
        who: impl FnOnce() -> String,
    ) -> Option<String> {
        let now = Instant::now();
        let waited_s = (self.began.elapsed() + Duration::from_millis(500)).as_secs();
        if now >= self.deadline {
            return Some(format!(
                "{what} was waited for {waited_s} s; it is held by {}",
                who()
            ));
        }
        if now >= self.tell {
            self.tell = now + TELL_REST;
            let path = of.path().display();
            let who = who();
            tracing::warn!(
                "waiting for {waited_s} s for {what} of '{path}', which is held by {who}"
            );
        }
        None
    }
}

/// Who has a lock, for people. `note`: what is known of that process, beside its command.
pub fn describe_process(pid: u32, note: Option<&str>) -> String {
    let mut text = format!("process {pid}");
    if pid == std::process::id() {
        text.push_str(" (this one)");
    }
    let process = Process::find(pid);
    match process.as_ref().and_then(|found| found.command.as_ref()) {
        Some(command) => text.push_str(&format!(" ('{command}')")),
        None => text.push_str(" (of which nothing can be seen)"),
    }
    match (note, process.as_ref().and_then(Process::began_ns)) {
        (Some(note), _) => text.push_str(&format!(", {note}")),
        (None, Some(began_ns)) => {
            text.push_str(&format!(", which began {}", utc::show(began_ns)));
        }
        (None, None) => {}
    }
    match process.map(|found| found.state) {
        Some(b'T') => text.push_str(&format!(
            ", which is stopped; 'kill -CONT {pid}' lets it go on"
        )),
        Some(b't') => text.push_str(", which a debugger has stopped; let it go on there"),
        _ => text.push_str(&format!(
            ", which works on; if it never ends, end process {pid}"
        )),
    }
    text
}

/// Who has the `flock` on the file `name` of a database, for people.
pub fn describe_holder(database: &DatabaseDir, name: &str) -> String {
    let identity = database.identity_of(name).ok().flatten();
    match identity.and_then(|identity| find_holder(identity, &Lock::Whole)) {
        Some(pid) => describe_process(pid, None),
        None => NOBODY_SEEN.into(),
    }
}

const NOBODY_SEEN: &str = "a process that cannot be seen from here";

/// How one connection waits for SQLite's locks.
pub(crate) struct Waits {
    directory: DatabaseDir,
    wait_max_ns: AtomicU64,
}

thread_local! {
    /// The wait of this thread: SQLite tells its beginning, and not its end.
    static WAIT: RefCell<Option<(*const c_void, Patience)>> = const { RefCell::new(None) };
    /// The same of a wait to read.
    static WAIT_TO_READ: RefCell<Option<Patience>> = const { RefCell::new(None) };
}

/// Those of all connections: who waits to read is not told which one.
static ALL: Mutex<Vec<Weak<Waits>>> = Mutex::new(Vec::new());

/// What SQLite sleeps in all before it gives up to begin a read (39 µs × k², k from 1 to 91; a
/// little less, so that the wait is over before), and how often who waits looks at the locks.
const READ_WAIT: Duration = Duration::from_millis(9900);
const READ_LOOK: Duration = Duration::from_millis(20);

impl Waits {
    /// Has `connection` wait up to `wait_max`. SQLite's own way sleeps 100 ms between two tries
    /// before long, in which a program that writes again and again lets go of the lock ten times
    /// and takes it again; and it says nothing.
    pub fn begin(connection: &Connection, place: &Place, wait_max: Duration) -> Result<Arc<Waits>> {
        let waits = Arc::new(Waits {
            directory: place.directory().clone(),
            wait_max_ns: AtomicU64::default(),
        });
        waits.set(wait_max);
        // SQLite lets go of a function after it has waited for the last time.
        let held = Arc::clone(&waits);
        connection
            .create_scalar_function(
                c"larder_waits",
                0,
                FunctionFlags::SQLITE_UTF8 | FunctionFlags::SQLITE_DIRECTONLY,
                move |_| Ok(held.wait_max().as_secs_f64()),
            )
            .at("the busy handler")?;
        log_vfs::sleep_by(wait_to_read);
        let mut all = lock(&ALL);
        all.retain(|one| one.strong_count() > 0);
        all.push(Arc::downgrade(&waits));
        drop(all);
        let pointer = Arc::as_ptr(&waits).cast_mut().cast::<c_void>();
        // SAFETY: an open connection; `waits` lives as long as it does, by the function above, and
        // is only read.
        match unsafe { ffi::sqlite3_busy_handler(connection.handle(), Some(wait_again), pointer) } {
            ffi::SQLITE_OK => Ok(waits),
            code => {
                let failed = rusqlite::Error::SqliteFailure(ffi::Error::new(code), None);
                Err(failed).at("the busy handler")
            }
        }
    }

    /// Waits up to so long from now on.
    pub fn set(&self, wait_max: Duration) {
        let ns = u64::try_from(wait_max.as_nanos()).unwrap_or(u64::MAX);
        self.wait_max_ns.store(ns, Ordering::Relaxed);
    }

    pub fn wait_max(&self) -> Duration {
        Duration::from_nanos(self.wait_max_ns.load(Ordering::Relaxed))
    }

    /// Whether somebody has locks that may keep readers out.
    fn are_readers_kept_out(&self) -> bool {
        find_sqlite_holder(&self.directory).is_some()
    }

    /// Whether to wait once more.
    fn goes_on(&self, patience: &mut Patience) -> bool {
        let asks = self.wait_max() >= ASK_AFTER;
        let who = || describe_sqlite_holder(&self.directory);
        if asks {
            let why = patience.look("the catalog's lock", &self.directory, who);
            if why.is_some() {
                set_in_vain(Some((patience.waited(), why)));
                return false;
            }
        } else if Instant::now() >= patience.deadline {
            set_in_vain(Some((patience.waited(), None)));
            return false;
        }
        true
    }
}

/// Who has a lock of SQLite's that others wait for.
pub(crate) fn describe_sqlite_holder(directory: &DatabaseDir) -> String {
    match find_sqlite_holder(directory) {
        Some(pid) => describe_process(pid, None),
        None => NOBODY_SEEN.into(),
    }
}

fn find_sqlite_holder(directory: &DatabaseDir) -> Option<u32> {
    LOCKS.iter().find_map(|(suffix, first, last, mine)| {
        let identity = directory.identity_of(format!("{CATALOG_FILE}{suffix}"));
        find_holder(identity.ok()??, &Lock::Bytes(*first..=*last, *mine))
    })
}

/// Sleeps once: 0.1 ms at first, as long as a commit takes; later 1 ms, then 4. 0: it was long
/// enough.
unsafe extern "C" fn wait_again(waits: *mut c_void, count: c_int) -> c_int {
    // SAFETY: `Waits::begin` has given it, and it outlives the connection.
    let waits = unsafe { &*waits.cast::<Waits>() };
    let goes_on = WAIT.with_borrow_mut(|wait| {
        let me = std::ptr::from_ref(waits).cast();
        if count == 0 || wait.as_ref().is_some_and(|(of, _)| *of != me) {
            *wait = None;
            set_in_vain(None);
        }
        let (_, patience) = wait.get_or_insert_with(|| (me, Patience::new(waits.wait_max())));
        waits.goes_on(patience)
    });
    if !goes_on {
        return 0;
    }
    let pause_us = match count {
        ..20 => 100,
        20..40 => 1000,
        _ => 4000,
    };
    std::thread::sleep(Duration::from_micros(pause_us));
    1
}

/// SQLite has found all locks for readers taken, and would sleep so long: 1 µs at first, and longer
/// each time, [`READ_WAIT`] in all. Each sleep is stretched, or shortened, so that all of them are
/// as long as connections here wait; then there are none, and SQLite fails at once. (Which one it
/// is SQLite does not tell: one that waits less than the most patient of the process waits as long.
/// A commit that begins the log anew may come by here too, with the write lock.)
fn wait_to_read(microseconds: c_int) {
    let micros = u64::try_from(microseconds).unwrap_or(0);
    let all: Vec<Arc<Waits>> = lock(&ALL).iter().filter_map(Weak::upgrade).collect();
    let wait_max = all.iter().map(|waits| waits.wait_max()).max();
    let (Some(wait_max), Some(first)) = (wait_max, all.first()) else {
        return std::thread::sleep(Duration::from_micros(micros));
    };
    WAIT_TO_READ.with_borrow_mut(|wait| {
        if micros <= 1 {
            *wait = None;
            set_in_vain(None);
            return;
        }
        let patience = wait.get_or_insert_with(|| Patience::new(wait_max));
        let share = micros as f64 / READ_WAIT.as_micros() as f64;
        let until = Instant::now() + wait_max.mul_f64(share);
        loop {
            let holding = all.iter().find(|waits| waits.are_readers_kept_out());
            if !holding.unwrap_or(first).goes_on(patience) {
                return;
            }
            let left = until.saturating_duration_since(Instant::now());
            if holding.is_none() || left.is_zero() {
                return std::thread::sleep(left.min(Duration::from_micros(micros)));
            }
            std::thread::sleep(left.min(READ_LOOK));
        }
    });
}

/// A panic in a holder leaves nothing half done: its transaction was rolled back while unwinding.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::refused::take_in_vain;
    use crate::open::tests::INIT;
    use crate::{CatalogError, CatalogOptions, SqliteCatalog, lock};

    /// One connection has the write lock; what waits for it fails in time, and says who it is.
    #[test]
    fn who_has_the_write_lock_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let patience = CatalogOptions::default().waiting(Duration::from_millis(600));
        let catalog = SqliteCatalog::create(dir.path(), &patience, &INIT).unwrap();
        let other = SqliteCatalog::open(dir.path(), &patience).unwrap();
        let held = lock(&other.writer);
        held.connection.execute_batch("BEGIN IMMEDIATE").unwrap();
        let refused = catalog.sessions().begin((1, 0), "x", 1).unwrap_err();
        let told = refused.to_string();
        let words = format!(
            " s; it is held by process {} (this one) ('",
            std::process::id()
        );
        assert!(told.contains(&words), "WAIT-1: {told}");
        let CatalogError::Busy { waited, why } = refused else {
            panic!("WAIT-1: {told}");
        };
        assert!(
            waited >= Duration::from_millis(600) && why.is_some(),
            "WAIT-1"
        );
        // Who does not mind does not ask.
        let waits = lock(&catalog.writer).waits.clone().unwrap();
        waits.set(Duration::from_millis(1));
        let refused = catalog.sessions().begin((1, 0), "x", 1).unwrap_err();
        assert!(
            matches!(refused, CatalogError::Busy { why: None, .. }),
            "WAIT-1"
        );
        held.connection.execute_batch("ROLLBACK").unwrap();
        catalog.sessions().begin((1, 0), "x", 1).unwrap();
        assert_eq!(take_in_vain(), None, "WAIT-1: what was said was taken");
    }

    #[test]
    fn a_wait_is_told_and_ends() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        let mut patience = Patience::new(Duration::from_secs(60));
        let nobody = || -> String { panic!("nobody asks so soon") };
        assert_eq!(patience.look("it", &database, nobody), None);
        let mut over = Patience::new(Duration::ZERO);
        let told = over.look("it", &database, || "me".into());
        assert_eq!(told.unwrap(), "it was waited for 0 s; it is held by me");
        let text = describe_process(std::process::id(), Some("'mount' since 2026"));
        assert!(
            text.contains("(this one) ('") && text.contains(", 'mount' since 2026, which works on")
        );
    }
}
