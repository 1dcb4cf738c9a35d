//! A watch over the user's triggers in the engine's own changes.
//!
//! # Words
//! The engine's own changes pass the guards (`guards`); where the user has triggers, the guard
//! switch is open while those run. A *watch* knows which triggers are ours, what only the engine
//! changes, and for how long a statement has been in the user's triggers.
//!
//! # Invariants
//! * `SAFE-6` While the guard switch is open no trigger of the user's changes what only the engine
//!   changes. *Guard*: [`Watch::judge`], while a statement is compiled, so that statements that are
//!   kept cost nothing.
//! * `SAFE-7` A statement of the engine spends at most [`TRIGGER_TIME_MAX`] in triggers of the
//!   user's. *Guard*: [`Watch::is_over`], asked every [`OPERATIONS`] operations. (A person's own
//!   statements take as long as he lets them.)

use crate::conn::confine::{is_never_ours, text};
use crate::error::{CatalogError, Result, require_ok};
use crate::guards::audit::{Findings, is_users_column};
use crate::lock;
use crate::types::names::shown;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::{Connection, ffi};
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::sync::Arc;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long triggers of the user's may run in one statement of the engine.
pub(crate) const TRIGGER_TIME_MAX: Duration = Duration::from_secs(5);
/// Operations of SQLite's machine between two looks at the clock, 0.1 ms.
const OPERATIONS: c_int = 10_000;
/// How SQLite tells that a trigger begins.
const TRIGGER_BEGINS: &[u8] = b"-- TRIGGER ";

/// Watches the user's triggers on one connection that writes.
#[derive(Default)]
pub(crate) struct Watch {
    /// The guard switch is open for the engine's statements.
    is_open: AtomicBool,
    /// The guards look at a user's statement: what they refuse need not be refused before.
    is_standing: AtomicBool,
    known: Mutex<Findings>,
    running: Mutex<Running>,
    /// What was refused or ended; takes the place of SQLite's error.
    verdict: Mutex<Option<String>>,
}

/// The statement that runs.
#[derive(Default)]
struct Running {
    /// The user's trigger that began last.
    trigger: String,
    /// Since when it is in triggers of the user's.
    since: Option<Instant>,
}

impl Watch {
    /// Begins to watch a connection, which is dropped before what is returned. By SQLite's own
    /// functions: the SQLite of a program that has loaded the extension may be older than what
    /// rusqlite needs for its closures.
    pub(crate) fn begin(connection: &Connection) -> Result<Arc<Watch>> {
        let watch = Arc::new(Watch::default());
        // SAFETY: an open connection; `watch` is alive as long as it, as the caller promises, and
        // `tell` and `stop` only read it.
        let code = unsafe {
            let handle = connection.handle();
            ffi::sqlite3_progress_handler(handle, OPERATIONS, Some(stop), watch.pointer());
            let events = ffi::SQLITE_TRACE_STMT as c_uint;
            ffi::sqlite3_trace_v2(handle, events, Some(tell), watch.pointer())
        };
        require_ok(code).map(|()| watch)
    }

    /// Has the watch judge what the connection compiles.
    pub(crate) fn authorize(&self, connection: &Connection) -> Result<()> {
        // SAFETY: as in `begin`.
        require_ok(unsafe {
            ffi::sqlite3_set_authorizer(connection.handle(), Some(judge), self.pointer())
        })
    }

    fn pointer(&self) -> *mut c_void {
        std::ptr::from_ref(self).cast_mut().cast()
    }

    /// What is ours and what is the user's from now on.
    pub(crate) fn learn(&self, findings: Findings) {
        *lock(&self.known) = findings;
    }

    /// The guard switch is open for the engine, or no longer.
    pub(crate) fn set_open(&self, is_open: bool) {
        self.is_open.store(is_open, Ordering::Relaxed);
        self.is_standing.store(false, Ordering::Relaxed);
    }

    /// The guard switch is closed, and what follows is a user's statement.
    pub(crate) fn stand(&self) {
        self.is_open.store(false, Ordering::Relaxed);
        self.is_standing.store(true, Ordering::Relaxed);
    }

    /// Whether the engine's statement may do this (`SAFE-6`).
    pub(crate) fn judge(&self, context: &AuthContext<'_>) -> Authorization {
        let Some(trigger) = context.accessor else {
            return Authorization::Allow;
        };
        if self.is_standing.load(Ordering::Relaxed) {
            return Authorization::Allow;
        }
        let table = match context.action {
            AuthAction::Insert { table_name } | AuthAction::Delete { table_name } => table_name,
            AuthAction::Update { table_name, .. } => table_name,
            _ => return Authorization::Allow,
        };
        let known = lock(&self.known);
        let (by, to) = (trigger.to_ascii_lowercase(), table.to_ascii_lowercase());
        let is_tracker = ["larder_feed_", "larder_watch_", "larder_temporal_"]
            .iter()
            .any(|tracker| by.starts_with(tracker))
            && matches!(context.action, AuthAction::Insert { .. })
            && ["larder_change", "larder_history"].contains(&&*to);
        let is_attribute = |column: &str| {
            let attributes = ["mode", "uid", "gid", "atime_ns", "mtime_ns", "ctime_ns"];
            is_users_column(column)
                || attributes
                    .iter()
                    .any(|one| one.eq_ignore_ascii_case(column))
        };
        let is_refused = match context.action {
            _ if known.guards.contains(&by) || is_tracker => false,
            AuthAction::Update { column_name, .. } if known.stores.contains(&to) => {
                !is_attribute(column_name)
            }
            _ => known.tables.contains(&to) || known.stores.contains(&to),
        };
        if !is_refused {
            return Authorization::Allow;
        }
        *lock(&self.verdict) = Some(format!(
            "trigger {} changes {table}, which only larder may, inside a change of larder's; DROP \
             it",
            shown(trigger)
        ));
        Authorization::Deny
    }

    /// Whether the statement that runs has been in the user's triggers for too long (`SAFE-7`).
    fn is_over(&self) -> bool {
        if !self.is_open.load(Ordering::Relaxed) {
            return false;
        }
        let running = lock(&self.running);
        let is_over = running
            .since
            .is_some_and(|since| since.elapsed() > TRIGGER_TIME_MAX);
        if is_over {
            *lock(&self.verdict) = Some(format!(
                "trigger {} takes longer than {} s inside a change of larder's; DROP it, or make \
                 it faster",
                shown(&running.trigger),
                TRIGGER_TIME_MAX.as_secs()
            ));
        }
        is_over
    }

    /// A statement begins, or a trigger in it.
    fn note(&self, text: &[u8]) {
        if !self.is_open.load(Ordering::Relaxed) {
            return;
        }
        let mut running = lock(&self.running);
        let Some(name) = text.strip_prefix(TRIGGER_BEGINS) else {
            // A comment in a statement of ours would be a trigger of SQLite's own.
            if !text.starts_with(b"-- ") {
                running.since = None;
            }
            return;
        };
        let name = String::from_utf8_lossy(name);
        if lock(&self.known)
            .guards
            .contains(&name.to_ascii_lowercase())
        {
            return;
        }
        running.since.get_or_insert_with(Instant::now);
        running.trigger = name.into_owned();
    }

    /// What the error of a change of the engine's is, if the watch has brought it about.
    pub(crate) fn explain(&self, error: CatalogError) -> CatalogError {
        match lock(&self.verdict).take() {
            Some(what) => CatalogError::Refused { what },
            None => error,
        }
    }
}

/// SQLite asks whether the statement that runs shall end.
unsafe extern "C" fn stop(watch: *mut c_void) -> c_int {
    // SAFETY: `Watch::begin` has given the watch, which outlives the connection.
    let watch = unsafe { &*watch.cast::<Watch>() };
    watch.is_over().into()
}

/// SQLite asks whether a statement may do something.
unsafe extern "C" fn judge(
    watch: *mut c_void,
    code: c_int,
    first: *const c_char,
    second: *const c_char,
    database: *const c_char,
    accessor: *const c_char,
) -> c_int {
    // SAFETY: texts that SQLite passes for this call.
    let texts = unsafe { (text(first), text(second), text(database), text(accessor)) };
    let (Ok(first), Ok(second), Ok(database_name), Ok(accessor)) = texts else {
        return ffi::SQLITE_DENY; // A name that is no text is none of ours.
    };
    let attaches = matches!(code, ffi::SQLITE_ATTACH | ffi::SQLITE_DETACH);
    if attaches || is_never_ours(code, first, second) {
        return ffi::SQLITE_DENY;
    }
    let action = match (code, first, second) {
        (ffi::SQLITE_INSERT, Some(table_name), _) => AuthAction::Insert { table_name },
        (ffi::SQLITE_DELETE, Some(table_name), _) => AuthAction::Delete { table_name },
        (ffi::SQLITE_UPDATE, Some(table_name), Some(column_name)) => AuthAction::Update {
            table_name,
            column_name,
        },
        (code, arg1, arg2) => AuthAction::Unknown { code, arg1, arg2 },
    };
    let context = AuthContext {
        action,
        database_name,
        accessor,
    };
    // SAFETY: `Watch::authorize` has given the watch, which outlives the connection.
    let watch = unsafe { &*watch.cast::<Watch>() };
    match watch.judge(&context) {
        Authorization::Allow => ffi::SQLITE_OK,
        Authorization::Ignore => ffi::SQLITE_IGNORE,
        _ => ffi::SQLITE_DENY,
    }
}

/// SQLite tells that a statement or a trigger begins.
unsafe extern "C" fn tell(
    _event: c_uint,
    watch: *mut c_void,
    _statement: *mut c_void,
    text: *mut c_void,
) -> c_int {
    if watch.is_null() || text.is_null() {
        return 0;
    }
    // SAFETY: `Watch::begin` has given the watch, which outlives the connection; for this event the
    // text is a C string that lives as long as the call.
    let (watch, text) = unsafe { (&*watch.cast::<Watch>(), CStr::from_ptr(text.cast())) };
    watch.note(text.to_bytes());
    0
}
