//! The lock by which `larder umount` knows that the serving process has ended (`CLI-9`).
//!
//! `DB/mounts/MAJOR-MINOR.lock`, named by the device number of the mount, is locked (`flock`) by
//! its server from before it is ready until its process ends; the kernel unlocks it then, whatever
//! the reason. The file of a killed server stays and is removed by the next one.

use crate::error::{At, Failure, Result};
use larder::directory::{Access, DatabaseDir};
use std::fs::{File, TryLockError};
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// The directory of the locks, in that of the database.
const MOUNTS: &str = "mounts";
const POLL_INTERVAL: Duration = Duration::from_millis(5);

/// The lock of a serving process.
pub(crate) struct ServingLock {
    directory: DatabaseDir,
    name: String,
    file: File,
}

impl ServingLock {
    /// Takes the lock for the mount with this device number.
    pub(crate) fn take(database: &DatabaseDir, device: (u32, u32)) -> Result<ServingLock> {
        let name = lock_name(device);
        let what = || {
            format!(
                "cannot lock '{}'",
                database.join(MOUNTS).join(&name).display()
            )
        };
        let directory = database.make_dir(MOUNTS).at(what)?;
        remove_abandoned(&directory)?;
        loop {
            let file = directory.open_file(&name, Access::Make).at(what)?;
            // Nobody else has this device number, so nobody holds it for long.
            file.lock().at(what)?;
            // Between opening and locking it may have been removed as abandoned.
            let own = file.metadata().at(what)?;
            if directory.identity_of(&name).at(what)? == Some((own.dev(), own.ino())) {
                return Ok(ServingLock {
                    directory,
                    name,
                    file,
                });
            }
        }
    }

    /// Removes the file. The lock itself goes with the process.
    pub(crate) fn leave(self) -> Result<()> {
        std::mem::forget(self.file);
        // The copy of a database that cannot be written went with its session: nothing is there to
        // be removed then.
        (self.directory.remove_file(&self.name)).at(|| {
            let path = self.directory.join(&self.name);
            format!("cannot remove '{}'", path.display())
        })
    }
}

/// The serving process of a mount, found before the mount goes.
pub(crate) struct Server(Option<File>);

impl Server {
    /// The server of the mount with this device number; if it was started by another program, there
    /// is no lock to wait for.
    pub(crate) fn find(database: &Path, device: (u32, u32)) -> Result<Server> {
        let name = Path::new(MOUNTS).join(lock_name(device));
        let opened = DatabaseDir::open(database);
        match opened.and_then(|directory| directory.open_file(&name, Access::Read)) {
            Ok(file) => Ok(Server(Some(file))),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(Server(None)),
            Err(error) => {
                Err(error).at(|| format!("cannot open '{}'", database.join(name).display()))
            }
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
                        "the mount is gone, but its server still has the database open; look at \
                         DB/mount.log, \
                         or wait with a longer --timeout next time"
                            .into(),
                    ));
                }
                Err(TryLockError::WouldBlock) => std::thread::sleep(POLL_INTERVAL),
            }
        }
    }
}

fn lock_name((major, minor): (u32, u32)) -> String {
    format!("{major}-{minor}.lock")
}

/// The mount that a file of this name is the lock of; `None` for every other file.
fn find_device(name: &str) -> Option<(u32, u32)> {
    let (major, minor) = name.strip_suffix(".lock")?.split_once('-')?;
    let device = (major.parse().ok()?, minor.parse().ok()?);
    (lock_name(device) == name).then_some(device)
}

fn remove_abandoned(directory: &DatabaseDir) -> Result<()> {
    let path = || directory.path().display().to_string();
    for name in directory
        .names()
        .at(|| format!("cannot list '{}'", path()))?
    {
        if name.to_str().and_then(find_device).is_none() {
            continue; // Not ours.
        }
        let opened = directory.open_file(&name, Access::Read);
        let removed = opened.and_then(|file| match file.try_lock() {
            Ok(()) => directory.remove_file(&name),
            Err(TryLockError::WouldBlock) => Ok(()),
            Err(TryLockError::Error(error)) => Err(error),
        });
        match removed {
            // Its server, or another one that cleans up, was faster.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => other.at(|| {
                let path = directory.join(&name);
                format!("cannot remove the abandoned lock '{}'", path.display())
            })?,
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
        let database = DatabaseDir::open(dir.path()).unwrap();
        let lock = ServingLock::take(&database, (0, 7)).unwrap();
        let server = Server::find(dir.path(), (0, 7)).unwrap();
        let soon = || Instant::now() + Duration::from_millis(30);
        assert!(server.wait(soon()).is_err(), "CLI-9: it is held");
        lock.directory.remove_file(&lock.name).unwrap();
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
        let database = DatabaseDir::open(dir.path()).unwrap();
        let live = ServingLock::take(&database, (0, 1)).unwrap();
        std::fs::write(dir.path().join("mounts/notes"), "not ours").unwrap();
        drop(ServingLock::take(&database, (0, 2)).unwrap());
        assert!(
            dir.path().join("mounts/0-2.lock").exists(),
            "as after a kill"
        );
        let _other = ServingLock::take(&database, (0, 3)).unwrap();
        assert!(!dir.path().join("mounts/0-2.lock").exists());
        assert!(live.directory.join(&live.name).exists());
        assert!(dir.path().join("mounts/notes").exists());
    }
}
