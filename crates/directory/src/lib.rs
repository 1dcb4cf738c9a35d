//! The files of a database, reached from one descriptor of its directory.
//!
//! A database may come from a stranger, and its owner may change it while root works in it. So
//! nothing in it is reached by its path again: every name is resolved below the descriptor, and
//! what is found there is judged before it is used.
//!
//! # Invariants
//! * `DIRECTORY-1` A name is resolved below the descriptor: no symbolic link is followed, `..` and
//!   absolute names are refused, and no other filesystem is entered where the kernel can tell
//!   (openat2).
//! * `DIRECTORY-2` What is opened is a regular file with one name (no hard links), and opening
//!   never waits: neither a FIFO nor a device is ever read or written.
//! * `DIRECTORY-3` What is removed is an entry of a directory that is open; a tree is removed by
//!   descriptors only, and no deeper than a database is.
//! * `DIRECTORY-4` What is made belongs to the owner and the group of the database's directory, and
//!   may be used by whom that directory lets write in it, whatever the umask.
//! * `DIRECTORY-5` The directory of a new database is its maker's alone until all of it is there.
//!
//! SQLite opens its files by path: it is given [`DatabaseDir::path_of_descriptor`], which leads to
//! the same directory whatever became of its name.

pub mod holders;
mod mend;
mod modes;
mod open;
mod remove;

use modes::Sharing;
use open::refused;
use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags};
use rustix::io::Errno;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// An open directory of a database: its own, or one below. Cheap to clone.
#[derive(Debug, Clone)]
pub struct DatabaseDir {
    inner: Arc<Inner>,
}

#[derive(Debug)]
struct Inner {
    descriptor: OwnedFd,
    /// As the user named it, for messages.
    path: PathBuf,
    sharing: Sharing,
}

/// How a file is opened.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Access {
    /// For reading.
    Read,
    /// For reading and writing.
    ReadWrite,
    /// For reading and writing; made when it is not there.
    Make,
    /// For reading and writing; made, and refused when it is there.
    MakeNew,
    /// For appending; made when it is not there.
    Append,
}

/// What is told of a file without opening it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Status {
    /// Its device and inode.
    pub identity: (u64, u64),
    /// Its length, bytes.
    pub bytes: u64,
    /// When it was written last: seconds since 1970, and nanoseconds.
    pub modified: (i64, i64),
    /// Who owns it.
    pub uid: u32,
}

/// What a name stands for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A regular file.
    File,
    /// A directory.
    Directory,
    /// A symbolic link, FIFO, socket or device, in words.
    Other(&'static str),
}

impl DatabaseDir {
    /// Opens the directory of a database. Links that lead to it are followed: the name is the
    /// user's.
    pub fn open(path: &Path) -> io::Result<DatabaseDir> {
        DatabaseDir::top(open_named(path)?, path)
    }

    /// The same for one that is going to belong to whom `other` belongs, as what is made in it
    /// does; it is private until [`DatabaseDir::let_group_in`].
    pub fn open_like(path: &Path, other: &DatabaseDir) -> io::Result<DatabaseDir> {
        let descriptor = open_named(path)?;
        let sharing = other.inner.sharing;
        Ok(DatabaseDir::new(descriptor, path.to_owned(), sharing))
    }

    /// Makes the directory of a new database, or takes an empty one that is there. It is private
    /// at every moment, whatever the umask (`DIRECTORY-5`); what is made in it is that of `group`,
    /// whom [`DatabaseDir::let_group_in`] lets in once it is complete.
    pub fn create(path: &Path, group: Option<u32>) -> io::Result<DatabaseDir> {
        if let Some(above) = path.parent().filter(|above| !above.as_os_str().is_empty()) {
            std::fs::create_dir_all(above)?;
        }
        let is_made = match rustix::fs::mkdir(path, Mode::RWXU) {
            Ok(()) => true,
            Err(Errno::EXIST) => false,
            Err(error) => return Err(error.into()),
        };
        let taken = DatabaseDir::take_empty(path, group, is_made);
        if is_made
            && taken.is_err()
            && let Err(error) = rustix::fs::rmdir(path)
        {
            tracing::warn!("{} remains: {error}", path.display());
        }
        taken
    }

    fn take_empty(path: &Path, group: Option<u32>, is_made: bool) -> io::Result<DatabaseDir> {
        if is_made {
            open::admit_owner(rustix::fs::CWD, path)?;
        }
        let descriptor = open_named(path)?;
        let sharing = modes::set_up(&descriptor, group)?;
        let directory = DatabaseDir::new(descriptor, path.to_owned(), sharing);
        match directory.names()?.first() {
            None => Ok(directory),
            Some(name) => Err(refused(&format!(
                "somebody has put '{}' into it just now; choose a place where nobody else writes",
                name.display()
            ))),
        }
    }

    /// Lets in the group that shares the database, once all that a new one needs is there.
    pub fn let_group_in(&self) -> io::Result<()> {
        let descriptor = &self.inner.descriptor;
        self.inner.sharing.give_dir(descriptor, self.path())
    }

    fn top(descriptor: OwnedFd, path: &Path) -> io::Result<DatabaseDir> {
        let sharing = Sharing::of(&rustix::fs::fstat(&descriptor)?);
        Ok(DatabaseDir::new(descriptor, path.to_owned(), sharing))
    }

    fn new(descriptor: OwnedFd, path: PathBuf, sharing: Sharing) -> DatabaseDir {
        DatabaseDir {
            inner: Arc::new(Inner {
                descriptor,
                path,
                sharing,
            }),
        }
    }

    /// As the user named it, for messages.
    pub fn path(&self) -> &Path {
        &self.inner.path
    }

    /// The path of a file in it, for messages.
    pub fn join(&self, name: impl AsRef<Path>) -> PathBuf {
        self.inner.path.join(name)
    }

    /// A path that leads here as long as `self`, or a clone of it, is open, whatever happens to the
    /// names above. For SQLite.
    pub fn path_of_descriptor(&self) -> PathBuf {
        PathBuf::from(format!(
            "/proc/self/fd/{}",
            self.inner.descriptor.as_raw_fd()
        ))
    }

    /// Which directory it is: its device and inode.
    pub fn identity(&self) -> io::Result<(u64, u64)> {
        let stat = rustix::fs::fstat(&self.inner.descriptor)?;
        Ok((stat.st_dev, stat.st_ino))
    }

    /// The user and the group that own the database.
    pub fn owner(&self) -> (u32, u32) {
        (self.inner.sharing.uid, self.inner.sharing.gid)
    }

    /// Opens a regular file (`DIRECTORY-2`). A new one belongs to whom `DIRECTORY-4` says.
    pub fn open_file(&self, name: impl AsRef<Path>, access: Access) -> io::Result<File> {
        let name = name.as_ref();
        let flags = match access {
            Access::Read => OFlags::RDONLY,
            Access::Append => OFlags::WRONLY | OFlags::APPEND,
            Access::ReadWrite | Access::Make | Access::MakeNew => OFlags::RDWR,
        };
        loop {
            if access != Access::MakeNew {
                match self.open_regular(name, flags) {
                    Err(error) if error.kind() == io::ErrorKind::NotFound => {}
                    opened => return opened,
                }
                if matches!(access, Access::Read | Access::ReadWrite) {
                    return Err(Errno::NOENT.into());
                }
            }
            let is_new = OFlags::CREATE | OFlags::EXCL;
            match open::open_below(self.as_fd(), name, flags | is_new, Mode::RUSR | Mode::WUSR) {
                Ok(made) => {
                    self.inner.sharing.give_file(&made, &self.join(name))?;
                    return Ok(made.into());
                }
                // Somebody was faster.
                Err(error)
                    if error.kind() == io::ErrorKind::AlreadyExists
                        && access != Access::MakeNew => {}
                Err(error) => return Err(error),
            }
        }
    }

    /// Refuses what is no regular file with one name (`DIRECTORY-2`); `false`: there is nothing.
    /// For who must not open it: to close a descriptor of a file gives up the locks that SQLite has
    /// on it.
    pub fn check_file(&self, name: impl AsRef<Path>) -> io::Result<bool> {
        match self.stat(name.as_ref())? {
            None => Ok(false),
            Some(stat) => require_own_file(&stat).map(|()| true),
        }
    }

    fn open_regular(&self, name: &Path, flags: OFlags) -> io::Result<File> {
        // A device may act on being opened: it is looked at first, and again once it is open.
        if !self.check_file(name)? {
            return Err(Errno::NOENT.into());
        }
        let file = open::open_below(self.as_fd(), name, flags, Mode::empty())?;
        require_own_file(&rustix::fs::fstat(&file)?)?;
        Ok(file.into())
    }

    /// Another descriptor of a file that is open already, with more flags; the name must still be
    /// that file's.
    pub fn open_again(&self, name: &Path, file: &File, flags: OFlags) -> io::Result<File> {
        let again = open::open_below(self.as_fd(), name, flags, Mode::empty())?;
        let (one, other) = (rustix::fs::fstat(file)?, rustix::fs::fstat(&again)?);
        if (one.st_dev, one.st_ino) != (other.st_dev, other.st_ino) {
            return Err(refused("somebody replaced it just now; try again"));
        }
        Ok(again.into())
    }

    /// A directory below.
    pub fn open_dir(&self, name: impl AsRef<Path>) -> io::Result<DatabaseDir> {
        let name = name.as_ref();
        let flags = OFlags::RDONLY | OFlags::DIRECTORY;
        let opened = open::open_below(self.as_fd(), name, flags, Mode::empty());
        let descriptor = opened.map_err(|error| match error.kind() {
            io::ErrorKind::NotADirectory => self.no_directory(name),
            _ => error,
        })?;
        Ok(DatabaseDir::new(
            descriptor,
            self.join(name),
            self.inner.sharing,
        ))
    }

    fn no_directory(&self, name: &Path) -> io::Error {
        let what = match self.kind(name) {
            Err(error) => return error, // It is one above that is none.
            Ok(Some(Kind::Other(what))) => what,
            Ok(_) => "a file",
        };
        refused(&format!(
            "it is {what}, not a directory; move it away, or restore the directory from a copy"
        ))
    }

    /// The same, made when it is not there.
    pub fn make_dir(&self, name: impl AsRef<Path>) -> io::Result<DatabaseDir> {
        let name = name.as_ref();
        match self.open_dir(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            opened => return opened,
        }
        let (parent, last) = self.parent_of(name)?;
        match rustix::fs::mkdirat(parent.as_fd(), last, Mode::RWXU) {
            Ok(()) => {
                open::admit_owner(parent.as_fd(), last)?;
                let made = self.open_dir(name)?;
                (self.inner.sharing).give_dir(&made.inner.descriptor, made.path())?;
                Ok(made)
            }
            Err(Errno::EXIST) => self.open_dir(name),
            Err(error) => Err(error.into()),
        }
    }

    /// What a name stands for; `None`: nothing. A link is a link, wherever it leads.
    pub fn kind(&self, name: impl AsRef<Path>) -> io::Result<Option<Kind>> {
        let stat = self.stat(name.as_ref())?;
        Ok(stat.map(|stat| Kind::of(FileType::from_raw_mode(stat.st_mode))))
    }

    /// Bytes of a file; 0 when there is none.
    pub fn file_bytes(&self, name: impl AsRef<Path>) -> io::Result<u64> {
        let stat = self.stat(name.as_ref())?;
        Ok(stat.map_or(0, |stat| stat.st_size.max(0) as u64))
    }

    /// Which file a name stands for: its device and inode; `None`: none.
    pub fn identity_of(&self, name: impl AsRef<Path>) -> io::Result<Option<(u64, u64)>> {
        Ok((self.stat(name.as_ref())?).map(|stat| (stat.st_dev, stat.st_ino)))
    }

    /// What a name stands for now; `None`: nothing. It changes with the file, and with the file's
    /// owner.
    pub fn status(&self, name: impl AsRef<Path>) -> io::Result<Option<Status>> {
        Ok((self.stat(name.as_ref())?).map(|stat| Status {
            identity: (stat.st_dev, stat.st_ino),
            bytes: stat.st_size.max(0) as u64,
            modified: (stat.st_mtime, stat.st_mtime_nsec as i64),
            uid: stat.st_uid,
        }))
    }

    /// Whether this process may write a file or directory; an empty name is the directory itself.
    pub fn is_writable(&self, name: impl AsRef<Path>) -> io::Result<bool> {
        let name = name.as_ref();
        let (parent, last) = match name.as_os_str().is_empty() {
            true => (self.clone(), Path::new(".")),
            false => self.parent_of(name)?,
        };
        let flags = AtFlags::EACCESS;
        match rustix::fs::accessat(parent.as_fd(), last, rustix::fs::Access::WRITE_OK, flags) {
            Ok(()) => Ok(true),
            Err(Errno::ROFS | Errno::ACCESS | Errno::PERM) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Permission bits of a file or directory; `None`: there is none.
    pub fn mode(&self, name: impl AsRef<Path>) -> io::Result<Option<u32>> {
        Ok((self.stat(name.as_ref())?).map(|stat| stat.st_mode & 0o7777))
    }

    fn stat(&self, name: &Path) -> io::Result<Option<rustix::fs::Stat>> {
        if name.as_os_str().is_empty() {
            return Ok(Some(rustix::fs::fstat(&self.inner.descriptor)?));
        }
        let (parent, last) = match self.parent_of(name) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            found => found?,
        };
        match rustix::fs::statat(parent.as_fd(), last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The directory that holds a name, and the name's last part.
    fn parent_of<'n>(&self, name: &'n Path) -> io::Result<(DatabaseDir, &'n Path)> {
        open::check_name(name)?;
        let last = name.file_name().map_or(name, Path::new);
        match name
            .parent()
            .filter(|parent| !parent.as_os_str().is_empty())
        {
            None => Ok((self.clone(), last)),
            Some(parent) => Ok((self.open_dir(parent)?, last)),
        }
    }

    /// The names in it, in no order.
    pub fn names(&self) -> io::Result<Vec<OsString>> {
        let mut names = Vec::new();
        for entry in Dir::read_from(&self.inner.descriptor)? {
            let name = entry?.file_name().to_owned().into_bytes();
            if name != b"." && name != b".." {
                names.push(OsString::from_vec(name));
            }
        }
        Ok(names)
    }

    /// Removes an entry that is no directory; nothing when there is none.
    pub fn remove_file(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let (parent, last) = match self.parent_of(name.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        match rustix::fs::unlinkat(parent.as_fd(), last, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes a directory and what is in it (`DIRECTORY-3`); nothing when there is none.
    pub fn remove_tree(&self, name: impl AsRef<Path>) -> io::Result<()> {
        let (parent, last) = match self.parent_of(name.as_ref()) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            found => found?,
        };
        remove::remove_tree(parent.as_fd(), last)
    }

    /// Gives a file in it another name in it.
    pub fn rename(&self, from: &str, to: &str) -> io::Result<()> {
        open::check_name(Path::new(from))?;
        open::check_name(Path::new(to))?;
        Ok(rustix::fs::renameat(self.as_fd(), from, self.as_fd(), to)?)
    }

    /// Makes a FIFO, readable and writable for the owner of the database.
    pub fn make_fifo(&self, name: &str) -> io::Result<()> {
        open::check_name(Path::new(name))?;
        let mode = Mode::RUSR | Mode::WUSR;
        Ok(rustix::fs::mkfifoat(self.as_fd(), name, mode)?)
    }

    /// Opens a FIFO without waiting for its other end. Nothing else is opened, nor one that has
    /// other names: it is somebody else's.
    pub fn open_fifo(&self, name: &str, flags: OFlags) -> rustix::io::Result<File> {
        let is_own_fifo = |found: &rustix::fs::Stat| {
            FileType::from_raw_mode(found.st_mode) == FileType::Fifo && found.st_nlink == 1
        };
        let named = rustix::fs::statat(self.as_fd(), name, AtFlags::SYMLINK_NOFOLLOW)?;
        if !is_own_fifo(&named) {
            return Err(Errno::INVAL);
        }
        let flags = flags | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let fifo = rustix::fs::openat(self.as_fd(), name, flags, Mode::empty())?;
        match is_own_fifo(&rustix::fs::fstat(&fifo)?) {
            true => Ok(fifo.into()),
            false => Err(Errno::INVAL),
        }
    }

    /// Gives an open FIFO of ours to the owner of the database (`DIRECTORY-4`).
    pub fn give_fifo(&self, fifo: &File, name: &str) -> io::Result<()> {
        self.inner.sharing.give_file(fifo, &self.join(name))
    }

    /// Makes the names in it durable.
    pub fn sync(&self) -> io::Result<()> {
        Ok(rustix::fs::fsync(self.as_fd())?)
    }
}

impl AsFd for DatabaseDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.inner.descriptor.as_fd()
    }
}

impl Kind {
    fn of(found: FileType) -> Kind {
        match found {
            FileType::RegularFile => Kind::File,
            FileType::Directory => Kind::Directory,
            FileType::Symlink => Kind::Other("a symbolic link"),
            FileType::Fifo => Kind::Other("a FIFO"),
            FileType::Socket => Kind::Other("a socket"),
            FileType::CharacterDevice | FileType::BlockDevice => Kind::Other("a device"),
            FileType::Unknown => Kind::Other("of an unknown kind"),
        }
    }
}

fn open_named(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let named = match path.as_os_str().is_empty() {
        true => Path::new("."),
        false => path,
    };
    Ok(rustix::fs::open(named, flags, Mode::empty())?)
}

fn require_own_file(stat: &rustix::fs::Stat) -> io::Result<()> {
    let what = match Kind::of(FileType::from_raw_mode(stat.st_mode)) {
        Kind::File if stat.st_nlink > 1 => {
            return Err(refused(
                "it has other names (hard links), and what is written to it would change them too; \
                 replace it by a copy of its own ('cp FILE NEW && mv NEW FILE')",
            ));
        }
        Kind::File => return Ok(()),
        Kind::Directory => "a directory",
        Kind::Other(what) => what,
    };
    Err(refused(&format!(
        "it is {what}, not a regular file; a database has none of these: move it away, or restore \
         the file from a copy"
    )))
}

#[cfg(test)]
mod tests;
