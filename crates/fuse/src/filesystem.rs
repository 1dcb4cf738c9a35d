//! The requests of the kernel, one handler each: arguments → a call → the value of the reply.
//!
//! What is *not* implemented is left to the kernel on purpose: permissions (`default_permissions`,
//! access control lists), who may change which attribute, locks if they are to be local to the
//! mount, `O_TRUNC` (a `setattr` before the open). Set-id bits are cleared here when a request says
//! so, and the umask is applied where there is no default access control list
//! (`HANDLE_KILLPRIV_V2`, `DONT_MASK`).

use crate::arguments::{allocate_mode, rename_mode, seek_target, xattr_mode};
use crate::bridge::{Bridge, Call, Listed, Span, WriteEnd, copy, list, read_full, write_file};
use crate::convert::{
    BLOCK_BYTES, INO_BITS, file_type, name_of, node_number, node_of, set_time, slot_of_number,
};
use crate::create::{create_anonymous, create_file};
use crate::errno::{errno, node_errno};
use crate::flags::control;
use crate::handles::OpenDirectory;
use crate::history::is_changing;
use larder::{Caller, Error, ErrorKind, Metadata, Name, NewNode, RenameMode, SetTime};
use larder_fuse_protocol::{
    AttrReply, CopyRange, Detail, DirectoryPlusReply, DirectoryReply, Entry, Errno, Fallocate,
    FileType, Filesystem, FopenFlags, GetAttr, GetStatx, HandleNumber, InitFlags, Ioctl,
    IoctlReply, Lock, LockOwner, LockRequest, Make, NodeNumber, Opcode, OpenFlags, Opened, Outcome,
    Read, Release, Rename, Request, SetAttr, SetXattr, Statfs, StatxReply, Write, Written,
};

/// What a rename may leave at the old name has no permissions.
const NOTHING: Make = Make {
    mode: 0,
    umask: 0,
    rdev: 0,
};

/// The label of SELinux, which keeps its own where it is at work.
const LABEL_XATTR: &[u8] = b"security.selinux";

impl Filesystem for Bridge {
    type Span = Span;

    fn init(&mut self, offers: InitFlags) -> InitFlags {
        self.has_acls = self.id_map.has_acls() && offers.contains(InitFlags::POSIX_ACL);
        let mut rules = InitFlags::DONT_MASK
            | InitFlags::SETXATTR_EXT
            | InitFlags::HANDLE_KILLPRIV_V2
            | InitFlags::EXPORT_SUPPORT;
        if self.has_acls {
            rules = rules | InitFlags::POSIX_ACL;
        }
        if self.allows_idmap {
            rules = rules | InitFlags::ALLOW_IDMAP;
        }
        if self.locks.is_some() {
            rules = rules | InitFlags::POSIX_LOCKS | InitFlags::FLOCK_LOCKS;
        }
        let direct = InitFlags::DIRECT_IO_ALLOW_MMAP | InitFlags::HANDLE_KILLPRIV_V2;
        self.may_be_direct = offers.contains(direct);
        // All others only save time.
        rules
            | InitFlags::ASYNC_READ
            | InitFlags::PARALLEL_DIROPS
            | InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO
            | InitFlags::ASYNC_DIO
            | InitFlags::CACHE_SYMLINKS
    }

    fn begin(&self, request: &Request) -> Span {
        // For the log: a handler runs in the thread of this, to its end.
        larder::act_for(Some(request.uid));
        let fills_a_cache = matches!(
            request.opcode,
            Opcode::Lookup
                | Opcode::Mknod
                | Opcode::Mkdir
                | Opcode::Symlink
                | Opcode::Link
                | Opcode::Create
                | Opcode::Tmpfile
                | Opcode::Getattr
                | Opcode::Statx
                | Opcode::Setattr
                | Opcode::Readdir
                | Opcode::Readdirplus
        );
        Span {
            ticket: fills_a_cache.then(|| self.known.ticket()),
            stale: None,
            is_absent: false,
            watched: None,
        }
    }

    fn describe(&self, span: &mut Span, request: &Request, detail: &Detail<'_>) {
        span.watched = self.watch.begin(request, detail, &self.known);
    }

    fn end(&self, call: Call<'_>, outcome: &Outcome) {
        // First what others wait for, whatever becomes of those who watch.
        if let Some(ticket) = call.span.ticket {
            self.known.give_back(ticket);
        }
        if let Some(node) = call.span.stale {
            self.changes.node(node);
        }
        if let Some(watched) = call.span.watched {
            let absent = call.span.is_absent.then_some(Errno::ENOENT);
            let outcome = Outcome {
                error: outcome.error.or(absent),
                ..*outcome
            };
            self.watch.end(watched, &call.request, &outcome);
        }
    }

    // ---- names ----------------------------------------------------------------------------

    fn lookup(&self, call: &mut Call<'_>, name: &[u8]) -> Result<Entry, Errno> {
        let parent = call.request.node;
        if matches!(name, b"." | b"..") {
            return self.looked_up_by_number(parent, name == b"..");
        }
        let name = name_of(name)?;
        self.freshen()?;
        let change_count = self.stale_names.count();
        match self.database.lookup(node_of(parent), &name) {
            Ok(attr) => {
                let entry = self.looked_up(parent, &name, &attr)?;
                let node = node_number(attr.node)?;
                (self.stale_names).looked_up(call.request.pid, node, change_count);
                Ok(entry)
            }
            Err(error) if error.kind() == ErrorKind::NotFound => absent(self, call, &name),
            Err(error) => Err(errno(&error, format_args!("look up '{name}' in {parent}"))),
        }
    }

    fn forget(&self, _: &mut Call<'_>, node: NodeNumber, count: u64) {
        self.known.forget(node, count);
        if self.kept.forget(node) {
            self.database.let_go(node_of(node));
        }
    }

    fn mknod(&self, call: &mut Call<'_>, name: &[u8], make: Make) -> Result<Entry, Errno> {
        let new = match make.mode & libc::S_IFMT {
            libc::S_IFREG | 0 => NewNode::File,
            libc::S_IFIFO => NewNode::Fifo,
            libc::S_IFSOCK => NewNode::Socket,
            libc::S_IFCHR => NewNode::CharDevice(make.rdev.into()),
            libc::S_IFBLK => NewNode::BlockDevice(make.rdev.into()),
            _ => return Err(Errno::EINVAL),
        };
        self.make(&call.request, name, new, make)
    }

    fn mkdir(&self, call: &mut Call<'_>, name: &[u8], make: Make) -> Result<Entry, Errno> {
        self.make(&call.request, name, NewNode::Directory, make)
    }

    fn symlink(&self, call: &mut Call<'_>, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let make = Make {
            mode: 0o777,
            umask: 0,
            rdev: 0,
        };
        self.make(&call.request, name, NewNode::Symlink(target), make)
    }

    fn link(&self, call: &mut Call<'_>, node: NodeNumber, name: &[u8]) -> Result<Entry, Errno> {
        let parent = call.request.node;
        let name = name_of(name)?;
        self.require_fresh_name(call, node)?;
        let attr = (self.database.link(node_of(node), node_of(parent), &name))
            .map_err(|error| errno(&error, format_args!("link {node} as '{name}' in {parent}")))?;
        self.entry(parent, &name, &attr)
    }

    fn unlink(&self, call: &mut Call<'_>, name: &[u8]) -> Result<(), Errno> {
        let parent = call.request.node;
        let name = name_of(name)?;
        (self.database.unlink(node_of(parent), &name))
            .map_err(|error| errno(&error, format_args!("unlink '{name}' in {parent}")))?;
        self.known.remove(parent, &name);
        self.after_removal()
    }

    fn rmdir(&self, call: &mut Call<'_>, name: &[u8]) -> Result<(), Errno> {
        let parent = call.request.node;
        let name = name_of(name)?;
        (self.database.remove_dir(node_of(parent), &name)).map_err(|error| {
            errno(
                &error,
                format_args!("remove directory '{name}' in {parent}"),
            )
        })?;
        self.known.remove(parent, &name);
        self.after_removal()
    }

    fn rename(&self, call: &mut Call<'_>, rename: Rename<'_>) -> Result<(), Errno> {
        let (parent, new_parent) = (rename.parent, rename.new_parent);
        let caller = match rename.flags & libc::RENAME_WHITEOUT {
            0 => Caller::current(),
            _ => self.owner(&call.request, NOTHING)?,
        };
        let mode = rename_mode(rename.flags, caller)?;
        let (name, new_name) = (name_of(rename.name)?, name_of(rename.new_name)?);
        self.database
            .rename(node_of(parent), &name, node_of(new_parent), &new_name, mode)
            .map_err(|error| {
                let what =
                    format_args!("rename '{name}' in {parent} to '{new_name}' in {new_parent}");
                errno(&error, what)
            })?;
        let (from, to) = ((parent, &name), (new_parent, &new_name));
        match mode {
            RenameMode::Exchange => self.known.exchange(from, to),
            RenameMode::Replace | RenameMode::NoReplace | RenameMode::Whiteout(_) => {
                self.known.rename(from, to);
            }
        }
        self.after_removal()
    }

    fn readlink(&self, call: &mut Call<'_>) -> Result<Vec<u8>, Errno> {
        let node = call.request.node;
        self.freshen()?;
        let target = self.database.read_link(node_of(node));
        self.note_looked(node, false);
        target.map_err(|error| node_errno(&error, format_args!("read link {node}")))
    }

    // ---- attributes -----------------------------------------------------------------------

    fn getattr(&self, call: &mut Call<'_>, arguments: GetAttr) -> Result<AttrReply, Errno> {
        attr_of(self, call.request.node, arguments.handle)
    }

    fn statx(&self, call: &mut Call<'_>, arguments: GetStatx) -> Result<StatxReply, Errno> {
        let AttrReply { attr, ttl } = attr_of(self, call.request.node, arguments.handle)?;
        Ok(StatxReply { attr, ttl })
    }

    fn setattr(&self, call: &mut Call<'_>, change: SetAttr) -> Result<AttrReply, Errno> {
        let node = call.request.node;
        if change.size_bytes.is_some() && change.handle.is_none() {
            self.require_fresh_cut(call, node)?;
        }
        let (uid, gid) = self.stored_owner(change.uid, change.gid)?;
        let wanted = larder::SetAttr {
            mode: change.mode.map(|mode| self.id_map.stored_mode(mode)),
            uid,
            gid,
            size_bytes: change.size_bytes,
            atime: change.atime.map(set_time),
            mtime: change.mtime.map(set_time),
            ctime: change.ctime_ns.map(SetTime::At),
            drop_set_id: change.kill_suid_sgid || is_empty(&change),
        };
        self.known.note_set(node);
        let attr = self.set_attr(node, change.handle, wanted);
        attr_reply(self, attr, "set attributes of", node)
    }

    fn setxattr(&self, call: &mut Call<'_>, set: SetXattr<'_>) -> Result<(), Errno> {
        let node = call.request.node;
        let name = xattr_name(self, set.name)?;
        let mode = xattr_mode(set.flags, set.acl_kill_sgid)?;
        let value = self.stored_xattr(node, name, set.value)?;
        (self.database.set_xattr(node_of(node), name, &value, mode))
            .map_err(|error| node_errno(&error, format_args!("set an attribute of {node}")))
    }

    fn getxattr(&self, call: &mut Call<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        let node = call.request.node;
        self.freshen()?;
        match self.database.xattr(node_of(node), xattr_name(self, name)?) {
            Ok(value) => Ok(self.shown_xattr(name, value)),
            // `ls -l` asks for it file by file, unless it hears once that there are no such labels
            // here.
            Err(error) if error.kind() == ErrorKind::NoAttribute && name == LABEL_XATTR => {
                Err(Errno::EOPNOTSUPP)
            }
            Err(error) => Err(node_errno(&error, format_args!("attribute of {node}"))),
        }
    }

    fn listxattr(&self, call: &mut Call<'_>) -> Result<Vec<u8>, Errno> {
        let node = call.request.node;
        self.freshen()?;
        let names = (self.database.xattrs(node_of(node)))
            .map_err(|error| node_errno(&error, format_args!("attributes of {node}")))?;
        // What is trusted is shown to who may read it.
        let is_shown = |name: &Vec<u8>| call.request.uid == 0 || !name.starts_with(b"trusted.");
        let with_ends = names
            .into_iter()
            .filter(is_shown)
            .map(|name| name.into_iter().chain([0]));
        Ok(with_ends.flatten().collect())
    }

    fn removexattr(&self, call: &mut Call<'_>, name: &[u8]) -> Result<(), Errno> {
        let node = call.request.node;
        (self
            .database
            .remove_xattr(node_of(node), xattr_name(self, name)?))
        .map_err(|error| node_errno(&error, format_args!("remove an attribute of {node}")))
    }

    fn statfs(&self, _: &mut Call<'_>) -> Result<Statfs, Errno> {
        let space = self
            .space_report()
            .map_err(|error| errno(&error, "statfs"))?;
        Ok(Statfs {
            blocks: space.capacity_bytes / BLOCK_BYTES,
            free_blocks: (space.capacity_bytes - space.used_bytes()) / BLOCK_BYTES,
            available_blocks: space.available_bytes / BLOCK_BYTES,
            files: 1 << INO_BITS,
            free_files: (1 << INO_BITS) - space.inode_count,
            block_bytes: BLOCK_BYTES as u32,
            name_bytes_max: larder::limits::NAME_BYTES_MAX as u32,
        })
    }

    // ---- files ----------------------------------------------------------------------------

    fn open(&self, call: &mut Call<'_>, open: OpenFlags) -> Result<Opened, Errno> {
        let node = call.request.node;
        self.require_fresh_name(call, node)?;
        let share = self.share(node, None, open.is_write())?;
        let opened = (self.open_file(node, open))
            .map_err(|error| node_errno(&error, format_args!("open {node}")));
        match opened {
            Ok(opened) => {
                self.stale_names.opened(call.request.pid, node);
                self.keep_share(opened.handle, share);
                self.note_opened(call, &*self.files.find(opened.handle)?);
                Ok(opened)
            }
            Err(error) => {
                self.leave_share(share);
                Err(error)
            }
        }
    }

    fn create(
        &self,
        call: &mut Call<'_>,
        name: &[u8],
        make: Make,
        open: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        create_file(self, &call.request, name, make, open)
    }

    fn tmpfile(
        &self,
        call: &mut Call<'_>,
        make: Make,
        open: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        create_anonymous(self, &call.request, make, open)
    }

    fn read(&self, call: &mut Call<'_>, read: Read, buffer: &mut [u8]) -> Result<usize, Errno> {
        let (node, offset) = (call.request.node, read.offset);
        self.freshen()?;
        let file = self.files.find(read.handle)?;
        let done = match read.is_direct {
            true => read_full(&file, offset, buffer),
            false => {
                self.note_pages(&file);
                let range = offset..offset.saturating_add(buffer.len() as u64);
                file.way
                    .page_read(range, || read_full(&file, offset, buffer))
            }
        };
        self.note_read(call, &file, read.flags);
        done.map_err(|error| node_errno(&error, format_args!("read {node} at {offset}")))
    }

    fn write(&self, call: &mut Call<'_>, write: Write<'_>) -> Result<Written, Errno> {
        match write_file(self, call, &write)? {
            WriteEnd::WhereAsked => {}
            WriteEnd::Elsewhere => call.span.stale = Some(call.request.node),
        }
        Ok(Written(write.data.len() as u32))
    }

    fn flush(
        &self,
        call: &mut Call<'_>,
        handle: HandleNumber,
        owner: LockOwner,
    ) -> Result<(), Errno> {
        // What a write took, it keeps: errors of space came from there.
        if let Some(locks) = &self.locks {
            let node = self.lock_node(call.request.node, handle);
            self.before_unlock(node);
            locks.flush(node, handle, owner);
        }
        let node = call.request.node;
        // But what a constraint refused later is told now.
        (self.files.find(handle)?.check_refused())
            .map_err(|error| errno(&error, format_args!("close {node}")))
    }

    fn release(&self, call: &mut Call<'_>, release: Release) -> Result<(), Errno> {
        if let Some(locks) = &self.locks {
            let node = self.lock_node(call.request.node, release.handle);
            self.before_unlock(node);
            locks.release(node, release.handle, release.flock_owner);
        }
        self.close_file(release.handle);
        Ok(())
    }

    fn getlk(&self, call: &mut Call<'_>, lock: LockRequest) -> Result<Lock, Errno> {
        let locks = self.locks.as_ref().ok_or(Errno::ENOSYS)?;
        locks.find(self.lock_node(call.request.node, lock.handle), &lock)
    }

    fn setlk(&self, call: &mut Call<'_>, lock: LockRequest) -> Result<(), Errno> {
        let locks = self.locks.as_ref().ok_or(Errno::ENOSYS)?;
        let file = self.files.find(lock.handle)?;
        let reserved = self.reserve_after_lock(call, &lock)?;
        self.before_lock(file.lock_node, &lock);
        locks.set(file.lock_node, &lock, file.is_flushed)?;
        self.after_lock(reserved)
    }

    fn setlkw(&self, call: &mut Call<'_>, lock: LockRequest) -> Result<(), Errno> {
        let locks = self.locks.as_ref().ok_or(Errno::ENOSYS)?;
        let file = self.files.find(lock.handle)?;
        let reserved = self.reserve_after_lock(call, &lock)?;
        self.before_lock(file.lock_node, &lock);
        locks.set_waiting(file.lock_node, &lock, file.is_flushed, |until| {
            call.park(Some(until));
            match call.is_interrupted() {
                true => Err(Errno::EINTR),
                false => Ok(()),
            }
        })?;
        self.after_lock(reserved)
    }

    fn fsync(&self, call: &mut Call<'_>, handle: HandleNumber, _: bool) -> Result<(), Errno> {
        let node = call.request.node;
        (self.files.find(handle)?.sync())
            .map_err(|error| node_errno(&error, format_args!("sync {node}"))) // FUSE-3
    }

    fn ioctl(&self, call: &mut Call<'_>, ioctl: Ioctl<'_>) -> Result<IoctlReply, Errno> {
        control(self, call, &ioctl)
    }

    fn fallocate(&self, call: &mut Call<'_>, range: Fallocate) -> Result<(), Errno> {
        let node = call.request.node;
        let mode = allocate_mode(range.mode)?;
        (self
            .files
            .find(range.handle)?
            .allocate(mode, range.offset, range.len_bytes))
        .map_err(|error| node_errno(&error, format_args!("allocate in {node}")))
    }

    fn lseek(
        &self,
        call: &mut Call<'_>,
        handle: HandleNumber,
        offset: u64,
        whence: i32,
    ) -> Result<u64, Errno> {
        let node = call.request.node;
        if i64::try_from(offset).is_err() {
            return Err(Errno::ENXIO);
        }
        let found = (self.files.find(handle)?.seek(seek_target(whence)?, offset))
            .map_err(|error| node_errno(&error, format_args!("seek in {node}")))?;
        found.ok_or(Errno::ENXIO)
    }

    fn copy_file_range(&self, call: &mut Call<'_>, range: CopyRange) -> Result<u64, Errno> {
        let from = self.files.find(range.from)?;
        let copied = copy(&from, &*self.files.find(range.to)?, &range)?;
        self.note_unseen_read(call, &from);
        Ok(copied)
    }

    // ---- directories ----------------------------------------------------------------------

    fn opendir(&self, call: &mut Call<'_>, _: OpenFlags) -> Result<Opened, Errno> {
        let node = node_of(call.request.node);
        self.freshen()?;
        let held = (self.database.hold(node))
            .map_err(|error| node_errno(&error, format_args!("open {}", call.request.node)))?;
        let handle = self.directories.insert(OpenDirectory::new(held));
        let flags = match is_changing(node) {
            true => FopenFlags::NONE,
            // It stays cached until the kernel knows of a change, its own or one that is told.
            false => self.listing_flags(),
        };
        Ok(Opened::new(handle, flags))
    }

    fn readdir(
        &self,
        call: &mut Call<'_>,
        handle: HandleNumber,
        offset: u64,
        listing: &mut DirectoryReply<'_, '_>,
    ) -> Result<(), Errno> {
        self.note_looked(call.request.node, true);
        list(
            self,
            (call.request.node, handle),
            offset,
            false,
            |listed, next| {
                let has_room = match listed {
                    Listed::Dot(name, number) => {
                        listing.add(name.as_bytes(), number, FileType::Directory, next)
                    }
                    Listed::Entry(entry) => {
                        let number = node_number(entry.node)?;
                        listing.add(entry.name.as_bytes(), number, file_type(entry.kind), next)
                    }
                };
                Ok(!has_room)
            },
        )
    }

    fn readdirplus(
        &self,
        call: &mut Call<'_>,
        handle: HandleNumber,
        offset: u64,
        listing: &mut DirectoryPlusReply<'_, '_>,
    ) -> Result<(), Errno> {
        let node = call.request.node;
        self.note_looked(node, true);
        list(
            self,
            (node, handle),
            offset,
            true,
            |listed, next| match listed {
                Listed::Dot(name, number) => {
                    Ok(!listing.add_bare(name.as_bytes(), number, FileType::Directory, next))
                }
                // Its attributes would open the past of each.
                Listed::Entry(entry) if is_changing(node_of(node)) => {
                    let (name, number) = (entry.name.as_bytes(), node_number(entry.node)?);
                    Ok(!listing.add_bare(name, number, file_type(entry.kind), next))
                }
                Listed::Entry(entry) => match self.database.attr(entry.node) {
                    Ok(attr) => {
                        let attr = self.shown(&attr)?;
                        let name = entry.name.as_bytes();
                        let (generation, ttl) = (self.generation(&attr), self.attr_ttl(attr.node));
                        let has_room = listing.add(name, &attr, generation, ttl, next);
                        if has_room {
                            self.known.add(node, &entry.name, attr.node);
                        }
                        Ok(!has_room)
                    }
                    // Removed after it was listed.
                    Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
                    Err(error) => {
                        let what = format_args!("list '{}' in {node}", entry.name);
                        Err(node_errno(&error, what))
                    }
                },
            },
        )
    }

    fn releasedir(&self, _: &mut Call<'_>, release: Release) -> Result<(), Errno> {
        self.directories.remove(release.handle);
        Ok(())
    }

    fn fsyncdir(&self, call: &mut Call<'_>, _: HandleNumber, _: bool) -> Result<(), Errno> {
        let node = call.request.node;
        (self.database.sync()) // FUSE-3
            .map_err(|error| errno(&error, format_args!("sync directory {node}")))
    }

    fn syncfs(&self, _: &mut Call<'_>) -> Result<(), Errno> {
        (self.database.sync()).map_err(|error| errno(&error, "syncfs")) // FUSE-3
    }
}

/// Whether nothing is to change but the change time. That is how `chown` without a new owner
/// arrives, and what the kernel sends before a write that takes set-id bits.
fn is_empty(change: &SetAttr) -> bool {
    let rest = SetAttr {
        handle: None,
        lock_owner: None,
        ctime_ns: None,
        ..*change
    };
    rest == SetAttr::default()
}

/// A name that may be stored: without a kernel that enforces them, no access control lists.
fn xattr_name<'n>(bridge: &Bridge, name: &'n [u8]) -> Result<&'n [u8], Errno> {
    if name.starts_with(b"system.") && !bridge.has_acls {
        return Err(Errno::EOPNOTSUPP);
    }
    Ok(name)
}

/// There is no such name, and the kernel may remember that.
fn absent(bridge: &Bridge, call: &mut Call<'_>, name: &Name) -> Result<Entry, Errno> {
    if is_changing(node_of(call.request.node)) || bridge.ttl().is_zero() {
        return Err(Errno::ENOENT);
    }
    let ticket = call.span.ticket.as_ref().ok_or(Errno::ENOENT)?;
    if !bridge.known.add_absent(ticket, call.request.node, name) {
        bridge.changes.absent();
        return Err(Errno::ENOENT);
    }
    call.span.is_absent = true;
    Ok(Entry {
        attr: None,
        generation: 0,
        entry_ttl: bridge.ttl(),
        attr_ttl: bridge.ttl(),
    })
}

/// The attributes of an open file through its handle, which may be the last that holds it.
fn attr_of(
    bridge: &Bridge,
    node: NodeNumber,
    handle: Option<HandleNumber>,
) -> Result<AttrReply, Errno> {
    bridge.freshen()?;
    let handle = handle.filter(|_| slot_of_number(node).is_none()); // FUSE-13
    let attr = match handle.map(|handle| bridge.files.find(handle)) {
        Some(Ok(file)) => file
            .metadata()
            .and_then(|attr| bridge.database.limited(attr)),
        Some(Err(_)) | None => bridge.database.attr(node_of(node)),
    };
    attr_reply(bridge, attr, "attributes of", node)
}

fn attr_reply(
    bridge: &Bridge,
    attr: Result<Metadata, Error>,
    what: &str,
    node: NodeNumber,
) -> Result<AttrReply, Errno> {
    let attr = attr.map_err(|error| node_errno(&error, format_args!("{what} {node}")))?;
    Ok(AttrReply {
        attr: bridge.shown(&attr)?,
        ttl: bridge.attr_ttl(node),
    })
}
