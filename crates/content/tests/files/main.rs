//! Names, content and space: what the Content API promises for files of the present.
#![allow(clippy::unwrap_used)] // All of it is tests.

#[path = "../common/mod.rs"]
mod common;

mod aging;
mod by_path;
mod compact;
mod delayed_allocation;
mod examples;
mod files;
mod fragments;
mod growth;
mod host_reserve;
mod listing;
mod log;
mod memory;
mod posix;
mod posix_limits;
mod put_get;
mod redo_rows;
mod review;
mod shrink;
mod shrink_race;
mod tuning;
