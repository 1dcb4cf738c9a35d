//! Reading notes times of access, as the mount's rule wants.

use super::{Bridge, Call, OpenFile};
use crate::convert::node_of;
use larder::{AccessRule, Error};
use larder_fuse_protocol::{Errno, NodeNumber, OpenFlags};

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
