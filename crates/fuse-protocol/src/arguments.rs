//! The arguments of those requests that have more than a few.

use crate::values::{HandleNumber, Lock, LockOwner, NodeNumber, TimeOrNow};

/// GETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetAttr {
    /// The open file that was asked, if it was one.
    pub handle: Option<HandleNumber>,
}

/// STATX.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GetStatx {
    /// The open file that was asked, if it was one.
    pub handle: Option<HandleNumber>,
    /// `AT_STATX_*`.
    pub flags: u32,
    /// `STATX_*`: what the caller wants.
    pub mask: u32,
}

/// SETATTR: what is `None` stays.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct SetAttr {
    /// `st_mode`, with the type.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Length, bytes.
    pub size_bytes: Option<u64>,
    /// Last read.
    pub atime: Option<TimeOrNow>,
    /// Last change of content.
    pub mtime: Option<TimeOrNow>,
    /// Last change of anything, nanoseconds since 1970 (with the write-back cache only).
    pub ctime_ns: Option<i64>,
    /// The open file through which it is changed.
    pub handle: Option<HandleNumber>,
    /// Who holds the locks of that file.
    pub lock_owner: Option<LockOwner>,
    /// Set-id bits are to be cleared (`HANDLE_KILLPRIV_V2`).
    pub kill_suid_sgid: bool,
}

/// MKNOD, MKDIR, CREATE and TMPFILE: the node to make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Make {
    /// `st_mode`, with the type.
    pub mode: u32,
    /// The caller's umask; already applied unless `DONT_MASK` was negotiated.
    pub umask: u32,
    /// Device number, for MKNOD.
    pub rdev: u32,
}

/// OPEN, OPENDIR, CREATE and TMPFILE: how it is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpenFlags {
    /// `O_*` of open(2).
    pub flags: i32,
    /// Set-id bits are to be cleared because of `O_TRUNC`.
    pub kill_suid_sgid: bool,
}

impl OpenFlags {
    /// Whether it is opened for writing.
    pub const fn is_write(self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }

    /// Whether `flag` (an `O_*`) is set.
    pub const fn has(self, flag: i32) -> bool {
        self.flags & flag == flag
    }
}

/// READ. The buffer beside it has the length that is asked for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Read {
    /// The open file.
    pub handle: HandleNumber,
    /// Where from, bytes.
    pub offset: u64,
    /// Past the page cache: the data goes to a caller's own memory.
    pub is_direct: bool,
    /// Who reads; direct reads have one.
    pub lock_owner: Option<LockOwner>,
    /// `O_*` of the open file.
    pub flags: i32,
}

/// WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Write<'r> {
    /// The open file.
    pub handle: HandleNumber,
    /// Where to, bytes.
    pub offset: u64,
    /// What; begins at a multiple of 4096 in memory.
    pub data: &'r [u8],
    /// Pages written back: the handle and the caller are guesses of the kernel.
    pub is_from_cache: bool,
    /// Who writes.
    pub lock_owner: Option<LockOwner>,
    /// Set-id bits are to be cleared.
    pub kill_suid_sgid: bool,
    /// `O_*` of the open file.
    pub flags: i32,
}

/// RELEASE and RELEASEDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Release {
    /// What is closed.
    pub handle: HandleNumber,
    /// `O_*` of the open file.
    pub flags: i32,
    /// The holder of `flock` locks to drop, if there are any.
    pub flock_owner: Option<LockOwner>,
}

/// SETXATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetXattr<'r> {
    /// The name, with its namespace.
    pub name: &'r [u8],
    /// The value.
    pub value: &'r [u8],
    /// `XATTR_CREATE`, `XATTR_REPLACE` or 0.
    pub flags: i32,
    /// An ACL is set by somebody outside the group: the set-group-id bit is to be cleared.
    pub acl_kill_sgid: bool,
}

/// GETLK, SETLK and SETLKW.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct LockRequest {
    /// The open file.
    pub handle: HandleNumber,
    /// Who locks.
    pub owner: LockOwner,
    /// The lock.
    pub lock: Lock,
    /// A `flock` lock, not a POSIX one.
    pub is_flock: bool,
}

/// IOCTL, restricted: the kernel knows from `command` what goes in and out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Ioctl<'r> {
    /// The open file or directory.
    pub handle: HandleNumber,
    /// `FUSE_IOCTL_*`.
    pub flags: u32,
    /// The command.
    pub command: u32,
    /// The argument as the caller gave it: an address, or a number.
    pub argument: u64,
    /// What was copied from the caller.
    pub data: &'r [u8],
    /// Most bytes that the reply may have.
    pub out_bytes_max: u32,
}

/// FALLOCATE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fallocate {
    /// The open file.
    pub handle: HandleNumber,
    /// Where, bytes.
    pub offset: u64,
    /// How much, bytes.
    pub len_bytes: u64,
    /// `FALLOC_FL_*`.
    pub mode: i32,
}

/// COPY_FILE_RANGE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CopyRange {
    /// The open file to read.
    pub from: HandleNumber,
    /// Where from, bytes.
    pub from_offset: u64,
    /// The node to write.
    pub to_node: NodeNumber,
    /// The open file to write.
    pub to: HandleNumber,
    /// Where to, bytes.
    pub to_offset: u64,
    /// How much, bytes.
    pub len_bytes: u64,
}

/// RENAME and RENAME2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rename<'r> {
    /// Where it is.
    pub parent: NodeNumber,
    /// Its name there.
    pub name: &'r [u8],
    /// Where it shall be.
    pub new_parent: NodeNumber,
    /// Its name there.
    pub new_name: &'r [u8],
    /// `RENAME_*` of renameat2(2).
    pub flags: u32,
}
