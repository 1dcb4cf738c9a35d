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

pub(crate) use columns::{ColumnsPair, Giving, give_columns};
pub use diff::{DiffChange, DiffEvent, DiffReport, diff};
pub use log::{LogChange, LogCommit, LogEvent};
pub(crate) use materialize::Materializer;
pub use restored::{RestoreAction, RestoreOptions, RestoreReport, RestoreStep};
pub use rollback::RollbackReport;
pub use rows::{RestoreRows, RowsReport};
pub use undo::UndoReport;
