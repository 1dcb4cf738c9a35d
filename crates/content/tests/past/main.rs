//! Other moments: history, snapshots, clones, retention, and the models of them.
#![allow(clippy::unwrap_used)] // All of it is tests.

#[path = "../common/mod.rs"]
mod common;
#[path = "../support/mod.rs"]
mod support;
#[path = "../world/mod.rs"]
mod world;

mod asof;
mod authors;
mod clones;
mod clones_model;
mod clones_pages;
mod clones_past;
mod clones_past_model;
mod clones_past_redo;
mod clones_race;
mod clones_sessions;
mod golden;
mod history;
mod history_columns;
mod history_columns_model;
mod history_columns_verbs;
mod history_inodes;
mod history_review;
mod history_rows;
mod history_rows_review;
mod history_undo;
mod promote;
mod retention;
mod rollback;
mod saves;
mod saves_aside;
mod seals;
mod seals_model;
mod snapshot_reads;
mod sql_past;
mod steps;
mod store_retention;
mod store_retention_model;
mod store_retention_review;
mod time;
mod time_review;
