//! Providers and handles of a transaction: each call goes through the active transaction.

use crate::active_transaction::{ActiveTransaction, HandleSlot, lock};
use crate::provider::{FileContent, FileHandle, StoreProvider};
use crate::types::{
    AllocateMode, Caller, DirEntry, InodeFlags, Metadata, NewNode, RenameMode, SeekTarget, SetAttr,
    XattrMode,
};
use larder_object::format::{Ino, Name, StoreId};
use larder_object::{AlignedBuf, Result};
use std::sync::Arc;

/// A provider whose calls are operations of a transaction.
pub(crate) struct GuardedProvider {
    inner: Arc<dyn StoreProvider>,
    /// The store whose table it shows.
    table: StoreId,
    active: Arc<ActiveTransaction>,
}

impl GuardedProvider {
    pub(crate) fn new(
        inner: Arc<dyn StoreProvider>,
        table: StoreId,
        active: Arc<ActiveTransaction>,
    ) -> GuardedProvider {
        GuardedProvider {
            inner,
            table,
            active,
        }
    }

    /// A call that tells what an inode is, or what is in it. An error tells something too.
    fn tell<T>(&self, ino: Ino, call: impl FnOnce() -> Result<T>) -> Result<T> {
        self.active.enter(|| {
            self.active
                .engine()
                .short_transaction()
                .note_told(self.table, ino);
            call()
        })
    }

    fn open_with(
        &self,
        open: impl FnOnce() -> Result<(Metadata, Box<dyn FileHandle>)>,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        let (attr, slot) = self.active.enter_with(|handles| {
            let (attr, handle) = open()?;
            Ok((attr, handles.add(handle)))
        })?;
        let active = Arc::clone(&self.active);
        Ok((attr, Box::new(GuardedHandle { slot, active })))
    }
}

/// Calls that only go through the active transaction.
macro_rules! guarded_calls {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> Result<$out> {
            self.active.enter(|| self.inner.$name($($arg),*))
        }
    )*};
}

impl StoreProvider for GuardedProvider {
    guarded_calls! {
        descend(from: Ino, names: &[Name]) -> (Metadata, usize);
        set_attr(ino: Ino, change: &SetAttr) -> Metadata;
        create_node(
            parent: Ino, name: &Name, new: NewNode<'_>, mode: u32, caller: Caller
        ) -> Metadata;
        link(ino: Ino, parent: Ino, name: &Name) -> Metadata;
        unlink(parent: Ino, name: &Name) -> ();
        remove_dir(parent: Ino, name: &Name) -> ();
        rename(parent: Ino, name: &Name, new_parent: Ino, new_name: &Name, mode: RenameMode) -> ();
        read_link(ino: Ino) -> Vec<u8>;
        read_whole(ino: Ino, buffer: &mut AlignedBuf) -> ();
        read_named(from: Ino, names: &[&[u8]], buffer: &mut AlignedBuf) -> bool;
        put(parent: Ino, name: &Name, bytes: &[u8], mode: u32, caller: Caller) -> Metadata;
        set_xattr(ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> ();
        remove_xattr(ino: Ino, name: &[u8]) -> ();
        set_flags(ino: Ino, flags: InodeFlags) -> ();
    }

    fn lookup(&self, parent: Ino, name: &Name) -> Result<Metadata> {
        self.active.enter(|| {
            let attr = self.inner.lookup(parent, name)?;
            self.active
                .engine()
                .short_transaction()
                .note_told(self.table, attr.node.ino);
            Ok(attr)
        })
    }

    fn metadata(&self, ino: Ino) -> Result<Metadata> {
        self.tell(ino, || self.inner.metadata(ino))
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        self.tell(ino, || self.inner.parent(ino))
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.tell(ino, || self.inner.xattrs(ino))
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.tell(ino, || self.inner.xattr(ino, name))
    }

    fn read_dir(&self, ino: Ino, after: Option<&Name>, limit: usize) -> Result<Vec<DirEntry>> {
        self.tell(ino, || self.inner.read_dir(ino, after, limit))
    }

    fn read_dir_plus(
        &self,
        ino: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Metadata)>> {
        self.tell(ino, || {
            let entries = self.inner.read_dir_plus(ino, after, limit)?;
            for (_, attr) in &entries {
                self.active
                    .engine()
                    .short_transaction()
                    .note_told(self.table, attr.node.ino);
            }
            Ok(entries)
        })
    }

    fn create_anonymous(
        &self,
        parent: Ino,
        mode: u32,
        is_linkable: bool,
        caller: Caller,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        self.open_with(|| {
            self.inner
                .create_anonymous(parent, mode, is_linkable, caller)
        })
    }

    fn create_file(
        &self,
        parent: Ino,
        name: &Name,
        mode: u32,
        caller: Caller,
        write: bool,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        self.open_with(|| self.inner.create_file(parent, name, mode, caller, write))
    }

    fn open(&self, ino: Ino, write: bool) -> Result<Box<dyn FileHandle>> {
        let opened = self.open_with(|| {
            let handle = self.inner.open(ino, write)?;
            Ok((handle.metadata()?, handle))
        })?;
        Ok(opened.1)
    }
}

/// A handle that ends with its transaction.
struct GuardedHandle {
    slot: HandleSlot,
    active: Arc<ActiveTransaction>,
}

/// The same for handles.
macro_rules! guarded_handle_calls {
    ($($name:ident($($arg:ident: $type:ty),*) -> $out:ty;)*) => {$(
        fn $name(&self, $($arg: $type),*) -> Result<$out> {
            self.active.enter(|| match lock(&self.slot).as_ref() {
                Some(handle) => handle.$name($($arg),*),
                // The transaction is closed before its handles are.
                None => Err(self.active.ended()),
            })
        }
    )*};
}

impl FileHandle for GuardedHandle {
    guarded_handle_calls! {
        read_at(offset: u64, buffer: &mut [u8]) -> usize;
        write_at(offset: u64, data: &[u8]) -> ();
        append(data: &[u8]) -> u64;
        insert_range(offset: u64, data: &[u8]) -> ();
        insert_hole(offset: u64, len_bytes: u64) -> ();
        delete_range(offset: u64, len_bytes: u64) -> ();
        replace_range(offset: u64, len_bytes: u64, data: &[u8]) -> ();
        move_range(from: u64, len_bytes: u64, to: u64) -> ();
        drop_set_id() -> bool;
        set_len(size_bytes: u64) -> ();
        truncate(size_bytes: u64, set: &SetAttr) -> Option<Metadata>;
        expect_len(size_bytes: u64) -> ();
        allocate(mode: AllocateMode, offset: u64, len_bytes: u64) -> ();
        share_from(from: FileContent, from_offset: u64, to_offset: u64, len_bytes: u64) -> u64;
        seek(target: SeekTarget, offset: u64) -> Option<u64>;
        sync() -> ();
        metadata() -> Metadata;
    }

    fn content(&self) -> Option<FileContent> {
        lock(&self.slot)
            .as_ref()
            .and_then(|handle| handle.content())
    }
}

impl Drop for GuardedHandle {
    fn drop(&mut self) {
        self.active.close_handle(&self.slot);
    }
}
