//! A filesystem in memory: how fast a FUSE filesystem can be that does nothing else.
//!
//! It is the floor of the benchmarks, and what the tests of this crate mount. Names, attributes and
//! content of files live in maps; nothing is durable, and permissions are the kernel's business.
//! What is negotiated and how long the kernel may believe what it is told are those of the real
//! mount.
//!
//! Locks: one node at a time, but a listing holds its directory while it looks at what is listed;
//! the kernel keeps two changes of one directory apart.

use crate::arguments::{GetAttr, GetStatx, Make, OpenFlags, Read, Release, Rename, SetAttr, Write};
use crate::call::{Call, Outcome};
use crate::errno::Errno;
use crate::filesystem::Filesystem;
use crate::flags::{FopenFlags, InitFlags};
use crate::reply::{DirectoryPlusReply, DirectoryReply};
use crate::request::Request;
use crate::values::{
    Attr, AttrReply, Entry, FileType, HandleNumber, LockOwner, NodeNumber, Opened, Statfs,
    StatxReply, TimeOrNow, Written,
};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasherDefault, Hasher};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// How long the kernel may believe names and attributes.
const TTL: Duration = Duration::from_secs(3600);
/// What the kernel shall do with open files.
const OPEN_FLAGS: FopenFlags = FopenFlags::KEEP_CACHE.union(FopenFlags::NOFLUSH);
/// And with their listings.
const DIRECTORY_FLAGS: FopenFlags = FopenFlags::KEEP_CACHE.union(FopenFlags::CACHE_DIR);
/// Parts of the table of nodes, so that workers seldom meet.
const SHARD_COUNT: usize = 64;
const BLOCK_BYTES: u32 = 4096;

/// See the module. The root belongs to who made it, mode 0755.
#[derive(Debug)]
pub struct MemoryFilesystem {
    shards: Vec<RwLock<Shard>>,
    next: AtomicU64,
}

type Shard = HashMap<u64, Arc<Node>, BuildHasherDefault<NumberHasher>>;

#[derive(Debug)]
struct Node {
    number: NodeNumber,
    /// Lookups that the kernel has not given up.
    lookup_count: AtomicU64,
    state: RwLock<State>,
}

#[derive(Debug)]
struct State {
    attr: Attr,
    content: Content,
}

#[derive(Debug)]
enum Content {
    File(Vec<u8>),
    Directory(Directory),
    Symlink(Vec<u8>),
    Special,
}

/// Names by their bytes, and by the order in which they came, which is their offset in a listing.
#[derive(Debug)]
struct Directory {
    parent: NodeNumber,
    by_name: HashMap<Arc<[u8]>, u64>,
    by_place: BTreeMap<u64, Line>,
    next_place: u64,
}

#[derive(Debug, Clone)]
struct Line {
    name: Arc<[u8]>,
    node: NodeNumber,
    kind: FileType,
}

/// Places 0 and 1 are `.` and `..`.
const FIRST_PLACE: u64 = 2;

impl Default for MemoryFilesystem {
    fn default() -> MemoryFilesystem {
        let filesystem = MemoryFilesystem {
            shards: (0..SHARD_COUNT).map(|_| RwLock::default()).collect(),
            next: AtomicU64::new(NodeNumber::ROOT.0),
        };
        let root = filesystem.add_node(
            FileType::Directory,
            0o755,
            (
                rustix::process::getuid().as_raw(),
                rustix::process::getgid().as_raw(),
            ),
            0,
            Content::Directory(Directory::new(NodeNumber::ROOT)),
        );
        // Known from the start, and for ever.
        root.lookup_count.store(1, Ordering::Relaxed);
        filesystem
    }
}

impl MemoryFilesystem {
    fn shard(&self, number: u64) -> &RwLock<Shard> {
        &self.shards[number as usize % SHARD_COUNT]
    }

    fn find(&self, number: NodeNumber) -> Result<Arc<Node>, Errno> {
        let shard = self.shard(number.0).read();
        let shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.get(&number.0).cloned().ok_or(Errno::ESTALE)
    }

    fn add_node(
        &self,
        kind: FileType,
        permissions: u32,
        (uid, gid): (u32, u32),
        rdev: u32,
        content: Content,
    ) -> Arc<Node> {
        let number = NodeNumber(self.next.fetch_add(1, Ordering::Relaxed));
        let now = now_ns();
        let attr = Attr {
            node: number,
            size_bytes: 0,
            blocks: 0,
            atime_ns: now,
            mtime_ns: now,
            ctime_ns: now,
            btime_ns: now,
            kind,
            permissions: permissions & 0o7777,
            nlink: if kind == FileType::Directory { 2 } else { 1 },
            uid,
            gid,
            rdev,
            block_bytes: BLOCK_BYTES,
        };
        let node = Arc::new(Node {
            number,
            lookup_count: AtomicU64::new(0),
            state: RwLock::new(State { attr, content }),
        });
        let shard = self.shard(number.0).write();
        let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
        shard.insert(number.0, node.clone());
        node
    }

    /// Drops a node that has neither a name nor a lookup.
    fn drop_unused(&self, node: &Node) {
        let is_nameless = node.read().attr.nlink == 0;
        if is_nameless && node.lookup_count.load(Ordering::SeqCst) == 0 {
            let shard = self.shard(node.number.0).write();
            let mut shard = shard.unwrap_or_else(PoisonError::into_inner);
            let dropped = shard.remove(&node.number.0);
            drop(shard);
            drop(dropped);
        }
    }

    fn make(
        &self,
        call: &Call<'_, ()>,
        name: &[u8],
        (kind, permissions, rdev): (FileType, u32, u32),
        content: Content,
    ) -> Result<Entry, Errno> {
        let parent = self.find(call.request.node)?;
        let owner = (call.request.uid, call.request.gid);
        // Two callers may make one name: the kernel locks the directory against that.
        if parent.read().directory()?.by_name.contains_key(name) {
            return Err(Errno::EEXIST);
        }
        let node = self.add_node(kind, permissions, owner, rdev, content);
        let mut state = parent.write();
        state.directory_mut()?.put(name, node.number, kind);
        state.changed(if kind == FileType::Directory { 1 } else { 0 });
        drop(state);
        Ok(node.entry())
    }

    fn take(&self, parent: NodeNumber, name: &[u8], wants_directory: bool) -> Result<(), Errno> {
        let parent = self.find(parent)?;
        let line = parent.read().directory()?.line(name)?.clone();
        let is_directory = line.kind == FileType::Directory;
        match (wants_directory, is_directory) {
            (true, false) => return Err(Errno::ENOTDIR),
            (false, true) => return Err(Errno::EISDIR),
            _ => {}
        }
        let node = self.find(line.node)?;
        if is_directory && !node.read().directory()?.by_name.is_empty() {
            return Err(Errno::ENOTEMPTY);
        }
        let mut state = parent.write();
        state.directory_mut()?.remove(name);
        state.changed(if is_directory { -1 } else { 0 });
        drop(state);
        node.lose_name(is_directory);
        self.drop_unused(&node);
        Ok(())
    }
}

impl Node {
    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }

    /// An entry for a reply; counts the lookup.
    fn entry(&self) -> Entry {
        self.lookup_count.fetch_add(1, Ordering::SeqCst);
        Entry {
            attr: Some(self.read().attr),
            generation: 0,
            entry_ttl: TTL,
            attr_ttl: TTL,
        }
    }

    fn lose_name(&self, is_directory: bool) {
        let mut state = self.write();
        let names = if is_directory { 2 } else { 1 };
        state.attr.nlink = state.attr.nlink.saturating_sub(names);
        state.attr.ctime_ns = now_ns();
    }
}

impl State {
    fn directory(&self) -> Result<&Directory, Errno> {
        match &self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn directory_mut(&mut self) -> Result<&mut Directory, Errno> {
        match &mut self.content {
            Content::Directory(directory) => Ok(directory),
            _ => Err(Errno::ENOTDIR),
        }
    }

    fn file_mut(&mut self) -> Result<&mut Vec<u8>, Errno> {
        match &mut self.content {
            Content::File(bytes) => Ok(bytes),
            _ => Err(Errno::EINVAL),
        }
    }

    /// A name came or went; with a directory the number of links changes.
    fn changed(&mut self, directories: i32) {
        self.attr.nlink = self.attr.nlink.saturating_add_signed(directories);
        self.attr.mtime_ns = now_ns();
        self.attr.ctime_ns = self.attr.mtime_ns;
    }

    fn set_len(&mut self, len_bytes: u64) -> Result<(), Errno> {
        resize(self.file_mut()?, len_bytes)?;
        self.sized();
        Ok(())
    }

    /// The length is that of the content.
    fn sized(&mut self) {
        if let Content::File(bytes) | Content::Symlink(bytes) = &self.content {
            self.attr.size_bytes = bytes.len() as u64;
            self.attr.blocks = self.attr.size_bytes.div_ceil(512);
        }
        self.attr.mtime_ns = now_ns();
        self.attr.ctime_ns = self.attr.mtime_ns;
    }
}

/// Writers alone go past the page cache, as on the real mount.
fn opened(node: NodeNumber, open: OpenFlags) -> Opened {
    let flags = match open.flags & libc::O_ACCMODE == libc::O_WRONLY {
        true => OPEN_FLAGS | FopenFlags::DIRECT_IO,
        false => OPEN_FLAGS,
    };
    Opened::new(HandleNumber(node.0), flags)
}

/// Sets the length of a file; `ENOSPC` when there is no memory for it.
fn resize(bytes: &mut Vec<u8>, len_bytes: u64) -> Result<(), Errno> {
    let len_bytes = usize::try_from(len_bytes).map_err(|_| Errno::EFBIG)?;
    let more = len_bytes.saturating_sub(bytes.len());
    bytes.try_reserve(more).map_err(|_| Errno::ENOSPC)?;
    bytes.resize(len_bytes, 0);
    Ok(())
}

impl Directory {
    fn new(parent: NodeNumber) -> Directory {
        Directory {
            parent,
            by_name: HashMap::new(),
            by_place: BTreeMap::new(),
            next_place: FIRST_PLACE,
        }
    }

    fn line(&self, name: &[u8]) -> Result<&Line, Errno> {
        let place = self.by_name.get(name).ok_or(Errno::ENOENT)?;
        self.by_place.get(place).ok_or(Errno::ENOENT)
    }

    fn put(&mut self, name: &[u8], node: NodeNumber, kind: FileType) {
        let name: Arc<[u8]> = name.into();
        let place = self.next_place;
        self.next_place += 1;
        self.by_name.insert(name.clone(), place);
        self.by_place.insert(place, Line { name, node, kind });
    }

    fn remove(&mut self, name: &[u8]) -> Option<Line> {
        let place = self.by_name.remove(name)?;
        self.by_place.remove(&place)
    }
}

fn now_ns() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH);
    since.map_or(0, |since| since.as_nanos() as i64)
}

impl Filesystem for MemoryFilesystem {
    type Span = ();

    fn init(&mut self, _: InitFlags) -> InitFlags {
        InitFlags::ASYNC_READ
            | InitFlags::PARALLEL_DIROPS
            | InitFlags::DO_READDIRPLUS
            | InitFlags::READDIRPLUS_AUTO
            | InitFlags::ASYNC_DIO
            | InitFlags::CACHE_SYMLINKS
    }

    fn begin(&self, _: &Request) {}

    fn end(&self, _: Call<'_, ()>, _: &Outcome) {}

    fn lookup(&self, call: &mut Call<'_, ()>, name: &[u8]) -> Result<Entry, Errno> {
        let parent = self.find(call.request.node)?;
        let number = parent.read().directory()?.line(name)?.node;
        Ok(self.find(number)?.entry())
    }

    fn forget(&self, _: &mut Call<'_, ()>, node: NodeNumber, count: u64) {
        if let Ok(node) = self.find(node) {
            node.lookup_count.fetch_sub(count, Ordering::SeqCst);
            self.drop_unused(&node);
        }
    }

    fn getattr(&self, call: &mut Call<'_, ()>, _: GetAttr) -> Result<AttrReply, Errno> {
        let attr = self.find(call.request.node)?.read().attr;
        Ok(AttrReply { attr, ttl: TTL })
    }

    fn statx(&self, call: &mut Call<'_, ()>, _: GetStatx) -> Result<StatxReply, Errno> {
        let attr = self.find(call.request.node)?.read().attr;
        Ok(StatxReply { attr, ttl: TTL })
    }

    fn setattr(&self, call: &mut Call<'_, ()>, change: SetAttr) -> Result<AttrReply, Errno> {
        let node = self.find(call.request.node)?;
        let mut state = node.write();
        if let Some(size_bytes) = change.size_bytes {
            state.set_len(size_bytes)?;
        }
        let now = now_ns();
        let at = |time| match time {
            TimeOrNow::Now => now,
            TimeOrNow::At(time_ns) => time_ns,
        };
        let attr = &mut state.attr;
        attr.permissions = change.mode.map_or(attr.permissions, |mode| mode & 0o7777);
        attr.uid = change.uid.unwrap_or(attr.uid);
        attr.gid = change.gid.unwrap_or(attr.gid);
        attr.atime_ns = change.atime.map_or(attr.atime_ns, at);
        attr.mtime_ns = change.mtime.map_or(attr.mtime_ns, at);
        attr.ctime_ns = change.ctime_ns.unwrap_or(now);
        Ok(AttrReply {
            attr: *attr,
            ttl: TTL,
        })
    }

    fn readlink(&self, call: &mut Call<'_, ()>) -> Result<Vec<u8>, Errno> {
        match &self.find(call.request.node)?.read().content {
            Content::Symlink(target) => Ok(target.clone()),
            _ => Err(Errno::EINVAL),
        }
    }

    fn symlink(&self, call: &mut Call<'_, ()>, name: &[u8], target: &[u8]) -> Result<Entry, Errno> {
        let content = Content::Symlink(target.to_vec());
        let mut entry = self.make(call, name, (FileType::Symlink, 0o777, 0), content)?;
        if let Some(attr) = &mut entry.attr {
            let node = self.find(attr.node)?;
            node.write().sized();
            *attr = node.read().attr;
        }
        Ok(entry)
    }

    fn mknod(&self, call: &mut Call<'_, ()>, name: &[u8], make: Make) -> Result<Entry, Errno> {
        let kind = FileType::of_mode(make.mode).ok_or(Errno::EINVAL)?;
        let content = match kind {
            FileType::RegularFile => Content::File(Vec::new()),
            FileType::Directory | FileType::Symlink => return Err(Errno::EINVAL),
            _ => Content::Special,
        };
        self.make(call, name, (kind, make.mode, make.rdev), content)
    }

    fn mkdir(&self, call: &mut Call<'_, ()>, name: &[u8], make: Make) -> Result<Entry, Errno> {
        let content = Content::Directory(Directory::new(call.request.node));
        self.make(call, name, (FileType::Directory, make.mode, 0), content)
    }

    fn unlink(&self, call: &mut Call<'_, ()>, name: &[u8]) -> Result<(), Errno> {
        self.take(call.request.node, name, false)
    }

    fn rmdir(&self, call: &mut Call<'_, ()>, name: &[u8]) -> Result<(), Errno> {
        self.take(call.request.node, name, true)
    }

    fn rename(&self, _: &mut Call<'_, ()>, rename: Rename<'_>) -> Result<(), Errno> {
        if rename.flags & !libc::RENAME_NOREPLACE != 0 {
            return Err(Errno::EINVAL);
        }
        let from = self.find(rename.parent)?;
        let line = from.read().directory()?.line(rename.name)?.clone();
        let is_directory = line.kind == FileType::Directory;
        let to = self.find(rename.new_parent)?;
        let replaced = to.read().directory()?.line(rename.new_name).cloned();
        if let Ok(replaced) = &replaced {
            if rename.flags & libc::RENAME_NOREPLACE != 0 {
                return Err(Errno::EEXIST);
            }
            if replaced.node == line.node {
                return Ok(());
            }
            self.take(rename.new_parent, rename.new_name, is_directory)?;
        }
        let mut state = from.write();
        state.directory_mut()?.remove(rename.name);
        state.changed(if is_directory { -1 } else { 0 });
        drop(state);
        let mut state = to.write();
        (state.directory_mut()?).put(rename.new_name, line.node, line.kind);
        state.changed(if is_directory { 1 } else { 0 });
        drop(state);
        if is_directory {
            let node = self.find(line.node)?;
            node.write().directory_mut()?.parent = rename.new_parent;
        }
        Ok(())
    }

    fn link(&self, call: &mut Call<'_, ()>, node: NodeNumber, name: &[u8]) -> Result<Entry, Errno> {
        let node = self.find(node)?;
        let parent = self.find(call.request.node)?;
        let kind = {
            let mut state = node.write();
            state.attr.nlink += 1;
            state.attr.ctime_ns = now_ns();
            state.attr.kind
        };
        let mut state = parent.write();
        state.directory_mut()?.put(name, node.number, kind);
        state.changed(0);
        drop(state);
        Ok(node.entry())
    }

    fn open(&self, call: &mut Call<'_, ()>, open: OpenFlags) -> Result<Opened, Errno> {
        Ok(opened(call.request.node, open))
    }

    fn create(
        &self,
        call: &mut Call<'_, ()>,
        name: &[u8],
        make: Make,
        open: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        let content = Content::File(Vec::new());
        let entry = self.make(call, name, (FileType::RegularFile, make.mode, 0), content)?;
        let node = entry.attr.map_or(call.request.node, |attr| attr.node);
        Ok((entry, opened(node, open)))
    }

    fn read(&self, call: &mut Call<'_, ()>, read: Read, buffer: &mut [u8]) -> Result<usize, Errno> {
        let node = self.find(call.request.node)?;
        let state = node.read();
        let Content::File(bytes) = &state.content else {
            return Err(Errno::EINVAL);
        };
        let from = usize::try_from(read.offset).map_or(bytes.len(), |at| at.min(bytes.len()));
        let left = &bytes[from..];
        let len_bytes = left.len().min(buffer.len());
        buffer[..len_bytes].copy_from_slice(&left[..len_bytes]);
        Ok(len_bytes)
    }

    fn write(&self, call: &mut Call<'_, ()>, write: Write<'_>) -> Result<Written, Errno> {
        let node = self.find(call.request.node)?;
        let mut state = node.write();
        let bytes = state.file_mut()?;
        let at = match write.flags & libc::O_APPEND != 0 && !write.is_from_cache {
            true => bytes.len(),
            false => usize::try_from(write.offset).map_err(|_| Errno::EFBIG)?,
        };
        let end = at.checked_add(write.data.len()).ok_or(Errno::EFBIG)?;
        if at == bytes.len() {
            let room = bytes.try_reserve(write.data.len());
            room.map_err(|_| Errno::ENOSPC)?;
            bytes.extend_from_slice(write.data);
        } else {
            if end > bytes.len() {
                resize(bytes, end as u64)?;
            }
            bytes[at..end].copy_from_slice(write.data);
        }
        state.sized();
        Ok(Written(write.data.len() as u32))
    }

    fn flush(&self, _: &mut Call<'_, ()>, _: HandleNumber, _: LockOwner) -> Result<(), Errno> {
        Ok(())
    }

    fn release(&self, _: &mut Call<'_, ()>, _: Release) -> Result<(), Errno> {
        Ok(())
    }

    fn fsync(&self, _: &mut Call<'_, ()>, _: HandleNumber, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn opendir(&self, call: &mut Call<'_, ()>, _: OpenFlags) -> Result<Opened, Errno> {
        let handle = HandleNumber(call.request.node.0);
        Ok(Opened::new(handle, DIRECTORY_FLAGS))
    }

    fn readdir(
        &self,
        call: &mut Call<'_, ()>,
        _: HandleNumber,
        offset: u64,
        listing: &mut DirectoryReply<'_, '_>,
    ) -> Result<(), Errno> {
        let node = self.find(call.request.node)?;
        let state = node.read();
        let directory = state.directory()?;
        let dots = [(b"." as &[u8], node.number), (b"..", directory.parent)];
        for (place, (name, number)) in dots.into_iter().enumerate().skip(offset as usize) {
            if !listing.add(name, number, FileType::Directory, place as u64 + 1) {
                return Ok(());
            }
        }
        for (place, line) in directory.by_place.range(offset.max(FIRST_PLACE)..) {
            if !listing.add(&line.name, line.node, line.kind, place + 1) {
                break;
            }
        }
        Ok(())
    }

    fn readdirplus(
        &self,
        call: &mut Call<'_, ()>,
        _: HandleNumber,
        offset: u64,
        listing: &mut DirectoryPlusReply<'_, '_>,
    ) -> Result<(), Errno> {
        let node = self.find(call.request.node)?;
        let state = node.read();
        let directory = state.directory()?;
        let dots = [(b"." as &[u8], node.number), (b"..", directory.parent)];
        for (place, (name, number)) in dots.into_iter().enumerate().skip(offset as usize) {
            if !listing.add_bare(name, number, FileType::Directory, place as u64 + 1) {
                return Ok(());
            }
        }
        for (place, line) in directory.by_place.range(offset.max(FIRST_PLACE)..) {
            let child = self.find(line.node)?;
            let attr = child.read().attr;
            if !listing.add(&line.name, &attr, 0, TTL, place + 1) {
                break;
            }
            child.lookup_count.fetch_add(1, Ordering::SeqCst);
        }
        Ok(())
    }

    fn fsyncdir(&self, _: &mut Call<'_, ()>, _: HandleNumber, _: bool) -> Result<(), Errno> {
        Ok(())
    }

    fn statfs(&self, _: &mut Call<'_, ()>) -> Result<Statfs, Errno> {
        const BLOCKS: u64 = 1 << 28;
        Ok(Statfs {
            blocks: BLOCKS,
            free_blocks: BLOCKS,
            available_blocks: BLOCKS,
            files: BLOCKS,
            free_files: BLOCKS,
            block_bytes: BLOCK_BYTES,
            name_bytes_max: 255,
        })
    }
}

/// Numbers in a row are spread well enough as they are, by a multiplication.
#[derive(Debug, Default, Clone, Copy)]
struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.write_u64(self.0 ^ u64::from(byte));
        }
    }

    fn write_u64(&mut self, number: u64) {
        self.0 = number.wrapping_mul(0x9e37_79b9_7f4a_7c15);
    }
}
