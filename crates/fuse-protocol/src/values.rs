//! What requests and replies are made of: numbers, attributes, entries.

use crate::flags::FopenFlags;
use std::fmt;
use std::time::Duration;

/// How the kernel names a file, directory or other node of this filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeNumber(pub u64);

impl NodeNumber {
    /// The root of the mount.
    pub const ROOT: NodeNumber = NodeNumber(1);
    /// No node.
    pub(crate) const NONE: NodeNumber = NodeNumber(0);
}

impl fmt::Display for NodeNumber {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

/// What OPEN, CREATE and OPENDIR name an open file or directory; the kernel hands it back.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct HandleNumber(pub u64);

/// Who holds a lock: the same for all descriptors of a process, other for every process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct LockOwner(pub u64);

/// The types of directory entries.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// `S_IFREG`
    RegularFile,
    /// `S_IFDIR`
    Directory,
    /// `S_IFLNK`
    Symlink,
    /// `S_IFIFO`
    NamedPipe,
    /// `S_IFSOCK`
    Socket,
    /// `S_IFCHR`
    CharDevice,
    /// `S_IFBLK`
    BlockDevice,
}

impl FileType {
    /// The bits of `st_mode`.
    pub const fn mode_bits(self) -> u32 {
        match self {
            FileType::RegularFile => libc::S_IFREG,
            FileType::Directory => libc::S_IFDIR,
            FileType::Symlink => libc::S_IFLNK,
            FileType::NamedPipe => libc::S_IFIFO,
            FileType::Socket => libc::S_IFSOCK,
            FileType::CharDevice => libc::S_IFCHR,
            FileType::BlockDevice => libc::S_IFBLK,
        }
    }

    /// The type in a mode; a mode without one is that of a regular file.
    pub const fn of_mode(mode: u32) -> Option<FileType> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => FileType::RegularFile,
            libc::S_IFDIR => FileType::Directory,
            libc::S_IFLNK => FileType::Symlink,
            libc::S_IFIFO => FileType::NamedPipe,
            libc::S_IFSOCK => FileType::Socket,
            libc::S_IFCHR => FileType::CharDevice,
            libc::S_IFBLK => FileType::BlockDevice,
            _ => return None,
        })
    }

    /// `d_type` of readdir(3).
    pub(crate) const fn dirent_type(self) -> u32 {
        self.mode_bits() >> 12
    }
}

/// The attributes of a node. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Attr {
    /// Its number; also `st_ino`.
    pub node: NodeNumber,
    /// Length, bytes.
    pub size_bytes: u64,
    /// Allocated, units of 512 bytes.
    pub blocks: u64,
    /// Last read.
    pub atime_ns: i64,
    /// Last change of content.
    pub mtime_ns: i64,
    /// Last change of anything.
    pub ctime_ns: i64,
    /// When it was made; only STATX asks for it.
    pub btime_ns: i64,
    /// What it is.
    pub kind: FileType,
    /// Permission bits, 12 of them.
    pub permissions: u32,
    /// Hard links.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number, for device nodes, in the kernel's 32-bit encoding.
    pub rdev: u32,
    /// `st_blksize`, bytes.
    pub block_bytes: u32,
}

/// The reply to GETATTR and SETATTR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AttrReply {
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may believe them.
    pub ttl: Duration,
}

/// The reply to STATX: all of the basic fields and the time of birth are filled.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct StatxReply {
    /// The attributes.
    pub attr: Attr,
    /// How long the kernel may believe them.
    pub ttl: Duration,
}

/// The reply that tells what a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The node, with a lookup counted for it; `None`: there is no such name, which the kernel may
    /// believe for `entry_ttl` (an `ENOENT` is not cached).
    pub attr: Option<Attr>,
    /// Tells two nodes with one number apart.
    pub generation: u64,
    /// How long the kernel may believe the name.
    pub entry_ttl: Duration,
    /// How long the kernel may believe the attributes.
    pub attr_ttl: Duration,
}

/// The reply to OPEN and OPENDIR.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opened {
    /// What the kernel hands back with every request on it.
    pub handle: HandleNumber,
    /// How the kernel shall treat it.
    pub flags: FopenFlags,
    /// With [`FopenFlags::PASSTHROUGH`]: the id of the backing file, see [`crate::Backing`]; else
    /// 0.
    pub backing_id: i32,
}

impl Opened {
    /// A reply without a backing file.
    pub const fn new(handle: HandleNumber, flags: FopenFlags) -> Opened {
        Opened {
            handle,
            flags,
            backing_id: 0,
        }
    }
}

/// The reply to WRITE.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Written(pub u32);

/// The reply to STATFS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Statfs {
    /// All blocks.
    pub blocks: u64,
    /// Free blocks.
    pub free_blocks: u64,
    /// Free blocks for ordinary users.
    pub available_blocks: u64,
    /// All inodes.
    pub files: u64,
    /// Free inodes.
    pub free_files: u64,
    /// Bytes of a block.
    pub block_bytes: u32,
    /// Longest name, bytes.
    pub name_bytes_max: u32,
}

/// A lock on a range of a file, or a `flock` on all of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Lock {
    /// First byte.
    pub start: u64,
    /// Last byte, inclusive; `i64::MAX` for the end of the file.
    pub end: u64,
    /// `F_RDLCK`, `F_WRLCK` or `F_UNLCK`.
    pub kind: i32,
    /// The process, for GETLK.
    pub pid: u32,
}

/// The reply to IOCTL.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct IoctlReply {
    /// What ioctl(2) returns.
    pub result: i32,
    /// What is copied to the caller, at most `Ioctl::out_bytes_max` of [`crate::Ioctl`].
    pub data: Vec<u8>,
}

/// A time to set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TimeOrNow {
    /// The time at which the request is served.
    Now,
    /// Nanoseconds since 1970.
    At(i64),
}

/// Nanoseconds since 1970 of the kernel's two parts; saturates in 1677 and 2262.
pub(crate) fn time_ns(seconds: i64, nanoseconds: u32) -> i64 {
    let total = i128::from(seconds) * 1_000_000_000 + i128::from(nanoseconds);
    total.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

/// The kernel's two parts of a time.
pub(crate) fn time_parts(time_ns: i64) -> (i64, u32) {
    (
        time_ns.div_euclid(1_000_000_000),
        time_ns.rem_euclid(1_000_000_000) as u32,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        assert_eq!(time_ns(-2, 800_000_000), -1_200_000_000);
        assert_eq!(time_parts(-1_200_000_000), (-2, 800_000_000));
        assert_eq!(time_ns(2, 5), 2_000_000_005);
        assert_eq!(time_ns(1 << 40, 0), i64::MAX);
        assert_eq!(time_ns(i64::MIN, 0), i64::MIN);
        for time in [i64::MIN, -1, 0, 1, i64::MAX] {
            let (seconds, nanoseconds) = time_parts(time);
            assert_eq!(time_ns(seconds, nanoseconds), time);
        }
    }

    #[test]
    fn types_are_those_of_modes() {
        assert_eq!(FileType::of_mode(0o644), Some(FileType::RegularFile));
        assert_eq!(FileType::of_mode(libc::S_IFSOCK), Some(FileType::Socket));
        assert_eq!(FileType::of_mode(0o170_000), None);
        assert_eq!(FileType::Symlink.dirent_type(), u32::from(libc::DT_LNK));
        assert_eq!(FileType::Directory.dirent_type(), u32::from(libc::DT_DIR));
    }
}
