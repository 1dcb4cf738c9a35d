//! A transaction that its owner keeps open between calls, on the connection that writes.
//!
//! A *private* catalog ([`Catalog::open_private`]) has one owner. All its reads and writes go through one
//! connection, so the owner sees what its transaction has done, and nobody else does before the commit:
//! SQLite's log gives everybody else the state before.
//!
//! ```text
//!          begin_snapshot              take_write_lock
//!  idle ───────────────────▶ reading ──────────────────▶ writing ── commit_transaction ──▶ idle
//!    │                          └── stale: somebody committed ──┐       │ step by step
//!    └── begin_immediate ──▶ writing                            ▼       └── roll_back ───▶ idle
//!                                                      the owner rolls back
//! ```
//!
//! A *step* is what is a transaction of its own elsewhere: a group commit, a trial, a statement. Here it is a
//! savepoint, or as atomic by itself.
//!
//! `CATALOG-9` stands in the crate's header.

use crate::error::{At, BUSY_TIMEOUT, CatalogError, Result, sort};
use crate::read::rows;
use crate::schema::ENGINE_COLUMNS;
use crate::sql::{SqlRow, SqlValue, explain, line_column, run};
use crate::{Catalog, CatalogOptions, Writer, lock};
use rusqlite::fallible_iterator::FallibleIterator;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization};
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Batch, Connection, Statement, ToSql, ffi};
use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Where the owner's transaction is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Stage {
    /// There is none.
    #[default]
    Idle,
    /// It has a snapshot.
    Reading,
    /// It has the write lock.
    Writing,
}

/// How far an SQL text of a transaction came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SqlStep {
    /// The statement with this number, from 0, would write, and the transaction has no write lock. Those
    /// before it are done.
    NeedsLock(usize),
    /// To its end.
    Done {
        /// Rows that INSERT, UPDATE and DELETE changed.
        changed_count: u64,
        /// Whether any statement could write.
        has_written: bool,
    },
}

/// Pragmas that only tell something, and may be asked with an argument.
const PRAGMAS_THAT_TELL: [&str; 10] = [
    "table_info",
    "table_xinfo",
    "table_list",
    "index_list",
    "index_info",
    "index_xinfo",
    "foreign_key_list",
    "foreign_key_check",
    "function_list",
    "collation_list",
];

/// Runs `body` as one step: as a whole or not at all.
pub(crate) fn as_step<T>(
    connection: &Connection,
    body: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    require_open(connection)?;
    execute(connection, "SAVEPOINT larder_step").at("a step")?;
    let outcome = body(connection);
    if outcome.is_err() && !connection.is_autocommit() {
        execute(connection, "ROLLBACK TO larder_step").at("a step")?;
    }
    if !connection.is_autocommit() {
        execute(connection, "RELEASE larder_step").at("a step")?;
    }
    outcome
}

/// Runs `body` and takes it back.
pub(crate) fn as_trial(
    connection: &Connection,
    body: impl FnOnce(&Connection) -> Result<()>,
) -> Result<()> {
    require_open(connection)?;
    execute(connection, "SAVEPOINT larder_trial").at("a trial")?;
    let outcome = body(connection);
    if !connection.is_autocommit() {
        execute(connection, "ROLLBACK TO larder_trial").at("a trial")?;
        execute(connection, "RELEASE larder_trial").at("a trial")?;
    }
    outcome
}

fn execute(connection: &Connection, sql: &str) -> rusqlite::Result<()> {
    connection.prepare_cached(sql)?.execute([]).map(drop)
}

/// SQLite ends a transaction by itself where a constraint says `ON CONFLICT ROLLBACK`, and when the host is
/// out of memory or space.
fn require_open(connection: &Connection) -> Result<()> {
    match connection.is_autocommit() {
        false => Ok(()),
        true => Err(CatalogError::invalid(
            "SQLite rolled the transaction back; begin it again",
        )),
    }
}

fn savepoint_name(depth: usize) -> String {
    format!("larder_savepoint_{depth}")
}

/// What is known of the owner's SQL from compiling it.
#[derive(Default)]
pub(crate) struct Refusals {
    is_user: AtomicBool,
    /// Why the last statement was refused.
    why: Mutex<Option<String>>,
    /// The last statement changes something that a guard looks at.
    is_guarded: AtomicBool,
    guarded: Mutex<Guarded>,
}

/// Of one schema: where guards are, and statements that none of them looks at.
#[derive(Default)]
struct Guarded {
    schema_version: Option<i64>,
    /// Tables with guards, in lower case.
    tables: HashSet<String>,
    /// Those of them whose guards look at our columns only.
    stores: HashSet<String>,
    /// Statements that nothing guards.
    free: HashSet<String>,
}

impl Guarded {
    fn learn(&mut self, connection: &Connection, version: i64) -> Result<()> {
        if self.schema_version == Some(version) {
            return Ok(());
        }
        let names = |sql: &str| -> rusqlite::Result<HashSet<String>> {
            let names: Vec<String> = rows(connection, sql, [], |row| row.get(0))?;
            Ok(names.iter().map(|name| name.to_ascii_lowercase()).collect())
        };
        *self = Guarded {
            schema_version: Some(version),
            tables: names("SELECT DISTINCT tbl_name FROM sqlite_schema WHERE type = 'trigger'")
                .at("the triggers")?,
            stores: names("SELECT name FROM larder_store").at("larder_store")?,
            free: HashSet::new(),
        };
        Ok(())
    }

    fn looks_at(&self, action: &AuthAction<'_>) -> bool {
        let (table, column) = match action {
            AuthAction::Insert { table_name } | AuthAction::Delete { table_name } => {
                (table_name, None)
            }
            AuthAction::Update {
                table_name,
                column_name,
            } => (table_name, Some(*column_name)),
            _ => return false,
        };
        let table = table.to_ascii_lowercase();
        let is_users = |column: &str| {
            !ENGINE_COLUMNS
                .iter()
                .any(|ours| ours.eq_ignore_ascii_case(column))
        };
        self.tables.contains(&table)
            && !(self.stores.contains(&table) && column.is_some_and(is_users))
    }
}

impl Refusals {
    fn judge(&self, action: &AuthAction<'_>) -> Authorization {
        if !self.is_user.load(Ordering::Relaxed) {
            return Authorization::Allow;
        }
        if lock(&self.guarded).looks_at(action) {
            self.is_guarded.store(true, Ordering::Relaxed);
        }
        let why = match action {
            AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => {
                "BEGIN, COMMIT, ROLLBACK, SAVEPOINT and RELEASE are calls of the transaction, not statements in it"
            }
            AuthAction::Attach { .. } | AuthAction::Detach { .. } => {
                "no other database can be attached in a transaction"
            }
            AuthAction::Pragma {
                pragma_name,
                pragma_value,
            } if pragma_value.is_some()
                && !PRAGMAS_THAT_TELL
                    .iter()
                    .any(|tells| tells.eq_ignore_ascii_case(pragma_name)) =>
            {
                "settings cannot be changed in a transaction"
            }
            AuthAction::CreateTempTable { .. }
            | AuthAction::CreateTempIndex { .. }
            | AuthAction::CreateTempTrigger { .. }
            | AuthAction::CreateTempView { .. } => {
                "nothing temporary can be created in a transaction; use WITH, or a table"
            }
            _ => return Authorization::Allow,
        };
        *lock(&self.why) = Some(why.into());
        Authorization::Deny
    }
}

impl Catalog {
    /// Opens the catalog in `dir` for one owner, who keeps transactions open. Errors as
    /// [`Catalog::open`].
    pub fn open_private(dir: &Path, options: &CatalogOptions) -> Result<Catalog> {
        let mut catalog = Catalog::open(dir, options)?;
        catalog.is_private = true;
        let refusals = Arc::clone(&catalog.refusals);
        lock(&catalog.writer)
            .connection
            .authorizer(Some(move |context: AuthContext<'_>| {
                refusals.judge(&context.action)
            }))
            .at("the rules of a transaction")?;
        Ok(catalog)
    }

    fn enter(&self, writer: &mut Writer, begin: &str, stage: Stage) -> Result<bool> {
        debug_assert_eq!(writer.stage, Stage::Idle, "CATALOG-9");
        self.require_running()?;
        execute(&writer.connection, begin).at("the start of a transaction")?;
        writer.stage = stage;
        let seen = crate::data_version(&writer.connection)?; // Takes the snapshot.
        Ok(std::mem::replace(&mut writer.data_version, seen) != seen)
    }

    /// Begins a transaction: from here on the owner sees this moment. Says whether anybody else has
    /// committed since the owner's last transaction. 3 µs.
    pub fn begin_snapshot(&self) -> Result<bool> {
        self.enter(&mut lock(&self.writer), "BEGIN", Stage::Reading)
    }

    /// The same with the write lock, for which it waits up to 30 s.
    pub fn begin_immediate(&self) -> Result<bool> {
        let mut writer = lock(&self.writer);
        self.enter(&mut writer, "BEGIN IMMEDIATE", Stage::Writing)
    }

    /// Takes the write lock in a transaction that reads; `false` when its snapshot is not the present any
    /// more. Waits up to 30 s for an SQL client that has the lock.
    pub fn take_write_lock(&self) -> Result<bool> {
        let mut writer = lock(&self.writer);
        require_open(&writer.connection)?;
        let deadline = Instant::now() + BUSY_TIMEOUT;
        loop {
            // Changes nothing, but SQLite begins to write.
            let tried = execute(
                &writer.connection,
                "UPDATE larder_gate SET open = open WHERE id < 0",
            );
            let code = tried
                .as_ref()
                .err()
                .and_then(|error| error.sqlite_error())
                .map(|error| error.extended_code);
            match code {
                Some(ffi::SQLITE_BUSY_SNAPSHOT) => return Ok(false),
                Some(ffi::SQLITE_BUSY) if Instant::now() < deadline => {
                    // SQLite does not wait here: who commits meanwhile makes the snapshot old.
                    std::thread::sleep(Duration::from_millis(1));
                }
                _ => {
                    tried.at("the write lock")?;
                    writer.stage = Stage::Writing;
                    return Ok(true);
                }
            }
        }
    }

    /// Commits the transaction, durably. Any error rolls it back, but after
    /// [`CatalogError::CommitUnknown`] only reopening tells. Without changes: nothing is written.
    pub fn commit_transaction(&self) -> Result<()> {
        let mut writer = lock(&self.writer);
        require_open(&writer.connection)?;
        match execute(&writer.connection, "COMMIT") {
            Ok(()) => {
                writer.stage = Stage::Idle;
                Ok(())
            }
            Err(error) => {
                let error = self.sort_commit(error);
                end(&mut writer)?;
                Err(error)
            }
        }
    }

    /// Rolls the transaction back, if there is one.
    pub fn roll_back(&self) -> Result<()> {
        end(&mut lock(&self.writer))
    }

    /// Sets a savepoint inside of `depth` others.
    pub fn set_savepoint(&self, depth: usize) -> Result<()> {
        self.on_savepoint("SAVEPOINT", depth)
    }

    /// Takes back everything since the savepoint, which stays.
    pub fn roll_back_to(&self, depth: usize) -> Result<()> {
        self.on_savepoint("ROLLBACK TO", depth)?;
        lock(&self.writer).guards.forget();
        Ok(())
    }

    /// Forgets the savepoint and those after it; what was done since stays.
    pub fn release_savepoint(&self, depth: usize) -> Result<()> {
        self.on_savepoint("RELEASE", depth)
    }

    fn on_savepoint(&self, verb: &str, depth: usize) -> Result<()> {
        let writer = lock(&self.writer);
        require_open(&writer.connection)?;
        execute(
            &writer.connection,
            &format!("{verb} {}", savepoint_name(depth)),
        )
        .at("a savepoint")
    }

    /// Runs the statements of `sql`, without the first `skipped` ones, in the transaction, with the rights
    /// of an `sqlite3` shell, and appends the rows of their results to `rows`. `parameters`, if any, are
    /// those of its only statement. An error takes back the statement that failed, and names its place.
    pub fn execute_in_transaction(
        &self,
        sql: &str,
        parameters: &[SqlValue],
        skipped: usize,
        rows: &mut Vec<SqlRow>,
    ) -> Result<SqlStep> {
        let mut guard = lock(&self.writer);
        let writer = &mut *guard;
        require_open(&writer.connection)?;
        let refusals = &self.refusals;
        if !self.is_free(writer, sql)? {
            writer.guards.stand(&writer.connection)?;
        }
        refusals.is_user.store(true, Ordering::Relaxed);
        *lock(&refusals.why) = None;
        let may_write = writer.stage == Stage::Writing;
        let outcome = execute_all(
            &writer.connection,
            sql,
            parameters,
            skipped,
            may_write,
            rows,
        );
        refusals.is_user.store(false, Ordering::Relaxed);
        let refused = lock(&refusals.why).take();
        outcome.map_err(|error| match refused {
            Some(message) => CatalogError::Sql {
                message,
                position: None,
            },
            None => error,
        })
    }

    /// Whether `sql` is one statement that no guard looks at, so that the guards need not be switched on:
    /// after that every statement is compiled anew, about 0.2 ms.
    fn is_free(&self, writer: &Writer, sql: &str) -> Result<bool> {
        const FREE_MAX: usize = 1000;
        let connection = &writer.connection;
        let Some(version) = writer.guards.are_off(connection)? else {
            return Ok(false);
        };
        let Some(only) = single(sql) else {
            return Ok(false);
        };
        {
            let mut guarded = lock(&self.refusals.guarded);
            guarded.learn(connection, version)?;
            if guarded.free.contains(only) {
                return Ok(true);
            }
        }
        self.refusals.is_guarded.store(false, Ordering::Relaxed);
        self.refusals.is_user.store(true, Ordering::Relaxed);
        // Compiled and not run; its errors are told when it is.
        let is_valid = connection.prepare(only).is_ok();
        self.refusals.is_user.store(false, Ordering::Relaxed);
        let is_free = is_valid && !self.refusals.is_guarded.load(Ordering::Relaxed);
        let mut guarded = lock(&self.refusals.guarded);
        if is_free && guarded.free.len() < FREE_MAX {
            guarded.free.insert(only.to_owned());
        }
        Ok(is_free)
    }

    /// Whether the owner's transaction is open: SQLite may have rolled it back.
    pub fn is_in_transaction(&self) -> bool {
        !lock(&self.writer).connection.is_autocommit()
    }

    fn require_running(&self) -> Result<()> {
        match self.is_stopped.load(Ordering::Acquire) {
            false => Ok(()),
            true => Err(CatalogError::CommitUnknown {
                cause: "an earlier commit failed".into(),
            }),
        }
    }
}

fn end(writer: &mut Writer) -> Result<()> {
    let was_writing = std::mem::replace(&mut writer.stage, Stage::Idle) == Stage::Writing;
    if was_writing {
        writer.guards.forget();
    }
    match writer.connection.is_autocommit() {
        true => Ok(()),
        false => execute(&writer.connection, "ROLLBACK").at("the end of a transaction"),
    }
}

/// The text without its end, if that is one statement at most, for certain.
fn single(sql: &str) -> Option<&str> {
    let only = sql.trim_end_matches(|c: char| c.is_whitespace() || c == ';');
    (!only.contains(';')).then_some(only)
}

fn execute_all(
    connection: &Connection,
    sql: &str,
    parameters: &[SqlValue],
    skipped: usize,
    may_write: bool,
    rows: &mut Vec<SqlRow>,
) -> Result<SqlStep> {
    let mut done = Done::default();
    if let Some(only) = single(sql) {
        // One statement at most: it may be compiled already.
        let mut statement = connection
            .prepare_cached(only)
            .map_err(|error| explain(only, error))?;
        if !statement.readonly() && !may_write {
            return Ok(SqlStep::NeedsLock(0));
        }
        done.run(connection, only, &mut statement, parameters, rows)?;
        return Ok(done.step());
    }
    let mut batch = Batch::new(connection, sql);
    let mut number = 0;
    while let Some(mut statement) = batch.next().map_err(|error| explain(sql, error))? {
        if number > 0 && !parameters.is_empty() {
            return Err(CatalogError::Sql {
                message: "parameters go with one statement; run the others by calls of their own"
                    .into(),
                position: None,
            });
        }
        if !statement.readonly() && !may_write {
            return Ok(SqlStep::NeedsLock(number));
        }
        if number >= skipped {
            done.run(connection, sql, &mut statement, parameters, rows)?;
        }
        number += 1;
    }
    Ok(done.step())
}

#[derive(Default)]
struct Done {
    changed_count: u64,
    has_written: bool,
}

impl Done {
    fn run(
        &mut self,
        connection: &Connection,
        sql: &str,
        statement: &mut Statement<'_>,
        parameters: &[SqlValue],
        rows: &mut Vec<SqlRow>,
    ) -> Result<()> {
        if statement.parameter_count() != parameters.len() {
            return Err(CatalogError::Sql {
                message: format!(
                    "the statement has {} parameters and {} values were given",
                    statement.parameter_count(),
                    parameters.len()
                ),
                position: Some(line_column(sql, 0)),
            });
        }
        for (index, value) in parameters.iter().enumerate() {
            statement
                .raw_bind_parameter(index + 1, value)
                .map_err(|error| sort("a parameter", error))?;
        }
        let total_before = connection.total_changes();
        self.has_written |= !statement.readonly();
        let mut keep = |row| {
            rows.push(row);
            ControlFlow::Continue(())
        };
        run(statement, &mut keep)
            .map_err(|error| explain(sql, error))
            .map(drop)?;
        if connection.total_changes() != total_before {
            self.changed_count += connection.changes();
        }
        Ok(())
    }

    fn step(&self) -> SqlStep {
        SqlStep::Done {
            changed_count: self.changed_count,
            has_written: self.has_written,
        }
    }
}

impl ToSql for SqlValue {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(match self {
            SqlValue::Null => ValueRef::Null,
            SqlValue::Integer(number) => ValueRef::Integer(*number),
            SqlValue::Real(number) => ValueRef::Real(*number),
            SqlValue::Text(text) => ValueRef::Text(text.as_bytes()),
            SqlValue::Blob(bytes) => ValueRef::Blob(bytes),
        }))
    }
}
