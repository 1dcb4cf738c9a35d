//! What a caller hands to the catalog and gets from it, and how it is written into columns.
//!
//! Nothing here opens a connection: a change set, the rows, names and values of SQL, times, and the
//! settings that a database keeps.

pub(crate) mod changes;
pub(crate) mod codec;
pub(crate) mod moment;
pub(crate) mod names;
pub(crate) mod retention_horizons;
pub(crate) mod rows;
pub(crate) mod sql;
pub(crate) mod sql_text;
pub(crate) mod tuning;
pub mod utc;
