//! SQL sessions for people and applications, beside the engine: they see what is committed.

use crate::engine::Engine;
use crate::{Error, Result};
use larder_catalog::SqlRow;
use std::ops::ControlFlow;

/// A connection to the catalog. It waits up to 30 s for locks; the guard triggers hold for it.
pub struct SqlSession {
    inner: larder_catalog::SqlSession,
}

impl SqlSession {
    /// Runs one or several statements; calls `on_row` for each row of a result; returns how many
    /// rows were inserted, updated or deleted. Errors say where in the text they are. What the
    /// statements before did stays, unless they opened a transaction.
    pub fn execute(
        &mut self,
        sql: &str,
        on_row: &mut dyn FnMut(SqlRow) -> Result<()>,
    ) -> Result<u64> {
        let mut failed: Option<Error> = None;
        let changed = self.inner.execute(sql, &mut |row| match on_row(row) {
            Ok(()) => ControlFlow::Continue(()),
            Err(error) => {
                failed = Some(error);
                ControlFlow::Break(())
            }
        })?;
        failed.map_or(Ok(changed), Err)
    }

    /// Whether `sql` ends a statement (and is not inside a string, comment or trigger): a shell
    /// asks for more lines otherwise.
    pub fn is_complete(sql: &str) -> bool {
        larder_catalog::SqlSession::is_complete(sql)
    }
}

impl Engine {
    /// An SQL session beside the engine.
    pub fn sql_session(&self, read_only: bool) -> Result<SqlSession> {
        Ok(SqlSession {
            inner: self.catalog.sql_session(read_only)?,
        })
    }
}
