//! A backend on its ground: making it, its coldness, its device.

use crate::backend::Backend;
use crate::backend::directory::Directory;
use crate::backend::larder::{Larder, mounted};
use crate::backend::place::{Place, free_bytes};
use crate::backend::postgres::{Cluster, Postgres};
use crate::backend::s3::S3;
use crate::backend::spec::{Spec, System, Where};
use crate::backend::sqlite::Sqlite;
use crate::error::{Error, Result, Said};
use crate::measure::device::Counters;
use crate::volume::{Filesystem, Image, PrivateMounts, Volume};
use larder::limits::CAPACITY_BYTES_MIN;
use rustix::fs::Advice;
use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

/// Bytes of the volume of logs. It is sparse: its size is a bound.
pub const LOG_VOLUME_BYTES: u64 = 1 << 30;
/// A volume that a Larder database lies on is at least so large, bytes: its catalog and its log
/// want room beside the smallest capacity.
const LARDER_VOLUME_BYTES_MIN: u64 = 2 * CAPACITY_BYTES_MIN;

/// Where backends can be made.
#[derive(Debug)]
pub struct Site {
    /// Images lie here.
    pub work: PathBuf,
    /// The `larder` command, for mounts.
    pub program: PathBuf,
    /// The right to mount; `None`: only places that exist can be used, for this reason.
    mounts: std::result::Result<PrivateMounts, Error>,
    /// Below it lie the mount points. Others may look: servers of databases run as somebody else.
    mountpoints: TempDir,
}

impl Site {
    /// A site for this thread and those that it starts.
    pub fn new(work: &Path, program: &Path) -> Result<Site> {
        let mounts = PrivateMounts::enter();
        let mountpoints = tempfile::Builder::new().prefix("larder-lab-").tempdir()?;
        fs::set_permissions(mountpoints.path(), fs::Permissions::from_mode(0o755))?;
        fs::create_dir_all(work).said(|| work.display().to_string())?;
        Ok(Site {
            work: work.to_owned(),
            program: program.to_owned(),
            mounts,
            mountpoints,
        })
    }

    fn mounts(&self) -> Result<&PrivateMounts> {
        self.mounts.as_ref().map_err(Clone::clone)
    }

    /// Whether `spec` can be made here; if not, why and what helps.
    pub fn check(&self, spec: &Spec) -> Result<()> {
        if spec.system == System::Postgres && !matches!(spec.place, Where::Server(_)) {
            Cluster::check()?;
        }
        match &spec.place {
            Where::Volume(filesystem)
                if spec.system == System::Postgres && !filesystem.has_owners() =>
            {
                Err(Error::cannot(format!(
                    "PostgreSQL wants owners and permissions of files, which {} does not have",
                    filesystem.name()
                )))
            }
            Where::Volume(filesystem) => {
                self.mounts()?;
                filesystem.check()
            }
            Where::Path(path) if path.is_dir() => Ok(()),
            Where::Server(_) => Ok(()),
            Where::Path(path) => Err(Error::cannot(format!(
                "'{}' is no directory; make it first",
                path.display()
            ))),
        }
    }

    /// The same on volumes of `volume_bytes`, of which the smallest decides.
    pub fn check_on(&self, spec: &Spec, volume_bytes: &[u64]) -> Result<()> {
        self.check(spec)?;
        let least = volume_bytes.iter().copied().min().unwrap_or_default();
        let is_larder = matches!(spec.system, System::Larder | System::LarderMount);
        let (place, floor) = match &spec.place {
            Where::Volume(filesystem) => {
                filesystem.check_size(least)?;
                ("a volume", LARDER_VOLUME_BYTES_MIN)
            }
            // A capacity, then.
            Where::Path(_) => ("a capacity", CAPACITY_BYTES_MIN),
            Where::Server(_) => return Ok(()),
        };
        if is_larder && least < floor {
            return Err(Error::cannot(format!(
                "a Larder database cannot work on {place} of {} MiB; take --volume {}M or larger",
                least >> 20,
                floor >> 20
            )));
        }
        Ok(())
    }
}

/// Where a backend's bytes lie.
pub struct Ground {
    kind: GroundKind,
    /// Where a backend puts things on it.
    pub place: Place,
}

enum GroundKind {
    Volumes {
        data: Box<Volume>,
        log: Box<Volume>,
        /// Bytes that the filesystem holds when it is empty.
        empty_bytes: u64,
    },
    /// A directory of our own in a place that exists.
    Directory(TempDir),
    /// A server, whose bytes nobody shows us.
    Server,
}

/// What the devices of a subject did.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Traffic {
    /// The volume.
    pub data: Counters,
    /// The volume of logs.
    pub log: Counters,
}

impl Traffic {
    /// What it rose by since `before`.
    pub fn since(&self, before: &Traffic) -> Traffic {
        Traffic {
            data: self.data.since(&before.data),
            log: self.log.since(&before.log),
        }
    }
}

impl Ground {
    /// The place that `spec` names: new volumes, one of them of `volume_bytes`, or a new directory.
    pub fn make(spec: &Spec, site: &Site, volume_bytes: u64) -> Result<Ground> {
        site.check(spec)?;
        let mountpoints = site.mountpoints.path();
        let place = |data: &Path, log: &Path| Place {
            data: data.to_owned(),
            log: log.to_owned(),
            mounts: mountpoints.to_owned(),
        };
        let ground = match &spec.place {
            Where::Volume(filesystem) => {
                let make = |filesystem, image, name: &str| {
                    let mountpoint = mountpoints.join(name);
                    Volume::make(site.mounts()?, filesystem, image, &site.work, &mountpoint)
                };
                let log = Filesystem::find("ext2")
                    .ok_or_else(|| Error::failed("there is no filesystem for logs"))?;
                let data = make(*filesystem, Image::Allocated(volume_bytes), "volume")?;
                let log = make(log, Image::Sparse(LOG_VOLUME_BYTES), "log")?;
                Ground {
                    place: place(&data.mountpoint().join("store"), log.mountpoint()),
                    kind: GroundKind::Volumes {
                        empty_bytes: used_bytes(data.mountpoint())?,
                        data: Box::new(data),
                        log: Box::new(log),
                    },
                }
            }
            Where::Path(path) => {
                let own = tempfile::Builder::new()
                    .prefix("larder-lab-")
                    .tempdir_in(path)
                    .said(|| path.display().to_string())?;
                // Servers of databases may run as somebody else.
                fs::set_permissions(own.path(), fs::Permissions::from_mode(0o755))?;
                let place = place(&own.path().join("store"), &own.path().join("log"));
                fs::create_dir(&place.log)?;
                Ground {
                    place,
                    kind: GroundKind::Directory(own),
                }
            }
            Where::Server(_) => Ground {
                place: place(mountpoints, mountpoints),
                kind: GroundKind::Server,
            },
        };
        if !matches!(ground.kind, GroundKind::Server) {
            let data = &ground.place.data;
            fs::create_dir(data).said(|| data.display().to_string())?;
        }
        Ok(ground)
    }

    /// Whether it is volumes, whose devices can be counted and scanned.
    pub fn has_device(&self) -> bool {
        matches!(self.kind, GroundKind::Volumes { .. })
    }

    /// The filesystem of the volume; `None` without.
    pub fn filesystem(&self) -> Option<Filesystem> {
        match &self.kind {
            GroundKind::Volumes { data, .. } => Some(data.filesystem()),
            _ => None,
        }
    }

    /// What the devices did so far; zeros without.
    pub fn traffic(&self) -> Result<Traffic> {
        match &self.kind {
            GroundKind::Volumes { data, log, .. } => Ok(Traffic {
                data: Counters::read(&data.stat_file())?,
                log: Counters::read(&log.stat_file())?,
            }),
            _ => Ok(Traffic::default()),
        }
    }

    /// Calls `visit` with what raw bytes there are (the device, or the files of a database), while
    /// nothing of them is in memory. Nobody has anything open on it.
    pub fn at_rest<T>(&mut self, visit: impl FnOnce(&[&Path]) -> Result<T>) -> Result<T> {
        match &mut self.kind {
            GroundKind::Volumes { data, .. } => data.at_rest(|device| visit(&[device])),
            GroundKind::Directory(own) => {
                let mut files = Vec::new();
                collect_files(own.path(), &mut files)?;
                for file in &files {
                    let opened = File::open(file).said(|| file.display().to_string())?;
                    opened.sync_all()?;
                    rustix::fs::fadvise(&opened, 0, None, Advice::DontNeed)?;
                }
                // Databases have few files; where each object is a file, there is no raw device
                // here.
                let objects = self.place.data.join("objects");
                let is_raw = |file: &&PathBuf| {
                    file.starts_with(&self.place.data) && !file.starts_with(&objects)
                };
                let raw: Vec<&Path> = files.iter().filter(is_raw).map(PathBuf::as_path).collect();
                visit(&raw)
            }
            GroundKind::Server => visit(&[]),
        }
    }
}

/// A backend on its ground.
pub struct Subject {
    // First: it has files open on the ground.
    backend: Box<dyn Backend>,
    ground: Ground,
}

impl Subject {
    /// Makes the backend, empty, on a volume of `volume_bytes`, or in the place that the spec
    /// names.
    pub fn make(spec: &Spec, site: &Site, volume_bytes: u64) -> Result<Subject> {
        let ground = Ground::make(spec, site, volume_bytes)?;
        let place = &ground.place;
        let backend: Box<dyn Backend> = match spec.system {
            System::Files => Box::new(Directory::create(place, spec)?),
            System::Sqlite => Box::new(Sqlite::create(place, spec)?),
            System::S3 => match &spec.place {
                Where::Server(url) => Box::new(S3::connect(url)?),
                _ => return Err(Error::failed("a bucket needs an address")),
            },
            System::Postgres => Box::new(match &spec.place {
                Where::Server(url) => Postgres::connect(url, spec.is_large_objects, volume_bytes)?,
                _ => Postgres::create(place, spec.is_large_objects, volume_bytes)?,
            }),
            System::Larder => {
                let capacity = (!ground.has_device()).then_some(volume_bytes);
                Box::new(Larder::create(place, capacity, &spec.tuning)?)
            }
            System::LarderMount => Box::new(mounted(place, &site.program, spec)?),
        };
        Ok(Subject { backend, ground })
    }

    /// A backend of one's own in a directory of one's own, without a device that could be looked
    /// at; for tests.
    pub fn of(backend: Box<dyn Backend>, directory: TempDir) -> Subject {
        let path = directory.path().to_owned();
        let ground = Ground {
            place: Place {
                data: path.clone(),
                log: path.clone(),
                mounts: path,
            },
            kind: GroundKind::Directory(directory),
        };
        Subject { backend, ground }
    }

    /// The backend.
    pub fn backend(&self) -> &dyn Backend {
        &*self.backend
    }

    /// Its ground.
    pub fn ground(&self) -> &Ground {
        &self.ground
    }

    /// Bytes that the backend holds on the volume, over those of an empty filesystem; `None`
    /// without a volume.
    pub fn held_bytes(&self) -> Result<Option<u64>> {
        match &self.ground.kind {
            GroundKind::Volumes {
                data, empty_bytes, ..
            } => Ok(Some(
                used_bytes(data.mountpoint())?.saturating_sub(*empty_bytes),
            )),
            _ => Ok(None),
        }
    }

    /// Bytes of objects that the backend can take, still; with `volume_bytes` where nothing else
    /// bounds it.
    pub fn available_bytes(&self, volume_bytes: u64) -> Result<u64> {
        if let Some(bytes) = self.backend.available_bytes()? {
            return Ok(bytes);
        }
        match &self.ground.kind {
            GroundKind::Volumes { data, .. } => free_bytes(data.mountpoint()),
            GroundKind::Directory(own) => Ok(free_bytes(own.path())?.min(volume_bytes)),
            GroundKind::Server => Ok(volume_bytes),
        }
    }

    /// Puts everything at rest: nothing is open, nothing in memory. Calls `visit` with what raw
    /// bytes there are, and opens the backend again.
    pub fn at_rest<T>(&mut self, visit: impl FnOnce(&[&Path]) -> Result<T>) -> Result<T> {
        self.backend.close()?;
        let visited = self.ground.at_rest(visit)?;
        self.backend.open()?;
        Ok(visited)
    }

    /// Nothing is in memory any more.
    pub fn cold(&mut self) -> Result<()> {
        self.at_rest(|_| Ok(()))
    }

    /// Ends it in good order.
    pub fn end(mut self) -> Result<()> {
        self.backend.end()
    }
}

fn collect_files(directory: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let explain = || directory.display().to_string();
    for entry in fs::read_dir(directory).said(explain)? {
        let entry = entry.said(explain)?;
        let kind = entry.file_type().said(explain)?;
        if kind.is_dir() {
            collect_files(&entry.path(), files)?;
        } else if kind.is_file() {
            files.push(entry.path());
        }
    }
    Ok(())
}

fn used_bytes(path: &Path) -> Result<u64> {
    let stat = rustix::fs::statvfs(path).said(|| path.display().to_string())?;
    Ok((stat.f_blocks - stat.f_bfree) * stat.f_frsize)
}
