//! The sides of a measurement behind one interface: the API, a mount, a plain directory.
//!
//! Paths are absolute within the side: `/directory/name`. What is said to be durable survives a
//! power failure on every side.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use larder::format::Extent;
use larder::{
    AlignedBuf, Caller, CreateOptions, Database, DatabaseOptions, Error, ErrorKind, FileHandle,
    NewNode, NodeId, RenameMode,
};

use xtask::Outcome;
use xtask::mounts::{Larder, Mount};

/// Bytes per call of read and write where a verb does not say otherwise, as `cp` does it.
pub const CALL_BYTES: usize = 1 << 20;

/// The places of one object's content, in logical order.
pub type Layout = Vec<Extent>;

/// Somewhere to put objects and to get them from.
pub trait Side: Send + Sync {
    /// Makes a directory.
    fn make_directory(&self, path: &str) -> Outcome;
    /// Puts a new object; durable after the next [`Side::sync`].
    fn put(&self, path: &str, content: &[u8]) -> Outcome;
    /// Puts a new object, durably.
    fn put_durably(&self, path: &str, content: &[u8]) -> Outcome;
    /// Writes `temporary` in calls of `call_bytes`, makes it durable, and renames it to `path`,
    /// over what is there.
    fn replace(
        &self,
        path: &str,
        temporary: &str,
        content: &[u8],
        call_bytes: usize,
    ) -> Result<(), Failure>;
    /// Reads a whole object into `buffer`, which is longer and may be cut to it; returns its
    /// length.
    fn get(&self, path: &str, buffer: &mut AlignedBuf) -> Result<usize, String>;
    /// Everything so far is durable.
    fn sync(&self) -> Outcome;
    /// Removes a directory and its files, durably.
    fn remove_directory(&self, path: &str) -> Outcome;
    /// Drops what this side itself caches.
    fn forget(&mut self) -> Outcome;
    /// Where the objects are; a plain directory does not tell. Forgets, too.
    fn layouts(&mut self) -> Result<Vec<Layout>, String>;
    /// The process that does the work.
    fn process(&self) -> u32;
    /// Ends.
    fn close(self: Box<Self>) -> Outcome;
}

/// Why a replacement failed.
#[derive(Debug)]
pub enum Failure {
    /// There was no space.
    NoSpace,
    /// Anything else, for people.
    Other(String),
}

/// The Content API, in this process.
pub struct Api {
    path: PathBuf,
    /// `None` only while it is opened anew.
    database: Option<Database>,
}

impl Api {
    /// Makes a database, of `capacity_bytes` if given, and opens it.
    pub fn create(path: &Path, capacity_bytes: Option<u64>) -> Result<Api, String> {
        create_database(path, capacity_bytes)?;
        Ok(Api {
            path: path.to_owned(),
            database: Some(open_database(path)?),
        })
    }

    fn database(&self) -> &Database {
        self.database
            .as_ref()
            .expect("open outside of forget and close")
    }

    fn create_file(
        &self,
        path: &str,
        content: &[u8],
        call_bytes: usize,
    ) -> larder::Result<Box<dyn FileHandle>> {
        let (parent, name) = self.database().nodes().resolve_parent(path.as_bytes())?;
        let file = self.database().nodes().create_node(
            parent,
            &name,
            NewNode::File,
            0o644,
            Caller::current(),
        )?;
        let handle = self.database().nodes().open(file.node, true)?;
        handle.expect_len(content.len() as u64)?;
        let mut at = 0;
        for part in content.chunks(call_bytes) {
            handle.write_at(at, part)?;
            at += part.len() as u64;
        }
        Ok(handle)
    }

    fn try_replace(
        &self,
        path: &str,
        temporary: &str,
        content: &[u8],
        call_bytes: usize,
    ) -> larder::Result<()> {
        self.create_file(temporary, content, call_bytes)?.sync()?;
        let (from, from_name) = self
            .database()
            .nodes()
            .resolve_parent(temporary.as_bytes())?;
        let (to, to_name) = self.database().nodes().resolve_parent(path.as_bytes())?;
        self.database()
            .nodes()
            .rename(from, &from_name, to, &to_name, RenameMode::Replace)
    }

    /// What a failed attempt left, if anything.
    fn remove_file(&self, path: &str) -> Outcome {
        let remove = || {
            let (parent, name) = self.database().nodes().resolve_parent(path.as_bytes())?;
            self.database().nodes().unlink(parent, &name)?;
            self.database().sync()
        };
        match remove() {
            Err(error) if error.kind() != ErrorKind::NotFound => Err(said("remove", &error)),
            _ => Ok(()),
        }
    }

    fn try_get(&self, path: &str, buffer: &mut AlignedBuf) -> larder::Result<usize> {
        self.database().files().read_into(path.as_bytes(), buffer)?;
        Ok(buffer.len())
    }

    fn try_remove_directory(&self, path: &str) -> larder::Result<()> {
        let node = self
            .database()
            .nodes()
            .resolve(path.as_bytes(), false)?
            .node;
        loop {
            let entries = self.database().nodes().read_dir(node, None, 1000)?;
            for entry in &entries {
                self.database().nodes().unlink(node, &entry.name)?;
            }
            if entries.is_empty() {
                break;
            }
        }
        let (parent, name) = self.database().nodes().resolve_parent(path.as_bytes())?;
        self.database().nodes().remove_dir(parent, &name)?;
        self.database().sync()
    }

    fn reopen(&mut self, between: impl FnOnce() -> Outcome) -> Outcome {
        if let Some(database) = self.database.take() {
            database.close().map_err(|error| said("close", &error))?;
        }
        between()?;
        self.database = Some(open_database(&self.path)?);
        Ok(())
    }
}

impl Side for Api {
    fn make_directory(&self, path: &str) -> Outcome {
        let make = || {
            let (parent, name) = self.database().nodes().resolve_parent(path.as_bytes())?;
            self.database().nodes().create_node(
                parent,
                &name,
                NewNode::Directory,
                0o755,
                Caller::current(),
            )
        };
        make()
            .map(drop)
            .map_err(|error| said("make directory", &error))
    }

    fn put(&self, path: &str, content: &[u8]) -> Outcome {
        self.database()
            .files()
            .write(path.as_bytes(), content)
            .map(drop)
            .map_err(|error| said("put", &error))
    }

    fn put_durably(&self, path: &str, content: &[u8]) -> Outcome {
        self.database()
            .files()
            .write(path.as_bytes(), content)
            .and_then(|_| self.database().sync())
            .map_err(|error| said("put", &error))
    }

    fn replace(
        &self,
        path: &str,
        temporary: &str,
        content: &[u8],
        call_bytes: usize,
    ) -> Result<(), Failure> {
        match self.try_replace(path, temporary, content, call_bytes) {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == ErrorKind::NoSpace => {
                self.remove_file(temporary).map_err(Failure::Other)?;
                Err(Failure::NoSpace)
            }
            Err(error) => Err(Failure::Other(said("replace", &error))),
        }
    }

    fn get(&self, path: &str, buffer: &mut AlignedBuf) -> Result<usize, String> {
        self.try_get(path, buffer)
            .map_err(|error| said("get", &error))
    }

    fn sync(&self) -> Outcome {
        self.database().sync().map_err(|error| said("sync", &error))
    }

    fn remove_directory(&self, path: &str) -> Outcome {
        self.try_remove_directory(path)
            .map_err(|error| said("remove", &error))
    }

    fn forget(&mut self) -> Outcome {
        self.reopen(|| Ok(()))
    }

    fn layouts(&mut self) -> Result<Vec<Layout>, String> {
        self.forget()?;
        layouts_of(self.database())
    }

    fn process(&self) -> u32 {
        std::process::id()
    }

    fn close(mut self: Box<Self>) -> Outcome {
        self.database
            .take()
            .map_or(Ok(()), Database::close)
            .map_err(|error| said("close", &error))
    }
}

/// A plain directory.
pub struct Host {
    root: PathBuf,
}

impl Host {
    /// Makes the directory.
    pub fn create(root: &Path) -> Result<Host, String> {
        fs::create_dir(root).map_err(|error| format!("{}: {error}", root.display()))?;
        Ok(Host {
            root: root.to_owned(),
        })
    }

    fn place(&self, path: &str) -> PathBuf {
        self.root.join(path.trim_start_matches('/'))
    }

    fn create_file(&self, path: &str, content: &[u8], call_bytes: usize) -> std::io::Result<File> {
        let mut file = File::create(self.place(path))?;
        for part in content.chunks(call_bytes) {
            file.write_all(part)?;
        }
        Ok(file)
    }

    fn try_put_durably(&self, path: &str, content: &[u8]) -> std::io::Result<()> {
        let (temporary, place) = (format!("{path}.tmp"), self.place(path));
        self.create_file(&temporary, content, CALL_BYTES)?
            .sync_all()?;
        fs::rename(self.place(&temporary), &place)?;
        File::open(place.parent().unwrap_or(&self.root))?.sync_all()
    }

    /// A mount commits everything at a directory's fsync, a plain filesystem at syncfs.
    fn try_sync(&self) -> std::io::Result<()> {
        let root = File::open(&self.root)?;
        rustix::fs::syncfs(&root)?;
        root.sync_all()
    }

    fn try_get(&self, path: &str, buffer: &mut AlignedBuf) -> std::io::Result<usize> {
        let mut file = File::open(self.place(path))?;
        let mut at = 0;
        loop {
            let asked = CALL_BYTES.min(buffer.len() - at);
            let len = file.read(&mut buffer[at..at + asked])?;
            at += len;
            if len < asked || asked == 0 {
                return Ok(at);
            }
        }
    }
}

impl Side for Host {
    fn make_directory(&self, path: &str) -> Outcome {
        fs::create_dir(self.place(path)).map_err(|error| said("make directory", &error))
    }

    fn put(&self, path: &str, content: &[u8]) -> Outcome {
        let temporary = format!("{path}.tmp");
        let put = || {
            self.create_file(&temporary, content, CALL_BYTES)?;
            fs::rename(self.place(&temporary), self.place(path))
        };
        put().map_err(|error| said("put", &error))
    }

    fn put_durably(&self, path: &str, content: &[u8]) -> Outcome {
        self.try_put_durably(path, content)
            .map_err(|error| said("put", &error))
    }

    fn replace(
        &self,
        path: &str,
        temporary: &str,
        content: &[u8],
        call_bytes: usize,
    ) -> Result<(), Failure> {
        let replace = || {
            self.create_file(temporary, content, call_bytes)?
                .sync_all()?;
            fs::rename(self.place(temporary), self.place(path))
        };
        match replace() {
            Ok(()) => Ok(()),
            Err(error) if error.kind() == std::io::ErrorKind::StorageFull => {
                match fs::remove_file(self.place(temporary)) {
                    Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
                        Err(Failure::Other(said("remove", &error)))
                    }
                    _ => Err(Failure::NoSpace),
                }
            }
            Err(error) => Err(Failure::Other(said("replace", &error))),
        }
    }

    fn get(&self, path: &str, buffer: &mut AlignedBuf) -> Result<usize, String> {
        self.try_get(path, buffer)
            .map_err(|error| said("get", &error))
    }

    fn sync(&self) -> Outcome {
        self.try_sync().map_err(|error| said("sync", &error))
    }

    fn remove_directory(&self, path: &str) -> Outcome {
        fs::remove_dir_all(self.place(path)).map_err(|error| said("remove", &error))?;
        self.sync()
    }

    fn forget(&mut self) -> Outcome {
        Ok(())
    }

    fn layouts(&mut self) -> Result<Vec<Layout>, String> {
        Ok(Vec::new())
    }

    fn process(&self) -> u32 {
        std::process::id()
    }

    fn close(self: Box<Self>) -> Outcome {
        Ok(())
    }
}

/// The same on a mount.
pub struct Mounted {
    larder: Larder,
    database: PathBuf,
    host: Host,
    /// `None` only while it is mounted anew.
    mount: Option<Mount>,
}

impl Mounted {
    /// Makes a database, of `capacity_bytes` if given, and mounts it.
    pub fn create(
        larder: &Larder,
        database: &Path,
        mountpoint: &Path,
        capacity_bytes: Option<u64>,
    ) -> Result<Mounted, String> {
        create_database(database, capacity_bytes)?;
        let host = Host::create(mountpoint)?;
        let mount = Some(larder.mount(database, mountpoint)?);
        Ok(Mounted {
            larder: larder.clone(),
            database: database.to_owned(),
            host,
            mount,
        })
    }

    fn remount(&mut self, between: impl FnOnce() -> Outcome) -> Outcome {
        if let Some(mount) = self.mount.take() {
            mount.unmount()?;
        }
        between()?;
        self.mount = Some(self.larder.mount(&self.database, &self.host.root)?);
        Ok(())
    }
}

impl Side for Mounted {
    fn make_directory(&self, path: &str) -> Outcome {
        self.host.make_directory(path)
    }

    fn put(&self, path: &str, content: &[u8]) -> Outcome {
        self.host.put(path, content)
    }

    fn put_durably(&self, path: &str, content: &[u8]) -> Outcome {
        self.host.put_durably(path, content)
    }

    fn replace(
        &self,
        path: &str,
        temporary: &str,
        content: &[u8],
        call_bytes: usize,
    ) -> Result<(), Failure> {
        self.host.replace(path, temporary, content, call_bytes)
    }

    fn get(&self, path: &str, buffer: &mut AlignedBuf) -> Result<usize, String> {
        self.host.get(path, buffer)
    }

    fn sync(&self) -> Outcome {
        self.host.sync()
    }

    fn remove_directory(&self, path: &str) -> Outcome {
        self.host.remove_directory(path)
    }

    fn forget(&mut self) -> Outcome {
        self.remount(|| Ok(()))
    }

    fn layouts(&mut self) -> Result<Vec<Layout>, String> {
        let path = self.database.clone();
        let mut layouts = Vec::new();
        self.remount(|| {
            let database = open_database(&path)?;
            layouts = layouts_of(&database)?;
            database.close().map_err(|error| said("close", &error))
        })?;
        Ok(layouts)
    }

    fn process(&self) -> u32 {
        self.mount.as_ref().map_or(0, Mount::process)
    }

    fn close(mut self: Box<Self>) -> Outcome {
        self.mount.take().map_or(Ok(()), Mount::unmount)
    }
}

/// Makes the segments of a database grow by `bytes`, and leaves it empty: growth writes every new
/// block once, and is not what most verbs measure.
pub fn grow(side: &dyn Side, bytes: u64) -> Outcome {
    const PART_BYTES: usize = 8 << 20;
    let content = vec![1; PART_BYTES];
    side.make_directory("/grow")?;
    for index in 0..bytes / PART_BYTES as u64 {
        side.put(&format!("/grow/{index}"), &content)?;
    }
    side.sync()?;
    side.remove_directory("/grow")?;
    // What was removed in one commit is free after the next.
    side.make_directory("/grow")?;
    side.sync()?;
    side.remove_directory("/grow")
}

fn create_database(path: &Path, capacity_bytes: Option<u64>) -> Outcome {
    let options = CreateOptions {
        capacity_bytes,
        // What is replaced is not kept: the plain filesystem does not keep it either.
        retention_ns: Some(0),
        ..CreateOptions::default()
    };
    Database::create(path, &options).map_err(|error| said("create", &error))
}

fn open_database(path: &Path) -> Result<Database, String> {
    let options = DatabaseOptions {
        label: "bench".to_owned(),
        ..DatabaseOptions::default()
    };
    Database::open(path, options).map_err(|error| said("open", &error))
}

fn layouts_of(database: &Database) -> Result<Vec<Layout>, String> {
    let mut layouts = Vec::new();
    let mut note = |_: NodeId, extents: &[Extent]| layouts.push(extents.to_vec());
    database
        .maintenance()
        .layouts(&mut note)
        .map_err(|error: Error| said("layouts", &error))?;
    Ok(layouts)
}

fn said(what: &str, error: &dyn std::fmt::Display) -> String {
    format!("{what}: {error}")
}
