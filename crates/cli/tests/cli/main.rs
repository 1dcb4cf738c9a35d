//! The real `larder` on real databases, one module per family of verbs.
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod clone;
mod constraints;
mod damage;
mod feed;
mod files;
mod full;
mod history;
mod history_access;
mod hostile;
mod hostile_catalog;
mod hostile_code;
mod hostile_files;
mod hostile_mount;
mod kills;
mod lab;
mod life;
mod mount;
mod readme;
mod retention;
mod rows;
mod saves;
mod seal;
mod splice;
mod sql;
mod stops;
mod support;
mod swaps;
mod swaps_tools;
mod terminal;
mod time;
mod txn;
mod upkeep;
mod verbs;
mod visible;
mod watch;
