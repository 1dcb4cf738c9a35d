//! Flags of system calls in the words of the Content API. Pure.

use larder::{AllocateMode, Caller, RenameMode, SeekTarget, XattrMode};
use larder_fuse_protocol::Errno;

/// `renameat2(2)`, asked for by `caller`; `EINVAL` for combinations.
pub(crate) fn rename_mode(flags: u32, caller: Caller) -> Result<RenameMode, Errno> {
    match flags {
        libc::RENAME_WHITEOUT => Ok(RenameMode::Whiteout(caller)),
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    }
}

/// `fallocate(2)`; `EOPNOTSUPP` for other combinations. Nothing here is shared, so that to unshare
/// is to allocate.
pub(crate) fn allocate_mode(mode: i32) -> Result<AllocateMode, Errno> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(AllocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(AllocateMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size }),
        libc::FALLOC_FL_UNSHARE_RANGE => Ok(AllocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_INSERT_RANGE if !keep_size => Ok(AllocateMode::InsertRange),
        libc::FALLOC_FL_COLLAPSE_RANGE if !keep_size => Ok(AllocateMode::CollapseRange),
        _ => Err(Errno::EOPNOTSUPP),
    }
}

/// `EINVAL` for anything but `SEEK_DATA` and `SEEK_HOLE`: the kernel does the others itself.
pub(crate) fn seek_target(whence: i32) -> Result<SeekTarget, Errno> {
    match whence {
        libc::SEEK_DATA => Ok(SeekTarget::Data),
        libc::SEEK_HOLE => Ok(SeekTarget::Hole),
        _ => Err(Errno::EINVAL),
    }
}

/// `setxattr(2)`; `EINVAL` for unknown flags. Access control lists come without flags.
pub(crate) fn xattr_mode(flags: i32, drops_setgid: bool) -> Result<XattrMode, Errno> {
    match flags {
        0 if drops_setgid => Ok(XattrMode::SetDroppingSetgid),
        0 => Ok(XattrMode::Set),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::EINVAL),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_translated_or_refused() {
        assert_eq!(seek_target(libc::SEEK_HOLE), Ok(SeekTarget::Hole));
        assert_eq!(seek_target(libc::SEEK_SET), Err(Errno::EINVAL));
        assert_eq!(xattr_mode(libc::XATTR_CREATE, false), Ok(XattrMode::Create));
        assert_eq!(
            xattr_mode(libc::XATTR_CREATE | libc::XATTR_REPLACE, false),
            Err(Errno::EINVAL)
        );
        assert_eq!(xattr_mode(0, true), Ok(XattrMode::SetDroppingSetgid));
        let caller = Caller {
            uid: 1,
            gid: 2,
            umask: 0,
        };
        for (flags, mode) in [
            (0, RenameMode::Replace),
            (libc::RENAME_NOREPLACE, RenameMode::NoReplace),
            (libc::RENAME_EXCHANGE, RenameMode::Exchange),
            (libc::RENAME_WHITEOUT, RenameMode::Whiteout(caller)),
        ] {
            assert_eq!(rename_mode(flags, caller), Ok(mode));
        }
        for flags in [
            libc::RENAME_WHITEOUT | libc::RENAME_EXCHANGE,
            libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE,
            1 << 20,
        ] {
            assert_eq!(rename_mode(flags, caller), Err(Errno::EINVAL));
        }
        let keep = libc::FALLOC_FL_KEEP_SIZE;
        assert_eq!(
            allocate_mode(0),
            Ok(AllocateMode::Allocate { keep_size: false })
        );
        assert_eq!(
            allocate_mode(keep),
            Ok(AllocateMode::Allocate { keep_size: true })
        );
        assert_eq!(
            allocate_mode(libc::FALLOC_FL_PUNCH_HOLE | keep),
            Ok(AllocateMode::PunchHole)
        );
        assert_eq!(
            allocate_mode(libc::FALLOC_FL_ZERO_RANGE),
            Ok(AllocateMode::ZeroRange { keep_size: false })
        );
        assert_eq!(
            allocate_mode(libc::FALLOC_FL_COLLAPSE_RANGE),
            Ok(AllocateMode::CollapseRange)
        );
        assert_eq!(
            allocate_mode(libc::FALLOC_FL_INSERT_RANGE),
            Ok(AllocateMode::InsertRange)
        );
        for mode in [
            libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_COLLAPSE_RANGE | keep,
            libc::FALLOC_FL_INSERT_RANGE | libc::FALLOC_FL_ZERO_RANGE,
        ] {
            assert_eq!(allocate_mode(mode), Err(Errno::EOPNOTSUPP));
        }
    }
}
