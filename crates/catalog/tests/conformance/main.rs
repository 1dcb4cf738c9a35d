//! The conformance suite: what every catalog promises, asked of each.
//!
//! A catalog of another kind is added to [`common::KINDS`], and to `same`, where each is compared
//! with the one in memory.
#![allow(clippy::unwrap_used)] // All of it is tests.

mod common;
mod features;
mod model;
mod same;
