//! The store-provider interface ([DBFS] "store-provider SPI"): what a store must answer.

use crate::types::{
    AllocateMode, Caller, DirEntry, InodeFlags, Metadata, NewNode, RenameMode, SeekTarget, SetAttr,
    XattrMode,
};
use larder_object::format::{Ino, Name, StoreId};
use larder_object::{AccessRule, AlignedBuf, AsOf, Engine, Error, ErrorKind, Node, Result, View};
use std::sync::Arc;

/// What files are read through.
#[derive(Clone)]
pub enum Source {
    /// The present, or a transaction's: they can be changed too.
    Present(Arc<Engine>),
    /// A moment of the past.
    Past(Arc<AsOf>),
}

impl Source {
    /// What it shows.
    pub fn view(&self) -> &View {
        match self {
            Source::Present(engine) => engine,
            Source::Past(past) => past,
        }
    }
}

/// What a provider is made from.
pub struct ProviderContext {
    /// What the open database shows.
    pub source: Source,
    /// The store it serves; nodes it returns carry this id.
    pub store: StoreId,
    /// The store whose table it shows; usually the same.
    pub table_store: StoreId,
}

/// Makes the provider of one store.
pub type ProviderFactory = Arc<dyn Fn(ProviderContext) -> Arc<dyn StoreProvider> + Send + Sync>;

/// The operations of one store, one per POSIX primitive. All are atomic (`CONTENT-3`). Errors
/// follow POSIX for the call of the same name; each method lists only what is its own.
///
/// What a provider does not implement of the changes, it refuses with
/// [`crate::ErrorKind::ReadOnly`].
///
/// A provider never sees paths or mounts: `Database` resolves them.
pub trait StoreProvider: Send + Sync {
    /// The attributes of the entry `name` of `parent`.
    fn lookup(&self, parent: Ino, name: &Name) -> Result<Metadata>;
    /// Follows `names`, at least one, from directory `from` until the last or until something that
    /// is not a directory; returns what was reached and how many names led there. Providers that
    /// can follow several names at once do; the default follows one.
    fn descend(&self, from: Ino, names: &[Name]) -> Result<(Metadata, usize)> {
        Ok((self.lookup(from, &names[0])?, 1))
    }
    /// The attributes of an inode.
    fn metadata(&self, ino: Ino) -> Result<Metadata>;
    /// Changes attributes; returns the new ones.
    fn set_attr(&self, _ino: Ino, _change: &SetAttr) -> Result<Metadata> {
        refuse()
    }
    /// At most `limit` entries after `after` (from the start: `None`), in a fixed order; fewer
    /// than `limit` only at the end.
    fn read_dir(&self, ino: Ino, after: Option<&Name>, limit: usize) -> Result<Vec<DirEntry>>;
    /// The same with the attributes of what the entries name. Providers that have both at hand do
    /// better than the default, which asks one by one; an entry that goes meanwhile is left out.
    fn read_dir_plus(
        &self,
        ino: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Metadata)>> {
        let (mut found, mut after) = (Vec::new(), after.cloned());
        loop {
            let want = limit - found.len();
            let page = self.read_dir(ino, after.as_ref(), want)?;
            let is_last = page.len() < want;
            after = page.last().map(|entry| entry.name.clone());
            for entry in page {
                match self.metadata(entry.node.ino) {
                    Ok(attr) => found.push((entry, attr)),
                    Err(error) if error.kind() == ErrorKind::NotFound => {}
                    Err(error) => return Err(error),
                }
            }
            if is_last || found.len() == limit {
                return Ok(found);
            }
        }
    }
    /// The parent of a directory; the root is its own.
    fn parent(&self, ino: Ino) -> Result<Ino>;
    /// Makes a node named `name` in `parent`. A default access control list of the parent bounds
    /// `mode` and is inherited; without one the caller's umask does. A setgid parent hands down its
    /// group, and to directories the bit too.
    fn create_node(
        &self,
        _parent: Ino,
        _name: &Name,
        _new: NewNode<'_>,
        _mode: u32,
        _caller: Caller,
    ) -> Result<Metadata> {
        refuse()
    }
    /// Makes a regular file without a name, as [`StoreProvider::create_node`] would make it in
    /// `parent`, and opens it for writing (`O_TMPFILE`). It goes with its last handle or in a
    /// crash, unless [`StoreProvider::link`] gives it a name first, which `is_linkable` allows.
    fn create_anonymous(
        &self,
        _parent: Ino,
        _mode: u32,
        _is_linkable: bool,
        _caller: Caller,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        refuse()
    }
    /// Makes a regular file as [`StoreProvider::create_node`] does, and opens it, in one step.
    /// `write` asks for a handle that can change it.
    fn create_file(
        &self,
        parent: Ino,
        name: &Name,
        mode: u32,
        caller: Caller,
        write: bool,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        let attr = self.create_node(parent, name, NewNode::File, mode, caller)?;
        let handle = self.open(attr.node.ino, write)?;
        Ok((attr, handle))
    }
    /// Another name for an inode that is not a directory.
    fn link(&self, _ino: Ino, _parent: Ino, _name: &Name) -> Result<Metadata> {
        refuse()
    }
    /// Removes a name of something that is not a directory.
    fn unlink(&self, _parent: Ino, _name: &Name) -> Result<()> {
        refuse()
    }
    /// Removes an empty directory.
    fn remove_dir(&self, _parent: Ino, _name: &Name) -> Result<()> {
        refuse()
    }
    /// Renames within the store, in one commit.
    fn rename(
        &self,
        _parent: Ino,
        _name: &Name,
        _new_parent: Ino,
        _new_name: &Name,
        _mode: RenameMode,
    ) -> Result<()> {
        refuse()
    }
    /// The target of a symbolic link; by default there are none.
    fn read_link(&self, _ino: Ino) -> Result<Vec<u8>> {
        let why = "this is not a symbolic link";
        Err(Error::new(ErrorKind::InvalidInput, why))
    }
    /// Opens a regular file. `write` asks for a handle that can change it.
    fn open(&self, ino: Ino, write: bool) -> Result<Box<dyn FileHandle>>;
    /// Reads all of a regular file into `buffer`, which then has its length.
    fn read_whole(&self, ino: Ino, buffer: &mut AlignedBuf) -> Result<()> {
        let handle = self.open(ino, false)?;
        let size = handle.metadata()?.size_bytes;
        if !usize::try_from(size).is_ok_and(|size| buffer.try_resize(size)) {
            let why = "the file is too long for this machine's memory; read it in parts";
            return Err(Error::new(ErrorKind::TooBig, why));
        }
        let mut done = 0;
        while done < buffer.len() {
            match handle.read_at(done as u64, &mut buffer[done..])? {
                0 => break,
                read => done += read,
            }
        }
        buffer.resize(done, 0);
        Ok(())
    }
    /// The same for the file that `names`, at least one, lead to from directory `from`. A provider
    /// that cannot tell so at once answers `false`, and is asked step by step; the default always
    /// does.
    fn read_named(&self, _from: Ino, _names: &[&[u8]], _buffer: &mut AlignedBuf) -> Result<bool> {
        Ok(false)
    }
    /// Makes `bytes` the content of the regular file `name` in `parent`, which is made with `mode`
    /// for `caller` if it does not exist. An existing one keeps its inode, names and attributes.
    fn put(
        &self,
        _parent: Ino,
        _name: &Name,
        _bytes: &[u8],
        _mode: u32,
        _caller: Caller,
    ) -> Result<Metadata> {
        refuse()
    }
    /// Sets the flags of a file or directory; [`crate::ErrorKind::Unsupported`] of anything else.
    fn set_flags(&self, _ino: Ino, _flags: InodeFlags) -> Result<()> {
        refuse()
    }
    /// Notes that a directory was listed or a symbolic link read, if `rule` counts that; says
    /// whether its time of access is another one now. Nothing waits until that is durable.
    fn note_access(&self, _ino: Ino, _rule: AccessRule) -> Result<bool> {
        Ok(false)
    }
    /// The names of the extended attributes; user columns that are not NULL show as
    /// `user.column.NAME`. By default there are none.
    fn xattrs(&self, _ino: Ino) -> Result<Vec<Vec<u8>>> {
        Ok(Vec::new())
    }
    /// The value of an extended attribute; [`crate::ErrorKind::NoAttribute`] if it has none.
    fn xattr(&self, _ino: Ino, _name: &[u8]) -> Result<Vec<u8>> {
        let why = "there is no such extended attribute";
        Err(Error::new(ErrorKind::NoAttribute, why))
    }
    /// Sets an extended attribute. An access control list is checked, and an access list sets the
    /// mode. [`crate::ErrorKind::Unsupported`] outside the namespaces `user.`, `trusted.` and
    /// `security.`.
    fn set_xattr(&self, _ino: Ino, _name: &[u8], _value: &[u8], _mode: XattrMode) -> Result<()> {
        refuse()
    }
    /// Removes an extended attribute; for a user column: sets it to NULL.
    fn remove_xattr(&self, _ino: Ino, _name: &[u8]) -> Result<()> {
        refuse()
    }
}

/// Where the content of an open file is.
#[derive(Clone)]
pub struct FileContent {
    /// What shows it.
    pub source: Source,
    /// The object.
    pub node: Arc<Node>,
}

/// An open regular file. Dropping it closes it; what was written is not lost by that, but only
/// [`FileHandle::sync`] says that it is durable. Every change of content also removes the attribute
/// `security.capability`. What a handle does not implement of the changes, it refuses with
/// [`crate::ErrorKind::ReadOnly`].
pub trait FileHandle: Send + Sync {
    /// Reads up to `buffer.len()` bytes at `offset`; 0 at or after the end. Holes read as zero.
    /// [`crate::ErrorKind::Corrupt`] when a checksum does not match.
    fn read_at(&self, offset: u64, buffer: &mut [u8]) -> Result<usize>;
    /// Writes all of `data` at `offset`, extending the file as needed.
    /// [`crate::ErrorKind::NoSpace`] comes from here, never after success.
    fn write_at(&self, _offset: u64, _data: &[u8]) -> Result<()> {
        refuse()
    }
    /// Writes all of `data` at the end, atomically with other appends; returns where.
    fn append(&self, _data: &[u8]) -> Result<u64> {
        refuse()
    }
    /// Inserts `data` at `offset`, at most the length; what is behind moves on. Cost: as a write of
    /// `data`, whatever the length of the file. [`crate::ErrorKind::InvalidInput`] beyond the end.
    fn insert_range(&self, _offset: u64, _data: &[u8]) -> Result<()> {
        refuse()
    }
    /// Inserts `len_bytes` zeros that take no space.
    fn insert_hole(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        refuse()
    }
    /// Removes a range that lies inside the file; what is behind closes up. The rest of the file is
    /// neither read nor written.
    fn delete_range(&self, _offset: u64, _len_bytes: u64) -> Result<()> {
        refuse()
    }
    /// Puts `data`, of any length, in the place of `offset..offset + len_bytes`, in one step.
    fn replace_range(&self, _offset: u64, _len_bytes: u64, _data: &[u8]) -> Result<()> {
        refuse()
    }
    /// Moves `from..from + len_bytes` so that it begins at `to` afterwards; what lies between makes
    /// room. No content is copied but a few blocks.
    fn move_range(&self, _from: u64, _len_bytes: u64, _to: u64) -> Result<()> {
        refuse()
    }
    /// Drops setuid, and setgid where the group may execute: before a change of content by somebody
    /// without the privilege to keep them. Returns whether there was one. Cost: nothing if there is
    /// neither bit.
    fn drop_set_id(&self) -> Result<bool> {
        refuse()
    }
    /// Sets the logical length.
    fn set_len(&self, _size_bytes: u64) -> Result<()> {
        refuse()
    }
    /// The same together with other attributes (`set.size_bytes` is not looked at): all of it, or
    /// nothing. `None`: nothing was done, and the caller does one after the other.
    fn truncate(&self, _size_bytes: u64, _set: &SetAttr) -> Result<Option<Metadata>> {
        Ok(None)
    }
    /// Announces the final length, bytes, so that space is allocated once, in one piece.
    fn expect_len(&self, _size_bytes: u64) -> Result<()> {
        refuse()
    }
    /// `fallocate(2)`.
    fn allocate(&self, _mode: AllocateMode, _offset: u64, _len_bytes: u64) -> Result<()> {
        refuse()
    }
    /// The content, for [`FileHandle::share_from`]; `None`: it cannot be shared.
    fn content(&self) -> Option<FileContent> {
        None
    }
    /// Makes what `from` has from `from_offset` on the content of this file from `to_offset` on,
    /// without copying it: both name the same blocks, until one of them is changed there. `from`
    /// may be of another moment of the database, of the same file too. Returns how many bytes, at
    /// most `len_bytes`; 0 where nothing can be shared, and the caller copies: offsets inside of
    /// blocks, another database or transaction, the same file in the present, files of a few KiB,
    /// files with inserted ranges, long transactions, of the past what lay in small overwrites. The
    /// length grows as by a write.
    fn share_from(
        &self,
        _from: FileContent,
        _from_offset: u64,
        _to_offset: u64,
        _len_bytes: u64,
    ) -> Result<u64> {
        Ok(0)
    }
    /// `lseek(2)` with `SEEK_DATA` or `SEEK_HOLE`; `None` when there is no such place (`ENXIO`). By
    /// default a file has no holes but the one at its end.
    fn seek(&self, target: SeekTarget, offset: u64) -> Result<Option<u64>> {
        let size = self.metadata()?.size_bytes;
        Ok((offset < size).then_some(match target {
            SeekTarget::Data => offset,
            SeekTarget::Hole => size,
        }))
    }
    /// Returns after the commit that holds every operation on this file that ended before. By
    /// default there is nothing to commit.
    fn sync(&self) -> Result<()> {
        Ok(())
    }
    /// Notes that the file was read, as [`StoreProvider::note_access`] does. Reading through the
    /// API does not do that by itself.
    fn note_access(&self, _rule: AccessRule) -> Result<bool> {
        Ok(false)
    }
    /// Whether a change of this file that was answered may still be refused, by a constraint of the
    /// user's: then whoever closes it should ask [`FileHandle::check_refused`].
    fn may_be_refused(&self) -> bool {
        false
    }
    /// For a close: [`crate::ErrorKind::Io`] when a constraint has refused what this file was told
    /// since it was opened; the message names it. Closes of all descriptors of the handle say so.
    fn check_refused(&self) -> Result<()> {
        Ok(())
    }
    /// The attributes now.
    fn metadata(&self) -> Result<Metadata>;
}

/// Of what only reads.
pub(crate) fn refuse<T>() -> Result<T> {
    Err(Error::new(
        ErrorKind::ReadOnly,
        "the file cannot be changed through this handle; open it for writing, in the present",
    ))
}
