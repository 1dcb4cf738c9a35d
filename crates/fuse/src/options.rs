//! How a database is mounted.

use crate::idmap::IdMap;
use larder_fuse_protocol::TransportChoice;
use std::time::Duration;

/// What a mount shows of the history of its database, below `.larder` in the root: `at/MOMENT/…`
/// for every moment that [`larder::parse_moment`] takes, `snapshots/NAME/…` for the snapshots. A
/// file or directory of the user's own with this name in the root is shown instead. A database
/// without a retention has no history, and no `.larder`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HistoryListing {
    /// It can be opened by its name, and is not listed: programs that walk through the tree do not
    /// meet it.
    #[default]
    Hidden,
    /// It is listed, last.
    Shown,
    /// It is not there.
    Off,
}

/// Who may use what is shown of history.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum HistoryAccess {
    /// Whom the permissions of then allow it, and those of now where the file is still there.
    #[default]
    Both,
    /// Whom the permissions of then allow it.
    Then,
    /// Root.
    Root,
}

/// Which readings change the time of access of what is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum AccessTimes {
    /// None (`noatime`).
    Never,
    /// The first one after a change, and the first one of a day (`relatime`).
    #[default]
    Relative,
    /// Every one (`strictatime`).
    Strict,
}

/// How a database is mounted.
#[derive(Debug, Clone)]
pub struct MountOptions {
    /// Refuses every change with `EROFS`.
    pub read_only: bool,
    /// Shows the database as of a moment, in the words of [`larder::parse_moment`], and nothing
    /// else: read-only, with locks of programs on this mount only. The moment stays readable while
    /// it is mounted. Default: the present.
    pub as_of: Option<String>,
    /// What is shown of history. Default: hidden.
    pub history: HistoryListing,
    /// Who may use it. Default: whom then and now allow it.
    pub history_access: HistoryAccess,
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
    /// Which readings change times of access. Default: as `relatime` of ext4. A mount that is
    /// read-only, or of the past, changes none.
    pub access_times: AccessTimes,
    /// Those of directories too. Default: yes; no is `nodiratime`.
    pub has_directory_times: bool,
    /// Threads that are always there to serve requests; 0: 16. When all of them wait, more come.
    pub threads: usize,
    /// How long the kernel trusts names and attributes. Default: 1 hour, since changes by others
    /// are told to the kernel when they happen.
    pub cache_ttl: Duration,
    /// Whose files the mount shows. Default: as they are stored.
    pub id_map: IdMap,
    /// Lets idmapped mounts of the kernel lie on top (Linux 6.12). Default: no, since the kernel
    /// then names the caller's user only where files are made: `trusted.` attributes are not listed
    /// to anybody, and traces lack the user.
    pub allows_idmap: bool,
    /// Locks of programs (fcntl, flock) hold across all mounts of the database. Default: yes;
    /// without it they hold on this mount only, and cost no request.
    pub shares_locks: bool,
    /// The mount is for a private mount namespace, in which it may lie over another one. Default:
    /// no.
    pub is_private: bool,
    /// How the kernel's requests come. Default: by `/dev/fuse`.
    pub transport: TransportChoice,
    /// Counts operations for [`crate::Monitor::metrics`]. Default: no; it costs a clock and a few
    /// atomics per operation.
    pub has_metrics: bool,
}

impl Default for MountOptions {
    fn default() -> MountOptions {
        MountOptions {
            read_only: false,
            as_of: None,
            history: HistoryListing::default(),
            history_access: HistoryAccess::default(),
            allow_other: rustix::process::geteuid().is_root(),
            suid: false,
            dev: false,
            exec: true,
            access_times: AccessTimes::default(),
            has_directory_times: true,
            threads: 0,
            cache_ttl: Duration::from_secs(3600),
            id_map: IdMap::default(),
            allows_idmap: false,
            shares_locks: true,
            is_private: false,
            transport: TransportChoice::default(),
            has_metrics: false,
        }
    }
}
