//! The local filesystem as a side of a copy: directories are descriptors, and every name is looked
//! up in one of them without following symbolic links (`CLI-40`).

mod file;
mod inode;
#[cfg(test)]
mod tests;

use crate::address::join;
use crate::error::{At, Failure, Result};
use crate::side::{Carry, Content, Folder, Found, Inode, SELF, Side, Spot, replaced};
use file::LocalFile;
use inode::{Held, lossy, stat_at};
use larder::{FileKind, NewNode};
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::Path;
use std::rc::Rc;

/// What every open has. A pipe in place of a file must not hang the copy, and a terminal not become
/// ours.
const NEVER: OFlags = OFlags::NOFOLLOW
    .union(OFlags::CLOEXEC)
    .union(OFlags::NONBLOCK)
    .union(OFlags::NOCTTY);
/// A directory is held without a right to list it.
const HOLD: OFlags = OFlags::PATH.union(OFlags::CLOEXEC);

/// The local filesystem.
pub(crate) struct Local;

fn to_path(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

impl Side for Local {
    fn show(&self, path: &[u8]) -> String {
        lossy(path)
    }

    fn find(&self, path: &[u8], follow: bool) -> Result<Option<Found>> {
        let flags = match follow {
            true => AtFlags::empty(),
            false => AtFlags::SYMLINK_NOFOLLOW,
        };
        match stat_at(CWD, path, flags) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno).at(|| format!("cannot examine '{}'", lossy(path))),
        }
    }

    fn start(&self, path: &[u8], follow: bool) -> Result<Spot> {
        // With a slash behind it a link to a directory is that directory.
        if ends_in_itself(path)
            && let Some(folder) = self.folder(path)?
        {
            let name = SELF.to_vec();
            return Ok(Spot { folder, name });
        }
        let path = without_slashes(path);
        let is_link = |found: Found| found.kind == FileKind::Symlink;
        if follow && self.find(path, false)?.is_some_and(is_link) {
            let led_to = to_path(path).canonicalize().map_err(|error| {
                let shown = lossy(path);
                Failure::Other(format!(
                    "the symbolic link '{shown}' cannot be followed ({error}); remove it or name \
                     something else"
                ))
            })?;
            return self.start(&led_to.into_os_string().into_vec(), false);
        }
        let (above, name) = match path.iter().rposition(|&byte| byte == b'/') {
            Some(slash) => path.split_at(slash + 1),
            None => (&b""[..], path),
        };
        let directory = if above.is_empty() { SELF } else { above };
        let held = hold(directory).at(|| format!("cannot reach '{}'", lossy(path)))?;
        let shown = above.to_vec();
        Ok(Spot {
            folder: Rc::new(LocalFolder { held, shown }),
            name: name.to_vec(),
        })
    }

    fn folder(&self, path: &[u8]) -> Result<Option<Rc<dyn Folder>>> {
        let found = self.find(path, true)?;
        if found.is_none_or(|found| found.kind != FileKind::Directory) {
            return Ok(None);
        }
        let held = hold(path).at(|| format!("cannot open the directory '{}'", lossy(path)))?;
        let shown = path.to_vec();
        Ok(Some(Rc::new(LocalFolder { held, shown })))
    }
}

/// The directory at a path of the command line.
fn hold(path: &[u8]) -> rustix::io::Result<OwnedFd> {
    rustix::fs::open(to_path(path), HOLD | OFlags::DIRECTORY, Mode::empty())
}

fn without_slashes(path: &[u8]) -> &[u8] {
    let length = path.iter().rposition(|&byte| byte != b'/');
    &path[..length.map_or(0, |last| last + 1)]
}

/// Whether the last part of a path is no name: `a/`, `a/.`, `..`, `/`.
fn ends_in_itself(path: &[u8]) -> bool {
    let last = path.rsplit(|&byte| byte == b'/').next();
    matches!(last, Some(b"" | b"." | b".."))
}

/// A directory of the local filesystem.
struct LocalFolder {
    held: OwnedFd,
    /// Its path, for messages only.
    shown: Vec<u8>,
}

impl LocalFolder {
    fn path_of(&self, name: &[u8]) -> Vec<u8> {
        match (name, self.shown.is_empty()) {
            (SELF, false) => self.shown.clone(),
            (name, true) => name.to_vec(),
            (name, false) => join(&self.shown, name),
        }
    }

    fn open_at(&self, name: &[u8], flags: OFlags, mode: u32) -> rustix::io::Result<OwnedFd> {
        rustix::fs::openat(&self.held, name, flags, Mode::from_raw_mode(mode & 0o777))
    }

    /// Opens what was `found`, or nothing (`CLI-40`).
    fn open_found(&self, name: &[u8], flags: OFlags, found: &Found, what: &str) -> Result<OwnedFd> {
        let what = || format!("{what} '{}'", self.show(name));
        let opened = match self.open_at(name, flags | NEVER, 0) {
            // A link, another kind, or nothing at all by now.
            Err(Errno::LOOP | Errno::NOTDIR | Errno::NXIO | Errno::NOENT | Errno::ISDIR) => {
                return Err(replaced(&self.show(name)));
            }
            opened => opened.at(what)?,
        };
        let is = stat_at(opened.as_fd(), b"", AtFlags::EMPTY_PATH).at(what)?;
        match is.is(found) {
            true => Ok(opened),
            false => Err(replaced(&self.show(name))),
        }
    }

    fn held(&self) -> Held<'_> {
        Held::path(self.held.as_fd(), &self.shown)
    }

    fn file(&self, name: &[u8], file: OwnedFd) -> Box<dyn Content> {
        Box::new(LocalFile::new(file, self.path_of(name)))
    }
}

impl Inode for LocalFolder {
    fn found(&self) -> Result<Found> {
        self.held().found()
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.held().xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.held().set_xattr(name, value)
    }

    fn set_attr(&self, carry: &Carry) -> Result<()> {
        self.held().set_attr(carry)
    }
}

impl Folder for LocalFolder {
    fn show(&self, name: &[u8]) -> String {
        lossy(&self.path_of(name))
    }

    fn find(&self, name: &[u8]) -> Result<Option<Found>> {
        match stat_at(self.held.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(found) => Ok(Some(found)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(errno).at(|| format!("cannot examine '{}'", self.show(name))),
        }
    }

    fn names(&self) -> Result<Vec<Vec<u8>>> {
        let list = || -> rustix::io::Result<Vec<Vec<u8>>> {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY;
            let mut names = Vec::new();
            for entry in Dir::new(self.open_at(SELF, flags | NEVER, 0)?)? {
                let name = entry?.file_name().to_bytes().to_vec();
                if !matches!(&name[..], b"." | b"..") {
                    names.push(name);
                }
            }
            Ok(names)
        };
        list().at(|| format!("cannot list '{}'", lossy(&self.shown)))
    }

    fn enter(&self, name: &[u8], found: &Found) -> Result<Rc<dyn Folder>> {
        let flags = HOLD | OFlags::DIRECTORY;
        let held = self.open_found(name, flags, found, "cannot open the directory")?;
        let shown = self.path_of(name);
        Ok(Rc::new(LocalFolder { held, shown }))
    }

    fn hold(&self, name: &[u8], found: &Found) -> Result<Box<dyn Inode>> {
        let held = self.open_found(name, HOLD, found, "cannot examine")?;
        let shown = self.path_of(name);
        Ok(Box::new(LocalNode { held, shown }))
    }

    fn read_link(&self, name: &[u8]) -> Result<Vec<u8>> {
        match rustix::fs::readlinkat(&self.held, name, Vec::new()) {
            Ok(target) => Ok(target.into_bytes()),
            Err(Errno::INVAL | Errno::NOENT) => Err(replaced(&self.show(name))),
            Err(errno) => Err(errno).at(|| format!("cannot read the link '{}'", self.show(name))),
        }
    }

    fn open(&self, name: &[u8], found: &Found) -> Result<Box<dyn Content>> {
        let file = self.open_found(name, OFlags::RDONLY, found, "cannot open")?;
        Ok(self.file(name, file))
    }

    fn overwrite(&self, name: &[u8], found: &Found) -> Result<Box<dyn Content>> {
        let file = self.open_found(name, OFlags::WRONLY, found, "cannot write")?;
        // Not by O_TRUNC: what is opened is looked at first.
        rustix::fs::ftruncate(&file, 0).at(|| format!("cannot write '{}'", self.show(name)))?;
        Ok(self.file(name, file))
    }

    fn create_file(&self, name: &[u8], mode: u32) -> Result<Box<dyn Content>> {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | NEVER;
        let file = self
            .open_at(name, flags, mode)
            .at(|| format!("cannot create '{}'", self.show(name)))?;
        Ok(self.file(name, file))
    }

    fn create_folder(&self, name: &[u8], mode: u32) -> Result<Rc<dyn Folder>> {
        let what = || format!("cannot create '{}'", self.show(name));
        rustix::fs::mkdirat(&self.held, name, Mode::from_raw_mode(mode & 0o777)).at(what)?;
        let Some(found) = self.find(name)? else {
            return Err(replaced(&self.show(name)));
        };
        let made = self.enter(name, &found)?;
        // Another directory may have the name by now, and will be given away: not one with
        // something in it.
        match made.names()?.is_empty() {
            true => Ok(made),
            false => Err(replaced(&self.show(name))),
        }
    }

    fn create_node(&self, name: &[u8], new: NewNode<'_>, mode: u32) -> Result<Box<dyn Inode>> {
        let node = |kind, rdev| {
            let mode = Mode::from_raw_mode(mode & 0o777);
            rustix::fs::mknodat(&self.held, name, kind, mode, rdev)
        };
        let (made, kind, rdev) = match new {
            NewNode::File | NewNode::Directory => {
                unreachable!("these have functions of their own")
            }
            NewNode::Symlink(target) => (
                rustix::fs::symlinkat(target, &self.held, name),
                FileKind::Symlink,
                0,
            ),
            NewNode::Fifo => (node(FileType::Fifo, 0), FileKind::Fifo, 0),
            NewNode::Socket => (node(FileType::Socket, 0), FileKind::Socket, 0),
            NewNode::CharDevice(rdev) => (
                node(FileType::CharacterDevice, rdev),
                FileKind::CharDevice,
                rdev,
            ),
            NewNode::BlockDevice(rdev) => (
                node(FileType::BlockDevice, rdev),
                FileKind::BlockDevice,
                rdev,
            ),
        };
        made.at(|| format!("cannot create '{}'", self.show(name)))?;
        // Something else may have the name by now: what is given away looks as what was made.
        let is_made = |found: &Found| {
            (found.kind, found.rdev, found.nlink) == (kind, rdev, 1)
                && found.uid == rustix::process::geteuid().as_raw()
        };
        match self.find(name)? {
            Some(found) if is_made(&found) => self.hold(name, &found),
            _ => Err(replaced(&self.show(name))),
        }
    }

    fn link(&self, name: &[u8], old: &dyn Folder, old_name: &[u8], found: &Found) -> Result<()> {
        let what = || {
            let (new, old) = (self.show(name), old.show(old_name));
            format!("cannot link '{new}' to '{old}'")
        };
        let Some(from) = old.descriptor() else {
            unreachable!("both directories are of this side")
        };
        rustix::fs::linkat(from, old_name, &self.held, name, AtFlags::empty()).at(what)?;
        match self.find(name)? {
            Some(linked) if linked.is(found) => Ok(()),
            Some(_) => {
                self.unlink(name)?;
                Err(replaced(&old.show(old_name)))
            }
            None => Err(replaced(&self.show(name))),
        }
    }

    fn unlink(&self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&self.held, name, AtFlags::empty())
            .at(|| format!("cannot remove '{}'", self.show(name)))
    }

    fn remove_dir(&self, name: &[u8]) -> Result<()> {
        rustix::fs::unlinkat(&self.held, name, AtFlags::REMOVEDIR)
            .at(|| format!("cannot remove '{}'", self.show(name)))
    }

    fn sync(&self) -> Result<()> {
        let what = || format!("cannot make '{}' durable", lossy(&self.shown));
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | NEVER;
        rustix::fs::syncfs(self.open_at(SELF, flags, 0).at(what)?).at(what)
    }

    fn descriptor(&self) -> Option<BorrowedFd<'_>> {
        Some(self.held.as_fd())
    }
}

/// Anything but a directory and a regular file.
struct LocalNode {
    held: OwnedFd,
    shown: Vec<u8>,
}

impl LocalNode {
    fn held(&self) -> Held<'_> {
        Held::path(self.held.as_fd(), &self.shown)
    }
}

impl Inode for LocalNode {
    fn found(&self) -> Result<Found> {
        self.held().found()
    }

    fn xattrs(&self) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
        self.held().xattrs()
    }

    fn set_xattr(&self, name: &[u8], value: &[u8]) -> Result<()> {
        self.held().set_xattr(name, value)
    }

    fn set_attr(&self, carry: &Carry) -> Result<()> {
        self.held().set_attr(carry)
    }
}
