//! Reading notes times of access, as the mount's rule wants.

use super::{Bridge, Call, OpenFile};
use crate::convert::node_of;
use larder::{AccessRule, Error};
use larder_fuse_protocol::{Errno, NodeNumber};
use std::sync::atomic::Ordering;

impl Bridge {
    /// A file is opened: where the kernel has pages, or knows that there is nothing to read, later
    /// reads may not come here. Else the first one does, after which the kernel asks for the
    /// attributes by itself; to tell it would cost each file that is read for the first time a
    /// GETATTR.
    pub(crate) fn note_opened(&self, call: &Call<'_>, file: &OpenFile) {
        let is_empty = || file.metadata().is_ok_and(|attr| attr.size_bytes == 0);
        let may_be_unseen = || self.known.has_pages(call.request.node) || is_empty();
        if !file.flags.is_write() && may_be_unseen() {
            self.note_unseen_read(call, file);
        }
    }

    /// A file is read by something after which the kernel does not ask for the attributes by
    /// itself: it shall, before whoever reads may.
    pub(crate) fn note_unseen_read(&self, call: &Call<'_>, file: &OpenFile) {
        if self.note_read(call, file, file.flags.flags) {
            self.show_again(call.request.node);
        }
    }

    /// The kernel is about to keep pages of an open file.
    pub(crate) fn note_pages(&self, file: &OpenFile) {
        if !file.has_pages.load(Ordering::Relaxed) {
            self.known.note_pages(file.way.node());
            file.has_pages.store(true, Ordering::Relaxed); // No earlier: others go by it.
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
