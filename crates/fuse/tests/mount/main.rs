//! Real mounts of real databases. Needs `/dev/fuse`, and root or `fusermount3`.

mod common;
mod life;
mod pages;
mod posix;
