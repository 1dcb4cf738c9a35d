//! A FUSE filesystem that does nothing but pass on to a directory: what the device gives through
//! FUSE.
//!
//! Where the kernel has it (Linux 6.9, root), it reads and writes the files of the directory itself
//! (`FOPEN_PASSTHROUGH`); else every read and write comes here. It knows files of one directory, as
//! a program needs them that measures I/O.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use std::time::Duration;

use larder_fuse_protocol::{
    Attr, AttrReply, Backing, Call, Device, Entry, Errno, FileType, Filesystem, FopenFlags,
    GetAttr, HandleNumber, InitFlags, Make, NodeNumber, OpenFlags, Opened, Outcome, Read, Release,
    Request, SetAttr, Statfs, Write, Written,
};
use rustix::fs::OFlags;

/// How long the kernel may believe names and attributes.
const TTL: Duration = Duration::from_secs(3600);
const BLOCK_BYTES: u32 = 4096;
/// What the root says about who reads and writes.
pub const WAY_XATTR: &str = "user.way";

/// See the module.
pub struct Passthrough {
    device: Device,
    kernel_passes_on: bool,
    state: Mutex<State>,
}

struct State {
    /// By number of the node, from the root on; never forgotten.
    nodes: Vec<Node>,
    /// By number of the handle.
    handles: Vec<Option<Arc<Open>>>,
}

struct Node {
    path: PathBuf,
    /// What the kernel uses in place of this file; one for all that have it open.
    backing: Weak<Backing>,
}

struct Open {
    file: File,
    /// Kept while it is open.
    _backing: Option<Arc<Backing>>,
}

impl Passthrough {
    /// Passes on to `directory`; `device` is that of the mount.
    pub fn new(directory: &Path, device: Device) -> Passthrough {
        let root = Node {
            path: directory.to_owned(),
            backing: Weak::new(),
        };
        Passthrough {
            device,
            kernel_passes_on: false,
            state: Mutex::new(State {
                nodes: vec![root],
                handles: Vec::new(),
            }),
        }
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn path(&self, node: NodeNumber) -> Result<PathBuf, Errno> {
        let state = self.state();
        let node = state.nodes.get(node.0 as usize - 1).ok_or(Errno::ESTALE)?;
        Ok(node.path.clone())
    }

    fn child(&self, call: &Call<'_, ()>, name: &[u8]) -> Result<PathBuf, Errno> {
        Ok(self.path(call.request.node)?.join(OsStr::from_bytes(name)))
    }

    fn entry(&self, path: PathBuf) -> Result<Entry, Errno> {
        let mut state = self.state();
        let known = state.nodes.iter().position(|node| node.path == path);
        let index = known.unwrap_or(state.nodes.len());
        let attr = attr_of(&path, NodeNumber(index as u64 + 1))?;
        if known.is_none() {
            state.nodes.push(Node {
                path,
                backing: Weak::new(),
            });
        }
        Ok(Entry {
            attr: Some(attr),
            generation: 0,
            entry_ttl: TTL,
            attr_ttl: TTL,
        })
    }

    fn open_file(&self, number: NodeNumber, file: File) -> Result<Opened, Errno> {
        let mut state = self.state();
        let node = state
            .nodes
            .get_mut(number.0 as usize - 1)
            .ok_or(Errno::ESTALE)?;
        let mut backing = None;
        if self.kernel_passes_on {
            let known = node.backing.upgrade();
            let shared = match known {
                Some(known) => known,
                None => Arc::new(Backing::open(&self.device, file.as_fd())?),
            };
            node.backing = Arc::downgrade(&shared);
            backing = Some(shared);
        }
        let backing_id = backing.as_ref().map_or(0, |backing| backing.id());
        let handle = HandleNumber(state.handles.len() as u64);
        state.handles.push(Some(Arc::new(Open {
            file,
            _backing: backing,
        })));
        Ok(Opened {
            handle,
            flags: match backing_id {
                0 => FopenFlags::DIRECT_IO | FopenFlags::PARALLEL_DIRECT_WRITES,
                _ => FopenFlags::PASSTHROUGH,
            },
            backing_id,
        })
    }

    fn handle(&self, handle: HandleNumber) -> Result<Arc<Open>, Errno> {
        let state = self.state();
        let open = state.handles.get(handle.0 as usize).cloned().flatten();
        open.ok_or(Errno::EBADF)
    }
}

/// Any file is opened for both: the kernel may use it for those who open it later.
fn options() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    // Whether the page cache is passed by is decided by who opens the file on the mount.
    options.custom_flags(OFlags::CLOEXEC.bits() as i32);
    options
}

fn attr_of(path: &Path, node: NodeNumber) -> Result<Attr, Errno> {
    let found = fs::symlink_metadata(path)?;
    let time_ns = |seconds: i64, nanoseconds: i64| seconds * 1_000_000_000 + nanoseconds;
    Ok(Attr {
        node,
        size_bytes: found.len(),
        blocks: found.blocks(),
        atime_ns: time_ns(found.atime(), found.atime_nsec()),
        mtime_ns: time_ns(found.mtime(), found.mtime_nsec()),
        ctime_ns: time_ns(found.ctime(), found.ctime_nsec()),
        btime_ns: 0,
        kind: FileType::of_mode(found.mode()).ok_or(Errno::EIO)?,
        permissions: found.mode() & 0o7777,
        nlink: found.nlink() as u32,
        uid: found.uid(),
        gid: found.gid(),
        rdev: 0,
        block_bytes: BLOCK_BYTES,
    })
}

impl Filesystem for Passthrough {
    type Span = ();

    fn init(&mut self, offers: InitFlags) -> InitFlags {
        self.kernel_passes_on =
            offers.contains(InitFlags::PASSTHROUGH) && rustix::process::geteuid().is_root();
        let asked = InitFlags::ASYNC_READ | InitFlags::PARALLEL_DIROPS | InitFlags::ASYNC_DIO;
        match self.kernel_passes_on {
            true => asked | InitFlags::PASSTHROUGH,
            false => asked,
        }
    }

    fn begin(&self, _: &Request) {}

    fn end(&self, _: Call<'_, ()>, _: &Outcome) {}

    fn lookup(&self, call: &mut Call<'_, ()>, name: &[u8]) -> Result<Entry, Errno> {
        self.entry(self.child(call, name)?)
    }

    fn getattr(&self, call: &mut Call<'_, ()>, _: GetAttr) -> Result<AttrReply, Errno> {
        let node = call.request.node;
        let attr = attr_of(&self.path(node)?, node)?;
        Ok(AttrReply { attr, ttl: TTL })
    }

    fn setattr(&self, call: &mut Call<'_, ()>, change: SetAttr) -> Result<AttrReply, Errno> {
        let node = call.request.node;
        let path = self.path(node)?;
        if let Some(size_bytes) = change.size_bytes {
            options().open(&path)?.set_len(size_bytes)?;
        }
        let attr = attr_of(&path, node)?;
        Ok(AttrReply { attr, ttl: TTL })
    }

    fn unlink(&self, call: &mut Call<'_, ()>, name: &[u8]) -> Result<(), Errno> {
        Ok(fs::remove_file(self.child(call, name)?)?)
    }

    fn open(&self, call: &mut Call<'_, ()>, _: OpenFlags) -> Result<Opened, Errno> {
        let node = call.request.node;
        let file = options().open(self.path(node)?)?;
        self.open_file(node, file)
    }

    fn create(
        &self,
        call: &mut Call<'_, ()>,
        name: &[u8],
        make: Make,
        _: OpenFlags,
    ) -> Result<(Entry, Opened), Errno> {
        let path = self.child(call, name)?;
        let mut options = options();
        let file = options.create(true).mode(make.mode & 0o7777).open(&path)?;
        let entry = self.entry(path)?;
        let node = entry.attr.map_or(NodeNumber::ROOT, |attr| attr.node);
        Ok((entry, self.open_file(node, file)?))
    }

    fn read(&self, _: &mut Call<'_, ()>, read: Read, buffer: &mut [u8]) -> Result<usize, Errno> {
        Ok(self
            .handle(read.handle)?
            .file
            .read_at(buffer, read.offset)?)
    }

    fn write(&self, _: &mut Call<'_, ()>, write: Write<'_>) -> Result<Written, Errno> {
        let open = self.handle(write.handle)?;
        open.file.write_all_at(write.data, write.offset)?;
        Ok(Written(write.data.len() as u32))
    }

    fn release(&self, _: &mut Call<'_, ()>, release: Release) -> Result<(), Errno> {
        let mut state = self.state();
        let open = state.handles.get_mut(release.handle.0 as usize);
        let open = open.and_then(Option::take).ok_or(Errno::EBADF)?;
        drop(state);
        drop(open);
        Ok(())
    }

    fn fsync(
        &self,
        _: &mut Call<'_, ()>,
        handle: HandleNumber,
        data_only: bool,
    ) -> Result<(), Errno> {
        let open = self.handle(handle)?;
        let synced = match data_only {
            true => open.file.sync_data(),
            false => open.file.sync_all(),
        };
        synced.map_err(Errno::from)
    }

    fn getxattr(&self, _: &mut Call<'_, ()>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        match (name == WAY_XATTR.as_bytes(), self.kernel_passes_on) {
            (true, true) => Ok(b"the kernel passes on (FOPEN_PASSTHROUGH)".to_vec()),
            (true, false) => Ok(b"its server passes on".to_vec()),
            (false, _) => Err(Errno::ENODATA),
        }
    }

    fn statfs(&self, _: &mut Call<'_, ()>) -> Result<Statfs, Errno> {
        let found = rustix::fs::statvfs(&self.path(NodeNumber::ROOT)?)?;
        Ok(Statfs {
            blocks: found.f_blocks,
            free_blocks: found.f_bfree,
            available_blocks: found.f_bavail,
            files: found.f_files,
            free_files: found.f_ffree,
            block_bytes: found.f_frsize as u32,
            name_bytes_max: found.f_namemax as u32,
        })
    }
}
