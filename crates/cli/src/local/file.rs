//! An open regular file of the local filesystem.

use super::inode::{Held, lossy};
use crate::error::{At, Result};
use crate::side::{Carry, Content, Found, Inode};
use rustix::fs::SeekFrom;
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;

/// An open regular file.
pub(super) struct LocalFile {
    file: File,
    shown: Vec<u8>,
}

impl LocalFile {
    /// Of a descriptor; `shown` is its path, for messages.
    pub(super) fn new(file: OwnedFd, shown: Vec<u8>) -> LocalFile {
        let file = File::from(file);
        LocalFile { file, shown }
    }

    fn held(&self) -> Held<'_> {
        Held::file(self.file.as_fd(), &self.shown)
    }

    fn cannot(&self, what: &str) -> String {
        format!("cannot {what} '{}'", lossy(&self.shown))
    }
}

impl Inode for LocalFile {
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

impl Content for LocalFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize> {
        let mut done = 0;
        while done < buffer.len() {
            match self.file.read_at(&mut buffer[done..], offset + done as u64) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(error) => return Err(error).at(|| self.cannot("read")),
            }
        }
        Ok(done)
    }

    fn write_at(&self, offset: u64, data: &[u8]) -> Result<()> {
        self.file
            .write_all_at(data, offset)
            .at(|| self.cannot("write"))
    }

    fn expect_len(&self, _: u64) -> Result<()> {
        // Local filesystems are not asked to preallocate: many copy the zeros.
        Ok(())
    }

    fn set_len(&self, size_bytes: u64) -> Result<()> {
        self.file.set_len(size_bytes).at(|| self.cannot("write"))
    }

    fn next_data(&self, offset: u64) -> Result<Option<(u64, u64)>> {
        let seek = |target| match rustix::fs::seek(&self.file, target) {
            Ok(position) => Ok(Some(position)),
            Err(Errno::NXIO) => Ok(None),
            // Files of the kernel (/proc) have no holes, and no length either: read to the end.
            Err(Errno::INVAL) => Ok(Some(u64::MAX)),
            Err(errno) => Err(errno).at(|| self.cannot("read")),
        };
        match seek(SeekFrom::Data(offset))? {
            None => Ok(None),
            Some(u64::MAX) => Ok(Some((offset, u64::MAX))),
            Some(begin) => Ok(seek(SeekFrom::Hole(begin))?.map(|end| (begin, end))),
        }
    }
}
