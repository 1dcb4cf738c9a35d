//! The providers that refuse every change with [`ErrorKind::ReadOnly`]: `readonly` shows a store's
//! table, `asof=SNAPSHOT` shows it as a snapshot has it, which the store holds.

use crate::files::FilesReader;
use crate::provider::{FileHandle, StoreProvider};
use crate::types::{Caller, DirEntry, Metadata, NewNode, RenameMode, SetAttr, XattrMode};
use larder_object::format::{Ino, Name};
use larder_object::{AlignedBuf, Engine, Error, ErrorKind, Moment, Result, StoreRow, open_as_of};
use std::sync::{Arc, OnceLock};

/// What the name of the provider of a store of the past begins with; the name of a snapshot
/// follows.
pub(crate) const AS_OF: &str = "asof=";

/// Wraps another provider and refuses every change.
pub(crate) struct ReadonlyProvider {
    inner: OnceLock<Arc<dyn StoreProvider>>,
    /// What makes it, when somebody asks for the first time.
    open: Option<Open>,
    why: &'static str,
}

/// Makes what is shown.
type Open = Box<dyn Fn() -> Result<Arc<dyn StoreProvider>> + Send + Sync>;

impl ReadonlyProvider {
    pub(crate) fn new(inner: Arc<dyn StoreProvider>) -> ReadonlyProvider {
        let why = "the store is served read-only; write to the store it shows";
        ReadonlyProvider {
            inner: OnceLock::from(inner),
            open: None,
            why,
        }
    }

    /// A store at another moment.
    pub(crate) fn of_the_past(inner: Arc<dyn StoreProvider>) -> ReadonlyProvider {
        let why = "the past cannot be changed; write to the present, the address without '@'";
        ReadonlyProvider {
            inner: OnceLock::from(inner),
            open: None,
            why,
        }
    }

    /// The table of store `row.table_store` of `present` as a snapshot has it. It is opened when it
    /// is asked for first, 3 ms, and stays open.
    pub(crate) fn of_snapshot(present: Arc<Engine>, row: &StoreRow, snapshot: &str) -> Self {
        let (store, table_store) = (row.store, row.table_store);
        let (name, moment) = (row.name.clone(), Moment::Snapshot(snapshot.to_owned()));
        let open = move || -> Result<Arc<dyn StoreProvider>> {
            let past = open_as_of(&present, &moment)
                .map_err(|error| error.context(format!("store '{name}' shows a snapshot")))?;
            Ok(Arc::new(FilesReader::new(
                Arc::new(past),
                store,
                table_store,
            )))
        };
        ReadonlyProvider {
            inner: OnceLock::new(),
            open: Some(Box::new(open)),
            why: "the store shows a snapshot, which cannot be changed; write to the store that it \
                is of",
        }
    }

    fn inner(&self) -> Result<&Arc<dyn StoreProvider>> {
        if let (None, Some(open)) = (self.inner.get(), &self.open) {
            let made = open()?;
            return Ok(self.inner.get_or_init(|| made));
        }
        self.inner
            .get()
            .ok_or_else(|| Error::new(ErrorKind::Unsupported, "the store shows nothing"))
    }

    fn refuse<T>(&self) -> Result<T> {
        Err(Error::new(ErrorKind::ReadOnly, self.why))
    }
}

impl StoreProvider for ReadonlyProvider {
    fn lookup(&self, parent: Ino, name: &Name) -> Result<Metadata> {
        self.inner()?.lookup(parent, name)
    }

    fn descend(&self, from: Ino, names: &[Name]) -> Result<(Metadata, usize)> {
        self.inner()?.descend(from, names)
    }

    fn metadata(&self, ino: Ino) -> Result<Metadata> {
        self.inner()?.metadata(ino)
    }

    fn set_attr(&self, _: Ino, _: &SetAttr) -> Result<Metadata> {
        self.refuse()
    }

    fn read_dir(&self, ino: Ino, after: Option<&Name>, limit: usize) -> Result<Vec<DirEntry>> {
        self.inner()?.read_dir(ino, after, limit)
    }

    fn read_dir_plus(
        &self,
        ino: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Metadata)>> {
        self.inner()?.read_dir_plus(ino, after, limit)
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        self.inner()?.parent(ino)
    }

    fn create_node(&self, _: Ino, _: &Name, _: NewNode<'_>, _: u32, _: Caller) -> Result<Metadata> {
        self.refuse()
    }

    fn create_anonymous(
        &self,
        _: Ino,
        _: u32,
        _: bool,
        _: Caller,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        self.refuse()
    }

    fn link(&self, _: Ino, _: Ino, _: &Name) -> Result<Metadata> {
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
        self.inner()?.read_link(ino)
    }

    fn open(&self, ino: Ino, write: bool) -> Result<Box<dyn FileHandle>> {
        if write {
            self.refuse()
        } else {
            self.inner()?.open(ino, false)
        }
    }

    fn read_whole(&self, ino: Ino, buffer: &mut AlignedBuf) -> Result<()> {
        self.inner()?.read_whole(ino, buffer)
    }

    fn read_named(&self, from: Ino, names: &[&[u8]], buffer: &mut AlignedBuf) -> Result<bool> {
        self.inner()?.read_named(from, names, buffer)
    }

    fn put(&self, _: Ino, _: &Name, _: &[u8], _: u32, _: Caller) -> Result<Metadata> {
        self.refuse()
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.inner()?.xattrs(ino)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.inner()?.xattr(ino, name)
    }

    fn set_xattr(&self, _: Ino, _: &[u8], _: &[u8], _: XattrMode) -> Result<()> {
        self.refuse()
    }

    fn remove_xattr(&self, _: Ino, _: &[u8]) -> Result<()> {
        self.refuse()
    }
}
