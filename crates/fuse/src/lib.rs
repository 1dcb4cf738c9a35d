//! The mount: kernel requests to calls of the Content API, and their results to replies.
//!
//! Nothing is decided here. A handler translates the arguments, makes the call, and sends the reply
//! or the errno; permissions are checked by the kernel (`default_permissions`).
//!
//! # Words
//! A *node number* is how the kernel names a [`larder::NodeId`]; it is also `st_ino`. A node or an
//! entry is *known* while the kernel may have it in a cache. A *ticket* marks a request whose reply
//! fills such a cache. *Notifications* tell the kernel to drop what it has cached. The *server* is
//! the thread that serves one mount, with its worker threads.
//!
//! # Invariants
//! * `FUSE-1` Every node and entry that the kernel may have cached is known, and after a foreign
//!   change all of them are invalidated that it may have made stale. No reply that was computed
//!   before the change reaches the kernel after its invalidation: the invalidation waits for the
//!   tickets that are older.
//! * `FUSE-2` Notifications are written by one thread of their own, which then holds no lock that a
//!   handler takes: the kernel may keep a notification waiting for a handler's reply. Only pages
//!   and attributes are dropped by a handler too, that of a direct write, under the same rule.
//! * `FUSE-3` The replies to fsync, fdatasync, fsyncdir and writes with `O_SYNC` or `O_DSYNC`
//!   follow the commit.
//! * `FUSE-4` An offset in a directory stays valid for as long as the directory is open.
//! * `FUSE-5` Every [`larder::ErrorKind`] has one errno; what the user cannot mend is logged.
//! * `FUSE-6` Only the mount that was made here is unmounted, never another one at its place.
//! * `FUSE-7` The mountpoint's lock is held until everything that was done through the mount is
//!   durable, every handle is closed and the session has ended; [`unmount`] waits for it.
//! * `FUSE-8` A page of the kernel's page cache holds nothing that a finished write has replaced,
//!   also where writes pass the page cache by; and no page that is written back takes what such a
//!   write has stored.
//! * `FUSE-9` A node of the past has a number that no node of the present has, nor one of another
//!   moment, nor of the same moment by another name, for as long as the kernel knows it.
//! * `FUSE-10` What is open in the past stays readable until it is closed, and a moment that is
//!   mounted until the mount has ended.
//! * `FUSE-11` What is below `.larder` cannot be changed, and nothing is moved or linked into it or
//!   out of it.
//! * `FUSE-12` A thread that may wait inside the kernel for what this process is to answer owns no
//!   descriptor but the device: a server that is killed lets go of all its locks at once, whatever
//!   that thread waits for.
//! * `FUSE-13` Unless the mount is told otherwise, nobody gets at a file of the past whom its
//!   permissions of then or, where it is still there, those of now keep out, whichever way leads to
//!   it, and whatever inode it was saved as; and who may not read the root lists no snapshots.
//! * `FUSE-18` A mount answers the request of a command (`BARRIER-1`) when the kernel was told of
//!   all that was committed before.
//! * `FUSE-19` A node lives until the kernel forgets it, whether it has a name or a handle or not.
//! * `FUSE-20` Reading and copying change times of access as `relatime` of Linux says, but that a
//!   file that is empty, or of which the kernel got pages, is read when it is opened for reading
//!   alone; nobody waits for it.
//! * `FUSE-21` What has the number of another node that is gone has another generation: a file
//!   handle opens what it was taken of, or nothing. A number comes again when a server is killed
//!   before it has committed what it made, and of the past with each mount.
//!
//! # Concurrency
//! Each worker reads requests from its own clone of the device and may block in the Content API.
//! Locks here are leaves: none is held during a call of the Content API, except a directory's
//! listing while it is read, the report of space while it is made, and a past while it is opened.
//!
//! # Recovery
//! A killed server leaves a mount that answers "Transport endpoint is not connected";
//! [`clean_stale`] detaches it, and [`mount`] does so by itself.

mod access;
mod arguments;
mod bridge;
mod company;
mod convert;
mod create;
mod errno;
mod filesystem;
mod flags;
#[cfg(fuzzing)]
pub mod fuzzing;
mod handles;
mod history;
mod holders;
mod idmap;
mod kept;
mod known;
mod locks;
mod metrics;
mod mount;
mod mountinfo;
mod notify;
mod options;
mod own_descriptors;
mod shared_memory;
mod streams;
mod trace;
mod tree;
mod unmount;
mod watch;

pub use holders::{Holder, Remaining, find_holders, name_of};
pub use idmap::{IdMap, IdRange, Ids, NewOwner, UNMAPPED};
pub use larder_fuse_protocol::{Errno, IoUringSupport, TransportChoice};
pub use metrics::{LATENCY_BOUNDS_NS, Metrics, MetricsSnapshot, OperationCounts};
pub use mount::{Mounted, mount};
pub use mountinfo::{MountInfo, find_all_mounts_of, find_mount, find_mounts_of, is_mounted};
pub use options::{AccessTimes, HistoryAccess, HistoryListing, MountOptions};
pub use own_descriptors::leave_descriptors;
pub use trace::{TraceEvent, TraceFilter, TraceListener, TraceMessage};
pub use unmount::{Unmounter, clean_stale, detach, make_durable, unmount};
pub use watch::{Monitor, error_name, operation_name, operation_number};
