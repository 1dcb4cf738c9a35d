//! Values of replies to their bytes. Pure.
//!
//! A reply is made in the session's buffer, which lies at a multiple of 4096 in memory, and without
//! the header in front: that belongs to the transport.

use crate::errno::Errno;
use crate::values::{
    Attr, AttrReply, Entry, FileType, IoctlReply, Lock, NodeNumber, Opened, Statfs, StatxReply,
    time_parts,
};
use crate::wire;
use std::time::Duration;

/// The body of a reply, while it is made.
#[derive(Debug)]
pub(crate) struct ReplyBuffer<'b> {
    bytes: &'b mut [u8],
    len_bytes: usize,
}

impl<'b> ReplyBuffer<'b> {
    pub(crate) fn new(bytes: &'b mut [u8]) -> ReplyBuffer<'b> {
        ReplyBuffer {
            bytes,
            len_bytes: 0,
        }
    }

    /// Bytes so far.
    pub(crate) fn len_bytes(&self) -> usize {
        self.len_bytes
    }

    /// Adds `bytes`; the buffer is as large as the largest reply that the kernel has room for.
    pub(crate) fn put_bytes(&mut self, bytes: &[u8]) -> Result<(), Errno> {
        let end = self.len_bytes + bytes.len();
        let room = self.bytes.get_mut(self.len_bytes..end);
        room.ok_or(Errno::ERANGE)?.copy_from_slice(bytes);
        self.len_bytes = end;
        Ok(())
    }

    pub(crate) fn put<T: wire::Wire>(&mut self, value: &T) -> Result<(), Errno> {
        self.put_bytes(wire::bytes_of(value))
    }

    /// Room for data, at most `len_bytes` of it; [`ReplyBuffer::filled`] says how much came.
    pub(crate) fn room(&mut self, len_bytes: usize) -> &mut [u8] {
        let end = len_bytes.min(self.bytes.len());
        &mut self.bytes[..end]
    }

    /// The first `len_bytes` of the room are the reply.
    pub(crate) fn filled(&mut self, len_bytes: usize) {
        self.len_bytes = len_bytes.min(self.bytes.len());
    }

    /// A value that the caller may first ask for the length of.
    pub(crate) fn put_sized(&mut self, value: &[u8], capacity_bytes: u32) -> Result<(), Errno> {
        if capacity_bytes == 0 {
            return self.put(&wire::GetxattrOut {
                size: value.len() as u32,
                padding: 0,
            });
        }
        if value.len() > capacity_bytes as usize {
            return Err(Errno::ERANGE);
        }
        self.put_bytes(value)
    }
}

/// The seconds and nanoseconds of a time to live.
fn ttl_parts(ttl: Duration) -> (u64, u32) {
    (ttl.as_secs(), ttl.subsec_nanos())
}

fn encode_attr(attr: &Attr) -> wire::Attr {
    let (atime, atimensec) = time_parts(attr.atime_ns);
    let (mtime, mtimensec) = time_parts(attr.mtime_ns);
    let (ctime, ctimensec) = time_parts(attr.ctime_ns);
    wire::Attr {
        ino: attr.node.0,
        size: attr.size_bytes,
        blocks: attr.blocks,
        atime: atime as u64,
        mtime: mtime as u64,
        ctime: ctime as u64,
        atimensec,
        mtimensec,
        ctimensec,
        mode: attr.kind.mode_bits() | attr.permissions & 0o7777,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: attr.block_bytes,
        flags: 0,
    }
}

fn sx_time(time_ns: i64) -> wire::SxTime {
    let (tv_sec, tv_nsec) = time_parts(time_ns);
    wire::SxTime {
        tv_sec,
        tv_nsec,
        reserved: 0,
    }
}

pub(crate) fn encode_statx(reply: &StatxReply) -> wire::StatxOut {
    let attr = &reply.attr;
    let (attr_valid, attr_valid_nsec) = ttl_parts(reply.ttl);
    // The kernel's own 32 bits: 12 of the major number over the low 8 of the minor, then its rest.
    let (rdev_major, rdev_minor) = (
        (attr.rdev & 0xf_ff00) >> 8,
        attr.rdev & 0xff | (attr.rdev >> 12) & 0xf_ff00,
    );
    wire::StatxOut {
        attr_valid,
        attr_valid_nsec,
        flags: 0,
        spare: [0; 2],
        stat: wire::Statx {
            mask: libc::STATX_BASIC_STATS | libc::STATX_BTIME,
            blksize: attr.block_bytes,
            nlink: attr.nlink,
            uid: attr.uid,
            gid: attr.gid,
            mode: (attr.kind.mode_bits() | attr.permissions & 0o7777) as u16,
            ino: attr.node.0,
            size: attr.size_bytes,
            blocks: attr.blocks,
            atime: sx_time(attr.atime_ns),
            btime: sx_time(attr.btime_ns),
            ctime: sx_time(attr.ctime_ns),
            mtime: sx_time(attr.mtime_ns),
            rdev_major,
            rdev_minor,
            ..wire::Statx::default()
        },
    }
}

pub(crate) fn encode_attr_reply(reply: &AttrReply) -> wire::AttrOut {
    let (attr_valid, attr_valid_nsec) = ttl_parts(reply.ttl);
    wire::AttrOut {
        attr_valid,
        attr_valid_nsec,
        dummy: 0,
        attr: encode_attr(&reply.attr),
    }
}

pub(crate) fn encode_entry(entry: &Entry) -> wire::EntryOut {
    let (entry_valid, entry_valid_nsec) = ttl_parts(entry.entry_ttl);
    let (attr_valid, attr_valid_nsec) = ttl_parts(entry.attr_ttl);
    let node = entry.attr.map_or(NodeNumber::NONE, |attr| attr.node);
    wire::EntryOut {
        nodeid: node.0,
        generation: entry.generation,
        entry_valid,
        attr_valid,
        entry_valid_nsec,
        attr_valid_nsec,
        attr: entry
            .attr
            .map_or_else(wire::Attr::default, |attr| encode_attr(&attr)),
    }
}

pub(crate) fn encode_opened(opened: &Opened) -> wire::OpenOut {
    wire::OpenOut {
        fh: opened.handle.0,
        open_flags: opened.flags.bits(),
        backing_id: opened.backing_id,
    }
}

pub(crate) fn encode_statfs(statfs: &Statfs) -> wire::Kstatfs {
    wire::Kstatfs {
        blocks: statfs.blocks,
        bfree: statfs.free_blocks,
        bavail: statfs.available_blocks,
        files: statfs.files,
        ffree: statfs.free_files,
        bsize: statfs.block_bytes,
        namelen: statfs.name_bytes_max,
        frsize: statfs.block_bytes,
        ..wire::Kstatfs::default()
    }
}

pub(crate) fn encode_lock(lock: &Lock) -> wire::LkOut {
    wire::LkOut {
        lk: wire::FileLock {
            start: lock.start,
            end: lock.end,
            kind: lock.kind as u32,
            pid: lock.pid,
        },
    }
}

pub(crate) fn encode_ioctl(reply: &IoctlReply) -> wire::IoctlOut {
    wire::IoctlOut {
        result: reply.result,
        ..wire::IoctlOut::default()
    }
}

/// The listing that answers a READDIR: lines are added until one has no room.
#[derive(Debug)]
pub struct DirectoryReply<'r, 'b> {
    reply: &'r mut ReplyBuffer<'b>,
    capacity_bytes: usize,
}

impl<'r, 'b> DirectoryReply<'r, 'b> {
    pub(crate) fn new(reply: &'r mut ReplyBuffer<'b>, capacity_bytes: u32) -> Self {
        let capacity_bytes = (capacity_bytes as usize).min(reply.bytes.len());
        DirectoryReply {
            reply,
            capacity_bytes,
        }
    }

    /// Adds a line; `next` is the offset from which a listing goes on behind it, never 0. `false`,
    /// and nothing added: there is no room.
    #[must_use]
    pub fn add(&mut self, name: &[u8], node: NodeNumber, kind: FileType, next: u64) -> bool {
        put_line(
            self.reply,
            self.capacity_bytes,
            None,
            (name, node, kind, next),
        )
    }
}

/// The listing that answers a READDIRPLUS.
#[derive(Debug)]
pub struct DirectoryPlusReply<'r, 'b> {
    reply: &'r mut ReplyBuffer<'b>,
    capacity_bytes: usize,
}

impl<'r, 'b> DirectoryPlusReply<'r, 'b> {
    pub(crate) fn new(reply: &'r mut ReplyBuffer<'b>, capacity_bytes: u32) -> Self {
        let capacity_bytes = (capacity_bytes as usize).min(reply.bytes.len());
        DirectoryPlusReply {
            reply,
            capacity_bytes,
        }
    }

    /// Adds a line with attributes, which counts a lookup of the node. `next` and the answer as in
    /// [`DirectoryReply::add`].
    #[must_use]
    pub fn add(
        &mut self,
        name: &[u8],
        attr: &Attr,
        generation: u64,
        ttl: Duration,
        next: u64,
    ) -> bool {
        let entry = encode_entry(&Entry {
            attr: Some(*attr),
            generation,
            entry_ttl: ttl,
            attr_ttl: ttl,
        });
        let line = (name, attr.node, attr.kind, next);
        put_line(self.reply, self.capacity_bytes, Some(&entry), line)
    }

    /// Adds a line without attributes, which counts no lookup: `.` and `..`, and what has none.
    #[must_use]
    pub fn add_bare(&mut self, name: &[u8], node: NodeNumber, kind: FileType, next: u64) -> bool {
        let entry = wire::EntryOut::default();
        let line = (name, node, kind, next);
        put_line(self.reply, self.capacity_bytes, Some(&entry), line)
    }
}

fn put_line(
    reply: &mut ReplyBuffer<'_>,
    capacity_bytes: usize,
    entry: Option<&wire::EntryOut>,
    (name, node, kind, next): (&[u8], NodeNumber, FileType, u64),
) -> bool {
    let entry_bytes = entry.map_or(&[][..], |entry| wire::bytes_of(entry));
    let dirent = wire::Dirent {
        ino: node.0,
        off: next,
        namelen: name.len() as u32,
        kind: kind.dirent_type(),
    };
    let len_bytes = entry_bytes.len() + size_of::<wire::Dirent>() + name.len();
    let padding = &[0; 7][..len_bytes.next_multiple_of(8) - len_bytes];
    if reply.len_bytes + len_bytes + padding.len() > capacity_bytes {
        return false;
    }
    [entry_bytes, wire::bytes_of(&dirent), name, padding]
        .iter()
        .all(|part| reply.put_bytes(part).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn attr() -> Attr {
        Attr {
            node: NodeNumber(7),
            size_bytes: 10_000,
            blocks: 24,
            atime_ns: -1_200_000_000,
            mtime_ns: 2_000_000_005,
            ctime_ns: 3_000_000_006,
            btime_ns: 4_000_000_007,
            kind: FileType::RegularFile,
            permissions: 0o4755,
            nlink: 2,
            uid: 1000,
            gid: 1001,
            // 259:70000, as makedev encodes it in 32 bits.
            rdev: (70_000 & 0xff) | 259 << 8 | (70_000 & !0xff) << 12,
            block_bytes: 4096,
        }
    }

    #[test]
    fn attributes_are_encoded_with_their_type_and_their_times() {
        let out = encode_attr(&attr());
        assert_eq!(out.mode, libc::S_IFREG | 0o4755);
        assert_eq!((out.atime as i64, out.atimensec), (-2, 800_000_000));
        assert_eq!((out.mtime, out.mtimensec), (2, 5));
        let ttl = Duration::from_millis(1500);
        let statx = encode_statx(&StatxReply { attr: attr(), ttl });
        assert_eq!((statx.attr_valid, statx.attr_valid_nsec), (1, 500_000_000));
        assert_eq!((statx.stat.btime.tv_sec, statx.stat.btime.tv_nsec), (4, 7));
        assert_eq!(
            (statx.stat.rdev_major, statx.stat.rdev_minor),
            (259, 70_000)
        );
        assert_eq!(statx.stat.mask, libc::STATX_BASIC_STATS | libc::STATX_BTIME);
    }

    #[test]
    fn a_name_that_is_not_there_is_node_zero() {
        let out = encode_entry(&Entry {
            attr: None,
            generation: 0,
            entry_ttl: Duration::from_secs(9),
            attr_ttl: Duration::ZERO,
        });
        assert_eq!((out.nodeid, out.entry_valid, out.attr.ino), (0, 9, 0));
    }

    #[test]
    fn values_are_asked_for_by_size_first() {
        let mut bytes = [0; 64];
        let mut reply = ReplyBuffer::new(&mut bytes);
        reply.put_sized(b"value", 0).unwrap();
        assert_eq!(reply.len_bytes(), 8);
        let mut reply = ReplyBuffer::new(&mut bytes);
        assert_eq!(reply.put_sized(b"value", 4), Err(Errno::ERANGE));
        reply.put_sized(b"value", 5).unwrap();
        assert_eq!(reply.len_bytes(), 5);
        assert_eq!(bytes[..8], [b'v', b'a', b'l', b'u', b'e', 0, 0, 0]);
    }

    #[test]
    fn lines_are_aligned_and_end_where_the_buffer_does() {
        let mut bytes = [0xff; 1024];
        let mut reply = ReplyBuffer::new(&mut bytes);
        let mut listing = DirectoryReply::new(&mut reply, 72);
        assert!(listing.add(b"abc", NodeNumber(5), FileType::Directory, 1));
        assert!(listing.add(b"abcdefgh", NodeNumber(6), FileType::Symlink, 2));
        assert!(!listing.add(b"x", NodeNumber(7), FileType::Symlink, 3));
        assert_eq!(reply.len_bytes(), 64);
        let (first, rest) = wire::take::<wire::Dirent>(&bytes).unwrap();
        assert_eq!(
            (first.ino, first.off, first.namelen, first.kind),
            (5, 1, 3, 4)
        );
        assert_eq!(rest[..8], *b"abc\0\0\0\0\0");
        let (second, rest) = wire::take::<wire::Dirent>(&rest[8..]).unwrap();
        assert_eq!((second.ino, second.kind), (6, 10));
        assert_eq!(rest[..8], *b"abcdefgh");
    }

    #[test]
    fn lines_with_attributes_have_the_entry_in_front() {
        let mut bytes = [0xff; 1024];
        let mut reply = ReplyBuffer::new(&mut bytes);
        let mut listing = DirectoryPlusReply::new(&mut reply, 1024);
        assert!(listing.add_bare(b".", NodeNumber(1), FileType::Directory, 1));
        assert!(listing.add(b"f", &attr(), 0, Duration::from_secs(1), 2));
        assert_eq!(reply.len_bytes(), 2 * 160);
        let (dot, _) = wire::take::<wire::EntryOut>(&bytes).unwrap();
        assert_eq!(dot.nodeid, 0);
        let (file, rest) = wire::take::<wire::EntryOut>(&bytes[160..]).unwrap();
        assert_eq!((file.nodeid, file.attr.size), (7, 10_000));
        let (line, name) = wire::take::<wire::Dirent>(rest).unwrap();
        assert_eq!((line.ino, line.off, name[0]), (7, 2, b'f'));
    }
}
