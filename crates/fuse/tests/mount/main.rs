//! Real mounts of real databases. Needs `/dev/fuse`, and root or `fusermount3`.

mod alike;
mod arena;
mod common;
mod exact;
mod ids;
mod life;
mod locks;
mod model;
mod pages;
mod past;
mod posix;
mod rollback;
mod together;
