//! The kernel's words for ours: node numbers, attributes, times, names. Pure.

use larder::{FileKind, Ino, Name, NameError, NodeId, SetTime, StoreId};
use larder_fuse_protocol::{Attr, Errno, FileType, NodeNumber, TimeOrNow};

/// Inode numbers have this many bits in a node number of the present; the store has the 15 above.
pub(crate) const INO_BITS: u32 = 48;

/// The block size that `stat` and `statfs` report, bytes.
pub(crate) const BLOCK_BYTES: u64 = larder::limits::BLOCK_BYTES;

/// Numbers with this bit are of the past (`history`): behind it come a slot and the inode.
const PAST_BIT: u64 = 1 << 63;
/// Inode numbers have this many bits there; the slot has the [`SLOT_BITS`] above.
const PAST_INO_BITS: u32 = 40;
/// What a slot has.
pub(crate) const SLOT_BITS: u32 = 23;
/// A store with this bit stands for a slot, which are the others.
const PAST_STORE: u32 = 1 << 31;

/// The node of inode `ino` in a slot.
pub(crate) fn past_node(slot: u32, ino: Ino) -> NodeId {
    NodeId {
        store: StoreId(PAST_STORE | slot),
        ino,
    }
}

/// The slot that a node is in; `None`: it is of the present.
pub(crate) fn slot_of(node: NodeId) -> Option<u32> {
    (node.store.0 & PAST_STORE != 0).then_some(node.store.0 & !PAST_STORE)
}

/// The same by its number.
pub(crate) fn slot_of_number(number: NodeNumber) -> Option<u32> {
    slot_of(node_of(number))
}

/// How the kernel names a node: `store << 48 | ino`, so the root is 1 and in the default store
/// `st_ino` is column `ino`; nodes of the past have the highest bit (`FUSE-9`). `EOVERFLOW` for a
/// store, slot or inode beyond the bits it has.
pub(crate) fn node_number(node: NodeId) -> Result<NodeNumber, Errno> {
    let (first, first_bits, ino_bits, mark) = match slot_of(node) {
        Some(slot) => (slot, SLOT_BITS, PAST_INO_BITS, PAST_BIT),
        None => (node.store.0, u64::BITS - 1 - INO_BITS, INO_BITS, 0),
    };
    if first >> first_bits != 0 || node.ino.0 >> ino_bits != 0 {
        return Err(Errno::EOVERFLOW);
    }
    Ok(NodeNumber(mark | u64::from(first) << ino_bits | node.ino.0))
}

/// The node that a node number names.
pub(crate) fn node_of(number: NodeNumber) -> NodeId {
    if number.0 & PAST_BIT != 0 {
        let slot = (number.0 & !PAST_BIT) >> PAST_INO_BITS;
        return past_node(slot as u32, Ino(number.0 & ((1 << PAST_INO_BITS) - 1)));
    }
    NodeId {
        store: StoreId((number.0 >> INO_BITS) as u32),
        ino: Ino(number.0 & ((1 << INO_BITS) - 1)),
    }
}

/// What tells nodes apart that have one number one after the other (`FUSE-21`): `born_ns` is when
/// the inode was made, `moment` the commit that it is shown as of, 0: the present. 32 bits, which
/// is what the kernel keeps; the root's is 0, which is what it expects.
pub(crate) fn generation(node: NodeNumber, born_ns: i64, moment: u64) -> u64 {
    match node {
        NodeNumber::ROOT => 0,
        _ => mix([born_ns as u64, moment]) >> 32,
    }
}

/// Numbers made one that looks like any other.
pub(crate) fn mix<const N: usize>(parts: [u64; N]) -> u64 {
    parts.into_iter().fold(0, |mixed: u64, part| {
        // The finalizer of SplitMix64.
        let mixed = (mixed ^ part).wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    })
}

/// A name from the kernel. The kernel has split the path already; what is left to refuse is length.
pub(crate) fn name_of(name: &[u8]) -> Result<Name, Errno> {
    Name::new(name).map_err(|error| match error {
        NameError::TooLong => Errno::ENAMETOOLONG,
        NameError::Empty | NameError::Reserved | NameError::Forbidden => Errno::EINVAL,
    })
}

/// Attributes as the kernel wants them.
pub(crate) fn node_attr(attr: &larder::Metadata) -> Result<Attr, Errno> {
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
        for (store, ino) in [(0, 77), (3, 1), (0x7fff, (1 << 48) - 1)] {
            let node = NodeId {
                store: StoreId(store),
                ino: Ino(ino),
            };
            assert_eq!(node_of(node_number(node).expect("in range")), node);
        }
        for (store, ino) in [(0x8000, 1), (0, 1 << 48)] {
            let node = NodeId {
                store: StoreId(store),
                ino: Ino(ino),
            };
            assert_eq!(node_number(node), Err(Errno::EOVERFLOW));
        }
    }

    #[test]
    fn numbers_of_the_past_are_nobody_elses() {
        let most = (1 << SLOT_BITS) - 1;
        for (slot, ino) in [(0, 1), (1, 1), (7, (1 << 40) - 1), (most, 3)] {
            let node = past_node(slot, Ino(ino));
            let number = node_number(node).expect("in range");
            assert_eq!((node_of(number), slot_of(node)), (node, Some(slot)));
            let present = NodeId {
                store: StoreId(0x7fff),
                ino: Ino((1 << 48) - 1),
            };
            assert!(number > node_number(present).expect("in range"), "FUSE-9");
        }
        for (slot, ino) in [(most + 1, 1), (0, 1 << 40)] {
            let node = past_node(slot, Ino(ino));
            assert_eq!(node_number(node), Err(Errno::EOVERFLOW));
        }
        assert_eq!(slot_of(NodeId::ROOT), None);
    }

    #[test]
    fn generations_tell_births_and_moments_apart() {
        let (node, born_ns) = (NodeNumber(7), 1_800_000_000_000_000_000);
        let of = |born_ns, moment| generation(node, born_ns, moment);
        assert_eq!(of(born_ns, 0), of(born_ns, 0));
        let others = [
            of(born_ns + 1, 0),
            of(born_ns - 1, 0),
            of(born_ns, 1),
            of(born_ns, 2),
        ];
        for (index, other) in others.iter().enumerate() {
            assert!(*other != of(born_ns, 0) && *other >> 32 == 0, "FUSE-21");
            assert!(!others[..index].contains(other), "FUSE-21");
        }
        assert_eq!(generation(NodeNumber::ROOT, born_ns, 3), 0);
    }

    #[test]
    fn names_too_long_are_told_apart() {
        let long = [b'x'; 256];
        assert_eq!(name_of(&long), Err(Errno::ENAMETOOLONG));
        assert_eq!(name_of(b".."), Err(Errno::EINVAL));
        assert!(name_of(&long[..255]).is_ok());
    }
}
