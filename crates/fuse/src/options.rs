//! How a database is mounted.

use std::path::PathBuf;
use std::time::Duration;

/// How a database is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// The database directory: it names the mount in the table of mounts.
    pub database_path: PathBuf,
    /// Refuses every change with `EROFS`.
    pub read_only: bool,
    /// Lets other users than the one who mounts use the mount, within the permissions of its files.
    /// Default: for root. Others need `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Threads that are always there to serve requests; 0: 16. When all of them wait, more come.
    pub threads: usize,
    /// How long the kernel trusts names and attributes. Default: 1 hour, since changes by others
    /// are told to the kernel when they happen.
    pub cache_ttl: Duration,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            database_path: PathBuf::new(),
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            threads: 0,
            cache_ttl: Duration::from_secs(3600),
        }
    }
}
