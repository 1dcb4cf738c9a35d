//! Telling the kernel to drop what it has cached.
//!
//! A notification is written like a reply, with 0 for the request. The kernel may take locks for it
//! that a request in work holds: never write one from a handler that the kernel waits for.

use crate::device::Device;
use crate::errno::Errno;
use crate::values::NodeNumber;
use crate::wire::{self, Wire};
use std::os::fd::{AsFd, BorrowedFd};

/// Writes notifications. Cheap to clone, may be used from any thread.
#[derive(Debug, Clone)]
pub struct Notifier {
    device: Device,
}

impl Notifier {
    /// A notifier of the mount that `device` is of.
    pub fn new(device: &Device) -> Notifier {
        Notifier {
            device: device.clone(),
        }
    }

    /// Drops the cached attributes of a node, and its pages from `offset` on, `len_bytes` of them
    /// or with 0 all; a negative offset leaves the pages alone. `Ok` too when the kernel does not
    /// have the node.
    pub fn inval_inode(&self, node: NodeNumber, offset: i64, len_bytes: i64) -> Result<(), Errno> {
        self.send(&encode_inval_inode(node, offset, len_bytes))
    }

    /// Drops a name; with `expire_only` it is looked up again when it is next used, and what is
    /// mounted on it or has it as working directory keeps it (Linux 6.2; before that it is
    /// dropped). `Ok` too when the kernel does not have it.
    pub fn inval_entry(
        &self,
        parent: NodeNumber,
        name: &[u8],
        expire_only: bool,
    ) -> Result<(), Errno> {
        self.send(&encode_inval_entry(parent, name, expire_only))
    }

    /// Drops a name that was removed, and tells those who watch the directory, if it still stands
    /// for `child`.
    pub fn delete(&self, parent: NodeNumber, child: NodeNumber, name: &[u8]) -> Result<(), Errno> {
        self.send(&encode_delete(parent, child, name))
    }

    /// Lets all names expire at once (Linux 6.16); `EINVAL` from kernels that cannot.
    pub fn inc_epoch(&self) -> Result<(), Errno> {
        self.send(&encode(
            wire::NOTIFY_INC_EPOCH,
            None::<&wire::OutHeader>,
            &[],
        ))
    }

    fn send(&self, notification: &[u8]) -> Result<(), Errno> {
        match self.device.write(notification) {
            Err(Errno::ENOENT) => Ok(()),
            other => other,
        }
    }
}

impl AsFd for Notifier {
    /// The device, by which it notifies.
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.device.as_fd()
    }
}

fn encode_inval_inode(node: NodeNumber, offset: i64, len_bytes: i64) -> Vec<u8> {
    let fixed = wire::NotifyInvalInode {
        ino: node.0,
        off: offset,
        len: len_bytes,
    };
    encode(wire::NOTIFY_INVAL_INODE, Some(&fixed), &[])
}

fn encode_inval_entry(parent: NodeNumber, name: &[u8], expire_only: bool) -> Vec<u8> {
    let fixed = wire::NotifyInvalEntry {
        parent: parent.0,
        namelen: name.len() as u32,
        flags: if expire_only { wire::EXPIRE_ONLY } else { 0 },
    };
    encode(wire::NOTIFY_INVAL_ENTRY, Some(&fixed), &[name, b"\0"])
}

fn encode_delete(parent: NodeNumber, child: NodeNumber, name: &[u8]) -> Vec<u8> {
    let fixed = wire::NotifyDelete {
        parent: parent.0,
        child: child.0,
        namelen: name.len() as u32,
        padding: 0,
    };
    encode(wire::NOTIFY_DELETE, Some(&fixed), &[name, b"\0"])
}

fn encode<T: Wire>(code: i32, fixed: Option<&T>, rest: &[&[u8]]) -> Vec<u8> {
    let fixed = fixed.map_or(&[][..], |fixed| wire::bytes_of(fixed));
    let body_bytes = fixed.len() + rest.iter().map(|part| part.len()).sum::<usize>();
    let header = wire::OutHeader {
        len: (size_of::<wire::OutHeader>() + body_bytes) as u32,
        error: code,
        unique: 0,
    };
    let mut bytes = Vec::with_capacity(header.len as usize);
    bytes.extend_from_slice(wire::bytes_of(&header));
    bytes.extend_from_slice(fixed);
    rest.iter().for_each(|part| bytes.extend_from_slice(part));
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;

    fn word(bytes: &[u8], at: usize) -> u32 {
        u32::from_ne_bytes(bytes[at..at + 4].try_into().unwrap())
    }

    #[test]
    fn notifications_have_the_layout_of_the_kernel() {
        let node = encode_inval_inode(NodeNumber(0x1_0000_0007), 0, 0);
        assert_eq!((node.len(), word(&node, 0), word(&node, 4)), (40, 40, 2));
        assert_eq!(node[8..16], [0; 8]);
        assert_eq!(node[16..24], 0x1_0000_0007u64.to_ne_bytes());
        assert_eq!(node[24..], [0; 16]);
        let entry = encode_inval_entry(NodeNumber::ROOT, b"abc", true);
        assert_eq!((entry.len(), word(&entry, 0), word(&entry, 4)), (36, 36, 3));
        assert_eq!(entry[16..24], 1u64.to_ne_bytes());
        assert_eq!((word(&entry, 24), word(&entry, 28)), (3, 1));
        assert_eq!(&entry[32..], b"abc\0");
        let delete = encode_delete(NodeNumber::ROOT, NodeNumber(9), b"ab");
        assert_eq!(
            (delete.len(), word(&delete, 4), word(&delete, 32)),
            (43, 6, 2)
        );
        let epoch = encode(wire::NOTIFY_INC_EPOCH, None::<&wire::OutHeader>, &[]);
        assert_eq!((epoch.len(), word(&epoch, 4)), (16, 8));
    }
}
