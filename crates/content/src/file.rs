//! An open file with a position, as `std::fs::File` is one.

use crate::provider::FileHandle;
use crate::rooms::Files;
use crate::types::{Caller, Metadata};
use larder_object::format::limits::SYMLINK_FOLLOW_MAX;
use larder_object::{Error, ErrorKind, Result};
use std::io::{self, Read, Seek, SeekFrom, Write};

/// How a file is opened: [`Files::options`]. At first nothing is chosen.
#[derive(Clone)]
pub struct OpenOptions<'d> {
    files: Files<'d>,
    read: bool,
    write: bool,
    append: bool,
    truncate: bool,
    create: bool,
    create_new: bool,
    mode: u32,
}

/// An open regular file, read and written at a position of its own. It lives on without a name
/// until it is dropped. What is written is durable after [`File::sync_all`].
pub struct File {
    handle: Box<dyn FileHandle>,
    position: u64,
    reads: bool,
    appends: bool,
}

impl<'d> OpenOptions<'d> {
    pub(crate) fn new(files: Files<'d>) -> OpenOptions<'d> {
        OpenOptions {
            files,
            read: false,
            write: false,
            append: false,
            truncate: false,
            create: false,
            create_new: false,
            mode: 0o644,
        }
    }

    /// It can be read.
    pub fn read(mut self, read: bool) -> Self {
        self.read = read;
        self
    }

    /// It can be written.
    pub fn write(mut self, write: bool) -> Self {
        self.write = write;
        self
    }

    /// Each write goes to the end, wherever that is by then.
    pub fn append(mut self, append: bool) -> Self {
        self.append = append;
        self
    }

    /// It is emptied.
    pub fn truncate(mut self, truncate: bool) -> Self {
        self.truncate = truncate;
        self
    }

    /// It is made where there is none.
    pub fn create(mut self, create: bool) -> Self {
        self.create = create;
        self
    }

    /// It is made, and must not be there: [`ErrorKind::Exists`].
    pub fn create_new(mut self, create_new: bool) -> Self {
        self.create_new = create_new;
        self
    }

    /// Permission bits of a file that is made, `0..=0o7777`; 0644 if nobody says. The umask takes
    /// nothing away.
    pub fn mode(mut self, mode: u32) -> Self {
        self.mode = mode;
        self
    }

    /// Opens the file. [`ErrorKind::InvalidInput`]: neither read nor written, or made or emptied
    /// without being written. A symbolic link is followed, unless the file must not be there.
    pub fn open(&self, path: impl AsRef<[u8]>) -> Result<File> {
        let writes = self.write || self.append;
        let changes = self.truncate || self.create || self.create_new;
        let is_useless = !writes && (changes || !self.read);
        if is_useless || self.append && self.truncate && !self.create_new {
            return Err(Error::new(
                ErrorKind::InvalidInput,
                "a file is opened for reading, writing or appending, and is made or emptied only \
                 by one who writes",
            ));
        }
        let handle = self.open_handle(path.as_ref(), writes)?;
        if self.truncate {
            handle.set_len(0)?;
        }
        Ok(File {
            handle,
            position: 0,
            reads: self.read,
            appends: self.append,
        })
    }

    fn open_handle(&self, path: &[u8], writes: bool) -> Result<Box<dyn FileHandle>> {
        let nodes = self.files.database.nodes();
        let mut path = path.to_vec();
        for _ in 0..=SYMLINK_FOLLOW_MAX {
            let opened = match self.create_new {
                true => self.files.metadata(&path).map(|_| None),
                false => (self.files.at(&path, |node| nodes.open(node, writes))).map(Some),
            };
            match opened {
                Ok(Some(handle)) => return Ok(handle),
                Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
                Err(error) if !(self.create || self.create_new) => return Err(error),
                Ok(_) | Err(_) => {}
            }
            let (parent, name) = nodes.resolve_parent(&path)?;
            match nodes.create_file(parent, &name, self.mode, Caller::current(), writes) {
                Ok((_, handle)) => return Ok(handle),
                Err(error) if error.kind() == ErrorKind::Exists && !self.create_new => {}
                Err(error) => return Err(error),
            }
            // Somebody has made it meanwhile, or it is a link to what is to be made.
            match self.files.read_link(&path) {
                Ok(target) if target.first() == Some(&b'/') => path = target,
                Ok(target) => {
                    let directory = path.iter().rposition(|&byte| byte == b'/').unwrap_or(0);
                    path.truncate(directory + 1);
                    path.extend(target);
                }
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                Err(error) if error.kind() == ErrorKind::InvalidInput => {}
                Err(error) => return Err(error),
            }
        }
        Err(Error::new(
            ErrorKind::TooManySymlinks,
            "more than 40 symbolic links on one path; is there a cycle?",
        ))
    }
}

impl File {
    /// Its attributes.
    pub fn metadata(&self) -> Result<Metadata> {
        self.handle.metadata()
    }

    /// Cuts it, or makes it longer by zeros.
    pub fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.handle.set_len(size_bytes)
    }

    /// Returns when all that was written to it is durable.
    pub fn sync_all(&self) -> Result<()> {
        self.handle.sync()
    }

    /// What more can be done with an open file: ranges, holes, shared content.
    pub fn handle(&self) -> &dyn FileHandle {
        &*self.handle
    }
}

impl Read for File {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if !self.reads {
            return Err(
                Error::new(ErrorKind::ReadOnly, "the file was not opened for reading").into(),
            );
        }
        let read = self.handle.read_at(self.position, buffer)?;
        self.position += read as u64;
        Ok(read)
    }
}

impl Write for File {
    fn write(&mut self, data: &[u8]) -> io::Result<usize> {
        match self.appends {
            true => self.position = self.handle.append(data)? + data.len() as u64,
            false => {
                self.handle.write_at(self.position, data)?;
                self.position += data.len() as u64;
            }
        }
        Ok(data.len())
    }

    /// Does nothing: each write is seen by all at once. Durable it is after [`File::sync_all`].
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let (from, by) = match to {
            SeekFrom::Start(at) => (at, 0),
            SeekFrom::Current(by) => (self.position, by),
            SeekFrom::End(by) => (self.handle.metadata()?.size_bytes, by),
        };
        self.position = from.checked_add_signed(by).ok_or_else(|| {
            Error::new(
                ErrorKind::InvalidInput,
                "a position before the begin of the file",
            )
        })?;
        Ok(self.position)
    }
}
