//! The kernel's words for ours: node numbers, attributes, times, names. Pure.

use larder::{FileKind, Ino, Name, NameError, NodeId, SetTime, StoreId};
use larder_fuse_protocol::{Attr, Errno, FileType, NodeNumber, TimeOrNow};

/// Inode numbers have this many bits in a node number; the store has the 16 above.
pub(crate) const INO_BITS: u32 = 48;

/// The block size that `stat` and `statfs` report, bytes.
pub(crate) const BLOCK_BYTES: u64 = larder::limits::BLOCK_BYTES;

/// How the kernel names a node: `store << 48 | ino`, so the root is 1 and in the default store
/// `st_ino` is column `ino`. `EOVERFLOW` for a store or inode beyond the bits it has.
pub(crate) fn node_number(node: NodeId) -> Result<NodeNumber, Errno> {
    if u64::from(node.store.0) >> (u64::BITS - INO_BITS) != 0 || node.ino.0 >> INO_BITS != 0 {
        return Err(Errno::EOVERFLOW);
    }
    Ok(NodeNumber(u64::from(node.store.0) << INO_BITS | node.ino.0))
}

/// The node that a node number names.
pub(crate) fn node_of(number: NodeNumber) -> NodeId {
    NodeId {
        store: StoreId((number.0 >> INO_BITS) as u32),
        ino: Ino(number.0 & ((1 << INO_BITS) - 1)),
    }
}

/// A name from the kernel. The kernel has split the path already; what is left to refuse is length.
pub(crate) fn name_of(name: &[u8]) -> Result<Name, Errno> {
    Name::new(name).map_err(|error| match error {
        NameError::TooLong => Errno::ENAMETOOLONG,
        NameError::Empty | NameError::Reserved | NameError::Forbidden => Errno::EINVAL,
    })
}

/// Attributes as the kernel wants them.
pub(crate) fn node_attr(attr: &larder::Attr) -> Result<Attr, Errno> {
    Ok(Attr {
        node: node_number(attr.node)?,
        size_bytes: attr.size_bytes,
        blocks: attr.allocated_bytes.div_ceil(512),
        atime_ns: attr.atime_ns,
        mtime_ns: attr.mtime_ns,
        ctime_ns: attr.ctime_ns,
        btime_ns: attr.btime_ns,
        kind: file_type(attr.kind),
        permissions: attr.mode & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        // The kernel's 32-bit encoding is `makedev` for every number it can hold.
        rdev: attr.rdev as u32,
        block_bytes: BLOCK_BYTES as u32,
    })
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
        TimeOrNow::At(time_ns) => SetTime::At(time_ns),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_numbers_round_trip() {
        assert_eq!(node_number(NodeId::ROOT), Ok(NodeNumber::ROOT));
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
    fn names_too_long_are_told_apart() {
        let long = [b'x'; 256];
        assert_eq!(name_of(&long), Err(Errno::ENAMETOOLONG));
        assert_eq!(name_of(b".."), Err(Errno::EINVAL));
        assert!(name_of(&long[..255]).is_ok());
    }
}
