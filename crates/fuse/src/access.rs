//! Which readings change a time of access, and what the kernel is told of that.
//!
//! The kernel keeps no times of FUSE. It says what is read when it has no page of it: that asks for
//! the attributes again by itself. What is read from its pages it does not say, so opening a file
//! for reading alone counts as reading it, once the kernel got pages of it (`FUSE-20`). Who opens
//! it for writing too often does not read it.

use crate::convert::slot_of_number;
use crate::mountinfo::find_options;
use crate::options::{AccessTimes, MountOptions};
use larder::AccessRule;
use larder_fuse_protocol::NodeNumber;
use std::sync::atomic::{AtomicBool, Ordering};

/// Options of a mount with which the kernel would change no time of access.
const OFF: [&[u8]; 2] = [b"ro", b"noatime"];

/// The rule of one mount.
pub(crate) struct Access {
    files: AccessRule,
    directories: AccessRule,
    /// By what the mount's flags say now: they may be changed (`mount -o remount`).
    is_off: AtomicBool,
}

impl Access {
    pub(crate) fn new(options: &MountOptions) -> Access {
        let is_past = options.read_only || options.as_of.is_some();
        let rule = match options.access_times {
            _ if is_past => AccessRule::Never,
            AccessTimes::Never => AccessRule::Never,
            AccessTimes::Relative => AccessRule::Relative,
            AccessTimes::Strict => AccessRule::Strict,
        };
        Access {
            files: rule,
            directories: match options.has_directory_times {
                true => rule,
                false => AccessRule::Never,
            },
            is_off: AtomicBool::new(false),
        }
    }

    /// Looks at the flags of the mount with that id.
    pub(crate) fn look(&self, mount: u32) {
        if self.files == AccessRule::Never {
            return;
        }
        match find_options(mount) {
            Ok(Some(options)) => {
                let mut options = options.split(|&byte| byte == b',');
                let is_off = options.any(|option| OFF.contains(&option));
                self.is_off.store(is_off, Ordering::Relaxed);
            }
            Ok(None) => {}
            Err(error) => tracing::debug!("the flags of the mount: {error}"),
        }
    }

    /// What reading a node does to its time.
    pub(crate) fn rule(&self, node: NodeNumber, is_directory: bool) -> AccessRule {
        // What is below `.larder` never changes.
        if slot_of_number(node).is_some() || self.is_off.load(Ordering::Relaxed) {
            return AccessRule::Never;
        }
        match is_directory {
            true => self.directories,
            false => self.files,
        }
    }
}
