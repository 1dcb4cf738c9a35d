//! Running statements in the transaction that an engine serves.

use crate::database::Database;
use crate::sql_files::StatementFiles;
use larder_object::{Engine, Error, ErrorKind, Result, SqlRow, SqlStatement, SqlValue};
use std::ops::ControlFlow;
use std::sync::Arc;

/// What SQL answered.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct SqlResult {
    /// The rows of all results, in order.
    pub rows: Vec<SqlRow>,
    /// How many rows INSERT, UPDATE and DELETE changed (triggers and cascades not counted).
    pub changed_count: u64,
}

/// Who gets the rows; an error ends it all.
pub(super) type OnRow<'a> = &'a mut dyn FnMut(SqlRow) -> Result<()>;

/// Where a statement runs.
pub(crate) struct Place<'p> {
    /// What its transaction sees.
    pub(crate) view: &'p Database,
    /// The database beside the transaction, where other moments may be opened.
    pub(crate) host: Option<&'p Database>,
    /// What its functions tell of, if it is not the present.
    pub(crate) past: Option<&'p Database>,
}

/// Runs all statements of a text in the transaction that `engine` serves.
pub(crate) fn run_text(
    place: &Place<'_>,
    engine: &Engine,
    sql: &str,
    parameters: &[SqlValue],
) -> Result<SqlResult> {
    let mut result = SqlResult::default();
    let mut at = 0;
    while let Some(statement) = engine.sql().inspect_sql(sql, at)? {
        if at > 0 && !parameters.is_empty() {
            let why = "parameters go with one statement; run the others by calls of their own";
            return Err(Error::new(ErrorKind::Sql, why));
        }
        at = statement.end;
        let mut keep = |row| {
            result.rows.push(row);
            Ok(())
        };
        result.changed_count += run_one(place, engine, sql, &statement, parameters, &mut keep)?;
    }
    Ok(result)
}

/// Runs one statement in a transaction; returns how many rows it changed.
pub(super) fn run_one(
    place: &Place<'_>,
    engine: &Engine,
    sql: &str,
    statement: &SqlStatement,
    parameters: &[SqlValue],
    on_row: OnRow<'_>,
) -> Result<u64> {
    let files = StatementFiles::new(place.view, place.host, place.past);
    let mut run = || {
        let lent = Arc::clone(&files) as _;
        let done = with_rows(on_row, |on_row| {
            engine
                .sql()
                .run_in_transaction(sql, statement, parameters, lent, on_row)
        });
        // SQLite passes on only what its functions say, not what kind of failure it is.
        done.map_err(|error| files.take_failure().unwrap_or(error))
    };
    if statement.writes_files {
        return as_step(engine, || {
            let changed_count = run()?;
            files.write()?;
            Ok(changed_count)
        });
    }
    match run() {
        Err(error) if engine.sql().is_cascade(sql, statement, &error)? => as_step(engine, || {
            let lent = Arc::clone(&files) as _;
            let names = engine
                .sql()
                .detach_cascades(sql, statement, parameters, lent)?;
            let changed_count = run()?;
            files.remove(names)?;
            Ok(changed_count)
        }),
        done => done,
    }
}

/// Runs `work` as a whole or not at all (`CONTENT-8`).
pub(super) fn as_step<T>(engine: &Engine, work: impl FnOnce() -> Result<T>) -> Result<T> {
    engine.short_transaction().lock_writer()?;
    let before = engine.short_transaction().set_savepoint()?;
    let done = work();
    if done.is_err() {
        engine.short_transaction().roll_back_to(before)?; // CONTENT-8
    }
    engine.short_transaction().release_savepoint(before)?;
    done
}

/// Runs `work` with a callback that can only break; what `on_row` failed with comes out again.
pub(super) fn with_rows(
    on_row: OnRow<'_>,
    work: impl FnOnce(&mut dyn FnMut(SqlRow) -> ControlFlow<()>) -> Result<(u64, ControlFlow<()>)>,
) -> Result<u64> {
    let mut failed: Option<Error> = None;
    let (changed_count, _) = work(&mut |row| match on_row(row) {
        Ok(()) => ControlFlow::Continue(()),
        Err(error) => {
            failed = Some(error);
            ControlFlow::Break(())
        }
    })?;
    failed.map_or(Ok(changed_count), Err)
}
