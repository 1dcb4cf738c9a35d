//! Real mounts of real databases. Needs `/dev/fuse`, and root or `fusermount3`.

mod common;
mod ids;
mod life;
mod posix;
