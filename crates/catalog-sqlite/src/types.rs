//! What a caller hands to the catalog and gets from it, and how it is written into columns.
//!
//! Nothing here opens a connection: names and values of SQL, and how the plain types of the crate
//! below become rows.

pub(crate) mod codec;
pub(crate) mod names;
pub(crate) mod sql;
pub(crate) mod sql_text;
pub(crate) mod tuning;

pub(crate) use larder_catalog_types::{changes, moment, retention_horizons, rows, utc};
