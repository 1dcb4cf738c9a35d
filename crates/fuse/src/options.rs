//! How a database is mounted.

use crate::idmap::IdMap;
use std::time::Duration;

/// How a database is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Refuses every change with `EROFS`.
    pub read_only: bool,
    /// Lets other users than the one who mounts use the mount, within the permissions of its files.
    /// Default: for root. Others need `user_allow_other` in `/etc/fuse.conf`.
    pub allow_other: bool,
    /// Obeys set-id bits of programs. Default: no, since whoever may write the catalog could make a
    /// set-uid program. Root only: others never get it.
    pub suid: bool,
    /// Lets device nodes be opened. Default: no, for the same reason. Root only.
    pub dev: bool,
    /// Lets programs be run. Default: yes.
    pub exec: bool,
    /// Threads that are always there to serve requests; 0: 16. When all of them wait, more come.
    pub threads: usize,
    /// How long the kernel trusts names and attributes. Default: 1 hour, since changes by others
    /// are told to the kernel when they happen.
    pub cache_ttl: Duration,
    /// Whose files the mount shows. Default: as they are stored.
    pub id_map: IdMap,
    /// Lets idmapped mounts of the kernel lie on top (Linux 6.12). Default: no, since the kernel then names
    /// the caller's user only where files are made: `trusted.` attributes are not listed to anybody, and
    /// traces lack the user.
    pub allows_idmap: bool,
    /// Locks of programs (fcntl, flock) hold across all mounts of the database. Default: yes; without it they
    /// hold on this mount only, and cost no request.
    pub shares_locks: bool,
    /// The mount is for a private mount namespace, in which it may lie over another one. Default: no.
    pub is_private: bool,
    /// Counts operations for [`crate::Monitor::metrics`]. Default: no; it costs a clock and a few atomics
    /// per operation.
    pub has_metrics: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            allow_other: rustix::process::geteuid().is_root(),
            suid: false,
            dev: false,
            exec: true,
            threads: 0,
            cache_ttl: Duration::from_secs(3600),
            id_map: IdMap::default(),
            allows_idmap: false,
            shares_locks: true,
            is_private: false,
            has_metrics: false,
        }
    }
}
