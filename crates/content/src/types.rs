//! Plain data that the Content API takes and returns.

use larder_object::InodeRow;
use larder_object::format::limits::BLOCK_BYTES;
use larder_object::format::{FileKind, Ino, Name, StoreId};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// An inode of a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct NodeId {
    /// The store.
    pub store: StoreId,
    /// The inode in it.
    pub ino: Ino,
}

impl NodeId {
    /// The root of the database: the root directory of store `main`.
    pub const ROOT: NodeId = NodeId {
        store: StoreId::MAIN,
        ino: Ino::ROOT,
    };
}

/// The attributes of a node. Times are nanoseconds since 1970 (UTC), negative before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metadata {
    /// Which node.
    pub node: NodeId,
    /// What it is.
    pub kind: FileKind,
    /// Permission bits with setuid, setgid, sticky: `0..=0o7777`.
    pub mode: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Number of names.
    pub nlink: u32,
    /// Logical length, bytes.
    pub size_bytes: u64,
    /// Space held, bytes (inline content: 0).
    pub allocated_bytes: u64,
    /// Last access.
    pub atime_ns: i64,
    /// Last change of content.
    pub mtime_ns: i64,
    /// Last change of content or attributes.
    pub ctime_ns: i64,
    /// Creation; of one node always the same.
    pub btime_ns: i64,
    /// Device number of device nodes (`makedev` encoding), else 0.
    pub rdev: u64,
    /// Flags of files and directories.
    pub flags: InodeFlags,
}

impl Metadata {
    /// Those of an empty node of root's, from 1970: what a provider of one's own begins with.
    pub fn new(node: NodeId, kind: FileKind, mode: u32) -> Metadata {
        Metadata {
            node,
            kind,
            mode,
            uid: 0,
            gid: 0,
            nlink: 1,
            size_bytes: 0,
            allocated_bytes: 0,
            atime_ns: 0,
            mtime_ns: 0,
            ctime_ns: 0,
            btime_ns: 0,
            rdev: 0,
            flags: InodeFlags::default(),
        }
    }

    /// Whether it is a directory.
    pub fn is_dir(&self) -> bool {
        self.kind == FileKind::Directory
    }

    /// Whether it is a regular file.
    pub fn is_file(&self) -> bool {
        self.kind == FileKind::File
    }

    /// Whether it is a symbolic link.
    pub fn is_symlink(&self) -> bool {
        self.kind == FileKind::Symlink
    }

    /// When its content was last changed.
    pub fn modified(&self) -> SystemTime {
        let from_1970 = Duration::from_nanos(self.mtime_ns.unsigned_abs());
        match self.mtime_ns {
            0.. => UNIX_EPOCH + from_1970,
            _ => UNIX_EPOCH - from_1970,
        }
    }

    /// The attributes that a row of a store table says.
    pub(crate) fn of(store: StoreId, row: InodeRow) -> Metadata {
        let is_device = matches!(row.kind, FileKind::CharDevice | FileKind::BlockDevice);
        Metadata {
            flags: InodeFlags::of(&row),
            node: NodeId {
                store,
                ino: row.ino,
            },
            kind: row.kind,
            mode: row.mode,
            uid: row.uid,
            gid: row.gid,
            nlink: row.nlink,
            size_bytes: row.size_bytes,
            allocated_bytes: row.block_count.saturating_mul(BLOCK_BYTES),
            atime_ns: row.atime_ns,
            mtime_ns: row.mtime_ns,
            ctime_ns: row.ctime_ns,
            btime_ns: row.btime_ns,
            rdev: if is_device { row.rdev } else { 0 },
        }
    }
}

/// Flags of an inode, in Linux's numbers (`FS_IMMUTABLE_FL` and others).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct InodeFlags(u32);

impl InodeFlags {
    /// Nothing of it may be changed.
    pub const IMMUTABLE: InodeFlags = InodeFlags(0x10);
    /// Nothing but additions.
    pub const APPEND: InodeFlags = InodeFlags(0x20);
    /// For dump(8), which leaves it out.
    pub const NO_DUMP: InodeFlags = InodeFlags(0x40);
    /// Reading it changes no time of access.
    pub const NO_ATIME: InodeFlags = InodeFlags(0x80);
    const ALL: u32 = 0xf0;
    /// What new files get from their directory.
    const INHERITED: u32 = 0xc0;

    /// `None`: others are among them.
    pub const fn from_bits(bits: u32) -> Option<InodeFlags> {
        match bits & !InodeFlags::ALL {
            0 => Some(InodeFlags(bits)),
            _ => None,
        }
    }

    /// The number.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Whether it has one of `flags`.
    pub const fn has(self, flags: InodeFlags) -> bool {
        self.0 & flags.0 != 0
    }

    pub(crate) const fn inherited(self) -> InodeFlags {
        InodeFlags(self.0 & InodeFlags::INHERITED)
    }

    /// What a row says. Where a device has its number, all others have their flags.
    pub(crate) fn of(row: &InodeRow) -> InodeFlags {
        match row.kind {
            FileKind::File | FileKind::Directory => {
                InodeFlags((row.rdev & u64::from(InodeFlags::ALL)) as u32)
            }
            _ => InodeFlags(0),
        }
    }
}

/// Who asks; new nodes belong to them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Caller {
    /// User id.
    pub uid: u32,
    /// Group id.
    pub gid: u32,
    /// Permission bits that new nodes do not get, unless their directory has a default ACL.
    pub umask: u32,
}

impl Caller {
    /// The user that runs this process; new nodes get the mode that is asked for.
    pub fn current() -> Caller {
        let (uid, gid) = larder_object::process_owner();
        Caller { uid, gid, umask: 0 }
    }
}

/// A new value for a time.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SetTime {
    /// The present.
    Now,
    /// Nanoseconds since 1970 (UTC).
    At(i64),
}

/// Attributes to change; `None` keeps. A change of `size_bytes` truncates or extends with a hole. A
/// change of owner or group takes the set-id bits and the capability of anything but a directory,
/// as Linux does for everybody, unless `mode` is given too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// Permission bits, `0..=0o7777`.
    pub mode: Option<u32>,
    /// Owner.
    pub uid: Option<u32>,
    /// Group.
    pub gid: Option<u32>,
    /// Logical length, bytes; regular files only.
    pub size_bytes: Option<u64>,
    /// Access time.
    pub atime: Option<SetTime>,
    /// Modification time.
    pub mtime: Option<SetTime>,
    /// Change time; normally the present. Only restores set it.
    pub ctime: Option<SetTime>,
    /// Drops the set-id bits as [`crate::FileHandle::drop_set_id`] does.
    pub drop_set_id: bool,
}

/// What [`crate::Nodes::create_node`] makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NewNode<'a> {
    /// An empty regular file.
    File,
    /// An empty directory.
    Directory,
    /// A symbolic link to these bytes, 1–4095.
    Symlink(&'a [u8]),
    /// A named pipe.
    Fifo,
    /// A Unix-domain socket.
    Socket,
    /// A character device with this device number.
    CharDevice(u64),
    /// A block device with this device number.
    BlockDevice(u64),
}

impl NewNode<'_> {
    /// The kind of node that this makes.
    pub fn kind(&self) -> FileKind {
        match self {
            NewNode::File => FileKind::File,
            NewNode::Directory => FileKind::Directory,
            NewNode::Symlink(_) => FileKind::Symlink,
            NewNode::Fifo => FileKind::Fifo,
            NewNode::Socket => FileKind::Socket,
            NewNode::CharDevice(_) => FileKind::CharDevice,
            NewNode::BlockDevice(_) => FileKind::BlockDevice,
        }
    }
}

/// One entry of a directory; `.` and `..` are never listed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry {
    /// The name.
    pub name: Name,
    /// What it names.
    pub node: NodeId,
    /// The kind of what it names.
    pub kind: FileKind,
}

/// What a rename does when the new name exists (`renameat2(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RenameMode {
    /// Replaces it.
    Replace,
    /// Fails with [`crate::ErrorKind::Exists`].
    NoReplace,
    /// Swaps the two; both must exist.
    Exchange,
    /// Replaces it, and leaves a character device 0:0 of the caller's at the old name, in the same
    /// step: to an overlay, that nothing is there (`RENAME_WHITEOUT`).
    Whiteout(Caller),
}

/// What to look for from an offset on (`lseek(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SeekTarget {
    /// The next byte that is not in a hole.
    Data,
    /// The next hole; the end of the file counts as one.
    Hole,
}

/// What to do with a range of a file (`fallocate(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AllocateMode {
    /// Makes sure that space is there; grows the file unless `keep_size`.
    Allocate {
        /// Keeps the logical length.
        keep_size: bool,
    },
    /// Makes a hole; never changes the logical length.
    PunchHole,
    /// Makes the range read as zero; grows the file unless `keep_size`.
    ZeroRange {
        /// Keeps the logical length.
        keep_size: bool,
    },
    /// Inserts a hole; what was there and behind moves on. Offset and length are multiples of the
    /// block, 4 KiB, and the offset lies before the end.
    InsertRange,
    /// Takes the range out; what is behind closes up. Offset and length are multiples of the block,
    /// and the range ends before the end.
    CollapseRange,
}

/// What setting an extended attribute may do (`setxattr(2)`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum XattrMode {
    /// Creates or replaces.
    Set,
    /// The same; an access ACL also takes the setgid bit, because it is set by somebody who is
    /// neither in the group nor privileged.
    SetDroppingSetgid,
    /// Fails with [`crate::ErrorKind::Exists`] when it exists.
    Create,
    /// Fails with [`crate::ErrorKind::NoAttribute`] when it does not.
    Replace,
}
