//! The databases that a command has open, and their orderly end (`CLI-7`).

use crate::address::{Address, DbAddress, split_moment};
use crate::error::{At, Result};
use larder::{Database, OpenOptions, parse_moment};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;
use std::time::Duration;

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

impl Databases {
    /// The database in directory `path`, opened on first use; with `@MOMENT` behind it, as of then (`CLI-30`).
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
        if let Some(wait_max) = WAIT_MAX.get() {
            options.engine.wait_max = *wait_max;
        }
        let database = open_with(path, options)?;
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
        // The past before its present.
        for (path, database) in self.open.into_iter().rev() {
            let closed = database
                .close()
                .at(|| format!("cannot close '{}'", path.display()));
            result = result.and(closed);
        }
        result
    }
}

/// Opens a database as a session that is called `label`, for a server: it waits for others whatever the command was told.
pub(crate) fn open_database(path: &Path, label: &str) -> Result<Database> {
    open_with(path, options(label))
}

fn options(label: &str) -> OpenOptions {
    OpenOptions {
        label: label.into(),
        ..OpenOptions::default()
    }
}

fn open_with(path: &Path, options: OpenOptions) -> Result<Database> {
    Database::open(path, options).at(|| format!("cannot open '{}'", path.display()))
}
