//! The functions about files in a connection of another program's SQLite, the *client*: what the
//! extension is.
//!
//! # Words
//! The *session* is this process's, on connections of its own; the *view* reads and writes in the
//! client's transaction, on the client's connection (`larder_object`, module `client`). What
//! `write_content` takes *waits* until the next statement of the client begins, or the transaction
//! is committed.
//!
//! ```text
//!  a statement begins ─▶ what waits is written ─▶ the writer lock, if it may write
//!                     ─▶ SQLite's lock, the statement
//!  write_content      ─▶ it waits; the transaction is enlisted
//!  COMMIT             ─▶ what waits is written; or the commit is refused
//!                     ─▶ the writer lock is given back
//!  ROLLBACK, ROLLBACK TO ─▶ what waits is forgotten; SQLite takes back the rows
//! ```
//!
//! # Invariants
//! * `CLIENT-5` What could not be written is not committed: after such a failure every commit of
//!   that transaction is refused. If SQLite has rolled it back by itself, the next statement that
//!   writes fails, lest it be committed alone.
//! * `CLIENT-6` A statement sees no file that it writes itself (as `CONTENT-8`); but of a SELECT
//!   outside of a transaction each call of `write_content` is a commit.
//!
//! # Concurrency
//! All of it runs on the thread that uses the client's connection. What runs nested in it calls
//! back here: `state` is not held meanwhile.

use crate::active_transaction::lock;
use crate::database::{Database, DatabaseOptions, Shared, Shown};
use crate::sql_files::StatementFiles;
use crate::stores::KnownStores;
use larder_object::{
    ClientEnd, ClientHandle, ClientLocks, ClientStatement, ClientWatch, Engine, EngineOptions,
    Error, ErrorKind, FileRow, FileRows, Result, SqlFile, SqlFiles, open_client,
    require_other_thread,
};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// How long a file of its own commit waits for SQLite's lock, which a client need not wait for.
const LOCK_WAIT_MAX: Duration = Duration::from_secs(30);
const LOCK_PAUSE: Duration = Duration::from_millis(2);

/// Gives a client's connection the functions about files and the table `files` (docs/semantics.md,
/// "SQL over content"), for the database whose catalog is its main database. They work in the
/// client's own transactions. All of this process must use one copy of SQLite: the client's. Cost:
/// a session begins, two commits.
pub fn attach_client(client: ClientHandle) -> Result<()> {
    if client.is_registered() {
        return Ok(()); // It was loaded before, and is at work.
    }
    let directory = client.find_directory()?;
    require_other_thread(&directory)?;
    if !client.is_autocommit() {
        let why = "a transaction is open; COMMIT or ROLLBACK it, and load the extension then";
        return Err(Error::new(ErrorKind::Busy, why));
    }
    let options = DatabaseOptions {
        label: "sql extension".into(),
        engine: EngineOptions {
            is_extension: true,
            ..EngineOptions::default()
        },
        ..DatabaseOptions::default()
    };
    let session = Database::open_here(&directory, options)?;
    let made = Arc::new(Client {
        view: Mutex::new(open_view(&session, client)?),
        session,
        handle: client,
        state: Mutex::default(),
        depth: AtomicU32::new(0),
        is_heard: AtomicBool::new(false),
        enlistings: AtomicU64::new(0),
        process: std::process::id(),
    });
    Ok(client.register(Arc::clone(&made) as _, made)?)
}

fn open_view(session: &Database, client: ClientHandle) -> Result<(Database, Arc<Engine>)> {
    let engine = open_client(session.shared.shown.engine()?, client)?;
    let view = Database {
        shared: Arc::new(Shared {
            shown: Shown::Transaction(Arc::clone(&engine), None),
            factories: Arc::clone(&session.shared.factories),
            stores: KnownStores::default(),
            pool: Arc::default(),
        }),
    };
    Ok((view, engine))
}

struct Client {
    /// Dropped first: it is beside the session.
    view: Mutex<(Database, Arc<Engine>)>,
    session: Database,
    handle: ClientHandle,
    state: Mutex<State>,
    /// How many calls of ours are under way: what runs meanwhile is not the client's.
    depth: AtomicU32,
    /// The tracer has told of a statement since this was last looked at: it is still there.
    is_heard: AtomicBool,
    /// How often SQLite has told that a transaction is enlisted for.
    enlistings: AtomicU64,
    /// The process that has the session: a child of it, by `fork`, has none.
    process: u32,
}

#[derive(Default)]
struct State {
    /// A statement has begun since the last call of a function.
    is_new: bool,
    /// Answers the statement.
    files: Option<Arc<StatementFiles>>,
    /// Those that something waits in.
    waiting: Vec<Arc<StatementFiles>>,
    /// Why nothing more can be committed (`CLIENT-5`).
    failed: Option<String>,
    /// Why there is no transaction any more, until the client has been told.
    lost: Option<String>,
    /// SQLite would not tell of the end of the transaction.
    is_adrift: bool,
    /// What waits is being written: SQLite may end the transaction meanwhile, ...
    is_writing: bool,
    /// ... and has.
    has_ended: bool,
}

/// A call of ours is under way.
struct Inside<'c>(&'c Client);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        let client = self.0;
        let is_last = client.depth.fetch_sub(1, Ordering::SeqCst) == 1;
        // Nobody is going to tell that the statement has ended.
        if is_last && !client.is_heard.load(Ordering::SeqCst) {
            client.end_if_over(client.handle.locks());
        }
    }
}

type Told<T> = std::result::Result<T, String>;

impl Client {
    fn enter(&self) -> Inside<'_> {
        self.depth.fetch_add(1, Ordering::SeqCst);
        Inside(self)
    }

    fn is_inside(&self) -> bool {
        self.depth.load(Ordering::SeqCst) > 0
    }

    fn engine(&self) -> Arc<Engine> {
        Arc::clone(&lock(&self.view).1)
    }

    fn require_process(&self) -> Told<()> {
        match std::process::id() == self.process {
            true => Ok(()),
            false => Err(
                "the extension was loaded before this process was forked; open the \
                database, and load it, in the child"
                    .into(),
            ),
        }
    }

    /// Runs `work`, which reads, in one moment.
    fn read<T>(&self, work: impl FnOnce(&Arc<StatementFiles>) -> Told<T>) -> Told<T> {
        self.require_process()?;
        let _inside = self.enter();
        let is_told = self.is_heard.swap(false, Ordering::SeqCst);
        let (is_new, known) = {
            let mut state = lock(&self.state);
            let is_new = std::mem::take(&mut state.is_new) || !is_told || state.files.is_none();
            (is_new, state.files.clone())
        };
        let (view, engine) = lock(&self.view).clone();
        let done = engine.client().in_moment(is_new, || {
            let files = match known.filter(|_| !is_new) {
                Some(files) => files,
                None => {
                    view.reload_stores()?;
                    StatementFiles::new(&view, None, None)
                }
            };
            lock(&self.state).files = Some(Arc::clone(&files));
            Ok(work(&files))
        });
        done.unwrap_or_else(|error| {
            lock(&self.state).is_new = true;
            Err(error.to_string())
        })
    }

    /// Takes a file that is to be written.
    fn take(&self, path: &[u8], range: Option<(u64, u64)>, bytes: &[u8]) -> Told<()> {
        let named = |why: String| {
            let path = String::from_utf8_lossy(path);
            format!("write_content('{path}'): {why}")
        };
        self.require_process()?;
        {
            let mut state = lock(&self.state);
            if let Some(why) = state.lost.take().or_else(|| state.failed.clone()) {
                return Err(why);
            }
        }
        let locks = self.handle.locks();
        let is_alone = self.handle.is_autocommit();
        if is_alone && locks == ClientLocks::Snapshot {
            return Err(named(
                "a SELECT that reads tables writes files in a transaction only; put BEGIN \
                 IMMEDIATE before it and COMMIT behind it"
                    .into(),
            ));
        }
        // CLIENT-3: with the writer lock in hand until it is enlisted for.
        let _inside = self.enter();
        let engine = self.engine();
        let had_writer_lock = engine.client().has_writer_lock();
        match engine.client().lock_writer(locks) {
            Ok(true) => {}
            Ok(false) => {
                return Err(named(
                    "another session is changing files now, and this transaction took the lock \
                     without the writer lock; ROLLBACK, and try again"
                        .into(),
                ));
            }
            Err(error) => return Err(named(error.to_string())),
        }
        if locks == ClientLocks::None {
            engine.client().prepare_write(bytes.len() as u64); // CLIENT-7
        }
        let written = (path, range, bytes);
        let taken = self.take_locked(written, is_alone && locks == ClientLocks::None);
        if taken.is_err() && !had_writer_lock {
            // Not enlisted for: nobody would tell of the end.
            engine.client().unlock_writer();
        }
        taken.map_err(|(is_named, why)| match is_named {
            true => why,
            false => named(why),
        })
    }

    /// The same with the writer lock; an error, and whether it names the file. `is_alone`: it is a
    /// transaction of its own.
    fn take_locked(
        &self,
        (path, range, bytes): (&[u8], Option<(u64, u64)>, &[u8]),
        is_alone: bool,
    ) -> std::result::Result<(), (bool, String)> {
        let files = self
            .read(|files| {
                Arc::clone(files).write_content(path, range, bytes)?;
                Ok(Arc::clone(files))
            })
            .map_err(|why| (true, why))?;
        {
            let mut state = lock(&self.state); // CLIENT-6
            if !state.waiting.iter().any(|one| Arc::ptr_eq(one, &files)) {
                state.waiting.push(Arc::clone(&files));
            }
        }
        self.enlist(is_alone).map_err(|error| {
            files.forget_last();
            (error.kind() == ErrorKind::InvalidInput, error.to_string())
        })
    }

    /// Takes part in the transaction. `waits`: in one of its own.
    fn enlist(&self, waits: bool) -> Result<()> {
        let _inside = self.enter();
        let engine = self.engine();
        let deadline = Instant::now() + LOCK_WAIT_MAX;
        let before = self.enlistings.load(Ordering::SeqCst);
        loop {
            match engine.client().enlist() {
                Err(error)
                    if waits && error.kind() == ErrorKind::Busy && Instant::now() < deadline =>
                {
                    std::thread::sleep(LOCK_PAUSE);
                }
                Ok(()) if self.enlistings.load(Ordering::SeqCst) == before => {
                    let why = "a table 'larder_client' stands in the way of the extension's; DROP \
                        TABLE larder_client";
                    return Err(Error::new(ErrorKind::InvalidInput, why));
                }
                done => return done,
            }
        }
    }

    /// Writes what waits, in the client's transaction.
    fn write_waiting(&self) -> Told<()> {
        let waiting = std::mem::take(&mut lock(&self.state).waiting);
        let failed = lock(&self.state).failed.clone();
        if waiting.is_empty() || failed.is_some() {
            return failed.map_or(Ok(()), Err);
        }
        let _inside = self.enter();
        lock(&self.state).is_writing = true;
        let written = self
            .engine()
            .client()
            .change(|| waiting.iter().try_for_each(|files| files.write()));
        let mut state = lock(&self.state);
        (state.is_new, state.is_writing) = (true, false);
        let written = written.map_err(|error| {
            let failed = format!("{error}; nothing of this transaction is committed, ROLLBACK it");
            state.failed = Some(failed.clone()); // CLIENT-5
            failed
        });
        let has_ended = std::mem::take(&mut state.has_ended);
        drop(state);
        if has_ended {
            self.end();
        }
        written
    }

    /// The transaction that was taken part in has ended.
    fn end(&self) {
        self.forget_waiting();
        lock(&self.state).failed = None;
        let is_reading = self.handle.locks() == ClientLocks::Snapshot;
        self.engine().client().end(is_reading);
    }

    /// Whether the statement that begins has to fail because it believes in a transaction that is
    /// lost (`CLIENT-5`).
    fn tells_loss(&self, word: &[u8], is_read_only: bool) -> bool {
        let mut state = lock(&self.state);
        let knows = ["BEGIN", "COMMIT", "END", "ROLLBACK"]
            .iter()
            .any(|end| word.eq_ignore_ascii_case(end.as_bytes()));
        // SQLite itself tells who wants to end it that there is none.
        if knows {
            state.lost = None;
        }
        !is_read_only && state.lost.take().is_some()
    }

    fn forget_waiting(&self) {
        let mut state = lock(&self.state);
        state.is_new = true;
        state.files = None;
        let waiting = std::mem::take(&mut state.waiting);
        drop(state);
        drop(waiting);
    }

    /// Gives back what is only held in a transaction, when there is none.
    fn end_if_over(&self, locks: ClientLocks) {
        if self.handle.is_autocommit() && locks != ClientLocks::Write {
            lock(&self.state).failed = None;
            self.engine().client().end(locks == ClientLocks::Snapshot);
        }
    }

    /// Takes part anew in a transaction that SQLite has said to be over, and is not.
    fn catch_adrift(&self) {
        let is_adrift = std::mem::take(&mut lock(&self.state).is_adrift);
        if is_adrift
            && !self.handle.is_autocommit()
            && let Err(error) = self.enlist(false)
        {
            tracing::warn!("a transaction goes on that is not taken part in: {error}");
            lock(&self.state).is_adrift = true;
        }
    }

    /// A commit that failed has stopped the engine of the view: the next transaction has a new one.
    fn renew_view(&self) {
        if !self.handle.is_autocommit() || self.engine().is_running() {
            return;
        }
        let _inside = self.enter();
        // Else the functions go on telling why the old one has stopped.
        if let Ok(view) = open_view(&self.session, self.handle) {
            self.engine().client().end(false);
            *lock(&self.view) = view;
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Before the session ends.
        self.forget_waiting();
        self.engine().client().end(false);
    }
}

impl ClientWatch for Client {
    fn begins(&self, statement: Option<ClientStatement<'_>>) {
        self.is_heard.store(true, Ordering::SeqCst);
        let Some(statement) = statement.filter(|_| !self.is_inside()) else {
            return;
        };
        self.renew_view();
        self.catch_adrift();
        lock(&self.state).is_new = true;
        let word = first_word(statement.text);
        if !word.eq_ignore_ascii_case(b"ROLLBACK") {
            // A failure is told by the commit, or by whoever writes next (CLIENT-5).
            let was_open = !self.handle.is_autocommit();
            let written = self.write_waiting();
            if was_open && self.handle.is_autocommit() {
                let rolled_back = "SQLite has rolled the transaction back; begin it again";
                lock(&self.state).lost = written.err().or_else(|| Some(rolled_back.into()));
            }
        }
        if self.tells_loss(word, statement.is_read_only) {
            self.handle.interrupt();
            return;
        }
        let engine = self.engine();
        let is_begin = word.eq_ignore_ascii_case(b"BEGIN");
        let is_part = !self.handle.is_autocommit() || is_begin;
        let may_write = is_part && !statement.is_read_only || names_write(statement.text);
        let _inside = self.enter();
        let locks = self.handle.locks();
        let taken = match may_write && locks != ClientLocks::Write {
            true => {
                if locks == ClientLocks::None {
                    engine.client().unpin();
                }
                engine.client().lock_writer(locks).map(drop)
            }
            false => Ok(()),
        };
        if let Err(error) = taken.and(engine.client().pin()) {
            // Plain SQL goes on without; functions will meet it again, and tell.
            tracing::warn!("before a statement: {error}");
        }
    }

    fn ended(&self, statement: ClientEnd) {
        if !self.is_inside() {
            self.end_if_over(self.handle.locks_after(statement));
        }
    }

    fn enlisted(&self) {
        self.enlistings.fetch_add(1, Ordering::SeqCst);
    }

    fn before_commit(&self) -> Told<()> {
        self.write_waiting()?;
        let _inside = self.enter();
        let noted = self.engine().client().note_moment();
        noted.map_err(|error| error.to_string())
    }

    fn before_savepoint(&self) -> Told<()> {
        match self.is_inside() {
            true => Ok(()), // One of a statement of ours.
            false => self.write_waiting(),
        }
    }

    fn went_back(&self) {
        if !self.is_inside() {
            self.forget_waiting();
        }
    }

    fn after_end(&self) {
        if self.handle.locks() == ClientLocks::Write {
            // SQLite was about to close the connection, and could not: the transaction goes on.
            lock(&self.state).is_adrift = true;
            return;
        }
        {
            let mut state = lock(&self.state);
            if state.is_writing {
                // What writes is told first, and gives up what it has locked.
                state.has_ended = true;
                return;
            }
        }
        self.end();
    }

    fn disconnect(&self) {
        self.engine().client().forget_compiled();
    }
}

impl SqlFiles for Client {
    fn content(&self, file: SqlFile<'_>, range: Option<(u64, u64)>) -> Told<Option<Vec<u8>>> {
        self.read(|files| files.content(file, range))
    }

    fn write_content(&self, path: &[u8], range: Option<(u64, u64)>, bytes: &[u8]) -> Told<()> {
        self.take(path, range, bytes)
    }

    fn path(&self, ino: u64, store: Option<&str>) -> Told<Option<Vec<u8>>> {
        self.read(|files| files.path(ino, store))
    }

    fn ino(&self, path: &[u8]) -> Told<Option<u64>> {
        self.read(|files| files.ino(path))
    }

    fn now_ns(&self) -> i64 {
        self.session.shared.shown.view().now_ns()
    }

    fn files(self: Arc<Self>, pattern: &[u8]) -> Told<FileRows> {
        let rows = self.read(|files| Arc::clone(files).files(pattern))?;
        Ok(Box::new(Rows { client: self, rows }))
    }
}

/// Rows of `files`, each read in a moment of the client's.
struct Rows {
    client: Arc<Client>,
    rows: FileRows,
}

impl Iterator for Rows {
    type Item = Told<FileRow>;

    fn next(&mut self) -> Option<Told<FileRow>> {
        let rows = &mut self.rows;
        let next = self.client.read(|_| rows.next().transpose());
        next.transpose()
    }
}

/// Whether a statement may call `write_content`.
fn names_write(text: &[u8]) -> bool {
    const NAME: &[u8] = b"write_content";
    text.windows(NAME.len())
        .any(|part| part.eq_ignore_ascii_case(NAME))
}

/// The first word of a statement: blanks and comments do not count.
fn first_word(text: &[u8]) -> &[u8] {
    let mut rest = text;
    loop {
        rest = rest.trim_ascii_start();
        let end: &[u8] = match rest {
            [b'-', b'-', ..] => b"\n",
            [b'/', b'*', ..] => b"*/",
            [b';', ..] => b";",
            _ => break,
        };
        let at = rest.windows(end.len()).position(|part| part == end);
        rest = at.map_or(&[], |at| &rest[at + end.len()..]);
    }
    let is_part = |byte: &u8| byte.is_ascii_alphabetic();
    &rest[..rest.iter().take_while(|byte| is_part(byte)).count()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_word_is_found_behind_comments() {
        assert_eq!(first_word(b"  begin immediate"), b"begin");
        assert_eq!(first_word(b"-- x\n/* y */ ;ROLLBACK;"), b"ROLLBACK");
        assert_eq!(first_word(b"-- x"), b"");
        assert!(names_write(b"select Write_Content('/a', 'b')"));
        assert!(!names_write(b"select content('/a')"));
    }
}
