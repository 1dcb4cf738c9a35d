//! Converting a database of format 1, in a new directory: the old one stays as it is.
//!
//! ```text
//!  new directory ─▶ catalog: copied, converted, compared ─▶ segments, refused files: copied,
//!  is ours          compared ─▶ the catalog gets its name
//! ```
//!
//! # Invariants
//! * `UPGRADE-5` The new directory is that of one attempt: it was empty, or has the file of an
//!   earlier attempt for the same database, which that one has locked while it lived. *Guard*:
//!   [`Attempt`].
//! * `UPGRADE-6` What is in the new directory belongs to whom the old one belongs, and its group is
//!   let in before the catalog has its name.
//!
//! A directory that has no `catalog.db` is no database: what an attempt leaves that ended early is
//! taken up by the next one.

use crate::commit::refused_content;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{CATALOG_FILE, CatalogOptions, Trust, Upgrade};
use larder_segment::directory::{Access, DatabaseDir};
use std::fs::File;
use std::io::{self, Read, Seek, Write};
use std::path::Path;

/// Whose attempt a directory is of: the identity of the database.
const ATTEMPT: &str = "upgrade.lock";

/// What was converted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct UpgradeReport {
    /// Segments.
    pub segment_count: u64,
    /// All of them, bytes.
    pub segment_bytes: u64,
}

/// Converts the database in directory `old`, which an older Larder wrote, in directory `new`:
/// content, history, the user's tables, columns, indexes and triggers, and what was refused after
/// it was answered. Nobody may have `old` open ([`ErrorKind::Busy`]); it keeps what it has. `new`
/// must not be there, or be what an earlier attempt left, which goes on. Rows and blocks are
/// compared. `progress` is told of bytes that were copied, and again of those that were compared.
/// Errors: [`ErrorKind::NotFound`], [`ErrorKind::NewerFormat`], [`ErrorKind::InvalidInput`] if
/// `old` is of this format already, [`ErrorKind::Exists`] if there is something else in `new`,
/// [`ErrorKind::ReadOnly`], [`ErrorKind::NoSpace`]. Cost: all content is read twice and written
/// once; a filesystem with reflinks shares it instead.
pub fn upgrade(
    old: &Path,
    new: &Path,
    trust: Trust,
    progress: &mut dyn FnMut(u64),
) -> Result<UpgradeReport> {
    let from = DatabaseDir::open(old).map_err(|error| at(old, &error))?;
    require_outside(&from, new)?;
    let options = CatalogOptions {
        trust,
        ..CatalogOptions::default()
    };
    let begun = Upgrade::begin(&from, &options)?;
    let to = Attempt::begin(&from, new, begun.database_id())?;
    begun.copy(&to.directory)?;
    let segment_bytes = larder_segment::convert_segments(
        (&from, &to.directory),
        begun.database_id(),
        begun.segments(),
        progress,
    )?;
    refused_content::copy_all(&from, &to.directory)?;
    let segment_count = begun.segments().len() as u64;
    let in_new = |error: io::Error| at(new, &error);
    to.directory.let_group_in().map_err(in_new)?;
    begun.finish(&to.directory)?;
    to.end().map_err(in_new)?;
    Ok(UpgradeReport {
        segment_count,
        segment_bytes,
    })
}

/// The new directory, locked (`UPGRADE-5`).
struct Attempt {
    directory: DatabaseDir,
    _lock: File,
}

impl Attempt {
    fn begin(old: &DatabaseDir, path: &Path, database_id: [u8; 16]) -> Result<Attempt> {
        let in_new = |error: io::Error| at(path, &error);
        if !path.exists() {
            DatabaseDir::create(path, None).map_err(in_new)?;
        }
        let directory = DatabaseDir::open_like(path, old).map_err(in_new)?;
        let names = directory.names().map_err(in_new)?;
        let is_empty = names.is_empty();
        if let Some(name) = names.iter().find(|name| *name == CATALOG_FILE) {
            let why = format!(
                "{} is a database already ('{}')",
                path.display(),
                name.display()
            );
            return Err(taken(&why));
        }
        if let Some(name) = names
            .first()
            .filter(|_| !names.iter().any(|name| name == ATTEMPT))
        {
            let why = format!("{} has '{}' in it", path.display(), name.display());
            return Err(taken(&why));
        }
        let mut lock = directory.open_file(ATTEMPT, Access::Make).map_err(in_new)?;
        if lock.try_lock().is_err() {
            let why = format!(
                "somebody else is converting a database in {} now",
                path.display()
            );
            return Err(Error::new(ErrorKind::Busy, format!("{why}; wait for that")));
        }
        let mut found = Vec::new();
        lock.read_to_end(&mut found).map_err(in_new)?;
        if found != database_id {
            // An attempt that ended before it had written it has made nothing else.
            let has_more = names.iter().any(|name| name != ATTEMPT);
            if !is_empty && (has_more || found.len() == database_id.len()) {
                let why = format!("{} has what is left of another database", path.display());
                return Err(taken(&why));
            }
            lock.set_len(0).map_err(in_new)?;
            lock.rewind().map_err(in_new)?;
            lock.write_all(&database_id).map_err(in_new)?;
            lock.sync_all().map_err(in_new)?;
            directory.sync().map_err(in_new)?;
        }
        Ok(Attempt {
            directory,
            _lock: lock,
        })
    }

    /// The new names survive a power cut.
    fn end(self) -> io::Result<()> {
        self.directory.remove_file(ATTEMPT)?;
        self.directory.sync()?;
        let path = std::path::absolute(self.directory.path())?;
        match path.parent() {
            None => Ok(()),
            Some(above) => DatabaseDir::open(above)?.sync(),
        }
    }
}

/// Refuses a new place inside of the old database.
fn require_outside(old: &DatabaseDir, new: &Path) -> Result<()> {
    let path = std::path::absolute(new).map_err(|error| at(new, &error))?;
    let identity = old.identity().map_err(|error| at(old.path(), &error))?;
    let is_inside = path.ancestors().any(|above| {
        DatabaseDir::open(above)
            .and_then(|above| above.identity())
            .is_ok_and(|id| id == identity)
    });
    match is_inside {
        false => Ok(()),
        true => Err(taken(&format!(
            "{} is in {}",
            new.display(),
            old.path().display()
        ))),
    }
}

fn taken(why: &str) -> Error {
    Error::new(
        ErrorKind::Exists,
        format!("{why}; choose a place where nothing is"),
    )
}

fn at(path: &Path, error: &io::Error) -> Error {
    let kind = match error.kind() {
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory => ErrorKind::NotFound,
        io::ErrorKind::StorageFull => ErrorKind::NoSpace,
        io::ErrorKind::ReadOnlyFilesystem => ErrorKind::ReadOnly,
        io::ErrorKind::PermissionDenied => ErrorKind::NotPermitted,
        _ => ErrorKind::Io,
    };
    Error::new(
        kind,
        format!(
            "{}: {error}; check the path and its permissions",
            path.display()
        ),
    )
}
