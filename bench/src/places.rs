//! The sides of a measurement as any program sees them: a directory, and the process that serves
//! it.
//!
//! Larder is the released command, as users run it. Every place is on the same disk, or in memory.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Instant;

use rustix::fs::IFlags;

use super::cpu::Cpu;
use super::figures::Turn;
use super::passthrough::WAY_XATTR;
use super::sides::{Api, Side, grow};
use super::yardsticks::{SERVE_MEMORY, SERVE_PASSTHROUGH};
use xtask::Outcome;
use xtask::mounts::{Larder, Mount, Served};
use xtask::process;

/// How a place is called in tables.
pub const LARDER: &str = "Larder";
/// The plain filesystem of the disk; its real type stands in the first line of the report.
pub const PLAIN: &str = "ext4";
/// An empty filesystem in memory, served with the same library and options: what FUSE allows.
pub const FLOOR: &str = "floor";
/// Larder with requests by io_uring, and the floor with them.
const LARDER_RING: &str = "Larder, ring";
const FLOOR_RING: &str = "floor, ring";
const RING: &str = "io_uring";
/// A FUSE filesystem that only passes on to the plain one.
const PASSTHROUGH: &str = "passthrough";
/// A JuiceFS with its names in SQLite and its content in local files.
pub const JUICEFS: &str = "JuiceFS";

/// A directory, and who serves it.
pub struct Place {
    /// For tables.
    pub name: &'static str,
    /// The directory.
    pub root: PathBuf,
    server: Server,
}

enum Server {
    /// The kernel.
    Kernel,
    Larder {
        larder: Larder,
        database: PathBuf,
        /// `None` only while it is mounted anew.
        mount: Option<Mount>,
    },
    Other(Served),
}

impl Place {
    /// A plain directory below `at`.
    pub fn plain(at: &Path) -> Result<Place, String> {
        let root = make_directory(at, "plain")?;
        treat_as_root(&root);
        Ok(Place {
            name: PLAIN,
            root,
            server: Server::Kernel,
        })
    }

    /// A new database below `at`, whose segments have grown by `grown_bytes` already, mounted.
    pub fn larder(larder: &Larder, at: &Path, grown_bytes: u64) -> Result<Place, String> {
        Place::larder_as(LARDER, larder, at, ("larder", grown_bytes))
    }

    /// The same with requests by io_uring.
    pub fn larder_ring(larder: &Larder, at: &Path, grown_bytes: u64) -> Result<Place, String> {
        Place::larder_as(LARDER_RING, &larder.over(RING), at, ("ring", grown_bytes))
    }

    fn larder_as(
        name: &'static str,
        larder: &Larder,
        at: &Path,
        (below, grown_bytes): (&str, u64),
    ) -> Result<Place, String> {
        let database = at.join(format!("bench-{below}.larder"));
        let api: Box<dyn Side> = Box::new(Api::create(&database, None)?);
        grow(&*api, grown_bytes)?;
        api.close()?;
        let root = make_directory(at, below)?;
        let mount = Some(larder.mount(&database, &root)?);
        Ok(Place {
            name,
            root,
            server: Server::Larder {
                larder: larder.clone(),
                database,
                mount,
            },
        })
    }

    /// An empty filesystem in memory, mounted below `at`.
    pub fn floor(at: &Path) -> Result<Place, String> {
        let root = make_directory(at, "floor")?;
        Place::yardstick(FLOOR, root, &[OsStr::new(SERVE_MEMORY)])
    }

    /// The same with requests by io_uring.
    pub fn floor_ring(at: &Path) -> Result<Place, String> {
        let root = make_directory(at, "floor-ring")?;
        let verb = [SERVE_MEMORY, "--transport", RING].map(OsStr::new);
        Place::yardstick(FLOOR_RING, root, &verb)
    }

    /// Whether it is one that answers from memory.
    pub fn is_floor(&self) -> bool {
        [FLOOR, FLOOR_RING].contains(&self.name)
    }

    /// Whether it is Larder.
    pub fn is_larder(&self) -> bool {
        matches!(self.server, Server::Larder { .. })
    }

    /// A filesystem that passes on to a directory below `at`.
    pub fn passthrough(at: &Path) -> Result<Place, String> {
        let directory = make_directory(at, "passthrough.files")?;
        let root = make_directory(at, "passthrough")?;
        let verb = [OsStr::new(SERVE_PASSTHROUGH), directory.as_ref()];
        Place::yardstick(PASSTHROUGH, root, &verb)
    }

    /// Served by this program, started again.
    fn yardstick(name: &'static str, root: PathBuf, verb: &[&OsStr]) -> Result<Place, String> {
        let program = std::env::current_exe().map_err(|error| format!("this program: {error}"))?;
        let arguments = [verb, &[root.as_ref()]].concat();
        let served = Served::start(&program, &arguments, &root, Stdio::null())?;
        Ok(Place {
            name,
            root,
            server: Server::Other(served),
        })
    }

    /// A new filesystem of `program`, a built `juicefs`, below `at`.
    pub fn juicefs(program: &Path, at: &Path) -> Result<Place, String> {
        let root = make_directory(at, "juicefs")?;
        let files = make_directory(at, "juicefs.files")?;
        let cache = make_directory(at, "juicefs.cache")?;
        let names = format!("sqlite3://{}", at.join("juicefs.db").display());
        let bucket = format!("{}/", files.display());
        let format = [
            "--no-agent",
            "--quiet",
            "format",
            "--storage=file",
            "--trash-days=0",
            "--bucket",
            &bucket,
            &names,
            "bench",
        ];
        process::output(&program.to_string_lossy(), &format)?;
        let cache = format!("--cache-dir={}", cache.display());
        let mount = [
            "--no-agent",
            "--quiet",
            "mount",
            "--no-usage-report",
            "--backup-meta=0",
            &cache,
            &names,
        ];
        let arguments: Vec<_> = mount
            .iter()
            .map(AsRef::as_ref)
            .chain([root.as_ref()])
            .collect();
        let served = Served::start(program, &arguments, &root, Stdio::null())?;
        Ok(Place {
            name: JUICEFS,
            root,
            server: Server::Other(served),
        })
    }

    /// The process that serves; `None` where the kernel does it.
    fn process(&self) -> Option<u32> {
        match &self.server {
            Server::Kernel => None,
            Server::Larder { mount, .. } => mount.as_ref().map(Mount::process),
            Server::Other(served) => Some(served.process()),
        }
    }

    /// A path inside.
    pub fn path(&self, name: &str) -> PathBuf {
        self.root.join(name)
    }

    /// How a passthrough passes on.
    pub fn passes_on(&self) -> Result<String, String> {
        let mut value = [0; 100];
        let len = rustix::fs::getxattr(&self.root, WAY_XATTR, &mut value)
            .map_err(|error| explain(&self.root, error.into()))?;
        Ok(String::from_utf8_lossy(&value[..len]).into_owned())
    }

    /// Everything so far is durable. A mount commits everything at a directory's fsync, a plain
    /// filesystem at syncfs.
    pub fn settle(&self) -> Outcome {
        let settle = || {
            let root = File::open(&self.root)?;
            rustix::fs::syncfs(&root)?;
            root.sync_all()
        };
        settle().map_err(|error| format!("sync {}: {error}", self.name))
    }

    /// Unmounts Larder and mounts it again; the others stay as they are.
    pub fn mount_anew(&mut self) -> Outcome {
        if let Server::Larder {
            larder,
            database,
            mount,
        } = &mut self.server
        {
            if let Some(mount) = mount.take() {
                mount.unmount()?;
            }
            *mount = Some(larder.mount(database, &self.root)?);
        }
        Ok(())
    }

    /// Removes a directory and all that is in it, and waits until that is durable.
    pub fn remove(&self, directory: &Path) -> Outcome {
        fs::remove_dir_all(directory).map_err(|error| explain(directory, error))?;
        self.settle()
    }

    /// How fast `run` does the operations that it counts, and what they cost. What it leaves to be
    /// written later is paid for, too, but does not count as time.
    pub fn measure(&self, run: impl FnOnce() -> Result<u64, String>) -> Result<Turn, String> {
        let before = Cpu::now(self.process())?;
        let started = Instant::now();
        let operations = run()?;
        let seconds = started.elapsed().as_secs_f64();
        self.settle()?;
        let cost = Cpu::now(self.process())?.since(before);
        let each = |seconds: f64| seconds * 1e6 / operations as f64;
        Ok(Turn {
            rate: operations as f64 / seconds,
            client_us: each(cost.client_seconds),
            server_us: each(cost.server_seconds),
        })
    }

    /// Unmounts.
    pub fn close(self) -> Outcome {
        match self.server {
            Server::Kernel => Ok(()),
            Server::Larder { mount, .. } => mount.map_or(Ok(()), Mount::unmount),
            Server::Other(served) => served.unmount(),
        }
    }
}

/// Closes all.
pub fn close(places: Vec<Place>) -> Outcome {
    places.into_iter().try_for_each(Place::close)
}

/// Spreads the directories in it over the disk, as ext4 does with those in its root. Else the
/// inodes of a round would lie among those that the round before removed, which ext4 does not use
/// for minutes, but looks at one by one: 400 µs per file where it takes 27.
fn treat_as_root(directory: &Path) {
    let spread = || {
        let directory = File::open(directory)?;
        let flags = rustix::fs::ioctl_getflags(&directory)?;
        rustix::fs::ioctl_setflags(&directory, flags | IFlags::TOPDIR)?;
        Ok::<(), std::io::Error>(())
    };
    if let Err(error) = spread() {
        eprintln!("bench: {error}: the disk's filesystem does not know this flag of ext4");
    }
}

fn make_directory(at: &Path, name: &str) -> Result<PathBuf, String> {
    let path = at.join(name);
    fs::create_dir(&path).map_err(|error| explain(&path, error))?;
    Ok(path)
}

fn explain(path: &Path, error: std::io::Error) -> String {
    format!("{}: {error}", path.display())
}
