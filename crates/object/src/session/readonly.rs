//! A database that this process cannot write: on a read-only medium, or somebody else's.
//!
//! SQLite needs to write for reading: shared memory beside the log. So the catalog and its log are
//! copied to a place of one's own, where the session lives; content is read where it lies. Nothing
//! is written beside the database, and a log that nobody has copied into the catalog counts.
//!
//! # Invariants
//! * `READONLY-1` Not a byte of the database's directory is written. *Guard*: the engine's
//!   directory is the copy, its segments are open for reading, and nothing that changes something
//!   begins ([`Engine::require_writable`]).
//! * `READONLY-2` What is shown is one moment, that of the copy, or an error. Its owner does not
//!   know of who reads here, and may reclaim what is read. *Guard*: before it writes over anything
//!   it commits to its log; catalog and log are looked at behind each read of content, and if they
//!   are not as they were when they were copied, the read fails.
//! * `READONLY-3` A stranger's database leads nowhere else, and does not fill the place of the
//!   copy. *Guard*: its files are reached by the crate `larder-directory`; of a file no more is
//!   copied than it had when it was looked at, holes stay holes, and what does not fit is not
//!   begun. The copy is the caller's alone, and code in it stays its owner's ([`Trust::CopyOf`]).

use crate::host::random_id;
use crate::{Error, ErrorKind, Result, error::io_error};
use larder_catalog::{CATALOG_FILE, Trust, require_sound_log};
use larder_segment::directory::{Access, DatabaseDir, Kind, Status};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::unix::fs::{DirBuilderExt, FileExt};
use std::path::PathBuf;
use std::time::Duration;

/// The catalog, its log, and the mark beside that.
const COPIED: [&str; 3] = ["", "-wal", "-wal-shared"];
/// A copy is tried so often while somebody writes.
const TRIES: usize = 50;
const TRY_PAUSE: Duration = Duration::from_millis(20);
/// Bytes copied at a time.
const COPY_BYTES: u64 = 1 << 20;

/// The copy of a catalog, and what it is of. Removed when it is dropped.
#[derive(Debug)]
pub struct Readonly {
    database: DatabaseDir,
    place: Place,
    /// What each file was when it was copied; `None`: not there.
    stamps: Vec<(String, Option<Status>)>,
}

/// A new directory for temporary files, removed when it is dropped.
#[derive(Debug)]
struct Place {
    path: PathBuf,
    directory: DatabaseDir,
}

impl Readonly {
    /// The database that is shown.
    pub(crate) fn database(&self) -> &DatabaseDir {
        &self.database
    }

    /// Copies the catalog of a database if it is there and cannot be written; `None`: it can. Cost:
    /// as long as copying the catalog takes, and its size in the directory for temporary files.
    pub(crate) fn find(database: &DatabaseDir) -> Result<Option<Readonly>> {
        let path = database.path();
        let look = |error| io_error(format!("cannot look at {}", path.display()), error);
        // What is no regular file is refused when it is opened.
        let is_there = database.kind(CATALOG_FILE).map_err(look)? == Some(Kind::File);
        if !is_there
            || (database.is_writable("").map_err(look)?
                && database.is_writable(CATALOG_FILE).map_err(look)?)
        {
            return Ok(None);
        }
        require_sound_log(database, CATALOG_FILE)?;
        let id: String = random_id()
            .map_err(|error| io_error("cannot read /dev/urandom".into(), error))?
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let directory = std::env::temp_dir().join(format!("larder-read-{id}"));
        let cannot = |error| {
            let what = format!(
                "{} cannot be written, and its catalog cannot be copied to {} for reading (TMPDIR \
                 names another place)",
                path.display(),
                directory.display()
            );
            io_error(what, error)
        };
        let mut copy = Readonly {
            database: database.clone(),
            place: Place::make(directory.clone()).map_err(cannot)?,
            stamps: Vec::new(),
        };
        for _ in 0..TRIES {
            copy.stamps = COPIED
                .iter()
                .map(|suffix| {
                    let name = format!("{CATALOG_FILE}{suffix}");
                    copy.database.status(&name).map(|stamp| (name, stamp))
                })
                .collect::<io::Result<_>>()
                .map_err(cannot)?;
            copy.copy_files().map_err(cannot)?;
            if copy.is_unchanged().map_err(cannot)? {
                return Ok(Some(copy));
            }
            std::thread::sleep(TRY_PAUSE);
        }
        Err(copy.changed())
    }

    /// Where the copy is.
    pub(crate) fn directory(&self) -> &DatabaseDir {
        &self.place.directory
    }

    /// Whom an open of the copy trusts, where one of the database trusts `trust`.
    pub(crate) fn trust(&self, trust: Trust) -> Trust {
        let catalog = self.stamps.first().and_then(|(_, stamp)| *stamp);
        match (trust, catalog) {
            (Trust::Owner, Some(catalog)) => Trust::CopyOf(catalog.uid),
            (trust, _) => trust,
        }
    }

    /// `READONLY-2`. 2 µs.
    pub(crate) fn require_unchanged(&self) -> Result<()> {
        match self.is_unchanged() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.changed()),
            Err(error) => Err(io_error(
                format!(
                    "cannot look at the catalog of {}",
                    self.database.path().display()
                ),
                error,
            )),
        }
    }

    fn changed(&self) -> Error {
        Error::new(
            ErrorKind::Stopped,
            format!(
                "{} is changed by somebody while it is read here, where it cannot be written; run \
                 the command again, or \
                 let the owner's session read",
                self.database.path().display()
            ),
        )
    }

    fn is_unchanged(&self) -> io::Result<bool> {
        for (name, then) in &self.stamps {
            if self.database.status(name)? != *then {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn copy_files(&self) -> io::Result<()> {
        for (name, stamp) in &self.stamps {
            match stamp {
                Some(stamp) => self.copy_file(name, stamp.bytes).map_err(|error| {
                    let path = self.database.join(name);
                    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
                })?,
                None => self.place.directory.remove_file(name)?,
            }
        }
        Ok(())
    }

    fn copy_file(&self, name: &str, bytes: u64) -> io::Result<()> {
        let from = self.database.open_file(name, Access::Read)?;
        let to = self.place.directory.open_file(name, Access::Make)?;
        copy_data(&from, &to, bytes)
    }
}

impl Place {
    fn make(path: PathBuf) -> io::Result<Place> {
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        let directory = DatabaseDir::open(&path)?;
        Ok(Place { path, directory })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.path) {
            tracing::warn!("cannot remove {}: {error}", self.path.display());
        }
    }
}

/// Makes `to` the first `bytes` of `from`; holes stay holes, and what does not fit is not begun
/// (`READONLY-3`).
fn copy_data(from: &File, to: &File, bytes: u64) -> io::Result<()> {
    to.set_len(0)?;
    to.set_len(bytes)?;
    let mut buffer = Vec::new();
    let mut at = 0;
    while at < bytes {
        // Where the filesystem knows of no holes, all is data.
        let begin = match rustix::fs::seek(from, SeekFrom::Data(at)) {
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::OPNOTSUPP) => at,
            found => found?,
        };
        let end = match rustix::fs::seek(from, SeekFrom::Hole(begin)) {
            Err(Errno::INVAL | Errno::OPNOTSUPP) => bytes,
            Err(Errno::NXIO) => break, // It is shorter now.
            found => found?.min(bytes),
        };
        if begin >= end {
            break;
        }
        let room = rustix::fs::fstatvfs(to)?;
        let free = room.f_bavail.saturating_mul(room.f_frsize);
        if end - begin > free {
            return Err(io::Error::new(
                io::ErrorKind::StorageFull,
                format!(
                    "{} bytes are to be copied, and {free} are free",
                    end - begin
                ),
            ));
        }
        at = begin;
        while at < end {
            buffer.resize(COPY_BYTES.min(end - at) as usize, 0);
            match from.read_at(&mut buffer, at)? {
                0 => return Ok(()), // It is shorter now.
                read => {
                    to.write_all_at(&buffer[..read], at)?;
                    at += read as u64;
                }
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn holes_stay_holes_and_what_came_later_is_left() {
        let (from, to) = (tempfile::tempfile().unwrap(), tempfile::tempfile().unwrap());
        let far = 1 << 40;
        from.write_all_at(b"one", 0).unwrap();
        from.write_all_at(b"two", far).unwrap();
        from.write_all_at(b"later", far + 3).unwrap();
        to.write_all_at(&[1; 9000], 0).unwrap();
        copy_data(&from, &to, far + 3).unwrap();
        let found = to.metadata().unwrap();
        assert_eq!(found.len(), far + 3, "READONLY-3");
        assert!(found.blocks() < 4096, "READONLY-3: {}", found.blocks());
        let mut read = [0; 3];
        to.read_exact_at(&mut read, far).unwrap();
        assert_eq!(&read, b"two");
        to.read_exact_at(&mut read, 8000).unwrap();
        assert_eq!(read, [0; 3]);
    }
}
