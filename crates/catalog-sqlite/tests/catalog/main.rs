//! The catalog in SQLite: round trips, guards, and what only it can do.
#![allow(clippy::unwrap_used)] // All of it is tests.

#[path = "../common/mod.rs"]
mod common;

mod commit_numbers;
mod concurrency;
mod guards;
mod holders;
mod map_pages;
mod open;
mod pieces;
mod pre_images;
mod retentions;
mod round_trip;
mod rules;
mod sql;
mod surveys;
