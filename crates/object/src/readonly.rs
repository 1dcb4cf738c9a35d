//! A database that this process cannot write: on a read-only medium, or somebody else's.
//!
//! SQLite needs to write for reading: shared memory beside the log. So the catalog and its log are copied to a place
//! of one's own, where the session lives; content is read where it lies. Nothing is written beside the database, and a log that
//! nobody has copied into the catalog counts.
//!
//! # Invariants
//! * `READONLY-1` Not a byte of the database's directory is written. *Guard*: the engine's directory is the copy, its segments are
//!   open for reading, and nothing that changes something begins ([`Engine::require_present`]).
//! * `READONLY-2` What is shown is one moment, that of the copy, or an error. Its owner does not know of who reads here, and may
//!   reclaim what is read. *Guard*: before it writes over anything it commits to its log; catalog and log are
//!   looked at behind each read of content, and if they are not as they were when they were copied, the read fails.

use crate::host::random_id;
use crate::{Error, ErrorKind, Result, error::io_error};
use larder_catalog::{CATALOG_FILE, require_sound_log};
use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use std::fs::Permissions;
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The catalog, its log, and the mark beside that.
const COPIED: [&str; 3] = ["", "-wal", "-wal-shared"];
/// A copy is tried so often while somebody writes.
const TRIES: usize = 50;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// What a file was when it was copied; `None`: not there.
type Stamp = Option<(u64, u64, i64, i64)>;

/// The copy of a catalog, and what it is of. Removed when it is dropped.
#[derive(Debug)]
pub struct Readonly {
    database: PathBuf,
    directory: PathBuf,
    stamps: Vec<(PathBuf, Stamp)>,
}

impl Readonly {
    /// Copies the catalog of the database in `path` if it is there and cannot be written; `None`: it can. Cost: as long
    /// as copying the catalog takes, and its size in the directory for temporary files.
    pub(crate) fn find(path: &Path) -> Result<Option<Readonly>> {
        let catalog = path.join(CATALOG_FILE);
        if !catalog.exists() || (is_writable(path)? && is_writable(&catalog)?) {
            return Ok(None);
        }
        require_sound_log(&catalog)?;
        let id: String = random_id()
            .map_err(|error| io_error("cannot read /dev/urandom".into(), error))?
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect();
        let directory = std::env::temp_dir().join(format!("larder-read-{id}"));
        let cannot = |error| {
            let what = format!(
                "{} cannot be written, and its catalog cannot be copied to {} for reading (TMPDIR names another place)",
                path.display(),
                directory.display()
            );
            io_error(what, error)
        };
        std::fs::DirBuilder::new()
            .mode(0o700)
            .create(&directory)
            .map_err(cannot)?;
        let mut copy = Readonly {
            database: path.canonicalize().map_err(cannot)?,
            directory: directory.clone(),
            stamps: Vec::new(),
        };
        for _ in 0..TRIES {
            copy.stamps = COPIED
                .iter()
                .map(|suffix| {
                    let file = copy.database.join(format!("{CATALOG_FILE}{suffix}"));
                    stamp(&file).map(|stamp| (file, stamp))
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
    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// Where the database is.
    pub(crate) fn database(&self) -> &Path {
        &self.database
    }

    /// `READONLY-2`. 2 µs.
    pub(crate) fn require_unchanged(&self) -> Result<()> {
        match self.is_unchanged() {
            Ok(true) => Ok(()),
            Ok(false) => Err(self.changed()),
            Err(error) => Err(io_error(
                format!("cannot look at the catalog of {}", self.database.display()),
                error,
            )),
        }
    }

    fn changed(&self) -> Error {
        Error::new(
            ErrorKind::Stopped,
            format!(
                "{} is changed by somebody while it is read here, where it cannot be written; run the command again, or \
                 let the owner's session read",
                self.database.display()
            ),
        )
    }

    fn is_unchanged(&self) -> io::Result<bool> {
        for (file, then) in &self.stamps {
            if stamp(file)? != *then {
                return Ok(false);
            }
        }
        Ok(true)
    }

    fn copy_files(&self) -> io::Result<()> {
        for (file, stamp) in &self.stamps {
            let target = self.directory.join(file.file_name().unwrap_or_default());
            match stamp {
                Some(_) => {
                    std::fs::copy(file, &target)?;
                    std::fs::set_permissions(&target, Permissions::from_mode(0o600))?;
                }
                None if target.exists() => std::fs::remove_file(&target)?,
                None => {}
            }
        }
        Ok(())
    }
}

impl Drop for Readonly {
    fn drop(&mut self) {
        if let Err(error) = std::fs::remove_dir_all(&self.directory) {
            tracing::warn!("cannot remove {}: {error}", self.directory.display());
        }
    }
}

fn is_writable(path: &Path) -> Result<bool> {
    match accessat(CWD, path, Access::WRITE_OK, AtFlags::EACCESS) {
        Ok(()) => Ok(true),
        Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => Ok(false),
        Err(error) => Err(io_error(
            format!("cannot look at {}", path.display()),
            error.into(),
        )),
    }
}

fn stamp(file: &Path) -> io::Result<Stamp> {
    match std::fs::metadata(file) {
        Ok(found) => Ok(Some((
            found.ino(),
            found.len(),
            found.mtime(),
            found.mtime_nsec(),
        ))),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}
