//! Flags of system calls in the words of the Content API. Pure.

use larder::{AllocateMode, RenameMode, SeekTarget, XattrMode};
use larder_fuse_protocol::Errno;

/// ACLs live under this prefix. The kernel would not enforce what was stored there.
const SYSTEM_PREFIX: &[u8] = b"system.";

/// `renameat2(2)`; `EINVAL` for combinations and for `RENAME_WHITEOUT`.
pub(crate) fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        _ => Err(Errno::EINVAL),
    }
}

/// `fallocate(2)`; `EOPNOTSUPP` for the modes that insert and collapse ranges.
pub(crate) fn allocate_mode(mode: i32) -> Result<AllocateMode, Errno> {
    let keep_size = mode & libc::FALLOC_FL_KEEP_SIZE != 0;
    match mode & !libc::FALLOC_FL_KEEP_SIZE {
        0 => Ok(AllocateMode::Allocate { keep_size }),
        libc::FALLOC_FL_PUNCH_HOLE if keep_size => Ok(AllocateMode::PunchHole),
        libc::FALLOC_FL_ZERO_RANGE => Ok(AllocateMode::ZeroRange { keep_size }),
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

/// `setxattr(2)`; `EINVAL` for unknown flags.
pub(crate) fn xattr_mode(flags: i32) -> Result<XattrMode, Errno> {
    match flags {
        0 => Ok(XattrMode::Set),
        libc::XATTR_CREATE => Ok(XattrMode::Create),
        libc::XATTR_REPLACE => Ok(XattrMode::Replace),
        _ => Err(Errno::EINVAL),
    }
}

/// A name that may be stored; `EOPNOTSUPP` for the rest.
pub(crate) fn xattr_name(name: &[u8]) -> Result<&[u8], Errno> {
    if name.starts_with(SYSTEM_PREFIX) {
        Err(Errno::EOPNOTSUPP)
    } else {
        Ok(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn flags_are_translated_or_refused() {
        assert_eq!(seek_target(libc::SEEK_HOLE), Ok(SeekTarget::Hole));
        assert_eq!(seek_target(libc::SEEK_SET), Err(Errno::EINVAL));
        assert_eq!(xattr_mode(libc::XATTR_CREATE), Ok(XattrMode::Create));
        assert_eq!(
            xattr_mode(libc::XATTR_CREATE | libc::XATTR_REPLACE),
            Err(Errno::EINVAL)
        );
        assert_eq!(rename_mode(0), Ok(RenameMode::Replace));
        assert_eq!(
            rename_mode(libc::RENAME_NOREPLACE),
            Ok(RenameMode::NoReplace)
        );
        assert_eq!(rename_mode(libc::RENAME_EXCHANGE), Ok(RenameMode::Exchange));
        for flags in [
            libc::RENAME_WHITEOUT,
            libc::RENAME_EXCHANGE | libc::RENAME_NOREPLACE,
            1 << 20,
        ] {
            assert_eq!(rename_mode(flags), Err(Errno::EINVAL));
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
        for mode in [
            libc::FALLOC_FL_PUNCH_HOLE,
            libc::FALLOC_FL_COLLAPSE_RANGE,
            libc::FALLOC_FL_INSERT_RANGE,
        ] {
            assert_eq!(allocate_mode(mode), Err(Errno::EOPNOTSUPP));
        }
    }

    #[test]
    fn acls_are_refused_rather_than_stored_and_ignored() {
        assert_eq!(
            xattr_name(b"system.posix_acl_access"),
            Err(Errno::EOPNOTSUPP)
        );
        assert_eq!(xattr_name(b"user.system.x"), Ok(&b"user.system.x"[..]));
    }
}
