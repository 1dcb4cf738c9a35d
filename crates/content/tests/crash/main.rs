//! Power failures, faults of devices, and damage.
#![allow(clippy::unwrap_used)] // All of it is tests.

#[path = "../common/mod.rs"]
mod common;
#[path = "../support/mod.rs"]
mod support;

mod damage;
mod fault_scripts;
mod faults;
mod refused_crash;
mod replay;
mod transaction_crash;
