//! Error numbers: what a handler answers when it fails.

use std::fmt;
use std::io;

/// An error number of the system, 1 to 4095: the kernel takes no others.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(i32);

macro_rules! errnos {
    ($($name:ident)+) => {
        impl Errno {
            $(#[doc = concat!("`", stringify!($name), "`, see errno(3).")]
            pub const $name: Errno = Errno(libc::$name);)+

            /// The name, as in errno(3), of those that have a constant here.
            pub fn name(self) -> Option<&'static str> {
                match self {
                    $(Errno::$name => Some(stringify!($name)),)+
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    E2BIG EACCES EAGAIN EBADF EBUSY ECANCELED ECONNABORTED EDEADLK EEXIST EFAULT EFBIG EINTR
    EINVAL EIO EISDIR ELOOP EMFILE
    EMLINK ENAMETOOLONG ENFILE ENODATA ENODEV ENOENT ENOLCK ENOMEM ENOSPC ENOSYS ENOTCONN ENOTDIR
    ENOTEMPTY ENOTTY ENXIO EOPNOTSUPP EOVERFLOW EPERM EPROTO ERANGE EROFS ESTALE ETIMEDOUT ETXTBSY
    EXDEV
}

impl Errno {
    /// The error with this number; `EIO` for what is no error number.
    pub const fn from_code(code: i32) -> Errno {
        if code > 0 && code < 4096 {
            Errno(code)
        } else {
            Errno::EIO
        }
    }

    /// The positive number.
    pub const fn code(self) -> i32 {
        self.0
    }
}

impl From<rustix::io::Errno> for Errno {
    fn from(error: rustix::io::Errno) -> Errno {
        Errno::from_code(error.raw_os_error())
    }
}

impl From<io::Error> for Errno {
    /// `EIO` for errors that the system did not make.
    fn from(error: io::Error) -> Errno {
        Errno::from_code(error.raw_os_error().unwrap_or(0))
    }
}

impl From<Errno> for io::Error {
    fn from(errno: Errno) -> io::Error {
        io::Error::from_raw_os_error(errno.code())
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => out.write_str(name),
            None => write!(out, "errno {}", self.0),
        }
    }
}

impl fmt::Display for Errno {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}", io::Error::from(*self))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_numbers_that_the_kernel_takes_are_errors() {
        assert_eq!(Errno::from_code(libc::ENOSPC), Errno::ENOSPC);
        for code in [0, -libc::ENOENT, 4096] {
            assert_eq!(Errno::from_code(code), Errno::EIO);
        }
        assert_eq!(
            Errno::from(io::Error::from_raw_os_error(libc::EDQUOT)).code(),
            libc::EDQUOT
        );
        assert_eq!(Errno::from(io::Error::other("ours")), Errno::EIO);
        assert_eq!(format!("{:?}", Errno::ESTALE), "ESTALE");
    }
}
