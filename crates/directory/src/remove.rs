//! Removing a tree by descriptors (`DIRECTORY-3`).

use crate::open::refused;
use rustix::fs::{AtFlags, Dir, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// How deep a workspace is: itself, and the directories in it. One more is allowed.
const DEPTH_MAX: usize = 3;

/// Removes the directory `name` of `parent` and what is in it, or whatever else has this name.
pub(crate) fn remove_tree(parent: BorrowedFd<'_>, name: &Path) -> io::Result<()> {
    remove(parent, name, DEPTH_MAX)
}

fn remove(parent: BorrowedFd<'_>, name: &Path, depth: usize) -> io::Result<()> {
    let flags =
        OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let directory = match rustix::fs::openat(parent, name, flags, Mode::empty()) {
        Ok(directory) => directory,
        Err(Errno::NOENT) => return Ok(()),
        // A file or a link, which goes itself.
        Err(Errno::NOTDIR | Errno::LOOP) => return unlink(parent, name, AtFlags::empty()),
        Err(error) => return Err(error.into()),
    };
    if rustix::fs::fstat(&directory)?.st_dev != rustix::fs::fstat(parent)?.st_dev {
        return Err(refused(
            "another filesystem is mounted in it; unmount that first",
        ));
    }
    if depth == 0 {
        return Err(refused(
            "it has more directories in each other than a transaction; remove it by hand",
        ));
    }
    for entry in Dir::read_from(&directory)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        match rustix::fs::unlinkat(&directory, name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => {}
            Err(Errno::ISDIR | Errno::PERM) => {
                let name = OsStr::from_bytes(name.to_bytes());
                remove(directory.as_fd(), Path::new(name), depth - 1)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    unlink(parent, name, AtFlags::REMOVEDIR)
}

fn unlink(parent: BorrowedFd<'_>, name: &Path, flags: AtFlags) -> io::Result<()> {
    match rustix::fs::unlinkat(parent, name, flags) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(error) => Err(error.into()),
    }
}
