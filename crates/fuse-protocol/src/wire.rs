//! The structures of the kernel's interface, byte for byte: `include/uapi/linux/fuse.h`, 7.45.
//!
//! Every structure states its size and the offset of each field as the header has them; the
//! compiler checks both, and that no byte is padding. Native byte order, as the kernel's.

use std::mem::{MaybeUninit, offset_of, size_of};

/// Major version of the protocol.
pub(crate) const MAJOR: u32 = 7;
/// Minor version that the structures here are of.
pub(crate) const MINOR: u32 = 45;
/// Oldest minor version served: Linux 5.4. What later ones added is negotiated by flags.
pub(crate) const MINOR_MIN: u32 = 31;

pub(crate) const FATTR_MODE: u32 = 1 << 0;
pub(crate) const FATTR_UID: u32 = 1 << 1;
pub(crate) const FATTR_GID: u32 = 1 << 2;
pub(crate) const FATTR_SIZE: u32 = 1 << 3;
pub(crate) const FATTR_ATIME: u32 = 1 << 4;
pub(crate) const FATTR_MTIME: u32 = 1 << 5;
pub(crate) const FATTR_FH: u32 = 1 << 6;
pub(crate) const FATTR_ATIME_NOW: u32 = 1 << 7;
pub(crate) const FATTR_MTIME_NOW: u32 = 1 << 8;
pub(crate) const FATTR_LOCKOWNER: u32 = 1 << 9;
pub(crate) const FATTR_CTIME: u32 = 1 << 10;
pub(crate) const FATTR_KILL_SUIDGID: u32 = 1 << 11;

pub(crate) const RELEASE_FLOCK_UNLOCK: u32 = 1 << 1;
pub(crate) const GETATTR_FH: u32 = 1 << 0;
pub(crate) const LK_FLOCK: u32 = 1 << 0;
pub(crate) const WRITE_CACHE: u32 = 1 << 0;
pub(crate) const WRITE_LOCKOWNER: u32 = 1 << 1;
pub(crate) const WRITE_KILL_SUIDGID: u32 = 1 << 2;
pub(crate) const READ_LOCKOWNER: u32 = 1 << 1;
pub(crate) const FSYNC_FDATASYNC: u32 = 1 << 0;
pub(crate) const OPEN_KILL_SUIDGID: u32 = 1 << 0;
pub(crate) const SETXATTR_ACL_KILL_SGID: u32 = 1 << 0;
pub(crate) const EXPIRE_ONLY: u32 = 1 << 0;
/// Set in `unique` of a request that is sent for the second time.
pub(crate) const UNIQUE_RESEND: u64 = 1 << 63;
/// Extensions of this type and below hold so many security contexts.
pub(crate) const EXT_SECURITY_MAX: u32 = 31;
pub(crate) const EXT_GROUPS: u32 = 32;

pub(crate) const NOTIFY_INVAL_INODE: i32 = 2;
pub(crate) const NOTIFY_INVAL_ENTRY: i32 = 3;
pub(crate) const NOTIFY_DELETE: i32 = 6;
pub(crate) const NOTIFY_INC_EPOCH: i32 = 8;

/// What is asked of the device by io_uring: to take an entry, and to take a reply and give the next
/// request.
pub(crate) const URING_REGISTER: u32 = 1;
pub(crate) const URING_COMMIT_AND_FETCH: u32 = 2;
/// Where the parts of an entry's headers begin: the header of the request or of the reply, the
/// fixed structure of the request, and [`UringEntInOut`].
pub(crate) const URING_IN_OUT_AT: usize = 0;
pub(crate) const URING_OP_IN_AT: usize = 128;
pub(crate) const URING_ENT_AT: usize = 256;
/// What an entry's headers are long, bytes.
pub(crate) const URING_HEADERS_BYTES: usize = URING_ENT_AT + size_of::<UringEntInOut>();

/// The group of the device's ioctls: clone is number 0, backing open 1, backing close 2.
pub(crate) const IOC_GROUP: u8 = 229;

/// A structure that crosses the boundary.
///
/// # Safety
/// Every pattern of bytes is a value, and no byte is padding.
pub(crate) unsafe trait Wire: Copy {}

/// The structure at the front of `bytes`, and the rest; `None` when there are too few.
pub(crate) fn take<T: Wire>(bytes: &[u8]) -> Option<(T, &[u8])> {
    let (front, rest) = bytes.split_at_checked(size_of::<T>())?;
    let mut value = MaybeUninit::<T>::uninit();
    // SAFETY: `front` has exactly as many bytes as `value`, which overlaps nothing; afterwards all
    // of its bytes are set, and `Wire` says that any bytes are a value.
    let value = unsafe {
        std::ptr::copy_nonoverlapping(front.as_ptr(), value.as_mut_ptr().cast::<u8>(), front.len());
        value.assume_init()
    };
    Some((value, rest))
}

/// The bytes of a structure.
pub(crate) fn bytes_of<T: Wire>(value: &T) -> &[u8] {
    // SAFETY: `Wire` says that no byte is padding, so all of them are initialised.
    unsafe { std::slice::from_raw_parts(std::ptr::from_ref(value).cast::<u8>(), size_of::<T>()) }
}

macro_rules! wire {
    ($($name:ident $size:literal { $($field:ident: $type:ty = $offset:literal),+ $(,)? })+) => {$(
        #[repr(C)]
        #[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
        pub(crate) struct $name {
            $(pub(crate) $field: $type),+
        }
        const _: () = {
            assert!(size_of::<$name>() == $size, "not the size in the kernel's header");
            $(assert!(offset_of!($name, $field) == $offset, "not the offset in the header");)+
            assert!(0 $(+ size_of::<$type>())+ == $size, "there is padding");
        };
        // SAFETY: its fields are integers, and structures and arrays of such; the assert above
        // shows that nothing lies between them.
        unsafe impl Wire for $name {}
    )+};
}

// ---- both ways ---------------------------------------------------------------------------------

wire! {
    InHeader 40 {
        len: u32 = 0, opcode: u32 = 4, unique: u64 = 8, nodeid: u64 = 16, uid: u32 = 24,
        gid: u32 = 28, pid: u32 = 32, total_extlen: u16 = 36, padding: u16 = 38,
    }
    OutHeader 16 { len: u32 = 0, error: i32 = 4, unique: u64 = 8 }
    Attr 88 {
        ino: u64 = 0, size: u64 = 8, blocks: u64 = 16, atime: u64 = 24, mtime: u64 = 32,
        ctime: u64 = 40, atimensec: u32 = 48, mtimensec: u32 = 52, ctimensec: u32 = 56,
        mode: u32 = 60, nlink: u32 = 64, uid: u32 = 68, gid: u32 = 72, rdev: u32 = 76,
        blksize: u32 = 80, flags: u32 = 84,
    }
    SxTime 16 { tv_sec: i64 = 0, tv_nsec: u32 = 8, reserved: i32 = 12 }
    Statx 256 {
        mask: u32 = 0, blksize: u32 = 4, attributes: u64 = 8, nlink: u32 = 16, uid: u32 = 20,
        gid: u32 = 24, mode: u16 = 28, spare0: u16 = 30, ino: u64 = 32, size: u64 = 40,
        blocks: u64 = 48, attributes_mask: u64 = 56, atime: SxTime = 64, btime: SxTime = 80,
        ctime: SxTime = 96, mtime: SxTime = 112, rdev_major: u32 = 128, rdev_minor: u32 = 132,
        dev_major: u32 = 136, dev_minor: u32 = 140, spare2: [u64; 14] = 144,
    }
    Kstatfs 80 {
        blocks: u64 = 0, bfree: u64 = 8, bavail: u64 = 16, files: u64 = 24, ffree: u64 = 32,
        bsize: u32 = 40, namelen: u32 = 44, frsize: u32 = 48, padding: u32 = 52,
        spare: [u32; 6] = 56,
    }
    FileLock 24 { start: u64 = 0, end: u64 = 8, kind: u32 = 16, pid: u32 = 20 }
    ExtHeader 8 { size: u32 = 0, kind: u32 = 4 }
    Secctx 8 { size: u32 = 0, padding: u32 = 4 }
    UringEntInOut 32 {
        flags: u64 = 0, commit_id: u64 = 8, payload_sz: u32 = 16, padding: u32 = 20,
        reserved: u64 = 24,
    }
    UringCmdReq 24 { flags: u64 = 0, commit_id: u64 = 8, qid: u16 = 16, padding: [u8; 6] = 18 }
    BackingMap 16 { fd: i32 = 0, flags: u32 = 4, padding: u64 = 8 }
}

// ---- from the kernel ---------------------------------------------------------------------------

wire! {
    InitIn 64 {
        major: u32 = 0, minor: u32 = 4, max_readahead: u32 = 8, flags: u32 = 12,
        flags2: u32 = 16, unused: [u32; 11] = 20,
    }

    InitInShort 16 { major: u32 = 0, minor: u32 = 4, max_readahead: u32 = 8, flags: u32 = 12 }
    ForgetIn 8 { nlookup: u64 = 0 }
    ForgetOne 16 { nodeid: u64 = 0, nlookup: u64 = 8 }
    BatchForgetIn 8 { count: u32 = 0, dummy: u32 = 4 }
    GetattrIn 16 { getattr_flags: u32 = 0, dummy: u32 = 4, fh: u64 = 8 }
    StatxIn 24 {
        getattr_flags: u32 = 0, reserved: u32 = 4, fh: u64 = 8, sx_flags: u32 = 16,
        sx_mask: u32 = 20,
    }
    MknodIn 16 { mode: u32 = 0, rdev: u32 = 4, umask: u32 = 8, padding: u32 = 12 }
    MkdirIn 8 { mode: u32 = 0, umask: u32 = 4 }
    RenameIn 8 { newdir: u64 = 0 }
    Rename2In 16 { newdir: u64 = 0, flags: u32 = 8, padding: u32 = 12 }
    LinkIn 8 { oldnodeid: u64 = 0 }
    SetattrIn 88 {
        valid: u32 = 0, padding: u32 = 4, fh: u64 = 8, size: u64 = 16, lock_owner: u64 = 24,
        atime: u64 = 32, mtime: u64 = 40, ctime: u64 = 48, atimensec: u32 = 56,
        mtimensec: u32 = 60, ctimensec: u32 = 64, mode: u32 = 68, unused4: u32 = 72,
        uid: u32 = 76, gid: u32 = 80, unused5: u32 = 84,
    }
    OpenIn 8 { flags: u32 = 0, open_flags: u32 = 4 }
    CreateIn 16 { flags: u32 = 0, mode: u32 = 4, umask: u32 = 8, open_flags: u32 = 12 }
    ReleaseIn 24 { fh: u64 = 0, flags: u32 = 8, release_flags: u32 = 12, lock_owner: u64 = 16 }
    FlushIn 24 { fh: u64 = 0, unused: u32 = 8, padding: u32 = 12, lock_owner: u64 = 16 }
    ReadIn 40 {
        fh: u64 = 0, offset: u64 = 8, size: u32 = 16, read_flags: u32 = 20, lock_owner: u64 = 24,
        flags: u32 = 32, padding: u32 = 36,
    }
    WriteIn 40 {
        fh: u64 = 0, offset: u64 = 8, size: u32 = 16, write_flags: u32 = 20, lock_owner: u64 = 24,
        flags: u32 = 32, padding: u32 = 36,
    }
    FsyncIn 16 { fh: u64 = 0, fsync_flags: u32 = 8, padding: u32 = 12 }
    SetxattrIn 16 { size: u32 = 0, flags: u32 = 4, setxattr_flags: u32 = 8, padding: u32 = 12 }
    SetxattrInShort 8 { size: u32 = 0, flags: u32 = 4 }
    GetxattrIn 8 { size: u32 = 0, padding: u32 = 4 }
    LkIn 48 {
        fh: u64 = 0, owner: u64 = 8, lk: FileLock = 16, lk_flags: u32 = 40, padding: u32 = 44
    }
    AccessIn 8 { mask: u32 = 0, padding: u32 = 4 }
    InterruptIn 8 { unique: u64 = 0 }
    IoctlIn 32 {
        fh: u64 = 0, flags: u32 = 8, cmd: u32 = 12, arg: u64 = 16, in_size: u32 = 24,
        out_size: u32 = 28,
    }
    FallocateIn 32 {
        fh: u64 = 0, offset: u64 = 8, length: u64 = 16, mode: u32 = 24, padding: u32 = 28
    }
    LseekIn 24 { fh: u64 = 0, offset: u64 = 8, whence: u32 = 16, padding: u32 = 20 }
    CopyFileRangeIn 56 {
        fh_in: u64 = 0, off_in: u64 = 8, nodeid_out: u64 = 16, fh_out: u64 = 24, off_out: u64 = 32,
        len: u64 = 40, flags: u64 = 48,
    }
    SyncfsIn 8 { padding: u64 = 0 }
}

// ---- to the kernel -----------------------------------------------------------------------------

wire! {
    InitOut 64 {
        major: u32 = 0, minor: u32 = 4, max_readahead: u32 = 8, flags: u32 = 12,
        max_background: u16 = 16, congestion_threshold: u16 = 18, max_write: u32 = 20,
        time_gran: u32 = 24, max_pages: u16 = 28, map_alignment: u16 = 30, flags2: u32 = 32,
        max_stack_depth: u32 = 36, request_timeout: u16 = 40, unused: [u16; 11] = 42,
    }
    EntryOut 128 {
        nodeid: u64 = 0, generation: u64 = 8, entry_valid: u64 = 16, attr_valid: u64 = 24,
        entry_valid_nsec: u32 = 32, attr_valid_nsec: u32 = 36, attr: Attr = 40,
    }
    AttrOut 104 { attr_valid: u64 = 0, attr_valid_nsec: u32 = 8, dummy: u32 = 12, attr: Attr = 16 }
    StatxOut 288 {
        attr_valid: u64 = 0, attr_valid_nsec: u32 = 8, flags: u32 = 12, spare: [u64; 2] = 16,
        stat: Statx = 32,
    }
    OpenOut 16 { fh: u64 = 0, open_flags: u32 = 8, backing_id: i32 = 12 }
    WriteOut 8 { size: u32 = 0, padding: u32 = 4 }
    GetxattrOut 8 { size: u32 = 0, padding: u32 = 4 }
    LkOut 24 { lk: FileLock = 0 }
    IoctlOut 16 { result: i32 = 0, flags: u32 = 4, in_iovs: u32 = 8, out_iovs: u32 = 12 }
    LseekOut 8 { offset: u64 = 0 }
    CopyFileRangeOut 8 { bytes_copied: u64 = 0 }
    Dirent 24 { ino: u64 = 0, off: u64 = 8, namelen: u32 = 16, kind: u32 = 20 }
    NotifyInvalInode 24 { ino: u64 = 0, off: i64 = 8, len: i64 = 16 }
    NotifyInvalEntry 16 { parent: u64 = 0, namelen: u32 = 8, flags: u32 = 12 }
    NotifyDelete 24 { parent: u64 = 0, child: u64 = 8, namelen: u32 = 16, padding: u32 = 20 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_structure_is_taken_from_the_front_or_not_at_all() {
        let bytes: Vec<u8> = (0..20).collect();
        let (header, rest) = take::<OutHeader>(&bytes[1..]).unwrap();
        assert_eq!(header.len, u32::from_ne_bytes([1, 2, 3, 4]));
        assert_eq!(
            header.unique,
            u64::from_ne_bytes([9, 10, 11, 12, 13, 14, 15, 16])
        );
        assert_eq!(rest, [17, 18, 19]);
        assert_eq!(take::<OutHeader>(&bytes[..15]), None, "PROTOCOL-1");
    }

    #[test]
    fn bytes_and_structures_are_the_same() {
        let out = OpenOut {
            fh: 0x0102_0304_0506_0708,
            open_flags: 2,
            backing_id: -1,
        };
        let bytes = bytes_of(&out);
        assert_eq!(bytes[..8], 0x0102_0304_0506_0708_u64.to_ne_bytes());
        assert_eq!(bytes[12..], [0xff; 4]);
        assert_eq!(take::<OpenOut>(bytes), Some((out, &[][..])));
    }
}
