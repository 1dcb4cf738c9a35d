//! Long transactions: an isolated view of a database in which files and rows may change for hours,
//! and nobody waits; then all of it becomes one commit, or nothing does.
//!
//! The view is a [`Database`] like any other: everything works on it, SQL and a mount too. Other
//! programs join by the environment: [`Database::open`] of the database that `LARDER_TXN` belongs
//! to opens the view.

use crate::database::{Database, DatabaseOptions};
use crate::environment::{TRANSACTION_VARIABLE, joined, uncovered};
use crate::rooms::Transactions;
use larder_object::{
    Error, ErrorKind, Result, TransactionInfo, TransactionOutcome, TransactionOwner,
    abort_transaction, begin_transaction, commit_transaction, list_transactions,
};
use std::path::{Path, PathBuf};

/// A long transaction of this process. Dropping it, or the end of the process, ends it without a
/// trace.
pub struct LongTransaction {
    /// `None` once it was closed.
    database: Option<Database>,
    owner: TransactionOwner,
    is_over: bool,
}

impl LongTransaction {
    /// Begins a long transaction on the database in directory `path`. Cost: a copy of its catalog.
    pub fn begin(path: &Path, options: DatabaseOptions) -> Result<LongTransaction> {
        refuse_nesting(path)?;
        let owner = begin_transaction(path, &options.label, true)?;
        let mut transaction = LongTransaction {
            database: None,
            owner,
            is_over: false,
        };
        transaction.database = Some(Database::open_here(&transaction.directory(), options)?);
        Ok(transaction)
    }

    /// Its number.
    pub fn id(&self) -> u64 {
        self.owner.id()
    }

    /// Its workspace: what others who join open.
    pub fn directory(&self) -> PathBuf {
        self.owner.directory()
    }

    /// The view.
    pub fn database(&self) -> Result<&Database> {
        self.database.as_ref().ok_or_else(|| {
            Error::new(
                ErrorKind::Stopped,
                "the transaction has ended; begin another one",
            )
        })
    }

    /// Makes all of it one commit of the database. When both sides changed the same, nothing is
    /// changed, the transaction ends, and the outcome lists all that is in the way: begin another
    /// one and try again. [`ErrorKind::Busy`] while another program, or another clone of the view,
    /// has it open; then it ends too. Cost: what was touched.
    pub fn commit(mut self) -> Result<TransactionOutcome> {
        if let Some(database) = self.database.take() {
            database.close()?;
        }
        // What is not committed is aborted by the drop.
        let outcome = commit_transaction(self.owner.parent(), self.owner.id())?;
        self.is_over = outcome == TransactionOutcome::Committed;
        Ok(outcome)
    }

    /// Ends it without a trace.
    pub fn abort(mut self) -> Result<()> {
        let closed = self.database.take().map_or(Ok(()), Database::close);
        let aborted = abort_transaction(self.owner.parent(), self.owner.id());
        self.is_over = aborted.is_ok();
        closed.and(aborted)
    }
}

impl Drop for LongTransaction {
    fn drop(&mut self) {
        if let Some(Err(error)) = self.database.take().map(Database::close) {
            tracing::warn!("closing a long transaction: {error}");
        }
        if self.is_over {
            return;
        }
        // What fails here is left to whoever opens the database next.
        if let Err(error) = abort_transaction(self.owner.parent(), self.owner.id()) {
            tracing::warn!("ending a long transaction: {error}");
        }
    }
}

impl Transactions<'_> {
    /// Begins a long transaction on this database; it sees what is committed.
    pub fn begin_long(&self, label: &str) -> Result<LongTransaction> {
        self.database.sync()?;
        let options = DatabaseOptions {
            label: label.into(),
            providers: (*self.database.shared.factories).clone(),
            ..DatabaseOptions::default()
        };
        LongTransaction::begin(self.database.shared.shown.view().path(), options)
    }

    /// The number of the long transaction whose view this is.
    pub fn long_id(&self) -> Option<u64> {
        self.database.shared.shown.view().transaction()
    }
}

/// Begins a long transaction that no process owns: it stays until it is committed or aborted.
/// Returns its number and its workspace.
pub fn begin_detached(path: &Path, label: &str) -> Result<(u64, PathBuf)> {
    refuse_nesting(path)?;
    let owner = begin_transaction(path, label, false)?;
    Ok((owner.id(), owner.directory()))
}

fn refuse_nesting(path: &Path) -> Result<()> {
    match joined(path)? {
        None => Ok(()),
        Some(_) => Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "this program is in a long transaction already ({TRANSACTION_VARIABLE}); commit \
                 that first"
            ),
        )),
    }
}

/// Commits a long transaction by its number. With conflicts it stays open.
pub fn commit_long(path: &Path, id: u64) -> Result<TransactionOutcome> {
    commit_transaction(&uncovered(path), id)
}

/// Ends a long transaction by its number, without a trace.
pub fn abort_long(path: &Path, id: u64) -> Result<()> {
    abort_transaction(&uncovered(path), id)
}

/// The long transactions of a database that are open.
pub fn list_long(path: &Path) -> Result<Vec<TransactionInfo>> {
    list_transactions(&uncovered(path))
}
