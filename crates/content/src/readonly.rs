//! The `readonly` provider: shows a store's table; writes answer [`ErrorKind::ReadOnly`].

use crate::provider::{FileHandle, StoreProvider};
use crate::types::{Attr, Caller, DirEntry, NewNode, RenameMode, SetAttr, XattrMode};
use larder_object::format::{Ino, Name};
use larder_object::{AlignedBuf, Error, ErrorKind, Result};
use std::sync::Arc;

/// Wraps another provider and refuses every change.
pub(crate) struct ReadonlyProvider {
    inner: Arc<dyn StoreProvider>,
    why: &'static str,
}

impl ReadonlyProvider {
    pub(crate) fn new(inner: Arc<dyn StoreProvider>) -> ReadonlyProvider {
        let why = "the store is served read-only; write to the store it shows";
        ReadonlyProvider { inner, why }
    }

    /// A store at another moment.
    pub(crate) fn of_the_past(inner: Arc<dyn StoreProvider>) -> ReadonlyProvider {
        let why = "the past cannot be changed; write to the present, the address without '@'";
        ReadonlyProvider { inner, why }
    }

    fn refuse<T>(&self) -> Result<T> {
        Err(Error::new(ErrorKind::ReadOnly, self.why))
    }
}

impl StoreProvider for ReadonlyProvider {
    fn lookup(&self, parent: Ino, name: &Name) -> Result<Attr> {
        self.inner.lookup(parent, name)
    }

    fn descend(&self, from: Ino, names: &[Name]) -> Result<(Attr, usize)> {
        self.inner.descend(from, names)
    }

    fn attr(&self, ino: Ino) -> Result<Attr> {
        self.inner.attr(ino)
    }

    fn set_attr(&self, _: Ino, _: &SetAttr) -> Result<Attr> {
        self.refuse()
    }

    fn read_dir(&self, ino: Ino, after: Option<&Name>, limit: usize) -> Result<Vec<DirEntry>> {
        self.inner.read_dir(ino, after, limit)
    }

    fn read_dir_plus(
        &self,
        ino: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Attr)>> {
        self.inner.read_dir_plus(ino, after, limit)
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        self.inner.parent(ino)
    }

    fn create_node(&self, _: Ino, _: &Name, _: NewNode<'_>, _: u32, _: Caller) -> Result<Attr> {
        self.refuse()
    }

    fn create_anonymous(
        &self,
        _: Ino,
        _: u32,
        _: bool,
        _: Caller,
    ) -> Result<(Attr, Box<dyn FileHandle>)> {
        self.refuse()
    }

    fn link(&self, _: Ino, _: Ino, _: &Name) -> Result<Attr> {
        self.refuse()
    }

    fn unlink(&self, _: Ino, _: &Name) -> Result<()> {
        self.refuse()
    }

    fn remove_dir(&self, _: Ino, _: &Name) -> Result<()> {
        self.refuse()
    }

    fn rename(&self, _: Ino, _: &Name, _: Ino, _: &Name, _: RenameMode) -> Result<()> {
        self.refuse()
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.inner.read_link(ino)
    }

    fn open(&self, ino: Ino, write: bool) -> Result<Box<dyn FileHandle>> {
        if write {
            self.refuse()
        } else {
            self.inner.open(ino, false)
        }
    }

    fn read_whole(&self, ino: Ino, buffer: &mut AlignedBuf) -> Result<()> {
        self.inner.read_whole(ino, buffer)
    }

    fn read_named(&self, from: Ino, names: &[&[u8]], buffer: &mut AlignedBuf) -> Result<bool> {
        self.inner.read_named(from, names, buffer)
    }

    fn put(&self, _: Ino, _: &Name, _: &[u8], _: u32, _: Caller) -> Result<Attr> {
        self.refuse()
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.inner.xattrs(ino)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.inner.xattr(ino, name)
    }

    fn set_xattr(&self, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        self.refuse()
    }

    fn remove_xattr(&self, _: Ino, _: &[u8]) -> Result<()> {
        self.refuse()
    }
}
