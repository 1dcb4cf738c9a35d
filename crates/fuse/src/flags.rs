//! Inode flags by ioctl, as lsattr(1) and chattr(1) ask for them.
//!
//! The kernel opens what it asks about by itself, and has checked who may change which flag
//! (`CAP_LINUX_IMMUTABLE`, the owner) before it sends them. What they forbid, the Content API
//! refuses (`FLAGS-1`): the kernel does not know of them, so statx(2) does not show them.

use crate::bridge::{Bridge, Call};
use crate::convert::node_of;
use crate::errno::node_errno;
use larder::{FileKind, InodeFlags};
use larder_fuse_protocol::{Errno, Ioctl, IoctlReply};

/// `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS`, of 64 and of 32 bits; the kernel sends the first.
const GET: [u32; 2] = [0x8008_6601, 0x8004_6601];
pub(crate) const SET: [u32; 2] = [0x4008_6602, 0x4004_6602];
/// `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR`: a `struct fsxattr`, of which only the first field,
/// the flags, means something here.
const GET_EXTENDED: u32 = 0x801c_581f;
const SET_EXTENDED: u32 = 0x401c_5820;
const EXTENDED_BYTES: usize = 28;
/// The same flags there and here (`FS_XFLAG_*`).
const EXTENDED: [(u32, InodeFlags); 4] = [
    (0x8, InodeFlags::IMMUTABLE),
    (0x10, InodeFlags::APPEND),
    (0x40, InodeFlags::NO_ATIME),
    (0x80, InodeFlags::NO_DUMP),
];

/// Answers an ioctl.
pub(crate) fn control(
    bridge: &Bridge,
    call: &Call<'_>,
    ioctl: &Ioctl<'_>,
) -> Result<IoctlReply, Errno> {
    let is_extended = ioctl.command == GET_EXTENDED;
    if is_extended || GET.contains(&ioctl.command) {
        return flags_of(bridge, call, is_extended);
    }
    let flags = decode(ioctl.command, ioctl.data)?;
    let node = call.request.node;
    (bridge.database.set_flags(node_of(node), flags))
        .map_err(|error| node_errno(&error, format_args!("set flags of {node}")))?;
    bridge.show_again(node);
    Ok(IoctlReply {
        result: 0,
        data: Vec::new(),
    })
}

fn flags_of(bridge: &Bridge, call: &Call<'_>, is_extended: bool) -> Result<IoctlReply, Errno> {
    bridge.freshen()?;
    let node = call.request.node;
    let attr = (bridge.database.attr(node_of(node)))
        .map_err(|error| node_errno(&error, format_args!("flags of {node}")))?;
    if !matches!(attr.kind, FileKind::File | FileKind::Directory) {
        return Err(Errno::ENOTTY);
    }
    let data = match is_extended {
        false => attr.flags.bits().to_le_bytes().to_vec(),
        true => {
            let shown = EXTENDED.iter().filter(|(_, flag)| attr.flags.has(*flag));
            let bits: u32 = shown.map(|(bit, _)| bit).sum();
            let mut data = bits.to_le_bytes().to_vec();
            data.resize(EXTENDED_BYTES, 0);
            data
        }
    };
    Ok(IoctlReply { result: 0, data })
}

/// The flags that a command sets.
pub(crate) fn decode(command: u32, data: &[u8]) -> Result<InodeFlags, Errno> {
    let bits = match command {
        SET_EXTENDED => decode_extended(data)?,
        command if SET.contains(&command) => first(data)?,
        _ => return Err(Errno::ENOTTY),
    };
    InodeFlags::from_bits(bits).ok_or(Errno::EOPNOTSUPP)
}

fn first(data: &[u8]) -> Result<u32, Errno> {
    let bytes = data.first_chunk().ok_or(Errno::EINVAL)?;
    Ok(u32::from_le_bytes(*bytes))
}

fn decode_extended(data: &[u8]) -> Result<u32, Errno> {
    let (mut bits, mut flags) = (first(data)?, 0);
    for (bit, flag) in EXTENDED {
        if bits & bit != 0 {
            flags |= flag.bits();
            bits &= !bit;
        }
    }
    // Extents to allocate at once, projects and so on are not kept.
    match bits == 0 && data[4..].iter().all(|&byte| byte == 0) {
        true => Ok(flags),
        false => Err(Errno::EOPNOTSUPP),
    }
}
