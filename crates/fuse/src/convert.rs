//! The kernel's words for ours: node numbers, attributes, times, names. Pure.

use fuser::{Errno, FileAttr, FileType, INodeNo, TimeOrNow};
use larder::{Attr, FileKind, Ino, Name, NameError, NodeId, SetTime, StoreId};
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Inode numbers have this many bits in a node number; the store has the 16 above.
pub(crate) const INO_BITS: u32 = 48;

/// The block size that `stat` and `statfs` report, bytes.
pub(crate) const BLOCK_BYTES: u64 = larder::limits::BLOCK_BYTES;

/// How the kernel names a node: `store << 48 | ino`, so the root is 1 and in the default store
/// `st_ino` is column `ino`. `EOVERFLOW` for a store or inode beyond the bits it has.
pub(crate) fn node_number(node: NodeId) -> Result<INodeNo, Errno> {
    if u64::from(node.store.0) >> (u64::BITS - INO_BITS) != 0 || node.ino.0 >> INO_BITS != 0 {
        return Err(Errno::EOVERFLOW);
    }
    Ok(INodeNo(u64::from(node.store.0) << INO_BITS | node.ino.0))
}

/// The node that a node number names.
pub(crate) fn node_of(number: INodeNo) -> NodeId {
    NodeId {
        store: StoreId((number.0 >> INO_BITS) as u32),
        ino: Ino(number.0 & ((1 << INO_BITS) - 1)),
    }
}

/// A name from the kernel. The kernel has split the path already; what is left to refuse is length.
pub(crate) fn name_of(name: &OsStr) -> Result<Name, Errno> {
    Name::new(name.as_bytes()).map_err(|error| match error {
        NameError::TooLong => Errno::ENAMETOOLONG,
        NameError::Empty | NameError::Reserved | NameError::Forbidden => Errno::EINVAL,
    })
}

/// Attributes as the kernel wants them.
pub(crate) fn file_attr(attr: &Attr) -> Result<FileAttr, Errno> {
    Ok(FileAttr {
        ino: node_number(attr.node)?,
        size: attr.size_bytes,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime: system_time(attr.atime_ns),
        mtime: system_time(attr.mtime_ns),
        ctime: system_time(attr.ctime_ns),
        crtime: system_time(attr.btime_ns),
        kind: file_type(attr.kind),
        perm: (attr.mode & 0o7777) as u16,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's 32-bit encoding is `makedev` for every number it can hold.
        rdev: attr.rdev as u32,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    })
}

/// The attributes of `.` and `..` in a listing: the kernel reads only the number and the type.
pub(crate) fn bare_directory_attr(number: INodeNo) -> FileAttr {
    FileAttr {
        ino: number,
        size: 0,
        blocks: 0,
        atime: UNIX_EPOCH,
        mtime: UNIX_EPOCH,
        ctime: UNIX_EPOCH,
        crtime: UNIX_EPOCH,
        kind: FileType::Directory,
        perm: 0,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: BLOCK_BYTES as u32,
        flags: 0,
    }
}

/// The kind of a node in the kernel's words.
pub(crate) fn file_type(kind: FileKind) -> FileType {
    match kind {
        FileKind::File => FileType::RegularFile,
        FileKind::Directory => FileType::Directory,
        FileKind::Symlink => FileType::Symlink,
        FileKind::Fifo => FileType::NamedPipe,
        FileKind::Socket => FileType::Socket,
        FileKind::CharDevice => FileType::CharDevice,
        FileKind::BlockDevice => FileType::BlockDevice,
    }
}

/// A time to set, from the kernel.
pub(crate) fn set_time(time: TimeOrNow) -> SetTime {
    match time {
        TimeOrNow::Now => SetTime::Now,
        TimeOrNow::SpecificTime(time) => SetTime::At(nanoseconds(time)),
    }
}

/// Nanoseconds since 1970 of a time that fuser decoded from a request; saturates at the ends (1677
/// and 2262).
///
/// fuser reads a negative second `-s` with `n` nanoseconds as `-(s + n)`, where the kernel means
/// `-s + n`; both parts survive, so that is undone here.
pub(crate) fn nanoseconds(time: SystemTime) -> i64 {
    let (seconds, nanoseconds) = match time.duration_since(UNIX_EPOCH) {
        Ok(after) => (i128::from(after.as_secs()), after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            (-i128::from(before.as_secs()), before.subsec_nanos())
        }
    };
    let total = seconds * 1_000_000_000 + i128::from(nanoseconds);
    total.clamp(i128::from(i64::MIN), i128::from(i64::MAX)) as i64
}

fn system_time(time_ns: i64) -> SystemTime {
    if time_ns >= 0 {
        UNIX_EPOCH + Duration::from_nanos(time_ns.unsigned_abs())
    } else {
        UNIX_EPOCH - Duration::from_nanos(time_ns.unsigned_abs())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_numbers_round_trip() {
        assert_eq!(node_number(NodeId::ROOT), Ok(INodeNo::ROOT));
        for (store, ino) in [(0, 77), (3, 1), (0xffff, (1 << 48) - 1)] {
            let node = NodeId {
                store: StoreId(store),
                ino: Ino(ino),
            };
            assert_eq!(node_of(node_number(node).expect("in range")), node);
        }
        for (store, ino) in [(0x1_0000, 1), (0, 1 << 48)] {
            let node = NodeId {
                store: StoreId(store),
                ino: Ino(ino),
            };
            assert_eq!(node_number(node), Err(Errno::EOVERFLOW));
        }
    }

    #[test]
    fn times_before_1970_keep_their_nanoseconds() {
        // What fuser makes of second -2, nanosecond 800 000 000, which is -1.2 s.
        let decoded = UNIX_EPOCH - Duration::new(2, 800_000_000);
        assert_eq!(nanoseconds(decoded), -1_200_000_000);
        assert_eq!(
            nanoseconds(UNIX_EPOCH - Duration::new(2, 0)),
            -2_000_000_000
        );
        assert_eq!(nanoseconds(UNIX_EPOCH + Duration::new(2, 5)), 2_000_000_005);
        assert_eq!(
            nanoseconds(UNIX_EPOCH + Duration::new(1 << 40, 0)),
            i64::MAX
        );
        assert_eq!(
            system_time(-1_200_000_000),
            UNIX_EPOCH - Duration::new(1, 200_000_000)
        );
    }

    #[test]
    fn names_too_long_are_told_apart() {
        let long = [b'x'; 256];
        assert_eq!(name_of(OsStr::from_bytes(&long)), Err(Errno::ENAMETOOLONG));
        assert_eq!(name_of(OsStr::new("..")), Err(Errno::EINVAL));
        assert!(name_of(OsStr::from_bytes(&long[..255])).is_ok());
    }
}
