//! The three sides of the measurement: the API, a mount, and a plain directory.

use std::fs::{self, File};
use std::io::{Read, Write};
use std::path::{Path, PathBuf};

use larder::{Caller, CreateOptions, Database, NewNode, OpenOptions};

use crate::Outcome;
use crate::mounts::{Larder, Mount};

/// Bytes per call of read and write, as `cp` does it.
const CALL_BYTES: usize = 1 << 20;

/// Somewhere to write files to and to read them from.
pub trait Side {
    /// Writes `count` files of (nearly) `content` into a new directory, and makes them durable. Each
    /// file differs in its first bytes.
    fn write(&mut self, directory: &str, count: usize, content: &mut [u8]) -> Outcome;
    /// Drops what this side itself caches.
    fn forget(&mut self) -> Outcome;
    /// Reads them all, and compares samples and their length with `content`.
    fn read(&mut self, directory: &str, count: usize, content: &[u8]) -> Outcome;
    /// Removes the directory and its files, durably.
    fn remove(&mut self, directory: &str) -> Outcome;
    /// Ends.
    fn close(self: Box<Self>) -> Outcome;
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

    fn try_write(&self, directory: &str, count: usize, content: &mut [u8]) -> std::io::Result<()> {
        let directory = self.root.join(directory);
        fs::create_dir(&directory)?;
        for index in 0..count {
            stamp(content, index);
            let mut file = File::create_new(directory.join(index.to_string()))?;
            for part in content.chunks(CALL_BYTES) {
                file.write_all(part)?;
            }
        }
        self.make_durable(&directory)
    }

    /// A mount of this kernel commits everything at a directory's fsync, a plain filesystem at syncfs.
    fn make_durable(&self, directory: &Path) -> std::io::Result<()> {
        let directory = File::open(directory)?;
        rustix::fs::syncfs(&directory)?;
        directory.sync_all()
    }

    fn try_read(&self, directory: &str, count: usize, content: &[u8]) -> std::io::Result<()> {
        let mut buffer = vec![0; CALL_BYTES];
        for index in 0..count {
            let mut file = File::open(self.root.join(directory).join(index.to_string()))?;
            let mut at = 0;
            loop {
                let len = file.read(&mut buffer)?;
                if !is_next(content, at, &buffer[..len]) {
                    return Err(std::io::Error::other(format!(
                        "file {index} reads differently"
                    )));
                }
                at += len;
                if len == 0 {
                    break;
                }
            }
        }
        Ok(())
    }
}

impl Side for Host {
    fn write(&mut self, directory: &str, count: usize, content: &mut [u8]) -> Outcome {
        self.try_write(directory, count, content)
            .map_err(|error| format!("write: {error}"))
    }

    fn forget(&mut self) -> Outcome {
        Ok(())
    }

    fn read(&mut self, directory: &str, count: usize, content: &[u8]) -> Outcome {
        self.try_read(directory, count, content)
            .map_err(|error| format!("read: {error}"))
    }

    fn remove(&mut self, directory: &str) -> Outcome {
        let remove = || {
            fs::remove_dir_all(self.root.join(directory))?;
            self.make_durable(&self.root)
        };
        remove().map_err(|error| format!("remove: {error}"))
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
    /// Makes a database and mounts it.
    pub fn create(larder: &Larder, database: &Path, mountpoint: &Path) -> Result<Mounted, String> {
        larder.run(&["init", &database.to_string_lossy()])?;
        let host = Host::create(mountpoint)?;
        let mount = Some(larder.mount(database, mountpoint)?);
        Ok(Mounted {
            larder: larder.clone(),
            database: database.to_owned(),
            host,
            mount,
        })
    }
}

impl Side for Mounted {
    fn write(&mut self, directory: &str, count: usize, content: &mut [u8]) -> Outcome {
        self.host.write(directory, count, content)
    }

    fn forget(&mut self) -> Outcome {
        if let Some(mount) = self.mount.take() {
            mount.unmount()?;
        }
        self.mount = Some(self.larder.mount(&self.database, &self.host.root)?);
        Ok(())
    }

    fn read(&mut self, directory: &str, count: usize, content: &[u8]) -> Outcome {
        self.host.read(directory, count, content)
    }

    fn remove(&mut self, directory: &str) -> Outcome {
        self.host.remove(directory)
    }

    fn close(mut self: Box<Self>) -> Outcome {
        self.mount.take().map_or(Ok(()), Mount::unmount)
    }
}

/// The Content API, in this process.
pub struct Api {
    path: PathBuf,
    /// `None` only while it is opened anew.
    database: Option<Database>,
}

impl Api {
    /// Makes a database and opens it.
    pub fn create(path: &Path) -> Result<Api, String> {
        let create = || {
            Database::create(path, &CreateOptions::default())?;
            Database::open(path, options())
        };
        let database =
            create().map_err(|error: larder::Error| format!("{}: {error}", path.display()))?;
        Ok(Api {
            path: path.to_owned(),
            database: Some(database),
        })
    }

    fn database(&self) -> &Database {
        self.database
            .as_ref()
            .expect("open outside of forget and close")
    }

    fn try_write(&self, directory: &str, count: usize, content: &mut [u8]) -> larder::Result<()> {
        let (database, path) = (self.database(), format!("/{directory}"));
        let (root, name) = database.resolve_parent(path.as_bytes())?;
        let parent = database
            .create_node(root, &name, NewNode::Directory, 0o755, Caller::current())?
            .node;
        for index in 0..count {
            stamp(content, index);
            let (_, name) = database.resolve_parent(format!("/{index}").as_bytes())?;
            let file =
                database.create_node(parent, &name, NewNode::File, 0o644, Caller::current())?;
            let handle = database.open_file(file.node, true)?;
            for (part, at) in content.chunks(CALL_BYTES).zip((0u64..).step_by(CALL_BYTES)) {
                handle.write_at(at, part)?;
            }
        }
        database.sync()
    }

    fn try_read(&self, directory: &str, count: usize, content: &[u8]) -> larder::Result<()> {
        let mut buffer = vec![0; CALL_BYTES];
        for index in 0..count {
            let path = format!("/{directory}/{index}");
            let node = self.database().resolve(path.as_bytes(), false)?.node;
            let handle = self.database().open_file(node, false)?;
            let mut at = 0;
            loop {
                let len = handle.read_at(at as u64, &mut buffer)?;
                if !is_next(content, at, &buffer[..len]) {
                    let line = format!("file {index} reads differently");
                    return Err(larder::Error::new(larder::ErrorKind::Corrupt, line));
                }
                at += len;
                if len == 0 {
                    break;
                }
            }
        }
        Ok(())
    }

    fn try_remove(&self, directory: &str) -> larder::Result<()> {
        let (database, path) = (self.database(), format!("/{directory}"));
        let node = database.resolve(path.as_bytes(), false)?.node;
        loop {
            let entries = database.read_dir(node, None, 1000)?;
            for entry in &entries {
                database.unlink(node, &entry.name)?;
            }
            if entries.is_empty() {
                break;
            }
        }
        let (root, name) = database.resolve_parent(path.as_bytes())?;
        database.remove_dir(root, &name)?;
        database.sync()
    }
}

impl Side for Api {
    fn write(&mut self, directory: &str, count: usize, content: &mut [u8]) -> Outcome {
        self.try_write(directory, count, content)
            .map_err(|error| format!("API write: {error}"))
    }

    fn forget(&mut self) -> Outcome {
        let reopen = |database: Option<Database>| {
            database.map_or(Ok(()), Database::close)?;
            Database::open(&self.path, options())
        };
        self.database =
            Some(reopen(self.database.take()).map_err(|error| format!("API reopen: {error}"))?);
        Ok(())
    }

    fn read(&mut self, directory: &str, count: usize, content: &[u8]) -> Outcome {
        self.try_read(directory, count, content)
            .map_err(|error| format!("API read: {error}"))
    }

    fn remove(&mut self, directory: &str) -> Outcome {
        self.try_remove(directory)
            .map_err(|error| format!("API remove: {error}"))
    }

    fn close(mut self: Box<Self>) -> Outcome {
        self.database
            .take()
            .map_or(Ok(()), Database::close)
            .map_err(|error| format!("API close: {error}"))
    }
}

fn options() -> OpenOptions {
    OpenOptions {
        label: "bench".to_owned(),
        ..OpenOptions::default()
    }
}

/// Makes file `index` differ from the others.
fn stamp(content: &mut [u8], index: usize) {
    content[..8].copy_from_slice(&(index as u64).to_le_bytes());
}

/// Whether `found` follows in `content` at `at`, or is empty at its end. Only its last bytes are
/// compared: reading is measured, not comparing. Files are longer, so the stamp is not among them.
fn is_next(content: &[u8], at: usize, found: &[u8]) -> bool {
    let end = at + found.len();
    let tail = found.len().min(1000);
    end <= content.len()
        && (!found.is_empty() || at == content.len())
        && found[found.len() - tail..] == content[end - tail..end]
}
