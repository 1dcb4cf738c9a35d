//! What is measured, and how: nothing here knows a backend.

pub mod device;
pub mod fiemap;
pub mod holes;
pub mod latency;
pub mod layout;
pub mod markers;
