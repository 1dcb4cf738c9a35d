//! The databases that a command has open, and their orderly end (`CLI-7`).
//!
//! # Invariants
//! * `CLI-31` What a command has done is seen by every mount when it ends, or the mount that does
//!   not answer is named. It asks when it has closed everything, so nobody waits for it meanwhile
//!   (`BARRIER-2`).
//! * `CLI-32` A verb that reads, and `sql`, sees all that was done before it began; where a mount
//!   that has uncommitted changes does not go on, it says so after 2 s, and shows what is
//!   committed.

use crate::address::{Address, DbAddress, split_moment};
use crate::error::{At, Result, warn};
use larder::{Birth, Database, DatabaseOptions, ErrorKind, Trust, parse_moment};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

/// How long a command waits for mounts to commit, or to show what it has done.
const MOUNTS_WAIT: Duration = Duration::from_secs(2);

/// Verbs that change nothing that a mount shows; `sql` asks by itself.
const READERS: [&str; 21] = [
    "cat",
    "check",
    "df",
    "diff",
    "du",
    "find",
    "frag",
    "get",
    "log",
    "ls",
    "mount",
    "rows",
    "snapshot list",
    "snapshot verify",
    "sql",
    "sql --read-only",
    "stat",
    "stats",
    "status",
    "store list",
    "watch",
];

/// How long this command waits for other sessions, if it was told.
static WAIT_MAX: OnceLock<Duration> = OnceLock::new();

/// From now on databases that this command opens wait for other sessions no longer than so.
pub(crate) fn wait_at_most(wait_max: Duration) {
    // Nothing else sets it.
    WAIT_MAX.get_or_init(|| wait_max);
}

/// Whether [`wait_at_most`] was called.
pub(crate) fn has_timeout() -> bool {
    WAIT_MAX.get().is_some()
}

/// Open databases, each directory once.
pub(crate) struct Databases {
    label: String,
    trust: Trust,
    /// What it does is to be seen by mounts.
    changes: bool,
    open: Vec<(PathBuf, Database)>,
}

/// Runs `work` with databases to open, and closes them all, whatever comes of it. What `work` fails
/// with is told first; what closing fails with then has the same cause.
pub(crate) fn with_databases<T>(
    verb: &str,
    work: impl FnOnce(&mut Databases) -> Result<T>,
) -> Result<T> {
    let mut databases = Databases {
        label: format!("larder {verb}"),
        trust: Trust::of_environment(),
        changes: !READERS.contains(&verb),
        open: Vec::new(),
    };
    let result = work(&mut databases);
    let closed = databases.close();
    let value = result?;
    closed?;
    Ok(value)
}

/// The same for a verb that needs one database.
pub(crate) fn with_database<T>(
    path: &Path,
    verb: &str,
    work: impl FnOnce(&Database) -> Result<T>,
) -> Result<T> {
    with_databases(verb, |databases| work(&databases.open(path)?))
}

/// The same, where the schema may be a stranger's.
pub(crate) fn with_untrusted_database<T>(
    path: &Path,
    verb: &str,
    work: impl FnOnce(&Database) -> Result<T>,
) -> Result<T> {
    with_databases(verb, |databases| {
        databases.trust = Trust::Nobody;
        work(&databases.open(path)?)
    })
}

impl Databases {
    /// The database in directory `path`, opened on first use; with `@MOMENT` behind it, as of then
    /// (`CLI-30`).
    pub(crate) fn open(&mut self, path: &Path) -> Result<Database> {
        if let Some((directory, moment)) = split_moment(path) {
            let present = self.open(&directory)?;
            let key = path.to_owned();
            if let Some((_, past)) = self.open.iter().find(|(other, _)| *other == key) {
                return Ok(past.clone());
            }
            let past = parse_moment(&moment, present.now_ns())
                .and_then(|moment| present.as_of(&moment))
                .at(|| format!("cannot open '{}'", path.display()))?;
            self.open.push((key, past.clone()));
            return Ok(past);
        }
        // What cannot be resolved is left to `open_database` to explain.
        let key = path.canonicalize().unwrap_or_else(|_| path.to_owned());
        if let Some((_, database)) = self.open.iter().find(|(other, _)| *other == key) {
            return Ok(database.clone());
        }
        let mut options = options(&self.label);
        options.engine.trust = self.trust;
        // A verb that only reads deletes nothing: it leaves what killed transactions have left.
        options.engine.is_command = true;
        options.engine.is_reader = !self.changes && self.label != "larder sql";
        let database = match self.changes || has_timeout() {
            true => open_with(path, options)?,
            false => open_to_read(path, &options)?,
        };
        self.open.push((key, database.clone()));
        Ok(database)
    }

    /// The file in a database that an argument names, with its database.
    pub(crate) fn address(&mut self, argument: &OsStr) -> Result<(Database, DbAddress)> {
        let address = Address::parse_in_database(argument)?;
        Ok((self.open(&address.database)?, address))
    }

    /// Makes everything durable that was done so far (`CLI-8`).
    pub(crate) fn sync(&self) -> Result<()> {
        for (path, database) in &self.open {
            database
                .sync()
                .at(|| format!("cannot make '{}' durable", path.display()))?;
        }
        Ok(())
    }

    fn close(self) -> Result<()> {
        let mut result = Ok(());
        let mut directories = Vec::new();
        // The past before its present.
        for (path, database) in self.open.into_iter().rev() {
            if self.changes && database.history().shown().is_none() && !database.is_readonly() {
                directories.push(database.path().to_owned());
            }
            let closed = database
                .close()
                .at(|| format!("cannot close '{}'", path.display()));
            result = result.and(closed);
        }
        directories.iter().for_each(|path| await_mounts(path));
        result
    }
}

/// Waits until every mount of a database shows what is committed, and names those that do not
/// answer (`CLI-31`).
pub(crate) fn await_mounts(path: &Path) {
    match larder::await_followers(path, MOUNTS_WAIT) {
        Ok(late) => late.iter().for_each(|mount| {
            warn(&format!(
                "{mount} has not answered for {} s; until it goes on, it shows what was before",
                MOUNTS_WAIT.as_secs()
            ));
        }),
        // What was to be done is done.
        Err(error) => warn(&format!("{error}; mounts show it a moment later")),
    }
}

/// The same for a verb that reads and was told no timeout: who has the writer lock is asked to
/// commit first, and not waited for when it does not go on (`CLI-32`).
fn open_to_read(path: &Path, options: &DatabaseOptions) -> Result<Database> {
    let open = |birth| {
        let mut options = options.clone();
        options.engine.birth = birth;
        Database::open(path, options)
    };
    let is_busy = |error: &larder::Error| error.kind() == ErrorKind::Busy;
    let opened = match open(Birth::Within(MOUNTS_WAIT)) {
        Err(error) if is_busy(&error) => {
            warn(&format!(
                "'{}': {error}; going on with what is committed",
                path.display()
            ));
            match open(Birth::Beside) {
                // It has the catalog's write lock, too.
                Err(error) if is_busy(&error) => open(Birth::InCopy),
                opened => opened,
            }
        }
        opened => opened,
    };
    opened.at(|| format!("cannot open '{}'", path.display()))
}

/// Opens a database as a session that is called `label`, for a server: it waits for others whatever
/// the command was told.
pub(crate) fn open_database(path: &Path, label: &str) -> Result<Database> {
    open_with(path, server_options(label))
}

fn server_options(label: &str) -> DatabaseOptions {
    DatabaseOptions {
        label: label.into(),
        ..DatabaseOptions::default()
    }
}

fn options(label: &str) -> DatabaseOptions {
    let mut options = server_options(label);
    if let Some(wait_max) = WAIT_MAX.get() {
        options.engine.wait_max = *wait_max;
    }
    options
}

fn open_with(path: &Path, options: DatabaseOptions) -> Result<Database> {
    Database::open(path, options).at(|| format!("cannot open '{}'", path.display()))
}
