//! SQL of users on the connection of a catalog that has one owner.
//!
//! # Words
//! A *statement* is a part of a text; it is *inspected* before it is run: does it write, does it
//! call functions about files (`functions`), does it begin or end a transaction. The owner decides
//! by that what has to be done before.
//!
//! # Concurrency
//! While a statement runs, the functions that it calls have the owner read the catalog, on the same
//! connection: only so do they see what the statement sees. So the connection has two wrappers, the
//! owner's behind the mutex `writer` and the user's behind one of its own, and no call holds both
//! while a statement runs. SQLite was told to keep threads apart itself. Lock order: the user's,
//! then `writer`.

pub(crate) mod cascades;
pub(crate) mod client;
pub(crate) mod files_table;
mod judge;

use crate::commit::transaction::{Stage, require_open};
use crate::conn::connect::STATEMENTS_MAX;
use crate::conn::functions::{self, FilesSlot, SqlFiles};
use crate::conn::place::Place;
use crate::error::{At, CatalogError, Result, sort};
use crate::guards::{has_replacing_trigger, may_replace};
use crate::open::{Purpose, open_within};
use crate::past::as_of_views;
use crate::types::sql::{SqlRow, SqlValue, explain, line_column, run};
use crate::{CatalogOptions, CatalogSql, SqliteCatalog, lock};
use judge::Judge;
pub(crate) use judge::UserSide;
pub use judge::{SqlControl, SqlStatement};
use larder_directory::DatabaseDir;
use larder_format::CommitSeq;
use rusqlite::hooks::AuthContext;
use rusqlite::{Connection, ffi};
use std::collections::HashSet;
use std::ffi::c_int;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, Mutex};

impl SqliteCatalog {
    /// As [`SqliteCatalog::open_private_in`], by the path of the directory.
    pub fn open_private(
        dir: &Path,
        options: &CatalogOptions,
        is_shell: bool,
    ) -> Result<SqliteCatalog> {
        SqliteCatalog::open_private_in(Place::find(dir)?.directory(), options, is_shell)
    }

    /// Opens the catalog in `directory` for one owner, who keeps transactions open and runs SQL of
    /// users. Errors as [`SqliteCatalog::open`]. With `is_shell` the user may also change settings
    /// and make temporary tables.
    pub fn open_private_in(
        directory: &DatabaseDir,
        options: &CatalogOptions,
        is_shell: bool,
    ) -> Result<SqliteCatalog> {
        let purpose = match is_shell {
            true => Purpose::Shell,
            false => Purpose::Transactions,
        };
        let mut catalog = open_within(&Place::of(directory), options, purpose)?;
        let (code, watch) = {
            let guards = &lock(&catalog.writer).guards;
            (guards.code(), guards.watch())
        };
        let judge = Arc::new(Judge {
            is_shell,
            code,
            watch,
            ..Judge::default()
        });
        let files = FilesSlot::default();
        let user = {
            let mut writer = lock(&catalog.writer);
            let asked = Arc::clone(&judge);
            (writer.connection)
                .authorizer(Some(move |context: AuthContext<'_>| asked.judge(&context)))
                .at("the rules of a transaction")?;
            functions::register(&writer.connection, &files)
                .and_then(|()| files_table::register(&writer.connection, &files))
                .at("the functions about files")?;
            // SAFETY: the handle is that of `writer`, which lives as long as the catalog and is
            // dropped after `user`; it does not close what it does not own. Both may be used by any
            // thread: the connection was opened with SQLITE_OPEN_FULL_MUTEX.
            unsafe { Connection::from_handle(writer.connection.handle()) }
                .at("the user's side of a connection")?
        };
        user.set_prepared_statement_cache_capacity(STATEMENTS_MAX);
        catalog.user = Some(UserSide {
            connection: Mutex::new(user),
            judge,
            files,
        });
        Ok(catalog)
    }
}

impl CatalogSql<'_> {
    /// Has the SQL of the user see the tables of stores as they were after commit `seq`, and only
    /// those; the user's columns also as plain SQL left them after it up to the time `at_ns`. It
    /// lasts as long as the catalog is open. The commit is pinned
    /// ([`crate::CatalogPast::pin_past`]). Cost: about 1 ms.
    pub fn show_past(&self, seq: CommitSeq, at_ns: i64) -> Result<()> {
        let user = self.user_side()?;
        as_of_views::create(&lock(&self.catalog.writer).connection, seq, at_ns)?;
        *lock(&user.judge.present) = Some(HashSet::new());
        Ok(())
    }

    fn user_side(&self) -> Result<&UserSide> {
        self.catalog
            .user
            .as_ref()
            .ok_or_else(|| CatalogError::invalid("this catalog runs no SQL of users"))
    }

    /// The guards treat the statement that follows like an `sqlite3` shell. `text`: all of it, if
    /// it stands alone; `sql`: what it is a part of.
    fn stand_guard(
        &self,
        user: &UserSide,
        connection: &Connection,
        text: Option<&str>,
        sql: &str,
    ) -> Result<()> {
        // What REPLACE deletes, the authorizer does not tell.
        let replaces = may_replace(sql);
        let look = {
            let writer = lock(&self.catalog.writer);
            if writer.stage != Stage::Idle {
                require_open(&writer.connection)?;
            }
            writer.guards.are_off(&writer.connection)?
        };
        if let (Some(text), Some(look), false) = (text, look, replaces)
            && user.is_free(connection, text, look)?
        {
            return Ok(());
        }
        let mut writer = lock(&self.catalog.writer);
        let writer = &mut *writer;
        // A temporary trigger may replace as well, and only a shell has them.
        let replaces = replaces
            || (user.judge.is_shell
                && has_replacing_trigger(&writer.connection, "sqlite_temp_schema")?);
        writer.guards.stand(&writer.connection, replaces)
    }

    /// The statement of `sql` that begins at byte `at`; `None` when none is left. Errors name the
    /// place. Cost: compiles it; statements without `;` that stand alone stay compiled.
    pub fn inspect(&self, sql: &str, at: usize) -> Result<Option<SqlStatement>> {
        if let Some(byte) = sql.bytes().position(|byte| byte == 0) {
            return Err(CatalogError::invalid(format!(
                "the text has a NUL byte, at {byte}, behind which SQLite reads nothing; remove \
                 it, or write char(0)"
            )));
        }
        #[cfg(feature = "bundled")]
        let _unbounded = crate::conn::memory::unbounded();
        let user = self.user_side()?;
        let connection = lock(&user.connection);
        user.learn_present(&connection)?;
        let only = alone(sql).filter(|_| !user.judge.is_shell);
        self.stand_guard(user, &connection, only, sql)?;
        if let Some(text) = only {
            if at > 0 {
                return Ok(None);
            }
            let compile = || connection.prepare_cached(text).map(|one| one.readonly());
            let (is_read_only, found) = user.judge.ask(sql, 0, compile)?;
            return Ok(Some(SqlStatement {
                end: sql.len(),
                is_read_only,
                ..found.statement
            }));
        }
        let mut start = at;
        while start < sql.len() {
            let compile = || compile_first(&connection, &sql[start..]);
            let (first, found) = user.judge.ask(sql, start, compile)?;
            let end = start + first.length;
            if let Some(is_read_only) = first.is_read_only {
                return Ok(Some(SqlStatement {
                    start,
                    end,
                    is_read_only,
                    ..found.statement
                }));
            }
            start = end; // Nothing but blanks and comments.
        }
        Ok(None)
    }

    /// The first table whose rows a statement changes: the one that it names.
    pub(crate) fn find_changed(
        &self,
        sql: &str,
        statement: &SqlStatement,
    ) -> Result<Option<String>> {
        #[cfg(feature = "bundled")]
        let _unbounded = crate::conn::memory::unbounded();
        let user = self.user_side()?;
        let connection = lock(&user.connection);
        // One that was kept compiled would not be judged again.
        let compile = || compile_first(&connection, &sql[statement.start..statement.end]);
        let (_, found) = user.judge.ask(sql, statement.start, compile)?;
        Ok(found.changes)
    }

    /// Runs a statement of `sql` that was inspected, in the owner's transaction if there is one,
    /// with the rights of an `sqlite3` shell, and calls `on_row` for each row of its result until
    /// it breaks. `files` answers its functions. Returns how many rows INSERT, UPDATE and DELETE
    /// changed (triggers and cascades not counted), and whether `on_row` broke. An error takes back
    /// the statement.
    pub fn run(
        &self,
        sql: &str,
        statement: &SqlStatement,
        parameters: &[SqlValue],
        files: Option<Arc<dyn SqlFiles>>,
        on_row: &mut dyn FnMut(SqlRow) -> ControlFlow<()>,
    ) -> Result<(u64, ControlFlow<()>)> {
        let user = self.user_side()?;
        let connection = lock(&user.connection);
        user.learn_present(&connection)?;
        let only = alone(sql).filter(|_| !user.judge.is_shell);
        self.stand_guard(user, &connection, only, sql)?;
        #[cfg(feature = "bundled")]
        let _unbounded = crate::conn::memory::unbounded();
        let start = statement.start;
        let compile = || match only {
            Some(text) => connection.prepare_cached(text).map(Compiled::Cached),
            None => (connection.prepare(&sql[start..statement.end])).map(Compiled::Once),
        };
        let (mut compiled, _) = user.judge.ask(sql, start, compile)?;
        if compiled.parameter_count() != parameters.len() {
            return Err(CatalogError::Sql {
                message: format!(
                    "the statement has {} parameters and {} values were given",
                    compiled.parameter_count(),
                    parameters.len()
                ),
                position: Some(line_column(sql, start)),
            });
        }
        for (index, value) in parameters.iter().enumerate() {
            compiled
                .raw_bind_parameter(index + 1, value)
                .map_err(|error| sort("a parameter", error))?;
        }
        let total_before = connection.total_changes();
        let _lent = user.files.lend(files);
        let flow = run(&mut compiled, on_row).map_err(|error| explain(sql, start, error))?;
        drop(compiled);
        // `changes` keeps the count of the last INSERT, UPDATE or DELETE; was this one?
        let changed_count = match connection.total_changes() == total_before {
            true => 0,
            false => connection.changes(),
        };
        Ok((changed_count, flow))
    }
}

/// The text of `sql` if it is one statement at most, which may stay compiled: what is found out
/// while compiling it does not matter later.
fn alone(sql: &str) -> Option<&str> {
    let text = sql.trim_end_matches(|c: char| c.is_whitespace() || c == ';');
    let writes_files = || {
        let name = functions::WRITE.as_bytes();
        (text.as_bytes().windows(name.len())).any(|part| part.eq_ignore_ascii_case(name))
    };
    (!text.trim_start().is_empty() && !text.contains(';') && !writes_files()).then_some(text)
}

/// A compiled statement, which may be kept.
enum Compiled<'c> {
    Cached(rusqlite::CachedStatement<'c>),
    Once(rusqlite::Statement<'c>),
}

impl<'c> std::ops::Deref for Compiled<'c> {
    type Target = rusqlite::Statement<'c>;

    fn deref(&self) -> &rusqlite::Statement<'c> {
        match self {
            Compiled::Cached(statement) => statement,
            Compiled::Once(statement) => statement,
        }
    }
}

impl std::ops::DerefMut for Compiled<'_> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            Compiled::Cached(statement) => statement,
            Compiled::Once(statement) => statement,
        }
    }
}

/// The first statement of a text.
struct First {
    /// Bytes.
    length: usize,
    /// `None`: there is none, only blanks and comments.
    is_read_only: Option<bool>,
}

/// Compiles the first statement of `sql` and forgets it again.
fn compile_first(connection: &Connection, sql: &str) -> rusqlite::Result<First> {
    let Ok(length) = c_int::try_from(sql.len()) else {
        return Err(rusqlite::Error::SqliteFailure(
            ffi::Error::new(ffi::SQLITE_TOOBIG),
            Some("the text of the statements is too long; divide it".into()),
        ));
    };
    let mut statement = std::ptr::null_mut();
    let mut tail = std::ptr::null();
    // SAFETY: the handle is open while `connection` is borrowed; SQLite reads `length` bytes of
    // `sql` and sets `tail` to a place in them or behind them; `statement` is null or ours, and is
    // finalized once.
    let (code, first) = unsafe {
        let text = sql.as_ptr().cast();
        let code = ffi::sqlite3_prepare_v2(
            connection.handle(),
            text,
            length,
            &raw mut statement,
            &raw mut tail,
        );
        let is_read_only =
            (!statement.is_null()).then(|| ffi::sqlite3_stmt_readonly(statement) != 0);
        ffi::sqlite3_finalize(statement);
        let length = match tail.is_null() {
            true => sql.len(),
            false => tail.offset_from(text) as usize,
        };
        (
            code,
            First {
                length,
                is_read_only,
            },
        )
    };
    match code {
        ffi::SQLITE_OK => Ok(first),
        // The same again: this time the error comes with its message and place.
        _ => connection.prepare(sql).map(|_| first),
    }
}
