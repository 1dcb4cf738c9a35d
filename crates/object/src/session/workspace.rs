//! Long transactions: an engine on a workspace, and the visits to its parent.
//!
//! # Words
//! A *workspace* is a directory `DB/transactions/ID` with a private copy of the catalog; its
//! content is in the segments of the *parent*, DB. An ordinary engine opens it and shows an
//! isolated view; nobody waits for it. A *visit* opens the parent for a moment, under its writer
//! lock: to begin, to get blocks or inode numbers *granted*, to end. The *owner* of a bound
//! transaction is the process whose end is its end.
//!
//! ```text
//!         visit: row, pin, numbers   visits: grants
//!  nothing ────────────────────▶ copying ─▶ open ─▶ sealed ─visit: merge─▶ ended, directory gone
//!                                  │         ▲│       │ conflicts ─▶ open
//!                                  │         └┼───────┘
//!                                  └─ killed ▶└─ visit: abort, or the next opener ─▶ ended
//! ```
//!
//! # Invariants
//! `WORKSPACE-1` to `WORKSPACE-5` stand in the catalog.
//! * `WORKSPACE-6` Who has a workspace open holds `seal.lock` shared, from before it looks at the
//!   catalog until it is closed. A transaction ends only under the exclusive lock: nobody writes to
//!   a grant that is given back.
//! * `WORKSPACE-7` The owner holds `owner.lock`. When it is free, a bound transaction is over, and
//!   so is one that was never copied whole: whoever opens the parent next ends it.
//! * `WORKSPACE-8` In a workspace nothing is written in place, moved, grown or cut, and what of the
//!   base is dropped is neither retired nor reclaimed: that is the parent's (`WORKSPACE-1`).

use crate::error::io_error;
use crate::{Error, ErrorKind, Result};
use larder_catalog::{CATALOG_FILE, Grants, TransactionRow};
use larder_segment::directory::{Access, DatabaseDir};
use larder_space::format::limits::BLOCK_BYTES;
use larder_space::format::{Extent, Ino, SegmentIndex, StoreId};
use std::collections::HashMap;
use std::fs::{File, TryLockError};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::Duration;

/// The directory of workspaces, in the directory of a database.
pub(crate) const DIRECTORY: &str = "transactions";
const SEAL: &str = "seal.lock";
const OWNER: &str = "owner.lock";
/// How long the last segment was when the transaction began: its number and blocks, for its end.
const LENGTH: &str = "length";
/// Two numbers.
const LENGTH_BYTES_MAX: u64 = 64;
/// How long a segment is taken to be: grants come from wherever the parent has grown by then.
pub(crate) const SEGMENT_BLOCKS: u64 = (4 << 40) / BLOCK_BYTES;

/// Why moving content is refused in a workspace (`WORKSPACE-8`).
pub(crate) const NO_MOVES: &str =
    "content is not moved in a long transaction; do that outside of it";

/// What an engine on a workspace knows of it.
#[derive(Debug)]
pub(crate) struct Workspace {
    pub id: u64,
    parent: DatabaseDir,
    /// `WORKSPACE-6`.
    _seal: File,
    /// One after the last inode number of each store, as far as it was asked for.
    pub ino_ends: Mutex<HashMap<StoreId, u64>>,
}

impl Workspace {
    /// Holds the seal of a workspace, before its catalog is looked at; `None`: an ordinary
    /// database.
    pub fn find(workspace: &DatabaseDir) -> Result<Option<Workspace>> {
        let lock = workspace.join(SEAL);
        let failed = |error| io_error(format!("cannot lock {}", lock.display()), error);
        let file = match workspace.open_file(SEAL, Access::ReadWrite) {
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            opened => opened.map_err(failed)?,
        };
        match file.try_lock_shared() {
            Ok(()) => {}
            Err(TryLockError::WouldBlock) => {
                return Err(Error::new(
                    ErrorKind::Busy,
                    "this transaction is being committed or ended; begin another one",
                ));
            }
            Err(TryLockError::Error(error)) => return Err(failed(error)),
        }
        let directory = canonical(workspace.path())?;
        let place = directory.parent().and_then(Path::parent);
        let id = directory
            .file_name()
            .and_then(|name| name.to_str()?.parse().ok());
        let found = place.zip(id).map(|(parent, id)| -> std::io::Result<_> {
            let parent = DatabaseDir::open(parent)?;
            let child = parent.open_dir(name_of(id))?;
            Ok((child.identity()? == workspace.identity()?).then_some((parent, id)))
        });
        match found {
            Some(Ok(Some((parent, id)))) => Ok(Some(Workspace {
                id,
                parent,
                _seal: file,
                ino_ends: Mutex::default(),
            })),
            _ => Err(Error::new(
                ErrorKind::NotADatabase,
                format!(
                    "{} looks like a long transaction, but lies in no database; move it back",
                    workspace.path().display()
                ),
            )),
        }
    }

    /// The database whose segments it uses.
    pub fn parent(&self) -> &DatabaseDir {
        &self.parent
    }
}

pub(crate) fn canonical(path: &Path) -> Result<PathBuf> {
    path.canonicalize()
        .map_err(|error| io_error(format!("cannot examine {}", path.display()), error))
}

pub(crate) fn directory_of(parent: &Path, id: u64) -> PathBuf {
    parent.join(name_of(id))
}

/// The directory of a workspace, in that of its parent.
pub(crate) fn name_of(id: u64) -> String {
    format!("{DIRECTORY}/{id}")
}

/// Makes the directory of a workspace; the owner's lock is held. The last segment has `length`
/// blocks.
pub(crate) fn make_directory(
    parent: &DatabaseDir,
    id: u64,
    length: (SegmentIndex, u64),
) -> Result<(DatabaseDir, File)> {
    let make = || {
        let all = parent.make_dir(DIRECTORY)?;
        let directory = parent.make_dir(name_of(id))?;
        directory.open_file(SEAL, Access::MakeNew)?;
        let mut file = directory.open_file(LENGTH, Access::MakeNew)?;
        file.write_all(format!("{} {}", length.0, length.1).as_bytes())?;
        let owner = directory.open_file(OWNER, Access::MakeNew)?;
        owner.lock()?;
        all.sync()?;
        Ok((directory, owner))
    };
    make().map_err(|error| {
        let path = parent.join(name_of(id));
        io_error(format!("cannot create {}", path.display()), error)
    })
}

/// How long the last segment was when the transaction began; `None`: that is not known (an older
/// larder began it).
pub(crate) fn find_length(parent: &DatabaseDir, id: u64) -> Option<(SegmentIndex, u64)> {
    let name = format!("{}/{LENGTH}", name_of(id));
    let file = parent.open_file(name, Access::Read).ok()?;
    let mut text = String::new();
    file.take(LENGTH_BYTES_MAX).read_to_string(&mut text).ok()?;
    parse_length(&text)
}

/// What a file `length` says.
pub(crate) fn parse_length(text: &str) -> Option<(SegmentIndex, u64)> {
    let (segment, blocks) = text.split_once(' ')?;
    Some((SegmentIndex(segment.parse().ok()?), blocks.parse().ok()?))
}

/// Removes the directory, while nobody can open the workspace.
pub(crate) fn remove_directory(parent: &DatabaseDir, id: u64, seal: Option<File>) -> Result<()> {
    let name = name_of(id);
    let removed = parent.remove_tree(&name); // DIRECTORY-3
    drop(seal);
    removed.map_err(|error| {
        let path = parent.join(&name);
        io_error(format!("cannot remove {}", path.display()), error)
    })
}

/// What came of sealing a workspace.
pub(crate) enum Sealing {
    /// It is closed, and stays so while the lock is held; `None`: it has no lock, and so no user.
    Sealed(Option<File>),
    /// Somebody has it open.
    Open,
}

/// How often, and with what pauses, a workspace is tried to be sealed.
const SEAL_TRIES: u32 = 50;
const SEAL_PAUSE: Duration = Duration::from_millis(10);

pub(crate) fn try_seal(parent: &DatabaseDir, id: u64) -> Result<Sealing> {
    let name = format!("{}/{SEAL}", name_of(id));
    let path = parent.join(&name);
    let failed = |error| io_error(format!("cannot lock {}", path.display()), error);
    let file = match parent.open_file(&name, Access::ReadWrite) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            return Ok(Sealing::Sealed(None));
        }
        opened => opened.map_err(failed)?,
    };
    match file.try_lock() {
        Ok(()) => Ok(Sealing::Sealed(Some(file))),
        Err(TryLockError::WouldBlock) => Ok(Sealing::Open),
        Err(TryLockError::Error(error)) => Err(failed(error)),
    }
}

/// The same with a moment of patience: a program that another thread is just starting has what we
/// have open, until it runs.
pub(crate) fn seal_if_idle(parent: &DatabaseDir, id: u64) -> Result<Sealing> {
    for _ in 1..SEAL_TRIES {
        if let Sealing::Sealed(file) = try_seal(parent, id)? {
            return Ok(Sealing::Sealed(file));
        }
        std::thread::sleep(SEAL_PAUSE);
    }
    try_seal(parent, id)
}

/// Keeps everybody out of a workspace that nobody has open (`WORKSPACE-6`).
pub(crate) fn seal(parent: &DatabaseDir, id: u64) -> Result<Option<File>> {
    match seal_if_idle(parent, id)? {
        Sealing::Sealed(file) => Ok(file),
        Sealing::Open => Err(Error::new(
            ErrorKind::Busy,
            format!(
                "transaction {id} is in use; unmount it, end the programs that work in it, and \
                 try again"
            ),
        )),
    }
}

/// Whether the owner is gone, and the transaction with it (`WORKSPACE-7`). Where that cannot be
/// found out it is taken as alive: what it did would be lost, and there is always a next opener.
pub(crate) fn is_abandoned(parent: &DatabaseDir, row: &TransactionRow) -> bool {
    let catalog = format!("{}/{CATALOG_FILE}", name_of(row.id));
    let is_over = find_owner(parent, row.id)
        .and_then(|lives| Ok(!lives && (row.is_bound || parent.kind(&catalog)?.is_none())));
    match is_over {
        Ok(is_over) => is_over,
        Err(error) => {
            tracing::warn!("transaction {} is left as it is: {error}", row.id);
            false
        }
    }
}

/// Whether the owner of a workspace lives.
fn find_owner(parent: &DatabaseDir, id: u64) -> std::io::Result<bool> {
    let owner = match parent.open_file(format!("{}/{OWNER}", name_of(id)), Access::Read) {
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(false),
        opened => opened?,
    };
    match owner.try_lock() {
        Ok(()) => Ok(false),
        Err(TryLockError::WouldBlock) => Ok(true),
        Err(TryLockError::Error(error)) => Err(error),
    }
}

/// Nothing outside of the grants is allocated (`WORKSPACE-1`).
pub(crate) fn assert_granted(grants: &Grants, allocated: &[(Extent, StoreId, Ino)]) {
    for (extent, ..) in allocated {
        assert!(grants.contain(*extent), "WORKSPACE-1");
    }
}
