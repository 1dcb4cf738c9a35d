//! What others than the owner may use of a database, and taking it from them (`DIRECTORY-2`,
//! `DIRECTORY-4`).

use crate::{DatabaseDir, Kind};
use rustix::fs::{FileType, Mode, OFlags};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// How deep a database is looked through.
const DEPTH_MAX: usize = 4;

impl DatabaseDir {
    /// Takes from others than the owner (and the group that shares it) what an older version let
    /// them do with the database; the paths of what was changed.
    pub fn mend_modes(&self) -> io::Result<Vec<PathBuf>> {
        let mut mended = Vec::new();
        visit(self, &mut |path, file, excess| {
            if excess != 0 {
                let mode = rustix::fs::fstat(file)?.st_mode & 0o7777 & !excess;
                let named = format!("/proc/self/fd/{}", file.as_raw_fd()); // It may be of O_PATH.
                rustix::fs::chmod(named, Mode::from_raw_mode(mode))?;
                mended.push(path.to_owned());
            }
            Ok(())
        })?;
        Ok(mended)
    }

    /// The paths that others than the owner, and the group that shares it, may read or write.
    pub fn open_to_others(&self) -> io::Result<Vec<PathBuf>> {
        let mut found = Vec::new();
        visit(self, &mut |path, _, excess| {
            if excess != 0 {
                found.push(path.to_owned());
            }
            Ok(())
        })?;
        Ok(found)
    }
}

/// Bits that let others in. A group may be let in on purpose: then it may write to the directory.
fn excess(mode: u32, is_shared: bool) -> u32 {
    mode & match is_shared {
        true => 0o007,
        false => 0o077,
    }
}

type Visitor<'v> = dyn FnMut(&Path, BorrowedFd<'_>, u32) -> io::Result<()> + 'v;

/// Every file and directory of the database, the directory itself first: with the bits that are too
/// many.
fn visit(database: &DatabaseDir, look: &mut Visitor<'_>) -> io::Result<()> {
    let mode = rustix::fs::fstat(database)?.st_mode;
    let is_shared = mode & 0o020 != 0;
    look(database.path(), database.as_fd(), excess(mode, is_shared))?;
    visit_below(database, is_shared, DEPTH_MAX, look)
}

fn visit_below(
    directory: &DatabaseDir,
    is_shared: bool,
    depth: usize,
    look: &mut Visitor<'_>,
) -> io::Result<()> {
    for name in directory.names()? {
        let path = directory.join(&name);
        match directory.kind(&name)? {
            Some(Kind::File) => {
                // SQLite gives up its locks when a descriptor of these is closed in its process.
                let flags = OFlags::PATH;
                let file = match crate::open::open_below(
                    directory.as_fd(),
                    Path::new(&name),
                    flags,
                    Mode::empty(),
                ) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                    file => file?,
                };
                let found = rustix::fs::fstat(&file)?;
                // A file with further names is somebody else's as well (DIRECTORY-2); and names
                // change places.
                let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
                if is_file && found.st_nlink == 1 {
                    look(&path, file.as_fd(), excess(found.st_mode, is_shared))?;
                }
            }
            Some(Kind::Directory) if depth > 0 => {
                let below = directory.open_dir(&name)?;
                let mode = rustix::fs::fstat(&below)?.st_mode;
                look(&path, below.as_fd(), excess(mode, is_shared))?;
                visit_below(&below, is_shared, depth - 1, look)?;
            }
            _ => {} // FIFOs of tracers are the owner's; nothing else is a database's.
        }
    }
    Ok(())
}
