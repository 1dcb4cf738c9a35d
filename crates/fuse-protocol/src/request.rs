//! Bytes of a request to its arguments (`PROTOCOL-1`). Pure.
//!
//! A transport hands over the header and the body. In the body the fixed structure of the request
//! comes first and what has no fixed length after it; a transport may have them in one piece
//! (`/dev/fuse`) or in two.

use crate::arguments::{
    CopyRange, Fallocate, GetAttr, GetStatx, Ioctl, LockRequest, Make, OpenFlags, Read, Release,
    Rename, SetAttr, SetXattr, Write,
};
use crate::opcode::Opcode;
use crate::values::{HandleNumber, Lock, LockOwner, NodeNumber, TimeOrNow, time_ns};
use crate::wire;

mod body;
mod extensions;

pub(crate) use body::{Body, Malformed};
use extensions::decode_extensions;
pub use extensions::{Extensions, SecurityContext};

/// Who asks for what. The ids of users are `u32::MAX` where the mount maps users and the kernel
/// has none for them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Request {
    /// Names the request; no two have the same. A request that is sent again keeps it.
    pub unique: u64,
    /// What is asked for.
    pub opcode: Opcode,
    /// The node it is about; for names the parent.
    pub node: NodeNumber,
    /// The caller's user.
    pub uid: u32,
    /// The caller's group.
    pub gid: u32,
    /// The caller's thread.
    pub pid: u32,
    /// The request was sent before, to a server that may have done it.
    pub is_resent: bool,
    /// What the makers of nodes get beside, when it was negotiated.
    pub extensions: Extensions,
}

/// What was negotiated that changes the form of requests.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Dialect {
    pub(crate) setxattr_ext: bool,
}

/// What is asked for, with its arguments.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Operation<'r> {
    Lookup {
        name: &'r [u8],
    },
    Forget {
        count: u64,
    },
    BatchForget {
        list: &'r [u8],
    },
    Getattr(GetAttr),
    Statx(GetStatx),
    Setattr(SetAttr),
    Readlink,
    Symlink {
        name: &'r [u8],
        target: &'r [u8],
    },
    Mknod {
        name: &'r [u8],
        make: Make,
    },
    Mkdir {
        name: &'r [u8],
        make: Make,
    },
    Unlink {
        name: &'r [u8],
    },
    Rmdir {
        name: &'r [u8],
    },
    Rename(Rename<'r>),
    Link {
        node: NodeNumber,
        name: &'r [u8],
    },
    Open(OpenFlags),
    Create {
        name: &'r [u8],
        make: Make,
        open: OpenFlags,
    },
    Tmpfile {
        make: Make,
        open: OpenFlags,
    },
    Read {
        read: Read,
        len_bytes: u32,
    },
    Write(Write<'r>),
    Flush {
        handle: HandleNumber,
        owner: LockOwner,
    },
    Release(Release),
    Fsync {
        handle: HandleNumber,
        data_only: bool,
    },
    Setxattr(SetXattr<'r>),
    Getxattr {
        name: &'r [u8],
        capacity_bytes: u32,
    },
    Listxattr {
        capacity_bytes: u32,
    },
    Removexattr {
        name: &'r [u8],
    },
    Opendir(OpenFlags),
    Readdir {
        handle: HandleNumber,
        offset: u64,
        capacity_bytes: u32,
    },
    Readdirplus {
        handle: HandleNumber,
        offset: u64,
        capacity_bytes: u32,
    },
    Releasedir(Release),
    Fsyncdir {
        handle: HandleNumber,
        data_only: bool,
    },
    Getlk(LockRequest),
    Setlk(LockRequest),
    Setlkw(LockRequest),
    Access {
        mask: i32,
    },
    Ioctl(Ioctl<'r>),
    Fallocate(Fallocate),
    Lseek {
        handle: HandleNumber,
        offset: u64,
        whence: i32,
    },
    CopyFileRange {
        range: CopyRange,
        is_wide: bool,
    },
    Statfs,
    Syncfs,
    Destroy,
    Interrupt {
        unique: u64,
    },
}

/// A request as a transport has it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Incoming<'r> {
    pub(crate) header: wire::InHeader,
    /// The fixed structure, and in one piece with it the rest.
    fixed: &'r [u8],
    /// The rest, where the transport has it apart.
    apart: Option<&'r [u8]>,
}

impl<'r> Incoming<'r> {
    /// A request in one piece, as `/dev/fuse` gives it; the header's length must be that of
    /// `bytes`.
    pub(crate) fn whole(bytes: &'r [u8]) -> Result<Incoming<'r>, Malformed> {
        let (header, body) = wire::take::<wire::InHeader>(bytes).ok_or(Malformed)?;
        if header.len as usize != bytes.len() {
            return Err(Malformed);
        }
        Ok(Incoming {
            header,
            fixed: body,
            apart: None,
        })
    }

    /// A request in two pieces, as rings give it.
    pub(crate) fn apart(header: wire::InHeader, fixed: &'r [u8], rest: &'r [u8]) -> Incoming<'r> {
        Incoming {
            header,
            fixed,
            apart: Some(rest),
        }
    }

    /// The fixed structure, if it came apart from the rest: to be decoded.
    pub(crate) fn fixed(&self) -> &'r [u8] {
        self.fixed
    }

    /// The request itself, and who makes it.
    pub(crate) fn request(&self, opcode: Opcode) -> Result<(Request, Body<'r>), Malformed> {
        let header = &self.header;
        let mut body = Body {
            fixed: self.fixed,
            apart: self.apart,
        };
        let extensions = match header.total_extlen {
            0 => Extensions::default(),
            words => decode_extensions(body.cut_tail(usize::from(words) * 8)?)?,
        };
        let request = Request {
            unique: header.unique & !wire::UNIQUE_RESEND,
            opcode,
            node: NodeNumber(header.nodeid),
            uid: header.uid,
            gid: header.gid,
            pid: header.pid,
            is_resent: header.unique & wire::UNIQUE_RESEND != 0,
            extensions,
        };
        Ok((request, body))
    }
}

/// The lookups that the kernel gives up, from the list of a BATCH_FORGET.
pub(crate) fn forgets(list: &[u8]) -> impl Iterator<Item = (NodeNumber, u64)> + '_ {
    list.chunks_exact(size_of::<wire::ForgetOne>())
        .filter_map(|one| wire::take::<wire::ForgetOne>(one))
        .map(|(one, _)| (NodeNumber(one.nodeid), one.nlookup))
}

/// The arguments of `request`.
pub(crate) fn decode<'r>(
    request: &Request,
    mut body: Body<'r>,
    dialect: Dialect,
) -> Result<Operation<'r>, Malformed> {
    let body = &mut body;
    Ok(match request.opcode {
        Opcode::Lookup => Operation::Lookup { name: body.name()? },
        Opcode::Forget => Operation::Forget {
            count: body.fixed::<wire::ForgetIn>()?.nlookup,
        },
        Opcode::BatchForget => {
            let count = body.fixed::<wire::BatchForgetIn>()?.count;
            let len_bytes = count.checked_mul(size_of::<wire::ForgetOne>() as u32);
            Operation::BatchForget {
                list: body.data(len_bytes.ok_or(Malformed)?)?,
            }
        }
        Opcode::Getattr => {
            let fixed: wire::GetattrIn = body.fixed()?;
            Operation::Getattr(GetAttr {
                handle: handle_if(fixed.getattr_flags & wire::GETATTR_FH != 0, fixed.fh),
            })
        }
        Opcode::Statx => {
            let fixed: wire::StatxIn = body.fixed()?;
            Operation::Statx(GetStatx {
                handle: handle_if(fixed.getattr_flags & wire::GETATTR_FH != 0, fixed.fh),
                flags: fixed.sx_flags,
                mask: fixed.sx_mask,
            })
        }
        Opcode::Setattr => Operation::Setattr(set_attr(&body.fixed()?)),
        Opcode::Readlink => Operation::Readlink,
        Opcode::Symlink => Operation::Symlink {
            name: body.name()?,
            target: body.name()?,
        },
        Opcode::Mknod => {
            let fixed: wire::MknodIn = body.fixed()?;
            let make = Make {
                mode: fixed.mode,
                umask: fixed.umask,
                rdev: fixed.rdev,
            };
            Operation::Mknod {
                name: body.name()?,
                make,
            }
        }
        Opcode::Mkdir => {
            let fixed: wire::MkdirIn = body.fixed()?;
            let make = Make {
                mode: fixed.mode & !libc::S_IFMT | libc::S_IFDIR,
                umask: fixed.umask,
                rdev: 0,
            };
            Operation::Mkdir {
                name: body.name()?,
                make,
            }
        }
        Opcode::Unlink => Operation::Unlink { name: body.name()? },
        Opcode::Rmdir => Operation::Rmdir { name: body.name()? },
        Opcode::Rename => {
            let new_parent = body.fixed::<wire::RenameIn>()?.newdir;
            Operation::Rename(rename(request, body, new_parent, 0)?)
        }
        Opcode::Rename2 => {
            let fixed: wire::Rename2In = body.fixed()?;
            Operation::Rename(rename(request, body, fixed.newdir, fixed.flags)?)
        }
        Opcode::Link => Operation::Link {
            node: NodeNumber(body.fixed::<wire::LinkIn>()?.oldnodeid),
            name: body.name()?,
        },
        Opcode::Open => Operation::Open(open_flags(&body.fixed()?)),
        Opcode::Opendir => Operation::Opendir(open_flags(&body.fixed()?)),
        Opcode::Create => {
            let (make, open) = create(&body.fixed()?);
            Operation::Create {
                name: body.name()?,
                make,
                open,
            }
        }
        Opcode::Tmpfile => {
            let (make, open) = create(&body.fixed()?);
            Operation::Tmpfile { make, open }
        }
        Opcode::Read => {
            let fixed: wire::ReadIn = body.fixed()?;
            Operation::Read {
                read: read(&fixed),
                len_bytes: fixed.size,
            }
        }
        Opcode::Write => {
            let fixed: wire::WriteIn = body.fixed()?;
            Operation::Write(write(&fixed, body.data(fixed.size)?))
        }
        Opcode::Flush => {
            let fixed: wire::FlushIn = body.fixed()?;
            Operation::Flush {
                handle: HandleNumber(fixed.fh),
                owner: LockOwner(fixed.lock_owner),
            }
        }
        Opcode::Release => Operation::Release(release(&body.fixed()?)),
        Opcode::Releasedir => Operation::Releasedir(release(&body.fixed()?)),
        Opcode::Fsync => {
            let (handle, data_only) = fsync(&body.fixed()?);
            Operation::Fsync { handle, data_only }
        }
        Opcode::Fsyncdir => {
            let (handle, data_only) = fsync(&body.fixed()?);
            Operation::Fsyncdir { handle, data_only }
        }
        Opcode::Setxattr => Operation::Setxattr(set_xattr(body, dialect)?),
        Opcode::Getxattr => {
            let capacity_bytes = body.fixed::<wire::GetxattrIn>()?.size;
            Operation::Getxattr {
                name: body.name()?,
                capacity_bytes,
            }
        }
        Opcode::Listxattr => Operation::Listxattr {
            capacity_bytes: body.fixed::<wire::GetxattrIn>()?.size,
        },
        Opcode::Removexattr => Operation::Removexattr { name: body.name()? },
        Opcode::Readdir => {
            let (handle, offset, capacity_bytes) = listing(&body.fixed()?);
            Operation::Readdir {
                handle,
                offset,
                capacity_bytes,
            }
        }
        Opcode::Readdirplus => {
            let (handle, offset, capacity_bytes) = listing(&body.fixed()?);
            Operation::Readdirplus {
                handle,
                offset,
                capacity_bytes,
            }
        }
        Opcode::Getlk => Operation::Getlk(lock_request(&body.fixed()?)),
        Opcode::Setlk => Operation::Setlk(lock_request(&body.fixed()?)),
        Opcode::Setlkw => Operation::Setlkw(lock_request(&body.fixed()?)),
        Opcode::Access => Operation::Access {
            mask: body.fixed::<wire::AccessIn>()?.mask as i32,
        },
        Opcode::Ioctl => {
            let fixed: wire::IoctlIn = body.fixed()?;
            Operation::Ioctl(Ioctl {
                handle: HandleNumber(fixed.fh),
                flags: fixed.flags,
                command: fixed.cmd,
                argument: fixed.arg,
                data: body.data(fixed.in_size)?,
                out_bytes_max: fixed.out_size,
            })
        }
        Opcode::Fallocate => {
            let fixed: wire::FallocateIn = body.fixed()?;
            Operation::Fallocate(Fallocate {
                handle: HandleNumber(fixed.fh),
                offset: fixed.offset,
                len_bytes: fixed.length,
                mode: fixed.mode as i32,
            })
        }
        Opcode::Lseek => {
            let fixed: wire::LseekIn = body.fixed()?;
            Operation::Lseek {
                handle: HandleNumber(fixed.fh),
                offset: fixed.offset,
                whence: fixed.whence as i32,
            }
        }
        Opcode::CopyFileRange => Operation::CopyFileRange {
            range: copy_range(&body.fixed()?),
            is_wide: false,
        },
        Opcode::CopyFileRange64 => Operation::CopyFileRange {
            range: copy_range(&body.fixed()?),
            is_wide: true,
        },
        Opcode::Statfs => Operation::Statfs,
        Opcode::Syncfs => {
            body.fixed::<wire::SyncfsIn>()?;
            Operation::Syncfs
        }
        Opcode::Destroy => Operation::Destroy,
        Opcode::Interrupt => Operation::Interrupt {
            unique: body.fixed::<wire::InterruptIn>()?.unique,
        },
        // Only the first request is one, and it is decoded apart.
        Opcode::Init => return Err(Malformed),
    })
}

/// The first request, as far as the kernel sends it.
pub(crate) fn decode_init(incoming: &Incoming<'_>) -> Result<wire::InitIn, Malformed> {
    if let Some((long, _)) = wire::take::<wire::InitIn>(incoming.fixed) {
        return Ok(long);
    }
    let (short, _) = wire::take::<wire::InitInShort>(incoming.fixed).ok_or(Malformed)?;
    Ok(wire::InitIn {
        major: short.major,
        minor: short.minor,
        max_readahead: short.max_readahead,
        flags: short.flags,
        ..wire::InitIn::default()
    })
}

fn handle_if(is_there: bool, number: u64) -> Option<HandleNumber> {
    is_there.then_some(HandleNumber(number))
}

fn set_attr(fixed: &wire::SetattrIn) -> SetAttr {
    let has = |flag: u32| fixed.valid & flag != 0;
    let time = |flag, now, seconds: u64, nanoseconds| {
        has(flag).then(|| match has(now) {
            true => TimeOrNow::Now,
            false => TimeOrNow::At(time_ns(seconds as i64, nanoseconds)),
        })
    };
    SetAttr {
        mode: has(wire::FATTR_MODE).then_some(fixed.mode),
        uid: has(wire::FATTR_UID).then_some(fixed.uid),
        gid: has(wire::FATTR_GID).then_some(fixed.gid),
        size_bytes: has(wire::FATTR_SIZE).then_some(fixed.size),
        atime: time(
            wire::FATTR_ATIME,
            wire::FATTR_ATIME_NOW,
            fixed.atime,
            fixed.atimensec,
        ),
        mtime: time(
            wire::FATTR_MTIME,
            wire::FATTR_MTIME_NOW,
            fixed.mtime,
            fixed.mtimensec,
        ),
        ctime_ns: has(wire::FATTR_CTIME).then(|| time_ns(fixed.ctime as i64, fixed.ctimensec)),
        handle: handle_if(has(wire::FATTR_FH), fixed.fh),
        lock_owner: has(wire::FATTR_LOCKOWNER).then_some(LockOwner(fixed.lock_owner)),
        kill_suid_sgid: has(wire::FATTR_KILL_SUIDGID),
    }
}

fn rename<'r>(
    request: &Request,
    body: &mut Body<'r>,
    new_parent: u64,
    flags: u32,
) -> Result<Rename<'r>, Malformed> {
    Ok(Rename {
        parent: request.node,
        name: body.name()?,
        new_parent: NodeNumber(new_parent),
        new_name: body.name()?,
        flags,
    })
}

fn open_flags(fixed: &wire::OpenIn) -> OpenFlags {
    OpenFlags {
        flags: fixed.flags as i32,
        kill_suid_sgid: fixed.open_flags & wire::OPEN_KILL_SUIDGID != 0,
    }
}

fn create(fixed: &wire::CreateIn) -> (Make, OpenFlags) {
    let make = Make {
        mode: fixed.mode,
        umask: fixed.umask,
        rdev: 0,
    };
    let open = OpenFlags {
        flags: fixed.flags as i32,
        kill_suid_sgid: fixed.open_flags & wire::OPEN_KILL_SUIDGID != 0,
    };
    (make, open)
}

fn read(fixed: &wire::ReadIn) -> Read {
    // The kernel names the owner for direct reads only; pages are read for everybody.
    let is_direct = fixed.read_flags & wire::READ_LOCKOWNER != 0;
    Read {
        handle: HandleNumber(fixed.fh),
        offset: fixed.offset,
        is_direct,
        lock_owner: is_direct.then_some(LockOwner(fixed.lock_owner)),
        flags: fixed.flags as i32,
    }
}

fn write<'r>(fixed: &wire::WriteIn, data: &'r [u8]) -> Write<'r> {
    let has = |flag: u32| fixed.write_flags & flag != 0;
    Write {
        handle: HandleNumber(fixed.fh),
        offset: fixed.offset,
        data,
        is_from_cache: has(wire::WRITE_CACHE),
        lock_owner: has(wire::WRITE_LOCKOWNER).then_some(LockOwner(fixed.lock_owner)),
        kill_suid_sgid: has(wire::WRITE_KILL_SUIDGID),
        flags: fixed.flags as i32,
    }
}

fn release(fixed: &wire::ReleaseIn) -> Release {
    let has_flock = fixed.release_flags & wire::RELEASE_FLOCK_UNLOCK != 0;
    Release {
        handle: HandleNumber(fixed.fh),
        flags: fixed.flags as i32,
        flock_owner: has_flock.then_some(LockOwner(fixed.lock_owner)),
    }
}

fn fsync(fixed: &wire::FsyncIn) -> (HandleNumber, bool) {
    let data_only = fixed.fsync_flags & wire::FSYNC_FDATASYNC != 0;
    (HandleNumber(fixed.fh), data_only)
}

fn set_xattr<'r>(body: &mut Body<'r>, dialect: Dialect) -> Result<SetXattr<'r>, Malformed> {
    let fixed = if dialect.setxattr_ext {
        body.fixed::<wire::SetxattrIn>()?
    } else {
        let short: wire::SetxattrInShort = body.fixed()?;
        wire::SetxattrIn {
            size: short.size,
            flags: short.flags,
            ..wire::SetxattrIn::default()
        }
    };
    Ok(SetXattr {
        name: body.name()?,
        value: body.data(fixed.size)?,
        flags: fixed.flags as i32,
        acl_kill_sgid: fixed.setxattr_flags & wire::SETXATTR_ACL_KILL_SGID != 0,
    })
}

fn listing(fixed: &wire::ReadIn) -> (HandleNumber, u64, u32) {
    (HandleNumber(fixed.fh), fixed.offset, fixed.size)
}

fn lock_request(fixed: &wire::LkIn) -> LockRequest {
    LockRequest {
        handle: HandleNumber(fixed.fh),
        owner: LockOwner(fixed.owner),
        lock: Lock {
            start: fixed.lk.start,
            end: fixed.lk.end,
            kind: fixed.lk.kind as i32,
            pid: fixed.lk.pid,
        },
        is_flock: fixed.lk_flags & wire::LK_FLOCK != 0,
    }
}

fn copy_range(fixed: &wire::CopyFileRangeIn) -> CopyRange {
    CopyRange {
        from: HandleNumber(fixed.fh_in),
        from_offset: fixed.off_in,
        to_node: NodeNumber(fixed.nodeid_out),
        to: HandleNumber(fixed.fh_out),
        to_offset: fixed.off_out,
        len_bytes: fixed.len,
    }
}

#[cfg(test)]
mod tests;
