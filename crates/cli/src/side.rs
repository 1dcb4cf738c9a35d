//! What a copy needs of the place it reads from and the place it writes to. Two places have it:
//! a database ([`crate::inside`]) and the local filesystem ([`crate::local`]).
//!
//! # Words
//! A path of the command line *starts* at a [`Spot`]: a directory that is held, and a name in it.
//! Symbolic links on the way there are followed: what users name, they trust.
//!
//! # Invariants
//! * `CLI-40` Below its start a copy walks by directories that it holds, one name at a time, and
//!   follows no symbolic link. What has been looked at and is then opened is the same inode, or it
//!   is refused. So whoever may rename things in a tree while somebody else copies it, root for
//!   example, cannot lead the copy elsewhere: nothing is read, written, given away or removed
//!   there.

use crate::error::{Failure, Result};
use larder::{ErrorKind, FileKind, NewNode};
use std::io;
use std::os::fd::BorrowedFd;
use std::rc::Rc;

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

impl Found {
    /// Whether both are the same inode.
    pub(crate) fn is(&self, other: &Found) -> bool {
        self.identity == other.identity && self.kind == other.kind
    }
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
    /// What is at a path of the command line, if anything.
    fn find(&self, path: &[u8], follow: bool) -> Result<Option<Found>>;
    /// Where a path of the command line starts. Symbolic links on the way are followed, a final one
    /// if `follow`. What has the name, if anything, is not looked at.
    fn start(&self, path: &[u8], follow: bool) -> Result<Spot>;
    /// The directory at a path of the command line; `None` when there is none. Symbolic links are
    /// followed.
    fn folder(&self, path: &[u8]) -> Result<Option<Rc<dyn Folder>>>;
}

/// A name in a directory that is held. The name `.` is the directory itself.
#[derive(Clone)]
pub(crate) struct Spot {
    pub(crate) folder: Rc<dyn Folder>,
    pub(crate) name: Vec<u8>,
}

/// The name of a directory in itself.
pub(crate) const SELF: &[u8] = b".";

impl Spot {
    /// What has the name, if anything; a symbolic link is not followed.
    pub(crate) fn find(&self) -> Result<Option<Found>> {
        self.folder.find(&self.name)
    }

    /// As it is shown to people.
    pub(crate) fn show(&self) -> String {
        self.folder.show(&self.name)
    }
}

/// Anything that is held: it stays the same whatever its names lead to now.
pub(crate) trait Inode {
    /// Its attributes.
    fn found(&self) -> Result<Found>;
    /// The extended attributes, names and values.
    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>>;
    /// Sets an extended attribute.
    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()>;
    /// Changes attributes. The mode of a symbolic link is left alone.
    fn set_attr(&self, carry: &Carry) -> Result<()>;
}

/// A directory that is held. Names are single ones, and symbolic links are never followed
/// (`CLI-40`).
pub(crate) trait Folder: Inode {
    /// A name in it as it is shown to people.
    fn show(&self, name: &[u8]) -> String;
    /// What has a name, if anything.
    fn find(&self, name: &[u8]) -> Result<Option<Found>>;
    /// The names in it, in any order.
    fn names(&self) -> Result<Vec<Vec<u8>>>;
    /// The directory in it that was `found` under this name.
    fn enter(&self, name: &[u8], found: &Found) -> Result<Rc<dyn Folder>>;
    /// What was `found` under this name, for its attributes and, of a symbolic link, its target.
    fn hold(&self, name: &[u8], found: &Found) -> Result<Box<dyn Inode>>;
    /// The target of the symbolic link of this name.
    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>>;
    /// Opens the regular file that was `found` under this name, to read.
    fn open(&self, name: &[u8], found: &Found) -> Result<Box<dyn Content>>;
    /// Opens the regular file that was `found` under this name, made empty, to write.
    fn overwrite(&self, name: &[u8], found: &Found) -> Result<Box<dyn Content>>;
    /// Creates a regular file, to write. Nothing may have the name yet; so also below.
    fn create_file(&self, name: &[u8], mode: u32) -> Result<Box<dyn Content>>;
    /// Makes a directory.
    fn create_folder(&self, name: &[u8], mode: u32) -> Result<Rc<dyn Folder>>;
    /// Makes anything but a regular file and a directory.
    fn create_node(&self, name: &[u8], new: NewNode<'_>, mode: u32) -> Result<Box<dyn Inode>>;
    /// Gives the inode that was `found` under `old_name` in `old`, a directory of this side,
    /// another name.
    fn link(&self, name: &[u8], old: &dyn Folder, old_name: &[u8], found: &Found) -> Result<()>;
    /// Removes a name of anything but a directory.
    fn unlink(&self, name: &[u8]) -> Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, name: &[u8]) -> Result<()>;
    /// Makes everything durable that was done on this side.
    fn sync(&self) -> Result<()>;
    /// The descriptor, of a directory of the local filesystem.
    fn descriptor(&self) -> Option<BorrowedFd<'_>>;
}

/// An open regular file.
pub(crate) trait Content: Inode {
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

/// That a name does not lead any longer to what was found there (`CLI-40`).
pub(crate) fn replaced(shown: &str) -> Failure {
    Failure::Other(format!(
        "'{shown}' was replaced by something else meanwhile and is left alone; run the command \
         again"
    ))
}

/// Whether a failure of one file will be a failure of all: then a copy of many stops.
pub(crate) fn is_fatal(failure: &Failure) -> bool {
    match failure {
        Failure::Larder(error) => matches!(
            error.kind(),
            ErrorKind::NoSpace
                | ErrorKind::Io
                | ErrorKind::Stopped
                | ErrorKind::ReadOnly
                | ErrorKind::TimedOut
        ),
        Failure::Io { source, .. } => matches!(
            source.kind(),
            io::ErrorKind::StorageFull
                | io::ErrorKind::ReadOnlyFilesystem
                | io::ErrorKind::QuotaExceeded
        ),
        Failure::Pipe | Failure::TimedOut(_) => true,
        Failure::Usage(_) | Failure::Sql { .. } | Failure::Other(_) | Failure::Told(_) => false,
    }
}
