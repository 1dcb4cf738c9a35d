//! What a filesystem is: one method per request, which gets its arguments and returns its reply.

use crate::arguments::{
    CopyRange, Fallocate, GetAttr, GetStatx, Ioctl, LockRequest, Make, OpenFlags, Read, Release,
    Rename, SetAttr, SetXattr, Write,
};
use crate::call::{Call, Outcome};
use crate::detail::Detail;
use crate::errno::Errno;
use crate::flags::InitFlags;
use crate::reply::{DirectoryPlusReply, DirectoryReply};
use crate::request::Request;
use crate::values::{
    AttrReply, Entry, HandleNumber, IoctlReply, Lock, LockOwner, NodeNumber, Opened, Statfs,
    StatxReply, Written,
};

/// A filesystem that the kernel asks. Methods run on any number of threads at once and may block.
///
/// Every method that is not there answers `ENOSYS`, which the kernel remembers for most requests:
/// it then does without. `call.request.node` is the node that a request is about; for names it is
/// the parent. Names are never empty, have no NUL byte, and are not checked otherwise.
pub trait Filesystem: Send + Sync {
    /// What goes along with a request from before its handler until after its reply: a span of
    /// time, a ticket, what is to be done when the kernel has the reply.
    type Span;

    /// What to negotiate, of what the kernel `offers`: called once, before anything else. What the
    /// kernel does not offer is left out of the answer by the session.
    fn init(&mut self, offers: InitFlags) -> InitFlags;

    /// A request begins. Called for every request that is well formed, before its handler and on
    /// the same thread.
    fn begin(&self, request: &Request) -> Self::Span;

    /// What the request is about; called right after [`Filesystem::begin`], before the handler.
    fn describe(&self, _span: &mut Self::Span, _request: &Request, _detail: &Detail<'_>) {}

    /// A request has ended: its reply is written, if it has one. Called exactly once for every
    /// [`Filesystem::begin`], on the same thread.
    fn end(&self, call: Call<'_, Self::Span>, outcome: &Outcome);

    /// Finds a name; counts a lookup of the node.
    fn lookup(&self, _call: &mut Call<'_, Self::Span>, _name: &[u8]) -> Result<Entry, Errno> {
        Err(Errno::ENOSYS)
    }

    /// The kernel gives up `count` lookups of `node`. Has no reply.
    fn forget(&self, _call: &mut Call<'_, Self::Span>, _node: NodeNumber, _count: u64) {}

    /// Attributes.
    fn getattr(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _arguments: GetAttr,
    ) -> Result<AttrReply, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Attributes with the time of birth: asked for when a caller wants that.
    fn statx(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _arguments: GetStatx,
    ) -> Result<StatxReply, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Changes attributes.
    fn setattr(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _change: SetAttr,
    ) -> Result<AttrReply, Errno> {
        Err(Errno::ENOSYS)
    }

    /// The target of a symbolic link.
    fn readlink(&self, _call: &mut Call<'_, Self::Span>) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Makes a symbolic link; counts a lookup.
    fn symlink(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _name: &[u8],
        _target: &[u8],
    ) -> Result<Entry, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Makes a file, pipe, socket or device node; counts a lookup.
    fn mknod(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _name: &[u8],
        _make: Make,
    ) -> Result<Entry, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Makes a directory; counts a lookup.
    fn mkdir(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _name: &[u8],
        _make: Make,
    ) -> Result<Entry, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Removes a name that is no directory's.
    fn unlink(&self, _call: &mut Call<'_, Self::Span>, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Removes an empty directory.
    fn rmdir(&self, _call: &mut Call<'_, Self::Span>, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Renames, as renameat2(2).
    fn rename(&self, _call: &mut Call<'_, Self::Span>, _rename: Rename<'_>) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Gives `node` another name in the parent; counts a lookup.
    fn link(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _node: NodeNumber,
        _name: &[u8],
    ) -> Result<Entry, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Opens a file.
    fn open(&self, _call: &mut Call<'_, Self::Span>, _open: OpenFlags) -> Result<Opened, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Makes a file and opens it; counts a lookup.
    fn create(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _name: &[u8],
        _make: Make,
        _open: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Makes a file that has no name, for `O_TMPFILE`, and opens it; counts a lookup.
    fn tmpfile(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _make: Make,
        _open: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Reads into `buffer`, which begins at a multiple of 4096 in memory and holds old bytes;
    /// returns how many. Fewer than there is room for mean the end of the file.
    fn read(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _read: Read,
        _buffer: &mut [u8],
    ) -> Result<usize, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Writes.
    fn write(&self, _call: &mut Call<'_, Self::Span>, _write: Write<'_>) -> Result<Written, Errno> {
        Err(Errno::ENOSYS)
    }

    /// A descriptor of an open file was closed.
    fn flush(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _handle: HandleNumber,
        _owner: LockOwner,
    ) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// The last descriptor of an open file was closed; nobody learns of an error.
    fn release(&self, _call: &mut Call<'_, Self::Span>, _release: Release) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes a file durable; `data_only` for fdatasync(2).
    fn fsync(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _handle: HandleNumber,
        _data_only: bool,
    ) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Sets an extended attribute.
    fn setxattr(&self, _call: &mut Call<'_, Self::Span>, _set: SetXattr<'_>) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// The value of an extended attribute. The session answers those who ask for its length only.
    fn getxattr(&self, _call: &mut Call<'_, Self::Span>, _name: &[u8]) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOSYS)
    }

    /// The names of all extended attributes, each with a NUL byte behind it.
    fn listxattr(&self, _call: &mut Call<'_, Self::Span>) -> Result<Vec<u8>, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Removes an extended attribute.
    fn removexattr(&self, _call: &mut Call<'_, Self::Span>, _name: &[u8]) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Opens a directory.
    fn opendir(&self, _call: &mut Call<'_, Self::Span>, _open: OpenFlags) -> Result<Opened, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Lists from `offset` on: 0, or what an earlier line gave as its next one.
    fn readdir(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _handle: HandleNumber,
        _offset: u64,
        _listing: &mut DirectoryReply<'_, '_>,
    ) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Lists with attributes; every line that has them counts a lookup.
    fn readdirplus(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _handle: HandleNumber,
        _offset: u64,
        _listing: &mut DirectoryPlusReply<'_, '_>,
    ) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// A directory was closed.
    fn releasedir(&self, _call: &mut Call<'_, Self::Span>, _release: Release) -> Result<(), Errno> {
        Ok(())
    }

    /// Makes a directory durable.
    fn fsyncdir(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _handle: HandleNumber,
        _data_only: bool,
    ) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// A lock that is in the way of the one given; one of kind `F_UNLCK` if none is.
    fn getlk(&self, _call: &mut Call<'_, Self::Span>, _lock: LockRequest) -> Result<Lock, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Sets or drops a lock; `EAGAIN` if another is in the way.
    fn setlk(&self, _call: &mut Call<'_, Self::Span>, _lock: LockRequest) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Sets a lock, and waits until it can; `EINTR` when the caller is interrupted.
    fn setlkw(&self, _call: &mut Call<'_, Self::Span>, _lock: LockRequest) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// Whether the caller may do what `mask` (`R_OK`, `W_OK`, `X_OK`) says; not asked with
    /// `default_permissions`.
    fn access(&self, _call: &mut Call<'_, Self::Span>, _mask: i32) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// A device control whose number says what goes in and out.
    fn ioctl(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _ioctl: Ioctl<'_>,
    ) -> Result<IoctlReply, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Allocates, punches, zeroes, inserts, collapses: fallocate(2).
    fn fallocate(&self, _call: &mut Call<'_, Self::Span>, _range: Fallocate) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// The next data or hole from `offset` on; `ENXIO` beyond the end.
    fn lseek(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _handle: HandleNumber,
        _offset: u64,
        _whence: i32,
    ) -> Result<u64, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Copies between two open files; returns how many bytes, at most the length asked for. Where
    /// the kernel can take 32 bits only, the session has cut that length already.
    fn copy_file_range(
        &self,
        _call: &mut Call<'_, Self::Span>,
        _range: CopyRange,
    ) -> Result<u64, Errno> {
        Err(Errno::ENOSYS)
    }

    /// How full it is.
    fn statfs(&self, _call: &mut Call<'_, Self::Span>) -> Result<Statfs, Errno> {
        Err(Errno::ENOSYS)
    }

    /// Makes everything durable. The kernel asks this of block-device mounts only.
    fn syncfs(&self, _call: &mut Call<'_, Self::Span>) -> Result<(), Errno> {
        Err(Errno::ENOSYS)
    }

    /// The end, told by the kernel; block-device mounts only. All others end by being dropped.
    fn destroy(&self, _call: &mut Call<'_, Self::Span>) {}
}
