//! The requests of the kernel, one handler each: arguments → a call → reply or errno.
//!
//! What is *not* implemented is left to the kernel on purpose: permissions (`default_permissions`),
//! POSIX and flock locks (local to the mount), clearing of set-id bits (it sends a `setattr` for
//! that, since we do not claim `HANDLE_KILLPRIV`), `O_TRUNC` (a `setattr` before the open), umask.

use crate::arguments::{allocate_mode, rename_mode, seek_target, xattr_mode, xattr_name};
use crate::bridge::{
    BACKGROUND_COUNT_MAX, Bridge, Listed, REQUEST_BYTES_MAX, WriteEnd, read_full, with_buffer,
};
use crate::convert::{
    BLOCK_BYTES, INO_BITS, bare_directory_attr, file_attr, file_type, name_of, nanoseconds,
    node_number, node_of, set_time,
};
use crate::errno::{errno, node_errno};
use crate::handles::OpenDirectory;
use fuser::{
    BsdFileFlags, CopyFileRangeFlags, Errno, FileAttr, FileHandle, FileType, Filesystem,
    FopenFlags, Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags,
    ReplyAttr, ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use larder::{Attr, Error, NewNode, RenameMode, SetAttr, SetTime};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::time::SystemTime;

/// Inode numbers are never reused, so no generation tells two nodes apart.
const GENERATION: Generation = Generation(0);
/// Nothing is dropped from the page cache at open, since changes by others are told; and close has
/// nothing to ask for.
const OPEN_FLAGS: FopenFlags = FopenFlags::FOPEN_KEEP_CACHE.union(FopenFlags::FOPEN_NOFLUSH);

impl Filesystem for Bridge {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        let wanted = InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_READDIRPLUS_AUTO
            | InitFlags::FUSE_ASYNC_DIO
            | InitFlags::FUSE_CACHE_SYMLINKS;
        // All of these only save time.
        if let Err(lacking) = config.add_capabilities(wanted & config.capabilities()) {
            tracing::debug!("the kernel lacks {lacking:?}");
        }
        let refused = |nearest: u32| {
            io::Error::other(format!(
                "fuser refuses requests of 1 MiB; {nearest} bytes at most"
            ))
        };
        config.set_max_write(REQUEST_BYTES_MAX).map_err(refused)?;
        config
            .set_max_background(BACKGROUND_COUNT_MAX)
            .map_err(|nearest| {
                io::Error::other(format!(
                    "fuser refuses 64 requests in flight; {nearest} at least"
                ))
            })?;
        Ok(())
    }

    // ---- names ----------------------------------------------------------------------------

    fn lookup(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _ticket = self.known.ticket();
        let found = name_of(name).and_then(|name| {
            let attr = self
                .database
                .lookup(node_of(parent), &name)
                .map_err(|error| errno(&error, format_args!("look up '{name}' in {parent}")))?;
            self.entry(parent, &name, &attr)
        });
        self.reply_entry(found, reply);
    }

    fn forget(&self, _: &Request, node: INodeNo, lookup_count: u64) {
        self.known.forget(node, lookup_count);
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let new = match mode & libc::S_IFMT {
            libc::S_IFREG | 0 => NewNode::File,
            libc::S_IFIFO => NewNode::Fifo,
            libc::S_IFSOCK => NewNode::Socket,
            libc::S_IFCHR => NewNode::CharDevice(rdev.into()),
            libc::S_IFBLK => NewNode::BlockDevice(rdev.into()),
            _ => return reply.error(Errno::EINVAL),
        };
        self.reply_new_node(request, (parent, name), new, mode, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        reply: ReplyEntry,
    ) {
        self.reply_new_node(request, (parent, name), NewNode::Directory, mode, reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let new = NewNode::Symlink(target.as_os_str().as_bytes());
        self.reply_new_node(request, (parent, name), new, 0o777, reply);
    }

    fn link(&self, _: &Request, node: INodeNo, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let _ticket = self.known.ticket();
        let linked = name_of(name).and_then(|name| {
            let attr = self
                .database
                .link(node_of(node), node_of(parent), &name)
                .map_err(|error| {
                    errno(&error, format_args!("link {node} as '{name}' in {parent}"))
                })?;
            self.entry(parent, &name, &attr)
        });
        self.reply_entry(linked, reply);
    }

    fn unlink(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = name_of(name).and_then(|name| {
            self.database
                .unlink(node_of(parent), &name)
                .map_err(|error| errno(&error, format_args!("unlink '{name}' in {parent}")))?;
            self.known.remove(parent, &name);
            Ok(())
        });
        reply_empty(removed, reply);
    }

    fn rmdir(&self, _: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = name_of(name).and_then(|name| {
            self.database
                .remove_dir(node_of(parent), &name)
                .map_err(|error| {
                    errno(
                        &error,
                        format_args!("remove directory '{name}' in {parent}"),
                    )
                })?;
            self.known.remove(parent, &name);
            Ok(())
        });
        reply_empty(removed, reply);
    }

    fn rename(
        &self,
        _: &Request,
        parent: INodeNo,
        name: &OsStr,
        new_parent: INodeNo,
        new_name: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let rename = || {
            let mode = rename_mode(flags)?;
            let (name, new_name) = (name_of(name)?, name_of(new_name)?);
            self.database
                .rename(node_of(parent), &name, node_of(new_parent), &new_name, mode)
                .map_err(|error| {
                    errno(
                        &error,
                        format_args!("rename '{name}' in {parent} to '{new_name}' in {new_parent}"),
                    )
                })?;
            let (from, to) = ((parent, &name), (new_parent, &new_name));
            match mode {
                RenameMode::Exchange => self.known.exchange(from, to),
                RenameMode::Replace | RenameMode::NoReplace => self.known.rename(from, to),
            }
            Ok(())
        };
        reply_empty(rename(), reply);
    }

    fn readlink(&self, _: &Request, node: INodeNo, reply: ReplyData) {
        match self.database.read_link(node_of(node)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(node_errno(&error, format_args!("read link {node}"))),
        }
    }

    // ---- attributes -----------------------------------------------------------------------

    fn getattr(&self, _: &Request, node: INodeNo, handle: Option<FileHandle>, reply: ReplyAttr) {
        let _ticket = self.known.ticket();
        let attr = match handle.map(|handle| self.files.find(handle)) {
            Some(Ok(file)) => file.attr(),
            Some(Err(_)) | None => self.database.attr(node_of(node)),
        };
        self.reply_attr(attr, "attributes of", node, reply);
    }

    fn setattr(
        &self,
        _: &Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        handle: Option<FileHandle>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<SystemTime>,
        _: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let _ticket = self.known.ticket();
        let change = SetAttr {
            mode: mode.map(|mode| mode & 0o7777),
            uid,
            gid,
            size_bytes: size,
            atime: atime.map(set_time),
            mtime: mtime.map(set_time),
            ctime: ctime.map(|time| SetTime::At(nanoseconds(time))),
            drop_set_id: false,
        };
        self.reply_attr(
            self.set_attr(node, handle, change),
            "set attributes of",
            node,
            reply,
        );
    }

    fn setxattr(
        &self,
        _: &Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let set = xattr_name(name).and_then(|name| {
            self.database
                .set_xattr(node_of(node), name, value, xattr_mode(flags)?)
                .map_err(|error| node_errno(&error, format_args!("set an attribute of {node}")))
        });
        reply_empty(set, reply);
    }

    fn getxattr(&self, _: &Request, node: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        let value = xattr_name(name).and_then(|name| {
            self.database
                .xattr(node_of(node), name)
                .map_err(|error| node_errno(&error, format_args!("attribute of {node}")))
        });
        reply_xattr(value, size, reply);
    }

    fn listxattr(&self, _: &Request, node: INodeNo, size: u32, reply: ReplyXattr) {
        let names = self
            .database
            .xattrs(node_of(node))
            .map(|names| {
                names
                    .into_iter()
                    .flat_map(|name| name.into_iter().chain([0]))
                    .collect()
            })
            .map_err(|error| node_errno(&error, format_args!("attributes of {node}")));
        reply_xattr(names, size, reply);
    }

    fn removexattr(&self, _: &Request, node: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let removed = xattr_name(name).and_then(|name| {
            self.database
                .remove_xattr(node_of(node), name)
                .map_err(|error| node_errno(&error, format_args!("remove an attribute of {node}")))
        });
        reply_empty(removed, reply);
    }

    fn statfs(&self, _: &Request, _: INodeNo, reply: ReplyStatfs) {
        match self.space_report() {
            Ok(space) => reply.statfs(
                space.capacity_bytes / BLOCK_BYTES,
                space.free_bytes / BLOCK_BYTES,
                space.available_bytes / BLOCK_BYTES,
                1 << INO_BITS,
                (1 << INO_BITS) - space.inode_count,
                BLOCK_BYTES as u32,
                larder::limits::NAME_BYTES_MAX as u32,
                BLOCK_BYTES as u32,
            ),
            Err(error) => reply.error(errno(&error, "statfs")),
        }
    }

    // ---- files ----------------------------------------------------------------------------

    fn open(&self, _: &Request, node: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        match self.open_file(node, flags) {
            Ok(handle) => reply.opened(handle, OPEN_FLAGS),
            Err(error) => reply.error(node_errno(&error, format_args!("open {node}"))),
        }
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        _: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let _ticket = self.known.ticket();
        match self.create_file(request, (parent, name), mode, flags) {
            Ok((attr, handle)) => {
                reply.created(&self.cache_ttl, &attr, GENERATION, handle, OPEN_FLAGS)
            }
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let file = match self.files.find(handle) {
            Ok(file) => file,
            Err(error) => return reply.error(error),
        };
        with_buffer(size as usize, |buffer| {
            match read_full(&file, offset, buffer) {
                Ok(read) => reply.data(&buffer[..read]),
                Err(error) => {
                    reply.error(node_errno(&error, format_args!("read {node} at {offset}")))
                }
            }
        });
    }

    fn write(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        let from_cache = write_flags.contains(WriteFlags::FUSE_WRITE_CACHE);
        match self.write_file(handle, offset, data, flags, from_cache) {
            Ok(end) => {
                reply.written(data.len() as u32);
                if matches!(end, WriteEnd::Elsewhere) {
                    self.changes.node(node);
                }
            }
            Err(error) => reply.error(error),
        }
    }

    fn flush(&self, _: &Request, _: INodeNo, _: FileHandle, _: LockOwner, reply: ReplyEmpty) {
        // What a write took, it keeps: errors of space came from there.
        reply.ok();
    }

    fn release(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        self.files.remove(handle);
        reply.ok();
    }

    fn fsync(&self, _: &Request, node: INodeNo, handle: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.files.find(handle).and_then(|file| {
            file.sync()
                .map_err(|error| node_errno(&error, format_args!("sync {node}"))) // FUSE-3
        });
        reply_empty(synced, reply);
    }

    fn fallocate(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        len_bytes: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let allocated = self.files.find(handle).and_then(|file| {
            file.allocate(allocate_mode(mode)?, offset, len_bytes)
                .map_err(|error| node_errno(&error, format_args!("allocate in {node}")))
        });
        reply_empty(allocated, reply);
    }

    fn lseek(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        let seek = || {
            let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
            let found = self.files.find(handle)?.seek(seek_target(whence)?, offset);
            let found =
                found.map_err(|error| node_errno(&error, format_args!("seek in {node}")))?;
            i64::try_from(found.ok_or(Errno::ENXIO)?).map_err(|_| Errno::EOVERFLOW)
        };
        match seek() {
            Ok(offset) => reply.offset(offset),
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(
        &self,
        _: &Request,
        _: INodeNo,
        from: FileHandle,
        from_offset: u64,
        _: INodeNo,
        to: FileHandle,
        to_offset: u64,
        len_bytes: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        match self.copy((from, from_offset), (to, to_offset), len_bytes) {
            Ok(copied) => reply.written(copied),
            Err(error) => reply.error(error),
        }
    }

    // ---- directories ----------------------------------------------------------------------

    fn opendir(&self, _: &Request, _: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        reply.opened(
            self.directories.insert(OpenDirectory::default()),
            FopenFlags::empty(),
        );
    }

    fn readdir(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let listed = self.list(node, handle, offset, |listed, next| {
            Ok(match listed {
                Listed::Dot(name, number) => reply.add(number, next, FileType::Directory, name),
                Listed::Entry(entry) => {
                    let name = OsStr::from_bytes(entry.name.as_bytes());
                    reply.add(node_number(entry.node)?, next, file_type(entry.kind), name)
                }
            })
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn readdirplus(
        &self,
        _: &Request,
        node: INodeNo,
        handle: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let _ticket = self.known.ticket();
        let listed = self.list(node, handle, offset, |listed, next| {
            let mut add = |name: &[u8], attr: &FileAttr| {
                reply.add(
                    attr.ino,
                    next,
                    OsStr::from_bytes(name),
                    &self.cache_ttl,
                    attr,
                    GENERATION,
                )
            };
            match listed {
                Listed::Dot(name, number) => Ok(add(name.as_bytes(), &bare_directory_attr(number))),
                Listed::Entry(entry) => match self.database.attr(entry.node) {
                    Ok(attr) => {
                        let attr = file_attr(&attr)?;
                        let is_full = add(entry.name.as_bytes(), &attr);
                        if !is_full {
                            self.known.add(node, &entry.name, attr.ino);
                        }
                        Ok(is_full)
                    }
                    // Removed after it was listed.
                    Err(error) if error.kind() == larder::ErrorKind::NotFound => Ok(false),
                    Err(error) => Err(node_errno(
                        &error,
                        format_args!("list '{}' in {node}", entry.name),
                    )),
                },
            }
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(
        &self,
        _: &Request,
        _: INodeNo,
        handle: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        self.directories.remove(handle);
        reply.ok();
    }

    fn fsyncdir(&self, _: &Request, node: INodeNo, _: FileHandle, _: bool, reply: ReplyEmpty) {
        let synced = self.database.sync(); // FUSE-3
        reply_empty(
            synced.map_err(|error| errno(&error, format_args!("sync directory {node}"))),
            reply,
        );
    }
}

impl Bridge {
    fn reply_new_node(
        &self,
        request: &Request,
        (parent, name): (INodeNo, &OsStr),
        new: NewNode<'_>,
        mode: u32,
        reply: ReplyEntry,
    ) {
        let _ticket = self.known.ticket();
        let made = name_of(name).and_then(|name| {
            let attr = self
                .create_node(request, parent, &name, new, mode)
                .map_err(|error| errno(&error, format_args!("make '{name}' in {parent}")))?;
            self.entry(parent, &name, &attr)
        });
        self.reply_entry(made, reply);
    }

    fn reply_entry(&self, found: Result<FileAttr, Errno>, reply: ReplyEntry) {
        match found {
            Ok(attr) => reply.entry(&self.cache_ttl, &attr, GENERATION),
            Err(error) => reply.error(error),
        }
    }

    fn reply_attr(&self, attr: Result<Attr, Error>, what: &str, node: INodeNo, reply: ReplyAttr) {
        let attr = attr
            .map_err(|error| node_errno(&error, format_args!("{what} {node}")))
            .and_then(|attr| file_attr(&attr));
        match attr {
            Ok(attr) => reply.attr(&self.cache_ttl, &attr),
            Err(error) => reply.error(error),
        }
    }
}

fn reply_empty(done: Result<(), Errno>, reply: ReplyEmpty) {
    match done {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

/// A caller that gives no room asks for the size; one that gives too little gets `ERANGE`.
fn reply_xattr(value: Result<Vec<u8>, Errno>, room_bytes: u32, reply: ReplyXattr) {
    match value {
        Ok(value) if room_bytes == 0 => reply.size(value.len() as u32),
        Ok(value) if value.len() > room_bytes as usize => reply.error(Errno::ERANGE),
        Ok(value) => reply.data(&value),
        Err(error) => reply.error(error),
    }
}
