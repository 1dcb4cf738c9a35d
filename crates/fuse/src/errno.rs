//! The one place where failures become errno (`FUSE-5`).

use larder::{Error, ErrorKind};
use larder_fuse_protocol::Errno;
use std::fmt::Display;

/// The errno of a failed call that names an entry by its parent and name. Failures that the user
/// cannot mend are logged, with `what` in front.
pub(crate) fn errno(error: &Error, what: impl Display) -> Errno {
    match severity(error.kind()) {
        Severity::Ordinary => tracing::debug!("{what}: {error}"),
        Severity::Refused => tracing::warn!("{what}: {error}"),
        Severity::Broken => tracing::error!("{what}: {error}"),
    }
    errno_of(error.kind())
}

/// The errno of a failed call that names a node by its number. A node that is gone is `ESTALE`, not
/// `ENOENT`: the kernel then looks the path up again instead of trusting what it has cached.
pub(crate) fn node_errno(error: &Error, what: impl Display) -> Errno {
    match errno(error, what) {
        Errno::ENOENT => Errno::ESTALE,
        other => other,
    }
}

fn errno_of(kind: ErrorKind) -> Errno {
    match kind {
        ErrorKind::NotFound => Errno::ENOENT,
        ErrorKind::Exists => Errno::EEXIST,
        ErrorKind::NotADirectory => Errno::ENOTDIR,
        ErrorKind::IsADirectory => Errno::EISDIR,
        ErrorKind::NotEmpty => Errno::ENOTEMPTY,
        ErrorKind::InvalidInput => Errno::EINVAL,
        ErrorKind::NameTooLong => Errno::ENAMETOOLONG,
        ErrorKind::TooManyLinks => Errno::EMLINK,
        ErrorKind::TooManySymlinks => Errno::ELOOP,
        ErrorKind::FileTooLarge => Errno::EFBIG,
        ErrorKind::NoAttribute => Errno::ENODATA,
        ErrorKind::TooBig => Errno::E2BIG,
        ErrorKind::NoSpace => Errno::ENOSPC,
        ErrorKind::ReadOnly => Errno::EROFS,
        ErrorKind::NotPermitted => Errno::EPERM,
        ErrorKind::Unsupported => Errno::EOPNOTSUPP,
        ErrorKind::CrossStore => Errno::EXDEV,
        ErrorKind::Busy | ErrorKind::TimedOut => Errno::EBUSY,
        ErrorKind::Conflict => Errno::EAGAIN,
        // A constraint or trigger of the user's own refused the change: no device failed.
        ErrorKind::Sql => Errno::EINVAL,
        ErrorKind::Corrupt
        | ErrorKind::Io
        | ErrorKind::Stopped
        | ErrorKind::NotADatabase
        | ErrorKind::NewerFormat
        | ErrorKind::OlderFormat => Errno::EIO,
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Severity {
    /// Part of normal life: the caller sees the errno and that is all.
    Ordinary,
    /// The errno says too little; the log has the cause.
    Refused,
    /// Data or device are damaged, or the session has ended.
    Broken,
}

fn severity(kind: ErrorKind) -> Severity {
    match kind {
        ErrorKind::NotFound
        | ErrorKind::Exists
        | ErrorKind::NotADirectory
        | ErrorKind::IsADirectory
        | ErrorKind::NotEmpty
        | ErrorKind::InvalidInput
        | ErrorKind::NameTooLong
        | ErrorKind::TooManyLinks
        | ErrorKind::TooManySymlinks
        | ErrorKind::FileTooLarge
        | ErrorKind::NoAttribute
        | ErrorKind::TooBig
        | ErrorKind::ReadOnly
        | ErrorKind::NotPermitted
        | ErrorKind::Unsupported
        | ErrorKind::CrossStore => Severity::Ordinary,
        ErrorKind::NoSpace
        | ErrorKind::Busy
        | ErrorKind::TimedOut
        | ErrorKind::Conflict
        | ErrorKind::Sql => Severity::Refused,
        ErrorKind::Corrupt
        | ErrorKind::Io
        | ErrorKind::Stopped
        | ErrorKind::NotADatabase
        | ErrorKind::NewerFormat
        | ErrorKind::OlderFormat => Severity::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_have_the_errno_that_posix_asks_for() {
        for (kind, code) in [
            (ErrorKind::NotFound, libc::ENOENT),
            (ErrorKind::Exists, libc::EEXIST),
            (ErrorKind::NotADirectory, libc::ENOTDIR),
            (ErrorKind::IsADirectory, libc::EISDIR),
            (ErrorKind::NotEmpty, libc::ENOTEMPTY),
            (ErrorKind::InvalidInput, libc::EINVAL),
            (ErrorKind::NameTooLong, libc::ENAMETOOLONG),
            (ErrorKind::TooManyLinks, libc::EMLINK),
            (ErrorKind::TooManySymlinks, libc::ELOOP),
            (ErrorKind::FileTooLarge, libc::EFBIG),
            (ErrorKind::NoAttribute, libc::ENODATA),
            (ErrorKind::TooBig, libc::E2BIG),
            (ErrorKind::NoSpace, libc::ENOSPC),
            (ErrorKind::ReadOnly, libc::EROFS),
            (ErrorKind::NotPermitted, libc::EPERM),
            (ErrorKind::Unsupported, libc::EOPNOTSUPP),
            (ErrorKind::CrossStore, libc::EXDEV),
            (ErrorKind::Busy, libc::EBUSY),
            (ErrorKind::TimedOut, libc::EBUSY),
            (ErrorKind::Conflict, libc::EAGAIN),
            (ErrorKind::Sql, libc::EINVAL),
            (ErrorKind::Corrupt, libc::EIO),
            (ErrorKind::Io, libc::EIO),
            (ErrorKind::Stopped, libc::EIO),
            (ErrorKind::NotADatabase, libc::EIO),
            (ErrorKind::NewerFormat, libc::EIO),
            (ErrorKind::OlderFormat, libc::EIO),
        ] {
            let error = Error::new(kind, "told by a test");
            assert_eq!(errno(&error, "test").code(), code, "FUSE-5: {kind:?}");
            let code = if code == libc::ENOENT {
                libc::ESTALE
            } else {
                code
            };
            assert_eq!(node_errno(&error, "test").code(), code, "FUSE-5: {kind:?}");
            assert_eq!(
                code == libc::EIO,
                severity(kind) == Severity::Broken,
                "FUSE-5: {kind:?}"
            );
        }
    }
}
