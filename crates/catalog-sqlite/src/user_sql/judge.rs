//! What a statement of the user's is, and whether it is refused: asked while it is compiled.

use crate::conn::functions::{self, FilesSlot};
use crate::conn::trust::Code;
use crate::error::{CatalogError, Result};
use crate::guards::guarded::Guarded;
use crate::guards::trigger_watch::Watch;
use crate::lock;
use crate::past::as_of_views;
use crate::types::sql::explain;
use rusqlite::Connection;
use rusqlite::hooks::{AuthAction, AuthContext, Authorization, TransactionOperation};
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

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

/// A statement that begins or ends a transaction.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum SqlControl {
    /// BEGIN.
    Begin,
    /// COMMIT or END.
    Commit,
    /// ROLLBACK, to the beginning.
    Rollback,
    /// SAVEPOINT with this name.
    Savepoint(String),
    /// RELEASE of the savepoint with this name.
    Release(String),
    /// ROLLBACK TO the savepoint with this name.
    RollbackTo(String),
}

/// What is known of a statement before it runs.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct SqlStatement {
    /// Where it begins in its text, bytes.
    pub start: usize,
    /// Where the next one begins.
    pub end: usize,
    /// It changes no table.
    pub is_read_only: bool,
    /// It calls functions about files, or reads the table `files`.
    pub uses_files: bool,
    /// It calls `write_content`.
    pub writes_files: bool,
    /// It begins or ends a transaction.
    pub control: Option<SqlControl>,
}

impl SqlStatement {
    /// Whether it changes rows or files.
    pub fn writes(&self) -> bool {
        !self.is_read_only || self.writes_files
    }
}

/// The user's side of an owner's connection.
pub(crate) struct UserSide {
    pub(super) connection: Mutex<Connection>,
    pub(super) judge: Arc<Judge>,
    pub(super) files: FilesSlot,
}

/// Looks at statements while they are compiled: what they are, and whether they are refused.
#[derive(Default)]
pub(super) struct Judge {
    /// A statement of the user's is being compiled.
    pub(super) is_asked: AtomicBool,
    /// The user may do what lasts longer than a transaction: settings, temporary tables.
    pub(super) is_shell: bool,
    /// Whose the code in the catalog is.
    pub(super) code: Code,
    /// Over what triggers do in the engine's own statements.
    pub(super) watch: Option<Arc<Watch>>,
    /// Where the tables of stores are those of a moment: what is still of the present
    /// (`past_views`).
    pub(super) present: Mutex<Option<HashSet<String>>>,
    pub(super) found: Mutex<Found>,
    pub(super) guarded: Mutex<Guarded>,
}

#[derive(Default)]
pub(super) struct Found {
    pub(super) statement: SqlStatement,
    /// The first table whose rows it changes: the one that it names.
    pub(super) changes: Option<String>,
    /// A trigger would run for something that it changes.
    pub(super) is_guarded: bool,
    pub(super) refusal: Option<String>,
}

impl Judge {
    pub(super) fn judge(&self, context: &AuthContext<'_>) -> Authorization {
        if !self.is_asked.load(Ordering::Relaxed) {
            return match &self.watch {
                Some(watch) => watch.judge(context),
                None => Authorization::Allow,
            };
        }
        let action = &context.action;
        let mut found = lock(&self.found);
        note(&mut found, action);
        found.is_guarded |= lock(&self.guarded).looks_at(action);
        let refused = (lock(&self.present).as_ref())
            .and_then(|present| as_of_views::refusal(context, present));
        let refused = match refusal(action) {
            Some(why) if !self.is_shell => Some(why.to_owned()),
            _ if changes_schema(context) => refused.or_else(|| self.code.refusal_of_change()),
            _ => refused.or_else(|| refusal_in_shell(action).map(str::to_owned)),
        };
        match refused {
            Some(why) => {
                found.refusal = Some(why);
                Authorization::Deny
            }
            None => Authorization::Allow,
        }
    }

    /// Runs `compile`; what was found out, or why it was refused.
    pub(super) fn ask<T>(
        &self,
        sql: &str,
        start: usize,
        compile: impl FnOnce() -> rusqlite::Result<T>,
    ) -> Result<(T, Found)> {
        *lock(&self.found) = Found::default();
        self.is_asked.store(true, Ordering::Relaxed);
        let compiled = compile();
        self.is_asked.store(false, Ordering::Relaxed);
        let mut found = std::mem::take(&mut *lock(&self.found));
        match (compiled, found.refusal.take()) {
            (Ok(compiled), _) => Ok((compiled, found)),
            (Err(_), Some(why)) => Err(refused(why)),
            (Err(error), None) => Err(self.hint(explain(sql, start, error))),
        }
    }

    /// Of the past some of the user's columns are not known: says why.
    pub(super) fn hint(&self, mut error: CatalogError) -> CatalogError {
        if let CatalogError::Sql { message, .. } = &mut error
            && message.starts_with("no such column")
            && lock(&self.present).is_some()
        {
            message.push_str(
                " (as of a moment; your own columns of a store are those that 'larder track' \
                 keeps since then)",
            );
        }
        error
    }
}

impl UserSide {
    /// The user may make temporary tables. (Where the past is shown they are ours.)
    pub(crate) fn makes_temporary(&self) -> bool {
        self.judge.is_shell && lock(&self.judge.present).is_none()
    }

    /// Where the past is shown, learns what is not of it: others may have made a table since.
    pub(super) fn learn_present(&self, connection: &Connection) -> Result<()> {
        let shows_past = lock(&self.judge.present).is_some();
        if shows_past {
            let names = as_of_views::names_of_present(connection)?;
            *lock(&self.judge.present) = Some(names);
        }
        Ok(())
    }

    /// Whether no guard looks at a statement (`guarded`), while the triggers are off.
    pub(super) fn is_free(&self, connection: &Connection, text: &str, look: u64) -> Result<bool> {
        {
            let mut guarded = lock(&self.judge.guarded);
            guarded.learn(connection, look)?;
            if let Some(is_free) = guarded.find(text) {
                return Ok(is_free);
            }
        }
        // Compiled and not run; its mistakes are told when it is.
        let asked = self.judge.ask(text, 0, || connection.prepare(text));
        let Ok((_, found)) = asked else {
            return Ok(false);
        };
        lock(&self.judge.guarded).remember(text, !found.is_guarded);
        Ok(!found.is_guarded)
    }
}

pub(super) fn refused(why: impl Into<String>) -> CatalogError {
    CatalogError::Sql {
        message: why.into(),
        position: None,
    }
}

pub(super) fn note(found: &mut Found, action: &AuthAction<'_>) {
    let statement = &mut found.statement;
    match action {
        AuthAction::Function { function_name } => {
            let is = |name: &&str| name.eq_ignore_ascii_case(function_name);
            statement.uses_files |= functions::NAMES.iter().any(is);
            statement.writes_files |= is(&functions::WRITE);
        }
        AuthAction::Read { table_name, .. } => {
            let is = |name: &&str| name.eq_ignore_ascii_case(table_name);
            statement.uses_files |= [functions::TABLE, functions::TABLE_AS_OF].iter().any(is);
        }
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::Update { table_name, .. } => {
            found.changes.get_or_insert_with(|| table_name.to_string());
        }
        AuthAction::Transaction { operation } => {
            statement.control = Some(match operation {
                TransactionOperation::Begin => SqlControl::Begin,
                TransactionOperation::Rollback => SqlControl::Rollback,
                _ => SqlControl::Commit,
            });
        }
        AuthAction::Savepoint {
            operation,
            savepoint_name,
        } => {
            let name = savepoint_name.to_string();
            statement.control = Some(match operation {
                TransactionOperation::Begin => SqlControl::Savepoint(name),
                TransactionOperation::Release => SqlControl::Release(name),
                _ => SqlControl::RollbackTo(name),
            });
        }
        _ => {}
    }
}

/// Why a transaction refuses it.
pub(super) fn refusal(action: &AuthAction<'_>) -> Option<&'static str> {
    match action {
        AuthAction::Transaction { .. } | AuthAction::Savepoint { .. } => Some(
            "BEGIN, COMMIT, ROLLBACK, SAVEPOINT and RELEASE are calls of the transaction, not \
             statements in it",
        ),
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => {
            Some("no other database can be attached in a transaction")
        }
        AuthAction::Pragma {
            pragma_name,
            pragma_value,
        } if pragma_value.is_some()
            && !PRAGMAS_THAT_TELL
                .iter()
                .any(|tells| tells.eq_ignore_ascii_case(pragma_name)) =>
        {
            Some("settings cannot be changed in a transaction")
        }
        AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempTrigger { .. }
        | AuthAction::CreateTempView { .. } => {
            Some("nothing temporary can be created in a transaction; use WITH, or a table")
        }
        _ => None,
    }
}

/// Whether it makes, alters or drops something of the catalog; SQLite's own tables, such as those
/// of ANALYZE, are none.
fn changes_schema(context: &AuthContext<'_>) -> bool {
    let is_ours = context.database_name == Some("main");
    match &context.action {
        AuthAction::CreateTable { table_name } | AuthAction::DropTable { table_name } => {
            is_ours && !table_name.starts_with("sqlite_")
        }
        AuthAction::CreateIndex { .. }
        | AuthAction::CreateTrigger { .. }
        | AuthAction::CreateView { .. }
        | AuthAction::CreateVtable { .. }
        | AuthAction::DropIndex { .. }
        | AuthAction::DropTrigger { .. }
        | AuthAction::DropView { .. }
        | AuthAction::DropVtable { .. } => is_ours,
        AuthAction::AlterTable { database_name, .. } => *database_name == "main",
        _ => false,
    }
}

/// Why a session refuses it, whose user may change settings.
pub(super) fn refusal_in_shell(action: &AuthAction<'_>) -> Option<&'static str> {
    match action {
        // CATALOG-3: without it no guard sees what REPLACE deletes; with it the engine's own
        // changes would run triggers of users again and again.
        AuthAction::Pragma {
            pragma_name,
            pragma_value: Some(_),
        } if pragma_name.eq_ignore_ascii_case("recursive_triggers") => Some(
            "larder switches recursive_triggers itself, on for statements that say REPLACE; leave \
             out this PRAGMA",
        ),
        _ => None,
    }
}
