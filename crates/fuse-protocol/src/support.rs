//! Whether requests can come by io_uring here.

use crate::errno::Errno;
use crate::rings::probe;
use rustix::system::uname;

const PARAMETER_PATH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Whether the kernel hands over requests by io_uring, and to this process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IoUringSupport {
    /// It cannot: it is older than 6.14, or built without.
    Missing,
    /// It can, and this process gets no io_uring.
    Refused(Errno),
    /// It can, and uses memory after it has freed it when a mount is aborted (CVE-2025-68805): all
    /// from 6.14 on, before 6.18.3. By the number of the version, which says nothing of what a
    /// distribution has mended.
    Faulty,
    /// It can, and root has not allowed it.
    Disabled,
    /// New mounts may have it.
    Enabled,
}

impl IoUringSupport {
    /// Of the running kernel. Makes an io_uring like those of a mount, to see that it can.
    pub fn detect() -> IoUringSupport {
        let Ok(parameter) = std::fs::read_to_string(PARAMETER_PATH) else {
            return IoUringSupport::Missing;
        };
        match probe() {
            Err(error) => IoUringSupport::Refused(error),
            Ok(()) if kernel_is_faulty() => IoUringSupport::Faulty,
            Ok(()) => IoUringSupport::from_parameter(&parameter),
        }
    }

    fn from_parameter(text: &str) -> IoUringSupport {
        match text.trim() {
            "Y" | "1" => IoUringSupport::Enabled,
            _ => IoUringSupport::Disabled,
        }
    }

    /// What to do to have it; empty where nothing is to be done.
    pub fn remedy(self) -> &'static str {
        match self {
            IoUringSupport::Missing => "use Linux 6.14 or later, built with CONFIG_FUSE_IO_URING",
            IoUringSupport::Refused(Errno::EPERM | Errno::ENOSYS | Errno::EACCES) => {
                "as root: 'sysctl kernel.io_uring_disabled=0', or 'sysctl kernel.io_uring_group=' \
                 with a group of yours; in a container allow io_uring_setup, io_uring_enter and \
                 io_uring_register in its seccomp profile"
            }
            IoUringSupport::Refused(_) => "raise the limits of open files and of memory",
            IoUringSupport::Faulty => "use Linux 6.18.3 or later",
            IoUringSupport::Disabled => {
                "as root: 'echo 1 > /sys/module/fuse/parameters/enable_uring', or \
                 'fuse.enable_uring=1' on the kernel's command line"
            }
            IoUringSupport::Enabled => "",
        }
    }
}

/// See [`IoUringSupport::Faulty`].
pub(crate) fn kernel_is_faulty() -> bool {
    is_faulty(&uname().release().to_string_lossy())
}

/// A release that cannot be read is taken for a good one.
fn is_faulty(release: &str) -> bool {
    let end = release.find(|c: char| c != '.' && !c.is_ascii_digit());
    let mut numbers = release[..end.unwrap_or(release.len())].split('.');
    let mut number = || numbers.next().and_then(|number| number.parse().ok());
    let (major, minor): (Option<u32>, Option<u32>) = (number(), number());
    let third: u32 = number().unwrap_or(0);
    match (major, minor) {
        (Some(6), Some(14..=17)) => true,
        (Some(6), Some(18)) => third < 3,
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_parameter_of_the_kernel_is_read() {
        for (text, support) in [
            ("Y\n", IoUringSupport::Enabled),
            ("1", IoUringSupport::Enabled),
            ("N\n", IoUringSupport::Disabled),
        ] {
            assert_eq!(IoUringSupport::from_parameter(text), support);
        }
        assert!(IoUringSupport::Disabled.remedy().contains("enable_uring"));
        let forbidden = IoUringSupport::Refused(Errno::EPERM).remedy();
        assert!(forbidden.contains("io_uring_group") && forbidden.contains("seccomp"));
    }

    #[test]
    fn kernels_before_the_fix_are_known() {
        for faulty in ["6.14.0", "6.17.9-arch1", "6.18", "6.18.0-rc7", "6.18.2"] {
            assert!(is_faulty(faulty), "{faulty}");
        }
        for good in [
            "6.18.3",
            "6.18.44-fc",
            "6.19.0",
            "7.0.1",
            "6.12.60",
            "5.4",
            "",
            "x",
        ] {
            assert!(!is_faulty(good), "{good}");
        }
    }
}
