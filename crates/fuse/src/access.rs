//! Which readings change a time of access, and what the kernel is told of that.
//!
//! The kernel keeps no times of FUSE. It says what is read when it has no page of it: that asks for
//! the attributes again by itself. What is read from its pages it does not say, so opening a file
//! for reading alone counts as reading it (`FUSE-20`). Who opens it for writing too often does not
//! read it.

use crate::bridge::{Bridge, Call, OpenFile};
use crate::convert::{node_of, slot_of_number};
use crate::mountinfo::find_options;
use crate::options::{AccessTimes, MountOptions};
use larder::{AccessRule, Error};
use larder_fuse_protocol::{Errno, NodeNumber, OpenFlags};
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

    fn rule(&self, node: NodeNumber, is_directory: bool) -> AccessRule {
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

impl Bridge {
    /// A file is opened: later reads of its pages may not come here. The kernel shall ask for its
    /// attributes again, before whoever opens it may.
    pub(crate) fn note_opened(&self, call: &Call<'_>, file: &OpenFile, open: OpenFlags) {
        if !open.is_write() && self.note_read(call, file, open.flags) {
            self.show_again(call.request.node);
        }
    }

    /// The kernel shall ask for the attributes again. FUSE-2: that takes no lock, and leaves pages
    /// alone.
    pub(crate) fn show_again(&self, node: NodeNumber) {
        match self.notifier.inval_inode(node, -1, 0) {
            Ok(()) | Err(Errno::ENOENT) => {}
            Err(error) => tracing::debug!("attributes of {node} are shown late: {error}"),
        }
    }

    /// A file is read by a handle that was opened with `flags`; says whether its time of access is
    /// another one now.
    pub(crate) fn note_read(&self, call: &Call<'_>, file: &OpenFile, flags: i32) -> bool {
        let node = call.request.node;
        match flags & libc::O_NOATIME {
            0 => is_noted(node, file.note_access(self.access.rule(node, false))),
            _ => false,
        }
    }

    /// A directory is listed, or a symbolic link read: the kernel asks for the attributes then.
    pub(crate) fn note_looked(&self, node: NodeNumber, is_directory: bool) {
        let rule = self.access.rule(node, is_directory);
        if rule != AccessRule::Never {
            is_noted(node, self.database.note_access(node_of(node), rule));
        }
    }
}

/// What was read was read, whatever becomes of its time.
fn is_noted(node: NodeNumber, noted: Result<bool, Error>) -> bool {
    noted.unwrap_or_else(|error| {
        tracing::debug!("the time of access of {node} stays: {error}");
        false
    })
}
