//! What every catalog takes and gives, as plain data: the change set of a commit, rows, names,
//! moments, errors. Nothing here opens one.
//!
//! The catalogs themselves are in the crates above: `larder-catalog-sqlite`, and the one in memory
//! in `larder-catalog`, which is what the engine sees.

pub mod changes;
pub mod error;
pub mod feature;
pub mod moment;
pub mod names;
pub mod retention_horizons;
pub mod rows;
pub mod tuning;
pub mod utc;

pub use changes::{
    AttrMask, ChangeSet, CommitOutcome, DirentChange, Held, InodeChange, MapShare, Save, Sharing,
    XattrChange,
};
pub use error::{CatalogError, Result};
pub use feature::Feature;
pub use moment::{Moment, PastPin};
pub use names::{check_store_name, dirent_order};
pub use retention_horizons::RetentionHorizons;
pub use rows::{
    AccessTime, AgRow, ContentRow, DatabaseInfo, DatabaseInit, DirentRow, ExtentRow, FileContent,
    InodeRow, RedoRow, SegmentRow, SessionRow, SharedPages, SharedRow, StoreRow,
};
pub use tuning::Tuning;
