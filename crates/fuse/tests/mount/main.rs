//! Real mounts of real databases. Needs `/dev/fuse`, and root or `fusermount3`.

mod access;
mod alike;
mod arena;
mod as_of;
mod as_of_access;
mod carried;
mod common;
mod company;
mod company_model;
mod containers;
mod direct;
mod exact;
mod flags;
mod held;
mod ids;
mod life;
mod locks;
mod model;
mod pages;
mod posix;
mod rings;
mod rollback;
mod saves;
#[allow(clippy::unwrap_used, dead_code)] // What the tests of the Content API have in common.
#[path = "../../../content/tests/support/mod.rs"]
mod support;
mod times;
mod together;
#[allow(clippy::unwrap_used)] // Shared with the tests of the Content API.
#[path = "../../../content/tests/world/mod.rs"]
mod world;
