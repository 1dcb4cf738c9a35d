//! Whose the files of a database are, and who else may use them (`DIRECTORY-4`).
//!
//! The directory says so. A private one (0700) has private files (0600); one that its group may
//! write to has files for that group. Reading alone is never given: who may read a catalog reads
//! what is in it, whatever the modes of the files that the mount shows, and a reader's locks hold
//! writers up.

use rustix::fs::{Gid, Mode, Stat, Uid};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::path::Path;

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

/// Makes the directory of a new database private, as far as its group is concerned too, until it is
/// complete; says whose what is made in it will be.
pub(crate) fn set_up(directory: impl AsFd, group: Option<u32>) -> io::Result<Sharing> {
    let mut found = rustix::fs::fstat(&directory)?;
    if let Some(group) = group.filter(|&group| group != found.st_gid) {
        match rustix::fs::fchown(&directory, None, Some(Gid::from_raw(group))) {
            Err(Errno::PERM) => {
                return Err(io::Error::new(
                    io::ErrorKind::PermissionDenied,
                    format!("you are no member of group {group}; name one of yours ('id')"),
                ));
            }
            given => given?,
        }
        found.st_gid = group;
    }
    // What is made in a directory with the set-group bit has its group.
    let (until_complete, complete) = match group {
        None => (0o700, 0o700),
        Some(_) => (0o2700, 0o2770),
    };
    if found.st_mode & 0o7777 != until_complete {
        rustix::fs::fchmod(&directory, Mode::from_raw_mode(until_complete))?;
    }
    found.st_mode = complete;
    Ok(Sharing::of(&found))
}
