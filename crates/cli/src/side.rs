//! What a copy needs of the place it reads from and the place it writes to. Two places have it:
//! a database ([`crate::inside`]) and the local filesystem ([`crate::local`]).
//!
//! Paths are bytes. Where a path ends in a symbolic link, the link itself is meant, unless a
//! parameter `follow` says otherwise.

use crate::error::{Failure, Result};
use larder::{ErrorKind, FileKind, NewNode};
use std::io;

/// Bytes per request while content is copied.
pub(crate) const REQUEST_BYTES: usize = 4 << 20;

/// What is found at a path. Times are nanoseconds since 1970.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Found {
    pub(crate) kind: FileKind,
    /// Permission bits, `0..=0o7777`.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) nlink: u64,
    pub(crate) size_bytes: u64,
    pub(crate) atime_ns: i64,
    pub(crate) mtime_ns: i64,
    /// Device number of device nodes.
    pub(crate) rdev: u64,
    /// Two paths of one side with equal identities lead to one inode.
    pub(crate) identity: (u64, u64),
}

/// Attributes that a copy carries over; `None` leaves what is there.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Carry {
    pub(crate) mode: Option<u32>,
    /// User and group.
    pub(crate) owner: Option<(u32, u32)>,
    /// Access and modification.
    pub(crate) times_ns: Option<(i64, i64)>,
}

/// A place that files are copied from and to.
pub(crate) trait Side {
    /// A path as it is shown to people.
    fn show(&self, path: &[u8]) -> String;
    /// What is at a path, if anything.
    fn find(&self, path: &[u8], follow: bool) -> Result<Option<Found>>;
    /// The names in a directory, in any order.
    fn names(&self, path: &[u8]) -> Result<Vec<Vec<u8>>>;
    /// The target of a symbolic link.
    fn read_link(&self, path: &[u8]) -> Result<Vec<u8>>;
    /// Opens a regular file to read.
    fn open(&self, path: &[u8], follow: bool) -> Result<Box<dyn Content>>;
    /// Creates a regular file that does not exist yet, to write.
    fn create_file(&self, path: &[u8], mode: u32) -> Result<Box<dyn Content>>;
    /// Opens a regular file that exists, made empty, to write. Follows symbolic links.
    fn overwrite(&self, path: &[u8]) -> Result<Box<dyn Content>>;
    /// Makes anything but a regular file; it must not exist.
    fn create_node(&self, path: &[u8], new: NewNode<'_>, mode: u32) -> Result<()>;
    /// Gives an inode another name, which must not exist.
    fn link(&self, path: &[u8], new_path: &[u8]) -> Result<()>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, path: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &[u8]) -> Result<()>;
    /// The extended attributes, names and values.
    fn xattrs(&self, path: &[u8]) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Sets an extended attribute.
    fn set_xattr(&self, path: &[u8], name: &[u8], value: &[u8]) -> Result<()>;
    /// Changes attributes. The mode of a symbolic link is left alone.
    fn set_attr(&self, path: &[u8], carry: &Carry) -> Result<()>;
    /// Makes everything durable that was done here.
    fn sync(&self, path: &[u8]) -> Result<()>;
}

/// An open regular file.
pub(crate) trait Content {
    /// Reads at `offset` until `buffer` is full or the file ends.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// Writes all of `data`.
    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()>;
    /// Announces the final length, bytes, of a file without holes.
    fn expect_len(&self, size_bytes: u64) -> Result<()>;
    /// Sets the length, bytes.
    fn set_len(&self, size_bytes: u64) -> Result<()>;
    /// The next range that is no hole, from `offset` on: begin and end, bytes.
    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>>;
}

/// Whether a failure of one file will be a failure of all: then a copy of many stops.
pub(crate) fn is_fatal(failure: &Failure) -> bool {
    match failure {
        Failure::Larder(error) => matches!(
            error.kind(),
            ErrorKind::NoSpace | ErrorKind::Io | ErrorKind::Stopped | ErrorKind::ReadOnly
        ),
        Failure::Io { source, .. } => matches!(
            source.kind(),
            io::ErrorKind::StorageFull
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::QuotaExceeded
        ),
        Failure::Pipe => true,
        Failure::Usage(_) | Failure::Sql { .. } | Failure::Other(_) | Failure::Told(_) => false,
    }
}
