//! An open regular file of the past.

use super::open::Open;
use larder::{Error, FileContent, FileHandle, Metadata, NodeId, SeekTarget};
use std::sync::Arc;

/// Reads a file as it was, under the node that the mount shows for it.
pub(super) struct PastFile {
    // The file is closed before what it is in.
    file: Box<dyn FileHandle>,
    node: NodeId,
    _open: Arc<Open>,
}

impl PastFile {
    pub(super) fn new(file: Box<dyn FileHandle>, node: NodeId, open: Arc<Open>) -> PastFile {
        let _open = open;
        PastFile { file, node, _open }
    }
}

impl FileHandle for PastFile {
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize, Error> {
        self.file.read_at(offset, buffer)
    }

    /// A copy into the present shares with the history.
    fn content(&self) -> Option<FileContent> {
        self.file.content()
    }

    fn seek(&self, target: SeekTarget, offset: u64) -> Result<Option<u64>, Error> {
        self.file.seek(target, offset)
    }

    /// Nothing waits to be written.
    fn sync(&self) -> Result<(), Error> {
        Ok(())
    }

    fn metadata(&self) -> Result<Metadata, Error> {
        let attr = self.file.metadata()?;
        Ok(Metadata {
            node: self.node,
            ..attr
        })
    }
}
