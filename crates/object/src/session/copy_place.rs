//! Where the copy of a catalog lies that cannot be read in its place: a private directory among the
//! temporary ones, which goes with the process, or is removed by the next one that makes such a
//! copy.
//!
//! # Invariants
//! * `READONLY-5` What a process that was killed has left of a copy goes when the next one of the
//!   same user is made, and nothing else goes: not what a process still uses, has another name or
//!   another owner, or is a link. *Guard*: who has a copy holds a lock on its directory, which the
//!   kernel gives up; [`remove_if_abandoned`] takes the lock first, and removes by descriptors.

use crate::host::random_id;
use larder_segment::directory::DatabaseDir;
use rustix::fs::{AtFlags, Dir, FlockOperation, flock};
use rustix::io::Errno;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

/// Names of copies begin so; an id follows, of [`ID_DIGITS`] hexadecimal digits.
const PREFIX: &str = "larder-copy-";
const ID_DIGITS: usize = 32;
/// Entries that are looked through for copies that were left.
const ENTRIES_MAX: usize = 100_000;
/// So many new names are tried.
const TRIES: usize = 10;

/// A new directory for temporary files, removed when it is dropped.
#[derive(Debug)]
pub(crate) struct CopyPlace {
    path: PathBuf,
    directory: DatabaseDir,
}

impl CopyPlace {
    /// Makes one in the directory `above`, and removes what others have left there.
    pub(crate) fn make_in(above: &Path) -> io::Result<CopyPlace> {
        if let Err(error) = remove_abandoned(above) {
            tracing::debug!("cannot look for copies in {}: {error}", above.display());
        }
        for _ in 0..TRIES {
            let id = random_id()?;
            let id: String = id.iter().map(|byte| format!("{byte:02x}")).collect();
            let path = above.join(format!("{PREFIX}{id}"));
            std::fs::DirBuilder::new().mode(0o700).create(&path)?;
            let directory = match DatabaseDir::open(&path) {
                // Somebody came before the lock, and has removed it.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                opened => opened?,
            };
            let place = CopyPlace { path, directory };
            // Where there are no locks nobody takes it for abandoned.
            let is_taken = flock(
                place.directory.as_fd(),
                FlockOperation::NonBlockingLockExclusive,
            ) == Err(Errno::WOULDBLOCK);
            if !is_taken && place.is_there()? {
                return Ok(place);
            }
            // Somebody came before the lock, and removes it.
        }
        Err(io::Error::other("new directories vanish there"))
    }

    pub(crate) fn directory(&self) -> &DatabaseDir {
        &self.directory
    }

    fn is_there(&self) -> io::Result<bool> {
        match rustix::fs::lstat(&self.path) {
            Ok(found) => Ok((found.st_dev, found.st_ino) == self.directory.identity()?),
            Err(Errno::NOENT) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }
}

impl Drop for CopyPlace {
    fn drop(&mut self) {
        match std::fs::remove_dir_all(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                tracing::warn!("cannot remove {}: {error}", self.path.display());
            }
            _ => {}
        }
    }
}

/// Removes the copies in `above` whose processes are gone.
fn remove_abandoned(above: &Path) -> io::Result<()> {
    let above = DatabaseDir::open(above)?;
    for entry in Dir::read_from(above.as_fd())?.take(ENTRIES_MAX) {
        let entry = entry?;
        let Some(name) = (entry.file_name().to_str().ok()).filter(|name| is_of_a_copy(name)) else {
            continue;
        };
        if let Err(error) = remove_if_abandoned(&above, name) {
            tracing::debug!("{name} stays: {error}");
        }
    }
    Ok(())
}

fn is_of_a_copy(name: &str) -> bool {
    let is_digit = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
    name.strip_prefix(PREFIX)
        .is_some_and(|id| id.len() == ID_DIGITS && id.bytes().all(is_digit))
}

/// `READONLY-5`.
fn remove_if_abandoned(above: &DatabaseDir, name: &str) -> io::Result<()> {
    let copy = above.open_dir(name)?;
    let found = rustix::fs::fstat(copy.as_fd())?;
    if found.st_uid != rustix::process::geteuid().as_raw() || found.st_mode & 0o777 != 0o700 {
        return Err(io::Error::other("it is none of this user's copies"));
    }
    flock(copy.as_fd(), FlockOperation::NonBlockingLockExclusive)?;
    for left in copy.names()? {
        copy.remove_tree(left)?;
    }
    // Of whatever has the name now, only an empty directory goes.
    Ok(rustix::fs::unlinkat(
        above.as_fd(),
        name,
        AtFlags::REMOVEDIR,
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn what_killed_processes_left_goes_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let above = dir.path();
        let make = |name: &str, mode: u32| {
            let path = above.join(name);
            fs::DirBuilder::new().mode(mode).create(&path).unwrap();
            fs::write(path.join("catalog.db"), "x").unwrap();
            path
        };
        let name = |digit: &str| format!("{PREFIX}{}", digit.repeat(ID_DIGITS));
        let outside = make("outside", 0o700);
        let abandoned = make(&name("a"), 0o700);
        fs::create_dir(abandoned.join("locks")).unwrap();
        fs::write(abandoned.join("locks/1"), "x").unwrap();
        std::os::unix::fs::symlink(&outside, abandoned.join("link")).unwrap();
        let stay = [
            make(&name("b"), 0o755),
            make(&name("A"), 0o700),
            make(&format!("{}0", name("c")), 0o700),
            make(&format!("{PREFIX}notes"), 0o700),
        ];
        std::os::unix::fs::symlink(&outside, above.join(name("d"))).unwrap();
        fs::write(above.join(name("e")), "x").unwrap();
        let first = CopyPlace::make_in(above).unwrap();
        assert!(!abandoned.exists(), "READONLY-5");
        let second = CopyPlace::make_in(above).unwrap();
        assert!(
            first.is_there().unwrap() && second.is_there().unwrap(),
            "READONLY-5"
        );
        for path in stay.iter().chain([&outside]) {
            assert!(path.join("catalog.db").exists(), "READONLY-5: {path:?}");
        }
        assert!(above.join(name("d")).is_symlink(), "READONLY-5");
        assert!(above.join(name("e")).is_file(), "READONLY-5");
        // As if its process had been killed: the lock goes, and the directory stays.
        let path = first.path.clone();
        fs::write(path.join("catalog.db"), "x").unwrap();
        let killed = std::mem::ManuallyDrop::new(first);
        flock(killed.directory.as_fd(), FlockOperation::Unlock).unwrap();
        drop(CopyPlace::make_in(above).unwrap());
        assert!(!path.exists(), "READONLY-5");
        assert!(second.is_there().unwrap(), "READONLY-5");
    }
}
