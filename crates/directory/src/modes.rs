//! Whose the files of a database are, and who else may use them (`DIRECTORY-4`).
//!
//! The directory says so. A private one (0700) has private files (0600); one that its group may
//! write to has files for that group. Reading alone is never given: who may read a catalog reads
//! what is in it, whatever the modes of the files that the mount shows, and a reader's locks hold
//! writers up.

use crate::{DatabaseDir, Kind};
use rustix::fs::{FileType, Gid, Mode, OFlags, Stat, Uid};
use rustix::io::Errno;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::{Path, PathBuf};

/// How deep a database is looked through.
const DEPTH_MAX: usize = 4;

/// Who may use the database.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sharing {
    pub uid: u32,
    pub gid: u32,
    /// Permission bits of a file.
    file_mode: u32,
    /// Permission bits of a directory.
    dir_mode: u32,
}

impl Sharing {
    /// As the directory of the database says.
    pub fn of(directory: &Stat) -> Sharing {
        let mut sharing = Sharing {
            uid: directory.st_uid,
            gid: directory.st_gid,
            file_mode: 0o600,
            dir_mode: 0o700 | directory.st_mode & 0o2000,
        };
        for shift in [3, 0] {
            if directory.st_mode >> shift & 0o2 != 0 {
                sharing.file_mode |= 0o6 << shift;
                sharing.dir_mode |= 0o7 << shift;
            }
        }
        sharing
    }

    /// Gives a file that was just made.
    pub fn give_file(&self, file: impl AsFd, path: &Path) -> io::Result<()> {
        self.give(file, self.file_mode, path)
    }

    /// Gives a directory that was just made.
    pub fn give_dir(&self, directory: impl AsFd, path: &Path) -> io::Result<()> {
        self.give(directory, self.dir_mode, path)
    }

    fn give(&self, file: impl AsFd, mode: u32, path: &Path) -> io::Result<()> {
        let found = rustix::fs::fstat(&file)?;
        let is_given = (found.st_uid, found.st_gid) == (self.uid, self.gid);
        if !is_given && rustix::process::geteuid().is_root() {
            let (uid, gid) = (Uid::from_raw(self.uid), Gid::from_raw(self.gid));
            match rustix::fs::fchown(&file, Some(uid), Some(gid)) {
                Ok(()) => {}
                // Root of a container that may not.
                Err(error @ (Errno::PERM | Errno::INVAL)) => tracing::warn!(
                    "{} stays root's: it cannot be given to the owner of the database ({error})",
                    path.display()
                ),
                Err(error) => return Err(error.into()),
            }
        }
        if found.st_mode & 0o7777 != mode {
            rustix::fs::fchmod(&file, Mode::from_raw_mode(mode))?;
        }
        Ok(())
    }
}

/// Makes the directory of a new database private, or its group's.
pub(crate) fn set_up(directory: impl AsFd, group: Option<u32>) -> io::Result<()> {
    let found = rustix::fs::fstat(&directory)?;
    let mode = match group {
        None => 0o700,
        Some(group) => {
            if found.st_gid != group {
                rustix::fs::fchown(&directory, None, Some(Gid::from_raw(group)))?;
            }
            0o2770
        }
    };
    if found.st_mode & 0o7777 != mode {
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(mode))?;
    }
    Ok(())
}

/// Bits that let others in. A group may be let in on purpose: then it may write to the directory.
fn excess(mode: u32, is_shared: bool) -> u32 {
    mode & match is_shared {
        true => 0o007,
        false => 0o077,
    }
}

/// What others may use.
pub(crate) fn find_open(database: &DatabaseDir) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    visit(database, &mut |path, _, excess| {
        if excess != 0 {
            found.push(path.to_owned());
        }
        Ok(())
    })?;
    Ok(found)
}

/// Takes it from them.
pub(crate) fn mend(database: &DatabaseDir) -> io::Result<Vec<PathBuf>> {
    let mut mended = Vec::new();
    visit(database, &mut |path, file, excess| {
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
