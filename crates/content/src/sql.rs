//! SQL on a database: sessions, and statements in transactions.
//!
//! # Words
//! A *session* is what a person or program talks SQL to: [`Sql::open`]. A statement in it that
//! stands alone runs as in an `sqlite3` shell, on the catalog, and sees what ended before in this
//! process and what others have committed. Between BEGIN and COMMIT, and where a statement uses the
//! functions about files (`sql_files`), it runs in a short transaction of ours (`transaction`).
//!
//! ```text
//!  alone ──BEGIN, SAVEPOINT──▶ in a transaction ──COMMIT, ROLLBACK, RELEASE of the first──▶ alone
//!    │                                └── lost: conflict, too long, ROLLBACK by a rule ──▶ alone
//!    └── with functions about files: a transaction of its own ──▶ alone
//! ```
//!
//! # Invariants
//! * `CONTENT-8` A statement and the files that it writes happen as a whole or not at all; while it
//!   runs, no file changes, and what its functions tell of files is of the moment that it reads.

mod run;

use crate::active_transaction::Pool;
use crate::database::Database;
use crate::rooms::Sql;
use crate::transaction::{Transaction, TransactionOptions};
use larder_object::{
    Engine, Error, ErrorKind, Moment, Result, Savepoint, SqlControl, SqlRow, SqlStatement,
};
pub use run::SqlResult;
use run::{OnRow, run_one, with_rows};
pub(crate) use run::{Place, run_text};
use std::sync::Arc;
use std::time::Duration;

/// How long a transaction of a session may keep the writer lock while others wait for it.
const SESSION_WRITER_LOCK_MAX: Duration = Duration::from_secs(60);

/// An SQL session, with the rights of an `sqlite3` shell: the guard triggers hold for it. It waits
/// up to 30 s for other clients' locks. Beyond what SQLite has, it knows the functions about files
/// (docs/semantics.md, "SQL over content"). A statement that uses them, and what stands between
/// BEGIN and COMMIT, is a short transaction ([`crate::Transactions::begin`]). It keeps the database
/// open.
pub struct SqlSession {
    database: Database,
    /// What it sees of stores and their files, if it is not the present.
    past: Option<Database>,
    pool: Arc<Pool>,
    is_read_only: bool,
    transaction: Option<Transaction>,
    /// Those that the user has set in the transaction, oldest first.
    savepoints: Vec<(String, Savepoint)>,
    /// The transaction was begun by the first savepoint, and ends with it.
    is_of_savepoint: bool,
    has_written: bool,
}

impl Sql<'_> {
    /// An SQL session on the catalog. Alone, a statement sees all that ended before in this
    /// process, which it has committed first, and what others have committed. A `read_only`
    /// session can change nothing. Cost: opens the catalog once more, about 2 ms.
    pub fn open(&self, read_only: bool) -> Result<SqlSession> {
        self.session(None, read_only)
    }

    /// A read-only session that sees the tables of stores (`main`, `main_dirent`, `main_path`, …)
    /// and files as they were at a moment, which stays readable for as long. Of the user's columns
    /// those that are tracked since then are there; tables of the user's are refused by their
    /// names. Cost: [`Database::as_of`], and 3 ms. Errors as there.
    pub fn open_as_of(&self, moment: &Moment) -> Result<SqlSession> {
        self.session(Some(self.database.as_of(moment)?), true)
    }

    fn session(&self, past: Option<Database>, is_read_only: bool) -> Result<SqlSession> {
        let engine = self.database.whole()?;
        let is_read_only = is_read_only || engine.is_readonly();
        let shows = past
            .as_ref()
            .and_then(|past| past.shared.shown.view().moment().asked_ns());
        let pool = Arc::new(Pool::of_session(shows));
        pool.put(pool.take(engine)?);
        Ok(SqlSession {
            database: self.database.clone(),
            past,
            pool,
            is_read_only,
            transaction: None,
            savepoints: Vec::new(),
            is_of_savepoint: false,
            has_written: false,
        })
    }
}

impl SqlSession {
    /// Runs one or several statements; calls `on_row` for each row of a result; returns how many
    /// rows were inserted, updated or deleted (triggers and cascades not counted). Errors say where
    /// in the text they are. What the statements before did stays, unless they opened a
    /// transaction.
    pub fn execute(
        &mut self,
        sql: &str,
        on_row: &mut dyn FnMut(SqlRow) -> Result<()>,
    ) -> Result<u64> {
        let mut changed_count = 0;
        let mut at = 0;
        while let Some(statement) = self.inspect(sql, at)? {
            at = statement.end;
            self.has_written |= statement.writes();
            let done = match &statement.control {
                Some(control) => self.steer(sql, &statement, control).map(|()| 0),
                None => self.run(sql, &statement, on_row),
            };
            self.forget_lost();
            changed_count += done?;
            if let Some(past) = &self.past {
                // What was read counts only if it was kept till now.
                past.shared.shown.view().moment().require_shown()?;
            }
        }
        Ok(changed_count)
    }

    /// Whether `sql` ends a statement (and is not inside a string, comment or trigger): a shell
    /// asks for more lines otherwise.
    pub fn is_complete(sql: &str) -> bool {
        larder_object::is_complete_sql(sql)
    }

    /// Whether a statement was run that may have changed something.
    pub fn has_written(&self) -> bool {
        self.has_written
    }

    /// Whether a transaction is open.
    pub fn is_in_transaction(&self) -> bool {
        self.transaction.is_some()
    }

    fn inspect(&self, sql: &str, at: usize) -> Result<Option<SqlStatement>> {
        match &self.transaction {
            Some(transaction) => {
                let (_, active) = transaction.parts();
                active.enter(|| active.engine().sql().inspect_sql(sql, at))
            }
            None => self.alone(|engine| engine.sql().inspect_sql(sql, at)),
        }
    }

    /// Lends the engine, which serves no transaction now.
    fn alone<T>(&self, work: impl FnOnce(&Engine) -> Result<T>) -> Result<T> {
        let engine = self.pool.take(self.database.shared.shown.engine()?)?;
        let done = work(&engine);
        self.pool.put(engine);
        done
    }

    fn run(&self, sql: &str, statement: &SqlStatement, on_row: OnRow<'_>) -> Result<u64> {
        if self.is_read_only && statement.writes() {
            let why = match self.past {
                Some(_) => "the past cannot be changed; open a session on the present",
                None => "the session is read-only; open one that may write",
            };
            return Err(Error::new(ErrorKind::ReadOnly, why));
        }
        if let Some(transaction) = &self.transaction {
            return self.run_in(transaction, sql, statement, self.is_read_only, on_row);
        }
        if !statement.uses_files {
            let done = self.alone(|engine| {
                let done = with_rows(on_row, |on_row| {
                    engine.sql().run_beside(sql, statement, on_row)
                });
                match &done {
                    // Files go with the rows, which takes a transaction.
                    Err(error) if engine.sql().is_cascade(sql, statement, error)? => Ok(None),
                    _ => done.map(Some),
                }
            })?;
            if let Some(changed_count) = done {
                // What it has seen is durable when it is done.
                self.database
                    .shared
                    .shown
                    .engine()?
                    .commits()
                    .settle_flushes()?;
                return Ok(changed_count);
            }
        }
        let transaction = self.begin(statement.writes())?;
        let is_reading = !statement.writes();
        let changed_count = self.run_in(&transaction, sql, statement, is_reading, on_row)?;
        transaction.commit()?;
        Ok(changed_count)
    }

    fn run_in(
        &self,
        transaction: &Transaction,
        sql: &str,
        statement: &SqlStatement,
        opens_moments: bool,
        on_row: OnRow<'_>,
    ) -> Result<u64> {
        let (view, active) = transaction.parts();
        let place = Place {
            view,
            host: opens_moments.then_some(&self.database),
            past: self.past.as_ref(),
        };
        active.enter(|| run_one(&place, active.engine(), sql, statement, &[], on_row))
    }

    fn begin(&self, is_immediate: bool) -> Result<Transaction> {
        let options = TransactionOptions {
            is_immediate,
            writer_lock_max: SESSION_WRITER_LOCK_MAX,
        };
        self.database.transactions().begin_in(&self.pool, &options)
    }

    /// Begins, ends or goes back.
    fn steer(&mut self, sql: &str, statement: &SqlStatement, control: &SqlControl) -> Result<()> {
        let Some(transaction) = self.transaction.take() else {
            return self.begin_by(sql, statement, control);
        };
        match control {
            SqlControl::Commit => return self.end(transaction, true),
            SqlControl::Rollback => return self.end(transaction, false),
            _ => {}
        }
        let is_last = matches!(control, SqlControl::Release(name)
            if self.is_of_savepoint && self.find_savepoint(name) == Some(0));
        if is_last {
            return self.end(transaction, true);
        }
        let done = self.step(&transaction, control);
        self.transaction = Some(transaction);
        done
    }

    fn begin_by(
        &mut self,
        sql: &str,
        statement: &SqlStatement,
        control: &SqlControl,
    ) -> Result<()> {
        let text = &sql[statement.start..statement.end];
        let is_now = |word: &str| {
            ["IMMEDIATE", "EXCLUSIVE"]
                .iter()
                .any(|kind| word.trim_end_matches(';').eq_ignore_ascii_case(kind))
        };
        match control {
            SqlControl::Begin => {
                let is_immediate = text.split_whitespace().any(is_now);
                if is_immediate && self.is_read_only {
                    let why = "the session is read-only; BEGIN without IMMEDIATE";
                    return Err(Error::new(ErrorKind::ReadOnly, why));
                }
                self.transaction = Some(self.begin(is_immediate)?);
                Ok(())
            }
            SqlControl::Savepoint(_) => {
                let transaction = self.begin(false)?;
                self.step(&transaction, control)?;
                self.transaction = Some(transaction);
                self.is_of_savepoint = true;
                Ok(())
            }
            // SQLite says what is wrong.
            _ => self.alone(|engine| {
                let nobody = &mut |_| Ok(());
                with_rows(nobody, |on_row| {
                    engine.sql().run_beside(sql, statement, on_row)
                })
                .map(drop)
            }),
        }
    }

    fn step(&mut self, transaction: &Transaction, control: &SqlControl) -> Result<()> {
        let named = |session: &SqlSession, name: &str| {
            session.find_savepoint(name).ok_or_else(|| {
                Error::new(ErrorKind::Sql, format!("there is no savepoint '{name}'"))
            })
        };
        match control {
            SqlControl::Savepoint(name) => {
                let savepoint = transaction.savepoint()?;
                self.savepoints.push((name.clone(), savepoint));
                Ok(())
            }
            SqlControl::Release(name) => {
                let at = named(self, name)?;
                transaction.release(self.savepoints[at].1)?;
                self.savepoints.truncate(at);
                Ok(())
            }
            SqlControl::RollbackTo(name) => {
                let at = named(self, name)?;
                transaction.roll_back_to(self.savepoints[at].1)?;
                self.savepoints.truncate(at + 1);
                Ok(())
            }
            _ => Err(Error::new(
                ErrorKind::Sql,
                "a transaction is open already; COMMIT or ROLLBACK first",
            )),
        }
    }

    /// The newest savepoint of that name.
    fn find_savepoint(&self, name: &str) -> Option<usize> {
        let is_it = |(known, _): &(String, Savepoint)| known.eq_ignore_ascii_case(name);
        self.savepoints.iter().rposition(is_it)
    }

    fn end(&mut self, transaction: Transaction, is_commit: bool) -> Result<()> {
        self.savepoints.clear();
        self.is_of_savepoint = false;
        match is_commit {
            true => transaction.commit(),
            false => {
                transaction.abort();
                Ok(())
            }
        }
    }

    /// A transaction that was rolled back by itself is none.
    fn forget_lost(&mut self) {
        let is_lost = |transaction: &Transaction| transaction.parts().1.is_over();
        if self.transaction.as_ref().is_some_and(is_lost) {
            self.transaction = None;
            self.savepoints.clear();
            self.is_of_savepoint = false;
        }
    }
}

impl std::fmt::Debug for SqlSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SqlSession").finish_non_exhaustive()
    }
}
