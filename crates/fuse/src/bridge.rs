//! The calls behind the handlers: everything that takes more than one step, with errno for
//! failures.

mod access;
mod company;
mod listing;
mod transfer;

use crate::access::Access;
use crate::company::StaleNames;
use crate::convert::{generation, name_of, node_attr, node_of, slot_of_number};
use crate::errno::{errno, node_errno};
use crate::handles::{OpenDirectory, Table};
use crate::history::is_changing;
use crate::idmap::{IdMap, Ids, NewOwner};
use crate::kept::Kept;
use crate::known::{Known, Ticket};
use crate::locks::Locks;
use crate::notify::Changes;
use crate::options::MountOptions;
use crate::shared_memory::{self, Share, SharedMemory};
use crate::streams::{Streams, Way};
use crate::tree::Tree;
use crate::watch::{Watch, Watched};
use larder::{
    Caller, Error, ErrorKind, InodeFlags, Metadata, Name, NewNode, NodeId, SetAttr, SpaceReport,
};
use larder_fuse_protocol::{
    Entry, Errno, FopenFlags, HandleNumber, Make, NodeNumber, Notifier, OpenFlags, Opened, Request,
};
pub(crate) use listing::{Listed, list};
use std::borrow::Cow;
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};
pub(crate) use transfer::{WriteEnd, copy, read_full, write_file};

/// Most bytes of a write request, and of a read: 256 pages, the kernel's own limit.
pub(crate) const REQUEST_BYTES_MAX: u32 = 1 << 20;
/// Reads ahead and other requests without a waiter that the kernel keeps in flight.
pub(crate) const BACKGROUND_COUNT_MAX: u16 = 64;
/// How long the kernel trusts a name that stands for a moment: a path is walked through it for each
/// file.
const MOMENT_TTL: Duration = Duration::from_secs(1);
/// How old an answer of `statfs` may be.
const SPACE_AGE_MAX: Duration = Duration::from_secs(1);

/// A regular file behind the Content API.
pub(crate) type File = Box<dyn larder::FileHandle>;

/// Attributes whose values are ACLs begin so.
const ACL_PREFIX: &[u8] = b"system.posix_acl_";

/// An open regular file.
pub(crate) struct OpenFile {
    file: File,
    /// Given back to [`Streams::close`].
    pub(crate) way: Way,
    /// The kernel tells each close of a descriptor of it.
    pub(crate) is_flushed: bool,
    /// Under which locks of programs on it are kept.
    pub(crate) lock_node: NodeNumber,
    /// It is the shared memory of a SQLite database.
    share: Mutex<Option<Share>>,
    /// As it was opened.
    pub(crate) flags: OpenFlags,
    /// By way of it the kernel got pages.
    pub(crate) has_pages: AtomicBool,
}

impl std::ops::Deref for OpenFile {
    type Target = File;

    fn deref(&self) -> &File {
        &self.file
    }
}

/// What goes along with a request until after its reply.
#[derive(Debug, Default)]
pub(crate) struct Span {
    /// For a reply that fills a cache of the kernel.
    pub(crate) ticket: Option<Ticket>,
    /// Something of this node went where the kernel does not know: it is told after the reply.
    pub(crate) stale: Option<NodeNumber>,
    /// The reply says that there is no such name.
    pub(crate) is_absent: bool,
    /// Somebody wants to know of it.
    pub(crate) watched: Option<Watched>,
}

/// A request on its way through a handler.
pub(crate) type Call<'c> = larder_fuse_protocol::Call<'c, Span>;

/// The filesystem of one mount.
pub(crate) struct Bridge {
    pub(crate) database: Tree,
    pub(crate) known: Arc<Known>,
    pub(crate) kept: Arc<Kept>,
    pub(crate) changes: Arc<Changes>,
    pub(crate) stale_names: Arc<StaleNames>,
    pub(crate) cache_ttl: Duration,
    pub(crate) id_map: IdMap,
    pub(crate) access: Arc<Access>,
    /// Idmapped mounts may lie on top.
    pub(crate) allows_idmap: bool,
    pub(crate) watch: Arc<Watch>,
    /// The kernel enforces access control lists.
    pub(crate) has_acls: bool,
    pub(crate) files: Table<OpenFile>,
    pub(crate) streams: Streams,
    /// The kernel does what direct files need.
    pub(crate) may_be_direct: bool,
    /// Locks of programs, unless they are the kernel's business.
    pub(crate) locks: Option<Locks>,
    /// Where something may be written.
    pub(crate) shared_memory: Option<SharedMemory>,
    pub(crate) notifier: Notifier,
    pub(crate) directories: Table<OpenDirectory>,
    space: Mutex<Option<(Instant, SpaceReport)>>,
}

impl Bridge {
    pub(crate) fn new(
        database: Tree,
        known: Arc<Known>,
        (changes, stale_names): (Arc<Changes>, Arc<StaleNames>),
        notifier: Notifier,
        watch: Arc<Watch>,
        options: &MountOptions,
    ) -> Bridge {
        let kept = Arc::new(Kept::new(known.clone(), changes.clone()));
        database.keep_for(&kept);
        Bridge {
            database,
            known,
            kept,
            changes,
            stale_names,
            cache_ttl: options.cache_ttl,
            id_map: options.id_map.clone(),
            access: Arc::new(Access::new(options)),
            allows_idmap: options.allows_idmap,
            watch,
            has_acls: false,
            files: Table::default(),
            streams: Streams::default(),
            may_be_direct: false,
            locks: None,
            shared_memory: None,
            notifier,
            directories: Table::default(),
            space: Mutex::default(),
        }
    }

    /// A reply that names `parent`/`name`; counts the lookup.
    pub(crate) fn entry(
        &self,
        parent: NodeNumber,
        name: &Name,
        attr: &Metadata,
    ) -> Result<Entry, Errno> {
        let attr = self.shown(attr)?;
        self.known.add(parent, name, attr.node);
        Ok(self.entry_of(attr))
    }

    /// The same for a LOOKUP.
    pub(crate) fn looked_up(
        &self,
        parent: NodeNumber,
        name: &Name,
        attr: &Metadata,
    ) -> Result<Entry, Errno> {
        let attr = self.shown(attr)?;
        match self.ttl() {
            // Nothing is given that could be used later.
            Duration::ZERO => self.known.add(parent, name, attr.node),
            _ => self.known.add_looked_up(parent, name, attr.node),
        }
        let entry = self.entry_of(attr);
        Ok(match is_changing(node_of(parent)) {
            true => Entry {
                entry_ttl: self.ttl().min(MOMENT_TTL),
                ..entry
            },
            false => entry,
        })
    }

    /// A LOOKUP by number, of `node` or of its parent: somebody has a file handle of it
    /// (open_by_handle_at(2), NFS).
    pub(crate) fn looked_up_by_number(
        &self,
        node: NodeNumber,
        is_parent: bool,
    ) -> Result<Entry, Errno> {
        // Numbers of the past are given anew, to others, when nobody knows them any more
        // (`FUSE-9`).
        if slot_of_number(node).is_some() && !self.known.knows(node) {
            return Err(Errno::ENOENT);
        }
        let fail = |error: Error| match error.kind() {
            ErrorKind::NotFound => Errno::ENOENT,
            _ => node_errno(&error, format_args!("look up number {node}")),
        };
        let found = match is_parent {
            true => self.database.parent(node_of(node)).map_err(fail)?,
            false => node_of(node),
        };
        let attr = self.database.attr(found).map_err(fail)?;
        // What the kernel holds it does not ask for: this is gone, and only its number is left.
        if attr.nlink == 0 {
            return Err(Errno::ENOENT);
        }
        let attr = self.shown(&attr)?;
        self.known.add_nameless(attr.node);
        Ok(self.entry_of(attr))
    }

    /// A reply that names a node; counts no lookup.
    pub(crate) fn entry_of(&self, attr: larder_fuse_protocol::Attr) -> Entry {
        Entry {
            attr: Some(attr),
            generation: self.generation(&attr),
            entry_ttl: self.ttl(),
            attr_ttl: self.attr_ttl(attr.node),
        }
    }

    /// What is told of a node along with its number (`FUSE-21`).
    pub(crate) fn generation(&self, attr: &larder_fuse_protocol::Attr) -> u64 {
        let moment = self.database.moment_of(node_of(attr.node));
        generation(attr.node, attr.btime_ns, moment)
    }

    /// How long the kernel may trust attributes.
    pub(crate) fn attr_ttl(&self, node: NodeNumber) -> Duration {
        match self.database.follows_present(node_of(node)) {
            true => Duration::ZERO,
            false => self.ttl(),
        }
    }

    /// Attributes from the database as the kernel gets them.
    pub(crate) fn shown(&self, attr: &Metadata) -> Result<larder_fuse_protocol::Attr, Errno> {
        let mut shown = attr.clone();
        self.id_map.show(&mut shown);
        node_attr(&shown)
    }

    /// To whom what the caller makes in the directory of the request belongs, in the database.
    pub(crate) fn owner(&self, request: &Request, make: Make) -> Result<Caller, Errno> {
        let directory = if self.id_map.is_squashed() {
            let node = request.node;
            let attr = (self.database.attr(node_of(node)))
                .map_err(|error| node_errno(&error, format_args!("attributes of {node}")))?;
            (attr.uid, attr.gid)
        } else {
            (request.uid, request.gid)
        };
        let IdMap { users, groups, .. } = &self.id_map;
        match (
            users.owner_of_new(request.uid, directory.0),
            groups.owner_of_new(request.gid, directory.1),
        ) {
            (Some(uid), Some(gid)) => Ok(Caller {
                uid,
                gid,
                umask: make.umask,
            }),
            _ => Err(Errno::EOVERFLOW), // IDMAP-2
        }
    }

    /// New owner and group in the database's numbers, of what a program asks for.
    pub(crate) fn stored_owner(
        &self,
        uid: Option<u32>,
        gid: Option<u32>,
    ) -> Result<(Option<u32>, Option<u32>), Errno> {
        let stored = |ids: &Ids, wanted: Option<u32>| match wanted.map(|id| ids.new_owner(id)) {
            None | Some(NewOwner::Keep) => Ok(None),
            Some(NewOwner::Store(id)) => Ok(Some(id)),
            Some(NewOwner::Unmapped) => Err(Errno::EOVERFLOW),
            Some(NewOwner::Refused) => Err(Errno::EPERM),
        };
        let IdMap { users, groups, .. } = &self.id_map;
        Ok((stored(users, uid)?, stored(groups, gid)?))
    }

    /// The value of an attribute from the database as programs see it: ids in an ACL are
    /// translated.
    pub(crate) fn shown_xattr(&self, name: &[u8], value: Vec<u8>) -> Vec<u8> {
        match name.starts_with(ACL_PREFIX) && !self.id_map.is_identity() {
            true => self.id_map.acl_to_host(&value),
            false => value,
        }
    }

    /// The other way, of an attribute of `node`.
    pub(crate) fn stored_xattr<'v>(
        &self,
        node: NodeNumber,
        name: &[u8],
        value: &'v [u8],
    ) -> Result<Cow<'v, [u8]>, Errno> {
        if !name.starts_with(ACL_PREFIX) || self.id_map.is_identity() {
            return Ok(value.into());
        }
        let old = match self.database.xattr(node_of(node), name) {
            Ok(old) => old,
            Err(error) if error.kind() == ErrorKind::NoAttribute => Vec::new(),
            Err(error) => {
                return Err(node_errno(&error, format_args!("attribute of {node}")));
            }
        };
        let stored = self.id_map.acl_to_database(value, &old);
        Ok(stored.ok_or(Errno::EOVERFLOW)?.into()) // IDMAP-2
    }

    /// Makes a node in the directory of the request, for a reply that names it.
    pub(crate) fn make(
        &self,
        request: &Request,
        name: &[u8],
        new: NewNode<'_>,
        make: Make,
    ) -> Result<Entry, Errno> {
        let parent = request.node;
        let name = name_of(name)?;
        let owner = self.owner(request, make)?;
        let mode = match new {
            NewNode::Directory => make.mode,
            _ => self.id_map.stored_mode(make.mode),
        };
        let attr = (self.database)
            .create_node(node_of(parent), &name, new, mode & 0o7777, owner)
            .map_err(|error| errno(&error, format_args!("make '{name}' in {parent}")))?;
        self.entry(parent, &name, &attr)
    }

    /// Opens a regular file as `flags` ask.
    pub(crate) fn open_file(&self, node: NodeNumber, flags: OpenFlags) -> Result<Opened, Error> {
        let file = self.open_inside(node_of(node), flags)?;
        let mode = file.metadata()?.mode;
        let lock_node = self.database.lock_number(node)?;
        Ok(self.opened((node, lock_node), file, mode, flags))
    }

    /// Opens a regular file in the database.
    pub(crate) fn open_inside(&self, node: NodeId, flags: OpenFlags) -> Result<File, Error> {
        let file = self.database.open_file(node, flags.is_write())?;
        if flags.is_write()
            && !flags.has(libc::O_APPEND)
            && file.metadata()?.flags.has(InodeFlags::APPEND)
        {
            let why = "it is append-only; open it with O_APPEND";
            return Err(Error::new(ErrorKind::NotPermitted, why));
        }
        Ok(file)
    }

    /// A file is about to be opened that has a name which ends so, or is `named` so; `EBUSY`: see
    /// `shared_memory`.
    pub(crate) fn share(
        &self,
        node: NodeNumber,
        named: Option<&Name>,
        write: bool,
    ) -> Result<Option<Share>, Errno> {
        let suffix = shared_memory::SUFFIX;
        let is_it = match named {
            Some(name) => name.as_bytes().ends_with(suffix),
            None => self.known.has_name_ending(node, suffix),
        };
        let shared = self
            .shared_memory
            .as_ref()
            .filter(|_| is_it && slot_of_number(node).is_none());
        shared.map_or(Ok(None), |shared| shared.enter(node, write))
    }

    /// The open file is given back what [`Bridge::share`] gave, when it is closed.
    pub(crate) fn keep_share(&self, handle: HandleNumber, share: Option<Share>) {
        if let (Some(share), Ok(file)) = (share, self.files.find(handle)) {
            *file.share.lock().unwrap_or_else(PoisonError::into_inner) = Some(share);
        }
    }

    pub(crate) fn leave_share(&self, share: Option<Share>) {
        if let (Some(share), Some(shared)) = (share, &self.shared_memory) {
            shared.close(share);
        }
    }

    pub(crate) fn opened(
        &self,
        (node, lock_node): (NodeNumber, NodeNumber),
        file: File,
        mode: u32,
        flags: OpenFlags,
    ) -> Opened {
        // The kernel takes set-id bits before a write by way of the page cache, and would not learn
        // that a direct one has taken them.
        let is_plain = self.may_be_direct && mode & (libc::S_ISUID | libc::S_ISGID) == 0;
        let way = self.streams.open(node, flags, is_plain);
        // Who locks bytes opens for both, as databases do (see `locks`).
        let is_flushed = self.locks.is_some() && flags.flags & libc::O_ACCMODE == libc::O_RDWR;
        // Close has nothing to ask for, unless there may be locks.
        let all = FopenFlags::NOFLUSH | self.page_flags() | way.flags();
        let fopen_flags = match is_flushed || file.may_be_refused() {
            true => all.difference(FopenFlags::NOFLUSH),
            false => all,
        };
        let open = OpenFile {
            file,
            way,
            is_flushed,
            lock_node,
            share: Mutex::default(),
            flags,
            has_pages: AtomicBool::new(false),
        };
        Opened::new(self.files.insert(open), fopen_flags)
    }

    /// Under which number locks on an open file are kept.
    pub(crate) fn lock_node(&self, node: NodeNumber, handle: HandleNumber) -> NodeNumber {
        (self.files.find(handle)).map_or(node, |file| file.lock_node)
    }

    /// Closes a regular file.
    pub(crate) fn close_file(&self, handle: HandleNumber) {
        if let Some(open) = self.files.remove(handle) {
            self.streams.close(&open.way);
            let share = open
                .share
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .take();
            self.leave_share(share);
        }
    }

    /// Changes attributes; the length through the handle: it may be the last that has the file.
    pub(crate) fn set_attr(
        &self,
        node: NodeNumber,
        handle: Option<HandleNumber>,
        mut change: SetAttr,
    ) -> Result<Metadata, Error> {
        if let Some(size_bytes) = change.size_bytes
            && let Some(Ok(file)) = handle.map(|handle| self.files.find(handle))
        {
            if let Some(attr) = file.truncate(size_bytes, &change)? {
                return Ok(attr);
            }
            if std::mem::take(&mut change.drop_set_id) {
                file.drop_set_id()?;
            }
            file.set_len(size_bytes)?;
            change.size_bytes = None;
            if change == SetAttr::default() {
                return file.metadata();
            }
        }
        self.database.set_attr(node_of(node), &change)
    }

    /// How full the database is, at most [`SPACE_AGE_MAX`] ago.
    pub(crate) fn space_report(&self) -> Result<SpaceReport, Error> {
        let mut space = self.space.lock().unwrap_or_else(PoisonError::into_inner);
        match &*space {
            Some((at, report)) if at.elapsed() < SPACE_AGE_MAX => Ok(report.clone()),
            _ => {
                let report = self.database.space()?;
                *space = Some((Instant::now(), report.clone()));
                Ok(report)
            }
        }
    }
}

impl Drop for Bridge {
    fn drop(&mut self) {
        // Before the handles are closed: of none of them is anything kept then.
        for node in self.kept.end() {
            self.database.let_go(node_of(node));
        }
    }
}
