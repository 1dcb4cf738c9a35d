//! The lock by which `larder umount` knows that the serving process has ended (`CLI-9`).
//!
//! `DB/mounts/MAJOR-MINOR.lock`, named by the device number of the mount, is locked (`flock`) by its
//! server from before it is ready until its process ends; the kernel unlocks it then, whatever the
//! reason. The file of a killed server stays and is removed by the next one.

use crate::error::{At, Failure, Result};
use rustix::fs::OFlags;
use std::fs::{File, OpenOptions, TryLockError};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The lock of a serving process.
pub(crate) struct ServingLock {
    path: PathBuf,
    file: File,
}

impl ServingLock {
    /// Takes the lock for the mount with this device number.
    pub(crate) fn take(database: &Path, device: (u32, u32)) -> Result<ServingLock> {
        let path = lock_path(database, device);
        let directory = database.join("mounts");
        let what = || format!("cannot lock '{}'", path.display());
        std::fs::create_dir_all(&directory).at(what)?;
        remove_abandoned(&directory).at(what)?;
        loop {
            let file = OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&path)
                .at(what)?;
            // Nobody else has this device number, so nobody holds it for long.
            file.lock().at(what)?;
            // Between opening and locking it may have been removed as abandoned.
            let is_there = path
                .metadata()
                .is_ok_and(|there| file.metadata().is_ok_and(|own| own.ino() == there.ino()));
            if is_there {
                return Ok(ServingLock { path, file });
            }
        }
    }

    /// Removes the file. The lock itself goes with the process.
    pub(crate) fn leave(self) -> Result<()> {
        std::mem::forget(self.file);
        match std::fs::remove_file(&self.path) {
            // The copy of a database that cannot be written went with its session.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            removed => removed.at(|| format!("cannot remove '{}'", self.path.display())),
        }
    }
}

/// The serving process of a mount, found before the mount goes.
pub(crate) struct Server(Option<File>);

impl Server {
    /// The server of the mount with this device number; if it was started by another program, there
    /// is no lock to wait for.
    pub(crate) fn find(database: &Path, device: (u32, u32)) -> Result<Server> {
        let path = lock_path(database, device);
        // Root may look at a database of somebody who has put something else there.
        let opened = OpenOptions::new()
            .read(true)
            .custom_flags((OFlags::NOFOLLOW | OFlags::NONBLOCK).bits().cast_signed())
            .open(&path);
        match opened {
            Ok(file) => Ok(Server(Some(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Server(None)),
            Err(error) => Err(error).at(|| format!("cannot open '{}'", path.display())),
        }
    }

    /// Waits until the process has ended.
    pub(crate) fn wait(&self, deadline: Instant) -> Result<()> {
        let Some(file) = &self.0 else { return Ok(()) };
        loop {
            match file.try_lock_shared() {
                Ok(()) => return Ok(()),
                Err(TryLockError::Error(error)) => {
                    return Err(error).at(|| "cannot wait for the server".into());
                }
                Err(TryLockError::WouldBlock) if Instant::now() >= deadline => {
                    return Err(Failure::TimedOut(
                        "the mount is gone, but its server still has the database open; look at DB/mount.log, \
                         or wait with a longer --timeout next time"
                            .into(),
                    ));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

fn lock_path(database: &Path, (major, minor): (u32, u32)) -> PathBuf {
    database.join(format!("mounts/{major}-{minor}.lock"))
}

fn remove_abandoned(directory: &Path) -> io::Result<()> {
    for entry in std::fs::read_dir(directory)? {
        let path = entry?.path();
        let removed = File::open(&path).and_then(|file| match file.try_lock() {
            Ok(()) => std::fs::remove_file(&path),
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Error(error)) => Err(error),
        });
        match removed {
            // Its server, or another one that cleans up, was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other?,
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_server_is_waited_for_until_its_lock_goes() {
        let dir = tempfile::tempdir().unwrap();
        let lock = ServingLock::take(dir.path(), (0, 7)).unwrap();
        let server = Server::find(dir.path(), (0, 7)).unwrap();
        let soon = || Instant::now() + Duration::from_millis(30);
        assert!(server.wait(soon()).is_err(), "CLI-9: it is held");
        std::fs::remove_file(&lock.path).unwrap();
        assert!(
            server.wait(soon()).is_err(),
            "CLI-9: it is held, though its name is gone"
        );
        drop(lock);
        server.wait(soon()).unwrap();
        Server::find(dir.path(), (0, 7))
            .unwrap()
            .wait(soon())
            .unwrap();
    }

    #[test]
    fn what_killed_servers_left_is_removed() {
        let dir = tempfile::tempdir().unwrap();
        let live = ServingLock::take(dir.path(), (0, 1)).unwrap();
        drop(ServingLock::take(dir.path(), (0, 2)).unwrap());
        assert!(
            dir.path().join("mounts/0-2.lock").exists(),
            "as after a kill"
        );
        let _other = ServingLock::take(dir.path(), (0, 3)).unwrap();
        assert!(!dir.path().join("mounts/0-2.lock").exists());
        assert!(live.path.exists());
    }
}
