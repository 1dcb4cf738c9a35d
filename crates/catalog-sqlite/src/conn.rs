//! A connection to SQLite: where its files lie, how its log is written and looked through, what it
//! may do and use, whom it waits for.
//!
//! A room below all tables: it knows `larder_meta`, where single values have keys, and no other.

pub(crate) mod confine;
pub(crate) mod connect;
pub(crate) mod functions;
pub(crate) mod generation;
pub(crate) mod log;
pub(crate) mod log_scan;
pub(crate) mod log_vfs;
#[cfg(feature = "bundled")]
pub(crate) mod memory;
pub(crate) mod meta;
pub(crate) mod place;
pub(crate) mod savepoint;
pub(crate) mod temporary;
#[cfg(feature = "bundled")]
pub(crate) mod text_functions;
pub(crate) mod trust;
pub mod waiting;
