//! What was refused after it was answered, kept until somebody decides (`CONSTRAINT-4`): directory
//! `refused/` of the database.
//!
//! ```text
//!  refused/ID            what it was: "key value" lines; the last one is the path, which may hold
//!                        any bytes but NUL
//!  refused/ID.content    what the file held, if it held something
//! ```
//!
//! Plain files of the host, and no rows: a rule of the user's cannot refuse them. Both are flushed
//! before the commit that leaves the operation out; the first one gets its name last, so what is
//! listed is whole. Until then it is `ID.new`, which its writer has locked: what a crash has left,
//! nobody has, and who opens the database next removes it.

use crate::commit::NewRefused;
use crate::engine::EngineRefusals;
use crate::error::io_error;
use crate::session::open_directory;
use crate::{Error, ErrorKind, Result};
use larder_segment::directory::{Access, DatabaseDir};
use larder_space::format::{Ino, StoreId};
use rustix::fs::{FlockOperation, flock, fstat};
use std::fs::File;
use std::io::{Read, Write};
use std::path::Path;
use std::sync::atomic::Ordering;

/// The directory.
const DIRECTORY: &str = "refused";
/// Content is copied in parts of so many bytes.
const PART_BYTES: usize = 1 << 20;
/// A description has at most so many bytes: a path has 4096 names at most.
const ABOUT_BYTES_MAX: u64 = 2 << 20;

/// Something that a constraint refused after it was answered.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct RefusedFile {
    /// Its number, from 1.
    pub id: u64,
    /// When it was refused, nanoseconds since 1970.
    pub at_ns: i64,
    /// The store that it was in.
    pub store: StoreId,
    /// Its inode there.
    pub ino: Ino,
    /// Table, rule, path, in words.
    pub why: String,
    /// Its path in the store.
    pub path: Vec<u8>,
    /// How much content is kept, bytes; `None`: a change without content, such as a rename.
    pub size_bytes: Option<u64>,
}

/// All that is kept in a database, the oldest first. Nothing is opened but its directory.
pub fn list_refused(database: &Path) -> Result<Vec<RefusedFile>> {
    list_in(&open_directory(database)?)
}

/// The content of one of them.
pub fn open_refused(database: &Path, id: u64) -> Result<File> {
    let directory = open_directory(database)?;
    let found = list_in(&directory)?.into_iter().find(|one| one.id == id);
    let Some(found) = found else {
        return Err(unknown(id));
    };
    if found.size_bytes.is_none() {
        return Err(Error::new(
            ErrorKind::InvalidInput,
            format!(
                "refused operation {id} has no content; 'larder refused list' says what it was"
            ),
        ));
    }
    let name = format!("{DIRECTORY}/{id}.content");
    let opened = directory.open_file(&name, Access::Read);
    opened.map_err(|error| failed_at(&directory, &name, error))
}

/// Forgets one of them, with its content.
pub fn drop_refused(database: &Path, id: u64) -> Result<()> {
    let directory = open_directory(database)?;
    if !list_in(&directory)?.iter().any(|one| one.id == id) {
        return Err(unknown(id));
    }
    let remove = |name: String| directory.remove_file(name).map_err(failed);
    remove(format!("{DIRECTORY}/{id}"))?;
    remove(format!("{DIRECTORY}/{id}.content"))
}

/// Copies all of it from one database to another, durably.
pub(crate) fn copy_all(from: &DatabaseDir, to: &DatabaseDir) -> Result<()> {
    let kept = list_in(from)?;
    if kept.is_empty() {
        return Ok(());
    }
    let made = match to.make_dir(DIRECTORY) {
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => to.open_dir(DIRECTORY),
        made => made,
    };
    let made = made.map_err(failed)?;
    for one in kept {
        let content = one
            .size_bytes
            .map(|_| format!("{DIRECTORY}/{}.content", one.id));
        // What it was gets its name last.
        for name in content
            .into_iter()
            .chain([format!("{DIRECTORY}/{}", one.id)])
        {
            let copied = || -> std::io::Result<()> {
                let mut source = from.open_file(&name, Access::Read)?;
                let mut target = to.open_file(&name, Access::Make)?;
                target.set_len(0)?;
                std::io::copy(&mut source, &mut target)?;
                target.sync_all()
            };
            copied().map_err(|error| failed_at(to, &name, error))?;
        }
    }
    made.sync().and_then(|()| to.sync()).map_err(failed)
}

fn unknown(id: u64) -> Error {
    Error::new(
        ErrorKind::NotFound,
        format!("there is no refused operation {id}; 'larder refused list' names all"),
    )
}

fn failed(error: std::io::Error) -> Error {
    io_error("what was refused".into(), error)
}

/// The same of one file, which a person may have to move away.
fn failed_at(directory: &DatabaseDir, name: impl AsRef<Path>, error: std::io::Error) -> Error {
    io_error(format!("'{}'", directory.join(name).display()), error)
}

fn list_in(directory: &DatabaseDir) -> Result<Vec<RefusedFile>> {
    let kept = match directory.open_dir(DIRECTORY) {
        Ok(kept) => kept,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
        Err(error) => return Err(failed_at(directory, DIRECTORY, error)),
    };
    let mut found = Vec::new();
    for name in kept.names().map_err(failed)? {
        let Some(id) = name.to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let mut about = Vec::new();
        (kept.open_file(&name, Access::Read))
            .and_then(|file| file.take(ABOUT_BYTES_MAX).read_to_end(&mut about))
            .map_err(|error| failed_at(&kept, &name, error))?;
        found.push(decode(id, &about).ok_or_else(|| {
            Error::new(
                ErrorKind::Corrupt,
                format!(
                    "{} is not as larder writes it; move it away",
                    kept.join(&name).display()
                ),
            )
        })?);
    }
    found.sort_unstable_by_key(|one| one.id);
    Ok(found)
}

/// Locks a description that is being written; `false`: somebody took it for a leftover.
fn lock_new(file: &File) -> std::io::Result<bool> {
    flock(file, FlockOperation::LockExclusive)?;
    Ok(fstat(file)?.st_nlink > 0)
}

/// Removes what a crash has left: what was being kept, and what was being dropped. Its operation
/// was not left out of any commit, or somebody has decided about it.
pub(crate) fn remove_leftovers(directory: &DatabaseDir) -> Result<()> {
    let kept = match directory.open_dir(DIRECTORY) {
        Ok(kept) => kept,
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed_at(directory, DIRECTORY, error)),
    };
    for name in kept.names().map_err(failed)? {
        let Some((id, end)) = name.to_str().and_then(|name| name.split_once('.')) else {
            continue;
        };
        if id.parse::<u64>().is_err() {
            continue;
        }
        match end {
            "new" => {
                let new = match kept.open_file(&name, Access::Read) {
                    Ok(new) => new,
                    Err(error) if error.kind() == std::io::ErrorKind::NotFound => continue,
                    Err(error) => return Err(failed_at(&kept, &name, error)),
                };
                if flock(&new, FlockOperation::NonBlockingLockExclusive).is_ok() {
                    kept.remove_file(&name).map_err(failed)?;
                    kept.remove_file(format!("{id}.content")).map_err(failed)?;
                }
            }
            // Of these two the first becomes the second.
            "content" if !has(&kept, &format!("{id}.new"))? && !has(&kept, id)? => {
                kept.remove_file(&name).map_err(failed)?;
            }
            _ => {}
        }
    }
    Ok(())
}

fn has(kept: &DatabaseDir, name: &str) -> Result<bool> {
    match kept.open_file(name, Access::Read) {
        Ok(_) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(failed_at(kept, name, error)),
    }
}

/// The number after all that were given, by names alone: what one file holds, or a crash has left
/// of it, keeps no other from being kept.
fn next_id(kept: &DatabaseDir) -> Result<u64> {
    let names = kept.names().map_err(failed)?;
    let ids = names.iter().filter_map(|name| {
        let stem = Path::new(name).file_stem()?;
        stem.to_str()?.parse::<u64>().ok()
    });
    ids.max().map_or(Ok(1), after)
}

fn after(id: u64) -> Result<u64> {
    id.checked_add(1).ok_or_else(|| {
        Error::new(
            ErrorKind::Corrupt,
            format!("{DIRECTORY}/ has a file with the last number, {id}; move it away"),
        )
    })
}

/// Takes the first number from `id` on that nobody has: another session takes them, too. Its
/// description, locked.
fn take_id(kept: &DatabaseDir, mut id: u64) -> Result<(u64, File)> {
    loop {
        let name = format!("{id}.new");
        match kept.open_file(&name, Access::MakeNew) {
            // Who looks for leftovers may have been faster.
            Ok(file) if !lock_new(&file).map_err(failed)? => {}
            // The other session may be done with it, or somebody may be dropping it.
            Ok(_) if has(kept, &id.to_string())? || has(kept, &format!("{id}.content"))? => {
                kept.remove_file(&name).map_err(failed)?;
                id = after(id)?;
            }
            Ok(file) => return Ok((id, file)),
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => id = after(id)?,
            Err(error) => return Err(failed(error)),
        }
    }
}

fn encode(new: &NewRefused<'_>) -> Vec<u8> {
    let size = new.size_bytes.map_or("-".into(), |bytes| bytes.to_string());
    let why = new.why.replace(['\n', '\r'], " ");
    let head = format!(
        "at_ns {}\nstore {}\nino {}\nsize {size}\nwhy {why}\npath ",
        new.at_ns, new.store.0, new.ino.0
    );
    let mut about = head.into_bytes();
    about.extend(&new.path);
    about
}

/// The same of what was read.
#[cfg(fuzzing)]
pub(crate) fn encode_again(found: &RefusedFile) -> Vec<u8> {
    encode(&NewRefused {
        at_ns: found.at_ns,
        store: found.store,
        ino: found.ino,
        why: &found.why,
        path: found.path.clone(),
        size_bytes: found.size_bytes,
    })
}

pub(crate) fn decode(id: u64, about: &[u8]) -> Option<RefusedFile> {
    let mut parts = about.splitn(6, |byte| *byte == b'\n');
    let mut value = |key: &str| parts.next()?.strip_prefix(format!("{key} ").as_bytes());
    let text = |bytes: &[u8]| String::from_utf8(bytes.to_vec()).ok();
    Some(RefusedFile {
        id,
        at_ns: text(value("at_ns")?)?.parse().ok()?,
        store: StoreId(text(value("store")?)?.parse().ok()?),
        ino: Ino(text(value("ino")?)?.parse().ok()?),
        size_bytes: match value("size")? {
            b"-" => None,
            size => Some(text(size)?.parse().ok()?),
        },
        why: String::from_utf8_lossy(value("why")?).into_owned(),
        path: value("path")?.to_vec(),
    })
}

impl EngineRefusals<'_> {
    /// Keeps something that was refused; `read` reads its content. Durable when it returns.
    pub(crate) fn add_refused(
        &self,
        new: &NewRefused<'_>,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<RefusedFile> {
        // A workspace goes with its transaction.
        let directory = match &self.session.workspace {
            Some(workspace) => workspace.parent(),
            None => &self.session.directory,
        };
        let kept = directory.make_dir(DIRECTORY).map_err(failed)?;
        let first = match self.refusals.next_id.load(Ordering::Relaxed) {
            0 => next_id(&kept)?,
            known => known,
        };
        let (id, lock) = take_id(&kept, first)?;
        (self.refusals.next_id).fetch_max(id.saturating_add(1), Ordering::Relaxed);
        let written = self.write_refused(&kept, id, new, lock, read);
        if written.is_err() {
            for name in [format!("{id}.new"), format!("{id}.content")] {
                if let Err(error) = kept.remove_file(name) {
                    tracing::warn!("refused operation {id}: {error}");
                }
            }
        }
        written?;
        directory.sync().map_err(failed)?;
        Ok(RefusedFile {
            id,
            at_ns: new.at_ns,
            store: new.store,
            ino: new.ino,
            why: new.why.to_owned(),
            path: new.path.clone(),
            size_bytes: new.size_bytes,
        })
    }

    /// Content does not take the reserve of the host (`HOST-1`).
    pub(crate) fn require_space_to_keep(&self, size_bytes: u64) -> Result<()> {
        if size_bytes == 0
            || self.space().host_bytes()? >= size_bytes + self.space().host_reserve_bytes()?
        {
            return Ok(());
        }
        Err(Error::new(
            ErrorKind::NoSpace,
            "the host has no room for it beside the reserve of the database",
        ))
    }

    /// What is kept, the oldest first.
    pub(crate) fn kept_refused(&self) -> Result<Vec<RefusedFile>> {
        match &self.session.workspace {
            Some(workspace) => list_in(workspace.parent()),
            None => list_in(&self.session.directory),
        }
    }

    fn write_refused(
        &self,
        kept: &DatabaseDir,
        id: u64,
        new: &NewRefused<'_>,
        mut about: File,
        read: &mut dyn FnMut(u64, &mut [u8]) -> Result<usize>,
    ) -> Result<()> {
        if let Some(size_bytes) = new.size_bytes {
            let name = format!("{id}.content");
            kept.remove_file(&name).map_err(failed)?;
            let mut file = kept.open_file(&name, Access::MakeNew).map_err(failed)?;
            let mut buffer = vec![0; PART_BYTES];
            let mut at = 0;
            while at < size_bytes {
                let len = PART_BYTES.min((size_bytes - at) as usize);
                let count = read(at, &mut buffer[..len])?;
                if count == 0 {
                    break;
                }
                file.write_all(&buffer[..count]).map_err(failed)?;
                at += count as u64;
            }
            file.sync_all().map_err(failed)?;
        }
        about.write_all(&encode(new)).map_err(failed)?;
        about.sync_all().map_err(failed)?;
        kept.rename(&format!("{id}.new"), &id.to_string())
            .and_then(|()| kept.sync())
            .map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_damaged_description_and_what_a_crash_left_keep_no_other_from_being_kept() {
        let dir = tempfile::tempdir().unwrap();
        let kept = DatabaseDir::open(dir.path()).unwrap();
        assert_eq!(next_id(&kept).unwrap(), 1);
        for (name, expected) in [("1", 2), ("4.new", 5), ("7.content", 8), ("notes", 8)] {
            std::fs::write(dir.path().join(name), "not as larder writes it").unwrap();
            assert_eq!(next_id(&kept).unwrap(), expected, "{name}");
        }
        std::fs::write(dir.path().join(u64::MAX.to_string()), "").unwrap();
        assert_eq!(next_id(&kept).unwrap_err().kind(), ErrorKind::Corrupt);
        assert_eq!(
            take_id(&kept, u64::MAX).unwrap_err().kind(),
            ErrorKind::Corrupt
        );
    }

    /// Between the look at all names and the new one another session may have kept something.
    #[test]
    fn a_number_that_somebody_has_is_not_taken_again() {
        let dir = tempfile::tempdir().unwrap();
        let kept = DatabaseDir::open(dir.path()).unwrap();
        for name in ["6", "7.new", "8.content"] {
            std::fs::write(dir.path().join(name), "another's").unwrap();
        }
        let (id, _lock) = take_id(&kept, 6).unwrap();
        assert_eq!(id, 9, "CONSTRAINT-4");
        let mut left = kept.names().unwrap();
        left.sort();
        assert_eq!(left, ["6", "7.new", "8.content", "9.new"]);
    }

    #[test]
    fn what_a_crash_left_is_removed_and_nothing_else() {
        let dir = tempfile::tempdir().unwrap();
        let database = DatabaseDir::open(dir.path()).unwrap();
        remove_leftovers(&database).unwrap();
        let kept = database.make_dir(DIRECTORY).unwrap();
        let all = [
            "1",
            "1.content",
            "2",
            "3.new",
            "3.content",
            "4.new",
            "5.content",
            "notes.new",
            "7.new",
            "7.content",
        ];
        for name in all {
            std::fs::write(dir.path().join(DIRECTORY).join(name), "x").unwrap();
        }
        // Somebody is writing this one.
        let held = kept.open_file("7.new", Access::Read).unwrap();
        assert!(lock_new(&held).unwrap());
        remove_leftovers(&database).unwrap();
        let mut left: Vec<_> = kept.names().unwrap();
        left.sort();
        assert_eq!(
            left,
            ["1", "1.content", "2", "7.content", "7.new", "notes.new"]
        );
        drop(held);
        remove_leftovers(&database).unwrap();
        assert_eq!(kept.names().unwrap().len(), 4);
    }

    #[test]
    fn what_was_written_is_read() {
        for (path, size_bytes) in [(&b"/a\nb/\xff"[..], Some(7)), (b"/", None)] {
            let new = NewRefused {
                at_ns: -5,
                store: StoreId(3),
                ino: Ino(9),
                why: "t: no\nmore",
                path: path.to_vec(),
                size_bytes,
            };
            let found = decode(4, &encode(&new)).unwrap();
            assert_eq!(found.path, path);
            assert_eq!(found.size_bytes, size_bytes);
            assert_eq!((found.id, found.at_ns, found.ino), (4, -5, Ino(9)));
            assert_eq!(found.why, "t: no more");
        }
        assert_eq!(decode(1, b"at_ns x"), None);
    }
}
