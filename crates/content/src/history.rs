//! What the past is good for: what changed, where two states differ, and bringing back what was.
//!
//! # Words
//! A *net change* is what a whole commit, all steps of a transaction, made of one inode. An inode
//! is *there* while it has a name. A *comparison* walks two trees side by side, by path.
//!
//! # Invariants
//! * `CONTENT-10` A log tells each change of a name, of attributes and of content once, under the
//!   commit in which it happened; a file whose content was only moved to another place has not
//!   changed.
//! * `CONTENT-11` Two files that a comparison finds the same are the same byte for byte: the same
//!   inode of which nothing was written in between, or read and compared.
//! * `CONTENT-12` A restore is one transaction: afterwards all of it is as the past says, or as it
//!   was before. No file changes that is not named below the path; one that has other names too is
//!   one file.
//! * `ROLLBACK-2` A rollback is one transaction: afterwards names, inode numbers, attributes,
//!   times, extended attributes and content of the stores that it is about, and the rows of
//!   temporal tables, are what they were, or all is as it was before. What it undoes is history.
//!   What has no past stays, and the report names it.
//!
//! User columns have a past where their store's table is tracked (`TEMPORAL-4`). What comes back
//! brings them (`columns`), and so do clones.

mod columns;
mod compare;
mod diff;
mod inode_matching;
mod log;
mod materialize;
mod net_change;
mod promote;
mod restore;
mod restored;
mod rollback;
mod rows;
mod undo;

use crate::database::Database;
use crate::rooms::History;
use larder_object::{Moment, Result};

pub(crate) use columns::{ColumnsPair, Giving, give_columns};
pub use diff::{DiffChange, DiffEvent, DiffReport, diff};
pub use log::{LogChange, LogCommit, LogEvent};
pub(crate) use materialize::Materializer;
pub use restored::{RestoreAction, RestoreOptions, RestoreReport, RestoreStep};
pub use rollback::RollbackReport;
pub use rows::{RestoreRows, RowsReport};
pub use undo::UndoReport;

impl History<'_> {
    /// Restores what `path` named in `past`, another moment of this database, durably: names,
    /// kinds, modes, owners, times of access and modification, extended attributes, content, hard
    /// and symbolic links. What is there now and was not then stays, unless `is_exact`. Directories
    /// above `path` that are gone come back too, without the rest that was in them. What is still
    /// the same inode comes back from where it lies now, if that name had something else or the
    /// restore is exact; directories only in an exact one. User columns of a tracked store become
    /// what they were, unless `keeps_columns`; of one that is not they are kept where the inode is.
    /// A copy beside the original does not get what a unique index is about. Rows of temporal
    /// tables come back with it, or without a path; where a foreign key of theirs refers to an
    /// inode that is gone, they refer to the one that is in its place. It is one transaction, which
    /// keeps the writer lock meanwhile.
    ///
    /// Errors: [`crate::ErrorKind::NotFound`] when `path` was not there then;
    /// [`crate::ErrorKind::Exists`] when a directory stands where there was none, unless
    /// `is_exact`; [`crate::ErrorKind::Conflict`] when the number of a row was given to another
    /// that may not go; [`crate::ErrorKind::InvalidInput`] when `past` is no moment of this
    /// database. None leaves anything changed. Cost: a comparison ([`crate::diff`]); for every file
    /// that is made or differs what a clone costs ([`crate::Files::clone_path`]), and its copy
    /// where it cannot be shared.
    pub fn restore(
        &self,
        past: &Database,
        path: Option<&[u8]>,
        options: &RestoreOptions,
    ) -> Result<RestoreReport> {
        restore::restore(self.database, past, path, options)
    }

    /// Goes back to `moment`, durably: all stores and the rows and user columns of all temporal
    /// tables; with `path`, where a store is mounted, only that store. Names, hard links, inode
    /// numbers, attributes, all times, extended attributes and content become what they were, in
    /// one commit that keeps the writer lock meanwhile; what it undoes is history, so another
    /// rollback takes it back. Files that came later go, and stay readable for who has them open.
    /// Not what has no past: [`RollbackReport::left`]. Where content lies is not part of it. With
    /// `is_dry` only finds out.
    ///
    /// Errors: [`crate::ErrorKind::InvalidInput`] before the history begins, in the future, without
    /// history, and where `path` is no store's root; [`crate::ErrorKind::Busy`] while a long
    /// transaction is open; [`crate::ErrorKind::NoSpace`] when history could not give way to what
    /// has to be written; [`crate::ErrorKind::NotPermitted`] and [`crate::ErrorKind::Sql`] when a
    /// constraint of the user's refuses it. None leaves anything changed. Cost: one pass over the
    /// names of the stores, 30 µs per inode that changed since, and reading the content of those
    /// that were written since, of which is written what differs.
    pub fn rollback(
        &self,
        moment: &Moment,
        path: Option<&[u8]>,
        is_dry: bool,
    ) -> Result<RollbackReport> {
        rollback::rollback(self.database, moment, path, is_dry)
    }

    /// Takes back what commit `seq` did to files, as a commit of its own: a transaction as a whole.
    /// What was changed later beside it stays. With `is_dry` only finds out what would be done, and
    /// whether it conflicts. Times of directories are not taken back.
    ///
    /// Errors: [`crate::ErrorKind::Conflict`] names the paths that a later commit changed, and
    /// nothing is done; [`crate::ErrorKind::InvalidInput`] before the history begins and after the
    /// newest commit; [`crate::ErrorKind::Unsupported`] when the commit changed rows of temporal
    /// tables too; [`crate::ErrorKind::NotFound`] when it changed nothing that people see. Cost: a
    /// pass over the names of all stores, and what is taken back.
    pub fn undo(&self, seq: u64, is_dry: bool) -> Result<UndoReport> {
        undo::undo(self.database, seq, is_dry)
    }

    /// Exchanges the places of two directories of one store, or of two stores, durably, in one
    /// commit: what `path` named is at `other` from then on, and the other way round. Inode numbers
    /// stay with what they number, and names of stores and of their tables too, since they stand
    /// for the rows.
    ///
    /// Errors: [`crate::ErrorKind::NotADirectory`]; [`crate::ErrorKind::CrossStore`] for
    /// directories of two stores; [`crate::ErrorKind::InvalidInput`] for a store and a directory,
    /// for `main`, which is always at `/`, for one that lies in the other, and for twice the same;
    /// [`crate::ErrorKind::Busy`] when other stores are mounted in one of them.
    pub fn promote(&self, path: &[u8], other: &[u8]) -> Result<()> {
        promote::promote(self.database, path, other)
    }
}
