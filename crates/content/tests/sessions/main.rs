//! Several users of a database: transactions, sessions, SQL.
#![allow(clippy::unwrap_used)] // All of it is tests.

#[path = "../common/mod.rs"]
mod common;

mod constraints;
mod constraints_late;
mod constraints_model;
mod constraints_unique;
mod constraints_world;
mod content_faults;
mod everything_race;
mod feed;
mod foreign;
mod foreign_exact;
mod group_fsync;
mod races;
mod refusals;
mod review_transactions;
mod rows;
mod sessions;
mod sql;
mod sql_review;
mod sql_rows;
mod staging;
mod stress;
mod transactions;
mod workspaces;
mod workspaces_model;
