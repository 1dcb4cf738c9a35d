//! SQL of users on an engine that serves transactions (`short`).

use crate::engine::EngineSql;
use crate::{Error, Result};
use larder_catalog::{SqlFiles, SqlRow, SqlStatement, SqlValue};
use larder_space::format::{CommitSeq, Ino, Name, StoreId};
use std::ops::ControlFlow;
use std::sync::Arc;

impl EngineSql<'_> {
    /// Has the SQL of this engine see the tables of stores as they were after a commit, and no
    /// others. Who asks for it keeps that commit readable ([`crate::open_as_of`]). The user's
    /// columns also as plain SQL left them after it up to the time `at_ns`.
    pub fn show_past(&self, seq: CommitSeq, at_ns: i64) -> Result<()> {
        Ok(self.catalog.sql()?.show_past(seq, at_ns)?)
    }

    /// The statement of `sql` that begins at byte `at`, before it runs; `None` when none is left.
    pub fn inspect_sql(&self, sql: &str, at: usize) -> Result<Option<SqlStatement>> {
        Ok(self.catalog.sql()?.inspect(sql, at)?)
    }

    /// Runs a statement in the transaction: it sees what the transaction has done to files, and
    /// they see what it does. A writing one takes the writer lock before. `files` answers its
    /// functions. Returns how many rows INSERT, UPDATE and DELETE changed, and whether `on_row`
    /// broke.
    pub fn run_in_transaction(
        &self,
        sql: &str,
        statement: &SqlStatement,
        parameters: &[SqlValue],
        files: Arc<dyn SqlFiles>,
        on_row: &mut dyn FnMut(SqlRow) -> ControlFlow<()>,
    ) -> Result<(u64, ControlFlow<()>)> {
        self.short_transaction().snapshot()?;
        if statement.writes() {
            self.short_transaction().lock_writer()?;
        }
        self.short_transaction().flush_to_catalog()?;
        self.note_rows_read();
        let outcome = self
            .catalog
            .sql()?
            .run(sql, statement, parameters, Some(files), on_row);
        if !statement.is_read_only {
            // Also after an error: what functions have read meanwhile was taken back with the
            // statement.
            self.rules().find_constraints()?;
            let _barrier = self.close_barrier();
            let _names = self.write_names();
            self.sessions().invalidate(false);
        }
        Ok(outcome?)
    }

    /// Whether a statement failed because it would delete rows of files by foreign keys.
    pub fn is_cascade(&self, sql: &str, statement: &SqlStatement, error: &Error) -> Result<bool> {
        let cause = std::error::Error::source(error).and_then(|cause| cause.downcast_ref());
        match cause {
            Some(cause) => Ok(self.catalog.sql()?.is_cascade(sql, statement, cause)?),
            None => Ok(false),
        }
    }

    /// Detaches the files that a statement would take with it by foreign keys from the rows that
    /// they refer to; all their names, to be removed after the statement: store, directory, name.
    pub fn detach_cascades(
        &self,
        sql: &str,
        statement: &SqlStatement,
        parameters: &[SqlValue],
        files: Arc<dyn SqlFiles>,
    ) -> Result<Vec<(StoreId, Ino, Name)>> {
        self.short_transaction().lock_writer()?;
        self.short_transaction().flush_to_catalog()?;
        let taken = self
            .catalog
            .sql()?
            .find_cascades(sql, statement, parameters, Some(files))?;
        self.catalog.sql()?.detach(&taken)?;
        let mut names = Vec::new();
        for (store, ino) in taken {
            let parents = self.catalog.tables().parents(store, ino)?.into_iter();
            names.extend(parents.map(|(parent, name)| (store, parent, name)));
        }
        Ok(names)
    }

    /// Runs a statement outside of any transaction of ours, as an `sqlite3` shell would. It sees
    /// all that ended before in this process, which is committed first if it waits for that. It can
    /// call no functions about files.
    pub fn run_beside(
        &self,
        sql: &str,
        statement: &SqlStatement,
        on_row: &mut dyn FnMut(SqlRow) -> ControlFlow<()>,
    ) -> Result<(u64, ControlFlow<()>)> {
        self.short_transaction()
            .private()?
            .host
            .commits()
            .sync_own()?;
        if !statement.is_read_only {
            self.short_transaction().note_changed_beside()?;
        }
        Ok(self.catalog.sql()?.run(sql, statement, &[], None, on_row)?)
    }
}
