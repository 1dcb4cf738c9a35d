//! The `files` provider: a full POSIX hierarchy on a store's own table.
//!
//! Every change checks first and changes then: after the first step nothing can fail but the
//! engine itself.

use crate::attributes;
use crate::handle::Handle;
pub(crate) use reader::FilesReader;
pub(crate) use require::{absent, require_file, require_kind};
use require::{require_directory, require_empty_directory, require_linked};

use crate::inode_flags::{
    require_adding, require_attributes, require_content, require_free, require_removing, set_flags,
};
use crate::provider::{FileHandle, ProviderContext, Source, StoreProvider};
use crate::set_id::SETGID;
use crate::types::{
    Caller, DirEntry, InodeFlags, Metadata, NewNode, RenameMode, SetAttr, XattrMode,
};
use crate::xattr::{Inherited, Xattrs};
use larder_object::format::limits::LINK_COUNT_MAX;
use larder_object::format::{FileKind, Ino, Name, StoreId};
use larder_object::{
    AccessRule, AlignedBuf, AttrMask, CAPABILITY_XATTR, Engine, Error, ErrorKind, InodeRow, Node,
    Result, WriteGuard, is_backup,
};
use std::sync::Arc;

mod reader;
mod require;

/// Serves one store's table.
pub(crate) struct FilesProvider {
    engine: Arc<Engine>,
    store: StoreId,
    table: StoreId,
    reader: FilesReader<Engine>,
    xattrs: Xattrs,
}

/// What serves a store's table, of the present or the past.
pub(crate) fn provide_files(context: ProviderContext) -> Arc<dyn StoreProvider> {
    let (store, table) = (context.store, context.table_store);
    match context.source {
        Source::Present(engine) => Arc::new(FilesProvider::new(engine, store, table)),
        Source::Past(past) => Arc::new(FilesReader::new(past, store, table)),
    }
}

impl FilesProvider {
    fn new(engine: Arc<Engine>, store: StoreId, table: StoreId) -> FilesProvider {
        FilesProvider {
            xattrs: Xattrs::new(Arc::clone(&engine), table),
            reader: FilesReader::new(Arc::clone(&engine), store, table),
            engine,
            store,
            table,
        }
    }

    fn attr_of(&self, row: InodeRow) -> Metadata {
        Metadata::of(self.store, row)
    }

    fn require_entry(
        &self,
        change: &WriteGuard<'_>,
        dir: &Node,
        name: &Name,
    ) -> Result<(Arc<Node>, InodeRow)> {
        let ino = change.find_entry(dir, name)?.ok_or_else(|| absent(name))?;
        let node = change.node(self.table, ino)?;
        let row = change.row(&node)?;
        Ok((node, row))
    }

    /// Whether `dir` is `ancestor` or lies below it.
    fn is_below(&self, change: &WriteGuard<'_>, dir: Ino, ancestor: Ino) -> Result<bool> {
        let mut at = dir;
        loop {
            if at == ancestor {
                return Ok(true);
            }
            if at == Ino::ROOT {
                return Ok(false);
            }
            at = change.parent(&*change.node(self.table, at)?)?;
        }
    }

    /// The row of a new node in directory `dir`, and the access lists that it inherits.
    fn new_row(
        &self,
        change: &WriteGuard<'_>,
        dir: &Arc<Node>,
        new: NewNode<'_>,
        mode: u32,
        caller: Caller,
    ) -> Result<(InodeRow, Inherited)> {
        let dir_row = change.row(dir)?;
        require_linked(&dir_row)?;
        require_adding(&dir_row)?;
        let kind = new.kind();
        let is_directory = kind == FileKind::Directory;
        let takes_group = dir_row.mode & SETGID != 0;
        let target = match new {
            NewNode::Symlink(target) => Some(target),
            _ => None,
        };
        let (mode, lists) = match kind {
            FileKind::Symlink => (0o777, Inherited::default()),
            _ => self
                .xattrs
                .inherit(change, dir, is_directory, mode & 0o7777, caller.umask)?,
        };
        let row = InodeRow {
            ino: Ino(0),
            kind,
            mode: mode
                | if is_directory {
                    dir_row.mode & SETGID
                } else {
                    0
                },
            uid: caller.uid,
            gid: if takes_group { dir_row.gid } else { caller.gid },
            nlink: if is_directory { 2 } else { 1 },
            size_bytes: target.map_or(0, |target| target.len() as u64),
            block_count: 0,
            atime_ns: change.now_ns,
            mtime_ns: change.now_ns,
            ctime_ns: change.now_ns,
            btime_ns: change.now_ns,
            rdev: match new {
                NewNode::CharDevice(device) | NewNode::BlockDevice(device) => device,
                NewNode::File | NewNode::Directory => {
                    InodeFlags::of(&dir_row).inherited().bits().into()
                }
                _ => 0,
            },
        };
        Ok((row, lists))
    }

    /// Makes a node with a name that is free.
    fn insert(
        &self,
        change: &WriteGuard<'_>,
        dir: &Arc<Node>,
        name: &Name,
        new: NewNode<'_>,
        mode: u32,
        caller: Caller,
    ) -> Result<Arc<Node>> {
        let (row, lists) = self.new_row(change, dir, new, mode, caller)?;
        let target = match new {
            NewNode::Symlink(target) => Some(target),
            _ => None,
        };
        let kind = row.kind;
        let node = change.insert(self.table, row, target)?;
        lists.give(change, &node)?;
        if kind == FileKind::File {
            change.fill_name(&node, dir, name)?;
        }
        change.set_entry(dir, name, Some((node.ino(), kind)))?;
        if kind == FileKind::Directory {
            add_links(change, dir, 1)?;
        }
        Ok(node)
    }

    fn rename_one(
        &self,
        change: &WriteGuard<'_>,
        from: (&Arc<Node>, &Name),
        to: (&Arc<Node>, &Name),
        moved: &(Arc<Node>, InodeRow),
        replaced: Option<&(Arc<Node>, InodeRow)>,
    ) -> Result<()> {
        let (node, row) = moved;
        let is_directory = row.kind == FileKind::Directory;
        let is_file = |row: &InodeRow| row.kind == FileKind::File;
        // An older backup that goes is not the file that its backup is of.
        let is_backup = from.0.ino() == to.0.ino() && is_backup(to.1, from.1);
        if let Some((old, old_row)) = replaced {
            match is_file(row) && is_file(old_row) && old_row.nlink == 1 && !is_backup {
                true => change.replace(old, node)?,
                false => change.drop_name(old)?,
            }
            if old_row.kind == FileKind::Directory {
                add_links(change, to.0, -1)?;
            }
        }
        if is_file(row) && row.nlink == 1 {
            change.set_aside(node, (from.0, from.1), (to.0, to.1));
            if replaced.is_none() {
                change.fill_name(node, to.0, to.1)?;
            }
        }
        change.set_entry(from.0, from.1, None)?;
        change.set_entry(to.0, to.1, Some((row.ino, row.kind)))?;
        if is_directory && from.0.ino() != to.0.ino() {
            add_links(change, from.0, -1)?;
            add_links(change, to.0, 1)?;
        }
        touch_ctime(change, node)
    }

    /// What a rename leaves at the old name.
    fn leave_whiteout(
        &self,
        change: &WriteGuard<'_>,
        (dir, name): (&Arc<Node>, &Name),
        mode: RenameMode,
    ) -> Result<()> {
        match mode {
            RenameMode::Whiteout(caller) => {
                let nothing = NewNode::CharDevice(0);
                self.insert(change, dir, name, nothing, 0, caller).map(drop)
            }
            RenameMode::Replace | RenameMode::NoReplace | RenameMode::Exchange => Ok(()),
        }
    }

    fn exchange(
        &self,
        change: &WriteGuard<'_>,
        from: (&Arc<Node>, &Name),
        to: (&Arc<Node>, &Name),
        one: &(Arc<Node>, InodeRow),
        other: &(Arc<Node>, InodeRow),
    ) -> Result<()> {
        change.set_entry(from.0, from.1, Some((other.1.ino, other.1.kind)))?;
        change.set_entry(to.0, to.1, Some((one.1.ino, one.1.kind)))?;
        let is_directory = |row: &InodeRow| i64::from(row.kind == FileKind::Directory);
        let balance = is_directory(&other.1) - is_directory(&one.1);
        if balance != 0 && from.0.ino() != to.0.ino() {
            add_links(change, from.0, balance)?;
            add_links(change, to.0, -balance)?;
        }
        touch_ctime(change, &one.0)?;
        touch_ctime(change, &other.0)
    }
}

impl StoreProvider for FilesProvider {
    fn lookup(&self, parent: Ino, name: &Name) -> Result<Metadata> {
        self.reader.lookup(parent, name)
    }

    fn descend(&self, from: Ino, names: &[Name]) -> Result<(Metadata, usize)> {
        self.reader.descend(from, names)
    }

    fn metadata(&self, ino: Ino) -> Result<Metadata> {
        self.reader.metadata(ino)
    }

    fn set_attr(&self, ino: Ino, set: &SetAttr) -> Result<Metadata> {
        if let Some(size_bytes) = set.size_bytes {
            let node = self.engine.lookup().begin().node(self.table, ino)?;
            let row = self.engine.lookup().row(&node)?;
            require_file(&row)?;
            require_attributes(&row, set)?;
            return Ok(self.attr_of(attributes::truncate(&self.engine, &node, size_bytes, set)?));
        }
        let change = self.engine.namespace().write_guard()?;
        let node = change.node(self.table, ino)?;
        require_attributes(&change.row(&node)?, set)?;
        let now_ns = change.now_ns;
        let has_owner = set.uid.is_some() || set.gid.is_some();
        if has_owner
            && node.kind() != FileKind::Directory
            && change.find_xattr(&node, CAPABILITY_XATTR)?.is_some()
        {
            change.set_xattr(&node, CAPABILITY_XATTR, None)?;
        }
        let mask = attributes::mask_of(set, node.kind());
        let row = change.update(&node, mask, |row| attributes::apply(set, row, now_ns))?;
        change.commit()?;
        Ok(self.attr_of(row))
    }

    fn read_dir(&self, ino: Ino, after: Option<&Name>, limit: usize) -> Result<Vec<DirEntry>> {
        self.reader.read_dir(ino, after, limit)
    }

    fn read_dir_plus(
        &self,
        ino: Ino,
        after: Option<&Name>,
        limit: usize,
    ) -> Result<Vec<(DirEntry, Metadata)>> {
        self.reader.read_dir_plus(ino, after, limit)
    }

    fn parent(&self, ino: Ino) -> Result<Ino> {
        self.reader.parent(ino)
    }

    fn create_node(
        &self,
        parent: Ino,
        name: &Name,
        new: NewNode<'_>,
        mode: u32,
        caller: Caller,
    ) -> Result<Metadata> {
        let change = self.engine.namespace().write_guard()?;
        let dir = change.node(self.table, parent)?;
        if change.find_entry(&dir, name)?.is_some() {
            return Err(exists(name));
        }
        let node = self.insert(&change, &dir, name, new, mode, caller)?;
        let row = change.row(&node)?;
        change.commit()?;
        Ok(self.attr_of(row))
    }

    fn create_anonymous(
        &self,
        parent: Ino,
        mode: u32,
        is_linkable: bool,
        caller: Caller,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        let change = self.engine.namespace().write_guard()?;
        let dir = change.node(self.table, parent)?;
        require_directory(&dir)?;
        let (row, lists) = self.new_row(&change, &dir, NewNode::File, mode, caller)?;
        let node = change.insert_anonymous(self.table, row, is_linkable)?;
        // From here on the handle ends what does not come to its end.
        let handle = Handle::new(self.engine.clone(), self.store, node.clone(), true);
        let row = lists.give(&change, &node).and_then(|()| change.row(&node));
        // The handle closes in a change of its own.
        let row = match row {
            Ok(row) => change.commit().map(|()| row),
            Err(error) => {
                drop(change);
                Err(error)
            }
        };
        Ok((self.attr_of(row?), Box::new(handle)))
    }

    fn create_file(
        &self,
        parent: Ino,
        name: &Name,
        mode: u32,
        caller: Caller,
        write: bool,
    ) -> Result<(Metadata, Box<dyn FileHandle>)> {
        let change = self.engine.namespace().write_guard()?;
        let dir = change.node(self.table, parent)?;
        if change.find_entry(&dir, name)?.is_some() {
            return Err(exists(name));
        }
        let node = self.insert(&change, &dir, name, NewNode::File, mode, caller)?;
        let row = change.row(&node)?;
        self.engine.content().open_node(&node, write)?;
        let handle = Handle::new(self.engine.clone(), self.store, node, write);
        change.commit()?;
        Ok((self.attr_of(row), Box::new(handle)))
    }

    fn link(&self, ino: Ino, parent: Ino, name: &Name) -> Result<Metadata> {
        let change = self.engine.namespace().write_guard()?;
        let dir = change.node(self.table, parent)?;
        let node = change.node(self.table, ino)?;
        let row = change.row(&node)?;
        if row.kind == FileKind::Directory {
            return Err(Error::new(
                ErrorKind::NotPermitted,
                "a directory cannot have a second name; use a symbolic link",
            ));
        }
        if change.find_entry(&dir, name)?.is_some() {
            return Err(exists(name));
        }
        let dir_row = change.row(&dir)?;
        require_linked(&dir_row)?;
        require_adding(&dir_row)?;
        require_free(&row)?;
        if row.nlink >= LINK_COUNT_MAX {
            return Err(too_many_links(name));
        }
        let row = change.add_name(&node)?;
        change.set_entry(&dir, name, Some((ino, row.kind)))?;
        change.commit()?;
        Ok(self.attr_of(row))
    }

    fn unlink(&self, parent: Ino, name: &Name) -> Result<()> {
        let change = self.engine.namespace().write_guard()?;
        let dir = change.node(self.table, parent)?;
        let (node, row) = self.require_entry(&change, &dir, name)?;
        if row.kind == FileKind::Directory {
            return Err(Error::new(
                ErrorKind::IsADirectory,
                format!("'{name}' is a directory; remove it as one"),
            ));
        }
        require_removing(&change.row(&dir)?, &row)?;
        let successor = match row.kind == FileKind::File && row.nlink == 1 {
            true => change.find_successor(&node)?,
            false => None,
        };
        match successor {
            Some(successor) => change.replace(&node, &successor)?,
            None => change.drop_name(&node)?,
        }
        change.set_entry(&dir, name, None)?;
        change.commit()
    }

    fn remove_dir(&self, parent: Ino, name: &Name) -> Result<()> {
        let change = self.engine.namespace().write_guard()?;
        let dir = change.node(self.table, parent)?;
        let (node, row) = self.require_entry(&change, &dir, name)?;
        require_removing(&change.row(&dir)?, &row)?;
        require_empty_directory(&change, &node, &row, name)?;
        change.drop_name(&node)?;
        change.set_entry(&dir, name, None)?;
        add_links(&change, &dir, -1)?;
        change.commit()
    }

    fn rename(
        &self,
        parent: Ino,
        name: &Name,
        new_parent: Ino,
        new_name: &Name,
        mode: RenameMode,
    ) -> Result<()> {
        let change = self.engine.namespace().write_guard()?;
        let from = change.node(self.table, parent)?;
        let to = change.node(self.table, new_parent)?;
        let moved = self.require_entry(&change, &from, name)?;
        let there = match change.find_entry(&to, new_name)? {
            Some(_) => Some(self.require_entry(&change, &to, new_name)?),
            None => None,
        };
        let to_row = change.row(&to)?;
        require_linked(&to_row)?;
        require_removing(&change.row(&from)?, &moved.1)?;
        match &there {
            Some(there) => require_removing(&to_row, &there.1)?,
            None => require_adding(&to_row)?,
        }
        let is_directory = moved.1.kind == FileKind::Directory;
        let into_itself = || {
            Error::new(
                ErrorKind::InvalidInput,
                format!("'{name}' cannot be moved into itself"),
            )
        };
        if is_directory && self.is_below(&change, new_parent, moved.1.ino)? {
            return Err(into_itself());
        }
        match (mode, there) {
            (RenameMode::NoReplace, Some(_)) => return Err(exists(new_name)),
            (RenameMode::Exchange, None) => return Err(absent(new_name)),
            (RenameMode::Exchange, Some(other)) => {
                if other.1.kind == FileKind::Directory
                    && self.is_below(&change, parent, other.1.ino)?
                {
                    return Err(into_itself());
                }
                if other.1.ino == moved.1.ino {
                    return Ok(());
                }
                self.exchange(&change, (&from, name), (&to, new_name), &moved, &other)?;
            }
            (RenameMode::Replace | RenameMode::Whiteout(_), Some(old)) => {
                if old.1.ino == moved.1.ino {
                    return Ok(());
                }
                match (is_directory, old.1.kind == FileKind::Directory) {
                    (true, true) => require_empty_directory(&change, &old.0, &old.1, new_name)?,
                    (true, false) => {
                        return Err(Error::new(
                            ErrorKind::NotADirectory,
                            format!("'{new_name}' is not a directory"),
                        ));
                    }
                    (false, true) => {
                        return Err(Error::new(
                            ErrorKind::IsADirectory,
                            format!("'{new_name}' is a directory"),
                        ));
                    }
                    (false, false) => {}
                }
                self.rename_one(&change, (&from, name), (&to, new_name), &moved, Some(&old))?;
                self.leave_whiteout(&change, (&from, name), mode)?;
            }
            (_, None) => {
                self.rename_one(&change, (&from, name), (&to, new_name), &moved, None)?;
                self.leave_whiteout(&change, (&from, name), mode)?;
            }
        }
        change.commit()
    }

    fn read_link(&self, ino: Ino) -> Result<Vec<u8>> {
        self.reader.read_link(ino)
    }

    fn open(&self, ino: Ino, write: bool) -> Result<Box<dyn FileHandle>> {
        let (node, flags) = {
            let view = self.engine.lookup().begin();
            let node = view.node(self.table, ino)?;
            let row = view.row(&node)?;
            require_file(&row)?;
            let flags = InodeFlags::of(&row);
            if write {
                require_content(flags, true)?;
            }
            self.engine.content().open_node(&node, write)?;
            (node, flags)
        };
        let mut handle = Handle::new(self.engine.clone(), self.store, node, write);
        if flags.has(InodeFlags::APPEND) {
            handle.append_only();
        }
        Ok(Box::new(handle))
    }

    fn read_whole(&self, ino: Ino, buffer: &mut AlignedBuf) -> Result<()> {
        self.reader.read_whole(ino, buffer)
    }

    fn read_named(&self, from: Ino, names: &[&[u8]], buffer: &mut AlignedBuf) -> Result<bool> {
        self.reader.read_named(from, names, buffer)
    }

    fn put(
        &self,
        parent: Ino,
        name: &Name,
        bytes: &[u8],
        mode: u32,
        caller: Caller,
    ) -> Result<Metadata> {
        let (change, content) = self.engine.content().guard_with_content(bytes)?;
        let dir = change.node(self.table, parent)?;
        let node = match change.find_entry(&dir, name)? {
            Some(ino) => change.node(self.table, ino)?,
            None => self.insert(&change, &dir, name, NewNode::File, mode, caller)?,
        };
        require_kind(node.kind())?;
        require_free(&change.row(&node)?)?;
        content.put(&change, &node)?;
        change.commit()?;
        Ok(self.attr_of(self.engine.lookup().row(&node)?))
    }

    fn xattrs(&self, ino: Ino) -> Result<Vec<Vec<u8>>> {
        self.reader.xattrs(ino)
    }

    fn xattr(&self, ino: Ino, name: &[u8]) -> Result<Vec<u8>> {
        self.reader.xattr(ino, name)
    }

    fn set_flags(&self, ino: Ino, flags: InodeFlags) -> Result<()> {
        set_flags(&self.engine, self.table, ino, flags)
    }

    fn note_access(&self, ino: Ino, rule: AccessRule) -> Result<bool> {
        let node = self.engine.lookup().begin().node(self.table, ino)?;
        self.engine.access_times().note_access(&node, rule)
    }

    fn set_xattr(&self, ino: Ino, name: &[u8], value: &[u8], mode: XattrMode) -> Result<()> {
        self.xattrs.set(ino, name, value, mode)
    }

    fn remove_xattr(&self, ino: Ino, name: &[u8]) -> Result<()> {
        self.xattrs.remove(ino, name)
    }
}

fn add_links(change: &WriteGuard<'_>, dir: &Arc<Node>, by: i64) -> Result<()> {
    let mask = AttrMask {
        nlink: true,
        ..AttrMask::default()
    };
    change
        .update(dir, mask, |row| {
            row.nlink = row.nlink.saturating_add_signed(by as i32)
        })
        .map(drop)
}

fn touch_ctime(change: &WriteGuard<'_>, node: &Arc<Node>) -> Result<()> {
    let now_ns = change.now_ns;
    change
        .update(
            node,
            AttrMask {
                ctime: true,
                ..AttrMask::default()
            },
            |row| row.ctime_ns = now_ns,
        )
        .map(drop)
}

fn exists(name: &Name) -> Error {
    Error::new(ErrorKind::Exists, format!("'{name}' exists already"))
}

fn too_many_links(name: &Name) -> Error {
    Error::new(
        ErrorKind::TooManyLinks,
        format!("'{name}': at most {LINK_COUNT_MAX} links are possible"),
    )
}
